"""Moments of words in documents (CSR counts), with no tensor formed: one pass for each product with them.

A document with counts c and N words says of three *different* words of it, drawn without putting back:

    E2(c) = (c c^T - diag c) / (N (N - 1))
    E3(c) = (c (x) c (x) c - sum_ij c_i c_j (e_i e_i e_j and its orders) + 2 sum_i c_i e_i (x) e_i (x) e_i)
            / (N (N - 1) (N - 2))

Without the terms on the diagonals a word would be counted as a repetition of itself: with 6 words a document (40,000
documents of 50 words) M2 is then wrong by 74 per cent and M3 by 130, instead of 2.5 and 5. Documents of fewer than
three words say nothing of three, are left out of all sums, and counted. Formulas: Anandkumar et al. (2014), section 6;
code: SpectralLDA.

Means over documents are weighted: one of N words counts ``N / (N + half_length)``. Any weights that depend on N alone
leave the moments unbiased, and equal ones leave them to the shortest: E3 of a document of five words has entries of
1 / 10, and six such tables of contents outweighed 1491 papers of a thousand words (docs/decisions/0029).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from scipy.sparse import csc_matrix, csr_matrix

from npmdask.core.numerics.subspaces import Block
from npmdask.core.operators._protocol import (
    BySlabs,
    Partial,
    Sums,
    joined,
    least_run,
    pending_sums,
    require_finite,
    split_rows,
)
from npmdask.core.operators.sparse_gram import SPARSE_ROWS, row_strips
from npmdask.core.storage.readers.dense import ReadStats
from npmdask.core.storage.readers.sparse import CsrReader, Fragment, cut_rows, whole_rows
from npmdask.errors import BadInputError
from npmdask.tensors.moments import (
    blocks_of,
    cube_share,
    in_three_orders,
    lda_cube,
    lda_pairs,
    lda_triples,
    require_whitening,
    triple_share,
)

FEWEST_WORDS = 3
HALF_LENGTH = 100.0  # words of a document that counts half as much as a very long one
STRIP_VALUES = 2**17  # of one product of a strip of documents: all of a strip's in cache, measured best of 2^14 to 2^20


class ByDocuments(BySlabs, ABC):
    """An operator that sums over documents: what is added of whole rows, here or once cut rows are put together."""

    reader: CsrReader

    def partial(self, slabs: range, block: Block) -> Partial:
        record, fragments, sums = ReadStats(), list[Fragment](), self._empty_sums(block)
        for _, piece in whole_rows(self.reader, slabs, record, fragments):
            self._add(sums, piece, block)
        require_finite(sums, self.reader, slabs)
        return Partial(self._reduced(sums, block), record, fragments)

    def _total_sums(self, total: Partial, block: Block) -> Sums:
        """The sums over all documents, those cut by the borders between runs included."""
        sums = self._empty_sums(block)
        self._add(sums, cut_rows(self.reader, total.fragments), block)
        return joined(total.sums, self._reduced(sums, block))

    @abstractmethod
    def _empty_sums(self, block: Block) -> Sums:
        """Sums before the first document."""

    @abstractmethod
    def _add(self, sums: Sums, documents: csr_matrix, block: Block) -> None:
        """Add what whole documents say."""

    def _reduced(self, sums: Sums, block: Block) -> Sums:
        """Reduce the sums of a run to what is kept."""
        return sums

    def _task_bytes(self, runs: list[range], strip: int, kept: int) -> int:
        """Reading, a strip of ``strip`` numbers, and two sums of ``kept`` numbers."""
        pointers = max(self.reader.pointer_bytes(slabs) for slabs in runs)
        return self.reader.buffer_bytes + pointers + 8 * strip + 2 * 8 * kept


@dataclass(frozen=True, kw_only=True)
class WordSums:
    """Sums of every word from one pass, for all later ones: means over the documents of at least three words.

    Attributes
    ----------
    mean : M1 (d): the mean share of a word in a document.
    second, third : mean counts over ``N (N - 1)`` and ``N (N - 1) (N - 2)`` (d): the diagonals that are taken off.
    frequency : how often each word occurs in these documents (d).
    documents, skipped : with at least, and with fewer than three words; words of the first.
    half_length : of the weights ``N / (N + half_length)`` of documents; 0: all count the same.
    total : the sum of the weights.
    """

    mean: np.ndarray
    second: np.ndarray
    third: np.ndarray
    frequency: np.ndarray
    documents: int
    skipped: int
    words: int
    half_length: float
    total: float


@dataclass(frozen=True, kw_only=True)
class WordTotals(ByDocuments):
    """The first pass over a corpus: :class:`WordSums` (``sums_of`` the product), and whether counts are counts.

    The block is not used. ``finish`` gives (d + 1) x 4: weighted sums of c / N, c / (N (N - 1)) and
    c / (N (N - 1) (N - 2)), and the sum of c; in the last row documents, words and the sum of the weights.

    Raises
    ------
    BadInputError
        A count that is negative, fractional or not finite, with its row.
    """

    reader: CsrReader
    half_length: float = HALF_LENGTH

    def __post_init__(self) -> None:
        if not 0 <= self.half_length < np.inf:
            raise BadInputError(f"half_length = {self.half_length} must be a number of words of at least 0")

    def partial(self, slabs: range, block: Block) -> Partial:
        record, fragments, sums = ReadStats(), list[Fragment](), self._empty_sums(block)
        row = self.reader.rows_of(slabs)[0]
        for piece in self.reader.blocks(slabs, record):
            if isinstance(piece, Fragment):
                _require_counts(self.reader, piece.data, np.array([0, len(piece.data)]), piece.row)
                fragments.append(piece)
                row = piece.row + 1
            else:
                _require_counts(self.reader, piece.data, piece.indptr, row)
                self._add(sums, piece, block)
                row += piece.shape[0]
        return Partial(sums, record, fragments)

    def unstacked(self, stacked: np.ndarray, units: range) -> Sums:
        return split_rows(stacked, {"of words": self.block_rows, "of all": 1})

    def finish(self, total: Partial, block: Block) -> Block:
        return np.concatenate(list(self._total_sums(total, block).values()))

    def sums_of(self, product: Block) -> WordSums:
        """The product of a pass, read.

        Raises
        ------
        BadInputError
            No document has three words.
        """
        rows, (documents, words) = self.reader.shape[0], (int(number) for number in product[-1, :2])
        total = float(product[-1, 2])
        if documents == 0:
            raise BadInputError(
                f"none of the {rows} documents of {self.reader.where} has three words: moments of words need longer "
                "documents; join short ones"
            )
        mean, second, third = product[:-1, :3].T / total
        return WordSums(
            mean=mean,
            second=second,
            third=third,
            frequency=product[:-1, 3].copy(),
            documents=documents,
            skipped=rows - documents,
            words=words,
            half_length=self.half_length,
            total=total,
        )

    def _empty_sums(self, block: Block) -> Sums:
        return {"of words": np.zeros((self.block_rows, 4)), "of all": np.zeros((1, 4))}

    def _add(self, sums: Sums, documents: csr_matrix, block: Block) -> None:
        for part in row_strips(documents, np.float64):
            lengths = words_of(part)
            used = lengths >= FEWEST_WORDS
            orders = [over_words(lengths, order, self.half_length) for order in (1, 2, 3)]
            sums["of words"] += part.T @ np.stack([*orders, used], axis=1)
            sums["of all"][0, :3] += used.sum(), lengths[used].sum(), over_words(lengths, 0, self.half_length).sum()

    def task_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of one running task (the largest of ``runs``); no block is used."""
        checked = 2 * self.reader.chunk  # a number and some bits for each entry
        return self._task_bytes(runs, 8 * SPARSE_ROWS + checked, 4 * (self.block_rows + 1))

    def pending_bytes(self, p: int, runs: list[range]) -> int:
        return pending_sums(self.block_rows + 1, 4, runs)


@dataclass(frozen=True, kw_only=True)
class WordPairs(ByDocuments):
    """``M2 @ U``: a symmetric d x d matrix (not positive), ``sum alpha_i / (a0 (a0 + 1)) mu_i mu_i^T`` in theory.

    ``alpha0 = 0``: the model of a single topic, ``sum w_i mu_i mu_i^T``.
    """

    reader: CsrReader
    sums: WordSums
    alpha0: float = 0.0

    def __post_init__(self) -> None:
        require_alpha0(self.alpha0)

    def finish(self, total: Partial, block: Block) -> Block:
        second = self._total_sums(total, block)["product"] / self.sums.total - self.sums.second[:, None] * block
        return lda_pairs(second, self.sums.mean, block, self.alpha0)

    def _empty_sums(self, block: Block) -> Sums:
        return {"product": np.zeros(block.shape)}

    def _add(self, sums: Sums, documents: csr_matrix, block: Block) -> None:
        height = strip_height(*block.shape)
        for part in row_strips(documents, block.dtype, height):
            weights = over_words(words_of(part), 2, self.sums.half_length).astype(block.dtype, copy=False)
            sums["product"] += part.T @ (weights[:, None] * (part @ block))

    def task_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of one running task (the largest of ``runs``) beyond the block, with p columns."""
        d = self.block_rows
        return self._task_bytes(runs, strip_height(d, p) * (2 * p + 4), 2 * d * p)


@dataclass(frozen=True, kw_only=True)
class WordTriples(ByDocuments):
    """``M3(I, u, u)`` for the L columns u of a block at once: about 10 nnz L flops, O(d L) memory.

    Parameters
    ----------
    sums : of :class:`WordTotals`.
    alpha0 : of LDA; 0 for a single topic.
    whitening : W (d x m): the block is then m x L and the answer ``W^T M3(I, W b, W b)`` (m x L).
    scores : the answer is ``M3(u, u, u)`` instead (1 x L).
    """

    reader: CsrReader
    sums: WordSums
    alpha0: float = 0.0
    whitening: Block | None = None
    scores: bool = False
    answers: ClassVar[tuple[str, ...]] = ("scores",)

    def __post_init__(self) -> None:
        require_alpha0(self.alpha0)
        require_whitening(self.whitening, self.reader.shape[1])

    @property
    def block_rows(self) -> int:
        return int(self.reader.shape[1] if self.whitening is None else self.whitening.shape[1])

    @property
    def run_bytes(self) -> int:
        return least_run(2 * int(self.reader.shape[1]))

    def finish(self, total: Partial, block: Block) -> Block:
        words, sums = self._words(block), self.sums
        whole = self._total_sums(total, block)
        third = whole["third"] / sums.total + self._unwhiten(2 * words**2 * sums.third[:, None])
        if self.alpha0:
            second = whole["second"] / sums.total - self._unwhiten(words * sums.second[:, None])
            third = lda_triples(third, second, self._unwhiten(sums.mean), block, self.alpha0)
        return np.einsum("dl,dl->l", third, block)[None] if self.scores else third

    @cached_property
    def _sums_kept(self) -> int:
        """Sums of d x L: of two different words and a repeated one; for LDA pairs of words too."""
        return 3 if self.alpha0 else 2

    def _words(self, block: Block) -> Block:
        """The block in coordinates of words (d x L)."""
        return block if self.whitening is None else (self.whitening @ block).astype(block.dtype, copy=False)

    def _unwhiten(self, values: np.ndarray) -> np.ndarray:
        return values if self.whitening is None else self.whitening.T @ values

    def _empty_sums(self, block: Block) -> Sums:
        return {"factors": np.zeros((self.reader.shape[1], self._sums_kept * block.shape[1]))}

    def _add(self, sums: Sums, documents: csr_matrix, block: Block) -> None:
        words = self._words(block)
        d, columns = words.shape
        both = np.concatenate([words, words**2], axis=1)
        for part in row_strips(documents, block.dtype, strip_height(d, 3 * columns)):
            lengths, images = words_of(part), part @ both
            weights = (over_words(lengths, order, self.sums.half_length) for order in (3, 2))
            thirds, seconds = (one[:, None].astype(block.dtype, copy=False) for one in weights)
            along, squares = images[:, :columns], images[:, columns:]
            factors = [thirds * (along**2 - squares), thirds * along, seconds * along]
            sums["factors"] += part.T @ np.concatenate(factors[: self._sums_kept], axis=1)

    def _reduced(self, sums: Sums, block: Block) -> Sums:
        """E3(I, u, u) but for its last term; for LDA also E2 u but for its diagonal."""
        factors, columns = sums["factors"], block.shape[1]
        third = factors[:, :columns] - 2 * self._words(block) * factors[:, columns : 2 * columns]
        reduced = {"third": self._unwhiten(third)}
        return reduced | ({"second": self._unwhiten(factors[:, 2 * columns :])} if self.alpha0 else {})

    def stacked(self, sums: Sums) -> np.ndarray:
        """Side by side."""
        return np.concatenate(list(sums.values()), axis=1)

    def unstacked(self, stacked: np.ndarray, units: range) -> Sums:
        names = ("third", "second") if self.alpha0 else ("third",)
        return dict(zip(names, np.split(stacked, len(names), axis=1), strict=True))

    def task_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of one running task (the largest of ``runs``) beyond the block, with p columns."""
        d = int(self.reader.shape[1])
        return self._task_bytes(runs, strip_height(d, 3 * p) * (9 * p + 4), 6 * d * p)

    def pending_bytes(self, p: int, runs: list[range]) -> int:
        return pending_sums(self.block_rows, 2 * p, runs)


def words_of(documents: csr_matrix) -> np.ndarray:
    """The number of words of each document."""
    return documents @ np.ones(documents.shape[1])


def over_words(lengths: np.ndarray, order: int, half_length: float) -> np.ndarray:
    """The weight of each document, ``N / (N + half_length)``, over ``N (N - 1) ...`` with ``order`` factors.

    0 for documents of fewer than three words.
    """
    used = lengths >= FEWEST_WORDS
    safe = np.where(used, lengths, FEWEST_WORDS).astype(np.float64)
    weights = safe / (safe + half_length)
    for taken in range(order):
        weights /= safe - taken
    return np.where(used, weights, 0.0)


def strip_height(d: int, columns: int) -> int:
    """Documents of a strip: few enough for cache, enough that clearing a sum of d rows for each costs little."""
    return min(SPARSE_ROWS, max(256, d // 4, STRIP_VALUES // max(columns, 1)))


def require_alpha0(alpha0: float) -> None:
    if not 0 <= alpha0 < np.inf:
        raise BadInputError(f"alpha0 = {alpha0} must be at least 0 (0: a single topic); it is the sum of all alpha_i")


def _require_counts(reader: CsrReader, data: np.ndarray, pointers: np.ndarray, first: int) -> None:
    """Every value is 0, 1, 2, ...; or a sentence that names the document."""
    fine = (data >= 0) & (data < np.inf) & (data == np.floor(data))
    if fine.all():
        return
    at = int(np.argmin(fine))
    row = first + int(np.searchsorted(pointers, at, side="right")) - 1
    raise BadInputError(
        f"document (row) {row} of {reader.where} holds {data[at]}: words are counted as 0, 1, 2, ...; ingest the raw "
        "counts, not tf-idf or shares"
    )


# The third moment of words in words, explicitly: some unique blocks of the d x d x d tensor from one pass.


DENSE_BYTES = 2**22  # of documents with one word in common, in dense form: as many are multiplied at once


@dataclass(frozen=True, kw_only=True)
class TripleBlocks(ByDocuments):
    """Blocks ``M3[I, J, K]`` (I <= J <= K, of side b) of words in one pass; the block of vectors is not used.

    ``finish`` gives (units b b) x b: the blocks one under the other, in lexicographic order, padded with zeros at the
    edge of the tensor, as a packed store holds them; a block with a repeated index is symmetric to the last bit. A
    whole tensor takes a pass for each of :func:`npmdask.tensors.moments.unit_groups`, and (2 / 3) nnz d^2 flops: word
    by word, the documents with it are multiplied in dense form.

    Parameters
    ----------
    sums : of :class:`WordTotals`.
    side : b.
    wanted : the blocks of this pass, places in :func:`npmdask.tensors.moments.unique_blocks`.
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
        blocks, pairs = (values / self.sums.total for values in self._total_sums(total, block).values())
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
        return pairs[self._block_rows.index(row), 3 - order][:, self._span(column)]

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
        """Take off what the Dirichlet prior adds: see :mod:`npmdask.tensors.moments`."""
        x, y, z = (self._of_words(self.sums.mean, row) for row in places)
        i, j, k = places
        xy, xz, yz = (self._e2_block(pairs, *two) for two in ((i, j), (i, k), (j, k)))
        values -= triple_share(self.alpha0) * (xy[:, :, None] * z + xz[:, None, :] * y[:, None] + yz * x[:, None, None])
        values += cube_share(self.alpha0) * x[:, None, None] * y[:, None] * z

    def _e2_block(self, pairs: np.ndarray, row: int, column: int) -> np.ndarray:
        """Block (row, column) of E2."""
        block = self._pair(pairs, 2, row, column)
        return block if row != column else block - np.diag(self._of_words(self.sums.second, row))

    def _empty_sums(self, block: Block) -> Sums:
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
    return values[tuple(indices)]


# The third moment of words in white coordinates, held: ``M3(W, W, W)``, m x m x m, from one pass.


COLUMNS = 32  # a run reads four times a sum with so many columns: see operators._protocol.COLUMN_BYTES


@dataclass(frozen=True, kw_only=True)
class WhitenedTriples(ByDocuments):
    """``M3(W, W, W)`` as its (m m) x m matrix; the block is not used. O(nnz m + n m^3 / 3 + d m^3) flops.

    Of the terms with a repeated word only ``G = C^T (w3 C W)`` (d x m) is summed over the documents: they are
    ``sum_i W_i (x) W_i (x) G_i`` in its three orders, formed once, at the end. No d x m^2 is held, nor anything of m^2
    for each document: the sum is of m^2 + m + d rows and m columns.

    Parameters
    ----------
    sums : of :class:`WordTotals`.
    whitening : W (d x m).
    alpha0 : of LDA; 0 for a single topic.
    """

    reader: CsrReader
    sums: WordSums
    whitening: Block
    alpha0: float = 0.0

    def __post_init__(self) -> None:
        require_alpha0(self.alpha0)
        require_whitening(self.whitening, self.reader.shape[1])

    @property
    def side(self) -> int:
        """m."""
        return int(self.whitening.shape[1])

    @property
    def block_rows(self) -> int:
        return self.side

    @property
    def run_bytes(self) -> int:
        return least_run(self._rows * -(-self.side // COLUMNS))

    def finish(self, total: Partial, block: Block) -> Block:
        m, white, sums = self.side, self.whitening, self.sums
        whole = {name: values / sums.total for name, values in self._total_sums(total, block).items()}
        different = _symmetric_cube(whole["cubes"])
        second = whole["pairs"] - white.T @ (sums.second[:, None] * white)
        repeated = _weighted_cube(white, whole["repeated"] - 2 / 3 * sums.third[:, None] * white)
        third = different - in_three_orders(repeated)
        return lda_cube(third, second, white.T @ sums.mean, self.alpha0).reshape(m * m, m)

    @property
    def _rows(self) -> int:
        return self.side**2 + self.side + int(self.reader.shape[1])

    def _empty_sums(self, block: Block) -> Sums:
        m = self.side
        return {"cubes": np.zeros((m, m, m)), "pairs": np.zeros((m, m)), "repeated": np.zeros(self.whitening.shape)}

    def unstacked(self, stacked: np.ndarray, units: range) -> Sums:
        m = self.side
        sums = split_rows(stacked, {"cubes": m * m, "pairs": m, "repeated": len(self.whitening)})
        return sums | {"cubes": sums["cubes"].reshape(m, m, m)}

    def _add(self, sums: Sums, documents: csr_matrix, block: Block) -> None:
        m = self.side
        cubes = sums["cubes"]
        for part in row_strips(documents, np.float64, strip_height(len(self.whitening), 3 * m)):
            lengths, images = words_of(part), part @ self.whitening
            weighted = over_words(lengths, 3, self.sums.half_length)[:, None] * images
            for a in range(m):  # entries a <= b, c: the others are the same
                cubes[a, a:, a:] += (weighted[:, a : a + 1] * images[:, a:]).T @ images[:, a:]
            sums["pairs"] += images.T @ (over_words(lengths, 2, self.sums.half_length)[:, None] * images)
            sums["repeated"] += part.T @ weighted

    def task_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of one running task (the largest of ``runs``); no block is used."""
        m, d = self.side, len(self.whitening)
        return self._task_bytes(runs, strip_height(d, 3 * m) * (3 * m + 4) + d * m, 2 * self._rows * m)

    def pending_bytes(self, p: int, runs: list[range]) -> int:
        return pending_sums(self._rows, self.side, runs)


def _symmetric_cube(cube: np.ndarray) -> np.ndarray:
    """A symmetric m x m x m of which the entries with a first index that is the least are given."""
    whole = np.empty_like(cube)
    for a in range(len(cube)):
        part = cube[a, a:, a:]
        part = (part + part.T) / 2  # equal but for rounding
        whole[a, a:, a:] = whole[a:, a, a:] = whole[a:, a:, a] = part
    return whole


def _weighted_cube(white: Block, weights: Block) -> np.ndarray:
    """``sum_i W_i (x) W_i (x) G_i`` (m x m x m) of the rows of two d x m matrices, without a d x m^2."""
    return np.stack([(white[:, a : a + 1] * white).T @ weights for a in range(white.shape[1])])
