"""What jobs on samples share: opening, binding, column means, and the answer that is kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from npmdask.checkpoint.store import CHECKPOINT_FORMAT, RunStore
from npmdask.errors import BadInputError
from npmdask.operators import ColumnMoments
from npmdask.planning.predicted_steps import Predictor
from npmdask.privacy.request import unprotected
from npmdask.runs.observers import Observer, Observers
from npmdask.runs.plain_release import checksum_table
from npmdask.runs.restore import bind_spec
from npmdask.runs.solution import Resources
from npmdask.runs.stages import Job
from npmdask.storage.bundle import Arrays
from npmdask.storage.source import Source, open_source

PAIRS_TOL = 1e-9  # relative residual of leading pairs: samples say less
TENSOR_TOL = 1e-9
ANSWER = "result"


@dataclass(frozen=True, kw_only=True)
class SampleRequest:
    """What is asked of samples: public parameters, part of a run's identity.

    ``components`` k; ``restarts``, ``iterations``, ``harvest`` as of the tensor power method; ``seed`` of the starts.
    """

    components: int
    restarts: int | None = None
    iterations: int | None = None
    harvest: bool | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.components < 1:
            raise BadInputError(f"components = {self.components} must be at least 1")
        if self.seed < 0:
            raise BadInputError(f"seed = {self.seed} must not be negative")

    def options(self) -> dict[str, Any]:
        """Of the tensor power method."""
        asked = {"restarts": self.restarts, "iterations": self.iterations, "harvest": self.harvest}
        return {name: value for name, value in asked.items() if value is not None}


def answer_of(
    name: str,
    source: Any,
    request: SampleRequest,
    store: str | Path,
    resources: Resources | None,
    observer: Observer | None,
    solve: Callable[[Job, np.ndarray, SampleRequest], tuple[Arrays, dict[str, Any]]],
) -> tuple[Arrays, dict[str, Any]]:
    """Run the job ``name`` in ``store``, go on with it, or read its answer. ``solve`` is given the column means.

    Raises
    ------
    BadInputError
        Data that are no samples, or that do not have so many components.
    RefusedError
        The store belongs to other data or parameters; the memory does not suffice.
    """
    resources, observer = resources or Resources(), observer or Observer()
    opened = _require_samples(open_source(source, None if isinstance(source, str | Path) else "samples"), request)
    with RunStore(store) as held:
        spec = _spec(name, opened, request)
        bind_spec(spec, held, {"resources": asdict(resources)}, once={"source": opened.path})
        found = held.read_part(ANSWER)
        if found is None:
            told = Observers(Predictor(), observer)
            job = Job(source=opened, held=held, resources=resources, observer=told, seed=request.seed)
            arrays, meta = solve(job, with_means(job), request)
            meta["facts"]["warnings"] = [*unprotected(opened.budget), *meta["facts"]["warnings"]]
            held.write_part(ANSWER, arrays, meta)
            found = held.read_part(ANSWER)
    assert found is not None
    return found


def with_means(job: Job) -> np.ndarray:
    """The means of the columns, as recorded at ingest or from one pass; later passes see them recorded, and the same
    bytes."""
    if job.source.column_mean is None:
        mean, std = job.gather("means", ColumnMoments(reader=job.source.reader), np.zeros((1, 1)))
        found = job.held.read_part("means")
        assert found is not None
        known = job.source.with_checksums(checksum_table(found[0]))
        job.source = replace(known, column_mean=mean, column_std=std)
    assert job.source.column_mean is not None
    return job.source.column_mean


def _require_samples(source: Source, request: SampleRequest) -> Source:
    if source.reader.layout != "dense" or source.kind not in ("samples", "matrix"):
        raise BadInputError(
            f"{source.path} is of kind {source.kind}: mixtures and independent components are found in samples, dense "
            "rows of numbers (`npmdask ingest --kind samples`)"
        )
    n, d = source.shape[0], source.dimension
    if request.components > min(n, d):
        raise BadInputError(
            f"components = {request.components} of {n} x {d} samples: at most {min(n, d)} can be told apart by moments"
        )
    return replace(source, kind="samples")


def _spec(name: str, source: Source, request: SampleRequest) -> dict[str, Any]:
    return {
        "data": {"fingerprint": source.fingerprint, "shape": list(source.shape), "kind": name},
        "algorithm": {"name": name, **asdict(request)},
        "mechanism": {"mechanism": "none"},
        "stop": {"pairs_tol": PAIRS_TOL, "tensor_tol": TENSOR_TOL},
        "run": {"seed": request.seed},
        "version": {"npmdask": version("npmdask"), "checkpoint_format": CHECKPOINT_FORMAT},
    }


def decomposition_history(run: RunStore) -> list[dict[str, Any]]:
    """The steps of the decomposition of a job, which is the last of its stages.

    Raises
    ------
    BadInputError
        It is not finished.
    """
    found = RunStore(run.path / "decomposition").read_part("result")
    if found is None:
        raise BadInputError(f"{run.path} holds no decomposition; `npmdask resume {run.path}` finishes the job")
    history: list[dict[str, Any]] = found[1]["history"]
    return history
