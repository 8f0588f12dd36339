"""Sums that are formed on a device are those of the processor, whatever the view, the dtype and the layout.

The device is the processor by way of NumPy and of array-api-strict, which knows nothing but the array API: the same
code as on a GPU, but for copies and the few products that libraries spell differently.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import zarr

import npmdask.core.operators._protocol as protocol
import npmdask.core.operators.gram_matrix as gram_matrix
import npmdask.gpu.on_device as on
from npmdask.cluster.workers import Processes
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.execution.executor import Threads
from npmdask.core.execution.reduction import TreeNode, runs_of
from npmdask.core.operators import Gram, GramMatrix, SparseGram, View
from npmdask.core.runs.session import keeper_of
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError, MemoryRefusedError
from npmdask.gpu.devices import Device
from npmdask.gpu.on_device import OnDevice, on_device
from tests.conftest import write_zarr
from tests.core.operators.test_operators import ignore, write_csr

DTYPES = ("f2", "f4", "f8", "i1", "u1", "i2", "u2", "i4", "i8", "bool")
VIEWS = ("plain", "centred", "row weights", "scaled", "column weights")
TOL = 1e-13  # of the largest entry: in float64 both round a few times


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of a chunk of rows, strips that end in the middle of one."""
    monkeypatch.setattr(protocol, "RUN_BYTES", 1)
    monkeypatch.setattr(protocol, "COLUMN_BYTES", 1)
    monkeypatch.setattr(gram_matrix, "SUMS_READ", 0)
    monkeypatch.setattr(on, "FEWEST", 16)
    monkeypatch.setattr(on, "STRIP", 2**13)
    monkeypatch.setattr(on, "FILLED", 2**10)
    monkeypatch.setattr(on, "SUMS_READ", 0)
    monkeypatch.setattr(on, "RUN", 1)


@pytest.fixture(params=["numpy", "array_api_strict"])
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    held = Device(request.param)
    held.backend.allow(0)
    yield held
    held.backend.close()


def total(operator: Any, block: np.ndarray, threads: int = 2) -> np.ndarray:
    return Threads(threads).run_pass(operator, block, ignore)[0]


def require_parity(operator: Any, block: np.ndarray, device: Device, tol: float = TOL) -> np.ndarray:
    """The product by the device, which is that of the processor."""
    here, there = total(operator, block), total(on_device(operator, device), block)
    np.testing.assert_allclose(there, here, rtol=0, atol=tol * np.abs(here).max())
    return there


def rows_of(dtype: str, m: int = 300, d: int = 20) -> np.ndarray:
    rng = np.random.default_rng(0)
    if dtype == "bool":
        return rng.random((m, d)) < 0.3
    low = 0 if dtype.startswith("u") else -90
    if dtype.startswith("f"):
        return (rng.standard_normal((m, d)) * np.geomspace(9, 1, d) + 3).astype(dtype)
    return rng.integers(low, 100, (m, d)).astype(dtype)


def view_of(name: str, x: np.ndarray, *, finds_means: bool = False) -> View:
    m, d = x.shape
    rng = np.random.default_rng(1)
    if name == "centred":
        return View(to_centre=True) if finds_means else View(shift=x.mean(0, dtype="f8"))
    if name == "row weights":
        weights = rng.random(m) * (rng.random(m) < 0.7)
        weights[:40] = 0  # a whole run
        return View(row_weight=weights, to_centre=finds_means)
    if name == "scaled":
        return View(scale=rng.uniform(0.5, 2.0, d), shift=None if finds_means else x.mean(0, dtype="f8"))
    return View(column_weight=rng.uniform(0.0, 2.0, d)) if name == "column weights" else View()


def opened(x: Any, folder: Path, chunks: tuple[int, int] = (47, 7)) -> Any:
    if sp.issparse(x):
        return open_source(write_csr(folder / "x", x, chunks[0])).reader
    return open_source(write_zarr(folder / "x", x, chunks, config={"write_empty_chunks": True})).reader


def block_of(d: int, p: int = 3) -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(2).standard_normal((d, p)))[0]


# Parity


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_products_and_matrices_of_dense_rows(dtype: str, view: str, device: Device, tmp_path: Path) -> None:
    x = rows_of(dtype)
    reader, block = opened(x, tmp_path), block_of(20)
    require_parity(Gram(reader=reader, view=view_of(view, x), weight=0.5), block, device)
    require_parity(GramMatrix(reader=reader, view=view_of(view, x, finds_means=True)), block, device)
    require_parity(Gram(reader=reader, view=view_of(view, x), rounded=True), block, device, tol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [on.AT_ONCE, 0])
@pytest.mark.parametrize("columns", [20, 7])
@pytest.mark.parametrize("height", [16, 47, 300])
def test_chunks_are_read_at_once_or_part_after_part(
    height: int, columns: int, at_once: int, device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plain bytes of whole rows straight into the strips, as much as there is room for; others by way of tiles."""
    monkeypatch.setattr(on, "AT_ONCE", at_once)
    x = rows_of("f4")
    store = write_zarr(tmp_path / "x", x, (height, columns), compressors=None)
    reader, block = open_source(store).reader, block_of(20)
    assert reader.fills_rows == (columns == 20)
    for operator in (Gram(reader=reader), GramMatrix(reader=reader, view=View(to_centre=True))):
        assert on_device(operator, device).at_once == bool(at_once)
        require_parity(operator, block, device)
        here, there = (Threads(2).run_pass(o, block, ignore)[1] for o in (operator, on_device(operator, device)))
        assert (here.checksums, here.bytes_read, here.chunks) == (there.checksums, there.bytes_read, there.chunks)


@pytest.mark.slow
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("dtype", ["f4", "f8", "i4"])
def test_products_and_matrices_of_sparse_rows(dtype: str, view: str, device: Device, tmp_path: Path) -> None:
    """Rows that chunks cut in two, also between runs, and rows without entries, also first and last."""
    x = sp.random(230, 20, 0.2, "csr", random_state=0)
    x.data = np.ceil(x.data * 9) if dtype == "i4" else x.data
    x = sp.vstack([sp.csr_matrix((3, 20)), x, sp.csr_matrix((2, 20))]).tocsr().astype(dtype)
    reader, block = opened(x, tmp_path, (161, 0)), block_of(20)
    assert any(SparseGram(reader=reader).partial(run, block).fragments for run in runs_of(SparseGram(reader=reader)))
    require_parity(SparseGram(reader=reader, view=view_of(view, x.toarray()), weight=0.5), block, device)
    require_parity(GramMatrix(reader=reader, view=view_of(view, x.toarray(), finds_means=True)), block, device)


@pytest.mark.slow
def test_an_entry_in_parts_is_what_they_add_up_to(device: Device, tmp_path: Path) -> None:
    pointers = np.arange(0, 121, 3)
    x = sp.csr_matrix((np.arange(120.0), np.tile([1, 4, 1], 40), pointers), shape=(40, 6))
    assert not x.has_canonical_format
    reader, block = opened(x, tmp_path, (17, 0)), block_of(6)
    require_parity(SparseGram(reader=reader), block, device)
    found = require_parity(GramMatrix(reader=reader), block, device)
    np.testing.assert_allclose(found[:, :6], x.toarray().T @ x.toarray(), rtol=1e-13)


@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u2", "i4", "f8", "bool"])
@pytest.mark.parametrize("view", ["plain", "centred"])
def test_matrices_of_integers_have_the_bits_of_the_processor(
    dtype: str, view: str, device: Device, tmp_path: Path
) -> None:
    x = rows_of(dtype) if dtype != "f8" else np.rint(rows_of("f8") * 100)
    operator, block = GramMatrix(reader=opened(x, tmp_path), view=View(to_centre=view == "centred")), np.eye(20)[:, :2]
    assert total(operator, block).tobytes() == total(on_device(operator, device), block).tobytes()


@pytest.mark.parametrize(
    "last",
    [0.5, 2.0**30, 2.0**27 + 1],
    ids=["no integer any more", "sums pass 2^53", "no float64 holds the square"],
)
def test_integers_that_stop_to_be_such_in_the_middle_of_a_run(last: float, device: Device, tmp_path: Path) -> None:
    x = np.rint(rows_of("f8") * 10)
    x[70:, 3] += last
    x[200:, 5] -= last
    for name in ("plain", "centred"):
        operator = GramMatrix(reader=opened(x, tmp_path / name, (150, 20)), view=view_of(name, x, finds_means=True))
        found = require_parity(operator, block_of(20), device)
        away = x - x.mean(0) * (name == "centred")
        np.testing.assert_allclose(found[:, :20], away.T @ away, rtol=0, atol=1e-13 * np.abs(found).max())


@pytest.mark.slow
def test_rows_that_weigh_nothing_and_values_of_nothing(device: Device, tmp_path: Path) -> None:
    x = np.zeros((90, 8))
    reader = opened(x, tmp_path, (40, 8))
    for operator in (Gram(reader=reader), Gram(reader=reader, rounded=True), GramMatrix(reader=reader)):
        assert not total(on_device(operator, device), block_of(8))[:, :3].any()
    zeros = sp.csr_matrix((np.zeros(50), np.arange(50) % 8, np.arange(51)), shape=(50, 8))
    empty = opened(zeros, tmp_path / "sparse")
    for operator in (SparseGram(reader=empty), GramMatrix(reader=empty)):
        assert not total(on_device(operator, device), block_of(8))[:, :3].any()


def test_rows_so_small_that_float32_loses_their_squares(device: Device, tmp_path: Path) -> None:
    x = rows_of("f8") * 1e-25
    operator, block = Gram(reader=opened(x, tmp_path), rounded=True), block_of(20)
    found = require_parity(operator, block, device, tol=1e-6)
    wanted = x.T @ (x @ found[:, 3:])
    np.testing.assert_allclose(found[:, :3], wanted, rtol=0, atol=1e-12 * np.abs(wanted).max())


def test_products_that_overflow_float32_are_formed_in_float64(device: Device, tmp_path: Path) -> None:
    x = (rows_of("f8") * 1e20).astype("f8")
    found = require_parity(Gram(reader=opened(x, tmp_path), rounded=True), block_of(20), device, tol=1e-6)
    assert np.isfinite(found).all()


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("made", [Gram, GramMatrix, SparseGram])
def test_what_is_not_finite_is_refused_with_the_same_sentence(
    made: Any, value: float, device: Device, tmp_path: Path
) -> None:
    x = rows_of("f8")
    x[123, 4] = value
    if made is SparseGram:  # as others write it
        matrix, group = sp.csr_matrix(x), zarr.create_group(tmp_path / "x")
        group.attrs.update({"encoding-type": "csr_matrix", "shape": list(x.shape)})
        for name in ("data", "indices", "indptr"):
            group.create_array(name, data=getattr(matrix, name))
        reader: Any = open_source(tmp_path / "x").reader
    else:
        reader = opened(x, tmp_path)
    operator = made(reader=reader)
    said = []
    for each in (operator, on_device(operator, device)):
        with pytest.raises(BadInputError) as refused:
            total(each, block_of(20))
        said.append(str(refused.value))
    assert said[0] == said[1]
    assert "123" in said[0] or "chunk" in said[0]


@pytest.mark.parametrize("dtype", ["i4", "i8", "f8"])
def test_integers_whose_first_strip_passes_all_that_is_exact_are_summed_about_a_mean(
    dtype: str, device: Device, tmp_path: Path
) -> None:
    """Fails where the first strip is taken for exact whatever its size: the sums lose all but the mean, certified."""
    x = (np.random.default_rng(0).integers(-3000, 3000, (300, 20)) + 10**8).astype(dtype)
    operator = GramMatrix(reader=opened(x, tmp_path, (90, 20)), view=View(to_centre=True))
    found = total(on_device(operator, device), block_of(20))[:, :20]
    away = x.astype("f8") - x.astype("f8").mean(axis=0)
    np.testing.assert_allclose(found, away.T @ away, rtol=1e-11, atol=1e-11 * np.abs(found).max())


@pytest.mark.slow
def test_places_of_sparse_rows_of_very_many_columns_are_within_int32(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails where so many rows are filled in at least, however wide they are: their places would overflow."""
    monkeypatch.setattr(on, "FEWEST", 256)
    wide = sp.csr_matrix(([1.0, 2.0], ([0, 2], [3, 9_999_999])), shape=(3, 10_000_000))
    moved = on_device(SparseGram(reader=opened(wide, tmp_path, (2, 0))), device)
    assert 1 <= moved.height and moved.height * moved.block_rows < 2**31


# The same bits


def operators(folder: Path) -> list[Any]:
    x, (dense, sparse) = rows_of("f4", 900), (folder / "dense", folder / "sparse")
    rows = opened(x, dense, (90, 20))
    cut = opened(sp.random(800, 20, 0.2, "csr", random_state=0), sparse, (97, 0))
    centred = view_of("centred", x)
    return [
        Gram(reader=rows, view=centred),
        Gram(reader=rows, view=centred, rounded=True),
        GramMatrix(reader=rows, view=View(to_centre=True)),
        SparseGram(reader=cut),
        GramMatrix(reader=cut),
    ]


@pytest.mark.slow
def test_the_same_bits_with_any_number_of_threads(device: Device, tmp_path: Path) -> None:
    for operator in operators(tmp_path):
        moved, block = on_device(operator, device), block_of(20)
        assert len(runs_of(moved)) > 4
        bits = {total(moved, block, threads).tobytes() for threads in (1, 2, 4)}
        assert len(bits) == 1, operator


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.4, 2.0], ids=["some of the data fit", "all fit"])
def test_data_that_stay_give_the_bits_of_data_that_are_read(share: float, device: Device, tmp_path: Path) -> None:
    """What stays is not read again; what does not fit is; a new run begins with nothing."""
    for operator in operators(tmp_path):
        if isinstance(operator, GramMatrix):
            continue  # one pass
        block, read = block_of(20), list[int]()
        whole = on_device(operator, device, "a run").staying_bytes
        device.backend.allow(int(share * whole))
        moved, bits = on_device(operator, device, "a run"), set()
        for _ in range(3):
            product, record = Threads(2).run_pass(moved, block, ignore)
            bits.add(product.tobytes())
            read.append(record.bytes_read)
        assert bits == {total(on_device(operator, device), block).tobytes()}
        assert read[0] > read[1] == read[2]
        assert (read[1] == 0) == (share > 1)
        assert device.backend.room >= 0
        other = Threads(2).run_pass(on_device(operator, device, "another"), block, ignore)[1]
        assert other.bytes_read == read[0]
        device.backend.allow(0)
        assert Threads(2).run_pass(moved, block, ignore)[1].bytes_read == read[0]


@pytest.mark.slow
def test_checksums_of_data_that_stay_are_those_of_their_reading(device: Device, tmp_path: Path) -> None:
    operator = operators(tmp_path)[0]
    device.backend.allow(2**30)
    records = [Threads(2).run_pass(on_device(operator, device, "a run"), block_of(20), ignore)[1] for _ in range(2)]
    assert records[0].checksums == records[1].checksums != {}


@pytest.mark.slow
def test_sent_to_another_process_it_is_the_same_operator(device: Device, tmp_path: Path) -> None:
    for operator in operators(tmp_path):
        moved, block = on_device(operator, device, "a run"), block_of(20)
        again = pickle.loads(pickle.dumps(moved))  # noqa: S301  written here
        assert isinstance(again, OnDevice) and again.device == device
        assert total(again, block).tobytes() == total(moved, block).tobytes()


@pytest.mark.slow
def test_the_same_bits_in_worker_processes(tmp_path: Path) -> None:
    """Which have their own devices, and strips of the usual size; here, too."""
    x = np.random.default_rng(0).standard_normal((60_000, 80))
    reader, block = opened(x, tmp_path, (1000, 80)), block_of(80)
    with pytest.MonkeyPatch.context() as usual:
        usual.setattr(on, "FEWEST", 256)
        usual.setattr(on, "STRIP", 32 * 2**20)
        usual.setattr(protocol, "RUN_BYTES", 2**22)
        device = Device("none_of_these|numpy", sharing=2)
        with_workers = Processes(2, 1)
        try:
            for operator in (Gram(reader=reader), GramMatrix(reader=reader, view=View(to_centre=True))):
                moved = on_device(operator, device, "a run")
                here = total(moved, block)
                assert with_workers.run_pass(moved, block, ignore)[0].tobytes() == here.tobytes()
        finally:
            with_workers.close()


# Memory, and what is kept of a pass


@pytest.mark.slow
def test_memory_that_does_not_suffice_is_said_before(tmp_path: Path) -> None:
    operator = operators(tmp_path)[2]
    moved = on_device(operator, Device("numpy", 2**20))
    each, beside = moved.device_bytes(3)
    roomy = on_device(operator, Device("numpy", beside + 2 * each + 1))
    assert roomy.threads_that_fit(8, 3) == 2
    with pytest.raises(MemoryRefusedError, match=r"may use 0 MiB and this run needs 1 MiB of it: raise"):
        on_device(operator, Device("numpy", beside)).threads_that_fit(8, 3)


def test_other_operators_stay_where_they_are(tmp_path: Path) -> None:
    class Own(Gram):
        """Of a user."""

    reader = opened(rows_of("f8"), tmp_path)
    for operator in (Own(reader=reader), Gram(reader=reader).left_product(None, None)):
        assert on_device(operator, Device("numpy")) is operator
    assert on_device(Gram(reader=reader), None) == Gram(reader=reader)


@pytest.mark.slow
def test_a_pass_goes_on_only_with_sums_of_the_same_device(tmp_path: Path) -> None:
    operator, block = operators(tmp_path)[0], block_of(20)
    card = {"device": "a card", "library": "1"}
    with RunStore(tmp_path / "run") as store:
        keeper = keeper_of(store, "step 1", operator, block, 0.0, card)
        keeper.commit({TreeNode(0, 0): operator.partial(range(1), block)})
        for where, parts in ((card, 1), ({**card, "library": "2"}, 0), (None, 0)):
            assert len(keeper_of(store, "step 1", operator, block, 0.0, where).parts) == parts


def test_what_float32_does_not_hold_is_centred_before_it_is_rounded(device: Device, tmp_path: Path) -> None:
    """As by the processor: of a gap that is filled with a mean, among float32 rows. Mutant: rows are cast first."""
    x = rows_of("f8") * 0.01 + 1_573_785.123
    view = View(shift=x.mean(axis=0).astype(np.float32).astype(np.float64))
    require_parity(Gram(reader=opened(x, tmp_path), view=view, rounded=True), block_of(20), device, tol=1e-6)
