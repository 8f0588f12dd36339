"""A private release as a Prefect flow: validate, reserve, iterate and release, publish; also by a schedule.

``python -m flows.private_release CONFIG.toml`` makes one release: run again it returns the same one. With ``--every``
or ``--cron`` every tick makes a new one (or goes on with one that was killed), until the ledger refuses: then the
schedule stops, with its sentence. Nothing that Prefect is told (parameters, states, logs, artifacts) holds more than
public numbers and releases: no path of a key, no bytes, no rows, no times of passes.

No ``from __future__ import annotations`` here: Prefect could not read the parameters of a served flow.
"""

import argparse
import json
import sys
import traceback
from functools import partial, wraps
from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger, task
from prefect.artifacts import create_progress_artifact
from prefect.cache_policies import NO_CACHE
from prefect.states import Failed

from flows.deployments import once_or_scheduled, serve
from flows.heart import tended
from flows.publish import artifact_key, try_to
from flows.run import Made, at_store, end_state, exit_code, load, publish_report, say
from flows.server import local_server
from npmdask.api import solve
from npmdask.binding import bind
from npmdask.checkpoint import RunStore
from npmdask.config import RunConfig
from npmdask.custody import KEY, custody_of
from npmdask.errors import BudgetError, NpmdaskError, RefusedError
from npmdask.private_report import flat
from npmdask.progress import Observer, Observers, ProgressBar
from npmdask.report import summary
from npmdask.solution import Step

STOPPED = "stopped"  # file beside the releases: why the schedule is over


def said_discreetly(function: Made) -> Made:
    """Prefect is told the sentence of a budget. Other errors may quote the data (a shape, a chunk, a path of the key):
    whoever runs this process reads them on stderr, and Prefect learns their kind."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (BudgetError, WithheldError) as error:
            return Failed(message=str(error), data=error)
        except NpmdaskError as error:
            say(str(error))
            withheld = WithheldError(error)
        except Exception as error:
            traceback.print_exc()
            withheld = WithheldError(error)
        return Failed(message=str(withheld), data=withheld)  # Prefect logs the data of a failed task too

    return call  # type: ignore[return-value]


class WithheldError(NpmdaskError):
    """What Prefect sees of an error whose sentence is not for it; with the exit code of that error."""

    def __init__(self, error: Exception) -> None:
        kind = type(error).__name__
        super().__init__(f"{kind}: what it says may tell of the data; it is on stderr of the process of this run")
        self.exit_code = getattr(error, "exit_code", NpmdaskError.exit_code)


class Announcer(Observer):
    """Says which release was made, and nothing else."""

    def __init__(self, name: str, releases: int) -> None:
        self._key, self._releases, self._log = artifact_key(name), releases, get_run_logger()

    def on_step(self, step: Step) -> None:
        said = f"release {step.number} of {self._releases} is made"
        self._log.info(said)
        percent = 100 * step.number / self._releases
        try_to(partial(create_progress_artifact, percent, key=f"{self._key}-progress", description=said))


@task(cache_policy=NO_CACHE, persist_result=False)
@said_discreetly
def validate(config: RunConfig) -> str:
    """Everything that can be checked without reading the data; returns the promise."""
    problem = config.check()
    if problem.private is None:
        raise RefusedError("the configuration has no [privacy] table: run it with `python -m flows.npm`")
    get_run_logger().info("to be released: %s products", problem.private.releases)
    return problem.private.relation.describe()


@task(cache_policy=NO_CACHE, persist_result=False)
@said_discreetly
def reserve(config: RunConfig) -> None:
    """Charge the ledger for the whole run, before anything is computed; a run that goes on is charged already."""
    problem = config.problem()
    with RunStore(str(config.run.store), private=True) as held:
        bind(problem, held, config.resources())
        custody_of(problem, held).reserve()


@task(cache_policy=NO_CACHE, persist_result=False, retries=0)
@said_discreetly
def iterate(config: RunConfig, run_id: str) -> dict[str, Any]:
    """Run the driver to its end, from wherever the store is. Returns what was released of values, and the statement."""
    problem = config.problem()
    observer = Observers(ProgressBar(), Announcer(run_id, problem.rule.max_steps))
    return summary(solve(problem, str(config.run.store), config.resources(), observer))


@task(cache_policy=NO_CACHE, persist_result=False)
@said_discreetly
def publish(run_id: str, facts: dict[str, Any]) -> str:
    """Write the page of the release, and show where it is."""
    return publish_report(run_id, facts)


@flow(name="private-release", persist_result=False, retries=0)
@said_discreetly
@tended
def private_release(config: RunConfig, run_id: str = "release", fresh: bool = False) -> Any:
    """One private release. ``fresh``: a new one at every call, in numbered stores; otherwise always the same one."""
    config = at_store(config, run_id)
    home = Path(str(config.run.store))
    if fresh:
        config = at_store(
            config.model_copy(update={"run": config.run.model_copy(update={"store": next_store(home)})}), run_id
        )
    validate(config, return_state=True).result()
    try:
        reserve(config, return_state=True).result()
    except BudgetError as error:
        if fresh:
            (home / STOPPED).write_text(f"{error}\n")
        raise
    facts = iterate(config, run_id, return_state=True).result()
    publish(run_id, facts, return_state=True).result()
    return end_state(facts)


def next_store(home: Path) -> str:
    """The newest numbered store, if it is not finished and its key destroyed; the next number otherwise."""
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    numbered = sorted(path for path in home.iterdir() if path.name.isdigit())
    if numbered and (not (numbered[-1] / "result").exists() or (numbered[-1] / KEY).exists()):
        return str(numbered[-1])
    return str(home / f"{int(numbered[-1].name) + 1 if numbered else 1:06d}")


def main(argv: list[str] | None = None) -> int:
    """One release, or a schedule; returns the exit code."""
    a = once_or_scheduled(__doc__, argv)
    return exit_code(lambda: _once(a) if a.every is None and a.cron is None else _scheduled(a))


def _once(a: argparse.Namespace) -> int:
    config, run_id = _load(a)
    with local_server(a.port) as url:
        say(f"Prefect at {url.removesuffix('/api')}")
        facts: Any = private_release(config, run_id=run_id)
    print(json.dumps(facts) if a.json else "\n".join(f"{name:20} {value}" for name, value in flat(facts)))
    return 0


def _load(a: argparse.Namespace) -> tuple[RunConfig, str]:
    config, run_id = load(a)
    for warning in config.warnings():
        say(f"warning: {warning}")  # holds the number of records: for whoever runs this, not for Prefect
    return config, run_id


def _scheduled(a: argparse.Namespace) -> int:
    config, run_id = _load(a)
    release_on_schedule(a, config, run_id)
    return 0


def release_on_schedule(a: argparse.Namespace, config: RunConfig, run_id: str) -> None:
    """A new release at every tick, until the budget is spent (BudgetError) or a signal comes."""
    stopped = Path(str(config.run.store), STOPPED)
    stopped.unlink(missing_ok=True)  # whoever starts it again may have granted more
    parameters = {"config": config.model_dump(mode="json"), "run_id": run_id, "fresh": True}
    serve(a, private_release, run_id, parameters, over=stopped.exists)
    if stopped.exists():
        raise BudgetError(f"the schedule is over: {stopped.read_text().strip()}")


if __name__ == "__main__":
    sys.exit(main())
