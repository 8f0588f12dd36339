"""Signs of life of a flow run, and leaving quietly when another process has its store.

A killed process gives no notice. So while a flow runs a thread sends an event every BEAT seconds, and the keeper
(:mod:`npmdask.prefect.keeper`) misses it when it does not come. Prefect's own heartbeats would do, but go through a
websocket and come every 30 seconds at best.
"""

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import wraps
from logging import ERROR
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from httpx import HTTPError
from prefect.client.orchestration import get_client
from prefect.context import SettingsContext, get_settings_context
from prefect.runtime import flow_run
from prefect.states import Crashed

from npmdask.config import RunConfig
from npmdask.core.checkpoint.lease import OWNER
from npmdask.core.checkpoint.logging import open_log, tell
from npmdask.core.checkpoint.store import RunStore
from npmdask.errors import CommitError, FencedOutError, HeldError, LostError, RefusedError
from npmdask.manage.status import note_end
from npmdask.prefect.programs import BELOW, FOLDER

Made = TypeVar("Made", bound=Callable[..., Any])

BEAT = 15.0  # seconds
EVENT = "npmdask.heartbeat"
DEATHS = 5  # in a row, at the same place: then a run is not started again
FROM_A_WORKER = "PREFECT__FLOW_RUN_ID"  # set by Prefect in a process that was started for one flow run


def tended(function: Made) -> Made:
    """For a flow: it beats while it runs, and ends as its keeper expects.

    * Relative paths of a scheduled run start at the folder of ``schedules.toml``, and not in the empty temporary folder
      in which Prefect starts it.
    * What went away and may come back (a cluster, an object store, a full disk, the Prefect server) is a crash: the
      keeper starts it again.
    * One whose store another process has, for the same flow run, ends its process without a state: it would be that of
      the other one. An exit status other than 0 would be reported as a crash. A process that hangs in the middle of
      a commit, where no process can take its run over, is killed first.
    """

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not _is_called_directly():
            print_to_whoever_listens()
            os.environ.pop("PREFECT_API_AUTH_STRING", None)  # Prefect has read it; what the run starts needs it not
            with suppress(OSError):  # of another machine: there are its absolute paths alone
                os.chdir(os.environ.get(FOLDER, "."))
        open_log()
        private = _is_private(*args, *kwargs.values())
        with beating(), _logging_failures(kwargs.get("run_id"), private=private):
            try:
                with _recording_end(kwargs.get("run_id"), private=private):
                    return function(*args, **kwargs)
            except (LostError, CommitError, HTTPError) as error:
                if _is_called_directly():
                    raise
                gone = f"the Prefect server failed ({type(error).__name__}): its log says why"
                return Crashed(message=gone if isinstance(error, HTTPError) else str(error))
            except (FencedOutError, HeldError) as error:
                same = isinstance(error, FencedOutError) or error.owner == flow_run.get_id()
                if same and isinstance(error, HeldError) and error.stuck and not _is_called_directly():
                    os.kill(error.pid, signal.SIGKILL)  # the keeper gave it up; what it has not committed is not lost
                    return Crashed(message="the process before this one hung in the middle of a commit, and was ended")
                if same and not _is_called_directly():
                    print(f"npmdask: {error}; this process leaves it to the other", file=sys.stderr, flush=True)
                    os._exit(0)
                raise

    return call  # type: ignore[return-value]


@contextmanager
def _recording_end(schedule: str | None, *, private: bool) -> Iterator[None]:
    """Write down how a scheduled run ended, for `npmdask status` and metrics: one that fails early has no store."""
    runs, name = os.environ.get(BELOW), None if _is_called_directly() else schedule  # a run is called as its schedule
    error: str | None = None
    try:
        yield
    except HeldError:  # another process has the run, and will say how it ended
        name = None
        raise
    except Exception as failed:
        error = str(failed) or type(failed).__name__
        raise
    finally:
        if runs and name and not isinstance(sys.exc_info()[1], KeyboardInterrupt | SystemExit):
            with suppress(OSError):
                note_end(Path(runs), name, error, private=private)


@contextmanager
def _logging_failures(run: str | None, *, private: bool) -> Iterator[None]:
    """A line of the log where a flow fails, also before it has a store: the kind; the sentence is that of its state."""
    try:
        yield
    except Exception as error:
        kind = type(error).__name__
        tell("flow", f"the flow run fails: {kind}", level=ERROR, kind=kind, run=run, timeless=private)
        raise


def _is_private(*arguments: Any) -> bool:
    """Say whether a flow's arguments may be of a private run: nodes decide for themselves, and count as private."""
    asked = [one for one in arguments if isinstance(one, RunConfig)]
    return any(one.privacy is not None or one.source.nodes is not None for one in asked)


def require_progress(store: str) -> None:
    """Before a worker's process goes on with a run: it has not died at the same place again and again.

    Raises
    ------
    RefusedError
        It has, DEATHS times; the sentence says where.
    """
    deaths, where = RunStore(store).crashes()
    if deaths >= DEATHS and FROM_A_WORKER in os.environ:
        raise RefusedError(
            f"run {store} has died {deaths} times in a row at {where} without making progress: check the memory and "
            f"the disk of the machine, then run `npmdask resume {store}`"
        )


def _is_called_directly() -> bool:
    """Say whether the caller waits in this process for the flow, instead of a worker outside of it.

    A sub-flow has such a caller too, the flow that called it: process and environment are not its own.
    """
    return os.environ.get(FROM_A_WORKER) != flow_run.get_id()


@contextmanager
def beating() -> Iterator[None]:
    """Send signs of life of the flow run around it, if there is one; stores that it opens bear its id."""
    run_id = flow_run.get_id()
    if run_id is None:
        yield
        return
    before = os.environ.get(OWNER)
    os.environ[OWNER] = run_id
    over = threading.Event()
    thread = threading.Thread(target=_send_beats, args=(run_id, over, _current_settings()), name="heart", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        os.environ.pop(OWNER) if before is None else os.environ.__setitem__(OWNER, before)


def _current_settings() -> SettingsContext:
    """For a thread, which has a context of its own: the settings in force, those of a test harness for example."""
    now = get_settings_context()
    return SettingsContext(profile=now.profile, settings=now.settings)


def _send_beats(run_id: str, over: threading.Event, settings: SettingsContext) -> None:
    with settings:
        while not over.is_set():
            # A server that is away for a while: the keeper knows that, too. One without events needs none.
            with suppress(HTTPError, OSError):
                send_sign(run_id)
            over.wait(BEAT)


def send_sign(run_id: str) -> None:
    """One sign of life: which process, on which machine; nothing of the run."""
    event = {
        "id": str(uuid4()),
        "occurred": datetime.now(UTC).isoformat(),
        "event": EVENT,
        "resource": {"prefect.resource.id": f"prefect.flow-run.{run_id}"},
        "payload": {"pid": os.getpid(), "host": socket.gethostname()},
    }
    with get_client(sync_client=True) as client:
        client.request("POST", "/events", json=[event])


class Unheard:
    """A text stream that goes on when the pipe below it is broken."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(BrokenPipeError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(BrokenPipeError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def print_to_whoever_listens() -> None:
    """From now on stdout and stderr of this process are of that kind."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if not isinstance(stream, Unheard):
            setattr(sys, name, Unheard(stream))
