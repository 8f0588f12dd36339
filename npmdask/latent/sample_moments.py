"""Third and fourth moments of samples (rows of a dense array), with no tensor formed.

    third       E[(x^T u)^2 x]                                            4 n d L flops for L vectors at once
    mixture     E[(x^T u)^2 x] - 2 (M1^T u) u - |u|^2 M1                  spherical Gaussians (Hsu and Kakade 2013)
    fourth      E[(x^T u)^3 x] - 3 (u^T S u) S u, S = E[x x^T]            independent components

Each of them also in white coordinates: of y = W^T x instead of x, which costs 2 n d m + 4 n m L.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from npmdask.core.numerics.subspaces import Block
from npmdask.core.operators._protocol import (
    STRIP_BYTES,
    BySamples,
    Partial,
    Sums,
    add_back,
    as_dtype,
    finite_partial,
    least_run,
    pending_sums,
    split_rows,
)
from npmdask.core.operators.gram import Gram
from npmdask.core.storage.readers.dense import ReadStats, scratch
from npmdask.errors import BadInputError
from npmdask.tensors.moments import blocks_of, require_whitening


@dataclass(frozen=True, kw_only=True)
class SampleTriples(BySamples, Gram):
    """``weight E[(x^T u)^2 x]`` for every column u of a block (d x L), over all rows or a batch of them.

    Parameters
    ----------
    reader, weight, view : as of :class:`Gram`, without weights; with no ``shift`` the rows are taken as they are.
    whitening : W (d x m): the block is then m x L, and x is W^T x.
    rows : a batch, by index; all rows if None.
    scores : the answer is ``T(u, ..., u)`` instead (1 x L).
    """

    whitening: Block | None = None
    rows: range | None = None
    scores: bool = False
    answers: ClassVar[tuple[str, ...]] = ("scores",)
    extra: ClassVar[int] = 0  # further sums of d x L that the moment needs

    def __post_init__(self) -> None:
        self.require_batch()
        self.view.require_unweighted("a third or fourth moment")
        require_whitening(self.whitening, self.reader.shape[1])

    @property
    def block_rows(self) -> int:
        return int(self.reader.shape[1] if self.whitening is None else self.whitening.shape[1])

    @property
    def run_bytes(self) -> int:
        return least_run(self.block_rows)

    def partial(self, slabs: range, block: Block) -> Partial:
        record = ReadStats()
        product = np.zeros((self.block_rows, (1 + self.extra) * block.shape[1]), order="F")
        if self.whitening is None:
            block = self.view.on_columns(block)
            for _, tile, z in self._products(self.slabs_of(slabs), block, record):
                powers = self._powers(z)
                for columns, values in tile:
                    add_back(product[columns], values, powers)
        else:
            white = self.view.on_columns(self.whitening).astype(block.dtype, copy=False)
            for _, _, images in self._products(self.slabs_of(slabs), white, record):
                add_back(product, images, self._powers(images @ block))
        return finite_partial({"product": np.ascontiguousarray(product)}, self.reader, self.slabs_of(slabs), record)

    def _powers(self, along: Block) -> Block:
        """Return the weights of the rows in the sum, from ``along`` = x^T u."""
        return along**2

    def _strips(self, rows: slice, block: Block) -> list[slice]:
        """Only rows of the batch, in strips that stay in cache together with their images and powers of them."""
        first, last = (edge - rows.start for edge in (self.batch.start, self.batch.stop))
        first, last = max(first, 0), min(last, rows.stop - rows.start)
        height = max(64, STRIP_BYTES // (8 * (len(block) + 3 * block.shape[1])))
        return [slice(start, min(start + height, last)) for start in range(first, last, height)]

    def finish(self, total: Partial, block: Block) -> Block:
        product = self._moment(total.sums["product"] / len(self.batch), block) * self.weight
        return np.einsum("dl,dl->l", product, block)[None] if self.scores else product

    def _moment(self, means: Block, block: Block) -> Block:
        """``T(I, u, ...)`` from the means over the rows."""
        return self._scaled(means)

    def _scaled(self, means: Block) -> Block:
        return self.view.on_columns(means) if self.whitening is None else means

    def task_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of one running task (the largest of ``runs``) beyond the block, with p columns."""
        d = self.reader.shape[1]
        images = 0 if self.whitening is None else self.whitening.shape[1]
        height = max(64, STRIP_BYTES // (8 * (d + 3 * (images or p))))
        strip = height * 8 * (2 * (d + images) + (4 + 3 * self.extra) * p)  # of one strip, and of that before
        return self.reader.buffer_bytes + strip + (2 * d * images + (3 + self.extra) * self.block_rows * p + d * p) * 8

    def pending_bytes(self, p: int, runs: list[range]) -> int:
        return pending_sums(self.block_rows, (1 + self.extra) * p, runs)


@dataclass(frozen=True, kw_only=True)
class MixtureTriples(SampleTriples):
    """``sum_i w_i (mu_i^T u)^2 mu_i`` of a mixture of spherical Gaussians, their spread taken off.

    ``spread`` is M1 of :class:`MixtureSpread` (d). The rows are not centred: M3 is of the means as they are.
    """

    spread: np.ndarray

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.view.shift is not None or self.view.scale is not None:
            raise BadInputError(
                "a mixture is of the rows as they are: without a mean, which M3 would lose, or a scale, which would "
                "leave no sphere"
            )

    def _moment(self, means: Block, block: Block) -> Block:
        white, spread = self.whitening, self.spread
        if white is None:
            along, itself = spread @ block, block
        else:
            words = white @ block
            along, itself, spread = spread @ words, white.T @ words, white.T @ spread
        squares = np.einsum("dl,dl->l", block, itself)
        return means - 2 * along * itself - np.outer(spread, squares)


@dataclass(frozen=True, kw_only=True)
class SampleFourth(SampleTriples):
    """``E[(x^T u)^3 x] - 3 (u^T S u) S u``: ``sum_i kappa_i (a_i^T u)^3 a_i`` of independent components.

    S is that of the same rows, from the same pass; or I where ``sphered`` says that it is known to be: of a batch of
    rows that were whitened with the covariance of all. Give ``shift``: cumulants are of centred rows. With the
    whitening of the covariance a step is FastICA's cube step.
    """

    sphered: bool = False
    extra: ClassVar[int] = 1

    def _powers(self, along: Block) -> Block:
        return np.concatenate([along * along**2, along], axis=1)  # a cube by pow is 20 times slower

    def _moment(self, means: Block, block: Block) -> Block:
        means, columns = self._scaled(means), block.shape[1]
        covariance = block if self.sphered else means[:, columns:]
        squares = np.einsum("dl,dl->l", block, covariance)
        return means[:, :columns] - 3 * squares * covariance


@dataclass(frozen=True, kw_only=True)
class MixtureSpread(Gram):
    """The spread of a mixture of spherical Gaussians, measured where its means do not differ.

    The block V (d x j) holds the leading eigenvectors of the covariance, j >= k - 1, orthonormal: across them rows are
    noise, of variance ``q = (|x - mean|^2 - |V^T (x - mean)|^2) / (d - j)`` in each direction. ``finish`` gives
    (d + 1) x 1: ``M1 = E[q x] = sum w_i sigma_i^2 mu_i``, and under it ``sigma^2 = E[q] = sum w_i sigma_i^2``. With
    j = d - 1 this is the formula by the last eigenvector; fewer use all directions without signal.

    M2 is ``E[x x^T] - sigma^2 I``: its pairs are those of :class:`Gram` with sigma^2 less.
    """

    def __post_init__(self) -> None:
        self.view.require_unweighted("the spread of a mixture")
        if self.view.shift is None or self.view.scale is not None:
            raise BadInputError("the spread of a mixture is around the mean of its rows: give mean, and no scale")

    def partial(self, slabs: range, block: Block) -> Partial:
        d, record = len(block), ReadStats()
        weighted, total = np.zeros((d, 1)), np.zeros((1, 1))
        for _, tile, z in self._products(slabs, block, record):
            squares = -np.einsum("nj,nj->n", z, z, dtype=np.float64)
            for _, values in tile:
                squares += np.einsum("nd,nd->n", values, values, dtype=np.float64)
            for columns, values in tile:
                weighted[columns, 0] += as_dtype(values, np.float64, ("squares", columns.start)).T @ squares
            total += squares.sum()
        return finite_partial({"weighted": weighted, "squares": total}, self.reader, slabs, record)

    def unstacked(self, stacked: np.ndarray, units: range) -> Sums:
        return split_rows(stacked, {"weighted": self.block_rows, "squares": 1})

    def task_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of one running task (the largest of ``runs``) beyond the block, with p columns."""
        return super().task_bytes(p, runs) + STRIP_BYTES  # the squares, and a strip of another height

    def finish(self, total: Partial, block: Block) -> Block:
        d, j = block.shape
        weighted, squares = (values / (self.reader.shape[0] * (d - j)) for values in total.sums.values())
        if self.view.shift is not None:
            weighted += squares * self.view.shift[:, None]
        return np.concatenate([weighted, squares])


# The third moment of samples, explicitly: some unique blocks of the d x d x d tensor from one pass.


@dataclass(frozen=True, kw_only=True)
class SampleBlocks(Gram):
    """Blocks ``M3[I, J, K] = E[x_I (x) x_J (x) x_K]`` (I <= J <= K, of side b) in one pass; no vectors are used.

    ``finish`` gives (units b b) x b: the blocks one under the other, in lexicographic order, padded with zeros at the
    edge of the tensor. 2 n b^3 flops for each block, in one matrix product with the pairs of a strip.

    Parameters
    ----------
    reader, view : as of :class:`Gram`, of which only ``shift`` is used: without it rows are as they are.
    side : b.
    wanted : the blocks of this pass, places in :func:`npmdask.tensors.moments.unique_blocks`.
    """

    side: int
    wanted: range

    def __post_init__(self) -> None:
        self.view.require_unweighted("a third moment")
        blocks_of(self.wanted, self._grid)

    @property
    def block_rows(self) -> int:
        return self.side

    @property
    def run_bytes(self) -> int:
        return least_run(len(self.wanted) * self.side**3 // 32)

    @cached_property
    def _grid(self) -> int:
        return -(-int(self.reader.shape[1]) // self.side)

    @cached_property
    def _height(self) -> int:
        """Rows whose pairs stay in cache."""
        return max(32, STRIP_BYTES // (8 * self.side**2))

    def partial(self, slabs: range, block: Block) -> Partial:
        record, b, d = ReadStats(), self.side, int(self.reader.shape[1])
        sums = np.zeros((len(self.wanted), b * b, b))
        for slab in self.reader.ahead(slabs):
            for rows, tile in self.reader.tiles(slab, record):
                for first in range(0, rows.stop - rows.start, self._height):
                    part = slice(first, min(first + self._height, rows.stop - rows.start))
                    whole = scratch(("samples", d), (self._height, self._grid * b), np.float64)[
                        : part.stop - part.start
                    ]
                    whole[:, d:] = 0.0
                    for columns, values in tile:
                        whole[:, columns] = values[part]
                        if self.view.shift is not None:
                            whole[:, columns] -= self.view.shift[columns]
                    self._add(sums, whole)
        return finite_partial({"product": sums.reshape(-1, b)}, self.reader, slabs, record)

    def _add(self, sums: np.ndarray, rows: np.ndarray) -> None:
        b, pairs, held = self.side, None, None
        for values, (i, j, k) in zip(sums, blocks_of(self.wanted, self._grid), strict=True):
            if held != (i, j):
                first, second = rows[:, i * b : (i + 1) * b], rows[:, j * b : (j + 1) * b]
                pairs, held = (first[:, :, None] * second[:, None, :]).reshape(len(rows), b * b), (i, j)
            assert pairs is not None
            values += pairs.T @ rows[:, k * b : (k + 1) * b]

    def finish(self, total: Partial, block: Block) -> Block:
        return total.sums["product"] / self.reader.shape[0]

    def task_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of one running task (the largest of ``runs``); no block is used."""
        strip = self._height * (2 * self.side**2 + self._grid * self.side)
        return self.reader.buffer_bytes + 8 * (strip + 2 * len(self.wanted) * self.side**3)

    def pending_bytes(self, p: int, runs: list[range]) -> int:
        return pending_sums(len(self.wanted) * self.side**2, self.side, runs)
