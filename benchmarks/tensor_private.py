"""How much noise the first component survives: private tensor power method, and noise on the tensor itself.

The neighbouring relation is Definition 4.2 of Wang and Anandkumar 2016 (N7), sensitivities 6 max |u_i|^2 of
T(I, u, u), 6 max |u_i|^3 of T(u, u, u), 6 of the tensor in the Frobenius norm. A trial asks whether a noise is
survived; what epsilon that noise gives is arithmetic, so exact and printed calibration share their trials. Noise comes
from public seeds: right in size, private in no way.
"""

from __future__ import annotations

import math

import numpy as np

from benchmarks.tensor_noise import NEAR
from benchmarks.tensor_revealed import RevealedTensor
from npmdask.accounting.gdp import epsilon_for
from npmdask.core.numerics.random import generator
from npmdask.core.numerics.subspaces import Block
from npmdask.experiments.as_printed import private_tensor_power
from npmdask.tensors.components import scores_of, unit_columns

DELTA = 1e-6
RANK, RESTARTS, ITERATIONS = 2, 10, 10  # k, L, R
RELEASES = RANK * RESTARTS * (ITERATIONS + 1)  # K: of all rounds, of which only the first is looked at
SENSITIVITY = 6.0
WEIGHT = 2000.0  # lambda_1: what a change of one entry by 1 is to be seen against; lambda_2 = 0.7 of it
RATIOS = np.array([1.0, 0.7])


def flat(d: int) -> Block:
    """Orthonormal, incoherent with mu_0 = 1: columns 2 and 3 of a Hadamard matrix over sqrt(d); d a multiple of 4."""
    rows = np.arange(d)
    return np.stack([1.0 - 2 * (rows % 2), 1.0 - 2 * (rows // 2 % 2)], axis=1) / math.sqrt(d)


def private_trial(d: int, level: float, seed: int) -> bool:
    """Whether round 1 of Algorithm 3 ends near v_1; weights 1, noise of ``level`` per sensitivity."""
    rng = generator(seed, "private tensor trial", d)
    vectors = flat(d)
    start, nu = unit_columns(rng.standard_normal((d, RESTARTS))), level * SENSITIVITY
    found = private_tensor_power(lambda u: _image(vectors, u), 1, ITERATIONS, lambda _: start, nu, rng)
    return bool(vectors[:, 0] @ found[:, 0] >= NEAR)


def input_trial(d: int, level: float, seed: int) -> bool:
    """The same with one symmetric Gaussian tensor (Frobenius geometry) of ``level`` per sensitivity."""
    rng = generator(seed, "perturbed tensor trial", d)
    vectors, tensor = flat(d), RevealedTensor(d, rng)
    block = unit_columns(rng.standard_normal((d, RESTARTS)))
    for _ in range(ITERATIONS):
        block = unit_columns(_perturbed(vectors, block, tensor, level))
    scores = scores_of(_perturbed(vectors, block, tensor, level), block)
    return bool(vectors[:, 0] @ block[:, int(np.argmax(scores))] >= NEAR)


def _image(vectors: Block, block: Block) -> Block:
    image: Block = vectors @ (RATIOS[:, None] * (vectors.T @ block) ** 2)
    return image


def _perturbed(vectors: Block, block: Block, tensor: RevealedTensor, level: float) -> Block:
    return _image(vectors, block) + level * SENSITIVITY * tensor.contraction(block)


def exact_epsilon(level: float) -> float:
    """Of K releases with noise of ``level`` sensitivities (over lambda_1), by Gaussian differential privacy."""
    return epsilon_for(math.sqrt(RELEASES) / (level * WEIGHT), DELTA)


def printed_epsilon(level: float) -> float:
    """The epsilon for which Algorithm 3 as printed adds this noise."""
    share = math.sqrt(2 * math.log(1.25 * 2 * RELEASES / DELTA)) / (level * WEIGHT)
    return share * math.sqrt(RELEASES * (4 + math.log(2 / DELTA)))


def input_epsilon(level: float) -> float:
    """Of one release of the tensor."""
    return epsilon_for(1 / (level * WEIGHT), DELTA)
