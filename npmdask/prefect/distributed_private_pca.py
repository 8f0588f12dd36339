"""Components of data that stay with their owners, as a Prefect flow: the centre, which asks the nodes.

``python -m flows.distributed_private_pca CENTRE.toml``, with NPMDASK_NODE_TOKENS in the environment (a file's name):
what Prefect is told (addresses, promises, released values) is what crosses the wire anyway.

No ``from __future__ import annotations`` here: Prefect could not read the parameters of a served flow.
"""

from typing import Any

from prefect import flow

from npmdask.api import solve
from npmdask.config import RunConfig
from npmdask.errors import RefusedError
from npmdask.manage.report import summary
from npmdask.prefect.flow_run import at_store, end_state, said_in_a_sentence, step
from npmdask.prefect.heartbeat import require_progress, tended
from npmdask.prefect.parameters import Config, RunId
from npmdask.prefect.publish import Publisher
from npmdask.prefect.redaction import Announcer
from npmdask.prefect.tasks import plan, report, validate
from npmdask.runs.observers import Observers, ProgressBar


@step
def release(config: RunConfig, run_id: str) -> dict[str, Any]:
    """Send blocks, sum what the nodes answer, from wherever the store is. No array leaves it."""
    problem, store = config.problem(), str(config.run.store)
    private = problem.nodes is not None and problem.nodes.private
    shown = Announcer(run_id, problem.rule.max_steps) if private else Publisher(run_id, store, problem.rule.tol)
    require_progress(store)
    return summary(solve(problem, store, config.resources(), Observers(ProgressBar(), shown)))


@flow(name="distributed-private-pca", persist_result=False)
@said_in_a_sentence
@tended
def distributed_private_pca(config: Config, run_id: RunId = "distributed") -> Any:
    """Top-k components of what several nodes hold, each adding its own noise. The same run id again: goes on."""
    config = at_store(config, run_id)
    if config.source.nodes is None:
        raise RefusedError("the configuration names no source.nodes: run it with `python -m flows.npm`")
    validate(config)
    plan(config, run_id)
    facts = release(config, run_id)
    report(run_id, facts)
    return end_state(facts)
