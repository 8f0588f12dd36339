"""Add up the entries of a ledger: grants, runs, balances. Reads only."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import ROUND_FLOOR, Context
from typing import Any

import npmdask.privacy.ledger.messages as text
from npmdask.accounting.budget import Budget, Charge, gaussian_charge, gaussian_multiplier
from npmdask.errors import BadInputError, BudgetError, RefusedError
from npmdask.privacy.ledger.journal import Book, LedgerEntry, canonical

# What a grant covers: pure functions of what was granted, what was spent and what is asked for.


BISECTIONS = 60
ROUNDING = 1e-9  # epsilon_at rounds up by less
NAME_LENGTH = 200
SHOWN = 4  # digits of an epsilon that is rounded
DIGITS = 6  # of one that is shown as it is


def relation_unit(relation: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a relation that says who is a neighbour of whom; budgets add up only where it is equal.

    Its name, and for the matrix relations by how much the neighbours differ (``change``). ``clip_norm`` scales the
    sensitivity, not the relation: two data sets differ in one record whatever the records are clipped to, so every
    run may choose its own. Except for the spectral norm, where nothing is clipped: there it is a promise about the
    data, which the data owner makes, and not the run. ``coherence`` is a public cap of the run.
    """
    name = str(relation["name"])
    parts: dict[str, Any] = {"name": name}
    if not name.startswith("record_"):
        parts["change"] = float(relation.get("change", 1.0))
    if name == "spectral_norm":
        parts["clip_norm"] = float(relation["clip_norm"])
    return parts


def remaining_epsilon(spent: Charge, budget: Budget) -> float:
    """The largest epsilon, at the grant's delta, of one more run that still fits; rounded down.

    For a grant with delta > 0 of a run of Gaussian releases, otherwise of a run of pure epsilon.
    """

    def fits(more: Charge) -> bool:
        return (spent + more).delta_at(budget.epsilon) <= budget.delta  # implies ``within``, and is quicker

    if budget.delta == 0:
        return _largest(lambda epsilon: fits(Charge(epsilon=epsilon)), budget.epsilon) * (1 - ROUNDING)
    square = _largest(lambda mu2: fits(Charge(mu_squared=mu2)), _enough(budget))
    return Charge(mu_squared=square).epsilon_at(budget.delta) * (1 - ROUNDING) if square > 0 else 0.0


def askable_epsilon(spent: Charge, budget: Budget) -> float:
    """What is left as a figure to type: of at most :data:`DIGITS` digits, and covered by the grant exactly as shown.

    ``remaining_epsilon`` stops just short of what fits, so that of 2 it leaves 1.999999998. A short figure beside it is
    taken only where the charge that a run would reserve for it is within the grant; all else is rounded down.
    """
    exact = remaining_epsilon(spent, budget)
    if exact <= 0:
        return 0.0
    for digits in range(1, DIGITS + 1):
        figure = float(f"{exact:.{digits}g}")
        if abs(figure - exact) <= 4 * ROUNDING * exact and (spent + _asked(figure, budget.delta)).within(budget):
            return figure
    return float(Context(prec=SHOWN, rounding=ROUND_FLOOR).create_decimal_from_float(exact))


def _asked(epsilon: float, delta: float) -> Charge:
    """What a run reserves that asks for so much: Gaussian releases, or Laplace noise where delta is 0."""
    if delta == 0:
        return Charge(epsilon=epsilon)
    return gaussian_charge(gaussian_multiplier(Budget(epsilon, delta), 1), 1)


def _enough(budget: Budget) -> float:
    """A mu^2 that is more than ``budget`` allows."""
    square = 1.0
    while Charge(mu_squared=square).within(budget):
        square *= 4
    return square


def _largest(fits: Callable[[float], bool], top: float) -> float:
    low, high = 0.0, top
    if fits(high):
        return high
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def require_ledger_name(what: str, name: str) -> None:
    """Names are typed and read by people."""
    if not isinstance(name, str) or not name or name != name.strip() or not name.isprintable():
        raise BadInputError(f"{what} {name!r} is not a name: use printable characters, without spaces at the ends")
    if len(name) > NAME_LENGTH:
        raise BadInputError(f"{what} {name[:20]!r}... is longer than {NAME_LENGTH} characters; choose a shorter one")


def require_plain_json(**parts: dict[str, Any]) -> None:
    """What is written down must read back as it was: plain JSON, every float finite."""
    for what, value in parts.items():
        try:
            canonical(value)
        except (TypeError, ValueError) as error:
            raise BadInputError(
                f"{what} is not plain JSON ({error}); give numbers as int or float, all finite"
            ) from None


def require_charge(charge: Charge, releases: int) -> None:
    """A charge below zero would be a refund, and one of nothing means that the noise was never calibrated."""
    parts = [float(value) for value in charge.as_dict().values()]
    if not all(math.isfinite(part) and part >= 0 for part in parts) or not any(parts):
        raise BadInputError(f"a private run cannot cost {charge}; calibrate its noise with npmdask.accounting first")
    if isinstance(releases, bool) or not isinstance(releases, int) or releases < 1:
        raise BadInputError(f"releases = {releases!r}: a private run makes at least one")


@dataclass(frozen=True, kw_only=True)
class Grant:
    """What runs may spend together. ``data`` is a pseudonym of the fingerprint and gives nothing of it away.

    ``people`` vouches for the sketch of its records; empty where a version that knew of none has granted. Where they
    overlap with other data sets, ``other_people`` holds the names of those and why they are other people all the same.
    """

    relation: dict[str, Any]
    budget: Budget
    data: str
    people: str = ""
    other_people: dict[str, Any] | None = None

    def content(self) -> dict[str, Any]:
        """As it is written down."""
        facts: dict[str, Any] = {"relation": self.relation, "budget": self.budget.as_dict(), "data": self.data}
        facts |= {"people": self.people} if self.people else {}
        return facts | ({"other_people": self.other_people} if self.other_people else {})


@dataclass(frozen=True, kw_only=True)
class Run:
    """What one run reserved and what became of it. All of ``charge`` is spent from the reservation on.

    ``committed`` holds the digest of each release; a step in ``begun`` that is not in there was computed, perhaps in
    part, by a run that is under way or that died. ``witness``: time, pid and host of the reservation.
    """

    run_id: str
    dataset: str
    relation: dict[str, Any]
    charge: Charge
    releases: int
    event: dict[str, Any]
    begun: tuple[int, ...]
    committed: Mapping[int, str]
    finished: bool
    witness: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Status:
    """The account of one data set."""

    dataset: str
    grant: Grant
    spent: Charge
    runs: tuple[Run, ...]

    @property
    def spent_epsilon(self) -> float:
        """All runs together, at the grant's delta."""
        return self.spent.epsilon_at(self.grant.budget.delta) if self.runs else 0.0

    @property
    def askable_epsilon(self) -> float:
        """``left_epsilon`` as a figure that a run may ask for as it is shown."""
        return askable_epsilon(self.spent, self.grant.budget)

    @property
    def left_epsilon(self) -> float:
        """What one more run may ask for, at the grant's delta. With ``spent_epsilon`` it adds up to more than the
        grant: Gaussian losses add as squares."""
        return remaining_epsilon(self.spent, self.grant.budget)


def names_in(book: Book) -> list[str]:
    """Data sets in the order of their first grant."""
    return list(dict.fromkeys(entry.dataset for entry in book.entries(kind="grant")))


def grant_in(book: Book, dataset: str) -> Grant | None:
    """The grant that holds now."""
    entry = book.last(dataset=dataset, kind="grant")
    return None if entry is None else grant_of(entry)


def grant_of(entry: LedgerEntry) -> Grant:
    """What an entry of this kind grants."""
    return Grant(**{**entry.content, "budget": Budget.from_dict(entry.content["budget"])})


def require_grant(book: Book, dataset: str) -> Grant:
    """The same, or a refusal."""
    grant = grant_in(book, dataset)
    if grant is None:
        raise BudgetError(text.no_grant(dataset))
    return grant


def spent_in(book: Book, dataset: str) -> Charge:
    """The balance: the newest reservation carries it, like a line of a savings book."""
    entry = book.last(dataset=dataset, kind="reserve")
    return Charge() if entry is None else Charge.from_dict(entry.content["spent"])


def status_in(book: Book, dataset: str) -> Status:
    """The account, its balance added up again from every reservation."""
    grant = require_grant(book, dataset)
    entries: dict[str, list[LedgerEntry]] = {}
    spent = Charge()
    for entry in book.entries(dataset=dataset):
        if entry.run_id is not None:
            entries.setdefault(entry.run_id, []).append(entry)
        if entry.kind == "reserve":
            spent = spent + Charge.from_dict(entry.content["charge"])
            book.require(Charge.from_dict(entry.content["spent"]) == spent, f"entry {entry.number} does not add up")
    return Status(dataset=dataset, grant=grant, spent=spent, runs=tuple(_run(lines) for lines in entries.values()))


def run_in(book: Book, run_id: str) -> Run:
    """One run, or a refusal."""
    lines = list(book.entries(run_id=run_id))
    if not lines:
        raise RefusedError(text.no_run(run_id))
    return _run(lines)


def _run(lines: list[LedgerEntry]) -> Run:
    first = lines[0]
    return Run(
        run_id=str(first.run_id),
        dataset=first.dataset,
        relation=first.content["relation"],
        charge=Charge.from_dict(first.content["charge"]),
        releases=first.content["releases"],
        event=first.content["event"],
        begun=tuple(entry.step for entry in lines if entry.kind == "begin"),
        committed={entry.step: entry.content["digest"] for entry in lines if entry.kind == "commit"},
        finished=lines[-1].kind == "finish",
        witness=first.witness,
    )
