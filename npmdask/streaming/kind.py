"""Streams: rows that come once, in their order, into a model that has an answer while it runs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from npmdask.core.checkpoint.store import RunStore
from npmdask.core.numerics.units import attributes, parse_memory
from npmdask.core.runs.observers import Observer
from npmdask.core.runs.progress import duration
from npmdask.errors import BadInputError, Later
from npmdask.manage.kinds import Keeps, RunKind, Spec, memory_text, named, values_text
from npmdask.manage.staged import TABLES as OF_JOBS

if TYPE_CHECKING:
    from npmdask.report import Report

TABLES = {
    "run": {
        **dict.fromkeys(("batch_rows", "measure_rows"), int),
        **dict.fromkeys(("half_life", "unit"), float | None),
        "held_out": str | None,
    },
    "algorithm": {
        **dict.fromkeys("block_rows horizon sketch_rows".split(), int),
        **dict.fromkeys(("batch_rows", "warm_rows"), int | None),
        **dict.fromkeys("batch_constant failure gap memory start warm_constant".split(), float),
        **dict.fromkeys(("eta0", "shift"), float | None),
        **dict.fromkeys(("optimistic", "shrinks"), bool),
        **dict.fromkeys(("test", "trace"), str),
        **OF_JOBS["algorithm"],  # of streams of tensors
    },
}
MEASURED = {
    2: ("rank", "mean_batch_rows", "explained", "suboptimality", "max_sin_theta", "change"),
    3: ("rank", "mean_batch_rows", "change"),
}

# Imported when they are used: with streams come the readers of every format, a tenth of a second that other runs save.
_streaming = Later("npmdask.streaming")
_solution = Later("npmdask.streaming.solution")


class StreamKind(RunKind):
    """A stream of rows, learnt from by one process."""

    name = "stream"
    may_change = frozenset({"memory"})
    tables = TABLES

    def gave(self, answer: Any) -> bool:

        return isinstance(answer, _streaming.StreamSolution)

    def refusal(self, store: Path) -> str:
        return f"{store} is of a stream, whose rows are used once, in their order: only memory may be given"

    def resume(self, store: Path, changes: Mapping[str, Any], observer: Observer | None) -> Any:
        """Take the rows after the last commit, and what is new."""

        return _streaming.resume_stream(store, memory=parse_memory(changes.get("memory")), observer=observer)

    def answer(self, store: Path) -> dict[str, np.ndarray]:
        """Read what was learnt up to the last commit, whether the stream is running, was killed, or ended."""

        return dict(_solution.answer_of(store))

    def summary(self, answer: Any) -> dict[str, Any]:

        return dict(_streaming.stream_summary(answer))

    def found(self, answer: Any) -> str:
        k, d = answer.basis.shape[1], answer.basis.shape[0]
        values = values_text(answer.values)
        return f"{k} component{'s'[: k != 1]} of {d:,} columns and {answer.rows:,} rows; values {values}"

    def explained(self, answer: Any) -> list[tuple[str, str]]:
        share = answer.last.explained
        return [] if share is None else [("explained", f"{100 * share:.3g} % of the variance of the last rows")]

    def cost(self, answer: Any, cost: Mapping[str, str]) -> Mapping[str, str]:
        rate = answer.rows_per_second
        fast = "" if rate is None else f": {answer.new_rows:,} new rows, {rate:,.0f} a second"
        return {
            "time": f"{duration(answer.seconds)}{fast}",
            "memory": memory_text(answer.peak_rss_bytes, answer.memory_limit_bytes),
        }

    def inspect(self, run: RunStore, spec: Spec) -> dict[str, Any]:
        """Say what the last commit holds, and the last measurement before that."""

        found = _solution.stream_status(run)
        if found is None:
            facts: dict[str, Any] = {"state": "unfinished", "outcome": "nothing is committed yet: run it again"}
            facts["rows"] = 0
        else:
            last, files = found.history[-1:], found.files
            facts = {
                "state": found.state,
                "outcome": found.sentence,
                **({"assurance": found.assurance} if found.assurance else {}),
                **attributes(found, "rows", "rows_waiting", "skipped", "steps"),
                **({} if files is None else {"files_done": files[0], "file_begun": files[1]}),
                "measured_after": last[0].rows if last else None,
                **{name: getattr(last[0], name) if last else None for name in MEASURED[found.moment]},
            }
        return facts | {"source": spec.get("source")} | named(spec, ("data", "algorithm", "run", "version"))

    def status(self, run: RunStore, spec: Spec, state: str) -> dict[str, Any]:
        """Say how many steps the model has; "waiting": all rows that there are are taken, and more may come."""
        facts = self.inspect(run, spec)
        if facts["state"] == "up to date" and state not in ("running", "hung"):
            answered = run.part_meta("result")
            state = "finished" if answered and answered["outcome"]["name"] == "exhausted" else "waiting"
        what = f"stream, {spec['algorithm']['name']}"
        return {"what": what, "state": state, "assurance": facts.get("assurance", ""), "step": facts.get("steps")}

    def report(self, run: RunStore, spec: Spec) -> Report:
        from npmdask.core.runs.components import labels_of_run
        from npmdask.core.storage.labels import Labels
        from npmdask.manage.data_report import components, over_data
        from npmdask.streaming.report import stream_report

        found, more = stream_report(run), []
        with suppress(BadInputError):  # too few rows so far
            basis = _solution.answer_of(run.path)["basis"]
            more = [components(basis, labels_of_run(run) or Labels(), None, None)] if basis.size else []
        return over_data(found, run, spec, int(spec["algorithm"]["target_rank"]), *more)

    def keeps(self, run: RunStore, spec: Spec) -> Keeps:
        """Keep everything: a stream goes on from its steps."""
        return "everything"


STREAM = StreamKind()
