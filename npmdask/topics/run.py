"""Topics of a corpus, from its files to words, weights and how good they are: every stage kept, none done twice.

The documents go through four stages, each kept, in a pass or a few over them::

    1. totals           one pass: how often each word comes, how many documents are too short        WordTotals
    2. whitening        leading pairs of the second moment M2, a pass a step                         WordPairs
    3. M3(W, W, W)      one pass, k x k x k; or never formed: a pass for each product                WhitenedTriples
    4. decomposition    the tensor power method on it, then back to words                            TensorPower

Anandkumar, Ge, Hsu, Kakade and Telgarsky (2014), algorithm 1 on the moments of section 3; all moments are of
*different* words of a document, so that a word repeated is not taken for a pair.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from scipy.sparse import csr_matrix, issparse

from npmdask.core.algorithms.stopping import Outcome
from npmdask.core.checkpoint.store import RunStore, answer_of_job
from npmdask.core.runs.observers import Observer
from npmdask.core.runs.resources import Resources
from npmdask.core.runs.session import Session
from npmdask.core.runs.solution import Solution
from npmdask.core.runs.stages import MomentOperator, job_spec
from npmdask.core.storage.bundle import Arrays
from npmdask.core.storage.checksum import crc32c
from npmdask.core.storage.labels import Labels
from npmdask.core.storage.paths import local_path
from npmdask.core.storage.readers.sparse import CsrReader
from npmdask.core.storage.source import Source, is_remote, open_source
from npmdask.errors import BadInputError, RefusedError, require
from npmdask.manage.staged_job import StagedJob, answered
from npmdask.tensors.moments import LDA, SingleTopic, Whitening, on_simplex, whiten
from npmdask.tensors.stages import Decomposed, Stages
from npmdask.topics.documents import (
    Documents,
    document_frequencies,
    documents_of,
    kept_words,
    read_vocabulary,
    require_bounds,
    require_words,
    with_words,
    words_of_array,
    write_documents,
)
from npmdask.topics.model import PART, TopicModel
from npmdask.topics.quality import Coherence, Perplexity, held_out_perplexity, topic_coherence, word_counts
from npmdask.topics.statements import of_topics
from npmdask.topics.word_moments import HALF_LENGTH, WhitenedTriples, WordPairs, WordSums, WordTotals, WordTriples

# The four stages.

KIND = "topics"
MATRIX_TOL = 1e-4  # relative residual of pairs of M2, which a sample of documents knows to some per cent
OF_SAMPLING = 0.1  # of a tensor's sampling error: what its decomposition may add
TENSOR_TOLS = (1e-6, 1e-2)  # of the decomposition, at least and at most


@dataclass(frozen=True, kw_only=True)
class TopicRequest:
    """Parameters of a topic model: public, part of a run's identity.

    Parameters
    ----------
    topics : k.
    alpha0 : sum of the Dirichlet parameters of a document's shares; 0: each document has one topic.
    half_length : words of a document that counts half as much as a very long one; 0: all count the same.
    moments : "held": M3 in white coordinates is formed in one pass, k^3 numbers; "implicit": every product is a pass.
    restarts, iterations, harvest : of the tensor power method (:class:`npmdask.tensors.route.TensorOptions`).
    seed : of the starts.
    """

    topics: int
    alpha0: float = 1.0
    half_length: float = HALF_LENGTH
    moments: Literal["held", "implicit"] = "held"
    restarts: int | None = None
    iterations: int | None = None
    harvest: bool | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        require(self.topics >= 1, f"topics = {self.topics} must be at least 1")
        if not 0 <= self.alpha0 < np.inf:
            raise BadInputError(f"alpha0 = {self.alpha0} must be at least 0 (0: a single topic per document)")
        require(self.moments in ("held", "implicit"), f'moments = {self.moments!r}: "held" (k^3 numbers) or "implicit"')
        require(self.seed >= 0, f"seed = {self.seed} must not be negative")

    def options(self) -> dict[str, Any]:
        """Return the options given to the tensor power method.

        A product with a tensor that is held costs nothing, so that rounds can be thorough: real text is no exact
        mixture, and one component after the other leaves less of its tensor than a harvest.
        """
        held = self.moments == "held"
        asked = {
            "restarts": 2 * self.topics + 10 if held and self.restarts is None else self.restarts,
            "iterations": self.iterations,
            "harvest": False if held and self.harvest is None else self.harvest,
        }
        return {name: value for name, value in asked.items() if value is not None}


def _fit_in_store(
    held: RunStore,
    source: Source,
    request: TopicRequest,
    resources: Resources,
    observer: Observer,
    **words: Any,
) -> TopicModel:
    """Run the job in ``held``, go on with it, or read its answer; ``words``: see :func:`of_words`.

    Raises
    ------
    BadInputError
        Data that are no counts of words, no document of three words, more topics than M2 supports.
    RefusedError
        The store belongs to other data or parameters; the memory does not suffice.
    """
    reader = require_documents(source)

    def solved(session: Session) -> tuple[Arrays, dict[str, Any]]:
        model = _fit_model(Stages(session, source, request.seed), reader, request)
        return replace(model, **words).saved()

    spec = _spec(source, request)
    return TopicModel.of(*answered(held, spec, PART, solved, resources, observer, once=source.kept))


def require_documents(source: Source) -> CsrReader:
    """The reader of a store of counts of words.

    Raises
    ------
    BadInputError
        Another kind of data, or counts that were never ingested.
    """
    if not isinstance(source.reader, CsrReader) or not source.registered:
        raise BadInputError(
            f"{source.path} does not hold counts of words as npmdask stores them (sparse): ingest them first, with "
            "`npmdask ingest docword.txt.gz documents.zarr`, or give the file to `npmdask topics`"
        )
    return source.reader


def tensor_tol(source: Source, request: TopicRequest) -> float:
    """Relative residual of components: a tenth of their sampling error, about sqrt(k / documents)."""
    least, most = TENSOR_TOLS
    return float(min(max(OF_SAMPLING * np.sqrt(request.topics / source.shape[0]), least), most))


def _spec(source: Source, request: TopicRequest) -> dict[str, Any]:
    data = {"fingerprint": source.fingerprint, "shape": list(source.shape), "kind": KIND}
    stop = {"matrix_tol": MATRIX_TOL, "tensor_tol": tensor_tol(source, request)}
    return job_spec(data, {"name": KIND, **asdict(request)}, stop, request.seed)


def _fit_model(job: Stages, reader: CsrReader, request: TopicRequest) -> TopicModel:
    k, d = request.topics, reader.shape[1]
    require(k <= d, f"topics = {k} of {d} words: there can be at most as many topics as words")
    totals = WordTotals(reader=reader, half_length=request.half_length)
    sums = totals.sums_of(job.gather("totals", totals, np.zeros((d, 1))))
    pairs = job.leading_pairs(_pairs_operator(sums, request), k, MATRIX_TOL)
    white = whiten(pairs.values, pairs.basis, k)
    found = _components(job, reader, sums, white, request)
    return _model(job, sums, pairs, white, found, request)


def _pairs_operator(sums: WordSums, request: TopicRequest) -> MomentOperator:
    def made(reader: Any) -> WordPairs:
        return WordPairs(reader=reader, sums=sums, alpha0=request.alpha0)

    facts = {"alpha0": request.alpha0, "half_length": request.half_length}
    arrays = (sums.mean, sums.second)
    return MomentOperator(
        kind="symmetric", name="pairs of words", side=len(sums.mean), made=made, facts=facts, arrays=arrays
    )


def _components(job: Stages, reader: CsrReader, sums: WordSums, white: Whitening, request: TopicRequest) -> Decomposed:
    common: dict[str, Any] = {"sums": sums, "whitening": white.matrix, "alpha0": request.alpha0}
    k = request.topics
    if request.moments == "held":
        operator = WhitenedTriples(reader=reader, **common)
        cube = job.gather("triples", operator, np.zeros((k, 1))).reshape(k, k, k)
        return job.components_of_held(cube, k, tensor_tol(job.source, request), request.options())
    derived = MomentOperator(
        kind="tensor",
        name="triples of words",
        side=k,
        made=lambda reader: WordTriples(reader=reader, **common),
        facts={"alpha0": request.alpha0, "half_length": request.half_length},
        arrays=(sums.mean, sums.third, white.matrix),
    )
    return job.components_of(derived, k, tensor_tol(job.source, request), request.options())


def _model(
    job: Stages, sums: WordSums, pairs: Solution, white: Whitening, found: Decomposed, request: TopicRequest
) -> TopicModel:
    """Back to words: topics as the moments give them have small negative parts, and are projected on the simplex."""
    kept, decomposed = found.kept, found.solution
    model = LDA(alpha0=request.alpha0) if request.alpha0 else SingleTopic()
    recovered = model.unwhiten(white, decomposed.values[kept], decomposed.basis[:, kept])
    topics, negative = on_simplex(recovered.components)
    order = np.argsort(-recovered.weights, kind="stable")
    facts = {
        "asked": request.topics,
        "alpha0": request.alpha0,
        "documents": sums.documents,
        "skipped": sums.skipped,
        "word_count": sums.words,
        "spectrum": np.sort(pairs.values[pairs.values > 0])[::-1].tolist(),
        "condition": white.condition,
        "warnings": [
            *job.source.notes,
            *([white.warning] if white.warning else []),
            *found.warnings("topics"),
        ],
        "tensor_weights": decomposed.values[kept][order].tolist(),
        "tensor_status": decomposed.facts["status"],
        "tensor_outcome": asdict(decomposed.outcome),
        "negative_mass": negative[order].tolist(),
        "weights_sum": float(recovered.weights.sum()),  # alpha0, of single topics 1, if the model holds
        "passes": 1 + pairs.total_data_passes + (1 if request.moments == "held" else decomposed.total_data_passes),
    }
    alpha = recovered.weights[order]
    vocabulary = _vocabulary(job.source)
    return TopicModel(topics=topics[:, order], alpha=alpha, vocabulary=vocabulary, facts=facts)


def _vocabulary(source: Source) -> tuple[str, ...]:
    words = getattr(source, "words", None)
    return words_of_array(words) if words is not None else tuple(f"word {i}" for i in range(1, source.shape[1] + 1))


def fit_topics(
    source: Any,
    topics: int,
    *,
    store: str | Path,
    resources: Resources | None = None,
    observer: Observer | None = None,
    **asked: Any,
) -> TopicModel:
    """:func:`_fit_in_store` of a store by its path; ``asked`` are further fields of :class:`TopicRequest`."""
    request = TopicRequest(topics=topics, **asked)
    with RunStore(store) as held:
        return _fit_in_store(held, open_source(source), request, resources or Resources(), observer or Observer())


# From a corpus as users have it to stores of documents below a job: words that count, documents held out.


TRAINING, HELD_OUT, ORIGIN = "documents.zarr", "held-out.zarr", "origin"
NAMES = "labels"  # the part that holds what documents are called, where the corpus says so
CORPUS = "kept"  # the part that holds which columns of the corpus are words of the model


@dataclass(frozen=True, kw_only=True)
class CorpusFilter:
    """Selection of documents and words from a corpus.

    Parameters
    ----------
    held_out : share of the documents that topics are measured on and not found from (every so many-th); 0: none.
    min_df : words in fewer documents are left out; max_df : words in more than this share of them.
    """

    held_out: float = 0.1
    min_df: int = 1
    max_df: float = 1.0

    def __post_init__(self) -> None:
        require(0 <= self.held_out <= 0.5, f"held_out = {self.held_out} is a share of the documents, from 0 to 0.5")
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
    kept = _kept_columns(documents, cut)
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
    """Return the path of the corpus; "" if it was in memory."""
    found = held.part_meta(ORIGIN)
    assert found is not None
    given = found["source"]
    place = str(given[0] if isinstance(given, list) else given)
    return place if "/" in place else ""


def document_names(held: RunStore, rows: np.ndarray) -> list[str]:
    """Return the names of documents by their numbers in the corpus (from 0); numbers from 1 where it has no names."""
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


def _kept_columns(documents: Documents, cut: CorpusFilter) -> np.ndarray:
    if cut.min_df <= 1 and cut.max_df >= 1:
        return np.arange(documents.columns)
    return kept_words(*document_frequencies(documents), min_df=cut.min_df, max_df=cut.max_df)


def _identity(given: Any) -> Any:
    """Return the identity of a corpus or vocabulary: path, size and time of a file; a checksum of data in memory."""
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

    kind: ClassVar[str] = KIND

    model: TopicModel
    coherence: Coherence
    perplexity: Perplexity | None
    store: str
    warnings: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def outcome(self) -> Outcome:
        """Describe the result in a sentence; named as the decomposition ended."""
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
        """State how wrong the topics can be, in a sentence for everybody."""
        model, held = self.model, self.perplexity
        unigram = None if held is None else (held.model, held.unigram)
        return of_topics(model.topics, model.weights, model.facts, unigram).sentence

    @property
    def answered(self) -> bool:
        """Say whether the decomposition converged."""
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


def resume_topics(store: str | Path, resources: Resources, observer: Observer) -> TopicAnswer:
    """Go on with the job of a store, as it was asked for."""
    with RunStore(store) as held:
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
    return _read(RunStore(store))


def _facts(answer: TopicAnswer) -> dict[str, Any]:
    """List what is known of topics, the heaviest first."""
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
        "c_npmi": c_npmi,
        "u_mass": u_mass,
        **more,
        **{name: value for name, value in model.facts.items() if name != "warnings"},
        "topics": topics,
    }


def _answer(held: RunStore, request: TopicRequest, resources: Resources, observer: Observer) -> TopicAnswer:
    measured = held.read_part(QUALITY) is not None and held.read_part(PART) is not None
    model = _fit_in_store(held, open_source(held.path / TRAINING), request, resources, observer, **of_words(held))
    if not measured:
        observer.on_stage("quality: coherence and perplexity of the topics")
        held.write_part(QUALITY, *_measured(held, model))
    return _read(held)


def of_words(held: RunStore) -> dict[str, Any]:
    """Which columns of the corpus the words of the model are (None: all), and how many columns it has."""
    found = held.read_part(ORIGIN)
    assert found is not None
    kept, columns = found[0][CORPUS], found[1]["columns"]
    return {"kept": None if len(kept) == columns else kept, "source_columns": columns}


def _measured(held: RunStore, model: TopicModel) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    training = documents_of(held.path / TRAINING)
    found = topic_coherence(model, training, TOP)
    arrays = {"u_mass": found.u_mass, "c_npmi": found.c_npmi}
    facts: dict[str, Any] = {"top": found.top, "documents": found.documents, "diversity": model.diversity()}
    if (held.path / HELD_OUT).exists():
        others = documents_of(held.path / HELD_OUT)
        facts["perplexity"] = asdict(held_out_perplexity(model, others, word_counts(training)))
    return arrays, facts


def _read(held: RunStore) -> TopicAnswer:
    arrays, facts, _ = answer_of_job(held, QUALITY)
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


JOB = StagedJob(TopicAnswer, resume_topics, read_topics, _facts)
