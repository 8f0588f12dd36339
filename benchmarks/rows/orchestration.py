"""What Prefect costs a run of 100 steps: by ``python -m flows.npm`` and by a worker, beyond the command line.

The server is running in both; a flow also plans and writes its report, which is counted as its cost. Seconds in all are
those of a clock, so that a machine with other work shows more of them; CPU seconds (of all processes of the run, not of
server and worker) are beside them.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage

import numpy as np
import psutil

from benchmarks.children import ChildFailedError, last_json, started
from benchmarks.registry import Context, Measured, Row
from npmdask.config import load_config
from npmdask.core.checkpoint.store import RunStore
from npmdask.formats.ingest import ingest
from npmdask.prefect.programs import AUTH, read_auth_string
from npmdask.prefect.server import ask

STEPS, IN_ALL, A_STEP = 100, 5.0, 0.020  # seconds that it may take
ROWS_OF_DATA, COLUMNS = 4096, 256
PATIENCE = 180.0
CONFIG = f"""
[source]
path = "a.zarr"
kind = "samples"
[algorithm]
name = "power"
target_rank = 5
iteration_rank = 5
max_steps = {STEPS}
[stop]
tol = 1e-13
"""
SCHEDULE = '[[schedule]]\nname = "worked"\nflow = "npm"\nconfig = "a.toml"\ncron = "0 0 1 1 *"\npaused = true\n'

PLAIN = "npmdask run"
WORKERS = (
    "a worker of Prefect 3.8 looks for runs every 2 s and starts two processes one after the other (a supervisor, then "
    "the flow), each of which imports Prefect"
)
PARTS = ("in_all", "a_step", "cpu")  # of a Cost, in seconds

Cost = dict[str, float]


def measure(by_worker: bool, context: Context) -> Measured:
    """Alternating rounds beside one server; what the flow takes beyond the command line in the same round."""
    folder = context.folder
    rng = np.random.default_rng(0)
    np.save(folder / "a.npy", rng.standard_normal((ROWS_OF_DATA, COLUMNS)))  # a flat spectrum: nothing converges
    ingest(folder / "a.npy", folder / "a.zarr", kind="samples", chunks=(512, COLUMNS))
    (folder / "a.toml").write_text(CONFIG)
    (folder / "schedules.toml").write_text(SCHEDULE)
    with _served(folder) as server:
        flow = partial(_by_worker, api=server) if by_worker else partial(_by_process, "flows.npm", api=server)
        ways: dict[str, Callable[[Path], Cost]] = {PLAIN: partial(_by_process, "npmdask.cli.main", "run"), "flow": flow}
        rounds = [_round(ways, folder, number) for number in range(context.rounds + 1)][1:]  # one to warm up
    return _measured(rounds, WORKERS if by_worker else "")


def _round(ways: dict[str, Callable[[Path], Cost]], folder: Path, number: int) -> dict[str, Cost]:
    names = list(ways)[:: -1 if number % 2 else 1]
    return {name: ways[name](folder / "stores" / f"{name.split()[-1]}-{number}") for name in names}


def _measured(rounds: list[dict[str, Cost]], why: str) -> Measured:
    beyond = {part: statistics.median(r["flow"][part] - r[PLAIN][part] for r in rounds) for part in PARTS}
    ratio = statistics.median(r["flow"]["in_all"] / r[PLAIN]["in_all"] for r in rounds)
    details = {
        "steps": STEPS,
        "seconds_beyond_the_command_line": {part: round(value, 4) for part, value in beyond.items()},
        "of_them_constant": round(beyond["in_all"] - STEPS * beyond["a_step"], 2),
        "times_the_command_line": round(ratio, 2),
        "rounds": [{way: {part: round(cost[part], 4) for part in PARTS} for way, cost in r.items()} for r in rounds],
    }
    said = f"{beyond['in_all']:.1f} s in all ({beyond['cpu']:.1f} of CPU), {1e3 * beyond['a_step']:.1f} ms a step"
    said += f"; {why}" if why else ""
    return Measured(max(beyond["in_all"] / IN_ALL, beyond["a_step"] / A_STEP), details, said)


def _by_process(*arguments: str | Path, api: str | None = None) -> Cost:
    """A process from its start to its end; the last argument is its store, ``api`` the server that it is to use."""
    *module, store = arguments
    store, before = Path(store), _cpu_of_children()
    folder = store.parents[1]
    command = [sys.executable, "-m", *map(str, module), str(folder / "a.toml"), "--store", str(store), "--json"]
    start = time.perf_counter()
    last_json(command if api is None else ["env", f"PREFECT_API_URL={api}", *command], folder=folder)
    seconds = time.perf_counter() - start
    return {"in_all": seconds, "a_step": _step_seconds(store), "cpu": _cpu_of_children() - before}


def _cpu_of_children() -> float:
    """Of those that have ended."""
    found = getrusage(RUSAGE_CHILDREN)
    return found.ru_utime + found.ru_stime


def _by_worker(store: Path, api: str) -> Cost:
    """A run of the deployment, from asking for it until its process has told how it ended."""
    folder = store.parents[1]
    services = json.loads((folder / "runs" / ".serve" / "services.json").read_text())["services"]
    worker = psutil.Process(services["worker"]["pid"])
    before = worker.cpu_times()
    config = load_config(folder / "a.toml", store=str(store)).model_dump(mode="json")
    auth = read_auth_string(folder / "prefect" / AUTH)
    deployment = ask(api, "/deployments/name/npm/worked", auth=auth)
    start = time.perf_counter()
    query = {"parameters": {"config": config, "run_id": store.name}}
    made = ask(api, f"/deployments/{deployment['id']}/create_flow_run", query, auth=auth)
    while (state := ask(api, f"/flow_runs/{made['id']}", auth=auth)["state"]["type"]) not in ("COMPLETED", "FAILED"):
        if state in ("CRASHED", "CANCELLED") or time.perf_counter() - start > PATIENCE:
            raise ChildFailedError(f"the run of the worker is {state}")
        time.sleep(0.05)
    seconds = time.perf_counter() - start
    while worker.children():  # they count once they have ended
        time.sleep(0.05)
    after = worker.cpu_times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return {"in_all": seconds, "a_step": _step_seconds(store), "cpu": cpu}


def _step_seconds(store: Path) -> float:
    """From the beginning of one pass to that of the next, over all steps."""
    begun = [line["time"] for line in RunStore(store).telemetry() if line["event"] == "pass"]
    if len(begun) != STEPS:
        raise ChildFailedError(f"{len(begun)} steps in {store.name} instead of {STEPS}")
    return float(begun[-1] - begun[0]) / (STEPS - 1)


@contextmanager
def _served(folder: Path) -> Iterator[str]:
    """``npmdask serve`` on a new database, with a schedule that never fires; the address of its API."""
    command = [sys.executable, "-m", "npmdask.prefect.serve", "schedules.toml"]
    with open(folder / "served", "w+b") as said:
        with started(command, folder=folder, said=said) as child:
            end = time.monotonic() + PATIENCE
            while " ready after " not in (text := (folder / "served").read_text()):
                if child.poll() is not None or time.monotonic() > end:
                    raise ChildFailedError(f"npmdask serve: {text.strip()[-300:]}")
                time.sleep(0.1)
            yield text.split("Prefect at ")[1].split(",")[0] + "/api"


TARGET = f"beyond `npmdask run`: the larger of seconds / {IN_ALL:g} and milliseconds a step / {1e3 * A_STEP:g}"
ROWS = (
    Row(
        name="orchestration",
        what=f"a flow of {STEPS} steps by `python -m flows.npm`, {TARGET}",
        target=1.0,
        better="lower",
        run=partial(measure, False),
    ),
    Row(
        name="orchestration-worker",
        what="the same by the worker of `npmdask serve`",
        target=1.0,
        better="lower",
        run=partial(measure, True),
    ),
)
