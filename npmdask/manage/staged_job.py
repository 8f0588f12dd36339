"""The lifecycle of a job of stages: its store is bound to its parameters, its answer is found once, read and reported.

What a kind of job (topics, latent variables, two fields) says itself are its parameters, its stages and its words.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from npmdask.core.checkpoint.store import RunStore
from npmdask.core.numerics.units import attributes
from npmdask.core.runs.driver import with_features
from npmdask.core.runs.observers import Observer
from npmdask.core.runs.resources import Resources
from npmdask.core.runs.restore import bind_spec
from npmdask.core.runs.session import Session
from npmdask.core.runs.stages import Facts
from npmdask.core.storage.bundle import Arrays
from npmdask.errors import BadInputError
from npmdask.report import Report, Section

TABLES = ("data", "algorithm", "stop", "run", "version", "environment")  # of run.json, in a report

Found = tuple[Arrays, Facts]


class StagedJob(NamedTuple):
    """Functions that commands need for a kind of job.

    ``answer``: the class of what it gives. ``resume``: goes on with a store, as it was asked for. ``read``: the answer
    of a store; raises BadInputError where there is none yet. ``facts``: of an answer, as plain numbers and strings,
    beside those that all have.
    """

    answer: type
    resume: Callable[[Path, Resources, Observer], Any]
    read: Callable[[Path], Any]
    facts: Callable[[Any], Facts]

    def summary(self, answer: Any) -> Facts:
        """List the facts of an answer as plain numbers and strings."""
        return {
            "outcome": answer.outcome.name,
            "sentence": answer.outcome.sentence,
            **attributes(answer, "assurance", "store"),
            "warnings": list(answer.warnings),
            "kind": answer.kind,
            **self.facts(answer),
        }


def answered(
    held: RunStore,
    spec: Facts,
    part: str,
    solved: Callable[[Session], Found],
    resources: Resources,
    observer: Observer,
    *,
    once: Facts,
    keep: Callable[[], None] | None = None,
) -> Found:
    """The ``part`` of a job that holds its answer, which ``solved`` makes in a session where it is not there yet.

    Parameters
    ----------
    spec : parameters that the store is bound to.
    once, keep : see :func:`npmdask.core.runs.restore.bind_spec`.

    Raises
    ------
    RefusedError
        The store belongs to other data, parameters or version.
    """
    bind_spec(spec, held, {"resources": asdict(resources)}, once=once, keep=keep)
    found = held.read_part(part)
    if found is None:
        resources.require_possible()
        with Session(held, resources, with_features(observer)) as session:
            arrays, meta = solved(session)
        held.write_part(part, arrays, meta)
        found = held.read_part(part)
    assert found is not None
    return found


def decomposition_history(run: RunStore) -> list[dict[str, Any]]:
    """The steps of the decomposition of a job, which is the last of its stages.

    Raises
    ------
    BadInputError
        It is not finished.
    """
    found = RunStore(run.path / "decomposition").read_part("result")
    if found is None:
        raise BadInputError(f"{run.path} holds no decomposition; `npmdask resume {run.path}` finishes the job")
    return found[1]["history"]


def job_report(run: RunStore, answer: Any, *sections: Section) -> Report:
    """Report the answer of a finished job in these sections."""
    return Report(
        title=run.path.name,
        outcome=answer.outcome.sentence,
        good=answer.answered,
        error_statement=answer.assurance,
        sections=sections,
    )
