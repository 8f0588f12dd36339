"""One process at a time writes a store: the lock beside it."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from npmdask.errors import CommitError, RefusedError
from npmdask.storage.paths import open_plain, require_path


@contextmanager
def locked(target: Path) -> Iterator[None]:
    """Hold ``DEST.partial.lock`` (flock: the kernel lets go of it however this process dies)."""
    require_path(target)
    path = target.with_name(target.name + ".partial.lock")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor = _acquire(path, target)
    except OSError as error:
        raise CommitError(f"cannot write {path}: {error.strerror or error}; choose another place") from error
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _acquire(path: Path, target: Path) -> int:
    while True:
        descriptor = open_plain(path, os.O_RDWR | os.O_CREAT, 0o644)  # close-on-exec, as Python opens everything
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(descriptor, 32, 0).decode().strip() or "unknown"
            os.close(descriptor)
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            raise RefusedError(
                f"another process (pid {holder}) is writing {target}; wait for it or end it first"
            ) from None
        # The holder before may have removed the file between open and flock: then this lock guards nothing.
        if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
            return descriptor
        os.close(descriptor)
