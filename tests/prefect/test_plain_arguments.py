"""What the flow npm and its steps take in place of a configuration, and the names of their runs."""

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npmdask.errors import BadInputError, RefusedError

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]  # of Prefect's own

TABLES: dict[str, Any] = {"source": {"path": "a.zarr", "kind": "samples"}, "algorithm": {"target_rank": 3}}
PRIVATE = TABLES | {"privacy": {"epsilon": 1.0, "delta": 1e-6, "clip_norm": 1.0}}
NODES = {"source": {"nodes": ["http://u:hidden@h:1", "http://u:hidden@h:2"]}, "algorithm": {"target_rank": 2}}
FILE = '[source]\npath = "a.zarr"\nkind = "samples"\n[algorithm]\ntarget_rank = 3\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "first.toml").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_way_to_say_it_is_one_configuration(folder: Path) -> None:
    """Fails where an option is lost, a path is of the wrong folder, or two ways give two stores."""
    from npmdask.config import RunConfig
    from npmdask.prefect import configuration

    of_data = configuration("a.zarr", 3, kind="samples", memory="1GiB", store="runs/first")
    assert of_data.source.path == str(folder / "a.zarr") and of_data.run.store == str(folder / "runs" / "first")
    changes = {"run.memory": "1GiB"}
    for given in (TABLES, RunConfig.model_validate(TABLES)):
        assert configuration(given, store="runs/first", changes=changes) == of_data
    of_file = configuration(Path("below", "first.toml"), memory="1GiB")
    assert of_file.source.path == str(folder / "below" / "a.zarr")
    assert of_file.run.store == str(folder / "below" / "runs" / "first")
    assert configuration("a.zarr", 3).run.store == str(folder / "runs" / "a")
    assert configuration("a.zarr", 3, run_id="nightly").run.store == str(folder / "runs" / "nightly")
    assert configuration(TABLES, run_id="nightly").run.store == str(folder / "runs" / "nightly")
    weighted = configuration("a.zarr", 3, row_weights="u.npy", column_weights="coslat").source
    assert (weighted.row_weights, weighted.column_weights) == (str(folder / "u.npy"), "coslat")
    plain = RunConfig.model_validate(TABLES)
    assert configuration(plain).source.path == "a.zarr", "as deployments have it: the same run as before"


@pytest.mark.parametrize(
    ("given", "more", "said"),
    [
        ("a.zarr", {}, "a.zarr; write one with `npmdask init a`; to run data, give the number of components"),
        ("none.toml", {}, "there is no configuration none.toml; write one with `npmdask init none`"),
        ("a.zarr", {"k": 0}, "algorithm.target_rank"),
        ("a.zarr", {"k": 3, "centre": True}, "unknown option 'centre': did you mean 'center'"),
        ("a.zarr", {"k": 3, "changes": {"run.thread": 2}}, "unknown key 'run.thread': did you mean 'threads'"),
        (TABLES, {"changes": {"run.thread": 2}}, "unknown key 'run.thread'"),
        (
            "a.zarr",
            {"k": 3, "tol": 1e-6, "changes": {"stop.tol": 1e-9}},
            "stop.tol is given twice, by tol and by changes",
        ),
        ({"source": {"pth": "a"}}, {}, "unknown key 'source.pth': did you mean 'path'"),
        (np.eye(3), {"k": 1}, "a ndarray is neither a configuration nor the path of data"),
        ("a.zarr", {"k": 3, "run_id": "../up"}, "run_id"),
    ],
)
def test_what_is_wrong_is_said(folder: Path, given: Any, more: dict[str, Any], said: str) -> None:
    from npmdask.prefect import configuration

    with pytest.raises(BadInputError) as refused:
        configuration(given, **more)
    assert said in str(refused.value)


def test_steps_refuse_what_prefect_may_not_see(folder: Path) -> None:
    """Fails where a step by itself would log the shape of private data, or every release of a run."""
    from npmdask.prefect import deflate, iterate, validate

    for step in (validate, iterate, deflate):
        with pytest.raises(RefusedError, match="private_release"):
            step.fn.__wrapped__(PRIVATE)


@pytest.mark.parametrize(
    ("parameters", "name"),
    [
        ({"config": TABLES}, "PCA of a.zarr, k = 3"),
        (
            {"config": "s3://key:hidden@bucket/x/b.zarr?token=hidden", "k": 0.9, "kind": "matrix"},
            "SVD of b.zarr, 90 % of the variance",
        ),
        ({"config": "/data/b.zarr/", "k": 5}, "components of b.zarr, k = 5"),
        ({"config": PRIVATE}, "private PCA of a.zarr, k = 3"),
        ({"config": NODES}, "components of 2 nodes, k = 2"),
        ({"documents": "/x/docword.txt.gz?hidden", "count": 20}, "20 topics of docword.txt.gz?hidden"),
        ({"kind": "ica", "samples": "https://u:hidden@h/x.zarr", "count": 3}, "3 independent components in x.zarr"),
        (
            {"kind": "mca", "left": "https://u:hidden@h/x.zarr", "right": "y.npy", "count": 3},
            "3 modes of x.zarr and y.npy",
        ),
        ({"config": "none.toml"}, "npm"),
        ({"config": [[1.5, 2.5]]}, "npm"),
        ({}, "npm"),
    ],
)
def test_names_say_what_runs_and_nothing_else(
    folder: Path, parameters: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from npmdask.prefect import tasks

    class Run:
        pass

    Run.parameters = parameters  # type: ignore[attr-defined]
    Run.scheduled_start_time = datetime(2026, 11, 25, 13, 40, 59, tzinfo=UTC)  # type: ignore[attr-defined]
    monkeypatch.setattr(tasks, "flow_run", Run)
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        made = tasks.run_name("npm")()
    finally:
        monkeypatch.undo()
        time.tzset()
    assert made == f"{name[0].upper()}{name[1:]}, 2026-11-25 14:40"


def test_a_sub_flow_leaves_the_process_of_its_parent_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails where it takes the login out of the environment, another folder or stdout, or could end the process."""
    import os
    import sys

    from npmdask.prefect import heartbeat

    monkeypatch.setenv(heartbeat.FROM_A_WORKER, "the-parent")
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "user:password")
    monkeypatch.setenv("NPMDASK_FOLDER", "/")
    monkeypatch.setattr(heartbeat.flow_run, "get_id", lambda: "the-sub-flow")
    monkeypatch.setattr(heartbeat, "send_sign", lambda run_id: None)
    stdout, there = sys.stdout, os.getcwd()
    assert heartbeat.tended(os.getcwd)() == there != "/"
    assert os.environ["PREFECT_API_AUTH_STRING"] == "user:password" and sys.stdout is stdout
