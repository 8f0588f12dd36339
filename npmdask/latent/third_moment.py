"""A third moment as a packed tensor in Zarr, built out of core: as many blocks in a pass as the memory holds."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from npmdask.core.checkpoint.store import RunStore
from npmdask.core.execution.memory import tree_rss
from npmdask.core.numerics.subspaces import Block
from npmdask.core.operators import Operator, View
from npmdask.core.runs.observers import Observer
from npmdask.core.runs.resources import Resources
from npmdask.core.runs.session import Session
from npmdask.core.storage.paths import NEW_STORE, local_path, locked
from npmdask.core.storage.safe_open import carried
from npmdask.core.storage.source import Source, open_source
from npmdask.errors import BadInputError, RefusedError, require
from npmdask.latent.sample_moments import SampleBlocks
from npmdask.symmetric.reader import place_of
from npmdask.symmetric.writer import TensorWriter
from npmdask.tensors.moments import unit_groups
from npmdask.topics.word_moments import HALF_LENGTH, TripleBlocks, WordTotals

# A small symmetric tensor, held, from one product with many vectors: polarisation.
#
# ``T(I, e_i, e_j) = (T(I, e_i + e_j, e_i + e_j) - T(I, e_i, e_i) - T(I, e_j, e_j)) / 2``, so that m (m + 1) / 2 columns
# tell all of an m x m x m tensor that is only known by its contractions.


def polarising_block(m: int) -> Block:
    """Columns e_i and e_i + e_j, i < j (m x m (m + 1) / 2)."""
    i, j = np.triu_indices(m, 1)
    identity = np.eye(m)
    return np.concatenate([identity, identity[:, i] + identity[:, j]], axis=1)


def cube_of(product: Block) -> np.ndarray:
    """The tensor (m x m x m, symmetric to the last bit) from its product with :func:`polarising_block`."""
    m = len(product)
    i, j = np.triu_indices(m, 1)
    cube = np.empty((m, m, m))
    diagonal = product[:, :m]
    cube[:, range(m), range(m)] = diagonal
    cube[:, i, j] = cube[:, j, i] = (product[:, m:] - diagonal[:, i] - diagonal[:, j]) / 2
    orders = ((0, 1, 2), (1, 2, 0), (2, 0, 1))  # the last two indices are interchangeable already
    return np.asarray(sum(cube.transpose(order) for order in orders) / 3)


SUMS_BYTES = 2**30  # for the sums of a pass where no limit is given
ASKED = "asked"  # the part that says what the others were gathered for
SPARE = 0.5  # of what a limit leaves: the rest is for reading

Made = Callable[[range], Operator]


@dataclass(frozen=True, kw_only=True)
class Built:
    """A tensor of ``side`` that was written in blocks of ``block``, in ``passes`` over the data (of this call)."""

    dest: Path
    side: int
    block: int
    passes: int
    fingerprint: str


def build_moments(
    source: Any,
    dest: str | Path,
    *,
    alpha0: float = 0.0,
    half_length: float = HALF_LENGTH,
    center: bool = False,
    block: int | None = None,
    resources: Resources | None = None,
    observer: Observer | None = None,
) -> Built:
    """Write M3 of documents (LDA with ``alpha0``; 0: a single topic) or of samples (``center``: central) to ``dest``.

    A killed building goes on inside its pass when the same one is called again.

    Parameters
    ----------
    source : a store of kind sparse (counts of words), or of samples.
    block : side of a stored block; chosen if None.

    Raises
    ------
    BadInputError
        Data that have no third moment here, an option of the other kind of data.
    RefusedError
        ``dest`` exists, or is being written; the memory does not hold the sums of one block.
    """
    target, opened, asked = local_path(dest, NEW_STORE), open_source(source), resources or Resources()
    place = target.with_name(target.name + ".partial.passes")
    if target.exists():
        raise RefusedError(f"{target} exists already; choose another name, or remove it first")
    require(block is None or block >= 1, f"block = {block} must be at least 1")
    d = opened.shape[1]
    identity = {"moments": {"fingerprint": opened.fingerprint, "alpha0": alpha0, "center": center, "half": half_length}}
    marked = identity | carried(opened.mark)
    asked.require_possible()
    with locked(target):
        shutil.rmtree(_done_path(place), ignore_errors=True)  # of a clearing that a kill ended
        writer = TensorWriter(target, size=d, dtype=np.dtype(np.float64), side=block, identity=marked)
        with RunStore(place) as held:
            _drop_other_sums(held, writer.identity)

            def collect(name: str, operator: Operator) -> np.ndarray:
                with Session(held, asked, observer or Observer()) as session:
                    return session.gather(name, opened, operator, np.zeros((operator.block_rows, 1)))

            made = _maker(opened, writer.side, alpha0, half_length, center, collect)
            passes = _write(writer, made, collect, held, _allowed_bytes(asked))
        _remove_passes(place)  # first: what is published is finished, whatever comes after
        printed = writer.finish(identity)
    return Built(dest=target, side=d, block=writer.side, passes=passes, fingerprint=printed)


def _remove_passes(place: Path) -> None:
    """Take the folder of the passes away: all of it, for the process that comes after a kill."""
    place.rename(_done_path(place))
    shutil.rmtree(_done_path(place), ignore_errors=True)


def _done_path(place: Path) -> Path:
    return place.with_name(place.name + ".done")


def _drop_other_sums(held: RunStore, identity: dict[str, Any]) -> None:
    """Drop sums of other moments that were gathered under this name and not written."""
    found = held.read_part(ASKED)
    if found is not None and found[1] == identity:
        return
    for part in list(held.path.iterdir()):
        if (part / "manifest.json").exists():
            held.drop_part(part.name)
    held.write_part(ASKED, {}, identity)


def _write(
    writer: TensorWriter, made: Made, collect: Callable[[str, Operator], np.ndarray], held: RunStore, memory: int
) -> int:
    b, passes = writer.side, 0
    for units in unit_groups(writer.size, b, memory):
        if units.stop <= writer.next_unit:
            continue
        name = f"blocks-{units.start}-{units.stop}"
        blocks = collect(name, made(units)).reshape(-1, b, b, b)
        passes += 1
        for unit in range(writer.next_unit, units.stop):
            shape = (min(b, writer.size - at * b) for at in place_of(unit, writer.grid))
            writer.write(blocks[unit - units.start][tuple(slice(length) for length in shape)])
        writer.commit()  # before what it was made of goes
        held.drop_part(name)
    return passes


def _maker(
    source: Source,
    side: int,
    alpha0: float,
    half_length: float,
    center: bool,
    collect: Callable[[str, Operator], np.ndarray],
) -> Made:
    """The operator of a group of blocks."""
    reader: Any = source.reader
    if reader.layout == "csr":
        require(
            not center,
            "center applies only to samples, because moments of words use different words of a document: leave it out",
        )
        totals = WordTotals(reader=reader, half_length=half_length)
        sums = totals.sums_of(collect("totals", totals))
        return lambda units: TripleBlocks(reader=reader, sums=sums, side=side, wanted=units, alpha0=alpha0)
    if reader.layout != "dense" or source.kind not in ("samples", "matrix"):
        raise BadInputError(
            f"{source.path} is of kind {source.kind}: third moments need samples (dense rows) or documents"
        )
    require(not alpha0, "alpha0 applies only to documents: leave it out for samples")
    if center and source.column_mean is None:
        raise BadInputError(f"{source.path} has no recorded means: ingest it, or leave center out")
    mean = source.column_mean if center else None
    return lambda units: SampleBlocks(reader=reader, view=View(shift=mean), side=side, wanted=units)


def _allowed_bytes(resources: Resources) -> int:
    """Bytes for the sums of one pass."""
    if resources.memory is None:
        return SUMS_BYTES
    return max(0, int(SPARE * (resources.memory - tree_rss())))
