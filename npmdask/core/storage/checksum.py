"""CRC-32C of arrays and files, SHA-256 of chunks, and fingerprints; none of them holds up other threads.

CRC-32C (30 to 60 GB/s a core) finds what rots, and is compared wherever data are read. It is linear: other data with
the same CRC are made in milliseconds. The data are identified by SHA-256 (1.8 GB/s a core where the processor has
instructions for it), taken of every chunk at ingest and compared by private runs.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
from awscrt.checksums import crc32c as _crc32c


def crc32c(array: np.ndarray, start: int = 0) -> int:
    """CRC-32C of the bytes of ``array`` in C order, continued from ``start``."""
    if not array.flags.c_contiguous:
        array = np.ascontiguousarray(array)
    return int(_crc32c(array.reshape(-1).view(np.uint8), start))


def crc32c_bytes(data: bytes, start: int = 0) -> int:
    """CRC-32C of ``data``, continued from ``start``."""
    return int(_crc32c(data, start))


DIGEST_BYTES = 32


def digest_of(values: np.ndarray) -> np.ndarray:
    """SHA-256 (32 uint8) of the values in C order."""
    return np.frombuffer(hashlib.sha256(np.ascontiguousarray(values).data).digest(), np.uint8)


class ChunkSums:
    """CRC-32C of a chunk that comes piece by piece, and its SHA-256 if asked for."""

    def __init__(self, *, hashed: bool) -> None:
        self.crc = 0
        self._hash = hashlib.sha256() if hashed else None

    def add(self, values: np.ndarray) -> None:
        """The next piece, in C order."""
        values = np.ascontiguousarray(values)
        self.crc = crc32c(values, self.crc)
        if self._hash is not None:
            self._hash.update(values.data)

    def differ_from(self, digest: np.ndarray) -> bool:
        """Say whether the chunk is another than the one whose SHA-256 was ``digest``."""
        assert self._hash is not None
        return self._hash.digest() != digest.tobytes()


def fingerprint(facts: dict[str, Any], tables: list[np.ndarray]) -> str:
    """SHA-256 over the public facts of a data set and what is known of each chunk: digests, or (before) checksums."""
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for table in tables:
        digest.update(np.ascontiguousarray(table, dtype="u1" if table.dtype == np.uint8 else "<u4").tobytes())
    return digest.hexdigest()
