"""Find k components, then more of them without starting over; also ``python -m flows.npm_deflation``."""

from typing import Annotated, Any

from prefect import flow

from npmdask import api
from npmdask.config import RunConfig
from npmdask.manage.report import summary
from npmdask.prefect.flow_run import at_store, end_state, require_plain, said_in_a_sentence, step
from npmdask.prefect.heartbeat import require_progress, tended
from npmdask.prefect.parameters import Config, RunId, said
from npmdask.prefect.publish import Publisher
from npmdask.prefect.tasks import iterate, plan, report, validate
from npmdask.runs.observers import Observers, ProgressBar


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
    require_plain(config)
    validate(config)
    config = plan(config, run_id)
    facts = iterate(config, run_id)
    if facts["converged"]:
        run_id, facts = f"{run_id}-deflated", deflate(config, run_id, more)
    report(run_id, facts)
    return end_state(facts)
