"""The loop over batches: read -> absorb -> measure -> commit state and position as one.

It is a second loop beside ``npmdask.core.runs.loop``, whose step is a pass over all data and a commit: here a step is a
batch of a few megabytes and takes less than a commit, so that only every so often one is made (docs/decisions/0025).
What was read after it is read again; the state is a function of the rows alone, and so are the bits of the result.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

from npmdask.core.algorithms import StreamInfo, StreamResult
from npmdask.core.algorithms.stopping import Outcome
from npmdask.core.aspects import keep_aspects
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.execution.memory import MemoryPlan, tree_rss
from npmdask.core.numerics.units import attributes
from npmdask.core.runs.components import labels_of_run
from npmdask.core.runs.observers import Observer
from npmdask.core.runs.resources import Resources
from npmdask.core.runs.restore import bind_spec
from npmdask.core.runs.session import Session
from npmdask.core.storage.labels import Labels
from npmdask.core.storage.names import matched
from npmdask.errors import BadInputError, NpmdaskError, TooFewRowsError
from npmdask.streaming.algorithms.model import REFUSE, ModelState
from npmdask.streaming.memory import plan_stream
from npmdask.streaming.metrics import Measures, last_step, measure_model
from npmdask.streaming.problem import StreamProblem
from npmdask.streaming.solution import StreamSolution
from npmdask.streaming.source import said_of, weights_of
from npmdask.streaming.sources import BatchedStream
from npmdask.streaming.statements import of_stream

TELL_SECONDS = 1.0  # between two signs of life
MANY = 0.05  # of all values are missing: said in a warning


class StreamDriver:
    """Takes a model in one store through all rows that there are now, from wherever the store is."""

    def __init__(self, problem: StreamProblem, store: RunStore, resources: Resources, observer: Observer) -> None:
        self.problem, self.store, self.resources = problem, store, resources
        self.session = Session(store, resources, observer)
        self.observer = self.session.observer
        self._stream = problem.opened.stream
        self._before = {"rows": 0, "skipped": 0}  # of sources that were used up before this one (standard input)
        self._measures = Measures.begin(problem.measure_rows)
        self._info = StreamInfo(rows=0, rank=0, steps=0)
        self._committed: tuple[int, int, bool] | None = None  # batches, rows skipped, whether the input had ended
        self._new = self._base = 0

    def run(self) -> StreamSolution:
        """Take every row that is there, commit, and return the answer.

        Raises
        ------
        RefusedError
            The store belongs to another stream or model, the source shrank or changed, or memory does not suffice.
        BadInputError
            Rows that cannot be used. All that was taken before is committed.
        TooFewRowsError
            Too few of them for an answer. They are committed.
        CommitError
            A checkpoint cannot be written; the last one is intact.
        """
        with self.session:
            warnings = self._bind()
            state = self._load()
            self._plan()
            state = self._absorb_all(state)
            answer, arrays = self._end(state)
        outcome = self._outcome(state, answer, f", {self._new} of them now")
        solution = StreamSolution(
            basis=arrays["basis"],
            values=arrays["values"],
            mean=arrays.get("mean"),
            outcome=outcome,
            **attributes(state, "rows", "rows_used", "steps"),
            skipped=self._skipped,
            new_rows=self._new,
            last=self._measures.history[-1],
            history=self._measures.history,
            seconds=self.session.seconds,
            peak_rss_bytes=self.session.peak,
            memory_limit_bytes=self.resources.memory,
            store=self.store.place,
            source=self.problem.opened.name,
            warnings=(*warnings, *said_of(self._stream), *self._gap_warnings(state)),
            moment=self.problem.model.algorithm.moment,
            facts=answer.facts,
            assurance=self._assurance(answer),
        )
        facts: dict[str, Any] = {"rows": state.rows, "new_rows": self._new, "outcome": outcome.name}
        if self._new:  # else it has learnt nothing, and what it took says nothing of the stream
            facts |= {"peak_rss": solution.peak_rss_bytes}
        self.session.log("end", seconds=solution.seconds, **facts)
        self.observer.on_stream_end(solution)
        return solution

    def _bind(self) -> list[str]:
        opened = self.problem.opened
        here = {"resources": asdict(self.resources), "stream": self.problem.again() | {"named": opened.named}}
        keep = partial(keep_aspects, self.store, (opened.weights,))
        told = bind_spec(self.problem.spec(), self.store, here | {"source": opened.name}, once=opened.said, keep=keep)
        if isinstance(self._stream, BatchedStream) and (labels := labels_of_run(self.store)) is not None:
            self._stream.follow(partial(matched, labels.columns, of_known="the stream so far"))
        return [*opened.said.get("notes", ()), *told]

    def _plan(self) -> None:
        self._base = tree_rss()
        self.session.tell_plan(self._memory_plan(self._info.rank))

    def _memory_plan(self, rank: int) -> MemoryPlan:
        p = self.problem
        limit, rows = self.resources.memory, p.request.batch_rows
        return plan_stream(p.model, rows, p.beside_bytes, limit=limit, base=self._base, rank=rank)

    def _load(self) -> ModelState:
        """The state after the last commit with the stream sought to its position, or the start."""
        last, model = self.store.last_step(), self.problem.model
        if last is None:
            if self._stream.rows_read or self._stream.skipped:
                raise BadInputError(
                    f"{self.problem.opened.name} has already been read from, so its first rows would be missing from "
                    "the model: open it again"
                )
            return model.init()
        arrays, meta = last
        self._measures = Measures.load(arrays, meta["measures"])
        self._info = StreamInfo(**meta["info"])
        state = model.load({name: array for name, array in arrays.items() if name != "measured_basis"}, meta["state"])
        if meta["ended"] and self.problem.opened.forwards:
            self._before = {"rows": state.rows, "skipped": meta["skipped"]}  # what comes now is new
        else:
            self._before = meta["before"]
            self._stream.seek(meta["position"])
        self._committed = (state.batches, meta["skipped"], meta["ended"])
        return state

    def _absorb_all(self, state: ModelState) -> ModelState:
        """All rows; what goes wrong with one of them loses none of those before it."""
        holder = [state]
        try:
            self._absorb_batches(holder)
        except NpmdaskError:
            if self._has_all_rows(holder[0]):  # not so where the model refused rows that were read
                self._commit(holder[0], ended=False)
            raise
        self._measured(holder[0])
        self._commit(holder[0], ended=not self.problem.opened.forwards)
        return holder[0]

    def _absorb_batches(self, holder: list[ModelState]) -> None:
        """The loop. ``holder``: the state after the last whole batch."""
        model, tell, commit = self.problem.model, Stopwatch(TELL_SECONDS), Stopwatch(self.resources.commit_seconds)
        self.observer.on_begin(holder[0].rows + self._skipped, self.problem.opened.rows, "row")
        while (batch := self._stream.read(model.wanted(holder[0], self.problem.request.batch_rows))) is not None:
            holder[0], info = model.absorb(holder[0], batch, weights_of(self._stream))
            self._memory_plan(info.rank)
            del batch  # or it would be held while the next one is read
            self._new += info.rows
            self._info = last_step(self._info, info)
            if holder[0].rows >= self._measures.due:
                self._measured(holder[0])
            if tell.is_time():
                self.observer.on_rows(holder[0].rows, self._skipped, self._new / tell.total)
            if commit.is_time():
                self._commit(holder[0], ended=False)

    @property
    def _skipped(self) -> int:
        return self._before["skipped"] + self._stream.skipped

    def _measured(self, state: ModelState) -> None:
        """A measurement, unless the last one was of the same rows."""
        history, p = self._measures.history, self.problem
        if not state.rows or (history and history[-1].rows == state.rows):
            return
        found, basis = measure_model(
            p.model, state, self._info, before=self._measures.basis, truth=p.truth, held_out=p.held_out
        )
        self._measures = self._measures.add(found, basis)
        self.session.log("measured", rows=state.rows, new_rows=self._new, rss=tree_rss())
        self.observer.on_measurement(found)

    def _commit(self, state: ModelState, *, ended: bool) -> None:
        """State and position as one. Raises AssertionError if a row was lost or used twice, before that is written."""
        assert self._has_all_rows(state), "rows given and rows taken differ"
        now = (state.batches, self._skipped)
        if not state.rows or self._committed in ((*now, True), (*now, ended)):
            return
        if (axes := getattr(self._stream, "axes", ())) and self.store.part_meta("labels") is None:
            self.store.write_part("labels", *Labels(columns=axes).bundle())
        arrays, numbers = self.problem.model.saved(state)
        kept, measures = self._measures.saved()
        meta = {
            "state": numbers,
            "measures": measures,
            "info": asdict(self._info),
            "position": self._stream.position,
            "before": self._before,
            "skipped": self._skipped,
            "ended": ended,
            "model": self.problem.model.facts(),
        }
        self.session.commit(state.batches, arrays | kept, meta)
        self._committed = (*now, ended)

    def _has_all_rows(self, state: ModelState) -> bool:
        return state.rows == self._before["rows"] + self._stream.rows_read

    def _end(self, state: ModelState) -> tuple[StreamResult, dict[str, Any]]:
        """The answer. An input has ended only when it is kept: a pipe that is killed before sends all again."""
        try:
            answer = self._answer(state)
        except BadInputError:
            self._commit(state, ended=True)
            raise
        arrays = {"basis": answer.vectors, "values": answer.values}
        arrays |= {"mean": state.mean} if self.problem.model.center else {}
        self._keep(answer, arrays, state)
        self._commit(state, ended=True)
        return answer, arrays

    def _answer(self, state: ModelState) -> StreamResult:
        if not state.rows:
            raise TooFewRowsError(f"{self.problem.opened.name} holds no rows yet: run again when there are some")
        try:
            return self.problem.model.answer(state)
        except BadInputError as error:
            raise TooFewRowsError(f"{error}; the {state.rows} rows so far are kept in {self.store.place}") from None

    def _outcome(self, state: ModelState, answer: StreamResult, now: str = "") -> Outcome:
        waiting = state.rows - state.rows_used
        said = [f"{state.rows} rows were taken{now}"]  # nothing of this call where it is kept: a kill must not show
        if answer.said:
            said.append(answer.said)
        if waiting:
            said.append(f"the last {waiting} wait for their step")
        if self.problem.opened.weights is not None:
            said.append("each counted by its weight")
        if self._skipped:
            refused = self.problem.request.missing == REFUSE
            why = "they were not finite" if refused else "they had no value or an infinity"
            why += "" if self.problem.opened.weights is None else ", or weigh nothing"
            said.append(f"{self._skipped} were left out because {why}")
        if self.problem.opened.grows:
            said.append("run again to take what comes next")
            return Outcome(name="up_to_date", sentence="up to date: " + "; ".join(said))
        return Outcome(name="exhausted", sentence="the stream has ended: " + "; ".join(said))

    def _gap_warnings(self, state: ModelState) -> tuple[str, ...]:
        """Return warnings about values where much was imputed."""
        if state.missing is None or state.missing.sum() < MANY * state.rows * len(state.missing):
            return ()
        share = state.missing.sum() / (state.rows * len(state.missing))
        return (
            f"{100 * share:.2g} % of the values are missing and were imputed by the model: values come out too small "
            "by about that share of the noise, and where values are missing because of what they are, the directions "
            "follow the pattern of the gaps",
        )

    def _assurance(self, answer: StreamResult) -> str:
        """Say how wrong the answer can be, by the measurements up to the last row."""
        measured, weights = self._measures.history, answer.values.tolist()
        return of_stream(self.problem.spec(), measured, weights, answer.facts).sentence

    def _keep(self, answer: StreamResult, arrays: dict[str, Any], state: ModelState) -> None:
        """The answer as a bundle for export and report, a function of the rows and not of the calls that took them."""
        history = [asdict(m) for m in self._measures.history]
        facts = {**attributes(state, "rows", "rows_used", "steps"), "skipped": self._skipped}
        meta = {"outcome": asdict(self._outcome(state, answer)), "history": history, **facts}
        meta |= {"facts": answer.facts} if answer.facts else {}
        meta["assurance"] = self._assurance(answer)
        kept = self.store.read_part("result")
        if kept is None or kept[1] != meta:  # a kill may have left that of an earlier call
            self.store.drop_part("result")
            self.store.write_part("result", arrays, meta)


class Stopwatch:
    """A clock that says when ``seconds`` have passed since it last did."""

    def __init__(self, seconds: float, now: Callable[[], float] = time.perf_counter) -> None:
        self._seconds, self._now = seconds, now
        self._start = self._last = now()

    @property
    def total(self) -> float:
        """Seconds since it was made."""
        return max(self._now() - self._start, 1e-9)

    def is_time(self) -> bool:
        """Say whether it is time; if so, the time begins again."""
        if self._now() - self._last < self._seconds:
            return False
        self._last = self._now()
        return True
