"""An entry and its hash: each one is bound to all before it.

What is hashed is what is exported, so that a reader of an export can check the chain without the database. Two things
may not be readable there: the fingerprint of the data (whoever knows all records but one can compute the fingerprint of
each candidate and compare) and clock, process and host (the seconds between two entries are the time of a pass, which
the data may influence). Both are in the chain as HMAC-SHA256 under a key that stays in the database.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from dataclasses import dataclass
from typing import Any

GENESIS = "0" * 64


def canonical(value: Any) -> str:
    """JSON with one spelling: equal values have equal text, floats are exact."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def keyed(key: str, purpose: str, text: str) -> str:
    """A pseudonym of ``text``: without ``key`` (hex) it says nothing, not even to who can guess ``text``."""
    return hmac.new(bytes.fromhex(key), canonical([purpose, text]).encode(), hashlib.sha256).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Entry:
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
        """What ``hash`` must be."""
        parts = [self.previous, self.number, self.dataset, self.kind, self.run_id, self.step, self.content, self.seal]
        return hashlib.sha256(canonical(parts).encode()).hexdigest()
