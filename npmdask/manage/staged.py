"""Jobs of several stages: topics of documents, mixtures, independent components, what two fields have in common."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from npmdask.checkpoint.schema import TABLES
from npmdask.checkpoint.store import RunStore, answer_of_job
from npmdask.errors import BadInputError, Later
from npmdask.manage.kinds import PageOptions, RunKind, Sink, Spec, named, values_text
from npmdask.manage.matrix import changed_resources, progress, under_way
from npmdask.report import Report, Section, Text
from npmdask.report.blocks import section
from npmdask.runs.observers import Observer
from npmdask.runs.restore import resources_of
from npmdask.storage.source import open_source

WORDS = 8  # of a topic
TABLES["algorithm"] |= {
    **dict.fromkeys(("topics", "components"), int),
    **dict.fromkeys(("restarts", "iterations"), int | None),
    **dict.fromkeys(("alpha0", "half_length"), float),
    "ridge": float,
    "harvest": bool | None,
    "refine": bool | int | None,  # passes; of streams of tensors, whether
    "moments": str,
}

# Imported when they are used: other runs save the time that models take to load.
_topics = Later("npmdask.models.topics.run")
_topics_report = Later("npmdask.models.topics.report")
_latent = Later("npmdask.models.latent.answers")
_coupled = Later("npmdask.models.two_fields.answers")


STOP = ("max_steps", "tol")  # of coupled modes: decide when a stage stops, not what its steps are


class StagedKind(RunKind):
    """A job whose stages are runs in folders below its own. Its kind is that of its data."""

    may_change = frozenset({"memory", "workers", "threads"})
    staged = True
    models: Later  # the module whose JOB it is

    def __init__(self, name: str | None = None) -> None:
        self.name = name or self.name

    def gave(self, answer: Any) -> bool:
        return isinstance(answer, self.models.JOB.answer) and answer.kind == self.name

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
        found = super().status(run, spec, state)
        unfinished = found["state"] != "finished" and under_way(run.path) is not None
        return found | (progress(run, spec, found["state"], self.folders) if unfinished else {})


class TopicsKind(StagedKind):
    """Topics of documents."""

    name, models = "topics", _topics

    def answer(self, store: Path) -> dict[str, np.ndarray]:
        """Read topics, alphas and words."""
        arrays = answer_of_job(RunStore(store), _topics.PART)[0]
        if "words" in arrays:
            arrays["vocabulary"] = np.array(_topics.words_of_array(arrays.pop("words")))
        return arrays

    def export_pyldavis(self, store: Path, sink: Sink) -> None:
        """Write topics, heaviest first, and from one pass over the documents their lengths, shares and words."""
        from npmdask.models.topics.transform import DocumentShares

        model = _topics.TopicModel.load(store)
        documents = DocumentShares(store / _topics.TRAINING, model)
        sink.array("topic_term_dists", model.topics[:, model.by_weight].T)
        sink.rows("doc_topic_dists", (documents.rows, model.k), documents.shares())
        sink.array("doc_lengths", documents.lengths)
        sink.array("vocab", np.array(model.vocabulary))
        sink.array("term_frequency", documents.word_counts)

    def lines(self, answer: Any, words: int = 10) -> str:
        """Show a line for each topic, with its first words."""

        return str(_topics_report.text_of(answer.model, words, coherence=answer.coherence))

    def found(self, answer: Any) -> str:
        """Name the heaviest topic by its first words."""
        if not answer.model.k:
            return ""
        first = answer.model.top_words(WORDS)[answer.model.by_weight[0]]
        others = answer.model.k - 1
        more = f"; {others} more with -v" if others else ""
        return f"the heaviest topic: {' '.join(word for word, _ in first)}{more}"

    def report_with(self, run: RunStore, spec: Spec, page: PageOptions) -> Report:
        """Report the topics, and the documents in which each is strongest: kept in the store, or from one pass over
        the documents that the job holds.
        """
        from npmdask.manage.data_report import over_data

        if page != PageOptions(scores=page.scores) or page.data is not None:
            raise BadInputError(f"{run.place} holds topics: only --scores is for their report, no grid and no colour")
        made = _topics_report.topics_report(run, dict(spec))
        k, documents = _topics.read_topics(run.path).model.k, self._documents(run, page)
        return over_data(made, run, spec, k, documents, after=2, source=_topics.corpus_of(run))

    def _documents(self, run: RunStore, page: PageOptions) -> Section:
        from npmdask.manage.row_scores import kept_or_found
        from npmdask.models.topics.transform import DocumentShares, StrongestDocuments, strongest_documents

        model, place = _topics.TopicModel.load(run.path), run.path / _topics.TRAINING
        there = place.is_dir()
        budget = _topics.documents_of(place).mark if there else None
        refusal = "" if budget is None else "these documents have a privacy budget: a report names none of them"
        find = lambda: strongest_documents(DocumentShares(place, model), _topics_report.DOCUMENTS)  # noqa: E731
        work = model.k * open_source(place, exact=False).reader.nbytes if there else 0
        said = kept_or_found(run, page, refusal, find, of=StrongestDocuments, work=work, what="Strongest documents are")
        if isinstance(said, str):
            return section(_topics_report.STRONGEST, Text(text=said[0].upper() + said[1:]))
        return _topics_report.documents_section(run, model, said)


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
        if answer.squared_covariance_fraction is not None:
            said = f"{100 * answer.squared_covariance_fraction.sum():.3g} % of the squared covariance; {said}"
        return [("explained", said)]

    def report_with(self, run: RunStore, spec: Spec, page: PageOptions) -> Report:
        """Report the job: its modes, then patterns and scores of both fields."""
        from npmdask.manage.data_report import over_data
        from npmdask.manage.two_field_sections import two_field_sections

        answer, made = _coupled.read_coupled(run.path), _coupled.coupled_report(run, dict(spec))
        of_data = two_field_sections(run, dict(spec), answer, page)
        return over_data(made, run, spec, len(answer.values), *of_data, after=2)
