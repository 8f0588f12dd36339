"""A small symmetric tensor, held, from one product with many vectors: polarisation.

``T(I, e_i, e_j) = (T(I, e_i + e_j, e_i + e_j) - T(I, e_i, e_i) - T(I, e_j, e_j)) / 2``, so that m (m + 1) / 2 columns
tell all of an m x m x m tensor that is only known by its contractions.
"""

from __future__ import annotations

import numpy as np

from npmdask.numerics.subspaces import Block


def polarising_block(m: int) -> Block:
    """Columns e_i and e_i + e_j, i < j (m x m (m + 1) / 2)."""
    i, j = np.triu_indices(m, 1)
    identity = np.eye(m)
    return np.concatenate([identity, identity[:, i] + identity[:, j]], axis=1)


def cube_of(product: Block) -> np.ndarray:
    """The tensor (m x m x m, symmetric to the last bit) from its product with :func:`polarising_block`."""
    m = len(product)
    i, j = np.triu_indices(m, 1)
    cube = np.empty((m, m, m))
    diagonal = product[:, :m]
    cube[:, range(m), range(m)] = diagonal
    cube[:, i, j] = cube[:, j, i] = (product[:, m:] - diagonal[:, i] - diagonal[:, j]) / 2
    orders = ((0, 1, 2), (1, 2, 0), (2, 0, 1))  # the last two indices are interchangeable already
    return np.asarray(sum(cube.transpose(order) for order in orders) / 3)
