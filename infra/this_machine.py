"""What a local cluster finds on this machine: programs, and ports that are free."""

import shutil
import socket
import sys
from pathlib import Path

from infra import postgres
from infra.topology import POSTGRES
from npmdask.errors import RefusedError

HERE = "127.0.0.1"


def programs() -> dict[str, str]:
    """Where everything is here, by its name in a topology.

    Raises
    ------
    RefusedError
        There is no PostgreSQL, or no rclone.
    """
    beside, found = Path(sys.executable).parent, postgres.binaries()
    if found is None:
        raise RefusedError(postgres.MISSING)
    rclone = shutil.which("rclone", path=str(beside)) or shutil.which("rclone")
    if rclone is None:
        raise RefusedError("there is no rclone here, which serves the object store: `make env` installs it")
    return {"python": sys.executable, "dask": str(beside / "dask"), "rclone": rclone, POSTGRES: str(found / "postgres")}


def free_ports(count: int) -> list[int]:
    """Different ones: all of them are held until the last is found."""
    held = [socket.socket() for _ in range(count)]
    try:
        for one in held:
            one.bind((HERE, 0))
        return [int(one.getsockname()[1]) for one in held]
    finally:
        for one in held:
            one.close()
