"""What a store keeps of the pass under way, as the keeper that the executors know."""

from __future__ import annotations

from npmdask.checkpoint.store import RunStore
from npmdask.execution.reduction import Keeper, Node, pack, runs_of, unpack
from npmdask.numerics.subspaces import Block
from npmdask.operators import LeftProduct, Operator, Partial
from npmdask.runs.left_vectors import flush_left
from npmdask.storage.checksum import crc32c


def keeper_of(store: RunStore, label: str, operator: Operator, block: Block, seconds: float) -> Keeper:
    """What was finished of this very pass before a kill, and where more of it is committed every ``seconds``.

    "This very pass": of the same label, block (by checksum and dtype) and runs.
    """
    key = {"label": label, "block": crc32c(block), "dtype": block.dtype.str, "runs": len(runs_of(operator))}

    flushed: set[int] = set()

    def keep(parts: dict[Node, Partial]) -> None:
        if isinstance(operator, LeftProduct):  # what these parts have written must be as durable as they are
            new = {slab for part in parts.values() for slab in part.record.written} - flushed
            flush_left(store.path, new)
            flushed.update(new)
        store.keep_pass(key, *pack(parts))

    found = store.read_pass(key)
    return Keeper(unpack(*found) if found else None, keep, seconds)
