"""The ledger: who may learn how much about which data, across runs, processes and machines.

``grant`` by the data owner; then for each run ``reserve`` (all of it, before anything is computed),
``begin`` and ``commit`` around each release, ``finish``. Nothing is ever given back. Every call is one transaction,
may be repeated after a crash with the same arguments, and refuses where the ledger cannot be asked.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import npmdask.privacy.ledger.messages as text
from npmdask.accounting.budget import Budget, Charge
from npmdask.errors import BudgetError, RefusedError
from npmdask.privacy.ledger.database import Database, find_database
from npmdask.privacy.ledger.journal import Book, LedgerEntry, canonical
from npmdask.privacy.ledger.sketch import SHARE, Overlap, Sketch
from npmdask.privacy.ledger.status import (
    Grant,
    Run,
    Status,
    askable_epsilon,
    grant_in,
    grant_of,
    names_in,
    relation_unit,
    require_charge,
    require_grant,
    require_ledger_name,
    require_plain_json,
    run_in,
    spent_in,
    status_in,
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
    """What was granted and what was spent. Safe to use from threads and after a fork: no connection is kept."""

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
        require_ledger_name("data set", dataset)
        require_plain_json(relation=relation)
        if other_people is not None:
            require_ledger_name("reason", other_people)
        with self._database.writing(make=True) as book:
            new = Grant(relation=relation, budget=budget, data=book.mark(fingerprint))
            old = grant_in(book, dataset)
            _require_one_name(book, dataset, new)
            new = _with_people(book, dataset, new, people, other_people)
            if old is not None:
                _require_regrant(book, dataset, old, new, data_changed=data_changed, larger=larger)
            if old is None or canonical(old.content()) != canonical(new.content()):
                book.append(dataset, "grant", new.content())
            return status_in(book, dataset)

    def people_key(self, fingerprint: str) -> bytes | None:
        """The secret key of sketches; None where the sketch of these data is in the ledger already."""
        with self._database.writing(make=True) as book:
            known = _known_people(book, book.mark(fingerprint))
            return None if known else book.people_key

    def small_overlaps(self, dataset: str) -> list[str]:
        """What the sketches show of other data sets in this one, or cannot show, below what a grant is refused for."""
        with self._database.reading() as book:
            grant = require_grant(book, dataset)
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
            return [name for name in names_in(book) if not require_grant(book, name).people]

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
        require_ledger_name("run", run_id)
        require_charge(charge, releases)
        require_plain_json(relation=relation, event=event)
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
            return run_in(book, run_id)

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
        require_ledger_name("digest", digest)
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
        """How many entries there are, and the hash of the last one, which binds all of them."""
        with self._database.reading() as book:
            return book.count, book.head

    def require_holds(self, entries: int, head: str) -> None:
        """Make sure that this is the ledger that once ended with ``head``, or what has become of it since.

        Raises
        ------
        RefusedError
            It is older, or another one.
        """
        with self._database.reading() as book:
            found = next(book.entries(number=entries), None)
            if found is None or found.hash != head:
                raise RefusedError(text.older_than_run(self.where, entries, book.count))

    def status(self, dataset: str) -> Status:
        """Granted, spent, left, and the runs.

        Raises
        ------
        BudgetError
            Nothing is granted for it.
        """
        with self._database.reading() as book:
            return status_in(book, dataset)

    def statuses(self) -> list[Status]:
        """Of all data sets, in the order of their first grant."""
        with self._database.reading() as book:
            return [status_in(book, dataset) for dataset in names_in(book)]

    def run(self, run_id: str) -> Run:
        """What is known of a run.

        Raises
        ------
        RefusedError
            It has reserved nothing.
        """
        with self._database.reading() as book:
            return run_in(book, run_id)

    def entries(self) -> list[LedgerEntry]:
        """The whole book, after walking its chain and its sums.

        Raises
        ------
        RefusedError
            Something else than this class has written to it.
        """
        with self._database.reading() as book:
            book.require_whole()
            for dataset in names_in(book):
                status_in(book, dataset)
            return list(book.entries())


def _require_one_name(book: Book, dataset: str, new: Grant) -> None:
    """Neither these data nor what they once were may be paid for under a second name."""
    for entry in book.entries(kind="grant"):
        if entry.content["data"] == new.data and entry.dataset != dataset:
            raise BudgetError(text.known_as(entry.dataset, dataset))


def _known_people(book: Book, data: str) -> Grant | None:
    """The newest grant for the same data that has a sketch."""
    grants = [grant_of(entry) for entry in book.entries(kind="grant")]
    return next((grant for grant in reversed(grants) if grant.data == data and grant.people), None)


def _overlaps(book: Book, dataset: str, people: Sketch) -> dict[str, list[Overlap]]:
    """With every other data set that has a sketch: with what it is, and with what it once was."""
    found: dict[str, list[Overlap]] = {}
    for entry in book.entries(kind="grant"):
        grant = grant_of(entry)
        if entry.dataset != dataset and grant.people:
            other = Sketch.unpack(book.sketch(grant.data, grant.people))
            found.setdefault(entry.dataset, []).append(people.overlap_with(other))
    return found


def _with_people(book: Book, dataset: str, new: Grant, people: Sketch | None, other_people: str | None) -> Grant:
    """The grant with what vouches for its sketch, if the people in it have no other budget: BudgetError."""
    known = _known_people(book, new.data)  # which is of this data set: data have one name
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
    spent = spent_in(book, dataset)
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
    """What will be spent of ``dataset`` together with ``charge``, if the grant covers that."""
    granted = require_grant(book, dataset)
    if asked["data"] != granted.data:
        raise BudgetError(text.data_changed(dataset))
    if relation_unit(asked["relation"]) != relation_unit(granted.relation):
        raise BudgetError(
            text.other_relation(dataset, relation_unit(granted.relation), relation_unit(asked["relation"]))
        )
    spent = spent_in(book, dataset)
    if not (spent + charge).within(granted.budget):
        remaining = askable_epsilon(spent, granted.budget)
        raise BudgetError(text.exceeded(dataset, granted.budget, spent, charge, remaining))
    return spent + charge


def _reservation(book: Book, run_id: str, step: int | None = None) -> LedgerEntry:
    """The entry that lets ``run_id`` make its release ``step``."""
    reserved = book.last(run_id=run_id, kind="reserve")
    if reserved is None:
        raise RefusedError(text.no_run(run_id))
    releases = reserved.content["releases"]
    if step is not None and not 1 <= step <= releases:
        raise RefusedError(text.not_reserved(run_id, step, releases))
    return reserved
