"""The coordinator's side of the connections to its nodes: patient with nodes that are away, exact about what was sent.

One connection for each request, so that there is none to go stale; a node that was asked twice for the same release
gives the same bytes. Every request is signed with the token of its node, and an answer that the node has not signed for
this very request is none. Plain ``http.client``: a request that waits for a long pass can be hung up on (``close``),
and every byte of a body is counted here.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import socket
import ssl
import threading
import time
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from npmdask.core.numerics.subspaces import Block
from npmdask.errors import BadInputError, LostError, RefusedError
from npmdask.federated.protocol import (
    DIGEST,
    NONCE,
    SIGNATURE,
    Announcement,
    Signed,
    UnansweredError,
    decode,
    encode,
    encoded_size,
)

CONNECT_SECONDS = 10.0
PATIENCE = 60.0  # seconds that a node may be away
LONGEST_PAUSE = 2.0  # between two attempts
LARGEST_SENTENCE = 2**20  # bytes of an answer that is not a block
BROKEN_OFF = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)  # TLS to a node that died: it may come back
ALIVE = ((socket.TCP_KEEPIDLE, 15), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 4))  # dead peers: 35 s


@dataclass
class Traffic:
    """Traffic of a run: numbers of the blocks, and bytes of the bodies that held them."""

    numbers: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0

    def add(self, other: Traffic) -> None:
        self.numbers += other.numbers
        self.bytes_sent += other.bytes_sent
        self.bytes_received += other.bytes_received


@dataclass
class NodeConnections:
    """Connections to the nodes at ``urls``, in this order, each with its token. ``job`` and ``step`` go with
    every block."""

    urls: tuple[str, ...]
    tokens: tuple[str, ...] = field(repr=False)
    patience: float = PATIENCE
    job: str = ""
    step: int = 0
    traffic: Traffic = field(default_factory=Traffic)

    def __post_init__(self) -> None:
        for url in self.urls:
            require_address(url)
        if not self.urls or len(set(self.urls)) < len(self.urls):
            raise BadInputError("nodes must be a list of different addresses, at least one")
        self._lock, self._over, self._open = threading.Lock(), threading.Event(), set[HTTPConnection]()

    def announced(self) -> tuple[Announcement, ...]:
        """The public facts of every node, asked again."""
        return tuple(self._fetch_announcement(which) for which in range(len(self.urls)))

    def _fetch_announcement(self, which: int) -> Announcement:
        body = self.get(which, "/about")
        try:
            return Announcement.from_dict(json.loads(body))
        except (ValueError, BadInputError) as error:
            raise BadInputError(f"{self.urls[which]} does not respond as a node: {error}") from None

    def get(self, which: int, path: str, most: int = LARGEST_SENTENCE) -> bytes:
        """Get what node ``which`` serves at a path."""
        return self._request_with_retries(which, "GET", path, b"", most)

    def ask(self, which: int, block: Block) -> tuple[Block, int]:
        """Ask node ``which`` for this step and X (d x p); return its release, and how many bytes that was.

        Raises
        ------
        RefusedError, BadInputError
            The node says why not.
        LostError
            It is away for longer than ``patience``.
        """
        body, path = encode(block), f"/jobs/{self.job}/steps/{self.step}"
        answer = self._request_with_retries(which, "POST", path, body, encoded_size(block.shape))
        try:
            product = decode(answer, block.shape)
        except UnansweredError as error:
            raise BadInputError(f"{self.urls[which]} did not answer with a product: {error}") from None
        self._count(Traffic(numbers=block.size + product.size, bytes_received=len(answer)))
        return product, len(answer)

    def _count(self, more: Traffic) -> None:
        with self._lock:
            self.traffic.add(more)

    def _request_with_retries(self, which: int, method: str, path: str, body: bytes, most: int) -> bytes:
        """The answer, from as many attempts as ``patience`` allows for."""
        pause, first = 0.05, None
        while True:
            try:
                return self._exchange(which, method, path, body, most)
            except (OSError, HTTPException) as error:
                first = first or time.monotonic()
                if self._over.is_set() or time.monotonic() - first + pause > self.patience:
                    raise LostError(self._lost_text(which, error)) from error
            self._over.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _lost_text(self, which: int, error: Exception) -> str:
        said = str(error) or type(error).__name__
        return (
            f"node {self.urls[which]} is away ({said}), for more than {self.patience:g} s: start it again and run the "
            "same command again; what was committed is kept, and no node releases anything twice"
        )

    def _exchange(self, which: int, method: str, path: str, body: bytes, most: int) -> bytes:
        token, url = self.tokens[which], self.urls[which]
        signed = Signed(method, path, secrets.token_hex(16), hashlib.sha256(body).hexdigest())
        connection = self._open_connection(url)
        try:
            self._count(Traffic(bytes_sent=len(body)))
            headers = {NONCE: signed.nonce, DIGEST: signed.digest, SIGNATURE: signed.request(token)}
            connection.request(method, path, body or None, headers)
            answer = connection.getresponse()
            due, most = answer.length or 0, most + 1 if answer.status == 200 else LARGEST_SENTENCE
            held = answer.read(most)
            if len(held) < min(due, most):
                raise ConnectionResetError(f"it hung up after {len(held)} of {due} bytes")
        finally:
            with self._lock:
                self._open.discard(connection)
            connection.close()
        said = answer.headers.get(SIGNATURE, "").encode("latin-1", "replace")
        if answer.status == 401:  # from a node that does not know our token, and so cannot sign
            raise self._refusal(which, answer.status, held)
        if answer.status == 404:
            raise UnansweredError(f"node {url} does not know {path}")
        if not hmac.compare_digest(said, signed.answer(token, answer.status, held).encode()):
            raise RefusedError(
                f"the answer from {url} is not signed for this request with the token of that node, and was not "
                "used: another program listens there, or the answer was changed on the way"
            )
        if answer.status == 200:
            return held
        raise self._refusal(which, answer.status, held)

    def _open_connection(self, url: str) -> HTTPConnection:
        parts = urlsplit(url)
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        connection = kind(str(parts.hostname), parts.port, timeout=CONNECT_SECONDS)
        try:
            connection.connect()
        except BROKEN_OFF:
            raise
        except ssl.SSLError as error:
            raise RefusedError(
                f"there is no trusted TLS connection to {url} ({error.reason or error}): if this machine does not "
                "know the authority that signed its certificate, name the authority's file in SSL_CERT_FILE; if the "
                "node has none, start it with --tls-cert and --tls-key"
            ) from error
        connection.sock.settimeout(None)  # a pass takes as long as it takes; whether the node lives, the kernel asks
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in ALIVE:
            connection.sock.setsockopt(socket.IPPROTO_TCP, option, value)
        with self._lock:
            self._open.add(connection)
        if self._over.is_set():
            connection.close()
            raise ConnectionAbortedError("the run is over")
        return connection

    def _refusal(self, which: int, status: int, body: bytes) -> Exception:
        try:
            sentence = str(json.loads(body)["sentence"])
        except (ValueError, KeyError, TypeError):
            sentence = f"status {status}, without a reason"
        return RefusedError(f"node {self.urls[which]} does not answer: {sentence}")

    def close(self) -> None:
        """Hang up on whatever is being waited for, and ask for nothing more."""
        self._over.set()
        with self._lock:
            waiting = [connection.sock for connection in self._open]
        for sock in waiting:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except (OSError, AttributeError):
                continue  # it ended between the two calls

    def reopen(self) -> None:
        """Ask again, in another call of the same run."""
        self._over.clear()


def require_address(url: Any) -> None:
    """An address of a node is ``http://HOST:PORT``, and holds no secret.

    Raises
    ------
    BadInputError
        It is something else.
    """
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port and parts.path in ("", "/")
        good = good and not (parts.query or parts.fragment or parts.username or parts.password)
    except (ValueError, AttributeError, TypeError):
        good = False
    if not good:
        shown = url.rpartition("@")[2] if isinstance(url, str) else url  # the rest may be a password
        raise BadInputError(f"{shown!r} is not the address of a node: write http://HOST:PORT, without name or password")
