"""The release of data that need no protection: products as they are, or with simulated noise, for studying it.

It surveys the columns where that is needed, holds later passes to the checksums of the first, makes the left singular
vectors, and says how wrong the answer can be. :class:`DiskRelease` makes products whose blocks lie on disk,
:class:`FactorRelease` and :class:`PairwiseRelease` those of operators that see gaps themselves; :func:`plain_release`
chooses among them.
"""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from pathlib import Path
from shutil import disk_usage
from typing import Any

import numpy as np

from npmdask.algorithms import PowerOnDisk, Query, Result, is_ours
from npmdask.algorithms.stopping import Outcome, StepView
from npmdask.core.certificates.statements import of_factor_model, with_assurance
from npmdask.core.runs.release import Answer, Released
from npmdask.errors import BadInputError, RefusedError
from npmdask.numerics.complex_parts import moduli
from npmdask.numerics.factor_model import ModelSums
from npmdask.numerics.random import generator
from npmdask.numerics.subspaces import BASES, Block, TurnedBlock, max_sin_theta, orth, rayleigh_ritz
from npmdask.numerics.units import attributes
from npmdask.operators import ColumnMoments, ColumnsByRange, Operator, RowsByRange, columns_of
from npmdask.operators.pairwise_gram import FACTS
from npmdask.operators.stored_gram import GramReader
from npmdask.operators.view import AS_STORED, View
from npmdask.runs.left_vectors import left_chunks, rebuild_left
from npmdask.runs.missing import filled, keep_missing, missing_warnings
from npmdask.runs.problem import CHOSEN, Problem
from npmdask.runs.results import answer_arrays, assure, closed, of_pairs, outcome_facts, recovery_of, with_excess
from npmdask.runs.session import Session
from npmdask.runs.stopping_rules import leading_view, settle, trace_of
from npmdask.storage.block_files import FOLDER, BlockFile, Workspace
from npmdask.storage.column_statistics import ColumnStatistics
from npmdask.storage.paths import is_url
from npmdask.storage.readers.dense import DenseReader, ReadStats, checksum_table, checksums_of
from npmdask.storage.readers.gaps import EM, PAIRWISE, GapReader
from npmdask.storage.source import Source

# What the first products show of the data, free of charge: too large or too small, not symmetric.
#
# Releases of private data do not ask: a refusal that depends on the data would tell of them.


SMALLEST, LARGEST = 1e-140, 1e140  # of products: beyond, squares and sums of them leave float64
NAMED = 5  # columns that a warning names


def require_scale(problem: Problem, product: Block, *, first: bool) -> None:
    """Residuals are norms: where the squares of a product leave float64, a residual would read as 0 or inf.

    A first product that is exactly zero is that of zeros, or of data so small that nothing is left of it. Then alone
    the entries are looked at again, to tell which.
    """
    size = float(np.abs(product).max())
    if size and not SMALLEST < size < LARGEST:
        raise BadInputError(_out_of_scale(f"products with {problem.source.path} are", size))
    if first and not size and problem.derived is None and problem.recipe is None:
        entry = _largest_entry(problem.source.reader)
        if 0 < entry < SMALLEST:
            raise BadInputError(_out_of_scale(f"the largest entry of {problem.source.path} is", entry))


def _out_of_scale(what: str, size: float) -> str:
    return (
        f"{what} of size {size:.0e}, whose squares float64 cannot hold: multiply the data by a constant that brings "
        "them near 1"
    )


def _largest_entry(reader: Any) -> float:
    """The size of the largest entry; or of the first that is not too small."""
    if isinstance(reader, GramReader):  # no rows are left to look at: entries too small to be squared have such means
        return float(np.abs(reader.sums.mean).max())
    largest = 0.0
    for values in (values for unit in range(reader.units) for values in reader.values(unit)):
        largest = max(largest, float(np.abs(values.astype(np.float64)).max(initial=0.0)))
        if largest >= SMALLEST:
            break
    return largest


def constant_columns(problem: Problem, source: Source) -> np.ndarray:
    """Numbers of the columns that are not scaled, as they count as constant, but may not be; ``source`` is surveyed.

    Deviations of exactly 0 are left out: those columns are constant (unless they are too small to be squared).
    """
    columns, plain = source.statistics, problem.recipe is None and problem.derived is None
    if not problem.request.scale or not plain or columns is None:
        return np.empty(0, np.int64)
    columns = columns.of_moduli(moduli) if source.parts == 2 else columns
    small = (columns.mean != 0) & (np.abs(columns.mean) < SMALLEST)
    return np.flatnonzero(~columns.varies & ((columns.deviation > 0) | small))[:: source.parts] // source.parts


def constant_columns_warning(constant: np.ndarray, *, centred: bool) -> list[str]:
    """A warning of these columns, if there are any."""
    if not len(constant):
        return []
    numbers = ", ".join(str(number) for number in constant[:NAMED])
    numbers += ", ..." if len(constant) > NAMED else ""
    one = len(constant) == 1
    which, they, vary = ("1 column counts", "it is", "it varies") if one else ("columns count", "they are", "they vary")
    said = f"{'' if one else f'{len(constant)} '}{which} as constant, up to rounding, and {they} not scaled "
    said += f"(number {numbers}, from 0)"
    if centred:
        said += f"; the answer is about the data without {'it' if one else 'them'}"
    return [f"{said}. If {vary}, subtract a constant from {'it' if one else 'them'} and ingest the data again"]


MOSTLY = 0.9  # of the first value that belongs to the mean, or of the square of a cosine: up to 18 degrees


def mean_of_rows(problem: Problem, operator: Any, mean: np.ndarray | None) -> np.ndarray | None:
    """The mean row as the operator sees it, times the root of what all rows weigh together; None where it plays no
    part, or is not known.

    Its square is what centring takes off the operator: ``A^T A = (A - 1 m^T)^T (A - 1 m^T) + n m m^T``.
    """
    source, request = problem.source, problem.request
    plain = problem.recipe is None and problem.derived is None and source.parts == 1
    if mean is None or not plain or request.center or source.kind not in ("samples", "matrix", "sparse"):
        return None
    seen = operator.view.on_columns(mean[:, None])[:, 0]
    return np.asarray(seen * math.sqrt(operator.weight * operator.view.weight_of_rows(source.shape[0])))


def mean_notes(
    problem: Problem,
    operator: Any,
    mean: np.ndarray | None,
    result: Result,
    arrays: dict[str, np.ndarray],
    folder: Path,
) -> list[str]:
    """A note that component 1 is nearly the mean of the columns, where :data:`MOSTLY` of its value belongs to the mean.

    With f the share of the first value that belongs to the mean, ``n (m . v)^2 / theta``, f is the squared cosine of
    the first left vector and the vector of ones. The other left vectors share what is left, at no larger value, so that
    the squared cosine of v and m is at least f: one threshold holds for the value and for the angle. Where the means
    are not known, the left vectors of a matrix, which were just written, tell f.
    """
    if not len(result.values) or not result.values[0] > 0 or problem.source.shape[0] == 1:
        return []
    seen = mean_of_rows(problem, operator, mean)
    if seen is None:
        left = "left_rotation" in arrays and not problem.request.center and problem.source.parts == 1
        bound = _cosine_by_left(operator.view, arrays, folder) if left and mean is None else 0.0
        return [mean_said("component 1 is nearly", bound, least=True)] if bound**2 >= MOSTLY else []
    if not seen.any():
        return []
    along, length = first_along(seen, result.vectors)
    if along**2 < MOSTLY * result.values[0]:
        return []
    cosine = along / float(np.linalg.norm(seen) * length)
    return [mean_said("component 1 is nearly", cosine)]


NEARLY_ALL, FEW_ROWS = 0.99, 8  # of the variance of a table, held by one of its columns; too few rows to count


def column_notes(problem: Problem, source: Source) -> list[str]:
    """Notes of columns with names that number the rows, or hold nearly all variance though nothing is scaled.

    Only numbers in equal steps have the mean and the deviation that first value, step and number of rows give.
    """
    columns, rows, notes = source.statistics, source.shape[0], list[str]()
    names = None if source.labels is None or not source.labels.columns else source.labels.columns[0].values
    plain = problem.request.weights is None and problem.recipe is None and source.parts == 1
    if columns is None or names is None or len(names) != len(columns.std) or names.dtype.kind != "U" or not plain:
        return []
    mean, std = columns.mean, columns.std
    variances = std**2 + (0 if problem.request.center else mean**2)
    top, total = int(np.argmax(variances)), variances.sum()
    if not problem.request.scale and len(names) > 2 and variances[top] > NEARLY_ALL * total:
        notes.append(
            f"column {str(names[top])!r} holds {math.floor(1e5 * variances[top] / total) / 1e3:g} % of the variance of "
            f"all {len(names)}: if it is a number of the row, or in other units, leave it out, or set scale = true"
        )
    if rows >= FEW_ROWS and isinstance(source.reader, DenseReader) and not isinstance(source.reader, GapReader):
        _, tile = next(iter(source.reader.tiles(0, ReadStats())))
        first, then = np.concatenate([np.float64(values[[0, min(1, len(values) - 1)]]) for _, values in tile], axis=1)
        step, half = then - first, (rows - 1) / 2
        counts = (step != 0) & np.isclose(std, np.abs(step) * math.sqrt((rows**2 - 1) / 12), rtol=1e-9, atol=0)
        counts &= np.abs(mean - first - step * half) <= 1e-9 * (np.abs(mean) + std)
        said = "counts the rows, in steps of {:g}: leave it out if it is their number"
        notes += [f"column {str(names[i])!r} {said.format(step[i])}" for i in np.flatnonzero(counts)[:NAMED]]
    return notes


def first_along(seen: np.ndarray, vectors: Any) -> tuple[float, float]:
    """``abs(seen @ v)`` of the first vector v and its length; of vectors that lie on disk some rows at a time."""
    if not isinstance(vectors, TurnedBlock):
        return abs(float(seen @ vectors[:, 0])), float(np.linalg.norm(vectors[:, 0]))
    parts = zip(vectors.block.tiles, vectors[:, :1].pieces(), strict=True)
    return abs(float(sum(seen[part] @ piece[:, 0] for part, piece in parts))), 1.0


def _cosine_by_left(view: View, arrays: dict[str, np.ndarray], folder: Path) -> float:
    """A lower bound of the cosine of component 1 and the mean, if f is large; else that root of f.

    The mean is ``sum s_i c_i v_i`` with c_i the cosines of the left vectors and the vector of ones, whose squares add
    up to 1; beyond the last that is known no value is larger.
    """
    height, sums, start = 0.0, np.zeros(len(arrays["left_rotation"])), 0
    for rows in left_chunks(folder, arrays):
        roots = np.ones(len(rows)) if view.row_weight is None else view.row_roots[start : start + len(rows)]
        sums, height, start = sums + roots @ rows, height + float(roots @ roots), start + len(rows)
    cosines, values = sums @ arrays["left_rotation"] / math.sqrt(height), arrays["values"]
    if cosines[0] ** 2 < MOSTLY:
        return abs(float(cosines[0]))
    squares = np.append((values * cosines) ** 2, values[-1] ** 2 * max(0.0, 1 - float(cosines @ cosines)))
    return float(values[0] * abs(cosines[0]) / math.sqrt(squares.sum()))


def mean_said(what: str, cosine: float, *, least: bool = False) -> str:
    """A sentence that ``what`` is the mean of the columns, and the remedy; the cosine is rounded down."""
    bound = f"{'at least ' if least else ''}{math.floor(1e4 * cosine) / 1e4:.4g}"
    return f"{what} the mean of the columns (cosine {bound}): set center = true for PCA"


def require_symmetric_product(problem: Problem, asymmetry: float, *, first: bool) -> None:
    """X^T (A X) is symmetric if A is. Only meaningful in the first step, without noise, in float64."""
    source, name = problem.source, problem.request.operator
    if (source.kind != "symmetric" and name is None) or not first or problem.mechanism.stddev:
        return
    machine_eps = np.finfo(source.reader.dtype).eps if source.reader.dtype.kind == "f" else 0.0
    allowed = max(8 * float(machine_eps), 1e-12)
    if asymmetry > allowed and name is not None:
        raise BadInputError(
            f"the operator {name!r} is not symmetric: X^T (A X) is asymmetric by {asymmetry:.1e} (relative; rounding "
            f"explains {allowed:.0e}). Correct it, or register (A + A.T) / 2"
        )
    mirrored = "A.conj().T" if source.parts == 2 else "A.T"
    if asymmetry > allowed:
        raise BadInputError(
            f"{source.path} is called symmetric but is not: X^T (A X) is asymmetric by {asymmetry:.1e} (relative; "
            f"rounding explains {allowed:.0e}). Use kind = 'matrix', or store (A + {mirrored}) / 2"
        )


# The checksums of a source that was never ingested: taken in the first pass, compared in all later ones.


class PlainRelease:
    """A :class:`npmdask.privacy.release.Release` of a problem whose products anybody may see.

    Parameters
    ----------
    problem : with its source, operator and mechanism.
    session : makes passes, and has the store of the run.
    """

    def __init__(self, problem: Problem, session: Session) -> None:
        self._problem, self._session = problem, session
        self._source = problem.source
        self._operator: Any = None  # made when the columns are surveyed
        self._trace: float | None = None
        self._history: list[dict[str, Any]] = []
        self._record = ReadStats()  # of the last pass
        self._moments: dict[str, np.ndarray] = {}  # of the columns, where that pass found them

    def open(self, history: list[dict[str, Any]]) -> None:
        """Survey the columns, if that is needed and not done yet."""
        self._history = history
        self._session.start(self._problem.source.path)
        if not history:
            self._session.observer.on_ready(self._problem, self._session)
        self._keep_labels()
        self._survey(len(history))

    def _keep_labels(self) -> None:
        """Keep the names of rows and columns, except for runs that are stages of another."""
        problem, store = self._problem, self._session.store
        whole = problem.derived is None and problem.rule.until_share is None
        if whole and problem.source.labels is not None and store.part_meta("labels") is None:
            store.write_part("labels", *problem.source.labels.bundle())

    def survey(self) -> tuple[Source, float | None]:
        """The source with statistics and checksums, and its trace: one pass, or none."""
        self._survey(0)
        return self._source, self._trace

    def product(self, query: Query, step: int) -> Released:
        """One product, with the noise of a simulation if there is any.

        Raises
        ------
        BadInputError
            The data turn out to be missing, corrupt, not finite, or out of scale.
        """
        problem, asked = self._problem, self._operator.asked(query)
        product, self._record, seconds = self._session.one_pass(f"step {step}", asked, query.block)
        if query.whole is not None:
            product, self._moments = asked.apart(product)
        require_scale(problem, product, first=not self._history)
        released = problem.mechanism.release(product, block=query.block, entropy=problem.request.seed, step=step)
        return Released(
            product=released,
            said=self._said(),
            bytes_read=self._record.bytes_read,
            chunks=self._record.chunks,
            seconds=seconds,
        )

    def _said(self) -> dict[str, Any]:
        """What the history says of the product."""
        return {}

    def check(self, step: int, asymmetry: float) -> None:
        """Hold the data to what was said of them, and all later passes to the checksums of the first.

        Raises
        ------
        BadInputError
            The matrix is called symmetric and is not.
        """
        require_symmetric_product(self._problem, asymmetry, first=not self._history)
        known = self._operator.reader.checksums is not None
        if known and step > 1:
            return
        # Kept, so that rows are scored without what they came with: also of a Gram, which may grow meanwhile.
        found = bool(self._moments) and (self._source.column_mean is None or not self._operator.pass_bytes)
        if found or not known:
            self._keep_survey(self._record, self._moments)
        # The operator is made as a resumed run makes it: its sums, and so the bits, must be the same.
        self._survey(step)

    def judged(self, view: StepView, before: list[StepView], state: Any) -> StepView:
        """The view with what is left over, where that is what ends the run; of complex data, of complex pairs."""
        if self._problem.source.parts == 2:
            return of_pairs(view, self._problem.algorithm.finalize(state))
        return with_excess(self._problem, view, before, state, self._trace, self._operator)

    def angle(self, vectors: Block | None) -> float | None:
        """The sine of the largest angle to the planted basis, of data that have one."""
        truth = self._problem.source.truth
        if truth is None or vectors is None or not self._problem.of_matrix:
            return None
        return max_sin_theta(vectors, truth.basis[:, : vectors.shape[1]].astype(np.float64))

    def answer(
        self, state: Any, result: Result, view: StepView, outcome: Outcome, history: list[dict[str, Any]]
    ) -> Answer:
        """The answer in the units of the question, with its certificate; of a matrix after one more pass."""
        problem = self._problem
        passes = self._data_passes(history)
        passes += problem.needs_moments + (problem.start.passes if problem.start else 0)
        if not is_ours(problem.algorithm):
            result, view, outcome = self._verified(result, view, outcome)
            passes += 1
        share = problem.share if isinstance(problem.share, float) else None
        result, explained, outcome = settle(result, outcome, self._trace, share)
        real, pairs = result, closed(result) if problem.source.parts == 2 else None
        result = pairs or result
        arrays = self._in_units(result)
        passes += "left_rotation" in arrays
        if "left_rotation" in arrays:
            outcome = problem.rule.unresolved(leading_view(view, len(arrays["values"])), arrays["values"]) or outcome
        found = result.facts
        if problem.source.kind == "tensor":
            found = found | recovery_of(problem.source.truth, result)
        self._session.warnings += missing_warnings(self._session.store, result.facts)
        constant = constant_columns(problem, self._source)
        self._session.warnings += constant_columns_warning(constant, centred=problem.request.center)
        assured = assure(problem, real, history, self._trace, self._operator, len(constant), pairs)
        meta = {"outcome": asdict(outcome), "explained_share": explained, "facts": found, **self._stated(view)}
        meta |= outcome_facts(outcome, assured) | {"history": history, "total_data_passes": passes}
        folder = self._session.store.path
        notes = mean_notes(problem, self._operator, self._source.column_mean, real, arrays, folder)
        notes += column_notes(problem, self._source)
        meta |= {"notes": notes} if notes else {}
        return Answer(arrays=arrays, meta=with_assurance(problem.kind, arrays, meta))

    def _data_passes(self, history: list[dict[str, Any]]) -> int:
        """Over the data, in all steps; of a stored Gram a step reads none."""
        return len(history) * bool(self._operator.pass_bytes)

    def _verified(self, result: Result, view: StepView, outcome: Outcome) -> tuple[Result, StepView, Outcome]:
        """The answer of an algorithm from outside, from one pass with its vectors: what it says is no evidence.

        Raises
        ------
        BadInputError
            Its vectors are not d x k finite numbers.
        """
        problem, name = self._problem, self._problem.algorithm.name
        locked = 0 if problem.locked is None else problem.locked.result.vectors.shape[1]
        k, given = problem.algorithm.target_rank + locked, np.asarray(result.vectors)
        if given.shape != (problem.d, k) or given.dtype.kind != "f" or not np.isfinite(given).all():
            raise BadInputError(
                f"{name} answers with vectors of shape {given.shape} and dtype {given.dtype}, where {problem.d} x {k} "
                "finite numbers are expected: fix the algorithm, or choose another"
            )
        basis = orth(given.astype(np.float64), generator(0, "verification"))
        product = self._session.one_pass("verification", self._operator, basis)[0]
        pairs = rayleigh_ritz(basis, product, k)
        view = replace(view, ritz_values=pairs.values, residual_norms=pairs.residual_norms, missed=0.0)
        if outcome.converged:
            seen, worst = problem.rule([view]), float(problem.rule.relative(view).max())
            sentence = (
                f"not converged: {name} ended, and a pass with its vectors shows a relative residual of {worst:.1e} "
                f"(tol {problem.rule.tol:.1e})"
            )
            converged = seen is not None and seen.converged
            outcome = seen if seen is not None and converged else Outcome(name="stagnated", sentence=sentence)
        found = Result(facts=result.facts, **attributes(pairs, "values", "vectors", "products", "residual_norms"))
        return found, view, outcome

    def _stated(self, view: StepView) -> dict[str, Any]:
        """What the answer says of those who hold the data."""
        return {}

    def _in_units(self, result: Result) -> dict[str, np.ndarray]:
        store = self._session.store
        store.require_turn()  # the left vectors are written to the store as they are made

        def final_pass(final: Operator) -> tuple[Block, ReadStats]:
            return self._session.one_pass("left singular vectors", final, result.vectors)[:2]

        return answer_arrays(self._problem.kind, result, self._operator, store.path, final_pass)

    def rebuild_left(self, arrays: dict[str, np.ndarray], steps: int) -> None:
        """Make chunks of the left vectors again that were lost or damaged after the end, in one pass.

        No part of this pass is kept: a chunk can be lost again before it is resumed.
        """

        def one_pass(final: Operator) -> tuple[Block, ReadStats]:
            label = "left singular vectors again"
            return self._session.one_pass(label, final, arrays["operator_vectors"], keep=False)[:2]

        self._survey(steps)
        self._session.store.require_turn()
        rebuild_left(self._operator, arrays, self._session.store.path, one_pass)

    def settle(self) -> None:
        """Nothing was charged."""

    def shown(self, solution: Any, arrays: dict[str, np.ndarray], meta: dict[str, Any]) -> dict[str, Any]:
        """A solution as it is."""
        return {}

    def close(self) -> None:
        """Nothing is held."""

    def _survey(self, step: int) -> None:
        """The source with column statistics and checksums, from ingest, an earlier pass, or one now; its operator."""
        source, store = self._problem.source, self._session.store
        known, part = source.statistics, store.read_part("survey")
        if part is None and self._problem.needs_moments:
            weights = self._problem.request.weights
            view = AS_STORED if weights is None else View(row_weight=weights.rows)
            moments: Any = ColumnMoments(reader=source.reader, view=view)
            found, record, _ = self._session.one_pass("survey of the columns", moments, np.zeros((1, 1)))
            self._keep_survey(record, moments.named(found))
            part = store.read_part("survey")
        if part is not None:
            arrays = part[0]
            if "column_mean" in arrays:
                known = ColumnStatistics.of(arrays, source.shape[0], sparse=source.of_csr)
            table = checksum_table(arrays)  # None of a store that records its own
            source = source if table is None else source.with_checksums(table)
            source = filled(source, arrays)
        self._source = replace(source, statistics=known)
        self._operator = replace(self._problem, source=self._source).operator(known, first=step == 0)
        keep_missing(store, self._source, part, self._problem.request.missing_limit)
        if self._problem.derived is None:
            whatever_it_takes = isinstance(self._problem.share, float)
            self._trace = trace_of(self._source, self._operator, whatever_it_takes=whatever_it_takes)

    def _keep_survey(self, record: ReadStats, statistics: dict[str, np.ndarray]) -> None:
        if not self._problem.source.registered:
            statistics = {**statistics, **checksums_of(record, sparse=self._problem.source.kind == "sparse")}
        self._session.store.write_part("survey", statistics, {})


# Products whose blocks lie on disk, a step in two halves; what is done of a step survives a kill.
#
# docs/decisions/0057-blocks-on-disk.md says why it is done this way.


GB = 1e9


def disk_bytes(problem: Problem) -> int:
    """Bytes of disk that a run with its blocks there takes: bases, two products with rows, and the answer."""
    p, k = problem.algorithm.iteration_rank, problem.algorithm.target_rank
    return 8 * (BASES * problem.d * p + 2 * problem.source.shape[0] * p + problem.d * k)


def tiles_held(problem: Problem, held: int, threads: int = 1) -> int:
    """Tiles that each of ``threads`` has in memory of a block of which there is room for ``held`` bytes.

    One at least, and a part of one more: the task of a thread is planned with a tile.
    """
    file = BlockFile(Path(), (problem.d, problem.algorithm.iteration_rank))
    least = min(part.stop - part.start for part in file.tiles)
    return max(1, -(-min(held // (8 * least * file.shape[1]), len(file.tiles)) // threads))


def readings_of(problem: Problem, held: int, threads: int) -> int:
    """How often a step reads the data, with ``held`` bytes of a block in memory."""
    tiles = len(BlockFile(Path(), (problem.d, problem.algorithm.iteration_rank)).tiles)
    return sum(-(-tiles // tiles_held(problem, held, each)) for each in (1, threads))


def disk_said(problem: Problem, held: int, threads: int) -> str:
    """Where the blocks of a run lie, and what that costs, for people."""
    block = 8 * problem.d * problem.algorithm.iteration_rank
    each = readings_of(problem, held, threads)
    return (
        f"on disk: {BASES} of {block / GB:.3g} GB, {disk_bytes(problem) / GB:.3g} GB in all with products and the "
        f"answer; a step reads the data {each} times (with blocks in memory once), and a block about ten times"
    )


def require_disk(problem: Problem, session: Session) -> None:
    """Before anything is written: whether the disk of the run has room for its blocks.

    Raises
    ------
    RefusedError
        It has not, or the store is no folder of this machine.
    """
    if not isinstance(problem.algorithm, PowerOnDisk):
        return
    store, needed = session.store, disk_bytes(problem)
    if is_url(store.place):
        raise RefusedError(
            f"{store.place}: blocks that memory cannot hold lie on disk, in the folder of the run; give a folder of "
            "this machine as the store, or more memory"
        )
    taken = store.path / FOLDER
    free = disk_usage(store.path).free
    free += sum(path.stat().st_blocks * 512 for path in taken.iterdir()) if taken.is_dir() else 0
    if free < needed:
        raise RefusedError(
            f"the disk of {store.path} has {free / GB:.3g} GB free, and blocks on disk take {needed / GB:.3g} GB: give "
            "a store on a larger disk, more memory, or a smaller iteration_rank"
        )
    said = disk_said(problem, session.memory.held, session.memory.threads)
    session.warnings.append(f"blocks lie {said}; more memory makes the run faster")


class DiskRelease(PlainRelease):
    """Products of blocks on disk: Z = A X, a range of the columns after the other, and then A^T Z."""

    def __init__(self, problem: Problem, session: Session) -> None:
        super().__init__(problem, session)
        self._readings = 0  # of the data, in the last step

    def product(self, query: Query, step: int) -> Released:
        """The product, from where an earlier call was killed.

        Raises
        ------
        BadInputError
            The data turn out to be missing, corrupt, not finite, or out of scale.
        CommitError
            The disk is full.
        """
        memory, session, basis = self._session.memory, self._session, query.block
        assert isinstance(basis, BlockFile)
        space, before = Workspace(session.store.path, memory.threads), session.seconds
        product = space.basis(step, basis.shape)
        nothing = dict.fromkeys(("columns", "rows", "readings", "bytes", "chunks"), 0)
        self._record, done = ReadStats(), nothing | space.progress(step)
        if "largest" not in done:
            self._forward(space, basis, step, done)
        if "largest" not in done or self._operator.reader.checksums is None:  # which this pass takes
            self._back(space, basis, product, step, done)
        require_scale(self._problem, np.array(done["largest"]), first=not self._history)
        self._readings = done["readings"]
        released: Any = product
        return Released(
            product=released,
            said={"readings": self._readings},
            bytes_read=done["bytes"],
            chunks=done["chunks"],
            seconds=session.seconds - before,
        )

    def _forward(self, space: Workspace, basis: BlockFile, step: int, done: dict[str, Any]) -> None:
        """Z = A X. Each range of columns adds to what the one before it has written."""
        operator, tiles = self._operator, basis.tiles
        shape = operator.reader.shape[0], basis.shape[1]
        space.reserve([space.rows(number, shape) for number in range(2)])
        held = tiles_held(self._problem, self._session.memory.held)
        while done["columns"] < basis.shape[0]:
            first = next(number for number, part in enumerate(tiles) if part.start == done["columns"])
            block = _seen(operator.view, basis, range(first, min(first + held, len(tiles))))
            half = RowsByRange(
                **attributes(operator, "reader", "weight", "view"),
                rows=space.rows(done["rows"] + 1, shape),
                before=space.rows(done["rows"], shape) if first else None,
                start=done["columns"],
            )
            self._pass(f"step {step}, columns from {half.start}", half, block, done)
            done |= {"columns": half.start + len(block), "rows": done["rows"] + 1}
            del block  # before the next one is made
            space.note(step, done)

    def _back(self, space: Workspace, basis: BlockFile, product: BlockFile, step: int, done: dict[str, Any]) -> None:
        """``A^T Z``, in the place of the product."""
        operator, memory = self._operator, self._session.memory
        mean, along = operator.view.shift, np.zeros(basis.shape[1])
        for number, part in enumerate(basis.tiles if mean is not None else []):
            along += mean[part] @ _seen(operator.view, basis, range(number, number + 1))
        half = ColumnsByRange(
            **attributes(operator, "reader", "weight", "view"),
            rows=space.rows(done["rows"], (operator.reader.shape[0], basis.shape[1])),
            product=product,
            tiles_held=tiles_held(self._problem, memory.held, memory.threads),
            mean_product=None if mean is None else along,
        )
        forward = done.get("forward") or {name: done[name] for name in ("readings", "bytes", "chunks")}
        done |= forward | {"forward": forward}  # it may be made again
        sizes = self._pass(f"step {step}, back", half, np.zeros((1, 1)), done)
        done["largest"] = float(sizes.max())
        space.note(step, done)

    def _pass(self, label: str, half: Any, block: Block, done: dict[str, Any]) -> Block:
        """One pass, with what it costs among what is ``done``."""
        found, record, _ = self._session.one_pass(label, half, block)
        self._record = self._record.add(record)
        for name, count in (("readings", half.readings), ("bytes", record.bytes_read), ("chunks", record.chunks)):
            done[name] += count
        return found

    def _said(self) -> dict[str, Any]:
        return {"readings": self._readings}

    def _data_passes(self, history: list[dict[str, Any]]) -> int:
        """Over the data, in all steps."""
        return sum(int(line["readings"]) for line in history)

    def _in_units(self, result: Result) -> dict[str, np.ndarray]:
        """As of blocks in memory, but without a second and a third copy of the vectors, for deflation."""
        arrays = answer_arrays(self._problem.kind, result, self._operator, self._session.store.path, _no_pass)
        return {name: array for name, array in arrays.items() if name not in ("operator_vectors", "operator_products")}

    def angle(self, vectors: Block | None) -> float | None:
        """The sine of the largest angle to the planted basis, some rows at a time."""
        truth = self._problem.source.truth
        if truth is None or vectors is None:
            return None
        target, inside = truth.basis[:, : vectors.shape[1]], np.zeros((vectors.shape[1],) * 2)
        tiles, square = BlockFile(Path(), vectors.shape).tiles, np.zeros_like(inside)
        for part in tiles:
            inside += vectors[part].T @ target[part]
        for part in tiles:
            rest = target[part] - vectors[part] @ inside
            square += rest.T @ rest
        return float(np.sqrt(max(np.linalg.eigvalsh(square)[-1], 0.0)))


def _no_pass(operator: Any) -> Any:
    raise AssertionError("a sparse matrix has no pass for left vectors")


def _seen(view: Any, basis: BlockFile, numbers: range) -> Block:
    """Some tiles of X as one array, as the view has columns."""
    parts = [basis.tiles[number] for number in numbers]
    found = np.empty((parts[-1].stop - parts[0].start, basis.shape[1]))
    for number, part in zip(numbers, parts, strict=True):
        rows = slice(part.start - parts[0].start, part.stop - parts[0].start)
        found[rows] = columns_of(view, part).on_columns(basis.tile(number))
    return found


# Runs whose operator sees gaps itself: EM of a factor model, and covariances of pairs of columns.


class FactorRelease(PlainRelease):
    """Sums of steps of EM, the likelihood beside them, and an answer without a certificate."""

    def product(self, query: Query, step: int) -> Released:
        """The sums of one pass; the history keeps how likely the model is, and how well it predicts.

        Raises
        ------
        BadInputError
            As of :class:`PlainRelease`; or nothing varies.
        """
        released = super().product(query, step)
        table = released.product
        layout = ModelSums(query.block.shape[1] - 1)
        if not table[:-2, layout.triangle + layout.rank + 1].any():
            raise BadInputError(f"no column of {self._problem.source.path} varies: there are no data to analyse")
        if step == 1:  # of no model yet
            return released
        facts = layout.facts(table)
        share = facts["held_error"] / facts["held_square"] if facts["held_square"] else None
        return replace(released, said={"log_likelihood": facts["log_likelihood"], "held_out_share": share})

    def answer(
        self, state: Any, result: Result, view: StepView, outcome: Outcome, history: list[dict[str, Any]]
    ) -> Answer:
        """The answer, with the mean of the model and its statement; shares are of the variance that the model has."""
        noise, reader = float(result.facts["noise"]), self._source.reader
        counted = np.ones(self._problem.d, bool)
        if isinstance(reader, GapReader) and reader.observed is not None:
            counted &= reader.observed > 0
        times = self._operator.view.on_columns(np.ones((self._problem.d, 1)))[:, 0]
        counted &= times > 0
        chosen = self._session.store.part_meta(CHOSEN)
        if chosen is not None:
            shares = chosen["shares"]
            result = replace(result, facts=result.facts | {"held_out_shares": shares})
            k, tried = len(result.values), ", ".join(f"{share:.3g} with {name}" for name, share in shares.items())
            said = f"{k} component{'s' * (k > 1)} chosen by entries held out, of whose variance is left over {tried}"
            outcome = replace(outcome, sentence=f"{outcome.sentence}; {said}")
        self._trace = float((result.values - noise).sum() + noise * counted.sum())
        made = super().answer(state, result, view, outcome, history)
        back = np.divide(state.found.mean, times, out=np.zeros_like(times), where=times > 0)
        arrays = {**made.arrays, "model_mean": self._operator.view.shift + back}
        assurance = of_factor_model(result.facts, len(result.values)).sentence
        return Answer(arrays=arrays, meta={**made.meta, "assurance": assurance})


SHIFT, PASSES = "pair_shift", "pair_passes"  # of the survey: what sums of pairs are about, and in how many passes
FAR = 100.0  # deviations of a column, by which the shift may be off its mean: 4 of 16 digits are lost then


class PairwiseRelease(PlainRelease):
    """The matrix of pairwise covariances: what its projection took off is kept beside it.

    Its one pass sums deviations from the means of the first rows, and finds the means on the way. Where these turn out
    to be far from that, as deviations go, it is made again about the means.
    """

    _facts: dict[str, float] | None = None

    def product(self, query: Query, step: int) -> Released:
        """The product; the history keeps ``FACTS`` of the matrix."""
        passes = self._passes
        released = super().product(query, step)
        if query.whole is None:
            return released
        if passes == 0 and self._source.column_mean is None and self._is_far():
            passes = 2
            self._keep_moments(self._moments["column_mean"], passes)
            self._survey(step)
            released = super().product(query, step)
        if passes == 2:  # what the first pass found has lost digits
            self._session.store.drop_part("survey")
        self._keep_moments(self._operator.view.shift, max(passes, 1))
        column = np.append(released.product[:, -1], np.zeros(len(FACTS)))
        self._facts = dict(zip(FACTS, (float(value) for value in column), strict=False))
        return replace(released, product=released.product[:, :-1], said=self._facts)

    @property
    def _kept(self) -> dict[str, np.ndarray]:
        """The survey, empty before there is one."""
        part = self._session.store.read_part("survey")
        return {} if part is None else part[0]

    @property
    def _passes(self) -> int:
        """Return the number of passes that the sums take; 0 before it is known."""
        return int(self._kept[PASSES][0]) if PASSES in self._kept else 0

    def _keep_moments(self, shift: Any, passes: int) -> None:
        """Keep what the pass found of the columns, unless it was recorded with the data."""
        self._moments |= {SHIFT: shift, PASSES: np.array([passes])}
        if self._problem.source.column_mean is None:
            self._keep_survey(self._record, self._moments)

    def _is_far(self) -> bool:
        """Say whether the sums of a column have lost digits, which sums about means do not."""
        found = ColumnStatistics.of(self._moments, self._source.shape[0], sparse=False)
        return bool((np.abs(found.mean - self._operator.view.shift) > FAR * found.deviation).any())

    def _survey(self, step: int) -> None:
        super()._survey(step)
        shift = self._kept.get(SHIFT, self._source.column_mean)
        if shift is None:
            shift = means_of_first_rows(self._source.reader)
        self._operator = replace(self._operator, view=replace(self._operator.view, shift=shift))
        if self._facts is None and self._history:
            self._facts = {name: self._history[0][name] for name in FACTS}
        self._trace = None if self._facts is None else self._facts["trace"]

    def answer(
        self, state: Any, result: Result, view: StepView, outcome: Outcome, history: list[dict[str, Any]]
    ) -> Answer:
        """The answer, with what is to be known of the matrix."""
        assert self._facts is not None
        facts = dict(self._facts)
        made = super().answer(state, replace(result, facts=result.facts | facts), view, outcome, history)
        total = made.meta["total_data_passes"] + (self._passes == 2)
        return replace(made, meta=made.meta | {"total_data_passes": total})


def means_of_first_rows(reader: Any) -> np.ndarray:
    """Means of the columns (d) over the values of the first rows; 0 where these have none."""
    _, tile = next(iter(reader.tiles(0, ReadStats())))
    rows = np.concatenate([np.asarray(values, np.float64) for _, values in tile], axis=1)
    there = np.isfinite(rows)
    return np.asarray(np.where(there, rows, 0.0).sum(axis=0) / np.maximum(there.sum(axis=0), 1))


OF_RULE: dict[str, type[PlainRelease]] = {EM: FactorRelease, PAIRWISE: PairwiseRelease}


def plain_release(problem: Problem, session: Session) -> PlainRelease:
    """The release of a problem that needs no protection, by its rule for missing values and where its blocks lie."""
    if isinstance(problem.algorithm, PowerOnDisk):
        return DiskRelease(problem, session)
    return OF_RULE.get(problem.request.missing, PlainRelease)(problem, session)
