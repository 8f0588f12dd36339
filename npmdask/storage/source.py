"""Sources of other packages: :func:`npmdask.register_source`."""

from npmdask import register_source

__all__ = ["register_source"]
