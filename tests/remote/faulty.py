"""The S3 server of the benchmarks with faults on purpose, and a record of what it was asked.

``python -m tests.remote.faulty PORT FOLDER``. The file FOLDER/../faults holds a JSON list of ``[pattern, fault,
times]``: so many of the first requests for each object whose path matches are answered wrongly (-1: all of them).

| fault | what happens |
|---|---|
| hang | nothing is sent, and the connection stays open |
| refuse | 503 |
| truncate | half of the body is sent, then the connection ends |
| other range | the Content-Range is that of other bytes |
| whole | the range that is asked for is ignored |
| replace | while it is sent, the object is replaced by one of other bytes of the same size |
| flip | one bit is another, and not always the same one |
| stop | the first ``times`` requests are answered, later ones hang; FOLDER/../stopped appears when one does |

FOLDER/../tags says what entity tags are: "md5" of the content, "like md5" something of the same form, or else neither.

FOLDER/../seen gets a line for each GET: path, range, and the bytes of all bodies under way when it began. A body takes
``SLOW`` seconds, so that many are under way at once. FOLDER/../together holds a JSON list of a pattern and a number:
until so many bytes are under way at once, objects whose path matches wait, ``PATIENCE`` seconds at most. The last byte
of a body is sent when the body is no longer counted: a client that has all of it and asks for the next one is not
counted twice, however slow the machine is.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from benchmarks.object_server import S3, Server

SLOW = 0.03
PATIENCE = 20.0  # less than a client waits for an answer


class Faulty(S3):
    lock = threading.Lock()
    met: ClassVar[Counter[tuple[str, str]]] = Counter()
    flying = 0
    fault = ""

    def sent(self, path: Path) -> None:
        self.served = path
        self.fault = self.drawn() if self.command == "GET" else ""
        if self.fault == "stop":
            (self.folder.parent / "stopped").touch()
        if self.fault in ("hang", "stop"):
            time.sleep(60)
            self.close_connection = True
        elif self.fault == "refuse":
            self.answer(503, b"<Error><Code>SlowDown</Code></Error>")
        else:
            super().sent(path)

    def replace(self) -> None:
        path = self.served
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        other = path.with_name("other")
        other.write_bytes(data)
        other.rename(path)

    def tag_of(self, path: Path, about: os.stat_result) -> str:
        kind = told.read_text() if (told := self.folder.parent / "tags").exists() else ""
        secret = b"secret" if kind == "like md5" else b""
        return f'"{hashlib.md5(secret + path.read_bytes()).hexdigest()}"' if kind else super().tag_of(path, about)

    def drawn(self) -> str:
        try:
            faults = json.loads((self.folder.parent / "faults").read_text())
        except FileNotFoundError:
            return ""
        with self.lock:
            for pattern, fault, times in faults:
                if re.search(pattern, self.path):
                    self.met[self.path, fault] += 1
                    if times < 0 or (self.met[self.path, fault] <= times) == (fault != "stop"):
                        return str(fault)
        return ""

    def asked(self, size: int) -> tuple[int, int, int]:
        first, stop, status = super().asked(size)
        return (0, size, 200) if self.fault == "whole" else (first, stop, status)

    def begin(self, status: int, length: int, headers: dict[str, str]) -> None:
        if self.fault == "other range":
            headers = {**headers, "Content-Range": "bytes 7-8/9"}
            status = 206
        super().begin(status, length, headers)

    def body(self, file: int, first: int, stop: int) -> None:
        size = stop - first
        with self.lock:
            Faulty.flying += size
            with open(self.folder.parent / "seen", "a") as seen:
                seen.write(json.dumps([self.path, self.headers.get("Range"), Faulty.flying]) + "\n")
        try:
            time.sleep(SLOW)
            self.wait_for_others()
            if self.fault == "replace":
                self.replace()
            if self.fault == "flip":
                data = bytearray(os.pread(file, size, first))
                data[random.randrange(size)] ^= 4
                self.wfile.write(data)
                return
            if self.fault == "truncate":
                self.close_connection = True
                stop = (first + stop) // 2
            super().body(file, first, stop - 1)
        finally:
            with self.lock:
                Faulty.flying -= size
        super().body(file, stop - 1, stop)

    def wait_for_others(self) -> None:
        """An index of a shard is not held back: what it lists is asked for when it has come."""
        together, end = self.folder.parent / "together", time.monotonic() + PATIENCE
        held = not self.headers.get("Range", "").startswith("bytes=-")
        while held and together.exists():
            with self.lock, suppress(FileNotFoundError):
                pattern, nbytes = json.loads(together.read_text())
                held = bool(re.search(pattern, self.path))
                if held and (Faulty.flying >= nbytes or time.monotonic() > end):
                    together.unlink()
            time.sleep(0.005)


if __name__ == "__main__":
    Faulty.folder = Path(sys.argv[2])
    Server(("127.0.0.1", int(sys.argv[1])), Faulty).serve_forever()
