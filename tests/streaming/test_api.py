"""A configuration with a streaming algorithm: from the command line, from Python, planned, resumed, refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import npmdask
from npmdask.cli.main import main
from npmdask.config import load_config, render_config
from npmdask.core.numerics.subspaces import max_sin_theta
from npmdask.errors import BadInputError
from npmdask.synthetic import generate
from tests.conftest import same_bytes, write_zarr

D, K = 30, 3
OPTIONS = {"rmsg": {"ridge": 0.05}, "mb-msg": {"gap": 0.2, "warm_rows": 200}, "mb-rmsg": {"gap": 0.2, "warm_rows": 200}}
NAMES = ["spm", "oja", "msg", "rmsg", "mb-msg", "mb-rmsg"]


def rows_of(n: int, seed: int = 0) -> np.ndarray:
    """Rows whose first K coordinates vary most, about a mean that is not zero."""
    scale = np.concatenate([[3.0, 2.5, 2.0], np.full(D - K, 0.3)])
    return np.random.default_rng(seed).standard_normal((n, D)) * scale + 5.0


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_zarr(tmp_path / "x.zarr", rows_of(4000), chunks=(300, D))
    write_zarr(tmp_path / "test.zarr", rows_of(200, seed=1))
    return tmp_path


def written(path: str, name: str, source: str = "x.zarr", stream: str = "", **options: Any) -> str:
    inline = ", ".join(f"{key} = {value}" for key, value in options.items())
    said = f"options = {{ {inline} }}" if options else ""
    Path(path).write_text(
        f'[source]\npath = "{source}"\ncenter = true\n[algorithm]\nname = "{name}"\ntarget_rank = {K}\n{said}\n'
        f'[stream]\nbatch_rows = 100\n{stream}\n[run]\nstore = "{Path(path).stem}"\nmemory = "6GiB"\n'
    )
    return path


def run(capsys: Any, *argv: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(list(argv))
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_algorithm_from_the_command_line_and_from_python(folder: Path, capsys: Any, name: str) -> None:
    """Fails when a door makes another model of the same words: the stores have the same bytes."""
    options = OPTIONS.get(name, {})
    config = written("c.toml", name, stream='held_out = "test.zarr"', **options)
    code, out, err = run(capsys, "run", config, "--json")
    assert code == 0 and "the stream has ended: 4000 rows" in err
    facts = json.loads(out.splitlines()[-1])
    solution = npmdask.stream_pca(
        "x.zarr", K, algorithm=name, options=options, center=True, batch_rows=100, held_out="test.zarr", store="python"
    )
    same_bytes(folder / "c", folder / "python")
    assert facts["values"] == solution.values.tolist() and facts["rows"] == 4000
    assert max_sin_theta(solution.basis, np.eye(D)[:, :K]) < 0.2
    assert facts["explained"] > 0.8 and facts["suboptimality"] < 1.0
    np.testing.assert_allclose(solution.mean, np.asarray(rows_of(4000)).mean(axis=0), rtol=1e-12)


@pytest.mark.slow
def test_a_finished_stream_answers_again_without_a_row(folder: Path, capsys: Any) -> None:
    config = written("c.toml", "spm")
    first = json.loads(run(capsys, "run", config, "--json", "--quiet")[1].splitlines()[-1])
    for again in (["run", config], ["resume", "c"]):
        facts = json.loads(run(capsys, *again, "--json", "--quiet")[1].splitlines()[-1])
        assert facts["new_rows"] == 0 and facts["values"] == first["values"]


def test_auto_with_a_stream_table_is_the_streaming_power_method(folder: Path) -> None:
    assert load_config(written("c.toml", "auto")).stream_problem().model.algorithm.name == "spm"


def test_plan_says_what_it_will_need_and_starts_nothing(folder: Path, capsys: Any) -> None:
    code, out, _ = run(capsys, "plan", written("c.toml", "mb-msg", gap=0.2, warm_rows=200), "--json")
    facts = json.loads(out)
    assert code == 0 and facts["rows"] == 4000 and facts["algorithm.gap"] == 0.2
    assert facts["largest_batch"] >= 200 and facts["predicted_peak_bytes"] > 0
    assert not (folder / "c").exists()


def test_memory_that_does_not_suffice_is_refused(folder: Path, capsys: Any) -> None:
    config = written("c.toml", "spm")
    Path(config).write_text(Path(config).read_text().replace("6GiB", "20MiB"))
    code, _, err = run(capsys, "run", config)
    assert code == 3 and "set memory to at least" in err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('name = "spm"', 'name = "power"', "power passes over stored data again and again: leave the [stream] table"),
        ("[stream]", "[stop]\ntol = 1e-3\n[stream]", "takes no stop.tol"),
        ("[stream]", "[mechanism]\nname = 'gaussian'\n[stream]", "takes no mechanism.name"),
        ("center = true", "scale = true", "takes no source.scale"),
        ("target_rank = 3", "target_rank = 3\noptions = { memroy = 0.5 }", "did you mean 'memory'"),
        ("target_rank = 3", "target_rank = 3\noptions = { block_rows = '3' }", "spm option block_rows = '3'"),
        ("target_rank = 3", "target_rank = 300", "choose at most 30"),
        ("target_rank = 3", "target_rank = 0.9", "target_rank = 0.9: a whole number"),
        ("target_rank = 3", "target_rank = 3\niteration_rank = 2", "iteration_rank = 2 is less than target_rank = 3"),
        ('name = "spm"', 'name = "mb-msg"', "mb-msg needs the option gap: lambda_k - lambda_{k+1}"),
        ('name = "spm"', 'name = "oja"\niteration_rank = 4', "oja has no option 'iteration_rank'"),
        ("batch_rows = 100", "batch_rowz = 100", "unknown key 'stream.batch_rowz': did you mean 'batch_rows'"),
        ("batch_rows = 100", "pattern = '*.csv'", "pattern = '*.csv' does not apply to a stored array"),
        ('path = "x.zarr"', 'path = "-"', "set columns and format"),
        ('path = "x.zarr"', 'path = "nowhere"', "there is nothing at"),
    ],
)
def test_a_configuration_that_cannot_be_gets_a_sentence(
    folder: Path, capsys: Any, old: str, new: str, sentence: str
) -> None:
    config = Path(written("c.toml", "spm"))
    assert old in config.read_text()
    config.write_text(config.read_text().replace(old, new))
    code, _, err = run(capsys, "run", str(config))
    assert code == 2 and sentence in err and "Traceback" not in err
    assert not (folder / "c").exists()


def test_options_without_a_stream_are_refused(folder: Path, capsys: Any) -> None:
    Path("c.toml").write_text('[source]\npath = "x.zarr"\n[algorithm]\ntarget_rank = 2\noptions = { gap = 0.1 }\n')
    code, _, err = run(capsys, "run", "c.toml")
    assert code == 2 and "algorithm.options are for streaming algorithms" in err


@pytest.mark.slow
def test_resume_takes_nothing_but_memory(folder: Path) -> None:
    npmdask.stream_pca("x.zarr", K, store="s")
    with pytest.raises(BadInputError, match="only memory may be given"):
        npmdask.resume("s", max_steps=3)
    solution = npmdask.resume("s", memory="3GiB")
    assert isinstance(solution, npmdask.StreamSolution) and solution.memory_limit_bytes == 3 * 2**30


def test_a_configuration_of_a_stream_survives_file_to_objects_to_file(folder: Path) -> None:
    config = load_config(written("c.toml", "mb-msg", stream='held_out = "test.zarr"', gap=0.2, test='"lemma"'))
    Path("again.toml").write_text(render_config(config))
    assert load_config("again.toml", store=config.run.store) == config


@pytest.mark.slow
def test_a_planted_truth_is_measured(folder: Path) -> None:
    generate("p.zarr", problem="spiked", rows=2000, columns=40, rank=4, dtype="float64")
    solution = npmdask.stream_pca("p.zarr", 4)
    assert solution.last.max_sin_theta is not None and solution.last.max_sin_theta < 0.5
    assert [m.rows for m in solution.history] == sorted(m.rows for m in solution.history)


@pytest.mark.slow
def test_rows_through_a_pipe_and_then_more_rows(folder: Path) -> None:
    """A pipe that ended is gone on with by what the next one brings."""
    config = written("c.toml", "spm", source="-", stream=f'format = "csv"\ncolumns = {D}')
    command = [sys.executable, "-m", "npmdask.cli.main", "run", config, "--json", "--quiet"]
    rows = rows_of(2000)
    for part, new in ((rows[:1200], 1200), (rows[1200:], 800)):
        text = "\n".join(",".join(repr(float(v)) for v in row) for row in part)
        done = subprocess.run(command, input=text + "\n", capture_output=True, text=True, cwd=folder, check=False)
        assert done.returncode == 0, done.stderr
        facts = json.loads(done.stdout.splitlines()[-1])
        assert facts["new_rows"] == new
    assert facts["rows"] == 2000
    np.testing.assert_allclose(npmdask.StreamingPCA.load("c").mean, rows.mean(axis=0), rtol=1e-12)


@pytest.mark.slow
def test_scores_from_the_command_line(folder: Path, capsys: Any) -> None:
    run(capsys, "run", written("c.toml", "spm"), "--quiet")
    code, out, _ = run(capsys, "transform", "c", "test.zarr", "scores.zarr", "--json", "--quiet")
    model = npmdask.StreamingPCA.load("c")
    assert code == 0 and json.loads(out)["rows"] == 200
    scores = np.asarray(zarr.open(folder / "scores.zarr", mode="r")["data"])
    np.testing.assert_allclose(scores, model.transform(rows_of(200, seed=1)), atol=1e-12)
    code, _, err = run(capsys, "transform", "c", "test.zarr", "scores.zarr")
    assert code == 3 and "--overwrite" in err
