"""A store belongs to one problem: bound when it is new, checked ever after."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from npmdask.checkpoint import RunStore
from npmdask.environment import environment
from npmdask.problem import Problem, require_same
from npmdask.solution import Resources


def bind(problem: Problem, store: RunStore, resources: Resources) -> list[str]:
    """Bind a new store to this problem, or check that it is the same one. Returns what should be known.

    Raises
    ------
    RefusedError
        The store belongs to other data, parameters or version.
    """
    spec = store.read_spec()
    here: dict[str, Any] = {"resources": asdict(resources)}
    if spec is None:
        here |= {"source": problem.source.path, "environment": environment()}
        store.write_spec(problem.spec() | here)
        return []
    require_same(problem, spec, str(store.path))
    if problem.nodes is not None:  # the same nodes may have moved
        here["source"] = problem.source.path
    if any(spec.get(name) != value for name, value in here.items()):
        store.write_spec(spec | here)
    before = spec.get("environment", {})
    return [
        f"{name} was {before.get(name)!r} when this run began and is {value!r} now: the result is as accurate, but its "
        "last bits may differ from an undisturbed run's"
        for name, value in environment().items()
        if before.get(name) != value
    ]
