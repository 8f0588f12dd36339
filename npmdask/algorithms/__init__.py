"""Algorithms: public configuration and the three lines in which they differ. They never import each other."""

from npmdask.algorithms._protocol import Algorithm, Info, Query, Result, state_fields
from npmdask.algorithms.power import PowerMethod, PowerState

REGISTRY = {"power": PowerMethod}

__all__ = ["REGISTRY", "Algorithm", "Info", "PowerMethod", "PowerState", "Query", "Result", "state_fields"]
