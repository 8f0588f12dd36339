"""Notes on a mean that is found, where rows or columns have weights."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_matrix

import npmdask
from npmdask.core.runs.checks import MOSTLY
from tests.advice.test_mean_notes import MEAN, noted, rows_of


@pytest.mark.slow
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("share", [MOSTLY + 0.01, MOSTLY - 0.01, 0.995])
def test_left_vectors_tell_where_the_means_are_not_known(share: float, weighted: bool) -> None:
    """As of a small array in memory, without a pass. The bound is below the cosine, and not far below.

    Mutants: rows that are weighted summed as they are; the bound without what the unknown components share.
    """
    rows = rows_of(share)
    rows[:, 1] += 0.5 * (rows[:, 0] - MEAN)
    weights = np.where(np.arange(400) % 2, 0.3, 2.0) if weighted else None
    plain = npmdask.top_k(rows, 2, kind="matrix", algorithm="krylov", row_weights=weights)
    known = npmdask.top_k(rows, 2, kind="matrix", algorithm="gram", row_weights=weights)
    assert len(noted(plain)) == len(noted(known)) and plain.data_passes == plain.steps + 1
    if not noted(plain):
        return
    bound = float(noted(plain)[0].partition("at least ")[2].partition(")")[0])
    cosine = float(noted(known)[0].partition("cosine ")[2].partition(")")[0])
    assert cosine - 0.01 < bound <= cosine


@pytest.mark.slow
def test_weights_and_sparse_rows_are_seen_as_the_run_sees_them() -> None:
    rows, few = rows_of(0.95), np.ones(400)
    few[rows[:, 0] > MEAN] = 0.01  # nearly all weight on one side: less variance, the mean all the same
    assert noted(npmdask.top_k(rows, 2, kind="samples", algorithm="gram", row_weights=few))
    away = np.array([1e-4, 1, 1, 1, 1, 1])  # hardly a weight for the only column with a mean
    assert not noted(npmdask.top_k(rows, 2, kind="samples", algorithm="gram", column_weights=away))
    assert noted(npmdask.top_k(csr_matrix(rows), 2, kind="sparse", algorithm="gram"))
