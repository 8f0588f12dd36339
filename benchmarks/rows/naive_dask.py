"""``dask.array.from_zarr(A) @ X`` on ``distributed`` against our pass on the same workers, warm."""

from __future__ import annotations

from typing import Any

import dask.array as da
from distributed import Client, LocalCluster

from benchmarks import cache
from benchmarks.products import one_pass, operator_of, relative_error, start_block
from benchmarks.registry import Context, Measured, Row
from benchmarks.timing import interleaved, medians, rounded
from npmdask.cluster.workers import Processes

P = 16
SHAPES = ((1, 2), (2, 1))  # processes, threads each


def measure(context: Context) -> Measured:
    """Both shapes of the cluster; the figure is the worse ratio."""
    store = context.data["symmetric"]
    cache.warm(store)
    details: dict[str, Any] = {"p": P}
    failures: list[str] = []
    ratios = []
    for workers, threads in SHAPES:
        seconds, error = _compare(store, context.rounds, workers, threads)
        middle = medians(seconds)
        ratios.append(middle["dask"] / middle["npmdask"])
        details[f"{workers} x {threads}"] = {
            "ratio": round(ratios[-1], 3),
            "seconds": rounded(seconds),
            "relative_error": {"npmdask against dask": error},
        }
        failures += [f"products differ by {error:.1e} on {workers} x {threads}"] if error > 1e-4 else []
    why = "the worse of the two clusters counts; the product itself takes the same time in both"
    return Measured(min(ratios), details, why, tuple(failures))


def _compare(store: Any, rounds: int, workers: int, threads: int) -> tuple[dict[str, list[float]], float]:
    """Seconds of both, and how far their products are apart. A cluster of Dask's own defaults for the naive one."""
    operator = operator_of(store, "symmetric")
    block = start_block(operator.block_rows, P)
    ours = Processes(workers, threads)
    quiet: dict[str, Any] = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0", "silence_logs": 40}
    with (
        LocalCluster(n_workers=workers, threads_per_worker=threads, **quiet) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):

        def naive() -> Any:
            return client.compute(da.from_zarr(store / "data") @ block).result()

        try:
            ways = {"dask": naive, "npmdask": lambda: one_pass(ours, operator, block)}
            error = relative_error(one_pass(ours, operator, block)[0], naive())
            return interleaved(ways, rounds), error
        finally:
            ours.close()


ROWS = (
    Row(
        name="naive-dask",
        what="`dask.array.from_zarr(A) @ X` on distributed / ours, as many workers",
        target=4.0,
        run=measure,
        data=("symmetric",),
    ),
)
