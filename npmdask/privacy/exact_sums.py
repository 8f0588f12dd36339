"""Sums of products that float64 forms without a rounding error, so that their order cannot be seen in them.

A sum of numbers on a common grid is exact in any order, by any kernel, as long as no partial sum needs more than 53
bits. Blocks are rounded to ``BLOCK_GRID`` and records to ``RECORD_GRID``, so that a record times a block needs 52;
that product is rounded to ``IMAGE_GRID``, so that ``STRIP_ROWS`` records times it need 53. Sums of strips are held in
two float64 limbs. The grids of records, images and sums are in units of a power of two, ``unit``, next to the clipping
norm. Proofs: docs/decisions/0021.
"""

from __future__ import annotations

import math

import numpy as np

from npmdask.core.numerics.subspaces import Block
from npmdask.core.storage.readers.dense import scratch
from npmdask.errors import BadInputError

RECORD_GRID = 2.0**-24
COARSE_GRID = 2.0**-22  # of records whose squares are summed: 400 products of two of them need 53 bits, too
BLOCK_GRID = 2.0**-28
IMAGE_GRID = 2.0**-20  # of a_q^T X, rounded once more before it is multiplied back
HIGH_GRID = 2.0**-18  # of the upper limb of a sum; the lower one is a multiple of RECORD_GRID * IMAGE_GRID
RELEASE_GRID = 2.0**-29  # of the integers that are handed to a mechanism
STRIP_ROWS = 400  # records whose products with images are summed in one float64: 400 * 1.25 < 2^9 = 2^53 / 2^44
IMAGE_COLUMNS = 5000  # of a block whose images are clipped: 5000 * 1.2501^2 < 2^13 = 2^53 * IMAGE_GRID^2
SPLIT_ROWS = 2**15  # the same, where images are split: 2^15 * 1.25 < 2^53 * RECORD_GRID * IMAGE_SPLIT
IMAGE_SPLIT = 2.0**-10  # grid of the upper part; the lower one is at most half of that
COLUMN_NORM = 1.25  # at most, of a column of a block
BATCH_ROWS = 2**16  # of a block that are looked at at once
CLIP_ERROR = 2.0**-48  # relative, of a clipped image: square root, quotient, comparison and product err by 2^-53 each
MAX_RECORDS = 2**33  # so that integers on RELEASE_GRID, noise included, fit 64 bits


def grid_unit(clip_norm: float) -> float:
    """The smallest power of two that is not below ``clip_norm``."""
    mantissa, exponent = math.frexp(clip_norm)
    return math.ldexp(1.0, exponent - 1 if mantissa == 0.5 else exponent)


def round_to(values: np.ndarray, grid: float) -> np.ndarray:
    """``values`` rounded to multiples of ``grid`` (a power of two) in place; exact up to 2^51 grids.

    Where 2^52 grids are added, the last bit of a float64 is worth one grid.
    """
    values += 1.5 * 2.0**52 * grid
    values -= 1.5 * 2.0**52 * grid
    return values


def clip_images(images: np.ndarray, longest: float, grid: float) -> np.ndarray:
    """Shorten rows (images X^T a, on ``grid``) that are longer than ``longest`` to it, in place, and round them again.

    Their squares are exact up to ``IMAGE_COLUMNS``, and the factor of a row is then a function of that row alone.
    """
    squares = np.einsum("ij,ij->i", images, images)
    long = squares > longest * longest
    if long.any():
        images *= np.divide(longest, np.sqrt(squares), out=np.ones(len(squares)), where=long)[:, None]
        round_to(images, grid)
    return images


def on_grid(block: Block) -> Block:
    """The block (d x p) on the public grid that products are exact with: what is multiplied, and what is public.

    Raises
    ------
    BadInputError
        Not finite, or a column longer than 1.2: the block is meant to be orthonormal.
    """
    held = np.array(block, np.float64, order="C")
    with np.errstate(over="ignore", invalid="ignore"):
        norms = np.sqrt(np.einsum("ij,ij->j", held, held))
    if not (norms <= 1.2).all():
        longest = float(np.max(norms))
        raise BadInputError(f"a column of the block has norm {longest:.6g}: private products need an orthonormal block")
    return round_to(held, BLOCK_GRID)


def require_prepared(block: Block) -> None:
    """Exactness rests on the grid of the block: one look at it before a product with it is handed on.

    Raises
    ------
    BadInputError
        It was not prepared.
    """
    batches = [block[start : start + BATCH_ROWS] for start in range(0, len(block), BATCH_ROWS)]
    if block.dtype != np.float64 or not all(np.array_equal(rows, on_grid(rows)) for rows in batches):
        raise BadInputError("the block is not on the grid of private products: pass it through `prepare` first")
    if not (np.einsum("ij,ij->j", block, block) <= COLUMN_NORM**2).all():
        raise BadInputError("a column of the block is too long: pass it through `prepare`, which says more")


def add_exactly(total: np.ndarray, product: np.ndarray, unit: float) -> None:
    """``total += product`` without rounding; ``total`` (2 x d x p) holds two limbs. ``product`` is overwritten."""
    upper = scratch(("limb", len(product)), product.shape, np.float64)
    np.copyto(upper, product)
    round_to(upper, HIGH_GRID * unit * unit)
    product -= upper
    total[0] += upper
    total[1] += product


def carry(total: np.ndarray, unit: float) -> np.ndarray:
    """The same sum with a lower limb of at most half a HIGH_GRID, in place."""
    lower = total[1].copy()
    total[1] = 0.0
    add_exactly(total, lower, unit)
    return total


def as_integers(total: np.ndarray, unit: float) -> np.ndarray:
    """The sum as int64 multiples of the release grid, rounded to the nearest (d x p)."""
    grid = RELEASE_GRID * unit * unit
    lower = total[1] / grid
    integers = np.rint(lower, out=lower).astype(np.int64)
    integers += np.divide(total[0], grid, out=lower).astype(np.int64)
    return integers
