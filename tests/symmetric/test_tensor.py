"""Packed tensors: places, what is written and read back, kills, sources that are not symmetric, damage, doors."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tracemalloc
from itertools import permutations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import npmdask
from npmdask.cli.main import main
from npmdask.core.storage.readers.dense import ReadStats
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError
from npmdask.formats.ingest import ingest
from npmdask.manage.status import inspect
from npmdask.symmetric.reader import (
    TensorReader,
    choose_side,
    multiplicity,
    open_packed_tensor,
    packed_tensor_bytes,
    place_of,
    places,
    tetrahedral_number,
    unit_of,
)
from npmdask.symmetric.writer import ORDERS, TensorWriter, in_order
from npmdask.synthetic import generate
from npmdask.writers import journal


def symmetric(d: int, dtype: str = "f8", seed: int = 0) -> np.ndarray:
    """Symmetric bit for bit."""
    values = np.random.default_rng(seed).integers(-50, 50, (d, d, d))
    return in_order(values, (0, 0, 0)).astype(dtype) / (np.array(1, dtype) if dtype[0] in "iu" else np.array(7, dtype))


def whole(reader: TensorReader) -> np.ndarray:
    """All d x d x d entries."""
    found, record = np.empty(reader.shape, reader.dtype), ReadStats()
    for place, values in reader.blocks(range(reader.units), record):
        for order in ORDERS:
            found[tuple(reader.span(place[axis]) for axis in order)] = values.transpose(order)
    assert (record.bytes_read, record.chunks) == (reader.nbytes, reader.units)
    return found


def store(path: Path, a: np.ndarray, side: int, **options: Any) -> Path:
    np.save(path.with_suffix(".npy"), a)
    return ingest(path.with_suffix(".npy"), path, kind="tensor", chunks=(side,) * 3, **options).dest


def tree(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


def refused(tmp_path: Path, source: Path, words: str, **options: Any) -> None:
    with pytest.raises(BadInputError, match=words):
        ingest(source, tmp_path / "never", kind="tensor", **options)
    assert not list(tmp_path.glob("never*"))


# Places


@pytest.mark.slow
@given(n=st.integers(1, 25))
def test_positions_count_the_unique_blocks_in_order(n: int) -> None:
    sorted_places = [place for place in product(range(n), repeat=3) if place[0] <= place[1] <= place[2]]
    assert [place_of(unit, n) for unit in range(tetrahedral_number(n))] == sorted_places
    assert [unit_of(*place, n) for place in sorted_places] == list(range(len(sorted_places)))
    assert [tuple(place) for place in places(n).tolist()] == sorted_places
    assert sum(multiplicity(place) for place in sorted_places) == n**3


def test_positions_are_exact_in_large_grids() -> None:
    n = 10**9
    for i in (0, 1, n // 2, n - 2, n - 1):
        for j in {i, min(i + 1, n - 1), n - 1}:
            for k in {j, min(j + 1, n - 1), n - 1}:
                assert place_of(unit_of(i, j, k, n), n) == (i, j, k)


@pytest.mark.parametrize("d", [1, 2, 7, 100, 101, 200, 999, 1000, 5000])
def test_chosen_blocks_are_small_and_hardly_filled_up(d: int) -> None:
    for itemsize in (4, 8):
        side = choose_side(d, itemsize)
        assert side**3 * itemsize <= 8e6 and (d < 100 or -(-d // side) >= 5)
        assert side * -(-d // side) < d + -(-d // side)


def test_ten_blocks_a_side_are_a_fifth_of_the_bytes() -> None:
    assert packed_tensor_bytes(1000, 100, 8) / (1000**3 * 8) == 0.22


# Round trips


@pytest.mark.slow
@settings(deadline=None, max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    d=st.integers(1, 13),
    side=st.integers(2, 15),
    dtype=st.sampled_from(["f4", "f8", "i4", "u1"]),
    order=st.sampled_from("CF"),
    chunks=st.one_of(st.none(), st.tuples(*[st.integers(1, 13)] * 3)),
    seed=st.integers(0, 9),
)
def test_what_is_stored_is_the_tensor(
    tmp_path_factory: Any, d: int, side: int, dtype: str, order: Any, chunks: Any, seed: int
) -> None:
    folder, a = tmp_path_factory.mktemp("tensor"), symmetric(d, dtype, seed)
    source = folder / ("a.npy" if chunks is None else "a.zarr")
    if chunks is None:
        np.save(source, np.asarray(a, order=order))
    else:
        cut = tuple(min(c, d) for c in chunks)
        zarr.create_array(source, shape=a.shape, dtype=a.dtype, chunks=cut)[...] = a
    ingest(source, folder / "t", kind="tensor", chunks=(side,) * 3, missing="fill")
    opened = open_source(folder / "t")
    assert isinstance(opened.reader, TensorReader)
    assert (opened.kind, opened.shape, opened.dimension) == ("tensor", (d, d, d), d)
    assert (whole(opened.reader) == a).all()
    np.testing.assert_allclose(opened.squared_frobenius, (a.astype("f8") ** 2).sum(), rtol=1e-13)
    again = ingest(folder / "t", folder / "again", kind="tensor", chunks=(3, 3, 3))
    assert (whole(open_source(again.dest).reader) == a).all()  # type: ignore[arg-type]
    held = open_source(a, "tensor").reader
    assert isinstance(held, TensorReader) and (whole(held) == a).all()
    shutil.rmtree(folder)


@pytest.mark.slow
def test_a_column_major_file_is_read_in_its_own_order(tmp_path: Path) -> None:
    a = symmetric(13)
    assert (
        tree(store(tmp_path / "f", np.asfortranarray(a), 4))["data/c.3.0.0.0"]
        == (tree(store(tmp_path / "c", a, 4))["data/c.3.0.0.0"])
    )
    assert (whole(open_source(tmp_path / "f").reader) == a).all()  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize(("d", "side"), [(12, 4), (13, 4), (7, 7), (5, 1), (1, 1)])
def test_readers_of_every_way_give_the_same_blocks(tmp_path: Path, d: int, side: int) -> None:
    a, n = symmetric(d), -(-d // side)
    for name, compressors in (
        ("direct", None),
        ("decoded", zarr.codecs.ZstdCodec()),
        ("zarr", zarr.codecs.GzipCodec()),
    ):
        shape = (tetrahedral_number(n), side, side, side)
        array = zarr.create_array(
            tmp_path / name,
            shape=shape,
            chunks=(1, *shape[1:]),
            dtype="f8",
            compressors=compressors,
            config={"write_empty_chunks": True},
        )
        for unit, place in enumerate(places(n).tolist()):
            block = a[tuple(slice(i * side, (i + 1) * side) for i in place)]
            array[unit] = np.pad(block, [(0, side - m) for m in block.shape])
        reader = open_packed_tensor(zarr.open_array(tmp_path / name, mode="r"), d)
        assert reader.dense.access.way == name
        assert (whole(reader) == a).all()
        assert (reader.side, reader.grid, reader.units, reader.chunks) == (side, n, shape[0], (side,) * 3)


@pytest.mark.slow
def test_blocks_are_indexed_padded_and_a_fifth_of_the_bytes(tmp_path: Path) -> None:
    a = symmetric(19)
    group = zarr.open_group(store(tmp_path / "t", a, 2), mode="r")
    assert (group["blocks"][...] == places(10)).all()
    assert group["data"][-1, 1:].any() == group["data"][-1, :, 1:].any() == group["data"][-1, :, :, 1:].any() == False  # noqa: E712
    assert packed_tensor_bytes(20, 2, 8) == group["data"].nbytes == 0.22 * 20**3 * 8


# Symmetry


CLASSES = {"I<J<K": (1, 6, 11), "I=J<K": (1, 2, 10), "I<J=K": (1, 9, 10), "I=J=K": (0, 1, 3), "two equal": (1, 1, 9)}


@pytest.mark.slow
@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("dtype", ["f8", "f4", "i4"])
def test_an_entry_unlike_any_of_its_mirror_images_is_named(tmp_path: Path, name: str, dtype: str) -> None:
    clean = symmetric(13, dtype)
    for wrong in sorted(set(permutations(CLASSES[name]))):
        a = clean.copy()
        a[wrong] += a.dtype.type(1) if dtype[0] == "i" else a.dtype.type(1e-4)
        np.save(tmp_path / "a.npy", np.asfortranarray(a) if dtype == "f4" else a)
        indices = rf"\({wrong[0]}, {wrong[1]}, {wrong[2]}\)"
        refused(tmp_path, tmp_path / "a.npy", rf"entry {indices} is {a[wrong]!s}.*--symmetrise", chunks=(4, 4, 4))
        with pytest.raises(BadInputError, match="not symmetric"):
            open_source(a, "tensor")


@pytest.mark.slow
@pytest.mark.parametrize("side", [1, 2, 9])
@pytest.mark.parametrize("dtype", ["f8", "f4", "g"])
def test_rounding_of_einsum_is_forgiven_and_mended(tmp_path: Path, dtype: str, side: int) -> None:
    v = np.random.default_rng(0).standard_normal((9, 4)).astype(dtype)
    a = np.einsum("ir,jr,kr->ijk", v, v, v)
    if dtype == "g":  # what is rounding of a longdouble that was computed in float64; it is stored as float64
        a = np.einsum("ir,jr,kr->ijk", *[v.astype("f8")] * 3).astype("g")
    assert (a != a.transpose(2, 0, 1)).any(), "einsum rounds otherwise in another order"
    found = whole(open_source(store(tmp_path / "t", a, side)).reader)  # type: ignore[arg-type]
    i, j, k = np.sort(np.indices(a.shape), axis=0)
    assert (found == a[i, j, k]).all(), "of the mirror images the one whose indices do not fall is kept"


@pytest.mark.slow
def test_the_mean_over_the_orders_is_stored_on_request(tmp_path: Path) -> None:
    a = np.random.default_rng(0).standard_normal((13, 13, 13))
    path = store(tmp_path / "t", a, 5, symmetrise=True)
    found = whole(open_source(path).reader)  # type: ignore[arg-type]
    np.testing.assert_allclose(found, sum(a.transpose(order) for order in ORDERS) / 6, rtol=1e-13, atol=1e-15)
    assert all((found == found.transpose(order)).all() for order in ORDERS)
    assert zarr.open_group(path, mode="r").attrs["npmdask"]["symmetrised"] is True
    counts = store(tmp_path / "c", np.arange(27).reshape(3, 3, 3), 2, symmetrise=True)
    assert open_source(counts).reader.dtype == np.float64
    np.save(tmp_path / "a.npy", a)
    command = ["ingest", str(tmp_path / "a.npy"), str(tmp_path / "cli"), "--kind", "tensor", "--chunks", "5", "5", "5"]
    assert main([*command, "--symmetrise", "--quiet"]) == 0
    assert open_source(tmp_path / "cli").fingerprint == open_source(path).fingerprint


@pytest.mark.parametrize("place", [(1, 7, 11), (11, 7, 1), (3, 3, 3)])
def test_non_finite_entries_are_named(tmp_path: Path, place: tuple[int, int, int]) -> None:
    a = symmetric(13)
    a[place] = np.nan
    np.save(tmp_path / "a.npy", a)
    for symmetrise in (False, True):
        words = rf"nan at entry \({place[0]}, {place[1]}, {place[2]}\)"
        refused(tmp_path, tmp_path / "a.npy", words, chunks=(4, 4, 4), symmetrise=symmetrise)


def test_what_is_no_cube_is_refused_with_a_remedy(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones((4, 4, 5)))
    refused(tmp_path, tmp_path / "a.npy", r"\(4, 4, 5\), which is not a cube: .*\(d x d x d\)")
    np.save(tmp_path / "m.npy", np.ones((5, 4, 4)))
    refused(tmp_path, tmp_path / "m.npy", "kind='matrices'")
    np.save(tmp_path / "r.npy", np.ones((4, 4)))
    refused(tmp_path, tmp_path / "r.npy", "leave kind out")
    np.save(tmp_path / "t.npy", symmetric(4))
    for chunks in ((2, 2), (2, 2, 3), (0, 0, 0)):
        refused(tmp_path, tmp_path / "t.npy", "three equal numbers, for example", chunks=chunks)
    refused(tmp_path, tmp_path / "t.npy", "unique blocks", layout="packed")
    refused(tmp_path, tmp_path / "t.npy", "1e\\+300.*at entry|at entry .*cannot be stored", dtype="u1")
    with pytest.raises(BadInputError, match="symmetrise applies only to kind='tensor'"):
        ingest(tmp_path / "r.npy", tmp_path / "r", symmetrise=True)
    with pytest.raises(BadInputError, match="kind='tensor'"):
        ingest(tmp_path / "t.npy", tmp_path / "r")
    big = np.full((3, 3, 3), 1e308)
    np.save(tmp_path / "big.npy", big)
    refused(tmp_path, tmp_path / "big.npy", "overflows", symmetrise=True)
    assert open_source(store(tmp_path / "b", big, 2)).squared_frobenius is None


# Reading the source


@pytest.mark.slow
@pytest.mark.parametrize("chunks", [(1, 12, 12), (12, 12, 1), (12, 1, 5), (4, 4, 4), (2, 4, 12), (5, 5, 5)])
def test_a_chunk_is_read_twice_at_most(
    tmp_path: Path, chunks: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    a = symmetric(12)
    source = zarr.create_array(tmp_path / "a.zarr", shape=a.shape, dtype=a.dtype, chunks=chunks, compressors=None)
    source[...] = a
    met = [0]
    read = zarr.Array.__getitem__

    def counted(self: Any, box: Any) -> Any:
        if self.shape == a.shape:
            spans = zip(box, chunks, strict=True)
            met[0] += int(np.prod([min(-(-s.stop // c) * c, 12) - s.start // c * c for s, c in spans]))
        return read(self, box)

    monkeypatch.setattr(zarr.Array, "__getitem__", counted)
    ingest(tmp_path / "a.zarr", tmp_path / "t", kind="tensor", chunks=(4, 4, 4))
    assert a.size <= met[0] <= 2 * a.size
    assert (whole(open_source(tmp_path / "t").reader) == a).all()  # type: ignore[arg-type]
    assert not list(tmp_path.glob("t.partial*"))


def test_a_chunk_that_the_source_lost_is_named(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "a.zarr", shape=(6, 6, 6), dtype="f8", chunks=(3, 3, 3))[...] = symmetric(6) + 1
    (tmp_path / "a.zarr" / "c" / "1" / "0" / "1").unlink()
    for side in (3, 2):
        refused(tmp_path, tmp_path / "a.zarr", "c/1/0/1 .*missing='fill'", chunks=(side,) * 3)


MEMORY = 8  # blocks


@pytest.mark.slow
@pytest.mark.parametrize("form", ["npy", "zarr"])
def test_memory_of_ingest_is_that_of_a_few_blocks(tmp_path: Path, form: str) -> None:
    d, side = 96, 16
    a = in_order(np.random.default_rng(0).standard_normal((d, d, d)), (0, 0, 0))
    if form == "npy":
        np.save(tmp_path / "a.npy", a)
    else:  # one plane a chunk: through a temporary file
        cut: dict[str, Any] = {"chunks": (1, d, d), "compressors": None}
        zarr.create_array(tmp_path / "a.zarr", shape=a.shape, dtype=a.dtype, **cut)[...] = a
    del a
    tracemalloc.start()
    ingest(tmp_path / f"a.{form}", tmp_path / "t", kind="tensor", chunks=(side,) * 3)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    plane = d * d * 8 if form == "zarr" else 0
    assert peak < MEMORY * (side**3 * 8 + plane) + 2**20 < d**3 * 8 / 3
    shutil.rmtree(tmp_path)


# Kills and damage


@pytest.mark.slow
def test_an_interrupted_write_goes_on_to_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "JOURNAL_BYTES", 1)
    a = symmetric(13)
    expected = tree(store(tmp_path / "whole", a, 4))

    class Stopped(Exception):
        pass

    for last in (1, 7, 19, 20):

        def stop(done: int, _total: Any, _bytes: int, last: int = last) -> None:
            assert done <= last
            if done == last:
                raise Stopped

        with pytest.raises(Stopped):
            ingest(tmp_path / "whole.npy", tmp_path / "cut", kind="tensor", chunks=(4, 4, 4), progress=stop)
        assert not (tmp_path / "cut").exists()
    done: list[int] = []
    ingest(
        tmp_path / "whole.npy", tmp_path / "cut", kind="tensor", chunks=(4, 4, 4), progress=lambda n, *_: done.append(n)
    )
    assert done == [], "all blocks were written: only the record was missing"
    assert tree(tmp_path / "cut") == expected


KILL = """
import os, signal, sys
from npmdask.formats import ingest
from npmdask.writers import journal
journal.JOURNAL_BYTES = 1
def progress(done, blocks, size):
    if done >= 9:
        os.kill(os.getpid(), signal.SIGKILL)
ingest.ingest(sys.argv[1], sys.argv[2], kind="tensor", chunks=(4, 4, 4), progress=progress)
"""


@pytest.mark.slow
def test_a_killed_ingest_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    expected = tree(store(tmp_path / "whole", symmetric(13), 4))
    command = [sys.executable, "-c", KILL, str(tmp_path / "whole.npy"), str(tmp_path / "cut")]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert (tmp_path / "cut.partial").is_dir() and not (tmp_path / "cut").exists()
    done: list[int] = []
    ingest(
        tmp_path / "whole.npy", tmp_path / "cut", kind="tensor", chunks=(4, 4, 4), progress=lambda n, *_: done.append(n)
    )
    assert done[0] == 10, "it went on behind the last block"
    assert tree(tmp_path / "cut") == expected


def test_a_source_that_changed_is_not_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "JOURNAL_BYTES", 1)
    common: dict[str, Any] = {"size": 13, "dtype": np.dtype("f8"), "side": 4}
    TensorWriter(tmp_path / "t", identity={"source": 1}, **common).write(np.ones((4, 4, 4)))
    assert TensorWriter(tmp_path / "t", identity={"source": 1}, **common).next_unit == 1
    writer = TensorWriter(tmp_path / "t", identity={"source": 2}, **common)
    assert writer.next_unit == 0
    with pytest.raises(BadInputError, match="ended after 0 of 20 blocks"):
        writer.finish()


@pytest.mark.slow
def test_a_lost_rotten_or_short_chunk_is_named(tmp_path: Path) -> None:
    path = store(tmp_path / "t", symmetric(13), 4)
    chunk = path / "data" / "c.7.0.0.0"
    good = chunk.read_bytes()
    for damage, words in (
        (lambda: chunk.write_bytes(good[:99] + bytes([good[99] ^ 1]) + good[100:]), "c.7.0.0.0 .*is corrupt"),
        (lambda: chunk.write_bytes(good[:100]), "c.7.0.0.0 .*truncated"),
        (lambda: chunk.unlink(), "c.7.0.0.0 .*missing"),
    ):
        damage()
        with pytest.raises(BadInputError, match=words):
            whole(open_source(path).reader)  # type: ignore[arg-type]
        refused(tmp_path, path, words, chunks=(5, 5, 5))


def test_a_damaged_record_is_said(tmp_path: Path) -> None:
    path = store(tmp_path / "t", symmetric(13), 4)
    group = zarr.open_group(path, mode="a")
    record = dict(group.attrs["npmdask"])
    group.attrs["npmdask"] = record | {"shape": [17, 17, 17]}
    with pytest.raises(BadInputError, match="does not hold a packed tensor of size 17"):
        open_source(path)
    group.attrs["npmdask"] = record | {"shape": [13, 13, 14]}
    with pytest.raises(BadInputError, match=r"holds 13 x 13 x 13, its record says \(13, 13, 14\)"):
        open_source(path)
    group.attrs["npmdask"] = record
    (path / "blocks" / "c" / "0" / "0").unlink()
    with pytest.raises(BadInputError, match=r"blocks of .* is damaged or incomplete"):
        open_source(path)


# Doors


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["samples", "symmetric", "matrix", "sparse", "matrices"])
def test_a_tensor_is_nothing_else(tmp_path: Path, kind: str) -> None:
    path = store(tmp_path / "t", symmetric(6), 2)
    with pytest.raises(BadInputError, match=r"tensor of order three.*use kind = 'tensor'"):
        open_source(path, kind)
    with pytest.raises(BadInputError, match=r"--kind tensor"):
        ingest(path, tmp_path / "again", kind=kind)


@pytest.mark.slow
def test_methods_for_matrices_say_what_tensors_are_for(tmp_path: Path) -> None:
    path = store(tmp_path / "t", symmetric(6), 2)
    with pytest.raises(BadInputError, match="tensor power methods"):
        npmdask.top_k(path, 2, algorithm="power")
    with pytest.raises(BadInputError, match="tensor power methods"):
        npmdask.stream_pca(path, 2)


def test_other_data_are_no_tensor(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((6, 4)))
    with pytest.raises(BadInputError, match=r"\(6, 4\): kind = 'tensor' is for"):
        open_source(ingest(tmp_path / "x.npy", tmp_path / "x").dest, "tensor")
    refused(tmp_path, tmp_path / "x", "store of kind 'samples'")
    zarr.create_array(tmp_path / "cut.zarr", shape=(6, 6, 6), dtype="f8", chunks=(6, 6, 2))[...] = symmetric(6)
    with pytest.raises(BadInputError, match=r"6 x 6 x 2, which are not cubes.*--kind tensor"):
        open_source(tmp_path / "cut.zarr", "tensor")
    zarr.create_group(tmp_path / "g.zarr").create_array("t", shape=(6, 6, 6), dtype="f8", chunks=(3, 3, 3))
    with pytest.raises(BadInputError, match=r"--kind tensor"):
        open_source(tmp_path / "g.zarr", "tensor")
    with pytest.raises(BadInputError, match=r"--kind matrices` or `tensor`"):
        open_source(tmp_path / "cut.zarr")
    with pytest.raises(BadInputError, match="kind='tensor'"):
        open_source(symmetric(6))
    with pytest.raises(BadInputError, match="not a cube"):
        open_source(np.ones((2, 3, 3)), "tensor")


@pytest.mark.slow
def test_inspect_says_what_a_tensor_store_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["generate", "tensor", str(tmp_path / "t"), "--columns", "25", "--rank", "3", "--chunks", "5", "5", "5"]
    assert main([*command, "--quiet"]) == 0
    assert "25 x 25 x 25 float32, kind tensor" in capsys.readouterr().out
    facts = inspect(tmp_path / "t")
    expected = {"kind": "tensor", "order": 3, "dimension": 25, "block": 5, "chunk_grid": [5, 5, 5], "truth_rank": 3}
    assert facts | expected == facts and facts["stored"] == "the 35 unique blocks of 125"
    assert main(["inspect", str(tmp_path / "t")]) == 0


# Planted problems


@pytest.mark.slow
@pytest.mark.parametrize("orthogonal", [True, False])
@pytest.mark.parametrize("noise", ["none", "gaussian", "round", "weak", "adversarial"])
def test_the_planted_tensor_and_its_noise(tmp_path: Path, noise: str, orthogonal: bool) -> None:
    d, k, level = 31, 3, 0.25
    options: dict[str, Any] = {"noise": noise, "noise_level": level, "orthogonal": orthogonal, "smallest": 0.5}
    generate(tmp_path / "t", problem="tensor", columns=d, rank=k, dtype="float64", chunks=(7, 7, 7), **options)
    source = open_source(tmp_path / "t")
    assert source.truth is not None
    a, v, weights = whole(source.reader), source.truth.basis, source.truth.values  # type: ignore[arg-type]
    np.testing.assert_allclose(weights, [3, 1.75, 0.5])
    np.testing.assert_allclose(np.linalg.norm(v, axis=0), 1)
    assert np.allclose(v.T @ v, np.eye(k)) == orthogonal
    rest = a - np.einsum("r,ir,jr,kr->ijk", weights, v, v, v)
    i, j, k_ = np.indices(a.shape)
    distinct = rest[(i <= j) & (j <= k_)]
    if noise == "none":
        np.testing.assert_allclose(rest, 0, atol=1e-15)
    elif noise == "gaussian":
        np.testing.assert_allclose([distinct.mean(), distinct.std()], [0, level], atol=4 * level / len(distinct) ** 0.5)
        assert len(np.unique(distinct)) == len(distinct)
    elif noise == "round":
        np.testing.assert_allclose(np.abs(distinct), level)
        assert abs(distinct.mean()) < 4 * level / len(distinct) ** 0.5
    else:
        along = np.abs(np.einsum("ijk,ir->rjk", rest, v)).max()
        assert (along < 1e-15) if noise == "weak" else (along > 0.05)
        np.testing.assert_allclose(spectral_norm(rest), level, rtol=1e-6)


def spectral_norm(a: np.ndarray) -> float:
    """The best of shifted power iterations from 50 starts."""
    u = np.random.default_rng(0).standard_normal((len(a), 50))
    for _ in range(200):
        u /= np.linalg.norm(u, axis=0)
        u = np.einsum("ijk,jl,kl->il", a, u, u, optimize=True) + u
    u /= np.linalg.norm(u, axis=0)
    return float(np.einsum("ijk,il,jl,kl->l", a, u, u, u, optimize=True).max())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rows": 9}, "leave rows out"),
        ({"noise": "gausian"}, "unknown noise 'gausian'.*gaussian"),
        ({"spacing": "log"}, "unknown spacing"),
        ({"largest": 1.0, "smallest": 2.0}, "give 0 < smallest <= largest"),
        ({"noise": "weak", "rank": 10}, "take rank below 10"),
        ({"chunks": (2, 3, 2)}, "three equal numbers"),
        ({"noise_level": -1.0}, "at least 0"),
        ({"side": 11}, "from 1 to 10"),
    ],
)
def test_planted_tensors_that_make_no_sense_are_refused(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInputError, match=words):
        generate(tmp_path / "t", problem="tensor", columns=10, **({"rank": 3} | options))
    assert not list(tmp_path.iterdir())
