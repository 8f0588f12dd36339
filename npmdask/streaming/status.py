"""How the stream in a store stands: what is committed and what it answers, without a look at its source."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from npmdask.algorithms import STREAM_REGISTRY
from npmdask.checkpoint.store import RunStore, folder_of
from npmdask.errors import BadInputError
from npmdask.streaming.metrics import Measurement
from npmdask.streaming.streaming_pca import StreamingPCA
from npmdask.theory.certificates.statements import of_stream


def is_stream(spec: dict[str, Any] | None) -> bool:
    """Whether these parameters of a store are those of a stream."""
    return spec is not None and spec["data"]["kind"] == "stream"


@dataclass(frozen=True, kw_only=True)
class Standing:
    """``spec``: parameters of the store. ``meta``: of its last commit; ``answered``: of its last answer, or None."""

    spec: dict[str, Any]
    meta: dict[str, Any]
    answered: dict[str, Any] | None

    @property
    def history(self) -> tuple[Measurement, ...]:
        """The measurements up to the commit, which may be none."""
        return tuple(Measurement(**found) for found in self.meta["measures"]["history"])

    @property
    def rows(self) -> int:
        return int(self.meta["state"]["rows"])

    @property
    def rows_waiting(self) -> int:
        return self.rows - int(self.meta["state"]["inner"]["rows"])

    @property
    def steps(self) -> int:
        return int(self.meta["state"]["inner"]["step"])

    @property
    def moment(self) -> int:
        """Of the rows, whose components are found: 2 (principal directions) or 3."""
        return int(STREAM_REGISTRY[self.spec["algorithm"]["name"]].moment)

    @property
    def facts(self) -> dict[str, Any]:
        """What else the last answer says, if it is of all rows."""
        return dict(self.answered.get("facts", {})) if self.current and self.answered is not None else {}

    @property
    def assurance(self) -> str:
        """How wrong the answer can be; "" before there is one of all rows."""
        if not self.current or self.answered is None:
            return ""
        return str(
            self.answered.get("assurance") or of_stream(self.spec, self.history, self._weights, self.facts).sentence
        )

    @property
    def _weights(self) -> list[float]:
        """Values of the last measurement."""
        return next((m.values for m in reversed(self.history) if m.values is not None), None) or []

    @property
    def skipped(self) -> int:
        return int(self.meta["skipped"])

    @property
    def files(self) -> tuple[int, str | None] | None:
        """Of a directory: how many files are done, and the one that is begun."""
        position = self.meta["position"]
        return (len(position["done"]), position["file"]) if "done" in position else None

    @property
    def current(self) -> bool:
        """Whether the last answer is of all rows that are committed."""
        return bool(self.meta["ended"]) and self.answered is not None and self.answered["rows"] == self.rows

    @property
    def state(self) -> str:
        return "up to date" if self.meta["ended"] else "unfinished"

    @property
    def sentence(self) -> str:
        """How it stands, with what to do next."""
        if self.current and self.answered is not None:
            return str(self.answered["outcome"]["sentence"])
        if self.meta["ended"]:
            return f"all {self.rows} rows that there were are taken, and give no answer yet: run again, which says why"
        if self.spec["stream"]["named"]:
            return "not finished: go on with `npmdask resume`"
        return "not finished: run its own program again, with the same rows from the first on"


def standing(store: RunStore) -> Standing | None:
    """Of a stream's store, held by a process or not; None before its first commit."""
    spec, last = store.read_spec(), store.last_meta()
    if spec is None or last is None:
        return None
    return Standing(spec=spec, meta=last, answered=_answered(store))


def _answered(store: RunStore) -> dict[str, Any] | None:
    try:
        return store.part_meta("result")
    except BadInputError:  # of a stream that is running: the answer before is being replaced
        return None


def answer_of(store: str | Path) -> dict[str, np.ndarray]:
    """What the last commit of a stream's store (or a saved model) answers: basis (d x k), values (k), mean (d, if any).

    Of the third moment: the components that are found, and their weights.

    Raises
    ------
    BadInputError
        There is no model, or it has seen too few rows.
    """
    store = folder_of(store)
    if is_stream(RunStore(store).read_spec()) and RunStore(store).last_step() is None:
        raise BadInputError(
            f"the stream in {store} has committed no rows yet: wait for its first commit, or run it again"
        )
    model = StreamingPCA.load(store)
    arrays = {"basis": model.basis, "values": model.values}
    return arrays if model.mean is None else arrays | {"mean": model.mean}
