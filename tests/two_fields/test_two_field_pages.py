"""The page of two fields: patterns of both with their names, what is correlated with them, and scores of both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import npmdask
from npmdask.errors import BadInputError
from npmdask.formats.ingest import ingest
from npmdask.manage.kinds import PageOptions
from npmdask.manage.report import report_of
from npmdask.report import Bars, Map, Plot, Report

ROWS = 120


def blocks(report: Report, title: str) -> list[Any]:
    return [block for one in report.sections if one.title == title for block in one.blocks]


def fields() -> tuple[xr.DataArray, xr.DataArray]:
    """Two grids over the same times, with land in the left one."""
    rng = np.random.default_rng(0)
    times = pd.date_range("2000-01-01", periods=ROWS, freq="MS")
    common = rng.standard_normal((ROWS, 1, 1))
    left = common * rng.standard_normal((3, 4)) + 0.3 * rng.standard_normal((ROWS, 3, 4))
    right = common * rng.standard_normal((2, 5)) + 0.3 * rng.standard_normal((ROWS, 2, 5))
    left[:, 1, 2] = np.nan
    axes = {"lat": [0.0, 1.0, 2.0], "lon": [0.0, 1.0, 2.0, 3.0]}, {"lat": [5.0, 6.0], "lon": np.arange(5.0)}
    a, b = (
        xr.DataArray(values, dims=("time", "lat", "lon"), coords={"time": times, **at})
        for values, at in zip((left, right), axes, strict=True)
    )
    return a, b


@pytest.mark.slow
def test_maps_correlations_and_scores_of_both_fields(tmp_path: Path) -> None:
    """Mutants: sides exchanged; land filled from its neighbours; own instead of other scores; scores not scaled."""
    a, b = fields()
    found = npmdask.mca(a, b, 2, dim="time", missing="drop-columns", store=tmp_path / "run")
    report = report_of(tmp_path / "run", PageOptions(data=(a, b)))
    left, right = (block for block in blocks(report, "Patterns of both fields")[1:3])
    assert isinstance(left, Map) and (left.title, right.title) == ("Mode 1, left field", "Mode 1, right field")
    assert left.y == (0.0, 1.0, 2.0) and right.y == (5.0, 6.0) and left.values[1][2] is None
    np.testing.assert_allclose(np.ravel(right.values), found.right.patterns[:, 0], atol=1e-3)
    flat = a.values.reshape(ROWS, -1)
    scores = found.left.scores(a, dim="time"), found.right.scores(b, dim="time")
    of_left = blocks(report, "Correlations of columns")[1]
    true = [np.corrcoef(flat[:, j], scores[1][:, 0])[0, 1] for j in range(12)]
    np.testing.assert_allclose(np.array(of_left.values, float).ravel(), true, atol=1e-3)
    plots = [block for block in blocks(report, "Scores of both fields") if isinstance(block, Plot)]
    assert [plot.x_is for plot in plots] == ["time", "time", "value", "value"]
    assert plots[0].title == f"Mode 1, correlation {found.correlations[0]:.2f}" and plots[0].x == "time"
    for series, side in zip(plots[0].series, scores, strict=True):
        np.testing.assert_allclose(series.y, side[:, 0] / side[:, 0].std(), atol=1e-3)
    np.testing.assert_allclose(plots[3].series[0].x, scores[0][:, 1] / scores[0][:, 1].std(), rtol=1e-3, atol=1e-3)
    kept = blocks(report_of(tmp_path / "run"), "Scores of both fields")
    assert kept == blocks(report, "Scores of both fields"), "found once: the data lay in memory"


@pytest.fixture
def people(tmp_path: Path) -> Path:
    """Canonical correlations of two tables in files."""
    rng = np.random.default_rng(1)
    common = rng.standard_normal((ROWS, 1))
    for name, columns in (("a", ["height", "weight"]), ("b", ["iron", "pulse", "glucose"])):
        rows = common @ rng.standard_normal((1, len(columns))) + rng.standard_normal((ROWS, len(columns)))
        pd.DataFrame(rows, columns=columns).to_parquet(tmp_path / f"{name}.parquet")
        ingest(tmp_path / f"{name}.parquet", tmp_path / f"{name}.zarr")
    npmdask.cca(tmp_path / "a.zarr", tmp_path / "b.zarr", 1, store=tmp_path / "run")
    return tmp_path


@pytest.mark.slow
def test_columns_have_their_names_and_rows_a_colour(people: Path) -> None:
    """Mutants: names of the other field; covariances for correlations; a colour of another row."""
    report = report_of(people / "run", PageOptions(colour="weight"))
    a, b = (pd.read_parquet(people / f"{name}.parquet") for name in "ab")
    (left, right) = (block for block in blocks(report, "Correlations of columns") if isinstance(block, Bars))
    scores = npmdask.cca(a, b, 1)
    for card, side, table in ((left, scores.left, a), (right, scores.right, b)):
        own = side.scores(table)[:, 0]
        assert {name for name, _ in card.bars} == set(table.columns) and card.most <= 1
        for name, value in card.bars:
            assert abs(value) == pytest.approx(abs(np.corrcoef(table[name], own)[0, 1]), abs=1e-6)
    (plot,) = (block for block in blocks(report, "Scores of both fields") if isinstance(block, Plot))
    assert len(plot.series) == 5, "fifths of a column of numbers"
    lowest = {int(label.removeprefix("row ")) for label in plot.series[0].labels}
    assert lowest == set(np.argsort(a["weight"].to_numpy())[: len(lowest)])
    with pytest.raises(BadInputError, match="no column of that name"):
        report_of(people / "run", PageOptions(colour="nothing"))
    with pytest.raises(BadInputError, match="has 12 cells"):
        report_of(people / "run", PageOptions(grid=(3, 4)))


@pytest.mark.slow
def test_data_that_changed_since_are_not_scored(people: Path) -> None:
    """Fails when scores of other rows are drawn as if they were those of the job."""
    changed = pd.read_parquet(people / "b.parquet") + 1.0
    changed.to_parquet(people / "b.parquet")
    ingest(people / "b.parquet", people / "b.zarr", overwrite=True)
    (said,) = blocks(report_of(people / "run"), "Scores of both fields")
    assert "has changed since" in said.text
