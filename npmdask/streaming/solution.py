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
    """
    Hold what was learnt from a stream so far, and how good it is.

    Costs are of this call. Users get one from :func:`stream_pca` or :func:`stream_components`.

    Attributes
    ----------
    basis : numpy.ndarray, shape (d, k)
        Orthonormal directions. Where ``moment`` is 3: the components that are found (d x j unit vectors, j <= k).
    values : numpy.ndarray, shape (k,)
        Mean squares of the rows along them: eigenvalues of their second moment, or of their covariance where the
        model is centred. Where ``moment`` is 3: weights of the components.
    mean : numpy.ndarray or None, shape (d,)
        Of the rows, where the model is centred.
    outcome : Outcome
        How the call ended, as a name and a sentence.
    rows : int
        All rows that were taken.
    rows_used : int
        Those that made steps.
    skipped : int
        Rows that were left out because they were not finite.
    new_rows : int
        Rows of this call.
    steps : int
        Steps of the model.
    last : Measurement
        What was measured at the end.
    history : tuple of Measurement
        What was measured before.
    seconds : float
        Wall time.
    peak_rss_bytes : int
        Largest resident memory.
    memory_limit_bytes : int or None
        What was allowed.
    store : str
        Folder of the model.
    source : str
        Where the rows came from.
    warnings : tuple of str
        Sentences.
    moment : int
        2, or 3 for the components of the third moment.
    facts : dict
        What else is known of the answer.
    assurance : str
        How wrong the answer can be, in a sentence for everybody.

    Examples
    --------
    >>> import numpy as np
    >>> import npmdask
    >>> rows = np.random.default_rng(0).standard_normal((5000, 10)) * np.geomspace(8, 1, 10)
    >>> solution = npmdask.stream_pca(rows, 2)
    >>> solution.rows, solution.rows_waiting
    (5000, 136)
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
        """Rows that wait for the step that they will be used in."""
        return self.rows - self.rows_used

    @property
    def rows_per_second(self) -> float | None:
        """Speed of this call; None where it took no rows."""
        return self.new_rows / self.seconds if self.new_rows and self.seconds else None

    @property
    def answered(self) -> bool:
        """True: the rows so far have an answer."""
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
