"""A Prefect server of our own: a child process on 127.0.0.1 with SQLite in PREFECT_HOME, gone when we are.

Prefect's own temporary server has no UI and outlives a process that was killed; this one does neither.
"""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from npmdask.errors import RefusedError
from npmdask.storage.places import private

PATIENCE = 120  # seconds; migrating a new database takes 5 to 20
ROOT = Path(__file__).resolve().parent.parent


@contextmanager
def local_server(port: int | None = None) -> Iterator[str]:
    """The URL of the API: the server that Prefect is set to use, or else one of our own.

    Raises
    ------
    RefusedError
        It does not come up; the sentence names its log.
    """
    from prefect.context import refresh_global_settings_context
    from prefect.settings import PREFECT_API_URL

    if (url := PREFECT_API_URL.value()) is not None:
        yield url
        return
    port = port or free_port()
    url, log = f"http://127.0.0.1:{port}/api", Path(os.environ["PREFECT_HOME"], "server.log")
    here = {"PREFECT_SERVER_API_PORT": str(port), "PREFECT_UI_API_URL": url}
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "ab", opener=private) as file:
        child = subprocess.Popen(
            [sys.executable, "-m", "flows.server", str(port), str(os.getpid())],
            env=os.environ | here | {"PYTHONPATH": python_path()},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,  # a Ctrl-C is for the flow, which then tells this server how it ended
        )
    try:
        _wait(url, child, log)
        os.environ["PREFECT_API_URL"] = url
        os.environ.setdefault("PREFECT_CLIENT_MAX_RETRIES", "2")  # 5 are a minute, and this one does not come back
        refresh_global_settings_context()
        yield url
    finally:
        os.environ.pop("PREFECT_API_URL", None)
        if child.poll() is None:
            _send_what_is_queued()
        child.terminate()
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _send_what_is_queued() -> None:
    """Logs and events go out in the background; at exit they would wait a minute for a server that is gone."""
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    for worker in (APILogWorker, EventsWorker):
        worker.drain_all(timeout=5)


def python_path() -> str:
    """PYTHONPATH for children: they import ``flows`` and ``npmdask`` from any working directory."""
    return os.pathsep.join(dict.fromkeys([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(url: str) -> bool:
    """Whether the Prefect API at ``url`` is well."""
    with suppress(URLError, OSError), urlopen(f"{url}/health", timeout=5) as answer:
        return bool(answer.status == 200)
    return False


def _wait(url: str, child: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and child.poll() is None:
        if answers(url):
            return
        time.sleep(0.1)
    said = log.read_text(errors="replace").strip().splitlines()
    raise RefusedError(f"the Prefect server did not come up at {url} (see {log}): {said[-1] if said else 'no log'}")


def _serve(port: int, parent: int | None = None) -> None:
    """Serves until it is told to stop, or until ``parent`` is gone, however it went."""
    if sys.platform == "linux" and parent is not None:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if parent is not None and os.getppid() != parent:
        return
    import uvicorn

    app, host = "prefect.server.api.server:create_app", os.environ.get("PREFECT_SERVER_API_HOST", "127.0.0.1")
    uvicorn.run(app, factory=True, host=host, port=port, log_level="error", timeout_graceful_shutdown=3)


if __name__ == "__main__":
    _serve(*map(int, sys.argv[1:]))
