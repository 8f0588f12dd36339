"""Simulate passes on a cluster that need not exist: tasks, workers, the store, the scheduler, and what fails.

A discrete-event model of what :class:`npmdask.execution.executor.Distributed` does. The tasks are those of the real cut
(:func:`npmdask.execution.reduction.runs_of` and its tree). What flows between events is fluid: a task takes bytes at
the least of what its requests in flight give, what its worker's network and cores give, and its share of the store.
Chunks are not simulated, so that 100 TB on 1,000 workers take seconds. A seed decides what fails, and when.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from npmdask.errors import BadInputError
from npmdask.execution.distributed_pass import wanted_tasks
from npmdask.execution.reduction import COMMIT_SECONDS, TreeNode, root, tasks_of

# Processor time of passes of 16 to 1,024 tasks without work, on 1, 2 and 8 workers of a quiet machine with two cores.
TASK_SECONDS = 0.0015  # of driver and scheduler together, for a task, and for a join: 1.1 to 1.5 ms
HANDLING_SECONDS = 0.002  # of a worker, which unpacks, answers, and notes: 1.5 to 3.3 ms
LOCAL_SECONDS = 3e-4  # of a task or a join, by threads of one process
ADDING = 1e-9  # seconds a byte of a sum that another is added to
LINKS = 10  # transfers that a worker serves at once (distributed's default)
HOP = 0.002  # seconds until a message is answered, and the next one sent
FASTEST = 1e15  # bytes a second of a task that waits for nothing
STEP = 1e-3  # of the shortest task: events nearer to each other count as simultaneous
HOPELESS = 200  # losses for each worker in one pass: it is not going to end


@dataclass(frozen=True, kw_only=True)
class ClusterModel:
    """A cluster and the store that it reads. Rates in bytes a second, times in seconds.

    Parameters
    ----------
    workers, threads : processes, and threads of each.
    processes : workers of ``distributed``; False: threads of one process (one worker).
    cores : of each worker; None: one for each thread.
    shared_cores : of the machine, if all workers are processes of one; else None.
    latency, connection : of a request: until its first byte, and the rate from then on.
    in_flight : bytes that a worker asks for ahead of its arithmetic; 0: each thread asks for one chunk at a time.
    worker_rate, store_rate : the most that a worker gets from the store, and all together.
    request_rate : requests a second that the store answers, of all together.
    network : between workers, and to the driver.
    task_seconds, handling_seconds : of scheduler and driver, and of a worker, for each task or join.
    commit_seconds : between two commits of partial sums, which travel to the driver.
    losses_per_hour, restart : how often a worker is lost, and after how long another one takes its place.
    slow_share, slow_factor : of the workers so many take so many times as long.
    joined : sums that one task joins: 2, or 4.
    keeps_committed : whether a pass that goes on after a loss takes what was committed, and not the data once more.
    """

    workers: int
    threads: int = 1
    processes: bool = True
    cores: float | None = None
    shared_cores: float | None = None
    latency: float = 0.0
    connection: float = math.inf
    in_flight: float = 0.0
    worker_rate: float = math.inf
    store_rate: float = math.inf
    request_rate: float = math.inf
    network: float = math.inf
    task_seconds: float = TASK_SECONDS
    handling_seconds: float = HANDLING_SECONDS
    commit_seconds: float = COMMIT_SECONDS
    losses_per_hour: float = 0.0
    restart: float = 120.0
    slow_share: float = 0.0
    slow_factor: float = 1.0
    joined: int = 4
    keeps_committed: bool = True

    def __post_init__(self) -> None:
        whole = {"workers": self.workers, "threads": self.threads}
        above = ("connection", "worker_rate", "store_rate", "request_rate", "network", "commit_seconds")
        least = ("latency", "in_flight", "task_seconds", "handling_seconds", "losses_per_hour", "restart", "slow_share")
        wrong = [f"{name} = {value}: give a whole number from 1 on" for name, value in whole.items() if value < 1]
        wrong += [f"{n} = {getattr(self, n)}: give a number above 0" for n in above if not getattr(self, n) > 0]
        wrong += [f"{n} = {getattr(self, n)}: give 0 or more" for n in least if not 0 <= getattr(self, n) < math.inf]
        for name in ("cores", "shared_cores"):
            value = getattr(self, name)
            wrong += [f"{name} = {value}: give a number above 0"] if value is not None and not value > 0 else []
        wrong += [] if self.slow_share <= 1 else [f"slow_share = {self.slow_share}: give a share of at most 1"]
        wrong += [] if self.joined in (2, 4) else [f"joined = {self.joined}: give 2 or 4"]
        wrong += [] if self.slow_factor >= 1 else [f"slow_factor = {self.slow_factor}: give 1 or more"]
        if wrong:
            raise BadInputError(f"no cluster can be simulated with {'; '.join(wrong)}")


@dataclass(frozen=True, kw_only=True)
class PassWork:
    """What a pass has to do, wherever it is done.

    Parameters
    ----------
    runs : bytes in the store of each run of the cut.
    chunk : bytes in the store of a chunk, for which a request is sent.
    core_seconds : of one core for a byte in the store: decoded, checked and multiplied.
    sum_bytes, block_bytes : of a partial sum, and of the block that every worker needs first.
    step_seconds : of the driver after the pass (QR, Rayleigh-Ritz), which nothing shares.
    count : how many passes are like this one.
    decoded : bytes of the values, which decide how a pass is cut; 0: as many as in the store.
    """

    runs: tuple[float, ...]
    chunk: float
    core_seconds: float
    sum_bytes: float = 0.0
    block_bytes: float = 0.0
    step_seconds: float = 0.0
    count: int = 1
    decoded: float = 0.0

    @property
    def nbytes(self) -> float:
        """Bytes in the store that one pass reads."""
        return float(sum(self.runs))


@dataclass(frozen=True, kw_only=True)
class SimulatedPass:
    """What a pass took. ``nbytes``: read from the store, of which ``redone`` were read again because a worker was lost.

    ``seconds`` are infinite if workers are lost faster than their work is done. ``gathered``: bytes of partial sums
    that the largest of the ``commits`` brought to the driver.
    """

    seconds: float
    nbytes: float
    redone: float
    tasks: int
    losses: int
    commits: int
    gathered: float


def simulate_pass(work: PassWork, cluster: ClusterModel, seed: int = 0) -> SimulatedPass:
    """Simulate one pass, from the block that is sent out to the step after the last join.

    Parameters
    ----------
    work, cluster : what is done, and by what.
    seed : of losses and slow workers: the same seed gives the same times.
    """
    return _Pass(work, cluster, seed).run()


@dataclass
class _Tree:
    """The nodes of a pass by number: those without parts are tasks, the last node is the whole."""

    parent: list[int] = field(default_factory=list)
    parts: list[tuple[int, ...]] = field(default_factory=list)
    nbytes: list[float] = field(default_factory=list)
    covers: list[int] = field(default_factory=list)  # runs

    @classmethod
    def of(cls, runs: Sequence[float], level: int, joined: int) -> _Tree:
        tree, count = cls(), len(runs)
        tasks = set(tasks_of(root(count), count, (), level))

        def below(node: TreeNode) -> list[TreeNode]:
            halves = node.children(count)
            if joined == 2:
                return halves
            return [part for half in halves for part in ([half] if half in tasks else half.children(count))]

        def add(node: TreeNode) -> int:
            parts = () if node in tasks else tuple(add(part) for part in below(node))
            number = len(tree.parent)
            tree.parent.append(-1)
            tree.parts.append(parts)
            tree.covers.append(len(node.runs(count)))
            tree.nbytes.append(0.0 if parts else sum(runs[at] for at in node.runs(count)))
            for part in parts:
                tree.parent[part] = number
            return number

        add(root(count))
        return tree


def task_level(work: PassWork, cluster: ClusterModel) -> int:
    """The level of the tree whose nodes are tasks: few, but some for every thread."""
    if not cluster.processes:
        return 0
    wanted = wanted_tasks(int(work.decoded or work.nbytes), cluster.workers * cluster.threads)
    return (-(-len(work.runs) // wanted) - 1).bit_length()


START, READY, JOINED, LOST, BACK, COMMIT = range(6)


class _Pass:
    """The state of a simulation; times are seconds since the pass began."""

    def __init__(self, work: PassWork, cluster: ClusterModel, seed: int) -> None:
        self.work, self.cluster, self.rng = work, cluster, np.random.default_rng(seed)
        self.tree = _Tree.of(work.runs, task_level(work, cluster), cluster.joined)
        nodes, workers = len(self.tree.parent), cluster.workers
        self.missing = [len(parts) for parts in self.tree.parts]
        self.committed = set[int]()
        self.done, self.used, self.holder = [False] * nodes, [False] * nodes, [-1] * nodes
        self.joining = [-1] * nodes  # where a join is waited for
        self.queue = deque(n for n in range(nodes) if not self.tree.parts[n])
        self.tasks = len(self.queue)
        self.served = np.zeros(workers)  # bytes that each running task of a worker was given
        self.active: list[list[tuple[float, int]]] = [[] for _ in range(workers)]
        self.running = np.zeros(workers)
        self.next = np.full(workers, np.inf)  # ``served`` at which the first of them is done
        self.free = [cluster.threads] * workers
        self.waiting: list[deque[int]] = [deque() for _ in range(workers)]  # joins that have no thread yet
        self.alive, self.epoch = [True] * workers, [0] * workers
        self.link_free = [0.0] * workers
        self.ready = self._block_arrives()
        slow = self.rng.random(workers) < cluster.slow_share
        self.cost = cluster.task_seconds if cluster.processes else LOCAL_SECONDS
        self.handling = cluster.handling_seconds if cluster.processes else 0.0
        shared = cluster.shared_cores is not None and cluster.processes  # what coordinates needs the same cores
        more = nodes * (self.cost + self.handling) / work.nbytes if shared else 0.0
        self.seconds = (work.core_seconds + more) * np.where(slow, cluster.slow_factor, 1.0)
        self.alone, self.of_worker = self._alone(), self._of_worker()
        self.now = self.scheduler = self.gathered = 0.0
        self.events: list[tuple[float, int, int, int, int, int]] = []
        self.number = self.losses = self.commits = self.most_fetched = 0
        self.nbytes = self.redone = 0.0
        self.running += cluster.threads
        self._rates()  # of a pass in full swing
        self.near = STEP * min(n for n in self.tree.nbytes if n) / float(self.rate.max())
        self.running[:] = 0

    def _block_arrives(self) -> list[float]:
        """When each worker has the block: one has it first, and each that has it serves some others at once."""
        cluster, arrives, have = self.cluster, list[float](), 1
        if not cluster.processes:
            return [0.0] * cluster.workers
        once = self.work.block_bytes / cluster.network
        now = once + 2 * HOP
        arrives.append(now)
        while len(arrives) < cluster.workers:
            more = min(LINKS * have, cluster.workers - len(arrives))
            now += once * -(-more // have) + 2 * HOP
            arrives += [now] * more
            have += more
        return arrives

    # Time.

    def run(self) -> SimulatedPass:
        whole = len(self.tree.parent) - 1
        for worker in [*range(self.cluster.workers)] * self.cluster.threads:
            self._take(worker)
        if self.cluster.losses_per_hour:
            self._plan_loss()
        if self.cluster.processes:
            self._at(self.cluster.commit_seconds, COMMIT)
        self._rates()
        while not self.done[whole]:
            if self.losses > HOPELESS * self.cluster.workers:
                return self._answer(math.inf)
            self._advance()
        transfer = self.work.sum_bytes / self.cluster.network + 2 * HOP if self.cluster.processes else 0.0
        return self._answer(max(self.now, self.gathered) + transfer + self.work.step_seconds)

    def _answer(self, seconds: float) -> SimulatedPass:
        return SimulatedPass(
            seconds=float(seconds),
            nbytes=float(self.work.nbytes + self.redone),
            redone=float(self.redone),
            tasks=self.tasks,
            losses=self.losses,
            commits=self.commits,
            gathered=float(self.most_fetched * self.work.sum_bytes),
        )

    def _alone(self) -> np.ndarray:
        """Bytes a second of a task that shares nothing: the cycle of its requests under way, or its arithmetic."""
        cluster, chunk = self.cluster, self.work.chunk
        requests = max(1.0, cluster.in_flight / (cluster.threads * chunk))
        cycle = cluster.latency + chunk / min(cluster.connection, cluster.worker_rate) + self.seconds * chunk
        with np.errstate(divide="ignore"):
            return np.asarray(np.minimum(np.minimum(requests * chunk / cycle, 1 / self.seconds), FASTEST))

    def _of_worker(self) -> np.ndarray:
        """Bytes a second of all tasks of a worker together, by its cores and its way to the store."""
        cores = min(self.cluster.cores or self.cluster.threads, self.cluster.threads)
        with np.errstate(divide="ignore"):
            return np.asarray(np.minimum(cores / self.seconds, self.cluster.worker_rate))

    def _rates(self) -> None:
        """Bytes a second of each task of each worker: the least of all that it waits for."""
        cluster = self.cluster
        rate = np.minimum(self.alone, self.of_worker / np.maximum(self.running, 1))
        rate = np.where(self.running > 0, rate, 0.0)
        if cluster.shared_cores is not None:
            rate = _shared(rate, self.running * self.seconds, cluster.shared_cores)
        ceiling = min(cluster.store_rate, cluster.request_rate * self.work.chunk)
        self.rate = _shared(rate, self.running, ceiling)

    def _advance(self) -> None:
        """Go to the next event, and do all that happens then."""
        with np.errstate(divide="ignore", invalid="ignore"):
            left = np.where(self.running > 0, (self.next - self.served) / self.rate, np.inf)
        until = min(float(left.min()), self.events[0][0] - self.now if self.events else math.inf)
        if until == math.inf:
            raise AssertionError("a simulated pass has nothing left to wait for")
        until = max(until, 0.0)
        self.served += self.rate * until
        self.now += until
        for nearest in np.flatnonzero(left <= until + self.near):
            self._finish_tasks(int(nearest))
        while self.events and self.events[0][0] <= self.now + self.near:
            _, _, what, worker, epoch, node = heapq.heappop(self.events)
            if epoch == (self.epoch[worker] if worker >= 0 else 0):
                self._happens(what, worker, node)
        self._rates()

    def _at(self, when: float, what: int, worker: int = -1, node: int = -1) -> None:
        self.number += 1
        epoch = self.epoch[worker] if worker >= 0 else 0
        heapq.heappush(self.events, (when, self.number, what, worker, epoch, node))

    def _happens(self, what: int, worker: int, node: int) -> None:
        if what == START:
            heapq.heappush(self.active[worker], (self.served[worker] + self.tree.nbytes[node], node))
            self._count(worker)
        elif what == READY:
            self.waiting[worker].append(node)
            if self.free[worker]:
                self._take(worker)
        elif what == JOINED:
            self._done(node, worker)
            self.free[worker] += 1
            self._take(worker)
        elif what == LOST:
            self._lose(node)
        elif what == BACK:
            self._come_back(node)
        else:
            self._commit()

    def _count(self, worker: int) -> None:
        self.running[worker] = len(self.active[worker])
        self.next[worker] = self.active[worker][0][0] if self.active[worker] else np.inf

    # Work.

    def _scheduled(self) -> float:
        """When the scheduler has sent the next task or join: it does one after the other."""
        begin = max(self.now, self.scheduler)
        self.scheduler = begin + self.cost
        return begin

    def _take(self, worker: int) -> None:
        """A thread is free: it joins what waits, or takes the next task."""
        if not self.free[worker] or not self.alive[worker]:
            return
        if self.waiting[worker]:
            self.free[worker] -= 1
            node = self.waiting[worker].popleft()
            adding = self.handling + ADDING * self.work.sum_bytes * (len(self.tree.parts[node]) - 1)
            self._at(self.now + adding, JOINED, worker, node)
        elif self.queue:
            self.free[worker] -= 1
            node = self.queue.popleft()
            self._at(max(self._scheduled(), self.ready[worker]) + self.handling, START, worker, node)

    def _finish_tasks(self, worker: int) -> None:
        end = self.served[worker] * (1 + 1e-12) + self.rate[worker] * self.near + 1e-3
        while self.active[worker] and self.active[worker][0][0] <= end:
            _, node = heapq.heappop(self.active[worker])
            self.free[worker] += 1
            self._done(node, worker)
        self._count(worker)
        for _ in range(self.free[worker]):
            self._take(worker)

    def _done(self, node: int, worker: int) -> None:
        """A sum is there: with its neighbours it is joined, where the last of them was made."""
        self.done[node], self.holder[node], self.joining[node] = True, worker, -1
        for part in self.tree.parts[node]:
            self.used[part] = True
        parent = self.tree.parent[node]
        if parent < 0:
            return
        self.missing[parent] -= 1
        if not self.missing[parent]:
            self._join(parent, worker)

    def _join(self, node: int, worker: int) -> None:
        """All parts are there: those that are elsewhere travel, one after the other."""
        arrives = self._scheduled()
        for part in self.tree.parts[node]:
            if self.holder[part] != worker:
                begin = max(arrives, self.link_free[worker])
                arrives = self.link_free[worker] = begin + self.work.sum_bytes / self.cluster.network + HOP
        self.joining[node] = worker
        self._at(arrives, READY, worker, node)

    def _commit(self) -> None:
        """The largest of what is finished and not joined travels to the driver, as far as that has room for it.

        Nothing else waits for it but the end.
        """
        new = [n for n, done in enumerate(self.done) if done and not self.used[n] and n not in self.committed]
        new.sort(key=lambda node: -self.tree.covers[node])
        fetched = new[: 2 * len(self.work.runs).bit_length()]
        if self.cluster.keeps_committed:
            self.committed.update(fetched)
        self.commits += 1
        self.most_fetched = max(self.most_fetched, len(fetched))
        self.gathered = self.now + len(fetched) * self.work.sum_bytes / self.cluster.network
        self._at(self.gathered + self.cluster.commit_seconds, COMMIT)

    # Failures.

    def _plan_loss(self) -> None:
        rate = self.cluster.losses_per_hour * self.cluster.workers / 3600
        worker = int(self.rng.integers(self.cluster.workers))
        self._at(self.now + self.rng.exponential(1 / rate), LOST, node=worker)

    def _lose(self, worker: int) -> None:
        """A worker is lost with its tasks, and with the sums that it holds: they are made again from the data, or of
        what was committed.
        """
        self._plan_loss()
        if not self.alive[worker]:
            return
        self.losses += 1
        for end, node in self.active[worker]:
            self.redone += self.tree.nbytes[node] - (end - self.served[worker])
        starting = [event[5] for event in self.events if event[2:5] == (START, worker, self.epoch[worker])]
        self.queue.extendleft([node for _, node in self.active[worker]] + starting)
        self.active[worker], self.free[worker], self.alive[worker] = [], 0, False
        self.waiting[worker].clear()
        self.epoch[worker] += 1  # what was going to happen there will not
        self._count(worker)
        joins = [node for node, where in enumerate(self.joining) if where == worker]
        for node in joins:
            self.joining[node] = -1
        for node, parent in enumerate(self.tree.parent):
            held = self.done[node] and not self.used[node] and self.holder[node] == worker
            if held and self.joining[parent] < 0 and node not in self.committed:  # else it has been sent
                self.missing[parent] += 1
                self._undo(node)
        for node in joins:
            if not self.missing[node]:
                self._join(node, self._some_worker())
        self._at(self.now + self.cluster.restart, BACK, node=worker)
        for other in range(self.cluster.workers):
            for _ in range(self.free[other]):
                self._take(other)

    def _undo(self, node: int) -> None:
        """A sum is lost, and of what it was made no worker holds anything any more."""
        self.done[node] = self.used[node] = False
        parts = self.tree.parts[node]
        if not parts:
            self.queue.appendleft(node)
            self.redone += self.tree.nbytes[node]
        for part in parts:
            if part in self.committed:
                self.used[part] = False
            else:
                self.missing[node] += 1
                self._undo(part)
        if parts and not self.missing[node]:
            self._join(node, self._some_worker())

    def _some_worker(self) -> int:
        """One that is there, if there is any."""
        return next((worker for worker, alive in enumerate(self.alive) if alive), 0)

    def _come_back(self, worker: int) -> None:
        self.alive[worker], self.free[worker] = True, self.cluster.threads
        self.ready[worker] = self.now + self.work.block_bytes / self.cluster.network + 2 * HOP
        for _ in range(self.cluster.threads):
            self._take(worker)


def _shared(rate: np.ndarray, weights: np.ndarray, ceiling: float) -> np.ndarray:
    """Rates cut to one level, so that those weighted sum to at most ``ceiling``: what one cannot use, others can."""
    if ceiling == math.inf or float(rate @ weights) <= ceiling:
        return rate
    under = np.zeros(len(rate), bool)
    while True:
        rest = weights[~under].sum()
        level = (ceiling - float(rate[under] @ weights[under])) / rest
        below = ~under & (rate < level)
        if not below.any():
            return np.where(under, rate, np.where(rate > 0, np.minimum(rate, level), 0.0))
        under |= below
