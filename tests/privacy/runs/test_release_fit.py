"""What all releases together say: never worse than the last one where it is clear, far better where it is not."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest

from npmdask.core.algorithms import Result
from npmdask.core.numerics.subspaces import Block, random_orthonormal
from npmdask.privacy.matrix_release import released_arrays
from npmdask.privacy.noisy_products import posterior_weights, vectors_of
from npmdask.privacy.private_power import PrivateAlternating, PrivatePower, PrivateState, value_stddevs

RUNS = 12


@dataclass(frozen=True)
class Level:
    """Noise of one size."""

    stddev: float

    def noise_stddev(self, block: Block) -> float:
        return self.stddev


@cache
def runs(
    spectrum: tuple[float, ...], stddev: float, k: int, p: int, releases: int
) -> list[tuple[PrivateState, Result]]:
    """Private runs on the diagonal matrix of a ``spectrum``: the eigenvectors are the axes."""
    algorithm, found = PrivatePower(target_rank=k, iteration_rank=p, releases=releases, noise=Level(stddev)), []
    for seed in range(RUNS):
        rng = np.random.default_rng(seed)
        state = algorithm.init(len(spectrum), rng=rng)
        for _ in range(releases):
            product = np.array(spectrum)[:, None] * algorithm.query(state).block
            state, _ = algorithm.update(state, product + stddev * rng.standard_normal(product.shape))
        found.append((state, algorithm.finalize(state)))
    return found


def lost(vectors: Block, spectrum: tuple[float, ...]) -> float:
    """The share of what the exact eigenvectors capture that is not captured."""
    return float(1 - np.sum(np.array(spectrum)[:, None] * vectors**2) / np.sum(spectrum[: vectors.shape[1]]))


def lost_by(spectrum: tuple[float, ...], stddev: float, k: int, p: int, releases: int) -> tuple[float, float]:
    """Means over the runs: the answer, and the last product alone."""
    found = runs(spectrum, stddev, k, p, releases)
    alone = [np.linalg.svd(state.products[:, -p:])[0][:, :k] for state, _ in found]
    ours = [lost(result.vectors, spectrum) for _, result in found]
    return float(np.mean(ours)), float(np.mean([lost(vectors, spectrum) for vectors in alone]))


STRONG = (1.0, 0.9, 0.8, 0.7) + 26 * (0.01,)
SLOW = tuple(1 / i**0.5 for i in range(1, 61))


@pytest.mark.parametrize("stddev", [3e-4, 3e-3])
@pytest.mark.parametrize("k", [2, 4])
def test_nearly_equal_blocks_do_not_let_noise_in(k: int, stddev: float) -> None:
    """Mutants: the ridge regression alone (step 1), up to 13 times as bad as the last product here; with k = 2, step 2
    from k vectors instead of p: 6 times."""
    ours, alone = lost_by(STRONG, stddev, k, 4, 3)
    assert ours < 0.55 * alone


def test_noise_averages_out_over_the_releases() -> None:
    """Mutant: the last product, or its best of two."""
    ours, alone = lost_by((1.0, 0.9) + 58 * (0.01,), 0.02, 2, 4, 6)
    assert ours < 0.4 * alone


def test_first_release_does_not_outweigh_the_others_where_noise_is_small() -> None:
    """The eigenvalues fall slowly. Mutant: gains of 1, the singular vectors of all products side by side."""
    ours, alone = lost_by(SLOW, 1e-3, 4, 8, 4)
    side = np.mean([lost(np.linalg.svd(state.products)[0][:, :4], SLOW) for state, _ in runs(SLOW, 1e-3, 4, 8, 4)])
    assert ours < 1.02 * alone < 0.5 * side


def test_deviations_of_values_are_those_of_the_values() -> None:
    """v^T A v of the released vectors, in units of what is said. Mutants: deviations of half or twice the size."""
    off = []
    for state, result in runs(STRONG, 3e-3, 4, 4, 3):
        true = np.array(STRONG) @ result.vectors**2
        off.extend((result.values - true) / value_stddevs(state, 4, result.vectors))
    spread = float(np.sqrt(np.mean(np.square(off))))
    assert 0.75 < spread < 1.33 and abs(np.mean(off)) < 0.5


def test_posterior_is_that_of_the_normal_equations() -> None:
    """Row by row, by inverting what the code never inverts."""
    rng = np.random.default_rng(0)
    seen, made, root = rng.standard_normal((5, 8)), rng.standard_normal((7, 8)), rng.standard_normal((5, 5))
    prior, variance = root @ root.T + 0.1 * np.eye(5), 0.3
    wanted = made @ seen.T @ np.linalg.inv(seen @ seen.T + variance * np.linalg.inv(prior))
    np.testing.assert_allclose(made @ posterior_weights(seen, variance, prior), wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("spectrum", [SLOW[:20], (3.0, 2.0, 1.0) + 17 * (0.0,)])
def test_without_noise_the_vectors_are_exact(spectrum: tuple[float, ...]) -> None:
    """The blocks span everything. Mutant: a ridge that is left where there is no noise."""
    rng = np.random.default_rng(1)
    blocks = np.concatenate([random_orthonormal(20, 10, rng) for _ in range(3)], axis=1)
    vectors = vectors_of("fit", blocks, np.array(spectrum)[:, None] * blocks, np.zeros(3), 10, 3)
    np.testing.assert_allclose(np.abs(vectors), np.eye(20)[:, :3], atol=1e-5)


@pytest.mark.parametrize("answer", ["all", "last", "fit"])
@pytest.mark.parametrize("stddev", [0.0, 1.0])
@pytest.mark.parametrize("scale", [0.0, 1e-100, 1e100])
def test_whatever_is_released_the_vectors_are_orthonormal(scale: float, stddev: float, answer: str) -> None:
    """Also if all blocks are the same, and nothing was released but zeros."""
    block = random_orthonormal(20, 4, np.random.default_rng(2))
    blocks, products = np.tile(block, 3), scale * np.random.default_rng(3).standard_normal((20, 12))
    vectors = vectors_of(answer, blocks, products, np.full(3, scale * stddev), 4, 3)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(3), atol=1e-12)


def test_the_factors_are_the_block_that_was_multiplied_and_its_product() -> None:
    """A ~ Y X^T with Y = A X_{L-1} + G, X_{L-1} the block that was asked for. Mutants: X_L, X_{L-2}, an earlier Y."""
    spectrum, p, releases = np.array(STRONG), 6, 4
    algorithm = PrivatePower(target_rank=2, iteration_rank=p, releases=releases, noise=Level(0.0))
    state, asked = algorithm.init(len(spectrum), rng=np.random.default_rng(0)), []
    for _ in range(releases):
        asked.append(algorithm.query(state).block)
        state, _ = algorithm.update(state, spectrum[:, None] * asked[-1])
    arrays = released_arrays(state, algorithm.finalize(state), p, scale=0.5, root=False)
    np.testing.assert_allclose(arrays["factor_left"], asked[-1], atol=1e-14)
    np.testing.assert_allclose(arrays["factor_right"], 0.5 * spectrum[:, None] * asked[-1], atol=1e-14)
    assert np.abs(asked[-1] - asked[-2]).max() > 1e-3, "another block would be seen"


def test_the_factors_of_alternating_releases_are_the_last_left_block_and_its_product() -> None:
    """A ~ U (A^T U + G')^T with the same U: U is not the block that comes after the product, nor the one before."""
    rng = np.random.default_rng(1)
    matrix = rng.standard_normal((30, 20)) * 0.9 ** np.arange(20)
    algorithm = PrivateAlternating(target_rank=2, iteration_rank=4, releases=4, rows=30)
    state = algorithm.init(20, rng=rng)
    lefts = []
    for _ in range(4):
        query = algorithm.query(state)
        if query.transposed:
            lefts.append(query.block)
        state, _ = algorithm.update(state, (matrix.T if query.transposed else matrix) @ query.block)
    np.testing.assert_array_equal(state.left, lefts[-1])
    np.testing.assert_allclose(state.product, matrix.T @ state.left, atol=1e-13)
    assert np.abs(lefts[0] - lefts[1]).max() > 1e-3
