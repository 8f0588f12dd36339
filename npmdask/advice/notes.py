"""Note what is odd about the data of an answer: component 1 is their mean, a column numbers the rows, or holds all."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from npmdask.core.algorithms import Result
from npmdask.core.numerics.subspaces import TurnedBlock
from npmdask.core.operators.view import View
from npmdask.core.runs.checks import MOSTLY, NAMED, mean_of_rows, mean_said
from npmdask.core.runs.left_vectors import left_chunks
from npmdask.core.runs.problem import Problem
from npmdask.core.storage.readers.dense import DenseReader, ReadStats
from npmdask.core.storage.source import Source


def mean_notes(
    problem: Problem,
    operator: Any,
    mean: np.ndarray | None,
    result: Result,
    arrays: dict[str, np.ndarray],
    folder: Path,
) -> list[str]:
    """A note that component 1 is nearly the mean of the columns, where :data:`MOSTLY` of its value belongs to the mean.

    With f the share of the first value that belongs to the mean, ``n (m . v)^2 / theta``, f is the squared cosine of
    the first left vector and the vector of ones. The other left vectors share what is left, at no larger value, so that
    the squared cosine of v and m is at least f: one threshold holds for the value and for the angle. Where the means
    are not known, the left vectors of a matrix, which were just written, tell f.
    """
    if not len(result.values) or not result.values[0] > 0 or problem.source.shape[0] == 1:
        return []
    seen = mean_of_rows(problem, operator, mean)
    if seen is None:
        left = "left_rotation" in arrays and not problem.request.center and problem.source.parts == 1
        bound = _cosine_by_left(operator.view, arrays, folder) if left and mean is None else 0.0
        return [mean_said("component 1 is nearly", bound, least=True)] if bound**2 >= MOSTLY else []
    if not seen.any():
        return []
    along, length = first_along(seen, result.vectors)
    if along**2 < MOSTLY * result.values[0]:
        return []
    cosine = along / float(np.linalg.norm(seen) * length)
    return [mean_said("component 1 is nearly", cosine)]


NEARLY_ALL, FEW_ROWS = 0.99, 8  # of the variance of a table, held by one of its columns; too few rows to count


def column_notes(problem: Problem, source: Source) -> list[str]:
    """Notes of columns with names that number the rows, or hold nearly all variance though nothing is scaled.

    Only numbers in equal steps have the mean and the deviation that first value, step and number of rows give.
    """
    columns, rows, notes = source.statistics, source.shape[0], list[str]()
    names = None if source.labels is None or not source.labels.columns else source.labels.columns[0].values
    plain = not problem.request.seen(source).weighs and problem.recipe is None and source.parts == 1
    if columns is None or names is None or len(names) != len(columns.std) or names.dtype.kind != "U" or not plain:
        return []
    mean, std = columns.mean, columns.std
    variances = std**2 + (0 if problem.request.center else mean**2)
    top, total = int(np.argmax(variances)), variances.sum()
    if not problem.request.scale and len(names) > 2 and variances[top] > NEARLY_ALL * total:
        notes.append(
            f"column {str(names[top])!r} holds {math.floor(1e5 * variances[top] / total) / 1e3:g} % of the variance of "
            f"all {len(names)}: if it is a number of the row, or in other units, leave it out, or set scale = true"
        )
    if rows >= FEW_ROWS and isinstance(source.reader, DenseReader):
        _, tile = next(iter(source.reader.tiles(0, ReadStats())))
        first, then = np.concatenate([np.float64(values[[0, min(1, len(values) - 1)]]) for _, values in tile], axis=1)
        step, half = then - first, (rows - 1) / 2
        counts = (step != 0) & np.isclose(std, np.abs(step) * math.sqrt((rows**2 - 1) / 12), rtol=1e-9, atol=0)
        counts &= np.abs(mean - first - step * half) <= 1e-9 * (np.abs(mean) + std)
        said = "counts the rows, in steps of {:g}: leave it out if it is their number"
        notes += [f"column {str(names[i])!r} {said.format(step[i])}" for i in np.flatnonzero(counts)[:NAMED]]
    return notes


def first_along(seen: np.ndarray, vectors: Any) -> tuple[float, float]:
    """``abs(seen @ v)`` of the first vector v and its length; of vectors that lie on disk some rows at a time."""
    if not isinstance(vectors, TurnedBlock):
        return abs(float(seen @ vectors[:, 0])), float(np.linalg.norm(vectors[:, 0]))
    parts = zip(vectors.block.tiles, vectors[:, :1].pieces(), strict=True)
    return abs(float(sum(seen[part] @ piece[:, 0] for part, piece in parts))), 1.0


def _cosine_by_left(view: View, arrays: dict[str, np.ndarray], folder: Path) -> float:
    """A lower bound of the cosine of component 1 and the mean, if f is large; else that root of f.

    The mean is ``sum s_i c_i v_i`` with c_i the cosines of the left vectors and the vector of ones, whose squares add
    up to 1; beyond the last that is known no value is larger.
    """
    height, sums, start = 0.0, np.zeros(len(arrays["left_rotation"])), 0
    for rows in left_chunks(folder, arrays):
        roots = np.ones(len(rows)) if view.row_weight is None else view.row_roots[start : start + len(rows)]
        sums, height, start = sums + roots @ rows, height + float(roots @ roots), start + len(rows)
    cosines, values = sums @ arrays["left_rotation"] / math.sqrt(height), arrays["values"]
    if cosines[0] ** 2 < MOSTLY:
        return abs(float(cosines[0]))
    squares = np.append((values * cosines) ** 2, values[-1] ** 2 * max(0.0, 1 - float(cosines @ cosines)))
    return float(values[0] * abs(cosines[0]) / math.sqrt(squares.sum()))


def notes_of(
    problem: Problem,
    operator: Any,
    source: Source,
    result: Result,
    arrays: dict[str, np.ndarray],
    folder: Path,
) -> list[str]:
    """All notes of a finished plain run, whose ``source`` is surveyed."""
    return mean_notes(problem, operator, source.column_mean, result, arrays, folder) + column_notes(problem, source)
