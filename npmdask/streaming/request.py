"""What is asked of a stream: public, printable, the same words as the configuration file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any

from pydantic import TypeAdapter, ValidationError

from npmdask.algorithms import STREAM_REGISTRY, StreamAlgorithm
from npmdask.errors import BadInputError, closest
from npmdask.streaming.model import Model

BATCH_ROWS = 256
NEEDED = {
    "gap": "lambda_k - lambda_{k+1} of rows of mean square norm 1, to be tuned on a grid like 0.3, 0.1, 0.03",
    "ridge": "half of lambda_k - lambda_{k+1} of rows of mean square norm 1 is recommended",
}


@dataclass(frozen=True, kw_only=True)
class StreamRequest:
    """An algorithm for a stream.

    ``algorithm``: a key of ``STREAM_REGISTRY``. ``target_rank``: k. ``options``: further fields of the algorithm.
    ``batch_rows``: rows read at once where the algorithm does not say. ``half_life``: rows after which a row counts
    half (streams that drift). ``center``, ``unit``: see ``Model``. ``measure_rows``: rows between two measurements.
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

    def __post_init__(self) -> None:
        for name in ("target_rank", "batch_rows", "measure_rows"):
            value = getattr(self, name)
            if not (name == "measure_rows" and value is None) and (type(value) is not int or value < 1):
                raise BadInputError(f"{name} = {value!r}: a whole number of at least 1 is needed")
        if self.algorithm not in STREAM_REGISTRY:
            said = closest(str(self.algorithm), list(STREAM_REGISTRY))
            raise BadInputError(f"unknown streaming algorithm {self.algorithm!r}: {said}")
        if self.half_life is not None and not self.half_life > 0:
            raise BadInputError(f"half_life = {self.half_life}: a positive number of rows, or leave it out")

    def of_batches(self, rows: int) -> StreamRequest:
        """The same for batches of ``rows`` rows."""
        return replace(self, batch_rows=rows)


def make_model(request: StreamRequest, d: int, rows: int | None = None) -> Model:
    """The model for rows of ``d`` columns; ``rows``: how many there will be, if that is known.

    Raises
    ------
    BadInputError
        An option that the algorithm does not have, lacks, or cannot have with this value; or k > d.
    """
    model = Model(
        algorithm=_algorithm(request, d, rows),
        d=d,
        center=request.center,
        unit=request.unit,
        half_life=request.half_life,
        seed=request.seed,
    )
    model.init()  # says what does not fit
    return model


def _algorithm(request: StreamRequest, d: int, rows: int | None) -> StreamAlgorithm[Any]:
    kind, name = STREAM_REGISTRY[request.algorithm], request.algorithm
    own = {f.name: f for f in fields(kind) if f.name != "target_rank"}
    for option in request.options:
        if option not in own:
            raise BadInputError(f"{name} has no option {option!r}: {closest(str(option), list(own))}")
    options = _defaults(request, d, rows) | dict(request.options)
    for option, f in own.items():
        if f.default is MISSING and option not in options:
            raise BadInputError(f"{name} needs the option {option}: {NEEDED[option]}")
    if request.half_life is not None:
        options["memory"] = _memory(request, options, own)
    try:
        # As JSON, because a dictionary is no dataclass to the strict rules that let no "3" through for a 3.
        text = json.dumps({"target_rank": request.target_rank, **options}, default=float)
        return TypeAdapter(kind).validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        at = ".".join(str(part) for part in first["loc"])
        raise BadInputError(f"{name} option {at} = {first['input']!r}: {first['msg']}") from None


def _defaults(request: StreamRequest, d: int, rows: int | None) -> dict[str, Any]:
    """What the papers leave to whoever runs it: p = 2 k (Hardt and Price, Lemma 2.5); a block is a batch, because with
    a memory of all blocks many steps cost nothing of the accuracy; and at least 16 blocks."""
    k = request.target_rank
    if request.algorithm == "spm":
        block = request.batch_rows if rows is None else max(1, min(request.batch_rows, rows // 16))
        return {"iteration_rank": max(k, min(2 * k, d)), "block_rows": block, "memory": 1.0}
    return {"sketch_rows": 4 * k} if request.algorithm == "frequent-directions" else {}


def _memory(request: StreamRequest, options: dict[str, Any], own: dict[str, Any]) -> float:
    """What a step leaves of the weight of those before it, so that after ``half_life`` rows a half is left."""
    assert request.half_life is not None
    if "memory" in request.options:
        raise BadInputError("give either half_life (in rows) or the option memory (of a step), and not both")
    if "memory" not in own:
        raise BadInputError(f"{request.algorithm} does not forget: leave half_life out, or choose spm, oja or msg")
    step: int = options.get("block_rows", request.batch_rows)
    return float(0.5 ** (step / request.half_life))
