"""Noise on an orthogonal tensor, by the three models of Wang and Anandkumar 2016, Section 2; and what recovers it.

All weights are 1. Algorithms start uniformly on the sphere and so see no basis: the components V are the first k unit
vectors, and contractions of structured noise cost O(k d). No tensor is formed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from benchmarks.tensor_revealed import RevealedTensor, symmetric_gaussian
from npmdask.core.numerics.random import generator
from npmdask.core.numerics.subspaces import Block
from npmdask.experiments.as_printed import robust_tensor_power
from npmdask.tensors.components import random_units, unit_columns

RESTARTS, ITERATIONS = 10, 12  # L and R of Algorithm 1, in all figures of noise
GROUND = 1.6569  # ||E||_op / sqrt(d) of a symmetric Gaussian tensor, d large: the ground state of the spherical 3-spin
NEAR = (
    0.9  # cosine at which a component counts as recovered: the error of the paper's bound is far below that of chance
)
COUPLED, CENTRED = 0.75, 2.0  # of adversarial(), chosen once, on a scan at d = 64, where success is monotone
Contraction = Callable[[Block], Block]


def signal(k: int) -> Contraction:
    """T(I, u, u) of sum v_i^3, v_i the first k unit vectors."""

    def contracted(block: Block) -> Block:
        image = np.zeros_like(block)
        image[:k] = block[:k] ** 2
        return image

    return contracted


def weak(k: int, size: float) -> Contraction:
    """size sym(w x (I - V V^T)), w orthogonal to V: weakly correlated, Delta(v_i, ., .) = 0; operator norm = size."""

    def contracted(block: Block) -> Block:
        outside = block.copy()
        outside[:k] = 0
        image = 2 * block[k] * outside
        image[k] += (outside**2).sum(axis=0)
        return image * (size / 3)

    return contracted


def adversarial(d: int, size: float) -> Contraction:
    """The hardest noise that was found, k = 1, operator norm = size; with a = v^T u, b = w^T u, y the rest of u:

        Delta(u, u, u) ~ 3 b |y|^2 - b^3 - 3 COUPLED size a b^2 - 3 (CENTRED / (d size)) a |y|^2

    The first two terms send every start to w, as strongly as the norm allows, and hold it at -w. The third takes away
    from a^2 what it is as long as the iterate is near -w, the fourth what it is on average at the start.
    """
    terms = np.array([1.0, -1.0, -COUPLED * size, -CENTRED / (d * size)])
    to_w, at_w, coupled, centred = terms * size / _norm(tuple(terms.tolist()))

    def contracted(block: Block) -> Block:
        a, b, image = block[0], block[1], block.copy()
        image[:2] = 0
        rest = (image**2).sum(axis=0)
        image *= 2 * to_w * b + 2 * centred * a
        image[0] = coupled * b * b + centred * rest
        image[1] = to_w * rest + at_w * b * b + 2 * coupled * a * b
        return image

    return contracted


@lru_cache(maxsize=64)
def _norm(terms: tuple[float, float, float, float]) -> float:
    """Largest |3 t_0 b r^2 + t_1 b^3 + 3 t_2 a b^2 + 3 t_3 a r^2| over a^2 + b^2 + r^2 = 1."""
    theta, phi = np.meshgrid(np.linspace(0, np.pi, 181), np.linspace(0, np.pi, 181))
    a, b, r = np.cos(theta), np.sin(theta) * np.cos(phi), np.sin(theta) * np.sin(phi)
    cubic = 3 * terms[0] * b * r * r + terms[1] * b**3 + 3 * terms[2] * a * b * b + 3 * terms[3] * a * r * r
    return float(np.abs(cubic).max())


def gaussian(d: int, size: float, rng: np.random.Generator) -> Contraction:
    """A symmetric Gaussian tensor of operator norm about ``size`` (GROUND sqrt(d) stddev), drawn while it is asked."""
    tensor, stddev = RevealedTensor(d, rng), size / (GROUND * np.sqrt(d))
    return lambda block: stddev * tensor.contraction(block)


def noise(model: str, d: int, k: int, size: float, rng: np.random.Generator) -> Contraction:
    """``round``, ``weak`` or ``adversarial``."""
    if model == "round":
        return gaussian(d, size, rng)
    return weak(k, size) if model == "weak" else adversarial(d, size)


def components(contraction: Contraction, d: int, k: int, *, seed: int, restarts: int = RESTARTS) -> Block:
    """Algorithm 1 as printed: d x k."""

    def starts(place: int) -> Block:
        return random_units(d, restarts, seed=seed, place=place)

    return robust_tensor_power(contraction, k, ITERATIONS, starts)


def recovered(vectors: Block, k: int) -> bool:
    """Whether every one of the first k unit vectors is near one of the columns, its sign included."""
    return bool((vectors[:k].max(axis=1) >= NEAR).all())


def power_trial(model: str, d: int, k: int, size: float, seed: int) -> bool:
    """Whether Algorithm 1 recovers all k components; L grows like k log k."""
    extra, clean = noise(model, d, k, size, generator(seed, "tensor noise", model, d, k)), signal(k)
    restarts = RESTARTS + int(np.ceil(2 * k * np.log(k)))
    return recovered(components(lambda u: clean(u) + extra(u), d, k, seed=seed, restarts=restarts), k)


def whitening_trial(model: str, d: int, k: int, size: float, seed: int) -> bool:
    """Whether whitening recovers all k components without side information, by a dense tensor.

    M2 = T(I, I, theta) of a random direction, its k eigenvalues of largest size, W = U |D|^(-1/2), Algorithm 1 on
    T(W, W, W) (k x k x k), v = U |D|^(1/2) of what that finds. As many directions as Algorithm 1 has restarts; of those
    the one whose components have the largest sum of T(v, v, v).
    """
    rng = generator(seed, "whitening", model, d, k)
    tensor = dense(model, d, k, size, rng)
    best, answer = -np.inf, np.zeros((d, k))
    for direction in range(RESTARTS):
        theta = unit_columns(rng.standard_normal((d, 1)))
        values, vectors = np.linalg.eigh(contracted_once(tensor, theta[:, 0]))
        largest = np.argsort(-np.abs(values))[:k]
        roots, basis = np.sqrt(np.abs(values[largest])), vectors[:, largest]
        small = contracted_thrice(tensor, basis / roots)
        found = components(lambda u, t=small: np.einsum("abc,bl,cl->al", t, u, u), k, k, seed=1000 * seed + direction)
        candidates = unit_columns(basis @ (roots[:, None] * found))
        score = float(np.trace(contracted_thrice(tensor, candidates).diagonal(axis1=1, axis2=2)))
        best, answer = (score, candidates) if score > best else (best, answer)
    return recovered(answer, k)


def contracted_once(tensor: np.ndarray, theta: np.ndarray) -> np.ndarray:
    """T(I, I, theta)."""
    matrix: np.ndarray = tensor @ theta
    return matrix


def contracted_thrice(tensor: np.ndarray, block: Block) -> np.ndarray:
    """T(W, W, W)."""
    once = tensor @ block
    small: np.ndarray = np.einsum("abz,ax,by->xyz", once, block, block, optimize=True)
    return small


def dense(model: str, d: int, k: int, size: float, rng: np.random.Generator) -> np.ndarray:
    """Signal and noise as d x d x d numbers; ``round`` or ``weak``."""
    if model == "round":
        tensor = symmetric_gaussian(d, rng) * (size / (GROUND * np.sqrt(d)))
    else:
        outside = np.diag(np.arange(d) >= k) * (size / 3)
        tensor = np.zeros((d, d, d))
        tensor[k] += outside
        tensor[:, k] += outside
        tensor[:, :, k] += outside
    tensor[np.arange(k), np.arange(k), np.arange(k)] += 1
    return tensor
