"""The robust tensor power method: what it finds, from how many products, and what it says where there is nothing."""

from __future__ import annotations

import warnings
from dataclasses import replace
from itertools import permutations
from typing import Any, NamedTuple

import numpy as np
import pytest

from npmdask.api import top_k
from npmdask.core.algorithms import Result, state_fields
from npmdask.core.algorithms.stopping import Outcome, StepView, UntilSettled, views_of
from npmdask.core.execution.executor import single_threaded_blas
from npmdask.core.numerics.random import generator
from npmdask.core.numerics.subspaces import Block
from npmdask.errors import BadInputError, MemoryRefusedError
from npmdask.tensors.components import GROUND_STATES, MARGIN, ending_of, like_noise, noise_score, norm_from, statuses
from npmdask.tensors.power import TensorPower, restarts_for


def contract(tensor: np.ndarray, block: Block) -> Block:
    """T(I, u, ..., u) for every column u of ``block``."""
    d, order = len(block), tensor.ndim
    powers = block
    for _ in range(order - 2):
        powers = (powers[:, None, :] * block[None, :, :]).reshape(d * len(powers), block.shape[1])
    return tensor.reshape(d, -1) @ powers


def symmetric(tensor: np.ndarray) -> np.ndarray:
    every = list(permutations(range(tensor.ndim)))
    return sum(tensor.transpose(p) for p in every) / len(every)


def gaussian(d: int, seed: int, order: int = 3) -> np.ndarray:
    return symmetric(np.random.default_rng([seed, d]).standard_normal((d,) * order))


def rank_one_sum(vectors: Block, weights: np.ndarray, order: int = 3) -> np.ndarray:
    d = len(vectors)
    powers = vectors
    for _ in range(order - 2):
        powers = (powers[:, None, :] * vectors[None, :, :]).reshape(d * len(powers), vectors.shape[1])
    return ((vectors * weights) @ powers.T).reshape((d,) * order)


class Planted(NamedTuple):
    tensor: np.ndarray
    vectors: Block
    weights: np.ndarray


def planted(d: int, weights: Any, *, noise: float = 0.0, seed: int = 0, order: int = 3) -> Planted:
    """Orthonormal components and symmetrised Gaussian noise of entries N(0, noise^2) before it is symmetrised."""
    sizes = np.asarray(weights, dtype=np.float64)
    vectors = np.linalg.qr(np.random.default_rng(seed).standard_normal((d, len(sizes))))[0]
    tensor = rank_one_sum(vectors, sizes, order)
    return Planted(tensor + noise * gaussian(d, seed, order) if noise else tensor, vectors, sizes)


class Run(NamedTuple):
    result: Result
    outcome: Outcome
    products: int
    views: list[StepView]

    @property
    def status(self) -> list[str]:
        return list(self.result.facts["status"])


def drive(algorithm: TensorPower, tensor: np.ndarray, max_steps: int = 1000) -> Run:
    """The driver's loop, in memory."""
    with single_threaded_blas():
        return _driven(algorithm, tensor, max_steps)


def _driven(algorithm: TensorPower, tensor: np.ndarray, max_steps: int) -> Run:
    rule = UntilSettled(tol=algorithm.tol, max_steps=max_steps)
    state, views = algorithm.init(len(tensor), rng=generator(0, "start")), []
    while (outcome := rule(views)) is None:
        state, info = algorithm.update(state, contract(tensor, algorithm.query(state).block))
        views.append(
            StepView(
                step=state.step,
                ritz_values=info.ritz_values,
                residual_norms=info.residual_norms,
                precision=info.precision,
                finished=info.finished,
                settled=info.settled,
                said=info.said,
            )
        )
    return Run(algorithm.finalize(state), outcome, len(views), views)


def method(tensor: np.ndarray, k: int, *, harvest: bool = True, known: bool = True, **more: Any) -> TensorPower:
    squared = float((tensor**2).sum()) if known else None
    restarts = more.pop("restarts", restarts_for(k, harvest=harvest))
    return TensorPower(target_rank=k, restarts=restarts, seed=1, harvest=harvest, squared_norm=squared, **more)


def error(run: Run, truth: Planted) -> float:
    """The largest distance of a true component to the nearest one found, up to the sign for an even order."""
    cosines = truth.vectors.T @ run.result.vectors
    nearest = np.abs(cosines).argmax(axis=1)
    assert len(set(nearest)) == len(nearest)
    signs = np.sign(cosines[np.arange(len(nearest)), nearest])
    return float(np.linalg.norm(run.result.vectors[:, nearest] * signs - truth.vectors, axis=0).max())


@pytest.mark.slow
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("harvest", [True, False])
@pytest.mark.parametrize("weights", [[1.0], np.ones(5), np.linspace(3, 1, 5), np.ones(10)])
def test_components_of_an_exact_tensor(weights: Any, harvest: bool, known: bool) -> None:
    truth = planted(10 if len(weights) == 10 else 30, weights)
    run = drive(method(truth.tensor, len(weights), harvest=harvest, known=known), truth.tensor)
    assert run.outcome.name == "converged" and set(run.status) == {"found"}
    assert error(run, truth) < 1e-9
    np.testing.assert_allclose(run.result.values, np.sort(truth.weights)[::-1], atol=1e-9)
    images = contract(truth.tensor, run.result.vectors)
    np.testing.assert_allclose(run.result.products, images, atol=1e-12)
    norms = np.linalg.norm(images - run.result.vectors * run.result.values, axis=0)
    assert (norms <= 1e-9 * run.result.values).all()
    np.testing.assert_allclose(run.result.residual_norms, norms, atol=1e-12)


TABLE = [  # k, weights, noise, products of TENSORS by harvest: all within 50; error of sequential deflation
    (20, 1.0, 0.0, 14, 1e-8),
    (20, 1.0, 0.01, 24, 0.08),
    (20, 1.0, 0.03, 42, 0.24),
    (20, 4.0, 0.0, 16, 1e-8),
    (20, 4.0, 0.01, 28, 0.08),
    (20, 4.0, 0.03, 44, 0.24),
]


@pytest.mark.slow
@pytest.mark.parametrize("k, largest, noise, most, off", TABLE)
def test_twenty_components_from_fewer_than_fifty_products(
    k: int, largest: float, noise: float, most: int, off: float
) -> None:
    for seed in range(2 if noise else 12):
        truth = planted(100, np.linspace(largest, 1, k), noise=noise, seed=seed)
        run = drive(method(truth.tensor, k), truth.tensor)
        assert run.status == ["found"] * k, run.outcome.sentence
        assert run.products <= most
        assert error(run, truth) < off


def test_columns_that_begin_again_begin_elsewhere() -> None:
    truth = planted(30, [2.0, 1.0], noise=0.05)
    algorithm = method(truth.tensor, 2)
    state, blocks = algorithm.init(30, rng=generator(0, "start")), []
    while not state.finished:
        state, _ = algorithm.update(state, contract(truth.tensor, algorithm.query(state).block))
        blocks.append(algorithm.query(state).block[:, -1])
    assert state.stage == "joint" and len(blocks) > 8
    cosines = np.array(blocks[-5:]) @ np.array(blocks[-5:]).T - np.eye(5)
    assert np.abs(cosines).max() < 0.8


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.0, 0.03])
def test_harvest_errs_no_more_than_one_component_a_round(noise: float) -> None:
    truth = planted(60, np.linspace(3, 1, 6), noise=noise, seed=3)
    together, alone = (drive(method(truth.tensor, 6, harvest=h), truth.tensor) for h in (True, False))
    assert together.products < alone.products / 2
    np.testing.assert_allclose(together.result.values, alone.result.values, atol=1e-7)
    np.testing.assert_allclose(together.result.vectors, alone.result.vectors, atol=1e-6)


def test_joint_improvement_gives_back_what_deflation_took() -> None:
    """Components that are not orthogonal: rounds alone leave them wrong, all of them together are exact."""
    rng = np.random.default_rng(5)
    vectors = np.linalg.qr(rng.standard_normal((20, 4)))[0] + 0.3 * np.linalg.qr(rng.standard_normal((20, 1)))[0]
    vectors /= np.linalg.norm(vectors, axis=0)
    truth = Planted(rank_one_sum(vectors, np.array([3.0, 2.5, 2.0, 1.5])), vectors, np.array([3.0, 2.5, 2.0, 1.5]))
    assert np.abs(vectors.T @ vectors - np.eye(4)).max() > 0.05
    rounds = drive(method(truth.tensor, 4, harvest=False, iterations=30), truth.tensor)
    assert error(rounds, truth) > 1e-3 and rounds.outcome.name == "stagnated"
    for harvest in (True, False):
        run = drive(method(truth.tensor, 4, harvest=harvest), truth.tensor)
        assert run.outcome.converged and error(run, truth) < 1e-8
        np.testing.assert_allclose(run.result.values, truth.weights, atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("harvest", [True, False])
@pytest.mark.parametrize("d, k, noise", [(40, 3, 0.0), (40, 3, 0.05), (10, 3, 0.02), (6, 3, 0.05), (40, 1, 0.0)])
def test_surplus_is_said_and_is_no_number_that_is_none(
    d: int, k: int, noise: float, harvest: bool, known: bool
) -> None:
    truth = planted(d, np.linspace(2, 1, k), noise=noise, seed=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = drive(method(truth.tensor, k + 2, harvest=harvest, known=known), truth.tensor)
    assert run.status == ["found"] * k + ["surplus"] * 2, run.outcome.sentence
    assert run.outcome.converged
    assert (
        f"found {k} of {k + 2} components" in run.outcome.sentence and "2 asked for are surplus" in run.outcome.sentence
    )
    for array in (run.result.vectors, run.result.values, run.result.residual_norms, run.result.products):
        assert np.isfinite(array).all()
    np.testing.assert_allclose(np.linalg.norm(run.result.vectors, axis=0), 1, atol=1e-12)
    assert (np.abs(run.result.values[k:]) <= 1.15 * run.result.facts["noise_score"] + 1e-9).all()
    assert error(run, truth) < (1e-8 if noise == 0 else 0.3)


@pytest.mark.parametrize("harvest", [True, False])
def test_nothing_but_noise_and_nothing_at_all(harvest: bool) -> None:
    for tensor in (np.zeros((8, 8, 8)), np.zeros((1, 1, 1)), 0.1 * gaussian(30, 4)):
        run = drive(method(tensor, 1 if len(tensor) == 1 else 3, harvest=harvest), tensor)
        assert set(run.status) == {"surplus"} and run.outcome.converged
        assert "found 0 of" in run.outcome.sentence
        assert np.isfinite(run.result.vectors).all() and np.isfinite(run.result.residual_norms).all()
    one = drive(method(np.full((1, 1, 1), -2.0), 1, harvest=harvest), np.full((1, 1, 1), -2.0))
    assert one.result.values[0] == 2 and one.result.vectors[0, 0] == -1


@pytest.mark.parametrize("harvest", [True, False])
def test_fewer_than_there_are_are_not_called_noise(harvest: bool) -> None:
    """Eight equal components of ten are left: as much as noise that could have one as large, but no noise."""
    truth = planted(10, np.ones(10))
    run = drive(method(truth.tensor, 2, harvest=harvest), truth.tensor)
    assert run.status == ["found"] * 2
    assert noise_score(8**0.5, 10, 3) > 0.9
    assert run.result.facts["relative_residual"] == pytest.approx((8 / 10) ** 0.5)


@pytest.mark.parametrize("harvest", [True, False])
def test_order_four_has_weights_of_both_signs(harvest: bool) -> None:
    weights = np.array([2.0, -1.7, 1.2, -1.0])
    truth = planted(12, weights, order=4)
    run = drive(method(truth.tensor, 5, harvest=harvest, order=4), truth.tensor)
    assert run.status == ["found"] * 4 + ["surplus"]
    np.testing.assert_allclose(run.result.values[:4], weights, atol=1e-8)
    assert run.result.facts["signs"][:4] == [1, -1, 1, -1]
    assert error(run, truth) < 1e-8


def test_a_column_that_oscillates_is_shifted() -> None:
    """T(u, u, u, u) = cos 4 theta: a plain step takes theta to -3 theta and never ends."""
    turning = np.zeros((2, 2, 2, 2))
    turning[0, 0, 0, 0] = turning[1, 1, 1, 1] = 1.0
    for place in set(permutations((0, 0, 1, 1))):
        turning[place] = -1.0
    algorithm = method(turning, 1, harvest=False, order=4)
    run = drive(algorithm, turning)
    assert run.result.residual_norms[0] < 1e-8 and run.products < 60
    assert abs(run.result.values[0]) == pytest.approx(1)
    plain = drive(replace(algorithm, iterations=60), turning)
    assert plain.result.residual_norms[0] > 0.1
    truth = planted(10, [2.0, 1.0], noise=0.1)
    few = drive(method(truth.tensor, 2, harvest=False, iterations=2), truth.tensor)
    assert few.outcome.name == "stagnated" and "leave iterations out" in few.outcome.sentence


@pytest.mark.parametrize("restarts", [3, 12])
def test_a_fixed_length_is_kept_exactly(restarts: int) -> None:
    """k (R + 1) products, one that measures the answer, and the paper's answer from each."""
    truth = planted(15, [3.0, 2.0, 1.5], noise=0.01, seed=6)
    algorithm = method(truth.tensor, 3, harvest=False, iterations=7, restarts=restarts)
    run = drive(algorithm, truth.tensor)
    assert run.products == 3 * 8 + 1
    assert run.views[7].ritz_values[0] > 0 and run.views[6].ritz_values[0] == 0
    vectors, weights = _paper(truth.tensor, algorithm)
    order = np.argsort(-weights)
    np.testing.assert_allclose(run.result.vectors, vectors[:, order], atol=1e-6)  # a tie of scores to rounding
    np.testing.assert_allclose(run.result.values, weights[order], atol=1e-12)


def _paper(tensor: np.ndarray, algorithm: TensorPower) -> tuple[Block, np.ndarray]:
    """Algorithm 1 as it is printed, one vector at a time, on a tensor that is deflated in memory."""
    from npmdask.tensors.components import random_units

    vectors, weights = [], []
    for i in range(algorithm.target_rank):
        starts = random_units(len(tensor), algorithm.restarts, seed=algorithm.seed, place=i)
        ends = []
        for u in starts.T:
            for _ in range(algorithm.iterations or 0):
                u = np.einsum("ijk,j,k->i", tensor, u, u)
                u = u / np.linalg.norm(u)
            ends.append(u)
        scores = [np.einsum("ijk,i,j,k->", tensor, u, u, u) for u in ends]
        best = int(np.argmax(scores))
        vectors.append(ends[best])
        weights.append(scores[best])
        tensor = tensor - scores[best] * np.einsum("i,j,k->ijk", ends[best], ends[best], ends[best])
    return np.array(vectors).T, np.array(weights)


@pytest.mark.slow
@pytest.mark.parametrize("more", [{}, {"known": False}, {"harvest": False}, {"harvest": False, "iterations": 4}])
def test_every_step_can_be_gone_on_from_with_the_same_bits(more: dict[str, Any]) -> None:
    truth = planted(12, [2.0, 1.5, 1.0], noise=0.03, seed=7)
    algorithm = method(truth.tensor, 4, **more)
    state, loaded = (algorithm.init(12, rng=generator(0, "start")) for _ in range(2))
    sizes = {name: array.shape for name, array in state_fields(state)[0].items()}
    for _ in range(60):
        if state.finished:
            break
        product = contract(truth.tensor, algorithm.query(state).block)
        state, _ = algorithm.update(state, product)
        arrays, scalars = state_fields(state)
        again, _ = algorithm.update(loaded, contract(truth.tensor, algorithm.query(loaded).block))
        for name, array in state_fields(again)[0].items():
            assert np.array_equal(array, arrays[name]), name
            assert array.flags.c_contiguous and array.shape == sizes[name]
        assert state_fields(again)[1] == scalars
        copied = {name: np.frombuffer(array.tobytes()).reshape(array.shape) for name, array in arrays.items()}
        loaded = algorithm.load(copied, scalars)
    assert state.step > 10
    one, other = algorithm.finalize(state), algorithm.finalize(loaded)
    assert np.array_equal(one.vectors, other.vectors) and one.facts == other.facts


def test_weight_vector_and_residual_belong_together() -> None:
    """At every step, not only at the end: the products are of the very vectors that would be returned."""
    truth = planted(20, [2.0, 1.5, 1.0], noise=0.05, seed=8)
    for algorithm in (method(truth.tensor, 3), method(truth.tensor, 3, harvest=False)):
        state = algorithm.init(20, rng=generator(0, "start"))
        for _ in range(12):
            state, _ = algorithm.update(state, contract(truth.tensor, algorithm.query(state).block))
            m, parts = state.count, state.components
            vectors, weights = parts.vectors[:, :m], parts.weights[:m]
            np.testing.assert_allclose(contract(truth.tensor, vectors), parts.products[:, :m], atol=1e-12)
            others = truth.tensor if algorithm.harvest else truth.tensor - rank_one_sum(vectors, weights)
            if algorithm.harvest and m:
                rest = contract(others - rank_one_sum(vectors, weights), vectors)
                np.testing.assert_allclose(np.linalg.norm(rest, axis=0), parts.norms[:m], atol=1e-12)


def test_noise_has_the_largest_score_that_is_expected_of_it() -> None:
    """The largest of many restarts in Gaussian tensors, and the norm that random products show."""
    for d, order in ((20, 3), (40, 3), (12, 4)):
        tensor = gaussian(d, 9, order)
        norm = float(np.linalg.norm(tensor))
        block = np.linalg.qr(np.random.default_rng(d).standard_normal((d, d)))[0][:, :12]
        for _ in range(80):
            product = contract(tensor, block)
            scores = np.einsum("dl,dl->l", product, block)
            block = product * np.where(scores < 0, -1.0, 1.0) ** (order + 1) + np.abs(scores) * block
            block /= np.linalg.norm(block, axis=0)
        largest = np.abs(scores).max()
        assert 0.75 * noise_score(norm, d, order) < largest < 1.1 * noise_score(norm, d, order)
        units = np.random.default_rng(d).standard_normal((d, 200))
        units /= np.linalg.norm(units, axis=0)
        assert norm_from(contract(tensor, units), order) == pytest.approx(norm, rel=0.1)
    assert noise_score(1.0, 10**6, 3) == pytest.approx(np.sqrt(6) * GROUND_STATES[3] / 10**6, rel=1e-5)
    truth = planted(10, np.ones(10))
    units = np.linalg.qr(np.random.default_rng(1).standard_normal((10, 10)))[0]
    many = np.random.default_rng(2).standard_normal((10, 4000))
    many /= np.linalg.norm(many, axis=0)
    assert norm_from(contract(truth.tensor, many), 3) == pytest.approx(10**0.5, rel=0.05)  # traces are taken off
    assert norm_from(contract(np.zeros((10, 10, 10)), units), 3) == 0


def test_what_is_like_noise_is_judged_from_the_weakest_on() -> None:
    ratio = noise_score(1.0, 50, 3)
    assert like_noise(np.array([1.0, 0.9 * ratio, ratio]), 1.0, 50, 3, MARGIN).tolist() == [False, True, True]
    assert like_noise(np.array([-1.0, -1.3 * ratio]), 1.0, 50, 3, MARGIN).tolist() == [False, False]
    assert not like_noise(np.ones(5), 0.1, 5, 3, MARGIN).any()  # five that explain all but a hundredth of it
    assert like_noise(np.zeros(0), 1.0, 5, 3, MARGIN).shape == (0,)
    assert not like_noise(np.full(3, 0.1), 1.0, 50, 3, 0.0).any()  # told from elsewhere that they are components


def test_requests_that_make_no_sense() -> None:
    with pytest.raises(BadInputError, match="leave one of them out"):
        TensorPower(target_rank=2, restarts=5, seed=0, harvest=True, iterations=3)
    with pytest.raises(BadInputError, match="order = 5"):
        TensorPower(target_rank=2, restarts=5, seed=0, order=5)
    with pytest.raises(BadInputError, match="at most 4"):
        TensorPower(target_rank=5, restarts=5, seed=0).init(4, rng=generator(0, "start"))


def test_the_rule_says_why() -> None:
    truth = planted(30, [2.0, 1.0, 1.0], noise=0.05, seed=10)
    short = drive(method(truth.tensor, 3, harvest=False), truth.tensor, max_steps=12)
    assert short.outcome.name == "max_steps" and "components found so far" in short.outcome.sentence
    assert "npmdask resume" in short.outcome.sentence
    begun = drive(method(truth.tensor, 3), truth.tensor, max_steps=1)
    assert begun.status == ["open"] * 3, "nobody has looked for them yet"
    rule = UntilSettled(tol=1e-9, max_steps=5)
    assert rule.relative(short.views[0]).tolist() == [1.0, 1.0, 1.0]
    remembered = {"step": 1, "ritz_values": [1.0], "residual_norms": [0.0], "precision": "float64"}
    old, new = views_of([remembered, remembered | {"finished": True, "settled": False, "said": "so"}])
    assert old.settled and old.said == "" and rule([old]) is None
    assert rule([new]) == Outcome(name="stagnated", sentence="so")


def test_restarts_that_no_memory_holds_are_refused_before_they_are_drawn() -> None:
    with pytest.raises(MemoryRefusedError, match=r"or restarts of at most \d+$"):
        top_k(planted(10, np.ones(2)).tensor, 2, kind="tensor", memory="4GB", options={"restarts": 10**9})


def test_a_component_that_came_too_late_is_no_contradiction() -> None:
    """A fixed point within the tolerance that was never fitted with the others is open, and the sentence says why."""
    state = TensorPower(target_rank=2, restarts=5, seed=0).init(4, rng=generator(0, "start"))
    parts = replace(state.components, vectors=np.eye(4)[:, :2], weights=np.array([1.0, 0.5]))
    state = replace(state, stage="joint", count=1, step=30, scale=1.0, components=parts, finished=True, margin=0.0)
    assert statuses(state, 1e-9, 3) == ["found", "open"]
    assert "1 of 2 components came out of what the others leave only after the search" in ending_of(state, 1e-9, 3)


@pytest.mark.parametrize("kind", ["saddle", "copy"])
def test_a_component_that_is_none_is_let_go(kind: str) -> None:
    """A fixed point between two components, where a column can stay for long; and one component held twice."""
    truth = planted(12, np.ones(4))
    algorithm = method(truth.tensor, 4)
    state = algorithm.init(12, rng=generator(0, "start"))
    v, w = truth.vectors[:, 0], truth.vectors[:, 1]
    held = [(v + 1.02 * w) / np.linalg.norm(v + 1.02 * w)] if kind == "saddle" else [v, (v + 0.2 * w) / 1.04**0.5]
    trial = np.zeros((12, 4))
    trial[:, : len(held)] = np.array(held).T
    norms = np.zeros(4) if kind == "saddle" else np.ones(4)
    components = replace(state.components, trial=trial, norms=norms)
    state = replace(state, count=len(held), components=components)
    state, _ = algorithm.update(state, contract(truth.tensor, algorithm.query(state).block))
    assert state.let_go == 1
    while not state.finished:
        state, info = algorithm.update(state, contract(truth.tensor, algorithm.query(state).block))
    assert info.settled and algorithm.finalize(state).facts["status"] == ["found"] * 4
    np.testing.assert_allclose(np.abs(truth.vectors.T @ state.ritz_vectors).max(axis=1), 1, atol=1e-9)


def oblique(d: int, angle: float, weights: Any) -> np.ndarray:
    """A tensor of components that make this angle (in degrees) with each other."""
    k, cosine = len(weights), np.cos(np.radians(angle))
    turn = np.linalg.qr(np.random.default_rng(0).standard_normal((d, k + 1)))[0]
    return rank_one_sum(np.sqrt(1 - cosine) * turn[:, :k] + np.sqrt(cosine) * turn[:, k:], np.array(weights))


@pytest.mark.slow
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("angle", [30, 40, 60, 75, 85, 90])
@pytest.mark.parametrize("weights", [(3, 0.4, 0.35, 0.3), (1.5, 1.3, 1.2, 1)])
def test_the_sentence_says_what_is_left_of_a_tensor_that_is_not_orthogonal(
    weights: tuple[float, ...], angle: float, known: bool
) -> None:
    """Not only that the others are what noise would give: with much left over, that means little."""
    tensor = oblique(12, angle, weights)
    run = drive(method(tensor, 4, known=known), tensor)
    said, fitted = run.outcome.sentence, int(run.result.facts["rounds"])
    left = float(run.result.facts["relative_residual"])
    if left < 1e-7:
        assert "nothing but rounding is left of the tensor" in said
        return
    who = "the one fitted leaves" if fitted == 1 else f"the {fitted} fitted together leave"
    about = "" if known else "about "
    assert (f"{who} {about}{100 * left:.3g} % of the tensor's norm unexplained" in said) == bool(fitted)
    assert fitted or "all of the tensor is left unexplained" in said
    assert ("estimated from products with random columns" in said) == (bool(fitted) and not known)
    found = [i for i, word in enumerate(run.status) if word == "found"]
    if known and len(found) == fitted:
        rest = tensor - rank_one_sum(run.result.vectors[:, found], run.result.values[found])
        assert np.linalg.norm(rest) / np.linalg.norm(tensor) == pytest.approx(left, rel=1e-3)


def test_a_surplus_beside_much_that_is_left_is_not_called_nothing() -> None:
    """One component and noise of which another may be a part; and a random tensor, of which there is none."""
    truth = planted(10, np.ones(1), noise=0.05, seed=2)
    run = drive(method(truth.tensor, 3), truth.tensor)
    assert run.status == ["found", "surplus", "surplus"]
    level, left = run.result.facts["noise_score"], 100 * run.result.facts["relative_residual"]
    assert left > 10
    assert f"the one fitted leaves {left:.3g} % of the tensor's norm unexplained; the other 2" in run.outcome.sentence
    assert f"(up to {level:.2g}), or rounding; but what is left need not be noise" in run.outcome.sentence
    noise = drive(method(gaussian(12, 4), 3), gaussian(12, 4))
    assert "all of the tensor is left unexplained, and none can be seen above noise as large" in noise.outcome.sentence
    exact = planted(10, np.ones(1), seed=2)
    run = drive(method(exact.tensor, 3), exact.tensor)
    assert run.outcome.sentence.endswith("the other 2 asked for are surplus (spurious): their weights are rounding")
    nothing = drive(method(np.zeros((8, 8, 8)), 3), np.zeros((8, 8, 8)))
    assert nothing.outcome.sentence.endswith(": the tensor is zero")
