"""Warm starts: passes that they save, counted; runs that outlive what they started from; refusals."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import npmdask
from npmdask.api import solve as run_problem
from npmdask.cli.main import main
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.numerics.random import generator
from npmdask.core.numerics.subspaces import max_sin_theta
from npmdask.core.runs.build import make_problem
from npmdask.core.runs.observers import Observer
from npmdask.core.runs.problem import Request
from npmdask.core.runs.resources import Resources
from npmdask.core.runs.restore import find_start, problem_of
from npmdask.core.runs.solution import Solution
from npmdask.core.storage.bundle import read_bundle, write_bundle
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError, RefusedError
from tests.conftest import often, planted, same_bytes, write_zarr

SLOW = 1 / np.sqrt(np.arange(1, 121))
STEP = np.r_[np.linspace(2, 1, 20), np.full(100, 0.1)]


class Stop(Exception):
    """The test pulls the plug."""


class StopAfter(Observer):
    def __init__(self, step: int) -> None:
        self._step = step

    def on_step(self, step: Any) -> None:
        if step.number == self._step:
            raise Stop


def samples(spectrum: np.ndarray, more: float = 0.0) -> np.ndarray:
    """1,000 rows, and ``more`` times as many of the same distribution below them."""
    a, _, v = planted(1000, 120, spectrum)
    rows = np.random.default_rng(7).standard_normal((int(1000 * more), 120)) / np.sqrt(1000)
    return np.concatenate([a, rows * spectrum @ v.T])


def solve(a: Any, k: int, **options: Any) -> Solution:
    return npmdask.top_k(a, k, kind="samples", threads=1, **options)


def exact(a: np.ndarray, k: int) -> np.ndarray:
    return np.linalg.svd(a, compute_uv=False)[:k] ** 2 / len(a)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["power", "krylov"])
@pytest.mark.parametrize("spectrum", often([SLOW, STEP], 1), ids=["slow", "step"])
@pytest.mark.parametrize(
    ("earlier", "later", "more"),
    [
        ({"k": 20, "tol": 1e-3}, {"k": 20}, 0.0),
        ({"k": 20}, {"k": 20}, 0.1),
        ({"k": 20}, {"k": 20, "iteration_rank": 60}, 0.0),
        ({"k": 20}, {"k": 20, "iteration_rank": 25}, 0.0),
        ({"k": 20}, {"k": 10}, 0.0),
        ({"k": 20, "max_steps": 2}, {"k": 20}, 0.0),
        ({"k": 20}, {"k": 20, "center": True}, 0.0),
    ],
    ids=["coarser", "rows", "more columns", "fewer columns", "smaller k", "not converged", "centred"],
)
def test_a_warm_start_saves_passes_and_changes_no_answer(
    tmp_path: Path,
    spectrum: np.ndarray,
    earlier: dict[str, Any],
    later: dict[str, Any],
    more: float,
    algorithm: Literal["power", "krylov"],
) -> None:
    a, b = samples(spectrum), samples(spectrum, more)
    solve(a, **earlier, store=tmp_path / "first", algorithm=algorithm)
    cold = solve(b, **later, store=tmp_path / "cold", algorithm=algorithm)
    warm = solve(b, **later, store=tmp_path / "warm", start=tmp_path / "first", algorithm=algorithm)
    assert warm.converged and cold.converged
    # Three blocks of 40 columns are all of the space: no later than then does block Krylov end, warm or cold.
    assert warm.data_passes < cold.data_passes or (algorithm == "krylov" and warm.data_passes == cold.data_passes)
    assert np.allclose(warm.values, cold.values, rtol=1e-12, atol=0)
    if "center" not in later:
        assert np.allclose(warm.values, exact(b, later["k"]), rtol=1e-12, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("spectrum", often(["slow", "step"], 0))
@pytest.mark.parametrize("later", [{"k": 10, "tol": 1e-12}, {"k": 5}, {"k": 10, "iteration_rank": 30}])
def test_a_warm_start_saves_passes_of_block_krylov(tmp_path: Path, spectrum: str, later: dict[str, Any]) -> None:
    """With room left: 600 columns."""
    values = {"slow": 1 / np.sqrt(np.arange(1, 601)), "step": np.r_[np.linspace(2, 1.2, 10), np.linspace(1, 0.5, 590)]}
    a = planted(700, 600, values[spectrum])[0]
    solve(a, 10, tol=1e-6, store=tmp_path / "first", algorithm="krylov")
    cold = solve(a, **later, algorithm="krylov")
    warm = solve(a, **later, start=tmp_path / "first", algorithm="krylov")
    assert warm.data_passes < cold.data_passes
    assert np.allclose(warm.values, exact(a, later["k"]), rtol=1e-9, atol=0)


@pytest.mark.slow
def test_from_fewer_components(tmp_path: Path) -> None:
    """Where the first run's p columns held the new components, almost nothing is left to do; else nothing is lost."""
    for name, spectrum in (("step", STEP), ("slow", SLOW)):
        a = samples(spectrum)
        solve(a, 10, store=tmp_path / name / "first")
        cold = solve(a, 20, store=tmp_path / name / "cold").data_passes
        warm = solve(a, 20, store=tmp_path / name / "warm", start=tmp_path / name / "first")
        assert np.allclose(warm.values, exact(a, 20), rtol=1e-12, atol=0)
        assert warm.data_passes <= (2 if name == "step" else cold)


@pytest.mark.slow
def test_a_run_outlives_what_it_started_from(tmp_path: Path) -> None:
    a = write_zarr(tmp_path / "a.zarr", samples(SLOW), (100, 120))
    solve(a, 5, store=tmp_path / "first")
    begin: dict[str, Any] = {"start": tmp_path / "first", "tol": 1e-11}
    whole = solve(a, 8, store=tmp_path / "whole", **begin)
    for name in ("cut", "again"):
        with pytest.raises(Stop):
            solve(a, 8, store=tmp_path / name, observer=StopAfter(2), **begin)
    shutil.rmtree(tmp_path / "first")
    shutil.rmtree(tmp_path / "again" / "steps")  # as if killed before the first commit
    assert npmdask.resume(tmp_path / "cut").data_passes == whole.data_passes - 2
    assert solve(a, 8, store=tmp_path / "again", **begin).data_passes == whole.data_passes
    for name in ("cut", "again"):
        same_bytes(tmp_path / "whole", tmp_path / name)
    assert npmdask.resume(tmp_path / "cut", tol=1e-12).converged
    with pytest.raises(BadInputError, match="there is no run to start from"):
        solve(a, 8, store=tmp_path / "new", **begin)


@pytest.mark.slow
def test_an_unfinished_run_and_one_that_did_not_converge_serve_and_it_is_said(tmp_path: Path) -> None:
    a = samples(SLOW)
    with pytest.raises(Stop):
        solve(a, 5, store=tmp_path / "cut", observer=StopAfter(4))
    solve(a, 5, store=tmp_path / "short", max_steps=4)
    cut = solve(a, 5, store=tmp_path / "a", start=tmp_path / "cut")
    short = solve(a, 5, store=tmp_path / "b", start=tmp_path / "short")
    assert "is not finished" in cut.warnings[0]
    assert "did not converge" in short.warnings[0]
    assert cut.converged
    same_bytes(tmp_path / "a", tmp_path / "b")
    assert solve(a, 5, store=tmp_path / "c", start=tmp_path / "a").warnings == ()


@pytest.mark.slow
def test_the_answer_alone_serves_too_and_so_does_a_deflated_run(tmp_path: Path) -> None:
    a = samples(STEP)
    solve(write_zarr(tmp_path / "a.zarr", a), 5, store=tmp_path / "first")
    npmdask.deflate(tmp_path / "first", 5, store=tmp_path / "more")
    shutil.rmtree(tmp_path / "first" / "steps")
    cold = solve(a, 10, store=tmp_path / "cold")
    for earlier in ("first", "more"):
        warm = solve(a, 10, store=tmp_path / f"after {earlier}", start=tmp_path / earlier)
        assert warm.data_passes <= cold.data_passes
        assert np.allclose(warm.values, exact(a, 10), rtol=1e-12, atol=0)
    more = solve(a, 10, store=tmp_path / "last", start=tmp_path / "more")
    assert more.data_passes < cold.data_passes


@pytest.mark.slow
def test_refusals(tmp_path: Path) -> None:
    a = samples(STEP)
    first = tmp_path / "first"
    solve(a, 5, store=first)
    solve(a, 6, store=tmp_path / "other")
    with pytest.raises(RefusedError, match=r"has 120 columns and .* has 119"):
        solve(a[:, 1:], 5, start=first)
    with pytest.raises(RefusedError, match="start and store are both"):
        solve(a, 5, store=first, start=first)
    with pytest.raises(RefusedError, match="start cannot be combined with mechanism = 'gaussian'"):
        solve(a, 5, start=first, mechanism="gaussian", stddev=1.0)
    with pytest.raises(BadInputError, match="there is no run to start from"):
        solve(a, 5, start=tmp_path / "nothing")
    with pytest.raises(RefusedError, match=r"run\.starts_from \(None in the checkpoint"):
        solve(a, 6, store=tmp_path / "other", start=first)
    assert not (tmp_path / "other" / "start").exists()
    solve(a, 5, store=tmp_path / "warm", start=first)
    with pytest.raises(RefusedError, match=r"run\.starts_from"):
        solve(a, 5, store=tmp_path / "warm", start=tmp_path / "other")
    shutil.rmtree(first / "steps")
    shutil.rmtree(first / "result")
    with pytest.raises(BadInputError, match="has no committed step yet"):
        solve(a, 5, start=first)


@pytest.mark.slow
def test_from_a_configuration_and_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_zarr(tmp_path / "a.zarr", samples(STEP), (200, 120))
    text = '[source]\npath = "a.zarr"\nkind = "samples"\n[algorithm]\ntarget_rank = 8\n[run]\nthreads = 1\n'
    (tmp_path / "first.toml").write_text(text)
    (tmp_path / "second.toml").write_text(text + 'start = "runs/first"\n')
    assert main(["run", "first.toml", "--quiet"]) == 0
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert main(["run", "../second.toml", "--quiet"]) == 0
    assert main(["run", "../first.toml", "--quiet", "--store", "third", "--start", "../runs/first"]) == 0
    same_bytes(tmp_path / "runs" / "second", tmp_path / "elsewhere" / "third", ("steps", "result", "start"))
    assert main(["run", "../first.toml", "--quiet", "--store", "fourth", "--start", "nowhere"]) == 2


@pytest.mark.slow
@pytest.mark.parametrize("strength", [2.0, 0.3])
@pytest.mark.parametrize("algorithm", ["power", "krylov"])
def test_what_the_earlier_run_could_not_know_is_found(
    tmp_path: Path, strength: float, algorithm: Literal["power", "krylov"]
) -> None:
    """12 new rows, alone in columns that were zero, carry a leading eigenvalue: the vectors of the earlier run are
    orthogonal to it, for ever. (It was never found: "converged", with a sine of 1, at every tolerance.)"""
    a = np.concatenate([planted(1000, 120, 1 / np.sqrt(np.arange(1, 121)))[0], np.zeros((1000, 8))], axis=1)
    new = np.zeros((12, 128))
    new[:, 120] = np.sqrt(strength * np.linalg.norm(a, 2) ** 2 / 12)
    b = np.concatenate([a, new])
    solve(a, 5, store=tmp_path / "first", algorithm=algorithm)
    exact_vectors = np.linalg.svd(b)[2][:5].T
    for tol in (1e-9, 1e-6, 1e-3):
        warm = solve(b, 5, start=tmp_path / "first", algorithm=algorithm, tol=tol)
        assert warm.converged
        sine = max_sin_theta(warm.basis, exact_vectors)
        assert sine <= 50 * tol
        levels: Any = warm.certificate["levels"]  # type: ignore[index]
        assert all(level["sine"] is None or level["sine"] >= sine for level in levels)


@pytest.mark.slow
def test_random_columns_are_others_than_those_of_the_earlier_run_and_are_made_room_for(tmp_path: Path) -> None:
    """The same seed gives another stream: what one start was blind to, the next must not be."""
    a = write_zarr(tmp_path / "a.zarr", samples(SLOW), (1000, 120))
    solve(a, 5, store=tmp_path / "first")
    for asked, columns in ((None, 25), (5, 15), (6, 15), (20, 20)):
        store = tmp_path / f"warm {asked}"
        solve(a, 5, store=store, start=tmp_path / "first", iteration_rank=asked)
        spec = RunStore(store).read_spec() or {}
        assert spec["algorithm"]["iteration_rank"] == columns and spec["run"]["random_columns"] == 10
        problem = problem_of(RunStore(store))
        assert problem.algorithm.iteration_rank == columns
        block = problem.algorithm.init(120, rng=generator(0, *problem.start_stream), start=problem.start.basis).block  # type: ignore[union-attr]
        cold = problem.algorithm.init(120, rng=generator(0, "start"), start=problem.start.basis).block  # type: ignore[union-attr]
        assert np.linalg.svd(block[:, -10:].T @ cold[:, -10:], compute_uv=False)[0] < 0.9


@pytest.mark.slow
def test_a_warm_start_of_an_earlier_version_goes_on(tmp_path: Path) -> None:
    """Its block has no random columns, and its store does not name any: resumed, and by the same call."""
    a = write_zarr(tmp_path / "a.zarr", samples(SLOW), (100, 120))
    solve(a, 5, store=tmp_path / "first")
    old = replace(find_start(tmp_path / "first", None), random_columns=0)
    problem = make_problem(open_source(a, "samples"), Request(target_rank=8, tol=1e-11), start=old)
    for name in ("resumed", "called"):
        with pytest.raises(Stop):
            run_problem(problem, tmp_path / name, Resources(threads=1), StopAfter(2))
        part = tmp_path / name / "start"
        arrays, meta = read_bundle(part)
        del meta["random_columns"]
        shutil.rmtree(part)
        write_bundle(part, arrays, meta)
    assert "random_columns" not in (RunStore(tmp_path / "called").read_spec() or {})["run"]
    resumed = npmdask.resume(tmp_path / "resumed")
    called = solve(a, 8, tol=1e-11, store=tmp_path / "called", start=tmp_path / "first")
    assert resumed.converged and called.converged
    same_bytes(tmp_path / "resumed", tmp_path / "called", ("steps", "result"))
    assert [level["ground"] for level in resumed.certificate["levels"]] == ["always"]  # type: ignore[index]
