"""The simulations of Wang and Anandkumar at a tiny size; what is drawn lazily has the law of the dense."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

from benchmarks import paper_tensor, tensor_page
from benchmarks.paper_page import table
from benchmarks.tensor_levels import LEAST, half_level, next_level, power_law
from benchmarks.tensor_noise import (
    adversarial,
    components,
    dense,
    power_trial,
    recovered,
    signal,
    weak,
    whitening_trial,
)
from benchmarks.tensor_online import FALLING, deflated_online, distinct_found, rows_of, samples_trial, streamed
from benchmarks.tensor_page import PAGE, tables
from benchmarks.tensor_private import (
    ITERATIONS,
    RELEASES,
    exact_epsilon,
    flat,
    input_epsilon,
    input_trial,
    printed_epsilon,
    private_trial,
)
from benchmarks.tensor_revealed import RevealedTensor, symmetric_gaussian
from benchmarks.tensor_series import SERIES
from npmdask.accounting import Budget
from npmdask.core.numerics.random import generator
from npmdask.tensors.components import unit_columns

WORDS = ("was found that stops the method", "hardest", "drawn as needed")


def contracted(tensor: np.ndarray, block: np.ndarray) -> np.ndarray:
    return np.einsum("abc,bl,cl->al", tensor, block, block)


def whole(revealed: RevealedTensor) -> np.ndarray:
    """The tensor of a RevealedTensor whose basis is complete."""
    q = revealed.basis
    assert q.shape[0] == q.shape[1]
    return np.einsum("abc,ia,jb,kc->ijk", revealed.core, q, q, q)


def test_answers_that_were_given_lazily_are_those_of_one_symmetric_tensor() -> None:
    """Questions that depend on the answers, repeat and lie in the span of earlier ones; in the end all of E is drawn.

    Mutants: new directions that forget E(q, u, u) = 0 of earlier questions, or the part of the newest answer.
    """
    d, rng = 6, generator(0, "revealed")
    revealed, asked, answers = RevealedTensor(d, rng), [], []
    for width in (1, 2, 1, 3, 2):
        block = rng.standard_normal((d, width)) if not answers else rng.permuted(answers[-1][:, :1]) + np.eye(d, width)
        block = unit_columns(np.hstack([block, block[:, :1]]))  # a column twice
        asked.append(block)
        answers.append(revealed.contraction(block))
    tensor = whole(revealed)
    for order in itertools.permutations(range(3)):
        assert np.abs(tensor - tensor.transpose(order)).max() < 1e-12
    for block, answer in zip(asked, answers, strict=True):
        np.testing.assert_allclose(answer, contracted(tensor, block), atol=1e-9)


@pytest.mark.slow
def test_the_lazy_tensor_has_the_law_of_the_dense_one() -> None:
    """Variances 1, 1/3, 1/6 by how many indices are equal, and no correlations, after questions that depend on answers.

    Mutants: 1/6 on the diagonal of a slice; answers outside Q of variance 1 and not 1/3; covariances u^T v unsquared.
    """
    rng, entries = generator(1, "revealed law"), []
    for _ in range(1200):
        revealed = RevealedTensor(3, rng)
        first = revealed.contraction(np.eye(3)[:, :1])
        revealed.contraction(unit_columns(first + 0.5))
        revealed.contraction(np.eye(3)[:, 1:])
        tensor = whole(revealed)
        entries.append([tensor[i] for i in itertools.combinations_with_replacement(range(3), 3)])
    sample = np.array(entries)
    orbit = [len(set(itertools.permutations(i))) for i in itertools.combinations_with_replacement(range(3), 3)]
    np.testing.assert_allclose(sample.var(axis=0) * orbit, 1, atol=0.2)  # 5 standard errors
    assert np.abs(np.corrcoef(sample.T) - np.eye(10)).max() < 0.15 and np.abs(sample.mean(axis=0)).max() < 0.15
    draws = np.array([symmetric_gaussian(3, rng)[0, 1] for _ in range(4000)])
    np.testing.assert_allclose(draws.var(axis=0) * [3, 3, 6], 1, atol=0.12)


def test_structured_noise_is_the_contraction_of_a_symmetric_tensor_of_its_norm() -> None:
    """The largest |Delta(u, u, u)| by a shifted power iteration is the size, and Delta(v, ., .) = 0."""
    rng, d = generator(2, "structured"), 6
    for contraction, size in ((weak(2, 0.3), 0.3), (adversarial(d, 0.2), 0.2)):
        block = unit_columns(rng.standard_normal((d, 400)))
        u, v = block[:, :1], block[:, 1:2]
        mixed = contraction(unit_columns(u + v)) * ((u + v) ** 2).sum() - contraction(u) - contraction(v)
        assert np.isclose((u.T @ mixed)[0, 0] / 2, (v.T @ contraction(u))[0, 0]), "E(u, u, v) both ways"
        for _ in range(300):
            block = unit_columns(contraction(block) + 2 * size * block)
        assert np.isclose((block * contraction(block)).sum(axis=0).max(), size, rtol=2e-3)
    np.testing.assert_allclose(
        weak(2, 0.3)(block) + signal(2)(block), contracted(dense("weak", d, 2, 0.3, rng), block), atol=1e-12
    )
    assert not weak(2, 0.3)(block)[:2].any()


def test_a_power_law_and_its_error() -> None:
    """By hand: exact points give the power, with errors from what is said of the points; scatter makes them larger."""
    x = np.array([10.0, 100.0, 1000.0])
    exact = power_law(x, 3 * x**-0.5, [0.1] * 3)
    assert np.isclose(exact.value, -0.5) and np.isclose(exact.stderr, 0.1 / (np.sqrt(2) * np.log(10)))
    assert power_law(x, [1, 4, 1], [0.01] * 3).stderr > 0.2 and np.isclose(power_law(x, [1, 4, 1], [0.01] * 3).value, 0)
    assert exact.holds(-0.45) and not exact.holds(-1.0)
    bent = power_law([*x, 10_000], [*(3 * x**-0.5), 1e9], [0.1, 0.1, 0.1, 1e6])
    assert np.isclose(bent.value, -0.5, atol=1e-6), "a point that is not known does not count"


@pytest.mark.slow
@pytest.mark.parametrize("harder", [1, -1])
def test_a_staircase_finds_where_half_succeed(harder: int) -> None:
    """Of a logistic of known middle. Mutants: ``harder`` turned round, the last step kept at 1."""
    rng, misses = generator(3, "staircase", harder + 1), []
    for _ in range(10):
        outcomes: list[tuple[float, bool]] = []
        for _ in range(60):
            level = next_level(0.0, outcomes, harder)
            outcomes.append((level, bool(rng.random() < 1 / (1 + np.exp(harder * (level - 3) / 0.2)))))
        found = half_level(outcomes, harder)
        misses.append((np.log(found.value / 8)) / found.stderr)
        assert 0.01 < found.stderr < 0.2 and abs(outcomes[-1][0] - outcomes[-2][0]) == LEAST
    assert np.sqrt(np.mean(np.square(misses))) < 2, "misses are as large as the standard errors say"


@pytest.mark.slow
def test_trials_tell_small_noise_from_large() -> None:
    for model, k in (("adversarial", 1), ("weak", 2), ("round", 2)):
        assert power_trial(model, 24, k, 0.05, 0) and not power_trial(model, 24, k, 20.0, 0), model
    assert whitening_trial("round", 12, 2, 1e-4, 0) and not whitening_trial("round", 12, 2, 5.0, 0)
    assert private_trial(64, 1e-3, 0) and not private_trial(64, 1.0, 0)
    assert input_trial(64, 1e-4, 0) and not input_trial(64, 1.0, 0)
    assert samples_trial(16, 1000, 0) and not samples_trial(16, 10, 0)
    vectors = components(signal(3), 10, 3, seed=0)
    assert recovered(vectors, 3) and not recovered(-vectors, 3) and not recovered(vectors[:, [0, 1, 1]], 3)


def test_epsilons_are_those_of_the_accounting() -> None:
    """A multiplier of sqrt(K) / mu and the printed nu, both from the noise that they add."""
    from npmdask.accounting import gdp

    weight = 2000.0
    for epsilon in (0.3, 2.0):
        mu = gdp.mu_for(epsilon, 1e-6)
        assert np.isclose(exact_epsilon(np.sqrt(RELEASES) / mu / weight), epsilon, rtol=1e-6)
        assert np.isclose(input_epsilon(1 / mu / weight), epsilon, rtol=1e-6)
        share = Budget(epsilon=epsilon, delta=1e-6).epsilon / np.sqrt(RELEASES * (4 + np.log(2e6)))
        assert np.isclose(
            printed_epsilon(np.sqrt(2 * np.log(1.25 / (1e-6 / (2 * RELEASES)))) / share / weight), epsilon
        )
    assert RELEASES == 2 * 10 * (ITERATIONS + 1)
    vectors = flat(16)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(2), atol=1e-15)
    assert np.abs(vectors).max() == np.abs(vectors).min() == 0.25


@pytest.mark.slow
def test_the_rows_have_the_third_moment_that_is_claimed_of_them() -> None:
    """Four standard errors; and our plain corrected loop ends where the project's class does on the same rows."""
    d, n = 5, 400_000
    x = rows_of(d, FALLING, generator(4, "rows"))(n)
    cubes = np.einsum("na,nb,nc->abc", x, x, x, optimize=True) / n
    truth = np.zeros((d,) * 3)
    truth[range(4), range(4), range(4)] = FALLING
    assert np.abs(cubes - truth).max() < 4 * np.sqrt(15 * 2**3 / n) and x.shape == (n, d)
    both = (
        streamed(8, 4000, 0).vectors,
        deflated_online(rows_of(8, (2.7, 2.7), generator(5)), 8, 4000, 2, printed=False, seed=1),
    )
    for vectors in both:
        assert recovered(vectors, 2)


@pytest.mark.slow
def test_the_printed_deflation_line_finds_the_first_component_again() -> None:
    assert distinct_found(20_000, 0, printed=False) == 4 and distinct_found(20_000, 0, printed=True) == 1


def small(patch: pytest.MonkeyPatch) -> None:
    """Every curve of two or three small points."""
    from dataclasses import replace

    for name, series in SERIES.items():
        x = (16, 24, 32) if series.vary == "d" else (1, 2, 3) if series.vary == "k" else series.x
        x = (500, 1000, 2000) if name == "error over n" else (2000,) if series.x == (50_000,) else x
        x = (16, 32) if name.startswith(("whitening", "power")) else (64, 128, 256) if name == "private" else x
        patch.setitem(SERIES, name, replace(series, x=x, fit=0))
    patch.setattr("benchmarks.tensor_series.OVER_K", 32)
    patch.setattr("benchmarks.tensor_series.OVER_N", 16)
    patch.setattr("benchmarks.tensor_series.ROWS_OVER_D", 2000)


@pytest.mark.slow
def test_one_command_measures_goes_on_and_publishes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A killed run goes on from its lines to the same levels; plots and tables come from what is kept."""
    page = tmp_path / "page.md"
    page.write_text(PAGE.read_text())
    with pytest.MonkeyPatch.context() as patch:
        small(patch)
        patch.setattr("benchmarks.paper_page.RESULTS", tmp_path / "bench.json")
        patch.setattr(paper_tensor, "publish", lambda found: tensor_page.publish(found, page))
        command = ["--figure", "all", "--trials", "3", "--folder", str(tmp_path)]
        paper_tensor.main(command)
        kept, printed = (tmp_path / "paper_tensor.json").read_bytes(), capsys.readouterr().out
        lines = (tmp_path / "trials.csv").read_bytes().splitlines(keepends=True)
        cut = [line for line in lines if not line.startswith((b"weak;32;", b"samples;"))]
        (tmp_path / "trials.csv").write_bytes(b"".join(cut) + b"weak;32;-1.2")
        paper_tensor.main(command)
    assert (tmp_path / "paper_tensor.json").read_bytes() == kept and capsys.readouterr().out == printed
    again = paper_tensor.Trials(tmp_path / "trials.csv").of
    assert {len(outcomes) for outcomes in again.values()} == {3}, "what a kill left of a line is gone"
    for figure in paper_tensor.FIGURES:
        assert ElementTree.parse(tmp_path / f"tensor-{figure}.svg").getroot().tag.endswith("svg")
    assert "\nepsilon, private, exact |" in printed and "± " in printed


@pytest.mark.parametrize(("option", "remedy"), [("--trials=2", "at least three"), ("--jobs=0", "one process")])
def test_what_cannot_be_done_is_said(option: str, remedy: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        paper_tensor.main(["--figure", "noise", option])
    assert remedy in capsys.readouterr().err


@pytest.mark.slow
def test_the_page_shows_what_is_kept() -> None:
    """Its tables are those of the kept levels, its plots exist, and its words are not contradicted by its tables."""
    text, kept = PAGE.read_text(), paper_tensor.kept(paper_tensor.NAME)
    found = {figure: kept[figure] for figure in paper_tensor.FIGURES}
    for name, rows in tables(found).items():
        assert f"<!-- {name} -->\n{table(rows)}\n<!-- end -->" in text, name
    for plot in re.findall(r"\]\((tensor-\w+\.svg)\)", text):
        assert (PAGE.parent / plot).exists()
    assert text.count("](tensor-") == 3 and all(word in text for word in WORDS)
    holds = {row[0]: row[-1] for rows in tables(found).values() for row in rows if rows[0][-1] == "holds"}
    assert holds[SERIES["adversarial"].label] == holds[SERIES["weak"].label] == "no"
    assert holds["epsilon / ln d, private, exact"] == holds["epsilon, input perturbation, exact"] == "yes"
