"""Topics in the manner of scikit-learn, without needing it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from npmdask.execution.executor import single_threaded_blas
from npmdask.models.estimator import Estimator
from npmdask.models.topics.documents import documents_of
from npmdask.models.topics.inference import MAX_ITERATIONS, TOL, shares_of
from npmdask.models.topics.model import TopicModel
from npmdask.models.topics.prepare import Cut
from npmdask.models.topics.quality import Coherence, Perplexity, coherence, held_out_perplexity, word_counts
from npmdask.models.topics.run import run_topics
from npmdask.models.topics.transform import for_model
from npmdask.numerics.subspaces import Block
from npmdask.numerics.units import parse_memory
from npmdask.operators.word_moments import HALF_LENGTH
from npmdask.runs.solution import Resources


class Topics(Estimator):
    """Latent Dirichlet allocation by moments: topics of counts of words in a few passes, whatever the size of the data.

    Parameters
    ----------
    n_components : topics (k).
    alpha0 : sum of the Dirichlet parameters of a document's shares; small: few topics in a document.
    half_length : a document of N words counts N / (N + half_length).
    min_df, max_df : words in fewer documents than ``min_df``, or in more than the share ``max_df``, are left out.
    memory : limit for the fit, e.g. "1GiB".
    store : folder of the run, which a killed fit goes on from; a temporary one if None.
    max_doc_update_iter, doc_update_tol : of ``transform``.
    random_state : seed of the random starts.

    Attributes (after ``fit``)
    --------------------------
    model_ : the :class:`npmdask.models.topics.model.TopicModel`.
    components_ : k x V, probabilities of the words of each topic; rows sum to 1.
    alpha_ : (k) Dirichlet parameters.
    vocabulary_ : the V words.
    n_features_in_ : columns of what was fitted (V where no word was left out).
    """

    def __init__(
        self,
        n_components: int = 10,
        *,
        alpha0: float = 1.0,
        half_length: float = HALF_LENGTH,
        min_df: int = 1,
        max_df: float = 1.0,
        memory: str | int | None = None,
        store: str | Path | None = None,
        max_doc_update_iter: int = MAX_ITERATIONS,
        doc_update_tol: float = TOL,
        random_state: int = 0,
    ) -> None:
        self.n_components = n_components
        self.alpha0 = alpha0
        self.half_length = half_length
        self.min_df = min_df
        self.max_df = max_df
        self.memory = memory
        self.store = store
        self.max_doc_update_iter = max_doc_update_iter
        self.doc_update_tol = doc_update_tol
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None, *, vocabulary: Sequence[str] | str | Path | None = None) -> Topics:
        """Find the topics of documents; returns self. ``y`` is there for pipelines only.

        Parameters
        ----------
        X : counts (documents x words): a SciPy sparse matrix, a NumPy array, a store or a file; read in batches.
        vocabulary : a word for each column, or the file of them; by default that of the store, or "word 1", "word 2"...

        Raises
        ------
        BadInputError
            No counts, a vocabulary that does not fit, no word within the bounds, more topics than the data support.
        RefusedError
            The memory does not suffice, or ``store`` is of another run.
        """
        with self._run_store() as store:
            answer = run_topics(
                X,
                self.n_components,
                vocabulary,
                store=store,
                cut=Cut(held_out=0.0, min_df=self.min_df, max_df=self.max_df),
                resources=Resources(memory=parse_memory(self.memory)),
                alpha0=self.alpha0,
                half_length=self.half_length,
                seed=self.random_state,
            )
        self.model_ = answer.model
        self.n_features_in_ = answer.model.source_columns
        return self

    def _known(self) -> TopicModel:
        model: TopicModel = self._fitted()
        return model

    @property
    def components_(self) -> Block:
        return np.ascontiguousarray(self._known().topics.T)

    @property
    def alpha_(self) -> np.ndarray:
        return self._known().alpha

    @property
    def vocabulary_(self) -> tuple[str, ...]:
        return self._known().vocabulary

    def transform(self, X: Any) -> Block:
        """Shares of the topics in each document (n x k, rows sum to 1), held in memory; for a corpus that is larger,
        :func:`npmdask.models.topics.transform.transform_documents` writes them out of core."""
        model = self._known()
        limits: dict[str, Any] = {"max_iterations": self.max_doc_update_iter, "tol": self.doc_update_tol}
        with single_threaded_blas():
            batches = for_model(documents_of(X), model).read()
            found = [shares_of(batch, model.topics, model.alpha, **limits).shares for batch in batches]
        return np.concatenate([*found, np.empty((0, model.k))])

    def fit_transform(self, X: Any, y: Any = None, *, vocabulary: Sequence[str] | str | Path | None = None) -> Block:
        """``fit``, and the shares of the same documents."""
        return self.fit(X, vocabulary=vocabulary).transform(X)

    def top_words(self, n: int = 10) -> list[list[tuple[str, float]]]:
        """Of each topic the most probable words, with their probabilities."""
        return self._known().top_words(n)

    def coherence(self, X: Any, n: int = 10) -> Coherence:
        """Coherence of the top words in the documents ``X``; see :func:`npmdask.models.topics.quality.coherence_of`."""
        return coherence(self._known(), for_model(documents_of(X), self._known()), n)

    def perplexity(self, X: Any, background: Any, seed: int = 0) -> Perplexity:
        """Of the documents ``X``, held out, beside the unigram model of ``background``: the documents of the fit; see
        :func:`npmdask.models.topics.quality.held_out_perplexity`."""
        model = self._known()
        before = word_counts(for_model(documents_of(background), model))
        return held_out_perplexity(model, for_model(documents_of(X), model), before, seed=seed)
