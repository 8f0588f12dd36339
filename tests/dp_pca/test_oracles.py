"""Oracles in the deflation: directions, steps, what is asked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from npmdask.accounting import Budget
from npmdask.dp_pca.base import SecretNoise, SimulatedNoise
from npmdask.dp_pca.exact_oracles import PowerRoundState
from npmdask.dp_pca.paper_oracles import OjaRoundState, PlainOja
from npmdask.dp_pca.private_mean import ClippedMean, PaperMean
from npmdask.errors import BadInputError
from npmdask.privacy.mechanisms.noise_key import Entropy
from tests.dp_pca.made import NOISE, VALUES, full_ojas, ojas, paper, power, tight
from tests.dp_pca.worlds import images_of, lost, run, spiked


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
    state = OjaRoundState(3, np.array([0.0, 1.0, 0.0, 0.0]), found)
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
    assert {q.rows for q in run_tight()} == {None}
    assert (run_tight()[0].indices(7), run_tight(reuse=False)[1].indices(300)) == (range(7), range(50))


def run_tight(**changed: object) -> list:
    return run(tight(**changed), 5, images_of(np.random.default_rng(0).standard_normal((300, 5))), NOISE).queries


def test_a_step_of_the_power_method_is_the_projected_answer() -> None:
    """Fails as an Oja step, without P, or where a round ends a step early."""
    state = PowerRoundState(3, np.array([0.0, 1.0, 0.0]), np.eye(3, 1))
    after = power().update(state, np.array([9.0, 3.0, 4.0]))
    np.testing.assert_allclose(after.vector, [0.0, 0.6, 0.8], atol=1e-15)
    assert power().direction(state) is None
    assert power().direction(after) is after.vector


@pytest.mark.slow
def test_the_power_method_finds_what_there_is() -> None:
    images, v = spiked(20_000, 12, VALUES, 0.01)
    ran = run(power(records=20_000, steps=12), 12, images, NOISE)
    assert lost(ran.basis, v, VALUES) < 0.05
    np.testing.assert_allclose(ran.basis.T @ ran.basis, np.eye(2), atol=1e-14)


@pytest.mark.parametrize(
    "halves, first, second",
    [
        ("same", (0, 500), (0, 500)),
        ("disjoint", (0, 500), (500, 1000)),
        ("whole", (0, 1000), (0, 1000)),
    ],
)
def test_which_half_of_a_batch_is_used_for_what(halves: str, first: tuple, second: tuple) -> None:
    """As printed, the second half is never used. Fails if budgets and halves are mixed up."""
    images, _ = spiked(4000, 4, VALUES[:1], 1.0)
    oracle = paper(halves=halves, budget=Budget(20.0, 0.01), constant=20.0)
    queries = run(oracle, 4, images, NOISE).queries
    assert [(q.rows.start, q.rows.stop) for q in queries[:2]] == [first, second]
    assert len(queries) == oracle.releases
    mean = queries[1].mechanism
    assert isinstance(mean, PaperMean)
    assert (mean.count, mean.epsilon) == (second[1] - second[0], 20.0 if halves == "disjoint" else 10.0)


def test_steps_with_all_records_find_what_batches_do_not() -> None:
    """n = 20,000 at (1, 0.01), 8 steps a round. Fails where a step has a batch, or the noise of one pass."""
    images, v = spiked(20_000, 12, VALUES, 0.01)
    rates = ((1.0, 1.0),) * 2
    full = run(full_ojas(records=20_000, full_steps=8, rates=rates), 12, images, NOISE)
    pass_once = run(ojas(records=20_000, batch=1250, rates=rates, radius=20.0), 12, images, NOISE)
    assert lost(full.basis, v, VALUES) < 0.5 * lost(pass_once.basis, v, VALUES)


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
        lambda: ojas(full_steps=3),
        lambda: full_ojas(full_steps=0),
        lambda: full_ojas(batch=4),
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
