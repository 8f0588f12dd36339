"""Scores of rows along the components of a finished run: (X - mean) V, centred and scaled as the run was.

Rows with missing values are scored as the run treated its own (``AS_RUN``), or by least squares over what is observed
(``LEAST_SQUARES``, npmdask.numerics.factor_model).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from npmdask.checkpoint.store import RunStore
from npmdask.errors import BadInputError, closest
from npmdask.numerics.complex_parts import as_complex, moduli
from npmdask.numerics.factor_model import FactorModel, FittedScores, filled_by_model, least_squares_scores
from npmdask.numerics.subspaces import Block
from npmdask.operators.view import column_scale
from npmdask.runs.missing import Fill, Missing, kept_fill, missing_of
from npmdask.runs.weights import Weights, in_units_of_data, kept_weights
from npmdask.storage.containers import is_sparse
from npmdask.storage.readers.dense import DenseReader
from npmdask.storage.readers.gaps import DROP, EM, FILL, MEAN, GapReader, Marks, as_nan, over_observed
from npmdask.storage.source import Source, open_source, with_missing
from npmdask.storage.streams.zarr_rows import units_of

AT_ONCE = 16 * 2**20  # bytes of rows as float64 that are multiplied at once
AS_RUN, LEAST_SQUARES = RULES = ("as-run", "least-squares")  # what gaps of rows that are scored count as
COLUMNS = "columns"  # the part of a store with the statistics of its columns
UNCERTAIN = 10  # times as uncertain as those of complete rows: scores that are warned of


def require_rule(missing: str) -> str:
    """``missing``, if it is one of ``RULES``. Raises BadInputError."""
    if missing not in RULES:
        raise BadInputError(f"missing = {missing!r}: {closest(str(missing), list(RULES))}")
    return missing


@dataclass
class Fits:
    """What is to be said of scores by least squares: rows (the first by number) that have none, or uncertain ones."""

    rows: int = 0
    undetermined: int = 0
    uncertain: int = 0
    worst: float = 1.0
    first: int = -1

    def add(self, amplified: np.ndarray) -> None:
        """Take in the next rows, in their order."""
        unknown = np.flatnonzero(np.isinf(amplified))
        if len(unknown) and not self.undetermined:
            self.first = self.rows + int(unknown[0])
        known = amplified[np.isfinite(amplified)]
        self.undetermined += len(unknown)
        self.uncertain += int((known > UNCERTAIN).sum())
        self.worst = max(self.worst, float(known.max(initial=1.0)))
        self.rows += len(amplified)

    @property
    def warnings(self) -> tuple[str, ...]:
        """List warnings for readers of the scores."""
        said = []
        if self.undetermined:
            said.append(
                f"{self.undetermined} of {self.rows} rows (the first is row {self.first}, from 0) lack too many values "
                "to determine their scores, which are NaN"
            )
        if self.uncertain:
            said.append(
                f"{self.uncertain} of {self.rows} rows have so few values that their scores are more than {UNCERTAIN} "
                f"times (up to {self.worst:.3g} times) as uncertain as those of complete rows"
            )
        return tuple(said)


@dataclass(frozen=True, kw_only=True)
class StoredComponents:
    """Scores of a row are those of ``(row - mean) / scale * sqrt(column_weight)`` along the ``basis`` (d x k).

    All three (d) may be None. ``model``: of such rows, which says what is expected where one has no value. ``marks``:
    numbers that mark missing values, where ``missing`` does not say them.
    """

    basis: Block
    mean: np.ndarray | None = None
    scale: np.ndarray | None = None
    missing: Missing | None = None
    fill: Fill | None = None
    column_weight: np.ndarray | None = None
    model: FactorModel | None = None
    marks: Marks = ()

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
        if self.model is not None and not is_sparse(rows) and np.isnan(rows).any():
            return filled_by_model(self._seen(rows), self.model) @ self.basis
        with np.errstate(invalid="ignore", over="ignore"):  # whether that warns, is up to the processor
            if self.mean is None:
                return np.asarray(rows @ self.weights)
            if is_sparse(rows):
                return np.asarray(rows @ self.weights) - self.mean @ self.weights
            return np.asarray((rows - self.mean) @ self.weights)

    def _seen(self, rows: np.ndarray) -> np.ndarray:
        """Rows as the run saw them: centred, scaled and weighted."""
        seen = np.asarray(rows, np.float64)
        seen = seen if self.mean is None else seen - self.mean
        seen = seen if self.scale is None else seen / self.scale
        return seen if self.column_weight is None else seen * np.sqrt(self.column_weight)

    def fitted(self, rows: Any) -> FittedScores:
        """The same of ``rows`` with gaps (NaN): by least squares over what is observed."""
        if is_sparse(rows):
            return FittedScores(self.scores(rows), np.ones(rows.shape[0]))
        return least_squares_scores(self._seen(rows), self.basis)

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

    def _read_with_gaps(self, opened: Source, missing: str) -> Source:
        """Rows of the columns that were kept. Their gaps are NaN, or as the run read those of its own."""
        found, reader = self.missing, opened.reader
        if self.fill is not None and missing == AS_RUN and isinstance(reader, DenseReader):
            return with_missing(opened, FILL, self.fill.values, self.marks)
        if not isinstance(reader, DenseReader) or (missing == AS_RUN and found is None and not self.marks):
            return opened
        if found is None:
            inner = GapReader(inner=as_nan(reader), rule=MEAN, checksums=reader.checksums, marks=self.marks)
            return replace(opened, reader=inner)
        kept = found.kept if opened.shape[1] == len(found.counts) > len(found.kept) else None
        if opened.shape[1] not in (len(found.counts), len(found.kept)):
            return opened
        how: dict[str, Any] = {"rule": found.rule, "marks": found.values, "checksums": reader.checksums}
        inner = GapReader(inner=as_nan(reader), kept=kept, held=False, **how)
        if found.rule in (DROP, EM) or missing == LEAST_SQUARES or inner.dtype.kind != "f":
            return replace(opened, reader=inner)
        assert found.fill is not None
        return replace(opened, reader=replace(inner, fill=found.fill.astype(inner.dtype)))

    def all_scores(
        self, source: Any, dim: str | int | None = None, dtype: Any = np.float64, missing: str = AS_RUN
    ) -> np.ndarray:
        """The same of all rows of a source, in memory as ``dtype``; it is read once, some rows at a time.

        Raises
        ------
        BadInputError
            Rows of another width, or scores that are not finite.
        """
        opened, fit = self.opened(source, dim, missing), missing == LEAST_SQUARES
        dtype = np.result_type(dtype, np.complex64) if self.of_complex else dtype
        found, fits = np.empty((opened.shape[0], self.k), dtype), Fits()
        for first, part in self.rows_of(opened):
            scores, amplified = self.fitted(part) if fit else (self.scores(part), np.ones(part.shape[0]))
            bad = np.flatnonzero(~np.isfinite(scores).all(axis=1) & np.isfinite(amplified))
            if len(bad):
                raise BadInputError(
                    f"row {first + bad[0]} of {opened.path} has values that are not finite: fill them in, "
                    f"or leave it out{self._remedy(fit)}"
                )
            fits.add(amplified)
            found[first : first + len(scores)] = scores
        for said in fits.warnings:
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
        fit = require_rule(missing) == LEAST_SQUARES
        if fit and self.of_complex:
            raise BadInputError(
                f"missing = {missing!r} is for real components, and these are complex: leave it out, and fill missing "
                "values in before"
            )
        gaps = fit or self.missing is not None or self.fill is not None
        opened = open_source(source, kind, dim, gaps=gaps, of_complex=self.of_complex)
        opened = self._read_with_gaps(opened, missing)
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

    def rows_of(self, opened: Source) -> Iterator[tuple[int, Any]]:
        """Read all rows, some at a time, each with the number of the first; valid until the next."""
        units, step = units_of(opened.reader), max(1, AT_ONCE // (8 * self.d))  # type: ignore[arg-type]
        for unit in range(len(units.bounds) - 1):
            first, rows = int(units.bounds[unit]), units.load(unit)
            rows = rows.view(opened.dtype) if opened.parts == 2 else rows
            for start in range(0, rows.shape[0], step):
                yield first + start, rows[start : start + step]

    def _remedy(self, fit: bool) -> str:
        return "" if fit else f"; scores(rows, missing={LEAST_SQUARES!r}) takes rows with missing values"


def components_of_run(
    held: RunStore, spec: dict[str, Any], basis: Block, source: Source | None = None, weights: Weights | None = None
) -> StoredComponents:
    """The components of a finished run, with what rows were centred and scaled by when they were found: as its survey
    says, or its ``source``, which is opened again where it is not given, as its ``weights`` are read.

    Raises
    ------
    BadInputError
        The column means lay with a source that is gone or has changed.
    """
    data, missing, weights = spec["data"], missing_of(held), weights or kept_weights(held, spec)
    columns = None if weights is None else weights.columns
    columns = columns if columns is None or missing is None else columns[missing.kept]
    if not (data["center"] or data["scale"]):
        marks = tuple(data.get("missing_values", ())) if missing is None else ()
        fill = kept_fill(held, data)
        return StoredComponents(basis=basis, missing=missing, fill=fill, column_weight=columns, marks=marks)
    mean, std = _statistics(held, spec, source)
    model = None
    if data.get("missing") == EM:
        mean, model = _of_model(held, basis)
    if missing is not None and missing.observed is not None:
        std = over_observed(std, missing.observed)
    if np.dtype(data["dtype"]).kind == "c":  # parts of columns
        std, mean = moduli(std)[::2], as_complex(mean[:, None])[:, 0]
    return StoredComponents(
        basis=basis,
        missing=missing,
        mean=mean if data["center"] else None,
        scale=column_scale(np.abs(mean), std, sparse=data["kind"] == "sparse") if data["scale"] else None,
        column_weight=columns,
        model=model,
    )


def keep_statistics(held: RunStore, spec: dict[str, Any], source: Source) -> None:
    """Keep what rows are centred and scaled by with the answer: a source that was ingested may be written again."""
    data, survey = spec["data"], held.part_meta("survey")
    if not (data["center"] or data["scale"]) or data["kind"] == "tensor" or held.is_stage:
        return
    if survey is None and held.part_meta(COLUMNS) is None:
        if source.column_mean is not None and source.column_std is not None:
            held.write_part(COLUMNS, {"column_mean": source.column_mean, "column_std": source.column_std}, {})


def _of_model(held: RunStore, basis: Block) -> tuple[np.ndarray, FactorModel]:
    """The mean and the factor model that a run has found; the model is about the mean."""
    part = held.read_part("result")
    assert part is not None
    noise = float(part[1]["facts"]["noise"])
    lengths = np.sqrt(np.maximum(part[0]["values"] - noise, 0.0))
    return part[0]["model_mean"], FactorModel(axes=basis, lengths=lengths, mean=np.zeros(len(basis)), noise=noise)


def _statistics(held: RunStore, spec: dict[str, Any], source: Source | None) -> tuple[np.ndarray, np.ndarray]:
    """Means and deviations of the columns of a run: of its survey, or recorded with its source."""
    for name in ("survey", COLUMNS):
        part = held.read_part(name)
        if part is not None and "column_mean" in part[0]:
            return part[0]["column_mean"], part[0]["column_std"]
    where = f"{held.path} was centred or scaled with statistics that are stored with its source"
    try:
        source = source or open_source(spec["source"], spec["data"]["kind"], spec.get("dim"))
    except BadInputError as error:
        raise BadInputError(f"{where}: {error}") from error
    if source.fingerprint != spec["data"]["fingerprint"] or source.column_mean is None or source.column_std is None:
        raise BadInputError(
            f"{where} {spec['source']}, which has changed since: put it back, or run again on what it is"
        )
    return source.column_mean, source.column_std
