"""Jobs of several stages, whatever they are: what commands need to know of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npmdask.core.checkpoint.store import RunStore
from npmdask.core.runs.kinds import changed_resources
from npmdask.core.runs.observers import Observer
from npmdask.core.runs.restore import resources_of
from npmdask.errors import BadInputError, Later
from npmdask.manage.kinds import PageOptions, RunKind, Spec, named

if TYPE_CHECKING:
    from npmdask.report import Report

TABLES = {
    "algorithm": {
        **dict.fromkeys(("topics", "components"), int),
        **dict.fromkeys(("restarts", "iterations"), int | None),
        **dict.fromkeys(("alpha0", "half_length"), float),
        "ridge": float,
        "harvest": bool | None,
        "refine": bool | int | None,  # passes; of streams of tensors, whether
        "moments": str,
    }
}


class StagedKind(RunKind):
    """A job whose stages are runs in folders below its own. Its kind is that of its data.

    ``models``: the module whose JOB it is, imported when it is used: other runs save the time that models take to load.
    """

    may_change = frozenset({"memory", "workers", "threads"})
    staged = True
    tables = TABLES
    models: Later

    def __init__(self, name: str | None = None) -> None:
        self.name = name or self.name

    def gave(self, answer: Any) -> bool:
        return getattr(answer, "kind", "") == self.name and isinstance(answer, self.models.JOB.answer)

    def refusal(self, store: Path) -> str:
        return f"{store} is a job of several stages: only memory, workers and threads may be given"

    def resume(self, store: Path, changes: Mapping[str, Any], observer: Observer | None) -> Any:
        """Go on with the stage that is under way, as the job was asked for."""
        resources = resources_of(RunStore(store), **changed_resources(changes))
        return self.models.JOB.resume(store, resources, observer or Observer())

    def summary(self, answer: Any) -> dict[str, Any]:
        return dict(self.models.JOB.summary(answer))

    def ending(self, answer: Any) -> str:
        return f"{answer.outcome.sentence}; `npmdask report {answer.store}` makes its page"

    def inspect(self, run: RunStore, spec: Spec) -> dict[str, Any]:
        try:
            answer = self.models.JOB.read(run.path)
            facts: dict[str, Any] = {"state": "finished", "answered": answer.answered} | self.summary(answer)
        except BadInputError:
            facts = {"state": "unfinished", "outcome": "go on with `npmdask resume`"}
        return facts | {"source": spec.get("source")} | named(spec, ("data", "algorithm", "run", "version"))

    def report(self, run: RunStore, spec: Spec) -> Report:
        return self.report_with(run, spec, PageOptions())

    def status(self, run: RunStore, spec: Spec, state: str) -> dict[str, Any]:
        """Say how far the stage under way came."""
        from npmdask.manage.status import progress, under_way

        found = super().status(run, spec, state)
        unfinished = found["state"] != "finished" and under_way(run.path) is not None
        return found | (progress(run, spec, found["state"], self.folders) if unfinished else {})
