"""Sizes as people write them."""

from __future__ import annotations

from pydantic import ByteSize, TypeAdapter, ValidationError

from npmdask.errors import BadInputError


def parse_memory(text: str | int | None) -> int | None:
    """Bytes from ``"1GiB"``, ``"512 MB"`` or a number.

    Raises
    ------
    BadInputError
        Not a size.
    """
    if text is None:
        return None
    try:
        size = int(TypeAdapter(ByteSize).validate_python(text))
    except ValidationError:
        raise BadInputError(f"memory = {text!r} is not a size; write it like '1GiB' or '512MB'") from None
    if size <= 0:
        raise BadInputError(f"memory = {text!r} must be more than nothing")
    return size
