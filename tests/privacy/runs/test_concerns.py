"""A weak promise is said at every door before anything is charged; noise that buries everything is refused."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npmdask.accounting import Budget
from npmdask.cli.main import main
from npmdask.core.runs.build import make_problem
from npmdask.core.runs.resources import Resources
from npmdask.core.storage.source import open_source
from npmdask.errors import RefusedError
from npmdask.formats.ingest import ingest
from npmdask.manage.report import write_report
from npmdask.privacy.concerns import concerns, require_signal
from npmdask.privacy.plan import plan_private, private_lines
from tests.privacy.runs.conftest import OF_RECORDS, make_world, of_tensor, planted, records, sine_of_run
from tests.privacy.runs.test_doors import TOML

ROWS = 4507


@pytest.mark.slow
def test_an_ordinary_promise_is_of_no_concern(tmp_path: Path) -> None:
    """The counterpart of all others here: with the same data."""
    assert concerns(make_world(tmp_path, records(ROWS)).problem()) == ()


@pytest.mark.slow
def test_a_weak_promise_is_said_in_the_plan_the_log_the_solution_the_statement_and_on_the_page(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """epsilon above 10, and a delta with which publishing four whole records would keep the promise."""
    world = make_world(tmp_path, records(ROWS), budget=Budget(30.0, 1e-3), epsilon=20.0, delta=1e-3)
    problem = world.problem()
    weak, loose = concerns(problem)
    assert "epsilon = 20 is a very weak guarantee" in weak and "1 / (number of records) = 2.2e-04" in loose
    assert any(weak in line and loose in line for line in private_lines(plan_private(problem, Resources(), None)))
    with caplog.at_level(logging.WARNING, logger="npmdask"):
        found = world.solve("run", problem)
    assert {weak, loose} <= set(found.warnings) and found.statement is not None
    assert {weak, loose} <= set(found.statement["warnings"])
    assert weak in caplog.text and loose in caplog.text
    page = Path(write_report(tmp_path / "run")).read_text()
    assert "is a very weak guarantee" in page and "2.2e-04" in page


@pytest.mark.slow
def test_the_command_line_says_it_before_it_charges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """The ledger has too little: nothing is charged, and yet it was said."""
    monkeypatch.chdir(make_world(tmp_path / "world", records(ROWS)).folder)  # granted: epsilon = 1.85
    Path("p.toml").write_text(TOML.replace("epsilon = 1.0", "epsilon = 20.0"))
    assert main(["plan", "p.toml"]) == 3, "so does the run"
    assert "warning   epsilon = 20 is a very weak guarantee" in capsys.readouterr().out
    assert main(["run", "p.toml", "--quiet"]) != 0
    assert "warning: epsilon = 20 is a very weak guarantee" in capsys.readouterr().err


@pytest.mark.slow
def test_how_many_records_there_are_is_not_used_where_it_is_private(tmp_path: Path) -> None:
    """The same words of 300 and of 4507 records; of an oracle that is given a public guess, of the guess."""
    add = {"neighboring_relation": "record_add_remove", "delta": 1e-3}
    worlds = [make_world(tmp_path / str(rows), records(rows)) for rows in (300, ROWS)]
    said = [concerns(world.problem(add)) for world in worlds]
    assert said[0] == said[1] and "fewer than 1,000 records only" in said[0][0]
    guessed = {**OF_RECORDS["tight"], "options": {"steps": 3, "records": 2000}, "max_steps": None}
    for world in worlds:
        privacy = replace(world.privacy, **add)
        source, asked = (
            open_source(world.data, exact=False),
            replace(world.problem().request, **guessed, iteration_rank=None),
        )
        (told,) = concerns(make_problem(source, replace(asked, privacy=privacy)))
        assert "1 / (number of records) = 5.0e-04" in told


@pytest.mark.slow
def test_noise_that_buries_everything_is_refused_and_nothing_is_charged(tmp_path: Path) -> None:
    """With any data within the public bounds; the plan says so, and a little more epsilon goes through."""
    world = make_world(tmp_path, records(60))
    problem = world.problem({"epsilon": 0.05})
    with pytest.raises(RefusedError, match="bury every component"):
        world.solve("run", problem)
    assert world.ledger.status("people").runs == ()
    assert any("buries the last component" in line for line in private_lines(plan_private(problem, Resources(), None)))
    require_signal(world.problem({"epsilon": 1.0}))


@pytest.mark.slow
def test_what_is_refused_is_lost_and_what_goes_through_need_not_be(tmp_path: Path) -> None:
    """All records are the same one, as long as they may be: no data have a larger component. Where it is refused that
    component is not found; with ten times the epsilon it is. Fails where the bound on the noise is a factor off."""
    one = np.linalg.qr(np.random.default_rng(0).standard_normal((12, 12)))[0][0]
    world = make_world(tmp_path, np.tile(1.5 * one, (400, 1)))

    def problem(epsilon: float) -> Any:
        return world.problem({"epsilon": epsilon}, target_rank=1, iteration_rank=12, max_steps=1)

    refused = [epsilon for epsilon in (0.001, 0.003, 0.01, 0.03, 0.1) if _refused(problem(epsilon))]
    assert refused and max(refused) < 0.1
    lost = np.median([sine_of_run(problem(max(refused)), one[:, None], seed) for seed in range(15)])
    clear = np.median([sine_of_run(problem(10 * max(refused)), one[:, None], seed) for seed in range(15)])
    assert lost > 0.7 > 0.4 > clear


def _refused(problem: Any) -> bool:
    try:
        require_signal(problem)
    except RefusedError:
        return True
    return False


@pytest.mark.slow
def test_ranges_that_no_bin_can_show_are_said_before(tmp_path: Path) -> None:
    world = replace(make_world(tmp_path, records(300)), asked=OF_RECORDS["tight"])
    (told,) = concerns(world.problem({"epsilon": 0.1}))
    assert "no clipping range can be found" in told and "has 300" in told
    assert concerns(world.problem({"epsilon": 8.0})) == ()


@pytest.mark.slow
def test_matrices_and_tensors_have_bounds_of_their_own(tmp_path: Path) -> None:
    """An ordinary run goes through, one with a ten-thousandth of the epsilon is refused."""
    tensor = of_tensor(tmp_path / "t", planted())
    np.save(tmp_path / "a.npy", np.diag([400.0, 300.0, *[3.0] * 38]))
    ingest(tmp_path / "a.npy", tmp_path / "a.zarr", kind="symmetric", chunks=(16, 16))
    matrix = replace(tensor.privacy, neighboring_relation="symmetric_entry", clip_norm=500.0)
    symmetric = make_world(tmp_path / "w", records(60)).problem().request
    for source, request, epsilon in (
        (tensor.data, replace(tensor.problem().request, privacy=tensor.privacy), 1e-4),
        (tmp_path / "a.zarr", replace(symmetric, privacy=matrix), 1e-4),
    ):
        assert request.privacy is not None
        assert not _refused(make_problem(open_source(source, exact=False), request)), source
        faint = replace(request, privacy=replace(request.privacy, epsilon=epsilon))
        assert _refused(make_problem(open_source(source, exact=False), faint)), source
