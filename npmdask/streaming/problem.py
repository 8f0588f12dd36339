"""A stream, a model and what it is measured against: everything that determines the result, bit for bit."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from npmdask.core.algorithms import StreamAlgorithm
from npmdask.core.checkpoint.schema import TABLES
from npmdask.core.checkpoint.store import CHECKPOINT_FORMAT, RunStore
from npmdask.core.numerics.subspaces import Block
from npmdask.core.numerics.units import attributes, from_table
from npmdask.core.storage.kinds import real_array, require_rows
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError, RefusedError, closest, package_version, require, require_known
from npmdask.missing.gaps import Marks, checked_marks
from npmdask.streaming.algorithms import STREAM_REGISTRY
from npmdask.streaming.algorithms.model import IMPUTE, REFUSE, Model
from npmdask.streaming.algorithms.tensor_power import ITERATIONS, default_restarts
from npmdask.streaming.metrics import FIRST_BATCHES, HeldOut, require_directions
from npmdask.streaming.source import Opened, Reading, open_stream
from npmdask.streaming.sources.zarr_rows import ZarrRows
from npmdask.weights.aspect import kept_weights

# What is asked of a stream: public, printable, the same words as the configuration file.


BATCH_ROWS = 256
FASTEST = 500  # halvings in a step: half of what a float can hold
NEEDED = {
    "gap": "lambda_k - lambda_{k+1} of rows of mean square norm 1, to be tuned on a grid like 0.3, 0.1, 0.03",
    "block_rows": "rows of an iteration; of N rows to come, N / (2 k (iterations + 1)) find all k components and leave "
    "half of them to refine these",
    "ridge": "half of lambda_k - lambda_{k+1} of rows of mean square norm 1 is recommended",
}


def marks_of_stream(given: Any, missing: str) -> Marks:
    """Return numbers that mark missing values, which a stream imputes or does not take."""
    marks = checked_marks(given)
    if marks and missing == REFUSE:
        raise BadInputError(
            f"missing_values = {list(marks)} says which values are missing, but not what to do with them: also give "
            f"missing = {IMPUTE!r}, too"
        )
    return marks


@dataclass(frozen=True, kw_only=True)
class StreamRequest:
    """An algorithm for a stream.

    ``algorithm``: a key of ``STREAM_REGISTRY``. ``target_rank``: k. ``options``: further fields of the algorithm.
    ``batch_rows``: rows read at once where the algorithm does not say. ``half_life``: rows after which a row counts
    half (streams that drift). ``center``, ``unit``, ``missing``: see ``Model``. ``measure_rows``: rows between two
    measurements.
    """

    target_rank: int
    algorithm: str = "spm"
    options: Mapping[str, Any] = field(default_factory=dict)
    batch_rows: int = BATCH_ROWS
    half_life: float | None = None
    center: bool = False
    unit: float | None = None
    seed: int = 0
    measure_rows: int | None = None
    missing: str = REFUSE
    missing_values: Marks = ()

    def __post_init__(self) -> None:
        for f in fields(self):  # what NumPy counted is as good as what Python did
            object.__setattr__(self, f.name, _python_number(getattr(self, f.name)))
        object.__setattr__(self, "missing_values", marks_of_stream(self.missing_values, self.missing))
        require(isinstance(self.options, Mapping), f"options = {self.options!r}: a table of names and values is needed")
        object.__setattr__(self, "options", {name: _python_number(value) for name, value in self.options.items()})
        for name in ("target_rank", "batch_rows", "measure_rows"):
            value = getattr(self, name)
            if not (name == "measure_rows" and value is None) and (type(value) is not int or value < 1):
                raise BadInputError(f"{name} = {value!r}: a whole number of at least 1 is needed")
        if type(self.seed) is not int or self.seed < 0:
            raise BadInputError(f"seed = {self.seed!r}: a whole number of 0 or more is needed")
        if type(self.center) is not bool:
            raise BadInputError(f"center = {self.center!r}: True subtracts the mean of the rows, False does not")
        for name, meaning in (("half_life", "number of rows"), ("unit", "number, the typical norm of a row")):
            value = getattr(self, name)
            if value is not None and not (type(value) in (int, float) and 0 < value < inf):
                raise BadInputError(f"{name} = {value!r}: a positive {meaning}; or leave it out")
        if self.algorithm not in STREAM_REGISTRY:
            said = closest(str(self.algorithm), list(STREAM_REGISTRY))
            raise BadInputError(f"unknown streaming algorithm {self.algorithm!r}: {said}")


def _python_number(value: Any) -> Any:
    """A number of NumPy as one of Python; anything else as it is."""
    return value.item() if isinstance(value, np.generic) else value


def make_model(request: StreamRequest, d: int, rows: int | None = None) -> Model:
    """The model for rows of ``d`` columns; ``rows``: how many there will be, if that is known.

    Raises
    ------
    BadInputError
        An option that the algorithm does not have, lacks, or cannot have with this value; or k > d.
    """
    if request.target_rank > d:
        raise BadInputError(
            f"target_rank = {request.target_rank} is too large for rows with {d} columns: choose at most {d} "
            f"(n_features = {d})"
        )
    if STREAM_REGISTRY[request.algorithm].moment != 2:
        _refuse_of_directions(request)
    model = Model(
        algorithm=_algorithm(request, d, rows),
        d=d,
        **attributes(request, "center", "unit", "half_life", "seed", "missing", "missing_values"),
    )
    model.init()  # says what does not fit
    return model


def _refuse_of_directions(request: StreamRequest) -> None:
    """Raise where a third-moment request has options that have a meaning for principal directions alone."""
    if request.center:
        raise BadInputError(
            "center: the mean of a stream is estimated on the way, which is exact for the second moment of the rows "
            f"but not for the third, whose components {request.algorithm} finds: subtract a known mean beforehand"
        )
    if request.missing != REFUSE:
        raise BadInputError(
            f"missing = {request.missing!r}: gaps are imputed with principal directions, but {request.algorithm} "
            "finds components of the third moment: fill in missing values first, or leave such rows out"
        )
    if request.half_life is not None:
        raise BadInputError(
            f"half_life = {request.half_life}: {request.algorithm} gives all rows the same weight and does not "
            "follow drift: leave it out, or start a new store when the data have changed"
        )


def _algorithm(request: StreamRequest, d: int, rows: int | None) -> StreamAlgorithm[Any]:
    kind, name = STREAM_REGISTRY[request.algorithm], request.algorithm
    own = {f.name: f for f in fields(kind) if f.name != "target_rank"}
    for option in request.options:
        require_known(option, own, f"{name} has no option")
    options = _defaults(request, d, rows) | dict(request.options)
    for option, f in own.items():
        if f.default is MISSING and option not in options:
            raise BadInputError(f"{name} needs the option {option}: {NEEDED[option]}")
    if request.half_life is not None:
        options["memory"] = _memory(request, options)
    return from_table(name, kind, {"target_rank": request.target_rank, **options})


def _defaults(request: StreamRequest, d: int, rows: int | None) -> dict[str, Any]:
    """Choose what the papers leave open.

    p = 2 k (Hardt and Price, Lemma 2.5); a block is a batch, because with a memory of all blocks many steps cost
    nothing of the accuracy; and at least 16 blocks.
    """
    k = request.target_rank
    if request.algorithm == "spm":
        block = request.batch_rows if rows is None else max(1, min(request.batch_rows, rows // 16))
        return {"iteration_rank": max(k, min(2 * k, d)), "block_rows": block, "memory": 1.0}
    if request.algorithm == "online-tensor-power":
        return {"restarts": default_restarts(k)} | _search_block(request, rows)
    return {"sketch_rows": 4 * k} if request.algorithm == "frequent-directions" else {}


def _search_block(request: StreamRequest, rows: int | None) -> dict[str, Any]:
    """Half of the rows to find all components and half to refine them, where it is known how many there are."""
    asked = request.options.get("iterations")
    iterations = asked if type(asked) is int and asked > 0 else ITERATIONS
    return {} if rows is None else {"block_rows": max(2, rows // (2 * request.target_rank * (iterations + 1)))}


def _memory(request: StreamRequest, options: dict[str, Any]) -> float:
    """Compute the share that a step leaves of earlier weights, so that ``half_life`` rows leave a half."""
    assert request.half_life is not None
    if "memory" in request.options:
        raise BadInputError("give either half_life (in rows) or the option memory (of a step), and not both")
    if request.algorithm.startswith("mb-"):
        raise BadInputError(
            f"a step of {request.algorithm} uses a number of rows that depends on the data: give the option memory "
            "(the share of earlier rows that a step keeps) instead of half_life, or choose spm, oja, msg or rmsg"
        )
    step = options.get("block_rows", request.batch_rows)
    if type(step) is not int or step > FASTEST * request.half_life:
        raise BadInputError(
            f"half_life = {request.half_life}: nothing would be left of the rows before after one step of {step!r} "
            "rows; choose a longer one, or smaller steps"
        )
    return float(0.5 ** (step / request.half_life))


TABLES["stream"] = {"request": StreamRequest, "reading": Reading, "held_out": str | None, "named": bool}
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

    def __post_init__(self) -> None:
        if self.opened.weights is not None:
            self.model.require_weighted()

    @property
    def measure_rows(self) -> int:
        """Number of rows between the first measurements."""
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
                **({} if self.request.missing == REFUSE else {"missing": self.request.missing}),
                **({"missing_values": list(self.request.missing_values)} if self.request.missing_values else {}),
            },
            "algorithm": facts["algorithm"],
            "mechanism": {"mechanism": "none"},
            "stop": {},
            "run": {
                **attributes(self.request, "seed", "batch_rows", "unit", "half_life"),
                "measure_rows": self.measure_rows,
                "held_out": self.held_out_identity,
                **({} if self.opened.weights is None else {"worth": self.opened.weights.worth}),
            },
            "version": {"npmdask": package_version(), "checkpoint_format": CHECKPOINT_FORMAT},
            **({} if self.opened.weights is None else self.opened.weights.spec()),
        }

    def again(self) -> dict[str, Any]:
        """Return what ``reopened`` needs, beside the name of the source."""
        asked = asdict(self.request) | {"options": dict(self.request.options)}
        reading = asdict(self.reading)
        del reading["missing_values"]  # which are asked for
        for table, name, plain in (
            (asked, "missing", REFUSE),
            (asked, "missing_values", ()),
            (reading, "gaps", REFUSE),
        ):
            if table[name] == plain:  # as stores of earlier versions
                del table[name]
        if self.opened.named and self.opened.grows:  # whose files may all be gone by then
            reading["columns"] = self.model.d
        return {"request": asked, "reading": reading, "held_out": self.held_out_source}


def make_stream_problem(
    source: Any, request: StreamRequest, reading: Reading, held_out: Any = None, *, row_weights: Any = None
) -> StreamProblem:
    """Open everything and check what can be checked without reading it; held-out rows (a store, or an array) are read,
    and weights of rows.

    Raises
    ------
    BadInputError
        The source or a parameter cannot be.
    """
    gaps = "give-some" if request.missing == IMPUTE else REFUSE
    reading = replace(reading, gaps=gaps, missing_values=request.missing_values)
    opened = open_stream(source, reading, seed=request.seed, row_weights=row_weights)
    d, k = opened.stream.columns, request.target_rank
    model = make_model(request, d, opened.rows)
    require_directions(model.algorithm.moment, held_out)
    rows, name = (None, None) if held_out is None else _held_out(held_out)
    truth = opened.truth if model.algorithm.moment == 2 else None  # the planted directions are of the second moment
    return StreamProblem(
        request=request,
        reading=reading,
        opened=opened,
        model=model,
        held_out=None if rows is None else HeldOut(rows, k, d, center=request.center),
        held_out_source=name,
        held_out_identity=None if rows is None else hashlib.sha256(rows.tobytes()).hexdigest(),
        truth=None if truth is None or truth.shape[1] < k else truth[:, :k],
    )


def problem_of_store(spec: dict[str, Any], store: str) -> StreamProblem:
    """The problem of a store. Raises RefusedError where its source has no name by which it can be opened again."""
    facts = spec["stream"]
    if not facts["named"]:
        raise RefusedError(
            f"{store} was fed by {spec['source']}, which only the program that started it can provide: run that "
            "program again, with the same store and the same rows from the first on"
        )
    if facts["held_out"] is None and spec["run"]["held_out"] is not None:
        raise RefusedError(
            f"{store} is measured on rows that were given as an array: run the program that started it again"
        )
    return make_stream_problem(
        spec["source"],
        StreamRequest(**facts["request"]),
        Reading(**facts["reading"]),
        facts["held_out"],
        row_weights=kept_weights(RunStore(store), spec),
    )


def _held_out(given: Any) -> tuple[np.ndarray, str | None]:
    if isinstance(given, np.ndarray):
        return np.ascontiguousarray(real_array(given, "the held-out rows"), dtype=np.float64), None
    if not isinstance(given, str | Path | zarr.Array | zarr.Group):
        raise BadInputError(f"held_out is a {type(given).__name__}: give an array of rows, or a Zarr store")
    source = open_source(given)
    require_rows(source.kind, source.path)
    n, d = source.shape
    if n * d * 8 > HELD_OUT_BYTES:
        most = HELD_OUT_BYTES // (8 * d)
        raise BadInputError(
            f"{source.path} holds {n} held-out rows, which stay in memory: give at most {most} of {d} columns"
        )
    rows = ZarrRows(source).read(n)
    assert rows is not None
    return rows, source.path
