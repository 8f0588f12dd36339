"""Steps towards the likelihood, against scikit-learn, SciPy, integrals and the theorem of EM."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import multivariate_normal
from sklearn.mixture import GaussianMixture

from npmdask.latent.likelihood import (
    CONTRASTS,
    LEAST_ROWS,
    OF_NOISE,
    ContrastMeans,
    Expectation,
    SphericalGaussians,
    ascent,
    component_shifts,
    contrasts,
    log_sums,
    maximized,
    orthonormal,
    rotation,
)


def a_mixture(seed: int, n: int = 500, d: int = 4, k: int = 3) -> tuple[np.ndarray, SphericalGaussians]:
    """Rows of overlapping components, and a model that is not theirs."""
    rng = np.random.default_rng(seed)
    true = 2 * rng.standard_normal((d, k))
    rows = true[:, rng.integers(0, k, n)].T + rng.standard_normal((n, d))
    weights = rng.dirichlet(np.full(k, 3.0))
    off = true + rng.standard_normal((d, k))
    return rows, SphericalGaussians(means=off, weights=weights, variances=rng.uniform(0.3, 3, k))


def expected(rows: np.ndarray, model: SphericalGaussians) -> Expectation:
    """The E-step, from the densities of SciPy."""
    d = rows.shape[1]
    parts = zip(model.weights, model.means.T, model.variances, strict=True)
    joint = np.stack([w * multivariate_normal(m, v * np.eye(d)).pdf(rows) for w, m, v in parts], axis=1)
    shares = joint / joint.sum(axis=1, keepdims=True)
    apart = np.square(rows[:, :, None] - model.means).sum(axis=1)
    return Expectation(
        sums=rows.T @ shares,
        counts=shares.sum(axis=0),
        squares=(shares * apart).sum(axis=0),
        log_likelihood=float(np.log(joint.sum(axis=1)).sum()),
    )


def test_densities_are_those_of_scipy_and_nothing_overflows() -> None:
    rows, model = a_mixture(0)
    logs, apart = model.log_joint(np.square(rows).sum(axis=1), rows @ model.means)
    sums, shares = log_sums(logs)
    found = expected(rows, model)
    assert sums.sum() == pytest.approx(found.log_likelihood, rel=1e-12)
    np.testing.assert_allclose(shares.sum(axis=0), found.counts, rtol=1e-10)
    np.testing.assert_allclose((shares * apart).sum(axis=0), found.squares, rtol=1e-10)
    far = np.full((2, 4), 1e6)
    logs, _ = model.log_joint(np.square(far).sum(axis=1), far @ model.means)
    sums, shares = log_sums(logs)
    assert np.isfinite(sums).all() and shares.sum(axis=1) == pytest.approx(1)


@pytest.mark.filterwarnings("ignore:Best performing initialization:sklearn.exceptions.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_step_of_em_is_that_of_scikit_learn() -> None:
    rows, model = a_mixture(1)
    theirs = GaussianMixture(3, covariance_type="spherical", max_iter=1, reg_covar=0.0)
    theirs.set_params(
        weights_init=model.weights, means_init=model.means.T, precisions_init=1 / model.variances, init_params="random"
    )
    theirs.fit(rows)
    ours = maximized(model, expected(rows, model), floor=1e-12)
    np.testing.assert_allclose(ours.means.T, theirs.means_, atol=1e-10)
    np.testing.assert_allclose(ours.weights, theirs.weights_, atol=1e-12)
    np.testing.assert_allclose(ours.variances, theirs.covariances_, atol=1e-10)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("floor", [1e-9, 1.1])
def test_the_likelihood_never_falls_and_rises_by_what_was_said(seed: int, floor: float) -> None:
    """Also where the floor binds: Dempster, Laird and Rubin 1977, theorem 1, for a maximum over an interval."""
    rows, model = a_mixture(seed)
    model = SphericalGaussians(means=model.means, weights=model.weights, variances=np.maximum(model.variances, floor))
    here, bound = expected(rows, model), 0
    for _ in range(20):
        new = maximized(model, here, floor)
        least, there = ascent(model, new, here), expected(rows, new)
        assert least >= -1e-9 and there.log_likelihood >= here.log_likelihood + least - 1e-9 * abs(here.log_likelihood)
        model, here, bound = new, there, bound + int((new.variances == floor).any())
    assert (bound > 0) == (floor == 1.1)


def test_a_component_on_a_single_row_keeps_what_it_had_or_stops_at_the_floor() -> None:
    """The likelihood of free variances has no maximum: a component on a row may be as dense there as it likes."""
    rows, _ = a_mixture(2)
    outlier = np.full((1, 4), 50.0)
    rows = np.concatenate([rows, outlier])
    model = SphericalGaussians(
        means=np.stack([rows[:-1].mean(axis=0), outlier[0] + 0.5], axis=1),
        weights=np.array([0.99, 0.01]),
        variances=np.array([4.0, 1.0]),
    )
    found = expected(rows, model)
    assert found.counts[1] == pytest.approx(1.0)
    narrow = maximized(
        model,
        Expectation(**vars(found) | {"counts": found.counts * [1, 2.001], "sums": found.sums * [1, 2.001]}),
        floor=0.04,
    )
    assert narrow.variances[1] == 0.04
    counts = np.array([found.counts[0], 0.5 * LEAST_ROWS])
    kept = maximized(model, Expectation(**vars(found) | {"counts": counts}), floor=0.04)
    assert kept.variances[1] == 1.0 and (kept.means[:, 1] == outlier[0] + 0.5).all()
    gone = maximized(model, Expectation(**vars(found) | {"counts": np.array([501.0, 0.0])}), floor=0.04)
    assert 0 < gone.weights[1] < 1e-9


def test_changes_are_in_sampling_errors() -> None:
    model = SphericalGaussians(means=np.zeros((4, 2)), weights=np.array([0.25, 0.75]), variances=np.array([1.0, 4.0]))
    shifted = SphericalGaussians(means=model.means + [[0.2, 0.0]] * 4, weights=model.weights, variances=model.variances)
    assert component_shifts(model, shifted, 100) == pytest.approx([0.4 / np.sqrt(4 / 25), 0.0])
    lighter = SphericalGaussians(means=model.means, weights=np.array([0.2, 0.8]), variances=model.variances)
    assert component_shifts(model, lighter, 100) == pytest.approx([0.05 / 0.04, 0.05 / 0.04])


# Independent components


def test_what_noise_shows_by_quadrature() -> None:
    """Variances of ``s g(s) - g'(s)`` less what fixing the variance of s explains; the mean is 0."""
    s = np.linspace(-10, 10, 100_001)
    weights = np.exp(-(s**2) / 2)
    weights /= weights.sum()
    g, slope, _ = (values[:, :, 0] for values in contrasts(s[:, None]).transpose(1, 0, 2, 3))
    statistic = s * g - slope
    np.testing.assert_allclose(statistic @ weights, 0, atol=1e-9)
    explained = (statistic * (s**2 - 1)) @ weights
    np.testing.assert_allclose((statistic**2) @ weights - explained**2 / 2, OF_NOISE, rtol=1e-3)


def test_contrasts_have_the_derivatives_that_they_say() -> None:
    s, h = np.linspace(-4, 4, 40)[:, None], 1e-5
    g, slope, _ = contrasts(s).transpose(1, 0, 2, 3)
    above, below = contrasts(s + h).transpose(1, 0, 2, 3), contrasts(s - h).transpose(1, 0, 2, 3)
    np.testing.assert_allclose((above[2] - below[2]) / (2 * h), g, atol=1e-7)
    np.testing.assert_allclose((above[0] - below[0]) / (2 * h), slope, atol=1e-7)


N = 20_000


def whitened(*sources: np.ndarray) -> np.ndarray:
    """Rows whose sample covariance is I, in which the sources lie along the axes up to sampling errors."""
    rows = np.stack(sources, axis=1)
    rows = rows - rows.mean(axis=0)
    values, vectors = np.linalg.eigh(rows.T @ rows / len(rows))
    return rows @ (vectors / np.sqrt(values)) @ vectors.T


def measured(rows: np.ndarray, basis: np.ndarray) -> ContrastMeans:
    found = contrasts(rows @ basis)
    return ContrastMeans(
        back=np.stack([rows.T @ g / len(rows) for g, _, _ in found]),
        slopes=found[:, 1].mean(axis=1),
        squares=(found[:, 0] ** 2).mean(axis=1),
        values=found[:, 2].mean(axis=1),
    )


def turned(rows: np.ndarray, basis: np.ndarray, steps: int) -> tuple[np.ndarray, list[float], list[str]]:
    """The basis after some steps, the change of each, and the contrasts that were last chosen."""
    changes = []
    for _ in range(steps):
        step = rotation(basis, measured(rows, basis), len(rows))
        basis = step.basis
        np.testing.assert_allclose(basis.T @ basis, np.eye(basis.shape[1]), atol=1e-12)
        changes.append(float(step.change.max()))
    return basis, changes, [CONTRASTS[i] if i >= 0 else "none" for i in step.chosen]


@pytest.mark.slow
def test_sources_of_both_signs_converge_fast_and_each_by_its_contrast() -> None:
    rng = np.random.default_rng(0)
    rows = whitened(rng.laplace(size=N), rng.uniform(-1, 1, N), rng.exponential(size=N), rng.choice([-1.0, 1.0], N))
    off = orthonormal(np.eye(4) + 0.05 * rng.standard_normal((4, 4)))[0]
    basis, changes, chosen = turned(rows, off, 4)
    assert changes[0] > 3 and changes[1] < 0.6 and changes[3] < 1e-2
    assert chosen[:3] == ["logcosh3", "cube", "logcosh"]
    assert np.abs(basis - np.eye(4)).max() < 0.02 < np.abs(off - np.eye(4)).max()


@pytest.mark.slow
def test_a_gaussian_source_moves_none_and_is_not_said_to_be_known() -> None:
    """A step that is scaled by what no contrast knows of it would turn the others, too."""
    rng = np.random.default_rng(1)
    rows = whitened(rng.laplace(size=N), rng.uniform(-1, 1, N), rng.standard_normal(N), rng.standard_normal(N))
    off = orthonormal(np.eye(4) + 0.05 * rng.standard_normal((4, 4)))[0]
    basis, changes, chosen = turned(rows, off, 4)
    assert chosen[2:] == ["none", "none"] and changes[3] < 1e-3
    assert np.abs(np.abs(basis[:2, :2]) - np.eye(2)).max() < 0.02
    noise = whitened(*rng.standard_normal((3, N)))
    step = rotation(np.eye(3), measured(noise, np.eye(3)), N)
    assert (step.chosen == -1).all() and (step.basis == np.eye(3)).all() and (step.change == 0).all()


@pytest.mark.slow
def test_the_source_that_is_known_better_decides() -> None:
    """Of a two-valued and a nearly Gaussian source the first: with equal weights the error is several times larger."""
    errors = []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        rows = whitened(rng.choice([-1.0, 1.0], 4000) + 0.1 * rng.standard_normal(4000), rng.gamma(6, size=4000))
        basis, _, _ = turned(rows, np.eye(2), 3)
        true = np.eye(2)  # whitened symmetrically: off by half of the correlation of the sources at most
        errors.append(abs(basis[1, 0] - true[1, 0]))
    assert np.median(errors) < 0.012
