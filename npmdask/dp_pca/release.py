"""Assemble a run of k-DP-PCA or one of its relatives: oracle, operator of records, releases, rule, and the answer.

The counterpart of :mod:`npmdask.privacy.matrix_release` for oracles that see images of single records
(npmdask.dp_pca): their releases, their names and options, the recipe. Nothing here looks at the data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any, ClassVar

import numpy as np

from npmdask.accounting import Budget, Charge
from npmdask.core.algorithms import Query, Result
from npmdask.core.algorithms.stopping import UntilFinished
from npmdask.core.certificates.recursions import gaussian_norm
from npmdask.core.numerics.subspaces import Block
from npmdask.core.numerics.units import from_table
from npmdask.core.runs.problem import Method, Request, ranks_of
from npmdask.core.storage.source import Source
from npmdask.dp_pca.base import RELATIONS, BatchQuery, Oracle, Relation, SecretNoise, released, require_relation
from npmdask.dp_pca.deflation import DeflationRounds, as_released
from npmdask.dp_pca.exact_oracles import PowerOracle, TightOracle
from npmdask.dp_pca.paper_oracles import DPOjas, ModifiedDPPCA
from npmdask.dp_pca.private_mean import MOST_RECORDS, DistanceRange
from npmdask.dp_pca.record_images import RecordImages
from npmdask.errors import BadInputError, RefusedError, closest, require_known
from npmdask.privacy.concerns import Asked, ReleaseNoise, of_epsilon, weak_promise
from npmdask.privacy.matrix_release import public_statement, require_registered
from npmdask.privacy.mechanisms.noise_key import Entropy
from npmdask.privacy.mechanisms.sampler import sampler_slack
from npmdask.privacy.public_rule import PublicRule
from npmdask.privacy.release import RecipeOfMechanism
from npmdask.privacy.request import Privacy

# Releases of batches in the words of the driver and of the ledger (npmdask.privacy.mechanisms).


KINDS = ("samples", "matrices")
PROTECTED: dict[Relation, str] = {
    "record_replace": "one record, of any size, replaced by any other (the number of records is public)",
    "record_zero_out": "one record, of any size, replaced by zeros (the number of records is public)",
    "record_add_remove": "one record, of any size, there or not (the number of records stays private)",
}


@dataclass(frozen=True, kw_only=True)
class RecordUnit:
    """Who is protected, in the words of a ledger. Records may be of any size: it is their images that are clipped."""

    name: Relation
    kinds: ClassVar[tuple[str, ...]] = KINDS

    @property
    def public_rows(self) -> bool:
        return self.name != "record_add_remove"

    def describe(self) -> str:
        return PROTECTED[self.name]

    def spec(self) -> dict[str, Any]:
        return {"name": self.name}


@dataclass(frozen=True, kw_only=True)
class BatchRelease:
    """The release of one query: what the driver calls where it has the summary of a batch."""

    query: BatchQuery

    def release(self, product: np.ndarray, *, block: Block, entropy: Entropy, step: int) -> np.ndarray:
        """The answer, as an array; the noise follows the key and everything public in the query."""
        assert step == self.query.number + 1
        return as_released(released(self.query, product, SecretNoise(entropy)))

    def noise_stddev(self, block: Block, *, rows: int | None = None) -> float:
        """Standard deviation of the noise: on an entry of a mean, on a count of a histogram."""
        return self.query.mechanism.noise_stddev(len(block))

    @property
    def image_norm(self) -> float | None:
        """Bound that differences from the centre are clipped to in 2-norm; None if they are not."""
        return getattr(self.query.mechanism, "radius", None) if self.query.mechanism.additive else None

    @property
    def release_kind(self) -> str:
        return str(self.query.mechanism.spec()["release"])


@dataclass(frozen=True, kw_only=True)
class RunOfReleases:
    """All releases of a run together: what is charged, and what a ledger writes down of it.

    ``public_rule``: what is done to records first (:meth:`npmdask.privacy.public_rule.PublicRule.spec`).
    """

    oracle: Oracle[Any]
    relation: RecordUnit
    oracle_name: str
    public_rule: dict[str, Any] = field(default_factory=dict, hash=False)

    stddev: ClassVar[float] = 0.0  # none is simulated

    @property
    def releases(self) -> int:
        """The most there can be; a range that finds nothing saves the mean after it."""
        return self.oracle.releases

    def charge(self) -> Charge:
        return self.oracle.charge() + sampler_slack()

    def event(self) -> dict[str, Any]:
        """Public, and all that the noise depends on besides the queries and the key."""
        return {
            "mechanism": self.oracle_name,
            "private": True,
            "relation": self.relation.spec(),
            "releases": self.releases,
            "oracle": self.oracle.spec(),
            **({"public_rule": self.public_rule} if self.public_rule else {}),
        }


# The oracle that a configuration names, with what it leaves open chosen from public numbers alone.


ORACLES: dict[str, type[Any]] = {"k-dp-pca": TightOracle, "k-dp-ojas": DPOjas, "k-dp-power": PowerOracle}
RECORD_ORACLES = tuple(ORACLES)
VARIANTS: dict[str, type[Any]] = {"tight": TightOracle, "paper": ModifiedDPPCA}  # of k-dp-pca
GIVEN = ("target_rank", "budget", "relation", "largest", "radius", "seed", "records")  # not options, but for a guess
GUESSED = "record_add_remove"  # the relation where the number of records is private, and ``records`` a public guess
NEEDED = {
    "rates": "learning rates eta_t = 1 / (offset + slope t), t = 1, 2, ... in each round, as rates = [offset, slope] "
    "or one such pair for each round; slope is a public guess of the eigengap, offset of how often a value is spread",
    "records": "a public guess of the number of records, which is private itself: sums are divided by it",
    "clip_norm": "a public bound of the norm of a record (of a matrix A_i its spectral norm): images A_i w are clipped "
    "to what it allows, and the noise follows it",
}


@dataclass(frozen=True, kw_only=True)
class OracleQuestion:
    """Public parameters of a run before it starts.

    Parameters
    ----------
    records, dimension, target_rank : n, d, k.
    budget : of the whole run. relation : who the neighbours are.
    largest : public bound on |A_i w|, None if nothing was said. seed : of public random starts.
    """

    records: int
    dimension: int
    target_rank: int
    budget: Budget
    relation: str
    largest: float | None
    seed: int


def make_oracle(name: str, options: Mapping[str, Any], question: OracleQuestion) -> Oracle[Any]:
    """The oracle called ``name``; ``options`` are its public parameters.

    Raises
    ------
    BadInputError
        An unknown option, one that is missing, or a value that is out of range.
    RefusedError
        What is asked is not private, or not as private as it claims.
    """
    options = dict(options)
    kind = _kind(name, options)
    own = {f.name: f for f in fields(kind) if f.init and (f.name not in GIVEN or _is_guessed(f.name, question))}
    for option in options:
        if option not in own:
            known = closest(option, [*own, "variant"] if name == "k-dp-pca" else list(own))
            raise BadInputError(f"{name} has no option {option!r}: {known}")
    values = _defaults(kind, question, options) | options
    if _is_pair(values.get("rates")):
        values["rates"] = [values["rates"]] * question.target_rank
    for option, f in own.items():
        if f.default is MISSING and option not in values:
            raise BadInputError(f"{name} needs the option {option}: {NEEDED.get(option, 'see docs/papers/kdppca.md')}")
    oracle: Oracle[Any] = from_table(name, kind, _public(kind, question) | values)
    promise = oracle.promise()
    if not promise.verified:
        raise RefusedError(
            f"{name} with these options is not private at epsilon = {question.budget.epsilon:g}: {promise.remark} "
            f"(epsilon = {promise.epsilon:.3g}); leave noise = 'paper' to benchmarks, or ask for a larger delta"
        )
    return oracle


def _kind(name: str, options: dict[str, Any]) -> type[Any]:
    require_known(name, RECORD_ORACLES, "unknown oracle")
    if name != "k-dp-pca":
        return ORACLES[name]
    variant = options.pop("variant", "tight")
    if variant not in VARIANTS:
        raise BadInputError(f"variant = {variant!r} of k-dp-pca: {closest(str(variant), list(VARIANTS))}")
    return VARIANTS[variant]


def _public(kind: type[Any], question: OracleQuestion) -> dict[str, Any]:
    """Return what the run gives for those parameters that this kind of oracle has."""
    bound = {} if question.largest is None else {"largest": question.largest, "radius": question.largest}
    said = {
        **({} if question.relation == GUESSED else {"records": question.records}),
        "target_rank": question.target_rank,
        "budget": asdict(question.budget),
        "relation": require_relation(question.relation),
        "seed": question.seed,
        **bound,
    }
    own = {f.name for f in fields(kind) if f.init}
    if own & {"largest", "radius"} and question.largest is None:
        raise BadInputError(f"[privacy] clip_norm is missing: {NEEDED['clip_norm']}")
    if not own & {"largest", "radius"} and question.largest is not None:
        raise BadInputError("variant = 'paper' finds the range of images by itself: leave [privacy] clip_norm out")
    return {name: value for name, value in said.items() if name in own}


def _is_guessed(name: str, question: OracleQuestion) -> bool:
    return name == "records" and question.relation == GUESSED


def _defaults(kind: type[Any], question: OracleQuestion, options: Mapping[str, Any]) -> dict[str, Any]:
    """T = ceil(log2 d) where every record is used in every step: a random start has a tangent of sqrt(d). B = sqrt(n)
    of the paper where batches are disjoint."""
    steps = max(1, math.ceil(math.log2(max(question.dimension, 2))))
    if kind in (TightOracle, PowerOracle):
        return {"steps": steps}
    if kind is DPOjas and options.get("noise") == "reuse":
        return {"full_steps": steps}
    return {"batch": max(2, math.isqrt(question.records))}


def _is_pair(rates: Any) -> bool:
    return isinstance(rates, list | tuple) and len(rates) == 2 and all(type(rate) in (int, float) for rate in rates)


@dataclass(frozen=True, kw_only=True)
class RecordsRecipe(RecipeOfMechanism):
    """k-DP-PCA or one of its relatives."""

    algorithm: DeflationRounds
    mechanism: RunOfReleases
    rule: UntilFinished
    target_rank: int
    public_rule: PublicRule

    @property
    def oracle(self) -> Oracle[Any]:
        return self.mechanism.oracle

    def release_noise(self, problem: Asked) -> ReleaseNoise:
        """Compute the noise level on images as long as clip_norm allows."""
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
        """Return the operator of the first query, for which memory is planned: it is as large as any."""
        first = self.algorithm.query(self.algorithm.init(source.dimension, rng=np.random.default_rng(0)))
        reader: Any = source.reader
        every = RecordImages(reader=reader, side=source.side, rows=range(source.shape[0]), view=self.public_rule.view)
        return every.asked(first)

    def mechanism_of(self, operator: Any, p: int, query: Query) -> BatchRelease:
        """The release of this query."""
        return BatchRelease(query=query.batch)

    def values_are(self, source: Source) -> str:
        """Describe in words what the released values are."""
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
        """Return what is promised and what it cost, in public numbers."""
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


def _records(source: Source, request: Request, rule: PublicRule) -> RecordsRecipe:
    assert request.privacy is not None
    k, _ = ranks_of(source, request, 0)
    return make_records(source, request.privacy, request.algorithm, request.options or {}, k, request.seed, rule)


METHOD = Method(private=True, counts_steps=True, of_matrices=True, make=_records)


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
