"""Weights of rows and of columns: the answer of data that were multiplied first, and what is refused."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp
import xarray as xr
import zarr

import npmdask
import npmdask.core.runs.automatic as automatic
from npmdask.cli.main import main
from npmdask.config import load_config
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.runs import build
from npmdask.core.runs.automatic import posed
from npmdask.core.runs.observers import Observer
from npmdask.core.runs.problem import Request
from npmdask.core.runs.resources import Resources, memory_for, needs_of
from npmdask.core.runs.solution import Solution, Step
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError, RefusedError
from npmdask.planning.row_sample import SampleBudget, sample_of
from npmdask.weights.aspect import Weights
from tests.conftest import often, write_zarr
from tests.core.operators.test_operators import write_csr

M, D, K = 300, 14, 3


def rows_of(layout: str, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((M, D)) * np.geomspace(6, 0.5, D) + 4
    return x * (rng.random((M, D)) < 0.4) if layout == "csr" else x


def weights(seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Of rows and columns, some of them 0."""
    rng = np.random.default_rng(seed)
    rows, columns = rng.uniform(0, 3, M), rng.uniform(0.1, 2, D)
    rows[20:70], columns[4] = 0, 0
    return rows, columns


def multiplied(x: np.ndarray, u: Any, v: Any, *, center: bool, scale: bool) -> np.ndarray:
    """The weighted matrix, as its definition says."""
    u, v = np.ones(len(x)) if u is None else u, np.ones(x.shape[1]) if v is None else v
    mean = u @ x / u.sum()
    x = (x - mean * center) / (np.sqrt(u @ (x - mean) ** 2 / u.sum()) if scale else 1)
    return x * np.sqrt(v) * np.sqrt(u)[:, None]


CASES = list(
    itertools.product(
        ["dense", "csr"], ["power", "krylov", "gram"], [False, True], [False, True], ["both", "rows", "columns"]
    )
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "algorithm", "center", "scale", "which"), often(CASES, 0, 9, 16, 30, 35, 40, 56, 69)
)
def test_the_answer_is_that_of_data_that_were_multiplied_first(
    layout: str, algorithm: str, center: bool, scale: bool, which: str
) -> None:
    x, (u, v) = rows_of(layout), weights()
    u, v = (u if which != "columns" else None), (v if which != "rows" else None)  # type: ignore[assignment]
    a = multiplied(x, u, v, center=center, scale=scale)
    given: Any = sp.csr_matrix(x) if layout == "csr" else x
    how: dict[str, Any] = {"algorithm": algorithm, "tol": 1e-11, "center": center, "scale": scale}
    found = npmdask.top_k(given, K, row_weights=u, column_weights=v, **how)
    first = npmdask.top_k(a, K, algorithm=algorithm, tol=1e-11)
    assert found.converged and first.converged
    np.testing.assert_allclose(found.values, first.values, rtol=1e-10)
    np.testing.assert_allclose(np.abs((found.basis * first.basis).sum(axis=0)), 1, atol=1e-10)
    values = np.linalg.svd(a, compute_uv=False)
    np.testing.assert_allclose(found.values, values[:K], rtol=1e-10)
    level = found.certificate["levels"][-1]  # type: ignore[index]
    for lower, value, upper in zip(level["lower"], values, level["upper"], strict=False):
        assert (lower or 0) <= value * (1 + 1e-13) and value <= (np.inf if upper is None else upper * (1 + 1e-13))
    if center or scale or algorithm == "gram":
        np.testing.assert_allclose(found.explained_share, (values[:K] ** 2).sum() / (values**2).sum(), rtol=1e-10)
    if layout == "dense":
        left = found.left_basis()
        np.testing.assert_allclose(left * found.values, a @ found.basis, atol=1e-9)
    scores = found.scores(x)
    seen = a if u is None else a[u > 0] / np.sqrt(u[u > 0])[:, None]
    np.testing.assert_allclose(scores if u is None else scores[u > 0], seen @ found.basis, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["power", "krylov", "gram"])
def test_covariances_of_samples_are_weighted_and_a_whole_number_counts_as_so_many_rows(algorithm: str) -> None:
    x, counts = rows_of("dense"), np.random.default_rng(3).integers(0, 4, M)
    how: dict[str, Any] = {"kind": "samples", "center": True, "scale": True, "algorithm": algorithm, "tol": 1e-11}
    found = npmdask.top_k(x, K, row_weights=counts, **how)
    repeated = npmdask.top_k(np.repeat(x, counts, axis=0), K, **how)
    for name in ("values", "explained_variance", "explained_variance_ratio", "singular_values", "mean"):
        np.testing.assert_allclose(getattr(found, name), getattr(repeated, name), rtol=1e-10, err_msg=name)
    np.testing.assert_allclose(found.scores(x[:9]) ** 2, repeated.scores(x[:9]) ** 2, atol=1e-9)
    smaller = npmdask.top_k(x, K, row_weights=counts / counts.sum(), **how)  # values are of the weighted mean
    np.testing.assert_allclose(smaller.values, found.values, rtol=1e-10)
    np.testing.assert_allclose(smaller.explained_variance_ratio, found.explained_variance_ratio, rtol=1e-10)
    with pytest.raises(BadInputError, match="row weights add up to 1, and variances are over their sum less 1"):
        smaller.explained_variance.sum()
    assert "explained_variance" not in smaller.to_xarray() and "explained_variance" in found.to_xarray()


@pytest.mark.slow
def test_patterns_and_scores_are_in_the_units_of_the_data_and_orthogonal_by_weight() -> None:
    x, (u, v) = rows_of("dense"), weights()
    found = npmdask.top_k(x, D - 1, center=True, scale=True, row_weights=u, column_weights=v, tol=1e-12)
    patterns, scores, seen = found.patterns(), found.scores(x), v > 0
    assert np.isnan(patterns[~seen]).all() and np.isfinite(patterns[seen]).all()
    mean = u @ x / u.sum()
    variances = u @ (x - mean) ** 2 / u.sum()
    inner = patterns[seen].T @ ((v / variances)[seen, None] * patterns[seen])
    np.testing.assert_allclose(inner, np.eye(D - 1), atol=1e-10)
    np.testing.assert_allclose(
        scores.T @ (u[:, None] * scores), np.diag(found.values**2), atol=1e-8 * found.values[0] ** 2
    )
    np.testing.assert_allclose((mean + scores @ patterns.T)[:, seen], x[:, seen], atol=1e-8)
    back = found.inverse_transform(scores)
    np.testing.assert_allclose(back[:, seen], x[:, seen], atol=1e-8)
    assert np.isnan(back[:, ~seen]).all()
    left, counted = found.left_basis(), u > 0
    np.testing.assert_allclose(
        (left / np.where(counted, np.sqrt(u), np.inf)[:, None] * found.values)[counted], scores[counted]
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["samples", "matrix"])
def test_a_share_of_the_variance_is_one_of_the_weighted_variance(kind: str, tmp_path: Path) -> None:
    x, (u, v) = rows_of("dense"), weights()
    v = v * np.arange(D) ** 2.0  # the columns that vary least count most
    a = multiplied(x, u, v, center=True, scale=False)
    squares = np.linalg.svd(a, compute_uv=False) ** 2
    wanted = int(np.searchsorted(np.cumsum(squares) / squares.sum(), 0.9)) + 1
    found = npmdask.top_k(x, 0.9, kind=kind, center=True, row_weights=u, column_weights=v, store=tmp_path / "run")
    logs = list((tmp_path / "run").rglob("telemetry.jsonl"))  # the columns are surveyed once for all stages
    assert len(logs) > 1 and sum('"survey of the columns", "tasks"' in log.read_text() for log in logs) == 1
    plain = npmdask.top_k(x, 0.9, kind=kind, center=True)
    assert found.target_rank == wanted != plain.target_rank
    np.testing.assert_allclose(found.explained_share, squares[:wanted].sum() / squares.sum(), rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["dense", "csr"])
@pytest.mark.parametrize("algorithm", ["krylov", "gram"])
def test_moments_that_were_recorded_of_equal_rows_are_not_taken_for_those_of_weighted_ones(
    layout: str, algorithm: str, tmp_path: Path
) -> None:
    """A mean, a deviation or a trace of the rows as they were ingested would certify another matrix."""
    x, (u, v) = rows_of(layout), weights()
    plain: Any = tmp_path / "x.npy"
    np.save(plain, x)
    if layout == "csr":
        plain = write_csr(tmp_path / "plain", sp.csr_matrix(x), 101)
    assert main(["ingest", str(plain), str(tmp_path / "x.zarr"), "--quiet"]) == 0
    assert open_source(tmp_path / "x.zarr").column_mean is not None
    kind = "sparse" if layout == "csr" else "matrix"
    how: dict[str, Any] = {"kind": kind, "center": True, "scale": True, "algorithm": algorithm, "tol": 1e-11}
    found = npmdask.top_k(tmp_path / "x.zarr", K, row_weights=u, column_weights=v, **how, store=tmp_path / "run")
    values = np.linalg.svd(multiplied(x, u, v, center=True, scale=True), compute_uv=False)
    np.testing.assert_allclose(found.values, values[:K], rtol=1e-10)
    np.testing.assert_allclose(found.explained_share, (values[:K] ** 2).sum() / (values**2).sum(), rtol=1e-10)
    np.testing.assert_allclose(found.mean, u @ x / u.sum())
    scores = found.scores(x)
    assert (
        main(["transform", str(tmp_path / "run"), str(tmp_path / "x.zarr"), str(tmp_path / "s.zarr"), "--quiet"]) == 0
    )
    np.testing.assert_allclose(zarr.open_group(tmp_path / "s.zarr", mode="r")["data"][...], scores, atol=1e-9)


class Dies(Observer):
    def __init__(self, step: int) -> None:
        self.last = step

    def on_step(self, step: Step) -> None:
        if step.number >= self.last:
            raise KeyboardInterrupt


@pytest.mark.slow
@pytest.mark.parametrize("layout", often(["dense", "csr"], 1))
def test_a_run_that_was_killed_goes_on_with_its_own_weights_to_the_same_bits(layout: str, tmp_path: Path) -> None:
    x, (u, v) = rows_of(layout), weights()
    path = (
        write_zarr(tmp_path / "x.zarr", x, (40, D))
        if layout == "dense"
        else write_csr(tmp_path / "x", sp.csr_matrix(x), 53)
    )
    np.save(tmp_path / "u.npy", u)
    how: dict[str, Any] = {"algorithm": "power", "center": True, "scale": True, "iteration_rank": 5}
    how |= {"row_weights": tmp_path / "u.npy", "column_weights": v}
    whole = npmdask.top_k(path, K, **how, store=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        npmdask.top_k(path, K, **how, store=tmp_path / "run", observer=Dies(2))
    (tmp_path / "u.npy").unlink()  # the store has them
    again = npmdask.resume(tmp_path / "run")
    for name in ("values", "basis", "residual_norms", "mean"):
        assert np.array_equal(getattr(again, name), getattr(whole, name)), name
    assert again.data_passes < whole.data_passes
    for others, said in (
        ({"row_weights": u + 1e-13, "column_weights": v}, r"weights\.rows"),
        ({"row_weights": u}, r"weights\.columns"),
        ({}, r"weights\.(rows|columns)"),
    ):
        with pytest.raises(RefusedError, match=f"belongs to another run; these differ: .*{said}"):
            npmdask.top_k(
                path, K, algorithm="power", center=True, scale=True, iteration_rank=5, store=tmp_path / "run", **others
            )
    plain = npmdask.top_k(
        path, K, algorithm="power", center=True, scale=True, iteration_rank=5, store=tmp_path / "plain"
    )
    assert not np.allclose(plain.values, whole.values)
    with pytest.raises(RefusedError, match=r"weights\.columns"):
        npmdask.top_k(path, K, **{**how, "row_weights": None}, store=tmp_path / "plain")


def test_weights_in_a_store_that_were_changed_are_refused(tmp_path: Path) -> None:
    path, (u, _) = write_zarr(tmp_path / "x.zarr", rows_of("dense"), (40, D)), weights()
    with pytest.raises(KeyboardInterrupt):
        npmdask.top_k(path, K, algorithm="power", row_weights=u, store=tmp_path / "run", observer=Dies(1))
    with RunStore(tmp_path / "run") as held:
        held.drop_part("weights")
        held.write_part("weights", {"rows": u[::-1].copy()}, {})
    with pytest.raises(RefusedError, match="are not those that the run began with: start it again"):
        npmdask.resume(tmp_path / "run")


@pytest.mark.slow
def test_no_number_of_threads_or_processes_changes_a_bit_and_further_components_are_weighted_too(
    tmp_path: Path,
) -> None:
    x, (u, v) = rows_of("dense"), weights()
    path = write_zarr(tmp_path / "x.zarr", x, (40, 5))
    how: dict[str, Any] = {"kind": "samples", "center": True, "row_weights": u, "column_weights": v, "tol": 1e-11}
    one = npmdask.top_k(path, K, **how, threads=1, store=tmp_path / "one")
    for other in (npmdask.top_k(path, K, **how, threads=3), npmdask.top_k(path, K, **how, workers=2, threads=1)):
        assert np.array_equal(one.values, other.values) and np.array_equal(one.basis, other.basis)
    squares = np.linalg.svd(multiplied(x, u, v, center=True, scale=False), compute_uv=False) ** 2 / u.sum()
    more = npmdask.deflate(tmp_path / "one", 2, store=tmp_path / "more")
    np.testing.assert_allclose(more.values, squares[: K + 2], rtol=1e-9)
    warm = npmdask.top_k(path, K + 1, **how, start=tmp_path / "one", store=tmp_path / "warm")
    np.testing.assert_allclose(warm.values, squares[: K + 1], rtol=1e-9)


def test_weights_that_are_none_are_refused_in_a_sentence(tmp_path: Path) -> None:
    x = rows_of("dense")
    good, bad = np.ones(M), np.ones(M)
    for value in (-1.0, np.nan, np.inf):
        bad[7] = value
        with pytest.raises(BadInputError, match=r"row_weights: 1 of 300 are negative, missing or infinite \(number 7"):
            npmdask.top_k(x, K, row_weights=bad)
    for given, said in (
        (np.zeros(M), "row_weights are all zero"),
        (good[:-1], "there are 299 row_weights and .* has 300 rows: give one number for each"),
        (good[:, None], "give one number after the other"),
        (-1, r"row_weights = -1 is one number: give one for each row, or leave row_weights out"),
        (2.5, r"row_weights = 2.5 is one number"),
        (np.float64(3), r"row_weights = 3.0 is one number"),
        ({"a": 1}, r"row_weights of type dict: give an array of real numbers \(one number for each row\)"),
        (np.full(M, 1e308), "divide all by the largest"),
        (np.ma.masked_equal(np.arange(M), 5), "1 masked values"),
        (good + 1j, "give real numbers"),
        ("nowhere", "neither a file .* nor a coordinate of the data: the data have no coordinates"),
        (tmp_path / "none.npy", "none.npy cannot be read"),
        (Path("."), "cannot be read"),
    ):
        with pytest.raises(BadInputError, match=said):
            npmdask.top_k(x, K, row_weights=given)
    with pytest.raises(BadInputError, match=r"there are 300 column_weights and .* has 14 columns"):
        npmdask.top_k(x, K, column_weights=good)
    np.save(tmp_path / "pickled.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(BadInputError, match="cannot be read"):
        npmdask.top_k(x, K, row_weights=tmp_path / "pickled.npy")


def test_data_that_cannot_be_weighted_are_refused_in_a_sentence(tmp_path: Path) -> None:
    square = np.eye(6)
    with pytest.raises(
        BadInputError, match=r"apply to data with rows and columns, and .* is of kind symmetric: leave them out"
    ):
        npmdask.top_k(square, 2, kind="symmetric", column_weights=np.ones(6))
    with pytest.raises(BadInputError, match="is of kind tensor"):
        npmdask.top_k(np.ones((3, 3, 3)), 1, kind="tensor", row_weights=np.ones(3))
    with pytest.raises(RefusedError, match="a weight of rows or columns needs rows or entries"):
        npmdask.top_k(sp.linalg.aslinearoperator(square), 2, column_weights=np.ones(6))
    npmdask.gram(rows_of("dense"), tmp_path / "gram", kind="samples")
    with pytest.raises(BadInputError, match="is a stored Gram matrix, in which the rows are already summed"):
        npmdask.top_k(tmp_path / "gram", 2, row_weights=np.ones(M))


def test_columns_of_a_stored_gram_can_be_weighted(tmp_path: Path) -> None:
    x, (_, v) = rows_of("dense"), weights()
    npmdask.gram(x, tmp_path / "gram", kind="samples")
    found = npmdask.top_k(tmp_path / "gram", K, center=True, column_weights=v)
    values = np.linalg.svd(multiplied(x, None, v, center=True, scale=False), compute_uv=False) ** 2 / M
    np.testing.assert_allclose(found.values, values[:K], rtol=1e-10)


def test_nothing_but_the_weights_is_held_beside_an_unweighted_run() -> None:
    x, (u, v) = rows_of("dense"), weights()
    peaks = []
    for given in (None, Weights(rows=u, columns=v)):
        for algorithm in ("power", "gram"):
            request = Request(target_rank=K, algorithm=algorithm, center=True, aspects=(given,))
            problem = posed(request, open_source(x), Resources())
            peaks.append(memory_for(needs_of(problem), Resources(threads=1), 0).predicted_peak)
    assert [peaks[2] - peaks[0], peaks[3] - peaks[1]] == [2 * u.nbytes + v.nbytes] * 2


def grid() -> xr.DataArray:
    rng = np.random.default_rng(5)
    values = rng.standard_normal((60, 20)) @ rng.standard_normal((20, 20)) + 3
    coords = {"time": np.arange(60), "lat": [-60.0, -30.0, 0.0, 45.0], "lon": np.arange(5.0) * 72}
    array = xr.DataArray(values.reshape(60, 4, 5), dims=("time", "lat", "lon"), coords=coords)
    area = xr.DataArray(rng.uniform(1, 2, (5, 4)), dims=("lon", "lat"))
    return array.assign_coords(area=area, worth=("time", rng.uniform(0, 2, 60)))


@pytest.mark.slow
@pytest.mark.parametrize("lazy", [False, True])
def test_coordinates_of_labelled_data_are_weights_by_their_names(lazy: bool) -> None:
    field = grid()
    given = field.chunk({"time": 13}) if lazy else field
    flat, u = field.values.reshape(60, 20), field.worth.values
    for named, v in (
        ("coslat", np.repeat(np.cos(np.deg2rad(field.lat.values)), 5)),
        ("area", field.area.transpose("lat", "lon").values.ravel()),
        (field.area, field.area.transpose("lat", "lon").values.ravel()),
        (xr.DataArray([1.0, 2, 3, 4], dims="lat"), np.repeat([1.0, 2, 3, 4], 5)),
    ):
        found = npmdask.top_k(given, 2, dim="time", center=True, row_weights="worth", column_weights=named)
        values = np.linalg.svd(multiplied(flat, u, v, center=True, scale=False), compute_uv=False)
        np.testing.assert_allclose(found.values, values[:2], rtol=1e-9)
    for rows, columns, said in (
        ("wort", None, "did you mean 'worth'"),
        (
            None,
            xr.DataArray(np.ones(3), dims="depth"),
            r"lie along depth \(3\) and the data along lat \(4\), lon \(5\)",
        ),
        (None, "lat", "negative"),
        (
            None,
            field.lat.assign_coords(lat=field.lat + 1) + 90,
            "column_weights has no lat -60.0, which the data has",
        ),
    ):
        with pytest.raises(BadInputError, match=said):
            npmdask.top_k(given, 2, dim="time", row_weights=rows, column_weights=columns)
    with pytest.raises(BadInputError, match='"coslat" needs a coordinate called lat, latitude or nav_lat'):
        npmdask.top_k(given.rename(lat="y"), 2, dim="time", column_weights="coslat")
    with pytest.raises(BadInputError, match="a latitude of -120 degrees is beyond the poles"):
        npmdask.top_k(given.assign_coords(lat=field.lat * 2), 2, dim="time", column_weights="coslat")


@pytest.mark.slow
def test_configurations_and_the_command_line_name_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x, (u, v) = rows_of("dense"), weights()
    write_zarr(tmp_path / "x.zarr", x, (40, D))
    np.save(tmp_path / "u.npy", u)
    zarr.save(str(tmp_path / "v.zarr"), v)
    text = '[source]\npath = "x.zarr"\ncenter = true\nrow_weights = "u.npy"\ncolumn_weights = "v.zarr"\n'
    (tmp_path / "run.toml").write_text(text + "[algorithm]\ntarget_rank = 3\n[stop]\ntol = 1e-11\n")
    assert load_config(tmp_path / "run.toml").source.row_weights == str(tmp_path / "u.npy")
    wanted = np.linalg.svd(multiplied(x, u, v, center=True, scale=False), compute_uv=False)[:3]
    assert main(["plan", str(tmp_path / "run.toml")]) == 0
    assert main(["run", str(tmp_path / "run.toml"), "--quiet"]) == 0
    np.testing.assert_allclose(npmdask.resume(tmp_path / "runs/run").values, wanted, rtol=1e-10)
    flags = ["--row-weights", str(tmp_path / "u.npy"), "--column-weights", str(tmp_path / "v.zarr"), "--tol", "1e-11"]
    where = ["--center", "--store", str(tmp_path / "other"), "--quiet"]
    assert main(["run", str(tmp_path / "x.zarr"), "-k", "3", *flags, *where]) == 0
    np.testing.assert_allclose(npmdask.resume(tmp_path / "other").values, wanted, rtol=1e-10)
    np.save(tmp_path / "u.npy", u + 1)
    capsys.readouterr()
    assert main(["run", str(tmp_path / "run.toml"), "--quiet"]) != 0
    assert "belongs to another run; these differ: weights.rows" in capsys.readouterr().err
    assert main(["resume", str(tmp_path / "runs/run"), "--quiet"]) == 0  # with the weights that it was begun with
    stream = ["-k", "3", "--algorithm", "oja", *flags[:2], "--store", str(tmp_path / "s")]
    assert main(["run", str(tmp_path / "x.zarr"), *stream]) != 0
    assert "choose spm or frequent-directions or IncrementalPCA" in capsys.readouterr().err


@pytest.mark.slow
def test_files_of_labelled_data_know_their_latitudes(tmp_path: Path) -> None:
    field = grid().drop_vars(["area", "worth"]).rename("sst")
    field.to_netcdf(tmp_path / "x.nc", engine="scipy")
    options = ["--dim", "time", "--center", "--column-weights", "coslat", "--store", str(tmp_path / "run"), "--quiet"]
    assert main(["run", str(tmp_path / "x.nc"), "-k", "2", *options]) == 0
    v = np.repeat(np.cos(np.deg2rad(field.lat.values)), 5)
    values = np.linalg.svd(
        multiplied(field.values.reshape(60, 20), None, v, center=True, scale=False), compute_uv=False
    )
    np.testing.assert_allclose(npmdask.resume(tmp_path / "run").values, values[:2], rtol=1e-8)


@pytest.mark.slow
def test_a_solution_of_equal_weights_is_that_without() -> None:
    x = rows_of("dense")
    plain: Solution = npmdask.top_k(x, K, kind="samples", center=True, tol=1e-11)
    equal = npmdask.top_k(
        x, K, kind="samples", center=True, tol=1e-11, row_weights=np.ones(M), column_weights=np.ones(D)
    )
    np.testing.assert_allclose(equal.values, plain.values, rtol=1e-12)
    np.testing.assert_array_equal(plain.patterns(), plain.basis)
    twice = npmdask.top_k(x, K, kind="samples", center=True, tol=1e-11, column_weights=np.full(D, 4.0))
    np.testing.assert_allclose(twice.values, 4 * plain.values, rtol=1e-10)
    np.testing.assert_allclose(np.abs(twice.patterns()), np.abs(plain.basis) / 2, atol=1e-8)


@pytest.mark.parametrize("kind", ["samples", "matrix", "sparse"])
@pytest.mark.parametrize("center", [False, True])
def test_the_sample_that_steps_are_predicted_from_is_of_the_weighted_matrix(kind: str, center: bool) -> None:
    x, (u, v) = rows_of("csr" if kind == "sparse" else "dense"), weights()
    source = open_source(sp.csr_matrix(x) if kind == "sparse" else x, kind)
    for scale in (False, True):
        request = Request(target_rank=K, center=center, scale=scale, aspects=(Weights(rows=u, columns=v),))
        problem = posed(request, source, Resources())
        sample = sample_of(problem.source, request, lambda: False, SampleBudget())
        assert sample is not None and sample.whole
        values = np.linalg.svd(multiplied(x, u, v, center=center, scale=scale), compute_uv=False) ** 2
        values = values / u.sum() if kind == "samples" else values
        np.testing.assert_allclose(sample.eigenvalues[:9], values[:9], rtol=1e-9)


@pytest.mark.slow
def test_what_a_run_weighed_is_seen_from_outside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Fails where a report reads as if rows counted alike, or an export could not be projected onto."""
    x, (u, v) = rows_of("dense"), weights()
    npmdask.top_k(write_zarr(tmp_path / "x", x, (40, D)), K, row_weights=u, column_weights=v, store=tmp_path / "run")
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "out.npz")]) == 0
    with np.load(tmp_path / "out.npz") as found:
        assert np.array_equal(found["row_weights"], u) and np.array_equal(found["column_weights"], v)
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "out.nc")]) == 0
    capsys.readouterr()
    assert main(["inspect", str(tmp_path / "run")]) == 0
    digest = Weights(rows=u).digests()["rows"]
    assert digest in capsys.readouterr().out
    assert main(["report", str(tmp_path / "run")]) == 0
    page = (tmp_path / "run" / "report.html").read_text()
    assert "weights.rows" in page and f"{M:,} rows weigh {u[u > 0].min():.4g} to {u.max():.4g}, {u.sum():.6g}" in page
    assert ("of them weigh nothing" in page) == bool((u == 0).any() or (v == 0).any())
    assert main(["gc", str(tmp_path), "--older-than", "0h"]) == 0
    np.testing.assert_allclose(npmdask.resume(tmp_path / "run").scores(x).shape, (M, K))


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["krylov", "gram", "power"])
@pytest.mark.parametrize("which", ["rows", "columns", "no column"])
def test_float32_is_certified_of_the_weighted_matrix(
    algorithm: str, which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of large data: block Krylov would multiply them in float32. Roots of equal weights are rounded to one side."""
    monkeypatch.setattr(automatic, "LARGE", 0)
    rng = np.random.default_rng(8)
    x = (np.ones((2000, 1)) * rng.integers(1, 9, 24) + 0.01 * rng.standard_normal((2000, 24))).astype(np.float32)
    u, v = (np.full(2000, 3.0), None) if which == "rows" else (None, rng.uniform(1e-12, 3, 24))
    if which == "no column":
        v[5] = 0
    request = Request(target_rank=K, algorithm=algorithm, aspects=(Weights(rows=u, columns=v),))
    problem: Any = posed(request, open_source(x), Resources())
    assert algorithm != "krylov" or problem.algorithm.mixed_precision is (which == "columns")
    found = npmdask.top_k(x, K, algorithm=algorithm, row_weights=u, column_weights=v)
    values = np.linalg.svd(multiplied(x.astype(float), u, v, center=False, scale=False), compute_uv=False)
    np.testing.assert_allclose(found.values, values[:K], rtol=1e-6)
    for level in found.certificate["levels"]:  # type: ignore[index]
        for lower, value, upper in zip(level["lower"], values, level["upper"], strict=False):
            assert (lower or 0) <= value * (1 + 1e-14) and value <= (np.inf if upper is None else upper * (1 + 1e-14))


@pytest.mark.slow
def test_rows_that_dask_computes_are_weighted_like_stored_ones() -> None:
    x, (u, v) = rows_of("dense"), weights()
    lazy = da.from_array(x, chunks=(70, D)) * 1.0
    for algorithm in ("krylov", "gram"):
        how: dict[str, Any] = {
            "algorithm": algorithm,
            "center": True,
            "row_weights": u,
            "column_weights": v,
            "tol": 1e-11,
        }
        values = np.linalg.svd(multiplied(x, u, v, center=True, scale=False), compute_uv=False)
        np.testing.assert_allclose(npmdask.top_k(lazy, K, **how).values, values[:K], rtol=1e-10)


def test_a_centre_and_its_nodes_weigh_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_source(rows_of("dense"))
    monkeypatch.setattr(type(source.reader), "elsewhere", True, raising=False)
    with pytest.raises(RefusedError, match="column_weights: the coordinator does not see the rows of its nodes"):
        build.make_problem(source, Request(target_rank=2, aspects=(Weights(columns=np.ones(D)),)))
    text = '[source]\npath = "x"\nrow_weights = "u.npy"\n[algorithm]\ntarget_rank = 2\n[mechanism]\nname = "none"\n'
    (tmp_path / "node.toml").write_text(text)
    with pytest.raises(RefusedError, match=r"rows as they are: leave source\.row_weights out"):
        load_config(tmp_path / "node.toml").node()


@pytest.mark.slow
def test_columns_that_weigh_nothing_are_not_counted_by_the_criteria() -> None:
    x, v = rows_of("dense"), weights()[1]
    found = npmdask.top_k(x, K, kind="samples", center=True, column_weights=v, algorithm="gram")
    alone = npmdask.top_k(x[:, v > 0], K, kind="samples", center=True, column_weights=v[v > 0], algorithm="gram")
    for mine, other in zip(found.component_counts(noise=0.1), alone.component_counts(noise=0.1), strict=True):
        assert mine.components == other.components and (mine.threshold or 0) == pytest.approx(other.threshold or 0)


@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_weights_whose_products_float64_cannot_hold_are_refused(size: float) -> None:
    """They were answered with zeros that "cannot be distinguished from zero"."""
    with pytest.raises(BadInputError, match="divide all by the largest"):
        npmdask.top_k(np.eye(4), 1, kind="samples", row_weights=np.full(4, size), column_weights=np.full(4, size))


@pytest.mark.slow
def test_truncated_svd_weighs_rows_and_columns() -> None:
    """Its variances, too: about the weighted mean, of columns that were multiplied."""
    rng = np.random.default_rng(0)
    rows, u, v = rng.standard_normal((60, 8)) + 1, rng.integers(0, 4, 60).astype(float), rng.random(8) + 0.1
    found = npmdask.TruncatedSVD(3, column_weights=v).fit(rows, sample_weight=u)
    repeated = npmdask.TruncatedSVD(3).fit(np.repeat(rows * np.sqrt(v), u.astype(int), axis=0))
    for name in ("singular_values_", "components_", "explained_variance_", "explained_variance_ratio_"):
        np.testing.assert_allclose(getattr(found, name), getattr(repeated, name), atol=1e-8)
    np.testing.assert_allclose(found.transform(rows), repeated.transform(rows * np.sqrt(v)), atol=1e-8)
    plain = npmdask.TruncatedSVD(3).fit(rows)
    assert not np.allclose(found.explained_variance_, plain.explained_variance_, rtol=0.01)


@pytest.mark.slow
def test_cells_and_genes_are_weighted_by_columns_of_their_tables() -> None:
    anndata = pytest.importorskip("anndata")
    import npmdask.anndata

    rng = np.random.default_rng(0)
    adata = anndata.AnnData(rng.standard_normal((60, 8)) + 1)
    adata.obs["worth"], adata.var["area"] = rng.integers(1, 4, 60), rng.random(8) + 0.1
    adata.var["highly_variable"] = np.arange(8) != 3
    for center, of in ((True, npmdask.PCA), (False, npmdask.TruncatedSVD)):
        npmdask.anndata.pca(adata, 3, zero_center=center, sample_weight="worth", column_weights="area")
        used = np.flatnonzero(adata.var["highly_variable"])
        model = of(3, column_weights=adata.var["area"].to_numpy()[used])
        model.fit(adata.X[:, used], sample_weight=adata.obs["worth"].to_numpy())
        np.testing.assert_allclose(adata.uns["pca"]["variance"], model.explained_variance_, rtol=1e-8)
        np.testing.assert_allclose(adata.varm["PCs"][used], model.components_.T, atol=1e-8)
    with pytest.raises(BadInputError, match=r"column_weights = 'aera' is no column of adata.var: did you mean 'area'"):
        npmdask.anndata.pca(adata, 3, column_weights="aera")


@pytest.mark.slow
def test_files_name_their_coordinates_as_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From Python, the command line and a configuration; a file of that name comes first."""
    field = grid().rename("sst")
    field.to_netcdf(tmp_path / "x.nc", engine="scipy")
    truth = npmdask.top_k(field, 2, dim="time", center=True, row_weights="worth", column_weights="area")
    found = npmdask.top_k(tmp_path / "x.nc", 2, dim="time", center=True, row_weights="worth", column_weights="area")
    np.testing.assert_allclose(found.values, truth.values, rtol=1e-9)
    options = ["--dim", "time", "--center", "--row-weights", "worth", "--column-weights", "area", "--quiet"]
    assert main(["run", str(tmp_path / "x.nc"), "-k", "2", *options, "--store", str(tmp_path / "run")]) == 0
    np.testing.assert_allclose(npmdask.resume(tmp_path / "run").values, truth.values, rtol=1e-9)
    text = '[source]\npath = "x.nc"\ndim = "time"\ncenter = true\nrow_weights = "worth"\ncolumn_weights = "area"\n'
    text += '[algorithm]\ntarget_rank = 2\n[run]\nstore = "again"\n'
    (tmp_path / "run.toml").write_text(text)
    assert main(["run", str(tmp_path / "run.toml"), "--quiet"]) == 0
    np.testing.assert_allclose(npmdask.resume(tmp_path / "again").values, truth.values, rtol=1e-9)
    with open(tmp_path / "worth", "w") as file:
        file.write("no array")
    assert main(["run", str(tmp_path / "run.toml"), "--quiet", "--set", "run.store=third"]) != 0
