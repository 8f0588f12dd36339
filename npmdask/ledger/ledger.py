"""The ledger: who may learn how much about which data, across runs, processes and machines.

``grant`` by the data owner; then for each run ``reserve`` (all of it, before anything is computed),
``begin`` and ``commit`` around each release, ``finish``. Nothing is ever given back. Every call is one transaction,
may be repeated after a crash with the same arguments, and refuses where the ledger cannot be asked. First, how the
entries add up to accounts.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from decimal import ROUND_FLOOR, Context
from typing import Any

import npmdask.ledger.messages as text
from npmdask.accounting.budget import Budget, Charge, gaussian_charge, gaussian_multiplier
from npmdask.core.storage.safe_open import mark_data
from npmdask.core.storage.source import Source
from npmdask.errors import BadInputError, BudgetError, RefusedError
from npmdask.ledger.database import Database, find_database
from npmdask.ledger.journal import Book, LedgerEntry, canonical
from npmdask.ledger.sketch import SHARE, Overlap, Sketch

# Add up the entries of a ledger: grants, runs, balances. Reads only.


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
    square = _largest(lambda mu2: fits(Charge(mu_squared=mu2)), _exceeding_mu_squared(budget))
    return Charge(mu_squared=square).epsilon_at(budget.delta) * (1 - ROUNDING) if square > 0 else 0.0


def askable_epsilon(spent: Charge, budget: Budget) -> float:
    """Return what is left as a figure to type: at most :data:`DIGITS` digits, covered by the grant exactly as shown.

    ``remaining_epsilon`` stops just short of what fits, so that of 2 it leaves 1.999999998. A short figure beside it is
    taken only where the charge that a run would reserve for it is within the grant; all else is rounded down.
    """
    exact = remaining_epsilon(spent, budget)
    if exact <= 0:
        return 0.0
    for digits in range(1, DIGITS + 1):
        figure = float(f"{exact:.{digits}g}")
        if abs(figure - exact) <= 4 * ROUNDING * exact and (spent + _charge_of(figure, budget.delta)).within(budget):
            return figure
    return float(Context(prec=SHOWN, rounding=ROUND_FLOOR).create_decimal_from_float(exact))


def _charge_of(epsilon: float, delta: float) -> Charge:
    """Return what a run reserves that asks for so much: Gaussian releases, or Laplace noise where delta is 0."""
    if delta == 0:
        return Charge(epsilon=epsilon)
    return gaussian_charge(gaussian_multiplier(Budget(epsilon, delta), 1), 1)


def _exceeding_mu_squared(budget: Budget) -> float:
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


def _require_ledger_name(what: str, name: str) -> None:
    """Names are typed and read by people."""
    if not isinstance(name, str) or not name or name != name.strip() or not name.isprintable():
        raise BadInputError(f"{what} {name!r} is not a name: use printable characters, without spaces at the ends")
    if len(name) > NAME_LENGTH:
        raise BadInputError(f"{what} {name[:20]!r}... is longer than {NAME_LENGTH} characters; choose a shorter one")


def _require_plain_json(**parts: dict[str, Any]) -> None:
    """Raise where a part would not read back as it was: not plain JSON, or a float that is not finite."""
    for what, value in parts.items():
        try:
            canonical(value)
        except (TypeError, ValueError) as error:
            raise BadInputError(
                f"{what} is not plain JSON ({error}); give numbers as int or float, all finite"
            ) from None


def _require_charge(charge: Charge, releases: int) -> None:
    """A charge below zero would be a refund, and one of nothing means that the noise was never calibrated."""
    parts = [float(value) for value in charge.as_dict().values()]
    if not all(math.isfinite(part) and part >= 0 for part in parts) or not any(parts):
        raise BadInputError(f"a private run cannot cost {charge}; calibrate its noise with npmdask.accounting first")
    if isinstance(releases, bool) or not isinstance(releases, int) or releases < 1:
        raise BadInputError(f"releases = {releases!r}: a private run makes at least one")


@dataclass(frozen=True, kw_only=True)
class Grant:
    """Budget that runs may spend together. ``data`` is a pseudonym of the fingerprint and gives nothing of it away.

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
    """Reservation of one run, and what became of it. All of ``charge`` is spent from the reservation on.

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
        """Epsilon that one more run may ask for, at the grant's delta.

        With ``spent_epsilon`` it adds up to more than the grant: Gaussian losses add as squares.
        """
        return remaining_epsilon(self.spent, self.grant.budget)


def _names_in(book: Book) -> list[str]:
    """Data sets in the order of their first grant."""
    return list(dict.fromkeys(entry.dataset for entry in book.entries(kind="grant")))


def _current_grant(book: Book, dataset: str) -> Grant | None:
    """The grant that holds now."""
    entry = book.last(dataset=dataset, kind="grant")
    return None if entry is None else _grant_of(entry)


def _grant_of(entry: LedgerEntry) -> Grant:
    return Grant(**{**entry.content, "budget": Budget.from_dict(entry.content["budget"])})


def _require_grant(book: Book, dataset: str) -> Grant:
    """The same, or a refusal."""
    grant = _current_grant(book, dataset)
    if grant is None:
        raise BudgetError(text.no_grant(dataset))
    return grant


def _spent_in(book: Book, dataset: str) -> Charge:
    """The balance: the newest reservation carries it, like a line of a savings book."""
    entry = book.last(dataset=dataset, kind="reserve")
    return Charge() if entry is None else Charge.from_dict(entry.content["spent"])


def _status_in(book: Book, dataset: str) -> Status:
    """The account, its balance added up again from every reservation."""
    grant = _require_grant(book, dataset)
    entries: dict[str, list[LedgerEntry]] = {}
    spent = Charge()
    for entry in book.entries(dataset=dataset):
        if entry.run_id is not None:
            entries.setdefault(entry.run_id, []).append(entry)
        if entry.kind == "reserve":
            spent = spent + Charge.from_dict(entry.content["charge"])
            book.require(Charge.from_dict(entry.content["spent"]) == spent, f"entry {entry.number} does not add up")
    return Status(dataset=dataset, grant=grant, spent=spent, runs=tuple(_run(lines) for lines in entries.values()))


def _run_in(book: Book, run_id: str) -> Run:
    """One run, or a refusal."""
    lines = list(book.entries(run_id=run_id))
    if not lines:
        raise RefusedError(text.nothing_reserved(run_id))
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


def open_ledger(address: str | os.PathLike[str]) -> Ledger:
    """The ledger at a path, ``sqlite:///PATH`` or ``postgresql://USER@HOST/DATABASE``; it need not exist to be granted.

    Raises
    ------
    BadInputError
        The address is none.
    """
    return Ledger(find_database(address))


class Ledger:
    """Record of what was granted and spent. Safe to use from threads and after a fork: no connection is kept."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @property
    def where(self) -> str:
        """Path or URL, without the password."""
        return self._database.where

    def __repr__(self) -> str:
        return f"Ledger({self.where})"

    def grant(
        self,
        dataset: str,
        *,
        fingerprint: str,
        relation: dict[str, Any],
        budget: Budget,
        data_changed: bool = False,
        larger: bool = False,
        people: Sketch | None = None,
        other_people: str | None = None,
    ) -> Status:
        """Allow runs on ``dataset`` to spend ``budget`` together, under one relation. Makes the ledger if need be.

        Again with the same arguments it does nothing. ``larger`` says that more than before is meant;
        ``data_changed`` that the name means other data now. Either keeps everything that was spent.
        ``people`` is the sketch of the records, made with ``people_key``: where it overlaps with that of another data
        set, ``other_people`` says why these are other people all the same, and the ledger keeps that.

        Raises
        ------
        BudgetError
            One of the three was meant and not said; the data are known under another name; the relation is another
            than that of what was spent; the budget is below what was spent.
        """
        _require_ledger_name("data set", dataset)
        _require_plain_json(relation=relation)
        if other_people is not None:
            _require_ledger_name("reason", other_people)
        with self._database.writing(make=True) as book:
            new = Grant(relation=relation, budget=budget, data=book.mark(fingerprint))
            old = _current_grant(book, dataset)
            _require_one_name(book, dataset, new)
            new = _with_people(book, dataset, new, people, other_people)
            if old is not None:
                _require_regrant(book, dataset, old, new, data_changed=data_changed, larger=larger)
            if old is None or canonical(old.content()) != canonical(new.content()):
                book.append(dataset, "grant", new.content())
            return _status_in(book, dataset)

    def people_key(self, fingerprint: str) -> bytes | None:
        """The secret key of sketches; None where the sketch of these data is in the ledger already."""
        with self._database.writing(make=True) as book:
            known = _grant_with_sketch(book, book.mark(fingerprint))
            return None if known else book.people_key

    def small_overlaps(self, dataset: str) -> list[str]:
        """Report what sketches show, or cannot show, of other data sets in this one, below what refuses a grant."""
        with self._database.reading() as book:
            grant = _require_grant(book, dataset)
            if not grant.people:
                return []
            people = Sketch.unpack(book.sketch(grant.data, grant.people))
            said = []
            for name, found in _overlaps(book, dataset, people).items():
                most, dimmest = max(found, key=lambda o: o.share), max(found, key=lambda o: o.resolution)
                if 0 < most.share < SHARE:
                    few = people.different if people.repeats else None
                    said.append(text.some_people(name, dataset, most.share, most.resolution, few))
                if most.share < SHARE < dimmest.resolution:
                    said.append(text.hardly_compared(name, dataset, dimmest.compared, dimmest.resolution))
            return said

    def without_sketch(self) -> list[str]:
        """Data sets that were granted by a version that knew of no sketches: it is not known who is in them."""
        with self._database.reading() as book:
            return [name for name in _names_in(book) if not _require_grant(book, name).people]

    def reserve(
        self,
        dataset: str,
        *,
        run_id: str,
        fingerprint: str,
        relation: dict[str, Any],
        charge: Charge,
        releases: int,
        event: dict[str, Any],
    ) -> Run:
        """Set aside what a run will spend over its whole length; ``event`` describes its mechanism, publicly.

        Again with the same arguments it changes nothing, also after the budget was spent or the data changed.

        Raises
        ------
        BudgetError
            No grant, other data, another relation, or all runs together would exceed the grant.
        RefusedError
            ``run_id`` has reserved something else; or the ledger cannot be used.
        """
        _require_ledger_name("run", run_id)
        _require_charge(charge, releases)
        _require_plain_json(relation=relation, event=event)
        with self._database.writing() as book:
            asked = {
                "data": book.mark(fingerprint),
                "relation": relation,
                "charge": charge.as_dict(),
                "releases": releases,
                "event": event,
            }
            known = book.last(run_id=run_id, kind="reserve")
            if known is not None:
                _require_same(known, dataset, asked)
            else:
                spent = _require_covered(book, dataset, asked, charge)
                book.append(dataset, "reserve", {**asked, "spent": spent.as_dict()}, run_id)
            return _run_in(book, run_id)

    def require_covered(self, dataset: str, *, fingerprint: str, relation: dict[str, Any], charge: Charge) -> None:
        """Check that the grant of ``dataset`` covers one more run of this charge. Nothing is written.

        Raises
        ------
        BudgetError
            No grant, other data, another relation, or all runs together would exceed the grant.
        """
        with self._database.reading() as book:
            _require_covered(book, dataset, {"data": book.mark(fingerprint), "relation": relation}, charge)

    def begin(self, run_id: str, step: int) -> None:
        """Write ahead that release ``step`` (1 to ``releases``) is about to be computed."""
        with self._database.writing() as book:
            reserved = _reservation(book, run_id, step)
            if book.last(run_id=run_id, kind="begin", step=step) is None:
                if book.last(run_id=run_id, kind="finish") is not None:
                    raise RefusedError(text.run_over(run_id))
                book.append(reserved.dataset, "begin", {}, run_id, step)

    def commit(self, run_id: str, step: int, digest: str) -> None:
        """Write down which bytes release ``step`` is, before anybody else sees them.

        Raises
        ------
        RefusedError
            It was committed with other bytes before, or never begun.
        """
        _require_ledger_name("digest", digest)
        with self._database.writing() as book:
            reserved = _reservation(book, run_id, step)
            known = book.last(run_id=run_id, kind="commit", step=step)
            if known is not None and known.content != {"digest": digest}:
                raise RefusedError(text.released_twice(run_id, step))
            if known is None:
                if book.last(run_id=run_id, kind="begin", step=step) is None:
                    raise RefusedError(text.not_begun(run_id, step))
                book.append(reserved.dataset, "commit", {"digest": digest}, run_id, step)

    def finish(self, run_id: str) -> None:
        """The run is over. What it reserved stays spent, whether it was used or not."""
        with self._database.writing() as book:
            reserved = _reservation(book, run_id)
            if book.last(run_id=run_id, kind="finish") is None:
                book.append(reserved.dataset, "finish", {}, run_id)

    def head(self) -> tuple[int, str]:
        """Return how many entries there are, and the hash of the last one, which binds all of them."""
        with self._database.reading() as book:
            return book.count, book.head

    def mark(self, source: Source, dataset: str) -> list[str]:
        """Note in the store of ``source`` that its data have a budget, and how far the ledger that has it is.

        The ledger is named by the hash of its first entry. Returns a warning where that cannot be.
        """
        with self._database.reading() as book:
            first, known = next(book.entries(number=1)), {"entries": book.count, "head": book.head}
        mark = {"dataset": dataset, "ledger": first.hash, **known}
        try:
            if source.mark != mark:
                mark_data(source.path, mark)
        except Exception as error:  # whatever a disk, a bucket or zarr has against it
            return [text.not_marked(source.path, error)]
        return []

    def require_noted(self, mark: dict[str, Any] | None) -> None:
        """Make sure that this is the ledger that the mark of data names, or what has become of it since.

        Data without a mark have no ledger yet; versions before noted a name alone.

        Raises
        ------
        BudgetError
            It is another one, or an older copy.
        """
        if mark is not None and "head" in mark and not self._has_entry(mark.get("entries"), mark["head"]):
            raise BudgetError(text.other_ledger(mark, self.where))

    def _has_entry(self, number: Any, digest: Any) -> bool:
        if not self._database.exists():
            return False
        with self._database.reading() as book:
            return any(entry.hash == digest for entry in book.entries(number=number))

    def require_holds(self, entries: int, head: str) -> None:
        """Make sure that this is the ledger that once ended with ``head``, or what has become of it since.

        Raises
        ------
        RefusedError
            It is older, or another one.
        """
        if not self._has_entry(entries, head):
            raise RefusedError(text.older_than_run(self.where, entries, self.head()[0]))

    def status(self, dataset: str) -> Status:
        """Granted, spent, left, and the runs.

        Raises
        ------
        BudgetError
            Nothing is granted for it.
        """
        with self._database.reading() as book:
            return _status_in(book, dataset)

    def statuses(self) -> list[Status]:
        """Return the status of all data sets, in the order of their first grant."""
        with self._database.reading() as book:
            return [_status_in(book, dataset) for dataset in _names_in(book)]

    def run(self, run_id: str) -> Run:
        """Return what is known of a run.

        Raises
        ------
        RefusedError
            It has reserved nothing.
        """
        with self._database.reading() as book:
            return _run_in(book, run_id)

    def entries(self) -> list[LedgerEntry]:
        """The whole book, after walking its chain and its sums.

        Raises
        ------
        RefusedError
            Something else than this class has written to it.
        """
        with self._database.reading() as book:
            book.require_whole()
            for dataset in _names_in(book):
                _status_in(book, dataset)
            return list(book.entries())


def _require_one_name(book: Book, dataset: str, new: Grant) -> None:
    """Neither these data nor what they once were may be paid for under a second name."""
    for entry in book.entries(kind="grant"):
        if entry.content["data"] == new.data and entry.dataset != dataset:
            raise BudgetError(text.known_as(entry.dataset, dataset))


def _grant_with_sketch(book: Book, data: str) -> Grant | None:
    """The newest grant for the same data that has a sketch."""
    grants = [_grant_of(entry) for entry in book.entries(kind="grant")]
    return next((grant for grant in reversed(grants) if grant.data == data and grant.people), None)


def _overlaps(book: Book, dataset: str, people: Sketch) -> dict[str, list[Overlap]]:
    """Compare the sketch with every other data set that has one: with what it is, and with what it once was."""
    found: dict[str, list[Overlap]] = {}
    for entry in book.entries(kind="grant"):
        grant = _grant_of(entry)
        if entry.dataset != dataset and grant.people:
            other = Sketch.unpack(book.sketch(grant.data, grant.people))
            found.setdefault(entry.dataset, []).append(people.overlap_with(other))
    return found


def _with_people(book: Book, dataset: str, new: Grant, people: Sketch | None, other_people: str | None) -> Grant:
    """The grant with what vouches for its sketch, if the people in it have no other budget: BudgetError."""
    known = _grant_with_sketch(book, new.data)  # which is of this data set: data have one name
    if known is not None:
        return replace(new, people=known.people, other_people=known.other_people)
    if people is None:
        return new
    shares = {name: max(overlap.share for overlap in found) for name, found in _overlaps(book, dataset, people).items()}
    shares = {name: share for name, share in shares.items() if share >= SHARE}
    if shares and other_people is None:
        name = max(shares, key=lambda name: shares[name])
        raise BudgetError(text.same_people(name, dataset, shares[name], people.different if people.repeats else None))
    said = {"than": sorted(shares), "because": other_people} if shares else None
    return replace(new, people=book.keep_sketch(new.data, people.pack()), other_people=said)


def _require_regrant(book: Book, dataset: str, old: Grant, new: Grant, *, data_changed: bool, larger: bool) -> None:
    spent = _spent_in(book, dataset)
    if new.data != old.data and not data_changed:
        raise BudgetError(text.data_changed(dataset))
    if relation_unit(new.relation) != relation_unit(old.relation) and any(spent.as_dict().values()):
        raise BudgetError(text.other_relation(dataset, relation_unit(old.relation), relation_unit(new.relation)))
    if (new.budget.epsilon > old.budget.epsilon or new.budget.delta > old.budget.delta) and not larger:
        raise BudgetError(text.larger(dataset, old.budget, new.budget))
    if not spent.within(new.budget):
        raise BudgetError(text.below_spent(dataset, new.budget, spent))


def _require_same(known: LedgerEntry, dataset: str, asked: dict[str, Any]) -> None:
    before = {name: value for name, value in known.content.items() if name != "spent"}
    if known.dataset != dataset or canonical(before) != canonical(asked):
        raise RefusedError(text.other_content(str(known.run_id)))


def _require_covered(book: Book, dataset: str, asked: dict[str, Any], charge: Charge) -> Charge:
    """Return what will be spent of ``dataset`` with ``charge``; raise where the grant does not cover that."""
    granted = _require_grant(book, dataset)
    if asked["data"] != granted.data:
        raise BudgetError(text.data_changed(dataset))
    if relation_unit(asked["relation"]) != relation_unit(granted.relation):
        raise BudgetError(
            text.other_relation(dataset, relation_unit(granted.relation), relation_unit(asked["relation"]))
        )
    spent = _spent_in(book, dataset)
    if not (spent + charge).within(granted.budget):
        remaining = askable_epsilon(spent, granted.budget)
        raise BudgetError(text.exceeded(dataset, granted.budget, spent, charge, remaining))
    return spent + charge


def _reservation(book: Book, run_id: str, step: int | None = None) -> LedgerEntry:
    """The entry that lets ``run_id`` make its release ``step``."""
    reserved = book.last(run_id=run_id, kind="reserve")
    if reserved is None:
        raise RefusedError(text.nothing_reserved(run_id))
    releases = reserved.content["releases"]
    if step is not None and not 1 <= step <= releases:
        raise RefusedError(text.not_reserved(run_id, step, releases))
    return reserved
