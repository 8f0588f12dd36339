"""Choose what a question leaves open: algorithm, iteration_rank, the options of block Krylov, where blocks lie.

Most is decided by shape and memory. What is worth a measurement is asked of the table ``choices``, once: what a store's
run.json holds is kept, whatever a later measurement says, because all of it decides the bits of the result.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from npmdask.core import features
from npmdask.core.algorithms.gram import SINGLE_TOL
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.execution.memory import MemoryPlan
from npmdask.core.runs.build import make_problem, prepared, route_for, route_key, route_of
from npmdask.core.runs.plain_route import ON_DISK, PLAIN, why_not_on_disk
from npmdask.core.runs.problem import Earlier, Problem, Request, Start, default_rank
from npmdask.core.runs.resources import Resources, memory_for, needs_of
from npmdask.core.storage.source import Source
from npmdask.errors import BadInputError, MemoryRefusedError

FORMED = ("gram", "row-gram")  # algorithms that begin with a matrix
SURE = 512  # up to so many it is formed sooner than a block of columns is multiplied a few times, on any machine
TALL = 16  # rows for each column, below which its eigenvectors take longer than the passes that are saved
MOST_FORMED = 8192  # beyond, the matrix alone is half a gigabyte, and its vectors take minutes
SPARE = 32 * 2**20  # bytes by which the processes may grow until the plan of the run is made
FEW = 2**24  # bytes of data, below which forming saves about a second at most
LARGE = 128 * 2**20  # bytes of data, from which products in float32 save more than their last pass in float64 costs
MANY_ENTRIES = 2**23  # of few rows with many columns: a pass over fewer takes no time


def posed(
    request: Request,
    source: Source,
    resources: Resources,
    store: str | Path | None = None,
    start: Start | None = None,
) -> Problem:
    """The problem of a request, with everything chosen that was left open.

    Raises
    ------
    BadInputError, RefusedError
        As :func:`npmdask.core.runs.build.make_problem`.
    """
    source = prepared(source, request)
    if route_for(request, source, Earlier(start=start)).settled:
        return make_problem(source, request, start=start)
    key = route_key(request, source)
    if key and (choose := features.found("choices", key)):
        request = choose(request, source, resources, store, start)
    elif request.algorithm == "auto" and start is None:
        request = replace(request, algorithm=_route(request, source, resources, store))
    request = _with_parts(_with_rank(request, source, resources, store), source, resources, store)
    given = request
    if start is None:
        request = with_options(request, source, resources, store)
    if (
        given.algorithm in ("auto", "power")
        and given.options is None
        and not why_not_on_disk(given, source, bool(start))
    ):
        request = _with_blocks(request, source, resources, store)
    return make_problem(source, request, start=start)


def _with_blocks(request: Request, source: Source, resources: Resources, store: str | Path | None) -> Request:
    """The power method with its blocks on disk, where memory does not hold those of ``request``; what a store was begun
    with is kept.

    Tiles of blocks are worked on by the threads of one process.
    """
    held = held_run(store)
    if held is not None:
        ours = held["name"] == "power" and held.get("options") == ON_DISK
        return replace(request, algorithm="power", options=ON_DISK) if ours else request
    if resources.memory is None or resources.workers or resources.cluster or resources.device == "cuda":
        return request
    if request.algorithm in FORMED or fits_memory(make_problem(source, request), resources):
        return request
    return replace(request, algorithm="power", options=ON_DISK)


def _route(request: Request, source: Source, resources: Resources, store: str | Path | None) -> str:
    """Choose "gram" or "row-gram" where to form A^T A or A A^T is fastest and the memory suffices; else "auto".

    Most data are decided by what is public of them. What a store was begun with is kept.
    """
    name, held = formed_one(request, source), held_run(store)
    if name is None:
        return "auto"
    if held is not None:
        return str(held["name"]) if held["name"] in FORMED else "auto"
    if not _worth_forming(name, source) or (name == "row-gram" and resources.device == "cuda"):
        return "auto"  # A A^T is formed by the processor
    from npmdask.core.runs.forming import is_sooner  # which small data do not need

    return name if is_sooner(name, request, source, resources) else "auto"


def _with_parts(request: Request, source: Source, resources: Resources, store: str | Path | None) -> Request:
    if request.algorithm != "row-gram" or request.options is not None or not isinstance(request.target_rank, int):
        return request
    from npmdask.core.runs.forming import with_parts  # which most runs do not need

    return with_parts(request, source, resources, held_run(store))


def _worth_forming(name: str, source: Source) -> bool:
    """Say whether the data are so many that the choice counts, and have a shape for which it can be this one."""
    (rows, columns), reader = source.shape, source.reader
    if name == "gram":
        tall = 1 if columns <= SURE else TALL  # the vectors of a matrix that small take a hundredth of a second
        return rows >= tall * columns and reader.nbytes >= FEW
    return rows * columns >= MANY_ENTRIES


def fits_memory(problem: Problem, resources: Resources) -> bool:
    """Say whether there is memory for it beside what the processes hold, which measuring may have increased."""
    return planned(problem, resources) is not None


def planned(problem: Problem, resources: Resources) -> MemoryPlan | None:
    """Its memory beside what the processes hold; None where there is not as much."""
    try:
        return memory_for(needs_of(problem), resources, spare=SPARE)
    except MemoryRefusedError:
        return None


def formed_one(request: Request, source: Source) -> str | None:
    """The algorithm that forms a matrix which answers the question: A^T A, or A A^T of fewer rows than columns."""
    plain = route_of(request, source) is PLAIN and request.mechanism == "none"
    whole = isinstance(request.target_rank, int) and request.low_rank_tol is None
    whole = whole and (request.options is None or request.algorithm == "krylov")
    of_rows = source.traits.of_rows and source.reader.layout != "matrix-free"
    if not (plain and whole and of_rows):
        return None
    rows, columns = source.shape
    known = source.reader.layout != "csr" or features.found("operators", "few sparse rows") is not None
    if rows < columns and rows <= MOST_FORMED and source.parts == 1 and known:
        return "row-gram"
    return "gram" if source.dimension <= MOST_FORMED else None


def _with_rank(request: Request, source: Source, resources: Resources, store: str | Path | None) -> Request:
    """``iteration_rank = "auto"`` as a number; any other request as it is.

    A store that has a run keeps its p. A new run gets as many columns as cost no time: the arithmetic takes as
    long as the reading, on this machine and store, now. Never fewer than the default, at most 128, and no more
    than the memory limit allows. More columns widen the gap sigma_k - sigma_{p+1} that decides the number of
    passes (Balcan, Du, Wang and Yu 2016, Theorem 2.2, with q near p).
    """
    if request.iteration_rank != "auto" or request.privacy is not None or source.traits.cube:
        return request  # of a private run nothing is measured: make_problem says why "auto" is refused
    if not isinstance(request.target_rank, int):
        return replace(request, iteration_rank=None)  # a share: the search decides
    held = held_run(store)
    if held is not None:
        rank = int(held["iteration_rank"])
        return replace(request, iteration_rank=rank if rank >= request.target_rank else None)
    if request.algorithm in FORMED or source.reader.layout == "gram":
        return replace(request, iteration_rank=None)  # one pass, whatever it is
    free = features.required("choices", 'iteration_rank = "auto"')
    chosen = free(make_problem(source, replace(request, iteration_rank=None)), resources) // source.parts
    return replace(request, iteration_rank=max(chosen, default_rank(int(request.target_rank), source.shape[1])))


BLOCKS = 8  # of block Krylov: more passes until it forgets anything, and a certificate of higher degree
BLOCK_BYTES = 128 * 2**20  # that its state may take then: a part of it is written at every step
BLOCK_SHARE = 4  # of a pass may go into a step with them


def with_options(request: Request, source: Source, resources: Resources, store: str | Path | None) -> Request:
    """Let block Krylov, where it is what runs, keep more blocks and use float32, wherever that is no slower.

    Eight blocks where they are small, a step with them takes little of a pass, and no thread has to be left out for
    them. float32 at first for data that stay in memory: from a disk it hides no more of the arithmetic than float64
    does, and its last pass, of vectors that are known, is one more. What a store was begun with is kept.
    """
    plain = route_of(request, source) is PLAIN and request.mechanism == "none" and not source.traits.flattened
    whole = isinstance(request.target_rank, int) and request.options is None
    if request.algorithm not in ("auto", "krylov") or not plain or not whole:
        return request
    held = held_run(store)
    if held is not None:
        ours = held["name"] == "krylov" and held.get("options") is not None
        return replace(request, algorithm="krylov", options=held["options"]) if ours else request
    request = replace(request, algorithm="krylov")
    problem = make_problem(source, request)
    options = dict[str, Any]()
    if _can_keep_blocks(problem, resources):
        options["basis_blocks"] = BLOCKS
    dense = source.traits.of_rows and source.reader.layout == "dense"
    large = LARGE <= source.reader.nbytes < psutil.virtual_memory().available
    fine = request.low_rank_tol is None and problem.rule.tol >= SINGLE_TOL
    fine = fine and request.seen(source).allow_rounding
    if dense and large and fine and source.reader.dtype == np.float32:
        options["precision"] = "mixed"
    return replace(request, options=options or None)


def _can_keep_blocks(problem: Problem, resources: Resources) -> bool:
    """Say whether block Krylov can keep BLOCKS blocks at no cost that counts."""
    algorithm: Any = problem.algorithm
    more, p = replace(algorithm, basis_blocks=BLOCKS), algorithm.iteration_rank
    work = getattr(
        problem.source.reader, "entries", problem.source.reader.nbytes // problem.source.reader.dtype.itemsize
    )
    if more.state_blocks * problem.d * p * 8 > BLOCK_BYTES or work < BLOCK_SHARE * problem.d * BLOCKS**2 * p:
        return False
    few, many = (planned(each, resources) for each in (problem, replace(problem, algorithm=more)))
    return few is not None and many is not None and many.threads == few.threads


def held_run(store: str | Path | None) -> dict[str, Any] | None:
    """Return how the run in ``store`` is computed, if there is one and something of it was committed: its algorithm.

    Opening the store reports what is wrong with it.
    """
    try:
        # one of which nothing was committed may have been refused for its memory
        spec = None if store is None or (held := RunStore(store)).unbegun else held.read_spec()
    except BadInputError:
        return None
    return None if spec is None else spec.get("algorithm")
