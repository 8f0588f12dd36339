"""The noisy power method as flows, on the same driver as ``npmdask run``: of stored data, and of what nodes hold.

No ``from __future__ import annotations`` here: Prefect could not read the parameters of a served flow.
"""

from typing import Annotated, Any

from prefect import flow

from npmdask import api
from npmdask.api import solve
from npmdask.config import RunConfig
from npmdask.errors import RefusedError
from npmdask.manage.report import summary
from npmdask.prefect.heartbeat import require_progress, tended
from npmdask.prefect.parameters import Config, RunId, at_store, require_no_other_flow, said
from npmdask.prefect.publish import Publisher
from npmdask.prefect.redaction import Announcer
from npmdask.prefect.tasks import end_state, iterate, plan, report, said_in_a_sentence, step, validate
from npmdask.runs.observers import Observers, ProgressBar


@flow(name="npm", persist_result=False)
@said_in_a_sentence
@tended
def npm(config: Config, run_id: RunId = "npm") -> Any:
    """Top-k singular vectors out of core. The same run id again: goes on after a kill, or returns the answer."""
    config = at_store(config, run_id)
    require_no_other_flow(config)
    validate(config)
    config = plan(config, run_id)
    facts = iterate(config, run_id)
    report(run_id, facts)
    return end_state(facts)


@step
def deflate(config: RunConfig, run_id: str, more: int) -> dict[str, Any]:
    """Lock what was found and search its complement, in a store of its own, resumable in the same way."""
    problem, finished, resources = config.problem(), str(config.run.store), config.resources()
    store = f"{finished}-deflated"
    observer = Observers(ProgressBar(), Publisher(run_id, store, problem.rule.tol))
    memory, workers, threads = resources.memory, resources.workers, resources.threads
    require_progress(store)
    found = api.deflate(finished, more, store=store, memory=memory, workers=workers, threads=threads, observer=observer)
    return summary(found)


@flow(name="npm-deflation", persist_result=False)
@said_in_a_sentence
@tended
def npm_deflation(
    config: Config,
    more: Annotated[int, said("how many components after the first ones", ge=1)],
    run_id: RunId = "npm-deflation",
) -> Any:
    """The npm flow, then deflation: `more` further components, from one final Rayleigh-Ritz with the first ones."""
    config = at_store(config, run_id)
    require_no_other_flow(config)
    validate(config)
    config = plan(config, run_id)
    facts = iterate(config, run_id)
    if facts["converged"]:
        run_id, facts = f"{run_id}-deflated", deflate(config, run_id, more)
    report(run_id, facts)
    return end_state(facts)


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
