"""Flows take a URL as store."""

from __future__ import annotations

from pathlib import Path

import pytest

from npmdask.config import validate_config
from npmdask.errors import BadInputError
from npmdask.prefect.parameters import at_store, run_folder


def test_where_a_run_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_folder("runs", "a") == str(tmp_path / "runs" / "a")
    assert run_folder("", "a") == str(tmp_path / "a")
    assert run_folder("s3://bucket/runs", "a") == "s3://bucket/runs/a"
    with pytest.raises(BadInputError, match=r"remove them"):
        run_folder("s3://user:password@bucket/runs", "a")
    config = validate_config({"source": {"path": "x"}, "algorithm": {"target_rank": 2}, "run": {"store": "s3://b/x"}})
    assert at_store(config, "name").run.store == "s3://b/x"
