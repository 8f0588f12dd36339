"""Random columns beside known ones: what a warm start cannot have missed
(npmdask.theory.certificates.random_start.largest_missed).

Known columns W (of an earlier run) may be orthogonal to an eigenvector of these data, and stay so for ever. So the last
r columns of a block that starts from W are random, Omega, and they are multiplied by A in every step. Y_l G_l is then
A^l Omega without what W, and pairs that are settled, hold of it: Y (d x r) is orthonormal, and G (r x r), the product
of the R factors, says what became of the amplitude of every direction.
"""

from __future__ import annotations

import math
import sys

import numpy as np

from npmdask.numerics.subspaces import Block, orth
from npmdask.theory.certificates.random_start import largest_missed

MISSED = 0.01  # share of starts of which less is true
OUTSIDE = 0.1  # a direction of Y of which no more than this is outside of the pairs found says nothing of others
Growth = tuple[np.ndarray, float]  # G is the first times exp(the second): in a few hundred steps it leaves float64


def empty_growth() -> np.ndarray:
    """Of a run without a warm start."""
    return np.zeros((0, 0))


def started(start: Block, p: int, r: int, rng: np.random.Generator, against: Block | None) -> tuple[Block, Growth]:
    """The orthonormal block that ``start`` (at most p - r columns) begins, its last columns random, and their growth.

    A start of p columns has brought its own random ones.
    """
    more = rng.standard_normal((len(start), p - start.shape[1]))
    whole = np.concatenate([start, more], axis=1)
    block = orth(whole, rng, against=against)
    return block, scaled(block[:, p - r :].T @ whole[:, p - r :], 0.0)


def scaled(growth: np.ndarray, log: float) -> Growth:
    """``growth`` exp(``log``) with entries of moderate size."""
    size = float(np.abs(growth).max(initial=0.0))
    return (growth / size, log + math.log(size)) if size > 0 else (growth, log)


def missed(chain: Block, image: Block, vectors: Block, products: Block, growth: Growth, degree: int) -> float:
    """Bound of |mu| of every eigenvector that neither W nor the pairs found (``vectors``, ``products``) hold.

    ``image``: A Y, without what W holds of it. Of Y counts what is outside of the pairs found, as they may have come
    from Y themselves.
    """
    inside = vectors.T @ chain
    squares, turn = np.linalg.eigh(np.eye(chain.shape[1]) - inside.T @ inside)
    turn = turn[:, squares > OUTSIDE**2] / np.sqrt(squares[squares > OUTSIDE**2])
    if not turn.shape[1]:
        return sys.float_info.max  # plain JSON knows no infinity
    inside = inside @ turn
    q, aq = chain @ turn - vectors @ inside, image @ turn - products @ inside
    aq -= vectors @ (vectors.T @ aq)
    square = q.T @ aq
    theta, rotation = np.linalg.eigh((square + square.T) / 2)
    residual = aq @ rotation - (q @ rotation) * theta
    with np.errstate(divide="ignore"):
        held = np.log(np.linalg.svd(np.linalg.pinv(growth[0]) @ turn, compute_uv=False)) - growth[1]
    return largest_missed(theta, residual.T @ residual, held, degree, MISSED)
