"""Algorithms: public configuration and the three lines in which they differ. They never import each other."""

from npmdask.algorithms._protocol import Algorithm, Info, Query, Result, state_fields
from npmdask.algorithms.krylov import BlockKrylov, KrylovState
from npmdask.algorithms.power import PowerMethod, PowerState

REGISTRY = {"power": PowerMethod, "krylov": BlockKrylov}

__all__ = [
    "REGISTRY",
    "Algorithm",
    "BlockKrylov",
    "Info",
    "KrylovState",
    "PowerMethod",
    "PowerState",
    "Query",
    "Result",
    "state_fields",
]
