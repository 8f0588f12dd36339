"""Histograms of which the heaviest bin may be published: what ranges and means are found with.

Values arrive as labels of bins (int64). A neighbour moves ``moved`` counts by one (:mod:`.neighbours`); a value that
is in no bin has the label ``NOWHERE``. Counts are integers, so every sum here is exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from npmdask.accounting import Charge, gaussian_charge
from npmdask.errors import BadInputError
from npmdask.privacy.dp_pca.base import Noise, whole_scale
from npmdask.privacy.dp_pca.neighbors import next_up
from npmdask.theory import hist_threshold

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
        """What a noisy count must reach to be seen at all."""
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
        if not (0 < self.epsilon < math.inf):
            raise BadInputError(f"a histogram without delta needs epsilon > 0, not {self.epsilon!r}")
        _check_bins(self.bins, self.moved, self.fail_prob)

    @property
    def scale(self) -> int:
        """In units of 1 / COUNT of a count."""
        return whole_scale(next_up(self.moved / self.epsilon) * COUNT)

    @property
    def threshold(self) -> float:
        """What the heaviest noisy count must reach: above the noise of ``bins`` empty ones."""
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
        if not 0 < self.multiplier < math.inf:
            raise BadInputError(f"a histogram needs a multiplier > 0, not {self.multiplier!r}")
        _check_bins(self.bins, self.moved, self.fail_prob)

    @property
    def stddev(self) -> int:
        return whole_scale(next_up(self.multiplier * next_up(math.sqrt(self.moved))))

    @property
    def threshold(self) -> float:
        """What the heaviest noisy count must reach: above the noise of ``bins`` empty ones."""
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
