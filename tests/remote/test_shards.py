"""Shards whose inner chunks are read ahead."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from npmdask.core.execution.executor import Threads
from npmdask.core.storage import chunk_access
from npmdask.core.storage.readers import dense
from npmdask.core.storage.readers.dense import ReadStats
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError
from npmdask.remote.prefetch import following
from tests.core.storage import test_shards as shards
from tests.core.storage.test_shards import CODECS, collected, elsewhere, pieces_of, shard_of, write
from tests.core.storage.tiles import rows_of_tiles

low_tiles = shards.low_tiles  # a fixture


@pytest.fixture(params=["none", "zstd", "blosc", "crc"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, np.ndarray, list[bytes]]:
    """The first of two shards of 4 x 2 inner chunks, and what lies in them."""
    values = np.random.default_rng(3).standard_normal((300, 20)).astype("f4")
    write(tmp_path / "x.zarr", values, (40, 10), (160, 20), request.param)
    file = tmp_path / "x.zarr" / "c" / "0" / "0"
    return file, values, pieces_of(file, (4, 2))


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


def in_turn(reader: Any, bound: int) -> np.ndarray:
    """All tiles, the next shards being fetched meanwhile, as in a pass."""
    with (
        closing(Threads(1, bound)),
        following(range(reader.grid[0]), lambda slab: reader.read_ahead(range(slab, slab + 1))),
    ):
        return collected(reader)


@pytest.mark.slow
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
        for parts in (1, 3):
            cut = [
                np.concatenate(
                    [some.copy() for _, some in reader.column_chunks(parts * column + i, parts, ReadStats())]
                )
                for i in range(parts)
            ]
            np.testing.assert_array_equal(np.concatenate(cut, axis=1), wanted)


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
    np.testing.assert_array_equal(rows_of_tiles(open_source(file.parents[2])), wanted)
    np.testing.assert_array_equal(reader.some_rows(0, range(3, 160, 50)), wanted[3:160:50])
    for far in elsewhere(file.parents[2]):
        for bound, piece in ((0, 500), (500, 2**20), (2**20, 500), (2**20, 2**20)):  # in many ranges, and in one
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(chunk_access, "PIECE", piece)
                np.testing.assert_array_equal(in_turn(open_source(far).reader, bound), wanted)


@pytest.mark.slow
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
