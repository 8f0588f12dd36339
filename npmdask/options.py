"""Options that a person wrote, as fields of a dataclass: types are not guessed, and every error is a sentence."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from npmdask.errors import BadInputError


def built(name: str, kind: type[Any], values: Mapping[str, Any]) -> Any:
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
            raise BadInputError(f"{name}: {first['msg'].removeprefix('Value error, ')}") from None
        at = ".".join(str(part) for part in first["loc"])
        raise BadInputError(f"{name} option {at} = {first['input']!r}: {first['msg']}") from None
