"""How far the images of a batch spread, released: what their mean is clipped to.

``PaperRange`` is PrivRange (Duengler and Sanyal 2025, Algorithm 6, after Liu et al. 2022). ``DistanceRange`` is what
the "tight" variant uses instead: a histogram of the distances of all images from a public centre. One record is one
count there, not one of a few groups, so it works with thousands of records less; and it sees an error of the centre.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np

from npmdask.accounting import Charge
from npmdask.errors import BadInputError
from npmdask.numerics.projections import present
from npmdask.operators.exact_sums import RECORD_GRID, round_to, unit_of
from npmdask.privacy.dp_pca.histogram import NOWHERE, GaussianHistogram, StabilityHistogram
from npmdask.privacy.dp_pca.neighbors import Relation, moved_counts, require_relation
from npmdask.privacy.dp_pca.noise import Noise, purpose_of
from npmdask.theory import privrange_groups

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
    relation : see :mod:`npmdask.privacy.dp_pca.neighbors`.
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
        if not 0 < self.largest < math.inf:
            raise BadInputError(f"the largest distance must be a positive number, not {self.largest!r}")

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
        squares, which, unit = np.zeros(len(images)), np.arange(len(images)), unit_of(self.largest)
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
    """Of (1 / b) G^T G for every group G (b x d), from the smaller of its two Gram matrices.

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
