"""Leading eigenpairs of a symmetric matrix of more than some hundred columns, which is in memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.linalg import eigh
from scipy.sparse.linalg import ArpackError, eigsh

from npmdask.core.numerics.random import generator
from npmdask.core.numerics.subspaces import Block

FEW = 16  # columns for each pair, from which ARPACK's products take less time than LAPACK's reduction
LEAST = 3072  # columns, below which LAPACK's reduction stays in the caches: half a second at 2,048
BASIS = (4, 40)  # vectors of ARPACK for each pair, and at least
PRODUCTS = 4  # columns for each product that it may take: about half of LAPACK's time


def large_pairs(matrix: np.ndarray, count: int) -> Iterator[tuple[np.ndarray, Block]]:
    """Yield so many eigenvalues, the largest first, and their vectors: ARPACK's, then LAPACK's where these will not do.

    A value that comes several times may be missed by ARPACK, so that a caller checks that the pairs lead.
    """
    d = len(matrix)
    if d >= LEAST and FEW * count <= d:
        width = max(BASIS[0] * count, BASIS[1])
        start, turns = generator(0, "ARPACK").standard_normal(d), max(1, d // PRODUCTS // (width - count))
        try:
            values, vectors = eigsh(matrix, count, which="LA", v0=start, ncv=width, maxiter=turns)
        except ArpackError:  # too many products, or nothing but zeros
            pass
        else:
            order = np.argsort(-values, kind="stable")
            yield values[order], np.ascontiguousarray(vectors[:, order])
    values, vectors = eigh(matrix, subset_by_index=[d - count, d - 1], check_finite=False)
    yield values[::-1], np.ascontiguousarray(vectors[:, ::-1])
