"""Other data under the same CRC-32C, as anybody can make them: the checksum is linear."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import zarr

from npmdask.core.storage.checksum import crc32c

FREE = 80  # lowest bits of so many numbers: enough to reach any checksum of 32 bits


def forge(store: Path, name: str = "data") -> np.ndarray:
    """Put another first record into the first chunk of a dense store and mend its checksum; returns the old chunk."""
    array: Any = zarr.open_group(store, mode="r+")[name]
    inside = tuple(slice(0, n) for n in array.chunks)
    old = np.ascontiguousarray(array[inside])
    new = old.copy()
    new.reshape(-1)[: old.shape[-1]] = 1 + np.arange(old.shape[-1])
    array[inside] = mended(new, crc32c(old))
    return old


def mended(values: np.ndarray, wanted: int) -> np.ndarray:
    """``values`` with the last bits of some of its last numbers changed, so that their CRC-32C is ``wanted``."""
    flat = values.reshape(-1).view(f"u{values.dtype.itemsize}")
    places, found = range(len(flat) - FREE, len(flat)), crc32c(values)
    basis: dict[int, tuple[int, int]] = {}
    for i, place in enumerate(places):
        flat[place] ^= 1
        change, bits = crc32c(values) ^ found, 1 << i
        flat[place] ^= 1
        while change and change.bit_length() in basis:
            known, with_bits = basis[change.bit_length()]
            change, bits = change ^ known, bits ^ with_bits
        if change:
            basis[change.bit_length()] = (change, bits)
    left, chosen = found ^ wanted, 0
    while left:
        known, with_bits = basis[left.bit_length()]
        left, chosen = left ^ known, chosen ^ with_bits
    for i, place in enumerate(places):
        flat[place] ^= chosen >> i & 1
    assert crc32c(values) == wanted
    return values
