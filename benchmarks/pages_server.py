"""The pages of `npmdask serve` by the standard library and by starlette with uvicorn: start, requests, hostile clients.

``python -m benchmarks.pages_server`` starts one server after the other on 127.0.0.1, in a folder that it makes, and
prints a table (docs/decisions/0061-pages-server.md). Where something else uses the processors, seconds of a processor
count, and not those of a clock.

============  ==========================================================================================
``http``      what is used: ``http.server``, a thread for each connection, of which a silent one ends
``forever``   the same without an end of silent connections
``starlette`` the same pages as an application of starlette, run by uvicorn
============  ==========================================================================================
"""

from __future__ import annotations

import argparse
import base64
import hmac
import http.client
import json
import resource
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from benchmarks.children import started

AUTH = "npmdask:secret"
LOGIN = f"Basic {base64.b64encode(AUTH.encode()).decode()}"
KINDS = ("http", "forever", "starlette")
PAGE, PATH = 200_000, "/run-0/report.html"
REQUESTS, SILENT = 300, 1000
FILES = 512  # that a server may have open: fewer than there are silent connections
WAIT = 45.0  # seconds after which a silent connection should be gone


# The variant.


def starlette_server(folder: Path, port: int) -> Callable[[], None]:
    """What :func:`npmdask.prefect.reports.server_of` would be, with the handler that it takes."""
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse, Response
    from starlette.routing import Route

    from npmdask.prefect import reports
    from npmdask.prefect.server import OwnPagesOnly

    root, login = folder.resolve(), LOGIN.encode()

    def page(request: Request) -> Response:
        if not hmac.compare_digest(request.headers.get("authorization", "").encode(), login):
            asks = 'Basic realm="reports of npmdask", charset="UTF-8"'
            return Response(status_code=401, headers={"WWW-Authenticate": asks})
        first = request.url.path == "/"
        asked = request.scope["raw_path"].decode("latin-1")
        found = reports._index_page(root, AUTH, request.url.query) if first else reports.page_at(root, asked)
        if found is None:
            return PlainTextResponse("there is no such page", 404)
        return Response(found, headers=reports.HEADERS | reports.INDEX_HEADERS if first else reports.HEADERS)

    listening = socket.create_server(("127.0.0.1", port))
    hosts = frozenset(f"{name}:{port}" for name in reports.HERE)
    app = OwnPagesOnly(Starlette(routes=[Route("/{path:path}", page)]), hosts, frozenset())
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=False,
        lifespan="off",
        loop="asyncio",
        http="h11",
        ws="none",
    )
    return lambda: uvicorn.Server(config).run(sockets=[listening])


def serve(kind: str, folder: Path, port: int) -> None:
    """Serve pages, in a process of its own; first write down what it took to be ready."""
    from npmdask.prefect import reports

    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    if kind == "starlette":
        answer = starlette_server(folder, port)
    else:
        reports._Pages.timeout = None if kind == "forever" else reports._Pages.timeout
        answer = reports.server_of(folder, port, AUTH).serve_forever
    taken = [time.process_time(), psutil.Process().memory_info().rss / 2**20]
    (folder / f"{port}.json").write_text(json.dumps(taken))
    answer()


# What is measured.


@contextmanager
def serving(kind: str, folder: Path) -> Iterator[tuple[psutil.Process, int, list[float]]]:
    """One server, from when it answers; its process, its port, and what it took to be ready."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    command = [sys.executable, "-m", "benchmarks.pages_server", "--serve", kind, str(folder), str(port)]
    with started(command, folder=folder) as child:
        while answered(port, 1).startswith("ConnectionRefused"):
            if child.poll() is not None:
                raise RuntimeError(f"the server {kind} ended")
            time.sleep(0.2)
        yield psutil.Process(child.pid), port, json.loads((folder / f"{port}.json").read_text())


def asked(port: int, path: str, method: str = "GET", seconds: float = 20.0) -> tuple[int, bytes]:
    """Ask once, with the login; status and body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)
    try:
        connection.putrequest(method, path)
        connection.putheader("Authorization", LOGIN)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def processor(process: psutil.Process) -> float:
    """Return how many seconds of a processor it has used."""
    times = process.cpu_times()
    return float(times.user + times.system)


def of_requests(process: psutil.Process, port: int) -> float:
    """Return milliseconds of a processor a page."""
    before = processor(process)
    for _ in range(REQUESTS):
        if asked(port, PATH) != (200, b"x" * PAGE):
            raise RuntimeError("the page is not as it is on disk")
    return 1000 * (processor(process) - before) / REQUESTS


def silent(port: int, count: int) -> list[socket.socket]:
    """Return connections that have sent half of a request, without a login: so many as there can be."""
    held = []
    with suppress(OSError):
        for _ in range(count):
            held.append(socket.create_connection(("127.0.0.1", port), timeout=5))
            held[-1].sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1:")
    return held


def still_open(held: list[socket.socket]) -> int:
    """Return how many of the connections the other side has not closed."""
    count = 0
    for one in held:
        one.setblocking(False)
        try:
            count += one.recv(1) != b""
        except BlockingIOError:
            count += 1
        except OSError:
            pass
    return count


def answered(port: int, seconds: float = 20.0) -> str:
    """Say in how many seconds an honest client has its page."""
    begun = time.perf_counter()
    try:
        status, _ = asked(port, PATH, seconds=seconds)
    except (OSError, http.client.HTTPException) as error:
        return type(error).__name__
    return f"{status} in {time.perf_counter() - begun:.2f} s"


def under_silence(process: psutil.Process, port: int) -> dict[str, Any]:
    """Measure what half requests cost, and whether an honest client has its page beside them."""
    memory = process.memory_info().rss
    with ExitStack() as stack:
        held = [stack.enter_context(one) for one in silent(port, SILENT)]
        time.sleep(1)
        before, begun = processor(process), time.perf_counter()
        found = {
            "threads": process.num_threads(),
            "MiB more": round((process.memory_info().rss - memory) / 2**20, 1),
            "an honest client": answered(port),
        }
        time.sleep(max(0.0, WAIT - (time.perf_counter() - begun)))
        found["seconds of a processor"] = round(processor(process) - before, 2)
        found["of seconds"] = round(time.perf_counter() - begun, 1)
        found[f"of {len(held)} open"] = still_open(held)
        found["an honest client then"] = answered(port)
        return found


def raw(port: int, request: bytes) -> str:
    """Return the first line of the answer to these bytes, or how it ended."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as one:
        with suppress(OSError):
            one.sendall(request)
        try:
            return one.recv(4096).partition(b"\r\n")[0].decode("latin-1")[:60] or "closed"
        except OSError as error:
            return type(error).__name__


def odd_requests(port: int) -> dict[str, str]:
    """Ask what no browser asks."""
    head = f"Host: 127.0.0.1:{port}\r\nAuthorization: {LOGIN}\r\n".encode()
    paths = ("/../../../etc/passwd", "/..%2f..%2fetc/passwd", "/%2e%2e/x.html", "//etc/x.html", "/run-0/run.json")
    traversal = {raw(port, f"GET {path} HTTP/1.1\r\n".encode() + head + b"\r\n")[9:12] for path in paths}
    large = b"X: " + b"x" * 10_000_000
    many = b"".join(b"X-%d: x\r\n" % number for number in range(10_000))
    return {
        "paths outside": ", ".join(sorted(traversal)),
        "a header of 10 MB": raw(port, b"GET / HTTP/1.1\r\n" + head + large + b"\r\n\r\n"),
        "10,000 headers": raw(port, b"GET / HTTP/1.1\r\n" + head + many + b"\r\n"),
        "HEAD": raw(port, b"HEAD /run-0/report.html HTTP/1.1\r\n" + head + b"\r\n"),
        "POST": raw(port, b"POST / HTTP/1.1\r\n" + head + b"Content-Length: 0\r\n\r\n"),
        "another host": raw(port, b"GET / HTTP/1.1\r\nHost: elsewhere.example\r\n\r\n"),
        "no login": raw(port, f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode()),
        "no HTTP": raw(port, b"\x16\x03\x01" + bytes(200) + b"\r\n\r\n"),
    }


def measure(kind: str, folder: Path, rounds: int) -> dict[str, Any]:
    """Return all figures of one server."""
    taken = []
    for number in range(rounds):
        with serving(kind, folder) as (process, port, ready):
            taken.append(ready)
            if number == rounds - 1:
                found = {"a page, ms of a processor": round(of_requests(process, port), 2)}
                found |= {"MiB then": round(process.memory_info().rss / 2**20, 1)}
                found |= odd_requests(port) | under_silence(process, port)
    seconds, memory = (statistics.median(one) for one in zip(*taken, strict=True))
    return {"start, ms of a processor": round(1000 * seconds), "start, MiB": round(memory, 1)} | found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", nargs=3, metavar=("KIND", "FOLDER", "PORT"), help="of its own children")
    parser.add_argument("--kinds", nargs="*", default=KINDS, choices=KINDS)
    parser.add_argument("--rounds", type=int, default=5)
    a = parser.parse_args()
    if a.serve:
        serve(a.serve[0], Path(a.serve[1]), int(a.serve[2]))
        return
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    with tempfile.TemporaryDirectory() as made:
        run = Path(made) / "run-0"
        run.mkdir()
        (run / "run.json").write_text("{}")
        (run / "report.html").write_text("x" * PAGE)
        for kind in a.kinds:
            print(json.dumps({kind: measure(kind, Path(made), a.rounds)}, indent=1), flush=True)


if __name__ == "__main__":
    main()
