"""Every row once: killed at every point of a step, from every kind of source, the end is the same, bit for bit.

A kill is an exception that nothing catches, raised at the n-th time that anything is read, learnt or written.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from npmdask.core.checkpoint.store import RunStore
from npmdask.core.storage import bundle
from npmdask.streaming import StreamSolution, stream_pca
from npmdask.streaming.algorithms.model import Model
from npmdask.streaming.sources import BatchedStream
from npmdask.streaming.sources.directory import Directory
from tests.conftest import write_zarr
from tests.streaming.common import EXACT, D, K, kept_state, rows_of, same_end, scatter

ROWS = rows_of(40)
BATCH = 11
Door = Callable[[Path], StreamSolution]


class Kill(BaseException):
    """Not an error that anybody may handle."""


class Killer:
    """Counts what the doors below go through, and kills at the n-th."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at, self.seen = 0, 0
        targets: list[tuple[Any, str]] = [
            (BatchedStream, "read"), (Model, "absorb"), (RunStore, "commit_step"), (RunStore, "write_part"),
            (RunStore, "drop_part"), (RunStore, "write_spec"), (bundle, "_write_array"), (os, "rename"),
            (Path, "rename"), (shutil, "rmtree"),
        ]  # fmt: skip
        for owner, name in targets:
            monkeypatch.setattr(owner, name, self._counted(getattr(owner, name)))

    def _counted(self, function: Any) -> Any:
        def door(*args: Any, **options: Any) -> Any:
            if "npmdask-stream" in str(args[0]):  # temporary files of a stream, also when it is collected
                return function(*args, **options)
            self._step()
            result = function(*args, **options)
            self._step()
            return result

        return door

    def _step(self) -> None:
        self.seen += 1
        if self.seen == self.at:
            raise Kill


def options(**more: Any) -> dict[str, Any]:
    return {"options": EXACT, "batch_rows": BATCH, "center": True, "measure_rows": 7, "commit_seconds": 0.0} | more


def zarr_door(folder: Path, **how: Any) -> Door:
    path = write_zarr(folder / "rows.zarr", ROWS, (9, D))
    return lambda store: stream_pca(path, K, store=store, **options(**how))


def directory_door(folder: Path, by_hand: bool = False) -> Door:
    source = folder / "files"
    source.mkdir()
    np.save(source / "a.npy", ROWS[:15])
    np.savetxt(source / "b.csv", ROWS[15:17], delimiter=",", fmt="%.17g")
    np.save(source / "c.npy", ROWS[17:])
    return lambda store: stream_pca(Directory(source) if by_hand else source, K, store=store, **options())


def pieces() -> Iterator[np.ndarray]:
    yield from (ROWS[:3], ROWS[3:27], ROWS[27:])


def piped_door(folder: Path) -> Door:
    def door(store: Path) -> StreamSolution:
        text = "".join(",".join(map(repr, row.tolist())) + "\n" for row in ROWS)
        before, sys.stdin = sys.stdin, SimpleNamespace(buffer=io.BytesIO(text.encode()))  # type: ignore[assignment]
        try:
            return stream_pca("-", K, store=store, format="csv", columns=D, **options())
        finally:
            sys.stdin = before

    return door


DOORS: dict[str, tuple[Callable[[Path], Door], np.ndarray]] = {
    "stored": (zarr_door, ROWS),
    "shuffled, two epochs": (
        lambda folder: zarr_door(folder, order="shuffled", epochs=2),
        np.concatenate([ROWS, ROWS]),
    ),
    "directory": (directory_door, ROWS),
    "a stream by hand": (lambda folder: directory_door(folder, by_hand=True), ROWS),
    "callable": (lambda folder: lambda store: stream_pca(pieces, K, store=store, **options()), ROWS),
    "iterator": (lambda folder: lambda store: stream_pca(pieces(), K, store=store, **options()), ROWS),
    "standard input": (piped_door, ROWS),
}


FORWARDS = ("iterator", "standard input")


def assert_each_row_once(store: Path, rows: np.ndarray) -> None:
    _, state = kept_state(store)
    middle = rows - rows.mean(axis=0)
    assert state.rows == len(rows)
    np.testing.assert_allclose(state.mean, rows.mean(axis=0), rtol=1e-13)
    np.testing.assert_allclose(scatter(state), middle.T @ middle, rtol=1e-10, atol=1e-12)


def killed(door: Door, store: Path, killer: Killer, at: int) -> bool:
    killer.seen, killer.at = 0, at
    try:
        door(store)
    except Kill:
        return True
    finally:
        killer.at = 0
    return False


def has_ended(store: Path) -> bool:
    """Whether the very last thing was done before the kill."""
    held = RunStore(store).last_step()
    return held is not None and bool(held[1]["ended"])


def check(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stride: int, first: int = 1) -> int:
    make, rows = DOORS[kind]
    door = make(tmp_path)
    whole = door(tmp_path / "whole")
    assert_each_row_once(tmp_path / "whole", rows)
    killer = Killer(monkeypatch)
    at = first
    while killed(door, tmp_path / f"k{at}", killer, at):
        if at % 3 == 0 and not (kind in FORWARDS and has_ended(tmp_path / f"k{at}")):  # again before it has caught up
            killed(door, tmp_path / f"k{at}", killer, 20 + at % 7)
        if kind in FORWARDS and has_ended(tmp_path / f"k{at}"):  # its answer is there: to send it again is to send more
            same_end(tmp_path / f"k{at}", tmp_path / "whole")
            at += stride
            continue
        resumed = door(tmp_path / f"k{at}")
        assert (resumed.rows, resumed.skipped, resumed.rows_used) == (len(rows), 0, len(rows)), at
        same_end(tmp_path / f"k{at}", tmp_path / "whole")
        np.testing.assert_array_equal(resumed.basis, whole.basis)
        assert resumed.history == whole.history
        shutil.rmtree(tmp_path / f"k{at}")
        at += stride
    return killer.seen


@pytest.mark.slow
@pytest.mark.parametrize("kind", DOORS)
def test_killed_at_some_points(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if state and position are not committed as one, or an input counts as used before its answer is there."""
    assert check(kind, tmp_path, monkeypatch, stride=29, first=1 + 7 * len(kind) % 29) > 60


@pytest.mark.heavy
@pytest.mark.parametrize("kind", DOORS)
def test_killed_at_many_points(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every seventh, because each is a run and its repetition with a flush to disk for every file."""
    assert check(kind, tmp_path, monkeypatch, stride=7, first=1 + len(kind) % 7) > 60
