"""Scores of rows along components, and rows of scores: what all estimators of principal components share."""

from __future__ import annotations

from typing import Any

import numpy as np

from npmdask.errors import BadInputError
from npmdask.numerics.factor_model import FactorModel
from npmdask.numerics.subspaces import Block
from npmdask.runs.components import AS_RUN, LEAST_SQUARES, StoredComponents, require_rule
from npmdask.runs.missing import Missing
from npmdask.runs.weights import in_units_of_data
from npmdask.storage.containers import is_sparse
from npmdask.storage.kinds import real_array
from npmdask.streaming.estimator import REAL, TRANSFORMER, Estimator, in_memory


class Components(*TRANSFORMER, Estimator):  # type: ignore[misc]
    """``components_`` (k x d), and ``mean_`` (d) where they are ``centred``."""

    centred = False
    _column_weight: np.ndarray | None = None  # those of the fit
    missing_: Missing | None = None
    _model: FactorModel | None = None  # of rows with gaps, where the fit found one

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
            Scores, in memory.

        Raises
        ------
        BadInputError
            Rows of another width, or before ``fit``.
        """
        return self._scores(X, missing=missing)

    def _scores(self, X: Any, dtype: Any = np.float64, missing: str = AS_RUN) -> np.ndarray:
        """Scores of ``dtype``: of float32 no more is ever held than they take themselves."""
        self._require_fit()
        gaps = self.missing_ is not None or require_rule(missing) == LEAST_SQUARES
        held = self._looked_at(X, first=False, dtype=REAL, gaps=gaps)
        mean = self.mean_ if self.centred else None
        if missing == LEAST_SQUARES:  # along orthonormal directions, and whitened after
            components = self._stored(self.components_.T, mean)
            return (components.all_scores(held, dtype=dtype, missing=missing) / self._scale()).astype(dtype, copy=False)
        components = self._stored(self.components_.T / self._scale(), mean)
        if not in_memory(held):
            return components.all_scores(held, dtype=dtype)
        rows = held if is_sparse(held) else np.asarray(real_array(held, "X"), np.float64)
        self._require_width(rows.shape)
        if self.missing_ is not None:
            return components.all_scores(rows, dtype=dtype)
        return components.scores(rows).astype(dtype, copy=False)

    def _stored(self, basis: Block, mean: np.ndarray | None) -> StoredComponents:
        weight, found = self._column_weight, self.missing_
        return StoredComponents(basis=basis, mean=mean, column_weight=weight, missing=found, model=self._model)

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
        rows = (scores * self._scale()) @ in_units_of_data(self.components_.T, self._column_weight).T
        return rows + self.mean_ if self.centred else rows

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    @property
    def _n_features_out(self) -> int:
        """How many columns scikit-learn names."""
        return len(self.components_)

    def _scale(self) -> np.ndarray | float:
        """What scores are divided by."""
        return 1.0


class CentredComponents(Components):
    """Of centred rows; scores may be whitened."""

    centred = True
    whiten: bool

    def _scale(self) -> np.ndarray | float:
        # As scikit-learn: a direction without variance is not blown up.
        return np.maximum(np.sqrt(self.explained_variance_), np.finfo(float).eps) if self.whiten else 1.0


def shares_of_variance(variances: np.ndarray, total: float) -> np.ndarray:
    """Parts of the whole variance; not a number, as with scikit-learn, where there is none."""
    return variances / total if total > 0 else np.full(len(variances), np.nan)
