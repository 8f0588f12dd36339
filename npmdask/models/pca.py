"""Principal components and truncated SVD in the manner of scikit-learn, of data that need not fit in memory.

With scikit-learn installed they are estimators of its own: for pipelines, searches, ``clone`` and ``set_output``.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
import zarr

from npmdask.checkpoint.store import RunStore
from npmdask.errors import BadInputError
from npmdask.models.estimator import Estimator, run_store
from npmdask.numerics.subspaces import Block, fix_signs
from npmdask.numerics.units import parse_memory
from npmdask.planning.predicted_steps import drive
from npmdask.runs.build import make_problem
from npmdask.runs.problem import Request
from npmdask.runs.solution import Resources, Solution
from npmdask.storage.containers import is_sparse, values_of
from npmdask.storage.kinds import real_array
from npmdask.storage.readers.lazy import BlockRows
from npmdask.storage.source import open_source
from npmdask.storage.writers.dense import Moments
from npmdask.streaming.source import Reading, open_stream
from npmdask.streaming.transform import components_of

try:
    from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
    from sklearn.utils.validation import check_is_fitted, check_random_state, validate_data
except ModuleNotFoundError:  # it is no dependency: the same methods, without its checks

    class _Base(Estimator):
        def fit_transform(self, X: Any, y: Any = None) -> Block:
            """Find the components of X, and its scores along them."""
            return self.fit(X).transform(X)  # type: ignore[attr-defined]

        def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
            """Name the scores, as scikit-learn does."""
            count = self._n_features_out  # type: ignore[attr-defined]
            return np.array([f"{type(self).__name__.lower()}{i}" for i in range(count)], object)

    WITH_SCIKIT_LEARN = False
    BASES: Any = (_Base,)
else:
    WITH_SCIKIT_LEARN = True
    BASES = (ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator)

BATCH_BYTES = 16 * 2**20  # of rows as float64 that are read at once


def _in_memory(held: Any) -> bool:
    """Whether these are numbers that scikit-learn can look at, and not a place or a recipe of them."""
    if isinstance(held, str | os.PathLike | zarr.Array | zarr.Group | BlockRows):
        return False
    return isinstance(held, list | tuple) or hasattr(held, "__array__") or is_sparse(held)


class _Components(*BASES):  # type: ignore[misc]
    """What PCA and TruncatedSVD share: parameters, the run of a fit, scores."""

    n_components: Any
    centred = False

    def fit(self, X: Any, y: Any = None) -> Self:
        """
        Find the components.

        Parameters
        ----------
        X : array_like, sparse matrix, table, Dask array, zarr.Array, str or Path, shape (n, d)
            Rows, as for :func:`npmdask.top_k`: in memory, lazy, or the path or URL of a store.
        y : None
            Ignored; it is there for pipelines.

        Returns
        -------
        PCA or TruncatedSVD
            This object.

        Raises
        ------
        BadInputError
            The data or a parameter are wrong.
        RefusedError
            The memory does not suffice, or ``store`` is of another run.
        """
        held = self._looked_at(X, first=True)
        if _in_memory(held):
            sparse = is_sparse(held)
            held = held if sparse else real_array(held, "X")
            shape = held.shape
        else:
            source = open_source(held)
            shape, sparse = source.shape, source.reader.layout == "csr"
        if len(shape) != 2:
            raise BadInputError(f"X has shape {shape}; rows x columns are needed")
        n, d = (int(size) for size in shape)
        if n <= self.centred:
            raise BadInputError(f"X has {n} sample (n_samples = {n}): at least 2 are needed")
        self.n_features_in_ = d
        asked = self._asked(n, d)
        with run_store(self.store) as store:
            request = Request(target_rank=asked, center=self.centred, tol=self.tol, seed=_seed(self.random_state))
            problem = make_problem(open_source(held, "sparse" if sparse else "samples"), request)
            with RunStore(store) as run:
                solution = drive(problem, run, Resources(memory=parse_memory(self.memory)), None)
            found = components_of(store)
        if not solution.answered:
            warnings.warn(solution.outcome.sentence, RuntimeWarning, stacklevel=2)
        values = np.maximum(solution.values, 0.0)  # what rounding leaves of zeros may be negative
        self.components_ = np.ascontiguousarray((solution.basis * fix_signs(solution.basis)).T)
        self.singular_values_ = values if sparse else np.sqrt(values * n)
        self.n_samples_ = n
        self._n_features_out = len(values)
        self._finish(held, solution, found.mean)
        return self

    def transform(self, X: Any) -> Block:
        """
        Get the scores of rows along the components.

        Parameters
        ----------
        X : array_like, sparse matrix, table, Dask array, zarr.Array, str or Path, shape (n, d)
            Rows, as for ``fit``; those that are not in memory are read once, some at a time.

        Returns
        -------
        numpy.ndarray, shape (n, k)
            Scores, in memory.

        Raises
        ------
        BadInputError
            Rows of another width, or before ``fit``.
        """
        self._require_fit()
        held = self._looked_at(X, first=False)
        if _in_memory(held):
            rows = held if is_sparse(held) else np.asarray(real_array(held, "X"), np.float64)
            self._require_width(rows.shape)
            return self._scores(rows)
        stream = open_stream(held, Reading()).stream
        self._require_width((0, stream.columns))
        return np.concatenate([self._scores(rows) for rows in _batches(stream)])

    def inverse_transform(self, X: Any) -> Block:
        """
        Get rows back from their scores, as far as the components reach.

        Parameters
        ----------
        X : array_like, shape (n, k)
            Scores.

        Returns
        -------
        numpy.ndarray, shape (n, d)
            Rows.

        Raises
        ------
        BadInputError
            Scores of another number of components, or before ``fit``.
        """
        self._require_fit()
        scores = np.asarray(real_array(X, "the scores"), np.float64)
        if scores.ndim != 2 or scores.shape[1] != len(self.components_):
            raise BadInputError(f"scores of shape {scores.shape}: {len(self.components_)} columns are needed")
        rows = (scores * self._scale()) @ self.components_
        return rows + self.mean_ if self.centred else rows

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _scores(self, rows: Any) -> Block:
        """Scores of rows, the mean taken off before where rows are dense, and off the products where they are not."""
        weights, mean = self.components_.T / self._scale(), self.mean_ if self.centred else None
        if mean is None:
            return np.asarray(rows @ weights)
        return np.asarray(rows @ weights - mean @ weights if is_sparse(rows) else (rows - mean) @ weights)

    def _scale(self) -> np.ndarray | float:
        """What scores are divided by."""
        return 1.0

    def _asked(self, n: int, d: int) -> int | float:
        """How many components, or what share of the variance."""
        asked, most = self.n_components, min(n, d)
        if asked is None:
            return most
        if isinstance(asked, str):
            raise BadInputError(f"n_components = {asked!r} is not known: give a number, or a share of the variance")
        if isinstance(asked, float | np.floating) and 0 < asked < 1:
            return float(asked)
        if not isinstance(asked, int | np.integer) or isinstance(asked, bool) or not 1 <= asked <= most:
            raise BadInputError(
                f"n_components = {asked!r}: it is a whole number from 1 to {most}, or a share of the variance between "
                f"0 and 1 (n_samples = {n}, n_features = {d})"
            )
        return int(asked)

    def _looked_at(self, X: Any, *, first: bool) -> Any:
        """X as it is taken, after scikit-learn's own look at it where that is installed, and it is in memory."""
        held = values_of(X)
        if not WITH_SCIKIT_LEARN or not _in_memory(held):
            return held
        given = X if hasattr(X, "iloc") else held  # a table of pandas has names, which are kept
        types, least = [np.float64, np.float32], 1 + (first and self.centred)
        return validate_data(self, given, reset=first, accept_sparse=True, dtype=types, ensure_min_samples=least)

    def _require_fit(self) -> None:
        if WITH_SCIKIT_LEARN:
            check_is_fitted(self, "components_")
        elif not hasattr(self, "components_"):
            raise BadInputError(f"{type(self).__name__} knows nothing yet: call fit first")

    def _require_width(self, shape: tuple[int, ...]) -> None:
        if len(shape) != 2 or shape[1] != self.n_features_in_:
            raise BadInputError(
                f"X has {shape[-1]} features, but {type(self).__name__} is expecting {self.n_features_in_} features as "
                "input"
            )

    def _finish(self, held: Any, solution: Solution, mean: np.ndarray | None) -> None:
        raise NotImplementedError


def _batches(stream: Any) -> Iterator[Block]:
    """All rows of a stream, some MiB at a time."""
    count = max(1, BATCH_BYTES // (8 * stream.columns))
    while (rows := stream.read(count)) is not None:
        yield rows


def _shares(variances: np.ndarray, total: float) -> np.ndarray:
    """Parts of the whole variance; not a number, as with scikit-learn, where there is none."""
    return variances / total if total > 0 else np.full(len(variances), np.nan)


def _seed(random_state: Any) -> int:
    """A seed of a run, from what scikit-learn takes as one; None is always the same."""
    if random_state is None:
        return 0
    if isinstance(random_state, int | np.integer):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31))


class PCA(_Components):
    """
    Find the principal components of rows that need not fit in memory.

    What scikit-learn's PCA finds, with its attributes, signs and methods, for all that :func:`npmdask.top_k` takes:
    arrays, sparse matrices (centred without filling them in), tables, Dask arrays, stores by path or URL. Components
    whose variance is less than 1e-15 of the largest are noise.

    Parameters
    ----------
    n_components : int or float, optional
        How many, 1 to min(n, d), or the share of the variance (0 to 1) that they are to explain; by default all.
    whiten : bool, default False
        Divide scores by their standard deviations.
    tol : float, optional
        Relative residual to reach; 1e-9, or 1e-6 for float32 data, by default.
    memory : str or int, optional
        Limit for the fit, like "1GiB".
    store : str or Path, optional
        Folder of the run, which a killed fit goes on from; a temporary one by default.
    random_state : int, RandomState or None, default None
        Of the random start, which the result does not depend on beyond ``tol``. None is always the same.

    Attributes
    ----------
    components_ : numpy.ndarray, shape (k, d)
        Orthonormal rows; the entry of largest size in each is positive.
    explained_variance_ : numpy.ndarray, shape (k,)
        Variance of the scores, n - 1 in the denominator.
    explained_variance_ratio_ : numpy.ndarray, shape (k,)
        The same as shares of the variance of all columns.
    singular_values_ : numpy.ndarray, shape (k,)
        Of the centred rows.
    mean_ : numpy.ndarray, shape (d,)
        Of the columns.
    n_components_, n_samples_, n_features_in_ : int
        k, n and d.
    noise_variance_ : float
        Mean variance of the components that were left out.

    See Also
    --------
    npmdask.top_k : The same run, with its certificate and report.

    Examples
    --------
    >>> import numpy as np
    >>> import npmdask
    >>> rows = np.random.default_rng(0).standard_normal((500, 6)) * [9, 5, 1, 1, 1, 1]
    >>> pca = npmdask.PCA(n_components=2).fit(rows)
    >>> pca.transform(rows).shape, pca.explained_variance_ratio_.round(2).tolist()
    ((500, 2), [0.75, 0.21])
    """

    centred = True

    def __init__(
        self,
        n_components: int | float | None = None,
        *,
        whiten: bool = False,
        tol: float | None = None,
        memory: str | int | None = None,
        store: str | Path | None = None,
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.whiten = whiten
        self.tol = tol
        self.memory = memory
        self.store = store
        self.random_state = random_state

    def _scale(self) -> np.ndarray | float:
        # As scikit-learn: a direction without variance is not blown up.
        return np.maximum(np.sqrt(self.explained_variance_), np.finfo(float).eps) if self.whiten else 1.0

    def _finish(self, held: Any, solution: Solution, mean: np.ndarray | None) -> None:
        n, k = self.n_samples_, len(self.singular_values_)
        variances = self.singular_values_**2 / (n - 1)
        share, most = solution.explained_share, min(n, self.n_features_in_)
        kept = float(variances.sum())
        total = kept / share if share else 0.0  # there is none where no variance is to be explained
        assert mean is not None  # of a centred run
        self.mean_, self.n_components_ = mean, k
        self.explained_variance_ = variances
        self.explained_variance_ratio_ = _shares(variances, total)
        self.noise_variance_ = max(total - kept, 0.0) / (most - k) if k < most else 0.0


class TruncatedSVD(_Components):
    """
    Find the leading singular vectors of a matrix that need not fit in memory, without centring it.

    What scikit-learn's TruncatedSVD finds, with its attributes and signs; of sparse matrices without filling them in.
    Singular values below 1e-7 of the largest are noise: :func:`npmdask.singular_triplets` finds them.

    Parameters
    ----------
    n_components : int, default 2
        How many, 1 to min(n, d).
    tol : float, optional
        Relative residual to reach; 1e-9, or 1e-6 for float32 data, by default.
    memory : str or int, optional
        Limit for the fit, like "1GiB".
    store : str or Path, optional
        Folder of the run, which a killed fit goes on from; a temporary one by default.
    random_state : int, RandomState or None, default None
        Of the random start, which the result does not depend on beyond ``tol``. None is always the same.

    Attributes
    ----------
    components_ : numpy.ndarray, shape (k, d)
        Right singular vectors; the entry of largest size in each is positive.
    singular_values_ : numpy.ndarray, shape (k,)
        The largest first.
    explained_variance_ : numpy.ndarray, shape (k,)
        Variance of the scores, n in the denominator.
    explained_variance_ratio_ : numpy.ndarray, shape (k,)
        The same as shares of the variance of all columns.
    n_features_in_ : int
        d.

    See Also
    --------
    PCA : Of centred rows.
    npmdask.singular_triplets : Small singular values, too.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> import npmdask
    >>> counts = sp.random_array((300, 40), density=0.1, rng=0)
    >>> npmdask.TruncatedSVD(3).fit_transform(counts).shape
    (300, 3)
    """

    def __init__(
        self,
        n_components: int = 2,
        *,
        tol: float | None = None,
        memory: str | int | None = None,
        store: str | Path | None = None,
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.tol = tol
        self.memory = memory
        self.store = store
        self.random_state = random_state

    def _finish(self, held: Any, solution: Solution, mean: np.ndarray | None) -> None:
        """One look at all rows: the variance of scores and of columns, about means that the fit had no need of."""
        moments, n = Moments(self.n_features_in_), self.n_samples_
        for rows in _batches(open_stream(held, Reading()).stream):
            moments.add(rows)
        total, squares = float(moments.m2.sum()) / n, self.singular_values_**2 / n
        self.explained_variance_ = np.maximum(squares - (self.components_ @ moments.mean) ** 2, 0.0)
        self.explained_variance_ratio_ = _shares(self.explained_variance_, total)
