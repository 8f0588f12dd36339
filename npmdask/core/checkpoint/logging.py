"""Log lines for programs that read logs: one JSON object a line, through ``logging`` of the standard library.

Every line has ``time`` (UTC), ``level``, ``run``, ``stage``, ``step``, ``event``, ``message``, ``process``, ``host``
and ``owner`` (what a scheduler started the process for: NPMDASK_OWNER); some have more. What is not known is null.
Lines about a private run bear no time and no size: those of its passes follow the number of rows
(docs/howto/observing.md).

Users of npmdask as a library find the same records at the logger "npmdask", and may handle them as any others.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
from datetime import UTC, datetime
from typing import Any

from npmdask.errors import BadInputError

LOG = "NPMDASK_LOG"
STDERR = ("-", "json")  # as a target; anything else is a file
OWNER = "NPMDASK_OWNER"
LOGGER = logging.getLogger("npmdask")
LOGGER.addHandler(logging.NullHandler())  # a library is silent unless its log is asked for


def tell(
    event: str,
    message: str,
    *,
    run: str | None = None,
    stage: str | None = None,
    step: int | None = None,
    level: int = logging.INFO,
    timeless: bool = False,
    **facts: Any,
) -> None:
    """One line. ``timeless``: it is about a private run; the line has to be public, and no time is written."""
    told = {"run": run, "stage": stage or None, "step": step, "event": event, "timeless": timeless, "facts": facts}
    LOGGER.log(level, message, extra={"told": told})


def open_log(target: str | None = None) -> None:
    """From now on lines go to ``target``, or to what NPMDASK_LOG names: a file, "-" or "json" (stderr), or nowhere.

    Raises
    ------
    BadInputError
        The file cannot be opened.
    """
    target = target or os.environ.get(LOG)
    for old in [handler for handler in LOGGER.handlers if isinstance(handler.formatter, JsonFormatter)]:
        LOGGER.removeHandler(old)
        if isinstance(old, _LogFile):
            old.end()
    if not target:
        return
    handler: logging.Handler = logging.StreamHandler(sys.stderr) if target in STDERR else _LogFile(target)
    handler.setFormatter(JsonFormatter())
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.INFO)


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        told = getattr(record, "told", {})
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = {
            "time": None if told.get("timeless") else at,
            "level": record.levelname,
            **{name: told.get(name) for name in ("run", "stage", "step")},
            "event": told.get("event", record.name),
            "message": record.getMessage(),
            "process": record.process,
            "host": socket.gethostname(),
            "owner": os.environ.get(OWNER) or None,
        }
        return json.dumps(line | told.get("facts", {}))


class _LogFile(logging.Handler):
    """Several processes may append to one file: a line is one write. One that was moved away is made again."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path, self._failed = os.path.abspath(path), False
        try:
            self._file = self._open_log()
        except OSError as error:
            raise BadInputError(
                f"the log {path} cannot be written: {error.strerror}; name a writable file (--log, {LOG})"
            ) from error

    def _open_log(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def emit(self, record: logging.LogRecord) -> None:
        """A disk that is full costs lines, and no run; said once."""
        try:
            if not self._in_place():
                before, self._file = self._file, self._open_log()
                os.close(before)
            os.write(self._file, f"{self.format(record)}\n".encode())
        except OSError as error:
            if not self._failed:
                self._failed = True
                print(f"npmdask: warning: lines are missing in the log {self._path}: {error}", file=sys.stderr)

    def _in_place(self) -> bool:
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(self._file))
        except FileNotFoundError:
            return False

    def end(self) -> None:
        """Let go of the file. Not ``close``: Prefect closes the handlers of everybody when it sets up its own."""
        os.close(self._file)
