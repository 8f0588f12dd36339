"""Oracles of small numbers, every kind by name, and neighbours as far apart as can be."""

from __future__ import annotations

import numpy as np

from npmdask.accounting import Budget
from npmdask.dp_pca.base import SimulatedNoise
from npmdask.dp_pca.exact_oracles import PowerOracle, TightOracle
from npmdask.dp_pca.paper_oracles import DPOjas, ModifiedDPPCA, PlainOja

VALUES = (10.0, 5.0)
BUDGET = Budget(1.0, 0.01)
NOISE = SimulatedNoise(0)


def tight(**changed: object) -> TightOracle:
    fixed = {"records": 300, "target_rank": 2, "steps": 3, "budget": BUDGET, "largest": 20.0}
    return TightOracle(**{**fixed, **changed})


def power(**changed: object) -> PowerOracle:
    fixed = {"records": 300, "target_rank": 2, "steps": 3, "budget": BUDGET, "radius": 20.0}
    return PowerOracle(**{**fixed, **changed})


def ojas(**changed: object) -> DPOjas:
    fixed = {"records": 40, "target_rank": 2, "batch": 4, "rates": ((1.0, 1.0),) * 2, "radius": 1.0, "budget": BUDGET}
    return DPOjas(**{**fixed, **changed})


def full_ojas(**changed: object) -> DPOjas:
    return ojas(**{"records": 300, "batch": 0, "full_steps": 3, "noise": "reuse", "radius": 20.0, **changed})


def paper(**changed: object) -> ModifiedDPPCA:
    fixed = {"records": 4000, "target_rank": 1, "batch": 1000, "rates": ((0.0, 1.0),), "budget": BUDGET}
    return ModifiedDPPCA(**{**fixed, **changed})


ORACLES = {
    "dp-ojas": lambda: ojas(records=300),
    "dp-ojas-reuse": lambda: full_ojas(),
    "dp-ojas-shuffle": lambda: ojas(records=300, noise="shuffle", shuffled=True),
    "k-dp-pca": lambda: paper(records=300, batch=60),
    "tight": lambda: tight(),
    "power": lambda: power(),
    "oja": lambda: PlainOja(records=300, target_rank=2, batch=30, rates=((1.0, 1.0),) * 2),
}


def neighbours(relation: str, place: int, records: int, d: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Data sets of matrices of which one is 1000 I on one side and -1000 I, zeros, or nothing on the other."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((records, d))
    one = x[:, :, None] * x[:, None, :]
    other = one.copy()
    one[place] = 1000 * np.eye(d)
    other[place] = 0.0 if relation == "record_zero_out" else -1000 * np.eye(d)
    return one, np.delete(one, place, axis=0) if relation == "record_add_remove" else other
