"""A small S3 server over a folder, that reads only: GET with ranges and conditions, HEAD and LIST, on loopback.

``python -m benchmarks.object_server PORT FOLDER``; ``FOLDER/bucket/key`` is ``s3://bucket/key``. rclone's, which the
tests use elsewhere, answers a request for a range with the status of a whole object, which clients of S3 refuse.
"""

from __future__ import annotations

import os
import re
import sys
from datetime import UTC, datetime
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

RANGE = re.compile(r"bytes=(\d+)-(\d*)$|bytes=-(\d+)$")
LIST = (
    '<?xml version="1.0"?><ListBucketResult><KeyCount>{n}</KeyCount><IsTruncated>false</IsTruncated>{all}'
    "</ListBucketResult>"
)


class S3(BaseHTTPRequestHandler):
    """One request after the other of a connection, which is kept."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    folder: Path

    def do_GET(self) -> None:
        where = urlsplit(self.path)
        if "list-type=2" in where.query:
            self.listed(where.path, parse_qs(where.query, keep_blank_values=True))
        else:
            self.sent(self.folder / unquote(where.path).lstrip("/"))

    do_HEAD = do_GET

    def sent(self, path: Path) -> None:
        """An object or a part of it."""
        try:
            file = os.open(path, os.O_RDONLY)
            about = os.fstat(file)
            if not path.is_file():
                raise FileNotFoundError
        except OSError:
            self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
            return
        try:
            tag = self.tag_of(path, about)
            if self.headers.get("If-Match", tag) != tag:
                self.answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
                return
            first, stop, status = self.asked(about.st_size)
            if first >= stop and status == 206:
                self.answer(416, b"<Error><Code>InvalidRange</Code></Error>")
                return
            headers = {"ETag": tag, "Last-Modified": formatdate(about.st_mtime, usegmt=True), "Accept-Ranges": "bytes"}
            if status == 206:
                headers["Content-Range"] = f"bytes {first}-{stop - 1}/{about.st_size}"
            self.begin(status, stop - first, headers)
            if self.command == "GET":
                self.body(file, first, stop)
        finally:
            os.close(file)

    def asked(self, size: int) -> tuple[int, int, int]:
        """First byte, one past the last, and the status of the answer."""
        found = RANGE.match(self.headers.get("Range", ""))
        if found is None:
            return 0, size, 200
        if found[3]:
            return max(0, size - int(found[3])), size, 206
        return int(found[1]), min(size, int(found[2]) + 1 if found[2] else size), 206

    def body(self, file: int, first: int, stop: int) -> None:
        """The bytes, by the kernel."""
        self.wfile.flush()
        while first < stop:
            sent = os.sendfile(self.connection.fileno(), file, first, min(stop - first, 2**20))
            if not sent:
                self.close_connection = True
                return
            first += sent

    def listed(self, bucket: str, query: dict[str, list[str]]) -> None:
        """All objects below a prefix, or the folders and objects in it."""
        top, prefix = self.folder / unquote(bucket).strip("/"), query.get("prefix", [""])[0]
        deep, keys, folders = query.get("delimiter", [""])[0] == "", list[str](), set[str]()
        for base, _, names in os.walk(top / prefix if prefix.endswith("/") else top):
            keys += [str((Path(base) / name).relative_to(top)) for name in names]
        found = []
        for key in sorted(key for key in keys if key.startswith(prefix)):
            rest = key[len(prefix) :]
            if "/" in rest and not deep:
                folders.add(prefix + rest.partition("/")[0] + "/")
                continue
            about = (top / key).stat()
            tag = self.tag_of(top / key, about)
            found.append(
                f"<Contents><Key>{escape(key)}</Key><Size>{about.st_size}</Size><ETag>{escape(tag)}</ETag>"
                f"<LastModified>{_iso(about.st_mtime)}</LastModified></Contents>"
            )
        found += [f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>" for name in sorted(folders)]
        self.answer(200, LIST.format(n=len(found), all="".join(found)).encode())

    def tag_of(self, path: Path, about: os.stat_result) -> str:
        """The entity tag of an object: that of a file which is replaced differs."""
        return f'"{about.st_mtime_ns:x}-{about.st_size:x}-{about.st_ino:x}"'

    def answer(self, status: int, content: bytes) -> None:
        self.begin(status, len(content), {"Content-Type": "application/xml"})
        if self.command == "GET":
            self.wfile.write(content)

    def begin(self, status: int, length: int, headers: dict[str, str]) -> None:
        self.send_response_only(status)
        for name, value in {**headers, "Content-Length": str(length)}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing."""


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512


if __name__ == "__main__":
    S3.folder = Path(sys.argv[2])
    Server(("127.0.0.1", int(sys.argv[1])), S3).serve_forever()
