"""A streaming algorithm made ready for real rows: without gaps, centred on the way, of a size that its steps expect.

Like the algorithms, a model is frozen public configuration, and all that it learns is in its state.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from math import sqrt
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg  # noqa: F401  its BLAS must be there when the number of threads is set: see single_threaded_blas

from npmdask.core.algorithms import RowsQuery, StreamAlgorithm, StreamInfo, StreamResult, state_fields
from npmdask.core.algorithms.base import checked_batch
from npmdask.core.numerics.random import generator
from npmdask.core.numerics.subspaces import Block
from npmdask.core.numerics.units import attributes
from npmdask.errors import BadInputError, closest
from npmdask.missing.factor_model import grams_of_observed
from npmdask.streaming.algorithms import STREAM_REGISTRY

# Rows with missing values (NaN), completed by what was learnt of the rows before them.
#
# A gap becomes what the model so far expects there, given what is observed of its row: the conditional mean of
# probabilistic PCA (Tipping and Bishop, J. R. Statist. Soc. B 61 (1999) 611; its E-step for rows with gaps)
#
#     x_M = mean_M + V_M t,      t = (V_O^T V_O + noise diag(1 / values))^-1 V_O^T (x_O - mean_O)
#
# with means over observed values only. GROUSE (Balzano, Nowak and Recht 2010) and PETRELS (Chi, Eldar and Calderbank
# 2013) complete rows in this way, too, without the noise. Nothing is drawn: the same batches give the same bits.
#
# What is imputed has no scatter of its own, so that values are too small by about the share that is missing of the
# noise (not of the values, as with means). Where gaps depend on the values that they hide, nothing here corrects that.

PIECE_BYTES = 4 * 2**20  # of rows that are completed at once
LEAST_NOISE = 1e-12  # of the largest value: keeps what the observed entries do not determine at the mean


class Levels(NamedTuple):
    """By column (d): the weight of the values observed so far, their mean, and how many were missing."""

    seen: np.ndarray
    mean: np.ndarray
    missing: np.ndarray


class Learnt(NamedTuple):
    """Leading directions so far (d x k) and the mean square of the rows along each (k)."""

    vectors: Block
    values: np.ndarray


def no_levels(d: int) -> Levels:
    """Those before the first row of ``d`` columns."""
    return Levels(np.zeros(d), np.zeros(d), np.zeros(d))


def completed(
    rows: Block,
    before: Levels,
    learnt: Learnt | None,
    *,
    center: bool,
    fade: float = 1.0,
    weights: np.ndarray | None = None,
) -> tuple[Block, Levels]:
    """Rows (n x d, each with a value) without gaps, and the levels after them.

    ``learnt``: None while nothing is; then gaps are at the mean, as they are in a column that has had no value yet.
    ``fade``: what one row leaves of the weight of those before it. ``weights`` (n): how much each counts. Rows without
    gaps stay as they are, bit for bit.
    """
    count, moved, lacking = (np.zeros(rows.shape[1]) for _ in range(3))
    for part, known in _pieces(rows, weights):
        gaps = np.isnan(part)
        lacking += gaps.sum(axis=0)
        away = np.where(gaps, 0.0, part - before.mean)
        count += (~gaps).sum(axis=0) if known is None else known @ ~gaps
        moved += away.sum(axis=0) if known is None else known @ away
    seen = before.seen * fade ** len(rows) + count
    mean = before.mean + moved / np.where(seen > 0, seen, 1.0)
    levels = Levels(seen, mean, before.missing + lacking)
    if not lacking.any():
        return rows, levels
    shift, whole = mean if center else np.zeros_like(mean), rows.copy()
    model = None if learnt is None else _model(rows, weights, shift, learnt)
    for part, _ in _pieces(whole, None):
        gaps = np.isnan(part)
        filled = np.broadcast_to(shift, part.shape)
        if model is not None:
            filled = filled + _expected(np.where(gaps, 0.0, part - shift), gaps, *model) * (seen > 0)
        np.copyto(part, filled, where=gaps)
    return whole, levels


def _pieces(rows: Block, weights: np.ndarray | None) -> Iterator[tuple[Block, np.ndarray | None]]:
    """The rows and their weights, a few at a time: what is computed of them beside them stays small."""
    step = max(1, PIECE_BYTES // (8 * rows.shape[1]))
    for start in range(0, len(rows), step):
        yield rows[start : start + step], None if weights is None else weights[start : start + step]


def _model(
    rows: Block, weights: np.ndarray | None, shift: np.ndarray, learnt: Learnt
) -> tuple[Block, np.ndarray] | None:
    """Directions that have variance (d x k), and the noise in a score over that variance (k); None without any."""
    kept = learnt.values > 0
    if not kept.any():
        return None
    basis, values = learnt.vectors[:, kept], learnt.values[kept]
    squares, entries = 0.0, 0.0
    for part, known in _pieces(rows, weights):
        gaps = np.isnan(part)
        away = np.where(gaps, 0.0, part - shift) ** 2
        squares += float(away.sum() if known is None else (known @ away).sum())
        entries += gaps.size - int(gaps.sum()) if known is None else float((known @ ~gaps).sum())
    (d, k), total = basis.shape, squares / entries * rows.shape[1]
    noise = max((total - float(values.sum())) / max(1, d - k), LEAST_NOISE * float(values[0]))
    return basis, noise / values


def _expected(centred: Block, gaps: np.ndarray, basis: Block, ridge: np.ndarray) -> Block:
    """``V t`` of rows (n x d) whose gaps are 0; 0 of rows without gaps."""
    expected, inside = np.zeros_like(centred), np.arange(len(ridge))
    for some, grams in grams_of_observed(gaps, np.flatnonzero(gaps.any(axis=1)), basis):
        grams[:, inside, inside] += ridge
        scores = np.linalg.solve(grams, (centred[some] @ basis)[:, :, None])[:, :, 0]
        expected[some] = scores @ basis.T
    return expected


# Rows less a mean that is not known yet, so that their scatter is exactly that of the rows less the final mean.
#
# The scatter of two groups is the sum of theirs plus n m / (n + m) delta delta^T, delta the difference of their means
# (Chan, Golub and LeVeque 1979). A batch of n centred rows has rank n - 1: a Householder reflection turns them into
# n - 1 rows with the same scatter, and the n-th carries delta. Batches keep their size, algorithms know nothing of it,
# and the sum over all rows of x x^T is n times the covariance (population convention), whatever the batches were.
#
# Rounding is of the size of the deviations, not of the mean, as in a corrected two-pass variance: what the mean of a
# batch misses is subtracted once more, and the running mean is held as a sum of two.


class RunningMean(NamedTuple):
    """The mean of the rows so far (d), what it misses by rounding (d), and of how many rows it is."""

    mean: np.ndarray
    rest: np.ndarray
    weight: float


def centred(
    rows: Block, before: RunningMean, fade: float = 1.0, weights: np.ndarray | None = None
) -> tuple[Block, RunningMean]:
    """Rows (n x d, fresh) whose scatter is what ``rows`` add to the centred scatter, and the new mean.

    ``fade``: what one row leaves of the weight of those before it. ``weights`` (n, positive): how much each counts.
    """
    if weights is not None:
        return _centred_by_weight(rows, before, before.weight * fade ** len(rows), weights)
    n, weight = len(rows), before.weight * fade ** len(rows)
    mean = rows.mean(axis=0)
    turned = rows - mean
    missed = turned.mean(axis=0)
    turned -= missed
    if n > 1:
        turned[1:] += turned[0] / (sqrt(n) - 1)
    delta = (mean - before.mean) + (missed - before.rest)
    turned[0] = sqrt(weight * n / (weight + n)) * delta
    if not weight:
        before, delta = RunningMean(mean, missed, 0.0), np.zeros_like(mean)
    return turned, _shifted_mean(before, (n / (weight + n)) * delta, weight + n)


def _centred_by_weight(
    rows: Block, before: RunningMean, weight: float, weights: np.ndarray
) -> tuple[Block, RunningMean]:
    """The same of rows that count by ``weights``, after others of ``weight`` together.

    Rows less their mean, times the roots of their weights, are orthogonal to the vector of these roots, so that this is
    what the reflection turns into an axis: that of the lightest row, where nothing cancels.
    """
    total = float(weights.sum())
    shares, roots = weights / total, np.sqrt(weights)
    mean = shares @ rows
    turned = rows - mean
    missed = shares @ turned
    turned -= missed
    turned *= roots[:, None]
    lightest, along = int(np.argmin(weights)), roots / sqrt(total)
    if len(rows) > 1:
        axis = along / (1 - along[lightest])
        axis[lightest] = 0.0
        turned += axis[:, None] * turned[lightest]
    delta = (mean - before.mean) + (missed - before.rest)
    turned[lightest] = sqrt(total) * sqrt(weight / (weight + total)) * delta
    if not weight:
        before, delta = RunningMean(mean, missed, 0.0), np.zeros_like(mean)
    return turned, _shifted_mean(before, (total / (weight + total)) * delta, weight + total)


def _shifted_mean(before: RunningMean, by: np.ndarray, weight: float) -> RunningMean:
    """The mean moved by ``by``; what is lost of it (Knuth's TwoSum, exact for any two numbers) is the new rest."""
    small = before.rest + by
    mean = before.mean + small
    part = mean - before.mean
    return RunningMean(mean, (before.mean - (mean - part)) + (small - part), weight)


SCALE_FREE = ("spm", "frequent-directions", "online-tensor-power")  # rows of another size change nothing but the values
# Whose steps are sums over rows, which weights go into as they are; those of the others take the mean of a batch.
WEIGHTED = ("spm", "frequent-directions")
REFUSE, IMPUTE = GAPS = ("refuse", "impute")
LARGEST_SQUARE = 1e200  # mean square norm of a batch: sums of such squares stay far from overflow


@dataclass(frozen=True, kw_only=True)
class ModelState:
    """The algorithm's state; the running mean (see ``RunningMean``); the unit (0: not known); rows and batches seen."""

    inner: Any
    mean: np.ndarray
    rest: np.ndarray
    weight: float
    unit: float
    rows: int
    batches: int
    seen: np.ndarray | None = None  # of a model that imputes: see Levels
    level: np.ndarray | None = None
    missing: np.ndarray | None = None
    rows_with_gaps: int | None = None

    @property
    def rows_used(self) -> int:
        """Rows that made steps; the others wait for their step."""
        return int(self.inner.rows)

    @property
    def steps(self) -> int:
        """Steps of the algorithm."""
        return int(self.inner.step)


@dataclass(frozen=True, kw_only=True)
class Model:
    """``algorithm`` over rows of ``d`` columns.

    ``center``: subtract the mean of the rows (see ``centring``). ``unit``: rows are divided by it, because the steps of
    all but the scale-free algorithms are meant for rows of norm about 1; None: the root mean square norm of the first
    batch that is not zero. ``half_life``: rows after which a row counts half in the mean (None: for ever).
    ``missing``: "refuse" rows with missing values (NaN), or "impute" these by what was learnt so far.
    ``missing_values``: what marks them in the data, which the reader turns into NaN.
    """

    algorithm: StreamAlgorithm[Any]
    d: int
    center: bool = False
    unit: float | None = None
    half_life: float | None = None
    seed: int = 0
    missing: str = REFUSE
    missing_values: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.missing not in GAPS:
            raise BadInputError(f"missing = {self.missing!r} of a stream: {closest(str(self.missing), list(GAPS))}")
        if self.unit is not None and not 0 < self.unit < np.inf:
            raise BadInputError(
                f"unit = {self.unit} must be a positive number, the typical norm of a row; or leave it out"
            )

    def init(self) -> ModelState:
        """Before the first row. Raises BadInputError where k or p do not fit d."""
        levels = no_levels(self.d) if self.missing == IMPUTE else (None, None, None)
        return ModelState(
            seen=levels[0],
            level=levels[1],
            missing=levels[2],
            rows_with_gaps=None if levels[0] is None else 0,
            inner=self.algorithm.init(self.d, rng=generator(self.seed, "start")),
            mean=np.zeros(self.d if self.center else 0),
            rest=np.zeros(self.d if self.center else 0),
            weight=0.0,
            unit=1.0 if self.algorithm.name in SCALE_FREE else self.unit or 0.0,
            rows=0,
            batches=0,
        )

    def wanted(self, state: ModelState, batch_rows: int) -> int:
        """Return how many rows the next batch should have."""
        return self.algorithm.query(state.inner).rows or batch_rows

    def require_weighted(self) -> None:
        """Raise BadInputError where rows cannot count by weights."""
        if self.algorithm.name not in WEIGHTED:
            raise BadInputError(
                f"weights of rows: a step of {self.algorithm.name} uses the mean of a batch and does not support "
                f"weighted rows: choose {' or '.join(WEIGHTED)} or IncrementalPCA; or draw rows in proportion to "
                "their weights first"
            )

    def absorb(
        self, state: ModelState, batch: np.ndarray, weights: np.ndarray | None = None
    ) -> tuple[ModelState, StreamInfo]:
        """One batch (n x d): the state after it; a batch that is refused leaves everything as it was.

        ``weights`` (n, positive): how much each row counts, of an algorithm that knows weights.

        Raises
        ------
        BadInputError
            Wrong width, no rows, or rows that are not finite or whose squares are not.
        """
        whole, gaps = self._without_gaps(state, batch, weights)
        rows = moderate(checked_batch(whole, self.d))
        count, running, unit = len(rows), RunningMean(state.mean, state.rest, state.weight), state.unit
        if self.center:
            running = _mean_of_first(running, state, gaps.get("level"), gaps.get("seen"))
            rows, running = centred(rows, running, self._row_decay, weights)
        elif weights is not None:
            rows = rows * np.sqrt(weights)[:, None]
        if unit == 0.0:
            unit = float(np.linalg.norm(rows) / np.sqrt(count))
        if unit not in (0.0, 1.0):  # a centred batch is ours to write to: one copy, not two
            rows = np.divide(rows, unit, out=rows if self.center else None)
        inner, info = self._steps(state.inner, rows, weights)
        after = ModelState(
            inner=inner,
            **attributes(running, "mean", "rest", "weight"),
            unit=unit,
            rows=state.rows + count,
            batches=state.batches + 1,
            **gaps,
        )
        return after, replace(info, rows=count)

    @property
    def _row_decay(self) -> float:
        """Share that one row leaves of the weight of those before it."""
        return 1.0 if self.half_life is None else 0.5 ** (1 / self.half_life)

    def _without_gaps(
        self, state: ModelState, batch: np.ndarray, weights: np.ndarray | None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """The batch, completed where the model imputes, and what its state knows of gaps then."""
        if state.seen is None or state.level is None or state.missing is None or state.rows_with_gaps is None:
            return batch, {}
        rows = np.asarray(batch, np.float64)
        if rows.ndim != 2 or rows.shape[1] != self.d or np.isinf(rows).any():
            return batch, {}  # which is refused
        gaps = np.isnan(rows)
        if gaps.all(axis=1).any():
            raise BadInputError(
                f"{int(gaps.all(axis=1).sum())} of the {len(rows)} rows of the batch have no value at all: leave "
                "them out"
            )
        before, learnt = Levels(state.seen, state.level, state.missing), self._learnt(state) if gaps.any() else None
        whole, after = completed(rows, before, learnt, center=self.center, fade=self._row_decay, weights=weights)
        with_gaps = state.rows_with_gaps + int(gaps.any(axis=1).sum())
        return whole, {"seen": after.seen, "level": after.mean, "missing": after.missing, "rows_with_gaps": with_gaps}

    def _learnt(self, state: ModelState) -> Learnt | None:
        """Return what gaps are completed by; None while there is nothing."""
        if not state.steps:
            return None
        try:
            found = self.algorithm.finalize(state.inner)
        except BadInputError:  # too few rows for an answer
            return None
        return Learnt(found.vectors, found.values * (state.unit or 1.0) ** 2)

    def _steps(self, inner: Any, rows: Block, weights: np.ndarray | None) -> tuple[Any, StreamInfo]:
        """All rows, in the pieces that the algorithm asks for."""
        if weights is not None:
            self.require_weighted()
            return self.algorithm.update(inner, rows, weights)  # type: ignore[call-arg]
        start, steps, last = 0, 0, StreamInfo(rows=0, rank=0, steps=0)
        while start < len(rows):
            asked: RowsQuery = self.algorithm.query(inner)
            piece = rows[start : start + asked.rows] if asked.rows else rows[start:]
            inner, info = self.algorithm.update(inner, piece)
            start, steps = start + len(piece), steps + info.steps
            if info.steps or not last.steps:  # of the last step, if there was one
                last = info
        return inner, replace(last, steps=steps)

    def answer(self, state: ModelState) -> StreamResult:
        """The k leading directions so far, and the mean square of the rows along each (or what else it finds).

        Raises
        ------
        BadInputError
            Too few rows for an answer; the sentence says how many are needed.
        """
        result = self.algorithm.finalize(state.inner)
        result = replace(result, values=result.values * (state.unit or 1.0) ** self.algorithm.moment)
        if state.missing is None or not state.missing.any():
            return result
        entries, empty = int(state.missing.sum()), int((state.missing == state.rows).sum())
        facts = {"missing_values": entries, "rows_with_gaps": state.rows_with_gaps, "columns_without_values": empty}
        said = f"{entries} of their values in {state.rows_with_gaps} rows were missing and were imputed"
        said += f", {empty} columns have none at all and count as constant" if empty else ""
        return replace(result, facts=result.facts | facts, said="; ".join(filter(None, (result.said, said))))

    def project(self, state: ModelState, basis: Block, rows: np.ndarray) -> Block:
        """The rows (n x d), less the mean if the model is centred, along the basis: n x k."""
        checked = checked_batch(rows, self.d)
        image: Block = checked @ basis
        return image - state.mean @ basis if self.center else image

    # Checkpoints

    def facts(self) -> dict[str, Any]:
        """The configuration as plain numbers and strings."""
        own = attributes(self, "d", "center", "unit", "half_life", "seed")
        own |= {} if self.missing == REFUSE else {"missing": self.missing}
        own |= {"missing_values": list(self.missing_values)} if self.missing_values else {}
        return own | {"algorithm": {"name": self.algorithm.name, **asdict(self.algorithm)}}  # type: ignore[call-overload]

    @classmethod
    def of(cls, facts: dict[str, Any]) -> Model:
        """The model that ``facts`` describe."""
        options = dict(facts["algorithm"])
        algorithm = STREAM_REGISTRY[options.pop("name")](**options)
        marks = tuple(facts.get("missing_values", ()))
        return cls(**(facts | {"algorithm": algorithm, "missing_values": marks}))

    def saved(self, state: ModelState) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Arrays and plain numbers: all that a checkpoint holds of a state."""
        arrays, scalars = state_fields(state.inner)
        own, numbers = state_fields(replace(state, inner=None))
        scalars, numbers = (  # without what is not there: inner, gaps, weights
            {name: value for name, value in table.items() if value is not None} for table in (scalars, numbers)
        )
        return {f"inner_{name}": array for name, array in arrays.items()} | own, {"inner": scalars, **numbers}

    def load(self, arrays: dict[str, np.ndarray], numbers: dict[str, Any]) -> ModelState:
        """The state of a checkpoint."""
        prefix = "inner_"
        inner = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
        own = {name: array for name, array in arrays.items() if not name.startswith(prefix)}
        return ModelState(**(numbers | own | {"inner": self.algorithm.load(inner, numbers["inner"])}))


def _mean_of_first(running: RunningMean, state: ModelState, level: Any, seen: Any) -> RunningMean:
    """The mean, of a column that has its first values now that of these: rows before it have counted as the mean."""
    if level is None or state.seen is None or not state.rows:
        return running
    new = (state.seen == 0) & (seen > 0)
    return running._replace(mean=np.where(new, level, running.mean), rest=np.where(new, 0.0, running.rest))


def moderate(rows: Block) -> Block:
    """The rows, if numbers of the size of their squares can be added up."""
    square = float(np.vdot(rows, rows)) / len(rows)
    if not square <= LARGEST_SQUARE:
        raise BadInputError(
            f"rows of values up to {np.abs(rows).max():.0e}: their squares are too large to be added; divide all "
            "rows by the same number, or leave out wrong rows"
        )
    return rows
