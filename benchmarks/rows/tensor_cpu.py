"""Components of a dense symmetric tensor in memory: CPU time beside TensorLy's power method, same recovery.

``python -m benchmarks.rows.tensor_cpu JOB`` is the process that ours runs in: one BLAS thread, every way
once without a clock and then some times with it. CPU seconds are those of the process, user and system.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

import npmdask
from benchmarks.children import as_child, in_child, last_json, peer_command
from benchmarks.registry import Context, Measured, Row
from benchmarks.tensor_cases import facts_of, matched, planted
from benchmarks.timing import clocked
from npmdask.core.storage.source import open_source

D, K, RESTARTS = 200, 5, 10
REPEATS = 3  # of each way in one process, after a first one
SMALL = 40  # side of a tensor whose products cost nothing: what is left are fixed costs
WEIGHTS = np.linspace(3.0, 1.0, K)
WORST = 1e-7  # error of a vector or a weight: recovered
FIXED = "npmdask, d = 40: driver, checkpoints, store"
OPENING, WITHOUT = "opening, part of every way of ours", "npmdask, without opening"
WAYS: dict[str, dict[str, Any]] = {
    "npmdask": {"restarts": RESTARTS},
    "npmdask, its own number of restarts": {},
    "npmdask, one component a round": {"restarts": RESTARTS, "harvest": False},
}


def measure(context: Context) -> Measured:
    """Ours and theirs in turns, each in a process of its own."""
    d = context.sized(40, D)
    tensor, vectors = planted(d, WEIGHTS)
    path = context.folder / "tensor.npy"
    np.save(path, tensor)
    np.save(context.folder / "vectors.npy", vectors)
    job = {"tensor": str(path), "vectors": str(context.folder / "vectors.npy")}
    runs: list[dict[str, Any]] = []
    for seed in range(min(3, context.rounds)):
        theirs = peer_command("tensor_power", {"tensor": str(path), "k": K, "repeats": RESTARTS, "seed": seed})
        runs.append(in_child("benchmarks.rows.tensor_cpu", job, folder=context.folder))
        runs[-1]["tensorly"] = _judged(last_json(theirs, folder=context.folder), vectors)
    return _summary(runs)


def _judged(said: dict[str, Any], vectors: np.ndarray) -> dict[str, Any]:
    answer = np.load(said.pop("answer"))
    found = np.sort(np.abs(answer["weights"]))[::-1]
    error, off = matched(answer["vectors"], vectors).max(), np.abs(found / WEIGHTS - 1).max()
    return said | {"vector_error": float(error), "relative_error": float(off)}


def _summary(runs: list[dict[str, Any]]) -> Measured:
    cpu = {name: [run[name]["cpu_seconds"] for run in runs] for name in runs[0]}
    middle = {name: statistics.median(values) for name, values in cpu.items()}
    theirs = middle["tensorly"]
    wrong = [
        f"{name}: {key.replace('_', ' ')} {run[name][key]:.1e}"
        for run in runs
        for name in ("tensorly", *WAYS)
        for key in ("vector_error", "relative_error")
        if not run[name][key] <= WORST
    ]
    details = {
        "times_less": {name: round(theirs / middle[name], 1) for name in (*WAYS, WITHOUT)},
        "cpu_seconds": {name: [round(value, 4) for value in values] for name, values in cpu.items()},
        "wall_seconds": {name: round(statistics.median(r[name]["wall_seconds"] for r in runs), 4) for name in WAYS},
        "tensorly": runs[0]["tensorly"],
        "ours": {name: {k: v for k, v in runs[0][name].items() if k != "cpu_seconds"} for name in WAYS},
    }
    why = (
        f"of {middle['npmdask']:.3f} CPU s {middle[OPENING]:.3f} are packing and checking the array, and "
        f"{middle[FIXED]:.3f} are spent for a small one too"
    )
    return Measured(theirs / middle["npmdask"], details, why, tuple(wrong))


def main(job: dict[str, Any]) -> dict[str, Any]:
    """Every way, on the array, and its opening apart: once without a clock, then the median of some."""
    tensor, vectors = np.load(job["tensor"]), np.load(job["vectors"])
    small = planted(SMALL, WEIGHTS)[0]
    facts: dict[str, Any] = {}
    for name, options in WAYS.items():
        solution, spent = repeated(lambda o=options: npmdask.top_k(tensor, K, kind="tensor", options=o, threads=1))
        facts[name] = facts_of(solution, vectors, WEIGHTS) | spent
    _, facts[OPENING] = repeated(lambda: open_source(tensor, "tensor"))
    _, facts[FIXED] = repeated(lambda: npmdask.top_k(small, K, kind="tensor", options=WAYS["npmdask"], threads=1))
    without = facts["npmdask"]["cpu_seconds"] - facts[OPENING]["cpu_seconds"]
    facts[WITHOUT] = {"cpu_seconds": without}
    return facts


def repeated(call: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """What a call returns, and the medians of what it cost after the first time."""
    call()
    runs = [clocked(call) for _ in range(REPEATS)]
    return runs[0][0], {key: statistics.median(spent[key] for _, spent in runs) for key in runs[0][1]}


ROWS = (
    Row(
        name="tensor-cpu",
        what="CPU time of TensorLy / ours, dense tensor in memory, d = 200, k = 5, L = 10, both recover all",
        target=100.0,
        run=measure,
    ),
)


if __name__ == "__main__":
    with threadpool_limits(limits=1):
        as_child(main)
