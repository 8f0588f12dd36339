"""Data that are not as expected end a run before its first pass, with what failed and by how much."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from npmdask.config import RunConfig
from npmdask.errors import BadInputError
from npmdask.formats import expectations

pd = pytest.importorskip("pandas")
ROWS = 60
EXPECT = {
    "rows": ROWS,
    "columns": ["id", "city"],
    "types": {"id": "text", "day": "date", "x1": "number", "count": "integer"},
    "missing": {"x1": 0.1, "id": 0.0},
}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPMDASK_CACHE", str(tmp_path / "cache"))


def table() -> Any:
    made = pd.DataFrame(np.random.default_rng(0).standard_normal((ROWS, 3)), columns=["x0", "x1", "x2"])
    made["id"], made["city"] = [f"{i:05d}" for i in range(ROWS)], "Ulm"
    made["day"], made["count"] = pd.to_datetime("2026-11-27"), range(ROWS)
    return made


def question(path: Path, expect: dict[str, Any], **source: Any) -> RunConfig:
    asked = {"path": str(path), "missing": "mean", "center": True} | source
    tables = {"source": asked, "algorithm": {"target_rank": 1}, "expect": expect}
    return RunConfig.model_validate(tables | {"run": {"store": str(path.with_name("run"))}})


def written(folder: Path, made: Any, form: str) -> Path:
    path = folder / f"arrived.{form}"
    made.to_csv(path, index=False) if form == "csv" else made.to_parquet(path)
    return path


def spoilt(how: str) -> Any:
    made = table()
    match how:
        case "columns":
            return made.drop(columns=["city"])
        case "types":
            made["x1"] = ["1.5"] * (ROWS - 1) + ["n/k"]
        case "rows":
            return made.head(ROWS - 1)
        case "missing":
            made.loc[:8, "x1"] = np.nan
        case "keys":
            made.loc[7, "id"] = None
    return made


SAID = {
    "columns": "1 of 5 expected columns is not there (city)",
    "types": {"csv": "x1 holds 'n/k', and number is expected", "parquet": "x1 is of type text, and number is expected"},
    "rows": "59 rows, and at least 60 are expected",
    "missing": "15 % of x1 is missing, and at most 10 % is expected",
    "keys": "1.67 % of id is missing, and at most 0 % is expected",
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::npmdask.errors.DataWarning")  # of columns that are left out
@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_table_that_is_not_as_expected_is_refused_with_the_reason(tmp_path: Path, form: str) -> None:
    """Fails where an expectation is not looked at, where a store is begun, or where good data are refused."""
    only = {"only": ["x0", "x1", "x2"]}
    for how, said in SAID.items():
        asked = question(written(tmp_path, spoilt(how), form), EXPECT, **only)
        for look in (asked.plan, asked.solve):
            with pytest.raises(BadInputError) as refused:
                look()
            assert f"[expect] says: {said[form] if isinstance(said, dict) else said}. " in str(refused.value), how
        assert not (tmp_path / "run").exists()
    assert question(written(tmp_path, table(), form), EXPECT, **only).solve().answered


def test_a_store_is_held_to_rows_and_gaps_and_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails where marks of missing values do not count, or where data that were found good are read at every look."""
    values = table()[["x0", "x1", "x2"]].to_numpy()
    values[:8, 1], values[8, 1] = np.nan, -9999
    made = zarr.create_array(tmp_path / "a.zarr", data=values, chunks=(16, 3))
    marked = {"missing_values": [-9999.0]}
    with pytest.raises(BadInputError, match=r"15 % of column 1 is missing, and at most 14 % is expected"):
        question(tmp_path / "a.zarr", {"rows": ROWS, "missing": 0.14}, **marked).check()
    good, reads = question(tmp_path / "a.zarr", {"rows": ROWS, "missing": 0.15}, **marked), []
    counted = expectations._count
    monkeypatch.setattr(expectations, "_count", lambda *given: reads.append(1) or counted(*given))
    good.check()
    good.check()
    assert len(reads) == 1
    made[0, 0] = np.nan
    good.check()
    assert len(reads) == 2, "it has changed"
    with pytest.raises(BadInputError, match=r"60 rows, and at least 61 are expected"):
        question(tmp_path / "a.zarr", {"rows": ROWS + 1}).check()


@pytest.mark.parametrize("more", [{"privacy": {"epsilon": 1.0, "delta": 1e-6}}, {"stream": {}}])
def test_what_would_tell_of_private_data_or_of_a_stream_is_refused(tmp_path: Path, more: dict[str, Any]) -> None:
    asked = question(tmp_path / "a.zarr", {"rows": 1}, missing="refuse").model_dump(exclude_unset=True)
    with pytest.raises(BadInputError, match="expect"):
        config = RunConfig.model_validate(asked | more)
        config.stream_problem() if config.streams else config.open_data()


def test_marks_of_float32_are_counted_as_the_run_takes_them(tmp_path: Path) -> None:
    """Mutant: -999.9 of float64 is none of float32, and a night of gaps is good."""
    values = np.ones((10, 2), np.float32)
    values[:5, 0] = -999.9
    zarr.create_array(tmp_path / "a.zarr", data=values, chunks=(5, 2))
    with pytest.raises(BadInputError, match=r"50 % of column 0 is missing"):
        question(tmp_path / "a.zarr", {"missing": 0.1}, missing_values=[-999.9]).check()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::npmdask.errors.DataWarning")
def test_text_that_a_run_reads_is_of_its_type(tmp_path: Path) -> None:
    """Mutants: a blank before a number, or a zone of a time, makes a good night red."""
    (tmp_path / "a.csv").write_text("x, n, day\n1.5, 2, 2026-11-27T12:00:00.5Z\n2.5, 3, 2026-11-27 12:00+01:00\n")
    types = {"types": {"x": "number", "n": "integer", "day": "date"}}
    question(tmp_path / "a.csv", types, only=["x", "n"]).open_data()
    (tmp_path / "a.csv").write_text("x, n, day\n1.5, 2, 2026-13-27T12:00:00Z\n2.5, 3, 2026-11-27\n")
    with pytest.raises(BadInputError, match=r"day holds '2026-13-27T12:00:00', and date"):
        question(tmp_path / "a.csv", types, only=["x", "n"]).open_data()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::npmdask.errors.DataWarning")
def test_gaps_of_columns_left_out_are_nan_too_and_many_files_say_one_sentence(tmp_path: Path) -> None:
    """Mutants: only nulls of Parquet are gaps; each of many files repeats what is wrong."""
    pq, pa = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    for part in range(3):
        y = np.array([np.nan, 1.0, 2.0, 3.0])
        pq.write_table(pa.table({"x": np.arange(4.0), "y": y, "id": ["a"] * 4}), tmp_path / f"part-{part}.parquet")
    with pytest.raises(BadInputError, match=r"25 % of y is missing"):
        question(tmp_path, {"missing": {"y": 0.1}}, only=["x"]).open_data()
    with pytest.raises(BadInputError) as refused:
        question(tmp_path, {"types": {"id": "number"}}, only=["x"]).open_data()
    assert str(refused.value).count("id is of type text") == 1
