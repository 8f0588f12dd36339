"""Diagnostics against closed forms: what can be worked out on paper."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from npmdask.core.numerics.subspaces import random_orthonormal
from npmdask.errors import BadInputError
from npmdask.theory import diagnostics
from npmdask.theory.diagnostics import assumption_a

EYE = np.eye(6)


def tilted(*angles: float) -> np.ndarray:
    """len(angles) orthonormal columns of R^6, column i tilted from e_i towards e_{i+3}."""
    return np.stack([math.cos(a) * EYE[:, i] + math.sin(a) * EYE[:, i + 3] for i, a in enumerate(angles)], axis=1)


def test_principal_angles_of_a_known_tilt() -> None:
    found = diagnostics.principal_angles(tilted(0.3, 1e-9, 0.1), EYE[:, :3])
    np.testing.assert_allclose(found.sines, np.sin([0.3, 0.1, 1e-9]), rtol=1e-7)
    np.testing.assert_allclose(found.cosines, np.cos([0.3, 0.1, 1e-9]), rtol=1e-12)
    np.testing.assert_allclose(found.tangents, np.tan([0.3, 0.1, 1e-9]), rtol=1e-7)  # 1 - cos^2 would give 0 or 1e-8
    assert found.frobenius == pytest.approx(np.linalg.norm(np.sin([0.3, 0.1, 1e-9])))


def test_projections_differ_by_the_square_root_of_two_times_the_sines() -> None:
    x, u = tilted(0.4, 0.2, 0.1), EYE[:, :3]
    distance = np.linalg.norm(x @ x.T - u @ u.T)
    assert distance == pytest.approx(math.sqrt(2) * diagnostics.principal_angles(x, u).frobenius)


def test_a_direction_that_is_missed_altogether_has_no_tangent() -> None:
    found = diagnostics.principal_angles(EYE[:, [0, 3]], EYE[:, :2])
    assert found.tangents[0] == math.inf and found.sines[0] == 1.0 and found.tangents[1] == 0.0


def test_a_larger_basis_is_measured_against_fewer_directions() -> None:
    assert diagnostics.principal_angles(tilted(0.5, 0.0, 0.0), EYE[:, [1, 2]]).sines.max() == pytest.approx(
        0, abs=1e-15
    )


@pytest.mark.parametrize("least", [True, False])
def test_h_is_the_tangent_where_nothing_is_free(least: bool) -> None:
    x = tilted(0.7, 0.2)
    assert diagnostics.h_rank_k(x, EYE, 2, 2, least=least) == pytest.approx(math.tan(0.7))
    assert diagnostics.h_rank_k(x, EYE, 1, 2, least=least) == pytest.approx(math.tan(0.7))
    assert diagnostics.h_rank_k(tilted(0.2, 0.7), EYE, 1, 2, least=least) == pytest.approx(math.tan(0.2))


def test_h_of_least_norm_uses_the_freedom_that_more_columns_give() -> None:
    """e_1 + e_4 and e_4 + e_5: the pseudo-inverse leaves e_4 (h = 1), W of least norm takes off half of it."""
    x = np.linalg.qr(np.stack([EYE[:, 0] + EYE[:, 3], EYE[:, 3] + EYE[:, 4]], axis=1))[0]
    assert diagnostics.h_rank_k(x, EYE, 1, 1) == pytest.approx(math.sqrt(0.5))  # e_1 + e_4 - (e_4 + e_5) / 2
    assert diagnostics.h_rank_k(x, EYE, 1, 1, least=False) >= diagnostics.h_rank_k(x, EYE, 1, 1)


@pytest.mark.parametrize("seed", range(5))
def test_h_bounds_the_tangent_and_the_pseudo_inverse_bounds_h(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = random_orthonormal(6, 4, rng)
    for q in (2, 3, 4):
        least, printed = (diagnostics.h_rank_k(x, EYE, 2, q, least=flag) for flag in (True, False))
        assert diagnostics.principal_angles(x, EYE[:, :2]).tangents[0] <= least + 1e-12 <= printed + 2e-12


def test_h_of_a_space_that_misses_a_direction() -> None:
    assert diagnostics.h_rank_k(EYE[:, [1, 2]], EYE, 1, 1) == math.inf
    with pytest.raises(BadInputError, match="choose another q"):
        diagnostics.h_rank_k(EYE[:, :2], EYE, 1, 3)


def test_residuals_of_a_tilted_vector() -> None:
    """For v at the angle a between eigenvectors of x and y the residual norm is |x - y| sin(a) cos(a)."""
    a, theta = 0.3, 5 * math.cos(0.3) ** 2 + 2 * math.sin(0.3) ** 2
    found = diagnostics.residual_norms(np.diag([5.0, 1, 1, 2, 1, 1]), tilted(a), np.array([theta]))
    np.testing.assert_allclose(found, 3 * math.sin(a) * math.cos(a))


def test_low_rank_residuals_of_a_diagonal_matrix() -> None:
    a = np.diag([4.0, 3, 2, 1, 0, 0])
    best = diagnostics.low_rank_residuals(a, EYE[:, :2], 2)
    assert best == pytest.approx((2.0, math.sqrt(5), 0.0, 0.0))
    worse = diagnostics.low_rank_residuals(a, EYE[:, [0, 2]], 2)
    assert worse == pytest.approx((3.0, math.sqrt(10), 0.5, math.sqrt(2) - 1))
    assert diagnostics.low_rank_residuals(a, EYE[:, :3], 2).spectral_excess == pytest.approx(-0.5)
    assert diagnostics.low_rank_residuals(a, EYE[:, :4], 4)[2:] == (0.0, 0.0)
    assert diagnostics.low_rank_residuals(a, EYE[:, [0, 1, 2, 4]], 4).spectral_excess == math.inf


def test_the_captured_ratio_is_one_less_the_square_of_zeta() -> None:
    a, x = np.diag([4.0, 3, 2, 1, 0.5, 0.1]), tilted(0.3, 0.2)
    ratio = diagnostics.captured_ratio(a, x)
    by_hand = 4 * math.cos(0.3) ** 2 + math.sin(0.3) ** 2 + 3 * math.cos(0.2) ** 2 + 0.5 * math.sin(0.2) ** 2
    assert ratio == pytest.approx(by_hand / 7)
    found = diagnostics.zeta(x, EYE[:, :2], np.array([4.0, 3]), lambda block: a @ block)
    assert 1 - found**2 == pytest.approx(ratio)


def test_suboptimality_of_a_mixture_and_of_its_rounding() -> None:
    c = np.diag([3.0, 2, 1, 0, 0, 0])
    p = np.diag([1.0, 0.25, 0.75, 0, 0, 0])
    whole, rounded = diagnostics.suboptimality(c, p, 2)
    assert whole == pytest.approx(5 - (3 + 0.5 + 0.75))
    assert rounded == pytest.approx(5 - (3 + 1))


def test_suboptimality_below_zero_is_not_clipped() -> None:
    held_out, reference = np.diag([1.0, 2, 0, 0, 0, 0]), np.diag([2.0, 1, 0, 0, 0, 0])
    assert diagnostics.suboptimality(held_out, np.diag([0, 1.0, 0, 0, 0, 0]), 1, reference=reference) == (-1.0, -1.0)


def test_facts_of_an_iterate() -> None:
    assert diagnostics.iterate_facts(np.diag([1.0, 0.5, -0.25, 0, 1e-12, 0])) == pytest.approx((2, 1.25, -0.25, 1.0))


def hadamard(d: int) -> np.ndarray:
    return np.ones((1, 1)) if d == 1 else np.kron(hadamard(d // 2), [[1, 1], [1, -1]]) / math.sqrt(2)


def test_coherence_at_its_ends_and_of_the_worse_side() -> None:
    falling = np.diag(np.arange(8.0, 0, -1))
    assert diagnostics.coherence(falling) == pytest.approx(8)
    assert diagnostics.coherence(hadamard(8) @ falling @ hadamard(8).T) == pytest.approx(1)
    wide = hadamard(4) @ np.eye(4, 8) * np.arange(8, 0, -1)  # left basis flat, right basis the coordinates
    assert diagnostics.coherence(wide) == pytest.approx(8)
    assert diagnostics.coherence(wide.T) == pytest.approx(8)  # the left basis now: both sides are looked at


def test_incoherence_at_its_ends() -> None:
    assert diagnostics.incoherence(EYE[:, :2]) == pytest.approx(3)
    assert diagnostics.incoherence(hadamard(8)[:, :2]) == pytest.approx(1)


def test_recovery_up_to_order_and_sign() -> None:
    true, weights = EYE[:, :3], np.array([3.0, 2.0, 1.0])
    found = np.stack([EYE[:, 2], -EYE[:, 0], tilted(0.0, 0.05)[:, 1]], axis=1)
    recovery = diagnostics.tensor_recovery(true, weights, found, np.array([1.0, -3.0, 2.5]))
    assert recovery.recovered == 3 and recovery.duplicates == 0
    assert recovery.vector_error == pytest.approx(2 * math.sin(0.025))
    assert recovery.weight_error == pytest.approx(0.5)
    tensor = 2 * np.einsum("i,j,k", *[true[:, 1]] * 3) - 2.5 * np.einsum("i,j,k", *[found[:, 2]] * 3)
    assert recovery.residual == pytest.approx(np.linalg.norm(tensor), rel=1e-6)


def test_duplicates_are_seen() -> None:
    found = np.stack([EYE[:, 0], EYE[:, 0]], axis=1)
    recovery = diagnostics.tensor_recovery(EYE[:, :2], np.ones(2), found, np.ones(2))
    assert (recovery.recovered, recovery.duplicates) == (1, 0)  # the second is matched with what it is not
    more = diagnostics.tensor_recovery(EYE[:, :1], np.ones(1), found, np.ones(2))
    assert (more.recovered, more.duplicates) == (1, 1)


def test_roundness_at_its_ends() -> None:
    """All rows along one direction: d / p. Rows that every projection sees alike: 1."""
    rng = np.random.default_rng(0)
    line = np.ones((50, 1)) * EYE[0]
    assert diagnostics.roundness(line, 2, projections=3, rng=rng) == pytest.approx(3)
    assert diagnostics.roundness(line * 17, 3, projections=3, rng=rng) == pytest.approx(2)  # free of units
    assert diagnostics.roundness(np.concatenate([EYE, -EYE]), 6, projections=3, rng=rng) == pytest.approx(1)


def test_roundness_of_a_tail_by_hand() -> None:
    """100 rows of d = 2, p = 1, along the axes: 99 of norm 1 on e_1, one of norm 3 on e_2. c = 1: ln(100) > 3, so that
    the long row is allowed; e_1 then needs B p / d = 1. Without the tail's allowance c would be 3 and B less than 1."""
    rows = np.concatenate([np.repeat([[1.0, 0.0]], 99, axis=0), [[0.0, 3.0]]])
    found = diagnostics.roundness(rows, 1, projections=0, rng=np.random.default_rng(0))
    assert found == pytest.approx(2)


def test_gaussian_rows_are_rounder_than_spiked_ones() -> None:
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((2000, 20))
    spiked = rows * np.where(np.arange(20) == 0, 6.0, 1.0)
    assert diagnostics.roundness(rows, 2, rng=rng) < 3 < diagnostics.roundness(spiked, 2, rng=rng) <= 10


def test_roundness_refuses_what_has_no_directions() -> None:
    with pytest.raises(BadInputError, match="choose another p"):
        diagnostics.roundness(np.ones((3, 2)), 3, rng=np.random.default_rng(0))


# How random matrices spread: the numbers of Assumption A.

SIGNS = np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
CORNERS = SIGNS * [math.sqrt(2), 1.0]  # x x^T = [[2, +-sqrt(2)], [+-sqrt(2), 1]]: D = +-sqrt(2) [[0, 1], [1, 0]]
HALF = 1e-3  # what sizes are rounded up by, twice


def of(rows: np.ndarray, parts: int = 3) -> Callable[[], Iterator[np.ndarray]]:
    return lambda: iter(np.array_split(rows, parts))


@pytest.mark.parametrize("scale", [1.0, 1e-9, 1e12])
@pytest.mark.parametrize("sigma", [None, np.diag([2.0, 1.0])])
def test_four_records_by_hand(scale: float, sigma: np.ndarray | None) -> None:
    """D is +-sqrt(2) times a flip: V = 2 / 4, gamma = M = sqrt(2) / 2, and K gamma = M / ln 2 (or ln(2)^2 for a = 2).

    The eigenvectors of Sigma alone give |u^T D u| = 0. Mutants: pairs (u, u) only, the mean of x instead of x x^T,
    a where 1 / a should be, units of the records.
    """
    given = None if sigma is None else sigma * scale**2
    found = assumption_a(of(CORNERS * scale), 1, sigma=given)
    assert (found.model.kappa, found.model.V) == pytest.approx((2.0, 0.5)) and found.rows == 4
    assert found.model.gamma == pytest.approx(math.sqrt(0.5))
    assert math.sqrt(0.5) <= found.model.M <= math.sqrt(0.5) * (1 + 2 * HALF)
    assert 1 / math.log(2) <= found.model.K * (1 + 1e-9) and found.model.K <= (1 + 2 * HALF) / math.log(2)
    np.testing.assert_allclose(found.values, np.array([2.0, 1.0]) * scale**2)
    heavy = assumption_a(of(CORNERS * scale), 1, sigma=given, a=2.0)
    assert heavy.model.K == pytest.approx(1 / math.log(2) ** 2, rel=3 * HALF) and heavy.model.a == 2.0


def test_what_all_matrices_have_is_no_spread() -> None:
    """C + x x^T: Sigma grows, D stays. Mutant: C counted as spread, or Sigma without it."""
    common = np.diag([3.0, 0.0])
    found = assumption_a(of(CORNERS), 1, common=common).model
    assert (found.kappa, found.V, found.gamma) == pytest.approx((5 / 4, 2 / 25, math.sqrt(2) / 5))
    given = assumption_a(of(CORNERS), 1, common=common, sigma=np.diag([5.0, 1.0])).model
    assert given == pytest.approx(found)


@pytest.mark.parametrize("quantile", [0.1, 0.5, 0.9, 1.0])
def test_distances_are_those_of_matrices_that_are_formed(quantile: float) -> None:
    """Small records too, whose distance is of the most negative eigenvalue of D. Mutants: the largest eigenvalue of D
    only (which fails at the small quantiles), ||x||^2 + lambda_1 for the norm."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((400, 5)) * [3, 2.5, 1, 1, 0.1] * rng.uniform(0, 2, (400, 1))
    sigma = rows.T @ rows / len(rows)
    apart = np.einsum("ni,nj->nij", rows, rows) - sigma
    sizes = np.sort(np.linalg.norm(apart, 2, axis=(1, 2)))
    found = assumption_a(of(rows), 2, quantile=quantile)
    expected = sizes[round(quantile * 400) - 1] / found.values[0]
    assert expected <= found.model.M * (1 + 1e-9) and found.model.M <= expected * (1 + 2 * HALF)
    square = np.einsum("nij,njk->ik", apart, apart) / 400
    assert found.model.V == pytest.approx(np.linalg.norm(square, 2) / found.values[0] ** 2)


@pytest.mark.parametrize("a", [0.5, 1.0, 2.0])
def test_gamma_and_the_tail_against_all_pairs_of_directions_of_the_plane(a: float) -> None:
    """A grid of angles: nowhere is the tail much worse than for pairs that were tried. Mutant: a instead of 1 / a."""
    rows = np.random.default_rng(3).standard_normal((300, 2)) * [2.0, 1.0]
    found = assumption_a(of(rows), 1, a=a)
    apart = np.einsum("ni,nj->nij", rows, rows) - rows.T @ rows / 300
    angles = np.linspace(0, math.pi, 40, endpoint=False)
    sides = np.stack([np.cos(angles), np.sin(angles)])
    forms = np.abs(np.einsum("ip,nij,jq->npq", sides, apart, sides)).reshape(300, -1) / found.values[0]
    assert found.model.gamma == pytest.approx(np.sqrt((forms**2).mean(axis=0).max()), rel=0.01)
    t = found.model.K * found.model.gamma
    assert (np.exp((forms / t / 1.06) ** (1 / a)).mean(axis=0) <= 2).all()
    assert (np.exp((forms / t * 1.02) ** (1 / a)).mean(axis=0) >= 2).any()


def test_a_direction_that_is_no_eigenvector_of_the_mean_is_found() -> None:
    """Records of covariance I but for noise, heavy along w: gamma^2 = 1 / share - 1 and more than the 2 of normal
    records. Mutant: the eigenvectors of Sigma only, which are any."""
    rng, share = np.random.default_rng(1), 0.05
    rows = rng.standard_normal((20_000, 12))
    w = random_orthonormal(12, 1, rng)[:, 0]
    heavy = np.where(rng.random(len(rows)) < share, share**-0.5, 0.0) * rng.choice([-1.0, 1.0], len(rows))
    rows += np.outer(heavy - rows @ w, w)
    exact = np.mean((heavy**2 - 1) ** 2)
    found = assumption_a(of(rows), 1)
    assert found.model.gamma**2 * found.values[0] ** 2 == pytest.approx(exact, rel=0.03)
    assert assumption_a(of(rows), 1, sweeps=1).model.gamma <= found.model.gamma


def test_batches_are_asked_for_once_a_pass_and_are_the_same_in_any_cut() -> None:
    """Three passes and ``sweeps``, one less with Sigma. Mutant: a mean of the batches' means."""
    rows = np.random.default_rng(2).standard_normal((100, 4)) * [3, 2, 1, 1]
    asked = []

    def batches() -> Iterator[np.ndarray]:
        asked.append(1)
        return iter([rows[:7], rows[7:7], rows[7:90], rows[90:]])

    whole = assumption_a(of(rows, 1), 2)
    assert assumption_a(batches, 2).model == pytest.approx(whole.model) and len(asked) == 5
    assumption_a(batches, 2, sigma=rows.T @ rows / 100, sweeps=1)
    assert len(asked) == 5 + 3


@pytest.mark.parametrize(
    ("batches", "options", "sentence"),
    [
        (of(CORNERS), {"k": 2}, "k [+] 1 falling"),
        (of(CORNERS), {"k": 0}, "whole number"),
        (of(CORNERS), {"sweeps": 0}, "whole number"),
        (of(CORNERS), {"quantile": 0.0}, "share of the records"),
        (of(CORNERS), {"a": -1.0}, "exponent"),
        (of(CORNERS), {"sigma": np.diag([2.0, -1.0])}, "none negative"),
        (of(CORNERS), {"common": np.diag([3.0, 2.0]), "sigma": np.diag([5.0, 1.0])}, "no negative"),
        (of(np.ones((3, 2))), {"sigma": np.array([[1.0, 1.0], [1.0, 1.0]])}, "are the same"),
        (of(SIGNS * [1, np.nan]), {}, "finite"),
        (lambda: [np.ones((2, 2)), np.ones((2, 3))], {}, "2 finite numbers"),
        (lambda: [np.ones(3)], {}, "b records"),
        (lambda: [], {}, "0 records"),
    ],
)
def test_what_gives_no_numbers_is_refused(
    batches: Callable[[], Iterator[np.ndarray]], options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(BadInputError, match=sentence):
        assumption_a(batches, **{"k": 1, **options})


def test_an_iterator_that_is_used_up_is_seen() -> None:
    once = iter([CORNERS])
    with pytest.raises(BadInputError, match="every time it is called"):
        assumption_a(lambda: once, 1)
