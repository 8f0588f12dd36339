"""The third moment of words in words, explicitly: some unique blocks of the d x d x d tensor from one pass."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.sparse import csc_matrix, csr_matrix

from npmdask.numerics.moments.blocks import blocks_of
from npmdask.numerics.moments.lda import cube_share, triple_share
from npmdask.numerics.subspaces import Block
from npmdask.operators._protocol import Partial, Sums, least_run, pending_sums, split_rows
from npmdask.operators.sparse import SPARSE_ROWS, row_strips
from npmdask.operators.word_moments import ByDocuments, WordSums, over_words, require_alpha0, words_of
from npmdask.storage.readers.sparse import CsrReader

DENSE_BYTES = 2**22  # of documents with one word in common, in dense form: as many are multiplied at once


@dataclass(frozen=True, kw_only=True)
class TripleBlocks(ByDocuments):
    """Blocks ``M3[I, J, K]`` (I <= J <= K, of side b) of words in one pass; the block of vectors is not used.

    ``finish`` gives (units b b) x b: the blocks one under the other, in lexicographic order, padded with zeros at the
    edge of the tensor, as a packed store holds them; a block with a repeated index is symmetric to the last bit. A
    whole tensor takes a pass for each of :func:`npmdask.numerics.moments.unit_groups`, and (2 / 3) nnz d^2 flops: word
    by word, the documents with it are multiplied in dense form.

    Parameters
    ----------
    sums : of :class:`WordTotals`.
    side : b.
    wanted : the blocks of this pass, places in :func:`npmdask.numerics.moments.unique_blocks`.
    alpha0 : of LDA; 0 for a single topic.
    """

    reader: CsrReader
    sums: WordSums
    side: int
    wanted: range
    alpha0: float = 0.0

    def __post_init__(self) -> None:
        require_alpha0(self.alpha0)
        blocks_of(self.wanted, self._grid)

    @property
    def block_rows(self) -> int:
        return self.side

    @property
    def run_bytes(self) -> int:
        return least_run(self._rows * self.side // 32)

    def finish(self, total: Partial, block: Block) -> Block:
        blocks, pairs = (values / self.sums.total for values in self._whole(total, block).values())
        for values, places in zip(blocks, self._places, strict=True):
            self._without_repeats(values, pairs, places)
            if self.alpha0:
                self._without_mixing(values, pairs, places)
            values[...] = _mirrored(values, places)
        return blocks.reshape(-1, self.side)

    @cached_property
    def _grid(self) -> int:
        return -(-int(self.reader.shape[1]) // self.side)

    @cached_property
    def _places(self) -> tuple[tuple[int, int, int], ...]:
        return blocks_of(self.wanted, self._grid)

    @cached_property
    def _block_rows(self) -> list[int]:
        """Block rows of words whose pairs are summed: the first of each block, for LDA the second too."""
        return sorted({row for places in self._places for row in places[: 2 if self.alpha0 else 1]})

    @cached_property
    def _rows(self) -> int:
        """Rows of the sum, of b numbers."""
        return len(self.wanted) * self.side**2 + len(self._block_rows) * 2 * self._width

    def _span(self, row: int) -> slice:
        return slice(row * self.side, (row + 1) * self.side)

    def _pair(self, pairs: np.ndarray, order: int, row: int, column: int) -> np.ndarray:
        """Block (row, column) of the sums of pairs over ``order`` words: b x b."""
        block: np.ndarray = pairs[self._block_rows.index(row), 3 - order][:, self._span(column)]
        return block

    def _of_words(self, values: np.ndarray, row: int) -> np.ndarray:
        """A number for each word of a block row, zeros where there are no more words."""
        inside = values[self._span(row)]
        return np.pad(inside, (0, self.side - len(inside)))

    def _without_repeats(self, values: np.ndarray, pairs: np.ndarray, places: tuple[int, int, int]) -> None:
        """Take off what a word adds as a repetition of itself; only blocks with a repeated index have any."""
        (i, j, k), same = places, np.arange(self.side)
        if i == j:
            values[same, same, :] -= self._pair(pairs, 3, i, k)
        if j == k:
            values[:, same, same] -= self._pair(pairs, 3, i, j)
        if i == k:
            values[same, :, same] -= self._pair(pairs, 3, i, j)
            values[same, same, same] += 2 * self._of_words(self.sums.third, i)

    def _without_mixing(self, values: np.ndarray, pairs: np.ndarray, places: tuple[int, int, int]) -> None:
        """Take off what the Dirichlet prior adds: see :mod:`npmdask.numerics.moments.lda`."""
        x, y, z = (self._of_words(self.sums.mean, row) for row in places)
        i, j, k = places
        xy, xz, yz = (self._second(pairs, *two) for two in ((i, j), (i, k), (j, k)))
        values -= triple_share(self.alpha0) * (xy[:, :, None] * z + xz[:, None, :] * y[:, None] + yz * x[:, None, None])
        values += cube_share(self.alpha0) * x[:, None, None] * y[:, None] * z

    def _second(self, pairs: np.ndarray, row: int, column: int) -> np.ndarray:
        """Block (row, column) of E2."""
        block = self._pair(pairs, 2, row, column)
        return block if row != column else block - np.diag(self._of_words(self.sums.second, row))

    def _nothing(self, block: Block) -> Sums:
        """The blocks (units, b, b, b), and over three and over two words the pairs (block rows, 2, b, d padded)."""
        b = self.side
        pairs = np.zeros((len(self._block_rows), 2, b, self._width))
        return {"blocks": np.zeros((len(self.wanted), b, b, b)), "pairs": pairs}

    def stacked(self, sums: Sums) -> np.ndarray:
        """In rows of b numbers."""
        return np.concatenate([values.reshape(-1, self.side) for values in sums.values()])

    def unstacked(self, stacked: np.ndarray, units: range) -> Sums:
        b = self.side
        sums = split_rows(stacked, {"blocks": len(self.wanted) * b * b, "pairs": 0})
        pairs = sums["pairs"].reshape(-1, 2, b, self._width)
        return {"blocks": sums["blocks"].reshape(-1, b, b, b), "pairs": pairs}

    def _add(self, sums: Sums, documents: csr_matrix, block: Block) -> None:
        blocks, pairs = sums["blocks"], sums["pairs"]
        for part in row_strips(documents, np.float64):
            part = csr_matrix((part.data, part.indices, part.indptr), shape=(part.shape[0], pairs.shape[-1]))  # padded
            lengths, columns = words_of(part), part.tocsc()
            weights = np.stack([over_words(lengths, order, self.sums.half_length) for order in (3, 2)])
            for place, row in enumerate(self._block_rows):
                for own in range(self.side):
                    for dense, weighted in _documents_with(row * self.side + own, part, columns, weights):
                        pairs[place, :, own] += weighted @ dense
                        self._add_word(blocks[:, own], row, dense, weighted[0])

    def _add_word(self, blocks: np.ndarray, row: int, dense: Block, weights: np.ndarray) -> None:
        """Add what documents with one word of block row ``row`` say of it, to its slice of the blocks (units, b, b)."""
        for second, units in self._runs.get(row, {}).items():
            thirds = range(self._places[units.start][2], self._places[units.stop - 1][2] + 1)
            spread = slice(thirds.start * self.side, thirds.stop * self.side)
            product = (weights[:, None] * dense[:, self._span(second)]).T @ dense[:, spread]
            blocks[units.start : units.stop] += product.reshape(self.side, -1, self.side).transpose(1, 0, 2)

    @cached_property
    def _runs(self) -> dict[int, dict[int, range]]:
        """By the first and the second block row, which of the blocks of this pass have them: neighbours."""
        runs: dict[int, dict[int, range]] = {}
        for unit, (i, j, _) in enumerate(self._places):
            row = runs.setdefault(i, {})
            row[j] = range(row[j].start if j in row else unit, unit + 1)
        return runs

    def task_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of one running task (the largest of ``runs``); no block is used."""
        transposed = 3 * self.reader.chunk  # numbers and indices of a chunk, by words
        strip = 6 * SPARSE_ROWS + transposed + 2 * DENSE_BYTES // 8 + self.side * self._width
        return self._task_bytes(runs, strip, 2 * self._rows * self.side)

    def pending_bytes(self, p: int, runs: list[range]) -> int:
        return pending_sums(self._rows, self.side, runs)

    @property
    def _width(self) -> int:
        return self.side * self._grid


def _documents_with(
    word: int, rows: csr_matrix, columns: csc_matrix, weights: np.ndarray
) -> Iterator[tuple[Block, np.ndarray]]:
    """The documents that hold a word, in dense form (n x d), and their ``weights`` times its count (2 x n)."""
    height = max(64, DENSE_BYTES // (8 * rows.shape[1]))
    start, stop = columns.indptr[word], columns.indptr[word + 1]
    for first in range(start, stop, height):
        inside = slice(first, min(first + height, stop))
        documents = columns.indices[inside]
        yield rows[documents].toarray(), weights[:, documents] * columns.data[inside]


def _mirrored(values: np.ndarray, places: tuple[int, int, int]) -> np.ndarray:
    """A block of which the entries with equal block rows are the same to the last bit in any order of their indices."""
    i, j, k = places
    if i != j and j != k:
        return values
    indices = np.indices(values.shape)
    equal = slice(0 if i == j else 1, 3 if j == k else 2)
    indices[equal] = np.sort(indices[equal], axis=0)
    mirrored: np.ndarray = values[tuple(indices)]
    return mirrored
