"""Names and coordinates are compared wherever two things meet: the list of doors, and what each does.

The same names in another order are put in order, other names are refused with the first that differs, and where one
side has none, columns are taken by position and that is said.
"""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npmdask
from npmdask.core.runs.components import StoredComponents
from npmdask.core.storage.labels import Axis, axis_of, of_columns
from npmdask.core.storage.names import matched
from npmdask.errors import BadInputError, DataWarning, NpmdaskError, RefusedError
from npmdask.missing.rules import Fill
from npmdask.streaming.api import stream_pca
from npmdask.streaming.transform import transform
from npmdask.xarray import EOF, MCA
from tests.conftest import often

dask = pytest.importorskip("dask")
dd = pytest.importorskip("dask.dataframe")
pd = pytest.importorskip("pandas")
xr = pytest.importorskip("xarray")

N, NAMES = 60, ["height", "weight", "age", "income"]
TURNED = [2, 0, 3, 1]
LATS, LONS = np.linspace(-75.0, 75.0, 6), np.arange(0.0, 360.0, 45.0)


def table(dtype: Any = np.float64, rows: int = N) -> Any:
    """Of whole numbers, which every dtype and format holds."""
    rng = np.random.default_rng(7)
    return pd.DataFrame(
        (rng.standard_normal((rows, 4)) * [40, 20, 9, 5] + [1, 2, 3, 4]).round().astype(dtype), columns=NAMES
    )


def renamed(given: Any) -> Any:
    return given.rename(columns={"weight": "mass"})


def found(rows: Any, **asked: Any) -> npmdask.Solution:
    return npmdask.top_k(rows, 2, **{"kind": "samples", "center": True, **asked})


# The doors: what each answers where ``given`` meets ``known``, and what it says.


Door = Callable[[Path, Any, Any], tuple[np.ndarray, tuple[str, ...]]]


def scores(made: Callable[[Any, Path], Any], **asked: Any) -> Door:
    """Scores of rows along a run on a table of pandas."""

    def door(folder: Path, known: Any, given: Any) -> tuple[np.ndarray, tuple[str, ...]]:
        solution, rows = found(known, **asked), made(given, folder)
        return solution.scores(rows), solution.analysed.components.opened(rows).notes  # type: ignore[union-attr]

    return door


def written(ending: str) -> Callable[[Any, Path], Any]:
    """A table as a file."""

    def write(given: Any, folder: Path) -> Any:
        path = folder / f"given{ending}"
        if ending == ".csv":
            given.to_csv(path, index=False, header=list(map(str, given.columns)) != ["0", "1", "2", "3"])
        elif ending == ".parquet":
            given.rename(columns=str).to_parquet(path, index=False)
        elif ending == ".npy":
            np.save(path, given.to_numpy())
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                cells = annotated(given, folder)
                cells.write_h5ad(path) if ending == ".h5ad" else cells.write_zarr(path)
        return path

    return write


def annotated(given: Any, _: Path) -> Any:
    anndata = pytest.importorskip("anndata")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return anndata.AnnData(given.to_numpy().astype(np.float64), var=pd.DataFrame(index=given.columns.astype(str)))


def transformed(ending: str) -> Door:
    """``npmdask transform RUN FILE``."""

    def door(folder: Path, known: Any, given: Any) -> tuple[np.ndarray, tuple[str, ...]]:
        found(known, store=folder / "run")
        scored = transform(folder / "run", written(ending)(given, folder), folder / "scores.npy")
        return np.load(folder / "scores.npy"), scored.warnings

    return door


def transformed_batches(folder: Path, known: Any, given: Any) -> tuple[np.ndarray, tuple[str, ...]]:
    found(known, store=folder / "run")
    scored = transform(folder / "run", iter([given[:20], given[20:]]), folder / "scores.npy")
    return np.load(folder / "scores.npy"), scored.warnings


def transformed_by_a_stream(folder: Path, known: Any, given: Any) -> tuple[np.ndarray, tuple[str, ...]]:
    written(".csv")(known, folder)
    (folder / "given.csv").rename(folder / "known.csv")
    stream_pca(folder / "known.csv", 2, center=True, batch_rows=20, store=folder / "stream")
    scored = transform(folder / "stream", written(".parquet")(given, folder), folder / "scores.npy")
    return np.load(folder / "scores.npy"), scored.warnings


def streamed_files(folder: Path, known: Any, given: Any) -> tuple[np.ndarray, tuple[str, ...]]:
    (folder / "days").mkdir()
    for number, rows in enumerate((known, given)):
        written(".parquet")(rows, folder).rename(folder / "days" / f"{number}.parquet")
    solution = stream_pca(folder / "days", 2, center=True, batch_rows=20)
    return solution.basis, solution.warnings


def streamed_batches(folder: Path, known: Any, given: Any) -> tuple[np.ndarray, tuple[str, ...]]:
    solution = stream_pca(iter([known, given]), 2, center=True, batch_rows=20)
    return solution.basis, solution.warnings


def continued_stream(folder: Path, known: Any, given: Any) -> tuple[np.ndarray, tuple[str, ...]]:
    """The first file is gone as the second one comes."""
    (folder / "days").mkdir()
    written(".parquet")(known, folder).rename(folder / "days" / "0.parquet")
    stream_pca(folder / "days", 2, center=True, batch_rows=20, store=folder / "s")
    (folder / "days" / "0.parquet").unlink()
    written(".parquet")(given, folder).rename(folder / "days" / "1.parquet")
    solution = stream_pca(folder / "days", 2, center=True, batch_rows=20, store=folder / "s")
    return solution.basis, solution.warnings


def weighted_columns(made: Callable[[Any], Any]) -> Door:
    def door(folder: Path, known: Any, given: Any) -> tuple[np.ndarray, tuple[str, ...]]:
        weights = pd.Series([1.0, 2.0, 30.0, 4.0], index=NAMES).rename({"weight": "mass"} if "mass" in given else {})
        numbered = list(given.columns) == [0, 1, 2, 3]
        weights = weights.reset_index(drop=True) if numbered else weights[list(given.columns)]
        return found(known, column_weights=made(weights)).basis, ()

    return door


def parts_of_parquet(folder: Path, known: Any, given: Any) -> tuple[np.ndarray, tuple[str, ...]]:
    (folder / "x.parquet").mkdir()
    known.to_parquet(folder / "x.parquet" / "0.parquet")
    given.rename(columns=str).to_parquet(folder / "x.parquet" / "1.parquet")
    return found(folder / "x.parquet").basis, ()


def partitions_of_dask(folder: Path, known: Any, given: Any) -> tuple[np.ndarray, tuple[str, ...]]:
    frames = pytest.importorskip("dask.dataframe")
    first = frames.from_pandas(known, npartitions=2)
    parts = first.map_partitions(
        _second, list(given.columns), meta=first._meta, enforce_metadata=False, align_dataframes=False
    )
    return found(parts).basis, ()


def _second(part: Any, names: list[Any]) -> Any:
    """The second of two partitions, with its columns as asked."""
    if not len(part) or part.index[0] == 0:
        return part
    if names == [0, 1, 2, 3]:
        return part.set_axis(names, axis=1)
    return part.rename(columns={"weight": "mass"} if "mass" in names else {})[names]


def aligned(folder: Path, known: Any, given: Any) -> tuple[np.ndarray, tuple[str, ...]]:
    return found(known).aligned(found(given)).similarity, ()  # type: ignore[return-value]


def merged_grams(folder: Path, known: Any, given: Any) -> tuple[np.ndarray, tuple[str, ...]]:
    first, second = (npmdask.gram(rows, folder / name, kind="samples") for rows, name in ((known, "a"), (given, "b")))
    made = npmdask.GramStore.merge([first, second], folder / "m", distinct=True)
    return found(folder / "m", kind=None).basis, made.warnings


def warm_start(folder: Path, known: Any, given: Any) -> tuple[np.ndarray, tuple[str, ...]]:
    found(given, store=folder / "first", algorithm="krylov")
    again = found(known, start=folder / "first", algorithm="krylov")
    assert again.steps == 1, "it starts where the other one ended"
    return again.basis, ()


def scored_fields(folder: Path, known: Any, given: Any) -> tuple[np.ndarray, tuple[str, ...]]:
    modes = npmdask.mca(known, known.to_numpy()[:, ::-1].copy(), 2)
    return modes.left.scores(given), modes.left.components.opened(given).notes


def to_anndata(folder: Path, known: Any, given: Any) -> tuple[np.ndarray, tuple[str, ...]]:
    cells = found(known).to_anndata(annotated(given, folder))
    order = np.argsort(TURNED) if list(cells.var_names) == [NAMES[i] for i in TURNED] else np.arange(4)
    return np.vstack([cells.obsm["X_pca"], cells.varm["PCs"][order]]), ()


def _in_polars(given: Any, _: Path) -> Any:
    return pytest.importorskip("polars").from_pandas(given.rename(columns=str))


def _in_arrow(given: Any, _: Path) -> Any:
    return pytest.importorskip("pyarrow").Table.from_pandas(given.rename(columns=str))


def _in_dask(given: Any, _: Path) -> Any:
    return pytest.importorskip("dask.dataframe").from_pandas(given, npartitions=2)


def _in_xarray(given: Any, _: Path) -> Any:
    return xr.DataArray(given.to_numpy(), dims=("row", "column"), coords={"column": given.columns.to_numpy()})


def _lazy(given: Any, folder: Path) -> Any:
    anndata = pytest.importorskip("anndata")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return anndata.experimental.read_lazy(written(".zarr")(given, folder))


DOORS: dict[str, Door] = {
    "scores of pandas": scores(lambda given, _: given),
    "scores of Polars": scores(_in_polars),
    "scores of PyArrow": scores(_in_arrow),
    "scores of AnnData": scores(annotated),
    "scores of lazy AnnData": scores(_lazy),
    "scores of xarray": scores(_in_xarray),
    "scores of Dask": scores(_in_dask),
    "scores of a CSV file": scores(written(".csv")),
    "scores of a Parquet file": scores(written(".parquet")),
    "transform of a CSV file": transformed(".csv"),
    "transform of a Parquet file": transformed(".parquet"),
    "transform of an h5ad file": transformed(".h5ad"),
    "transform of AnnData in Zarr": transformed(".zarr"),
    "transform along a stream": transformed_by_a_stream,
    "transform of batches": transformed_batches,
    "scores of fields": scored_fields,
    "to_anndata": to_anndata,
    "column_weights of pandas": weighted_columns(lambda weights: weights),
    "column_weights of xarray": weighted_columns(
        lambda weights: xr.DataArray(weights.to_numpy(), dims=("column",), coords={"column": weights.index.to_numpy()})
    ),
    "stream of files": streamed_files,
    "stream of batches": streamed_batches,
    "stream that goes on": continued_stream,
    "parts of a Parquet folder": parts_of_parquet,
    "partitions of a Dask DataFrame": partitions_of_dask,
    "run and earlier run": aligned,
    "Gram and Gram": merged_grams,
    "warm start": warm_start,
}
NAMED = ("column_weights of xarray", "parts of a Parquet folder")  # where numbers are of other columns, too
SAYS = [name for name in DOORS if name.startswith(("scores of", "transform", "stream", "Gram"))]
DTYPES = {"float64": np.float64, "float32": np.float32, "int64": np.int64}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", often(DTYPES, 0))
@pytest.mark.parametrize("name", DOORS)
def test_names_in_another_order_are_put_in_order(name: str, dtype: str, tmp_path: Path) -> None:
    """At every door, to rounding. Mutant: ``matched`` that returns no order."""
    known = table(DTYPES[dtype])
    for folder in ("same", "turned"):
        (tmp_path / folder).mkdir()
    right, said = DOORS[name](tmp_path / "same", known, known)
    assert not [each for each in said if "position" in each]
    answer, said = DOORS[name](tmp_path / "turned", known, known[[NAMES[i] for i in TURNED]])
    np.testing.assert_allclose(answer, right, rtol=0, atol=1e-12 * max(1.0, float(np.abs(right).max())))
    assert not [each for each in said if "position" in each]


@pytest.mark.slow
@pytest.mark.parametrize("name", DOORS)
def test_other_names_are_refused_with_the_first_that_differs(name: str, tmp_path: Path) -> None:
    """At every door. Mutant: names that are nowhere taken by position."""
    known = table()
    with pytest.raises(NpmdaskError, match=r"no (column|var) 'weight', which .* has; it has 'mass' instead"):
        if name == "warm start":
            DOORS[name](tmp_path, renamed(known).rename(columns={"mass": "weight"}), renamed(known))
        DOORS[name](tmp_path, known, renamed(known))


@pytest.mark.slow
@pytest.mark.parametrize("name", often([name for name in DOORS if name not in NAMED], 0, 3, 9, 16, 18))
def test_columns_without_names_are_taken_by_position(name: str, tmp_path: Path) -> None:
    """And where rows or files are read, that is said, once. Mutant: numbers of columns compared as names."""
    known = table()
    for folder in ("same", "bare"):
        (tmp_path / folder).mkdir()
    right, _ = DOORS[name](tmp_path / "same", known, known)
    answer, said = DOORS[name](tmp_path / "bare", known, known.set_axis(range(4), axis=1))
    np.testing.assert_allclose(answer, right, rtol=0, atol=1e-12 * max(1.0, float(np.abs(right).max())))
    assert sum("by position" in each for each in said) == (name in SAYS)


@pytest.mark.slow
def test_weights_of_rows_follow_their_index() -> None:
    """Mutants: weights by position; an index that is not compared."""
    known, weights = table(), pd.Series(np.arange(1.0, N + 1))
    right = found(known, row_weights=weights).values
    assert np.array_equal(found(known, row_weights=weights[::-1]).values, right)
    assert np.array_equal(found(known, row_weights=weights.to_numpy()).values, right)
    named = known.set_axis([f"p{i}" for i in range(N)])
    weights = weights.set_axis(named.index)
    assert np.array_equal(found(named, row_weights=weights.sample(frac=1, random_state=0)).values, right)
    with pytest.raises(BadInputError, match="row_weights has no row 'p3', which the data has; it has 'q3' instead"):
        found(named, row_weights=weights.rename({"p3": "q3"}))
    with pytest.warns(RuntimeWarning, match="by position, because the data has no names"):
        assert np.array_equal(found(known.to_numpy(), row_weights=weights).values, right)


@pytest.mark.slow
def test_columns_that_were_left_out_may_be_there_or_not() -> None:
    """Mutants: names of what is kept taken for those of all; fills of other columns."""
    known = table()
    known["age"] = np.nan
    solution = found(known, missing="drop-columns")
    right = solution.scores(known)
    for names in (["age", "income", "weight", "height"], ["income", "height", "weight"]):
        assert np.array_equal(solution.scores(known[names]), right)
    assert np.array_equal(solution.scores(known.to_numpy()), right)
    with pytest.raises(BadInputError, match="no column 'weight'"):
        solution.scores(renamed(known))
    known = table()
    known.iloc[3, 1], known.iloc[5, 2] = np.nan, np.nan
    turned = known[[NAMES[i] for i in TURNED]]
    for rule in ("mean", "em"):
        solution = found(known, missing=rule)
        assert np.array_equal(solution.scores(turned), solution.scores(known))
    fill = Fill(values=np.array([10.0, 20.0, 30.0, 40.0]))  # as of a private run
    components = StoredComponents(basis=np.eye(4)[:, :3], fill=fill, labels=of_columns(NAMES))
    assert np.array_equal(components.all_scores(turned), components.all_scores(known))
    assert components.all_scores(turned)[3, 1] == 20.0


@pytest.mark.slow
def test_scikit_learn_refuses_another_order() -> None:
    """Its estimators keep to its convention, of tables that it does not look at too."""
    pl = pytest.importorskip("polars")
    known = table()
    turned = known[[NAMES[i] for i in TURNED]]
    for rows, other in ((known, turned), (pl.from_pandas(known), pl.from_pandas(turned))):
        for model in (npmdask.PCA(2), npmdask.StreamingPCA(2, center=True), npmdask.IncrementalPCA(2)):
            model.fit(rows)
            assert np.isfinite(model.transform(rows)).all()
            with pytest.raises(BadInputError, match="order"):
                model.transform(other)
            if hasattr(model, "partial_fit"):
                with pytest.raises(BadInputError, match="order"):
                    model.partial_fit(other)


@pytest.mark.slow
@pytest.mark.parametrize("estimator", [npmdask.PCA, npmdask.TruncatedSVD])
def test_runs_of_estimators_keep_names(estimator: Any, tmp_path: Path) -> None:
    """Of tables: other rows and weights meet them by name. Mutant: a fit of columns without names."""
    known = table()
    model = estimator(2, store=tmp_path / "run").fit(known)
    solution = npmdask.resume(tmp_path / "run")
    assert solution.labels.columns[0].values.tolist() == NAMES  # type: ignore[union-attr]
    turned = known[[NAMES[i] for i in TURNED]]
    np.testing.assert_allclose(solution.scores(turned), model.transform(known), rtol=0, atol=1e-10 * N)
    weights = pd.Series([1.0, 2.0, 30.0, 4.0], index=NAMES)
    for given in (weights[::-1], weights.to_numpy()):
        found = estimator(2, column_weights=given).fit(known).singular_values_
        np.testing.assert_array_equal(found, estimator(2, column_weights=weights).fit(known).singular_values_)


@pytest.mark.slow
def test_rows_of_two_fields_must_have_one_order() -> None:
    """They are not put in order, as neither field need fit into memory. Mutant: rows by position."""
    first = table().set_axis([f"p{i}" for i in range(N)])
    second = first[["age", "income"]] + 1.0
    assert np.isfinite(npmdask.mca(first, second, 1).values).all()
    with pytest.raises(BadInputError, match=r"in another order \(row 0 of the first is row 59 there\): .* df.loc"):
        npmdask.mca(first, second[::-1], 1)
    with pytest.raises(BadInputError, match=r"has no row 'p4', which .* has; it has 'q4' instead"):
        npmdask.mca(first, second.rename({"p4": "q4"}), 1)


@pytest.mark.slow
def test_a_gram_goes_on_with_the_same_columns(tmp_path: Path) -> None:
    """Rows of another order are formed and merged. Mutant: refused with a checksum of names."""
    known = table()
    npmdask.gram(known, tmp_path / "g", kind="samples")
    for other, said in (
        (known[[NAMES[i] for i in TURNED]], "in another order: .* merge both"),
        (renamed(known), "no column 'weight', which .* has; it has 'mass' instead"),
    ):
        with pytest.raises(RefusedError, match=said):
            npmdask.gram(other, tmp_path / "g", kind="samples")


# Coordinates.


def field(dtype: Any = np.float64) -> Any:
    rng = np.random.default_rng(3)
    values = rng.standard_normal((40, 6, 8)) * np.linspace(3, 0.5, 8) + np.arange(6)[:, None]
    coords = {"time": pd.date_range("2000-01-01", periods=40), "lat": LATS, "lon": LONS}
    return xr.DataArray(values.astype(dtype), dims=("time", "lat", "lon"), coords=coords, name="sst")


REORDERED: dict[str, Callable[[Any], Any]] = {
    "from north to south": lambda f: f.isel(lat=slice(None, None, -1)),
    "-180 to 180": lambda f: f.assign_coords(lon=(f.lon + 180) % 360 - 180).sortby("lon"),
    "rolled": lambda f: f.roll(lon=3, roll_coords=True),
    "transposed": lambda f: f.transpose("lon", "time", "lat"),
    "coordinates in float32": lambda f: f.assign_coords(lat=(f.lat + 1e-6).astype(np.float32)),
    "other words": lambda f: f.rename(lat="latitude", lon="longitude")[:, ::-1],
}
OTHER: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a degree to the north": (
        lambda f: f.assign_coords(lat=f.lat + 1),
        "no lat -75.0, which the run has; it has -74.0",
    ),
    "half a cell to the east": (lambda f: f.assign_coords(lon=f.lon + 22.5), "no lon 0.0, which"),
    "other dimensions": (lambda f: f.rename(lat="level"), r"has the dimensions \(level, lon\), .* has \(lat, lon\)"),
    "fewer": (lambda f: f[:, :5], "5 places along lat, and the run has 6|has 40 columns"),
}
COUPLED = (EOF, MCA)


def modes_of(kind: Any, rows: Any) -> Any:
    return kind(n_modes=2).fit(*((rows,) if kind is EOF else (rows, rows[:, :, ::2])), dim="time")


@pytest.mark.slow
@pytest.mark.parametrize("kind", often(COUPLED, 0))
@pytest.mark.parametrize("dtype", often([np.float64, np.float32], 0))
def test_fields_are_put_on_the_grid_of_the_run(kind: Any, dtype: Any) -> None:
    """Mutants: only sizes compared; longitudes not modulo 360; an order that is not undone."""
    rows = field(dtype)
    model = modes_of(kind, rows)
    right = model.transform(rows)
    for name, turn in REORDERED.items():
        assert np.array_equal(model.transform(turn(rows)).transpose(*right.dims).values, right.values), name
    for name, (turn, said) in OTHER.items():
        with pytest.raises(BadInputError, match=said):
            model.transform(turn(rows))
            pytest.fail(name)
    bare = model.transform(rows.drop_vars(["lat", "lon"]))
    assert np.array_equal(bare.values, right.values), "without coordinates, by position"


@pytest.mark.slow
def test_files_are_put_on_the_grid_of_the_run(tmp_path: Path) -> None:
    """``npmdask transform RUN FILE.nc``. Mutant: coordinates of files not compared."""
    rows = field()
    rows.to_netcdf(tmp_path / "a.nc")
    found(tmp_path / "a.nc", dim="time", store=tmp_path / "run")
    transform(tmp_path / "run", tmp_path / "a.nc", tmp_path / "right.npy")
    for number, turn in enumerate(REORDERED.values()):
        turn(rows).to_netcdf(tmp_path / f"{number}.nc")
        transform(tmp_path / "run", tmp_path / f"{number}.nc", tmp_path / f"{number}.npy")
        np.testing.assert_allclose(np.load(tmp_path / f"{number}.npy"), np.load(tmp_path / "right.npy"), atol=1e-12)
    OTHER["a degree to the north"][0](rows).to_netcdf(tmp_path / "other.nc")
    with pytest.raises(BadInputError, match=r"no lat -75.0, which the run has; it has -74.0"):
        transform(tmp_path / "run", tmp_path / "other.nc", tmp_path / "other.npy")


@pytest.mark.slow
def test_weights_of_grid_points_are_put_on_the_grid() -> None:
    """Mutant: weights by position."""
    rows = field()
    areas = xr.DataArray(np.cos(np.deg2rad(LATS)) ** 0.5 * [1, 2, 3, 4, 5, 6], dims="lat", coords={"lat": LATS})
    right = EOF(n_modes=2).fit(rows, weights=areas).singular_values().values
    assert np.array_equal(EOF(n_modes=2).fit(rows, weights=areas[::-1]).singular_values().values, right)
    with pytest.raises(BadInputError, match=r"weights has no lat -75.0"):
        EOF(n_modes=2).fit(rows, weights=areas.assign_coords(lat=LATS + 1))


@pytest.mark.slow
def test_land_stays_left_out_on_a_turned_grid() -> None:
    """Mutant: points that were left out taken from where they are not."""
    rows = field()
    rows[:, 2:4, 1] = np.nan
    model = EOF(n_modes=2, use_coslat=True).fit(rows)
    right = model.transform(rows).values
    for turn in REORDERED.values():
        assert np.array_equal(model.transform(turn(rows)).values.reshape(right.shape), right)


# The comparison itself.


def axis(name: str, values: Any) -> tuple[Axis, ...]:
    return (axis_of(name, values),)


@pytest.mark.parametrize(
    ("known", "given", "order"),
    [
        (axis("column", list("abc")), axis("column", list("cab")), [1, 2, 0]),
        (axis("column", [0, 1, 2]), axis("column", [2, 1, 0]), [2, 1, 0]),
        (axis("column", list("aab")), axis("column", list("aab")), None),
        (axis("column", ["1100", "1102"]), axis("column", [1102, 1100]), [1, 0]),
        (axis("t", np.array(["2000-01-02", "2000-01-01"], "M8[ns]")), axis("t", ["2000-01-01", "2000-01-02"]), [1, 0]),
        (axis("lon", [0.0, 90.0, 180.0, 270.0]), axis("longitude", [-180, -90, 0, 90]), [2, 3, 0, 1]),
        (axis("lon", [0.0, 180.0, 359.9]), axis("lon", np.float32([-0.1, 0.0, 180.0])), [1, 2, 0]),
        (axis("x", [0.1, 0.2, np.nan]), axis("x", [0.1, 0.2, np.nan]), None),
    ],
)  # fmt: skip
def test_orders(known: Any, given: Any, order: list[int] | None) -> None:
    found = matched(known, given, "the file")
    assert not found.said and (None if found.places is None else found.places.tolist()) == order


@pytest.mark.parametrize(
    ("known", "given", "said"),
    [
        (axis("column", list("aab")), axis("column", list("aba")), "column 'a' is there twice"),
        (axis("column", list("abc")), axis("column", list("abb")), "no column 'c', which the run has"),
        (axis("x", [0.1, 0.2]), axis("x", [0.1, 0.2001]), "no x 0.2, which the run has; it has 0.2001 instead"),
        (axis("t", np.array(["2000-01-01"], "M8[s]")), axis("t", np.array(["2000-01-02"], "M8[s]")), "no t 2000-01-01"),
        (axis("lat", [0, 1, 2]), axis("lat", [1, 2, 3]), "no lat 0, which the run has; it has 3 instead"),
    ],
)  # fmt: skip
def test_refusals(known: Any, given: Any, said: str) -> None:
    with pytest.raises(BadInputError, match=said):
        matched(known, given, "the file")


@pytest.mark.parametrize("bare", [(), axis("column", [0, 1, 2]), axis("var", ["0", "1", "2"]), (Axis("column", 3),)])
def test_numbers_are_no_names(bare: Any) -> None:
    for pair in ((bare, axis("column", list("abc"))), (axis("column", list("abc")), bare)):
        places, said = matched(*pair, of_given="the file")
        assert places is None and len(said) == 1 and "taken by position, because" in said[0]
    assert matched(bare, (), "the file") == matched((), bare, "the file") == (None, ())


@pytest.mark.slow
def test_the_command_says_what_was_taken_by_position(tmp_path: Path) -> None:
    """And refuses other names with status 2."""
    known = table()
    known.to_csv(tmp_path / "a.csv", index=False)
    np.save(tmp_path / "b.npy", known.to_numpy())
    renamed(known).to_csv(tmp_path / "c.csv", index=False)
    found(tmp_path / "a.csv", store=tmp_path / "run")

    def ran(name: str) -> Any:
        command = [sys.executable, "-m", "npmdask", "transform", "run", name, "out.npy", "--json", "--overwrite"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    said = ran("b.npy")
    assert said.returncode == 0 and "by position" in said.stdout + said.stderr, said.stderr
    refused = ran("c.csv")
    assert refused.returncode == 2 and "no column 'weight'" in refused.stdout + refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.slow
def test_parts_given_as_delayed_values_are_put_in_order() -> None:
    x = np.random.default_rng(3).standard_normal((60, 4)) * [4, 3, 2, 1]
    table = pd.DataFrame(x, columns=list("abcd"))
    parts = [dask.delayed(table[:30]), dask.delayed(table[30:][list("dcba")])]
    frame = dd.from_delayed(parts, meta=table[:0], verify_meta=False)
    found = npmdask.top_k(frame, 2, kind="samples", center=True).explained_variance
    np.testing.assert_allclose(found, np.linalg.svd(x - x.mean(0))[1][:2] ** 2 / 59, rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_rows_of_two_tables_in_files_belong_together_by_their_names(suffix: str, tmp_path: Path) -> None:
    x = np.random.default_rng(4).standard_normal((40, 5)) * [5, 4, 3, 2, 1]
    whole = pd.DataFrame(x, columns=list("abcde"), index=[f"station {i}" for i in range(40)])
    write = {"parquet": pd.DataFrame.to_parquet, "csv": pd.DataFrame.to_csv}[suffix]
    for name, table in {"left": whole[["a", "b"]], "right": whole[["c", "d", "e"]], "turned": whole[::-1]}.items():
        write(table, tmp_path / f"{name}.{suffix}")
    warnings.simplefilter("ignore", DataWarning)
    found = npmdask.mca(tmp_path / f"left.{suffix}", tmp_path / f"right.{suffix}", 1)
    centred = x - x.mean(axis=0)
    right = np.linalg.svd(centred[:, :2].T @ centred[:, 2:])[1][0] / len(x)
    np.testing.assert_allclose(found.values[0], right, rtol=1e-9)
    with pytest.raises(BadInputError, match="row"):
        npmdask.mca(tmp_path / f"left.{suffix}", tmp_path / f"turned.{suffix}", 1)


@pytest.mark.slow
def test_text_tables_of_a_pattern_follow_the_names_of_the_first(tmp_path: Path) -> None:
    x = np.random.default_rng(5).standard_normal((50, 3)) * [3, 2, 1]
    table = pd.DataFrame(x, columns=list("abc"))
    table[:20].to_csv(tmp_path / "1.csv", index=False)
    table[20:][list("cab")].to_csv(tmp_path / "2.csv", index=False)
    found = npmdask.top_k(f"{tmp_path}/*.csv", 2, kind="samples", center=True).explained_variance
    np.testing.assert_allclose(found, np.linalg.svd(x - x.mean(axis=0))[1][:2] ** 2 / 49, rtol=1e-9)
    table[20:].rename(columns={"b": "z"}).to_csv(tmp_path / "2.csv", index=False)
    with pytest.raises(BadInputError, match="'b'"):
        npmdask.top_k(f"{tmp_path}/*.csv", 2, kind="samples", center=True)
