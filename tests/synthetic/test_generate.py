"""Planted problems: the stored truth against LAPACK, the same bytes always, kills, memory, refusals."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import zarr
from threadpoolctl import threadpool_limits

from npmdask import synthetic
from npmdask.errors import BadInputError, NpmdaskError, RefusedError
from npmdask.formats.ingest import ingest
from npmdask.synthetic import LEFT_FACTORS, REGISTRY, SPECTRA, PlantedSize, dct_rows, generate
from npmdask.writers import journal
from npmdask.writers.sparse import SparseWriter
from tests.conftest import often, unpacked

SMALL: dict[str, dict[str, Any]] = {
    "spiked": {"rows": 300, "columns": 40},
    "spectrum": {"rows": 300, "columns": 40},
    "symmetric": {"columns": 120},
    "rank_deficient": {"rows": 300, "columns": 40, "true_rank": 3},
    "sparse": {"rows": 300, "columns": 90, "row_entries": 7},
    "tensor": {"columns": 60, "noise": "gaussian"},
}
ACCURACY = {"float32": 3e-6, "float64": 1e-13}  # relative to the largest value; vectors: over the gap too
RANK = 6


@pytest.fixture(autouse=True)
def small_slabs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many slabs and tiles even for a small problem."""
    monkeypatch.setattr(synthetic, "SLAB_BYTES", 2**13)
    monkeypatch.setattr(synthetic, "TILE", 32)


def make(folder: Path, problem: str, **options: Any) -> Path:
    generate(folder, problem=problem, **({"rank": RANK} | SMALL[problem] | options))
    return folder


def dense(store: Path) -> np.ndarray:
    group = zarr.open_group(store, mode="r")
    if group.attrs["npmdask"].get("layout") == "packed":
        return unpacked(group).astype(np.float64)
    if "data" in group:
        return group["data"][...].astype(np.float64)
    x = [group[f"X/{name}"][...] for name in ("data", "indices", "indptr")]
    matrix = sp.csr_matrix(tuple(x), shape=group.attrs["npmdask"]["shape"])
    assert matrix.has_canonical_format
    return matrix.toarray().astype(np.float64)


def truth(store: Path) -> tuple[np.ndarray, np.ndarray]:
    group = zarr.open_group(store, mode="r")
    return group["truth/basis"][...], group["truth/values"][...]


def tree(store: Path) -> dict[str, bytes]:
    return {str(f.relative_to(store)): f.read_bytes() for f in store.rglob("*") if f.is_file()}


def sine(basis: np.ndarray, other: np.ndarray) -> float:
    """Of the largest angle between two ranges."""
    return float(np.linalg.norm(other - basis @ (basis.T @ other), 2))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("spectrum", [*SPECTRA])
@pytest.mark.parametrize("problem", ["spectrum", *LEFT_FACTORS[1:], "symmetric", "sparse"])
def test_truth_is_that_of_the_stored_matrix(tmp_path: Path, problem: str, spectrum: str, dtype: str) -> None:
    made: dict[str, Any] = {"spectrum": spectrum, "dtype": dtype}
    if problem in LEFT_FACTORS:
        problem, made = "spectrum", made | {"left_factor": problem}
    store = make(tmp_path / "s", problem, **made)
    basis, values = truth(store)
    data, accuracy = dense(store), ACCURACY[dtype]
    _, sigma, right = np.linalg.svd(data)
    np.testing.assert_allclose(np.abs(values), sigma[:RANK], atol=accuracy)
    full = zarr.open_group(store, mode="r")["truth/spectrum"][...]
    np.testing.assert_allclose(np.abs(full), sigma[: len(full)], atol=accuracy)
    np.testing.assert_allclose(sigma[len(full) :], 0, atol=accuracy)
    assert (np.diff(np.abs(values)) <= 0).all()
    np.testing.assert_allclose(basis.T @ basis, np.eye(RANK), atol=1e-14)
    gap = sigma[RANK - 1] - sigma[RANK]
    assert sine(basis, right[:RANK].T) < accuracy / gap
    residual = data.T @ (data @ basis) - basis * values**2
    np.testing.assert_allclose(residual, 0, atol=accuracy)  # each vector by itself, not only the range


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_symmetric_eigenvalues_have_their_signs(tmp_path: Path, dtype: str) -> None:
    for definite in (False, True):
        store = make(tmp_path / str(definite), "symmetric", dtype=dtype, definite=definite, length=40)
        data = dense(store)
        assert (data == data.T).all()
        basis, values = truth(store)
        eigenvalues = np.linalg.eigvalsh(data)
        expected = eigenvalues[np.argsort(-np.abs(eigenvalues))][:RANK]
        np.testing.assert_allclose(values, expected, atol=ACCURACY[dtype])
        np.testing.assert_allclose(data @ basis, basis * values, atol=ACCURACY[dtype])
        assert (values > 0).all() == definite


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("problem", ["spectrum", "rank_deficient"])
def test_samples_values_are_of_the_second_moment(tmp_path: Path, problem: str, dtype: str) -> None:
    store = make(tmp_path / "s", problem, kind="samples", dtype=dtype)
    data = dense(store)
    basis, values = truth(store)
    moment = data.T @ data / len(data)
    np.testing.assert_allclose(values, np.linalg.eigvalsh(moment)[::-1][:RANK], atol=ACCURACY[dtype] * values[0])
    np.testing.assert_allclose(moment @ basis, basis * values, atol=ACCURACY[dtype] * values[0])


def test_rank_deficient_has_its_true_rank(tmp_path: Path) -> None:
    store = make(tmp_path / "s", "rank_deficient", dtype="float64")
    basis, values = truth(store)
    sigma = np.linalg.svd(dense(store), compute_uv=False)
    np.testing.assert_allclose(sigma[:RANK], values, atol=1e-13)
    assert np.count_nonzero(values) == 3 and (sigma[3:] < 1e-13).all()
    np.testing.assert_allclose(basis.T @ basis, np.eye(RANK), atol=1e-14)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_spiked_is_a_sample_of_its_population(tmp_path: Path, dtype: str) -> None:
    rows, stddev, rank = 40_000, 0.5, 4
    store = make(tmp_path / "s", "spiked", rows=rows, columns=30, rank=rank, stddev=stddev, dtype=dtype)
    data = dense(store)
    basis, values = truth(store)
    np.testing.assert_allclose(values, np.linspace(20, 10, rank) ** 2 + stddev**2)
    along = data @ basis
    expected = np.sqrt(values)
    tolerance = 5 / np.sqrt(2 * rows)  # five standard errors of a standard deviation
    np.testing.assert_allclose(along.std(axis=0), expected, rtol=tolerance)
    noise = data - along @ basis.T
    measured = np.sqrt((noise**2).sum() / (rows * (30 - rank)))
    assert abs(measured / stddev - 1) < tolerance / np.sqrt(30 - rank) * 1.1
    assert np.abs(np.corrcoef(along.T) - np.eye(rank)).max() < 5 / np.sqrt(rows)
    _, _, right = np.linalg.svd(data, full_matrices=False)
    sampled = sine(basis, right[:rank].T)
    predicted = stddev * np.sqrt(30 / rows) / 10
    assert predicted / 4 < sampled < 4 * predicted


@pytest.mark.slow
@pytest.mark.parametrize("law", LEFT_FACTORS)
@pytest.mark.parametrize("shape", [(1, 1, 1), (6, 6, 6), (24, 9, 6), (25, 9, 6), (3000, 40, 40), (20_000, 8, 8)])
def test_left_factors_are_orthonormal_to_rounding(law: str, shape: tuple[int, int, int]) -> None:
    """On both sides of the height from which Cholesky takes QR's place. Mutants: TALL = 1; L in place of its transpose;
    of the sum of Gram matrices, one part left out."""
    rows, columns, r = shape
    size = PlantedSize(rows=rows, columns=columns, rank=1, dtype=np.dtype("float64"), seed=3)
    made, turn = synthetic._left_rows(size, np.eye(r), law)
    u = np.concatenate([made(*span) @ turn for span in synthetic._spans(size)])
    np.testing.assert_allclose(u.T @ u, np.eye(r), atol=1e-14)


def leading_rows(folder: Path, law: str) -> np.ndarray:
    """The rows of 20,000 in the coordinates of their first six right singular vectors, each of variance 1."""
    options: dict[str, Any] = {"rows": 20_000, "dtype": "float64", "kind": "samples", "left_factor": law}
    store = make(folder / law, "spectrum", **options)
    basis, values = truth(store)
    return dense(store) @ basis / np.sqrt(values)


@pytest.mark.slow
def test_rows_are_distributed_as_is_said(tmp_path: Path) -> None:
    """Gaussian by default: kurtosis 3, and a sample of n rows is off by as much as chance has it, regular or not.
    Mutants: cosines as the default; t without the common divisor of a row; sorted by the last component."""
    rows = leading_rows(tmp_path, "gaussian")
    assert (
        dense(make(tmp_path / "default", "spectrum", rows=300))
        == dense(make(tmp_path / "named", "spectrum", rows=300, left_factor="gaussian"))
    ).all()
    assert (np.abs((rows**4).mean(axis=0) - 3) < 0.25).all()
    chance = np.sqrt(RANK * (RANK + 1) / 500)
    for part in (rows[:500], rows[::40], rows[7::40]):
        assert 0.5 < np.linalg.norm(part.T @ part / 500 - np.eye(RANK)) / chance < 1.5
    cosines = leading_rows(tmp_path, "cosine")[::40]
    assert np.linalg.norm(cosines.T @ cosines / 500 - np.eye(RANK)) < chance / 10, "a regular sample is nearly exact"
    heavy = (leading_rows(tmp_path, "heavy-tailed") ** 2).sum(axis=1)
    assert np.sort(heavy)[-200:].sum() > 0.1 * heavy.sum() > 1.5 * np.sort((rows**2).sum(axis=1))[-200:].sum()
    scores = leading_rows(tmp_path, "sorted")
    turned = np.diff(scores, axis=0) * np.sign(scores[0] - scores[-1])
    assert (turned[:, 0] <= 1e-12).all() and (np.abs(np.mean(turned[:, 1:] > 0, axis=0) - 0.5) < 0.03).all()


@pytest.mark.slow
def test_a_store_of_cosines_is_described_as_before_there_was_a_choice(tmp_path: Path) -> None:
    """So that a write which an older version began goes on. Mutant: left_factor among its options."""
    options = {}
    for law in ("cosine", "sorted"):
        store = make(tmp_path / law, "spectrum", left_factor=law)
        options[law] = zarr.open_group(store, mode="r").attrs["npmdask"]["generated"]["options"]
    assert "left_factor" not in options["cosine"] and options["sorted"]["left_factor"] == "sorted"


def test_dct_columns_are_orthonormal_up_to_the_square() -> None:
    for m, r in [(1, 1), (2, 2), (7, 7), (500, 13)]:
        columns = dct_rows(range(m), r, m)
        np.testing.assert_allclose(columns.T @ columns, np.eye(r), atol=1e-14)


PROBLEMS = [(problem, {}) for problem in REGISTRY] + [
    ("spectrum", {"left_factor": law, "length": 20}) for law in LEFT_FACTORS
]


@pytest.mark.slow
@pytest.mark.parametrize(("problem", "options"), PROBLEMS)
def test_bytes_do_not_depend_on_workers_or_blas_threads(tmp_path: Path, problem: str, options: dict[str, Any]) -> None:
    with threadpool_limits(limits=2):
        first = tree(make(tmp_path / "a", problem, workers=1, **options))
    with threadpool_limits(limits=1):
        second = tree(make(tmp_path / "b", problem, workers=4, **options))
    assert first == second
    assert tree(make(tmp_path / "c", problem, seed=1, **options)) != first


@pytest.mark.slow
def test_blas_is_pinned_where_its_threads_would_change_the_bytes(tmp_path: Path) -> None:
    stores = []
    for threads in (1, 2):
        with threadpool_limits(limits=threads):
            stores.append(tree(make(tmp_path / str(threads), "spiked", rows=16, columns=100_000, rank=10)))
    assert stores[0] == stores[1]


def test_every_slab_has_its_own_signs() -> None:
    size = PlantedSize(rows=100, columns=10, rank=2, dtype=np.dtype("float32"), seed=0)
    assert (size.signs(0, 50) == size.signs(0, 50)).all()
    assert 10 < (size.signs(0, 50) == size.signs(1, 50)).sum() < 40


@pytest.mark.slow
@pytest.mark.parametrize("problem", ["spiked", "spectrum", "symmetric", "rank_deficient"])
def test_data_do_not_depend_on_chunks(tmp_path: Path, problem: str) -> None:
    layout = "full" if problem == "symmetric" else None
    first, second = make(tmp_path / "a", problem), make(tmp_path / "b", problem, chunks=(17, 13), layout=layout)
    assert (dense(first) == dense(second)).all()


@pytest.mark.slow
def test_the_packed_layout_holds_the_same_matrix_in_half_the_bytes(tmp_path: Path) -> None:
    whole = dense(make(tmp_path / "full", "symmetric", columns=500, layout="full"))
    for side in (17, 64, 700):
        done = generate(tmp_path / str(side), problem="symmetric", columns=500, rank=RANK, chunks=(side, side))
        assert (dense(done.dest) == whole).all()
        assert done.bytes == zarr.open_group(done.dest, mode="r")["data"].nbytes
    assert done.bytes == whole.nbytes // 2  # one chunk; stored in float32
    thirds = generate(tmp_path / "thirds", problem="symmetric", columns=500, rank=RANK, chunks=(17, 17)).bytes
    assert thirds < 0.56 * done.bytes


def test_symmetric_is_one_tile_or_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synthetic, "TILE", 256)
    data = dense(make(tmp_path / "s", "symmetric", columns=700, spectrum="harmonic"))
    assert (data == data.T).all()


@pytest.mark.slow
@pytest.mark.parametrize("corner", [{"rows": 1, "columns": 1}, {"rows": 5, "columns": 5}, {"rows": 3, "columns": 9}])
@pytest.mark.parametrize("problem", ["spiked", "spectrum", "sparse", "symmetric"])
def test_smallest_shapes(tmp_path: Path, problem: str, corner: dict[str, int]) -> None:
    if problem == "symmetric":
        corner = {"columns": corner["columns"]}
    rank = min(corner.values())
    store = tmp_path / "s"
    generate(store, problem=problem, rank=rank, dtype="float64", **corner)
    if problem != "spiked":
        sigma = np.linalg.svd(dense(store), compute_uv=False)
        np.testing.assert_allclose(np.abs(truth(store)[1]), sigma[:rank], atol=1e-13)


@pytest.mark.slow
def test_sparse_rows_are_scattered_and_full(tmp_path: Path) -> None:
    store = make(tmp_path / "s", "sparse", rows=1000, columns=160, row_entries=8)
    data = dense(store)
    counts = (data != 0).sum(axis=1)
    assert (counts == 8).all()
    blocks = {tuple(np.flatnonzero(row)) for row in data}
    assert len(blocks) == 20
    assert len({tuple(np.flatnonzero(row)) for row in data[:200]}) == 20  # not sorted by block


def test_summary_record_and_progress(tmp_path: Path) -> None:
    calls: list[tuple[int, int, int]] = []
    done = generate(tmp_path / "s", problem="spiked", rows=300, columns=40, rank=2, progress=lambda *a: calls.append(a))
    assert (done.kind, done.shape, done.dtype, done.bytes) == ("samples", (300, 40), "float32", 48_000)
    assert calls[-1] == (300, 300, 48_000) and len(calls) == -(-300 // 51)
    record = zarr.open_group(tmp_path / "s", mode="r").attrs["npmdask"]
    assert record["fingerprint"] == done.fingerprint
    assert "population" in record["truth"]["note"]
    assert record["generated"]["problem"] == "spiked" and record["generated"]["options"]["stddev"] == 0.05


REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"problem": "spikd"}, "did you mean 'spiked'"),
    ({"stdev": 1.0}, "did you mean 'stddev'"),
    ({"rows": None}, "say how many"),
    ({"rows": 0}, "rows must be"),
    ({"columns": -3}, "columns must be"),
    ({"rank": 0}, "rank must be"),
    ({"rank": 41}, "exceeds the smaller side"),
    ({"rows": 1e3}, "whole number"),
    ({"dtype": "int8"}, "float32 or float64"),
    ({"dtype": np.complex64}, "float32 or float64"),
    ({"seed": -1}, "seed must be"),
    ({"strengths": [1.0]}, "give 2 of them"),
    ({"strengths": [1.0, 2.0]}, "falling"),
    ({"strengths": "abc"}, "type tuple"),
    ({"stddev": -1.0}, "at least 0"),
    ({"stddev": "much"}, "of type float"),
    ({"workers": 0}, "workers"),
    ({"chunks": (0, 4)}, "chunks must be"),
    ({"problem": "spectrum", "spectrum": "powr"}, "did you mean 'power'"),
    ({"problem": "spectrum", "kind": "symmetric"}, "matrix or samples"),
    ({"problem": "spectrum", "length": 41}, "length must be"),
    ({"problem": "spectrum", "left_factor": "cosines"}, "unknown left_factor 'cosines'.*did you mean 'cosine'"),
    ({"problem": "spectrum", "length": 1}, "length must be"),
    ({"problem": "spectrum", "tail": 1.5}, "tail must be"),
    ({"problem": "spectrum", "alpha": 0}, "must be positive"),
    ({"problem": "rank_deficient", "true_rank": 2}, "below rank 2"),
    ({"problem": "rank_deficient", "rank": 1}, "below rank 1"),
    ({"problem": "symmetric"}, "square"),
    ({"problem": "sparse", "chunks": (4, 4)}, "sparse"),
    ({"layout": "packed"}, "layout='packed' is for kind='symmetric', not for kind='samples'"),
    ({"problem": "symmetric", "rows": 40, "layout": "pack"}, "did you mean 'packed'"),
    ({"problem": "symmetric", "rows": 40, "chunks": (4, 5)}, "not square.*--layout full"),
    ({"problem": "sparse", "row_entries": 0}, "at least 1"),
]


@pytest.mark.parametrize(("wrong", "sentence"), REFUSALS)
def test_bad_input_is_a_sentence(tmp_path: Path, wrong: dict[str, Any], sentence: str) -> None:
    fine: dict[str, Any] = {"problem": "spiked", "rows": 300, "columns": 40, "rank": 2}
    with pytest.raises(BadInputError, match=sentence):
        generate(tmp_path / "s", **(fine | wrong))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [({"rows": 10**13}, "GiB free"), ({"columns": 2**30, "rank": 200, "rows": 300}, "memory|GiB free")],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, wrong: dict[str, int], sentence: str) -> None:
    with pytest.raises(RefusedError, match=sentence):
        generate(tmp_path / "s", **({"problem": "spiked", "rows": 300, "columns": 40, "rank": 2} | wrong))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_an_existing_store_is_replaced_only_when_told(tmp_path: Path) -> None:
    first = tree(make(tmp_path / "s", "spiked"))
    with pytest.raises(NpmdaskError, match="exists already"):
        make(tmp_path / "s", "spiked", seed=1)
    assert tree(tmp_path / "s") == first
    make(tmp_path / "s", "spiked", seed=1, overwrite=True)
    assert tree(tmp_path / "s") != first
    assert [f.name for f in tmp_path.iterdir()] == ["s"]


@pytest.mark.slow
def test_a_second_generate_is_refused(tmp_path: Path) -> None:
    script = f"""
import sys
from npmdask.synthetic import generate
def hold(*_):
    print("held", flush=True)
    sys.stdin.read()
generate({str(tmp_path / "s")!r}, problem="spiked", rows=300, columns=40, progress=hold)
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        np.save(tmp_path / "a.npy", np.eye(3))
        for write in (lambda: make(tmp_path / "s", "spiked"), lambda: ingest(tmp_path / "a.npy", tmp_path / "s")):
            with pytest.raises(RefusedError, match=f"pid {other.pid}"):
                write()
        other.communicate()
        assert other.returncode == 0
    assert zarr.open_group(tmp_path / "s", mode="r")["data"].shape == (300, 40)
    assert sorted(f.name for f in tmp_path.iterdir()) == ["a.npy", "s"]


KILL = """
import os, signal, sys
from npmdask import synthetic
from npmdask.writers import journal, sparse
synthetic.SLAB_BYTES, synthetic.TILE = 2**13, 32
journal.JOURNAL_BYTES, sparse.SparseWriter.CHUNK = 2**14, 1000
def progress(done, rows, size):
    if done >= rows // 2:
        os.kill(os.getpid(), signal.SIGKILL)
synthetic.generate(sys.argv[1], progress=progress, **eval(sys.argv[2]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("problem", often(REGISTRY, 0, -1))
def test_a_killed_write_goes_on_to_the_same_bytes(
    tmp_path: Path, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "JOURNAL_BYTES", 2**14)
    monkeypatch.setattr(SparseWriter, "CHUNK", 1000)
    options: dict[str, Any] = {"problem": problem, "rank": RANK} | SMALL[problem]
    if problem not in ("symmetric", "tensor"):
        options["rows"] = 3000
    if problem != "sparse":  # slabs and chunks do not end together
        options["chunks"] = {"symmetric": (19, 19), "tensor": (11, 11, 11)}.get(problem, (19, 40))
    killed = tmp_path / "killed"
    run = subprocess.run([sys.executable, "-c", KILL, str(killed), repr(options)], capture_output=True, text=True)
    assert run.returncode == -9, run.stderr
    assert not killed.exists() and (tmp_path / "killed.partial").is_dir()
    done: list[tuple[int, int]] = []
    generate(killed, progress=lambda rows, total, _bytes: done.append((rows, total)), **options)
    assert done[0][0] > done[0][1] // 4, "it went on, it did not start again"
    assert not (tmp_path / "killed.partial").exists()
    generate(tmp_path / "whole", **options)
    assert tree(killed) == tree(tmp_path / "whole")


MEMORY = """
import sys
from npmdask.synthetic import generate
def peak():
    line = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024
options = eval(sys.argv[2])
generate(sys.argv[1] + "-warm", **(options | {"rows": 512}))
before = peak()
size = generate(sys.argv[1], **options).bytes
print(size / 2**20, peak() - before)
"""


@pytest.mark.slow
@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"problem": "spiked", "rows": 51_200, "columns": 1024},
        {"problem": "spectrum", "rows": 51_200, "columns": 1024, "length": 32},
        {"problem": "sparse", "rows": 800_000, "columns": 4096, "row_entries": 32},
    ],
    ids=lambda options: options["problem"],
)
def test_memory_is_bounded_by_slabs(tmp_path: Path, options: dict[str, Any]) -> None:
    command = [sys.executable, "-c", MEMORY, str(tmp_path / "s"), repr(options)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    size, growth = (float(word) for word in run.stdout.split())
    shutil.rmtree(tmp_path / "s")  # pytest keeps the folders of three runs
    assert size > 190
    assert growth < 100
