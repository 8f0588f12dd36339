"""Runs from outside: reports, exports, inspection, status, metrics, garbage collection; and the kinds of runs."""

from npmdask.manage.kinds import RunKind, Sink, kind_of, kind_of_answer
from npmdask.runs.kinds import forget_kind, register_kind

__all__ = ["RunKind", "Sink", "forget_kind", "kind_of", "kind_of_answer", "register_kind"]
