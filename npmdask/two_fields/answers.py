"""Compute what two fields have in common (MCA, CCA), return and report the results, and resume a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from npmdask.core.algorithms.stopping import Outcome
from npmdask.core.checkpoint.store import RunStore, answer_of_job
from npmdask.core.execution.reduction import COMMIT_SECONDS
from npmdask.core.numerics.subspaces import Block
from npmdask.core.runs.components import StoredComponents, labels_of_run
from npmdask.core.runs.observers import Observer
from npmdask.core.runs.problem import DEFAULT_STEPS
from npmdask.core.runs.progress import with_progress
from npmdask.core.runs.resources import Resources, asked_resources
from npmdask.core.storage.labels import Labels
from npmdask.errors import BadInputError, RefusedError
from npmdask.estimators.base import run_store
from npmdask.manage.staged_job import TABLES, StagedJob, job_report
from npmdask.missing.rules import Missing, missing_of
from npmdask.report import Report
from npmdask.report.blocks import Text, parameters, section, spectrum_plot, table, tiles, warnings
from npmdask.two_fields.fit import (
    AFTER_STAGES,
    ANSWER,
    CCA,
    LABELS,
    MCA,
    STAGES,
    CoupledRequest,
    Fields,
    open_fields,
    run_coupled,
)
from npmdask.weights.aspect import kept_weights


@dataclass(frozen=True, kw_only=True)
class FieldModes:
    """
    Hold the modes of one of the two fields: k, of a field with n rows and p columns.

    Attributes
    ----------
    basis : numpy.ndarray, shape (p, k)
        Matrix that centred rows (scaled and weighted as in the run) are multiplied by. For maximum covariance,
        orthonormal patterns; for canonical correlations, the weights that give scores of variance 1.
    variance : numpy.ndarray, shape (k,)
        Of the scores.
    explained_variance_ratio : numpy.ndarray, shape (k,)
        The share of the (scaled, weighted) variance of the field that each score represents.
    total_variance : float
        Of the field, over all its columns.
    missing : Missing or None
        Missing values of the field, if a rule for them was given; its ``kept`` are the columns that were used.
    components : StoredComponents
        The basis, with the means, deviations and weights for centring, scaling and weighting rows.
    loadings : numpy.ndarray, shape (p, k)
        The patterns in the units of the columns as analysed; for maximum covariance, the basis.

    Examples
    --------
    >>> import numpy as np
    >>> import npmdask
    >>> rng = np.random.default_rng(0)
    >>> common = rng.standard_normal((200, 1))
    >>> A, B = (common @ rng.standard_normal((1, n)) + rng.standard_normal((200, n)) for n in (6, 4))
    >>> left = npmdask.mca(A, B, 2).left
    >>> left.basis.shape, left.scores(A).shape
    ((6, 2), (200, 2))
    """

    basis: Block
    variance: np.ndarray
    explained_variance_ratio: np.ndarray
    total_variance: float
    missing: Missing | None
    components: StoredComponents
    loadings: Block

    @property
    def patterns(self) -> Block:
        """
        Return the change of the field, in the units of its data, per unit of a score (p x k).

        For maximum covariance this is the basis; for canonical correlations, the covariance of every column with the
        score. NaN in columns of weight 0.
        """
        found = StoredComponents(
            basis=self.loadings, scale=self.components.scale, column_weight=self.components.column_weight
        )
        return found.patterns

    def scores(self, rows: Any, dim: str | int | None = None) -> Block:
        """
        Compute the scores of rows along the modes; they are read once.

        Parameters
        ----------
        rows : str, Path, zarr.Array, array_like, DataArray, shape (n, p)
            Those that the modes were found of, or others with the same columns.
        dim : str or int, optional
            The dimension of rows, as for :func:`npmdask.mca`.

        Returns
        -------
        numpy.ndarray, shape (n, k)
            One column for each mode.
        """
        return self.components.all_scores(rows, dim)


@dataclass(frozen=True, kw_only=True)
class CoupledModes:
    """
    Hold the coupled modes of two fields, in order of decreasing value, with error bounds.

    Attributes
    ----------
    kind : str
        "mca" or "cca".
    values : numpy.ndarray, shape (k,)
        Covariances of the two scores of a mode (singular values of the cross-covariance), or canonical correlations.
    left : FieldModes
        The modes of the first field.
    right : FieldModes
        The modes of the other one.
    correlations : numpy.ndarray, shape (k,)
        Correlation of the two scores of each mode; NaN if one of them does not vary.
    residual_norms : numpy.ndarray or None, shape (k,)
        For maximum covariance: ``(||C v - s u||^2 + ||C^T u - s v||^2)^(1/2)``, measured in an additional pass; C is
        the cross-covariance, s a value, u and v its patterns.
    squared_covariance_fraction : numpy.ndarray, shape (k,)
        The share of each mode in the sum of all squared covariances of two columns (of leading components, with
        ``pcs``): by how much that falls where both fields are less what their scores explain. Of maximum covariance the
        sum is estimated in that pass. Not of canonical correlations that an earlier version computed: None.
    squared_covariance_error : float or None
        For maximum covariance: the standard error of that sum, as a share of it.
    total_squared_covariance : float or None
        That sum, n in the denominator of a covariance.
    chance : float or None
        For canonical correlations: the largest correlation expected between unrelated fields with independent rows.
    outcome : Outcome
        How the run ended: its ``name`` ("converged", "stagnated" or "max_steps"), and a ``sentence``.
    assurance : str
        Bound on the error of the answer, as a sentence.
    certificate : dict
        The same as numbers (docs/explanation/certificates.md).
    warnings : tuple of str
        Warnings about the data.
    data_passes : int
        Passes over the data (for leading components: over one field).
    row_weights : numpy.ndarray or None, shape (n,)
        Weights of rows, in the order of those of the left field.
    store : str
        Folder of the run.

    Examples
    --------
    >>> import numpy as np
    >>> import npmdask
    >>> rng = np.random.default_rng(0)
    >>> A, B = rng.standard_normal((300, 5)), rng.standard_normal((300, 8))
    >>> B[:, 0] += 2 * A[:, 3]
    >>> modes = npmdask.cca(A, B, 1)
    >>> modes.converged, bool(modes.values[0] > 0.85)
    (True, True)
    """

    kind: str
    values: np.ndarray
    left: FieldModes
    right: FieldModes
    correlations: np.ndarray
    residual_norms: np.ndarray | None
    squared_covariance_fraction: np.ndarray | None
    squared_covariance_error: float | None
    total_squared_covariance: float | None
    chance: float | None
    outcome: Outcome
    assurance: str
    certificate: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    data_passes: int = 0
    row_weights: np.ndarray | None = None
    store: str = ""

    @property
    def converged(self) -> bool:
        """Return whether the run reached its tolerance."""
        return self.outcome.converged

    @property
    def answered(self) -> bool:
        """The same, for the exit code of a command."""
        return self.outcome.converged


def mca(
    left: Any,
    right: Any,
    k: int,
    *,
    dim: Any = None,
    center: bool = True,
    scale: bool = False,
    missing: str = "refuse",
    row_weights: Any = None,
    left_weights: Any = None,
    right_weights: Any = None,
    tol: float | None = None,
    max_steps: int = DEFAULT_STEPS,
    seed: int = 0,
    store: str | Path | None = None,
    memory: str | int | None = None,
    workers: int = 0,
    threads: int | None = None,
    cluster: Any = None,
    certificates: str | Path | None = None,
    commit_seconds: float = COMMIT_SECONDS,
    observer: Observer | None = None,
    progress: bool = False,
) -> CoupledModes:
    """
    Find the k pairs of patterns of two fields whose scores vary most together (maximum covariance analysis, PLS-SVD).

    They are the leading singular vectors of ``C = A^T B / n``, the covariances of all columns of one field with all of
    the other. C is never formed: every pass reads both fields once.

    Parameters
    ----------
    left, right : str, Path, zarr.Array, array_like, DataArray, Dask array or table, shapes (n, p) and (n, q)
        Dense fields, as for :func:`npmdask.top_k`. Row i of both belongs to the same time or sample; if rows have names
        (coordinates), these must agree. Columns, chunks and dtypes may differ.
    k : int
        Number of pairs, 1 <= k <= min(n, p, q).
    dim : str, int or pair of them, optional
        The dimension that rows lie along, as for :func:`npmdask.top_k`; a pair: of the left and of the right field.
    center : bool, default True
        Subtract the column means.
    scale : bool, default False
        Divide all columns by their standard deviations: C then contains correlations.
    missing : {"refuse", "drop-columns", "mean"}, default "refuse"
        Treatment of missing values, as for :func:`npmdask.top_k`.
    row_weights : array_like, DataArray, str or Path, shape (n,), optional
        Weight of each row, as for :func:`npmdask.top_k`; a name refers to the left field.
    left_weights, right_weights : array_like, DataArray, str or Path, shapes (p,) and (q,), optional
        Weights of the columns, as ``column_weights`` of :func:`npmdask.top_k`, including "coslat".
    tol : float, optional
        Relative residual of every pair; 1e-9, or 1e-6 where both fields are float32, by default.
    max_steps : int, default 200
        Maximum number of passes; then the run stops as not converged.
    seed : int, default 0
        Seed of the random start, and of the estimate of all squared covariances.
    store : str or Path, optional
        Folder of the run, or a URL. To resume a killed run, call this again with the same store.
    memory : str or int, optional
        Limit for all processes of the run together, like "1GiB" or a number of bytes; by default none.
    workers : int, default 0
        Worker processes; 0 uses only this one. Like the next two, it changes no bit of the result.
    threads : int, optional
        Threads of each process; by default all cores that this process may use.
    cluster : str, Path, distributed.Client or cluster object, optional
        As for :func:`npmdask.top_k`.
    certificates : str or Path, optional
        As for :func:`npmdask.top_k`.
    commit_seconds : float, default 30.0
        Seconds between two commits within a pass.
    observer : Observer, optional
        Called for every stage, pass and step.
    progress : bool, default False
        Show the progress and the time left: on stderr, or below the cell of a notebook.

    Returns
    -------
    CoupledModes
        Covariances, patterns of both fields, correlations of scores, and error bounds.

    Raises
    ------
    BadInputError
        Data or parameters are wrong, or the rows of the fields are not the same.
    RefusedError
        Too little memory, a store of another run, or a run held by another process.

    See Also
    --------
    cca : Patterns whose scores are most correlated, whatever their variance.

    Notes
    -----
    Bretherton, Smith and Wallace, An intercomparison of methods for finding coupled patterns in climate data, J.
    Climate 1992. The largest covariance is always positive and often looks significant when it is not: compare it with
    that of fields whose rows were permuted (docs/howto/two-fields.md).

    Examples
    --------
    >>> import numpy as np
    >>> import npmdask
    >>> rng = np.random.default_rng(0)
    >>> A, B = rng.standard_normal((300, 5)), rng.standard_normal((300, 8))
    >>> B[:, 0] += 2 * A[:, 3]
    >>> modes = npmdask.mca(A, B, 2)
    >>> centred = [field - field.mean(axis=0) for field in (A, B)]
    >>> np.allclose(modes.values, np.linalg.svd(centred[0].T @ centred[1] / 300)[1][:2])
    True
    """
    asked = {"dim": dim, "row_weights": row_weights, "left_weights": left_weights, "right_weights": right_weights}
    asked |= {"center": center, "scale": scale, "missing": missing, "tol": tol, "max_steps": max_steps, "seed": seed}
    posed = _open_question(MCA, left, right, k, **asked)
    resources = asked_resources(memory, threads, workers, cluster, certificates, commit_seconds)
    with with_progress(observer or Observer(), progress) as told:
        return _run_and_read(*posed, store, resources, told)


def cca(
    left: Any,
    right: Any,
    k: int,
    *,
    pcs: int | tuple[int, int] | None = None,
    ridge: float = 0.0,
    dim: Any = None,
    center: bool = True,
    scale: bool = False,
    missing: str = "refuse",
    row_weights: Any = None,
    left_weights: Any = None,
    right_weights: Any = None,
    tol: float | None = None,
    max_steps: int = DEFAULT_STEPS,
    seed: int = 0,
    store: str | Path | None = None,
    memory: str | int | None = None,
    workers: int = 0,
    threads: int | None = None,
    cluster: Any = None,
    certificates: str | Path | None = None,
    commit_seconds: float = COMMIT_SECONDS,
    observer: Observer | None = None,
    progress: bool = False,
) -> CoupledModes:
    """
    Find the k pairs of weights of two fields whose scores are most correlated (canonical correlation analysis).

    For few columns, one pass forms all moments, (p + q) x (p + q). For wide fields use their leading components
    (``pcs``), as in the climate sciences: a field with more columns than rows is perfectly correlated with anything.

    Parameters
    ----------
    left, right : str, Path, zarr.Array, array_like, DataArray, Dask array or table, shapes (n, p) and (n, q)
        As for :func:`mca`.
    k : int
        Number of pairs, 1 <= k <= min(n, p, q).
    pcs : int or pair of int, optional
        Number of leading components that represent each field (a pair: for the left and the right field). By
        default all columns are used.
    ridge : float, default 0.0
        Multiple of the mean variance of a column (or component) that is added to the variance of every direction. This
        regularises the correlations: they become smaller, and directions with little variance shrink most.
    dim : str, int or pair of them, optional
        As for :func:`mca`.
    center : bool, default True
        Subtract the column means.
    scale : bool, default False
        Divide all columns by their standard deviations. It only matters with ``pcs`` or a ``ridge``.
    missing : {"refuse", "drop-columns", "mean"}, default "refuse"
        Treatment of missing values, as for :func:`npmdask.top_k`.
    row_weights : array_like, DataArray, str or Path, shape (n,), optional
        Weight of each row, as for :func:`npmdask.top_k`; a name refers to the left field.
    left_weights, right_weights : array_like, DataArray, str or Path, shapes (p,) and (q,), optional
        Weights of the columns, as for :func:`mca`. They only matter with ``pcs`` or a ``ridge``.
    tol : float, optional
        Relative residual of leading components, as for :func:`npmdask.top_k`.
    max_steps : int, default 200
        Maximum number of passes for the components of each field.
    seed : int, default 0
        Seed of the random start.
    store : str or Path, optional
        Folder of the run, or a URL. To resume a killed run, call this again with the same store.
    memory : str or int, optional
        Limit for all processes of the run together, like "1GiB" or a number of bytes; by default none.
    workers : int, default 0
        Worker processes; 0 uses only this one. Like the next two, it changes no bit of the result.
    threads : int, optional
        Threads of each process; by default all cores that this process may use.
    cluster : str, Path, distributed.Client or cluster object, optional
        As for :func:`npmdask.top_k`.
    certificates : str or Path, optional
        As for :func:`npmdask.top_k`.
    commit_seconds : float, default 30.0
        Seconds between two commits within a pass.
    observer : Observer, optional
        Called for every stage, pass and step.
    progress : bool, default False
        Show the progress and the time left: on stderr, or below the cell of a notebook.

    Returns
    -------
    CoupledModes
        Correlations, weights and patterns of both fields, with warnings.

    Raises
    ------
    BadInputError
        Data or parameters are wrong, or the rows of the fields are not the same.
    RefusedError
        Too little memory (for all columns: give ``pcs``), a store of another run, or a run held by another process.

    See Also
    --------
    mca : Patterns whose scores have the largest covariance.

    Examples
    --------
    >>> import numpy as np
    >>> import npmdask
    >>> rng = np.random.default_rng(0)
    >>> common = rng.standard_normal((500, 1))
    >>> A, B = (common @ rng.standard_normal((1, n)) + rng.standard_normal((500, n)) for n in (6, 9))
    >>> modes = npmdask.cca(A, B, 2)
    >>> np.allclose(modes.correlations, modes.values)
    True
    >>> bool(npmdask.cca(A, B, 1, pcs=3).values[0] > 0.7)
    True
    """
    asked = {"dim": dim, "row_weights": row_weights, "left_weights": left_weights, "right_weights": right_weights}
    asked |= {"center": center, "scale": scale, "missing": missing, "tol": tol, "max_steps": max_steps, "seed": seed}
    asked |= {"pcs": (pcs, pcs) if isinstance(pcs, int | np.integer) else pcs, "ridge": float(ridge)}
    posed = _open_question(CCA, left, right, k, **asked)
    resources = asked_resources(memory, threads, workers, cluster, certificates, commit_seconds)
    with with_progress(observer or Observer(), progress) as told:
        return _run_and_read(*posed, store, resources, told)


def _open_question(
    kind: str, left: Any, right: Any, k: int, *, dim: Any = None, pcs: Any = None, **asked: Any
) -> tuple[Fields, CoupledRequest]:
    """Check what is asked of two fields, and open them; ``asked``: weights, and fields of :class:`CoupledRequest`."""
    weights = {name: asked.pop(name, None) for name in ("row_weights", "left_weights", "right_weights")}
    request = CoupledRequest(kind=kind, k=k, pcs=None if pcs is None else tuple(pcs), **asked)
    dims = (dim[0], dim[1]) if isinstance(dim, tuple | list) else (dim, dim)
    return open_fields(left, right, request.of_field(), dims=dims, **weights), request


def _run_and_read(
    fields: Fields, request: CoupledRequest, store: str | Path | None, resources: Resources, observer: Observer
) -> CoupledModes:
    with run_store(store) as folder:
        run_coupled(fields, request, folder, resources, observer)
        return read_coupled(folder)


def fit_coupled(
    kind: str,
    left: Any,
    right: Any,
    k: int,
    *,
    store: str | Path,
    resources: Resources,
    observer: Observer,
    **asked: Any,
) -> CoupledModes:
    """Run a job of one kind in its store, for a command or a flow; ``asked``: what :func:`mca` and :func:`cca` take."""
    if kind == MCA and (asked.get("pcs") is not None or asked.get("ridge")):
        raise BadInputError("pcs and ridge apply only to canonical correlations: leave them out, or use cca")
    return _run_and_read(*_open_question(kind, left, right, k, **asked), store, resources, observer)


def resume_coupled(store: str | Path, resources: Resources, observer: Observer) -> CoupledModes:
    """Go on with a job as it was asked for."""
    held = RunStore(store)
    spec = held.read_spec() or {}
    data, algorithm, stop = spec["data"], spec["algorithm"], spec["stop"]
    request = CoupledRequest(
        k=algorithm["target_rank"],
        **{name: data[name] for name in ("kind", "center", "scale", "missing")},
        pcs=tuple(algorithm["pcs"]) if algorithm.get("pcs") else None,
        ridge=algorithm.get("ridge", 0.0),
        tol=stop["tol"],
        max_steps=stop["max_steps"],
        seed=spec["run"]["seed"],
    )
    dims = (spec.get("dim"), spec.get("other_dim"))
    kept = kept_weights(held, spec)
    fields = open_fields(spec["source"], spec["other_source"], request.of_field(), dims=dims, kept=kept)
    return _run_and_read(fields, request, store, resources, observer)


def restop_coupled(store: str | Path, stop: Mapping[str, Any]) -> None:
    """Put another ``tol`` or ``max_steps`` in the place of what was asked for: steps stay, the answer is made again.

    Raises
    ------
    RefusedError
        The steps are gone, and it has its answer.
    """
    with RunStore(store) as held:
        spec = held.read_spec() or {}
        if spec["stop"] == spec["stop"] | dict(stop):
            return
        for folder in STAGES:
            if (held.path / folder).is_dir():
                with held.stage(folder) as stage:
                    if stage.last_meta() is None and stage.part_meta("result") is not None:
                        raise RefusedError(
                            f"the steps of {held.place} were deleted (`npmdask gc`), so this finished run cannot "
                            "continue with another stopping rule: start again in a new store"
                        )
                    stage.drop_result()
                    found = stage.read_spec() or {}
                    stage.write_spec(found | {"stop": found.get("stop", {}) | dict(stop)})
        for part in (ANSWER, *AFTER_STAGES):
            held.drop_part(part)
        held.write_spec(spec | {"stop": spec["stop"] | dict(stop)})


def read_coupled(store: str | Path) -> CoupledModes:
    """The answer of a finished job.

    Raises
    ------
    BadInputError
        There is none yet.
    """
    held = RunStore(store)
    arrays, meta, spec = answer_of_job(held, ANSWER)
    weights = kept_weights(held, spec)
    named = [labels_of_run(held, name) for name in LABELS]
    sides = _sides(arrays, meta, spec["data"], missing_of(held), None if weights is None else weights.columns, named)
    fraction, error, total = arrays.get("squared_covariance_fraction"), None, meta.get("total_squared_covariance")
    if "rest" in meta:
        total = float(np.square(arrays["values"]).sum() + meta["rest"])
        fraction = np.square(arrays["values"]) / (total or 1.0)
        error = meta["rest_error"] / (total or 1.0)
    return CoupledModes(
        kind=spec["data"]["kind"],
        values=arrays["values"],
        left=sides[0],
        right=sides[1],
        correlations=arrays["correlations"],
        residual_norms=arrays.get("residual_norms"),
        squared_covariance_fraction=fraction,
        squared_covariance_error=error,
        total_squared_covariance=total,
        chance=meta.get("chance"),
        outcome=Outcome(**meta["outcome"]),
        assurance=meta["assurance"],
        certificate=meta["certificate"],
        warnings=tuple(meta["warnings"]),
        data_passes=meta["total_data_passes"],
        row_weights=None if weights is None else weights.rows,
        store=held.place,
    )


def _sides(
    arrays: Mapping[str, np.ndarray],
    meta: Mapping[str, Any],
    data: Mapping[str, Any],
    missing: Missing | None,
    weights: np.ndarray | None,
    named: Sequence[Labels | None],
) -> list[FieldModes]:
    """The modes of both fields."""
    p, q = data["columns"]
    stored = [slice(0, p), slice(p, p + q)]  # columns as they are stored, and those that are read
    kept = np.arange(p + q) if missing is None else missing.kept
    split = int((kept < p).sum())
    read = [slice(0, split), slice(split, len(kept))]
    sides = []
    for number, side in enumerate(("left", "right")):
        of_side = kept[read[number]] - stored[number].start
        basis, variance = arrays[f"{side}_basis"], arrays[f"{side}_variance"]
        loadings = arrays.get(f"{side}_loadings", basis)
        total = float(meta["variances"][number])
        stands_for = np.square(loadings).sum(axis=0)
        with np.errstate(divide="ignore", invalid="ignore"):
            part = variance if loadings is basis else np.where(variance > 0, stands_for / variance, 0.0)
        mean, scale = arrays.get("column_mean"), arrays.get("column_scale")
        components = StoredComponents(
            basis=basis,
            mean=None if mean is None else mean[read[number]],
            scale=None if scale is None else scale[read[number]],
            missing=None if missing is None else _missing_of(missing, stored[number], of_side),
            column_weight=None if weights is None else weights[stored[number]][of_side],
            labels=named[number],
        )
        sides.append(
            FieldModes(
                basis=basis,
                variance=variance,
                explained_variance_ratio=part / total if total > 0 else np.zeros(len(part)),
                total_variance=total,
                missing=components.missing,
                components=components,
                loadings=loadings,
            )
        )
    return sides


def _missing_of(found: Missing, stored: slice, kept: np.ndarray) -> Missing:
    """Return the missing values of one field; its number of rows with gaps is not known."""
    return replace(
        found,
        counts=found.counts[stored],
        kept=kept,
        fill=None if found.fill is None else found.fill[stored],
        observed=None if found.observed is None else found.observed[stored],
        limit=None,
    )


def _facts(answer: CoupledModes) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "values": answer.values.tolist(),
        "correlations": [None if np.isnan(value) else float(value) for value in answer.correlations],
        "left_explained_variance_ratio": answer.left.explained_variance_ratio.tolist(),
        "right_explained_variance_ratio": answer.right.explained_variance_ratio.tolist(),
        "data_passes": answer.data_passes,
    }
    if answer.squared_covariance_fraction is not None:
        facts["squared_covariance_fraction"] = answer.squared_covariance_fraction.tolist()
        facts["squared_covariance_error"] = answer.squared_covariance_error
    if answer.chance is not None:
        facts["chance_correlation"] = answer.chance
    return facts


# The report, and its lines on a terminal.

JOB = StagedJob(CoupledModes, resume_coupled, read_coupled, _facts)
VALUES = {"mca": "covariance", "cca": "canonical correlation"}


def lines_of(answer: CoupledModes) -> str:
    """A head, and a line for each mode."""
    head, rows = _table(answer)
    return "\n".join("  ".join(f"{cell:>22}" for cell in row) for row in (head, *rows))


def _table(answer: CoupledModes) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the header and the rows of the table of modes."""
    columns: list[tuple[str, list[str]]] = [
        ("mode", [str(i) for i in range(1, len(answer.values) + 1)]),
        (VALUES[answer.kind], [f"{value:.6g}" for value in answer.values]),
        ("correlation of scores", ["-" if np.isnan(r) else f"{r:.4f}" for r in answer.correlations]),
    ]
    if answer.squared_covariance_fraction is not None:
        shares = [f"{100 * share:.3g} %" for share in answer.squared_covariance_fraction]
        columns.insert(2, ("squared covariance", shares))
    for name, side in (("left", answer.left), ("right", answer.right)):
        columns.append((f"{name} variance", [f"{100 * share:.3g} %" for share in side.explained_variance_ratio]))
    head, cells = zip(*columns, strict=True)
    return head, [tuple(row) for row in zip(*cells, strict=True)]


def coupled_report(run: RunStore, spec: dict[str, Any]) -> Report:
    """Report a finished job.

    Raises
    ------
    BadInputError
        It is not finished.
    """
    answer = read_coupled(run.path)
    head, rows = _table(answer)
    facts = [("passes over the data", str(answer.data_passes))]
    said = ""
    if answer.squared_covariance_error is not None:
        said = (
            "Shares of the squared covariance are of an estimate of all of it, whose standard error is "
            f"{100 * answer.squared_covariance_error:.2g} %. Fields without any relation have a largest covariance, "
            "too: compare with one of them in another order of its rows."
        )
    if answer.chance is not None:
        facts.append(("largest correlation by chance", f"{answer.chance:.3f}"))
        said = "The largest correlation by chance is that of independent rows of fields without any relation."
    right = Text(text=f"Right field: {spec['other_source']}") if "other_source" in spec else None
    plot = replace(spectrum_plot(answer.values, VALUES[answer.kind]), x="mode")
    first = section("", *warnings(answer.warnings), right, tiles(facts), plot)
    modes = section("Modes", table(rows, head), Text(text=said))
    return job_report(run, answer, first, modes, parameters(spec, TABLES))
