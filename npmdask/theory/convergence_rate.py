"""How many steps an algorithm will need, from a spectrum: formulas only, no data and no clock."""

from __future__ import annotations

import numpy as np

MOST = 10**6  # steps beyond any patience
ZERO = 1e-15  # of the largest eigenvalue of A^T A: rounding


def predict_passes(
    spectrum: np.ndarray, k: int, p: int, tol: float, algorithm: str = "power", *, definite: bool = True
) -> int:
    """Steps until the relative residual of the k-th pair falls to ``tol``; ``MOST`` if it never does.

    ``spectrum``: sizes of the eigenvalues of the operator, falling. ``algorithm``: power or krylov. ``definite``:
    no eigenvalue is negative (``A^T A``); it only matters to krylov.

    In the coordinates of the eigenvectors a Gaussian start of p columns holds, for every intermediate rank
    q (k <= q <= p), a vector e_k + h with h_j = 0 for j <= q, j != k, and entries beyond q of about
    1 / sqrt(p - q + 1) (least norm; the rank q is that of Balcan, Du, Wang and Yu 2016, Theorem 2.2). A step
    multiplies h_j by f(lambda_j) / f(lambda_k), with f the power x^l, or for krylov at best the Chebyshev
    polynomial of degree l of the unwanted interval. Step l + 1 sees the residual of l multiplications:

        residual^2 = sum_{j > q} (f_l(lambda_j) / f_l(lambda_k) (1 - lambda_j / lambda_k))^2 / (p - q + 1)
    """
    return min(steps_by_rank(spectrum, k, p, tol, algorithm, definite=definite))


def steps_by_rank(
    spectrum: np.ndarray, k: int, p: int, tol: float, algorithm: str = "power", *, definite: bool = True
) -> list[int]:
    """The formula of :func:`predict_passes` for every intermediate rank q from k (the gap at k decides) to p."""
    size = np.sort(np.abs(np.asarray(spectrum, np.float64)))[::-1]
    size = size[size > ZERO * size.max(initial=0.0)]
    k = min(k, len(size))
    if k == 0 or p >= len(size):
        return [2]
    return [min(MOST, 1 + _multiplications(size, k, q, p, tol, algorithm, definite)) for q in range(k, p + 1)]


def _multiplications(size: np.ndarray, k: int, q: int, p: int, tol: float, algorithm: str, definite: bool) -> int:
    """The smallest l whose residual is below ``tol``, found by doubling and halving."""
    if size[q] >= size[k - 1]:
        return MOST
    high = 1
    while _log_residual(size, k, q, p, high, algorithm, definite) > np.log(tol):
        if high >= MOST:
            return MOST
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        small = _log_residual(size, k, q, p, middle, algorithm, definite) <= np.log(tol)
        low, high = (low, middle) if small else (middle, high)
    return high


def _log_residual(size: np.ndarray, k: int, q: int, p: int, steps: int, algorithm: str, definite: bool) -> float:
    """Logarithm of the formula of :func:`predict_passes`: its terms leave float64."""
    ratio = size[q:] / size[k - 1]
    if algorithm == "krylov":
        factors = np.full(len(ratio), -_log_chebyshev(steps, size[k - 1], size[q], definite))
    elif algorithm == "power":
        factors = steps * np.log(ratio)
    else:
        raise ValueError(f"no prediction for algorithm {algorithm!r}")
    with np.errstate(divide="ignore"):
        terms = 2 * (factors + np.log1p(-np.minimum(ratio, 1.0)))
    return float(np.logaddexp.reduce(terms) - np.log(p - q + 1)) / 2


def _log_chebyshev(steps: int, wanted: float, unwanted: float, definite: bool) -> float:
    """log T_l at ``wanted``, T_l bounded by 1 on [0, unwanted], or on [-unwanted, unwanted] if not definite."""
    gap = (wanted - unwanted) / unwanted / (1 if definite else 2)
    growth = np.arccosh(1 + 2 * gap)
    return float(steps * growth + np.log1p(np.exp(-2 * steps * growth)) - np.log(2))
