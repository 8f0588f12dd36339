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
from npmdask.errors import BadInputError
from npmdask.numerics.random import Rounding
from npmdask.numerics.subspaces import Block
from npmdask.privacy.mechanisms.gaussian_laplace import PrivateGaussian
from npmdask.privacy.mechanisms.noise_key import Entropy
from npmdask.privacy.neighbors import TensorRelation, up


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


# Input perturbation: every unique entry of a symmetric tensor released once, with noise; the baseline for tensors.
#
# Neighbours differ in one orbit, so in one unique entry (i <= j <= k): by e, which is ``change`` once, twice or six
# times for :class:`TensorEntry`, by how many of its indices are equal. Noise of multiplier * e for an entry of its
# kind makes the whole a single Gaussian release with a sensitivity of 1: entries with three different indices, nearly
# all of them, need a sixth of what the diagonal needs (Wang and Anandkumar 2016, section 4, take the largest for
# all).
#
# Unlike the noise of a contraction, that of an entry does not follow u; whatever is done with the noisy tensor later is
# free. A tensor is written block by block: noise is a function of the key and of the place of the block.


GRID_BITS = 20  # of an entry, below what a neighbour changes
WORD_BITS = 60  # of the largest entry in units of the grid


@dataclass(frozen=True, kw_only=True)
class EntryGaussian(PrivateGaussian):
    """Entries that neighbours change by at most ``moved``. The public block of a release says where they are."""

    moved: float

    def sensitivity(self, block: Block, *, rows: int | None = None) -> float:
        return up(self.moved + self.rounding.l2)


@dataclass(frozen=True, kw_only=True)
class EntriesGaussian:
    """Gaussian noise on every unique entry of a symmetric tensor; all of them together are one release.

    Parameters
    ----------
    relation : of tensors. budget : the promise for the noisy tensor, whatever is done with it.

    Raises
    ------
    BadInputError, RefusedError
        As of :class:`PrivateGaussian`.
    """

    relation: TensorRelation
    budget: Budget
    kinds: tuple[EntryGaussian, EntryGaussian, EntryGaussian] = field(init=False)

    name: ClassVar[str] = "input-perturbation"
    releases: ClassVar[int] = 1

    def __post_init__(self) -> None:
        grid = math.ldexp(1.0, math.floor(math.log2(self.relation.unit)) - GRID_BITS)
        grid = max(grid, math.ldexp(1.0, math.ceil(math.log2(self.relation.clip_norm)) - WORD_BITS))
        rounding = Rounding(grid=grid, l2=grid, l1=grid)  # in both worlds to the nearest
        six, three, one = (
            EntryGaussian(relation=self.relation, budget=self.budget, releases=1, rounding=rounding, moved=moved)
            for moved in self.relation.changes
        )
        object.__setattr__(self, "kinds", (six, three, one))

    @property
    def stddevs(self) -> tuple[float, float, float]:
        """Of the noise on entries with three different indices, with two that are equal, and on the diagonal."""
        nowhere = np.zeros((1, 1))
        six, three, one = (kind.noise_stddev(nowhere) for kind in self.kinds)
        return six, three, one

    def charge(self) -> Charge:
        """What the noisy tensor costs."""
        return self.kinds[0].charge()

    def event(self) -> dict[str, Any]:
        """What a ledger writes down."""
        return {**self.kinds[0].event(), "mechanism": self.name, "stddevs": list(self.stddevs)}

    def release(self, values: np.ndarray, *, place: tuple[int, int, int], entropy: Entropy) -> np.ndarray:
        """Block ``place`` (i <= j <= k) of the noisy tensor, float64 of the shape of ``values``, exactly symmetric.

        Parameters
        ----------
        values : the block as it is stored (b_i x b_j x b_k); of mirror images within it the first one is used.
        entropy : the secret key of the run.
        """
        grid, clip = self.kinds[0].rounding.grid, self.relation.clip_norm
        bounded = np.where(np.isfinite(values), values, 0.0).astype(np.float64, copy=False)
        units = np.rint(np.clip(bounded, -clip, clip) / grid).astype(np.int64).reshape(-1)
        first, equal = unique_entries(values.shape, place)
        noisy = np.zeros(units.size)
        for number, kind in enumerate(self.kinds):
            here = np.flatnonzero((first == np.arange(units.size)) & (equal == number))
            if not here.size:
                continue
            address = np.array([[float(at)] for at in (*place, number)])
            noisy[here] = kind.release(units[here, None], block=address, entropy=entropy, step=1)[:, 0]
        return noisy[first].reshape(values.shape)


def unique_entries(shape: tuple[int, ...], place: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Of every entry of a block: where (flat) its first mirror image within the block is, and how many of its indices
    equal another one (0: none, 1: two of the three are equal, 2: all).

    Raises
    ------
    BadInputError
        The place is not sorted, or a shape does not fit it.
    """
    i, j, k = place
    if not i <= j <= k or (i == j and shape[0] != shape[1]) or (j == k and shape[1] != shape[2]):
        raise BadInputError(f"a block of shape {shape} cannot be the unique block {place} of a symmetric tensor")
    a, b, c = (axis.ravel() for axis in np.indices(shape, dtype=np.int32))
    if i == j:
        a, b = np.minimum(a, b), np.maximum(a, b)
    if j == k:
        b, c = np.minimum(b, c), np.maximum(b, c)
    if i == j == k:
        a, b = np.minimum(a, b), np.maximum(a, b)
    first = np.ravel_multi_index((a, b, c), shape)
    equal = ((a == b) & (i == j)).astype(np.int8) + ((b == c) & (j == k))
    return first, equal
