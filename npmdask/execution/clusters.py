"""Accept a cluster as an address, a file that a scheduler wrote, a client, or a cluster object.

All of them become one thing: the address of the scheduler, as a text that may know how to reach it. What keeps it (the
record of a run) keeps the text alone.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from npmdask.errors import BadInputError, LostError

CURRENT = "current"
IN_PROCESS = "inproc://"
ACCEPTED = (
    "give the address of a Dask scheduler (tcp://host:8786), the JSON file that it wrote (--scheduler-file), a "
    'distributed.Client, a cluster object like LocalCluster or SLURMCluster, or "current" for the client of this '
    "program"
)


class SchedulerAddress(str):
    """The address of a scheduler, with the user's own client there, or what a new one has to show.

    Copies, pickles and JSON are of the text: they outlive this process, the client does not.

    Attributes
    ----------
    client : distributed.Client or None
        The user's, which is used as it is and never closed.
    security : distributed.Security or None
        Of a cluster object: its own certificates.
    """

    client: Any = None
    security: Any = None

    def __deepcopy__(self, memo: dict[int, Any]) -> str:
        return str(self)

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)


def scheduler_of(given: Any) -> str | None:
    """The address of what the user calls the cluster; "" and None, which mean none, stay what they are.

    Parameters
    ----------
    given : an address, the path of a scheduler file, "current", a ``distributed.Client``, or an object with a
        ``scheduler_address``.

    Raises
    ------
    BadInputError
        It is none of these, or cannot be used from here: asynchronous, closed, or threads of this process.
    LostError
        A cluster that is not started yet, or has ended.
    """
    if given is None or (isinstance(given, str) and (given == "" or isinstance(given, SchedulerAddress))):
        return given
    if isinstance(given, str) and given == CURRENT:
        return _of_client(_current())
    if is_scheduler_file(given):
        return _of_file(Path(given))
    if isinstance(given, str):
        return given
    if _is_client(given):
        return _of_client(given)
    if hasattr(given, "scheduler_address"):
        return _of_cluster(given)
    raise BadInputError(f"cluster = {type(given).__name__} is not supported: {ACCEPTED}")


def is_scheduler_file(given: Any) -> bool:
    """Whether it is a path: of a file that is there, or of one that is meant to be."""
    if isinstance(given, str):
        return "://" not in given and (given.endswith(".json") or os.path.isfile(given))
    return isinstance(given, os.PathLike)


def _of_file(path: Path) -> str:
    try:
        held = json.loads(path.read_text())
    except FileNotFoundError:
        raise LostError(
            f"there is no scheduler file {path}: wait until `dask scheduler --scheduler-file {path}` has written it"
        ) from None
    except (OSError, ValueError) as error:
        raise BadInputError(f"{path} is not the JSON file of a Dask scheduler ({error})") from error
    address = held.get("address") if isinstance(held, dict) else None
    if not isinstance(address, str) or "://" not in address:
        raise BadInputError(f'{path} is not the JSON file of a Dask scheduler: it has no "address"; {ACCEPTED}')
    return _reachable(address)


def _is_client(given: Any) -> bool:
    """A client is only where ``distributed`` is imported: it takes half a second that others need not wait."""
    from distributed import Client

    return isinstance(given, Client)


def _current() -> Any:
    from distributed import get_client

    try:
        return get_client()
    except ValueError:
        raise BadInputError(
            f'cluster = "{CURRENT}", but this program has no distributed.Client: create one first, or {ACCEPTED}'
        ) from None


def _of_client(client: Any) -> str:
    if client.asynchronous:
        raise BadInputError("the distributed.Client is asynchronous: make one with asynchronous=False for npmdask")
    if client.status != "running" or client.scheduler is None:
        raise LostError(f"the distributed.Client is {client.status}: create another one for the same cluster")
    address = SchedulerAddress(_reachable(client.scheduler.address))
    address.client = client
    return address


def _of_cluster(cluster: Any) -> str:
    where = cluster.scheduler_address
    if not isinstance(where, str) or "://" not in where:
        raise LostError(f"the {type(cluster).__name__} has no scheduler (it is not started yet, or has ended)")
    address = SchedulerAddress(_reachable(where))
    address.security = getattr(cluster, "security", None)
    return address


def _reachable(address: str) -> str:
    if address.startswith(IN_PROCESS):
        raise BadInputError(
            f"the scheduler at {address} uses threads of this process as workers: leave cluster out, because npmdask "
            "has its own threads, or create it with processes=True"
        )
    return address
