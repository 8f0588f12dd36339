"""A store belongs to one problem: bound when it is new, checked ever after."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from npmdask.checkpoint.store import RunStore
from npmdask.errors import RefusedError
from npmdask.execution.environment import environment
from npmdask.privacy.request import unprotected
from npmdask.runs.problem import Problem
from npmdask.runs.solution import Resources


def bind(problem: Problem, store: RunStore, resources: Resources) -> list[str]:
    """Bind a new store to this problem, or check that it is the same one. Returns what should be known.

    Raises
    ------
    RefusedError
        The store belongs to other data, parameters or version.
    """
    moves = {} if problem.nodes is None else {"source": problem.source.path}  # the same nodes may have moved
    budget = None if problem.private is not None else problem.source.budget
    once = {"source": problem.source.path} | ({} if budget is None else {"budget": budget})
    told = bind_spec(problem.spec(), store, {"resources": asdict(resources)} | moves, once=once)
    return [*unprotected(budget), *told]


def bind_spec(wanted: dict[str, Any], store: RunStore, here: dict[str, Any], *, once: dict[str, Any]) -> list[str]:
    """The same for the parameters ``wanted``. ``here``: facts beside them that may change from call to call; ``once``:
    those that are kept as they were when the run began.

    Raises
    ------
    RefusedError
        The store belongs to other data, parameters or version.
    """
    spec = store.read_spec()
    if spec is None:
        store.write_spec(wanted | here | once | {"environment": environment()})
        return []
    _require_same(wanted, spec, store.place)
    if any(spec.get(name) != value for name, value in here.items()):
        store.write_spec(spec | here)
    before = spec.get("environment", {})
    return [
        f"{name} was {before.get(name)!r} when this run began and is {value!r} now: the result is as accurate, but its "
        "last bits may differ from an undisturbed run's"
        for name, value in environment().items()
        if before.get(name) != value
    ]


def _require_same(wanted: dict[str, Any], found: dict[str, Any], store: str) -> None:
    """Refuse a checkpoint that was made from something else, naming every field that differs.

    Raises
    ------
    RefusedError
        Other data, other parameters or another version.
    """
    differences = []
    for table, fields in wanted.items():
        for name, value in fields.items():
            held = found.get(table, {}).get(name)
            if held != value:
                differences.append(f"{table}.{name} ({held!r} in the checkpoint, {value!r} now)")
    for name in set(found.get("mechanism", {})) - set(wanted["mechanism"]):
        differences.append(f"mechanism.{name}")
    if differences:
        hint = ""
        if wanted["data"]["fingerprint"] != found.get("data", {}).get("fingerprint"):
            hint = " (of a plain store, times count too; ingest data that move)"
        remedy = "`npmdask resume STORE` to go on with the old parameters"
        if wanted["version"] != found.get("version"):
            remedy = f"npmdask {found.get('version', {}).get('npmdask')} to go on with this one"
        raise RefusedError(
            f"the checkpoint in {store} belongs to another run; these differ: {'; '.join(differences)}{hint}. Use "
            f"another store, or {remedy}"
        )
