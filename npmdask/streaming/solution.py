"""What a stream leaves: the model's answer so far, and what is known of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from npmdask.algorithms.stopping import Outcome
from npmdask.numerics.subspaces import Block
from npmdask.streaming.metrics import Measurement


@dataclass(frozen=True, kw_only=True)
class StreamSolution:
    """``basis`` (d x k, orthonormal), ``values`` (k, mean squares of the rows along it: eigenvalues of their second
    moment, or of their covariance where the model is centred), ``mean`` (d, or None). Where ``moment`` is 3: the
    components of the third moment that are found (d x j unit vectors, j <= k), and their weights.

    ``rows``: all that were taken, of which ``rows_used`` made steps and ``rows_waiting`` wait for theirs; ``skipped``:
    left out because they were not finite; ``new_rows``: of this call. ``last``: what was measured at the end;
    ``history``: before; ``facts``: what else is known of the answer; ``assurance``: how wrong it can be, in a
    sentence for everybody. ``seconds``, ``rows_per_second``, ``peak_rss_bytes`` are of this call.
    """

    basis: Block
    values: np.ndarray
    mean: np.ndarray | None
    outcome: Outcome
    rows: int
    rows_used: int
    skipped: int
    new_rows: int
    steps: int
    last: Measurement
    history: tuple[Measurement, ...]
    seconds: float
    peak_rss_bytes: int
    memory_limit_bytes: int | None
    store: str
    source: str
    warnings: tuple[str, ...] = ()
    moment: int = 2
    facts: dict[str, Any] = field(default_factory=dict)
    assurance: str = ""

    @property
    def rows_waiting(self) -> int:
        return self.rows - self.rows_used

    @property
    def rows_per_second(self) -> float | None:
        return self.new_rows / self.seconds if self.new_rows and self.seconds else None

    @property
    def answered(self) -> bool:
        return True


def stream_summary(solution: StreamSolution) -> dict[str, Any]:
    """The facts of a solution as plain numbers and strings: the JSON that other people's scripts rely on."""
    last, rate = solution.last, solution.rows_per_second
    return {
        "outcome": solution.outcome.name,
        "sentence": solution.outcome.sentence,
        "assurance": solution.assurance,
        "answered": True,
        "rows": solution.rows,
        "rows_used": solution.rows_used,
        "rows_waiting": solution.rows_waiting,
        "skipped": solution.skipped,
        "new_rows": solution.new_rows,
        "steps": solution.steps,
        "moment": solution.moment,
        **_quality(solution, last),
        "seconds": round(solution.seconds, 3),
        "rows_per_second": None if rate is None else round(rate, 1),
        "peak_rss_bytes": solution.peak_rss_bytes,
        "memory_limit_bytes": solution.memory_limit_bytes,
        "store": solution.store,
        "source": solution.source,
        "warnings": list(solution.warnings),
    }


def _quality(solution: StreamSolution, last: Measurement) -> dict[str, Any]:
    """The answer's numbers, by the names that fit it."""
    angles = {"max_sin_theta": last.max_sin_theta, "change": last.change}
    if solution.moment == 2:
        known = {"rank": last.rank, "mean_batch_rows": last.mean_batch_rows, "values": solution.values.tolist()}
        return known | {"explained": last.explained, "suboptimality": last.suboptimality} | angles
    return {"found": last.rank, "weights": solution.values.tolist(), **solution.facts, **angles}
