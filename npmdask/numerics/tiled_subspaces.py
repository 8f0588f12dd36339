"""What :mod:`npmdask.numerics.subspaces` does to blocks in memory, on blocks that are held a tile of rows at a time.

The same numbers to rounding. Sums over tiles are formed in their order, so that they have the same bits with any number
of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from npmdask.numerics.subspaces import TRIES, WHOLE, Block, _independent, _positive, tall_qr

T = TypeVar("T")
BASES = 3  # of a power method: X_{l-1}, of which the answer is made, X_l, and the product that becomes X_{l+1}


class TiledBlock(Protocol):
    """A block (d x p) that lies elsewhere."""

    @property
    def shape(self) -> tuple[int, int]: ...
    @property
    def tiles(self) -> list[slice]: ...
    def tile(self, number: int) -> np.ndarray: ...
    def write(self, start: int, values: np.ndarray) -> None: ...


class KeptBlock(TiledBlock, Protocol):
    """One that is read again later, perhaps by another process: ``sums`` are checksums of its tiles."""

    def known_by(self, sums: np.ndarray, /) -> KeptBlock: ...
    def sums(self, threads: int) -> np.ndarray: ...
    def flush(self) -> None: ...


class Places(Protocol):
    """Where the blocks of a run lie, each in the place of the one of BASES steps before."""

    threads: int

    def basis(self, step: int, shape: tuple[int, int]) -> KeptBlock: ...
    def reserve(self, blocks: Any) -> None: ...
    def note(self, step: int, done: dict[str, Any]) -> None: ...


class TurnedBlock:
    """``block @ turn`` (d x k), never formed: it is written and read a tile at a time."""

    dtype = np.dtype(np.float64)

    def __init__(self, block: TiledBlock, turn: np.ndarray) -> None:
        self.block, self.turn = block, turn

    @property
    def shape(self) -> tuple[int, int]:
        return self.block.shape[0], self.turn.shape[1]

    @property
    def nbytes(self) -> int:
        return self.shape[0] * self.shape[1] * 8

    def pieces(self) -> Iterator[np.ndarray]:
        """Its rows, from the first to the last."""
        for number in range(len(self.block.tiles)):
            yield self.block.tile(number) @ self.turn

    def __getitem__(self, index: tuple[slice, slice]) -> TurnedBlock:
        """Some of its columns."""
        rows, columns = index
        assert rows == slice(None)
        return TurnedBlock(self.block, self.turn[:, columns])


def over_tiles(work: Callable[[int], T], block: TiledBlock, threads: int) -> Iterator[T]:
    """``work`` on each tile by its number, some at a time; what it gives, in the order of the tiles."""
    with ThreadPoolExecutor(threads) as pool:
        yield from pool.map(work, range(len(block.tiles)))


class TiledRitz(NamedTuple):
    """Ritz pairs of A on the range of a tiled block.

    All ``values`` (p, by falling magnitude) and ``gram`` (R^T R of their residuals); the ``turn`` (p x k) that makes
    the block the leading vectors; ``asymmetry`` of ``basis^T A basis``, relative to the norm of the product.
    """

    values: np.ndarray
    gram: Block
    turn: Block
    asymmetry: float
    scale: np.ndarray  # lengths of the columns of the product


def tiled_rayleigh_ritz(basis: TiledBlock, product: TiledBlock, k: int, threads: int) -> TiledRitz:
    """The Ritz pairs of A on range(``basis``), given ``product`` = A @ ``basis``; each is read twice.

    Residuals are differences of vectors, as of blocks in memory: right to rounding of A.
    """

    def first(number: int) -> tuple[np.ndarray, np.ndarray]:
        tile = product.tile(number)
        return basis.tile(number).T @ tile, _largest(tile)

    h, largest = np.zeros((basis.shape[1],) * 2), np.zeros(basis.shape[1])
    for part, size in over_tiles(first, basis, threads):
        h += part
        largest = np.maximum(largest, size)
    theta, rotation = np.linalg.eigh((h + h.T) / 2)
    order = np.argsort(-np.abs(theta), kind="stable")
    values, rotation, unit = theta[order], rotation[:, order], _positive(largest)

    def second(number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        tile = product.tile(number)
        vectors = basis.tile(number) @ rotation
        ends = vectors[:, :k].argmax(axis=0), vectors[:, :k].argmin(axis=0)
        extremes = np.stack([vectors[at, range(k)] for at in ends])
        places = np.stack(ends) + basis.tiles[number].start
        vectors *= -values
        vectors += tile @ rotation
        gram = vectors.T @ vectors
        tile /= unit
        return gram, np.einsum("ij,ij->j", tile, tile), extremes, places

    gram, squares = np.zeros_like(h), np.zeros(len(h))
    ends, where = np.array([[-np.inf], [np.inf]]) * np.ones(k), np.zeros((2, k), np.int64)
    for part, lengths, extremes, places in over_tiles(second, basis, threads):
        gram += part
        squares += lengths
        further = np.stack([extremes[0] > ends[0], extremes[1] < ends[1]])
        ends, where = np.where(further, extremes, ends), np.where(further, places, where)
    low, high = -ends[1], ends[0]
    signs = np.where((low > high) | ((low == high) & (where[1] < where[0])), -1.0, 1.0)  # as ``fix_signs``
    scale = unit * _positive(np.sqrt(squares))
    norm = float(np.linalg.norm(unit * np.sqrt(squares)))
    skew = float(np.linalg.norm(h - h.T)) / 2
    return TiledRitz(values, gram, rotation[:, :k] * signs, skew / norm if norm > 0 else 0.0, scale)


def column_lengths(block: TiledBlock, threads: int) -> np.ndarray:
    """The norm of each column (1 of columns that are zero), without overflow of squares."""
    largest = np.zeros(block.shape[1])
    for size in over_tiles(lambda number: _largest(block.tile(number)), block, threads):
        largest = np.maximum(largest, size)
    unit = _positive(largest)

    def squares(number: int) -> np.ndarray:
        tile = block.tile(number) / unit
        return np.asarray(np.einsum("ij,ij->j", tile, tile))

    total = np.zeros(block.shape[1])
    for part in over_tiles(squares, block, threads):
        total += part
    return np.asarray(unit * _positive(np.sqrt(total)))


def _largest(tile: np.ndarray) -> np.ndarray:
    return np.asarray(np.maximum(tile.max(axis=0), -tile.min(axis=0)))


def tiled_orth(block: TiledBlock, scale: np.ndarray, completion: np.random.Generator, threads: int) -> None:
    """Replace ``block`` by an orthonormal basis of its range, as :func:`npmdask.numerics.subspaces.orth` does.

    TSQR (Demmel, Grigori, Hoemmen and Langou 2012): Householder's QR of each tile, and of all their R factors. It is
    stable whatever the condition of the block, which Cholesky QR is not, so nothing needs to be tested and repaired.
    Each tile is factorised twice, once for R and once for Q, so that no second block is kept. Killed in its middle it
    has spoilt the block.

    Parameters
    ----------
    block : d x p.
    scale : what its columns are divided by (p): their lengths.
    completion : draws directions in the place of columns that are zero to rounding.
    """
    every = np.arange(block.shape[1])
    turns, r = _factors(block, scale, every, threads)
    least = 8 * block.shape[0] ** 0.5 * np.finfo(np.float64).eps
    lost = np.abs(np.diagonal(r)) <= least
    if not lost.any():
        _replace(block, scale, every, turns, np.diag(_signs(r)), every, threads)
        return
    kept, turn = _independent(r, least)
    lost = ~np.isin(every, kept)
    _replace(block, scale, every, turns, turn, kept, threads)
    for _ in range(TRIES):
        for number, part in enumerate(block.tiles):  # in their order: one stream of random numbers
            tile = block.tile(number)
            tile[:, lost] = completion.standard_normal((len(tile), int(lost.sum())))
            block.write(part.start, tile)
        order, one = np.argsort(lost, kind="stable"), np.ones(block.shape[1])
        for _ in range(2):  # "twice is enough"
            turns, r = _factors(block, one, order, threads)
            _replace(block, one, order, turns, np.diag(_signs(r)), order, threads)
        lost = np.zeros_like(lost)
        lost[order] = np.abs(np.diagonal(r)) < WHOLE
        if not lost.any():
            return


def _signs(r: Block) -> np.ndarray:
    return np.where(np.diagonal(r) < 0, -1.0, 1.0)


def _scaled(block: TiledBlock, number: int, scale: np.ndarray, columns: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray((block.tile(number) / scale)[:, columns])


def _factors(block: TiledBlock, scale: np.ndarray, columns: np.ndarray, threads: int) -> tuple[Block, Block]:
    """What the Q of each tile is turned by (p x p each, one under the other), and R of the whole."""

    def factor(number: int) -> np.ndarray:
        return tall_qr(_scaled(block, number, scale, columns))[1]

    return tall_qr(np.concatenate(list(over_tiles(factor, block, threads))))


def _replace(
    block: TiledBlock,
    scale: np.ndarray,
    columns: np.ndarray,
    turns: Block,
    turn: Block,
    into: np.ndarray,
    threads: int,
) -> None:
    """Write Q @ ``turn`` into the columns ``into``, tile by tile."""
    p = len(columns)

    def rewrite(number: int) -> None:
        q = tall_qr(_scaled(block, number, scale, columns))[0]
        found = np.zeros((len(q), block.shape[1]))
        found[:, into] = q @ (turns[number * p : (number + 1) * p] @ turn)
        block.write(block.tiles[number].start, found)

    for _ in over_tiles(rewrite, block, threads):
        pass


def tiled_random(block: TiledBlock, rng: np.random.Generator, threads: int) -> None:
    """Make ``block`` the orthonormal block that ``random_orthonormal`` makes of the same stream, to rounding."""
    for part in block.tiles:
        block.write(part.start, rng.standard_normal((part.stop - part.start, block.shape[1])))
    tiled_orth(block, column_lengths(block, threads), rng, threads)
