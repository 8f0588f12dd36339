"""A schedule every 20 seconds, a random kill every minute: is a tick lost, doubled or stuck? ``python -m infra.soak``

``npmdask serve`` follows a folder into which a file comes every 20 seconds (the flow streaming-update). Every minute
one of these is killed with SIGKILL, at random, once it is there: a process of a flow, the worker, the keeper, the
server, the flow and its worker at once, everything (and started again). At the end nothing is killed any more, and then
must hold

* lost or doubled: the model holds every row once (with p = d and nothing forgotten it is the exact sum of x x^T);
* stuck: no flow run is left that is running, waiting or crashed; and none has failed.

Written into a folder that is made for it and deleted at the end.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from npmdask.core.checkpoint.store import RunStore
from npmdask.prefect.programs import AUTH, read_auth_string
from npmdask.prefect.server import ask, free_port, python_path

D, ROWS = 6, 200
TICK, KILL, CALM = 20.0, 60.0, 240.0  # seconds: between files, between kills, to come to rest at the end
VICTIMS = ("flow", "worker", "keeper", "prefect-server", "machine", "everything")
STREAM = f"""
[source]
path = "days"
[algorithm]
name = "spm"
target_rank = 2
iteration_rank = {D}
options = {{ block_rows = 10, memory = 1.0 }}
[stream]
columns = {D}
batch_rows = 50
[run]
commit_seconds = 0.0
"""
SCHEDULES = """
[[schedule]]
name = "days"
flow = "streaming-update"
config = "days.toml"
every = {every:g}
"""
ENDED = ("COMPLETED", "CANCELLED", "FAILED")


@dataclass
class Soak:
    """One soak in ``folder``; what it saw is in the counters."""

    folder: Path
    seed: int
    port: int = field(default_factory=free_port)
    rows: list[np.ndarray] = field(default_factory=list)
    killed: Counter[str] = field(default_factory=Counter)
    process: "subprocess.Popen[bytes] | None" = None

    def start(self) -> None:
        """Start ``npmdask serve``."""
        env = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
        env |= {"PREFECT_HOME": str(self.folder / "prefect"), "PYTHONPATH": python_path()}
        with open(self.folder / "serve.log", "ab") as log:
            command = (sys.executable, "-m", "npmdask.prefect.serve", "schedules.toml", "--port", str(self.port))
            self.process = subprocess.Popen(
                command, cwd=self.folder, env=env, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )

    def stop(self) -> None:
        """Ask it to end, and see that it does."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(240)

    def put(self) -> None:
        """A file of rows, written under a hidden name."""
        rows = np.random.default_rng([self.seed, len(self.rows)]).standard_normal((ROWS, D))
        hidden = self.folder / "days" / f".{len(self.rows):06d}.npy"
        np.save(hidden, rows)
        os.replace(hidden, hidden.with_name(hidden.name[1:]))
        self.rows.append(rows)

    def kill(self, victim: str) -> bool:
        """SIGKILL to one of VICTIMS; whether it was there."""
        assert self.process is not None
        pids = self._pids(victim)
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.killed[victim] += bool(pids)
        if victim == "everything":
            self.process.wait()
            self.start()
        return bool(pids)

    def _pids(self, victim: str) -> list[int]:
        assert self.process is not None
        if victim == "everything":
            return [self.process.pid]  # the kernel takes the rest along
        try:
            services = json.loads((self.folder / "runs" / ".serve" / "services.json").read_text())["services"]
            worker = psutil.Process(services["worker"]["pid"])
            flows = [child.pid for child in worker.children() if "prefect" in " ".join(child.cmdline())]
        except (OSError, KeyError, psutil.Error):
            return []
        if victim == "flow":
            return flows
        return [worker.pid, *flows] if victim == "machine" else [services[victim]["pid"]]

    def flow_runs(self) -> list[dict[str, Any]]:
        """All runs whose time has come."""
        found: list[dict[str, Any]] = []
        while True:
            query = {"sort": "EXPECTED_START_TIME_ASC", "limit": 200, "offset": len(found)}
            auth = read_auth_string(self.folder / "prefect" / AUTH)
            page = ask(f"http://127.0.0.1:{self.port}/api", "/flow_runs/filter", query, auth=auth)
            found += page
            if len(page) < 200:
                return [run for run in found if run["state_type"] != "SCHEDULED" or run["state_name"] != "Scheduled"]

    def taken(self) -> int:
        """Rows in the model."""
        last = RunStore(self.folder / "runs" / "days").last_step()
        return 0 if last is None else int(last[1]["state"]["rows"])

    def sums_are_exact(self) -> bool:
        """Whether the model is the sum over all rows, each once."""
        last = RunStore(self.folder / "runs" / "days").last_step()
        assert last is not None
        arrays, rows = last[0], np.concatenate(self.rows)
        sums = arrays["inner_basis"] @ arrays["inner_core"] @ arrays["inner_basis"].T
        return bool(np.allclose(sums, rows.T @ rows, rtol=0, atol=1e-11 * len(rows)))


def soak(folder: Path, seconds: float, seed: int) -> dict[str, Any]:
    """Run it; the figures by name, ``failures`` among them."""
    (folder / "days").mkdir(parents=True)
    (folder / "days.toml").write_text(STREAM)
    (folder / "schedules.toml").write_text(SCHEDULES.format(every=TICK))
    one, chosen = Soak(folder, seed), random.Random(seed)
    one.start()
    try:
        one.put()
        _wait_for_rows(one)
        began = last_file = time.monotonic()
        next_kill = began + KILL
        # Where no run came about in time, on a busy machine, until the first one is killed.
        while (now := time.monotonic()) < began + seconds + (0 if one.killed.total() else CALM):
            if now >= last_file + TICK:
                one.put()
                last_file += TICK
            if now >= next_kill:
                victim = chosen.choice(VICTIMS)
                there = one.kill(victim)
                said = f"{'killed' if there else 'no'} {victim}; {one.taken()} of {ROWS * len(one.rows)} rows"
                print(f"{now - began:6.0f} s  {said}", flush=True)
                next_kill = now + (KILL if there else chosen.uniform(0.0, TICK / 4))  # at any instant of what comes
            time.sleep(0.2)
        return _figures(one, time.monotonic() - began)
    finally:
        one.stop()


def _wait_for_rows(one: Soak) -> None:
    """Until the first run has taken some: how long everything takes to start differs from machine to machine."""
    deadline = time.monotonic() + CALM
    while not one.taken() and time.monotonic() < deadline:
        time.sleep(0.2)


def _figures(one: Soak, seconds: float) -> dict[str, Any]:
    wanted, deadline = ROWS * len(one.rows), time.monotonic() + CALM
    stuck: list[str] = ["not asked yet"]
    runs: list[dict[str, Any]] = []
    while time.monotonic() < deadline and (stuck or one.taken() != wanted or not _completed(runs)):
        time.sleep(0.5)
        with suppress(OSError):
            runs = one.flow_runs()
            old = [run for run in runs if run["state_type"] not in ENDED]
            stuck = [f"{run['name']} {run['state_name']}" for run in old[:-1]]  # the tick of this moment may be there
    failures = [f"stuck: {name}" for name in stuck]
    failed = [f"{run['name']}: {(run['state'] or {}).get('message')}" for run in runs if run["state_type"] == "FAILED"]
    failures += [f"failed: {said[:300]}" for said in failed]
    failures += [f"{one.taken()} of {wanted} rows were taken"] if one.taken() != wanted else []
    failures += [] if _completed(runs) else ["no run completed"]
    failures += [] if one.sums_are_exact() else ["the sum over all rows is wrong: one was lost or taken twice"]
    return {
        "seconds": round(seconds),
        "files": len(one.rows),
        "rows": one.taken(),
        "flow_runs": dict(Counter(run["state_name"] for run in runs)),
        "started_again": sum(max(run["run_count"] - 1, 0) for run in runs),
        "killed": dict(+one.killed),
        "failures": failures,
    }


def _completed(runs: list[dict[str, Any]]) -> bool:
    return any(run["state_type"] == "COMPLETED" for run in runs)


def main(argv: Sequence[str] | None = None) -> int:
    """0 if nothing was lost, doubled or stuck."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    a = parser.parse_args(argv)
    folder = Path(tempfile.mkdtemp(prefix="npmdask-soak-"))
    try:
        figures = soak(folder, 60 * a.minutes, a.seed)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(figures, indent=1))
    return 1 if figures["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
