"""What Prefect does when a flow, its worker or the server goes away (docs/decisions/0060-prefect-by-itself.md).

``python -m benchmarks.prefect_alone [--cases ...] [--columns ...] [--seconds 180] [--jobs 4]`` starts for
each case a server, a process work pool and a worker of Prefect's on 127.0.0.1, and a deployed flow that writes a line
every half second and has retries. Nothing of npmdask is in them. With ``automations`` flows beat every 30 s, one
automation (Prefect's page on zombie flows) calls a run crashed that was silent for 75 s, a second schedules it again.

A worker or server that has ended is started again at once, as by a service manager. Seconds are counted from the kill
or signal; every case is watched for all of ``--seconds``. "Goes on" is the end of the longest time without a line.

================  ==========================================================================
``flow``          the process of the flow is killed
``worker``        the worker is killed, the flow is not
``terminated``    the worker is ended by SIGTERM
``both``          worker and flow are killed
``taking``        worker and flow are killed when the run is Pending, before it is Running
``stopped``       the flow is stopped, and continued after two thirds of the time
``server``        the server is ended by SIGTERM
``killed-after``  the same, and the flow is killed 20 s after the new server answers
``killed-late``   the same, of a run that is more than five minutes old
================  ==========================================================================
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from subprocess import Popen, TimeoutExpired
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import psutil

from benchmarks.children import started
from npmdask.prefect.server import answers, free_port

CASES = ("flow", "worker", "terminated", "both", "taking", "stopped", "server", "killed-after", "killed-late")
COLUMNS = ("alone", "automations")
OVER = threading.Event()  # the program is being ended: every case cleans up
PAUSE = 2.0  # seconds without a line: then the work had stopped
PROGRAM = """
import os, sys, time
from datetime import timedelta
from pathlib import Path

from prefect import flow
from prefect.automations import Automation
from prefect.deployments import run_deployment
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import EventTrigger, Posture

HERE = Path(__file__).parent


@flow(retries=3)
def count():
    while True:
        with open(HERE / "counted", "a") as file:
            file.write(f"{time.time()} {os.getpid()}\\n")
        time.sleep(0.5)


def when(name, state, **trigger):
    runs = {"prefect.resource.id": ["prefect.flow-run.*"]}
    trigger = EventTrigger(match=runs, for_each={"prefect.resource.id"}, threshold=1, **trigger)
    Automation(name=name, trigger=trigger, actions=[ChangeFlowRunState(state=state)]).create()


if __name__ == "__main__":
    if sys.argv[1] == "automations":
        beat, ends = "prefect.flow-run.heartbeat", ("Completed", "Failed", "Cancelled", "Crashed")
        expected = {beat} | {f"prefect.flow-run.{end}" for end in ends}
        silent = timedelta(seconds=75)
        when("silent", "CRASHED", after={beat}, expect=expected, posture=Posture.Proactive, within=silent)
        when("crashed", "SCHEDULED", expect={"prefect.flow-run.Crashed"}, posture=Posture.Reactive, within=timedelta(0))
    count.from_source(str(HERE), f"{Path(__file__).name}:count").deploy("here", work_pool_name="mine", build=False)
    Path(HERE / "run").write_text(str(run_deployment("count/here", timeout=0).id))
"""


class Machine:
    """A server, a worker and a run of the flow, in a folder of their own."""

    def __init__(self, folder: Path, stack: ExitStack, column: str) -> None:
        self.folder, self.stack, self.port = folder, stack, free_port()
        (folder / "prefect").mkdir()
        (folder / "counting.py").write_text(PROGRAM)
        beat = "PREFECT_FLOWS_HEARTBEAT_FREQUENCY = 30\n" if column == "automations" else ""
        (folder / "prefect" / "profiles.toml").write_text(
            f'active = "mine"\n[profiles.mine]\nPREFECT_API_URL = "http://127.0.0.1:{self.port}/api"\n{beat}'
            "PREFECT_SERVER_ANALYTICS_ENABLED = false\nPREFECT_UI_ENABLED = false\n"
        )
        stack.callback(self.clean)
        self.server = self.serve()
        self.finish("-m", "prefect", "work-pool", "create", "mine", "--type", "process")
        self.worker = self.work()
        self.finish("counting.py", column)
        self.run = (folder / "run").read_text()

    def start(self, *arguments: str) -> Popen[bytes]:
        said = self.stack.enter_context(open(self.folder / "said", "ab"))
        return self.stack.enter_context(started([sys.executable, *arguments], folder=self.folder, said=said))

    def finish(self, *arguments: str) -> None:
        if self.start(*arguments).wait(300):
            raise RuntimeError((self.folder / "said").read_text(errors="replace")[-2000:])

    def serve(self) -> Popen[bytes]:
        child = self.start("-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(self.port))
        until(lambda: answers(f"http://127.0.0.1:{self.port}/api"), "a server")
        return child

    def work(self) -> Popen[bytes]:
        return self.start("-m", "prefect", "worker", "start", "--pool", "mine", "--name", "here")

    def ask(self, path: str) -> Any:
        """What the API answers; None where it does not."""
        with suppress(URLError, OSError), urlopen(f"http://127.0.0.1:{self.port}/api{path}", timeout=30) as answer:
            return json.loads(answer.read())

    def is_pending(self) -> bool:
        return (self.ask(f"/flow_runs/{self.run}") or {}).get("state_type") == "PENDING"

    def states(self) -> list[tuple[float, str]]:
        """When the run came into which state."""
        until(lambda: self.ask("/health"), "the API")
        found = self.ask(f"/flow_run_states/?flow_run_id={self.run}")
        return sorted((datetime.fromisoformat(one["timestamp"]).timestamp(), one["name"]) for one in found)

    def lines(self) -> list[tuple[float, int]]:
        """When which process wrote a line."""
        with suppress(FileNotFoundError):
            text = (self.folder / "counted").read_text().rpartition("\n")[0]
            return [(float(line.split()[0]), int(line.split()[1])) for line in text.splitlines()]
        return []

    def of_flow(self) -> list[psutil.Process]:
        """Every process below the worker."""
        return psutil.Process(self.worker.pid).children(recursive=True)

    def clean(self) -> None:
        """End what no one above will: processes of flows whose worker is gone."""
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get("PREFECT_HOME") == str(self.folder / "prefect"):
                    process.kill()


def pause(seconds: float) -> None:
    if OVER.wait(seconds):
        raise KeyboardInterrupt


def until(true: Callable[[], Any], what: str, seconds: float = 600) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            raise RuntimeError(f"not within {seconds:.0f} s: {what}")
        pause(0.05)


def end(process: Popen[bytes]) -> None:
    """As systemd does."""
    process.terminate()
    try:
        process.wait(90)
    except TimeoutExpired:
        process.kill()


def kill(*processes: psutil.Process) -> float:
    """Kill them; the time when it began."""
    begun = time.time()
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, 10)
    return begun


def disturb(case: str, machine: Machine, seconds: float) -> float:
    """Do what the case says; the time from which to count."""
    worker, below = psutil.Process(machine.worker.pid), machine.of_flow()
    begun = time.time()
    if case in ("flow", "killed-after", "killed-late"):
        if case != "flow":
            disturb("server", machine, seconds)
            pause(20)
        return kill(psutil.Process(machine.lines()[-1][1]))
    if case == "server":
        end(machine.server)
        machine.server = machine.serve()
    elif case == "stopped":
        for process in below:
            process.suspend()
        pause(2 / 3 * seconds)
        for process in below:
            with suppress(psutil.NoSuchProcess):
                process.resume()
    else:
        if case == "terminated":
            end(machine.worker)
        else:
            begun = kill(worker, *(below if case in ("both", "taking") else ()))
        machine.worker = machine.work()
    return begun


def measure(case: str, column: str, seconds: float) -> dict[str, Any]:
    """One cell of the table."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as made, ExitStack() as stack:
        machine = Machine(Path(made), stack, column)
        if case == "taking":
            until(lambda: machine.is_pending() and machine.of_flow(), "the run is Pending")
        else:
            until(machine.lines, "a line")
            pause(330 if case == "killed-late" else 40)  # at least until it has beaten
        load, begun = os.getloadavg()[0], disturb(case, machine, seconds)
        pause(max(0.0, begun + seconds - time.time()))
        ended = time.time()
        states = [(round(at - begun, 1), name) for at, name in machine.states()]
        lines = [(at - begun, pid) for at, pid in machine.lines() if at > begun]
    if case == "taking" and [name for at, name in states if at <= 0][-1] not in ("Pending", "Submitting"):
        raise RuntimeError(f"killed too late: {states}")
    spans: dict[int, tuple[float, float]] = {}
    for at, pid in lines:
        spans[pid] = (spans.get(pid, (at,))[0], at)
    gaps = list(zip([0.0, *(at for at, _ in lines)], [*(at for at, _ in lines), ended - begun], strict=True))
    begin, stop = max(gaps, key=lambda gap: gap[1] - gap[0])
    again: float | str = "never stopped" if stop - begin < PAUSE else round(stop, 1)
    return {
        "case": case,
        "column": column,
        "seen": next((at for at, _ in states if at > 0), f"not within {seconds:.0f} s"),
        "goes on": f"not within {seconds:.0f} s" if ended - begun - gaps[-1][0] > 5 * PAUSE else again,
        "stopped at": round(begin, 1),
        "write at once": max((len({pid for at, pid in lines if 0 <= at - t < 1}) for t, _ in lines), default=0),
        "processes": [[round(at, 1) for at in span] for span in spans.values()],  # first line, last line
        "states": states,
        "load": round(load, 1),
    }


def in_words(cell: dict[str, Any]) -> str:
    if "failed" in cell:
        return f"failed: {cell['failed']}"
    said = [f"{word} {at if isinstance(at, str) else f'{at} s'}" for word in ("seen", "goes on") for at in [cell[word]]]
    return "; ".join([*said, f"{cell['write at once']} at once"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--columns", nargs="+", choices=COLUMNS, default=COLUMNS)
    parser.add_argument("--seconds", type=float, default=180.0, help="how long to watch each case")
    parser.add_argument("--jobs", type=int, default=4, help="cases side by side")
    a = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that every process is ended

    def cell(asked: tuple[str, str]) -> dict[str, Any]:
        try:
            found = measure(*asked, a.seconds)
        except Exception as error:
            found = {"case": asked[0], "column": asked[1], "failed": f"{type(error).__name__}: {error}"}
        print(json.dumps(found), file=sys.stderr, flush=True)
        return found

    with ThreadPoolExecutor(a.jobs) as pool:
        try:
            cells = list(pool.map(cell, [(case, column) for case in a.cases for column in a.columns]))
        except BaseException:
            OVER.set()
            pool.shutdown(cancel_futures=True)
            raise
    print(f"Prefect {version('prefect')}, {datetime.now():%Y-%m-%d}, {os.cpu_count()} cores\n")
    print(" | ".join(["case", *a.columns]))
    print(" | ".join(["---"] * (1 + len(a.columns))))
    for case in a.cases:
        print(" | ".join([case, *(in_words(one) for one in cells if one["case"] == case)]))
    return int(any("failed" in one for one in cells))


if __name__ == "__main__":
    sys.exit(main())
