"""``kill -9`` of the whole process group at random instants: the result has the same bits, no step is done twice
but the one that was under way."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from npmdask.checkpoint.store import RunStore
from tests.conftest import planted, same_bytes

JOB = [sys.executable, "-m", "tests.faults.job"]
ROOT = Path(__file__).resolve().parents[2]


def start(folder: Path, threads: int, algorithm: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*JOB, str(folder), str(threads), algorithm], cwd=ROOT, start_new_session=True)


def prepare(folder: Path, original: Path) -> Path:
    folder.mkdir()
    os.link(original, folder / "x.npy")
    return folder


def run_with_kills(
    folder: Path, rng: random.Random, lasts: dict[str, float], kills_left: int, algorithm: str, *, ingest: bool
) -> tuple[int, dict[str, int]]:
    """Run the job to its end, killing it again and again; how often, and during what.

    ``lasts``: seconds of each phase, undisturbed: where a phase is aimed at, a kill comes before it is over.
    ``ingest``: begin with a kill during the ingest; without, all that are aimed at a phase are aimed at the steps.
    """
    kills, during = 0, {"start or end": 0, "ingest": 0, "steps": 0}
    while True:
        process = start(folder, rng.choice([1, 2, 3]), algorithm)
        try:
            if kills < kills_left:
                aim = "anywhere" if rng.random() < 0.25 else "ingest" if ingest and not during["ingest"] else "steps"
                wait_for_phase(folder, process, aim)
                process.wait(rng.uniform(0.0, 0.9 * lasts["ingest" if aim == "ingest" else "steps"]))
            else:
                process.wait(300)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            kills += 1
            during[phase(folder)] += 1
            looks_whole = (folder / "x.zarr").exists()
            assert not looks_whole or (folder / "x.zarr" / "zarr.json").exists()
            continue
        assert process.returncode == 0
        return kills, during


def wait_for_phase(folder: Path, process: subprocess.Popen[bytes], aim: str) -> None:
    """Machines differ in how long a start takes: the instant of a kill is counted from where its phase is seen."""
    while aim not in ("anywhere", phase(folder)) and process.poll() is None:
        time.sleep(0.005)


def watched(folder: Path, algorithm: str) -> dict[str, float]:
    """Do the job undisturbed; seconds of each phase."""
    process, spent, before = (
        start(folder, 1, algorithm),
        {"start or end": 0.0, "ingest": 0.0, "steps": 0.0},
        time.perf_counter(),
    )
    while process.poll() is None:
        time.sleep(0.005)
        now = time.perf_counter()
        spent[phase(folder)] += now - before
        before = now
    assert process.returncode == 0
    return spent


def phase(folder: Path) -> str:
    if (folder / "x.zarr.partial").exists():
        return "ingest"
    if (folder / "run" / "run.json").exists() and not (folder / "run" / "result").exists():
        return "steps"
    return "start or end"


def assert_no_step_done_twice(store: Path) -> None:
    """Each process must begin at the step after the last that was begun, or do that one again."""
    begun: dict[int, list[str]] = {}
    for event in RunStore(store).telemetry():
        if event["event"] == "pass":
            begun.setdefault(event["pid"], []).append(event["label"])
    numbers = [[int(s.split()[1]) if s.startswith("step") else 10**6 for s in labels] for labels in begun.values()]
    for own in numbers:
        assert all(b == a + 1 or b == 10**6 for a, b in pairwise(own)), own
    for before, after in pairwise(numbers):
        assert after[0] in (before[-1], before[-1] + 1, 10**6), (before, after)


def same_store(left: Path, right: Path) -> None:
    names = {p.relative_to(left) for p in left.rglob("*") if p.is_file()}
    assert names == {p.relative_to(right) for p in right.rglob("*") if p.is_file()}
    for name in names:
        # The record keeps where the source lay, which is another folder in each job.
        mine, other = ((x / name).read_bytes().replace(bytes(x.parent), b"") for x in (left, right))
        assert mine == other, name


def kill_matrix(tmp_path: Path, kills: int, seed: int, algorithm: str) -> None:
    rng = random.Random(seed)
    rows = planted(24_000, 1000, 1 / np.sqrt(np.arange(1, 301)), seed)[0]
    np.save(tmp_path / "x.npy", np.ascontiguousarray(rows.T) if algorithm == "row-gram" else rows)
    whole = prepare(tmp_path / "whole", tmp_path / "x.npy")
    lasts = watched(whole, algorithm)
    done, total = 0, {"start or end": 0, "ingest": 0, "steps": 0}
    for job in range(3 * kills):  # on a busy machine all kills of some jobs may miss the phase that they aim at
        folder = prepare(tmp_path / f"job{job}", tmp_path / "x.npy")
        missed = not (total["steps"] and total["ingest"])
        left = max(kills - done, int(missed))
        count, during = run_with_kills(folder, rng, lasts, left, algorithm, ingest=not total["ingest"])
        done += count
        total = {name: total[name] + during[name] for name in total}
        same_store(whole / "x.zarr", folder / "x.zarr")
        same_bytes(whole / "run", folder / "run")
        assert_no_step_done_twice(folder / "run")
        shutil.rmtree(folder)
        if done >= kills and total["steps"] and total["ingest"]:
            break
    print(f"{done} kills, during {total}")
    assert done >= kills
    assert total["steps"] > 0 < total["ingest"]


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["krylov", "gram", "row-gram"])
def test_killed_at_random_instants_ends_in_the_same_bits(algorithm: str, tmp_path: Path) -> None:
    kill_matrix(tmp_path, 5, int(os.environ.get("NPMDASK_KILL_SEED", "1")), algorithm)


@pytest.mark.heavy
@pytest.mark.parametrize("algorithm", ["krylov", "gram", "row-gram"])
def test_fifty_kills(algorithm: str, tmp_path: Path) -> None:
    kill_matrix(tmp_path, 50, int(os.environ.get("NPMDASK_KILL_SEED", "2")), algorithm)
