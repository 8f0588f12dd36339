"""One thread of BLAS, wherever numbers are made that must have the same bits with any number of cores."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from threadpoolctl import get_cached_controller


class _OneThread:
    """The limit of one BLAS thread, held from the first who enters to the last who leaves.

    ``threadpool_limits`` puts back what it found: of two runs in two threads, the first to end would give the other
    one all cores in its midst. (Where the last to leave is another thread than the first to enter, threadpoolctl may
    refuse to put anything back, and the process stays with one thread: slower, never wrong.)
    """

    def __init__(self) -> None:
        self._lock, self._inside, self._limits = threading.Lock(), 0, ExitStack()
        self._limited: Any = None

    def enter(self) -> None:
        # The libraries are looked for again only after an import: that takes a millisecond and more.
        libraries = get_cached_controller()
        with self._lock:
            if not self._inside or libraries is not self._limited:
                self._limits.enter_context(libraries.limit(limits=1))
                self._limited = libraries
            self._inside += 1

    def leave(self) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._limits.close()


_ONE_THREAD = _OneThread()


@contextmanager
def single_threaded_blas() -> Iterator[None]:
    """BLAS on one thread: its blocking, and so the last bits of QR, depend on the number of threads."""
    _ONE_THREAD.enter()
    try:
        yield
    finally:
        _ONE_THREAD.leave()
