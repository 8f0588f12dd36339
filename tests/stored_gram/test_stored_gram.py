"""The bound of a kept Gram holds: whatever was joined, taken off, scaled, chosen or moved about zero."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npmdask
from npmdask import GramStore, api
from npmdask.core.algorithms import Query, StoredGramPairs
from npmdask.core.operators import View
from npmdask.core.runs.build import make_problem
from npmdask.core.runs.problem import Request
from npmdask.core.runs.resources import Resources
from npmdask.errors import RefusedError
from npmdask.stored_gram.operator import GramReader, GramSums, StoredGram, packed, probes_of, unpacked


def sums_of(rows: np.ndarray) -> GramSums:
    """As a pass leaves them: in float64, the image apart from the matrix."""
    mean = rows.mean(axis=0)
    a = rows - mean
    return GramSums(count=len(rows), mean=mean, matrix=a.T @ a, image=a.T @ (a @ probes_of(rows.shape[1], 0)))


def exactly(rows: np.ndarray) -> np.ndarray:
    a = rows.astype(np.longdouble)
    a = a - a.mean(axis=0)
    return a.T @ a


def norm(error: np.ndarray) -> float:
    return float(np.linalg.norm(error.astype(float), 2))


def bound_of(operator: StoredGram) -> float:
    """What an answer takes the matrix to be off at most."""
    d = operator.block_rows
    asked: Any = operator.asked(Query(np.zeros((d, 0)), whole="float64"))
    whole = asked.finish(asked.partial(range(1), np.zeros((d, 0))), np.zeros((d, 0)))
    algorithm = StoredGramPairs(target_rank=1, iteration_rank=1, probed=operator.reader.probed)
    return algorithm.distance(whole[:, :d], np.zeros((d, 0)), whole[:, d:-2])


def reader_of(sums: GramSums, columns: np.ndarray | None = None) -> GramReader:
    """With the residual of its probes; of some columns."""
    d = len(sums.mean)
    residual = sums.image - sums.matrix @ probes_of(d, 0)
    if columns is not None:
        sums = replace(
            sums, mean=sums.mean[columns], matrix=sums.matrix[np.ix_(columns, columns)], image=sums.image[columns]
        )
        residual = residual[columns]
    return GramReader(sums=sums, residual=residual, probed=d, dtype=np.dtype(np.float64))


@pytest.mark.parametrize("seed", range(20))
def test_what_a_removal_loses_is_bounded(seed: int) -> None:
    """Parts of other sizes and scales; the bound is no wider than digits that are lost."""
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(20, 200)), int(rng.integers(3, 20))
    rows = rng.standard_normal((n, d)) * 10.0 ** rng.uniform(-3, 3, d) + rng.standard_normal(d) * 10 ** rng.uniform(
        -3, 3
    )
    cut, probes = int(rng.integers(5, n - 5)), probes_of(d, 0)
    rows[:cut] *= 10.0 ** rng.uniform(-2, 2)
    try:
        left = sums_of(rows).without(sums_of(rows[:cut]), probes)
    except RefusedError:
        assert norm(exactly(rows[cut:])) < 1e-8 * norm(exactly(rows)) or n - cut < 10
        return
    error = norm(left.matrix - exactly(rows[cut:]))
    assert error <= left.slack <= 1e-12 * d * (norm(exactly(rows)) + n * float(np.square(rows.mean(axis=0)).sum()))
    np.testing.assert_allclose(left.mean, rows[cut:].mean(axis=0), rtol=1e-9, atol=1e-12 * np.abs(rows).max())


@pytest.mark.parametrize("moved", [0.0, 1e9])
def test_a_join_is_the_gram_of_both(moved: float) -> None:
    """Means of 10^9 deviations: their difference has few digits, which neither the matrix nor its image shows."""
    rng = np.random.default_rng(0)
    rows, probes = rng.standard_normal((90, 7)) + moved, probes_of(7, 0)
    both = sums_of(rows[:50]).joined(sums_of(rows[50:]), probes)
    assert norm(both.matrix - exactly(rows)) <= both.slack + 1e-13 * norm(exactly(rows))
    assert (both.matrix == both.matrix.T).all() and both.count == 90
    np.testing.assert_allclose(both.image, both.matrix @ probes, atol=1e-12 * norm(exactly(rows)))
    left = sums_of(rows).without(sums_of(rows[:50]), probes)
    assert norm(left.matrix - exactly(rows[50:])) <= left.slack < (1e-3 if moved else 1e-11) * norm(exactly(rows))


def test_nothing_is_left_of_all_rows() -> None:
    sums = sums_of(np.random.default_rng(0).standard_normal((9, 3)))
    with pytest.raises(RefusedError, match="9 of 9 rows are to be removed, which leaves none"):
        sums.without(sums, probes_of(3, 0))


def test_a_triangle_is_the_whole() -> None:
    matrix = sums_of(np.random.default_rng(0).standard_normal((9, 5))).matrix
    assert len(packed(matrix)) == 15 and unpacked(packed(matrix), 5).tobytes() == matrix.tobytes()


@pytest.mark.parametrize("scales", [(0.0, 0.0), (-3.0, -3.0), (-2.0, 2.0)])
@pytest.mark.parametrize("view", ["centred", "about zero", "scaled", "scaled about zero"])
@pytest.mark.parametrize("chosen", [False, True])
def test_the_bound_holds_in_every_view(scales: tuple[float, float], view: str, chosen: bool) -> None:
    """Of a matrix that is off by float32; the columns that are chosen are those that vary most."""
    rng = np.random.default_rng(1)
    d, n = 40, 500
    rows = (rng.standard_normal((n, d)) + 2) * np.logspace(*scales, d)
    sums = sums_of(rows)
    sums = replace(sums, matrix=sums.matrix.astype(np.float32).astype(float))
    columns = np.arange(d - 20, d) if chosen else np.arange(d)
    true = rows[:, columns].astype(np.longdouble)
    std = true.std(axis=0)
    center = "about zero" not in view
    if view.startswith("scaled"):
        true = true / std
    true = true - (true.mean(axis=0) if center else 0)
    reader = reader_of(sums, columns)
    seen = View.of_columns(reader.sums.columns(of_csr=False), center=center, scale=view.startswith("scaled"))
    operator = StoredGram(reader=reader, view=seen, weight=0.5)
    error = norm(operator.matrix() - true.T @ true / 2)
    assert error <= bound_of(operator) <= 1e6 * error


def test_means_of_a_million_deviations_are_rounding_about_zero() -> None:
    rows = np.random.default_rng(2).standard_normal((300, 10)) + 1e6
    true = rows.astype(np.longdouble)
    for center in (True, False):
        operator = StoredGram(reader=reader_of(sums_of(rows)), view=View(to_centre=center))
        error = norm(operator.matrix() - (exactly(rows) if center else true.T @ true))
        assert error <= bound_of(operator) < 1e-11 * norm(operator.matrix())


@pytest.mark.slow
def test_what_probes_do_not_show_counts_in_every_residual(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).standard_normal((300, 6)) * [5, 4, 3, 2, 1, 1]
    npmdask.gram(rows, tmp_path / "G", kind="samples")
    source = GramStore(tmp_path / "G").as_source()
    reader: Any = source.reader
    for slack, converged in ((0.0, True), (1e-4 * 300, False)):
        held: Any = replace(source, reader=replace(reader, sums=replace(reader.sums, slack=slack)))
        found = api.solve(make_problem(held, Request(target_rank=2, center=True)), None, Resources())
        assert found.converged == converged
        np.testing.assert_array_less(slack / 300, found.residual_norms)


def test_sums_of_sparse_rows_are_about_zero_and_that_counts() -> None:
    reader = reader_of(sums_of(np.random.default_rng(3).standard_normal((100, 5)) + 1e4))
    dense, sparse = (
        StoredGram(reader=replace(reader, of_csr=of_csr), view=View(to_centre=True)) for of_csr in (False, True)
    )
    assert bound_of(sparse) > 100 * bound_of(dense)
