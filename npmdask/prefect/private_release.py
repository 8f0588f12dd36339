"""A private release as a Prefect flow: validate, plan, reserve, release, report.

``python -m flows.private_release CONFIG.toml`` makes one release: run again it returns the same one. With ``fresh``, in
a schedule, every tick makes a new one (or goes on with one that was killed); once the budget is spent every tick is red
with the sentence of the ledger, until more is granted. Nothing that Prefect receives (parameters, states, logs,
artifacts) holds more than public numbers and releases: no path of a key, no bytes, no rows, no times of passes.

No ``from __future__ import annotations`` here: Prefect could not read the parameters of a served flow.
"""

from typing import Annotated, Any

from prefect import flow, get_run_logger

from npmdask.api import solve
from npmdask.checkpoint.store import RunStore
from npmdask.config import RunConfig
from npmdask.errors import RefusedError
from npmdask.manage.report import summary
from npmdask.prefect.heartbeat import require_progress, tended
from npmdask.prefect.naming import run_name
from npmdask.prefect.parameters import Config, RunId, at_store, numbered, said
from npmdask.prefect.redaction import Announcer, discreet_step, said_discreetly
from npmdask.prefect.tasks import end_state, publish_report, show_plan
from npmdask.privacy.account import Account
from npmdask.privacy.concerns import require_signal
from npmdask.runs.observers import Observers
from npmdask.runs.progress import ProgressBar
from npmdask.runs.restore import bind


@flow(name="private-release", flow_run_name=run_name("private-release"), persist_result=False, retries=0)
@said_discreetly
@tended
def private_release(
    config: Config,
    run_id: RunId = "release",
    fresh: Annotated[
        bool, said("make a new release at every call, in numbered stores, until the budget is spent")
    ] = False,
) -> Any:
    """One private release; without ``fresh`` always the same one."""
    config = at_store(config, run_id)
    if fresh:
        config = numbered(config, run_id)
    validate(config)
    plan(config, run_id)
    reserve(config)
    facts = release(config, run_id)
    report(run_id, facts)
    return end_state(facts)


TIMED = (
    "the number of records stays private, and how long a run takes follows it: Prefect writes down when this run and "
    "its steps begin and end; keep its database as closed as the data, or use `npmdask run`, which writes no time"
)


@discreet_step
def validate(config: RunConfig) -> str:
    """Everything that can be checked without reading the data; returns the promise."""
    problem = config.check()
    if problem.private is None:
        raise RefusedError("the configuration has no [privacy] table: run it with `python -m flows.npm`")
    get_run_logger().info("to be released: %s products", problem.private.releases)
    if not problem.private.relation.public_rows:
        get_run_logger().warning(TIMED)
    return problem.private.relation.describe()


@discreet_step
def plan(config: RunConfig, run_id: str) -> None:
    """Say what is promised, what it costs of the budget, and what the noise leaves: public numbers, without a look."""
    show_plan(config, run_id)


@discreet_step
def reserve(config: RunConfig) -> None:
    """Charge the ledger for the whole run, before anything is computed; a run that goes on is charged already."""
    problem = config.problem()
    with RunStore(str(config.run.store), private=True) as held:
        bind(problem, held, config.resources())
        if held.last_step() is None:
            require_signal(problem)
        Account(problem.private.privacy, problem.source, problem.mechanism, held).reserve()


@discreet_step
def release(config: RunConfig, run_id: str) -> dict[str, Any]:
    """Run the driver to its end, from wherever the store is. Returns what was released of values, and the statement."""
    problem = config.problem()
    assert problem.private is not None
    # Prefect writes down when it hears of something: between two releases lies a pass, whose time follows the rows.
    shown = [Announcer(run_id, problem.rule.max_steps)] if problem.private.relation.public_rows else []
    observer = Observers(ProgressBar(), *shown)
    require_progress(str(config.run.store))
    return summary(solve(problem, str(config.run.store), config.resources(), observer))


@discreet_step
def report(run_id: str, facts: dict[str, Any]) -> str:
    """Write the page of the release, and show where it is."""
    return publish_report(run_id, facts)
