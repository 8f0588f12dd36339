"""Define what a run reports of a step, and its solution."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from npmdask.core.algorithms.stopping import Outcome
from npmdask.core.checkpoint.store import RunStore, folder_of
from npmdask.core.execution.memory import ProcessPeak
from npmdask.core.numerics.domains import less_one
from npmdask.core.numerics.subspaces import Block
from npmdask.core.runs.components import AS_RUN, StoredComponents
from npmdask.core.runs.left_vectors import left_factor
from npmdask.core.runs.postprocessing import Postprocessing
from npmdask.core.runs.resources import DeviceUse, NetworkUse
from npmdask.core.storage.bundle import UNKEPT
from npmdask.core.storage.kinds import number_array, real_array, traits_of
from npmdask.core.storage.labels import Labels, as_dataset
from npmdask.errors import BadInputError

# what a solution says that took no pass
WITHOUT_PASS: dict[str, Any] = {
    "data_passes": 0,
    **dict.fromkeys(
        ("bytes_read", "dataset_bytes", "seconds", "peak_rss_bytes", "memory_limit_bytes", "max_sin_theta")
    ),
}


class TemporaryStore(AbstractContextManager["TemporaryStore"]):
    """A folder on disk, for as long as this object: removed when it is collected, or Python ends; never flushed.

    As a context it is also removed by an error, whose traceback may be kept, and the object with it. A copy, or what
    was pickled, has a folder of its own with the same ``files``.
    """

    def __init__(self, files: tuple[tuple[str, bytes], ...] = ()) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="npmdask-"))
        UNKEPT.add(self.folder)
        weakref.finalize(self, UNKEPT.discard, self.folder)
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        for name, content in files:
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_bytes(content)

    def __reduce__(self) -> Any:
        held = (file for file in self.folder.rglob("*") if file.is_file())
        return TemporaryStore, (tuple((str(file.relative_to(self.folder)), file.read_bytes()) for file in held),)

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


@dataclass(frozen=True, kw_only=True)
class Step:
    """A committed step, for observers."""

    number: int
    values: list[float]
    residual_norms: list[float]
    worst_residual: float
    max_sin_theta: float | None
    precision: str
    bytes_read: int
    chunks: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Analysed:
    """Description of the data that were analysed.

    ``rows``: how many, None where that is not released; ``row_weight``: what they weigh together, where they are
    weighted; ``components``: None of a tensor.
    """

    kind: str = "matrix"
    rows: int | None = None
    row_weight: float | None = None
    centred: bool = False
    components: StoredComponents | None = None
    labels: Labels | None = None
    missing: Any = None


@dataclass(frozen=True, kw_only=True, repr=False)
class Solution(Postprocessing):
    """
    Hold an answer: vectors, values, how wrong they can be, and what they cost.

    Costs are of this call unless noted. Of a private run what was not released is None (bytes, sizes,
    times, memory, fingerprint). Users get a solution from :func:`top_k`, :func:`resume` or :func:`deflate`.

    Attributes
    ----------
    basis : numpy.ndarray, shape (d, k)
        Orthonormal vectors, d the number of columns. Of a tensor: unit vectors that need not be orthogonal.
    values : numpy.ndarray, shape (k,)
        Eigenvalues of ``X^T X / n`` for samples, signed eigenvalues of a symmetric matrix, singular values of a matrix
        (dense or sparse); of a tensor the weights.
    residual_norms : numpy.ndarray, shape (k,)
        ``||A v - theta v||_2`` of each vector v with its value theta, in the units of the values, A the symmetric
        matrix (of samples ``X^T X / n``); for singular pairs ``||A^T u - sigma v||_2``, u the left vector.
    outcome : Outcome
        How the run ended: its ``name`` ("converged", "low_rank", "held_out", "stagnated", "max_steps"; "released" of
        a private run), and a ``sentence``.
    steps : int
        Steps of the whole run; most steps take one pass.
    data_passes : int
        Times that the data were read.
    total_data_passes : int
        The same of the whole run.
    bytes_read : int or None
        Decoded bytes.
    dataset_bytes : int or None
        Decoded bytes of all data.
    seconds : float or None
        Wall time.
    peak_rss_bytes : int or None
        Largest resident memory of all processes together.
    memory_limit_bytes : int or None
        Limit that was set; None without one.
    max_sin_theta : float or None
        Sine of the largest angle to the true subspace, where a store knows it (synthetic data).
    store : str
        Folder or URL of the run.
    fingerprint : str or None
        Checksum of the data, by which another run on them is recognised.
    warnings : tuple of str
        What to know about the data or the answer, as sentences.
    device : DeviceUse or None
        The GPU, and its memory; None where sums were formed by the processor.
    network : NetworkUse or None
        Requests to an object store, and bytes that came; None where the data are local.
    peak_rss_by_process : tuple of ProcessPeak
        Each process by itself.
    target_rank : int
        Components in the answer: the number found, where a share of the variance was asked for.
    explained_share : float or None
        Share of the variance (trace) that the components explain, where that costs no pass.
    value_stddevs : numpy.ndarray or None
        Of a private run: what the noise does to each value.
    statement : dict or None
        Of a private run: what was promised and what it cost.
    facts : dict
        Of a tensor: the ``status`` of each component and the ``relative_residual`` of the whole.
    assurance : str
        How wrong the answer can be, in a sentence for everybody.
    certificate : dict or None
        The same in numbers, where there is one (docs/explanation/certificates.md).
    prediction : dict
        ``predicted_steps`` before the first pass (None: unknown), and the ``prediction`` as a sentence.
    analysed : Analysed
        What was analysed, and how rows of the same sort are scored.
    temporary_store : TemporaryStore or None
        Keeps the folder of a run that was given none.

    Examples
    --------
    >>> import numpy as np
    >>> import npmdask
    >>> solution = npmdask.top_k(np.diag([3.0, 2.0, 1.0]), 1)
    >>> print(solution.values, solution.outcome.name)
    [3.] converged
    """

    basis: Block
    values: np.ndarray
    residual_norms: np.ndarray
    outcome: Outcome
    steps: int
    data_passes: int
    total_data_passes: int
    bytes_read: int | None
    dataset_bytes: int | None
    seconds: float | None
    peak_rss_bytes: int | None
    memory_limit_bytes: int | None
    max_sin_theta: float | None
    store: str
    fingerprint: str | None
    warnings: tuple[str, ...] = ()
    device: DeviceUse | None = None
    network: NetworkUse | None = None
    peak_rss_by_process: tuple[ProcessPeak, ...] = ()
    target_rank: int = 0
    explained_share: float | None = None
    value_stddevs: np.ndarray | None = None
    statement: dict[str, Any] | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    assurance: str = ""
    certificate: dict[str, Any] | None = None
    prediction: dict[str, Any] = field(default_factory=dict)
    analysed: Analysed = field(default_factory=Analysed, compare=False)
    temporary_store: TemporaryStore | None = field(default=None, repr=False, compare=False)

    def __setstate__(self, state: dict[str, Any]) -> None:
        kept = state.get("temporary_store")
        vars(self).update(state if kept is None else state | {"store": str(kept.folder / "run")})

    @property
    def converged(self) -> bool:
        """Return whether every component reached the tolerance."""
        return self.outcome.converged

    @property
    def answered(self) -> bool:
        """Converged, as little left over as was asked for, or all released that a private run was to release."""
        return self.outcome.answered

    @property
    def values_are(self) -> str:
        """Say what ``values`` are where rows were not centred; "values" of all other runs."""
        analysed = self.analysed
        if analysed.centred or analysed.components is None or self.statement is not None:
            return "values"
        traits = traits_of(analysed.kind)
        return f"{traits.values} of rows that are not centred" if traits.of_rows else "values"

    def __repr__(self) -> str:
        from npmdask.core.runs.shown import line_of

        return line_of(self)

    def _repr_html_(self) -> str:
        """Show the answer in a notebook: what it is, how wrong it can be, and the first values."""
        from npmdask.core.runs.shown import html_of

        return html_of(self)

    @property
    def components(self) -> Block:
        """Return the vectors as rows (k x d), as scikit-learn does: ``basis.T``."""
        return self.basis.T

    @property
    def labels(self) -> Labels:
        """Return the names of rows and columns, as far as the data have them; none for a private run."""
        return self.analysed.labels or Labels()

    @property
    def missing(self) -> Any:
        """Which values were missing and what was done with them; None of data without, and where they are refused."""
        return self.analysed.missing

    @property
    def singular_values(self) -> np.ndarray:
        """
        Singular values of the data as they were analysed: centred and scaled, if that was asked for.

        Returns
        -------
        numpy.ndarray, shape (k,)
            Of samples ``sqrt(n * values)``, of a symmetric matrix ``abs(values)``, of others ``values``.

        Raises
        ------
        BadInputError
            Of a tensor, which has none; of a private run, whose number of rows is not released.
        """
        traits = traits_of(self.analysed.kind)
        if traits.without_rows:
            raise BadInputError(f"a run of kind {self.analysed.kind} has no singular values: see its values")
        if traits.square:
            return np.abs(self.values)
        return self.values if traits.singular else np.asarray(np.sqrt(np.maximum(self.values, 0.0) * self._rows))

    @property
    def explained_variance(self) -> np.ndarray:
        """
        Variances of the scores, n - 1 in the denominator, as scikit-learn's PCA has them.

        Of weighted rows n is the sum of their weights: a row of weight 2 counts as two rows (docs/howto/weights.md).

        Returns
        -------
        numpy.ndarray, shape (k,)
            The largest first.

        Raises
        ------
        BadInputError
            The run was not centred, so that its values are no variances; or there is one row, or the weights of rows
            add up to 1 or less.
        """
        self._require_centred()
        return self.singular_values**2 / less_one(self._rows, weighted=self.analysed.row_weight is not None)

    @property
    def explained_variance_ratio(self) -> np.ndarray:
        """
        Shares of the variance of all columns.

        Returns
        -------
        numpy.ndarray, shape (k,)
            Their sum is ``explained_share``; not a number where nothing varies.

        Raises
        ------
        BadInputError
            The run was not centred.
        """
        self._require_centred()
        variances, share = self.singular_values**2, self.explained_share
        kept = float(variances.sum())
        return variances * (share / kept) if share is not None and kept > 0 else np.full(len(variances), np.nan)

    @property
    def mean(self) -> np.ndarray | None:
        """Return the mean that is subtracted from rows before scoring (d); None if the run was not centred."""
        return self._row_components.mean

    def scores(self, source: Any, *, dim: str | int | None = None, missing: str = AS_RUN) -> Block:
        """
        Get the coordinates of rows along the components, centred and scaled as the data of the run were.

        The scores of records are data of these records: along the components of a private release, too, no promise
        protects them.

        Parameters
        ----------
        source : array_like, sparse matrix, table, Dask or xarray array, AnnData, zarr.Array, str or Path, shape (n, d)
            Rows, as for :func:`npmdask.top_k`; they are read once, some at a time.
        dim : str or int, optional
            The dimension that rows lie along, of an array of more than two.
        missing : {"as-run", "least-squares"}, default "as-run"
            What is done with missing values (NaN). "as-run": as the run treated its own, so that its rows have the
            scores that it found (with "mean" gaps count as means, and scores of rows with gaps are too small).
            "least-squares": scores are fitted to what is observed; those that it does not determine are NaN, with a
            warning.

        Returns
        -------
        numpy.ndarray, shape (n, k)
            In memory; ``npmdask transform`` writes scores that are larger.

        Raises
        ------
        BadInputError
            Rows of another width, values that are not finite, or a run of a tensor.

        Notes
        -----
        Least squares: Nelson, Taylor and MacGregor, Chemom. Intell. Lab. Syst. 35 (1996) 45 (docs/howto/missing.md).

        Examples
        --------
        >>> import numpy as np
        >>> import npmdask
        >>> rows = np.random.default_rng(0).standard_normal((100, 5)) * [5, 3, 1, 1, 1]
        >>> solution = npmdask.top_k(rows, 2, kind="samples", center=True)
        >>> scores = solution.scores(rows)
        >>> bool(np.allclose(scores.var(axis=0, ddof=1), solution.explained_variance))
        True
        """
        return self._row_components.all_scores(source, dim, missing=missing)

    def transform(self, rows: Any, *, missing: str = AS_RUN) -> Block:
        """
        Get the coordinates of rows along the components; :meth:`scores` under the name that scikit-learn gives it.

        Parameters
        ----------
        rows : array_like, sparse matrix, table, Dask or xarray array, AnnData, zarr.Array, str or Path, shape (n, d)
            Rows.
        missing : {"as-run", "least-squares"}, default "as-run"
            As for :meth:`scores`.

        Returns
        -------
        numpy.ndarray, shape (n, k)
            In memory.

        Raises
        ------
        BadInputError
            As :meth:`scores`.
        """
        return self.scores(rows, missing=missing)

    def inverse_transform(self, scores: Any) -> Block:
        """
        Get rows back from their coordinates, as far as the components reach.

        Parameters
        ----------
        scores : array_like, shape (n, k)
            Coordinates.

        Returns
        -------
        numpy.ndarray, shape (n, d)
            Rows in the units of the data.

        Raises
        ------
        BadInputError
            Coordinates of another number of components, or a run of a tensor.
        """
        of_complex = self._row_components.of_complex
        given = number_array(scores, "the scores") if of_complex else real_array(scores, "the scores")
        given = given.astype(np.complex128 if of_complex else np.float64)
        if given.ndim != 2 or given.shape[1] != self._row_components.k:
            raise BadInputError(f"coordinates of shape {given.shape}: {self._row_components.k} columns are needed")
        return self._row_components.rows(given)

    def to_xarray(self) -> Any:
        """
        Give the components as a Dataset of xarray, with the names and coordinates of the columns.

        Returns
        -------
        xarray.Dataset
            ``components`` (mode, and the dimensions of a row; NaN where columns of a grid were left out, as land is),
            ``values`` and ``residual_norms``; of a centred run
            ``explained_variance``, ``explained_variance_ratio`` and ``mean``. The attributes say what was done to the
            data, what share is explained, and how the run ended.

        Raises
        ------
        MissingExtraError
            xarray is not installed.
        """
        beside = {"values": self.values, "residual_norms": self.residual_norms}
        over = {"mean": self.mean} if self.analysed.centred else {}
        if self.analysed.centred:
            if self._rows > 1:
                beside["explained_variance"] = self.explained_variance
            beside["explained_variance_ratio"] = self.explained_variance_ratio
        scaled = getattr(self.analysed.components, "scale", None) is not None
        return as_dataset(self.labels, self.basis, beside, over, self.attributes(scaled=scaled))

    def attributes(self, *, scaled: bool) -> dict[str, Any]:
        """
        Say what the numbers of a file are: what was done to the data, what is explained, and how the run ended.

        Parameters
        ----------
        scaled : bool
            Whether columns were divided by their deviations.

        Returns
        -------
        dict
            Text and numbers, as attributes of NetCDF; ``values`` says what these are.
        """
        from npmdask.core.runs.shown import attributes_of

        return attributes_of(self, scaled)

    def _require_centred(self) -> None:
        if not self.analysed.centred:
            raise BadInputError(
                "the data were not centred, so these values are not variances: run with center=True, or see "
                "singular_values"
            )

    @property
    def _rows(self) -> float:
        """n, or what rows weigh together. Raises BadInputError of a private run."""
        if self.analysed.row_weight is not None:
            return self.analysed.row_weight
        if self.analysed.rows is None:
            raise BadInputError("the number of rows is not released: see values, which do not need it")
        return self.analysed.rows

    @property
    def _row_components(self) -> StoredComponents:
        """The components with what rows are centred and scaled by."""
        if self.analysed.components is None:
            raise BadInputError(f"a run of kind {self.analysed.kind} has no components of rows: see its basis")
        return self.analysed.components

    def patterns(self) -> Block:
        """
        Get the components in the units of the data: what a row gains where one of its scores grows by 1.

        They differ from ``basis`` where columns were scaled or weighted: a row is ``mean`` and its scores times these.
        With columns weighted by v and divided by s they are ``basis * s / sqrt(v)``, orthonormal in the inner product
        that has ``v / s^2`` as weights.

        Returns
        -------
        numpy.ndarray, shape (d, k)
            Not a number in columns of weight 0, of which the run knows nothing.

        Raises
        ------
        BadInputError
            A run of a tensor.

        Examples
        --------
        >>> import numpy as np
        >>> import npmdask
        >>> rows = np.random.default_rng(0).standard_normal((100, 5)) * [5, 3, 1, 1, 1]
        >>> v = np.array([0.1, 1, 1, 2, 2])
        >>> patterns = npmdask.top_k(rows, 2, kind="samples", column_weights=v).patterns()
        >>> np.allclose(patterns.T @ (v[:, None] * patterns), np.eye(2))
        True
        """
        return self._row_components.patterns

    def left_basis(self) -> Block:
        """
        Read the left singular vectors from the store (``kind = "matrix"`` only).

        Of a run without a store they lie in a temporary folder (m x k float64 on disk) until the solution is gone; what
        is copied deeply, or pickled, takes them along.

        Returns
        -------
        numpy.ndarray, shape (m, k)
            In memory.

        Raises
        ------
        BadInputError
            The run was of no matrix, or has not answered.
        """
        return left_factor(self.store)

    @property
    def low_rank_factors(self) -> tuple[Block, Block] | None:
        """Read X and Y, p columns each, from the store: released, and X Y^T is close to the matrix of the question.

        X (orthonormal) is the last block that was multiplied, Y its product with noise (Hardt and Price 2014,
        Corollary 4.3; with Laplace noise 4.7). The matrix is the second moment of samples, the symmetric one itself,
        A^T A of a sparse A, and A where both sides are released. None of a run without private power iterations.
        """
        arrays = (RunStore(folder_of(self.store)).read_part("result") or ({},))[0]
        return (arrays["factor_left"], arrays["factor_right"]) if "factor_left" in arrays else None
