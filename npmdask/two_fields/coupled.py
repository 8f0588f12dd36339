"""Coupled patterns of two gridded fields, that stay on their grids (npmdask.xarray)."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from npmdask.core.numerics.domains import less_one, one_of
from npmdask.core.numerics.units import attributes
from npmdask.errors import require
from npmdask.estimators.eof import Gridded
from npmdask.missing.gaps import DROP, MEAN
from npmdask.two_fields.answers import CoupledModes, FieldModes, cca, mca


@dataclass(eq=False, repr=False)
class _Coupled:
    """Base of both estimators: two DataArrays in, maps and series of both out. ``modes_``: the answer."""

    n_modes: int = 2
    _: KW_ONLY
    standardize: bool = False
    use_coslat: bool = False
    missing: str = DROP
    memory: str | int | None = None
    store: str | Path | None = None
    tol: float | None = None
    random_state: int = 0
    progress: bool = False

    def fit(
        self,
        X: Any,
        Y: Any,
        dim: str = "time",
        weights_X: Any = None,
        weights_Y: Any = None,
        sample_weights: Any = None,
    ) -> Self:
        """
        Find the modes.

        Parameters
        ----------
        X, Y : xarray.DataArray
            In memory, lazy, or of a file that was opened and not read. Their means along ``dim`` are taken off.
        dim : str, default "time"
            The dimension of samples, with the same coordinates in both; all others make up the grids.
        weights_X, weights_Y : xarray.DataArray, optional
            What the values of grid points are multiplied by, along some of their dimensions. Not negative.
        sample_weights : array_like, shape (n,), optional
            How much each sample counts, not negative.

        Returns
        -------
        object
            This object.

        Raises
        ------
        BadInputError
            No DataArray, no such dimension, other samples in one than in the other, no latitude, weights that are
            none, or values that are missing at some times only.
        """
        one_of((DROP, MEAN), missing=self.missing)
        self._fields = Gridded.of(X, dim), Gridded.of(Y, dim)
        self._rows = tuple(field.rows(given) for field, given in zip(self._fields, (X, Y), strict=True))
        weights = [
            field.column_weights(given, use_coslat=self.use_coslat, missing=self.missing)
            for field, given in zip(self._fields, (weights_X, weights_Y), strict=True)
        ]
        self._weighted = sample_weights is not None
        self._samples = float(X.sizes[dim] if sample_weights is None else np.sum(sample_weights))
        self.modes_ = self._solve_modes(
            dim=dim,
            scale=self.standardize,
            row_weights=sample_weights,
            left_weights=weights[0],
            right_weights=weights[1],
            seed=self.random_state,
            **attributes(self, "missing", "tol", "store", "memory", "progress"),
        )
        return self

    def components(self) -> tuple[Any, Any]:
        """
        Get what the (weighted) fields are multiplied by, as maps.

        Returns
        -------
        tuple of xarray.DataArray, shapes (n_modes, ...)
            Of X and of Y, on their grids; NaN where there are no data.
        """
        left, right = self._sides
        return self._maps(0, left.basis, "components"), self._maps(1, right.basis, "components")

    def patterns(self) -> tuple[Any, Any]:
        """
        Get what the fields gain, in the units of their data, where a score grows by 1.

        Returns
        -------
        tuple of xarray.DataArray, shapes (n_modes, ...)
            Of X and of Y, on their grids; NaN where there are no data, or where the weight is 0.
        """
        left, right = self._sides
        return self._maps(0, left.patterns, "patterns"), self._maps(1, right.patterns, "patterns")

    def scores(self) -> tuple[Any, Any]:
        """
        Get the scores of the fields that the modes were found of; they are read once more.

        Returns
        -------
        tuple of xarray.DataArray, shapes (n, n_modes)
            Of X and of Y, along the dimension of samples.
        """
        self._require_fit()
        return self._field_scores(0, self._rows[0]), self._field_scores(1, self._rows[1])

    def transform(self, X: Any = None, Y: Any = None) -> Any:
        """
        Get the scores of other fields on the same grids.

        Parameters
        ----------
        X, Y : xarray.DataArray, optional
            One of them or both, with the dimensions and grids of what the modes were found of.

        Returns
        -------
        xarray.DataArray or tuple of them
            Scores of what was given.

        Raises
        ------
        BadInputError
            Nothing was given, or another grid.
        """
        self._require_fit()
        given = [(number, field) for number, field in enumerate((X, Y)) if field is not None]
        require(bool(given), "transform needs fields: give X, Y or both")
        found = []
        for number, field in given:
            Gridded.of(field, self._fields[number].sample)
            found.append(self._field_scores(number, self._fields[number].rows(field)))
        return found[0] if len(found) == 1 else tuple(found)

    def cross_correlation_coefficients(self) -> Any:
        """
        Get the correlation of the two scores of each mode.

        Returns
        -------
        xarray.DataArray, shape (n_modes,)
            From -1 to 1.
        """
        self._require_fit()
        return self._by_mode(self.modes_.correlations, "cross_correlation_coefficients")

    def fraction_variance_X_explained_by_X(self) -> Any:
        """
        Get the share of the (weighted) variance of X that each of its scores represents.

        Returns
        -------
        xarray.DataArray, shape (n_modes,)
            From 0 to 1.
        """
        return self._by_mode(self._sides[0].explained_variance_ratio, "fraction_variance_X_explained_by_X")

    def fraction_variance_Y_explained_by_Y(self) -> Any:
        """
        Get the share of the (weighted) variance of Y that each of its scores represents.

        Returns
        -------
        xarray.DataArray, shape (n_modes,)
            From 0 to 1.
        """
        return self._by_mode(self._sides[1].explained_variance_ratio, "fraction_variance_Y_explained_by_Y")

    def _solve_modes(self, **asked: Any) -> CoupledModes:
        raise NotImplementedError

    def _require_fit(self) -> None:
        require(hasattr(self, "modes_"), f"{type(self).__name__} is not fitted yet: call fit first")

    @property
    def _sides(self) -> tuple[FieldModes, FieldModes]:
        self._require_fit()
        return self.modes_.left, self.modes_.right

    def _maps(self, number: int, columns: np.ndarray, name: str) -> Any:
        return self._fields[number].maps(columns, self._sides[number].missing, name)

    def _field_scores(self, number: int, rows: Any) -> Any:
        field = self._fields[number]
        return field.series(self._sides[number].scores(rows, dim=field.sample), rows)

    def _by_mode(self, values: np.ndarray, name: str) -> Any:
        return self._fields[0].by_mode(values, name)


class MCA(_Coupled):
    """
    Find pairs of patterns of two DataArrays whose scores have the largest covariance; neither need fit in memory.

    The words are those of xeofs. Nothing is reduced to leading components before (its ``use_pca=False``).

    Parameters
    ----------
    n_modes : int, default 2
        How many modes.
    standardize : bool, default False
        Divide every grid point of both fields by its standard deviation, and only then weight it.
    use_coslat : bool, default False
        Weight every grid point of both fields by the square root of the cosine of its latitude.
    missing : {"drop-columns", "mean"}, default "drop-columns"
        What is done with a grid point that has data at some times only: refused, or its gaps count as its mean.
    memory : str or int, optional
        Limit for the fit, like "2GiB".
    store : str or Path, optional
        Folder of the run, from which a killed fit resumes; by default a temporary one.
    tol : float, optional
        Relative residual to reach; 1e-9, or 1e-6 for float32 data, by default.
    random_state : int, default 0
        Seed of the start.
    progress : bool, default False
        Show the progress and the time left: on stderr, or below the cell of a notebook.

    Attributes
    ----------
    modes_ : CoupledModes
        The answer, with its certificate.

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> from npmdask.xarray import MCA
    >>> rng = np.random.default_rng(0)
    >>> X = xr.DataArray(rng.standard_normal((60, 4, 5)), dims=("time", "lat", "lon"))
    >>> Y = xr.DataArray(rng.standard_normal((60, 7)), dims=("time", "station"))
    >>> maps, stations = MCA(n_modes=2).fit(X, Y, dim="time").components()
    >>> maps.dims, stations.dims
    (('mode', 'lat', 'lon'), ('mode', 'station'))
    """

    def _solve_modes(self, **asked: Any) -> CoupledModes:
        return mca(self._rows[0], self._rows[1], self.n_modes, **asked)

    def singular_values(self) -> Any:
        """
        Get the covariances of the two scores of each mode, n - 1 in the denominator.

        Returns
        -------
        xarray.DataArray, shape (n_modes,)
            The largest first.
        """
        self._require_fit()
        share = self._samples / less_one(self._samples, weighted=self._weighted)
        return self._by_mode(self.modes_.values * share, "singular_values")

    def squared_covariance_fraction(self) -> Any:
        """
        Get the share of each mode in the sum of all squared covariances of two grid points, which is estimated.

        Returns
        -------
        xarray.DataArray, shape (n_modes,)
            The largest first; ``modes_.squared_covariance_error`` is the standard error of that sum.
        """
        self._require_fit()
        assert self.modes_.squared_covariance_fraction is not None
        return self._by_mode(self.modes_.squared_covariance_fraction, "squared_covariance_fraction")


@dataclass(eq=False, repr=False)
class CCA(_Coupled):
    """
    Find pairs of patterns of two DataArrays whose scores are most correlated; neither need fit in memory.

    Of the leading components of both fields, as is usual for grids of more points than there are samples.

    Parameters
    ----------
    n_modes : int, default 2
        How many modes.
    standardize : bool, default False
        Divide every grid point of both fields by its standard deviation, and only then weight it.
    use_coslat : bool, default False
        Weight every grid point of both fields by the square root of the cosine of its latitude.
    missing : {"drop-columns", "mean"}, default "drop-columns"
        What is done with a grid point that has data at some times only: refused, or its gaps count as its mean.
    memory : str or int, optional
        Limit for the fit, like "2GiB".
    store : str or Path, optional
        Folder of the run, from which a killed fit resumes; by default a temporary one.
    tol : float, optional
        Relative residual of the components to reach; 1e-9, or 1e-6 for float32 data, by default.
    random_state : int, default 0
        Seed of the start.
    progress : bool, default False
        Show the progress and the time left: on stderr, or below the cell of a notebook.
    n_pca_modes : int or pair of int, default 10
        How many leading components represent X and Y. :func:`npmdask.cca` takes all columns, too.

    Attributes
    ----------
    modes_ : CoupledModes
        The answer, with what should be known of it.

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> from npmdask.xarray import CCA
    >>> rng = np.random.default_rng(0)
    >>> X = xr.DataArray(rng.standard_normal((60, 4, 5)), dims=("time", "lat", "lon"))
    >>> Y = xr.DataArray(rng.standard_normal((60, 7)), dims=("time", "station"))
    >>> model = CCA(n_modes=2, n_pca_modes=5).fit(X, Y, dim="time")
    >>> model.canonical_correlations().shape
    (2,)
    """

    _: KW_ONLY
    n_pca_modes: int | tuple[int, int] = 10

    def _solve_modes(self, **asked: Any) -> CoupledModes:
        return cca(self._rows[0], self._rows[1], self.n_modes, pcs=self.n_pca_modes, **asked)

    def canonical_correlations(self) -> Any:
        """
        Get the correlations of the two scores of each mode.

        Returns
        -------
        xarray.DataArray, shape (n_modes,)
            The largest first.
        """
        self._require_fit()
        return self._by_mode(self.modes_.values, "canonical_correlations")
