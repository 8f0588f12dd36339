"""What makes a run of k-DP-PCA or one of its relatives: oracle, operator of records, releases, rule, and the answer.

The counterpart of :mod:`npmdask.privacy.power_release` for oracles that see images of single records
(npmdask.privacy.dp_pca). Nothing here looks at the data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from npmdask.accounting import Budget
from npmdask.algorithms import Query, Result
from npmdask.algorithms.stopping import UntilFinished
from npmdask.errors import BadInputError, RefusedError, closest
from npmdask.operators import RecordImages
from npmdask.privacy.dp_pca.algorithm import Rounds
from npmdask.privacy.dp_pca.base import Oracle
from npmdask.privacy.dp_pca.neighbors import RELATIONS, require_relation
from npmdask.privacy.dp_pca.private_mean import MOST_RECORDS
from npmdask.privacy.dp_pca.registry import Question, make_oracle
from npmdask.privacy.dp_pca.releases import KINDS, BatchRelease, RecordUnit, RunOfReleases
from npmdask.privacy.power_release import Pieces, promised, require_registered
from npmdask.privacy.request import Privacy
from npmdask.storage.readers.dense import DenseReader
from npmdask.storage.source import Source


@dataclass(frozen=True, kw_only=True)
class RecordParts:
    """The pieces of such a run that the rest of the problem does not have; as ``PrivateParts``."""

    privacy: Privacy
    algorithm: Rounds
    mechanism: RunOfReleases
    target_rank: int

    @property
    def relation(self) -> RecordUnit:
        return self.mechanism.relation

    @property
    def releases(self) -> int:
        return self.mechanism.releases

    @property
    def oracle(self) -> Oracle[Any]:
        return self.mechanism.oracle

    def operator(self, source: Source) -> RecordImages:
        """Of the first query, which is as large as any: what memory is planned for."""
        first = self.algorithm.query(self.algorithm.init(source.dimension, rng=np.random.default_rng(0)))
        assert isinstance(source.reader, DenseReader)
        every = RecordImages(reader=source.reader, side=source.side, rows=range(source.shape[0]))
        return every.asked(first)

    def mechanism_of(self, operator: Any, p: int, query: Query) -> BatchRelease:
        """The release of this query."""
        return BatchRelease(query=query.batch)

    def values_are(self, source: Source) -> str:
        """What the released values stand for, in words."""
        number = "their number" if self.relation.public_rows else "the public guess of their number"
        return f"means of clipped images, divided by {number}: too low where much was clipped"

    def answer(
        self, source: Source, state: Any, result: Result, history: list[dict[str, Any]], p: int
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """The arrays of the release, and the statement that goes with them: all of it post-processing."""
        arrays = {
            "basis": result.vectors,
            "values": result.values,
            "residual_norms": result.residual_norms,
        }
        return arrays, self.statement(source, history)

    def statement(self, source: Source, history: list[dict[str, Any]]) -> dict[str, Any]:
        """What is promised, and what it cost, in public numbers."""
        means = [step for step in history if not step["release"].startswith("range")]
        return promised(self.privacy, self.relation, self.mechanism) | {
            "releases": len(history),
            "iteration_rank": 1,
            "columns": source.dimension,
            "noise_stddev": [step["noise_stddev"] for step in means],  # of an entry; of ranges it is on counts
            "image_norms": [step["image_norm"] for step in means],
            "noise_to_paper": None,
            "predicted_error": None,
            "values_are": self.values_are(source),
            "rests_on": self.oracle.promise().remark,
            "warnings": self._warnings(history),
        }

    def _warnings(self, history: list[dict[str, Any]]) -> list[str]:
        missing = sum(step["numbers"] == 0 for step in history)
        if not missing:
            return []
        return [
            f"{missing} of {len(history)} releases found no range: too few records in a batch for this epsilon. There "
            "'tight' clips to its last range, and 'paper' leaves the direction as it was, at worst random: use larger "
            "batches, or the variant 'tight'"
        ]


def make_record_pieces(
    source: Source, privacy: Privacy, name: str, options: Mapping[str, Any], k: int, seed: int
) -> Pieces:
    """Check what is asked against the source and put it together.

    Raises
    ------
    BadInputError
        A parameter is missing or out of range, or does not fit the kind of the data.
    RefusedError
        The data have no fingerprint, or what is asked is not private.
    """
    _require_records(source, privacy, name)
    relation = require_relation(str(privacy.neighboring_relation))
    if source.shape[0] > MOST_RECORDS and relation == "record_add_remove":  # the guess of their number may be smaller
        raise RefusedError(f"{source.path} has more than 2^28 records, of which sums are not exact: divide it")
    question = Question(
        records=source.shape[0],
        dimension=source.dimension,
        target_rank=k,
        budget=Budget(privacy.epsilon, privacy.delta),
        relation=relation,
        largest=_largest(source, privacy),
        seed=seed,
    )
    oracle = make_oracle(name, options, question)
    algorithm = Rounds(oracle=oracle, dimension=source.dimension, name=name)
    unit = RecordUnit(name=relation)
    mechanism = RunOfReleases(oracle=oracle, relation=unit, oracle_name=name)
    parts = RecordParts(privacy=privacy, algorithm=algorithm, mechanism=mechanism, target_rank=k)
    promise = f"epsilon = {privacy.epsilon:g}, delta = {privacy.delta:g}, for {unit.describe()}"
    return Pieces(algorithm, mechanism, UntilFinished(max_steps=oracle.releases, promise=promise), parts)


def _require_records(source: Source, privacy: Privacy, name: str) -> None:
    require_registered(source)
    if source.kind not in KINDS:
        raise BadInputError(
            f"{name} is for records: rows (kind samples) or symmetric matrices (kind matrices), and {source.path} is "
            f"of kind {source.kind}"
        )
    if privacy.neighboring_relation is None:
        raise BadInputError(f"neighboring_relation is missing: who is protected has no default; {', '.join(RELATIONS)}")
    if privacy.neighboring_relation not in RELATIONS:
        known = closest(privacy.neighboring_relation, list(RELATIONS))
        raise BadInputError(f"neighboring_relation = {privacy.neighboring_relation!r} is not one of {name}: {known}")
    if (privacy.mechanism, privacy.calibration, privacy.clip_images) != ("gaussian", "exact", True):
        raise BadInputError(
            f"mechanism, calibration and clip_images are of the private power method: leave them out for {name}"
        )


def _largest(source: Source, privacy: Privacy) -> float | None:
    """The bound on |A_i w| that clip_norm is: |x|^2 of a row x, the spectral norm of a matrix."""
    if privacy.clip_norm is None:
        return None
    return privacy.clip_norm**2 if source.kind == "samples" else privacy.clip_norm
