"""The contract of the command line: other people's scripts rely on it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npmdask
from npmdask.cli.main import main
from npmdask.config import load_config, render_config, validate_config
from npmdask.errors import BadInputError
from tests.conftest import needs, planted, same_bytes

KEYS = {
    "outcome", "converged", "steps", "data_passes", "bytes_read", "dataset_bytes", "seconds", "peak_rss_bytes",
    "memory_limit_bytes", "peak_rss_by_process", "values", "residual_norms", "max_sin_theta", "store", "fingerprint",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    np.save("a.npy", planted(800, 60, 1 / np.sqrt(np.arange(1, 61)))[0])
    Path("c.toml").write_text(
        '[source]\npath = "a.zarr"\nkind = "matrix"\n[algorithm]\nname = "power"\ntarget_rank = 4\n'
        "iteration_rank = 9\nmax_steps = 300\n[stop]\ntol = 1e-9\n"
        '[run]\nmemory = "4GiB"\nworkers = 0\nthreads = 2\nstore = "out"\nseed = 3\n'
    )
    return tmp_path


def run(capsys: Any, *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.slow
def test_from_a_file_to_an_answer(folder: Path, capsys: Any) -> None:
    assert run(capsys, "ingest", "a.npy", "a.zarr", "--kind", "matrix")[0] == 0
    code, out, err = run(capsys, "run", "c.toml", "--json")
    assert code == 0, err
    facts = json.loads(out.splitlines()[-1])
    assert set(facts) >= KEYS
    assert facts["converged"] is True
    assert facts["outcome"] == "converged"
    assert facts["data_passes"] == facts["steps"] + 1
    assert facts["bytes_read"] == facts["data_passes"] * facts["dataset_bytes"] == facts["data_passes"] * 800 * 60 * 8
    assert facts["max_sin_theta"] is None
    assert 0 < facts["peak_rss_bytes"] < facts["memory_limit_bytes"] == 4 * 2**30
    assert facts["peak_rss_by_process"][0]["name"] == "driver"
    assert facts["store"] == str(folder / "out")
    code, out, _ = run(capsys, "run", "c.toml", "--json")
    again = json.loads(out.splitlines()[-1])
    assert (code, again["data_passes"], again["bytes_read"]) == (0, 0, 0)
    assert again["values"] == facts["values"]

    assert run(capsys, "export", "out", "o.npz")[0] == 0
    a = np.load("a.npy", allow_pickle=False)
    with np.load("o.npz", allow_pickle=False) as answer:
        assert answer["basis"].shape == (60, 4)
        assert answer["left_basis"].shape == (800, 4)
        np.testing.assert_allclose(
            (answer["left_basis"] * answer["values"]) @ answer["basis"].T, best_rank(a, 4), atol=1e-7
        )
    for command in (["inspect", "out"], ["inspect", "a.zarr"], ["inspect", "out", "--json"]):
        assert run(capsys, *command)[0] == 0
    code, out, _ = run(capsys, "resume", "out", "--json")
    assert json.loads(out)["data_passes"] == 0


def best_rank(a: np.ndarray, k: int) -> np.ndarray:
    u, s, vt = np.linalg.svd(a, full_matrices=False)
    return (u[:, :k] * s[:k]) @ vt[:k]


@pytest.mark.slow
def test_store_on_the_command_line_wins_and_the_bytes_are_those_of_the_python_door(folder: Path, capsys: Any) -> None:
    run(capsys, "ingest", "a.npy", "a.zarr", "--kind", "matrix")
    assert run(capsys, "run", "c.toml", "--store", "elsewhere/run", "--quiet")[0] == 0
    options = {"iteration_rank": 9, "max_steps": 300, "tol": 1e-9, "seed": 3, "algorithm": "power"}
    npmdask.top_k("a.zarr", 4, kind="matrix", store="python", **options)
    same_bytes(folder / "elsewhere" / "run", folder / "python")
    assert not (folder / "out").exists()


@pytest.mark.slow
def test_exit_codes(folder: Path, capsys: Any) -> None:
    assert run(capsys, "run", "c.toml")[0] == 2  # nothing at a.zarr yet
    run(capsys, "ingest", "a.npy", "a.zarr")
    text = Path("c.toml").read_text()
    Path("small.toml").write_text(text.replace("4GiB", "16MiB").replace('"out"', '"small"'))
    code, _, err = run(capsys, "run", "small.toml")
    assert code == 3
    assert "set memory to at least" in err
    Path("short.toml").write_text(text.replace("max_steps = 300", "max_steps = 2").replace('"out"', '"short"'))
    code, out, err = run(capsys, "run", "short.toml", "--json")
    assert code == 4
    assert json.loads(out.splitlines()[-1])["converged"] is False
    assert "not converged" in err
    assert run(capsys, "resume", "short", "--max-steps", "300")[0] == 0
    assert run(capsys, "ingest", "a.npy", "a.zarr")[0] == 3  # exists


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (("run", "folder"), "folder is a folder; a configuration is a file"),
        pytest.param(("report", "runs/a"), "there is no run in", marks=needs("manage")),
        pytest.param(("export", "runs/a", "a.npz"), "runs/a: check the name", marks=needs("manage")),
        (("deflate", "runs/a", "1", "--store", "more"), "there is no run in"),
    ],
)
def test_what_is_not_there_is_not_called_unfinished(
    folder: Path, capsys: Any, command: tuple[str, ...], sentence: str
) -> None:
    Path("folder").mkdir()
    code, _, err = run(capsys, *command)
    assert code == 2 and sentence in err and "Errno" not in err and "resume" not in err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("target_rank", "target_rnak", "unknown key 'algorithm.target_rnak': did you mean 'target_rank'"),
        ("[stop]", "[stopp]", "unknown key 'stopp': did you mean 'stop'"),
        ("memory", "memroy", "unknown key 'run.memroy': did you mean 'memory'"),
        ("target_rank = 4", "target_rank = 0", "algorithm.target_rank = 0"),
        ("target_rank = 4\n", "", "algorithm.target_rank is missing"),
        ('kind = "matrix"', 'kind = "matirx"', "source.kind = 'matirx'"),
        ("tol = 1e-9", "tol = -1", "stop.tol = -1"),
        ('"4GiB"', '"4 gigs"', "memory = '4 gigs' is not a size"),
        ("tol = 1e-9", "tol = ", "is not a TOML file"),
        ('name = "power"', 'name = "svd"', "algorithm.name = 'svd'"),
    ],
)
def test_a_bad_configuration_gets_a_sentence(folder: Path, capsys: Any, old: str, new: str, sentence: str) -> None:
    text = Path("c.toml").read_text()
    assert old in text
    Path("bad.toml").write_text(text.replace(old, new))
    code, _, err = run(capsys, "run", "bad.toml")
    assert code == 2
    assert sentence in err
    assert "Traceback" not in err


def test_init_writes_a_configuration_that_loads_and_says_what_everything_is(folder: Path, capsys: Any) -> None:
    assert run(capsys, "init", "first")[0] == 0
    config = load_config("first.toml")
    assert config.source.path == str(folder / "first.zarr")
    assert config.run.store == str(folder / "runs" / "first")
    assert run(capsys, "init", "first")[0] == 2
    lines = [x for x in Path("first.toml").read_text().splitlines() if "=" in x]
    assert all("#" in line for line in lines)


def test_a_configuration_survives_file_to_objects_to_file(folder: Path) -> None:
    config = load_config("c.toml")
    Path("again.toml").write_text(render_config(config))
    assert load_config("again.toml", store=config.run.store) == config


def test_an_unknown_key_without_a_neighbour_lists_what_is_known() -> None:
    with pytest.raises(BadInputError, match="known: algorithm, expect, mechanism, privacy, report, run, source, stop"):
        validate_config({"zzzzz": 1, "source": {"path": "x"}, "algorithm": {"target_rank": 1}})


@pytest.mark.slow
def test_generate_and_run_with_a_known_truth(folder: Path, capsys: Any) -> None:
    code, out, err = run(capsys, "generate", "spiked", "g.zarr", "--rows", "4000", "--columns", "64", "--rank", "3")
    assert code == 0, err
    Path("g.toml").write_text('[source]\npath = "g.zarr"\n[algorithm]\ntarget_rank = 3\n')
    code, out, _ = run(capsys, "run", "g.toml", "--json", "--quiet")
    facts = json.loads(out)
    assert facts["max_sin_theta"] < 1e-2
    assert facts["store"] == str(folder / "runs" / "g")
    assert run(capsys, "generate", "spyked", "x.zarr", "--rows", "10", "--columns", "5")[0] == 2


@pytest.mark.slow
def test_deflate_door(folder: Path, capsys: Any) -> None:
    run(capsys, "ingest", "a.npy", "a.zarr", "--kind", "matrix")
    run(capsys, "run", "c.toml", "--quiet")
    code, out, _ = run(capsys, "deflate", "out", "3", "--store", "more", "--json", "--quiet")
    assert code == 0
    true = np.linalg.svd(np.load("a.npy", allow_pickle=False), compute_uv=False)
    np.testing.assert_allclose(json.loads(out)["values"], true[:7], rtol=1e-10)


@pytest.mark.slow
def test_report_is_one_self_contained_page(folder: Path, capsys: Any) -> None:
    run(capsys, "generate", "spectrum", "g.zarr", "--rows", "2000", "--columns", "64", "--rank", "4", "--quiet")
    Path("g.toml").write_text('[source]\npath = "g.zarr"\n[algorithm]\ntarget_rank = 4\n')
    run(capsys, "run", "g.toml", "--quiet")
    assert run(capsys, "report", "runs/g")[0] == 0
    page = Path("runs/g/report.html").read_text()
    assert page.count("<svg") >= 5
    links = re.findall(r"(?:src|href)=\"(?!#|data:)([^\"]+)\"", page)
    assert not links, links
    for said in (
        "converged after",
        "peak memory",
        "driver (process",
        "max sin θ",
        "algorithm.target_rank",
        "residual norm",
    ):
        assert said in page
    assert run(capsys, "report", "nothing")[0] == 2
    assert run(capsys, "export", "nothing", "x.npz")[0] == 2
    assert run(capsys, "inspect", "nothing")[0] == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [[Path(sys.executable).with_name("npmdask")], [sys.executable, "-m", "npmdask"]],
    ids=["script", "module"],
)
def test_the_installed_command_starts(command: list[str], tmp_path: Path) -> None:
    done = subprocess.run([*command, "--help"], capture_output=True, text=True, check=True, cwd=tmp_path)
    for verb in ("ingest", "generate", "run", "resume", "inspect", "report", "init", "export"):
        assert verb in done.stdout
