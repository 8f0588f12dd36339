"""Define an operator and what all share: reading in one dtype, memory of a task, the check for NaN."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, Self

import numpy as np

from npmdask.core.numerics.random import Rounding
from npmdask.core.numerics.subspaces import Block
from npmdask.core.storage.readers.dense import DenseReader, ReadStats, scratch
from npmdask.core.storage.readers.sparse import Fragment
from npmdask.errors import BadInputError

RUN_BYTES = 32 * 2**20  # of data in a run: large enough that the cost of scheduling a task vanishes
COLUMN_BYTES = 2**10  # of data in a run for each column: four times the sum that the run returns, with p = 32
SUMS_READ = 64  # where d x d numbers are formed, a run reads so many times the bytes of the sum that it returns,
FEW_RUNS = 16  # but no more than leaves so many of them
STRIP_BYTES = 4 * 2**20  # of a tile in another dtype: measured 1.35 times faster in float64 than the whole tile at once


Sums = dict[str, np.ndarray]
OPTIONS = ("transposed", "image_norm", "batch", "scores", "whole", "rounded", "of_rows", "noise", "held_out")


@dataclass
class Partial:
    """Result of a run of slabs: sums by name, cut rows, and what the reading cost."""

    sums: Sums
    record: ReadStats
    fragments: list[Fragment] = field(default_factory=list)


def joined(left: Sums, right: Sums) -> Sums:
    """The sums of two neighbours: what both have is added; what one has alone, rows of its own, is kept in order."""
    both = {name: left[name] + right[name] if name in right else left[name] for name in left}
    return both | {name: values for name, values in right.items() if name not in left}


def own_rows(units: range) -> str:
    """The name of rows of the product that some units give, and no others: it sorts nothing, but is theirs alone."""
    return f"rows from unit {units.start}"


def split_rows(stacked: np.ndarray, rows: dict[str, int]) -> Sums:
    """So many ``rows`` for each name, in order; the last name has what is left."""
    edges = np.cumsum(list(rows.values()))[:-1]
    return dict(zip(rows, np.split(stacked, edges), strict=True))


class BlockQuery(Protocol):
    """Query of an operator: :class:`npmdask.core.algorithms.Query`, of which operators know the names only."""

    @property
    def block(self) -> Block: ...
    @property
    def transposed(self) -> bool: ...
    @property
    def image_norm(self) -> float | None: ...
    @property
    def batch(self) -> Any: ...
    @property
    def scores(self) -> bool: ...
    @property
    def whole(self) -> str | None: ...
    @property
    def rounded(self) -> bool: ...
    @property
    def of_rows(self) -> int | None: ...
    @property
    def noise(self) -> float | None: ...
    @property
    def held_out(self) -> float | None: ...


class Operator(Protocol):
    """A map applied to blocks (d x p), one pass over the data each time; linear, unless the data are a tensor.

    ``asked`` is the operator that answers a query, and ``prepare`` the block as it is multiplied: of a private release
    rounded to what is multiplied exactly (or with a known error), of all others as it is.
    """

    @property
    def reader(self) -> Any: ...
    def asked(self, query: BlockQuery) -> Operator: ...
    def prepare(self, block: Block) -> Block: ...
    @property
    def block_rows(self) -> int: ...
    def partial(self, slabs: range, block: Block) -> Partial: ...
    def join(self, left: Partial, right: Partial) -> Partial: ...
    def stacked(self, sums: Sums) -> np.ndarray: ...
    def unstacked(self, stacked: np.ndarray, units: range) -> Sums: ...
    def finish(self, total: Partial, block: Block) -> np.ndarray: ...  # a Block; integers for a private release
    def task_bytes(self, p: int, runs: list[range]) -> int: ...
    def pending_bytes(self, p: int, runs: list[range]) -> int: ...

    # What a pass is cut into: runs of consecutive units, a function of the stored layout only.
    @property
    def units(self) -> int: ...
    @property
    def pass_bytes(self) -> int: ...
    @property
    def pass_chunks(self) -> int: ...
    @property
    def run_bytes(self) -> int: ...
    def read_ahead(self, units: range) -> None: ...


class PrivateOperator(Operator, Protocol):
    """An operator whose product is a basis for a private release: int64 multiples of a public grid.

    ``rounding`` says what the arithmetic adds to the sensitivity of the product with a prepared block. Neither that nor
    ``prepare`` depends on the data. Nothing that an operator of this kind does fails, warns or is left out because of a
    value: that would tell of it.
    """

    def rounding(self, p: int) -> Rounding: ...


class OnePass:
    """Common part of operators: how queries are answered, and how the sums of a pass are joined and kept.

    An operator answers queries for the product as it is, and what it lists in ``answers``: options of its own, fields
    of the same names. One that answers in another way (:class:`BoundedProduct`, :class:`RecordImages`) says how in
    ``asked``.
    """

    answers: ClassVar[tuple[str, ...]] = ()
    arithmetic: ClassVar[str] = ""  # how sums are formed, where that has changed: no pass goes on with sums of another

    def asked(self, query: BlockQuery) -> Self:
        """The operator that answers ``query``: itself, or with the options of the query.

        Raises
        ------
        TypeError
            Something is asked that this operator has no answer to.
        """
        wanted = beyond_product(query)
        for name in wanted.keys() - set(self.answers):
            raise TypeError(f"{type(self).__name__} cannot answer a query with {name} = {wanted[name]!r}")
        return replace(self, **wanted) if wanted else self  # type: ignore[type-var]

    def prepare(self, block: Block) -> Block:
        """The block as it is multiplied: here, as it is."""
        return block

    def join(self, left: Partial, right: Partial) -> Partial:
        """The partial product of two neighbouring runs."""
        return Partial(joined(left.sums, right.sums), left.record.add(right.record), left.fragments + right.fragments)

    def stacked(self, sums: Sums) -> np.ndarray:
        """Sums as the one array that a checkpoint keeps: their rows one under the other, in the order of the names."""
        parts = list(sums.values())
        return np.concatenate(parts if len(parts) == 1 else [part.reshape(-1, part.shape[-1]) for part in parts])

    def pending_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of the sums that wait to be joined: two of d x p for each level of the tree."""
        return pending_sums(self.block_rows, p, runs)  # type: ignore[attr-defined]

    def unstacked(self, stacked: np.ndarray, units: range) -> Sums:
        """The inverse of ``stacked``, for the sums of some ``units``."""
        return {"product": stacked}


def beyond_product(query: BlockQuery) -> dict[str, Any]:
    """Return what ``query`` asks other than the plain product, by name."""
    wanted = {name: getattr(query, name) for name in OPTIONS}
    return {name: value for name, value in wanted.items() if value is not None and value is not False}


class BySlabs(OnePass):
    """An operator whose units are the slabs (rows of chunks) of its reader, all of which a pass reads."""

    reader: Any

    @property
    def units(self) -> int:
        return int(self.reader.grid[0])

    @property
    def pass_bytes(self) -> int:
        return int(self.reader.nbytes)

    @property
    def pass_chunks(self) -> int:
        return int(self.reader.grid[0] * self.reader.grid[1])

    @property
    def run_bytes(self) -> int:
        """The least that a run reads: a few times the d x p sum that it returns (with p about 32)."""
        return least_run(int(self.reader.shape[1]))

    @property
    def block_rows(self) -> int:
        return int(self.reader.shape[1])

    def read_ahead(self, units: range) -> None:
        """Have the kernel fetch the first of ``units`` meanwhile, where that can be asked for."""
        self.reader.read_ahead(units[:1])


class ByBlocks(OnePass):
    """An operator whose units are the blocks that represent all of a symmetric array; a pass reads each of them."""

    reader: Any

    @property
    def block_rows(self) -> int:
        return int(self.reader.shape[0])

    @property
    def units(self) -> int:
        return int(self.reader.units)

    @property
    def pass_bytes(self) -> int:
        return int(self.reader.nbytes)

    @property
    def pass_chunks(self) -> int:
        return int(self.reader.units)


def pending_sums(rows: int, p: int, runs: list[range]) -> int:
    """Bytes of the sums of ``rows`` x p that wait to be joined."""
    return waiting_sums(runs) * rows * p * 8


def waiting_sums(runs: list[range]) -> int:
    """Count the sums that may wait to be joined: two for each level of the tree of ``runs``."""
    return 2 * max(1, (len(runs) - 1).bit_length())


def least_run(columns: int) -> int:
    """Bytes that a run reads at least if it returns a sum with a row for each of ``columns``."""
    return max(RUN_BYTES, COLUMN_BYTES * columns)


def as_dtype(values: np.ndarray, dtype: Any, name: Any = 0) -> np.ndarray:
    """``values`` in the dtype of the arithmetic: themselves, or a copy in this thread's reused buffer."""
    if values.dtype == dtype:
        return values
    out = like(values, dtype, name)
    np.copyto(out, values, casting="unsafe")
    return out


def like(values: np.ndarray, dtype: Any, name: Any) -> np.ndarray:
    """A reused buffer of the shape of ``values``; oversized in rows so that short last tiles reuse it too."""
    rows, columns = values.shape
    held = scratch(("cast", name, columns), (-(-rows // 64) * 64, columns), dtype)
    return held[:rows]


def strips(rows: int, columns: int, dtype: Any) -> list[slice]:
    """Cuts ``rows`` of a tile into strips that stay in cache once they are copied to ``dtype``."""
    height = strip_rows(columns, dtype)
    return [slice(start, min(start + height, rows)) for start in range(0, rows, height)]


def strip_rows(columns: int, dtype: Any) -> int:
    return max(64, STRIP_BYTES // (columns * np.dtype(dtype).itemsize))


def strip_bytes(d: int, beside: int) -> int:
    """Return the bytes of a strip of float64, of what is made of it, and of the one before, which is not freed yet."""
    return 2 * 8 * strip_rows(d + beside, np.float64) * (d + beside)


def add_buffered(product: Block, left: np.ndarray, right: np.ndarray) -> None:
    """``product += left @ right`` by way of this thread's reused buffer: the sum is float64, the product not always."""
    held = scratch(("product", len(left)), (len(left), right.shape[1]), right.dtype)
    product += np.matmul(left, right, out=held)


def zeros_for_sum(rows: int, block: Block) -> Block:
    """A float64 sum of products with ``block``, in the order in memory that :func:`add_back` is fastest with."""
    return np.zeros((rows, block.shape[1]), order="F" if block.dtype == np.float32 else "C")


def add_back(product: Block, values: np.ndarray, z: Block) -> None:
    """``product += values.T @ z``.

    In float32 as the transpose of ``z.T @ values``, which OpenBLAS forms 1.2 to 1.4 times faster; in float64 it is
    the other way round (docs/decisions/0015).
    """
    if z.dtype != np.float32:
        add_buffered(product, values.T, z)
        return
    held = scratch(("back", values.shape[1]), (z.shape[1], values.shape[1]), z.dtype)
    product += np.matmul(z.T, values, out=held).T


def tile_bytes(reader: DenseReader, p: int) -> int:
    rows = min(reader.tile_rows, strip_rows(reader.shape[1], np.float64))
    cast = rows * reader.shape[1] * (8 + 4)  # float64, and what is left of float32 when it changes
    return reader.buffer_bytes + cast + 2 * reader.chunks[0] * p * 8


def require_finite(sums: Sums, reader: Any, units: range) -> None:
    """One look at the sums finds any NaN or infinity of the data; only then is it searched for, and named.

    Raises
    ------
    BadInputError
        A sum is not finite.
    """
    if all(np.isfinite(values).all() for values in sums.values()):
        return
    for unit in units:
        if (found := reader.non_finite(unit)) is not None:
            raise found
    raise BadInputError(
        f"a product with {reader.where} overflows although the data are finite: divide the data by a constant"
    )


def finite_partial(
    sums: Sums, reader: Any, units: range, record: ReadStats, fragments: Sequence[Fragment] = ()
) -> Partial:
    """Make the partial result of some units, once :func:`require_finite` has checked it."""
    require_finite(sums, reader, units)
    return Partial(sums, record, list(fragments))


# Operators on some rows of a stored array: the units of a pass are the slabs that these rows lie in.


class BySamples(BySlabs):
    """Cost of reading a batch: whole slabs (checksums are over whole chunks), the others not at all.

    ``rows`` is the batch (a range of step 1), or None for all rows of ``reader``.
    """

    rows: Any

    @property
    def batch(self) -> range:
        return range(self.reader.shape[0]) if self.rows is None else self.rows

    @property
    def slabs(self) -> range:
        """Those that the batch lies in: the units of the pass."""
        height = self.reader.chunks[0]
        return range(self.batch.start // height, (self.batch.stop - 1) // height + 1)

    @property
    def units(self) -> int:
        return len(self.slabs)

    @property
    def pass_bytes(self) -> int:
        return len(self.stored_rows(range(self.units))) * self.reader.shape[1] * self.reader.dtype.itemsize

    @property
    def pass_chunks(self) -> int:
        return self.units * int(self.reader.grid[1])

    def read_ahead(self, units: range) -> None:
        """Have the kernel fetch the first of ``units`` meanwhile, where that can be asked for."""
        self.reader.read_ahead(self.slabs_of(units)[:1])

    def slabs_of(self, units: range) -> range:
        first = self.slabs.start
        return range(first + units.start, first + units.stop)

    def stored_rows(self, units: range) -> range:
        """The rows that are read for some units: more than those of the batch, where it begins or ends in a chunk."""
        slabs = self.slabs_of(units)
        return range(self.reader.slab_rows(slabs.start).start, self.reader.slab_rows(slabs.stop - 1).stop)

    def require_batch(self) -> None:
        records = self.reader.shape[0]
        if not (0 <= self.batch.start < self.batch.stop <= records and self.batch.step == 1):
            raise BadInputError(f"a batch is a range of the {records} records of {self.reader.where}, not {self.batch}")
