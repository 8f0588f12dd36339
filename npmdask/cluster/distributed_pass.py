"""One pass on the workers of a ``distributed`` client, some of which may die, hang, be slow, come and go.

Parts of the fixed tree (:mod:`npmdask.core.execution.reduction`) become tasks, and so do the joins of their sums, four
at a time, so that one block comes back. This process decides what is submitted: a join when all that it needs is there,
and a part once more, elsewhere, when its worker is silent or takes much longer than the others. Which copy comes first
does not matter, because all have the same bits. What was committed is never computed again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import TimeoutError as NoAnswerError
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple
from uuid import uuid4

import dask

from npmdask.core.execution.reduction import (
    PassCheckpoint,
    TreeNode,
    compute_node,
    covered,
    expected_record,
    join_node,
    quarters,
    root,
    tasks_of,
)
from npmdask.core.execution.threads import OnTask
from npmdask.core.numerics.subspaces import Block
from npmdask.core.operators import Operator, Partial
from npmdask.core.operators._protocol import waiting_sums
from npmdask.errors import LostError

TASKS_PER_SLOT = 4  # few, as each costs the scheduler a millisecond; enough to share the work
TASK_BYTES = 256 * 2**20  # that a task reads at most, so that a dead worker costs little,
MOST_TASKS = 1024  # unless that makes more tasks than these

LOOK = 2.0  # seconds between two looks at the workers
SILENT = 30.0  # seconds without a sign of life after which a worker's share is computed elsewhere
SLOW = 3.0  # times the average is much longer than other tasks take
LEAST = 5.0  # seconds; a copy of a shorter task gains nothing
ANSWER = 60.0  # seconds for an answer of the scheduler
ABSENT = 300.0  # seconds that a pass waits for a worker, if Dask's own setting says nothing


class SchedulerTimeoutError(OSError):
    """The scheduler has not answered in time."""


def wanted_tasks(nbytes: int, slots: int) -> int:
    """Return how many tasks are to read the ``nbytes`` of a pass, at most, with ``slots`` threads on all workers."""
    return max(TASKS_PER_SLOT * slots, min(MOST_TASKS, -(-nbytes // TASK_BYTES)))


def ask_scheduler(client: Any, seconds: float, question: Callable[[], Awaitable[Any]]) -> Any:
    """The answer to ``question``, which is awaited in the loop of the client.

    Raises
    ------
    SchedulerTimeoutError
        None came within ``seconds``.
    """

    async def answered() -> Any:
        return await question()

    future = asyncio.run_coroutine_threadsafe(answered(), client.loop.asyncio_loop)
    try:
        return future.result(seconds)
    except (TimeoutError, NoAnswerError):
        future.cancel()
        raise SchedulerTimeoutError(f"no answer in {seconds:g} s") from None


def run_on_workers(client: Any, seconds: float, function: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
    """Return the results of ``function`` on each worker, by address; a SchedulerTimeoutError for each that is late.

    What it raises on a worker is raised here.
    """

    async def one(address: str) -> Any:
        try:
            found = await asyncio.wait_for(client.run(function, *arguments, workers=[address]), seconds)
        except TimeoutError:
            return SchedulerTimeoutError(f"no answer in {seconds:g} s")
        return found[address]

    async def all_of_them() -> dict[str, Any]:
        there = list((await client.scheduler.identity(n_workers=-1))["workers"])
        return dict(zip(there, await asyncio.gather(*map(one, there)), strict=True))

    return dict(ask_scheduler(client, 2 * seconds, all_of_them))


class _PassInputs(NamedTuple):
    """The inputs of every task: as a task's result they can be made again, while scattered data would be lost."""

    operator: Operator
    runs: list[range]
    block: Block


class _Box:
    """An opaque box: Dask does not look for tasks in it."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _unbox(box: _Box) -> Any:
    return box.value


def _compute_task(node: _Box, work: _PassInputs) -> Partial:
    return compute_node(work.operator, work.runs, node.value, work.block)


def _join_task(work: _PassInputs, node: _Box, names: _Box, *parts: Partial) -> Partial:
    return join_node(work.operator, node.value, len(work.runs), dict(zip(names.value, parts, strict=True)))


class Workers:
    """Workers of a client: who they are, and which of them are silent."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._seen: dict[str, tuple[float, float]] = {}  # what the scheduler noted, and when that was new here
        self._patience: dict[str, float] = {}
        self._without: float | None = None
        self.threads: dict[str, int] = {}
        self.silent: set[str] = set()

    def look(self) -> None:
        """Ask the scheduler.

        Raises
        ------
        SchedulerTimeoutError
            It does not answer.
        LostError
            There have been no workers for too long.
        """
        there = ask_scheduler(self._client, ANSWER, lambda: self._client.scheduler.identity(n_workers=-1))["workers"]
        now = time.monotonic()
        self.threads = {address: worker["nthreads"] for address, worker in there.items()}
        for address, worker in there.items():
            last = worker["last_seen"]
            if address in self._seen and self._seen[address][0] == last:
                continue
            if address in self.silent:  # a false alarm: of a busy machine, so that it is given more time from now on
                self._patience[address] = 2 * self._patience.get(address, SILENT)
            self._seen[address] = last, now
        waited = {address: now - self._seen[address][1] for address in there}
        self.silent = {address for address in there if waited[address] > self._patience.get(address, SILENT)}
        self._without = None if self.usable else now if self._without is None else self._without
        patience = dask.config.get("distributed.scheduler.no-workers-timeout", None)
        patience = ABSENT if patience is None else dask.utils.parse_timedelta(patience)
        if self._without is not None and now - self._without > patience:
            what = "only workers that do not answer" if self.silent else "no workers"
            raise LostError(
                f"there have been {what} for {patience:g} s; everything committed is kept: add some with "
                "`dask worker`, and resume"
            )

    def usable_of_some(self) -> list[str] | None:
        """Those that answer, if there are others; None: all, and those that join later."""
        return self.usable if self.silent else None

    @property
    def usable(self) -> list[str]:
        """Those that answer."""
        return [address for address in self.threads if address not in self.silent]


class _PendingSums:
    """Sums on their way to this process while the pass goes on: each for itself, as some workers may not answer."""

    def __init__(self, client: Any, futures: dict[TreeNode, Any]) -> None:
        loop = client.loop.asyncio_loop
        self._parts = {n: asyncio.run_coroutine_threadsafe(_value(client, f), loop) for n, f in futures.items()}
        self._latest = time.monotonic() + ANSWER

    @property
    def over(self) -> bool:
        """Say whether there is nothing more to wait for."""
        return time.monotonic() > self._latest or all(part.done() for part in self._parts.values())

    def results(self) -> dict[TreeNode, Partial]:
        """Return the sums that have come, without those that were joined or lost on the way."""
        self.give_up()
        come = {node: part for node, part in self._parts.items() if not part.cancelled() and part.exception() is None}
        return {node: part.result() for node, part in come.items()}

    def give_up(self) -> None:
        """Wait for no more."""
        for part in self._parts.values():
            part.cancel()


class DistributedPass:
    """A pass on workers; :meth:`run` makes it.

    Parameters
    ----------
    client : distributed.Client
    operator, block, runs : what is computed; see :mod:`npmdask.core.execution.reduction`.
    keeper : what is known of the pass, and commits more of it. ``known`` grows with every commit.
    slots : threads of all workers.

    Attributes
    ----------
    tasks : the parts that tasks compute.
    computed : tasks that have read data; more than there are parts if some were computed again.
    copies : tasks that were submitted once more because of a slow worker.
    failed : whether the error that was raised is that of a task.
    """

    def __init__(
        self, client: Any, operator: Operator, block: Block, runs: list[range], keeper: PassCheckpoint, slots: int
    ) -> None:
        self._client, self._operator, self._runs, self._keeper = client, operator, runs, keeper
        self._work = _PassInputs(operator, runs, block)
        self._token, self._numbers, self._generation = uuid4().hex, 0, 0
        self._root = root(len(runs))
        self._level = (-(-len(runs) // wanted_tasks(operator.pass_bytes, slots)) - 1).bit_length()
        self.tasks = tasks_of(self._root, len(runs), keeper.known, self._level)
        self._leaves = {*self.tasks, *keeper.known}
        self._below: dict[TreeNode, list[TreeNode]] = {}
        self._above: dict[TreeNode, TreeNode] = {}
        self._plan_joins(self._root)
        self._done: dict[TreeNode, Any] = {}
        self._attempts: dict[TreeNode, list[Any]] = {}
        self._events: SimpleQueue[tuple[TreeNode, Any]] = SimpleQueue()
        self._workers = Workers(client)
        self._since: dict[Any, float] = {}  # when a task was first seen on a worker, by key
        self._began, self._told = time.monotonic(), set[int]()
        self._looked, self._polled = self._began, self._began
        self._arriving: _PendingSums | None = None
        self.computed, self.copies, self.failed = 0, 0, False

    @property
    def joins(self) -> int:
        """Count the tasks that join sums."""
        return len(self._below)

    def _plan_joins(self, node: TreeNode) -> None:
        if node in self._leaves:
            return
        self._below[node] = quarters(node, len(self._runs), self._leaves, self._level)
        for part in self._below[node]:
            self._above[part] = node
            self._plan_joins(part)

    def run(self, on_task: OnTask, told: set[int]) -> Partial:
        """The sum over all runs.

        Parameters
        ----------
        on_task : learns of what was read, once for every run.
        told : the runs that it knows of; grows.

        Raises
        ------
        OSError, CancelledError, KilledWorker, LostError
            The cluster is lost: ``keeper.known`` has what is known.
        """
        self._told, self._on_task = told, on_task
        try:
            self._send_work()
            self._need(self._root)
            while True:
                self._until_done()
                try:
                    return ask_scheduler(self._client, ANSWER, partial(_value, self._client, self._done[self._root]))
                # Of a worker: what it has is computed elsewhere once it is known to be silent.
                except SchedulerTimeoutError:
                    self._check_workers()
        finally:
            if self._arriving is not None:
                self._arriving.give_up()
            self._release([f for futures in self._attempts.values() for f in futures])
            self._release([*self._done.values(), self._sent])

    def _until_done(self) -> None:
        while self._root not in self._done:
            with suppress(Empty):
                self._on_future_done(*self._events.get(timeout=min(LOOK, 0.5)))
            now = time.monotonic()
            if now - self._polled > 0.5:
                self._polled = now
                self._replace_lost()
            if now - self._looked > LOOK:
                self._check_workers()
                self._looked = time.monotonic()
            if self._arriving is not None and self._arriving.over:
                self._commit(self._arriving.results())
                self._arriving = None
            if self._arriving is None and self._keeper.due:
                self._arriving = self._largest_new()

    # What is submitted.

    def _send_work(self) -> None:
        self._generation += 1
        self._sent = self._send(self._work)

    def _send(self, value: Any) -> Any:
        return self._client.submit(_unbox, _Box(value), pure=False, **_on_workers(self._workers.usable_of_some()))

    def _submit(self, nodes: list[TreeNode], workers: list[str] | None = None) -> None:
        """Submit tasks, by some of ``workers`` where that matters: in one message, as each would cost a millisecond."""
        if not nodes:
            return
        self._numbers += 1
        # Keys of one name are one group, which the scheduler keeps queued until a worker is free for the next.
        group = f"task-{self._generation}" if workers is None else f"copy-{self._numbers}"
        keys = [(f"{group}-{self._token}", *node) for node in nodes]
        held = [_Box(node) for node in nodes]
        futures = self._client.map(_compute_task, held, work=self._sent, pure=False, key=keys, **_on_workers(workers))
        for node, future in zip(nodes, futures, strict=True):
            self._attempts.setdefault(node, []).append(future)
            self._watch(node, future)

    def _join(self, node: TreeNode, workers: list[str] | None = None) -> None:
        """Submit the join of the parts of a node, which are there."""
        self._numbers += 1
        names = self._below[node]
        parts = [self._done[n] if n in self._done else self._send(self._keeper.known[n]) for n in names]
        key = (f"join-{self._numbers}-{self._token}", *node)
        more = {"priority": 10 + node.level, **_on_workers(workers)}  # before tasks, so that few sums are held
        work = self._sent
        future = self._client.submit(_join_task, work, _Box(node), _Box(names), *parts, pure=False, key=key, **more)
        self._attempts.setdefault(node, []).append(future)
        self._watch(node, future)

    def _resubmit(self, node: TreeNode, workers: list[str]) -> None:
        if node in self._below:
            self._join(node, workers)
        else:
            self._submit([node], workers)

    def _watch(self, node: TreeNode, future: Any) -> None:
        future.add_done_callback(partial(_enqueue_event, self._events, node))

    def _join_if_ready(self, node: TreeNode) -> None:
        if node in self._done or node in self._attempts or node in self._keeper.known:
            return
        if all(part in self._done or part in self._keeper.known for part in self._below[node]):
            self._join(node)

    def _need(self, node: TreeNode) -> None:
        """Have a node computed that is not there and whose parts may not be there either."""
        tasks: list[TreeNode] = []
        self._find_missing(node, tasks)
        self._submit(tasks)

    def _find_missing(self, node: TreeNode, tasks: list[TreeNode]) -> None:
        if node in self._keeper.known:
            if node in self._above:
                self._join_if_ready(self._above[node])
            else:
                self._done[node] = self._send(self._keeper.known[node])
        elif node in self._done or node in self._attempts:
            pass
        elif node in self._below:
            for part in self._below[node]:
                self._find_missing(part, tasks)
            self._join_if_ready(node)
        else:
            tasks.append(node)

    # What comes back.

    def _on_future_done(self, node: TreeNode, future: Any) -> None:
        if not any(future is mine for mine in self._attempts.get(node, ())):
            return  # of a copy that came too late, or was given up
        if future.status == "lost":
            self._watch(node, future)
            return
        if future.status != "finished":
            self.failed = future.status == "error"
            future.result(timeout=ANSWER)  # raises
        self._release(other for other in self._attempts.pop(node) if other is not future)
        self._done[node] = future
        for part in self._below.get(node, ()):
            if held := self._done.pop(part, None):
                self._release([held])
        if node not in self._below:
            self.computed += 1
            self._report_read(node)
        if node in self._above:
            self._join_if_ready(self._above[node])

    def _report_read(self, node: TreeNode) -> None:
        """Say what was read of a node, unless a part of it was read before and has been told of."""
        new = [run for run in node.runs(len(self._runs)) if run not in self._told]
        self._told.update(new)
        cuts = [i for i in range(1, len(new)) if new[i] != new[i - 1] + 1]
        for a, b in zip([0, *cuts], [*cuts, len(new)], strict=True):
            if a < b:
                self._on_task(expected_record(self._operator, range(new[a], new[b - 1] + 1), self._runs))

    def _release(self, futures: Iterable[Any]) -> None:
        for future in futures:
            self._since.pop(future.key, None)
            future.release()

    def _replace_lost(self) -> None:
        """Have computed again what only a dead worker had; of joined parts, only those that were not committed.

        A join that waits for such a part is given up first: for it the scheduler would make the part again.
        """
        lost = [node for node, future in self._done.items() if future.status == "lost"]
        for node in lost:
            future = self._done.pop(node)
            if node in self._above:
                self._release(self._attempts.pop(self._above[node], ()))
            if node in self._below or node in self._keeper.known:
                self._release([future])
            else:  # the scheduler does that already
                self._attempts[node] = [future]
                self._watch(node, future)
        self._drop_joins()
        for node in lost:
            self._need(node)

    def _drop_joins(self) -> None:
        """Give up joins that lack a part: for them the scheduler would make again all that it was made of."""
        for node in [n for n in self._attempts if n in self._below]:
            if any(part not in self._done and part not in self._keeper.known for part in self._below[node]):
                self._release(self._attempts.pop(node))

    # What is kept.

    def _largest_new(self) -> _PendingSums | None:
        """Have the largest nodes sent here that are new since the last commit, at most two for each level of the tree.

        That is what the memory plan has room for here; with hundreds of workers, hundreds of small sums are under way.
        """
        known = self._keeper.known
        new = [n for n, future in self._done.items() if future.status == "finished" and not covered(n, known)]
        new.sort(key=lambda node: (-node.level, node.place))
        most = waiting_sums(self._runs)
        return _PendingSums(self._client, {node: self._done[node] for node in new[:most]}) if new else None

    def _commit(self, arrived: dict[TreeNode, Partial]) -> None:
        """Commit what was known, and what has arrived."""
        if arrived:
            parts = arrived | {n: part for n, part in self._keeper.known.items() if not covered(n, arrived)}
            self._keeper.commit(parts)
            self._keeper.known = parts

    # Who is silent, and who is slow.

    def _check_workers(self) -> None:
        before = self._workers.silent
        self._workers.look()
        processing = ask_scheduler(self._client, ANSWER, lambda: self._client.scheduler.processing(workers=None))
        where = {key: address for address, keys in processing.items() for key in keys}
        if self._workers.silent and self._workers.usable:
            if self._workers.silent - before:
                self._resubmit_uncomputed(where)
            self._abandon(where)
        self._copy_slow(where, {address: len(keys) for address, keys in processing.items()})

    def _result_holders(self) -> dict[Any, set[str]]:
        """The workers that have each result, by key, without those that are silent."""
        keys = [future.key for future in (self._sent, *self._done.values())]
        holders = ask_scheduler(self._client, ANSWER, lambda: self._client.scheduler.who_has(keys=keys))
        return {key: set(holders.get(key, ())) - self._workers.silent for key in keys}

    def _resubmit_uncomputed(self, where: dict[Any, str]) -> None:
        """Give up what is not computed yet: a worker that has to fetch its input might ask a silent one for it."""
        ready = self._result_holders()[self._sent.key]
        self._release([self._sent])
        self._send_work()
        for node, futures in list(self._attempts.items()):
            stays = all(future.status == "finished" or where.get(future.key) in ready for future in futures)
            if node in self._below or not stays:
                self._release(self._attempts.pop(node))
        self._need(self._root)

    def _abandon(self, where: dict[Any, str]) -> None:
        """Have computed elsewhere what silent workers compute, or alone have."""
        holders, silent = self._result_holders(), self._workers.silent
        for node, future in list(self._done.items()):
            if future.status == "finished" and not holders[future.key]:
                self._release([self._done.pop(node)])
        self._drop_joins()
        for node, futures in list(self._attempts.items()):
            if all(where.get(future.key) in silent for future in futures):
                self._release(self._attempts.pop(node))
                self._resubmit(node, self._workers.usable)
        self._need(self._root)

    def _copy_slow(self, where: dict[Any, str], busy: dict[str, int]) -> None:
        """Submit tasks once more that take much longer than others did, once no other work waits for a thread."""
        now = time.monotonic()
        pending = {future.key: node for node, futures in self._attempts.items() for future in futures}
        for key in pending.keys() & where.keys():
            self._since.setdefault(key, now)
        if pending.keys() - where.keys() or not self.computed:
            return
        threads = self._workers.threads
        free = sum(max(0, threads[address] - busy.get(address, 0)) for address in self._workers.usable)
        slots = min(sum(threads.values()), len(self.tasks))
        average = (now - self._began) * slots / self.computed
        for key, node in pending.items():
            others = [address for address in self._workers.usable if address != where[key]]
            slow = now - self._since[key] > max(LEAST, SLOW * average)
            if slow and free and others and len(self._attempts[node]) == 1:
                self._resubmit(node, others)
                self.copies, free = self.copies + 1, free - 1


async def _value(client: Any, future: Any) -> Any:
    return await client.gather(future, asynchronous=True)


def _enqueue_event(events: SimpleQueue[tuple[TreeNode, Any]], node: TreeNode, future: Any) -> None:
    events.put((node, future))


def _on_workers(workers: list[str] | None) -> dict[str, Any]:
    return {"workers": workers, "allow_other_workers": True} if workers else {}
