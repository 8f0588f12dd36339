"""What the rows about GPUs share: data made on the card with the truth beside them, and plain programs for it.

All is written for CuPy and runs with NumPy on small data, so that the code is tested without a card. The truth is of
the sums in float64 of the very numbers that are written, by a program that shares nothing with npmdask.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from benchmarks.registry import NoCardError
from npmdask.core.execution.memory import usable_cores

COLUMNS, GENES = 4096, 5000
LARGE = 2**28  # bytes of a data set from which on it is made on the card
CHUNK = 16 * 2**20  # of rows
ENTRIES = 2**22  # of a chunk of sparse rows
CELLS = 16_384  # that are drawn at once
FILLED = 0.07  # of the counts are not zero
POPULATIONS = 8
KEPT_VECTORS = 100
SLOT = 16 * 2**20  # bytes that a thread reads at once
STRIP = 4096  # rows that are summed at once


def require_card() -> Any:
    """CuPy, which finds a card.

    Raises
    ------
    NoCardError
        It is not installed, or finds none.
    """
    try:
        import cupy
    except ImportError:
        raise NoCardError("CuPy is not installed: this row is of a machine with an NVIDIA GPU") from None
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise NoCardError(f"no NVIDIA GPU is found here ({str(error).splitlines()[0]})") from None
    if not count:
        raise NoCardError("no NVIDIA GPU is visible here")
    return cupy


def namespace(size: int) -> Any:
    """What makes and sums so many bytes: CuPy, or of small data NumPy."""
    return require_card() if size >= LARGE else np


def describe_card() -> dict[str, Any]:
    """The card as its library sees it."""
    cupy = require_card()
    from cupy_backends.cuda.libs import cublas

    found = cupy.cuda.runtime.getDeviceProperties(0)
    free, total = cupy.cuda.runtime.memGetInfo()
    return {
        "name": found["name"].decode(),
        "multiprocessors": found["multiProcessorCount"],
        "memory_gib": round(total / 2**30, 1),
        "free_gib": round(free / 2**30, 1),
        "driver": cupy.cuda.runtime.driverGetVersion(),
        "runtime": cupy.cuda.runtime.runtimeGetVersion(),
        "cublas": cublas.getVersion(cupy.cuda.device.get_cublas_handle()),
        "cupy": cupy.__version__,
    }


def free_memory() -> None:
    """Give back what CuPy holds in this process, so that a run finds the card as another program would."""
    try:
        cupy = require_card()
    except NoCardError:
        return
    cupy.get_default_memory_pool().free_all_blocks()
    cupy.get_default_pinned_memory_pool().free_all_blocks()


# Data


def write_rows(folder: Path, size: int) -> None:
    """Samples of float32 about a mean that is not zero, eigenvalues near 1/i; ``truth.npy`` (d x k), ``values.npy``."""
    xp = namespace(size)
    d, height = (COLUMNS, CHUNK // 4 // COLUMNS) if size >= LARGE else (256, 1024)
    chunks = size // (4 * d * height)
    rng = xp.random.default_rng(0)
    vectors = xp.linalg.qr(rng.standard_normal((d, d)))[0]
    turn = (vectors * xp.arange(1, d + 1) ** -0.5).T.astype("f4")
    shift = (0.1 * rng.standard_normal(d)).astype("f4")
    sums = _Sums(xp, d)

    def made() -> Iterator[Any]:
        for _ in range(chunks):
            rows = rng.standard_normal((height, d), dtype=np.float32) @ turn + shift
            sums.add(rows)
            yield rows

    write_chunks(folder / "x.zarr", made(), (chunks * height, d), "f4", height)
    sums.save(folder)


def write_genotypes(folder: Path, size: int) -> None:
    """0, 1 and 2 in int8: people of eight populations, whose frequencies differ from site to site."""
    xp = namespace(size)
    d, height = (COLUMNS, CHUNK // COLUMNS) if size >= LARGE else (256, 4096)
    chunks = size // (d * height)
    rng = xp.random.default_rng(1)
    shares = xp.clip(0.05 + 0.4 * rng.random(d) + 0.08 * rng.standard_normal((POPULATIONS, d)), 0.01, 0.99)
    sums = _Sums(xp, d)

    def made() -> Iterator[Any]:
        for _ in range(chunks):
            own = shares[rng.integers(0, POPULATIONS, height)].astype("f4")
            first, second = (rng.random((height, d), dtype=np.float32) < own for _ in range(2))
            people = first.astype(np.int8) + second.astype(np.int8)
            sums.add(people)
            yield people

    write_chunks(folder / "x.zarr", made(), (chunks * height, d), "i1", height)
    sums.save(folder)


def write_cells(folder: Path, size: int) -> None:
    """Counts of cells x genes, scaled to 10,000 a cell, log1p: CSR in AnnData's encoding, float32, ``FILLED`` of it.

    ``size``: bytes of the entries, as values and columns. Cells lie on lines between types; genes are as unequal as in
    tissue.
    """
    xp = namespace(size)
    genes = GENES if size >= LARGE else 300
    cells = round(size / (8 * FILLED * genes)) if size >= LARGE else 2000
    rng = xp.random.default_rng(2)
    types = 24
    base = 1.5 * rng.standard_normal(genes) + rng.standard_normal((types, genes)) * (rng.random((types, genes)) < 0.15)
    shares = xp.exp(base)
    shares /= shares.sum(axis=1, keepdims=True)
    molecules = _molecules(xp, shares)
    sums, parts = _Sums(xp, genes), list[tuple[np.ndarray, np.ndarray, np.ndarray]]()
    for start in range(0, cells, CELLS):
        count = min(CELLS, cells - start)
        first, second = (shares[rng.integers(0, types, count)] for _ in range(2))
        along = rng.random((count, 1))
        depth = molecules * xp.exp(0.4 * rng.standard_normal((count, 1)) - 0.08)
        counts = rng.poisson(depth * (along * first + (1 - along) * second))
        total = xp.maximum(counts.sum(axis=1, keepdims=True), 1)
        values = xp.log1p(counts * (1e4 / total)).astype("f4")
        sums.add(values)
        places = xp.flatnonzero(values)
        entries = values.reshape(-1)[places], (places % genes).astype("i4"), (values != 0).sum(axis=1)
        parts.append(tuple(_here(part) for part in entries))  # type: ignore[arg-type]
    group = zarr.create_group(folder / "x.zarr")
    group.attrs.update({"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": [cells, genes]})
    lengths = np.concatenate([part[2] for part in parts])
    pointers = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    for name, column, dtype in (("data", 0, "f4"), ("indices", 1, "i4")):
        whole = np.concatenate([part[column] for part in parts])
        chunks = (whole[start : start + ENTRIES] for start in range(0, len(whole), ENTRIES))
        write_chunks(folder / "x.zarr" / name, chunks, (len(whole),), dtype, min(ENTRIES, len(whole)))
    group.create_array("indptr", data=pointers, chunks=(len(pointers),), compressors=None)
    sums.save(folder)


def _molecules(xp: Any, shares: Any) -> float:
    """Of a cell, so many that ``FILLED`` of the counts are not zero."""
    low, high = 1.0, 1e6
    for _ in range(60):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if float((1 - xp.exp(-middle * shares)).mean()) > FILLED else (middle, high)
    return low


class _Sums:
    """Exact enough to be the truth: ``A^T A`` and totals of all rows, in float64."""

    def __init__(self, xp: Any, d: int) -> None:
        self._xp, self._count = xp, 0
        self._gram, self._total = xp.zeros((d, d)), xp.zeros(d)

    def add(self, rows: Any) -> None:
        wide = rows.astype(np.float64)
        self._count += len(wide)
        self._total += wide.sum(axis=0)
        self._gram += wide.T @ wide

    def save(self, folder: Path) -> None:
        """Leading eigenvalues of the covariance, and eigenvectors."""
        mean = self._total / self._count
        values, vectors = self._xp.linalg.eigh(self._gram / self._count - self._xp.outer(mean, mean))
        np.save(folder / "values.npy", _here(values[::-1][:KEPT_VECTORS]))
        np.save(folder / "truth.npy", _here(vectors[:, ::-1][:, :KEPT_VECTORS].copy()))


def _here(values: Any) -> np.ndarray:
    return np.asarray(values.get() if hasattr(values, "get") else values)


def write_chunks(path: Path, chunks: Iterable[Any], shape: tuple[int, ...], dtype: str, height: int) -> None:
    """A Zarr array of raw chunks of ``height`` rows, written by all cores while the next ones are made."""
    zarr.create_array(path, shape=shape, dtype=dtype, chunks=(height, *shape[1:]), compressors=None)
    workers = usable_cores()
    nbytes = height * int(np.prod(shape[1:])) * np.dtype(dtype).itemsize
    waiting: deque[tuple[Future[None], np.ndarray]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        for number, values in enumerate(chunks):
            held = waiting.popleft() if len(waiting) > workers else None
            if held is not None:
                held[0].result()
            slot = held[1] if held is not None else _pinned(values, nbytes)
            whole = slot[: values.nbytes].view(values.dtype).reshape(values.shape)
            if hasattr(values, "get"):
                values.get(out=whole)
            else:
                np.copyto(whole, values)
            slot[values.nbytes :] = 0  # a chunk at the edge is stored whole
            name = path.joinpath("c", str(number), *("0" for _ in shape[1:]))
            waiting.append((pool.submit(_write, name, slot), slot))
        for written, _ in waiting:
            written.result()


def _pinned(values: Any, nbytes: int) -> np.ndarray:
    """Host memory for one chunk, pinned where the values lie on a card."""
    if not hasattr(values, "get"):
        return np.empty(nbytes, np.uint8)
    import cupyx

    return np.asarray(cupyx.empty_pinned((nbytes,), np.uint8))


def _write(path: Path, values: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb", buffering=0) as file:
        left = memoryview(values)
        while left:
            left = left[file.write(left) :]


def part_of(store: Path, share: int, folder: Path) -> Path:
    """The first rows of a store of raw row slabs, one in ``share``: links to its chunks, no copy."""
    whole: Any = zarr.open_array(store, mode="r")
    height = int(whole.chunks[0])
    chunks = max(1, int(whole.shape[0]) // height // share)
    shape = (chunks * height, int(whole.shape[1]))
    zarr.create_array(folder, shape=shape, dtype=whole.dtype, chunks=whole.chunks, compressors=None)
    for number in range(chunks):
        path = folder / "c" / str(number) / "0"
        path.parent.mkdir(parents=True)
        os.link(store / "c" / str(number) / "0", path)
    return folder


# Plain programs


def chunk_files(store: Path) -> list[Path]:
    """The files of the chunks of an array, or of all arrays of a group."""
    return sorted(path for path in store.rglob("*") if path.is_file() and path.name != "zarr.json")


def seconds_of_one_read(store: Path, threads: int, *, to_card: bool) -> float:
    """Every byte of the chunks once from the page cache, by all cores, into pinned memory and on to the card.

    Nothing is computed of it: the time that any program takes that reads the data once.
    """
    jobs = [(path, at) for path in chunk_files(store) for at in range(0, path.stat().st_size, SLOT)]
    cupy = require_card() if to_card else None
    readers = [_Reader(cupy) for _ in range(threads)]
    start = time.perf_counter()
    work = [threading.Thread(target=reader.run, args=(jobs[i::threads],)) for i, reader in enumerate(readers)]
    for thread in work:
        thread.start()
    for thread in work:
        thread.join()
    seconds = time.perf_counter() - start
    if (failed := next((reader.failed for reader in readers if reader.failed), None)) is not None:
        raise failed
    return seconds


class _Reader:
    """One thread: two buffers here and there, of which one is copied while the other is read into."""

    def __init__(self, cupy: Any) -> None:
        self._cupy, self.failed = cupy, None
        if cupy is None:
            self._here = [np.empty(SLOT, np.uint8) for _ in range(2)]
            return
        import cupyx

        self._here = [cupyx.empty_pinned((SLOT,), np.uint8) for _ in range(2)]
        self._there = [cupy.empty(SLOT, np.uint8) for _ in range(2)]
        self._stream, self._sent = cupy.cuda.Stream(non_blocking=True), [cupy.cuda.Event() for _ in range(2)]

    def run(self, jobs: list[tuple[Path, int]]) -> None:
        """Read these parts of files."""
        try:
            for number, (path, at) in enumerate(jobs):
                self._one(number % 2, path, at)
            if self._cupy is not None:
                self._stream.synchronize()
        except Exception as error:  # is raised by who joins the thread
            self.failed = error  # type: ignore[assignment]

    def _one(self, slot: int, path: Path, at: int) -> None:
        if self._cupy is not None:
            self._sent[slot].synchronize()
        file = os.open(path, os.O_RDONLY)
        try:
            done, view = 0, memoryview(self._here[slot])
            while done < SLOT and (count := os.preadv(file, [view[done:]], at + done)):
                done += count
        finally:
            os.close(file)
        if self._cupy is not None:
            self._there[slot][:done].set(self._here[slot][:done], stream=self._stream)
            self._sent[slot].record(self._stream)


def pinned_sums(nbytes: int, d: int) -> dict[str, Any]:
    """The ceiling of a Gram pass: float32 rows that lie in pinned memory, copied, made float64, centred and summed.

    The upper triangle by cuBLAS's symmetric product, or in panels of columns; the faster counts. Nothing is read, and
    no checksum is taken; the same buffer is sent again and again.

    Returns
    -------
    dict
        ``gb_per_second`` and ``way``, and the seconds of each.
    """
    cupy = require_card()
    import cupyx

    height = STRIP
    slots = [cupyx.empty_pinned((height, d), np.float32) for _ in range(16)]
    rng = np.random.default_rng(0)
    for slot in slots:
        slot[:] = rng.standard_normal((1, d), dtype=np.float32)
        slot += np.arange(height, dtype=np.float32)[:, None] * np.float32(1e-3)
    tiles = max(1, nbytes // slots[0].nbytes)
    seconds = {name: _summed(cupy, slots, tiles, add) for name, add in _ways(cupy, d).items()}
    best = min(seconds, key=lambda name: seconds[name])
    return {"gb_per_second": tiles * slots[0].nbytes / 1e9 / seconds[best], "way": best, "seconds": seconds}


def _ways(cupy: Any, d: int) -> dict[str, Any]:
    """Ways to add ``rows^T rows`` to the upper triangle of a sum, float64."""
    from cupy import cublas
    from cupy_backends.cuda.libs import cublas as raw

    one = np.ones(1)

    def panels(rows: Any, gram: Any, side: int) -> None:
        """A product for each panel of columns, as long as its part of the upper triangle, added where it belongs."""
        handle, at = cupy.cuda.device.get_cublas_handle(), one.ctypes.data
        for start in range(0, d, side):
            wide, high, place = min(side, d - start), min(start + side, d), rows.data.ptr
            size = (wide, high, len(rows), at, place + start * 8, d, place, d, at, gram.data.ptr + start * 8, d)
            raw.dgemm(handle, raw.CUBLAS_OP_N, raw.CUBLAS_OP_T, *size)  # column by column: the transpose of all

    return {
        "syrk": lambda rows, gram: cublas.syrk("T", rows, out=gram, alpha=1.0, beta=1.0, lower=False),
        "panels of 1024 columns": lambda rows, gram: panels(rows, gram, 1024),
        "panels of 2048 columns": lambda rows, gram: panels(rows, gram, 2048),
    }


def _summed(cupy: Any, slots: list[np.ndarray], tiles: int, add: Any) -> float:
    """Seconds of so many tiles, after a few that warm up; copies and sums overlap."""
    height, d = slots[0].shape
    gram, shift = cupy.zeros((d, d)), cupy.zeros(d)
    there = [cupy.empty((height, d), np.float32) for _ in range(4)]
    wide = [cupy.empty((height, d)) for _ in range(2)]
    copying, computing = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.runtime.deviceSynchronize()

    def run(count: int) -> float:
        read: list[Any] = [None] * len(there)
        start = time.perf_counter()
        for number in range(count):
            slot = number % len(there)
            if read[slot] is not None:
                copying.wait_event(read[slot])
            there[slot].set(slots[number % len(slots)], stream=copying)
            computing.wait_event(copying.record())
            with computing:
                rows = cupy.subtract(there[slot], shift, out=wide[number % 2])
                read[slot] = computing.record()
                add(rows, gram)
        computing.synchronize()
        return time.perf_counter() - start

    run(8)
    return run(tiles)
