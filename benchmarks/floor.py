"""The floor of a pass: plain NumPy programs for ``A^T (A X)``, or ``A^T A``, on the very files that npmdask reads.

Uncompressed full-width chunks are raw row slabs, so that no second copy of the data is needed. Each program is
what a good programmer would write for this one case; the floor is the fastest of them, found in the same run.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits


@dataclass(frozen=True, kw_only=True)
class SlabFiles:
    """Files of equal size that hold consecutive rows (each ``rows_each`` x ``columns``, C order)."""

    paths: tuple[Path, ...]
    rows_each: int
    columns: int
    dtype: np.dtype

    def slabs(self, height: int) -> list[tuple[Path, int]]:
        """(file, first row) of every slab of ``height`` rows."""
        return [(path, row) for path in self.paths for row in range(0, self.rows_each, height)]


def slab_files(folder: Path, shape: tuple[int, int], chunks: tuple[int, int], dtype: np.dtype) -> SlabFiles:
    """The chunk files of an uncompressed Zarr array whose chunks span all columns.

    Raises
    ------
    ValueError
        A file is missing or not of the size of its rows: these are not raw row slabs.
    """
    paths = tuple(folder / str(i) / "0" for i in range(shape[0] // chunks[0]))
    size = chunks[0] * shape[1] * dtype.itemsize
    if chunks[1] != shape[1] or shape[0] % chunks[0] or any(path.stat().st_size != size for path in paths):
        raise ValueError(f"{folder} does not hold raw row slabs")
    return SlabFiles(paths=paths, rows_each=chunks[0], columns=shape[1], dtype=dtype)


Product = Callable[[np.ndarray], np.ndarray]  # of a slab


def programs(files: SlabFiles, block: np.ndarray, cores: int, cold: bool) -> dict[str, Callable[[], np.ndarray]]:
    """The candidates by name for ``A^T (A X)``, transposed."""
    return _programs(files, partial(transposed, block=block), block.shape[::-1], cores, cold)


def gram_programs(files: SlabFiles, cores: int) -> dict[str, Callable[[], np.ndarray]]:
    """The candidates by name for ``A^T A``, which NumPy leaves to BLAS's symmetric product, all in float32."""
    return _programs(files, lambda slab: slab.T @ slab, (files.columns, files.columns), cores, False)


def _programs(
    files: SlabFiles, product: Product, shape: tuple[int, ...], cores: int, cold: bool
) -> dict[str, Callable[[], np.ndarray]]:
    found: dict[str, Callable[[], np.ndarray]] = {}
    heights = [h for h in ((512, 2048) if cold else (256, 512, 1024, 2048)) if files.rows_each % h == 0] or [
        files.rows_each
    ]
    for height in heights:
        found[f"pread, {height} rows"] = partial(by_pread, files, product, shape, cores, height)
        if cold:
            name = f"pread, {height} rows, WILLNEED ahead"
            found[name] = partial(by_pread, files, product, shape, cores, height, ahead=4 * cores)
    found["memmap, 512 rows"] = partial(by_memmap, files, product, shape, cores, min(512, files.rows_each))
    found["pread, whole chunks, threads of BLAS"] = partial(by_blas_threads, files, product, shape, cores, heights[-1])
    return found


def by_pread(
    files: SlabFiles, product: Product, shape: tuple[int, ...], cores: int, height: int, ahead: int = 0
) -> np.ndarray:
    """Each thread reads its slabs into one reused buffer and multiplies twice; BLAS has one thread in each.

    ``ahead``: so many slabs before its turn the kernel is told that a slab will be needed.
    """

    def tiles(slabs: list[tuple[Path, int]]) -> Iterator[np.ndarray]:
        buffer = np.empty((height, files.columns), files.dtype)
        opened = _Opened()
        for number, (path, row) in enumerate(slabs):
            for later, its_row in slabs[number + ahead : number + ahead + 1] if number else slabs[: ahead + 1]:
                if ahead:
                    os.posix_fadvise(opened(later), its_row * buffer.strides[0], buffer.nbytes, os.POSIX_FADV_WILLNEED)
            opened.read(path, buffer, row)
            yield buffer
        opened.close()

    return _on_threads(files.slabs(height), product, np.zeros((cores, *shape), files.dtype), tiles)


def by_memmap(files: SlabFiles, product: Product, shape: tuple[int, ...], cores: int, height: int) -> np.ndarray:
    """The same on memory-mapped files: no copy, but a page fault for every page."""

    def tiles(slabs: list[tuple[Path, int]]) -> Iterator[np.ndarray]:
        for path, row in slabs:
            whole = np.memmap(path, files.dtype, "r", shape=(files.rows_each, files.columns))
            yield whole[row : row + height]

    return _on_threads(files.slabs(height), product, np.zeros((cores, *shape), files.dtype), tiles)


def by_blas_threads(files: SlabFiles, product: Product, shape: tuple[int, ...], cores: int, height: int) -> np.ndarray:
    """One Python thread, all cores inside BLAS: what most people would write."""
    total, buffer, opened = np.zeros(shape, files.dtype), np.empty((height, files.columns), files.dtype), _Opened()
    with threadpool_limits(limits=cores):
        for path, row in files.slabs(height):
            opened.read(path, buffer, row)
            total += product(buffer)
    opened.close()
    return total


class _Opened:
    """File descriptors by path, opened once."""

    def __init__(self) -> None:
        self._files: dict[Path, int] = {}

    def __call__(self, path: Path) -> int:
        if path not in self._files:
            self._files[path] = os.open(path, os.O_RDONLY)
        return self._files[path]

    def read(self, path: Path, buffer: np.ndarray, row: int) -> None:
        """Rows from ``row`` on into the buffer, all of it."""
        if os.preadv(self(path), [buffer.data.cast("B")], row * buffer.strides[0]) != buffer.nbytes:
            raise OSError(f"{path} ended early")

    def close(self) -> None:
        for file in self._files.values():
            os.close(file)


def transposed(slab: np.ndarray, block: np.ndarray) -> np.ndarray:
    """``(slab.T @ (slab @ block)).T``: in float32 OpenBLAS is 1.2 to 1.4 times faster this way round."""
    return (slab @ block).T @ slab


def _on_threads(
    slabs: list[tuple[Path, int]],
    product: Product,
    totals: np.ndarray,
    read: Callable[[list[tuple[Path, int]]], Iterator[np.ndarray]],
) -> np.ndarray:
    """Sum of the products of all slabs, dealt out to threads in turn; one of ``totals`` and of BLAS's in each."""

    def work(thread: int) -> None:
        for slab in read(slabs[thread :: len(totals)]):
            totals[thread] += product(slab)

    with threadpool_limits(limits=1):
        threads = [threading.Thread(target=work, args=(i,)) for i in range(len(totals))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return np.asarray(totals.sum(axis=0))
