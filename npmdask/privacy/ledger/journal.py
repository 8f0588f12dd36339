"""The entries inside one transaction: read, checked, appended. Knows nothing of budgets."""

from __future__ import annotations

import json
import os
import secrets
import socket
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

import npmdask.privacy.ledger.messages as text
from npmdask.errors import RefusedError
from npmdask.ledger.chain import GENESIS, Entry, canonical, keyed
from npmdask.ledger.schema import ENTRIES, LEDGER, METADATA, READABLE, SKETCHES, VERSION


def make_tables(connection: sa.Connection) -> None:
    """Make an empty book; part of the transaction that writes its first entry."""
    METADATA.create_all(connection)
    row = {"id": 1, "version": VERSION, "key": secrets.token_hex(32), "entries": 0, "head": GENESIS}
    connection.execute(sa.insert(LEDGER).values(row))


def open_book(connection: sa.Connection, where: str, *, lock: bool) -> Book:
    """Find the end of the book; with ``lock``, nobody else can until this transaction is over.

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
        """What stands for the data in the book: equal for equal fingerprints, and it gives none away."""
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
        if self._packed(data) is None:
            self._connection.execute(sa.insert(SKETCHES).values(data=data, sketch=packed))
        return self._vouch(packed)

    def sketch(self, data: str, vouched: str) -> bytes:
        """The sketch of ``data``; RefusedError if it is not the one that the chain vouches for."""
        packed = self._packed(data)
        self.require(packed is not None and self._vouch(packed) == vouched, "the sketch of a data set was changed")
        assert packed is not None
        return packed

    def _packed(self, data: str) -> bytes | None:
        found = self._connection.execute(sa.select(SKETCHES.c.sketch).where(SKETCHES.c.data == data)).scalar()
        return None if found is None else bytes(found)

    def _vouch(self, packed: bytes) -> str:
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

    def entries(self, **where: Any) -> Iterator[Entry]:
        """Those that match, oldest first, each checked against its own hash."""
        for row in self._connection.execute(_matching(where).order_by(ENTRIES.c.number)):
            yield self._checked(row)

    def last(self, **where: Any) -> Entry | None:
        """The newest that matches, or None."""
        query = _matching(where).order_by(ENTRIES.c.number.desc()).limit(1)
        row = self._connection.execute(query).one_or_none()
        return None if row is None else self._checked(row)

    def append(
        self, dataset: str, kind: str, content: dict[str, Any], run_id: str | None = None, step: int = 0
    ) -> Entry:
        """Write one entry at the end."""
        witness = {"time": datetime.now(UTC).isoformat(timespec="seconds"), "pid": os.getpid(), "host": _host()}
        entry = Entry(
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

    def _checked(self, row: Any) -> Entry:
        try:
            fields = row._asdict() | {"content": json.loads(row.content), "witness": json.loads(row.witness)}
            entry = Entry(**fields)
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
