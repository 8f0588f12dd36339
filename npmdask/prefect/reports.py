"""The pages of runs by HTTP on this machine, so that a link on a page of Prefect opens them.

Browsers follow no ``file://`` link from an ``http://`` page, and Prefect strips a page that is put into an artifact.
So ``npmdask serve`` has this beside it: ``python -m npmdask.prefect.reports FOLDER PORT`` answers GET for ``*.html``
files of runs below FOLDER (``runs``) and, at /, for a page of all runs and schedules (:mod:`npmdask.prefect.index`);
for nothing else: no link is followed, and it has no other name than 127.0.0.1. It asks for the same login as
Prefect's pages: 127.0.0.1 is also where other users of the machine are.
"""

import argparse
import base64
import hmac
import os
import socket
import sys
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from npmdask.errors import RefusedError
from npmdask.prefect.index import SCRIPT_DIGEST, index_page
from npmdask.prefect.programs import BELOW, auth_string
from npmdask.report.render import script_policy

URL = "NPMDASK_REPORTS"  # where they are served
HERE = ("127.0.0.1", "localhost")
HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    # Reports run the one script that they are written with, and are shown in no page of others.
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'; "
    f"script-src {script_policy()}",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",  # the page of a run is rewritten
}
# The page of all runs renews itself, with a script of its own.
POLICY = HEADERS["Content-Security-Policy"]
INDEX_HEADERS = {
    "Content-Security-Policy": f"{POLICY} {SCRIPT_DIGEST}; connect-src 'self'; form-action 'self'",
    "Cache-Control": "no-store",
}


def link_to(page: str | Path) -> str | None:
    """The address at which ``page`` can be read, if the folder that it lies in is served."""
    url, below = os.environ.get(URL), os.environ.get(BELOW)
    if not url or not below:
        return None
    try:
        return f"{url}/{quote(Path(page).relative_to(below).as_posix())}"
    except ValueError:
        return None


def page_at(root: Path, path: str) -> bytes | None:
    """What is asked for, if it is a page below ``root`` (whose own links are resolved) with no link on the way."""
    named = unquote(urlsplit(path).path)
    asked = Path(os.path.normpath(root / named.lstrip("/")))
    if asked.suffix != ".html" or "\0" in named or not asked.is_relative_to(root) or not _of_a_run(root, asked.parent):
        return None
    try:
        return asked.read_bytes() if asked.resolve(strict=True) == asked and asked.is_file() else None
    except OSError:
        return None


def _of_a_run(root: Path, folder: Path) -> bool:
    """Whether ``folder``, below ``root``, is that of a run or lies in one."""
    return any((one / "run.json").is_file() for one in (folder, *folder.parents) if one.is_relative_to(root))


class _Pages(BaseHTTPRequestHandler):
    root: Path
    login: str
    auth: str

    def do_GET(self) -> None:
        if self.headers.get("Host", "") not in {f"{name}:{self.connection.getsockname()[1]}" for name in HERE}:
            self.send_error(403, "no page of another name can read these")
            return
        if not hmac.compare_digest(self.headers.get("Authorization", "").encode(), self.login.encode()):
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="reports of npmdask", charset="UTF-8"')
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        asked = urlsplit(self.path)
        first = asked.path == "/"
        found = index_page(self.root, self.auth, asked.query) if first else page_at(self.root, self.path)
        if found is None:
            self.send_error(404, "there is no such page")
            return
        self.send_response(200)
        for name, value in (HEADERS | INDEX_HEADERS if first else HEADERS).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(found)))
        self.end_headers()
        self.wfile.write(found)

    def log_message(self, *_: object) -> None:
        """Log no request: who reads what is private."""


def server_of(folder: Path | str, port: int, auth: str) -> ThreadingHTTPServer:
    """A server that answers once ``serve_forever`` is called, to who logs in with ``auth``; port 0: any that is free.

    Raises
    ------
    RefusedError
        The port is taken.
    """
    login = base64.b64encode(auth.encode()).decode()
    handler = type("Pages", (_Pages,), {"root": Path(folder).resolve(), "login": f"Basic {login}", "auth": auth})
    try:
        return ThreadingHTTPServer(("127.0.0.1", port), handler)
    except OSError as error:
        raise RefusedError(f"port {port} of 127.0.0.1 cannot be used ({error.strerror}); choose another") from error


def is_listening(port: int) -> bool:
    """Whether a server listens there."""
    with socket.socket() as probe:
        probe.settimeout(5)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until told to stop."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("port", type=int)
    a = parser.parse_args(argv)
    server_of(a.folder, a.port, auth_string()).serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
