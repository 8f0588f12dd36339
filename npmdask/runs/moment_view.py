"""Moments as lenses: the data of a source seen as a matrix or a tensor that is never formed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from npmdask.operators import Operator
from npmdask.storage.checksum import crc32c
from npmdask.storage.source import Source


@dataclass(frozen=True, kw_only=True)
class MomentLens:
    """A moment of the data, by an operator that needs more than their reader.

    Parameters
    ----------
    kind : "symmetric" for second moments, "tensor" for third and fourth.
    name : of the moment, with everything that it depends on besides the data and ``arrays`` in ``facts``.
    side : of the vectors that are looked for.
    made : the operator of a reader.
    arrays : what earlier passes found and the operator needs; known by their checksums.
    """

    kind: str
    name: str
    side: int
    made: Callable[[Any], Operator]
    facts: dict[str, Any]
    arrays: tuple[np.ndarray, ...] = ()

    certified: ClassVar[bool] = False  # moments are estimates: how far from the model's is another question

    def dimension(self, source: Source) -> int:
        return self.side

    def operator(self, source: Source) -> Operator:
        return self.made(source.reader)

    def spec(self) -> dict[str, Any]:
        """Its name, its parameters, and checksums of what it was made from."""
        sums = [f"{crc32c(np.ascontiguousarray(array)):08x}" for array in self.arrays]
        return {"moment": self.name, **self.facts, "made_from": sums}
