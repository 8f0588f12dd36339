"""Restarted block Krylov against its oracles, and against the power method where they must agree."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

from npmdask.core.algorithms import BlockKrylov, Info, PowerMethod, Query, Result, state_fields
from npmdask.core.algorithms.stopping import Outcome, ResidualRule, StepView
from npmdask.core.execution.executor import single_threaded_blas
from npmdask.core.numerics.random import generator
from npmdask.core.numerics.subspaces import Block, max_sin_theta, random_orthonormal
from npmdask.errors import BadInputError
from tests.conftest import planted

Product = Callable[[Block], Block]
LOGSPACE = np.logspace(0, -6, 60)
HARMONIC = 1 / np.sqrt(np.arange(1, 401))
CLUSTERED = np.concatenate([np.linspace(1.001, 1, 15), np.linspace(0.5005, 0.5, 15), np.linspace(0.4, 0.1, 370)])
STEP = np.concatenate([np.ones(20), np.linspace(0.9, 0.45, 380)])
ALGORITHMS = [PowerMethod, BlockKrylov]


@pytest.fixture(autouse=True)
def one_thread_of_blas() -> Iterator[None]:
    """As in the driver: bits depend on it, and matrices this small only lose by more."""
    with single_threaded_blas():
        yield


class Run(NamedTuple):
    """What a loop over steps in memory leaves behind."""

    state: Any
    outcome: Outcome
    infos: list[Info]
    passes: int
    result: Result


def drive(
    algorithm: Any, multiply: Product, d: int, *, tol: float = 1e-9, max_steps: int = 300, locked: Result | None = None
) -> Run:
    """The driver's loop, in memory: one product a step, until the stopping rule says why not."""
    state, views, infos = algorithm.init(d, rng=generator(0, "start"), locked=locked), [], []
    rule = ResidualRule(tol=tol, max_steps=max_steps, d=d)
    while (outcome := rule(views)) is None:
        state, info = algorithm.update(state, answer(algorithm.query(state), multiply))
        infos.append(info)
        views.append(
            StepView(
                step=state.step,
                ritz_values=info.ritz_values,
                residual_norms=info.residual_norms,
                precision=info.precision,
            )
        )
    return Run(state, outcome, infos, len(infos), algorithm.finalize(state))


def answer(query: Query, multiply: Product) -> Block:
    """What an operator answers: beside a product in float32 what was multiplied."""
    if not query.rounded:
        return multiply(query.block)
    rounded = query.block.astype(np.float32)
    return np.concatenate([multiply(rounded), rounded], axis=1)


def diagonal(values: np.ndarray) -> Product:
    """A diagonal operator: from a random start as hard as any other with its spectrum, and its answer is known."""
    return lambda block: values.astype(block.dtype)[:, None] * block


def gram(a: np.ndarray, weight: float = 1.0) -> Product:
    """``weight A^T A`` in the arithmetic of the block."""
    return lambda block: (weight * (a.astype(block.dtype).T @ (a.astype(block.dtype) @ block))).astype(np.float64)


def krylov(k: int, p: int, **options: Any) -> BlockKrylov:
    return BlockKrylov(target_rank=k, iteration_rank=p, **options)


def passes_to_angle(algorithm: Any, values: np.ndarray, angle: float = 1e-4) -> int:
    """Passes until the space of the k leading vectors is found to ``angle`` (largest sine)."""
    d, k = len(values), algorithm.target_rank
    truth = np.eye(d)[:, np.argsort(-np.abs(values))[:k]]
    state = algorithm.init(d, rng=generator(0, "start"))
    for step in range(1, 600):
        state, _ = algorithm.update(state, values[:, None] * algorithm.query(state).block)
        if max_sin_theta(state.ritz_vectors, truth) <= angle:
            return step
    raise AssertionError(f"not found in {step} steps")


# Accuracy


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f8", "f4"])
@pytest.mark.parametrize(("spectrum", "k"), [(LOGSPACE, 20), (HARMONIC, 10), (HARMONIC, 20), (STEP, 20)])
def test_right_where_fixed_counts_of_steps_are_wrong(spectrum: np.ndarray, k: int, dtype: str) -> None:
    a = planted(1000, 400, spectrum)[0].astype(dtype)
    _, sigma, vt = np.linalg.svd(a.astype("f8"), full_matrices=False)
    tol = {"f8": 1e-9, "f4": 1e-6}[dtype]
    run = drive(krylov(k, k + 10, tol=tol, mixed_precision=dtype == "f4"), gram(a), 400, tol=tol)
    assert run.outcome.converged
    assert run.infos[-1].precision == "float64"
    assert np.abs(np.sqrt(run.result.values) / sigma[:k] - 1).max() < {"f8": 1e-10, "f4": 1e-5}[dtype]
    vectors = run.result.vectors
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(k), atol=1e-13)
    if spectrum is not STEP:  # there float32 data have no gap inside the cluster, but the space is the same
        assert max_sin_theta(vectors, vt[:k].T) < {"f8": 1e-8, "f4": 1e-5}[dtype]
    assert max_sin_theta(vectors, vt[:k].T) < 1e-5


def test_indefinite_symmetric_both_ends_by_magnitude_with_signs() -> None:
    rng = np.random.default_rng(0)
    v = np.linalg.qr(rng.standard_normal((300, 300)))[0]
    values = np.concatenate([[-10, 9, -8, 7, 6], rng.uniform(-3, 3, 295)])
    a = (v * values) @ v.T
    run = drive(krylov(5, 10), lambda block: a @ block, 300)
    assert run.outcome.converged
    np.testing.assert_allclose(run.result.values, [-10, 9, -8, 7, 6], atol=1e-10)
    assert max_sin_theta(run.result.vectors, v[:, :5]) < 1e-8
    largest = np.argmax(np.abs(run.result.vectors), axis=0)
    assert (run.result.vectors[largest, range(5)] > 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1e-120, 1e-60, 1e60, 1e120])
def test_any_scale_gives_the_same_steps(scale: float) -> None:
    values = np.linspace(2, 1, 80)
    one, other = (drive(krylov(3, 6), diagonal(values * s), 80) for s in (1.0, scale))
    assert one.passes == other.passes
    np.testing.assert_allclose(other.result.values / scale, values[:3], rtol=1e-12)


# Passes


@pytest.mark.slow
def test_a_third_of_the_passes_of_the_power_method_on_a_slow_spectrum() -> None:
    values = 1 / np.arange(1, 1001)
    power = passes_to_angle(PowerMethod(target_rank=20, iteration_rank=30), values)
    assert passes_to_angle(krylov(20, 30), values) <= 0.33 * power
    assert passes_to_angle(krylov(20, 30, basis_blocks=2), values) <= 0.4 * power


@pytest.mark.slow
@pytest.mark.parametrize("basis_blocks", [2, 3])
@pytest.mark.parametrize(("k", "p"), [(10, 20), (20, 30), (20, 20)])
@pytest.mark.parametrize("spectrum", [LOGSPACE**2, HARMONIC**2, CLUSTERED, STEP, np.ones(30)])
def test_never_more_than_one_pass_more_than_the_power_method(
    spectrum: np.ndarray, k: int, p: int, basis_blocks: int
) -> None:
    values = np.zeros(400)
    values[: len(spectrum)] = spectrum
    ours = drive(krylov(k, p, basis_blocks=basis_blocks, tol=1e-6), diagonal(values), 400, tol=1e-6)
    power = PowerMethod(target_rank=k, iteration_rank=p, tol=1e-6)
    theirs = drive(power, diagonal(values), 400, tol=1e-6, max_steps=ours.passes - 1)
    assert ours.outcome.converged
    if theirs.outcome.converged:
        assert ours.passes <= theirs.passes + 1
    np.testing.assert_allclose(ours.result.values, np.sort(values)[::-1][:k], rtol=1e-7)


# What must stay true at every step


@pytest.mark.slow
def test_the_basis_stays_orthonormal_and_its_products_stay_its_products() -> None:
    d = 300
    values = np.concatenate([np.linspace(1, 0.9, d - 1), [-1.05]])
    algorithm = krylov(6, 9, tol=1e-15)
    state = algorithm.init(d, rng=generator(0, "start"))
    for _ in range(150):
        state, info = algorithm.update(state, values[:, None] * algorithm.query(state).block)
        basis, block = state.basis[:, : state.held], state.block
        assert np.abs(basis.T @ block).max() < 1e-14
        assert np.abs(block.T @ block - np.eye(9)).max() < 1e-14
        true = np.linalg.norm(values[:, None] * state.ritz_vectors - state.ritz_vectors * info.ritz_values, axis=0)
        np.testing.assert_allclose(info.residual_norms, true, rtol=1e-9, atol=1e-14)
    assert state.held == 27
    assert np.abs(basis.T @ basis - np.eye(27)).max() < 2e-14
    assert np.linalg.norm(values[:, None] * basis - state.products[:, :27], 2) < 2e-14


def test_while_everything_fits_it_is_the_block_krylov_space() -> None:
    """The Ritz values are those of span[X, A X, A^2 X]: Musco and Musco 2015, Algorithm 2, written plainly."""
    rng = np.random.default_rng(0)
    a = rng.standard_normal((60, 60))
    a = a + a.T
    algorithm = krylov(3, 4, basis_blocks=3)
    state = algorithm.init(60, rng=generator(5, "start"))
    start = state.block
    for _ in range(3):
        state, info = algorithm.update(state, a @ algorithm.query(state).block)
    q = np.linalg.qr(np.concatenate([start, a @ start, a @ a @ start], axis=1))[0]
    theta = np.linalg.eigvalsh(q.T @ a @ q)
    np.testing.assert_allclose(info.ritz_values, theta[np.argsort(-np.abs(theta))][:3], rtol=1e-12)


def test_with_two_blocks_it_is_lobpcg() -> None:
    """span[X, W, P] of Knyazev 2001, Algorithm 4.1, without preconditioner, written plainly."""
    d, p = 60, 4
    values = np.linspace(3, 1, d)
    algorithm = krylov(4, p, basis_blocks=2)
    state = algorithm.init(d, rng=generator(5, "start"))
    x, previous = state.block, np.zeros((d, 0))
    for step in range(1, 13):
        state, info = algorithm.update(state, values[:, None] * algorithm.query(state).block)
        theta, rotation = np.linalg.eigh(x.T @ (values[:, None] * x))
        if step > 1:
            x = x @ rotation
            w = values[:, None] * x - x * theta
            q = np.linalg.qr(np.concatenate([x, w, previous], axis=1))[0]
            theta, rotation = np.linalg.eigh(q.T @ (values[:, None] * q))
            previous, x = x, q @ rotation[:, -p:]
        np.testing.assert_allclose(info.ritz_values, np.sort(theta)[::-1][:p], rtol=1e-9)


def test_update_is_pure_and_a_checkpoint_is_its_list_of_fields() -> None:
    values = np.linspace(2, 1, 100)
    algorithm = krylov(3, 5)
    state = algorithm.init(100, rng=generator(0, "start"))
    shapes = {name: a.shape for name, a in state_fields(state)[0].items()}
    for _ in range(6):
        arrays, scalars = state_fields(state)
        before = {name: a.copy() for name, a in arrays.items()}
        copy = algorithm.load({name: a.copy() for name, a in arrays.items()}, scalars)
        product = values[:, None] * algorithm.query(state).block
        state, _ = algorithm.update(state, product)
        again, _ = algorithm.update(copy, product)
        assert all((arrays[name] == before[name]).all() for name in arrays)
        assert {name: a.shape for name, a in state_fields(state)[0].items()} == shapes
        for name, array in state_fields(state)[0].items():
            assert array.tobytes() == state_fields(again)[0][name].tobytes(), name
        assert state_fields(state)[1] == state_fields(again)[1]


# Full spaces, lost directions, rounding


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(("d", "k", "p"), [(30, 30, 30), (1, 1, 1), (7, 1, 7), (10, 10, 10)])
def test_all_columns_at_once_are_exact_in_one_step(algorithm: Any, d: int, k: int, p: int) -> None:
    values = np.linspace(5, -4.1, d)
    run = drive(algorithm(target_rank=k, iteration_rank=p), diagonal(values), d)
    assert run.passes == 1
    assert run.outcome.converged
    np.testing.assert_allclose(run.result.values, values[np.argsort(-np.abs(values))][:k], rtol=1e-12, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("basis_blocks", [2, 3, 5])
@pytest.mark.parametrize(("d", "k", "p"), [(12, 1, 1), (12, 5, 5), (12, 5, 8), (12, 2, 3), (13, 12, 12), (25, 5, 5)])
def test_a_whole_space_is_exact_as_soon_as_it_is_spanned(d: int, k: int, p: int, basis_blocks: int) -> None:
    values = np.random.default_rng(d).uniform(1, 2, d)
    algorithm = krylov(k, p, basis_blocks=basis_blocks)
    run = drive(algorithm, diagonal(values), d)
    assert run.outcome.converged
    if d <= (basis_blocks + 1) * p:  # what is kept and what is new fill the space before anything is given up
        assert run.passes <= -(-d // p)
    np.testing.assert_allclose(run.result.values, np.sort(values)[::-1][:k], rtol=1e-12)
    # Steps beyond that change nothing: there is no direction left.
    state, info = algorithm.update(run.state, values[:, None] * algorithm.query(run.state).block)
    np.testing.assert_allclose(info.ritz_values, np.sort(values)[::-1][:k], rtol=1e-12)
    whole = np.concatenate([state.basis[:, : state.held], state.block], axis=1)
    columns = whole[:, np.abs(whole).max(axis=0) > 0]
    np.testing.assert_allclose(columns.T @ columns, np.eye(columns.shape[1]), atol=1e-13)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("rank", [0, 1, 3, 7])
def test_fewer_components_than_asked_for_are_said_so(algorithm: Any, rank: int) -> None:
    a = planted(500, 60, np.arange(rank + 1.0, 1, -1))[0] if rank else np.zeros((500, 60))
    run = drive(algorithm(target_rank=9, iteration_rank=12), gram(a), 60)
    assert run.outcome.converged
    assert f"numerical rank {rank}" in run.outcome.sentence
    np.testing.assert_allclose(run.result.vectors.T @ run.result.vectors, np.eye(9), atol=1e-12)
    expected = np.concatenate([np.arange(rank + 1.0, 1, -1) ** 2, np.zeros(9 - rank)])
    np.testing.assert_allclose(run.result.values, expected, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_float64_cannot_resolve_is_called_stagnated(algorithm: Any) -> None:
    a = planted(600, 400, LOGSPACE)[0]
    run = drive(algorithm(target_rank=55, iteration_rank=110, tol=1e-9), gram(a), 400)
    assert run.outcome.name == "stagnated"
    assert "floor set by rounding" in run.outcome.sentence
    assert run.passes < 30


def test_constant_columns_stay_zero() -> None:
    x = np.random.default_rng(0).standard_normal((1037, 6))
    x[:, [2, 4]] = 0.1, 1e6 / 3
    a = (x - x.mean(0)) / np.where(x.std(0) > 1e-9, x.std(0), 1)
    a[:, [2, 4]] = 0
    run = drive(krylov(6, 6), gram(a, 1 / 1037), 6)
    assert run.outcome.converged
    np.testing.assert_allclose(run.result.values, np.linalg.eigvalsh(a.T @ a / 1037)[::-1], atol=1e-13)


@pytest.mark.parametrize("basis_blocks", [1, 0])
def test_too_few_blocks_are_refused(basis_blocks: int) -> None:
    with pytest.raises(BadInputError, match="at least 2"):
        krylov(2, 4, basis_blocks=basis_blocks)


# Deflation


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f8", "f4"])
def test_deflation_continues_where_a_run_ended(dtype: str) -> None:
    a = planted(1000, 120, 1 / np.sqrt(np.arange(1, 121)))[0].astype(dtype)
    mixed, tol = dtype == "f4", {"f8": 1e-9, "f4": 1e-6}[dtype]
    first = drive(krylov(5, 8, tol=tol, mixed_precision=mixed), gram(a), 120, tol=tol)
    algorithm = krylov(4, 7, tol=tol, mixed_precision=mixed)
    start = algorithm.init(120, rng=generator(1, "start"), locked=first.result)
    assert np.abs(first.result.vectors.T @ algorithm.query(start).block).max() < 1e-14
    more = drive(algorithm, gram(a), 120, tol=tol, locked=first.result)
    _, sigma, vt = np.linalg.svd(a.astype("f8"), full_matrices=False)
    assert more.outcome.converged
    np.testing.assert_allclose(more.result.values, sigma[:9] ** 2, rtol={"f8": 1e-12, "f4": 1e-9}[dtype])
    assert max_sin_theta(more.result.vectors, vt[:9].T) < {"f8": 1e-7, "f4": 1e-4}[dtype]
    np.testing.assert_allclose(more.result.vectors.T @ more.result.vectors, np.eye(9), atol=1e-13)
    power = PowerMethod(target_rank=4, iteration_rank=7, tol=tol, mixed_precision=mixed)
    assert more.passes < drive(power, gram(a), 120, tol=tol, locked=first.result).passes


def test_what_was_locked_by_mistake_is_put_right() -> None:
    """Vectors that are not the leading ones, or not accurate: the pairs asked for are those of the whole space."""
    values = np.linspace(2, 0.5, 90)
    rough = random_orthonormal(90, 3, generator(0, "rough"))
    locked = Result(
        values=np.ones(3), vectors=rough, products=values[:, None] * rough, residual_norms=np.full(3, np.inf)
    )
    run = drive(krylov(2, 4), diagonal(values), 90, locked=locked)
    assert run.outcome.converged
    np.testing.assert_allclose(run.result.values, values[:5], rtol=1e-12)


@pytest.mark.parametrize("mixed", [False, True])
def test_deflation_up_to_the_whole_space(mixed: bool) -> None:
    values = np.linspace(2, 1, 12)
    first = drive(krylov(5, 7), diagonal(values), 12)
    more = drive(krylov(7, 7, mixed_precision=mixed), diagonal(values), 12, locked=first.result)
    assert more.outcome.converged
    assert more.passes == 1 + mixed, "in float64, in any case"
    np.testing.assert_allclose(more.result.values, values, rtol=1e-12)


# Precision


@pytest.mark.slow
@pytest.mark.parametrize("spectrum", [HARMONIC, np.linspace(2, 1, 60), LOGSPACE, np.ones(30), np.linspace(1, 0.1, 400)])
def test_mixed_precision_ends_in_float64_and_rests_on_nothing_less(spectrum: np.ndarray) -> None:
    a = planted(1000, 400, spectrum)[0].astype("f4")
    exact = a.astype("f8").T @ a.astype("f8")
    algorithm = krylov(8, 18, tol=1e-7, mixed_precision=True)
    state, seen, products = algorithm.init(400, rng=generator(0, "start")), [], gram(a)
    rule, views = ResidualRule(tol=1e-7, max_steps=300, d=400), []
    while (outcome := rule(views)) is None:
        query = algorithm.query(state)
        fine = not query.rounded
        state, info = algorithm.update(state, answer(query, products))
        seen.append(info.precision)
        assert info.precision == ("float64" if fine else "float32")
        true = np.linalg.norm(exact @ state.ritz_vectors - state.ritz_vectors * info.ritz_values, axis=0)
        error = np.abs(true - info.residual_norms).max() / info.ritz_values[0]
        # The float32 bound is what the change of precision relies on: 16 roundings.
        assert error < (1e-13 if fine else 16 * np.finfo(np.float32).eps)
        views.append(
            StepView(
                step=state.step,
                ritz_values=info.ritz_values,
                residual_norms=info.residual_norms,
                precision=info.precision,
            )
        )
    assert outcome.converged
    assert (seen[0], seen[-1]) == ("float32", "float64")
    assert seen == sorted(seen), "it changes once, for good"
    double = drive(krylov(8, 18, tol=1e-7), lambda block: exact @ block, 400, tol=1e-7)
    assert len(seen) <= double.passes + 3


def test_a_product_is_of_the_block_that_was_multiplied_and_not_of_the_one_asked_for() -> None:
    """Rounding of a block is to the same side in all rows: it is no error of the product of what it was rounded to.

    Mutants that fail here: the block as it was asked for; rounded, but left as it is.
    """
    values = np.geomspace(1, 1e-6, 90)
    algorithm = krylov(4, 8, tol=1e-12, mixed_precision=True)
    state = algorithm.init(90, rng=generator(0, "start"))
    for _ in range(5):
        rounded = algorithm.query(state).block.astype(np.float32).astype(np.float64)
        state, info = algorithm.update(state, np.concatenate([values[:, None] * rounded, rounded], axis=1))
        held = state.basis[:, : state.held]
        assert np.abs(held.T @ held - np.eye(state.held)).max() < 1e-14
        assert np.abs(values[:, None] * held - state.products[:, : state.held]).max() < 1e-14
    assert info.precision == "float32"


def test_a_run_that_ends_at_the_change_of_precision_still_has_vectors() -> None:
    a = planted(500, 100, np.linspace(2, 1, 60))[0].astype("f4")
    algorithm = krylov(4, 8, tol=1e-6, mixed_precision=True)
    state = algorithm.init(100, rng=generator(0, "start"))
    while not state.fine:
        state, _ = algorithm.update(state, answer(algorithm.query(state), gram(a)))
    assert state.held == 0
    result = algorithm.finalize(state)
    np.testing.assert_allclose(result.vectors.T @ result.vectors, np.eye(4), atol=1e-12)
    np.testing.assert_allclose(result.values, np.linspace(2, 1, 60)[:4] ** 2, rtol=1e-5)


def test_an_operator_that_is_not_symmetric_is_seen_in_the_first_product() -> None:
    a = np.random.default_rng(0).standard_normal((50, 50))
    algorithm = krylov(3, 6)
    state = algorithm.init(50, rng=generator(0, "start"))
    product = (a + a.T) @ state.block
    assert algorithm.update(state, product)[1].asymmetry < 1e-14
    assert algorithm.update(state, a @ state.block)[1].asymmetry > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("asked", [{}, {"mixed_precision": True}, {"basis_blocks": 8}])
def test_the_state_is_as_large_as_it_says(
    asked: dict[str, Any], tracked_memory: Callable[[Callable[[], object]], int]
) -> None:
    d, p = 20_000, 8
    values = np.linspace(2, 1, d)[:, None]
    algorithm = krylov(4, p, **asked)
    state = algorithm.init(d, rng=generator(0, "start"))
    for _ in range(algorithm.basis_blocks + 1):
        state, _ = algorithm.update(state, answer(algorithm.query(state), lambda block: values * block))
    product = answer(algorithm.query(state), lambda block: values * block)
    held = sum(a.nbytes for a in state_fields(state)[0].values()) + product.nbytes
    peak = held + tracked_memory(lambda: algorithm.update(state, product))
    blocks = peak / (d * p * 8)
    assert algorithm.state_blocks - 3 < blocks <= algorithm.state_blocks


@pytest.fixture
def tracked_memory() -> Callable[[Callable[[], object]], int]:
    """The peak of what NumPy allocates during a call, in bytes."""
    import tracemalloc

    def measure(call: Callable[[], object]) -> int:
        tracemalloc.start()
        try:
            call()
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    return measure
