"""Two fields to what varies together in both: the stages of the job, and the answer that it keeps.

::

    STORE              the job: its parameters, means and deviations of all columns, what they are called, its answer
    STORE/pairs        of maximum covariance: leading pairs of [[0, C], [C^T, 0]], by block Krylov
    STORE/left, right  of canonical correlations of leading components: those of either field
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from npmdask.core.algorithms import BlockKrylov
from npmdask.core.algorithms.stopping import DOUBLE_EPS, ResidualRule, StepView, default_tol
from npmdask.core.aspects import Extent, keep_aspects
from npmdask.core.certificates.wording import of_coupled
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.execution.memory import Chosen
from npmdask.core.numerics.domains import one_of
from npmdask.core.numerics.random import generator
from npmdask.core.numerics.subspaces import Block, fix_signs
from npmdask.core.numerics.units import attributes
from npmdask.core.operators import ColumnMoments, GramMatrix, Operator
from npmdask.core.operators.view import AS_STORED, View
from npmdask.core.runs.build import make_problem, prepared
from npmdask.core.runs.checks import constant_columns_warning
from npmdask.core.runs.mechanisms import REGISTRY as MECHANISMS
from npmdask.core.runs.observers import Observer
from npmdask.core.runs.problem import DEFAULT_STEPS, Problem, Request
from npmdask.core.runs.resources import Resources
from npmdask.core.runs.session import Session
from npmdask.core.runs.solution import Solution
from npmdask.core.runs.stages import job_spec, run_stage
from npmdask.core.storage.bundle import Arrays
from npmdask.core.storage.checksum import fingerprint
from npmdask.core.storage.column_statistics import ColumnStatistics
from npmdask.core.storage.labels import Labels
from npmdask.core.storage.names import matched
from npmdask.core.storage.readers import checksum_table
from npmdask.core.storage.readers.dense import DenseReader
from npmdask.core.storage.source import Source, open_source
from npmdask.dilation.operator import CrossCovariance
from npmdask.dilation.triplets import of_one_sign, triplets_of
from npmdask.errors import BadInputError
from npmdask.formats.ingest import row_names
from npmdask.manage.staged_job import answered
from npmdask.missing.gaps import DROP, MEAN, REFUSE, GapReader, as_nan
from npmdask.missing.rules import filled, find_gaps, keep_missing, missing_warnings
from npmdask.two_fields.canonical import Canonical, canonical_pairs, chance_correlation, correlation_error
from npmdask.two_fields.side_by_side import SideBySide
from npmdask.weights.aspect import Weights, find_weights


@dataclass(frozen=True, kw_only=True)
class Fields:
    """Two fields: each as it was opened, and both as one source of p + q columns, as passes read them.

    ``weights`` are of the rows, and of the columns of both, one after the other; None: nothing is weighted.
    """

    left: Source
    right: Source
    joined: Source
    weights: Weights | None

    @property
    def split(self) -> int:
        """p: how many columns of the first are read."""
        reader, p = self.joined.reader, self.left.shape[1]
        if isinstance(reader, GapReader) and reader.kept is not None:
            return int((reader.kept < p).sum())
        return p

    def weights_of(self, side: str) -> Weights | None:
        """Those of one field alone."""
        weights, p = self.weights, self.left.shape[1]
        if weights is None:
            return None
        part = slice(None, p) if side == "left" else slice(p, None)
        return Weights(rows=weights.rows, columns=None if weights.columns is None else weights.columns[part])


def open_fields(
    left: Any,
    right: Any,
    request: Request,
    *,
    dims: tuple[Any, Any] = (None, None),
    row_weights: Any = None,
    left_weights: Any = None,
    right_weights: Any = None,
    kept: Weights | None = None,
) -> Fields:
    """Open both fields; nothing is read but what says how they are stored.

    Parameters
    ----------
    left, right : what :func:`npmdask.core.storage.source.open_source` takes, dense, with the same rows.
    request : says whether missing values are filled, and columns centred.
    dims : the dimension of rows of each.
    row_weights, left_weights, right_weights : as :func:`npmdask.weights.aspect.find_weights` takes them; names of rows
        are looked up in the first field.
    kept : the weights that a run was begun with, instead of these three.

    Raises
    ------
    BadInputError
        Data without dense rows, other rows in one than in the other, or weights that do not fit.
    """
    gaps = request.reading is not None
    first, second = (open_source(given, None, dim, gaps=gaps) for given, dim in zip((left, right), dims, strict=True))
    for opened in (first, second):
        _require_rows(opened)
    first, second = (_with_row_names(*one) for one in ((first, left), (second, right)))
    said = _require_same_rows(first, second)
    weights = kept or _joined_weights(
        (first, second),
        find_weights(first, left, row_weights, left_weights),
        find_weights(second, right, None, right_weights),
    )
    readers: list[Any] = [as_nan(opened.reader) if gaps else opened.reader for opened in (first, second)]
    both = (first, second)
    joined = Source(
        path=f"{first.path} beside {second.path}",
        kind="samples",
        reader=SideBySide.of(*readers),
        fingerprint=joined_fingerprint(*both),
        registered=first.registered and second.registered,
        gaps=first.gaps or second.gaps,
        mark=first.mark or second.mark,
        notes=tuple(dict.fromkeys((*first.notes, *second.notes, *said))),
    )
    if (weights is None or weights.rows is None) and not joined.gaps:
        joined = replace(joined, statistics=_joined_statistics(both))
    return Fields(left=first, right=second, joined=prepared(joined, request), weights=weights)


def joined_fingerprint(left: Source, right: Source) -> str:
    """Compute that of both fields together, of all columns that are stored."""
    facts = []
    for opened in (left, right):
        reader = opened.reader.inner if isinstance(opened.reader, GapReader) else opened.reader
        facts.append({"shape": list(reader.shape), "fingerprint": opened.fingerprint})
    return fingerprint({"side by side": facts}, [])


def _joined_statistics(sources: tuple[Source, Source]) -> ColumnStatistics | None:
    """Join the recorded statistics of the columns of both; None where one has none."""
    parts = [source.statistics for source in sources if source.statistics is not None]
    if len(parts) < 2:
        return None
    mean, std, off = (np.concatenate([getattr(part, name) for part in parts]) for name in ("mean", "std", "off"))
    return ColumnStatistics(mean=mean, std=std, error=off, rows=sources[0].shape[0])


def _joined_weights(sources: tuple[Source, Source], first: Weights | None, second: Weights | None) -> Weights | None:
    """The weights of rows, and of the columns of both."""
    if first is None and second is None:
        return None
    columns = [None if weights is None else weights.columns for weights in (first, second)]
    for source, weights in zip(sources, (first, second), strict=True):
        if weights is not None:
            weights.require_fit(source.shape, source.path)
    if all(side is None for side in columns):
        return first
    ones = [np.ones(source.shape[1]) if side is None else side for source, side in zip(sources, columns, strict=True)]
    return Weights(rows=None if first is None else first.rows, columns=np.concatenate(ones))


def _require_rows(opened: Source) -> None:
    if opened.kind in ("samples", "matrix") and isinstance(opened.reader, DenseReader):
        return
    what = "sparse" if opened.reader.layout == "csr" else f"of kind {opened.kind}"
    raise BadInputError(f"{opened.path} is {what}, but two fields must be dense rows: give samples or dense matrices")


def _with_row_names(opened: Source, given: Any) -> Source:
    """The same, knowing what the rows of a table in a file are called, which its copy does not keep."""
    if not isinstance(given, str | Path) or (opened.labels is not None and opened.labels.rows):
        return opened
    if (called := row_names(given)) is None:
        return opened
    return replace(opened, labels=replace(opened.labels or Labels(), rows=(called,)))


def _require_same_rows(left: Source, right: Source) -> tuple[str, ...]:
    """Refuse fields of other rows, or of the same in another order; what is to be said where they are not named.

    Raises
    ------
    BadInputError
        Their numbers differ, or what they are called does.
    """
    if left.shape[0] != right.shape[0]:
        raise BadInputError(
            f"{left.path} has {left.shape[0]} rows and {right.path} has {right.shape[0]}: row i of both must belong "
            "to the same time or sample; keep the rows that both have (xarray.align(a, b, join='inner'))"
        )
    first, second = (source.labels.rows if source.labels is not None else () for source in (left, right))
    remedy = (
        "row i of both must belong to the same time or sample; bring both into the same order (xarray.align(a, b, "
        "join='inner'), df.loc[other.index])"
    )
    places, said = matched(first, second, right.path, left.path, what="rows", remedy=remedy)
    if places is not None:
        row = int(np.argmax(places != np.arange(len(places))))
        raise BadInputError(
            f"{right.path} has the rows of {left.path} in another order (row {row} of the first is row {places[row]} "
            f"there): {remedy}"
        )
    return said


MCA, CCA = KINDS = ("mca", "cca")
ANSWER = "result"
STAGES = ("pairs", "left", "right")
LABELS = ("left_labels", "right_labels")
AFTER_STAGES = ("measured", "scores")  # parts that are made of their answers
MORE = 10  # columns beside two for each mode: twice as many save hardly a pass, and take a third more memory
PROBES = 16  # random columns of either field, by which the covariance that no mode has is estimated
MEANS_OFF = 8 * DOUBLE_EPS  # of a mean, by rounding: rows less it are all off by as much


@dataclass(frozen=True, kw_only=True)
class CoupledRequest:
    """Parameters of a question about two fields: public, part of a run's identity.

    ``kind``: "mca" or "cca"; ``k`` modes. ``center``, ``scale``, ``missing`` as of :class:`Request`, for both fields.
    ``pcs``: of canonical correlations, how many leading components of the left and of the right field represent them;
    None: all of their columns. ``ridge``: see :func:`npmdask.two_fields.canonical.canonical_pairs`.
    """

    kind: str
    k: int
    center: bool = True
    scale: bool = False
    missing: str = REFUSE
    pcs: tuple[int, int] | None = None
    ridge: float = 0.0
    tol: float | None = None
    max_steps: int = DEFAULT_STEPS
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("k", "seed", "max_steps"):
            value, least = getattr(self, name), 0 if name == "seed" else 1
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
                raise BadInputError(f"{name} = {value!r} must be a whole number of at least {least}")
        one_of((REFUSE, DROP, MEAN), missing=self.missing)
        if self.tol is not None and not 0 < self.tol < 1:
            raise BadInputError(f"tol = {self.tol} must be between 0 and 1 (it is relative to each value)")
        if not 0 <= self.ridge < math.inf:
            raise BadInputError(
                f"ridge = {self.ridge} must be at least 0; 0.1 adds a tenth of the mean variance of a column"
            )
        if self.pcs is not None and (len(self.pcs) != 2 or any(type(n) is not int or n < self.k for n in self.pcs)):
            raise BadInputError(
                f"pcs = {self.pcs} must be two whole numbers of at least k = {self.k}: the numbers of leading "
                "components that represent the left and the right field"
            )

    def of_field(self, weights: Any = None) -> Request:
        """The request of a run on one field, or what passes over both must know."""
        asked = attributes(self, "center", "scale", "tol", "max_steps", "seed")
        return Request(target_rank=self.k, aspects=(find_gaps(missing=self.missing), weights), **asked)


def spec_of_fields(fields: Fields, request: CoupledRequest) -> dict[str, Any]:
    """The parameters that a store is bound to, by name."""
    asked = attributes(request, "pcs", "ridge") if request.kind == CCA else {}
    pcs = asked.get("pcs")
    data = {
        "fingerprint": fields.joined.fingerprint,
        "shape": list(fields.joined.shape),
        "columns": [fields.left.shape[1], fields.right.shape[1]],
        **attributes(request, "kind", "center", "scale", "missing"),
    }
    algorithm = {"name": request.kind, "target_rank": int(request.k), **asked}
    algorithm |= {} if pcs is None else {"pcs": list(pcs)}
    weights = {} if fields.weights is None else fields.weights.spec()
    return job_spec(data, algorithm, attributes(request, "tol", "max_steps"), int(request.seed)) | weights


def run_coupled(
    fields: Fields,
    request: CoupledRequest,
    store: str | Path,
    resources: Resources,
    observer: Observer,
) -> None:
    """Run the job in ``store``, or go on with it; one that is finished is left as it is.

    Raises
    ------
    BadInputError
        More modes than there can be.
    RefusedError
        The store belongs to other data or parameters; the memory does not suffice.
    """
    _require_modes(fields, request)
    with RunStore(store) as held:
        once = fields.left.kept | {"other_source": fields.right.path} | fields.joined.said
        once |= {} if fields.right.dim is None else {"other_dim": fields.right.dim}
        spec, keep = spec_of_fields(fields, request), partial(keep_aspects, held, (fields.weights,))
        solved = lambda session: _Job(session, fields, request).solved()  # noqa: E731
        answered(held, spec, ANSWER, solved, resources, observer, once=once, keep=keep)
        _keep_labels(held, fields)


def _keep_labels(held: RunStore, fields: Fields) -> None:
    """Keep what rows and columns of either field are called, for its report: the data may be gone by then."""
    for name, field in zip(LABELS, (fields.left, fields.right), strict=True):
        if field.labels is not None and held.part_meta(name) is None:
            held.write_part(name, *field.labels.bundle())


def _require_modes(fields: Fields, request: CoupledRequest) -> None:
    p, d = fields.split, fields.joined.shape[1]
    most = min(fields.joined.shape[0], p, d - p)
    if request.k > most:
        raise BadInputError(
            f"k = {request.k} modes are too many: the fields have {fields.joined.shape[0]} rows, and {p} and {d - p} "
            f"columns, so there are at most {most}"
        )
    for side, count, columns in zip(("left", "right"), request.pcs or (), (p, d - p), strict=False):
        if count > min(fields.joined.shape[0], columns):
            raise BadInputError(
                f"pcs = {request.pcs}: the {side} field is {fields.joined.shape[0]} x {columns} and has no {count} "
                "components"
            )


@dataclass(frozen=True, kw_only=True)
class CrossRule(ResidualRule):
    """Stopping rule of a cross-covariance: values and residuals below the rounding of its products count as zero.

    ``reach``: what sums of products can be of at most. Fields that do not vary together have a cross-covariance that
    is far below it, and of which all digits are rounding.
    """

    reach: float

    def _rounding(self, view: StepView) -> float:
        return max(super()._rounding(view), 4 * DOUBLE_EPS * self.d**0.5 * self.reach)

    def _converged(self, view: StepView) -> str:
        k, steps = len(view.ritz_values) // 2, f"{view.step} step{'s' * (view.step != 1)}"
        worst, rank = float(self.relative(view).max(initial=0.0)), int((~self._is_zero(view)).sum()) // 2
        said = f"converged after {steps}: every relative residual is at most {worst:.1e} (tol {self.tol:.1e})"
        if rank < k:
            said += f"; the fields have {rank} modes in common, fewer than the {k} asked for (a covariance below "
            said += f"{self._rounding(view):.1e} cannot be distinguished from zero)"
        return said

    def zeros(self, values: np.ndarray) -> np.ndarray:
        """Which of these values cannot be distinguished from zero."""
        largest = max(float(np.abs(values).max(initial=0.0)), self.reach)
        return np.asarray(np.abs(values) <= 4 * DOUBLE_EPS * self.d**0.5 * largest)


@dataclass(frozen=True, kw_only=True)
class CrossOperator:
    """Two fields side by side, seen as the dilation of their cross-covariance."""

    kind: ClassVar[str] = "symmetric"
    certified: ClassVar[bool] = True

    split: int
    weight: float
    view: View
    reach: float

    def dimension(self, source: Source) -> int:
        return int(source.shape[1])

    def operator(self, source: Source) -> CrossCovariance:
        return CrossCovariance(
            reader=source.reader, split=self.split, weight=self.weight, view=self.view, reach=self.reach
        )

    def spec(self) -> dict[str, Any]:
        return {"cross_covariance": self.split}


class _Job:
    """The stages of one job; ``solved`` gives the arrays of its answer and what is known of them."""

    def __init__(self, session: Session, fields: Fields, request: CoupledRequest) -> None:
        self._session, self._fields, self._request = session, fields, request
        self._split = fields.split

    def solved(self) -> tuple[Arrays, dict[str, Any]]:
        self._survey()
        solve = self._covariances if self._request.kind == MCA else self._correlations
        arrays, meta = solve()
        arrays |= {"column_mean": self._columns.mean} if self._request.center else {}
        arrays["column_std"] = self._columns.std  # what turns covariances with scores into correlations
        arrays |= {} if self._view.scale is None else {"column_scale": self._view.scale}
        of_gaps = missing_warnings(self._session.store, {})
        of_gaps = [f"both fields side by side, columns of the right one counted on: {said}" for said in of_gaps]
        said = [*self._source.notes, *meta["warnings"], *of_gaps]
        if self._request.scale:
            constant = np.flatnonzero(~self._columns.varies & (self._columns.deviation > 0))
            said += constant_columns_warning(constant, centred=self._request.center)
        return arrays, meta | {"warnings": said, "total_data_passes": meta["total_data_passes"] + self._surveyed}

    # What is known of the columns before anything is multiplied.

    def _survey(self) -> None:
        """Means and deviations of all columns, as recorded or from one pass; how passes see them."""
        session, request = self._session, self._request
        source, weights = self._fields.joined, self._fields.weights
        gappy = isinstance(source.reader, GapReader)
        rows = None if weights is None else weights.rows
        self._surveyed = int(source.column_mean is None)
        if self._surveyed:
            seen = AS_STORED if rows is None else View(row_weight=rows)
            moments = ColumnMoments(reader=source.reader, view=seen)
            survey = moments.named(session.gather("moments", source, moments, np.zeros((1, 1))))
            part = session.store.read_part("moments")
            assert part is not None
            table = checksum_table(part[0])
            source = source if table is None else source.with_checksums(table)
            source = replace(
                filled(source, survey), statistics=ColumnStatistics.of(survey, source.shape[0], sparse=False)
            )
            if gappy:
                if session.store.part_meta("survey") is None:
                    session.store.write_part("survey", survey, {})
                keep_missing(session.store, source, (survey, {}))
        self._source = source
        columns = source.statistics
        assert columns is not None
        mean, std, self._columns = columns.mean, columns.std, columns
        view = View.of_columns(columns, center=request.center, scale=request.scale)
        if weights is not None:
            view = weights.view(view, Extent.of(source))
        self._view, self._weight = view, 1.0 / view.weight_of_rows(source.shape[0])
        self._variances = self._of_sides(std**2 if request.center else std**2 + mean**2)
        self._cross = CrossOperator(split=self._split, weight=self._weight, view=view, reach=self._reach(mean))

    def _reach(self, mean: np.ndarray) -> float:
        """A bound of what is rounded: the deviations of both fields, and what their means are off, multiplied."""
        reach = math.sqrt(self._variances[0] * self._variances[1])
        away = self._of_sides(self._mean_errors(mean))
        return reach + math.sqrt(away[0] * away[1]) / (4 * DOUBLE_EPS * len(mean) ** 0.5)

    def _mean_errors(self, mean: np.ndarray) -> np.ndarray:
        """The squares of what the means of columns are off by, where they are taken off."""
        return np.asarray((MEANS_OFF * mean) ** 2 * self._request.center)

    def _viewed_squares(self, squares: np.ndarray) -> np.ndarray:
        """Squares of columns as they are seen."""
        view = self._view
        seen = squares / (1.0 if view.scale is None else view.scale) ** 2
        return seen if view.column_weight is None else seen * view.column_weight

    def _of_sides(self, squares: np.ndarray) -> tuple[float, float]:
        """Sums of squares of columns as they are seen, of either field."""
        seen = self._viewed_squares(squares)
        return float(seen[: self._split].sum()), float(seen[self._split :].sum())

    # Maximum covariance.

    def _covariances(self) -> tuple[Arrays, dict[str, Any]]:
        k, p, d = self._request.k, self._split, int(self._source.shape[1])
        tol = default_tol(self._source.reader.dtype) if self._request.tol is None else self._request.tol
        rule = CrossRule(tol=tol, max_steps=self._request.max_steps, d=d, reach=self._cross.reach)
        problem = Problem(
            source=self._source,
            request=Request(target_rank=2 * k, tol=tol, seed=self._request.seed),
            algorithm=BlockKrylov(target_rank=2 * k, iteration_rank=min(2 * k + MORE, d), tol=tol),
            mechanism=MECHANISMS["none"](),
            rule=rule,
            derived=self._cross,
            chosen=Chosen("k", each=2, beside=MORE),
        )
        said = "pairs of patterns: leading pairs of the cross-covariance"
        solution = run_stage(self._session, "pairs", said, problem)
        found = triplets_of(solution, p, k)
        there = ~rule.zeros(found.values)
        left, right = found.left * there, found.right * there
        signs = fix_signs(left)
        left, right = left * signs, right * signs
        measured = self._measured(left, right)
        values = np.where(there, np.maximum(measured.values, 0.0), 0.0)
        arrays = {
            "values": values,
            "left_basis": left,
            "right_basis": right,
            "residual_norms": measured.residual_norms * there,
            **measured.of_scores(),
        }
        assured = of_coupled(solution.certificate, of_one_sign(solution.values, k)[0], values)
        ended, more, _ = solution.outcome.sentence.partition("; continue with")
        ended = ended.replace("raise iteration_rank, or tol", "ask for more modes (k), or raise tol")
        ended += "; continue with `npmdask resume STORE --max-steps N`" if more else ""
        meta = {
            "outcome": {"name": solution.outcome.name, "sentence": ended},
            "assurance": assured.sentence + self._filled_text,
            "certificate": assured.numbers,
            "warnings": [],  # those of a stage are warned of once, by the process that runs it
            "variances": self._variances,
            "rest": measured.rest,
            "rest_error": measured.rest_error,
            "total_data_passes": solution.total_data_passes + 1,
        }
        return arrays, meta

    @property
    def _filled_text(self) -> str:
        """The end of an error statement of data whose gaps were filled."""
        return str(getattr(self._source.reader, "stated", ""))

    def _measured(self, left: Block, right: Block) -> _PatternMeasures:
        """One more pass with the patterns and random columns beside them: covariances, scores, what no mode has."""
        k, p = left.shape[1], len(left)
        rng = generator(self._request.seed, "probes")
        block = np.concatenate([np.concatenate([left, right]), rng.standard_normal((p + len(right), PROBES))], axis=1)
        operator = replace(self._cross.operator(self._source), moments=True)
        product = self._session.gather("measured", self._source, operator, block)
        of_both, moments = product[: len(block)], product[len(block) :].reshape(2 * block.shape[1], -1)
        return _PatternMeasures.of(block, of_both, moments, p, k)

    # Canonical correlations.

    def _correlations(self) -> tuple[Arrays, dict[str, Any]]:
        request, p, d = self._request, self._split, int(self._source.shape[1])
        warnings: list[str] = []
        off = self._mean_errors(self._columns.mean)
        if request.pcs is None:
            self._session.told.on_stage("moments of all columns of both fields")
            formed: Operator = GramMatrix(reader=self._source.reader, weight=self._weight, view=self._view)
            moments = self._session.gather("gram", self._source, formed, np.zeros((d, 0)))[:, :d]
            moments, split, passes, reduced = (moments + moments.T) / 2, p, 1, None
            rounding = self._viewed_squares(off)
        else:
            left, right = (self._components(side, n) for side, n in zip(("left", "right"), request.pcs, strict=True))
            for side, solution in (("left", left), ("right", right)):
                if not solution.converged:
                    warnings.append(f"{side} field: {solution.outcome.sentence}")
            moments, split = self._moments_of(left.basis, right.basis)
            passes, reduced = left.total_data_passes + right.total_data_passes + 1, (left, right)
            rounding = np.repeat(self._of_sides(off), (split, len(moments) - split))
        found = canonical_pairs(moments, split, request.k, request.ridge, rounding)
        weights = [found.left, found.right]
        loadings = [moments[:split, :split] @ found.left, moments[split:, split:] @ found.right]
        total, fractions = _shared_covariance(moments[:split, split:], weights, loadings)
        if reduced is not None:
            weights = [solution.basis @ w for solution, w in zip(reduced, weights, strict=True)]
            loadings = [solution.basis @ part for solution, part in zip(reduced, loadings, strict=True)]
        arrays = _of_pairs(found, moments, split, self._request.k)
        arrays |= {"left_basis": _padded(weights[0], request.k), "right_basis": _padded(weights[1], request.k)}
        arrays |= {"left_loadings": _padded(loadings[0], request.k), "right_loadings": _padded(loadings[1], request.k)}
        arrays["squared_covariance_fraction"] = np.pad(fractions, (0, request.k - len(fractions)))
        rows = self._source.shape[0]
        error = correlation_error(found, len(moments))
        chance = chance_correlation(*found.ranks, rows)
        warnings += _of_correlations(found, request, rows, chance)
        name, sentence = "converged", "correlations from the second moments of both fields"
        if reduced is not None and request.pcs is not None:
            done = all(solution.converged for solution in reduced)
            name = name if done else "max_steps"
            sentence = f"correlations of the {request.pcs[0]} and {request.pcs[1]} leading components of the fields"
            sentence = sentence if done else f"not converged: {sentence}, which have not settled"
        meta = {
            "outcome": {"name": name, "sentence": sentence},
            "assurance": _statement(found, error, request) + self._filled_text,
            "certificate": {"correlation_error": error, "ranks": list(found.ranks), "least_variance": found.least},
            "warnings": warnings,
            "variances": self._variances,
            "chance": chance,
            "total_squared_covariance": total,
            "total_data_passes": passes,
        }
        return arrays, meta

    def _components(self, side: str, count: int) -> Solution:
        """The leading components of one field: a stage of its own."""
        source = self._fields.left if side == "left" else self._fields.right
        source = replace(source, kind="samples")
        request = replace(self._request.of_field(self._fields.weights_of(side)), target_rank=count)
        said = f"leading components of the {side} field"
        return run_stage(self._session, side, said, make_problem(source, request))

    def _moments_of(self, left: Block, right: Block) -> tuple[np.ndarray, int]:
        """The second moments of the scores of the leading components of both, from one pass."""
        a, b = left.shape[1], right.shape[1]
        m = max(a, b)
        block = np.zeros((len(left) + len(right), m))
        block[: len(left), :a], block[len(left) :, :b] = left, right
        operator = replace(self._cross.operator(self._source), moments=True)
        product = self._session.gather("scores", self._source, operator, block)
        moments = product[len(block) :].reshape(2 * m, 2 * m)
        which = np.concatenate([np.arange(a), m + np.arange(b)])
        return moments[np.ix_(which, which)], a


def _shared_covariance(across: Block, weights: list[Block], loadings: list[Block]) -> tuple[float, np.ndarray]:
    """The sum of squares of a cross-covariance, and the share by which it falls where both fields are less what each of
    their scores explains (Swenson, J. Climate 28 (2015) 1016).
    """
    total, shares = float((across**2).sum()), []
    for w, v, a, b in zip(weights[0].T, weights[1].T, loadings[0].T, loadings[1].T, strict=True):
        a, b, both = a / (w @ a), b / (v @ b), w @ across @ v
        left = across - np.outer(a, w @ across) - np.outer(across @ v, b) + both * np.outer(a, b)
        shares.append(max(0.0, 1 - float((left**2).sum()) / (total or 1.0)))
    return total, np.array(shares)


def _padded(columns: Block, k: int) -> Block:
    """``columns``, filled up with zeros to k of them: fewer directions vary than pairs were asked for."""
    return np.pad(columns, ((0, 0), (0, k - columns.shape[1])))


def _of_pairs(found: Canonical, moments: np.ndarray, split: int, k: int) -> Arrays:
    """Correlations and score variances of canonical pairs, as the moments have them."""
    first, second = moments[:split, :split], moments[split:, split:]
    of_left = np.einsum("ij,ij->j", found.left, first @ found.left)
    of_right = np.einsum("ij,ij->j", found.right, second @ found.right)
    across = np.einsum("ij,ij->j", found.left, moments[:split, split:] @ found.right)
    more = k - len(found.values)
    return {
        "values": np.pad(np.minimum(found.values, 1.0), (0, more)),
        "left_variance": np.pad(of_left, (0, more)),
        "right_variance": np.pad(of_right, (0, more)),
        "correlations": np.pad(_ratio(across, np.sqrt(of_left * of_right)), (0, more), constant_values=np.nan),
    }


def _ratio(over: np.ndarray, under: np.ndarray) -> np.ndarray:
    """Correlations; not a number where a score does not vary."""
    out = np.full(len(over), np.nan)
    return np.clip(np.divide(over, under, out=out, where=under > 0), -1.0, 1.0)


def _of_correlations(found: Canonical, request: CoupledRequest, rows: int, chance: float) -> list[str]:
    """List warnings about correlations: directions that were left out, and what chance alone would give."""
    said = []
    for side, count in zip(("left", "right"), found.left_out, strict=True):
        if count:
            directions = "1 direction" if count == 1 else f"{count} directions"
            said.append(
                f"{directions} of the {side} field vary by less than 1e-9 of the largest variance and are left out: a "
                "correlation that lies in them is not found (columns that are nearly combinations of others)"
            )
    both = sum(found.ranks)
    if not request.ridge and both >= rows:
        said.append(
            f"the fields have {both} directions and {rows} rows: {both - rows + 1} correlations or more are 1 whatever "
            "the data say. Ask for correlations of a few leading components (pcs), or for regularised ones (ridge)"
        )
    elif not (request.ridge or any(found.left_out)) and len(found.values) and found.values[0] <= 1.05 * chance:
        said.append(
            f"fields that have nothing to do with each other, of so many directions ({found.ranks[0]} and "
            f"{found.ranks[1]}) in {rows} rows, would have a largest correlation of {chance:.2f}: these say no more"
        )
    if len(found.values) < request.k:
        said.append(f"there are {len(found.values)} pairs only: the others of the {request.k} asked for are empty")
    return said


def _statement(found: Canonical, error: float, request: CoupledRequest) -> str:
    """State how wrong correlations can be, in a sentence."""
    of = "the columns of both fields" if request.pcs is None else "the leading components, as they were found"
    if not len(found.values):
        return "One of the fields does not vary, so there are no correlations."
    if not error < 0.05:
        return (
            f"The error of the correlations cannot be bounded: some directions of {of} vary so little "
            "compared with the others that rounding decides. Use a ridge, or fewer components (pcs)."
        )
    kind = "regularised correlations" if request.ridge else "correlations"
    return (
        f"For these data the {kind} of {of} are off by at most {error:.1e} by rounding; rows drawn again would have "
        "other ones."
    )


@dataclass(frozen=True, kw_only=True)
class _PatternMeasures:
    """Results of a pass with patterns: covariances of their scores, residuals, moments, and what no mode has.

    ``rest``: an estimate of the squares of C less the modes, ``rest_error`` its standard error.
    """

    values: np.ndarray
    residual_norms: np.ndarray
    left_variance: np.ndarray
    right_variance: np.ndarray
    rest: float
    rest_error: float

    @classmethod
    def of(cls, block: Block, product: Block, moments: np.ndarray, p: int, k: int) -> _PatternMeasures:
        """From a block of k patterns and probes, its product, and the moments of its scores."""
        (u, v), (cv, cu) = (block[:p, :k], block[p:, :k]), (product[:p, :k], product[p:, :k])
        m = block.shape[1]
        values = np.diagonal(moments[:k, m : m + k]).copy()
        squares = np.square(cv - u * values).sum(axis=0) + np.square(cu - v * values).sum(axis=0)
        of_right = product[:p, k:] - cv @ (v.T @ block[p:, k:])  # C (I - V V^T) of random columns
        of_left = product[p:, k:] - cu @ (u.T @ block[:p, k:])
        sizes = np.concatenate([np.square(of_right).sum(axis=0), np.square(of_left).sum(axis=0)])
        return cls(
            values=values,
            residual_norms=np.sqrt(squares),
            left_variance=np.diagonal(moments)[:k].copy(),
            right_variance=np.diagonal(moments)[m : m + k].copy(),
            rest=float(sizes.mean()),
            rest_error=float(sizes.std(ddof=1) / math.sqrt(len(sizes))),
        )

    def of_scores(self) -> Arrays:
        """Variances of the scores, and their correlations."""
        spread = np.sqrt(self.left_variance * self.right_variance)
        return {
            "left_variance": self.left_variance,
            "right_variance": self.right_variance,
            "correlations": _ratio(self.values, spread),
        }
