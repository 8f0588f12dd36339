"""Ctrl-C in a real terminal: a sentence, exit code 130, nothing left behind, and a store that goes on."""

from __future__ import annotations

import os
import pty
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest

from npmdask.core.checkpoint.store import RunStore
from tests.conftest import often, write_zarr

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
CONFIG = """
[source]
path = "x.zarr"
[algorithm]
name = "power"
target_rank = 10
iteration_rank = 10
max_steps = 100000
[stop]
tol = 1e-15
[run]
threads = 1
workers = {workers}
"""


def write_long(path: Path) -> None:
    """Data without a gap in their spectrum: no machine is done with them before it is interrupted."""
    write_zarr(path, np.random.default_rng(0).standard_normal((16384, 128)), (4096, 128))


class Terminal:
    """A command in the foreground of a terminal of its own."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.said = ""
        self.pid, self._end = pty.fork()  # a session whose controlling terminal is the other end
        if self.pid == 0:
            try:
                os.chdir(folder)
                signal.signal(signal.SIGINT, signal.SIG_DFL)  # ignored, and inherited, where the tests run behind `&`
                environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "200"}
                os.execve(sys.executable, [sys.executable, *arguments], environment)
            finally:
                os._exit(127)
        self.children: set[psutil.Process] = set()

    def read(self, seconds: float = 0.1) -> bool:
        """Take what it prints; False once it has closed its end."""
        ready, _, _ = select.select([self._end], [], [], seconds)
        try:
            text = os.read(self._end, 65536) if ready else None
        except OSError:  # Linux: the other end is closed
            return False
        self.said += (text or b"").decode(errors="replace")
        return text != b""

    def wait(self, true: Callable[[], bool], seconds: float = 180) -> None:
        deadline = time.monotonic() + seconds
        while not true():
            assert self.read() and time.monotonic() < deadline, self.said

    def press_ctrl_c(self) -> None:
        self.children |= set(psutil.Process(self.pid).children(recursive=True))
        os.write(self._end, b"\x03")

    def code(self) -> int:
        deadline = time.monotonic() + 240
        while self.read():
            assert time.monotonic() < deadline, self.said
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def clean(self) -> None:
        for process in self.children:
            if process.is_running():
                process.kill()
        os.close(self._end)


def names_in(folder: Path) -> list[str]:
    return os.listdir(folder) if folder.is_dir() else []


def end_of(terminal: Terminal) -> tuple[int, str]:
    """Exit code and last line; no process is left and nothing ugly was printed."""
    try:
        code = terminal.code()
        _, left = psutil.wait_procs(terminal.children, 60)
        assert not left
    finally:
        terminal.clean()
    assert "Traceback" not in terminal.said and "Error" not in terminal.said, terminal.said
    return code, terminal.said.rstrip().splitlines()[-1].rpartition("\x1b[2K")[2]


@pytest.mark.parametrize(("workers", "times"), often([(0, 1), (2, 1), (0, 3), (2, 3)], 3))
def test_a_run_in_the_foreground(workers: int, times: int, tmp_path: Path) -> None:
    write_long(tmp_path / "x.zarr")
    (tmp_path / "c.toml").write_text(CONFIG.format(workers=workers))
    terminal = Terminal(tmp_path, "-m", "npmdask.cli.main", "run", "c.toml", "--store", "run")
    terminal.wait(lambda: any(name.isdigit() and int(name) >= 2 for name in names_in(tmp_path / "run" / "steps")))
    for _ in range(times):
        terminal.press_ctrl_c()
        time.sleep(0.02)
    code, last = end_of(terminal)
    assert code == 130 or (times > 1 and code == -signal.SIGINT), "the latter while Python ends; 130 to a shell"
    assert "everything committed is kept" in (last if times == 1 else terminal.said), "the terminal shows ^C, too"
    if times == 1:
        assert "interrupted" in last and last.endswith(f"go on with `npmdask resume {tmp_path / 'run'}`")
        assert terminal.said.count("npmdask:") == 1 and RunStore(tmp_path / "run").crashes() == (0, "")
    before = RunStore(tmp_path / "run").last_step()
    assert before is not None
    more = str(len(before[1]["history"]) + 2)
    again = Terminal(tmp_path, "-m", "npmdask.cli.main", "resume", "run", "--max-steps", more, "--quiet")
    assert end_of(again)[0] == 4, "not converged, after two steps more"


def test_sigterm_is_the_same(tmp_path: Path) -> None:
    write_long(tmp_path / "x.zarr")
    (tmp_path / "c.toml").write_text(CONFIG.format(workers=0))
    terminal = Terminal(tmp_path, "-m", "npmdask.cli.main", "run", "c.toml", "--store", "run")
    terminal.wait(lambda: any(name.isdigit() and int(name) >= 2 for name in names_in(tmp_path / "run" / "steps")))
    os.kill(terminal.pid, signal.SIGTERM)
    code, last = end_of(terminal)
    assert code == 130 and "interrupted" in last
