"""A model that follows a stream, as a Prefect flow: wake, take the rows that are new, update it, commit, sleep.

``python -m flows.stream CONFIG.toml`` does so once. With ``--every`` or ``--cron`` it does so at every tick, in the
same store: a tick that finds nothing new is green and says so, one that finds rows which cannot be used is red with
the sentence, and the next one goes on where the last commit was. There are never two at once.

No ``from __future__ import annotations`` here: Prefect could not read the parameters of a served flow.
"""

import argparse
import sys
from typing import Any

from prefect import flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.states import Completed

from flows.deployments import once_or_scheduled, serve
from flows.heart import tended
from flows.npm import report
from flows.run import at_store, exit_code, load, once, said_in_a_sentence
from flows.stream_publish import StreamPublisher
from npmdask.config import RunConfig
from npmdask.config_tables import StreamTable
from npmdask.errors import BadInputError, TooFewRowsError
from npmdask.progress import Observers, ProgressBar
from npmdask.report import summary
from npmdask.streaming import run_stream
from npmdask.streaming.problem import StreamProblem


@task(cache_policy=NO_CACHE, persist_result=False)
@said_in_a_sentence
def validate(config: RunConfig) -> dict[str, Any]:
    """Open the source and check everything that can be checked without reading it."""
    problem = open_problem(config)
    facts = {"algorithm": problem.model.algorithm.name, "columns": problem.model.d, "rows": problem.opened.rows}
    get_run_logger().info("%s: %s", problem.opened.name, facts)
    return facts


@task(cache_policy=NO_CACHE, persist_result=False)
@said_in_a_sentence
def update(config: RunConfig, run_id: str) -> dict[str, Any]:
    """Take all rows that are new into the model, from wherever the store is. No array leaves it."""
    problem, store = open_problem(config), str(config.run.store)
    observer = Observers(ProgressBar(), StreamPublisher(run_id, store, problem.opened.rows))
    try:
        return summary(run_stream(problem, store, config.resources(), observer))
    except TooFewRowsError as error:
        if not problem.opened.grows:
            raise
        return {"outcome": "waiting", "sentence": str(error), "answered": False, "new_rows": 0, "store": store}


@flow(name="stream", persist_result=False)
@said_in_a_sentence
@tended
def stream(config: RunConfig, run_id: str = "stream") -> Any:
    """Take what is new of a stream into the model. The same run id again: goes on, after a kill too."""
    config = at_store(config, run_id)
    validate(config, return_state=True).result()
    facts = update(config, run_id, return_state=True).result()
    if facts["new_rows"]:
        report(run_id, facts, return_state=True).result()
    return Completed(message=facts["sentence"], data=facts)


def open_problem(config: RunConfig) -> StreamProblem:
    """The stream that a configuration describes. Raises BadInputError where it is of stored data."""
    if not config.streams:
        door = "flows.npm" if config.privacy is None else "flows.private_release"
        raise BadInputError(
            f"the configuration is not of a stream: run it with `python -m {door}`, or choose a streaming algorithm "
            "like spm"
        )
    return config.stream_problem()


def main(argv: list[str] | None = None) -> int:
    """Once, or by a schedule; returns the exit code."""
    a = once_or_scheduled(__doc__, argv)
    if a.every is None and a.cron is None:
        return exit_code(lambda: once(a, stream, *load(a, open_problem)))
    return exit_code(lambda: _scheduled(a))


def _scheduled(a: argparse.Namespace) -> int:
    config, run_id = load(a, open_problem)
    problem = open_problem(config)
    if problem.opened.forwards:
        raise BadInputError(
            "standard input cannot be read by a schedule, it is there only once: leave --every and --cron out, or let "
            "what writes it put files into a directory and name that as source.path"
        )
    config = with_width(config, problem)
    serve(a, stream, run_id, {"config": config.model_dump(mode="json"), "run_id": run_id})
    return 0


def with_width(config: RunConfig, problem: StreamProblem) -> RunConfig:
    """The configuration of a folder with the width of its rows: its files may all be gone at the next tick."""
    if not problem.opened.grows:
        return config
    table = (config.stream or StreamTable()).model_copy(update={"columns": problem.model.d})
    return config.model_copy(update={"stream": table})


if __name__ == "__main__":
    sys.exit(main())
