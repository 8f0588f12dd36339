"""Noise on the columns of a contraction: as loud as the exact formula, never the same twice, as an attack finds it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from npmdask.accounting import Budget, mu_for
from npmdask.audit import ALPHA
from npmdask.audit.attacks import Publication, Transcript, likelihood_ratio, path_loss
from npmdask.audit.statistics import count, mu_interval, thresholds
from npmdask.core.numerics.random import Rounding
from npmdask.errors import RefusedError
from npmdask.privacy.mechanisms import Entropy, TensorGaussian
from npmdask.privacy.neighbors import TENSORS, TensorRelation, make_relation


def relation_of(name: str, clip_norm: float = 1000.0, **more: Any) -> TensorRelation:
    made = make_relation(name, clip_norm=clip_norm)
    assert isinstance(made, TensorRelation)
    return replace(made, **more)


def mechanism(name: str = "tensor_entry", **change: Any) -> TensorGaussian:
    fields: dict[str, Any] = {
        "relation": relation_of(name),
        "budget": Budget(1.0, 1e-6),
        "columns": 5,
        "steps": 12,
        "rounding": Rounding(grid=2.0**-24),
    }
    return TensorGaussian(**(fields | change))


@pytest.fixture
def entropy(tmp_path: Path) -> Entropy:
    return Entropy.create(tmp_path / "key" / "key")


def units(d: int, columns: int, seed: int = 0) -> np.ndarray:
    block = np.random.default_rng(seed).standard_normal((d, columns))
    return block / np.linalg.norm(block, axis=0)


@pytest.mark.slow
@pytest.mark.parametrize("scores", [False, True])
@pytest.mark.parametrize("name", TENSORS)
def test_the_noise_is_as_loud_as_it_must_be(name: str, scores: bool, entropy: Entropy) -> None:
    """Against the formula, worked out here. Mutants: 1.5 times the noise; sqrt(K) or sqrt(L) missing; 2 for 2 sqrt(3).

    Scores are one number a column: many releases of them.
    """
    private, d, columns = mechanism(name, scores=scores), 3000, 5
    blocks = [units(d, columns, seed) for seed in range(12 if scores else 1)]
    seen = []
    for step, block in enumerate(blocks, 1):
        shape = (1 if scores else d, columns)
        zero = np.zeros(shape, np.int64)
        released = private.release(zero, block=block, entropy=entropy, step=step)
        again = private.release(zero, block=block, entropy=entropy, step=step)
        assert (released == again).all() and (np.rint(released * 2**24) == released * 2**24).all()
        seen.append(released / expected(private, block, scores))
    z = np.concatenate([s.ravel() for s in seen])
    low, high = stats.chi2(len(z)).ppf([ALPHA / 2, 1 - ALPHA / 2])
    assert low < (z**2).sum() < high * 1.002, "rounding up costs less than 0.2 %"
    assert stats.kstest(z, "norm").pvalue > ALPHA
    if not scores:
        assert np.abs(np.corrcoef(seen[0].T) - np.eye(columns)).max() < 6 / math.sqrt(d)


def expected(private: TensorGaussian, block: np.ndarray, scores: bool) -> np.ndarray:
    """sqrt(K) / mu times the sensitivity, times sqrt(W / L); the largest three entries of u decide."""
    x, y, z = np.sort(np.abs(block), axis=0)[::-1][:3]
    each = {
        ("tensor_entry", False): 6 * x**2,
        ("tensor_entry", True): 6 * x**3,
        ("tensor_orbit", False): 2 * np.sqrt((x * y) ** 2 + (y * z) ** 2 + (x * z) ** 2),
        ("tensor_orbit", True): 6 * x * y * z,
    }[private.relation.name, scores]
    together = replace(private.relation, scores=scores).together(block)
    released = 12 * block.shape[1]
    return np.asarray(math.sqrt(released * together / block.shape[1]) / mu_for(1.0, 1e-6) * each)


def test_columns_of_their_own_size_and_steps_of_their_own_noise(entropy: Entropy) -> None:
    private, block = mechanism(columns=2), np.eye(50)[:, :2]
    block[:, 1] = 50**-0.5
    stddevs = private.noise_stddevs(block)
    assert stddevs[0] == pytest.approx(50 * stddevs[1], rel=1e-3)
    zero = np.zeros((50, 2), np.int64)
    first, second = (private.release(zero, block=block, entropy=entropy, step=step) for step in (1, 2))
    assert (first != second).all()
    same = np.tile(block[:, 1:], (1, 2))  # a column twice: its noise must not be the same twice
    twice = private.release(zero, block=same, entropy=entropy, step=3)
    assert (twice[:, 0] != twice[:, 1]).any()
    with pytest.raises(RefusedError, match="is not one of the 24"):
        private.release(zero, block=block, entropy=entropy, step=13)
    with pytest.raises(RefusedError, match="is not one of the 24"):
        private.release(zero, block=block, entropy=entropy, step=0)


def test_what_arithmetic_adds_is_paid_for_where_columns_share() -> None:
    """An orbit that moves one column alone, and rounding that moves both: no more than two columns by themselves.

    Mutant: the rounding of a column as it is, not times the ratio of the sensitivities: 2.6 of 2.
    """
    block, added = np.eye(50)[:, :2], 1.0
    block[:, 1] = 49**-0.5
    block[0, 1] = 0.0
    private = mechanism(columns=2, rounding=Rounding(grid=2.0**-24, l2=added))
    assert private.relation.together(block) == pytest.approx(1)
    counted = [private.each(block).sensitivity(column[:, None]) for column in block.T]
    moved = [6 + added, added]  # by six at the first entry of the diagonal
    assert sum((m / c) ** 2 for m, c in zip(moved, counted, strict=True)) <= 2


def test_the_papers_noise_is_no_less_than_needed_and_charged_for_what_it_costs() -> None:
    block = units(200, 5)
    exact, paper = mechanism(), mechanism(calibration="paper")
    assert paper.charge().mu < exact.charge().mu / 6
    ratio = paper.noise_stddevs(block) / exact.noise_stddevs(block)
    assert (ratio > 1 / 0.16).all() and exact.to_paper(block, scores=False) == pytest.approx(1 / ratio.min(), rel=1e-4)
    with pytest.raises(RefusedError, match="use calibration = 'exact'"):
        mechanism(calibration="paper", budget=Budget(5000.0, 1e-6))


@pytest.mark.parametrize(("name", "scores"), [("tensor_entry", False), ("tensor_entry", True), ("tensor_orbit", False)])
def test_an_attack_on_the_worst_neighbours_finds_what_is_claimed(name: str, scores: bool, entropy: Entropy) -> None:
    """The orbit that attains, at a u that makes it so, in every release: mu is claimed, and mu is found.

    L columns at the same u are the worst that there is: nothing is shared. Mutants as above: the interval misses mu.
    """
    runs, columns, budget = 12000, 2, Budget(4.0, 1e-6)
    private = mechanism(name, columns=columns, steps=3, budget=budget, scores=scores)
    u = np.full((3, 1), 3**-0.5) if name == "tensor_orbit" else np.ones((1, 1))
    change = np.array([2.0, 2.0, 2.0])[:, None] / 3 if name == "tensor_orbit" else np.array([[6.0]])
    worlds = {"here": np.zeros_like(change), "there": change}
    transcripts: dict[str, Transcript] = {world: [] for world in worlds}
    for number, (world, query) in enumerate(worlds.items()):
        wide = np.tile(np.rint(query / private.rounding.grid).astype(np.int64), (1, runs))
        for step in range(1, 3 * columns + 1):  # every column of every step, for all runs side by side
            single = private.each(np.tile(u, (1, columns)))
            key = Entropy.open(entropy.path, bound_to=f"{number}")
            value = single.release(wide, block=u, entropy=key, step=step)
            noise = np.full(runs, single.noise_stddev(u, rows=len(query)))
            here, there = (np.tile(worlds[w], (1, runs)).T for w in worlds)
            transcripts[world].append(Publication(step=step, value=value.T, here=here, there=there, noise=noise))
    mu = mu_for(4.0, 1e-6)
    assert path_loss(transcripts["here"], "l2").max() == pytest.approx(mu, rel=2e-3)
    ratios = [likelihood_ratio(transcripts[world], "l2") for world in worlds]
    found = mu_interval([count((ratios[0], ratios[1]), thresholds("l2", mu))], ALPHA)
    assert found.low < mu < found.high and found.low > mu / 1.4 and found.high < 1.4 * mu
