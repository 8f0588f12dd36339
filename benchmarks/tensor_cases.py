"""Tensors in memory and how well their components were found, for the rows about tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment
from threadpoolctl import threadpool_limits

from npmdask.core.numerics.random import generator
from npmdask.core.numerics.subspaces import random_orthonormal

SLICES = 64 * 2**20  # bytes of the products of two factors at once


def planted(d: int, weights: np.ndarray, *, noise: float = 0.0, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """sum_r weights_r v_r (x) v_r (x) v_r (d x d x d), symmetric bit for bit, and the orthonormal v_r (d x k).

    ``noise``: standard deviation of normal noise on every entry i <= j <= k, mirrored.
    """
    rng = generator(seed, "benchmarks", "planted tensor")
    vectors = random_orthonormal(d, len(weights), rng)
    with threadpool_limits(limits=1):
        values = _outer(vectors, weights)
    if noise:
        values += noise * rng.standard_normal(values.shape)
    return mirrored(values), vectors


def _outer(vectors: np.ndarray, weights: np.ndarray) -> np.ndarray:
    d, k = vectors.shape
    values, step = np.empty((d, d, d)), max(1, SLICES // (8 * d * k))
    for first in range(0, d, step):
        some = (vectors[first : first + step] * weights)[:, None, :] * vectors
        values[first : first + step] = some @ vectors.T
    return values


def mirrored(values: np.ndarray) -> np.ndarray:
    """The symmetric tensor with these entries at i <= j <= k."""
    d = len(values)
    i, j, k = np.sort(np.indices(values.shape, dtype=np.int32).reshape(3, -1), axis=0)
    return np.ascontiguousarray(values[i, j, k].reshape(d, d, d))


def matched(found: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """For each true vector (columns, unit) the distance to the found one that it is matched with (optimal, Hungarian);
    a true vector that has no partner is at distance 1.

    A vector that is not finite is at distance 1 from all.
    """
    sound = np.nan_to_num(np.asarray(found, dtype=np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    norms = np.linalg.norm(sound, axis=0)
    sound = sound / np.where(norms > 0, norms, 1.0)
    distances = np.linalg.norm(sound[:, :, None] - truth[:, None, :], axis=0)
    here, there = linear_sum_assignment(distances)
    errors = np.ones(truth.shape[1])
    errors[there] = distances[here, there]
    return np.minimum(errors, 1.0)


def facts_of(solution: Any, truth: np.ndarray, weights: np.ndarray) -> dict[str, Any]:
    """Errors of the vectors and of the weights, and the status of each component."""
    k = len(weights)
    return {
        "vector_error": float(matched(solution.basis[:, :k], truth).max()),
        "relative_error": float(np.abs(np.sort(solution.values[:k])[::-1] / np.sort(weights)[::-1] - 1).max()),
        "passes": solution.total_data_passes,
        "converged": solution.converged,
        "status": solution.facts["status"],
    }
