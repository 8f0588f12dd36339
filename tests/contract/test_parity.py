"""Every way in which we read chunks against zarr-python on the same bytes, of more than 400 damaged stores.

What is read of a damaged store is what zarr reads of it, or an error that names the chunk: never what a buffer held
before, never a wait. Being stricter than zarr is fine. A chunk that is read before the damaged one holds other values,
so that whatever a decoder leaves in a buffer shows.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import scipy.sparse as sp
import zarr
from obstore.store import LocalStore as ObstoreFolder
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, ShardingCodec, TransposeCodec, ZstdCodec

from npmdask.core.execution.executor import Threads
from npmdask.core.operators import Gram, SparseGram
from npmdask.core.storage.readers.dense import ReadStats
from npmdask.core.storage.readers.sparse import CsrReader
from npmdask.core.storage.source import Source, open_source
from npmdask.errors import BadInputError, NpmdaskError
from npmdask.formats.ingest import ingest
from npmdask.streaming import stream_pca
from npmdask.streaming.sources.zarr_rows import ZarrRows
from npmdask.streaming.transform import transform
from npmdask.symmetric.reader import TensorReader, TriangleReader
from tests.conftest import often
from tests.core.operators.test_operators import ignore, write_csr
from tests.core.storage.tiles import rows_of_tiles

SECONDS = 300  # of one layout with all that is done to it: it takes about one
ROWS, COLUMNS, CHUNK = 17, 14, (6, 7)  # as few chunks as have an inner and a cut one: each read costs zarr 1 ms
RNG = np.random.default_rng(0)
X = RNG.standard_normal((ROWS, COLUMNS))


@pytest.fixture(autouse=True)
def never_wait() -> Iterator[None]:
    """A reader that waits for a FIFO is woken up, and fails."""

    def late(*_: object) -> None:
        raise TimeoutError(f"reading took more than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


# Layouts


@dataclass
class Made:
    """A store, the chunk that will be damaged, another one of the same array, and what encodes bytes as its chunks."""

    path: Path
    chunk: str
    other: str
    encode: Callable[[bytes], bytes] | None = None
    read: list[str] = field(default_factory=lambda: ["tiles", "stream", "operator"])

    @property
    def name(self) -> str:
        """Of the chunk, as its array calls it."""
        _, found, place = self.chunk.rpartition("/c")
        return f"c{place}" if found else self.chunk


def _plain(folder: Path, encode: Any = None, chunk: tuple[int, int] = (1, 1), **options: Any) -> Made:
    array = zarr.create_array(
        folder / "x.zarr", shape=X.shape, dtype=options.pop("dtype", "f8"), chunks=options.pop("chunks", CHUNK),
        config={"write_empty_chunks": True}, **options,
    )  # fmt: skip
    array[...] = X
    names = [str(array.metadata.encode_chunk_key(at)) for at in (chunk, (0, 0))]
    return Made(folder / "x.zarr", *names, encode)


def _sharded(folder: Path, *codecs: Any, location: str = "end", checked: bool = True) -> Made:
    index = [BytesCodec(), *([Crc32cCodec()] if checked else [])]
    sharding = ShardingCodec(
        chunk_shape=(3, 7), codecs=[BytesCodec(), *codecs], index_codecs=index, index_location=location
    )
    return _plain(folder, chunks=(6, 14), serializer=sharding, compressors=None, chunk=(1, 0))


def _csr(folder: Path, part: str, sharded: bool = False) -> Made:
    matrix = sp.random(ROWS, COLUMNS, 0.6, "csr", rng=np.random.default_rng(1))
    if not sharded:
        write_csr(folder / "x.zarr", matrix, 14 if part == "indptr" else 60)
        group = zarr.open_group(folder / "x.zarr")
        del group.attrs["npmdask"]
        shutil.move(folder / "x.zarr", folder / "ingested.zarr")
        shutil.move(folder / "ingested.zarr" / "X", folder / "x.zarr")
    else:
        group = zarr.create_group(folder / "x.zarr")
        group.attrs.update({"encoding-type": "csr_matrix", "shape": matrix.shape})
        for name in ("data", "indices", "indptr"):
            values = getattr(matrix, name)
            array = group.create_array(
                name,
                shape=values.shape,
                dtype=values.dtype,
                chunks=(7 if name == "indptr" else 20,),
                shards=(14 if name == "indptr" else 60,),
            )
            array[...] = values
    return Made(folder / "x.zarr", f"{part}/c/1", f"{part}/c/0")


def _ingested(folder: Path, kind: str) -> Made:
    source: Any = X
    if kind == "symmetric":
        source = X @ X.T
    if kind == "tensor":
        source = np.einsum("ai,bi,ci->abc", *[X[:9]] * 3)
    if kind == "sparse":
        source = np.where(X > 0, X, 0)
    np.save(folder / "x.npy", source)
    chunks = {"symmetric": (7, 7), "samples": CHUNK, "tensor": (4, 4, 4)}.get(kind)
    ingest(folder / "x.npy", folder / "x.zarr", kind=kind, chunks=chunks)
    first, second = {
        "symmetric": ("c.4.0.0", "c.0.0.0"), "samples": ("c/1/1", "c/0/0"),
        "tensor": ("c.3.0.0.0", "c.0.0.0.0"), "sparse": ("c/0", "c/0"),
    }[kind]  # fmt: skip
    array = "X/data" if kind == "sparse" else "data"
    made = Made(folder / "x.zarr", f"{array}/{first}", f"{array}/{second}")
    made.read = {"tensor": ["tiles"], "symmetric": ["tiles", "stream"]}.get(kind, made.read)
    return made


def _blosc(**options: Any) -> Any:
    return numcodecs.Blosc(**options).encode


LAYOUTS: dict[str, Callable[[Path], Made]] = {
    "plain": lambda f: _plain(f, bytes, compressors=None),
    "blosc": lambda f: _plain(f, _blosc(), compressors=BloscCodec()),
    "blosc lz4 bitshuffle": lambda f: _plain(
        f, _blosc(cname="lz4"), compressors=BloscCodec(cname="lz4", shuffle="bitshuffle")
    ),
    "blosc stored": lambda f: _plain(f, _blosc(clevel=0), compressors=BloscCodec(clevel=0)),
    "zstd": lambda f: _plain(f, numcodecs.Zstd().encode, compressors=ZstdCodec()),
    "zstd checked": lambda f: _plain(f, numcodecs.Zstd(checksum=True).encode, compressors=ZstdCodec(checksum=True)),
    "gzip": lambda f: _plain(f, numcodecs.GZip().encode, compressors=GzipCodec()),
    "zstd with crc": lambda f: _plain(f, compressors=[ZstdCodec(), Crc32cCodec()]),
    "big endian": lambda f: _plain(f, bytes, compressors=None, serializer=BytesCodec(endian="big")),
    "big endian blosc": lambda f: _plain(f, _blosc(), compressors=BloscCodec(), serializer=BytesCodec(endian="big")),
    "turned blosc": lambda f: _plain(f, _blosc(), compressors=BloscCodec(), filters=TransposeCodec(order=(1, 0))),
    "float32": lambda f: _plain(f, _blosc(), compressors=BloscCodec(), dtype="f4"),
    "sharded": lambda f: _sharded(f),
    "sharded zstd": lambda f: _sharded(f, ZstdCodec()),
    "sharded blosc": lambda f: _sharded(f, BloscCodec(typesize=8)),
    "sharded gzip": lambda f: _sharded(f, GzipCodec()),
    "sharded blosc and crc": lambda f: _sharded(f, BloscCodec(typesize=8), Crc32cCodec()),
    "sharded, index first": lambda f: _sharded(f, BloscCodec(typesize=8), location="start"),
    "sharded, index unchecked": lambda f: _sharded(f, location="start", checked=False),
    "2 plain": lambda f: _plain(f, bytes, compressors=None, zarr_format=2),
    "2 blosc": lambda f: _plain(f, _blosc(), compressors=numcodecs.Blosc(), zarr_format=2),
    "2 zstd": lambda f: _plain(f, numcodecs.Zstd().encode, compressors=numcodecs.Zstd(), zarr_format=2),
    "2 lz4": lambda f: _plain(f, numcodecs.LZ4().encode, compressors=numcodecs.LZ4(), zarr_format=2),
    "2 zlib": lambda f: _plain(f, numcodecs.Zlib().encode, compressors=numcodecs.Zlib(), zarr_format=2),
    "2 gzip": lambda f: _plain(f, numcodecs.GZip().encode, compressors=numcodecs.GZip(), zarr_format=2),
    "2 fortran blosc": lambda f: _plain(f, _blosc(), compressors=numcodecs.Blosc(), zarr_format=2, order="F"),
    "2 big endian": lambda f: _plain(f, _blosc(), compressors=numcodecs.Blosc(), zarr_format=2, dtype=">f8"),
    "2 filtered": lambda f: _plain(
        f, compressors=numcodecs.Blosc(), filters=[numcodecs.Shuffle(elementsize=8)], zarr_format=2
    ),
    "csr data": lambda f: _csr(f, "data"),
    "csr indices": lambda f: _csr(f, "indices"),
    "csr indptr": lambda f: _csr(f, "indptr"),
    "csr sharded data": lambda f: _csr(f, "data", sharded=True),
    "csr sharded indptr": lambda f: _csr(f, "indptr", sharded=True),
    "ingested": lambda f: _ingested(f, "samples"),
    "ingested sparse": lambda f: _ingested(f, "sparse"),
    "packed": lambda f: _ingested(f, "symmetric"),
    "packed tensor": lambda f: _ingested(f, "tensor"),
}


# Damage


def _flipped(at: float) -> Callable[[bytes, Made], bytes]:
    def flip(data: bytes, _: Made) -> bytes:
        place = min(int(at * len(data)), len(data) - 1)
        return data[:place] + bytes([data[place] ^ 1 << int(at * 1000) % 8]) + data[place + 1 :]

    return flip


BYTES: dict[str, Callable[[bytes, Made], bytes | None]] = {
    "empty": lambda data, _: b"",
    "one byte": lambda data, _: data[:1],
    "ten bytes": lambda data, _: data[:10],
    "the header": lambda data, _: data[:16],
    "half": lambda data, _: data[: len(data) // 2],
    "one byte less": lambda data, _: data[:-1],
    "eight bytes less": lambda data, _: data[:-8],
    "extended by zeros": lambda data, _: data + b"\0" * 8,
    "extended by junk": lambda data, _: data + b"junk" * 100,
    "twice": lambda data, _: data + data,
    "zeros": lambda data, _: b"\0" * len(data),
    "other chunk": lambda data, made: (made.path / made.other).read_bytes(),
    "head cut off": lambda data, _: data[8:],
    "half a frame": lambda data, made: made.encode and made.encode(X[:3, :7].tobytes()),
    "two halves": lambda data, made: (
        made.encode and made.encode(X[:3, :7].tobytes()) + made.encode(X[3:6, :7].tobytes())
    ),
    "a frame of twice as much": lambda data, made: made.encode and made.encode(X[:6, :14].tobytes()),
    "a frame of nothing": lambda data, made: made.encode and made.encode(b""),
    "float32": lambda data, made: made.encode and made.encode(X[:6, :7].astype("f4").tobytes()),
    "integers": lambda data, made: made.encode and made.encode(np.arange(42).tobytes()),
    **{f"flipped at {at}": _flipped(at) for at in (0.0, 0.011, 0.03, 0.2, 0.5, 0.96)},
}


def _put(path: Path, what: str) -> None:
    path.unlink()
    if what == "folder":
        path.mkdir()
    elif what == "fifo":
        os.mkfifo(path)
    elif what == "device":
        path.symlink_to("/dev/zero")
    elif what == "link to nothing":
        path.symlink_to("nowhere")


LEAST = 22  # damages of every layout
KINDS = ["missing", "folder", "fifo", "device", "link to nothing"]


@contextmanager
def damaged(made: Made, name: str) -> Iterator[bool]:
    """The store with its chunk damaged, if that makes sense of its layout, and whole again afterwards."""
    path = made.path / made.chunk
    data = path.read_bytes()
    new = None if name in KINDS else BYTES[name](data, made)
    if name not in KINDS and (new is None or new == data):
        yield False
        return
    try:
        if new is None:
            _put(path, name)
        else:
            path.write_bytes(new)
        yield True
    finally:
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        path.write_bytes(data)


# Reading


def by_zarr(path: Path) -> np.ndarray:
    """What zarr-python reads: rows and columns, as they are stored."""
    node = zarr.open(path, mode="r")
    if isinstance(node, zarr.Array):
        return np.asarray(node[...])
    assert isinstance(node, zarr.Group)
    if "X" in node or "indptr" in node:
        group: Any = node["X"] if "X" in node else node
        parts = tuple(np.asarray(group[name][...]) for name in ("data", "indices", "indptr"))
        return np.asarray(sp.csr_matrix(parts, shape=(ROWS, COLUMNS)).toarray())
    return np.asarray(node["data"][...])


def tiles(source: Source) -> np.ndarray:
    """What operators are given."""
    reader: Any = source.reader
    if isinstance(reader, TensorReader):
        found = np.zeros((reader.units, *reader.chunks))
        for unit in range(reader.units):
            ((_, values),) = reader.blocks(range(unit, unit + 1), ReadStats())
            found[unit][tuple(slice(n) for n in values.shape)] = values
        return found
    if isinstance(reader, TriangleReader):
        return np.concatenate([reader.slab(i) for i in range(reader.grid[0])])
    return rows_of_tiles(source)


def stream(source: Source) -> np.ndarray:
    """What streams, and with them ``transform``, are given."""
    rows, batches = ZarrRows(source), []
    while (batch := rows.read(5)) is not None:
        batches.append(batch)
    return np.concatenate(batches)


def operator(source: Source) -> np.ndarray:
    """A product with the identity."""
    reader: Any = source.reader
    kind = SparseGram if isinstance(reader, CsrReader) else Gram
    return Threads(1).run_pass(kind(reader=reader), np.eye(reader.shape[1]), ignore)[0]


def ingested(made: Made, folder: Path) -> np.ndarray:
    """What ``ingest`` writes down for good, as zarr reads it."""
    dest, tensor = folder / "again.zarr", "tensor" in str(folder)
    try:
        ingest(made.path, dest, kind="tensor" if tensor else None, chunks=(4, 4, 4) if tensor else None)
        return unpacked(by_zarr(dest))
    finally:
        shutil.rmtree(dest, ignore_errors=True)


def same(found: np.ndarray, wanted: np.ndarray, name: str) -> bool:
    """Bit for bit, NaN like NaN; products up to rounding."""
    if name == "operator" and wanted.shape != found.shape:
        with np.errstate(all="ignore"):
            gram = wanted.astype(float).T @ wanted.astype(float)
        return np.allclose(found, gram, rtol=1e-12, equal_nan=True)
    return found.shape == wanted.shape and np.array_equal(found, wanted.astype(found.dtype), equal_nan=True)


def unpacked(values: np.ndarray) -> np.ndarray:
    """A packed matrix as a whole one."""
    if values.ndim != 3:
        return values
    n, side = -(-ROWS // values.shape[1]), values.shape[1]
    whole = np.zeros((n * side, n * side))
    for unit, (i, j) in enumerate(zip(*np.triu_indices(n), strict=True)):
        whole[i * side : (i + 1) * side, j * side : (j + 1) * side] = values[unit]
        whole[j * side : (j + 1) * side, i * side : (i + 1) * side] = values[unit].T
    return whole[:ROWS, :ROWS]


def not_finite(text: str) -> bool:
    """A refusal of values, whose place is named: what zarr reads of them is no number."""
    if any(said in text for said in ("must be finite", "non-finite", "overflows")):
        return True
    return text.startswith(("nan at", "inf at", "-inf at")) or any(
        f" holds {n}" in text for n in ("nan", "inf", "-inf", "NaN")
    )


def readings(made: Made, folder: Path, damage: str) -> Iterator[tuple[str, np.ndarray | NpmdaskError]]:
    """What each way reads, or its refusal. All but ``ingest`` are given the same opened source."""
    ways: dict[str, Callable[[Source], np.ndarray]] = {"tiles": tiles, "stream": stream, "operator": operator}
    try:
        source = open_source(made.path)
    except NpmdaskError as error:
        yield "open", error
    else:
        for way in made.read:
            try:
                with np.errstate(all="ignore"):
                    yield way, ways[way](source)
            except NpmdaskError as error:
                yield way, error
    if not damage.startswith("flipped"):  # it reads as streams do, and takes longer
        try:
            yield "ingest", ingested(made, folder)
        except NpmdaskError as error:
            yield "ingest", error


def compare(made: Made, folder: Path, damage: str) -> int:
    """Read in every way; each finds zarr's values or refuses by name. How many refused."""
    refused, wanted = 0, None
    for way, found in readings(made, folder, damage):
        if isinstance(found, NpmdaskError):
            refused += 1
            text = str(found)
            content = not_finite(text)
            pointers = "indptr" in made.chunk and "indptr" in text
            column = "column" in text and "outside" in text and "indices" in made.chunk
            assert f"chunk {made.name} of " in text or content or pointers or column, (damage, way, text)
            continue
        if wanted is None:
            wanted = unpacked(by_zarr(made.path))  # zarr itself reads behind the end of some damaged chunks
        assert same(found, wanted, way), (damage, way)
    return refused


@pytest.mark.slow
@pytest.mark.parametrize("layout", often(LAYOUTS, *range(0, len(LAYOUTS), 2)))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_every_way_of_reading_finds_what_zarr_finds_or_names_the_chunk(layout: str, tmp_path: Path) -> None:
    folder = tmp_path / layout.replace(" ", "-").replace(",", "")
    folder.mkdir()
    made = LAYOUTS[layout](folder)
    assert compare(made, folder, "none") == 0
    count = refused = 0
    for name in [*BYTES, *KINDS]:
        with damaged(made, name) as really:
            if really:
                count, refused = count + 1, refused + (compare(made, folder, name) > 0)
    assert count >= LEAST and refused >= 12
    assert compare(made, folder, "none") == 0  # what was read before, and failed, has spoilt nothing


def test_these_are_more_than_400_damaged_stores() -> None:
    """A layout or a damage that is taken out does not go unnoticed."""
    assert len(LAYOUTS) * LEAST >= 400


REMOTE = [
    "plain",
    "blosc",
    "zstd",
    "gzip",
    "sharded blosc",
    "sharded, index unchecked",
    "2 blosc",
    "2 lz4",
    "csr indptr",
]


@pytest.mark.slow
@pytest.mark.parametrize("layout", REMOTE)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_objects_are_held_to_the_same(layout: str, tmp_path: Path) -> None:
    """Through obstore, as from a bucket: there is no file to look at before."""
    made = LAYOUTS[layout](tmp_path)
    node: Any = zarr.open(zarr.storage.ObjectStore(ObstoreFolder(str(made.path)), read_only=True), mode="r")
    np.testing.assert_array_equal(tiles(open_source(node)), by_zarr(made.path))
    refused = 0
    for name in [*BYTES, "missing"]:
        with damaged(made, name) as really:
            try:
                found = tiles(open_source(node)) if really else None
            except BadInputError as error:
                refused += 1
                assert f"chunk {made.name} of " in str(error) or "indptr" in str(error)
                continue
            assert found is None or same(found, by_zarr(made.path), "tiles")
    assert refused >= 9


@pytest.mark.parametrize("layout", ["plain", "2 plain"])
def test_a_sample_of_rows_is_held_to_the_size_of_the_file(layout: str, tmp_path: Path) -> None:
    """Its rows are read alone and have no checksum."""
    made = LAYOUTS[layout](tmp_path)
    for name in ("empty", "eight bytes less", "extended by junk", *KINDS):
        with damaged(made, name):
            reader: Any = open_source(made.path).reader
            with pytest.raises(BadInputError, match=rf"chunk {made.name} of "):
                reader.some_rows(1, range(0, 3))


def test_no_score_is_computed_of_a_chunk_that_was_not_read(tmp_path: Path) -> None:
    made = LAYOUTS["blosc"](tmp_path)
    stream_pca(iter([X]), 2, batch_rows=10, store=tmp_path / "s")
    with damaged(made, "empty"), pytest.raises(BadInputError, match=rf"chunk {made.name} of .* is truncated"):
        transform(tmp_path / "s", made.path, tmp_path / "scores.zarr")
    assert not (tmp_path / "scores.zarr").exists()


def test_metadata_in_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    made = LAYOUTS["ingested"](tmp_path)
    (made.path / "data" / "zarr.json").unlink()
    os.mkfifo(made.path / "data" / "zarr.json")
    with pytest.raises(BadInputError, match="is a FIFO or a device"):
        open_source(made.path)


@pytest.mark.slow
def test_a_row_pointer_that_is_lost_at_the_front_is_no_row_of_zeros(tmp_path: Path) -> None:
    """Zeros there rise from 0 as they should: the entries of all its rows went to the last one."""
    made = LAYOUTS["csr indptr"](tmp_path)
    (made.path / made.other).unlink()
    with pytest.raises(BadInputError, match=r"chunk c/0 of .*indptr is missing"):
        open_source(made.path)
