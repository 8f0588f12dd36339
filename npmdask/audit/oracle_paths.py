"""Every private path of the oracles: its privacy loss, and the neighbours that it is attacked on.

Whole runs: ``k-dp-pca`` ("tight", all records in every step), ``k-dp-pca-disjoint`` (disjoint batches), ``k-dp-ojas``
(sound noise), ``k-dp-pca-paper-same`` and ``-disjoint`` (ModifiedDP-PCA; what its two halves are). Mechanisms by
themselves: ``distance-range`` (its histogram has Gaussian noise), ``clipped-mean``, ``paper-range`` (its histogram has
Laplace noise and no public bins) and ``paper-mean``. The paper's promise an (epsilon, delta), the others mu of Gaussian
differential privacy.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
import zarr
from scipy.special import log_ndtr, ndtr

from npmdask.accounting.budget import Budget, gaussian_multiplier
from npmdask.accounting.gdp import mu_for
from npmdask.audit.attacks import Publication, Values, likelihood_ratio
from npmdask.audit.release_path import follows_places
from npmdask.core.algorithms import Query
from npmdask.core.execution.reduction import compute_run
from npmdask.core.numerics.subspaces import Block
from npmdask.core.storage.readers.dense import DenseReader
from npmdask.dp_pca.base import (
    RELATIONS,
    Answer,
    BatchMechanism,
    BatchQuery,
    Noise,
    Promise,
    Relation,
    SimulatedNoise,
    promise_of,
    released,
)
from npmdask.dp_pca.deflation import Deflation
from npmdask.dp_pca.exact_oracles import PowerOracle, TightOracle
from npmdask.dp_pca.paper_oracles import DPOjas, ModifiedDPPCA
from npmdask.dp_pca.private_mean import (
    NOWHERE,
    ClippedMean,
    DistanceRange,
    GaussianHistogram,
    PaperMean,
    PaperRange,
    StabilityHistogram,
)
from npmdask.dp_pca.record_images import RecordImages, images_of_matrices, images_of_rows, pack_query
from npmdask.privacy.exact_sums import RECORD_GRID, grid_unit

# Compute the privacy loss of one release of an oracle from the law of its noise: per mechanism, nothing shared.
#
# ``spent`` believes what the mechanism says of its noise, and has no sampling error; ``evidence`` is the log-likelihood
# ratio of what was published, the strongest test there is (Neyman and Pearson). The centre, the batch, w and U of a
# query are public, so both worlds' summaries are known to the adversary. Of a range only the heaviest bin is published.


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
    """Law of what is published of a histogram.

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
        """Make the law of a histogram with a public number of bins."""
        labels = np.arange(histogram.bins)
        return cls(labels, counts, "gaussian", float(histogram.stddev), histogram.threshold)

    @classmethod
    def of_labels(cls, histogram: StabilityHistogram, labels: np.ndarray) -> Heaviest:
        """Make the law of a histogram of bins that are not empty."""
        found, counts = np.unique(labels[labels != NOWHERE], return_counts=True)
        return cls(found, counts, "laplace", 2 / histogram.epsilon, histogram.threshold)

    def log_probability(self, label: int | None) -> float:
        """Compute the log-probability of publishing ``label``, or nothing (None)."""
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
        """Return how far a bin must stay below the winner: 1 before it, 0 behind; in coarse cells, half a cell."""
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
    """Privacy loss that releases really cause between two worlds.

    mu^2 of Gaussian noise, epsilon of Laplace noise, and the probability of a label that the other world cannot show.
    """

    mu_squared: float = 0.0
    epsilon: float = 0.0
    delta: float = 0.0

    def __add__(self, other: PrivacyLoss) -> PrivacyLoss:
        return PrivacyLoss(self.mu_squared + other.mu_squared, self.epsilon + other.epsilon, self.delta + other.delta)


def spent(told: ObservedRelease) -> PrivacyLoss:
    """Compute the privacy loss of one release."""
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
    laws = [_log_probability(mechanism, summary, told.answer) for summary in (told.here, told.there)]
    return laws[1] - laws[0]


def noisy_sum(told: ObservedRelease) -> Publication:
    """The release of a :class:`ClippedMean` as a sum in units of its grid, one run."""
    mechanism = told.query.mechanism
    assert isinstance(mechanism, ClippedMean) and isinstance(told.answer, np.ndarray)
    value = (told.answer - told.query.centre) * (mechanism.count / mechanism.grid)
    here, there = (np.asarray(summary, np.float64)[None] for summary in (told.here, told.there))
    return Publication(step=1, value=value[None], here=here, there=there, noise=np.array([float(mechanism.units)]))


def _log_probability(mechanism: Any, summary: np.ndarray, answer: Answer) -> float:
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
    """Compute the loss of labels: epsilon of bins in both worlds; of bins in one, the probability to be seen."""
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


# Neighbours for the releases of stochastic oracles: records A_i = t_i I, one of which changes.
#
# The image of t I is t w for whatever public w an adaptive run has come to, so one pair attains the sensitivity in
# every query: a record far out on one side against one far out on the other is clipped to opposite ends of the ball,
# and lies in two bins of a histogram of distances if they are not equally far. ``rows`` are records x x^T, which
# cannot do that; ``not-finite`` changes a record that counts as zeros. What a pair attains is measured and reported,
# not assumed.


FAR = 1000.0  # a record that every radius clips
SPREAD = 1.2  # of the others: in the middle of a bin of distances, so that the centre may be wrong a little
LARGEST = 8.0  # public bound of distances: the topmost bin begins at LARGEST / sqrt(2)
OPPOSITE = -4.8  # outside every radius below LARGEST, and in another bin than FAR
HOSTILE = (np.nan, np.inf, -np.inf, 1e308, -1e200, 5e-324)  # entries that must not stop a release, or warn


@dataclass(frozen=True, kw_only=True)
class OraclePair:
    """Two data sets that differ in the record ``place``: n x d x d matrices, or n x d rows of records x x^T."""

    name: str
    relation: Relation
    here: np.ndarray
    there: np.ndarray
    place: int

    @property
    def dimension(self) -> int:
        return int(self.here.shape[1])

    def with_record(self, value: float) -> np.ndarray:
        """The data of ``here`` with a record whose entries are all ``value``."""
        records = self.here.copy()
        records[self.place] = value
        return records


def multiples(values: np.ndarray, dimension: int) -> np.ndarray:
    """Records t I for every t of ``values``: n x d x d."""
    return values[:, None, None] * np.eye(dimension)


def changed(
    name: str, relation: Relation, values: np.ndarray, place: int, ends: tuple[float, float], dimension: int
) -> OraclePair:
    """Records t I with the first of ``ends`` at ``place`` in the world ``here``; there with the second, or 0 where a
    record is zeroed out, or without it where one is removed."""
    here, other = values.astype(np.float64), values.astype(np.float64)
    here[place], other[place] = ends
    there = _neighbour(relation, other, place)
    worlds = {"here": multiples(here, dimension), "there": multiples(there, dimension)}
    return OraclePair(name=name, relation=relation, place=place, **worlds)


def _neighbour(relation: str, records: np.ndarray, place: int) -> np.ndarray:
    """``records``, of which the one that another is replaced by is at ``place``, under any of the relations."""
    if relation == "record_add_remove":
        return np.delete(records, place, axis=0)
    if relation == "record_zero_out":
        records[place] = 0.0
    return records


def whole_run(relation: Relation, records: int, dimension: int, *, place: int) -> tuple[OraclePair, ...]:
    """For oracles that clip: the pair that attains the sensitivity, rows of records, a record that is not finite."""
    values = np.where(np.arange(records) % 2, SPREAD, -SPREAD)
    attains = changed("attains", relation, values, place, (FAR, OPPOSITE), dimension)
    ruined = changed("not-finite", relation, values, place, (np.nan, FAR), dimension)
    return attains, _rows(relation, records, dimension, place), ruined


def _rows(relation: Relation, records: int, dimension: int, place: int) -> OraclePair:
    here = np.random.default_rng(0).standard_normal((records, dimension))
    other = here.copy()
    here[place], other[place] = FAR, FAR * np.where(np.arange(dimension) % 2, -1.0, 1.0)
    there = _neighbour(relation, other, place)
    return OraclePair(name="rows", relation=relation, here=here, there=there, place=place)


def tied_groups(relation: Relation, groups: int, dimension: int, *, name: str = "attains", lead: int = 0) -> OraclePair:
    """2 ``groups`` records, whose differences are 1 for half of the pairs and 2 for the others; the pair in the middle
    changes from 1 to 2, so that two bins are as full as each other but for this one (or the first leads by 2 ``lead``).

    The record that changes is on either side of its partner, so a mean that is clipped closely moves to the other end.
    """
    values = np.zeros(2 * groups)
    middle = groups // 2 + lead
    values[1 : 2 * middle : 2], values[2 * middle + 1 :: 2] = 1.0, 2.0
    if groups % 2 == 0:
        values[1] = 0.0  # one group of an even number is in no bin
    if relation == "record_zero_out":
        values[2 * middle] = 2.0  # 3 - 2 = 1, zeroed out 0 - 2
    ends = 3.0 if relation == "record_zero_out" else 1.0, -2.0
    return changed(name, relation, values, 2 * middle + 1, ends, dimension)


def lonely_group(relation: Relation, groups: int, dimension: int) -> OraclePair:
    """Differences of 1, but for one group of its own at 16: a bin that is empty in the other world."""
    values = np.where(np.arange(2 * groups) % 2, 1.0, 0.0)
    pair = changed("lonely", relation, values, 1, (1.0, 1.0), dimension)
    pair.here[1] = 16.0 * np.eye(dimension)
    return pair


def tied_bins(relation: Relation, values: tuple[float, float], each: int, name: str = "attains") -> OraclePair:
    """d = 1: ``each`` records at either value, and one that leaves the first for the second (or for zero)."""
    records = np.repeat([values[0], values[1]], each)
    return changed(name, relation, np.append(records, 0.0), 2 * each, values, 1)


def full_bin(relation: Relation, value: float, count: int) -> OraclePair:
    """d = 1: a bin with ``count`` records, of which one is zeroed out (or goes far away)."""
    return changed("attains", relation, np.full(count, value), count - 1, (value, FAR), 1)


# The release path of a stochastic oracle, in two worlds: query, summary of the batch, release, update, again.
#
# What is exercised is the product's own: the oracle in its deflation, images, each mechanism's ``summary`` and
# ``release``, and the sampler under a secret key. Only the loop is the audit's, and it forms summaries at once: that
# the operator of a pass forms the same, over chunks, is checked beside. Every run is by itself, with a key of its
# own: queries are adaptive, and no two runs ask the same.


Run = list[ObservedRelease]
CHUNK, CHUNKS = 3, 2  # records at least, and about how many of them


def summary_of(query: BatchQuery, records: np.ndarray) -> np.ndarray:
    """Compute the summary of the batch of ``query``; ``records`` (n x d, or n x d x d) are the whole data set."""
    return query.mechanism.summary(_images(query, records), query.centre)


def summary_by_pass(query: BatchQuery, records: np.ndarray) -> np.ndarray:
    """The same by the product's operator, over chunks, part by part: far slower on so few records."""
    rows = records.reshape(len(records), -1)
    held = zarr.create_array(
        {},
        shape=rows.shape,
        dtype=np.float64,
        chunks=(max(CHUNK, len(rows) // CHUNKS), rows.shape[1]),
        compressors=None,
        config={"write_empty_chunks": True},
    )
    held[...] = rows
    block = pack_query(query.vector, query.centre, query.found)
    side = records.shape[1] if records.ndim == 3 else None
    every = RecordImages(reader=DenseReader(array=held), side=side, rows=range(len(records)))
    operator = every.asked(Query(block=block, batch=query))
    total = reduce(operator.join, (compute_run(operator, range(i, i + 1), block) for i in range(operator.units)))
    return operator.finish(total, block)


def _images(query: BatchQuery, records: np.ndarray) -> np.ndarray:
    images = images_of_rows if records.ndim == 2 else images_of_matrices
    return images(records[_batch(query)], query.vector, query.found)


def _batch(query: BatchQuery) -> slice:
    """The records of the batch; None means all that there are."""
    rows: range | None = query.rows
    return slice(None) if rows is None else slice(rows.start, rows.stop)


@dataclass(frozen=True)
class Once:
    """An oracle that asks one mechanism once, of all records, at w = e_1 and a given centre: a mechanism by itself."""

    mechanism: BatchMechanism
    centre: np.ndarray
    promised: Promise
    target_rank: int = 1

    def init(self, found: Block, earlier: bool | None) -> bool:
        return False

    def query(self, answered: bool) -> BatchQuery:
        first = np.eye(len(self.centre))[0]
        return BatchQuery(None, first, np.zeros((len(first), 0)), self.centre, self.mechanism, 0)

    def update(self, answered: bool, answer: Answer) -> bool:
        return True

    def direction(self, answered: bool) -> np.ndarray | None:
        return np.eye(len(self.centre))[0] if answered else None

    def promise(self) -> Promise:
        return self.promised


class OraclePath:
    """Private path of an oracle under audit. A mutant overrides one method, or is given another oracle.

    Parameters
    ----------
    name : of the private path. oracle : what asks. pair : the neighbours.
    budget : what is promised for the whole run; as mu of Gaussian differential privacy where ``gaussian``.
    """

    def __init__(self, name: str, oracle: Any, pair: OraclePair, budget: Budget, *, gaussian: bool) -> None:
        self.name, self.oracle, self.pair = name, oracle, pair
        self.budget, self.gaussian = budget, gaussian
        self._first: dict[str, tuple[np.ndarray, np.ndarray]] = {}

    @property
    def claimed(self) -> float:
        """mu, or epsilon at the delta of the budget."""
        return mu_for(self.budget.epsilon, self.budget.delta) if self.gaussian else self.budget.epsilon

    @property
    def charged(self) -> float:
        """The same, as the oracle itself says."""
        promise = self.oracle.promise()
        return float(promise.mu if self.gaussian else promise.epsilon)

    def run(self, world: str, noise: Noise) -> Run:
        """All releases of one run on the data of ``world`` ("here" or "there")."""
        deflation = Deflation(self.oracle)
        standing, told = deflation.init(self.pair.dimension), []
        while not deflation.finished(standing):
            query = self.asked(deflation.query(standing))
            here, there = self.summaries(query)
            answer = released(query, here if world == "here" else there, noise)
            told.append(ObservedRelease(query, answer, here, there))
            standing = deflation.update(standing, answer)
        return told

    def asked(self, query: BatchQuery) -> BatchQuery:
        """``query`` as it is; what a mutant changes."""
        return query

    def summaries(self, query: BatchQuery) -> tuple[np.ndarray, np.ndarray]:
        """Return the summaries of both worlds. The first query of all runs is the same: one pass for them."""
        if query.number:
            return summary_of(query, self.pair.here), summary_of(query, self.pair.there)
        if query.purpose not in self._first:
            self._first[query.purpose] = summary_of(query, self.pair.here), summary_of(query, self.pair.there)
        return self._first[query.purpose]

    def by_pass(self, query: BatchQuery, records: np.ndarray) -> np.ndarray:
        """Compute the summary by the operator of a pass over ``records``; a mutant changes this."""
        return summary_by_pass(query, records)

    def fragile(self) -> Iterator[str]:
        """Releases that fail or warn, sums that depend on how the batch is cut: each tells of a record by itself."""
        run = self.run("there", SimulatedNoise(0))
        places = range(len(self.pair.here))
        touched = (told.query for told in run if self.pair.place in places[_batch(told.query)])
        queries = {type(query.mechanism): query for query in touched}
        for query in queries.values():
            name = type(query.mechanism).__name__
            yield from (f"{name}: {problem}" for value in HOSTILE for problem in self._hostile_failures(query, value))
            if not np.array_equal(self.by_pass(query, self.pair.there), summary_of(query, self.pair.there)):
                yield f"{name}: a pass over chunks gives another summary"
            if query.mechanism.additive and not _is_additive(query, self.pair.there):
                yield f"{name}: the summary depends on how the batch is cut"
            if follows_places(query.mechanism, self.by_pass, self.pair.relation):
                yield f"{name}: one record moves the terms of others, which follow their places"

    def _hostile_failures(self, query: BatchQuery, value: float) -> Iterator[str]:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                released(query, self.by_pass(query, self.pair.with_record(value)), SimulatedNoise(0))
            except Exception as error:  # whatever it is, an observer sees it
                yield f"a record of {value} stops the release ({type(error).__name__})"


def _is_additive(query: BatchQuery, records: np.ndarray) -> bool:
    """Say whether summaries of parts of the batch, in the opposite order, add up to that of the whole, bit for bit."""
    batch = _images(query, records)
    whole, turned = query.mechanism.summary(batch, query.centre), batch[::-1].copy()
    parts = [query.mechanism.summary(turned[i : i + 3], query.centre) for i in range(0, len(batch), 3)]
    return np.array_equal(whole, np.sum(parts, axis=0))


Maker = Callable[[Relation, Budget, int], Iterator[OraclePath]]
EDGE = 4.0  # of a bin of distances from LARGEST
BEYOND = EDGE + RECORD_GRID * grid_unit(LARGEST)  # the next point of the grid of distances, in the bin above
RANK, DIMENSION = 2, 3  # of whole runs: a round on all of the space, and one behind a projection
OF_OJAS = {"target_rank": RANK, "rates": ((1.0, 1.0),) * RANK, "radius": 1.0}
TAIL = (0.01, 1.0)  # K and a of PrivMean: clipped closely, so that a record can move from end to end
SURE = 3.0  # times the threshold, or scales of noise above it: where a bin is seen nearly always


def tight_path(relation: Relation, budget: Budget, steps: int, *, reuse: bool = True) -> Iterator[OraclePath]:
    """Yield paths with three times the records that a bin needs to be seen, so that nearly every step finds a range."""
    oracle = TightOracle(
        records=2**20, target_rank=RANK, steps=steps, budget=budget, largest=LARGEST, relation=relation, reuse=reuse
    )
    needed = math.ceil(SURE * _first_mechanism(oracle).histogram.threshold)
    oracle = replace(oracle, records=needed if reuse else needed * RANK * steps)
    place = needed // 2 + (0 if reuse else needed * steps)  # of disjoint batches: in the second round
    for pair in whole_run(relation, oracle.records, DIMENSION, place=place):
        yield OraclePath("k-dp-pca" if reuse else "k-dp-pca-disjoint", oracle, pair, budget, gaussian=True)


def disjoint(relation: Relation, budget: Budget, steps: int) -> Iterator[OraclePath]:
    """Every step has a batch of its own, with the whole budget."""
    return tight_path(relation, budget, steps, reuse=False)


def ojas(relation: Relation, budget: Budget, steps: int) -> Iterator[OraclePath]:
    """DP-Ojas with batches of four records; the one that changes is in the last of them."""
    asked: dict[str, Any] = {**OF_OJAS, "budget": budget, "relation": relation}
    return _last_record_paths("k-dp-ojas", DPOjas(records=4 * RANK * steps, batch=4, **asked))


def ojas_reuse(relation: Relation, budget: Budget, steps: int) -> Iterator[OraclePath]:
    """DP-Ojas with all records in every step."""
    asked: dict[str, Any] = {**OF_OJAS, "budget": budget, "relation": relation}
    return _last_record_paths("k-dp-ojas-reuse", DPOjas(records=4, noise="reuse", full_steps=steps, **asked))


def power(relation: Relation, budget: Budget, steps: int) -> Iterator[OraclePath]:
    """The private power method with one column."""
    oracle = PowerOracle(records=4, target_rank=RANK, steps=steps, radius=1.0, budget=budget, relation=relation)
    return _last_record_paths("k-dp-power", oracle)


def _last_record_paths(name: str, oracle: Any) -> Iterator[OraclePath]:
    """Whole runs whose last record changes."""
    for pair in whole_run(oracle.relation, oracle.records, DIMENSION, place=oracle.records - 1):
        yield OraclePath(name, oracle, pair, oracle.budget, gaussian=True)


def paper(relation: Relation, budget: Budget, steps: int, *, halves: str = "same") -> Iterator[OraclePath]:
    """ModifiedDP-PCA, with a difference of two records to each group. Disjoint halves: either half has its pair."""
    small = ModifiedDPPCA(
        records=2 * steps,
        target_rank=1,
        batch=2,
        rates=((1.0, 1.0),),
        budget=budget,
        relation=relation,
        tail=TAIL,
        constant=8.0,
        halves=halves,
    )
    half = 2 * _first_mechanism(small).groups
    oracle = replace(small, records=2 * half * steps, batch=2 * half)
    both = tied_groups(relation, half // 2, 2)
    first = _padded_pair(both, 0, (2 * steps - 1) * half)
    second = replace(_padded_pair(both, half, (2 * steps - 2) * half), name="second half")
    for pair in (first, second) if halves == "disjoint" else (first,):
        yield OraclePath(f"k-dp-pca-paper-{halves}", oracle, pair, budget, gaussian=False)


def _padded_pair(pair: OraclePair, before: int, after: int) -> OraclePair:
    """``pair`` with records of the world ``there``, again and again, before and after it."""
    n = len(pair.there)
    front, back = (np.tile(pair.there, (count // n, 1, 1)) for count in (before, after))
    here, there = (np.concatenate([front, world, back]) for world in (pair.here, pair.there))
    return replace(pair, here=here, there=there, place=before + pair.place)


def disjoint_halves(relation: Relation, budget: Budget, steps: int) -> Iterator[OraclePath]:
    """One half for the range and one for the mean, with the whole budget each."""
    return paper(relation, budget, steps, halves="disjoint")


def distance_range(relation: Relation, budget: Budget, steps: int) -> Iterator[OraclePath]:
    """Two bins as full as each other and a record on the edge between them, where two counts move; else one bin at
    the threshold: where a heaviest bin tells as much as all counts would."""
    mechanism = DistanceRange(relation=relation, largest=LARGEST, multiplier=gaussian_multiplier(budget, 1))
    histogram = mechanism.histogram
    if relation == "record_replace":
        each = math.ceil(histogram.threshold + SURE * histogram.stddev)
        attains = tied_bins(relation, (EDGE, BEYOND), each)
    else:
        attains = full_bin(relation, EDGE, math.ceil(histogram.threshold))
    for pair in (attains, _non_finite_pair(attains)):
        yield _single_release_path("distance-range", mechanism, pair, budget, np.zeros(1))


def clipped_mean(relation: Relation, budget: Budget, steps: int) -> Iterator[OraclePath]:
    """A record against its antipode, or against nothing, around a centre far from zero."""
    values = np.array([5.0, 4.5, 5.5, 0.0])
    mechanism = ClippedMean(relation=relation, radius=1.0, count=4, multiplier=gaussian_multiplier(budget, 1))
    attains = changed("attains", relation, values, 3, (FAR, -FAR), 2)
    for pair in (attains, _non_finite_pair(attains)):
        yield _single_release_path("clipped-mean", mechanism, pair, budget, np.array([5.0, 0.0]))


def paper_range(relation: Relation, budget: Budget, steps: int) -> Iterator[OraclePath]:
    """Two bins as full as each other; one behind by more than its noise, where Laplace noise tells most; and a bin that
    is empty in the other world."""
    mechanism = PaperRange(epsilon=budget.epsilon, delta=budget.delta, fail_prob=0.01, constant=8.0)
    groups, lead = mechanism.groups, math.ceil(1 / budget.epsilon)
    tied = tied_groups(relation, groups, 1)
    behind = tied_groups(relation, groups, 1, name="behind", lead=lead)
    for pair in (tied, behind, lonely_group(relation, groups, 1)):
        yield _single_release_path("paper-range", mechanism, pair, budget, np.zeros(1))


def paper_mean(relation: Relation, budget: Budget, steps: int) -> Iterator[OraclePath]:
    """A record that moves from end to end where no centre is found; and one that decides on the centre."""

    def made(count: int) -> PaperMean:
        return PaperMean(epsilon=budget.epsilon, delta=budget.delta, spread=1.0, count=count, fail_prob=0.01, tail=TAIL)

    few = changed("attains", relation, np.zeros(10), 4, (FAR, -FAR), 1)
    yield _single_release_path("paper-mean", made(10), few, budget, np.zeros(1))
    histogram, width = made(1).histogram(1), made(1).width
    each = math.ceil(histogram.threshold + SURE * 2 / histogram.epsilon)
    many = tied_bins(relation, (0.5 * width, 4.5 * width), each, "centre")
    yield _single_release_path("paper-mean", made(2 * each + 1), many, budget, np.zeros(1))


def _non_finite_pair(pair: OraclePair) -> OraclePair:
    """The same with a record that is not finite in the world ``here``."""
    return replace(pair, name="not-finite", here=pair.with_record(np.nan))


def _single_release_path(name: str, mechanism: Any, pair: OraclePair, budget: Budget, centre: np.ndarray) -> OraclePath:
    gaussian = isinstance(mechanism, ClippedMean | DistanceRange)
    if gaussian:
        promise = promise_of(mechanism.charge(), pair.relation, budget.delta)
    else:
        promise = Promise(pair.relation, budget.epsilon, budget.delta, None, True, "")
    return OraclePath(name, Once(mechanism, centre, promise), pair, budget, gaussian=gaussian)


def _first_mechanism(oracle: Any) -> Any:
    return oracle.query(oracle.init(np.zeros((DIMENSION, 0)), None)).mechanism


PATHS: dict[str, Maker] = {
    "k-dp-pca": tight_path,
    "k-dp-pca-disjoint": disjoint,
    "k-dp-ojas": ojas,
    "k-dp-ojas-reuse": ojas_reuse,
    "k-dp-power": power,
    "k-dp-pca-paper-same": paper,
    "k-dp-pca-paper-disjoint": disjoint_halves,
    "distance-range": distance_range,
    "clipped-mean": clipped_mean,
    "paper-range": paper_range,
    "paper-mean": paper_mean,
}


ALL_RECORDS = (
    "k-dp-pca",
    "k-dp-ojas-reuse",
    "k-dp-power",
    "distance-range",
    "clipped-mean",
)  # where no batch is cut by the index of a record


def offered(name: str, relation: str) -> bool:
    """Say whether ``name`` promises anything under ``relation``: adding a record shifts batches cut by index."""
    return relation in RELATIONS and (relation != "record_add_remove" or name in ALL_RECORDS)


def oracle_paths(name: str, relation: str, budget: Budget, steps: int) -> Iterator[OraclePath]:
    """The release paths of ``name`` on its neighbours under ``relation``; none where it is not offered."""
    for known in RELATIONS:
        if relation == known and offered(name, known):
            yield from PATHS[name](known, budget, steps)
