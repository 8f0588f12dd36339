"""Runs from outside: reports, exports, inspection, status, metrics, garbage collection; and the kinds of runs."""

from npmdask.manage.kinds import RunKind, Sink, forget_kind, kind_of, kind_of_answer, register_kind
from npmdask.manage.matrix import Copy, Matrix, Search
from npmdask.manage.staged import Latent, Topics
from npmdask.manage.stream import Stream

for _kind in (Matrix(), Search(), Copy(), Stream(), Topics(), Latent("mixture"), Latent("ica")):
    register_kind(_kind)

__all__ = ["RunKind", "Sink", "forget_kind", "kind_of", "kind_of_answer", "register_kind"]
