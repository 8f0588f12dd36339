"""What crosses between a centre and a node: blocks as ``.npy``, public facts as JSON, refusals as sentences.

A body is read by what it must be (a float64 matrix of a known shape), so that no header of it decides how much memory
is taken or what is done.
"""

from __future__ import annotations

import hashlib
import math
import os
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from npmdask.errors import BadInputError, RefusedError
from npmdask.linalg import Block

FORMAT = 1
TOKEN = "NPMDASK_NODE_TOKEN"
LEAST_TOKEN = 16
HEADER = 128  # bytes of a .npy file before the numbers, of any matrix here
KINDS = ("samples", "symmetric", "matrix", "sparse")


class UnansweredError(RefusedError):
    """A request that a node does not answer. The sentence is made of public facts: it may leave the node."""


def shared_token() -> str:
    """The secret that tells a node its centre.

    Raises
    ------
    BadInputError
        It is not set, or short enough to be guessed.
    """
    token = os.environ.get(TOKEN, "")
    if len(token) < LEAST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise BadInputError(
            f"the environment variable {TOKEN} must hold the secret that the centre and its nodes share, at least "
            f"{LEAST_TOKEN} printable characters without spaces: make one with `openssl rand -hex 32`"
        )
    return token


def encode(block: Block) -> bytes:
    """A d x p block as a ``.npy`` file of float64: 128 bytes, then the numbers."""
    held = np.ascontiguousarray(block, "<f8")
    return _header(held.shape) + held.tobytes()


def _header(shape: tuple[int, ...]) -> bytes:
    """The one header that a block of this shape has here (format 1.0, which NumPy and others read)."""
    said = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {tuple(map(int, shape))}, }}"
    return b"\x93NUMPY\x01\x00" + (HEADER - 10).to_bytes(2, "little") + said.ljust(HEADER - 11).encode() + b"\n"


def size_of(shape: tuple[int, int]) -> int:
    """Bytes of an encoded block."""
    return HEADER + 8 * math.prod(shape)


def decode(body: bytes, shape: tuple[int, int]) -> Block:
    """The block that ``body`` holds.

    Raises
    ------
    UnansweredError
        It is not a ``.npy`` file of finite float64 numbers of this shape, and of nothing else.
    """
    wanted = f"a .npy file of {shape[0]} x {shape[1]} float64 numbers ({size_of(shape)} bytes)"
    if len(body) != size_of(shape) or body[:HEADER] != _header(shape):
        raise UnansweredError(f"the body, of {len(body)} bytes, is not {wanted}")
    block = np.frombuffer(body, "<f8", offset=HEADER).reshape(shape).astype(np.float64)
    if not np.isfinite(block).all():
        raise UnansweredError("the block holds numbers that are not finite")
    return block


def digest_of(block: Block) -> str:
    """Tells blocks apart: SHA-256 of their numbers."""
    return hashlib.sha256(np.ascontiguousarray(block, "<f8").tobytes()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Announcement:
    """The public facts of a node: all that a centre knows of it before the first product.

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

    def as_dict(self) -> dict[str, Any]:
        """As it is sent."""
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def from_dict(cls, content: Any) -> Announcement:
        """What was sent.

        Raises
        ------
        BadInputError
            It is not an announcement of this version.
        """
        names = {field.name for field in fields(cls)}
        if not isinstance(content, dict) or content.get("format") != FORMAT or set(content) != names | {"format"}:
            raise BadInputError("it announces something else than a node of this version of npmdask")
        made = cls(**{name: content[name] for name in names})
        numbers = [made.columns, made.iteration_rank, made.max_steps, 1 if made.rows is None else made.rows]
        whole = all(type(number) is int and number >= 1 for number in numbers)
        if not whole or made.kind not in KINDS or not isinstance(made.mechanism, dict) or type(made.node) is not str:
            raise BadInputError("its announcement makes no sense: start the node again, with the same npmdask")
        return made
