"""What released products tell of other products: public post-processing, no access to data.

From answers ``G_s = M w_s + noise of stddev_s`` (M the mean of the records, d x d, never formed) the best linear guess
of M, for entries that are independent N(0, size^2 / d) beforehand, is

    M' = G (W^T W + d diag(stddev^2) / size^2)^-1 W^T

so M' w predicts the next answer. Answers to w of earlier rounds stay true for later ones: P_j P_i = P_j for the nested
projections of the deflation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npmdask.numerics.projections import project_out
from npmdask.numerics.subspaces import Block


@dataclass(frozen=True)
class Answers:
    """The vectors asked for (``asked``, d x m), noisy products (``given``, d x m) and their noise (``stddevs``, m)."""

    asked: Block
    given: Block
    stddevs: np.ndarray
    size: float

    @classmethod
    def none(cls, dimension: int, size: float) -> Answers:
        """Before the first; ``size`` is a public guess of the largest eigenvalue."""
        return cls(np.zeros((dimension, 0)), np.zeros((dimension, 0)), np.zeros(0), size)

    def add(self, vector: np.ndarray, product: np.ndarray, stddev: float) -> Answers:
        return Answers(
            np.column_stack([self.asked, vector]),
            np.column_stack([self.given, product]),
            np.append(self.stddevs, stddev),
            self.size,
        )

    def predict(self, vectors: np.ndarray, found: Block) -> np.ndarray:
        """``P M' vectors`` (d or d x p)."""
        weights = np.linalg.lstsq(self._gram(), self.asked.T @ vectors, rcond=None)[0]
        return project_out((self.given @ weights).T, found).T

    def leading(self, found: Block) -> np.ndarray | None:
        """The direction that stands out of the noise most in the range of P: the top left singular vector of
        P G diag(1 / stddev), whose noise is alike in all columns. Where a round starts; None before any answer."""
        if not self.given.shape[1]:
            return None
        known = project_out((self.given / self.stddevs).T, found).T
        return np.linalg.svd(known, full_matrices=False)[0][:, 0]

    def _gram(self) -> np.ndarray:
        noise = len(self.asked) * (self.stddevs / self.size) ** 2
        return self.asked.T @ self.asked + np.diag(noise)
