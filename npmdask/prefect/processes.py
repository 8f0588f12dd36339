"""Real processes that belong together: started in order, each only when the one before it answers, kept up, ended.

What dies is started again (after 1, 2, 4 ... 30 seconds, from 1 again once it has been up for a minute); the others
keep running meanwhile. When the supervisor itself is killed the kernel kills every child with it (Linux), so
that nothing is left without a watcher. ``services.json`` in the folder says who runs; ``NAME.log`` what each printed;
both are their owner's only.
"""

import ctypes
import fcntl
import json
import os
import pwd
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from npmdask.core.storage.bundle import write_file_atomically
from npmdask.core.storage.paths import private
from npmdask.errors import RefusedError

STATE = "services.json"
LOCK = "serve.lock"
LONGEST_WAIT = 30.0  # seconds before something that keeps dying is started again
STEADY = 60.0  # seconds that make a start a good one
GRACE = 10.0  # seconds from SIGTERM to SIGKILL
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


@dataclass(frozen=True, kw_only=True)
class Service:
    """One process.

    Parameters
    ----------
    name : of its log and in messages.
    command : what is run, without a shell.
    ready : whether it answers; asked until it does, for at most ``patience`` seconds.
    environment : what it has besides that of the supervisor.
    stop_signal : what asks it to end.
    user : whom it runs as, where that is not who runs the supervisor (which is root then).
    final : an exit status after which it is of no use to start it again: its last line says why.
    lost_with : another service, and the exit status with which that one says that it has lost what this one knows of
        it. Then this one is ended, too, and started again when the other one answers.
    """

    name: str
    command: Sequence[str]
    ready: Callable[[], bool] = lambda: True
    environment: Mapping[str, str] = field(default_factory=dict)
    patience: float = 120.0
    stop_signal: signal.Signals = signal.SIGTERM
    user: str | None = None
    final: int | None = None
    lost_with: tuple[str, int] | None = None


@dataclass
class _RunningService:
    service: Service
    process: "subprocess.Popen[bytes]"
    started: float
    failures: int = 0  # starts in a row that did not last
    restarts: int = 0
    again_at: float | None = None  # when it is started again, once it is down


class Supervisor:
    """The processes of ``services``, from :meth:`start` (or ``with``) to :meth:`stop`."""

    def __init__(self, folder: Path | str, services: Sequence[Service], say: Callable[[str], None]) -> None:
        self.folder = Path(folder).absolute()
        self._services = tuple(services)
        self._say = say
        self._running: list[_RunningService] = []

    def __enter__(self) -> "Supervisor":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start all of them, one after the other.

        Raises
        ------
        RefusedError
            One does not come up; what was started before it is ended again.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            for service in self._services:
                self._running.append(_RunningService(service, self._launch(service), time.monotonic()))
                self._remember()
                self._wait(self._running[-1])
        except BaseException:
            self.stop()
            raise

    def watch(self, over: Callable[[], bool], interval: float = 0.5) -> None:
        """Start again what dies, until ``over`` says that it is enough.

        Raises
        ------
        RefusedError
            One has ended with its ``final`` status.
        """
        while not over():
            for one in self._running:
                self._supervise(one)
            time.sleep(interval)

    def stop(self) -> None:
        """End all of them, the last one first; returns when they are gone. Who asks once more gives them no time."""
        with _stop_signals() as asked:
            self._stop(asked)

    def _stop(self, asked: list[int]) -> None:
        for one in reversed(self._running):
            if one.process.poll() is None and not asked:
                one.process.send_signal(one.service.stop_signal)
            deadline = time.monotonic() + GRACE
            while one.process.poll() is None and not asked and time.monotonic() < deadline:
                time.sleep(0.02)
            with suppress(ProcessLookupError):
                os.killpg(one.process.pid, signal.SIGKILL)  # what it has started and left behind
            one.process.wait()
        self._running.clear()
        (self.folder / STATE).unlink(missing_ok=True)

    def pid(self, name: str) -> int:
        """The process of a service."""
        return next(one.process.pid for one in self._running if one.service.name == name)

    def _launch(self, service: Service) -> "subprocess.Popen[bytes]":
        with open(self.folder / f"{service.name}.log", "ab", opener=private) as log:
            return subprocess.Popen(
                list(service.command),
                env=os.environ | dict(service.environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_prepare_child,
                user=service.user,
                group=None if service.user is None else pwd.getpwnam(service.user).pw_gid,
                extra_groups=None if service.user is None else [],
            )

    def _wait(self, one: _RunningService) -> None:
        deadline = time.monotonic() + one.service.patience
        while not one.service.ready():
            if one.process.poll() is not None or time.monotonic() > deadline:
                raise self._refusal(one)
            time.sleep(0.1)

    def _refusal(self, one: _RunningService) -> RefusedError:
        code, log = one.process.returncode, self.folder / f"{one.service.name}.log"
        why = f"does not answer ({one.service.patience:g} s)" if code is None else f"ended with status {code}"
        return RefusedError(f"{one.service.name} {why}: {_last_line(log)} (see {log})")

    def _supervise(self, one: _RunningService) -> None:
        now = time.monotonic()
        if one.process.poll() is None:
            return
        if one.process.returncode == one.service.final:
            raise self._refusal(one)
        if one.again_at is None:
            one.failures = 0 if now - one.started > STEADY else one.failures + 1
            pause = min(2.0 ** max(one.failures - 1, 0), LONGEST_WAIT)
            one.again_at = now + pause
            self._say(
                f"{one.service.name} ended with status {one.process.returncode}; it is started again in {pause:g} s"
            )
            for other in self._running:
                if other.service.lost_with == (one.service.name, one.process.returncode):
                    other.process.kill()  # without a word to what it has started in sessions of their own: that goes on
        elif now >= one.again_at and self._is_dependency_ready(one.service):
            one.process, one.started, one.again_at = self._launch(one.service), now, None
            one.restarts += 1
            self._remember()

    def _is_dependency_ready(self, service: Service) -> bool:
        known = service.lost_with and service.lost_with[0]
        return all(one.service.ready() for one in self._running if one.service.name == known)

    def _remember(self) -> None:
        state = {
            one.service.name: {"pid": one.process.pid, "restarts": one.restarts, "command": list(one.service.command)}
            for one in self._running
        }
        text = json.dumps({"supervisor": os.getpid(), "services": state}, indent=1).encode()
        write_file_atomically(self.folder / STATE, text + b"\n", 0o600)


@contextmanager
def alone(folder: Path, remedy: str) -> Iterator[None]:
    """Hold ``folder``, which is made: two that serve it would end each other's processes.

    Raises
    ------
    RefusedError
        Another process has it; the sentence says which, and the ``remedy``.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(folder / LOCK, "a+", opener=private) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kernel lets go of it however this process ends
        except BlockingIOError:
            file.seek(0)
            who = file.read().strip()
            raise RefusedError(f"another process (pid {who}) serves {folder}: {remedy}") from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


@contextmanager
def _stop_signals() -> Iterator[list[int]]:
    """Signals that ask to end, from now on, in place of interrupts; of threads other than the first: none."""
    asked: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = {
        number: signal.signal(number, lambda signum, frame: asked.append(signum))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _prepare_child() -> None:
    """Between fork and exec: die with the supervisor. A shell's `&` leaves SIGINT ignored, and Prefect needs it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    end_with_parent()


def end_with_parent(number: int = signal.SIGKILL) -> None:
    """Let the kernel send this process a signal when the one that started it ends, however that is (Linux)."""
    if LIBC is not None:
        LIBC.prctl(1, number)  # PR_SET_PDEATHSIG


def _last_line(log: Path) -> str:
    said = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    return said[-1] if said else "it said nothing"
