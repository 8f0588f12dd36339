"""Make products whose blocks lie on disk, a step in two halves; what is done of a step survives a kill.

docs/decisions/0057-blocks-on-disk.md says why it is done this way.
"""

from __future__ import annotations

from pathlib import Path
from shutil import disk_usage
from typing import Any

import numpy as np

from npmdask.core.algorithms import Query, Result
from npmdask.core.numerics.subspaces import BASES, Block
from npmdask.core.numerics.units import attributes
from npmdask.core.operators.tiled_gram import ColumnsByRange, RowsByRange, columns_of
from npmdask.core.runs.checks import require_scale
from npmdask.core.runs.plain_release import PlainRelease
from npmdask.core.runs.problem import Problem
from npmdask.core.runs.release import Released
from npmdask.core.runs.results import answer_arrays
from npmdask.core.runs.session import Session
from npmdask.core.storage.block_files import FOLDER, BlockFile, Workspace
from npmdask.core.storage.paths import is_url
from npmdask.core.storage.readers.dense import ReadStats
from npmdask.errors import RefusedError

GB = 1e9


def disk_bytes(problem: Problem) -> int:
    """Bytes of disk that a run with its blocks there takes: bases, two products with rows, and the answer."""
    p, k = problem.algorithm.iteration_rank, problem.algorithm.target_rank
    return 8 * (BASES * problem.d * p + 2 * problem.source.shape[0] * p + problem.d * k)


def tiles_held(problem: Problem, held: int, threads: int = 1) -> int:
    """Tiles that each of ``threads`` has in memory of a block of which there is room for ``held`` bytes.

    One at least, and a part of one more: the task of a thread is planned with a tile.
    """
    file = BlockFile(Path(), (problem.d, problem.algorithm.iteration_rank))
    least = min(part.stop - part.start for part in file.tiles)
    return max(1, -(-min(held // (8 * least * file.shape[1]), len(file.tiles)) // threads))


def readings_of(problem: Problem, held: int, threads: int) -> int:
    """Count how often a step reads the data, with ``held`` bytes of a block in memory."""
    tiles = len(BlockFile(Path(), (problem.d, problem.algorithm.iteration_rank)).tiles)
    return sum(-(-tiles // tiles_held(problem, held, each)) for each in (1, threads))


def disk_said(problem: Problem, held: int, threads: int) -> str:
    """Say where the blocks of a run lie, and what that costs, for people."""
    block = 8 * problem.d * problem.algorithm.iteration_rank
    each = readings_of(problem, held, threads)
    return (
        f"on disk: {BASES} of {block / GB:.3g} GB, {disk_bytes(problem) / GB:.3g} GB in all with products and the "
        f"answer; a step reads the data {each} times (with blocks in memory once), and a block about ten times"
    )


def require_disk(problem: Problem, session: Session) -> None:
    """Before anything is written: whether the disk of the run has room for its blocks.

    Raises
    ------
    RefusedError
        It has not, or the store is no folder of this machine.
    """
    store, needed = session.store, disk_bytes(problem)
    if is_url(store.place):
        raise RefusedError(
            f"{store.place}: blocks that memory cannot hold lie on disk, in the folder of the run; give a folder of "
            "this machine as the store, or more memory"
        )
    taken = store.path / FOLDER
    free = disk_usage(store.path).free
    free += sum(path.stat().st_blocks * 512 for path in taken.iterdir()) if taken.is_dir() else 0
    if free < needed:
        raise RefusedError(
            f"the disk of {store.path} has {free / GB:.3g} GB free, and blocks on disk take {needed / GB:.3g} GB: give "
            "a store on a larger disk, more memory, or a smaller iteration_rank"
        )
    said = disk_said(problem, session.memory.held, session.memory.threads)
    session.warnings.append(f"blocks lie {said}; more memory makes the run faster")


class DiskRelease(PlainRelease):
    """Products of blocks on disk: Z = A X, a range of the columns after the other, and then A^T Z."""

    def __init__(self, problem: Problem, session: Session) -> None:
        super().__init__(problem, session)
        self._readings = 0  # of the data, in the last step

    def product(self, query: Query, step: int) -> Released:
        """The product, from where an earlier call was killed.

        Raises
        ------
        BadInputError
            The data turn out to be missing, corrupt, not finite, or out of scale.
        CommitError
            The disk is full.
        """
        memory, session, basis = self._session.memory, self._session, query.block
        assert isinstance(basis, BlockFile)
        space, before = Workspace(session.store.path, memory.threads), session.seconds
        product = space.basis(step, basis.shape)
        nothing = dict.fromkeys(("columns", "rows", "readings", "bytes", "chunks"), 0)
        self._record, done = ReadStats(), nothing | space.progress(step)
        if "largest" not in done:
            self._forward(space, basis, step, done)
        if "largest" not in done or self._operator.reader.checksums is None:  # which this pass takes
            self._adjoint(space, basis, product, step, done)
        require_scale(self._problem, np.array(done["largest"]), first=not self._history)
        self._readings = done["readings"]
        released: Any = product
        return Released(
            product=released,
            said={"readings": self._readings},
            bytes_read=done["bytes"],
            chunks=done["chunks"],
            seconds=session.seconds - before,
        )

    def _forward(self, space: Workspace, basis: BlockFile, step: int, done: dict[str, Any]) -> None:
        """Z = A X. Each range of columns adds to what the one before it has written."""
        operator, tiles = self._operator, basis.tiles
        shape = operator.reader.shape[0], basis.shape[1]
        space.reserve([space.rows(number, shape) for number in range(2)])
        held = tiles_held(self._problem, self._session.memory.held)
        while done["columns"] < basis.shape[0]:
            first = next(number for number, part in enumerate(tiles) if part.start == done["columns"])
            block = _viewed_tiles(operator.view, basis, range(first, min(first + held, len(tiles))))
            half = RowsByRange(
                **attributes(operator, "reader", "weight", "view"),
                rows=space.rows(done["rows"] + 1, shape),
                before=space.rows(done["rows"], shape) if first else None,
                start=done["columns"],
            )
            self._pass(f"step {step}, columns from {half.start}", half, block, done)
            done |= {"columns": half.start + len(block), "rows": done["rows"] + 1}
            del block  # before the next one is made
            space.note(step, done)

    def _adjoint(self, space: Workspace, basis: BlockFile, product: BlockFile, step: int, done: dict[str, Any]) -> None:
        """``A^T Z``, in the place of the product."""
        operator, memory = self._operator, self._session.memory
        mean, along = operator.view.shift, np.zeros(basis.shape[1])
        for number, part in enumerate(basis.tiles if mean is not None else []):
            along += mean[part] @ _viewed_tiles(operator.view, basis, range(number, number + 1))
        half = ColumnsByRange(
            **attributes(operator, "reader", "weight", "view"),
            rows=space.rows(done["rows"], (operator.reader.shape[0], basis.shape[1])),
            product=product,
            tiles_held=tiles_held(self._problem, memory.held, memory.threads),
            mean_product=None if mean is None else along,
        )
        forward = done.get("forward") or {name: done[name] for name in ("readings", "bytes", "chunks")}
        done |= forward | {"forward": forward}  # it may be made again
        sizes = self._pass(f"step {step}, back", half, np.zeros((1, 1)), done)
        done["largest"] = float(sizes.max())
        space.note(step, done)

    def _pass(self, label: str, half: Any, block: Block, done: dict[str, Any]) -> Block:
        """One pass, with what it costs among what is ``done``."""
        found, record, _ = self._session.one_pass(label, half, block)
        self._record = self._record.add(record)
        for name, count in (("readings", half.readings), ("bytes", record.bytes_read), ("chunks", record.chunks)):
            done[name] += count
        return found

    def _history_facts(self) -> dict[str, Any]:
        return {"readings": self._readings}

    def _data_passes(self, history: list[dict[str, Any]]) -> int:
        """Over the data, in all steps."""
        return sum(int(line["readings"]) for line in history)

    def _in_units(self, result: Result) -> dict[str, np.ndarray]:
        """As of blocks in memory, but without a second and a third copy of the vectors, for deflation."""
        arrays = answer_arrays(self._problem.kind, result, self._operator, self._session.store.path, _no_pass)
        return {name: array for name, array in arrays.items() if name not in ("operator_vectors", "operator_products")}

    def angle(self, vectors: Block | None) -> float | None:
        """The sine of the largest angle to the planted basis, some rows at a time."""
        truth = self._problem.source.truth
        if truth is None or vectors is None:
            return None
        target, inside = truth.basis[:, : vectors.shape[1]], np.zeros((vectors.shape[1],) * 2)
        tiles, square = BlockFile(Path(), vectors.shape).tiles, np.zeros_like(inside)
        for part in tiles:
            inside += vectors[part].T @ target[part]
        for part in tiles:
            rest = target[part] - vectors[part] @ inside
            square += rest.T @ rest
        return float(np.sqrt(max(np.linalg.eigvalsh(square)[-1], 0.0)))


def _no_pass(operator: Any) -> Any:
    raise AssertionError("a sparse matrix has no pass for left vectors")


def _viewed_tiles(view: Any, basis: BlockFile, numbers: range) -> Block:
    """Some tiles of X as one array, as the view has columns."""
    parts = [basis.tiles[number] for number in numbers]
    found = np.empty((parts[-1].stop - parts[0].start, basis.shape[1]))
    for number, part in zip(numbers, parts, strict=True):
        rows = slice(part.start - parts[0].start, part.stop - parts[0].start)
        found[rows] = columns_of(view, part).on_columns(basis.tile(number))
    return found
