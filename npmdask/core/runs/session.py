"""A session: what every computation in a run store works with, from its binding to its answer.

It holds the store, what may be used, the observers, the meter of memory and one BLAS thread. Loops over passes, the
search for a rank and jobs of several stages are functions that are given one; they never see an executor.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict, replace
from math import inf
from typing import Any, Self
from uuid import uuid4

import numpy as np

from npmdask.core.algorithms import Algorithm, GramKrylov, PowerOnDisk
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.execution.executor import Executor, make_executor, single_threaded_blas
from npmdask.core.execution.memory import MemoryPlan, PeakMeter, ProcessPeak, give_back, tree_rss
from npmdask.core.execution.reduction import PassCheckpoint, TreeNode, pack, runs_of, unpack
from npmdask.core.numerics.subspaces import Block
from npmdask.core.operators import LeftProduct, Operator, Partial
from npmdask.core.runs.left_vectors import flush_left
from npmdask.core.runs.observers import Observer, StageObserver, watched
from npmdask.core.runs.release import EVERYTHING, Disclosure
from npmdask.core.runs.resources import (
    DeviceUse,
    Need,
    NetworkUse,
    Resources,
    changed_device,
    device_for,
    memory_for,
    moved_to,
    require_device,
)
from npmdask.core.storage.block_files import Workspace
from npmdask.core.storage.bundle import Arrays
from npmdask.core.storage.checksum import crc32c
from npmdask.core.storage.chunk_access import Tally
from npmdask.core.storage.readers import ReadStats, checksums_of
from npmdask.core.storage.source import Source
from npmdask.errors import MemoryRefusedError, RefusedError

GATHERED = 4  # blocks of a pass whose product is kept: the block, the product, and what is made of them


class Session:
    """One computation in one store, as a context manager; entered again it counts from zero.

    Parameters
    ----------
    store : held by this process.
    resources : what may be used; none of it changes a bit of the result.
    observer : told of everything, after the fact.
    disclosure : what observers, the log and the disk may see of the data.
    """

    def __init__(
        self, store: RunStore, resources: Resources, observer: Observer, disclosure: Disclosure = EVERYTHING
    ) -> None:
        self.store, self.resources, self.disclosure = store, resources, disclosure
        self.told = observer  # as it was given: for stages, which have logs of their own
        self.observer = watched(observer, store, private=not disclosure.times)
        self._memory: MemoryPlan | None = None
        self._executor: Executor | None = None
        self._device: Any = None  # of the plan, and then of what computes
        self.device: DeviceUse | None = None

    def __enter__(self) -> Self:
        self.warnings: list[str] = []
        self.passes = self.bytes_read = 0
        self._fetched = Tally()
        self.peaks: list[ProcessPeak] = []  # of the workers of a cluster
        self._meter, self._held, self._token = PeakMeter(), ExitStack(), uuid4().hex
        self._start = time.perf_counter()
        self._held.enter_context(self._meter)
        self._held.enter_context(single_threaded_blas())
        self._held.callback(give_back)
        self._held.callback(self._close_executor)
        return self

    def __exit__(self, *error: Any) -> None:
        self._held.__exit__(*error)

    def _close_executor(self) -> None:
        if self._executor is not None:
            with suppress(Exception) if sys.exc_info()[1] else nullcontext():  # workers that are lost hold nothing
                self._close_device()
            self._executor.close()
            self._executor = None

    def _begin_on_device(self, plan: MemoryPlan) -> None:
        """Open the devices of all processes that compute, and say what is not as it was when the run began.

        Raises
        ------
        RefusedError
            There is none, or too little memory of it.
        """
        if self._device is not None:
            try:
                use, several = self._device.begin_everywhere(self.executor, plan)
            except RefusedError as error:
                if self.resources.device != "auto" or isinstance(error, MemoryRefusedError):
                    raise
                self._device = None
            else:
                self.device = DeviceUse(**use)
                self.warnings += several
                self.log("device", **asdict(self.device))
        self.warnings += changed_device(self.store, self.device.facts if self.device else None)

    def _close_device(self) -> None:
        if self._device is not None and self.device is not None and self._executor is not None:
            peak = max(self._executor.everywhere(self._device.end))
            self.device = replace(self.device, peak=max(peak, self.device.peak))

    @property
    def seconds(self) -> float:
        """Since the session began."""
        return time.perf_counter() - self._start

    @property
    def network(self) -> NetworkUse | None:
        """Use that passes made of an object store; None where they took nothing."""
        requests, nbytes = self._fetched
        if not requests:
            return None
        price = self.resources.request_price
        return NetworkUse(requests=requests, nbytes=nbytes, cost=None if price is None else price * requests / 1000)

    @property
    def peak(self) -> int:
        """Bytes of all processes of this machine together, so far."""
        return self._meter.peak

    @property
    def peak_by_process(self) -> tuple[ProcessPeak, ...]:
        """Peaks of every process, those of a cluster among them."""
        return (*self._meter.by_process, *self.peaks)

    @property
    def memory(self) -> MemoryPlan:
        """Return the memory plan."""
        assert self._memory is not None
        return self._memory

    @property
    def executor(self) -> Executor:
        """Executor that makes the passes; there between ``start`` and the end."""
        assert self._executor is not None
        return self._executor

    def plan(self, needs: Iterable[Need]) -> MemoryPlan:
        """Plan the memory, and tell of it: before anything large is read.

        Raises
        ------
        RefusedError
            Not even one thread fits; the sentence says what would.
        """
        needs = list(needs)
        require_device(needs, self.resources)
        self._device, self._memory = device_for(needs, self.resources), memory_for(needs, self.resources)
        self.tell_plan(self._memory)
        return self._memory

    def tell_plan(self, plan: MemoryPlan) -> None:
        """Tell the observers and the log what memory is planned."""
        self.observer.on_plan(plan)
        self.log("plan", predicted_peak=plan.predicted_peak, **asdict(plan))

    def start(self, source: str, *, workers: bool = True) -> None:
        """Make what computes passes over the data at ``source``. ``workers``: False where one pass is all there is."""
        plan = self.memory if workers else replace(self.memory, workers=0)
        self._executor = make_executor(plan, source, self.resources.cluster, self.resources.certificates)
        self.warnings += getattr(self._executor, "warnings", [])
        self._begin_on_device(plan)

    def stop(self) -> None:
        """Ask the workers of a cluster for their peaks, and let go of everything that computes."""
        self.peaks = self.executor.peaks()
        self._close_executor()

    def one_pass(
        self, label: str, operator: Operator, block: Block, *, keep: bool = True
    ) -> tuple[Block, ReadStats, float]:
        """Make one pass over the data: the only place where they are read.

        Parameters
        ----------
        label : of the pass, for people and for what is kept of it.
        operator, block : what is multiplied.
        keep : commit finished parts from time to time, so that a kill inside the pass costs seconds.

        Returns
        -------
        product, record, seconds
            The product, what reading it cost, and how long it took.
        """
        keep = keep and self.disclosure.partial_sums
        moved = operator
        if self._device is not None:
            moved = moved_to(operator, self._device, f"{self._token} {operator.reader.where}")
        where = self.device.facts if self.device and moved is not operator else None
        seconds = self.resources.commit_seconds if keep else inf
        keeper = keeper_of(self.store, label, operator, block, seconds, where)
        resumed = keeper.record()
        self.log("pass", label=label, tasks=len(runs_of(operator)), bytes_resumed=resumed.bytes_read)
        self.observer.on_pass(label, operator.pass_bytes, operator.pass_chunks)
        self.observer.on_task(resumed)
        start = time.perf_counter()
        with self.memory_of_device():
            product, record = self.executor.run_pass(moved, block, self.observer.on_task, keeper)
        seconds = time.perf_counter() - start
        self.store.require_turn()  # before anything is made of it: noise, entries of a ledger
        self.passes += getattr(operator, "readings", bool(operator.pass_bytes))
        self.bytes_read += record.bytes_read - resumed.bytes_read
        cost: dict[str, float] = {"bytes": record.bytes_read, "bytes_resumed": resumed.bytes_read}
        if record.requests:
            came = {"requests": record.requests - resumed.requests, "fetched": record.fetched - resumed.fetched}
            self._fetched = self._fetched.plus(*came.values())
            cost |= came
            if self.resources.request_price is not None:
                cost["cost"] = self.resources.request_price * came["requests"] / 1000
        self.log("passed", label=label, seconds=round(seconds, 4), rss=tree_rss(), **cost)
        if moved is not operator:  # a step remembers the same, whether its data stayed on the device or were read again
            record = replace(record, bytes_read=operator.pass_bytes, chunks=operator.pass_chunks)
        return product, record, seconds

    def here(self, algorithm: Algorithm[Any]) -> Algorithm[Any]:
        """The same algorithm, as it is done here: blocks on disk lie in the store, and eigenpairs of what is formed are
        found where the sums are formed.
        """
        if isinstance(algorithm, PowerOnDisk):
            return replace(algorithm, workspace=Workspace(self.store.path, self.memory.threads))
        if self._device is None or not isinstance(algorithm, GramKrylov):
            return algorithm
        pairs = self._device.pairs
        return replace(algorithm, elsewhere=lambda *asked: self.executor.anywhere(pairs, *asked))

    def memory_of_device(self) -> AbstractContextManager[None]:
        """Say what to do where the memory of the device does not suffice in spite of its plan."""
        if self._device is None or self.device is None:
            return nullcontext()
        held: AbstractContextManager[None] = self._device.suffices(self.device.device, self.device.planned)
        return held

    def gather(
        self, name: str, source: Source, operator: Operator, block: Block, *, place: tuple[int, int | None] = (1, None)
    ) -> np.ndarray:
        """The product of one pass, kept as the part ``name`` of the store: what a longer job needs to know.

        Killed it goes on inside its pass, and finished it answers without one. Of a source that was never ingested the
        checksums are kept beside it (``plain_release.checksum_table`` reads them).

        Parameters
        ----------
        place : which pass of its stage it is, and how many the stage makes at most (None: it is alone).

        Raises
        ------
        RefusedError
            The memory does not suffice.
        BadInputError
            The data turn out to be missing, corrupt or not finite.
        CommitError
            The product cannot be written.
        """
        found = self.store.read_part(name)
        if found is None:
            self.plan([Need(operator, block.shape[1], GATHERED)])
            self.start(source.path)
            self.observer.on_begin(place[0] - 1, place[1], "pass")
            product, record, _ = self.one_pass(name, operator, block)
            self.stop()
            facts: dict[str, Any] = {"bytes_read": record.bytes_read, "chunks": record.chunks}
            sums = {} if source.registered else checksums_of(record, sparse=source.traits.sparse)
            self.store.write_part(name, {"product": product, **sums}, facts)
            found = self.store.read_part(name)
        assert found is not None
        return found[0]["product"]

    @contextmanager
    def stage(self, name: str, observer: Observer | None = None) -> Iterator[Session]:
        """A session in a folder of its own below this one's: a run of a longer job, whose end is not the job's."""
        with self.store.stage(name) as held:
            yield Session(held, self.resources, observer or StageObserver(self.told))

    def commit(self, number: int, arrays: Arrays, meta: dict[str, Any]) -> None:
        """Commit a step; only then is it shown, so that what is shown survives a crash."""
        self.store.commit_step(number, arrays, meta)

    def answer(self, arrays: Arrays, meta: dict[str, Any]) -> None:
        """Commit the answer."""
        self.store.write_part("result", arrays, meta)

    def telemetry(self) -> list[dict[str, Any]]:
        """The lines of the log so far."""
        return self.store.telemetry()

    def log(self, event: str, **facts: Any) -> None:
        """Write a line of telemetry, unless it would tell of the rows."""
        if self.disclosure.times:
            self.store.log(event, **facts)


def keeper_of(
    store: RunStore,
    label: str,
    operator: Operator,
    block: Block,
    seconds: float,
    device: Mapping[str, str] | None = None,
) -> PassCheckpoint:
    """Return what was finished of this very pass before a kill, and where more of it is committed every ``seconds``.

    "This very pass": of the same label, block (by checksum and dtype), runs, arithmetic and ``device``.
    """
    key = {"label": label, "block": crc32c(block), "dtype": block.dtype.str, "runs": len(runs_of(operator))}
    if how := getattr(operator, "arithmetic", ""):
        key["arithmetic"] = how
    if device:
        key["device"] = dict(device)

    flushed: set[int] = set()

    def keep(parts: dict[TreeNode, Partial]) -> None:
        if isinstance(operator, LeftProduct):  # what these parts have written must be as durable as they are
            new = {slab for part in parts.values() for slab in part.record.written} - flushed
            flush_left(store.path, new)
            flushed.update(new)
        elif flush := getattr(operator, "flush", None):
            flush()
        store.keep_pass(key, *pack(operator, parts))

    found = store.read_pass(key)
    return PassCheckpoint(unpack(operator, *found) if found else None, keep, seconds)
