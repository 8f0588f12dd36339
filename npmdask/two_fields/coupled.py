"""Coupled patterns of two gridded fields, that stay on their grids (npmdask.xarray)."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np

from npmdask.core.numerics.domains import less_one, one_of
from npmdask.core.numerics.units import attributes
from npmdask.errors import require
from npmdask.estimators.fields import Fields, Results, Words
from npmdask.missing.gaps import DROP, MEAN, REFUSE
from npmdask.two_fields.answers import CoupledModes, FieldModes, cca, mca


@dataclass(eq=False, repr=False)
class _Coupled(Words):
    """Base of both estimators: two DataArrays in, maps and series of both out. ``modes_``: the answer."""

    n_modes: int = 2
    _: KW_ONLY
    standardize: bool = False
    use_coslat: bool = False
    missing: str = DROP
    memory: str | int | None = None
    store: str | Path | None = None
    tol: float | None = None
    random_state: int | None = 0
    progress: bool = False
    use_pca: bool = True
    n_pca_modes: Any = None

    def fit(
        self,
        X: Any,
        Y: Any,
        dim: Any = "time",
        weights_X: Any = None,
        weights_Y: Any = None,
        sample_weights: Any = None,
    ) -> Self:
        """
        Find the modes.

        Parameters
        ----------
        X, Y : DataArray, Dataset or list of DataArray
            In memory, lazy, or of a file that was opened and not read. Their means along ``dim`` are taken off.
        dim : str or tuple of str, default "time"
            The dimension of samples, or several, with the same coordinates in both; all others make up the grids.
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
        one_of((DROP, MEAN, REFUSE), missing=self.missing)
        rule = self._missing_rule(self.missing)
        self.preprocessor1, self.preprocessor2, self._given = Fields.of(X, dim), Fields.of(Y, dim), (X, Y)
        self._rows = tuple(field.rows(given)[0] for field, given in zip(self._fields, self._given, strict=True))
        if any(rows.dims[0] != dim for rows in self._rows):  # else they are compared where they are read
            self.preprocessor1.require_samples(self.preprocessor2.axes, "Y")
        weights = [
            field.column_weights(given, use_coslat=self.use_coslat, missing=rule)
            for field, given in zip(self._fields, (weights_X, weights_Y), strict=True)
        ]
        self._weighted = sample_weights is not None
        self._samples = float(len(self._rows[0]) if sample_weights is None else np.sum(sample_weights))
        self.modes_ = self._solve_modes(
            dim=tuple(rows.dims[0] for rows in self._rows),
            missing=rule,
            scale=self.standardize,
            row_weights=sample_weights,
            left_weights=weights[0],
            right_weights=weights[1],
            seed=self.random_state or 0,
            **attributes(self, "tol", "store", "memory", "progress"),
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
        return self._field_scores(0, self._given[0]), self._field_scores(1, self._given[1])

    def transform(self, X: Any = None, Y: Any = None) -> Any:
        """
        Get the scores of other fields on the same grids.

        Parameters
        ----------
        X, Y : xarray.DataArray, optional
            One of them or both, with the dimensions and grids of what the modes were found of.

        Returns
        -------
        DataArray or list of DataArray
            Scores of what was given.

        Raises
        ------
        BadInputError
            Nothing was given, or another grid.
        """
        self._require_fit()
        given = [(number, field) for number, field in enumerate((X, Y)) if field is not None]
        require(bool(given), "transform needs fields: give X, Y or both")
        found = [self._field_scores(number, field) for number, field in given]
        return found[0] if len(found) == 1 else found

    def inverse_transform(self, X: Any = None, Y: Any = None) -> Any:
        """
        Get the fields that scores stand for: their means, and the sums of scores times patterns.

        Parameters
        ----------
        X, Y : xarray.DataArray, optional
            Scores of one field or of both, of some modes or all.

        Returns
        -------
        DataArray, Dataset or list of DataArray; a list of two for both
            As what was fitted, with its dimensions in their order, its name, attributes and type of numbers.

        Raises
        ------
        BadInputError
            Nothing was given, or modes that there are not.
        """
        given = [(number, scores) for number, scores in enumerate((X, Y)) if scores is not None]
        require(bool(given), "inverse_transform needs scores: give X, Y or both")
        found = []
        for number, scores in given:
            side = self._sides[number]
            mean = np.zeros(len(side.basis)) if side.components.mean is None else side.components.mean
            maps = self._maps(number, side.patterns, "patterns"), self._maps(number, mean[:, None], "mean")
            found.append(self._fields[number].rebuilt(scores, *maps))
        return found[0] if len(found) == 1 else found

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

    @property
    def _fields(self) -> tuple[Fields, Fields]:
        return self.preprocessor1, self.preprocessor2

    @property
    def data(self) -> Results:
        """Return the answers by the names of xeofs, each made when it is asked for."""
        made = {f"{name}{i + 1}": partial(self._one_of, name, i) for name in ("components", "scores") for i in (0, 1)}
        return Results({**made, "singular_values": lambda: self._by_mode(self.modes_.values, "singular_values")})

    def _one_of(self, name: str, number: int) -> Any:
        return getattr(self, name)()[number]

    def _field_scores(self, number: int, X: Any) -> Any:
        rows = self._fields[number].rows(X)[0]
        return self._fields[number].series(self._sides[number].scores(rows, dim=rows.dims[0]), X)

    def _by_mode(self, values: np.ndarray, name: str) -> Any:
        return self.preprocessor1.by_mode(values, name)


class MCA(_Coupled):
    """
    Find pairs of patterns of two DataArrays whose scores have the largest covariance; neither need fit in memory.

    The words are those of xeofs. Nothing is reduced to leading components before (its ``use_pca=False``).

    Parameters
    ----------
    n_modes : int, default 2
        How many modes.
    check_nans : bool, default True
        With False gaps are not looked for, not even land: what is missing is refused when it is met.
    sample_name, feature_name, compute, solver, solver_kwargs : object
        Words of xeofs without effect; a solver that there is not is refused.
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
    use_pca, n_pca_modes : object
        Without effect: nothing is reduced to leading components before.

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
    check_nans : bool, default True
        With False gaps are not looked for, not even land: what is missing is refused when it is met.
    sample_name, feature_name, compute, solver, solver_kwargs : object
        Words of xeofs without effect; a solver that there is not is refused.
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
    use_pca : bool, default True
        With False all grid points are taken.
    n_pca_modes : int, pair of int or "all", default 10
        How many leading components represent X and Y, at most as many as there are grid points; "all" grid points
        themselves need more samples than there are of both.

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
    n_pca_modes: int | tuple[int, int] | str = 10

    def _solve_modes(self, **asked: Any) -> CoupledModes:
        pcs: Any = None
        if self.use_pca and self.n_pca_modes != "all":
            both = self.n_pca_modes if isinstance(self.n_pca_modes, tuple | list) else (self.n_pca_modes,) * 2
            pcs = tuple(min(n, sum(field.sizes)) for n, field in zip(both, self._fields, strict=True))
        return cca(self._rows[0], self._rows[1], self.n_modes, pcs=pcs, **asked)

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
