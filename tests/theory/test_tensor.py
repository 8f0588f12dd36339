"""What is proved of tensor power methods, and the tensor for which the printed conditions are not enough."""

from __future__ import annotations

import numpy as np
import pytest

from npmdask.errors import BadInputError
from npmdask.theory import tensor as theory


def test_restarts_and_iterations_grow_as_they_should() -> None:
    assert theory.restarts(1) == theory.restarts(2) == 2
    assert theory.restarts(20) == 60 and theory.restarts(20, constant=2) == 120
    assert theory.restarts(2, least=20) == theory.restarts(20)
    assert theory.iterations(1.0, 100, 1e-9) == 26
    assert theory.iterations(4.0, 100, 1e-9) - theory.iterations(1.0, 100, 1e-9) == 1
    assert theory.iterations(1.0, 2, 100.0) == 1


def test_noise_that_is_tolerated() -> None:
    noise = {name: [theory.tolerated_noise(name, 2.0, d=d, k=4).value for d in (100, 400)] for name in theory.NOISES}
    assert noise["adversarial"] == pytest.approx([2 / 100, 2 / 400])
    assert noise["round"] == pytest.approx([2 / 10, 2 / 20])
    assert noise["weakly correlated"] == pytest.approx([2 / 10, 2 / 20])  # not 2 / sqrt(4), as printed
    assert not theory.tolerated_noise("weakly correlated", 2.0, d=100, k=4).valid
    full = theory.tolerated_noise("weakly correlated", 2.0, d=100, k=100)
    assert full.valid and full.value == pytest.approx(0.2)
    assert theory.tolerated_noise("round", 1.0, d=100, k=100, constants=(5.0, 1.0, 5.0)).value == pytest.approx(0.1)
    with pytest.raises(BadInputError, match="adversarial"):
        theory.tolerated_noise("adversary", 1.0, d=3, k=1)


def test_samples_follow_the_larger_of_the_two_terms() -> None:
    few, many = (theory.sample_complexity(1.0, 1.0, e, d=100, k=4) for e in (0.4, 0.01))
    assert few.value == 100**2 and few.valid
    assert many.value == pytest.approx(100 / 0.01**2)
    assert not theory.sample_complexity(1.0, 1.0, 0.6, d=100, k=4).valid
    assert theory.sample_complexity(2.0, 1.0, 0.4, d=100, k=4, constants=(3.0, 1.0)).value == 12 * 100**2


def test_privacy_does_not_depend_on_the_dimension_but_in_a_logarithm() -> None:
    small, large = (theory.private_epsilon(1.0, 1.0, d=d, k=3, delta=1e-6, lambda_max=2.0) for d in (100, 10**4))
    assert small == pytest.approx(9 * np.log(2e8))
    assert large - small == pytest.approx(9 * np.log(100))
    with pytest.raises(BadInputError, match="delta"):
        theory.private_epsilon(1.0, 1.0, d=5, k=3, delta=0.0, lambda_max=2.0)


def test_incoherence_is_between_one_and_d_over_k() -> None:
    hadamard = np.array([[1.0, 1.0], [1.0, -1.0]])
    for _ in range(3):
        hadamard = np.kron(hadamard, [[1.0, 1.0], [1.0, -1.0]])
    assert theory.incoherence(hadamard[:, :3] / 4) == pytest.approx(1)
    assert theory.incoherence(np.eye(16)[:, :4]) == 4


def _recovered(d: int, size: float, seed: int) -> float:
    """|cos| of v and the best of 10 restarts, after 40 products of the tensor that hides v."""
    rng = np.random.default_rng([d, seed])
    v, w = np.linalg.qr(rng.standard_normal((d, 2)))[0].T
    block = rng.standard_normal((d, 10))
    block /= np.linalg.norm(block, axis=0)
    for _ in range(40):
        product = theory.hiding_product(block, v, w, size)
        scores = np.einsum("dl,dl->l", product, block)
        best = block[:, scores.argmax()]
        block = product / np.linalg.norm(product, axis=0)
    return float(abs(v @ best))


@pytest.mark.slow
def test_a_noise_that_the_printed_theorem_allows_hides_the_component() -> None:
    """Every printed condition holds with C_1 = 0.3 for k = 1 in each dimension; the added one says where it fails."""
    few, many = ([_recovered(d, 0.3, seed) for seed in range(3)] for d in (30, 20000))
    assert min(few) > 0.9 and max(many) < 0.5
    assert min(_recovered(20000, 1.0 / 20000**0.5, seed) for seed in range(3)) > 0.9
    assert not theory.tolerated_noise("weakly correlated", 1.0, d=20000, k=1, constants=(1, 0.3, 1)).valid


def test_the_hiding_tensor_is_what_it_is_said_to_be() -> None:
    rng = np.random.default_rng(3)
    v, w = np.linalg.qr(rng.standard_normal((6, 2)))[0].T
    rest = np.eye(6) - np.outer(v, v)
    noise = 0.4 / 3 * sum(np.einsum(f"i,jk->{out}", w, rest) for out in ("ijk", "jik", "jki"))
    block = rng.standard_normal((6, 9))
    block /= np.linalg.norm(block, axis=0)
    dense = np.einsum("i,j,k->ijk", v, v, v) + noise
    product = theory.hiding_product(block, v, w, 0.4)
    np.testing.assert_allclose(product, np.einsum("ijk,jl,kl->il", dense, block, block), atol=1e-14)
    assert np.abs(np.einsum("ijk,i->jk", noise, v)).max() < 1e-15
    assert np.linalg.norm(product - np.outer(v, (v @ block) ** 2), axis=0).max() <= 0.4
