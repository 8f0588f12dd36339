"""What watches a run."""

from npmdask.core.runs.observers import Observer

__all__ = ["Observer"]
