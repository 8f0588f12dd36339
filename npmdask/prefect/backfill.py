"""Run a schedule for days that are past: each day once, what is done already is skipped."""

# ruff: noqa: E402  (settings come before prefect, which reads them when it is imported)

import os
import sys
import time
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from npmdask.prefect.programs import apply_settings, exit_code, say

apply_settings()

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterDeploymentId,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import StateType
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelled

from npmdask.cli.parser import Parser
from npmdask.config import RunConfig
from npmdask.core.runs.progress import ProgressBar
from npmdask.errors import BadInputError, NpmdaskError, RefusedError, closest, require
from npmdask.manage.commands import add_backfill_options
from npmdask.prefect.keeper import Reconciler
from npmdask.prefect.parameters import DATE, due, point_to
from npmdask.prefect.power_method import npm
from npmdask.prefect.schedules import Planned, read_schedules

LOOK = 1.0  # seconds between two looks at a run
OVER = [StateType.COMPLETED, StateType.FAILED, StateType.CANCELLED]  # one that crashed starts again


def main(argv: Sequence[str] | None = None) -> int:
    """Run days that are past; return the exit code."""
    parser = Parser(prog="npmdask backfill", description=__doc__)
    add_backfill_options(parser)
    a = parser.parse_args(argv)
    return exit_code(lambda: backfill(a.schedules, a.schedule, a.first, a.last))


def backfill(schedules: Path, name: str, first: date, last: date) -> int:
    """Run the schedule ``name`` for each day from ``first`` to ``last``, one after the other; return the exit code.

    With a Prefect server (PREFECT_API_URL) as runs of its deployment, else in this process. Interrupted, or killed, it
    leaves whole days; called again it goes on.

    Raises
    ------
    NpmdaskError
        Some days failed: the sentence names them. The others are done.
    """
    known = {one.name: one for one in read_schedules(schedules)}
    require(name in known, f"{schedules} has no schedule {name!r}: {closest(name, [*known])}")
    one = known[name]
    if one.flow is not npm or DATE not in one.parameters["config"]["source"]["path"]:
        raise BadInputError(
            f"{name} has no days: it needs the flow npm, and {DATE} in source.path of its configuration"
        )
    require(first <= last, f"--from {first} comes after --to {last}: no day lies between them")
    os.chdir(one.folder)  # where relative paths of its parameters start
    days = [str(first + timedelta(days=n)) for n in range((last - first).days + 1)]
    failed: list[str] = []
    run = _there if os.environ.get("PREFECT_API_URL") else _here
    for day in days:
        try:
            made, answered = due(**one.parameters | {"date": day})
            wrong = "" if answered else run(made, one, day)
            point_to(str(made.run.store))
        except (BadInputError, RefusedError) as error:
            wrong = str(error)
        say(f"{day}: {wrong or ('is done already' if answered else 'done')}")
        failed += [day] * bool(wrong)
    if failed:
        raise NpmdaskError(f"{len(failed)} of {len(days)} days failed, the others are done: {', '.join(failed)}")
    return 0


def _here(made: RunConfig, *_: Any) -> str:
    """Run a day in this process; return why it failed."""
    solution: Any = made.solve(ProgressBar())
    return "" if solution.answered else str(solution.outcome.sentence)


def _there(made: RunConfig, one: Planned, day: str) -> str:
    """Let a worker run a day, and wait for its end. A run of this day that an earlier call began is taken up.

    One that crashes is scheduled again, as the keeper does: a server without it would leave it crashed.
    """
    with get_client(sync_client=True) as client:
        try:
            deployment = client.read_deployment_by_name(f"{one.flow.name}/{one.name}").id
        except ObjectNotFound:
            raise BadInputError(f"the Prefect server has no schedule {one.name}: serve its file first") from None
        begun_state = FlowRunFilterState(type=FlowRunFilterStateType(not_any_=OVER))  # a page has no more than 200 runs
        ours = FlowRunFilter(deployment_id=FlowRunFilterDeploymentId(any_=[deployment]), state=begun_state)
        begun = [run for run in client.read_flow_runs(flow_run_filter=ours) if run.parameters.get("date") == day]
        run: Any = begun[0] if begun else client.create_flow_run_from_deployment(deployment, parameters={"date": day})
        keeper, seen = Reconciler(None), ""
        try:
            while run.state.type not in OVER:
                keeper.look_after(client, run, datetime.now(UTC))
                if run.state.name != seen and (seen := run.state.name) == "Late":
                    say(f"{day}: no worker has taken its run yet, it waits for one")
                time.sleep(LOOK)
                run = client.read_flow_run(run.id)
        except KeyboardInterrupt:
            if not run.state.is_running():
                client.set_flow_run_state(run.id, Cancelled(message="the backfill was interrupted"))
            raise
    return "" if run.state.is_completed() else str(run.state.message)


if __name__ == "__main__":
    sys.exit(main())
