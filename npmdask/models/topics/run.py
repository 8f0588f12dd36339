"""Topics of a corpus, from its files to words, weights and how good they are: every stage kept, none done twice."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, issparse

from npmdask.algorithms.stopping import Outcome
from npmdask.checkpoint.store import RunStore
from npmdask.errors import BadInputError, RefusedError
from npmdask.models.topics.documents import (
    Documents,
    document_frequencies,
    documents_of,
    kept_words,
    require_bounds,
    with_words,
    write_documents,
)
from npmdask.models.topics.fit import KeptWords, TopicRequest, fit_in
from npmdask.models.topics.model import TopicModel
from npmdask.models.topics.quality import Coherence, Perplexity, held_out_perplexity, topic_coherence, word_counts
from npmdask.models.topics.vocabulary import read_vocabulary, require_words
from npmdask.runs.observers import Observer
from npmdask.runs.solution import Resources
from npmdask.storage.checksum import crc32c
from npmdask.storage.labels import Labels
from npmdask.storage.object_url import is_remote
from npmdask.storage.paths import local_path
from npmdask.storage.source import open_source
from npmdask.theory.certificates.statements import of_topics

# From a corpus as users have it to stores of documents below a job: words that count, documents held out.


TRAINING, HELD_OUT, ORIGIN = "documents.zarr", "held-out.zarr", "origin"
NAMES = "labels"  # the part that holds what documents are called, where the corpus says so
CORPUS = "kept"  # the part that holds which columns of the corpus are words of the model


@dataclass(frozen=True, kw_only=True)
class CorpusFilter:
    """What of a corpus is used.

    Parameters
    ----------
    held_out : share of the documents that topics are measured on and not found from (every so many-th); 0: none.
    min_df : words in fewer documents are left out; max_df : words in more than this share of them.
    """

    held_out: float = 0.1
    min_df: int = 1
    max_df: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.held_out <= 0.5:
            raise BadInputError(f"held_out = {self.held_out} is a share of the documents, from 0 to 0.5")
        require_bounds(self.min_df, self.max_df)

    @property
    def every(self) -> int:
        """One of so many documents is held out; 0: none."""
        return round(1 / self.held_out) if self.held_out else 0


def prepare_documents(held: RunStore, source: Any, vocabulary: Any, cut: CorpusFilter) -> None:
    """Write ``documents.zarr`` (and ``held-out.zarr``) below the job, once; the corpus may be gone afterwards.

    Raises
    ------
    BadInputError
        No documents, no counts, a vocabulary of another length, or no word that is kept.
    RefusedError
        The store was made from something else.
    """
    asked = {"source": _identity(source), "vocabulary": _identity(vocabulary), **asdict(cut)}
    found = held.read_part(ORIGIN)
    if found is not None:
        _require_same(held, found[1], asked)
        return
    documents = documents_of(source)
    if documents.rows is not None and documents.rows < cut.every:
        raise BadInputError(
            f"held_out = {cut.held_out:g} is one document of {cut.every}, and {documents.name} has {documents.rows}: "
            "hold out none of them (0)"
        )
    words = _words(documents, vocabulary)
    kept = _kept(documents, cut)
    chosen = with_words(replace(documents, vocabulary=words), kept)
    assert chosen.vocabulary is not None
    parts = [(TRAINING, lambda row: not cut.every or row % cut.every != cut.every - 1)]
    if cut.every:
        parts.append((HELD_OUT, lambda row: row % cut.every == cut.every - 1))
    for name, takes in parts:
        held.require_turn()  # or these are the documents of the process that took the job over
        shutil.rmtree(held.path / name, ignore_errors=True)  # of a preparation that a kill ended
        write_documents(some_of(chosen, takes), held.path / name, chosen.vocabulary)
    if documents.names is not None:
        held.write_part(NAMES, *Labels(rows=(documents.names,)).bundle())
    held.write_part(ORIGIN, {CORPUS: kept}, asked | {"columns": documents.columns})


def corpus_rows(held: RunStore, rows: np.ndarray) -> np.ndarray:
    """The numbers in the corpus of documents that topics were found of, by their numbers among these; all from 0."""
    found = held.part_meta(ORIGIN)
    assert found is not None
    every = CorpusFilter(**{name: found[name] for name in CorpusFilter.__dataclass_fields__}).every
    return rows + rows // (every - 1) if every else rows


def corpus_of(held: RunStore) -> str:
    """Where the corpus was; "" of one in memory."""
    found = held.part_meta(ORIGIN)
    assert found is not None
    given = found["source"]
    place = str(given[0] if isinstance(given, list) else given)
    return place if "/" in place else ""


def document_names(held: RunStore, rows: np.ndarray) -> list[str]:
    """What the documents of these numbers in the corpus (from 0) are called; numbers, from 1, where it does not say."""
    part = held.read_part(NAMES)
    if part is None:
        return [f"document {row + 1}" for row in rows]
    places = Labels.of_bundle(*part).rows[0].places
    return [str(places[row]) for row in rows]


def some_of(documents: Documents, takes: Callable[[int], bool]) -> Documents:
    """The documents whose numbers (from 0) are taken."""

    def read() -> Any:
        row = 0
        for batch in documents.read():
            which = [number for number in range(batch.shape[0]) if takes(row + number)]
            row += batch.shape[0]
            if which:
                yield csr_matrix(batch[which])

    return replace(documents, read=read, rows=None)


def _words(documents: Documents, vocabulary: Any) -> tuple[str, ...]:
    if isinstance(vocabulary, str | Path):
        return read_vocabulary(vocabulary, documents.columns)
    if vocabulary is not None:
        return require_words(vocabulary, documents.columns, "the vocabulary")
    if documents.vocabulary is not None:
        return documents.vocabulary
    return tuple(f"word {column}" for column in range(1, documents.columns + 1))


def _kept(documents: Documents, cut: CorpusFilter) -> np.ndarray:
    if cut.min_df <= 1 and cut.max_df >= 1:
        return np.arange(documents.columns)
    return kept_words(*document_frequencies(documents), min_df=cut.min_df, max_df=cut.max_df)


def _identity(given: Any) -> Any:
    """What a corpus or a vocabulary is known by: path, size and time of a file; a checksum of what lies in memory."""
    if given is None:
        return None
    if isinstance(given, str | Path):
        if is_remote(given):
            return str(given)
        path = local_path(given, "a corpus or a vocabulary")
        return [str(path), path.stat().st_size, path.stat().st_mtime_ns] if path.is_file() else str(path)
    if isinstance(given, Documents):
        return given.name
    if isinstance(given, list | tuple):
        return f"{crc32c(np.frombuffer(chr(10).join(given).encode(), np.uint8)):08x}"
    if not isinstance(given, np.ndarray) and not issparse(given):  # read when it is asked for
        return open_source(given).fingerprint
    matrix = csr_matrix(given)
    return [f"{crc32c(np.ascontiguousarray(part)):08x}" for part in (matrix.indptr, matrix.indices, matrix.data)]


def _require_same(held: RunStore, before: dict[str, Any], asked: dict[str, Any]) -> None:
    other = [name for name, value in asked.items() if before.get(name) != value]
    if other:
        said = ", ".join(f"{name} ({before.get(name)!r} then, {asked[name]!r} now)" for name in other)
        raise RefusedError(
            f"the store {held.path} was made from something else; these differ: {said}; use another store"
        )


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
    cut: CorpusFilter | None = None,
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
        prepare_documents(held, source, vocabulary, cut or CorpusFilter())
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


def of_words(held: RunStore) -> KeptWords:
    """Which columns of the corpus the words of the model are."""
    found = held.read_part(ORIGIN)
    assert found is not None
    kept, columns = found[0][CORPUS], found[1]["columns"]
    return KeptWords(kept=None if len(kept) == columns else kept, columns=columns)


def _measured(held: RunStore, model: TopicModel) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    training = documents_of(held.path / TRAINING)
    found = topic_coherence(model, training, TOP)
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
