"""The noisy power method as a Prefect flow, on the same driver as ``npmdask run``; also ``python -m flows.npm``.

No ``from __future__ import annotations`` here: Prefect could not read the parameters of a served flow.
"""

from typing import Any

from prefect import flow

from npmdask.prefect.flow_run import at_store, end_state, require_plain, said_in_a_sentence
from npmdask.prefect.heartbeat import tended
from npmdask.prefect.parameters import Config, RunId
from npmdask.prefect.tasks import iterate, plan, report, validate


@flow(name="npm", persist_result=False)
@said_in_a_sentence
@tended
def npm(config: Config, run_id: RunId = "npm") -> Any:
    """Top-k singular vectors out of core. The same run id again: goes on after a kill, or returns the answer."""
    config = at_store(config, run_id)
    require_plain(config)
    validate(config)
    config = plan(config, run_id)
    facts = iterate(config, run_id)
    report(run_id, facts)
    return end_state(facts)
