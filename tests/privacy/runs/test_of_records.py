"""k-DP-PCA and its relatives by every door: what they find, cost, say and refuse."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npmdask
import npmdask.dp_pca.release as record_parts
from npmdask.accounting import Budget, mu_for
from npmdask.api import solve
from npmdask.cli.main import main
from npmdask.core.runs.observers import Observer
from npmdask.core.runs.resources import Resources
from npmdask.core.storage.bundle import read_bundle
from npmdask.dp_pca.release import BatchRelease
from npmdask.errors import BadInputError, BudgetError, DataWarning, NpmdaskError
from npmdask.manage.report import write_report
from tests.conftest import same_bytes
from tests.privacy.runs.conftest import COLUMNS, OF_RECORDS, World, make_world, of_records, prepared, records
from tests.privacy.runs.test_taint import Watcher, shown

TOML = """
[source]
path = "x.zarr"
[algorithm]
name = "k-dp-pca"
target_rank = 2
options = { steps = 3 }
[privacy]
epsilon = 1.0
delta = 1e-6
neighboring_relation = "record_replace"
clip_norm = 1.5
ledger = "ledger.sqlite"
dataset = "people"
"""


@pytest.fixture
def tight(tmp_path: Path) -> World:
    return of_records(tmp_path, "tight")


def captured(world: World, basis: np.ndarray) -> float:
    """The share of the largest eigenvalues of X^T X that ``basis`` captures."""
    values, vectors = np.linalg.eigh(np.load(world.folder / "x.npy").T @ np.load(world.folder / "x.npy"))
    mine = np.linalg.norm(np.sqrt(values) * (basis.T @ vectors)) ** 2
    return float(mine / values[-basis.shape[1] :].sum())


@pytest.mark.slow
def test_the_directions_are_those_of_the_data_and_the_charge_is_exact(tight: World) -> None:
    solution = tight.solve("run")
    assert solution.outcome.name == "released" and solution.answered and solution.steps == 2 * 2 * 3
    assert captured(tight, solution.basis) > 0.98
    assert np.abs(solution.basis.T @ solution.basis - np.eye(2)).max() < 1e-12
    assert solution.values[0] > solution.values[1] > 0
    (run,) = tight.ledger.status("people").runs
    mu = mu_for(1.0, 1e-6)
    assert mu**2 * (1 - 1e-6) <= tight.ledger.status("people").spent.mu_squared <= mu**2
    assert run.finished and set(run.committed) == set(range(1, 13))


@pytest.mark.slow
@pytest.mark.parametrize("oracle", OF_RECORDS)
def test_every_oracle_runs_and_its_statement_is_plain(tmp_path: Path, oracle: str) -> None:
    world = of_records(tmp_path, oracle)
    solution = world.solve("run")
    assert solution.statement is not None
    assert json.loads(json.dumps(solution.statement)) == solution.statement
    assert solution.basis.shape == (COLUMNS, world.asked["target_rank"])
    assert solution.statement["epsilon_spent"] <= world.privacy.epsilon
    page = write_report(world.folder / "run").read_text()
    assert all(digest[:16] in page for digest in world.ledger.status("people").runs[0].committed.values())
    assert re.search(r"<td>(range|mean)-\w+</td>", page)


@pytest.mark.slow
def test_one_matrix_for_each_record(tmp_path: Path) -> None:
    """A_i = V diag(3, 2) V^T + z z^T of 3000 records, as a 3-D array; clip_norm bounds the norm of a matrix."""
    rng = np.random.default_rng(3)
    v = np.linalg.qr(rng.standard_normal((COLUMNS, 2)))[0]
    z = 0.1 * rng.standard_normal((3000, COLUMNS))
    matrices = v * [3.0, 2.0] @ v.T + z[:, :, None] * z[:, None, :]
    world = make_world(tmp_path / "world", matrices, clip_norm=4.0)
    world = replace(world, asked=OF_RECORDS["tight"])
    solution = world.solve("run")
    assert np.linalg.norm(solution.basis.T @ v) ** 2 > 1.98
    assert 3.1 > solution.values[0] > solution.values[1] > 1.5  # clipped images are shorter
    with pytest.raises(BadInputError, match="k-dp-pca"):
        replace(world, asked={"target_rank": 2, "max_steps": 2}).solve("other")


@pytest.mark.slow
def test_a_record_more_where_the_number_of_records_is_private(tmp_path: Path) -> None:
    """The guess of their number stands in for it, and nothing public depends on how many there are."""
    world = of_records(tmp_path, "tight")
    relation = {"neighboring_relation": "record_add_remove"}
    with pytest.raises(BadInputError, match="needs the option records: a public guess"):
        world.problem(relation)
    with pytest.raises(NpmdaskError, match="would shift all that follow"):
        world.problem(relation, options={"steps": 3, "records": 4000, "reuse": False})
    with pytest.MonkeyPatch.context() as patch:  # so many records that their sum would not be exact
        patch.setattr(record_parts, "MOST_RECORDS", 3999)
        with pytest.raises(NpmdaskError, match="split it"):
            world.problem(relation, options={"steps": 3, "records": 3000})
    other = make_world(tmp_path / "other", records(4000), **relation)
    options = {"steps": 3, "records": 5000}
    solution = replace(other, asked={**world.asked, "options": options}).solve("run")
    assert captured(other, solution.basis) > 0.98
    assert solution.statement is not None and "guess" in solution.statement["values_are"]
    assert "4000" not in json.dumps(solution.statement)


@pytest.mark.slow
def test_threads_and_worker_processes_change_no_bit(tight: World) -> None:
    prepared(tight)
    shutil.copytree(tight.folder / "run", tight.folder / "other")
    solve(tight.problem(), tight.folder / "run", Resources(threads=3))
    twin_of = tight.folder / "other"
    solve(tight.problem(), twin_of, Resources(workers=2, threads=1))
    same_bytes(tight.folder / "run", twin_of, parts=("steps", "result"))


@pytest.mark.slow
def test_the_command_and_the_function_leave_the_same(tight: World, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared(tight)
    shutil.copytree(tight.folder / "run", tight.folder / "other")
    monkeypatch.chdir(tight.folder)
    Path("p.toml").write_text(TOML)
    assert main(["run", "p.toml", "--store", "run", "--quiet"]) == 0
    solution = npmdask.top_k(
        tight.data,
        2,
        algorithm="k-dp-pca",
        options={"steps": 3},
        privacy=replace(tight.privacy, ledger=str(tight.folder / "ledger.sqlite")),
        store=tight.folder / "other",
    )
    same_bytes(tight.folder / "run", tight.folder / "other", parts=("steps", "result"))
    assert len(tight.ledger.status("people").runs) == 1, "one run, whoever went on with it"
    assert (np.load(tight.folder / "run" / "result" / "basis.npy") == solution.basis).all()


@pytest.mark.slow
def test_a_plan_says_what_the_run_then_does(tight: World, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tight.folder)
    Path("p.toml").write_text(TOML)
    assert main(["plan", "p.toml", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    solution = tight.solve("run")
    history = read_bundle(tight.folder / "run" / "result")[1]["history"]
    means = [step["noise_stddev"] for step in history if step["release"].startswith("mean")]
    assert solution.statement is not None and facts["mu"] == pytest.approx(solution.statement["mu"])
    assert facts["releases"] == len(history) and max(means) <= facts["noise_stddev"]
    assert main(["plan", "p.toml"]) == 0
    said = capsys.readouterr().out
    assert "k-dp-pca" in said and "at most 12 ranges and means" in said


@pytest.mark.slow
def test_a_batch_in_which_nothing_is_found_is_said(tmp_path: Path) -> None:
    world = of_records(tmp_path, "paper")
    world = replace(world, privacy=replace(world.privacy, epsilon=1.0))
    (warning,) = world.solve("run").warnings
    assert "found no range" in warning and "'tight'" in warning


@pytest.mark.slow
def test_a_delta_beside_other_runs_is_explained(tmp_path: Path) -> None:
    """(epsilon, delta) of the paper's accounting does not add up as Gaussian losses do."""
    world = make_world(tmp_path / "world", records(4000), budget=Budget(3.0, 1e-6))
    world.solve("first")
    paper = replace(world, privacy=replace(world.privacy, clip_norm=None), asked=OF_RECORDS["paper"])
    with pytest.raises(BudgetError, match="a delta of its own, which counts e\\^epsilon times"):
        paper.solve("second")
    smaller = replace(paper, privacy=replace(paper.privacy, delta=1e-8))
    assert smaller.solve("third").answered


BAD: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {"privacy": None}, "needs a .privacy. table"),
    ({}, {"options": {"variant": "tihgt"}}, "did you mean 'tight'"),
    ({}, {"options": {"step": 3}}, "did you mean 'steps'"),
    ({}, {"options": {"steps": "3"}}, "option steps"),
    ({}, {"options": {"steps": 0}}, "needs target_rank, steps"),
    ({}, {"options": {"variant": "paper", "rates": [1.0, 1.0]}}, "leave .privacy. clip_norm out"),
    ({"clip_norm": None}, {"options": {"variant": "paper"}}, "eta_t = 1 / "),
    ({"clip_norm": None}, {}, "clip_norm is missing"),
    ({}, {"algorithm": "k-dp-ojas", "options": {"rates": [1.0, 1.0], "noise": "paper"}}, "not private at epsilon = 1"),
    ({}, {"algorithm": "k-dp-ojas", "options": {"rates": [1.0, 1.0], "batch": 4001}}, "use fewer"),
    ({}, {"algorithm": "k-dp-ojas", "options": {"rates": [0.0, 0.0]}}, "not both zero"),
    ({}, {"max_steps": 3}, "follows from its options"),
    ({}, {"iteration_rank": 4}, "follows from its options"),
    ({}, {"target_rank": 13}, "at most 12 components"),
    ({}, {"center": True}, "does not centre"),
    ({"neighboring_relation": None}, {}, "has no default"),
    ({"neighboring_relation": "entry"}, {}, "is not one of k-dp-pca"),
    ({"mechanism": "laplace"}, {}, "leave them out for k-dp-pca"),
    ({}, {"algorithm": "power", "options": {"steps": 2}, "max_steps": 3}, "unknown option 'steps' of power"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("privacy", "request_", "sentence"), BAD)
def test_bad_input_gets_a_sentence(tight: World, privacy: dict, request_: dict, sentence: str) -> None:
    if "privacy" in request_:
        with pytest.raises(BadInputError, match=sentence), pytest.warns(DataWarning, match="privacy budget"):
            npmdask.top_k(tight.data, 2, algorithm="k-dp-pca")
        return
    with pytest.raises(NpmdaskError, match=sentence):
        tight.problem(privacy, **request_)
    assert not tight.ledger.status("people").runs


def release_fixed(self: BatchRelease, product: np.ndarray, *, block: np.ndarray, step: int, **key: Any) -> np.ndarray:
    """A release that knows nothing of any data."""
    rng = np.random.default_rng(step)
    return rng.standard_normal((len(block), 1)) if self.release_kind.startswith("mean") else rng.uniform(0.5, 1, 1)


@pytest.mark.slow
@pytest.mark.parametrize("oracle", ["tight", "ojas", "power"])
def test_what_is_shown_follows_from_the_releases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, oracle: str) -> None:
    """Two data sets with nothing in common but their (public) number of rows."""
    other = np.random.default_rng(9).standard_normal((4000, COLUMNS)) * 50
    other[7] = 1e100  # whose square is fine, and whose image is not
    one = of_records(tmp_path, oracle)
    two = replace(one, folder=make_world(tmp_path / "two", other).folder)
    two = replace(two, privacy=replace(one.privacy, ledger=str(two.folder / "ledger.sqlite")))
    monkeypatch.setattr(BatchRelease, "release", release_fixed)
    watchers: list[Observer] = [Watcher(), Watcher()]
    seen = [shown(world, watcher) for world, watcher in zip((one, two), watchers, strict=True)]
    assert seen[0].keys() == seen[1].keys() and len(seen[0]) > 8
    for name in seen[0]:
        assert seen[0][name] == seen[1][name], f"{name} depends on the data"
    assert watchers[0].told == watchers[1].told  # type: ignore[attr-defined]
