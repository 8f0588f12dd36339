"""Coupled modes of two fields, as commands see them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from npmdask.core.checkpoint.store import RunStore, answer_of_job
from npmdask.core.runs.observers import Observer
from npmdask.errors import Later
from npmdask.manage.kinds import PageOptions, Spec, values_text
from npmdask.manage.staged import StagedKind

if TYPE_CHECKING:
    from npmdask.report import Report

STOP = ("max_steps", "tol")  # decide when a stage stops, not what its steps are

_coupled = Later("npmdask.two_fields.answers")


class CoupledKind(StagedKind):
    """Coupled modes of two fields; ``name`` says by which criterion."""

    models = _coupled
    may_change = StagedKind.may_change | {*STOP}

    def refusal(self, store: Path) -> str:
        return f"{store} is a job of several stages: only memory, workers, threads, max_steps and tol may be given"

    def resume(self, store: Path, changes: Mapping[str, Any], observer: Observer | None) -> Any:
        """Go on with the job; of its stopping rule what is given takes the place of what was."""

        stop = {name: changes[name] for name in STOP if name in changes}
        if stop:
            _coupled.restop_coupled(store, stop)
        rest = {name: value for name, value in changes.items() if name not in stop}
        return super().resume(store, rest, observer)

    def answer(self, store: Path) -> dict[str, np.ndarray]:
        """Read the modes of both fields, and their patterns in the units of the data."""
        found = _coupled.read_coupled(store)
        sides = {"left": found.left, "right": found.right}
        patterns = {f"{side}_patterns": modes.patterns for side, modes in sides.items()}
        return answer_of_job(RunStore(store), "result")[0] | patterns

    def lines(self, answer: Any, words: int = 10) -> str:
        """Show a line for each mode."""

        return str(_coupled.lines_of(answer))

    def found(self, answer: Any) -> str:
        count = len(answer.values)
        return f"{count} mode{'s'[: count != 1]}; {_coupled.VALUES[answer.kind]} {values_text(answer.values)}"

    def explained(self, answer: Any) -> list[tuple[str, str]]:
        """Say what share of either field its patterns explain; of covariance what share of all of it."""
        left, right = (100 * side.explained_variance_ratio.sum() for side in (answer.left, answer.right))
        said = f"{left:.3g} % of the variance of the left field, {right:.3g} % of the right one"
        if answer.squared_covariance_error is not None:
            said = f"{100 * answer.squared_covariance_fraction.sum():.3g} % of the squared covariance; {said}"
        return [("explained", said)]

    def report_with(self, run: RunStore, spec: Spec, page: PageOptions) -> Report:
        """Report the job: its modes, then patterns and scores of both fields."""
        from npmdask.manage.data_report import over_data
        from npmdask.two_fields.sections import two_field_sections

        answer, made = _coupled.read_coupled(run.path), _coupled.coupled_report(run, dict(spec))
        of_data = two_field_sections(run, dict(spec), answer, page)
        return over_data(made, run, spec, len(answer.values), *of_data, after=2)


MCA, CCA = CoupledKind("mca"), CoupledKind("cca")
