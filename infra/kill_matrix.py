"""Kill each part of a cluster in each phase of a private release: ``python -m infra.kill_matrix`` writes the table.

The topology of :mod:`infra.local_cluster` (real processes, PostgreSQL, object store, Dask) runs one private release of
data in the object store for each cell. The process of the flow is held at the phase
(:mod:`infra.holding.sitecustomize`), the victim gets SIGKILL, the hold is lifted, and there is no help. Two rows kill
nothing: in ``adaptive`` the scheduler retires a worker, as adaptive scaling does, and another one comes; in
``partition`` the connection of the flow to the scheduler is cut for some seconds. A cell holds if the flow run ends as
completed by itself, the store of the run has the bits of an undisturbed one, and the ledger was charged once, with
each release made once.
"""

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from typing import Any
from urllib.error import URLError

import psutil
from distributed import Client

from infra.local_cluster import LocalCluster
from infra.proxy import Proxy
from npmdask.accounting import Budget
from npmdask.ledger import open_ledger
from npmdask.ledger.granting import grant_source
from npmdask.prefect.programs import say
from npmdask.prefect.server import ask
from npmdask.synthetic import generate

PHASES = ("validate", "mid-pass", "commit", "release", "report")
KILLED = ("flow", "worker", "prefect-server", "postgres", "dask-scheduler", "dask-worker-1", "object-store")
VICTIMS = (
    *KILLED,
    "adaptive",
    "partition",
)  # a Dask worker leaves and another comes; the scheduler is cut off
AWAY = 5.0  # seconds of a partition
PATIENCE = 420.0  # seconds for one cell
HOLDING = Path(__file__).resolve().parent / "holding"
DATA = "s3://npmdask/samples.zarr"
CONFIG = """
[source]
path = "{data}"
[algorithm]
target_rank = 3
max_steps = 4
[privacy]
epsilon = 1.0
delta = 1e-8
neighboring_relation = "record_replace"
clip_norm = 4.0
dataset = "matrix"
[run]
cluster = "{scheduler}"
"""
SCHEDULES = """
[[schedule]]
name = "matrix"
flow = "private-release"
config = "matrix.toml"
cron = "0 0 1 1 *"
"""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What became of one kill; ``wrong`` is empty if it holds."""

    victim: str
    phase: str
    seconds: float
    starts: int
    wrong: str


class Matrix:
    """A cluster with data, a grant and a deployment, and the kills in it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.hold = folder, folder / "holding"
        self.hold.mkdir(parents=True)
        self.runs = folder / "runs"
        (folder / "schedules.toml").write_text(SCHEDULES)
        inherited = os.environ.get("PYTHONPATH", "")
        os.environ |= {
            "NPMDASK_HOLD": str(self.hold),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(HOLDING), inherited])),
        }
        self.cluster = LocalCluster(folder / "cluster", workers=2, schedules=folder / "schedules.toml", memory="1GiB")
        self.proxy = Proxy(int(self.cluster.place.scheduler.rpartition(":")[2]))
        (folder / "matrix.toml").write_text(CONFIG.format(data=DATA, scheduler=self.proxy.address))
        self.reference: dict[str, bytes] = {}

    def prepare(self) -> None:
        """Data, grant, and an undisturbed run to compare with."""
        objects = self.folder / "cluster" / "objects" / "npmdask" / "samples.zarr"
        generate(objects, problem="spectrum", kind="samples", rows=400_000, columns=128, rank=5, chunks=(10_000, 128))
        os.environ |= self.cluster.environment
        grant_source(
            open_ledger(os.environ["NPMDASK_LEDGER"]),
            "matrix",
            DATA,
            relation="record_replace",
            clip_norm=4.0,
            change=1.0,
            budget=Budget(1000.0, 1e-8),
        )
        undisturbed = self.cell("nobody", "report")
        if undisturbed.wrong not in ("", "other bits than undisturbed"):
            raise RuntimeError(f"the undisturbed run: {undisturbed.wrong}")
        self.reference = committed(self.runs / "nobody-report")

    def cell(self, victim: str, phase: str) -> Cell:
        """One kill."""
        self._wait_for_all()
        before = len(self._charges())
        name, began = f"{victim}-{phase}", time.monotonic()
        (self.hold / "at").unlink(missing_ok=True)
        (self.hold / "hold").write_text(phase)
        run_id = self._start(name)
        run = self._until(lambda run: (self.hold / "at").exists() or run["state_type"] in ENDED, run_id)
        if not (self.hold / "at").exists():
            return Cell(victim=victim, phase=phase, seconds=0, starts=0, wrong=f"never there: {run['state_name']}")
        if victim != "nobody":
            self._strike(victim)
        (self.hold / "hold").unlink(missing_ok=True)
        killed = time.monotonic()
        run = self._until(lambda run: run["state_type"] in ENDED, run_id)
        return Cell(
            victim=victim,
            phase=phase,
            seconds=time.monotonic() - killed if victim != "nobody" else time.monotonic() - began,
            starts=int(run["run_count"]),
            wrong=self._wrong(name, run, before),
        )

    def _strike(self, victim: str) -> None:
        if victim == "partition":
            self.proxy.cut()
            Timer(AWAY, self.proxy.join).start()
        elif victim == "adaptive":
            with Client(self.cluster.place.scheduler, set_as_default=False) as client:
                client.retire_workers([min(client.scheduler_info(n_workers=-1)["workers"])])
        else:
            pid = int((self.hold / "at").read_text()) if victim == "flow" else self.cluster.supervisor.pid(victim)
            os.kill(pid, signal.SIGKILL)

    def _wait_for_all(self) -> None:
        """Until what earlier cells have killed is there again: the supervisor pauses before what dies often."""
        deadline = time.monotonic() + PATIENCE
        while not all(psutil.pid_exists(self.cluster.supervisor.pid(name)) for name in self.cluster.ready_after):
            if time.monotonic() > deadline:
                raise RuntimeError(f"not all of it came back: see {self.folder / 'cluster'}")
            time.sleep(0.25)

    def _wrong(self, name: str, run: dict[str, Any], before: int) -> str:
        if run["state_type"] != "COMPLETED":
            return f"ended as {run['state_name']}: {(run['state'] or {}).get('message')}"
        if committed(self.runs / name) != self.reference:
            return "other bits than undisturbed"
        runs = self._charges()
        if len(runs) != before + 1:
            return f"the ledger has {len(runs) - before} charges for one release"
        mine = runs[-1]
        return "" if mine.finished and len(mine.committed) == mine.releases else "the ledger lacks releases"

    def _charges(self) -> Any:
        return open_ledger(os.environ["NPMDASK_LEDGER"]).status("matrix").runs

    def _start(self, name: str) -> str:
        found = self._api("deployments/filter", {"deployments": {"name": {"any_": ["matrix"]}}})[0]
        config = found["parameters"]["config"]
        config["run"]["store"] = str(self.runs / name)
        body = {"parameters": {"config": config, "run_id": name}, "state": {"type": "SCHEDULED"}}
        return str(self._api(f"deployments/{found['id']}/create_flow_run", body)["id"])

    def _until(self, true: Any, run_id: str) -> dict[str, Any]:
        deadline, run = time.monotonic() + PATIENCE, {"state_type": "", "state_name": "", "state": None, "run_count": 0}
        while time.monotonic() < deadline:
            with suppress(OSError, URLError, IndexError):
                run = self._api("flow_runs/filter", {"flow_runs": {"id": {"any_": [run_id]}}})[0]
            if true(run):
                break
            time.sleep(0.25)
        return run

    def _api(self, path: str, query: dict[str, Any]) -> Any:
        there = self.cluster.environment
        return ask(there["PREFECT_API_URL"], f"/{path}", query, auth=there["PREFECT_API_AUTH_STRING"])


ENDED = ("COMPLETED", "FAILED", "CANCELLED")


def committed(store: Path) -> dict[str, bytes]:
    """Every byte of a run that is a function of data, parameters and key."""
    parts = [store / "steps", store / "result"]
    return {str(f.relative_to(store)): f.read_bytes() for part in parts for f in sorted(part.rglob("*")) if f.is_file()}


def cells(folder: Path, victims: Sequence[str], phases: Sequence[str]) -> Iterator[Cell]:
    """All of the matrix, one after the other, in one cluster."""
    matrix = Matrix(folder)
    with matrix.cluster:
        matrix.prepare()
        for victim in victims:
            for phase in phases:
                yield matrix.cell(victim, phase)


def table(found: Sequence[Cell]) -> str:
    """The table, in Markdown."""
    phases = list(dict.fromkeys(cell.phase for cell in found))
    lines = ["| killed | " + " | ".join(phases) + " |", "|---" * (len(phases) + 1) + "|"]
    for victim in dict.fromkeys(cell.victim for cell in found):
        of = {cell.phase: cell for cell in found if cell.victim == victim}
        said = [
            f"{of[p].seconds:.0f} s, {of[p].starts} starts" if not of[p].wrong else f"**{of[p].wrong}**" for p in phases
        ]
        lines.append(f"| {victim} | " + " | ".join(said) + " |")
    good = sum(not cell.wrong for cell in found)
    return "\n".join([*lines, "", f"{good} of {len(found)} hold: completed by itself, same bits, charged once."])


def main(argv: Sequence[str] | None = None) -> int:
    """0 if every cell holds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--victims", nargs="+", choices=VICTIMS, default=VICTIMS)
    parser.add_argument("--phases", nargs="+", choices=PHASES, default=PHASES)
    parser.add_argument("--keep", type=Path, help="a file for the table")
    a = parser.parse_args(argv)
    folder = Path(tempfile.mkdtemp(prefix="npmdask-matrix-"))
    folder.chmod(0o711)  # for root, PostgreSQL runs as nobody
    found: list[Cell] = []
    try:
        for cell in cells(folder, a.victims, a.phases):
            found.append(cell)
            say(f"{cell.victim} at {cell.phase}: {cell.wrong or 'holds'}, {cell.seconds:.0f} s, {cell.starts} starts")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(table(found))
    if a.keep:
        a.keep.write_text(table(found) + "\n")
    return 0 if all(not cell.wrong for cell in found) else 1


if __name__ == "__main__":
    sys.exit(main())
