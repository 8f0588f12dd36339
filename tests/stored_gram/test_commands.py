"""``npmdask gram``, and what the other commands say of a stored Gram."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import npmdask
from npmdask.cli.main import main
from npmdask.core.storage.safe_open import BUDGET_MARK
from npmdask.formats.ingest import ingest
from tests.conftest import write_zarr


def run(capsys: Any, *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    out, err = capsys.readouterr()
    return code, out, err


def rows(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((300, 8)) * np.geomspace(8, 1, 8) + 1


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate("ab"):
        np.save(f"{name}.npy", rows(seed))
        ingest(f"{name}.npy", f"{name}.zarr", kind="samples", chunks=(100, 8))
    return tmp_path


@pytest.mark.slow
def test_formed_merged_asked_and_removed(folder: Path, capsys: Any) -> None:
    both = np.concatenate([rows(0), rows(1)])
    for name in "ab":
        code, out, err = run(capsys, "gram", f"{name}.zarr", f"G{name}", "--quiet", "--json")
        assert (code, json.loads(out)["rows_read"]) == (0, 300) and "answers from it without a pass" in err
    code, out, err = run(capsys, "gram", "a.zarr", "Ga", "--quiet", "--json")
    assert json.loads(out)["bytes_read"] == 0 and "no new rows" in err
    assert run(capsys, "gram", "--merge", "Gb", "Ga", "G")[0] == 0
    code, out, err = run(capsys, "run", "G", "-k", "0.9", "--center", "--store", "run", "--json", "-v")
    facts, values = json.loads(out), np.linalg.eigvalsh(np.cov(both.T, bias=True))[::-1]
    assert code == 0 and facts["data_passes"] == facts["bytes_read"] == facts["total_data_passes"] == 0
    np.testing.assert_allclose(facts["values"], values[: len(facts["values"])], rtol=1e-11)
    assert "without a pass" in err and facts["prediction"].startswith("none: the matrix is stored")
    assert run(capsys, "gram", "--remove", "Ga", "G", "left")[0] == 0
    assert npmdask.GramStore("left").rows == 300
    assert run(capsys, "run", "Ga", "-k", "2", "--tol", "1e-16", "--store", "run2")[0] == 4
    code, out, err = run(capsys, "resume", "run2", "--tol", "1e-6")
    assert code == 0 and "converged after 1 step" in out and "converged" not in err


@pytest.mark.slow
def test_every_command_knows_it(folder: Path, capsys: Any) -> None:
    """Fails when gc takes its list for a checkpoint, or a page has no spectrum."""
    assert run(capsys, "gram", "a.zarr", "runs/G", "--by-chunks", "1")[0] == 0
    facts = json.loads(run(capsys, "inspect", "runs/G", "--json")[1])
    assert (facts["state"], facts["rows"], facts["data.columns"], facts["formed"]) == ("finished", 300, 8, ["float64"])
    assert facts["groups"] == ["rows 0 to 99", "rows 100 to 199", "rows 200 to 299"]
    (status,) = json.loads(run(capsys, "status", "runs", "--json")[1])["runs"]
    assert (status["what"], status["state"]) == ("gram", "finished")
    assert run(capsys, "export", "runs/G", "g.npz")[0] == 0
    held = np.load("g.npz")
    np.testing.assert_allclose(held["gram"], 299 * np.cov(rows(0).T), rtol=1e-10)
    np.testing.assert_allclose(held["mean"], rows(0).mean(axis=0))
    assert int(held["rows"]) == 300
    assert run(capsys, "report", "runs/G", "-o", "g.json")[0] == 0
    page = json.loads(Path("g.json").read_text())
    drawn = [block for section in page["sections"] for block in section["blocks"] if block["block"] == "plot"]
    variances = np.linalg.eigvalsh(np.cov(rows(0).T))[::-1]
    np.testing.assert_allclose(drawn[0]["series"][0]["y"], variances, rtol=1e-10)
    np.testing.assert_allclose(drawn[1]["series"][0]["y"], np.cumsum(variances) / variances.sum(), rtol=1e-10)
    old = time.time() - 1e6
    for path in [Path("runs"), *Path("runs").rglob("*")]:
        os.utime(path, (old, old))
    for more in ((), ("--results",), ("--unfinished",)):
        assert json.loads(run(capsys, "gc", "runs", "--older-than", "60s", "--json", *more)[1])["gone"] == []
    assert npmdask.resume("runs/G").rows_read == 0
    assert (
        "only certificates, cluster, memory, threads, workers may be given"
        in run(capsys, "resume", "runs/G", "--tol", "1e-3")[2]
    )


@pytest.mark.parametrize(
    "asked, code, said",
    [
        (("a.zarr",), 2, "1 path is given: write `npmdask gram SOURCE G`"),
        (("--merge", "Ga", "G"), 2, "two Grams or more, and the new store"),
        (("--merge", "Ga", "Gb", "G", "--memory", "1GiB"), 2, "reads no rows: leave --memory out"),
        (("--merge", "--remove", "A", "Ga", "Gb", "G"), 2, "give either --merge or --remove"),
        (("--distinct", "a.zarr", "G"), 2, "--distinct is for a merge"),
        (("--remove", "A", "G"), 2, "write `npmdask gram --remove A G DEST`"),
        (("--merge", "nothing", "b.zarr", "G"), 2, "there is no Gram in nothing"),
        (("a.zarr", "G", "--by-chunks", "0"), 2, "by_chunks = 0"),
    ],
)
def test_what_is_refused(folder: Path, capsys: Any, asked: tuple[str, ...], code: int, said: str) -> None:
    found = run(capsys, "gram", *asked)
    assert found[0] == code and said in found[2] and not Path("G").exists()


@pytest.mark.slow
def test_data_with_a_privacy_budget_are_refused(folder: Path, capsys: Any) -> None:
    zarr.open_group("a.zarr", mode="a").attrs[BUDGET_MARK] = "people"
    code, _, err = run(capsys, "gram", "a.zarr", "G")
    assert code == 3 and "have a privacy budget ('people'): their Gram depends on every row" in err


@pytest.mark.slow
def test_a_plan_of_a_gram_has_nothing_to_say(folder: Path, capsys: Any) -> None:
    assert run(capsys, "gram", "a.zarr", "Ga", "--quiet")[0] == 0
    code, _, err = run(capsys, "plan", "Ga", "-k", "2", "--store", "run")
    assert code == 2 and "reads no data, so there is nothing to plan" in err


@pytest.mark.slow
@pytest.mark.parametrize(
    "asked, code, said",
    [
        (("gram", "Ga", "G2"), 2, "is a stored Gram already: run it, or merge it"),
        (("gram", "--merge", "Ga", "b.zarr", "G2"), 2, "holds data and no Gram: form one with `npmdask gram b.zarr G`"),
        (("run", "Ga", "-k", "2", "--store", "Ga"), 3, "is a stored Gram: choose another store for the run"),
        (("transform", "Ga", "a.zarr", "s.zarr"), 2, "is a stored Gram, which has no components yet"),
        (("mixture", "Ga", "--components", "2", "--store", "m"), 2, "is the store of a run or a Gram, but rows are"),
    ],
)
def test_a_gram_in_the_wrong_place_is_called_one(
    folder: Path, capsys: Any, asked: tuple[str, ...], code: int, said: str
) -> None:
    assert run(capsys, "gram", "a.zarr", "Ga", "--quiet")[0] == 0
    found = run(capsys, *asked)
    assert found[0] == code and said in found[2]


def test_one_array_has_no_names_of_dimensions(folder: Path, capsys: Any) -> None:
    write_zarr(folder / "plain.zarr", rows(0), (100, 8))
    code, _, err = run(capsys, "gram", "plain.zarr", "G", "--dim", "time")
    assert code == 2 and "is one array without named dimensions: leave dim out" in err


@pytest.mark.slow
def test_a_store_of_a_run_is_no_gram(folder: Path, capsys: Any) -> None:
    assert run(capsys, "run", "a.zarr", "-k", "2", "--store", "first", "--quiet")[0] == 0
    code, _, err = run(capsys, "gram", "--merge", "first", "first", "G")
    assert code == 2 and "first is the store of a run, not of a Gram" in err


@pytest.mark.slow
def test_what_is_said_of_a_merge_and_of_names_with_spaces(folder: Path, capsys: Any) -> None:
    """A merge reads no rows and says nothing of new ones; commands that are printed can be copied."""
    for name in "ab":
        assert run(capsys, "gram", f"{name}.zarr", f"G{name}", "--quiet")[0] == 0
    code, out, err = run(capsys, "gram", "--merge", "Ga", "Gb", "all days")
    assert code == 0 and "600 rows and 8 columns; `npmdask run '" in out and "new rows" not in out and err == ""


@pytest.mark.slow
def test_the_page_of_an_answer_without_a_pass_says_nothing_of_reading(folder: Path, capsys: Any) -> None:
    assert run(capsys, "gram", "a.zarr", "Ga", "--quiet")[0] == 0
    assert run(capsys, "run", "Ga", "-k", "2", "--store", "first", "--quiet")[0] == 0
    assert run(capsys, "report", "first", "-o", "g.json")[0] == 0
    page = Path("g.json").read_text()
    assert "GB/s" not in page and "Cost of each pass" not in page and "one pass over the data each" not in page
    assert '"data passes"' in page


@pytest.mark.slow
def test_a_plot_of_one_step_marks_that_step(folder: Path) -> None:
    """Fails when its axis is marked 0.96 to 1.04."""
    from npmdask.report import Plot
    from npmdask.report.blocks import series
    from npmdask.report.plots import axes, draw, finish_below

    drawn = axes("", "step", "")[1]
    drawn.plot([1], [2.0])
    finish_below(drawn, "whole")
    low, high = drawn.get_xlim()
    assert [mark for mark in drawn.get_xticks() if low <= mark <= high] == [1]
    assert draw(Plot(title="", x="step", y="", series=(series([1], [2.0]),)))
