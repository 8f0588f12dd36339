"""Whitening: coordinates in which the components of a third moment are orthonormal.

With ``M2 = U S U^T`` cut to its k leading pairs, ``W = U S^(-1/2)`` makes ``W^T M2 W = I`` and the components of
``M3(W, W, W)`` orthonormal (Anandkumar et al. 2014, section 4.3).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npmdask.errors import BadInputError
from npmdask.numerics.subspaces import Block

WARN_ABOVE = 10.0  # the condition number beyond which SpectralLDA (Spark) warns its users


@dataclass(frozen=True, kw_only=True)
class Whitening:
    """Maps to and from white coordinates.

    Attributes
    ----------
    matrix : W (d x k), ``W^T M2 W = I``.
    back : ``(W^T)^+`` (d x k): a component is ``back @ v`` up to its scale.
    eigenvalues : of M2 that were kept (k), falling, positive.
    """

    matrix: Block
    back: Block
    eigenvalues: np.ndarray

    @property
    def kept(self) -> int:
        """k."""
        return len(self.eigenvalues)

    @property
    def condition(self) -> float:
        """The largest eigenvalue kept over the smallest: errors of M2 grow by its power 3/2 in white coordinates."""
        return float(self.eigenvalues[0] / self.eigenvalues[-1])

    @property
    def warning(self) -> str:
        """A sentence where the components are hard to tell apart; empty where they are not."""
        if self.condition <= WARN_ABOVE:
            return ""
        return (
            f"the condition number of M2 is {self.condition:.3g}, more than {WARN_ABOVE:g}: the weakest components may "
            "be noise; take fewer components, or use more data (of documents: remove very frequent words)"
        )


def whiten(eigenvalues: np.ndarray, eigenvectors: Block, k: int) -> Whitening:
    """The whitening by the ``k`` largest positive eigenvalues of M2.

    Parameters
    ----------
    eigenvalues, eigenvectors : pairs of M2 (j, and d x j orthonormal), j >= k, in any order, of any sign.

    Raises
    ------
    BadInputError
        Fewer than k eigenvalues are positive (beyond rounding): an empirical M2 with repeated words removed is not
        positive semidefinite, and the square root of a negative eigenvalue would whiten noise.
    """
    eigenvalues = np.asarray(eigenvalues, np.float64)
    if not 1 <= k <= len(eigenvalues):
        raise BadInputError(f"k = {k} components need as many eigenvalues of M2: {len(eigenvalues)} are given")
    order = np.argsort(-eigenvalues, kind="stable")[:k]
    values = eigenvalues[order]
    floor = len(eigenvectors) * np.finfo(np.float64).eps * np.abs(eigenvalues).max()
    positive = int((values > floor).sum())
    if positive < k:
        noise = max(floor, -float(eigenvalues.min()))  # what is negative is noise, and so may be what is smaller
        supported = int((values > noise).sum())
        raise BadInputError(
            f"M2 supports only {supported} of {k} components: its eigenvalue of {-noise:.2g} is noise, and so may be "
            f"all that are smaller; take k = {supported} or fewer, leave out frequent words, or use more data"
            if supported
            else "M2 has no positive eigenvalue that stands out from its negative ones: these data do not follow the "
            "model, or are too few; use more data"
        )
    roots, vectors = np.sqrt(values), eigenvectors[:, order]
    return Whitening(
        matrix=np.ascontiguousarray(vectors / roots), back=np.ascontiguousarray(vectors * roots), eigenvalues=values
    )


def require_whitening(matrix: Block | None, d: int) -> None:
    """That a whitening, where there is one, is of data with ``d`` columns."""
    if matrix is not None and len(matrix) != d:
        raise BadInputError(
            f"the whitening has {len(matrix)} rows, but the data have {d} columns: it belongs to other data"
        )
