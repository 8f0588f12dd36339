"""What a run is foretold before its first pass, and what its reports say of that afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npmdask
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.runs import results
from npmdask.core.runs.observers import Observer
from npmdask.core.runs.results import FORESEEN
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError
from npmdask.manage.report import summary, write_report
from npmdask.manage.status import status_of
from npmdask.planning import predicted_steps
from tests.conftest import planted, same_bytes, write_zarr
from tests.privacy.runs.conftest import make_world, records


def run(folder: Path, **options: Any) -> Any:
    data = planted(3000, 60, 1 / np.arange(1, 61))[0]
    if not (folder / "x.zarr").exists():
        write_zarr(folder / "x.zarr", data, chunks=(500, 60))
    return npmdask.top_k(folder / "x.zarr", 4, store=folder / "run", **options)


def told_in(folder: Path, event: str) -> list[dict[str, Any]]:
    return [line for line in RunStore(folder / "run").telemetry() if line["event"] == event]


@pytest.mark.slow
def test_every_report_says_what_was_predicted_and_what_came_true(tmp_path: Path) -> None:
    solution = run(tmp_path, iteration_rank=6)
    facts = summary(solution)
    assert facts["steps"] <= facts["predicted_steps"] <= 1.5 * facts["steps"]
    assert facts["prediction"] == f"predicted {facts['predicted_steps']} steps, took {facts['steps']}"
    page = write_report(tmp_path / "run").read_text()
    assert "Predicted and measured" in page and f"<td>{facts['predicted_steps']}</td>" in page
    assert status_of(tmp_path / "run", "run").predicted_steps == facts["predicted_steps"]
    (line,) = told_in(tmp_path, FORESEEN)
    assert line["places"] == 1 and line["how"] == "rehearsed", "one of six rows of compressed chunks"
    again = run(tmp_path, iteration_rank=6)
    assert summary(again)["predicted_steps"] == facts["predicted_steps"] and again.data_passes == 0
    assert len(told_in(tmp_path, FORESEEN)) == 1


@pytest.mark.slow
def test_a_prediction_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a bit nor a pass. Kills: a sample that is counted, or that draws from the generator of the start."""
    with_it = run(tmp_path / "a")
    monkeypatch.setattr(predicted_steps, "log_prediction", lambda *a: None)
    without = run(tmp_path / "b")
    same_bytes(tmp_path / "a" / "run", tmp_path / "b" / "run")
    assert (with_it.data_passes, with_it.bytes_read) == (without.data_passes, without.bytes_read)
    assert summary(without)["prediction"] == results.NONE
    assert results.NONE in write_report(tmp_path / "b" / "run").read_text()


@pytest.mark.slow
def test_a_deflated_run_is_foretold_the_rest(tmp_path: Path) -> None:
    """Kills: a rehearsal of the run without what is locked, the sample's own values in place of those."""
    values = np.r_[[9.0, 8.5, 8.0], 4 * 0.93 ** np.arange(77)]
    data = write_zarr(tmp_path / "x.zarr", planted(3000, 80, values)[0], chunks=(500, 80))
    npmdask.top_k(data, 3, iteration_rank=5, store=tmp_path / "first")
    solution = npmdask.deflate(tmp_path / "first", 2, iteration_rank=6, store=tmp_path / "run")
    (line,) = told_in(tmp_path, FORESEEN)
    np.testing.assert_allclose(line["spectrum"][:3], values[:3] ** 2, rtol=1e-3)
    assert solution.steps <= line["steps"] <= 1.5 * solution.steps
    few = npmdask.deflate(tmp_path / "first", 70, iteration_rank=77, store=tmp_path / "all")
    assert few.steps <= 2 and summary(few)["predicted_steps"] == 2, "as many columns as there are dimensions left"


@pytest.mark.slow
def test_a_warm_start_is_compared_with_a_random_one(tmp_path: Path) -> None:
    """Kills: words that promise the warm start as many steps, and a status that does."""
    cold = run(tmp_path / "cold")
    (tmp_path / "x.zarr").symlink_to(tmp_path / "cold" / "x.zarr")
    warm = run(tmp_path, start=tmp_path / "cold" / "run", tol=1e-11)
    facts = summary(warm)
    assert warm.steps < cold.steps and warm.steps <= facts["predicted_steps"]  # of a random start as wide
    said = f"predicted {facts['predicted_steps']} steps from a random start, took {warm.steps} from where an earlier"
    assert facts["prediction"].startswith(said)
    page = write_report(tmp_path / "run").read_text()
    assert "steps (predicted from a random start; taken from where an earlier run came to)" in page
    assert status_of(tmp_path / "run", "run").predicted_steps is None


class StopAtOnce(Observer):
    def on_pass(self, label: str, total_bytes: int, total_chunks: int) -> None:
        raise KeyboardInterrupt


class Stop(Observer):
    def on_step(self, step: Any) -> None:
        if step.number == 2:
            raise KeyboardInterrupt


@pytest.mark.slow
def test_a_resumed_run_keeps_its_first_prediction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for observer in (StopAtOnce(), Stop()):
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, iteration_rank=5, observer=observer)
    (first,) = told_in(tmp_path, FORESEEN)
    unfinished = status_of(tmp_path / "run", "run")
    assert unfinished.predicted_steps == first["steps"] and unfinished.state == "unfinished"
    monkeypatch.setattr(predicted_steps, "draw_sample", None)  # not asked for again
    solution = npmdask.resume(tmp_path / "run")
    assert summary(solution)["predicted_steps"] == first["steps"]
    assert told_in(tmp_path, FORESEEN) == [first]


@pytest.mark.slow
def test_a_noisy_run_is_foretold_its_plateau(tmp_path: Path) -> None:
    solution = run(tmp_path, mechanism="gaussian", stddev=1e-6)
    (line,) = told_in(tmp_path, FORESEEN)
    worst = min(step["worst_residual"] for step in RunStore(tmp_path / "run").history())
    assert not line["reached"] and worst / 2 < line["residual"] < 2 * worst
    assert "predicted not to reach" in solution.prediction["prediction"]
    assert "plateau of the noise" in write_report(tmp_path / "run").read_text()


@pytest.mark.slow
def test_why_nothing_is_predicted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And that what is wrong with a sample is left to the run to find."""
    data = planted(300, 40, 1 / np.arange(1, 41))[0]
    first = npmdask.top_k(data, 3, store=tmp_path / "first")
    assert first.prediction["predicted_steps"] is not None
    wide = npmdask.top_k(planted(300, 140, 1 / np.arange(1, 141))[0], 3, iteration_rank=130, store=tmp_path / "wide")
    assert "130 columns need a larger sample" in wide.prediction["prediction"]
    assert f"<p>{wide.prediction['prediction']}</p>" in write_report(tmp_path / "wide").read_text()
    monkeypatch.setattr(predicted_steps, "READ", 1000)
    assert "too much to read" in npmdask.top_k(data, 3, observer=Observer()).prediction["prediction"]
    monkeypatch.undo()

    def broken(*arguments: Any) -> None:
        raise BadInputError("chunk 0.0 is missing")

    monkeypatch.setattr(predicted_steps, "draw_sample", broken)
    assert "no number of steps" in npmdask.top_k(data, 3).prediction["prediction"], "no one follows it"
    other = npmdask.top_k(data, 3, observer=Observer())
    assert "chunk 0.0 is missing" in other.prediction["prediction"]
    assert other.basis.tobytes() == first.basis.tobytes()


@pytest.mark.slow
def test_of_a_private_run_nothing_is_predicted_by_a_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predicted_steps, "draw_sample", lambda *a: pytest.fail("a look that nobody has paid for"))
    world = make_world(tmp_path, records(4507))
    solution = world.solve("run")
    assert "predicted_steps" not in summary(solution)
    assert "predicted (from released values)" in write_report(tmp_path / "run").read_text()


@pytest.mark.slow
def test_of_plain_chunks_no_more_than_the_rows_of_the_sample_is_read(tmp_path: Path) -> None:
    """The rows themselves, from every row of chunks. Kills: a wrong offset, a column of chunks in the wrong place."""
    data = np.random.default_rng(0).standard_normal((3000, 70)) / np.arange(1, 71)
    reader: Any = open_source(write_zarr(tmp_path / "x.zarr", data, chunks=(700, 40), compressors=None)).reader
    np.testing.assert_array_equal(reader.some_rows(4, range(3, 200, 7)), data[2803:3000:7])
    npmdask.top_k(tmp_path / "x.zarr", 3, store=tmp_path / "run")
    (line,) = told_in(tmp_path, FORESEEN)
    assert (line["rows"], line["places"]) == (2600, 5), "600 of 700 rows of each, and all 200 of the last"


@pytest.mark.slow
@pytest.mark.parametrize("plain", [True, False])
def test_neighbouring_rows_that_are_alike_are_no_sample(tmp_path: Path, plain: bool) -> None:
    """A time series: rows change slowly. Of plain chunks single rows are read, from everywhere; of compressed ones it
    is said that the few places tell too little. Kills: few rows of chunks (3 steps foretold, 8 taken), no correlation.
    """
    slow = np.cos(np.pi * np.outer(np.arange(40_000) + 0.5, np.arange(1, 61)) / 40_000)
    data = (slow / np.arange(1, 61) ** 0.5).astype("f4")
    write_zarr(tmp_path / "x.zarr", data, chunks=(100, 60), **({"compressors": None} if plain else {}))
    solution = npmdask.top_k(tmp_path / "x.zarr", 5, store=tmp_path / "run", iteration_rank=10)
    (line,) = told_in(tmp_path, FORESEEN)
    if plain:
        assert line["places"] == 400 and solution.steps <= line["steps"] <= 1.5 * solution.steps
    else:
        assert line["steps"] is None and "neighbouring rows are alike" in line["why"]


@pytest.mark.slow
def test_what_a_prediction_says_is_what_the_bar_expects(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of passes is that of the prediction, plus the one that makes left vectors."""
    monkeypatch.setattr(predicted_steps, "SECONDS", 600.0)  # a slow machine is not what is asked about

    class Begun(Observer):
        seen: Any = None

        def on_begin(self, done: int, expected: int | None, unit: str) -> None:
            self.seen = (done, expected, unit)

    a = planted(3000, 40, np.geomspace(1, 0.1, 40))[0]
    for kind, more in (("samples", 0), ("matrix", 1)):
        begun = Begun()
        found = npmdask.top_k(a, 3, kind=kind, algorithm="power", observer=begun)
        assert found.prediction["predicted_steps"] is not None
        assert begun.seen == (0, found.prediction["predicted_steps"] + more, "pass")


@pytest.mark.slow
def test_only_a_followed_run_is_predicted(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).standard_normal((300, 40)) / np.arange(1, 41)
    asked = {"algorithm": "krylov", "kind": "samples"}
    alone, watched, kept = (
        npmdask.top_k(rows, 3, **asked, **more)  # type: ignore[arg-type]
        for more in ({}, {"observer": Observer()}, {"store": tmp_path / "run"})
    )
    assert alone.prediction["predicted_steps"] is None
    assert watched.prediction["predicted_steps"] == kept.prediction["predicted_steps"] is not None
    assert alone.basis.tobytes() == watched.basis.tobytes() == kept.basis.tobytes()
