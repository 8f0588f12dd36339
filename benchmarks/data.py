"""Data sets that rows share: made once in a temporary folder, after a look at the free disk, deleted at the end."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from zarr.codecs import ZstdCodec

from benchmarks.card import write_cells, write_genotypes, write_rows
from benchmarks.registry import FACTORS, CannotRunError
from npmdask.core.numerics.random import generator
from npmdask.core.numerics.subspaces import random_orthonormal
from npmdask.synthetic import generate

MIB = 2**20
COLUMNS = 2048
RANK = 20
MOST_WANTED = 64  # leading eigenvectors that are kept as the truth
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


def require_disk(size: int, folder: Path, what: str = "the data") -> None:
    """Refuse to begin what the free disk does not hold.

    Raises
    ------
    CannotRunError
        So many bytes, and ``SPARE``, are not free.
    """
    need, free = size + SPARE, shutil.disk_usage(folder).free
    if free < need:
        raise CannotRunError(
            f"{what} needs {need / 2**30:.1f} GiB of free disk and {free / 2**30:.1f} GiB are free in the temporary "
            "folder; free some, point TMPDIR elsewhere, or use SCALE=small"
        )


class DataSets(Mapping[str, Path]):
    """Name to store; made when first asked for."""

    def __init__(self, folder: Path, scale: str) -> None:
        self._folder, self._scale = folder, scale

    def __getitem__(self, name: str) -> Path:
        path = self._folder / name
        if not path.exists():
            size = RECIPES[name].size(self._scale)
            require_disk(int(size * RECIPES[name].copies), self._folder, f"data set {name!r}")
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


def write_samples(folder: Path, rows: int, eigenvalues: np.ndarray, dtype: str = "f4", *, npy: bool = False) -> Path:
    """Independent Gaussian rows, turned so that their own mean is 0 and their own covariance exactly the chosen one.

    So the truth is known to rounding, centring changes nothing (packages that always centre and packages that cannot
    solve the same problem), and a sample of the rows is as far off as one of independent rows is. Of a basis of
    cosines evenly spaced rows would be nearly as good as all. ``folder`` gets ``x.zarr`` (raw row slabs),
    ``truth.npy`` (the eigenvectors) and, if asked for, ``x.npy``; returns the store.
    """
    d = len(eigenvalues)
    height = max(64, 2**23 // (d * 4))
    spans = [(start, min(start + height, rows)) for start in range(0, rows, height)]

    def drawn(start: int, end: int) -> np.ndarray:
        return generator(0, "benchmarks", "rows", start).standard_normal((end - start, d), dtype=np.float32)

    total, gram = np.zeros(d), np.zeros((d, d))
    for span in spans:
        some = drawn(*span).astype("f8")
        total += some.sum(axis=0)
        gram += some.T @ some
    mean = total / rows
    lower = np.linalg.cholesky(gram / rows - np.outer(mean, mean))
    vectors = random_orthonormal(d, d, generator(0, "benchmarks", "eigenvectors"))
    turn = np.linalg.solve(lower.T, (vectors * np.sqrt(eigenvalues)).T)
    shift, exact = mean @ turn, np.dtype(dtype) == np.float64
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "truth.npy", vectors[:, :MOST_WANTED])
    store = zarr.create_array(folder / "x.zarr", shape=(rows, d), dtype=dtype, chunks=(height, d), compressors=None)
    plain = np.lib.format.open_memmap(folder / "x.npy", "w+", dtype, (rows, d)) if npy else None
    for span in spans:
        some = drawn(*span).astype("f8" if exact else "f4")
        part = (some @ turn.astype(some.dtype) - shift.astype(some.dtype)).astype(dtype)
        store[slice(*span)] = part
        if plain is not None:
            plain[slice(*span)] = part
    if plain is not None:
        plain.flush()
    return folder / "x.zarr"


def _peers(path: Path, size: int) -> None:
    """The same samples as Zarr and as .npy, whole and in a small proxy with the same spectrum and components."""
    columns = COLUMNS if size >= 256 * MIB else 512
    rows = size // 4 // columns
    for name, count in (("whole", rows), ("proxy", min(PROXY_ROWS, rows // 4))):
        write_samples(path / name, count, np.arange(1, columns + 1) ** -1.0, npy=True)


def _private(path: Path, size: int) -> None:
    """Records of length 1 for a private run: float32, 1000 columns, variances 1 / i before they are scaled."""
    from benchmarks.private_cases import make_records, write_records  # needs the packages of private releases

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


def _sharded(path: Path, size: int, codec: Any = None) -> None:
    """Real numbers of three digits, float32, twice: in files of 16 MiB, and in shards of 128 MiB of 1 MiB chunks."""
    line = 4 * COLUMNS
    rows, shard = size // line, min(128 * MIB, size // 4) // line
    layouts: dict[str, Any] = {
        "files.zarr": {"chunks": (min(16 * MIB // line, shard), COLUMNS)},
        "shards.zarr": {"chunks": (MIB // line, COLUMNS), "shards": (shard, COLUMNS)},
    }
    for name, layout in layouts.items():
        array = zarr.create_array(path / name, shape=(rows, COLUMNS), dtype="f4", compressors=codec, **layout)
        for start in range(0, rows, shard):
            drawn = generator(0, "benchmarks", "rows", start).standard_normal((min(shard, rows - start), COLUMNS))
            array[start : start + shard] = np.round(drawn, 2)


RECIPES: dict[str, Recipe] = {
    "samples": Recipe(64, 8192, _harmonic),
    "main": Recipe(64, 4096, _harmonic),
    "slow": Recipe(16, 256, _harmonic),
    "sharded-none": Recipe(16, 4096, _sharded, copies=2),
    "sharded-zstd": Recipe(16, 4096, partial(_sharded, codec=ZstdCodec(level=1)), copies=2),
    "symmetric": Recipe(64, 4096, _symmetric),
    "slabs": Recipe(64, 4096, _slabs),
    "packed": Recipe(64, 4096, _packed),
    "sparse": Recipe(12, 1200, _sparse),
    "tensor": Recipe(14, 1680, _tensor),
    "private": Recipe(16, 3815, _private),
    "peers": Recipe(16, 2048, _peers, copies=2.5),
    "card-rows": Recipe(32, 49_152, write_rows),
    "card-cells": Recipe(4, 3472, write_cells),
    "card-genotypes": Recipe(8, 12_288, write_genotypes),
}
