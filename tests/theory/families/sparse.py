"""Sparse matrices in CSR, CSC, COO, Dask blocks and AnnData: centre, scale, weights, every algorithm, stored Grams."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anndata
import dask.array as da
import numpy as np
import scipy.sparse as sp

import npmdask
from tests.theory.families.drawing import Rng, chance, one_of, power_of_ten, weights, whole
from tests.theory.families.judging import Findings, Problem, Question, Unasked, judge, largest_bound, prepared


@dataclass(frozen=True)
class Sparse(Problem):
    x: np.ndarray
    change: str
    container: str
    k: int
    rows: np.ndarray | None
    columns: np.ndarray | None
    how: dict[str, Any]


def problem(rng: Rng) -> Sparse:
    n, d, many = whole(rng, 2, 199), whole(rng, 1, 39), chance(rng, 0.03)
    if many:  # sums over rows with a large mean round
        n, d = whole(rng, 3000, 12000), whole(rng, 1, 8)
    x = rng.standard_normal((n, d)) * np.geomspace(1, power_of_ten(rng, -3, 0), d)
    x = np.where(rng.random((n, d)) < one_of(rng, (0.05, 0.2, 0.5)), x, 0)
    change = one_of(rng, ("none", "counts", "a full column", "units", "rows of all sizes", "empty columns", "patterns"))
    change = "a full column" if many else change
    if change == "counts":
        x = np.round(np.abs(x) * 5)
    elif change == "a full column":
        x[:, 0] = power_of_ten(rng, 0, 6) + rng.standard_normal(n)
    elif change == "units":
        x = x * 10.0 ** rng.uniform(-5, 5, d)
    elif change == "rows of all sizes":
        x = x * 10.0 ** rng.uniform(-6, 6, (n, 1))
    elif change == "empty columns":
        x[:, rng.random(d) < 0.4] = 0
    elif change == "patterns":  # entries that hardly differ in a few of them: of rows, or turned of columns
        patterns = rng.random((whole(rng, 1, 6), d)) < one_of(rng, (0.1, 0.3))
        x = patterns[rng.integers(0, len(patterns), n)] * (1 + power_of_ten(rng, -6, 0) * rng.standard_normal((n, d)))
    x = x.astype(one_of(rng, ("f8", "f8", "f4")))
    if chance(rng, 0.4) and not many:
        x, n, d = np.ascontiguousarray(x.T), d, n
    if not x.any():
        x[0, 0] = 1
    container = one_of(rng, ("CSR", "CSC", "COO", "duplicates", "stored zeros", "Dask", "AnnData", "Gram"))
    how: dict[str, Any] = {"center": chance(rng, 0.4), "scale": chance(rng, 0.4), "seed": whole(rng, 0, 99)}
    how["algorithm"] = "auto" if container == "Gram" else one_of(rng, ("auto", "power", "krylov", "gram", "row-gram"))
    rows = weights(rng, n, (0, 3)) if chance(rng, 0.25) and container not in ("Gram", "AnnData") else None
    columns = weights(rng, d, (0,)) if chance(rng, 0.25) and container not in ("Gram", "AnnData") else None
    return Sparse(x, change, container, whole(rng, 1, min(n, d, 12)), rows, columns, how)


def contained(problem: Sparse, folder: Path) -> Any:
    x, n = problem.x, len(problem.x)
    match problem.container:
        case "CSC":
            return sp.csc_matrix(x)
        case "COO":
            return sp.coo_matrix(x)
        case "duplicates":  # entries that add up to those of x, to the bit
            r, c = x.nonzero()
            half = x[r, c] / 2
            return sp.coo_matrix((np.append(half, half), (np.append(r, r), np.append(c, c))), shape=x.shape)
        case "stored zeros":
            full = sp.csr_matrix(np.ones(x.shape, x.dtype))
            full.data[:] = x.ravel()
            return full
        case "Dask":
            return da.from_array(x, chunks=(max(1, n // 3), x.shape[1])).map_blocks(sp.csr_matrix)
        case "AnnData":
            return anndata.AnnData(sp.csr_matrix(x))
        case "Gram":
            return npmdask.gram(sp.csr_matrix(x), str(folder / "gram"))
    return sp.csr_matrix(x)


def check(problem: Sparse, folder: Path) -> Findings:
    found, how = Findings(), problem.how
    source = contained(problem, folder)
    x = problem.x.astype(float)
    truth = prepared(x, center=how["center"], scale=how["scale"], rows=problem.rows, columns=problem.columns)
    if truth.is_noise:
        raise Unasked("constant data: nothing is left but the rounding of means")
    weights_given = {"row_weights": problem.rows, "column_weights": problem.columns}
    given = {} if problem.container in ("Gram", "AnnData") else weights_given
    solution = npmdask.top_k(source, problem.k, **how, **given)
    question = Question(truth.matrix, "matrix")
    judge(found, solution, question)
    values = np.asarray(solution.values)
    if solution.answered and solution.explained_share is not None:
        rounded = 2 * (largest_bound(solution.certificate) or 0.0) / (values[0] or 1)
        found.close("share", solution.explained_share, (values**2).sum() / question.total, max(1e-6, rounded), 1.0)
    if problem.container != "Gram":
        scores = truth.rows_before @ np.asarray(solution.basis)
        rounding = truth.of_scores(scaled=how["scale"]) * max(1, len(x) / 1000)  # of means, sums one after another
        # What is stated of the largest value holds the error of deviations, by which scores are off as well.
        error = (largest_bound(solution.certificate) or 0.0) / (values[0] or 1) * np.abs(scores).max()
        found.close("scores", solution.scores(source), scores, rounding + error * how["scale"], 1.0)
    return found
