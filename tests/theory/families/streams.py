"""Streams: mean and count of what was used, values, scores, odd batches, weights, models saved between batches."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import npmdask
from tests.theory.families.drawing import Rng, chance, one_of, power_of_ten, whole
from tests.theory.families.judging import Findings, Problem, Unasked

WAYS = ("whole", "whole", "weights", "frequent directions", "batches", "rows alone", "saved and loaded")


@dataclass(frozen=True)
class Stream(Problem):
    x: np.ndarray
    way: str
    k: int
    batches: list[int]
    saved: list[bool]  # after which batches a model is written and read again
    repeats: np.ndarray
    how: dict[str, Any]


def problem(rng: Rng) -> Stream:
    d = whole(rng, 1, 19)
    n, k, way = whole(rng, d + 2, 599), whole(rng, 1, d), one_of(rng, WAYS)
    x = rng.standard_normal((n, d)) * np.geomspace(3, power_of_ten(rng, -2, 0), d)
    if chance(rng, 0.7):
        x = x + rng.standard_normal(d) * power_of_ten(rng, -1, 5)
    if chance(rng, 0.15):
        x[:, 0] = 2
    if chance(rng, 0.15):
        x = x[np.argsort(x[:, 0])]
    x = x.astype(np.float32 if chance(rng, 0.2) else float)
    how: dict[str, Any] = {"center": chance(rng, 0.7), "seed": whole(rng, 0, 99)}
    how["algorithm"] = "frequent-directions" if way == "frequent directions" else "spm"
    if how["algorithm"] == "spm":
        how["options"] = {"iteration_rank": d}
    if way in ("batches", "rows alone", "saved and loaded"):
        batches = [1] * n if way == "rows alone" else [whole(rng, 1, 79) for _ in range(n)]
    else:
        batches = [whole(rng, 1, 299)]
    repeats = rng.integers(0, 4, n) if way == "weights" else np.ones(n, int)
    saved = [way == "saved and loaded" and chance(rng, 0.3) for _ in batches]
    return Stream(x, way, k, batches, saved, repeats, how)


def check(problem: Stream, folder: Path) -> Findings:
    found, x, k = Findings(), problem.x.astype(float), problem.k
    if problem.repeats.sum() < 2:
        raise Unasked("fewer than two rows")
    center, single = problem.how["center"], problem.x.dtype == np.float32
    if problem.way in ("batches", "rows alone", "saved and loaded"):
        model = in_batches(problem, folder)
        used = len(x) - model.rows_waiting
    else:
        given = {"row_weights": problem.repeats.astype(float)} if problem.way == "weights" else {}
        model = npmdask.stream_pca(problem.x, k, batch_rows=problem.batches[0], **problem.how, **given)
        used = model.rows_used
        found.expect(model.rows_used + model.rows_waiting == model.rows, "rows that are used, or wait")
    counted = int((problem.repeats > 0).sum())  # a row of weight 0 is none
    found.expect(model.rows == counted, "rows", model.rows, "of", counted)
    size = float(np.abs(x).max())
    if center:  # the mean is that of every row; rows that wait are only not in the components yet
        mean = np.repeat(x, problem.repeats, axis=0).mean(axis=0)
        found.close("mean", model.mean, mean, 1e-5 if single else 1e-11, size)
    basis, values = np.asarray(model.basis), np.asarray(model.values)
    off = float(np.abs(basis.T @ basis - np.eye(basis.shape[1])).max(initial=0))
    found.expect(off < 1e-8, "vectors are not orthonormal by", off)
    found.expect(np.isfinite(values).all() and (values >= 0).all(), "values", values)
    if problem.way == "frequent directions" and used:
        exact_where_nothing_is_left_out(found, problem, model, x[:used], single=single)
    if hasattr(model, "transform"):
        scores = (x - (model.mean if center else 0)) @ basis
        precision = 1e-4 if single else 1e-10
        found.close("scores", model.transform(problem.x), scores, precision, size)
    return found


def exact_where_nothing_is_left_out(
    found: Findings, problem: Stream, model: Any, rows: np.ndarray, *, single: bool
) -> None:
    """A sketch of as many rows as columns is the second moment itself; of fewer it is never larger."""
    about = rows.mean(axis=0) if problem.how["center"] else np.zeros(rows.shape[1])
    truth = np.linalg.svd(rows - about, compute_uv=False) ** 2 / len(rows)
    values = np.asarray(model.values)
    size = float(np.abs(rows).max()) ** 2 * (1e-6 if single else 1e-14)  # squares of means cancel
    if 4 * problem.k >= rows.shape[1]:  # rows that survive a shrinking, by default
        found.close("values of a sketch that holds all", values, truth[: len(values)], 1e-9, truth[0] + 1e9 * size)
    else:
        found.expect((values <= truth[: len(values)] * (1 + 1e-6) + size).all(), "values above the truth", values)


def in_batches(problem: Stream, folder: Path) -> Any:
    """A model that takes batches as they come; now and then it is written, and goes on as it was read."""
    model, at = npmdask.StreamingPCA(problem.k, **problem.how), 0
    for number, (rows, saved) in enumerate(zip(problem.batches, problem.saved, strict=True)):
        if at >= len(problem.x):
            break
        model.partial_fit(problem.x[at : at + rows])
        at += rows
        if saved:
            model.save(folder / f"model{number}")
            model = npmdask.StreamingPCA.load(folder / f"model{number}")
    return model
