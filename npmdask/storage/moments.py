"""Means and squared deviations of columns, a few rows at a time."""

from __future__ import annotations

import numpy as np


class Moments:
    """Column means and sums of squared deviations, merged slab by slab (Chan, Golub and LeVeque 1983)."""

    def __init__(self, columns: int) -> None:
        self.count, self.mean, self.m2 = 0, np.zeros(columns), np.zeros(columns)

    def add(self, rows: np.ndarray) -> None:
        """Add rows (b x columns), a few at a time: the float64 copy stays small."""
        few = max(1, 2**18 // max(1, rows.shape[1]))
        for start in range(0, rows.shape[0], few):
            part = rows[start : start + few]
            mean = part.mean(axis=0, dtype=np.float64)
            deviation = part - mean
            self.merge(part.shape[0], mean, np.einsum("ij,ij->j", deviation, deviation))

    def table(self) -> np.ndarray:
        """Count, mean and sum of squared deviations (3 x columns)."""
        return np.stack([np.full(len(self.mean), float(self.count)), self.mean, self.m2])

    def merge(self, count: int, mean: np.ndarray, m2: np.ndarray) -> None:
        """Add the moments of other rows."""
        total, delta = self.count + count, mean - self.mean
        self.mean = self.mean + delta * (count / total)
        self.m2 = self.m2 + m2 + delta**2 * (self.count * count / total)
        self.count = total
