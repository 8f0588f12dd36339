"""Ingest that forms the Gram of what it writes: chunks are summed as soon as they are written, and not read again.

What is summed are the runs of the pass that ``npmdask gram`` would make over the finished store, joined in its tree,
from the chunks themselves, which the kernel still holds. So the Gram has the same bits; and the pass that comes last is
one of which nearly everything is known, as if it had been killed at its end.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from shlex import quote
from typing import Any, Self

import numpy as np
import psutil

from npmdask.core.checkpoint.store import RunStore
from npmdask.core.execution.executor import single_threaded_blas
from npmdask.core.execution.memory import tree_rss
from npmdask.core.execution.reduction import TreeNode, compute_run, runs_of
from npmdask.core.operators import Partial
from npmdask.core.runs.observers import Observer
from npmdask.core.runs.resources import Need, Resources, memory_for
from npmdask.core.runs.session import GATHERED
from npmdask.core.storage.readers.dense import DenseReader
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError, RefusedError, require
from npmdask.formats.ingest import IngestSummary, ingest
from npmdask.stored_gram.operator import GramOfSlabs, probes_of
from npmdask.stored_gram.parts import GramRequest, gram_operator
from npmdask.stored_gram.store import GramStore, form_gram

KINDS = (None, "samples", "matrix", "sparse")


def ingest_with_gram(
    src: Path | str,
    dest: Path | str,
    gram: Path | str,
    *,
    kind: str | None = None,
    overwrite: bool = False,
    observer: Observer | None = None,
    **options: Any,
) -> tuple[IngestSummary, GramStore]:
    """
    Ingest ``src`` and form the Gram of its rows meanwhile, without reading the new store for it.

    The Gram is that of ``npmdask.gram(dest, gram)``, to the last bit. A killed call goes on as an ingest does; rows
    that were written before are read once. Where the number of rows is not known before the last one is read (text),
    and of sparse rows, the new store is read once in the end.

    Parameters
    ----------
    src, dest : str or Path
        What is ingested, and the new store.
    gram : str or Path
        Store of the Gram to create.
    kind : {"samples", "matrix", "sparse"}, optional
        As for :func:`npmdask.ingest`.
    overwrite : bool, default False
        Replace ``dest`` once the new store is whole.
    observer : Observer, optional
        Of the last pass.
    **options
        Further ones of :func:`npmdask.ingest`.

    Returns
    -------
    summary, store : IngestSummary, GramStore
        What was written.

    Raises
    ------
    BadInputError
        As of an ingest; or rows of a kind that has no Gram.
    RefusedError
        ``dest`` or ``gram`` exists; or the Gram of so many columns does not fit the free memory.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from npmdask.stored_gram.ingest import ingest_with_gram
    >>> folder = tempfile.mkdtemp()
    >>> np.save(folder + "/x.npy", np.random.default_rng(0).standard_normal((500, 20)))
    >>> summary, store = ingest_with_gram(folder + "/x.npy", folder + "/x.zarr", folder + "/G")
    >>> store
    <GramStore: 500 rows of 20 columns, kind samples, 1 group; ...>
    """
    require(kind in KINDS, f"a Gram is formed of rows of kind samples, matrix or sparse, not of kind {kind}")
    if options.get("non_finite") == "missing":
        raise BadInputError("a Gram is formed of rows without gaps: leave non_finite = 'missing' (or the Gram) out")
    if RunStore(gram).read_spec() is not None:
        raise RefusedError(f"{gram} exists already: give the Gram of the new store another name")
    if Path(dest).exists() and not overwrite:
        raise RefusedError(
            f"{dest} exists already: form its Gram with `npmdask gram {quote(str(dest))} {quote(str(gram))}`, choose "
            "another name, or pass --overwrite"
        )
    with Follower() as follower:
        summary = ingest(src, dest, kind=kind, overwrite=overwrite, on_slab=follower, **options)
        begun = follower.begun()
    return summary, form_gram(open_source(dest), gram, GramRequest(), Resources(), observer, begun)


def free_memory() -> int:
    """Bytes that this machine can still give away."""
    return int(psutil.virtual_memory().available)


class Follower:
    """Sums the chunks of a store that is being written, in a thread of its own; of full rows of chunks."""

    def __init__(self) -> None:
        self._operator: GramOfSlabs | None = None
        self._runs: list[range] = []
        self._parts = dict[TreeNode, Partial]()
        self._pool, self._futures = ThreadPoolExecutor(1), list[Future[None]]()
        self._blas = single_threaded_blas()

    def __enter__(self) -> Self:
        self._blas.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._blas.__exit__(*error)

    def __call__(self, array: Any, slabs: int) -> None:
        """So many rows of chunks of ``array`` are written: sum the runs that are complete with them."""
        if self._operator is None and not self._begin(DenseReader(array=array)):
            return
        while len(self._futures) < len(self._runs) and self._runs[len(self._futures)].stop <= slabs:
            self._futures.append(self._pool.submit(self._add, len(self._futures)))
        if len(self._futures) == len(self._runs):  # the last one: the store is about to be renamed
            wait(self._futures)

    def _begin(self, reader: DenseReader) -> bool:
        full = int(reader.shape[0]) // int(reader.whole[0])
        if not full:
            return False
        self._operator = gram_operator(reader, range(full), "float64")
        self._probes = probes_of(int(reader.shape[1]), GramRequest().seed)
        held = tree_rss()
        free = Resources(memory=held + free_memory(), threads=1)
        memory_for([Need(self._operator, self._probes.shape[1], GATHERED)], free, held)
        self._runs = runs_of(self._operator)
        return True

    def _add(self, number: int) -> None:
        """Sum a run, and join it with those before it as far as the tree of the pass does."""
        assert self._operator is not None
        self._parts[TreeNode(0, number)] = compute_run(self._operator, self._runs[number], self._probes)
        count = len(self._runs)
        for level in range(1, (count - 1).bit_length() + 1):
            node = TreeNode(level, number >> level)  # with a left half alone it is known by another name, and joined
            halves = node.children(count)
            if halves and all(half in self._parts for half in halves):
                left, right = (self._parts.pop(half) for half in halves)
                self._parts[node] = self._operator.join(left, right)

    def begun(self) -> Callable[[GramOfSlabs], dict[TreeNode, Partial]]:
        """Return what a pass over the finished store continues from: nothing if other chunks were summed."""
        for future in self._futures:
            future.result()

        def known(operator: GramOfSlabs) -> dict[TreeNode, Partial]:
            held = operator.reader.checksums
            same = self._operator is not None and operator.slabs == self._operator.slabs and held is not None
            same = same and all(
                int(np.asarray(held)[place]) == crc
                for part in self._parts.values()
                for place, crc in part.record.checksums.items()
            )
            return self._parts if same else {}

        return known
