"""Accept a cluster as an address, a file that a scheduler wrote, a client, or a cluster object; with TLS or without.

All of them become one thing: the address of the scheduler, as a text that may know how to reach it. What keeps it (the
record of a run) keeps the text alone.
"""

from __future__ import annotations

import json
import os
import ssl
from pathlib import Path
from typing import Any

from npmdask.core.storage.chunk_access import first_line
from npmdask.errors import BadInputError, LostError, RefusedError, extra, require

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
        return _address_in_file(Path(given))
    if isinstance(given, str):
        return given
    if _is_client(given):
        return _of_client(given)
    if hasattr(given, "scheduler_address"):
        return _of_cluster(given)
    raise BadInputError(f"cluster = {type(given).__name__} is not supported: {ACCEPTED}")


def is_scheduler_file(given: Any) -> bool:
    """Say whether ``given`` is the path of a scheduler file, which need not exist yet."""
    if isinstance(given, str):
        return "://" not in given and (given.endswith(".json") or os.path.isfile(given))
    return isinstance(given, os.PathLike)


def _address_in_file(path: Path) -> str:
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
    return _require_reachable(address)


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
    address = SchedulerAddress(_require_reachable(client.scheduler.address))
    address.client = client
    return address


def _of_cluster(cluster: Any) -> str:
    where = cluster.scheduler_address
    if not isinstance(where, str) or "://" not in where:
        raise LostError(f"the {type(cluster).__name__} has no scheduler (it is not started yet, or has ended)")
    address = SchedulerAddress(_require_reachable(where))
    address.security = getattr(cluster, "security", None)
    return address


def _require_reachable(address: str) -> str:
    if address.startswith(IN_PROCESS):
        raise BadInputError(
            f"the scheduler at {address} uses threads of this process as workers: leave cluster out, because npmdask "
            "has its own threads, or create it with processes=True"
        )
    return address


# TLS between Dask's processes: to a cluster with certificates of files, among our own workers with one made for them.
#
# Anyone who reaches a scheduler can run code on its workers and, as what they answer is unpickled, in its clients.
# Without certificates on both sides an address is the only border, and on a machine that others use 127.0.0.1 is none.

CA, CERT, KEY = "ca.pem", "cert.pem", "key.pem"
TLS = "tls://"
HOW = (
    f"set run.certificates (--certificates) to a folder with {CA}, {CERT} and {KEY}, or Dask's own "
    "DASK_DISTRIBUTED__COMM__TLS__CA_FILE, ..__TLS__CLIENT__CERT and ..__TLS__CLIENT__KEY in the environment"
)


def security_of(address: str, certificates: str | None) -> Any:
    """Return the certificates that a client shows the scheduler at ``address``; None where TLS is not used.

    ``certificates``: a folder with ca.pem (who signs the certificates of all), cert.pem and key.pem; without it what
    Dask's configuration says.

    Raises
    ------
    BadInputError
        There are none for ``tls://``, some for another address, or they are no certificates.
    RefusedError
        The key can be read by others.
    """
    from distributed import Security

    if not address.startswith(TLS):
        if certificates is not None:
            raise BadInputError(
                f"certificates are given ({certificates}), but {address} would be used without encryption: write "
                f"{TLS}{address.rpartition('://')[2]}, or leave run.certificates out"
            )
        return None
    security = Security(require_encryption=True) if certificates is None else _security_of_files(Path(certificates))
    if not (security.tls_ca_file and security.tls_client_cert):
        raise BadInputError(
            f"{address} uses TLS, but there are no certificates for it: {HOW}; or give a client or cluster object "
            "that has them"
        )
    try:
        security.get_connection_args("client")
    except (OSError, ValueError) as error:  # of ssl, too
        raise BadInputError(f"the certificates for {address} cannot be used ({error}): {HOW}") from error
    return security


def among_ourselves() -> Any:
    """For a scheduler and workers that this process starts: a certificate that is made now, for them, in memory.

    Raises
    ------
    MissingExtraError
        cryptography is not installed, without which none can be made.
    """
    from distributed import Security

    with extra(None):  # else distributed raises a bare ImportError
        import cryptography.x509  # noqa: F401
    return Security.temporary()


def _security_of_files(folder: Path) -> Any:
    from distributed import Security

    missing = [name for name in (CA, CERT, KEY) if not (folder / name).is_file()]
    require(not missing, f"{folder} has no {' and no '.join(missing)}; {HOW}")
    if (folder / KEY).stat().st_mode & 0o077:
        raise RefusedError(
            f"the key {folder / KEY} can be read by other users, who can use it to run code on the cluster: if no "
            "one has read it, `chmod 600` it"
        )
    files = {"tls_ca_file": CA, "tls_client_cert": CERT, "tls_client_key": KEY}
    return Security(require_encryption=True, **{name: str(folder / file) for name, file in files.items()})


def refusal(address: str, error: BaseException) -> str:
    """Say in words why the certificates were refused, and what to do."""
    return (
        f"the scheduler at {address} does not accept our certificate, or shows none that our {CA} has signed "
        f"({first_line(error)}): take the {CA}, {CERT} and {KEY} of the operator who runs it"
    )


def refused(error: BaseException) -> bool:
    """Say whether a connection that failed got as far as the certificates."""
    while error is not None:
        if isinstance(error, ssl.SSLError) or "SSL" in str(error):
            return True
        error = error.__cause__ or error.__context__  # type: ignore[assignment]
    return False
