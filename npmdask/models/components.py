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
from npmdask.storage.readers.gaps import Marks
from npmdask.streaming.estimator import REAL, TRANSFORMER, Estimator, in_memory


class Components(*TRANSFORMER, Estimator):  # type: ignore[misc]
    """``components_`` (k x d), and ``mean_`` (d) where they are ``centred``."""

    centred = False
    _column_weight: np.ndarray | None = None  # those of the fit, of the columns that were kept
    _kept: np.ndarray | None = None  # numbers of these, where others were left out
    missing_: Missing | None = None
    _model: FactorModel | None = None  # of rows with gaps, where the fit found one

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
        if self.missing_ is not None or self._marks:
            return components.all_scores(rows, dtype=dtype)
        return components.scores(rows).astype(dtype, copy=False)

    def _stored(self, basis: Block, mean: np.ndarray | None) -> StoredComponents:
        weight, found = self._column_weight, self.missing_
        basis, mean = self._of_kept(basis), None if mean is None else self._of_kept(mean)
        known: dict[str, Any] = {"missing": found, "model": self._model, "marks": self._marks}
        return StoredComponents(basis=basis, mean=mean, column_weight=weight, **known)

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
        patterns = in_units_of_data(self._of_kept(self.components_.T), self._column_weight)
        rows = (scores * self._scale()) @ patterns.T
        return self._whole(rows + self._of_kept(self.mean_) if self.centred else rows, np.nan)

    def _of_kept(self, values: np.ndarray) -> np.ndarray:
        """Of numbers of all columns (d or d x k) those of the columns that were kept."""
        return values if self._kept is None else values[self._kept]

    def _whole(self, values: np.ndarray, others: float) -> np.ndarray:
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
