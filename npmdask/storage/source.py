"""Sources of other packages."""

from npmdask.core.storage.source import register_source

__all__ = ["register_source"]
