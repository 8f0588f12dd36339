"""Schema of the JSON of a run store: types of the keys of each table, checked where a store is opened.

A store may come from another person, or be damaged. A table that one kind of run has is registered by who writes it;
a key that no table names is not looked at (an outside package's, or a later version's, which the identity of the run
finds). Bounds between keys are for who uses them.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

from annotated_types import Ge, MinLen  # pydantic's, which it needs

from npmdask.core import features
from npmdask.core.storage.kinds import KINDS, traits_of
from npmdask.core.storage.paths import Facts, facts_in

Schema = TypeVar("Schema")
REQUIRED = ("data", "algorithm", "mechanism", "stop", "run", "version")
TABLES: dict[str, Any] = {  # by name: types by key, a dataclass, or a type
    "data": {
        "kind": str,
        "fingerprint": str | None,
        "shape": Annotated[list[Annotated[int, Ge(0)]], MinLen(1)],
        "dtype": str,
        "center": bool,
        "scale": bool,
        "columns": int | list[int],
        "missing": str,
        "missing_limit": float | None,
        "missing_values": list[float],
    },
    "algorithm": {
        "name": str,
        "target_rank": int | float | Literal["auto"],
        "iteration_rank": int | None,
        "share": float | Literal["auto"] | None,
        "options": dict[str, Any] | None,
        "seed": int,
    },
    "mechanism": {"mechanism": str, "private": bool, "stddev": float},
    "stop": {
        "max_steps": int | None,
        "tol": float | None,
        "low_rank_tol": float | None,
        "until_share": float | None,
        "matrix_tol": float,
        "pairs_tol": float,
        "tensor_tol": float,
    },
    "run": {"seed": int, "deflates": str | None, "starts_from": str | None, "random_columns": int},
    "version": {"npmdask": str, "checkpoint_format": int, "aspects": list[str]},
    "environment": dict.fromkeys(("numpy", "blas", "machine", "device", "library"), str),
    "source": str | None,
    "other_source": str | None,
    "dim": str | None,
    "release_id": str,
    **{name: {} for name in ("lens", "operator", "weights")},
}
BESIDE = ("resources", "environment", "report", "stream")  # tables of run.json that are no part of what a run is
OWN = frozenset((*TABLES, *BESIDE, "notes", "budget"))  # what the core knows of run.json
# Keys of what a bundle says beside its arrays (guarded by a checksum), and of lines of the telemetry (not guarded).
META: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("outcome", "state", "model", "statement", "position", "measures"), dict),
    **dict.fromkeys(("history", "notes", "warnings", "parts"), list),
    "certificate": (dict, type(None)),
    "assurance": str,
    "total_data_passes": int,
    "explained_share": (float, int, type(None)),
}
OUTCOME = {"name", "sentence"}
LINE: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("limit", "residual", "steps", "threads"), (float, int, type(None))),
    **dict.fromkeys(
        "base bytes bytes_resumed components new_rows peak_rss places predicted_peak rank rows rss seconds state tasks "
        "time workers".split(),
        (float, int),
    ),
    **dict.fromkeys(("event", "label", "sentence"), str),
    "processes": list,
}
VALID: deque[tuple[bytes, int]] = deque(maxlen=64)  # texts of run.json that were checked by so many, or written here


def is_protected(spec: Mapping[str, Any]) -> bool:
    """Say whether noise protects the people in the data of a run, here or at nodes, by its run.json."""
    return bool(spec.get("mechanism", {}).get("private"))


def is_public(spec: Mapping[str, Any]) -> bool:
    """Say whether more than its answer may be told of a run: its errors, how many rows it read, their scores."""
    return not is_protected(spec) and not any(features.withholds(table) for table in spec if table not in OWN)


def is_of_rows(spec: Mapping[str, Any]) -> bool:
    """Say whether a run found components of the rows of its data, and not of an operator that was made of them."""
    return traits_of(spec["data"].get("kind")).of_rows and "lens" not in spec


def known_keys() -> int:
    """Count what is registered: a text is checked again when there is more to check."""
    return sum(len(schema) if isinstance(schema, dict) else 1 for schema in TABLES.values())


def table(name: str) -> Callable[[type[Schema]], type[Schema]]:
    """Register a dataclass as the schema of a table of run.json, which has its fields and no others.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> from npmdask.core.checkpoint.schema import TABLES, table
    >>> @table("rooms")
    ... @dataclass(frozen=True)
    ... class Rooms:
    ...     floor: int
    >>> TABLES.pop("rooms") is Rooms
    True
    """

    def register(schema: type[Schema]) -> type[Schema]:
        TABLES[name] = schema
        return schema

    return register


@cache
def _adapter(wanted: Any) -> Any:
    from pydantic import TypeAdapter  # a tenth of a second, which a run in memory does not spend

    return TypeAdapter(wanted)


def _require_type(value: Any, wanted: Any, name: str) -> None:
    from pydantic import ValidationError

    try:
        _adapter(wanted).validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        raise ValueError(f"{name}: {error.errors()[0]['msg']}") from None


def _require(found: Any, schema: Any, name: str) -> None:
    if not is_dataclass(schema) and not isinstance(schema, dict):
        return _require_type(found, schema, name)
    types: dict[str, Any] = get_type_hints(schema) if is_dataclass(schema) else schema
    if not isinstance(found, dict):
        raise ValueError(f"{name} is not a table")
    if is_dataclass(schema):
        needed = {f.name for f in fields(schema) if f.default is MISSING and f.default_factory is MISSING}
        if wrong := [*sorted(found.keys() - types.keys()), *sorted(needed - found.keys())]:
            raise ValueError(f"{name}.{wrong[0]} is {'unknown' if wrong[0] in found else 'missing'}")
    for key in found.keys() & types.keys():
        _require(found[key], types[key], f"{name}.{key}")


def conforms(found: Mapping[str, Any], types: Mapping[str, type | tuple[type, ...]]) -> bool:
    """Say whether the facts of a bundle, or a line of the telemetry, have the types that npmdask writes."""
    if not all(isinstance(found[name], types[name]) for name in found.keys() & types.keys()):
        return False
    if types is not META:
        return True
    ended = found.get("outcome", dict.fromkeys(OUTCOME, ""))
    return all(isinstance(step, dict) for step in found.get("history", ())) and (
        ended.keys() == OUTCOME and all(isinstance(said, str) for said in ended.values())
    )


def checked_spec(data: bytes) -> Facts:
    """Parse the text of a run.json.

    Raises
    ------
    ValueError
        It is not JSON, a table is missing, or a key is not of its type.
    """
    spec = facts_in(data)
    if (data, known_keys()) in VALID:
        return Facts(spec)
    if not isinstance(spec, dict) or not all(isinstance(spec.get(name), dict) for name in REQUIRED):
        raise ValueError("tables are missing")
    kind = spec["data"].get("kind")
    more = {} if kind in KINDS else getattr(features.found("kinds", str(kind)), "tables", {})
    for name in spec:
        schema = TABLES.get(name) or features.found("tables", name)
        if schema is not None:
            _require(spec[name], schema | more[name] if name in more else schema, name)
    VALID.append((data, known_keys()))
    return Facts(spec)
