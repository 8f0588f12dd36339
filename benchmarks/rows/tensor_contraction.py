"""One contraction T(I, u, u) with 50 vectors, d = 1000, from a store: its memory, its speed, the bytes that it reads.

``python -m benchmarks.rows.tensor_contraction STORE COLUMNS THREADS`` is the process whose memory is measured.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import cache
from benchmarks.children import last_json
from benchmarks.products import one_pass, operator_of, relative_error
from benchmarks.registry import Context, Measured, Row
from benchmarks.tensor_floor import block_files, programs
from benchmarks.timing import clocked, interleaved, medians, rounded
from npmdask.core.execution.executor import Threads
from npmdask.core.execution.memory import PeakMeter
from npmdask.core.storage.source import open_source

L = 50
FINALISTS = 2
WORST_ERROR = 1e-11


def vectors_of(d: int) -> np.ndarray:
    """L unit vectors (d x L)."""
    block = np.random.default_rng(1).standard_normal((d, L))
    return np.ascontiguousarray(block / np.linalg.norm(block, axis=0))


def expected(store: Path, block: np.ndarray) -> np.ndarray:
    """The contraction from the components that were planted: the tensor has no noise."""
    truth = open_source(store).truth
    assert truth is not None
    return np.asarray((truth.basis * truth.values) @ (truth.basis.T @ block) ** 2)


def main(store: Path, threads: int) -> dict[str, Any]:
    """One contraction, measured as a whole process: interpreter and libraries are in the figure."""
    with PeakMeter() as meter:
        operator = operator_of(store)
        block = vectors_of(operator.block_rows)
        product, record = one_pass(Threads(threads), operator, block)
        peak = meter.peak
    error = relative_error(product, expected(store, block))
    return {"peak_bytes": peak, "relative_error": error, "bytes_read": record.bytes_read, "blocks": record.chunks}


def peak_memory(context: Context) -> Measured:
    """The peak of a process that does nothing else."""
    store = context.data["tensor"]
    command = [sys.executable, "-m", "benchmarks.rows.tensor_contraction", str(store), str(context.cores)]
    facts = last_json(command, folder=context.folder)
    empty = last_json([sys.executable, "-m", "benchmarks.rows.tensor_contraction"], folder=context.folder)
    megabytes = facts["peak_bytes"] / 1e6
    details = {
        **_shape(store),
        **facts,
        "interpreter_and_libraries_mb": round(empty["peak_bytes"] / 1e6, 1),
        "threads": context.cores,
        "data_over_memory": round(facts["bytes_read"] / facts["peak_bytes"], 2),
    }
    return Measured(megabytes, details, "", _wrong(facts["relative_error"]))


def throughput(context: Context) -> Measured:
    """All floor programs once, then the two fastest of them in turns with ours, from the page cache."""
    store = context.data["tensor"]
    operator, threads = operator_of(store), Threads(context.cores)
    reader, block = operator.reader, vectors_of(operator.block_rows)
    floors = programs(block_files(store, reader.grid), reader.side, L, context.cores)
    cache.warm(store)
    first = medians(interleaved(floors, 1))
    best = sorted(first, key=lambda name: first[name])[:FINALISTS]
    ours = {"npmdask": lambda: one_pass(threads, operator, block), "npmdask, one thread": _single(operator, block)}
    ways: dict[str, Any] = {name: floors[name] for name in best} | ours
    interleaved(ours, 1)
    seconds = interleaved(ways, context.rounds)
    middle, error = medians(seconds), relative_error(ways["npmdask"]()[0], expected(store, block))
    floor = min(middle[name] for name in best)
    details = {
        **_shape(store),
        "relative_error": error,
        "gb_per_s": {name: round(reader.nbytes / value / 1e9, 3) for name, value in middle.items()},
        "cpu_seconds": {name: _cpu(way) for name, way in (floors | ours).items() if "BLAS" not in name},
        "seconds": rounded(seconds),
        "floor_candidates_seconds": {name: round(value, 4) for name, value in first.items()},
    }
    why = (
        f"{middle['npmdask'] - floor:.2f} s more than reading and the matrix products alone: sums over pairs, products "
        "of vectors, a checksum of every block"
    )
    return Measured(floor / middle["npmdask"], details, why, _wrong(error))


def _cpu(way: Callable[[], Any]) -> float:
    """CPU seconds of the process, user and system: what a busy machine changes least."""
    return round(statistics.median(clocked(way)[1]["cpu_seconds"] for _ in range(3)), 4)


def _single(operator: Any, block: np.ndarray) -> Any:
    alone = Threads(1)
    return lambda: one_pass(alone, operator, block)


def read_share(context: Context) -> Measured:
    """Bytes that a pass counts as read, and that its files have, over those of the d x d x d array."""
    store = context.data["tensor"]
    operator = operator_of(store)
    record = one_pass(Threads(context.cores), operator, vectors_of(operator.block_rows))[1]
    d, itemsize = operator.block_rows, operator.reader.dtype.itemsize
    on_disk = sum(file.stat().st_size for file in cache.files_of(store / "data"))
    dense = d**3 * itemsize
    details = {
        **_shape(store),
        "bytes_read": record.bytes_read,
        "dense_bytes": dense,
        "files_over_dense": round(on_disk / dense, 4),
        "least_possible": round((1 + 1 / d) * (1 + 2 / d) / 6, 4),
    }
    return Measured(record.bytes_read / dense, details)


def _shape(store: Path) -> dict[str, Any]:
    reader = open_source(store).reader
    return {"d": reader.shape[0], "b": reader.chunks[0], "L": L, "blocks": reader.units, "bytes": reader.nbytes}


def _wrong(error: float) -> tuple[str, ...]:
    return () if error <= WORST_ERROR else (f"the contraction is wrong by {error:.1e}",)


def nothing() -> dict[str, Any]:
    """The memory of this process with all that it imports."""
    with PeakMeter() as meter:
        peak = meter.peak
    return {"peak_bytes": peak}


ROWS = (
    Row(
        name="tensor-memory",
        what="peak MB of contracting a tensor of d = 1000 (1.76 GB packed), L = 50",
        target=500.0,
        better="lower",
        run=peak_memory,
        data=("tensor",),
    ),
    Row(
        name="tensor-contraction",
        what="speed of a contraction T(I, u, u), d = 1000, L = 50 / the fastest NumPy program on the same blocks",
        target=0.7,
        run=throughput,
        data=("tensor",),
    ),
    Row(
        name="tensor-bytes",
        what="bytes read by a pass over a packed tensor, d / b = 10 / dense",
        target=0.25,
        better="lower",
        run=read_share,
        data=("tensor",),
    ),
)


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2])) if len(sys.argv) > 1 else nothing()))
