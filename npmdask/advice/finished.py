"""Advice from a finished run: how many of its components mean something, and which ones sampling mixes."""

from __future__ import annotations

import numpy as np

from npmdask.advice.component_counts import KnownSpectrum, advise
from npmdask.advice.sampling_errors import APART, Groups, mixed_groups, next_is_mixed
from npmdask.advice.sampling_errors import north_errors as errors_of
from npmdask.core.runs.components import variances_of_run
from npmdask.core.runs.postprocessing import CountAdvice
from npmdask.core.runs.solution import Solution
from npmdask.errors import BadInputError


def component_counts(solution: Solution, share: float, noise: float | None) -> tuple[CountAdvice, ...]:
    """Return the advice of each criterion, as far as k values allow it."""
    weighted = solution.analysed.row_weight is not None
    rows = None if weighted else _equal_rows(solution)
    variances = solution.singular_values**2 / solution._rows if weighted else variances_of_run(solution)[1]
    total = float(variances.sum()) / solution.explained_share if solution.explained_share else None
    weights = solution._row_components.column_weight
    d = len(solution.basis) if weights is None else int((weights > 0).sum())  # others are no columns of the matrix
    known = KnownSpectrum(values=variances, d=d, rows=rows, centred=solution.analysed.centred, total=total)
    return advise(known, share=share, noise=noise, seed=0)


def north_errors(solution: Solution, independent_rows: int | None) -> tuple[np.ndarray, Groups]:
    """Standard errors of the variances by North's rule, and the components that they mix."""
    rows = _equal_rows(solution) if independent_rows is None else independent_rows
    variances = variances_of_run(solution)[1]
    errors = errors_of(variances, rows)
    return errors, mixed_groups(variances, APART * errors)


def mixes_with_next(solution: Solution, independent_rows: int | None) -> bool | None:
    """Say whether the last component overlaps with the next one; None: not known."""
    rows = _equal_rows(solution) if independent_rows is None else independent_rows
    variances = variances_of_run(solution)[1]
    weights = solution._row_components.column_weight
    columns = len(solution.basis) if weights is None else int((weights > 0).sum())
    left = columns - len(variances)
    if solution.analysed.rows is not None:
        left = min(left, solution.analysed.rows - solution.analysed.centred - len(variances))
    if left < 1:
        return False
    most, last = _following_bound(solution), float(solution.values[-1])
    power = 1 if solution.analysed.kind == "samples" else 2
    upper = None if most is None or not last > 0 else float(variances[-1]) * (most / last) ** power
    mean = None
    if solution.explained_share:
        mean = max(0.0, float(variances.sum()) * (1 / solution.explained_share - 1)) / left
    return next_is_mixed(float(variances[-1]), rows, upper=upper, lower=mean)


def _equal_rows(solution: Solution) -> int:
    """n, where rows count alike. Raises BadInputError of others."""
    if solution.analysed.row_weight is not None or solution.analysed.rows is None:
        raise BadInputError(
            "the rows of this run are weighted, and criteria and standard errors need the number of rows that "
            "count alike: run without row_weights, or give it to solution.north_errors(independent_rows=N)"
            if solution.analysed.row_weight is not None
            else "how many rows there are is not released, and without it nothing is known of the noise"
        )
    return solution.analysed.rows


def _following_bound(solution: Solution) -> float | None:
    """A bound of the largest value that is not among these, if none was missed; in their units."""
    levels = (solution.certificate or {}).get("levels", ())
    return None if not levels or levels[-1]["following"] is None else float(levels[-1]["following"])
