"""A kind of run: the smallest and the largest entry of each column, a step for each unit of rows."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from npmdask.core.algorithms.stopping import Outcome
from npmdask.core.checkpoint.store import CHECKPOINT_FORMAT, RunStore, not_finished
from npmdask.core.runs.restore import bind_spec
from npmdask.core.storage.readers.dense import ReadStats
from npmdask.core.storage.source import open_source
from npmdask.manage.kinds import RunKind
from npmdask.report import Report, Table
from npmdask.report.blocks import section


@dataclass(frozen=True)
class Asked:
    """The table "ranges" of run.json."""

    absolute: bool


@dataclass(frozen=True, kw_only=True)
class Ranges:
    """The answer."""

    low: np.ndarray
    high: np.ndarray
    store: str
    outcome: Outcome
    assurance: str = "Exact: entries as they are stored."
    warnings: tuple[str, ...] = ()
    answered: bool = True


class RangesKind(RunKind):
    name = "ranges"

    def gave(self, answer: Any) -> bool:
        return isinstance(answer, Ranges)

    def begin(self, path: str, store: str, *, absolute: bool) -> Ranges:
        source = open_source(path, "samples")
        data = {"kind": self.name, "fingerprint": source.fingerprint, "shape": list(source.shape)}
        version = {"npmdask": "robust 1.0", "checkpoint_format": CHECKPOINT_FORMAT}
        tables = {name: {} for name in ("algorithm", "mechanism", "stop", "run")}
        wanted = {"data": data, **tables, "version": version, "ranges": {"absolute": absolute}}
        with RunStore(store) as held:
            bind_spec(wanted, held, {}, once={"source": source.path})
            return self._go_on(held, source)

    def resume(self, store: Path, changes: Mapping[str, Any], observer: Any) -> Ranges:
        with RunStore(store) as held:
            return self._go_on(held, open_source((held.read_spec() or {})["source"], "samples"))

    def _go_on(self, held: RunStore, source: Any) -> Ranges:
        absolute, last = (held.read_spec() or {})["ranges"]["absolute"], held.last_step()
        none = np.full(source.shape[1], np.inf)
        low, high, done = (none, -none, 0) if last is None else (last[0]["low"], last[0]["high"], last[1]["units"])
        for unit in range(done, source.reader.units):
            for _, tile in source.reader.tiles(unit, ReadStats()):
                for where, values in tile:
                    seen = np.abs(values) if absolute else values
                    low[where] = np.minimum(low[where], seen.min(axis=0))
                    high[where] = np.maximum(high[where], seen.max(axis=0))
            held.commit_step(unit + 1, {"low": low, "high": high}, {"units": unit + 1})
        outcome = {"name": "converged", "sentence": f"all {source.shape[0]} rows are seen"}
        held.write_part("result", {"low": low, "high": high}, {"outcome": outcome})
        return Ranges(low=low, high=high, store=held.place, outcome=Outcome(**outcome))

    def answer(self, store: Path) -> dict[str, np.ndarray]:
        if (found := RunStore(store).read_part("result")) is None:
            raise not_finished(store)
        return found[0]

    def summary(self, answer: Ranges) -> dict[str, Any]:
        return {"low": answer.low.tolist(), "high": answer.high.tolist()}

    def inspect(self, run: RunStore, spec: Mapping[str, Any]) -> dict[str, Any]:
        state = "finished" if run.part_meta("result") else "unfinished"
        return {"state": state, "source": spec["source"], **spec["ranges"]}

    def report(self, run: RunStore, spec: Mapping[str, Any]) -> Report:
        found = self.answer(run.path)
        rows = tuple(
            zip(map(str, range(len(found["low"]))), found["low"].tolist(), found["high"].tolist(), strict=True)
        )
        columns = section("Columns", Table(rows=rows, head=("column", "smallest", "largest")))
        said = dict(outcome="finished", good=True, error_statement="Exact.")
        return Report(title=f"Ranges of {spec['source']}", sections=(columns,), **said)


RANGES = RangesKind()
