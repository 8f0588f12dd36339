"""Jobs of several stages (topics, mixtures, independent components) as flows, and their steps as tasks.

No ``from __future__ import annotations`` here: Prefect could not read the parameters of a served flow.
"""

from typing import Annotated, Any, Literal

from prefect import flow, get_run_logger

from npmdask.manage.report import summary
from npmdask.models.latent.answers import fit_latent
from npmdask.models.topics.documents import documents_of
from npmdask.models.topics.run import CorpusFilter, run_topics
from npmdask.numerics.units import parse_memory
from npmdask.prefect.heartbeat import require_progress, tended
from npmdask.prefect.parameters import Folder, Memory, Restarts, RunId, Seed, Threads, Workers, run_folder, said
from npmdask.prefect.publish import LivePublisher
from npmdask.prefect.tasks import end_state, report, said_in_a_sentence, step
from npmdask.runs.observers import Observers, ProgressBar
from npmdask.runs.solution import Resources, Step


@flow(name="topics", persist_result=False)
@said_in_a_sentence
@tended
def topics(
    documents: Annotated[str, said("counts of words: a file or a store")],
    count: Annotated[int, said("how many topics", ge=1)],
    vocabulary: Annotated[str | None, said("a file with a word on each line")] = None,
    alpha0: Annotated[float, said("sum of the Dirichlet parameters of a document; 0: one topic each", ge=0)] = 1.0,
    half_length: Annotated[float, said("a document of N words counts N / (N + this)", ge=0)] = 100.0,
    min_df: Annotated[int, said("leave out words in fewer documents", ge=1)] = 1,
    max_df: Annotated[float, said("leave out words in more than this share of them", gt=0, le=1)] = 1.0,
    held_out: Annotated[float, said("share of documents for the perplexity; 0: none", ge=0, le=0.5)] = 0.1,
    moments: Annotated[Literal["held", "implicit"], said("implicit: a pass for each product")] = "held",
    restarts: Restarts = None,
    seed: Seed = 0,
    memory: Memory = None,
    threads: Threads = None,
    workers: Workers = 0,
    run_id: RunId = "topics",
    folder: Folder = "runs",
) -> Any:
    """Topics of documents, out of core. The same run id again: goes on after a kill, or returns the answer."""
    store = run_folder(folder, run_id)
    cut = CorpusFilter(held_out=held_out, min_df=min_df, max_df=max_df)
    asked = {"alpha0": alpha0, "half_length": half_length, "moments": moments, "restarts": restarts, "seed": seed}
    look(documents)
    facts = find_topics(run_id, documents, count, vocabulary, store, cut, asked, (memory, threads, workers))
    report(run_id, facts)
    return end_state(facts)


@flow(name="latent", persist_result=False)
@said_in_a_sentence
@tended
def latent(
    kind: Annotated[Literal["mixture", "ica"], said("spherical Gaussians, or independent components")],
    samples: Annotated[str, said("a Zarr store of rows of numbers")],
    count: Annotated[int, said("how many components", ge=1)],
    restarts: Restarts = None,
    seed: Seed = 0,
    memory: Memory = None,
    threads: Threads = None,
    workers: Workers = 0,
    run_id: RunId = "latent",
    folder: Folder = "runs",
) -> Any:
    """A mixture of spherical Gaussians, or independent components, out of core; the same run id again goes on."""
    store = run_folder(folder, run_id)
    asked = {"restarts": restarts, "seed": seed}
    facts = find_components(run_id, kind, samples, count, store, asked, (memory, threads, workers))
    report(run_id, facts)
    return end_state(facts)


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
        """Of the stages: the number of steps of one is known only at its end."""
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
    cut: CorpusFilter,
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
