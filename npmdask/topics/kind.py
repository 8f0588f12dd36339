"""Topics of documents, as commands see them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from npmdask.core.checkpoint.store import RunStore, answer_of_job
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError, Later
from npmdask.manage.kinds import PageOptions, Sink, Spec
from npmdask.manage.staged import StagedKind

if TYPE_CHECKING:
    from npmdask.report import Report, Section

WORDS = 8  # of a topic

_topics = Later("npmdask.topics.run")
_topics_report = Later("npmdask.topics.report")


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
        from npmdask.topics.transform import DocumentShares

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
        from npmdask.report import Text
        from npmdask.report.blocks import section
        from npmdask.topics.transform import DocumentShares, StrongestDocuments, strongest_documents

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


TOPICS = TopicsKind()
