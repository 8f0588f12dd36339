"""All of ``A^T A`` from one reading, where d x d numbers fit into memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import Any

import numpy as np

from npmdask.errors import BadInputError
from npmdask.numerics.subspaces import Block
from npmdask.operators._protocol import (
    BySlabs,
    Partial,
    Sums,
    as_dtype,
    least_run,
    require_finite,
    tile_bytes,
)
from npmdask.operators.view import AS_STORED, View
from npmdask.storage.readers.dense import ReadStats, scratch
from npmdask.storage.readers.sparse import Fragment, cut_rows

SIDE = 512  # of the blocks in which the upper triangle is kept: products of this size are added inside the cache
STRIP_ROWS = 1024  # that are multiplied at once: fewer take longer to add up, more round more in float32
SINGLE = (1e-20, 1e36)  # of the sum of all squares: what float32 holds without losing the small, or the large
SUMS_READ = 64  # a run reads at least so many times the bytes of the sum that it returns,
FEW_RUNS = 16  # but no more than leaves so many of them
FINISHING = 5  # d x d arrays: the matrix, with its product, as it is returned and as it is decomposed


@dataclass(frozen=True, kw_only=True)
class GramMatrix(BySlabs):
    """``weight * A^T A`` itself (d x d), A the ``view`` of a stored m x d array, and its product with a block.

    Sums over dense rows are kept about their own mean, so that nothing cancels: a run takes off the mean of its first
    rows, and neighbours are joined as Chan, Golub and LeVeque (1983) join variances. So column means need not be known
    before; they are found. Rows of a CSR matrix are filled in with zeros, some at a time, and centred in the end.

    Parameters
    ----------
    reader : DenseReader or CsrReader.
    weight, view : as of :class:`npmdask.operators.Gram`, of rows without weights.
    single : multiply tiles in float32, and add them up in float64. The product with the block is float64 throughout,
        and so shows how far off the matrix is.
    """

    reader: Any
    weight: float = 1.0
    view: View = AS_STORED
    single: bool = False

    def __post_init__(self) -> None:
        if self.view.row_weight is not None:
            raise BadInputError("a matrix of weighted rows is not formed: use products with a block, of Gram")

    @property
    def _of_csr(self) -> bool:
        return bool(self.reader.layout == "csr")

    @property
    def _pairs(self) -> list[tuple[slice, slice]]:
        """Rows and columns of the blocks of the upper triangle."""
        d = self.block_rows
        edges = [slice(start, min(start + SIDE, d)) for start in range(0, d, SIDE)]
        return list(combinations_with_replacement(edges, 2))

    @property
    def _shape(self) -> tuple[int, int, int]:
        """Of the blocks of the upper triangle."""
        side = min(SIDE, self.block_rows)
        return (len(self._pairs), side, side)

    @property
    def sum_bytes(self) -> int:
        """Memory of the blocks of the upper triangle."""
        return int(np.prod(self._shape)) * 8

    @property
    def run_bytes(self) -> int:
        """The least that a run reads: many times the sum that it returns, or a share of all."""
        return max(least_run(self.block_rows), min(SUMS_READ * self.sum_bytes, self.pass_bytes // FEW_RUNS))

    def partial(self, slabs: range, block: Block) -> Partial:
        record, fragments = ReadStats(), list[Fragment]()
        sums = self._sum(self._tiles(slabs, record, fragments), block)
        require_finite(sums, self.reader, slabs)
        return Partial(sums, record, fragments)

    def _tiles(self, slabs: range, record: ReadStats, fragments: list[Fragment]) -> Iterator[Any]:
        """Some rows at a time: parts of dense ones with their columns, or a CSR block."""
        if self._of_csr:
            for piece in self.reader.blocks(slabs, record):
                if isinstance(piece, Fragment):
                    fragments.append(piece)
                else:
                    yield piece
            return
        for slab in self.reader.ahead(slabs):
            for _, tile in self.reader.tiles(slab, record):
                yield tile

    def _strips(self, tiles: Iterator[Any], shift: np.ndarray) -> Iterator[np.ndarray]:
        """Whole rows less their first mean, which ``shift`` is set to, in float64 and a reused buffer.

        So many at a time that a product with them takes longer than to add it up, as far as that stays in the cache.
        """
        d, filled, first = self.block_rows, 0, True
        held = scratch(("strip", d), (STRIP_ROWS, d), np.float64)
        for tile in tiles:
            rows = tile.shape[0] if self._of_csr else len(tile[0][1])
            if first and not self._of_csr:
                shift[:] = np.concatenate([values.mean(axis=0, dtype=np.float64) for _, values in tile])
            first, start = False, 0
            while start < rows:
                taken = min(STRIP_ROWS - filled, rows - start)
                out, part = held[filled : filled + taken], slice(start, start + taken)
                if self._of_csr:
                    tile[part].astype(np.float64, copy=False).toarray(out=out)
                else:
                    for columns, values in tile:
                        out[:, columns] = values[part]
                    out -= shift  # converted before: a subtraction that converts takes three times as long
                filled, start = filled + taken, start + taken
                if filled == STRIP_ROWS:
                    yield held
                    filled = 0
        if filled:
            yield held[:filled]

    def _sum(self, tiles: Iterator[Any], block: Block) -> Sums:
        """The sums over some rows: about their own mean, or, of CSR, as they are (``mean`` is then their total)."""
        d, seen = self.block_rows, self.view.on_columns(block)
        gram, image = np.zeros(self._shape), np.zeros((d, block.shape[1]))
        shift, total, count = np.zeros(d), np.zeros(d), 0
        for rows in self._strips(tiles, shift):
            self._add(gram, rows)
            image += ((rows @ seen).T @ rows).T
            total += rows.sum(axis=0)
            count += len(rows)
        sums = {"count": np.array([float(count)]), "mean": total, "gram": gram, "image": image}
        if count and not self._of_csr:
            away = total / count
            self._add_outer(sums, away, away @ seen, -count)
            sums["mean"] = shift + away
        return sums | {"met": sums["mean"] @ seen}

    def _add(self, gram: np.ndarray, rows: np.ndarray) -> None:
        """``gram += rows^T rows``, by blocks; in float64 where float32 would lose what is very small or large."""
        if self.single and SINGLE[0] < float(np.vdot(rows, rows)) < SINGLE[1]:
            rows = as_dtype(rows, np.float32, "single")
        for total, (left, right) in zip(gram, self._pairs, strict=True):
            a, b = rows[:, left], rows[:, right]
            shape = (a.shape[1], b.shape[1])
            held = scratch(("gram block", shape), shape, rows.dtype)
            total[: shape[0], : shape[1]] += np.matmul(a.T, b, out=held)

    def _add_outer(self, sums: Sums, vector: np.ndarray, met: np.ndarray, times: float) -> None:
        """Add ``times`` vector vector^T to what is summed; ``met``: vector^T block."""
        root = np.sqrt(abs(times)) * vector  # on both sides, so that what is added is symmetric to the last bit
        for total, (left, right) in zip(sums["gram"], self._pairs, strict=True):
            outer = np.outer(root[left], root[right])
            total[: outer.shape[0], : outer.shape[1]] += np.sign(times) * outer
        sums["image"] += np.outer(times * vector, met)

    def join(self, left: Partial, right: Partial) -> Partial:
        a, b = (float(part.sums["count"][0]) for part in (left, right))
        record, fragments = left.record.add(right.record), left.fragments + right.fragments
        sums = {name: left.sums[name] + right.sums[name] for name in left.sums}
        if not self._of_csr:
            share = b / (a + b)
            away, met = right.sums["mean"] - left.sums["mean"], right.sums["met"] - left.sums["met"]
            self._add_outer(sums, away, met, a * share)
            sums |= {"mean": left.sums["mean"] + share * away, "met": left.sums["met"] + share * met}
        return Partial(sums, record, fragments)

    def stacked(self, sums: Sums) -> np.ndarray:
        return np.concatenate([values.ravel() for values in sums.values()])

    def unstacked(self, stacked: np.ndarray, units: range) -> Sums:
        d, (blocks, side, _) = self.block_rows, self._shape
        columns = (stacked.size - 1 - d - blocks * side * side) // (d + 1)
        shapes = {"count": (1,), "mean": (d,), "gram": self._shape, "image": (d, columns), "met": (columns,)}
        edges = np.cumsum([int(np.prod(shape)) for shape in shapes.values()])[:-1]
        parts = np.split(stacked, edges)
        return {name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}

    def finish(self, total: Partial, block: Block) -> Block:
        """The matrix, its product with the block, and the mean and deviation of every column: d x (d + p + 2)."""
        rows, d = self.reader.shape
        sums = dict(total.sums)
        if self._of_csr:
            cut = self._sum(iter([cut_rows(self.reader, total.fragments)]), block)
            sums = {name: values + cut[name] for name, values in sums.items()}
            sums["mean"], sums["met"] = sums["mean"] / rows, sums["met"] / rows
            self._add_outer(sums, sums["mean"], sums["met"], -rows)
        out = np.empty((d, d + block.shape[1] + 2))
        for part, (left, right) in zip(sums["gram"], self._pairs, strict=True):
            found = part[: left.stop - left.start, : right.stop - right.start]
            out[left, right], out[right, left] = found, found.T
        mean, deviation = sums["mean"], np.sqrt(np.maximum(np.diagonal(out[:, :d]), 0.0) / rows)
        matrix, image = out[:, :d], sums["image"]
        if not self.view.centres:
            root = np.sqrt(rows) * mean
            matrix += np.outer(root, root)
            image = image + np.outer(rows * mean, sums["met"])
        scale = self.view.on_columns(np.ones((d, 1)))[:, 0]
        if (scale != 1).any():
            matrix *= np.outer(scale, scale)
        matrix *= self.weight
        out[:, d:-2] = self.view.on_columns(image) * self.weight
        out[:, -2], out[:, -1] = mean, deviation
        return out

    def pending_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of the sums that wait to be joined, or of what is made of the last one."""
        waiting = 2 * len(runs).bit_length() * (self.sum_bytes + self.block_rows * p * 8)
        return max(waiting, FINISHING * self.block_rows**2 * 8)

    def task_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of one running task (the largest of ``runs``) beyond the block, with p columns."""
        d = self.block_rows
        strip = STRIP_ROWS * d * (8 + 4 * self.single)
        if self._of_csr:
            reading = self.reader.buffer_bytes + max(self.reader.pointer_bytes(slabs) for slabs in runs)
        else:
            reading = tile_bytes(self.reader, p)
        return int(reading + strip + 2 * self.sum_bytes + 4 * SIDE**2 * 8 + 3 * d * p * 8)
