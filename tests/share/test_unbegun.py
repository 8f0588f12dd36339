"""A search that was not begun leaves nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

import npmdask
from npmdask.cli.main import main
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.runs.observers import Observer
from tests.core.runs import test_unbegun as runs
from tests.core.runs.test_unbegun import POWER

folder = runs.folder  # a fixture


@pytest.mark.slow
def test_a_search_that_committed_nothing_leaves_none_of_its_stages(folder: Path) -> None:
    class AtItsStage(Observer):
        def on_stage(self, label: str) -> None:
            (folder / "run" / "search").mkdir()
            RunStore(folder / "run" / "search" / "0016").open().close()
            raise KeyboardInterrupt

    assert main(["ingest", "x.zarr", "ingested.zarr", "--kind", "samples", "--quiet"]) == 0
    with pytest.raises(KeyboardInterrupt):
        npmdask.top_k("ingested.zarr", 0.5, store="run", observer=AtItsStage(), **POWER)
    assert (folder / "run" / "search" / "0016" / "lock").exists()
    npmdask.top_k("ingested.zarr", 3, store="run", **POWER)
    assert not (folder / "run" / "search" / "0016").exists()
