"""The streaming power method and Oja's method: their limits, their memory, their schedules."""

from __future__ import annotations

import numpy as np
import pytest

from npmdask.core.algorithms import PowerMethod
from npmdask.core.numerics.random import generator
from npmdask.core.numerics.subspaces import max_sin_theta
from npmdask.errors import BadInputError
from npmdask.streaming.algorithms.frequent_directions import FrequentDirections
from npmdask.streaming.algorithms.msg import MSG
from npmdask.streaming.algorithms.oja import Oja
from npmdask.streaming.algorithms.power import StreamPower
from tests.streaming.algorithms.test_contract import D, K, fed, stream


def spm(**options: float) -> StreamPower:
    return StreamPower(**{"target_rank": K, "iteration_rank": 2 * K, "block_rows": 100, **options})  # type: ignore[arg-type]


def test_one_block_an_epoch_is_the_power_method() -> None:
    """Fails when a block has other rows than T, or multiplies by anything but the basis of its beginning."""
    rows, _ = stream(200)
    method = PowerMethod(target_rank=K, iteration_rank=2 * K)
    stored = method.init(D, rng=generator(0, "start"))
    streaming = spm(block_rows=200)
    state = streaming.init(D, rng=generator(0, "start"))
    for _ in range(8):
        block = method.query(stored).block
        stored, _info = method.update(stored, rows.T @ (rows @ block))
        state = fed(streaming, rows, batch=33, state=state)
        np.testing.assert_allclose(state.basis, stored.basis, atol=1e-9)
    assert state.step == 8


@pytest.mark.parametrize("memory", [0.0, 0.9])
def test_blocks_have_exactly_their_rows_whatever_the_batches(memory: float) -> None:
    rows, _ = stream(1050)
    states = [fed(spm(memory=memory), rows, batch=size) for size in (1, 7, 100, 333, 1050)]
    for state in states:
        assert (state.step, state.filled, state.rows) == (10, 50, 1000)
        np.testing.assert_allclose(state.basis, states[0].basis, atol=1e-8)
        np.testing.assert_allclose(state.partial, states[0].partial, atol=1e-7)
    _, info = spm().update(states[0], rows[:260])
    assert info.steps == 3 and info.batch_rows == 100


@pytest.mark.slow
def test_memory_takes_all_rows_into_account() -> None:
    """With memory 1 the error falls with all rows, without with those of a block: a factor of about sqrt(40)."""
    rows, truth = stream(4000)
    without, with_memory = (
        max_sin_theta(algorithm.finalize(fed(algorithm, rows)).vectors, truth) for algorithm in (spm(), spm(memory=1.0))
    )
    exact = np.linalg.svd(rows)[2][:K].T
    assert with_memory < 1.1 * max_sin_theta(exact, truth) < without / 3
    state = fed(spm(memory=1.0), rows)
    values = np.linalg.svd(rows, compute_uv=False)[:K] ** 2 / len(rows)
    np.testing.assert_allclose(spm(memory=1.0).finalize(state).values, values, rtol=0.02)


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm",
    [
        spm(memory=0.6),
        Oja(target_rank=K, eta0=8.0, memory=0.9),
        Oja(target_rank=K, memory=0.9),
        MSG(target_rank=K, eta0=2.0, memory=0.9),
        FrequentDirections(target_rank=K, sketch_rows=10, memory=0.9),
    ],
    ids=["spm", "oja", "adaoja", "msg", "frequent-directions"],
)
def test_what_forgets_follows_a_drift(algorithm: object) -> None:
    """After a change of all directions; fails when memory is not used (the last assertion shows that it matters)."""
    before, after = stream(6000, seed=1)[0], stream(1500, seed=2)
    forgetful = algorithm.finalize(fed(algorithm, np.concatenate([before, after[0]]), batch=50))
    assert max_sin_theta(forgetful.vectors, after[1]) < 0.25
    faithful = type(algorithm)(**{**vars(algorithm), "memory": 1.0})
    lasting = faithful.finalize(fed(faithful, np.concatenate([before, after[0]]), batch=50))
    assert max_sin_theta(lasting.vectors, after[1]) > 2 * max_sin_theta(forgetful.vectors, after[1])


def test_oja_step_by_step() -> None:
    """Fails for C_t summed instead of averaged, for t from 0, for a step of the wrong index."""
    rows, _ = stream(60)
    rule = Oja(target_rank=K, eta0=2.0, shift=3.0)
    state = rule.init(D, rng=generator(0, "start"))
    u = state.basis
    for t, batch in enumerate(np.split(rows, 3), start=1):
        state, info = rule.update(state, batch)
        u = np.linalg.qr(u + 2.0 / (3.0 + t) * batch.T @ (batch @ u) / 20)[0]
        np.testing.assert_allclose(state.basis @ state.basis.T, u @ u.T, atol=1e-12)
        assert info.step_size == pytest.approx(2.0 / (3.0 + t))


def test_adaoja_is_free_of_the_scale() -> None:
    rows, truth = stream(3000)
    for scale in (1e-2, 1.0, 1e6):
        result = Oja(target_rank=K).finalize(fed(Oja(target_rank=K), rows * scale))
        assert max_sin_theta(result.vectors, truth) < 0.1
        assert result.values[0] / scale**2 == pytest.approx(0.36, rel=0.15)


def test_the_steps_of_the_theorem() -> None:
    rule = Oja.theory(target_rank=1, top=2.0, second=1.0, deviation=5.0, variance=30.0, alpha=2.0, delta=0.1)
    beta = 20 * max(5 * 2 / 1, 30 * 4 / np.log(1.001))
    assert rule.eta0 == 2.0 and rule.shift == pytest.approx(beta)
    with pytest.raises(BadInputError, match="alpha > 1/2"):
        Oja.theory(target_rank=1, top=2.0, second=1.0, deviation=5.0, variance=30.0, alpha=0.5, delta=0.1)
    with pytest.raises(BadInputError, match="too large"):
        Oja.theory(target_rank=1, top=2.0, second=1.99, deviation=1e-9, variance=1e-9, alpha=2.0, delta=0.1)


@pytest.mark.slow
def test_frequent_directions_keep_their_promise() -> None:
    """0 <= A^T A - B^T B <= shed <= ||A - A_k||_F^2 / (l + 1 - k); fails when delta is another singular value."""
    rng = np.random.default_rng(4)
    a = rng.standard_normal((900, D)) * np.linspace(3, 0.1, D)
    sketcher = FrequentDirections(target_rank=K, sketch_rows=12)
    for batch in (1, 10, 300):
        state = fed(sketcher, a, batch=batch)
        lost = np.linalg.eigvalsh(a.T @ a - state.sketch.T @ state.sketch)
        sizes = np.linalg.svd(a, compute_uv=False) ** 2
        promised = min(sizes[k:].sum() / (13 - k) for k in range(13))
        assert lost[0] > -1e-9 * sizes[0] and lost[-1] <= state.shed * (1 + 1e-9) and state.shed <= promised
        assert state.shed > 0 and len(state.sketch) <= 24


def test_frequent_directions_lose_nothing_of_few_directions() -> None:
    """Rows of rank l: delta is the (l + 1)-th value, which is zero; the l-th would shed."""
    rng = np.random.default_rng(5)
    a = rng.standard_normal((300, 6)) @ rng.standard_normal((6, D))
    state = fed(FrequentDirections(target_rank=K, sketch_rows=6), a)
    np.testing.assert_allclose(state.sketch.T @ state.sketch, a.T @ a, atol=1e-9 * np.linalg.norm(a) ** 2)
    assert state.shed < 1e-9 * np.linalg.norm(a) ** 2


def test_bad_configurations_are_refused() -> None:
    for make, message in [
        (lambda: spm(memory=1.5), "no share"),
        (lambda: Oja(target_rank=2, memory=0.0), "no share"),
        (lambda: spm(block_rows=0), "at least one row"),
        (lambda: spm(iteration_rank=2), "less than target_rank"),
        (lambda: Oja(target_rank=2, eta0=-1.0), "positive"),
        (lambda: FrequentDirections(target_rank=5, sketch_rows=2), "less than target_rank"),
    ]:
        with pytest.raises(BadInputError, match=message):
            make()
