"""What tests/prefect/test_keeper.py runs in a process of its own: a keeper, a real Prefect server, made-up runs."""

import json
import os
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentUpdate
from prefect.client.schemas.objects import FlowRun
from prefect.states import Completed, Crashed, Failed, Pending, Running, Scheduled

from npmdask.prefect import heartbeat, keeper
from npmdask.prefect.server import local_server

ENTRY = """
[[schedule]]
name = "{name}"
flow = "topics"
cron = "{cron}"
parameters = {{ documents = "words.txt", count = 3 }}
"""


def run_of(client: SyncPrefectClient, state: Any) -> Any:
    """A flow run of the first deployment, in this state."""
    deployment = client.read_deployments()[0]
    made = client.create_flow_run_from_deployment(deployment.id, state=Scheduled())
    if not state.is_scheduled():
        client.set_flow_run_state(made.id, state, force=True)
    return made.id


def state_of(client: SyncPrefectClient, run_id: Any) -> str:
    state = client.read_flow_run(run_id).state
    assert state is not None
    return f"{state.name}: {state.message or ''}"


def moved(client: SyncPrefectClient, folder: Path) -> dict[str, list[Any]]:
    """Where the flow of a deployment is, of an older version of the package, before and after a look; and its id."""
    (folder / "old.toml").write_text(ENTRY.format(name="a", cron="0 2 * * *"))
    one, seen = keeper.Reconciler(folder / "old.toml"), {}
    one.tend(client)
    made = client.read_deployments()[0]
    client.update_deployment(made.id, DeploymentUpdate(entrypoint="flows.topics.topics", job_variables={}))
    for what in ("before", "after"):
        found = client.read_deployment(made.id)
        seen[what] = [
            found.entrypoint,
            found.job_variables,
            found.version,
            found.tags,
            [str(one.schedule) for one in found.schedules],
        ]
        one.tend(client)
    return seen


def schedules(client: SyncPrefectClient, folder: Path) -> dict[str, Any]:
    """The deployments after each version of the file."""
    file, seen = folder / "schedules.toml", {}
    one = keeper.Reconciler(file)

    def look(what: str, text: str) -> None:
        file.write_text(text)
        one._read = None  # two versions within the resolution of a file's time
        tend(what)

    def tend(what: str) -> None:
        one.tend(client)
        found = {d.name: [d.version, str(d.updated), d.schedules[0].schedule.cron] for d in client.read_deployments()}  # type: ignore[union-attr]
        seen[what] = found

    both = ENTRY.format(name="a", cron="0 2 * * *") + ENTRY.format(name="b", cron="0 3 * * *")
    look("new", both)
    look("same", both)
    for lost in client.read_deployments():
        client.delete_deployment(lost.id)
    tend("lost")
    look("changed", both.replace("0 3", "0 4"))
    look("wrong", both.replace("0 3", "every night"))
    file.unlink()
    one.tend(client)
    look("gone", ENTRY.format(name="a", cron="0 2 * * *"))
    return seen


def lives(client: SyncPrefectClient) -> dict[str, str]:
    """What becomes of runs."""
    one = keeper.Reconciler(None)
    silent, speaks, taken, over = (run_of(client, state) for state in (Running(), Running(), Pending(), Running()))
    heartbeat.send_sign(str(speaks))
    one.tend(client)
    early = state_of(client, silent)
    client.set_flow_run_state(over, Completed(), force=True)
    deadline = time.monotonic() + 120  # events are written in the background
    while keeper._last_sign(client, client.read_flow_run(speaks)) is None:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    keeper.STARTING = timedelta(seconds=0.5)
    time.sleep(1)
    one.server_lost()
    one.tend(client)
    after_loss = state_of(client, silent)
    time.sleep(1)
    one.tend(client)
    found = {
        "early": early,
        "after a loss of the server": after_loss,
        "silent": state_of(client, silent),
        "speaks": state_of(client, speaks),
        "taken by a worker that died": state_of(client, taken),
        "over": state_of(client, over),
    }
    keeper._propose(client, client.read_flow_run(over), Crashed(message="too late"))
    found["over, called crashed"] = state_of(client, over)
    keeper.PAUSES = (0.0, 0.0)
    seen = client.read_flow_run(silent)
    one.tend(client)
    found["silent, later"] = state_of(client, silent)
    taken_up = client.read_flow_run(silent).state_id
    keeper.Reconciler(None).look_after(client, seen, datetime.now(UTC))
    found["seen before another keeper was first"] = str(client.read_flow_run(silent).state_id == taken_up)
    keeper.MOST = 2
    for _ in range(2):
        client.set_flow_run_state(silent, Crashed(message="again"), force=True)
        time.sleep(0.1)
        one.tend(client)
    found["silent, in the end"] = state_of(client, silent)
    return found


def told(client: SyncPrefectClient, folder: Path) -> dict[str, Any]:
    """What a webhook on loopback hears of runs that end, by the table that the page of schedules prints."""
    heard: list[str] = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Hook)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    os.environ["NIGHTS_WEBHOOK"] = f"http://127.0.0.1:{server.server_port}/hook"
    page = (Path(__file__).parents[2] / "docs" / "howto" / "operations.md").read_text()
    table = page[page.index("[notify]") :].partition("```")[0].replace('"crashed"]', '"crashed", "skipped"]')
    file, known, hooks = folder / "told.toml", [], []
    one = keeper.Reconciler(file)
    for text in (table, table, table.replace('"crashed", ', '"crashed", "late", '), ""):
        file.write_text(text + ENTRY.format(name="a", cron="0 2 * * *"))
        one._read = None
        one.tend(client)
        known.append([str(made.id) for made in client.read_automations_by_name(keeper.NOTIFICATIONS)])
        hooks.append([[block.name, str(block.id)] for block in client.read_block_documents()])
        if text and len(known) == 2:
            time.sleep(2)  # until the server knows the automation
            skipped = Completed(name="Skipped", message="the same data")
            for state in (Failed(message='it said "no"'), Completed(), Crashed(message="gone"), skipped):
                client.set_flow_run_state(run_of(client, Scheduled()), state)  # forced, it would be no event
            deadline = time.monotonic() + 60
            while len(heard) < 3:
                assert time.monotonic() < deadline, heard
                time.sleep(0.2)
            time.sleep(1)
    server.shutdown()
    return {"heard": heard, "known": known, "hooks": hooks}


def ticks(client: SyncPrefectClient, folder: Path) -> list[str]:
    """What becomes of the first ticks of a schedule whose times went by while nobody looked."""
    (folder / "every.toml").write_text(
        ENTRY.format(name="a", cron="* * * * *").replace('cron = "* * * * *"', "every = 1")
    )
    one = keeper.Reconciler(folder / "every.toml")
    one.tend(client)
    deadline = time.monotonic() + 120
    while len(due_at(client, now := datetime.now(UTC))) < 5:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    one.tend(client)
    return [run.state.name for run in due_at(client, now) if run.state is not None][:-1]  # the newest replaces them


def due_at(client: SyncPrefectClient, now: datetime) -> list[FlowRun]:
    """Runs of schedules whose time has come, the first one first."""
    found = [(run.expected_start_time, run) for run in client.read_flow_runs() if run.auto_scheduled]
    due = [(when, run) for when, run in found if when is not None and when <= now]
    return [run for _, run in sorted(due, key=lambda pair: pair[0])]


def main(folder: Path) -> None:
    with local_server(), get_client(sync_client=True) as client:
        found: dict[str, Any] = {"moved": moved(client, folder), "schedules": schedules(client, folder)}
        found |= {"lives": lives(client), "told": told(client, folder), "ticks": ticks(client, folder)}
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
