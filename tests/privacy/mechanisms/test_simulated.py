"""Any noise whatever: adaptive, adversarial, fixed in advance; what is traced; what turns with the coordinates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npmdask.api import solve
from npmdask.core.algorithms import PowerMethod
from npmdask.core.numerics.random import generator
from npmdask.core.numerics.subspaces import Block, max_sin_theta, random_orthonormal
from npmdask.core.runs.build import make_problem
from npmdask.core.runs.mechanisms import NoiseOracle, block_noise, noise_norms
from npmdask.core.runs.problem import Request
from npmdask.core.runs.resources import Resources
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError
from npmdask.privacy.neighbors import make_relation
from npmdask.streaming.algorithms.power import StreamPower
from npmdask.theory import coherence_linf_bound

D, K, P = 40, 2, 5
VALUES = np.concatenate([[3.0, 2.5], np.linspace(1.0, 0.1, D - K)])
GAP = 1.5


def matrix(seed: int = 0) -> tuple[Block, Block]:
    v = np.linalg.qr(np.random.default_rng(seed).standard_normal((D, D)))[0]
    return (v * VALUES) @ v.T, v


def driven(a: Block, oracle: NoiseOracle, steps: int, start: Block, k: int = K) -> list[Block]:
    """X_0, ..., X_L of the product's algorithm and mechanism, without a driver."""
    method = PowerMethod(target_rank=k, iteration_rank=start.shape[1])
    state = replace(method.init(len(a), rng=generator(0, "start")), basis=start)
    seen = [state.basis]
    for step in range(1, steps + 1):
        block = method.query(state).block
        state, _ = method.update(state, oracle.release(a @ block, block=block, entropy=0, step=step))
        seen.append(state.basis)
    return seen


def tangent(basis: Block, truth: Block) -> float:
    sine = max_sin_theta(basis, truth)
    return float(sine / np.sqrt(1 - sine**2))


def test_an_adaptive_adversary_does_what_the_explicit_step_bound_allows_and_no_more() -> None:
    """It pushes the worst wanted direction of the X it sees towards u_{k+1}, all its strength in one direction.

    t' <= (s_{k+1} t + ||V^T G|| sqrt(1 + t^2)) / (s_k - ||U^T G|| sqrt(1 + t^2)) in every step, and it ends at the
    fixed point exactly: the bound is attained; noise of the same norm that does not look at X does not. Mutants: noise
    that is not added (the plateau is 0), twice as much of it, or an oracle that is told another block.
    """
    a, v = matrix()
    u, rest, size = v[:, :K], v[:, K:], 0.3

    def towards(step: int, block: Block, product: Block) -> Block:
        coefficients = np.linalg.lstsq(u.T @ block, np.eye(K)[:, -1], rcond=None)[0]
        row = coefficients / np.linalg.norm(coefficients)
        sign = np.sign(float(rest[:, 0] @ block @ coefficients)) or 1.0
        return size * sign * np.outer(rest[:, 0], row)

    start = random_orthonormal(D, K, generator(3, "start"))  # p = k: further columns would hold u_{k+1}
    oracle = NoiseOracle(noise=towards, truth=u)
    bases = driven(a, oracle, 40, start)
    for before, after, norms in zip(bases[:-1], bases[1:], oracle.trace, strict=True):
        t = tangent(before, u)
        root = np.sqrt(1 + t * t)
        bound = (VALUES[K] * t + norms.whole * root) / (VALUES[K - 1] - norms.inside * root)
        assert tangent(after, u) <= bound * (1 + 1e-9)
    plateau = tangent(bases[-1], u)
    fixed = size / np.sqrt((VALUES[K - 1] - VALUES[K]) ** 2 - size**2)  # t s_k = t s_{k+1} + size sqrt(1 + t^2)
    assert plateau == pytest.approx(fixed, rel=1e-9)
    blind = NoiseOracle(noise=lambda step, block, product: scaled(product.shape, step, size), truth=u)
    assert tangent(driven(a, blind, 40, start)[-1], u) < 0.8 * plateau


def scaled(shape: tuple[int, ...], step: int, size: float) -> Block:
    noise = generator(1, "noise", step).standard_normal(shape)
    return size * noise / np.linalg.norm(noise, 2)


def test_the_trace_is_of_the_noise_that_was_added() -> None:
    """Step by step, both norms; NaN without a truth. Mutants: the Frobenius norm; ||G^T G||; norms of the product."""
    a, v = matrix(1)
    released: list[Block] = []

    def remembered(step: int, block: Block, product: Block) -> Block:
        """Adaptive: makes of each step what it kept of the one before."""
        released.append(0.1 * step * product + (released[-1] if released else 0))
        return released[-1]

    oracle = NoiseOracle(noise=remembered, truth=v[:, :K])
    driven(a, oracle, 4, random_orthonormal(D, P, generator(0, "start")))
    assert [norms.step for norms in oracle.trace] == [1, 2, 3, 4]
    for norms, noise in zip(oracle.trace, released, strict=True):
        assert norms.whole == pytest.approx(np.linalg.svd(noise, compute_uv=False)[0], rel=1e-12)
        assert norms.inside == pytest.approx(np.linalg.svd(v[:, :K].T @ noise, compute_uv=False)[0], rel=1e-12)
    assert np.isnan(noise_norms(1, released[0]).inside)
    assert oracle.event() == {"mechanism": "oracle", "private": False}


@pytest.mark.slow
def test_the_driver_runs_any_oracle_out_of_core() -> None:
    """The same iterates as by hand, every step traced once; noise of a wrong shape stops the run with a sentence."""
    a, v = matrix(2)
    source = open_source(a, "symmetric")
    problem = make_problem(source, Request(target_rank=K, iteration_rank=P, algorithm="power", max_steps=6, seed=4))

    def noise(step: int, block: Block, product: Block) -> Block:
        return 0.05 * np.roll(product, step, axis=0)

    oracle = NoiseOracle(noise=noise, truth=v[:, :K], stddev=0.05)
    solve(replace(problem, mechanism=oracle), None, Resources(threads=1))
    by_hand = NoiseOracle(noise=noise, truth=v[:, :K])
    driven(a, by_hand, 6, problem.algorithm.init(D, rng=generator(4, "start")).basis)
    assert [norms.step for norms in oracle.trace] == [1, 2, 3, 4, 5, 6]
    np.testing.assert_allclose(np.array(oracle.trace), np.array(by_hand.trace), rtol=1e-9)
    for wrong in (lambda step, block, product: product[:1], lambda step, block, product: product * np.nan):
        with pytest.raises(BadInputError, match="finite noise of"):
            solve(replace(problem, mechanism=NoiseOracle(noise=wrong, stddev=1.0)), None, Resources(threads=1))


@pytest.mark.slow
@settings(deadline=None, max_examples=25)
@given(st.integers(2, 12), st.integers(1, 4), st.integers(0, 10**6))
def test_iterates_turn_with_the_coordinates_if_the_noise_is_fixed(d: int, p: int, seed: int) -> None:
    """X_l(R A R^T, R X_0, R G) = R X_l(A, X_0, G) for orthogonal R (Hardt and Price, Lemma 4.10: what Theorem 4.9 rests
    on). Fails where the signs of a QR factorisation are those of LAPACK, or by the largest entry."""
    rng, p = np.random.default_rng(seed), min(p, d)
    v = np.linalg.qr(rng.standard_normal((d, d)))[0]
    a = (v * rng.uniform(1, 3, d)) @ v.T  # Y has no singular value below 1 - ||G||: no ill-conditioned QR by chance
    turn, start = np.linalg.qr(rng.standard_normal((d, d)))[0], random_orthonormal(d, p, rng)
    fixed = np.array([scaled((d, p), int(rng.integers(1 << 30)), 0.5) for _ in range(3)])
    one = driven(a, NoiseOracle(noise=lambda step, block, product: fixed[step - 1]), 3, start, k=1)
    other = driven(
        turn @ a @ turn.T, NoiseOracle(noise=lambda step, block, product: turn @ fixed[step - 1]), 3, turn @ start, k=1
    )
    for x, y in zip(one[1:], other[1:], strict=True):
        np.testing.assert_allclose(y, turn @ x, atol=1e-11)


def noise_levels(a: Block, block_of: Callable[[Block], float], fixed: np.ndarray, start: Block) -> list[Block]:
    """Iterates with noise of a size that follows the block."""
    return driven(a, NoiseOracle(noise=lambda step, x, product: block_of(x) * fixed[step - 1]), 3, start, k=1)


def test_a_noise_level_that_follows_the_largest_entry_does_not_turn_and_a_public_cap_does() -> None:
    """ERR-2. max |X_ij| changes with the coordinates, so the printed proof of Theorem 4.9 does not apply; the cap of
    ``coherence`` makes the level a constant, and equivariance comes back. Mutant: a cap that is ignored."""
    rng = np.random.default_rng(0)
    d, p = 400, 2
    v = random_orthonormal(d, d, rng)
    a = (v * np.linspace(3, 0.1, d)) @ v.T
    signs = np.where(rng.random(d) < 0.5, -1.0, 1.0)
    turn = v @ (signs[:, None] * v.T)  # flips eigenvectors: A stays as it is
    np.testing.assert_allclose(turn @ a @ turn.T, a, atol=1e-12)
    start, fixed = random_orthonormal(d, p, rng), 0.05 * rng.standard_normal((4, d, p))
    free, capped = (make_relation("symmetric_entry", clip_norm=1.0, coherence=mu) for mu in (None, 8.0))
    apart = {}
    for name, relation in (("free", free), ("capped", capped)):
        one = noise_levels(a, relation.sensitivity, fixed, start)[-1]
        turned = np.array([turn @ g for g in fixed])
        other = noise_levels(a, relation.sensitivity, turned, turn @ start)[-1]
        apart[name] = float(np.abs(other - turn @ one).max())
    assert apart["capped"] < 1e-12 < 1e-5 < apart["free"]


@pytest.mark.slow
def test_entries_of_iterates_stay_below_the_coherence_bound() -> None:
    """max |X_l| <= 4 sqrt(mu ln(d) / d) over 30 runs of 12 noisy steps in an incoherent basis (Theorem 4.9: each fails
    with probability 1 / d); the largest seen is above a third of it, and the identity basis (mu = d) leaves it. Mutant:
    the bound without its 4."""
    d, p = 512, 3
    hadamard = np.ones((1, 1))
    while len(hadamard) < d:
        hadamard = np.kron(hadamard, [[1.0, 1.0], [1.0, -1.0]])
    v = hadamard / np.sqrt(d)
    values = np.concatenate([[3.0], np.full(d - 1, 1.0)])
    largest = {"flat": 0.0, "spiky": 0.0}
    for seed in range(10):
        rng = np.random.default_rng(seed)
        start, fixed = random_orthonormal(d, p, rng), 0.02 * rng.standard_normal((12, d, p))
        oracle = NoiseOracle(noise=lambda step, x, product, fixed=fixed: fixed[step - 1])
        for name, a in (("flat", (v * values) @ v.T), ("spiky", np.diag(values))):
            bases = driven(a, oracle, 12, start, k=1)
            largest[name] = max(largest[name], *(float(np.abs(x).max()) for x in bases))
    bound = coherence_linf_bound(1.0, d, p=p, releases=12).value
    assert bound / 4 < largest["flat"] <= bound < largest["spiky"]


@pytest.mark.parametrize("rows", [500, 8000])
def test_the_noise_of_a_stream_is_that_of_its_blocks(rows: int) -> None:
    """X_l = orth(A X_{l-1} + G_l) with G_l = (A_l - A) X_{l-1}: the streaming method is the noisy one with this noise,
    and ||U^T G|| < ||G||. Mutants: the sum of the block instead of its mean; the basis of the block before."""
    a, v = matrix(3)
    data = np.random.default_rng(0).standard_normal((3 * rows, D)) @ (v * np.sqrt(VALUES)).T
    streaming = StreamPower(target_rank=K, iteration_rank=P, block_rows=rows)
    state = streaming.init(D, rng=generator(0, "start"))
    blocks, noises = [state.basis], []
    for part in np.split(data, 3):
        noises.append(block_noise(part, state.basis, lambda x: a @ x))
        state, _ = streaming.update(state, part)
        blocks.append(state.basis)
    oracle = NoiseOracle(noise=lambda step, block, product: noises[step - 1], truth=v[:, :K])
    for mine, theirs in zip(driven(a, oracle, 3, blocks[0]), blocks, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-9)
    assert all(norms.inside < norms.whole for norms in oracle.trace)
    with pytest.raises(BadInputError, match="rows of 40 columns"):
        block_noise(data[:0], blocks[0], lambda x: a @ x)


@pytest.mark.slow
def test_the_noise_of_a_block_falls_as_the_root_of_its_rows() -> None:
    """16 times the rows, a quarter of both norms (20 blocks each: the ratio is known to 5 %). Mutant: G not divided."""
    a, v = matrix(3)
    block, rng, means = random_orthonormal(D, P, generator(5)), np.random.default_rng(1), []
    for rows in (500, 8000):
        parts = [rng.standard_normal((rows, D)) @ (v * np.sqrt(VALUES)).T for _ in range(20)]
        norms = [noise_norms(1, block_noise(part, block, lambda x: a @ x), v[:, :K]) for part in parts]
        means.append(np.mean([(n.whole, n.inside) for n in norms], axis=0))
    np.testing.assert_allclose(means[0] / means[1], 4, rtol=0.25)
