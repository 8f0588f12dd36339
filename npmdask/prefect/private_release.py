"""A private release as a Prefect flow: validate, plan, reserve, release, report.

``python -m flows.private_release CONFIG.toml`` makes one release: run again it returns the same one. With ``fresh``, in
a schedule, every tick makes a new one (or goes on with one that was killed); once the budget is spent every tick is red
with the sentence of the ledger, until more is granted. Nothing that Prefect receives (parameters, states, logs,
artifacts) holds more than public numbers and releases: no path of a key, no bytes, no rows, no times of passes.

No ``from __future__ import annotations`` here: Prefect could not read the parameters of a served flow.
"""

import traceback
from functools import partial, wraps
from typing import Annotated, Any

from prefect import get_run_logger
from prefect.states import Failed

from npmdask.config import RunConfig
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.runs.driver import solve
from npmdask.core.runs.observers import Observer, Observers
from npmdask.core.runs.progress import ProgressBar
from npmdask.core.runs.restore import bind
from npmdask.core.runs.solution import Step
from npmdask.errors import BudgetError, CommitError, FencedOutError, HeldError, LostError, NpmdaskError, RefusedError
from npmdask.manage.report import summary
from npmdask.prefect.heartbeat import require_progress
from npmdask.prefect.parameters import Config, RunId, at_store, numbered, said
from npmdask.prefect.programs import say
from npmdask.prefect.publish import progress_text, show, try_to
from npmdask.prefect.tasks import Made, end_state, publish_report, show_plan, step, tended_flow
from npmdask.privacy.account import Account
from npmdask.privacy.concerns import require_signal

# What Prefect learns of a private run, that of nodes included: public numbers and releases. Of an error only its kind,
# unless it is the sentence of a budget.

KINDS = (LostError, CommitError, FencedOutError, HeldError)  # which decide how a flow run ends


def said_discreetly(function: Made) -> Made:
    """Prefect gets the sentence of a budget. Other errors may quote the data (a shape, a chunk, a path of the key):
    the user of this process reads them on stderr, and Prefect learns their kind."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (BudgetError, WithheldError) as error:
            return Failed(message=str(error), data=error)
        except Exception as error:
            say(str(error)) if isinstance(error, NpmdaskError) else traceback.print_exc()
            held_back = withheld(error)
        return Failed(message=str(held_back), data=held_back)  # Prefect logs the data of a failed task too

    return call  # type: ignore[return-value]


discreet_step = partial(step, said=said_discreetly)


class WithheldError(NpmdaskError):
    """Error shown to Prefect for one whose sentence is not for it; with the exit code of that error."""

    def __init__(self, error: Exception) -> None:
        kind = type(error).__name__
        super().__init__(f"{kind}: what it says may tell of the data; it is on stderr of the process of this run")
        self.exit_code = getattr(error, "exit_code", NpmdaskError.exit_code)
        self.owner = getattr(error, "owner", "")  # of a HeldError: public


def withheld(error: Exception) -> WithheldError:
    """``error`` without its sentence, of the same kind still where that decides how the flow run ends."""
    kind = next((kind for kind in KINDS if isinstance(error, kind)), None)
    made: type[WithheldError] = WithheldError if kind is None else type(kind.__name__, (WithheldError, kind), {})
    return made(error)


class Announcer(Observer):
    """Says which release was made, and nothing else."""

    def __init__(self, name: str, releases: int) -> None:
        self._name, self._releases, self._log = name, releases, get_run_logger()

    def on_step(self, step: Step) -> None:
        said = f"release {step.number} of {self._releases} is made"
        self._log.info(said)
        percent = 100 * step.number / self._releases
        try_to(partial(show, self._name, "progress", progress_text(said, percent), said))


@tended_flow(said=said_discreetly, retries=0)
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
