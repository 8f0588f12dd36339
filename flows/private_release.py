"""A private release as a Prefect flow: validate, plan, reserve, release, report; also by a schedule.

``python -m flows.private_release CONFIG.toml`` makes one release: run again it returns the same one. With ``--every``
or ``--cron`` every tick makes a new one (or goes on with one that was killed), until the ledger refuses: then the
schedule stops, with its sentence. Nothing that Prefect is told (parameters, states, logs, artifacts) holds more than
public numbers and releases: no path of a key, no bytes, no rows, no times of passes.

No ``from __future__ import annotations`` here: Prefect could not read the parameters of a served flow.
"""

import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from prefect import flow

from flows.discretion import said_discreetly
from flows.doors import main
from flows.fields import Config, RunId, said
from flows.heart import tended
from flows.releasing import STOPPED, numbered, plan, release, release_until_refused, report, reserve, validate
from flows.run import at_store, end_state
from npmdask.errors import BudgetError
from npmdask.storage.bundle import write_file_atomically


@flow(name="private-release", persist_result=False, retries=0)
@said_discreetly
@tended
def private_release(
    config: Config,
    run_id: RunId = "release",
    fresh: Annotated[bool, said("a new release at every call, in numbered stores, until the budget is spent")] = False,
) -> Any:
    """One private release; without ``fresh`` always the same one."""
    home = at_store(config, run_id)
    config = numbered(home, run_id) if fresh else home
    validate(config)
    plan(config, run_id)
    try:
        reserve(config)
    except BudgetError as error:
        if fresh:
            write_file_atomically(Path(str(home.run.store), STOPPED), f"{error}\n".encode())
        raise
    facts = release(config, run_id)
    report(run_id, facts)
    return end_state(facts)


release_on_schedule = partial(release_until_refused, private_release)

if __name__ == "__main__":
    sys.exit(main(private_release, by_schedule=release_on_schedule))
