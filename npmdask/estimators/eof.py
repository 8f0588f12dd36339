"""Empirical orthogonal functions of gridded data: principal components that stay on their grid (npmdask.xarray).

:class:`Gridded` is a field as rows and columns, and vectors over its columns as maps. :class:`HilbertEOF` finds
propagating patterns, from the analytic signal of every grid point. For it the field is turned round: a row is a grid
point, whose analytic signal needs all times of that point and no other. So rows are computed a block of points at a
time, in every pass, and nothing as large as the field is ever in memory.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np

from npmdask.complex.parts import fix_phases
from npmdask.containers.lazy import rows_of_a_block
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.numerics.domains import one_of
from npmdask.core.runs.automatic import posed
from npmdask.core.runs.components import AS_RUN
from npmdask.core.runs.driver import drive, solve
from npmdask.core.runs.problem import Request
from npmdask.core.runs.progress import with_progress
from npmdask.core.runs.resources import asked_resources
from npmdask.core.runs.solution import Solution
from npmdask.core.storage.column_statistics import ColumnStatistics
from npmdask.core.storage.labels import DESCRIBED, Axis, axis_of
from npmdask.core.storage.readers.dense import ReadStats
from npmdask.core.storage.source import Source, open_source
from npmdask.errors import BadInputError, require
from npmdask.estimators.base import run_store
from npmdask.missing.gaps import COUNTED, DROP, REFUSE, checked_marks, unmarked
from npmdask.missing.rules import Missing, gaps_of
from npmdask.weights.aspect import COSLAT, Weights, find_weights, over, weights_called


@dataclass(frozen=True)
class Gridded:
    """The grid of a DataArray: its first sample (``grid``, with coordinates), and the dimension of samples.

    Columns are grid points, in the order of the dimensions of the grid.
    """

    grid: Any
    sample: str

    @classmethod
    def of(cls, X: Any, dim: str) -> Gridded:
        """Make one from a DataArray.

        Raises
        ------
        BadInputError
            No DataArray, nothing along ``dim``, or no other dimension.
        """
        if type(X).__name__ != "DataArray":
            raise BadInputError(f"a DataArray of xarray is needed, not a {type(X).__name__}: give one, as ds['name']")
        if dim in X.dims and not X.sizes[dim]:
            raise BadInputError(f"the DataArray has length 0 along {dim!r}: there are no data to analyse")
        if dim not in X.dims or X.ndim < 2:
            raise BadInputError(f"dim = {dim!r} and others are needed; the DataArray has {', '.join(map(str, X.dims))}")
        return cls(X.isel({dim: 0}, drop=True), dim)

    def rows(self, X: Any) -> Any:
        """The samples of a DataArray in rows, in blocks, so that nothing is copied."""
        rows = X.transpose(self.sample, ...)
        return rows if rows.chunks is not None else rows.chunk({self.sample: rows_of_a_block(rows.shape, rows.dtype)})

    def column_weights(
        self, weights: Any, *, use_coslat: bool, missing: str, marks: tuple[float, ...] = ()
    ) -> np.ndarray | None:
        """Return the weights of squares of columns: the squares of ``weights``, times the cosines of latitudes.

        0 over land, where nothing is read; None: all alike. ``marks``: numbers that mark missing values.
        """
        columns = None
        if weights is not None:
            if type(weights).__name__ != "DataArray":
                said = f"weights are a DataArray over dimensions of the grid, not a {type(weights).__name__}"
                raise BadInputError(said)
            roots = over(self._axes, weights, "weights").astype(np.float64)
            columns = roots * np.abs(roots)  # negative ones stay so, and are refused
        if use_coslat:
            columns = self.coslat() * (1.0 if columns is None else columns)
        if columns is not None and missing == DROP and np.isnan(columns).any():
            land = np.isnan(unmarked(self.grid.values, marks)).ravel()
            columns = np.where(np.isnan(columns) & land, 0.0, columns)
        return columns

    def coslat(self) -> np.ndarray:
        """The cosines of latitudes, all over the grid."""
        return np.asarray(weights_called(COSLAT, "columns", self._axes, self.grid, "use_coslat"))

    @property
    def _axes(self) -> tuple[Axis, ...]:
        held = self.grid.indexes
        sizes = self.grid.sizes.items()
        return tuple(axis_of(dim, held[dim].to_numpy() if dim in held else None, size) for dim, size in sizes)

    # Answers.

    def maps(self, vectors: np.ndarray, missing: Missing | None, name: str) -> Any:
        """Vectors (columns that are there, or all, x k) as maps; NaN where there are no data at any time."""
        seen = np.arange(self.grid.size)
        if missing is not None:
            seen = missing.kept[missing.counts[missing.kept] < missing.rows]
        maps = np.full((vectors.shape[1], self.grid.size), np.nan, vectors.dtype)
        maps[:, seen] = (vectors if len(vectors) == len(seen) else vectors[seen]).T
        grid = _rename_mode(self.grid)
        return type(grid)(
            maps.reshape(-1, *grid.shape),
            dims=("mode", *grid.dims),
            coords={**_modes(vectors.shape[1]), **grid.coords},
            name=name,
            attrs=DESCRIBED.get(name, {}),
        )

    def series(self, values: np.ndarray, samples: Any) -> Any:
        """Scores (n x k) along the samples; ``samples``: a DataArray with the coordinates of these."""
        along = _rename_mode(samples[self.sample])
        coords = _modes(values.shape[1]) | ({along.dims[0]: along} if self.sample in samples.coords else {})
        return type(self.grid)(
            values, dims=(*along.dims, "mode"), coords=coords, name="scores", attrs=DESCRIBED["scores"]
        )

    def by_mode(self, values: np.ndarray, name: str) -> Any:
        """A number for each mode."""
        described = DESCRIBED.get(name, {})
        return type(self.grid)(values, dims=("mode",), coords=_modes(len(values)), name=name, attrs=described)


def _modes(count: int) -> dict[str, Any]:
    return {"mode": np.arange(1, count + 1)}


def _rename_mode(held: Any) -> Any:
    """A DataArray whose own ``mode``, if it has one, is called ``mode_``, as in :meth:`npmdask.Solution.to_xarray`."""
    return held.rename(mode="mode_") if "mode" in (*held.dims, *held.coords) else held


@dataclass(eq=False, repr=False)
class EOF:
    """
    Find the empirical orthogonal functions of a DataArray that need not fit in memory.

    The words are those of xeofs. Grid points without data at any time (land, in a field of the sea) are left out and
    come back as NaN; a value that is missing at some times only is refused, or counts as the mean of its grid point.

    Parameters
    ----------
    n_modes : int, default 10
        How many modes.
    use_coslat : bool, default False
        Weight every grid point by the square root of the cosine of its latitude, so that areas count equally. The
        field itself is not multiplied.
    standardize : bool, default False
        Divide every grid point by its standard deviation, and only then weight it, as xeofs does. Points whose values
        are constant stay as they are.
    missing : {"drop-columns", "mean", "em", "pairwise"}, default "drop-columns"
        What is done with a grid point that has data at some times only: refused; or its gaps count as its mean over
        time; or a model is fitted to what is there; or covariances are of common times. Points without data at any
        time are left out in any case.
    missing_values : float or list of float, optional
        Numbers that mark missing values, in addition to NaN, such as -9999.
    missing_limit : float, optional
        With "mean": leave out points that lack more than this share of their values, which a pass before counts.
    algorithm : str, default "auto"
        As of :func:`npmdask.top_k`; "row-gram" is for few times and many grid points.
    memory : str or int, optional
        Limit for the fit, like "2GiB".
    device : {"cpu", "auto", "cuda"}, default "cpu"
        What sums over the rows are formed on, as for :func:`npmdask.top_k`: "cuda" is an NVIDIA GPU.
    device_memory : str or int, optional
        Limit for the memory of the GPU; most of what is free by default.
    store : str or Path, optional
        Folder of the run, from which a killed fit resumes; by default a temporary one.
    tol : float, optional
        Relative residual to reach; 1e-9, or 1e-6 for float32 data, by default.
    random_state : int, default 0
        Seed of the start, which the result does not depend on beyond ``tol``.
    progress : bool, default False
        Show the progress and the time left: on stderr, or below the cell of a notebook.

    Attributes
    ----------
    solution_ : Solution
        The answer, with its certificate; its components are those of the weighted grid points that have data.

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> from npmdask.xarray import EOF
    >>> values = np.random.default_rng(0).standard_normal((60, 4, 5))
    >>> field = xr.DataArray(values, dims=("time", "lat", "lon"), coords={"lat": [-60.0, -20.0, 20.0, 60.0]})
    >>> model = EOF(n_modes=2, use_coslat=True).fit(field, dim="time")
    >>> model.components().dims, model.scores().shape
    (('mode', 'lat', 'lon'), (60, 2))
    """

    n_modes: int = 10
    _: KW_ONLY
    use_coslat: bool = False
    standardize: bool = False
    missing: str = DROP
    missing_values: Any = None
    missing_limit: float | None = None
    algorithm: str = "auto"
    memory: str | int | None = None
    device: str = "cpu"
    device_memory: str | int | None = None
    store: str | Path | None = None
    tol: float | None = None
    random_state: int = 0
    progress: bool = False

    def fit(self, X: Any, dim: str = "time", weights: Any = None, sample_weights: Any = None) -> Self:
        """
        Find the modes.

        Parameters
        ----------
        X : xarray.DataArray
            In memory, lazy, or of a file that was opened and not read. Its mean along ``dim`` is taken off.
        dim : str, default "time"
            The dimension of samples; all others make up the grid.
        weights : xarray.DataArray, optional
            What the values of grid points are multiplied by, along some of their dimensions, as xeofs and eofs have it:
            the roots of areas. Not negative; missing where the field is (land), if at all.
        sample_weights : array_like, shape (n,), optional
            How much each sample counts, not negative: with 2 like two equal samples, with 0 like none.

        Returns
        -------
        EOF
            This object.

        Raises
        ------
        BadInputError
            No DataArray, no such dimension, no latitude, weights that are none, or values that are missing at some
            times only.
        """
        self._field = Gridded.of(X, dim)
        one_of((DROP, *COUNTED), missing=self.missing)
        marks = checked_marks(self.missing_values)
        columns = self._field.column_weights(weights, use_coslat=self.use_coslat, missing=self.missing, marks=marks)
        self._fitted = self._field.rows(X)
        source = open_source(self._fitted, "samples", dim, gaps=self.missing != REFUSE)
        rows = find_weights(source, X, sample_weights, None)
        weighted = Weights(rows=None if rows is None else rows.rows, columns=columns)
        request = Request(
            target_rank=self.n_modes,
            center=True,
            scale=self.standardize,
            algorithm=self.algorithm,
            seed=self.random_state,
            tol=self.tol,
            aspects=(gaps_of(self), weighted if weighted.arrays() else None),
        )
        resources = asked_resources(self.memory, device=self.device, device_memory=self.device_memory)
        problem = posed(request, source, resources, self.store)
        with with_progress(None, self.progress) as told:
            self.solution_ = solve(problem, self.store, resources, told)
        return self

    def components(self) -> Any:
        """
        Get the modes as maps.

        Returns
        -------
        xarray.DataArray, shape (n_modes, ...)
            Of the weighted field, as those of xeofs and eofs; of unit length, on the grid; NaN where there are no data.
            The entry of largest size in each is positive.
        """
        return self._maps(self._fitted_solution.basis, "components")

    def patterns(self) -> Any:
        """
        Get the modes as fields in the units of the data: what the field gains where a score grows by 1.

        The mean field and the sum of scores times patterns make up the field, as far as the modes reach. With weights
        w (and standard deviations s) they are ``components() * s / w``, orthonormal where squares count ``w^2 / s^2``.

        Returns
        -------
        xarray.DataArray, shape (n_modes, ...)
            On the grid; NaN where there are no data, or where the weight is 0.
        """
        return self._maps(self._fitted_solution.patterns(), "patterns")

    def scores(self, *, missing: str = AS_RUN) -> Any:
        """
        Get the scores of the data that the modes were found of; they are read once more.

        Parameters
        ----------
        missing : {"as-run", "least-squares"}, default "as-run"
            Missing values are treated as in ``fit``, or scores are fitted to what is observed: see
            :meth:`npmdask.Solution.scores`.

        Returns
        -------
        xarray.DataArray, shape (n, n_modes)
            Along the dimension of samples.
        """
        self._require_fit()
        return self._sample_scores(self._fitted, missing)

    def transform(self, X: Any, *, missing: str = AS_RUN) -> Any:
        """
        Get the scores of other data on the same grid.

        Parameters
        ----------
        X : xarray.DataArray
            With the dimensions and grid of what the modes were found of.
        missing : {"as-run", "least-squares"}, default "as-run"
            As for :meth:`scores`; with "least-squares" samples that do not determine their scores get NaN.

        Returns
        -------
        xarray.DataArray, shape (n, n_modes)
            Along the dimension of samples.

        Raises
        ------
        BadInputError
            Another grid, or values that are missing where the first data had some and gaps are refused.
        """
        self._require_fit()
        Gridded.of(X, self._field.sample)
        return self._sample_scores(self._field.rows(X), missing)

    def explained_variance(self) -> Any:
        """
        Get the variance of each mode, n - 1 in the denominator; of weighted samples the sum of their weights less 1.

        Returns
        -------
        xarray.DataArray, shape (n_modes,)
            The largest first.
        """
        return self._of_modes("explained_variance")

    def explained_variance_ratio(self) -> Any:
        """
        Get the share of each mode in the (weighted) variance of all grid points.

        Returns
        -------
        xarray.DataArray, shape (n_modes,)
            The largest first.
        """
        return self._of_modes("explained_variance_ratio")

    def singular_values(self) -> Any:
        """
        Get the singular values of the centred, weighted data.

        Returns
        -------
        xarray.DataArray, shape (n_modes,)
            The largest first.
        """
        return self._of_modes("singular_values")

    def _require_fit(self) -> None:
        require(hasattr(self, "solution_"), "EOF is not fitted yet: call fit first")

    @property
    def _fitted_solution(self) -> Solution:
        self._require_fit()
        return self.solution_

    def _of_modes(self, name: str) -> Any:
        """A number for each mode, as the answer calls it."""
        values = getattr(self._fitted_solution, name)
        return self._field.by_mode(values, name)

    def _maps(self, columns: np.ndarray, name: str) -> Any:
        """Vectors over the grid points that have data, as maps."""
        return self._field.maps(columns, self.solution_.missing, name)

    def _sample_scores(self, rows: Any, missing: str) -> Any:
        values = self._fitted_solution.scores(rows, dim=self._field.sample, missing=missing)
        return self._field.series(values, rows)


# Hilbert EOFs.

PADDINGS = ("exp", "none")
POINT_BYTES = 8 * 2**20  # of the complex rows that are computed at once


@dataclass(eq=False, repr=False)
class HilbertEOF:
    """
    Find patterns that propagate in a DataArray, by complex EOFs of the analytic signals of its grid points.

    The words are those of xeofs. The mean over time is taken off every grid point; its Hilbert transform along time
    is the imaginary part. Points without data at any time (land) are left out and come back as NaN.

    Parameters
    ----------
    n_modes : int, default 10
        How many modes.
    padding : {"exp", "none"}, default "exp"
        Before the transform each series is continued to both sides by as many times, as a straight line fitted to it
        and what is left decaying exponentially: a series whose ends do not meet would leak. "none": as it is.
    decay_factor : float, default 0.2
        In how large a part of its length what is left decays to 1/e; 0.05 for data that vary fast.
    use_coslat : bool, default False
        Weight every grid point by the square root of the cosine of its latitude.
    standardize : bool, default False
        Divide every grid point by its standard deviation. Points whose values are constant stay as they are.
    memory : str or int, optional
        Limit for the fit, like "2GiB".
    store : str or Path, optional
        Folder of the run, from which a killed fit resumes; by default a temporary one.
    tol : float, optional
        Relative residual to reach; 1e-9, or 1e-6 for float32 data, by default.
    random_state : int, default 0
        Seed of the start, which the result does not depend on beyond ``tol``.
    progress : bool, default False
        Show the progress and the time left: on stderr, or below the cell of a notebook.

    Attributes
    ----------
    solution_ : Solution
        The answer, with its certificate: of the matrix whose rows are grid points and whose columns are times.

    See Also
    --------
    EOF : Standing patterns.

    Notes
    -----
    Horel, J. Climate Appl. Meteor. 23 (1984) 1660; Barnett, Monthly Weather Review 111 (1983) 756.

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> from npmdask.xarray import HilbertEOF
    >>> time, x = np.arange(120), np.linspace(0, 2 * np.pi, 30, endpoint=False)
    >>> wave = xr.DataArray(np.cos(x - 2 * np.pi * time[:, None] / 12), dims=("time", "x"))
    >>> model = HilbertEOF(n_modes=1).fit(wave, dim="time")
    >>> turns = np.unwrap(model.components_phase().values[0])
    >>> bool(np.allclose(abs(turns[-1] - turns[0]), x[-1], atol=0.01))
    True
    """

    n_modes: int = 10
    _: KW_ONLY
    padding: str = "exp"
    decay_factor: float = 0.2
    use_coslat: bool = False
    standardize: bool = False
    memory: str | int | None = None
    store: str | Path | None = None
    tol: float | None = None
    random_state: int = 0
    progress: bool = False

    def fit(self, X: Any, dim: str = "time") -> Self:
        """
        Find the modes.

        Parameters
        ----------
        X : xarray.DataArray
            Real numbers; in memory, of a file that was opened and not read, or lazy. Lazy ones are best in blocks that
            have all times, as ``xr.open_zarr(path, chunks=None)`` leaves them to be read.
        dim : str, default "time"
            The dimension of time; all others make up the grid.

        Returns
        -------
        HilbertEOF
            This object.

        Raises
        ------
        BadInputError
            No DataArray, no such dimension, fewer than three times, complex numbers, no latitude, or values that are
            missing at some times only.
        """
        one_of(PADDINGS, padding=self.padding)
        if not 0 < self.decay_factor < np.inf:
            raise BadInputError(f"decay_factor = {self.decay_factor} must be positive: 0.2, or 0.05 for fast changes")
        self._field = Gridded.of(X, dim)
        if X.dtype.kind not in "iuf" or X.sizes[dim] < 3:
            raise BadInputError(
                f"the DataArray holds {X.dtype} at {X.sizes[dim]} times: an analytic signal needs at least three "
                "real numbers (for complex data use npmdask.top_k)"
            )
        grid, self._times = self._field.grid, X[dim]
        # The longest dimension of the grid first: blocks are cut along it, and hold all of the others.
        self._order = sorted(grid.dims, key=lambda name: -grid.sizes[name])
        self._ordered = Gridded(grid.transpose(*self._order), dim)
        self._areas = self._ordered.coslat() if self.use_coslat else None
        self._points = self._signals(X, dim)
        weights = None if self._areas is None else Weights(rows=self._areas)
        request = Request(target_rank=self.n_modes, tol=self.tol, seed=self.random_state, aspects=(weights,))
        source, resources = self._open_points(), asked_resources(self.memory)
        with run_store(self.store) as store:
            problem = posed(request, source, resources, store)
            with RunStore(store) as run, with_progress(None, self.progress) as told:
                self.solution_ = drive(problem, run, resources, told)
                found = self.solution_.left_basis().conj()
        phases = fix_phases(found)
        self._patterns, self._scores = found * phases, self.solution_.basis.conj() * phases
        return self

    def components(self) -> Any:
        """
        Get the modes as complex maps: the field is the real part of the sum of scores times their conjugates.

        Returns
        -------
        xarray.DataArray, shape (n_modes, ...)
            Of the weighted field, of unit length, on the grid; NaN where there are no data. The entry of largest
            modulus in each is real and positive.
        """
        self._require_fit()
        maps = self._ordered.maps(np.where(self._land_mask[:, None], np.nan, self._patterns), None, "components")
        return maps.transpose("mode", *_rename_mode(self._field.grid).dims)

    def components_amplitude(self, normalized: bool = True) -> Any:
        """
        Get how strong each mode is at each grid point.

        Parameters
        ----------
        normalized : bool, default True
            Of components of unit length; else times the singular values.

        Returns
        -------
        xarray.DataArray, shape (n_modes, ...)
            Moduli of the components, on the grid.
        """
        found = abs(self.components())
        return (found if normalized else found * self.singular_values()).rename("components_amplitude")

    def components_phase(self) -> Any:
        """
        Get where in its cycle each mode is at each grid point; a standing pattern has two phases only.

        Returns
        -------
        xarray.DataArray, shape (n_modes, ...)
            Angles of the components, from -pi to pi, on the grid.
        """
        found = self.components()
        return found.copy(data=np.where(np.isnan(found.values), np.nan, np.angle(found.values))).rename(
            "components_phase"
        )

    def scores(self, normalized: bool = False) -> Any:
        """
        Get the complex time series of the modes.

        Parameters
        ----------
        normalized : bool, default False
            Of unit length; else times the singular values.

        Returns
        -------
        xarray.DataArray, shape (n, n_modes)
            Along the dimension of time.
        """
        self._require_fit()
        found = self._field.series(self._scores, self._times)
        return found if normalized else (found * self.singular_values()).rename("scores")

    def scores_amplitude(self, normalized: bool = True) -> Any:
        """
        Get how strong each mode is at each time.

        Parameters
        ----------
        normalized : bool, default True
            Of scores of unit length; else times the singular values.

        Returns
        -------
        xarray.DataArray, shape (n, n_modes)
            Moduli of the scores.
        """
        return abs(self.scores(normalized)).rename("scores_amplitude")

    def scores_phase(self) -> Any:
        """
        Get where in its cycle each mode is at each time.

        Returns
        -------
        xarray.DataArray, shape (n, n_modes)
            Angles of the scores, from -pi to pi.
        """
        found = self.scores(normalized=True)
        return found.copy(data=np.angle(found.values)).rename("scores_phase")

    def singular_values(self) -> Any:
        """
        Get the singular values of the analytic signals, weighted.

        Returns
        -------
        xarray.DataArray, shape (n_modes,)
            The largest first.
        """
        self._require_fit()
        return self._field.by_mode(self.solution_.values, "singular_values")

    def explained_variance(self) -> Any:
        """
        Get the variance of each mode, n - 1 in the denominator.

        Returns
        -------
        xarray.DataArray, shape (n_modes,)
            The largest first.
        """
        return (self.singular_values() ** 2 / (len(self._scores) - 1)).rename("explained_variance")

    def explained_variance_ratio(self) -> Any:
        """
        Get the share of each mode in the variance of all analytic signals; the data are read once more.

        Returns
        -------
        xarray.DataArray, shape (n_modes,)
            The largest first.
        """
        squares, reader = self.singular_values() ** 2, self._open_points().reader
        total = 0.0
        for unit in range(reader.units):
            for rows, tile in reader.tiles(unit, ReadStats()):
                areas = 1.0 if self._areas is None else self._areas[rows]
                total += sum(
                    float((np.square(values, dtype=np.float64).sum(axis=1) * areas).sum()) for _, values in tile
                )
        return (squares / total).rename("explained_variance_ratio")

    @property
    def _land_mask(self) -> np.ndarray:
        """Points without data at the first time, and so at any."""
        first = self._ordered.grid.values.ravel()
        return np.isnan(first) if first.dtype.kind == "f" else np.zeros(len(first), bool)

    def _require_fit(self) -> None:
        require(hasattr(self, "solution_"), "HilbertEOF is not fitted yet: call fit first")

    def _open_points(self) -> Source:
        return open_source(self._points, "matrix", of_complex=True)

    def _signals(self, X: Any, dim: str) -> Any:
        """The analytic signals, a row for each grid point, as a Dask array in blocks of points."""
        n, first, *others = X.sizes[dim], *self._order
        beside = int(np.prod([X.sizes[name] for name in others], dtype=np.int64))
        height = min(X.sizes[first], max(1, POINT_BYTES // (16 * n * beside)))
        field = X.chunk({dim: -1, first: height, **dict.fromkeys(others, -1)}).transpose(*self._order, dim)
        rows = field.data.reshape((int(np.prod(field.shape[:-1], dtype=np.int64)), n))
        made = partial(analytic, padding=self.padding, decay=self.decay_factor, scale=self.standardize)
        dtype = np.result_type(np.complex64, X.dtype)
        return rows.map_blocks(made, dtype=dtype, meta=np.empty((0, 0), dtype))


def analytic(rows: np.ndarray, *, padding: str, decay: float, scale: bool) -> np.ndarray:
    """Analytic signals of some series less their means (points x times), less the means that these have.

    Parameters
    ----------
    rows : real numbers; a row of NaN is taken for one of zeros.
    padding, decay, scale : as of :class:`HilbertEOF`.

    Raises
    ------
    ValueError
        A series that has a gap.
    """
    dtype, series = np.result_type(np.complex64, rows.dtype), rows.astype(np.float64)
    gaps = np.isnan(series)
    partly = np.flatnonzero(gaps.any(axis=1) & ~gaps.all(axis=1))
    if len(partly):
        raise ValueError(f"{len(partly)} grid points have values at some times only: fill in their gaps first")
    series[gaps] = 0.0
    n, mean = series.shape[1], series.mean(axis=1, keepdims=True)
    series -= mean
    if scale:
        series /= ColumnStatistics(mean=mean[:, 0], std=series.std(axis=1), rows=n).scale[:, None]
    padded = _extended_series(series, decay) if padding == "exp" else series
    half = padded.shape[1] // 2
    spectrum = np.fft.fft(padded, axis=1)
    spectrum[:, 1 : (padded.shape[1] + 1) // 2] *= 2
    spectrum[:, half + 1 :] = 0
    signal = np.fft.ifft(spectrum, axis=1)[:, n : 2 * n] if padding == "exp" else np.fft.ifft(spectrum, axis=1)
    return np.asarray(signal - signal.mean(axis=1, keepdims=True), dtype)


def _extended_series(series: np.ndarray, decay: float) -> np.ndarray:
    """Series (points x n) continued to 3 n times: a line that is fitted to each, and what is left fading out."""
    n = series.shape[1]
    time = np.arange(n) - (n - 1) / 2
    slope = (series @ time / (time @ time))[:, None]  # of series of mean 0
    rest, fading = series - slope * time, np.exp(-np.arange(n) / n / decay)
    before, after = rest[:, :1] * fading[::-1], rest[:, -1:] * fading
    return np.concatenate([before, rest, after], axis=1) + slope * (np.arange(-n, 2 * n) - (n - 1) / 2)
