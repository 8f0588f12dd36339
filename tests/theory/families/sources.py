"""Odd sources: half floats, whole numbers beyond 2^53, numbers near the ends of float64, lazy graphs, tables, ties.

Each is read right, or refused; some must be refused.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import polars as pl
import scipy.sparse as sp
import xarray as xr

import npmdask
from tests.theory.families.drawing import Rng, chance, one_of, orthonormal, whole
from tests.theory.families.judging import EPS, Findings, Problem, Question, Unasked, judge, prepared

Source = tuple[Any, np.ndarray | None]  # what is given, and the numbers in it; None: it must be refused


@dataclass(frozen=True)
class Odd(Problem):
    name: str
    x: np.ndarray
    seed: int
    k: int
    how: dict[str, Any]


def as_stored(x: np.ndarray) -> Source:
    return x, x


def rows_of(x: np.ndarray, parts: int) -> tuple[int, int]:
    return max(1, len(x) // parts), x.shape[1]


def whole_numbers(x: np.ndarray, rng: Rng, low: int, high: int, dtype: Any) -> Source:
    return as_stored(rng.integers(low, high, x.shape, dtype=dtype))


def lazy_random(x: np.ndarray, rng: Rng) -> Source:
    """A graph whose seed is fixed: the same numbers in every pass."""
    graph = da.random.default_rng(whole(rng, 0, 99)).standard_normal(x.shape, chunks=rows_of(x, 3))
    return graph, graph.compute()


def changing(x: np.ndarray, rng: Rng) -> Source:
    """A graph that gives other numbers whenever it is computed."""
    seeds = itertools.count()
    zeros = da.zeros(x.shape, chunks=rows_of(x, 3))
    draw: Callable[[Any], Any] = lambda block: np.random.default_rng(next(seeds)).standard_normal(block.shape)  # noqa: E731
    return da.map_blocks(draw, zeros, dtype=float), None


def overflowing(x: np.ndarray, rng: Rng) -> Source:
    """Eight bits wrap around in the graph: these numbers are the data."""
    graph = da.from_array((x * 100).astype("i1"), chunks=rows_of(x, 2)) * np.int8(3)
    return graph, graph.compute()


def half_squares(x: np.ndarray, rng: Rng) -> Source:
    graph = da.from_array((x * 100).astype("f2"), chunks=rows_of(x, 2)) ** 2
    return graph, graph.compute()


def two_dtypes(x: np.ndarray, rng: Rng) -> Source:
    parts = [da.from_array(part, chunks=rows_of(x, 2)) for part in ((x * 9).astype("i4"), x)]
    graph = da.concatenate(parts, axis=1)
    return graph, graph.compute()


def wrong_dtype(x: np.ndarray, rng: Rng) -> Source:
    """Blocks are floats, and the graph says whole numbers."""
    counts = (x * 9).astype("i4")
    return da.map_blocks(lambda b: b + 0.5, da.from_array(counts, chunks=rows_of(x, 2)), dtype="i4"), counts + 0.5


def wrong_chunks(x: np.ndarray, rng: Rng) -> Source:
    if len(x) < 4:
        raise Unasked("blocks of one row keep it")
    graph = da.map_blocks(lambda b: b[:-1], da.from_array(x, chunks=rows_of(x, 2)), dtype=float)
    return graph, None


def chosen_rows(x: np.ndarray, rng: Rng) -> Source:
    graph = da.from_array(x, chunks=rows_of(x, 3))
    return graph[graph[:, 0] > 0], x[x[:, 0] > 0]


def duplicates(x: np.ndarray, rng: Rng) -> Source:
    n, d = x.shape
    places = (rng.integers(0, n, 200), rng.integers(0, d, 200))
    found = sp.coo_matrix((rng.standard_normal(200), places), shape=x.shape)
    return found, found.toarray()


def stored_zeros(x: np.ndarray, rng: Rng) -> Source:
    found = sp.csr_matrix(np.where(rng.random(x.shape) < 0.3, x, 0))
    found.data[::3] = 0
    return found, found.toarray()


def sparse_whole(x: np.ndarray, rng: Rng) -> Source:
    counts = np.where(rng.random(x.shape) < 0.3, np.abs(np.round(x * 100)), 0)
    dtype = one_of(rng, ("i2", "i8", "u2", "b1"))
    found = sp.csr_matrix(counts.astype(dtype))
    return found, found.toarray()


def infinite(x: np.ndarray, rng: Rng) -> Source:
    x = x.copy()
    x[0, 0] = one_of(rng, (np.inf, -np.inf, np.nan))
    return x, None


def mixed_table(x: np.ndarray, rng: Rng) -> Source:
    table = pd.DataFrame(x).assign(b=rng.random(len(x)) > 0.5, c=rng.integers(0, 9, len(x)))
    return table, table.to_numpy(dtype=float)


def nullable(x: np.ndarray, rng: Rng) -> Source:
    table = pd.DataFrame({f"c{j}": pd.array((column * 100).astype(int), dtype="Int64") for j, column in enumerate(x.T)})
    return table, table.to_numpy(dtype=float)


def tied(x: np.ndarray, rng: Rng) -> Source:
    n, d = x.shape
    return as_stored(orthonormal(rng, n, d) if n >= d else orthonormal(rng, d, n).T)


def long_double(x: np.ndarray, rng: Rng) -> Source:
    return as_stored(x.astype(np.longdouble))


NAMES: dict[str, Callable[[np.ndarray, Rng], Source]] = {
    "float16": lambda x, rng: as_stored((x * 100).astype("f2")),
    "big-endian float64": lambda x, rng: as_stored(x.astype(">f8")),
    "big-endian int16": lambda x, rng: as_stored((x * 9000).astype(">i2")),
    "bool": lambda x, rng: as_stored(x > 0),
    "uint64 beyond 2^53": lambda x, rng: whole_numbers(x, rng, 2**53, 2**64 - 1, np.uint64),
    "int64 beyond 2^53": lambda x, rng: whole_numbers(x, rng, -(2**62), 2**62, np.int64),
    "int64 near its end": lambda x, rng: whole_numbers(x, rng, -(2**63), -(2**63) + 1000, np.int64),
    "longdouble": long_double,
    "huge": lambda x, rng: as_stored(x * 10.0 ** one_of(rng, (120, 135, 139, 150, 200, 300))),
    "tiny": lambda x, rng: as_stored(x * 10.0 ** one_of(rng, (-120, -135, -139, -150, -200, -300))),
    "units of all sizes": lambda x, rng: as_stored(
        x * 10.0 ** rng.uniform(*one_of(rng, ((-150, 150), (-60, 60))), x.shape[1])
    ),
    "denormal": lambda x, rng: as_stored(x * 1e-310),
    "float32 near its ends": lambda x, rng: as_stored((x * 10.0 ** one_of(rng, (30, 37, -37, -40))).astype("f4")),
    "Dask, seeded": lazy_random,
    "Dask, changing": changing,
    "Dask, overflowing": overflowing,
    "Dask, half squares": half_squares,
    "Dask, two dtypes": two_dtypes,
    "Dask, wrong dtype": wrong_dtype,
    "Dask, wrong chunks": wrong_chunks,
    "Dask, chosen rows": chosen_rows,
    "dates": lambda x, rng: ((x * 1e9).astype("i8").view("M8[s]"), None),
    "durations": lambda x, rng: ((x * 1e9).astype("i8").view("m8[s]"), None),
    "one row": lambda x, rng: as_stored(x[:1]),
    "one column": lambda x, rng: as_stored(x[:, :1]),
    "columns twice": lambda x, rng: as_stored(np.hstack([x, x])),
    "zeros": lambda x, rng: as_stored(np.zeros(x.shape)),
    "rank one": lambda x, rng: as_stored(np.outer(x[:, 0], x[0])),
    "identity": lambda x, rng: as_stored(np.eye(*x.shape)),
    "one-hot": lambda x, rng: as_stored(
        np.eye(x.shape[1])[rng.integers(0, x.shape[1], len(x))] * 10.0 ** (rng.uniform(-8, 0) * chance(rng, 0.5))
    ),
    "one-hot, a small column": lambda x, rng: as_stored(
        np.eye(*x.shape) * np.append(np.ones(x.shape[1] - 1), 10.0 ** rng.uniform(-9, -5))
    ),
    "ties": tied,
    "empty": lambda x, rng: (np.zeros(one_of(rng, ((0, x.shape[1]), (len(x), 0)))), None),
    "infinite": infinite,
    "sparse, duplicates": duplicates,
    "sparse, stored zeros": stored_zeros,
    "sparse, whole": sparse_whole,
    "objects": lambda x, rng: (x.astype(object), x),
    "strings": lambda x, rng: (x.astype(str), x),
    "pandas, mixed": mixed_table,
    "pandas, nullable": nullable,
    "Polars": lambda x, rng: (pl.DataFrame(x, schema=[f"c{j}" for j in range(x.shape[1])]), x),
    "xarray, transposed": lambda x, rng: (xr.DataArray(x.T, dims=("c", "r")).transpose("r", "c"), x),
    "reversed": lambda x, rng: as_stored(x[::-1, ::-1]),
    "broadcast": lambda x, rng: as_stored(np.broadcast_to(x[0], x.shape)),
}


def problem(rng: Rng) -> Odd:
    n, d = whole(rng, 2, 79), whole(rng, 2, 29)
    name = one_of(rng, tuple(NAMES))
    kind = "sparse" if name.startswith("sparse") else one_of(rng, ("samples", "matrix"))
    how: dict[str, Any] = {"kind": kind, "center": chance(rng, 0.5), "scale": chance(rng, 0.2)}
    how["algorithm"] = one_of(rng, ("auto", "power", "krylov", "gram", "row-gram"))
    x = rng.standard_normal((n, d)) * np.geomspace(1, 0.01, d)
    return Odd(name, x, whole(rng, 0, 10**6), min(n, d) if chance(rng, 0.1) else whole(rng, 1, min(n, d)), how)


def check(problem: Odd, folder: Path) -> Findings:
    found, how = Findings(), problem.how
    source, held = NAMES[problem.name](problem.x, np.random.default_rng(problem.seed))
    solution = npmdask.top_k(source, problem.k, **how)
    if held is None:
        found.expect(False, "accepted what must be refused:", problem.name)
        return found
    exact = held.astype(np.longdouble)
    # float64 is what npmdask reads: whole numbers beyond 2^53 are rounded to it, each by eps / 2
    x = exact.astype(float)
    truth = prepared(exact, center=how["center"], scale=how["scale"])
    if truth.is_noise:
        raise Unasked("constant data: nothing is left but the rounding of means")
    kind = "matrix" if how["kind"] == "sparse" else how["kind"]
    as_read = float(np.abs(x - exact).max()) / (float(np.abs(truth.matrix * truth.deviation).max()) or 1)
    entry = float(np.abs(truth.matrix).max())
    apart = 1 + how["scale"] * entry  # of a deviation as_read is a larger share
    question = Question(truth.matrix, kind, truth.weight, blur=4 * as_read * np.sqrt(x.size) * apart)
    with np.errstate(all="ignore"):
        judge(found, solution, question)
    basis = np.asarray(solution.basis)
    rounding = truth.of_scores(scaled=how["scale"]) + 4 * as_read * entry * apart
    largest = float(np.abs(truth.rows_before @ basis).max()) or 1.0
    found.close("scores", solution.scores(source), truth.rows_before @ basis, rounding / largest + 16 * EPS, largest)
    return found
