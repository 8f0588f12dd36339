"""The release of data that need no protection: products as they are, or with simulated noise, for studying it.

It surveys the columns where that is needed, holds later passes to the checksums of the first, makes the left singular
vectors, and says how wrong the answer can be. Which one a problem gets, its route says.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import numpy as np

from npmdask.core import features
from npmdask.core.algorithms import Query, Result, is_ours
from npmdask.core.algorithms.stopping import Outcome, StepView
from npmdask.core.certificates.statements import with_assurance
from npmdask.core.numerics.random import generator
from npmdask.core.numerics.subspaces import Block, max_sin_theta, orth, rayleigh_ritz
from npmdask.core.numerics.units import attributes
from npmdask.core.operators import ColumnMoments, Operator
from npmdask.core.operators.view import View
from npmdask.core.runs.checks import (
    constant_columns,
    constant_columns_warning,
    require_scale,
    require_symmetric_product,
)
from npmdask.core.runs.left_vectors import rebuild_left
from npmdask.core.runs.problem import Problem
from npmdask.core.runs.release import Answer, Released
from npmdask.core.runs.results import answer_arrays, assure, outcome_facts, with_excess
from npmdask.core.runs.session import Session
from npmdask.core.runs.stopping_rules import leading_view, settle, trace_of
from npmdask.core.storage.column_statistics import ColumnStatistics
from npmdask.core.storage.readers import ReadStats, checksum_table, checksums_of
from npmdask.core.storage.source import Source
from npmdask.errors import BadInputError


class PlainRelease:
    """A :class:`npmdask.core.runs.release.Release` of a problem whose products anybody may see.

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
        problem, store = self._problem, self._session.store
        whole = problem.derived is None and problem.rule.until_share is None  # not a stage of another run
        if whole and problem.source.labels is not None and store.part_meta("labels") is None:
            store.write_part("labels", *problem.source.labels.bundle())
        self._survey(len(history))

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
            said=self._history_facts(),
            bytes_read=self._record.bytes_read,
            chunks=self._record.chunks,
            seconds=seconds,
        )

    def _history_facts(self) -> dict[str, Any]:
        """Return what the history says of the product."""
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
            return self._problem.representation.of_pairs(view, self._problem.algorithm.finalize(state))
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
            result, view, outcome = self._verify_answer(result, view, outcome)
            passes += 1
        share = problem.share if isinstance(problem.share, float) else None
        result, explained, outcome = settle(result, outcome, self._trace, share)
        own = problem.representation
        real, pairs = result, None if own is None else own.closed(result)
        result = pairs or result
        arrays = self._in_units(result)
        passes += "left_rotation" in arrays
        if "left_rotation" in arrays:
            outcome = problem.rule.unresolved(leading_view(view, len(arrays["values"])), arrays["values"]) or outcome
        if (reading := problem.request.reading) is not None:
            self._session.warnings += reading.warnings(self._session.store, result.facts)
        constant = constant_columns(problem, self._source)
        self._session.warnings += constant_columns_warning(constant, centred=problem.request.center)
        assured = assure(problem, real, history, self._trace, self._operator, len(constant), pairs)
        meta = {
            "outcome": asdict(outcome),
            "explained_share": explained,
            "facts": self._facts_of(result),
            **self._answer_facts(view),
        }
        meta |= outcome_facts(outcome, assured) | {"history": history, "total_data_passes": passes}
        noticeable = not problem.request.center or self._source.labels is not None  # else there is nothing to note
        if noticeable and (note := features.found("notes", "a plain answer")) is not None:
            notes = note(problem, self._operator, self._source, real, arrays, self._session.store.path)
            meta |= {"notes": notes} if notes else {}
        return Answer(arrays=arrays, meta=with_assurance(problem.kind, arrays, meta))

    def _facts_of(self, result: Result) -> dict[str, Any]:
        """Return what the answer keeps of the result beside its arrays."""
        return dict(result.facts)

    def _data_passes(self, history: list[dict[str, Any]]) -> int:
        """Over the data, in all steps; of a stored Gram a step reads none."""
        return len(history) * bool(self._operator.pass_bytes)

    def _verify_answer(self, result: Result, view: StepView, outcome: Outcome) -> tuple[Result, StepView, Outcome]:
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

    def _answer_facts(self, view: StepView) -> dict[str, Any]:
        """Return what the answer says of those who hold the data."""
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
        source, store, reading = self._problem.source, self._session.store, self._problem.request.reading
        known, part = source.statistics, store.read_part("survey")
        if part is None and self._problem.needs_moments:
            view = View(row_weight=self._problem.request.seen(source).row_weight)
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
            source = source if reading is None else reading.surveyed(source, arrays)
        self._source = replace(source, statistics=known)
        self._operator = replace(self._problem, source=self._source).operator(known, first=step == 0)
        if reading is not None:
            reading.note(store, self._source, part)
        if self._problem.derived is None:
            whatever_it_takes = isinstance(self._problem.share, float)
            self._trace = trace_of(self._source, self._operator, whatever_it_takes=whatever_it_takes)

    def _keep_survey(self, record: ReadStats, statistics: dict[str, np.ndarray]) -> None:
        if not self._problem.source.registered:
            statistics = {**statistics, **checksums_of(record, sparse=self._problem.source.traits.sparse)}
        self._session.store.write_part("survey", statistics, {})
