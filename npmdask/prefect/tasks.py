"""The steps of flows that take a configuration of stored data, as tasks; ``report`` is that of other flows, too."""

from functools import partial
from typing import Any

from prefect import get_run_logger
from prefect.artifacts import create_markdown_artifact

from npmdask.api import solve
from npmdask.checkpoint.store import RunStore
from npmdask.config import RunConfig
from npmdask.manage.report import summary
from npmdask.prefect.flow_run import publish_report, step
from npmdask.prefect.heartbeat import require_progress
from npmdask.prefect.plans import planned_rank, table_of_plan
from npmdask.prefect.publish import Publisher, artifact_key, try_to
from npmdask.runs.observers import Observers, ProgressBar


@step
def validate(config: RunConfig) -> dict[str, Any]:
    """Open the source and check everything that can be checked without reading it."""
    source = config.check().source
    facts = {"shape": source.shape, "kind": source.kind, "dtype": str(source.reader.dtype)}
    get_run_logger().info("%s: %s, fingerprint %s", source.path, facts, source.fingerprint[:16])
    return facts


@step
def plan(config: RunConfig, run_id: str) -> RunConfig:
    """Say what the run will do and need. Returns the configuration, with a number for ``iteration_rank = "auto"``."""
    return show_plan(config, run_id)


@step
def iterate(config: RunConfig, run_id: str) -> dict[str, Any]:
    """Run the driver to its end, from wherever the store is. No array leaves it."""
    problem, store = config.problem(), str(config.run.store)
    observer = Observers(ProgressBar(), Publisher(run_id, store, problem.rule.tol))
    require_progress(store)
    return summary(solve(problem, store, config.resources(), observer))


@step
def report(run_id: str, facts: dict[str, Any]) -> str:
    """Write the HTML page of the run, and show where it is."""
    return publish_report(run_id, facts)


def show_plan(config: RunConfig, run_id: str) -> RunConfig:
    """The plan into the log and an artifact, as that of ``npmdask plan``. A run that is begun was planned already."""
    if RunStore(str(config.run.store)).read_spec() is not None:
        get_run_logger().info("the run is begun: it goes on as it was planned")
        return config
    rows, rank = table_of_plan(config)
    get_run_logger().info("\n".join(f"{name}: {said}" for name, said in rows))
    body = "\n".join(f"| {name} | {said.replace('|', '&#124;')} |" for name, said in rows)
    text = f"# Plan of {run_id}\n\n| what | how |\n|---|---|\n{body}\n"
    try_to(partial(create_markdown_artifact, text, key=f"{artifact_key(run_id)}-plan", description="before it starts"))
    return planned_rank(config, rank)
