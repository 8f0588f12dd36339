"""Missing values: counted, left out with their columns or filled with means, on every route, beside NumPy.

Mutants that these tests kill: gaps filled with 0 instead of the mean; counts of rows in place of observed entries in
means; the deviation of the filled column as scale; columns that are left out not held to being empty; an infinity
filled as if it were missing; a survey made twice; a sentence or a warning that is not said.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array
import numpy as np
import pytest
import zarr

import npmdask
import npmdask.core.operators._protocol as protocol
from npmdask.cli.main import main
from npmdask.core.runs.build import prepared
from npmdask.core.runs.observers import Observer
from npmdask.core.runs.problem import Request
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError, RefusedError
from npmdask.formats.ingest import ingest
from npmdask.manage.report import export, write_report
from npmdask.manage.status import inspect
from npmdask.missing.rules import find_gaps
from npmdask.planning.row_sample import SampleBudget, sample_of
from npmdask.privacy.request import Privacy
from npmdask.streaming.transform import transform
from npmdask.weights.aspect import Weights
from tests.conftest import write_zarr

M, D, K = 230, 12, 3
ROUTES = ("power", "krylov", "gram")
PRIVACY = Privacy(epsilon=1.0, delta=1e-6, neighboring_relation="record_zero_out", clip_norm=1.0)


@pytest.fixture(autouse=True)
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many runs, so that sums over what is observed are joined often."""
    monkeypatch.setattr(protocol, "RUN_BYTES", 700)
    monkeypatch.setattr(protocol, "COLUMN_BYTES", 1)


def gappy(seed: int = 0, share: float = 0.1) -> np.ndarray:
    """Rows with gaps at random, a block of them, and one whole row."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((M, D)) @ np.diag(np.geomspace(9, 1, D)) + np.arange(D)
    rows[rng.random(rows.shape) < share] = np.nan
    rows[30:70, 2:5] = np.nan
    rows[100] = np.nan
    return rows


def imputed(rows: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(rows), np.nanmean(rows, axis=0), rows)


def analysed(rows: np.ndarray, *, scale: bool) -> np.ndarray:
    """What is decomposed: filled, then centred, and divided by deviations over what is observed."""
    full = imputed(rows)
    full = full - full.mean(axis=0)
    return full / np.nanstd(rows, axis=0) if scale else full


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ROUTES)
@pytest.mark.parametrize("scale", [False, True])
def test_means_are_as_imputing_first(algorithm: str, scale: bool, tmp_path: Path) -> None:
    rows = gappy()
    how: dict[str, Any] = {"kind": "samples", "center": True, "algorithm": algorithm, "tol": 1e-11, "max_steps": 900}
    stored = write_zarr(tmp_path / "x", rows, (17, 5))
    found = npmdask.top_k(stored, K, scale=scale, missing="mean", **how)
    seen = analysed(rows, scale=scale)
    sizes = np.linalg.svd(seen, compute_uv=False)
    np.testing.assert_allclose(found.values, sizes[:K] ** 2 / M, rtol=1e-10)
    assert found.explained_share == pytest.approx((sizes[:K] ** 2).sum() / (sizes**2).sum(), rel=1e-10)
    np.testing.assert_allclose(found.scores(stored), seen @ found.basis, atol=1e-10)
    if not scale:
        first = npmdask.top_k(imputed(rows), K, **how)
        np.testing.assert_allclose(found.values, first.values, rtol=1e-10)
        # The pass for the means, which imputing makes before its run, and of the Gram, too, needs no other.
        assert found.total_data_passes == first.total_data_passes + (algorithm == "gram")


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ROUTES)
def test_float32_and_singular_triplets(algorithm: str, tmp_path: Path) -> None:
    """A gap is the mean as float32 holds it, and the mean of the filled column is beside it: large means show that."""
    rows = (gappy() + 1000).astype(np.float32)
    fill = np.nanmean(rows.astype(np.float64), axis=0).astype(np.float32)
    full = np.where(np.isnan(rows), fill, rows)
    how: dict[str, Any] = {"center": True, "algorithm": algorithm, "tol": 1e-7, "max_steps": 900}
    found = npmdask.top_k(write_zarr(tmp_path / "x", rows, (17, 5)), K, missing="mean", **how)
    whole = full.astype(np.float64)
    sizes = np.linalg.svd(whole - whole.mean(axis=0), compute_uv=False)
    np.testing.assert_allclose(found.values, sizes[:K], rtol=1e-7)
    left = found.left_basis()
    np.testing.assert_allclose((whole - whole.mean(axis=0)).T @ left, found.basis * found.values, atol=1e-2)


@pytest.mark.slow
def test_counts_are_told_everywhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows, store = gappy(), tmp_path / "run"
    source = str(write_zarr(tmp_path / "x.zarr", rows, (17, 5)))
    command = ["run", source, "-k", "2", "--kind", "samples", "--center", "--missing", "mean", "--store", str(store)]
    assert main([*command, "--json"]) == 0
    assert f'"entries": {np.isnan(rows).sum()}' in capsys.readouterr().out
    found = npmdask.resume(store)
    assert found.data_passes == 0 and found.missing is not None
    np.testing.assert_array_equal(found.missing.counts, np.isnan(rows).sum(axis=0))
    np.testing.assert_allclose(found.missing.fill, np.nanmean(rows, axis=0), rtol=1e-12)
    assert found.missing.rows_with_gaps == np.isnan(rows).any(axis=1).sum()
    assert found.missing.entries == np.isnan(rows).sum()
    assert inspect(store)["missing"]["sentence"] == found.missing.sentence
    assert "This is the error for data with missing values" in found.assurance
    page = write_report(store).read_text()
    assert "Missing values" in page and "which is biased" in page and str(found.missing.entries) in page


@pytest.mark.slow
def test_a_large_share_is_warned_of_and_a_small_one_not() -> None:
    many = npmdask.top_k(gappy(), K, kind="samples", center=True, missing="mean")
    assert any("biased" in said for said in many.warnings)
    few = np.random.default_rng(1).standard_normal((400, 6))
    few[3, 2] = np.nan
    assert npmdask.top_k(few, 2, kind="samples", center=True, missing="mean").warnings == ()
    few[:60, 4] = np.nan  # 15 % of one column, 2.5 % of all values
    said = npmdask.top_k(few, 2, kind="samples", center=True, missing="mean").warnings
    assert any("15 % of column 4" in each for each in said)


@pytest.mark.slow
def test_columns_with_one_value_or_none_count_as_constant() -> None:
    """Not as large ones: a single value has the deviation 0."""
    rows = gappy()
    rows[:, 1] = np.nan
    rows[:, 7] = np.nan
    rows[5, 7] = 1e6
    for algorithm in ROUTES:
        found = npmdask.top_k(
            rows, K, kind="samples", center=True, scale=True, missing="mean", algorithm=algorithm, max_steps=900
        )
        others = np.delete(np.arange(D), [1, 7])
        sizes = np.linalg.svd(analysed(rows[:, others], scale=True), compute_uv=False)
        np.testing.assert_allclose(found.values, sizes[:K] ** 2 / M, rtol=1e-8)
        assert np.abs(found.basis[[1, 7]]).max() < 1e-7
        assert any("2 columns have one value or none (number 1, 7, from 0)" in said for said in found.warnings)


def test_two_large_values_are_not_blown_up() -> None:
    """Divided by the deviation of the filled column, two values of 460 would be a component of their own."""
    rows = np.random.default_rng(0).standard_normal((400, 6))
    rows[:, 5] = np.nan
    rows[[3, 4], 5] = -1.0, 1.0
    found = npmdask.top_k(rows, 1, kind="samples", center=True, scale=True, missing="mean")
    assert abs(found.basis[5, 0]) < 0.2


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ROUTES)
@pytest.mark.parametrize("center", [False, True])
def test_columns_without_any_value_are_left_out(algorithm: str, center: bool, tmp_path: Path) -> None:
    rows = imputed(gappy())
    gone = [0, 5, 6, 7, 8, 9]  # a whole column of chunks among them
    rows[:, gone] = np.nan
    kept = np.delete(np.arange(D), gone)
    stored = write_zarr(tmp_path / "x", rows, (17, 5))
    how: dict[str, Any] = {"kind": "samples", "center": center, "algorithm": algorithm, "max_steps": 900}
    found = npmdask.top_k(stored, K, missing="drop-columns", **how)
    first = npmdask.top_k(rows[:, kept], K, **how)
    np.testing.assert_allclose(found.values, first.values, rtol=1e-10)
    assert found.total_data_passes == first.total_data_passes
    assert found.missing is not None and found.basis.shape == (len(kept), K)
    np.testing.assert_array_equal(found.missing.kept, kept)
    np.testing.assert_array_equal(found.labels.columns[0].places, kept)
    np.testing.assert_allclose(found.scores(stored), found.scores(rows[:, kept]), atol=1e-12)


@pytest.mark.slow
def test_a_column_with_gaps_is_not_left_out_unseen(tmp_path: Path) -> None:
    rows = imputed(gappy())
    rows[:, 4] = np.nan
    for row, said in (
        (0, "column 6 .* has no value in the first row but has one in row 1"),
        (M - 1, "lacks 1 of the 230"),
    ):
        given = rows.copy()
        given[row, 6] = np.nan
        with pytest.raises(BadInputError, match=said):
            npmdask.top_k(write_zarr(tmp_path / f"x{row}", given, (17, 5)), K, missing="drop-columns")
    late = rows.copy()
    late[M - 1, 4] = 2.0
    with pytest.raises(BadInputError, match=f"column 4 .* but has one in row {M - 1}"):
        npmdask.top_k(late, K, missing="drop-columns")
    with pytest.raises(BadInputError, match=r"no column of .* has a value in the first row"):
        npmdask.top_k(rows * np.nan, K, missing="drop-columns")


@pytest.mark.slow
def test_names_of_columns_are_in_the_refusal_and_in_the_answer() -> None:
    pandas = pytest.importorskip("pandas")
    rows = imputed(gappy())[:, :4]
    table = pandas.DataFrame(rows, columns=["a", "b", "c", "d"], index=[f"row {i}" for i in range(len(rows))])
    table["b"] = np.nan
    found = npmdask.top_k(table, 2, missing="drop-columns")
    assert found.labels.columns[0].places.tolist() == ["a", "c", "d"]
    assert found.labels.rows[0].places.tolist() == list(table.index), "which are all there"
    table.loc["row 3", "c"] = np.nan
    with pytest.raises(BadInputError, match=r"column 2 \(column c\)"):
        npmdask.top_k(table, 2, missing="drop-columns")
    masked = np.ma.masked_invalid(gappy())
    how: dict[str, Any] = {"kind": "samples", "center": True, "missing": "mean"}
    values = [npmdask.top_k(rows, K, **how).values for rows in (masked, pandas.DataFrame(masked))]
    np.testing.assert_allclose(values, [npmdask.top_k(gappy(), K, **how).values] * 2, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["refuse", "mean", "drop-columns"])
@pytest.mark.parametrize("bad", [np.inf, -np.inf])
def test_infinities_are_refused_always(missing: str, bad: float) -> None:
    rows = np.random.default_rng(0).standard_normal((M, D))
    rows[:, 3] = np.nan if missing == "drop-columns" else rows[:, 3]
    rows[77, 8] = bad
    for algorithm in ROUTES:
        with pytest.raises(BadInputError, match=r"inf at row 77, column"):
            npmdask.top_k(rows, K, center=True, missing=missing, algorithm=algorithm)
    rows[7, 8] = np.nan  # in the same column: the mean of what is observed is infinite
    with pytest.raises(BadInputError, match=r"inf at row 77|lacks 1 of|nan at row 7"):
        npmdask.top_k(rows, K, center=True, missing=missing)


@pytest.mark.slow
def test_pca_as_imputing_first_and_scores_of_rows_with_gaps(tmp_path: Path) -> None:
    rows = gappy()
    first = npmdask.PCA(3).fit(imputed(rows))
    pandas = pytest.importorskip("pandas")
    for given in (rows, pandas.DataFrame(rows), str(write_zarr(tmp_path / "x", rows, (17, 5)))):
        pca = npmdask.PCA(3, missing="mean").fit(given)
        np.testing.assert_allclose(pca.explained_variance_, first.explained_variance_, rtol=1e-10)
        np.testing.assert_allclose(pca.explained_variance_ratio_, first.explained_variance_ratio_, rtol=1e-10)
        np.testing.assert_allclose(pca.transform(given), first.transform(imputed(rows)), atol=1e-7)
        few = np.where(np.isnan(rows[5:9]), first.mean_, rows[5:9])
        np.testing.assert_allclose(pca.transform(rows[5:9]), first.transform(few), atol=1e-7)
        assert pca.missing_ is not None and pca.missing_.entries == np.isnan(rows).sum()
    with pytest.raises(BadInputError, match="NaN"):
        npmdask.PCA(3).fit(rows)
    with pytest.raises(BadInputError, match=r"npmdask.top_k can also leave out columns"):
        npmdask.PCA(3, missing="drop-columns").fit(rows)
    with pytest.raises(BadInputError, match="infinity"):
        npmdask.PCA(3, missing="mean").fit(np.where(rows > 10, np.inf, rows))
    whole = npmdask.PCA(3, missing="mean").fit(imputed(rows))
    np.testing.assert_allclose(whole.explained_variance_, first.explained_variance_, rtol=1e-10)


def test_an_infinity_is_not_scored_as_if_it_were_missing() -> None:
    rows = gappy()
    found = npmdask.top_k(rows, K, kind="samples", center=True, missing="mean")
    rows[9, 3] = np.inf
    with pytest.raises(BadInputError, match=r"row 9 .*not finite"):
        found.scores(rows)


@pytest.mark.parametrize("algorithm", ["power", "gram"])
def test_a_gap_is_the_mean_and_not_what_float32_makes_of_it(algorithm: str) -> None:
    """float32 near 10,000 holds steps of 0.001: a rounded mean is a hundredth of the deviation away from it."""
    rng = np.random.default_rng(0)
    rows = (rng.standard_normal((3000, 4)) * 0.02 + 10000.3).astype(np.float32)
    rows[rng.random(rows.shape) < 0.5] = np.nan
    wide = rows.astype(np.float64)
    full = np.where(np.isnan(wide), np.nanmean(wide, axis=0), wide)
    found = npmdask.top_k(rows, 4, kind="samples", center=True, missing="mean", algorithm=algorithm)
    np.testing.assert_allclose(found.values, np.linalg.eigvalsh(np.cov(full.T, bias=True))[::-1], rtol=1e-9)
    np.testing.assert_allclose(found.mean, full.mean(axis=0), rtol=1e-13)
    assert np.abs(found.scores(rows).mean(axis=0)).max() < 1e-9 and not any("not quite" in s for s in found.warnings)


@pytest.mark.parametrize("steps", [2, 4])
def test_a_run_in_float32_that_ends_early_knows_the_means_of_gaps(steps: int) -> None:
    """float32 near a million has steps of 0.06. Mutant: what fills a gap is rounded before centring."""
    rng = np.random.default_rng(244)
    rows = (rng.standard_normal((34, 74)) * 0.4 + 1e6 * rng.standard_normal(74)).astype(np.float32)
    rows[5, ::9] = np.nan
    wide = rows.astype(np.float64)
    full = np.where(np.isnan(wide), np.nanmean(wide, axis=0), wide)
    asked: dict[str, Any] = {"kind": "samples", "center": True, "max_steps": steps, "algorithm": "power"}
    found = npmdask.top_k(rows, 3, missing="mean", **asked)
    exact = npmdask.top_k(full, 3, **asked)
    np.testing.assert_allclose(found.values, exact.values, rtol=1e-5)


def test_the_refusal_counts_and_names_the_remedies() -> None:
    rows = gappy()
    count, of_rows = int(np.isnan(rows).sum()), int(np.isnan(rows).any(axis=1).sum())
    with pytest.raises(BadInputError) as refused:
        npmdask.top_k(rows, K)
    assert f"({count} of {M * D} entries are missing, in {of_rows} of {M} rows and {D} of {D} columns" in str(
        refused.value
    )
    assert "missing = 'mean' (--missing mean)" in str(refused.value)
    assert "ingest" not in str(refused.value), "it is in memory"


@pytest.mark.slow
def test_the_refusal_names_what_was_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Fails where a Dask array is named by the key of Dask, or a file gets no remedy that its run could use."""
    rows = gappy()
    with pytest.raises(BadInputError, match=r"^the Dask array holds nan at row"):
        npmdask.top_k(dask.array.from_array(rows, chunks=(20, D)), K)
    np.save(tmp_path / "x.npy", rows)
    np.savetxt(tmp_path / "x.csv", rows, delimiter=",")
    for name in ("x.npy", "x.csv"):
        assert main(["run", str(tmp_path / name), "-k", "2", "--store", str(tmp_path / "run")]) != 0
        said = capsys.readouterr().err.splitlines()[-1]
        assert str(tmp_path / name) in said and "(--missing mean)" in said and "non-finite missing" not in said
        assert main(["ingest", str(tmp_path / name), str(tmp_path / f"{name}.zarr")]) != 0
        said = capsys.readouterr().err.splitlines()[-1]
        assert "(--non-finite missing)" in said
        assert main(["ingest", str(tmp_path / name), str(tmp_path / f"{name}.zarr"), "--non-finite", "missing"]) == 0


@pytest.mark.slow
def test_a_gap_that_appears_after_the_survey_is_corruption(tmp_path: Path) -> None:
    """It would be filled without a word if the chunk were not known."""
    rows, store = gappy(), tmp_path / "run"
    path = write_zarr(tmp_path / "x", rows, (17, 12))

    class Spoiler(Observer):
        def on_step(self, *given: Any) -> None:
            zarr.open_array(path, mode="r+")[60, 8] = np.nan

    with pytest.raises(BadInputError, match="is corrupt"):
        npmdask.top_k(
            path,
            K,
            center=True,
            missing="mean",
            store=store,
            algorithm="power",
            tol=1e-12,
            max_steps=50,
            observer=Spoiler(),
        )


@pytest.mark.slow
def test_a_run_that_is_interrupted_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    rows = gappy()
    path = write_zarr(tmp_path / "x", rows, (17, 5))
    for missing, source in (("mean", path), ("drop-columns", write_zarr(tmp_path / "y", imputed(rows), (17, 5)))):
        how: dict[str, Any] = {"missing": missing, "center": True, "algorithm": "power", "tol": 1e-10}
        whole = npmdask.top_k(source, K, store=tmp_path / f"{missing}-whole", max_steps=900, **how)

        class Stop(Observer):
            def on_step(self, *given: Any) -> None:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            npmdask.top_k(source, K, store=tmp_path / missing, max_steps=900, observer=Stop(), **how)
        again = npmdask.resume(tmp_path / missing)
        assert again.basis.tobytes() == whole.basis.tobytes() and again.values.tobytes() == whole.values.tobytes()
        with pytest.raises(RefusedError, match=r"data\.missing"):
            npmdask.top_k(source, K, store=tmp_path / missing, max_steps=900, **{**how, "missing": "refuse"})


WEIGHED = {"rows": np.linspace(0.0, 3.0, M), "columns": np.linspace(2.0, 0.5, D)}


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ROUTES)
@pytest.mark.parametrize("scale", [False, True])
def test_means_of_weighted_rows_are_weighted(algorithm: str, scale: bool, tmp_path: Path) -> None:
    """A gap is the weighted mean of its column: 0 less the mean that weighted rows are centred by."""
    rows, u, v = gappy(), WEIGHED["rows"], WEIGHED["columns"]
    rows[0, :4] = np.nan  # of a row that weighs nothing
    here = np.where(np.isnan(rows), 0.0, u[:, None])
    mean = (here * np.nan_to_num(rows)).sum(axis=0) / here.sum(axis=0)
    std = np.sqrt((here * np.nan_to_num(rows - mean) ** 2).sum(axis=0) / here.sum(axis=0))
    seen = np.nan_to_num(rows - mean) / (std if scale else 1.0) * np.sqrt(v)
    sizes = np.linalg.svd(np.sqrt(u)[:, None] * seen, compute_uv=False) ** 2 / u.sum()
    stored, store = write_zarr(tmp_path / "x", rows, (17, 5)), tmp_path / "run"
    how: dict[str, Any] = {"kind": "samples", "center": True, "algorithm": algorithm, "tol": 1e-11, "max_steps": 900}
    found = npmdask.top_k(stored, K, scale=scale, missing="mean", row_weights=u, column_weights=v, store=store, **how)
    np.testing.assert_allclose(found.values, sizes[:K], rtol=1e-10)
    assert found.explained_share == pytest.approx(sizes[:K].sum() / sizes.sum(), rel=1e-10)
    np.testing.assert_allclose(found.scores(stored), seen @ found.basis, atol=1e-9)
    np.testing.assert_allclose(npmdask.resume(store).scores(stored), seen @ found.basis, atol=1e-9)


@pytest.mark.parametrize("missing", ["mean", "drop-columns"])
def test_the_sample_that_steps_are_predicted_from_is_filled_and_weighted(missing: str) -> None:
    rows, weights = gappy(), Weights(**WEIGHED)
    if missing == "drop-columns":
        rows = imputed(rows)
        rows[:, [0, 5, 6]] = np.nan
    request = Request(target_rank=K, center=True, aspects=(find_gaps(missing=missing), weights))
    sample = sample_of(prepared(open_source(rows, "samples"), request), request, lambda: False, SampleBudget())
    found = npmdask.top_k(
        rows,
        K,
        kind="samples",
        center=True,
        missing=missing,
        row_weights=WEIGHED["rows"],
        column_weights=WEIGHED["columns"],
    )
    assert sample is not None and sample.whole
    np.testing.assert_allclose(sample.eigenvalues[:K], found.values, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ROUTES)
def test_weights_of_columns_that_are_left_out_are_left_out(algorithm: str, tmp_path: Path) -> None:
    """Weights are of all stored columns: cut too late or twice, they would be those of neighbours."""
    rows, v = imputed(gappy()), WEIGHED["columns"]
    gone = [0, 5, 6]
    rows[:, gone] = np.nan
    kept = np.delete(np.arange(D), gone)
    stored, store = write_zarr(tmp_path / "x", rows, (17, 5)), tmp_path / "run"
    how: dict[str, Any] = {"kind": "samples", "center": True, "algorithm": algorithm, "max_steps": 900, "tol": 1e-11}
    found = npmdask.top_k(stored, K, missing="drop-columns", column_weights=v, store=store, **how)
    first = npmdask.top_k(rows[:, kept], K, column_weights=v[kept], **how)
    np.testing.assert_allclose(found.values, first.values, rtol=1e-10)
    again = npmdask.resume(store)
    for solution in (found, again):
        np.testing.assert_allclose(solution.scores(stored), found.scores(rows[:, kept]), atol=1e-12)
        assert solution.patterns().shape == (len(kept), K)
    np.testing.assert_allclose(found.patterns().T @ (v[kept, None] * found.patterns()), np.eye(K), atol=1e-9)
    export(store, tmp_path / "out.npz")
    np.testing.assert_array_equal(np.load(tmp_path / "out.npz")["column_weights"], v[kept])
    only_gone = np.zeros(D)
    only_gone[gone] = 1.0
    with pytest.raises(BadInputError, match="all zero"):
        npmdask.top_k(stored, K, missing="drop-columns", column_weights=only_gone)
    with pytest.raises(BadInputError, match=f"there are {len(kept)} column_weights"):
        npmdask.top_k(stored, K, missing="drop-columns", column_weights=v[kept])


@pytest.mark.slow
def test_shares_of_the_variance_are_found_of_filled_data() -> None:
    rows = gappy()
    found = npmdask.top_k(rows, 0.9, kind="samples", center=True, missing="mean")
    sizes = np.linalg.svd(analysed(rows, scale=False), compute_uv=False) ** 2
    assert found.target_rank == int(np.searchsorted(np.cumsum(sizes) / sizes.sum(), 0.9)) + 1


@pytest.mark.slow
def test_nothing_is_filled_where_nothing_is_missing() -> None:
    rows = imputed(gappy())
    found = npmdask.top_k(rows, K, kind="samples", center=True, missing="mean")
    assert found.missing is not None and found.missing.entries == 0 and found.warnings == ()
    assert "missing values" not in found.assurance
    assert npmdask.top_k(np.arange(12).reshape(4, 3), 1, center=True, missing="mean").missing is None


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"missing": "median"}, "missing = 'median'"),
        ({"missing": None}, "missing = None: known: drop-columns, em, fill, mean, pairwise, refuse"),
        ({"missing": "mean"}, "needs centring"),
        ({"missing": "mean", "kind": "symmetric"}, "of kind symmetric"),
        ({"missing": "mean", "mechanism": "gaussian", "stddev": 0.1}, "not for other operators"),
        ({"missing": "mean", "privacy": PRIVACY}, "was never ingested and was not read"),
        ({"missing": "fill", "missing_fill": 0}, "is for private runs"),
        ({"missing_fill": 0}, "change that, or leave missing_fill out"),
    ],
)
def test_what_has_no_rule_for_missing_values(how: dict[str, Any], said: str) -> None:
    with pytest.raises((BadInputError, RefusedError), match=said):
        npmdask.top_k(np.eye(12), 2, **how)


@pytest.mark.parametrize("algorithm", ROUTES)
@pytest.mark.parametrize("weights", [None, np.repeat([0.0, 1.0], M // 2)])
def test_nothing_but_gaps_is_no_answer(algorithm: str, weights: np.ndarray | None) -> None:
    rows = np.full((M, D), np.nan)
    if weights is not None:
        rows[: M // 2] = np.random.default_rng(0).standard_normal((M // 2, D))
    with pytest.raises(BadInputError, match="with a positive weight are missing: there are no data to analyse"):
        npmdask.top_k(rows, K, kind="samples", center=True, missing="mean", algorithm=algorithm, row_weights=weights)


def test_no_filled_copy_is_made(tmp_path: Path) -> None:
    """Tiles of the stored array are filled in one scratch tile, which the next one reuses."""
    path = write_zarr(tmp_path / "x", gappy(), (17, 12))
    from npmdask.core.storage.readers.dense import ReadStats
    from npmdask.missing.gaps import with_missing
    from npmdask.missing.rules import filled

    source = with_missing(open_source(path, "samples"), "mean")
    survey = {"column_fill": np.arange(D, dtype=float), "column_observed": np.full(D, 0.9)}
    reader: Any = filled(source, survey).reader
    tiles = [tile[0][1] for slab in range(3) for _, tile in reader.tiles(slab, ReadStats())]
    assert np.isfinite(tiles[-1]).all()
    assert np.shares_memory(tiles[0], tiles[1])


def test_stored_grams_refuse_gaps_in_a_sentence(tmp_path: Path) -> None:
    full = imputed(gappy())
    npmdask.gram(full, tmp_path / "G", kind="samples")
    with pytest.raises(RefusedError, match="a stored Gram, which has no missing values"):
        npmdask.top_k(tmp_path / "G", K, center=True, missing="mean")


# Numbers that mark missing values. Mutants: what was recorded at ingest used as means; marks compared in float64 where
# the data are float32; marks forgotten by resume, by scores, by transform; integers read as such.

MARK = -9999.9


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ROUTES)
@pytest.mark.parametrize("form", ["array", "zarr", "ingested", "float32", "int16", "dask"])
def test_marked_values_are_as_missing_ones(algorithm: str, form: str, tmp_path: Path) -> None:
    rows = gappy()
    rows = np.round(rows * 10) if form == "int16" else rows
    rows = rows.astype(np.float32) if form == "float32" else rows
    mark = -9999.0 if form == "int16" else MARK
    marked: Any = np.where(np.isnan(rows), rows.dtype.type(mark), rows)
    marked = marked.astype(np.int16) if form == "int16" else marked
    marked[3, 4] = mark if form == "int16" else np.nan  # both mean the same
    rows[3, 4] = np.nan
    given: Any = marked
    if form in ("zarr", "float32", "int16"):
        given = write_zarr(tmp_path / "x", marked, (17, 5))
    elif form == "ingested":
        marked[3, 4] = mark
        np.save(tmp_path / "x.npy", marked)
        ingest(tmp_path / "x.npy", given := tmp_path / "x.zarr", chunks=(17, 5))
    elif form == "dask":
        given = pytest.importorskip("dask.array").from_array(marked, chunks=(17, 12))
    how: dict[str, Any] = {"kind": "samples", "center": True, "missing": "mean", "algorithm": algorithm}
    how |= {"tol": 1e-6 if form in ("float32", "int16") else 1e-10, "max_steps": 900}
    found = npmdask.top_k(given, K, missing_values=[mark, 1e6], store=tmp_path / "run", **how)
    seen = analysed(rows.astype(np.float64), scale=False)
    np.testing.assert_allclose(found.values, np.linalg.svd(seen, compute_uv=False)[:K] ** 2 / M, rtol=1e-5)
    assert found.missing is not None and found.missing.values == (mark, 1e6)
    np.testing.assert_array_equal(found.missing.counts, np.isnan(rows).sum(axis=0))
    np.testing.assert_allclose(found.scores(given), seen @ found.basis, atol=1e-2)
    told = transform(tmp_path / "run", given, tmp_path / "scores")
    np.testing.assert_allclose(zarr.open_group(tmp_path / "scores")["data"][...], found.scores(given), atol=1e-4)
    assert told.rows_with_gaps == found.missing.rows_with_gaps
    if form == "zarr":
        again = npmdask.resume(tmp_path / "run")
        np.testing.assert_array_equal(again.scores(given), found.scores(given))
        with pytest.raises(RefusedError, match="missing_values"):
            npmdask.top_k(given, K, store=tmp_path / "run", **how)


@pytest.mark.slow
def test_marked_columns_are_left_out_and_damage_is_seen(tmp_path: Path) -> None:
    rows = imputed(gappy())
    rows[:, [2, 7]] = -1.0
    np.save(tmp_path / "x.npy", rows)
    ingest(tmp_path / "x.npy", tmp_path / "x.zarr", chunks=(17, 5))
    how: dict[str, Any] = {"kind": "samples", "center": True, "missing": "drop-columns", "missing_values": -1}
    found = npmdask.top_k(tmp_path / "x.zarr", K, **how)
    assert found.missing is not None and found.missing.kept.tolist() == [0, 1, 3, 4, 5, 6, 8, 9, 10, 11]
    np.testing.assert_allclose(found.scores(tmp_path / "x.zarr"), found.scores(rows[:, found.missing.kept]), atol=1e-9)
    rows[100, 7] = 5.0
    with pytest.raises(BadInputError, match=r"column 7 of .* has no value in the first row but has one in row 100"):
        npmdask.top_k(write_zarr(tmp_path / "y", rows, (17, 5)), K, **how)
    chunk = next(path for path in sorted((tmp_path / "x.zarr" / "data" / "c" / "1").iterdir()))
    content = bytearray(chunk.read_bytes())
    content[11] ^= 1
    chunk.write_bytes(content)
    with pytest.raises(BadInputError, match="corrupt"):
        npmdask.top_k(tmp_path / "x.zarr", K, **how)


@pytest.mark.slow
def test_marks_are_numbers_and_need_a_rule(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = np.where(np.isnan(gappy()), -1.0, gappy())
    with pytest.raises(BadInputError, match="which numbers are missing, but not how"):
        npmdask.top_k(rows, K, missing_values=[-1])
    for wrong in ("-1", [None], True):
        with pytest.raises(BadInputError, match="give the numbers"):
            npmdask.top_k(rows, K, center=True, missing="mean", missing_values=wrong)
    source = str(write_zarr(tmp_path / "x.zarr", rows, (17, 5)))
    command = ["run", source, "-k", "2", "--kind", "samples", "--center", "--missing", "mean", "--json", "--quiet"]
    assert main([*command, "--missing-values", "-1", "-999.5", "--store", str(tmp_path / "run")]) == 0
    assert f'"entries": {(rows == -1).sum()}' in capsys.readouterr().out
    pca = npmdask.PCA(2, missing="mean", missing_values=-1).fit(rows)
    other = npmdask.PCA(2, missing="mean").fit(gappy())
    np.testing.assert_allclose(pca.transform(rows), other.transform(gappy()), atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ROUTES)
@pytest.mark.parametrize("marks", [(), (-5.5,)])
def test_columns_that_lack_too_much_are_left_out_and_the_others_filled(
    algorithm: str, marks: tuple[float, ...], tmp_path: Path
) -> None:
    """Mutants: the limit taken as what must be there; fills of the wrong columns; weights of all columns."""
    rows = gappy()
    rows[50:200, 1] = np.nan  # 150 of 230, and more at random
    rows[:, 6] = np.nan
    kept = np.setdiff1d(np.arange(D), [1, 6])
    stored = write_zarr(tmp_path / "x", np.where(np.isnan(rows), marks[0], rows) if marks else rows, (17, 5))
    v = np.geomspace(0.5, 2, D)
    how: dict[str, Any] = {"kind": "samples", "center": True, "missing": "mean", "algorithm": algorithm, "tol": 1e-10}
    how |= {"missing_values": list(marks), "missing_limit": 0.4, "column_weights": v, "max_steps": 900}
    found = npmdask.top_k(stored, K, store=tmp_path / "run", **how)
    seen = analysed(rows[:, kept], scale=False) * np.sqrt(v[kept])
    np.testing.assert_allclose(found.values, np.linalg.svd(seen, compute_uv=False)[:K] ** 2 / M, rtol=1e-9)
    assert found.missing is not None and found.missing.kept.tolist() == kept.tolist()
    np.testing.assert_array_equal(found.missing.counts, np.isnan(rows).sum(axis=0))
    assert found.missing.sentence.startswith("2 of 12 columns lack more than 40 %")
    np.testing.assert_allclose(found.scores(stored), seen @ found.basis, atol=1e-8)
    np.testing.assert_allclose(found.scores(rows[:, kept]), seen @ found.basis, atol=1e-8)
    again = npmdask.resume(tmp_path / "run")
    np.testing.assert_allclose(again.scores(stored), found.scores(stored), atol=1e-12)
    transform(tmp_path / "run", stored, tmp_path / "scores")
    np.testing.assert_allclose(zarr.open_group(tmp_path / "scores")["data"][...], found.scores(stored), atol=1e-9)
    assert not any("of column 1)" in said or "of column 6)" in said for said in found.warnings)
    with pytest.raises(RefusedError, match="missing_limit"):
        npmdask.top_k(stored, K, store=tmp_path / "run", **(how | {"missing_limit": 0.9}))


def test_a_limit_is_a_share_of_a_rule_that_fills() -> None:
    rows = gappy()
    for wrong in ({"missing": "drop-columns", "missing_limit": 0.5}, {"missing": "mean", "missing_limit": 1.0}):
        with pytest.raises(BadInputError, match="missing_limit"):
            npmdask.top_k(rows, K, kind="samples", center=True, **wrong)  # type: ignore[arg-type]
    with pytest.raises(BadInputError, match="no column of"):
        npmdask.top_k(rows, K, kind="samples", center=True, missing="mean", missing_limit=0)
