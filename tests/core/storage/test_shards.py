"""Rows of shards, of which only the inner chunks that hold them are read: what zarr reads, or a named refusal."""

from __future__ import annotations

import os
import struct
import tracemalloc
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import obstore
import pytest
import scipy.sparse as sp
import zarr
from awscrt.checksums import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, ShardingCodec, TransposeCodec, ZstdCodec

import npmdask
from npmdask.cli.main import main
from npmdask.core.execution.executor import Threads
from npmdask.core.operators import Gram, SparseGram
from npmdask.core.operators.row_gram import chunk_column
from npmdask.core.storage import chunk_access
from npmdask.core.storage.readers import dense
from npmdask.core.storage.readers.dense import ReadStats
from npmdask.core.storage.readers.sparse import CsrReader
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError, NpmdaskError
from npmdask.formats.ingest import ingest
from npmdask.planning.row_sample import places_of
from npmdask.remote.prefetch import following
from npmdask.writers.sparse import SparseWriter
from tests.core.operators.test_operators import ignore
from tests.core.storage.test_parity import tiles
from tests.stored_gram.test_ingest import same_sums

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


def in_turn(reader: Any, bound: int) -> np.ndarray:
    """All tiles, the next shards being fetched meanwhile, as in a pass."""
    with (
        closing(Threads(1, bound)),
        following(range(reader.grid[0]), lambda slab: reader.read_ahead(range(slab, slab + 1))),
    ):
        return collected(reader)


@settings(max_examples=15, deadline=None)
@given(
    rows=st.integers(1, 500),
    columns=st.integers(1, 40),
    inner=st.tuples(st.integers(1, 100), st.integers(1, 17)),
    times=st.tuples(st.integers(1, 6), st.integers(1, 3)),
    codec=st.sampled_from(list(CODECS)),
    dtype=st.sampled_from(["f2", "i1", "f4", "f8", ">f4", "c8"]),
    location=st.sampled_from(["start", "end"]),
    checked=st.booleans(),
    holes=st.booleans(),
)
def test_tiles_of_a_shard_are_what_zarr_reads(
    rows: int, columns: int, inner: Any, times: Any, codec: str, dtype: str, location: str, checked: bool, holes: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:  # fmt: skip
    """Inner chunks of any height and width, some left out, shards cut by the end of the array, either way of tiles."""
    folder = tmp_path_factory.mktemp("shards")
    values = np.random.default_rng(rows).integers(-9, 9, (rows, columns)).astype(dtype)
    if holes:
        values[rows // 3 : 2 * rows // 3] = 0
        values[:, : columns // 2] = 0
    values[0, 0] = 1  # else there is nothing to write
    values[:: inner[0] * times[0], :: inner[1] * times[1]] = 1  # nor of a shard
    shard = (inner[0] * times[0], inner[1] * times[1])
    array = write(folder / "x.zarr", values, inner, shard, codec, location=location, checked=checked)
    reader: Any = dense.DenseReader(array=array)
    known = codec in ("none", "zstd", "blosc", "crc") and dtype != ">f4"
    assert reader.access.by_rows == known
    with pytest.MonkeyPatch.context() as patch:
        for height in (1, dense.TILE_BYTES):
            patch.setattr(dense, "TILE_BYTES", height)
            np.testing.assert_array_equal(collected(reader), values)
    for far in elsewhere(folder / "x.zarr") if known else ():
        there: Any = dense.DenseReader(array=far)
        assert there.access.by_rows and there.access.folder is None
        with pytest.MonkeyPatch.context() as patch:
            for piece in (1, 500, 2**20):
                patch.setattr(chunk_access, "PIECE", piece)
                np.testing.assert_array_equal(collected(there), values)
                for bound in (1, 700, 2**20):
                    np.testing.assert_array_equal(in_turn(there, bound), values)
        some = range(0, min(shard[0], rows), 7)
        np.testing.assert_array_equal(there.some_rows(0, some), values[some])
    if reader.access.by_rows:
        some = range(0, min(shard[0], rows), 7)
        np.testing.assert_array_equal(reader.some_rows(0, some), values[some])
        for height in (1, 5, 1000):
            if reader.fills_rows:
                np.testing.assert_array_equal(collected(reader, height), values)
    for column in range(reader.grid[1]):
        wanted = values[:, column * shard[1] : (column + 1) * shard[1]]
        np.testing.assert_array_equal(chunk_column(reader, column, ReadStats()), wanted)


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


@pytest.fixture(params=["none", "zstd", "blosc", "crc"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, np.ndarray, list[bytes]]:
    """The first of two shards of 4 x 2 inner chunks, and what lies in them."""
    values = np.random.default_rng(3).standard_normal((300, 20)).astype("f4")
    write(tmp_path / "x.zarr", values, (40, 10), (160, 20), request.param)
    file = tmp_path / "x.zarr" / "c" / "0" / "0"
    return file, values, pieces_of(file, (4, 2))


@pytest.mark.parametrize("gap", [0, 13, chunk_access.GAP_BYTES + 1])
@pytest.mark.parametrize("order", [range(7, -1, -1), (3, 0, 5, 1, 7, 2, 6, 4), (0, 2, 4, 6)])
def test_inner_chunks_lie_in_any_order_with_gaps(made: Any, order: Any, gap: int, low_tiles: None) -> None:
    file, values, pieces = made
    file.write_bytes(shard_of(pieces, order, gap))
    wanted = values.copy()
    for number in set(range(8)) - set(order):
        row, column = divmod(number, 2)
        wanted[40 * row : 40 * row + 40, 10 * column : 10 * column + 10] = 0
    np.testing.assert_array_equal(zarr.open_array(file.parents[2])[...], wanted)
    reader: Any = open_source(file.parents[2]).reader
    np.testing.assert_array_equal(tiles(open_source(file.parents[2])), wanted)
    np.testing.assert_array_equal(reader.some_rows(0, range(3, 160, 50)), wanted[3:160:50])
    for far in elsewhere(file.parents[2]):
        for bound, piece in ((0, 500), (500, 2**20), (2**20, 500), (2**20, 2**20)):  # in many ranges, and in one
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(chunk_access, "PIECE", piece)
                np.testing.assert_array_equal(in_turn(open_source(far).reader, bound), wanted)


def _index(pieces: list[bytes]) -> list[tuple[int, int]]:
    offsets = np.cumsum([0, *map(len, pieces)])
    return [(int(o), len(p)) for o, p in zip(offsets, pieces, strict=False)]


def damages(pieces: list[bytes]) -> Iterator[tuple[str, bytes, bool]]:
    """Name, the shard, and whether it has to be refused (else what zarr reads is right, too)."""
    order, index, whole = range(8), _index(pieces), shard_of(pieces, range(8), 0)
    yield "index that lost a bit", whole[:-60] + bytes([whole[-60] ^ 4]) + whole[-59:], True
    yield "checksum of the index that lost a bit", whole[:-1] + bytes([whole[-1] ^ 1]), True
    yield "cut in the index", whole[:-10], True
    yield "no bytes", b"", True
    yield "only an index", whole[-132:], True
    yield "two of the same bytes", shard_of(pieces, order, 0, index=[index[1], *index[1:]]), False
    yield "behind the end", shard_of(pieces, order, 0, index=[(len(whole) - 5, index[0][1]), *index[1:]]), True
    yield "far behind the end", shard_of(pieces, order, 0, index=[(2**63, index[0][1]), *index[1:]]), True
    yield "longer than the file", shard_of(pieces, order, 0, index=[(0, 2**62), *index[1:]]), True
    yield "a sum beyond 64 bits", shard_of(pieces, order, 0, index=[(2**64 - 9, 10), *index[1:]]), True
    yield "no bytes of one", shard_of(pieces, order, 0, index=[(0, 0), *index[1:]]), True
    yield "place without size", shard_of(pieces, order, 0, index=[(0, 2**64 - 1), *index[1:]]), True
    yield "an inner chunk cut short", shard_of(pieces, order, 0, index=[(0, index[0][1] - 3), *index[1:]]), True
    yield "an inner chunk too long", shard_of(pieces, order, 0, index=[(0, index[0][1] + 3), *index[1:]]), True
    yield "an inner chunk of zeros", shard_of([b"\0" * len(pieces[0]), *pieces[1:]], order, 0), False
    yield "an inner chunk half", shard_of([pieces[0][: len(pieces[0]) // 2], *pieces[1:]], order, 0), True
    yield "overlapping", shard_of(pieces, order, 0, index=[index[0], (index[1][0] - 7, index[1][1]), *index[2:]]), False


def test_a_damaged_shard_is_read_as_zarr_reads_it_or_named(made: Any, low_tiles: None) -> None:
    file, _, pieces = made
    path, refused = file.parents[2], 0
    for name, data, must in damages(pieces):
        file.write_bytes(data)
        for source in (path, *elsewhere(path)):
            try:
                found = in_turn(open_source(source).reader, 2**20)
            except BadInputError as error:
                assert "chunk c/0/0 of " in str(error), name
                refused += 1
                continue
            assert not must, name
            np.testing.assert_array_equal(found, zarr.open_array(path)[...], err_msg=name)
    assert refused >= 3 * 13


def test_an_inner_chunk_that_cannot_be_decoded_is_named(tmp_path: Path) -> None:
    values = np.ones((80, 20), "f4")
    write(tmp_path / "x.zarr", values, (40, 10), (80, 20), "zstd")
    file = tmp_path / "x.zarr" / "c" / "0" / "0"
    pieces = pieces_of(file, (2, 2))
    file.write_bytes(shard_of([*pieces[:3], b"junk" * 5], range(4), 0))
    with pytest.raises(BadInputError, match=r"chunk c/0/0 of .*its inner chunk \(1, 1\): "):
        tiles(open_source(tmp_path / "x.zarr"))


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
    np.testing.assert_array_equal(tiles(open_source(tmp_path / "x.zarr")), values)


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


def test_a_sample_of_packed_shards_takes_rows_of_some_inner_chunks(tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal((400, 16)).astype("f4")
    for codec, places in (("none", 3), ("zstd", 10), ("gzip", 3)):
        write(tmp_path / "x.zarr", values, (40, 8), (160, 16), codec)
        assert places_of(open_source(tmp_path / "x.zarr").reader) == places


def test_neighbours_are_read_at_once(taken: Any, low_tiles: None, tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal((640, 32)).astype("f4")
    for codec, inner in (("none", (4, 32)), ("none", (4, 8)), ("zstd", (4, 8))):
        write(tmp_path / "x.zarr", values, inner, (640, 32), codec)
        taken.clear()
        np.testing.assert_array_equal(tiles(open_source(tmp_path / "x.zarr")), values)
        assert len(taken) == 1 + 10  # the index, once, and a tile of 64 rows each


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
    np.testing.assert_array_equal(tiles(open_source(tmp_path / "x.zarr")), matrix.toarray())
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
        tiles(open_source(tmp_path / "x.zarr"))


# Writing


def shard_files(path: Path) -> int:
    return sum(file.is_file() and file.name != "zarr.json" for file in path.rglob("*"))


@pytest.mark.parametrize("chunks", [None, (7, 30), (16, 10)])
@pytest.mark.parametrize("dtype", ["f4", "i2"])
def test_ingest_writes_chunks_together_in_files(dtype: str, chunks: Any, tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(-9, 9, (1000, 30)).astype(dtype)
    np.save(tmp_path / "x.npy", x)
    ingest(tmp_path / "x.npy", tmp_path / "s.zarr", shards="16KiB", chunks=chunks)
    array: Any = zarr.open_array(tmp_path / "s.zarr" / "data")
    reader: Any = open_source(tmp_path / "s.zarr").reader
    assert array.shards == reader.chunks and reader.access.by_rows
    assert np.prod(array.shards) * x.itemsize <= 2**14 < 2 * np.prod(array.shards) * x.itemsize
    assert chunks is None or array.chunks == chunks
    assert shard_files(tmp_path / "s.zarr" / "data") == reader.grid[0] * reader.grid[1]
    np.testing.assert_array_equal(array[...], x)
    np.testing.assert_array_equal(tiles(open_source(tmp_path / "s.zarr")), x)
    together = ingest(tmp_path / "x.npy", tmp_path / "w.zarr", chunks=reader.chunks)
    assert together.fingerprint == open_source(tmp_path / "s.zarr").fingerprint  # the same chunks are compared


def test_entries_lie_together_in_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(SparseWriter, "CHUNK", 100)
    matrix = sp.random(700, 40, 0.1, "csr", rng=np.random.default_rng(1))
    sp.save_npz(tmp_path / "x.npz", matrix)
    ingest(tmp_path / "x.npz", tmp_path / "s.zarr", shards=3300)
    group: Any = zarr.open_group(tmp_path / "s.zarr" / "X")
    assert group["data"].shards == (400,) and group["indices"].shards == (800,) and group["indptr"].shards is None
    source = open_source(tmp_path / "s.zarr")
    assert source.reader.access["data"].by_rows  # type: ignore[union-attr,index]
    np.testing.assert_array_equal(tiles(source), matrix.toarray())
    plain = ingest(tmp_path / "x.npz", tmp_path / "p.zarr")
    assert plain.fingerprint == source.fingerprint
    block = np.eye(40, 3)
    products = [
        Threads(1).run_pass(SparseGram(reader=open_source(tmp_path / name).reader), block, ignore)[0]
        for name in ("s.zarr", "p.zarr")
    ]
    assert products[0].tobytes() == products[1].tobytes()


def test_shards_of_a_symmetric_matrix_are_square(tmp_path: Path) -> None:
    a = np.random.default_rng(0).standard_normal((700, 700))
    np.save(tmp_path / "x.npy", a + a.T)
    ingest(tmp_path / "x.npy", tmp_path / "s.zarr", kind="symmetric", layout="full", shards="1MiB", chunks=(64, 64))
    source = open_source(tmp_path / "s.zarr")
    reader: Any = source.reader
    assert reader.chunks == (320, 320) and reader.access.shard.inner == (64, 64)
    np.testing.assert_array_equal(tiles(source), a + a.T)
    for remedy, options in (("layout='full'", {"kind": "symmetric"}), ("leave them out", {"kind": "tensor"})):
        with pytest.raises(BadInputError, match=remedy):
            ingest(tmp_path / "x.npy", tmp_path / "t.zarr", shards="1MiB", **options)
    with pytest.raises(BadInputError, match="shards = 'many' is not a size"):
        ingest(tmp_path / "x.npy", tmp_path / "t.zarr", shards="many")


def test_the_gram_of_shards_is_formed_while_they_are_written(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((900, 20)))
    said = [str(tmp_path / name) for name in ("x.npy", "s.zarr")]
    assert main(["ingest", *said, "--shards", "32KiB", "--gram", str(tmp_path / "g"), "--quiet"]) == 0
    assert open_source(said[1]).reader.grid == (5, 1)  # type: ignore[union-attr]
    npmdask.gram(said[1], tmp_path / "h")
    same_sums(tmp_path / "g", tmp_path / "h")


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
