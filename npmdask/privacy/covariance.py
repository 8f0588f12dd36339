"""A private covariance (Dwork, Talwar, Thakurta and Zhang 2014, Analyze Gauss): A released once, with symmetric noise.

Line by line (Algorithm 1 of the paper)::

    1. A = sum of a a^T over the clipped records                    PrivateCovariance.query: A X with X = I
    2. M = A + Z, Z symmetric and Gaussian                          the mechanism (SymmetricGaussian), update
    3. The k leading eigenvectors of M                              finalize

M is public. What is made of it costs nothing: any k, any subset of the columns, whenever. The vectors are those of M
as they are; its eigenvalues are too large by what noise adds, and what A cannot be is taken off
(:mod:`npmdask.theory.noisy_symmetric`)::

    4. x = v^T A v, estimated from the eigenvalues of M             values_along
    5. the nearest x >= 0, of a sum of at most what records of
       norm C can have, n C^2, where n is public                    projected
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from npmdask.core.algorithms.base import Info, OfOneState, Query, Result
from npmdask.core.numerics.subspaces import Block, fix_signs
from npmdask.theory.noisy_symmetric import CLEAR, noise_norm, perturbed_sine, projected, values_along


@dataclass(frozen=True, kw_only=True)
class CovarianceState:
    """M, once it is there; zeros before."""

    step: int
    matrix: Block  # d x d, symmetric


@dataclass(frozen=True, kw_only=True)
class LeadingPairs:
    """The k leading pairs of a released symmetric matrix.

    ``values``: v^T A v of each; ``sine``: the likely one of their plane; ``above``: how many of the values of M are
    above the noise, all k of those that are asked for or fewer.
    """

    values: np.ndarray
    vectors: Block
    sine: float
    above: int


@dataclass(frozen=True, kw_only=True)
class PrivateCovariance(OfOneState[CovarianceState]):
    """The ``target_rank`` (k) leading eigenvectors of a symmetric A (d x d) that is released once, with noise.

    Parameters
    ----------
    target_rank : k, how many vectors are wanted. The release does not depend on it.
    columns : d.
    stddev : of the noise off the diagonal, in the units of A; on it sqrt(2) times as much.
    largest_trace : what tr A is at most, from public numbers; None where none is public.
    definite : A is a sum of a a^T and has no negative eigenvalue; else the k of largest magnitude are meant.

    Notes
    -----
    Neighbours: those of records, and of a symmetric matrix; one release keeps the mechanism's budget.
    Guarantee: private for all data. Error: Theorem 5 of the paper (sine of about sigma sqrt(d) / gap).
    Needs: d x d numbers in memory.
    Cost: one pass; O(d^2) memory, O(d^3) for the eigenvectors.
    """

    name: ClassVar[str] = "covariance"
    kept: ClassVar[type[CovarianceState]] = CovarianceState
    releases: ClassVar[int] = 1
    mixed_precision: ClassVar[bool] = False
    state_blocks: ClassVar[int] = 12  # d x d: X, A in integers, noise with its places, M, copies, vectors, work space

    target_rank: int
    columns: int
    stddev: float
    largest_trace: float | None = None
    definite: bool = True

    @property
    def iteration_rank(self) -> int:
        """All of them."""
        return self.columns

    def init(
        self, d: int, *, rng: np.random.Generator, locked: Result | None = None, start: Block | None = None
    ) -> CovarianceState:
        """Nothing yet. ``locked`` and ``start`` are refused before (problem)."""
        assert locked is None and start is None
        return CovarianceState(step=0, matrix=np.zeros((d, d)))

    def query(self, state: CovarianceState) -> Query:
        """Line 1, the part that touches the data."""
        return Query(np.eye(self.columns))

    def update(self, state: CovarianceState, released: Block) -> tuple[CovarianceState, Info]:
        """Line 2: M is all there is of the data from here on."""
        _, values, _ = self._values(np.linalg.eigvalsh(released))
        info = Info(ritz_values=values, residual_norms=self._norms(len(released)), asymmetry=0.0, precision="float64")
        return CovarianceState(step=state.step + 1, matrix=released), info

    def finalize(self, state: CovarianceState) -> Result:
        """Lines 3 to 5."""
        found = self.spectrum(state.matrix)
        return Result(
            values=found.values,
            vectors=found.vectors,
            products=state.matrix @ found.vectors,
            residual_norms=self._norms(len(state.matrix)),
        )

    def spectrum(self, matrix: Block) -> LeadingPairs:
        """The same of M, or of some of its columns and rows, and how far off that is likely to be."""
        m, vectors = np.linalg.eigh(matrix)
        chosen, values, above = self._values(m)
        kept = np.ascontiguousarray(vectors[:, chosen])
        return LeadingPairs(
            values=values,
            vectors=kept * fix_signs(kept),
            sine=perturbed_sine(m, self.stddev, chosen),
            above=above,
        )

    def _values(self, m: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
        """Return places and x of the k leading eigenvalues of M, largest first, and how many exceed the noise."""
        chosen = np.argsort(-m if self.definite else -np.abs(m), kind="stable")[: self.target_rank]
        values = values_along(m, self.stddev)
        if self.definite:
            values = projected(values, self.largest_trace)
        chosen = chosen[np.argsort(-np.abs(values[chosen]), kind="stable")]
        return chosen, values[chosen], int(np.sum(np.abs(m[chosen]) > CLEAR * noise_norm(self.stddev, len(m))))

    def _norms(self, d: int) -> np.ndarray:
        """Return the norm that noise adds to A v of a fixed v: sigma sqrt(d) for each of the k."""
        return np.full(self.target_rank, self.stddev * math.sqrt(d))
