"""Encode what is sent between a coordinator and a node: blocks as ``.npy``, public facts as JSON, refusals as text.

A body is read by what it must be (a float64 matrix of a known shape), so that no header of it decides how much memory
is taken or what is done.

A request is signed with the token of the node that it is for, and the answer with the request that it answers: the
token itself never crosses, an answer cannot be put in the place of another, and neither can be changed on the way.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from npmdask.core.numerics.subspaces import Block
from npmdask.errors import BadInputError, RefusedError, require

FORMAT = 1
TOKEN = "NPMDASK_NODE_TOKEN"
TOKENS = "NPMDASK_NODE_TOKENS"
LEAST_TOKEN = 16
HEADER = 128  # bytes of a .npy file before the numbers, of any matrix here
KINDS = ("samples", "symmetric", "matrix", "sparse")

# Headers of a signed request and of its answer.
NONCE, DIGEST, SIGNATURE = "X-Npmdask-Nonce", "X-Npmdask-Content-SHA256", "X-Npmdask-Signature"


class UnansweredError(RefusedError):
    """A request that a node does not answer. The sentence is made of public facts: it may leave the node."""


def node_token() -> str:
    """Return the token of this node, from its environment.

    Raises
    ------
    BadInputError
        It is not set, or short enough to be guessed.
    """
    token = os.environ.get(TOKEN, "")
    require(_is_strong(token), f"the environment variable {TOKEN} must hold the token of this node: {_GOOD_TOKEN}")
    return token


_GOOD_TOKEN = (
    f"at least {LEAST_TOKEN} printable characters without spaces, another for every node (`openssl rand -hex 32`)"
)


def _is_strong(token: str) -> bool:
    return len(token) >= LEAST_TOKEN and token.isascii() and token.isprintable() and " " not in token


def tokens_for(urls: Iterable[str]) -> tuple[str, ...]:
    """Return the token of each node in ``urls``, from the file that NPMDASK_NODE_TOKENS names.

    The file has a line ``ADDRESS TOKEN`` for every node; empty lines and lines that begin with ``#`` do not count.

    Raises
    ------
    BadInputError
        There is no such file, an address is missing in it, or a token is short enough to be guessed.
    RefusedError
        Other users can read it, or two of these nodes have the same token.
    """
    known = _tokens_in(_tokens_file())
    missing = [url for url in urls if url not in known]
    if missing:
        raise BadInputError(f"the file that {TOKENS} names has no token for {missing[0]}: add a line `ADDRESS TOKEN`")
    found = {url: known[url] for url in urls}
    for url, token in found.items():
        require(_is_strong(token), f"the token for {url} in the file that {TOKENS} names must have {_GOOD_TOKEN}")
    if len(set(found.values())) < len(found):
        raise RefusedError(
            "two nodes have the same token, so the owner of one could answer for the other: give every node its own"
        )
    return tuple(found.values())


def _tokens_file() -> Path:
    name = os.environ.get(TOKENS, "")
    if not name:
        raise BadInputError(
            f"the environment variable {TOKENS} must name a file (mode 0600) with a line `ADDRESS TOKEN` for every node"
        )
    return Path(name)


def _tokens_in(path: Path) -> dict[str, str]:
    try:
        if path.stat().st_mode & 0o077:
            raise RefusedError(
                f"{path}, which holds the tokens of nodes, can be read by other users: run `chmod 600 {path}`, and "
                "replace the tokens if it was read"
            )
        lines = path.read_text("ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInputError(f"the file that {TOKENS} names, {path}, cannot be read: {error}") from None
    pairs = [line.split() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    for pair in pairs:
        require(len(pair) == 2, f"{path}: every line must be `ADDRESS TOKEN`, with one space between them")
    return {url.rstrip("/"): token for url, token in pairs}


@dataclass(frozen=True)
class Signed:
    """A request as both sides sign it: what is asked, of which body, under a number that is used once."""

    method: str
    path: str
    nonce: str
    digest: str  # SHA-256 of the body, in hexadecimal digits

    def request(self, token: str) -> str:
        """Sign the request itself."""
        return self._signature(token, b"request")

    def answer(self, token: str, status: int, body: bytes) -> str:
        """Sign an answer to this request."""
        return self._signature(token, b"answer", str(status).encode(), hashlib.sha256(body).digest())

    def _signature(self, token: str, *more: bytes) -> str:
        said = [text.encode("latin-1", "replace") for text in (self.method, self.path, self.nonce, self.digest)]
        framed = b"".join(len(part).to_bytes(8, "big") + part for part in (*said, *more))
        return hmac.new(token.encode(), b"npmdask node 1" + framed, hashlib.sha256).hexdigest()


def encode(block: Block) -> bytes:
    """A d x p block as a ``.npy`` file of float64: 128 bytes, then the numbers."""
    held = np.ascontiguousarray(block, "<f8")
    return _header(held.shape) + held.tobytes()


def _header(shape: tuple[int, ...]) -> bytes:
    """The one header that a block of this shape has here (format 1.0, which NumPy and others read)."""
    said = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {tuple(map(int, shape))}, }}"
    return b"\x93NUMPY\x01\x00" + (HEADER - 10).to_bytes(2, "little") + said.ljust(HEADER - 11).encode() + b"\n"


def encoded_size(shape: tuple[int, int]) -> int:
    """Bytes of an encoded block."""
    return HEADER + 8 * math.prod(shape)


def decode(body: bytes, shape: tuple[int, int]) -> Block:
    """The block that ``body`` holds.

    Raises
    ------
    UnansweredError
        It is not a ``.npy`` file of finite float64 numbers of this shape, and of nothing else.
    """
    wanted = f"a .npy file of {shape[0]} x {shape[1]} float64 numbers ({encoded_size(shape)} bytes)"
    if len(body) != encoded_size(shape) or body[:HEADER] != _header(shape):
        raise UnansweredError(f"the body, of {len(body)} bytes, is not {wanted}")
    block = np.frombuffer(body, "<f8", offset=HEADER).reshape(shape).astype(np.float64)
    if not np.isfinite(block).all():
        raise UnansweredError("the block holds numbers that are not finite")
    return block


def block_digest(block: Block) -> str:
    """Tells blocks apart: SHA-256 of their numbers."""
    return hashlib.sha256(np.ascontiguousarray(block, "<f8").tobytes()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Announcement:
    """The public facts of a node: all that a coordinator knows of it before the first product.

    Parameters
    ----------
    node : 32 hexadecimal digits, drawn once: says nothing but that it is the same node.
    kind : of its data, which decides what the sum over the nodes means.
    columns, iteration_rank : d and p of the blocks that it multiplies.
    max_steps : the most products of one job; of a private node exactly how many its noise is calibrated for.
    rows : how many it has, where that is public.
    mechanism : what it adds to a product (the public event of a mechanism).
    """

    node: str
    kind: str
    columns: int
    iteration_rank: int
    max_steps: int
    rows: int | None
    mechanism: dict[str, Any]

    @property
    def private(self) -> bool:
        return bool(self.mechanism.get("private"))

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of its data; d x d where no rows are announced, as of a symmetric matrix."""
        return self.rows or self.columns, self.columns

    def as_dict(self) -> dict[str, Any]:
        """As it is sent."""
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def from_dict(cls, content: Any) -> Announcement:
        """Make the announcement that was sent.

        Raises
        ------
        BadInputError
            It is not an announcement of this version.
        """
        names = {field.name for field in fields(cls)}
        if not isinstance(content, dict) or content.get("format") != FORMAT or set(content) != names | {"format"}:
            raise BadInputError("its announcement is not that of a node of this version of npmdask")
        made = cls(**{name: content[name] for name in names})
        numbers = [made.columns, made.iteration_rank, made.max_steps, 1 if made.rows is None else made.rows]
        whole = all(type(number) is int and number >= 1 for number in numbers)
        if not whole or made.kind not in KINDS or not isinstance(made.mechanism, dict) or type(made.node) is not str:
            raise BadInputError("its announcement is invalid: start the node again, with the same version of npmdask")
        return made
