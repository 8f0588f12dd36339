"""Passes on threads of this process."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any
from uuid import uuid4

import dask
import numpy as np
from dask.callbacks import Callback
from dask.order import order
from dask.threaded import get  # as a function: by its name dask would load distributed, a fifth of a second

from npmdask.core import features
from npmdask.core.execution.memory import ProcessPeak
from npmdask.core.execution.reduction import PassCheckpoint, TreeNode, compute_run, fed, root, runs_of
from npmdask.core.numerics.subspaces import Block, single_threaded_blas
from npmdask.core.operators import Operator, Partial
from npmdask.core.storage.readers.dense import ReadStats

# What the last bits depend on besides the parameters: recorded, compared, and said when it changed.


def environment() -> dict[str, str]:
    """Return what the last bits depend on besides the parameters: recorded, compared, and said when it changed."""
    from threadpoolctl import threadpool_info

    found = [i for i in threadpool_info() if i.get("user_api") == "blas"]  # NumPy's, and SciPy's if it is loaded too
    blas: dict[str, Any] = min(found, key=lambda i: ("numpy" not in i["filepath"], i["filepath"]), default={})
    kind = f"{blas.get('internal_api', '?')} {blas.get('version', '?')} {blas.get('architecture', '')}".strip()
    return {"numpy": np.__version__, "blas": kind, "machine": platform.machine()}


def grant(name: str, nbytes: int) -> None:
    """Let ``name`` have so many bytes on their way over a network in this process; 0 takes it back."""
    features.found("fetchers", "network")(name, nbytes)


OnTask = Callable[[ReadStats], None]
OnRun = Callable[[Operator, range, Block], Partial]


class Threads:
    """Runs passes on threads of this process. ``in_flight``: bytes of what they read next that may be on their way."""

    elsewhere = False

    def __init__(self, threads: int, in_flight: int = 0) -> None:
        self.threads, self._granted = threads, f"pass {uuid4().hex}" if in_flight else ""
        if in_flight:
            grant(self._granted, in_flight)

    def run_pass(
        self, operator: Operator, block: Block, on_task: OnTask, keeper: PassCheckpoint | None = None
    ) -> tuple[Block, ReadStats]:
        """``A @ block`` in one pass, and what the reading cost.

        ``on_task`` learns of every finished run; what ``keeper`` knows of the pass is not computed again.
        """
        runs, keeper = runs_of(operator), keeper or PassCheckpoint()
        if len(runs) == 1 and not keeper.parts:
            return self._run_single(operator, runs[0], block, on_task)
        watch = _TaskWatch(len(runs), on_task, keeper)
        ahead: dict[range, range] = {}
        data = [
            dask.delayed(part, name=name, traverse=False) for name, part in (("operator", operator), ("block", block))
        ]
        graph = self._sum_of(root(len(runs)), runs, keeper.parts, partial(_run, ahead), *data)
        ordered = [runs[place] for place in _order(graph)]
        ahead.update(zip(ordered, ordered[self.threads :], strict=False))
        try:
            with single_threaded_blas(), fed(operator, ordered, self.threads), watch:
                (total,) = dask.compute(graph, scheduler=get, num_workers=self.threads, optimize_graph=False)
        finally:
            # It refers to itself: what it holds, sums and parts of rows, would stay until a collection of garbage,
            # which arrays do not hasten, and memory would grow from pass to pass.
            watch.forget()
        return operator.finish(total, block), total.record

    def everywhere(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Call ``function`` in each process that computes: this one."""
        return [function(*arguments)]

    def anywhere(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call ``function`` in a process that computes: this one."""
        return function(*arguments)

    def _sum_of(
        self, node: TreeNode, runs: Sequence[range], known: Mapping[TreeNode, Partial], run: OnRun, *data: Any
    ) -> Any:
        """The sum over the runs of ``node``, in the fixed tree, as a Delayed; ``run`` makes it of one, with ``data``:
        operator and block.
        """
        if node in known:
            return dask.delayed(known[node], name=_key("known", node), traverse=False)
        halves = node.children(len(runs))
        if halves:
            parts = [self._sum_of(half, runs, known, run, *data) for half in halves]
            return dask.delayed(_join, pure=False)(data[0], *parts, dask_key_name=_key("join", node))
        return dask.delayed(run, pure=False)(data[0], runs[node.place], data[1], dask_key_name=_key("run", node))

    def _run_single(self, operator: Operator, run: range, block: Block, on_task: OnTask) -> tuple[Block, ReadStats]:
        """A pass of one run: nothing to schedule, to join or to keep, and a graph takes longer than small data."""
        with single_threaded_blas(), fed(operator, [run], 1):
            total = compute_run(operator, run, block)
        on_task(total.record)
        return operator.finish(total, block), total.record

    def peaks(self) -> list[ProcessPeak]:
        """Return the peaks of processes that are not below this one: none."""
        return []

    def close(self) -> None:
        """Nothing is held between passes but the right to have bytes in flight."""
        if self._granted:
            grant(self._granted, 0)


def _key(what: str, node: TreeNode) -> str:
    return f"{what}-{node.level}-{node.place}"


def _order(graph: Any) -> list[int]:
    """The runs by their places, in the order in which Dask takes them up: not that of the data, but of its own graph.

    It takes a millisecond for each hundred of them, as it does once more inside of Dask.
    """
    tasks = dict(graph.__dask_graph__())
    ranks = order(tasks)
    return [int(key.rpartition("-")[2]) for key in sorted(tasks, key=ranks.__getitem__) if key.startswith("run-")]


def _run(ahead: Mapping[range, range], operator: Operator, slabs: range, block: Block) -> Partial:
    """The product of a run, another one asked for meanwhile: that which follows it in ``ahead``."""
    operator.read_ahead(ahead.get(slabs, range(0)))
    return compute_run(operator, slabs, block)


def _join(operator: Operator, left: Partial, right: Partial) -> Partial:
    return operator.join(left, right)


class _TaskWatch(Callback):
    """Sees every part that the threaded scheduler finishes: tells of it, and commits from time to time."""

    def __init__(self, count: int, on_task: OnTask, keeper: PassCheckpoint) -> None:
        self._count, self._on_task, self._keeper = count, on_task, keeper
        self._parts = dict(keeper.parts)
        super().__init__(posttask=self._on_task_done)

    def forget(self) -> None:
        """Let go of all parts."""
        self._parts.clear()

    def _on_task_done(self, key: Any, result: Any, dsk: Any, state: Any, worker: Any) -> None:
        what, _, name = str(key).partition("-")
        if what not in ("run", "join"):
            return
        node = TreeNode(*map(int, name.split("-")))
        for half in node.children(self._count):
            self._parts.pop(half, None)
        self._parts[node] = result
        if what == "run":
            self._on_task(result.record)
        if self._keeper.due:
            self._keeper.commit(self._parts)
