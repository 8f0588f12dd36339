"""Times as people write and read them."""

from __future__ import annotations

import re

from npmdask.errors import BadInputError

SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def parse_duration(text: str) -> float:
    """Seconds from "30d", "12h", "90m", "2w" or "45s".

    Raises
    ------
    BadInputError
        Not a time.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smhdw])\s*", text)
    if found is None:
        raise BadInputError(f"{text!r} is not a time; write it like '30d', '12h' or '2w' (s, m, h, d, w)")
    return float(found[1]) * SECONDS[found[2]]


def time_text(seconds: float) -> str:
    """A time for people."""
    if seconds < 120:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    if seconds < 48 * 3600:
        return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.1f} hours"
    return f"{seconds / 86400:.0f} days"
