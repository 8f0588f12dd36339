"""Which unique blocks of a symmetric tensor are formed together: as many in one pass as the memory holds."""

from __future__ import annotations

from bisect import bisect_right
from functools import lru_cache
from itertools import combinations_with_replacement

from npmdask.errors import BadInputError, MemoryRefusedError

HELD = 12  # times that the sums of a group are held at once: those that wait to be joined, one task's, the answer's


@lru_cache(maxsize=8)
def unique_blocks(grid: int) -> tuple[tuple[int, int, int], ...]:
    """The blocks (i, j, k), i <= j <= k < ``grid``, in lexicographic order: unit t is entry t."""
    return tuple(combinations_with_replacement(range(grid), 3))


def blocks_of(wanted: range, grid: int) -> tuple[tuple[int, int, int], ...]:
    """The blocks of the units ``wanted``. Raises BadInputError if there are no such units."""
    count = len(unique_blocks(grid))
    if not (0 <= wanted.start < wanted.stop <= count and wanted.step == 1):
        raise BadInputError(f"the tensor has blocks 0 to {count - 1}: {wanted} is no range of them")
    return unique_blocks(grid)[wanted.start : wanted.stop]


def group_bytes(d: int, side: int, units: int) -> int:
    """Memory of the sums of ``units`` blocks at most: their entries, and two pairs of words for their block rows."""
    grid = -(-d // side)
    return 8 * (units * side**3 + 2 * min(2 * units, grid) * side**2 * grid)


def unit_groups(d: int, side: int, memory: int) -> list[range]:
    """The units of a d x d x d tensor in blocks of ``side``, cut into groups of one pass each.

    Raises
    ------
    MemoryRefusedError
        Not even the sums of one block fit in ``memory`` bytes.
    """
    count = len(unique_blocks(-(-d // side)))
    each = bisect_right(range(count + 1), memory, key=lambda units: HELD * group_bytes(d, side, units)) - 1
    if each < 1:
        least = HELD * group_bytes(d, side, 1)
        raise MemoryRefusedError(
            f"one block of side {side} needs {-(-least // 2**20)} MiB and {memory // 2**20} are allowed; take smaller "
            "blocks, or allow more memory"
        )
    return [range(first, min(first + each, count)) for first in range(0, count, each)]
