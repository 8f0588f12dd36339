"""Define the resources of a run, the events that it reports, and its solution."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from dataclasses import dataclass, field
from html import escape
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from npmdask.algorithms.stopping import Outcome
from npmdask.checkpoint.schema import table
from npmdask.checkpoint.store import RunStore, folder_of
from npmdask.errors import BadInputError, package_version, require
from npmdask.execution.executor import scheduler_of
from npmdask.execution.memory import ProcessPeak
from npmdask.execution.reduction import COMMIT_SECONDS
from npmdask.numerics.domains import DEVICES, less_one
from npmdask.numerics.sampling_errors import APART, Groups, mixed_groups, next_is_mixed, north_errors
from npmdask.numerics.subspaces import Block
from npmdask.numerics.units import parse_memory
from npmdask.runs.component_counts import CountAdvice, KnownSpectrum, advise
from npmdask.runs.components import AS_RUN, StoredComponents, TurnedComponents, aligned, rotated, variances_of_run
from npmdask.runs.left_vectors import left_factor
from npmdask.runs.missing import Missing
from npmdask.storage.kinds import number_array, real_array
from npmdask.storage.labels import Labels, as_dataset, axis_of

SHOWN = 5  # values that a line shows


@table("resources")
@dataclass(frozen=True, kw_only=True)
class Resources:
    """Resources that a run may use. They change no result and, except for ``device``, none of its bits."""

    memory: int | None = None  # bytes, all processes of the run together
    threads: int | None = None  # a process; all usable cores if None
    workers: int = 0  # processes; 0: threads of this process
    cluster: str | None = None  # address of a Dask scheduler, whose workers are used instead
    commit_seconds: float = 30.0  # between two commits inside a pass
    certificates: str | None = None  # folder with ca.pem, cert.pem and key.pem, for a cluster at tls://
    device: str = "cpu"  # what sums are formed on: "cuda", a GPU; "auto", one where there is one
    device_memory: int | None = None  # bytes of its memory, a process; most of what is free if None
    request_price: float | None = None  # of 1000 requests to the object store of the data

    def require_possible(self) -> None:
        """Raise BadInputError for numbers that cannot be, or that do not go together."""
        counts = (self.workers, 1 if self.threads is None else self.threads)
        if not all(isinstance(count, int | np.integer) for count in counts) or counts[0] < 0 or counts[1] < 1:
            raise BadInputError("workers must be at least 0 and threads at least 1, both whole numbers")
        if self.cluster is not None and (self.workers or self.threads):
            raise BadInputError("give either a cluster or workers and threads: a cluster brings its own")
        if self.certificates is not None and self.cluster is None:
            raise BadInputError("certificates are for a cluster at tls://host:port: give that, too, or leave them out")
        if self.device not in DEVICES:
            raise BadInputError(f'device = {self.device!r} is unknown: choose "cpu", "cuda" (an NVIDIA GPU) or "auto"')
        if self.device_memory is not None and self.device == "cpu":
            raise BadInputError('device_memory applies to a GPU: set device = "cuda" or "auto" with it')
        if self.request_price is not None and not 0 <= self.request_price < inf:
            raise BadInputError(f"request_price = {self.request_price} must be at least 0 (of 1000 requests)")
        require(self.commit_seconds >= 0, f"commit_seconds = {self.commit_seconds} must be at least 0 (it is a time)")


# what a solution says that took no pass
WITHOUT_PASS: dict[str, Any] = {
    "data_passes": 0,
    **dict.fromkeys(
        ("bytes_read", "dataset_bytes", "seconds", "peak_rss_bytes", "memory_limit_bytes", "max_sin_theta")
    ),
}


def asked_resources(
    memory: str | int | None = None,
    threads: int | None = None,
    workers: int = 0,
    cluster: Any = None,
    certificates: str | Path | None = None,
    commit_seconds: float = COMMIT_SECONDS,
    device: str = "cpu",
    device_memory: str | int | None = None,
) -> Resources:
    """The resources that a user gives: sizes of memory in words, any kind of a cluster, a folder from here."""
    return Resources(
        memory=parse_memory(memory),
        threads=threads,
        workers=workers,
        cluster=scheduler_of(cluster) or None,
        certificates=None if certificates is None else str(Path(certificates).absolute()),
        commit_seconds=commit_seconds,
        device=device,
        device_memory=parse_memory(device_memory, "device_memory"),
    )


class TemporaryStore:
    """A folder on disk, for as long as this object: removed when it is collected, or when Python ends."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="npmdask-"))
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)


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
class DeviceUse:
    """The device that formed the sums of a run; with several processes, one for each.

    Parameters
    ----------
    device, library : its model, and the versions of what computes there: what the last bits depend on.
    planned, limit : bytes of its memory that were planned, with the data that stay on it, and that may be used.
    peak : the most that was used; 0 where that is not counted.
    """

    device: str
    library: str
    planned: int
    limit: int
    peak: int = 0

    @property
    def facts(self) -> dict[str, str]:
        """What the last bits depend on."""
        return {"device": self.device, "library": self.library}


VALUES_ARE = {  # by kind of data, and whether they were centred
    ("samples", True): "eigenvalues of the covariance matrix: variances, n in the denominator",
    ("samples", False): "mean squares of the scores of rows that were not centred",
    ("matrix", True): "singular values of the centred matrix",
    ("matrix", False): "singular values",
    ("sparse", True): "singular values of the centred matrix",
    ("sparse", False): "singular values",
    ("symmetric", False): "eigenvalues",
}


@dataclass(frozen=True, kw_only=True)
class NetworkUse:
    """What passes took of an object store.

    Parameters
    ----------
    requests, nbytes : that were made, and bytes that came; of chunks that zarr reads itself neither is counted.
    cost : by the price that was given; None without one.
    """

    requests: int
    nbytes: int
    cost: float | None = None


@dataclass(frozen=True, kw_only=True)
class Analysed:
    """What was analysed. ``rows``: how many, None where that is not released; ``row_weight``: what they weigh together,
    where they are weighted; ``components``: None of a tensor.
    """

    kind: str = "matrix"
    rows: int | None = None
    row_weight: float | None = None
    centred: bool = False
    components: StoredComponents | None = None
    labels: Labels | None = None
    missing: Missing | None = None


@dataclass(frozen=True, kw_only=True, repr=False)
class Solution:
    """
    Hold an answer: vectors, values, how wrong they can be, and what they cost.

    Costs are of this call unless noted. Of a private run what was not released is None (bytes, sizes,
    times, memory, fingerprint). Users get a solution from :func:`top_k`, :func:`resume` or :func:`deflate`.

    Attributes
    ----------
    basis : numpy.ndarray, shape (d, k)
        Orthonormal vectors. Of a tensor: unit vectors that need not be orthogonal.
    values : numpy.ndarray, shape (k,)
        Eigenvalues of ``X^T X / n`` for samples, signed eigenvalues of a symmetric matrix, singular values of a matrix
        (dense or sparse); of a tensor the weights.
    residual_norms : numpy.ndarray, shape (k,)
        ``||A v - theta v||_2`` in the units of the values; for singular pairs ``||A^T u - sigma v||_2``.
    outcome : Outcome
        How the run ended, as a name and a sentence.
    steps : int
        Steps of the whole run.
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
        What was allowed.
    max_sin_theta : float or None
        Sine of the largest angle to the true subspace, where a store knows it (synthetic data).
    store : str
        Folder or URL of the run.
    fingerprint : str or None
        Of the data.
    warnings : tuple of str
        Sentences.
    device : DeviceUse or None
        The GPU, and its memory; None where sums were formed by the processor.
    network : NetworkUse or None
        Requests to an object store, and bytes that came; None where the data are local.
    peak_rss_by_process : tuple of ProcessPeak
        Each process by itself.
    target_rank : int
        Components in the answer: the number found, where a share of the variance was asked for.
    explained_share : float or None
        Of the variance (trace), where that costs no pass.
    value_stddevs : numpy.ndarray or None
        Of a private run: what the noise does to each value.
    statement : dict or None
        Of a private run: what was promised and what it cost.
    facts : dict
        Of a tensor: the ``status`` of each component and the ``relative_residual`` of the whole.
    assurance : str
        How wrong the answer can be, in a sentence for everybody.
    certificate : dict or None
        The same in numbers, where there is one (docs/certificates.md).
    prediction : dict
        How many steps had been predicted.
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
        what = {"matrix": "singular values", "sparse": "singular values", "samples": "mean squares"}.get(analysed.kind)
        return "values" if what is None else f"{what} of rows that are not centred"

    def __repr__(self) -> str:
        k, d = self.basis.shape[1], self.basis.shape[0]
        values = ", ".join(f"{value:.4g}" for value in self.values[:SHOWN])
        more = ", ..." if k > SHOWN else ""
        return (
            f"<Solution: {k} component{'s'[: k != 1]} of {d:,} columns, {self.outcome.name} after {self.steps} "
            f"step{'s'[: self.steps != 1]}; {self.values_are}: {values}{more}; store {self.store}>"
        )

    def _repr_html_(self) -> str:
        """Show the answer in a notebook: what it is, how wrong it can be, and the first values."""
        head = "".join(f"<th>{i + 1}</th>" for i in range(min(len(self.values), SHOWN)))
        cells = "".join(f"<td>{value:.6g}</td>" for value in self.values[:SHOWN])
        more = f"<td>of {len(self.values)}</td>" if len(self.values) > SHOWN else ""
        said = "".join(f"<p>{escape(text)}</p>" for text in (self.outcome.sentence, self.assurance) if text)
        return (
            f"<div><strong>{self.basis.shape[1]} components of {self.basis.shape[0]:,} columns</strong>{said}"
            f"<table><tr><th>component</th>{head}</tr><tr><th>{self.values_are}</th>{cells}{more}</tr></table>"
            f"<p><small>{escape(self.store)}</small></p></div>"
        )

    @property
    def components(self) -> Block:
        """Return the vectors as rows (k x d), as scikit-learn does: ``basis.T``."""
        return self.basis.T

    @property
    def labels(self) -> Labels:
        """Return the names of rows and columns, as far as the data have them; none for a private run."""
        return self.analysed.labels or Labels()

    @property
    def missing(self) -> Missing | None:
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
        match self.analysed.kind:
            case "tensor" | "matrices":
                raise BadInputError(f"a run of kind {self.analysed.kind} has no singular values: see its values")
            case "samples":
                return np.asarray(np.sqrt(np.maximum(self.values, 0.0) * self._rows))
            case "symmetric":
                return np.abs(self.values)
        return self.values

    @property
    def explained_variance(self) -> np.ndarray:
        """
        Variances of the scores, n - 1 in the denominator, as scikit-learn's PCA has them.

        Of weighted rows n is the sum of their weights: a row of weight 2 counts as two rows (docs/weights.md).

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
        return self._found.mean

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
        Least squares: Nelson, Taylor and MacGregor, Chemom. Intell. Lab. Syst. 35 (1996) 45 (docs/missing.md).

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
        return self._found.all_scores(source, dim, missing=missing)

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

    def component_counts(self, *, share: float = 0.9, noise: float | None = None) -> tuple[CountAdvice, ...]:
        """
        Ask the criteria how many components mean something, as far as k values tell it.

        Of weighted rows the share of the variance and the broken stick answer; the others need the number of rows.

        Parameters
        ----------
        share : float, default 0.9
            Of the variance, strictly between 0 and 1.
        noise : float, optional
            Variance of the noise of one entry; without it those that need it cannot be told from k values.

        Returns
        -------
        tuple of CountAdvice
            What each advises, at which threshold, and what it assumes or lacks.

        Raises
        ------
        BadInputError
            A run that is not of rows, or whose number of rows is not released.

        Notes
        -----
        Marchenko-Pastur with the margin of Johnstone (2001), Gavish and Donoho (2014), Horn (1965), Frontier (1976):
        docs/components.md says where each holds.

        Examples
        --------
        >>> import numpy as np
        >>> import npmdask
        >>> rows = np.random.default_rng(0).standard_normal((100, 5)) * [5, 3, 1, 1, 1]
        >>> solution = npmdask.top_k(rows, 2, kind="samples", center=True)
        >>> [(one.criterion, one.components) for one in solution.component_counts(noise=1.0)][2]
        ('Marchenko-Pastur edge', 2)
        """
        weighted = self.analysed.row_weight is not None
        rows = None if weighted else self._equal_rows()
        variances = self.singular_values**2 / self._rows if weighted else variances_of_run(self)[1]
        total = float(variances.sum()) / self.explained_share if self.explained_share else None
        weights = self._found.column_weight
        d = len(self.basis) if weights is None else int((weights > 0).sum())  # others are no columns of the matrix
        known = KnownSpectrum(values=variances, d=d, rows=rows, centred=self.analysed.centred, total=total)
        return advise(known, share=share, noise=noise, seed=0)

    def north_errors(self, *, independent_rows: int | None = None) -> tuple[np.ndarray, Groups]:
        """
        Compute standard errors of the variances by North's rule of thumb, and which components they mix.

        Parameters
        ----------
        independent_rows : int, optional
            By default all rows; fewer, where rows depend on their neighbours, or lack values.

        Returns
        -------
        errors : numpy.ndarray, shape (k,)
            Of ``explained_variance``; of a run that was not centred of the mean squares.
        mixed : tuple of tuple of int
            Components, from 0, whose variances are within 3.5 errors: nothing is to be said of one alone. 1 of 20 equal
            pairs is farther apart. Of the last one and those that were not asked for: :meth:`mixes_with_next`.

        Raises
        ------
        BadInputError
            A run that is not of rows, or whose number of rows is not released.

        Notes
        -----
        North, Bell, Cahalan and Moeng, Monthly Weather Review 110 (1982) 699: ``value sqrt(2 / rows)``, of normal rows.

        Examples
        --------
        >>> import numpy as np
        >>> import npmdask
        >>> rows = np.random.default_rng(0).standard_normal((100, 5)) * [5, 3, 1, 1, 1]
        >>> solution = npmdask.top_k(rows, 2, kind="samples", center=True)
        >>> errors, mixed = solution.north_errors()
        >>> bool(np.allclose(errors, solution.explained_variance * np.sqrt(2 / 100))), mixed
        (True, ())
        """
        rows = self._equal_rows() if independent_rows is None else independent_rows
        variances = variances_of_run(self)[1]
        errors = north_errors(variances, rows)
        return errors, mixed_groups(variances, APART * errors)

    def mixes_with_next(self, *, independent_rows: int | None = None) -> bool | None:
        """
        Ask whether the last component overlaps with the next one, which was not asked for.

        Of the next value the certificate has an upper bound, and the variance that is left has a mean, which is a lower
        one: where both are on one side of what North's rule needs, the answer is known.

        Parameters
        ----------
        independent_rows : int, optional
            As of :meth:`north_errors`.

        Returns
        -------
        bool or None
            Whether the two are mixed; None: not known. False, too, where there is no next one.

        Raises
        ------
        BadInputError
            A run that is not of rows, or whose number of rows is not released.

        Examples
        --------
        >>> import numpy as np
        >>> import npmdask
        >>> rows = np.random.default_rng(0).standard_normal((100, 5)) * [5, 3, 1, 1, 1]
        >>> [npmdask.top_k(rows, k, kind="samples", center=True).mixes_with_next() for k in (2, 3)]
        [False, True]
        """
        rows = self._equal_rows() if independent_rows is None else independent_rows
        variances = variances_of_run(self)[1]
        weights = self._found.column_weight
        columns = len(self.basis) if weights is None else int((weights > 0).sum())
        left = columns - len(variances)
        if self.analysed.rows is not None:
            left = min(left, self.analysed.rows - self.analysed.centred - len(variances))
        if left < 1:
            return False
        most, last = self._following, float(self.values[-1])
        power = 1 if self.analysed.kind == "samples" else 2
        upper = None if most is None or not last > 0 else float(variances[-1]) * (most / last) ** power
        mean = None
        if self.explained_share:
            mean = max(0.0, float(variances.sum()) * (1 / self.explained_share - 1)) / left
        return next_is_mixed(float(variances[-1]), rows, upper=upper, lower=mean)

    @property
    def _following(self) -> float | None:
        """A bound of the largest value that is not among these, if none was missed; in their units."""
        levels = (self.certificate or {}).get("levels", ())
        return None if not levels or levels[-1]["following"] is None else float(levels[-1]["following"])

    def rotated(
        self, method: str = "varimax", *, k: int | None = None, power: float = 4.0, normalize: bool = False
    ) -> TurnedComponents:
        """
        Rotate the components to simple structure: few large entries in each. No pass over the data.

        Rotated are the loadings, eigenvectors times the roots of their variances, so that the scores stay uncorrelated
        (varimax). A rotation mixes all k components: other k, other patterns.

        Parameters
        ----------
        method : {"varimax", "promax"}, default "varimax"
            Orthogonal, or oblique: scores may be correlated.
        k : int, optional
            How many of the leading components; all by default.
        power : float, default 4.0
            Of promax.
        normalize : bool, default False
            Kaiser's normalisation: columns that the components explain little of count as much as others.

        Returns
        -------
        TurnedComponents
            Patterns, the variance of each, the largest first, and scores.

        Raises
        ------
        BadInputError
            A method that is not known, components without variance, or a run that is not of rows.

        Notes
        -----
        Kaiser, Psychometrika 23 (1958) 187; Hendrickson and White, Brit. J. Statist. Psych. 17 (1964) 65.

        Examples
        --------
        >>> import numpy as np
        >>> import npmdask
        >>> rows = np.random.default_rng(0).standard_normal((100, 5)) * [5, 3, 1, 1, 1]
        >>> solution = npmdask.top_k(rows, 2, kind="samples", center=True)
        >>> turned = solution.rotated("varimax")
        >>> bool(np.isclose(turned.variances.sum(), solution.explained_variance.sum()))
        True
        """
        return rotated(self, method, k, power, normalize)

    def aligned(self, to: Solution | np.ndarray, *, rotate: bool = False) -> TurnedComponents:
        """
        Bring the components into the order and to the signs of an earlier run of the same columns.

        Signs are arbitrary, and components of nearly equal variance change places or mix from one run to the next.

        Parameters
        ----------
        to : Solution or array_like, shape (d, j)
            The earlier answer, or its basis.
        rotate : bool, default False
            Turn the components onto the earlier ones as well (Procrustes): they span the same space and are no longer
            principal components.

        Returns
        -------
        TurnedComponents
            With ``similarity``, the cosines with the earlier components: a small one says that it is another component.

        Raises
        ------
        BadInputError
            Other columns, or with ``rotate`` another number of components.

        Examples
        --------
        >>> import numpy as np
        >>> import npmdask
        >>> rows = np.random.default_rng(0).standard_normal((100, 5)) * [5, 3, 1, 1, 1]
        >>> solution = npmdask.top_k(rows, 2, kind="samples", center=True)
        >>> earlier = -solution.basis[:, ::-1]
        >>> bool(np.allclose(solution.aligned(earlier).basis, earlier))
        True
        """
        return aligned(self, to, rotate)

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
        of_complex = self._found.of_complex
        given = number_array(scores, "the scores") if of_complex else real_array(scores, "the scores")
        given = given.astype(np.complex128 if of_complex else np.float64)
        if given.ndim != 2 or given.shape[1] != self._found.k:
            raise BadInputError(f"coordinates of shape {given.shape}: {self._found.k} columns are needed")
        return self._found.rows(given)

    def to_xarray(self) -> Any:
        """
        Give the components as a Dataset of xarray, with the names and coordinates of the columns.

        Returns
        -------
        xarray.Dataset
            ``components`` (mode, and the dimensions of a row), ``values`` and ``residual_norms``; of a centred run
            ``explained_variance``, ``explained_variance_ratio`` and ``mean``. The attributes say what was done to the
            data, what share is explained, and how the run ended.

        Raises
        ------
        MissingExtraError
            xarray is not installed.
        """
        beside = {"values": self.values, "residual_norms": self.residual_norms}
        over = {}
        if self.analysed.centred:
            if self._rows > 1:
                beside["explained_variance"] = self.explained_variance
            beside["explained_variance_ratio"] = self.explained_variance_ratio
            over["mean"] = self.mean
        found = self.analysed.components
        scaled = found is not None and found.scale is not None
        return as_dataset(self.labels.columns, self.basis, beside, over, self.attributes(scaled=scaled))

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
        analysed, share = self.analysed, self.explained_share
        weighted = analysed.components is not None and analysed.components.column_weight is not None
        of = "variance" if analysed.centred else "sum of squares"
        facts: dict[str, Any] = {
            "Conventions": "CF-1.11",
            "source": f"npmdask {package_version()}",
            "kind": analysed.kind,
            "columns": f"{'centred' if analysed.centred else 'not centred'}, "
            f"{'divided by their deviations' if scaled else 'not scaled'}, "
            f"{'weighted' if weighted else 'not weighted'}",
            "values": VALUES_ARE.get((analysed.kind, analysed.centred), "values"),
            "outcome": self.outcome.name,
            "sentence": self.outcome.sentence,
            "assurance": self.assurance,
            "store": self.store,
        }
        facts |= {} if analysed.rows is None else {"rows": analysed.rows}
        facts |= {} if analysed.row_weight is None else {"total_row_weight": analysed.row_weight}
        facts |= {} if share is None else {f"explained_share_of_the_{of.replace(' ', '_')}": share}
        return facts | ({} if self.fingerprint is None else {"fingerprint": self.fingerprint})

    def to_anndata(self, adata: Any, *, key: str = "pca") -> Any:
        """
        Write the components and the scores of all cells into an AnnData, where scanpy writes and looks for them.

        Parameters
        ----------
        adata : anndata.AnnData
            Whose X was analysed, or others of the same genes.
        key : str, default "pca"
            ``obsm["X_pca"]``, ``varm["PCs"]`` and ``uns["pca"]``; under another key as scanpy's ``key_added``: all
            three have it as their name.

        Returns
        -------
        anndata.AnnData
            The same object.

        Raises
        ------
        BadInputError
            Other genes than those of the run.
        """
        if type(adata).__name__ != "AnnData":
            raise BadInputError(f"an AnnData is needed, not a {type(adata).__name__}: scores(rows) takes all others")
        from npmdask.runs.columns import places_in

        axes = (axis_of("var", adata.var_names.to_numpy()),)
        places = places_in(self._found, axes, "the AnnData", adata.n_vars).places
        scores = self.scores(adata)
        usual = key == "pca"
        adata.obsm["X_pca" if usual else key] = scores
        adata.varm["PCs" if usual else key] = self.basis if places is None else self.basis[np.argsort(places)]
        centred = self.analysed.centred
        more = {"variance": self.explained_variance} if centred and self._rows > 1 else {}
        more |= {"variance_ratio": self.explained_variance_ratio} if centred else {}
        adata.uns[key] = {"params": {"zero_center": centred, "store": self.store}, **more}
        return adata

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

    def _equal_rows(self) -> int:
        """n, where rows count alike. Raises BadInputError of others."""
        if self.analysed.row_weight is not None or self.analysed.rows is None:
            raise BadInputError(
                "the rows of this run are weighted, and criteria and standard errors need the number of rows that "
                "count alike: run without row_weights, or give it to solution.north_errors(independent_rows=N)"
                if self.analysed.row_weight is not None
                else "how many rows there are is not released, and without it nothing is known of the noise"
            )
        return self.analysed.rows

    @property
    def _found(self) -> StoredComponents:
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
        return self._found.patterns

    def left_basis(self) -> Block:
        """
        Read the left singular vectors from the store (``kind = "matrix"`` only).

        Of a run without a store they lie in a temporary folder (m x k float64 on disk) until the solution is gone.

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
        part = RunStore(folder_of(self.store)).read_part("result")
        arrays = {} if part is None else part[0]
        return (arrays["factor_left"], arrays["factor_right"]) if "factor_left" in arrays else None
