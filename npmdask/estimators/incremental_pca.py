"""Principal components of rows that come in batches, in the manner of scikit-learn's IncrementalPCA."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

import numpy as np
from scipy.sparse import issparse

from npmdask.containers.lazy import BlockRows
from npmdask.core.algorithms.base import checked_batch
from npmdask.core.execution.executor import single_threaded_blas
from npmdask.core.numerics.domains import one_of
from npmdask.core.numerics.subspaces import Block, fix_signs
from npmdask.core.runs.observers import Observer
from npmdask.core.runs.progress import with_progress
from npmdask.core.storage.column_statistics import ColumnSums
from npmdask.core.storage.kinds import real_array
from npmdask.errors import BadInputError
from npmdask.estimators.base import BATCH_BYTES, REAL, batches, require_words, weighed, weighted_batches
from npmdask.estimators.pca import CentredComponents, shares_of_variance
from npmdask.estimators.probabilistic import Probabilistic
from npmdask.missing.gaps import Marks, unmarked
from npmdask.streaming.algorithms.low_rank_update import completed_basis, updated_eigen
from npmdask.streaming.algorithms.model import (
    GAPS,
    IMPUTE,
    REFUSE,
    Learnt,
    Levels,
    RunningMean,
    centred,
    completed,
    moderate,
    no_levels,
)
from npmdask.streaming.problem import marks_of_stream
from npmdask.streaming.source import Reading, open_stream

# A batch adds to what is held: U diag(squares) U^T + rows^T rows, of which the leading directions are held on (Ross,
# Lim, Lin and Yang 2008; scikit-learn's does the same). What falls out never comes back: with k directions held for k
# wanted ones those are lost that are almost as large. Four times as many cost little beside the rows of a batch, and
# lose less of the variance: 9, 120 and 16,000 times less where deviations fall as i^-0.25, i^-0.5 and 1 / i (k = 10,
# d = 200, batches of 200 rows).
HELD = 4
SOLVERS = ("auto", "full", "tsqr", "randomized")  # words of dask-ml


@dataclass(eq=False, repr=False)
class IncrementalPCA(Probabilistic, CentredComponents):
    """
    Find the principal components of rows that come in batches, each row once.

    With the attributes, signs and methods of scikit-learn's IncrementalPCA, but more accurate: 4 k directions of the d
    columns are held on the way to k, in memory O(d (4 k + batch)). Where they are all that the rows have, the result is
    that of :class:`PCA`. The same batches give the same bits.

    Parameters
    ----------
    n_components : int, optional
        How many (k); by default as many as the first batch has rows or columns.
    whiten : bool, default False
        Divide scores by their standard deviations.
    batch_size : int, optional
        Rows that ``fit`` takes at once; by default 5 d, if 16 MiB hold them, but at least 4 k.
    missing : {"refuse", "impute"}, default "refuse"
        "impute": missing values (NaN) are replaced by what the components so far predict, given the observed values of
        the row (docs/howto/missing.md); rows without any value are skipped.
    missing_values : float or list of float, optional
        Numbers that mark missing values, in addition to NaN, such as -9999.
    progress : bool, default False
        Show the progress and the time left: on stderr, or below the cell of a notebook.
    copy : bool, default True
        As scikit-learn has it, and without effect: X is never changed.
    svd_solver : {"auto", "full", "tsqr", "randomized"}, default "auto"
        As dask-ml has it, and without effect: every batch is decomposed in full.
    iterated_power : int or "auto", default 0
        As ``svd_solver``.
    random_state : int, RandomState or None, default None
        As ``svd_solver``: nothing is random.

    Attributes
    ----------
    components_ : numpy.ndarray, shape (k, d)
        Orthonormal rows; the entry of largest size in each is positive.
    explained_variance_ : numpy.ndarray, shape (k,)
        Variance of the scores, with denominator n - 1; for weighted rows, the sum of the weights less 1.
    explained_variance_ratio_ : numpy.ndarray, shape (k,)
        The same as shares of the variance of all columns, which is exact (of imputed rows where values are missing).
    singular_values_ : numpy.ndarray, shape (k,)
        Singular values of the centred rows.
    mean_, var_ : numpy.ndarray, shape (d,)
        Means and variances of the columns, with denominator n; exact.
    noise_variance_ : float
        Mean variance of the components that were left out.
    n_components_, n_samples_seen_, n_features_in_ : int
        k, n (of weighted rows the sum of their weights) and d.
    batch_size_ : int
        Rows that the last ``fit`` took at once.

    See Also
    --------
    PCA : For rows that may be read several times: reaches its tolerance.
    StreamingPCA : The papers' algorithms, for streams that drift, saved and resumed.

    Examples
    --------
    >>> import numpy as np
    >>> import npmdask
    >>> rng = np.random.default_rng(0)
    >>> pca = npmdask.IncrementalPCA(n_components=2)
    >>> for _ in range(10):
    ...     pca = pca.partial_fit(rng.standard_normal((500, 6)) * [9, 5, 1, 1, 1, 1])
    >>> pca.n_samples_seen_, pca.explained_variance_ratio_.round(1).tolist()
    (5000, [0.7, 0.2])
    """

    n_components: int | None = None
    _: KW_ONLY
    whiten: bool = False
    batch_size: int | None = None
    missing: str = REFUSE
    missing_values: Any = None
    progress: bool = False
    copy: bool = True
    svd_solver: str = "auto"
    iterated_power: int | str = 0
    random_state: Any = None

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """
        Find the components of all rows, from the beginning, a batch at a time.

        Parameters
        ----------
        X : array_like, sparse matrix, table, Dask array, zarr.Array, str or Path, shape (n, d)
            Rows, in memory, lazy, or the path or URL of a store or of files; they are read once.
        y : None
            Ignored; it is there for pipelines.
        sample_weight : array_like, shape (n,), optional
            Weight of each row, not negative: 2 counts like two equal rows, 0 like none. For stored rows or rows in
            memory.

        Returns
        -------
        IncrementalPCA
            This object.

        Raises
        ------
        BadInputError
            The rows, the weights or a parameter are wrong.
        """
        held = self._checked_input(X, first=True, least=2, dtype=REAL, gaps=self._imputes)
        reading = Reading(gaps="give-some" if self._imputes else REFUSE, missing_values=self._marks)
        opened = open_stream(held, reading, row_weights=sample_weight)
        self.batch_size_ = self._batch_size(opened.stream.columns)
        self._forget()
        with with_progress(Observer(), self.progress) as told:
            told.on_begin(0, opened.rows, "row")
            for rows, weights in weighted_batches(opened.stream, self.batch_size_):
                self._absorb_rows(rows, weights)
                told.on_rows(opened.stream.rows_read, opened.stream.skipped, 0.0)
        self._require_fit()
        return self

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """
        Learn from a batch.

        Parameters
        ----------
        X : array_like, table or sparse matrix, shape (n, d)
            Rows, one batch, which lazy ones are computed for; of a first batch at least 2, and ``n_components``.
        y : None
            Ignored; it is there for pipelines.
        sample_weight : array_like, shape (n,), optional
            How much each row counts, as for ``fit``; rows of other batches without weights count as 1.

        Returns
        -------
        IncrementalPCA
            This object.

        Raises
        ------
        BadInputError
            Wrong width, too few rows, rows that are not finite real numbers, or another ``n_components`` than before:
            nothing was learnt.
        """
        first = not hasattr(self, "components_")
        held = self._checked_input(X, first=first, least=1 + first, dtype=REAL, gaps=self._imputes)
        if isinstance(held, BlockRows):
            lazy = open_stream(held, Reading(gaps="give" if self._imputes else REFUSE)).stream
            held = np.concatenate([rows.copy() for rows in batches(lazy)])
        rows = real_array(held.toarray() if issparse(held) else held, "the rows")
        if not first:
            self._require_width(rows.shape)
        rows, weights = weighed(unmarked(rows, self._marks), sample_weight, gaps=self._imputes)
        if first or len(rows):
            self._absorb_rows(rows, weights)
        return self

    @property
    def _imputes(self) -> bool:
        one_of(GAPS, missing=self.missing)
        return bool(self.missing == IMPUTE)

    @property
    def _marks(self) -> Marks:
        return marks_of_stream(self.missing_values, IMPUTE if self._imputes else REFUSE)

    def _forget(self) -> None:
        """Be as before the first batch; the first one tells which parameters are wrong."""
        for name in ("components_", "n_samples_seen_"):
            self.__dict__.pop(name, None)

    def _begin(self, shape: tuple[int, ...]) -> None:
        if len(shape) != 2 or shape[0] < 2 or not shape[1]:
            raise BadInputError(f"a first batch of shape {shape}: at least 2 rows and 1 column are needed")
        n, d = shape
        require_words(self, {"svd_solver": SOLVERS})
        asked = min(n, d) if self.n_components is None else self._requested_components(d)
        if asked > n:
            raise BadInputError(
                f"n_components={asked} must be less or equal to the batch number of samples {n} for the first "
                f"partial_fit call: give at least as many rows (n_samples = {n})"
            )
        self.n_components_, self.n_features_in_ = asked, d
        self._basis: Block = np.zeros((d, 0))
        self._squares = np.zeros(0)
        self._running, self._moments = RunningMean(np.zeros(d), np.zeros(d), 0.0), ColumnSums(d)
        self._levels, self._rows = no_levels(d), 0

    def _absorb_rows(self, rows: np.ndarray, weights: np.ndarray | None) -> None:
        if not hasattr(self, "components_"):
            self._begin(rows.shape)
        elif self.n_components not in (None, self.n_components_):
            raise BadInputError(
                f"n_components was {self.n_components_} for the rows so far, and is {self.n_components!r} now: set it "
                "to what it was, or call fit for all rows"
            )
        self._require_weight(rows, weights)
        levels = self._levels
        if self._imputes and not np.isinf(rows).any():
            rows, levels = completed(np.asarray(rows, np.float64), levels, self._learnt(), center=True, weights=weights)
        rows = moderate(checked_batch(rows, self.n_features_in_))
        with single_threaded_blas():
            self._running = self._mean_of_first(levels)
            turned, self._running = centred(rows, self._running, weights=weights)
            found = updated_eigen(self._basis, self._squares, turned, 1.0, turned @ self._basis)
            kept = min(HELD * self.n_components_, len(found.values))
            self._basis, self._squares = found.leading(kept), found.values[:kept]
        self._moments.add(rows, weights)
        self._levels, self._rows = levels, self._rows + len(rows)
        self._answer()

    def _learnt(self) -> Learnt | None:
        """The components so far, which gaps are completed by."""
        count = self._moments.count
        return (
            Learnt(self._basis[:, : self.n_components_], self._squares[: self.n_components_] / count) if count else None
        )

    def _mean_of_first(self, levels: Levels) -> RunningMean:
        """The mean, of columns that have their first values now that of these."""
        new = (self._levels.seen == 0) & (levels.seen > 0) & (self._running.weight > 0)
        if not new.any():
            return self._running
        self._moments.mean = np.where(new, levels.mean, self._moments.mean)
        mean, rest = np.where(new, levels.mean, self._running.mean), np.where(new, 0.0, self._running.rest)
        return self._running._replace(mean=mean, rest=rest)

    def _require_weight(self, rows: np.ndarray, weights: np.ndarray | None) -> None:
        """Refuse weights that are too small for a variance, before anything is learnt."""
        total = self._moments.count + (len(rows) if weights is None else float(weights.sum()))
        if total <= 1:
            raise BadInputError(
                f"the weights of the rows so far add up to {total:.3g}; a variance divides by "
                "this sum less 1: multiply all weights by the same number, until they sum to about the number of rows"
            )

    def _answer(self) -> None:
        """Set the attributes of scikit-learn's class; directions without variance are drawn where rows have too few."""
        k, n, lead = self.n_components_, self._moments.count, self._basis[:, : self.n_components_]
        squares = np.zeros(k)
        squares[: lead.shape[1]] = self._squares[:k]
        basis: Block = lead if lead.shape[1] == k else completed_basis(lead, k)
        self.n_samples_seen_, self.mean_, self.var_ = n, self._moments.mean, self._moments.m2 / n
        self.components_ = np.ascontiguousarray((basis * fix_signs(basis)).T)
        self.singular_values_ = np.sqrt(squares)
        self.explained_variance_ = squares / (n - 1)
        total, most = float(self._moments.m2.sum()) / (n - 1), min(self._rows, self.n_features_in_)
        self.explained_variance_ratio_ = shares_of_variance(self.explained_variance_, total)
        left = total - float(self.explained_variance_.sum())
        self.noise_variance_ = max(left, 0.0) / (most - k) if k < most else 0.0

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.missing == IMPUTE
        return tags

    def _requested_components(self, d: int) -> int:
        asked = self.n_components
        if not isinstance(asked, int | np.integer) or isinstance(asked, bool) or not 1 <= asked <= d:
            raise BadInputError(
                f"n_components={asked!r} invalid for n_features={d}, need more rows than columns for IncrementalPCA "
                f"processing: give a whole number from 1 to {d}"
            )
        return int(asked)

    def _batch_size(self, d: int) -> int:
        """Rows of a batch: as scikit-learn's, but no more than some MiB, and not fewer than are worth a step."""
        k = 1 if self.n_components is None else self._requested_components(d)
        size = self.batch_size
        if size is None:
            return max(2, HELD * k, min(5 * d, BATCH_BYTES // (8 * d)))
        if not isinstance(size, int | np.integer) or isinstance(size, bool) or size < max(2, k):
            raise BadInputError(f"batch_size = {size!r}: it is a whole number of at least 2 and n_components; or None")
        return int(size)
