"""Trials of the figures: a run that was stopped goes on, processes change nothing, figures share what is the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import paper_kdppca
from benchmarks.kdppca_trials import FIRST_SEED, Trials, Work, done
from npmdask.experiments.figures import FIGURES, Setting

SMALL = Setting(n=300, d=8, sigma=0.1)
NAMES = ("exact", "dp-gauss-1", "tight")
RELATION = "record_replace"


def made(path: Path | None, count: int, jobs: int = 1) -> Trials:
    trials = Trials(path)
    for work, found in done(list(trials.missing(RELATION, SMALL, NAMES, count)), jobs):
        trials.add(work, found)
    return trials


def test_a_run_that_was_killed_while_it_wrote_goes_on(tmp_path: Path) -> None:
    """Cut at every byte of the last line. Fails where half a number counts, or the next line is glued to it."""
    whole, cut = tmp_path / "whole.csv", tmp_path / "cut.csv"
    expected = made(whole, 3).zetas
    text = whole.read_bytes()
    last = text[:-1].rfind(b"\n") + 1
    for end in range(last, len(text)):
        cut.write_bytes(text[:end])
        trials = Trials(cut)
        work = list(trials.missing(RELATION, SMALL, NAMES, 3))
        assert [(one.seed, one.names) for one in work] == [(FIRST_SEED + 2, NAMES[-1:])]
        trials.add(work[0], {NAMES[-1]: expected[RELATION, SMALL, NAMES[-1]][FIRST_SEED + 2]})
        assert Trials(cut).zetas == expected and cut.read_bytes() == text


@pytest.mark.parametrize("left", [b"", b"relation,n,d"])
def test_a_file_without_its_head_is_begun_again(left: bytes, tmp_path: Path) -> None:
    path = tmp_path / "trials.csv"
    path.write_bytes(left)
    assert made(path, 1).zetas == Trials(path).zetas != {}


@pytest.mark.slow
def test_processes_change_nothing() -> None:
    assert made(None, 4, jobs=2).zetas == made(None, 4).zetas


def test_a_trial_of_another_setting_relation_or_seed_is_another() -> None:
    """Fails where a trial is found under less than all that it depends on."""
    trials = Trials()
    trials.add(Work(RELATION, SMALL, FIRST_SEED, NAMES), dict.fromkeys(NAMES, 0.5))
    assert not list(trials.missing(RELATION, SMALL, NAMES, 1)) and len(list(trials.missing(RELATION, SMALL, NAMES, 2)))
    others = [replace(SMALL, **{name: value}) for name, value in (("n", 301), ("d", 9), ("k", 1), ("gap", 4.0))]
    for other in (*others, replace(SMALL, sigma=0.2), replace(SMALL, data="gaussian")):
        assert list(trials.missing(RELATION, other, NAMES, 1)) and not trials.of(RELATION, other, NAMES)
    assert list(trials.missing("record_zero_out", SMALL, NAMES, 1))


def test_methods_are_compared_on_the_same_trials() -> None:
    """Fails where a method that has more trials brings them all."""
    trials = Trials()
    trials.add(Work(RELATION, SMALL, FIRST_SEED, NAMES), {"exact": 0.1, "tight": 0.2})
    trials.add(Work(RELATION, SMALL, FIRST_SEED + 1, NAMES), {"exact": 0.3})
    assert trials.of(RELATION, SMALL, ("exact", "tight")) == {"exact": [0.1], "tight": [0.2]}
    assert trials.of(RELATION, SMALL, ("exact",)) == {"exact": [0.1, 0.3]}


@pytest.mark.slow
def test_figures_share_trials_and_a_part_of_a_grid_can_be_made(tmp_path: Path) -> None:
    """2c needs of 1a's points the two k-DP-Ojas alone. Fails where --largest is forgotten, or trials are made again."""
    base, grid = Setting(n=300, d=8), (300, 400, 500)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("1a", "2c"):
            patch.setitem(FIGURES, name, replace(FIGURES[name], quick=grid, quick_base=base))
        command = ["--quick", "--trials", "2", "--folder", str(tmp_path), "--largest", "400"]
        paper_kdppca.main([*command, "--figure", "1a"])
        before = (tmp_path / "trials.csv").read_text()
        points = paper_kdppca.read_csv(tmp_path / "figure-1a.csv")
        assert {point.n for point in points} == {300, 400} and all(point.trials == 2 for point in points)
        paper_kdppca.main([*command, "--figure", "2c"])
    text = (tmp_path / "trials.csv").read_text()
    added = text.removeprefix(before).splitlines()
    assert text.startswith(before) and len(added) == 8 and all("k-dp-ojas" in line for line in added)


@pytest.mark.slow
def test_methods_that_are_measured_again_replace_their_lines_alone(tmp_path: Path) -> None:
    """Their trials may be more or fewer. Fails where lines of others go, are made again, or move."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(FIGURES, "1a", replace(FIGURES["1a"], quick=(300, 400), quick_base=Setting(n=300, d=8)))
        command = ["--quick", "--folder", str(tmp_path), "--figure", "1a"]
        paper_kdppca.main([*command, "--trials", "2"])
        before = paper_kdppca.read_csv(tmp_path / "figure-1a.csv")
        (tmp_path / "trials.csv").unlink()
        paper_kdppca.main([*command, "--trials", "3", "--methods", "k-dp-pca", "dp-power"])
    after = paper_kdppca.read_csv(tmp_path / "figure-1a.csv")
    assert [(point.n, point.method) for point in after] == [(point.n, point.method) for point in before]
    for old, new in zip(before, after, strict=True):
        assert (new.trials == 3) if new.method in ("k-dp-pca", "dp-power") else new == old
    assert len((tmp_path / "trials.csv").read_text().splitlines()) == 1 + 2 * 3 * 2
