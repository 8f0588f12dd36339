"""One pass, right product, same bits with any number of workers; and every way in which stored data can be wrong."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import npmdask.core.operators._protocol as protocol
from npmdask.core.algorithms import Query
from npmdask.core.execution.executor import Threads
from npmdask.core.execution.reduction import runs_of
from npmdask.core.operators import ColumnMoments, Gram, SparseGram, View
from npmdask.core.storage.chunk_access import first_line
from npmdask.core.storage.column_statistics import EntrySums
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError
from npmdask.writers.dense import DenseWriter
from npmdask.writers.sparse import SparseWriter
from tests.conftest import write_zarr


def ignore(record: object) -> None:
    """Nobody watches."""


def write_csr(path: Path, matrix: sp.csr_matrix, chunk: int, rows_at_once: int = 7) -> Path:
    class Small(SparseWriter):
        CHUNK = chunk

    writer = Small(path, columns=matrix.shape[1], dtype=matrix.dtype, identity={})
    for start in range(0, matrix.shape[0], rows_at_once):
        rows = matrix[start : start + rows_at_once]
        writer.write(rows.indptr, rows.indices, rows.data)
    writer.finish()
    return path


@pytest.mark.parametrize("wrong", [7, -1])
def test_a_column_index_that_is_outside_is_found(tmp_path: Path, wrong: int) -> None:
    """Plain CSR groups are read as they are: an index below or beyond the columns must not reach a product."""
    matrix = sp.random(40, 7, 0.5, "csr", random_state=0)
    matrix.indices[60] = wrong
    group = zarr.create_group(tmp_path / "wrong.zarr")
    group.attrs.update({"encoding-type": "csr_matrix", "shape": [40, 7]})
    for name in ("data", "indices", "indptr"):
        group.create_array(name, data=getattr(matrix, name))
    operator = SparseGram(reader=open_source(tmp_path / "wrong.zarr").reader)  # type: ignore[arg-type]
    with pytest.raises(BadInputError, match=r"a column index in chunk 0 is outside 0\.\.6"):
        Threads(1).run_pass(operator, np.ones((7, 2)), ignore)


layouts = st.tuples(st.integers(1, 60), st.integers(1, 40), st.integers(1, 70), st.integers(1, 45))


@pytest.mark.slow
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    layout=layouts,
    p=st.integers(1, 5),
    dtype=st.sampled_from(["f4", "f8", "u1", "i2", ">f4"]),
    codec=st.sampled_from([None, "auto"]),
    zarr_format=st.sampled_from([2, 3]),
    center=st.booleans(),
    scale=st.booleans(),
    run_bytes=st.sampled_from([100, 2000, 10**9]),
    seed=st.integers(0, 10**6),
)
def test_gram_of_any_layout(
    layout: Any, p: int, dtype: str, codec: Any, zarr_format: int, center: bool, scale: bool, run_bytes: int, seed: int
) -> None:
    m, n, rows, columns = layout
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 100, (m, n)).astype(dtype)
    options = {"compressors": codec, "zarr_format": zarr_format, "config": {"write_empty_chunks": True}}
    z = zarr.create_array({}, shape=(m, n), dtype=dtype, chunks=(min(rows, m), min(columns, n)), **options)
    z[...] = x
    x = x.astype("f8")
    mean, std = x.mean(0), np.where(x.std(0) > 0, x.std(0), 1)
    reader, block = open_source(z).reader, rng.standard_normal((n, p))
    operator = Gram(
        reader=reader, weight=1 / m, view=View(shift=mean if center else None, scale=std if scale else None)
    )
    a = (x - mean * center) / (std if scale else 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(protocol, "RUN_BYTES", run_bytes)
        patch.setattr(protocol, "COLUMN_BYTES", 1)
        product, record = Threads(2).run_pass(operator, block, ignore)
    expected = a.T @ (a @ block) / m
    np.testing.assert_allclose(product, expected, atol=1e-11 * max(1, np.abs(expected).max()))
    assert record.bytes_read == reader.nbytes
    assert record.chunks == reader.grid[0] * reader.grid[1]


def test_big_endian_values_in_little_endian_files(tmp_path: Path) -> None:
    """A new Zarr 3 array looks big-endian in memory while its files are not; opened again it is native."""
    x = np.random.default_rng(0).standard_normal((100, 20))
    z = zarr.create_array(tmp_path / "x.zarr", shape=x.shape, dtype=">f8", chunks=(30, 20), compressors=None)
    z[...] = x
    for source in (z, tmp_path / "x.zarr"):
        product, _ = Threads(1).run_pass(Gram(reader=open_source(source).reader), np.eye(20), ignore)
        np.testing.assert_allclose(product, x.T @ x, atol=1e-12)


@pytest.mark.slow
@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    m=st.integers(1, 50),
    n=st.integers(1, 20),
    density=st.sampled_from([0.02, 0.3, 1.0]),
    chunk=st.integers(1, 90),
    run_bytes=st.sampled_from([1, 300, 10**9]),
    center=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_sparse_of_any_layout(
    tmp_path_factory: Any, m: int, n: int, density: float, chunk: int, run_bytes: int, center: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    matrix = sp.random(m, n, density=density, format="csr", rng=rng)
    if matrix.nnz == 0:
        matrix = sp.csr_matrix(np.eye(m, n))
    source = open_source(write_csr(tmp_path_factory.mktemp("csr") / "s.zarr", matrix, chunk))
    dense, block = matrix.toarray(), rng.standard_normal((n, 3))
    a = dense - dense.mean(0) * center
    operator = SparseGram(reader=source.reader, view=View(shift=source.column_mean if center else None))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(protocol, "RUN_BYTES", run_bytes)
        patch.setattr(protocol, "COLUMN_BYTES", 1)
        product, record = Threads(2).run_pass(operator, block, ignore)
        moments, _ = Threads(2).run_pass(ColumnMoments(reader=source.reader), np.zeros((1, 1)), ignore)
    np.testing.assert_allclose(product, a.T @ (a @ block), atol=1e-12 * m * n)
    np.testing.assert_allclose(
        moments[:2], [dense.mean(0), dense.std(0)], atol=1e-9
    )  # a third row would be their error
    assert record.chunks == source.reader.grid[0] * source.reader.grid[1], "every chunk of data and indices once"
    np.testing.assert_allclose(source.statistics.std, dense.std(0), atol=1e-9)


def test_anndata_csr_group_is_read_as_it_is(tmp_path: Path) -> None:
    matrix = sp.random(200, 40, density=0.1, format="csr", rng=np.random.default_rng(0))
    group = zarr.open_group(tmp_path / "x.zarr", mode="w")
    for name in ("data", "indices", "indptr"):
        values = getattr(matrix, name)
        group.create_array(name, shape=values.shape, dtype=values.dtype, chunks=(100,))[...] = values
    group.attrs.update({"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": [200, 40]})
    source = open_source(tmp_path / "x.zarr")
    block = np.random.default_rng(1).standard_normal((40, 3))
    product, _ = Threads(1).run_pass(SparseGram(reader=source.reader), block, ignore)
    np.testing.assert_allclose(product, matrix.T @ (matrix @ block), atol=1e-12)


@pytest.mark.slow
def test_the_same_bits_with_any_number_of_threads_and_processes(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(protocol, "RUN_BYTES", 2**18)
    x = np.random.default_rng(0).standard_normal((5000, 300)).astype("f4")
    block = np.random.default_rng(1).standard_normal((300, 7))
    operator = Gram(reader=open_source(write_zarr(tmp_path / "x.zarr", x, (128, 300), compressors=None)).reader)
    assert len(runs_of(operator)) > 10
    for dtype in ("f8", "f4"):
        one = Threads(1).run_pass(operator, block.astype(dtype), ignore)[0]
        for threads in (2, 5):
            assert (Threads(threads).run_pass(operator, block.astype(dtype), ignore)[0] == one).all()


@pytest.mark.parametrize("codec", [None, "auto"])
def test_a_missing_chunk_is_an_error_not_zeros(tmp_path: Path, codec: Any) -> None:
    path = write_zarr(tmp_path / "x.zarr", np.ones((100, 40)), (25, 20), compressors=codec)
    (path / "c" / "2" / "1").unlink()
    operator = Gram(reader=open_source(path).reader)
    with pytest.raises(BadInputError, match=r"chunk c/2/1 of .*x.zarr is missing.*restore it"):
        Threads(2).run_pass(operator, np.ones((40, 2)), ignore)


def test_a_chunk_of_zeros_is_not_missing(tmp_path: Path) -> None:
    path = write_zarr(tmp_path / "x.zarr", np.zeros((100, 40)), (25, 20), config={"write_empty_chunks": True})
    product, _ = Threads(1).run_pass(Gram(reader=open_source(path).reader), np.ones((40, 2)), ignore)
    assert (product == 0).all()


def test_a_truncated_and_an_undecodable_chunk_are_named(tmp_path: Path) -> None:
    raw = write_zarr(tmp_path / "raw.zarr", np.ones((100, 40)), (25, 20), compressors=None)
    chunk = raw / "c" / "3" / "0"
    chunk.write_bytes(chunk.read_bytes()[:-8])
    with pytest.raises(BadInputError, match=r"c/3/0 .* is truncated"):
        Threads(1).run_pass(Gram(reader=open_source(raw).reader), np.ones((40, 1)), ignore)
    coded = write_zarr(tmp_path / "coded.zarr", np.random.default_rng(0).random((100, 40)), (25, 20))
    chunk = coded / "c" / "1" / "1"
    chunk.write_bytes(b"\x00" * 100)
    with pytest.raises(BadInputError, match=r"c/1/1 .* cannot be decoded"):
        Threads(1).run_pass(Gram(reader=open_source(coded).reader), np.ones((40, 1)), ignore)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("codec", [None, "auto"])
def test_non_finite_values_are_found_and_their_place_named(tmp_path: Path, bad: float, codec: Any) -> None:
    x = np.ones((90, 33))
    x[57, 21] = bad
    operator = Gram(reader=open_source(write_zarr(tmp_path / "x.zarr", x, (20, 10), compressors=codec)).reader)
    with pytest.raises(BadInputError, match=f"holds {bad} at row 57, column 21"):
        Threads(2).run_pass(operator, np.ones((33, 2)), ignore)


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning", "ignore:invalid value:RuntimeWarning")
def test_overflow_is_not_blamed_on_the_data(tmp_path: Path) -> None:
    operator = Gram(reader=open_source(write_zarr(tmp_path / "x.zarr", np.full((10, 5), 1e200))).reader)
    with pytest.raises(BadInputError, match="overflows although the data are finite"):
        Threads(1).run_pass(operator, np.ones((5, 1)), ignore)


def test_centring_of_data_far_from_zero_keeps_its_digits(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = 1e8 + rng.standard_normal((4000, 20))
    block = np.linalg.qr(rng.standard_normal((20, 3)))[0]
    operator = Gram(
        reader=open_source(write_zarr(tmp_path / "x.zarr", x, (500, 20))).reader, view=View(shift=x.mean(0))
    )
    product, _ = Threads(1).run_pass(operator, block, ignore)
    centred = x - x.mean(0)
    np.testing.assert_allclose(product, centred.T @ (centred @ block), rtol=1e-9)


@pytest.mark.slow
def test_damage_beside_the_data_is_found_at_opening(tmp_path: Path) -> None:
    """The means, the truth and the row pointers are arrays too: a lost chunk of them would read as zeros."""
    writer = DenseWriter(tmp_path / "d.zarr", columns=4, dtype=np.dtype("f8"), kind="samples", identity={})
    writer.write(np.arange(40.0).reshape(10, 4))
    writer.finish()
    (tmp_path / "d.zarr" / "column_mean" / "c" / "0").unlink()
    with pytest.raises(BadInputError, match=r"column_mean of .* is damaged or incomplete"):
        open_source(tmp_path / "d.zarr")
    path = write_csr(tmp_path / "s.zarr", sp.random(200, 40, density=0.1, format="csr"), 50)
    (path / "X" / "indptr" / "c" / "2").unlink()
    with pytest.raises(BadInputError, match=r"chunk c/2 of .*indptr is missing"):
        open_source(path)


def test_a_rotten_chunk_of_an_ingested_store_is_named(tmp_path: Path) -> None:
    writer = DenseWriter(
        tmp_path / "d.zarr", columns=40, dtype=np.dtype("f4"), kind="samples", chunks=(25, 20), identity={}
    )
    writer.write(np.random.default_rng(0).random((100, 40)))
    writer.finish()
    chunk = tmp_path / "d.zarr" / "data" / "c" / "2" / "1"
    content = bytearray(chunk.read_bytes())
    content[99] ^= 1
    chunk.write_bytes(content)
    with pytest.raises(BadInputError, match=r"chunk c/2/1 of .* is corrupt: its checksum is"):
        Threads(2).run_pass(Gram(reader=open_source(tmp_path / "d.zarr").reader), np.ones((40, 2)), ignore)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["data", "indices"])
def test_a_rotten_chunk_of_an_ingested_sparse_store_is_named(tmp_path: Path, name: str) -> None:
    """One number of a chunk is another one, as good as the first: only the checksum tells."""
    matrix = sp.random(200, 40, density=0.1, format="csr", rng=np.random.default_rng(0))
    path = write_csr(tmp_path / "s.zarr", matrix, 50, rows_at_once=200)

    def passed() -> np.ndarray:
        operator = SparseGram(reader=open_source(path).reader)
        return Threads(2).run_pass(operator, np.ones((40, 2)), ignore)[0]

    np.testing.assert_allclose(passed(), matrix.T @ (matrix @ np.ones((40, 2))), rtol=1e-12)
    array = zarr.open_array(path / "X" / name, mode="r+")
    array[749] = array[749] + 1 if array[749] < 39 else array[749] - 1
    with pytest.raises(BadInputError, match=rf"chunk c/14 of .*/{name} is corrupt: its checksum is"):
        passed()


@pytest.mark.slow
def test_a_sparse_pass_costs_its_entries_whatever_the_width(tmp_path: Path, monkeypatch: Any) -> None:
    """Hardt and Price: time nnz p. The same entries in 40 and in 40,000 columns are the same bytes and the same
    products; twice the entries are twice the bytes; nothing is ever made dense. Mutant: a row that is filled in."""
    multiplied: list[int] = []
    plain = sp.csr_matrix.__matmul__

    def counted(self: Any, other: Any) -> Any:
        multiplied.append(self.nnz * other.shape[1])
        return plain(self, other)

    for name in ("toarray", "todense"):
        monkeypatch.setattr(sp.csr_matrix, name, lambda self, *rest, **more: pytest.fail("made dense"))
    monkeypatch.setattr(sp.csr_matrix, "__matmul__", counted)
    found = {}
    for columns, entries in ((40, 3000), (40_000, 3000), (40_000, 6000)):
        rng = np.random.default_rng(0)
        rows = np.sort(rng.integers(0, 300, entries))
        matrix = sp.csr_matrix((np.ones(entries), (rows, rng.integers(0, columns, entries))), shape=(300, columns))
        nnz = matrix.nnz
        operator = SparseGram(reader=open_source(write_csr(tmp_path / f"{columns}-{entries}.zarr", matrix, 500)).reader)
        multiplied.clear()
        Threads(1).run_pass(operator, np.ones((columns, 2)), ignore)
        found[columns, entries] = (sum(multiplied) / nnz, operator.pass_bytes / nnz)
    products = {counted for counted, _ in found.values()}
    assert products == {2.0}, f"{products}: A V once, and A^T by a transpose that is no csr_matrix"
    sizes = [size for _, size in found.values()]
    assert max(sizes) < 1.1 * min(sizes)


@pytest.mark.parametrize("columns", [50, 10**5])
def test_sums_by_column_have_the_same_bits_in_either_way(columns: int) -> None:
    """Mutant: values of a column that comes twice are added once."""
    rng = np.random.default_rng(0)
    indices = rng.integers(0, columns, 1000) // 7 * 7
    values, sums = rng.standard_normal(1000), EntrySums(columns)
    sums.add(indices, values)  # so that there is something to add to
    expected = [sums.sums[n] + np.bincount(indices, values**i, columns) for n, i in (("total", 1), ("squares", 2))]
    tracemalloc.start()
    sums.add(indices, values)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert all((sums.sums[name] == each).all() for name, each in zip(("total", "squares"), expected, strict=True))
    assert columns == 50 or most < columns * 8, "a sum as wide as the matrix is made"


def test_an_error_that_says_nothing_has_a_name() -> None:
    assert first_line(TimeoutError()) == "TimeoutError"
    assert first_line(OSError("gone\nTraceback ...")) == "gone"


@pytest.mark.parametrize("beyond", [{"scores": True}, {"transposed": True}, {"image_norm": 1.0}])
def test_a_query_that_an_operator_has_no_answer_to_is_refused_by_name(beyond: dict[str, Any]) -> None:
    x = np.arange(12.0).reshape(4, 3)
    operator = Gram(reader=open_source(x).reader)  # type: ignore[arg-type]
    assert operator.asked(Query(block=x)) is operator
    with pytest.raises(TypeError, match=f"Gram cannot answer a query with {next(iter(beyond))}"):
        operator.asked(Query(block=x, **beyond))
