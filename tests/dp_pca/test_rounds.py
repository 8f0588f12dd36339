"""A deflation as an algorithm of the driver: a checkpoint gives back what there was, in values and in memory."""

from __future__ import annotations

import json

import numpy as np
import pytest

from npmdask.accounting import Budget
from npmdask.core.algorithms import state_fields
from npmdask.dp_pca.deflation import DeflationRounds, as_released
from npmdask.dp_pca.exact_oracles import PowerOracle, TightOracle
from npmdask.dp_pca.paper_oracles import ModifiedDPPCA

D = 300
BUDGET = Budget(1.0, 1e-6)
ORACLES = {
    "tight": TightOracle(records=1000, target_rank=2, steps=3, budget=BUDGET, largest=4.0),
    "power": PowerOracle(records=1000, target_rank=2, steps=3, budget=BUDGET, radius=4.0),
    "paper": ModifiedDPPCA(records=40, target_rank=2, batch=10, rates=((1.0, 1.0),) * 2, budget=BUDGET),
}


@pytest.mark.parametrize("name", ORACLES)
def test_every_step_begins_alike_from_its_checkpoint(name: str) -> None:
    """Mutant: a state that is not laid out, whose vector is a column of a matrix in the second round of "tight"."""
    rounds, rng = DeflationRounds(oracle=ORACLES[name], dimension=D, name=name), np.random.default_rng(4)
    state, asked, finished = rounds.init(D, rng=rng), 0, False
    while not finished:
        arrays, scalars = state_fields(state)
        for array in arrays.values():
            assert array.flags.c_contiguous
        kept = rounds.load({n: a.copy() for n, a in arrays.items()}, json.loads(json.dumps(scalars)))
        query, again = rounds.query(state), rounds.query(kept)
        assert query.block.tobytes() == again.block.tobytes() and query.batch.purpose == again.batch.purpose
        mean = query.batch.mechanism.spec()["release"].startswith("mean")
        released = as_released(rng.standard_normal(D) if mean else rng.uniform(1.0, 2.0))
        state, info = rounds.update(state, released)
        finished, asked = info.finished, asked + 1
    assert asked == ORACLES[name].releases
    basis = rounds.finalize(state).vectors
    assert np.abs(basis.T @ basis - np.eye(2)).max() < 1e-12
