"""Theory against simulation on small problems: what is proved holds, what is said to be attained is attained.

Seeds are fixed. Noise of private mechanisms is named by the bits of X and so differs where X is rounded otherwise:
bands about what they measure (private, lowrank, distributed) are five standard deviations over other keys, or more.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import paper_theory, theory_contraction, theory_distributed, theory_start, theory_streaming
from benchmarks.paper_page import kept, table
from benchmarks.paper_theory import NAME, PAGE, PARTS, measure
from benchmarks.theory_coherence import SMALL as TURNED
from benchmarks.theory_coherence import level_of
from benchmarks.theory_gapfree import excess, powers, tied
from benchmarks.theory_private_runs import errors, key, matrix, mechanism_of, release
from benchmarks.theory_runs import first_at_most, gaussian_noise, largest, sine, slope, tangent, towards_noise
from npmdask.core.numerics.random import generator
from npmdask.core.numerics.subspaces import max_sin_theta, random_orthonormal
from npmdask.theory import init_tan_quantile, npm_error_recursion

SECTIONS = (
    "contraction", "random-start", "streaming", "private", "low-rank", "power-law", "gap-free", "distributed",
    "coherence", "wang-anandkumar",
)  # fmt: skip


@cache
def small(part: str) -> dict[str, Any]:
    return measure(part, small=True)


def test_angles_are_those_of_the_diagnostics() -> None:
    basis = random_orthonormal(30, 5, generator(0))
    assert np.isclose(sine(basis, 3), max_sin_theta(basis, np.eye(30, 3)), rtol=1e-12)
    assert np.isclose(tangent(basis, 3), np.tan(np.arcsin(sine(basis, 3))), rtol=1e-9)
    assert tangent(np.eye(30, 3)[::-1], 3) == np.inf


def test_noise_has_the_norms_that_it_is_asked_for() -> None:
    """Mutant: rows of U not shrunk."""
    block = random_orthonormal(50, 4, generator(1))
    drawn = gaussian_noise(0.3, 0.01, 2, seed=0)(1, block)
    assert np.isclose(np.linalg.norm(drawn[:2], 2), 0.01) and 0.25 < np.linalg.norm(drawn, 2) <= 0.3
    pushed = towards_noise(np.linspace(2, 1, 50), 0.3, 0.02, 2, 7)(1, block)
    assert np.isclose(np.linalg.norm(pushed[2:], 2), 0.3) and np.isclose(np.linalg.norm(pushed[:2], 2), 0.02)
    huge = towards_noise(np.ones(50), 0.0, 1e9, 2, 7)(1, block) + block
    assert np.linalg.svd(huge[:2], compute_uv=False)[1] < 1e-12, "all that is inside, and not beyond"


@pytest.mark.parametrize("t", [0.01, 1.0, 30.0])
def test_one_pushed_step_is_the_recursion(t: float) -> None:
    """k = p = 1 in the plane of u_1 and u_2: equality. Mutants: a root forgotten, 1 + t^2 for its root."""
    spectrum, block = np.array([1.0, 0.7, 0.2]), np.array([[1.0], [t], [0.0]]) / np.hypot(1, t)
    g, g_u = 0.05, 0.002
    made = spectrum[:, None] * block + towards_noise(spectrum, g, g_u, 1, 1)(1, block)
    bound = npm_error_recursion(t, 1.0, 0.7, g, g_u)
    assert np.isclose(tangent(made / np.linalg.norm(made), 1), bound.value, rtol=1e-12)


def test_searches() -> None:
    assert first_at_most([3, 2, 1, 2], 2) == 1 and first_at_most([3], 2) is None
    assert np.isclose(largest(lambda x: x <= 3.7, 0.1, 1.0, 1e-6), 3.7, rtol=2e-6), "above the first bracket as well"
    assert np.isnan(largest(lambda x: False, 0.1, 1.0))
    assert np.isclose(slope([1, 10, 100], [5, 0.5, 0.05]), -1)


@pytest.mark.slow
def test_contraction_keeps_its_bounds_and_attains_the_constant_free_one() -> None:
    """Mutants: exponent 1 in theorem() (exceeded by pushed runs), a recursion with g / 2 (exceeded), noise / 2."""
    found = small("contraction")
    for run in found["runs"]:
        assert run["worst_after"] <= found["acc"], "for all l >= L"
        assert run["over_theorem"] < 1 and run["over_recursion"] < 1 + 1e-6
        assert 2 * run["needed"] < run["steps"][0], "the exponent 1/4 is far from what happens"
    runs = {(run["spectrum"], run["p"], run["noise"]): run for run in found["runs"]}
    k = found["k"]
    assert np.isclose(runs["step", k, "none"]["rate"], found["ratio"], atol=2e-3)
    assert runs["step", k, "none"]["over_recursion"] > 0.999
    assert runs["step", k, "towards u_(p+1)"]["over_recursion"] > 0.95
    assert runs["falling", 2 * k, "none"]["rate"] < 0.98 * found["ratio"], "s_{p+1} / s_k with p > k"


@pytest.mark.slow
def test_noise_five_times_as_large_as_allowed_is_borne_and_no_more() -> None:
    """At the end and at the start; mutant: the theorem's noise without its 5."""
    found = small("contraction")
    for line in found["tolerance"]:
        assert np.isclose(line["towards"], line["recursion"], rtol=0.03)
        assert 4.5 < line["towards"] / line["allowed"] < 5.1 < line["gaussian"] / line["allowed"]
    for line in found["start"]:
        assert 0.95 < line["least"] <= line["median"] < 1.1


@pytest.mark.slow
def test_random_starts_have_the_law_and_its_tail() -> None:
    """200 starts: the share below the median of the law is within 4 standard errors; powers of tails within 0.25."""
    found, scale = small("start"), theory_start.SMALL
    for d, k, p in scale.cases:
        middle = init_tan_quantile(d, k, p, 0.5, draws=20_000).value
        share = float(np.mean(theory_start.starts(d, k, p, scale.trials) < middle))
        assert abs(share - 0.5) < 4 * 0.5 / np.sqrt(scale.trials)
    for case in found["cases"]:
        assert 0.5 < case["quantiles"][0] / case["formula"] < 1.5, "the formula with tau = 1 is nearly the median"
    for tail in found["tails"]:
        assert abs(tail["exponent"] - (tail["p"] + 1 - tail["k"])) < 0.25


@pytest.mark.slow
def test_rows_of_a_stream_are_linear_in_d_and_few_rows_need_more_columns() -> None:
    found = small("streaming")
    tight, wide = found["lines"]
    for line in found["lines"]:
        assert 0.7 < line["power"] < 1.3
    assert tight["errors"][0] > wide["errors"][0] and tight["worst"][0] > wide["worst"][0]
    assert theory_streaming.rows_needed((1, 4, 16), np.array([0.9, 0.4, 0.1]), 0.2) == pytest.approx(8)
    assert theory_streaming.rows_needed((1, 4), np.array([0.9, 0.4]), 0.2) is None


@pytest.mark.slow
def test_the_error_of_private_runs_has_the_powers_of_the_bound() -> None:
    """Mutants: sqrt(L) forgotten in the share of a release, noise of a fixed entry for Hadamard's basis (d: 1/2)."""
    lines = small("private")["lines"]
    for line in lines["epsilon"]:
        assert -1.2 < line["power"] < -0.72
    for line in lines["L"]:
        assert 0.08 < line["power"] < 0.75
    for line in lines["d"]:
        low, high = (0.3, 0.75) if line["basis"] == "identity" else (-0.25, 0.29)
        assert low < line["power"] < high
    for line in lines["mu"]:
        assert 0.2 < line["power"] < 0.55
    for line in (line for varied in lines.values() for line in varied):
        assert (np.array(line["error"]) < line["formula"]).all(), "Theorem 1.3 with the constant 1"
        assert np.mean(np.divide(line["answer"], line["error"])) < 0.9, "all releases tell more than the last X"
    for varied in lines.values():
        for printed, exact in zip(varied[::2], varied[1::2], strict=True):
            assert np.mean(np.divide(exact["error"], printed["error"])) < 0.95


def test_private_runs_are_those_of_their_seed() -> None:
    given, mechanism = matrix(32, 1, 8), mechanism_of(1.0, 3, (32, 2), calibration="exact")
    once, again, other = (release(given, 1, 2, mechanism, seed) for seed in (0, 0, 1))
    assert (once.products[2] == again.products[2]).all() and (once.products[2] != other.products[2]).any()
    assert errors(given, 1, once)[0] < 0.1 and given.coherence == pytest.approx(4)
    with key("a") as first, key("b") as second:
        assert first.commitment != second.commitment


@pytest.mark.slow
def test_the_parts_of_the_low_rank_error_add_up() -> None:
    """Mutant: B from Y_L instead of Y_{L+1} (the last X does not belong to it)."""
    lines = small("lowrank")["lines"]
    for line in lines:
        assert line["used"] <= 1 + 1e-9 and line["used_of_three"] <= 1
        assert line["error"] <= line["bound"] or not line["bound_holds_anything"]
    falling, flat = ([line for line in lines if line["tail"] == tail] for tail in ("falling", "flat"))
    assert all(line["rank_k"] > 0.999 > line["error"] for line in falling), "p columns hold more than k"
    assert all(line["error"] > 0.999 for line in flat) and flat[-1]["error"] < 1.001
    for tail in (falling, flat):
        assert tail[0]["noise"] > 3 * tail[1]["noise"] > 9 * tail[2]["noise"]


@pytest.mark.slow
def test_a_power_law_takes_the_steps_that_best_q_predicts() -> None:
    """Mutants: s_q for s_{q+1} in best_q, noise towards u_{k+1} (which p columns hold)."""
    found = small("powerlaw")
    for line in found["ranks"]:
        assert line["median"] <= line["predicted"] <= 2.2 * line["median"] and line["predicted"] < line["printed"]
    medians = [line["median"] for line in found["ranks"]]
    assert medians == sorted(medians, reverse=True) and medians[0] > 5 * medians[-1]
    first, last = found["grown"]
    assert last["tight"] / last["wide"] > 2 * first["tight"] / first["wide"], "the gain grows with k"
    assert last["wide"] <= 1.5 * first["wide"], "and p = 2 k does not"
    for line in found["noise"]:
        assert np.isclose(line["towards"], line["sharp"], rtol=0.04)
        assert line["dependent"] < line["improved"] <= 1.02 * line["towards"] < line["gaussian"]


@pytest.mark.slow
def test_without_a_gap_the_residual_converges_and_the_angle_does_not() -> None:
    """Mutants: s_k above s_{k+1} in tied() (the angle falls), the residual over s_k + 1."""
    found = small("gapfree")
    for run in found["runs"]:
        assert run["worst_excess"] < 0.01 < 0.1 < run["least_sine"]
    for line, noise in zip(found["steps"], found["noise"], strict=True):
        assert line["hard"] <= line["theory"] and line["tied"] <= line["theory"]
        assert noise["allowed"] < noise["towards"] < noise["gaussian"]
    power = powers(found)
    assert -1.3 < power["hard"] < -0.6 and 0.9 < power["towards"] < 1.15
    spectrum, k = tied(40, 3), 3
    assert np.isclose(excess(spectrum, np.eye(40, 3), k), 0, atol=1e-12) and spectrum[k - 1] == spectrum[k] == 1
    assert np.isclose(excess(spectrum, np.eye(40, 4)[:, 1:], k), 1), "u_1, twice as large, is left"


@pytest.mark.slow
def test_the_error_of_nodes_grows_as_the_root_of_their_number_and_counts_are_exact() -> None:
    """Mutants: the same key in every node (power 1), noise of variance / s in each (power 0)."""
    found = small("distributed")
    for line in found["lines"]:
        assert 0.34 < line["power"] < 0.66
        expected = [found["steps"] * (s + 1) * found["p"] * found["d"] for s in found["nodes"]]
        assert line["numbers"] == expected
    for line in found["exact"]:
        assert line["basis"] < 1e-12 and line["values"] < 1e-12
        assert line["numbers"] == line["theory"] and line["broadcast"] == line["broadcast_theory"]
    given = matrix(64, 2, 64)
    parts = theory_distributed.shares(given, 3, 0)
    assert np.abs(sum(parts) - given.dense).max() < 1e-9 * given.spectrum[0]
    assert min(np.linalg.eigvalsh(part)[0] for part in parts) > -1e-9 * given.spectrum[0]


@pytest.mark.slow
def test_entries_stay_small_and_runs_turn_with_their_matrix_only_if_the_noise_does_not_follow_x() -> None:
    """Mutant: the cap left out of the last rule."""
    found = small("coherence")
    assert not any(line["exceeded"] for line in found["entries"])
    off = {line["rule"]: line["deviation"] for line in found["turned"]}
    assert max(off["fixed in advance"], off["exact, public cap"]) < 1e-12
    assert min(off["printed"], off["exact sensitivity"]) > 1e-3
    block = random_orthonormal(TURNED.turned_d, TURNED.p, generator(2))
    capped, plain = (level_of(rule, TURNED, 1.0)(block) for rule in ("exact, public cap", "exact sensitivity"))
    assert capped > 2 * plain, "what the cap costs"


@pytest.mark.slow
def test_noise_that_the_printed_theorem_allows_hides_the_component_as_d_grows() -> None:
    few, many = small("tensor")["lines"]
    seeds = small("tensor")["seeds"]
    assert few["fixed"] == few["falling"] == many["falling"] == seeds and many["fixed"] == 0
    assert few["sound"] == small("tensor")["size"] > many["sound"]


@pytest.fixture
def page(tmp_path: Path) -> Path:
    path = tmp_path / "page.md"
    path.write_text(PAGE.read_text())
    return path


@pytest.mark.slow
def test_one_command_measures_prints_keeps_and_publishes(
    page: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small runs print and keep nothing; full ones (small here) are kept, and drawn again to the same bytes."""
    monkeypatch.setattr("benchmarks.paper_page.RESULTS", page.parent / "bench.json")
    publish = paper_theory.publish
    monkeypatch.setattr(paper_theory, "publish", lambda parts, found: publish(parts, found, page))
    monkeypatch.setattr(theory_start, "FULL", theory_start.SMALL)
    before = page.read_text()
    paper_theory.main(["start", "--small"])
    assert "| power of the tail" in capsys.readouterr().out and page.read_text() == before
    assert not (page.parent / f"{NAME}.json").exists()
    paper_theory.main(["start"])
    text, plot = page.read_text(), (page.parent / "theory-start.svg").read_bytes()
    assert text != before and ElementTree.fromstring(plot).tag.endswith("svg")
    paper_theory.main(["start", "--draw"])
    assert page.read_text() == text and (page.parent / "theory-start.svg").read_bytes() == plot


@pytest.mark.slow
@pytest.mark.parametrize("part", list(PARTS))
def test_every_part_can_be_drawn(part: str) -> None:
    """Of small results: labelled axes and a legend."""
    figure = PARTS[part].figure(small(part))
    axes = [axis for axis in figure.axes if axis.get_visible()]
    assert all(axis.get_xlabel() for axis in axes) and any(axis.get_ylabel() for axis in axes)
    assert figure.legends or all(axis.get_legend() for axis in axes)


def test_the_page_shows_what_is_kept() -> None:
    """Its sections have their names, its tables are those of the kept numbers, its plots exist."""
    text, found = PAGE.read_text(), kept(NAME)
    assert tuple(re.findall(r"^## (.+)$", text, re.MULTILINE)) == SECTIONS
    for part, module in PARTS.items():
        for name, rows in module.tables(found[part]).items():
            assert f"<!-- {name} -->\n{table(rows)}\n<!-- end -->" in text, name
            assert len({len(row) for row in rows}) == 1 and not any("|" in cell for row in rows for cell in row), name
    plots = re.findall(r"\]\((theory-\w+\.svg)\)", text)
    assert plots == [f"theory-{part}.svg" for part in PARTS]
    for plot in plots:
        assert ElementTree.parse(PAGE.parent / plot).getroot().tag.endswith("svg")


def test_the_full_results_hold_what_the_page_says_of_them() -> None:
    """The sentences of the page that name a bound or a power, on the kept numbers."""
    found = kept(NAME)
    assert all(run["over_theorem"] < 1 and run["over_recursion"] < 1.001 for run in found["contraction"]["runs"])
    assert all(abs(tail["end_exponent"] - tail["p"] - 1 + tail["k"]) < 0.3 for tail in found["start"]["tails"])
    assert all(line["used"] < 1 + 1e-9 and line["used_of_three"] <= 1 for line in found["lowrank"]["lines"])
    assert not any(line["exceeded"] for line in found["coherence"]["entries"])
    assert all(0.45 < line["power"] < 0.55 for line in found["distributed"]["lines"])
    assert [line["median"] for line in found["powerlaw"]["ranks"][2:]] == [10, 7, 5, 4]
    assert 0.95 < powers(found["gapfree"])["towards"] < 1.1
    assert [line["fixed"] for line in found["tensor"]["lines"]][::4] == [20, 0]
    assert theory_contraction.TIMES == 5
