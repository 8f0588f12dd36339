"""A node of a distributed run: it answers with products of its own data, with its own noise, from its own budget.

The coordinator is not trusted. A node takes a block as what it is (its sensitivity is computed here, from what came),
makes no more releases of a job than its owner allows, pays for all of them before the first, and keeps each before it
is answered: asked again, by a coordinator that crashed or after a crash of its own, it gives the same bytes, and for a
step that was released it takes no other block. For a release the order is that of :mod:`npmdask.privacy.account`::

    begin in the ledger -> one pass -> noise, from the secret key -> digest in the ledger -> kept in the store -> answer
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any
from uuid import uuid4

import numpy as np

from npmdask.core.checkpoint.store import RunStore
from npmdask.core.execution.executor import make_executor, single_threaded_blas
from npmdask.core.execution.memory import tree_rss
from npmdask.core.numerics.subspaces import Block
from npmdask.core.operators import Gram
from npmdask.core.runs.build import make_problem
from npmdask.core.runs.problem import Problem, Request, default_rank
from npmdask.core.runs.resources import Resources, memory_for, needs_of
from npmdask.core.runs.restore import bind
from npmdask.core.storage.bundle import write_file_atomically
from npmdask.core.storage.readers.dense import ReadStats
from npmdask.core.storage.source import Source
from npmdask.errors import BudgetError, RefusedError, require
from npmdask.federated.protocol import Announcement, UnansweredError, block_digest, decode, encode, encoded_size
from npmdask.privacy.account import Account, require_room
from npmdask.privacy.concerns import concerns_of_node
from npmdask.privacy.private_power import UNSAID, PrivateAlternating

ORTHONORMAL = 1e-8  # of an entry of X^T X - I: a thousand times what rounding explains
NO_BUDGET = "the privacy budget of this node does not allow another job; its owner can see why"
JOB = re.compile(r"[0-9a-f]{32}")
Form = Callable[[Block], Any]  # the product with a block, before any noise


def make_node(source: Source, request: Request, store: Path, resources: Resources) -> Node:
    """Make the node that answers with products of ``source``, within the limits of its owner's ``request``.

    Raises
    ------
    BadInputError, RefusedError
        What is missing, or does not go together.
    """
    if not source.registered:
        raise RefusedError(
            f"{source.path} was never ingested, so changes to it would go unnoticed: run `npmdask ingest` first"
        )
    k, rank = int(request.target_rank), request.iteration_rank
    p = default_rank(k, source.shape[1]) if rank is None else int(rank)
    # What the coordinator makes of the releases is its business: of how many components a node may have too few rows.
    request = replace(request, target_rank=1, iteration_rank=p)
    if request.privacy is not None and request.algorithm in ("auto", "power"):
        require(request.options is None, "the coordinator chooses algorithm.options: leave them out at its nodes")
        request = replace(request, algorithm="power", options=UNSAID)
    problem = make_problem(source, request)
    if isinstance(problem.algorithm, PrivateAlternating):
        raise RefusedError(
            "a node multiplies by A or by A^T A; private entries of a matrix are not supported for nodes yet: use a "
            "relation of records"
        )
    return Node(problem, store, resources)


class Node:
    """Answers one request at a time. Use it in a ``with`` statement."""

    def __init__(self, problem: Problem, store: Path, resources: Resources) -> None:
        self.problem, self._store, self._resources = problem, store, resources
        self._operator = _summing(problem)
        plan = memory_for(needs_of(problem), resources, tree_rss())
        self._executor = make_executor(plan, problem.source.path, resources.cluster, resources.certificates)
        self._lock, self._jobs = threading.Lock(), dict[str, NodeRun]()
        self.announcement = self._announce()
        self.concerns = () if problem.private is None else concerns_of_node(problem)  # for its owner, in sentences

    def __enter__(self) -> Node:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._lock:
            for job in self._jobs.values():
                job.close()
            self._executor.close()

    @property
    def shape(self) -> tuple[int, int]:
        """d x p of the blocks that it multiplies."""
        return self.problem.d, self.problem.algorithm.iteration_rank

    @property
    def most_bytes(self) -> int:
        """Largest size of a body that is read at all."""
        return encoded_size(self.shape)

    def _announce(self) -> Announcement:
        source, (d, p) = self.problem.source, self.shape
        parts = self.problem.private
        public = source.kind != "symmetric" and (parts is None or parts.relation.public_rows)
        return Announcement(
            node=self._name(),
            kind=source.kind,
            columns=d,
            iteration_rank=p,
            max_steps=self.problem.rule.max_steps,
            rows=source.shape[0] if public else None,
            mechanism=self.problem.mechanism.event(),
        )

    def _name(self) -> str:
        """Drawn once: not made of the data, whose fingerprint would confirm a guess of them."""
        self._store.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._store.chmod(0o700)
        path = self._store / "node"
        if not path.exists():
            write_file_atomically(path, uuid4().hex.encode())
        return path.read_text().strip()

    def answer(self, job: str, step: int, body: bytes) -> bytes:
        """Release step ``step`` of ``job`` for the block X in ``body``; return the noisy product, encoded.

        Raises
        ------
        UnansweredError
            A request that no honest coordinator makes, or that the budget does not allow; the sentence is public.
        NpmdaskError
            Something is wrong here; what it says is for the owner of the data alone.
        """
        with self._lock, single_threaded_blas():
            block = decode(body, self.shape)
            _require_orthonormal(block)
            if not JOB.fullmatch(job):
                raise UnansweredError("the id of a run must have 32 hexadecimal digits")
            most = self.announcement.max_steps
            if not 1 <= step <= most:
                raise UnansweredError(f"step {step}: the owner of this node allows steps 1 to {most} of a run")
            if self.problem.private is None:
                return encode(self._form(block))
            return encode(self._job(job, step).release(step, block, self._form))

    def _form(self, block: Block) -> Any:
        return self._executor.run_pass(self._operator, block, _report_nothing, None)[0]

    def _job(self, name: str, step: int) -> NodeRun:
        if name not in self._jobs:
            path = self._store / "jobs" / name
            if not path.exists():  # a job that will be refused leaves nothing behind, however often it is asked for
                _require_next(step, 0)
                _require_room(self.problem)
            self._jobs[name] = NodeRun(self.problem, path, self._resources)
        return self._jobs[name]


def _report_nothing(record: ReadStats) -> None:
    """Report nothing: how far a pass is would reveal the number of rows."""


def _summing(problem: Problem) -> Any:
    """The operator of the sum over rows, not of their mean: the coordinator divides by all of them."""
    operator = problem.operator()
    weighted = problem.private is None and problem.source.kind == "samples"
    return replace(operator, weight=1.0) if weighted and isinstance(operator, Gram) else operator


def _require_orthonormal(block: Block) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        gram = block.T @ block
        off = np.abs(gram - np.eye(len(gram))).max()
    if not off <= ORTHONORMAL:
        raise UnansweredError(f"the columns of the block are not orthonormal: X^T X differs from I by {off:.2g}")


def _require_next(step: int, released: int) -> None:
    if step != released + 1:
        raise UnansweredError(f"step {step} is not the next one: {released} steps of this run are released")


def _require_room(problem: Problem) -> None:
    try:
        require_room(problem.private.privacy, problem.source, problem.mechanism)
    except BudgetError as error:
        raise UnansweredError(NO_BUDGET) from error


class NodeRun:
    """Releases of a private node for one run of a coordinator, in a store of its own (folder 0700).

    ::

        JOB/releases/000001/     X as it came, and what was answered
        JOB/run.json, entropy    as of every private run
    """

    def __init__(self, problem: Problem, path: Path, resources: Resources) -> None:
        assert problem.private is not None
        self._problem, self._releases = problem, problem.private.releases
        self._store = RunStore(path, private=True).open()
        try:
            bind(problem, self._store, resources)
            self._account = Account(problem.private.privacy, problem.source, problem.mechanism, self._store)
            self._history = [{"step": step, "digest": self._stored_part(step)[1]["digest"]} for step in self._steps()]
            self._open()
        except BudgetError as error:
            self._store.close()
            raise UnansweredError(NO_BUDGET) from error
        except BaseException:
            self._store.close()
            raise

    def close(self) -> None:
        """Let others have the store."""
        self._store.close()

    def _open(self) -> None:
        if len(self._history) < self._releases:
            self._account.open(self._history)
        else:
            self._account.settle()  # a kill may have come before this

    def _steps(self) -> list[int]:
        return sorted(int(path.name) for path in (self._store.path / "releases").glob("[0-9]*"))

    def _stored_part(self, step: int) -> Any:
        return self._store.read_part(_part(step))

    def release(self, step: int, block: Block, form: Form) -> Block:
        """Release ``step`` for X: made now, or the one that was made for this X before.

        Raises
        ------
        UnansweredError
            It was made for another X, or it is not its turn.
        """
        asked, kept = block_digest(block), self._stored_part(step)
        if kept is not None:
            arrays, meta = kept
            if meta["asked"] != asked:
                raise UnansweredError(
                    f"step {step} of this run was already released for another block, and is not released twice"
                )
            return arrays["released"]
        _require_next(step, len(self._history))
        return self._make(step, block, form, asked)

    def _make(self, step: int, block: Block, form: Form, asked: str) -> Block:
        prepared = self._problem.operator().prepare(block)
        self._account.begin(step)
        product = form(prepared)
        self._store.require_turn()
        released = self._problem.mechanism.release(product, block=prepared, entropy=self._account.entropy, step=step)
        said = self._account.released(step, self._problem.mechanism, prepared, released)
        self._store.write_part(_part(step), {"block": block, "released": released}, {"asked": asked, **said})
        self._history.append({"step": step, **said})
        if step == self._releases:
            self._account.settle()
        return released


def _part(step: int) -> str:
    return f"releases/{step:06d}"
