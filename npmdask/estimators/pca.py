"""Principal components and truncated SVD in the manner of scikit-learn, of data that need not fit in memory.

With scikit-learn installed they are estimators of its own: for pipelines, searches, ``clone`` and ``set_output``.
:class:`Components` are scores of rows, and rows of scores: what all estimators of principal components share.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from copy import copy
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from scipy.sparse import issparse

from npmdask.containers.blockwise import is_lazy, mapped, token_of
from npmdask.containers.containers import labels_of
from npmdask.core.numerics.subspaces import Block
from npmdask.core.operators.view import View, in_units_of_data
from npmdask.core.runs.automatic import posed
from npmdask.core.runs.components import AS_RUN, LEAST_SQUARES, StoredComponents, require_rule
from npmdask.core.runs.driver import solve
from npmdask.core.runs.problem import AUTO, Request
from npmdask.core.runs.progress import with_progress
from npmdask.core.runs.resources import asked_resources
from npmdask.core.runs.solution import Solution
from npmdask.core.storage.column_statistics import ColumnSums
from npmdask.core.storage.kinds import real_array
from npmdask.core.storage.labels import Axis, Labels
from npmdask.core.storage.names import matched
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError, require
from npmdask.estimators.base import (
    REAL,
    TRANSFORMER,
    WITH_SCIKIT_LEARN,
    Estimator,
    batches,
    in_memory,
    require_words,
    seed_of,
)
from npmdask.estimators.probabilistic import Probabilistic, most_likely_rank
from npmdask.missing.factor_model import FactorModel
from npmdask.missing.gaps import COUNTED, EM, REFUSE, Marks
from npmdask.missing.rules import Missing, gaps_of
from npmdask.streaming.source import Reading, open_stream
from npmdask.weights.aspect import find_weights

MLE = "mle"  # scikit-learn's word for the most likely number of components
NORMALIZERS = ("auto", "QR", "LU", "none")


class Components(*TRANSFORMER, Estimator):  # type: ignore[misc]
    """``components_`` (k x d), and ``mean_`` (d) where they are ``centred``."""

    centred = False
    _column_weight: np.ndarray | None = None  # those of the fit, of the columns that were kept
    _kept: np.ndarray | None = None  # numbers of these, where others were left out
    missing_: Missing | None = None
    _model: FactorModel | None = None  # of rows with gaps, where the fit found one

    def __dir__(self) -> list[str]:
        """Leave out what says nothing: who compares estimators compares their attributes."""
        return [name for name in super().__dir__() if name != "missing_" or self.missing_ is not None]

    def __dask_tokenize__(self) -> Any:
        """Tell Dask all that it is, which would look at parameters only: two fits are not the same."""
        return token_of(type(self).__name__, vars(self))

    @property
    def _marks(self) -> Marks:
        """Numbers that mark missing values, where ``missing_`` does not say them."""
        return ()

    def transform(self, X: Any, *, missing: str = AS_RUN) -> Block:
        """
        Get the scores of rows along the components.

        Parameters
        ----------
        X : array_like, sparse matrix, table, Dask array, zarr.Array, str or Path, shape (n, d)
            Rows, as for ``fit``; those that are not in memory are read once, some at a time.
        missing : {"as-run", "least-squares"}, default "as-run"
            Missing values (NaN) are treated as in ``fit``, or scores are fitted to what is observed: see
            :meth:`npmdask.Solution.scores`.

        Returns
        -------
        numpy.ndarray, shape (n, k)
            Scores, in memory. Of an array or DataFrame of Dask, or a chunked DataArray, one of the same kind and blocks
            of rows, which nothing is computed of here, and which no store resumes.

        Raises
        ------
        BadInputError
            Rows of another width, or before ``fit``; of what is lazy, other faults of rows when they are computed.
        """
        self._require_fit()
        if is_lazy(X):
            gaps = self.missing_ is not None or require_rule(missing) == LEAST_SQUARES
            to = Axis("mode", len(self.components_), self.get_feature_names_out())
            found = self._mapped(
                "scores", X, "_scores", to, self._axes, self._require_width, gaps=gaps, missing=missing
            )
            if not self._goes_into_a_table():
                return found
            return np.asarray(found) if hasattr(found, "dims") else found.compute()
        return self._scores(X, missing=missing)

    def _goes_into_a_table(self) -> bool:
        """Say whether ``set_output`` of scikit-learn asks for a table of scores, which is one in memory."""
        asked = getattr(self, "_sklearn_output_config", {}).get("transform")
        if asked is None and WITH_SCIKIT_LEARN:
            from sklearn import get_config

            asked = get_config()["transform_output"]
        return asked not in (None, "default")

    def _scores(self, X: Any, dtype: Any = None, missing: str = AS_RUN) -> np.ndarray:
        """Scores of ``dtype``, by default that of rows in memory: of float32 no more is ever held than they take."""
        self._require_fit()
        gaps = self.missing_ is not None or require_rule(missing) == LEAST_SQUARES
        held = self._checked_input(X, first=False, dtype=REAL, gaps=gaps)
        mean, dtype = self.mean_ if self.centred else None, dtype or dtype_of(held)
        if missing == LEAST_SQUARES:  # along orthonormal directions, and whitened after
            components = self._stored_components(self.components_.T, mean)
            return (components.all_scores(held, dtype=dtype, missing=missing) / self._scale()).astype(dtype, copy=False)
        components = self._stored_components(self.components_.T / self._scale(), mean)
        if not in_memory(held):
            return components.all_scores(held, dtype=dtype)
        rows = held if issparse(held) else np.asarray(real_array(held, "X"), np.float64)
        self._require_width(rows.shape)
        if self.missing_ is not None or self._marks:
            return components.all_scores(rows, dtype=dtype)
        return components.scores(rows).astype(dtype, copy=False)

    def _stored_components(self, basis: Block, mean: np.ndarray | None) -> StoredComponents:
        weight, found = self._column_weight, self.missing_
        basis, mean = self._select_kept(basis), None if mean is None else self._select_kept(mean)
        known: dict[str, Any] = {"missing": found, "model": self._model, "marks": self._marks}
        return StoredComponents(basis=basis, mean=mean, column_weight=weight, **known)

    def inverse_transform(self, X: Any) -> Block:
        """
        Get rows back from their scores, as far as the components reach.

        Parameters
        ----------
        X : array_like, shape (n, k)
            Scores, in memory or lazy.

        Returns
        -------
        numpy.ndarray, shape (n, d)
            Rows; of lazy scores as lazy ones, as for ``transform``.

        Raises
        ------
        BadInputError
            Scores of another number of components, or before ``fit``.
        """
        self._require_fit()
        if is_lazy(X):
            to = self._axes[0] if len(self._axes) == 1 else Axis("column", self.n_features_in_)
            named = Axis("mode", len(self.components_), self.get_feature_names_out())
            called = [set(map(str, axis.places)) for axis in getattr(labels_of(X), "columns", ())]
            known = (named,) if called == [set(map(str, named.places))] else ()  # other names are taken by position
            return self._mapped("rows", X, "_rows_of", to, known, self._require_scores)
        given = np.asarray(real_array(X, "the scores"))
        return self._rows_of(given, dtype_of(given))

    def _rows_of(self, scores: np.ndarray, dtype: Any) -> np.ndarray:
        """Rows of ``dtype`` that have these scores."""
        scores = np.asarray(real_array(scores, "the scores"), np.float64)
        self._require_scores(scores.shape)
        patterns = in_units_of_data(self._select_kept(self.components_.T), self._column_weight)
        rows = (scores * self._scale()) @ patterns.T
        rows = self._expand_columns(rows + self._select_kept(self.mean_) if self.centred else rows, np.nan)
        return rows.astype(dtype, copy=False)

    def _mapped(
        self,
        called: str,
        X: Any,
        method: str,
        to: Axis,
        known: tuple[Axis, ...],
        fits: Callable[[Any], None],
        *,
        gaps: bool = False,
        **options: Any,
    ) -> Any:
        """Map a method of this object, as it is now, over lazy rows, whose columns are the ``known`` ones."""
        labels, shape = labels_of(X), tuple[Any, ...](getattr(X, "shape", ()))
        places = matched(known, () if labels is None else labels.columns, "X", "the fit").places
        if places is None and len(shape) == 2 and not np.isnan(shape[1]):
            fits(shape)
        held = copy(self)
        held.__dict__.pop("feature_names_in_", None)  # blocks have no names, and need none
        return mapped(called, X, partial(getattr(held, method), **options), to, places, gaps=gaps)

    def _require_scores(self, shape: tuple[int, ...]) -> None:
        if len(shape) != 2 or shape[1] != len(self.components_):
            raise BadInputError(f"scores of shape {shape}: {len(self.components_)} columns are needed")

    def _select_kept(self, values: np.ndarray) -> np.ndarray:
        """Select the entries (d or d x k) of the columns that were kept."""
        return values if self._kept is None else values[self._kept]

    def _expand_columns(self, values: np.ndarray, others: float) -> np.ndarray:
        """Numbers of the columns that were kept (d' or n x d') as those of all, with ``others`` elsewhere."""
        if self._kept is None:
            return np.ascontiguousarray(values)
        whole = np.full((*values.shape[:-1], self.n_features_in_), others)
        whole[..., self._kept] = values
        return whole

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    @property
    def _n_features_out(self) -> int:
        """Return the number of columns that scikit-learn names."""
        return len(self.components_)

    def _scale(self) -> np.ndarray | float:
        """Return the divisor of scores."""
        return 1.0


class CentredComponents(Components):
    """Components of centred rows; scores may be whitened."""

    centred = True
    whiten: bool

    def _scale(self) -> np.ndarray | float:
        # As scikit-learn: a direction without variance is not blown up.
        return np.maximum(np.sqrt(self.explained_variance_), np.finfo(float).eps) if self.whiten else 1.0


def dtype_of(held: Any) -> Any:
    """float32 of what is in memory in float32, as in scikit-learn; float64 of all else."""
    return np.float32 if in_memory(held) and getattr(held, "dtype", None) == np.float32 else np.float64


def shares_of_variance(variances: np.ndarray, total: float) -> np.ndarray:
    """Parts of the whole variance; not a number, as with scikit-learn, where there is none."""
    return variances / total if total > 0 else np.full(len(variances), np.nan)


@dataclass(eq=False, repr=False)
class _RunEstimator(Components):
    """Base of PCA and TruncatedSVD: the run of a fit."""

    missing = REFUSE
    missing_values = None
    missing_limit = None
    _words: ClassVar[dict[str, tuple[Any, ...]]]  # of scikit-learn, and what it takes for them

    n_components: int = 2
    _: KW_ONLY
    column_weights: Any = None
    tol: float | None = None
    memory: str | int | None = None
    device: str = "cpu"
    device_memory: str | int | None = None
    store: str | Path | None = None
    random_state: Any = None
    progress: bool = False

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """
        Find the components.

        Parameters
        ----------
        X : array_like, sparse matrix, table, Dask array, zarr.Array, str or Path, shape (n, d)
            Rows, as for :func:`npmdask.top_k`: in memory, lazy, or the path or URL of a store.
        y : None
            Ignored; it is there for pipelines.
        sample_weight : array_like, shape (n,), optional
            How much each row counts, not negative: with 2 like two equal rows, with 0 like none.

        Returns
        -------
        PCA or TruncatedSVD
            This object.

        Raises
        ------
        BadInputError
            The data, the weights or a parameter are wrong.
        RefusedError
            The memory does not suffice, or ``store`` is of another run.
        """
        return self._fit(X, labels_of(X), sample_weight)

    def _fit(self, X: Any, labels: Labels | None, sample_weight: Any) -> Self:
        """The same, of rows and columns that are called as ``labels`` say."""
        if self.missing not in (REFUSE, *COUNTED):
            known = ", ".join((REFUSE, *COUNTED))
            raise BadInputError(
                f"missing = {self.missing!r}: use one of {known}; only npmdask.top_k can also leave out columns"
            )
        gaps = self.missing != REFUSE
        held = self._checked_input(X, first=True, least=1 + self.centred, dtype=REAL, gaps=gaps)
        if in_memory(held):
            sparse = issparse(held)
            held = held if sparse else real_array(held, "X")
            shape = held.shape
        else:
            source = open_source(held)
            shape, sparse = source.shape, source.reader.layout == "csr"
        require(len(shape) == 2, f"X has shape {shape}; rows x columns are needed")
        n, d = (int(size) for size in shape)
        require(n > self.centred, f"X has {n} sample (n_samples = {n}): at least 2 are needed")
        self.n_features_in_ = d
        require_words(self, self._words)
        require(getattr(self, "compute", True), "compute = False: a fit computes its answer, so leave it out")
        asked = self._requested_components(n, d)
        opened = open_source(held, "sparse" if sparse else "samples")
        opened = replace(opened, labels=opened.labels if labels is None else labels.fitting(opened.shape))
        weights = find_weights(opened, None, sample_weight, self.column_weights)
        request = Request(
            target_rank=asked or 1,  # of none the means and the variance of all columns are left
            center=self.centred,
            tol=self.tol or None,  # 0 is what scikit-learn has by default
            seed=seed_of(self.random_state),
            aspects=(gaps_of(self), weights),
        )
        resources = asked_resources(self.memory, device=self.device, device_memory=self.device_memory)
        problem = posed(request, opened, resources, self.store)
        with with_progress(None, self.progress) as told:
            solution = solve(problem, self.store, resources, told)
        if not solution.answered:
            warnings.warn(solution.outcome.sentence, RuntimeWarning, stacklevel=2)
        found = solution.missing
        self._kept = None if found is None or len(found.kept) == d else found.kept
        counted = n if weights is None or weights.rows is None else float(weights.rows.sum())
        k = (
            most_likely_rank(solution.explained_variance, counted)
            if self.n_components == MLE
            else 0
            if asked == 0
            else None
        )
        self.components_ = self._expand_columns(solution.basis.T[:k], 0.0).astype(dtype_of(held), copy=False)
        self.singular_values_, self._rows_of_fit, self.missing_ = solution.singular_values[:k], n, found
        assert solution.analysed.components is not None
        self._column_weight = solution.analysed.components.column_weight
        self._model = solution.analysed.components.model
        self._finish(held, solution, None if weights is None else weights.rows)
        return self

    def _requested_components(self, n: int, d: int) -> int | float | str:
        """Return the number of components asked for, or the share of the variance."""
        asked, most = self.n_components, min(n, d)
        if asked is None:
            return max(1, most - (getattr(self, "svd_solver", "") == "arpack"))  # as many as scikit-learn gives then
        if asked == AUTO and self.missing == EM:
            return AUTO
        if asked == MLE and self.centred:
            few = f"n_components={MLE!r} is only supported if n_samples >= n_features, and X has {n} and {d}"
            require(n >= d, f"{few}: give a number")
            return most
        if isinstance(asked, str):
            raise BadInputError(f"n_components = {asked!r}: give a number, or a share of the variance")
        if isinstance(asked, float | np.floating) and 0 < asked < 1:
            return float(asked)
        least = int(not self.centred or self.svd_solver in ("arpack", "randomized"))  # of these scikit-learn wants one
        if not isinstance(asked, int | np.integer) or isinstance(asked, bool) or not least <= asked <= most:
            raise BadInputError(
                f"n_components={asked!r} must be between {least} and min(n_samples, n_features)={most} (n_samples = "
                f"{n}, n_features = {d}), or a share of the variance between 0 and 1: give one of them"
            )
        return int(asked)

    def _finish(self, held: Any, solution: Solution, row_weight: np.ndarray | None) -> None:
        raise NotImplementedError


@dataclass(eq=False, repr=False)
class PCA(Probabilistic, CentredComponents, _RunEstimator):
    """
    Find the principal components of rows that need not fit in memory.

    The result of scikit-learn's PCA, with its attributes, signs and methods, for every source of :func:`npmdask.top_k`:
    arrays, sparse matrices (centred without filling them in), tables, Dask arrays, stores by path or URL: n rows of d
    columns. Components whose variance is less than 1e-15 of the largest are noise.

    Parameters
    ----------
    n_components : int, float, "mle" or "auto", optional
        Number of components, 0 to min(n, d), or the share of the variance (0 to 1) that they must explain; by default
        all. "mle": the most likely number (Minka 2000), of all d variances. With ``missing="em"`` also "auto": the
        number that best predicts held-out entries.
    column_weights : array_like, shape (d,), optional
        Weights of squared columns, not negative, as for :func:`npmdask.top_k`: centred rows are multiplied by the
        square roots of the weights before the components are computed.
    tol : float, optional
        Relative residual to reach; by default, and with 0, 1e-9, or 1e-6 for float32 data.
    memory : str or int, optional
        Limit for the fit, like "1GiB"; by default none.
    device : {"cpu", "auto", "cuda"}, default "cpu"
        What sums over the rows are formed on, as for :func:`npmdask.top_k`: "cuda" is an NVIDIA GPU.
    device_memory : str or int, optional
        Limit for the memory of the GPU; most of what is free by default.
    store : str or Path, optional
        Folder of the run, from which a killed fit resumes; by default a temporary one.
    random_state : int, RandomState or None, default None
        Seed of the random start; the result depends on it only within ``tol``. None uses a fixed seed.
    progress : bool, default False
        Show the progress and the time left: on stderr, or below the cell of a notebook.
    whiten : bool, default False
        Divide scores by their standard deviations.
    missing : {"refuse", "mean", "em", "pairwise"}, default "refuse"
        "mean": missing values (NaN) of dense rows count as the means of their columns, in ``fit`` and ``transform``;
        no filled copy is made. "em": a factor model is fitted to the observed values, and ``transform`` uses what it
        expects for the others. "pairwise": each covariance uses the rows that have both columns
        (docs/howto/missing.md).
    missing_values : float or list of float, optional
        Numbers that mark missing values, in addition to NaN, such as -9999.
    missing_limit : float, optional
        With "mean": leave out columns that lack more than this share of their values, which an additional pass counts.
        Their entries are 0 in ``components_``, and NaN in ``mean_`` and in the result of ``inverse_transform``.
    copy : bool, default True
        As in scikit-learn, and without effect: X is never changed.
    svd_solver, power_iteration_normalizer : str, default "auto"
        As in scikit-learn and dask-ml, and without effect: data and memory decide how the same components are found.
    iterated_power : int or "auto", default "auto"
        As ``svd_solver``.
    n_oversamples : int, default 10
        As ``svd_solver``.

    Attributes
    ----------
    components_ : numpy.ndarray, shape (k, d)
        Orthonormal rows; the entry of largest size in each is positive. float32 of rows in memory in float32.
    explained_variance_ : numpy.ndarray, shape (k,)
        Variance of the scores, with denominator n - 1; for weighted rows, the sum of the weights less 1.
    explained_variance_ratio_ : numpy.ndarray, shape (k,)
        The same as shares of the variance of all columns.
    singular_values_ : numpy.ndarray, shape (k,)
        Singular values of the centred (and weighted) rows.
    mean_ : numpy.ndarray, shape (d,)
        Means of the columns.
    n_components_, n_samples_, n_features_in_ : int
        k, n and d.
    noise_variance_ : float
        Mean variance of the components that were left out.
    missing_ : Missing or None
        Numbers of missing values by column, if ``missing`` is not "refuse".

    See Also
    --------
    IncrementalPCA : For rows that arrive in batches, once.
    npmdask.top_k : The same computation, with a certificate and a report.

    Examples
    --------
    >>> import numpy as np
    >>> import npmdask
    >>> rows = np.random.default_rng(0).standard_normal((500, 6)) * [9, 5, 1, 1, 1, 1]
    >>> pca = npmdask.PCA(n_components=2).fit(rows)
    >>> pca.transform(rows).shape, pca.explained_variance_ratio_.round(2).tolist()
    ((500, 2), [0.75, 0.21])
    """

    n_components: int | float | None = None  # type: ignore[assignment]
    _: KW_ONLY
    whiten: bool = False
    missing: str = REFUSE
    missing_values: Any = None
    missing_limit: float | None = None  # type: ignore[assignment]
    copy: bool = True
    svd_solver: str = "auto"
    power_iteration_normalizer: str = "auto"
    iterated_power: int | str = "auto"
    n_oversamples: int = 10

    _words: ClassVar[dict[str, tuple[Any, ...]]] = {
        "svd_solver": ("auto", "full", "covariance_eigh", "arpack", "randomized", "tsqr"),
        "iterated_power": ("auto", 0),
        "n_oversamples": (1,),
        "power_iteration_normalizer": NORMALIZERS,
    }

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.missing != REFUSE
        return tags

    def _finish(self, held: Any, solution: Solution, row_weight: np.ndarray | None) -> None:
        self.n_samples_ = self._rows_of_fit
        rows = self.n_samples_ if row_weight is None else float(row_weight.sum())  # a weight is a number of rows
        k, most = len(self.singular_values_), min(rows, len(solution.basis))
        assert solution.mean is not None
        self.mean_, self.n_components_ = self._expand_columns(solution.mean, np.nan), k
        self.explained_variance_ = solution.explained_variance[:k]
        self.explained_variance_ratio_ = solution.explained_variance_ratio[:k]
        share, kept = solution.explained_share, float(self.explained_variance_.sum())
        # There is none where no variance is to be explained.
        total = float(solution.explained_variance.sum()) / share if share else 0.0
        self.noise_variance_ = max(total - kept, 0.0) / (most - k) if k < most else 0.0


@dataclass(eq=False, repr=False)
class TruncatedSVD(_RunEstimator):
    """
    Find the leading singular vectors of a matrix that need not fit in memory, without centring it.

    The result of scikit-learn's TruncatedSVD, with its attributes and signs; sparse matrices stay sparse.
    Singular values below 1e-7 of the largest are noise: :func:`npmdask.singular_triplets` finds them.

    Parameters
    ----------
    n_components : int, default 2
        Number of components, 1 to min(n, d).
    column_weights : array_like, shape (d,), optional
        Weights of squared columns, not negative, as for :func:`npmdask.top_k`: rows are multiplied by the square roots
        of the weights before the components are computed.
    tol : float, optional
        Relative residual to reach; by default, and with 0, 1e-9, or 1e-6 for float32 data.
    memory : str or int, optional
        Limit for the fit, like "1GiB"; by default none.
    device : {"cpu", "auto", "cuda"}, default "cpu"
        What sums over the rows are formed on, as for :func:`npmdask.top_k`: "cuda" is an NVIDIA GPU.
    device_memory : str or int, optional
        Limit for the memory of the GPU; most of what is free by default.
    store : str or Path, optional
        Folder of the run, from which a killed fit resumes; by default a temporary one.
    random_state : int, RandomState or None, default None
        Seed of the random start; the result depends on it only within ``tol``. None uses a fixed seed.
    progress : bool, default False
        Show the progress and the time left: on stderr, or below the cell of a notebook.
    algorithm : str, default "randomized"
        As in scikit-learn and dask-ml, and without effect: data and memory decide how the same vectors are found.
    n_iter : int, default 5
        As ``algorithm``.
    n_oversamples : int, default 10
        As ``algorithm``.
    power_iteration_normalizer : str, default "auto"
        As ``algorithm``.
    compute : bool, default True
        As in dask-ml; False is refused, since a fit is a run with an answer.

    Attributes
    ----------
    components_ : numpy.ndarray, shape (k, d)
        Right singular vectors; the entry of largest size in each is positive. float32 of rows in memory in float32.
    singular_values_ : numpy.ndarray, shape (k,)
        The largest first.
    explained_variance_ : numpy.ndarray, shape (k,)
        Variance of the scores, with denominator n; for weighted rows, the sum of the weights.
    explained_variance_ratio_ : numpy.ndarray, shape (k,)
        The same as shares of the variance of all columns.
    n_features_in_ : int
        d.

    See Also
    --------
    PCA : For centred rows.
    npmdask.singular_triplets : For small singular values as well.

    Examples
    --------
    >>> import scipy.sparse as sp
    >>> import npmdask
    >>> counts = sp.random_array((300, 40), density=0.1, rng=0)
    >>> npmdask.TruncatedSVD(3).fit_transform(counts).shape
    (300, 3)
    """

    _: KW_ONLY
    algorithm: str = "randomized"
    n_iter: int = 5
    n_oversamples: int = 10
    power_iteration_normalizer: str = "auto"
    compute: bool = True

    _words: ClassVar[dict[str, tuple[Any, ...]]] = {
        "algorithm": ("randomized", "arpack", "tsqr"),
        "n_iter": (0,),
        "n_oversamples": (1,),
        "power_iteration_normalizer": NORMALIZERS,
    }

    def _finish(self, held: Any, solution: Solution, row_weight: np.ndarray | None) -> None:
        """One look at all rows: the variance of scores and of columns, about means that the fit had no need of."""
        moments, start = ColumnSums(self.n_features_in_), 0
        roots = None if self._column_weight is None else np.sqrt(self._column_weight)
        for rows in batches(open_stream(held, Reading()).stream):
            here = slice(start, start + len(rows))
            moments.add(rows if roots is None else rows * roots, None if row_weight is None else row_weight[here])
            start = here.stop
        n = View(row_weight=row_weight).weight_of_rows(self._rows_of_fit)
        total, squares = float(moments.m2.sum()) / n, self.singular_values_**2 / n
        self.explained_variance_ = np.maximum(squares - (solution.basis.T @ moments.mean) ** 2, 0.0)
        self.explained_variance_ratio_ = shares_of_variance(self.explained_variance_, total)
