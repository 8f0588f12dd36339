"""Runs from outside: reports, exports, inspection, status, metrics, garbage collection; and the kinds of runs."""

from npmdask.manage.gram import GramKind
from npmdask.manage.kinds import RunKind, Sink, forget_kind, kind_of, kind_of_answer, register_kind
from npmdask.manage.matrix import CopyKind, MatrixKind, SearchKind
from npmdask.manage.staged import CoupledKind, LatentKind, TopicsKind
from npmdask.manage.stream import StreamKind

for _kind in (
    MatrixKind(),
    SearchKind(),
    CopyKind(),
    StreamKind(),
    GramKind(),
    TopicsKind(),
    LatentKind("mixture"),
    LatentKind("ica"),
    CoupledKind("mca"),
    CoupledKind("cca"),
):
    register_kind(_kind)

__all__ = ["RunKind", "Sink", "forget_kind", "kind_of", "kind_of_answer", "register_kind"]
