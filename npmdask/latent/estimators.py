"""Mixtures and independent components in the manner of scikit-learn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from scipy.sparse import issparse

from npmdask.core.numerics.subspaces import Block
from npmdask.core.runs.progress import with_progress
from npmdask.core.runs.resources import asked_resources
from npmdask.core.storage.kinds import real_array
from npmdask.errors import BadInputError
from npmdask.estimators.base import DENSITY, TRANSFORMER, Estimator, in_memory, run_store, seed_of
from npmdask.latent.fit import GaussianMixture, IndependentComponents, fit_independent_components, fit_mixture


@dataclass(eq=False, repr=False)
class _SampleEstimator(Estimator):
    """The parameters of both, and ``fit``."""

    _fit: ClassVar[Callable[..., Any]]

    n_components: int = 2
    _: KW_ONLY
    memory: str | int | None = None
    store: str | Path | None = None
    random_state: Any = 0
    refine: int | None = None
    progress: bool = False

    def fit(self, X: Any, y: Any = None) -> Self:
        """
        Find the components of samples.

        Parameters
        ----------
        X : array_like, table, Dask array, zarr.Array, str or Path, shape (n, d)
            Samples, or the store that holds them.
        y : None
            Ignored; it is there for pipelines.

        Returns
        -------
        Mixture or ICA
            This object.

        Raises
        ------
        BadInputError
            The samples do not determine so many components.
        RefusedError
            The memory does not suffice, or ``store`` is of another run.
        """
        held = self._dense(X, first=True, least=2)
        with run_store(self.store) as store, with_progress(None, self.progress) as told:
            resources, seed = asked_resources(self.memory), seed_of(self.random_state)
            asked = {"seed": seed, "refine": self.refine, "observer": told}
            self.model_ = self._fit(held, self.n_components, store=store, resources=resources, **asked)
        self.n_features_in_ = self._columns()
        return self

    def _columns(self) -> int:
        """Return the number of columns of the rows that were fitted."""
        raise NotImplementedError

    def _of_rows(self, X: Any, answer: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """Apply the model to rows, which are read some at a time where they are not in memory."""
        self._fitted_model()
        held = self._dense(X, first=False)
        if not in_memory(held):
            return np.concatenate([answer(rows) for rows in self._in_batches(held)])
        self._require_width(held.shape)
        return answer(held.astype(np.float64, copy=False))

    def _dense(self, X: Any, **how: Any) -> Any:
        held = self._checked_input(X, **how)
        if issparse(held):
            raise BadInputError(
                "the rows are a sparse matrix, but dense rows are needed: give X.toarray(), if it fits into memory"
            )
        return real_array(held, "the rows") if in_memory(held) else held


class Mixture(*DENSITY, _SampleEstimator):  # type: ignore[misc]
    """
    Fit a mixture of spherical Gaussians by its moments and steps of EM, in a few passes whatever the number of rows.

    Parameters
    ----------
    n_components : int, default 2
        Components (k), fewer than columns.
    memory : str or int, optional
        Limit for the fit, like "1GiB"; by default none.
    store : str or Path, optional
        Folder of the run, from which a killed fit resumes; by default a temporary one.
    random_state : int, RandomState or None, default 0
        Seed of the random starts; None uses a fixed seed.
    refine : int, optional
        Maximum number of EM passes after the moments; 0 uses the moments alone. By default 3, or the number with which
        an existing ``store`` was begun.
    progress : bool, default False
        Show the progress and the time left: on stderr, or below the cell of a notebook.

    Attributes
    ----------
    model_ : npmdask.latent.fit.GaussianMixture
        The fitted model, after ``fit``.
    n_features_in_ : int
        Columns of the samples (d).

    Examples
    --------
    >>> import numpy as np
    >>> import npmdask
    >>> rng = np.random.default_rng(0)
    >>> means = np.array([[6.0, 0, 0, 0], [0, 6.0, 0, 0]])
    >>> rows = means[rng.integers(2, size=4000)] + rng.standard_normal((4000, 4))
    >>> mixture = npmdask.Mixture(2).fit(rows)
    >>> bool(abs(mixture.means_[mixture.means_[:, 0].argsort()[::-1]] - means).max() < 0.3)
    True
    """

    model_: GaussianMixture
    _fit = staticmethod(fit_mixture)

    def _columns(self) -> int:
        return len(self.model_.means)

    @property
    def means_(self) -> Block:
        """Means of the components, k x d."""
        return np.ascontiguousarray(self._fitted_model().means.T)

    @property
    def weights_(self) -> np.ndarray:
        """Weights of the components, k numbers of sum 1."""
        weights: np.ndarray = self._fitted_model().weights
        return weights / weights.sum()

    @property
    def variances_(self) -> np.ndarray:
        """Variances of an entry, of each component (k); all the same where ``refine`` is 0."""
        return self._fitted_model().variances

    def predict_proba(self, X: Any) -> Block:
        """
        Compute how probable each component is, given a row.

        Parameters
        ----------
        X : array_like, table, Dask array, zarr.Array, str or Path, shape (n, d)
            Rows, as for ``fit``.

        Returns
        -------
        numpy.ndarray, shape (n, k)
            Probabilities; each row sums to 1.
        """
        return self._of_rows(X, self._fitted_model().responsibilities)

    def predict(self, X: Any) -> np.ndarray:
        """
        Find the most probable component of each row.

        Parameters
        ----------
        X : array_like, table, Dask array, zarr.Array, str or Path, shape (n, d)
            Rows, as for ``fit``.

        Returns
        -------
        numpy.ndarray, shape (n,)
            Numbers of components, from 0.
        """
        return np.asarray(self.predict_proba(X).argmax(axis=1))

    def score(self, X: Any, y: Any = None) -> float:
        """
        Compute the mean log-likelihood of rows, for searches over the number of components.

        Parameters
        ----------
        X : array_like, table, Dask array, zarr.Array, str or Path, shape (n, d)
            Rows, as for ``fit``.
        y : None
            Ignored; it is there for pipelines.

        Returns
        -------
        float
            Larger is better.
        """
        return float(self._of_rows(X, self._fitted_model().log_densities).mean())


class ICA(*TRANSFORMER, _SampleEstimator):  # type: ignore[misc]
    """
    Find independent components by the tensor power method on fourth cumulants and some steps of FastICA, in passes.

    Rows (n x d) are taken for linear mixtures of k independent sources, none of them Gaussian.

    Parameters
    ----------
    n_components : int, default 2
        Components (k), at most as many as columns.
    memory : str or int, optional
        Limit for the fit, like "1GiB"; by default none.
    store : str or Path, optional
        Folder of the run, from which a killed fit resumes; by default a temporary one.
    random_state : int, RandomState or None, default 0
        Seed of the random starts; None uses a fixed seed.
    refine : int, optional
        Maximum number of FastICA passes after the moments; 0 uses the moments alone. By default 3, or the number with
        which an existing ``store`` was begun. After a single pass, its step is used only if it is negligible.
    progress : bool, default False
        Show the progress and the time left: on stderr, or below the cell of a notebook.

    Attributes
    ----------
    model_ : npmdask.latent.fit.IndependentComponents
        The fitted model, after ``fit``.
    n_features_in_ : int
        Columns of the samples (d).

    Examples
    --------
    >>> import numpy as np
    >>> import npmdask
    >>> sources = np.random.default_rng(0).laplace(size=(20000, 2))
    >>> rows = sources @ np.array([[1.0, 0.5], [0.2, 1.0]])
    >>> found = npmdask.ICA(2).fit_transform(rows)
    >>> correlation = np.abs(np.corrcoef(found.T, sources.T)[:2, 2:])
    >>> bool(correlation.max(axis=1).min() > 0.98)
    True
    """

    model_: IndependentComponents
    _fit = staticmethod(fit_independent_components)

    def _columns(self) -> int:
        return len(self.model_.mixing)

    @property
    def _n_features_out(self) -> int:
        return int(self.model_.mixing.shape[1])

    @property
    def mixing_(self) -> Block:
        """Return the matrix that mixes the sources into a row, d x k."""
        return self._fitted_model().mixing

    @property
    def components_(self) -> Block:
        """Return the matrix that unmixes a row into its sources, k x d."""
        return np.ascontiguousarray(self._fitted_model().unmixing.T)

    def transform(self, X: Any) -> Block:
        """
        Compute the sources of rows.

        Parameters
        ----------
        X : array_like, table, Dask array, zarr.Array, str or Path, shape (n, d)
            Rows, as for ``fit``.

        Returns
        -------
        numpy.ndarray, shape (n, k)
            Sources of variance 1, up to sign.
        """
        return self._of_rows(X, self._fitted_model().sources)
