"""On a GPU: the sums of the processor, integers to the bit, the same bits again, within the memory that was given.

What the code for devices does is tested everywhere, by NumPy and array-api-strict; here is what only a card can show.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import npmdask
from npmdask.core.execution.threads import Threads
from npmdask.core.numerics.subspaces import max_sin_theta
from npmdask.core.operators import ColumnMoments, Gram, GramMatrix, SparseGram, View
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError, MemoryRefusedError, RefusedError
from npmdask.gpu.devices import BACKENDS, LIBRARIES, Device
from npmdask.gpu.on_device import on_device
from tests.conftest import planted, same_bytes, write_zarr
from tests.core.operators.test_operators import ignore, write_csr
from tests.gpu.job import ASKED

ROOT = Path(__file__).resolve().parents[2]
ROWS, COLUMNS, P = 3000, 700, 12  # more than one strip, panel and run, none of them full
KILLED_AFTER = 3  # steps


def missing(library: str) -> str | None:
    """Why ``library`` finds no card here; None if it does."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a library at its import, not ours
            return BACKENDS[library].missing(import_module(library))
    except ImportError:
        return "it is not installed"


WHY_NOT = {library: missing(library) for library in LIBRARIES}


@pytest.fixture(params=LIBRARIES)
def device(request: pytest.FixtureRequest) -> Device:
    """A card, by each library that is installed."""
    if WHY_NOT[request.param]:
        pytest.skip(f"no NVIDIA GPU by {request.param}: {WHY_NOT[request.param]}")
    return Device(request.param)


needs_a_card = pytest.mark.skipif(
    all(WHY_NOT.values()), reason="; ".join(f"no NVIDIA GPU by {name}: {why}" for name, why in WHY_NOT.items())
)


def numbers(dtype: str) -> np.ndarray:
    """Rows about means that are not zero; integers that fill their type, where it is of a byte."""
    rng = np.random.default_rng(0)
    if dtype[0] in "iu":
        low, high = (0, 1000) if dtype[1] != "1" else (np.iinfo(dtype).min, np.iinfo(dtype).max + 1)
        return rng.integers(low, high, (ROWS, COLUMNS)).astype(dtype)
    values = rng.standard_normal((ROWS, COLUMNS)) * np.arange(1, COLUMNS + 1) ** -0.5
    return (values + 3 * rng.standard_normal(COLUMNS)).astype(dtype)


def dense(folder: Path, dtype: str) -> Any:
    return open_source(write_zarr(folder / "x.zarr", numbers(dtype), (200, 300)), "samples").reader


def sparse(folder: Path, dtype: str) -> Any:
    rng = np.random.default_rng(1)
    matrix = sp.random(ROWS, COLUMNS, 0.07, "csr", np.float64, random_state=rng)
    matrix.data[:] = rng.integers(1, 300, matrix.nnz) if dtype[0] == "i" else rng.standard_normal(matrix.nnz) + 2
    return open_source(write_csr(folder / "x.zarr", matrix.astype(dtype), 4000, 500), "sparse").reader


def weighted(seed: int = 2) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {"row_weight": rng.uniform(0, 3, ROWS) * (rng.random(ROWS) < 0.7), "scale": rng.uniform(0.5, 2, COLUMNS)}


SHIFT = np.random.default_rng(3).standard_normal(COLUMNS)
# name: the operator of a folder; what it may differ by, relative to the largest number (0: not by a bit)
CASES: dict[str, tuple[Callable[[Path], Any], float]] = {
    "moments, float32": (lambda f: ColumnMoments(reader=dense(f, "f4")), 1e-12),
    "moments, weighted": (lambda f: ColumnMoments(reader=dense(f, "f8"), view=View(**weighted())), 1e-12),
    "product, float32": (lambda f: Gram(reader=dense(f, "f4"), view=View(shift=SHIFT)), 1e-12),
    "product, float64, weighted": (lambda f: Gram(reader=dense(f, "f8"), view=View(shift=SHIFT, **weighted())), 1e-12),
    "product, int16": (lambda f: Gram(reader=dense(f, "i2")), 1e-12),
    "product in float32": (lambda f: Gram(reader=dense(f, "f4"), view=View(shift=SHIFT), rounded=True), 1e-5),
    "product, sparse": (lambda f: SparseGram(reader=sparse(f, "f4"), view=View(shift=SHIFT)), 1e-12),
    "matrix, float32": (lambda f: GramMatrix(reader=dense(f, "f4"), view=View(to_centre=True)), 1e-12),
    "matrix, weighted": (lambda f: GramMatrix(reader=dense(f, "f4"), view=View(to_centre=True, **weighted())), 1e-12),
    "matrix, float64, as it is": (lambda f: GramMatrix(reader=dense(f, "f8")), 1e-12),
    "matrix, sparse": (lambda f: GramMatrix(reader=sparse(f, "f4"), view=View(to_centre=True)), 1e-12),
    "matrix, int8": (lambda f: GramMatrix(reader=dense(f, "i1"), view=View(to_centre=True)), 0.0),
    "matrix, uint8": (lambda f: GramMatrix(reader=dense(f, "u1"), view=View(to_centre=True)), 0.0),
    "matrix, int16": (lambda f: GramMatrix(reader=dense(f, "i2")), 0.0),
    "matrix, counts": (lambda f: GramMatrix(reader=sparse(f, "i4"), view=View(to_centre=True)), 0.0),
}


def block_of(columns: int = COLUMNS) -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(4).standard_normal((columns, P)))[0]


@pytest.mark.parametrize("case", CASES)
def test_sums_are_those_of_the_processor_and_the_same_bits_again(case: str, device: Device, tmp_path: Path) -> None:
    make, tol = CASES[case]
    operator, block = make(tmp_path), block_of()
    wanted, read = Threads(2).run_pass(operator, block, ignore)
    found, record = Threads(2).run_pass(on_device(operator, device), block, ignore)
    d = COLUMNS if tol == 0 else None  # of integers the matrix is exact; products with the block are rounded
    np.testing.assert_allclose(found[:, :d], wanted[:, :d], rtol=0, atol=tol * np.abs(wanted[:, :d]).max())
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())
    assert record.checksums == read.checksums and record.bytes_read == read.bytes_read
    again, _ = Threads(4).run_pass(on_device(operator, device), block, ignore)
    assert found.tobytes() == again.tobytes()


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_a_matrix_has_nothing_of_tf32(dtype: str, device: Device, tmp_path: Path) -> None:
    """TF32 keeps 10 bits of 1 + 2^-12: products would be off by 5e-4; float32 sums of equal rows are, by 3e-6."""
    x = np.full((2048, 256), 1 + 2.0**-12, dtype)
    reader = open_source(write_zarr(tmp_path / "x.zarr", x, (512, 256)), "samples").reader
    block = block_of(256).astype(dtype)
    for operator in (Gram(reader=reader), Gram(reader=reader, rounded=dtype == "f4")):
        found, _ = Threads(1).run_pass(on_device(operator, device), block, ignore)
        seen = found[:, P:] if found.shape[1] > P else block.astype("f8")
        wanted = x.T.astype("f8") @ (x.astype("f8") @ seen)
        assert np.abs(found[:, :P] - wanted).max() < 3e-5 * np.abs(wanted).max()


def test_data_that_stay_on_the_card_give_the_same_bits(device: Device, tmp_path: Path) -> None:
    operator, block = Gram(reader=dense(tmp_path, "f4")), block_of()
    device.backend.allow(2**30)
    without, read = Threads(2).run_pass(on_device(operator, device), block, ignore)
    passes = [Threads(2).run_pass(on_device(operator, device, "token"), block, ignore)]
    shutil.rmtree(tmp_path / "x.zarr" / "c")  # so that nothing can be read again
    passes += [Threads(2).run_pass(on_device(operator, device, "token"), block, ignore) for _ in range(2)]
    device.backend.allow(0)
    assert {product.tobytes() for product, _ in passes} == {without.tobytes()}
    assert [record.checksums for _, record in passes] == [read.checksums] * 3
    with pytest.raises(BadInputError, match="missing"):  # nothing is kept any more
        Threads(2).run_pass(on_device(operator, device, "token"), block, ignore)


def same_answer(left: Any, right: Any) -> None:
    """Steps, values and vectors agree to the last bit."""
    assert left.steps == right.steps
    for name in ("basis", "values", "residual_norms"):
        assert getattr(left, name).tobytes() == getattr(right, name).tobytes(), name


def store_of(folder: Path, rows: int = 40_000, columns: int = 700) -> Path:
    """Samples with a slow spectrum, in twenty chunks."""
    x = planted(rows, columns, np.arange(1, 61) ** -0.5)[0].astype("f4") * np.float32(rows**0.5)
    return write_zarr(folder / "x.zarr", x, (rows // 20, columns), compressors=None)


@needs_a_card
@pytest.mark.parametrize("algorithm", ["gram", "krylov"])
def test_a_run_finds_what_the_processor_finds_within_the_memory_of_the_card(algorithm: str, tmp_path: Path) -> None:
    asked: dict[str, Any] = {"k": 6, "kind": "samples", "center": True, "algorithm": algorithm, "tol": 1e-9}
    store = store_of(tmp_path)
    here = npmdask.top_k(store, **asked)
    there = npmdask.top_k(store, device="cuda", device_memory="2GiB", **asked)
    np.testing.assert_allclose(there.values, here.values, rtol=1e-9)
    assert there.converged and max_sin_theta(there.basis, here.basis) < 1e-6
    library = next(name for name in LIBRARIES if not WHY_NOT[name])
    assert 0 < Device(library, 2**31).backend.peak() <= 2**31


@needs_a_card
def test_too_little_memory_of_the_card_is_refused_with_a_remedy(tmp_path: Path) -> None:
    store = store_of(tmp_path, rows=2000)
    asked: dict[str, Any] = {"kind": "samples", "device": "cuda", "algorithm": "gram"}
    with pytest.raises(MemoryRefusedError, match=r"needs \d+ MiB.*raise device_memory, or set device"):
        npmdask.top_k(store, 3, device_memory="1MiB", **asked)
    with pytest.raises(RefusedError, match=r"more than the .* that are free"):
        npmdask.top_k(store, 3, device_memory="4TiB", **asked)


@needs_a_card
@pytest.mark.slow
def test_two_worker_processes_share_a_card_and_change_no_bit(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    asked: dict[str, Any] = {"k": 6, "kind": "samples", "center": True, "algorithm": "krylov", "tol": 1e-9}
    asked |= {"device": "cuda", "device_memory": "4GiB"}
    one = npmdask.top_k(store, store=tmp_path / "one", **asked)
    two = npmdask.top_k(store, store=tmp_path / "two", workers=2, **asked)
    assert one.converged
    same_answer(one, two)
    same_bytes(tmp_path / "one", tmp_path / "two")


@needs_a_card
@pytest.mark.slow
def test_a_run_killed_on_the_card_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    store_of(tmp_path)
    whole = npmdask.top_k(tmp_path / "x.zarr", store=tmp_path / "whole", device="cuda", **ASKED)
    job = [sys.executable, "-m", "tests.gpu.job", str(tmp_path)]
    with subprocess.Popen(job, cwd=ROOT, start_new_session=True) as process:
        end = time.monotonic() + 120
        while not (tmp_path / "run" / "steps" / f"{KILLED_AFTER:06}").exists():
            assert process.poll() is None and time.monotonic() < end, "it ended before it was killed"
            time.sleep(0.002)
        os.killpg(process.pid, signal.SIGKILL)
    assert not (tmp_path / "run" / "result").exists()
    killed = npmdask.top_k(tmp_path / "x.zarr", store=tmp_path / "run", device="cuda", **ASKED)
    assert whole.converged and whole.steps > KILLED_AFTER
    same_answer(killed, whole)
    same_bytes(tmp_path / "whole", tmp_path / "run")
