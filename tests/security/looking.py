"""What others could reach: sockets and files, as the system has them."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil


def listening(process: psutil.Process) -> set[tuple[str, int]]:
    """Addresses at which a process, or one that it started, takes connections or packets."""
    found = []
    for each in (process, *process.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            found += each.net_connections("inet")
    return {(one.laddr.ip, one.laddr.port) for one in found if one.status in ("LISTEN", "NONE") and not one.raddr}


def open_to_others(folder: Path) -> Iterator[Path]:
    """Everything below a folder that its group, or everybody, can read or change on the way that there is."""
    mode = stat.S_IMODE(folder.stat().st_mode)
    if mode & 0o066:
        yield folder
    if not mode & 0o011:
        return
    for path in folder.iterdir():
        if path.is_dir():
            yield from open_to_others(path)
        elif path.stat().st_mode & 0o066:
            yield path
