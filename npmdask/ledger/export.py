"""The book as JSON lines, for a reviewer: everything that the chain is made of, and nothing that is secret.

An export is a prefix of every later one, byte for byte, so that one that was kept elsewhere shows whether anything
before it was changed since, by whomever. Fingerprints, clock, process and host are not in it (see ``chain``).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import npmdask.privacy.ledger.messages as text
from npmdask.errors import RefusedError
from npmdask.ledger.chain import GENESIS, Entry, canonical
from npmdask.privacy.ledger.ledger import Ledger


def export_lines(ledger: Ledger) -> Iterator[str]:
    """One line of JSON an entry, oldest first; the book is verified before the first."""
    for entry in ledger.entries():
        yield canonical({name: value for name, value in vars(entry).items() if name != "witness"})


def require_whole_export(lines: Iterable[str], name: str | Path = "the export") -> int:
    """Check the chain of an export without its ledger; returns the number of entries.

    Raises
    ------
    RefusedError
        A line was changed, removed from the middle, or put in.
    """
    number, previous = 0, GENESIS
    for line in lines:
        try:
            entry = Entry(witness={}, **json.loads(line))
            whole = (entry.number, entry.previous, entry.computed_hash()) == (number + 1, previous, entry.hash)
        except (ValueError, TypeError):
            whole = False
        if not whole:
            raise RefusedError(text.damaged(str(name), f"line {number + 1} does not follow the one before it"))
        number, previous = entry.number, entry.hash
    return number
