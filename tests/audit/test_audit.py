"""The audit on the real release path: what is correct passes, and both ways of running it are the same."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import ks_2samp, kstest, norm

from npmdask.accounting.budget import Budget
from npmdask.accounting.gdp import mu_for
from npmdask.accounting.published_formulas import paper_stddev
from npmdask.audit import ALPHA, Finding, Interval, attacks, audit, examine, findings_table, instances, release_path
from npmdask.audit.attacks import Publication, without_noise
from npmdask.audit.audit import operator_of
from npmdask.audit.release_path import Instance, ReleasePath, orth_many
from npmdask.cli.main import main
from npmdask.core.numerics.subspaces import Block, orth
from npmdask.errors import BadInputError
from npmdask.privacy.mechanisms.gaussian_laplace import PrivateGaussian
from npmdask.privacy.mechanisms.noise_key import Entropy
from npmdask.privacy.neighbors import REGISTRY, TENSORS, make_relation
from tests.conftest import often

pytestmark = pytest.mark.slow  # many whole runs: too long for `make check`

BUDGET = Budget(8.0, 1e-6)
MU = mu_for(8.0, 1e-6)


def attaining(name: str = "symmetric_entry", steps: int = 2) -> ReleasePath:
    instance = instances(make_relation(name, clip_norm=1.0 if name.startswith("record") else 4096.0), "l2")[0]
    return release_path(instance, "gaussian", BUDGET, steps)


@pytest.mark.parametrize("relation", REGISTRY)
def test_gaussian_noise_spends_exactly_what_is_claimed(relation: str) -> None:
    """On the attaining pair: less noise fails the first line, more noise (a pair that attains less) the others."""
    found = list(audit(relations=[relation], mechanisms=["gaussian"], epsilon=8.0, steps=2, runs=800))
    (tight, wide, *others), ruled = split(found, relation)
    assert all(finding.passed for finding in found), [finding.verdict for finding in found]
    assert wide.attained <= 1 + 1e-9
    require_attained_by_images(relation, others)
    for finding in (tight, *ruled):
        assert 1 - 1e-5 < finding.attained <= 1 + 1e-9, finding.instance
        assert finding.mu is not None and MU in finding.mu and finding.mu.low > MU / 2, finding.instance


def split(found: list[Finding], relation: str) -> tuple[list[Finding], list[Finding]]:
    """Pairs of the data as they are, and of records those that are seen through a public rule."""
    ruled = [finding for finding in found if finding.instance in ("gaps", "weighted")]
    assert len(ruled) == 2 * relation.startswith("record")
    return [finding for finding in found if finding not in ruled], ruled


@pytest.mark.parametrize("relation", often([name for name in REGISTRY if name != "entry"], 0, 1, 4))
def test_a_covariance_spends_exactly_what_is_claimed(relation: str) -> None:
    """With d = 2, with d = 6, and through public rules; the mutants are in benchmarks/mutants.py."""
    found = list(audit(relations=[relation], mechanisms=["covariance"], epsilon=8.0, runs=600))
    assert len(split(found, relation)[0]) == 2
    assert all(finding.passed for finding in found), [finding.verdict for finding in found]
    assert all(1 - 1e-5 < finding.attained <= 1 + 1e-9 and finding.releases == 1 for finding in found)
    assert all(finding.mu is not None and MU in finding.mu and finding.mu.low > MU / 2 for finding in found)


def test_a_covariance_is_not_audited_where_none_is_released() -> None:
    with pytest.raises(BadInputError, match="symmetric matrices"):
        list(audit(relations=["entry"], mechanisms=["covariance"]))


@pytest.mark.parametrize("relation", often(TENSORS, 0))
def test_gaussian_noise_on_a_tensor_spends_exactly_what_is_claimed(relation: str) -> None:
    """Contractions, and scores in the last step. Mutants: L not counted; 1 for 6 on the diagonal."""
    (found,) = audit(relations=[relation], epsilon=8.0, steps=2, runs=2000)
    assert found.passed, found.verdict
    assert 1 - 1e-3 < found.attained <= 1 + 1e-9 and found.mu is not None and MU in found.mu and found.mu.low > MU / 2
    path = release_path(instances(make_relation(relation, clip_norm=4096.0), "l2")[0], "gaussian", BUDGET, 2)
    assert examine(path, BUDGET, runs=300, together=False).passed
    asked = np.array([[[1.0, -1.0]]])
    assert np.array_equal(path.following(np.array([[[0.0, 2.0]]]), asked), [[[1.0, 1.0]]]), "0 is released once in 1e5"
    with pytest.raises(BadInputError, match="choose gaussian"):
        list(audit(relations=[relation], mechanisms=["laplace"]))


def require_attained_by_images(relation: str, images: list[Finding]) -> None:
    """Up to the rounding of images, twice, and for replaced records the margin that they are too long by."""
    assert len(images) == relation.startswith("record")
    least = 0.995 if relation == "record_replace" else 1 - 1e-4
    assert all(least < finding.attained <= 1 + 1e-9 for finding in images), [finding.attained for finding in images]
    assert all(finding.mu is None or (MU in finding.mu and finding.mu.low > MU / 2) for finding in images)


@pytest.mark.parametrize("relation", REGISTRY)
def test_laplace_noise_spends_no_more_than_epsilon_and_nearly_all_of_it(relation: str) -> None:
    found = list(audit(relations=[relation], mechanisms=["laplace"], epsilon=2.0, steps=2, runs=300))
    (tight, _, *others), _ = split(found, relation)
    assert all(finding.passed for finding in found), [finding.verdict for finding in found]
    assert 0.999 < tight.attained <= 1 + 1e-9
    require_attained_by_images(relation, others)
    assert tight.mu is None and tight.epsilon_at_least <= 2.0


def test_the_likelihood_ratio_of_laplace_noise_never_leaves_epsilon(tmp_path: Path) -> None:
    """Pure epsilon holds for every transcript, not on average."""
    instance = instances(make_relation("entry", clip_norm=4096.0), "l1")[0]
    path = release_path(instance, "laplace", Budget(1.0), 3)
    ratios = attacks.likelihood_ratio(path.run("here", [Entropy.create(tmp_path / "k" / "key")], 2000), "l1")
    assert np.abs(ratios).max() <= 1 + 1e-9 < 1.001 * np.abs(ratios).max()


def test_ratios_are_the_gaussians_that_the_theory_says(tmp_path: Path) -> None:
    """N(-mu^2/2, mu^2) on A, the exact distribution: fails for noise that is wrong in size, shape or correlation."""
    transcript = attaining(steps=3).run("here", [Entropy.create(tmp_path / "k" / "key")], 2500)
    ratios = attacks.likelihood_ratio(transcript, "l2")
    assert kstest(ratios, norm(-(MU**2) / 2, MU).cdf).pvalue > ALPHA
    assert kstest(ratios * 2**0.5, norm(-(MU**2), MU).cdf).pvalue < ALPHA


@pytest.mark.slow
@pytest.mark.parametrize("relation", ["symmetric_entry", "record_replace"])
def test_one_by_one_as_the_driver_does_is_the_same_as_all_together(relation: str, tmp_path: Path) -> None:
    """Every release by itself, with a key of its own: the same queries, and ratios of the same distribution."""
    path, runs = attaining(relation), 3000
    keys = [Entropy.create(tmp_path / "k" / "key")]
    keys += [Entropy.open(tmp_path / "k" / "key", bound_to=str(i)) for i in range(1, runs)]
    single, many = path.run("there", keys, runs, together=False), path.run("there", keys, runs)
    assert np.array_equal(single[0].here, many[0].here) and np.array_equal(single[0].noise, many[0].noise)
    ratios = [attacks.likelihood_ratio(transcript, "l2") for transcript in (single, many)]
    assert ks_2samp(*ratios).pvalue > ALPHA
    assert abs(np.corrcoef(*ratios)[0, 1]) < 5 / runs**0.5
    assert examine(path, BUDGET, runs=500, together=False).passed


class HardtPrice(PrivateGaussian):
    """Noise by the formula of the paper, without the question whether it suffices."""

    def noise_stddev(self, block: Block, *, rows: int | None = None) -> float:
        return paper_stddev(self.relation.name, block, block.shape[1], self.releases, self.budget)

    def _grid_scale(self, block: Block, rows: int | None) -> int:
        return round(self.noise_stddev(block) / self.rounding.grid)


def test_the_formula_of_the_paper_is_rejected_where_it_is_unsound() -> None:
    """A symmetric pair at epsilon = 10, iterates at (1, 1) / sqrt(2); the same formula passes at epsilon = 4."""
    relation, pair = make_relation("symmetric_entry", clip_norm=2.0**20), np.array([[0.0, 0.5], [0.5, 0.0]])
    base = np.full((2, 2), 2.0**19)
    one = Instance(
        name="steady",
        relation=relation,
        kind="symmetric",
        here=base - pair,
        there=base + pair,
        p=1,
        start=np.full((2, 1), 0.5**0.5),
    )
    for budget, sound in ((Budget(4.0, 1e-6), True), (Budget(10.0, 1e-6), False)):
        rounding = operator_of(one, one.here).rounding(1)
        mechanism = HardtPrice(relation=relation, budget=budget, releases=2, rounding=rounding)
        found = examine(ReleasePath(one, mechanism, steps=2, operator_of=operator_of), budget, runs=100)
        assert found.passed == sound, found.verdict
    assert found.path_loss / found.claimed == pytest.approx(1.029, abs=1e-3)


def test_a_block_is_orthonormalised_as_by_the_algorithm() -> None:
    rng = np.random.default_rng(0)
    blocks = rng.standard_normal((20, 6, 2))
    for got, block in zip(orth_many(blocks), blocks, strict=True):
        np.testing.assert_allclose(got, orth(block, rng), atol=1e-14)


def publication(value: list[float], here: list[float], there: list[float], noise: float) -> Publication:
    arrays = (np.array([v]) for v in (value, here, there))
    return Publication(step=1, **dict(zip(("value", "here", "there"), arrays, strict=True)), noise=np.array([noise]))


def test_evidence_adds_up_and_bare_evidence_is_certain() -> None:
    noisy = publication([1.0, 0.0], [0.0, 0.0], [2.0, 1.0], 2.0)
    assert attacks.likelihood_ratio([noisy], "l2") == pytest.approx([(1 - 2) / 8])
    assert attacks.likelihood_ratio([noisy], "l1") == pytest.approx([(1 - 2) / 2])
    assert attacks.path_loss([noisy, noisy], "l2") == pytest.approx([(2 * 5 / 4) ** 0.5])
    assert attacks.path_loss([noisy, noisy], "l1") == pytest.approx([2 * 3 / 2])
    bare, equal = without_noise(1, [3.0], [3.0], [4.0]), without_noise(1, [3.0], [3.0], [3.0])
    assert attacks.likelihood_ratio([noisy, bare], "l2") < -1e5
    assert attacks.path_loss([bare], "l2") == np.inf and attacks.path_loss([equal], "l2") == 0


def test_a_finding_is_a_table_and_json() -> None:
    good = next(iter(audit(relations=["entry"], mechanisms=["gaussian"], runs=100)))
    bad = replace(good, path_loss=np.inf, mu=Interval(3.0, np.inf), problems=("attack: mu is above",))
    text = "\n".join(findings_table([good, bad]))
    assert "entry" in text and "nothing found" in text and "REJECTED: attack" in text
    assert "lower bounds" in text and "does not prove" in text
    facts = json.loads(json.dumps(bad.facts(), allow_nan=False))
    assert facts["mu"] == [3.0, None] and facts["path_loss"] is None and facts["passed"] is False
    assert isinstance(good, Finding) and good.facts()["budget"] == {"epsilon": 4.0, "delta": 1e-6}


def test_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["audit", "--relation", "entry", "--mechanism", "gaussian", "--runs", "200"]
    assert main(arguments) == 0
    assert "nothing found" in capsys.readouterr().out
    assert main([*arguments, "--json", "--epsilon", "2", "--delta", "1e-7"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [f["instance"] for f in report["findings"]] == ["attains", "wide"] and "lower bounds" in report["limits"]
    assert report["findings"][0]["budget"] == {"epsilon": 2.0, "delta": 1e-7} and report["passed"] is True


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--relation", "entri"], "did you mean 'entry'"),
        (["--mechanism", "gausian"], "did you mean 'gaussian'"),
        (["--runs", "3"], "at least 100"),
        (["--epsilon", "-1"], "epsilon"),
        (["--steps", "0"], "releases"),
    ],
)
def test_bad_input_is_a_sentence(arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", *arguments]) == 2
    assert sentence in capsys.readouterr().err


def test_unknown_things_are_refused_before_any_run() -> None:
    with pytest.raises(BadInputError, match="unknown mechanism"):
        next(audit(mechanisms=["gaussian", "none"]))


@pytest.mark.heavy
@pytest.mark.parametrize("relation", REGISTRY)
def test_every_relation_at_the_usual_budget_with_many_runs(relation: str) -> None:
    """epsilon = 1, five steps, 50,000 runs of each world: mu to 0.06 at the level of 10^-6."""
    tight, *others = audit(relations=[relation], mechanisms=["gaussian"], epsilon=1.0, steps=5, runs=50_000)
    assert tight.passed and all(finding.passed for finding in others) and tight.mu is not None
    assert tight.claimed in tight.mu and tight.mu.high - tight.mu.low < 0.13
    assert 2**0.5 * tight.claimed not in tight.mu
