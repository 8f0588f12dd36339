"""Scores with the ids and dates of their rows, in files and partitions that a warehouse reads."""

from __future__ import annotations

import datetime
import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as pa_dataset
import pyarrow.parquet as pa_parquet
import pytest

from npmdask.cli.main import main
from npmdask.errors import BadInputError, CommitError, RefusedError
from npmdask.streaming import StreamingPCA
from npmdask.streaming.transform import transform

N, D = 90, 6
NAMES = [f"x{i}" for i in range(D)]
SCORES = ["component1", "component2"]


def table(seed: int = 0, days: tuple[int, ...] = (1, 2, 3)) -> pd.DataFrame:
    """Rows with ids that begin with zeros, dates, and a word that may be missing."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(rng.standard_normal((N, D)) * [9, 5, 2, 1, 1, 1] + 3, columns=NAMES)
    frame.insert(2, "id", [f"{seed}{i:05d}" for i in range(N)])
    frame.insert(0, "date", [datetime.date(2026, 11, days[i % len(days)]) for i in range(N)])
    frame["site"] = pd.Series(["north", None, "south"] * (N // 3), dtype=object)
    return frame


@pytest.fixture
def model(tmp_path: Path) -> Path:
    x = table()[NAMES].to_numpy()
    StreamingPCA(2, center=True).fit(x).save(tmp_path / "model")
    return tmp_path / "model"


def scores_of(model: Path, frame: pd.DataFrame) -> np.ndarray:
    held = StreamingPCA.load(model)
    assert held.mean is not None
    return np.asarray((frame[NAMES].to_numpy() - held.mean) @ held.basis)


def check(found: pd.DataFrame, frame: pd.DataFrame, model: Path) -> None:
    """Every row has the scores of its own id. Mutant: keys that are one row off after a row was left out."""
    found, frame = found.set_index("id").sort_index(), frame.set_index("id").sort_index()
    assert list(found.index) == list(frame.index)
    np.testing.assert_allclose(found[SCORES], scores_of(model, frame), rtol=1e-9, atol=1e-9)


def parts(frame: pd.DataFrame, folder: Path, form: str) -> Path:
    folder.mkdir()
    for i, part in enumerate(np.array_split(np.arange(len(frame)), 3)):
        some, path = frame.iloc[part], folder / f"part-{i}.{form}"
        some.to_csv(path, index=False) if form == "csv" else some.to_parquet(path, index=False, row_group_size=17)
    return folder


@pytest.mark.parametrize("form", ["csv", "parquet"])
@pytest.mark.parametrize("into", ["csv", "parquet"])
def test_ids_and_dates_stand_beside_the_scores_of_their_rows(form: str, into: str, model: Path, tmp_path: Path) -> None:
    frame = table()
    frame.loc[[5, 31, 64], "x3"] = np.nan
    source = f"{parts(frame, tmp_path / 'in', form)}?leave_out=date,id,site"
    done = transform(
        model, source, tmp_path / f"s.{into}", keep=["id", "date", "site"], batch_rows=13, non_finite="skip"
    )
    dest = tmp_path / f"s.{into}"
    found = pd.read_csv(dest, dtype={"id": str}) if into == "csv" else pd.read_parquet(dest)
    assert list(found.columns) == ["id", "date", "site", *SCORES] and done.skipped == 3 and done.rows == N - 3
    check(found, frame.drop([5, 31, 64]), model)
    assert found["date"].astype(str).iloc[0] == "2026-11-01" and found["site"].isna().sum() > 20


def test_types_of_parquet_stay_and_those_of_csv_are_text(model: Path, tmp_path: Path) -> None:
    frame = table()
    frame["number"] = np.arange(N, dtype=np.int64) + 2**60
    choice = "?leave_out=date,id,site,number"
    for form in ("csv", "parquet"):
        source = f"{parts(frame, tmp_path / form, form)}{choice}"
        transform(model, source, tmp_path / f"of-{form}.parquet", keep=["number", "date", "id"])
    kinds = [pa_parquet.read_schema(tmp_path / f"of-{form}.parquet") for form in ("csv", "parquet")]
    assert [[str(kind.field(name).type) for name in ("number", "date")] for kind in kinds] == [
        ["string", "string"],
        ["int64", "date32[day]"],
    ]
    assert pd.read_parquet(tmp_path / "of-parquet.parquet")["number"].tolist() == frame["number"].tolist()
    assert pd.read_parquet(tmp_path / "of-csv.parquet")["id"].tolist() == frame["id"].tolist()
    about = json.loads(kinds[1].metadata[b"npmdask"])
    assert about["run"] == str(model) and {"model", "version", "written"} < about.keys()


def test_partitions_are_replaced_or_added_to_and_others_stay(model: Path, tmp_path: Path) -> None:
    first, again, later = table(0), table(1, (3,)), table(2, (3, 4))
    dest, keep = tmp_path / "scores", ["id", "date"]
    for i, frame in enumerate((first, again, later)):
        frame.to_parquet(tmp_path / f"{i}.parquet", index=False)
    sources = [f"{tmp_path / f'{i}.parquet'}?leave_out=date,id,site" for i in range(3)]
    transform(model, sources[0], dest, keep=keep, partition="date")
    untouched = (dest / "date=2026-11-01" / "scores.parquet").stat().st_mtime_ns
    with pytest.raises(RefusedError, match="exists already"):
        transform(model, sources[1], dest, keep=keep, partition="date")
    transform(model, sources[1], dest, keep=keep, partition="date", overwrite=True)
    transform(model, sources[2], dest, keep=keep, partition="date", append=True)
    assert (dest / "date=2026-11-01" / "scores.parquet").stat().st_mtime_ns == untouched
    found = pa_dataset.dataset(dest, format="parquet", partitioning="hive").to_table().to_pandas()
    check(found, pd.concat([first[first["date"] < datetime.date(2026, 11, 3)], again, later]), model)
    assert sorted(path.name for path in dest.iterdir()) == [f"date=2026-11-0{i}" for i in range(1, 5)]
    assert not [path for path in dest.rglob("*") if "partial" in path.name]


def test_a_night_is_one_partition_and_may_be_repeated(model: Path, tmp_path: Path) -> None:
    table().to_parquet(tmp_path / "x.parquet", index=False)
    call = ["transform", str(model), str(tmp_path / "x.parquet"), str(tmp_path / "s"), "--leave-out", "date,id,site"]
    call += ["--keep", "id", "--partition", "night=2026-11-27", "--overwrite", "--json"]
    assert [main(call), main(call)] == [0, 0]
    found = pa_dataset.dataset(tmp_path / "s", format="parquet", partitioning="hive").to_table().to_pandas()
    check(found, table(), model)
    assert set(found["night"].astype(str)) == {"2026-11-27"}


def test_rows_without_a_value_have_a_partition_and_names_of_folders_are_safe(model: Path, tmp_path: Path) -> None:
    frame = table()
    frame["site"] = ["../../up", None, "a b=c"] * (N // 3)
    frame.to_parquet(tmp_path / "x.parquet", index=False)
    source = f"{tmp_path / 'x.parquet'}?leave_out=date,id,site"
    transform(model, source, tmp_path / "s", keep=["id", "site"], partition="site")
    found = pa_dataset.dataset(tmp_path / "s", format="parquet", partitioning="hive").to_table().to_pandas()
    check(found, frame, model)
    assert found.set_index("id")["site"].fillna("-").to_dict() == frame.set_index("id")["site"].fillna("-").to_dict()
    assert sorted(path.name for path in (tmp_path / "s").iterdir()) == [
        "site=..%2F..%2Fup",
        "site=__HIVE_DEFAULT_PARTITION__",
        "site=a%20b%3Dc",
    ]


def test_scores_along_other_components_are_not_put_below_each_other(model: Path, tmp_path: Path) -> None:
    """Component 1 of one night is not component 1 of another. Mutant: a model that is not compared."""
    table().to_parquet(tmp_path / "x.parquet", index=False)
    source, dest = f"{tmp_path / 'x.parquet'}?leave_out=date,id,site", tmp_path / "s.parquet"
    StreamingPCA(2, center=True).fit(table(5)[NAMES].to_numpy()).save(tmp_path / "other")
    transform(model, source, dest, keep=["id"])
    before = dest.read_bytes()
    with pytest.raises(RefusedError, match="scores along other components"):
        transform(tmp_path / "other", source, dest, keep=["id"], append=True)
    with pytest.raises(RefusedError, match="has columns"):
        transform(model, source, dest, keep=["id", "date"], append=True)
    assert dest.read_bytes() == before and [path.name for path in tmp_path.glob("*partial*")] == []
    again = transform(model, source, dest, keep=["id"], append=True)
    assert dest.read_bytes() == before and "already" in again.warnings[-1], "the same call again, as after a kill"
    table(1).to_parquet(tmp_path / "y.parquet", index=False)
    transform(model, f"{tmp_path / 'y.parquet'}?leave_out=date,id,site", dest, keep=["id"], append=True)
    assert len(pd.read_parquet(dest)) == 2 * N


def test_files_of_another_pattern_are_another_source(model: Path, tmp_path: Path) -> None:
    """Mutant: the folder alone says whether rows are there already."""
    source = f"{parts(table(), tmp_path / 'in', 'parquet')}?leave_out=date,id,site"
    for name in ("*-0*", "*-1*", "*-1*", "*-2*"):
        transform(model, source, tmp_path / "s.parquet", keep=["id"], append=True, pattern=name)
    check(pd.read_parquet(tmp_path / "s.parquet"), table(), model)


def test_an_append_that_ended_between_two_partitions_is_made_whole_by_the_same_call(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is there twice. Mutant: rows of a source that are not known again."""
    dest, keep = tmp_path / "scores", ["id", "date"]
    for i, frame in enumerate((table(0), table(1))):
        frame.to_parquet(tmp_path / f"{i}.parquet", index=False)
    sources = [f"{tmp_path / f'{i}.parquet'}?leave_out=date,id,site" for i in range(2)]
    transform(model, sources[0], dest, keep=keep, partition="date")
    replaced, done = os.replace, list[Any]()

    def full_disk(*places: Any) -> None:
        done.append(places)
        if len(done) == 2:
            raise OSError(28, "No space left on device")
        replaced(*places)

    monkeypatch.setattr(os, "replace", full_disk)
    with pytest.raises(CommitError, match="No space left"):
        transform(model, sources[1], dest, keep=keep, partition="date", append=True)
    monkeypatch.setattr(os, "replace", replaced)
    done_before = transform(model, sources[1], dest, keep=keep, partition="date", append=True)
    found = pa_dataset.dataset(dest, format="parquet", partitioning="hive").to_table().to_pandas()
    check(found, pd.concat([table(0), table(1)]), model)
    assert "already" in done_before.warnings[-1] and not list(dest.rglob("*partial*"))


@pytest.mark.parametrize("batch", [None, 30])
@pytest.mark.parametrize(
    "first, second, said",
    [
        (pa.array(range(30), pa.int64()), pa.array([f"{i:03d}" for i in range(30)]), "of type string, and int64"),
        (pa.array([True] * 30), pa.array(range(30), pa.int64()), "of type int64, and bool|of type bool, and int64"),
        (
            pa.array([datetime.datetime(2026, 11, 1)] * 30, pa.timestamp("us", "Europe/Berlin")),
            pa.array([datetime.datetime(2026, 11, 1)] * 30, pa.timestamp("us")),
            "of type timestamp",
        ),
        (pa.array([None] * 30), pa.array([f"{i:03d}" for i in range(30)]), ""),
        (pa.array(range(30), pa.int64()), pa.array(range(30), pa.int32()), ""),
        (pa.array(["a"] * 30).dictionary_encode(), pa.array(["b"] * 30), ""),
    ],
)
def test_kept_values_are_written_as_they_are_or_not_at_all(
    first: Any, second: Any, said: str, batch: int | None, model: Path, tmp_path: Path
) -> None:
    """No number is made of 007, no time of another zone: in one batch as in two."""
    numbers = table().head(30)[NAMES]
    (tmp_path / "in").mkdir()
    for i, key in enumerate((first, second)):
        pa_parquet.write_table(
            pa.Table.from_pandas(numbers).append_column("key", key), tmp_path / "in" / f"{i}.parquet"
        )
    call = partial(transform, model, f"{tmp_path / 'in'}?leave_out=key", tmp_path / "s.parquet", keep=["key"])
    if said:
        with pytest.raises(BadInputError, match=said):
            call(batch_rows=batch)
        assert not list(tmp_path.glob("*s.parquet*"))
        return
    call(batch_rows=batch)
    assert pd.read_parquet(tmp_path / "s.parquet")["key"].tolist() == [*first.to_pylist(), *second.to_pylist()]


@pytest.mark.parametrize("key", ["../../up", "a/b", "g"])
def test_partitions_lie_in_their_folder_and_none_is_lost(key: str, model: Path, tmp_path: Path) -> None:
    """Names of columns come from strangers' files; NaN is no value; every row is in one partition."""
    frame = table().drop(columns=["date", "site"])
    values = pa.array([1.0, float("nan"), None] * (N // 3))
    held = pa.Table.from_pandas(frame, preserve_index=False).append_column(key, values)
    pa_parquet.write_table(held, tmp_path / "x.parquet")
    source = f"{tmp_path / 'x.parquet'}?only={','.join(NAMES)}"
    transform(model, source, tmp_path / "deep" / "s", keep=["id", key], partition=key)
    found = [pd.read_parquet(path) for path in (tmp_path / "deep" / "s").glob("*/scores.parquet")]
    assert sorted(map(len, found)) == [N // 3, 2 * N // 3]
    check(pd.concat(found), frame, model)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["deep", "model", "x.parquet"]


@pytest.mark.parametrize(
    "dest, asked, said",
    [
        ("s.npy", {"keep": ["id"]}, "only .csv and .parquet have room for id"),
        ("s", {"keep": ["id"]}, "only .csv and .parquet"),
        ("s.parquet", {"keep": ["id"], "partition": "id"}, "partitions lie in a folder"),
        ("s", {"keep": ["id"], "partition": "date"}, "give one of the columns that are kept"),
        ("s", {"keep": ["id"], "partition": "night="}, "a name of its own with a value"),
        ("s", {"keep": ["id"], "partition": "=5"}, "a name of its own with a value"),
        ("s", {"keep": ["id"], "partition": "id=5"}, "a name of its own"),
        ("s", {"keep": ["id"], "partition": "component1=5"}, "scores are called 'component1'"),
        ("s.csv", {"keep": ["id", "id"]}, "name each column once"),
        ("s.csv", {"append": True}, "appended to .parquet"),
        ("s.parquet", {"append": True, "overwrite": True}, "one of them"),
        ("s.parquet", {"keep": ["idd"]}, "has no column 'idd': did you mean 'id'"),
    ],
)
def test_what_does_not_go_together_is_said(
    dest: str, asked: dict[str, object], said: str, model: Path, tmp_path: Path
) -> None:
    table().to_parquet(tmp_path / "x.parquet", index=False)
    with pytest.raises(BadInputError, match=said):
        transform(model, f"{tmp_path / 'x.parquet'}?leave_out=date,id,site", tmp_path / dest, **asked)  # type: ignore[arg-type]
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(("s", ".s"))]


def test_rows_in_memory_keep_nothing(model: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="has no columns beside numbers"):
        transform(model, table()[NAMES].to_numpy(), tmp_path / "s.csv", keep=["id"])
