"""Columns that were chosen, in scores, streams and commands."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import npmdask
from npmdask.cli.main import main
from npmdask.errors import BadInputError
from tests.core.storage import test_columns as columns
from tests.core.storage.test_columns import TABLE, X, pca, right

pytestmark = columns.pytestmark
cache = columns.cache  # a fixture


@pytest.mark.slow
def test_a_run_keeps_its_choice_for_resume_and_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    TABLE.to_csv("x.csv", index=False)
    words = ["run", "x.csv", "-k", "2", "--kind", "samples", "--center", "--store", "run", "--quiet"]
    assert main([*words, "--leave-out", 'date,"who, where"']) == 0
    found = npmdask.resume("run")
    np.testing.assert_allclose(found.values, right(X), rtol=1e-9)
    assert json.loads(Path("run/run.json").read_text())["source"].endswith("x.csv?leave_out=date,who%2C where")
    wanted = found.scores(X)
    turned = TABLE[["numeric", "date", "c", "b", "a"]]
    turned.to_csv("y.csv", index=False)
    turned.to_parquet("y.parquet")
    for source in (TABLE, turned, pl.from_pandas(turned), "y.csv", Path("y.parquet")):
        np.testing.assert_allclose(found.scores(source), wanted, rtol=1e-9, err_msg=str(type(source)))
    assert main(["transform", "run", "y.csv", "s.npy", "--quiet"]) == 0
    np.testing.assert_allclose(np.load("s.npy"), wanted, rtol=1e-9)
    with pytest.raises(BadInputError, match="has no column 'b'"):
        found.scores(turned.drop(columns="b"))


@pytest.mark.slow
def test_commands_and_configurations_choose_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    TABLE.to_csv("x.csv", index=False)
    wanted = right(X[:, :2])
    Path("c.toml").write_text(
        '[source]\npath = "x.csv"\nkind = "samples"\ncenter = true\nonly = "numeric"\nleave_out = ["c", "numeric"]\n'
        '[algorithm]\ntarget_rank = 2\n[run]\nstore = "toml"\n'
    )
    assert main(["run", "c.toml", "--quiet"]) == 0
    np.testing.assert_allclose(npmdask.resume("toml").values, wanted, rtol=1e-9)
    for name, words in {
        "ingested": ["--only", "a,b"],
        "numeric": ["--only", "numeric", "--leave-out", "c,numeric"],
    }.items():
        assert main(["ingest", "x.csv", f"{name}.zarr", "--quiet", *words]) == 0
        np.testing.assert_allclose(pca(f"{name}.zarr").values, wanted, rtol=1e-9)
    assert main(["gram", "x.csv", "G", "--only", "a,b", "--kind", "samples", "--quiet"]) == 0
    np.testing.assert_allclose(pca("G").values, wanted, rtol=1e-9)
    (tmp_path / "parts").mkdir()
    for part in range(2):
        TABLE[part::2].to_csv(f"parts/{part}.csv", index=False)
    stream = npmdask.stream_pca("parts?only=b,a", 2, center=True, batch_rows=10, store="stream")
    assert "4 columns were left out as chosen: date, who, where, c, numeric" in stream.warnings
    assert main(["transform", "stream", "parts", "s.npy", "--quiet"]) == 0 and np.load("s.npy").shape == (60, 2)
    with pytest.raises(BadInputError, match="columns are chosen of tables"):
        pca("ingested.zarr", columns=["a"])
