"""What a pass leaves behind in memory: nothing, without waiting for a collection of garbage."""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import zarr

from npmdask.core.execution.threads import Threads
from npmdask.core.operators import Partial, SparseGram
from npmdask.core.storage.readers.dense import ReadStats
from npmdask.core.storage.readers.sparse import Fragment
from npmdask.core.storage.source import open_source

CHUNK = 3000


def store(folder: Path) -> Path:
    """CSR in chunks of entries that end in the middle of rows."""
    matrix = sp.random_array((2000, 60), density=0.5, format="csr", rng=0)
    group = zarr.create_group(folder / "x.zarr")
    group.attrs.update({"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": list(matrix.shape)})
    for name in ("data", "indices", "indptr"):
        part = getattr(matrix, name)
        group.create_array(name, shape=part.shape, dtype=part.dtype, chunks=(CHUNK,))[...] = part
    return folder / "x.zarr"


@dataclass(frozen=True, kw_only=True)
class Watched(SparseGram):
    """Remembers the sums that it has made, as long as anybody does."""

    made: list[Any] = field(default_factory=list)
    run_bytes = 1  # a run for each chunk

    def partial(self, slabs: range, block: np.ndarray) -> Partial:
        return self._watched(super().partial(slabs, block))

    def join(self, left: Partial, right: Partial) -> Partial:
        return self._watched(super().join(left, right))

    def _watched(self, found: Partial) -> Partial:
        self.made.extend(weakref.ref(array) for array in found.sums.values() if isinstance(array, np.ndarray))
        return found


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
def test_sums_of_a_pass_are_gone_with_it(threads: int, tmp_path: Path) -> None:
    operator = Watched(reader=open_source(store(tmp_path)).reader)  # type: ignore[arg-type]
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            Threads(threads).run_pass(operator, np.eye(60)[:, :5], lambda record: None)
        left = [array for array in (ref() for ref in operator.made) if array is not None]
    finally:
        gc.enable()
    assert len(operator.made) > 20 and not left


def test_a_part_of_a_row_keeps_no_chunk(tmp_path: Path) -> None:
    """It is kept until a pass ends: as a view of its chunk it would keep all chunks of a run in memory."""
    reader: Any = open_source(store(tmp_path)).reader
    pieces = [piece for unit in range(reader.units) for piece in reader.blocks(range(unit, unit + 1), ReadStats())]
    cut = [piece for piece in pieces if isinstance(piece, Fragment)]
    assert len(cut) > 10
    for piece in cut:
        for array in (piece.indices, piece.data):
            assert len(array) < 60 and array.base is None


@dataclass(frozen=True, kw_only=True)
class Asked(SparseGram):
    """Remembers what it was asked for ahead, and what it has computed, in their order."""

    seen: list[tuple[str, int]] = field(default_factory=list)
    run_bytes = 1

    def read_ahead(self, units: range) -> None:
        self.seen.extend(("asked", unit) for unit in units[:1])

    def partial(self, slabs: range, block: np.ndarray) -> Partial:
        self.seen.append(("computed", slabs.start))
        return super().partial(slabs, block)


@pytest.mark.parametrize("threads", [1, 2])
def test_what_is_read_next_is_asked_for_before(threads: int, tmp_path: Path) -> None:
    """Mutant: the run that follows in the data, which is not the one that Dask takes up next."""
    operator = Asked(reader=open_source(store(tmp_path)).reader)  # type: ignore[arg-type]
    Threads(threads).run_pass(operator, np.zeros((60, 2)), lambda record: None)
    assert operator.units > 10 and len([1 for what, _ in operator.seen if what == "computed"]) == operator.units
    first = {unit: operator.seen.index(("computed", unit)) for unit in range(operator.units)}
    asked = [unit for what, unit in operator.seen if what == "asked"]
    assert len(asked) == len(set(asked)) == operator.units - threads
    assert all(operator.seen.index(("asked", unit)) < first[unit] for unit in asked)
