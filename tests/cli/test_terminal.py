"""Commands on a real terminal (a pseudo-terminal of the kernel), and where there is none."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import often

pytestmark = pytest.mark.slow

COMMAND = [sys.executable, "-m", "npmdask.cli.main"]
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
COLOUR = re.compile(r"\x1b\[(3|4|9|10)[0-9]m")
LINES = ("found", "outcome", "explained", "error", "time", "memory", "result", "next")


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "rows.npy"
    np.save(path, np.random.default_rng(0).standard_normal((3000, 40)) * np.geomspace(2, 1, 40))
    return path


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows without a gap in their spectrum: a run of thousands of steps, which no machine ends before its Ctrl-C."""
    path = tmp_path_factory.mktemp("long") / "rows.npy"
    np.save(path, np.random.default_rng(0).standard_normal((20000, 100)))
    return path


def on_terminal(
    command: list[str], folder: Path, *, columns: int = 80, interrupt_at: str = "", **environment: str
) -> tuple[int, str]:
    """The exit code and all that was written to a terminal; Ctrl-C once it shows the pattern ``interrupt_at``."""
    pid, terminal = pty.fork()
    if not pid:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        os.chdir(folder)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # ignored, and inherited, where the tests run behind `&`
        held = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        os.execvpe(command[0], command, {**held, "TERM": "xterm-256color", **environment})
    seen, until, asked = b"", time.monotonic() + 240, False
    while time.monotonic() < until:
        if not select.select([terminal], [], [], 1.0)[0]:
            continue
        try:
            part = os.read(terminal, 65536)
        except OSError:  # it ended
            break
        if not part:
            break
        seen += part
        if interrupt_at and not asked and re.search(interrupt_at.encode(), seen):
            os.write(terminal, b"\x03")
            asked = True
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), seen.decode()


def drawn(written: str) -> list[str]:
    """What was written, line by line, as if nothing had been drawn over."""
    return [line for line in re.split(r"[\r\n]+", ESCAPE.sub("", written)) if line.strip()]


def names(lines: list[str]) -> tuple[str, ...]:
    """Of the lines at the end of a run."""
    first = next(i for i, line in enumerate(lines) if line.startswith("found "))
    return tuple(line.split()[0] for line in lines[first:])


@pytest.mark.parametrize("columns", [40, 100])
def test_a_run_has_a_bar_that_goes_away_and_eight_lines(rows: Path, tmp_path: Path, columns: int) -> None:
    code, written = on_terminal(
        [*COMMAND, "run", str(rows), "-k", "3", "--center", "--algorithm", "power", "--store", "out"],
        tmp_path,
        columns=columns,
    )
    assert code == 0, written
    lines = drawn(written)
    assert any(re.match(r"pass \d+ of about \d+", line) for line in lines)
    bars = [line for line in lines if "pass " in line and not line.startswith(LINES)]
    assert bars and max(map(len, bars)) < columns
    assert names(lines) == LINES
    assert written.rindex("\x1b[?25h") > written.rindex("\x1b[?25l")  # the cursor is back
    assert written.index("\x1b[?25h") - written.index("\x1b[?25l") < 1000  # and was never away for long
    assert "\x1b[2K" in written[written.rindex("pass ", 0, written.index("found ")) :]  # the bar is wiped


def test_ctrl_c_leaves_a_clean_terminal_and_says_how_to_go_on(long_run: Path, tmp_path: Path) -> None:
    command = [*COMMAND, "run", str(long_run), "-k", "3", "--algorithm", "power", "--store", "out"]
    command += ["--tol", "1e-15", "--set", "algorithm.max_steps=100000"]
    code, written = on_terminal(command, tmp_path, interrupt_at=r"pass (?!1 )\d+ of")
    assert code == 130, written
    said = f"npmdask: interrupted, everything committed is kept; go on with `npmdask resume {tmp_path / 'out'}`"
    assert "".join("".join(drawn(written)).split()).endswith("".join(said.split()))  # a narrow terminal breaks it

    assert written.rindex("\x1b[?25h") > written.rindex("\x1b[?25l")
    committed = max(int(step.name) for step in (tmp_path / "out" / "steps").iterdir() if step.name.isdigit())
    resumed, written = on_terminal([*COMMAND, "resume", "out", "--max-steps", str(committed + 20)], tmp_path)
    assert resumed == 4
    first = next(line for line in drawn(written) if line.startswith("pass "))
    assert int(first.split()[1].rstrip(",")) >= committed > 0  # where it was, and not at the beginning


@pytest.mark.parametrize("environment", [{"TERM": "dumb"}, {"NO_COLOR": "1"}])
def test_a_dumb_terminal_gets_lines_and_no_colour_means_none(
    rows: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    command = [*COMMAND, "run", str(rows), "-k", "3", "--algorithm", "power", "--store", "out"]
    code, written = on_terminal(command, tmp_path, **environment)
    assert code == 0 and not COLOUR.search(written)
    assert bool(ESCAPE.search(written)) == ("NO_COLOR" in environment)
    assert names(drawn(written))[-1] == "next"


def test_two_threads_share_a_terminal(tmp_path: Path) -> None:
    program = (
        "import sys, time\nfrom threading import Thread\nfrom npmdask.core.runs.progress import with_progress\n"
        "def work(n):\n"
        "    with with_progress(None, True) as told:\n"
        "        told.on_begin(0, n, 'pass')\n"
        "        for i in range(10):\n"
        "            told.on_pass(f'step {i + 1}', 0, 0)\n"
        "            time.sleep(0.1)\n"
        "            print('said', flush=True) if i == 5 else None\n"
        "threads = [Thread(target=work, args=(n,)) for n in (11, 12)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]\n"
    )
    code, written = on_terminal([sys.executable, "-c", program], tmp_path)
    assert code == 0, written
    assert "Traceback" not in written
    lines = drawn(written)
    for count in (11, 12):  # what is printed draws both again, at the latest
        assert any(re.match(rf"pass ([2-9]|10) of about {count}\b", line) for line in lines), written
    assert sum(line.startswith("done in ") for line in lines) == 2 and lines.count("said") == 2


def test_what_is_piped_gets_there_while_the_bar_is_on_the_terminal(tmp_path: Path) -> None:
    """Fails where the bar takes over what is printed to stdout, wherever that goes."""
    program = tmp_path / "program.py"
    program.write_text(
        "import time\nfrom npmdask.core.runs.progress import with_progress\n"
        "with with_progress(None, True) as told:\n"
        "    told.on_begin(0, 7, 'pass')\n"
        "    time.sleep(0.5)\n"
        "    print('the answer', flush=True)\n"
        "    time.sleep(0.5)\n"
    )
    code, written = on_terminal(["sh", "-c", f"{sys.executable} {program} > answer"], tmp_path)
    assert code == 0 and "pass 1 of about 7" in written and "the answer" not in written
    assert (tmp_path / "answer").read_text() == "the answer\n"


@pytest.mark.parametrize("more", often([[], ["-v"], ["--quiet"], ["--json"]], 1, 3))
def test_without_a_terminal_there_are_no_control_characters(rows: Path, tmp_path: Path, more: list[str]) -> None:
    command = [*COMMAND, "run", str(rows), "-k", "3", "--algorithm", "power", "--store", "out", *more]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and not ESCAPE.search(done.stdout + done.stderr) and "\r" not in done.stderr
    steps = len(re.findall(r"^step \d+: ", done.stderr, re.M))
    assert (steps > 3) == (more == ["-v"])
    if more == ["--json"]:
        assert len(done.stdout.splitlines()) == 1
    else:
        lines = ("\n" + done.stdout).partition("\nfound ")[2].splitlines()
        assert len(lines) <= 8
        assert not [line for line in lines if len(line) > 40 and line[11:] in done.stderr], "each sentence is said once"
    if not more:
        together = subprocess.run(
            [*command, "--quiet"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert together.stdout.count("converged after") == 1  # said once, not on stderr as well


def test_a_reader_of_stdout_that_is_gone_is_no_error(rows: Path, tmp_path: Path) -> None:
    run = f"{' '.join(COMMAND)} run {rows} -k 2 --store out | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", run], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "0\n" and "Traceback" not in done.stderr and "Exception" not in done.stderr
    assert (tmp_path / "out" / "result").is_dir()
