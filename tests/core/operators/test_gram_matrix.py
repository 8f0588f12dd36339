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

import npmdask.core.operators._protocol as protocol
import npmdask.core.operators.gram_matrix as formed
from npmdask.core.algorithms import Query
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.execution.executor import Threads
from npmdask.core.execution.reduction import TreeNode, pack, runs_of, unpack
from npmdask.core.operators import Gram, GramMatrix, View
from npmdask.core.runs.session import keeper_of
from npmdask.core.storage.column_statistics import ColumnStatistics
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError
from tests.conftest import write_zarr
from tests.core.operators.test_operators import ignore, write_csr


def expected(x: np.ndarray, view: View, weight: float, block: np.ndarray) -> np.ndarray:
    """What a pass gives, from all rows at once in float64."""
    x, u = x.astype(np.float64), np.ones(len(x)) if view.row_weight is None else view.row_weight
    mean = np.average(x, axis=0, weights=u)
    std = np.sqrt(np.average((x - mean) ** 2, axis=0, weights=u))
    a = (x - mean * view.centres) * np.sqrt(u)[:, None]
    a = a if view.scale is None else a / view.scale
    a = a if view.column_weight is None else a * np.sqrt(view.column_weight)
    matrix = weight * a.T @ a
    return np.concatenate([matrix, matrix @ block, mean[:, None], std[:, None]], axis=1)


def require_close(found: np.ndarray, wanted: np.ndarray, tol: float) -> None:
    np.testing.assert_allclose(found[:, :-2], wanted[:, :-2], atol=tol * max(1.0, float(np.abs(wanted[:, :-2]).max())))
    np.testing.assert_allclose(found[:, -2:], wanted[:, -2:], atol=tol * max(1.0, float(np.abs(wanted[:, -2:]).max())))
    d = len(found)
    assert (found[:, :d] == found[:, :d].T).all()


def view_of(x: np.ndarray, center: bool, scale: bool, sparse: bool, weighted: np.random.Generator | None) -> View:
    columns = ColumnStatistics(mean=x.mean(0), std=x.std(0), rows=len(x), about_zero=sparse)
    std = columns.scale if scale else None
    if weighted is None:
        return View(to_centre=center, scale=std)
    m, d = x.shape
    rows, columns = weighted.uniform(0, 3, m) * (weighted.random(m) < 0.6), weighted.uniform(0, 2, d)
    rows[weighted.integers(m) :] = 0  # whole runs that weigh nothing, at either end
    rows[weighted.integers(m)] = 1
    return View(to_centre=center, scale=std, row_weight=rows[:: weighted.choice([1, -1])].copy(), column_weight=columns)


@pytest.mark.slow
@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    layout=st.tuples(st.integers(2, 60), st.integers(1, 40), st.integers(1, 70), st.integers(1, 45)),
    p=st.integers(1, 5),
    dtype=st.sampled_from(["f4", "f8", "u1", "i2", ">f4"]),
    sparse=st.booleans(),
    center=st.booleans(),
    scale=st.booleans(),
    single=st.booleans(),
    weighted=st.booleans(),
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
    weighted: bool,
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
    view, block = (
        view_of(x.astype(float), center, scale, sparse, rng if weighted else None),
        rng.standard_normal((n, p)),
    )
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


@pytest.mark.parametrize("turn", [1, -1])
@pytest.mark.parametrize("single", [False, True])
def test_rows_that_weigh_nothing_spoil_nothing_however_large_they_are(
    single: bool, turn: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In front they would be what all others are less, and leave no digit of these; some runs have no other rows."""
    monkeypatch.setattr(protocol, "RUN_BYTES", 100)
    monkeypatch.setattr(protocol, "COLUMN_BYTES", 1)
    monkeypatch.setattr(formed, "SUMS_READ", 0)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((600, 8)).astype(np.float32) + 1
    x[:250], x[40::7] = 1e15, -3e12
    weights = rng.uniform(0.5, 2, 600)
    weights[:250], weights[40::7] = 0, 0
    x, weights = x[::turn], weights[::turn]
    reader: Any = open_source(write_zarr(tmp_path / "x", x, (100, 8))).reader
    view, block = View(to_centre=True, row_weight=weights), np.eye(8)[:, :2]
    operator = GramMatrix(reader=reader, view=view, single=single)
    assert len(runs_of(operator)) == 6
    found = Threads(2).run_pass(operator, block, ignore)[0]
    kept = weights > 0
    wanted = expected(x[kept], View(to_centre=True, row_weight=weights[kept]), 1.0, block)
    np.testing.assert_allclose(found[:, 8:-1], wanted[:, 8:-1], rtol=1e-11, atol=1e-10)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=(1e-4 if single else 1e-10) * np.abs(wanted).max())


def test_what_it_is_not_for(tmp_path: Path) -> None:
    reader: Any = open_source(write_zarr(tmp_path / "x", np.ones((30, 5)), (10, 5))).reader
    with pytest.raises(AssertionError, match="the means are not known"):
        Gram(reader=reader, view=View(to_centre=True)).asked(Query(np.ones((5, 1))))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_value_that_is_not_finite_is_named(value: float, tmp_path: Path) -> None:
    x = np.ones((300, 5), np.float32)
    x[217, 3] = value
    reader: Any = open_source(write_zarr(tmp_path / "x", x, (50, 5))).reader
    with pytest.raises(BadInputError, match="row 217, column 3"):
        Threads(2).run_pass(GramMatrix(reader=reader, single=True), np.eye(5)[:, :2], ignore)


@pytest.mark.slow
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

        from npmdask.core.execution.reduction import PassCheckpoint

        def keep(parts: Any) -> None:
            kept.append(pack(operator, parts))
            if len(kept) == 4:
                raise Killed

        with pytest.raises(Killed):
            Threads(1).run_pass(operator, block, ignore, PassCheckpoint(None, keep, 0.0))
        known = unpack(operator, *kept[-1])
        resumed = Threads(2).run_pass(operator, block, ignore, PassCheckpoint(known))[0]
    assert one.tobytes() == two.tobytes() == resumed.tobytes()


def test_a_pass_goes_on_only_with_sums_that_were_formed_in_the_same_way(tmp_path: Path) -> None:
    """Parts that an earlier version kept, which summed about means and filled in zeros, are not added to others."""
    reader: Any = open_source(np.ones((3, 3))).reader
    operator, block = GramMatrix(reader=reader), np.eye(3)[:, :1]

    class Earlier(GramMatrix):
        arithmetic = ""

    with RunStore(tmp_path / "run") as store:
        for kept, expected_parts in ((Earlier(reader=reader), 0), (operator, 1)):
            keeper = keeper_of(store, "step 1", kept, block, 0.0)
            keeper.commit({TreeNode(0, 0): kept.partial(range(1), block)})
            assert len(keeper_of(store, "step 1", operator, block, 0.0).parts) == expected_parts


# Integers


def gathered(x: np.ndarray | sp.csr_matrix, folder: Path, chunk: int = 64, **asked: Any) -> tuple[np.ndarray, bool]:
    """What a pass gives of these rows, and whether no sum of it was rounded."""
    if sp.issparse(x):
        reader: Any = open_source(write_csr(folder, x, chunk, rows_at_once=chunk)).reader
    else:
        reader = open_source(write_zarr(folder, x, (chunk, x.shape[1]))).reader
    operator, block = GramMatrix(reader=reader, **asked), np.eye(x.shape[1])[:, :2]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(protocol, "RUN_BYTES", 3000)
        patch.setattr(protocol, "COLUMN_BYTES", 1)
        patch.setattr(formed, "SUMS_READ", 0)
        parts = [operator.partial(run, block) for run in runs_of(operator)]
        found = Threads(2).run_pass(operator, block, ignore)[0]
    total = parts[0]
    for part in parts[1:]:
        total = operator.join(total, part)
    return found, bool(np.isfinite(total.sums["bound"][0]))


def integers(dtype: str, rng: np.random.Generator, rows: int = 700, columns: int = 9) -> np.ndarray:
    """Of all sizes that the dtype has, the smallest and the largest among them."""
    if dtype in ("counts", "halves of bytes"):
        return rng.poisson(1.5, (rows, columns)).astype("f4") * (1 if dtype == "counts" else 17)
    if dtype == "far from zero":  # 11 of 16 digits of a variance cancel
        return rng.integers(3_000_000, 3_000_004, (rows, columns), dtype=np.int32)
    info = np.iinfo(dtype)
    x = rng.integers(info.min, info.max, (rows, columns), dtype=dtype, endpoint=True)
    x[rng.random((rows, columns)) < 0.1], x[rng.random((rows, columns)) < 0.1] = info.min, info.max
    return x


def of_python(x: np.ndarray, center: bool) -> np.ndarray:
    """The same in whole numbers of Python, divided once."""
    whole = x.astype(object)
    total = whole.sum(axis=0)
    products = len(x) * (whole.T @ whole) - (np.outer(total, total) if center else 0)
    return np.array([[entry / len(x) for entry in row] for row in products], np.float64)


@pytest.mark.slow
@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "counts", "halves of bytes", "far from zero"])
def test_integers_have_the_same_bits_in_any_order(
    dtype: str, center: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutants that fail here: strips of 1,024 rows of bytes about 0 in float32, means taken off as they are found."""
    rng = np.random.default_rng(0)
    x = integers(dtype, rng)
    view = View(to_centre=center)
    first, exact = gathered(x, tmp_path / "first", view=view)
    assert exact
    np.testing.assert_array_max_ulp(first[:, : x.shape[1]], of_python(x, center), maxulp=2)
    for number, (rows, strip, side) in enumerate([(rng.permutation(x), 1024, 512), (x[::-1].copy(), 300, 4)]):
        monkeypatch.setattr(formed, "STRIP_ROWS", strip)
        monkeypatch.setattr(formed, "SIDE", side)
        for chunk in (17, 700):
            again, _ = gathered(rows, tmp_path / f"{number}-{chunk}", chunk, view=view, single=bool(number))
            assert again.tobytes() == first.tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("center", [False, True])
def test_sparse_integers_have_the_same_bits_in_any_order(
    center: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether pairs of entries are summed, or rows or columns filled in."""
    rng = np.random.default_rng(0)
    x = rng.poisson(3, (900, 30)) * (rng.random((900, 30)) < rng.random((900, 1)))
    view, found = View(to_centre=center), set()
    monkeypatch.setattr(formed, "FEWEST", 1)
    for number, (cost, full) in enumerate([(1e-9, 2), (1e-9, 0.45), (1.1, 2), (1e9, 2)]):  # of a pair, and of the rows
        monkeypatch.setattr(formed, "PAIR_COST", cost)
        monkeypatch.setattr(formed, "FULL", full)
        monkeypatch.setattr(formed, "SUMMING", 0)
        matrix = sp.csr_matrix(rng.permutation(x).astype(np.float32))
        again, exact = gathered(matrix, tmp_path / str(number), 200 + 100 * number, view=view)
        assert exact
        found.add(again.tobytes())
    assert len(found) == 1
    np.testing.assert_array_max_ulp(again[:, :30], of_python(x, center), maxulp=2)


@pytest.mark.parametrize("most", [0, 5, 30])
@pytest.mark.parametrize("side", [7, 30, 512])
def test_full_columns_of_sparse_rows_beside_pairs_of_the_others(
    most: int, side: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutants that fail here: no products among full columns, or none beside them; places counted from column 0."""
    rng = np.random.default_rng(0)
    shares = rng.permutation(np.linspace(0, 1, 30) ** 2)
    x = rng.standard_normal((200, 30)) * (rng.random((200, 30)) < shares)
    monkeypatch.setattr(formed, "FEWEST", 1)
    monkeypatch.setattr(formed, "FILLED", 200 * most)
    multiplied: list[int] = []
    fullest = formed._fullest_columns
    monkeypatch.setattr(
        formed, "_fullest_columns", lambda *asked: multiplied.append(len(fullest(*asked))) or fullest(*asked)
    )
    blocks = formed.UpperBlocks(30, side)
    held, whole = np.zeros(blocks.shape), np.empty((30, 30))
    blocks.add_sparse_rows(held, sp.csr_matrix(x))
    blocks.add_sparse_rows(held, sp.csr_matrix(x[:1]))
    blocks.whole(held, whole)
    wanted = x.T @ x + x[:1].T @ x[:1]
    assert np.abs(whole - wanted).max() < 1e-13 * np.abs(wanted).max()
    assert all((block == block.T).all() for block, left, right in blocks.each(held) if left == right)
    assert multiplied[0] == min(most, side, int(((x != 0).sum(0) > 40).sum()))


@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64", "uint64"])
def test_integers_whose_sums_float64_does_not_hold_are_no_exact_ones(dtype: str, tmp_path: Path) -> None:
    """They are widened, and rounded like any number; nothing wraps around."""
    x = integers(dtype, np.random.default_rng(0))
    found, exact = gathered(x, tmp_path / "x")
    assert not exact
    wanted = of_python(x, False)
    assert np.abs(found[:, :9] - wanted).max() < 1e-13 * wanted.max()
    small, exact = gathered((x % 1000).astype(dtype), tmp_path / "small", view=View(to_centre=True))
    assert exact
    np.testing.assert_array_max_ulp(small[:, :9], of_python(x % 1000, True), maxulp=2)


def test_one_value_too_large_ends_exactness_before_it_is_summed(tmp_path: Path) -> None:
    """A sum that passes 2^53 may round back below it: the bound is known before anything is added."""
    x = np.full((400, 3), 3, np.int64)
    x[350, 1] = 2**27 - 1
    found, exact = gathered(x, tmp_path / "x", view=View(to_centre=True))
    assert not exact
    wanted = of_python(x, True)
    assert np.abs(found[:, :3] - wanted).max() <= 1e-14 * wanted.max()
    x[350, 1] = 2**22
    assert gathered(x, tmp_path / "smaller")[1]


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("whole_rows", [1, 150, 399])
def test_integers_that_other_numbers_follow(single: bool, whole_rows: int, tmp_path: Path) -> None:
    """What was summed as it is goes on about its mean: no digit is lost, and float64 sees every rounding of float32."""
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((400, 12)) * 3 + 50_000).astype(np.float32)
    x[:whole_rows] = np.rint(x[:whole_rows])
    view = View(to_centre=True)
    found, exact = gathered(x, tmp_path / "x", view=view, single=single)
    assert not exact
    wanted = expected(x, view, 1.0, np.eye(12)[:, :2])
    scale = np.abs(wanted[:, :12]).max()
    assert np.abs(found[:, :12] - wanted[:, :12]).max() < (1e-6 if single else 1e-11) * scale
    assert np.abs(found[:, 12:14] - wanted[:, 12:14]).max() < 2e-6 * scale
    assert np.abs(found[:, -2:] - wanted[:, -2:]).max() < 1e-6


def test_what_shifting_in_float32_rounds_is_seen_in_float64(tmp_path: Path) -> None:
    """The shift is one that float32 holds, and the product is of the rows as they are stored."""
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((3000, 40)) + 1000 * rng.standard_normal(40)).astype(np.float32)
    view, block = View(to_centre=True), np.linalg.qr(rng.standard_normal((40, 4)))[0]
    reader: Any = open_source(write_zarr(tmp_path / "x", x, (1000, 40))).reader
    found = Threads(1).run_pass(GramMatrix(reader=reader, view=view, single=True), block, ignore)[0]
    wanted = expected(x, view, 1.0, block)
    scale = np.abs(wanted).max()
    assert np.abs(found[:, 40:44] - wanted[:, 40:44]).max() < 1e-12 * scale
    assert 1e-10 * scale < np.abs(found[:, :40] - wanted[:, :40]).max() < 1e-6 * scale


@pytest.mark.slow
def test_sparse_integers_that_other_numbers_follow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The product of what was exact is that of its sums."""
    monkeypatch.setattr(formed, "BATCH_ENTRIES", 100)
    rng = np.random.default_rng(0)
    x = (rng.poisson(2, (400, 12)) * (rng.random((400, 12)) < 0.3)).astype(np.float32)
    for number, last in enumerate((0.5, 2.0**26)):  # no integer, or too large for the others
        x[-1] = last
        found, exact = gathered(sp.csr_matrix(x), tmp_path / str(number), 250)
        assert not exact
        wanted = expected(x, View(), 1.0, np.eye(12)[:, :2])
        assert np.abs(found[:, :14] - wanted[:, :14]).max() < 1e-13 * np.abs(wanted).max()


def test_parts_of_one_entry_of_a_sparse_row_are_added_first(tmp_path: Path) -> None:
    """Each is far below what float64 squares exactly, and their sum is not."""

    def written(folder: Path, size: int) -> Any:
        columns = np.concatenate([np.arange(8), np.full(64, 3)]).astype(np.int32)
        group = zarr.open_group(folder, mode="w", attributes={"encoding-type": "csr_matrix", "shape": [2, 8]})
        group.attrs["encoding-version"] = "0.1.0"
        arrays = {"data": np.full(72, size, np.float32), "indices": columns, "indptr": np.array([0, 8, 72])}
        for name, values in arrays.items():
            group.create_array(name, data=values, chunks=(72,))
        return open_source(folder).reader

    for size, exact in ((2, True), (2**21, False)):
        operator, block = GramMatrix(reader=written(tmp_path / str(size), size)), np.eye(8)[:, :2]
        total = operator.partial(range(1), block)
        assert bool(np.isfinite(total.sums["bound"][0])) is exact
        found, dense = operator.finish(total, block), np.full((2, 8), float(size))
        dense[1] = 0
        dense[1, 3] = 64 * size
        assert (found[:, :8] == dense.T @ dense).all()
