"""Reports by HTTP: pages of runs, and nothing else that lies beside, below or above them."""

import base64
import http.client
import re
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.error import HTTPError

import pytest

from npmdask.prefect import reports
from npmdask.prefect.programs import BELOW
from npmdask.prefect.server import ask

AUTH = "npmdask:secret"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    runs = tmp_path / "runs"
    (runs / "a b" / "steps").mkdir(parents=True)
    (runs / "a b" / "report.html").write_text("<p>of a b</p>")
    (runs / "a b" / "run.json").write_text("{}")
    (runs / "a b" / "folder.html").mkdir()
    (tmp_path / "outside.html").write_text("outside")
    (tmp_path / "runs-too").mkdir()
    (tmp_path / "runs-too" / "report.html").write_text("beside")
    (runs / "link.html").symlink_to(tmp_path / "outside.html")
    (runs / "inside.html").symlink_to(runs / "a b" / "report.html")
    (runs / "up").symlink_to(tmp_path)
    (runs / "no-run").mkdir()
    (runs / "no-run" / "report.html").write_text("of no run")
    return runs


@pytest.fixture
def port(root: Path) -> Iterator[int]:
    with reports.server_of(root, 0, AUTH) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def asked(
    port: int, path: str, method: str = "GET", host: str | None = None, auth: str | None = AUTH
) -> tuple[int, str, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.putrequest(method, path, skip_host=True)  # as it is: no client in between that makes it nicer
    connection.putheader("Host", host or f"127.0.0.1:{port}")
    if auth is not None:
        connection.putheader("Authorization", f"Basic {base64.b64encode(auth.encode()).decode()}")
    connection.endheaders()
    answer = connection.getresponse()
    found = answer.status, answer.read().decode(), dict(answer.getheaders())
    connection.close()
    return found


def test_a_page_is_served_as_it_is_now(root: Path, port: int) -> None:
    status, text, headers = asked(port, "/a%20b/report.html?x=1")
    assert (status, text) == (200, "<p>of a b</p>") and headers["Content-Type"].startswith("text/html")
    allowed = headers["Content-Security-Policy"].partition("script-src ")[2]
    assert re.fullmatch(r"'sha256-[\w+/]{43}='", allowed), "one script by its digest, and no other"
    (root / "a b" / "report.html").write_text("<p>new</p>")
    assert asked(port, "/a%20b/report.html", host=f"localhost:{port}")[1] == "<p>new</p>"
    assert reports.is_listening(port)


@pytest.mark.parametrize(
    "path",
    [
        "/.",
        "/index.html",
        "/no-run/report.html",
        "/a%20b",
        "/a%20b/",
        "/a%20b/run.json",
        "/a%20b/folder.html",
        "/missing.html",
        "/../outside.html",
        "/..%2foutside.html",
        "/a%20b/../../outside.html",
        "/%2e%2e/runs-too/report.html",
        "/../runs-too/report.html",
        "//etc/x.html",
        "/link.html",
        "/inside.html",
        "/up/outside.html",
        "/up/runs/a%20b/report.html",
        "/a%20b/report.html%00",
        "/a%20b/run.json%00.html",
        "http://elsewhere/a.html",
    ],
)
def test_nothing_else_is(port: int, path: str) -> None:
    status, text, _ = asked(port, path)
    assert status == 404 and "outside" not in text.replace("outside.html", "") and "beside" not in text


def test_no_other_name_of_this_machine_and_no_other_method(port: int) -> None:
    """A page elsewhere whose name is made to mean 127.0.0.1 cannot read ours."""
    for host in ("elsewhere.example", f"elsewhere.example:{port}", "127.0.0.1", f"127.0.0.1:{port + 1}", ":", ""):
        assert asked(port, "/a%20b/report.html", host=host or " ")[0] == 403
    assert asked(port, "/a%20b/report.html", "POST")[0] == 501
    assert asked(port, "/a%20b/report.html", "DELETE")[0] == 501


def test_without_a_login_there_is_nothing_to_get(port: int) -> None:
    """Other users of the machine reach 127.0.0.1, too; a browser asks for the login, and a frame shows no page."""
    for auth in (None, "", AUTH + "x", AUTH[:-1]):
        status, text, headers = asked(port, "/a%20b/report.html", auth=auth)
        assert (status, text) == (401, "") and headers["WWW-Authenticate"].startswith("Basic ")
        assert asked(port, "/missing.html", auth=auth)[0] == 401
    assert "frame-ancestors 'none'" in asked(port, "/a%20b/report.html")[2]["Content-Security-Policy"]


def test_who_sends_nothing_is_not_waited_for(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each connection has a thread; any user of the machine could make as many as there can be."""
    assert 0 < (reports._Pages.timeout or 0) <= 60
    monkeypatch.setattr(reports._Pages, "timeout", 0.5)
    for sent in (b"", b"GET / HTTP/1.1\r\nHost: 127.0.0.1:"):
        with socket.create_connection(("127.0.0.1", port), timeout=120) as silent:
            silent.sendall(sent)
            assert silent.recv(1) == b"", "the server ends it"
    assert asked(port, "/a%20b/report.html")[0] == 200


def test_links_are_of_pages_that_are_served(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = root / "a b" / "report.html"
    for name in (reports.URL, BELOW):
        monkeypatch.delenv(name, raising=False)
    assert reports.page_url(page) is None
    monkeypatch.setenv(reports.URL, "http://127.0.0.1:4201")
    monkeypatch.setenv(BELOW, str(root))
    assert reports.page_url(page) == "http://127.0.0.1:4201/a%20b/report.html"
    assert reports.page_url(root.parent / "outside.html") is None


@pytest.mark.slow
def test_a_server_whose_database_is_busy_is_asked_again() -> None:
    """Mutant: one 503, as Prefect says where SQLite is locked, and the page knows no schedule."""
    answers = [503, 503, 200]

    class Busy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(answers.pop(0))
            self.end_headers()
            self.wfile.write(b"[1]")

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Busy) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        assert ask(f"http://127.0.0.1:{server.server_port}", "/flows", auth="a:b") == [1] and not answers
        answers[:] = [404, 200]
        with pytest.raises(HTTPError):
            ask(f"http://127.0.0.1:{server.server_port}", "/flows", auth="a:b")
        server.shutdown()
