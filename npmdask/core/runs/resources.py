"""Define the resources that a run may use, and what it used of a device and of a network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from npmdask.core.checkpoint.schema import table
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.execution.executor import scheduler_of
from npmdask.core.execution.reduction import COMMIT_SECONDS
from npmdask.core.numerics.domains import DEVICES
from npmdask.core.numerics.units import parse_memory
from npmdask.errors import BadInputError, require


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
        """What the last bits depend on."""
        return {"device": self.device, "library": self.library}


@dataclass(frozen=True, kw_only=True)
class NetworkUse:
    """What passes took of an object store.

    Parameters
    ----------
    requests, nbytes : that were made, and bytes that came; of chunks that zarr reads itself neither is counted.
    cost : by the price that was given; None without one.
    """

    requests: int
    nbytes: int
    cost: float | None = None


OF_DEVICE = ("device", "library")
ON_CPU = "the processor"


def changed_device(store: RunStore, now: Mapping[str, str] | None) -> list[str]:
    """What should be known where sums are formed on another device than when the run in ``store`` began.

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
    return [
        f"{name} was {known[name]!r} when this run began and is {value!r} now: the result is as accurate, but its last "
        "bits may differ from an undisturbed run's"
        for name, value in (now or {}).items()
        if known[name] != value
    ]
