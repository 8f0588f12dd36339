"""The release path of a stochastic oracle, in two worlds: query, summary of the batch, release, update, again.

What is exercised is the product's own: the oracle in its deflation, images, each mechanism's ``summary`` and
``release``, and the sampler under a secret key. Only the loop is the audit's, and it forms summaries at once: that the
operator of a pass forms the same, over chunks, is checked beside. Every run is by itself, with a key of its own:
queries are adaptive, and no two runs ask the same.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import zarr

from npmdask.accounting.budget import Budget
from npmdask.accounting.gdp import mu_for
from npmdask.algorithms import Query
from npmdask.execution.reduction import compute_run
from npmdask.numerics.subspaces import Block
from npmdask.operators import RecordImages
from npmdask.operators.record_images import images_of_matrices, images_of_rows, pack
from npmdask.privacy.audit.oracle_pairs import HOSTILE, OraclePair
from npmdask.privacy.audit.placement import follows_places
from npmdask.privacy.audit.privacy_loss import Told
from npmdask.privacy.dp_pca.base import Answer, BatchQuery, Mechanism, released
from npmdask.privacy.dp_pca.deflation import Deflation
from npmdask.privacy.dp_pca.neighbors import Promise
from npmdask.privacy.dp_pca.noise import Noise, SimulatedNoise
from npmdask.storage.readers.dense import DenseReader

Run = list[Told]
CHUNK, CHUNKS = 3, 2  # records at least, and about how many of them


def summary_of(query: BatchQuery, records: np.ndarray) -> np.ndarray:
    """What a pass over the batch of ``query`` returns; ``records`` (n x d, or n x d x d) are the whole data set."""
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
    block = pack(query.vector, query.centre, query.found)
    side = records.shape[1] if records.ndim == 3 else None
    every = RecordImages(reader=DenseReader(array=held), side=side, rows=range(len(records)))
    operator = every.asked(Query(block=block, batch=query))
    total = reduce(operator.join, (compute_run(operator, range(i, i + 1), block) for i in range(operator.units)))
    return operator.finish(total, block)


def _images(query: BatchQuery, records: np.ndarray) -> np.ndarray:
    images = images_of_rows if records.ndim == 2 else images_of_matrices
    return images(records[_batch(query)], query.vector, query.found)


def _batch(query: BatchQuery) -> slice:
    """The records of the batch; None stands for all that there are."""
    rows: range | None = query.rows
    return slice(None) if rows is None else slice(rows.start, rows.stop)


@dataclass(frozen=True)
class Once:
    """An oracle that asks one mechanism once, of all records, at w = e_1 and a given centre: a mechanism by itself."""

    mechanism: Mechanism
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
    """What is audited. A mutant overrides one method, or is given another oracle.

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
            told.append(Told(query, answer, here, there))
            standing = deflation.update(standing, answer)
        return told

    def asked(self, query: BatchQuery) -> BatchQuery:
        """``query`` as it is; what a mutant changes."""
        return query

    def summaries(self, query: BatchQuery) -> tuple[np.ndarray, np.ndarray]:
        """Of both worlds. The first query of all runs is the same: one pass for them."""
        if query.number:
            return summary_of(query, self.pair.here), summary_of(query, self.pair.there)
        if query.purpose not in self._first:
            self._first[query.purpose] = summary_of(query, self.pair.here), summary_of(query, self.pair.there)
        return self._first[query.purpose]

    def by_pass(self, query: BatchQuery, records: np.ndarray) -> np.ndarray:
        """What the operator of a pass makes of ``records``; what a mutant changes."""
        return summary_by_pass(query, records)

    def fragile(self) -> Iterator[str]:
        """Releases that fail or warn, sums that depend on how the batch is cut: each tells of a record by itself."""
        run = self.run("there", SimulatedNoise(0))
        places = range(len(self.pair.here))
        touched = (told.query for told in run if self.pair.place in places[_batch(told.query)])
        queries = {type(query.mechanism): query for query in touched}
        for query in queries.values():
            name = type(query.mechanism).__name__
            yield from (f"{name}: {problem}" for value in HOSTILE for problem in self._stopped(query, value))
            if not np.array_equal(self.by_pass(query, self.pair.there), summary_of(query, self.pair.there)):
                yield f"{name}: a pass over chunks gives another summary"
            if query.mechanism.additive and not _adds_up(query, self.pair.there):
                yield f"{name}: the summary depends on how the batch is cut"
            if follows_places(query.mechanism, self.by_pass, self.pair.relation):
                yield f"{name}: one record moves the terms of others, which follow their places"

    def _stopped(self, query: BatchQuery, value: float) -> Iterator[str]:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                released(query, self.by_pass(query, self.pair.with_record(value)), SimulatedNoise(0))
            except Exception as error:  # whatever it is, an observer sees it
                yield f"a record of {value} stops the release ({type(error).__name__})"


def _adds_up(query: BatchQuery, records: np.ndarray) -> bool:
    """Whether summaries of parts of the batch, in the opposite order, add up to that of the whole, bit for bit."""
    batch = _images(query, records)
    whole, turned = query.mechanism.summary(batch, query.centre), batch[::-1].copy()
    parts = [query.mechanism.summary(turned[i : i + 3], query.centre) for i in range(0, len(batch), 3)]
    return np.array_equal(whole, np.sum(parts, axis=0))
