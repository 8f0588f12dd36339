"""The S3 server of the benchmarks with faults on purpose, and a record of what it was asked.

``python -m tests.cluster.faulty PORT FOLDER``. The file FOLDER/../faults holds a JSON list of ``[pattern, fault,
times]``: so many of the first requests for each object whose path matches are answered wrongly (-1: all of them).

| fault | what happens |
|---|---|
| hang | nothing is sent, and the connection stays open |
| refuse | 503 |
| truncate | half of the body is sent, then the connection ends |
| other range | the Content-Range is that of other bytes |
| whole | the range that is asked for is ignored |
| replace | while it is sent, the object is replaced by one of other bytes of the same size |

FOLDER/../seen gets a line for each GET: path, range, and the bytes of all bodies under way when it began. A body takes
``SLOW`` seconds, so that many are under way at once.
"""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import ClassVar

from benchmarks.object_server import S3, Server

SLOW = 0.03


class Faulty(S3):
    lock = threading.Lock()
    met: ClassVar[Counter[tuple[str, str]]] = Counter()
    flying = 0
    fault = ""

    def sent(self, path: Path) -> None:
        self.served = path
        self.fault = self.drawn() if self.command == "GET" else ""
        if self.fault == "hang":
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

    def drawn(self) -> str:
        try:
            faults = json.loads((self.folder.parent / "faults").read_text())
        except FileNotFoundError:
            return ""
        with self.lock:
            for pattern, fault, times in faults:
                if re.search(pattern, self.path):
                    self.met[self.path, fault] += 1
                    if times < 0 or self.met[self.path, fault] <= times:
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
            if self.fault == "replace":
                self.replace()
            if self.fault == "truncate":
                self.close_connection = True
                stop = (first + stop) // 2
            super().body(file, first, stop)
        finally:
            with self.lock:
                Faulty.flying -= size


if __name__ == "__main__":
    Faulty.folder = Path(sys.argv[2])
    Server(("127.0.0.1", int(sys.argv[1])), Faulty).serve_forever()
