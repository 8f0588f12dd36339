"""A Gram that is kept: sums of rows that are joined and taken off, the pass that makes a part, its own answers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from npmdask.core.certificates.bounds import rounding_of
from npmdask.core.numerics.random import generator
from npmdask.core.numerics.subspaces import Block, starting_block
from npmdask.core.operators._protocol import OnePass, Partial, Sums, pending_sums, require_finite, tile_bytes
from npmdask.core.operators.gram_matrix import FINISHING, DenseRows, GramMatrix
from npmdask.core.operators.view import AS_STORED, View
from npmdask.core.storage.column_statistics import ColumnStatistics
from npmdask.core.storage.readers.dense import ReadStats
from npmdask.errors import BadInputError, RefusedError

# Sums of rows that A^T A follows from: how many, their mean, their Gram about it; joined, and taken off again.
#
# Kept about the mean, as sums of squares about zero lose what varies where means are large. Two parts are joined as
# variances are (Chan, Golub and LeVeque, Amer. Statist. 37 (1983) 242, eq. 2.1), and one is taken off by the same
# equation solved for the other. Beside each Gram lies its product with columns that depend on nothing but d and a seed,
# formed apart from it: what the two differ by bounds the error of the Gram, also of one that was joined.

PROBES = 16  # columns; as many as a run that forms the matrix multiplies beside it
EPS = float(np.finfo(np.float64).eps)
NO_DIGIT = 0.1  # of the largest diagonal entry: where the bound is more, nothing of what is left is right


def probes_of(columns: int, seed: int) -> Block:
    """Orthonormal random columns (d x 16, or d x d), a function of d and the seed alone."""
    return starting_block(columns, min(PROBES, columns), generator(seed, "probes of a Gram"))


@dataclass(frozen=True, kw_only=True, eq=False)
class GramSums:
    """Sums of some rows x: their ``count``, ``mean`` (d), ``matrix`` sum (x - mean)(x - mean)^T (d x d).

    ``image``: the matrix times the probes (d x r), formed by itself in float64. ``slack``: a bound of the 2-norm of
    what the matrix and its image may both be off.
    """

    count: int
    mean: np.ndarray
    matrix: np.ndarray
    image: Block
    slack: float = 0.0

    def columns(self, *, of_csr: bool) -> ColumnStatistics:
        """Means and deviations of the columns; what these are off is part of what the matrix is off."""
        found = {"column_mean": self.mean, "column_m2": np.diagonal(self.matrix)}
        return replace(ColumnStatistics.of(found, self.count, sparse=of_csr), error=0.0)

    def joined(self, other: GramSums, probes: Block) -> GramSums:
        """The sums of both."""
        count = self.count + other.count
        share = other.count / count
        away, times = other.mean - self.mean, self.count * share
        slack = self.slack + other.slack + _of_difference(away, times, self.mean, other.mean)
        return GramSums(
            count=count,
            mean=self.mean + share * away,
            matrix=_with_outer(self.matrix + other.matrix, away, times),
            image=self.image + other.image + np.outer(times * away, away @ probes),
            slack=slack,
        )

    def without(self, other: GramSums, probes: Block) -> GramSums:
        """The sums of those rows that are not among ``other``'s, all of which are in here.

        Digits are lost where few are left: ``slack`` says how many.

        Raises
        ------
        RefusedError
            No row is left, or no digit of what they sum to.
        """
        count = self.count - other.count
        if count < 1:
            raise RefusedError(
                f"{other.count} of {self.count} rows are to be removed, which leaves none: keep at least one"
            )
        mean = self.mean + other.count / count * (self.mean - other.mean)
        away, times = other.mean - mean, count * other.count / self.count
        matrix = _with_outer(self.matrix - other.matrix, away, -times)
        sizes = np.linalg.norm(self.matrix) + np.linalg.norm(other.matrix) + times * float(away @ away)
        slack = self.slack + other.slack + 8 * EPS * float(sizes)
        # The mean of what is left is a difference, too: of n of N rows it has N / n times the rounding of theirs.
        slack += self.count / count * _of_difference(away, times, self.mean, other.mean)
        if slack >= NO_DIGIT * max(float(np.diagonal(matrix).max()), 0.0):
            raise RefusedError(
                f"{count} of {self.count} rows would remain, but their variance is lost in the rounding of all rows: "
                "form the Gram of the remaining rows instead"
            )
        image = self.image - other.image - np.outer(times * away, away @ probes)
        return GramSums(count=count, mean=mean, matrix=matrix, image=image, slack=slack)


def _with_outer(matrix: np.ndarray, vector: np.ndarray, times: float) -> np.ndarray:
    """``matrix + times vector vector^T``, in place, and symmetric to the last bit."""
    root = np.sqrt(abs(times)) * vector
    for entry, row in zip(root, matrix, strict=True):  # no second d x d array
        row += np.sign(times) * (entry * root)
    return matrix


def _of_difference(away: np.ndarray, times: float, *means: np.ndarray) -> float:
    """Return the error by rounding of ``means`` in ``times`` away away^T, which neither matrix nor image knows of."""
    off = 2 * EPS * sum(float(np.linalg.norm(mean)) for mean in means)
    return times * off * (2 * float(np.linalg.norm(away)) + off)


def packed(matrix: np.ndarray) -> np.ndarray:
    """The upper triangle of a symmetric matrix, row after row."""
    d = len(matrix)
    out, at = np.empty(d * (d + 1) // 2), 0
    for i in range(d):
        out[at : at + d - i] = matrix[i, i:]
        at += d - i
    return out


def unpacked(triangle: np.ndarray, columns: int) -> np.ndarray:
    """The inverse of :func:`packed`."""
    out, at = np.empty((columns, columns)), 0
    for i in range(columns):
        out[i, i:] = out[i:, i] = triangle[at : at + columns - i]
        at += columns - i
    return out


# The pass over some rows of chunks that makes a part of a Gram that is kept, and what it answers alone.


class _CountedReader:
    """A reader of which only so many rows count: what is made of sums divides by their number."""

    def __init__(self, reader: Any, rows: int) -> None:
        self._reader, self.shape = reader, (rows, int(reader.shape[1]))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)


@dataclass(frozen=True, kw_only=True)
class GramOfSlabs(GramMatrix):
    """:class:`GramMatrix` of consecutive rows of chunks, and of no others; of CSR of all.

    Parameters
    ----------
    slabs : numbers of the rows of chunks.
    """

    slabs: range

    def fewer(self, share: float) -> list[str]:
        """Say what would fit in a ``share`` of the memory that this takes."""
        columns = int(self.block_rows * share)
        return [f"or about {columns} columns"] if columns else []

    @property
    def units(self) -> int:
        return len(self.slabs)

    @property
    def rows(self) -> int:
        """Count the rows of these slabs."""
        if self.reader.layout == "csr":
            return int(self.reader.shape[0])
        return int(self.reader.slab_rows(self.slabs[-1]).stop - self.reader.slab_rows(self.slabs[0]).start)

    @property
    def pass_bytes(self) -> int:
        if self.reader.layout == "csr":
            return int(self.reader.nbytes)
        return int(self.rows * self.reader.shape[1] * self.reader.dtype.itemsize)

    @property
    def pass_chunks(self) -> int:
        return int(len(self.slabs) * self.reader.grid[1])

    def read_ahead(self, units: range) -> None:
        """Have the kernel fetch the first of ``units`` meanwhile, where that can be asked for."""
        self.reader.read_ahead(self._slabs_of(units)[:1])

    def partial(self, slabs: range, block: Block) -> Partial:
        return super().partial(self._slabs_of(slabs), block)

    def finish(self, total: Partial, block: Block) -> Block:
        if self.reader.layout == "csr":
            return super().finish(total, block)
        counted = replace(self, reader=_CountedReader(self.reader, self.rows))
        return GramMatrix.finish(counted, total, block)

    def _slabs_of(self, units: range) -> range:
        return range(self.slabs.start + units.start, self.slabs.start + units.stop)


@dataclass(frozen=True, kw_only=True, eq=False)
class GramOfGroups(GramOfSlabs):
    """A :class:`GramMatrix` of each group of dense rows, all from one reading; side by side in what it answers.

    Parameters
    ----------
    codes : (m) the group of each row, from 0.
    groups : how many there are.

    Notes
    -----
    Rows of a tile are sorted by group before they are multiplied: what a group sums to is what its rows would sum to if
    they were stored alone, cut where tiles end. Groups without a row in some run of chunks are zero there, and change
    no bit of the others' sums.
    """

    codes: np.ndarray
    groups: int

    def fewer(self, share: float) -> list[str]:
        """Say what would fit in a ``share`` of the memory that this takes."""
        groups = int(self.groups * share)
        more = [f"or about {groups} groups of rows in place of {self.groups}"] if groups else []
        return [*super().fewer(share), *more]

    @property
    def one(self) -> GramMatrix:
        """Return the operator that sums a single group."""
        return GramMatrix(reader=self.reader, weight=self.weight, view=self.view, single=self.single)

    @property
    def sum_bytes(self) -> int:
        return self.groups * super().sum_bytes

    def partial(self, slabs: range, block: Block) -> Partial:
        record, one, found = ReadStats(), self.one, dict[int, DenseRows]()
        for slab in self.reader.ahead(self._slabs_of(slabs)):
            for rows, tile in self.reader.tiles(slab, record):
                codes = self.codes[rows]
                for group in np.unique(codes).tolist():
                    picked = np.flatnonzero(codes == group)
                    if group not in found:
                        found[group] = DenseRows(one, block)
                    found[group].add([(columns, values[picked]) for columns, values in tile], rows.start + picked)
                    found[group].flush()
        sums = Sums()
        for group in range(self.groups):
            own = found[group].sums() if group in found else DenseRows(one, block).sums()
            sums |= {_group_key(group, name): values for name, values in own.items()}
        finite = {name: values for name, values in sums.items() if not name.endswith(".bound")}
        require_finite(finite, self.reader, self._slabs_of(slabs))
        return Partial(sums, record)

    def join(self, left: Partial, right: Partial) -> Partial:
        one, sums = self.one, Sums()
        for group in range(self.groups):
            a, b = (self._of_group(part.sums, group) for part in (left, right))
            if not a["count"][0] or not b["count"][0]:
                joined = a if a["count"][0] else b
            else:
                joined = one.join(Partial(a, ReadStats()), Partial(b, ReadStats())).sums
            sums |= {_group_key(group, name): values for name, values in joined.items()}
        return Partial(sums, left.record.add(right.record), left.fragments + right.fragments)

    def _of_group(self, sums: Sums, group: int) -> Sums:
        return {name: sums[_group_key(group, name)] for name in super()._names()}

    def _names(self, columns: int = 0) -> dict[str, tuple[int, ...]]:
        own = super()._names(columns)
        return {_group_key(group, name): shape for group in range(self.groups) for name, shape in own.items()}

    def unstacked(self, stacked: np.ndarray, units: range) -> Sums:
        parts = (self.one.unstacked(part, units) for part in np.split(stacked, self.groups))
        return {_group_key(group, name): values for group, own in enumerate(parts) for name, values in own.items()}

    def finish(self, total: Partial, block: Block) -> Block:
        """Finish each group as :meth:`GramMatrix.finish` does, side by side: d x groups (d + p + 2)."""
        width = self.block_rows + block.shape[1] + 2
        out = np.empty((self.block_rows, self.groups * width))
        for group in range(self.groups):
            own = self._of_group(total.sums, group)
            counted = replace(self.one, reader=_CountedReader(self.reader, int(own["count"][0])))
            out[:, group * width : (group + 1) * width] = counted.finish(Partial(own, ReadStats()), block)
        return out

    def pending_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of the sums that wait to be joined, or of all sums, all matrices and one that is made."""
        d = self.block_rows
        waiting = pending_sums(1, self.sum_bytes // 8 + self.groups * d * p, runs)
        return waiting + (self.groups + FINISHING) * d * (d + p + 2) * 8

    def task_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of one running task: its sums, and the rows of a tile that were picked."""
        return super().task_bytes(p, runs) + tile_bytes(self.reader, p) + self.groups * self.block_rows * p * 8


def _group_key(group: int, name: str) -> str:
    return f"{group}.{name}"


class NoRowsError(BadInputError, AttributeError):
    """Rows are asked for of something that only a Gram is known of."""


@dataclass(frozen=True, kw_only=True)
class GramReader:
    """Replace rows of which only a Gram is known: their number, and what they sum to.

    Parameters
    ----------
    sums : of the columns that are asked about.
    residual : (d x r) what the image of the probes differs by from the product of the matrix with them.
    probed : columns that the probes were drawn for: more than d, where some columns are left out.
    dtype, of_csr : of the rows.
    """

    sums: GramSums
    residual: Block
    probed: int
    dtype: np.dtype
    of_csr: bool = False

    layout: ClassVar[str] = "gram"
    elsewhere: ClassVar[bool] = True
    grid: ClassVar[tuple[int, int]] = (1, 1)
    units: ClassVar[int] = 1
    checksums: ClassVar[dict[str, Any]] = {}  # of chunks that are read again: there are none

    def __getattr__(self, name: str) -> Any:
        """Refuse what readers of rows have beside these: what asks for it would read some."""
        if name.startswith("_"):
            raise AttributeError(name)
        raise NoRowsError("a stored Gram has no rows, but rows are needed here: give the data from which it was formed")

    @property
    def shape(self) -> tuple[int, int]:
        return (self.sums.count, len(self.sums.mean))

    @property
    def largest_mean(self) -> float:
        """Return the largest mean of a column, in magnitude: all that is known of the size of its entries."""
        return float(np.abs(self.sums.mean).max())

    @property
    def nbytes(self) -> int:
        """Bytes of the matrix."""
        return int(self.sums.matrix.nbytes)


@dataclass(frozen=True, kw_only=True)
class StoredGram(OnePass):
    """``weight * A^T A`` from its kept Gram, A the ``view`` of the rows; nothing is read, and no block is multiplied.

    To a query for the whole it answers d x (d + r + 3): the matrix; what the products with probes differ by, so that
    times sqrt(1 + t^2) it bounds the error of the matrix; a bound of what they do not show, in every row; and the mean
    and the deviation of the columns.

    Notes
    -----
    E, the error of the Gram, has ||E Q|| >= ||E|| / sqrt(1 + t^2) of probes Q that do not depend on it. With columns
    divided by s, ||S E S|| <= ||S E|| / min s, and S E Q is known. Of some columns rows of E Q are, as of more columns.
    """

    reader: GramReader
    weight: float = 1.0
    view: View = AS_STORED
    whole: str | None = field(default=None)

    answers: ClassVar[tuple[str, ...]] = ("whole",)
    units: ClassVar[int] = 1
    pass_bytes: ClassVar[int] = 0
    pass_chunks: ClassVar[int] = 0
    run_bytes: ClassVar[int] = 1

    @property
    def centred_by_algebra(self) -> bool:
        """Say whether the mean is subtracted in the end: sums over CSR rows are formed without centring."""
        return self.reader.of_csr

    @property
    def block_rows(self) -> int:
        return self.reader.shape[1]

    def partial(self, slabs: range, block: Block) -> Partial:
        sums: Sums = {"product": self._viewed_matrix()}
        return Partial(sums, ReadStats())

    def finish(self, total: Partial, block: Block) -> Block:
        return total.sums["product"]

    def matrix(self) -> np.ndarray:
        """All of it, formed as :class:`GramMatrix` forms it of the rows, so that the bits are the same."""
        return self._fill_matrix(np.empty((self.block_rows, self.block_rows)))

    def _fill_matrix(self, out: np.ndarray) -> np.ndarray:
        sums, scale = self.reader.sums, self._scale
        out[:] = sums.matrix
        if not self.view.centres:
            root = np.sqrt(sums.count) * sums.mean
            out += np.outer(root, root)
        if (scale != 1).any():
            out *= np.outer(scale, scale)
        out *= self.weight
        return out

    @property
    def _scale(self) -> np.ndarray:
        return self.view.on_columns(np.ones((self.block_rows, 1)))[:, 0]

    def _viewed_matrix(self) -> Block:
        sums, scale, (rows, d) = self.reader.sums, self._scale, self.reader.shape
        residual, largest = self.reader.residual, float(scale.max())
        out = np.empty((d, d + residual.shape[1] + 3))
        matrix = self._fill_matrix(out[:, :d])
        # Deviations come from the diagonal, and are off as it is: by half of the bound over the number of rows.
        more = 1.0 if self.view.scale is None else 1 + 1.1 * float(np.linalg.norm(matrix)) / (rows * self.weight)
        largest *= more
        out[:, d:-3] = residual * (scale[:, None] * largest * self.weight)
        slack = sums.slack * largest**2 / more
        if not self.view.centres or self.reader.of_csr:  # what the mean adds, or has taken off, and its rounding
            slack += rounding_of(d, rows * float(np.square(sums.mean * scale).sum()))
        out[:, -3] = slack * self.weight
        out[:, -2], out[:, -1] = sums.mean, sums.columns(of_csr=self.reader.of_csr).std
        return out

    def apart(self, product: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Split a product into the answer and the moments of columns, by name."""
        return product[:, :-2], {"column_mean": product[:, -2], "column_std": product[:, -1]}

    def read_ahead(self, units: range) -> None:
        """Nothing to fetch."""

    def pending_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of the matrix as it is made, returned and decomposed."""
        return FINISHING * self.block_rows**2 * 8

    def task_bytes(self, p: int, runs: list[range]) -> int:
        """Nothing beside that."""
        return 0
