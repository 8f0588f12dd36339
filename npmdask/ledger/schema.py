"""The two tables: one row that says where the book ends, and the entries, which are only ever appended.

Everything that is known (grants, what was spent, which release was begun) is read off the entries: there is no
second place that could disagree with them. The uniqueness of (run, kind, step) and of the entry's number is kept by
the database too, so that even a writer without the lock could not write the same thing twice.
"""

from __future__ import annotations

import sqlalchemy as sa

VERSION = 1

METADATA = sa.MetaData()

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
