"""Copy files into a store: :func:`npmdask.ingest`."""

from npmdask import ingest

__all__ = ["ingest"]
