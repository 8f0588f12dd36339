"""Rows per second of a stream, beside scikit-learn's IncrementalPCA on the same rows, to the same angle."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from sklearn.decomposition import IncrementalPCA
from threadpoolctl import threadpool_limits

from benchmarks.registry import Context, Measured, Row
from benchmarks.timing import interleaved, medians, rounded
from npmdask.core.numerics.random import generator
from npmdask.core.numerics.subspaces import max_sin_theta
from npmdask.streaming.algorithms.oja import Oja
from npmdask.streaming.algorithms.power import StreamPower

K, BATCH = 10, 256
NOISE = 0.05  # variance of all other directions; the k leading ones have 2 to 1
SLACK = 1.05  # times the angle of IncrementalPCA
MOST = 2  # times the rows of IncrementalPCA


def measure(context: Context) -> Measured:
    """One thread of BLAS for all. A method that needs more rows for the angle is timed over all that it needs."""
    d, rows = context.sized(200, 1000), context.sized(2560, 20_480)
    data = make_rows(MOST * rows, d)
    with threadpool_limits(limits=1):
        sought = SLACK * angle(theirs(data[:rows]), d)
        needed = {name: rows_needed(method, data, rows, sought) for name, method in methods().items()}
        ways: dict[str, Callable[[], Any]] = {"IncrementalPCA": partial(theirs, data[:rows])}
        ways |= {name: partial(ours, methods()[name], data[: count or len(data)]) for name, count in needed.items()}
        seconds = interleaved(ways, context.rounds)
    with threadpool_limits(limits=context.cores):
        on_all_cores = medians(interleaved(ways, 1))
    taken = medians(seconds)
    reached = [name for name, count in needed.items() if count]
    times = {name: round(taken["IncrementalPCA"] / taken[name], 1) for name in reached}
    details = {
        "blas_threads": 1,
        "batch_rows": BATCH,
        "max_sin_theta": {name: float(f"{angle(way(), d):.3g}") for name, way in ways.items()},
        "rows": {"IncrementalPCA": rows, **needed},  # None: not within twice the rows
        "rows_per_second": {
            name: round((needed.get(name, rows) or len(data)) / value) for name, value in taken.items()
        },
        "times_to_the_angle": times,
        "times_on_all_cores": {n: round(on_all_cores["IncrementalPCA"] / on_all_cores[n], 1) for n in reached},
        "seconds": rounded(seconds),
    }
    failures = () if reached else (f"no method of ours reached an angle of {sought:.3g}",)
    return Measured(max(times.values(), default=None), details, "", failures)


def make_rows(count: int, d: int) -> np.ndarray:
    """Gaussian rows of mean zero whose leading directions are the first k coordinates."""
    rows = np.random.default_rng(0).standard_normal((count, d))
    rows *= np.sqrt(np.append(np.linspace(2, 1, K), np.full(d - K, NOISE)))
    return rows


def methods() -> dict[str, Any]:
    """Ours, as they come; the one step size that has to be chosen is two over the gap."""
    return {
        "spm": StreamPower(target_rank=K, iteration_rank=2 * K, block_rows=1024, memory=1.0),
        "oja, step-free": Oja(target_rank=K),
        "oja, eta0 / t": Oja(target_rank=K, eta0=2 / (1 - NOISE), shift=2.0),
    }


def theirs(data: np.ndarray) -> np.ndarray:
    """The directions (k x d) of IncrementalPCA."""
    model = IncrementalPCA(n_components=K)
    for start in range(0, len(data), BATCH):
        model.partial_fit(data[start : start + BATCH])
    return np.asarray(model.components_)


def ours(method: Any, data: np.ndarray) -> np.ndarray:
    """The directions (k x d) of one of our algorithms."""
    state = method.init(data.shape[1], rng=generator(0, "start"))
    for start in range(0, len(data), BATCH):
        state, _ = method.update(state, data[start : start + BATCH])
    return np.asarray(method.finalize(state).vectors.T)


def rows_needed(method: Any, data: np.ndarray, rows: int, sought: float) -> int | None:
    """``rows``, or the first number of eighths more at which the angle is reached; None: not within all rows."""
    state = method.init(data.shape[1], rng=generator(0, "start"))
    for start in range(0, len(data), BATCH):
        state, _ = method.update(state, data[start : start + BATCH])
        count = start + BATCH
        if count >= rows and not (count - rows) % (rows // 8):
            if angle(method.finalize(state).vectors.T, data.shape[1]) <= sought:
                return count
    return None


def angle(directions: np.ndarray, d: int) -> float:
    return max_sin_theta(np.linalg.qr(directions.T)[0], np.eye(d, K))


ROWS = (
    Row(
        name="stream-rows",
        what="rows a second / scikit-learn's IncrementalPCA, to 1.05 times its angle, d = 1000, k = 10",
        target=5.0,
        run=measure,
    ),
)
