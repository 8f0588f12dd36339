"""What a symmetric matrix with Gaussian noise tells: values, their projection, and the tilt of the leading plane."""

from __future__ import annotations

import math

import numpy as np
import pytest

from npmdask.core.certificates.wording import LOST
from npmdask.privacy.covariance import PrivateCovariance
from npmdask.theory.noisy_symmetric import noise_norm, perturbed_sine, projected, values_along
from tests.conftest import often

RUNS = 60


def ensemble(d: int, stddev: float, rng: np.random.Generator) -> np.ndarray:
    drawn = rng.standard_normal((d, d))
    return np.asarray(stddev * (drawn + drawn.T) / math.sqrt(2))


def spectrum(name: str, d: int) -> np.ndarray:
    """Kinds that must not fool an estimate: gaps that are there, gaps that are none, and values on both sides of 0."""
    i = np.arange(1.0, d + 1)
    made: dict[str, np.ndarray] = {
        "1/i": 1 / i,
        "i^-0.5": i**-0.5,
        "0.8^i": 0.8**i,
        "a tie at k": np.where(i <= 4, 1.0, np.where(i <= 6, 0.5, 0.01)),
        "all alike": np.ones(d),
        "5 % above a bulk": np.where(i <= 5, 1.05, 1.0),
        "20 % above ten, and a bulk": np.where(i <= 5, 1.25, np.where(i <= 15, 1.0, 0.0)),
        "both signs": np.where(i <= 5, 1.0, np.where(i > d - 5, -0.9, 0.0)),
        "nothing": np.zeros(d),
    }
    return made[name]


NAMES = ("a tie at k", "1/i", "i^-0.5", "0.8^i", "all alike", "5 % above a bulk", "20 % above ten, and a bulk")
NAMES += ("both signs", "nothing")
CASES = [(name, d, clear) for name in NAMES for d in (8, 40, 120) for clear in (0.5, 1.0, 2.0, 5.0, 30.0)]


def found(name: str, d: int, clear: float, runs: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """True sines, told sines, and by how many deviations of v^T Z v the worst value is off.

    The k-th value is ``clear`` times the edge of the noise.
    """
    k, values = 5, spectrum(name, d)
    rng = np.random.default_rng([d, len(name), round(10 * clear)])
    stddev = float(values[k - 1] or 1.0) / clear / noise_norm(1.0, d)
    algorithm = PrivateCovariance(target_rank=k, columns=d, stddev=stddev, definite=bool(values.min() >= 0))
    best = np.argsort(-np.abs(values), kind="stable")[:k]
    sines, told, off = [], [], []
    for _ in range(runs):
        seen = algorithm.spectrum(np.diag(values) + ensemble(d, stddev, rng))
        sines.append(np.linalg.norm(np.delete(seen.vectors, best, axis=0), 2))
        told.append(seen.sine)
        along = np.einsum("ij,i,ij->j", seen.vectors, values, seen.vectors)
        off.append(np.abs(seen.values - along).max() / (math.sqrt(2) * stddev))
    return np.array(sines), np.array(told), np.array(off)


@pytest.mark.slow
@pytest.mark.parametrize("name, d, clear", often(CASES, 0, 3, 14, 18, 33, 77, 103, 117, 125))
def test_nineteen_of_twenty_planes_are_less_far_off_than_told(name: str, d: int, clear: float) -> None:
    """Whatever the spectrum. A binomial share of 0.95 falls below 0.87 in 60 runs once in 200. Mutants: no TIED (the
    tie); no SAFELY (d = 8); the gap of the eigenvalues of A in its place cannot be had."""
    sines, told, _ = found(name, d, clear, RUNS)
    assert np.mean(sines <= np.minimum(told, 1.0) + 1e-12) >= 0.87
    if name in ("all alike", "nothing") or clear <= 0.5:
        assert np.mean(told >= LOST) >= 0.95, "nothing is known, and that is said"


@pytest.mark.slow
@pytest.mark.parametrize("name, d, clear", often([case for case in CASES if case[2] >= 2.0], 0, 10, 25, 40))
def test_values_are_what_the_vectors_explain(name: str, d: int, clear: float) -> None:
    """Within three deviations in nineteen of twenty, wherever the plane is stated; elsewhere nothing is said of them.
    Mutants: the eigenvalues of the noisy matrix as they are; half of the correction."""
    _, told, off = found(name, d, clear, RUNS)
    known = told < LOST
    assert known.mean() > 0.5 or name not in ("1/i", "0.8^i") or d < 120, "the test sees something"
    assert known.sum() < 20 or np.mean(off[known] <= 3.0) >= 0.87


def test_one_strong_value_by_hand() -> None:
    """BBP: m = t + sigma^2 d / t becomes t - sigma^2 d / t = t c^2."""
    d, t, rng = 600, 3.0, np.random.default_rng(0)
    sigma = 1 / math.sqrt(d)
    a = np.zeros(d)
    a[0] = t
    m = np.linalg.eigvalsh(np.diag(a) + ensemble(d, sigma, rng))
    assert m[-1] == pytest.approx(t + 1 / t, abs=0.2)
    assert values_along(m, sigma)[-1] == pytest.approx(t - 1 / t, abs=0.2)
    assert values_along(m, sigma).sum() == pytest.approx(m.sum(), abs=1e-9)
    assert m[-2] < 1.1 * noise_norm(sigma, d) < m[-1]
    tangent = math.sqrt(1 / (1 - 1 / t**2) - 1)  # of the vector: c^2 = 1 - sigma^2 d / t^2
    assert tangent < math.tan(math.asin(perturbed_sine(m, sigma, np.array([d - 1])))) < 3 * tangent


def test_without_noise_nothing_is_changed() -> None:
    values = np.array([3.0, 2.0, 0.5])
    assert (values_along(values, 0.0) == values).all()
    assert perturbed_sine(values, 0.0, np.array([0])) == 0.0 == perturbed_sine(values, 0.1, np.arange(3))


@pytest.mark.parametrize("most", [None, 1.0, 4.0, 100.0])
def test_the_projection_is_the_nearest_that_can_be(most: float | None) -> None:
    """Never further from anything that can be. Mutants: scaled to the sum; clipped at 0 alone."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        values = rng.standard_normal(8) * 2
        near = projected(values, most)
        assert (near >= 0).all() and (most is None or near.sum() <= most * (1 + 1e-12))
        taken = (values - near)[near > 0]  # the same from each that is left, and no less than from the others
        assert not len(taken) or (np.ptp(taken) < 1e-12 and (most is not None or taken.max() < 1e-12))
        for _ in range(20):
            other = np.abs(rng.standard_normal(8))
            other *= 1 if most is None else min(1.0, most / other.sum())
            assert np.linalg.norm(near - other) <= np.linalg.norm(values - other) + 1e-12
            assert np.linalg.norm(near - values) <= np.linalg.norm(other - values) + 1e-12
    assert (projected(np.array([2.0, 1.0]), 3.5) == [2.0, 1.0]).all()
