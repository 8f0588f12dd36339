"""Runs without a configuration, and single keys of one that are changed on the command line."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import npmdask
from npmdask.cli.main import main
from npmdask.config import config_of_source, load_config, parse_changes
from npmdask.errors import BadInputError
from tests.cli.test_contract import run
from tests.conftest import needs, planted, same_bytes, write_zarr

FILE = '[source]\npath = "samples.zarr"\n[algorithm]\ntarget_rank = 4\n[run]\nstore = "out"\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_zarr(tmp_path / "samples.zarr", planted(400, 30, 1 / np.sqrt(np.arange(1, 31)))[0], (100, 30))
    Path("c.toml").write_text(FILE)
    return tmp_path


@pytest.mark.slow
def test_a_source_with_options_is_top_k(folder: Path, capsys: Any) -> None:
    """The same bytes as Python's, in a store that has a name and that the other commands take."""
    options = ("-k", "3", "--kind", "samples", "--center", "--scale", "--tol", "1e-7", "--seed", "5")
    asked = ("run", "samples.zarr", *options, "--algorithm", "power", "--memory", "4GiB", "--json")
    code, out, err = run(capsys, *asked)
    assert code == 0, err
    assert err.startswith(f"npmdask: the run's store is {folder / 'runs' / 'samples'}\n")
    twin = {"kind": "samples", "center": True, "scale": True, "tol": 1e-7, "seed": 5, "algorithm": "power"}
    npmdask.top_k("samples.zarr", 3, store="twin", **twin)  # type: ignore[arg-type]
    same_bytes(folder / "runs" / "samples", folder / "twin")

    first, again = json.loads(out), json.loads(run(capsys, *asked)[1])
    assert (again["values"], again["data_passes"]) == (first["values"], 0)
    assert json.loads(run(capsys, "resume", "runs/samples", "--json")[1])["data_passes"] == 0
    assert run(capsys, "report", "runs/samples")[0] == 0
    assert run(capsys, "export", "runs/samples", "answer.npz")[0] == 0

    for other in (("--no-center",), ("--seed", "6"), ("-k", "4")):
        code, _, err = run(capsys, *asked, *other)
        assert code == 3 and "belongs to another run" in err and err.startswith("npmdask: use another store, or")


@pytest.mark.slow
def test_a_run_that_gave_up_goes_on_by_its_default_store(folder: Path, capsys: Any) -> None:
    assert run(capsys, "run", "samples.zarr", "-k", "3", "--quiet", "--set", "algorithm.max_steps=1")[0] == 4
    assert run(capsys, "resume", "runs/samples", "--max-steps", "100", "--quiet")[0] == 0


@pytest.mark.slow
def test_a_run_of_changed_keys_resumes_as_itself(folder: Path, capsys: Any) -> None:
    changes = ("--set", "algorithm.target_rank=5", "--set", "source.kind=samples", "--set", "run.seed=9")
    assert run(capsys, "run", "c.toml", *changes, "--quiet")[0] == 0
    npmdask.top_k("samples.zarr", 5, kind="samples", seed=9, store="twin")
    same_bytes(folder / "out", folder / "twin")
    assert len(json.loads(run(capsys, "resume", "out", "--json")[1])["values"]) == 5
    code, _, err = run(capsys, "run", "c.toml", "--quiet")
    assert code == 3 and "algorithm.target_rank (5 in the checkpoint, 4 now)" in err


@pytest.mark.slow
def test_a_stream_needs_no_file_either(folder: Path, capsys: Any) -> None:
    code, out, err = run(capsys, "run", "samples.zarr", "-k", "2", "--algorithm", "spm", "--quiet", "--store", "stream")
    assert code == 0, err
    assert "400 rows were taken" in out


@pytest.mark.slow
def test_the_plan_takes_the_same_words(folder: Path, capsys: Any) -> None:
    code, out, err = run(capsys, "plan", "samples.zarr", "-k", "3", "--center", "--set", "run.memory=3GiB", "--json")
    assert code == 0, err
    assert not Path("runs").exists()
    code, out, _ = run(capsys, "plan", "c.toml", "--set", "run.memory=16MiB", "--json")
    assert code == 3 and not out


@needs("manage", "remote")
def test_paths_of_changes_are_relative_to_where_the_command_is_given(folder: Path) -> None:
    """Those of a file to the file: a change that is taken relative to it would name another folder."""
    Path("below").mkdir()
    Path("below/c.toml").write_text(FILE)
    told = load_config("below/c.toml", changes=parse_changes(["source.path=samples.zarr", "run.start=runs/a"]))
    assert (told.source.path, told.run.start) == (str(folder / "samples.zarr"), str(folder / "runs" / "a"))
    assert told.run.store == str(folder / "below" / "out")
    far = load_config("c.toml", changes=parse_changes(["run.store=s3://bucket/run"]))
    assert far.run.store == "s3://bucket/run"


def test_a_run_without_a_file_is_named_after_its_source(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rank = {"algorithm.target_rank": 3}
    named = {
        "samples.zarr/": "samples",
        "../x/a b.zarr": "a-b",
        "s3://bucket/deep/x.zarr/": "x",
        "lab://rows?day=3": "rows-day-3",
        ".": folder.name.partition(".")[0],
        "/": "data",
        "-": "standard-input",
    }
    for source, name in named.items():
        config = config_of_source(source, changes=rank)
        assert config.run.store == str(folder / "runs" / name), source
    assert config_of_source("samples.zarr", changes=rank).source.path == str(folder / "samples.zarr")


def test_values_are_toml_or_words() -> None:
    told = parse_changes(
        [
            "run.memory=2GiB",
            "run.threads=3",
            "stop.tol=1e-7",
            "source.center=true",
            "algorithm.iteration_rank=auto",
            'privacy.dataset="a # b"',
            "algorithm.options.gap=0.1",
            "run.store=2026-01-01",
            "algorithm.target_rank=0.95",
            "source.nodes=['http://a:1']",
        ]
    )
    assert list(told.values()) == [
        "2GiB", 3, 1e-7, True, "auto", "a # b", 0.1, "2026-01-01", 0.95, ["http://a:1"],
    ]  # fmt: skip
    assert parse_changes(["run.memory=1000000000"]) == {"run.memory": "1000000000"}  # only text can be meant
    assert parse_changes(["run.seed=1 # 2", "run.workers=1\nx = 2"]) == {"run.seed": "1 # 2", "run.workers": "1\nx = 2"}


@pytest.mark.parametrize(
    ("pairs", "sentence"),
    [
        (["memory=2GiB"], "unknown key 'memory': did you mean 'run.memory'"),
        (["run.memroy=2GiB"], "did you mean 'run.memory'"),
        (["algorithm=power"], "algorithm is a table: write algorithm.KEY=VALUE"),
        (["run.memory"], "write TABLE.KEY=VALUE"),
        (["run.memory="], "has no value"),
        (["run.seed=1", "run.seed=2"], "run.seed is given twice"),
        (["stop.tol.x=1"], "unknown key 'stop.tol.x'"),
        (['source.nodes=["a'], "put quotation marks around text in it"),
    ],
)
def test_a_change_that_cannot_be_gets_a_sentence(pairs: list[str], sentence: str) -> None:
    with pytest.raises(BadInputError, match=sentence):
        parse_changes(pairs)


@needs("remote")
@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (("run", "samples.zarr"), "to run data, give the number of components: `npmdask run samples.zarr -k 10`"),
        (("run", "s3://bucket/x.zarr"), "`npmdask run s3://bucket/x.zarr -k 10`"),
        (("run", "rows.npy"), "too large for a configuration; to run data, give the number"),
        (("run", "-"), "`npmdask run - -k 10`"),
        (("run", "nothing"), "there is no configuration nothing"),
        (("run", "nothing.toml", "-k", "3"), "there is no configuration nothing.toml"),
        (("run", "nothing.zarr", "-k", "3"), "there is nothing at"),
        (("run", "", "-k", "3"), "the source is empty: give a path or a URL of data"),
        (
            ("run", "samples.zarr", "-k", "ten"),
            "the options: -k 'ten' is neither a whole number of components",
        ),
        (("run", "samples.zarr", "-k", "1000"), "1000"),
        (("run", "samples.zarr", "-k", "3", "--set", "algorithm.target_rank=4"), "given twice, by -k and by --set"),
        (("run", "samples.zarr", "-k", "3", "--set", "source.path=c.zarr"), "source.path is given twice"),
        (("run", "c.toml", "--memory", "1GiB", "--set", "run.memory=2GiB"), "given twice, by --memory and by --set"),
        (("run", "c.toml", "--store", "a", "--set", "run.store=b"), "given twice, by --store and by --set"),
        (("run", "c.toml", "--set", "run.seed=1 # 2"), "run.seed = '1 # 2'"),
        (("run", "samples.zarr", "-k", "3", "--kind", "matirx"), "--kind 'matirx'"),
        (("run", "samples.zarr", "-k", "3", "--memory", "4 gigs"), "is not a size"),
        (("run", "samples.zarr", "-k", "3", "--algorithm", "krilov"), "did you mean 'krylov'"),
    ],
)
def test_what_is_no_configuration_and_no_source_gets_a_sentence(
    folder: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], sentence: str
) -> None:
    monkeypatch.setenv("NPMDASK_NODE_TOKEN", "a" * 40)
    np.save("rows.npy", np.zeros((400, 400)))
    code, out, err = run(capsys, *command)
    assert code == 2 and sentence in err and not out, err
    assert not Path("runs").exists() and not Path("out").exists()


def test_a_table_that_a_file_has_as_something_else_is_named(folder: Path) -> None:
    Path("bad.toml").write_text('run = "fast"\n' + FILE.partition("[run]")[0])
    with pytest.raises(BadInputError, match=r"run is .fast. in the configuration, where run\.memory needs a table"):
        load_config("bad.toml", changes=parse_changes(["run.memory=1GiB"]))


@pytest.mark.slow
@needs("manage", "planning")
def test_a_configuration_of_another_name_is_still_one(folder: Path, capsys: Any) -> None:
    Path("c.conf").write_text(FILE)
    assert run(capsys, "plan", "c.conf", "--spectrum", "flat")[0] == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["samples", "symmetric", "matrix", "sparse", "tensor"])
def test_init_writes_of_a_source_what_runs_as_it_is(folder: Path, capsys: Any, kind: str) -> None:
    """From another folder, in which nothing has the name of the file; under a name that needs more than ASCII."""
    options = [] if kind in ("sparse", "symmetric", "tensor") else ["--option", f"kind={kind}"]
    problem = kind if not options else "spectrum"
    rows = ["--rows", "300"] if kind in ("samples", "matrix", "sparse") else []
    made = run(
        capsys, "generate", problem, "größe 😀.zarr", *rows, "--columns", "8", "--rank", "3", *options, "--quiet"
    )
    assert made[0] == 0, made[2]
    Path("below").mkdir()
    code, out, err = run(capsys, "init", "below/first", "--source", "größe 😀.zarr")
    assert (code, out) == (0, "below/first.toml: `npmdask run below/first.toml`\n"), err
    config = load_config("below/first.toml")
    assert (config.source.kind, config.algorithm.target_rank) == (kind, 8)
    lines = Path("below/first.toml").read_text().splitlines()
    assert 'path = "../größe 😀.zarr"' in "\n".join(lines) and len(lines) < 30
    changed = ["--set", "algorithm.target_rank=3", "--set", "run.memory=4GiB"]  # this process is large
    code, out, err = run(capsys, "run", "below/first.toml", "--quiet", "--json", *changed)
    assert code == 0, err
    assert (folder / "below" / "runs" / "first" / "result").is_dir()


def test_init_gives_the_memory_that_a_run_needs(folder: Path, capsys: Any) -> None:
    zarr.create_array("wide.zarr", shape=(40, 2_500_000), chunks=(1, 2_500_000), dtype="f8")
    assert run(capsys, "init", "wide", "--source", "wide.zarr")[0] == 0
    memory = load_config("wide.toml").run.memory
    assert memory == "16GiB"


@pytest.mark.parametrize("source", ["nothing.zarr", "folder", "c.toml"])
def test_init_of_what_is_no_source_writes_nothing(folder: Path, capsys: Any, source: str) -> None:
    Path("folder").mkdir()
    code, out, err = run(capsys, "init", "first", "--source", source)
    assert code == 2 and not out and err.startswith("npmdask: ") and not Path("first.toml").exists()


def test_a_checkout_that_is_not_installed_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was a traceback: PackageNotFoundError."""

    def nothing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", nothing)
    with pytest.raises(BadInputError, match=r"not installed, .* `pip install -e /"):
        _ = npmdask.__version__


def test_what_a_gpu_is_called_and_whose_memory_is_wrong(folder: Path, capsys: Any) -> None:
    """``--device gpu`` suggested "cpu"; a wrong device_memory was said to be a wrong memory."""
    for command in (("run", "samples.zarr", "-k", "2"), ("resume", "out")):
        with pytest.raises(SystemExit, match="2"):
            run(capsys, *command, "--device", "gpu")
        assert "--device gpu: did you mean 'cuda'?" in capsys.readouterr().err
    for given in (("--set", "run.device=gpu"), ()):
        Path("d.toml").write_text(FILE.replace("[run]", '[run]\ndevice = "gpu"') if not given else FILE)
        code, _, err = run(capsys, "run", "d.toml", *given)
        assert code == 2 and "cuda" in err and "'cpu'?" not in err
    code, _, err = run(capsys, "run", "samples.zarr", "-k", "2", "--device", "auto", "--device-memory", "much")
    assert code == 2 and "device_memory = 'much' is not a size" in err
    with pytest.raises(BadInputError, match="device_memory = 'much' is not a size"):
        npmdask.top_k("samples.zarr", 2, device="auto", device_memory="much")


@pytest.mark.parametrize(
    ("option", "remedy"),
    [
        (["-k", "5"], "`npmdask deflate STORE MORE --store NEW`"),
        (["--center"], "Ask `npmdask run SOURCE` for something else"),
        (["--rotate", "varimax"], "`npmdask export STORE OUT` has it"),
    ],
)
def test_resume_names_the_command_that_has_what_it_has_not(
    option: list[str], remedy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """``resume -k 5`` suggested -v."""
    with pytest.raises(SystemExit, match="2"):
        main(["resume", "out", *option])
    said = capsys.readouterr().err
    assert remedy in said and "'-v'" not in said
