"""The nodes as one operator: ``sum of (A_i X + G_i)``, each asked at the same time, summed in a fixed order.

A pass over the nodes is a pass like any other: a node is a unit, asking it a task, and the tree in which the answers
are summed is that of :mod:`npmdask.execution.reduction`. It does not matter who answers first.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from npmdask.federated.client import Link
from npmdask.federated.protocol import Announcement, size_of
from npmdask.numerics.subspaces import Block
from npmdask.operators._protocol import OnePass, Partial, pending_sums
from npmdask.storage.readers.dense import SlabRecord


@dataclass(frozen=True, kw_only=True)
class Group:
    """The nodes in the place of a reader: what of a data set can be asked without reading it."""

    link: Link
    announced: tuple[Announcement, ...]
    checksums: dict[str, Any] = field(default_factory=dict)  # each node holds its own data to its own

    dtype: ClassVar[np.dtype] = np.dtype(np.float64)

    @property
    def shape(self) -> tuple[int, int]:
        """Of the sum, d x d."""
        return self.announced[0].columns, self.announced[0].columns

    @property
    def block_shape(self) -> tuple[int, int]:
        """d x p of what goes to and fro."""
        return self.announced[0].columns, self.announced[0].iteration_rank

    @property
    def nbytes(self) -> int:
        """Bytes that the nodes answer with in one pass."""
        return len(self.announced) * size_of(self.block_shape)


@dataclass(frozen=True, kw_only=True)
class NodeSum(OnePass):
    """``scale`` times the sum of what the nodes release."""

    reader: Group
    scale: float

    run_bytes: ClassVar[int] = 1  # every node is asked by a task of its own

    @property
    def block_rows(self) -> int:
        return self.reader.shape[0]

    @property
    def units(self) -> int:
        return len(self.reader.announced)

    @property
    def pass_bytes(self) -> int:
        return self.reader.nbytes

    @property
    def pass_chunks(self) -> int:
        return self.units

    def read_ahead(self, units: range) -> None:
        """Nothing: all are asked at once."""

    def partial(self, slabs: range, block: Block) -> Partial:
        answers = [self.reader.link.ask(node, block) for node in slabs]
        record = SlabRecord(bytes_read=sum(size for _, size in answers), chunks=len(answers))
        return Partial({"product": sum((product for product, _ in answers), np.zeros(block.shape))}, record)

    def finish(self, total: Partial, block: Block) -> Block:
        return np.asarray(total.sums["product"] * self.scale)

    def task_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of asking one node: the request, the answer, and the block that it holds, twice."""
        return 4 * size_of((self.block_rows, p))

    def pending_bytes(self, p: int, runs: list[range]) -> int:
        """Memory of the sums that wait to be joined."""
        return pending_sums(self.block_rows, p, runs)
