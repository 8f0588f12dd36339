"""MSG, RMSG and their mini-batched forms against d x d implementations, and against what the papers say of them."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from benchmarks.paper_methods import average_batch, theirs
from benchmarks.paper_msg import PRINTED
from npmdask.core.numerics.random import generator
from npmdask.core.numerics.subspaces import max_sin_theta
from npmdask.errors import BadInputError
from npmdask.streaming.algorithms.msg import (
    MSG,
    RMSG,
    MiniBatchMSG,
    MiniBatchRMSG,
    RankTest,
    project_spectrum,
    stays_rank,
)
from npmdask.streaming.algorithms.oja import Oja
from tests.conftest import often
from tests.streaming.algorithms.test_contract import D, K, fed, stream


def whole(state: Any) -> np.ndarray:
    """P_t as a d x d matrix."""
    u = state.vectors
    return u * state.weights @ u.T + state.level * (np.eye(len(u)) - u @ u.T)


def stepped(p: np.ndarray, batch: np.ndarray, eta: float, ridge: float, exactly: bool) -> np.ndarray:
    """One step with d x d matrices."""
    values, vectors = np.linalg.eigh((1 - eta * ridge) * p + eta * batch.T @ batch / len(batch))
    return vectors * project_spectrum(values, K, exactly=exactly).values @ vectors.T


@pytest.mark.slow
@pytest.mark.parametrize("trace", ["at_most", "exactly"])
@pytest.mark.parametrize("size", [1, 6, 70])
@pytest.mark.parametrize("algorithm", [MSG(target_rank=K, eta0=2.0), RMSG(target_rank=K, ridge=0.3, eta0=0.8)])
def test_same_iterates_as_with_matrices(algorithm: MSG, size: int, trace: Any) -> None:
    """Also batches of more rows than columns. Fails for another weight, shift, order or an eigenvalue that is lost."""
    algorithm = type(algorithm)(**{**vars(algorithm), "trace": trace})
    rows, _ = stream(12 * size)
    state, p = algorithm.init(D, rng=generator(0, "start")), np.zeros((D, D))
    for t, batch in enumerate(np.split(rows, 12), start=1):
        state, info = algorithm.update(state, batch)
        p = stepped(p, batch, algorithm.step_size(t), algorithm.shrinkage, trace == "exactly")
        np.testing.assert_allclose(whole(state), p, atol=1e-10)
        assert info.rank == np.linalg.matrix_rank(p, tol=1e-10)


@pytest.mark.slow
def test_orthonormal_after_many_rows() -> None:
    state = fed(MSG(target_rank=K), stream(3000)[0], batch=1)
    np.testing.assert_allclose(state.vectors.T @ state.vectors, np.eye(len(state.weights)), atol=1e-13)
    assert state.weights.sum() == pytest.approx(K, abs=1e-12) and len(state.weights) < 12


def test_a_very_large_step_is_top_k() -> None:
    rows, _ = stream(200)
    result = MSG(target_rank=K, eta0=1e6).finalize(fed(MSG(target_rank=K, eta0=1e6), rows, batch=200))
    assert max_sin_theta(result.vectors, np.linalg.svd(rows)[2][:K].T) < 1e-9


def test_no_ridge_is_msg() -> None:
    rows, _ = stream(200)
    with_, without = fed(RMSG(target_rank=K, ridge=0.0), rows, batch=5), fed(MSG(target_rank=K), rows, batch=5)
    assert np.array_equal(whole(with_), whole(without))


def test_the_printed_trace_lifts_everything() -> None:
    """One row of trace below k: rank d with tr P = k as printed, rank 1 with tr P <= k; the optimum is the same.

    Fails where what is printed becomes what is done unless asked otherwise.
    """
    rows, truth = stream(4000)
    for ridge, batch in [(0.0, rows[:1]), (0.4, rows[:1])]:
        ranks = {}
        for trace in ("at_most", "exactly"):
            algorithm = RMSG(target_rank=K, ridge=ridge, trace=trace)  # type: ignore[arg-type]
            ranks[trace] = algorithm.update(algorithm.init(D, rng=generator(0, "start")), batch)[1].rank
        assert ranks == {"at_most": 1, "exactly": D}
        unasked = RMSG(target_rank=K, ridge=ridge)
        assert unasked.update(unasked.init(D, rng=generator(0, "start")), batch)[1].rank == 1
    assert MSG(target_rank=K).trace == "at_most"
    printed = MSG(target_rank=K, trace="exactly")
    assert max_sin_theta(printed.finalize(fed(printed, rows)).vectors, truth) < 0.1


@pytest.mark.slow
@pytest.mark.parametrize("kind", [MiniBatchMSG, MiniBatchRMSG])
def test_the_mini_batch_step_is_the_projected_one_exactly_when_the_test_holds(kind: Any) -> None:
    """Both outcomes occur; with the test passed the step is Pi, without it is not. Fails for another first factor."""
    algorithm = kind(target_rank=K, gap=0.2, shift=1.0, batch_rows=100, warm_rows=100, optimistic=False)
    rows, _ = stream(100)
    state = fed(algorithm, rows)
    rng, held = np.random.default_rng(3), 0
    for _ in range(150):
        n = int(rng.integers(K + 1, 40))
        batch = stream(n, seed=int(rng.integers(1 << 30)))[0] if rng.random() < 0.2 else rows[rng.integers(0, 100, n)]
        mixed, holds, _images = algorithm._try_update(state.vectors, batch, 1)
        vectors = mixed.vectors()
        p = state.vectors @ state.vectors.T
        exact = stepped(p, batch, algorithm.step_size(1), algorithm.shrinkage, False)
        assert holds == (np.abs(vectors @ vectors.T - exact).max() < 1e-10)
        held += holds
    assert 10 < held < 140


@pytest.mark.slow
def test_the_sufficient_tests_are_sufficient_and_the_printed_one_is_not() -> None:
    """`lemma` and `sound` imply `exact`; equation (6) does not where ridge > gap(C) / 2."""
    rng = np.random.default_rng(5)
    counts = dict.fromkeys(["exact", "lemma", "sound", "printed", "wrong"], 0)
    for _ in range(3000):
        k, ridge, eta = int(rng.integers(1, 4)), float(rng.uniform(0, 0.5)), float(rng.uniform(0.01, 0.9))
        batch = rng.standard_normal((8, 7)) * np.sqrt(np.where(np.arange(7) < k, rng.uniform(0.2, 1.5), 0.05))
        u = np.linalg.qr(np.eye(7)[:, :k] + 0.2 * rng.standard_normal((7, k)))[0]
        c = batch.T @ batch / 8
        values = np.linalg.eigvalsh(c)[::-1]
        mixed = np.linalg.eigvalsh((1 - ridge * eta) * u @ u.T + eta * c)[::-1]
        held = {
            t: RankTest(batch @ u, values, mixed, k, ridge).holds(t) for t in ("exact", "lemma", "sound", "printed")
        }
        assert held["exact"] == stays_rank(mixed, k)
        assert not (held["lemma"] or held["sound"]) or mixed[k - 1] - mixed[k] >= 1 - 1e-12
        for name, value in held.items():
            counts[name] += value
        counts["wrong"] += held["printed"] and not held["exact"]
    assert counts["exact"] > counts["lemma"] > 50 and counts["sound"] > 50 and counts["wrong"] > 0


def test_the_tests_by_hand() -> None:
    """C = diag(1, 0.2) and P at an angle t: <P* - P, C> = 0.8 sin^2 t, and gap(C) = 0.8."""
    batch = np.sqrt(2 * np.diag([1.0, 0.2]))
    limits = {"printed": (0.0, 0.25), "sound": (0.0, 0.5), "lemma": (0.0, 0.5)}
    ridged = {"printed": (0.4, 0.25), "sound": (0.4, 0.25), "lemma": (0.4, 0.25)}
    for test, (ridge, limit) in [*limits.items(), *ridged.items()]:
        for square in (limit - 0.01, limit + 0.01):
            u = np.array([[np.sqrt(1 - square)], [np.sqrt(square)]])
            found = RankTest(batch @ u, np.array([1.0, 0.2]), np.zeros(0), 1, ridge).holds(test)
            assert found == (square < limit), (test, ridge, square)


def test_doubling_ends_at_the_cap_and_begins_again() -> None:
    """Rows without structure never pass: k + 1, doubled, up to the cap; each row is used once."""
    algorithm = MiniBatchMSG(target_rank=K, gap=0.2, batch_rows=50, warm_rows=20)
    rng = np.random.default_rng(0)
    state, asked, used, given = algorithm.init(D, rng=rng), [], [], np.zeros((0, D))
    for _ in range(12):
        wanted = algorithm.query(state).rows
        batch = rng.standard_normal((wanted, D))
        state, info = algorithm.update(state, batch)
        given = np.concatenate([given, batch])
        assert np.array_equal(state.pending, given[state.rows :])
        assert state.pending.base is None, "a view would keep all rows of the step alive"
        asked.append(wanted)
        used.append(info.batch_rows)
    assert asked == [8, 8, 4, 4, 4, 8, 16, 18, 4, 4, 8, 16]
    assert used == [None] * 2 + [20] + [None] * 4 + [50] + [None] * 4
    assert state.rows == 20 + 50 and len(state.pending) == sum(asked) - state.rows


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "eta0"), [(MiniBatchMSG, 5.0), (MiniBatchRMSG, 1.0)])
@pytest.mark.parametrize("optimistic", [True, False])
def test_mini_batches_that_forget_follow_a_drift(kind: Any, eta0: float, optimistic: bool) -> None:
    """All directions change after many steps, or the rows are half as large. Fails where the step size (the angles)
    or the moment (the levels) does not use the memory."""
    before, (after, truth) = stream(6000, seed=1)[0], stream(1500, seed=2)
    half = stream(7500, seed=1)[0][6000:] / 2
    angles, levels = {}, {}
    for memory in (0.9, 1.0):
        options = {"batch_rows": 30, "warm_rows": 30, "shift": 1.0, "optimistic": optimistic, "memory": memory}
        algorithm = kind(target_rank=K, gap=0.2, eta0=eta0, **options)
        state = fed(algorithm, before, batch=30)
        angles[memory] = max_sin_theta(algorithm.finalize(fed(algorithm, after, 30, state)).vectors, truth)
        levels[memory] = algorithm.finalize(fed(algorithm, half, 30, state)).values.sum()
    assert angles[0.9] < 0.25 and angles[1.0] > 2 * angles[0.9]
    assert levels[0.9] == pytest.approx(0.23, rel=0.4) and levels[1.0] > 1.5 * levels[0.9]


@pytest.mark.slow
def test_a_memory_of_one_is_as_printed() -> None:
    """Steps and bits. Fails where t is counted in another way when nothing is forgotten."""
    rows, _ = stream(900)
    plain = MiniBatchRMSG(target_rank=K, gap=0.2, shift=3.0, batch_rows=40, warm_rows=40)
    for t in (1, 2, 7):
        assert plain.step_size(t) == 1 / (0.1 * (t + 3))
        assert MiniBatchMSG(target_rank=K, gap=0.2).step_size(t) == 0.5 / np.sqrt(t + 9 / 0.2**2)
    nearly = fed(type(plain)(**{**vars(plain), "memory": 1 - 1e-12}), rows)
    state = fed(plain, rows)
    assert state.step == nearly.step
    np.testing.assert_allclose(whole_projector(state), whole_projector(nearly), atol=1e-9)
    limit = type(plain)(**{**vars(plain), "memory": 0.75})
    assert limit.step_size(200) == pytest.approx(1 / (0.1 * (4 + 3)))


def whole_projector(state: Any) -> np.ndarray:
    return np.asarray(state.vectors @ state.vectors.T)


def test_fewer_rows_than_the_warm_start_needs_is_said() -> None:
    algorithm = MiniBatchMSG(target_rank=K, gap=0.2, warm_rows=500, optimistic=False)
    state = fed(algorithm, stream(400)[0])
    with pytest.raises(BadInputError, match=r"400 rows are too few for the warm start, which needs 500"):
        algorithm.finalize(state)
    assert algorithm.query(state).rows == 100


def test_the_printed_constants() -> None:
    k, gap, d, big_t, delta = 3, 0.5, 1000, 200, 0.05
    first = MiniBatchMSG(target_rank=k, gap=gap)
    assert first.step_size(4) == pytest.approx(0.5 / np.sqrt(4 + 36))
    assert first.largest_batch(d) == 27 * 4 and first.largest_start(d) == 9 * 8
    second = MiniBatchRMSG(target_rank=k, gap=gap, failure=delta, horizon=big_t)
    assert second.step_size(4) == pytest.approx(1 / (0.25 * (4 + 128 * np.log(20) * 8)))
    batch = np.log(3 * np.e * d * big_t / delta) * 8 * 16 / gap**2
    start = np.log(3 * np.e * d / delta) * 128 * k * np.log(3 * np.e / delta) / gap**5
    assert second.largest_batch(d) == np.ceil(batch) and second.largest_start(d) == np.ceil(start)
    hundredth = MiniBatchRMSG(target_rank=k, gap=gap, failure=delta, horizon=big_t, batch_constant=0.01)
    assert hundredth.largest_batch(d) == np.ceil(batch / 100)


def test_bad_configurations_are_refused() -> None:
    for make, message in [
        (lambda: MSG(target_rank=1, eta0=0.0), "positive"),
        (lambda: MSG(target_rank=1, trace="about"), "at_most"),  # type: ignore[arg-type]
        (lambda: RMSG(target_rank=1, ridge=-1.0), "half the gap"),
        (lambda: RMSG(target_rank=1, ridge=1.0, eta0=2.0), "negative"),
        (lambda: MiniBatchMSG(target_rank=1, gap=0.0), "tuned"),
        (lambda: MiniBatchMSG(target_rank=1, gap=0.1, memory=0.0), "no share"),
        (lambda: MiniBatchMSG(target_rank=1, gap=0.1, test="eq6"), "printed"),  # type: ignore[arg-type]
        (lambda: MiniBatchRMSG(target_rank=1, gap=0.1, failure=1.0), "probability"),
        (lambda: MiniBatchRMSG(target_rank=1, gap=0.1, eta0=3.0), "negative"),
    ]:
        with pytest.raises(BadInputError, match=message):
            make()


@pytest.mark.slow
@pytest.mark.parametrize("name, k", often(product(["mb-msg", "mb-rmsg"], [1, 3, 7]), 2, 3))
def test_average_mini_batches_of_table_1(name: str, k: int) -> None:
    """Over all steps, after the authors' warm start: within 12 % of the printed figure. (Their programs average over
    log-spaced steps: of 1000 these are 34, and the average of one run scatters by up to 40 %.) Mutants: our warm start
    (MB-MSG, k = 7: 24 % less), the exact test (half)."""
    assert average_batch(theirs(name, k), steps=1000)[0] == pytest.approx(PRINTED[name][k], rel=0.12)


@pytest.mark.parametrize(
    ("algorithm", "counted"),
    [
        (Oja(target_rank=1, eta0=0.5), 1),
        (MSG(target_rank=1), 2),  # the first batch makes the basis, and is not seen along it
        (RMSG(target_rank=1, ridge=0.1), 2),
        (MiniBatchMSG(target_rank=1, gap=0.5, batch_rows=5, warm_rows=5, optimistic=False), 1),
        (MiniBatchRMSG(target_rank=1, gap=0.5, batch_rows=5, warm_rows=5, optimistic=False), 1),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_the_running_moment_gives_batch_t_the_weight_t(algorithm: Any, counted: int) -> None:
    """Weights 2 / (t + 1) make the value sum_t t m_t / sum_t t of the batches' own moments m_t, which differ here.

    One column, so that the basis cannot turn. Mutants: 1 / t (the plain mean), 2 / t, 1 / (t + 1), 2 / (t + 2).
    """
    rows = np.random.default_rng(4).uniform(0.1, 1.0, (9, 5, 1)) * np.arange(9, 0, -1)[:, None, None] / 9
    state = algorithm.init(1, rng=generator(0, "start"))
    for batch in rows:
        state, _ = algorithm.update(state, batch)
    t, moments = np.arange(1, 10), np.square(rows).mean(axis=(1, 2))
    expected = (t * moments)[counted - 1 :].sum() / t.sum()
    assert algorithm.finalize(state).values[0] == pytest.approx(expected, rel=1e-12)
