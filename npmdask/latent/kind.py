"""Mixtures and independent components, as commands see them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from npmdask.core.checkpoint.store import RunStore, answer_of_job
from npmdask.core.storage.source import open_source
from npmdask.errors import Later
from npmdask.manage.kinds import Spec, values_text
from npmdask.manage.staged import StagedKind

if TYPE_CHECKING:
    from npmdask.report import Report

_latent = Later("npmdask.latent.answers")


class LatentKind(StagedKind):
    """Latent variables of samples, found by moments; ``name`` says of which model."""

    models = _latent

    def answer(self, store: Path) -> dict[str, np.ndarray]:
        """Read all that was found."""
        return answer_of_job(RunStore(store), _latent.ANSWER)[0]

    def ending(self, answer: Any) -> str:
        return f"{answer.refinement}; {super().ending(answer)}" if answer.refinement else super().ending(answer)

    def lines(self, answer: Any, words: int = 10) -> str:
        """Show a line for each component, with its weight."""
        return "\n".join(f"{i:4} {weight:.6g}" for i, weight in enumerate(answer.weights, 1))

    def found(self, answer: Any) -> str:
        count, refined = len(answer.weights), f"; {answer.refinement}" if answer.refinement else ""
        return f"{count} component{'s'[: count != 1]}; {answer.weight_name} {values_text(answer.weights)}{refined}"

    def report(self, run: RunStore, spec: Spec) -> Report:
        """Report what was found; of independent components also the columns in which each is strongest."""
        from npmdask.manage.data_report import components, names_in_source, over_data

        found, mixing = _latent.latent_report(run, dict(spec)), self.answer(run.path).get("mixing")
        more = []
        if mixing is not None and mixing.size:
            names = names_in_source(spec, lambda place: open_source(place, exact=False).fingerprint)
            more = [components(mixing / np.linalg.norm(mixing, axis=0), names, None, None)]
        return over_data(found, run, spec, len(_latent.read_latent(run.path).weights), *more)


MIXTURE, ICA = LatentKind("mixture"), LatentKind("ica")
