"""What is streamed while it is killed: rows in three kinds of source, and algorithms that take their time over them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from npmdask.core.numerics.random import generator
from npmdask.streaming.algorithms.model import Model

KINDS = ("stored", "directory", "piped")
FILES = 20
CHUNK_ROWS = 500
COMMIT_SECONDS = 0.1  # some ten times what a commit takes
SCATTER_TOLERANCE = 1e-12  # relative; one row of a hundred thousand weighs 1e-5


@dataclass(frozen=True, kw_only=True)
class Case:
    """An algorithm in small batches, so that a second holds hundreds of them to be killed in; ``rows`` for a few
    seconds."""

    algorithm: str
    rows: int
    columns: int
    rank: int
    batch_rows: int
    options: Mapping[str, Any] = field(default_factory=dict)

    def asked(self) -> dict[str, Any]:
        """Arguments of ``stream_pca``."""
        own = {"algorithm": self.algorithm, "k": self.rank, "batch_rows": self.batch_rows}
        return own | {"options": dict(self.options), "commit_seconds": COMMIT_SECONDS}


CASES = {
    # p = d and nothing forgotten: the model holds the scatter of all rows, exactly.
    "spm": Case(
        algorithm="spm",
        rows=16_000,
        columns=64,
        rank=6,
        batch_rows=16,
        options={"iteration_rank": 64, "block_rows": 16, "memory": 1},
    ),
    "oja": Case(algorithm="oja", rows=40_000, columns=256, rank=8, batch_rows=4),
    "mb-rmsg": Case(
        algorithm="mb-rmsg",
        rows=20_000,
        columns=128,
        rank=4,
        batch_rows=16,
        options={"gap": 0.3, "batch_rows": 64, "warm_rows": 256},
    ),
    # Batches of 16 rows, pieces of 64 and blocks of 100: most commits have rows that wait for their piece.
    "online-tensor-power": Case(
        algorithm="online-tensor-power",
        rows=24_000,
        columns=128,
        rank=4,
        batch_rows=16,
        options={"block_rows": 100, "restarts": 20, "iterations": 5},
    ),
}


def make_rows(count: int, columns: int, seed: int) -> np.ndarray:
    """Rows of norm about 1 with standard deviations 1 / i, float32."""
    scale = 1 / np.arange(1, columns + 1)
    rows = generator(seed, "benchmarks", "killed streams").standard_normal((count, columns))
    return np.asarray(rows * (scale / np.linalg.norm(scale)), dtype="f4")


def write_sources(folder: Path, rows: np.ndarray) -> None:
    """The same rows as a Zarr array, as a directory of files, and as one file to be piped."""
    array = zarr.create_array(folder / "stored", shape=rows.shape, dtype="f4", chunks=(CHUNK_ROWS, rows.shape[1]))
    array[...] = rows
    (folder / "directory").mkdir()
    for number, part in enumerate(np.array_split(rows, FILES)):
        np.save(folder / "directory" / f"{number:03d}.npy", part)
    np.save(folder / "piped", rows)


def reading(folder: Path, kind: str, columns: int) -> dict[str, Any]:
    """Arguments of ``stream_pca`` that say what to read and how."""
    if kind == "piped":
        return {"source": "-", "format": "npy", "columns": columns}
    return {"source": str(folder / kind), "order": "shuffled" if kind == "stored" else "sequential"}


def scatter_error(arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any], rows: np.ndarray) -> float | None:
    """How far the scatter that a checkpoint (p = d, memory 1) holds is from that of ``rows``, relative; None: of a
    model that does not hold it. A row that was lost or taken twice shows, whatever was counted."""
    model = Model.of(meta["model"])
    if getattr(model.algorithm, "iteration_rank", 0) != model.d:
        return None
    state = model.load({name: array for name, array in arrays.items() if name != "measured_basis"}, meta["state"]).inner
    held = state.basis @ state.core @ state.basis.T
    if state.filled:
        held = held + state.partial @ state.basis.T
    wide = rows.astype(np.float64)
    exact = wide.T @ wide
    return float(np.linalg.norm(held - exact) / np.linalg.norm(exact))
