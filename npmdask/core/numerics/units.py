"""Times, sizes and options as people write them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from npmdask.errors import BadInputError, closest, require, wrong_value

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


def grid_of(given: str) -> tuple[int, int]:
    """Read the rows and columns of the images that columns are, given like 28x28.

    Raises
    ------
    BadInputError
        They are not given so.
    """
    rows, _, columns = given.lower().partition("x")
    if not (rows.isdecimal() and columns.isdecimal() and int(rows) and int(columns)):
        raise BadInputError(f"grid {given}: give rows x columns, like 28x28")
    return int(rows), int(columns)


# Sizes as people write them.


def bytes_text(n: float) -> str:
    """Write a number of bytes for people.

    Examples
    --------
    >>> bytes_text(3 * 2**20)
    '3 MiB'
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n < 1024:
            return f"{n:.3g} {unit}"
        n /= 1024
    return f"{n:.3g} TiB"


def parse_memory(text: str | int | None, name: str = "memory") -> int | None:
    """Bytes from ``"1GiB"``, ``"512 MB"`` or a number; ``name``: what it was given as.

    Raises
    ------
    BadInputError
        Not a size.
    """
    if text is None:
        return None
    from pydantic import ByteSize, TypeAdapter, ValidationError  # as in ``from_table``

    try:
        size = int(TypeAdapter(ByteSize).validate_python(text))
    except ValidationError:
        raise BadInputError(f"{name} = {text!r} is not a size; write it like '1GiB' or '512MB'") from None
    require(size > 0, f"{name} = {text!r} must be larger than 0")
    if isinstance(text, str) and text.strip().isdigit() and size < 2**20:
        raise BadInputError(f"{name} = {text!r} is {size} bytes: give a unit, like '{size}GiB'")
    return size


def attributes(of: object, *names: str) -> dict[str, Any]:
    """Return some attributes, by name."""
    return {name: getattr(of, name) for name in names}


# Options that a person wrote, as fields of a dataclass: types are not guessed, and every error is a sentence.


def from_table(name: str, kind: type[Any], values: Mapping[str, Any]) -> Any:
    """``kind(**values)``; ``name`` is what it is called in an error.

    Raises
    ------
    BadInputError
        A value of another type, or what the class itself refuses.
    """
    from pydantic import TypeAdapter, ValidationError  # a tenth of a second that most runs do not need

    try:
        # As JSON, because a dictionary is no dataclass to the strict rules that let no "3" through for a 3.
        return TypeAdapter(kind).validate_json(json.dumps(dict(values), default=repr), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        if not first["loc"]:  # what the class itself says of all of them
            raise BadInputError(f"{name}: {wrong_value(first)}") from None
        at = ".".join(str(part) for part in first["loc"])
        raise BadInputError(f"{name} option {at} = {first['input']!r}: {wrong_value(first)}") from None


def options_from(name: str, kind: type[Any], options: Mapping[str, Any] | None) -> Any:
    """The ``options`` of ``name`` as what they are for; one that there is not is refused, too."""
    known = list(kind.__dataclass_fields__)
    for option in options or {}:
        if option not in known:
            raise BadInputError(f"unknown option {option!r} of {name}: {closest(option, known)}")
    return from_table(name, kind, options or {})
