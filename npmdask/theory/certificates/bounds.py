"""A certificate: how wrong values, components and what they capture can be, and what each bound rests on.

Three grounds, the strictest first; each has bounds of everything, and those of a later one are never wider:

    always          a theorem without assumptions (of a non-negative operator: its trace, where that is known)
    random start    besides, with probability ``confidence``, that the random start was not blind
    none missed     besides, that the Ritz pairs which were seen belong to the largest eigenvalues
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from npmdask.theory import improved_recursion, npm_error_recursion
from npmdask.theory.certificates.random_start import smallest_singular_value, tangents, upper_values
from npmdask.theory.certificates.residuals import (
    Space,
    component_sines,
    largest,
    norms_of_leading,
    remainder,
    spaces,
    span_sine,
)
from npmdask.theory.start import gaussian_norm

ALWAYS, START, SEEN = "always", "random start", "none missed"
SINGLE_EPS, DOUBLE_EPS = float(np.finfo(np.float32).eps), float(np.finfo(np.float64).eps)
SINGLE_FLOOR = 16  # of npmdask.algorithms: what float32 products can be trusted to
BLIND = 0.01  # share of random starts that hold less of one direction than is taken for granted where none was missed
ALIKE = 0.8  # of p: so many pairs that are not told apart may be more, as p columns hold the p-th direction badly
HALVINGS = 40  # of an interval that holds a bound
SHARP = 2.0  # a stricter ground is preferred as long as its bounds are not so many times as wide


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What a run knows when it ends, in the units of the operator A (d x d, symmetric). No product is asked for.

    Attributes
    ----------
    values, gram : m >= k Ritz values by falling magnitude, and R^T R (m x m) of the residuals of their pairs.
    nonnegative : A has no negative eigenvalue (it is X^T X).
    trace : of A, where it is known.
    multiplied : how often what the space is made of was multiplied by A before; 0: it is as random as the start.
    columns : random ones of the start that the space holds powers of; 0: none (deflation, noise in between).
    known : a warm start gave columns beside these. ``missed``: an eigenvalue so large it may hide from them (99 %).
    formed : bounds of the largest eigenvalues of a matrix that was formed (npmdask.algorithms.Seen.upper).
    degree, powers : see npmdask.algorithms.Seen.
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

    ``size``: of the largest. Of float64 8 eps (sqrt(d) + 10) times that: measured (docs/certificates.md), not proved;
    sums over rows are formed in a tree, so that their number does not count. Of float32 its floor in the algorithms.
    """
    if single:
        return SINGLE_FLOOR * SINGLE_EPS * math.sqrt(d) * size
    return 8 * DOUBLE_EPS * (math.sqrt(d) + 10) * size


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
            if level.sine <= SHARP * last.sine and _worst(level, self) <= SHARP * _worst(last, self):
                return level
        return last


def _worst(level: Level, certificate: Certificate) -> float:
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
    """What residuals would show of a larger eigenvalue, had the start held of its direction what nearly all starts do.

    A space that holds the share s = 1 / sqrt(1 + t^2) of an eigenvector of lambda has ||R|| >= s (lambda - theta). Of
    p random columns in d dimensions t^2 <= d / x^2 in 99 % (x: that quantile of chi_p), and (theta / lambda)^(2 L) of
    that after L multiplications: lambda is at most where both agree. Not proved, because it looks at one direction and
    at the residuals of the leading pairs alone; how often it has held is in docs/certificates.md.
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
    reach = norms_of_leading(evidence.gram)
    spread = evidence.d / smallest_singular_value(1, columns, BLIND) ** 2
    low, high = a, a + reach * math.sqrt(1 + spread)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        shrunk = np.minimum(kept / np.maximum(middle, np.finfo(float).tiny), 1.0) ** (2 * evidence.multiplied)
        seen = middle - a > reach * np.sqrt(1 + spread * shrunk)
        low, high = np.where(seen, low, middle), np.where(seen, middle, high)
    if evidence.locked:  # a direction that they do not hold is seen by the random columns beside them alone
        high[: evidence.locked] = np.maximum(high[: evidence.locked], high[evidence.locked])
    tau = np.append(high, np.inf)
    if len(a) > evidence.k + 1:
        tau[len(a) - 1] = np.inf
    tau[_told_apart(a, high + 2 * evidence.rounding, math.ceil(ALIKE * columns)) :] = np.inf
    if p <= evidence.k:
        tau[p:] = np.inf
    return np.minimum.accumulate(tau)


def _told_apart(a: np.ndarray, high: np.ndarray, many: int) -> int:
    """How many leading pairs there are until ``many`` in a row may approximate one eigenvalue: all, if never."""
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
    by_side = _by_side(a, tau, found, upper)
    singles = component_sines(values, gram, k, found, by_side)
    gaps = np.array([_gap(values, i, by_side, following) for i in range(k)])
    turned = np.array([_turned(e, gap) for gap in gaps])
    lost = float(np.maximum(upper[:k] - a[:k], 0.0).sum())
    return Level(
        ground=ground,
        lower=np.maximum(a[:k] - e, 0.0),
        upper=upper[:k] + e,
        following=following + e,
        left=left + e,
        spectral=math.hypot(_norm(gram, k) + e, left + e),
        sine=_sine(sine + _turned(e, float(a[k - 1]) - following)),
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


def _by_side(a: np.ndarray, tau: np.ndarray, found: list[Space], upper: np.ndarray) -> np.ndarray:
    """Of the eigenvalue that each theta_i approximates, counted among those of its sign: not sorted by magnitude."""
    if not found:
        return upper
    widest = max(found, key=lambda space: space.m)
    bounds = np.append(widest.upper, np.maximum(upper, tau[widest.m])[widest.m :])
    for space in found:
        bounds[: space.m] = np.minimum(bounds[: space.m], space.upper)
    return np.maximum(bounds, a)


def _gap(values: np.ndarray, i: int, upper: np.ndarray, following: float) -> float:
    """How far lambda_i is at least from the eigenvalues of the other k pairs, and from all that follow."""
    a = np.abs(values)
    k = len(a)
    above = [a[j] - upper[i] if values[j] * values[i] > 0 else a[i] + a[j] for j in range(min(i, k))]
    below = [a[i] - upper[j] if values[j] * values[i] > 0 else a[i] + a[j] for j in range(i + 1, k)]
    return float(min([*above, *below, a[i] - following if i == k - 1 else math.inf], default=math.inf))


def _turned(e: float, gap: float) -> float:
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
            bounds.append(_followed(start[q - 1], kth, qth, following, whole, inside, steps, alone=q == k))
    h = min(bounds)
    return {"sine": h / math.hypot(1, h) if math.isfinite(h) else None, "noise_norm": whole, "steps": steps}


def _followed(
    start: float, kth: float, qth: float, following: float, whole: float, inside: float, steps: int, *, alone: bool
) -> float:
    t = h = float(start)
    for _ in range(steps):
        t = npm_error_recursion(t, qth, following, whole, inside).value
        if not math.isfinite(t):
            return math.inf
        h = t if alone else improved_recursion(h, kth, following, whole, inside, t).value
    return h
