"""Hold the results of a stream so far, and what is known of their accuracy."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from npmdask.core.algorithms import StreamInfo
from npmdask.core.algorithms.stopping import Outcome
from npmdask.core.checkpoint.store import RunStore, folder_of
from npmdask.core.execution.executor import single_threaded_blas
from npmdask.core.numerics.subspaces import Block
from npmdask.core.numerics.units import attributes
from npmdask.core.storage.bundle import read_bundle
from npmdask.errors import BadInputError
from npmdask.streaming.algorithms import STREAM_REGISTRY
from npmdask.streaming.algorithms.model import Model, ModelState
from npmdask.streaming.metrics import Measurement
from npmdask.streaming.statements import of_stream


@dataclass(frozen=True, kw_only=True)
class StreamSolution:
    """
    Hold the components of a stream so far, and how good they are.

    Costs are those of this call. :func:`stream_pca` and :func:`stream_components` return one.

    Attributes
    ----------
    basis : numpy.ndarray, shape (d, k)
        Orthonormal directions. If ``moment`` is 3: the components found so far (d x j unit vectors, j <= k).
    values : numpy.ndarray, shape (k,)
        Mean squares of the rows along the directions: eigenvalues of the second moment, or of the covariance if the
        model is centred. If ``moment`` is 3: weights of the components.
    mean : numpy.ndarray or None, shape (d,)
        Mean of the rows, if the model is centred.
    outcome : Outcome
        How the call ended: ``name`` ("up_to_date", or "exhausted" with its source) and ``sentence``.
    rows : int
        Number of rows that were read.
    rows_used : int
        Number of rows that steps have used.
    skipped : int
        Number of rows that were left out because they were not finite.
    new_rows : int
        Number of rows of this call.
    steps : int
        Steps of the model.
    last : Measurement
        Quality after the last rows: ``rows``, ``values``, ``change`` (sine of the angle since the measurement before)
        and, with held-out rows, ``explained``, their share of variance.
    history : tuple of Measurement
        Earlier measurements.
    seconds : float
        Wall time of this call.
    peak_rss_bytes : int
        Largest resident memory, in bytes.
    memory_limit_bytes : int or None
        The limit that was set.
    store : str
        Folder of the model.
    source : str
        Where the rows came from.
    warnings : tuple of str
        What to know about the data or the answer, as sentences.
    moment : int
        2, or 3 for the components of the third moment.
    facts : dict
        If ``moment`` is 3: ``standard_errors`` and ``status`` of the components; else empty.
    assurance : str
        Bound on the error of the answer, as a sentence.

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
        """Return the number of rows that wait for the next step."""
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
        **attributes(solution, "rows", "rows_used", "rows_waiting", "skipped", "new_rows", "steps", "moment"),
        **_quality(solution, last),
        "seconds": round(solution.seconds, 3),
        "rows_per_second": None if rate is None else round(rate, 1),
        **attributes(solution, "peak_rss_bytes", "memory_limit_bytes", "store", "source"),
        "warnings": list(solution.warnings),
    }


def _quality(solution: StreamSolution, last: Measurement) -> dict[str, Any]:
    """The answer's numbers, by the names that fit it."""
    angles = {"max_sin_theta": last.max_sin_theta, "change": last.change}
    if solution.moment == 2:
        known = {"rank": last.rank, "mean_batch_rows": last.mean_batch_rows, "values": solution.values.tolist()}
        return known | {"explained": last.explained, "suboptimality": last.suboptimality} | angles
    return {"found": last.rank, "weights": solution.values.tolist(), **solution.facts, **angles}


# The status of the stream in a store: what is committed and what it answers, without a look at its source.


def is_stream(spec: dict[str, Any] | None) -> bool:
    """Say whether these parameters of a store are those of a stream."""
    return spec is not None and spec["data"]["kind"] == "stream"


@dataclass(frozen=True, kw_only=True)
class StreamStatus:
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
        """Moment of the rows whose components are found: 2 (principal directions) or 3."""
        return int(STREAM_REGISTRY[self.spec["algorithm"]["name"]].moment)

    @property
    def facts(self) -> dict[str, Any]:
        """Further facts of the last answer, if it is of all rows."""
        return dict(self.answered.get("facts", {})) if self.current and self.answered is not None else {}

    @property
    def assurance(self) -> str:
        """Statement of how wrong the answer can be; "" before there is one of all rows."""
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
        """Number of finished files of a directory, and the file that is begun; None of other sources."""
        position = self.meta["position"]
        return (len(position["done"]), position["file"]) if "done" in position else None

    @property
    def current(self) -> bool:
        """True if the last answer is of all rows that are committed."""
        return bool(self.meta["ended"]) and self.answered is not None and self.answered["rows"] == self.rows

    @property
    def state(self) -> str:
        return "up to date" if self.meta["ended"] else "unfinished"

    @property
    def sentence(self) -> str:
        """The status in a sentence, with what to do next."""
        if self.current and self.answered is not None:
            return str(self.answered["outcome"]["sentence"])
        if self.meta["ended"]:
            return f"all {self.rows} rows that there were are taken, and give no answer yet: run again, which says why"
        if self.spec["stream"]["named"]:
            return "not finished: go on with `npmdask resume`"
        return "not finished: run its own program again, with the same rows from the first on"


def stream_status(store: RunStore) -> StreamStatus | None:
    """Read the status of a stream's store, held by a process or not; None before its first commit."""
    spec, last = store.read_spec(), store.last_meta()
    if spec is None or last is None:
        return None
    return StreamStatus(spec=spec, meta=last, answered=_answer_meta(store))


def _answer_meta(store: RunStore) -> dict[str, Any] | None:
    try:
        return store.part_meta("result")
    except BadInputError:  # of a stream that is running: the answer before is being replaced
        return None


def answer_of(store: str | Path) -> dict[str, np.ndarray]:
    """Compute the answer of a stream's last commit (or a saved model): basis (d x k), values (k), mean (d, if any).

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
    model, state, _ = read_model(store)
    with single_threaded_blas():
        found = model.answer(state)
    arrays = {"basis": found.vectors, "values": found.values}
    return arrays | {"mean": state.mean} if model.center else arrays


def read_model(path: str | Path) -> tuple[Model, ModelState, StreamInfo]:
    """Read what ``StreamingPCA.save`` wrote, or the last commit of a stream's store.

    Raises
    ------
    BadInputError
        There is no model.
    """
    path = folder_of(path)
    found = RunStore(path).last_step() if (path / "steps").is_dir() else read_bundle(path) if path.is_dir() else None
    if found is None or "model" not in found[1]:
        raise BadInputError(
            f"{path} does not hold a streaming model: name a file that `save` wrote, or the store of a stream"
        )
    arrays, meta = found
    model = Model.of(meta["model"])
    state = model.load({name: array for name, array in arrays.items() if name != "measured_basis"}, meta["state"])
    return model, state, StreamInfo(**meta["info"])
