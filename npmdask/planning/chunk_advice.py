"""Explain how the chunks of a store are read, why not faster, and which layout is better. Nothing is read here.

The figures behind the rules are those of docs/decisions/0002 and 0013: chunks of 4 to 32 MiB, rows of full width,
no compression of real-valued floats, plain files. They are advice: every layout gives the right answer.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from npmdask.core.storage.chunk_access import is_computed
from npmdask.core.storage.readers.dense import DenseReader
from npmdask.core.storage.readers.sparse import CsrReader
from npmdask.core.storage.source import Source
from npmdask.symmetric.reader import TensorReader
from npmdask.writers.dense import choose_chunks

MIB = 2**20
SMALLEST, LARGEST = 4 * MIB, 32 * MIB  # of a chunk, decoded
WORTH = 2.0  # a codec that shrinks real numbers by less costs more than it saves
BARE = {"BytesCodec", "TransposeCodec", "ShardingCodec", "Crc32cCodec", "VLenBytesCodec", "VLenUTF8Codec"}


@dataclass(frozen=True, kw_only=True)
class ChunkReading:
    """The way of chunks to the arithmetic: ``directly``, ``decoded`` or ``through zarr``, and why, as a sentence."""

    how: str
    why: str


@dataclass(frozen=True, kw_only=True)
class LayoutAdvice:
    """Faults of a layout (none, if ``reasons`` is empty) and the command that makes a better one."""

    chunk_bytes: int
    reasons: tuple[str, ...]
    chunks: tuple[int, int] | None = None
    command: str | None = None


WAYS = {"direct": "directly", "decoded": "decoded", "zarr": "through zarr", "computed": "computed"}


def how_read(reader: Any) -> ChunkReading:
    """The way that the reader takes, and the first thing that keeps the store from being read as plain files.

    ``reader``: a CsrReader, a DenseReader, or one that reads parts of a dense array through its own ``dense``.
    """
    array: Any = None
    if isinstance(reader, CsrReader):
        access = reader.access["data"]
        if access.way != "computed":
            array = reader.arrays["data"]
    else:
        dense: DenseReader = getattr(reader, "dense", reader)
        access, array = dense.access, dense.array
    why = access.reason.partition(": ")[2]
    if access.way == "decoded":
        names = codec_names(array)
        why = why.partition(", encoded")[0].partition(" encoded")[0] + (", in shards" if array.shards else "")
        why += f", compressed ({', '.join(names)})" if names else ""
    return ChunkReading(how=WAYS[access.way], why=why)


def codec_names(array: Any) -> list[str]:
    """The compressors of an array, in words: ``zstd``, ``blosc lz4 bitshuffle``."""
    if array.metadata.zarr_format != 3:
        return [str(getattr(c, "codec_id", type(c).__name__)) for c in array.compressors if c is not None]
    return [_codec_name(codec) for codec in _flat(array.metadata.codecs) if type(codec).__name__ not in BARE]


def _flat(codecs: Any) -> list[Any]:
    """The codecs of an array, those inside shards included."""
    return [inner for codec in codecs for inner in (codec, *_flat(getattr(codec, "codecs", ())))]


def _codec_name(codec: Any) -> str:
    name = type(codec).__name__.removesuffix("Codec").lower()
    parts = [getattr(codec, field, None) for field in ("cname", "shuffle")]
    return " ".join([name, *(str(getattr(part, "value", part)) for part in parts if part is not None)])


def big_endian(array: Any) -> bool:
    """Say whether the bytes of a value are stored most significant first."""
    if array.metadata.zarr_format != 3:
        return np.dtype(array.metadata.dtype.to_native_dtype()).byteorder == ">"
    if not array.dtype.isnative:
        return True
    ends = [getattr(codec, "endian", None) for codec in _flat(array.metadata.codecs)]
    return any(getattr(end, "value", end) == "big" for end in ends)


def advise_chunks(source: Source) -> LayoutAdvice:
    """Advise a layout that would make passes over ``source`` faster, and the ingest command for it."""
    reader: Any = source.reader
    if isinstance(reader, CsrReader) and is_computed(reader):
        return LayoutAdvice(chunk_bytes=reader.nbytes // reader.units, reasons=())
    if isinstance(reader, CsrReader):
        size = reader.chunk * (reader.dtype.itemsize + reader.arrays["indices"].dtype.itemsize)
        by_rows = reader.access["data"].by_rows
        reasons = _size_reasons(size, reader.nbytes) + _packing_reasons(reader.arrays["data"], by_rows=by_rows)
        command = _command(source, None) if reasons else None
        return LayoutAdvice(chunk_bytes=size, reasons=tuple(reasons), command=command)
    if isinstance(reader, TensorReader):  # written by npmdask only, in blocks that suit
        return LayoutAdvice(chunk_bytes=reader.block_bytes, reasons=())
    reader = getattr(reader, "dense", reader)
    size = reader.chunks[0] * reader.chunks[1] * reader.dtype.itemsize
    if is_computed(reader):  # there is nothing that could be stored in another way
        return LayoutAdvice(chunk_bytes=size, reasons=())
    held = size * reader.together // reader.chunks[0] if reader.access.shard is not None else size
    rows, columns = choose_chunks(reader.shape[1], reader.dtype.itemsize, source.kind)
    better = (min(rows, reader.shape[0]), columns)
    reasons = (
        (_size_reasons(size, reader.nbytes, held) if reader.chunks != better else [])
        + _shape_reasons(reader, source.kind, better)
        + _packing_reasons(reader.array, by_rows=reader.access.by_rows)
    )
    advice: dict[str, Any] = {"chunks": better, "command": _command(source, better)} if reasons else {}
    return LayoutAdvice(chunk_bytes=size, reasons=tuple(reasons), **advice)


def _size_reasons(chunk: int, whole: int, held: int | None = None) -> list[str]:
    """``held``: what is in memory at once, of a chunk or shard that is read in part."""
    if chunk < SMALLEST and whole > SMALLEST:
        return [f"chunks of {_size(chunk)} are small: the cost of opening each one shows below 4 MiB"]
    if (held or chunk) > LARGEST:
        return [f"chunks of {_size(chunk)} are large: a task holds a row of them, and 16 MiB are read as fast"]
    return []


def _shape_reasons(reader: DenseReader, kind: str, better: tuple[int, int]) -> list[str]:
    (rows, columns), whole = reader.chunks, reader.nbytes
    if whole <= SMALLEST:
        return []
    if kind == "symmetric":
        oblong = max(rows, columns) > 2 * min(rows, columns)
        return [f"chunks of {rows} x {columns} are oblong: squares suit a symmetric matrix"] if oblong else []
    if columns < min(better[1], reader.shape[1]):
        return [
            f"chunks of {rows} x {columns} cut the rows ({reader.shape[1]} columns): row slabs of full width do not"
        ]
    return []


def _packing_reasons(array: Any, *, by_rows: bool) -> list[str]:
    reasons = []
    names, ratio = codec_names(array), _stored_ratio(array)
    shuffled = any("shuffle" in name and "noshuffle" not in name for name in names)
    if names and array.dtype.kind == "f" and ratio is not None and ratio < WORTH:
        how = "" if shuffled else " without shuffle"
        reasons.append(
            f"{', '.join(names)}{how} shrinks these real numbers by a factor {ratio:.2f} only, and decoding takes time"
        )
    elif names and array.dtype.kind in "iub" and not shuffled:
        reasons.append(f"{', '.join(names)} without shuffle is slow to decode: LZ4 with bitshuffle suits integers")
    if getattr(array, "shards", None) and not by_rows:
        reasons.append("shards with these codecs are read whole; plain ones, or with Blosc or Zstandard, in part")
    if big_endian(array):
        reasons.append("big-endian values are byte-swapped in every pass")
    return reasons


def _stored_ratio(array: Any) -> float | None:
    """Bytes of the values over bytes of their files; None where asking for the files' sizes may take long."""
    if not isinstance(array.store_path.store, zarr.storage.LocalStore) or array.nchunks > 20_000:
        return None
    return float(array.nbytes / max(array.nbytes_stored(), 1))


def _command(source: Source, chunks: tuple[int, int] | None) -> str:
    path = Path(source.path) if Path(source.path).exists() else Path("SRC")
    dest = path.with_name(f"{path.name.removesuffix('.zarr')}-rechunked.zarr")
    words = ["npmdask", "ingest", str(path), str(dest), "--kind", source.kind]
    if chunks:
        words += ["--chunks", str(chunks[0]), str(chunks[1])]
    return shlex.join(words)


def _size(n: int) -> str:
    return f"{n / MIB:.0f} MiB" if n >= MIB else f"{n / 1024:.0f} KiB"
