"""Cut a pass into parts, sum them in a fixed order, and keep what survives a kill.

A pass is a row of *runs* (some consecutive units of the stored layout each), joined pairwise in a fixed binary
tree. Runs and tree are functions of the stored layout only: the same sums are formed in the same order by any
number of threads, processes or machines, before and after a kill. A *node* of the tree is known by its level and
place: it covers the runs from ``place << level`` on, ``1 << level`` of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise, zip_longest
from typing import Any, NamedTuple

import numpy as np

from npmdask.core.numerics.subspaces import Block
from npmdask.core.operators import Operator, Partial
from npmdask.core.storage.chunk_access import tally
from npmdask.core.storage.readers.dense import ReadStats
from npmdask.core.storage.readers.sparse import Fragment

MAX_RUNS = 4096
FEW_RUNS = 64
LARGE_RUN = 128 * 2**20  # where a task takes 20 to 60 ms, scheduling it costs nothing
COMMIT_SECONDS = 30.0  # lost at most by a kill inside a pass


class TreeNode(NamedTuple):
    """A part of a pass."""

    level: int
    place: int

    def runs(self, count: int) -> range:
        """The runs that it covers, of ``count``."""
        return range(self.place << self.level, min((self.place + 1) << self.level, count))

    def children(self, count: int) -> list[TreeNode]:
        """Its two halves, passing over levels that have only one; itself has none if it is a run."""
        if self.level == 0:
            return []
        right = TreeNode(self.level - 1, 2 * self.place + 1)
        left = TreeNode(self.level - 1, 2 * self.place)
        return [left, canonical_node(right, count)] if right.runs(count) else left.children(count)


def canonical_node(node: TreeNode, count: int) -> TreeNode:
    """The one name of a part: a node with only a left half is that half."""
    while node.level and not TreeNode(node.level - 1, 2 * node.place + 1).runs(count):
        node = TreeNode(node.level - 1, 2 * node.place)
    return node


def root(count: int) -> TreeNode:
    """The whole pass of ``count`` runs."""
    return canonical_node(TreeNode((count - 1).bit_length(), 0), count)


def runs_of(operator: Operator) -> list[range]:
    """The runs of units that a pass is cut into: a function of the stored layout only.

    At least ``operator.run_bytes`` each (so that the sum that a run returns is small beside what it reads), about
    64 of them for small data, of up to 128 MiB for large.
    """
    size = max(operator.run_bytes, min(LARGE_RUN, operator.pass_bytes // FEW_RUNS))
    count = max(1, min(operator.units, MAX_RUNS, operator.pass_bytes // size))
    edges = [operator.units * i // count for i in range(count + 1)]
    return [range(a, b) for a, b in pairwise(edges)]


def compute_run(operator: Operator, slabs: range, block: Block) -> Partial:
    """The product of one run, with what it took of an object store."""
    tally()  # what a run that failed had taken
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is found in the product, and said
        part = operator.partial(slabs, block)
    taken = tally()
    part.record.requests += taken.requests  # of a device, other threads have read, too
    part.record.fetched += taken.nbytes
    return part


def compute_node(operator: Operator, runs: list[range], node: TreeNode, block: Block) -> Partial:
    """The product of a node, by one task: its runs one after the other, summed in the order of the tree."""
    with fed(operator, [runs[place] for place in node.runs(len(runs))], 1):
        return _node(operator, runs, node, block)


def _node(operator: Operator, runs: list[range], node: TreeNode, block: Block) -> Partial:
    halves = node.children(len(runs))
    if not halves:
        return compute_run(operator, runs[node.runs(len(runs)).start], block)
    left, right = (_node(operator, runs, half, block) for half in halves)
    return operator.join(left, right)


def quarters(node: TreeNode, count: int, leaves: Container[TreeNode], level: int) -> list[TreeNode]:
    """Return what one join brings together: the quarters of a node, or halves that are ``leaves``.

    So are halves that are an even number of levels above ``level``, where most leaves are: joins below take four then.
    """
    parts = []
    for half in node.children(count):
        parts += [half] if half in leaves or (half.level - level) % 2 == 0 else half.children(count)
    return parts


def join_node(operator: Operator, node: TreeNode, count: int, parts: Mapping[TreeNode, Partial]) -> Partial:
    """The product of a node from those of its ``parts``, joined in the order of the tree."""
    if node in parts:
        return parts[node]
    left, right = (join_node(operator, half, count, parts) for half in node.children(count))
    return operator.join(left, right)


def fed(operator: Operator, runs: Sequence[range], threads: int) -> AbstractContextManager[None]:
    """Have what ``threads`` threads read in ``runs`` asked for in their order, if it comes over a network."""
    if (remote := getattr(operator.reader, "remote", None)) is None:
        return nullcontext()
    groups = (runs[first : first + threads] for first in range(0, len(runs), threads))
    units = (unit for group in groups for level in zip_longest(*group) for unit in level if unit is not None)
    return remote.following(units, lambda unit: operator.read_ahead(range(unit, unit + 1)))


def expected_record(operator: Operator, which: range, runs: list[range]) -> ReadStats:
    """Estimate what reading some runs costs, by their share of the units: for remote observers."""
    ends = (runs[which.start].start, runs[which.stop - 1].stop)
    nbytes, chunks = (
        [total * end // operator.units for end in ends] for total in (operator.pass_bytes, operator.pass_chunks)
    )
    return ReadStats(bytes_read=nbytes[1] - nbytes[0], chunks=chunks[1] - chunks[0])


class PassCheckpoint:
    """Known parts of a pass: taken over from before a kill, finished since, committed from time to time.

    Parameters
    ----------
    parts : finished nodes to begin with.
    keep : commits the finished nodes; None to commit nothing.
    seconds : between two commits, and so what a kill costs at most (beside the tasks under way).
    """

    def __init__(
        self,
        parts: dict[TreeNode, Partial] | None = None,
        keep: Callable[[dict[TreeNode, Partial]], None] | None = None,
        seconds: float = COMMIT_SECONDS,
    ) -> None:
        self.parts = dict(parts or {})
        self.known = self.parts  # grows with commits where something of it may have to be sent once more
        self._keep, self._seconds = keep, seconds
        self._last = time.monotonic()

    @property
    def due(self) -> bool:
        """Say whether it is time to commit."""
        return self._keep is not None and time.monotonic() - self._last >= self._seconds

    def commit(self, parts: dict[TreeNode, Partial]) -> None:
        """Commit the finished nodes ``parts`` (no node beside one that contains it)."""
        assert self._keep is not None
        self._keep(parts)
        self._last = time.monotonic()

    def record(self) -> ReadStats:
        """Return what reading the parts taken over had cost."""
        total = ReadStats()
        for part in self.parts.values():
            total = total.add(part.record)
        return total


def inside(node: TreeNode, other: TreeNode) -> bool:
    """Say whether ``node`` is a part of ``other`` (or the same)."""
    return node.level <= other.level and node.place >> (other.level - node.level) == other.place


def covered(node: TreeNode, others: Container[TreeNode]) -> bool:
    """Say whether ``node`` is a part of one of ``others``, or one of them."""
    return any(TreeNode(node.level + up, node.place >> up) in others for up in range(MAX_RUNS.bit_length()))


def tasks_of(node: TreeNode, count: int, known: Iterable[TreeNode], level: int) -> list[TreeNode]:
    """The parts that are still to be computed below ``node``, each by one task: nodes of at most ``level``.

    A node that holds something known is cut further, so that nothing known is computed again.
    """
    known = set(known)
    if node in known:
        return []
    halves = node.children(count)
    if not halves or (node.level <= level and not any(inside(k, node) for k in known)):
        return [node]
    return [task for half in halves for task in tasks_of(half, count, known, level)]


def units_of_node(node: TreeNode, runs: list[range]) -> range:
    """The units that a node covers."""
    which = node.runs(len(runs))
    return range(runs[which.start].start, runs[which.stop - 1].stop)


def pack(operator: Operator, parts: dict[TreeNode, Partial]) -> tuple[dict[str, np.ndarray], list[dict[str, Any]]]:
    """Finished nodes as named arrays and plain facts, for a checkpoint."""
    arrays: dict[str, np.ndarray] = {}
    facts = []
    for i, (node, part) in enumerate(sorted(parts.items())):
        record = part.record
        arrays[f"{i}-product"] = operator.stacked(part.sums)
        arrays[f"{i}-checksums"] = np.array([(*at, crc) for at, crc in record.checksums.items()], np.int64)
        arrays[f"{i}-written"] = np.array(list(record.written.items()), np.int64)
        for j, fragment in enumerate(part.fragments):
            arrays[f"{i}-indices-{j}"], arrays[f"{i}-data-{j}"] = fragment.indices, fragment.data
        facts.append(
            {
                "node": list(node),
                "rows": [f.row for f in part.fragments],
                "bytes_read": record.bytes_read,
                "chunks": record.chunks,
                "requests": record.requests,
                "fetched": record.fetched,
            }
        )
    return arrays, facts


def unpack(operator: Operator, arrays: dict[str, np.ndarray], facts: list[dict[str, Any]]) -> dict[TreeNode, Partial]:
    """The inverse of :func:`pack`."""
    parts, runs = {}, runs_of(operator)
    for i, fact in enumerate(facts):
        record = ReadStats(
            bytes_read=fact["bytes_read"],
            chunks=fact["chunks"],
            requests=fact.get("requests", 0),  # of a store that is older there are none
            fetched=fact.get("fetched", 0),
            checksums={(int(a), int(b)): int(crc) for a, b, crc in arrays[f"{i}-checksums"].reshape(-1, 3)},
            written={int(slab): int(crc) for slab, crc in arrays[f"{i}-written"].reshape(-1, 2)},
        )
        fragments = [
            Fragment(row, arrays[f"{i}-indices-{j}"], arrays[f"{i}-data-{j}"]) for j, row in enumerate(fact["rows"])
        ]
        node = TreeNode(*fact["node"])
        sums = operator.unstacked(arrays[f"{i}-product"], units_of_node(node, runs))
        parts[node] = Partial(sums, record, fragments)
    return parts
