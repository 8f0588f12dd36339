"""What one release of an oracle tells of two data sets, from the law of its noise: per mechanism, nothing shared.

``spent`` believes what the mechanism says of its noise, and has no sampling error; ``evidence`` is the log-likelihood
ratio of what was published, the strongest test there is (Neyman and Pearson). The centre, the batch, w and U of a query
are public, so both worlds' summaries are known to the adversary. Of a range only the heaviest bin is published.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from npmdask.privacy.audit.attacks import likelihood_ratio
from npmdask.privacy.audit.histogram_law import Heaviest
from npmdask.privacy.audit.transcript import Publication
from npmdask.privacy.dp_pca.base import Answer, BatchQuery
from npmdask.privacy.dp_pca.histogram import NOWHERE, StabilityHistogram
from npmdask.privacy.dp_pca.private_mean import ClippedMean, PaperMean
from npmdask.privacy.dp_pca.private_range import DistanceRange, PaperRange


@dataclass(frozen=True)
class Told:
    """A release as an adversary has it: what was asked and answered, and the summary (b. noise) of either world."""

    query: BatchQuery
    answer: Answer
    here: np.ndarray
    there: np.ndarray


@dataclass(frozen=True)
class Spent:
    """What releases really cost between two worlds: mu^2 of Gaussian noise, epsilon of Laplace noise, and the
    probability of a label that the other world cannot show."""

    mu_squared: float = 0.0
    epsilon: float = 0.0
    delta: float = 0.0

    def __add__(self, other: Spent) -> Spent:
        return Spent(self.mu_squared + other.mu_squared, self.epsilon + other.epsilon, self.delta + other.delta)


def spent(told: Told) -> Spent:
    """Of one release."""
    mechanism = told.query.mechanism
    if isinstance(mechanism, ClippedMean):
        return Spent(mu_squared=_squares(told) / mechanism.units**2)
    if isinstance(mechanism, DistanceRange):
        return Spent(mu_squared=_squares(told) / mechanism.histogram.stddev**2)
    if isinstance(mechanism, PaperRange):
        histogram = StabilityHistogram(epsilon=mechanism.epsilon, delta=mechanism.delta)
        return _of_labels(histogram, mechanism.labels(told.here), mechanism.labels(told.there))
    return _of_paper_mean(_paper_mean(mechanism), told)


def evidence(told: Told) -> float:
    """ln p(answer | there) - ln p(answer | here)."""
    if np.array_equal(told.here, told.there, equal_nan=True):
        return 0.0
    mechanism = told.query.mechanism
    if isinstance(mechanism, ClippedMean):
        return float(likelihood_ratio([noisy_sum(told)], "l2")[0])
    laws = [_law(mechanism, summary, told.answer) for summary in (told.here, told.there)]
    return laws[1] - laws[0]


def noisy_sum(told: Told) -> Publication:
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


def _of_paper_mean(mechanism: PaperMean, told: Told) -> Spent:
    """Histograms, and the Gaussian at the centres that tell most (of bins that hold a record in both worlds)."""
    d = told.here.shape[1]
    labels = mechanism.labels(told.here), mechanism.labels(told.there)
    total = Spent()
    for j in range(d):
        total += _of_labels(mechanism.histogram(d), labels[0][:, j], labels[1][:, j])
        shared = np.intersect1d(labels[0][:, j], labels[1][:, j])
        apart = max(
            abs(_clipped_mean(mechanism, told.there[:, j], c, d) - _clipped_mean(mechanism, told.here[:, j], c, d))
            for c in (None, *map(int, shared))
        )
        total += Spent(mu_squared=(apart / mechanism.stddev(d)) ** 2)
    return total


def _of_labels(histogram: StabilityHistogram, here: np.ndarray, there: np.ndarray) -> Spent:
    """Of bins that both worlds have epsilon; of those that one has, the probability to be seen."""
    held = [labels[labels != NOWHERE] for labels in (here, there)]
    found, where = np.unique(np.concatenate(held), return_inverse=True)
    counts = np.array([np.bincount(part, minlength=len(found)) for part in np.split(where, [len(held[0])])])
    both = (counts > 0).all(axis=0)
    lonely = counts.max(axis=0)[~both]
    scale = 2 / histogram.epsilon
    moved = float(np.abs(counts[1] - counts[0])[both].sum())
    return Spent(epsilon=moved / scale, delta=float(np.sum(0.5 * np.exp((lonely - histogram.threshold) / scale))))


def _squares(told: Told) -> float:
    """|there - here|^2 of two integer summaries, exactly."""
    return float(sum(int(x) ** 2 for x in told.there - told.here))


def _paper_mean(mechanism: Any) -> PaperMean:
    if not isinstance(mechanism, PaperMean):
        raise TypeError(f"no law is known for releases of a {type(mechanism).__name__}")
    return mechanism
