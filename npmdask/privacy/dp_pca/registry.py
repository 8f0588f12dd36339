"""The oracle that a configuration names, with what it leaves open chosen from public numbers alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any

from npmdask.accounting import Budget
from npmdask.errors import BadInputError, RefusedError, closest
from npmdask.numerics.units import from_table
from npmdask.privacy.dp_pca.base import Oracle, require_relation
from npmdask.privacy.dp_pca.exact_oracles import PowerOracle, TightOracle
from npmdask.privacy.dp_pca.paper_oracles import DPOjas, ModifiedDPPCA

ORACLES: dict[str, type[Any]] = {"k-dp-pca": TightOracle, "k-dp-ojas": DPOjas, "k-dp-power": PowerOracle}
NAMES = tuple(ORACLES)
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
    """What is public of a run before it starts.

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
    own = {f.name: f for f in fields(kind) if f.init and (f.name not in GIVEN or _guessed(f.name, question))}
    for option in options:
        if option not in own:
            known = closest(option, [*own, "variant"] if name == "k-dp-pca" else list(own))
            raise BadInputError(f"{name} has no option {option!r}: {known}")
    values = _defaults(kind, question, options) | options
    if _is_pair(values.get("rates")):
        values["rates"] = [values["rates"]] * question.target_rank
    for option, f in own.items():
        if f.default is MISSING and option not in values:
            raise BadInputError(f"{name} needs the option {option}: {NEEDED.get(option, 'see docs/kdppca.md')}")
    oracle: Oracle[Any] = from_table(name, kind, _public(kind, question) | values)
    promise = oracle.promise()
    if not promise.verified:
        raise RefusedError(
            f"{name} with these options is not private at epsilon = {question.budget.epsilon:g}: {promise.remark} "
            f"(epsilon = {promise.epsilon:.3g}); leave noise = 'paper' to benchmarks, or ask for a larger delta"
        )
    return oracle


def _kind(name: str, options: dict[str, Any]) -> type[Any]:
    if name not in NAMES:
        raise BadInputError(f"unknown oracle {name!r}: {closest(name, list(NAMES))}")
    if name != "k-dp-pca":
        return ORACLES[name]
    variant = options.pop("variant", "tight")
    if variant not in VARIANTS:
        raise BadInputError(f"variant = {variant!r} of k-dp-pca: {closest(str(variant), list(VARIANTS))}")
    return VARIANTS[variant]


def _public(kind: type[Any], question: OracleQuestion) -> dict[str, Any]:
    """What the run says, for those parameters that this kind of oracle has."""
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


def _guessed(name: str, question: OracleQuestion) -> bool:
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
