"""Copy files into a store."""

from npmdask.formats.ingest import ingest

__all__ = ["ingest"]
