"""Bound eigenvalues that a random start cannot have missed, with a stated probability.

A start Omega (d x p, Gaussian) contains, for every q <= p, a block U_1 + U_2 F over the q leading eigenvectors, and
``tangents`` bounds ||F||. A polynomial of A applied to it shrinks F; Courant and Fischer's theorem makes of that

    theta_i >= (1 - loss) lambda_i,      loss = max over s of (1 - s) y / (1 + y),    y = (t w(s))^2,

where s = lambda_j / lambda_i <= 1 is what may lie below lambda_i and w(s) what the polynomial leaves of it: s^L
after L multiplications, 1 / T_L(2 / sigma - 1) for all s <= sigma with Chebyshev's polynomial (a block Krylov space
holds both).
"""

from __future__ import annotations

import math

import numpy as np

Bounds = np.ndarray

HALVINGS = 40  # of an interval that holds a bound
CELLS = np.concatenate([[0.0], 1 - np.logspace(0, -9, 800)[1:], [1.0]])  # of s in [0, 1]: fine where it matters


def tangents(d: int, p: int, fail_prob: float) -> Bounds:
    """t (p values, of q = 1..p): ||Omega_2 Omega_1^+|| <= t_q for all q at once, except with ``fail_prob``.

    Omega_1 (q x p) and Omega_2 (d - q x p) are independent and Gaussian. Given Omega_1 the norm is at most
    (sqrt(d - q) + u) / s + sqrt(q) / s with s its smallest singular value (Halko, Martinsson and Tropp 2011, proof of
    Theorem 10.8), half of the probability of each q for u and half for s.
    """
    each = fail_prob / (2 * p)
    u = math.sqrt(2 * math.log(1 / each))
    return np.array(
        [
            0.0 if q >= d else (math.sqrt(d - q) + u + math.sqrt(q)) / smallest_singular_value(q, p, each)
            for q in range(1, p + 1)
        ]
    )


def smallest_singular_value(q: int, p: int, fail_prob: float) -> float:
    """What the smallest singular value of a Gaussian q x p block (q <= p) exceeds, except with ``fail_prob``.

    The better of two: Halko, Martinsson and Tropp 2011, Proposition A.3 (of q = 1: the chi distribution near zero), and
    sqrt(p) - sqrt(q) - sqrt(2 ln(1 / fail_prob)) (Gordon, and concentration).
    """
    w = p - q + 1
    if q == 1:  # P(chi_p <= y) <= y^p / (2^(p / 2) Gamma(p / 2 + 1))
        small = math.exp((math.log(fail_prob) + p / 2 * math.log(2) + math.lgamma(p / 2 + 1)) / p)
    else:
        small = w / (math.e * math.sqrt(p)) * (fail_prob * math.sqrt(2 * math.pi * w)) ** (1 / w)
    return max(small, math.sqrt(p) - math.sqrt(q) - math.sqrt(2 * math.log(1 / fail_prob)))


def loss_of_powers(t: float, steps: int, largest: float, floor: float, *, square: bool = False) -> float:
    """The loss after ``steps`` multiplications, if nothing below lambda_i is above ``largest`` (<= 1) of it.

    ``floor``: what rounding adds to w. ``square``: of A^2, whose Ritz values fall short by 1 - s^2. On every cell of a
    grid numerator and denominator are taken where they are worst, so that it is a bound.
    """
    low, high = CELLS[:-1], np.minimum(CELLS[1:], largest)
    inside = low <= largest
    y = np.square(t * (high[inside] ** steps) + floor)
    short = 1 - low[inside] ** (2 if square else 1)
    return float((short * y / (1 + y)).max(initial=0.0))


def loss_of_chebyshev(t: float, degree: int, largest: float, floor: float) -> float:
    """The loss of a space that holds all polynomials of this degree: the best sigma, or T_L(2 / largest - 1) alone."""
    if degree < 1:
        return 1.0
    sigma = np.concatenate([np.linspace(0.02, 0.98, 49), [0.99, 0.999]])
    sigma = sigma[sigma < largest]
    if largest <= 0:
        return float(_share(floor))
    with np.errstate(over="ignore"):
        beyond = np.maximum(_share(t / _chebyshev(2 / sigma - 1, degree) + floor), 1 - sigma)
    at_largest = _share(t / float(_chebyshev(np.array(2 / largest - 1), degree)) + floor)
    return float(min(at_largest, beyond.min(initial=1.0)))


def _share(w: np.ndarray | float) -> np.ndarray | float:
    y = np.square(w)
    return y / (1 + y)


def _chebyshev(x: np.ndarray, degree: int) -> np.ndarray:
    return np.cosh(np.minimum(degree * np.arccosh(np.maximum(x, 1.0)), 300.0))


def upper_values(
    sizes: np.ndarray, d: int, p: int, degree: int, *, powers: bool, square: bool, rounding: float, fail_prob: float
) -> Bounds:
    """Upper bounds of the i-th largest |lambda|, i = 1..min(p, len(sizes)), all at once except with ``fail_prob``.

    Parameters
    ----------
    sizes : Ritz values of a non-negative A; or, with ``square``, the roots of those of A^2 (A of both signs).
    powers : the space is A^degree Omega; otherwise it is Krylov's.
    rounding : absolute error of every product, which the multiplications carry along.

    Notes
    -----
    From the last to the first: a bound of lambda_{q+1} says how far below lambda_i the rest begins, for every q.
    """
    t = tangents(d, p, fail_prob)
    count = min(p, len(sizes))
    upper = np.full(count, np.inf)
    for i in range(count - 1, -1, -1):
        size = float(sizes[i])
        if size <= rounding:
            upper[i] = rounding if degree > 0 else np.inf
            continue
        floor = degree * rounding / size
        losses = []
        for q in sorted({i, *np.unique(np.geomspace(i + 1, p, 12).astype(int) - 1)}):  # q + 1 of the paper
            below = min(1.0, float(upper[q + 1]) / size) if q + 1 < count else 1.0
            if powers:
                losses.append(loss_of_powers(t[q], degree, below, floor, square=square))
            else:
                losses.append(loss_of_chebyshev(t[q], degree, below, floor))
        left = 1 - min(losses)
        if left > 0:
            upper[i] = size / (math.sqrt(left) if square else left)
    return np.minimum.accumulate(upper)


def largest_missed(values: np.ndarray, gram: np.ndarray, held: np.ndarray, degree: int, fail_prob: float) -> float:
    """Bound of |mu| for every eigenvector u that is orthogonal to given columns, but for ``fail_prob``.

    Random columns Omega without what the given ones hold of them, multiplied ``degree`` times, are in range(Q). Nothing
    is assumed of the spectrum.

    Parameters
    ----------
    values, gram : r Ritz values of A on range(Q), outside of the given columns, and R^T R of their residuals.
    held : logarithms of the r largest singular values of M, where u^T Q = mu^degree (u^T Omega) M.

    Notes
    -----
    u^T Omega is Gaussian and independent of what Omega holds of other directions. So u has the share
    s^2 = kappa / (1 + kappa) in range(Q), with kappa >= (mu^degree x_j sigma_j)^2 for every j, where chi_j exceeds x_j.
    On the other side u^T R = u^T Q (mu - Theta), so that s <= ||R (|mu| - |Theta|)^(-1)||: no mu is possible for which
    that is less. The one falls with mu and the other grows.
    """
    sizes = np.abs(values)
    top, root = float(sizes.max(initial=0.0)), math.sqrt(_largest(gram))
    if not root:
        return top
    luck = np.log([smallest_singular_value(1, j, fail_prob) for j in range(1, len(held) + 1)])

    def possible(mu: float) -> bool:
        kappa = math.exp(min(2 * float((degree * math.log(mu) + luck + held).max()), 700.0))
        scale = 1 / (mu - sizes)
        return _largest(gram * np.outer(scale, scale)) * (1 + kappa) >= kappa

    low, high = top, top + root
    while possible(high):
        high = top + 2 * (high - top)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if middle > top and possible(middle) else (low, middle)
    return high


def _largest(gram: np.ndarray) -> float:
    return max(float(np.linalg.eigvalsh(gram)[-1]), 0.0) if len(gram) else 0.0
