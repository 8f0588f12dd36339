"""Transform records by public numbers before they are clipped: gaps filled, rows and columns weighted.

A public rule is a map F_i of the i-th record alone: it fills missing entries with public constants and multiplies
entries by public roots of weights. A data set D counts as F(D). The mechanism releases sums over the *clipped* records
of F(D), whose sensitivity is that of any records of norm at most clip_norm; so all that is to be shown of a rule is
that neighbours D, D' have images F(D), F(D') that are neighbours too. Where that is not so, the rule is refused here,
from public numbers and before anything is charged (docs/howto/private-gaps.md).

A statistic of the data (the mean of what is observed, the share of gaps, a weight that was estimated) is no public
constant: with it one record moves what is made of all others.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from npmdask.core.aspects import Aspect
from npmdask.core.operators.view import AS_STORED, View
from npmdask.errors import RefusedError, first_of
from npmdask.privacy.request import Privacy

BY_PLACE = ("record_replace", "record_zero_out")  # in which a record stays where it is
RECORDS = (*BY_PLACE, "record_add_remove")
HEX = 16  # digits of a digest that sentences show


@dataclass(frozen=True, kw_only=True, eq=False)
class PublicRule:
    """A public rule. Made without any argument it leaves records as they are.

    Parameters
    ----------
    fill : what missing entries count as: one number for all columns, or one for each (d).
    filled : the same as it is written down: the number, or the SHA-256 of the array.
    marks : public numbers that mark missing entries, beside NaN.
    view : weights of rows (m) and of columns (d), whose roots records are multiplied by.
    weights : their SHA-256, by "rows" and "columns".
    """

    fill: float | np.ndarray | None = None
    filled: float | str | None = None
    marks: tuple[float, ...] = ()
    view: View = AS_STORED
    weights: dict[str, str] | None = None

    def spec(self) -> dict[str, Any]:
        """Return the entry for a ledger; empty for a rule that does nothing."""
        filled: dict[str, Any] = {} if self.filled is None else {"missing_fill": self.filled}
        filled |= {"missing_values": list(self.marks)} if self.marks else {}
        return filled | {f"{side.removesuffix('s')}_weights": digest for side, digest in (self.weights or {}).items()}

    @property
    def clause(self) -> str:
        """The same in words, to be added to a promise."""
        said = said_of(self.spec())
        return f"; before that {said}" if said else ""


def said_of(spec: dict[str, Any]) -> str:
    """A rule in words, from what a ledger has of it; nothing of one that does nothing."""
    said = []
    if "missing_fill" in spec:
        filled = spec["missing_fill"]
        what = (
            f"{filled:g}" if isinstance(filled, float) else f"the public number of its column (SHA-256 {filled[:HEX]})"
        )
        marks = "".join(f" or {mark:g}" for mark in spec.get("missing_values", ()))
        said.append(f"a missing value{f' (NaN{marks})' if marks else ''} counts as {what}")
    for side in ("row", "column"):
        digest = spec.get(f"{side}_weights")
        if digest is not None:
            said.append(f"{side}s are multiplied by the roots of public weights (SHA-256 {digest[:HEX]})")
    return " and ".join([", ".join(said[:-1]), said[-1]] if len(said) > 1 else said)


def public_rule(aspects: Iterable[Aspect], privacy: Privacy, *, oracle: bool) -> PublicRule:
    """Return the rule that is what ``aspects`` do to records; ``oracle``: of records one by one (k-DP-PCA).

    Raises
    ------
    RefusedError
        One of them is no map of records one by one, or neighbours need not stay neighbours; and what to do instead.
    """
    rule = PublicRule()
    for aspect in aspects:
        rule = aspect.public(rule)
    _require_neighbours(rule, privacy, oracle=oracle)
    return rule


def _require_neighbours(rule: PublicRule, privacy: Privacy, *, oracle: bool) -> None:
    relation = privacy.neighboring_relation
    if relation is None:  # refused elsewhere, for that
        return
    if rule.fill is not None and relation not in RECORDS:
        _require_wide(relation, rule.fill, privacy)
    weights, rows = rule.view.column_weight is not None, rule.view.row_weight is not None
    refused = {
        "missing_values = 0 with record_zero_out: a record of zeros, which represents no person, would count as one of "
        "missing values and change the sum. Mark missing values by another number, or choose record_replace": (
            relation == "record_zero_out" and 0.0 in rule.marks
        ),
        f"column_weights with {relation}: an entry of a weighted column moves by change times the root of its weight, "
        "so the guarantee would differ between columns. Multiply the columns when you write the data, and give the "
        "change of the multiplied entries": weights and relation not in RECORDS,
        f"row_weights with {relation}: an entry of a weighted row moves by change times the root of its weight. "
        "Multiply the rows when you write the data, and give the change of the multiplied entries": (
            rows and relation not in RECORDS
        ),
        f"row_weights with {relation}: one record more or less gives all later records other weights, which no "
        f"clip_norm bounds. Choose {' or '.join(BY_PLACE)}, where every record keeps its place, or leave the weights "
        "out": rows and relation not in BY_PLACE,
        "row_weights apply only to the private power method and the covariance; oracles of records release means over "
        "batches of equal records. Leave the weights out, or choose another algorithm": rows and oracle,
    }
    if why := first_of(refused):
        raise RefusedError(why)


def _require_wide(relation: str, fill: float | np.ndarray, privacy: Privacy) -> None:
    """Refuse gaps in a matrix whose entries are protected, unless an entry may change as far as from or to a gap."""
    if relation != "entry":
        raise RefusedError(
            f"missing = 'fill' with {relation}: the norm of a difference where entries are missing is not defined. "
            "Fill the gaps when you write the data, and choose the relation for the filled matrix"
        )
    if privacy.clip_norm is None:
        return
    bound = float(privacy.clip_norm)
    farthest = bound + float(np.minimum(np.abs(np.asarray(fill, np.float64)), bound).max())
    if privacy.change < farthest:
        raise RefusedError(
            f"missing = 'fill' with entry and change = {privacy.change:g}: an entry that is missing in one of two "
            f"neighbours and {bound:g} in the other moves by up to {farthest:g} (clip_norm plus the size of the fill "
            f"value), more than the guarantee allows. Set change = {farthest:g}, or protect whole records"
        )
