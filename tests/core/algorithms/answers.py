"""What is wrong about an answer: it is called converged and is not, or a bound is smaller than the error."""

from __future__ import annotations

from typing import Any

import numpy as np

from npmdask.core.runs.solution import Solution

# Of the trace, as far as rounding may move eigenvalues: of the matrix, and of means that are taken off it.
ROUNDING = 1e-13


def fault(found: Solution, image: np.ndarray, values: np.ndarray, *, tol: float, floor: float, samples: bool) -> str:
    """A sentence, or nothing.

    ``image``: A^H A times the vectors that were found (over n, of samples); ``values``: its true eigenvalues, falling;
    ``floor``: below which eigenvalues are rounding.
    """
    k = len(found.values)
    theta = found.values if samples else found.values**2
    if found.converged:
        off = np.linalg.norm(image - found.basis * theta, axis=0)
        if (off > 1.01 * tol * np.maximum(theta, 0) + floor).any():
            return f"residuals {off / theta}"
        if (theta < values[:k] * (1 - 2 * tol) - floor).any():
            return f"values {theta} of {values[:k]}"
        if not np.allclose(found.basis.conj().T @ found.basis, np.eye(k), rtol=0, atol=1e-9):
            return "vectors that are not orthonormal"
    best = values[:k] if samples else np.sqrt(np.maximum(values[:k], 0))
    least = max(float(np.sqrt(floor)), np.finfo(float).tiny)  # of a matrix of zeros there is no floor
    slack = floor if samples else floor / np.maximum(best, least)
    certificate: Any = found.certificate
    for level in certificate["levels"] if certificate else ():
        errors = [np.inf if error is None else error for error in level["value_errors"]]
        if (np.abs(found.values - best) > np.array(errors) + slack).any():
            return f"{level['ground']} claims {errors} of {found.values - best}"
    return ""
