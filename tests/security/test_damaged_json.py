"""JSON of run stores that is damaged, or that no npmdask wrote: a sentence from every command, never a traceback.

Ten parts of some fifty commands each (`make full`), of which `make test` runs one. The goldens (tests/goldens) are the
stores; that they are read as they are is what their own tests say.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from npmdask.core.checkpoint.schema import checked_spec
from tests.conftest import often
from tests.goldens.kinds import KINDS
from tests.security.test_strangers import FIXTURES, all_commands, sent, sources

__all__ = ["sent", "sources"]  # fixtures

UNGUARDED = ("run.json", "telemetry.jsonl", "starts.json", "epoch", "ledger.json")
WRONG = (
    None,
    True,
    -1,
    0,
    3,
    10**30,
    1.5,
    -2.5,
    float("nan"),
    "",
    "x",
    "\x1b[2J",
    [],
    [1],
    [-3, 4],
    ["a"],
    {},
    {"a": 1},
)
NAMES = [name for name in KINDS if (FIXTURES / f"{name}.finished.tar.gz").exists() and not name.startswith("federated")]
DROPPED = object()


def places_in(found: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value in parsed JSON; of lists the first three."""
    yield path
    inner = found.items() if isinstance(found, dict) else enumerate(found[:3]) if isinstance(found, list) else ()
    for key, value in inner:
        yield from places_in(value, (*path, key))


def damaged(text: str, draw: random.Random) -> str:
    """JSON with one value, somewhere, that is another one or gone; or text that was cut."""
    if draw.random() < 0.1:
        return text[: draw.randrange(len(text) + 1)]
    found = json.loads(text)
    path = draw.choice(list(places_in(found)))
    value = DROPPED if draw.random() < 0.2 else draw.choice(WRONG)
    if not path:
        return json.dumps(None if value is DROPPED else value)
    inner = found
    for key in path[:-1]:
        inner = inner[key]
    if value is DROPPED:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return json.dumps(found)


@pytest.mark.slow
@pytest.mark.parametrize("part", often(range(10), 0))
def test_no_damage_ends_in_a_traceback(part: int, sent: Any) -> None:
    draw = random.Random(part)
    for number in range(10):
        store = sent(draw.choice(NAMES), draw.choice(["finished", "interrupted"]), f"-{number}")
        files = [store / name for name in UNGUARDED if (store / name).is_file()]
        if not files:
            continue
        file = files[0] if draw.random() < 0.7 else draw.choice(files)
        lines = file.read_text().splitlines() if file.suffix == ".jsonl" else [file.read_text()]
        place = draw.randrange(len(lines))
        lines[place] = damaged(lines[place], draw)
        file.write_text("\n".join(lines) + "\n")
        for name, code, said in all_commands(store):
            assert code in (0, 2, 3, 4) and "\x1b" not in said, (store, file.name, lines[place], name, said)


def test_a_table_is_held_to_its_types() -> None:
    spec: dict[str, Any] = {name: {} for name in ("data", "algorithm", "mechanism", "stop", "run", "version")}
    assert checked_spec(json.dumps(spec).encode()) == spec
    for table, key, value in (("stop", "tol", "x"), ("data", "shape", 3), ("data", "shape", []), ("run", "seed", 1.5)):
        wrong = {**spec, table: {key: value}}
        with pytest.raises(ValueError, match=f"{table}.{key}"):
            checked_spec(json.dumps(wrong).encode())
    for resources in ({"rooms": 3}, {"memory": "x"}, []):
        with pytest.raises(ValueError, match="resources"):
            checked_spec(json.dumps(spec | {"resources": resources}).encode())
    assert (
        checked_spec(json.dumps(spec | {"resources": {"workers": 2}, "of_a_package": 3}).encode())["of_a_package"] == 3
    )
