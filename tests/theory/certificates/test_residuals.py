"""Bounds from residuals, where they can be worked out: they are attained by 2 x 2 matrices."""

from __future__ import annotations

import math

import numpy as np
import pytest

from npmdask.core.certificates.bounds import (
    EXACT,
    component_sines,
    distances_of,
    largest,
    norms_of_leading,
    quick_largest,
    remainder,
    spaces,
    span_sine,
)

THETA, REST, R = 3.0, 1.0, 0.5  # A = [[3, 0.5], [0.5, 1]]
SECOND, FIRST = np.linalg.eigvalsh([[THETA, R], [R, REST]])


def test_temple_is_attained() -> None:
    """theta + r^2 / (theta - lambda_2) is lambda_1, and tau + r^2 / (theta - tau) is what lies outside."""
    (space,) = spaces(np.array([THETA]), np.array([[R**2]]), np.array([np.inf, SECOND]))
    assert space.upper[0] == pytest.approx(FIRST)
    assert space.outside == pytest.approx(REST)
    assert spaces(np.array([THETA]), np.array([[R**2]]), np.array([np.inf, THETA])) == []


def test_the_angle_of_a_2_by_2_matrix() -> None:
    """r / (theta - c), against the tangent r / (lambda_1 - c) in fact."""
    values, gram, tau = np.array([THETA]), np.array([[R**2]]), np.array([FIRST, SECOND])
    found = spaces(values, gram, tau)
    left = remainder(values, gram, 1, found, tau)
    assert left == pytest.approx(REST)
    assert span_sine(values, gram, 1, found, left) == pytest.approx(R / (THETA - REST))
    assert component_sines(values, gram, 1, found, np.array([FIRST]))[0] == pytest.approx(R / (THETA - REST))
    assert R / (THETA - REST) >= math.sin(math.atan(R / (FIRST - REST)))


def case(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """A of both signs (eigenvalues 8, -7, 5, -4, 1, ...), 4 Ritz pairs near the leading ones; all in its own basis."""
    rng = np.random.default_rng(seed)
    eigenvalues = np.array([8.0, -7, 5, -4, 1, -0.9, 0.5, 0.2])
    basis = np.linalg.qr(np.eye(8, 4) + 0.15 * rng.standard_normal((8, 4)))[0]
    product = eigenvalues[:, None] * basis
    theta, turn = np.linalg.eigh(basis.T @ product)
    order = np.argsort(-np.abs(theta))
    vectors, values = basis @ turn[:, order], theta[order]
    residuals = eigenvalues[:, None] * vectors - vectors * values
    return eigenvalues, vectors, values, residuals, residuals.T @ residuals


@pytest.mark.parametrize("seed", range(30))
def test_bounds_hold_for_both_signs(seed: int) -> None:
    """With tau = |lambda_5| itself. Without the mask of signs, or with theta in place of |theta|, some of them fail."""
    eigenvalues, vectors, values, _, gram = case(seed)
    sizes = np.abs(eigenvalues)
    tau = np.append(sizes[:4] + 10, sizes[4])
    (space,) = spaces(values, gram, tau)
    upper = np.sort(space.upper)[::-1]
    assert (upper >= sizes[:4] - 1e-12).all() and (upper <= sizes[:4] + 1.5).all()
    out = np.linalg.svd(vectors, full_matrices=True)[0][:, 4:]
    assert np.linalg.norm(out.T @ (eigenvalues[:, None] * out), 2) <= space.outside + 1e-12
    for k in (1, 2, 3):
        left = remainder(values, gram, k, [space], tau)
        p = vectors[:, :k] @ vectors[:, :k].T
        assert np.linalg.norm((np.eye(8) - p) @ np.diag(eigenvalues) @ (np.eye(8) - p), 2) <= left + 1e-12
        sine = np.linalg.norm(np.eye(8, k) - p[:, :k], 2)
        assert sine <= span_sine(values, gram, k, [space], left)
    singles = component_sines(values, gram, 4, [space], space.upper)
    actual = np.sqrt(1 - np.minimum(np.abs(np.diagonal(vectors[:4])), 1) ** 2)
    assert (actual <= singles + 1e-7).all()


def test_a_gap_further_down_is_used() -> None:
    """Values 1, 0.99 | 0.98, 0.97 | 0.1: errors come from 0.1, so that k = 2 is known as well as its residual tells."""
    values = np.array([1.0, 0.99, 0.98, 0.97])
    gram = np.diag([1e-8, 1e-8, 1e-8, 1e-8])
    tau = np.append(np.full(4, 1.2), 0.1)
    found = spaces(values, gram, tau)
    sine = span_sine(values, gram, 2, found, remainder(values, gram, 2, found, tau))
    assert sine == pytest.approx(1e-4 * math.sqrt(2) / 0.89, rel=1e-2)  # Davis and Kahan: 1e-4 / 0.01


def test_norms_of_many_columns_are_bounds() -> None:
    rng = np.random.default_rng(0)
    block = rng.standard_normal((300, EXACT + 60)) * np.logspace(-3, 0, EXACT + 60)
    gram = block.T @ block
    norms = norms_of_leading(gram)
    exact = np.sqrt([largest(gram[:j, :j]) for j in range(1, len(gram) + 1)])
    assert (norms >= exact - 1e-12).all() and (norms[:EXACT] == exact[:EXACT]).all() and norms[-1] == exact[-1]
    assert quick_largest(gram) >= largest(gram) and quick_largest(gram[:9, :9]) == largest(gram[:9, :9])


def test_signs_do_not_share_their_residuals() -> None:
    """3 and -2.9 with residuals in one direction: without the mask of signs the bound of 2.9 is below the truth."""
    r = 0.5
    exact = np.linalg.eigvalsh([[3.0, 0, r], [0, -2.9, r], [r, r, 0]])
    third, least = abs(exact[1]), -exact[0]
    (space,) = spaces(np.array([3.0, -2.9]), r**2 * np.ones((2, 2)), np.array([np.inf, np.inf, third]))
    assert space.upper[0] >= exact[2] - 1e-12 and space.upper[1] >= least - 1e-12


def test_distances_are_from_where_an_eigenvalue_can_be() -> None:
    np.testing.assert_allclose(distances_of(np.array([2.0, 1.0, -1.5]), 1, 1.2), [0.8, 0.0, 2.5])
