"""Passes of one run over its data: each told of, kept from time to time, counted, and logged."""

from __future__ import annotations

import time
from typing import Any

from npmdask.checkpoint.store import RunStore
from npmdask.execution.executor import Executor
from npmdask.execution.process_memory import tree_rss
from npmdask.execution.reduction import Keeper, Node, pack, runs_of, unpack
from npmdask.numerics.subspaces import Block
from npmdask.operators import LeftProduct, Operator, Partial
from npmdask.runs.left_vectors import flush_left
from npmdask.runs.observers import Observer
from npmdask.runs.solution import Resources
from npmdask.storage.checksum import crc32c
from npmdask.storage.readers.dense import SlabRecord

# What a store keeps of the pass under way, as the keeper that the executors know.


def keeper_of(store: RunStore, label: str, operator: Operator, block: Block, seconds: float) -> Keeper:
    """What was finished of this very pass before a kill, and where more of it is committed every ``seconds``.

    "This very pass": of the same label, block (by checksum and dtype) and runs.
    """
    key = {"label": label, "block": crc32c(block), "dtype": block.dtype.str, "runs": len(runs_of(operator))}

    flushed: set[int] = set()

    def keep(parts: dict[Node, Partial]) -> None:
        if isinstance(operator, LeftProduct):  # what these parts have written must be as durable as they are
            new = {slab for part in parts.values() for slab in part.record.written} - flushed
            flush_left(store.path, new)
            flushed.update(new)
        store.keep_pass(key, *pack(operator, parts))

    found = store.read_pass(key)
    return Keeper(unpack(operator, *found) if found else None, keep, seconds)


class Passes:
    """``count`` and ``nbytes`` are of this call. ``secret``: nothing is logged, since it would tell of the rows."""

    def __init__(self, store: RunStore, resources: Resources, observer: Observer, *, secret: bool = False) -> None:
        self.store, self.resources, self.observer, self.secret = store, resources, observer, secret
        self.count = self.nbytes = 0

    def run(
        self, label: str, executor: Executor, operator: Operator, block: Block, every: float
    ) -> tuple[Block, SlabRecord, float]:
        """The product, what reading it cost, the seconds; finished parts are committed ``every`` so many seconds."""
        keeper = keeper_of(self.store, label, operator, block, every)
        resumed = keeper.record()
        self.log("pass", label=label, tasks=len(runs_of(operator)), bytes_resumed=resumed.bytes_read)
        self.observer.on_pass(label, operator.pass_bytes, operator.pass_chunks)
        self.observer.on_task(resumed)
        start = time.perf_counter()
        product, record = executor.run_pass(operator, block, self.observer.on_task, keeper)
        seconds = time.perf_counter() - start
        self.store.require_turn()  # before anything is made of it: noise, entries of a ledger
        self.count += 1
        self.nbytes += record.bytes_read - resumed.bytes_read
        cost = {"bytes": record.bytes_read, "bytes_resumed": resumed.bytes_read}
        self.log("passed", label=label, seconds=round(seconds, 4), rss=tree_rss(), **cost)
        return product, record, seconds

    def log(self, event: str, **facts: Any) -> None:
        """A line of telemetry."""
        if not self.secret:
            self.store.log(event, **facts)
