"""Compare the components of a tensor with those that were planted in it."""

from __future__ import annotations

from typing import Any

import numpy as np

from npmdask.core.algorithms import Result
from npmdask.core.runs.plain_release import PlainRelease
from npmdask.core.storage.source import Truth
from npmdask.tensors.moments import match


class TensorRelease(PlainRelease):
    """Products with a tensor, and an answer that says how near it is to a truth that is known."""

    def _facts_of(self, result: Result) -> dict[str, Any]:
        return super()._facts_of(result) | recovery_of(self._problem.source.truth, result)


def recovery_of(truth: Truth | None, result: Result) -> dict[str, Any]:
    """Compare the components of a tensor with the planted ones: how many are recovered, and the worst errors.

    Of those that have a match: the norm of the difference of unit vectors, and the relative error of weights.
    """
    if truth is None or truth.basis.shape[0] != len(result.vectors):
        return {}
    found = match(truth.basis, truth.values, result.vectors, result.values)
    errors = {"worst_vector_error": found.errors, "worst_weight_error": found.weight_errors}
    matched = found.found >= 0
    worst = {name: float(np.max(values[matched], initial=0.0)) for name, values in errors.items()}
    return {"recovery": {"planted": len(truth.values), "recovered": found.recovered, **worst}}
