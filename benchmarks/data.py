"""Data sets that rows share: made once in a temporary folder, after a look at the free disk, deleted at the end."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from threadpoolctl import threadpool_limits

from benchmarks.private_cases import make_records, write_records
from benchmarks.registry import FACTORS, CannotRunError
from npmdask.numerics.random import generator
from npmdask.numerics.subspaces import random_orthonormal
from npmdask.storage.synthetic.generate import generate

MIB = 2**20
COLUMNS = 2048
RANK = 20
PRIVATE_COLUMNS = 1000
TENSOR_GRID, TENSOR_SHARE = 10, 0.22  # blocks along a tensor; of the dense bytes that is so much
SPARE = 2**30  # bytes of disk that are left free
PROXY_ROWS = 8192  # of "peers", at most a quarter: where contestants look for their cheapest sufficient parameters


@dataclass(frozen=True)
class Recipe:
    """How a data set is made: ``make(folder, data bytes)``; ``copies``: times that it is on disk."""

    small: int  # MiB
    full: int
    make: Callable[[Path, int], None]
    copies: float = 1.0

    def size(self, scale: str) -> int:
        """Bytes of the data at a scale."""
        return MIB * (self.small if scale == "small" else max(self.small, self.full // FACTORS[scale]))


class DataSets(Mapping[str, Path]):
    """Name to store; made when first asked for."""

    def __init__(self, folder: Path, scale: str) -> None:
        self._folder, self._scale = folder, scale

    def __getitem__(self, name: str) -> Path:
        path = self._folder / name
        if not path.exists():
            size = RECIPES[name].size(self._scale)
            need, free = int(size * RECIPES[name].copies) + SPARE, shutil.disk_usage(self._folder).free
            if free < need:
                raise CannotRunError(
                    f"data set {name!r} needs {need / 2**30:.1f} GiB of free disk and {free / 2**30:.1f} GiB are "
                    "free in the temporary folder; free some, point TMPDIR elsewhere, or use SCALE=small"
                )
            RECIPES[name].make(path, size)
        return path

    def __iter__(self) -> Iterator[str]:
        return iter(RECIPES)

    def __len__(self) -> int:
        return len(RECIPES)

    def drop(self, name: str) -> None:
        """Delete a data set that no later row needs."""
        shutil.rmtree(self._folder / name, ignore_errors=True)


def _harmonic(path: Path, size: int) -> None:
    """Samples, float32, 2048 columns, sigma_i = 1 / sqrt(i), truth beside them; chunks are full-width row slabs."""
    options: dict[str, Any] = {"kind": "samples", "spectrum": "harmonic"}
    generate(path, problem="spectrum", rows=size // 4 // COLUMNS, columns=COLUMNS, rank=RANK, **options)


def _symmetric(path: Path, size: int, layout: str = "full", chunks: tuple[int, int] = (2048, 2048)) -> None:
    side = math.isqrt(size // 4) // 2048 * 2048
    options: dict[str, Any] = {"spectrum": "harmonic", "length": 256, "layout": layout}
    generate(path, problem="symmetric", columns=side, rank=RANK, chunks=chunks, **options)


def _packed(path: Path, size: int) -> None:
    _symmetric(path, size, layout="packed")


def _slabs(path: Path, size: int) -> None:
    """The layout that is best for reading all of it: chunks of 16 MiB across all columns."""
    side = math.isqrt(size // 4) // 2048 * 2048
    _symmetric(path, size, chunks=(16 * MIB // 4 // side, side))


def _sparse(path: Path, size: int) -> None:
    """CSR, float64, 100 entries in a row of 10,000: 1 % of the entries are not zero."""
    generate(
        path, problem="sparse", rows=size // 12 // 100, columns=10_000, rank=RANK, dtype="float64", row_entries=100
    )


def _peers(path: Path, size: int) -> None:
    """The same samples as Zarr and as .npy, whole and in a small proxy, with the truth as .npy.

    Everybody must be able to solve the same problem: packages that always centre and packages that cannot. So
    the columns have mean zero to rounding: U is the DCT-II basis (orthogonal to ones), its rows permuted.
    """
    rows, length = size // 4 // COLUMNS, 512
    path.mkdir()
    right = random_orthonormal(COLUMNS, length, generator(0, "benchmarks", "peers"))
    scaled = np.ascontiguousarray((right * np.arange(1, length + 1) ** -0.5).T)
    np.save(path / "truth.npy", right[:, :RANK])
    for name, count in (("whole", rows), ("proxy", max(2 * length, min(PROXY_ROWS, rows // 4)))):
        _permuted_samples(path / name, count, scaled)


def _permuted_samples(path: Path, rows: int, scaled: np.ndarray) -> None:
    path.mkdir()
    step = next(s for s in range(int(rows * 0.618), rows) if math.gcd(s, rows) == 1)
    chunks = (min(2048, rows), COLUMNS)
    store = zarr.create_array(path / "x.zarr", shape=(rows, COLUMNS), dtype="f4", chunks=chunks, compressors=None)
    plain = np.lib.format.open_memmap(path / "x.npy", "w+", "f4", (rows, COLUMNS))
    with threadpool_limits(limits=1):
        for start in range(0, rows, chunks[0]):
            place = np.arange(start, min(start + chunks[0], rows)) * step % rows
            part = (math.sqrt(rows) * (_dct_rows(place, len(scaled), rows) @ scaled)).astype("f4")
            store[start : start + len(part)] = part
            plain[start : start + len(part)] = part
    plain.flush()


def _dct_rows(place: np.ndarray, length: int, rows: int) -> np.ndarray:
    """Rows ``place`` of the DCT-II basis."""
    turn = (2 * place[:, None] + 1) * np.arange(1, length + 1) % (4 * rows)
    return np.cos(turn * (math.pi / (2 * rows))) * math.sqrt(2 / rows)


def _private(path: Path, size: int) -> None:
    """Records of length 1 for a private run: float32, 1000 columns, variances 1 / i before they are scaled."""
    rows = size // 4 // PRIVATE_COLUMNS // 1000 * 1000
    rng = generator(0, "benchmarks", "private")
    basis = random_orthonormal(PRIVATE_COLUMNS, PRIVATE_COLUMNS, rng)
    batches = (make_records("1/i", min(4000, rows - first), basis, rng) for first in range(0, rows, 4000))
    write_records(path, batches, rows, PRIVATE_COLUMNS)


def _tensor(path: Path, size: int) -> None:
    """A symmetric tensor, float64, without noise, ten blocks along a side: 0.22 of d^3 numbers; truth beside it."""
    side = round((size / 8 / TENSOR_SHARE) ** (1 / 3) / TENSOR_GRID)
    d, cube = side * TENSOR_GRID, (side, side, side)
    generate(path, problem="tensor", columns=d, rank=RANK, dtype="float64", chunks=cube)


RECIPES: dict[str, Recipe] = {
    "samples": Recipe(64, 8192, _harmonic),
    "main": Recipe(64, 4096, _harmonic),
    "slow": Recipe(16, 256, _harmonic),
    "symmetric": Recipe(64, 4096, _symmetric),
    "slabs": Recipe(64, 4096, _slabs),
    "packed": Recipe(64, 4096, _packed),
    "sparse": Recipe(12, 1200, _sparse),
    "tensor": Recipe(14, 1680, _tensor),
    "private": Recipe(16, 3815, _private),
    "peers": Recipe(16, 2048, _peers, copies=2.5),
}
