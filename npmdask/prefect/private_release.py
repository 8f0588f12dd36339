"""A private release as a Prefect flow: validate, plan, reserve, release, report.

``python -m flows.private_release CONFIG.toml`` makes one release: run again it returns the same one. With ``fresh``, in
a schedule, every tick makes a new one (or goes on with one that was killed); once the budget is spent every tick is red
with the sentence of the ledger, until somebody grants more. Nothing that Prefect is told (parameters, states, logs,
artifacts) holds more than public numbers and releases: no path of a key, no bytes, no rows, no times of passes.

No ``from __future__ import annotations`` here: Prefect could not read the parameters of a served flow.
"""

from typing import Annotated, Any

from prefect import flow

from npmdask.prefect.flow_run import at_store, end_state
from npmdask.prefect.heartbeat import tended
from npmdask.prefect.parameters import Config, RunId, said
from npmdask.prefect.redaction import said_discreetly
from npmdask.prefect.releasing import numbered, plan, release, report, reserve, validate


@flow(name="private-release", persist_result=False, retries=0)
@said_discreetly
@tended
def private_release(
    config: Config,
    run_id: RunId = "release",
    fresh: Annotated[bool, said("a new release at every call, in numbered stores, until the budget is spent")] = False,
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
