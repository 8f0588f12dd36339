"""How much memory this run really took: this process and everything below it, from the kernel's own figures."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import Self

import psutil

INTERVAL = 0.05  # seconds

# What stands in the command line of a process below this one, and what a person calls it. The first that fits.
ROLES = (
    ("multiprocessing.resource_tracker", "resource tracker"),
    ("multiprocessing.forkserver", "fork server"),
    ("--multiprocessing-fork", "worker"),
    ("multiprocessing.spawn", "worker"),
    ("prefect.server", "prefect server"),
    ("prefect server", "prefect server"),
    ("prefect", "prefect"),
)


@dataclass(frozen=True, kw_only=True)
class ProcessPeak:
    """The largest resident memory of one process of the run; ``name`` is its role (driver, worker, ...)."""

    pid: int
    name: str
    peak_rss_bytes: int


def tree_rss() -> int:
    """Resident bytes of this process and of all processes below it (worker processes, a Prefect server)."""
    total = int(psutil.Process().memory_info().rss)
    for child in below():
        try:
            total += int(child.memory_info().rss)
        except psutil.Error:
            continue  # it ended between the two calls
    return total


def below() -> list[psutil.Process]:
    """Every process below this one. psutil asks all processes of the machine for their parents: 2 to 3 ms a time."""
    found, open_ = [], [os.getpid()]
    while open_:
        for pid in _children(open_.pop()):
            open_.append(pid)
            try:
                found.append(psutil.Process(pid))
            except psutil.Error:
                continue  # it ended between the two calls
    return found


def _children(pid: int) -> list[int]:
    """What the kernel lists as children of a process, by each of its threads; none of one that has ended."""
    listed: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                listed += map(int, file.read().split())
    except FileNotFoundError:
        if pid == os.getpid() and not os.path.exists(f"/proc/{pid}/task/{pid}/children"):
            return [child.pid for child in psutil.Process().children()]  # a kernel without these lists
    except ProcessLookupError:
        return listed
    return listed


class PeakMeter:
    """Samples the resident memory of the process tree in the background, process by process.

    The kernel keeps a high-water mark of every process, so that no short peak of one is missed: of this process
    since ``__enter__``, of a process that was started later since its start. A process that was there before
    (a Prefect server) has a past that is not this run's: of that one, what the samples saw.
    """

    def __init__(self) -> None:
        self._peak = 0
        self._before: set[int] = set()  # not by their times: those of the kernel are off by up to a second
        self._seen: dict[int, ProcessPeak] = {}
        self._forked: set[int] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="peak-meter", daemon=True)

    def __enter__(self) -> Self:
        _reset_high_water()
        self._before = {child.pid for child in below()}
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            self._sample()
            if self._stop.wait(INTERVAL):
                return

    def _sample(self) -> None:
        total = int(psutil.Process().memory_info().rss)
        for child in below():
            try:
                rss = int(child.memory_info().rss)
                mark = 0 if child.pid in self._before else high_water(child.pid)
                if self._keep(child, max(rss, mark), whole=mark > 0):
                    total += rss
            except (psutil.Error, OSError):
                continue  # it ended between the two calls
        self._peak = max(self._peak, total)

    def _keep(self, child: psutil.Process, rss: int, *, whole: bool) -> bool:
        """Whether it counts: between fork and exec a child has the pages of its parent, which are counted there.

        ``whole``: a high-water mark, which holds all that was before, and never falls but at an exec.
        """
        held = self._seen.get(child.pid)
        if held is None and self._just_forked(child):
            return False
        if held is None or whole or rss > held.peak_rss_bytes:
            # Name and mark are taken again: between fork and exec a child still has those of its parent.
            self._seen[child.pid] = ProcessPeak(pid=child.pid, name=role_of(child), peak_rss_bytes=rss)
        return True

    def _just_forked(self, child: psutil.Process) -> bool:
        """It has the command line of its parent, and has it for the first time: an exec may be about to follow."""
        if child.pid in self._forked:
            return False
        parent = child.parent()
        if parent is None or parent.cmdline() != child.cmdline():
            return False
        self._forked.add(child.pid)
        return True

    @property
    def peak(self) -> int:
        """Bytes of all processes together, so far."""
        return max(self._peak, high_water())

    @property
    def by_process(self) -> tuple[ProcessPeak, ...]:
        """Every process that was seen, this one (the driver) first, then the largest."""
        mine = ProcessPeak(pid=psutil.Process().pid, name="driver", peak_rss_bytes=high_water())
        return (mine, *sorted(list(self._seen.values()), key=lambda seen: (-seen.peak_rss_bytes, seen.pid)))


def role_of(process: psutil.Process) -> str:
    """What a process below this one does here, as far as its command line tells."""
    line = " ".join(process.cmdline())
    return next((name for mark, name in ROLES if mark in line), str(process.name()))


def high_water(pid: int | None = None) -> int:
    """The kernel's high-water mark of a process (this one if None), bytes; 0 if it has none (it just ended)."""
    with open(f"/proc/{pid or 'self'}/status") as status:
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
