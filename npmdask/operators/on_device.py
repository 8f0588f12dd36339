"""Form the sums of a pass on a GPU: rows go there in strips, sums come back once a run.

What is summed, how neighbours are joined and what is made of the total is the operator's own business, on the host and
in float64: only ``partial`` is another one. Every thread reads, decodes and checks the rows of a run of its own and
keeps that run's sums on the device; what it computes is issued in turn, in one stream.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from npmdask.errors import MemoryRefusedError
from npmdask.numerics.devices import PANEL, SLOTS, Device, Slot
from npmdask.numerics.subspaces import Block
from npmdask.operators._protocol import Partial, Sums, require_finite
from npmdask.operators.gram import MOST_ROUNDED, SMALLEST, Gram, SparseGram
from npmdask.operators.gram_matrix import EXACT, GramMatrix, largest_integer
from npmdask.storage.readers.dense import ReadStats
from npmdask.storage.readers.sparse import Fragment

STRIP = 32 * 2**20  # bytes of rows that are sent at once
FEWEST = 256  # rows of a strip, however wide
FILLED = 2**25  # numbers of sparse rows that are filled in at once
SUMMED = 2**16  # rows of bytes whose products int32 holds
WORKING = 6  # float64 copies of a strip at once: operators of the array API make a new array each
SENT = {"f2": "f4", "f4": "f4", "f8": "f8", "i1": "i1", "u1": "u1", "b1": "u1", "i2": "i2", "u2": "i4", "i4": "i4"}
ALIGNED = 8  # bytes


@dataclass(frozen=True, kw_only=True)
class OnDevice:
    """An operator whose sums are formed on a device.

    Parameters
    ----------
    inner : what is summed.
    device : where.
    token : of one run, parts of whose data stay on the device from pass to pass; None: none do.
    """

    inner: Any
    device: Device
    token: str | None = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in self.__dataclass_fields__:  # unpickled before there is an operator inside
            raise AttributeError(name)
        return getattr(self.inner, name)

    def partial(self, slabs: range, block: Block) -> Partial:
        """The sums over some slabs, formed on the device."""
        return SUMS[type(self.inner)](self, slabs, block)

    @property
    def sparse(self) -> bool:
        """Whether rows are sparse."""
        return bool(self.inner.reader.layout == "csr")

    @property
    def dtype(self) -> np.dtype:
        """As what values are sent: stored ones, or the next wider that every library knows."""
        stored = self.inner.reader.dtype
        return np.dtype(SENT.get(f"{stored.kind}{stored.itemsize}", "f8"))

    @property
    def height(self) -> int:
        """Rows of a strip: by the layout alone, so that sums are formed in the same order whatever the memory."""
        wide = int(self.inner.block_rows)
        return max(FEWEST, FILLED // wide if self.sparse else STRIP // (wide * self.dtype.itemsize))

    @property
    def entries(self) -> int:
        """Entries of sparse rows that are sent at once."""
        return max(STRIP // 8, int(self.inner.block_rows))

    @property
    def slot_bytes(self) -> int:
        """Of a strip of rows, or of the places and values of sparse ones."""
        if self.sparse:
            return self.entries * (self.dtype.itemsize + 4) + ALIGNED
        return self.height * int(self.inner.block_rows) * self.dtype.itemsize

    def task_bytes(self, p: int, runs: list[range]) -> int:
        """Host memory of a running task: its slots, what is read, and the sums as they come back."""
        reader = self.inner.reader
        pointers = max(reader.pointer_bytes(slabs) for slabs in runs) if self.sparse else 0
        sums = int(getattr(self.inner, "sum_bytes", 0)) + 3 * self.inner.block_rows * p * 8
        return int(reader.buffer_bytes) + pointers + SLOTS * self.slot_bytes + 2 * sums

    def device_bytes(self, p: int) -> tuple[int, int]:
        """Memory of the device: for each thread, and beside them."""
        d, whole = int(self.inner.block_rows), type(self.inner) is GramMatrix
        sums = d * (d + 4 * p) * 8 if whole else 4 * d * p * 8
        packed = self.inner.sum_bytes + d * PANEL * 8 if whole else 0
        return SLOTS * self.slot_bytes + sums, WORKING * self.height * d * 8 + packed

    def threads_that_fit(self, threads: int, p: int) -> int:
        """How many threads the memory of the device allows: ``threads`` at most.

        Raises
        ------
        MemoryRefusedError
            Not even one.
        """
        backend, mib = self.device.backend, 2**20
        each, beside = self.device_bytes(p)
        fitting = (backend.limit - beside) // each
        if fitting < 1:
            needed = -(-(each + beside) // mib)
            raise MemoryRefusedError(
                f"{backend.name} may use {backend.limit // mib} MiB and this run needs {needed} MiB of it: raise "
                'device_memory, or set device = "cpu"'
            )
        return min(threads, fitting)


def on_device(operator: Any, device: Device | None, token: str | None = None) -> Any:
    """The same operator with its sums formed on ``device``, where that is known how; else as it is."""
    if device is None or type(operator) not in SUMS:
        return operator
    return OnDevice(inner=operator, device=device, token=token)


# Strips of rows


@dataclass
class Strip:
    """Stored rows of these ``numbers``, on their way to the device or there.

    Parameters
    ----------
    values : the values here, of sparse rows their entries; None of rows that stayed on the device.
    sent : what is sent, in the memory of ``slot``.
    slot : through which; None of rows that stayed.
    make : from what was sent to rows x columns.
    held : what was sent, on the device.
    """

    numbers: slice
    values: np.ndarray | None = None
    sent: np.ndarray | None = None
    slot: Slot | None = None
    make: Callable[[Any], Any] | None = None
    held: Any = None

    def __len__(self) -> int:
        return self.numbers.stop - self.numbers.start

    def rows(self) -> Any:
        """The rows on the device, as they are stored or filled in."""
        if self.slot is not None:
            self.held = self.slot.send(self.sent)
        return self.held if self.make is None else self.make(self.held)

    def done(self) -> None:
        """All work on the rows has been issued."""
        if self.slot is not None:
            self.slot.done()

    def kept(self, xp: Any) -> Strip:
        """The same with a copy on the device of its own."""
        return Strip(self.numbers, make=self.make, held=xp.asarray(self.held, copy=True))


@dataclass
class Kept:
    """A run whose rows stay on the device, with what its first reading found."""

    strips: list[Strip]
    record: ReadStats
    fragments: list[Fragment]


def _strips(op: OnDevice, slabs: range, record: ReadStats, fragments: list[Fragment]) -> Iterator[Strip]:
    """The rows of some slabs, strip by strip: each is used before the next is asked for. Cut rows are put aside."""
    with op.device.backend.lane(op.slot_bytes) as slots:
        if not op.sparse:
            yield from _dense_strips(op, slots, slabs, record)
            return
        reader, at = op.inner.reader, op.inner.reader.rows_of(slabs)[0]
        for piece in reader.blocks(slabs, record):
            if isinstance(piece, Fragment):
                fragments.append(piece)
                at = piece.row + 1
            else:
                yield from _sparse_strips(op, slots, piece, at)
                at += piece.shape[0]


def _dense_strips(op: OnDevice, slots: Iterator[Slot], slabs: range, record: ReadStats) -> Iterator[Strip]:
    reader, d, height, filled, strip = op.inner.reader, op.inner.block_rows, op.height, 0, None
    rows = np.empty((0, d))
    for slab in reader.ahead(slabs):
        for numbers, tile in reader.tiles(slab, record):
            taken, count = 0, len(tile[0][1])
            while taken < count:
                if strip is None:
                    slot, first, filled = next(slots), numbers.start + taken, 0
                    slot.wait()
                    rows = slot.host[: height * d * op.dtype.itemsize].view(op.dtype).reshape(height, d)
                    strip = Strip(slice(first, first), slot=slot)
                some = min(height - filled, count - taken)
                for columns, values in tile:
                    rows[filled : filled + some, columns] = values[taken : taken + some]
                filled, taken = filled + some, taken + some
                strip.numbers = slice(strip.numbers.start, strip.numbers.start + filled)
                strip.values = strip.sent = rows[:filled]
                if filled == height:
                    yield strip
                    strip = None
    if strip is not None:
        yield strip


def _sparse_strips(op: OnDevice, slots: Iterator[Slot], rows: csr_matrix, first: int) -> Iterator[Strip]:
    """Whole rows, of which ``first`` is the number of the first one; zeros are filled in on the device."""
    backend, d, start = op.device.backend, int(op.inner.block_rows), 0
    if not rows.has_canonical_format:  # an entry in parts is what they add up to
        rows = rows.copy()
        rows.sum_duplicates()
    while start < rows.shape[0]:
        stop = int(np.searchsorted(rows.indptr, int(rows.indptr[start]) + op.entries, side="right")) - 1
        stop = min(max(stop, start + 1), start + op.height, rows.shape[0])
        inside, count = slice(int(rows.indptr[start]), int(rows.indptr[stop])), stop - start
        entries, slot = inside.stop - inside.start, next(slots)
        slot.wait()
        middle = -(-entries * 4 // ALIGNED) * ALIGNED
        held = slot.host[: middle + entries * op.dtype.itemsize]
        places, values = held[: entries * 4].view(np.int32), held[middle:].view(op.dtype)
        values[:] = rows.data[inside]
        of_row = np.repeat(np.arange(count, dtype=np.int32) * np.int32(d), np.diff(rows.indptr[start : stop + 1]))
        np.add(rows.indices[inside], of_row, out=places, casting="unsafe")

        def filled(sent: Any, count: int = count, entries: int = entries, middle: int = middle) -> Any:
            where = backend.seen_as(sent[: entries * 4], np.dtype(np.int32))
            return backend.scattered(where, backend.seen_as(sent[middle:], op.dtype), (count, d))

        yield Strip(slice(first + start, first + stop), values, held, slot, filled)
        start = stop


# All of the matrix


class _MatrixSums:
    """The sums of :class:`GramMatrix` over some rows, on the device.

    Integers are less the origin and are summed exactly; other rows are less the mean of the first of them, unless they
    are sparse.
    """

    def __init__(self, op: OnDevice, seen: np.ndarray, *, exact: bool) -> None:
        self._of, self._backend, self.exact, d = op.inner, op.device.backend, exact, int(op.inner.block_rows)
        self._gram, self._total, self._image = (self._backend.zeros(s) for s in ((d, d), (d,), seen.shape))
        self._seen, self._there = seen, self._backend.upload(seen)
        self._count, self._bound = 0.0, 0.0
        self._shift = self._backend.zeros((d,)) + self._of.origin if exact or self._of.of_csr else None

    def holds(self, most: float, rows: int) -> bool:
        """Whether sums stay exact with so many more rows of integers up to ``most``."""
        return self._bound + most * most * rows < EXACT

    def add(self, strip: Strip, rows: Any, most: float) -> None:
        """Add rows of the device."""
        self._bound = self._bound + most * most * len(strip) if self.exact else math.inf
        if not self._added_bytes(strip, rows):
            self._add_floats(strip, self._backend.xp.astype(rows, self._backend.xp.float64))

    def _added_bytes(self, strip: Strip, rows: Any) -> bool:
        """Whether rows of bytes were added as what they are."""
        xp, stored = self._backend.xp, None if strip.values is None else strip.values.dtype
        if not self.exact or self._of.of_csr or stored is None or stored.itemsize > 1 or len(strip) > SUMMED:
            return False
        if stored.kind == "u":
            rows = xp.astype(xp.astype(rows, xp.int16) - int(self._of.origin), xp.int8)
        products = self._backend.integer_gram(rows)
        if products is None:
            return False
        self._gram += products
        self._total = self._total + xp.astype(xp.sum(rows, axis=0, dtype=xp.int64), xp.float64)
        self._count += len(strip)
        return True

    def _add_floats(self, strip: Strip, rows: Any) -> None:
        xp, backend, roots = self._backend.xp, self._backend, self._roots(strip)
        if self._shift is None:
            self._shift = self._first_mean(rows, roots)
        if self._of.origin or not (self.exact or self._of.of_csr):
            rows = rows - self._shift
        if roots is None:
            self._total, self._count = self._total + xp.sum(rows, axis=0), self._count + len(strip)
        else:
            there = backend.upload(roots)
            rows = rows * there[:, None]
            self._total = self._total + xp.matmul(there, rows)
            self._count += float(roots @ roots)
        if not self.exact:
            self._image = self._image + xp.matmul(rows.T, xp.matmul(rows, self._there))
        backend.add_gram(self._gram, rows)

    def _roots(self, strip: Strip) -> np.ndarray | None:
        weights = self._of.view.row_weight
        return None if weights is None else np.sqrt(weights[strip.numbers])

    def _first_mean(self, rows: Any, roots: np.ndarray | None) -> Any:
        xp = self._backend.xp
        if roots is None:
            return xp.mean(rows, axis=0)
        return xp.matmul(self._backend.upload(roots**2), rows) / (float(roots @ roots) or 1.0)

    def sums(self) -> Sums:
        """What the rows give together, on the host."""
        xp, of, backend, d = self._backend.xp, self._of, self._backend, int(self._of.block_rows)
        about_origin = self.exact or of.of_csr
        with backend.computing():
            gram, image, mean = self._gram, self._image, self._total
            if self.exact:
                image = xp.matmul(xp.triu(gram) + xp.triu(gram, k=1).T, self._there)
            elif not about_origin:
                away = mean / (self._count or 1.0)
                root = away * math.sqrt(self._count)
                for start in range(0, d, PANEL):
                    panel = slice(start, min(start + PANEL, d))
                    gram[:, panel] -= root[:, None] * root[None, panel]
                image = image - (self._count * away)[:, None] * xp.matmul(away, self._there)[None, :]
                mean = away if self._shift is None else self._shift + away
            made = (mean, self._packed(gram), image)
        sums = {"count": np.array([self._count]), "bound": np.array([self._bound if self.exact else math.inf])}
        sums |= dict(zip(("mean", "gram", "image"), backend.download(*made), strict=True))
        return sums | {"met": (sums["mean"] - (0.0 if about_origin else of.origin)) @ self._seen}

    def _packed(self, gram: Any) -> Any:
        """The blocks of the upper triangle, those on the diagonal symmetric to the last bit."""
        xp, blocks = self._backend.xp, self._of.blocks
        out = self._backend.zeros(blocks.shape)
        for number, (left, right) in enumerate(blocks.pairs):
            block = gram[left, right]
            if left == right:
                block = xp.triu(block) + xp.triu(block, k=1).T
            out[number, : left.stop - left.start, : right.stop - right.start] = block
        return out


def _matrix_partial(op: OnDevice, slabs: range, block: Block) -> Partial:
    record, fragments, of, backend = ReadStats(), list[Fragment](), op.inner, op.device.backend
    seen, parts = of.view.on_columns(block), list[_MatrixSums]()
    for strip in _strips(op, slabs, record, fragments):
        most, last = math.inf, parts[-1] if parts else None
        if of.view.row_weight is None and (last is None or last.exact) and strip.values is not None:
            most = largest_integer(strip.values, of.origin)
        with backend.computing():
            if last is None:
                parts.append(_MatrixSums(op, seen, exact=most < math.inf))
            elif last.exact and not last.holds(most, len(strip)):  # go on about a mean
                parts.append(_MatrixSums(op, seen, exact=False))
            parts[-1].add(strip, strip.rows(), most)
            strip.done()
    if not parts:
        with backend.computing():
            parts.append(_MatrixSums(op, seen, exact=of.view.row_weight is None))
    joined = reduce(of.join, (Partial(part.sums(), ReadStats()) for part in parts)).sums
    require_finite({name: values for name, values in joined.items() if name != "bound"}, of.reader, slabs)
    return Partial(joined, record, fragments)


# Products with a block


def _product_partial(op: OnDevice, slabs: range, block: Block) -> Partial:
    of = op.inner
    seen = of._multiplied(block)
    found = _product(op, slabs, seen)
    if found is None or (seen.dtype == np.float32 and not np.isfinite(found.sums["product"]).all()):
        found = _product(op, slabs, seen.astype(np.float64))
    assert found is not None
    require_finite(found.sums, of.reader, slabs)
    return found


def _sparse_product_partial(op: OnDevice, slabs: range, block: Block) -> Partial:
    found = _product(op, slabs, op.inner.view.on_columns(block))
    assert found is not None
    require_finite(found.sums, op.inner.reader, slabs)
    return found


def _product(op: OnDevice, slabs: range, seen: np.ndarray) -> Partial | None:
    """The product of some slabs in the dtype of ``seen``; None where float32 loses rows that are very small."""
    of, backend, xp, single = op.inner, op.device.backend, op.device.backend.xp, seen.dtype == np.float32
    view, smallest = of.view if op.sparse else of._of_rows, list[Any]()
    with backend.computing():
        there, product = backend.upload(seen), backend.zeros(seen.shape)
        shift = None if op.sparse or view.shift is None else backend.upload(view.shift.astype(seen.dtype))
    record, fragments = ReadStats(), list[Fragment]()
    for strip in _kept_or_read(op, slabs, record, fragments):
        with backend.computing():
            rows = xp.astype(strip.rows(), there.dtype)
            if shift is not None:
                rows = rows - shift
            if view.row_weight is not None:
                rows = rows * backend.upload(np.sqrt(view.row_weight[strip.numbers]).astype(seen.dtype))[:, None]
            few = MOST_ROUNDED if single else max(len(strip), 1)  # of more, rounding grows
            for start in range(0, len(strip), few):
                some = rows[start : min(start + few, len(strip)), :]
                z = xp.matmul(some, there)
                if single:
                    smallest.append(xp.max(xp.abs(z)))
                product = product + xp.astype(xp.matmul(some.T, z), xp.float64)
            strip.done()
    with backend.computing():
        least = xp.min(xp.stack(smallest)) if smallest else xp.max(product) * 0 + 1
    found, low = backend.download(product, least)
    return None if low < SMALLEST else Partial({"product": found}, record, fragments)


def _kept_or_read(op: OnDevice, slabs: range, record: ReadStats, fragments: list[Fragment]) -> Iterator[Strip]:
    """The rows of some slabs as they stayed on the device, or as they are read; then they stay if they fit."""
    backend, key = op.device.backend, (op.token, slabs.start, slabs.stop)
    kept: Kept | None = None if op.token is None else backend.kept(key)
    if kept is not None:
        record.checksums |= kept.record.checksums
        fragments += kept.fragments
        yield from kept.strips
        return
    staying, nbytes = list[Strip](), 0
    stays = op.token is not None
    for strip in _strips(op, slabs, record, fragments):
        yield strip
        assert strip.sent is not None
        stays = stays and backend.reserve(strip.sent.nbytes)
        if stays:
            nbytes += strip.sent.nbytes
            with backend.computing():
                staying.append(strip.kept(backend.xp))
                strip.done()
        elif staying:
            staying.clear()
            backend.release(nbytes)
            nbytes = 0
    if stays:
        backend.keep(key, Kept(staying, record, fragments))


Summing = Callable[[OnDevice, range, Block], Partial]
SUMS: dict[type, Summing] = {
    Gram: _product_partial,
    SparseGram: _sparse_product_partial,
    GramMatrix: _matrix_partial,
}
