"""Define the resources that a run may use, plan the memory that it needs of them, and say what it used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from npmdask.core import features
from npmdask.core.checkpoint.schema import table
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.execution.executor import scheduler_of
from npmdask.core.execution.memory import Chosen, MemoryPlan, plan_memory, tree_rss, usable_cores
from npmdask.core.execution.reduction import COMMIT_SECONDS
from npmdask.core.numerics.domains import DEVICES
from npmdask.core.numerics.units import parse_memory
from npmdask.core.operators import Operator
from npmdask.core.runs.problem import Problem
from npmdask.errors import BadInputError, MemoryRefusedError, require


@table("resources")
@dataclass(frozen=True, kw_only=True)
class Resources:
    """Resources that a run may use. They change no result and, except for ``device``, none of its bits."""

    memory: int | None = None  # bytes, all processes of the run together
    threads: int | None = None  # a process; all usable cores if None
    workers: int = 0  # processes; 0: threads of this process
    cluster: str | None = None  # address of a Dask scheduler, whose workers are used instead
    commit_seconds: float = 30.0  # between two commits inside a pass
    certificates: str | None = None  # folder with ca.pem, cert.pem and key.pem, for a cluster at tls://
    device: str = "cpu"  # what sums are formed on: "cuda", a GPU; "auto", one where there is one
    device_memory: int | None = None  # bytes of its memory, a process; most of what is free if None
    request_price: float | None = None  # of 1000 requests to the object store of the data

    def require_possible(self) -> None:
        """Raise BadInputError for numbers that cannot be, or that do not go together."""
        counts = (self.workers, 1 if self.threads is None else self.threads)
        if not all(isinstance(count, int | np.integer) for count in counts) or counts[0] < 0 or counts[1] < 1:
            raise BadInputError("workers must be at least 0 and threads at least 1, both whole numbers")
        if self.cluster is not None and (self.workers or self.threads):
            raise BadInputError("give either a cluster or workers and threads: a cluster brings its own")
        if self.certificates is not None and self.cluster is None:
            raise BadInputError("certificates are for a cluster at tls://host:port: give that, too, or leave them out")
        if self.device not in DEVICES:
            raise BadInputError(f'device = {self.device!r} is unknown: choose "cpu", "cuda" (an NVIDIA GPU) or "auto"')
        if self.device_memory is not None and self.device == "cpu":
            raise BadInputError('device_memory applies to a GPU: set device = "cuda" or "auto" with it')
        if self.request_price is not None and not 0 <= self.request_price < inf:
            raise BadInputError(f"request_price = {self.request_price} must be at least 0 (of 1000 requests)")
        require(self.commit_seconds >= 0, f"commit_seconds = {self.commit_seconds} must be at least 0 (it is a time)")


def asked_resources(
    memory: str | int | None = None,
    threads: int | None = None,
    workers: int = 0,
    cluster: Any = None,
    certificates: str | Path | None = None,
    commit_seconds: float = COMMIT_SECONDS,
    device: str = "cpu",
    device_memory: str | int | None = None,
) -> Resources:
    """The resources that a user gives: sizes of memory in words, any kind of a cluster, a folder from here."""
    return Resources(
        memory=parse_memory(memory),
        threads=threads,
        workers=workers,
        cluster=scheduler_of(cluster) or None,
        certificates=None if certificates is None else str(Path(certificates).absolute()),
        commit_seconds=commit_seconds,
        device=device,
        device_memory=parse_memory(device_memory, "device_memory"),
    )


# What memory a run needs of them, and on what device its sums are formed.

FORMED_BLOCKS = 8  # of right vectors that were found through A A^T: the state, old and new, and what they are made of
CLOSING = 8  # blocks that making complex pairs of real ones takes, after each step


class Need(NamedTuple):
    """Blocks that memory is planned for: of ``p`` columns, ``state_blocks`` of them, beside ``locked`` ones.

    ``chosen``: what p follows from; None: it is not chosen.
    """

    operator: Operator
    p: int
    state_blocks: int
    locked: int = 0
    chosen: Chosen | None = None


def needs_of(problem: Problem) -> list[Need]:
    """List the memory that a run of ``problem`` needs, for each operator that it may use."""
    blocks = FORMED_BLOCKS if problem.ends_formed else problem.algorithm.state_blocks + (problem.start is not None)
    blocks += CLOSING if problem.source.parts == 2 else 0
    locked = problem.locked.result.vectors.shape[1] if problem.locked else 0
    asked = problem.sides()[: -1 if problem.ends_formed and not problem.traits.left else None]
    return [
        Need(operator, problem.algorithm.iteration_rank, blocks, locked, _chosen_option(problem)) for operator in asked
    ]


def _chosen_option(problem: Problem) -> Chosen | None:
    """Return the option that decides the columns of a block of ``problem``."""
    if problem.traits.cube:
        return Chosen("restarts")
    beside = getattr(problem.algorithm, "beside_rank", 0)
    return Chosen("a target_rank", beside=beside) if beside else problem.chosen


def device_for(needs: Iterable[Need], resources: Resources) -> Any:
    """Return the device that sums of a run are formed on; None where none of them is.

    Raises
    ------
    RefusedError
        A GPU is asked for, and this process finds none.
    """
    return None if resources.device == "cpu" else features.required("executors", "device")(needs, resources)


def moved_to(operator: Operator, device: Any, token: str | None = None) -> Any:
    """Return the same operator with its sums formed on ``device``, where that is known how; else as it is."""
    return operator if device is None else features.required("executors", "operator")(operator, device, token)


def require_device(needs: Iterable[Need], resources: Resources) -> None:
    """Raise BadInputError where a GPU is asked for by name, and no sum of the run would be formed on it."""
    needs = list(needs)
    if resources.device == "cuda" and device_for(needs, resources) is None:
        names = " and ".join(dict.fromkeys(type(need.operator).__name__ for need in needs))
        raise BadInputError(
            f'device = "cuda": the sums of this run ({names}) are not formed on a GPU; it forms A^T A, and products '
            'with it, of real samples and matrices, dense or sparse: set device = "cpu", or "auto"'
        )


def memory_for(needs: Iterable[Need], resources: Resources, base: int | None = None, *, spare: int = 0) -> MemoryPlan:
    """The plan that fits all needs, in processes that hold ``base`` bytes already; by default as many as they hold now,
    and ``spare``.

    What of a run is not formed on its device is planned for as well: a survey of columns, left singular vectors.

    Raises
    ------
    RefusedError
        Not even one thread fits; the sentence says what would.
    """
    needs = list(needs)
    device = device_for(needs, resources)
    here = device is not None and not resources.workers and not resources.cluster
    if device is not None and here:
        device.backend  # noqa: B018  opened: its context takes memory of this process
    base = tree_rss() + spare if base is None else base
    plans, refused = list[MemoryPlan](), list[MemoryRefusedError]()
    for need in needs:  # what fits all takes fewer threads, or more memory
        threads = 1 if resources.cluster else resources.threads  # the tasks are elsewhere
        moved = moved_to(need.operator, device)
        if here and moved is not need.operator:
            threads = moved.threads_that_fit(threads or usable_cores(), need.p + need.locked)
        for operator in (need.operator,) if moved is need.operator else (need.operator, moved):
            asked: dict[str, Any] = {"limit": resources.memory, "base": base, "threads": threads}
            asked |= {"workers": resources.workers, "locked": need.locked, "chosen": need.chosen}
            try:
                plans.append(plan_memory(operator, need.p, need.state_blocks, **asked))
            except MemoryRefusedError as error:
                refused.append(error)
    if refused:  # what suffices for one pass may not for the next
        raise max(refused, key=lambda error: error.least)
    fitting = min(plans, key=lambda plan: (plan.threads, -plan.least))
    if getattr(needs[0].operator, "in_files", False):  # of its blocks as much is in memory as there is room for
        whole = needs[0].operator.block_rows * needs[0].p * 8
        room = whole if fitting.limit is None else max(fitting.limit - fitting.predicted_peak, 0)
        fitting = replace(fitting, held=min(whole, room))
    return replace(
        fitting,
        in_flight=min(plan.in_flight for plan in plans),
        device_state=max(plan.device_state for plan in plans),
        device_task=max(plan.device_task for plan in plans),
        device_data=max(plan.device_data for plan in plans),
    )


# What it used of a device and of a network.


@dataclass(frozen=True, kw_only=True)
class DeviceUse:
    """The device that formed the sums of a run; with several processes, one for each.

    Parameters
    ----------
    device, library : its model, and the versions of what computes there: what the last bits depend on.
    planned, limit : bytes of its memory that were planned, with the data that stay on it, and that may be used.
    peak : the most that was used; 0 where that is not counted.
    """

    device: str
    library: str
    planned: int
    limit: int
    peak: int = 0

    @property
    def facts(self) -> dict[str, str]:
        """Facts that the last bits depend on."""
        return {"device": self.device, "library": self.library}


@dataclass(frozen=True, kw_only=True)
class NetworkUse:
    """Use that passes made of an object store.

    Parameters
    ----------
    requests, nbytes : that were made, and bytes that came; of chunks that zarr reads itself neither is counted.
    cost : by the price that was given; None without one.
    """

    requests: int
    nbytes: int
    cost: float | None = None


def changes_of(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Say what the last bits depend on, and is not as it was when a run began."""
    return [
        f"{name} was {before.get(name)!r} when this run began and is {value!r} now: the result is as accurate, but its "
        "last bits may differ from an undisturbed run's"
        for name, value in now.items()
        if before.get(name) != value
    ]


OF_DEVICE = ("device", "library")
ON_CPU = "the processor"


def changed_device(store: RunStore, now: Mapping[str, str] | None) -> list[str]:
    """Say what should be known where sums are formed on another device than when the run in ``store`` began.

    Parameters
    ----------
    store : whose run.json says on which; a run without any step takes ``now``.
    now : facts of the device; None: the processor.
    """
    spec = store.read_spec()
    if spec is None:
        return []
    known = {name: value for name, value in spec.get("environment", {}).items() if name in OF_DEVICE}
    if now and not known and store.last_step() is None:
        store.write_spec(spec | {"environment": spec.get("environment", {}) | now})
        return []
    if known.keys() != (now or {}).keys():
        known, now = ({"device": (facts or {}).get("device", ON_CPU)} for facts in (known, now))
    return changes_of(known, now or {})
