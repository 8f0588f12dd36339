"""Few sparse rows with many columns: ``A A^T`` by pairs of entries, in as many parts as memory has room for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp
import zarr

import npmdask
from npmdask.core import features
from npmdask.core.execution.memory import tree_rss
from npmdask.core.operators import row_gram
from npmdask.core.runs.automatic import posed
from npmdask.core.runs.problem import Request
from npmdask.core.runs.resources import Resources
from npmdask.core.storage.readers.sparse import CsrReader
from npmdask.core.storage.source import Source, open_source
from npmdask.errors import BadInputError, RefusedError
from tests.core.operators.test_operators import write_csr

ROW_GRAM: dict[str, Any] = {"algorithm": "row-gram", "threads": 1}


def planted(m: int, d: int, share: float, seed: int = 0) -> sp.csr_matrix:
    """Entries of four falling directions and noise."""
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal((m, 4)) * [8, 4, 2, 1]) @ rng.standard_normal((4, d)) + rng.standard_normal((m, d))
    return sp.csr_matrix(np.where(rng.random((m, d)) < share, x, 0))


@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("dtype", ["f4", "f8", "i2"])
def test_two_passes_are_enough(center: bool, dtype: str, tmp_path: Path) -> None:
    x = sp.csr_matrix(np.rint(10 * planted(60, 900, 0.1).toarray()).astype(dtype))
    path = write_csr(tmp_path / "x.zarr", x, 700)
    found = npmdask.top_k(path, 4, center=center, **ROW_GRAM)
    a = x.toarray().astype(float)
    values = np.linalg.svd(a - center * a.mean(axis=0), compute_uv=False)
    assert found.converged and found.total_data_passes == 2
    np.testing.assert_allclose(found.values, values[:4], rtol=1e-11)
    cut = npmdask.top_k(path, 4, center=center, options={"parts": 7}, **ROW_GRAM)
    assert cut.bytes_read > 6 * found.bytes_read and cut.total_data_passes == 2
    np.testing.assert_allclose(cut.values, found.values, rtol=1e-13)


def test_columns_far_from_zero_lose_nothing() -> None:
    """All rows have some columns, at a million deviations: they are filled in, and centred before they are multiplied.
    Mutant: no column is filled in; then five digits are left.
    """
    x = planted(50, 600, 0.1).toarray()
    x[:, :40] += 1e6
    found = npmdask.top_k(sp.csr_matrix(x), 4, center=True, **ROW_GRAM)
    values = np.linalg.svd((x.astype(np.longdouble) - x.mean(axis=0, dtype=np.longdouble)).astype(float))[1]
    np.testing.assert_allclose(found.values, values[:4], rtol=1e-10)


def test_small_values_take_a_pass_that_verifies_them() -> None:
    rng = np.random.default_rng(0)
    x = sp.random_array((50, 500), density=0.05, rng=rng, format="csr", data_sampler=rng.standard_normal)
    x = sp.csr_matrix(sp.diags_array(np.geomspace(1, 1e-5, 50)) @ x)
    few, many = (npmdask.top_k(x, k, tol=1e-7, **ROW_GRAM) for k in (3, 30))
    assert few.steps == 2 < many.steps and few.converged and many.converged
    np.testing.assert_allclose(many.values, np.linalg.svd(x.toarray(), compute_uv=False)[:30], rtol=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_value_that_is_none_is_named(value: float) -> None:
    x = planted(30, 400, 0.2)
    x.data[77] = value
    with pytest.raises(BadInputError, match="a non-finite value in chunk 0"):
        npmdask.top_k(x, 2, **ROW_GRAM)


@pytest.mark.parametrize("tasks", [1, 6])
def test_a_chunk_that_changes_between_its_parts_is_seen(
    tasks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one task and between two, of data without recorded checksums; of data as they are nothing is said."""
    x = planted(40, 900, 0.1)
    group = zarr.create_group(tmp_path / "x.zarr", attributes={"encoding-type": "csr_matrix", "shape": list(x.shape)})
    for name in ("data", "indices", "indptr"):
        group.create_array(name, data=getattr(x, name), chunks=(500,))
    if tasks > 1:
        monkeypatch.setattr(row_gram, "RUN_BYTES", 1)
        monkeypatch.setattr(row_gram, "FEW_RUNS", 10**9)
    asked: dict[str, Any] = {"kind": "sparse", "options": {"parts": 6}, **ROW_GRAM}
    assert npmdask.top_k(tmp_path / "x.zarr", 3, **asked).converged
    read, times = CsrReader.blocks, list[int]()

    def changing(reader: Any, slabs: range, record: Any) -> Any:
        yield from read(reader, slabs, record)
        times.append(slabs.start)
        if times.count(2) == 2:
            group["data"][1100] = 7.0

    monkeypatch.setattr(CsrReader, "blocks", changing)
    with pytest.raises(BadInputError, match=r"chunk data/c/2 .* changed while it was read"):
        npmdask.top_k(tmp_path / "x.zarr", 3, **asked)


@pytest.mark.parametrize("parts", [1, 4])
def test_computed_rows_of_which_the_first_block_has_none_are_read_as_often_as_others(parts: int) -> None:
    """How many entries there are is guessed by that block. Mutant: a part holds twice its share of that guess, however
    little that is: then all rows are computed once for each column. Of what changes meanwhile a unit is named.
    """
    x, times, change = planted(40, 300, 0.1).toarray(), list[int](), [10**9]
    x[:10] = 0

    def computed(block: np.ndarray) -> sp.csr_matrix:
        times.append(len(times))
        return sp.csr_matrix(block * (1 + (len(times) > change[0])))

    asked: dict[str, Any] = {"kind": "sparse", "options": {"parts": parts}, **ROW_GRAM}
    rows = da.from_array(x, chunks=(10, 300)).map_blocks(computed, meta=sp.csr_matrix((0, 0)))
    found = npmdask.top_k(rows, 3, **asked)
    np.testing.assert_allclose(found.values, np.linalg.svd(x, compute_uv=False)[:3], rtol=1e-12)
    assert found.total_data_passes == 2 and len(times) <= 4 * 2 * parts + 2
    if parts > 1:
        change[0] = len(times) + 8
        with pytest.raises(BadInputError, match=r"chunk unit 0 of the Dask array \S+ changed while it was read"):
            npmdask.top_k(rows, 3, **asked)


def of_shape(m: int, d: int, entries: int, chunk: int = 2**18) -> Source:
    """Rows of which nothing is read: as many entries in each, and no others."""
    group = zarr.create_group({}, attributes={"encoding-type": "csr_matrix", "shape": [m, d]})
    for name, dtype in (("data", "f4"), ("indices", "i4")):
        group.create_array(name, shape=(entries,), chunks=(chunk,), dtype=dtype)
    group.create_array("indptr", data=np.linspace(0, entries, m + 1).astype(np.int64))
    return open_source(group, "sparse")


def test_auto_forms_the_small_side_where_that_is_the_fastest_way() -> None:
    """Shapes that were measured: two to ten times faster formed, and three times slower."""

    def chosen(*shape: int, memory: int | None = None, **asked: Any) -> Any:
        return posed(Request(target_rank=10, **asked), of_shape(*shape), Resources(memory=memory, threads=2)).algorithm

    assert chosen(2000, 100_000, 10**7).name == chosen(4000, 200_000, 8 * 10**6).name == "row-gram"
    assert chosen(500, 10**6, 5 * 10**6).name == chosen(2000, 20_000, 400_000, center=True).name == "row-gram"
    assert chosen(8000, 50_000, 8 * 10**6).name == "krylov", "eigenvectors of 8,000 take longer"
    assert chosen(1000, 4000, 200_000).name == "krylov", "a pass takes no time"
    assert chosen(2000, 100_000, 10**7, mechanism="gaussian", stddev=1.0).name == "power"
    assert chosen(2000, 100_000, 10**7).parts == 2, "a part for each thread"
    small = chosen(2000, 100_000, 10**7, memory=tree_rss() + 600 * 2**20, algorithm="row-gram")
    assert small.parts > 2, "of fewer entries"


def test_how_many_chunks_there_are_makes_no_choice_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: the memory of a part is that of the largest of all chunks, each looked at: seconds for each choice."""
    source, times, of = of_shape(2000, 100_000, 10**7, 1000), list[range](), CsrReader.pointer_bytes

    def counted(reader: CsrReader, slabs: range) -> int:
        times.append(slabs)
        return of(reader, slabs)

    monkeypatch.setattr(CsrReader, "pointer_bytes", counted)
    chosen: Any = posed(Request(target_rank=10, algorithm="row-gram"), source, Resources(threads=2)).algorithm
    assert chosen.name == "row-gram" and len(times) < source.reader.grid[0] == 10_000


def test_where_the_folder_is_deleted_other_ways_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    found = features.found
    monkeypatch.setattr(features, "found", lambda table, key: None if key == "few sparse rows" else found(table, key))
    asked = Request(target_rank=10)
    assert posed(asked, of_shape(2000, 100_000, 10**7), Resources(threads=2)).algorithm.name == "krylov"
    with pytest.raises(RefusedError, match="sparse_rows"):
        npmdask.top_k(planted(30, 400, 0.1), 3, **ROW_GRAM)


# Nearly all entries in a tenth of the columns; in a process of its own, whose memory nothing else has touched.
SKEWED = """
import json
import npmdask
from npmdask.core.execution.memory import tree_rss
limit = tree_rss() + 420 * 2**20
found = npmdask.top_k("x.zarr", 5, algorithm="row-gram", memory=limit, threads=2, store="run")
print(json.dumps([found.peak_rss_bytes, limit, found.converged, found.bytes_read]))
"""


@pytest.mark.slow
def test_entries_in_few_columns_stay_within_memory(tmp_path: Path) -> None:
    """They are read again instead. Mutant: a part holds all entries of its columns, however many they are."""
    rng, m, n = np.random.default_rng(0), 600, 10_000
    columns = [np.sort(rng.choice(20_000 if row % 10 else 200_000, n, replace=False)) for row in range(m)]
    x = sp.csr_matrix((rng.standard_normal(m * n), np.concatenate(columns), np.arange(m + 1) * n), shape=(m, 200_000))
    write_csr(tmp_path / "x.zarr", x, 2**17, 100)
    done = subprocess.run([sys.executable, "-c", SKEWED], cwd=tmp_path, capture_output=True, text=True, check=True)
    peak, limit, converged, nbytes = json.loads(done.stdout.splitlines()[-1])
    parts = json.loads((tmp_path / "run/run.json").read_text())["algorithm"]["options"]["parts"]
    assert converged and parts > 2 and nbytes > 2.2 * parts * x.nnz * 12, "some columns were read again"
    assert peak <= limit
