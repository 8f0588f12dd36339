"""Private runs in stores that have a run already."""

from __future__ import annotations

import pytest

import npmdask
from npmdask.errors import RefusedError
from tests.core.runs.test_unbegun import POWER, Ends
from tests.privacy.runs.conftest import World


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::npmdask.errors.DataWarning")  # of the exact runs
def test_a_private_run_that_was_charged_is_never_bound_again(world: World) -> None:
    with pytest.raises(KeyboardInterrupt):
        world.solve("run", observer=Ends())
    spec = (world.folder / "run" / "run.json").read_bytes()
    with pytest.raises(RefusedError, match="use another store"):
        world.solve("run", world.problem(seed=5))
    with pytest.raises(RefusedError, match="use another store"):
        npmdask.top_k(world.data, 2, store=world.folder / "run", **POWER)
    assert (world.folder / "run" / "run.json").read_bytes() == spec
    assert len(world.ledger.status("people").runs) == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::npmdask.errors.DataWarning")  # of the exact runs
def test_a_private_run_does_not_take_a_store_that_others_could_read(world: World) -> None:
    with pytest.raises(KeyboardInterrupt):
        npmdask.top_k(world.data, 2, store=world.folder / "run", observer=Ends(), **POWER)
    with pytest.raises(RefusedError, match="use another store"):
        world.solve("run")
    assert not world.ledger.status("people").runs
