"""The steps of jobs of several stages (topics, mixtures, independent components), as tasks."""

from typing import Any

from prefect import get_run_logger

from flows.heart import require_progress
from flows.publish import LivePublisher
from flows.run import step
from npmdask.manage.report import summary
from npmdask.models.latent.answers import fit_latent
from npmdask.models.topics.documents import documents_of
from npmdask.models.topics.prepare import Cut
from npmdask.models.topics.run import run_topics
from npmdask.numerics.units import parse_memory
from npmdask.runs.observers import Observers, ProgressBar
from npmdask.runs.solution import Resources, Step

Means = tuple[str | None, int | None, int]  # memory, threads, workers


@step
def look(documents: str) -> dict[str, Any]:
    """Open the corpus; nothing is read but its head."""
    found = documents_of(documents)
    facts = {"documents": found.rows, "words": found.columns}
    get_run_logger().info("%s: %s", documents, facts)
    return facts


class StagePublisher(LivePublisher):
    """Shows which stage of a job is under way, and its steps. ``stages``: how many there are, told or not."""

    def __init__(self, name: str, stages: int) -> None:
        super().__init__(name)
        self._stages, self._begun, self._label = stages, 0, "starting"
        self._advance("starting", 0.0)

    def on_stage(self, label: str) -> None:
        self._begun, self._label = self._begun + 1, label
        self._log.info(label)
        self._advance(label, self._percent)

    def on_step(self, step: Step) -> None:
        self._later(self._advance_now_and_then, f"{self._label}; step {step.number}", self._percent)

    @property
    def _percent(self) -> float:
        """Of the stages: how many steps one takes nobody knows before its end."""
        return min(99.0, 100 * max(self._begun - 1, 0) / self._stages)

    def close(self, said: str) -> None:
        """The job is at its end."""
        self._thread.shutdown()
        self._advance(said, 100.0)


@step
def find_topics(
    run_id: str,
    documents: str,
    count: int,
    vocabulary: str | None,
    store: str,
    cut: Cut,
    asked: dict[str, Any],
    means: Means,
) -> dict[str, Any]:
    """Every stage of the job, from wherever its store is. No array leaves it."""
    shown = StagePublisher(run_id, 3)
    given = {"cut": cut, "resources": _resources(means), "observer": Observers(ProgressBar(), shown), **asked}
    require_progress(store)
    answer = run_topics(documents, count, vocabulary, store=store, **given)
    shown.close(answer.outcome.sentence)
    return summary(answer) | {"answered": answer.answered}


@step
def find_components(
    run_id: str, kind: str, samples: str, count: int, store: str, asked: dict[str, Any], means: Means
) -> dict[str, Any]:
    """Every stage of the job, from wherever its store is. No array leaves it."""
    shown = StagePublisher(run_id, 2)
    given = {"resources": _resources(means), "observer": Observers(ProgressBar(), shown), **asked}
    require_progress(store)
    answer = fit_latent(kind, samples, count, store=store, **given)
    shown.close(answer.outcome.sentence)
    return summary(answer) | {"answered": answer.answered}


def _resources(means: Means) -> Resources:
    memory, threads, workers = means
    return Resources(memory=parse_memory(memory), threads=threads, workers=workers)
