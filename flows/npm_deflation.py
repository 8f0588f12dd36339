"""Find k components, then more of them without starting over; also ``python -m flows.npm_deflation``."""

import sys
from typing import Any

from prefect import flow, task
from prefect.cache_policies import NO_CACHE

from flows.heart import tended
from flows.npm import iterate, report, validate
from flows.publish import Publisher
from flows.run import at_store, end_state, main, said_in_a_sentence
from npmdask.api import deflate
from npmdask.config import RunConfig
from npmdask.progress import Observers, ProgressBar
from npmdask.report import summary


@task(cache_policy=NO_CACHE, persist_result=False)
@said_in_a_sentence
def deflation(config: RunConfig, run_id: str, more: int) -> dict[str, Any]:
    """Lock what was found and search its complement, in a store of its own, resumable in the same way."""
    problem, finished, resources = config.problem(), str(config.run.store), config.resources()
    store = f"{finished}-deflated"
    return summary(
        deflate(
            finished,
            more,
            store=store,
            memory=resources.memory,
            workers=resources.workers,
            threads=resources.threads,
            observer=Observers(ProgressBar(), Publisher(f"{run_id}-deflated", store, problem.rule.tol)),
        )
    )


@flow(name="npm-deflation", persist_result=False)
@said_in_a_sentence
@tended
def npm_deflation(config: RunConfig, more: int, run_id: str = "npm-deflation") -> Any:
    """The npm flow, then deflation: `more` further components, from one final Rayleigh-Ritz with the first ones."""
    config = at_store(config, run_id)
    validate(config, return_state=True).result()
    first = iterate(config, run_id, return_state=True).result()
    if not first["converged"]:
        report(run_id, first, return_state=True).result()
        return end_state(first)
    facts = deflation(config, run_id, more, return_state=True).result()
    report(f"{run_id}-deflated", facts, return_state=True).result()
    return end_state(facts)


if __name__ == "__main__":
    sys.exit(main(npm_deflation, more=5))
