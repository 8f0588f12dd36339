"""An S3 server that honours conditions and shows whole objects only: rclone's, which does neither, behind a door that
looks at what is there before it lets a PUT through, and keeps readers out meanwhile.

``python -m tests.remote.conditional PORT PORT_OF_RCLONE FOLDER``; FOLDER is what rclone serves.

The file FOLDER/../faults says what goes wrong on purpose: ``STATUS n`` answers every PUT with that status, ``LOSE n``
lets every n-th PUT through and hangs up without an answer, ``AFTER n m`` lets every m-th through and answers n.
"""

from __future__ import annotations

import hashlib
import sys
import threading
from collections import defaultdict
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOCKS: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
WRITING = threading.Lock()
HOP = ("connection", "transfer-encoding", "keep-alive")


class Door(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    upstream: int
    folder: Path
    puts = 0

    def do_PUT(self) -> None:
        body, fault = self.body(), self.fault()
        if fault[:1] == ["STATUS"]:
            self.answer(int(fault[1]), b"<Error><Code>Refused</Code></Error>")
            return
        # One at a time: two that make one folder at once leave rclone with two entries for it, and what the other holds
        # is neither listed nor deleted while rclone remembers the folder.
        with LOCKS[self.path], WRITING:
            there = self.tag()
            wanted = self.headers.get("If-Match")
            if (self.headers.get("If-None-Match") == "*" and there) or (wanted is not None and wanted != there):
                self.answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
                return
            status, headers, content = self.forwarded(body)
        Door.puts += 1
        if fault[:1] == ["LOSE"] and Door.puts % int(fault[1]) == 0:
            self.close_connection = True
            return
        if fault[:1] == ["AFTER"] and Door.puts % int(fault[2]) == 0:
            self.answer(int(fault[1]), b"<Error><Code>SlowDown</Code></Error>")
            return
        self.answer(status, content, headers)

    def other(self) -> None:
        body = self.body()
        with LOCKS[self.path]:  # rclone would answer with the half of an object that is being replaced
            status, headers, content = self.forwarded(body)
        self.answer(status, content, headers)

    do_GET = do_HEAD = do_POST = do_DELETE = other

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def fault(self) -> list[str]:
        try:
            return (self.folder.parent / "faults").read_text().split()
        except FileNotFoundError:
            return []

    def tag(self) -> str | None:
        """The entity tag of what is there now: rclone's is the MD5 of the content."""
        try:
            data = (self.folder / unquote(urlsplit(self.path).path).lstrip("/")).read_bytes()
            return f'"{hashlib.md5(data).hexdigest()}"'
        except (FileNotFoundError, IsADirectoryError):
            return None

    def forwarded(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = HTTPConnection("127.0.0.1", self.upstream, timeout=30)
        try:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in HOP:
                    connection.putheader(name, value)
            connection.endheaders(body or None)
            response = connection.getresponse()
            return response.status, response.getheaders(), response.read()
        except OSError:
            return 503, [], b""
        finally:
            connection.close()

    def answer(self, status: int, content: bytes, headers: list[tuple[str, str]] | None = None) -> None:
        self.send_response_only(status)
        told = [(name, value) for name, value in headers or [] if name.lower() not in HOP]
        if not any(name.lower() == "content-length" for name, _ in told):
            told.append(("Content-Length", str(len(content))))
        for name, value in told:
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64


if __name__ == "__main__":
    Door.upstream, Door.folder = int(sys.argv[2]), Path(sys.argv[3])
    Server(("127.0.0.1", int(sys.argv[1])), Door).serve_forever()
