"""Read data as operators take them: what readers share, and what reading gives beside the data.

Dense and CSR rows are read here; other layouts are of features.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

import numpy as np

from npmdask.errors import BadInputError


class Reader(Protocol):
    """Common part of readers: what a pass is cut into, what a task needs, what is wrong with a value.

    Small and picklable: it holds no data, and knows nothing of the question. How the values of a unit come, as tiles
    of rows or as blocks, is of its ``layout``, for which an operator is made.

    Attributes
    ----------
    layout : "dense" (rows in tiles), "csr", "triangle" (of a symmetric matrix) or "tensor" (unique blocks).
    units : what a pass can be cut into; like everything here a function of what is stored, never of the machine.
    nbytes : of the decoded data, as a pass reads them.
    buffer_bytes : memory that reading takes in one task.
    checksums : what units are compared with as they are read; None before the first pass over what was never ingested.
    where : the place, for sentences.
    """

    @property
    def layout(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype: ...
    @property
    def units(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def buffer_bytes(self) -> int: ...
    @property
    def checksums(self) -> Any: ...
    @property
    def where(self) -> str: ...

    def values(self, unit: int) -> Iterator[np.ndarray]:
        """All values of a unit, some at a time."""
        ...

    def non_finite(self, unit: int) -> BadInputError | None:
        """Return the error for the first value of a unit that is not finite, if there is one."""
        ...

    def recorded_digests(self, beside: dict[str, np.ndarray]) -> Any:
        """The SHA-256 of chunks that a store records, in the form that the reader takes; None without any."""
        ...

    def held_to(self, digests: Any) -> Self:
        """The same reader, every chunk compared with its SHA-256 as it is read."""
        ...


@dataclass
class ReadStats:
    """Cost of reading slabs, and what was in them.

    ``requests`` and ``fetched``: of an object store, and bytes that came; without what zarr reads itself.
    """

    bytes_read: int = 0
    chunks: int = 0
    checksums: dict[tuple[int, int], int] = field(default_factory=dict)
    written: dict[int, int] = field(default_factory=dict)  # checksums of what a pass wrote, by slab
    requests: int = 0
    fetched: int = 0

    def add(self, other: ReadStats) -> ReadStats:
        return ReadStats(
            self.bytes_read + other.bytes_read,
            self.chunks + other.chunks,
            self.checksums | other.checksums,
            self.written | other.written,
            self.requests + other.requests,
            self.fetched + other.fetched,
        )


def checksums_of(record: ReadStats, *, sparse: bool) -> dict[str, np.ndarray]:
    """The checksums that a pass has taken, as the array (by row and column of chunks) that a survey keeps."""
    rows, columns = np.array(sorted(record.checksums)).max(axis=0) + 1
    table = np.zeros((rows, columns), np.uint32)
    for position, crc in record.checksums.items():
        table[position] = crc
    return {"checksums_csr" if sparse else "checksums": table}


def checksum_table(arrays: dict[str, np.ndarray]) -> Any:
    """The checksums of a survey in the form that the reader of the source takes, or None."""
    if "checksums_csr" in arrays:
        return {"indices": arrays["checksums_csr"][:, 0], "data": arrays["checksums_csr"][:, 1]}
    return arrays.get("checksums")
