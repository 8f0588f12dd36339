"""A model that follows a stream, as a Prefect flow: wake, take the rows that are new, update it, commit, sleep.

``python -m flows.streaming_update CONFIG.toml`` does so once, a schedule (:mod:`npmdask.prefect.schedules`) at every
tick, in the same store: a tick that finds nothing new is green and says so, one that finds rows which cannot be used is
red with the sentence, and the next one goes on where the last commit was. There are never two at once.

No ``from __future__ import annotations`` here: Prefect could not read the parameters of a served flow.
"""

from typing import Any

from prefect import flow
from prefect.states import Completed

from npmdask.prefect.flow_run import at_store, said_in_a_sentence
from npmdask.prefect.heartbeat import tended
from npmdask.prefect.parameters import Config, RunId
from npmdask.prefect.streams import update, validate
from npmdask.prefect.tasks import plan, report


@flow(name="streaming-update", persist_result=False)
@said_in_a_sentence
@tended
def streaming_update(config: Config, run_id: RunId = "streaming-update") -> Any:
    """Take what is new of a stream into the model. The same run id again: goes on, after a kill too."""
    config = at_store(config, run_id)
    validate(config)
    plan(config, run_id)
    facts = update(config, run_id)
    if facts["new_rows"]:
        report(run_id, facts)
    return Completed(message=facts["sentence"], data=facts)
