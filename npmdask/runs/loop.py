"""The driver: one loop, one data pass and one atomic commit a step.

charge -> query (one pass) -> release -> update -> commit -> yield. It yields only after the commit, so that
nothing outside (progress, plots, Prefect, a crash) can see what was not remembered.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from logging import WARNING
from math import inf
from typing import Any

import numpy as np

from npmdask.algorithms import Result, state_fields
from npmdask.algorithms.stopping import Outcome, StepView, remembered, view_of, views_of
from npmdask.checkpoint.logging import tell
from npmdask.checkpoint.store import RunStore
from npmdask.execution.executor import Executor, make_executor, single_threaded_blas
from npmdask.execution.memory_plan import MemoryPlan
from npmdask.execution.process_memory import PeakMeter, ProcessPeak, tree_rss
from npmdask.numerics.random import generator
from npmdask.numerics.subspaces import Block
from npmdask.operators import ColumnMoments, Operator
from npmdask.planning.plan import memory_of
from npmdask.planning.predicted_steps import Foresee, foresee, look_back, prediction_facts
from npmdask.planning.private_forecast import concerns, require_signal
from npmdask.runs.certify import assure, told, with_excess
from npmdask.runs.data_checks import (
    checksum_table,
    checksums_of,
    constant_columns,
    require_scale,
    require_symmetric,
    said_of,
)
from npmdask.runs.explained_variance import leading, settle, trace_of
from npmdask.runs.identity import bind
from npmdask.runs.left_vectors import left_is_whole, rebuild_left
from npmdask.runs.log_observer import watched
from npmdask.runs.observers import Observer
from npmdask.runs.passes import Passes
from npmdask.runs.problem import Problem
from npmdask.runs.redaction import only_public
from npmdask.runs.release import Custody, custody_of
from npmdask.runs.results import answer_arrays, in_units, recovery_of
from npmdask.runs.solution import Resources, Solution, Step
from npmdask.storage.readers.dense import SlabRecord
from npmdask.storage.readers.packed_symmetric import TriangleReader
from npmdask.storage.readers.packed_tensor import TensorReader
from npmdask.storage.source import Source
from npmdask.theory.certificates.statements import with_assurance
from npmdask.theory.diagnostics import max_sin_theta


class Driver:
    """Runs one problem in one store, from wherever the store is."""

    def __init__(self, problem: Problem, store: RunStore, resources: Resources, observer: Observer) -> None:
        self.problem, self.store, self.resources = problem, store, resources
        self.observer = watched(observer, store, private=problem.parts is not None)
        self.custody: Custody = custody_of(problem, store)
        self._history: list[dict[str, Any]] = []
        self._passes = Passes(store, resources, self.observer, secret=problem.parts is not None)
        self._trace: float | None = None
        self.foresee: Foresee = foresee  # a search has its own
        self._far: list[ProcessPeak] = []  # peaks of workers of a cluster
        self._concerns: tuple[str, ...] = ()  # of a private run
        self._warnings = [problem.start.warning] if problem.start and problem.start.warning else []

    def run(self) -> Solution:
        """Go on until the stopping rule says why not, and return the answer.

        Raises
        ------
        RefusedError
            The store belongs to other data, parameters or version; or memory does not suffice.
        BadInputError
            The data turn out to be missing, corrupt, not finite or not symmetric.
        CommitError
            A checkpoint cannot be written; the last one is intact.
        """
        start = time.perf_counter()
        with PeakMeter() as meter:
            self._warnings += bind(self.problem, self.store, self.resources)
            found = self.store.read_part("result")
            if found is None:
                for step in self.steps():
                    self.observer.on_step(step)
                found = self.store.read_part("result")
            elif "left_rotation" in found[0] and not left_is_whole(self.store.path, found[0]):
                self._rebuild_left(*found)
        assert found is not None
        self.custody.finish()
        solution = self._solution(*found, seconds=time.perf_counter() - start, peak=meter.peak)
        solution = replace(solution, peak_rss_by_process=(*meter.by_process, *self._far))
        if self.problem.private is not None:
            solution = only_public(solution, *found)
        elif self.problem.nodes is not None:
            spread, statement = found[0].get("value_stddevs"), found[1]["statement"]
            timed = solution.seconds if self.problem.parts is None else None  # follows the rows of the nodes
            said = (*solution.warnings, *statement.get("warnings", []))
            solution = replace(solution, statement=statement, value_stddevs=spread, seconds=timed, warnings=said)
        facts = {"outcome": solution.outcome.name, "seconds": solution.seconds, "peak_rss": solution.peak_rss_bytes}
        self._passes.log("end", **facts, processes=[asdict(p) for p in solution.peak_rss_by_process])
        self.observer.on_end(solution)
        return solution

    def survey(self) -> tuple[Source, float | None, tuple[int, int]]:
        """The source with statistics and checksums, its trace, and the cost: one pass, or none, and its bytes."""
        bind(self.problem, self.store, self.resources)
        with single_threaded_blas():
            plan = replace(self._plan(), workers=0)  # processes are not worth one pass
            executor = self._executor(plan)
            source = self._surveyed(executor)
            executor.close()
        self._operator(source, 0)
        return source, self._trace, (self._passes.count, self._passes.nbytes)

    def _executor(self, plan: MemoryPlan) -> Executor:
        path, asked = self.problem.source.path, self.resources
        return make_executor(plan, path, asked.cluster, asked.certificates)

    def steps(self) -> Iterator[Step]:
        """The loop: yields every step after its commit; leaves the result in the store."""
        with single_threaded_blas():
            plan = self._plan()  # before a state that may be larger than what is allowed
            state, views = self._load()
            outcome = self.problem.rule(views)
            if self.problem.parts is not None:
                self._concerns = concerns(self.problem)
            if self.problem.parts is not None and not views:
                require_signal(self.problem)
                for concern in self._concerns:
                    tell("warning", concern, run=self.store.path.name, level=WARNING, timeless=True)
            self.custody.open(self._history)
            executor = self._executor(plan)
            self._warnings += getattr(executor, "warnings", [])
            try:
                if not views:
                    self.foresee(self.problem, plan, executor, self.store.telemetry(), self._passes.log)
                operator = self._operator(self._surveyed(executor), state.step)
                while outcome is None:
                    query = self.problem.algorithm.query(state)
                    self.custody.begin(state.step + 1)
                    asked = operator.asked(query)
                    block = asked.prepare(query.block)
                    product, record, seconds = self._pass(f"step {state.step + 1}", executor, asked, block)
                    require_scale(self.problem, product, first=not self._history)
                    mechanism = self.problem.mechanism_of(asked, query)
                    released = mechanism.release(
                        product, block=block, entropy=self.custody.entropy, step=state.step + 1
                    )
                    said = self.custody.released(state.step + 1, mechanism, block, released)
                    state, info = self.problem.algorithm.update(state, released)
                    require_symmetric(self.problem, info.asymmetry, first=not self._history)
                    operator = self._hold_to_checksums(executor, operator, record, state.step)
                    view = view_of(state.step, info)
                    views.append(with_excess(self.problem, view, views, state, self._trace, operator))
                    outcome = self.problem.rule(views)
                    self._remember(views[-1], state, record, said)
                    arrays, scalars = state_fields(state)
                    self.store.commit_step(state.step, arrays, {"state": scalars, "history": self._history})
                    yield self._step(seconds if self.problem.parts is None else 0.0)  # times follow the rows
                result = self.problem.algorithm.finalize(state)
                self._answer(state, result, views[-1], outcome, executor, operator)
                if outcome.answered:
                    look_back(self.problem, result.values, self.store.telemetry(), self._passes.log)
                self._far = executor.peaks()
            finally:
                self.custody.close()
                executor.close()

    def _load(self) -> tuple[Any, list[StepView]]:
        """The state after the last commit, or the data-independent start (Figure 1, line 1)."""
        last, algorithm = self.store.last_step(), self.problem.algorithm
        if last is None:
            locked = self.problem.locked.result if self.problem.locked else None
            start = self.problem.start.basis if self.problem.start else None
            rng = generator(self.problem.request.seed, *self.problem.start_stream)
            return algorithm.init(self.problem.d, rng=rng, locked=locked, start=start), []
        arrays, meta = last
        self._history = meta["history"]
        return algorithm.load(arrays, meta["state"]), views_of(self._history)

    def _plan(self) -> MemoryPlan:
        plan = memory_of(self.problem, self.resources, tree_rss())
        self.observer.on_plan(plan)
        self._passes.log("plan", predicted_peak=plan.predicted_peak, **asdict(plan))
        return plan

    def _pass(
        self, label: str, executor: Executor, operator: Operator, block: Block
    ) -> tuple[Block, SlabRecord, float]:
        """One pass over the data: the only place where it is read."""
        every = inf if self.problem.private else self.resources.commit_seconds  # before the noise: never on disk
        return self._passes.run(label, executor, operator, block, every)

    def _surveyed(self, executor: Executor) -> Source:
        """The source, with column statistics and checksums from ingest, from an earlier pass, or from one now."""
        source = self.problem.source
        mean, std = source.column_mean, source.column_std
        part = self.store.read_part("survey")
        if part is None and self.problem.needs_moments:
            assert not isinstance(source.reader, TriangleReader | TensorReader)  # which are not centred
            moments = ColumnMoments(reader=source.reader)
            both, record, _ = self._pass("survey of the columns", executor, moments, np.zeros((1, 1)))
            self._keep_survey(record, {"column_mean": both[0], "column_std": both[1]})
            part = self.store.read_part("survey")
        if part is not None:
            arrays = part[0]
            mean, std = arrays.get("column_mean", mean), arrays.get("column_std", std)
            source = source.with_checksums(checksum_table(arrays))
        return replace(source, column_mean=mean, column_std=std)

    def _operator(self, source: Source, step: int) -> Operator:
        problem = replace(self.problem, source=source)
        operator = problem.operator(source.column_mean, source.column_std, first=step == 0)
        if problem.private is None and problem.lens is None:
            self._trace = trace_of(source, operator, whatever_it_takes=self.problem.share is not None)
        return operator

    def _hold_to_checksums(self, executor: Executor, operator: Operator, record: SlabRecord, step: int) -> Operator:
        """After the first pass over a source that was never ingested, later passes must see the same bytes.

        The operator is made as a resumed run makes it: its sums, and so the bits, must be the same.
        """
        if operator.reader.checksums is not None and step > 1:
            return operator
        if operator.reader.checksums is None:
            self._keep_survey(record, {})
        return self._operator(self._surveyed(executor), step)

    def _keep_survey(self, record: SlabRecord, statistics: dict[str, np.ndarray]) -> None:
        if not self.problem.source.registered:
            statistics = {**statistics, **checksums_of(record, sparse=self.problem.source.kind == "sparse")}
        self.store.write_part("survey", statistics, {})

    def _remember(self, view: StepView, state: Any, record: SlabRecord, said: dict[str, Any]) -> None:
        public = self.problem.private is not None  # nobody is told how many bytes, or how far from a known truth
        angle = self._angle(state.ritz_vectors) if self.problem.parts is None and self.problem.of_matrix else None
        self._history.append(
            said
            | remembered(view)
            | {
                "worst_residual": float(self.problem.rule.relative(view).max()),
                "max_sin_theta": angle,
                "bytes_read": 0 if public else record.bytes_read,
                "chunks": 0 if public else record.chunks,
            }
        )

    def _angle(self, vectors: Block) -> float | None:
        truth = self.problem.source.truth
        if truth is None or not self.problem.of_matrix:
            return None
        return max_sin_theta(vectors, truth.basis[:, : vectors.shape[1]].astype(np.float64))

    def _step(self, seconds: float) -> Step:
        last = self._history[-1]
        return Step(
            number=last["step"],
            values=in_units(self.problem.kind, np.array(last["ritz_values"])).tolist(),
            residual_norms=last["residual_norms"],
            worst_residual=last["worst_residual"],
            max_sin_theta=last["max_sin_theta"],
            precision=last["precision"],
            bytes_read=last["bytes_read"],
            chunks=last["chunks"],
            seconds=seconds,
        )

    def _answer(
        self, state: Any, result: Result, view: StepView, outcome: Outcome, executor: Executor, operator: Operator
    ) -> None:
        """Put the result into the units of the question and commit it."""
        parts, nodes = self.problem.parts, self.problem.nodes
        if parts is not None:
            p, source = self.problem.algorithm.iteration_rank, self.problem.source
            arrays, statement = parts.answer(source, state, result, self._history, p)
            statement["warnings"] = [*self._concerns, *statement.get("warnings", [])]
            meta = {"outcome": asdict(outcome), "history": self._history, "total_data_passes": len(self._history)}
            meta |= {"statement": statement, "facts": result.facts}
            return self.store.write_part("result", arrays, with_assurance(self.problem.kind, arrays, meta))

        def final_pass(final: Operator) -> tuple[Block, SlabRecord]:
            return self._pass("left singular vectors", executor, final, result.vectors)[:2]

        before = len(self._history) + self.problem.needs_moments
        before += self.problem.start.passes if self.problem.start else 0
        result, explained, outcome = settle(result, outcome, self._trace, self.problem.share)
        self.store.require_turn()  # the left vectors are written to the store as they are made
        arrays = answer_arrays(self.problem.kind, result, operator, self.store.path, final_pass)
        passes = before + ("left_rotation" in arrays)
        if "left_rotation" in arrays:
            outcome = self.problem.rule.unresolved(leading(view, len(result.values)), arrays["values"]) or outcome
        facts = {"outcome": asdict(outcome), "explained_share": explained, "facts": result.facts}
        if self.problem.source.kind == "tensor":
            facts["facts"] = result.facts | recovery_of(self.problem.source.truth, result)
        facts |= {} if nodes is None else {"statement": nodes.statement(view.step)}
        constant = constant_columns(self.problem, self._surveyed(executor))
        self._warnings += said_of(constant, centred=self.problem.request.center)
        facts |= told(outcome, assure(self.problem, result, self._history, self._trace, operator, len(constant)))
        meta = facts | {"history": self._history, "total_data_passes": passes}
        self.store.write_part("result", arrays, with_assurance(self.problem.kind, arrays, meta))

    def _rebuild_left(self, arrays: dict[str, np.ndarray], meta: dict[str, Any]) -> None:
        """Make chunks of the left vectors again that were lost or damaged after the end, in one pass.

        No part of this pass is kept: a chunk can be lost again before it is resumed.
        """

        def one_pass(final: Operator) -> tuple[Block, SlabRecord]:
            label = "left singular vectors again"
            return self._passes.run(label, executor, final, arrays["operator_vectors"], inf)[:2]

        with single_threaded_blas():
            executor = self._executor(self._plan())
            try:
                operator: Any = self._operator(self._surveyed(executor), len(meta["history"]))
                self.store.require_turn()
                rebuild_left(operator, arrays, self.store.path, one_pass)
                self._far = executor.peaks()
            finally:
                executor.close()
        self.store.write_part("result", arrays, meta)  # it is there: only carried on to an object store

    def _solution(self, arrays: dict[str, np.ndarray], meta: dict[str, Any], *, seconds: float, peak: int) -> Solution:
        return Solution(
            basis=arrays["basis"],
            values=arrays["values"],
            residual_norms=arrays["residual_norms"],
            outcome=Outcome(**meta["outcome"]),
            steps=len(meta["history"]),
            data_passes=self._passes.count,
            total_data_passes=meta["total_data_passes"],
            bytes_read=self._passes.nbytes,
            dataset_bytes=self.problem.source.reader.nbytes,
            seconds=seconds,
            peak_rss_bytes=peak,
            memory_limit_bytes=self.resources.memory,
            max_sin_theta=self._angle(arrays["basis"]),
            store=self.store.place,
            fingerprint=self.problem.source.fingerprint,
            warnings=tuple(self._warnings),
            target_rank=len(arrays["values"]),
            explained_share=meta.get("explained_share"),
            facts=meta.get("facts", {}),
            assurance=with_assurance(self.problem.kind, arrays, meta)["assurance"],
            certificate=meta.get("certificate"),
            prediction=prediction_facts(self.store.telemetry(), len(meta["history"])),
        )
