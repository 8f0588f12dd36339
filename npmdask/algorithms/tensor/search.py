"""Power iterations of many columns at once: what a product says of each, where each goes next, which are the same."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from npmdask.algorithms.tensor.fit import SAME
from npmdask.numerics.random import generator
from npmdask.numerics.subspaces import Block

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


# What the tensor power methods share: starts, deflation that never touches the tensor, unit columns.
#
# The order of a tensor is 3 (moments, topics) or 4 (independent components). ``T(I, u, u)`` has the deflated part
# ``sum_r weight_r (v_r^T u)^2 v_r``: O(k d L) for L columns, so the stored tensor is never rewritten (Wang and
# Anandkumar 2016, Algorithm 1, line 6, kept implicit).


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


STALLED = 8  # products without a residual that is smaller by a tenth: the column oscillates, and is shifted
MOST_SHIFT = 3.0  # times the score; p - 1 makes every step climb (Kolda and Mayo 2011, SS-HOPM)
BASIN = 0.02  # a relative residual below this is that of a column on its way into a fixed point


class Sight(NamedTuple):
    """Of L columns u: the deflated products g (d x L), scores u^T g and residuals ||g - (u^T g) u||."""

    products: Block
    scores: np.ndarray
    residuals: np.ndarray

    @property
    def relative(self) -> np.ndarray:
        """Residual over |score|; infinite where the score is zero."""
        sizes = np.abs(self.scores)
        out = np.full(len(sizes), np.inf)
        np.divide(self.residuals, sizes, out=out, where=sizes > 0)
        return out


@dataclass(frozen=True)
class Columns:
    """L columns on their way.

    Parameters
    ----------
    block : d x L, unit vectors; and of each (L): ages, products since its start; least, its least relative residual;
        least_ages, when that was; shifts, see :func:`advanced`; sharpest, the least ratio of a relative residual to the
        one before, in the basin of a fixed point and without a shift.
    """

    block: Block
    ages: np.ndarray
    least: np.ndarray
    least_ages: np.ndarray
    shifts: np.ndarray
    sharpest: np.ndarray


G = TypeVar("G", bound="DataclassInstance")


def picked(group: G, which: slice | np.ndarray | list[int]) -> G:
    """The columns or entries ``which`` of every array of a group."""
    return replace(group, **{f.name: getattr(group, f.name)[..., which] for f in fields(group)})


def joined(first: G, second: G) -> G:
    """The arrays of two groups, one behind the other."""
    both = {f.name: (getattr(first, f.name), getattr(second, f.name)) for f in fields(first)}
    return replace(first, **{name: np.concatenate(pair, axis=-1) for name, pair in both.items()})


def put(group: G, start: int, part: G) -> G:
    """A copy of the group with ``part`` in its columns or entries from ``start`` on."""
    return joined(joined(picked(group, slice(0, start)), part), picked(group, slice(start + _size(part), None)))


def _size(group: DataclassInstance) -> int:
    return int(getattr(group, fields(group)[0].name).shape[-1])


def fresh(block: Block) -> Columns:
    """Columns that have just started."""
    zeros = np.zeros(block.shape[1])
    return Columns(block, zeros, np.full(block.shape[1], np.inf), zeros, zeros, zeros + 1)


def seen(products: Block, block: Block) -> Sight:
    """What the deflated ``products`` say of the unit columns of ``block``: score and residual of the same u."""
    scores = scores_of(products, block)
    return Sight(products, scores, np.linalg.norm(products - block * scores, axis=0))


def watched(columns: Columns, sight: Sight) -> Columns:
    """The columns with what their last residual says."""
    relative = sight.relative
    ratio = np.ones(len(relative))
    np.divide(
        relative, columns.least, out=ratio, where=(0 < columns.least) & (columns.least < BASIN) & (columns.shifts == 0)
    )
    better = relative < 0.9 * columns.least
    return replace(
        columns,
        least=np.where(better, relative, columns.least),
        least_ages=np.where(better, columns.ages, columns.least_ages),
        sharpest=np.minimum(columns.sharpest, ratio),
    )


def advanced(columns: Columns, sight: Sight, order: int, *, shifted: bool = True) -> Columns:
    """One power step of ``watched`` columns: u <- g / ||g||, up to sign for an even order.

    A column whose product is zero stays. Where the residual has stalled, and where ``shifted``, u <- g + s |score| u
    before normalising, with a shift s that begins at 1 and grows to where no step can lower the score.
    """
    stalled = (columns.ages - columns.least_ages >= STALLED) & shifted
    shifts = np.where(stalled, np.minimum(2 * columns.shifts + 1, MOST_SHIFT), columns.shifts)
    signs = np.where(sight.scores < 0, -1.0, 1.0) if order % 2 == 0 else 1.0
    return replace(
        columns,
        block=stepped(columns.block, sight.products * signs + columns.block * (shifts * np.abs(sight.scores))),
        ages=columns.ages + 1,
        least_ages=np.where(stalled, columns.ages, columns.least_ages),
        shifts=shifts,
    )


def stepped(block: Block, products: Block) -> Block:
    """The products over their norms; where a product is zero, the column of ``block``."""
    units = unit_columns(products)
    return np.where(np.abs(products).max(axis=0, initial=0.0) > 0, units, block)


def replaced(columns: Columns, which: np.ndarray, starts: Block) -> Columns:
    """Fresh ``starts`` (d x L) in place of the columns of the mask ``which``."""
    new = fresh(starts)
    both = {f.name: (getattr(new, f.name), getattr(columns, f.name)) for f in fields(columns)}
    return Columns(**{name: np.where(which, begun, old) for name, (begun, old) in both.items()})


def nearest(block: Block, vectors: Block) -> np.ndarray:
    """For every column of ``block`` the number of the vector it coincides with, or -1."""
    if vectors.shape[1] == 0:
        return np.full(block.shape[1], -1)
    cosines = np.abs(vectors.T @ block)
    return np.where(cosines.max(axis=0) > SAME, cosines.argmax(axis=0), -1)


def distinct(block: Block, candidates: np.ndarray, against: Block, most: int) -> list[int]:
    """At most ``most`` of the ``candidates``, in their order, that coincide with no vector and not with each other."""
    taken: list[int] = []
    for number in candidates.tolist():
        if len(taken) == most:
            break
        known = np.concatenate([against, block[:, taken]], axis=1)
        if nearest(block[:, [number]], known)[0] < 0:
            taken.append(number)
    return taken


def copies(vectors: Block, weights: np.ndarray) -> np.ndarray:
    """Which of the vectors (d x m) coincide with another of greater |weight|, or of the same that comes before."""
    rank = np.argsort(np.argsort(-np.abs(weights), kind="stable"), kind="stable")
    same = np.abs(vectors.T @ vectors) > SAME
    return np.asarray((same & (rank[None, :] < rank[:, None])).any(axis=1))
