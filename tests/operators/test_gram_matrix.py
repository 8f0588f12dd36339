"""A matrix that is formed in one pass is the matrix, whatever the layout, the means and the scales of the data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import npmdask.operators._protocol as protocol
import npmdask.operators.gram_matrix as formed
from npmdask.algorithms import Query
from npmdask.errors import BadInputError
from npmdask.execution.executor import Processes, Threads
from npmdask.execution.reduction import pack, runs_of, unpack
from npmdask.operators import Gram, GramMatrix, View
from npmdask.operators.view import column_scale
from npmdask.storage.source import open_source
from tests.conftest import write_zarr
from tests.operators.test_operators import ignore, write_csr


def expected(x: np.ndarray, view: View, weight: float, block: np.ndarray) -> np.ndarray:
    """What a pass gives, from all rows at once in float64."""
    x = x.astype(np.float64)
    a = x - x.mean(0) * view.centres
    a = a if view.scale is None else a / view.scale
    matrix = weight * a.T @ a
    return np.concatenate([matrix, matrix @ block, x.mean(0)[:, None], x.std(0)[:, None]], axis=1)


def require_close(found: np.ndarray, wanted: np.ndarray, tol: float) -> None:
    np.testing.assert_allclose(found[:, :-2], wanted[:, :-2], atol=tol * max(1.0, float(np.abs(wanted[:, :-2]).max())))
    np.testing.assert_allclose(found[:, -2:], wanted[:, -2:], atol=tol * max(1.0, float(np.abs(wanted[:, -2:]).max())))
    d = len(found)
    assert (found[:, :d] == found[:, :d].T).all()


def view_of(x: np.ndarray, center: bool, scale: bool, sparse: bool) -> View:
    std = column_scale(x.mean(0), x.std(0), sparse=sparse) if scale else None
    return View(to_centre=center, scale=std)


@pytest.mark.slow
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    layout=st.tuples(st.integers(2, 60), st.integers(1, 40), st.integers(1, 70), st.integers(1, 45)),
    p=st.integers(1, 5),
    dtype=st.sampled_from(["f4", "f8", "u1", "i2", ">f4"]),
    sparse=st.booleans(),
    center=st.booleans(),
    scale=st.booleans(),
    single=st.booleans(),
    side=st.sampled_from([1, 7, 16, 512]),
    run_bytes=st.sampled_from([100, 2000, 10**9]),
    seed=st.integers(0, 10**6),
)
def test_any_layout(
    tmp_path_factory: pytest.TempPathFactory,
    layout: Any,
    p: int,
    dtype: str,
    sparse: bool,
    center: bool,
    scale: bool,
    single: bool,
    side: int,
    run_bytes: int,
    seed: int,
) -> None:
    m, n, rows, columns = layout
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 100, (m, n)) * (rng.random((m, n)) < (0.4 if sparse else 1))
    if sparse:
        x[0, 0] = 1  # at least one entry
        matrix = sp.csr_matrix(x.astype("f4"))
        reader: Any = open_source(write_csr(tmp_path_factory.mktemp("csr") / "x", matrix, 7)).reader
    else:
        made = {"compressors": None, "config": {"write_empty_chunks": True}}
        z = zarr.create_array({}, shape=(m, n), dtype=dtype, chunks=(min(rows, m), min(columns, n)), **made)
        z[...] = x.astype(dtype)
        reader = open_source(z).reader
    view, block = view_of(x.astype(float), center, scale, sparse), rng.standard_normal((n, p))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(protocol, "RUN_BYTES", run_bytes)
        patch.setattr(protocol, "COLUMN_BYTES", 1)
        patch.setattr(formed, "SUMS_READ", 0)
        patch.setattr(formed, "SIDE", side)
        operator = GramMatrix(reader=reader, weight=1 / m, view=view, single=single)
        found, record = Threads(2).run_pass(operator, block, ignore)
        require_close(found, expected(x, view, 1 / m, block), 1e-5 if single else 1e-11)
        sure = np.s_[:, n:-1]  # the product and the means, by which the matrix is judged, are of float64 in any case
        np.testing.assert_allclose(
            found[sure],
            expected(x, view, 1 / m, block)[sure],
            rtol=0,
            atol=1e-11 * max(1.0, float(np.abs(expected(x, view, 1 / m, block)).max())),
        )
        parts = {node: operator.partial(run, block) for node, run in enumerate(runs_of(operator))}
        for part in parts.values():  # as a checkpoint keeps it
            again = operator.unstacked(operator.stacked(part.sums), range(1))
            assert again.keys() == part.sums.keys()
            assert all(np.array_equal(again[name], part.sums[name]) for name in again)
    assert sparse or record.bytes_read == reader.nbytes


def test_nothing_cancels_where_means_are_a_million_deviations(tmp_path: Path) -> None:
    """Summed as they are, squares of such columns would leave no digit of a variance."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3000, 20)) * np.geomspace(1, 1e-2, 20) + 1e6 * rng.standard_normal(20)
    x[1500:] += 3.0  # and the mean of the first rows is not that of the last ones
    reader: Any = open_source(write_zarr(tmp_path / "x", x, (100, 20))).reader
    operator = GramMatrix(reader=reader, weight=1 / 3000, view=View(to_centre=True))
    found = Threads(2).run_pass(operator, np.eye(20)[:, :3], ignore)[0][:, :20]
    exact = np.cov(x.astype(np.longdouble).T, bias=True).astype(float)
    assert np.abs(found - exact).max() < 1e-9 * np.abs(exact).max()


@pytest.mark.parametrize("size", [1e-30, 1e25])
def test_what_float32_cannot_square_is_multiplied_in_float64(size: float, tmp_path: Path) -> None:
    x = (np.random.default_rng(0).standard_normal((500, 12)) * size).astype(np.float32)
    reader: Any = open_source(write_zarr(tmp_path / "x", x, (100, 12))).reader
    found = Threads(1).run_pass(GramMatrix(reader=reader, single=True), np.eye(12)[:, :2], ignore)[0][:, :12]
    exact = x.astype(float).T @ x.astype(float)
    np.testing.assert_allclose(found, exact, rtol=1e-9, atol=1e-12 * exact.max())


def test_what_it_is_not_for(tmp_path: Path) -> None:
    reader: Any = open_source(write_zarr(tmp_path / "x", np.ones((30, 5)), (10, 5))).reader
    with pytest.raises(BadInputError, match="a matrix of weighted rows is not formed"):
        GramMatrix(reader=reader, view=View(row_weight=np.ones(30)))
    with pytest.raises(AssertionError, match="the means are not known"):
        Gram(reader=reader, view=View(to_centre=True)).asked(Query(np.ones((5, 1))))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_value_that_is_not_finite_is_named(value: float, tmp_path: Path) -> None:
    x = np.ones((300, 5), np.float32)
    x[217, 3] = value
    reader: Any = open_source(write_zarr(tmp_path / "x", x, (50, 5))).reader
    with pytest.raises(BadInputError, match="row 217, column 3"):
        Threads(2).run_pass(GramMatrix(reader=reader, single=True), np.eye(5)[:, :2], ignore)


@pytest.mark.parametrize("sparse", [False, True])
def test_the_same_bits_in_threads_and_in_processes_and_after_a_kill(sparse: bool, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    if sparse:
        matrix = sp.random(4000, 60, 0.3, "csr", random_state=0, dtype=np.float32)
        reader: Any = open_source(write_csr(tmp_path / "x", matrix, 500, rows_at_once=500)).reader
    else:
        reader = open_source(write_zarr(tmp_path / "x", rng.standard_normal((4000, 60)), (100, 60))).reader
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(protocol, "RUN_BYTES", 10_000)
        patch.setattr(protocol, "COLUMN_BYTES", 1)
        patch.setattr(formed, "SUMS_READ", 1)
        operator, block = GramMatrix(reader=reader, view=View(to_centre=True)), rng.standard_normal((60, 4))
        runs = runs_of(operator)
        assert len(runs) > 4
        one, two = (Threads(threads).run_pass(operator, block, ignore)[0] for threads in (1, 2))
        kept = []

        class Killed(Exception):
            pass

        from npmdask.execution.reduction import PassCheckpoint

        def keep(parts: Any) -> None:
            kept.append(pack(operator, parts))
            if len(kept) == 4:
                raise Killed

        with pytest.raises(Killed):
            Threads(1).run_pass(operator, block, ignore, PassCheckpoint(None, keep, 0.0))
        known = unpack(operator, *kept[-1])
        resumed = Threads(2).run_pass(operator, block, ignore, PassCheckpoint(known))[0]
    assert one.tobytes() == two.tobytes() == resumed.tobytes()


@pytest.mark.slow
def test_the_same_bits_in_worker_processes(tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((60_000, 80))
    reader: Any = open_source(write_zarr(tmp_path / "x", x, (1000, 80))).reader
    operator, block = GramMatrix(reader=reader, view=View(to_centre=True)), np.eye(80)[:, :3]
    here = Threads(2).run_pass(operator, block, ignore)[0]
    with_workers = Processes(2, 1)
    try:
        there = with_workers.run_pass(operator, block, ignore)[0]
    finally:
        with_workers.close()
    assert here.tobytes() == there.tobytes()
