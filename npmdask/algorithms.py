"""Public names of algorithms, where they were before the core was a folder."""

from npmdask.core.algorithms import REGISTRY, PowerMethod, register_algorithm

__all__ = ["REGISTRY", "PowerMethod", "register_algorithm"]
