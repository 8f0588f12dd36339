"""Blocks: QR with fixed signs, rank deficiency, Rayleigh-Ritz, angles."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npmdask.diagnostics import max_sin_theta, principal_angle_sines
from npmdask.linalg import asymmetry, orth, random_orthonormal, rayleigh_ritz
from npmdask.randomness import generator


def test_orth_is_gram_schmidt() -> None:
    block = np.random.default_rng(0).standard_normal((50, 6))
    q, r = np.linalg.qr(block)
    expected = q * np.sign(np.diagonal(r))
    np.testing.assert_allclose(orth(block, generator(0)), expected, atol=1e-13)


@settings(deadline=None, max_examples=50)
@given(st.integers(2, 40), st.integers(1, 8), st.integers(0, 8), st.integers(0, 10**6), st.floats(-100, 100))
def test_orth_always_gives_p_orthonormal_columns(d: int, p: int, rank: int, seed: int, exponent: float) -> None:
    p, rng = min(p, d), np.random.default_rng(seed)
    rank = min(rank, p)
    block = rng.standard_normal((d, rank)) @ rng.standard_normal((rank, p)) * 10.0**exponent
    q = orth(block, generator(seed, "completion"))
    np.testing.assert_allclose(q.T @ q, np.eye(p), atol=1e-12)
    if rank:
        assert np.linalg.norm(block - q @ (q.T @ block)) <= 1e-10 * np.linalg.norm(block)


def test_orth_stays_out_of_what_is_locked() -> None:
    rng = np.random.default_rng(1)
    locked = random_orthonormal(40, 5, rng)
    block = rng.standard_normal((40, 4)) + 1e6 * locked[:, :4]
    block[:, 2] = locked[:, 0]  # nothing of it is left
    q = orth(block, rng, against=locked)
    assert np.abs(locked.T @ q).max() < 1e-13
    np.testing.assert_allclose(q.T @ q, np.eye(4), atol=1e-13)


def test_rayleigh_ritz_finds_signed_eigenpairs_and_their_residuals() -> None:
    rng = np.random.default_rng(2)
    v = np.linalg.qr(rng.standard_normal((30, 30)))[0]
    values = np.array([-9.0, 7.0, -5.0, 3.0] + [0.1] * 26)
    a = (v * values) @ v.T
    basis = np.linalg.qr(v[:, :4] @ rng.standard_normal((4, 4)))[0]
    pairs = rayleigh_ritz(basis, a @ basis, 3)
    np.testing.assert_allclose(pairs.values, [-9, 7, -5], atol=1e-12)
    assert pairs.residual_norms.max() < 1e-12
    rough = np.linalg.qr(basis + 1e-3 * rng.standard_normal(basis.shape))[0]
    pairs = rayleigh_ritz(rough, a @ rough, 3)
    true = np.linalg.norm(a @ pairs.vectors - pairs.vectors * pairs.values, axis=0)
    np.testing.assert_allclose(pairs.residual_norms, true, rtol=1e-10)
    assert (pairs.vectors[np.argmax(np.abs(pairs.vectors), axis=0), range(3)] > 0).all()


def test_asymmetry_sees_one_wrong_entry() -> None:
    rng = np.random.default_rng(3)
    a = rng.standard_normal((200, 200))
    a = a + a.T
    basis = random_orthonormal(200, 5, rng)
    skew, size = asymmetry(basis, a @ basis)
    assert skew / size < 1e-15
    a[3, 7] += 1e-6
    skew, size = asymmetry(basis, a @ basis)
    assert skew / size > 1e-12


@pytest.mark.parametrize("angle", [1e-14, 1e-9, 1e-3, 0.5, np.pi / 2])
def test_principal_angles_against_the_closed_form(angle: float) -> None:
    e = np.eye(5)
    turned = np.column_stack([e[:, 0], np.cos(angle) * e[:, 1] + np.sin(angle) * e[:, 2]])
    sines = principal_angle_sines(turned, e[:, :2])
    np.testing.assert_allclose(sines, [np.sin(angle), 0], rtol=1e-2 if angle < 1e-12 else 1e-6, atol=1e-16)
    assert max_sin_theta(np.eye(5)[:, :4], e[:, 1:3]) == 0.0
