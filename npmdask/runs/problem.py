"""Operators of other packages."""

from npmdask.core.runs.problem import register_operator

__all__ = ["register_operator"]
