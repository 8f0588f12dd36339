"""One contestant in a process of its own: ``samples.py '{"contestant": ..., "zarr": ..., "npy": ..., ...}'``.

With ``setting`` it solves once and says seconds, sin(theta) and peak memory; with ``goal`` it walks up its
ladder until sin(theta) is small enough and says which setting that was. The answer is one JSON line.
"""

from __future__ import annotations

import json
import sys
import threading
import time
import warnings
from contextlib import suppress
from typing import Any

import numpy as np
from contestants import CONTESTANTS, LADDERS


def max_sin_theta(basis: np.ndarray, target: np.ndarray) -> float:
    """The largest sine of the principal angles; the basis is orthonormalised in float64 first."""
    if not np.isfinite(basis).all():
        return 1.0
    q = np.linalg.qr(basis.astype(np.float64))[0]
    return float(min(1.0, np.linalg.svd(target - q @ (q.T @ target), compute_uv=False)[0]))


def status(key: str) -> int:
    """Bytes of a line of /proc/self/status."""
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key + ":"))


class AnonymousPeak:
    """Peak of the memory that is ours alone: pages of a memory map can be taken back and are not counted."""

    def __init__(self) -> None:
        self.peak, self._stop = 0, threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> AnonymousPeak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        stopped = False
        while not stopped:
            self.peak = max(self.peak, status("RssAnon"))
            stopped = self._stop.wait(0.02)


def solve(job: dict[str, Any], setting: Any) -> dict[str, Any]:
    """Once, imports not counted."""
    CONTESTANTS[job["contestant"]](job | job["small"], setting)  # imports and first-call compilation
    with AnonymousPeak() as meter:
        start, cpu = time.perf_counter(), time.process_time()
        basis, facts = answer(job, setting)
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    return {
        "setting": setting,
        "seconds": seconds,
        "cpu_seconds": cpu,
        "max_sin_theta": max_sin_theta(basis, np.load(job["truth"])[:, : job["k"]]),
        "peak_rss_bytes": status("VmHWM"),
        "peak_anonymous_bytes": meter.peak,
        **facts,
    }


def answer(job: dict[str, Any], setting: Any) -> tuple[np.ndarray, dict[str, Any]]:
    """The basis, and what else the contestant says."""
    found = CONTESTANTS[job["contestant"]](job, setting)
    return found if isinstance(found, tuple) else (found, {})


def search(job: dict[str, Any]) -> dict[str, Any]:
    """The cheapest setting of the ladder that reaches the goal, or the most accurate one before it broke."""
    ladder, truth = LADDERS[job["contestant"]], np.load(job["truth"])[:, : job["k"]]
    tried: list[tuple[float, Any, float]] = []
    with suppress(np.linalg.LinAlgError):
        answer(job, ladder[0])  # imports and first-call compilation: the whole data do not take them so many times
    broke, deadline = "", time.perf_counter() + job["patience"]
    for setting in ladder:
        start = time.perf_counter()
        try:
            angle = max_sin_theta(answer(job, setting)[0], truth)
        except np.linalg.LinAlgError as error:  # what an iterate without normalisation comes to in the end
            broke = f"setting {setting}: {error}"
            break
        tried.append((angle, setting, time.perf_counter() - start))
        if angle <= job["goal"] or time.perf_counter() > deadline:
            break
    angle, setting, seconds = min(tried)
    reached = angle <= job["goal"]
    return {
        "reached": reached,
        "setting": setting,
        "ladder": ladder[ladder.index(setting) :],
        "max_sin_theta": angle,
        "seconds": seconds,
        "broke": broke,
        "out_of_time": not (reached or broke) and tried[-1][1] != ladder[-1],
    }


def main(job: dict[str, Any]) -> None:
    warnings.simplefilter("ignore")
    print(json.dumps(search(job) if "goal" in job else solve(job, job["setting"])))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
