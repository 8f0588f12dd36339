"""Release means of images, clipped around a centre, with noise; and the histograms that find where to clip.

``PaperMean`` is PrivMean (Duengler and Sanyal 2025, Algorithm 7): a centre for every coordinate from a stability
histogram of its own, coordinates clipped. ``ClippedMean`` is what "tight" variants and DP-Ojas use: the difference from
a *public* centre (what earlier releases predict, or zero) is clipped in 2-norm. No histogram, no sqrt(d), and the
radius shrinks with the error of the centre (as in CoinPress: Biswas, Dong, Kamath and Ullman 2020).

Sums of clipped differences are exact: every one is rounded to a grid of 2^-24 of the radius by itself, its norm is at
most the radius exactly, and the sum of integers does not depend on order or chunks. What is released is
centre + grid (sum + noise) / count. Neither the centre nor the division has to be exact: both are public.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
from scipy.special import ndtri

from npmdask.accounting import Charge, gaussian_charge, pure_as_gaussian
from npmdask.core.numerics.subspaces import present
from npmdask.dp_pca.base import (
    Noise,
    Relation,
    moved_counts,
    next_up,
    purpose_of,
    require_relation,
    sum_sensitivity,
    whole_scale,
)
from npmdask.errors import BadInputError, require
from npmdask.privacy.clipped_rows import Clipping, clip_records
from npmdask.privacy.exact_sums import RECORD_GRID, grid_unit, round_to
from npmdask.theory import hist_threshold, privmean_histogram, privrange_groups

# Histograms of which the heaviest bin may be published: what ranges and means are found with.
#
# Values arrive as labels of bins (int64). A neighbour moves ``moved`` counts by one (:mod:`.base`); a value that
# is in no bin has the label ``NOWHERE``. Counts are integers, so every sum here is exact.


NOWHERE = np.iinfo(np.int64).min
ROUNDED = 1 + 1e-3  # of a tail: for a scale that is rounded up, and noise that is rounded to the grid
COUNT = 1 << 20  # units of the grid in a count, for Laplace noise of scales that are no integers


@dataclass(frozen=True, kw_only=True)
class StabilityHistogram:
    """The "paper" one: any number of bins, also infinitely many; Laplace noise on those that are not empty.

    Parameters
    ----------
    epsilon, delta : (epsilon, delta)-DP where a neighbour moves at most two counts by one.

    Notes
    -----
    c + Lap(2 / epsilon) is dropped below 1 + (2 / epsilon) ln(2 / delta) (Duengler and Sanyal 2025, Appendix H, "DP
    histogram learner", after Karwa and Vadhan 2018). A bin that holds one value on one data set and none on its
    neighbour survives with probability delta / 4 (``lone``), and there are at most two such bins, of which each is
    seen on one of the two sides only. So it is (epsilon, lone)-DP: two lone bins differ by nothing else, and beside
    one the other count moves alone (epsilon / 2), with 1 / (1 - lone) for what is known to be dropped.
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        if not (0 < self.epsilon < math.inf and 0 < self.delta < 1):
            raise BadInputError("a stability histogram needs epsilon > 0 and 0 < delta < 1")

    @property
    def threshold(self) -> float:
        """Least noisy count of a bin that is seen at all."""
        return hist_threshold(self.epsilon, self.delta).value

    def heaviest(self, labels: np.ndarray, noise: Noise, purpose: str) -> int | None:
        """The label with the largest noisy count, or None if none survives."""
        found, counts = np.unique(labels[labels != NOWHERE], return_counts=True)
        if not len(found):
            return None
        scale = whole_scale(next_up(2 / self.epsilon) * COUNT)
        noisy = counts * COUNT + noise.laplace(scale, counts.shape, purpose)
        best = int(np.argmax(noisy))
        return int(found[best]) if noisy[best] >= next_up(self.threshold) * COUNT else None

    def cost(self) -> tuple[float, float]:
        """The (epsilon, delta) that it has."""
        lone = self.delta / 4 * ROUNDED
        return max(self.epsilon, self.epsilon / 2 - math.log1p(-lone)), lone


@dataclass(frozen=True, kw_only=True)
class LaplaceHistogram:
    """Purely epsilon-DP: a fixed number of public bins, 0 to ``bins`` - 1, Laplace noise (moved / epsilon) on all.

    No bin is left out, so nothing is to be hidden by a threshold, and delta is 0; the one here only tells a heavy bin
    from none, which is a function of what was released. For those who may not spend a delta: a few public bins.

    Parameters
    ----------
    bins, moved, fail_prob : as of :class:`GaussianHistogram`; the 1-norm sensitivity is ``moved``.
    epsilon : of the histogram.
    """

    bins: int
    epsilon: float
    moved: int
    fail_prob: float = 0.01

    def __post_init__(self) -> None:
        require(0 < self.epsilon < math.inf, f"a histogram without delta needs epsilon > 0, not {self.epsilon!r}")
        _check_bins(self.bins, self.moved, self.fail_prob)

    @property
    def scale(self) -> int:
        """In units of 1 / COUNT of a count."""
        return whole_scale(next_up(self.moved / self.epsilon) * COUNT)

    @property
    def threshold(self) -> float:
        """Least value of the heaviest noisy count that is accepted: above the noise of ``bins`` empty ones."""
        return self.scale / COUNT * math.log(max(self.bins / (2 * self.fail_prob), 1.0))

    def counts(self, labels: np.ndarray) -> np.ndarray:
        """int64[bins]. Counts of parts of a batch add up to that of the batch."""
        return _counts(labels, self.bins)

    def heaviest(self, counts: np.ndarray, noise: Noise, purpose: str) -> int | None:
        """The bin with the largest noisy count, or None if none rises above the noise."""
        _check_counts(counts, self.bins)
        noisy = counts * COUNT + noise.laplace(self.scale, counts.shape, purpose)
        best = int(np.argmax(noisy))
        return best if noisy[best] >= self.threshold * COUNT else None

    def charge(self) -> Charge:
        return Charge(epsilon=self.epsilon)


@dataclass(frozen=True, kw_only=True)
class GaussianHistogram:
    """The "tight" one: a fixed number of public bins, 0 to ``bins`` - 1, Gaussian noise on all of them.

    Parameters
    ----------
    bins : how many; public.
    multiplier : stddev / sensitivity of the noise, so that the histogram is (1 / multiplier)-GDP.
    moved : how many counts a neighbour moves by one; the 2-norm sensitivity is its square root.
    fail_prob : probability that the heaviest of empty bins is taken for a full one.
    """

    bins: int
    multiplier: float
    moved: int
    fail_prob: float = 0.01

    def __post_init__(self) -> None:
        require(0 < self.multiplier < math.inf, f"a histogram needs a multiplier > 0, not {self.multiplier!r}")
        _check_bins(self.bins, self.moved, self.fail_prob)

    @property
    def stddev(self) -> int:
        return whole_scale(next_up(self.multiplier * next_up(math.sqrt(self.moved))))

    @property
    def threshold(self) -> float:
        """Least value of the heaviest noisy count that is accepted: above the noise of ``bins`` empty ones."""
        return -self.stddev * float(ndtri(self.fail_prob / self.bins))

    def counts(self, labels: np.ndarray) -> np.ndarray:
        """int64[bins]. Counts of parts of a batch add up to that of the batch."""
        return _counts(labels, self.bins)

    def heaviest(self, counts: np.ndarray, noise: Noise, purpose: str) -> int | None:
        """The bin with the largest noisy count, or None if none rises above the noise."""
        _check_counts(counts, self.bins)
        noisy = counts + noise.gaussian(self.stddev, counts.shape, purpose)
        best = int(np.argmax(noisy))
        return best if noisy[best] >= self.threshold else None

    def charge(self) -> Charge:
        return gaussian_charge(self.multiplier, 1)


def _counts(labels: np.ndarray, bins: int) -> np.ndarray:
    return np.bincount(labels[labels != NOWHERE], minlength=bins).astype(np.int64)


def _check_bins(bins: int, moved: int, fail_prob: float) -> None:
    if not (bins >= 1 and moved in (1, 2) and 0 < fail_prob < 1):
        raise BadInputError("a histogram needs bins >= 1, moved = 1 or 2 and 0 < fail_prob < 1")


def _check_counts(counts: np.ndarray, bins: int) -> None:
    if counts.shape != (bins,) or counts.dtype != np.int64:
        raise BadInputError(f"counts of {bins} bins are int64[{bins}], not {counts.dtype}{counts.shape}")


MOST_RECORDS = 1 << 28  # of which sums of multiples of 2^-24 are exact in float64


@dataclass(frozen=True, kw_only=True)
class ClippedMean:
    """``centre + (sum of clip(g_i - centre, radius) + noise) / count``.

    Parameters
    ----------
    relation : "record_replace" (sensitivity of the sum 2 radius), "record_zero_out" or "record_add_remove" (radius).
    radius : of the ball, in 2-norm; public.
    count : records in the batch, or a guess of their number; public: what the sum is divided by.
    multiplier : stddev / sensitivity; the release is (1 / multiplier)-GDP.

    Notes
    -----
    The term of a record whose image is zero is zero, not -centre: a record of zeros is not there. Otherwise zeroing a
    record out would move the sum by up to twice the radius.
    """

    relation: Relation
    radius: float
    count: int
    multiplier: float

    additive: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_relation(self.relation)
        if not (1 <= self.count <= MOST_RECORDS and 0 < self.multiplier < math.inf):
            raise BadInputError(f"a mean needs 1 to 2^28 records and a multiplier > 0, not {self.count} of them")
        Clipping(self.radius, 1)  # its range

    @property
    def grid(self) -> float:
        return RECORD_GRID * grid_unit(self.radius)

    @property
    def units(self) -> int:
        """Standard deviation of the noise on the sum, in units of the grid."""
        return whole_scale(next_up(next_up(self.multiplier * sum_sensitivity(self.relation, self.radius)) / self.grid))

    @property
    def stddev(self) -> float:
        """Standard deviation of the noise on every coordinate of the mean."""
        return self.units * self.grid / self.count

    def summary(self, images: np.ndarray, centre: np.ndarray) -> np.ndarray:
        """int64[d]: the sum of clipped differences in units of the grid. Those of parts of a batch add up."""
        images, there = present(images)
        with np.errstate(over="ignore", invalid="ignore"):
            rounded = images - centre
            rounded[~there] = 0.0
            round_to(rounded, self.grid)
            clip_records(rounded, Clipping(self.radius, rounded.shape[1]), lambda far: images[far] - centre)
        return (rounded.sum(axis=0) / self.grid).astype(np.int64)

    def release(self, summary: np.ndarray, centre: np.ndarray, noise: Noise, purpose: str) -> np.ndarray:
        """float64[d]; ``summary`` of all ``count`` records, with the same centre."""
        drawn = noise.gaussian(self.units, summary.shape, purpose_of({**self.spec(), "of": purpose}, centre))
        return centre + (summary + drawn) * self.grid / self.count

    def charge(self) -> Charge:
        return gaussian_charge(self.multiplier, 1)

    def noise_stddev(self, d: int) -> float:
        """On a coordinate of the mean."""
        return self.stddev

    def spec(self) -> dict[str, Any]:
        return {"release": "mean-clipped", **asdict(self)}


@dataclass(frozen=True, kw_only=True)
class PlainMean:
    """The mean as it is, in float64: for Oja's method without privacy. Not private, whatever the noise."""

    count: int

    additive: ClassVar[bool] = True

    def summary(self, images: np.ndarray, centre: np.ndarray) -> np.ndarray:
        """float64[d]: the sum of the images."""
        return images.sum(axis=0)

    def release(self, summary: np.ndarray, centre: np.ndarray, noise: Noise, purpose: str) -> np.ndarray:
        return summary / self.count

    def noise_stddev(self, d: int) -> float:
        return 0.0

    def spec(self) -> dict[str, Any]:
        return {"release": "mean-plain", **asdict(self)}


@dataclass(frozen=True, kw_only=True)
class PaperMean:
    """Algorithm 7 with the errata: log^a(25) for log^2(25), and the centre 0 where no bin of a coordinate survives.

    Parameters
    ----------
    epsilon, delta : (epsilon, delta)-DP under both relations (sensitivities of replacing a record are used for both),
        as :func:`paper_mean_cost` shows.
    spread : Lambda, released by a :class:`~npmdask.dp_pca.private_mean.PaperRange`.
    count : B, records in the batch; public. tail : K and a of Assumption A.4. fail_prob : tau.
    """

    epsilon: float
    delta: float
    spread: float
    count: int
    fail_prob: float
    tail: tuple[float, float] = (1.0, 1.0)

    additive: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not (self.spread > 0 and 1 <= self.count <= MOST_RECORDS):
            raise BadInputError("PrivMean needs a positive range and 1 to 2^28 records")

    @property
    def width(self) -> float:
        """upsilon, of the bins that a centre is looked for in."""
        K, a = self.tail
        return 2**0.25 * K * math.sqrt(self.spread) * math.log(25) ** a

    def radius(self, d: int) -> float:
        """Compute the distance from their centre, on either side, that coordinates are clipped to."""
        K, a = self.tail
        return 3 * K * math.sqrt(self.spread) * math.log(self.count * d / self.fail_prob) ** a

    def stddev(self, d: int) -> float:
        """12 K sqrt(Lambda) log^a(B d / tau) sqrt(2 d ln(2.5 / delta)) / (epsilon B)."""
        return 4 * self.radius(d) * math.sqrt(2 * d * math.log(2.5 / self.delta)) / (self.epsilon * self.count)

    def histogram(self, d: int) -> StabilityHistogram:
        """Return the histogram of one of d coordinates: epsilon / (4 sqrt(2 d ln(4 / delta))) and delta / (4 d)."""
        return StabilityHistogram(epsilon=histogram_epsilon(self.epsilon, self.delta, d), delta=self.delta / (4 * d))

    def located(self, images: np.ndarray, noise: Noise, purpose: str) -> np.ndarray:
        """float64[d]: the left edge of the heaviest bin of every coordinate; public."""
        d, labels = images.shape[1], self.labels(images)
        heaviest = [self.histogram(d).heaviest(labels[:, j], noise, f"{purpose} coordinate {j}") for j in range(d)]
        return np.array([0.0 if label is None else label * self.width for label in heaviest])

    def labels(self, images: np.ndarray) -> np.ndarray:
        """int64[B, d]: the bin that every coordinate of every image is in."""
        limit = 2.0**40  # of bins on either side; farther values are counted in the last
        with np.errstate(over="ignore"):
            return np.clip(np.ceil(images / self.width) - 1, -limit, limit).astype(np.int64)

    def summary(self, images: np.ndarray, centre: np.ndarray) -> np.ndarray:
        """The images (B x d) of the whole batch, those that are not finite as zeros."""
        return present(images)[0]

    def release(self, summary: np.ndarray, centre: np.ndarray, noise: Noise, purpose: str) -> np.ndarray:
        """float64[d]: the noisy mean. ``centre`` is not used: Algorithm 7 looks for its own."""
        d = summary.shape[1]
        radius, grid = self.radius(d), RECORD_GRID * grid_unit(self.radius(d))
        purpose = purpose_of({**self.spec(), "of": purpose})
        found = self.located(summary, noise, purpose)
        clipped = np.clip(summary - found, grid - radius, radius - grid)  # its rounding cannot lead beyond the radius
        total = (round_to(clipped, grid).sum(axis=0) / grid).astype(np.int64)
        units = whole_scale(next_up(self.stddev(d) * self.count / grid))
        drawn = noise.gaussian(units, (d,), purpose_of({"of": purpose}, found))
        return found + (total + drawn) * grid / self.count

    def noise_stddev(self, d: int) -> float:
        """On a coordinate of the mean."""
        return self.stddev(d)

    def spec(self) -> dict[str, Any]:
        return {"release": "mean-paper", **asdict(self)}


def histogram_epsilon(epsilon: float, delta: float, d: int) -> float:
    """The share of every coordinate's histogram: epsilon / (4 sqrt(2 d ln(4 / delta)))."""
    return privmean_histogram(epsilon, delta, d).value.epsilon


def paper_mean_cost(epsilon: float, delta: float) -> tuple[Charge, float]:
    """Return the cost of PrivMean, replacing a record, in any dimension d: a Gaussian charge, and a delta besides.

    The d histograms are (epsilon_d, delta / (16 d))-DP: deltas add up, and d epsilon_d^2 is the same for all d. As
    Gaussian releases they add up to less than advanced composition says; d = 1 is the dearest, if by little.
    """
    one, _ = StabilityHistogram(epsilon=histogram_epsilon(epsilon, delta, 1), delta=delta / 4).cost()
    multiplier = 2 * math.sqrt(2 * math.log(2.5 / delta)) / epsilon  # stddev / (2 radius sqrt(d) / count)
    return pure_as_gaussian(one) + gaussian_charge(multiplier, 1), delta / 16 * ROUNDED


# How far the images of a batch spread, released: what their mean is clipped to.
#
# ``PaperRange`` is PrivRange (Duengler and Sanyal 2025, Algorithm 6, after Liu et al. 2022). ``DistanceRange`` is what
# the "tight" variant uses instead: a histogram of the distances of all images from a public centre. One record is one
# count there, not one of a few groups, so it works with thousands of records less; and it sees an error of the centre.


NEAR = 2.0**-12  # of a unit: nearer images are measured on a grid that is so much finer
LEVELS = 4  # of grids: down to 2^-60 of the largest distance, where bins end at 2^-40


@dataclass(frozen=True, kw_only=True)
class PaperRange:
    """Algorithm 6: top eigenvalues of groups of differences in geometric bins; the left edge of the heaviest.

    Parameters
    ----------
    epsilon, delta : (epsilon, delta)-DP under both relations: one record is in one difference, that in one group, and
        its eigenvalue leaves one bin for another.
    fail_prob : tau. constant : C_1, which the paper does not give.

    Notes
    -----
    As printed, but for the bins [2^(-1/4), 1), which the listing skips, and the bracket of the number of groups,
    C_1 ln(1 / (delta tau)) / epsilon. Differences double the covariance, and the listing does not halve it.
    """

    epsilon: float
    delta: float
    fail_prob: float
    constant: float = 3.0

    additive: ClassVar[bool] = False

    @property
    def groups(self) -> int:
        return int(privrange_groups(self.epsilon, self.delta, self.fail_prob, self.constant).value)

    def summary(self, images: np.ndarray, centre: np.ndarray) -> np.ndarray:
        """The images (B x d) of the whole batch, those that are not finite as zeros: groups cannot be added up."""
        return present(images)[0]

    def release(self, summary: np.ndarray, centre: np.ndarray, noise: Noise, purpose: str) -> float | None:
        """Lambda, or None: no bin survives, or there are fewer differences than groups (a public fact)."""
        histogram = StabilityHistogram(epsilon=self.epsilon, delta=self.delta)
        label = histogram.heaviest(self.labels(summary), noise, purpose_of({**self.spec(), "of": purpose}))
        return None if label is None else 2.0 ** (label / 4)

    def noise_stddev(self, d: int) -> float:
        """On a count of the histogram: of Laplace noise of scale 2 / epsilon."""
        return math.sqrt(2) * 2 / self.epsilon

    def labels(self, images: np.ndarray) -> np.ndarray:
        """int64[groups]: the bin that the top eigenvalue of every group is in; empty with too few differences."""
        each = len(images) // 2 // self.groups
        if each == 0:
            return np.zeros(0, np.int64)
        pairs = each * self.groups
        with np.errstate(over="ignore"):
            differences = images[1 : 2 * pairs : 2] - images[0 : 2 * pairs : 2]
        return _quarter_powers(_top_eigenvalues(differences.reshape(self.groups, each, -1)))

    def spec(self) -> dict[str, Any]:
        return {"release": "range-paper", **asdict(self)}


@dataclass(frozen=True, kw_only=True)
class DistanceRange:
    """The "tight" variant: the heaviest bin of ``|g_i - centre|_2`` on a public grid.

    Parameters
    ----------
    relation : see :mod:`npmdask.dp_pca.base`.
    largest : upper edge of the topmost bin; what is farther away is counted there. Public.
    multiplier : stddev / sensitivity; the release is (1 / multiplier)-GDP.
    bins : bins of ratio sqrt(2) below ``largest``; what is nearer is counted in the last.
    """

    relation: Relation
    largest: float
    multiplier: float
    bins: int = 80

    additive: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_relation(self.relation)
        require(0 < self.largest < math.inf, f"the largest distance must be a positive number, not {self.largest!r}")

    @property
    def histogram(self) -> GaussianHistogram:
        return GaussianHistogram(bins=self.bins, multiplier=self.multiplier, moved=moved_counts(self.relation))

    def summary(self, images: np.ndarray, centre: np.ndarray) -> np.ndarray:
        """int64[bins]: how many images are how far away. Those of parts of a batch add up; records of zeros are left
        out. The bin of a record is a function of its image and the centre alone."""
        images, there = present(images)
        mantissas, exponents = np.frexp(self._squares(images, centre) / self.largest / self.largest)
        steps = np.where(mantissas == 0.5, 1 - exponents, -exponents)  # floor(-log2) of a number above 0
        steps[mantissas == 0.0] = self.bins
        steps[np.isinf(mantissas)] = 0
        labels = np.clip(steps, 0, self.bins - 1).astype(np.int64)
        return self.histogram.counts(np.where(there, labels, NOWHERE))

    def _squares(self, images: np.ndarray, centre: np.ndarray) -> np.ndarray:
        """``|g - centre|^2``: exact sums of squares on a grid, finer for images that are nearer, so that no order of
        summation shows in them. Beyond 5 ``largest`` they may round, and stay beyond it."""
        squares, which, unit = np.zeros(len(images)), np.arange(len(images)), grid_unit(self.largest)
        for level in range(LEVELS):
            with np.errstate(over="ignore", invalid="ignore"):
                rounded = (images[which] if level else images) - centre
                round_to(rounded, RECORD_GRID * unit)
                squares[which] = np.vecdot(rounded, rounded)
            unit *= NEAR
            which = which[squares[which] < unit * unit]
            if not len(which):
                break
        return squares

    def release(self, summary: np.ndarray, centre: np.ndarray, noise: Noise, purpose: str) -> float | None:
        """The upper edge of the heaviest bin, or None if no bin rises above the noise."""
        best = self.histogram.heaviest(summary, noise, purpose_of({**self.spec(), "of": purpose}, centre))
        return None if best is None else self.largest * 2.0 ** (-best / 2)

    def noise_stddev(self, d: int) -> float:
        """On a count of the histogram."""
        return float(self.histogram.stddev)

    def charge(self) -> Charge:
        return self.histogram.charge()

    def spec(self) -> dict[str, Any]:
        return {"release": "range-tight", **asdict(self)}


def _top_eigenvalues(groups: np.ndarray) -> np.ndarray:
    """Compute the largest eigenvalue of (1 / b) G^T G for every group G (b x d), from the smaller Gram matrix.

    Infinite for a group whose product overflows: an eigensolver that gives up would tell of one record.
    """
    _, each, d = groups.shape
    with np.errstate(over="ignore", invalid="ignore"):
        product = groups @ groups.transpose(0, 2, 1) if each <= d else groups.transpose(0, 2, 1) @ groups
    finite = np.isfinite(product).all(axis=(1, 2))
    largest = np.linalg.eigvalsh(np.where(finite[:, None, None], product, 0.0) / each)[:, -1]
    return np.where(finite, largest, np.inf)


def _quarter_powers(values: np.ndarray) -> np.ndarray:
    """The r of the bin [2^(r/4), 2^((r+1)/4)) of every value; zero, and what is not finite, is in none."""
    labels = np.full(values.shape, NOWHERE)
    positive = np.isfinite(values) & (values > 0)
    labels[positive] = np.floor(4 * np.log2(values[positive])).astype(np.int64)
    return labels
