"""Planted problems of any size, written out of core with the truth beside them.

Rows are made in slabs; a killed write goes on at ``writer.next_row`` and ends in the same bytes, whatever the
number of workers. BLAS is pinned to one thread: otherwise the order of its sums, and with it the last bit,
would depend on the machine. The truth is ``truth/basis`` (columns x rank, orthonormal) and ``truth/values``
(rank), with what they are in the record.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields, replace
from numbers import Integral, Real
from pathlib import Path
from shutil import disk_usage
from typing import Any

import numpy as np
import psutil
from threadpoolctl import threadpool_limits

from npmdask.errors import RefusedError, closest, require
from npmdask.storage.kinds import choose_layout, require_cubic
from npmdask.storage.paths import NEW_STORE, local_path, locked, require_path
from npmdask.storage.synthetic.matrices import (
    PlantedProblem,
    PlantedSize,
    PlantedSpectrum,
    PlantedSymmetric,
    RankDeficient,
    SlabPlan,
    Sparse,
    Spiked,
)
from npmdask.storage.synthetic.tensors import Tensor
from npmdask.storage.writers.dense import DenseWriter
from npmdask.storage.writers.packed import PackedWriter, TensorWriter, packed_bytes
from npmdask.storage.writers.sparse import SparseWriter

VERSION = 1  # of the bytes: a write that another version began is not continued
UNNAMED = (("left_factor", "cosine"),)  # what stores hold that were made before there was a choice
Progress = Callable[[int, int, int], None]

REGISTRY: dict[str, type[PlantedProblem]] = {
    "spiked": Spiked,
    "spectrum": PlantedSpectrum,
    "symmetric": PlantedSymmetric,
    "rank_deficient": RankDeficient,
    "sparse": Sparse,
    "tensor": Tensor,
}


@dataclass(frozen=True, kw_only=True)
class GenerateSummary:
    """What was written; ``bytes`` are those of the data, before compression and without the truth."""

    dest: Path
    kind: str
    shape: tuple[int, ...]
    dtype: str
    fingerprint: str
    seconds: float
    bytes: int


def generate(
    dest: Path | str,
    *,
    problem: str,
    rows: int | None = None,
    columns: int,
    dtype: Any = "float32",
    seed: int = 0,
    rank: int = 10,
    overwrite: bool = False,
    chunks: tuple[int, ...] | None = None,
    layout: str | None = None,
    progress: Progress | None = None,
    workers: int = 2,
    **options: Any,
) -> GenerateSummary:
    """Write the planted ``problem`` (a name in ``REGISTRY``; ``options`` are its fields) to ``dest``.

    ``columns`` is the length of the vectors that are the truth: of a tensor, d x d x d, all there is to say.
    ``chunks``: rows and columns of a chunk, or three equal numbers for a tensor. ``layout`` of a symmetric problem:
    packed (default; the upper triangle, half the bytes) or full.

    Run again after a kill, it goes on where the journal ends. ``progress(done_rows, rows, done_bytes)`` is called
    after every slab (of a tensor: blocks, after every one). ``workers`` make slabs while another is written; the
    bytes do not depend on them.

    Raises
    ------
    BadInputError
        A shape, rank, dtype or option that makes no sense; nothing was written.
    RefusedError
        ``dest`` exists, another process is writing it, or the disk or the memory is too small.
    """
    began, dest = time.monotonic(), local_path(dest, NEW_STORE)
    require_path(dest)
    planted = _cut(_configure(problem, options), chunks)
    pair = None if chunks is None or planted.kind == "tensor" else (chunks[0], chunks[1])
    size = _size(rows, columns, rank, dtype, seed, planted)
    planted.check(size)
    require(workers >= 1, f"workers must be at least 1, not {workers}")
    packed = choose_layout(planted.kind, layout, pair) == "packed"
    total = packed_bytes(size.columns, size.dtype, pair) if packed else planted.data_bytes(size)
    _require_room(dest, planted, size, total)
    chosen = {name: value for name, value in asdict(planted).items() if (name, value) not in UNNAMED}
    generated = {"problem": problem, **asdict(size), "dtype": size.dtype.name, "options": chosen}
    generated |= {"version": VERSION, "numpy": np.__version__}
    with locked(dest), threadpool_limits(limits=1):
        writer = _writer(dest, planted, size, generated, pair, overwrite, packed)
        plan = planted.plan(size)
        if packed and plan.upper is not None:
            plan = replace(plan, slab=plan.upper)
        count = planted.count(size)
        for made in _slabs(plan, count, _written(writer), workers):
            writer.write(*made)
            if progress is not None:
                progress(_written(writer), count, total * _written(writer) // count)
        arrays = {f"truth/{name}": array for name, array in plan.truth.items()}
        printed = writer.finish({"truth": {"note": plan.note}, "generated": generated}, arrays)
    return GenerateSummary(
        dest=dest,
        kind=planted.kind,
        shape=(size.columns,) * 3 if planted.kind == "tensor" else (size.rows, size.columns),
        dtype=size.dtype.name,
        fingerprint=printed,
        seconds=time.monotonic() - began,
        bytes=total,
    )


def _configure(problem: str, options: dict[str, Any]) -> PlantedProblem:
    require(problem in REGISTRY, f"unknown problem {problem!r}: {closest(str(problem), list(REGISTRY))}")
    known = {option.name: str(option.type) for option in fields(REGISTRY[problem]) if option.init}
    for name, value in options.items():
        require(name in known, f"{problem} has no option {name!r}: {closest(name, list(known))}")
        require(_fits(value, known[name]), f"{name} must be of type {known[name]}, not {value!r}")
    listed = {name: tuple(v) if isinstance(v, list) else v for name, v in options.items()}
    return REGISTRY[problem](**listed)


def _cut(planted: PlantedProblem, chunks: tuple[int, ...] | None) -> PlantedProblem:
    """The problem, a tensor with the side of its blocks."""
    if not isinstance(planted, Tensor):
        require(chunks is None or len(chunks) == 2, f"chunks={chunks}: rows and columns are needed")
        return planted
    return planted if chunks is None else replace(planted, side=require_cubic(chunks))


def _written(writer: Any) -> int:
    return int(writer.next_unit if isinstance(writer, TensorWriter) else writer.next_row)


def _fits(value: Any, annotation: str) -> bool:
    """Whether an option's value is of the annotated type; None only where it is allowed."""
    if value is None:
        return "None" in annotation
    if annotation.startswith("tuple"):
        return isinstance(value, list | tuple) and all(_fits(entry, "float") for entry in value)
    kind = {"int": Integral, "float": Real, "bool": bool, "str": str}[annotation.split()[0]]
    return isinstance(value, kind) and isinstance(value, bool) == (kind is bool)


def _size(rows: int | None, columns: int, rank: int, dtype: Any, seed: int, planted: PlantedProblem) -> PlantedSize:
    if rows is None:
        require(planted.kind in ("symmetric", "tensor"), "rows: say how many to make")
        rows = columns
    for name, value, least in (
        ("rows", rows, 1),
        ("columns", columns, 1),
        ("rank", rank, 1),
        ("seed", seed, 0),
    ):
        fine = _fits(value, "int") and value >= least
        require(fine, f"{name} must be a whole number from {least} on, not {value!r}")
    require(rank <= min(rows, columns), f"rank {rank} exceeds the smaller side of {rows} x {columns}: lower it")
    name = getattr(dtype, "__name__", str(dtype))
    require(name in ("float32", "float64"), f"dtype must be float32 or float64, not {name}")
    return PlantedSize(rows=int(rows), columns=int(columns), rank=int(rank), dtype=np.dtype(name), seed=int(seed))


def _require_room(dest: Path, planted: PlantedProblem, size: PlantedSize, total: int) -> None:
    """Disk for the data and the truth, memory for the factors."""
    partial = dest.with_name(dest.name + ".partial")
    written = sum(f.stat().st_size for f in partial.rglob("*") if f.is_file())
    there = next(folder for folder in dest.parents if folder.exists())
    needed, free = total + size.columns * size.rank * 8, disk_usage(there).free + written
    if needed > free:
        raise RefusedError(
            f"{dest} would take {needed / 2**30:.1f} GiB and {there} has {free / 2**30:.1f} GiB free: "
            "free some space, choose another folder or fewer rows"
        )
    held, memory = planted.held_bytes(size), psutil.virtual_memory().available
    if held > memory:
        raise RefusedError(
            f"{planted.width(size)} vectors of {size.columns} entries need {held / 2**30:.1f} GiB of memory "
            f"and {memory / 2**30:.1f} GiB are free: choose a smaller length or rank"
        )


def _writer(
    dest: Path | str,
    planted: PlantedProblem,
    size: PlantedSize,
    generated: dict[str, Any],
    chunks: tuple[int, int] | None,
    overwrite: bool,
    packed: bool,
) -> Any:
    common: dict[str, Any] = {"dtype": size.dtype, "overwrite": overwrite, "identity": {"generated": generated}}
    if isinstance(planted, Tensor):
        return TensorWriter(dest, size=size.columns, side=planted.cut(size), **common)
    common["columns"] = size.columns
    if planted.kind == "sparse":
        require(chunks is None, "chunks cannot be chosen for sparse data: leave them out")
        return SparseWriter(dest, **common)
    require(chunks is None or min(chunks) >= 1, f"chunks must be at least 1 x 1, not {chunks}")
    if packed:
        return PackedWriter(dest, rows=size.rows, chunks=chunks, mirrored=True, **common)
    return DenseWriter(dest, kind=planted.kind, rows=size.rows, chunks=chunks, **common)


def _slabs(plan: SlabPlan, rows: int, first: int, workers: int) -> Iterator[tuple[np.ndarray, ...]]:
    """The slabs from row ``first`` on, in order, as arguments of ``write``; at most ``workers`` are ahead."""

    def make(index: int) -> tuple[np.ndarray, ...]:
        start = index * plan.height
        made = plan.slab(index, range(start, min(start + plan.height, rows)))
        return made if isinstance(made, tuple) else (made[max(0, first - start) :],)

    ahead: deque[Future[tuple[np.ndarray, ...]]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        for index in range(first // plan.height, -(-rows // plan.height)):
            ahead.append(pool.submit(make, index))
            if len(ahead) > workers:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
