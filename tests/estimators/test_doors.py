"""Tensors through every door: Python, configuration, plan, resume, report, inspect, export; and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npmdask
from npmdask.cli.main import main
from npmdask.errors import BadInputError, NpmdaskError, RefusedError
from tests.conftest import planted, same_bytes
from tests.tensors.tensor_jobs import planted_tensor

WEIGHTS = np.array([5.0, 3.0, 2.0])
DENSE = planted_tensor(14, WEIGHTS)
CONFIG = """
[source]
path = "t.zarr"
kind = "tensor"
[algorithm]
name = "tensor-power"
target_rank = 3
{rest}
[run]
store = "{store}"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    np.save("t.npy", DENSE)
    assert main(["ingest", "t.npy", "t.zarr", "--kind", "tensor", "--chunks", "5", "5", "5", "--quiet"]) == 0
    return tmp_path


def run(capsys: Any, *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    out, err = capsys.readouterr()
    return code, out, err


def config(store: str, rest: str = "") -> str:
    Path(f"{store}.toml").write_text(CONFIG.format(store=store, rest=rest))
    return f"{store}.toml"


@pytest.mark.slow
def test_every_door_leaves_the_same_bytes(folder: Path, capsys: Any) -> None:
    code, out, err = run(capsys, "run", config("out"), "--json", "--quiet")
    assert code == 0, err
    facts = json.loads(out.splitlines()[-1])
    np.testing.assert_allclose(facts["values"], WEIGHTS, rtol=1e-9)
    assert facts["facts"]["status"] == ["found"] * 3
    solution = npmdask.top_k("t.zarr", 3, store="python", threads=1)
    same_bytes(folder / "out", folder / "python")
    assert npmdask.top_k("t.zarr", 3, store="python").data_passes == 0
    np.testing.assert_allclose(np.einsum("ijk,jl,kl->il", DENSE, *[solution.basis] * 2), solution.basis * WEIGHTS)
    assert run(capsys, "export", "out", "o.npz")[0] == 0
    with np.load("o.npz") as answer:
        assert set(answer) == {"basis", "values", "residual_norms"}
        np.testing.assert_array_equal(answer["basis"], solution.basis)
    code, out, _ = run(capsys, "inspect", "out", "--json")
    assert json.loads(out)["state"] == "finished"
    code, out, _ = run(capsys, "inspect", "t.zarr", "--json")
    assert json.loads(out)["dimension"] == 14 and json.loads(out)["block"] == 5
    assert run(capsys, "report", "out")[0] == 0
    page = Path("out/report.html").read_text()
    assert re.search("<th[^>]*>status</th>", page) and page.count("<td>found</td>") == 3


@pytest.mark.slow
def test_a_run_that_was_too_short_goes_on(folder: Path, capsys: Any) -> None:
    code, out, _ = run(capsys, "run", config("short", "max_steps = 2\n"), "--quiet")
    assert code == 4 and "continue with `npmdask resume STORE --max-steps" in out
    assert run(capsys, "resume", "short", "--max-steps", "100", "--quiet")[0] == 0
    npmdask.top_k("t.zarr", 3, store="whole", max_steps=100)
    same_bytes(folder / "short", folder / "whole")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "products"),
    [
        ({"harvest": True}, None),
        ({"restarts": 5}, None),
        ({"restarts": 7, "iterations": 9}, 31),
        ({"harvest": False}, None),
    ],
)
def test_options_reach_the_algorithm(folder: Path, options: dict[str, Any], products: int | None, capsys: Any) -> None:
    solution = npmdask.top_k("t.zarr", 3, options=options)
    np.testing.assert_allclose(solution.values, WEIGHTS, rtol=1e-4)
    assert products is None or solution.data_passes == products
    table = ", ".join(f"{name} = {json.dumps(value)}" for name, value in options.items())
    code, out, _ = run(capsys, "plan", config("planned", f"options = {{ {table} }}\n"), "--json")
    plan = json.loads(out)
    assert code == 0 and plan["products"] == products
    assert plan["pass_bytes"] == 10 * 5**3 * 8 and plan["dense_bytes"] == 14**3 * 8
    assert not Path("planned").exists()


def test_a_plan_for_people(folder: Path, capsys: Any) -> None:
    code, out, _ = run(capsys, "plan", config("planned"))
    assert code == 0 and "14 x 14 x 14 float64, blocks of 5" in out and "depends on the data" in out


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"iterations": 6}, {"harvest": False}])
def test_more_components_than_there_are_are_surplus(folder: Path, options: dict[str, Any]) -> None:
    """Breaks where a zero is divided by: TensorLy answers NaN here."""
    found = npmdask.top_k("t.zarr", 5, options=options)
    assert found.facts["status"] == ["found"] * 3 + ["surplus"] * 2
    assert np.isfinite(found.values).all() and np.isfinite(found.basis).all() and found.outcome.converged
    np.testing.assert_allclose(found.values[:3], WEIGHTS, rtol=1e-4)


def test_a_tensor_of_zeros_has_none(tmp_path: Path) -> None:
    np.save(tmp_path / "zero.npy", np.zeros((6, 6, 6)))
    npmdask.formats.ingest.ingest(tmp_path / "zero.npy", tmp_path / "zero.zarr", kind="tensor")
    found = npmdask.top_k(tmp_path / "zero.zarr", 2)
    assert found.facts["status"] == ["surplus"] * 2 and not found.values.any() and np.isfinite(found.basis).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rank", "asked", "error", "said"),
    [
        (15, {}, BadInputError, "at most 14 orthogonal components exist"),
        (0, {}, BadInputError, "target_rank = 0 is not possible"),
        (0.5, {}, RefusedError, "a share of the variance, and a tensor has none"),
        (3, {"center": True}, BadInputError, "center and scale are for data with rows"),
        (3, {"iteration_rank": 8}, BadInputError, "options = { restarts"),
        (3, {"mechanism": "gaussian", "stddev": 1.0}, RefusedError, "leave it out for a tensor"),
        (3, {"algorithm": "krylov"}, BadInputError, "holds a symmetric tensor"),
        (3, {"options": {"restart": 3}}, BadInputError, "did you mean 'restarts'"),
        (3, {"options": {"restarts": 0}}, BadInputError, "restarts = 0"),
        (3, {"options": {"restarts": "many"}}, BadInputError, "restarts"),
        (3, {"options": {"iterations": 5, "harvest": True}}, BadInputError, "leave one of them out"),
        (3, {"tol": 2.0}, BadInputError, "tol = 2.0"),
        (3, {"memory": "1MiB"}, RefusedError, "is too small"),
        (3, {"low_rank_tol": 0.1}, RefusedError, "a tensor has none"),
    ],
)
def test_what_a_tensor_does_not_take(
    folder: Path, rank: Any, asked: dict[str, Any], error: type[NpmdaskError], said: str
) -> None:
    with pytest.raises(error, match=said):
        npmdask.top_k("t.zarr", rank, **asked)


@pytest.mark.slow
def test_what_runs_of_matrices_do_with_a_tensor_and_the_other_way_round(folder: Path, capsys: Any) -> None:
    run(capsys, "run", config("out"), "--quiet")
    np.save("a.npy", planted(40, 10, np.arange(10, 0, -1.0))[0])
    run(capsys, "ingest", "a.npy", "a.zarr", "--kind", "matrix", "--quiet")
    for arguments, said in (
        (["deflate", "out", "1", "--store", "more"], "for matrices; ask for more components in a new run"),
        (["run", config("again"), "--start", "out"], "is of tensor-power"),
        (["transform", "out", "a.zarr", "y.zarr"], "no components of rows"),
    ):
        code, _, err = run(capsys, *arguments)
        assert code in (2, 3) and said in err and "Traceback" not in err
    with pytest.raises(BadInputError, match="is for symmetric tensors"):
        npmdask.top_k("a.zarr", 2, algorithm="tensor-power")
    with pytest.raises(RefusedError, match="can begin with the vectors of"):
        npmdask.top_k("a.zarr", 2, start="out")
    with pytest.raises(RefusedError, match=r"algorithm.target_rank \(3 in the checkpoint, 2 now\)"):
        npmdask.top_k("t.zarr", 2, store="out")
    with pytest.raises(RefusedError, match="options"):
        npmdask.top_k("t.zarr", 3, store="out", options={"restarts": 50})


@pytest.mark.slow
def test_tensors_that_are_none(folder: Path, capsys: Any) -> None:
    odd = DENSE.copy()
    odd[3, 1, 7] += 0.1
    for name, array, more, said in (
        ("odd", odd, (), "--symmetrise"),
        ("box", np.zeros((4, 4, 5)), (), "which is not a cube"),
        ("flat", np.zeros((4, 4)), (), "tensor"),
        ("cubes", DENSE, ("--chunks", "5", "5", "4"), "cube"),
        ("hole", np.where(DENSE == DENSE[0, 0, 0], np.nan, DENSE), (), "nan"),
    ):
        np.save(f"{name}.npy", array)
        code, _, err = run(capsys, "ingest", f"{name}.npy", f"{name}.zarr", "--kind", "tensor", "--quiet", *more)
        assert code == 2 and said in err and not Path(f"{name}.zarr").exists(), (name, err)
    assert run(capsys, "ingest", "odd.npy", "mean.zarr", "--kind", "tensor", "--symmetrise", "--quiet")[0] == 0
