"""The dilation out of core: its product in one pass whatever the layout, and what a run on it finds beyond A^T A."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import npmdask
import npmdask.core.operators._protocol as protocol
from npmdask import singular_triplets
from npmdask.core.execution.executor import Threads
from npmdask.core.execution.reduction import TreeNode, compute_run, pack, runs_of, unpack
from npmdask.core.storage.source import open_source
from npmdask.dilation.operator import Dilation, SparseDilation
from npmdask.errors import BadInputError, RefusedError
from tests.conftest import often, planted, same_bytes, write_zarr
from tests.core.operators.test_operators import ignore, write_csr
from tests.core.runs.test_loop import Stop, StopAfter


def dilated(b: np.ndarray) -> np.ndarray:
    """The matrix itself: what the operator never forms."""
    m, n = b.shape
    return np.block([[np.zeros((m, m)), b], [b.T, np.zeros((n, n))]])


@pytest.mark.slow
@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    layout=st.tuples(st.integers(1, 60), st.integers(1, 40), st.integers(1, 70), st.integers(1, 45)),
    p=st.integers(1, 5),
    dtype=st.sampled_from(["f4", "f8", "u1", "i2", ">f4"]),
    codec=st.sampled_from([None, "auto"]),
    run_bytes=st.sampled_from([100, 2000, 10**9]),
    seed=st.integers(0, 10**6),
)
def test_the_product_with_any_layout(layout: Any, p: int, dtype: str, codec: Any, run_bytes: int, seed: int) -> None:
    """Ragged chunks at both edges, one run or many. Mutants: halves of the block the other way round, rows of a run at
    the place of another, the sum of one run only."""
    m, n, rows, columns = layout
    rng = np.random.default_rng(seed)
    b = rng.integers(0, 100, (m, n)).astype(dtype)
    options: Any = {"compressors": codec, "config": {"write_empty_chunks": True}}
    z = zarr.create_array({}, shape=(m, n), dtype=dtype, chunks=(min(rows, m), min(columns, n)), **options)
    z[...] = b
    operator, block = Dilation(reader=open_source(z).reader), rng.standard_normal((m + n, p))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(protocol, "RUN_BYTES", run_bytes)
        patch.setattr(protocol, "COLUMN_BYTES", 1)
        product, record = Threads(2).run_pass(operator, block, ignore)
    np.testing.assert_allclose(product, dilated(b.astype("f8")) @ block, atol=1e-10)
    assert record.bytes_read == operator.reader.nbytes and record.chunks == operator.pass_chunks, "every chunk once"


@pytest.mark.slow
@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    m=st.integers(1, 50),
    n=st.integers(1, 20),
    density=st.sampled_from([0.02, 0.3, 1.0]),
    chunk=st.integers(1, 90),
    run_bytes=st.sampled_from([1, 300, 10**9]),
    seed=st.integers(0, 10**6),
)
def test_the_sparse_product_with_any_layout(
    tmp_path_factory: Any, m: int, n: int, density: float, chunk: int, run_bytes: int, seed: int
) -> None:
    """Rows that runs cut once, many times, or not; empty rows at the start, between and at the end. Mutants: a cut row
    at the place of the next, or left out; rows counted from the run's first entry where empty ones come before it."""
    rng = np.random.default_rng(seed)
    matrix = sp.random(m, n, density=density, format="csr", rng=rng)
    if matrix.nnz == 0:
        matrix = sp.csr_matrix(([1.0], ([m // 2], [n // 2])), shape=(m, n))
    source = open_source(write_csr(tmp_path_factory.mktemp("csr") / "s.zarr", matrix, chunk))
    operator: Any = SparseDilation(reader=source.reader)  # type: ignore[arg-type]
    block = rng.standard_normal((m + n, 3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(protocol, "RUN_BYTES", run_bytes)
        patch.setattr(protocol, "COLUMN_BYTES", 1)
        product, record = Threads(2).run_pass(operator, block, ignore)
    np.testing.assert_allclose(product, dilated(matrix.toarray()) @ block, atol=1e-12)
    assert record.chunks == operator.pass_chunks


def stored(folder: Path, kind: str) -> tuple[Any, np.ndarray]:
    """An operator with many runs, and its matrix."""
    rng = np.random.default_rng(0)
    if kind == "sparse":
        matrix = sp.random(3000, 70, density=0.2, format="csr", rng=rng)
        reader: Any = open_source(write_csr(folder / "s.zarr", matrix, 900, rows_at_once=500)).reader
        return SparseDilation(reader=reader), matrix.toarray()
    b = rng.standard_normal((3000, 70)).astype("f4")
    return Dilation(reader=open_source(write_zarr(folder / "b.zarr", b, (128, 33), compressors=None)).reader), b


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_symmetric_linear_and_the_same_bits_with_any_number_of_threads(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "RUN_BYTES", 2**15)
    monkeypatch.setattr(protocol, "COLUMN_BYTES", 1)
    operator, b = stored(tmp_path, kind)
    operator = pickle.loads(pickle.dumps(operator))  # noqa: S301 - as workers get it
    assert len(runs_of(operator)) > 10
    x, y = np.random.default_rng(1).standard_normal((2, sum(b.shape), 3))

    def times(block: np.ndarray, threads: int = 2) -> np.ndarray:
        return np.asarray(Threads(threads).run_pass(operator, block, ignore)[0])

    product = times(x)
    np.testing.assert_allclose(y.T @ product, times(y).T @ x, rtol=1e-9, atol=1e-9 * np.abs(y.T @ product).max())
    np.testing.assert_allclose(times(2 * x - y), 2 * product - times(y), atol=1e-9)
    for threads in (1, 5):
        assert (times(x, threads) == product).all()
    if kind == "dense":
        single = times(x.astype("f4"), 1)
        assert (times(x.astype("f4"), 5) == single).all()
        np.testing.assert_allclose(single, product, atol=1e-3)


def test_eigenvalues_are_the_singular_values_with_both_signs_and_zeros() -> None:
    b = planted(8, 5, np.array([3.0, 2.0, 0.5]))[0]
    product, _ = Threads(1).run_pass(Dilation(reader=open_source(b).reader), np.eye(13), ignore)
    assert (product == product.T).all()
    expected = [3, 2, 0.5, *[0] * (8 + 5 - 2 * 3), -0.5, -2, -3]
    np.testing.assert_allclose(np.linalg.eigvalsh(product)[::-1], expected, atol=1e-14)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_a_part_that_was_kept_on_disk_joins_in_the_same_bits(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint keeps the sum and the rows of a part as one array. Mutant: that array taken for the sum."""
    monkeypatch.setattr(protocol, "RUN_BYTES", 2**17)
    monkeypatch.setattr(protocol, "COLUMN_BYTES", 1)
    operator, b = stored(tmp_path, kind)
    block = np.random.default_rng(2).standard_normal((sum(b.shape), 2))
    one, two, three, *_ = (compute_run(operator, run, block) for run in runs_of(operator))
    joined = operator.join(one, two)
    whole = operator.join(joined, three)
    for left, right in ((joined, three), (operator.join(one, two), three)):
        kept = unpack(operator, *pack(operator, {TreeNode(1, 0): left, TreeNode(0, 2): right}))
        again = operator.join(kept[TreeNode(1, 0)], kept[TreeNode(0, 2)])
        assert (operator.stacked(again.sums) == operator.stacked(whole.sums)).all()
        assert [f.row for f in again.fragments] == [f.row for f in whole.fragments]


def test_what_is_not_finite_is_named(tmp_path: Path) -> None:
    b = np.ones((90, 33))
    b[57, 21] = np.nan
    operator = Dilation(reader=open_source(write_zarr(tmp_path / "b.zarr", b, (20, 10))).reader)
    with pytest.raises(BadInputError, match="holds nan at row 57, column 21"):
        Threads(2).run_pass(operator, np.ones((123, 2)), ignore)


def steep(m: int, n: int, k: int = 13) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Singular values from 1 to 1e-12: the matrix, U, values, V."""
    values = 10.0 ** -np.arange(k)
    b, u, v = planted(m, n, values)
    return b, u, values, v


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["krylov", "power"])
@pytest.mark.parametrize("shape", [(300, 200), (120, 260)])
def test_values_far_below_the_root_of_rounding_are_found(shape: tuple[int, int], algorithm: str) -> None:
    """From 1 to 1e-12, where A^T A ends at 1e-8. The error of sigma_i is some 1e-16 sigma_1, of its vectors that over
    sigma_i: 100 times as much is allowed. Mutants: values as roots of squares; columns of length 1 / sqrt(2); the left
    part of a negative value, which has the other sign; of the certificate, roots of squares."""
    b, u, values, v = steep(*shape)
    through_gram = npmdask.top_k(b, 13, kind="matrix", tol=1e-2)
    assert not through_gram.converged and "singular_triplets" in through_gram.outcome.sentence
    assert (np.abs(through_gram.values / values - 1) > 0.5).sum() >= 4
    found = singular_triplets(b, 13, tol=1e-2, algorithm=algorithm)
    assert found.solution.converged
    assert (np.abs(found.values - values) <= 1e-14 + 1e-12 * values).all()
    for mine, true in ((found.left, u), (found.right, v)):
        tilt = np.linalg.norm(mine - true * np.sum(mine * true, axis=0), axis=0)
        assert (tilt <= 1e-14 / values + 1e-13).all()
        assert (np.abs(np.linalg.norm(mine, axis=0) - 1) < 1e-14).all()
    residuals = np.hypot(
        np.linalg.norm(b @ found.right - found.left * found.values, axis=0),
        np.linalg.norm(b.T @ found.left - found.right * found.values, axis=0),
    )
    assert (residuals <= found.residual_norms + 5e-15).all() and found.residual_norms.max() < 1e-13
    levels = {level["ground"]: level for level in (found.solution.certificate or {})["levels"]}
    bounds = levels["none missed"]
    signed = np.repeat(values, 2)
    assert (np.array(bounds["lower"]) <= signed * (1 + 1e-9)).all() and bounds["lower"][-1] > 5e-13
    assert (np.array(bounds["upper"]) >= signed * (1 - 1e-9)).all()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_residuals_are_bounds_before_a_run_has_converged(seed: int) -> None:
    """Where the two parts of a vector are not equally long yet. Mutants: the residual of the pair as it is, of parts
    that have the length 1 / sqrt(2); over the longer part."""
    b = np.random.default_rng(seed).standard_normal((50, 30))
    found = singular_triplets(b, 4, iteration_rank=9, max_steps=2, seed=seed)
    assert not found.solution.converged
    residuals = np.hypot(
        np.linalg.norm(b @ found.right - found.left * found.values, axis=0),
        np.linalg.norm(b.T @ found.left - found.right * found.values, axis=0),
    )
    assert (residuals <= found.residual_norms).all() and (found.residual_norms < 2 * residuals).all()


def test_values_that_are_zero_have_no_vectors(tmp_path: Path) -> None:
    """Rank 4, and 6 are asked for."""
    b, _, _ = planted(60, 40, np.array([1.0, 1e-3, 1e-6, 1e-10]))
    found = singular_triplets(write_zarr(tmp_path / "b.zarr", b, (16, 40)), 6, tol=1e-3)
    np.testing.assert_allclose(found.values, [1, 1e-3, 1e-6, 1e-10, 0, 0], rtol=1e-3)
    assert not found.left[:, 4:].any() and not found.right[:, 4:].any() and not found.residual_norms[4:].any()
    assert "numerical rank 8" in found.solution.outcome.sentence  # both signs


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_a_sparse_matrix_has_left_vectors_too(tmp_path: Path, dtype: str) -> None:
    matrix = sp.random(300, 40, density=0.1, format="csr", rng=np.random.default_rng(0)).astype(dtype)
    found = singular_triplets(write_csr(tmp_path / "s.zarr", matrix, 200), 5, iteration_rank=20)
    b = matrix.toarray().astype("f8")
    assert found.solution.converged and found.solution.certificate
    np.testing.assert_allclose(found.values, np.linalg.svd(b)[1][:5], rtol=1e-9)
    np.testing.assert_allclose(b @ found.right, found.left * found.values, atol=1e-5 if dtype == "f4" else 1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("stop", [1, 2])
def test_a_run_that_was_stopped_goes_on_in_the_same_bits(tmp_path: Path, stop: int) -> None:
    b = planted(400, 80, 0.9 ** np.arange(80))[0]
    source = write_zarr(tmp_path / "b.zarr", b, (64, 40))
    asked: dict[str, Any] = {"k": 3, "iteration_rank": 8}
    whole = singular_triplets(source, **asked, store=tmp_path / "whole", threads=1)
    assert whole.solution.data_passes > 3
    with pytest.raises(Stop):
        singular_triplets(source, **asked, store=tmp_path / "cut", threads=2, observer=StopAfter(stop))
    with pytest.raises(BadInputError, match=r"goes on where npmdask\.singular_triplets"):
        npmdask.resume(tmp_path / "cut")
    again = singular_triplets(source, **asked, store=tmp_path / "cut", threads=2)
    assert again.solution.data_passes == whole.solution.data_passes - stop
    assert (again.left == whole.left).all() and (again.right == whole.right).all()
    same_bytes(tmp_path / "whole", tmp_path / "cut", parts=("steps", "result"))


PROCESS = """
import json, sys
from npmdask import singular_triplets
from npmdask.core.runs.observers import Observer

class Plan(Observer):
    def on_plan(self, plan):
        self.peak = plan.predicted_peak

plan = Plan()
found = singular_triplets(sys.argv[1], 5, iteration_rank=20, max_steps=3, threads=2, observer=plan)
print(json.dumps([found.solution.peak_rss_bytes, plan.peak]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", often(["dense", "sparse"], 1))
def test_the_predicted_memory_is_enough(tmp_path: Path, kind: str) -> None:
    """With m rows in every block; how tight it is, is the row ``memory-tightness``. Mutant: blocks of n rows."""
    rng = np.random.default_rng(0)
    if kind == "sparse":
        matrix = sp.random(80_000, 500, density=0.01, format="csr", rng=rng)
        path = write_csr(tmp_path / "s.zarr", matrix, 2**16, rows_at_once=20_000)
    else:
        path = write_zarr(tmp_path / "b.zarr", rng.standard_normal((80_000, 40)), (4000, 40), compressors=None)
    done = subprocess.run([sys.executable, "-c", PROCESS, str(path)], capture_output=True, text=True, check=True)
    peak, predicted = json.loads(done.stdout)
    print(f"peak {peak / 2**20:.0f}, predicted {predicted / 2**20:.0f} MiB")
    assert 0 < peak < predicted


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"k": 0.5}, "number of triplets"),
        ({"k": 6}, "at most 5"),
        ({"k": 2, "kind": "symmetric"}, "shape|square|symmetric"),
        ({"k": 2, "iteration_rank": 3}, "two columns per triplet: give 4 to 13"),
        ({"k": 2, "iteration_rank": 14}, "give 4 to 13"),
        ({"k": 2, "tol": 2.0}, "between 0 and 1"),
        ({"k": 2, "algorithm": "lanczos"}, "unknown algorithm"),
    ],
)
def test_what_does_not_fit_is_refused(asked: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInputError, match=sentence):
        singular_triplets(np.ones((8, 5)), **asked)


def test_symmetric_data_are_read_as_they_are() -> None:
    with pytest.raises(BadInputError, match=r"use npmdask\.top_k"):
        singular_triplets(np.eye(5), 2, kind="symmetric")


@pytest.mark.slow
def test_a_run_on_the_matrix_itself_is_another_one(tmp_path: Path) -> None:
    """The same numbers k, p, tol in both: a store of the dilation once answered a question about the matrix."""
    b = np.random.default_rng(0).standard_normal((40, 12))
    singular_triplets(b, 2, iteration_rank=6, tol=1e-6, store=tmp_path / "run")
    with pytest.raises(RefusedError, match=r"lens\.dilation"):
        npmdask.top_k(b, 4, iteration_rank=6, tol=1e-6, store=tmp_path / "run")
