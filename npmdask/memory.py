"""How much memory this run really took: this process and everything below it, from the kernel's own figures."""

from __future__ import annotations

import threading
from typing import Self

import psutil

INTERVAL = 0.05  # seconds


def tree_rss() -> int:
    """Resident bytes of this process and of all processes below it (worker processes, a Prefect server)."""
    me = psutil.Process()
    total = int(me.memory_info().rss)
    for child in me.children(recursive=True):
        try:
            total += int(child.memory_info().rss)
        except psutil.Error:
            continue  # it ended between the two calls
    return total


class PeakMeter:
    """Samples the resident memory of the process tree in the background; the own process's peak is exact.

    ``/proc/self/status`` keeps the high-water mark of this process, so that no short peak is missed.
    """

    def __init__(self) -> None:
        self._peak = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="peak-meter", daemon=True)

    def __enter__(self) -> Self:
        _reset_high_water()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        while True:
            self._peak = max(self._peak, tree_rss())
            if self._stop.wait(INTERVAL):
                return

    @property
    def peak(self) -> int:
        """Bytes, so far."""
        return max(self._peak, high_water())


def high_water() -> int:
    """The kernel's high-water mark of this process, bytes."""
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def _reset_high_water() -> None:
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    except OSError:
        return  # not permitted here: the mark of the whole process life is used, which is never too small
