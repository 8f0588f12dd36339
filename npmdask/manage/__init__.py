"""Runs from outside: reports, exports, inspection, status, metrics, garbage collection; and the kinds of runs."""

from npmdask.core.runs.kinds import forget_kind, register_kind
from npmdask.manage.kinds import RunKind, Sink, kind_of, kind_of_answer

__all__ = ["RunKind", "Sink", "forget_kind", "kind_of", "kind_of_answer", "register_kind"]
