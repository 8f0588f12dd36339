"""Kills of jobs on tensors and moments, and what must be the same afterwards.

``python -m tests.tensors.tensor_kills HOW COUNT SEED FOLDER KIND...`` prints one JSON object, a table for each kind.
``random``: ``COUNT`` kills of the process group at instants aimed at the phases in turn, counted from where a phase is
seen and over as long as an undisturbed one takes. ``points``: death before about ``COUNT`` of the operations that
change the folder (0: before each). The jobs are forked from a process that has imported everything.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from npmdask.core.checkpoint.store import RunStore
from tests.faults.crash_points import OPERATIONS, dies_before, forked
from tests.tensors.tensor_jobs import KINDS, make, work

OF_PROCESSES = ("lock", "lock.taking", "epoch", "telemetry.jsonl")  # differ from call to call
LONGEST = 600.0  # seconds that a job may take
SEEN = 0.003  # seconds between two looks at the phase
Found = dict[str, Any]


def started(job: Callable[[], None]) -> int:
    """The id of a process that leads a group of its own and does the job."""
    if pid := os.fork():
        os.setpgid(pid, pid)  # on both sides: whoever comes first, it is done before it matters
        return pid
    try:
        os.setpgid(0, 0)
        job()
        os._exit(0)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        os._exit(1)


def ended(pid: int) -> int | None:
    """Its exit status, None while it runs."""
    found, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if found else None


def phase(folder: Path) -> str:
    """What a job is at, told from what lies there."""
    run = folder / "run"
    if any(folder.glob("*.zarr.partial")):
        return "ingest"
    if (folder / "run.partial").exists():
        return "building"
    if not (run / "lock").exists() or (run / "zarr.json").exists():
        return "start or end"
    if not (run / "run.json").exists():
        return "prepare"
    for stage in ("decomposition", "whitening", "covariance"):
        if (run / stage / "run.json").exists() and not (run / stage / "result").exists():
            return stage
    answered = (run / "result").exists() or (run / "quality").exists()
    return "quality" if (run / "topics").exists() and not answered else "start or end" if answered else "passes"


def watched(folder: Path, job: Callable[[], None]) -> dict[str, float]:
    """Seconds of each phase of an undisturbed job."""
    pid, spent, before = started(job), Counter[str](), time.perf_counter()
    while (status := ended(pid)) is None:
        time.sleep(SEEN)
        now = time.perf_counter()
        spent[phase(folder)] += now - before
        before = now
    assert status == 0
    return {name: seconds for name, seconds in spent.items() if name != "start or end"}


def kept(folder: Path) -> dict[str, bytes]:
    """Every file that is a function of the data and what was asked for."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name not in OF_PROCESSES and not path.name.endswith(".lock"):
            data, named = path.read_bytes().replace(bytes(folder), b""), bytes(folder) in path.read_bytes()
            if path.name == "manifest.json" and named:
                data = data.rpartition(b', "crc32c": ')[0]  # without its checksum, which is of the name too
            if path.name == "run.json":
                data = json.dumps(json.loads(data) | {"resources": None}).encode()  # threads are varied
            found[str(path.relative_to(folder))] = data
    return found


def differences(whole: dict[str, bytes], folder: Path) -> list[str]:
    """Names of files that are not as the undisturbed job left them."""
    other = kept(folder)
    return sorted(name for name in whole.keys() | other.keys() if whole.get(name) != other.get(name))


def done_twice(folder: Path) -> int:
    """How often a pass was begun again; a pass that comes back after a later one was begun makes it a thousand more."""
    again = 0
    for log in folder.rglob("telemetry.jsonl"):
        labels = [event["label"] for event in RunStore(log.parent).telemetry() if event["event"] == "pass"]
        blocks = [label for i, label in enumerate(labels) if not i or label != labels[i - 1]]
        again += len(labels) - len(blocks) + 1000 * (len(blocks) - len(set(blocks)))
    return again


def with_kills(folder: Path, kind: str, rng: random.Random, aims: dict[str, float], left: list[str]) -> Found:
    """Do the job in ``folder``, killed in every phase that is ``left`` (they are taken off), and then to its end.

    A kill that comes when all phases are over takes nothing off.
    """
    during = Counter[str]()
    while True:
        threads = rng.choice([1, 2, 3])
        pid = started(lambda threads=threads: work(kind, folder, threads))
        status, aim = None, left[0] if left else ""
        deadline = time.perf_counter() + LONGEST
        while aim and status is None and phase(folder) != aim:
            time.sleep(SEEN)
            status = ended(pid)
        until = time.perf_counter() + (rng.uniform(0, 0.9 * aims[aim]) if aim else LONGEST)
        while status is None and time.perf_counter() < until:
            time.sleep(SEEN)
            status = ended(pid)
        if status is None:
            assert time.perf_counter() < deadline or aim, "the job does not end"
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            met = phase(folder)
            during[met] += 1
            if met != "start or end":
                left.pop(0)
        elif status == 0:
            return {"during": during, "violations": []}
        else:
            return {"during": during, "violations": [f"exit status {status} after kills during {dict(during)}"]}


def random_kills(kind: str, place: Path, kills: int, seed: int) -> Found:
    """``kills`` of one kind of job, folder after folder."""
    rng, whole, tries, share = random.Random(seed), place / "whole", 0, 1.0
    during, violations = Counter[str](), list[str]()
    whole.mkdir(parents=True)
    make(kind, whole)
    data = place / "data"
    shutil.copytree(whole, data, symlinks=True)
    aims = watched(whole, lambda: work(kind, whole, 1))
    longest = max(aims, key=lambda name: aims[name])  # first: most kills would come there
    same, names = kept(whole), [longest, *rng.sample(sorted(aims.keys() - {longest}), len(aims) - 1)]
    left = [names[i % len(names)] for i in range(kills)]
    while left and tries < 8 * kills:
        folder, tries = place / f"job{tries}", tries + 1
        shutil.copytree(data, folder, copy_function=shutil.copy2)  # times are part of what a source is known by
        mine = [left.pop(0) for _ in range(min(4, len(left)))]
        found = with_kills(folder, kind, rng, {name: share * seconds for name, seconds in aims.items()}, mine)
        if mine:  # some came too late: the machine was slower when it was watched, or a phase is too short for it
            left += mine if tries < 2 * kills else [longest] * len(mine)
            share /= 2
        count = sum(found["during"].values())
        when = f"after kills during {dict(found['during'])}"
        violations += [f"{name} differs {when}" for name in differences(same, folder)]
        violations += found["violations"]
        again = done_twice(folder)
        violations += [f"{again} passes again {when}"] if again > count else []
        during += found["during"]
        shutil.rmtree(folder)
    return {"during": during, "violations": violations, "seconds": aims}


def operations(kind: str, folder: Path) -> int:
    """How many changes of its folder a job makes."""
    log = folder / "counted"

    def job() -> None:
        count = 0

        def hook(event: str, args: tuple[Any, ...]) -> None:
            nonlocal count
            named = args and str(args[0]).startswith(str(folder))
            changes = event in OPERATIONS and (named or event in ("os.remove", "os.rmdir"))
            count += changes or (event == "open" and bool(named) and bool(args[2] & (os.O_WRONLY | os.O_RDWR)))

        sys.addaudithook(hook)
        work(kind, folder, 1)
        found = count
        log.write_text(str(found))

    assert forked(job) == 0
    found = int(log.read_text())
    log.unlink()
    return found


def crash_points(kind: str, place: Path, count: int, seed: int) -> Found:
    """Death before operations that are evenly spread, from one that the seed chooses."""
    whole, data, violations = place / "whole", place / "data", list[str]()
    whole.mkdir(parents=True)
    make(kind, whole)
    shutil.copytree(whole, data)
    points = operations(kind, whole)
    same, stride = kept(whole), max(1, points // count) if count else 1
    tried = list(range(seed % stride, points, stride))
    for point in tried:
        folder = place / "job"
        shutil.copytree(data, folder)
        code = forked(lambda point=point, folder=folder: (dies_before(point, folder), work(kind, folder, 1)))
        if code != -signal.SIGKILL:
            violations.append(f"point {point} of {points}: exit status {code}")
        elif forked(lambda folder=folder: work(kind, folder, 2)):
            violations.append(f"point {point} of {points}: it does not go on")
        else:
            violations += [f"point {point} of {points}: {name} differs" for name in differences(same, folder)]
            again = done_twice(folder)
            violations += [f"point {point} of {points}: {again} passes again"] if again > 1 else []
        shutil.rmtree(folder)
    return {"points": points, "tried": len(tried), "violations": violations}


def main(how: str, count: int, seed: int, folder: Path, kinds: list[str]) -> None:
    run = {"random": random_kills, "points": crash_points}[how]
    found = {kind: run(kind, folder / kind, count, seed) for kind in kinds or KINDS}
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]), sys.argv[5:])
