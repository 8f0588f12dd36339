"""Algorithms and operators of others: their runs are reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npmdask
from npmdask.api import resume
from npmdask.cli.main import main
from npmdask.core.checkpoint.store import RunStore
from npmdask.errors import RefusedError
from npmdask.manage.report import write_report
from tests.conftest import write_zarr
from tests.core.algorithms import test_registration as algorithms
from tests.core.algorithms.test_registration import AfterTwo, Stop
from tests.core.runs import test_loop as loop
from tests.core.runs import test_registered_operators as operators
from tests.core.runs.test_registered_operators import ROWS, truth

known, data, registered = algorithms.known, algorithms.data, operators.registered  # fixtures


@pytest.mark.slow
@pytest.mark.usefixtures("known")
def test_through_python_with_a_kill_a_resume_and_a_report(data: Path, tmp_path: Path) -> None:
    """It is this algorithm that runs, not block Krylov in its place; and its certificate is right."""
    truth = npmdask.top_k(data, 3)
    asked: dict[str, Any] = {"algorithm": "heavy-ball", "options": {"beta": 0.1}, "iteration_rank": 8}
    whole = npmdask.top_k(data, 3, store=tmp_path / "whole", **asked)
    with pytest.raises(Stop):
        npmdask.top_k(data, 3, store=tmp_path / "run", observer=AfterTwo(), **asked)
    last = RunStore(tmp_path / "run").last_step()
    assert last is not None and "before" in last[0]
    again = resume(tmp_path / "run")
    assert isinstance(again, npmdask.Solution) and again.converged and again.steps > 2
    assert again.basis.tobytes() == whole.basis.tobytes()
    np.testing.assert_allclose(again.values, truth.values, rtol=1e-12)
    assert again.total_data_passes == again.steps + 2, "the left vectors, and a pass with the vectors of the answer"
    assert again.certificate is not None and max(again.certificate["nearest"]) < 1e-6
    page = write_report(tmp_path / "run").read_text()
    assert "heavy-ball" in page


@pytest.mark.slow
def test_a_run_is_planned_cut_short_resumed_and_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_zarr(tmp_path / "x.zarr", ROWS, (64, 12))
    config = tmp_path / "run.toml"
    config.write_text(
        f'[source]\npath = "{tmp_path}/x.zarr"\nkind = "samples"\noperator = "weighted"\n'
        f'[algorithm]\nname = "power"\ntarget_rank = 2\niteration_rank = 4\n[run]\nstore = "{tmp_path}/run"\n'
    )
    assert main(["plan", str(config)]) == 0
    assert "unknown" in capsys.readouterr().out, "a sample of the data says nothing of another operator"
    asked: dict[str, Any] = {"kind": "samples", "operator": "weighted", "algorithm": "power", "iteration_rank": 4}
    with pytest.raises(loop.Stop):
        npmdask.top_k(tmp_path / "x.zarr", 2, **asked, store=tmp_path / "run", observer=loop.StopAfter(2))
    assert main(["resume", str(tmp_path / "run")]) == 0
    whole = npmdask.top_k(tmp_path / "x.zarr", 2, **asked, store=tmp_path / "whole")
    again = npmdask.resume(tmp_path / "run")
    np.testing.assert_array_equal(again.basis, whole.basis)
    np.testing.assert_allclose(again.values, truth(ROWS)[:2], rtol=1e-9)
    write_report(tmp_path / "run", tmp_path / "run.md")
    assert "weighted" in (tmp_path / "run.md").read_text()


@pytest.mark.slow
def test_every_command_says_whose_eigenvectors_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The data are a plain matrix, whose own values would be singular ones."""
    source, run = write_zarr(tmp_path / "x.zarr", ROWS, (64, 12)), tmp_path / "run"
    found = npmdask.top_k(source, 2, operator="weighted", store=run)
    assert main(["inspect", str(run)]) == 0 and "weighted" in capsys.readouterr().out
    write_report(run, tmp_path / "page.json")
    page = (tmp_path / "page.json").read_text()
    assert "weighted" in page and "singular value" not in page
    assert main(["export", str(run), str(tmp_path / "out.npz")]) == 0
    with np.load(tmp_path / "out.npz") as out:
        np.testing.assert_array_equal(out["values"], found.values)
        assert "left_basis" not in out
    assert main(["deflate", str(run), "1", "--store", str(tmp_path / "more")]) == RefusedError.exit_code
