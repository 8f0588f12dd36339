"""Noisy copies that ``npmdask perturb`` is writing: what it keeps beside them, which no other command goes on with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from npmdask.core.checkpoint.store import RunStore, not_finished
from npmdask.core.runs.kinds import StoredRun
from npmdask.core.runs.observers import Observer
from npmdask.errors import BadInputError
from npmdask.manage.kinds import Keeps, RunKind, Spec, last_error
from npmdask.privacy.route import require_run

if TYPE_CHECKING:
    from npmdask.report import Report


class CopyKind(RunKind):
    """A noisy copy that is being written: only ``npmdask perturb`` can continue it."""

    name = "noisy copy"
    may_change = StoredRun.may_change

    def gave(self, answer: Any) -> bool:
        return False

    def resume(self, store: Path, changes: Mapping[str, Any], observer: Observer | None) -> Any:
        """Refuse, and say which command does it."""
        with RunStore(store) as held:
            return self.inspect(held, held.read_spec() or {})

    def inspect(self, run: RunStore, spec: Spec) -> dict[str, Any]:
        """Refuse likewise."""
        require_run(run.path, dict(spec))
        return {}

    def answer(self, store: Path) -> dict[str, np.ndarray]:
        raise not_finished(store)

    def status(self, run: RunStore, spec: Spec, state: str) -> dict[str, Any]:
        return {"what": self.name, "state": state, "error": last_error(run), "timeless": True}

    def report(self, run: RunStore, spec: Spec) -> Report:
        raise BadInputError(f"there is no run with a committed step in {run.place}")

    def keeps(self, run: RunStore, spec: Spec) -> Keeps:
        return "everything"


COPY = CopyKind()
