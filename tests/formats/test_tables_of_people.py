"""Tables as people have them: each is answered from its numeric columns as pandas reads them, or refused for a true
reason, with a remedy that leads to that answer when it is followed.
"""

from __future__ import annotations

import csv
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import npmdask
from npmdask.errors import BadInputError
from npmdask.formats.ingest import ingest

pytestmark = pytest.mark.filterwarnings("ignore::npmdask.errors.DataWarning")  # which say what was left out
ROWS = 40
RNG = np.random.default_rng(40)
X = np.round(RNG.standard_normal((ROWS, 3)) * [9, 4, 2] + [1, 2, 3], 4)
PLAIN = pd.DataFrame(X, columns=list("abc"))
DAYS = pd.date_range("2020-02-25", periods=ROWS).strftime("%Y-%m-%d")
WORDS = [f"name {i % 7}" for i in range(ROWS)]


def to_csv(table: pd.DataFrame, **how: Any) -> Callable[[Path], None]:
    return lambda path: table.to_csv(path, **{"index": False, **how})


def text(of: Callable[[str], str], **how: Any) -> Callable[[Path], None]:
    """The plain table as text, changed."""
    return lambda path: path.write_bytes(of(PLAIN.to_csv(index=False, lineterminator="\n", **how)).encode())


def parquet(table: pd.DataFrame) -> Callable[[Path], None]:
    return lambda path: table.to_parquet(path)


def axis(*names: Any) -> pd.DataFrame:
    return PLAIN.set_axis(names, axis=1)


def gaps(table: pd.DataFrame, word: str = "") -> Callable[[Path], None]:
    holes = table.astype(object)
    holes.iloc[[3, 30], 1] = word
    return to_csv(holes)


TWICE = pd.concat([PLAIN, PLAIN["a"] * 2 + PLAIN["c"]], axis=1)
MIXED = PLAIN.assign(day=DAYS, name=WORDS, kind=pd.Categorical(WORDS), yes=X[:, 0] > 0)[
    ["day", "a", "name", "b", "kind", "c", "yes"]
]
# By name: how the file is written, and how pandas has to be told to read it.
TABLES: dict[str, tuple[str, Callable[[Path], None], dict[str, Any]]] = {
    "plain": (".csv", to_csv(PLAIN), {}),
    "mixed": (".csv", to_csv(MIXED), {}),
    "dates": (".csv", to_csv(PLAIN.assign(date=DAYS)), {}),
    "times": (".csv", to_csv(PLAIN.assign(at=[f"12:{i:02}" for i in range(ROWS)])), {}),
    "strings": (".csv", to_csv(PLAIN.assign(who=WORDS)), {}),
    "strings with commas": (".csv", to_csv(PLAIN.assign(**{"who, where": [f"{w}, here" for w in WORDS]})), {}),
    "strings in lines": (".csv", to_csv(PLAIN.assign(who=[f"a\nb {w}" for w in WORDS])), {}),
    "booleans": (".csv", to_csv(PLAIN.assign(yes=X[:, 0] > 0)), {}),
    "gaps": (".csv", gaps(PLAIN), {}),
    "gaps as NA": (".csv", gaps(PLAIN.assign(who=WORDS), "NA"), {}),
    "gaps as ?": (".csv", gaps(PLAIN.assign(d=X[:, 0] - X[:, 1]), "?"), {}),
    "duplicated names": (".csv", to_csv(TWICE), {}),
    "index of pandas": (".csv", to_csv(PLAIN, index=True), {"index_col": 0}),
    "index of names": (".csv", to_csv(PLAIN.set_index(pd.Index([f"cell {i}" for i in range(ROWS)])), index=True),
                       {"index_col": 0}),
    "index of R, quoted": (".csv", to_csv(PLAIN, index=True, index_label="", quoting=csv.QUOTE_NONNUMERIC),
                           {"index_col": 0}),
    "two indexes": (".csv", to_csv(PLAIN.set_index([pd.Index(WORDS), pd.Index(range(ROWS))]), index=True),
                    {"index_col": [0, 1]}),
    "a header shorter by one, as write.table": (".csv", text(lambda t: t.replace("\n", '\n"row",')[:-6]), {}),
    "numbers in quotes": (".csv", to_csv(PLAIN, quoting=csv.QUOTE_ALL), {}),
    "decimal commas": (".csv", to_csv(PLAIN, sep=";", decimal=","), {"sep": ";", "decimal": ","}),
    "semicolons": (".csv", to_csv(PLAIN.assign(who=WORDS), sep=";"), {"sep": ";"}),
    "tabs": (".tsv", to_csv(PLAIN.assign(who=WORDS), sep="\t"), {"sep": "\t"}),
    "a byte order mark": (".csv", to_csv(PLAIN, encoding="utf-8-sig"), {}),
    "CRLF": (".csv", to_csv(PLAIN.assign(who=WORDS), lineterminator="\r\n"), {}),
    "trailing delimiters": (".csv", text(lambda t: t.replace("\n", ",\n")), {"usecols": [0, 1, 2]}),
    "trailing delimiters below": (".csv", text(lambda t: t.replace("\n", ",\n").replace(",\n", "\n", 1)),
                                  {"index_col": False}),
    "wavelengths": (".csv", to_csv(axis(1100, 1102, 1104)), {}),
    "years": (".csv", to_csv(axis(2000, 2001, 2002) * 1000), {}),
    "years and an index": (".csv", to_csv(axis(2000, 2001, 2002), index=True), {"index_col": 0}),
    "years of countries": (".csv", to_csv(axis(2000, 2001, 2002).set_index(pd.Index(WORDS, name="land")), index=True),
                           {}),
    "columns without names": (".csv", to_csv(axis(0, 1, 2)), {}),
    "columns without names, and an index": (".csv", to_csv(axis(0, 1, 2), index=True), {"index_col": 0}),
    "identifiers of genes": (".csv", to_csv(axis(7157, 672, 1956)), {}),
    "blanks": (".csv", to_csv(PLAIN, sep=" "), {"sep": " "}),
    "blanks, no header": (".csv", to_csv(PLAIN, sep=" ", header=False), {"sep": " ", "header": None}),
    "no header": (".csv", to_csv(PLAIN, header=False), {"header": None}),
    "no header, whole": (".csv", to_csv(PLAIN.round().astype(int), header=False), {"header": None}),
    "Parquet, mixed": (".parquet", parquet(MIXED), {}),
    "Parquet, an index of numbers": (".parquet", parquet(PLAIN.set_index(pd.Index(range(0, 4000, 100), name="id"))),
                                     {}),
    "Parquet, an index of names": (".parquet", parquet(PLAIN.set_index(pd.Index(WORDS, name="who"))), {}),
    "Parquet, two indexes": (".parquet", parquet(PLAIN.set_index([pd.Index(WORDS), pd.Index(range(ROWS))])), {}),
    "Parquet, categories of numbers": (".parquet", parquet(PLAIN.assign(k=pd.Categorical(range(ROWS)))), {}),
    "Parquet, dates": (".parquet", parquet(PLAIN.assign(day=pd.to_datetime(DAYS))), {}),
    "Parquet, whole": (".parquet", parquet(PLAIN.assign(n=np.arange(ROWS) % 5)), {}),
}  # fmt: skip


def read(path: Path, how: dict[str, Any], *, booleans: bool) -> np.ndarray:
    """The numeric columns as pandas reads them; ``booleans``: of Parquet those, too, which are numbers unless numeric
    columns are chosen.
    """
    if path.suffix != ".parquet":
        return pd.read_csv(path, **how).select_dtypes("number").to_numpy(np.float64)
    kinds = ["number", "bool"] if booleans else ["number"]
    return pd.read_parquet(path).select_dtypes(kinds).to_numpy(np.float64)


def right(rows: np.ndarray) -> np.ndarray:
    rows = np.where(np.isnan(rows), np.nanmean(rows, axis=0), rows)
    return np.linalg.svd(rows - rows.mean(axis=0), compute_uv=False)[:2] ** 2 / len(rows)


def found(path: Path, asked: dict[str, Any]) -> np.ndarray:
    source: Path = path
    if asked.get("blanks"):
        path.write_text(path.read_text().replace(" ", ","))
    how: dict[str, Any] = {"columns": asked.get("columns")}
    if "header" in asked:  # which only an ingest is told
        source = path.with_suffix(f".{len(list(path.parent.iterdir()))}.zarr")
        ingest(path, source, header=asked["header"], non_finite="missing", **how)
        how = {}
    return npmdask.top_k(source, 2, kind="samples", center=True, missing=asked.get("missing", "refuse"), **how).values


REMEDIES: tuple[tuple[str, Callable[[str], dict[str, Any]]], ...] = (
    (r"--leave-out ('[^']*'|\S+?)[;)]", lambda name: {"out": next(csv.reader(shlex.split(name)))}),
    (r"(--header)", lambda _: {"header": True}),
    (r"(tr -s ' ' ',')", lambda _: {"blanks": True}),
    (r"(--missing mean)", lambda _: {"missing": "mean"}),
)


def followed(path: Path, asked: dict[str, Any]) -> tuple[np.ndarray, int]:
    """The answer, after as many refusals as there were, each with its remedy followed."""
    for refusals in range(9):
        try:
            return found(path, asked), refusals
        except BadInputError as error:
            told = next((make(hit[1]) for said, make in REMEDIES if (hit := re.search(said, str(error)))), None)
            assert told is not None, f"no remedy: {error}"
            if "out" in told:
                out = [*asked.get("columns", {}).get("leave_out", []), *told.pop("out")]
                told["columns"] = {**asked.get("columns", {}), "leave_out": out}
            asked = {**asked, **told}
    raise AssertionError(f"no end of refusals of {path}: {asked}")


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("choice", [{"columns": {"only": "numeric"}}, {}], ids=["numeric", "by remedies"])
def test_a_table_is_answered_from_its_numeric_columns(
    name: str, choice: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NPMDASK_CACHE", str(tmp_path / "cache"))
    suffix, write, how = TABLES[name]
    path = tmp_path / f"x{suffix}"
    write(path)
    wanted = right(read(path, how, booleans=not choice))
    values, refusals = followed(path, choice)
    np.testing.assert_allclose(values, wanted, rtol=1e-9)
    assert refusals <= (2 if choice else 5)
