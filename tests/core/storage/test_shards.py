"""Rows of shards, of which only the inner chunks that hold them are read: what zarr reads, or a named refusal."""

from __future__ import annotations

import os
import struct
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import obstore
import pytest
import scipy.sparse as sp
import zarr
from awscrt.checksums import crc32c
from zarr.abc.store import RangeByteRequest
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, ShardingCodec, TransposeCodec, ZstdCodec
from zarr.core import codec_pipeline
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

from npmdask.core.execution.executor import Threads
from npmdask.core.operators import Gram
from npmdask.core.storage import chunk_access
from npmdask.core.storage.chunk_access import Boxes, looked_at, lost_file, require_sound
from npmdask.core.storage.readers import dense
from npmdask.core.storage.readers.dense import ReadStats
from npmdask.core.storage.readers.sparse import CsrReader
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError, NpmdaskError
from tests.core.operators.test_operators import ignore
from tests.core.storage.tiles import rows_of_tiles

CODECS: dict[str, list[Any]] = {
    "none": [],
    "zstd": [ZstdCodec()],
    "blosc": [BloscCodec(cname="lz4", shuffle="bitshuffle", typesize=4)],
    "gzip": [GzipCodec()],
    "crc": [Crc32cCodec()],
    "turned": [],
}


@pytest.fixture
def low_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of 64 rows, as wide arrays have."""
    monkeypatch.setattr(dense, "TILE_BYTES", 1)


def write(
    path: Path,
    values: np.ndarray,
    inner: tuple[int, int],
    shard: tuple[int, int],
    codec: str = "none",
    *,
    location: str = "end",
    checked: bool = True,
    endian: str = "little",
) -> Any:
    """An array in shards, as zarr writes it: inner chunks of zeros are left out."""
    first = [TransposeCodec(order=(1, 0))] if codec == "turned" else []
    sharding = ShardingCodec(
        chunk_shape=inner,
        codecs=[*first, BytesCodec(endian=endian), *CODECS[codec]],
        index_codecs=[BytesCodec(), *([Crc32cCodec()] if checked else [])],
        index_location=location,
    )
    array = zarr.create_array(
        path, shape=values.shape, dtype=values.dtype, chunks=shard, serializer=sharding, compressors=None,
        overwrite=True,
    )  # fmt: skip
    array[...] = values
    return array


def elsewhere(path: Path) -> Iterator[Any]:
    """The array again, as objects that obstore fetches, and in a store that is asked by zarr's own protocol."""
    yield zarr.open_array(zarr.storage.ObjectStore(obstore.store.LocalStore(str(path)), read_only=True), mode="r")
    files = {str(file.relative_to(path)): file for file in path.rglob("*") if file.is_file()}
    held = {name: zarr.core.buffer.cpu.Buffer.from_bytes(file.read_bytes()) for name, file in files.items()}
    yield zarr.open_array(zarr.storage.MemoryStore(held), mode="r")


def collected(reader: Any, height: int | None = None) -> np.ndarray:
    """All tiles; with ``height`` in memory of so many rows that is given to the reader."""
    whole = np.full(reader.shape, 77).astype(reader.dtype)
    given = (
        {} if height is None else {"room": lambda left: np.empty((min(left, height), reader.shape[1]), reader.dtype)}
    )
    for slab in range(reader.grid[0]):
        for rows, tile in reader.tiles(slab, ReadStats(), **given):
            for columns, values in tile:
                whole[rows, columns] = values
    return whole


@pytest.mark.parametrize("codec", ["none", "zstd", "blosc", "crc"])
@pytest.mark.parametrize("inner", [(32, 24), (48, 24), (100, 8), (300, 12)])
def test_sums_have_the_bits_of_plain_chunks_as_large_as_the_shards(
    codec: str, inner: tuple[int, int], low_tiles: None, tmp_path: Path
) -> None:
    """So what was begun before shards were read in part goes on with the same sums, and checksums still hold."""
    x = np.random.default_rng(0).standard_normal((1000, 24)).astype("f4")
    plain = zarr.create_array(
        tmp_path / "p.zarr", shape=x.shape, dtype="f4", chunks=(inner[0] * 2, 24), compressors=None
    )
    plain[...] = x
    sharded = write(tmp_path / "s.zarr", x, inner, (inner[0] * 2, 24), codec)
    block, found = np.eye(24, 5, dtype="f4"), []
    for array, threads in ((plain, 1), (sharded, 1), (sharded, 2)):
        stats = ReadStats()
        reader: Any = open_source(array).reader
        for slab in range(reader.grid[0]):
            for _ in reader.tiles(slab, stats):
                pass
        found.append((Threads(threads).run_pass(Gram(reader=reader), block, ignore)[0].tobytes(), stats.checksums))
    assert found[0] == found[1] == found[2]


# By hand


def pieces_of(path: Path, counts: tuple[int, int]) -> list[bytes]:
    """The inner chunks of a shard whose index is at the end, with its checksum."""
    data = path.read_bytes()
    index = np.frombuffer(data[-16 * counts[0] * counts[1] - 4 : -4], "<u8").reshape(-1, 2)
    return [data[int(o) : int(o + n)] for o, n in index]


def shard_of(pieces: list[bytes], order: Any, gap: int, *, index: list[tuple[int, int]] | None = None) -> bytes:
    """A shard of these inner chunks, which lie in ``order`` with gaps between them."""
    body, places = b"", dict[int, tuple[int, int]]()
    for number in order:
        body += b"\xa5" * gap
        places[number] = (len(body), len(pieces[number]))
        body += pieces[number]
    table = index or [places.get(i, (2**64 - 1, 2**64 - 1)) for i in range(len(pieces))]
    raw = b"".join(struct.pack("<QQ", *pair) for pair in table)
    return body + raw + struct.pack("<I", crc32c(raw))


def test_an_inner_chunk_that_cannot_be_decoded_is_named(tmp_path: Path) -> None:
    values = np.ones((80, 20), "f4")
    write(tmp_path / "x.zarr", values, (40, 10), (80, 20), "zstd")
    file = tmp_path / "x.zarr" / "c" / "0" / "0"
    pieces = pieces_of(file, (2, 2))
    file.write_bytes(shard_of([*pieces[:3], b"junk" * 5], range(4), 0))
    with pytest.raises(BadInputError, match=r"chunk c/0/0 of .*its inner chunk \(1, 1\): "):
        rows_of_tiles(open_source(tmp_path / "x.zarr"))


@pytest.mark.parametrize("location", ["start", "end"])
def test_where_an_index_lies_may_be_a_word(location: str, tmp_path: Path) -> None:
    """From zarr 3.4 on; before it was a member of an enumeration."""
    values = np.random.default_rng(0).standard_normal((80, 20)).astype("f4")
    array = write(tmp_path / "x.zarr", values, (20, 10), (40, 20), "blosc", location=location)
    object.__setattr__(array.metadata.codecs[0], "index_location", location)
    reader: Any = dense.DenseReader(array=array)
    assert reader.access.by_rows
    np.testing.assert_array_equal(collected(reader), values)
    data = np.frombuffer((tmp_path / "x.zarr" / "c" / "0" / "0").read_bytes(), np.uint8)
    index = data[:68].copy() if location == "start" else data[-68:].copy()  # of four inner chunks, and its checksum
    span = (0, 68) if location == "start" else None
    require_sound(array, index, len(data), span)
    index[9] ^= 1
    with pytest.raises(ValueError, match="the index of its shard is corrupt"):
        require_sound(array, index, len(data), span)


@pytest.mark.parametrize("name", ["BatchedCodecPipeline", "FusedCodecPipeline"])
def test_chunks_are_looked_at_whatever_pipeline_zarr_has(name: str, tmp_path: Path) -> None:
    """The fused one, of zarr 3.4, asks the store behind another one by itself where it may."""
    if not hasattr(codec_pipeline, name):
        pytest.skip("this version of zarr does not have it")
    values = np.random.default_rng(0).standard_normal((80, 20)).astype("f4")
    write(tmp_path / "x.zarr", values, (20, 10), (40, 20), "blosc")
    file = tmp_path / "x.zarr" / "c" / "0" / "0"
    (first, *others), count = pieces_of(file, (2, 2)), len(file.read_bytes())
    with zarr.config.set({"codec_pipeline.path": f"zarr.core.codec_pipeline.{name}"}):
        boxes = Boxes(zarr.open_array(tmp_path / "x.zarr", mode="r"))
        np.testing.assert_array_equal(boxes[3:70], values[3:70])
        file.write_bytes(shard_of([first[:12] + struct.pack("<I", count) + first[16:], *others], range(4), 0))
        with pytest.raises(BadInputError, match=r"chunk c/0/0 of .*its Blosc frame claims another length"):
            boxes[3:10]
        file.unlink()
        with pytest.raises(BadInputError, match=r"chunk c/0/0 of .* is missing"):
            boxes[3:10]


def test_ranges_of_a_shard_are_looked_at(tmp_path: Path) -> None:
    """By which zarr asks for inner chunks from 3.2 on."""
    array = write(tmp_path / "x.zarr", np.ones((40, 20), "f4"), (20, 10), (40, 20), "blosc")
    file = tmp_path / "x.zarr" / "c" / "0" / "0"
    first, second, *others = pieces_of(file, (2, 2))
    file.write_bytes(shard_of([first, second[:-4], *others], range(4), 0))
    store, spans = looked_at(array, lost_file).store_path.store, (0, len(first), len(first) + len(second) - 4)

    async def asked(*pairs: tuple[int, int]) -> list[bytes]:
        ranges, prototype = [RangeByteRequest(*pair) for pair in pairs], default_buffer_prototype()
        found = [part async for parts in store.get_ranges("c/0/0", ranges, prototype=prototype) for part in parts]
        assert [number for number, _ in found] == list(range(len(pairs)))
        return [came.to_bytes() for _, came in found]

    assert sync(asked(spans[:2], spans[:2])) == [first, first]
    with pytest.raises(BadInputError, match=r"chunk c/0/0 of .*its Blosc frame claims another length"):
        sync(asked(spans[:2], spans[1:]))


def test_what_lies_behind_the_end_of_the_array_is_not_read(tmp_path: Path) -> None:
    """zarr does not write it; others fill a shard up, with anything."""
    values = np.random.default_rng(0).standard_normal((50, 15)).astype("f4")
    write(tmp_path / "x.zarr", values, (20, 5), (80, 20), "zstd")
    file = tmp_path / "x.zarr" / "c" / "0" / "0"
    data = file.read_bytes()
    index = np.frombuffer(data[-16 * 16 - 4 : -4], "<u8").reshape(4, 4, 2).copy()
    beyond = (index[3], index[:, 3])
    assert all((part == 2**64 - 1).all() for part in beyond)
    index[3], index[:, 3] = (0, 5), (0, 5)
    file.write_bytes(data[: -16 * 16 - 4] + index.tobytes() + struct.pack("<I", crc32c(index.tobytes())))
    np.testing.assert_array_equal(rows_of_tiles(open_source(tmp_path / "x.zarr")), values)


# What is read


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Every range (from, to) that is read of a file."""
    ranges: list[tuple[int, int]] = []
    read = chunk_access.read_exactly

    def noted(file: int, part: np.ndarray, offset: int) -> None:
        ranges.append((offset, offset + part.nbytes))
        read(file, part, offset)

    monkeypatch.setattr(chunk_access, "read_exactly", noted)
    return ranges


@pytest.mark.parametrize(("codec", "inner"), [("none", (64, 256)), ("none", (64, 64)), ("zstd", (64, 256))])
def test_a_few_rows_of_a_shard_cost_their_own_bytes(codec: str, inner: Any, taken: Any, tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal((4096, 256)).astype("f4")
    write(tmp_path / "x.zarr", values, inner, (4096, 256), codec)
    reader: Any = open_source(tmp_path / "x.zarr").reader
    index = 16 * (4096 // inner[0]) * (256 // inner[1]) + 4
    np.testing.assert_array_equal(reader.some_rows(0, range(70, 90, 5)), values[70:90:5])
    spent, row = sum(stop - start for start, stop in taken), 256 * 4
    if inner == (64, 64):  # a piece of the row in each of four inner chunks, and the bytes between them
        assert spent <= index + 4 * (row + 3 * chunk_access.GAP_BYTES)
    elif codec == "none":
        assert spent == index + 4 * row
    else:
        assert spent < index + 64 * row  # one inner chunk, once


@pytest.mark.slow
def test_neighbours_are_read_at_once(taken: Any, low_tiles: None, tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal((640, 32)).astype("f4")
    for codec, inner in (("none", (4, 32)), ("none", (4, 8)), ("zstd", (4, 8))):
        write(tmp_path / "x.zarr", values, inner, (640, 32), codec)
        taken.clear()
        np.testing.assert_array_equal(rows_of_tiles(open_source(tmp_path / "x.zarr")), values)
        assert len(taken) == 1 + 10  # the index, once, and a tile of 64 rows each


@pytest.mark.slow
def test_a_shard_takes_a_few_inner_chunks_of_memory(tmp_path: Path) -> None:
    """Of 64 MiB as much as is predicted: a tile, a row of inner chunks, and what is read at once."""
    shape = (16384, 512)
    for codec, inner in (
        (BloscCodec(), (100, 128)),
        (BloscCodec(), (256, 512)),
        (None, (256, 128)),
        (None, (100, 512)),
    ):
        height = -(-shape[0] // inner[0]) * inner[0]
        array = zarr.create_array(
            tmp_path / "x.zarr", shape=shape, dtype="f8", chunks=inner, shards=(height, 512), compressors=codec,
            overwrite=True,
        )  # fmt: skip
        array[...] = np.random.default_rng(0).integers(0, 9, shape)
        reader: Any = open_source(tmp_path / "x.zarr").reader
        assert reader.access.way == "decoded" and reader.buffer_bytes < 14 * 2**20
        chunk_access._LOCAL.__dict__.pop("buffers", None)  # what another test left
        tracemalloc.start()
        for _ in reader.tiles(0, ReadStats()):
            pass
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert 8 * 2**20 < peak <= reader.buffer_bytes + 2**17, (codec, inner)


# Changes


def test_what_else_is_read_in_between_does_not_spoil_a_tile(low_tiles: None, tmp_path: Path) -> None:
    """Rows of an inner chunk that was begun are kept for the next tile, while a sample is drawn in the same thread."""
    values = np.random.default_rng(0).standard_normal((480, 8)).astype("f4")
    write(tmp_path / "x.zarr", values, (48, 8), (480, 8), "zstd")
    reader: Any = open_source(tmp_path / "x.zarr").reader
    for rows, tile in reader.tiles(0, ReadStats()):
        np.testing.assert_array_equal(tile[0][1], values[rows])
        reader.some_rows(0, range(5, 480, 100))


def test_a_shard_that_changes_is_found(low_tiles: None, tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal((480, 8)).astype("f4")
    for codec in ("none", "zstd"):
        write(tmp_path / "x.zarr", values, (48, 8), (480, 8), codec)
        file, stats = tmp_path / "x.zarr" / "c" / "0" / "0", ReadStats()
        reader: Any = open_source(tmp_path / "x.zarr").reader
        at = reader.tiles(0, stats)
        next(at)
        (tmp_path / "other").write_bytes(b"nothing")
        os.rename(file, tmp_path / "kept")
        os.rename(tmp_path / "other", file)  # what is open stays what it was
        assert sum(rows.stop - rows.start for rows, _ in at) == 480 - 64
        os.rename(tmp_path / "kept", file)
        table = np.array([[stats.checksums[0, 0]]], np.uint32)
        at = reader.tiles(0, ReadStats())
        next(at)
        os.truncate(file, 2000)
        with pytest.raises(BadInputError, match=r"chunk c/0/0 of .* is truncated"):
            list(at)
        write(
            tmp_path / "x.zarr",
            np.where(np.arange(480)[:, None] == 479, 1, values).astype("f4"),
            (48, 8),
            (480, 8),
            codec,
        )
        known: Any = open_source(tmp_path / "x.zarr").with_checksums(table).reader
        with pytest.raises(BadInputError, match=r"chunk c/0/0 of .* is corrupt: its checksum is"):
            list(known.tiles(0, ReadStats()))


# Sparse rows


@pytest.mark.slow
@pytest.mark.parametrize("codec", [None, ZstdCodec(), BloscCodec(), GzipCodec()])
def test_entries_in_shards_are_read_slab_by_slab(codec: Any, taken: Any, tmp_path: Path) -> None:
    matrix = sp.random(300, 40, 0.3, "csr", rng=np.random.default_rng(1), dtype=np.float32)
    group = zarr.create_group(tmp_path / "x.zarr")
    group.attrs.update({"encoding-type": "csr_matrix", "shape": matrix.shape})
    for name, each in (("data", 4), ("indices", 8), ("indptr", 2)):
        values = getattr(matrix, name)
        array = group.create_array(
            name, shape=values.shape, dtype=values.dtype, chunks=(100,), shards=(each * 100,), compressors=codec
        )
        array[...] = values
    reader: Any = open_source(tmp_path / "x.zarr").reader
    assert isinstance(reader, CsrReader) and reader.access["data"].by_rows == (not isinstance(codec, GzipCodec))
    np.testing.assert_array_equal(rows_of_tiles(open_source(tmp_path / "x.zarr")), matrix.toarray())
    taken.clear()
    slabs = range(2, 11)
    for _ in reader.blocks(slabs, ReadStats()):
        pass
    files = 3 + 2  # shards of four and of eight slabs, each with one index
    if reader.access["data"].by_rows:
        indices = sum(stop - start in (16 * 4 + 4, 16 * 8 + 4) for start, stop in taken if start > 0)
        assert indices == files
    file = tmp_path / "x.zarr" / "data" / "c" / "1"
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(NpmdaskError, match=r"chunk c/1 of .*data "):
        rows_of_tiles(open_source(tmp_path / "x.zarr"))


# Writing


def shard_files(path: Path) -> int:
    return sum(file.is_file() and file.name != "zarr.json" for file in path.rglob("*"))


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_what_comes_next_is_asked_for(codec: str, tmp_path: Path) -> None:
    """While rows are used, the disk brings the ranges of the next ones; of rows here and there nothing is asked."""
    values = np.random.default_rng(0).standard_normal((320, 16)).astype("f4")
    array = write(tmp_path / "x.zarr", values, (20, 16), (320, 16), codec)
    access = chunk_access.access_of(array)
    data = np.frombuffer((tmp_path / "x.zarr" / "c" / "0" / "0").read_bytes(), np.uint8)
    read: list[tuple[int, int]] = []
    asked: list[tuple[int, int]] = []

    def take(part: np.ndarray, offset: int) -> None:
        read.append((offset, offset + part.nbytes))
        part[:] = data[offset : offset + len(part)]

    assert access.shard is not None
    rows = chunk_access.ShardRows(
        access.shard, take, len(data), (320, 16), values.dtype, 16, lambda *ends: asked.append(ends)
    )
    part = np.empty((40, 16), "f4")
    for first in range(0, 320, 40):
        rows(part, first)
    assert len(asked) == 7 and asked == read[2:]  # behind the index and the first rows
    rows(part[:1], 5)
    rows(part[:1], 90)
    assert len(asked) == 7
