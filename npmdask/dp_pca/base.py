"""Define an oracle of the deflation meta-theorem, and the border between private data and public releases.

    query   = what an oracle asks in this state                        public: w, U, which records, what is released
    summary = query.mechanism.summary(images, query.centre)            private: from images g_i = P A_i P w (b x d)
    answer = released(query, summary, noise)                           public again
    state = oracle.update(state, answer)                               pure

An oracle sees no record and draws no noise; a mechanism sees one batch and remembers nothing. (Duengler and Sanyal
2025, Definition 3 and Algorithm 4, after Jambulapati et al. 2024.) First, who the neighbours are that nothing may tell
apart.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal, Protocol, TypeVar

import numpy as np

from npmdask.accounting import Charge
from npmdask.core.numerics.random import generator
from npmdask.core.numerics.subspaces import Block, project_out, unit
from npmdask.errors import BadInputError, RefusedError, closest
from npmdask.privacy.mechanisms.noise_key import Entropy
from npmdask.privacy.mechanisms.sampler import LARGEST_SCALE, rounded_gaussian, rounded_laplace

# Neighbours of a data set of records, and what one of them can move.
#
# * ``record_replace``: one record is replaced by any other; the number of records is public;
# * ``record_zero_out``: one record A_i is replaced by zeros, or zeros by a record; the number is public;
# * ``record_add_remove``: one record more or less; the number is private, and sums are divided by a public guess of it.
#
# The last is for oracles of which every release is of all records. Where batches are cut by the index of a record, one
# record more shifts every later one into another batch, pair or group, so that all releases change and no theorem about
# disjoint batches applies (Duengler and Sanyal 2025, Definition 2, claim it): refused.


Relation = Literal["record_replace", "record_zero_out", "record_add_remove"]
BY_INDEX: tuple[Relation, ...] = ("record_replace", "record_zero_out")
RELATIONS: tuple[Relation, ...] = (*BY_INDEX, "record_add_remove")


@dataclass(frozen=True)
class Promise:
    """Promise of all releases of a run together; ``mu`` of Gaussian differential privacy if that is all there is.

    ``verified`` is False where the numbers are a paper's and exact accounting does not give them: ``remark`` says what
    it gives instead.
    """

    relation: Relation
    epsilon: float
    delta: float
    mu: float | None
    verified: bool
    remark: str


def require_relation(relation: str) -> Relation:
    """``relation`` if it is known: all are sound for releases of all records.

    Raises
    ------
    BadInputError
        Any other name.
    """
    for known in RELATIONS:
        if relation == known:
            return known
    raise BadInputError(f"unknown relation {relation!r}: {closest(relation, list(RELATIONS))}")


def require_by_index(relation: str) -> Relation:
    """``relation`` if batches by index are sound for it.

    Raises
    ------
    RefusedError
        Adding and removing records.
    BadInputError
        An unknown name.
    """
    if require_relation(relation) not in BY_INDEX:
        raise RefusedError(
            "batches are formed by the index of a record, so one more record would shift all that follow: use "
            "'record_replace' or 'record_zero_out', with a public number of records, or an oracle that uses all "
            "records in every step"
        )
    return require_relation(relation)


def moved_counts(relation: Relation) -> int:
    """Return how many counts of a histogram of records move by one: two if a record is replaced by any other.

    A record of zeros is in no bin, so one that is zeroed out leaves a bin and enters none, as one that is removed.
    """
    return 2 if relation == "record_replace" else 1


def sum_sensitivity(relation: Relation, radius: float) -> float:
    """Bound how far (2-norm) one neighbour moves a sum of terms of norm at most ``radius``; zeros add zero."""
    return 2 * radius if relation == "record_replace" else radius


def parallel(charges: Iterable[Charge]) -> Charge:
    """The cost of releases from disjoint batches, fixed by index: neighbours differ in one batch only.

    Each release may depend on those before it. The largest of each part is not below the cost of any one batch.
    """
    listed = list(charges)
    return Charge(
        mu_squared=max((charge.mu_squared for charge in listed), default=0.0),
        epsilon=max((charge.epsilon for charge in listed), default=0.0),
        delta=max((charge.delta for charge in listed), default=0.0),
    )


def promise_of(charge: Charge, relation: Relation, delta: float, remark: str = "") -> Promise:
    """``charge`` as (epsilon, delta) by exact accounting."""
    mu = charge.mu if charge.epsilon == charge.delta == 0 else None
    return Promise(relation, charge.epsilon_at(delta), delta, mu, True, remark)


def next_up(value: float) -> float:
    """Above what was rounded to ``value``."""
    return math.nextafter(value, math.inf)


# Where the noise of a release comes from: a secret key, or a seed in simulations, which are not private.


LEADING_BITS = 20  # of a scale: at most 2e-6 more noise, and the same on every processor


class Noise(Protocol):
    """Independent nearest integers to N(0, stddev^2) or Laplace(scale): a function of the purpose, and of what is
    secret. ``private`` says whether there is a secret."""

    private: ClassVar[bool]

    def gaussian(self, stddev: int, shape: tuple[int, ...], purpose: str) -> np.ndarray: ...
    def laplace(self, scale: int, shape: tuple[int, ...], purpose: str) -> np.ndarray: ...


@dataclass(frozen=True)
class SecretNoise:
    """Exact rounded deviates from the key of a run (docs/decisions/0019)."""

    entropy: Entropy
    private: ClassVar[bool] = True

    def gaussian(self, stddev: int, shape: tuple[int, ...], purpose: str) -> np.ndarray:
        return rounded_gaussian(stddev, shape, self.entropy.keystream("stochastic", "gaussian", purpose, stddev))

    def laplace(self, scale: int, shape: tuple[int, ...], purpose: str) -> np.ndarray:
        return rounded_laplace(scale, shape, self.entropy.keystream("stochastic", "laplace", purpose, scale))


@dataclass(frozen=True)
class SimulatedNoise:
    """The same distributions from a seeded float64 generator, for experiments. Not private: the seed is public."""

    seed: int
    private: ClassVar[bool] = False

    def gaussian(self, stddev: int, shape: tuple[int, ...], purpose: str) -> np.ndarray:
        return np.rint(stddev * generator(self.seed, "gaussian", purpose).standard_normal(shape)).astype(np.int64)

    def laplace(self, scale: int, shape: tuple[int, ...], purpose: str) -> np.ndarray:
        return np.rint(generator(self.seed, "laplace", purpose).laplace(0.0, scale, shape)).astype(np.int64)


def whole_scale(scale: float) -> int:
    """``scale`` (in units of a grid) rounded up to an integer of 20 leading bits, in 1..2^48.

    Raises
    ------
    BadInputError
        Not positive, or above 2^47.
    """
    if not 0 < scale <= LARGEST_SCALE / 2:
        raise BadInputError(
            f"noise of {scale:.3g} units of the grid: at most 2^47 are possible; use a smaller multiplier"
        )
    units = -int(-scale // 1)
    shift = max(units.bit_length() - LEADING_BITS, 0)
    return -(-units >> shift) << shift


def purpose_of(public: dict[str, Any], *arrays: np.ndarray) -> str:
    """A digest of everything public about a release: another release never gets the same noise."""
    digest = hashlib.sha256(json.dumps(public, sort_keys=True).encode())
    for array in arrays:
        held = np.ascontiguousarray(array, dtype="<f8")
        digest.update(json.dumps(held.shape).encode() + b"\0" + held.tobytes())
    return digest.hexdigest()


Answer = float | np.ndarray | None
State = TypeVar("State")


class BatchMechanism(Protocol):
    """Mechanism that releases the images of a batch. Its fields are public numbers.

    ``additive``: summaries of parts of a batch add up to that of the batch, so a batch need not be held at once.
    """

    additive: ClassVar[bool]

    def summary(self, images: np.ndarray, centre: np.ndarray) -> np.ndarray: ...
    def release(self, summary: np.ndarray, centre: np.ndarray, noise: Noise, purpose: str) -> Answer: ...
    def noise_stddev(self, d: int) -> float: ...
    def spec(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class BatchQuery:
    """Next question of an oracle; public, every part of it.

    Parameters
    ----------
    rows : the records of the batch, by index; None: every record that there is, however many (nothing public may
        depend on their number where that is private).
    vector : w, unit, in the range of P.
    found : U, d x j, orthonormal: P = I - U U^T.
    centre : float64[d]: what the answer is expected to be near, from earlier answers.
    mechanism : what is released, with its public parameters.
    number : which release of the run this is.
    """

    rows: range | None
    vector: np.ndarray
    found: Block
    centre: np.ndarray
    mechanism: BatchMechanism
    number: int

    @property
    def purpose(self) -> str:
        rows = None if self.rows is None else [self.rows.start, self.rows.stop]
        place = {"rows": rows, "number": self.number}
        return purpose_of(place, self.vector, self.found)

    def indices(self, records: int) -> range:
        """Which of the ``records`` of a store are asked for; how many there are is for the pass alone, and private."""
        return range(records) if self.rows is None else self.rows


def released(query: BatchQuery, summary: np.ndarray, noise: Noise) -> Answer:
    """The answer to ``query``: the only way from a summary to an oracle."""
    return query.mechanism.release(summary, query.centre, noise, query.purpose)


class Oracle(Protocol[State]):
    """A stochastic ePCA oracle: one unit vector in the range of P for every round of the deflation.

    ``direction`` is None while a round goes on. ``init`` draws a public random start from a seed, and may use what
    earlier rounds released (``earlier``, the last state of the round before). ``releases``: the most queries of a run.
    ``charge``: what all of them cost, RefusedError if there is no privacy. ``spec``: its public parameters, as JSON.
    """

    @property
    def target_rank(self) -> int: ...
    @property
    def remembered(self) -> int: ...  # vectors (d) of earlier answers that a state holds at most
    @property
    def releases(self) -> int: ...
    def init(self, found: Block, earlier: State | None) -> State: ...
    def query(self, state: State) -> BatchQuery: ...
    def update(self, state: State, answer: Answer) -> State: ...
    def direction(self, state: State) -> np.ndarray | None: ...
    def promise(self) -> Promise: ...
    def widest_noise(self) -> float | None: ...  # stddev of an entry of a mean at most, if that is known before
    def charge(self) -> Charge: ...
    def spec(self) -> dict[str, Any]: ...


def spec_of(name: str, oracle: Any) -> dict[str, Any]:
    """The fields of ``oracle``, a dataclass, as they are read back from JSON."""
    read: dict[str, Any] = json.loads(json.dumps({"oracle": name, **asdict(oracle)}, allow_nan=False))
    return read


def random_start(seed: int, found: Block) -> np.ndarray:
    """A unit vector in the range of P, uniform: P omega' / |P omega'| (Algorithm 2, line 1)."""
    return unit(project_out(generator(seed, "start", found.shape[1]).standard_normal(len(found)), found))


def vector_of(answer: Answer) -> np.ndarray:
    """``answer`` of a mean.

    Raises
    ------
    BadInputError
        Something else: the answer to another query.
    """
    if not isinstance(answer, np.ndarray):
        raise BadInputError("a mean was asked for: give the oracle the answer to its last query")
    return answer


def number_of(answer: Answer) -> float | None:
    """``answer`` of a range, None if there is none; BadInputError for a vector."""
    if isinstance(answer, np.ndarray):
        raise BadInputError("a range was asked for: give the oracle the answer to its last query")
    return answer
