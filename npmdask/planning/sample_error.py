"""Bound the error of a run on a fraction of the rows, from a sample of them: is a sample enough?

Two halves of a sample know nothing of each other, and each is as far from all rows as the other. So half of what their
answers differ by is the error of one of them. To more rows it is carried on by the laws of sampling: squared tangents
fall like 1 / n, where the gap behind the components is known not to be zero; the variance that is lost falls at least
like 1 / sqrt(n), whatever the gap is. Calibrated on families of problems (benchmarks/sample_cases.py), of which the
bounds hold in nine of ten; docs/planning.md says in which not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import eigh

from npmdask.numerics.random import generator
from npmdask.theory.certificates.wording import at_most_percent, components, degrees, percent

SHARES = (0.01, 0.1)
SPLITS = 8  # pairs of disjoint parts of the sample, for each size
HIGH = 0.9  # quantile over them
SAFETY = 1.3  # of tangents: calibrated
GAP_ERRORS = 3.0  # standard errors that the gap behind the components is taken to be smaller by
LATER = 0.1  # by which the exponent of the loss is taken to be smaller than from a quarter to a half of the sample
NOTHING = 0.9  # a sine above says as little as none
UNSEEN = 2.3  # of a sample of s rows: of so many in s no row is drawn with a probability of 10 %
FLOPS = 4e8  # of products of narrow rows, over d^2: rows that are used beyond the least
LEAST = 1200  # rows that are used of any sample
PLACES = 8  # that rows come from, below which nothing is said
TINY = 1e-300


@dataclass(frozen=True, kw_only=True)
class ShareError:
    """What a run on ``rows`` rows, drawn at random, a ``share`` of all, is off by: bounds of which nine of ten hold.

    ``sine``: of the largest angle between its k components and those of all rows. ``lost``: of the variance that those
    of all rows explain, what the others do not. None: nothing is promised, and ``why``. ``rarer``: rows of a kind that
    is fewer than one in so many are not accounted for, as the sample may have none.
    """

    share: float
    rows: int
    sine: float | None
    lost: float | None
    rarer: int
    why: str = ""


def share_errors(
    rows: np.ndarray,
    *,
    of_rows: int,
    rank: int,
    places: Sequence[int] = (),
    missed: str = "",
    shares: Sequence[float] = SHARES,
) -> tuple[ShareError, ...]:
    """Bounds for each of ``shares``, from a sample (s x d) of ``of_rows`` rows, as the question sees them.

    ``places``: how many rows came from each place, where places were drawn rather than rows. Parts of the sample are
    then made of whole places, so that rows which have much in common do not count as many. ``missed``: why the sample
    is known to be too small, if it is.
    """
    s, rarer = len(rows), max(1, int((len(places) or len(rows)) / UNSEEN))
    largest = float(np.abs(rows).max(initial=0.0))
    why = missed or _too_few(s, len(places), rank) if np.isfinite(largest) else "some entries are not finite"
    if why:
        asked = [(share, max(1, round(share * of_rows))) for share in shares]
        return tuple(ShareError(share=share, rows=n, sine=None, lost=None, rarer=rarer, why=why) for share, n in asked)
    sample = _Sampled(rows / (largest or 1.0), places, rank)
    half, quarter = sample.compared(s // 2), sample.compared(s // 4)
    found = []
    for share in shares:
        n = max(1, round(share * of_rows))
        near = sample.compared(n) if rank < n < half.rows and not places else half
        sine, why = _sine_bound(sample, half, near, n, of_rows)
        lost: float | None = _loss_bound(half, quarter, near, n, of_rows)
        if n <= rank:
            sine, lost, why = None, None, f"{n} rows have no more than {n} components"
        found.append(ShareError(share=share, rows=n, sine=sine, lost=lost, rarer=rarer, why=why))
    return tuple(found)


def _too_few(rows: int, places: int, rank: int) -> str:
    if 0 < places < PLACES:
        return f"the sample is from {places} place{'s'[: places != 1]} of the data alone"
    if rows // 4 <= rank:
        return f"{rows} rows are a small sample for {rank} component{'s'[: rank != 1]}"
    return ""


@dataclass(frozen=True, kw_only=True)
class _Compared:
    """Of pairs of disjoint parts of so many ``rows``, an entry for each pair.

    ``sines``: squared, of one part against all rows. ``losses``: what it explains too much of itself and too little of
    all rows, over what it explains. ``gaps``: behind the components, of each part.
    """

    rows: float
    sines: np.ndarray
    losses: np.ndarray
    gaps: np.ndarray


class _Sampled:
    """A sample of rows: the gap behind its leading components, and how far that may be off."""

    def __init__(self, rows: np.ndarray, places: Sequence[int], rank: int) -> None:
        self.rows, self.rank = rows, rank
        count = len(places) or len(rows)
        self._of = np.repeat(np.arange(count), places) if places else np.arange(count)
        self._count = count
        values, basis = _leading(rows, rank + 1)
        self.gap = float(values[rank - 1] - values[rank])
        along = np.square(rows @ basis[:, rank - 1 :]) @ np.array([1.0, -1.0])[: basis.shape[1] - rank + 1]
        sums = np.bincount(self._of, weights=along)
        self.gap_error = float(np.sqrt(count) * sums.std() / len(rows))

    def compared(self, size: int) -> _Compared:
        """Parts of ``size`` rows each, or of as many places as hold so many."""
        each = max(1, size * self._count // len(self.rows))
        rng = generator(0, "parts of a sample", size)
        sizes, sines, losses, gaps = (list[float]() for _ in range(4))
        for _ in range(SPLITS):
            order = rng.permutation(self._count)
            pair = [self.rows[np.isin(self._of, some)] for some in (order[:each], order[each : 2 * each])]
            found = [_leading(part, self.rank) for part in pair]
            (first, left), (second, right) = found
            # Errors of both are independent: what they have in common is the product of the cosines to all rows.
            whole = min(left.shape[1], right.shape[1]) == self.rank  # parts of small places may have fewer rows
            sines.append(1 - float(min(np.linalg.svd(left.T @ right, compute_uv=False)[-1], 1.0)) * whole)
            own = first[: self.rank].sum() + second[: self.rank].sum()
            crossed = _explained(pair[1], left) + _explained(pair[0], right)
            losses.append(max(0.0, float(own) - crossed) / max(float(own), TINY))
            sizes += [len(part) for part in pair]
            gaps += [float(values[self.rank - 1] - values[self.rank]) for values in (first, second)]
        return _Compared(
            rows=float(np.mean(sizes)), sines=np.array(sines), losses=np.array(losses), gaps=np.array(gaps)
        )


def _sine_bound(sample: _Sampled, half: _Compared, near: _Compared, n: int, of_rows: int) -> tuple[float | None, str]:
    """Of n rows, from parts of ``near`` as many; None where the gap may be zero, and why."""
    # Small samples drive values apart, to first order by as much again from all of the sample to a half of it.
    gap = sample.gap - max(0.0, float(half.gaps.mean()) - sample.gap)
    sure = gap - GAP_ERRORS * sample.gap_error
    if sure <= 0:
        k = sample.rank
        return None, f"a sample of {len(sample.rows)} rows does not tell values {k} and {k + 1} apart"
    squared = float(np.quantile(near.sines, HIGH))
    tangent = SAFETY**2 * squared / max(1 - squared, TINY) * (1 / n - 1 / of_rows) * near.rows
    if n > near.rows:
        tangent *= (sample.gap / sure) ** 2
    sine = float(np.sqrt(tangent / (1 + tangent)))
    return (sine, "") if sine <= NOTHING else (None, f"a sample of {len(sample.rows)} rows is too small to bound it")


def _loss_bound(half: _Compared, quarter: _Compared, near: _Compared, n: int, of_rows: int) -> float:
    """Of n rows, a share of what the components of all rows explain."""
    if n > near.rows:
        fall = np.log(max(quarter.losses.mean(), TINY) / max(half.losses.mean(), TINY))
        times = max(half.rows / quarter.rows, 1.5)  # 2, but for places of unlike sizes
        exponent = float(np.clip(fall / np.log(times) - LATER, 0.5, 1.0))
    else:
        exponent = 1.0
    return min(1.0, float(np.quantile(near.losses, HIGH)) * (near.rows / n) ** exponent * (1 - n / of_rows))


def _explained(rows: np.ndarray, basis: np.ndarray) -> float:
    return float(np.square(rows @ basis).sum() / len(rows))


def _leading(rows: np.ndarray, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """k + 1 values of the mean of x x^T, the last 0 where there is none, and k vectors (0 for values that are)."""
    count, d = rows.shape
    wide = count < d
    gram = rows @ rows.T if wide else rows.T @ rows
    side = len(gram)
    found, vectors = eigh(gram, subset_by_index=[max(0, side - rank - 1), side - 1])
    values = np.zeros(rank + 1)
    values[: len(found)] = np.maximum(found[::-1], 0.0)
    basis = vectors[:, ::-1][:, :rank]
    if wide:
        roots = np.sqrt(values[:rank])
        basis = rows.T @ (basis / np.where(roots > 1e-8 * roots[0], roots, np.inf))
    return values / count, basis


def shares_said(errors: Sequence[ShareError], rank: int) -> str:
    """The same in a sentence."""
    said = "; ".join(_said(one, rank) for one in errors)
    if all(one.lost is None for one in errors):
        return said
    return (
        f"{said} (in 9 of 10 problems; for rows drawn at random, where no kind of row matters that is rarer than 1 in "
        f"{errors[0].rarer:,})"
    )


def _said(one: ShareError, rank: int) -> str:
    run = f"a run on {percent(one.share)} of the rows ({one.rows:,})"
    if one.lost is None:
        return f"{run}: unknown, {one.why}"
    angle = f"by any angle ({one.why})" if one.sine is None else f"by at most {degrees(one.sine, least=0)}"
    return (
        f"{run} changes {components(rank)} {angle} and loses at most {at_most_percent(one.lost)} of what they explain"
    )
