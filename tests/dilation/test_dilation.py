"""The dilation [[0, B], [B^T, 0]] of a matrix, against what is done instead: B^T B, and products from both sides."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import npmdask
from npmdask import singular_triplets
from npmdask.core.algorithms import PowerMethod
from npmdask.core.execution.executor import Threads
from npmdask.core.numerics.random import generator
from npmdask.core.numerics.subspaces import Block, max_sin_theta, random_orthonormal
from npmdask.core.storage.source import open_source
from npmdask.dilation.operator import Dilation
from npmdask.privacy.neighbors import make_relation
from npmdask.privacy.private_power import PrivateAlternating
from tests.conftest import planted

M, N, K = 50, 30, 3
SPECTRUM = np.array([5.0, 4.0, 3.0, 1.0, 0.5])


def times(b: Block, block: Block) -> Block:
    """The product with the dilation of ``b``, by its operator."""
    return Threads(1).run_pass(Dilation(reader=open_source(b).reader), block, lambda record: None)[0]


@pytest.mark.slow
def test_the_dilation_has_every_singular_value_twice_and_2k_pairs_give_the_k_triplets() -> None:
    """ERR-3. Signed values come in pairs, so the gap of k lies behind the 2k-th; both ways give the same triplets.
    Mutant: eigenvalues by size without their signs, of which two of a pair cannot be told apart."""
    b, u, v = planted(M, N, SPECTRUM)
    found = singular_triplets(b, K)
    np.testing.assert_allclose(np.sort(found.solution.values)[::-1], [5, 4, 3, -3, -4, -5], atol=1e-9)
    triplets = npmdask.top_k(b, K, kind="matrix")
    np.testing.assert_allclose(triplets.values, SPECTRUM[:K], rtol=1e-10)
    np.testing.assert_allclose(found.values, SPECTRUM[:K], rtol=1e-10)
    assert max_sin_theta(found.right, triplets.basis) < 1e-7 and max_sin_theta(found.left, u[:, :K]) < 1e-7
    assert max_sin_theta(found.right, v[:, :K]) < 1e-7


def test_products_from_both_sides_are_the_power_method_on_the_dilation() -> None:
    """From a start on one side, whatever the noise, with half of the columns; two releases a sweep. Mutants: A^T A V in
    one release, the sides in the other order, noise that is not turned with its side."""
    b, _, _ = planted(M, N, SPECTRUM)
    p = K + 2
    method = PrivateAlternating(target_rank=K, iteration_rank=p, releases=6, rows=M)
    state = method.init(N, rng=generator(1, "start"))
    whole = PowerMethod(target_rank=K, iteration_rank=p)
    other = whole.init(M + N, rng=generator(0, "start"))
    other = replace(other, basis=np.concatenate([np.zeros((M, p)), state.right]))
    for step in range(6):
        query = method.query(state)
        product = (b.T if query.transposed else b) @ query.block
        noise = 0.05 * generator(2, "noise", step).standard_normal(product.shape)
        state, _ = method.update(state, product + noise)
        sided = np.concatenate([np.zeros((M, p)), noise] if query.transposed else [noise, np.zeros((N, p))])
        other, _ = whole.update(other, times(b, whole.query(other).block) + sided)
        mine = state.right if query.transposed else state.left
        np.testing.assert_allclose(other.basis[M:] if query.transposed else other.basis[:M], mine, atol=1e-10)
    found = method.finalize(state)
    np.testing.assert_allclose(found.values, SPECTRUM[:K], atol=0.5)


def test_one_entry_of_the_matrix_is_two_of_the_dilation() -> None:
    """B_ij moves rows i and m + j: up to sqrt(2) of what the same entry moves in a product with B alone."""
    block = random_orthonormal(M + N, 4, np.random.default_rng(0))
    change = np.zeros((M, N))
    change[3, 7] = 1.0
    moved = float(np.linalg.norm(times(change, block)))
    assert moved == pytest.approx(float(np.hypot(*np.linalg.norm(block[[3, M + 7]], axis=1))))
    rows = np.linalg.norm(block, axis=1)
    worst = max(float(np.hypot(rows[i], rows[M + j])) for i in range(M) for j in range(N))
    assert worst <= make_relation("symmetric_entry", clip_norm=1.0).sensitivity(block)
    assert make_relation("entry", clip_norm=1.0).sensitivity(block) < worst


@pytest.mark.parametrize("seed", range(5))
def test_of_equal_values_as_many_triplets_as_asked_for(seed: int) -> None:
    """Of 2 k pairs of one size more than k may be negative. Mutant: positive ones alone, and zeros in place of the
    others."""
    u, v, _ = planted(40, 30, np.ones(20), seed=seed)
    del v
    found = singular_triplets(u, 3, seed=seed)
    np.testing.assert_allclose(found.values, 1.0, rtol=1e-9)
    np.testing.assert_allclose(u @ found.right, found.left, atol=1e-7)
