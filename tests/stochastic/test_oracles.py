"""Oracles in the deflation: directions, privacy along a whole transcript, budgets."""

from __future__ import annotations

import json
import math
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from dp_accounting import get_sigma_gaussian

from npmdask.accounting import Budget
from npmdask.errors import BadInputError, RefusedError
from npmdask.mechanisms.entropy import Entropy
from npmdask.stochastic.neighbours import RELATIONS
from npmdask.stochastic.noise import SecretNoise, SimulatedNoise
from npmdask.stochastic.oracles import DPOjas, ModifiedDPPCA, OjaState, PlainOja
from npmdask.stochastic.power import PowerOracle, PowerState
from npmdask.stochastic.private_mean import ClippedMean, PaperMean
from npmdask.stochastic.tight import TightOracle
from tests.stochastic.worlds import images_of, lost, moved, run, spiked

VALUES = (10.0, 5.0)
BUDGET = Budget(1.0, 0.01)
NOISE = SimulatedNoise(0)


def tight(**given: object) -> TightOracle:
    fixed = {"records": 300, "target_rank": 2, "steps": 3, "budget": BUDGET, "largest": 20.0}
    return TightOracle(**{**fixed, **given})


def power(**given: object) -> PowerOracle:
    fixed = {"records": 300, "target_rank": 2, "steps": 3, "budget": BUDGET, "radius": 20.0}
    return PowerOracle(**{**fixed, **given})


def ojas(**given: object) -> DPOjas:
    fixed = {"records": 40, "target_rank": 2, "batch": 4, "rates": ((1.0, 1.0),) * 2, "radius": 1.0, "budget": BUDGET}
    return DPOjas(**{**fixed, **given})


def test_plain_oja_finds_what_there_is() -> None:
    """Fails where a round begins in what was found, eta is another's, or the deflation forgets a direction."""
    images, v = spiked(2000, 12, VALUES, 0.01)
    oracle = PlainOja(records=2000, target_rank=2, batch=10, rates=((0.5, 0.05), (0.5, 0.05)))
    ran = run(oracle, 12, images, NOISE)
    np.testing.assert_allclose(ran.basis.T @ ran.basis, np.eye(2), atol=1e-14)
    assert lost(ran.basis, v, VALUES) < 1e-4
    assert abs(ran.basis[:, 0] @ v[:, 0]) > 1 - 1e-9
    for query in ran.queries:
        assert np.abs(query.found.T @ query.vector).max(initial=0.0) < 1e-14


def test_an_oja_step_is_the_formula() -> None:
    """eta_3 of round 2 is 1 / (offset + 3 slope) of round 2. Fails with t from 0, or the rates of another round."""
    found = np.eye(4, 1)
    state = OjaState(3, np.array([0.0, 1.0, 0.0, 0.0]), found)
    oracle = ojas(rates=((9.0, 9.0), (2.0, 0.5)))
    after = oracle.update(state, np.array([5.0, 0.0, 7.0, 0.0]))
    np.testing.assert_allclose(after.vector, np.array([0.0, 1.0, 2.0, 0.0]) / 5**0.5, atol=1e-15)
    assert (after.step, state.step) == (4, 3)


def test_every_record_is_in_one_batch_and_rounds_are_disjoint() -> None:
    """Parallel composition rests on it: fails with overlapping slices."""
    seen = [i for q in run(ojas(), 5, images_of(np.ones((40, 5))), NOISE).queries for i in q.rows]
    assert sorted(seen) == list(range(40))
    batches = {(q.rows.start, q.rows.stop) for q in run_tight(reuse=False)}
    assert len(batches) == 6
    assert sum(stop - start for start, stop in batches) == 300
    assert {(q.rows.start, q.rows.stop) for q in run_tight()} == {(0, 300)}


def run_tight(**given: object) -> list:
    return run(tight(**given), 5, images_of(np.random.default_rng(0).standard_normal((300, 5))), NOISE).queries


def neighbours(relation: str, place: int, records: int, d: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Data sets of matrices of which one is 1000 I on one side and -1000 I, or zeros, on the other."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((records, d))
    one = x[:, :, None] * x[:, None, :]
    other = one.copy()
    one[place] = 1000 * np.eye(d)
    other[place] = 0.0 if relation == "record_zero_out" else -1000 * np.eye(d)
    return one, other


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("reuse", [True, False])
def test_neighbours_stay_within_the_budget_along_the_whole_transcript(relation: str, reuse: bool) -> None:
    """Path-wise: sum of squares of what really moves. Fails with a factor 2 lost, T for k T, a step that is not
    charged, or (from below) where noise is paid for that no neighbour needs."""
    oracle = tight(relation=relation, reuse=reuse)
    one, other = neighbours(relation, 57, 300)
    ran = run(oracle, 5, images_of(one), NOISE)
    mu = moved(ran, images_of(one), images_of(other))
    assert mu <= oracle.charge().mu
    least = 1.0 if relation == "record_zero_out" else 0.9  # both records are in the same bin of the range
    assert mu > 0.99 * math.sqrt(least) * oracle.charge().mu


@pytest.mark.parametrize("relation", RELATIONS)
def test_dp_ojas_stays_within_one_over_alpha(relation: str) -> None:
    one, other = neighbours(relation, 33, 40)
    oracle = ojas(relation=relation)
    mu = moved(run(oracle, 5, images_of(one), NOISE), images_of(one), images_of(other))
    assert 0.999 / oracle.alpha < mu <= 1 / oracle.alpha


@pytest.mark.parametrize("relation", RELATIONS)
def test_the_power_method_spends_its_budget_on_k_t_releases_of_all_records(relation: str) -> None:
    """Path-wise, as above. Fails with T for k T, or a factor 2 lost."""
    oracle = power(relation=relation)
    one, other = neighbours(relation, 57, 300)
    ran = run(oracle, 5, images_of(one), NOISE)
    assert len(ran.queries) == 6
    mu = moved(ran, images_of(one), images_of(other))
    assert 0.999 * oracle.charge().mu < mu <= oracle.charge().mu
    assert oracle.charge().within(BUDGET)
    assert oracle.charge().epsilon_at(BUDGET.delta) > 0.999999


def test_a_step_of_the_power_method_is_the_projected_answer() -> None:
    """Fails as an Oja step, without P, or where a round ends a step early."""
    state = PowerState(3, np.array([0.0, 1.0, 0.0]), np.eye(3, 1))
    after = power().update(state, np.array([9.0, 3.0, 4.0]))
    np.testing.assert_allclose(after.vector, [0.0, 0.6, 0.8], atol=1e-15)
    assert power().direction(state) is None
    assert power().direction(after) is after.vector


def test_the_power_method_finds_what_there_is() -> None:
    images, v = spiked(20_000, 12, VALUES, 0.01)
    ran = run(power(records=20_000, steps=12), 12, images, NOISE)
    assert lost(ran.basis, v, VALUES) < 0.05
    np.testing.assert_allclose(ran.basis.T @ ran.basis, np.eye(2), atol=1e-14)


@pytest.mark.parametrize("given", [{}, {"reuse": False}, {"growth": 1.7, "steps": 5}, {"range_share": 0.3}])
def test_the_tight_charge_is_the_budget_and_not_more(given: dict) -> None:
    """Fails where shares do not add up to one, or releases are charged twice."""
    charge = tight(**given).charge()
    assert charge.within(BUDGET)
    assert charge.epsilon_at(0.01) > 0.999999


def test_alpha_is_that_of_an_independent_accountant() -> None:
    assert ojas().alpha == pytest.approx(get_sigma_gaussian(1.0, 0.01), rel=1e-6)
    assert ojas().promise().verified


def test_what_the_papers_alpha_really_gives_is_said() -> None:
    """n = 10^4: alpha = 0.138 and epsilon = 42, not 1 (k = 1). Fails if the claim is repeated."""
    oracle = ojas(records=10_000, target_rank=1, batch=1, rates=((1.0, 1.0),), noise="paper")
    assert oracle.alpha == pytest.approx(0.138, abs=1e-3)
    promise = oracle.promise()
    assert 41 < promise.epsilon < 43
    assert not promise.verified


@pytest.mark.parametrize("halves", ["same", "disjoint"])
def test_the_papers_k_dp_pca_holds_for_records_that_are_replaced(halves: str) -> None:
    """And not for large epsilon, where the classical Gaussian mechanism is too quiet. Fails if it is taken on trust."""
    assert paper(halves=halves).promise().verified
    assert not paper(halves=halves, budget=Budget(150.0, 0.01)).promise().verified


def paper(**given: object) -> ModifiedDPPCA:
    fixed = {"records": 4000, "target_rank": 1, "batch": 1000, "rates": ((0.0, 1.0),), "budget": BUDGET}
    return ModifiedDPPCA(**{**fixed, **given})


@pytest.mark.parametrize("epsilon, delta", [(0.1, 1e-6), (1.0, 0.01), (8.0, 1e-9)])
def test_k_dp_pca_as_printed_has_less_than_it_claims_and_with_both_halves_what_it_claims(
    epsilon: float, delta: float
) -> None:
    """Fails where halves are added up that are disjoint, or not added up that are the same."""
    budget = Budget(epsilon, delta)
    same, disjoint = (paper(halves=halves, budget=budget) for halves in ("same", "disjoint"))
    for oracle in (same, disjoint):
        assert oracle.charge().within(budget)
        assert oracle.promise().verified
    assert 0.5 * epsilon < same.promise().epsilon < 0.85 * epsilon
    assert disjoint.promise().epsilon == pytest.approx(epsilon, rel=1e-9)


ORACLES = {
    "dp-ojas": lambda: ojas(records=300),
    "k-dp-pca": lambda: paper(records=300, batch=60),
    "tight": lambda: tight(),
    "power": lambda: power(),
    "oja": lambda: PlainOja(records=300, target_rank=2, batch=30, rates=((1.0, 1.0),) * 2),
}


@pytest.mark.parametrize("name", list(ORACLES))
def test_every_oracle_says_what_it_is_and_asks_no_more_than_it_says(name: str) -> None:
    """Fails where a release is left out of ``releases``, or a parameter out of ``spec``."""
    oracle = ORACLES[name]()
    spec = oracle.spec()
    assert spec["oracle"] == name
    assert json.loads(json.dumps(spec)) == spec
    assert set(spec) - {"oracle"} == {field.name for field in fields(oracle)}
    ran = run(oracle, 5, images_of(np.random.default_rng(0).standard_normal((300, 5))), NOISE)
    assert len(ran.queries) == oracle.releases or (name == "k-dp-pca" and len(ran.queries) < oracle.releases)
    if name == "oja":
        with pytest.raises(RefusedError, match="not private"):
            oracle.charge()
    else:
        assert oracle.charge().within(BUDGET)
        assert oracle.promise().epsilon == oracle.charge().epsilon_at(BUDGET.delta)


@pytest.mark.parametrize("halves, first, second", [("same", (0, 500), (0, 500)), ("disjoint", (0, 500), (500, 1000))])
def test_which_half_of_a_batch_is_used_for_what(halves: str, first: tuple, second: tuple) -> None:
    """As printed, the second half is never used. Fails if budgets and halves are mixed up."""
    images, _ = spiked(4000, 4, VALUES[:1], 1.0)
    oracle = paper(halves=halves, budget=Budget(20.0, 0.01), constant=20.0)
    queries = run(oracle, 4, images, NOISE).queries
    assert [(q.rows.start, q.rows.stop) for q in queries[:2]] == [first, second]
    mean = queries[1].mechanism
    assert isinstance(mean, PaperMean)
    assert (mean.count, mean.epsilon) == (500, 10.0 if halves == "same" else 20.0)


def test_a_step_without_a_range_leaves_the_direction() -> None:
    """Fails where a mean is asked for with no range, or the step is not counted."""
    images, _ = spiked(4000, 4, VALUES[:1], 1.0)
    ran = run(paper(batch=40), 4, images, NOISE)
    assert ran.answers == [None] * 100
    np.testing.assert_array_equal(ran.basis[:, 0], ran.queries[0].vector)


def test_the_papers_k_dp_pca_works_where_there_are_enough_records() -> None:
    images, v = spiked(40_000, 3, VALUES[:1], 0.3)
    oracle = paper(records=40_000, batch=10_000, budget=Budget(5.0, 0.01), rates=((0.1, 0.5),), halves="disjoint")
    assert lost(run(oracle, 3, images, NOISE).basis, v[:, :1], VALUES[:1]) < 0.05


def test_tight_finds_what_there_is_and_its_radius_shrinks() -> None:
    """(1, 0.01), n = 4000, d = 30. Fails without predictions (radius stays near 10), or with a range that lies."""
    images, v = spiked(4000, 30, VALUES, 0.01)
    ran = run(tight(records=4000, steps=8), 30, images, NOISE)
    assert lost(ran.basis, v, VALUES) < 1e-3
    radii = [q.mechanism.radius for q in ran.queries if isinstance(q.mechanism, ClippedMean)]
    assert min(radii) < 0.01 * max(radii)
    np.testing.assert_allclose(ran.basis.T @ ran.basis, np.eye(2), atol=1e-14)


def test_a_round_starts_from_what_the_one_before_has_shown() -> None:
    """Fails with a random start, which would lose the steps that found the second direction as well."""
    images, v = spiked(4000, 30, VALUES, 0.01)
    ran = run(tight(records=4000, steps=8), 30, images, NOISE)
    assert abs(ran.queries[16].vector @ v[:, 1]) > 0.95
    assert abs(ran.queries[0].vector @ v[:, 1]) < 0.5


def test_a_step_gets_growth_times_the_share_of_the_one_before() -> None:
    """And a round begins again with the first share. Fails where growth is left out."""
    queries = run_tight(growth=4.0)
    multipliers = [q.mechanism.multiplier for q in queries if isinstance(q.mechanism, ClippedMean)]
    np.testing.assert_allclose(multipliers, np.array([4, 2, 1, 4, 2, 1]) * multipliers[2], rtol=1e-9)


def test_no_radius_is_above_the_public_bound() -> None:
    """Images of norm 20 and more: fails if the factor leads beyond ``largest``, or a round keeps the last radius."""
    oracle = tight(steps=1, budget=Budget(50.0, 0.01))
    ran = run(oracle, 5, images_of(np.tile(50 * np.ones(5), (300, 1))), NOISE)
    assert ran.queries[1].mechanism.radius == 20.0
    second = oracle.init(np.eye(5, 1), oracle.update(oracle.init(np.zeros((5, 0)), None), 1.0))
    assert (second.radius, second.fallback) == (None, 20.0)


def test_a_radius_is_kept_where_no_range_is_found() -> None:
    """n = 300 and a budget of almost nothing: every step is done, with the public bound."""
    ran = run(tight(budget=Budget(1e-3, 1e-6)), 5, images_of(np.eye(5)[np.arange(300) % 5]), NOISE)
    assert len(ran.queries) == 12
    assert ran.answers[0] is None
    assert ran.queries[1].mechanism.radius == 20.0


class Careless(PlainOja):
    """An oracle that forgets P and its length: any oracle can be plugged in."""

    def direction(self, state):
        found = super().direction(state)
        return None if found is None else 3 * found + state.found.sum(axis=1)


def test_the_deflation_trusts_no_oracle() -> None:
    """Fails where directions are taken as they come: U would not be orthonormal, and P no projection."""
    oracle = Careless(records=40, target_rank=3, batch=4, rates=((1.0, 1.0),) * 3)
    basis = run(oracle, 5, images_of(np.random.default_rng(0).standard_normal((40, 5))), NOISE).basis
    np.testing.assert_allclose(basis.T @ basis, np.eye(3), atol=1e-14)


def test_no_two_releases_have_the_same_purpose() -> None:
    """Noise that is used twice is subtracted: fails if the number of the release or w is left out."""
    images = images_of(np.tile(np.eye(5)[0], (300, 1)))
    for oracle in (tight(), ojas(records=300), paper(records=300, batch=60)):
        purposes = [query.purpose for query in run(oracle, 5, images, NOISE).queries]
        assert len(set(purposes)) == len(purposes)


def test_a_run_from_a_key_is_the_same_again_and_another_with_another_key(tmp_path: Path) -> None:
    """Fails if anything is drawn from elsewhere, or does not depend on the key."""
    images, _ = spiked(300, 5, VALUES, 0.1)
    keys = [SecretNoise(Entropy.create(tmp_path / name / "key")) for name in ("a", "b")]
    first, again, other = (run(tight(), 5, images, key) for key in (keys[0], keys[0], keys[1]))
    np.testing.assert_array_equal(first.basis, again.basis)
    assert np.abs(first.basis - other.basis).max() > 1e-9
    drawn = [getattr(keys[0], law)(1000, (5,), purpose) for law in ("gaussian", "laplace") for purpose in "xy"]
    assert len({tuple(block) for block in drawn}) == 4
    assert SecretNoise.private and not SimulatedNoise.private


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: ojas(batch=21),
        lambda: ojas(rates=((1.0, 1.0),)),
        lambda: ojas(noise="shuffled"),
        lambda: paper(halves="both"),
        lambda: tight(records=5),
        lambda: tight(range_share=1.0),
        lambda: power(steps=0),
        lambda: power(records=0),
        lambda: power(radius=-1.0),
        lambda: run(tight(target_rank=6, records=900), 5, images_of(np.eye(5)), NOISE),
    ],
)
def test_numbers_that_make_no_sense_are_refused(wrong) -> None:
    with pytest.raises(BadInputError):
        wrong()
