"""Stored Grams: merged, by labels and chunks, parts removed (also huge ones), columns selected, rows appended; of rows
as they are stored, and of the columns of an array that Dask transposes: A A^T of few rows, over groups of columns.

The answer, and what is derived from it: jackknife by brute force, spectrum, varimax, promax, alignment.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import zarr

import npmdask
from tests.conftest import write_zarr
from tests.theory.families.drawing import Rng, chance, one_of, power_of_ten, stored, whole
from tests.theory.families.judging import Findings, Prepared, Problem, Question, Unasked, judge, prepared

WAYS = (
    "plain", "merge", "merge and remove", "group", "remove group", "chunks", "remove", "subtract", "select", "append",
    "rotate", "align", "jackknife",
)  # fmt: skip
LOSSY = (
    "remove",
    "subtract",
    "merge and remove",
    "remove group",
)  # differences of Grams: digits cancel, and it says so


@dataclass(frozen=True)
class Grams(Problem):
    x: np.ndarray
    change: str
    way: str
    kind: str
    precision: str
    center: bool
    scale: bool
    chunk: int
    k: int
    seed: int  # of what the way itself draws: cuts, labels, columns
    turned: int  # 0: rows as they are stored; else columns of an array that has so many rows in a chunk


def problem(rng: Rng) -> Grams:
    n, d = whole(rng, 6, 299), whole(rng, 2, 39)
    x = rng.standard_normal((n, d)) * np.geomspace(1, power_of_ten(rng, -4, 0), d)
    change = one_of(
        rng, ("none", "means", "units", "rows", "constants", "whole"), p=[0.45, 0.25, 0.1, 0.07, 0.06, 0.07]
    )
    if change == "means":
        x = x + rng.standard_normal(d) * power_of_ten(rng, 0, 8)
    elif change == "units":
        x = x * 10.0 ** rng.uniform(-8, 8, d)
    elif change == "rows":
        x = x * 10.0 ** rng.uniform(0, 7, (n, 1))
    elif change == "constants":
        x[:, 0] = 5
    elif change == "whole":
        x = np.round(x * power_of_ten(rng, 1, 8))
    dtype = one_of(rng, ("f8", "f8", "f8", "f4", "i8", "i4"))
    if dtype[0] == "i":
        x = np.clip(np.round(x * 100), -2e9, 2e9)
    return Grams(
        x.astype(dtype),
        change,
        way=one_of(rng, WAYS),
        kind=one_of(rng, ("samples", "matrix")),
        precision=one_of(rng, ("float64", "float64", "float32")),
        center=chance(rng, 0.7),
        scale=chance(rng, 0.3),
        chunk=max(whole(rng, 2, n), n // 12 + 1),
        k=min(whole(rng, 1, min(n, d)), 10),
        seed=whole(rng, 0, 10**6),
        turned=whole(rng, 1, d) if chance(rng, 0.3) else 0,
    )


@dataclass(frozen=True)
class Made:
    """A stored Gram, the rows and columns that it is of, and the labels of the rows where it has groups."""

    gram: Any
    rows: np.ndarray
    labels: np.ndarray | None = None


def made(problem: Grams, folder: Path, rng: Rng) -> Made:
    x, n = problem.x, len(problem.x)
    options: dict[str, Any] = {"kind": problem.kind, "precision": problem.precision}

    def put(rows: np.ndarray, name: str) -> Any:
        if not problem.turned or problem.way == "append":
            return stored(folder, rows, problem.chunk, name)
        path = folder / f"{name}.zarr"
        write_zarr(path, rows.T, (min(problem.turned, rows.shape[1]), min(problem.chunk, len(rows))))
        return da.from_zarr(path).T

    def gram(source: Any, name: str, **more: Any) -> Any:
        return npmdask.gram(source, str(folder / name), **options, **more)

    match problem.way:
        case "append":
            half = max(1, n // 2)
            path = put(x[:half], "x")
            gram(path, "gram")
            zarr.open_array(path).append(x[half:])
            return Made(gram(path, "gram"), x)
        case "merge" | "merge and remove":
            parts = np.split(x, np.sort(rng.choice(np.arange(1, n), size=min(3, n - 1), replace=False)))
            grams = [gram(put(part, f"part{i}"), f"gram{i}") for i, part in enumerate(parts)]
            whole_one = npmdask.GramStore.merge(grams, str(folder / "gram"), distinct=chance(rng, 0.5))
            if problem.way == "merge":
                return Made(whole_one, x)
            rest = np.concatenate([part for i, part in enumerate(parts) if i != 1])
            return Made(whole_one.remove(grams[1], str(folder / "rest")), rest)
        case "group" | "remove group" | "jackknife":
            labels = rng.integers(0, 4, n)
            labels[:2] = 0, 1  # two groups at least
            of_groups = gram(put(x, "x"), "gram", groups=labels)
            if problem.way == "jackknife":
                return Made(of_groups, x, labels)
            group = of_groups.group("0")
            if problem.way == "group":
                return Made(group, x[labels == 0])
            return Made(of_groups.remove(group, str(folder / "rest")), x[labels != 0])
        case "chunks":
            by_chunks = gram(put(x, "x"), "gram", by_chunks=1)
            names = list(by_chunks.groups)
            chosen = np.sort(rng.choice(len(names), size=whole(rng, 1, len(names)), replace=False))
            ends = [[int(number) for number in names[i].split() if number.isdigit()] for i in chosen]  # "rows 0 to 99"
            rows = np.concatenate([x[first : last + 1] for first, last in ends])
            return Made(by_chunks.group(*(names[i] for i in chosen)), rows)
        case "remove" | "subtract":
            first = problem.chunk
            if first >= n:
                raise Unasked("one chunk: nothing would be left")
            rows = x.copy()
            if problem.way == "subtract" and x.dtype == np.float64:  # what is removed is huge beside what is left
                rows[:first] = rows[:first] * power_of_ten(rng, 0, 8)
            removed = gram(put(rows[:first], "removed"), "gram-removed")
            return Made(gram(put(rows, "x"), "gram").remove(removed, str(folder / "rest")), x[first:])
        case "select":
            columns = rng.permutation(x.shape[1])[: whole(rng, 1, x.shape[1])]
            return Made(gram(put(x, "x"), "gram").select([int(c) for c in columns]), x[:, columns])
    return Made(gram(put(x, "x"), "gram"), x)


def check(problem: Grams, folder: Path) -> Findings:
    found, rng = Findings(), np.random.default_rng(problem.seed)
    result = made(problem, folder, rng)
    asked = {"center": problem.center, "scale": problem.scale}
    k = min(problem.k, *result.rows.shape)
    if problem.way == "jackknife":
        jackknife(found, result, k, problem)
        return found
    rows = result.rows.astype(float)
    found.expect(result.gram.rows == len(rows), "rows", result.gram.rows, len(rows))
    truth = prepared(rows, **asked)
    if truth.is_noise:
        raise Unasked("constant data: nothing is left but the rounding of means")
    solution = npmdask.top_k(result.gram, k, **asked)
    question = Question(truth.matrix, problem.kind, truth.weight)
    judge(found, solution, question)
    if solution.converged:
        far = np.abs(solution.values - question.values[:k]).max()
        found.expect(far <= 1e-6 * question.largest, "converged, off by", far / question.largest)
    if solution.converged and solution.explained_share is not None:
        variances = np.asarray(solution.values) ** (1 if problem.kind == "samples" else 2)
        found.close("share", solution.explained_share, variances.sum() / question.total, 1e-6, 1.0)
    if problem.way not in LOSSY and problem.precision == "float64":
        # A Gram holds squares: its eigenvalues are off by eps times all that was summed, singular values by its root.
        # A deviation is known to the rounding of the data about the mean.
        factor = np.abs(truth.matrix).max()
        summed = np.linalg.norm(rows / truth.deviation / factor) / np.linalg.norm(truth.matrix / factor, 2)
        own = 16 * np.finfo(float).eps * summed**2 + 16 * truth.rounding * problem.scale
        spectrum = np.asarray(result.gram.spectrum(**asked))
        within = own if problem.kind == "samples" else np.sqrt(own)
        found.close("spectrum", spectrum, question.values, within + 1e-13, question.largest)
    if solution.converged and problem.kind == "samples":
        if problem.way == "rotate":
            rotation(found, solution, rows, truth, center=problem.center, rng=rng)
        elif problem.way == "align":
            alignment(found, solution, rows, center=problem.center, rng=rng)
    return found


def jackknife(found: Findings, result: Made, k: int, problem: Grams) -> None:
    """Values without each group, one after the other."""
    assert result.labels is not None
    leaving = result.gram.jackknife(k, center=problem.center, scale=problem.scale)
    truth = []
    for name in result.gram.groups:
        rest = prepared(
            result.rows[result.labels.astype(str) != name].astype(float), center=problem.center, scale=problem.scale
        )
        truth.append(Question(rest.matrix, problem.kind, rest.weight).values[:k])
    if problem.precision == "float64" and problem.change not in ("means", "rows"):  # differences of Grams cancel there
        found.close("jackknife", leaving.left_out, np.array(truth), 1e-9 if problem.kind == "samples" else 1e-6)


def rotation(found: Findings, solution: Any, rows: np.ndarray, truth: Prepared, *, center: bool, rng: Rng) -> None:
    """Rotated components explain as much, rebuild the same rows, and have the variances and correlations they state."""
    method, k = one_of(rng, ("varimax", "promax")), whole(rng, 1, len(solution.values))
    turned = solution.rotated(method, k=k, normalize=chance(rng, 0.5))
    variances = np.asarray(solution.explained_variance if center else solution.values)[:k]
    if variances[-1] <= 1e-12 * variances[0]:
        raise Unasked("a component without variance: its direction is rounding")
    found.close("rotated: sum of variances", turned.variances.sum(), variances.sum(), 1e-9)
    scores = turned.scores(rows)
    before = truth.rows_before @ np.asarray(solution.basis)[:, :k] @ np.asarray(solution.basis)[:, :k].T
    condition = np.sqrt(variances[0] / variances[-1])
    rounding = 64 * truth.rounding / np.abs(before).max() * condition
    found.close("rotated: rebuilt rows", scores @ turned.basis.T, before, 1e-10 + rounding)
    covariance = scores.T @ scores / (len(rows) - center)
    size = np.sqrt(np.diag(covariance))
    if method == "varimax":  # of oblique components a variance counts half of what two of them share
        found.close("rotated: variances", np.diag(covariance), turned.variances, 1e-9 + rounding)
    found.close(
        "rotated: correlations",
        turned.correlations,
        covariance / np.outer(size, size),
        1e-9 + rounding * condition,
        1.0,
    )
    found.close("rotated: lengths", np.linalg.norm(turned.basis, axis=0), np.ones(k), 1e-9)


def alignment(found: Findings, solution: Any, rows: np.ndarray, *, center: bool, rng: Rng) -> None:
    """Components that follow earlier ones have the variances and the likeness that they state."""
    basis = np.asarray(solution.basis)
    earlier = np.linalg.qr(basis + 0.3 * rng.standard_normal(basis.shape))[0]
    turned = solution.aligned(earlier, rotate=chance(rng, 0.5))
    scores = turned.scores(rows)
    variances = (scores**2).sum(axis=0) / (len(rows) - center)
    found.close("aligned: variances", variances, turned.variances, 1e-7)
    likeness = np.einsum("ij,ij->j", turned.basis, earlier[:, turned.earlier])
    found.close("aligned: similarity", turned.similarity, likeness, 1e-9, 1.0)
