"""From the eigenpairs of an operator to the answer that was asked for: units, left singular vectors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from npmdask.algorithms import Result
from npmdask.numerics.moments import match
from npmdask.numerics.subspaces import Block
from npmdask.operators import Gram, Operator
from npmdask.runs.left_vectors import refine_with_left
from npmdask.storage.readers.dense import SlabRecord
from npmdask.storage.source import Truth


def in_units(kind: str, theta: np.ndarray) -> np.ndarray:
    """Eigenvalues of the operator as the values of the question: singular values of a matrix are their roots."""
    if kind in ("symmetric", "tensor"):
        return theta
    theta = np.maximum(theta, 0.0)  # A^T A has no negative eigenvalues; rounding has
    return np.sqrt(theta) if kind in ("matrix", "sparse") else theta


def recovery_of(truth: Truth | None, result: Result) -> dict[str, Any]:
    """How near the components of a tensor are to those that were planted: how many are recovered, and the worst errors.

    Of those that have a match: the norm of the difference of unit vectors, and the relative error of weights.
    """
    if truth is None or truth.basis.shape[0] != len(result.vectors):
        return {}
    found = match(truth.basis, truth.values, result.vectors, result.values)
    errors = {"worst_vector_error": found.errors, "worst_weight_error": found.weight_errors}
    matched = found.found >= 0
    worst = {name: float(np.max(values[matched], initial=0.0)) for name, values in errors.items()}
    return {"recovery": {"planted": len(truth.values), "recovered": found.recovered, **worst}}


def answer_arrays(
    kind: str,
    result: Result,
    operator: Operator,
    folder: Path,
    final_pass: Callable[[Operator], tuple[Block, SlabRecord]],
) -> dict[str, np.ndarray]:
    """All arrays of a finished run, by name.

    ``basis`` (d x k), ``values``, ``residual_norms`` in the units of the question; ``operator_*`` as the
    algorithm found them (deflation goes on from these); ``left_rotation`` for a matrix, after one more pass.
    """
    values, vectors, residuals = in_units(kind, result.values), result.vectors, result.residual_norms
    left = {}
    if kind == "matrix":
        assert isinstance(operator, Gram)
        refined = refine_with_left(operator, result, folder, final_pass)
        values, vectors, residuals = refined.values, refined.vectors, refined.residual_norms
        left = {"left_rotation": refined.rotation, "left_checksums": refined.checksums}
    elif kind == "sparse":
        residuals = residuals / np.where(values > 0, values, np.inf)  # ||A^T u - sigma v||, u = A v / sigma
    return {
        "basis": vectors,
        "values": values,
        "residual_norms": residuals,
        "operator_values": result.values,
        "operator_vectors": result.vectors,
        "operator_products": result.products,
        "operator_residual_norms": result.residual_norms,
        **left,
    }
