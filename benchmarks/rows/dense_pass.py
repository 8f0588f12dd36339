"""One Gram pass over dense float32 samples against the fastest plain NumPy program on the same bytes."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np

from benchmarks import cache
from benchmarks.floor import programs, slab_files
from benchmarks.products import one_pass, operator_of, relative_error, start_block
from benchmarks.registry import Context, Measured, Row
from benchmarks.timing import interleaved, medians, rounded
from npmdask.core.execution.executor import Threads

P = 20
WORST_ERROR = 1e-4  # of a float32 product; more is a wrong answer
FINALISTS = 2


def measure(context: Context, *, cold: bool, dtype: str = "float32") -> Measured:
    """All floor programs once, then the two fastest of them in turns with npmdask; the share in ``dtype``."""
    store = context.data["samples"]
    operator = operator_of(store, "matrix")  # samples would be divided by their number
    reader = operator.reader
    single, double = start_block(reader.shape[1], P), start_block(reader.shape[1], P, "f8")
    files = slab_files(store / "data" / "c", reader.shape, reader.chunks, reader.dtype)
    floors = programs(files, single, context.cores, cold)
    threads = Threads(context.cores)
    before = partial(cache.drop, store) if cold else None
    cache.warm(store)
    first = medians(interleaved(floors, 1, before))
    best = sorted(first, key=lambda name: first[name])[:FINALISTS]
    passes = {
        "npmdask, float32": lambda: one_pass(threads, operator, single),
        "npmdask, float64": lambda: one_pass(threads, operator, double),
    }
    ways = {name: floors[name] for name in best} | passes
    if not cold:
        ways["dask array, X.T @ (X @ V)"] = partial(_naive, store, single)
    seconds = interleaved(ways, min(3, context.rounds) if cold else context.rounds, before)
    if cold:
        cache.drop(store)
    left = round(cache.cached_share(store), 4)
    errors = _errors(operator, threads, single, double, floors[best[0]])
    middle = medians(seconds)
    floor = min(middle[name] for name in best)
    details: dict[str, Any] = {
        "bytes": reader.nbytes,
        "p": P,
        "gb_per_s": {name: round(reader.nbytes / value / 1e9, 3) for name, value in middle.items()},
        "share_of_floor_float64": round(floor / middle["npmdask, float64"], 3),
        "relative_error": errors,
        "cached_share_at_start_of_a_round": left,
        "seconds": rounded(seconds),
        "floor_candidates_seconds": {name: round(value, 4) for name, value in first.items()},
    }
    wrong = tuple(f"{name} is wrong by {error:.1e}" for name, error in errors.items() if error > WORST_ERROR)
    ours = f"npmdask, {dtype}"
    why = f"{middle[ours] - floor:.2f} s a pass more than the floor, checksums of every chunk included"
    if dtype == "float64":
        why += "; the floor multiplies in float32, and the same products take BLAS twice as long in float64"
    return Measured(floor / middle[ours], details, why, wrong)


def _naive(store: Path, block: np.ndarray) -> Any:
    """What a Dask user would write, on threads (the graph reads each chunk twice)."""
    x = da.from_zarr(store / "data")
    y = (x @ block).compute(scheduler="threads")
    return (x.T @ y).compute(scheduler="threads")


def _errors(operator: Any, threads: Threads, single: Any, double: Any, floor: Any) -> dict[str, float]:
    reference = one_pass(threads, operator, double)[0]
    products = {"npmdask, float32": one_pass(threads, operator, single)[0], "floor": floor().T}
    return {name: relative_error(product, reference) for name, product in products.items()}


ROWS = (
    Row(
        name="pass-warm",
        what="speed of a Gram pass, 8 GiB, p = 20 / the fastest NumPy program",
        target=0.85,
        run=partial(measure, cold=False),
        data=("samples",),
    ),
    Row(
        name="pass-warm-float64",
        what="`pass-warm` with products in float64 / that program in float32",
        target=0.6,
        run=partial(measure, cold=False, dtype="float64"),
        data=("samples",),
    ),
    Row(
        name="pass-cold",
        what="`pass-warm`, cold",
        target=0.85,
        run=partial(measure, cold=True),
        data=("samples",),
    ),
)
