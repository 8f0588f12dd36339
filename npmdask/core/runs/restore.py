"""A store belongs to one problem: bound when it is new, checked ever after, opened again by resume and deflate.

Another run can begin where it came to.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np

from npmdask.core import features
from npmdask.core.algorithms import REGISTRY as ALGORITHMS
from npmdask.core.algorithms import Result
from npmdask.core.algorithms.stopping import Outcome
from npmdask.core.aspects import Reading, keep_aspects, kept_aspects
from npmdask.core.checkpoint.rights import note_rights, what_is_withheld
from npmdask.core.checkpoint.schema import BESIDE, REQUIRED, TABLES, is_of_rows, is_protected, is_public
from npmdask.core.checkpoint.store import RunStore, folder_of, not_finished
from npmdask.core.execution.executor import single_threaded_blas
from npmdask.core.execution.threads import environment
from npmdask.core.numerics.subspaces import Block
from npmdask.core.runs.build import make_problem
from npmdask.core.runs.components import StoredComponents, components_of_run, known_of_run, labels_of_run, view_of_run
from npmdask.core.runs.problem import (
    OF_OPERATOR,
    STORED_GRAM,
    Locked,
    Presentation,
    Problem,
    Request,
    Start,
    arrays_of_operator,
)
from npmdask.core.runs.resources import Resources, changes_of
from npmdask.core.runs.solution import WITHOUT_PASS, Analysed, Solution
from npmdask.core.storage.kinds import KINDS as DATA_KINDS
from npmdask.core.storage.kinds import traits_of
from npmdask.core.storage.paths import Facts
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError, RefusedError, require

TELLS = "npmdask.stores"  # the logger; the command line shows what it says

# A store belongs to one problem: bound when it is new, checked ever after.


def bind(problem: Problem, store: RunStore, resources: Resources) -> list[str]:
    """Bind a new store to this problem, or check that it is the same one. Returns what should be known.

    Raises
    ------
    RefusedError
        The store belongs to other data, parameters or version.
    """
    here: dict[str, Any] = {"resources": asdict(resources)}
    here |= {} if problem.nodes is None else {"source": problem.source.path}  # the same ones may have moved
    here |= {} if problem.request.presentation is None else {"report": problem.request.presentation.facts()}

    def keep() -> None:
        """Keep aspects, locked vectors and start of the run, so that it can be resumed without their sources."""
        if problem.rule.until_share is not None:  # a stage of a search is given it by that
            return
        keep_aspects(store, problem.request.aspects)
        if problem.locked is not None:
            keep_locked(store, problem.locked)
        if problem.start is not None:
            keep_start(store, problem.start)

    noted = bind_spec(problem.spec(), store, here, once=problem.source.kept, keep=keep)
    if problem.source.labels is not None:
        from npmdask.core.storage.names import require_kept  # which data without names do not need

        require_kept(labels_of_run(store), problem.source.labels, store.place)
    return [*problem.source.notes, *noted]


def bind_spec(
    wanted: dict[str, Any],
    store: RunStore,
    here: dict[str, Any],
    *,
    once: dict[str, Any],
    keep: Callable[[], None] | None = None,
) -> list[str]:
    """The same for the parameters ``wanted``; a store in which nothing was committed is bound to them again.

    Parameters
    ----------
    here : facts beside them that may change from call to call.
    once : facts that are kept as they were when the run began.
    keep : writes what the run is given into a store that is not bound yet.

    Raises
    ------
    RefusedError
        The store belongs to other data, parameters or version.
    """
    spec = store.read_spec()
    if spec is not None and (other := _differences(wanted, spec)) and store.unbegun:
        logging.getLogger(TELLS).warning(
            "%s was begun with other parameters, and nothing was committed: it belongs to this run now (%s)",
            store.place,
            "; ".join(other),
        )
        store.forget_unbegun()
        spec = None
    if spec is None:
        if keep is not None:
            keep()
        noted = note_rights(wanted | here | once, store.path)
        store.write_spec(wanted | here | once | {"environment": environment()})
        return [noted] if noted else []
    require_same_run(wanted, spec, store.place, once.get("source"))
    noted = note_rights(wanted | here | once, store.path)
    if any(spec.get(name) != value for name, value in here.items()):
        store.write_spec(spec | here)
    return [noted] * bool(noted) + changes_of(spec.get("environment", {}), environment())


def _is_same_value(table: str, name: str, held: Any, value: Any, wanted: Mapping[str, Any]) -> bool:
    """Say whether two values mean one and the same, as the feature says that wrote them."""
    if (table, name) == ("algorithm", "target_rank"):
        word = wanted[table]["name"]
        return word not in ALGORITHMS and getattr(features.found("algorithms", word), "of_any_rank", False)
    same = getattr(features.found("tables", table), "same", None) if table not in REQUIRED else None
    return same is not None and bool(same(name, held, value))


def _differences(wanted: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """Every field of the parameters ``wanted`` that is another one in those that were ``found`` in a store."""
    differences = []
    for table, fields in wanted.items():
        for name, value in fields.items():
            held = found.get(table, {}).get(name)
            if held != value and not _is_same_value(table, name, held, value, wanted):
                differences.append(f"{table}.{name} ({held!r} in the checkpoint, {value!r} now)")
    # What the checkpoint has and this run does not is a difference, too: the operator of a stage or of the dilation.
    for table in tables_of(found):
        for name in sorted(set(found[table]) - set(wanted.get(table, {}))):
            differences.append(f"{table}.{name} ({found[table][name]!r} in the checkpoint)")
    return differences


def tables_of(spec: dict[str, Any]) -> list[str]:
    """Return the tables of a run.json that say what the run is."""
    return [name for name, keys in spec.items() if isinstance(keys, dict) and name not in BESIDE]


def require_same_run(wanted: dict[str, Any], found: dict[str, Any], store: str, source: str | None) -> None:
    """Refuse a checkpoint that was made from something else, naming every field that differs, and other data.

    Raises
    ------
    RefusedError
        Other data, other parameters or another version.
    """
    if found.get("data", {}).get("kind") == "gram" != wanted["data"].get("kind"):
        raise RefusedError(f"{store} is a stored Gram: choose another store for the run")
    differences = "; ".join(_differences(wanted, found))
    if not differences:
        return
    begun = found.get("source", source)
    other_data = wanted["data"].get("fingerprint") != found.get("data", {}).get("fingerprint")
    if other_data and source == begun and source is not None and wanted["version"] == found.get("version"):
        raise RefusedError(  # `npmdask resume` reads the same data, and is no remedy
            f"use another store for the data as they are now, or put back those that the run began with: {source} "
            f"has changed since, and {store} belongs to the earlier data; these differ: {differences}. For a Zarr "
            "store that was not ingested, the times of its files count too: ingest data that are copied or touched"
        )
    remedy = f"go on with the old parameters (`npmdask resume {quote(store)}`)"
    if rule := _resume_options(wanted, found):
        remedy = f"go on with its steps under the new rule (`npmdask resume {quote(store)} {rule}`)"
    if wanted["version"] != found.get("version"):
        remedy = f"go on with this one by npmdask {found.get('version', {}).get('npmdask')}"
    raise RefusedError(
        f"use another store, or {remedy}: the checkpoint in {store} belongs to another run; these differ: {differences}"
        f"{f' (the data were {begun}, and are {source})' if other_data and begun != source else ''}"
    )


def _resume_options(wanted: dict[str, Any], found: dict[str, Any]) -> str:
    """The options of ``npmdask resume`` that make the run in a store one of the parameters ``wanted``; "": none do."""
    tables = wanted.keys() | {*tables_of(found)}
    if not is_public(wanted) or any(wanted.get(t) != found.get(t) for t in tables - {"stop"}):
        return ""
    old, new = ({"low_rank_tol": 0.0} | one["stop"] for one in (found, wanted))
    changed = {name: value for name, value in new.items() if old.get(name) != value}
    if not changed.keys() <= {"max_steps", "tol", "low_rank_tol"} or None in changed.values():
        return ""
    return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in changed.items())


def resources_of(held: RunStore, **changed: Any) -> Resources:
    """Return the resources that the run was allowed to use at its last start, with those that are ``changed``.

    What a store cannot bring, and this user did not give it, is named in the log with the option that does.
    """
    found: Facts = (held.read_spec() or {}).get("resources", Facts())
    if said := what_is_withheld(found, held.place, changed):
        logging.getLogger(TELLS).warning(said)
    return replace(Resources(**found), **changed)


def problem_of(held: RunStore) -> Problem:
    """The problem that a store's run.json describes."""
    spec = held.read_spec() or {}
    data, algorithm, mechanism = spec["data"], spec["algorithm"], spec["mechanism"]
    others = (t for t in spec if t not in TABLES and not features.knows("aspects", t) and features.knows("routes", t))
    if own := next((table for table in spec if features.owner_of("routes", table)), next(others, "")):
        return features.required("routes", own).restored(held, spec)
    if "dilation" in spec.get("lens", {}):
        raise BadInputError(
            f"{held.path} is a run on the dilation of a matrix: it goes on where "
            "npmdask.singular_triplets is called again with this store"
        )
    if "lens" in spec or _is_of_job(held.path.parent):
        raise BadInputError(f"{held.path} is a stage of a longer job; go on with {held.path.parent} instead")
    if spec["stop"].get("until_share") is not None:
        raise BadInputError(f"{held.path} is a stage of a search; go on with {held.path.parent.parent} instead")
    request = Request(
        target_rank=algorithm["target_rank"],
        iteration_rank=None if traits_of(data["kind"]).cube else algorithm["iteration_rank"],
        algorithm=algorithm["name"],
        options=algorithm.get("options"),
        max_steps=spec["stop"]["max_steps"],
        tol=spec["stop"]["tol"],
        low_rank_tol=spec["stop"].get("low_rank_tol"),
        center=data["center"],
        scale=data["scale"],
        seed=spec["run"]["seed"],
        mechanism={"simulated-gaussian": "gaussian"}.get(mechanism["mechanism"], "none"),
        stddev=mechanism.get("stddev", 0.0),
        operator=spec.get("operator", {}).get("registered"),
        aspects=kept_aspects(held, spec),
        presentation=Presentation(**spec["report"]) if "report" in spec else None,
    )
    opens = {} if request.reading is None else request.reading.opens
    with _with_what_is_kept(held):
        source = open_source(spec["source"], data["kind"], spec.get("dim"), of_complex=True, **opens)
    start = spec["run"].get("starts_from")
    begun = read_start(held) if start else None
    return make_problem(source, request, _read_locked(held, spec), begun, algorithm.get("share"))


class DataGoneError(BadInputError):
    """The data of a run that has its answer cannot be opened; ``why``."""

    def __init__(self, why: str, place: str) -> None:
        super().__init__(
            f"{why}. The run has its answer, which needs no data: `npmdask report {quote(place)}`, `npmdask export "
            f"{quote(place)} answer.npz`"
        )
        self.why = why


@contextmanager
def _with_what_is_kept(held: RunStore) -> Iterator[None]:
    """Around opening the data of a run: of one that has its answer, an error says that this can be had without them."""
    try:
        yield
    except BadInputError as error:
        if held.part_meta("result") is None:
            raise
        raise DataGoneError(str(error), held.place) from error


def _is_of_job(folder: Path) -> bool:
    """Say whether a folder is that of a job, which made what lies below it and goes on with that itself."""
    spec = RunStore(folder).read_spec() if (folder / "run.json").is_file() else None
    kind = DATA_KINDS[0] if spec is None else spec["data"].get("kind")
    return kind not in DATA_KINDS and bool(getattr(features.found("kinds", str(kind)), "staged", False))


def solution_of(run: RunStore, *, scores: bool = True) -> Solution:
    """The answer that a store holds, without its data; what this call cost is nothing.

    ``scores``: what rows were centred and scaled by is found as well, which of some sources lies with the data.

    Raises
    ------
    BadInputError
        The run is not finished, or not of rows.
    """
    spec = run.read_spec()
    if spec is not None and not is_of_rows(spec):
        raise BadInputError(f"{run.place} is not a run on samples or a matrix: only their components can be rotated")
    result = None if spec is None else run.read_part("result")
    if spec is None or result is None:
        raise not_finished(run.path)
    arrays, meta = result
    aspects, labels = kept_aspects(run, spec), labels_of_run(run)
    rows = spec["data"]["shape"][0] if is_public(spec) else None
    basis = arrays["basis"]
    if scores:
        found = components_of_run(run, spec, basis, aspects=aspects)
    else:
        found = StoredComponents(basis=basis, labels=labels, **known_of_run(run, spec, aspects))
    weight = view_of_run(aspects, spec, found.missing).row_weight
    analysed = Analysed(
        kind=spec["data"]["kind"],
        rows=rows,
        row_weight=None if weight is None else float(weight.sum()),
        centred=spec["data"]["center"],
        components=found,
        labels=labels,
        missing=found.missing,
    )
    return Solution(
        basis=basis,
        values=arrays["values"],
        residual_norms=arrays["residual_norms"],
        outcome=Outcome(**meta["outcome"]),
        steps=len(meta.get("history", ())),
        **WITHOUT_PASS,
        total_data_passes=meta.get("total_data_passes", 0),
        store=run.place,
        fingerprint=spec["data"].get("fingerprint"),
        warnings=tuple(meta.get("notes", ())),
        target_rank=len(arrays["values"]),
        explained_share=meta.get("explained_share"),
        assurance=meta.get("assurance", ""),
        certificate=meta.get("certificate"),
        analysed=analysed,
    )


def locked_result(arrays: dict[str, np.ndarray]) -> Result:
    found: dict[str, Any] = {name: arrays[f"operator_{name}"] for name in OF_OPERATOR}
    return Result(**found)


def identity_of(arrays: dict[str, np.ndarray]) -> str:
    return hashlib.sha256(arrays["operator_vectors"].tobytes() + arrays["operator_products"].tobytes()).hexdigest()


def keep_locked(held: RunStore, locked: Locked) -> None:
    """A copy of what is locked, so that the run can be resumed when the finished one is gone."""
    held.write_part("locked", arrays_of_operator(locked.result), {"identity": locked.identity})


def _read_locked(held: RunStore, spec: dict[str, Any]) -> Locked | None:
    part = held.read_part("locked") if spec["run"]["deflates"] else None
    return None if part is None else Locked(result=locked_result(part[0]), identity=part[1]["identity"])


# Warm starts: a run that begins where an earlier one came to, which can save passes.
#
# What the earlier run did not hold, like a column that was zero in its data, no product with its vectors ever shows. So
# columns beside them are random (core/algorithms/base.py), and no run has converged before these would have shown it.


RANDOM_COLUMNS = 10  # of an unlucky start in a hundred they hold as much as 2 lucky ones (decision 14)


def find_start(earlier: str | Path, store: str | Path | None) -> Start:
    """Read the last vectors of the run in ``earlier``, or the copy that ``store`` keeps if ``earlier`` is gone.

    Raises
    ------
    BadInputError
        There is no run in ``earlier``, or it has not committed a step.
    RefusedError
        ``earlier`` is ``store`` itself, or a private release.
    """
    path = folder_of(earlier)
    store = None if store is None else folder_of(store)
    if store is not None and path.resolve() == store.resolve():
        raise RefusedError(
            f"start and store are both {path}: to resume a run leave `start` out, to start again use another store"
        )
    if not (path / "run.json").exists():
        kept = read_start(RunStore(store)) if store is not None and store.is_dir() else None
        if kept is None:
            raise BadInputError(f"there is no run to start from in {path}; name the store of one, or leave `start` out")
        return kept
    _require_startable(RunStore(path))
    start = start_of(RunStore(path))
    return start if store is None else _start_as_begun(start, RunStore(store))


def _start_as_begun(start: Start, held: RunStore) -> Start:
    """``start`` as a run in ``held`` began with it: with no random columns, if that was before there were any."""
    run = (held.read_spec() or {}).get("run", {})
    old = run.get("starts_from") == start.identity and "random_columns" not in run
    return replace(start, random_columns=0) if old else start


def _require_startable(earlier: RunStore) -> None:
    """Refuse what no run can begin with.

    A private run's vectors are noisy, and what starts from them reads the data unprotected: sound, but of no use.
    Steps of streams, tensors, jobs and stored Grams hold no block.
    """
    spec = earlier.read_spec() or {}
    if is_protected(spec):
        raise RefusedError(
            f"the run to start from, {earlier.path}, is a private release: a run that is not private would mix exact "
            "products with it in one folder, and a private one starts from its public seed; leave `start` out"
        )

    if spec["data"].get("kind") == STORED_GRAM:
        raise RefusedError(
            f"{earlier.path} is a stored Gram, which has no components yet: run it (`npmdask run "
            f"{quote(str(earlier.path))} -k K --store RUN`), and start from that run"
        )
    name = spec["algorithm"]["name"]
    if not hasattr(ALGORITHMS.get(name), "start_block"):
        known = " or ".join(n for n, kind in ALGORITHMS.items() if hasattr(kind, "start_block"))
        raise RefusedError(
            f"the run to start from, {earlier.path}, is of {name}: a run can begin with the vectors of {known} only; "
            "leave `start` out"
        )


def start_of(earlier: RunStore) -> Start:
    """Read the last vectors of a run: its answer, and what its last step had in addition (p columns, not only k)."""
    from npmdask.core.storage.names import columns_of

    warning = _warning(earlier)
    with single_threaded_blas():
        basis = np.ascontiguousarray(_basis(earlier))
    identity = hashlib.sha256(basis.tobytes()).hexdigest()
    noted = [reading.noted(earlier) for reading in kept_aspects(earlier, earlier.read_spec() or {}, Reading)]
    axes = columns_of(labels_of_run(earlier), noted[0].kept if any(noted) else None)
    return Start(basis=basis, identity=identity, warning=warning, random_columns=RANDOM_COLUMNS, axes=axes)


def _warning(earlier: RunStore) -> str | None:
    result = earlier.read_part("result")
    if result is None:
        return f"the run to start from, {earlier.path}, is not finished: its last step is taken"
    if result[1]["outcome"]["name"] != "converged":
        return f"the run to start from, {earlier.path}, did not converge; this one is held to its own tolerance"
    return None


def _basis(earlier: RunStore) -> Block:
    """Read the basis of the last step, or of the answer where the steps are gone.

    Only one of them is in memory at a time: both are large.
    """
    last = earlier.last_step()
    if last is not None and "previous_checksums" not in last[0]:  # whose blocks are not in files of their own
        return ALGORITHMS[(earlier.read_spec() or {})["algorithm"]["name"]].start_block(last[0])
    result = earlier.read_part("result")
    if result is not None:
        return result[0].get("operator_vectors", result[0]["basis"])
    require(last is None, f"{earlier.path} keeps its blocks on disk: a run can begin with its answer; finish it first")
    raise BadInputError(
        f"the run to start from, {earlier.path}, has no committed step yet: `npmdask resume {earlier.path}`"
    )


def keep_start(held: RunStore, start: Start) -> None:
    """Keep a copy, so that the run can be resumed when the earlier one is gone."""
    held.drop_part("start")  # of an attempt that was killed before it was bound
    facts = {name: getattr(start, name) for name in ("identity", "warning", "passes", "random_columns")}
    held.write_part("start", {"basis": start.basis}, facts)


def read_start(held: RunStore) -> Start | None:
    """The copy that a run keeps of what it started from."""
    part = held.read_part("start")
    if part is None:
        return None
    facts: dict[str, Any] = part[1]
    return Start(basis=part[0]["basis"], **facts)
