"""Topics of a corpus, from its files to words, weights and how good they are: every stage kept, none done twice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from npmdask.algorithms.stopping import Outcome
from npmdask.checkpoint.store import RunStore
from npmdask.errors import BadInputError
from npmdask.models.topics.documents import documents_of
from npmdask.models.topics.fit import OfWords, TopicRequest, fit_in
from npmdask.models.topics.model import TopicModel
from npmdask.models.topics.prepare import CORPUS, HELD_OUT, ORIGIN, TRAINING, Cut, prepare
from npmdask.models.topics.quality import Coherence, Perplexity, coherence, held_out_perplexity, word_counts
from npmdask.runs.observers import Observer
from npmdask.runs.solution import Resources
from npmdask.storage.object_url import is_remote
from npmdask.storage.paths import local_path
from npmdask.storage.source import open_source
from npmdask.theory.certificates.statements import of_topics

QUALITY = "quality"
TOP = 10  # words of a topic that coherence is measured of


@dataclass(frozen=True, kw_only=True)
class TopicAnswer:
    """The topics of a corpus and what they are worth; ``perplexity`` where documents were held out."""

    model: TopicModel
    coherence: Coherence
    perplexity: Perplexity | None
    store: str
    warnings: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def outcome(self) -> Outcome:
        """What was found, in a sentence; named as the decomposition ended."""
        ended = Outcome(**self.model.facts["tensor_outcome"])
        found, asked = self.model.k, self.model.facts["asked"]
        said = "" if ended.converged else "not converged: "
        said += (
            f"found {found} of {asked} topics in {self.model.facts['documents']} documents, in "
            f"{self.model.facts['passes']} passes; mean c_npmi {self.coherence.c_npmi.mean():.3f}"
        )
        if self.perplexity is not None:
            said += f", held-out perplexity {self.perplexity.model:.0f} (words alone: {self.perplexity.unigram:.0f})"
        return Outcome(name=ended.name, sentence=said)

    @property
    def assurance(self) -> str:
        """How wrong the topics can be, in a sentence for everybody."""
        model, held = self.model, self.perplexity
        unigram = None if held is None else (held.model, held.unigram)
        return of_topics(model.topics, model.weights, model.facts, unigram).sentence

    @property
    def answered(self) -> bool:
        """Whether the decomposition converged."""
        return self.outcome.converged


def run_topics(
    source: Any,
    topics: int,
    vocabulary: Any = None,
    *,
    store: str | Path,
    cut: Cut | None = None,
    resources: Resources | None = None,
    observer: Observer | None = None,
    **asked: Any,
) -> TopicAnswer:
    """Find ``topics`` topics in a corpus, or go on with that, or read the answer.

    Parameters
    ----------
    source : a file of counts (UCI bag of words, .mtx, .npz), a store of kind sparse, or a matrix (documents x words).
    vocabulary : a file with a word on each line, or the words; those of the store, or numbers, if None.
    store : folder of the job; it keeps the documents that are used, so that the corpus is read once.
    asked : further fields of :class:`TopicRequest`: alpha0, half_length, moments, restarts, iterations, harvest, seed.

    Raises
    ------
    BadInputError
        No counts of words, a vocabulary of another length, no document of three words, M2 not positive.
    RefusedError
        The store belongs to something else; the memory does not suffice.
    """
    request = TopicRequest(topics=topics, **asked)
    for given, what in ((source, "a corpus"), (vocabulary, "a vocabulary")):
        if isinstance(given, str | Path) and not is_remote(given):
            local_path(given, what)  # before anything is written
    with RunStore(store) as held:
        prepare(held, source, vocabulary, cut or Cut())
        return _answer(held, request, resources or Resources(), observer or Observer())


def resume_topics(held: RunStore, resources: Resources, observer: Observer) -> TopicAnswer:
    """Go on with the job of a store, as it was asked for."""
    spec = held.read_spec() or {}
    fields = {name: value for name, value in spec["algorithm"].items() if name != "name"}
    return _answer(held, TopicRequest(**fields), resources, observer)


def read_topics(store: str | Path) -> TopicAnswer:
    """The answer of a finished job.

    Raises
    ------
    BadInputError
        There is none yet.
    """
    held = RunStore(store)
    found = held.read_part(QUALITY)
    if found is None:
        raise BadInputError(f"{held.place} holds no topics yet; `npmdask resume {held.place}` finishes the job")
    return _read(held, found)


def topics_summary(answer: TopicAnswer) -> dict[str, Any]:
    """List the facts of an answer as plain numbers and strings, the heaviest topic first."""
    model, measured = answer.model, answer.coherence
    top = model.top_words(measured.top)
    topics = [
        {
            "weight": float(model.weights[t]),
            "alpha": float(model.alpha[t]),
            "u_mass": float(measured.u_mass[t]),
            "c_npmi": float(measured.c_npmi[t]),
            "words": [word for word, _ in top[t]],
        }
        for t in model.by_weight
    ]
    u_mass, c_npmi = measured.means
    held = answer.perplexity
    more = {} if held is None else {"perplexity": held.model, "unigram_perplexity": held.unigram}
    return {
        "outcome": answer.outcome.name,
        "sentence": answer.outcome.sentence,
        "assurance": answer.assurance,
        "store": answer.store,
        "warnings": list(answer.warnings),
        "kind": "topics",
        "c_npmi": c_npmi,
        "u_mass": u_mass,
        **more,
        **{name: value for name, value in model.facts.items() if name != "warnings"},
        "topics": topics,
    }


def _answer(held: RunStore, request: TopicRequest, resources: Resources, observer: Observer) -> TopicAnswer:
    if held.read_part(QUALITY) is None or held.read_part("topics") is None:
        model = fit_in(held, open_source(held.path / TRAINING), request, resources, observer, of_words(held))
        observer.on_stage("quality: coherence and perplexity of the topics")
        held.write_part(QUALITY, *_measured(held, model))
    else:
        fit_in(held, open_source(held.path / TRAINING), request, resources, observer)  # which refuses another request
    found = held.read_part(QUALITY)
    assert found is not None
    return _read(held, found)


def of_words(held: RunStore) -> OfWords:
    """Which columns of the corpus the words of the model are."""
    found = held.read_part(ORIGIN)
    assert found is not None
    kept, columns = found[0][CORPUS], found[1]["columns"]
    return OfWords(kept=None if len(kept) == columns else kept, columns=columns)


def _measured(held: RunStore, model: TopicModel) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    training = documents_of(held.path / TRAINING)
    found = coherence(model, training, TOP)
    arrays = {"u_mass": found.u_mass, "c_npmi": found.c_npmi}
    facts: dict[str, Any] = {"top": found.top, "documents": found.documents, "diversity": model.diversity()}
    if (held.path / HELD_OUT).exists():
        others = documents_of(held.path / HELD_OUT)
        facts["perplexity"] = asdict(held_out_perplexity(model, others, word_counts(training)))
    return arrays, facts


def _read(held: RunStore, found: tuple[dict[str, np.ndarray], dict[str, Any]]) -> TopicAnswer:
    arrays, facts = found
    model, origin = TopicModel.load(held.path), held.read_part(ORIGIN)
    assert origin is not None
    measured = Coherence(
        u_mass=arrays["u_mass"], c_npmi=arrays["c_npmi"], top=facts["top"], documents=facts["documents"]
    )
    perplexity = Perplexity(**facts["perplexity"]) if "perplexity" in facts else None
    return TopicAnswer(
        model=model,
        coherence=measured,
        perplexity=perplexity,
        store=held.place,
        warnings=tuple(model.facts["warnings"]),
        facts={"diversity": facts["diversity"], **origin[1]},
    )
