"""Operators of other packages: :func:`npmdask.register_operator`."""

from npmdask import register_operator

__all__ = ["register_operator"]
