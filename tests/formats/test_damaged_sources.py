"""Files of every format, damaged in many ways: `ingest` refuses with a sentence or stores what is there.

Never another exception, never a wait, never an allocation of what a header declares: the address space of this process
is limited while the damaged files are read.
"""

from __future__ import annotations

import io
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import scipy.io
import zarr
from scipy import sparse

from npmdask.errors import BadInputError, CommitError, NpmdaskError
from npmdask.formats import hdf5
from npmdask.formats.ingest import ingest

SEED, EACH, SECONDS, ROOM = 19, 14, 300, 3 * 2**30
X = np.random.default_rng(0).integers(-9, 9, (12, 7)).astype(float)


# Files of every format


def _h5ad(path: Path) -> None:
    matrix = sparse.csr_matrix(X)
    with h5py.File(path, "w") as file:
        group = file.create_group("X")
        group.attrs.update({"encoding-type": "csr_matrix", "shape": X.shape})
        for name in ("data", "indices", "indptr"):
            group[name] = getattr(matrix, name)


def _idx(path: Path) -> None:
    path.write_bytes(bytes([0, 0, 14, 2]) + np.array(X.shape, ">u4").tobytes() + X.astype(">f8").tobytes())


def _docword(path: Path) -> None:
    counts = sparse.csr_matrix(np.abs(X))
    lines = [f"{i + 1} {j + 1} {int(counts[i, j])}" for i, j in zip(*counts.nonzero(), strict=True)]
    path.write_text("\n".join([*map(str, X.shape), str(len(lines)), *lines]) + "\n")


def _hdf5(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=X, chunks=(5, 7), compression="gzip", fletcher32=True)


def _zarr(path: Path) -> None:
    array = zarr.create_array(path, shape=X.shape, dtype="f8", chunks=(5, 7))
    array[...] = X


WRITE: dict[str, Callable[[Path], Any]] = {
    "a.npy": lambda p: np.save(p, X),
    "fortran.npy": lambda p: np.save(p, np.asfortranarray(X)),
    "a.npz": lambda p: np.savez(p, x=X),
    "packed.npz": lambda p: np.savez_compressed(p, x=X),
    "sparse.npz": lambda p: sparse.save_npz(p, sparse.csr_matrix(X)),
    "stored.npz": lambda p: sparse.save_npz(p, sparse.csr_matrix(X), compressed=False),
    "a.csv": lambda p: np.savetxt(p, X, delimiter=","),
    "named.csv": lambda p: np.savetxt(p, X, delimiter=",", header=",".join("abcdefg"), comments=""),
    "a.parquet": lambda p: pa.parquet.write_table(pa.table({f"c{j}": X[:, j] for j in range(7)}), p),
    "a.h5": _hdf5,
    "a.h5ad": _h5ad,
    "a.mtx": lambda p: scipy.io.mmwrite(p, sparse.csr_matrix(X)),
    "dense.mtx": lambda p: scipy.io.mmwrite(p, X),
    "a.idx": _idx,
    "docword.txt": _docword,
    "a.zarr": _zarr,
}


# Damage


def _number(data: bytes, rng: np.random.Generator) -> bytes:
    """A run of digits made very large: of text headers, JSON, and what is written as text."""
    digits = [i for i, byte in enumerate(data[:4096]) if chr(byte).isdigit()]
    at = int(rng.choice(digits)) if digits else 0
    return data[:at] + b"1000000000000000" + data[at + 1 :]


def _with(data: bytes, at: int, change: Callable[[int], int]) -> bytes:
    return data[:at] + bytes([change(data[at])]) + data[at + 1 :]


def _noise(data: bytes, rng: np.random.Generator) -> bytes:
    new = bytearray(data)
    for at in rng.integers(0, len(data), 8):
        new[at] = int(rng.integers(256))
    return bytes(new)


DAMAGE: dict[str, Callable[[bytes, np.random.Generator], bytes]] = {
    "bit": lambda d, r: _with(d, int(r.integers(len(d))), lambda b: b ^ 1 << int(r.integers(8))),
    "head": lambda d, r: _with(d, int(r.integers(min(len(d), 128))), lambda b: int(r.integers(256))),
    "noise": _noise,
    "cut": lambda d, r: d[: int(r.integers(len(d)))],
    "hole": lambda d, r: (lambda i: d[:i] + b"\0" * 64 + d[i + 64 :])(int(r.integers(len(d)))),
    "junk": lambda d, r: d + bytes(r.integers(0, 256, 100, dtype=np.uint8)),
    "number": _number,
    "braces": lambda d, r: d.replace(b"'", b"{").replace(b"(", b"{{"),
    "carriage returns": lambda d, r: d.replace(b"\r\n", b"\n").replace(b"\n", b"\r"),
    "empty": lambda d, r: b"",
}  # fmt: skip


@contextmanager
def limited() -> Iterator[None]:
    """At most ROOM of address space beyond what is taken, and an alarm."""

    def late(*_: object) -> None:
        raise TimeoutError(f"an ingest of a few hundred bytes took more than {SECONDS} s")

    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    space, before = resource.getrlimit(resource.RLIMIT_AS), signal.signal(signal.SIGALRM, late)
    resource.setrlimit(resource.RLIMIT_AS, (taken + ROOM, space[1]))
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, space)


def stored(path: Path) -> np.ndarray:
    group: Any = zarr.open_group(path, mode="r")
    if "X" not in group:
        return np.asarray(group["data"][...])
    parts = tuple(group["X"][name][...] for name in ("data", "indices", "indptr"))
    return np.asarray(sparse.csr_matrix(parts, shape=group.attrs["npmdask"]["shape"]).toarray())


def ingested(source: Path, dest: Path) -> np.ndarray | None:
    """What is stored of a source, or None where it was refused; then nothing is left behind."""
    try:
        ingest(source, dest)
    except NpmdaskError as error:
        assert str(error) and "\n" not in str(error).strip()[:1]
        left = [p.name for p in dest.parent.iterdir() if p.name.startswith(dest.name)]
        assert not left, left
        return None
    values = stored(dest)
    shutil.rmtree(dest)
    return values


@pytest.fixture
def unwalked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a process for each of 700 files, which takes two minutes: test_hdf5_that_hangs.py is about that."""
    monkeypatch.setattr(hdf5, "require_readable", lambda path: None)


@pytest.mark.slow
@pytest.mark.usefixtures("unwalked")
@pytest.mark.parametrize("name", WRITE)
@pytest.mark.filterwarnings("ignore")
def test_a_damaged_file_is_refused_or_read_right(name: str, tmp_path: Path) -> None:
    rng = np.random.default_rng([SEED, *name.encode()])
    source, dest = tmp_path / name, tmp_path / "out.store"
    WRITE[name](source)
    whole = ingested(source, dest)
    assert whole is not None
    np.testing.assert_array_equal(np.abs(X) if name == "docword.txt" else X, whole)
    files = sorted(p for p in source.rglob("*") if p.is_file()) if source.is_dir() else [source]
    exact = name in ("a.npz", "packed.npz", "sparse.npz", "stored.npz")  # every byte of values is checksummed
    for damage, spoil in DAMAGE.items():
        for _ in range(1 if damage in ("empty", "braces", "carriage returns") else EACH):
            file = files[int(rng.integers(len(files)))]
            data = file.read_bytes()
            file.write_bytes(spoil(data, rng))
            with limited():
                found = ingested(source, dest)
            if found is not None and exact and found.shape == X.shape:
                np.testing.assert_array_equal(found, X, err_msg=damage)
            file.write_bytes(data)
    np.testing.assert_array_equal(ingested(source, dest), whole)


def test_a_header_of_braces_and_carriage_returns(tmp_path: Path) -> None:
    """The reported ones: a tokeniser's error, and lines that end as on old Macs, which are read."""
    np.save(tmp_path / "a.npy", X)
    data = (tmp_path / "a.npy").read_bytes()
    (tmp_path / "a.npy").write_bytes(data.replace(b"{'descr'", b"{{{{{{{{"))
    with pytest.raises(BadInputError, match="cannot be read"):
        ingest(tmp_path / "a.npy", tmp_path / "a.zarr")
    text = io.BytesIO()
    np.savetxt(text, X, delimiter=",", newline="\r")
    (tmp_path / "b.csv").write_bytes(text.getvalue())
    ingest(tmp_path / "b.csv", tmp_path / "b.zarr")
    np.testing.assert_array_equal(stored(tmp_path / "b.zarr"), X)


@pytest.mark.parametrize("size", ["1000000000000 7 3", "12 1000000000000000 3"])
def test_sizes_that_no_machine_holds_are_refused_at_once(size: str, tmp_path: Path) -> None:
    (tmp_path / "a.mtx").write_text(
        f"%%MatrixMarket matrix coordinate real general\n{size}\n1 1 2.0\n2 3 1.0\n3 3 1.5\n"
    )
    with limited(), pytest.raises(BadInputError, match=r"declares 10+ (rows|columns).*correct its"):
        ingest(tmp_path / "a.mtx", tmp_path / "a.zarr")
    (tmp_path / "docword.txt").write_text("\n".join([*size.split(), "1 1 2", "2 3 1", "3 3 1"]) + "\n")
    with limited(), pytest.raises(BadInputError, match=r"declares 10+ (rows|columns).*correct its"):
        ingest(tmp_path / "docword.txt", tmp_path / "d.zarr")


@pytest.mark.parametrize(
    "name", ["a.npy", "a.npz", "a.csv", "a.parquet", "a.h5", "a.mtx", "a.idx", "no suffix", "parts"]
)
def test_a_fifo_is_not_waited_for(name: str, tmp_path: Path) -> None:
    if name == "parts":
        (tmp_path / name).mkdir()
        os.mkfifo(tmp_path / name / "1.parquet")
    else:
        os.mkfifo(tmp_path / name)
    with limited(), pytest.raises(BadInputError, match=r"is a FIFO or a device.*write it to a file first"):
        ingest(tmp_path / name, tmp_path / "out.zarr")


@pytest.mark.slow
@pytest.mark.parametrize("chunks", [(5, 7), None])
def test_values_that_hdf5_never_stored_are_no_zeros(chunks: Any, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        array = file.create_dataset("x", shape=X.shape, dtype="f8", chunks=chunks)
        if chunks:
            array[:5] = X[:5]
    with pytest.raises(
        BadInputError, match=r"completely: (2 of its 3 chunks|672 of its 672 bytes) are not there.*--missing fill"
    ):
        ingest(tmp_path / "a.h5", tmp_path / "a.zarr")
    ingest(tmp_path / "a.h5", tmp_path / "a.zarr", missing="fill")
    np.testing.assert_array_equal(stored(tmp_path / "a.zarr")[:5], X[:5] if chunks else 0)


# The index of chunks in HDF5: the B-tree of its first format, which h5py writes unless it is asked for another one

INDEXED: dict[str, dict[str, Any]] = {
    "plain": {},
    "shuffled": {"shuffle": True},
    "gzip": {"compression": "gzip"},
    "checked": {"compression": "gzip", "shuffle": True, "fletcher32": True},
    "sparse": {"compression": "gzip"},
}


def _indexed(path: Path, layout: str) -> tuple[range, int]:
    """Write X; the bytes of the index of its values, and the length of an entry: size, mask, offsets, address."""
    chunk, wide = ((20,), 32) if layout == "sparse" else ((5, 7), 40)
    with h5py.File(path, "w", libver="earliest") as file:
        if layout == "sparse":
            matrix, group = sparse.csr_matrix(X), file.create_group("X")
            group.attrs.update({"encoding-type": "csr_matrix", "shape": X.shape})
            group["indices"], group["indptr"] = matrix.indices, matrix.indptr
            group.create_dataset("data", data=matrix.data, chunks=chunk, **INDEXED[layout])
        else:
            file.create_dataset("x", data=X, chunks=chunk, **INDEXED[layout])
    data = path.read_bytes()
    at = data.index(b"TREE\1")
    return range(at, at + 24 + wide * data[at + 6] + wide - 8), wide


def _written(path: Path, layout: str, at: int, new: bytes) -> None:
    """X once more, with ``new`` at byte ``at`` of its index."""
    index, _ = _indexed(path, layout)
    with open(path, "r+b") as file:
        file.seek(index.start + at)
        file.write(new)


@pytest.mark.slow
@pytest.mark.usefixtures("unwalked")
@pytest.mark.parametrize("layout", INDEXED)
def test_a_damaged_index_of_chunks_is_refused_or_read_right(layout: str, tmp_path: Path) -> None:
    """Unfiltered values have nothing that tells them from what else is in the file: their addresses are left alone."""
    rng = np.random.default_rng([SEED, *layout.encode()])
    source, refused = tmp_path / ("a.h5ad" if layout == "sparse" else "a.h5"), 0
    index, wide = _indexed(source, layout)
    whole = source.read_bytes()
    for flip in range(60):
        data, at = bytearray(whole), int(rng.integers(len(index)))
        places = range(at, at + 1) if flip % 3 else range(at, min(at + 8, len(index)))
        if layout in ("plain", "shuffled") and any(i >= 24 and (i - 24) % wide >= wide - 8 for i in places):
            continue
        for i in places:
            data[index[i]] = data[index[i]] ^ 1 << int(rng.integers(8)) if flip % 3 else 0
        source.write_bytes(data)
        with limited():
            found = ingested(source, tmp_path / "out.zarr")
        refused += found is None
        if found is not None:
            np.testing.assert_array_equal(found, X, err_msg=f"byte {at} of the index")
    assert refused >= 20


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "at", "new", "said"),
    [
        ("gzip", 24 + 40 + 24, b"\x08", r"chunk at \(5, 0\) is listed and not found .* read it as 0\.0"),
        ("checked", 24, b"\2\0\0\0", r"chunk at \(0, 0\) has 2 bytes in the file"),  # HDF5 2.0 crashes on it
        ("checked", 24 + 4, b"\2", r"chunk at \(0, 0\) has \d+ bytes in the file"),  # not unpacked, its checksum right
        ("plain", 24, b"\x10", r"chunk at \(0, 0\) has 272 bytes in the file"),
        ("plain", 24 + 40 + 39, b"\1", r"chunk at \(5, 0\) ends at byte \d+, behind the end of the file"),
    ],
)
def test_what_is_wrong_with_an_index_is_said(layout: str, at: int, new: bytes, said: str, tmp_path: Path) -> None:
    """Also where chunks may be missing; but what is not found is missing then, and may be."""
    source = tmp_path / "a.h5"
    _written(source, layout, at, new)
    for missing in ("error", "fill")[: 1 if "not found" in said else 2]:
        with pytest.raises(BadInputError, match=rf"the index of dataset .* is damaged: its {said}.*from a backup"):
            ingest(source, tmp_path / "a.zarr", missing=missing)


@pytest.mark.slow
def test_two_chunks_in_one_place_are_refused(tmp_path: Path) -> None:
    index, wide = _indexed(tmp_path / "a.h5", "plain")
    first = (tmp_path / "a.h5").read_bytes()[index.start + 24 + 32 :][:8]
    _written(tmp_path / "a.h5", "plain", 24 + wide + 32, first)
    with pytest.raises(BadInputError, match=r"begins at byte \d+, within another one; restore"):
        ingest(tmp_path / "a.h5", tmp_path / "a.zarr")


@pytest.mark.slow
def test_chunks_of_nothing_but_the_fill_value_are_read(tmp_path: Path) -> None:
    """They were written: HDF5 finds them."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=np.zeros((12, 7)), chunks=(5, 4), compression="gzip")
    ingest(tmp_path / "a.h5", tmp_path / "a.zarr")
    np.testing.assert_array_equal(stored(tmp_path / "a.zarr"), np.zeros((12, 7)))


@pytest.mark.parametrize("name", ["a.npz", "stored.npz"])
@pytest.mark.parametrize("sought", [False, True])
def test_the_checksum_of_a_stored_member_is_compared(
    name: str, sought: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``sought``: as from Python 3.12 on, where zipfile gives up its own comparison."""
    WRITE[name](tmp_path / name)
    if sought:
        monkeypatch.setattr(zipfile.ZipExtFile, "_update_crc", lambda *_: None)
    data = bytearray((tmp_path / name).read_bytes())
    at = data.index((X[X != 0] if name == "stored.npz" else X).tobytes()[:64])
    data[at + 6] ^= 8
    (tmp_path / name).write_bytes(data)
    with pytest.raises(BadInputError, match=r"(checksum of|CRC-32 for file) .*npy"):
        ingest(tmp_path / name, tmp_path / "out.zarr")


FULL = """
import json, resource, signal, sys
from npmdask.errors import NpmdaskError
from npmdask.formats.ingest import ingest
if sys.argv[3] == "limit":
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
try:
    ingest(sys.argv[1], sys.argv[2])
    print(json.dumps(["done", ""]))
except NpmdaskError as error:
    print(json.dumps([type(error).__name__, str(error)]))
"""
TMPFS = 'mkdir -p {0} && mount -t tmpfs -o size=200k,nr_inodes={1} tmpfs {0} && exec "$@"'


def _private_mounts() -> bool:
    return shutil.which("unshare") is not None and not subprocess.run(
        ["unshare", "-m", "true"], capture_output=True, check=False
    ).returncode  # fmt: skip


def _filled(tmp_path: Path, how: str, inodes: int = 0) -> list[str]:
    rng = np.random.default_rng(1)
    np.save(tmp_path / "a.npy", rng.standard_normal((4000, 20)))
    full = tmp_path / "full"
    full.mkdir()
    command = [sys.executable, "-c", FULL, str(tmp_path / "a.npy"), str(full / "out.zarr"), how]
    if how == "tmpfs":
        command = ["unshare", "-m", "sh", "-c", TMPFS.format(full, inodes), "sh", *command]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert not done.stderr  # nor what asyncio says at the end of a write that none waited for
    return list(json.loads(done.stdout))


@pytest.mark.slow
def test_a_file_that_cannot_grow_is_said_to_be_kept(tmp_path: Path) -> None:
    """The limit on file sizes acts as a quota; the same ingest goes on when it is gone."""
    kind, said = _filled(tmp_path, "limit")
    assert kind == CommitError.__name__
    assert "out.zarr.partial" in said and "continues from what is already written" in said
    assert (tmp_path / "full" / "out.zarr.partial").is_dir()  # as it is said
    ingest(tmp_path / "a.npy", tmp_path / "full" / "out.zarr")
    assert [p.name for p in (tmp_path / "full").iterdir()] == ["out.zarr"]


@pytest.mark.slow
@pytest.mark.skipif(not _private_mounts(), reason="mounting a small tmpfs needs root and unshare")
@pytest.mark.parametrize(
    "inodes", [0, 2, 5, 9, 13, *(pytest.param(n, marks=pytest.mark.heavy) for n in (3, 4, 6, 7, 8, 10, 11, 12))]
)
def test_a_disk_that_is_really_full(inodes: int, tmp_path: Path) -> None:
    """Bytes or inodes run out at every point of an ingest: it is said what remains, never "nothing was changed"."""
    kind, said = _filled(tmp_path, "tmpfs", inodes)
    assert kind == CommitError.__name__
    assert "No space left" in said and ".partial" in said
