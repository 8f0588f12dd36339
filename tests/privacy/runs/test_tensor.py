"""A private run on a tensor: what it finds, what it charges, how loud it is, what it shows, what it refuses."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npmdask.privacy.tensor_release as tensor_parts
from npmdask.accounting import Budget, mu_for
from npmdask.api import resume
from npmdask.cli.main import main
from npmdask.core.numerics.subspaces import symmetric_part
from npmdask.core.runs.observers import Observer
from npmdask.core.runs.resources import Resources
from npmdask.errors import BadInputError, NpmdaskError, RefusedError
from npmdask.manage.report import write_report
from npmdask.privacy.mechanisms import PrivateGaussian
from npmdask.privacy.plan import plan_private, private_lines
from npmdask.privacy.private_tensor_power import PrivateTensorPower
from tests.privacy.runs.conftest import RANK, World, of_tensor, planted
from tests.privacy.runs.test_taint import Watcher, release_fixed, shown

CLEAR_SIZE = 10_000.0  # of weights that stand out at epsilon = 1
RESTARTS, ITERATIONS = 3, 2
ENOUGH = 6  # iterations; after 2 one run in ten has not come to rest, after 5 one in a hundred
K = RANK * RESTARTS * (ENOUGH + 1)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return of_tensor(tmp_path / "world", planted(size=CLEAR_SIZE), clip_norm=CLEAR_SIZE)


@pytest.mark.slow
def test_the_components_are_those_of_the_tensor_and_every_column_is_charged(world: World) -> None:
    """Mutants: scores not charged; L not counted; the multiplier of k (R + 1) releases for all K."""
    solution = world.solve("run", world.problem(options={"restarts": RESTARTS, "iterations": ENOUGH}))
    truth = np.linalg.qr(np.random.default_rng(0).standard_normal((20, RANK)))[0]
    assert solution.outcome.name == "released" and solution.answered and solution.steps == RANK * (ENOUGH + 1)
    assert np.abs(np.einsum("ij,ij->j", truth, solution.basis)).min() > 0.99
    assert solution.value_stddevs is not None and solution.statement is not None
    assert np.abs(solution.values - CLEAR_SIZE * np.array([1, 0.7])).max() < 0.02 * CLEAR_SIZE
    (run,) = world.ledger.status("people").runs
    mu = mu_for(1.0, 1e-6)
    assert mu**2 * (1 - 1e-6) <= world.ledger.status("people").spent.mu_squared <= mu**2
    assert run.finished and set(run.committed) == set(range(1, solution.steps + 1))
    assert run.event["releases"] == K and run.event["multiplier"] == pytest.approx(math.sqrt(K) / mu, rel=1e-9)
    said = solution.statement
    assert json.loads(json.dumps(said)) == said and said["status"] == solution.facts["status"] == ["found"] * RANK
    assert said["columns_released"] == K and 0 < said["noise_to_paper"] < 0.17
    page = write_report(world.folder / "run").read_text()
    assert all(digest[:16] in page for digest in run.committed.values()) and "<td>scores</td>" in page


@pytest.mark.slow
def test_iterations_that_have_not_come_to_rest_are_no_small_error(world: World) -> None:
    """One step from a random start: hardly any noise, and far from every component."""
    asked = {"target_rank": 1, "options": {"restarts": 2, "iterations": 1}}
    solution = world.solve("run", world.problem(**asked))
    truth = np.linalg.qr(np.random.default_rng(0).standard_normal((20, RANK)))[0]
    sine = (1 - np.abs(truth.T @ solution.basis).max() ** 2) ** 0.5
    (error,) = solution.facts["errors"]
    assert sine < 2 * error and error > 0.05, "noise alone would be less"


@pytest.mark.slow
def test_more_components_than_there_are_is_said_to_be_so(world: World) -> None:
    asked = {"target_rank": RANK + 1, "options": {"restarts": RESTARTS, "iterations": ENOUGH}}
    solution = world.solve("run", world.problem(**asked))
    assert solution.statement is not None
    status = solution.statement["status"]
    assert status[0] == "found" and status[1] != "surplus", "one in a hundred times the second has not come to rest"
    assert status[-1] != "found" and np.isfinite(solution.basis).all()
    assert "numbered" in solution.warnings[-1] and "3" in solution.warnings[-1]


@pytest.mark.slow
def test_a_run_goes_on_by_itself_and_from_a_configuration(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """By the command line, which leaves a store that every other door opens."""
    table = f"""
        [source]
        path = "x.zarr"
        [algorithm]
        name = "tensor-power"
        target_rank = {RANK}
        options = {{ restarts = {RESTARTS}, iterations = {ITERATIONS} }}
        [privacy]
        epsilon = 1.0
        delta = 1e-6
        neighboring_relation = "tensor_entry"
        clip_norm = {CLEAR_SIZE}
        ledger = "ledger.sqlite"
        dataset = "people"
        [run]
        store = "run"
    """
    (world.folder / "run.toml").write_text(table)
    assert main(["run", str(world.folder / "run.toml"), "--quiet"]) == 0
    first = resume(world.folder / "run")
    assert first.answered and first.basis.shape == (20, RANK)
    capsys.readouterr()
    assert main(["ledger", "show", "people", "--ledger", str(world.folder / "ledger.sqlite")]) == 0
    assert "tensor_entry" in capsys.readouterr().out


@pytest.mark.slow
def test_the_plan_says_what_it_costs_and_looks_at_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> None:
        raise AssertionError("the data were read")

    monkeypatch.setattr("npmdask.symmetric.reader.TensorReader.blocks", refuse)
    plan = plan_private(world.problem(), Resources(), None)
    said = "\n".join(private_lines(plan))
    assert plan.releases == RANK * (ITERATIONS + 1) and plan.expense.covered and plan.memory is not None
    assert f"restarts = {RESTARTS}" in said and "noisy contractions" in said


def test_the_method_chooses_and_deflates_by_what_was_released() -> None:
    """By hand: scores that contradict contractions decide. Mutants: argmax of u^T Y; deflation without weights."""

    class Quiet:
        def stddevs(self, block: np.ndarray, *, scores: bool) -> np.ndarray:
            return np.full(block.shape[1], 1e-9)

        def to_paper(self, block: np.ndarray, *, scores: bool) -> float:
            return 0.1

    method = PrivateTensorPower(target_rank=2, restarts=2, iterations=1, noise=Quiet())
    state = method.init(3, rng=np.random.default_rng(0))
    assert method.releases == 4 and not method.query(state).scores
    first = state.block
    silent, _ = method.update(state, np.zeros((3, 2)))
    assert np.array_equal(silent.block, first), "noise on a grid may leave nothing of a column: it stays"
    state, info = method.update(state, first * [9.0, 1.0])
    assert method.query(state).scores and np.allclose(state.block, first) and np.allclose(info.ritz_values, [9.0, 1.0])
    state, _ = method.update(state, np.array([[3.0, 5.0]]))
    found = state.vectors[:, 0]
    assert state.weights[0] == 5.0 and np.allclose(found, first[:, 1]), "the second column"
    start = state.block
    assert (start != first).any(), "every round has starts of its own"
    state, _ = method.update(state, np.zeros((3, 2)))
    assert np.allclose(state.product, -5.0 * found[:, None] * (found @ start) ** 2)
    block = state.block
    state, info = method.update(state, np.array([[1.0, 2.0]]))
    assert np.allclose(np.sort(info.ritz_values), np.sort(np.array([1.0, 2.0]) - 5.0 * (found @ block) ** 3))
    assert state.step == method.releases and method.finalize(state).values[0] == state.weights.max()


@pytest.fixture
def two(tmp_path: Path) -> tuple[World, World]:
    """The same promise over tensors that have nothing in common but their dimension."""
    rng = np.random.default_rng(9)
    other = symmetric_part(rng.standard_normal((20, 20, 20))) * 1e6
    other[3, 3, 3] = 1e150
    return of_tensor(tmp_path / "one", planted()), of_tensor(tmp_path / "two", other)


@pytest.mark.slow
def test_what_is_shown_follows_from_the_releases(two: tuple[World, World], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PrivateGaussian, "release", release_fixed)
    watchers: list[Any] = [Watcher(), Watcher()]
    one, other = (shown(world, watcher) for world, watcher in zip(two, watchers, strict=True))
    assert one.keys() == other.keys() and len(one) >= 10
    assert all(one[name] == other[name] for name in one), "something depends on the data"
    assert watchers[0].told == watchers[1].told


@pytest.mark.slow
def test_the_test_above_sees_a_leak(two: tuple[World, World], monkeypatch: pytest.MonkeyPatch) -> None:
    real = tensor_parts.TensorRecipe.statement

    def leak(self: Any, source: Any, *rest: Any) -> Any:
        return {**real(self, source, *rest), "squared_frobenius": source.squared_frobenius}

    monkeypatch.setattr(PrivateGaussian, "release", release_fixed)
    monkeypatch.setattr(tensor_parts.TensorRecipe, "statement", leak)
    one, other = (shown(world, Observer()) for world in two)
    assert any(one[name] != other[name] for name in one)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("privacy", "request_", "said"),
    [
        ({"mechanism": "laplace", "delta": 0.0}, {}, "Laplace noise is not offered for tensors"),
        ({"neighboring_relation": "symmetric_entry"}, {}, "is not for .* a tensor"),
        ({"neighboring_relation": None}, {}, "say what is protected"),
        ({"clip_norm": None}, {}, "needs a clip_norm"),
        ({"delta": 0.0}, {}, "Gaussian noise cannot give delta = 0"),
        ({"calibration": "paper", "epsilon": 5000.0}, {}, "use calibration = 'exact'"),
        ({}, {"options": {"harvest": True}}, "would depend on the data"),
        ({}, {"options": {"restart": 3}}, "did you mean restarts|restarts"),
        ({}, {"options": {"restarts": 0}}, "must be at least 1"),
        ({}, {"options": {"iterations": 2.5}}, "iterations = 2.5"),
        ({}, {"target_rank": 21}, "dimension 20"),
        ({}, {"target_rank": 0.9}, "whole numbers for target_rank"),
        ({}, {"max_steps": 4}, "do not apply to tensor-power"),
        ({}, {"max_steps": 4, "algorithm": "auto"}, "do not apply to tensor-power"),
        ({}, {"iteration_rank": 4, "algorithm": "auto"}, "do not apply to tensor-power"),
        ({}, {"tol": 1e-3}, "a tolerance would depend on the data"),
        ({}, {"algorithm": "k-dp-pca"}, "only the tensor power methods"),
    ],
)
def test_what_a_tensor_run_refuses(world: World, privacy: dict[str, Any], request_: dict[str, Any], said: str) -> None:
    with pytest.raises(NpmdaskError, match=said):
        world.problem(privacy, **request_)


def test_it_is_for_tensors_that_were_ingested(world: World, tmp_path: Path) -> None:
    from npmdask.core.runs.build import make_problem
    from npmdask.core.runs.problem import Request
    from npmdask.core.storage.source import open_source

    request = Request(target_rank=2, privacy=world.privacy)
    with pytest.raises(RefusedError, match="was never ingested"):
        make_problem(open_source(planted(), "tensor"), request)
    with pytest.raises(BadInputError, match="is for symmetric tensors"):
        make_problem(open_source(np.eye(5), "symmetric"), replace(request, algorithm="tensor-power"))


def test_a_delta_that_is_no_promise_for_so_many_entries_is_said(world: World) -> None:
    """20 (20 + 1) (20 + 2) / 6 = 1540 entries with their permutations."""
    from npmdask.core.storage.source import open_source
    from npmdask.ledger.granting import delta_warnings

    source = open_source(world.data, exact=False)
    assert f"{1 / 1540:.1e}" in delta_warnings(source, "tensor_orbit", Budget(1.0, 1e-3))[0]
    assert not delta_warnings(source, "tensor_entry", Budget(1.0, 1e-6))
