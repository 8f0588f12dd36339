"""Kinds of runs: what ``npmdask.resume`` asks of a store, and which kind that is, by its run.json.

A run over stored data is the core's; features have theirs in the table ``kinds``, and a plug-in may register its own.
What commands ask besides is in :mod:`npmdask.manage.kinds`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from npmdask.core import features
from npmdask.core.checkpoint.schema import is_of_rows, is_public
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.numerics.units import parse_memory
from npmdask.core.runs.build import make_problem
from npmdask.core.runs.driver import drive
from npmdask.core.runs.left_vectors import left_is_whole
from npmdask.core.runs.observers import Observer
from npmdask.core.runs.problem import Problem
from npmdask.core.runs.resources import Resources, memory_for, needs_of, require_device
from npmdask.core.runs.restore import DataGoneError, problem_of, require_same_run, resources_of, solution_of
from npmdask.core.runs.solution import Solution
from npmdask.core.storage.kinds import KINDS as DATA_KINDS
from npmdask.errors import BadInputError, RefusedError

Spec = Mapping[str, Any]

STOP = ("max_steps", "tol", "low_rank_tol")  # decide when a run stops, not what its steps are
PRESENTED = "presentation"  # the part of a store that is made of the answer


class Resumable:
    """A kind of run, as far as it is gone on with.

    ``name``: of its data. ``may_change``: arguments of ``npmdask.resume`` that it takes. ``staged``: its answer comes
    from runs in folders below its own, so that it is not deflated. ``tables``: types of the keys that its run.json has
    beyond those of all.
    """

    name = ""
    may_change: frozenset[str] = frozenset()
    staged = False
    tables: Mapping[str, Mapping[str, Any]] = {}

    def matches(self, spec: Spec) -> bool:
        """Say whether a store whose run.json holds ``spec`` is of this kind: its data are."""
        return bool(spec.get("data", {}).get("kind") == self.name)

    def refusal(self, store: Path) -> str:
        """Say why ``npmdask.resume`` takes only ``may_change``."""
        return f"{store} is a run of kind {self.name}: only {', '.join(sorted(self.may_change))} may be given"

    def resume(self, store: Path, changes: Mapping[str, Any], observer: Observer | None) -> Any:
        """Go on with the run in ``store`` from its last commit. ``changes``: what was given, of ``may_change``."""
        raise NotImplementedError


class StoredRun(Resumable):
    """A run over a stored matrix or tensor; also a private or a federated one. ``name``: "search" for a share."""

    may_change = frozenset(
        {"memory", "workers", "threads", "cluster", "certificates", "device", "device_memory", *STOP}
    )

    def __init__(self, name: str = "matrix") -> None:
        self.name = name

    def resume(self, store: Path, changes: Mapping[str, Any], observer: Observer | None) -> Solution:
        """Go on with a run; of its stopping rule and its resources what is given takes the place of what was."""
        stop = {name: value for name, value in changes.items() if name in STOP}
        with RunStore(store) as held:
            try:
                problem = problem_of(held)
            except DataGoneError as error:
                if stop or (answered := _stored_answer(held, error.why)) is None:
                    raise
                return answered
            begun = (held.read_spec() or {})["data"].get("fingerprint")
            if not stop and problem.spec()["data"]["fingerprint"] != begun:
                if (answered := _stored_answer(held, f"{problem.source.path} has changed since")) is not None:
                    return answered
            resources = resources_of(held, **changed_resources(changes))
            if stop:
                problem = _change_stopping(held, problem, stop, resources)
            return drive(problem, held, resources, observer)


KINDS: list[Resumable] = []  # of plug-ins, the latest first


def register_kind(kind: Resumable) -> None:
    """Add a kind. It takes precedence over earlier ones, and replaces one of the same name."""
    forget_kind(kind.name)
    KINDS.insert(0, kind)


def forget_kind(name: str) -> None:
    """Remove a kind that was registered."""
    KINDS[:] = [known for known in KINDS if known.name != name]


def kind_of(spec: Spec | None) -> Resumable:
    """Look up the kind of the store with these parameters; one that holds none yet may become any run.

    Raises
    ------
    BadInputError
        No kind knows them: the package that wrote the store is not loaded.
    RefusedError
        The run needs a feature that was deleted.
    """
    spec = spec or {}
    if registered := next((kind for kind in KINDS if kind.matches(spec)), None):
        return registered
    _require_features(spec)
    data, algorithm = spec.get("data", {}).get("kind"), spec.get("algorithm", {})
    stored = not spec or data in DATA_KINDS
    key = _key_of(spec)
    found: Resumable | None = features.found("kinds", key) if features.owner_of("kinds", key) or not stored else None
    if found is not None:
        return found
    if not stored:
        raise BadInputError(
            f"these parameters belong to no known kind of run: {data or sorted(spec)}; load the package that wrote them"
        )
    return StoredRun("matrix" if algorithm.get("share") is None else "search")


def _key_of(spec: Spec) -> str:
    """Return the key of a kind: that of the data; a noisy copy has the kind of its data."""
    data = spec.get("data", {}).get("kind")
    return f"algorithm {spec.get('algorithm', {}).get('name')}" if not spec or data in DATA_KINDS else str(data)


def _require_features(spec: Spec) -> None:
    """Raise RefusedError for a run of a feature that was deleted, before anything of it is read."""
    data, algorithm = spec.get("data", {}), spec.get("algorithm", {})
    features.require("kinds", _key_of(spec))
    for table, found in (("routes", (*spec, data.get("kind"))), ("aspects", (*spec, *(f"data.{key}" for key in data)))):
        for key in found:
            features.require(table, key)
    features.require("algorithms", algorithm.get("name"))
    for option in algorithm.get("options") or () if algorithm.get("name") == "power" else ():
        features.require("options", option)
    if "report" in spec:
        features.require("presenters", "the [report] table")
    if str(data.get("dtype", ""))[1:2] == "c":
        features.require("representations", "complex")


def changed_resources(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return all that changes of what a run may use: a cluster takes the place of workers, and the other way round."""
    given = {name: value for name, value in changes.items() if name not in STOP}
    given |= {name: parse_memory(given[name], name) for name in ("memory", "device_memory") if name in given}
    if given.get("device") == "cpu":
        given.setdefault("device_memory", None)
    if "certificates" in given:
        given["certificates"] = str(Path(given["certificates"]).absolute())
    cluster = given.get("cluster")
    if cluster:
        given = {"threads": None, "workers": 0, **given}
    elif given.keys() & {"threads", "workers", "cluster"}:
        given["cluster"] = None
    if "cluster" in given and (type(cluster) is not str or not cluster.startswith("tls://")):  # a client has its own
        given.setdefault("certificates", None)
    return given


def _change_stopping(held: RunStore, problem: Problem, changed: dict[str, Any], resources: Resources) -> Problem:
    """The problem under another stopping rule; the steps stay, the answer is made again, if ``resources`` suffice."""
    if problem.protected:
        raise RefusedError(
            "a private run cannot run longer, or stop earlier, than was fixed before its first release: the "
            "noise of every step depends on their number; start a new run, on a new budget"
        )
    request = replace(problem.request, **changed)
    other = make_problem(problem.source, request, problem.locked, problem.start, problem.share)
    if other.spec() == problem.spec():
        return problem
    if held.last_meta() is None and held.part_meta("result") is not None:
        raise RefusedError(
            f"the steps of {held.path} were cleared away (`npmdask gc`): it has its answer, and cannot go on to "
            f"another stopping rule. Begin again in a new store; of a matrix, with `start = {held.path}`"
        )
    spec, wanted = held.read_spec() or {}, problem.spec()
    if (wanted["data"]["fingerprint"], wanted["version"]) != (spec["data"].get("fingerprint"), spec.get("version")):
        # As the run itself will, once the answer is gone.
        require_same_run(wanted, spec, held.place, problem.source.path)
    if not other.searches and not other.chooses:  # those plan their stages one by one
        needs = needs_of(other)
        require_device(needs, resources)
        memory_for(needs, resources)  # refused before the answer is dropped
    held.drop_part(PRESENTED)
    held.drop_result()
    held.write_spec((held.read_spec() or {}) | {"stop": other.spec()["stop"]})
    return other


def _stored_answer(held: RunStore, why: str) -> Solution | None:
    """The answer of a finished run whose data are gone or have changed (``why``); None where there is none of rows."""
    spec = held.read_spec() or {}
    if held.part_meta("result") is None or not is_of_rows(spec) or not is_public(spec):
        return None
    arrays, _ = held.read_part("result") or ({}, {})
    if "left_rotation" in arrays and not left_is_whole(held.path, arrays):
        return None  # it needs the data again
    try:
        found = solution_of(held)
    except BadInputError:  # what rows were centred by is gone with the data
        found = solution_of(held, scores=False)
    said = f"{why}: this is the answer of the run as it was stored; run data as they are now in another store"
    return replace(found, warnings=(*found.warnings, said))
