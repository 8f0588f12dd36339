"""What the tensor power methods share: starts, deflation that never touches the tensor, unit columns.

The order of a tensor is 3 (moments, topics) or 4 (independent components). ``T(I, u, u)`` has the deflated part
``sum_r weight_r (v_r^T u)^2 v_r``: O(k d L) for L columns, so the stored tensor is never rewritten (Wang and
Anandkumar 2016, Algorithm 1, line 6, kept implicit).
"""

from __future__ import annotations

import numpy as np

from npmdask.numerics.random import generator
from npmdask.numerics.subspaces import Block


def random_units(d: int, count: int, *, seed: int, place: int) -> Block:
    """``count`` directions (d x count), uniform on the sphere, a function of the seed and the place alone."""
    return unit_columns(generator(seed, "tensor starts", place).standard_normal((d, count)))


def unit_columns(block: Block, instead: Block | None = None) -> Block:
    """The columns over their norms; a column of zeros stays what it is, or is the column of ``instead``."""
    largest = np.abs(block).max(axis=0, initial=0.0)
    scaled = block / np.where(largest > 0, largest, 1.0)  # the square of what is small must not vanish
    norms = np.linalg.norm(scaled, axis=0)
    units: Block = np.ascontiguousarray(scaled / np.where(norms > 0, norms, 1.0))
    return units if instead is None else np.where(norms > 0, units, instead)


def deflated(product: Block, block: Block, vectors: Block, weights: np.ndarray, order: int = 3) -> Block:
    """``T(I, u, ...) - sum_r weight_r (v_r^T u)^(order - 1) v_r`` for every column u of the block (d x L)."""
    if vectors.shape[1] == 0:
        return product
    rest: Block = product - vectors @ (weights[:, None] * (vectors.T @ block) ** (order - 1))
    return rest


def scores_of(product: Block, block: Block) -> np.ndarray:
    """``T(u, ..., u)`` (L) from ``T(I, u, ...)``: free once the product is known."""
    scores: np.ndarray = np.einsum("dl,dl->l", product, block)
    return scores
