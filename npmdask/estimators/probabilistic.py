"""Probabilistic PCA: principal components and noise of equal variance in all other directions, as a density of rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from npmdask.errors import BadInputError
from npmdask.estimators.base import batches
from npmdask.missing.gaps import unmarked
from npmdask.streaming.source import Reading, open_stream

ROUNDING = 1e-14  # of the largest variance: one below is none


class Probabilistic:
    """Model of rows as Gaussian, with the variances of components and ``noise_variance_`` in all other directions.

    The maximum likelihood of Tipping and Bishop, J. R. Statist. Soc. B 61 (1999) 611, but with denominator n - 1.
    """

    components_: np.ndarray
    explained_variance_: np.ndarray
    mean_: np.ndarray
    noise_variance_: float
    n_features_in_: int

    def get_covariance(self) -> np.ndarray:
        """
        Get the covariance of the columns under the model.

        Returns
        -------
        numpy.ndarray, shape (d, d)
            In squares of the units of the columns.

        Raises
        ------
        BadInputError
            Columns were left out or have weight 0, or before ``fit``.
        """
        basis, roots = self._basis_and_roots()
        covariance = (basis * self._above()) @ basis.T
        np.einsum("ii->i", covariance)[:] += self.noise_variance_
        return np.asarray(covariance / np.outer(roots, roots))

    def get_precision(self) -> np.ndarray:
        """
        Get the inverse of the covariance of the model; where it is singular, its pseudoinverse.

        Returns
        -------
        numpy.ndarray, shape (d, d)
            In the inverse of these units.

        Raises
        ------
        BadInputError
            Columns were left out or have weight 0, or before ``fit``.
        """
        (basis, roots), (inverse, _), noise = self._basis_and_roots(), self._inverse(), self._noise
        rest = 1.0 / noise if noise else 0.0
        precision = (basis * (inverse - rest)) @ basis.T
        np.einsum("ii->i", precision)[:] += rest
        return np.asarray(precision * np.outer(roots, roots))

    def score_samples(self, X: Any) -> np.ndarray:
        """
        Get the logarithm of the density of each row under the model.

        Parameters
        ----------
        X : array_like, sparse matrix, table, Dask array, zarr.Array, str or Path, shape (n, d)
            Rows, as for ``fit``; they are read once, some at a time.

        Returns
        -------
        numpy.ndarray, shape (n,)
            Log-densities. Where nothing was left out as noise, they are of the directions of the components.

        Raises
        ------
        BadInputError
            Rows of another width, columns that were left out or have weight 0, or before ``fit``.
        """
        (basis, roots), (inverse, size), noise = self._basis_and_roots(), self._inverse(), self._noise
        held = self._checked_input(X, first=False)  # type: ignore[attr-defined]
        marks = self._marks if self.missing_ is None else self.missing_.values  # type: ignore[attr-defined]
        others = self.n_features_in_ - len(inverse) if noise else 0
        level = (len(size) + others) * np.log(2 * np.pi) + np.log(size).sum()
        level -= 2 * np.log(roots).sum()
        level += others * np.log(noise) if others else 0.0
        found = []
        for rows in batches(open_stream(held, Reading()).stream):
            self._require_width(rows.shape)  # type: ignore[attr-defined]
            if np.isnan(unmarked(rows, marks)).any():
                raise BadInputError("a density is of whole rows, and X has missing values: leave out rows with gaps")
            away = (rows - self.mean_) * roots
            scores = away @ basis
            distance = (scores**2 * inverse).sum(axis=1)
            if others:
                away -= scores @ basis.T  # of float32 components squares would cancel to their rounding
                distance += np.einsum("ij,ij->i", away, away) / noise
            found.append(-0.5 * (level + distance))
        return np.concatenate(found)

    def score(self, X: Any, y: Any = None) -> float:
        """
        Get the mean logarithm of the density of rows, by which searches of scikit-learn compare numbers of components.

        Parameters
        ----------
        X : array_like, sparse matrix, table, Dask array, zarr.Array, str or Path, shape (n, d)
            Rows, as for ``fit``.
        y : None
            Ignored; it is there for pipelines.

        Returns
        -------
        float
            Mean of ``score_samples``.

        Raises
        ------
        BadInputError
            Rows of another width, columns that were left out or have weight 0, or before ``fit``.
        """
        return float(self.score_samples(X).mean())

    def _basis_and_roots(self) -> tuple[np.ndarray, np.ndarray]:
        """The components (d x k), and the roots of the weights of columns, with which they are orthonormal (d)."""
        self._require_fit()  # type: ignore[attr-defined]
        weight, kept = self._column_weight, self._kept  # type: ignore[attr-defined]
        roots = np.ones(self.n_features_in_) if weight is None else np.sqrt(weight)
        if kept is not None or not roots.all():
            raise BadInputError(
                "a density is of all columns, and some were left out or have weight 0: leave these columns out of X"
            )
        return self.components_.T.astype(np.float64), roots

    @property
    def _noise(self) -> float:
        """The variance of the noise; 0 where it is rounding."""
        return (
            self.noise_variance_ if self.noise_variance_ > ROUNDING * self.explained_variance_.max(initial=0.0) else 0.0
        )

    def _inverse(self) -> tuple[np.ndarray, np.ndarray]:
        """Inverses of the variances along the components (k), 0 of those that are rounding, and the variances else."""
        size = self._above() + self.noise_variance_
        some = size > ROUNDING * size.max(initial=0.0)
        return np.divide(1.0, size, out=np.zeros_like(size), where=some), size[some]

    def _above(self) -> np.ndarray:
        """Variances of the components above that of the noise (k)."""
        return np.maximum(self.explained_variance_ - self.noise_variance_, 0.0)


def most_likely_rank(variances: np.ndarray, rows: float) -> int:
    """Return the number of components of the most likely probabilistic PCA, of all d variances, the largest first.

    Laplace's approximation of Minka, Automatic choice of dimensionality for PCA, NIPS 13 (2000), equations 76 to 80.
    """
    from scipy.special import gammaln

    d, tiny = len(variances), 1e-15
    evidence = np.full(d, -np.inf)
    at = np.arange(d)
    for k in range(1, d):
        if variances[k - 1] < tiny:
            break
        noise = max(float(variances[k:].mean()), tiny)
        dims = (d - np.arange(k)) / 2
        prior = (gammaln(dims) - dims * np.log(np.pi)).sum() - k * np.log(2)
        fit = -rows / 2 * (np.log(variances[:k]).sum() + (d - k) * np.log(noise))
        free = d * k - k * (k + 1) / 2
        inverse = np.where(at < k, 1 / np.maximum(variances, tiny), 1 / noise)
        left, right = at[:k, None], at[None, :]
        with np.errstate(divide="ignore", invalid="ignore"):
            apart = (variances[left] - variances[right]) * (inverse[right] - inverse[left])
            logs = np.log(apart[right > left]) + np.log(rows)
        evidence[k] = prior + fit + (free + k) / 2 * np.log(2 * np.pi) - logs.sum() / 2 - k / 2 * np.log(rows)
    return max(1, int(np.nanargmax(evidence)))
