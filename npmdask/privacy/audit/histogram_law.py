"""How probable a heaviest bin is: the exact law of what a noisy histogram publishes.

Only the label of the largest noisy count becomes public, or nothing where none reaches the threshold:

    P(j) = sum over x >= threshold of P(c_j + Z = x) product over the other i of P(c_i + Z <= x)

with < for bins before j, as the first of two equal counts wins. An adversary that knows both data sets has this for
both, and so the likelihood ratio.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import log_ndtr, ndtr

from npmdask.privacy.audit.transcript import Values
from npmdask.privacy.dp_pca.histogram import NOWHERE, GaussianHistogram, StabilityHistogram

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
