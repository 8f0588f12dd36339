"""Tensor power method, topics, mixtures, independent components, building of moments: ``kill -9`` at any instant leaves
the bytes of an undisturbed run, and no pass is made again but the one that was under way.

The private tensor power method is killed in tests/privacy/runs/test_crashes.py, the online one in test_stream_kills.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.tensors.tensor_jobs import KINDS
from tests.tensors.tensor_kills import differences, done_twice, kept

ROOT = Path(__file__).resolve().parents[2]
SEED = int(os.environ.get("NPMDASK_KILL_SEED", "1"))


def killed(how: str, count: int, folder: Path, kinds: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    command = [sys.executable, "-m", "tests.tensors.tensor_kills", how, str(count), str(SEED), str(folder), *kinds]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=3000)
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    found: dict[str, dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    assert {kind: table["violations"] for kind, table in found.items()} == {kind: [] for kind in kinds}
    return found


def random_instants(folder: Path, count: int) -> None:
    for table in killed("random", count, folder, KINDS).values():
        during = table["during"]
        assert sum(during.values()) - during.get("start or end", 0) == count, "killed too late to test anything"


def every_point(folder: Path, count: int, kinds: tuple[str, ...]) -> None:
    for table in killed("points", count, folder, kinds).values():
        assert table["points"] > 100 and table["tried"] >= count


@pytest.mark.slow
def test_killed_at_random_instants(tmp_path: Path) -> None:
    random_instants(tmp_path, 3)


@pytest.mark.slow
def test_dead_between_two_changes_of_its_folder(tmp_path: Path) -> None:
    every_point(tmp_path, 2, ("topics-held", "building"))


@pytest.mark.heavy
def test_twelve_kills_each(tmp_path: Path) -> None:
    random_instants(tmp_path, 12)


@pytest.mark.heavy
@pytest.mark.parametrize("kind", KINDS)
def test_dead_at_forty_points(tmp_path: Path, kind: str) -> None:
    every_point(tmp_path, 40, (kind,))


# The checks can fail


def test_other_bytes_and_passes_made_again_are_seen(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "result").write_bytes(b"1")
    whole = kept(tmp_path)
    log = [{"event": "pass", "label": label} for label in ("step 1", "step 2", "step 2", "step 3")]
    (run / "telemetry.jsonl").write_text("\n".join(json.dumps(line) for line in log))
    assert differences(whole, tmp_path) == [] and done_twice(tmp_path) == 1
    (run / "result").write_bytes(b"2")
    (run / "telemetry.jsonl").write_text("\n".join(json.dumps(line) for line in [*log, log[0]]))
    assert differences(whole, tmp_path) == ["run/result"] and done_twice(tmp_path) > 1000
