"""The observer of a run: :class:`npmdask.Observer`."""

from npmdask import Observer

__all__ = ["Observer"]
