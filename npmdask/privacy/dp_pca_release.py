"""Assemble a run of k-DP-PCA or one of its relatives: oracle, operator of records, releases, rule, and the answer.

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
from npmdask.privacy.concerns import Asked, ReleaseNoise, of_epsilon, weak_promise
from npmdask.privacy.dp_pca.base import RELATIONS, Oracle, require_relation
from npmdask.privacy.dp_pca.deflation import DeflationRounds
from npmdask.privacy.dp_pca.private_mean import MOST_RECORDS, DistanceRange
from npmdask.privacy.dp_pca.registry import OracleQuestion, make_oracle
from npmdask.privacy.dp_pca.releases import KINDS, BatchRelease, RecordUnit, RunOfReleases
from npmdask.privacy.power_release import public_statement, require_registered
from npmdask.privacy.public_rule import PublicRule
from npmdask.privacy.release import PrivateRecipe
from npmdask.privacy.request import Privacy
from npmdask.storage.source import Source
from npmdask.theory.start import gaussian_norm


@dataclass(frozen=True, kw_only=True)
class RecordsRecipe(PrivateRecipe):
    """k-DP-PCA or one of its relatives."""

    algorithm: DeflationRounds
    mechanism: RunOfReleases
    rule: UntilFinished
    target_rank: int
    public_rule: PublicRule

    @property
    def relation(self) -> RecordUnit:
        return self.mechanism.relation

    @property
    def releases(self) -> int:
        return self.mechanism.releases

    @property
    def oracle(self) -> Oracle[Any]:
        return self.mechanism.oracle

    def release_noise(self, problem: Asked) -> ReleaseNoise:
        """How loud the noise is on images as long as clip_norm allows."""
        widest = self.oracle.widest_noise()
        norm = None if widest is None else gaussian_norm(widest, self.algorithm.dimension, 1)
        return ReleaseNoise(first=widest, later=widest, smallest=norm)

    def largest(self, source: Source) -> float | None:
        """The largest value that data can have where all images are clipped to one radius."""
        return getattr(self.oracle, "radius", None)

    def promise_concerns(self, source: Source) -> tuple[str, ...]:
        """Why the guarantee is weak; the public guess replaces a private number of records."""
        budget = Budget(self.privacy.epsilon, self.privacy.delta)
        if self.relation.public_rows:
            return weak_promise(budget, self.relation, source.shape)
        return tuple(said for said in (of_epsilon(budget), budget.warning(getattr(self.oracle, "records", 1))) if said)

    def noise_concern(self) -> str | None:
        """For an oracle that looks for a range first: too few records for a bin to rise above the noise on counts."""
        oracle: Any = self.oracle
        first = oracle.query(oracle.init(np.zeros((self.algorithm.dimension, 0)), None))
        count = oracle.records if first.rows is None else len(first.rows)
        if not isinstance(first.mechanism, DistanceRange) or count >= first.mechanism.histogram.threshold:
            return ""
        return (
            "no clipping range can be found: a bin rises above the noise with "
            f"{first.mechanism.histogram.threshold:,.0f} records, and a step has {count:,}; images are then clipped at "
            "the bound that clip_norm gives, and their mean is mostly noise. Use more records, a larger epsilon or "
            "fewer steps"
        )

    def operator(self, source: Source) -> RecordImages:
        """Of the first query, which is as large as any: what memory is planned for."""
        first = self.algorithm.query(self.algorithm.init(source.dimension, rng=np.random.default_rng(0)))
        reader: Any = source.reader
        every = RecordImages(reader=reader, side=source.side, rows=range(source.shape[0]), view=self.public_rule.view)
        return every.asked(first)

    def mechanism_of(self, operator: Any, p: int, query: Query) -> BatchRelease:
        """The release of this query."""
        return BatchRelease(query=query.batch)

    def values_are(self, source: Source) -> str:
        """What the released values are, in words."""
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
        return public_statement(self.privacy, self.relation, self.mechanism) | {
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


def make_records(
    source: Source, privacy: Privacy, name: str, options: Mapping[str, Any], k: int, seed: int, rule: PublicRule
) -> RecordsRecipe:
    """Check what is asked against the source and put it together; records are images of what ``rule`` makes of them.

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
        raise RefusedError(f"{source.path} has more than 2^28 records, so their sums would not be exact: split it")
    question = OracleQuestion(
        records=source.shape[0],
        dimension=source.dimension,
        target_rank=k,
        budget=Budget(privacy.epsilon, privacy.delta),
        relation=relation,
        largest=_largest(source, privacy),
        seed=seed,
    )
    oracle = make_oracle(name, options, question)
    algorithm = DeflationRounds(oracle=oracle, dimension=source.dimension, name=name)
    unit = RecordUnit(name=relation)
    mechanism = RunOfReleases(oracle=oracle, relation=unit, oracle_name=name, public_rule=rule.spec())
    promise = f"epsilon = {privacy.epsilon:g}, delta = {privacy.delta:g}, for {unit.describe()}{rule.clause}"
    return RecordsRecipe(
        privacy=privacy,
        algorithm=algorithm,
        mechanism=mechanism,
        rule=UntilFinished(max_steps=oracle.releases, promise=promise),
        target_rank=k,
        public_rule=rule,
    )


def _require_records(source: Source, privacy: Privacy, name: str) -> None:
    require_registered(source)
    if source.kind not in KINDS:
        raise BadInputError(
            f"{name} needs records: rows (kind samples) or symmetric matrices (kind matrices), but {source.path} is "
            f"of kind {source.kind}"
        )
    if privacy.neighboring_relation is None:
        raise BadInputError(f"neighboring_relation is missing: who is protected has no default; {', '.join(RELATIONS)}")
    if privacy.neighboring_relation not in RELATIONS:
        known = closest(privacy.neighboring_relation, list(RELATIONS))
        raise BadInputError(f"neighboring_relation = {privacy.neighboring_relation!r} is not one of {name}: {known}")
    if (privacy.mechanism, privacy.calibration, privacy.clip_images) != ("gaussian", "exact", True):
        raise BadInputError(
            f"mechanism, calibration and clip_images apply only to the private power method: leave them out for {name}"
        )


def _largest(source: Source, privacy: Privacy) -> float | None:
    """The bound on |A_i w| that clip_norm is: |x|^2 of a row x, the spectral norm of a matrix."""
    if privacy.clip_norm is None:
        return None
    return privacy.clip_norm**2 if source.kind == "samples" else privacy.clip_norm
