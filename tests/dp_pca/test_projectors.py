"""What the deflation rests on: projectors, the lemmas of Duengler and Sanyal (2025) about them, and their Theorem 2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npmdask.core.numerics.subspaces import project_out, random_orthonormal, unit
from npmdask.dp_pca.deflation import Deflation
from npmdask.dp_pca.record_images import images_of_matrices

sizes = given(st.integers(3, 10), st.integers(1, 4), st.integers(0, 10**6))
examples = settings(deadline=None, max_examples=40)


def covariance(d: int, rng: np.random.Generator) -> np.ndarray:
    """Positive semidefinite, with eigenvalues that fall by orders of magnitude."""
    v = random_orthonormal(d, d, rng)
    return (v * np.sort(10.0 ** rng.uniform(-3, 1, d))[::-1]) @ v.T


def projector(found: np.ndarray) -> np.ndarray:
    """P = I - U U^T by the product's own function, row by row of the identity."""
    return project_out(np.eye(len(found)), found)


@pytest.mark.slow
@examples
@sizes
def test_p_is_an_orthogonal_projector_of_rank_d_minus_j(d: int, j: int, seed: int) -> None:
    """P = P^T = P^2, P U = 0, tr P = d - j. Fails with I - 2 U U^T (the second projection of the vector, not of what
    the first has left), or with none."""
    rng = np.random.default_rng(seed)
    found = random_orthonormal(d, min(j, d - 1), rng)
    p = projector(found)
    np.testing.assert_allclose(p, p.T, atol=1e-13)
    np.testing.assert_allclose(p @ p, p, atol=1e-13)
    np.testing.assert_allclose(p @ found, 0, atol=1e-14)
    assert np.trace(p) == pytest.approx(d - found.shape[1])
    v = rng.standard_normal(d)
    np.testing.assert_allclose(project_out(v, found), p @ v, atol=1e-13)
    assert project_out(v, np.zeros((d, 0))) is v


@examples
@sizes
def test_the_lemmas_on_projected_matrices(d: int, j: int, seed: int) -> None:
    """||P S P|| >= lambda_{j+1}(S) for P of rank d - j; ||P A P|| <= ||A||; ||E P A P A^T P|| <= ||E A A^T||; images
    are those of P A_i P. Fails where the projection stretches (P + U U^T / 2), or is left out on one side."""
    rng = np.random.default_rng(seed)
    found, s = random_orthonormal(d, min(j, d - 1), rng), covariance(d, rng)
    p, values = projector(found), np.linalg.eigvalsh(s)[::-1]
    assert np.linalg.norm(p @ s @ p, 2) >= values[found.shape[1]] * (1 - 1e-12)
    matrices = rng.standard_normal((6, d, d))
    inside = np.array([p @ a @ p for a in matrices])
    for a, projected in zip(matrices, inside, strict=True):
        assert np.linalg.norm(projected, 2) <= np.linalg.norm(a, 2) * (1 + 1e-12)
    spread = np.linalg.norm(np.mean([a @ a.T for a in matrices], axis=0), 2)
    assert np.linalg.norm(np.mean([b @ b.T for b in inside], axis=0), 2) <= spread * (1 + 1e-12)
    w = rng.standard_normal(d)
    np.testing.assert_allclose(images_of_matrices(matrices, w, found), inside @ w, atol=3e-6)


@examples
@sizes
def test_eigenvalues_drift_by_no_more_than_four_sines(d: int, which: int, seed: int) -> None:
    """|lambda_i(P S P) - lambda_{i+1}(S)| <= 4 lambda_1 sin theta, P = I - u u^T with u near v_1 (their Lemma 24 with
    8 (1 + sin); Weyl's inequality and ||u u^T - v v^T|| = sin give 4). Fails with the index i - 1 (ERR-17)."""
    rng = np.random.default_rng(seed)
    s = covariance(d, rng)
    values, vectors = np.linalg.eigh(s)
    falling, first = values[::-1], vectors[:, -1]
    u = unit(first + 10.0 ** -rng.uniform(0, 4) * rng.standard_normal(d))
    sine = float(np.linalg.norm(u - first * (first @ u)))
    p = projector(u[:, None])
    deflated = np.linalg.eigvalsh(p @ s @ p)[::-1]
    assert np.abs(deflated[: d - 1] - falling[1:]).max() <= 4 * falling[0] * sine + 1e-12


@dataclass(frozen=True)
class Approximate:
    """The top eigenvector of P Sigma P, turned away as far as zeta allows; takes one answer a round, whatever it is."""

    sigma: np.ndarray
    target_rank: int
    zeta: float

    def init(self, found: np.ndarray, earlier: Any) -> np.ndarray:
        p = projector(found)
        values, vectors = np.linalg.eigh(p @ self.sigma @ p)
        top, away = vectors[:, -1], project_out(np.random.default_rng(found.shape[1]).standard_normal(len(p)), found)
        away = unit(away - top * (top @ away))
        low = float(away @ self.sigma @ away)
        share = min(self.zeta**2 * values[-1] / max(values[-1] - low, 1e-300), 1.0)  # of the energy that may be lost
        return np.sqrt(1 - share) * top + np.sqrt(share) * away

    def update(self, inner: np.ndarray, answer: Any) -> np.ndarray:
        return inner

    def direction(self, inner: np.ndarray) -> np.ndarray:
        return inner


@pytest.mark.slow
@examples
@given(st.integers(4, 10), st.integers(1, 3), st.floats(0, 0.9), st.integers(0, 10**6))
def test_deflation_loses_no_more_than_its_oracle(d: int, k: int, zeta: float, seed: int) -> None:
    """<U U^T, Sigma> >= (1 - zeta^2) ||Sigma||_(k) for any zeta-approximate oracle, private or not: Theorem 2, with no
    loss over rounds. Mutant: a round that is told of all directions but the last."""
    sigma = covariance(d, np.random.default_rng(seed))
    deflation = Deflation(Approximate(sigma, k, zeta))  # type: ignore[arg-type]
    state = deflation.init(d)
    while not deflation.finished(state):
        state = deflation.update(state, None)
    best = np.sort(np.linalg.eigvalsh(sigma))[::-1][:k].sum()
    np.testing.assert_allclose(state.found.T @ state.found, np.eye(k), atol=1e-13)
    assert np.trace(state.found.T @ sigma @ state.found) >= (1 - zeta**2) * best * (1 - 1e-10)
