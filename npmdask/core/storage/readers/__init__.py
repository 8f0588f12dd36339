"""Read data as operators take them: dense and CSR; other layouts are of features."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, Self

import numpy as np

from npmdask.errors import BadInputError


class Reader(Protocol):
    """What every reader is, whatever it reads: what a pass is cut into, what a task needs, what is wrong with a value.

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
        """What to say of the first value of a unit that is not finite, if there is one."""
        ...

    def recorded_digests(self, beside: dict[str, np.ndarray]) -> Any:
        """The SHA-256 of chunks that a store records, in the form that the reader takes; None without any."""
        ...

    def held_to(self, digests: Any) -> Self:
        """The same reader, every chunk compared with its SHA-256 as it is read."""
        ...
