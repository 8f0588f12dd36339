"""The online tensor power method: what it finds, how exactly, in what memory, and what is wrong as it is printed."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from npmdask.core.algorithms import state_fields
from npmdask.core.numerics.random import generator
from npmdask.core.numerics.subspaces import Block
from npmdask.errors import BadInputError
from npmdask.streaming.algorithms import tensor_power
from npmdask.streaming.algorithms.model import Model
from npmdask.streaming.algorithms.tensor_power import PIECE_ROWS, OnlineTensorPower, default_restarts
from npmdask.streaming.memory import columns_held
from npmdask.tensors.components import random_units

WEIGHTS = np.array([2.0, 1.5, 1.0])


def method(k: int = 3, n: int = 500, **more: Any) -> OnlineTensorPower:
    return OnlineTensorPower(**{"target_rank": k, "block_rows": n, "restarts": 12, "iterations": 5} | more)


def planted(d: int, k: int, seed: int) -> Block:
    """k orthonormal components."""
    return np.asarray(np.linalg.qr(np.random.default_rng(seed).standard_normal((d, k)))[0])


def sources(n: int, v: Block, weights: np.ndarray, rng: np.random.Generator, noise: float = 0.2) -> Block:
    """Independent skewed sources along ``v``: an exponential less its mean has the third moment 2. Gaussian noise has
    none."""
    skewed = (rng.exponential(size=(n, v.shape[1])) - 1) * np.cbrt(weights / 2)
    return np.asarray(skewed @ v.T + noise * rng.standard_normal((n, len(v))))


def one_of(n: int, v: Block, weights: np.ndarray, rng: np.random.Generator) -> Block:
    """One of the components with the probability of its weight: E x^3 = sum_i weight_i v_i^3."""
    return np.asarray(v[:, rng.choice(len(weights), size=n, p=weights)].T)


def fed(algorithm: OnlineTensorPower, rows: Block, size: int = 4096, seed: int = 0, state: Any = None) -> Any:
    state = algorithm.init(rows.shape[1], rng=generator(seed, "start")) if state is None else state
    for start in range(0, len(rows), size):
        state, _ = algorithm.update(state, rows[start : start + size])
    return state


def worst(found: Block, truth: Block) -> float:
    """Largest ||v_i - its nearest||: near 1 or more where one of them is missing."""
    nearest = found[:, (found.T @ truth).argmax(axis=0)]
    return float(np.linalg.norm(truth - nearest, axis=0).max())


@pytest.mark.slow
@pytest.mark.parametrize("d", [3, 40])
def test_finds_skewed_sources_and_their_weights(d: int) -> None:
    """Signs too: those of positive weights. Fails when a product is not deflated, or a score is of another vector."""
    for seed in range(4):
        v, rng = planted(d, 3, seed), np.random.default_rng(seed)
        result = (a := method(n=1500)).finalize(fed(a, sources(2 * a.search_rows, v, WEIGHTS, rng), seed=seed))
        assert worst(result.vectors, v) < 0.08 and result.facts["status"] == ["found"] * 3
        np.testing.assert_allclose(np.linalg.norm(result.vectors, axis=0), 1, rtol=1e-12)
        z = (result.values - WEIGHTS) / result.facts["standard_errors"]
        assert np.abs(z).max() < 4 and result.said == "3 of 3 components are found"


@pytest.mark.slow
def test_the_standard_errors_are_those_of_the_weights() -> None:
    """Over many streams the mean square of (weight - truth) / standard error is about one."""
    v, z = planted(6, 2, 0), []
    for seed in range(30):
        rows = sources(15_000, v, WEIGHTS[:2], np.random.default_rng(seed))
        result = (a := method(2, n=300)).finalize(fed(a, rows, seed=seed))
        z.append((result.values - WEIGHTS[:2]) / result.facts["standard_errors"])
    assert 0.6 < np.mean(np.square(z)) < 1.6


def error(rows: int, *, refine: bool) -> float:
    """Root mean square over the components of four streams. All rows are for the searches, half where it refines."""
    errors = []
    for seed in range(4):
        v = planted(8, 3, seed)
        a = method(n=rows // ((1 + refine) * 3 * 6), refine=refine, restarts=6)
        given = sources(rows, v, WEIGHTS, np.random.default_rng(100 + seed))
        found = a.finalize(fed(a, given, seed=seed)).vectors
        errors += [float(np.linalg.norm(found.T - w, axis=1).min()) for w in v.T]
    return float(np.sqrt(np.mean(np.square(errors))))


@pytest.mark.slow
def test_the_error_falls_like_one_over_the_root_of_the_rows() -> None:
    """16 times the rows, a quarter of the error. Refined by all rows it is a fraction of what one block gives."""
    refined = [error(rows, refine=True) for rows in (10_000, 160_000)]
    as_printed = error(160_000, refine=False)
    print("refined", refined, "one block each", as_printed)
    assert 2.8 < refined[0] / refined[1] < 5.7
    assert as_printed > 2.5 * refined[1]


@pytest.mark.slow
def test_rows_go_on_refining_after_the_last_search_or_change_nothing() -> None:
    v, rng = planted(8, 3, 1), np.random.default_rng(1)
    for refine in (True, False):
        a = method(refine=refine)
        state = fed(a, sources(a.search_rows, v, WEIGHTS, rng))
        after = fed(a, sources(20 * a.search_rows, v, WEIGHTS, rng), state=state)
        first, last = a.finalize(state), a.finalize(after)
        assert after.rows == 21 * a.search_rows and last.rows == after.rows
        if refine:
            assert worst(last.vectors, v) < worst(first.vectors, v) / 2
            assert max(last.facts["standard_errors"]) < max(first.facts["standard_errors"]) / 2
        else:
            np.testing.assert_array_equal(last.vectors, first.vectors)
            np.testing.assert_array_equal(last.values, first.values)
            assert last.facts == first.facts


# What is computed


def by_tensors(a: OnlineTensorPower, rows: Block, key: int) -> tuple[Block, np.ndarray]:
    """The same with the empirical tensor of every block, and loops."""
    d, n = rows.shape[1], a.block_rows
    found: list[dict[str, Any]] = []
    starts: list[np.ndarray] = []
    for number in range(len(rows) // n):
        block = rows[number * n : (number + 1) * n]
        tensor = np.einsum("ni,nj,nk->ijk", block, block, block) / n
        parts = [c["w"] * np.einsum("i,j,k->ijk", c["v"], c["v"], c["v"]) for c in found]
        new = None
        if len(found) < a.target_rank:
            turn, rest = number % (a.iterations + 1), tensor - sum(parts, np.zeros((d, d, d)))
            starts = list(random_units(d, a.restarts, seed=key, place=len(found)).T) if turn == 0 else starts
            images = [np.einsum("ijk,j,k->i", rest, u, u) for u in starts]
            if turn < a.iterations:
                starts = [y / np.linalg.norm(y) for y in images]
            else:
                scores = [float(u @ y) for u, y in zip(starts, images, strict=True)]
                best = int(np.argmax(scores))
                new = {"v": starts[best], "w": scores[best], "images": [images[best]], "scores": [scores[best]]}
        if a.refine:
            moved = []
            for i, c in enumerate(found):
                before = sum(parts[:i], np.zeros((d, d, d)))
                y = np.einsum("ijk,j,k->i", tensor - before, c["v"], c["v"])
                images_of, scores_of = [*c["images"], y], [*c["scores"], float(c["v"] @ y)]
                mean = np.mean(images_of, axis=0)
                v, w = mean / np.linalg.norm(mean), float(np.mean(scores_of))
                moved.append({"v": v, "w": w, "images": images_of, "scores": scores_of})
            found = moved
        found += [new] if new else []
    return np.array([c["v"] for c in found]).T, np.array([c["w"] for c in found])


@pytest.mark.parametrize("refine", [True, False])
def test_it_is_the_power_method_on_the_tensors_of_the_blocks(refine: bool) -> None:
    """Fails when a block is used twice, scored by its own rows, or deflated by a component's own part."""
    rows = sources(2200, planted(5, 3, 0), WEIGHTS, np.random.default_rng(0))
    a = method(n=70, iterations=4, restarts=6, refine=refine)
    for count in (350, 700, 840, 1050, 1120, 2200):
        state = fed(a, rows[:count], 33)
        vectors, weights = by_tensors(a, rows[:count], state.key)
        np.testing.assert_allclose(state.vectors, vectors, rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(state.weights, weights, rtol=1e-7, atol=1e-9)


def test_a_score_is_of_rows_that_the_vector_was_not_made_of() -> None:
    """Of Gaussian rows no component is heavier than noise: a score by the rows that made the vector is far heavier."""
    rng = np.random.default_rng(2)
    a = method(n=200, iterations=3, restarts=30)
    result = a.finalize(fed(a, rng.standard_normal((4 * a.search_rows, 25))))
    assert result.facts["status"] == ["surplus"] * 3 and np.abs(result.values).max() < 0.5
    assert result.said == "0 of 3 components are found, 3 have a weight that noise would have, too"


def test_more_components_than_there_are() -> None:
    v, rng = planted(15, 3, 3), np.random.default_rng(3)
    a = method(5, n=800)
    result = a.finalize(fed(a, sources(2 * a.search_rows, v, WEIGHTS, rng)))
    assert result.facts["status"] == ["found"] * 3 + ["surplus"] * 2 and worst(result.vectors[:, :3], v) < 0.1


class Printed:
    """Line 7 as it is printed: xi is of the accumulated sum, and not of the iterate; of sums and of scores."""

    def deflated(self, product: Block, block: Block, vectors: Block, weights: np.ndarray) -> Block:
        self._xi, self._weights, self._product = vectors.T @ product, weights, product
        self._rest = np.asarray(product - vectors @ (weights[:, None] * self._xi**2))
        return self._rest

    def scores_of(self, product: Block, block: Block) -> np.ndarray:
        if product is not getattr(self, "_rest", None):
            return np.asarray((product * block).sum(axis=0))
        return np.asarray((self._product * block).sum(axis=0) - self._weights @ self._xi**3)


@pytest.mark.slow
def test_the_printed_deflation_finds_the_first_component_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights (.4, .3, .2, .1): with xi = v_j^T u~_{t+1} all four are the first; with the iterate each is found."""
    v, weights = np.eye(10)[:, :4], np.array([0.4, 0.3, 0.2, 0.1])
    rows = one_of(160_000, v, weights, np.random.default_rng(0))
    a = method(4, n=2000, restarts=22, iterations=10, refine=False)
    right = a.finalize(fed(a, rows))
    assert worst(right.vectors, v) < 0.1
    np.testing.assert_allclose(right.values, weights, atol=0.05)
    as_printed = Printed()
    monkeypatch.setattr(tensor_power, "deflated", as_printed.deflated)
    monkeypatch.setattr(tensor_power, "scores_of", as_printed.scores_of)
    wrong = a.finalize(fed(a, rows))
    assert (np.abs(v.T @ wrong.vectors).argmax(axis=0) == 0).all() and worst(wrong.vectors, v) > 1


# Rows: how many, in which batches


def test_components_come_after_so_many_rows_and_not_before() -> None:
    rows = sources(15_000, planted(6, 3, 0), WEIGHTS, np.random.default_rng(0))
    a = method(n=1000, iterations=4)
    for found in (1, 2, 3):
        for short in (0, 1):
            state = fed(a, rows[: found * 5000 - short])
            assert len(state.weights) == found - short and state.vectors.shape == (6, found - short)
    two = a.finalize(fed(a, rows[:11_500]))
    assert two.vectors.shape == (6, 2) and two.facts["status"] == ["found", "found", "open"] and two.rows == 11_000
    assert two.said == "2 of 3 components are found, 1 still open: each takes 5000 rows"
    with pytest.raises(BadInputError, match=r"^4999 rows find no component, the first takes 5000: stream more, or"):
        a.finalize(fed(a, rows[:4999]))


def bits(state: Any) -> dict[str, Any]:
    arrays, numbers = state_fields(state)
    return {name: np.ascontiguousarray(array).tobytes() for name, array in arrays.items()} | numbers


@pytest.mark.slow
@pytest.mark.parametrize("n", [50, PIECE_ROWS, 2 * PIECE_ROWS, 333])
def test_the_bits_do_not_depend_on_the_batches(n: int) -> None:
    """Fails when a sum is cut where a batch ends, or the layout of a batch reaches the arithmetic."""
    rows = sources(7777, planted(17, 3, 0), WEIGHTS, np.random.default_rng(0)).astype("f4")
    a = method(n=n, iterations=3)
    whole = bits(fed(a, rows, len(rows)))
    for size in (7, 64, 100, 1000):
        assert bits(fed(a, rows, size)) == whole
    assert bits(fed(a, np.asfortranarray(rows.astype(float)), 90)) == whole
    assert bits(fed(a, rows[:300], 1, state=None)) == bits(fed(a, rows[:300], 299))


def test_rows_of_another_size_change_only_the_weights() -> None:
    rows = sources(9000, planted(7, 3, 0), WEIGHTS, np.random.default_rng(0))
    plain, large = ((a := method(n=200)).finalize(fed(a, c * rows)) for c in (1.0, 1024.0))
    np.testing.assert_array_equal(plain.vectors, large.vectors)
    np.testing.assert_allclose(large.values, 1024.0**3 * plain.values, rtol=1e-12)
    assert plain.facts["status"] == large.facts["status"]
    small = Model(algorithm=method(n=200), d=7, unit=3.0)
    state, _ = small.absorb(small.init(), rows)
    assert state.unit == 1.0 and small.answer(state).rows == 9000


def test_rows_that_say_nothing() -> None:
    """Zeros have no component: nothing becomes NaN, and what was found before stays."""
    a = method(n=20, iterations=2)
    nothing = a.finalize(fed(a, np.zeros((400, 4))))
    np.testing.assert_allclose(np.linalg.norm(nothing.vectors, axis=0), 1, rtol=1e-12)
    assert (nothing.values == 0).all() and nothing.facts["status"] == ["surplus"] * 3


@pytest.mark.slow
def test_memory_is_that_of_the_columns_whatever_the_rows() -> None:
    """State: at most twice k + L columns, k more, and one piece that waits; an update: what is planned for it."""
    d, k, restarts, size = 5_000, 4, 20, 32
    a, rng = method(k, n=100, restarts=restarts, iterations=2), np.random.default_rng(0)
    batch = rng.standard_normal((size, d))
    tracemalloc.start()
    try:
        state = a.init(d, rng=generator(0, "start"))
        for _ in range(60):
            state, _ = a.update(state, batch)
            held = sum(array.size for array in state_fields(state)[0].values())
            assert held <= d * (2 * (k + restarts) + 2 * k + PIECE_ROWS) + 100
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    print("columns of d at the peak", peak / (8 * d))
    assert len(state.weights) == k and 0.5 < peak / (8 * d) / columns_held(a, size, k) < 1


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"block_rows": 1}, "block_rows = 1: an iteration takes at least two rows"),
        ({"restarts": 0}, "restarts = 0: at least one start is needed"),
        ({"iterations": 0}, "iterations = 0: at least one is needed"),
    ],
)
def test_what_cannot_be_is_a_sentence(wrong: dict[str, int], sentence: str) -> None:
    with pytest.raises(BadInputError, match=sentence):
        method(**wrong)
    with pytest.raises(BadInputError, match="target_rank = 3 does not fit rows with 2 columns"):
        method().init(2, rng=generator(0, "start"))


def test_rows_that_are_too_large_are_refused() -> None:
    """Fails when sums overflow: the vectors would be NaN, and nobody would know why."""
    a = method(n=20, iterations=1)
    state = fed(a, np.full((30, 4), 1e43))
    before = bits(state)
    with pytest.raises(BadInputError, match=r"values up to 1e\+46: their third moment is too large.*divide all rows"):
        a.update(state, np.full((2, 4), 1e46))
    assert bits(state) == before and np.isfinite(fed(a, np.full((300, 4), 1e43), state=state).squares).all()


def test_restarts_grow_like_k_log_k() -> None:
    assert [default_restarts(k) for k in (1, 4, 20)] == [10, 22, 130]
