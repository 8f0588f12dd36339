"""Empirical orthogonal functions of gridded data: principal components that stay on their grid (npmdask.xarray)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import numpy as np

from npmdask.checkpoint.store import RunStore
from npmdask.errors import BadInputError, closest
from npmdask.models.gridded import Gridded
from npmdask.numerics.subspaces import fix_signs
from npmdask.numerics.units import parse_memory
from npmdask.planning.plan import posed
from npmdask.planning.predicted_steps import drive
from npmdask.runs.components import AS_RUN
from npmdask.runs.problem import Request
from npmdask.runs.progress import with_progress
from npmdask.runs.solution import Resources, Solution
from npmdask.runs.weights import Weights
from npmdask.storage.readers.gaps import COUNTED, DROP, checked_marks
from npmdask.storage.source import open_source
from npmdask.streaming.estimator import run_store


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

    solution_: Solution

    def __init__(
        self,
        n_modes: int = 10,
        *,
        use_coslat: bool = False,
        standardize: bool = False,
        missing: str = DROP,
        missing_values: Any = None,
        missing_limit: float | None = None,
        memory: str | int | None = None,
        device: str = "cpu",
        device_memory: str | int | None = None,
        store: str | Path | None = None,
        tol: float | None = None,
        random_state: int = 0,
        progress: bool = False,
    ) -> None:
        self.n_modes = n_modes
        self.use_coslat = use_coslat
        self.standardize = standardize
        self.missing = missing
        self.missing_values = missing_values
        self.missing_limit = missing_limit
        self.memory = memory
        self.device = device
        self.device_memory = device_memory
        self.store = store
        self.tol = tol
        self.random_state = random_state
        self.progress = progress

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
        known = (DROP, *COUNTED)
        if self.missing not in known:
            raise BadInputError(f"missing = {self.missing!r}: {closest(self.missing, list(known))}")
        marks = checked_marks(self.missing_values)
        columns = self._field.column_weights(weights, use_coslat=self.use_coslat, missing=self.missing, marks=marks)
        weighted = Weights(rows=sample_weights, columns=columns)
        self._fitted = self._field.rows(X)
        request = Request(
            target_rank=self.n_modes,
            center=True,
            scale=self.standardize,
            missing=self.missing,
            missing_values=marks,
            missing_limit=self.missing_limit,
            tol=self.tol,
            seed=self.random_state,
            weights=weighted if weighted.spec() else None,
        )
        source, resources = (
            open_source(self._fitted, "samples", dim),
            Resources(
                memory=parse_memory(self.memory),
                device=self.device,
                device_memory=parse_memory(self.device_memory, "device_memory"),
            ),
        )
        with run_store(self.store) as store:
            problem = posed(request, source, resources, store)
            with RunStore(store) as run, with_progress(None, self.progress) as told:
                self.solution_ = drive(problem, run, resources, told)
        self._signs = fix_signs(self.solution_.basis)
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
        return self._maps(self._solved.basis, "components")

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
        return self._maps(self._solved.patterns(), "patterns")

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
        return self._scored(self._fitted, missing)

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
        self._field.require_same(X)
        return self._scored(self._field.rows(X), missing)

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
        if not hasattr(self, "solution_"):
            raise BadInputError("EOF is not fitted yet: call fit first")

    @property
    def _solved(self) -> Solution:
        self._require_fit()
        return self.solution_

    def _of_modes(self, name: str) -> Any:
        """A number for each mode, as the answer calls it."""
        values = getattr(self._solved, name)
        return self._field.by_mode(values, name)

    def _maps(self, columns: np.ndarray, name: str) -> Any:
        """Vectors over the grid points that have data, as maps with the signs of the modes."""
        return self._field.maps(columns * self._signs, self.solution_.missing, name)

    def _scored(self, rows: Any, missing: str) -> Any:
        values = self._solved.scores(rows, dim=self._field.sample, missing=missing) * self._signs
        return self._field.series(values, rows)
