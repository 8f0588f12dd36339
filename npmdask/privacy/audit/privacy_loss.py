"""Compute the privacy loss of one release of an oracle from the law of its noise: per mechanism, nothing shared.

``spent`` believes what the mechanism says of its noise, and has no sampling error; ``evidence`` is the log-likelihood
ratio of what was published, the strongest test there is (Neyman and Pearson). The centre, the batch, w and U of a query
are public, so both worlds' summaries are known to the adversary. Of a range only the heaviest bin is published.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import log_ndtr, ndtr

from npmdask.privacy.audit.attacks import Publication, Values, likelihood_ratio
from npmdask.privacy.dp_pca.base import Answer, BatchQuery
from npmdask.privacy.dp_pca.private_mean import (
    NOWHERE,
    ClippedMean,
    DistanceRange,
    GaussianHistogram,
    PaperMean,
    PaperRange,
    StabilityHistogram,
)

# How probable a heaviest bin is: the exact law of what a noisy histogram publishes.
#
# Only the label of the largest noisy count becomes public, or nothing where none reaches the threshold:
#
#     P(j) = sum over x >= threshold of P(c_j + Z = x) product over the other i of P(c_i + Z <= x)
#
# with < for bins before j, as the first of two equal counts wins. An adversary that knows both data sets has this for
# both, and so the likelihood ratio.


CELLS = 40  # of the sum, in a scale of the noise; cells of one where the scale is smaller: then the sum is exact
REACH = {"gaussian": 9.0, "laplace": 40.0}  # scales beyond which noise is left out of the sum
IMPOSSIBLE = -1e3  # log-probability of what cannot happen, or nearly so: finite, so that a ratio is a number


@dataclass(frozen=True)
class Heaviest:
    """What is published of a histogram.

    Parameters
    ----------
    labels : of the bins that take part (int64), ascending. counts : of each.
    law : "gaussian" or "laplace". scale : stddev or scale of the noise on every count. threshold : see the module.
    """

    labels: np.ndarray
    counts: np.ndarray
    law: str
    scale: float
    threshold: float

    @classmethod
    def of_counts(cls, histogram: GaussianHistogram, counts: np.ndarray) -> Heaviest:
        """Of a histogram with a public number of bins."""
        labels = np.arange(histogram.bins)
        return cls(labels, counts, "gaussian", float(histogram.stddev), histogram.threshold)

    @classmethod
    def of_labels(cls, histogram: StabilityHistogram, labels: np.ndarray) -> Heaviest:
        """Of a histogram of bins that are not empty."""
        found, counts = np.unique(labels[labels != NOWHERE], return_counts=True)
        return cls(found, counts, "laplace", 2 / histogram.epsilon, histogram.threshold)

    def log_probability(self, label: int | None) -> float:
        """Of publishing ``label``, or nothing (None)."""
        if label is None:
            most = math.ceil(self.threshold) - 1 if self.law == "gaussian" else self.threshold
            return max(float(self._log_cdf(most - self.counts).sum()), IMPOSSIBLE)
        place = int(np.searchsorted(self.labels, label))
        if place == len(self.labels) or self.labels[place] != label:
            return IMPOSSIBLE
        x, count = self._cells(int(self.counts[place])), self.counts[place]
        levels, bins = np.unique(np.delete(self.counts, place) + self._ties(place), return_counts=True)
        below = self._log_cdf(x[:, None] - levels) @ bins  # bins with the same count have the same factor
        here = self._cdf(x - count) - self._cdf(x - count - self.step)
        return max(math.log(max(float(here @ np.exp(below)), 1e-300)), IMPOSSIBLE)

    def _ties(self, place: int) -> Values:
        """What a bin must stay below the winner by: 1 before it, 0 behind; where cells are coarse, half a cell."""
        if self.law == "gaussian" and self.step == 1:
            return np.where(np.arange(len(self.counts) - 1) < place, 1.0, 0.0)
        return np.full(len(self.counts) - 1, self.step / 2)

    @property
    def step(self) -> float:
        """Width of a cell: 1 where noise is on integers, less for Laplace noise, which is on a finer grid."""
        fine = self.scale / CELLS
        return max(1.0, float(np.floor(fine))) if self.law == "gaussian" else fine

    def _cells(self, count: int) -> Values:
        """Upper edges of the cells of what the winner's noisy count may be; the first begins at the threshold."""
        reach = REACH[self.law] * self.scale
        least = max(self.threshold, count - reach)
        first = (math.ceil(least) - 1 if self.law == "gaussian" else least) + self.step
        return np.arange(first, first + 2 * reach, self.step)

    def _cdf(self, noise: Values) -> Values:
        """P(Z <= noise), for the Gaussian rounded to integers."""
        if self.law == "gaussian":
            return np.asarray(ndtr((noise + 0.5) / self.scale))
        return np.asarray(np.exp(self._log_cdf(noise)))

    def _log_cdf(self, noise: Values) -> Values:
        if self.law == "gaussian":
            return np.asarray(log_ndtr((noise + 0.5) / self.scale))
        z = noise / self.scale
        return np.where(z < 0, np.log(0.5) + z, np.log1p(-0.5 * np.exp(-np.abs(z))))


@dataclass(frozen=True)
class ObservedRelease:
    """A release as an adversary has it: what was asked and answered, and the summary (b. noise) of either world."""

    query: BatchQuery
    answer: Answer
    here: np.ndarray
    there: np.ndarray


@dataclass(frozen=True)
class PrivacyLoss:
    """What releases really cost between two worlds: mu^2 of Gaussian noise, epsilon of Laplace noise, and the
    probability of a label that the other world cannot show."""

    mu_squared: float = 0.0
    epsilon: float = 0.0
    delta: float = 0.0

    def __add__(self, other: PrivacyLoss) -> PrivacyLoss:
        return PrivacyLoss(self.mu_squared + other.mu_squared, self.epsilon + other.epsilon, self.delta + other.delta)


def spent(told: ObservedRelease) -> PrivacyLoss:
    """Of one release."""
    mechanism = told.query.mechanism
    if isinstance(mechanism, ClippedMean):
        return PrivacyLoss(mu_squared=_squares(told) / mechanism.units**2)
    if isinstance(mechanism, DistanceRange):
        return PrivacyLoss(mu_squared=_squares(told) / mechanism.histogram.stddev**2)
    if isinstance(mechanism, PaperRange):
        histogram = StabilityHistogram(epsilon=mechanism.epsilon, delta=mechanism.delta)
        return _of_labels(histogram, mechanism.labels(told.here), mechanism.labels(told.there))
    return _of_paper_mean(_paper_mean(mechanism), told)


def evidence(told: ObservedRelease) -> float:
    """ln p(answer | there) - ln p(answer | here)."""
    if np.array_equal(told.here, told.there, equal_nan=True):
        return 0.0
    mechanism = told.query.mechanism
    if isinstance(mechanism, ClippedMean):
        return float(likelihood_ratio([noisy_sum(told)], "l2")[0])
    laws = [_law(mechanism, summary, told.answer) for summary in (told.here, told.there)]
    return laws[1] - laws[0]


def noisy_sum(told: ObservedRelease) -> Publication:
    """The release of a :class:`ClippedMean` as a sum in units of its grid, one run."""
    mechanism = told.query.mechanism
    assert isinstance(mechanism, ClippedMean) and isinstance(told.answer, np.ndarray)
    value = (told.answer - told.query.centre) * (mechanism.count / mechanism.grid)
    here, there = (np.asarray(summary, np.float64)[None] for summary in (told.here, told.there))
    return Publication(step=1, value=value[None], here=here, there=there, noise=np.array([float(mechanism.units)]))


def _law(mechanism: Any, summary: np.ndarray, answer: Answer) -> float:
    """ln p(answer | summary) of a range, or of PrivMean."""
    if isinstance(mechanism, DistanceRange):
        label = None if answer is None else round(2 * math.log2(mechanism.largest / float(answer)))
        return Heaviest.of_counts(mechanism.histogram, summary).log_probability(label)
    if isinstance(mechanism, PaperRange):
        histogram = StabilityHistogram(epsilon=mechanism.epsilon, delta=mechanism.delta)
        label = None if answer is None else round(4 * math.log2(float(answer)))
        return Heaviest.of_labels(histogram, mechanism.labels(summary)).log_probability(label)
    assert isinstance(answer, np.ndarray)
    return sum(_coordinate(_paper_mean(mechanism), summary, j, float(answer[j])) for j in range(len(answer)))


def _coordinate(mechanism: PaperMean, images: np.ndarray, j: int, answer: float) -> float:
    """ln p of a coordinate of PrivMean: a mixture over the centres that its histogram may find."""
    d = images.shape[1]
    law = Heaviest.of_labels(mechanism.histogram(d), mechanism.labels(images)[:, j])
    stddev = mechanism.stddev(d)
    parts = []
    for label in (None, *map(int, law.labels)):
        z = (answer - _clipped_mean(mechanism, images[:, j], label, d)) / stddev
        parts.append(law.log_probability(label) - z * z / 2)
    return float(np.logaddexp.reduce(parts))


def _clipped_mean(mechanism: PaperMean, values: np.ndarray, label: int | None, d: int) -> float:
    """The mean of one coordinate around the left edge of the bin ``label``, without noise."""
    centre, radius = 0.0 if label is None else label * mechanism.width, mechanism.radius(d)
    return centre + float(np.clip(values - centre, -radius, radius).sum()) / mechanism.count


def _of_paper_mean(mechanism: PaperMean, told: ObservedRelease) -> PrivacyLoss:
    """Histograms, and the Gaussian at the centres that tell most (of bins that hold a record in both worlds)."""
    d = told.here.shape[1]
    labels = mechanism.labels(told.here), mechanism.labels(told.there)
    total = PrivacyLoss()
    for j in range(d):
        total += _of_labels(mechanism.histogram(d), labels[0][:, j], labels[1][:, j])
        shared = np.intersect1d(labels[0][:, j], labels[1][:, j])
        apart = max(
            abs(_clipped_mean(mechanism, told.there[:, j], c, d) - _clipped_mean(mechanism, told.here[:, j], c, d))
            for c in (None, *map(int, shared))
        )
        total += PrivacyLoss(mu_squared=(apart / mechanism.stddev(d)) ** 2)
    return total


def _of_labels(histogram: StabilityHistogram, here: np.ndarray, there: np.ndarray) -> PrivacyLoss:
    """Of bins that both worlds have epsilon; of those that one has, the probability to be seen."""
    held = [labels[labels != NOWHERE] for labels in (here, there)]
    found, where = np.unique(np.concatenate(held), return_inverse=True)
    counts = np.array([np.bincount(part, minlength=len(found)) for part in np.split(where, [len(held[0])])])
    both = (counts > 0).all(axis=0)
    lonely = counts.max(axis=0)[~both]
    scale = 2 / histogram.epsilon
    moved = float(np.abs(counts[1] - counts[0])[both].sum())
    return PrivacyLoss(epsilon=moved / scale, delta=float(np.sum(0.5 * np.exp((lonely - histogram.threshold) / scale))))


def _squares(told: ObservedRelease) -> float:
    """|there - here|^2 of two integer summaries, exactly."""
    return float(sum(int(x) ** 2 for x in told.there - told.here))


def _paper_mean(mechanism: Any) -> PaperMean:
    if not isinstance(mechanism, PaperMean):
        raise TypeError(f"the audit does not know the distribution of releases of a {type(mechanism).__name__}")
    return mechanism
