"""Form the sums of a pass on a GPU: rows go there in strips, sums come back once a run.

What is summed, how neighbours are joined and what is made of the total is the operator's own business, on the host and
in float64: only ``partial`` is another one. Every task has a run of its own, whose rows a few threads read, decode and
check, and keeps that run's sums on the device; what it computes is issued in turn, in one stream.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import reduce
from itertools import islice
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from npmdask.core.numerics.subspaces import Block
from npmdask.core.operators._protocol import SUMS_READ, Partial, Sums, finite_partial, require_finite
from npmdask.core.operators.column_moments import ColumnMoments
from npmdask.core.operators.gram import MOST_ROUNDED, SMALLEST, Gram
from npmdask.core.operators.gram_matrix import EXACT, GramMatrix, largest_integer
from npmdask.core.operators.sparse_gram import SparseGram
from npmdask.core.storage.chunk_access import tally
from npmdask.core.storage.readers.dense import DenseReader, ReadStats, Tile
from npmdask.core.storage.readers.sparse import Fragment, whole_rows
from npmdask.errors import MemoryRefusedError
from npmdask.gpu.devices import PANEL, Device, Slot, chosen_device, elsewhere, visible_cards

STRIP = 32 * 2**20  # bytes of rows that are sent at once
AT_ONCE = 128 * 2**20  # bytes of a slab, above which it is read part after part
READERS = 4  # threads of a task
AT_A_TIME = 16  # threads for which a pass is cut into runs: by its size alone, so that its sums are the same with any
RUN = 2**30  # bytes of a run, where sums are small
FEWEST = 256  # rows of a strip, however wide
FILLED = 2**25  # numbers of sparse rows that are filled in at once
SUMMED = 2**16  # rows of bytes whose products int32 holds
PAIRS = 8  # arrays of the size of a formed matrix while its eigenpairs are found
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
        """Say whether rows are sparse."""
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
        if self.sparse:  # places of filled rows are counted in int32
            return max(1, FILLED // wide)
        least, rows = max(FEWEST, STRIP // (wide * self.dtype.itemsize)), int(self.inner.reader.chunks[0])
        return max(least // rows, 1) * rows if self.at_once else least

    @property
    def at_once(self) -> bool:
        """Say whether strips are whole slabs, some of which are read at once."""
        return not self.sparse and self._slab_bytes <= AT_ONCE

    @property
    def _slab_bytes(self) -> int:
        return int(self.inner.reader.chunks[0]) * int(self.inner.block_rows) * self.dtype.itemsize

    @property
    def slots(self) -> int:
        """Return the number of slots of a task."""
        return READERS + 1 if self.at_once else 2

    @property
    def entries(self) -> int:
        """Entries of sparse rows that are sent at once."""
        return max(STRIP // 8, int(self.inner.block_rows))

    @property
    def slot_bytes(self) -> int:
        """Return the bytes of a strip of rows, or of the indices and values of sparse ones."""
        if self.sparse:
            return self.entries * (self.dtype.itemsize + 4) + ALIGNED
        return self.height * int(self.inner.block_rows) * self.dtype.itemsize

    @property
    def run_bytes(self) -> int:
        """Return the least bytes that a run reads.

        Runs that are read at once are to end together, and each end takes a while.
        """
        whole, nbytes = type(self.inner) is GramMatrix, int(self.inner.pass_bytes)
        at_once = AT_A_TIME // READERS if self.at_once else AT_A_TIME
        wanted = max(SUMS_READ * self.inner.sum_bytes if whole else 0, RUN)
        return int(max(self.inner.run_bytes, nbytes // (at_once * max(nbytes // max(at_once * wanted, 1), 1))))

    def task_bytes(self, p: int, runs: list[range]) -> int:
        """Host memory of a running task: its slots, what is read, and the sums as they come back."""
        reader = self.inner.reader
        pointers = max(reader.pointer_bytes(slabs) for slabs in runs) if self.sparse else 0
        sums = int(getattr(self.inner, "sum_bytes", 0)) + 3 * self.inner.block_rows * p * 8
        reading = int(reader.buffer_bytes) * (READERS if self.at_once else 1)
        return reading + pointers + self.slots * self.slot_bytes + 2 * sums

    @property
    def staying_bytes(self) -> int:
        """Memory of the device that the data take which stay from pass to pass: all of them, or none."""
        reader = self.inner.reader
        if type(self.inner) is GramMatrix:
            return 0
        if self.sparse:
            return int(reader.entries) * (self.dtype.itemsize + 4)
        return int(reader.shape[0]) * int(self.inner.block_rows) * self.dtype.itemsize

    def device_bytes(self, p: int) -> tuple[int, int]:
        """Memory of the device: for each thread, and beside them."""
        d, whole = int(self.inner.block_rows), type(self.inner) is GramMatrix
        sums = d * (d + 4 * p) * 8 if whole else 4 * d * p * 8
        packed = self.inner.sum_bytes + d * PANEL * 8 if whole else 0
        beside = WORKING * self.height * d * 8 + packed
        return self.slots * self.slot_bytes + sums, max(beside, PAIRS * d * d * 8) if whole else beside

    def threads_that_fit(self, threads: int, p: int) -> int:
        """Return how many of ``threads`` tasks run at once, as the memory of the device allows.

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
        return int(min(-(-threads // READERS) if self.at_once else threads, fitting))


def on_device(operator: Any, device: Device | None, token: str | None = None) -> Any:
    """The same operator with its sums formed on ``device``, where that is known how; else as it is."""
    if device is None or type(operator) not in SUMS:
        return operator
    if type(operator) is ColumnMoments and not operator.sums_plain_rows:
        return operator
    return OnDevice(inner=operator, device=device, token=token)


# Whether sums are formed on a device at all.


STARTING = 4.0  # seconds until a GPU computes: CuPy or PyTorch are imported, a context is made
USUAL_PASSES = 10
CORE_FLOPS = 20e9  # a second of a core, in float64: measured 18 to 29 in products of rows
CORE_BYTES = 2e9  # a second of a core, read and checked: measured, uncompressed


def device_for(needs: Iterable[Any], resources: Any) -> Device | None:
    """Return the device that sums of a run are formed on; None where none of them is, or where "auto" has found that
    the processor is done before a GPU would have started.

    Raises
    ------
    RefusedError
        A GPU is asked for, and this process finds none.
    """
    needs = list(needs)
    if type(needs[0].operator) not in SUMS:  # of the passes that decide
        return None
    moved = [need for need in needs if type(need.operator) in SUMS]
    if resources.device == "auto" and max(map(_processor_seconds, moved)) < STARTING:
        return None  # nothing is imported for it
    if resources.cluster:
        return elsewhere(resources.device_memory)
    if resources.workers:
        return elsewhere(resources.device_memory, -(-resources.workers // max(len(visible_cards()), 1)))
    return chosen_device(resources.device, resources.device_memory)


def _processor_seconds(need: Any) -> float:
    """About how long the processor takes: its arithmetic, and to decode and check what is read."""
    operator: Any = need.operator
    whole, reader = isinstance(operator, GramMatrix), operator.reader
    entries = reader.entries if reader.layout == "csr" else reader.shape[0] * reader.shape[1]
    passes, each = (1, operator.block_rows) if whole else (USUAL_PASSES, 4 * need.p)
    return float(
        passes * (entries * each / CORE_FLOPS + operator.pass_bytes / CORE_BYTES) / len(os.sched_getaffinity(0))
    )


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
            assert self.sent is not None
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
class _ResidentRun:
    """A run whose rows stay on the device, with what its first reading found."""

    strips: list[Strip]
    record: ReadStats
    fragments: list[Fragment]


def _strips(op: OnDevice, slabs: range, record: ReadStats, fragments: list[Fragment]) -> Iterator[Strip]:
    """The rows of some slabs, strip by strip: each is used before the next is asked for. Cut rows are put aside."""
    with op.device.backend.lane(op.slots, op.slot_bytes) as slots:
        if not op.sparse:
            yield from (_slab_strips if op.at_once else _cut_strips)(op, slots, slabs, record)
            return
        for at, piece in whole_rows(op.inner.reader, slabs, record, fragments):
            yield from _sparse_strips(op, slots, piece, at)


def _slab_strips(op: OnDevice, slots: Iterator[Slot], slabs: range, record: ReadStats) -> Iterator[Strip]:
    """Strips of whole slabs, some of which are read while one is worked on."""
    count = op.height // int(op.inner.reader.chunks[0])
    units = iter([range(start, min(start + count, slabs.stop)) for start in range(slabs.start, slabs.stop, count)])

    def begun(some: int) -> Iterator[Future[tuple[Strip, ReadStats]]]:
        for unit in islice(units, some):
            yield op.device.backend.readers.submit(_read, op, unit, next(slots))

    waiting = deque(begun(READERS))
    try:
        while waiting:
            first = waiting.popleft()
            waiting.extend(begun(1))
            strip, read = first.result()
            _take(record, read)
            yield strip
    finally:
        wait(waiting)  # they write to slots that others use next


def _take(record: ReadStats, more: ReadStats) -> None:
    """Add ``more`` to a record."""
    whole = record.add(more)
    record.bytes_read, record.chunks, record.checksums = whole.bytes_read, whole.chunks, whole.checksums
    record.requests, record.fetched = whole.requests, whole.fetched


def _read(op: OnDevice, unit: range, slot: Slot) -> tuple[Strip, ReadStats]:
    """The rows of some slabs."""
    reader, record, filled = op.inner.reader, ReadStats(), 0
    tally()  # what a strip that failed had taken
    slot.wait()
    rows = slot.host[: op.slot_bytes].view(op.dtype).reshape(op.height, -1)

    def room(count: int) -> np.ndarray:
        nonlocal filled
        filled += count
        return rows[filled - count : filled]

    straight = isinstance(reader, DenseReader) and reader.fills_rows and reader.dtype == op.dtype
    for slab in unit:
        if straight:
            deque(reader.tiles(slab, record, room), maxlen=0)
            continue
        for numbers, tile in reader.tiles(slab, record):
            given = room(numbers.stop - numbers.start)
            for columns, values in tile:
                given[:, columns] = values
    first = reader.slab_rows(unit.start).start
    record.requests, record.fetched = tally()
    return Strip(slice(first, first + filled), rows[:filled], rows[:filled], slot), record


def _cut_strips(op: OnDevice, slots: Iterator[Slot], slabs: range, record: ReadStats) -> Iterator[Strip]:
    """Strips of large slabs: one is filled while another is worked on."""
    reader, being = op.inner.reader, _Filling(op, slots)
    straight = isinstance(reader, DenseReader) and reader.fills_rows and reader.dtype == op.dtype
    for slab in reader.ahead(slabs):
        for numbers, tile in reader.tiles(slab, record, being.room) if straight else reader.tiles(slab, record):
            start = numbers.start
            while start < numbers.stop:
                start += being.take(tile, numbers, start)
                if being.filled == op.height:
                    yield being.finish()
    if being.filled:
        yield being.finish()


class _Filling:
    """A strip that is being filled with dense rows."""

    def __init__(self, op: OnDevice, slots: Iterator[Slot]) -> None:
        self._op, self._slots, self._shape = op, slots, (op.height, int(op.inner.block_rows))
        self._slot: Slot | None = None
        self._rows, self.filled, self._first, self._given = np.empty(self._shape[:1]), 0, 0, False

    def _take_slot(self) -> None:
        self._slot = next(self._slots)
        self._slot.wait()
        self._rows = self._slot.host[: self._op.slot_bytes].view(self._op.dtype).reshape(self._shape)

    def room(self, count: int) -> np.ndarray:
        """Return free rows of the strip to read into, at most ``count``; taken as they are then."""
        if self._slot is None:
            self._take_slot()
        self._given = True
        return self._rows[self.filled : min(self.filled + count, self._shape[0])]

    def take(self, tile: Tile, numbers: slice, start: int) -> int:
        """Take rows of a tile from the one of number ``start`` on; how many."""
        if self._slot is None:
            self._take_slot()
        if not self.filled:
            self._first = start
        count = min(self._shape[0] - self.filled, numbers.stop - start)
        if not self._given:
            inside = slice(start - numbers.start, start - numbers.start + count)
            for columns, values in tile:
                self._rows[self.filled : self.filled + count, columns] = values[inside]
        self._given, self.filled = False, self.filled + count
        return count

    def finish(self) -> Strip:
        """The strip as it is now; another one is begun."""
        rows, slot, first = self._rows[: self.filled], self._slot, self._first
        self._slot, self.filled = None, 0
        return Strip(slice(first, first + len(rows)), rows, rows, slot)


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
        columns = seen.shape[1]
        self._gram, self._beside = self._backend.zeros((d, d)), self._backend.zeros((d, columns + 1))  # image, total
        self._seen, self._there = seen, self._backend.upload(np.column_stack([seen, np.zeros(d)]))
        self._ones = self._backend.zeros((op.height,)) + 1.0
        self._count, self._bound = 0.0, 0.0
        self._shift = self._backend.zeros((d,)) + self._of.origin if exact or self._of.of_csr else None

    def holds(self, most: float, rows: int) -> bool:
        """Say whether sums stay exact with ``rows`` more rows of integers up to ``most``."""
        return self._bound + most * most * rows < EXACT

    def add(self, strip: Strip, rows: Any, most: float) -> None:
        """Add rows of the device."""
        self._bound = self._bound + most * most * len(strip) if self.exact else math.inf
        if not self._added_bytes(strip, rows):
            self._add_floats(strip, rows)

    def _added_bytes(self, strip: Strip, rows: Any) -> bool:
        """Add rows of bytes as integers where that is exact, and say whether it was done."""
        xp, stored = self._backend.xp, None if strip.values is None else strip.values.dtype
        if not self.exact or self._of.of_csr or stored is None or stored.itemsize > 1 or len(strip) > SUMMED:
            return False
        if stored.kind == "u":
            rows = xp.astype(xp.astype(rows, xp.int16) - int(self._of.origin), xp.int8)
        products = self._backend.integer_gram(rows)
        if products is None:
            return False
        self._gram += products
        self._beside[:, -1] += xp.astype(xp.sum(rows, axis=0, dtype=xp.int64), xp.float64)
        self._count += len(strip)
        return True

    def _add_floats(self, strip: Strip, rows: Any) -> None:
        xp, backend, weights = self._backend.xp, self._backend, self._of.view.row_weight
        roots = None if weights is None else np.sqrt(weights[strip.numbers])
        there = self._ones[: len(strip)] if roots is None else backend.upload(roots)
        count = float(len(strip) if roots is None else roots @ roots)
        if self._shift is None:
            self._shift = xp.matmul(there * there, xp.astype(rows, xp.float64)) / (count or 1.0)
        if not xp.isdtype(rows.dtype, "real floating"):
            rows = xp.astype(rows, xp.float64)
        if self._of.origin or not (self.exact or self._of.of_csr):
            rows = rows - self._shift  # converted by the way
        rows = xp.astype(rows, xp.float64, copy=False)
        if weights is not None:
            rows = rows * there[:, None]
        self._count += count
        products = xp.matmul(rows, self._there)
        products[:, -1] = there  # few calls: threads that read wait for those of this one
        backend.add_product(self._beside, rows, products)
        backend.add_gram(self._gram, rows)

    def sums(self) -> Sums:
        """Return the sums over the rows so far, on the host."""
        xp, of, backend, d = self._backend.xp, self._of, self._backend, int(self._of.block_rows)
        about_origin = self.exact or of.of_csr
        with backend.computing():
            gram, image, mean = self._gram, self._beside[:, :-1], self._beside[:, -1]
            if self.exact:
                image = xp.matmul(xp.triu(gram) + xp.triu(gram, k=1).T, self._there[:, :-1])
            elif not about_origin:
                away = mean / (self._count or 1.0)
                root = away * math.sqrt(self._count)
                for start in range(0, d, PANEL):
                    panel = slice(start, min(start + PANEL, d))
                    gram[:, panel] -= root[:, None] * root[None, panel]
                image = image - (self._count * away)[:, None] * xp.matmul(away, self._there[:, :-1])[None, :]
                mean = away if self._shift is None else self._shift + away
            made = (mean, self._upper_blocks(gram), image)
        sums = {"count": np.array([self._count]), "bound": np.array([self._bound if self.exact else math.inf])}
        sums |= dict(zip(("mean", "gram", "image"), backend.download(*made), strict=True))
        return sums | {"met": (sums["mean"] - (0.0 if about_origin else of.origin)) @ self._seen}

    def _upper_blocks(self, gram: Any) -> Any:
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
            small = strip.values.dtype.itemsize == 1 and not of.of_csr
            most = 128.0 if small else largest_integer(strip.values, of.origin)
        with backend.computing():
            if last is None:  # one strip of large integers can be too many on its own
                parts.append(_MatrixSums(op, seen, exact=most * most * len(strip) < EXACT))
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
        wide = np.promote_types(of.reader.dtype, seen.dtype)  # float32 may not hold what fills a gap
        shift = None if op.sparse or view.shift is None else backend.upload(view.shift.astype(wide))
    record, fragments = ReadStats(), list[Fragment]()
    for strip in _resident_or_read(op, slabs, record, fragments):
        with backend.computing():
            rows = xp.astype(strip.rows(), there.dtype if shift is None else shift.dtype)
            if shift is not None:
                rows = xp.astype(rows - shift, there.dtype)
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


def _resident_or_read(op: OnDevice, slabs: range, record: ReadStats, fragments: list[Fragment]) -> Iterator[Strip]:
    """The rows of some slabs as they stayed on the device, or as they are read; then they stay if they fit."""
    backend, key = op.device.backend, (op.token, slabs.start, slabs.stop)
    kept: _ResidentRun | None = None if op.token is None else backend.kept(key)
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
        backend.keep(key, _ResidentRun(staying, record, fragments))


# Means and deviations


def _moments_partial(op: OnDevice, slabs: range, block: Block) -> Partial:
    """Those of each strip about its own mean, joined as those of runs are (Chan, Golub and LeVeque 1983)."""
    of, backend, xp, weights = op.inner, op.device.backend, op.device.backend.xp, op.inner.view.row_weight
    with backend.computing():
        mean, spread, count = backend.zeros((of.block_rows,)), backend.zeros((of.block_rows,)), 0.0
    record = ReadStats()
    for strip in _resident_or_read(op, slabs, record, []):
        own = np.ones(len(strip)) if weights is None else weights[strip.numbers]
        here = float(own.sum())
        with backend.computing():
            rows, there = xp.astype(strip.rows(), xp.float64), backend.upload(own)
            first = xp.matmul(there, rows) / (here or 1.0)
            rows = rows - first
            away = first + xp.matmul(there, rows) / (here or 1.0) - mean  # what rounding has left of the mean
            share = here / ((count + here) or 1.0)
            spread = spread + xp.matmul(there, rows * rows) + away * away * (count * share)
            mean, count = mean + share * away, count + here
            strip.done()
    means, squares = backend.download(mean, spread)
    lost = 2 * np.abs(means) * np.sqrt(squares * count)  # at most
    found = np.stack([np.full(of.block_rows, count), means, squares, lost])
    return finite_partial(of.unstacked(found, slabs), of.reader, slabs, record)


Summing = Callable[[OnDevice, range, Block], Partial]
SUMS: dict[type, Summing] = {
    ColumnMoments: _moments_partial,
    Gram: _product_partial,
    SparseGram: _sparse_product_partial,
    GramMatrix: _matrix_partial,
}
