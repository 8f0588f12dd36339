"""Read rows as another reader reads them, seen in another way: the base of readers of features."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from npmdask.core.storage.readers.dense import DenseReader, InTiles


@dataclass(frozen=True, kw_only=True)
class AroundDense(InTiles):
    """A reader of what another reads, seen in another way. What is not said of it is the other's own.

    Parameters
    ----------
    inner : the reader of the stored rows.
    checksums : as of :class:`DenseReader`.
    """

    inner: DenseReader
    checksums: np.ndarray | None = None

    layout: ClassVar[str] = "dense"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in self.__dataclass_fields__:  # unpickled before there is a reader inside
            raise AttributeError(name)
        return getattr(self.inner, name)

    @property
    def dense(self) -> DenseReader:
        """The reader of what is stored."""
        return self.inner

    @cached_property
    def _stored(self) -> DenseReader:
        return replace(self.inner, checksums=self.checksums)
