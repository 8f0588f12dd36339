"""Define an oracle of the deflation meta-theorem, and the border between private data and public releases.

    query   = what an oracle asks in this state                        public: w, U, which records, what is released
    summary = query.mechanism.summary(images, query.centre)            private: from images g_i = P A_i P w (b x d)
    answer = released(query, summary, noise)                           public again
    state = oracle.update(state, answer)                               pure

An oracle sees no record and draws no noise; a mechanism sees one batch and remembers nothing. (Duengler and Sanyal
2025, Definition 3 and Algorithm 4, after Jambulapati et al. 2024.)
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np

from npmdask.accounting import Charge
from npmdask.errors import BadInputError
from npmdask.numerics.random import generator
from npmdask.numerics.subspaces import Block, project_out, unit
from npmdask.privacy.dp_pca.neighbors import Promise
from npmdask.privacy.mechanisms.noise_key import Entropy
from npmdask.privacy.mechanisms.sampler import LARGEST_SCALE, rounded_gaussian, rounded_laplace

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
    """What is released of the images of a batch. Its fields are public numbers.

    ``additive``: summaries of parts of a batch add up to that of the batch, so a batch need not be held at once.
    """

    additive: ClassVar[bool]

    def summary(self, images: np.ndarray, centre: np.ndarray) -> np.ndarray: ...
    def release(self, summary: np.ndarray, centre: np.ndarray, noise: Noise, purpose: str) -> Answer: ...
    def noise_stddev(self, d: int) -> float: ...
    def spec(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class BatchQuery:
    """What an oracle asks next; public, every part of it.

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
