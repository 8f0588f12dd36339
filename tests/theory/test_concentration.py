"""Assumption A from records: exact where a few records are the whole distribution; against matrices that are formed.

How the estimates compare with the closed forms of the generators is in tests/experiments.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from npmdask.errors import BadInputError
from npmdask.numerics.subspaces import random_orthonormal
from npmdask.theory.diagnostics import assumption_a

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
