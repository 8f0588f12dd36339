"""Algorithms: public configuration and the three lines in which they differ. They never import each other."""

from npmdask.algorithms._protocol import Algorithm, Info, Query, Result, state_fields
from npmdask.algorithms.krylov import BlockKrylov, KrylovState
from npmdask.algorithms.power import PowerMethod, PowerState
from npmdask.algorithms.private_alternating import AlternatingState, PrivateAlternating
from npmdask.algorithms.private_power import PrivatePower, PrivateState, value_stddevs

REGISTRY = {"power": PowerMethod, "krylov": BlockKrylov}

__all__ = [
    "REGISTRY",
    "Algorithm",
    "AlternatingState",
    "BlockKrylov",
    "Info",
    "KrylovState",
    "PowerMethod",
    "PowerState",
    "PrivateAlternating",
    "PrivatePower",
    "PrivateState",
    "Query",
    "Result",
    "state_fields",
    "value_stddevs",
]
