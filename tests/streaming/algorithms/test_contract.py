"""What every streaming algorithm promises, over the registry."""

from __future__ import annotations

from dataclasses import fields
from types import NoneType
from typing import Any

import numpy as np
import pytest

from npmdask.core.algorithms import state_fields
from npmdask.core.numerics.random import generator
from npmdask.core.numerics.subspaces import max_sin_theta
from npmdask.errors import BadInputError
from npmdask.streaming.algorithms import STREAM_REGISTRY
from npmdask.streaming.algorithms.frequent_directions import FrequentDirections
from npmdask.streaming.algorithms.msg import MSG, RMSG, MiniBatchMSG, MiniBatchRMSG
from npmdask.streaming.algorithms.oja import Oja
from npmdask.streaming.algorithms.power import StreamPower
from npmdask.streaming.algorithms.tensor_power import OnlineTensorPower

D, K = 40, 3
ALGORITHMS: dict[str, Any] = {
    "spm": StreamPower(target_rank=K, iteration_rank=2 * K, block_rows=120),
    "oja": Oja(target_rank=K),
    "msg": MSG(target_rank=K),
    "rmsg": RMSG(target_rank=K, ridge=0.1),
    "mb-msg": MiniBatchMSG(target_rank=K, gap=0.2, batch_rows=64, warm_rows=64),
    "mb-rmsg": MiniBatchRMSG(target_rank=K, gap=0.2, shift=10, batch_rows=64, warm_rows=64),
    "frequent-directions": FrequentDirections(target_rank=K, sketch_rows=4 * K),
    "online-tensor-power": OnlineTensorPower(target_rank=K, block_rows=20, restarts=4, iterations=2),
}
DIRECTIONS = {name: algorithm for name, algorithm in ALGORITHMS.items() if algorithm.moment == 2}
every = pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)
of_directions = pytest.mark.parametrize("algorithm", DIRECTIONS.values(), ids=DIRECTIONS)


def stream(rows: int, seed: int = 0, d: int = D) -> tuple[np.ndarray, np.ndarray]:
    """Rows of mean square norm about 1 whose second moment has K large eigenvalues, and their eigenvectors."""
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.standard_normal((d, d)))[0]
    variances = np.concatenate([[0.36, 0.3, 0.26], np.full(d - K, 0.08 / (d - K))])
    return (rng.standard_normal((rows, d)) * np.sqrt(variances)) @ basis.T, basis[:, :K]


def fed(algorithm: Any, rows: np.ndarray, batch: int = 30, state: Any = None) -> Any:
    """The state after these rows; batches as asked for, or of ``batch`` rows."""
    state = algorithm.init(rows.shape[1], rng=generator(0, "start")) if state is None else state
    start = 0
    while start < len(rows):
        wanted = algorithm.query(state).rows or batch
        state, _ = algorithm.update(state, rows[start : start + wanted])
        start += wanted
    return state


def snapshot(state: Any) -> dict[str, Any]:
    return {
        f.name: value.copy() if isinstance(value := getattr(state, f.name), np.ndarray) else value
        for f in fields(state)
    }


def same(left: dict[str, Any], right: dict[str, Any]) -> bool:
    return left.keys() == right.keys() and all(np.array_equal(left[name], right[name]) for name in left)


def test_the_registry_is_complete() -> None:
    assert ALGORITHMS.keys() == STREAM_REGISTRY.keys()
    for name, algorithm in ALGORITHMS.items():
        assert type(algorithm) is STREAM_REGISTRY[name] and algorithm.name == name and algorithm.target_rank == K


@pytest.mark.slow
@of_directions
def test_finds_the_planted_directions_and_their_variances(algorithm: Any) -> None:
    """Fails when a gradient has the wrong sign, a step size does not fall, or the values are not means."""
    rows, truth = stream(6000)
    result = algorithm.finalize(fed(algorithm, rows))
    np.testing.assert_allclose(result.vectors.T @ result.vectors, np.eye(K), atol=1e-12)
    assert max_sin_theta(result.vectors, truth) < 0.12
    np.testing.assert_allclose(result.values, [0.36, 0.3, 0.26], rtol=0.3 if algorithm.name == "spm" else 0.15)
    assert (np.diff(result.values) <= 0).all() and 0 < result.rows <= 6000


@every
def test_update_is_pure(algorithm: Any) -> None:
    """Fails on any change in place, any reference kept to the batch, any randomness without a name."""
    rows, _ = stream(300)
    state = fed(algorithm, rows)
    batch = np.ascontiguousarray(stream(90, seed=5)[0])
    before, given = snapshot(state), batch.copy()
    first, info = algorithm.update(state, batch)
    kept = snapshot(first)
    again, info_again = algorithm.update(state, batch)
    assert same(before, snapshot(state)) and np.array_equal(batch, given)
    assert same(kept, snapshot(again)) and info == info_again and info.rows == 90
    batch[:] = np.nan  # a stream may reuse its buffer
    assert same(kept, snapshot(first))


@pytest.mark.slow
@every
@pytest.mark.parametrize("cut", [7, 101, 250])
def test_a_checkpoint_is_the_fields(algorithm: Any, cut: int) -> None:
    """Fails when a field is not an array or a plain number, or when something is remembered elsewhere."""
    rows, _ = stream(400)
    whole, half = fed(algorithm, rows[:cut]), None
    arrays, scalars = state_fields(whole)
    assert all(type(value) in (int, float, bool, NoneType) for value in scalars.values())
    half = algorithm.load({name: a.copy() for name, a in arrays.items()}, dict(scalars))
    left, right = fed(algorithm, rows[cut:], state=whole), fed(algorithm, rows[cut:], state=half)
    assert same(snapshot(left), snapshot(right))


@pytest.mark.slow
@every
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda b: b[:, :-1], "does not fit the model, which has 40 columns"),
        (lambda b: b[0], "does not fit the model, which has 40 columns"),
        (lambda b: b[:0], "empty batch"),
        (lambda b: np.where(np.arange(D) == 3, np.nan, b), "30 of the 30 rows"),
        (lambda b: np.where(np.arange(30)[:, None] == 3, -np.inf, b), "1 of the 30 rows"),
    ],
)
def test_bad_batches_are_refused_and_leave_the_state(algorithm: Any, spoil: Any, message: str) -> None:
    rows, _ = stream(330)
    state = fed(algorithm, rows[:300])
    before = snapshot(state)
    with pytest.raises(BadInputError, match=message):
        algorithm.update(state, spoil(rows[300:]))
    assert same(before, snapshot(state))


@every
def test_large_finite_rows_are_not_called_infinite(algorithm: Any) -> None:
    """Fails when the quick test of finiteness (a sum of squares, which overflows) has the last word."""
    from npmdask.core.algorithms.base import checked_batch

    assert checked_batch(np.full((2, D), 1e200), D).shape == (2, D)


@every
def test_no_answer_without_enough_rows(algorithm: Any) -> None:
    state = algorithm.init(D, rng=generator(0, "start"))
    with pytest.raises(BadInputError, match="rows"):
        algorithm.finalize(state)
    with pytest.raises(BadInputError, match="choose it between 1 and 2"):
        algorithm.init(2, rng=generator(0, "start"))


@pytest.mark.slow
@every
@pytest.mark.parametrize("d", [2000, 20_000])
def test_memory_is_d_times_rank_and_batch(algorithm: Any, d: int) -> None:
    """Fails for anything d x d, and where rows that were used are kept."""
    rng = np.random.default_rng(0)
    state = algorithm.init(d, rng=rng)
    signal = rng.standard_normal((d, K)) / np.sqrt(d)
    for _ in range(6):
        batch = rng.standard_normal((16, K)) @ signal.T + 0.01 * rng.standard_normal((16, d)) / np.sqrt(d)
        state, _ = algorithm.update(state, batch)
        entries = sum(a.size for a in state_fields(state)[0].values())
        assert entries <= d * (4 * K + 64 + 16 * 6 * (algorithm.name in ("msg", "rmsg")))


@of_directions
def test_rows_that_span_less_than_k_directions(algorithm: Any) -> None:
    """The rest is drawn, orthonormal, and of value zero."""
    rows, truth = stream(600)
    result = algorithm.finalize(fed(algorithm, rows @ truth[:, :2] @ truth[:, :2].T))
    np.testing.assert_allclose(result.vectors.T @ result.vectors, np.eye(K), atol=1e-12)
    assert max_sin_theta(result.vectors, truth[:, :2]) < 1e-2
    assert result.values[2] < 1e-3


@pytest.mark.slow
@of_directions
def test_batches_of_any_size(algorithm: Any) -> None:
    rows, truth = stream(4000)
    rng = np.random.default_rng(1)
    state, start = algorithm.init(D, rng=generator(0, "start")), 0
    while start < len(rows):
        size = int(rng.integers(1, 60))
        state, info = algorithm.update(state, rows[start : start + size])
        assert info.rows == min(size, len(rows) - start)
        start += size
    assert max_sin_theta(algorithm.finalize(state).vectors, truth) < 0.2
