"""Passes on workers of ``distributed``: processes of this machine, or a cluster given by address.

How a pass is cut and in which order its parts are summed is :mod:`npmdask.core.execution.reduction`' business; here the
parts become tasks. BLAS is pinned to one thread inside a task, so the product has the same bits everywhere.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor
from functools import partial
from multiprocessing.resource_tracker import ensure_running
from typing import Any

import dask
from threadpoolctl import threadpool_limits

from npmdask.cluster.clusters import SchedulerAddress, among_ourselves, refusal, refused, security_of
from npmdask.cluster.distributed_pass import (
    ANSWER,
    DistributedPass,
    SchedulerTimeoutError,
    ask_scheduler,
    run_on_workers,
)
from npmdask.core.execution.memory import WORKER_BASE, MemoryPlan, ProcessPeak, high_water
from npmdask.core.execution.reduction import PassCheckpoint, runs_of
from npmdask.core.execution.threads import OnTask, environment, grant
from npmdask.core.numerics.subspaces import Block
from npmdask.core.operators import Operator
from npmdask.core.storage.chunk_access import first_line
from npmdask.core.storage.paths import is_url
from npmdask.core.storage.readers.dense import ReadStats
from npmdask.errors import BadInputError, LostError, MemoryRefusedError, RefusedError, package_version
from npmdask.gpu.devices import visible_cards

RECONNECT = 60.0  # seconds for which a lost scheduler is tried again
PEAK_SECONDS = 10.0  # for an answer that a run can do without
CONNECT = 10.0  # seconds for its greeting
RECONNECTIONS = 5  # in one pass: each begins it again with what was committed


SILENCE = 10.0  # seconds after which a worker cannot be reached: three packets are lost then


class Distributed:
    """Runs passes on the workers of a ``distributed`` client."""

    where = "the worker processes"
    elsewhere = False

    def __init__(self, client: Any, slots: int) -> None:
        self._client, self._slots = client, slots

    def everywhere(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Run ``function`` in each process that computes and return the results. Its errors are raised here."""
        return list(self._client.run(function, *arguments).values())

    def anywhere(self, function: Callable[..., Any], *arguments: Any, seconds: float | None = None) -> Any:
        """Run ``function`` in one process that computes, as a task beside the passes. Its errors are raised here.

        If a worker dies, another one does it. After ``seconds`` it is given up (TimeoutError), without waiting for
        anybody: workers may be busy or gone.
        """
        with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1TiB"}):  # blocks are in there
            future = self._client.submit(function, *arguments, pure=False)
        try:
            return future.result(timeout=seconds)
        finally:
            future.release()

    def allow(self, in_flight: int) -> None:
        """Let every worker, also one that joins later, have bytes in flight: of what this run reads, and no other."""
        self._client.register_worker_callbacks(partial(grant, "worker", in_flight))

    def run_pass(
        self, operator: Operator, block: Block, on_task: OnTask, keeper: PassCheckpoint | None = None
    ) -> tuple[Block, ReadStats]:
        """``A @ block`` in one pass, and what the reading cost.

        ``on_task`` learns of every finished task; what ``keeper`` knows of the pass is not computed again. Only
        blocks of p columns travel. What happens to workers meanwhile: :mod:`npmdask.cluster.distributed_pass`.

        Raises
        ------
        LostError
            The scheduler or all workers are gone, or tasks kill one worker after the other.
        """
        from distributed import KilledWorker

        runs, keeper = runs_of(operator), keeper or PassCheckpoint()
        told = {run for node in keeper.known for run in node.runs(len(runs))}
        for left in range(RECONNECTIONS, -1, -1):
            made = None
            try:
                self._require_client()
                with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1TiB"}):  # the block
                    made = DistributedPass(self._client, operator, block, runs, keeper, self._slots)
                    total = made.run(on_task, told)
                return operator.finish(total, block), total.record
            except (CancelledError, OSError, KilledWorker) as error:
                if (made is not None and made.failed) or not left or not self._reconnect():
                    raise LostError(
                        f"{self.where} was lost during a pass ({type(error).__name__}: {first_line(error)}); "
                        "everything committed is kept: start it again and resume"
                    ) from error
        raise AssertionError("the last try returns or raises")

    def _require_client(self) -> None:
        """A client that can be asked; raises OSError."""

    def _reconnect(self) -> bool:
        """Say whether the scheduler can be reached once more."""
        return False


class Processes(Distributed):
    """Runs passes on worker processes of this machine (dask.distributed): on loopback, and for no other user there."""

    def __init__(self, workers: int, threads: int) -> None:
        from distributed import Client, LocalCluster

        self.threads = threads
        before = dict(os.environ)
        self._loop = _loop_without_sigint()
        try:
            with dask.config.set(WORKER_SETTINGS):
                self._cluster = LocalCluster(
                    n_workers=workers,
                    threads_per_worker=threads,
                    processes=True,
                    loop=self._loop.loop,
                    host="127.0.0.1",
                    security=among_ourselves(),
                    dashboard_address="127.0.0.1:0",  # of the HTTP server; 8787 may be taken
                    memory_limit=0,  # the plan below is the limit; distributed would pause or kill a worker instead
                    silence_logs=50,  # what fails is a sentence; not by a worker that is ended
                )
        except (OSError, RuntimeError) as error:  # it has closed what it had started
            self._loop.stop()
            _restore_environment(_changes(before))
            raise LostError(
                f"the {workers} worker processes could not be started ({first_line(error.__cause__ or error)}), "
                "perhaps because one was killed: run the same command again; everything committed is kept"
            ) from error
        super().__init__(Client(self._cluster, set_as_default=False), workers * threads)
        if cards := visible_cards():
            self._client.register_worker_callbacks(partial(_take_card, cards))
        self._before = _changes(before)

    def peaks(self) -> list[ProcessPeak]:
        """Return no peaks: all processes are below this one."""
        return []

    def close(self) -> None:
        """Stop the worker processes."""
        self._client.close()
        self._cluster.close()
        self._loop.stop()
        _restore_environment(self._before)


def _changes(before: dict[str, str]) -> dict[str, str | None]:
    """Return the former values of environment variables that differ from ``before`` now; None: was not set."""
    return {name: before.get(name) for name, value in os.environ.items() if before.get(name) != value}


def _restore_environment(changes: dict[str, str | None]) -> None:
    """distributed leaves what it sets for its workers in our own environment, for every child to inherit."""
    for name, value in changes.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value


def _loop_without_sigint() -> Any:
    """Start an event loop whose thread takes no SIGINT, and neither do the processes that it starts.

    A terminal sends it to all of them; it is ours to end the workers, which would print a traceback each.
    """
    from distributed.utils import LoopRunner

    ensure_running()  # else the first process to be started starts this one before it, and takes SIGINT again
    made = LoopRunner(asynchronous=False)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # inherited by threads and processes
    try:
        made.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return made


def _pin_blas() -> None:
    """Keep BLAS on one thread in a worker for as long as it lives."""
    threadpool_limits(limits=1)


class Cluster(Distributed):
    """Runs passes on the workers of a ``distributed`` cluster that is given by the address of its scheduler.

    An address that knows a client of the user's (:func:`npmdask.cluster.clusters.scheduler_of`) is reached by it.
    The workers need this version of npmdask and NumPy, and to see the data under the same path or URL.
    ``certificates``: see :func:`npmdask.cluster.clusters.security_of`.
    """

    elsewhere = True

    def __init__(self, address: str, source: str, certificates: str | None = None) -> None:
        known = address if isinstance(address, SchedulerAddress) else SchedulerAddress(address)
        if certificates is not None and (known.client or known.security):
            raise BadInputError(f"the cluster at {address} has its own certificates: leave certificates out")
        self._owned = known.client is None
        client = known.client or _connect_client(known, certificates)
        self.address, self.warnings, self._known, self._certificates = str(address), list[str](), known, certificates
        super().__init__(client, 1)
        try:
            self._require_workers(source)
            self._require_ways()
        except BaseException:
            self.close()
            raise

    def _require_workers(self, source: str) -> None:
        """Workers there are, of the same versions, that see the data; their BLAS pinned."""
        if not self._client.scheduler_info(n_workers=-1)["workers"]:
            raise LostError(f"the cluster at {self.address} has no workers; add some with `dask worker`")
        try:
            there = run_on_workers(self._client, ANSWER, _facts, source)
            silent = [worker for worker, facts in there.items() if isinstance(facts, SchedulerTimeoutError)]
            if not silent:  # BLAS is pinned in those that join later, too
                ask_scheduler(self._client, ANSWER, lambda: self._client.register_worker_callbacks(_pin_blas))
        except OSError as error:  # of the scheduler, which connects to every worker; imports raise other errors
            raise LostError(
                f"the scheduler at {self.address} knows workers that it cannot reach ({first_line(error)}): open their "
                f"ports for it, or start them at an address that it reaches (dask worker --host ADDRESS)"
            ) from error
        except Exception as error:  # whatever a foreign Python raises when npmdask cannot be imported in it
            raise RefusedError(
                f"the workers at {self.address} cannot run npmdask ({type(error).__name__}: {error}): install the same "
                "version there as here"
            ) from error
        if silent:
            raise LostError(
                f"the workers {', '.join(silent)} have not answered for {ANSWER:g} s: end them, or wait until the "
                "scheduler has given them up (distributed.scheduler.worker-ttl)"
            )
        here = _facts(source)
        for worker, facts in there.items():
            differing = [f"{n} {facts[n]} (here {v})" for n, v in here.items() if facts[n] != v]
            if not facts["sees the data"]:
                raise RefusedError(f"worker {worker} does not see {source}: put it on a shared disk or an object store")
            if facts["npmdask"] != here["npmdask"] or facts["numpy"] != here["numpy"]:
                raise RefusedError(f"worker {worker} has {', '.join(differing)}: install the same versions everywhere")
            if differing:
                self.warnings.append(
                    f"worker {worker} has {', '.join(differing)}: the result is as accurate, but its last bits depend "
                    "on which worker does what"
                )

    def _require_ways(self) -> None:
        """Every worker reaches others. Where they do not, a pass would wait for its sums without an end."""
        workers = sorted(self._client.scheduler_info(n_workers=-1)["workers"])
        found = run_on_workers(self._client, ANSWER, _find_unreachable, workers)
        for worker, (peer, why) in ((w, each) for w, each in found.items() if isinstance(each, tuple)):
            if peer:
                raise LostError(
                    f"worker {worker} cannot reach worker {peer} ({why}), and they send one another their sums: open "
                    f"their ports, or start them at addresses that all reach (dask worker --host ADDRESS)"
                )

    @property
    def threads(self) -> int:
        """Return the number of threads of the worker that has the most."""
        there = self._client.scheduler_info(n_workers=-1)["workers"].values()
        return max((worker["nthreads"] for worker in there), default=1)

    @property
    def where(self) -> str:  # type: ignore[override]
        """For people."""
        return f"the cluster at {self.address}"

    def _require_client(self) -> None:
        if self._client.status != "running":  # the user's, which the user closes
            raise OSError(f"the client is {self._client.status}")
        there = self._client.scheduler_info(n_workers=-1)["workers"].values()
        self._slots = max(self._slots, sum(worker["nthreads"] for worker in there))

    def _reconnect(self) -> bool:
        """Wait until the scheduler answers again: with a client of our own, or when the user's has connected again."""
        end = time.monotonic() + RECONNECT
        while time.monotonic() < end:
            try:
                if self._owned:
                    self._client.close(timeout=1)
                    self._client = _connect_client(self._known, self._certificates)
                elif self._client.status in ("closed", "closing"):
                    return False
                ask_scheduler(self._client, ANSWER, lambda: self._client.scheduler.identity(n_workers=0))
                return True
            except (OSError, LostError):
                time.sleep(min(1.0, max(0.0, end - time.monotonic())))
        return False

    def require_memory(self, plan: MemoryPlan) -> None:
        """Refuse workers whose own limit is less than their tasks need; ``memory`` is about this machine."""
        for address, worker in self._client.scheduler_info(n_workers=-1)["workers"].items():
            needed = WORKER_BASE + plan.state + plan.task * worker["nthreads"] + plan.in_flight
            if worker["memory_limit"] and needed > worker["memory_limit"]:
                self.close()
                raise MemoryRefusedError(
                    f"worker {address} may use {worker['memory_limit'] // 2**20} MiB and needs {-(-needed // 2**20)} "
                    f"for {worker['nthreads']} threads: start it with a larger --memory-limit or fewer --nthreads"
                )

    def peaks(self) -> list[ProcessPeak]:
        """Peak memory of every worker since it began; nothing of those that do not answer."""
        try:
            there = run_on_workers(self._client, PEAK_SECONDS, _peak)
        except OSError:
            return []
        found = [(f"worker {at}", peak) for at, peak in there.items() if not isinstance(peak, SchedulerTimeoutError)]
        return [ProcessPeak(pid=pid, name=name, peak_rss_bytes=peak) for name, (pid, peak) in found]

    def close(self) -> None:
        """Leave the cluster; it goes on without us, and so does a client of the user's."""
        if self._owned:
            self._client.close()


def _take_card(cards: list[str], dask_worker: Any) -> None:
    """Let a worker process see one GPU, as those of dask-cuda do: workers are numbered, and take turns."""
    os.environ["CUDA_VISIBLE_DEVICES"] = cards[int(dask_worker.name) % len(cards)]


async def _await_greeting(address: str, security: Any) -> None:
    """Wait for a scheduler's greeting, for which a client would wait without end.

    Raises
    ------
    OSError
        None came, or there is nothing at this address.
    """
    from distributed import Security
    from distributed.comm import connect

    ways = (security or Security()).get_connection_args("client")
    try:
        comm = await asyncio.wait_for(connect(address, timeout=CONNECT, **ways), CONNECT)
    except TimeoutError as error:
        raise SchedulerTimeoutError(str(error) or f"no answer in {CONNECT:g} s") from None
    await comm.close()


def _connect_client(address: SchedulerAddress, certificates: str | None) -> Any:
    """A client of ours. Raises LostError, RefusedError or BadInputError."""
    from distributed import Client

    security = address.security or security_of(address, certificates)
    for name in list(logging.root.manager.loggerDict):
        if name.split(".")[0] == "distributed":  # what it would print, with traceback, is a sentence
            logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        with ThreadPoolExecutor(1) as pool:  # as this thread may have a loop that runs
            pool.submit(asyncio.run, _await_greeting(str(address), security)).result()
        return Client(str(address), timeout=CONNECT, set_as_default=False, security=security)
    except (OSError, ValueError, TypeError, RuntimeError) as error:  # the last where Dask is set to ask for TLS
        if security is not None and refused(error):
            raise RefusedError(refusal(address, error)) from error
        raise (LostError if isinstance(error, OSError) else BadInputError)(
            f"no Dask scheduler answers at {address} ({error}); start one with `dask scheduler` and workers with "
            f"`dask worker {address}`, or leave out cluster; one that speaks TLS is at tls://"
        ) from error


async def _find_unreachable(workers: list[str], dask_worker: Any) -> tuple[str, str]:
    """Return one of some other workers that takes no connection from this one, and why; two empty texts if all do.

    Asked are those that follow at distances 1, 2, 4 ...: few of hundreds, and across every border between two groups.
    """
    if dask_worker.address not in workers:  # it has just joined
        return ("", "")
    place, peers = workers.index(dask_worker.address), dict[str, None]()
    for doubling in range((len(workers) - 1).bit_length()):
        peers[workers[(place + 2**doubling) % len(workers)]] = None
    found = await asyncio.gather(*map(_why_not, peers))
    return next(((peer, why) for peer, why in zip(peers, found, strict=True) if why), ("", ""))


async def _why_not(address: str) -> str:
    """Why nothing can be sent to a worker. Its kernel takes the connection, however busy it is itself."""
    protocol, _, at = address.partition("://")
    if protocol not in ("tcp", "tls"):
        return ""
    host, _, port = at.rpartition(":")
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(host.strip("[]"), int(port)), SILENCE)
    except TimeoutError:
        return f"no answer in {SILENCE:.0f} s"
    except OSError as error:
        return first_line(error)
    writer.close()
    return ""


def _peak() -> tuple[int, int]:
    return os.getpid(), high_water()


def _facts(source: str) -> dict[str, Any]:
    """Return the facts that must be the same on every worker."""
    sees = is_url(source) or source.startswith("memory") or os.path.exists(source)
    return {"npmdask": package_version(), "sees the data": sees, **environment()}


# Left at distributed's 64 KiB, every buffer would be given back and faulted in again; and glibc, once it knows the
# one threshold, no longer adapts the other, so that every product would be mapped and unmapped.
WORKER_ENVIRONMENT = {
    "MALLOC_TRIM_THRESHOLD_": str(2**30),
    "MALLOC_MMAP_THRESHOLD_": str(2**30),
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}

HEALTH_ONLY = ["distributed.http.health"]  # pages of tasks and logs would be open to anyone who reaches the port

WORKER_SETTINGS = {
    "distributed.nanny.pre-spawn-environ": WORKER_ENVIRONMENT,
    "distributed.worker.profile.enabled": False,  # a look at every thread each 10 ms, which has no reader
    "distributed.admin.system-monitor.interval": "5s",
    "distributed.scheduler.http.routes": HEALTH_ONLY,
    "distributed.worker.http.routes": HEALTH_ONLY,
}


def executor_of(
    plan: MemoryPlan, source: str, cluster: str | None, certificates: str | None = None
) -> Processes | Cluster:
    """Make the workers of a plan, as :func:`npmdask.core.execution.executor.make_executor`."""
    if cluster is None:
        near = Processes(plan.workers, plan.threads)
        near.allow(plan.in_flight)
        return near
    far = Cluster(cluster, source, certificates)
    far.require_memory(plan)
    far.allow(plan.in_flight)
    return far
