"""Keeps what a Prefect server has in agreement with ``schedules.toml``, and takes up what has died.

Every LOOK seconds:

* schedules of the file that are new or have changed, or that the server has lost, are made known; those that are gone
  from the file are removed;
* a run that gives no sign of life any more (:mod:`npmdask.prefect.heartbeat`), or was never started by the worker that
  took it, is marked as crashed;
* a run that has crashed is scheduled again, under the same id, after a pause that grows with every time; its process
  goes on from the last commit of its store, or says after some times why it does not;
* an automation of the server posts how runs end to the webhook of the table ``[notify]``;
* of ticks that were missed while everything was down, only the newest runs.

There may be several keepers, or none for a while: a run that has changed since it was seen is left alone, and one
that is started twice finds its store held and leaves (:mod:`npmdask.core.checkpoint.store`).
"""

# ruff: noqa: E402  (settings come before prefect, which reads them when it is imported)

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import UUID

from npmdask.prefect.programs import FOLDER, POOL, announce, apply_settings, counted, exit_code, say

apply_settings()

from httpx import HTTPError
from prefect.blocks.webhook import Webhook
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentUpdate, WorkPoolCreate
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
    WorkPoolFilter,
    WorkPoolFilterName,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.sorting import DeploymentSort, FlowRunSort
from prefect.deployments.runner import DeploymentApplyError
from prefect.events.schemas.automations import AutomationCore
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound, PrefectHTTPStatusError
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings
from prefect.states import Cancelled, Crashed, Failed, Scheduled
from prefect.types.entrypoint import EntrypointType

from npmdask.core.checkpoint.logging import open_log
from npmdask.errors import BadInputError
from npmdask.prefect.heartbeat import BEAT, EVENT
from npmdask.prefect.parameters import ZONE
from npmdask.prefect.schedules import NotifyTable, Planned, read_notify, read_schedules

LOOK = 5.0  # seconds between two looks
SILENCE = timedelta(seconds=4 * BEAT)  # without a sign of life: dead; by then a store may be taken from who hangs
STARTING = timedelta(seconds=90)  # from being taken by a worker to the first sign of life
PAUSES = (5.0, 60.0)  # seconds before something that crashed is started again: at first, and at most
STEADY = timedelta(seconds=60)  # a run that has lasted so long does not count as crashing again and again
MOST = 10  # times that a run is started again without lasting
TAG = "npmdask"


class Reconciler:
    """One keeper; ``tend`` is one look."""

    def __init__(self, schedules: Path | None) -> None:
        self._schedules = schedules
        self._read: float | None = None  # time of the file, as it was read last
        self._planned: list[Planned] | None = None  # what it said when it was last good
        self._told: NotifyTable | None = None
        self._since = datetime.now(UTC)  # when the server was last found answering after it was not
        self._lost = True
        self._crashes: dict[UUID, int] = {}  # of runs, since they last ran for long

    def tend(self, client: SyncPrefectClient) -> None:
        """Look once. Raises HTTPError where there is no server."""
        self._apply(client)
        now = datetime.now(UTC)
        if self._lost:
            self._since, self._lost = now, False
        for run in _runs_in_states(client, StateType.RUNNING, StateType.PENDING, StateType.CRASHED):
            self.look_after(client, run, now)
        _skip_old_ticks(client, now)

    def look_after(self, client: SyncPrefectClient, run: FlowRun, now: datetime) -> None:
        """Schedule a run again that has crashed; mark one as crashed that gives no sign of life.

        In another pool one that is being started is left alone: there that may take minutes (of an image, a queue).
        """
        assert run.state is not None
        if run.state.is_crashed():
            self._start_again(client, run, now)
        elif run.state.is_running() or (run.state.is_pending() and run.work_pool_name == POOL):
            self._require_life(client, run, now)

    def server_lost(self) -> None:
        """It did not answer: no process could give a sign of life meanwhile."""
        self._lost = True

    def _apply(self, client: SyncPrefectClient) -> None:
        """At every look: the server may have got a new database, or a deployment may have been deleted."""
        if self._schedules is None:
            return
        changed = _time_of(self._schedules)
        if changed != self._read:
            try:
                self._planned = read_schedules(self._schedules)
                self._told = read_notify(self._schedules)
                names = ", ".join(one.name for one in self._planned) or "none"
                say(f"{counted(len(self._planned), 'schedule')} of {self._schedules}: {names}")
            except BadInputError as error:
                say(f"{error}; the schedules that were good stay")
            self._read = changed
        if self._planned is not None:
            apply(client, self._planned)
            notify(client, self._told)

    def _require_life(self, client: SyncPrefectClient, run: FlowRun, now: datetime) -> None:
        assert run.state is not None
        if run.state.is_running() and now - run.state.timestamp > STEADY:
            self._crashes.pop(run.id, None)
        sign = _last_sign(client, run)
        patience = SILENCE if sign is not None else STARTING
        last = max(filter(None, (run.state.timestamp, sign, self._since)))
        if now - last > patience:
            why = f"no sign of life for {(now - last).total_seconds():.0f} s"
            _propose(client, run, Crashed(message=f"{why}: its process or its machine is gone"))

    def _start_again(self, client: SyncPrefectClient, run: FlowRun, now: datetime) -> None:
        assert run.state is not None
        count = self._crashes.get(run.id, 0)
        first, most = PAUSES
        if run.deployment_id is None or now - run.state.timestamp < timedelta(seconds=min(first * 2.0**count, most)):
            return
        if count >= MOST:
            said = f"crashed {count + 1} times without lasting {STEADY.total_seconds():g} s; the last time: "
            _propose(client, run, Failed(message=f"{said}{run.state.message}; see the log of the worker"))
            return
        said = f"goes on from its last commit ({run.state.message})"
        if _propose(client, run, Scheduled(name="AwaitingRetry", message=said)):
            self._crashes[run.id] = count + 1


def _time_of(file: Path) -> float:
    """When it was changed; 0 where it is not there."""
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def apply(client: SyncPrefectClient, planned: Sequence[Planned]) -> None:
    """Make the schedules known: one deployment each, in the queue of the data that it reads.

    One that is there already in the same version stays as it is: made again, an interval would start again. Only where
    its flow lies, and its environment, may have changed, with the version of this package.
    """
    known = _all_pages(client.read_deployments, sort=DeploymentSort.NAME_ASC)
    there = {one.name: one for one in known if TAG in one.tags}
    for one in planned:
        start = {"entrypoint": f"{one.flow.fn.__module__}.{one.flow.fn.__name__}", "job_variables": _variables(one)}
        if one.name not in there or there[one.name].version != one.version:
            with suppress(ObjectAlreadyExists):
                client.create_work_pool(WorkPoolCreate(name=POOL, type="process"))
            made = _deploy(client, one)
            if one.name not in there and one.begins:
                client.create_flow_run_from_deployment(made, idempotency_key=f"first-{made}")
        elif any(getattr(there[one.name], name) != value for name, value in start.items()):
            client.update_deployment(there[one.name].id, DeploymentUpdate(**start))
    for name in there.keys() - {one.name for one in planned}:
        client.delete_deployment(there[name].id)


NOTIFICATIONS, HOOK = "npmdask: notifications", "npmdask-notify"  # names of the automation, and of its block
# Of a run that may be private no message: it may quote the data (as in :mod:`npmdask.prefect.reports`).
PAYLOAD = """{"text": {{ "%s: %s%s" | format(flow_run.name, flow_run.state.name, "" if
"private" in flow.name or flow_run.parameters.config.privacy or "privacy" in flow_run.parameters.changes | string
or not flow_run.state.message else ": " ~ flow_run.state.message) | tojson }}}"""


def notify(client: SyncPrefectClient, asked: NotifyTable | None) -> None:
    """Let an automation of Prefect post to a webhook how runs of schedules end; none, where nothing is asked for."""
    version = asked and sha256(f"{asked} {PAYLOAD}".encode()).hexdigest()[:12]
    known = client.read_automations_by_name(NOTIFICATIONS)
    if [one.description for one in known] == [version] * bool(asked):
        return
    with suppress(ObjectNotFound):  # before the automation: what is asked for is known by that
        if asked is None:  # another one may post to it
            client.delete_block_document(client.read_block_document_by_name(HOOK, "webhook").id)
    for one in known:
        client.delete_automation(one.id)
    if asked is not None:
        hook: Any = Webhook.model_validate({"url": asked.url, "headers": {"Content-Type": "application/json"}})
        block = hook.save(HOOK, overwrite=True, _sync=True)
        trigger = {"type": "event", "posture": "Reactive", "threshold": 1, "for_each": ["prefect.resource.id"]}
        trigger["expect"] = [f"prefect.flow-run.{state.title()}" for state in asked.on]
        trigger["match_related"] = {"prefect.resource.id": f"prefect.tag.{TAG}"}
        post = {"type": "call-webhook", "block_document_id": block, "payload": PAYLOAD}
        made = {"name": NOTIFICATIONS, "description": version, "trigger": trigger, "actions": [post]}
        client.create_automation(AutomationCore.model_validate(made))


def _variables(one: Planned) -> dict[str, Any]:
    """Return the job variables that a worker gives the processes of its runs."""
    return {"env": {FOLDER: str(one.folder), ZONE: one.timezone}}


def _deploy(client: SyncPrefectClient, one: Planned) -> UUID:
    made: Any = one.flow.to_deployment(
        name=one.name,
        schedule=one.when,
        paused=one.paused,
        parameters=one.parameters,
        version=one.version,
        tags=[TAG],
        work_pool_name=POOL,
        work_queue_name=one.queue,
        job_variables=_variables(one),
        entrypoint_type=EntrypointType.MODULE_PATH,  # a path would be relative to where this process was started
    )
    deployment: UUID = made.apply(work_pool_name=POOL)
    queue = client.read_work_queue_by_name(one.queue, work_pool_name=POOL)
    client.update_work_queue(queue.id, concurrency_limit=one.at_once)
    return deployment


_POOL_FILTER = WorkPoolFilter(name=WorkPoolFilterName(any_=[POOL]))


def _runs_in_states(client: SyncPrefectClient, *types: StateType) -> list[FlowRun]:
    """All flow runs of the pool in one of these states, the oldest first."""
    wanted = FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=list(types))))
    return _all_pages(client.read_flow_runs, flow_run_filter=wanted, sort=FlowRunSort.EXPECTED_START_TIME_ASC)


def _all_pages(read: Callable[..., list[Any]], **asked: Any) -> list[Any]:
    """All that a question about the pool finds, page after page."""
    found: list[Any] = []
    while page := read(work_pool_filter=_POOL_FILTER, limit=200, offset=len(found), **asked):
        found += page
    return found


def _last_sign(client: SyncPrefectClient, run: FlowRun) -> datetime | None:
    """When the process of a run was last heard of."""
    query = {
        "filter": {
            "occurred": {"since": (datetime.now(UTC) - timedelta(days=1)).isoformat()},
            "event": {"name": [EVENT]},
            "resource": {"id": [f"prefect.flow-run.{run.id}"]},
            "order": "DESC",
        },
        "limit": 1,
    }
    events = client.request("POST", "/events/filter", json=query).json()["events"]
    return datetime.fromisoformat(events[0]["occurred"]) if events else None


def _skip_old_ticks(client: SyncPrefectClient, now: datetime) -> None:
    """Ticks of one schedule that are all due: the newest replaces the others."""
    due: dict[Any, list[FlowRun]] = {}
    for run in _runs_in_states(client, StateType.SCHEDULED):
        if run.auto_scheduled and run.run_count == 0 and run.expected_start_time and run.expected_start_time <= now:
            due.setdefault(run.deployment_id, []).append(run)
    for ticks in due.values():
        for run in ticks[:-1]:
            _propose(client, run, Cancelled(message="a later tick of the same schedule was due as well"))


def _propose(client: SyncPrefectClient, run: FlowRun, state: Any) -> bool:
    """Ask for a transition of a run that is still as it was seen: it may have ended, or another keeper was first."""
    if client.read_flow_run(run.id).state_id != run.state_id:
        return False
    accepted = bool(client.set_flow_run_state(run.id, state).status.value == "ACCEPT")
    if accepted:
        announce(f"{run.name} ({run.id}): {state.name}: {state.message}")
    return accepted


def main(argv: Sequence[str] | None = None) -> int:
    """Look after the server that PREFECT_API_URL names, until told to stop."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=Path, help="the file of what runs when")
    parser.add_argument("--alive", type=Path, help="a file whose time is renewed at every look")
    a = parser.parse_args(argv)
    open_log()
    with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 2}):  # 5 take a minute, in which no look is made
        return exit_code(lambda: _keep(Reconciler(a.schedules and a.schedules.absolute()), a.alive))


def _keep(keeper: Reconciler, alive: Path | None) -> int:
    while True:
        try:
            with get_client(sync_client=True) as client:
                while True:
                    keeper.tend(client)
                    if alive is not None:
                        alive.touch()
                    time.sleep(LOOK)
        except (HTTPError, ObjectNotFound, PrefectHTTPStatusError, DeploymentApplyError, OSError) as error:
            keeper.server_lost()
            say(f"the Prefect server does not answer ({type(error).__name__}: {error}); trying again")
        time.sleep(LOOK)


if __name__ == "__main__":
    sys.exit(main())
