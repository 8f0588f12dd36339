"""Everything that is written or shown of a private run is a function of its releases and of public numbers.

Two data sets that differ in everything that is private (rows, values, sizes, statistics) are run with a mechanism
that releases the same blocks for both. Whatever differs afterwards has leaked.
"""

from __future__ import annotations

import json
import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npmdask.privacy.account as account
import npmdask.privacy.matrix_release as private_parts
from npmdask.api import resume
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.runs.observers import Observer
from npmdask.core.runs.progress import ProgressBar
from npmdask.core.runs.solution import Solution, Step
from npmdask.core.storage.readers.dense import ReadStats
from npmdask.errors import NpmdaskError
from npmdask.ledger import export_lines
from npmdask.manage.report import summary, write_report
from npmdask.manage.status import inspect
from npmdask.missing.rules import Fill
from npmdask.privacy.clipped_rows import ClippedGram
from npmdask.privacy.mechanisms import Entropy, PrivateGaussian
from npmdask.weights.aspect import Weights
from tests.privacy.runs.conftest import COLUMNS, POWER, STEPS, World, gappy, make_world, records

PUBLISHED = ("result", "steps", "report.html")


def fixed(shape: tuple[int, ...], step: int) -> np.ndarray:
    """A release that knows nothing of any data."""
    return np.random.default_rng(step).standard_normal(shape) * 100 + 1000 * np.eye(*shape)


def release_fixed(self: PrivateGaussian, product: np.ndarray, **public: Any) -> np.ndarray:
    return fixed(product.shape, public["step"])


class Watcher(Observer):
    """Writes down everything that an observer is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def on_plan(self, plan: Any) -> None:
        self.told.append(plan)

    def on_pass(self, label: str, total_bytes: int, total_chunks: int) -> None:
        self.told.append((label, total_bytes, total_chunks))

    def on_task(self, record: ReadStats) -> None:
        self.told.append(record)

    def on_step(self, step: Step) -> None:
        self.told.append(step)

    def on_end(self, solution: Solution) -> None:
        self.told.append(json.dumps(summary(solution)).replace(str(Path(solution.store).parent), ""))


def shown(world: World, watcher: Observer) -> dict[str, str]:
    """All that can be seen of a run, by name; the folder that it lies in taken out."""
    solution = world.solve("run", observer=watcher)
    write_report(world.folder / "run")
    files = [p for part in PUBLISHED for p in [world.folder / "run" / part, *(world.folder / "run" / part).rglob("*")]]
    seen = {str(p.relative_to(world.folder)): p.read_bytes().hex() for p in files if p.is_file()}
    seen["summary"] = json.dumps(summary(solution))
    seen["inspect"] = json.dumps(inspect(world.folder / "run"))
    return {
        name: text.replace(str(world.folder), "").replace(str(world.folder).encode().hex(), "")
        for name, text in seen.items()
    }


@pytest.fixture
def worlds(tmp_path: Path) -> tuple[World, World]:
    """The same promise over data that have nothing in common."""
    rng = np.random.default_rng(9)
    relation = {"neighboring_relation": "record_add_remove"}
    return (
        make_world(tmp_path / "one", records(4000), **relation),
        make_world(tmp_path / "two", 50 * rng.standard_normal((9000, COLUMNS)), **relation),
    )


@pytest.mark.slow
def test_what_is_shown_follows_from_the_releases(
    worlds: tuple[World, World], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], caplog: Any
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(PrivateGaussian, "release", release_fixed)
    watchers, seen, printed, logged = [], [], [], []
    for world in worlds:
        watchers.append(Watcher())
        seen.append(shown(world, watchers[-1]))
        caplog.clear()
        world.solve("other", observer=ProgressBar(verbose=True))
        printed.append("".join(capfd.readouterr()).replace(str(world.folder), ""))
        logged.append(caplog.text.replace(str(world.folder), ""))
    assert seen[0].keys() == seen[1].keys() and len(seen[0]) > 8
    for name in seen[0]:
        assert seen[0][name] == seen[1][name], f"{name} depends on the data"
    assert watchers[0].told == watchers[1].told and len(watchers[0].told) > STEPS
    assert printed[0] == printed[1] and f"step {STEPS}" in printed[0]
    assert logged[0] == logged[1]


@pytest.mark.slow
def test_nothing_tells_whether_values_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], caplog: Any
) -> None:
    """Of two stores that may hold gaps one does, in a twentieth of its entries."""
    asked = POWER | {"missing": "fill", "fill": Fill(values=0.0), "aspects": (Weights(columns=np.arange(1.0, 13.0)),)}
    data = {"one": gappy(4000), "two": records(9000, seed=3)}
    relation = {"neighboring_relation": "record_add_remove", "non_finite": "missing"}
    one, two = (replace(make_world(tmp_path / name, x, **relation), asked=asked) for name, x in data.items())
    test_what_is_shown_follows_from_the_releases((one, two), monkeypatch, capfd, caplog)


def leak_rows(self: Any, source: Any, *rest: Any) -> Any:
    return {**REAL_STATEMENT(self, source, *rest), "rows": source.shape[0]}


def leak_trace(self: Any, source: Any, *rest: Any) -> Any:
    return {**REAL_STATEMENT(self, source, *rest), "trace": float((source.statistics.std**2).sum())}


REAL_STATEMENT = private_parts.PowerRecipe.statement


@pytest.mark.slow
@pytest.mark.parametrize("leak", [leak_rows, leak_trace])
def test_the_taint_test_sees_a_leak(worlds: tuple[World, World], monkeypatch: pytest.MonkeyPatch, leak: Any) -> None:
    monkeypatch.setattr(PrivateGaussian, "release", release_fixed)
    monkeypatch.setattr(private_parts.PowerRecipe, "statement", leak)
    one, two = (shown(world, Observer()) for world in worlds)
    assert any(one[name] != two[name] for name in one)


@pytest.mark.slow
def test_after_the_last_release_the_data_are_not_needed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Garbage in place of the data after the last release changes nothing, and nobody looks at it."""
    real = RunStore.write_part

    class Stop(BaseException):
        pass

    def stop(self: RunStore, name: str, *rest: Any) -> None:
        if name == "result":
            raise Stop
        real(self, name, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(RunStore, "write_part", stop)
        with pytest.raises(Stop):
            world.solve("run")
    for chunk in (world.data / "data").rglob("*"):
        if chunk.is_file() and chunk.name != "zarr.json":
            chunk.write_bytes(np.random.default_rng(0).bytes(chunk.stat().st_size))

    def refuse(*args: Any) -> None:
        raise AssertionError("the data were read after the last release")

    monkeypatch.setattr(ClippedGram, "partial", refuse)
    assert resume(world.folder / "run").answered


@pytest.mark.slow
def test_the_key_is_nowhere_but_in_its_file(world: World, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """Not in the store, the ledger, the record of the run, what is logged, or what an error says."""
    caplog.set_level(logging.DEBUG)
    keys: list[bytes] = []
    real = Entropy.create

    def remember(path: Any, **more: Any) -> Entropy:
        made = real(path, **more)
        keys.append(Path(path).read_bytes())
        return made

    class Stop(BaseException):
        pass

    def stop(*args: Any) -> None:
        raise Stop

    monkeypatch.setattr(Entropy, "create", remember)
    with monkeypatch.context() as patch:
        patch.setattr(account, "destroy_key", stop)
        with pytest.raises(Stop):
            world.solve("run")
    (key,) = keys
    holders = [p for p in world.folder.rglob("*") if p.is_file() and any(form in p.read_bytes() for form in forms(key))]
    assert [p.name for p in holders] == ["entropy"]
    assert not any(form.decode("latin1") in caplog.text for form in forms(key))
    assert not any(form.decode("latin1") in "\n".join(export_lines(world.ledger)) for form in forms(key))
    resume(world.folder / "run")
    assert not any(form in p.read_bytes() for p in world.folder.rglob("*") if p.is_file() for form in forms(key))


def forms(key: bytes) -> list[bytes]:
    import base64

    return [key, key.hex().encode(), base64.b64encode(key).rstrip(b"=")]


@pytest.mark.slow
def test_the_executors_are_given_no_key_and_no_noise(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise is drawn once, centrally, after the reduction: a task that Dask runs twice must not draw it."""
    import npmdask.core.execution.threads as threads

    real, inside = threads.Threads.run_pass, []

    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        inside.append(True)
        try:
            return real(self, *args, **kwargs)
        finally:
            inside.pop()

    def keystream(self: Entropy, *purpose: Any) -> Any:
        assert not inside, "noise was drawn inside a pass"
        return real_keystream(self, *purpose)

    real_keystream = Entropy.keystream
    monkeypatch.setattr(threads.Threads, "run_pass", watched)
    monkeypatch.setattr(Entropy, "keystream", keystream)
    world.solve("run")


@pytest.mark.slow
def test_refusals_during_a_private_run_do_not_quote_the_data(world: World) -> None:
    """A product too large for its grid is refused without saying how large it is."""
    with pytest.raises(NpmdaskError) as caught:
        world.solve("run", world.problem({"epsilon": 1e-9, "delta": 0.0, "mechanism": "laplace"}))
    assert not re.search(r"row|column \d", str(caught.value))
