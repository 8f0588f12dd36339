"""Mixtures and independent components in the manner of scikit-learn, without needing it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from npmdask.models.estimator import Estimator
from npmdask.models.latent.independent import IndependentComponents, fit_independent_components
from npmdask.models.latent.mixture import GaussianMixture, fit_mixture
from npmdask.numerics.subspaces import Block
from npmdask.numerics.units import parse_memory
from npmdask.runs.solution import Resources
from npmdask.storage.kinds import real_array


def _rows(X: Any) -> np.ndarray:
    return real_array(X, "the rows").astype(np.float64, copy=False)


class _OfSamples(Estimator):
    """The parameters of both."""

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

    def _model_of(self, fit: Any, X: Any) -> Any:
        with self._run_store() as store:
            resources = Resources(memory=parse_memory(self.memory))
            return fit(X, self.n_components, store=store, resources=resources, seed=self.random_state)


class Mixture(_OfSamples):
    """A mixture of spherical Gaussians by moments, in a few passes whatever the number of rows.

    Parameters
    ----------
    n_components : k, fewer than columns. memory : limit, e.g. "1GiB". store : folder of the run, which a killed fit
        goes on from; a temporary one if None. random_state : seed of the random starts.

    Attributes (after ``fit``)
    --------------------------
    model_ : :class:`npmdask.models.latent.GaussianMixture`. means_ : k x d. weights_ : k, sum 1.
    """

    model_: GaussianMixture

    def fit(self, X: Any, y: Any = None) -> Mixture:
        """Find the components of samples (array, store or path); returns self. ``y`` is there for pipelines only."""
        self.model_ = self._model_of(fit_mixture, X)
        return self

    @property
    def means_(self) -> Block:
        return np.ascontiguousarray(self._fitted().means.T)

    @property
    def weights_(self) -> np.ndarray:
        weights: np.ndarray = self._fitted().weights
        return weights / weights.sum()

    def predict_proba(self, X: np.ndarray) -> Block:
        """Probabilities of the components given each row (n x k)."""
        shares: Block = self._fitted().responsibilities(_rows(X))
        return shares

    def predict(self, X: np.ndarray) -> np.ndarray:
        """The most probable component of each row (n)."""
        return np.asarray(self.predict_proba(X).argmax(axis=1))


class ICA(_OfSamples):
    """Independent components by the fourth-order tensor power method, in passes over the rows.

    Parameters as of :class:`Mixture`.

    Attributes (after ``fit``)
    --------------------------
    model_ : :class:`npmdask.models.latent.IndependentComponents`. mixing_ : d x k. components_ : k x d, the unmixing.
    """

    model_: IndependentComponents

    def fit(self, X: Any, y: Any = None) -> ICA:
        """Find the components of samples (array, store or path); returns self. ``y`` is there for pipelines only."""
        self.model_ = self._model_of(fit_independent_components, X)
        return self

    @property
    def mixing_(self) -> Block:
        mixing: Block = self._fitted().mixing
        return mixing

    @property
    def components_(self) -> Block:
        return np.ascontiguousarray(self._fitted().unmixing.T)

    def transform(self, X: np.ndarray) -> Block:
        """The sources of rows (n x k), of variance 1, up to sign."""
        sources: Block = self._fitted().sources(_rows(X))
        return sources

    def fit_transform(self, X: np.ndarray, y: Any = None) -> Block:
        """``fit``, and the sources of the same rows."""
        return self.fit(X).transform(X)
