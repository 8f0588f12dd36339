"""The jackknife and the bootstrap over groups of rows, from their Grams: sampling errors without a pass.

The jackknife is what is found without each of the groups, and what follows from it.

Each replicate of the bootstrap draws as many groups as there are, with replacement. Its covariance is known whole, but
only its product with the 3k leading eigenvectors Q of all rows is formed: in the basis of all eigenvectors that is a
block column (A; B), and the rest D is taken to be that of all rows. With it the leading eigenpairs are those of A + B^T
(lambda - D)^-1 B, to the second order in what a replicate moves. Some replicates are decomposed in full to see how far
that is off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from scipy.linalg import eigh

from npmdask.advice.sampling_errors import Groups, jackknifed, mixed_groups, student_factor
from npmdask.core.numerics.domains import whole_seed
from npmdask.core.numerics.random import generator
from npmdask.core.numerics.subspaces import fix_signs
from npmdask.errors import BadInputError, require


@dataclass(frozen=True, kw_only=True)
class Jackknife:
    """
    Hold what leaving out a group of rows does to leading values.

    Nothing is claimed of single values of a ``mixed`` group: their intervals are not numbers.

    Attributes
    ----------
    values : numpy.ndarray, shape (k,)
        Of all rows: eigenvalues of the mean of x x^T (of the covariance, where it is centred), or singular values.
    standard_errors : numpy.ndarray, shape (k,)
        Of the values, by the delete-a-group jackknife.
    bias : numpy.ndarray, shape (k,)
        Estimate of it; the values less this are corrected.
    value_intervals : numpy.ndarray, shape (2, k)
        Ends of confidence intervals.
    mixed : tuple of tuple of int
        Components, from 0, that sampling mixes; k is the first one that was not asked for.
    left_out : numpy.ndarray, shape (groups, k)
        Values without each group, in the order of ``groups``.
    groups : tuple of str
        Their names.
    confidence : float
        Nominal coverage.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import npmdask
    >>> rows = np.random.default_rng(0).standard_normal((4096, 5)) * [5, 3, 1, 1, 1]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = npmdask.gram(rows, folder + "/G", kind="samples", by_chunks=1)
    ...     found = store.jackknife(2)
    >>> len(found.groups), found.standard_errors.shape, found.value_intervals.shape
    (4, (2,), (2, 2))
    """

    values: np.ndarray
    standard_errors: np.ndarray
    bias: np.ndarray
    value_intervals: np.ndarray
    mixed: Groups
    left_out: np.ndarray
    groups: tuple[str, ...]
    confidence: float

    @classmethod
    def of(
        cls,
        whole: np.ndarray,
        left_out: np.ndarray,
        sizes: np.ndarray,
        groups: tuple[str, ...],
        k: int,
        confidence: float,
    ) -> Self:
        """From k values or one more, of all rows and (groups x values) without each group of so many rows."""
        bias, errors = jackknifed(whole, left_out, sizes)
        found = mixed_groups(whole, APART * errors)
        mixed = tuple(tuple(i for i in group if i <= k) for group in found if group[0] < k)
        logs, left_logs = (np.log(np.maximum(values, np.finfo(float).tiny)) for values in (whole, left_out))
        off, spread = jackknifed(logs, left_logs, sizes)
        half = student_factor(confidence, len(groups)) * spread
        ends = np.exp(np.stack([logs - off - half, logs - off + half]))[:, :k]
        ends[:, np.isin(np.arange(k), [i for group in mixed for i in group])] = np.nan
        return cls(
            values=whole[:k],
            standard_errors=errors[:k],
            bias=bias[:k],
            value_intervals=ends,
            mixed=mixed,
            left_out=left_out[:, :k],
            groups=groups,
            confidence=confidence,
        )

    def facts(self) -> dict[str, Any]:
        """
        Give what is known of the values, for JSON.

        Returns
        -------
        dict
            Figures by name; None for an interval that is not claimed.
        """
        lists = {name: getattr(self, name).tolist() for name in ("values", "standard_errors", "bias")}
        plain = {"mixed": self.mixed, "groups": len(self.groups), "confidence": self.confidence}
        return {**lists, "value_intervals": _plain_intervals(self.value_intervals), **plain}

    def lines(self) -> list[str]:
        """
        Say the same for people.

        Returns
        -------
        list of str
            A line for each component, and what the intervals rest on.
        """
        return [
            *_interval_lines(self.values, self.value_intervals, self.mixed),
            f"{self.confidence:.0%} intervals of the jackknife, which leaves out one of {len(self.groups)} groups of "
            "rows at a time, assuming that the groups are independent and alike",
        ]


# The bootstrap.

LEAST_GROUPS = 8  # of fewer the standard errors themselves are off by a quarter
LEAST_REPLICATES = 50
AT_ONCE = 8  # replicates whose whole matrices are held at once
CHECKED = 4  # replicates that are decomposed in full
ENOUGH = 0.1  # of a standard error: where the short way is off by more, all replicates are decomposed in full
TURNED = 0.05  # the largest entry of a perturbation that is taken as it is
SWAPPED = 0.05  # of replicates that may give another component the first place
APART = 2.0  # standard errors on each side that keep neighbours apart

Sums = tuple[float, np.ndarray, np.ndarray]  # rows, their mean less the origin, their Gram about their mean


@dataclass(frozen=True, kw_only=True)
class Bootstrap:
    """
    Hold how far components depend on which groups of rows were drawn.

    Nothing is claimed of single components of a ``mixed`` group: their intervals are not numbers.

    Attributes
    ----------
    values : numpy.ndarray, shape (k,)
        Of all rows: variances (eigenvalues of the covariance with n in the denominator; of rows that are not centred
        mean squares).
    shares : numpy.ndarray, shape (k,)
        Of the variance of all columns.
    vectors : numpy.ndarray, shape (d, k)
        The components, signs as in :func:`npmdask.top_k`.
    value_errors : numpy.ndarray, shape (k,)
        Standard errors of the values.
    value_intervals, share_intervals : numpy.ndarray, shape (2, k)
        Ends of confidence intervals.
    vector_intervals : numpy.ndarray, shape (2, d, k)
        The same of each entry of a component.
    mixed : tuple of tuple of int
        Components, from 0, that sampling mixes; k is the first one that was not asked for.
    groups, replicates : int
        Groups of rows, and how often as many were drawn.
    confidence : float
        Nominal coverage.
    checked_error : float
        Largest difference of a value or of a component from full decompositions of some replicates, in standard errors;
        0 where all are full.
    """

    values: np.ndarray
    shares: np.ndarray
    vectors: np.ndarray
    value_errors: np.ndarray
    value_intervals: np.ndarray
    share_intervals: np.ndarray
    vector_intervals: np.ndarray
    mixed: Groups
    groups: int
    replicates: int
    confidence: float
    checked_error: float

    def facts(self) -> dict[str, Any]:
        """
        Give what is known of values and shares, for JSON.

        Returns
        -------
        dict
            Figures by name; None for an interval that is not claimed.
        """
        ends = {name: _plain_intervals(getattr(self, name)) for name in ("value_intervals", "share_intervals")}
        plain = {name: getattr(self, name) for name in ("mixed", "groups", "replicates", "confidence", "checked_error")}
        lists = {name: getattr(self, name).tolist() for name in ("values", "shares", "value_errors")}
        return {**lists, **ends, **plain}

    def lines(self) -> list[str]:
        """
        Say the same for people.

        Returns
        -------
        list of str
            A line for each component, and what the intervals rest on.
        """
        shares = [f", {least:.2%} to {most:.2%} of the variance" for least, most in self.share_intervals.T]
        found = _interval_lines(self.values, self.value_intervals, self.mixed, shares)
        found.append(
            f"{self.confidence:.0%} intervals of {self.replicates} bootstrap replicates over {self.groups} groups of "
            "rows, assuming that the groups are independent and alike"
        )
        return found


def _plain_intervals(ends: np.ndarray) -> list[list[float | None]]:
    """Ends (2 x k) for JSON, a pair for each component."""
    return [[float(end) if np.isfinite(end) else None for end in pair] for pair in ends.T]


def _interval_lines(values: np.ndarray, ends: np.ndarray, mixed: Groups, more: Sequence[str] = ()) -> list[str]:
    """A line for each component: its value and interval, and ``more``; or which others it is mixed with."""
    found = []
    for i, value in enumerate(values):
        among = next((group for group in mixed if i in group), None)
        said = f"{ends[0, i]:.6g} to {ends[1, i]:.6g}{more[i] if more else ''}"
        if among is not None:
            names = ", ".join(str(j + 1) for j in among)
            said = f"mixed: sampling cannot separate components {names}, so nothing is claimed about a single one"
        found.append(f"component {i + 1:3}  {value:.6g}: {said}")
    return found


def require_confidence(confidence: float) -> None:
    """Raise BadInputError for a coverage that is none."""
    require(0 < confidence < 1, f"confidence = {confidence} must be between 0 and 1, like 0.95")


@dataclass(frozen=True, kw_only=True)
class Grouped:
    """Groups of rows that are drawn.

    ``whole``: the covariance of all rows; ``each``: iterates the sums of the groups, again when called;
    ``covariance``: of a replicate from its rows, mean and Gram; ``moves``: the mean is taken off again in a replicate;
    ``short``: the short way is possible.
    """

    names: tuple[str, ...]
    whole: np.ndarray
    each: Callable[[], Iterator[Sums]]
    covariance: Callable[[float, np.ndarray, np.ndarray], np.ndarray]
    moves: bool
    short: bool


@dataclass(frozen=True, kw_only=True)
class _Pairs:
    """Eigenpairs of some replicates: ``values`` (r x m), ``totals`` (r), ``vectors`` (r x d x m).

    The vectors are in the basis of all rows.
    """

    values: np.ndarray
    totals: np.ndarray
    vectors: np.ndarray


def bootstrapped(grouped: Grouped, k: int, *, replicates: int, confidence: float, seed: int, exact: bool) -> Bootstrap:
    """The bootstrap of k leading components."""
    count, d = len(grouped.names), len(grouped.whole)
    if count < LEAST_GROUPS:
        raise BadInputError(
            f"{count} group{'s'[: count != 1]} of rows: a bootstrap over fewer than {LEAST_GROUPS} says too little; "
            "form the Gram with by_chunks or groups, or merge more (from 20 on intervals are good; a jackknife takes 2)"
        )
    require(isinstance(k, int | np.integer) and 1 <= k <= d, f"k = {k} is not possible: there are {d} columns")
    if replicates < LEAST_REPLICATES:
        raise BadInputError(f"replicates = {replicates} are too few: give {LEAST_REPLICATES} replicates or more")
    require_confidence(confidence)
    spectrum, basis = (array[..., ::-1] for array in np.linalg.eigh(grouped.whole))
    usable = int((spectrum > max(spectrum[0], 0.0) * d * np.finfo(float).eps).sum())
    require(usable >= k, f"only {usable} directions have any variance: ask for k = {usable} at most")
    whole_seed(seed)
    weights = generator(seed, "bootstrap over groups").multinomial(count, np.full(count, 1 / count), replicates)
    m = min(k + 1, usable)
    error, drawn = 0.0, None
    if grouped.short and not exact:
        drawn = _reduced(grouped, weights.astype(float), spectrum, basis, m, min(d, max(3 * k, k + 10)))
        error = _difference(_exact(grouped, weights[:CHECKED], basis, m), drawn, k, _mixed_groups(drawn, spectrum[:m]))
        if not error <= ENOUGH:
            error, drawn = 0.0, None
    drawn = drawn or _exact(grouped, weights, basis, m)
    return _bootstrap_result(drawn, spectrum, basis, k, count, confidence, error)


def _reduced(grouped: Grouped, weights: np.ndarray, spectrum: np.ndarray, basis: np.ndarray, m: int, q: int) -> _Pairs:
    """Replicates by their products with the q leading eigenvectors alone."""
    d, count = len(basis), weights.shape[1]
    columns, means = np.empty((count, d, q)), np.empty((count, d))
    rows, totals = np.empty(count), np.empty(count)
    for place, (number, mean, gram) in enumerate(grouped.each()):
        seen = basis.T @ mean
        columns[place] = basis.T @ (gram @ basis[:, :q])
        columns[place] += np.outer(number * seen, seen[:q])
        rows[place], means[place] = number, number * seen
        totals[place] = np.trace(gram) + number * float(mean @ mean)
    drawn_rows = weights @ rows
    centres = weights @ means / drawn_rows[:, None] * grouped.moves
    total = weights @ totals / drawn_rows - np.square(centres).sum(axis=1)
    values, vectors = np.empty((len(weights), m)), np.empty((len(weights), d, m))
    flat, rest = columns.reshape(count, -1), spectrum[q:, None]
    for place, weight in enumerate(weights):
        block = (weight @ flat).reshape(d, q) / drawn_rows[place] - np.outer(centres[place], centres[place, :q])
        values[place], vectors[place] = _leading_pairs((block[:q] + block[:q].T) / 2, block[q:], rest, m)
    return _aligned(values, total, vectors)


def _leading_pairs(inner: np.ndarray, outer: np.ndarray, rest: np.ndarray, m: int) -> tuple[np.ndarray, np.ndarray]:
    """The m leading eigenpairs of [[inner, outer^T], [outer, diag(rest)]], to the second order in ``outer``.

    Those of inner + outer^T (value - rest)^-1 outer, each by first-order perturbation of those of ``inner``, which is
    as exact: the second term is of second order. Where it turns one far, as between values that nearly tie, the matrix
    is decomposed. A flat spectrum may give anything, which the check finds.
    """
    found, turned = np.linalg.eigh(inner)
    found, turned = found[::-1], turned[:, ::-1]
    across = outer @ turned
    values = found[:m].copy()
    tiny = np.finfo(float).tiny
    for _ in range(2):
        far = across[:, :m] / np.maximum(values - rest, tiny)
        added = across.T @ far  # in the basis of the eigenvectors of ``inner``
        values = found[:m] + added.diagonal()
    own = np.eye(len(found), m)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        levels = found[:, None] + np.square(across).T @ (1 / np.maximum(values - rest, tiny))
        inside = np.where(own > 0, 1.0, added / (values - levels))
        for i in np.flatnonzero(~(np.abs(inside - own).max(axis=0) <= TURNED)):
            shorter = np.diag(found) + across.T @ (across / np.maximum(values[i] - rest, tiny))
            if np.isfinite(shorter).all():
                exact, rotated = np.linalg.eigh(shorter)
                values[i], inside[:, i] = exact[-1 - i], rotated[:, -1 - i]
        whole = np.concatenate([turned @ inside, across @ inside / np.maximum(values - rest, tiny)])
        whole /= np.linalg.norm(whole, axis=0)
    return values, np.nan_to_num(whole, nan=0.0, posinf=0.0, neginf=0.0)


def _exact(grouped: Grouped, weights: np.ndarray, basis: np.ndarray, m: int) -> _Pairs:
    """Replicates whose covariances are formed and decomposed."""
    d = len(basis)
    values, totals, vectors = np.empty((len(weights), m)), np.empty(len(weights)), np.empty((len(weights), d, m))
    for first in range(0, len(weights), AT_ONCE):
        some = weights[first : first + AT_ONCE].astype(float)
        rows, means, grams = np.zeros(len(some)), np.zeros((len(some), d)), np.zeros((len(some), d, d))
        for place, (count, mean, gram) in enumerate(grouped.each()):
            about = gram + np.outer(count * mean, mean)
            for one in np.flatnonzero(some[:, place]):
                rows[one] += some[one, place] * count
                means[one] += some[one, place] * count * mean
                grams[one] += some[one, place] * about
        for number, gram in enumerate(grams):
            covariance = grouped.covariance(rows[number], means[number] / rows[number], gram)
            found, turned = eigh(covariance, subset_by_index=[d - m, d - 1], check_finite=False)
            values[first + number], totals[first + number] = found[::-1], np.trace(covariance)
            vectors[first + number] = basis.T @ turned[:, ::-1]
    return _aligned(values, totals, vectors)


def _aligned(values: np.ndarray, totals: np.ndarray, vectors: np.ndarray) -> _Pairs:
    """Align signs with the answer of all rows, whose vectors are the axes."""
    signs = np.where(np.einsum("rii->ri", vectors[:, : vectors.shape[2]]) < 0, -1.0, 1.0)
    return _Pairs(values=values, totals=totals, vectors=vectors * signs[:, None])


def _mixed_groups(drawn: _Pairs, values: np.ndarray) -> Groups:
    """Neighbours that overlap, and components that are another one in too many replicates."""
    errors = APART * drawn.values.std(axis=0, ddof=1)
    nearest = np.abs(drawn.vectors).argmax(axis=1)
    crossed = [(nearest[:, : i + 1] > i).any(axis=1).mean() > SWAPPED for i in range(len(values) - 1)]
    return mixed_groups(values, errors, also=np.array(crossed, dtype=bool))


def _difference(full: _Pairs, short: _Pairs, k: int, mixed: Groups) -> float:
    """Compute the error of the short way, in standard errors, for components with a claim."""
    single = np.setdiff1d(np.arange(k), [i for group in mixed for i in group])
    if not len(single):
        return 0.0
    some = len(full.values)
    spread = short.values.std(axis=0, ddof=1)[single]
    moved = np.sqrt(np.square(short.vectors - short.vectors.mean(axis=0)).sum(axis=1).mean(axis=0))[single]
    tiny = np.finfo(float).eps
    values = np.abs(full.values - short.values[:some])[:, single] / np.maximum(spread, tiny * full.values[:, single])
    vectors = np.linalg.norm(full.vectors - short.vectors[:some], axis=1)[:, single] / np.maximum(moved, 1e-8)
    return float(max(values.max(), vectors.max()))


def _bootstrap_result(
    drawn: _Pairs, spectrum: np.ndarray, basis: np.ndarray, k: int, count: int, confidence: float, error: float
) -> Bootstrap:
    # Replicates of g groups vary by (g - 1) / g of what samples do, and r of them leave 1 / r of that in their mean.
    wide = student_factor(confidence, count, len(drawn.values)) * np.sqrt(count / (count - 1))
    wide *= np.sqrt(1 + 1 / len(drawn.values))
    values, total = spectrum[:k], float(np.maximum(spectrum, 0.0).sum())
    found = _mixed_groups(drawn, spectrum[: drawn.values.shape[1]])
    mixed = tuple(tuple(i for i in group if i <= k) for group in found if group[0] < k)
    among = np.isin(np.arange(k), [i for group in mixed for i in group])
    of_values = np.maximum(drawn.values[:, :k], np.finfo(float).tiny)
    shares = np.clip(of_values / drawn.totals[:, None], 1e-15, 1 - 1e-15)
    share = np.clip(values / total, 1e-15, 1 - 1e-15)
    ends = np.exp(_interval_ends(np.log(values), np.log(of_values), wide))
    odds = _interval_ends(np.log(share / (1 - share)), np.log(shares / (1 - shares)), wide)
    signs = fix_signs(basis[:, :k])
    entries = np.einsum("dj,rji->rdi", basis, drawn.vectors[:, :, :k], optimize=True) * signs
    vectors = basis[:, :k] * signs
    of_entries = _interval_ends(vectors, entries, wide)
    for interval in (ends, odds, of_entries):
        interval[..., among] = np.nan
    return Bootstrap(
        values=values.copy(),
        shares=values / total,
        vectors=vectors.copy(),
        value_errors=drawn.values[:, :k].std(axis=0, ddof=1) * np.sqrt(count / (count - 1)),
        value_intervals=ends,
        share_intervals=1 / (1 + np.exp(-odds)),
        vector_intervals=of_entries,
        mixed=mixed,
        groups=count,
        replicates=len(drawn.values),
        confidence=confidence,
        checked_error=error,
    )


def _interval_ends(whole: np.ndarray, drawn: np.ndarray, wide: float) -> np.ndarray:
    """Ends of intervals about ``whole`` less its bias."""
    centre, half = 2 * whole - drawn.mean(axis=0), wide * drawn.std(axis=0, ddof=1)
    return np.stack([centre - half, centre + half])
