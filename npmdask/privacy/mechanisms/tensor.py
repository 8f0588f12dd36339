"""Private noise on contractions of a tensor: every column u of a block has noise of its own size.

    Y_l = T(I, u_l, u_l) + G_l    or    y_l = T(u_l, u_l, u_l) + g_l,    scale_l = multiplier * sensitivity(u_l)

The sensitivity follows max |u_i|, which differs from column to column by factors: noise of one size for all would be
that of the spikiest. Each column is a release of its own, of the K = k L (R + 1) of a run (Wang and Anandkumar 2016,
Algorithm 3), and all of them share the budget: the multiplier is sqrt(K) / mu, exactly.

The L columns of a block are asked at once, and no neighbour moves all of them as far as it may move each: the sum of
the squares (moved_l / sensitivity_l)^2 is at most W = relation.together(block) <= L, a function of the public block. As
L / multiplier^2 is charged for it, the noise of every column may be less by sqrt(W / L), the *share* (not with
calibration = "paper"). What arithmetic adds, r to each column, is then counted max s_l / min s_l times: with
x_l = share s_l and r' = r max x / min x the norm of (moved_l + r) / (x_l + r') is at most sqrt(L) times
max x / (max x + r') + r / (min x + r') <= 1 (Minkowski).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from npmdask.accounting import Budget, Charge, paper_tensor_stddev
from npmdask.numerics.random import Rounding
from npmdask.numerics.subspaces import Block
from npmdask.privacy.mechanisms.gaussian_laplace import PrivateGaussian
from npmdask.privacy.mechanisms.noise_key import Entropy
from npmdask.privacy.neighbors.base import up
from npmdask.privacy.neighbors.registry import TensorRelation


@dataclass(frozen=True, kw_only=True)
class TensorGaussian:
    """Gaussian noise on every column of a block, each by :class:`PrivateGaussian`.

    Parameters
    ----------
    relation, budget, calibration : as of :class:`PrivateGaussian`.
    columns : L, of every block. steps : blocks that a run releases, k (R + 1). Both public and fixed in advance.
    rounding : what an integer of a single column is worth, and what finite arithmetic adds to its sensitivity.
    scores : whether the block holds ``T(u, u, u)`` (1 x L) and not ``T(I, u, u)`` (d x L).

    Attributes
    ----------
    single : what one column is released by; its ``releases`` are all K = ``steps`` * ``columns`` of them.

    Raises
    ------
    BadInputError, RefusedError
        As of :class:`PrivateGaussian`.
    """

    relation: TensorRelation
    budget: Budget
    columns: int
    steps: int
    rounding: Rounding
    calibration: str = "exact"
    scores: bool = False
    single: PrivateGaussian = field(init=False)

    name: ClassVar[str] = PrivateGaussian.name
    norm: ClassVar[str] = PrivateGaussian.norm
    image_norm: ClassVar[None] = None  # which is of records

    def __post_init__(self) -> None:
        single = PrivateGaussian(
            relation=replace(self.relation, scores=self.scores),
            budget=self.budget,
            releases=self.steps * self.columns,
            rounding=self.rounding,
            calibration=self.calibration,
        )
        object.__setattr__(self, "single", single)

    @property
    def releases(self) -> int:
        """Blocks that are committed to the ledger; :meth:`charge` is that of all their columns."""
        return self.steps

    @property
    def multiplier(self) -> float:
        """Scale of the noise of a column for a sensitivity of 1."""
        return self.single.multiplier

    @property
    def stddev(self) -> float:
        return self.single.stddev

    @property
    def release_kind(self) -> str:
        return "scores" if self.scores else "contraction"

    def release(self, product: np.ndarray, *, block: Block, entropy: Entropy, step: int) -> Block:
        """``product`` with noise, as float64 (of the same shape); see ``PrivateGaussian.release``.

        ``product``: int64, d x L or, of scores, 1 x L. ``step``: which block this is, 1..steps.
        """
        first, each = (step - 1) * self.columns + 1, self.each(block)
        released = [
            each.release(product[:, l : l + 1], block=block[:, l : l + 1], entropy=entropy, step=first + l)
            for l in range(self.columns)  # noqa: E741 (the letter of the paper)
        ]
        return np.concatenate(released, axis=1)

    def each(self, block: Block) -> PrivateGaussian:
        """What every single column of this public block is released by."""
        if self.calibration == "paper" or self.columns == 1:
            return self.single
        relation = self.single.relation
        assert isinstance(relation, TensorRelation)
        moved = [relation.sensitivity(column[:, None]) for column in block.T]
        if not all(moved):
            return self.single
        share = up(up(math.sqrt(relation.together(block) / self.columns)))
        # the next power of two: last bits of a norm must not change the purpose that noise is drawn for
        spread = math.ldexp(1.0, math.frexp(max(moved) / min(moved))[1])
        rounding = replace(self.rounding, l2=self.rounding.l2 * spread)
        return replace(self.single, relation=replace(relation, share=min(share, 1.0)), rounding=rounding)

    def event(self) -> dict[str, Any]:
        """What a ledger writes down; ``releases`` are the K that are charged."""
        return {**self.single.event(), "columns": int(self.columns), "steps": int(self.steps)}

    def charge(self) -> Charge:
        """What all K releases cost together, whatever the blocks will be: within the budget."""
        return self.single.charge()

    def noise_stddevs(self, block: Block) -> np.ndarray:
        """Standard deviation of the noise on every entry of each column (L): public."""
        rows, each = 1 if self.scores else len(block), self.each(block)
        return np.array([each.noise_stddev(column[:, None], rows=rows) for column in block.T])

    def stddevs(self, block: Block, *, scores: bool) -> np.ndarray:
        """The same of contractions, or of the scores of the columns (L), whichever this one is for."""
        return replace(self, scores=scores).noise_stddevs(block)

    def to_paper(self, block: Block, *, scores: bool) -> float:
        """The largest noise of a column over that of the paper's formula for all K releases."""
        unit, total = self.relation.unit, self.single.releases
        ours = self.stddevs(block, scores=scores)
        columns = (column[:, None] for column in block.T)
        paper = [paper_tensor_stddev(column, total, self.budget, scores=scores, unit=unit) for column in columns]
        return float(max(ours / np.array(paper)))

    def noise_stddev(self, block: Block, *, rows: int | None = None) -> float:
        """The largest of them."""
        return float(self.noise_stddevs(block).max())
