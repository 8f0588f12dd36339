"""Read the chunks of an array as plain bytes, decoded here, or by zarr, and check them.

zarr-python copies every chunk about three times and hands it from thread to thread: 2.5 to 5 times slower than
reading the file where the data are in the page cache (docs/decisions/0015). What is not understood here is left
to zarr, and the plan says why.

Whichever way is taken, a chunk is a plain file (never a FIFO, which would be waited for), and the size of the file,
the size that its frame claims and the size of what is decoded are compared: a buffer that is reused still holds the
chunk before, and decoders fill as much of it as they have.
"""

from __future__ import annotations

import math
import os
import re
import stat
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import zarr
from zarr.abc.store import RangeByteRequest
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

from npmdask.core import features
from npmdask.core.storage.checksum import crc32c
from npmdask.core.storage.safe_open import PlainFiles
from npmdask.errors import BadInputError, NpmdaskError

Decode = Callable[[np.ndarray, np.ndarray], None]  # (packed bytes, the whole chunk to fill)
ReadInto = Callable[[np.ndarray, int], None]  # (bytes to fill, from which byte of a file or object on)
FillRows = Callable[[np.ndarray, int], None]  # (rows to fill: n x the width of a whole chunk, the first one's number)
SPAN_BYTES = 2 * 2**20  # of a shard, read at once: what is decoded is still in the cache of the processor
GAP_FAR = 2**18  # the same of an object store: a request more takes longer
PIECE = 8 * 2**20  # bytes of a large object in one request
MOST_PACKED = 8  # times the decoded size: what is larger holds something else
HEADERS = 2**20  # bytes that are not held against it, whatever the size of the chunk
GAP_BYTES = 2**15  # between two inner chunks: reading so many in vain costs less than a second call

_LOCAL = threading.local()


PLAIN: dict[str, Any] = {"compressors": None, "config": {"write_empty_chunks": True}}  # how values stay as they are


def scratch(name: Any, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """This thread's reused buffer called ``name``: fresh memory would be faulted in page by page every time."""
    buffers, space = _LOCAL.__dict__.setdefault("buffers", {}), getattr(_LOCAL, "space", None)
    name = name if space is None else (space, name)
    held = buffers.get(name)
    if held is None or held.shape != shape or held.dtype != dtype:
        held = buffers[name] = np.empty(shape, dtype)
    return held


@contextmanager
def scratch_space(name: str) -> Iterator[None]:
    """Buffers of its own, whatever they are called: two arrays are read in turns in this thread."""
    before = getattr(_LOCAL, "space", None)
    _LOCAL.space = name
    try:
        yield
    finally:
        _LOCAL.space = before


# Which way


class Fetcher(Protocol):
    """Reader of an array whose store is neither a folder nor memory: of a network, of a snapshot.

    ``of_a_program``: it is open in a program, and found by no path.
    """

    of_a_program: bool

    def location(self, node: Any) -> str:
        """Return where it lies, as a person would write it."""

    def seen(self, node: Any) -> dict[str, Any]:
        """Return what can be seen of it without reading, for its fingerprint."""

    def taken(self, array: Any, name: str) -> np.ndarray:
        """All bytes of a chunk."""

    def rows(self, array: Any, access: Access, name: str, columns: int | None, *, some: bool) -> FillRows:
        """Return what fills rows of a shard, as :func:`opened_rows`."""

    def ask_ahead(self, array: Any, access: Access, name: str, columns: int | None, some: range | None) -> None:
        """Have a chunk fetched when its turn comes, as :func:`ask_ahead`."""

    def remote(self, array: Any, names: Callable[[int], tuple[str, ...]], nbytes: int) -> Any:
        """Return what a pass fetches of it over a network.

        That is some of the ``names`` of its objects, of about so many bytes.
        """

    def corrupt(self, said: str, array: Any, known: int, again: Callable[[], int]) -> NpmdaskError | None:
        """Return the error for a chunk whose checksum is not ``known``; ``again`` reads it once more.

        None: as for every other array.
        """

    def refused(self, said: str, error: Exception) -> NpmdaskError | None:
        """Return the error for a chunk that a library could not fetch; None for other errors."""

    def unchecked(self, source: Any) -> tuple[str, ...]:
        """Return what to say with an answer of one pass over it, where nothing vouches for its bytes."""

    def named(self, group: Any, names: str, path: str) -> tuple[str, str]:
        """The arrays of a group, ``names``, and how a person names one of them."""


def fetcher_of(node: Any) -> Fetcher | None:
    """Return what reads an array or group; None of a folder, and of what lies in memory."""
    store = node.store_path.store
    here = isinstance(store, zarr.storage.LocalStore | zarr.storage.MemoryStore)
    return None if here else features.of_type("fetchers", type(store))


class Tally(NamedTuple):
    """Requests that were made, and bytes that came."""

    requests: int = 0
    nbytes: int = 0

    def plus(self, requests: int, nbytes: int) -> Tally:
        """Return the tally with so many more."""
        return Tally(self.requests + requests, self.nbytes + nbytes)


def count(requests: int, nbytes: int) -> None:
    """Count what this thread has fetched."""
    _LOCAL.tally = getattr(_LOCAL, "tally", Tally()).plus(requests, nbytes)


def tally() -> Tally:
    """Return what this thread has taken since it last asked."""
    found: Tally = getattr(_LOCAL, "tally", Tally())
    _LOCAL.tally = Tally()
    return found


@dataclass(frozen=True)
class Access:
    """``way``: direct, decoded or zarr; ``reason``: a sentence for people; ``folder``: of local chunk files."""

    way: str
    reason: str
    folder: Path | None = None
    decode: Decode | None = None

    @property
    def by_rows(self) -> bool:
        """Say whether some rows of a chunk can be read without the others: of plain local files, and of shards."""
        return self.way == "direct" or self.shard is not None

    @property
    def shard(self) -> Shard | None:
        """Encoding of shards, where the chunks lie in some that are understood."""
        return self.decode if isinstance(self.decode, Shard) else None


def is_computed(reader: Any) -> bool:
    """Say whether rows are computed again in each pass, and not read."""
    access = getattr(reader, "access", None)
    access = access["data"] if isinstance(access, dict) else access
    return access is not None and access.way == "computed"


def access_of(array: Any) -> Access:
    """Find how to read ``array`` (a ``zarr.Array``, or what shows one in another shape)."""
    store = array.store_path.store
    folder = Path(str(store.root)) / array.path if isinstance(store, zarr.storage.LocalStore) else None
    if (conventions := getattr(array, "conventions", None)) is not None:
        decoded = ", ".join(conventions.attributes)
        return Access("zarr", f"through zarr: the stored values are decoded ({decoded})", folder)
    understood = _find_decoder(array)
    if isinstance(understood, str):
        return Access("zarr", f"through zarr: {understood}", folder)
    decode, name = understood
    if folder is None:
        encoded = f", encoded with {name}" if name else ""
        return Access("decoded", f"decoded here: the chunks come from a {type(store).__name__}{encoded}", None, decode)
    if not name:
        return Access("direct", "directly: the chunks are plain bytes in local files", folder)
    return Access("decoded", f"decoded here: the chunks are local files encoded with {name}", folder, decode)


def stored_shape(array: Any) -> tuple[int, ...]:
    """Return the shape of one file or object of a Zarr array: the shard where there are shards, else the chunk."""
    return tuple(int(n) for n in getattr(array, "shards", None) or array.chunks)


def _find_decoder(array: Any) -> tuple[Decode, str] | str:
    """Return what decodes a chunk and its name (empty for plain bytes), or why that is left to zarr."""
    metadata = array.metadata
    if array.dtype.hasobject:
        return "the values are Python objects"
    if array.dtype.byteorder == ">":  # how values look in memory; in the file they may lie the other way round
        return "the values are big-endian"
    if metadata.zarr_format == 2:
        return _find_decoder_v2(array)
    codecs = metadata.codecs
    shard = codecs[0] if type(codecs[0]).__name__ == "ShardingCodec" else None
    found = _inner(shard.codecs if shard else codecs, array.dtype)
    if isinstance(found, str) or shard is None:
        return found
    index = _index_of(shard)
    if len(codecs) > 1 or len(shard.chunk_shape) != array.ndim or index is None:
        return "the chunks lie in shards of a kind that only zarr reads"
    return Shard(found[0], tuple(map(int, shard.chunk_shape)), array.fill_value, **index), "ShardingCodec"


def _inner(codecs: Any, dtype: np.dtype) -> tuple[Decode, str] | str:
    names = [type(codec).__name__ for codec in codecs]
    if names[0] != "BytesCodec":
        return f"the chunks are stored with {', '.join(names)}"
    endian = getattr(codecs[0], "endian", None)
    if dtype.itemsize > 1 and getattr(endian, "value", endian) != "little":
        return "the bytes are big-endian"
    if len(names) == 1:
        return decode_plain, ""
    checked = names[-1] == "Crc32cCodec"
    encoders = names[1 : len(names) - checked]
    if len(encoders) > 1 or any(name not in DECODERS for name in encoders):
        return f"the chunks are encoded with {', '.join(names[1:])}"
    decode = DECODERS[encoders[0]] if encoders else decode_plain
    return Checked(decode) if checked else decode, ", ".join(names[1:])


def _find_decoder_v2(array: Any) -> tuple[Decode, str] | str:
    """The same of Zarr format 2, whose codecs are those of numcodecs."""
    metadata, said = array.metadata, "the array is in Zarr format 2"
    if np.dtype(metadata.dtype.to_native_dtype()).byteorder == ">":
        return "the values are big-endian"
    if metadata.order != "C":
        return f"{said}, in Fortran order"
    if metadata.filters:
        return f"{said}, with filters"
    if metadata.compressor is None:
        return decode_plain, ""
    name = f"{type(metadata.compressor).__name__}Codec"
    return (DECODERS[name], name) if name in DECODERS else f"{said}, encoded with {metadata.compressor.codec_id}"


# Decoding


def require_bytes(got: int, wanted: int, what: str) -> None:
    """Raise ValueError unless ``got`` bytes are exactly those that are wanted."""
    if got != wanted:
        truncated, which = ("it is truncated: ", "fewer") if got < wanted else ("", "more")
        raise ValueError(f"{truncated}{what} {got} bytes, {which} than the {wanted} that its shape needs")


def decode_plain(packed: np.ndarray, whole: np.ndarray) -> None:
    """Copy bytes that are not encoded."""
    require_bytes(len(packed), whole.nbytes, "it has")
    whole.reshape(-1).view(np.uint8)[:] = packed


BLOSC_HEADER = 16


def require_blosc(header: np.ndarray, size: int, decoded: int | None = None) -> None:
    """Raise ValueError unless a file or part of ``size`` bytes, which begins with ``header``, is one whole Blosc frame.

    Blosc is never told where its input ends: of a frame that claims more bytes than there are it reads what lies
    behind them in memory.
    """
    if len(header) < BLOSC_HEADER:
        raise ValueError(f"it is truncated: it has {size} bytes, fewer than the header of a Blosc frame")
    says, _, packed = struct.unpack("<III", header[4:BLOSC_HEADER].tobytes())
    if packed != size:
        raise ValueError("its Blosc frame claims another length than it has")
    if decoded is not None:
        require_bytes(says, decoded, "its Blosc frame holds")


def _blosc(packed: np.ndarray, whole: np.ndarray) -> None:
    from numcodecs import blosc

    require_blosc(packed[:BLOSC_HEADER], len(packed), whole.nbytes)
    blosc.decompress(packed, whole)


def _zstd(packed: np.ndarray, whole: np.ndarray) -> None:
    from numcodecs import zstd

    says = _zstd_content(packed)
    if says == whole.nbytes:  # zstd itself compares this with what it decodes, and finds a second frame too large
        zstd.decompress(packed, whole)
        return
    if says is not None and says > whole.nbytes:
        require_bytes(says, whole.nbytes, "its Zstandard frame holds")
    decoded = np.frombuffer(zstd.decompress(packed), np.uint8)  # several frames, or one that does not give its size
    require_bytes(len(decoded), whole.nbytes, "its Zstandard frames hold")
    decode_plain(decoded, whole)


def _zstd_content(packed: np.ndarray) -> int | None:
    """The decoded size that the first frame claims (RFC 8878, section 3.1.1.1); None if it is not given."""
    head = packed[:18].tobytes()
    if len(head) < 6 or head[:4] != b"\x28\xb5\x2f\xfd":
        return None
    single, flag = head[4] >> 5 & 1, head[4] >> 6
    width = (single, 2, 4, 8)[flag]
    first = 5 + (1 - single) + (0, 1, 2, 4)[head[4] & 3]
    if not width or len(head) < first + width:
        return None
    return int.from_bytes(head[first : first + width], "little") + (256 if width == 2 else 0)


@dataclass(frozen=True)
class Checked:
    """Decoder of bytes that their CRC-32C follows."""

    decode: Decode

    def __call__(self, packed: np.ndarray, whole: np.ndarray) -> None:
        """Compare the checksum, and decode what lies before it."""
        if len(packed) < 4:
            raise ValueError(f"it is truncated: it has {len(packed)} bytes, fewer than a checksum")
        if crc32c(packed[:-4]) != int.from_bytes(packed[-4:].tobytes(), "little"):
            raise ValueError(NOT_ITS_SUM)
        self.decode(packed[:-4], whole)


DECODERS: dict[str, Decode] = {"BloscCodec": _blosc, "ZstdCodec": _zstd}
NO_CHUNK = 2**64 - 1


@dataclass(frozen=True)
class Shard:
    """Decoder of a whole shard: ``decode`` is that of its inner chunks, of shape ``inner``.

    Inner chunks that the index leaves out hold ``fill``, as the format has it. ``at_start``: the index comes first;
    ``checked``: it ends with its CRC-32C.
    """

    decode: Decode
    inner: tuple[int, ...]
    fill: Any
    at_start: bool
    checked: bool

    @property
    def plain(self) -> bool:
        """Say whether inner chunks are not encoded, so that they can be read in part."""
        return self.decode is decode_plain

    def __call__(self, packed: np.ndarray, whole: np.ndarray) -> None:
        """Fill ``whole`` from the bytes of a shard."""
        ShardRows(self, partial(_copy_part, packed), len(packed), whole.shape, whole.dtype)(
            whole.reshape(len(whole), -1), 0
        )

    def index_bytes(self, counts: tuple[int, ...]) -> int:
        """Bytes of the index of a shard with so many inner chunks along each axis."""
        return 16 * int(np.prod(counts, dtype=np.int64)) + 4 * self.checked

    def index(self, raw: np.ndarray, counts: tuple[int, ...], size: int) -> np.ndarray:
        """Offset and length of every inner chunk (counts x 2), all of them inside of the ``size`` bytes of a file."""
        wanted = self.index_bytes(counts)
        if len(raw) < wanted:
            raise ValueError(f"it is truncated: it has {size} bytes, fewer than the index of a shard")
        table = raw[: wanted - 4 * self.checked]
        if self.checked and crc32c(table) != int.from_bytes(raw[wanted - 4 : wanted].tobytes(), "little"):
            raise ValueError("the index of its shard is corrupt or truncated: it does not have its checksum")
        index = np.frombuffer(table.tobytes(), "<u8").reshape(*counts, 2)
        there = index[..., 0] != NO_CHUNK
        if (there != (index[..., 1] != NO_CHUNK)).any():
            raise ValueError("the index of its shard is corrupt: it gives a chunk without place or size")
        pairs = index[there]
        if (pairs[:, 1] == 0).any():
            raise ValueError("the index of its shard is corrupt: it gives a chunk of no bytes")
        if (pairs > size).any() or (pairs.sum(axis=1) > size).any():
            raise ValueError("it is truncated: its index names bytes behind its end")
        return index


class Band(NamedTuple):
    """Some rows of a shard, and the bytes (from, to) that hold them."""

    rows: range
    spans: list[tuple[int, int]]


def within(bands: list[Band], first: int, last: int) -> list[Band]:
    """Those that hold some of the rows ``first`` to ``last``."""
    return [band for band in bands if band.rows.start < last and band.rows.stop > first]


_Piece = tuple[int, int, np.ndarray, tuple[int, int]]  # from and to: bytes of a shard; what to fill; inner chunk


class ShardRows:
    """Fills rows of one shard, of which only the inner chunks that hold them are read and decoded.

    They are decoded into the memory that is to be filled. Of those that only begin or end there one row of inner chunks
    is kept for the next call: rows that are asked for in turn are decoded once, however many a call asks for.

    Parameters
    ----------
    shard : how it is encoded.
    read : takes bytes of the shard.
    size : of the shard, in bytes.
    shape : of the decoded shard, 1-D or 2-D; entries of a 1-D shard are rows of one column.
    dtype : of its values.
    columns : so many are filled; those behind are not part of the array. All if None.
    ahead : asks for bytes (from, to) that rows in turn will need next, if given.

    Raises
    ------
    ValueError
        The index is corrupt or names bytes that are not there; later: an inner chunk is, which is named.
    """

    def __init__(
        self,
        shard: Shard,
        read: ReadInto,
        size: int,
        shape: tuple[int, ...],
        dtype: np.dtype,
        columns: int | None = None,
        ahead: Callable[[int, int], None] | None = None,
    ) -> None:
        self._shard, self._read, self._dtype = shard, read, dtype
        (rows, self._width), (self._high, self._wide) = ((*shape, 1)[:2], (*shard.inner, 1)[:2])
        counts = (rows // self._high, self._width // self._wide)
        raw = np.empty(min(shard.index_bytes(counts), size), np.uint8)
        read(raw, 0 if shard.at_start else size - len(raw))
        self._index = shard.index(raw, counts, size)
        used = self._width if columns is None else columns
        self._across = range(-(-used // self._wide))
        self._plain = shard.plain
        self._line, self._decoded = self._wide * dtype.itemsize, self._high * self._wide * dtype.itemsize
        self._band = np.empty((0, 0), dtype)  # a row of inner chunks, decoded
        self._held: int | None = None  # its number
        self._ahead, self._rows, self._next = ahead, rows, 0  # the row behind those that were read last

    def __call__(self, part: np.ndarray, first: int) -> None:
        """Fill ``part`` (n x the width of the shard) with the rows from ``first`` on."""
        last = first + len(part)
        if self._ahead is not None and first == self._next:  # the same again, while these are read and used
            for begin, end in self.ranges(last, min(self._rows, last + len(part))):
                self._ahead(begin, end)
        self._next = last
        if self._plain and self._wide == self._width:
            self._copy(part, first)
            return
        high, pieces = self._high, list[_Piece]()
        for row in range(first // high, -(-last // high)):
            top, low = max(first, row * high), min(last, (row + 1) * high)
            rows = part[top - first : low - first]
            if self._plain or low - top == high:
                pieces += self._pieces(row, top - row * high, rows)
                continue
            if self._held != row:
                self._held = None
                if not len(self._band):
                    self._band = np.empty((high, self._width), self._dtype)
                self._fill(self._pieces(row, 0, self._band))
                self._held = row
            rows[...] = self._band[top - row * high : low - row * high]
        self._fill(pieces)

    def ranges(self, first: int, last: int, gap: int = GAP_BYTES, span: int = SPAN_BYTES) -> list[tuple[int, int]]:
        """The bytes (from, to) that rows ``first`` to ``last`` need, neighbours as one."""
        most = MOST_PACKED * self._decoded + HEADERS  # of what the index says beyond it, an error is raised later
        some = self._index[first // self._high : -(-last // self._high), : len(self._across)].reshape(-1, 2)
        pairs = sorted((int(o), int(o + n)) for o, n in some if o != NO_CHUNK and n <= most)
        return [(group[0][0], max(pair[1] for pair in group)) for group in _neighbours(pairs, gap, span)]

    def bands(self, most: int) -> list[Band]:
        """All rows in groups whose inner chunks have about ``most`` bytes together, at least one row of them each."""
        lengths = self._index[:, : len(self._across)].reshape(len(self._index), -1, 2)
        sizes = np.where(lengths[..., 0] == NO_CHUNK, 0, lengths[..., 1]).astype(float).sum(axis=1)
        found, begin, taken = list[Band](), 0, 0.0
        for row, size in enumerate([*sizes, math.inf]):
            if row > begin and taken + size > most:
                rows = range(begin * self._high, row * self._high)
                found.append(Band(rows, self.ranges(rows.start, rows.stop, GAP_FAR, PIECE)))
                begin, taken = row, 0.0
            taken += size
        return found

    def _copy(self, part: np.ndarray, first: int) -> None:
        """The same of plain inner chunks as wide as the shard: those that follow each other are read in one call."""
        row, last, high = first, first + len(part), self._high
        while row < last:
            begin, stop = self._byte_of(row), min(last, (row // high + 1) * high)
            if begin is None:
                part[row - first : stop - first] = self._shard.fill
            else:
                while stop < last and self._byte_of(stop) == begin + (stop - row) * self._line:
                    stop = min(last, stop + high)
                self._read(part[row - first : stop - first].reshape(-1).view(np.uint8), begin)
            row = stop

    def _byte_of(self, row: int) -> int | None:
        """Return where a row of a plain inner chunk as wide as the shard begins; None if the chunk is not there."""
        at = (row // self._high, 0)
        offset, length = (int(n) for n in self._index[at])
        if offset == NO_CHUNK:
            return None
        self._require_size(at, length)
        return offset + row % self._high * self._line

    def _pieces(self, row: int, top: int, rows: np.ndarray) -> Iterator[_Piece]:
        """Yield what is to be read for ``rows``.

        They begin ``top`` rows below the upper end of a row of inner chunks.
        """
        for column in self._across:
            at, target = (row, column), rows[:, column * self._wide : (column + 1) * self._wide]
            offset, length = (int(n) for n in self._index[at])
            if offset == NO_CHUNK:
                target[...] = self._shard.fill
                continue
            self._require_size(at, length)
            if self._plain:
                offset, length = offset + top * self._line, len(rows) * self._line
            yield offset, offset + length, target, at

    def _fill(self, pieces: Iterable[_Piece]) -> None:
        room = _span_bytes(self._decoded)
        for group in _neighbours(sorted(pieces, key=lambda piece: piece[0])):
            start, stop = group[0][0], max(piece[1] for piece in group)
            packed = scratch(("span",), (max(room, stop - start),), np.uint8)[: stop - start]
            self._read(packed, start)
            for begin, end, target, at in group:
                self._decode(packed[begin - start : end - start], target, at)

    def _require_size(self, at: tuple[int, int], length: int) -> None:
        if self._plain:
            with _naming_inner_chunk(at):
                require_bytes(length, self._decoded, "it has")
        if length > MOST_PACKED * self._decoded + HEADERS:
            raise ValueError(
                f"its inner chunk {at} has {length} bytes, far more than one that decodes to {self._decoded}"
            )

    def _decode(self, packed: np.ndarray, target: np.ndarray, at: tuple[int, int]) -> None:
        if self._plain:
            target[...] = packed.view(self._dtype).reshape(target.shape)
            return
        inside = target.flags.c_contiguous
        decoded = target if inside else scratch("inner chunk", target.shape, self._dtype)
        with _naming_inner_chunk(at):
            self._shard.decode(packed, decoded)
        if not inside:
            target[...] = decoded


def _span_bytes(decoded: int) -> int:
    """Memory for what is read at once, an inner chunk decoding to so many bytes: few grow when they are packed."""
    return max(SPAN_BYTES, decoded + decoded // 8 + GAP_BYTES)


def shard_bytes(access: Access, shape: tuple[int, ...], dtype: np.dtype, files: int) -> int:
    """Memory that so many open shards take while their rows are read, beside these; 0 of chunks that are plain files.

    A row of inner chunks and the index of each; what is read at once and one inner chunk, decoded.
    """
    if access.shard is None:
        return 0
    (rows, width), (high, wide) = (*shape, 1)[:2], (*access.shard.inner, 1)[:2]
    decoded, index = high * wide * dtype.itemsize, 16 * (rows // high) * (width // wide)
    far = 0
    if access.folder is None:  # the bands of a tile, and parts of those before and behind it
        least = PIECE if len(shape) > 1 else 0
        bands = (2 * files + 1) * (max(least, high * width * dtype.itemsize) + GAP_FAR)
        far = min(bands, (files + 1) * rows * width * dtype.itemsize)
    if access.shard.plain and wide == width:
        return far + (files + 4) * index
    return far + files * high * width * dtype.itemsize + (files + 4) * index + _span_bytes(decoded) + decoded


def _neighbours(pieces: Iterable[Any], gap: int = GAP_BYTES, span: int = SPAN_BYTES) -> Iterator[list[Any]]:
    """Pieces (from, to, ...), sorted, in groups that one call reads: a small gap is read too."""
    group, stop = list[Any](), 0
    for piece in pieces:
        if group and (piece[0] > stop + gap or max(stop, piece[1]) - group[0][0] > span):
            yield group
            group, stop = [], 0
        group.append(piece)
        stop = max(stop, piece[1])
    if group:
        yield group


@contextmanager
def _naming_inner_chunk(at: tuple[int, int]) -> Iterator[None]:
    """Around decoding an inner chunk: errors name it."""
    try:
        yield
    except (ValueError, RuntimeError) as error:
        raise ValueError(f"its inner chunk {at}: {error}") from error


def _index_of(shard: Any) -> dict[str, bool] | None:
    """Say where the index of a sharded array lies and whether it has a checksum; None if it is encoded otherwise."""
    names = [type(codec).__name__ for codec in shard.index_codecs]
    endian = getattr(shard.index_codecs[0], "endian", None)
    if names not in (["BytesCodec"], ["BytesCodec", "Crc32cCodec"]) or getattr(endian, "value", endian) != "little":
        return None
    # An enumeration's member, from zarr 3.4 on a word.
    return {"at_start": str(shard.index_location).endswith("start"), "checked": len(names) == 2}


# Reading


def open_chunk_file(path: Path) -> int:
    """A descriptor of the file of a chunk; returns at once, whatever lies there.

    Raises
    ------
    OSError
        As ``os.open``: FileNotFoundError if there is nothing.
    ValueError
        It is no plain file but a folder, a FIFO, a device.
    """
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # without: of a FIFO it would wait for a writer
    if stat.S_ISREG(os.fstat(file).st_mode):
        return file
    os.close(file)
    raise ValueError("it is a folder, a FIFO or a device; a chunk must be a plain file")


@contextmanager
def _opened_file(path: Path) -> Iterator[tuple[int, int]]:
    """A file of chunks, and its size."""
    file = open_chunk_file(path)
    try:
        yield file, os.fstat(file).st_size
    finally:
        os.close(file)


def read_exactly(file: int, part: np.ndarray, offset: int) -> None:
    """Fill ``part`` from byte ``offset`` of an open file. Raises ValueError if the file ends before."""
    view, got = part.reshape(-1).view(np.uint8).data, 0
    while got < len(view):
        count = os.preadv(file, [view[got:]], offset + got)
        if count == 0:
            raise ValueError(f"it is truncated: {offset + got} bytes, fewer than its shape needs")
        got += count


@contextmanager
def opened_rows(
    array: Any, access: Access, name: str, columns: int | None = None, *, some: bool = False
) -> Iterator[FillRows]:
    """Open a chunk or shard of an array whose ``access`` is ``by_rows``, and yield what fills rows of it.

    See :class:`ShardRows`.

    ``some``: a few rows are taken, and not all in turn.

    Raises
    ------
    FileNotFoundError
        It is not there.
    OSError, ValueError
        It is no plain file, or not of its size, or its index is corrupt.
    """
    if access.folder is None:
        if (far := fetcher_of(array)) is not None:
            yield far.rows(array, access, name, columns, some=some)
            return
        held = _bytes_of(array, name)
        yield rows_of(array, access, partial(_copy_part, held), len(held), columns)
        return
    shape, dtype = stored_shape(array), np.dtype(array.dtype)
    with _opened_file(access.folder / name) as (file, size):
        read = partial(read_exactly, file)
        if access.shard is not None:
            yield ShardRows(access.shard, read, size, shape, dtype, columns, partial(_ask, file))
        else:
            line = math.prod(shape[1:]) * dtype.itemsize
            require_bytes(size, shape[0] * line, "it has")
            yield lambda part, first: read(part, first * line)


def _copy_part(held: np.ndarray, part: np.ndarray, offset: int) -> None:
    part[:] = held[offset : offset + len(part)]


def rows_of(array: Any, access: Access, read: ReadInto, size: int, columns: int | None) -> ShardRows:
    assert access.shard is not None
    return ShardRows(access.shard, read, size, stored_shape(array), np.dtype(array.dtype), columns)


def read_chunk(array: Any, access: Access, name: str, whole: np.ndarray) -> None:
    """Fill ``whole`` with all of the chunk (or shard) called ``name``, not by way of zarr.

    Raises
    ------
    FileNotFoundError
        It is not there.
    OSError, ValueError, RuntimeError, MemoryError
        It cannot be read or decoded, or does not have its size.
    """
    if access.folder is None:
        assert access.decode is not None
        far = fetcher_of(array)
        access.decode(_bytes_of(array, name) if far is None else far.taken(array, name), whole)
        return
    with _opened_file(access.folder / name) as (file, size):
        if access.decode is None:
            require_bytes(size, whole.nbytes, "it has")
            read_exactly(file, whole, 0)
            return
        if size > MOST_PACKED * whole.nbytes + HEADERS:
            raise ValueError(f"it has {size} bytes, far more than a chunk that decodes to {whole.nbytes}")
        packed = scratch(("packed",), (max(size, whole.nbytes),), np.uint8)[:size]
        read_exactly(file, packed, 0)
    access.decode(packed, whole)


def _bytes_of(array: Any, name: str) -> np.ndarray:
    """All bytes of a chunk that lies in memory. Raises FileNotFoundError."""
    path = f"{array.path}/{name}".lstrip("/")
    held = sync(array.store_path.store.get(path, default_buffer_prototype()))
    if held is None:
        raise FileNotFoundError(name)
    return np.asarray(held.as_numpy_array()).view(np.uint8)


def ask_ahead(array: Any, access: Access, name: str, columns: int | None = None, *, some: range | None = None) -> None:
    """Ask for a chunk while something else is computed: of the kernel, or of the object store as there is room.

    A chunk that zarr reads is not asked for. ``columns``: so many of a shard are read, as :func:`opened_rows` has it.
    ``some``: only these rows of a shard are, as they are there.
    """
    if access.folder is not None:
        read_ahead(access.folder / name)
    elif access.decode is not None and (far := fetcher_of(array)) is not None:
        far.ask_ahead(array, access, name, columns, some)


def require_sound(array: Any, came: np.ndarray, size: int, span: tuple[int, int] | None = None) -> None:
    """Look at bytes that came of a chunk of ``size`` bytes before zarr decodes them: all, or of a shard its index or,
    from byte ``span[0]`` to ``span[1]``, an inner chunk.

    zarr reads behind the end of a Blosc frame that was cut off (of memory: it may crash), and of an inner chunk that a
    cut shard lacks it may read the fill value.

    Raises
    ------
    ValueError
        They are not all there, or fewer than a frame or an index says.
    """
    metadata, parts = array.metadata, [came]
    last = metadata.compressor if metadata.zarr_format == 2 else metadata.codecs[-1]
    if type(last).__name__ == "ShardingCodec":
        if len(came) == size:
            parts = [came[first : first + n] for first, n in _spans(array, last, size, came)]
        elif span is None or (span[0] == 0 and str(last.index_location).endswith("start")):
            _spans(array, last, size, came)
            return
        elif len(came) != span[1] - span[0]:
            raise ValueError(f"it is truncated: it ends at byte {span[0] + len(came)}, within an inner chunk")
        last = last.codecs[-1]
    if type(last).__name__ in ("Blosc", "BloscCodec"):
        for part in parts:
            require_blosc(part[:BLOSC_HEADER], len(part))


def _spans(array: Any, shard: Any, size: int, came: np.ndarray) -> list[tuple[int, int]]:
    """Return where the inner chunks of a shard of ``size`` bytes lie, by all of it or its index."""
    kind = _index_of(shard)
    if kind is None:
        return []
    counts = tuple(n // int(c) for n, c in zip(stored_shape(array), shard.chunk_shape, strict=True))
    reader = Shard(decode=decode_plain, inner=tuple(shard.chunk_shape), fill=0, **kind)
    length = min(reader.index_bytes(counts), size)
    index = reader.index(came[:length] if reader.at_start else came[len(came) - length :], counts, size)
    return [(int(first), int(n)) for first, n in index.reshape(-1, 2) if first != NO_CHUNK]


METADATA = ("zarr.json", ".zarray", ".zattrs", ".zgroup", ".zmetadata")
RECENT = 1000  # chunks that are tried one by one where some of them cannot be decoded, to name the one
Lost = Callable[[Any, str], Exception | None]  # (array, chunk that is not there): an error, or its fill value is meant


class WholeStore(zarr.storage.WrapperStore[Any]):
    """A store of zarr's of which every chunk of some ``arrays`` (by their path) is looked at as it is read.

    A chunk is a plain file, as long as its frame or its index says; ``lost`` says what to do where it is not there.
    """

    _supports_sync_io = False  # else zarr's fused pipeline asks the store behind this one, and nothing is looked at

    def __init__(self, store: Any, arrays: dict[str, Any], lost: Lost) -> None:
        plain = type(store) is zarr.storage.LocalStore
        super().__init__(PlainFiles(store.root, read_only=True) if plain else store)
        self.arrays, self.lost, self._recent = arrays, lost, deque[tuple[str, str]](maxlen=RECENT)

    def __reduce__(self) -> Any:
        return WholeStore, (self._store, self.arrays, self.lost)

    async def get(self, key: str, prototype: Any = None, byte_range: Any = None) -> Any:
        """As ``Store.get``; raises what ``lost`` gives, or NpmdaskError for a chunk that is not whole."""
        path = next((path for path in self.arrays if key.startswith(path and f"{path}/")), None)
        if path is None or key.rpartition("/")[2] in METADATA:
            return await self._store.get(key, prototype, byte_range)
        array, name = self.arrays[path], key[len(path) :].lstrip("/")
        self._recent.append((path, name))
        try:
            came = await self._store.get(key, prototype, byte_range)
            if came is not None:
                span = (byte_range.start, byte_range.end) if isinstance(byte_range, RangeByteRequest) else None
                size = len(came) if byte_range is None else 0 if span and span[0] else await self._store.getsize(key)
                require_sound(array, np.asarray(came.as_numpy_array()).view(np.uint8), size, span)
                return came
        except Exception as error:  # of any store
            raise unreadable(name, location(array), error) from error
        if (gone := self.lost(array, name)) is not None:
            raise gone
        return None

    async def get_partial_values(self, prototype: Any, key_ranges: Iterable[tuple[str, Any]]) -> list[Any]:
        """As ``Store.get_partial_values``."""
        return [await self.get(key, prototype, span) for key, span in key_ranges]

    async def get_ranges(self, key: str, byte_ranges: Iterable[Any], *, prototype: Any, **_: Any) -> Any:
        """As ``Store.get_ranges``, by which zarr reads inner chunks from 3.2 on."""
        for number, span in enumerate(byte_ranges):
            yield [(number, await self.get(key, prototype, span))]

    def over(self, node: Any) -> Any:
        """An array or group that this store has, read by way of it."""
        inner = node._async_array if isinstance(node, zarr.Array) else node._async_group
        return type(node)(replace(inner, store_path=zarr.storage.StorePath(self, node.path)))

    def name_the_one(self) -> None:
        """Raise BadInputError for a chunk, of those that were read last, that cannot be decoded by itself."""
        for path, name in dict.fromkeys(self._recent):
            array = self.arrays[path]
            at = [int(i) for i in re.findall(r"\d+", name)]
            try:
                self.over(array)[tuple(slice(i * c, (i + 1) * c) for i, c in zip(at, stored_shape(array), strict=True))]
            except (NpmdaskError, FileNotFoundError):
                raise
            except Exception as error:  # whatever codecs raise: zlib's and lzma's errors are of no family
                raise unreadable(name, location(array), error) from error


@contextmanager
def naming(stores: Iterable[WholeStore]) -> Iterator[None]:
    """Around reading from ``stores``: of a chunk that cannot be decoded the error names it."""
    try:
        yield
    except (NpmdaskError, FileNotFoundError):
        raise
    except Exception:
        for store in stores:
            store.name_the_one()
        raise


def looked_at(array: Any, lost: Lost) -> Any:
    """The same Zarr array, or what shows one decoded or in another shape, read by way of a :class:`WholeStore`."""
    if isinstance(array, zarr.Array):
        return WholeStore(array.store_path.store, {array.path: array}, lost).over(array)
    inside = "array" if "array" in vars(array) else "packed"
    return replace(array, **{inside: looked_at(getattr(array, inside), lost)})


def lost_file(array: Any, name: str) -> Exception:
    """Return the error for a chunk that is not there, whose reader knows what to say of it."""
    return FileNotFoundError(name)


def _accept_missing(array: Any, name: str) -> None:
    """Let a chunk that is not there be read as the fill value."""


class Boxes:
    """A Zarr array that slices as such, read through zarr, every chunk that is met looked at (:class:`WholeStore`).

    ``fill``: chunks that are not there are read as the fill value; else that is an error with ``remedy`` at its end,
    unless ``before_missing``, which is called with the array first, knows better and raises its own.

    Raises
    ------
    BadInputError
        While slicing: a chunk is missing, no plain file, or cannot be decoded; it is named.
    """

    def __init__(
        self,
        array: Any,
        *,
        fill: bool = False,
        remedy: str = "restore it from a backup",
        before_missing: Callable[[Any], None] | None = None,
    ) -> None:
        self.array, self.shape, self.dtype, self.name = array, tuple(array.shape), array.dtype, array.name
        self._remedy, self._before_missing = remedy, before_missing
        self._whole = looked_at(array, _accept_missing if fill else lost_file)

    def __getitem__(self, key: Any) -> np.ndarray:
        return self._read(lambda: self._whole[key])

    def entries(self, where: np.ndarray) -> np.ndarray:
        """Single entries of a 1-D array, in the order of ``where``."""
        return self._read(lambda: self._whole.oindex[where])

    def _read(self, read: Callable[[], Any]) -> np.ndarray:
        try:
            with naming([self._whole.store_path.store]):
                return np.asarray(read())
        except FileNotFoundError as error:
            if self._before_missing is not None:
                self._before_missing(self.array)
            raise missing_chunk(str(error), self.array, self._remedy) from None


def missing_chunk(name: str, array: Any, remedy: str) -> BadInputError:
    """Return the error for a chunk that is not there."""
    return BadInputError(
        f"chunk {name} of {location(array)} is missing (Zarr would silently read it as fill value "
        f"{array.fill_value}); {remedy}"
    )


# What to say: of a checksum never the number, which is 32 bits of the rows, as a private run's error may reach others

RESTORE = "restore it from a backup or ingest the source again"
NOT_ITS_SUM = "it is corrupt or truncated: it does not have its checksum"
SUMS = re.compile(r"(checksum|crc|hash|digest).*\d", re.IGNORECASE | re.DOTALL)  # codecs tell both sums


def unreadable(chunk: str, where: str, error: Exception) -> NpmdaskError:
    """Return the error for a chunk that cannot be read."""
    far: Fetcher | None = features.of_type("fetchers", type(error))
    if far is not None and (refusal := far.refused(f"chunk {chunk} of {where}", error)):
        return refusal
    if isinstance(error, OSError) and error.strerror:
        error = ValueError(error.strerror)
    said = str(error) or type(error).__name__
    remedy = RESTORE if "://" not in where else f"run the same command again, as it may have come so, or {RESTORE}"
    if SUMS.search(said):
        said = NOT_ITS_SUM
    if said.startswith("it is truncated: "):
        return BadInputError(f"chunk {chunk} of {where} is truncated: {said.partition(': ')[2]}; {remedy}")
    return BadInputError(f"chunk {chunk} of {where} cannot be decoded ({said}); {remedy}")


SECRET = re.compile(r"KEY|SECRET|TOKEN|PASSWORD|CREDENTIAL|SAS|SIGNATURE", re.IGNORECASE)


def first_line(error: BaseException) -> str:
    """Return what an error says in its first line, or its name if it says nothing.

    Left out are the pages that may follow, and credentials, which servers repeat in their answers.
    """
    said = str(error).partition("\n")[0] or type(error).__name__
    for name, value in os.environ.items():
        if SECRET.search(name) and len(value) > 3:
            said = said.replace(value, "***")
    return said


def location(node: Any) -> str:
    """Return where an array or group lies, as a person would write it."""
    far = fetcher_of(node)
    return str(node.store_path).removeprefix("file://") if far is None else far.location(node)


def said_place(node: Any) -> str:
    """Name an array or group in a sentence: by where it lies, if that means anything to a reader."""
    return "the array in memory" if isinstance(node.store_path.store, zarr.storage.MemoryStore) else location(node)


def shown(where: str) -> str:
    """Return what a person calls data: a Dask array not by the key that Dask gave it."""
    return "the Dask array" if where.startswith("the Dask array ") else where


def corrupt(chunk: str, array: Any, where: str, known: int, again: Callable[[], int]) -> NpmdaskError:
    """Return the error for a chunk whose checksum is not ``known``; ``again`` reads it once more."""
    said = f"chunk {chunk} of {where}"
    far = fetcher_of(array)
    found = None if far is None else far.corrupt(said, array, known, again)
    return found or BadInputError(f"{said} is corrupt: its checksum is not that of its first reading; {RESTORE}")


def changed_content(name: str, where: str) -> BadInputError:
    """Return the error for a chunk whose checksum is right and whose SHA-256 is not: nothing rots like that."""
    return BadInputError(
        f"chunk {name} of {where} is not the one that was ingested: its checksum agrees, but its SHA-256 does not, "
        f"so it was changed on purpose. Nothing is released; {RESTORE}"
    )


AHEAD_BYTES = 64 * 2**20  # of a file: more would push out what is about to be used
AHEAD_STEP = 2**19  # of one piece of advice: what the disk does not take at once, the kernel forgets


def read_ahead(path: Path) -> None:
    """Ask the kernel to fetch a file that is not in the page cache; returns at once.

    A file that is not there, or is none, is found when it is read.
    """
    with suppress(OSError, ValueError), _opened_file(path) as (file, size):
        _ask(file, 0, size)


def _ask(file: int, start: int, stop: int) -> None:
    """Ask the kernel for a range of an open file, as :func:`read_ahead`."""
    if not _is_cached(file, max(start, stop - 1)):
        for at in range(start, min(stop, start + AHEAD_BYTES), AHEAD_STEP):
            os.posix_fadvise(file, at, AHEAD_STEP, os.POSIX_FADV_WILLNEED)


def _is_cached(file: int, at: int) -> bool:
    """Say whether a byte of a file can be had without the disk: asking costs far less than advice not needed."""
    try:
        return os.preadv(file, [bytearray(1)], at, os.RWF_NOWAIT) == 1
    except OSError:
        return False  # not in the cache, or a file system that cannot say
