"""``A A^T`` of few rows with many columns: formed of whole columns of chunks, and multiplied by columns of its own.

A unit of these passes is a column of chunks, not a row of them: a task holds all rows of some columns. So each column
is centred by its own mean before anything is multiplied, and nothing cancels, however far from zero it lies.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from npmdask.core import features
from npmdask.core.numerics.subspaces import Block
from npmdask.core.operators._protocol import FEW_RUNS, SUMS_READ, BySlabs, Partial, Sums, own_rows, require_finite
from npmdask.core.operators.column_moments import OF_COLUMNS
from npmdask.core.operators.gram_matrix import FINISHING, SIDE, SINGLE, UpperBlocks
from npmdask.core.operators.view import AS_STORED, View
from npmdask.core.storage.readers.dense import ReadStats, scratch
from npmdask.errors import BadInputError

STRIP_ENTRIES = 2**20  # of the columns that are multiplied at once: 8 MiB, and
STRIP_COLUMNS = (256, 2048)  # so many of them: of fewer the sums take longer than the products
RUN_BYTES = 4 * 2**20  # least of a task: each entry is multiplied by as many numbers as there are rows


@dataclass(frozen=True, kw_only=True)
class ByColumns(BySlabs):
    """A pass over all rows of some columns at a time."""

    reader: Any
    weight: float = 1.0
    view: View = AS_STORED
    parts: int = 1  # of a column of chunks, each read with all rows: so many times every chunk is

    @property
    def rows(self) -> int:
        """m, the side of the matrix."""
        return int(self.reader.shape[0])

    @property
    def block_rows(self) -> int:
        """Rows of what is multiplied: as many as the data have."""
        return self.rows

    @property
    def state_rows(self) -> int:
        """Rows of the blocks that an algorithm keeps meanwhile: as many as the data have columns."""
        return int(self.reader.shape[1])

    @property
    def units(self) -> int:
        return int(self.reader.grid[1]) * self.parts

    @property
    def _widest(self) -> int:
        """Columns of a part, at most."""
        return -(-int(self.reader.chunks[1]) // self.parts)

    @property
    def held_bytes(self) -> int:
        """Memory of all rows of a part."""
        return self.rows * self._widest * int(self.reader.dtype.itemsize)

    @property
    def _reading_bytes(self) -> int:
        """Memory that a part takes as it is read."""
        return int(self.reader.chunk_bytes) + self.held_bytes

    @property
    def pass_bytes(self) -> int:
        return super().pass_bytes * self.parts

    @property
    def pass_chunks(self) -> int:
        return super().pass_chunks * self.parts

    @property
    def run_bytes(self) -> int:
        """The least that a run reads."""
        return RUN_BYTES

    def read_ahead(self, units: range) -> None:
        """Have the kernel fetch the first of ``units`` meanwhile, where that can be asked for."""
        for unit in units[:1]:
            for slab in range(self.reader.grid[0]):
                self.reader.read_chunk_ahead(slab, unit // self.parts)

    def columns_of(self, units: range) -> slice:
        """The columns that some units hold."""
        first, last = (self.reader.part_columns(unit, self.parts) for unit in (units[0], units[-1]))
        return slice(first.start, last.stop)

    def _strips(self, units: range, record: ReadStats) -> Iterator[tuple[slice | np.ndarray, Any]]:
        """Some columns, and all their rows in float64 (m x w), in memory that the next ones reuse."""
        few, many = STRIP_COLUMNS
        width = min(max(STRIP_ENTRIES // self.rows, few), many)
        for unit in units:
            self.read_ahead(range(unit + 1, min(unit + 2, units.stop)))
            columns = self.reader.part_columns(unit, self.parts)
            held = scratch("all rows", (self.rows, self._widest), self.reader.dtype)
            values, first = held[:, : columns.stop - columns.start], columns.start
            own = ReadStats()
            for rows, some in self.reader.column_chunks(unit, self.parts, own):
                values[rows] = some
            vars(record).update(vars(self._joined(record, own)))
            for start in range(0, values.shape[1], width):
                part = values[:, start : start + width]
                strip = scratch(("columns", part.shape[1]), part.shape, np.float64)
                np.copyto(strip, part, casting="unsafe")
                yield slice(first + start, first + start + part.shape[1]), strip

    def join(self, left: Partial, right: Partial) -> Partial:
        """The sums of two neighbours, of chunks that were the same whenever they were read."""
        self._joined(left.record, right.record)
        return super().join(left, right)

    def _joined(self, left: ReadStats, right: ReadStats) -> ReadStats:
        for at in left.checksums.keys() & right.checksums.keys():
            if left.checksums[at] != right.checksums[at]:
                raise BadInputError(
                    f"chunk {self.reader.chunk_name(*at)} of {self.reader.where} changed while it was read, part by "
                    "part: run again with data that stay as they are"
                )
        return left.add(right)

    @cached_property
    def _share(self) -> np.ndarray:
        """The weight of each row, of that of all (m)."""
        weights = self.view.row_weight
        return np.full(self.rows, 1 / self.rows) if weights is None else weights / weights.sum()

    def _weighted(self, strip: np.ndarray, columns: slice | np.ndarray) -> np.ndarray:
        """Weight and scale rows and columns that are centred already, in place."""
        if self.view.row_weight is not None:
            strip *= self.view.row_roots[:, None]
        if self.view.scale is not None:
            strip /= self.view.scale[columns]
        if self.view.column_weight is not None:
            strip *= np.sqrt(self.view.column_weight[columns])
        return strip

    def task_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of one running task beyond the block, with p columns."""
        strips = (3 * 8 + 4) * max(STRIP_ENTRIES, self.rows * STRIP_COLUMNS[0]) + 3 * self.rows * p * 8
        return self._reading_bytes + strips


@dataclass(frozen=True, kw_only=True)
class RowGram(ByColumns):
    """``weight * A A^T`` itself (m x m), A the ``view`` of a stored m x d array, and its product with a block (m x p).

    Parameters
    ----------
    reader : one that reads all rows of some columns at once: ``column_chunks``.
    weight, view : as of :class:`npmdask.core.operators.Gram`.
    parts : how many a column of chunks is read in, each with all rows.
    single : multiply strips in float32, and add them up in float64; as of :class:`npmdask.core.operators.GramMatrix`.

    Notes
    -----
    A pass sums ``gram``, blocks of the upper triangle, and ``image``, the product with the block, formed apart from it.
    Each unit has ``found`` of its own columns, their means and deviations. Beside the product ``image`` has ``beside``
    columns of a reader that forms it in another way.
    """

    found: ClassVar[tuple[str, ...]] = OF_COLUMNS[:2]
    beside: ClassVar[int] = 0
    at_once: ClassVar[str] = "column of chunks"

    single: bool = False

    @property
    def forms(self) -> str:
        """Return what block Krylov does not form, where that is what takes the memory."""
        if self.parts == 1:
            return f"rows x rows, and holds no {self.at_once} at once"
        return "rows x rows" if self.sum_bytes > self.held_bytes else ""

    @property
    def arithmetic(self) -> str:  # type: ignore[override]  # read alike of a class and of an instance
        """Return how strips are multiplied, which the parts of a pass must share."""
        return "float32" if self.single else ""

    @property
    def blocks(self) -> UpperBlocks:
        """Blocks of the upper triangle."""
        return UpperBlocks(self.rows, SIDE)

    @property
    def sum_bytes(self) -> int:
        """Memory of the blocks of the upper triangle."""
        return int(np.prod(self.blocks.shape)) * 8

    @property
    def run_bytes(self) -> int:
        """The least that a run reads: many times the sum that it returns, or a share of all."""
        return max(RUN_BYTES, min(SUMS_READ * self.sum_bytes, self.pass_bytes // FEW_RUNS))

    def partial(self, slabs: range, block: Block) -> Partial:
        record, columns = ReadStats(), self.columns_of(slabs)
        gram, image = np.zeros(self.blocks.shape), np.zeros((self.rows, block.shape[1] + self.beside))
        moments = np.zeros((columns.stop - columns.start, len(self.found)))
        for here, strip in self._strips(slabs, record):
            moments[behind(here, columns.start)] = self._add(strip, here, block, gram, image)
        sums = {"gram": gram, "image": image, own_rows(slabs): moments}
        require_finite(sums, self.reader, range(self.reader.grid[0]))
        return Partial(sums, record)

    def _add(self, strip: Any, here: Any, block: Block, gram: np.ndarray, image: np.ndarray) -> np.ndarray:
        """Add what some columns give; return what is found of them."""
        found = np.zeros((strip.shape[1], len(self.found)))
        self._centre(strip, here, found, image[:, block.shape[1] :])
        seen = self._weighted(strip, here)
        self.blocks.add_rows(gram, self._rounded(seen).T)
        image[:, : block.shape[1]] += seen @ (seen.T @ block)
        return found

    def _rounded(self, strip: np.ndarray) -> np.ndarray:
        """The strip in float32, where that was asked for and loses nothing very small or large."""
        if not self.single or not SINGLE[0] < float(np.vdot(strip, strip)) < SINGLE[1]:
            return strip
        out = scratch(("rounded", strip.shape[1]), strip.shape, np.float32)
        np.copyto(out, strip, casting="same_kind")
        return out

    def _centre(self, strip: np.ndarray, columns: slice, moments: np.ndarray, beside: np.ndarray) -> None:
        """Centre some columns as the view has them, in place; what is found of them is written to ``moments``."""
        share = self._share
        about = strip[0].copy()  # so that nothing cancels where means are large
        strip -= about
        away = share @ strip
        strip -= away
        moments[:, 0] = about + away
        moments[:, 1] = np.sqrt(np.einsum("i,ij,ij->j", share, strip, strip))
        if self.view.shift is not None:
            strip += (about - self.view.shift[columns]) + away
        elif not self.view.to_centre:
            strip += moments[:, 0]

    def stacked(self, sums: Sums) -> np.ndarray:
        return np.concatenate([values.ravel() for values in sums.values()])

    def unstacked(self, stacked: np.ndarray, units: range) -> Sums:
        columns, whole = self.columns_of(units), int(np.prod(self.blocks.shape))
        held = stacked.size - whole - len(self.found) * (columns.stop - columns.start)
        gram, image, moments = np.split(stacked, [whole, whole + held])
        return {
            "gram": gram.reshape(self.blocks.shape),
            "image": image.reshape(self.rows, -1),
            own_rows(units): moments.reshape(-1, len(self.found)),
        }

    def finish(self, total: Partial, block: Block) -> np.ndarray:
        """The matrix and its product with the block (m x (m + p)), and what was found of each column: flat."""
        sums, m = dict(total.sums), self.rows
        matrix = np.empty((m, m + block.shape[1]))
        self.blocks.whole(sums.pop("gram"), matrix[:, :m])
        matrix[:, m:] = sums.pop("image")[:, : block.shape[1]]
        matrix *= self.weight
        return np.concatenate([matrix.ravel(), np.concatenate(list(sums.values())).T.ravel()])

    def apart(self, product: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """The matrix with its product, and the moments of columns by name."""
        matrix, moments = np.split(product, [-len(self.found) * self.state_rows])
        return matrix.reshape(self.rows, -1), dict(zip(self.found, moments.reshape(len(self.found), -1), strict=True))

    def pending_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of the sums that wait to be joined, or of what is made of the last one, and of all moments."""
        waiting = super().pending_bytes(-(-self.sum_bytes // (8 * self.rows)) + p, runs)
        return max(waiting, FINISHING * self.rows**2 * 8) + 3 * len(self.found) * self.state_rows * 8

    def task_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of one running task beyond the block, with p columns."""
        return super().task_bytes(p, runs) + 2 * self.sum_bytes + 4 * SIDE**2 * 8


@dataclass(frozen=True, kw_only=True)
class RowProducts(ByColumns):
    """``A^T U`` (times the root of ``weight``) and ``weight * A A^T U`` of a block U (m x p), from one reading.

    Parameters
    ----------
    reader : as of :class:`RowGram`.
    weight, view : as of :class:`npmdask.core.operators.Gram`.
    parts : as of :class:`RowGram`.
    """

    def partial(self, slabs: range, block: Block) -> Partial:
        record, columns = ReadStats(), self.columns_of(slabs)
        left = np.zeros((self.rows, block.shape[1]))
        right = np.empty((columns.stop - columns.start, block.shape[1]))
        for here, strip in self._strips(slabs, record):
            right[behind(here, columns.start)], more = self._both(strip, here, block)
            left += more
        sums = {"left": left, own_rows(slabs): right}
        require_finite(sums, self.reader, range(self.reader.grid[0]))
        return Partial(sums, record)

    def _both(self, strip: Any, here: Any, block: Block) -> tuple[Block, Block]:
        """The products of some columns with the block, and of what that gives with them."""
        if self.view.shift is not None:
            strip -= self.view.shift[here]
        seen = self._weighted(strip, here)
        some = seen.T @ block
        return some, seen @ some

    def unstacked(self, stacked: np.ndarray, units: range) -> Sums:
        return {"left": stacked[: self.rows], own_rows(units): stacked[self.rows :]}

    def finish(self, total: Partial, block: Block) -> Block:
        """``A^T U`` (d rows) over ``A A^T U`` (m rows)."""
        sums = dict(total.sums)
        left = sums.pop("left") * self.weight
        return np.concatenate([*(rows * np.sqrt(self.weight) for rows in sums.values()), left])

    def pending_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of the sums that wait to be joined, and of all right vectors as they are made."""
        return super().pending_bytes(p, runs) + 4 * self.state_rows * p * 8


def behind(columns: slice | np.ndarray, first: int) -> slice | np.ndarray:
    """The same columns, numbered from ``first`` on."""
    return slice(columns.start - first, columns.stop - first) if isinstance(columns, slice) else columns - first


def answering(operator: Any, whole: str | None, parts: int) -> RowGram | RowProducts:
    """Return the operator that answers a query for products of rows with rows, in place of ``operator``."""
    same = {"reader": operator.reader, "weight": operator.weight, "view": operator.view, "parts": parts}
    formed: type[RowGram] = getattr(operator.reader, "row_gram", RowGram)
    products: type[RowProducts] = RowProducts
    if operator.reader.layout == "csr":
        formed, products = features.required("operators", "few sparse rows")
    return products(**same) if whole is None else formed(**same, single=np.dtype(whole) == np.float32)
