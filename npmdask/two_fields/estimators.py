"""Maximum covariance and canonical correlations in the manner of scikit-learn."""

from __future__ import annotations

import warnings
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from npmdask.core.numerics.domains import one_of
from npmdask.core.numerics.subspaces import Block
from npmdask.core.numerics.units import attributes
from npmdask.estimators.base import REAL, TRANSFORMER, Estimator, seed_of
from npmdask.missing.gaps import MEAN, REFUSE
from npmdask.two_fields.answers import CoupledModes, cca, mca


@dataclass(eq=False, repr=False)
class _TwoFieldsEstimator(*TRANSFORMER, Estimator):  # type: ignore[misc]
    """Base of both estimators: a run of :func:`npmdask.mca` or :func:`npmdask.cca`, by the names of scikit-learn."""

    n_components: int = 2
    _: KW_ONLY
    scale: bool = False
    missing: str = REFUSE
    tol: float | None = None
    memory: str | int | None = None
    store: str | Path | None = None
    random_state: Any = None
    progress: bool = False

    def fit(self, X: Any, Y: Any, sample_weight: Any = None) -> Self:
        """
        Find the pairs of weights.

        Parameters
        ----------
        X : array_like, table, DataArray, Dask array, zarr.Array, str or Path, shape (n, p)
            Rows of the first field, dense: in memory, lazy, or the path or URL of a store.
        Y : array_like, table, DataArray, Dask array, zarr.Array, str or Path, shape (n, q)
            The same rows of the other field.
        sample_weight : array_like, shape (n,), optional
            How much each row counts, not negative: with 2 like two equal rows, with 0 like none.

        Returns
        -------
        MCA or CCA
            This object.

        Raises
        ------
        BadInputError
            The data, the weights or a parameter are wrong, or the rows of the fields are not the same.
        RefusedError
            The memory does not suffice, or ``store`` is of another run.
        """
        one_of((REFUSE, MEAN), missing=self.missing)
        self._checked_input(X, first=True, least=2, dtype=REAL, gaps=self.missing == MEAN)
        found = self._solve_modes(
            X,
            Y,
            row_weights=sample_weight,
            seed=seed_of(self.random_state),
            **attributes(self, "scale", "missing", "tol", "store", "memory", "progress"),
        )
        if not found.answered:
            warnings.warn(found.outcome.sentence, RuntimeWarning, stacklevel=2)
        self.model_, self.n_features_in_ = found, len(found.left.basis)
        return self

    def _solve_modes(self, X: Any, Y: Any, **asked: Any) -> CoupledModes:
        raise NotImplementedError

    def transform(self, X: Any, Y: Any = None) -> Any:
        """
        Get the scores of rows.

        Parameters
        ----------
        X : array_like, table, DataArray, Dask array, zarr.Array, str or Path, shape (n, p)
            Rows of the first field; those that are not in memory are read once, some at a time.
        Y : array_like, table, DataArray, Dask array, zarr.Array, str or Path, shape (m, q), optional
            Rows of the other field.

        Returns
        -------
        numpy.ndarray, shape (n, k), or tuple of two, shapes (n, k) and (m, k)
            Scores of X, or of X and of Y where Y is given.

        Raises
        ------
        BadInputError
            Rows of another width, or before ``fit``.
        """
        model: CoupledModes = self._fitted_model()
        self._checked_input(X, first=False, dtype=REAL, gaps=self.missing == MEAN)
        scores = model.left.scores(X)
        return scores if Y is None else (scores, model.right.scores(Y))

    def fit_transform(self, X: Any, Y: Any, sample_weight: Any = None) -> tuple[Block, Block]:
        """
        Find the pairs of weights, and get the scores of the same rows.

        Parameters
        ----------
        X, Y : array_like, table, DataArray, Dask array, zarr.Array, str or Path, shapes (n, p) and (n, q)
            As for ``fit``.
        sample_weight : array_like, shape (n,), optional
            As for ``fit``.

        Returns
        -------
        tuple of two numpy.ndarray, shapes (n, k) and (n, k)
            Scores of X and of Y.
        """
        return self.fit(X, Y, sample_weight).transform(X, Y)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = tags.target_tags.multi_output = True
        tags.input_tags.allow_nan = self.missing == MEAN
        return tags

    @property
    def _n_features_out(self) -> int:
        """Return the number of columns that scikit-learn names."""
        return int(self.x_weights_.shape[1])

    @property
    def x_weights_(self) -> Block:
        """Return what centred (and scaled) rows of X are multiplied by, p x k."""
        return self._fitted_model().left.basis

    @property
    def y_weights_(self) -> Block:
        """Return what centred (and scaled) rows of Y are multiplied by, q x k."""
        return self._fitted_model().right.basis

    @property
    def x_mean_(self) -> np.ndarray:
        """Return the means of the columns of X (p)."""
        return self._fitted_model().left.components.mean

    @property
    def y_mean_(self) -> np.ndarray:
        """Return the means of the columns of Y (q)."""
        return self._fitted_model().right.components.mean

    @property
    def x_std_(self) -> np.ndarray:
        """Return what the columns of X are divided by (p): 1, or with ``scale`` their standard deviations."""
        return _divided_by(self._fitted_model().left)

    @property
    def y_std_(self) -> np.ndarray:
        """Return what the columns of Y are divided by (q): 1, or with ``scale`` their standard deviations."""
        return _divided_by(self._fitted_model().right)

    @property
    def correlations_(self) -> np.ndarray:
        """Return the correlation of the two scores of each pair (k)."""
        return self._fitted_model().correlations


def _divided_by(side: Any) -> np.ndarray:
    scale = side.components.scale
    return np.ones(len(side.basis)) if scale is None else np.asarray(scale)


class MCA(_TwoFieldsEstimator):
    """
    Find pairs of patterns of two fields whose scores vary most together (maximum covariance analysis, PLS-SVD).

    A field is a table of n rows: X has p columns, Y has q. Scores are its rows multiplied by weights.

    The result of scikit-learn's PLSSVD, up to signs, for fields that need not fit in memory. Unlike there, columns are
    divided by their standard deviations only with ``scale``.

    Parameters
    ----------
    n_components : int, default 2
        Number of pairs (k), 1 to min(n, p, q).
    scale : bool, default False
        Divide all columns by their standard deviations, n in the denominator. PLSSVD does by default.
    missing : {"refuse", "mean"}, default "refuse"
        "mean": missing values (NaN) count as the means of their columns, in ``fit`` and ``transform``.
    tol : float, optional
        Relative residual to reach; 1e-9, or 1e-6 where both fields are float32, by default.
    memory : str or int, optional
        Limit for the fit, like "1GiB"; by default none.
    store : str or Path, optional
        Folder of the run, from which a killed fit resumes; by default a temporary one.
    random_state : int, RandomState or None, default None
        Seed of the random start; the result depends on it only within ``tol``. None uses a fixed seed.
    progress : bool, default False
        Show the progress and the time left: on stderr, or below the cell of a notebook.

    Attributes
    ----------
    model_ : CoupledModes
        Result of :func:`npmdask.mca`: also error bounds, shares of variance, and patterns in the units of the data.
    x_weights_, y_weights_ : numpy.ndarray, shapes (p, k) and (q, k)
        Matrices with orthonormal columns, which centred (and scaled) rows are multiplied by.
    x_mean_, y_mean_ : numpy.ndarray, shapes (p,) and (q,)
        Means of the columns.
    x_std_, y_std_ : numpy.ndarray, shapes (p,) and (q,)
        Divisors of the columns: 1, or their standard deviations with ``scale``.
    covariances_ : numpy.ndarray, shape (k,)
        Covariance of the two scores of each pair, n in the denominator, the largest first.
    correlations_ : numpy.ndarray, shape (k,)
        Correlation of the same scores.
    n_features_in_ : int
        p.

    See Also
    --------
    npmdask.mca : The same run, with weights of columns and all its options.
    npmdask.xarray.MCA : For fields on grids, with the names of xeofs.

    Examples
    --------
    >>> import numpy as np
    >>> import npmdask
    >>> rng = np.random.default_rng(0)
    >>> X, Y = rng.standard_normal((300, 5)), rng.standard_normal((300, 8))
    >>> Y[:, 0] += 2 * X[:, 3]
    >>> mca = npmdask.MCA(n_components=2)
    >>> x_scores, y_scores = mca.fit_transform(X, Y)
    >>> bool(np.isclose(np.mean(x_scores[:, 0] * y_scores[:, 0]), mca.covariances_[0]))
    True
    """

    def _solve_modes(self, X: Any, Y: Any, **asked: Any) -> CoupledModes:
        return mca(X, Y, self.n_components, **asked)

    @property
    def covariances_(self) -> np.ndarray:
        """Return the covariance of the two scores of each pair (k)."""
        return self._fitted_model().values


@dataclass(eq=False, repr=False)
class CCA(_TwoFieldsEstimator):
    """
    Find pairs of weights of two fields whose scores are most correlated (canonical correlation analysis).

    A field is a table of n rows: X has p columns, Y has q. Scores are its rows multiplied by weights.

    The canonical correlations that scikit-learn's CCA computes, for fields that need not fit in memory, and from one
    pass instead of iterations. Scores have variance 1 (without ``ridge``).

    Parameters
    ----------
    n_components : int, default 2
        Number of pairs (k), 1 to min(n, p, q).
    scale : bool, default False
        Divide all columns by their standard deviations, n in the denominator. It matters with ``pcs`` or a ``ridge``.
    missing : {"refuse", "mean"}, default "refuse"
        "mean": missing values (NaN) count as the means of their columns, in ``fit`` and ``transform``.
    tol : float, optional
        Relative residual of leading components, with ``pcs``; 1e-9, or 1e-6 for float32 data, by default.
    memory : str or int, optional
        Limit for the fit, like "1GiB"; by default none.
    store : str or Path, optional
        Folder of the run, from which a killed fit resumes; by default a temporary one.
    random_state : int, RandomState or None, default None
        Seed of the random start, with ``pcs``; the result depends on it only within ``tol``. None uses a fixed seed.
    progress : bool, default False
        Show the progress and the time left: on stderr, or below the cell of a notebook.
    pcs : int or pair of int, optional
        Number of leading components that represent each field (a pair: for X and for Y); by default, all columns.
    ridge : float, default 0.0
        Multiple of the mean variance of a column (or component) that is added to the variance of every direction.

    Attributes
    ----------
    model_ : CoupledModes
        Result of :func:`npmdask.cca`: also the correlations expected by chance (``chance``), warnings and patterns.
    x_weights_, y_weights_ : numpy.ndarray, shapes (p, k) and (q, k)
        Matrices that multiply centred (and scaled) rows: scikit-learn's ``x_rotations_``, up to length and sign.
    x_mean_, y_mean_ : numpy.ndarray, shapes (p,) and (q,)
        Means of the columns.
    x_std_, y_std_ : numpy.ndarray, shapes (p,) and (q,)
        Divisors of the columns: 1, or their standard deviations with ``scale``.
    correlations_ : numpy.ndarray, shape (k,)
        Correlation of the two scores of each pair, the largest first.
    n_features_in_ : int
        p.

    See Also
    --------
    npmdask.cca : The same run, with weights of columns and all its options.
    npmdask.xarray.CCA : For fields on grids, with the names of xeofs.

    Examples
    --------
    >>> import numpy as np
    >>> import npmdask
    >>> rng = np.random.default_rng(0)
    >>> X, Y = rng.standard_normal((300, 5)), rng.standard_normal((300, 8))
    >>> Y[:, 0] += 2 * X[:, 3]
    >>> cca = npmdask.CCA(n_components=1)
    >>> x_scores, y_scores = cca.fit_transform(X, Y)
    >>> bool(np.isclose(np.corrcoef(x_scores[:, 0], y_scores[:, 0])[0, 1], cca.correlations_[0]))
    True
    """

    _: KW_ONLY
    pcs: int | tuple[int, int] | None = None
    ridge: float = 0.0

    def _solve_modes(self, X: Any, Y: Any, **asked: Any) -> CoupledModes:
        return cca(X, Y, self.n_components, pcs=self.pcs, ridge=self.ridge, **asked)
