"""Mixtures and independent components in the manner of scikit-learn, without needing it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import numpy as np

from npmdask.models.latent.fit import GaussianMixture, IndependentComponents, fit_independent_components, fit_mixture
from npmdask.numerics.subspaces import Block
from npmdask.numerics.units import parse_memory
from npmdask.runs.solution import Resources
from npmdask.storage.kinds import real_array
from npmdask.streaming.estimator import Estimator, run_store


def _rows(X: Any) -> np.ndarray:
    return real_array(X, "the rows").astype(np.float64, copy=False)


class _OfSamples(Estimator):
    """The parameters of both, and ``fit``."""

    _fit: Callable[..., Any]

    def __init__(
        self,
        n_components: int = 2,
        *,
        memory: str | int | None = None,
        store: str | Path | None = None,
        random_state: int = 0,
    ) -> None:
        self.n_components = n_components
        self.memory = memory
        self.store = store
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """
        Find the components of samples.

        Parameters
        ----------
        X : array_like, zarr.Array, str or Path, shape (n, d)
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
        with run_store(self.store) as store:
            resources = Resources(memory=parse_memory(self.memory))
            self.model_ = self._fit(X, self.n_components, store=store, resources=resources, seed=self.random_state)
        return self


class Mixture(_OfSamples):
    """
    Fit a mixture of spherical Gaussians by its moments, in a few passes whatever the number of rows.

    Parameters
    ----------
    n_components : int, default 2
        Components (k), fewer than columns.
    memory : str or int, optional
        Limit for the fit, like "1GiB".
    store : str or Path, optional
        Folder of the run, which a killed fit goes on from; a temporary one by default.
    random_state : int, default 0
        Seed of the random starts.

    Attributes
    ----------
    model_ : npmdask.models.latent.GaussianMixture
        What was found, after ``fit``.

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

    @property
    def means_(self) -> Block:
        """Means of the components, k x d."""
        return np.ascontiguousarray(self._fitted().means.T)

    @property
    def weights_(self) -> np.ndarray:
        """Weights of the components, k numbers of sum 1."""
        weights: np.ndarray = self._fitted().weights
        return weights / weights.sum()

    def predict_proba(self, X: np.ndarray) -> Block:
        """
        Compute how probable each component is, given a row.

        Parameters
        ----------
        X : array_like, shape (n, d)
            Rows, in memory.

        Returns
        -------
        numpy.ndarray, shape (n, k)
            Probabilities; each row sums to 1.
        """
        shares: Block = self._fitted().responsibilities(_rows(X))
        return shares

    def predict(self, X: np.ndarray) -> np.ndarray:
        """
        Find the most probable component of each row.

        Parameters
        ----------
        X : array_like, shape (n, d)
            Rows, in memory.

        Returns
        -------
        numpy.ndarray, shape (n,)
            Numbers of components, from 0.
        """
        return np.asarray(self.predict_proba(X).argmax(axis=1))


class ICA(_OfSamples):
    """
    Find independent components by the tensor power method on fourth cumulants, in passes over the rows.

    Parameters
    ----------
    n_components : int, default 2
        Components (k), at most as many as columns.
    memory : str or int, optional
        Limit for the fit, like "1GiB".
    store : str or Path, optional
        Folder of the run, which a killed fit goes on from; a temporary one by default.
    random_state : int, default 0
        Seed of the random starts.

    Attributes
    ----------
    model_ : npmdask.models.latent.IndependentComponents
        What was found, after ``fit``.

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

    @property
    def mixing_(self) -> Block:
        """What mixes the sources into a row, d x k."""
        mixing: Block = self._fitted().mixing
        return mixing

    @property
    def components_(self) -> Block:
        """What takes a row apart into its sources, k x d."""
        return np.ascontiguousarray(self._fitted().unmixing.T)

    def transform(self, X: np.ndarray) -> Block:
        """
        Compute the sources of rows.

        Parameters
        ----------
        X : array_like, shape (n, d)
            Rows, in memory.

        Returns
        -------
        numpy.ndarray, shape (n, k)
            Sources of variance 1, up to sign.
        """
        sources: Block = self._fitted().sources(_rows(X))
        return sources

    def fit_transform(self, X: np.ndarray, y: Any = None) -> Block:
        """
        Find the components of samples, and their sources.

        Parameters
        ----------
        X : array_like, shape (n, d)
            Rows, in memory.
        y : None
            Ignored; it is there for pipelines.

        Returns
        -------
        numpy.ndarray, shape (n, k)
            Sources of variance 1, up to sign.
        """
        return self.fit(X).transform(X)
