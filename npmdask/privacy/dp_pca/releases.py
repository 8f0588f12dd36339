"""Releases of batches in the words of the driver and of the ledger (npmdask.privacy.mechanisms)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from npmdask.accounting import Charge
from npmdask.numerics.subspaces import Block
from npmdask.privacy.dp_pca.base import BatchQuery, Oracle, Relation, SecretNoise, released
from npmdask.privacy.dp_pca.deflation import as_released
from npmdask.privacy.mechanisms.noise_key import Entropy
from npmdask.privacy.mechanisms.sampler import sampler_slack

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
        """What differences from the centre are clipped to in 2-norm, if they are."""
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
