"""Varimax, promax and Procrustes against references written another way."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.decomposition._factor_analysis import _ortho_rotation

from npmdask.errors import BadInputError
from npmdask.rotations.rotations import procrustes, promax, varimax


def varimax_criterion(loadings: np.ndarray) -> float:
    """Sum over columns of the variance of the squared entries: what varimax makes as large as it can."""
    squares = loadings**2
    return float((np.square(squares).mean(axis=0) - squares.mean(axis=0) ** 2).sum())


def loadings(seed: int = 0, d: int = 30, k: int = 4) -> np.ndarray:
    """Simple structure, turned at random and noisy."""
    rng = np.random.default_rng(seed)
    simple = np.kron(np.eye(k), np.ones((-(-d // k), 1)))[:d] * np.geomspace(3, 1, k)
    return (simple + 0.2 * rng.standard_normal((d, k))) @ np.linalg.qr(rng.standard_normal((k, k)))[0]


def by_gradient(x: np.ndarray, starts: int = 5) -> float:
    """The largest criterion that the iteration by singular value decompositions finds from random starts."""
    rng, best, d = np.random.default_rng(1), -np.inf, len(x)
    for _ in range(starts):
        r = np.linalg.qr(rng.standard_normal((x.shape[1],) * 2))[0]
        for _ in range(2000):
            y = x @ r
            u, _, vt = np.linalg.svd(x.T @ (y**3 - y * (y**2).sum(axis=0) / d))
            r = u @ vt
        best = max(best, varimax_criterion(x @ r))
    return best


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.slow
def test_varimax_is_that_of_scikit_learn_and_of_another_iteration(seed: int) -> None:
    x = loadings(seed)
    r = varimax(x)
    np.testing.assert_allclose(r.T @ r, np.eye(4), atol=1e-13)
    assert varimax_criterion(x @ r) == pytest.approx(by_gradient(x), rel=1e-10)
    theirs = _ortho_rotation(x, method="varimax", tol=1e-14, max_iter=5000).T
    same = np.abs((x @ r).T @ theirs) / np.outer(np.linalg.norm(x @ r, axis=0), np.linalg.norm(theirs, axis=0))
    np.testing.assert_allclose(same.max(axis=1), 1, atol=1e-8)


def test_one_column_and_columns_that_no_rotation_improves_stay() -> None:
    """Fails when rounding turns what every angle is equally good for."""
    np.testing.assert_array_equal(varimax(np.ones((5, 1))), [[1.0]])
    np.testing.assert_array_equal(varimax(np.zeros((5, 3))), np.eye(3))
    circle = 2 * np.pi * np.arange(64) / 64
    np.testing.assert_array_equal(varimax(np.c_[np.cos(circle), np.sin(circle)]), np.eye(2))


@pytest.mark.parametrize("size", [1e-150, 1e150])
def test_varimax_does_not_depend_on_the_unit(size: float) -> None:
    np.testing.assert_allclose(varimax(loadings() * size), varimax(loadings()), atol=1e-9)


def test_a_row_of_zeros_is_no_obstacle_to_normalisation() -> None:
    x = loadings()
    x[3] = 0.0
    rows = np.linalg.norm(x, axis=1, keepdims=True)
    whole = np.divide(x, rows, out=np.zeros_like(x), where=rows > 0)
    np.testing.assert_allclose(varimax(x, normalize=True), varimax(whole), atol=1e-12)
    assert np.abs(varimax(x, normalize=True) - varimax(x)).max() > 1e-4


def test_promax_is_the_least_squares_fit_of_powers() -> None:
    """As R's promax has it, column by column; the scale of a target does not matter."""
    x = loadings(2)
    turn, turned = promax(x, power=3.0), x @ varimax(x)
    for j in range(4):
        fitted = np.linalg.solve(turned.T @ turned, turned.T @ (np.sign(turned[:, j]) * np.abs(turned[:, j]) ** 3))
        mine = np.linalg.solve(varimax(x), turn[:, j])
        np.testing.assert_allclose(mine / np.linalg.norm(mine), fitted / np.linalg.norm(fitted), atol=1e-10)
    np.testing.assert_allclose(np.diagonal(np.linalg.inv(turn.T @ turn)), 1, atol=1e-12)
    np.testing.assert_allclose(promax(x, power=1.0), varimax(x), atol=1e-12)
    with pytest.raises(BadInputError, match="at least 1"):
        promax(x, power=0.5)


def test_procrustes_finds_a_rotation_back() -> None:
    rng = np.random.default_rng(3)
    v, q = (np.linalg.qr(rng.standard_normal(shape))[0] for shape in ((20, 4), (4, 4)))
    np.testing.assert_allclose(procrustes(v @ q, v), q.T, atol=1e-12)


def test_what_is_not_finite_is_refused() -> None:
    with pytest.raises(BadInputError, match="finite"):
        varimax(np.array([[np.nan, 1.0], [0.0, 1.0]]))
