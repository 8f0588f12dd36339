"""Blocks: QR with fixed signs, rank deficiency, Rayleigh-Ritz, angles."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npmdask.core.numerics import subspaces
from npmdask.core.numerics.random import generator
from npmdask.core.numerics.subspaces import (
    add_product,
    asymmetry,
    fix_signs,
    max_sin_theta,
    orth,
    principal_angle_sines,
    random_orthonormal,
    rayleigh_ritz,
    tall_qr,
)


def test_orth_is_gram_schmidt() -> None:
    block = np.random.default_rng(0).standard_normal((50, 6))
    q, r = np.linalg.qr(block)
    expected = q * np.sign(np.diagonal(r))
    np.testing.assert_allclose(orth(block, generator(0)), expected, atol=1e-13)


@pytest.mark.slow
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


@pytest.mark.parametrize("d", [19, 200, 201, 2000])
def test_qr_by_blocks_is_householders(d: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to two levels of blocks. Fails when a block of rows is left out, or a turn is applied to the wrong block."""
    monkeypatch.setattr(subspaces, "ROWS_AT_ONCE", 10)
    block = np.random.default_rng(0).standard_normal((d, 3)) * [1e6, 1, 1e-9]
    expected, triangle = np.linalg.qr(block)
    given = block.copy()
    q, r = tall_qr(given)
    signs = np.sign(np.diagonal(r) * np.diagonal(triangle))
    np.testing.assert_allclose(q * signs, expected, atol=1e-13)
    np.testing.assert_allclose(r * signs[:, None], triangle, rtol=1e-9)
    assert (np.tril(r, -1) == 0).all() and (q is given) == (d >= 48), "a tall block holds its own Q"


def test_orth_of_a_tall_block_changes_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with columns that are lost, and in Fortran's order. Fails when the in-place QR reaches the caller's array,
    or where the order of a block (which decides the bits of every later product) is handed on."""
    monkeypatch.setattr(subspaces, "ROWS_AT_ONCE", 10)
    block = np.asfortranarray(np.random.default_rng(0).standard_normal((300, 4)))
    block[:, 2] = block[:, 0]
    before = block.copy()
    q = orth(block, generator(0))
    assert np.array_equal(block, before) and q.flags.c_contiguous
    np.testing.assert_allclose(q.T @ q, np.eye(4), atol=1e-13)
    np.testing.assert_allclose(q @ (q.T @ block), block, atol=1e-12)


def test_a_product_added_by_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subspaces, "ROWS_AT_ONCE", 10)
    rng = np.random.default_rng(0)
    total, left, right = rng.standard_normal((25, 3)), rng.standard_normal((25, 2)), rng.standard_normal((2, 3))
    expected = total + left @ right
    add_product(total, left, right)
    np.testing.assert_allclose(total, expected, atol=1e-14)


def test_signs_make_the_largest_entry_positive_and_the_first_of_two() -> None:
    """A vector and its opposite get the same sign, also where two entries are equally large."""
    vectors = np.array([[0.1, -3.0, 2.0, 0.0], [-2.0, 3.0, -2.0, 0.0], [1.0, 0.5, 0.0, 0.0]])
    assert fix_signs(vectors).tolist() == [-1, -1, 1, 1]
    assert fix_signs(-vectors).tolist() == [1, 1, -1, 1]


def test_orth_keeps_what_comes_after_a_column_that_is_lost() -> None:
    """Householder puts e_3 in the place of the third column; fails where the fourth, which is e_3, is lost with it."""
    block = np.eye(6)[:, [0, 1, 0, 2, 1]]
    q = orth(block, generator(0))
    np.testing.assert_allclose(q.T @ q, np.eye(5), atol=1e-14)
    np.testing.assert_allclose(q[:, [0, 1, 3]], block[:, [0, 1, 3]], atol=1e-14)
    assert orth(np.zeros((6, 2)), generator(0)).shape == (6, 2)


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
    assert asymmetry(basis, a @ basis) < 1e-15
    a[3, 7] += 1e-6
    assert asymmetry(basis, a @ basis) > 1e-12


@pytest.mark.parametrize("angle", [1e-14, 1e-9, 1e-3, 0.5, np.pi / 2])
def test_principal_angles_against_the_closed_form(angle: float) -> None:
    e = np.eye(5)
    turned = np.column_stack([e[:, 0], np.cos(angle) * e[:, 1] + np.sin(angle) * e[:, 2]])
    sines = principal_angle_sines(turned, e[:, :2])
    np.testing.assert_allclose(sines, [np.sin(angle), 0], rtol=1e-2 if angle < 1e-12 else 1e-6, atol=1e-16)
    assert max_sin_theta(np.eye(5)[:, :4], e[:, 1:3]) == 0.0
