"""Components of a finished run: scores of rows along them, (X - mean) V, centred and scaled as the run was.

Rows with missing values are scored as the run treated its own (``AS_RUN``), or by least squares over what is observed
(``LEAST_SQUARES``, npmdask.missing.factor_model). Components can be turned: to simple structure, or onto
those of an earlier run.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import issparse

from npmdask.core import features
from npmdask.core.aspects import Aspect, Extent, Reading, kept_aspects, reading_of, seen
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.numerics.domains import one_of
from npmdask.core.numerics.subspaces import Block
from npmdask.core.operators.view import AS_STORED, View, in_units_of_data
from npmdask.core.storage.column_statistics import ColumnStatistics
from npmdask.core.storage.columns import Choice, addressed, at, choosable
from npmdask.core.storage.kinds import traits_of
from npmdask.core.storage.labels import Labels
from npmdask.core.storage.readers.whole_rows import units_of
from npmdask.core.storage.source import Source, open_source
from npmdask.errors import BadInputError

if TYPE_CHECKING:
    from npmdask.core.runs.solution import Solution

AT_ONCE = 16 * 2**20  # bytes of rows as float64 that are multiplied at once
AS_RUN, LEAST_SQUARES = RULES = ("as-run", "least-squares")  # what gaps of rows that are scored count as
COLUMNS = "columns"  # the part of a store with the statistics of its columns


def require_rule(missing: str) -> str:
    """``missing``, if it is one of ``RULES``. Raises BadInputError."""
    one_of(RULES, missing=missing)
    return missing


@dataclass(frozen=True, kw_only=True)
class StoredComponents:
    """Scores of a row are those of ``(row - mean) / scale * sqrt(column_weight)`` along the ``basis`` (d x k).

    All three (d) may be None. ``reading``: how the run read entries; ``missing``, ``fill``, ``model``, ``marks``: what
    it noted of gaps, gives for them or expects there, and numbers that mark them, where ``missing`` does not say
    these. ``labels``: what the columns are called.
    ``choice``: the columns of a table that the run chose; they are taken of other tables, too.
    """

    basis: Block
    choice: Choice | None = None
    mean: np.ndarray | None = None
    scale: np.ndarray | None = None
    reading: Reading | None = None
    missing: Any = None
    fill: Any = None
    column_weight: np.ndarray | None = None
    model: Any = None
    marks: tuple[float, ...] = ()
    labels: Labels | None = None

    @property
    def d(self) -> int:
        return len(self.basis)

    @property
    def k(self) -> int:
        return int(self.basis.shape[1])

    @property
    def of_complex(self) -> bool:
        """Say whether they are complex; only these can score complex rows."""
        return self.basis.dtype.kind == "c"

    @cached_property
    def weights(self) -> Block:
        """Return the matrix that centred rows are multiplied by."""
        weights = self.basis if self.scale is None else self.basis / self.scale[:, None]
        return weights if self.column_weight is None else weights * np.sqrt(self.column_weight)[:, None]

    @cached_property
    def patterns(self) -> Block:
        """Return what a unit of each score adds to a row (d x k), in units of the data; of complex ones conjugates."""
        patterns = in_units_of_data(self.basis.conj(), self.column_weight)
        return patterns if self.scale is None else patterns * self.scale[:, None]

    def scores(self, rows: Any) -> Block:
        """Coordinates of ``rows`` (n x d) along the components: n x k. Of sparse ones the mean is taken off after."""
        if self.model is not None and not issparse(rows) and np.isnan(rows).any():
            return self.model.filled(self.seen(rows)) @ self.basis
        with np.errstate(invalid="ignore", over="ignore"):  # whether that warns, is up to the processor
            if self.mean is None:
                return np.asarray(rows @ self.weights)
            if issparse(rows):
                return np.asarray(rows @ self.weights) - self.mean @ self.weights
            return np.asarray((rows - self.mean) @ self.weights)

    def seen(self, rows: np.ndarray) -> np.ndarray:
        """Rows as the run saw them: centred, scaled and weighted."""
        seen = np.asarray(rows, np.float64)
        seen = seen if self.mean is None else seen - self.mean
        seen = seen if self.scale is None else seen / self.scale
        return seen if self.column_weight is None else seen * np.sqrt(self.column_weight)

    def rows(self, scores: Block) -> Block:
        """Rows (n x d) that have these scores and lie in the span of the components; not a number in columns that
        weigh nothing.
        """
        if self.column_weight is not None:
            rows = scores @ self.patterns.T
            return rows if self.mean is None else rows + self.mean
        rows = scores @ self.basis.conj().T
        rows = rows if self.scale is None else rows * self.scale
        return rows if self.mean is None else rows + self.mean

    def read_as_run(self, opened: Source, missing: str) -> Source:
        """Rows of the columns that were kept, read as the run read its own; or with gaps as NaN."""
        told = self.missing is not None or self.fill is not None or self.marks or missing != AS_RUN
        reading = self.reading if self.reading is not None else _gaps() if told else None
        return opened if reading is None else reading.scored(opened, self, missing)

    def all_scores(
        self, source: Any, dim: str | int | None = None, dtype: Any = np.float64, missing: str = AS_RUN
    ) -> np.ndarray:
        """The same of all rows of a source, in memory as ``dtype``; it is read once, some rows at a time.

        Raises
        ------
        BadInputError
            Rows of another width, or scores that are not finite.
        """
        opened = self.opened(source, dim, missing)
        fit = _gaps().fit(self) if missing == LEAST_SQUARES else None
        dtype = np.result_type(dtype, np.complex64) if self.of_complex else dtype
        found = np.empty((opened.shape[0], self.k), dtype)
        for first, part in self.rows_of(opened):
            scores, determined = (self.scores(part), True) if fit is None else fit(part)
            bad = np.flatnonzero(~np.isfinite(scores).all(axis=1) & determined)
            if len(bad):
                raise BadInputError(
                    f"row {first + bad[0]} of {opened.path} has values that are not finite: fill them in, "
                    f"or leave it out{'' if fit else REMEDY}"
                )
            found[first : first + len(scores)] = scores
        for said in () if fit is None else fit.warnings:
            warnings.warn(said, RuntimeWarning, stacklevel=3)
        return found

    def opened(
        self, source: Any, dim: str | int | None = None, missing: str = AS_RUN, kind: str | None = None
    ) -> Source:
        """Open rows to be scored, their gaps read as the run read its own, or as NaN.

        Raises
        ------
        BadInputError
            They are no rows, or rows of another width.
        """
        from npmdask.core.runs.columns import in_order

        fit = require_rule(missing) == LEAST_SQUARES
        if fit and self.of_complex:
            raise BadInputError(
                f"missing = {missing!r} is for real components, and these are complex: leave it out, and fill missing "
                "values in before"
            )
        gaps = fit or self.missing is not None or self.fill is not None
        opened = open_source(self.chosen(source), kind, dim, gaps=gaps, of_complex=self.of_complex)
        opened = in_order(self, opened, missing)
        if opened.reader.layout == "matrix-free":
            raise BadInputError(
                f"{opened.path.removeprefix('memory, ')} has no rows to score: the scores of the rows it was made of "
                "are left_basis * singular_values"
            )
        if len(opened.shape) != 2 or opened.shape[1] != self.d:
            raise BadInputError(
                f"{opened.path} has {opened.shape[-1]} columns and the components have {self.d}: give rows with the "
                "columns that the components were computed from"
            )
        return opened

    def chosen(self, source: Any) -> Any:
        """``source``, or of a table the columns that the run chose, in its order."""
        if self.choice is None or not choosable(source):
            return source
        if isinstance(source, str | Path):
            return at(source, self.choice)
        return features.of_type("sources", type(source)).chosen(source, self.choice)

    def rows_of(self, opened: Source) -> Iterator[tuple[int, Any]]:
        """Read all rows, some at a time, each with the number of the first; valid until the next."""
        units, step = units_of(opened.reader), max(1, AT_ONCE // (8 * self.d))
        for unit in range(len(units.bounds) - 1):
            first, rows = int(units.bounds[unit]), units.load(unit)
            rows = rows.view(opened.dtype) if opened.parts == 2 else rows
            if opened.order is not None:
                rows = rows[:, opened.order] if issparse(rows) else np.take(rows, opened.order, axis=1)
            for start in range(0, rows.shape[0], step):
                yield first + start, rows[start : start + step]


REMEDY = f"; scores(rows, missing={LEAST_SQUARES!r}) takes rows with missing values"


def _gaps() -> Any:
    """Return how gaps are read where the run did not say it."""
    return features.found("aspects", "data.missing")


def labels_of_run(held: RunStore, name: str = "labels") -> Labels | None:
    """Return the labels of rows and columns of a run, where its data have them."""
    part = held.read_part(name)
    return None if part is None else Labels.of_bundle(*part)


def components_of_run(
    held: RunStore,
    spec: dict[str, Any],
    basis: Block,
    source: Source | None = None,
    aspects: Iterable[Aspect] | None = None,
) -> StoredComponents:
    """The components of a finished run, with what rows were centred and scaled by when they were found: as its survey
    says, or its ``source``, which is opened again where it is not given, as its ``aspects`` are read.

    Raises
    ------
    BadInputError
        The column means lay with a source that is gone or has changed.
    """
    data, labels = spec["data"], labels_of_run(held)
    aspects = tuple(kept_aspects(held, spec) if aspects is None else aspects)
    known = known_of_run(held, spec, aspects) | {"labels": labels}
    known["choice"] = _chosen_columns(held, spec.get("source") or (source.path if source else ""))
    if (reading := known["reading"]) is not None:
        known |= reading.scoring(held, basis)
    if not (data["center"] or data["scale"]):
        return StoredComponents(basis=basis, **known)
    surveyed = _statistics(held, spec, source)
    mean, scale = known.pop("mean", surveyed.mean), surveyed.scale
    if np.dtype(data["dtype"]).kind == "c":  # parts of columns
        own = features.required("representations", "complex")
        scale, mean = surveyed.of_moduli(own.moduli).scale[::2], own.entries(mean[:, None])[:, 0]
    known |= {"mean": mean if data["center"] else None, "scale": scale if data["scale"] else None}
    return StoredComponents(basis=basis, **known)


def known_of_run(held: RunStore, spec: dict[str, Any], aspects: tuple[Aspect, ...]) -> dict[str, Any]:
    """Return what components of a run know of how it saw its data, without statistics of columns."""
    reading = reading_of(aspects)
    missing = None if reading is None else reading.noted(held)
    return {
        "reading": reading,
        "missing": missing,
        "column_weight": view_of_run(aspects, spec, missing).column_weight,
    }


def view_of_run(aspects: Iterable[Aspect], spec: dict[str, Any], missing: Any) -> View:
    """Return how a run saw its data, apart from what it centred and scaled them by."""
    rows = spec["data"]["shape"][0]
    return seen(
        aspects, Extent(rows) if missing is None else Extent(rows, lambda values: values[missing.kept]), AS_STORED
    )


def _chosen_columns(held: RunStore, source: str) -> Choice | None:
    """The names of the columns that a run chose, or where they have none its choice; None: it chose none."""
    choice, part = addressed(source)[1], held.read_part("labels")
    names = None if choice is None or part is None else part[0].get("columns-0")
    return choice if names is None else Choice(tuple(map(str, names)))


def keep_statistics(held: RunStore, spec: dict[str, Any], source: Source) -> None:
    """Keep what rows are centred and scaled by with the answer: a source that was ingested may be written again."""
    data, survey = spec["data"], held.part_meta("survey")
    if not (data["center"] or data["scale"]) or traits_of(data["kind"]).cube or held.is_stage:
        return
    if survey is None and held.part_meta(COLUMNS) is None:
        if source.statistics is not None:
            held.write_part(COLUMNS, source.statistics.kept(), {})


def _statistics(held: RunStore, spec: dict[str, Any], source: Source | None) -> ColumnStatistics:
    """Means and deviations of the columns of a run: of its survey, or recorded with its source."""
    for name in ("survey", COLUMNS):
        part = held.read_part(name)
        if part is not None and "column_mean" in part[0]:
            about = spec["data"]
            return ColumnStatistics.of(part[0], about["shape"][0], sparse=traits_of(about["kind"]).sparse)
    where = f"{held.path} was centred or scaled with statistics that are stored with its source"
    try:
        source = source or open_source(spec["source"], spec["data"]["kind"], spec.get("dim"))
    except BadInputError as error:
        raise BadInputError(f"{where}: {error}") from error
    if source.fingerprint != spec["data"]["fingerprint"] or source.statistics is None:
        raise BadInputError(
            f"{where} {spec['source']}, which has changed since: put it back, or run again on what it is"
        )
    return source.statistics


# Components that were turned, by the feature that turns them; no pass over the data.


@dataclass(frozen=True, kw_only=True)
class TurnedComponents:
    """
    Hold components that were rotated, or aligned with an earlier run, and what rows score along them.

    Rows less their mean are ``scores @ basis.T``, as far as the k components of the run reach.

    Attributes
    ----------
    basis : numpy.ndarray, shape (d, k)
        Columns of length 1. After varimax and promax they are not orthogonal.
    variances : numpy.ndarray, shape (k,)
        Variance of each (n - 1 in the denominator; of a run that was not centred the mean square); their sum is that
        of the components of the run. After promax a component has what it explains alone, and half of what it
        explains together with each other one.
    rotation : numpy.ndarray, shape (k, k)
        Of varimax and promax what loadings (eigenvectors times the roots of their variances) were multiplied by, of an
        alignment what the components were.
    correlations : numpy.ndarray, shape (k, k)
        Of the scores: of principal components and after varimax the identity.
    similarity : numpy.ndarray or None, shape (k,)
        After an alignment: cosines with the components of the earlier run. Not a number where that had fewer.
    earlier : numpy.ndarray or None, shape (k,)
        After an alignment: which earlier component each one is compared with, from 0; -1 where there is none.
    inside : numpy.ndarray or None, shape (k,)
        After an alignment: how much of the square of each one lies in the space of all earlier components. Where it is
        well below 1 the space itself moved, and no order or rotation brings the earlier component back.
    order : numpy.ndarray or None, shape (k,)
        After an alignment without a rotation: which component of the run each one is, from 0.
    components : StoredComponents
        Weights and mean, for the scores.

    Examples
    --------
    >>> import numpy as np
    >>> import npmdask
    >>> rng = np.random.default_rng(0)
    >>> simple = np.kron(np.eye(2), np.ones((3, 1)))
    >>> rows = rng.standard_normal((400, 2)) @ simple.T + 0.1 * rng.standard_normal((400, 6))
    >>> turned = npmdask.top_k(rows, 2, kind="samples", center=True).rotated("varimax")
    >>> bool((np.abs(turned.basis) > 0.5).sum(axis=1).max() == 1), turned.scores(rows).shape
    (True, (400, 2))
    """

    basis: Block
    variances: np.ndarray
    rotation: np.ndarray
    correlations: np.ndarray
    similarity: np.ndarray | None = None
    earlier: np.ndarray | None = None
    inside: np.ndarray | None = None
    order: np.ndarray | None = None
    components: StoredComponents = field(repr=False)

    def scores(self, source: Any, *, dim: str | int | None = None) -> Block:
        """
        Get the coordinates of rows along these components.

        Parameters
        ----------
        source : array_like, sparse matrix, table, Dask or xarray array, AnnData, zarr.Array, str or Path, shape (n, d)
            Rows, as for :func:`npmdask.top_k`; they are read once, some at a time.
        dim : str or int, optional
            The dimension that rows lie along, of an array of more than two.

        Returns
        -------
        numpy.ndarray, shape (n, k)
            In memory.
        """
        return self.components.all_scores(source, dim)

    def aligned(self, to: Any) -> TurnedComponents:
        """
        Bring rotated components into the order and to the signs of earlier ones, as :meth:`Solution.aligned` does.

        Parameters
        ----------
        to : TurnedComponents, Solution or array_like, shape (d, j)
            Earlier components of the same columns, rotated in the same way.

        Returns
        -------
        TurnedComponents
            The same components, with ``similarity``, ``earlier`` and ``inside``.

        Raises
        ------
        BadInputError
            Components of other columns.

        Examples
        --------
        >>> import numpy as np
        >>> import npmdask
        >>> rows = np.random.default_rng(0).standard_normal((100, 5)) * [5, 3, 1, 1, 1]
        >>> turned = npmdask.top_k(rows, 2, kind="samples", center=True).rotated("varimax")
        >>> again = turned.aligned(-turned.basis[:, ::-1])
        >>> again.similarity.round(6).tolist(), again.variances.tolist() == turned.variances[::-1].tolist()
        ([1.0, 1.0], True)
        """
        return features.required("methods", "TurnedComponents.aligned")(self, to)


def variances_of_run(solution: Solution) -> tuple[StoredComponents, np.ndarray]:
    """Components and their variances; of a run that was not centred mean squares."""
    analysed = solution.analysed
    if analysed.components is None or not (traits := traits_of(analysed.kind)).of_rows:
        raise BadInputError(
            f"a run of kind {analysed.kind} has no components of rows, whose variances could be shared out: rotate "
            "those of samples or of a matrix"
        )
    if analysed.components.of_complex:
        raise BadInputError(
            "rotations, comparisons and criteria are those of real components, and these are complex: see "
            "explained_variance and patterns(), or analyse real and imaginary parts as columns of their own"
        )
    if analysed.centred and analysed.rows is not None:
        return analysed.components, solution.explained_variance
    if not traits.singular:  # of a private run, whose number of rows is not released, too
        return analysed.components, np.maximum(solution.values, 0.0)
    return analysed.components, solution.singular_values**2 / solution._rows
