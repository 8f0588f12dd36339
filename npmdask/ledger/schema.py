"""The tables: one row that says where the book ends, and the entries, which are only ever appended; and sketches.

Everything that is known (grants, what was spent, which release was begun) is read off the entries: there is no
second place that could disagree with them. The uniqueness of (run, kind, step) and of the entry's number is kept by
the database too, so that even a writer without the lock could not write the same thing twice.

Sketches of records (version 2) are too long for the chain and too telling for an export: they lie in a table of their
own, and the grant holds the keyed hash of its own one. A book of version 1 is read, and runs write to it, as it is; the
first grant makes it one of version 2.
"""

from __future__ import annotations

import sqlalchemy as sa

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
