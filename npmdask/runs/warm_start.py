"""Warm starts: a run that begins where an earlier one came to, which can save passes.

What the earlier run did not hold, like a column that was zero in its data, no product with its vectors ever shows. So
columns beside them are random (algorithms/base.py), and no run has converged before these would have shown it.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np

from npmdask.algorithms import REGISTRY as ALGORITHMS
from npmdask.checkpoint.store import RunStore, folder_of
from npmdask.errors import BadInputError, RefusedError
from npmdask.execution.executor import single_threaded_blas
from npmdask.numerics.subspaces import Block
from npmdask.runs.problem import STORED_GRAM, Start

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
    _require_not_private(RunStore(path))
    _require_of_matrix(RunStore(path))
    start = start_of(RunStore(path))
    return start if store is None else _as_begun(start, RunStore(store))


def _as_begun(start: Start, held: RunStore) -> Start:
    """``start`` as a run in ``held`` began with it: with no random columns, if that was before there were any."""
    run = (held.read_spec() or {}).get("run", {})
    old = run.get("starts_from") == start.identity and "random_columns" not in run
    return replace(start, random_columns=0) if old else start


def _require_not_private(earlier: RunStore) -> None:
    """Sound it would be, but of no use: its vectors are noisy, and what starts from them reads the data unprotected."""
    if "privacy" in (earlier.read_spec() or {}):
        raise RefusedError(
            f"the run to start from, {earlier.path}, is a private release: a run that is not private would mix exact "
            "products with it in one folder, and a private one starts from its public seed; leave `start` out"
        )


def _require_of_matrix(earlier: RunStore) -> None:
    """Steps of streams, tensors, jobs and stored Grams hold no block that a run could begin with."""
    if (earlier.read_spec() or {})["data"].get("kind") == STORED_GRAM:
        raise RefusedError(
            f"{earlier.path} is a stored Gram, which has no components yet: run it (`npmdask run "
            f"{quote(str(earlier.path))} -k K --store RUN`), and start from that run"
        )
    name = (earlier.read_spec() or {})["algorithm"]["name"]
    if not hasattr(ALGORITHMS.get(name), "start_block"):
        known = " or ".join(n for n, kind in ALGORITHMS.items() if hasattr(kind, "start_block"))
        raise RefusedError(
            f"the run to start from, {earlier.path}, is of {name}: a run can begin with the vectors of {known} only; "
            "leave `start` out"
        )


def start_of(earlier: RunStore) -> Start:
    """Read the last vectors of a run: its answer, and what its last step had in addition (p columns, not only k)."""
    warning = _warning(earlier)
    with single_threaded_blas():
        basis = np.ascontiguousarray(_basis(earlier))
    identity = hashlib.sha256(basis.tobytes()).hexdigest()
    return Start(basis=basis, identity=identity, warning=warning, random_columns=RANDOM_COLUMNS)


def _warning(earlier: RunStore) -> str | None:
    result = earlier.read_part("result")
    if result is None:
        return f"the run to start from, {earlier.path}, is not finished: its last step is taken"
    if result[1]["outcome"]["name"] != "converged":
        return f"the run to start from, {earlier.path}, did not converge; this one is held to its own tolerance"
    return None


def _basis(earlier: RunStore) -> Block:
    """Of the last step, or of the answer where the steps are gone. One of them in memory at a time: both are large."""
    last = earlier.last_step()
    if last is not None and "previous_checksums" not in last[0]:  # whose blocks are not in files of their own
        block: Block = ALGORITHMS[(earlier.read_spec() or {})["algorithm"]["name"]].start_block(last[0])
        return block
    result = earlier.read_part("result")
    if result is not None:
        return result[0].get("operator_vectors", result[0]["basis"])
    if last is not None:
        raise BadInputError(
            f"{earlier.path} keeps its blocks on disk: a run can begin with its answer; finish it first"
        )
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
