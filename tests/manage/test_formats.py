"""A store of another checkpoint format is refused in a sentence, through every door, and stays as it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import npmdask
from npmdask.cli.main import main
from npmdask.core.checkpoint.store import CHECKPOINT_FORMAT
from npmdask.errors import RefusedError
from npmdask.manage.report import export, write_report
from npmdask.manage.status import inspect
from tests.manage.common import content, make_data
from tests.manage.job import mixture, run, stream


def wrote(store: Path, number: int) -> None:
    """As if another npmdask had written it."""
    spec = json.loads((store / "run.json").read_text())
    spec["version"] |= {"checkpoint_format": number, "npmdask": "9.9"}
    del spec["algorithm"]["name"]  # what such a format may lack: the sentence comes before anything else is read
    (store / "run.json").write_text(json.dumps(spec))


@pytest.mark.slow
@pytest.mark.parametrize("number", [CHECKPOINT_FORMAT - 1, CHECKPOINT_FORMAT + 1])
@pytest.mark.parametrize("work", [run, stream, mixture])
def test_another_format_is_one_sentence(
    tmp_path: Path, work: Callable[..., Any], number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    make_data(tmp_path)
    store = tmp_path / "runs" / "s"
    work(tmp_path, store)
    wrote(store, number)
    before = content(store)
    which = "an older" if number < CHECKPOINT_FORMAT else "a newer"
    said = (
        rf"s was written by {which} npmdask \(9\.9\), in checkpoint format {number}; this one reads format "
        rf"{CHECKPOINT_FORMAT} only: use npmdask 9\.9 for this store, or start again in a new one"
    )
    doors = (
        lambda: work(tmp_path, store),
        lambda: npmdask.resume(store),
        lambda: inspect(store),
        lambda: write_report(store),
        lambda: export(store, tmp_path / "x.npz"),
    )
    for door in doors:
        with pytest.raises(RefusedError, match=said):
            door()
    kept = {name: data for name, data in content(store).items() if name not in ("lock", "epoch", "telemetry.jsonl")}
    assert kept == {name: before[name] for name in kept} and set(before) <= set(content(store))
    assert main(["status", str(tmp_path / "runs")]) == 0
    assert f"in checkpoint format {number}" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("work", [run, stream, mixture])
def test_another_version_is_told_with_what_does_help(tmp_path: Path, work: Callable[..., Any]) -> None:
    """`npmdask resume` does not: it is of this version, too."""
    make_data(tmp_path)
    work(tmp_path, tmp_path / "s")
    spec = json.loads((tmp_path / "s" / "run.json").read_text())
    spec["version"]["npmdask"] = "0.0.1"
    (tmp_path / "s" / "run.json").write_text(json.dumps(spec))
    for door in (lambda: work(tmp_path, tmp_path / "s"), lambda: npmdask.resume(tmp_path / "s")):
        with pytest.raises(RefusedError, match=r"^use another store, or go on with this one by npmdask 0\.0\.1: "):
            door()
