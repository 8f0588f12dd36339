"""Empirical orthogonal functions of gridded data: principal components that stay on their grid (npmdask.xarray).

:class:`HilbertEOF` finds
propagating patterns, from the analytic signal of every grid point. For it the field is turned round: a row is a grid
point, whose analytic signal needs all times of that point and no other. So rows are computed a block of points at a
time, in every pass, and nothing as large as the field is ever in memory.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from npmdask.complex.parts import fix_phases
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.numerics.domains import less_one, one_of
from npmdask.core.numerics.units import attributes
from npmdask.core.runs.automatic import posed
from npmdask.core.runs.components import AS_RUN, StoredComponents
from npmdask.core.runs.driver import drive, solve
from npmdask.core.runs.problem import Request
from npmdask.core.runs.progress import with_progress
from npmdask.core.runs.resources import asked_resources
from npmdask.core.runs.solution import Solution
from npmdask.core.storage.column_statistics import ColumnStatistics
from npmdask.core.storage.readers.dense import ReadStats
from npmdask.core.storage.source import Source, open_source
from npmdask.errors import BadInputError, require
from npmdask.estimators.base import run_store, seed_of
from npmdask.estimators.fields import (
    FieldModel,
    Fields,
    Results,
    Words,
    found_of,
    picked,
    rotated_modes,
    rotation_answers,
)
from npmdask.missing.gaps import COUNTED, DROP, REFUSE, checked_marks
from npmdask.missing.rules import find_gaps
from npmdask.weights.aspect import Weights, find_weights


@dataclass(eq=False, repr=False)
class EOF(FieldModel, Words):
    """
    Find the empirical orthogonal functions of a DataArray that need not fit in memory.

    The words are those of xeofs. Grid points without data at any time (land, in a field of the sea) are left out and
    come back as NaN; a value that is missing at some times only is refused, or counts as the mean of its grid point.

    Parameters
    ----------
    n_modes : int, default 10
        How many modes.
    check_nans : bool, default True
        With False gaps are not looked for, not even land: what is missing is refused when it is met.
    sample_name, feature_name, compute, solver, solver_kwargs : object
        Words of xeofs without effect; a solver that there is not is refused.
    use_coslat : bool, default False
        Weight every grid point by the square root of the cosine of its latitude, so that areas count equally. The
        field itself is not multiplied.
    standardize : bool, default False
        Divide every grid point by its standard deviation, and only then weight it, as xeofs does. Points whose values
        are constant stay as they are.
    missing : {"drop-columns", "mean", "em", "pairwise", "refuse"}, default "drop-columns"
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
    center : bool, default True
        Take the mean off; else the modes are those of the values themselves.

    Attributes
    ----------
    solution_ : Solution
        The answer, with its certificate; its components are those of the weighted grid points that have data.
    rows_ : xarray.DataArray
        The samples in rows, as they were read, made when asked for: what a report of ``store`` draws time series of, by
        ``write_report(store, page=PageOptions(data=model.rows_))``.

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
    random_state: int | None = 0
    progress: bool = False
    center: bool = True

    def fit(self, X: Any, dim: Any = "time", weights: Any = None, sample_weights: Any = None) -> Self:
        """
        Find the modes.

        Parameters
        ----------
        X : DataArray, Dataset or list of DataArray
            In memory, lazy, or of a file that was opened and not read. Its mean along ``dim`` is taken off. The grid
            points of several variables are columns beside each other. Samples without any value are left out where
            the data are in memory, and have scores of NaN.
        dim : str or tuple of str, default "time"
            The dimension of samples, or several; all others make up the grid.
        weights : DataArray, Dataset or list of DataArray, optional
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
        field = Fields.of(X, dim)
        self.preprocessor, self._given, self._held = field, X, None
        one_of((DROP, *COUNTED, REFUSE), missing=self.missing)
        rule, marks = self._missing_rule(self.missing), checked_marks(self.missing_values)
        rule = REFUSE if rule == DROP and field.of_complex else rule
        present = field.present(X) if rule == DROP else None
        rows = picked(field.rows(X), present)
        columns = field.column_weights(weights, use_coslat=self.use_coslat, missing=rule, marks=marks, rows=rows)
        nothing = present is not None and not present.any()
        require(not nothing, "no column of the field has a value in the first row, or in another: there are no data")
        require(
            present is None or sample_weights is None,
            "samples without any value have weights: leave both out (X.dropna(dim, how='all'))",
        )
        source = open_source(rows, "samples", rows.dims[0], gaps=rule != REFUSE, of_complex=field.of_complex)
        worth = find_weights(source, X, field.sample_weights(sample_weights), None)
        weighted = Weights(rows=None if worth is None else worth.rows, columns=columns)
        request = Request(
            target_rank=self.n_modes,
            center=self.center,
            scale=self.standardize,
            algorithm=self.algorithm,
            seed=seed_of(self.random_state),
            tol=self.tol,
            aspects=(
                find_gaps(missing=rule, missing_values=self.missing_values, missing_limit=self.missing_limit),
                weighted if weighted.arrays() else None,
            ),
        )
        resources = asked_resources(self.memory, device=self.device, device_memory=self.device_memory)
        problem = posed(request, source, resources, self.store)
        with with_progress(None, self.progress) as told:
            self.solution_ = solve(problem, self.store, resources, told)
        stored = self.solution_.analysed.components
        assert stored is not None
        self._found = found_of(stored, self.solution_.basis, self._numbers(self.solution_), self.solution_.missing)
        return self

    @property
    def rows_(self) -> Any:
        """Return the samples in rows; they are not kept: blocks of Dask are copies, which a pickle would hold too."""
        present = self.preprocessor.present(self._given) if self.missing == DROP else None
        return picked(self.preprocessor.rows(self._given), present)

    def _numbers(self, solution: Solution) -> dict[str, np.ndarray]:
        """The numbers of the modes, those of data that were not centred as if their mean were 0."""
        if self.center:
            return attributes(solution, "singular_values", "explained_variance", "explained_variance_ratio")
        rows = less_one(solution._rows, weighted=solution.analysed.row_weight is not None)
        return {"singular_values": solution.singular_values, "explained_variance": solution.singular_values**2 / rows}

    def fit_transform(self, X: Any, dim: Any = "time", weights: Any = None, **kwargs: Any) -> Any:
        """
        Find the modes, and get the scores.

        Parameters
        ----------
        X, dim, weights : object
            As of :meth:`fit`.
        **kwargs : dict
            As of :meth:`scores`.

        Returns
        -------
        xarray.DataArray, shape (n, n_modes)
            Along the dimensions of samples.
        """
        return self.fit(X, dim, weights).scores(**kwargs)


@dataclass(eq=False, repr=False)
class EOFRotator(FieldModel, Words):
    """
    Rotate the leading modes of an EOF to simple structure: few large grid points in each.

    As xeofs does: all grid points count alike (Kaiser's normalisation), and variances are those of the rotated scores.

    Parameters
    ----------
    n_modes : int, default 2
        How many leading modes are rotated, at most all.
    power : float, default 1
        1 is varimax, more is promax, whose scores are correlated.
    check_nans, sample_name, feature_name, compute, solver, solver_kwargs : object
        Without effect.
    max_iter, rtol : object
        Without effect: the rotation turns pairs of modes until none turns further, or is refused.

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> from npmdask.xarray import EOF, EOFRotator
    >>> values = np.random.default_rng(0).standard_normal((60, 4, 5))
    >>> field = xr.DataArray(values, dims=("time", "lat", "lon"))
    >>> rotated = EOFRotator(n_modes=3).fit(EOF(n_modes=5).fit(field, dim="time"))
    >>> rotated.components().dims, rotated.explained_variance_ratio().shape
    (('mode', 'lat', 'lon'), (3,))
    """

    n_modes: int = 2
    power: float = 1
    _: KW_ONLY
    max_iter: int | None = None
    rtol: float = 1e-8
    _of: ClassVar[type] = EOF

    def fit(self, model: Any) -> Self:
        """
        Rotate the modes of a model.

        Parameters
        ----------
        model : EOF
            One that was fitted, or loaded.

        Returns
        -------
        EOFRotator
            This object.

        Raises
        ------
        BadInputError
            It is no EOF, or is not fitted.
        """
        kind = type(self)._of
        require(isinstance(model, kind), f"a {type(model).__name__} is not rotated: give a fitted {kind.__name__}")
        require(
            getattr(model, "center", True),
            "modes of data that were not centred have no variances to share out: leave center=False out",
        )
        model.explained_variance_ratio()
        self.model_data = model.data
        self.preprocessor, self._given = model.preprocessor, model._given
        self._found = rotated_modes(model._modes, self.n_modes, self.power)
        held, turn = model._held, np.asarray(self._found.turn)
        self._held = None if held is None else held.isel(mode=slice(turn.shape[1])).copy(data=held.values @ turn)
        return self

    @property
    def data(self) -> Results:
        """Return the answers by the names of xeofs, and what the loadings were multiplied by."""
        return Results({**super().data._made, **rotation_answers(self._modes.rotation)})


# Hilbert EOFs.

PADDINGS = ("exp", "none")
POINT_BYTES = 8 * 2**20  # of the complex rows that are computed at once


class Propagating(FieldModel):
    """Answers of complex modes of analytic signals: the field is the real part of scores times conjugate components."""

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
        found = self._modes
        sizes = np.ones(1) if normalized else found.numbers["singular_values"]
        return self._maps(np.abs(found.vectors) * sizes, "components_amplitude")

    def components_phase(self) -> Any:
        """
        Get where in its cycle each mode is at each grid point; a standing pattern has two phases only.

        Returns
        -------
        xarray.DataArray, shape (n_modes, ...)
            Angles of the components, from -pi to pi, on the grid.
        """
        vectors = self._modes.vectors
        return self._maps(np.where(np.isnan(vectors), np.nan, np.angle(vectors)), "components_phase")

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

    def transform(self, X: Any, normalized: bool = False, *, missing: str = AS_RUN) -> Any:
        """
        Refuse, as xeofs does: the analytic signal of other data depends on all of their times.

        Parameters
        ----------
        X, normalized, missing : object
            As for :meth:`EOF.transform`.

        Raises
        ------
        NotImplementedError
            In any case.
        """
        raise NotImplementedError("analytic signals need all times: fit a model of the data that you want scores of")


@dataclass(eq=False, repr=False)
class HilbertEOF(Propagating, Words):
    """
    Find patterns that propagate in a DataArray, by complex EOFs of the analytic signals of its grid points.

    The words are those of xeofs. The mean over time is taken off every grid point; its Hilbert transform along time
    is the imaginary part. Points without data at any time (land) are left out and come back as NaN.

    Parameters
    ----------
    n_modes : int, default 10
        How many modes.
    check_nans : bool, default True
        With False gaps are not looked for, not even land: what is missing is refused when it is met.
    sample_name, feature_name, compute, solver, solver_kwargs : object
        Words of xeofs without effect; a solver that there is not is refused.
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
    random_state: int | None = 0
    progress: bool = False

    def fit(self, X: Any, dim: Any = "time") -> Self:
        """
        Find the modes.

        Parameters
        ----------
        X : DataArray, Dataset or list of DataArray
            Real numbers; in memory, of a file that was opened and not read, or lazy. Lazy ones are best in blocks that
            have all times, as ``xr.open_zarr(path, chunks=None)`` leaves them to be read.
        dim : str or tuple of str, default "time"
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
        self._missing_rule(DROP)
        self.preprocessor, self._given = Fields.of(X, dim), X
        if not self.preprocessor.plain or len(self.preprocessor.samples) > 1:
            X = self.preprocessor.rows(X)
            dim = X.dims[0]
        else:
            (dim,) = self.preprocessor.samples
        if X.dtype.kind not in "iuf" or X.sizes[dim] < 3:
            raise BadInputError(
                f"the DataArray holds {X.dtype} at {X.sizes[dim]} times: an analytic signal needs at least three "
                "real numbers (for complex data use npmdask.top_k)"
            )
        grid = X.isel({dim: 0}, drop=True)
        # The longest dimension of the grid first: blocks are cut along it, and hold all of the others.
        self._order = sorted(grid.dims, key=lambda name: -grid.sizes[name])
        self._first = grid.transpose(*self._order)
        axes = [grid.dims.index(name) for name in self._order]
        self._places = np.arange(grid.size).reshape(grid.shape).transpose(axes).ravel()  # of points, in that order
        coslat = self.preprocessor.column_weights(None, use_coslat=self.use_coslat, missing=REFUSE)
        self._areas = None if coslat is None else coslat[self._places]
        self._points = self._signals(X, dim)
        weights = None if self._areas is None else Weights(rows=self._areas)
        request = Request(target_rank=self.n_modes, tol=self.tol, seed=seed_of(self.random_state), aspects=(weights,))
        source, resources = self._open_points(), asked_resources(self.memory)
        with run_store(self.store) as store:
            problem = posed(request, source, resources, store)
            with RunStore(store) as run, with_progress(None, self.progress) as told:
                self.solution_ = drive(problem, run, resources, told)
                found = self.solution_.left_basis().conj()
        vectors = np.empty_like(found)
        phases, values = fix_phases(found), self.solution_.values
        vectors[self._places] = np.where(self._land_mask[:, None], np.nan, found * phases)
        mean, std = (getattr(X, name)(dim, skipna=False, dtype=np.float64).values.ravel() for name in ("mean", "std"))
        scale = ColumnStatistics(mean=mean, std=std, rows=X.sizes[dim]).scale if self.standardize else None
        stored = StoredComponents(basis=vectors, mean=mean, scale=scale, column_weight=coslat)
        numbers = {"singular_values": values, "explained_variance": values**2 / (X.sizes[dim] - 1)}
        self._found = found_of(stored, vectors, numbers, None)
        self._held = self.preprocessor.series(self.solution_.basis.conj() * phases * values, self._given)
        return self

    def explained_variance_ratio(self) -> Any:
        """
        Get the share of each mode in the variance of all analytic signals; the data are read once more.

        Returns
        -------
        xarray.DataArray, shape (n_modes,)
            The largest first.
        """
        numbers = self._modes.numbers
        if "explained_variance_ratio" in numbers:
            return self._of_modes("explained_variance_ratio")
        reader, total = self._open_points().reader, 0.0
        for unit in range(reader.units):
            for rows, tile in reader.tiles(unit, ReadStats()):
                areas = 1.0 if self._areas is None else self._areas[rows]
                total += sum(
                    float((np.square(values, dtype=np.float64).sum(axis=1) * areas).sum()) for _, values in tile
                )
        numbers["explained_variance_ratio"] = numbers["singular_values"] ** 2 / total
        return self._of_modes("explained_variance_ratio")

    def _content(self) -> tuple[dict[str, Any], Any]:
        self.explained_variance_ratio()  # which takes the data
        return super()._content()

    @property
    def _land_mask(self) -> np.ndarray:
        """Points without data at the first time, and so at any."""
        first = self._first.values.ravel()
        return np.isnan(first) if first.dtype.kind == "f" else np.zeros(len(first), bool)

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


@dataclass(eq=False, repr=False)
class HilbertEOFRotator(Propagating, EOFRotator):
    """
    Rotate the leading modes of a HilbertEOF, whose moduli count, to few large grid points in each.

    Parameters
    ----------
    n_modes : int, default 2
        How many leading modes are rotated, at most all.
    power : float, default 1
        1 is varimax, more is promax, whose scores are correlated.
    check_nans, sample_name, feature_name, compute, solver, solver_kwargs, max_iter, rtol : object
        As of :class:`EOFRotator`: without effect.

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> from npmdask.xarray import HilbertEOF, HilbertEOFRotator
    >>> field = xr.DataArray(np.random.default_rng(0).standard_normal((60, 4, 5)), dims=("time", "lat", "lon"))
    >>> HilbertEOFRotator(n_modes=3).fit(HilbertEOF(n_modes=5).fit(field)).components_phase().shape
    (3, 4, 5)
    """

    _of: ClassVar[type] = HilbertEOF


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
