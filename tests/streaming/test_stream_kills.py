"""Streams under ``kill -9``: every row exactly once, the same bits, whatever the instant."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.children import ROOT
from benchmarks.stream_cases import CASES, KINDS, SCATTER_TOLERANCE, reading, scatter_error
from benchmarks.stream_kills import Kill, Place, Streams, differences, repetitions, started
from npmdask.core.checkpoint.store import RunStore
from npmdask.streaming import stream_pca
from tests.conftest import often

SEED = int(os.environ.get("NPMDASK_KILL_SEED", "1"))


def kill_streams(folder: Path, algorithm: str, kinds: tuple[str, ...], *, rows: int, kills: int) -> None:
    found = Streams(CASES[algorithm], folder, rows=rows, kills=kills, seed=SEED).run(kinds)
    print(algorithm, json.dumps(found))
    assert found["violations"] == []
    assert found["kills"] == kills
    # Kills that only ever met Python's start, or a model whose rows were all committed, would prove nothing.
    assert found["under_way"] >= kills / 2 and found["batches_again"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "kind"), often([
    ("spm", "stored"), ("mb-rmsg", "directory"), ("oja", "piped"), ("online-tensor-power", "piped"),
], 0))  # fmt: skip
def test_a_killed_stream_ends_in_the_same_bits(tmp_path: Path, algorithm: str, kind: str) -> None:
    kill_streams(tmp_path, algorithm, (kind,), rows=CASES[algorithm].rows // 2, kills=3)


@pytest.mark.heavy
@pytest.mark.parametrize("algorithm", CASES)
def test_thirty_kills(tmp_path: Path, algorithm: str) -> None:
    kill_streams(tmp_path, algorithm, KINDS, rows=CASES[algorithm].rows, kills=30)


def crash_points(folder: Path, kind: str, stride: int) -> None:
    command = [sys.executable, "-m", "tests.faults.crash_points", kind, str(folder), str(stride)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    points, found = json.loads(done.stdout.splitlines()[-1])
    assert points > 30  # commits, answer: each of them writes, renames and removes some files
    assert found == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", often(["directory", "piped"], 0))
def test_a_second_call_dies_between_two_changes_of_its_store(tmp_path: Path, kind: str) -> None:
    """Breaks where an old answer outlives the rows after it, or where a pipe that is sent again is taken twice."""
    crash_points(tmp_path, kind, stride=8)


@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["directory", "piped"])
def test_a_second_call_dies_between_any_two_changes_of_its_store(tmp_path: Path, kind: str) -> None:
    crash_points(tmp_path, kind, stride=1)


@pytest.mark.slow
def test_an_input_that_ended_is_followed_by_new_rows(tmp_path: Path) -> None:
    """Inputs through a real pipe into one model, which then holds the scatter of all; the first is too short for an
    answer, and ended all the same."""
    place, case, rng = Place(tmp_path / "job"), CASES["spm"], np.random.default_rng(SEED)
    rows = rng.standard_normal((480, case.columns)).astype("f4")
    for begin, end in ((0, 8), (8, 160), (160, 480)):
        np.save(tmp_path / "piped.npy", rows[begin:end])
        with started(case.asked() | reading(tmp_path, "piped", case.columns), place, tmp_path / "piped.npy") as child:
            assert (child.wait(600) == 0) == (end >= case.batch_rows), place.errors.read_text()
        assert place.committed() == end
    last = RunStore(place.store).last_step()
    assert last is not None
    error = scatter_error(*last, rows)
    assert error is not None and error < SCATTER_TOLERANCE


# The checks can fail


@pytest.fixture(scope="module")
def streamed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    """The store of a model that took every row of an array once."""
    case, store = CASES["spm"], tmp_path_factory.mktemp("streamed") / "run"
    rows = np.random.default_rng(SEED).standard_normal((1600, case.columns)).astype("f4")
    stream_pca(rows, **case.asked(), store=store)
    return store, rows


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["lost", "doubled", "one for another"])
def test_the_scatter_tells_a_single_row(streamed: tuple[Path, np.ndarray], fault: str) -> None:
    store, rows = streamed
    last = RunStore(store).last_step()
    assert last is not None
    assert (scatter_error(*last, rows) or 1) < SCATTER_TOLERANCE / 10
    least = int(np.argmin(np.linalg.norm(rows, axis=1)))  # the one that is the hardest to see
    others = np.delete(rows, least, axis=0)
    wrong = {"lost": others, "doubled": np.vstack([rows, rows[least]]), "one for another": np.vstack([others, rows[5]])}
    assert (scatter_error(*last, wrong[fault]) or 0) > 1e6 * SCATTER_TOLERANCE


@pytest.mark.slow
def test_the_comparison_tells_other_bytes_and_other_counts(streamed: tuple[Path, np.ndarray], tmp_path: Path) -> None:
    places = [Place(tmp_path / name) for name in ("whole", "fewer", "damaged")]
    case, rows = CASES["spm"], streamed[1]
    for place, count in zip(places, (1600, 1584, 1600), strict=True):
        stream_pca(rows[:count], **case.asked(), store=place.store)
        place.said.write_text("1 16\n")
    whole, fewer, damaged = places
    assert differences(whole, whole, [], rows) == []
    said = differences(whole, fewer, [], rows)
    assert "result/basis.npy has other bytes" in said and "1584 rows were counted and not 1600" in said
    assert any("not that of every row once" in sentence for sentence in said)
    basis = damaged.store / "result" / "basis.npy"
    basis.write_bytes(basis.read_bytes()[:-1] + b"\0")
    assert differences(whole, damaged, [], rows) == ["result/basis.npy has other bytes"]


def test_batches_that_are_taken_again_or_left_out_are_told() -> None:
    whole, kill = [8, 16, 24, 32, 40], Kill(1, committed=16, under_way=True)
    assert repetitions(whole, {1: [8, 16, 24], 2: [24, 32, 40]}, [kill]) == []
    assert repetitions(whole, {1: [8, 16, 24], 2: [16, 24, 32, 40]}, [kill])  # a committed batch again
    assert repetitions(whole, {1: [8, 16, 24], 2: [32, 40]}, [kill])  # the one that was lost with the kill left out
    assert repetitions(whole, {1: [8, 16, 24], 2: [24, 40]}, [kill])
    assert repetitions(whole, {1: [8, 16, 24]}, [kill])  # nobody went on
    assert repetitions(whole, {1: whole, 2: [20, 28]}, [Kill(1, committed=12, under_way=True)])  # half a batch
