"""The entries inside one transaction: read, checked, appended. Knows nothing of budgets."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import socket
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import npmdask.ledger.messages as text
from npmdask.errors import RefusedError, extra

with extra("private"):
    import sqlalchemy as sa

# An entry and its hash: each one is bound to all before it.
#
# What is hashed is what is exported, so that a reader of an export can check the chain without the database. Two things
# may not be readable there: the fingerprint of the data (who knows all records but one can compute the fingerprint
# of each candidate and compare) and clock, process and host (the seconds between two entries are the time of a pass,
# which the data may influence). Both are in the chain as HMAC-SHA256 under a key that stays in the database.

GENESIS = "0" * 64


def canonical(value: Any) -> str:
    """JSON with one spelling: equal values have equal text, floats are exact."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def keyed(key: str, purpose: str, text: str) -> str:
    """A pseudonym of ``text``: without ``key`` (hex) it says nothing, not even to who can guess ``text``."""
    return hmac.new(bytes.fromhex(key), canonical([purpose, text]).encode(), hashlib.sha256).hexdigest()


@dataclass(frozen=True, kw_only=True)
class LedgerEntry:
    """One line of the book. ``witness`` (time, pid, host) is empty in an entry that was read from an export."""

    number: int
    dataset: str
    kind: str
    run_id: str | None
    step: int
    content: dict[str, Any]
    seal: str
    previous: str
    hash: str = ""
    witness: dict[str, Any]

    def computed_hash(self) -> str:
        """Compute what ``hash`` must be."""
        parts = [self.previous, self.number, self.dataset, self.kind, self.run_id, self.step, self.content, self.seal]
        return hashlib.sha256(canonical(parts).encode()).hexdigest()


# The tables: one row that says where the book ends, and the entries, which are only ever appended; and sketches.
#
# Everything that is known (grants, what was spent, which release was begun) is read off the entries: there is no
# second place that could disagree with them. The uniqueness of (run, kind, step) and of the entry's number is kept by
# the database too, so that even a writer without the lock could not write the same thing twice.
#
# Sketches of records (version 2) are too long for the chain and too telling for an export: they lie in a table of their
# own, and the grant holds the keyed hash of its own one. A book of version 1 is read, and runs write to it, as it is;
# the first grant makes it one of version 2.

VERSION = 2
READABLE = (1, 2)

METADATA = sa.MetaData()

SKETCHES = sa.Table(
    "npmdask_ledger_sketches",
    METADATA,
    sa.Column("data", sa.String(64), primary_key=True),  # the pseudonym of the data in the entries
    sa.Column("sketch", sa.LargeBinary, nullable=False),
)

LEDGER = sa.Table(
    "npmdask_ledger",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),  # always 1: the row that writers lock
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("key", sa.String(64), nullable=False),  # secret: under it fingerprints and witnesses are hashed
    sa.Column("entries", sa.BigInteger, nullable=False),
    sa.Column("head", sa.String(64), nullable=False),  # hash of the last entry
)

ENTRIES = sa.Table(
    "npmdask_ledger_entries",
    METADATA,
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),  # 1, 2, 3, ... without a gap
    sa.Column("dataset", sa.Text, nullable=False),
    sa.Column("kind", sa.String(16), nullable=False),  # grant, reserve, begin, commit, finish
    sa.Column("run_id", sa.Text),  # null for a grant
    sa.Column("step", sa.Integer, nullable=False),  # 0 where there is none
    sa.Column("content", sa.Text, nullable=False),  # canonical JSON
    sa.Column("witness", sa.Text, nullable=False),  # time, pid, host: for people, never exported
    sa.Column("seal", sa.String(64), nullable=False),  # keyed hash of the witness
    sa.Column("previous", sa.String(64), nullable=False),
    sa.Column("hash", sa.String(64), nullable=False),
    sa.UniqueConstraint("run_id", "kind", "step", name="npmdask_ledger_once"),
    sa.Index("npmdask_ledger_by_dataset", "dataset", "number"),
)


def make_tables(connection: sa.Connection) -> None:
    """Make an empty book; part of the transaction that writes its first entry."""
    METADATA.create_all(connection)
    row = {"id": 1, "version": VERSION, "key": secrets.token_hex(32), "entries": 0, "head": GENESIS}
    connection.execute(sa.insert(LEDGER).values(row))


def open_book(connection: sa.Connection, where: str, *, lock: bool) -> Book:
    """Find the end of the book; with ``lock``, no other process can until this transaction is over.

    Raises
    ------
    RefusedError
        Of another version, or its last entry is not the one that it ends with.
    """
    select = sa.select(LEDGER).where(LEDGER.c.id == 1)
    if lock:
        select = select.with_for_update()  # SQLite has no such clause: BEGIN IMMEDIATE holds the whole file
    row = connection.execute(select).one_or_none()
    if row is None:
        raise RefusedError(text.damaged(where, "its first row is missing"))
    if row.version not in READABLE:
        raise RefusedError(text.other_version(where, row.version, VERSION))
    book = Book(connection, where, row)
    book.require_end()
    return book


class Book:
    """The entries as one transaction sees them."""

    def __init__(self, connection: sa.Connection, where: str, row: Any) -> None:
        self._connection = connection
        self._where = where
        self._key, self._version = str(row.key), int(row.version)
        self.count = int(row.entries)
        self.head = str(row.head)

    def __repr__(self) -> str:
        return f"Book({self._where}, {self.count} entries)"

    def mark(self, fingerprint: str) -> str:
        """Return the mark of the data in the book: equal for equal fingerprints, and it gives none away."""
        return keyed(self._key, "data", fingerprint)

    @property
    def people_key(self) -> bytes:
        """The key of sketches, as secret as the book."""
        return bytes.fromhex(keyed(self._key, "people", "sketch"))

    def keep_sketch(self, data: str, packed: bytes) -> str:
        """Keep the sketch of ``data``, once; returns its keyed hash, which is for the chain."""
        if self._version < VERSION:
            METADATA.create_all(self._connection)
            self._connection.execute(sa.update(LEDGER).values(version=VERSION))
            self._version = VERSION
        if self._packed_sketch(data) is None:
            self._connection.execute(sa.insert(SKETCHES).values(data=data, sketch=packed))
        return self._sketch_mac(packed)

    def sketch(self, data: str, vouched: str) -> bytes:
        """The sketch of ``data``; RefusedError if it is not the one that the chain vouches for."""
        packed = self._packed_sketch(data)
        self.require(packed is not None and self._sketch_mac(packed) == vouched, "the sketch of a data set was changed")
        assert packed is not None
        return packed

    def _packed_sketch(self, data: str) -> bytes | None:
        found = self._connection.execute(sa.select(SKETCHES.c.sketch).where(SKETCHES.c.data == data)).scalar()
        return None if found is None else bytes(found)

    def _sketch_mac(self, packed: bytes) -> str:
        return keyed(self._key, "people", packed.hex())

    def require(self, holds: bool, what: str) -> None:
        """Refuse where the entries contradict each other."""
        if not holds:
            raise RefusedError(text.damaged(self._where, what))

    def require_end(self) -> None:
        """The last entry must be the one that the book ends with."""
        last = self.last()
        found = (last.number, last.hash) if last else (0, GENESIS)
        self.require(found == (self.count, self.head), "its last entry is not the one that it ends with")

    def entries(self, **where: Any) -> Iterator[LedgerEntry]:
        """Those that match, oldest first, each checked against its own hash."""
        for row in self._connection.execute(_matching(where).order_by(ENTRIES.c.number)):
            yield self._checked(row)

    def last(self, **where: Any) -> LedgerEntry | None:
        """The newest that matches, or None."""
        query = _matching(where).order_by(ENTRIES.c.number.desc()).limit(1)
        row = self._connection.execute(query).one_or_none()
        return None if row is None else self._checked(row)

    def append(
        self, dataset: str, kind: str, content: dict[str, Any], run_id: str | None = None, step: int = 0
    ) -> LedgerEntry:
        """Write one entry at the end."""
        witness = {"time": datetime.now(UTC).isoformat(timespec="seconds"), "pid": os.getpid(), "host": _host()}
        entry = LedgerEntry(
            number=self.count + 1,
            dataset=dataset,
            kind=kind,
            run_id=run_id,
            step=step,
            content=json.loads(canonical(content)),
            witness=witness,
            seal=keyed(self._key, "witness", f"{self.count + 1} {canonical(witness)}"),
            previous=self.head,
        )
        entry = replace(entry, hash=entry.computed_hash())
        row = vars(entry) | {"content": canonical(entry.content), "witness": canonical(witness)}
        self._connection.execute(sa.insert(ENTRIES).values(row))
        self._connection.execute(sa.update(LEDGER).values(entries=entry.number, head=entry.hash))
        self.count, self.head = entry.number, entry.hash
        return entry

    def require_whole(self) -> None:
        """Walk the chain from the first entry.

        Raises
        ------
        RefusedError
            An entry was changed, removed or put in by anything else than this module.
        """
        number, previous = 0, GENESIS
        for entry in self.entries():
            follows = (entry.number, entry.previous) == (number + 1, previous)
            self.require(follows, f"entry {entry.number} does not follow entry {number}")
            number, previous = entry.number, entry.hash
        self.require_end()

    def _checked(self, row: Any) -> LedgerEntry:
        try:
            fields = row._asdict() | {"content": json.loads(row.content), "witness": json.loads(row.witness)}
            entry = LedgerEntry(**fields)
            sealed = keyed(self._key, "witness", f"{entry.number} {canonical(entry.witness)}")
            if (entry.hash, entry.seal) == (entry.computed_hash(), sealed):
                return entry
        except (ValueError, TypeError):
            pass
        raise RefusedError(text.damaged(self._where, f"entry {row.number} was changed"))


def _matching(where: dict[str, Any]) -> sa.Select[Any]:
    return sa.select(ENTRIES).where(*(ENTRIES.c[name] == value for name, value in where.items()))


def _host() -> str:
    return socket.gethostname()
