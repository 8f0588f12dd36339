"""Topics of documents in a store, by moments: four stages, each kept, in a pass or a few over the documents.

::

    1. totals           one pass: how often each word comes, how many documents are too short        WordTotals
    2. whitening        leading pairs of the second moment M2, a pass a step                         WordPairs
    3. M3(W, W, W)      one pass, k x k x k; or never formed: a pass for each product                WhitenedTriples
    4. decomposition    the tensor power method on it, then back to words                            TensorPower

Anandkumar, Ge, Hsu, Kakade and Telgarsky (2014), algorithm 1 on the moments of section 3; all moments are of
*different* words of a document, so that a word repeated is not taken for a pair.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from npmdask.checkpoint.store import CHECKPOINT_FORMAT, RunStore
from npmdask.errors import BadInputError, package_version
from npmdask.models.topics.model import PART, TopicModel
from npmdask.models.topics.vocabulary import words_of_array
from npmdask.numerics.moments import LDA, SingleTopic, Whitening, on_simplex, whiten
from npmdask.operators.word_moments import HALF_LENGTH, WhitenedTriples, WordPairs, WordSums, WordTotals, WordTriples
from npmdask.planning.predicted_steps import Predictor
from npmdask.privacy.request import unprotected
from npmdask.runs.observers import Observer, Observers
from npmdask.runs.restore import bind_spec
from npmdask.runs.session import Session
from npmdask.runs.solution import Resources, Solution
from npmdask.runs.stages import Decomposed, MomentOperator, Stages
from npmdask.storage.readers.sparse import CsrReader
from npmdask.storage.source import Source, open_source

KIND = "topics"
MATRIX_TOL = 1e-4  # relative residual of pairs of M2, which a sample of documents knows to some per cent
OF_SAMPLING = 0.1  # of a tensor's sampling error: what its decomposition may add
TENSOR_TOLS = (1e-6, 1e-2)  # of the decomposition, at least and at most


@dataclass(frozen=True, kw_only=True)
class TopicRequest:
    """What is asked for: public parameters, part of a run's identity.

    Parameters
    ----------
    topics : k.
    alpha0 : sum of the Dirichlet parameters of a document's shares; 0: each document has one topic.
    half_length : words of a document that counts half as much as a very long one; 0: all count the same.
    moments : "held": M3 in white coordinates is formed in one pass, k^3 numbers; "implicit": every product is a pass.
    restarts, iterations, harvest : of the tensor power method (:class:`npmdask.runs.build.TensorOptions`).
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
        if self.topics < 1:
            raise BadInputError(f"topics = {self.topics} must be at least 1")
        if not 0 <= self.alpha0 < np.inf:
            raise BadInputError(f"alpha0 = {self.alpha0} must be at least 0 (0: a single topic per document)")
        if self.moments not in ("held", "implicit"):
            raise BadInputError(f'moments = {self.moments!r}: "held" (k^3 numbers) or "implicit"')
        if self.seed < 0:
            raise BadInputError(f"seed = {self.seed} must not be negative")

    def options(self) -> dict[str, Any]:
        """Of the tensor power method. A product with a tensor that is held costs nothing, so that rounds can be
        thorough: real text is no exact mixture, and one component after the other leaves less of its tensor than a
        harvest.
        """
        held = self.moments == "held"
        asked = {
            "restarts": 2 * self.topics + 10 if held and self.restarts is None else self.restarts,
            "iterations": self.iterations,
            "harvest": False if held and self.harvest is None else self.harvest,
        }
        return {name: value for name, value in asked.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class KeptWords:
    """Which columns of a corpus the words of its model are (None: all), and how many columns it has."""

    kept: np.ndarray | None = None
    columns: int | None = None


def fit_in(
    held: RunStore,
    source: Source,
    request: TopicRequest,
    resources: Resources,
    observer: Observer,
    words: KeptWords | None = None,
) -> TopicModel:
    """Run the job in ``held``, go on with it, or read its answer.

    Raises
    ------
    BadInputError
        Data that are no counts of words, no document of three words, more topics than M2 supports.
    RefusedError
        The store belongs to other data or parameters; the memory does not suffice.
    """
    reader = require_documents(source)
    bind_spec(_spec(source, request), held, {"resources": asdict(resources)}, once={"source": source.path})
    found = held.read_part(PART)
    if found is None:
        resources.require_possible()
        with Session(held, resources, Observers(Predictor(), observer)) as session:
            model = _fitted(Stages(session, source, request.seed), reader, request)
        words = words or KeptWords()
        held.write_part(PART, *replace(model, kept=words.kept, source_columns=words.columns).saved())
        found = held.read_part(PART)
    assert found is not None
    return TopicModel.of(*found)


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
    return {
        "data": {"fingerprint": source.fingerprint, "shape": list(source.shape), "kind": KIND},
        "algorithm": {"name": KIND, **asdict(request)},
        "mechanism": {"mechanism": "none"},
        "stop": {"matrix_tol": MATRIX_TOL, "tensor_tol": tensor_tol(source, request)},
        "run": {"seed": request.seed},
        "version": {"npmdask": package_version(), "checkpoint_format": CHECKPOINT_FORMAT},
    }


def _fitted(job: Stages, reader: CsrReader, request: TopicRequest) -> TopicModel:
    k, d = request.topics, reader.shape[1]
    if k > d:
        raise BadInputError(f"topics = {k} of {d} words: there can be at most as many topics as words")
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
            *unprotected(job.source.budget),
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
    """:func:`fit_in` of a store by its path; ``asked`` are further fields of :class:`TopicRequest`."""
    request = TopicRequest(topics=topics, **asked)
    with RunStore(store) as held:
        return fit_in(held, open_source(source), request, resources or Resources(), observer or Observer())
