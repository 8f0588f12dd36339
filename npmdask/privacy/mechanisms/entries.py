"""Input perturbation: every unique entry of a symmetric tensor released once, with noise; the baseline for tensors.

Neighbours differ in one orbit, so in one unique entry (i <= j <= k): by e, which is ``change`` once, twice or six times
for :class:`TensorEntry`, by how many of its indices are equal. Noise of multiplier * e for an entry of its kind makes
the whole a single Gaussian release with a sensitivity of 1: entries with three different indices, nearly all of them,
need a sixth of what the diagonal needs (Wang and Anandkumar 2016, section 4, take the largest for all).

Unlike the noise of a contraction, that of an entry does not follow u; whatever is done with the noisy tensor later is
free. A tensor is written block by block: noise is a function of the key and of the place of the block.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from npmdask.accounting import Budget, Charge
from npmdask.errors import BadInputError
from npmdask.numerics.random import Rounding
from npmdask.numerics.subspaces import Block
from npmdask.privacy.mechanisms.gaussian_laplace import PrivateGaussian
from npmdask.privacy.mechanisms.noise_key import Entropy
from npmdask.privacy.neighbors.base import up
from npmdask.privacy.neighbors.registry import TensorRelation

GRID_BITS = 20  # of an entry, below what a neighbour changes
WORD_BITS = 60  # of the largest entry in units of the grid


@dataclass(frozen=True, kw_only=True)
class OneKind(PrivateGaussian):
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
    kinds: tuple[OneKind, OneKind, OneKind] = field(init=False)

    name: ClassVar[str] = "input-perturbation"
    releases: ClassVar[int] = 1

    def __post_init__(self) -> None:
        grid = math.ldexp(1.0, math.floor(math.log2(self.relation.unit)) - GRID_BITS)
        grid = max(grid, math.ldexp(1.0, math.ceil(math.log2(self.relation.clip_norm)) - WORD_BITS))
        rounding = Rounding(grid=grid, l2=grid, l1=grid)  # in both worlds to the nearest
        six, three, one = (
            OneKind(relation=self.relation, budget=self.budget, releases=1, rounding=rounding, moved=moved)
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
