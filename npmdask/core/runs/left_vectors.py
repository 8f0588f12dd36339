"""Left singular vectors, out of core: one pass that forms Z = A V and keeps it, and a small SVD.

Z is flushed to disk before anything refers to it, the result or a part of the pass that a checkpoint keeps. The result
holds a checksum of every chunk, and one more pass makes chunks again that are lost or damaged later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from npmdask.core.algorithms import Result
from npmdask.core.checkpoint.store import RunStore, folder_of
from npmdask.core.numerics.subspaces import Block, fix_signs
from npmdask.core.operators import Gram, LeftProduct, Operator
from npmdask.core.runs.problem import representation_of
from npmdask.core.storage.bundle import Arrays, fsync, fsync_folder, read_bundle, uncommitted
from npmdask.core.storage.checksum import crc32c
from npmdask.core.storage.kinds import traits_of
from npmdask.core.storage.paths import read_plain
from npmdask.core.storage.readers.dense import ReadStats
from npmdask.core.storage.safe_open import open_node
from npmdask.errors import BadInputError, RefusedError

Z_NAME = "left.zarr"
ROUNDED = 2.0**-28  # of the longest column: what is dropped with a shorter one changes no square by more than rounding
Pass = Callable[[Operator], tuple[Block, ReadStats]]


@dataclass(frozen=True, kw_only=True)
class LeftResult:
    """Singular triplets: values, right vectors (d x k), residuals; left vectors are Z @ ``rotation``.

    Of complex data Z (m x 2 k) has real and imaginary parts beside each other, and ``rotation`` is 2 k x k.
    """

    values: np.ndarray
    vectors: Block
    residual_norms: np.ndarray
    rotation: Block
    checksums: np.ndarray  # of each row of chunks of Z


def refine_with_left(operator: Gram, result: Result, folder: Path, one_pass: Pass) -> LeftResult:
    """The final Rayleigh-Ritz for singular triplets, in one pass.

    From Z = A V comes the R of its QR factorisation (Cholesky of Z^T Z with unit columns, so that small
    singular values keep their relative accuracy, which eigenvalues of A^T A do not), and from the SVD of R
    the triplets. Values that are zero to rounding have no left vector: their column is zero.

    Raises
    ------
    RefusedError
        The workers of a cluster have written Z where this machine does not see it.
    CommitError
        Z cannot be flushed to disk.
    """
    k = result.vectors.shape[1]
    both, record = one_pass(_left_product(operator, k, folder))
    _require_here(folder, sorted(record.written))
    flush_left(folder, record.written)
    back, gram, vectors = both[:-k], both[-k:], result.vectors  # A^T Z (d x k) and Z^T Z (k x k)
    own = representation_of(operator.reader)
    if own is not None:
        back, gram, vectors = own.left(back, gram, vectors)
    values, rotation, turn = _small_svd(gram)
    vectors = vectors @ turn
    signs = fix_signs(vectors) if own is None else own.phases(vectors)
    vectors, rotation = vectors * signs, rotation * signs
    residuals = np.linalg.norm(back @ rotation - vectors * values, axis=0) * (values > 0)
    checksums = np.array([record.written[slab] for slab in sorted(record.written)], np.uint32)
    rotation = rotation if own is None else own.rotation(rotation)
    return LeftResult(values=values, vectors=vectors, residual_norms=residuals, rotation=rotation, checksums=checksums)


def rebuild_left(operator: Gram, arrays: Arrays, folder: Path, one_pass: Pass) -> None:
    """Write chunks of Z again that are lost or damaged, in one pass; only bytes that have their checksum are written.

    Raises
    ------
    RefusedError
        This machine computes other last bits than the one that made the result.
    """
    rotation, expected = arrays["left_rotation"], arrays["left_checksums"]
    _, record = one_pass(_left_product(operator, len(rotation), folder, expected))
    if other := [slab for slab, crc in record.written.items() if crc != int(expected[slab])]:
        raise RefusedError(
            f"{len(other)} of {len(expected)} chunks of {folder / Z_NAME} come out with other last bits than in the "
            "result, which was computed with another BLAS kernel or version: rebuild them on a machine like that, or "
            "delete the folder `result` of the run and resume it, which computes both again"
        )
    flush_left(folder, record.written)


def _left_product(operator: Gram, k: int, folder: Path, expected: np.ndarray | None = None) -> LeftProduct:
    z = _left_array(folder, operator.reader.shape[0], k, operator.reader.chunks[0])
    return operator.left_product(z, expected)


def flush_left(folder: Path, slabs: Iterable[int]) -> None:
    """Flush chunks of Z to disk, and the folders that name them.

    All at once and not each when it is written: the first flush then takes most of the others along.

    Raises
    ------
    CommitError
        The disk is full or the file system failed.
    """
    store, chunks = folder / Z_NAME, sorted(slabs)
    try:
        for slab in chunks:
            fsync(_chunk_file(store, slab))
            fsync_folder(_chunk_file(store, slab).parent)
        fsync(store / "zarr.json")
        for above in (store / "c", store, folder):
            fsync_folder(above)
    except FileNotFoundError:
        _require_here(folder, chunks)
        raise
    except OSError as error:
        raise uncommitted(f"flush {store} to disk", error) from error


def _chunk_file(z: Path, slab: int) -> Path:
    return z / "c" / str(slab) / "0"


def _left_array(folder: Path, m: int, k: int, height: int) -> Any:
    """The array of Z, new, or as a pass that was killed left it: the rows of its finished parts are in there."""
    config: Any = {"write_empty_chunks": True}
    for aside in list((folder / Z_NAME).rglob("*.partial")):  # what a kill in the middle of a chunk leaves of zarr's
        aside.unlink(missing_ok=True)
    with suppress(BadInputError):
        held = open_left_product(folder, mode="r+")
        if held.shape == (m, k) and held.chunks == (height, k) and held.dtype == np.float64:
            return held.with_config(config)
    return zarr.create_array(
        folder / Z_NAME,
        shape=(m, k),
        dtype=np.float64,
        chunks=(height, k),
        compressors=None,
        overwrite=True,
        config=config,
    )


def _require_here(folder: Path, slabs: list[int]) -> None:
    missing = [slab for slab in slabs if not _chunk_file(folder / Z_NAME, slab).is_file()]
    if missing:
        raise RefusedError(
            f"{len(missing)} of {len(slabs)} pieces of {folder / Z_NAME} are not here: workers on other machines have "
            "written them into a folder of the same name there; run it again with a store on a disk that all of them "
            "share, or without cluster in a new store"
        )


def _small_svd(gram: Block) -> tuple[np.ndarray, Block, Block]:
    """Singular values of Z from Z^T Z, M with U = Z M, and the turn of the right vectors."""
    k = len(gram)
    norms = np.sqrt(np.maximum(np.diagonal(gram).real, 0.0))
    kept = np.flatnonzero(norms > 4 * k * np.finfo(np.float64).eps * norms.max(initial=0.0))
    values, rotation, turn = np.zeros(k), np.zeros((k, k), gram.dtype), np.eye(k, dtype=gram.dtype)
    if len(kept):
        some, r = _factor(gram, norms, kept)
        if r is None:
            return _dependent_svd(gram[np.ix_(kept, kept)] / np.outer(norms[kept], norms[kept]), norms, kept)
        w, s, qt = np.linalg.svd(r)
        values[: len(some)] = s
        rotation[np.ix_(some, np.arange(len(some)))] = np.linalg.solve(r, w)
        turn = np.zeros((k, k), gram.dtype)
        turn[np.ix_(some, np.arange(len(some)))] = qt.conj().T
        lost = np.setdiff1d(np.arange(k), some)
        turn[lost, np.arange(len(some), k)] = 1.0
    return values, rotation, turn


def _factor(gram: Block, norms: np.ndarray, kept: np.ndarray) -> tuple[np.ndarray, Block | None]:
    """The columns of Z that are more than rounding of others, and R of their QR; None where large ones depend."""
    while True:
        unit = gram[np.ix_(kept, kept)] / np.outer(norms[kept], norms[kept])
        try:
            return kept, np.linalg.cholesky(unit).conj().T * norms[kept]
        except np.linalg.LinAlgError:
            least = kept[np.argmin(norms[kept])]
            if norms[least] > ROUNDED * norms.max():
                return kept, None
            kept = kept[kept != least]


def _dependent_svd(unit: Block, norms: np.ndarray, kept: np.ndarray) -> tuple[np.ndarray, Block, Block]:
    """The same where unit columns of Z do not span as many directions: those that are none have no left vector."""
    k = len(norms)
    sizes, directions = np.linalg.eigh(unit)
    some = sizes > np.finfo(np.float64).eps ** 0.5
    root, directions = np.sqrt(sizes[some]), directions[:, some]
    w, s, qt = np.linalg.svd(directions.conj().T * root[:, None] * norms[kept])
    values, rotation, turn = np.zeros(k), np.zeros((k, k), unit.dtype), np.zeros((k, k), unit.dtype)
    values[: len(s)] = s
    rotation[np.ix_(kept, np.arange(len(s)))] = directions / norms[kept, None] / root @ w
    turn[np.ix_(kept, np.arange(len(kept)))] = qt.conj().T
    lost = np.setdiff1d(np.arange(k), kept)
    turn[lost, np.arange(len(kept), k)] = 1.0
    return values, rotation, turn


def open_left_product(store: str | Path, mode: Any = "r") -> Any:
    """Z = A V (m x k) of a finished run, as a Zarr array."""
    store = folder_of(store)
    try:
        node = open_node(store / Z_NAME, mode)
        if not isinstance(node, zarr.Array):
            raise ValueError("it is a group")
        return node
    except BadInputError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInputError(f"{store / Z_NAME} is missing or damaged; {_remedy(store)}") from error


def _remedy(store: Path) -> str:
    """Say how lost chunks can be restored, with or without the data."""
    source = (RunStore(store).read_spec() or {}).get("source", "")
    if source.startswith("memory, "):
        return f"calling npmdask.top_k again with the same array and store = {store} computes it again, in one pass"
    if source and "://" not in source and not Path(source).exists():
        return (
            f"it is computed from {source}, which is gone: put it back and run `npmdask resume {store}` (basis and "
            f"values are whole, in {store / 'result'})"
        )
    return f"`npmdask resume {store}` computes it again, in one pass over the data"


def left_height(store: Path, arrays: Arrays) -> tuple[int, int]:
    """Rows of Z, and of a chunk; raises BadInputError if ``left.zarr`` is not as the result describes it."""
    z, k = open_left_product(store), len(arrays["left_rotation"])
    fits = len(z.shape) == 2 and z.shape[1] == k == z.chunks[1] and z.dtype == np.float64
    if not fits or -(-z.shape[0] // z.chunks[0]) != len(arrays["left_checksums"]):
        raise BadInputError(f"{store / Z_NAME} does not have the shape that the result has; {_remedy(store)}")
    return int(z.shape[0]), int(z.chunks[0])


def read_left_chunk(store: Path, arrays: Arrays, slab: int, height: int, rows: int) -> Block:
    """A chunk of Z as it is on disk, its size and checksum checked."""
    file, k = _chunk_file(store / Z_NAME, slab), len(arrays["left_rotation"])
    try:
        data = read_plain(file)
    except OSError as error:
        raise BadInputError(f"{file} is missing or unreadable ({error.strerror}); {_remedy(store)}") from error
    block = np.frombuffer(data, "<f8").reshape(height, k)[:rows] if len(data) == 8 * height * k else None
    if block is None or crc32c(block) != int(arrays["left_checksums"][slab]):
        raise BadInputError(f"{file} is damaged: size or checksum do not match; {_remedy(store)}")
    return block


def left_chunks(store: Path, arrays: Arrays) -> Iterator[Block]:
    """All of Z, a chunk at a time; ``arrays``: those of the result."""
    m, height = left_height(store, arrays)
    for slab, start in enumerate(range(0, m, height)):
        yield read_left_chunk(store, arrays, slab, height, min(height, m - start))


def left_is_whole(store: Path, arrays: Arrays) -> bool:
    """Say whether every chunk of Z exists and has its checksum."""
    try:
        for _ in left_chunks(store, arrays):
            pass
    except BadInputError:
        return False
    return True


def left_blocks(store: str | Path) -> Iterator[Block]:
    """The left singular vectors of a finished run, some rows at a time."""
    store = folder_of(store)
    arrays, _ = read_bundle(store / "result")
    if "left_rotation" not in arrays and traits_of((RunStore(store).read_spec() or {})["data"].get("kind")).left:
        raise BadInputError(
            f"the answer in {store} was formed of a stored Gram, without rows: left singular vectors take a run on the "
            "rows themselves (or scores of them, divided by the values)"
        )
    if "left_rotation" not in arrays:
        raise BadInputError(f"{store} has no left singular vectors: they are computed for kind = 'matrix' only")
    for rows in left_chunks(store, arrays):
        yield rows @ arrays["left_rotation"]


def left_factor(store: str | Path) -> Block:
    """All left singular vectors (m x k) in memory."""
    return np.concatenate(list(left_blocks(store)))
