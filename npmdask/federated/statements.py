"""State how wrong the answer of a distributed run can be: as of a private run, or, without noise, by its residuals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from npmdask.core.certificates.wording import LOST, Assurance, degrees, spread, the_components
from npmdask.privacy.statements import of_plane

WHOSE = "the data of all nodes together, clipped as each node says"
SHARPEST = 1e-9  # no smaller sine is stated: rounding
NEARER = 1.5  # times ||R|| / gap: a Ritz value after the k-th lies below the value that it approximates


def of_nodes(
    arrays: Mapping[str, np.ndarray],
    statement: Mapping[str, Any],
    ritz_values: Sequence[float] = (),
    *,
    singular: bool = False,
) -> Assurance:
    """State the error of a sum over nodes.

    Parameters
    ----------
    arrays : of the result: ``values``, ``residual_norms`` (k); of noisy nodes also ``value_stddevs``, ``factor_left``.
    statement : public, as the centre has it; ``predicted_error`` where nodes add noise.
    ritz_values : all p of the last step (of A^T A where ``singular``), for the gap after the k-th.
    singular : values are singular values, and residuals are theirs.
    """
    if statement.get("predicted_error") is not None:
        known = (
            {**statement, "iteration_rank": arrays["factor_left"].shape[1]} if "factor_left" in arrays else statement
        )
        return of_plane(statement["predicted_error"], arrays, known, WHOSE)
    values, norms = np.abs(arrays["values"]), np.asarray(arrays["residual_norms"])
    k, off = len(values), float(np.max(norms))
    said = (
        f"Every value is accurate to +-{spread(off)}: an exact value of the data of all nodes together lies that close "
        "(proved by the residuals, for any data)"
    )
    sine = _sine(values, norms, np.sort(np.abs(ritz_values))[::-1], singular=singular)
    if sine is None or sine >= LOST:
        said += f"; the error of {the_components(k)} is unknown, because the next value is as large or was not seen"
    else:
        said += f"; {the_components(k)} {'is' if k == 1 else 'are'} likely less than {degrees(max(sine, SHARPEST))} off"
    return Assurance(f"{said}. How other data would differ is not included.", {"value": off, "sine": sine})


def _sine(values: np.ndarray, norms: np.ndarray, ritz: np.ndarray, *, singular: bool) -> float | None:
    """NEARER times ||R|| over the gap after the k-th Ritz value, all of eigenvalues (Davis and Kahan 1970)."""
    k = len(values)
    if len(ritz) <= k:
        return None
    images = norms * values if singular else norms
    squares = values**2 if singular else values
    gap = float(squares.min() - ritz[k])
    return min(NEARER * float(np.linalg.norm(images)) / gap, 1.0) if gap > 0 else 1.0


def of_run_of_nodes(kind: str, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> Assurance:
    """The same, of the result of a run."""
    last = meta["history"][-1]["ritz_values"] if meta["history"] else []
    return of_nodes(arrays, meta["statement"], last, singular=kind == "sparse")
