"""The noisy power method as a Prefect flow, on the same driver as ``npmdask run``; also ``python -m flows.npm``.

No ``from __future__ import annotations`` here: Prefect could not read the parameters of a served flow.
"""

import sys
from typing import Any

from prefect import flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE

from flows.heart import tended
from flows.publish import Publisher
from flows.run import at_store, end_state, main, report, said_in_a_sentence
from npmdask.api import solve
from npmdask.config import RunConfig
from npmdask.errors import RefusedError
from npmdask.progress import Observers, ProgressBar
from npmdask.report import summary


@task(cache_policy=NO_CACHE, persist_result=False)
@said_in_a_sentence
def validate(config: RunConfig) -> dict[str, Any]:
    """Open the source and check everything that can be checked without reading it."""
    source = config.check().source
    facts = {"shape": source.shape, "kind": source.kind, "dtype": str(source.reader.dtype)}
    get_run_logger().info("%s: %s, fingerprint %s", source.path, facts, source.fingerprint[:16])
    return facts


@task(cache_policy=NO_CACHE, persist_result=False)
@said_in_a_sentence
def iterate(config: RunConfig, run_id: str) -> dict[str, Any]:
    """Run the driver to its end, from wherever the store is. No array leaves it."""
    problem, store = config.problem(), str(config.run.store)
    observer = Observers(ProgressBar(), Publisher(run_id, store, problem.rule.tol))
    return summary(solve(problem, store, config.resources(), observer))


@flow(name="npm", persist_result=False)
@said_in_a_sentence
@tended
def npm(config: RunConfig, run_id: str = "npm") -> Any:
    """Top-k singular vectors out of core. The same run id again: goes on after a kill, or returns the answer."""
    config = at_store(config, run_id)
    if config.privacy is not None:
        raise RefusedError(
            "the configuration asks for a private release: run it with `python -m flows.private_release`"
        )
    validate(config, return_state=True).result()  # raises the error itself, where a plain call would return a State
    facts = iterate(config, run_id, return_state=True).result()
    report(run_id, facts, return_state=True).result()
    return end_state(facts)


if __name__ == "__main__":
    sys.exit(main(npm))
