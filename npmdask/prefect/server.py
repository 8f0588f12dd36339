"""A Prefect server of our own: a child process on 127.0.0.1 with SQLite in PREFECT_HOME, gone when we are.

Prefect's own temporary server has no UI and outlives a process that was killed; this one does neither. Nor does it
take requests from anyone, as Prefect's does by default: any client of its API can run code on the worker.

* A request needs the auth string: that of PREFECT_SERVER_API_AUTH_STRING, or a random one in PREFECT_HOME/auth.
* A page of another origin may send nothing, neither by HTTP nor by websocket, and a request that changes something
  needs a token of Prefect's against forged ones.
* The Host of a request must be an address at which this server is known, so that no name elsewhere can be made to mean
  this machine (DNS rebinding).
"""

import base64
import json
import os
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence, Set
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode, urlsplit
from urllib.request import ProxyHandler, Request, build_opener
from uuid import uuid4

from npmdask.core.storage.paths import private
from npmdask.errors import RefusedError
from npmdask.prefect.processes import end_with_parent
from npmdask.prefect.programs import apply_settings, auth_string, home_folder

PATIENCE = 120  # seconds; migrating a new database takes 5 to 20
DATABASE_LOOK = 2.0  # seconds between two looks at its file
DATABASE_GONE = 76  # exit status: what workers know of this server is of no use to the next one
DATABASE_DAMAGED = 77  # exit status: the next one would fail at the same database
ROOT = Path(__file__).resolve().parents[2]
SETTINGS = {  # of a server, where the environment does not say otherwise
    "PREFECT_SERVER_API_CSRF_PROTECTION_ENABLED": "true",
    # A tick leaves some 30 events, 300 kB with their indexes; the keeper needs those of the last minute.
    "PREFECT_SERVER_EVENTS_RETENTION_PERIOD": "PT1H",
    # Flow runs go after a month, with their logs and artifacts: what they computed is in their stores.
    "PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED": "events,flow_runs",
    "PREFECT_SERVER_SERVICES_DB_VACUUM_RETENTION_PERIOD": str(30 * 86400),
    "PREFECT_SERVER_SERVICES_DB_VACUUM_LOOP_SECONDS": "600",
}


@contextmanager
def local_server(port: int | None = None) -> Iterator[str]:
    """The URL of the API: the server that Prefect is set to use, or else one of our own.

    Raises
    ------
    RefusedError
        It does not come up; the sentence names its log.
    """
    apply_settings()
    from prefect.context import refresh_global_settings_context
    from prefect.settings import PREFECT_API_URL

    if (url := PREFECT_API_URL.value()) is not None:
        yield url
        return
    port, auth = port or free_port(), auth_string()
    url, log = f"http://127.0.0.1:{port}/api", home_folder() / "server.log"
    here = {"PREFECT_SERVER_API_PORT": str(port), "PREFECT_UI_API_URL": url}
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "ab", opener=private) as file:
        child = subprocess.Popen(
            [sys.executable, "-m", "npmdask.prefect.server", str(port), str(os.getpid())],
            env=os.environ | here | {"PYTHONPATH": python_path()},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,  # a Ctrl-C is for the flow, which then tells this server how it ended
        )
    try:
        _wait(url, child, log)
        os.environ |= {"PREFECT_API_URL": url, "PREFECT_API_AUTH_STRING": auth}
        os.environ.setdefault("PREFECT_CLIENT_MAX_RETRIES", "2")  # 5 are a minute, and this one does not come back
        refresh_global_settings_context()
        del os.environ["PREFECT_API_AUTH_STRING"]  # what this process starts needs it no more
        yield url
    finally:
        os.environ.pop("PREFECT_API_URL", None)
        if child.poll() is None:
            send_what_is_queued()
        child.terminate()
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def send_what_is_queued() -> None:
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
    """Say whether the Prefect API at ``url`` is well; it says so to everybody."""
    with suppress(URLError, OSError), _OPEN(f"{url}/health", timeout=5) as answer:
        return bool(answer.status == 200)
    return False


def ask(url: str, path: str, query: Any = None, *, auth: str | None = None) -> Any:
    """Return what the Prefect API at ``url`` answers to GET, or with a ``query`` to POST.

    ``auth`` : its auth string; that of servers that are started here if it is left out. Raises OSError.
    """
    login = base64.b64encode((auth or auth_string()).encode()).decode()
    headers = {"Authorization": f"Basic {login}", "Content-Type": "application/json"}

    def answer(path: str, data: bytes | None = None) -> Any:
        for pause in (*BUSY, None):
            try:
                with _OPEN(Request(f"{url}{path}", data, headers), timeout=30) as found:
                    return json.loads(found.read())
            except HTTPError as error:
                if error.code != 503 or pause is None:
                    raise
            time.sleep(pause)

    if query is None:
        return answer(path)
    headers["Prefect-Csrf-Client"] = client = str(uuid4())
    headers["Prefect-Csrf-Token"] = answer(f"/csrf-token?{urlencode({'client': client})}")["token"]
    return answer(path, json.dumps(query).encode())


BUSY = (0.2, 1.0, 3.0)  # seconds before it is asked again, whose database had no time: it answers 503
_OPEN = build_opener(ProxyHandler({})).open  # this machine, or a service beside it: never through a proxy


def _wait(url: str, child: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and child.poll() is None:
        if answers(url):
            return
        time.sleep(0.1)
    said = log.read_text(errors="replace").strip().splitlines()
    raise RefusedError(f"the Prefect server did not start at {url} (see {log}): {said[-1] if said else 'no log'}")


def _serve(port: int, parent: int | None = None) -> None:
    """Serves until it has to stop, or until ``parent`` is gone, however it went."""
    if parent is not None:
        end_with_parent()
        if os.getppid() != parent:
            return
    import uvicorn

    apply_settings()
    for name, value in {**SETTINGS, "PREFECT_UI_API_URL": f"http://127.0.0.1:{port}/api"}.items():
        os.environ.setdefault(name, value)
    auth = auth_string()
    os.environ |= {"PREFECT_SERVER_API_AUTH_STRING": auth, "PREFECT_API_AUTH_STRING": auth}  # of no other process
    hosts, origins = own_addresses(port)
    os.environ.setdefault("PREFECT_SERVER_CORS_ALLOWED_ORIGINS", ",".join(sorted(origins)))
    from prefect.server.api.server import create_app  # reads its settings now

    if parent is None:
        threading.Thread(target=_require_database, daemon=True).start()
    app, host = OwnPagesOnly(create_app(), hosts, origins), os.environ.get("PREFECT_SERVER_API_HOST", "127.0.0.1")
    try:
        uvicorn.run(app, host=host, port=port, log_level="error", timeout_graceful_shutdown=3)
    except SystemExit:  # it did not come up
        file = _database()
        if file is not None and (why := damage_of(file)):
            print(
                f"{file} is damaged, or no database of Prefect ({why}): move it away, with {file.name}-wal and "
                f"{file.name}-shm, and start again; schedules come back from their file and runs from their stores, "
                "only the history is lost",
                flush=True,
            )
            sys.exit(DATABASE_DAMAGED)
        raise


def _database() -> Path | None:
    """The file of the database of this server; None where there is none (PostgreSQL, memory)."""
    from prefect.settings import get_current_settings
    from sqlalchemy import make_url

    secret = get_current_settings().server.database.connection_url
    url = None if secret is None else make_url(secret.get_secret_value())
    if url is None or not url.drivername.startswith("sqlite") or url.database in (None, "", ":memory:"):
        return None
    return Path(str(url.database))


def damage_of(file: Path) -> str:
    """Return what SQLite finds wrong with a database, by reading; "" where it is whole, or cannot be looked at now."""
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", timeout=0, uri=True)) as there:
            said = str(there.execute("pragma quick_check(1)").fetchone()[0])
    except sqlite3.OperationalError:  # locked, or not to be opened
        return ""
    except sqlite3.DatabaseError as error:
        return str(error)
    return "" if said == "ok" else said.replace("\n", " ")


def _require_database() -> None:
    """End this process when the file of its database is gone or another one: what it holds open has no name any more.

    It is started again (by ``npmdask serve``, by a container), and makes a new one.
    """
    file, first = _database(), None
    while file is not None:
        try:
            now = file.stat().st_ino
        except FileNotFoundError:
            now = None
        if first is not None and now != first:
            print(f"{file} was deleted or replaced: this server ends, the next one makes its own", flush=True)
            os._exit(DATABASE_GONE)
        first = now
        time.sleep(DATABASE_LOOK)


def own_addresses(port: int) -> tuple[frozenset[str], frozenset[str]]:
    """Return hosts under which a server at ``port`` is known, and origins of its pages.

    They are this machine's, and what PREFECT_API_URL and PREFECT_UI_API_URL name.
    """
    named = [f"http://{name}:{port}" for name in ("127.0.0.1", "localhost")]
    named += [os.environ.get(name, "") for name in ("PREFECT_API_URL", "PREFECT_UI_API_URL")]
    urls = [url for url in map(urlsplit, named) if url.hostname]
    places = [(url.scheme, url.netloc.rpartition("@")[2].lower()) for url in urls]
    return frozenset(host for _, host in places), frozenset(f"{scheme}://{host}" for scheme, host in places)


class OwnPagesOnly:
    """An ASGI application before another: it refuses what names another host, or comes from a page of another origin.

    Browsers put the origin of a page into every request that changes something and into every websocket; programs that
    are no browsers send none.
    """

    def __init__(self, app: Any, hosts: Set[str], origins: Set[str]) -> None:
        self._app, self._hosts, self._origins = app, hosts, origins

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif (why := self._refusal(scope["headers"])) is None:
            await self._app(scope, receive, partial(_deny_framing, send))
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": why})  # before it is accepted: 403
        else:
            head = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(why)).encode())]
            await send({"type": "http.response.start", "status": 403, "headers": head})
            await send({"type": "http.response.body", "body": why.encode()})

    def _refusal(self, headers: Sequence[tuple[bytes, bytes]]) -> str | None:
        told = [(name, value.decode("latin-1").lower()) for name, value in headers]
        hosts, origins = ({value for name, value in told if name == wanted} for wanted in (b"host", b"origin"))
        if len(hosts) != 1 or not hosts <= self._hosts:
            return "the Host of this request is no address of this server; PREFECT_UI_API_URL can name another one"
        if not origins <= self._origins:
            return "this request comes from a page of another server"
        return None


async def _deny_framing(send: Any, message: Any) -> None:
    """Sends on; a page of another origin cannot put ours into a frame, to have it clicked."""
    if message["type"] == "http.response.start":
        message = message | {"headers": [*message.get("headers", ()), (b"x-frame-options", b"DENY")]}
    await send(message)


if __name__ == "__main__":
    _serve(*map(int, sys.argv[1:]))
