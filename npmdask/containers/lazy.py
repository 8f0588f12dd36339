"""Rows that are computed or read when a pass asks for them: blocks of a Dask graph, slices of an array in a file.

Nothing of it is written anywhere, and only the blocks of the unit that a task works on are in memory. Dask computes
no pass here: the blocks of one unit are computed by the task that multiplies them, in its own thread or process, so
that memory is that of a few tasks and sums are formed in the order of every other pass.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from hashlib import sha256
from itertools import pairwise, product
from mmap import ALLOCATIONGRANULARITY
from pathlib import Path
from typing import Any, ClassVar, Self
from uuid import uuid4

import numpy as np
from numcodecs.blosc import Blosc
from scipy.sparse import csr_matrix, hstack, issparse, vstack

from npmdask.containers.computed import COMPUTED, REAL, RowsReader, traced
from npmdask.core.numerics.subspaces import single_threaded_blas
from npmdask.core.storage.checksum import crc32c, fingerprint
from npmdask.core.storage.chunk_access import Access, WholeStore, naming, shown
from npmdask.core.storage.conventions import Conventions, require_plain_parts
from npmdask.core.storage.paths import local_path
from npmdask.core.storage.readers.dense import MIN_TILE_ROWS, TILE_BYTES, ReadStats
from npmdask.core.storage.readers.sparse import CsrReader, Fragment
from npmdask.core.storage.safe_open import mark_of
from npmdask.core.storage.source import IN_MEMORY, Asked, Source, consistent, in_parts, outside
from npmdask.errors import BadInputError, Later, NpmdaskError, require

wholeness = Later("npmdask.containers.wholeness")  # they need kinds of data, which need this module
hdf5 = Later("npmdask.formats.hdf5")

DOUBLE = np.dtype(np.float64)  # until the first block is seen
UNIT_BYTES = 8 * 2**20  # small blocks are taken together: a unit is what a task reads at least
SHARED = 3  # row blocks that a part of a graph may be computed for again and again; for more it is computed once
MOST_SHARED = 256 * 2**20  # bytes of such parts, which every process keeps
MARGIN = 1.25  # over the measured peak of a block: what compressors and files take is not traced
_last = threading.local()  # the block that the next unit of a task begins with


def plain_block(block: Any) -> np.ndarray:
    """A block of any dimensions, or some of its rows, as an array in the byte order of this machine.

    Raises
    ------
    ValueError
        Masked values.
    """
    if issparse(block):
        block = block.toarray()
    elif hasattr(block, "todense"):  # of the package sparse
        block = block.todense()
    if isinstance(block, np.ma.MaskedArray):
        if count := int(np.ma.count_masked(block)):
            raise ValueError(f"{count} masked values, and masked values are not supported here: fill them in")
        block = block.data
    array = np.asarray(block)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _rows(block: Any) -> np.ndarray:
    """Some rows of a block as rows of numbers, whatever its other dimensions."""
    array = plain_block(block)
    return array.reshape(len(array), -1)


@dataclass(frozen=True, kw_only=True)
class BlockRows:
    """Rows in blocks of any heights; a subclass says how a block comes (``block``).

    Parameters
    ----------
    name : what the data are called.
    stamp : what else can be seen of them without reading, as text that changes when they do.
    shape : rows, and all other dimensions of a row together.
    heights : rows of the blocks.
    dtype, needs : as the first block was found to have and to need.
    sparse, row_bytes : whether it is a SciPy sparse matrix, and what a row of it takes on average.
    opening : a word of its own: what one opening has computed is not taken for what the next one would.
    mark : of a store that they are read from, whose data have a privacy budget.
    """

    name: str
    stamp: str
    shape: tuple[int, int]
    heights: tuple[int, ...]
    dtype: np.dtype = DOUBLE
    needs: int = 0
    sparse: bool = False
    row_bytes: float = 8.0
    first: int = 0  # checksum of the first block: what a graph reads may change without its name
    opening: str = field(default_factory=lambda: uuid4().hex)
    mark: Any = None
    remedy: ClassVar[str] = ""  # of rows that cannot be had, or come out otherwise

    def block(self, number: int) -> Any:
        """A block of rows, dense or sparse, of two dimensions or more."""
        raise NotImplementedError

    @property
    def identity(self) -> str:
        return f"{self.name}, {self.stamp}, {self.heights}, {self.first:08x}"

    @cached_property
    def unit_rows(self) -> int:
        """Rows of the highest block, or of several where they are small."""
        most = max(self.heights)
        return min(self.shape[0], most * max(1, int(UNIT_BYTES / max(1.0, most * self.row_bytes))))

    def as_dense(self) -> Self:
        """The same rows, to be read as dense ones."""
        return replace(self, sparse=False, row_bytes=float(self.shape[1] * self.dtype.itemsize))

    @cached_property
    def edges(self) -> np.ndarray:
        """The first row of every block, and the number of rows."""
        return np.concatenate([[0], np.cumsum(self.heights)])

    def pieces(self, unit: int, known: bool = False) -> Iterator[Any]:
        """The rows of a unit as blocks, or parts of them, come; one that lies in two units is computed once, where one
        task works on both. ``known``: their checksum is, and will be compared.
        """
        row, stop = unit * self.unit_rows, min((unit + 1) * self.unit_rows, self.shape[0])
        while row < stop:
            number = int(np.searchsorted(self.edges, row, side="right")) - 1
            first, end = int(self.edges[number]), int(self.edges[number + 1])
            block, until = self._read_block(number), min(end, stop)
            if number == 0 and self.first and not known and self._sum(block) != self.first:
                raise BadInputError(
                    f"the first rows of {self.name} are others than when it was opened: keep the data as they are, or "
                    "store what a graph draws at random (npmdask.ingest) and give the path"
                )
            yield block if (row, until) == (first, end) else block[row - first : until - first]
            if end > stop:
                _last.held = (self.opening, number, block)
            row, block = until, None  # before the next one is computed

    def tiles(self, unit: int, known: bool = False) -> Iterator[np.ndarray]:
        """The rows of a unit as dense ones, some at a time."""
        for piece in self.pieces(unit, known):
            for at in range(0, piece.shape[0], self._step):
                yield _rows(piece[at : at + self._step])

    def _read_block(self, number: int) -> Any:
        held, _last.held = getattr(_last, "held", None), None
        if held is not None and held[:2] == (self.opening, number):
            return held[2]
        held, block = None, self.block(number)
        shape: tuple[int, ...] = getattr(block, "shape", ())
        if len(shape) < 2 or (shape[0], int(np.prod(shape[1:]))) != (self.heights[number], self.shape[1]):
            raise ValueError(
                f"block {number} has shape {shape}, and {self.heights[number]} x {self.shape[1]} was expected"
            )
        return block

    def _sum(self, block: Any) -> int:
        """The checksum of the first block."""
        found = 0
        for at in range(0, self.heights[0], MIN_TILE_ROWS):
            found = crc32c(np.ascontiguousarray(_rows(block[at : at + MIN_TILE_ROWS])), found)
        return found

    def measured(self) -> Self:
        """The same rows, knowing what the highest block is and takes, and the checksum of the first.

        Raises
        ------
        BadInputError
            A block cannot be computed.
        """
        highest = int(np.argmax(self.heights))
        try:
            with traced() as allocated, single_threaded_blas():  # as in every pass
                block = self._read_block(highest)
                sparse = bool(issparse(block))
                peak = MARGIN * allocated() * (2 if sparse else 1)
                dtype = _rows(block[:1]).dtype
                wide = _bytes_of(block) / self.heights[highest] if sparse else float(self.shape[1] * dtype.itemsize)
                block = self._read_block(0) if highest else block
            first = self._sum(block)
        except NpmdaskError:
            raise
        except Exception as error:  # whatever a graph or a file raises
            raise _not_computed(f"the first rows of {self.name}", error, self.remedy) from error
        needs = int(peak) + self._step * self.shape[1] * dtype.itemsize
        return replace(self, dtype=dtype, needs=needs, sparse=sparse, row_bytes=wide, first=first)

    @property
    def _step(self) -> int:
        """Rows of a tile."""
        return max(MIN_TILE_ROWS, TILE_BYTES // max(1, self.shape[1] * self.dtype.itemsize))


def _bytes_of(value: Any) -> int:
    """Memory that a block takes, or what is made on the way to one: that of its arrays."""
    if issparse(value):
        return sum(getattr(value, name).nbytes for name in ("data", "indices", "indptr") if hasattr(value, name))
    if isinstance(value, dict | list | tuple):
        return sum(map(_bytes_of, value.values() if isinstance(value, dict) else value))
    return int(value.nbytes) if isinstance(value, np.ndarray) else 0


@dataclass(frozen=True, kw_only=True)
class SlicedRows(BlockRows):
    """Rows of an array that is sliced: a memory map, a dataset of an HDF5 file, a backed matrix of an AnnData.

    ``opened`` opens it again, in each process and thread where it is not given.
    """

    opened: Callable[[], Any]
    remedy: ClassVar[str] = "look whether the file can be read, and is as long as it should be"
    array: Any = field(default=None, compare=False)

    def block(self, number: int) -> Any:
        array = self.opened() if self.array is None else self.array
        return array[int(self.edges[number]) : int(self.edges[number + 1])]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "array": None}


def rows_of_a_block(shape: Sequence[int], dtype: Any, chunk: int = 1) -> int:
    """Return how many rows of an array without blocks are read at once: whole chunks of it, of some MiB."""
    wide = chunk * int(np.prod(shape[1:])) * np.dtype(dtype).itemsize
    return chunk * max(1, UNIT_BYTES // max(1, wide))


def _sliced(name: str, stamp: str, opened: Callable[[], Any], array: Any, chunk: int = 1) -> SlicedRows:
    shape = array.shape
    if len(shape) != 2 or 0 in shape:
        raise BadInputError(f"{name} has shape {tuple(shape)}: rows and columns are needed, at least one of each")
    height = rows_of_a_block(shape, array.dtype, chunk)
    full, rest = divmod(int(shape[0]), height)
    heights = (height,) * full + ((rest,) if rest else ())
    flat = (int(shape[0]), int(np.prod(shape[1:])))
    return SlicedRows(name=name, stamp=stamp, shape=flat, heights=heights, opened=opened, array=array).measured()


def mapped_rows(array: np.memmap) -> Any:
    """The rows of a memory map, which stay where they are; the array itself where no file has its numbers, or they are
    no rows.

    Raises
    ------
    BadInputError
        It is empty.
    """
    mapped, file = getattr(array, "_mmap", None), array.filename
    if mapped is None or file is None or array.mode == "c" or array.ndim != 2:
        return np.asarray(array)
    array.flush()
    start = array.offset - array.offset % ALLOCATIONGRANULARITY  # of the map in the file; of a view, too
    inside = array.__array_interface__["data"][0] - np.frombuffer(mapped, np.uint8).ctypes.data
    again = partial(_map_array, str(file), array.dtype, start + inside, array.shape, array.strides)
    stamp = f"{_file_stamp(file)}, {start + inside}, {array.strides}, {array.dtype.str}"
    return _sliced(f"the memory map of {file}", stamp, again, np.asarray(array))


def _map_array(file: str, dtype: np.dtype, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> np.ndarray:
    return np.ndarray(shape, dtype, np.memmap(file, np.uint8, "r"), offset, strides)


def _file_stamp(file: Any) -> str:
    """Return path, size and modification time of a file as text."""
    facts = os.stat(file)
    return f"{os.path.abspath(file)}, {facts.st_size}, {facts.st_mtime_ns}"


def stored_rows(given: Any, *, gaps: bool = False) -> SlicedRows:
    """The rows of a dataset of an HDF5 file, or of a group that holds a CSR matrix as AnnData writes it; with ``gaps``
    missing values are NaN.

    Raises
    ------
    BadInputError
        Neither; something is not there; row pointers that are not of these rows.
    """
    where = f"{getattr(given, 'name', '?')} of {given.file.filename if hasattr(given, 'file') else '?'}"
    if hasattr(given, "keys"):
        if given.attrs.get("encoding-type") != "csr_matrix":
            raise BadInputError(
                f"{where} is a group ({', '.join(sorted(given)) or 'empty'}): give one of its datasets, or the group "
                "of a CSR matrix as AnnData writes it"
            )
        require_plain_parts(given)
        array: Any = _CsrSlices(given)
        array.require_whole(where)
        chunk = 1
    elif hasattr(given, "shape"):
        array, chunk = hdf5.whole_dataset(given, gaps=gaps), given.chunks[0] if given.chunks else 1
    else:
        raise BadInputError(f"the {type(given).__name__} of h5py holds no rows: give a dataset of the file")
    again = partial(_reopen_variable, given.file.filename, given.name, gaps)
    return _sliced(where, _file_stamp(given.file.filename), again, array, chunk)


def _reopen_variable(file: str, name: str, gaps: bool) -> Any:
    import h5py  # who has a dataset of it, or is sent one, has it

    node = h5py.File(file, "r")[name]
    return _CsrSlices(node) if isinstance(node, h5py.Group) else hdf5.whole_dataset(node, gaps=gaps)


class _CsrSlices:
    """A CSR matrix in a file, by slices of rows."""

    def __init__(self, group: Any) -> None:
        self._group = {name: hdf5.whole_dataset(group[name]) for name in ("data", "indices", "indptr")}
        self.dtype = group["data"].dtype
        self.shape = tuple(int(n) for n in group.attrs["shape"])

    def require_whole(self, where: str) -> None:
        """Raise BadInputError for row pointers of other rows, or that do not cover the entries: some would be lost."""
        pointers, entries = self._group["indptr"], {self._group[name].shape[0] for name in ("data", "indices")}
        if pointers.shape[0] != self.shape[0] + 1:
            raise BadInputError(f"{where} has {pointers.shape[0]} row pointers, but its shape has {self.shape[0]} rows")
        if {int(pointers[self.shape[0]])} != entries or int(pointers[0]):
            raise BadInputError(f"{where}: its row pointers do not cover its entries; write the file again")

    def __getitem__(self, rows: slice) -> csr_matrix:
        ends = self._group["indptr"][rows.start : rows.stop + 1].astype(np.int64)
        span = slice(int(ends[0]), int(ends[-1]))
        parts = (self._group["data"][span], self._group["indices"][span], ends - ends[0])
        found = csr_matrix(parts, shape=(rows.stop - rows.start, self.shape[1]))
        found.check_format(full_check=True)  # an index outside would be read as a number of another row
        return found


@dataclass(frozen=True, kw_only=True)
class GraphRows(BlockRows):
    """Rows of a Dask array: block after block, each by a graph of its own.

    ``columns``: sizes of the blocks along the other dimensions. ``graphs``: for each row of blocks its keys, in
    order, and what they are computed from, where what many rows of blocks need (a mean over all rows) is a value.
    """

    remedy: ClassVar[str] = "try x.blocks[0].compute(), where x is the array, and see what it does"
    columns: tuple[tuple[int, ...], ...]
    graphs: tuple[tuple[tuple[Any, ...], dict[Any, Any]], ...]
    meant: Conventions | None = None
    stores: tuple[WholeStore, ...] = ()  # of zarr, that the graphs read
    variables: tuple[tuple[str, str], ...] = ()  # file and name of what they read from files of HDF5

    def block(self, number: int) -> Any:
        found = self._compute_block(number)
        return (
            found
            if self.meant is None or issparse(found)
            else self.meant.required(plain_block(found), shown(self.name))
        )

    def _compute_block(self, number: int) -> Any:
        keys, graph = self.graphs[number]
        with naming(self.stores):
            found = _compute(graph, keys)
        for file, name in self.variables:
            hdf5.require_variable(file, name)
        for part, size in zip(found, product(*self.columns), strict=True):  # NumPy would stretch or fold another
            shape, said = getattr(part, "shape", ()), (self.heights[number], *size)
            if tuple(shape) != said:
                raise ValueError(f"block {number} has shape {shape}, and {' x '.join(map(str, said))} was expected")
        if len(found) == 1:
            return found[0]
        if all(issparse(part) for part in found):
            return hstack(found, format="csr")
        parts = [plain_block(part) for part in found]
        whole = np.empty((self.heights[number], *map(sum, self.columns)), np.result_type(*parts))
        spans = [[slice(a, b) for a, b in pairwise(np.concatenate([[0], np.cumsum(c)]))] for c in self.columns]
        for where, part in zip(product(*spans), parts, strict=True):
            whole[(slice(None), *where)] = part
        return whole


def _compute(graph: dict[Any, Any], keys: Sequence[Any], callbacks: Any = ()) -> tuple[Any, ...]:
    """The values of some keys, one task after the other in this thread; callbacks of the pass around it not called."""
    from dask.local import get_sync

    return tuple(get_sync(graph, list(keys), callbacks=callbacks))


def array_of_parts(parts: Sequence[Any], values: Callable[[Any], np.ndarray], width: int, dtype: np.dtype) -> Any:
    """The rows of ``values`` of some delayed parts, one below the other, as an array of Dask; of none the height is
    known.
    """
    import dask
    import dask.array as da

    made = [dask.delayed(values, pure=True)(part) for part in parts]
    return da.concatenate([da.from_delayed(part, (np.nan, width), dtype) for part in made])


def beside(arrays: Sequence[Any]) -> Any:
    """Arrays of Dask with the same rows as one."""
    import dask.array as da

    return da.concatenate(arrays, axis=1).rechunk({1: -1})


def graph_rows(array: Any, where: str, meant: Conventions | None = None) -> GraphRows:
    """The rows of a Dask array of two dimensions or more, the first of which are rows; blocks of unknown height are
    computed once, one at a time, to count them.

    Parameters
    ----------
    array : dask.array.Array
    where : what it is called in a sentence.
    meant : what is left to do of its values.

    Raises
    ------
    BadInputError
        The number of columns is unknown, blocks lie in the memory of a cluster, or every block needs all others.
    """
    from dask._task_spec import convert_legacy_graph

    if any(np.isnan(n) for n in array.shape[1:]):
        raise BadInputError(f"{where} has columns of unknown number: call x.compute_chunk_sizes() first")
    heights, *columns = array.chunks
    blocks = [
        tuple((array.name, row, *other) for other in product(*(range(len(c)) for c in columns)))
        for row in range(len(heights))
    ]
    graph = array.__dask_graph__()
    given = (part for task in graph.values() for part in (task, *getattr(task, "args", ())))
    if any(type(getattr(part, "value", part)).__module__.startswith("distributed") for part in given):
        raise BadInputError(
            f"{where} is persisted in the memory of a cluster, which other processes cannot read: give the array "
            "from before persist(), or write it with x.to_zarr('x.zarr')"
        )
    stored = wholeness.Stored()
    whole = convert_legacy_graph({key: stored(task) for key, task in _optimized(array).items()})
    if isinstance(array._meta, np.ndarray):
        taken = _blocks_together(whole, blocks, heights, int(np.prod(array.shape[1:])) * array.dtype.itemsize)
        if taken != heights:
            return graph_rows(array.rechunk((taken, *columns)), where, meant)
    with naming(stored.stores):
        graphs = _graphs(whole, blocks, where)
    counted = partial(_height, where=where, stores=stored.stores)
    known = [counted(part) if np.isnan(n) else int(n) for part, n in zip(graphs, heights, strict=True)]
    shape = (sum(known), *array.shape[1:])
    require(0 not in shape, f"{where} has shape {shape}: rows and columns are needed, at least one of each")
    graphs, known = tuple(part for part, n in zip(graphs, known, strict=True) if n), [n for n in known if n]
    rows = GraphRows(
        name=f"the Dask array {array.name}",
        stamp=", ".join(sorted({outside(node, {}) for node in stored.arrays})),
        shape=(int(shape[0]), int(np.prod(shape[1:]))),
        heights=tuple(known),
        columns=tuple(tuple(int(n) for n in c) for c in columns),
        graphs=graphs,
        meant=meant,
        stores=tuple(stored.stores),
        variables=tuple(sorted(stored.variables)),
    )
    return replace(rows, mark=next(filter(None, map(mark_of, stored.arrays)), None)).measured()


def _height(part: tuple[tuple[Any, ...], dict[Any, Any]], where: str, stores: Sequence[WholeStore]) -> int:
    """Count the rows of a row of blocks. Raises BadInputError where it cannot be computed."""
    keys, graph = part
    try:
        with single_threaded_blas(), naming(stores):
            return int(_compute(graph, keys[:1])[0].shape[0])
    except NpmdaskError:
        raise
    except Exception as error:  # whatever a graph raises
        raise _not_computed(f"block {keys[0][1]} of {where}", error, GraphRows.remedy) from error


def _not_computed(what: str, error: Exception, remedy: str) -> BadInputError:
    return BadInputError(f"{what} cannot be computed ({type(error).__name__}: {error}); {remedy}")


def _optimized(array: Any) -> dict[Any, Any]:
    from dask._task_spec import convert_legacy_graph
    from dask.core import flatten

    graph = array.__dask_graph__()
    found = convert_legacy_graph(dict(array.__dask_optimize__(graph, list(flatten(array.__dask_keys__())))))
    whole = all(task.dependencies <= found.keys() for task in found.values())
    return dict(found if whole else graph)  # of parts given to dask.dataframe.from_delayed Dask loses some


def _graphs(
    whole: dict[Any, Any], blocks: list[tuple[Any, ...]], where: str
) -> tuple[tuple[tuple[Any, ...], dict[Any, Any]], ...]:
    """Return keys and graph of each row of blocks, with the values that many rows need already computed.

    Raises
    ------
    BadInputError
        What many need is too large to be kept.
    """
    from dask._task_spec import DataNode  # what graphs are made of; public names there are none
    from dask.optimization import cull

    kept = [key for key, needed in _needed_by(whole, blocks).items() if len(needed) > SHARED]
    with single_threaded_blas():
        values = dict(zip(kept, _compute(cull(whole, kept)[0], kept, (_memory_guard(set(kept), where),)), strict=True))
    known = {**whole, **{key: DataNode(key, value) for key, value in values.items()}}
    return tuple((keys, dict(cull(known, list(keys))[0])) for keys in blocks)


def _needed_by(whole: dict[Any, Any], blocks: list[tuple[Any, ...]]) -> dict[Any, set[int]]:
    """Return which rows of blocks need each part of a graph that has to be computed, the last parts first; what only
    parts are made of that more than ``SHARED`` need is not needed itself.
    """
    from dask._task_spec import DataNode
    from dask.core import toposort

    needed: dict[Any, set[int]] = {key: set() for key in whole}
    for number, keys in enumerate(blocks):
        for key in keys:
            needed[key].add(number)
    order = [*reversed(toposort(whole, dependencies={key: task.dependencies for key, task in whole.items()}))]
    for key in order:
        if len(needed[key]) <= SHARED or isinstance(whole[key], DataNode):
            for other in whole[key].dependencies:
                needed[other] |= needed[key]
    return {key: needed[key] for key in order if not isinstance(whole[key], DataNode)}


def _blocks_together(
    whole: dict[Any, Any], blocks: list[tuple[Any, ...]], heights: tuple[int, ...], row_bytes: int
) -> tuple[int, ...]:
    """The heights of blocks of rows where neighbours that more than ``SHARED`` of are cut out of one block are one: a
    field less its climatology has a block for every month. Where that would be too large, they stay as they are.
    """
    edges, joined = np.concatenate([[0], np.cumsum(heights)]), np.ones(len(heights) + 1, bool)
    for needed in _needed_by(whole, blocks).values():
        first, last = min(needed, default=0), max(needed, default=0)
        if SHARED < len(needed) == last - first + 1 and (edges[last + 1] - edges[first]) * row_bytes <= MOST_SHARED:
            joined[first + 1 : last + 1] = False
    found = np.diff(edges[joined])
    return tuple(found.tolist()) if found.max() * row_bytes <= MOST_SHARED else heights


def _memory_guard(kept: set[Any], where: str) -> tuple[Any, ...]:
    """A callback of Dask's that stops it when what is to be kept is too much."""
    total = 0

    def finished(key: Any, value: Any, *_: Any) -> None:
        nonlocal total
        total += _bytes_of(value) if key in kept else 0
        if total > MOST_SHARED:
            raise BadInputError(
                f"the blocks of {where} depend on each other: more than {MOST_SHARED // 2**20} MiB of the input of "
                "one block are shared with many others, as after a transposition or rechunking. Write the array "
                "once with x.to_zarr('x.zarr'), and give that path"
            )

    return (None, None, None, finished, None)


@dataclass(frozen=True, kw_only=True)
class SpilledRows(BlockRows):
    """Rows that the first pass of a run computes and writes, and later ones read.

    ``folder`` may hold the units of several sources, of runs that were killed, and of earlier runs, whose numbers may
    have changed since: what is read has a checksum of this run that it is compared with, or was ``written`` by the same
    pass, which may read units several times. A file appears whole or not at all.
    """

    rows: BlockRows
    folder: str
    written: set[int] = field(default_factory=set, compare=False)
    remedy: ClassVar[str] = GraphRows.remedy

    def pieces(self, unit: int, known: bool = False) -> Iterator[Any]:
        """The rows of a unit, all at once."""
        key = sha256(f"{self.identity}, {self.unit_rows}, {self.sparse}".encode()).hexdigest()[:16]
        file = Path(self.folder) / key / f"{unit}.blosc"
        held = None
        if known or unit in self.written:
            with suppress(FileNotFoundError, NotADirectoryError):
                held = file.read_bytes()
        if held is None:
            if self.sparse:
                yield (whole := _stacked(self.rows.pieces(unit), self.shape[1]))
                self._write(file, (whole.data, whole.indices, whole.indptr))
            else:
                values = np.concatenate([tile.copy() for tile in self.rows.tiles(unit)])
                yield values
                self._write(file, (values,))
            return
        try:
            yield self._decoded(held, min(self.unit_rows, self.shape[0] - unit * self.unit_rows))
        except (RuntimeError, ValueError) as error:
            raise BadInputError(f"{file} is damaged ({error}): delete it, and it will be computed again") from error

    def _decoded(self, held: bytes, rows: int) -> Any:
        parts, at = [], 0
        while at < len(held):
            end = at + 8 + int.from_bytes(held[at : at + 8], "little")
            parts.append(Blosc().decode(held[at + 8 : end]))
            at = end
        if not self.sparse:
            return np.frombuffer(parts[0], self.dtype).reshape(rows, self.shape[1])
        dtypes = (self.dtype, _index_dtype(self.shape[1]), np.dtype(np.int64))
        data, indices, indptr = (np.frombuffer(p, dtype) for p, dtype in zip(parts, dtypes, strict=True))
        return csr_matrix((data, indices, indptr), shape=(rows, self.shape[1]))

    def _write(self, file: Path, parts: tuple[np.ndarray, ...]) -> None:
        """Write a unit; a kill leaves nothing that could be taken for one."""
        aside = file.with_name(f"{file.name}.{os.getpid()}-{threading.get_ident()}.partial")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with aside.open("wb") as opened:
                for part in parts:
                    encoded = Blosc("lz4", clevel=1, shuffle=Blosc.SHUFFLE).encode(np.ascontiguousarray(part))
                    opened.write(len(encoded).to_bytes(8, "little") + encoded)
            aside.replace(file)
            self.written.add(int(file.stem))
        except OSError as error:
            with suppress(OSError):
                aside.unlink()
            raise BadInputError(
                f"{file.parent} cannot hold the computed rows ({error.strerror or error}): free some space, or leave "
                "spill out, so that they are computed again in every pass"
            ) from error


def spilled(rows: BlockRows, folder: str) -> SpilledRows:
    """The same rows, computed once and kept in ``folder``."""
    known = {f.name: getattr(rows, f.name) for f in fields(BlockRows)}
    unit = rows.unit_rows * rows.row_bytes  # as it is, and compressed, which may be a little larger
    return SpilledRows(**{**known, "needs": rows.needs + int(2.1 * unit)}, rows=rows, folder=folder)


def _index_dtype(columns: int) -> np.dtype:
    return np.dtype(np.int32 if columns < 2**31 else np.int64)


def _stacked(pieces: Iterator[Any], columns: int) -> csr_matrix:
    """Sparse blocks one below the other as one CSR matrix, whose entries are in order and given once.

    Raises
    ------
    ValueError
        A block is not sparse, or has an index outside.
    """
    blocks = []
    for piece in pieces:
        if not issparse(piece):
            raise ValueError(f"a block is a {type(piece).__name__}, and the first one is sparse")
        blocks.append(piece.tocsr())
    whole = blocks[0] if len(blocks) == 1 else vstack(blocks, format="csr")
    # Made again, for SciPy remembers of a matrix what was so before its arrays were changed.
    found = csr_matrix((whole.data, whole.indices, whole.indptr), shape=(whole.shape[0], columns))
    found.check_format(full_check=True)
    if not found.has_canonical_format:
        found = found.copy()
        found.sum_duplicates()
    found.indices, found.indptr = found.indices.astype(_index_dtype(columns)), found.indptr.astype(np.int64)
    return found


@dataclass(frozen=True, kw_only=True)
class SparseRowsReader(CsrReader):
    """Rows in sparse blocks as operators read a stored CSR matrix: a slab is a unit, and no row is cut.

    ``group`` is the :class:`BlockRows`.
    """

    def whole_rows(self) -> ComputedUnits:
        """Return units of whole rows."""
        return ComputedUnits(self)

    @property
    def units(self) -> int:
        return -(-self.shape[0] // self.group.unit_rows)

    @property
    def grid(self) -> tuple[int, int]:
        return (self.units, 2)

    @property
    def entries(self) -> int:
        """As many as there would be if all rows were like those of the highest block."""
        width = self.dtype.itemsize + _index_dtype(self.shape[1]).itemsize
        return max(1, int(self.shape[0] * self.group.row_bytes / width))

    @property
    def chunk(self) -> int:
        return max(1, self.entries // self.units)

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(self.group.dtype)

    @property
    def nbytes(self) -> int:
        return int(self.shape[0] * self.group.row_bytes)

    @property
    def buffer_bytes(self) -> int:
        """Return the bytes that computing a unit takes, in one piece, in canonical form and as float64."""
        return int(self.group.needs + 2 * 2 * self.group.unit_rows * self.group.row_bytes) + super().buffer_bytes

    @property
    def where(self) -> str:
        return str(self.group.name)

    @cached_property
    def access(self) -> dict[str, Access]:
        return dict.fromkeys(("indices", "data"), COMPUTED)

    @cached_property
    def _entry_arrays(self) -> dict[str, Any]:
        return {}  # nothing is stored

    def read_ahead(self, slabs: range) -> None:
        """Nothing: what is computed cannot be asked for before."""

    def chunk_name(self, slab: int, column: int) -> str:
        """The name of a unit."""
        return f"unit {slab}"

    def rows_of(self, slabs: range) -> tuple[int, int]:
        return slabs.start * self.group.unit_rows, min(slabs.stop * self.group.unit_rows, self.shape[0]) - 1

    def blocks(self, slabs: range, record: ReadStats) -> Iterator[csr_matrix | Fragment]:
        """The units, each as one block."""
        for unit in slabs:
            found = self._unit(unit)
            sums = {"indices": crc32c(found.indices, crc32c(found.indptr)), "data": crc32c(found.data)}
            for column, (name, crc) in enumerate(sums.items()):
                if self.checksums is not None and int(self.checksums[name][unit]) != crc:
                    raise BadInputError(
                        f"{self._locate(unit)} has changed: its checksum is not that of the first pass; start again in "
                        "a new store, with data that do not change"
                    )
                record.checksums[unit, column] = crc
            record.bytes_read += _bytes_of(found)
            record.chunks += 2
            yield found

    def _unit(self, unit: int) -> csr_matrix:
        try:
            found = _stacked(self.group.pieces(unit, self.checksums is not None), self.shape[1])
        except NpmdaskError:
            raise
        except Exception as error:  # whatever a graph or a file raises
            raise BadInputError(
                f"{self._locate(unit)}: the source fails ({type(error).__name__}: {error}); {self.group.remedy}"
            ) from error
        if found.dtype != self.dtype:
            raise BadInputError(
                f"{self._locate(unit)}: values of type {found.dtype}, but the first block has {self.dtype}; "
                f"{self.group.remedy}"
            )
        return found

    def _locate(self, unit: int) -> str:
        first, last = self.rows_of(range(unit, unit + 1))
        return f"unit {unit} of {self.where} (rows {first} to {last})"


class ComputedUnits:
    """Units of sparse rows that are computed."""

    def __init__(self, reader: SparseRowsReader) -> None:
        self._reader, self.bounds = reader, np.append(reader.slab_first_row, reader.shape[0])

    @property
    def buffer_bytes(self) -> int:
        return self._reader.buffer_bytes

    def load(self, unit: int) -> csr_matrix:
        (rows,) = self._reader.blocks(range(unit, unit + 1), ReadStats())
        return rows

    def fetch(self, unit: int) -> None:
        """Nothing: what is computed cannot be asked for before."""


def open_block_rows(rows: BlockRows) -> tuple[RowsReader | SparseRowsReader, str]:
    """The reader of rows in blocks, and their fingerprint.

    Raises
    ------
    BadInputError
        Complex numbers in sparse blocks, or objects.
    """
    if rows.dtype.kind not in (REAL if rows.sparse else f"{REAL}c"):
        raise BadInputError(f"{rows.name} holds {rows.dtype}; real numbers are needed")
    facts = {name: getattr(rows, name) for name in ("shape", "unit_rows", "identity", "sparse")}
    printed = fingerprint({**facts, "dtype": rows.dtype.str, "source": "blocks"}, [])
    if not rows.sparse:
        return RowsReader(array=rows, place=rows.name, remedy=rows.remedy), printed
    units = -(-rows.shape[0] // rows.unit_rows)
    return SparseRowsReader(group=rows, shape=rows.shape, slab_first_row=np.arange(units) * rows.unit_rows), printed


def open_blocks(rows: BlockRows, asked: Asked) -> Source:
    """Open rows of a graph, or of an array that is sliced; they are gone with this program, as data in memory are."""
    kind = asked.kind
    if kind in ("matrices", "tensor") or (kind == "sparse" and not rows.sparse):
        raise BadInputError(
            f"kind = {kind!r} does not fit {rows.name}, whose rows are dense: use kind = 'samples', 'matrix' or "
            "'symmetric'"
        )
    rows = rows if rows.sparse and kind in (None, "sparse") else rows.as_dense()
    given = rows
    if asked.spill is not None:
        given = spilled(rows, str(local_path(asked.spill, "a folder for computed rows")))
    reader, printed = open_block_rows(given)
    kind, where = kind or ("sparse" if rows.sparse else "matrix"), f"{IN_MEMORY}{rows.name}"
    held = reader if reader.layout == "csr" else in_parts(reader)
    opened = Source(path=where, kind=kind, reader=held, fingerprint=printed, registered=False, mark=rows.mark)
    return consistent(opened)
