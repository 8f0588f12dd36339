"""What an oracle of the deflation meta-theorem is, and the border between what touched the data and what is public.

    query   = what an oracle asks in this state                        public: w, U, which records, what is released
    summary = query.mechanism.summary(images, query.centre)            private: from images g_i = P A_i P w (b x d)
    answer = released(query, summary, noise)                           public again
    state = oracle.update(state, answer)                               pure

An oracle sees no record and draws no noise; a mechanism sees one batch and remembers nothing. (Duengler and Sanyal
2025, Definition 3 and Algorithm 4, after Jambulapati et al. 2024.)
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np

from npmdask.accounting import Charge
from npmdask.errors import BadInputError
from npmdask.numerics.projections import project_out, unit
from npmdask.numerics.random import generator
from npmdask.numerics.subspaces import Block
from npmdask.privacy.dp_pca.neighbors import Promise
from npmdask.privacy.dp_pca.noise import Noise, purpose_of

Answer = float | np.ndarray | None
State = TypeVar("State")


class Mechanism(Protocol):
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
    mechanism: Mechanism
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
        raise BadInputError("a mean was asked for: hand the oracle the answer to its last query")
    return answer


def number_of(answer: Answer) -> float | None:
    """``answer`` of a range, None if there is none; BadInputError for a vector."""
    if isinstance(answer, np.ndarray):
        raise BadInputError("a range was asked for: hand the oracle the answer to its last query")
    return answer
