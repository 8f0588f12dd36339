"""One pass over a data set whose product is kept: what a longer job needs to know before its next stage.

A killed gathering goes on inside its pass, a finished one answers without one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from npmdask.checkpoint.store import RunStore
from npmdask.execution.executor import make_executor, single_threaded_blas
from npmdask.execution.memory_plan import plan_memory
from npmdask.execution.process_memory import tree_rss
from npmdask.numerics.subspaces import Block
from npmdask.operators import Operator
from npmdask.runs.log_observer import watched
from npmdask.runs.observers import Observer
from npmdask.runs.passes import Passes
from npmdask.runs.solution import Resources
from npmdask.storage.source import Source
from npmdask.survey import checksums_of

STATE_BLOCKS = 4  # the block, the product, and what is made of them


def gather(
    name: str,
    source: Source,
    operator: Operator,
    block: Block,
    *,
    held: RunStore,
    resources: Resources,
    observer: Observer,
) -> np.ndarray:
    """The product of ``operator`` with ``block`` in one pass, kept as the part ``name`` of the store.

    Of a source that was never ingested the checksums are kept beside it (``survey.checksum_table`` reads them).

    Raises
    ------
    RefusedError
        The memory does not suffice.
    BadInputError
        The data turn out to be missing, corrupt or not finite.
    CommitError
        The product cannot be written.
    """
    found = held.read_part(name)
    if found is None:
        observer = watched(observer, held)
        with single_threaded_blas():
            plan = plan_memory(
                operator,
                block.shape[1],
                STATE_BLOCKS,
                limit=resources.memory,
                base=tree_rss(),
                threads=1 if resources.cluster else resources.threads,
                workers=resources.workers,
            )
            observer.on_plan(plan)
            executor = make_executor(plan, source.path, resources.cluster, resources.certificates)
            passes = Passes(held, resources, observer)
            try:
                product, record, _ = passes.run(name, executor, operator, block, resources.commit_seconds)
            finally:
                executor.close()
        facts: dict[str, Any] = {"bytes_read": record.bytes_read, "chunks": record.chunks}
        sums = {} if source.registered else checksums_of(record, sparse=source.kind == "sparse")
        held.write_part(name, {"product": product, **sums}, facts)
        found = held.read_part(name)
    assert found is not None
    return found[0]["product"]
