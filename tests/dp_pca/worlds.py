"""Small data sets, the loop that the room itself does not have, and what one neighbour moves along a run."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from npmdask.dp_pca.base import Answer, BatchQuery, Noise, released
from npmdask.dp_pca.deflation import Deflation
from npmdask.dp_pca.record_images import images_of_matrices, images_of_rows

Images = Callable[[BatchQuery], np.ndarray]


def images_of(records: np.ndarray) -> Images:
    """Images of the records of a query: rows (n x d) or matrices (n x d x d)."""
    form = images_of_rows if records.ndim == 2 else images_of_matrices

    def images(query: BatchQuery) -> np.ndarray:
        rows = query.indices(len(records))
        return form(records[rows.start : rows.stop], query.vector, query.found)

    return images


@dataclass(frozen=True)
class Ran:
    basis: np.ndarray
    queries: list[BatchQuery]
    answers: list[Answer]


def run(oracle, dimension: int, images: Images, noise: Noise) -> Ran:
    """All rounds of a deflation, in memory."""
    deflation = Deflation(oracle)
    state, queries, answers = deflation.init(dimension), [], []
    while not deflation.finished(state):
        query = deflation.query(state)
        answer = released(query, query.mechanism.summary(images(query), query.centre), noise)
        state = deflation.update(state, answer)
        queries.append(query)
        answers.append(answer)
    return Ran(state.found, queries, answers)


def moved(ran: Ran, one: Images, other: Images) -> float:
    """mu that two data sets show along one transcript: root of the sum of (|difference| / stddev)^2, exact sums."""
    total = 0.0
    for query in ran.queries:
        mechanism = query.mechanism
        difference = mechanism.summary(one(query), query.centre) - mechanism.summary(other(query), query.centre)
        stddev = mechanism.units if hasattr(mechanism, "units") else mechanism.histogram.stddev
        total += sum(int(x) ** 2 for x in difference) / stddev**2
    return math.sqrt(total)


def spiked(n: int, d: int, values: tuple[float, ...], sigma: float, seed: int = 0) -> tuple[Images, np.ndarray]:
    """A_i = V diag(values) V^T + z_i z_i^T, z ~ N(0, sigma^2 I) (Duengler and Sanyal 2025, G.1, k > 1), and V."""
    rng = np.random.default_rng(seed)
    v = np.linalg.qr(rng.standard_normal((d, len(values))))[0]
    z = sigma * rng.standard_normal((n, d))

    def images(query: BatchQuery) -> np.ndarray:
        rows = query.indices(n)
        noise = images_of_rows(z[rows.start : rows.stop], query.vector, query.found)
        signal = v @ (np.array(values) * (v.T @ query.vector))
        return noise + signal - query.found @ (query.found.T @ signal)

    return images, v


def lost(basis: np.ndarray, v: np.ndarray, values: tuple[float, ...]) -> float:
    """zeta of ``basis`` for V diag(values) V^T, accurate below 1e-8."""
    residual = v - basis @ (basis.T @ v)
    return math.sqrt(np.sum(np.array(values) * np.sum(residual**2, axis=0)) / sum(values))
