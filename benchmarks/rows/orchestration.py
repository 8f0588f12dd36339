"""What Prefect costs a run: 100 steps by the command line, by ``python -m flows.npm``, and by a worker of a server."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np

from benchmarks.children import ChildFailedError, last_json, started
from benchmarks.registry import Context, Measured, Row
from npmdask.checkpoint import RunStore
from npmdask.config import load_config
from npmdask.storage.ingest import ingest

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

Cost = dict[str, float]  # seconds in all, and a step


def measure(context: Context) -> Measured:
    """Alternating rounds beside one standing server; a flow's cost is that beyond the command line's in its round."""
    folder = context.folder
    rng = np.random.default_rng(0)
    np.save(folder / "a.npy", rng.standard_normal((ROWS_OF_DATA, COLUMNS)))  # a flat spectrum: nothing converges
    ingest(folder / "a.npy", folder / "a.zarr", kind="samples", chunks=(512, COLUMNS))
    (folder / "a.toml").write_text(CONFIG)
    (folder / "schedules.toml").write_text(SCHEDULE)
    with _served(folder) as server:
        ways: dict[str, Callable[[Path], Cost]] = {
            "npmdask run": lambda store: _by_process(store, "npmdask.cli", "run"),
            "python -m flows.npm": lambda store: _by_process(store, "flows.npm", api=server),
            "worker": lambda store: _by_worker(store, server),
        }
        rounds = [_round(ways, folder, number) for number in range(context.rounds + 1)][1:]  # one to warm up
    return _measured(rounds)


def _round(ways: dict[str, Callable[[Path], Cost]], folder: Path, number: int) -> dict[str, Cost]:
    names = list(ways)[:: -1 if number % 2 else 1]
    return {name: ways[name](folder / "stores" / f"{name.split()[-1]}-{number}") for name in names}


def _measured(rounds: list[dict[str, Cost]]) -> Measured:
    plain = "npmdask run"
    beyond = {
        way: {part: statistics.median(r[way][part] - r[plain][part] for r in rounds) for part in ("in_all", "a_step")}
        for way in rounds[0]
        if way != plain
    }
    figure = max(max(cost["in_all"] / IN_ALL, cost["a_step"] / A_STEP) for cost in beyond.values())
    said = [
        f"{way}: {1e3 * cost['a_step']:.1f} ms a step, {cost['in_all']:.1f} s in all" for way, cost in beyond.items()
    ]
    details = {
        "steps": STEPS,
        "beyond_the_command_line_seconds": {
            way: {name: round(value, 4) for name, value in cost.items()} for way, cost in beyond.items()
        },
        "constant_seconds": {way: round(c["in_all"] - STEPS * c["a_step"], 2) for way, c in beyond.items()},
        "times_the_command_line": {
            way: round(statistics.median(r[way]["in_all"] / r[plain]["in_all"] for r in rounds), 2) for way in beyond
        },
        "rounds": [{way: {k: round(v, 4) for k, v in cost.items()} for way, cost in r.items()} for r in rounds],
    }
    return Measured(figure, details, "; ".join(said))


def _by_process(store: Path, *arguments: str, api: str | None = None) -> Cost:
    """A process from its start to its end; ``api``: of the server that it is to use."""
    folder = store.parents[1]
    command = [sys.executable, "-m", *arguments, str(folder / "a.toml"), "--store", str(store), "--json"]
    start = time.perf_counter()
    last_json(command if api is None else ["env", f"PREFECT_API_URL={api}", *command], folder=folder)
    return {"in_all": time.perf_counter() - start, "a_step": _step_seconds(store)}


def _by_worker(store: Path, api: str) -> Cost:
    """A run of the deployment, from asking for it until its process has told how it ended."""
    config = load_config(store.parents[1] / "a.toml", store=str(store)).model_dump(mode="json")
    deployment = _asked(f"{api}/deployments/name/npm/worked")
    start = time.perf_counter()
    query = {"parameters": {"config": config, "run_id": store.name}}
    made = _asked(f"{api}/deployments/{deployment['id']}/create_flow_run", query)
    while (state := _asked(f"{api}/flow_runs/{made['id']}")["state"]["type"]) not in ("COMPLETED", "FAILED"):
        if state in ("CRASHED", "CANCELLED") or time.perf_counter() - start > PATIENCE:
            raise ChildFailedError(f"the run of the worker is {state}")
        time.sleep(0.05)
    return {"in_all": time.perf_counter() - start, "a_step": _step_seconds(store)}


def _step_seconds(store: Path) -> float:
    """From the beginning of one pass to that of the next, over all steps."""
    begun = [line["time"] for line in RunStore(store).telemetry() if line["event"] == "pass"]
    if len(begun) != STEPS:
        raise ChildFailedError(f"{len(begun)} steps in {store.name} instead of {STEPS}")
    return float(begun[-1] - begun[0]) / (STEPS - 1)


@contextmanager
def _served(folder: Path) -> Iterator[str]:
    """``npmdask serve`` on a new database, with a schedule that never fires; the address of its API."""
    with open(folder / "served", "w+b") as said:
        with started([sys.executable, "-m", "flows.serve", "schedules.toml"], folder=folder, said=said) as child:
            end = time.monotonic() + PATIENCE
            while " ready after " not in (text := (folder / "served").read_text()):
                if child.poll() is not None or time.monotonic() > end:
                    raise ChildFailedError(f"npmdask serve: {text.strip()[-300:]}")
                time.sleep(0.1)
            yield text.split("Prefect at ")[1].split(",")[0] + "/api"


def _asked(url: str, query: dict[str, Any] | None = None) -> dict[str, Any]:
    body = None if query is None else json.dumps(query).encode()
    with urlopen(Request(url, body, {"Content-Type": "application/json"}), timeout=30) as answer:
        return dict(json.load(answer))


ROWS = (
    Row(
        name="orchestration",
        what=f"a run of {STEPS} steps through Prefect (server running) over the same by `npmdask run`: the larger of "
        f"seconds in all over {IN_ALL:g} and of milliseconds a step over {1e3 * A_STEP:g}, worse of flow and worker",
        target=1.0,
        better="lower",
        run=measure,
    ),
)
