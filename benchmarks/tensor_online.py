"""The online tensor power method (Wang and Anandkumar 2016, Algorithm 2) on rows that satisfy its assumptions.

x = sum_i s_i y_i v_i + z: y_i independent, of two values (RARE: how often the rare one), mean 0, variance 1, skewed;
z has d independent signs +-1. Means are 0 and z is symmetric, so E x (x) x (x) x = sum_i weight_i v_i (x) v_i (x) v_i
exactly, weight_i = SKEW s_i^3, and rows are bounded. The v_i are the first k unit vectors, which no start knows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from npmdask.core.numerics.random import generator
from npmdask.core.numerics.subspaces import Block
from npmdask.experiments.as_printed import online_tensor_power
from npmdask.streaming.algorithms.tensor_power import OnlineTensorPower, OnlineTensorState
from npmdask.tensors.components import random_units

RARE = 0.1
SKEW = (1 - 2 * RARE) / np.sqrt(RARE * (1 - RARE))  # E y^3
RESTARTS, ITERATIONS = 10, 10  # L, R
EQUAL = (SKEW, SKEW)  # weights, k = 2
FALLING = (0.4, 0.3, 0.2, 0.1)  # those of which the printed line finds the first 4 times
BATCH = 8192
Rows = Callable[[int], np.ndarray]


def rows_of(d: int, weights: Sequence[float], rng: np.random.Generator) -> Rows:
    """The next n rows (n x d) of a stream."""
    sizes = np.cbrt(np.asarray(weights) / SKEW)

    def rows(n: int) -> np.ndarray:
        bits = np.unpackbits(np.frombuffer(rng.bytes(-(-n * d // 8)), dtype=np.uint8), count=n * d)
        x = bits.reshape(n, d) * 2.0 - 1.0
        skewed = ((rng.random((n, len(sizes))) < RARE) - RARE) / np.sqrt(RARE * (1 - RARE))
        x[:, : len(sizes)] += sizes * skewed
        return x

    return rows


def streamed(d: int, n: int, seed: int, weights: Sequence[float] = EQUAL) -> OnlineTensorState:
    """The state of this project's class, without refinement as printed, after the k (R + 1) n rows that it searches."""
    rng = generator(seed, "online tensor", d, n)
    rows, k = rows_of(d, weights, rng), len(weights)
    method = OnlineTensorPower(target_rank=k, block_rows=n, restarts=RESTARTS, iterations=ITERATIONS, refine=False)
    state, left = method.init(d, rng=rng), method.search_rows
    while left:
        batch = min(left, BATCH)
        state, _ = method.update(state, rows(batch))
        left -= batch
    return state


def largest_error(vectors: Block, k: int) -> float:
    """max over i of the least ||v_i - v||."""
    nearest = vectors[:k].max(axis=1)
    return float(np.sqrt(2 * max(0.0, 1 - nearest.min())))


def error_value(d: int, n: int, seed: int) -> float:
    """The error of a trial."""
    return largest_error(streamed(d, n, seed).vectors, len(EQUAL))


def samples_trial(d: int, n: float, seed: int) -> bool:
    """Whether every component is found up to 2 / sqrt(d), which is the O(1 / sqrt(d)) of Corollary 3.1."""
    return error_value(d, max(2, round(n)), seed) <= 2 / np.sqrt(d)


def state_bytes(d: int) -> int:
    """The largest state of a search for two components, L restarts and rows that wait included."""
    rng = generator(0, "online tensor state", d)
    rows = rows_of(d, EQUAL, rng)
    method = OnlineTensorPower(target_rank=len(EQUAL), block_rows=64, restarts=RESTARTS, iterations=2, refine=False)
    state, largest = method.init(d, rng=rng), 0
    while len(state.weights) < len(EQUAL):
        state, _ = method.update(state, rows(16))
        largest = max(largest, sum(value.nbytes for value in vars(state).values() if isinstance(value, np.ndarray)))
    return largest


def deflated_online(rows: Rows, d: int, n: int, k: int, *, printed: bool, seed: int) -> Block:
    """Algorithm 2, with line 7 as it is printed (xi = v^T u~_{t+1}, the sum) or as it must be (v^T u_t): d x k."""

    def starts(place: int) -> Block:
        return random_units(d, RESTARTS, seed=seed, place=place)

    return online_tensor_power(rows, k, ITERATIONS, n, starts, xi="sum" if printed else "iterate")


def distinct_found(n: int, seed: int, *, printed: bool, d: int = 10) -> int:
    """How many of the four components of FALLING are found."""
    rows = rows_of(d, FALLING, generator(seed, "printed deflation", d, n))
    vectors = deflated_online(rows, d, n, len(FALLING), printed=printed, seed=seed)
    return int((vectors[: len(FALLING)].max(axis=1) >= 0.8).sum())
