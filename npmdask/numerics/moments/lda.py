"""Subtract what the Dirichlet prior of LDA adds to raw moments of words.

With ``E2 = E[x1 x2^T]``, ``E3 = E[x1 (x) x2 (x) x3]`` and ``M1 = E[x1]`` (Anandkumar et al. 2014, theorem 3.5):

    M2 = E2 - a0 / (a0 + 1) M1 M1^T
    M3 = E3 - a0 / (a0 + 2) sum of E2 (x) M1 in its three orders + 2 a0^2 / ((a0 + 1)(a0 + 2)) M1 (x) M1 (x) M1

``alpha0 = 0`` is the model of a single topic: nothing is taken off. All of it is written for any coordinates: of
words, or white ones.
"""

from __future__ import annotations

import numpy as np

from npmdask.numerics.subspaces import Block


def pair_share(alpha0: float) -> float:
    return alpha0 / (alpha0 + 1)


def triple_share(alpha0: float) -> float:
    return alpha0 / (alpha0 + 2)


def cube_share(alpha0: float) -> float:
    return 2 * alpha0**2 / ((alpha0 + 1) * (alpha0 + 2))


def pairs(second: Block, mean: np.ndarray, block: Block, alpha0: float) -> Block:
    """``M2 U`` (d x L) from ``second`` = E2 U, ``mean`` = M1 and ``block`` = U."""
    product: Block = second - pair_share(alpha0) * np.outer(mean, mean @ block)
    return product


def triples(third: Block, second: Block, mean: np.ndarray, block: Block, alpha0: float) -> Block:
    """``M3(I, u, u)`` for every column u of ``block`` (d x L) from E3(I, u, u) and E2 u."""
    along = mean @ block
    squares = np.einsum("dl,dl->l", block, second)
    mixed = 2 * along * second + np.outer(mean, squares)
    product: Block = third - triple_share(alpha0) * mixed + cube_share(alpha0) * np.outer(mean, along**2)
    return product


def cube(third: np.ndarray, second: Block, mean: np.ndarray, alpha0: float) -> np.ndarray:
    """M3 (m x m x m) from E3, E2 (m x m) and M1 (m), all of them held."""
    mixed = in_three_orders(second[:, :, None] * mean)
    alone = mean[:, None, None] * mean[:, None] * mean
    whole: np.ndarray = third - triple_share(alpha0) * mixed + cube_share(alpha0) * alone
    return whole


def in_three_orders(tensor: np.ndarray) -> np.ndarray:
    """``S_abc + S_acb + S_bca`` of an S that is symmetric in its first two indices: symmetric in all three."""
    return tensor + tensor.transpose(0, 2, 1) + tensor.transpose(2, 0, 1)
