"""The projection onto the capped simplex against a solver that tries every face, bisection, and the KKT conditions."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from npmdask.errors import BadInputError
from npmdask.streaming.algorithms.msg import project_spectrum, stays_rank, surely_stays_rank


def by_faces(mu: np.ndarray, total: float, exactly: bool) -> np.ndarray:
    """The exact answer: the nearest of the feasible projections onto all faces (each entry at 0, at 1 or free)."""
    best, distance = None, np.inf
    for face in product((0.0, 1.0, None), repeat=len(mu)):
        free = np.array([level is None for level in face])
        point = np.array([0.0 if level is None else level for level in face])
        tight = point.copy()
        if free.any():
            tight[free] = mu[free] + (total - point.sum() - mu[free].sum()) / free.sum()
        loose = np.where(free, mu, point)
        for candidate in [tight] if exactly else [tight, loose]:
            inside = (candidate >= -1e-12).all() and (candidate <= 1 + 1e-12).all()
            sums = abs(candidate.sum() - total) < 1e-9 or (not exactly and candidate.sum() < total)
            if inside and sums and np.sum((candidate - mu) ** 2) < distance:
                best, distance = candidate, np.sum((candidate - mu) ** 2)
    assert best is not None
    return best


def by_bisection(mu: np.ndarray, total: float, exactly: bool) -> np.ndarray:
    if not exactly and np.clip(mu, 0, 1).sum() <= total:
        return np.clip(mu, 0, 1)
    low, high = -mu.max() - 1, 1 - mu.min() + 1
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.clip(mu + middle, 0, 1).sum() < total else (low, middle)
    return np.clip(mu + high, 0, 1)


def spectra(rng: np.random.Generator, r: int) -> list[np.ndarray]:
    plain = rng.normal(0.5, 1, r)
    return [
        plain,
        np.round(plain * 2) / 2,  # ties, also with the corners
        np.full(r, plain[0]),  # all equal
        np.where(rng.random(r) < 0.5, 0.0, np.abs(plain)),
        np.abs(plain) * 10.0 ** rng.integers(-4, 2, r),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("exactly", [False, True])
def test_equal_to_the_solver_that_tries_all_faces(exactly: bool) -> None:
    """Fails when a corner is left out, when ties are dropped, or when `<=` is taken for `=`."""
    rng = np.random.default_rng(0)
    for _ in range(12):
        r = int(rng.integers(1, 6))
        for mu, total in product(spectra(rng, r), range(r + 1)):
            found = project_spectrum(mu, total, exactly=exactly).values
            np.testing.assert_allclose(found, by_faces(mu, total, exactly), atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("exactly", [False, True])
def test_bisection_and_kkt(exactly: bool) -> None:
    rng = np.random.default_rng(1)
    for _ in range(60):
        for mu in spectra(rng, int(rng.integers(2, 60))):
            total = float(rng.integers(1, len(mu) + 1))
            values, _, shift = project_spectrum(mu, total, exactly=exactly)
            np.testing.assert_allclose(values, by_bisection(mu, total, exactly), atol=1e-9 * max(1, np.abs(mu).max()))
            slack = total - values.sum()
            assert slack >= -1e-9 * len(mu) and (not exactly or abs(slack) <= 1e-9 * len(mu))
            assert exactly or (shift <= 0 and abs(shift * slack) <= 1e-9 * max(1.0, np.abs(mu).max()))
            gradient = mu + shift - values  # 0 inside, <= 0 at 0, >= 0 at 1: clip by construction, but of ONE shift
            assert (np.abs(gradient[(values > 0) & (values < 1)]) <= 1e-12).all()
            assert (gradient[values == 0] <= 0).all() and (gradient[values == 1] >= 0).all()


@pytest.mark.parametrize("exactly", [False, True])
def test_a_repeated_eigenvalue_is_counted_not_listed(exactly: bool) -> None:
    rng = np.random.default_rng(2)
    for _ in range(50):
        mu, times, rest = rng.normal(0.5, 1, 4), int(rng.integers(0, 9)), float(rng.choice([0.0, 0.3]))
        listed = np.append(mu, np.full(times, rest))
        found = project_spectrum(mu, 3, exactly=exactly, rest=rest, multiplicity=times)
        whole = np.append(found.values, np.full(times, found.rest))
        np.testing.assert_allclose(whole, project_spectrum(listed, 3, exactly=exactly).values, atol=1e-12)


def test_large_eigenvalues_do_not_drown_small_ones() -> None:
    """Fails with prefix sums: 1e15 + 0.25 is not 0.25 more than 1e15."""
    found = project_spectrum(np.array([1e15, 0.3, 0.25, 0.1]), 1.5).values
    np.testing.assert_allclose(found, [1, 0.25, 0.2, 0.05], atol=1e-12)


@pytest.mark.slow
def test_rank_test_is_necessary_and_sufficient() -> None:
    """Fails for `> 1`, for index k + 1, or for a sum test."""
    rng = np.random.default_rng(3)
    seen = set()
    for _ in range(400):
        k = int(rng.integers(1, 4))
        mu = np.abs(rng.normal(0, 0.4, 6)) + (np.arange(6) < k) * rng.uniform(0.5, 1.6)
        mu = np.sort(mu)[::-1]
        for exactly in (False, True):
            values = project_spectrum(mu, k, exactly=exactly).values
            projector = bool(np.abs(values - (np.arange(6) < k)).max() < 1e-12)
            assert projector == stays_rank(mu, k), (mu, k, exactly)
            seen.add(projector)
    assert seen == {True, False}
    assert stays_rank(np.array([1.5]), 1) and stays_rank(np.array([1.5, 0.5]), 1) and not stays_rank(np.zeros(0), 1)


@pytest.mark.slow
@pytest.mark.parametrize("ridged", [False, True])
def test_near_the_optimum_and_the_mean_no_batch_takes_the_rank_away(ridged: bool) -> None:
    """Lemma 5.2 and its ridged form: where it says so, mu_k - mu_{k+1} >= 1 for every C_t within ``distance`` of C.
    It says so in hundreds of 3000 cases. Mutants: the loss, the distance or the ridge left out, which says so where the
    rank is lost."""
    rng = np.random.default_rng(11)
    said, lost = 0, {"loss": 0, "k": 0, "ridge": 0}
    for _ in range(3000):
        k, d, eta = int(rng.integers(1, 4)), 7, float(rng.uniform(0.05, 1.0))
        values = np.sort(np.concatenate([rng.uniform(0.4, 1.0, k), rng.uniform(0, 0.2, d - k)]))[::-1]
        gap = values[k - 1] - values[k]
        ridge = float(rng.uniform(0, gap)) if ridged else 0.0
        u = np.linalg.qr(np.eye(d)[:, :k] + rng.uniform(0, 0.6) * rng.standard_normal((d, k)))[0]
        loss = float(values[:k].sum() - np.einsum("ij,i,ij->", u, values, u))
        push = u @ u.T - np.eye(d)[:, [k]] @ np.eye(d)[:, [k]].T  # the batch that hurts: away from P, towards k + 1
        push = -push if rng.random() < 0.7 else np.diag(rng.choice([-1.0, 1.0], d))
        distance = float(rng.uniform(0, 0.15))
        batch = np.diag(values) + distance * push / np.linalg.norm(push, 2)
        mixed = np.linalg.eigvalsh((1 - eta * ridge) * u @ u.T + eta * batch)[::-1]
        stays = bool(mixed[k - 1] - mixed[k] >= 1 - 1e-12)
        holds = surely_stays_rank(loss, gap, distance, k, ridge=ridge)
        assert stays or not holds, (k, loss, gap, distance, ridge)
        said += holds
        lost["loss"] += surely_stays_rank(0.0, gap, distance, k, ridge=ridge) and not stays
        lost["k"] += surely_stays_rank(loss, gap, 0.0, k, ridge=ridge) and not stays
        lost["ridge"] += surely_stays_rank(loss, gap, distance, k) and not stays
    assert said > 100 and lost["loss"] > 10 and lost["k"] > 10 and (lost["ridge"] > 10 or not ridged)


@pytest.mark.parametrize("k", [1, 2, 5])
@pytest.mark.parametrize("ridge", [0.0, 0.3])
def test_the_lemma_that_keeps_the_rank_is_as_printed(k: int, ridge: float) -> None:
    """loss <= gap / 2 - ridge / 2 - distance (k + 1), from both sides. Mutants: k, k + 2, 2 k, gap / 4."""
    limit = 0.9 / 2 - ridge / 2 - 0.02 * (k + 1)
    assert limit > 0.02
    assert surely_stays_rank(limit - 1e-9, 0.9, 0.02, k, ridge=ridge)
    assert not surely_stays_rank(limit + 1e-9, 0.9, 0.02, k, ridge=ridge)


def test_refusals() -> None:
    with pytest.raises(BadInputError, match="cannot sum to 4"):
        project_spectrum(np.ones(3), 4, exactly=True)
    with pytest.raises(BadInputError, match="finite"):
        project_spectrum(np.array([np.nan, 1]), 1)
