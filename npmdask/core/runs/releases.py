"""Choose what makes the products of a problem that needs no protection."""

from __future__ import annotations

from npmdask.core import features
from npmdask.core.algorithms import PowerOnDisk
from npmdask.core.runs.disk_release import DiskRelease
from npmdask.core.runs.plain_release import PlainRelease
from npmdask.core.runs.problem import Problem
from npmdask.core.runs.session import Session


def plain_release(problem: Problem, session: Session) -> PlainRelease:
    """The release of a problem, by where its blocks lie, the kind of its data and its route."""
    if isinstance(problem.algorithm, PowerOnDisk):
        return DiskRelease(problem, session)
    key = problem.request.route_key if problem.of_matrix else problem.source.kind
    kind = features.found("releases", key) if key else None
    made: PlainRelease = (kind or PlainRelease)(problem, session)
    return made
