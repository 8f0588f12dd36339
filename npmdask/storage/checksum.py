"""CRC-32C of arrays and files (30 to 60 GB/s a core, without holding up other threads), and fingerprints."""

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


def fingerprint(facts: dict[str, Any], checksums: list[np.ndarray]) -> str:
    """SHA-256 over the public facts of a data set and the checksum of each of its chunks."""
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for table in checksums:
        digest.update(np.ascontiguousarray(table, dtype="<u4").tobytes())
    return digest.hexdigest()
