"""The frame of the figures: every method runs, what is written is what was measured, claims are answered honestly."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import paper_kdppca
from benchmarks.kdppca_claims import (
    CLAIMS,
    Check,
    Claim,
    Curve,
    best,
    crosses,
    falls,
    faster,
    flat,
    powers,
    times,
    worst,
)
from benchmarks.kdppca_figures import draw
from benchmarks.kdppca_page import target
from benchmarks.kdppca_trials import FIRST_SEED, Trials, errors
from benchmarks.paper_kdppca import Point, band, claims, points_of, read_csv, write_csv
from npmdask.experiments.as_printed import paper_rates
from npmdask.experiments.figures import BESIDE, FIGURES, NOT_PRIVATE, Figure, Setting, methods, power_releases
from npmdask.experiments.matrix_streams import signal_and_noise

KNOWN = methods("record_replace")
SMALL = Setting(n=2000, d=12)
TINY = Figure("1a: tiny", "n", (500, 2000), (500, 2000), FIGURES["1a"].names, SMALL, SMALL)


@pytest.fixture(scope="module")
def points() -> list[Point]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(FIGURES, "1a", TINY)
        trials = Trials()
        for setting in TINY.settings(quick=True):
            for work in trials.missing("record_replace", setting, TINY.methods, 3):
                trials.add(work, work.run())
        return list(points_of("1a", trials, "record_replace", quick=True))


@pytest.mark.slow
@pytest.mark.parametrize("data", ["signal", "gaussian"])
@pytest.mark.parametrize("k", [1, 2])
def test_every_method_gives_a_basis_and_is_reproducible(data: str, k: int) -> None:
    """zeta refuses what is not orthonormal; mutant: noise from a generator that is not named by the seed."""
    setting = replace(SMALL, data=data, k=k, sigma=0.1)
    once, again, other = (errors(setting, KNOWN, seed) for seed in (FIRST_SEED, FIRST_SEED, FIRST_SEED + 1))
    assert once == again and all(0 <= value <= 1 for value in once.values())
    assert all(once[name] != other[name] for name in KNOWN), "every trial has data and noise of its own"


@pytest.mark.slow
def test_without_privacy_nothing_is_lost(points: list[Point]) -> None:
    last = {point.method: point.zeta for point in points if point.n == 2000}
    assert last["exact"] < 1e-3 and last["oja"] < 1e-2
    assert all(last["exact"] <= zeta for zeta in last.values())
    assert KNOWN["dp-gauss-2-paper"].promise == KNOWN["oja"].promise == NOT_PRIVATE
    assert NOT_PRIVATE in KNOWN["dp-gauss-2-paper"].promise and "NOT private" in KNOWN["dp-gauss-2-paper"].label


def test_the_csv_holds_what_was_measured(points: list[Point], tmp_path: Path) -> None:
    write_csv(points, tmp_path / "figure.csv")
    assert read_csv(tmp_path / "figure.csv") == points
    assert points[0].setting == replace(SMALL, n=500) and points[0].x == 500.0


@pytest.mark.slow
def test_the_figure_shows_every_method_and_both_bounds(points: list[Point]) -> None:
    figure = draw(points, TINY.title, KNOWN)
    labels = [line.get_label() for line in figure.axes[1].get_lines()]
    assert [label for label in labels if "bound" in label] == labels[-2:]
    assert labels[:-2] == [KNOWN[name].label for name in dict.fromkeys(point.method for point in points)]


def test_the_target_is_judged_by_the_bands(points: list[Point]) -> None:
    """By hand: the best that k-DP-PCA may be over the worst that ours may be, on the same trials. A random basis of 2
    of 12 directions leaves 5/6 of the energy: zeta 0.91. Fails where means are divided, or another method's band is."""
    head, *rows = target(points)
    assert [row[1] for row in rows] == ["n = 500", "n = 2,000"] and {row[2] for row in rows} == {"3"}
    for row, n in zip(rows, (500, 2000), strict=True):
        own = {point.method: point for point in points if point.n == n}
        least = own["k-dp-pca"].zeta_low / own["tight-matched"].zeta_high
        assert row[-1] == f"{least:.2g} or more" and 0.85 < float(row[-2]) < 0.95
        for name, cell in zip(head[3:6], row[3:6], strict=True):
            key = {"ours": "tight-matched", "k-DP-PCA as printed": "k-dp-pca"}.get(name, "k-dp-pca-large")
            assert cell.startswith(f"{own[key].zeta:.3g} ({own[key].zeta_low:.3g} to ")


@pytest.mark.slow
def test_one_command_writes_both_files_and_draws_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(FIGURES, "3", replace(FIGURES["3"], quick=(8, 10), quick_base=Setting(n=300), panels=(1, 2)))
        command = ["--figure", "3", "--quick", "--trials", "2", "--folder", str(tmp_path)]
        paper_kdppca.main(command)
        table, drawn = capsys.readouterr().out, (tmp_path / "figure-3.svg").read_bytes()
        paper_kdppca.main([*command, "--draw"])
    assert capsys.readouterr().out == table and (tmp_path / "figure-3.svg").read_bytes() == drawn
    assert "\n3 | 2 | k-DP-PCA is best | no |" in table and "not measured" not in table


@pytest.mark.parametrize(
    ("option", "remedy"),
    [("--draw", "measure first"), ("--trials=0", "at least one"), ("--jobs=0", "one process")],
)
def test_what_cannot_be_done_is_said(
    option: str, remedy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        paper_kdppca.main(["--figure", "1a", "--quick", "--folder", str(tmp_path), option])
    assert remedy in capsys.readouterr().err


def test_the_band_is_students() -> None:
    """Mutant: 1.96, which is far too small for five trials."""
    middle, half = band([0.0, 1.0, 2.0, 3.0, 4.0])
    assert middle == 2 and half == pytest.approx(2.776 * math.sqrt(2.5 / 5), rel=1e-3)
    assert band([1.0]) == (1.0, math.inf)


def curve(zeta: list[float]) -> Curve:
    return Curve([1.0, 10.0, 100.0], zeta, [1 - value**2 for value in zeta])


LOW, HIGH = curve([0.1, 0.01, 0.001]), curve([0.2, 0.05, 0.01])


@pytest.mark.parametrize(
    ("check", "yes", "no"),
    [
        (best("a", ("b",)), (LOW, HIGH), (HIGH, LOW)),
        (worst("a", ("b",)), (HIGH, LOW), (LOW, HIGH)),
        (times("a", ("b",), 2), (LOW, HIGH), (LOW, curve([0.19, 0.05, 0.01]))),
        (faster(("a",), "b"), (HIGH, LOW), (LOW, HIGH)),
        (faster(("a",), "b"), (HIGH, LOW), (curve([0.1, 0.5, 1.0]), curve([0.99, 0.99, 0.99]))),
        (powers(("a",), -1.1, -0.9), (LOW, LOW), (HIGH, LOW)),
        (flat("a", 0.02), (LOW, LOW), (HIGH, HIGH)),
        (falls("a"), (LOW, LOW), (curve([0.1, 0.2, 0.01]), LOW)),
        (crosses("a", "b"), (curve([0.1, 0.05, 0.01]), HIGH), (LOW, HIGH)),
    ],
)
def test_a_claim_can_be_right_and_wrong(check: Check, yes: tuple[Curve, Curve], no: tuple[Curve, Curve]) -> None:
    claim = Claim("", ("a", "b"), check)
    assert claim.answer({"a": yes[0], "b": yes[1]})[0] == "yes"
    assert claim.answer({"a": no[0], "b": no[1]})[0] == "no"
    assert claim.answer({"a": yes[0]}) == ("not measured", "no method b")


def test_the_place_where_a_claim_fails_is_named() -> None:
    assert best("a", ("b",))({"a": LOW, "b": curve([0.2, 0.005, 0.01])}) == (False, "not at 10")


def test_every_figure_has_claims_about_methods_that_it_draws(points: list[Point]) -> None:
    """A claim about a method that no figure asks for would be "not measured" for ever."""
    assert set(CLAIMS) == set(FIGURES)
    for name, asked in CLAIMS.items():
        assert {need for claim in asked for need in claim.needs} <= {*FIGURES[name].names, *BESIDE}
    named = {name for figure in FIGURES.values() for name in figure.methods}
    assert set(KNOWN) == named
    assert "not measured" not in [row[3] for row in claims(points)[1:]]


def test_rates_and_iterations_of_the_paper() -> None:
    """By hand: appendix G; Theorem 2.4 of Hardt and Price with p = 2 k and p = k."""
    stream = signal_and_noise(10_000, 50, np.array([10.0, 5.0]), 0.1, 0)
    assert paper_rates(stream, 2)[0] == pytest.approx((2 * 10.01, 5 / math.log(1e4)))
    assert paper_rates(stream, 2)[1] == pytest.approx((2 * 5.01, 5 / math.log(1e4)))
    assert power_releases(stream, 2, 4) == math.ceil(math.log(100 * math.sqrt(50)) / (math.log(5.01 / 0.01) / 4)) == 5
    start = 100 * math.sqrt(50) / (math.sqrt(2) - 1)
    assert power_releases(stream, 2, 2) == math.ceil(math.log(start) / (math.log(5.01 / 0.01) / 4)) == 5


def test_kept_points_have_fifty_trials_but_the_largest() -> None:
    """What the page says: 50 trials, but 10 at n = 316,228, 5 at 10^6 and 6 at d = 800, and fewer of what was measured
    again; every mean inside its band, and the paper's figures are all there. Fails where a figure was drawn of fewer.
    """
    fewer = {(1_000_000, 200): 5, (316_228, 200): 10, (100_000, 800): 6}
    again = {"dp-power", "dp-power-paper", "k-dp-pca", "k-dp-ojas-paper"}
    least = {(1_000_000, 200): 3, (316_228, 200): 5, (100_000, 800): 5}
    folder = Path(paper_kdppca.__file__).parent / "results" / "kdppca"
    assert {path.stem for path in folder.glob("figure-*.csv")} == {f"figure-{name}" for name in FIGURES}
    for path in folder.glob("figure-*.csv"):
        points = read_csv(path)
        assert len({(point.setting, point.method) for point in points}) == len(points), path.name
        for point in points:
            size = point.n, point.d
            enough = point.trials >= (least if point.method in again else fewer).get(
                size, 6 if point.method in again else 50
            )
            assert enough, (path.name, point)
            assert point.zeta_low <= point.zeta <= point.zeta_high and point.promise
