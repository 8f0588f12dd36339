"""A stream, a model and what it is measured against: everything that determines the result, bit for bit."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from npmdask.algorithms.streaming.model import Model
from npmdask.checkpoint.store import CHECKPOINT_FORMAT
from npmdask.errors import BadInputError, RefusedError
from npmdask.numerics.subspaces import Block
from npmdask.storage.kinds import for_matrices_only, for_tensors_only, real_array
from npmdask.storage.source import open_source
from npmdask.storage.streams import ZarrRows
from npmdask.streaming.metrics import FIRST_BATCHES, HeldOut, require_directions
from npmdask.streaming.request import StreamRequest, make_model
from npmdask.streaming.source import Opened, Reading, open_stream

HELD_OUT_BYTES = 2**30  # of float64: they stay in memory


@dataclass(frozen=True, kw_only=True)
class StreamProblem:
    """``request`` and ``reading`` of the opened source; ``model`` as they make it. ``truth``: d x k."""

    request: StreamRequest
    reading: Reading
    opened: Opened
    model: Model
    held_out: HeldOut | None = None
    held_out_source: str | None = None
    held_out_identity: str | None = None
    truth: Block | None = None

    @property
    def measure_rows(self) -> int:
        """Rows between the first measurements."""
        return self.request.measure_rows or FIRST_BATCHES * self.request.batch_rows

    @property
    def beside_bytes(self) -> int:
        """Memory beside model and batch: of the stream's reading, and of the best directions of held-out rows."""
        return self.opened.buffer_bytes + (self.held_out.working_bytes if self.held_out else 0)

    def spec(self) -> dict[str, Any]:
        """The parameters that a checkpoint is bound to, by name."""
        facts = self.model.facts()
        return {
            "data": {
                "fingerprint": self.opened.stream.fingerprint,
                "columns": self.model.d,
                "kind": "stream",
                "center": self.request.center,
            },
            "algorithm": facts["algorithm"],
            "mechanism": {"mechanism": "none"},
            "stop": {},
            "run": {
                "seed": self.request.seed,
                "batch_rows": self.request.batch_rows,
                "unit": self.request.unit,
                "half_life": self.request.half_life,
                "measure_rows": self.measure_rows,
                "held_out": self.held_out_identity,
            },
            "version": {"npmdask": version("npmdask"), "checkpoint_format": CHECKPOINT_FORMAT},
        }

    def again(self) -> dict[str, Any]:
        """What ``reopened`` needs, beside the name of the source."""
        asked = asdict(self.request) | {"options": dict(self.request.options)}
        reading = asdict(self.reading)
        if self.opened.named and self.opened.grows:  # whose files may all be gone by then
            reading["columns"] = self.model.d
        return {"request": asked, "reading": reading, "held_out": self.held_out_source}


def make_stream_problem(source: Any, request: StreamRequest, reading: Reading, held_out: Any = None) -> StreamProblem:
    """Open everything and check what can be checked without reading it; held-out rows (a store, or an array) are read.

    Raises
    ------
    BadInputError
        The source or a parameter cannot be.
    """
    opened = open_stream(source, reading, seed=request.seed)
    d, k = opened.stream.columns, request.target_rank
    model = make_model(request, d, opened.rows)
    require_directions(model.algorithm.moment, held_out)
    rows, name = (None, None) if held_out is None else _held_out(held_out)
    return StreamProblem(
        request=request,
        reading=reading,
        opened=opened,
        model=model,
        held_out=None if rows is None else HeldOut(rows, k, d, center=request.center),
        held_out_source=name,
        held_out_identity=None if rows is None else hashlib.sha256(rows.tobytes()).hexdigest(),
        truth=_truth(opened, k) if model.algorithm.moment == 2 else None,
    )


def _truth(opened: Opened, k: int) -> Block | None:
    """The k leading of the planted directions, which are those of the second moment."""
    return None if opened.truth is None or opened.truth.shape[1] < k else opened.truth[:, :k]


def reopened(spec: dict[str, Any], store: str) -> StreamProblem:
    """The problem of a store. Raises RefusedError where its source has no name by which it can be opened again."""
    facts = spec["stream"]
    if not facts["named"]:
        raise RefusedError(
            f"{store} was fed by {spec['source']}, which only its own program can start again: run that, with the same "
            "store and the same rows from the first on"
        )
    if facts["held_out"] is None and spec["run"]["held_out"] is not None:
        raise RefusedError(f"{store} is measured on rows that were given as an array: run its own program again")
    return make_stream_problem(
        spec["source"], StreamRequest(**facts["request"]), Reading(**facts["reading"]), facts["held_out"]
    )


def _held_out(given: Any) -> tuple[np.ndarray, str | None]:
    if isinstance(given, np.ndarray):
        return np.ascontiguousarray(real_array(given, "the held-out rows"), dtype=np.float64), None
    if not isinstance(given, str | Path | zarr.Array | zarr.Group):
        raise BadInputError(f"held_out is a {type(given).__name__}: give an array of rows, or a Zarr store")
    source = open_source(given)
    if source.kind == "matrices":
        raise for_matrices_only(source.path)
    if source.kind == "tensor":
        raise for_tensors_only(source.path)
    n, d = source.shape
    if n * d * 8 > HELD_OUT_BYTES:
        most = HELD_OUT_BYTES // (8 * d)
        raise BadInputError(
            f"{source.path} holds {n} held-out rows, which stay in memory: give at most {most} of {d} columns"
        )
    rows = ZarrRows(source).read(n)
    assert rows is not None
    return rows, source.path
