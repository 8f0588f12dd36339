"""A model that follows a stream, as a Prefect flow: wake, take the rows that are new, update it, commit, sleep.

``python -m flows.streaming_update CONFIG.toml`` does so once, a schedule (:mod:`npmdask.prefect.schedules`) at every
tick, in the same store: a tick that finds nothing new is green and says so, one that finds rows which cannot be used is
red with the sentence, and the next one goes on where the last commit was. There are never two at once.

No ``from __future__ import annotations`` here: Prefect could not read the parameters of a served flow.
"""

from typing import Any

from prefect import get_run_logger
from prefect.states import Completed

from npmdask.config import RunConfig, StreamTable
from npmdask.core.runs.observers import Observers
from npmdask.core.runs.progress import ProgressBar
from npmdask.errors import BadInputError, TooFewRowsError
from npmdask.manage.report import summary
from npmdask.prefect.heartbeat import require_progress
from npmdask.prefect.parameters import Config, RunId, at_store
from npmdask.prefect.publish import StreamPublisher
from npmdask.prefect.tasks import plan, report, step, tended_flow
from npmdask.streaming import run_stream
from npmdask.streaming.problem import StreamProblem


@tended_flow()
def streaming_update(config: Config, run_id: RunId = "streaming-update") -> Any:
    """Take what is new of a stream into the model. The same run id again: goes on, after a kill too."""
    config = at_store(config, run_id)
    validate(config)
    plan(config, run_id)
    facts = update(config, run_id)
    if facts["new_rows"]:
        report(run_id, facts)
    return Completed(message=facts["sentence"], data=facts)


@step
def validate(config: RunConfig) -> dict[str, Any]:
    """Open the source and check everything that can be checked without reading it."""
    problem = open_problem(config)
    facts = {"algorithm": problem.model.algorithm.name, "columns": problem.model.d, "rows": problem.opened.rows}
    get_run_logger().info("%s: %s", problem.opened.name, facts)
    return facts


@step
def update(config: RunConfig, run_id: str) -> dict[str, Any]:
    """Take all rows that are new into the model, from wherever the store is. No array leaves it."""
    problem, store = open_problem(config), str(config.run.store)
    observer = Observers(ProgressBar(), StreamPublisher(run_id, store, problem.opened.rows))
    try:
        require_progress(store)
        return summary(run_stream(problem, store, config.resources(), observer))
    except TooFewRowsError as error:
        if not problem.opened.grows:
            raise
        return {"outcome": "waiting", "sentence": str(error), "answered": False, "new_rows": 0, "store": store}


def open_problem(config: RunConfig) -> StreamProblem:
    """The stream that a configuration describes. Raises BadInputError where it is of stored data."""
    if not config.streams:
        name = "flows.npm" if config.privacy is None else "flows.private_release"
        raise BadInputError(
            f"the configuration does not describe a stream: run it with `python -m {name}`, or choose a streaming "
            "algorithm like spm"
        )
    return config.stream_problem()


def for_ticks(config: RunConfig) -> RunConfig:
    """The configuration for a schedule: with the width of the rows of a folder, whose files may all be gone at a tick.

    Raises
    ------
    BadInputError
        It is not of a stream, or the stream is standard input, which comes once.
    """
    problem = open_problem(config)
    if problem.opened.forwards:
        raise BadInputError(
            "a schedule cannot read standard input, which is available only once: run it once without a schedule, "
            "or let the program write files into a directory and name that directory as source.path"
        )
    if not problem.opened.grows:
        return config
    table = (config.stream or StreamTable()).model_copy(update={"columns": problem.model.d})
    return config.model_copy(update={"stream": table})
