"""Where a kill must not fall between two things: an end and its answer, a step and the newer version of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npmdask.core.checkpoint import store as checkpoint
from npmdask.core.checkpoint.store import RunStore
from npmdask.streaming import stream_pca
from tests.streaming.common import EXACT, K, rows_of, same_end

ROWS = rows_of(40)


class Kill(BaseException):
    """Not an error that anybody may handle."""


def kill(*_: Any, **__: Any) -> None:
    raise Kill


def learn(rows: np.ndarray, store: Path) -> Any:
    return stream_pca(iter([rows]), K, options=EXACT, batch_rows=8, store=store)


@pytest.mark.slow
@pytest.mark.parametrize("door", ["write_part", "drop_part"])
def test_an_input_has_ended_when_its_answer_is_there(
    door: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if a kill before the answer counts as an end: the rows that are sent again would count twice."""
    learn(ROWS, tmp_path / "whole")
    with monkeypatch.context() as patched, pytest.raises(Kill):
        patched.setattr(RunStore, door, kill)
        learn(ROWS, tmp_path / "s")
    assert learn(ROWS, tmp_path / "s").rows == 40
    same_end(tmp_path / "s", tmp_path / "whole")
    assert learn(ROWS, tmp_path / "s").rows == 80, "now it has ended, and these are new"


def test_an_answer_is_of_the_last_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if the answer of the call before stays where a kill came before the new one."""
    path = tmp_path / "in"
    path.mkdir()
    np.save(path / "a.npy", ROWS[:16])
    stream_pca(path, K, options=EXACT, batch_rows=8, store=tmp_path / "s")
    np.save(path / "b.npy", ROWS[16:])
    with monkeypatch.context() as patched, pytest.raises(Kill):
        patched.setattr(RunStore, "drop_part", kill)
        stream_pca(path, K, options=EXACT, batch_rows=8, store=tmp_path / "s")
    solution = stream_pca(path, K, options=EXACT, batch_rows=8, store=tmp_path / "s")
    kept = RunStore(tmp_path / "s").read_part("result")
    assert solution.new_rows == 0 and kept is not None and kept[1]["rows"] == 40
    np.testing.assert_array_equal(kept[0]["basis"], solution.basis)


def test_a_step_is_there_while_its_newer_version_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if it is taken away first (its files may be gone by then), or the older of two is read."""

    def said() -> Any:
        held = RunStore(tmp_path / "s").last_step()
        return held and held[1]["said"]

    with RunStore(tmp_path / "s") as store:
        store.commit_step(3, {"x": np.zeros(1)}, {"said": "first"})
        with monkeypatch.context() as patched, pytest.raises(Kill):
            patched.setattr(checkpoint, "write_bundle", kill)
            store.commit_step(3, {"x": np.zeros(1)}, {"said": "second"})
        assert said() == "first"
        with monkeypatch.context() as patched, pytest.raises(Kill):
            patched.setattr(RunStore, "_delete_pass", kill)
            real = checkpoint.shutil.rmtree
            patched.setattr(
                checkpoint.shutil, "rmtree", lambda p, **how: None if "replaced" in str(p) else real(p, **how)
            )
            store.commit_step(3, {"x": np.zeros(1)}, {"said": "third"})
        assert len(list((tmp_path / "s" / "steps").iterdir())) == 2 and said() == "third"
        for step in (3, 4, 5):
            store.commit_step(step, {"x": np.zeros(1)}, {"said": step})
        assert sorted(p.name for p in (tmp_path / "s" / "steps").iterdir()) == ["000004", "000005"] and said() == 5


@pytest.mark.parametrize("newer", [False, True])
def test_what_a_kill_left_of_a_replaced_step_is_cleared_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, newer: bool
) -> None:
    """Fails if it stays beside its newer version for ever, or is not put back where there is none."""
    calls: list[Any] = []

    def dies(*_: Any, publishing: Any, **__: Any) -> None:
        with publishing:  # all is written aside, nothing is renamed
            raise Kill

    def second(path: Path, **_: Any) -> None:
        calls.extend([path] if path.name.endswith(".replaced") else [])
        if len(calls) == 2:  # the first clears the place, the second comes when the newer one is whole
            raise Kill

    with RunStore(tmp_path / "s") as store:
        store.commit_step(3, {"x": np.zeros(1)}, {"said": "first"})
        with monkeypatch.context() as patched, pytest.raises(Kill):
            if newer:
                patched.setattr("npmdask.core.checkpoint.store.shutil.rmtree", second)
            else:
                patched.setattr("npmdask.core.checkpoint.store.write_bundle", dies)
            store.commit_step(3, {"x": np.ones(1)}, {"said": "second"})
    left = {path.name for path in (tmp_path / "s" / "steps").iterdir()}
    assert left == ({"000003", "000003.replaced"} if newer else {"000003.replaced"})
    with RunStore(tmp_path / "s") as store:
        held = store.last_step()
        assert held is not None and held[1]["said"] == ("second" if newer else "first")
        assert [path.name for path in (tmp_path / "s" / "steps").iterdir()] == ["000003"]
