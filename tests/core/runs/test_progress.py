"""How far a run is and how long it takes: what is said, when, and that it never says more than is known."""

from __future__ import annotations

import io
import os
import random
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import npmdask
from npmdask.core.runs.observers import Observer
from npmdask.core.runs.progress import (
    LEAST_SECONDS,
    LINE_SECONDS,
    ProgressBar,
    Work,
    _drawn,
    _Lines,
    approximate_time,
    duration,
    with_progress,
)
from tests.conftest import planted


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def one_pass(work: Work, clock: Clock, number: int, seconds: float, total: int = 1000, before: int = 0) -> None:
    """A pass in ten parts and its step; ``before``: bytes that an earlier process has read of it."""
    work.begin_pass(f"step {number}", total)
    work.add(before)
    for _ in range(10):
        clock.now += seconds / 10
        work.add((total - before) // 10)
    work.end_pass(number)


def test_a_resumed_run_starts_where_it_was() -> None:
    clock = Clock()
    work = Work(clock)
    work.begin(3, 7, "pass")
    assert work.fraction == 3 / 7 and work.left() == ""
    work.begin_pass("step 4", 1000)
    work.add(600)  # done before the kill
    assert work.fraction == pytest.approx(3.6 / 7)
    assert work.head() == "pass 4 of about 7"
    clock.now += 4.0
    work.add(200)  # a fifth of the pass in 4 s: 20 s each, and not 5
    assert work.seconds_left == pytest.approx(20 * 3.2)
    assert work.detail() == "80 % of this pass, 0.00 of 0.00 MB at 0.00 GB/s"
    assert work.bytes == 200


def test_nothing_is_said_of_the_time_before_it_is_known() -> None:
    clock = Clock()
    work = Work(clock)
    work.begin(0, 7, "pass")
    work.begin_pass("step 1", 1000)
    work.add(0)
    clock.now += LEAST_SECONDS / 2
    work.add(500)
    assert work.left() == ""  # too early
    clock.now += 60
    assert work.left() != ""
    unknown = Work(clock)
    unknown.begin(0, None, "pass")
    one_pass(unknown, clock, 1, 30.0)
    assert (unknown.head(), unknown.left(), unknown.fraction) == ("pass 1", "", None)


def test_a_run_that_takes_longer_than_was_expected_says_so_and_no_time() -> None:
    clock = Clock()
    work = Work(clock)
    work.begin(0, 2, "pass")
    for number in (1, 2):
        one_pass(work, clock, number, 5.0)
    work.begin_pass("step 3", 1000)
    assert work.head() == "pass 3, 2 were expected"
    assert (work.left(), work.fraction) == ("", None)


@pytest.mark.parametrize("seed", range(5))
def test_the_time_left_does_not_jump(seed: int) -> None:
    """Passes of half to twice the usual time; a display four times a second. What is said falls, on the whole, by the
    second; it fails where the measured time is said as it is.
    """
    rng, clock = random.Random(seed), Clock()
    work, said = Work(clock), list[tuple[float, float]]()
    work.begin(0, 40, "pass")
    for number in range(1, 41):
        seconds = 10.0 * 2 ** rng.uniform(-1, 1)
        work.begin_pass(f"step {number}", 1000)
        work.add(0)
        for _ in range(40):
            clock.now += seconds / 40
            work.add(25)
            if (left := work.seconds_left) is not None:
                said.append((clock.now, left))
        work.end_pass(number)
    assert len(said) > 1000
    jumps = [abs(b - a + (after - before)) / max(a, 10.0) for (before, a), (after, b) in pairwise(said)]
    assert max(jumps) < 0.1
    end = clock.now
    late = [abs(now + left - end) / (end - now) for now, left in said if 0.25 * end < now < 0.75 * end]
    assert max(late) < 0.6  # and it is still about the time that it takes


def test_of_a_private_run_neither_time_nor_size_is_said() -> None:
    """Only how many releases are made, whose number is public."""
    clock = Clock()
    work = Work(clock)
    work.begin(0, 10, "release")
    for number in (1, 2, 3):
        one_pass(work, clock, number, 20.0)
    work.begin_pass("step 4", 0)
    assert work.line() == "release 4 of 10"
    work.end_pass(10)
    assert work.summary() == "done: 10 releases"


def test_a_pass_of_its_own_after_a_stage_is_not_taken_for_a_step_of_it() -> None:
    clock = Clock()
    work = Work(clock)
    work.begin_stage("whitening: leading pairs of the second moment")
    work.begin(0, 5, "pass")
    one_pass(work, clock, 1, 10.0)
    assert work.line() == "whitening: pass 1 of about 5; about 40 s left of this stage"
    work.begin(0, None, "pass")
    work.begin_pass("triples", 1000)
    work.add(0)
    clock.now += 30.0
    work.add(500)
    assert work.line().startswith("one pass (triples); 50 % of this pass")
    assert work.line().endswith("about 30 s left of this pass")
    assert work.summary() == "done in 40.0 s: 0.0 MB read"


def test_the_passes_of_a_refinement_are_one_bar() -> None:
    """Each pass is a stage of its own to whatever writes a log, and all of them are one to a person."""
    clock = Clock()
    work = Work(clock)
    for number in (1, 2, 3):
        work.begin_stage(f"refinement: EM, pass {number} of at most 5")
        work.begin(number - 1, 5, "pass")
        work.begin_pass(f"refinement-{number}", 1000)
        work.add(0)
        assert work.fraction == (number - 1) / 5
        assert work.left() == ("" if number == 1 else f"about {10 * (6 - number)} s left of this stage")
        clock.now += 10.0
        work.add(1000)
    assert work.head() == "refinement: pass 3 of about 5"
    work.begin_stage("quality: coherence and perplexity of the topics")
    assert (work.head(), work.fraction, work.left()) == ("quality: coherence and perplexity of the topics", None, "")


def test_rows_are_counted() -> None:
    clock = Clock()
    work = Work(clock)
    work.begin(1000, 11000, "row")
    clock.now += 10.0
    work.reach(3000)
    assert work.line() == "3,000 of 11,000 rows; about 40 s left"
    work.begin(0, None, "row")
    clock.now += 10.0
    work.reach(500)
    assert work.line() == "500 rows"


def test_where_there_is_no_terminal_a_line_comes_every_ten_seconds_at_most(capsys: Any) -> None:
    clock = Clock()
    work, lines = Work(clock), _Lines(clock)
    work.begin(0, 100, "pass")
    for number in range(1, 101):
        clock.now += 0.35
        work.begin_pass(f"step {number}", 10)
        lines.changed(work)
    out, err = capsys.readouterr()
    assert out == "" and len(err.splitlines()) == int(35 / LINE_SECONDS)
    assert err.startswith("pass 29 of about 100")


@pytest.mark.parametrize("ascii_only", [False, True])
def test_no_line_is_wider_than_the_terminal(ascii_only: bool) -> None:
    clock = Clock()
    work = Work(clock)
    work.begin_stage("search: does a run of 20 columns reach 0.9?")
    work.begin(0, 1000, "pass")
    one_pass(work, clock, 1, 100.0)
    work.begin_pass("step 2", 10**12)
    work.add(0)
    clock.now += 50
    work.add(5 * 10**11)
    for width in range(1, 130):
        lines = [line for line, _ in _drawn(work, width, ascii_only=ascii_only)]
        assert len(lines) == 2 and max(map(len, lines)) <= max(width - 1, 1)
    wide = [line for line, _ in _drawn(work, 120, ascii_only=ascii_only)]
    assert ("=" if ascii_only else "━") in wide[1] and "left of this stage" in wide[0]
    assert not ascii_only or all(line.isascii() for line in wide)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (3, "a few seconds"),
        (47, "about 50 s"),
        (56, "about 1 min"),
        (130, "about 2 min"),
        (3590, "about 1 h"),
        (3600 * 1.5, "about 1 h 30 min"),
        (3600 * 11.7, "about 12 h"),
    ],
)
def test_times_that_are_estimates_are_coarse(seconds: float, said: str) -> None:
    assert approximate_time(seconds) == said


def test_times_that_were_measured() -> None:
    assert [duration(s) for s in (3.21, 250, 59.99, 7500)] == ["3.2 s", "4 min 10 s", "60.0 s", "2 h 05 min"]


def test_a_reader_that_is_gone_ends_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a broken pipe nor a stderr that is closed."""
    read, write = os.pipe()
    os.close(read)
    broken = os.fdopen(write, "w")
    closed = io.StringIO()
    closed.close()
    for gone in (broken, closed, None):
        monkeypatch.setattr("sys.stderr", gone)
        bar = ProgressBar(verbose=True)
        bar.on_stage("a stage")
        bar.on_begin(0, 3, "pass")
        bar.on_pass("step 1", 100, 1)
        bar.close("done")
    monkeypatch.undo()
    try:
        broken.close()
    except BrokenPipeError:
        pass


@pytest.mark.slow
def test_quiet_says_nothing_and_verbose_every_step(capsys: Any) -> None:
    a = planted(200, 20, np.geomspace(1, 1e-3, 20))[0]
    npmdask.top_k(a, 2, observer=ProgressBar(quiet=True, verbose=True))
    assert capsys.readouterr() == ("", "")
    found = npmdask.top_k(a, 2, algorithm="power", observer=ProgressBar(verbose=True))
    err = capsys.readouterr().err
    assert err.startswith("plan: ") and err.count("\nstep ") == found.steps


@pytest.mark.slow
def test_a_call_shows_its_end_and_the_given_observer_still_hears_everything(capsys: Any) -> None:
    class Steps(Observer):
        heard = 0

        def on_step(self, step: Any) -> None:
            self.heard += 1

    a = planted(200, 20, np.geomspace(1, 1e-3, 20))[0]
    steps = Steps()
    found = npmdask.top_k(a, 2, algorithm="power", observer=steps, progress=True)
    said = capsys.readouterr().err
    assert steps.heard == found.steps
    assert said.startswith("done in ") and f": {found.total_data_passes} passes" in said and said.count("\n") == 1
    npmdask.top_k(a, 2)
    assert capsys.readouterr().err == ""


def test_an_error_leaves_no_end_behind(capsys: Any) -> None:
    with pytest.raises(KeyboardInterrupt), with_progress(None, True):
        raise KeyboardInterrupt
    assert capsys.readouterr().err == ""


def test_a_notebook_gets_one_output_that_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an IPython with a kernel; the real one was tried by hand, with nbclient."""
    shown = list[tuple[str, dict[str, str]]]()

    class Handle:
        def update(self, data: dict[str, str], raw: bool) -> None:
            shown.append(("replaced", data))

    def display(data: dict[str, str], raw: bool, display_id: bool) -> Handle:
        shown.append(("made", data))
        return Handle()

    shell = SimpleNamespace(kernel=object())
    fake = SimpleNamespace(get_ipython=lambda: shell, display=SimpleNamespace(display=display))
    monkeypatch.setitem(__import__("sys").modules, "IPython", fake)
    a = planted(200, 20, np.geomspace(1, 1e-3, 20))[0]
    npmdask.top_k(a, 2, algorithm="power", progress=True)
    assert [how for how, _ in shown].count("made") == 1 and shown[0][0] == "made"
    assert shown[-1][1]["text/plain"].startswith("done in ")
    assert "<progress" in shown[-1][1]["text/html"]
    with pytest.raises(ZeroDivisionError), with_progress(None, True) as told:
        told.on_begin(2, 7, "pass")
        told.on_pass("step 3", 100, 1)
        raise ZeroDivisionError
    assert shown[-1][1]["text/plain"] == "stopped at pass 3 of about 7 (ZeroDivisionError)"
