"""A store that was bound and then refused its run: free for the corrected command, unless anything is in it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npmdask
from npmdask.cli.main import main
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.runs.observers import Observer
from npmdask.errors import BadInputError, RefusedError
from tests.conftest import needs, planted, same_bytes, write_zarr

ROWS, COLUMNS = 400, 30
POWER: dict[str, Any] = {"kind": "samples", "algorithm": "power"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_zarr(tmp_path / "x.zarr", planted(ROWS, COLUMNS, 1 / np.sqrt(np.arange(1, COLUMNS + 1)))[0], (100, COLUMNS))
    return tmp_path


@pytest.fixture
def finished(folder: Path) -> Path:
    """A folder with ``x.npy`` and the finished run ``runs/one`` over it."""
    np.save("x.npy", np.random.default_rng(0).standard_normal((ROWS, 5)))
    assert main(["run", "x.npy", "-k", "2", "--store", "runs/one", "--quiet"]) == 0
    return folder


class Ends(Observer):
    """Ends the run where its passes would begin."""

    def on_begin(self, done: int, expected: int | None, unit: str) -> None:
        raise KeyboardInterrupt


@pytest.mark.slow
@needs("manage", "report")
def test_the_corrected_command_is_taken_and_says_so_in_one_line(folder: Path, capsys: Any) -> None:
    command = ["run", "x.zarr", "--kind", "samples", "--algorithm", "power", "--store", "run"]
    assert main([*command, "-k", "3", "--memory", "16MiB"]) == RefusedError.exit_code
    before = capsys.readouterr().err
    assert "too small" in before and "nothing was committed" not in before
    assert main([*command, "-k", "4", "--tol", "1e-6", "--quiet"]) == 0
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "nothing was committed" in line]
    assert line.startswith("npmdask: ") and "algorithm.target_rank (3 in the checkpoint, 4 now)" in line
    npmdask.top_k("x.zarr", 4, tol=1e-6, store="twin", **POWER)
    same_bytes(folder / "run", folder / "twin")
    assert len(npmdask.resume("run").values) == 4
    assert main([*command, "-k", "4", "--tol", "1e-6"]) == 0
    assert "nothing was committed" not in capsys.readouterr().err


@pytest.mark.slow
def test_committed_work_is_kept_and_the_remedy_comes_first(folder: Path) -> None:
    class AfterAStep(Observer):
        def on_step(self, step: Any) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        npmdask.top_k("x.zarr", 3, store="run", observer=AfterAStep(), **POWER)
    with pytest.raises(RefusedError) as refused:
        npmdask.top_k("x.zarr", 4, store="run", **POWER)
    said = str(refused.value)
    assert said.startswith("use another store, or go on with the old parameters (`npmdask resume ")
    assert "these differ: algorithm.target_rank (3 in the checkpoint, 4 now); " in said
    assert len(npmdask.resume("run").values) == 3


def test_a_finished_part_of_the_first_pass_is_committed_work(folder: Path) -> None:
    class InThePass(Observer):
        def on_task(self, record: Any) -> None:
            if record.bytes_read:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        npmdask.top_k("x.zarr", 3, store="run", observer=InThePass(), **POWER)
    store = RunStore("run").open()
    store.keep_pass({"label": "step 1"}, {"0-product": np.ones(3)}, [])
    store.close()
    with pytest.raises(RefusedError, match="use another store"):
        npmdask.top_k("x.zarr", 4, store="run", **POWER)


def test_a_survey_of_the_columns_is_committed_work(folder: Path) -> None:
    class AfterIt(Observer):
        def on_begin(self, done: int, expected: int | None, unit: str) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        npmdask.top_k("x.zarr", 3, center=True, store="run", observer=AfterIt(), **POWER)
    with pytest.raises(RefusedError, match="use another store"):
        npmdask.top_k("x.zarr", 4, center=True, store="run", **POWER)


@pytest.mark.slow
@needs("manage")
def test_another_stopping_rule_is_told_how_to_go_on_with_the_steps(folder: Path, capsys: Any) -> None:
    """Also where the new one leaves out what the old one had: the store would answer with less than is asked for."""
    command = ["run", "x.zarr", "--kind", "samples", "-k", "3", "--algorithm", "power", "--store", "run", "--quiet"]
    assert main([*command, "--set", "stop.low_rank_tol=0.5"]) == 0
    capsys.readouterr()
    assert main([*command, "--tol", "1e-5"]) == RefusedError.exit_code
    said = capsys.readouterr().err
    remedy = f"use another store, or go on with its steps under the new rule (`npmdask resume {folder / 'run'} "
    assert remedy in said and "stop.low_rank_tol (0.5 in the checkpoint)" in said
    options = said.partition(remedy)[2].partition("`")[0].split()
    assert sorted(options) == sorted(["--tol", "1e-05", "--low-rank-tol", "0.0"])
    assert main(["resume", "run", "--quiet", *options]) == 0
    assert main([*command, "--tol", "1e-5"]) == 0, "it is the same run now"
    capsys.readouterr()
    assert main([*command, "--tol", "1e-6", "--seed", "5"]) == RefusedError.exit_code
    assert "under the new rule" not in capsys.readouterr().err


@pytest.mark.slow
@needs("formats", "manage", "report")
@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("resume x.npy", "there is no run in x.npy: it is a file, and runs are kept in folders"),
        ("resume runs", "there is no run in runs itself, but there are runs below it: name one, like runs/one"),
        ("inspect runs", "there is no run in runs itself, but there are runs below it: name one, like runs/one"),
        ("resume runs/one/steps", "it is a part of the run {}/runs/one, which is the one to name"),
        ("inspect runs/one/result", "it is a part of the run {}/runs/one, which is the one to name"),
        ("resume nowhere", "there is no run in nowhere: check the name (`npmdask status FOLDER` lists runs), or begin"),
        ("report 'run s'", "--store '{}/run s'`"),
        ("resume ''", "the name of a store is empty (a variable of the shell that is not set?)"),
        ("resume runs/one --memory 3", "memory = '3' is 3 bytes: give a unit, like '3GiB'"),
    ],
)
def test_what_is_no_run_is_answered_with_what_is_near(finished: Path, line: str, sentence: str, capsys: Any) -> None:
    assert main(shlex.split(line)) == BadInputError.exit_code
    assert sentence.format(finished) in capsys.readouterr().err


@pytest.mark.slow
@needs("formats", "manage", "report")
def test_an_answer_needs_no_data_and_going_on_without_them_says_so(finished: Path, capsys: Any) -> None:
    Path("x.npy").rename("y.npy")
    assert main(["resume", "runs/one"]) == 0
    said = capsys.readouterr()
    assert "there is nothing at" in said.err + said.out and "as it was stored" in said.err + said.out
    assert main(["export", "runs/one", "answer.npz"]) == main(["report", "runs/one"]) == 0
    capsys.readouterr()
    assert main(["resume", "runs/one", "--max-steps", "900", "--quiet"]) == BadInputError.exit_code
    assert "The run has its answer, which needs no data: `npmdask report " in capsys.readouterr().err


@pytest.mark.slow
@needs("formats", "manage", "report")
def test_data_that_changed_are_told_with_what_helps(folder: Path, capsys: Any) -> None:
    """A run in the same store is refused; what is there already stays to be had."""
    rows = np.random.default_rng(0).standard_normal((ROWS, COLUMNS))
    np.save("x.npy", rows)
    assert main(["run", "x.npy", "-k", "2", "--store", "run", "--quiet"]) == 0
    np.save("x.npy", rows + 1)
    capsys.readouterr()
    for command in (["run", "x.npy", "-k", "2", "--store", "run"], ["resume", "run", "--max-steps", "900"]):
        assert main([*command, "--quiet"]) == RefusedError.exit_code
        said = capsys.readouterr().err.removeprefix("npmdask: ")
        assert said.startswith(
            "use another store for the data as they are now, or put back those that the run began with"
        )
        assert "x.npy has changed since" in said and "npmdask resume" not in said
    assert main(["resume", "run"]) == 0
    said = capsys.readouterr()
    assert "x.npy has changed since: this is the answer of the run as it was stored" in said.err + said.out
    np.save("other.npy", rows + 1)
    assert main(["run", "other.npy", "-k", "2", "--store", "run", "--quiet"]) == RefusedError.exit_code
    said = capsys.readouterr().err
    assert "npmdask resume" in said and f"(the data were {folder / 'x.npy'}, and are {folder / 'other.npy'})" in said


@pytest.mark.slow
@needs("formats", "manage", "report")
@pytest.mark.parametrize(
    "refused",
    [
        "run x.npy -k 3 --store runs/one",
        "run x.npy -k 2 --store runs/one --align-to runs/none",
        "resume runs/one --max-steps 0",
        "resume runs/one --max-steps 50 --memory 1MiB",
    ],
)
def test_a_refused_command_leaves_a_finished_run_as_it_was(finished: Path, refused: str) -> None:
    """Byte for byte, but for its lock. The last of them had dropped the answer before it was refused."""

    def seen() -> dict[Path, bytes]:
        files = (path for path in (finished / "runs").rglob("*") if path.is_file())
        return {path: path.read_bytes() for path in files if not path.name.startswith("lock")}

    before = seen()
    assert main(shlex.split(refused)) in (BadInputError.exit_code, RefusedError.exit_code)
    assert seen() == before
    assert main(["resume", "runs/one", "--max-steps", "50", "--quiet"]) == 0, "and can go on as before"
