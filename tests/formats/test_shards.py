"""Chunks that ingest writes together in files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import zarr

from npmdask.core.execution.executor import Threads
from npmdask.core.operators import SparseGram
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError
from npmdask.formats.ingest import ingest
from npmdask.writers.sparse import SparseWriter
from tests.contract.test_parity import tiles
from tests.core.operators.test_operators import ignore
from tests.core.storage.test_shards import shard_files


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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
