"""Topics in the manner of scikit-learn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from npmdask.containers.containers import values_of
from npmdask.core.execution.executor import single_threaded_blas
from npmdask.core.numerics.subspaces import Block
from npmdask.core.runs.progress import with_progress
from npmdask.core.runs.resources import asked_resources
from npmdask.estimators.base import TRANSFORMER, Estimator, in_memory, run_store, seed_of
from npmdask.topics.documents import Documents, documents_of
from npmdask.topics.quality import Coherence, Perplexity, held_out_perplexity, topic_coherence, word_counts
from npmdask.topics.run import CorpusFilter, run_topics
from npmdask.topics.transform import MAX_ITERATIONS, TOL, for_model, shares_of
from npmdask.topics.word_moments import HALF_LENGTH


@dataclass(eq=False, repr=False)
class Topics(*TRANSFORMER, Estimator):  # type: ignore[misc]
    """
    Find topics (latent Dirichlet allocation) from moments, in a few passes for a corpus of any size.

    Counts must be whole numbers: shares and tf-idf are refused. Most of scikit-learn's estimator checks, which use
    fractions, therefore do not apply.

    Parameters
    ----------
    n_components : int, default 10
        Topics (k).
    alpha0 : float, default 1.0
        Sum of the Dirichlet parameters of a document's shares; if it is small, documents have few topics.
    half_length : float, default 100.0
        Number of words at which a document counts half: one of N words counts N / (N + half_length).
    min_df : int, default 1
        Words in fewer documents are left out.
    max_df : float, default 1.0
        Words in more than this share of the documents are left out.
    memory : str or int, optional
        Limit for the fit, like "1GiB"; by default none.
    store : str or Path, optional
        Folder of the run, from which a killed fit resumes; by default a temporary one.
    max_doc_update_iter : int, default 1000
        Maximum number of iterations of ``transform`` for a document.
    doc_update_tol : float, default 1e-5
        Sum of the changes of a document's shares at which they end.
    random_state : int, RandomState or None, default 0
        Seed of the random starts; None uses a fixed seed.
    progress : bool, default False
        Show the progress and the time left: on stderr, or below the cell of a notebook.

    Attributes
    ----------
    model_ : npmdask.topics.model.TopicModel
        The fitted model, after ``fit``.
    n_features_in_ : int
        Number of columns that were fitted (V if no word was left out).

    Examples
    --------
    >>> import numpy as np
    >>> import npmdask
    >>> rng = np.random.default_rng(0)
    >>> topics = np.array([[0.45, 0.45, 0.05, 0.05], [0.05, 0.05, 0.45, 0.45]])
    >>> shares = rng.dirichlet([0.2, 0.2], size=2000)
    >>> counts = np.array([rng.multinomial(100, p) for p in shares @ topics])
    >>> found = npmdask.Topics(2, alpha0=0.4).fit(counts, vocabulary=["cat", "dog", "tax", "law"])
    >>> sorted(sorted(word for word, _ in words) for words in found.top_words(2))
    [['cat', 'dog'], ['law', 'tax']]
    """

    n_components: int = 10
    _: KW_ONLY
    alpha0: float = 1.0
    half_length: float = HALF_LENGTH
    min_df: int = 1
    max_df: float = 1.0
    memory: str | int | None = None
    store: str | Path | None = None
    max_doc_update_iter: int = MAX_ITERATIONS
    doc_update_tol: float = TOL
    random_state: Any = 0
    progress: bool = False

    def fit(self, X: Any, y: Any = None, *, vocabulary: Sequence[str] | str | Path | None = None) -> Self:
        """
        Find the topics of documents.

        Parameters
        ----------
        X : scipy.sparse matrix, array_like, str or Path, shape (documents, words)
            Counts, or the store or file that holds them; read in batches.
        y : None
            Ignored; it is there for pipelines.
        vocabulary : sequence of str, str or Path, optional
            A word for each column, or the file of them; by default those of the store, or "word 1", "word 2", ...

        Returns
        -------
        Topics
            This object.

        Raises
        ------
        BadInputError
            No counts, a vocabulary that does not fit, no word within the bounds, more topics than the data support.
        RefusedError
            The memory does not suffice, or ``store`` is of another run.
        """
        held = self._checked_input(X, first=True)
        with run_store(self.store) as store, with_progress(None, self.progress) as told:
            answer = run_topics(
                held,
                self.n_components,
                vocabulary,
                store=store,
                cut=CorpusFilter(held_out=0.0, min_df=self.min_df, max_df=self.max_df),
                resources=asked_resources(self.memory),
                observer=told,
                alpha0=self.alpha0,
                half_length=self.half_length,
                seed=seed_of(self.random_state),
            )
        self.model_ = answer.model
        self.n_features_in_ = answer.model.source_columns
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = tags.input_tags.positive_only = True
        return tags

    @property
    def _n_features_out(self) -> int:
        return self._fitted_model().k

    @property
    def components_(self) -> Block:
        """Probabilities of the words in each topic, k x V; each row sums to 1."""
        return np.ascontiguousarray(self._fitted_model().topics.T)

    @property
    def alpha_(self) -> np.ndarray:
        """Dirichlet parameters of the topics, k numbers."""
        return self._fitted_model().alpha

    @property
    def vocabulary_(self) -> tuple[str, ...]:
        """Return the V words that were not left out."""
        return self._fitted_model().vocabulary

    def transform(self, X: Any) -> Block:
        """
        Compute the shares of the topics in each document.

        They are held in memory; of a corpus that is larger,
        :func:`npmdask.topics.transform.transform_documents` writes them to a store.

        Parameters
        ----------
        X : scipy.sparse matrix, array_like, str or Path, shape (n, words)
            Counts of words, in the columns of the fit.

        Returns
        -------
        numpy.ndarray, shape (n, k)
            Shares; each row sums to 1.
        """
        model = self._fitted_model()
        limits: dict[str, Any] = {"max_iterations": self.max_doc_update_iter, "tol": self.doc_update_tol}
        with single_threaded_blas():
            batches = self._documents(X).read()
            found = [shares_of(batch, model.topics, model.alpha, **limits).shares for batch in batches]
        return np.concatenate([*found, np.empty((0, model.k))])

    def _documents(self, X: Any) -> Documents:
        """Read documents from counts of the columns of the fit, or of the words that were kept: a model takes both."""
        model, held = self._fitted_model(), values_of(X)
        if in_memory(held) and (model.kept is None or np.shape(held)[1:] != (model.words,)):
            held = self._checked_input(X, first=False)
        return for_model(documents_of(held), model)

    def fit_transform(self, X: Any, y: Any = None, *, vocabulary: Sequence[str] | str | Path | None = None) -> Block:
        """
        Find the topics of documents, and their shares in each.

        Parameters
        ----------
        X : scipy.sparse matrix, array_like, str or Path, shape (n, words)
            Counts, or the store or file that holds them.
        y : None
            Ignored; it is there for pipelines.
        vocabulary : sequence of str, str or Path, optional
            A word for each column, or the file of them.

        Returns
        -------
        numpy.ndarray, shape (n, k)
            Shares; each row sums to 1.
        """
        return self.fit(X, vocabulary=vocabulary).transform(X)

    def top_words(self, n: int = 10) -> list[list[tuple[str, float]]]:
        """
        List the most probable words of each topic.

        Parameters
        ----------
        n : int, default 10
            Words of each topic.

        Returns
        -------
        list of list of (str, float)
            Of each topic its words with their probabilities, falling.
        """
        return self._fitted_model().top_words(n)

    def coherence(self, X: Any, n: int = 10) -> Coherence:
        """
        Measure whether the top words of a topic occur together in documents.

        See :func:`npmdask.topics.quality.topic_coherence`.

        Parameters
        ----------
        X : scipy.sparse matrix, array_like, str or Path, shape (documents, words)
            Documents to look in.
        n : int, default 10
            Top words of each topic.

        Returns
        -------
        Coherence
            Of each topic, and their mean.
        """
        return topic_coherence(self._fitted_model(), for_model(documents_of(X), self._fitted_model()), n)

    def perplexity(self, X: Any, background: Any, seed: int = 0) -> Perplexity:
        """
        Measure how well the topics predict the other half of documents that were held out.

        See :func:`npmdask.topics.quality.held_out_perplexity`.

        Parameters
        ----------
        X : scipy.sparse matrix, array_like, str or Path, shape (documents, words)
            Documents that were not fitted.
        background : scipy.sparse matrix, array_like, str or Path
            The documents of the fit, whose frequencies of words are the unigram model to compare with.
        seed : int, default 0
            Of the halving of each document.

        Returns
        -------
        Perplexity
            Of the topics and of the unigram model.
        """
        model = self._fitted_model()
        before = word_counts(for_model(documents_of(background), model))
        return held_out_perplexity(model, for_model(documents_of(X), model), before, seed=seed)
