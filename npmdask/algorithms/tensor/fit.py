"""A sum of rank-one tensors held against the tensor itself, from products that were made anyway.

For unit vectors v_i with products ``T(I, v_i, ..., v_i)`` the weights of least squares, what is left of the tensor at
every v_i, and the norm of what is left, cost no pass. All v_i are stationary points of
``||T - sum_i w_i v_i^p||`` exactly when every residual is zero; where they are orthogonal, the residual of v_i is
``T(I, v_i, v_i) - w_i v_i``.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from npmdask.numerics.subspaces import Block

# E_p: the ground state of the spherical p-spin model (Auffinger, Ben Arous and Cerny 2013), by order p.
GROUND_STATES = {3: 1.6573, 4: 1.7942}
MARGIN = 1.15  # over what a Gaussian tensor of the same norm would give: none of 300 simulated ones had more
SAME = 0.9  # two directions of a larger |cosine| are one component
DOUBLE_EPS = float(np.finfo(np.float64).eps)
UNRESOLVED = 64 * DOUBLE_EPS  # of ||T||^2: a difference of squares that is smaller is rounding


class Fit(NamedTuple):
    """``weights`` (m), ``rest`` (d x m): what the other components and its own leave of the product of each.

    ``norms`` (m): of the columns of the rest; ``explained``: ||T||^2 - ||T - sum_i w_i v_i^p||^2.
    """

    weights: np.ndarray
    rest: Block
    norms: np.ndarray
    explained: float


def fitted(vectors: Block, products: Block, order: int, weights: np.ndarray | None = None) -> Fit:
    """The fit of unit ``vectors`` (d x m) with ``products`` T(I, v, ..., v); by least squares unless weights are given.

    Vectors that coincide share their weight: the least-squares solution of least norm.
    """
    cosines = vectors.T @ vectors
    scores = np.einsum("dm,dm->m", vectors, products)
    overlap = cosines**order
    if weights is None:
        weights = np.linalg.lstsq(overlap, scores, rcond=1e-10)[0] if len(scores) else scores
    rest = products - vectors @ (weights[:, None] * cosines ** (order - 1))
    explained = float(2 * weights @ scores - weights @ overlap @ weights)
    return Fit(weights, rest, np.linalg.norm(rest, axis=0), explained)


def noise_score(norm: float, d: int, order: int) -> float:
    """The largest |T(u, ..., u)| over unit u of a symmetric Gaussian tensor of Frobenius norm ``norm``.

    Every T(u, ..., u) of a Gaussian tensor that no rotation changes has the same variance, the expected ||T||^2 over
    d (d + 1) ... (d + p - 1) / p!; the largest has sqrt(d) E_p standard deviations (as d grows). Measured over d = 2 to
    100: the mean of the largest is 0.7 to 0.99 of this for p = 3, 0.7 to 0.96 for p = 4, its relative standard
    deviation falls from 0.15 to 0.02. No |T(u, ..., u)| exceeds the norm itself.
    """
    variance = math.factorial(order) / math.prod(d + i for i in range(order))
    return norm * min(GROUND_STATES[order] * math.sqrt(d * variance), 1.0)


def unbiased(left: float, found: int, d: int, order: int) -> float:
    """The norm that noise had before ``found`` components were fitted: each takes d of its degrees of freedom."""
    every = math.comb(d + order - 1, order)
    return left * math.sqrt(every / max(every - found * d, every / 4))


def like_noise(weights: np.ndarray, left: float, d: int, order: int, margin: float) -> np.ndarray:
    """Which of the components (m, weights by any sign) may be noise, where ``left`` is the norm of what none explains.

    From the weakest on, as long as each has no more than the largest score of a Gaussian tensor as large as what is
    left together with it and those before it. In few dimensions a rank-one tensor explains so much of any tensor that
    all can pass; then they are none if they explain more together than that many would of noise.
    """
    sizes = np.abs(weights)
    rising = np.argsort(sizes, kind="stable")
    norms = np.sqrt(left**2 + np.cumsum(sizes[rising] ** 2))
    ratio = noise_score(1.0, d, order)
    passed = np.cumprod(sizes[rising] <= margin * ratio * norms).astype(bool)
    count = int(passed.sum())
    if count and left**2 < 0.5 * max(1 - ratio**2, 0.1) ** count * norms[count - 1] ** 2:
        count = 0
    noise = np.zeros(len(sizes), dtype=bool)
    noise[rising[:count]] = True
    return noise


def norm_from(products: Block, order: int) -> float:
    """The Frobenius norm of a symmetric tensor from its ``products`` (d x L, L >= 2) with uniform unit vectors.

    For p = 3 the mean of ||T(I, u, u)||^2 is (2 ||T||^2 + ||tau||^2) / (d (d + 2)) with tau_i = sum_j T_ijj, and the
    mean of T(I, u, u) is tau / d: unbiased in the square. For p = 4 the part of the traces is not taken off; it is
    smaller by a factor of d in noise.
    """
    d, count = products.shape
    ways = math.prod(d + 2 * i for i in range(order - 1))
    size = float(np.mean(np.einsum("dl,dl->l", products, products)))
    mean = products.mean(axis=1)
    traces = max((count * float(mean @ mean) - size) / (count - 1), 0.0) * d * d if order == 3 else 0.0
    return math.sqrt(max(ways * size - traces, 0.0) / math.factorial(order - 1))
