"""A certificate: how wrong values, components and what they capture can be, and what each bound rests on.

Three grounds, the strictest first; each has bounds of everything, and those of a later one are never wider:

    always          a theorem without assumptions (of a non-negative operator: its trace, where that is known)
    random start    besides, with probability ``confidence``, that the random start was not blind
    none missed     besides, that the Ritz pairs which were seen belong to the largest eigenvalues

First the certificate, then what it is made of: what a random start cannot have missed, and what residuals bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from npmdask.core.certificates.recursions import gaussian_norm, improved_recursion, npm_error_recursion

ALWAYS, START, SEEN = "always", "random start", "none missed"
SINGLE_EPS, DOUBLE_EPS = float(np.finfo(np.float32).eps), float(np.finfo(np.float64).eps)
SINGLE_FLOOR = 16  # of npmdask.core.algorithms: what float32 products can be trusted to
BLIND = 0.01  # share of random starts that hold less of one direction than is taken for granted where none was missed
ALIKE = 0.8  # of p: so many pairs that are not told apart may be more, as p columns hold the p-th direction badly
HALVINGS = 40  # of an interval that holds a bound
ROOM = 64 * DOUBLE_EPS  # of an eigenvalue: what the deviations of ordinary columns make it off by
SHARP = 2.0  # a stricter ground is preferred as long as its bounds are not so many times as wide


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Knowledge of a run at its end, in the units of the operator A (d x d, symmetric). No product is asked for.

    Attributes
    ----------
    values, gram : m >= k Ritz values by falling magnitude, and R^T R (m x m) of the residuals of their pairs.
    nonnegative : A has no negative eigenvalue (it is X^T X).
    trace : of A, where it is known.
    multiplied : how often what the space is made of was multiplied by A before; 0: it is as random as the start.
    columns : random ones of the start that the space holds powers of; 0: none (deflation, noise in between).
    known : a warm start gave columns beside these. ``missed``: an eigenvalue so large it may hide from them (99 %).
    formed : bounds of the largest eigenvalues of a matrix that was formed (npmdask.core.algorithms.Seen.upper).
    degree, powers : see npmdask.core.algorithms.Seen.
    rounding : absolute error that rounding can make in an eigenvalue.
    start_rounding : absolute error of the products that formed the space (larger, where some were in float32), and
        what converged pairs left out of them.
    iterated, locked : p, the columns of a product, and pairs that were found before (deflation).
    stddev : of Gaussian noise on each entry of the last product.
    """

    values: np.ndarray
    gram: np.ndarray
    k: int
    d: int
    nonnegative: bool
    multiplied: int = 1
    trace: float | None = None
    columns: int = 0
    known: bool = False
    missed: float = 0.0
    formed: np.ndarray | None = None
    degree: int | None = None
    powers: bool = False
    rounding: float = 0.0
    start_rounding: float = 0.0
    stddev: float = 0.0
    iterated: int = 0
    locked: int = 0
    confidence: float = 0.99


def rounding_of(d: int, size: float, *, single: bool = False) -> float:
    """Absolute error that arithmetic can make in an eigenvalue: of products, and of what turns vectors step by step.

    ``size``: of the largest. Of float64 8 eps (sqrt(d) + 10) times that: measured (docs/explanation/certificates.md),
    not proved; sums over rows are formed in a tree, so that their number does not count. Of float32 its floor in the
    algorithms.
    """
    if single:
        return SINGLE_FLOOR * SINGLE_EPS * math.sqrt(d) * size
    return 8 * DOUBLE_EPS * (math.sqrt(d) + 10) * size


def of_scale(error: float, size: float) -> float:
    """Bound the error of an eigenvalue of size ``size`` from dividing columns by numbers that are off by ``error``.

    They are off by ``error`` of their size, at most: then ``A`` is off by a diagonal factor, from 1 - x to 1 + x with
    x = error / (1 - error), and so is every singular value (Ostrowski). For :data:`ROOM` of it :func:`rounding_of` has
    room.
    """
    x = error / max(1 - error, DOUBLE_EPS)
    return max(x * (2 + x) - ROOM, 0.0) * size


@dataclass(frozen=True, kw_only=True)
class Level:
    """Bounds on one ground. inf: nothing is claimed. Values are |eigenvalues| by falling magnitude.

    Attributes
    ----------
    lower, upper : k values each; the i-th largest |lambda| lies between them.
    following : bound of the largest |lambda| that is not among the k.
    left : bound of ||(I - P) A (I - P)||; of A = B^T B the square of ||B - B P||.
    spectral : bound of ||(I - P) A||.
    sine : of the largest angle between the k Ritz vectors and the k leading eigenvectors, as subspaces.
    component_sines : k angles, each between a Ritz vector and its own eigenvector.
    lost : bound of (sum of the k largest |lambda|) - (sum of the |theta|): what other vectors could capture more.
    """

    ground: str
    lower: np.ndarray
    upper: np.ndarray
    following: float
    left: float
    spectral: float
    sine: float
    component_sines: np.ndarray
    lost: float


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """All levels; and ``nearest``: within so much of each theta_i there is an eigenvalue, whatever else holds.

    ``perturbation``: what rounding and noise add to A at most (noise: with probability ``confidence``).
    """

    values: np.ndarray
    nearest: np.ndarray
    levels: tuple[Level, ...]
    perturbation: float
    confidence: float
    noisy: bool

    @property
    def best(self) -> Level:
        """The strictest ground whose bounds are not SHARP times as wide as those of the weakest one."""
        last = self.levels[-1]
        for level in self.levels:
            if level.sine <= SHARP * last.sine and _max_error(level, self) <= SHARP * _max_error(last, self):
                return level
        return last


def _max_error(level: Level, certificate: Certificate) -> float:
    return float((level.upper - np.abs(certificate.values)).max()) + certificate.perturbation


def certify(evidence: Evidence) -> Certificate:
    """The certificate of what a run found. NumPy only: some dozens of m x m eigenvalue problems.

    Noise and rounding are a symmetric perturbation E of A for which the pairs are exact Ritz pairs: with
    A V = V Theta + R - G, ||E|| <= ||V^T G|| / 2 + sqrt((||V^T G|| / 2)^2 + ||G||^2) (Weyl adds it to every value).
    """
    e = evidence.rounding + _noise(evidence)
    k = evidence.k
    nearest = np.sqrt(np.maximum(np.diagonal(evidence.gram)[:k], 0.0)) + e
    levels = tuple(_level(evidence, ground, tau, e) for ground, tau in _grounds(evidence))
    return Certificate(
        values=evidence.values[:k],
        nearest=nearest,
        levels=levels,
        perturbation=e,
        confidence=evidence.confidence,
        noisy=evidence.stddev > 0,
    )


def _noise(evidence: Evidence) -> float:
    if not evidence.stddev:
        return 0.0
    p, fail = evidence.iterated, (1 - evidence.confidence) / 2
    whole = gaussian_norm(evidence.stddev, evidence.d, p, 1, fail)
    inside = gaussian_norm(evidence.stddev, p, p, 1, fail)
    return inside / 2 + math.hypot(inside / 2, whole)


def _grounds(evidence: Evidence) -> Iterator[tuple[str, np.ndarray]]:
    """For each ground tau (m + 1 values): tau[j] bounds the (j + 1)-th largest |lambda|."""
    tau = _from_trace(evidence)
    yield ALWAYS, tau
    if evidence.formed is not None:
        last = len(evidence.formed) - 1
        tau = np.minimum(tau, evidence.formed[np.minimum(np.arange(len(tau)), last)])
        yield START, tau
        return
    if evidence.columns and evidence.degree is not None:
        tau = np.minimum(tau, _from_start(evidence))
        yield START, tau
    if evidence.multiplied or evidence.missed:
        yield SEEN, np.minimum(tau, np.maximum(_from_residuals(evidence), evidence.missed))


def _from_trace(evidence: Evidence) -> np.ndarray:
    """sum of lambda_i = trace, and sums of Ritz values never exceed those of the eigenvalues that they approximate."""
    m = len(evidence.values)
    tau = np.full(m + 1, np.inf)
    if evidence.nonnegative and evidence.trace is not None:
        others = evidence.values.sum() - np.append(evidence.values, 0.0)
        tau = np.maximum(evidence.trace - others, 0.0) + evidence.rounding
        tau[:m] = np.maximum(tau[:m], evidence.values)  # a trace of equal terms is off by more: all round to one side
    if m == evidence.d:
        tau[m] = 0.0
    return np.minimum.accumulate(tau)


def _from_start(evidence: Evidence) -> np.ndarray:
    m = len(evidence.values)
    tau = np.full(m + 1, np.inf)
    assert evidence.degree is not None
    if not (evidence.nonnegative or evidence.powers):
        return tau
    sizes = evidence.values if evidence.nonnegative else _image_sizes(evidence)
    upper = upper_values(
        sizes,
        evidence.d,
        evidence.columns,
        evidence.degree,
        powers=evidence.powers,
        square=not evidence.nonnegative,
        rounding=evidence.start_rounding,
        fail_prob=1 - evidence.confidence,
    )
    tau[: len(upper)] = upper + evidence.start_rounding
    return np.minimum.accumulate(tau)


def _image_sizes(evidence: Evidence) -> np.ndarray:
    """Singular values of A X for an orthonormal basis X of the space: V^T A^2 V = Theta^2 + R^T R.

    Of Theta above a root of R^T R, not roots of the eigenvalues of the sum: below 1e-8 of the largest, squares are
    below its rounding.
    """
    squares, turn = np.linalg.eigh(evidence.gram)
    root = np.sqrt(np.maximum(squares, 0.0))[:, None] * turn.T
    return np.asarray(np.linalg.svd(np.concatenate([np.diag(evidence.values), root]), compute_uv=False))


def _from_residuals(evidence: Evidence) -> np.ndarray:
    """Bound a hidden larger eigenvalue by residuals, if the start held as much of it as nearly all starts do.

    A space that holds the share s = 1 / sqrt(1 + t^2) of an eigenvector of lambda has ||R|| >= s (lambda - theta). Of
    p random columns in d dimensions t^2 <= d / x^2 in 99 % (x: that quantile of chi_p), and (theta / lambda)^(2 L) of
    that after L multiplications: lambda is at most where both agree. Not proved, because it looks at one direction and
    at the residuals of the leading pairs alone; how often it has held is in docs/explanation/certificates.md.
    The last pair is the first to approximate a smaller one, and says nothing where there are others beyond k.

    Pairs beyond the p-th, which only a Krylov space has, say less, because p columns held no more than p directions:
    those behind are kept no better than the p-th. And of an eigenvalue with more than p directions p columns see p, as
    if it had no others. So where that many pairs (ALIKE of p) in a row are no further apart than what the last of them
    may hide, there may be more of their kind, and what was seen below bounds nothing. With p <= k it never does.
    """
    a = np.abs(evidence.values)
    iterated = evidence.iterated or evidence.k
    columns = max(1, evidence.columns) if evidence.known else iterated  # random ones: what luck and ties are counted by
    p = min(iterated + evidence.locked, len(a))
    kept = np.append(a[:p], np.full(len(a) - p, a[p - 1]))
    spread = evidence.d / smallest_singular_value(1, columns, BLIND) ** 2
    high = _hidden_bound(a, kept, evidence.gram, spread, evidence.multiplied)
    if len(np.unique(evidence.values < 0)) > 1:  # pairs of one sign do not show what is hidden from those of the other
        own = np.empty(len(a))
        for side in (evidence.values < 0, evidence.values >= 0):
            gram = evidence.gram[np.ix_(side, side)]
            own[side] = _hidden_bound(a[side], kept[side], gram, spread, evidence.multiplied)
        own = np.sort(own)[::-1]
        high = np.where(own - a > SHARP * (high - a) + evidence.rounding, own, high)  # less is luck, of mirrored pairs
    if evidence.locked:  # a direction that they do not hold is seen by the random columns beside them alone
        high[: evidence.locked] = np.maximum(high[: evidence.locked], high[evidence.locked])
    tau = np.append(high, np.inf)
    if len(a) > evidence.k + 1:
        tau[len(a) - 1] = np.inf
    tau[_count_distinct(a, high + 2 * evidence.rounding, math.ceil(ALIKE * columns)) :] = np.inf
    if p <= evidence.k:
        tau[p:] = np.inf
    return np.minimum.accumulate(tau)


def _hidden_bound(a: np.ndarray, kept: np.ndarray, gram: np.ndarray, spread: float, multiplied: int) -> np.ndarray:
    """Bound a hidden eigenvalue by the residuals of the leading pairs up to each, which would show a larger one."""
    reach = norms_of_leading(gram)
    low, high = a, a + reach * math.sqrt(1 + spread)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        shrunk = np.minimum(kept / np.maximum(middle, np.finfo(float).tiny), 1.0) ** (2 * multiplied)
        seen = middle - a > reach * np.sqrt(1 + spread * shrunk)
        low, high = np.where(seen, low, middle), np.where(seen, middle, high)
    return high


def _count_distinct(a: np.ndarray, high: np.ndarray, many: int) -> int:
    """Count the leading pairs until ``many`` in a row may approximate one eigenvalue: all, if that is never so."""
    alike = a[: max(len(a) - many + 1, 0)] <= high[many - 1 :]
    return int(np.argmax(alike)) + many if alike.any() else len(a)


def _level(evidence: Evidence, ground: str, tau: np.ndarray, e: float) -> Level:
    values, gram, k = evidence.values, evidence.gram, evidence.k
    a = np.abs(values)
    found = spaces(values, gram, tau)
    upper = _upper(a, tau, found)
    left = remainder(values, gram, k, found, tau)
    following = min(float(upper[k]) if k < len(upper) else math.inf, float(tau[k]), left + _norm(gram, k))
    sine = span_sine(values, gram, k, found, left)
    by_side = _bounds_by_sign(a, tau, found, upper)
    singles = component_sines(values, gram, k, found, by_side)
    gaps = np.array([_gap(values, i, by_side, following) for i in range(k)])
    turned = np.array([_davis_kahan_sine(e, gap) for gap in gaps])
    lost = float(np.maximum(upper[:k] - a[:k], 0.0).sum())
    return Level(
        ground=ground,
        lower=np.maximum(a[:k] - e, 0.0),
        upper=upper[:k] + e,
        following=following + e,
        left=left + e,
        spectral=math.hypot(_norm(gram, k) + e, left + e),
        sine=_sine(sine + _davis_kahan_sine(e, float(a[k - 1]) - following)),
        component_sines=np.array([_sine(s) for s in singles + turned]),
        lost=lost + k * e,
    )


def carried_over(certificate: Certificate, evidence: Evidence) -> list[Level]:
    """The levels of ``certificate`` for other vectors: k Ritz pairs of the same matrix and their residuals.

    Bounds of eigenvalues hold whatever the vectors are; those of vectors follow from them and the residuals.
    """
    e = certificate.perturbation
    found = []
    for level in certificate.levels:
        tau = np.append(level.upper, level.following) - e
        found.append(_level(evidence, level.ground, tau, e))
    return found


def _norm(gram: np.ndarray, k: int) -> float:
    return math.sqrt(largest(gram[:k, :k]))


def _upper(a: np.ndarray, tau: np.ndarray, found: list[Space]) -> np.ndarray:
    """The best bound of each |lambda_i|, sorted by magnitude as they are."""
    upper = tau[: len(a)].copy()
    for space in found:
        upper[: space.m] = np.minimum(upper[: space.m], np.sort(space.upper)[::-1])
    return np.minimum.accumulate(upper)


def _bounds_by_sign(a: np.ndarray, tau: np.ndarray, found: list[Space], upper: np.ndarray) -> np.ndarray:
    """Bound the eigenvalue that each theta_i approximates, counted among those of its sign: not sorted by magnitude."""
    if not found:
        return upper
    widest = max(found, key=lambda space: space.m)
    bounds = np.append(widest.upper, np.maximum(upper, tau[widest.m])[widest.m :])
    for space in found:
        bounds[: space.m] = np.minimum(bounds[: space.m], space.upper)
    return np.maximum(bounds, a)


def _gap(values: np.ndarray, i: int, upper: np.ndarray, following: float) -> float:
    """Return how far lambda_i is at least from the eigenvalues of the other k pairs, and from all that follow."""
    a = np.abs(values)
    k = len(a)
    above = [a[j] - upper[i] if values[j] * values[i] > 0 else a[i] + a[j] for j in range(min(i, k))]
    below = [a[i] - upper[j] if values[j] * values[i] > 0 else a[i] + a[j] for j in range(i + 1, k)]
    return float(min([*above, *below, a[i] - following if i == k - 1 else math.inf], default=math.inf))


def _davis_kahan_sine(e: float, gap: float) -> float:
    """By how much a perturbation of norm ``e`` turns eigenvectors with this gap (Davis and Kahan); nan is no gap."""
    return e / (gap - e) if gap > e else math.inf


def _sine(bound: float) -> float:
    return bound if bound < 1 else math.inf


# What the theory of the noisy power method promises of a run with noise, step by step, with its actual noise.


def noisy_recursion(evidence: Evidence, certificate: Certificate, steps: int) -> dict[str, Any]:
    """Bound of sin theta_k of the block X_L after all ``steps``, from the recursions without constants (sheets A1, A7).

    The spectrum is taken from the last level of the certificate: sigma_k no smaller than its lower bound, sigma_{q+1}
    no larger than its upper one, the noise no larger than Gaussian concentration allows, and the start as a random
    block is: each with a share of 1 - ``confidence``. The best q from k to p - 1. ``sine`` is None where the noise is
    too large for the recursion, which takes the worst case of every step, above all of the first.
    """
    e, k, p = certificate.perturbation, evidence.k, evidence.iterated
    sizes = np.abs(evidence.values)
    kth = max(float(sizes[k - 1]) - e, 0.0)
    fail = (1 - evidence.confidence) / 3
    start = tangents(evidence.d, p, fail)
    whole = gaussian_norm(evidence.stddev, evidence.d, p, steps, fail)
    norms = np.sqrt(np.maximum(np.diagonal(evidence.gram), 0.0))
    bounds = [math.inf]
    for q in range(k, min(p, len(sizes))):
        qth, following = float(sizes[q - 1]) - e, float(sizes[q] + norms[q]) + e
        inside = gaussian_norm(evidence.stddev, q, p, steps, fail)
        if following < qth:
            bounds.append(_propagated_tangent(start[q - 1], kth, qth, following, whole, inside, steps, alone=q == k))
    h = min(bounds)
    return {"sine": h / math.hypot(1, h) if math.isfinite(h) else None, "noise_norm": whole, "steps": steps}


def _propagated_tangent(
    start: float, kth: float, qth: float, following: float, whole: float, inside: float, steps: int, *, alone: bool
) -> float:
    t = h = float(start)
    for _ in range(steps):
        t = npm_error_recursion(t, qth, following, whole, inside).value
        if not math.isfinite(t):
            return math.inf
        h = t if alone else improved_recursion(h, kth, following, whole, inside, t).value
    return h


# Bound eigenvalues that a random start cannot have missed, with a stated probability.
#
# A start Omega (d x p, Gaussian) contains, for every q <= p, a block U_1 + U_2 F over the q leading eigenvectors, and
# ``tangents`` bounds ||F||. A polynomial of A applied to it shrinks F; Courant and Fischer's theorem makes of that
#
#     theta_i >= (1 - loss) lambda_i,      loss = max over s of (1 - s) y / (1 + y),    y = (t w(s))^2,
#
# where s = lambda_j / lambda_i <= 1 is what may lie below lambda_i and w(s) what the polynomial leaves of it: s^L
# after L multiplications, 1 / T_L(2 / sigma - 1) for all s <= sigma with Chebyshev's polynomial (a block Krylov space
# holds both).


Bounds = np.ndarray

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
    """Bound the smallest singular value of a Gaussian q x p block (q <= p) from below, failing with ``fail_prob``.

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
    top, root = float(sizes.max(initial=0.0)), math.sqrt(largest(gram))
    if not root:
        return top
    luck = np.log([smallest_singular_value(1, j, fail_prob) for j in range(1, len(held) + 1)])

    def possible(mu: float) -> bool:
        kappa = math.exp(min(2 * float((degree * math.log(mu) + luck + held).max()), 700.0))
        scale = 1 / (mu - sizes)
        return largest(gram * np.outer(scale, scale)) * (1 + kappa) >= kappa

    low, high = top, top + root
    while possible(high):
        high = top + 2 * (high - top)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if middle > top and possible(middle) else (low, middle)
    return high


# Bound errors by residuals, given bounds on the further eigenvalues: sharp, without any constant.
#
# Notation: A V = V Theta + R with V^T R = 0 for m Ritz pairs, C what A is outside of range(V), sizes a_i = |theta_i|,
# and tau >= |lambda_{m+1}| with tau < a_m. Then A has exactly m eigenvalues beyond tau, and
#
#     |lambda_i| <= eig_i(|Theta| + D^(-1/2) R^T R D^(-1/2)),   D = |Theta| - tau     (Lehmann; m = 1: Temple and Kato)
#     ||C||      <= tau + ||R D^(-1/2)||^2                                            (inertia of a Schur complement).
#
# An eigenvector of lambda_i is [z_1; z_2; z_3] over (the Ritz vectors looked at, the others of the m, the rest):
# z_2 = (lambda_i - Theta_b)^(-1) R_b^T z_3, (lambda_i - C - R_b (lambda_i - Theta_b)^(-1) R_b^T) z_3 = R z_1. With the
# distances Delta of lambda_i from the other Ritz values, kappa = ||R_b Delta^(-1/2)||^2 and beta = ||R_b Delta^(-1)||:
#
#     ||z_3|| <= ||R|| / (a - ||C|| - kappa),     sine = ||[z_2; z_3]|| <= ||z_3|| sqrt(1 + beta^2).
#
# For m = k this is the theorem of Davis and Kahan; m > k makes use of a gap further down, where the error comes from.


EXACT = 96  # columns up to which every eigenvalue is taken
TRIED = 32  # spaces m that are looked at; of more, those with the widest gaps


class Space(NamedTuple):
    """The m leading pairs, with eigenvalues beyond tau counted: ``outside`` >= ||C||."""

    m: int
    outside: float
    upper: np.ndarray  # of |lambda_i|, for each pair, by its own sign


def largest(matrix: np.ndarray) -> float:
    """The largest eigenvalue of a non-negative matrix (0 of none)."""
    return max(float(np.linalg.eigvalsh(matrix)[-1]), 0.0) if len(matrix) else 0.0


def quick_largest(matrix: np.ndarray) -> float:
    """A bound of it, where there are many to take: exact if small, then the trace or Gershgorin's discs."""
    if len(matrix) <= EXACT:
        return largest(matrix)
    return float(min(np.trace(matrix), np.abs(matrix).sum(axis=1).max()))


def norms_of_leading(gram: np.ndarray) -> np.ndarray:
    """||R_{1..j}|| for every j (m values). It grows with j: of many columns only some are computed, and rounded up."""
    m = len(gram)
    sizes = sorted({*range(1, min(m, EXACT) + 1), *(min(m, int(EXACT * 1.1**i)) for i in range(200)), m})
    sizes = [size for size in sizes if size <= m]
    norms = np.sqrt([largest(gram[:size, :size]) for size in sizes])
    return np.asarray(norms[np.searchsorted(sizes, np.arange(1, m + 1))])


def spaces(values: np.ndarray, gram: np.ndarray, tau: np.ndarray) -> list[Space]:
    """Every m for which the gap after m is open. ``tau[m]`` >= |lambda_{m+1}|, m = 0..len(values)."""
    a = np.abs(values)
    least = np.minimum.accumulate(a)  # eigenvalues of 0 are rounded to either side of it, so |.| need not fall
    gaps = np.array([least[m - 1] - tau[m] for m in range(1, len(a) + 1)])
    open_ = np.flatnonzero(gaps > 0)
    if len(open_) > TRIED:
        open_ = np.sort(open_[np.argsort(-gaps[open_] / a[open_], kind="stable")[:TRIED]])
    return [_space(values, gram, float(tau[m]), int(m)) for m in open_ + 1]


def _space(values: np.ndarray, gram: np.ndarray, tau: float, m: int) -> Space:
    a = np.abs(values[:m])
    roots = np.sqrt(a - tau)
    scaled = gram[:m, :m] / np.outer(roots, roots)
    upper = np.zeros(m)
    for sign in (True, False):
        side = np.flatnonzero((values[:m] >= 0) == sign)
        if len(side):
            upper[side] = np.linalg.eigvalsh(np.diag(a[side]) + scaled[np.ix_(side, side)])[::-1]
    return Space(m, tau + largest(scaled), np.maximum(upper, a))


def remainder(values: np.ndarray, gram: np.ndarray, k: int, found: list[Space], tau: np.ndarray) -> float:
    """Bound of ||(I - P) A (I - P)||, P the projection on the k leading Ritz vectors: what is left of A.

    With m <= k pairs what is left is part of C; with m > k it is [[Theta_b, R_b^T], [R_b, C]]. With no gap at all it is
    at most the largest |lambda|.
    """
    a = np.abs(values)
    bounds = [float(tau[0])]
    for space in found:
        if space.m <= k:
            bounds.append(space.outside)
            continue
        between = largest(gram[k : space.m, k : space.m])
        half = (a[k] - space.outside) / 2
        bounds.append(float((a[k] + space.outside) / 2 + np.sqrt(half**2 + between)))
    return min(bounds)


def span_sine(values: np.ndarray, gram: np.ndarray, k: int, found: list[Space], left: float) -> float:
    """Bound of sin theta_k between the k Ritz vectors and the k leading eigenvectors; inf where none is known.

    ``left``: from :func:`remainder`; residual over gap is Davis and Kahan's bound (in the spectral norm).
    """
    a = np.abs(values)
    bounds = [np.inf]
    if a[k - 1] > left:
        bounds.append(np.sqrt(largest(gram[:k, :k])) / (a[k - 1] - left))
    for space in found:
        if space.m < k:
            continue
        others = slice(k, space.m)
        bounds.append(_tilt(np.sqrt(np.trace(gram[:k, :k])), a[k - 1], space.outside, gram[others, others],
                            a[k - 1] - a[others]))  # fmt: skip
    return float(min(bounds))


def component_sines(values: np.ndarray, gram: np.ndarray, k: int, found: list[Space], upper: np.ndarray) -> np.ndarray:
    """Bounds of the sine of the angle of each of the k Ritz vectors to its own eigenvector; inf where none is known."""
    best = sorted(found, key=lambda space: space.outside / max(abs(float(values[space.m - 1])), 1e-300))[:3]
    best += [space for space in found[-1:] if space not in best]
    sines = np.full(k, np.inf)
    for i in range(k):
        for space in best:
            if i < space.m:
                sines[i] = min(sines[i], _component(values, gram, i, space, float(upper[i])))
    return sines


def _component(values: np.ndarray, gram: np.ndarray, i: int, space: Space, upper: float) -> float:
    others = np.delete(np.arange(space.m), i)
    distances = distances_of(values[: space.m], i, upper)[others]
    size = abs(float(values[i]))
    return _tilt(np.sqrt(gram[i, i]), size, space.outside, gram[np.ix_(others, others)], distances)


def distances_of(values: np.ndarray, i: int, upper: float) -> np.ndarray:
    """Return how far an eigenvalue of size between |theta_i| and ``upper`` is at least from every Ritz value."""
    a = np.abs(values)
    same = np.where(np.arange(len(a)) < i, a - upper, a[i] - a)
    return np.where(np.sign(values) == np.sign(values[i]), same, a[i] + a)


def _tilt(residual: float, size: float, outside: float, gram: np.ndarray, distances: np.ndarray) -> float:
    if size <= outside or not (distances > 0).all():
        return float(np.inf)
    roots = np.sqrt(distances)
    gap = size - outside - quick_largest(gram / np.outer(roots, roots))
    if gap <= 0:
        return float(np.inf)
    return float(residual / gap * np.sqrt(1 + quick_largest(gram / np.outer(distances, distances))))
