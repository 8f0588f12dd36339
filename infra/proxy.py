"""A TCP proxy in front of a scheduler, which can close its connections, or forward nothing, and go on later."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

CHUNK = 2**16


class Proxy:
    """Forwards connections to ``port`` of this machine. Close it after use.

    Attributes
    ----------
    address : for clients.
    """

    def __init__(self, port: int) -> None:
        self._port, self._passes = port, threading.Event()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._lock = threading.Lock()
        self._passes.set()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._own = self._listener.getsockname()[1]
        self.address = f"tcp://127.0.0.1:{self._own}"
        self._accepting = self._accept()

    def _accept(self) -> threading.Thread:
        thread = threading.Thread(target=self._take, args=(self._listener,), daemon=True)
        thread.start()
        return thread

    def _take(self, listener: socket.socket) -> None:
        while True:
            try:
                near = listener.accept()[0]
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._port))
            except OSError:  # the scheduler is just being started again
                near.close()
                continue
            with self._lock:
                self._pairs.append((near, far))
            threading.Thread(target=self._carry, args=(near, far), daemon=True).start()

    def _carry(self, near: socket.socket, far: socket.socket) -> None:
        back = threading.Thread(target=self._forward, args=(far, near), daemon=True)
        back.start()
        self._forward(near, far)
        back.join()
        with self._lock:
            near.close()
            far.close()

    def _forward(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError, ValueError):
            while data := one.recv(CHUNK):
                self._passes.wait()
                other.sendall(data)
        for end in (one, other):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def hold(self) -> None:
        """Forward nothing from now on; connections stay open, and new ones are accepted and not answered."""
        self._passes.clear()

    def cut(self) -> None:
        """Close every connection, and take none."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._accepting.join()
        with self._lock:
            for pair in self._pairs:
                for end in pair:
                    with suppress(OSError):
                        end.shutdown(socket.SHUT_RDWR)
            self._pairs.clear()

    def join(self) -> None:
        """Undo :meth:`hold` or :meth:`cut`."""
        if self._listener.fileno() < 0:
            self._listener = socket.create_server(("127.0.0.1", self._own), backlog=64)
            self._accepting = self._accept()
        self._passes.set()

    def close(self) -> None:
        """End it, and every connection through it."""
        if self._listener.fileno() >= 0:
            self.cut()
        self._passes.set()
