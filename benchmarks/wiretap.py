"""Between a centre and a node: passes every byte on, and keeps a copy."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field


@dataclass
class Exchange:
    """What went to the node and what came back, in one connection."""

    asked: bytearray = field(default_factory=bytearray)
    answered: bytearray = field(default_factory=bytearray)


@dataclass
class Tap:
    """``url`` is to be used in place of the node's own address."""

    url: str
    exchanges: list[Exchange] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        """Everything that crossed, HTTP included (not what TCP and IP add)."""
        return sum(len(e.asked) + len(e.answered) for e in self.exchanges)


@contextmanager
def tapped(port: int) -> Iterator[Tap]:
    """A tap on the node at a port of this machine."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        tap = Tap(f"http://127.0.0.1:{listening.getsockname()[1]}")
        thread = threading.Thread(target=_accept, args=(listening, port, tap), daemon=True)
        thread.start()
        yield tap
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


def _accept(listening: socket.socket, port: int, tap: Tap) -> None:
    pumps = []
    with suppress(OSError):
        while True:
            near, _ = listening.accept()
            exchange = Exchange()
            tap.exchanges.append(exchange)
            pumps.append(threading.Thread(target=_connect, args=(near, port, exchange), daemon=True))
            pumps[-1].start()
    for pump in pumps:
        pump.join()


def _connect(near: socket.socket, port: int, exchange: Exchange) -> None:
    with near, socket.create_connection(("127.0.0.1", port)) as far:
        there = threading.Thread(target=_pump, args=(near, far, exchange.asked), daemon=True)
        there.start()
        _pump(far, near, exchange.answered)
        there.join()


def _pump(source: socket.socket, sink: socket.socket, copy: bytearray) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            copy += data
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
