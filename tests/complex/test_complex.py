"""Complex matrices: the answers of NumPy's SVD, by every route; and what has no complex form is refused."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp
import xarray as xr

import npmdask
from npmdask.cli.main import main
from npmdask.complex.parts import as_complex, as_real, complex_pairs, fix_phases, interleaved, times_i
from npmdask.core.numerics.subspaces import orth
from npmdask.core.runs.build import make_problem
from npmdask.core.runs.problem import Presentation, Request
from npmdask.core.runs.solution import Solution
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError, NpmdaskError, RefusedError
from npmdask.planning.row_sample import SampleBudget, sample_of
from npmdask.privacy.request import Privacy
from tests.conftest import often, write_zarr
from tests.core.algorithms.answers import ROUNDING, fault
from tests.core.algorithms.test_gram import FAMILIES, Rows
from tests.core.algorithms.test_row_gram import copies, far, steep, tied, turned

K = 3
ROUTES = ("power", "krylov", "gram")


def complex_rows(m: int = 60, d: int = 14, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((m, d)) + 1j * rng.standard_normal((m, d))) * np.geomspace(6, 0.5, d) + 4 - 3j


def planted(m: int, d: int, values: Any, seed: int = 0) -> np.ndarray:
    """A complex matrix with these singular values."""
    rng, r = np.random.default_rng(seed), len(values)
    u, v = (np.linalg.qr(rng.standard_normal((n, r)) + 1j * rng.standard_normal((n, r)))[0] for n in (m, d))
    return np.asarray((u * values) @ v.conj().T)


def seen(
    x: np.ndarray,
    *,
    center: bool = False,
    scale: bool = False,
    u: np.ndarray | None = None,
    v: np.ndarray | None = None,
) -> np.ndarray:
    """The matrix that is asked about, as its definition says."""
    u, v = np.ones(len(x)) if u is None else u, np.ones(x.shape[1]) if v is None else v
    mean = u @ x / u.sum()
    x = (x - mean * center) / (np.sqrt(u @ np.abs(x - mean) ** 2 / u.sum()) if scale else 1)
    return x * np.sqrt(v) * np.sqrt(u)[:, None]


def require_svd(solution: Solution, a: np.ndarray, rows: float, tol: float = 1e-10) -> None:
    """Values, vectors, phases and residuals are those of NumPy."""
    k, samples = len(solution.values), solution.analysed.kind == "samples"
    _, s, vh = np.linalg.svd(a, full_matrices=False)
    s, v = s[:k], vh[:k].conj().T
    np.testing.assert_allclose(solution.values, s**2 / rows if samples else s, rtol=tol, atol=tol * s[0])
    np.testing.assert_allclose(solution.basis.conj().T @ solution.basis, np.eye(k), atol=1e-12)
    overlap = np.abs((v.conj() * solution.basis).sum(axis=0))
    np.testing.assert_allclose(overlap, 1, atol=tol)
    np.testing.assert_allclose(solution.basis, v * fix_phases(v), atol=1e3 * tol)
    if not samples:
        left = solution.left_basis()
        np.testing.assert_allclose(a @ solution.basis, left * solution.values, atol=10 * tol * s[0])
        np.testing.assert_allclose(left.conj().T @ left, np.eye(k), atol=1e-10)


def in_complex(rows: Rows) -> Callable[[np.random.Generator, int, int], np.ndarray]:
    """Rows of real numbers in complex directions, or as the real part of complex ones."""

    def family(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
        x = rows(rng, n, d)
        if rng.random() < 0.3:
            return x + 1j * rows(rng, n, d)
        turn = np.linalg.qr(rng.standard_normal((d, d)) + 1j * rng.standard_normal((d, d)))[0]
        return x * np.exp(2j * np.pi * rng.random((n, 1))) if rng.random() < 0.3 else x @ turn

    family.__name__ = rows.__name__
    return family


def levels(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """Values that are the same: more than are asked for, or fewer, and the others far below or zero."""
    r = min(n, d)
    sizes = np.where(np.arange(r) < rng.integers(1, 8), 1.0, rng.choice([0.0, 1e-12, 1e-4, 0.9]))
    return planted(n, d, sizes * 10.0 ** rng.uniform(-6, 6), seed=int(rng.integers(2**31)))


KINDS_OF_ROWS = (*map(in_complex, (*FAMILIES, tied, copies, far, turned(steep))), levels)


def wrong(seed: int) -> str:
    """What is wrong about the run on problem ``seed``; nothing, if nothing is."""
    rng = np.random.default_rng([47, seed])
    family, algorithm = KINDS_OF_ROWS[seed % len(KINDS_OF_ROWS)], ROUTES[seed % len(ROUTES)]
    d = int(rng.integers(7, 40))
    n = int(rng.integers(d, 200))
    x = family(rng, n, d).astype(rng.choice(["c8", "c16"]))
    kind, center, tol = str(rng.choice(["samples", "matrix"])), bool(rng.random() < 0.6), 10 ** -rng.uniform(3, 10)
    k = int(rng.integers(1, 6))
    about = f"{seed}: {family.__name__}, {algorithm}, {kind}, {n} x {d}, {x.dtype}, k {k}, tol {tol:.0e}, {center}"
    asked: dict[str, Any] = {"kind": kind, "algorithm": algorithm, "center": center, "tol": tol, "seed": seed}
    found = npmdask.top_k(x, k, max_steps=60, threads=1, **asked)
    wide = x.astype(np.clongdouble)
    rows = n if kind == "samples" else 1
    a = wide - wide.mean(axis=0) * center
    matrix = np.asarray(a.conj().T @ a / rows, np.complex128)
    values = np.linalg.eigvalsh(matrix)[::-1]
    size = float((np.abs(wide) ** 2).sum()) / rows * center
    how = {"tol": tol, "floor": ROUNDING * (values[0] + size), "samples": kind == "samples"}
    said = fault(found, matrix @ found.basis, values, **how)
    return said and f"{about}: {said}"


@pytest.mark.slow
def test_no_random_problem_is_wrong_and_called_converged() -> None:
    """Of every route: ties, copies, far means, ranks below k, steep falls, in complex directions."""
    found = [said for seed in range(45) if (said := wrong(seed))]
    assert not found, found


@pytest.mark.heavy
@pytest.mark.parametrize("part", range(10))
def test_none_of_thousands_is(part: int) -> None:
    found = [said for seed in range(300 * part, 300 * part + 300) if (said := wrong(seed))]
    assert not found, found


CASES = list(itertools.product(ROUTES, ("samples", "matrix"), ("plain", "centred", "scaled", "weighted")))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "kind", "view"),
    often(CASES, *(CASES.index(c) for c in [
        ("power", "samples", "plain"), ("krylov", "matrix", "weighted"), ("gram", "matrix", "centred"),
        ("gram", "samples", "weighted"), ("krylov", "samples", "scaled"),
    ])),
)  # fmt: skip
def test_answers_are_those_of_numpy(algorithm: str, kind: str, view: str) -> None:
    rng, x = np.random.default_rng(1), complex_rows()
    asked: dict[str, Any] = {"center": view != "plain", "scale": view in ("scaled", "weighted")}
    weights = {"u": rng.uniform(0, 3, 60), "v": rng.uniform(0.1, 2, 14)} if view == "weighted" else {}
    named = {"row_weights": weights["u"], "column_weights": weights["v"]} if weights else {}
    solution = npmdask.top_k(x, K, kind=kind, algorithm=algorithm, iteration_rank=5, tol=1e-12, **asked, **named)
    a = seen(x, **asked, **weights)
    require_svd(solution, a, weights["u"].sum() if weights else 60)
    assert solution.converged and solution.certificate is not None
    if asked["center"]:
        share = np.linalg.svd(a, compute_uv=False)[:K] ** 2 / np.sum(np.abs(a) ** 2)
        np.testing.assert_allclose(solution.explained_variance_ratio, share, rtol=1e-9)
    scores = solution.scores(x)
    rows_weight = np.sqrt(weights["u"])[:, None] if weights else 1.0
    np.testing.assert_allclose(scores * rows_weight, a @ solution.basis, atol=1e-9)
    back = solution.inverse_transform(scores)
    kept = a @ solution.basis @ solution.basis.conj().T
    np.testing.assert_allclose(seen(back, **weights) if view == "plain" else kept, kept, atol=1e-9)
    mean = 0 if solution.mean is None else solution.mean
    np.testing.assert_allclose(mean + scores @ solution.patterns().T, back, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", often(ROUTES, 2))
def test_more_columns_than_rows_single_precision_and_a_large_offset(algorithm: str) -> None:
    x = complex_rows(12, 30)
    require_svd(npmdask.top_k(x, K, algorithm=algorithm, tol=1e-12), x, 12)
    single = complex_rows(200, 12).astype(np.complex64)
    found = npmdask.top_k(single, K, kind="samples", center=True, algorithm=algorithm)
    assert found.basis.dtype == np.complex128
    require_svd(found, seen(single.astype(np.complex128), center=True), 200, 1e-5)
    far = complex_rows() + 1e6 * (1 + 1j)
    require_svd(
        npmdask.top_k(far, K, kind="samples", center=True, algorithm=algorithm), seen(far, center=True), 60, 1e-8
    )


@pytest.mark.slow
def test_mixed_precision_of_krylov() -> None:
    x = planted(300, 120, 0.8 ** np.arange(60)).astype(np.complex64)
    options = {"precision": "mixed", "basis_blocks": 3}
    found = npmdask.top_k(x, K, kind="samples", center=True, algorithm="krylov", options=options, iteration_rank=8)
    require_svd(found, seen(x.astype(np.complex128), center=True), 300, 1e-5)
    assert found.steps > 1


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", often(ROUTES, 1))
@pytest.mark.parametrize("k", [2, 3, 4])
def test_ties_and_ks_that_cut_through_them(algorithm: str, k: int) -> None:
    a = planted(80, 40, [5, 3, 3, 3, 1, *(0.5 * 0.8 ** np.arange(30))])
    found = npmdask.top_k(a, k, kind="samples", algorithm=algorithm, iteration_rank=6)
    np.testing.assert_allclose(found.values, np.array([25, 9, 9, 9])[:k] / 80, rtol=1e-12)
    np.testing.assert_allclose(found.basis.conj().T @ found.basis, np.eye(k), atol=1e-12)
    residuals = np.linalg.norm(a.conj().T @ (a @ found.basis) / 80 - found.basis * found.values, axis=0)
    assert residuals.max() < 1e-9
    np.testing.assert_allclose(residuals, found.residual_norms, atol=1e-12)
    claimed = found.certificate["levels"][-1]  # type: ignore[index]
    assert (claimed["sine"] is None) == (k < 4)  # inside of the tie no space is determined
    assert claimed["component_sines"][0] is not None


@pytest.mark.slow
def test_real_and_imaginary_data_are_what_they_are() -> None:
    x = complex_rows(40, 8).real
    real = npmdask.top_k(x, 2, kind="samples", tol=1e-12)
    for factor in (1, 1j):
        found = npmdask.top_k(factor * x + 0j, 2, kind="samples", tol=1e-12)
        np.testing.assert_allclose(found.values, real.values, rtol=1e-12)
        np.testing.assert_allclose(found.basis, real.basis, atol=1e-9)


def test_fewer_directions_than_components() -> None:
    a = planted(40, 20, [2.0, 1.0])
    found = npmdask.top_k(a, 4)
    np.testing.assert_allclose(found.values, [2, 1, 0, 0], atol=1e-12)
    np.testing.assert_allclose(found.basis.conj().T @ found.basis, np.eye(4), atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["power", "krylov"])
def test_a_hermitian_matrix(algorithm: str) -> None:
    q = np.linalg.qr(complex_rows(30, 30))[0]
    a = (q * np.array([5, -4, 3, *(0.7 ** np.arange(27))])) @ q.conj().T
    a = (a + a.conj().T) / 2
    found = npmdask.top_k(a, K, kind="symmetric", algorithm=algorithm)
    np.testing.assert_allclose(found.values, [5, -4, 3], rtol=1e-12)
    np.testing.assert_allclose(a @ found.basis, found.basis * found.values, atol=1e-7)
    b = complex_rows(30, 30)
    with pytest.raises(BadInputError, match=r"\(A \+ A.conj\(\).T\) / 2"):  # symmetric and not Hermitian
        npmdask.top_k(b + b.T, K, kind="symmetric", algorithm=algorithm)


@pytest.mark.slow
def test_all_sources_give_the_same_answer(tmp_path: Path) -> None:
    x = complex_rows()
    whole = npmdask.top_k(x, K, kind="samples", center=True, tol=1e-12)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "fortran.npy", np.asfortranarray(x.astype(">c16")))
    grid = xr.DataArray(x.reshape(60, 7, 2), dims=("time", "a", "b"), coords={"a": np.arange(7)})
    sources: list[tuple[Any, dict[str, Any]]] = [
        (write_zarr(tmp_path / "x.zarr", x, (17, 5)), {}),
        (write_zarr(tmp_path / "direct.zarr", x, (17, 5), compressors=None), {}),
        (tmp_path / "x.npy", {}),
        (tmp_path / "fortran.npy", {}),
        (np.load(tmp_path / "x.npy", mmap_mode="r"), {}),
        (da.from_array(x, chunks=(13, 4)), {}),
        (da.from_array(x, chunks=(13, 4)), {"spill": tmp_path / "spill"}),
        (x.tolist(), {}),
        (grid, {"dim": "time"}),
        (grid.chunk({"time": 20}), {"dim": "time"}),
    ]
    for source, more in sources:
        found = npmdask.top_k(source, K, kind="samples", center=True, tol=1e-12, **more)
        np.testing.assert_allclose(found.basis, whole.basis, atol=1e-9, err_msg=str(type(source)))
        np.testing.assert_allclose(found.mean, x.mean(axis=0), rtol=1e-12)
    assert found.to_xarray()["components"].shape == (K, 7, 2)
    np.testing.assert_allclose(found.to_xarray()["mean"].values.ravel(), x.mean(axis=0), rtol=1e-12)


@pytest.mark.slow
def test_stores_are_resumed_deflated_and_started_from(tmp_path: Path) -> None:
    x = complex_rows(120, 20)
    path = write_zarr(tmp_path / "x.zarr", x, (32, 20))
    asked: dict[str, Any] = {"kind": "samples", "center": True, "iteration_rank": 5, "algorithm": "power", "tol": 1e-10}
    first = npmdask.top_k(path, K, **asked, max_steps=2, store=tmp_path / "run")
    assert not first.converged and first.basis.shape == (20, K)
    whole = npmdask.resume(tmp_path / "run", max_steps=100)
    require_svd(whole, seen(x, center=True), 120)
    again = npmdask.top_k(path, K, **{**asked, "max_steps": 100}, store=tmp_path / "run")
    assert again.data_passes == 0 and again.basis.tobytes() == whole.basis.tobytes()
    more = npmdask.deflate(tmp_path / "run", 2, store=tmp_path / "more")
    require_svd(more, seen(x, center=True), 120, 1e-9)
    warm = npmdask.top_k(path, K + 1, **{**asked, "iteration_rank": 6}, start=tmp_path / "run")
    require_svd(warm, seen(x, center=True), 120, 1e-9)
    assert warm.steps < npmdask.top_k(path, K + 1, **{**asked, "iteration_rank": 6}).steps


@pytest.mark.slow
def test_left_vectors_that_are_lost_are_made_again(tmp_path: Path) -> None:
    path = write_zarr(tmp_path / "x.zarr", complex_rows(), (17, 14))
    left = npmdask.top_k(path, K, store=tmp_path / "run").left_basis()
    (tmp_path / "run" / "left.zarr" / "c" / "1" / "0").unlink()
    assert npmdask.resume(tmp_path / "run").left_basis().tobytes() == left.tobytes()


@pytest.mark.slow
def test_the_command_line_exports_and_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = complex_rows()
    path, run = write_zarr(tmp_path / "x.zarr", x, (17, 14)), tmp_path / "run"
    assert main(["run", str(path), "-k", "2", "--store", str(run)]) == 0
    assert main(["inspect", str(run)]) == 0
    assert "<c16" in capsys.readouterr().out
    assert main(["plan", str(path), "-k", "2"]) == 0
    assert "complex128" in capsys.readouterr().out
    assert main(["inspect", str(path)]) == 0
    assert "complex128" in capsys.readouterr().out
    solution = npmdask.resume(run)
    assert main(["export", str(run), str(tmp_path / "out.npz")]) == 0
    out = np.load(tmp_path / "out.npz")
    assert out["basis"].tobytes() == np.ascontiguousarray(solution.basis).tobytes()
    np.testing.assert_array_equal(out["left_basis"], solution.left_basis())
    assert main(["export", str(run), str(tmp_path / "out.csv")]) == 0
    table = np.genfromtxt(tmp_path / "out.csv", delimiter=",", names=True)
    np.testing.assert_array_equal(table["component2_real"] + 1j * table["component2_imag"], solution.basis[:, 1])
    capsys.readouterr()
    assert main(["export", str(run), str(tmp_path / "out.nc")]) != 0
    assert "real numbers only" in capsys.readouterr().err
    assert not (tmp_path / "out.nc").exists()
    assert main(["report", str(run)]) == 0
    assert "up to a phase" in (run / "report.html").read_text()


PROMISE: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "neighboring_relation": "record_replace"}
REFUSED: dict[str, Any] = {
    "privacy": {"privacy": Privacy(**PROMISE, clip_norm=1.0), "store": "run"},
    "mechanism": {"mechanism": "gaussian", "stddev": 0.1},
    "low_rank": {"low_rank_tol": 0.1},
    "share": {"k": 0.9},
    "mean": {"missing": "mean", "center": True},
    "drop": {"missing": "drop-columns"},
    "em": {"missing": "em", "center": True},
    "pairwise": {"missing": "pairwise", "center": True},
    "small side": {"algorithm": "row-gram"},
}


@pytest.mark.parametrize("what", REFUSED)
def test_options_without_a_complex_form_are_refused(what: str, tmp_path: Path) -> None:
    source = write_zarr(tmp_path / "x.zarr", complex_rows())
    with pytest.raises(RefusedError, match="holds complex128"):
        npmdask.top_k(source, **({"k": 2, "kind": "samples"} | REFUSED[what]))


def test_a_report_of_turned_components_is_refused_before_the_run() -> None:
    source = open_source(complex_rows(), "samples", of_complex=True)
    with pytest.raises(RefusedError, match="report"):
        make_problem(source, Request(target_rank=2, presentation=Presentation(rotate="varimax")))


def callers(x: np.ndarray, folder: Path) -> dict[str, Any]:
    """What must not take the real part of complex rows without a word."""
    stored = write_zarr(folder / "x.zarr", x)
    real = npmdask.top_k(x.real, 2, kind="samples")
    return {
        "gram": lambda: npmdask.gram(stored, folder / "G", kind="samples"),
        "triplets": lambda: npmdask.singular_triplets(x, 2),
        "stream": lambda: npmdask.stream_pca(stored, 2),
        "batches": lambda: npmdask.stream_pca(iter([x]), 2),
        "partial_fit": lambda: npmdask.StreamingPCA(2).partial_fit(x),
        "PCA": lambda: npmdask.PCA(2).fit(x),
        "PCA, path": lambda: npmdask.PCA(2).fit(str(stored)),
        "IncrementalPCA": lambda: npmdask.IncrementalPCA(2).fit(x),
        "TruncatedSVD": lambda: npmdask.TruncatedSVD(2).fit(x),
        "transform": lambda: npmdask.PCA(2).fit(x.real).transform(x),
        "scores": lambda: real.scores(x),
        "scores, path": lambda: real.scores(stored),
        "inverse": lambda: real.inverse_transform(x[:, :2]),
        "aligned": lambda: real.aligned(npmdask.top_k(x, 2, kind="samples")),
        "sparse": lambda: npmdask.top_k(sp.csr_array(x), 2),
        "tensor": lambda: npmdask.top_k(np.ones((4, 4, 4)) * 1j, 1, kind="tensor"),
        "matrices": lambda: npmdask.top_k(np.ones((3, 4, 4)) * 1j, 1, kind="matrices"),
        "weights": lambda: npmdask.top_k(x.real, 2, row_weights=np.ones(len(x)) * 1j),
        "packed": lambda: npmdask.top_k(complex_values(stored, {"scale_factor": 0.5}), 2),
        "MCA": lambda: _mca(x),
        "topics": lambda: npmdask.Topics(2).fit(x),
        "mixture": lambda: npmdask.Mixture(2).fit(x),
        "ica": lambda: npmdask.ICA(2).fit(x),
        "private": lambda: npmdask.PrivatePCA(2, **PROMISE, row_norm=1.0, store=folder / "P").fit(str(stored)),
    }


def complex_values(path: Path, attributes: dict[str, Any]) -> Path:
    import zarr

    zarr.open_array(path).attrs.update(attributes)
    return path


def _mca(x: np.ndarray) -> Any:
    from npmdask.xarray import MCA

    complex_field = xr.DataArray(x, dims=("time", "x"))
    return MCA(2).fit(complex_field, complex_field.real.rename(x="y"), dim="time")


@pytest.mark.slow
def test_everything_else_refuses_complex_rows(tmp_path: Path) -> None:
    for name, call in callers(complex_rows(), tmp_path).items():
        with pytest.raises((NpmdaskError, ValueError, TypeError), match=r"(?i)real numbers|complex") as caught:
            call()
        assert str(caught.value), name


@pytest.mark.slow
def test_rotations_comparisons_and_stored_scores_are_of_real_components(tmp_path: Path) -> None:
    path = write_zarr(tmp_path / "x.zarr", complex_rows())
    solution = npmdask.top_k(path, 2, kind="samples", center=True, store=tmp_path / "run")
    for call in (
        solution.rotated,
        lambda: solution.aligned(solution),
        solution.component_counts,
        solution.north_errors,
    ):
        with pytest.raises(BadInputError, match="complex"):
            call()
    assert main(["transform", str(tmp_path / "run"), str(path), str(tmp_path / "scores.zarr")]) != 0


@pytest.mark.parametrize("bad", [np.nan, 1j * np.nan, 1j * np.inf])
def test_values_that_are_not_finite_are_named(bad: complex, tmp_path: Path) -> None:
    x = complex_rows()
    x[37, 11] = bad
    for source in (x, write_zarr(tmp_path / "x.zarr", x, (17, 5)), da.from_array(x, chunks=(13, 14))):
        with pytest.raises(BadInputError, match="at row 37, column 11"):
            npmdask.top_k(source, 2)


@pytest.mark.parametrize(("kind", "view"), [("samples", "plain"), ("matrix", "scaled"), ("symmetric", "plain")])
def test_a_plan_knows_the_spectrum_of_a_sample(kind: str, view: str) -> None:
    x = complex_rows(40, 40)
    x = x @ x.conj().T if kind == "symmetric" else x
    asked = {"center": True, "scale": True} if view == "scaled" else {}
    sample = sample_of(
        open_source(x, kind, of_complex=True), Request(target_rank=2, **asked), lambda: False, SampleBudget()
    )
    assert sample is not None and sample.whole
    s = np.linalg.svd(seen(x, **asked), compute_uv=False)
    wanted = s if kind == "symmetric" else s**2 / 40 * (1 if kind == "samples" else 40)
    np.testing.assert_allclose(np.sort(np.abs(sample.eigenvalues))[::-1], np.repeat(wanted, 2), atol=1e-6 * wanted[0])


def test_pairs_of_a_space_that_is_not_closed() -> None:
    """Four real columns in the six-dimensional space of a triple eigenvalue, beside a pair that is whole."""
    rng = np.random.default_rng(0)
    q = np.linalg.qr(rng.standard_normal((9, 9)) + 1j * rng.standard_normal((9, 9)))[0]
    a = (q * np.array([5, 3, 3, 3, 1, 1, 1, 1, 1])) @ q.conj().T
    inside = interleaved(q[:, 1:4]) @ np.linalg.qr(rng.standard_normal((6, 4)))[0]
    space = orth(np.concatenate([interleaved(q[:, :1]), inside], axis=1), rng)
    found = complex_pairs(space, as_real(a @ as_complex(space)))
    np.testing.assert_allclose(found.values, [5, 3, 3], rtol=1e-12)
    np.testing.assert_allclose(a @ found.vectors, found.vectors * found.values, atol=1e-12)
    np.testing.assert_allclose(found.vectors.conj().T @ found.vectors, np.eye(3), atol=1e-13)
    np.testing.assert_allclose(as_complex(times_i(space)), 1j * as_complex(space))


@pytest.mark.slow
def test_certificates_of_random_complex_problems_hold() -> None:
    """Ties, clusters, both dtypes, early stops: no bound on the ground of a theorem is below the true error."""
    claims = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        m, d, k = int(rng.integers(10, 60)), int(rng.integers(6, 30)), int(rng.integers(1, 4))
        size = min(m, d)
        falling = {
            0: 0.7 ** np.arange(size),
            1: 1 / np.arange(1, size + 1),
            2: np.append(np.ones(3), np.full(size - 3, 0.6)),
        }
        s = falling[seed % 3] * np.where(rng.random(size) < 0.2, 1, 1 + 1e-9 * rng.random(size))
        a = planted(m, d, np.sort(s)[::-1], seed).astype([np.complex128, np.complex64][seed % 2]).astype(np.complex128)
        asked: dict[str, Any] = {
            "algorithm": ROUTES[seed % 3 if seed % 5 else 0],
            "iteration_rank": k + 2,
            "seed": seed,
        }
        asked |= {"tol": 10.0 ** -rng.integers(2, 9), "max_steps": int(rng.integers(1, 12))}
        found = npmdask.top_k(a, k, kind="samples", **asked)
        _, sv, vh = np.linalg.svd(a, full_matrices=True)
        lam = np.append(sv**2 / m, np.zeros(d - size))
        v, basis = vh.conj().T, found.basis
        outside = np.eye(d) - basis @ basis.conj().T
        left = np.linalg.norm(outside @ (a.conj().T @ a / m) @ outside, 2)
        sine = np.linalg.norm(v[:, k:].conj().T @ basis, 2)
        for level in found.certificate["levels"]:  # type: ignore[index]
            if level["ground"] == "none missed":
                continue
            for bound, error in zip(level["value_errors"], np.abs(found.values - lam[:k]), strict=True):
                claims += bound is not None
                assert bound is None or error <= bound * (1 + 1e-9) + 1e-15, (seed, level["ground"], "values")
            assert level["sine"] is None or sine <= level["sine"] * (1 + 1e-9), (seed, level["ground"], "sine")
            assert level["low_rank_error"] is None or left <= level["low_rank_error"] * (1 + 1e-9), (seed, "left")
            for i, bound in enumerate(level["component_sines"]):
                own = np.abs(lam - lam[i]) < 1e-12 * lam[0]
                tilt = np.linalg.norm(v[:, ~own].conj().T @ basis[:, i])
                assert bound is None or tilt <= bound * (1 + 1e-9), (seed, level["ground"], "component", i)
    assert claims > 60
