"""Choose between block Krylov and a matrix that is formed; of A A^T, in how many parts columns of chunks are read.

What is large and has 512 to 8192 columns (or rows, if these are fewer) is measured: reading, multiplying, forming, and
the spectrum of a sample, which says how many passes blocks take.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import psutil

from npmdask.core import features
from npmdask.core.execution.memory import usable_cores
from npmdask.core.runs import automatic
from npmdask.core.runs.automatic import FEW, LARGE, fits_memory, planned, with_options
from npmdask.core.runs.build import make_problem
from npmdask.core.runs.problem import Request
from npmdask.core.runs.resources import Resources
from npmdask.core.storage.paths import is_url
from npmdask.core.storage.source import Source

AVAILABLE = 4  # a share of what is free that tasks may hold of columns of chunks where no limit is set
PARTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # of a column of chunks, that may be tried
FORMED_AS = 3  # readings that forming and multiplying take as long as
SHORT = 4  # times as long is better than to have no third pass

WIDEST = 2048  # columns of a matrix that is formed without a look at the clock
TIMED = {"gram": 2**28, "row-gram": 2**26}  # numbers, from which to measure takes less than a wrong choice would
ROWS_A_PASS = 250  # of A A^T, that are formed while a block of columns is multiplied once: measured, as is that
ROWS_DECOMPOSED = 2  # times rows / columns longer it takes with its eigenvectors
PASSES = 10  # of block Krylov, where no sample says how many
READING = 0.4  # of a pass of block Krylov that reading alone takes
DECOMPOSING = 6e-11  # seconds of d^3: of the leading vectors of the matrix, at most, measured at d = 1024 to 4096

# Of sparse rows, in seconds, measured: of a pass of block Krylov an entry and a column; of A A^T to find an entry, and
# an entry that is multiplied by another of its column. Some columns have more than others: twice as many pairs.
ENTRY, COLUMN, FOUND, PAIR, UNEVEN = 2e-8, 3.5e-6, 3e-8, 1.1e-9, 2


def is_sooner(name: str, request: Request, source: Source, resources: Resources) -> bool:
    """Say whether the algorithm that forms a matrix takes less time than block Krylov, and has room."""
    rows, columns = source.shape[0], source.dimension
    request = replace(request, iteration_rank=None if request.iteration_rank == "auto" else request.iteration_rank)
    asked = replace(request, algorithm=name)
    asked = with_parts(asked, source, resources, None) if name == "row-gram" else asked
    formed = make_problem(source, asked)
    other = with_options(replace(request, algorithm="krylov"), source, resources, None)
    blocks = make_problem(source, other)
    if formed.ends_formed and not fits_memory(blocks, resources):
        return True  # in the least memory of all, of which a refusal tells where that is too much
    if not fits_memory(formed, resources):
        return False
    if name == "row-gram" and source.reader.layout == "csr":
        once = pairs_seconds(source.reader, (asked.options or {"parts": 1})["parts"])
        at_once = once + 2 * columns * COLUMN + DECOMPOSING * rows**3
        return at_once <= PASSES * (source.reader.entries * ENTRY + columns * COLUMN)
    sooner = features.found("choices", "forming") if _worth_timing(name, source, resources) else None
    if sooner is not None:
        return bool(sooner(formed, blocks, resources)) and fits_memory(formed, resources)
    if name == "gram":
        return columns <= WIDEST
    passes = rows / ROWS_A_PASS * (1 + ROWS_DECOMPOSED * rows / columns)
    return passes + 2 + 2 * READING * ((asked.options or {"parts": 1})["parts"] - 1) <= PASSES


def pairs_seconds(reader: Any, parts: int = 1) -> float:
    """Seconds of a thread that finds and multiplies the pairs of entries of all columns of sparse rows."""
    return float(reader.entries * (UNEVEN * PAIR * reader.entries / reader.shape[1] + parts * FOUND))


def _worth_timing(name: str, source: Source, resources: Resources) -> bool:
    """Say whether this process can measure what a run will do, in a small share of the time that the run takes."""
    if min(source.shape[0], source.dimension) <= automatic.SURE:
        return False
    here = resources.cluster is None and not is_url(source.path)
    layout, nbytes = source.reader.layout, source.reader.nbytes
    numbers = math.prod(source.shape) if layout == "dense" else nbytes // source.dtype.itemsize
    return here and numbers >= TIMED[name] and layout in ("dense", "csr")


def with_parts(request: Request, source: Source, resources: Resources, held: Mapping[str, Any] | None) -> Request:
    """Let "row-gram" read a column of chunks in as few parts as memory has room for.

    Each part of it is read with all rows, so that every chunk is read once for each part. Where a third pass, of block
    Krylov, has no room, two are made, of few more vectors than are asked for. What a
    store was begun with, ``held``, is kept.
    """
    k, least = int(request.target_rank), min(source.shape[0], source.dimension)
    short = replace(request, iteration_rank=request.iteration_rank or min(k + 2, least), max_steps=2)
    if held is not None:
        begun = {"iteration_rank": held["iteration_rank"], "options": held.get("options")}
        tried = [replace(each, **begun) for each in (request, short)] if held["name"] == "row-gram" else [request]
        return next((each for each in tried if planned(make_problem(source, each), resources)), request)
    first, second = (_in_parts(each, source, resources) for each in (request, short))
    if first[0] == second[0] == math.inf:
        return replace(short, options={"parts": PARTS[-1]})
    return min(first, (second[0] * SHORT, *second[1:]), key=lambda each: each[0])[1]


def _in_parts(request: Request, source: Source, resources: Resources) -> tuple[float, Request]:
    """The same in as many parts as take the least time, of those that have room; and that time, inf where none has."""
    reader, threads = source.reader, resources.threads or usable_cores()
    least = FEW // 4 if reader.layout == "csr" else LARGE  # pairs of entries take many times longer than to read them
    some = threads * max(1, resources.workers) if reader.nbytes >= least else 1  # tasks that are to run at once
    room = psutil.virtual_memory().available // AVAILABLE if resources.memory is None else resources.memory
    best = (math.inf, request)
    for parts in PARTS:
        asked = replace(request, options={"parts": parts} if parts > 1 else None)
        problem = make_problem(source, asked)
        formed = problem.sides()[0]
        at_once = min(some, formed.units)
        if formed.held_bytes * at_once > room or (plan := planned(problem, resources)) is None:
            continue
        taken = (FORMED_AS + parts) / min(at_once, plan.threads * max(1, resources.workers))
        best = min(best, (taken, asked), key=lambda each: each[0])
    return best
