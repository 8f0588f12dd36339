"""Left singular vectors, out of core: one pass that forms Z = A V and keeps it, and a small SVD."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from npmdask.algorithms import Result
from npmdask.checkpoint import folder_of
from npmdask.errors import BadInputError, RefusedError
from npmdask.linalg import Block, fix_signs
from npmdask.operators import Gram, LeftProduct, Operator
from npmdask.storage.bundle import read_bundle
from npmdask.storage.checksum import crc32c
from npmdask.storage.dense import SlabRecord
from npmdask.storage.zarr_door import open_node

Z_NAME = "left.zarr"
AGAIN = "delete the folder `result` of the run and resume it: one pass makes it again"


@dataclass(frozen=True, kw_only=True)
class LeftResult:
    """Singular triplets: values, right vectors (d x k), residuals; left vectors are Z @ ``rotation``."""

    values: np.ndarray
    vectors: Block
    residual_norms: np.ndarray
    rotation: Block
    checksums: np.ndarray  # of each row of chunks of Z


def refine_with_left(
    operator: Gram, result: Result, folder: Path, one_pass: Callable[[Operator], tuple[Block, SlabRecord]]
) -> LeftResult:
    """The final Rayleigh-Ritz for singular triplets, in one pass.

    From Z = A V comes the R of its QR factorisation (Cholesky of Z^T Z with unit columns, so that small
    singular values keep their relative accuracy, which eigenvalues of A^T A do not), and from the SVD of R
    the triplets. Values that are zero to rounding have no left vector: their column is zero.

    Raises
    ------
    RefusedError
        The workers of a cluster have written Z where this machine does not see it.
    """
    m, k = operator.reader.shape[0], result.vectors.shape[1]
    z = _left_array(folder, m, k, operator.reader.chunks[0])
    options = {f.name: getattr(operator, f.name) for f in fields(operator)}
    both, record = one_pass(LeftProduct(target=z, **options))
    _require_here(folder, sorted(record.written))
    back, gram = both[:-k], both[-k:]  # A^T Z (d x k) and Z^T Z (k x k)
    values, rotation, turn = _small_svd(gram)
    vectors = result.vectors @ turn
    signs = fix_signs(vectors)
    vectors, rotation = vectors * signs, rotation * signs
    residuals = np.linalg.norm(back @ rotation - vectors * values, axis=0) * (values > 0)
    checksums = np.array([record.written[slab] for slab in sorted(record.written)], np.uint32)
    return LeftResult(values=values, vectors=vectors, residual_norms=residuals, rotation=rotation, checksums=checksums)


def _left_array(folder: Path, m: int, k: int, height: int) -> Any:
    """The array of Z, new, or as a pass that was killed left it: the rows of its finished parts are in there."""
    config: Any = {"write_empty_chunks": True}
    for aside in list((folder / Z_NAME).rglob("*.partial")):  # what a kill in the middle of a chunk leaves of zarr's
        aside.unlink(missing_ok=True)
    with suppress(BadInputError):
        held = open_left_product(folder, mode="r+")
        if held.shape == (m, k) and held.chunks == (height, k):
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
    missing = [slab for slab in slabs if not (folder / Z_NAME / "c" / str(slab) / "0").is_file()]
    if missing:
        raise RefusedError(
            f"{len(missing)} of {len(slabs)} pieces of {folder / Z_NAME} are not here: workers on other machines have "
            "written them into a folder of the same name there; run it again with a store on a disk that all of them "
            "share, or without cluster in a new store"
        )


def _small_svd(gram: Block) -> tuple[np.ndarray, Block, Block]:
    """Singular values of Z from Z^T Z, M with U = Z M, and the turn of the right vectors."""
    k = len(gram)
    norms = np.sqrt(np.maximum(np.diagonal(gram), 0.0))
    kept = np.flatnonzero(norms > 4 * k * np.finfo(np.float64).eps * norms.max(initial=0.0))
    values, rotation, turn = np.zeros(k), np.zeros((k, k)), np.eye(k)
    if len(kept):
        unit = gram[np.ix_(kept, kept)] / np.outer(norms[kept], norms[kept])
        r = np.linalg.cholesky(unit).T * norms[kept]
        w, s, qt = np.linalg.svd(r)
        values[: len(kept)] = s
        rotation[np.ix_(kept, np.arange(len(kept)))] = np.linalg.solve(r, w)
        turn = np.zeros((k, k))
        turn[np.ix_(kept, np.arange(len(kept)))] = qt.T
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
    except (OSError, ValueError, KeyError) as error:
        raise BadInputError(f"{store / Z_NAME} is missing or damaged; {AGAIN}") from error


def left_blocks(store: str | Path) -> Iterator[Block]:
    """The left singular vectors of a finished run, some rows at a time."""
    store = folder_of(store)
    arrays, _ = read_bundle(store / "result")
    if "left_rotation" not in arrays:
        raise BadInputError(f"{store} has no left singular vectors: they are computed for kind = 'matrix' only")
    z = open_left_product(store)
    for slab, start in enumerate(range(0, z.shape[0], z.chunks[0])):
        rows = z[start : start + z.chunks[0]]
        if crc32c(rows) != int(arrays["left_checksums"][slab]):
            raise BadInputError(f"chunk {slab} of {store / Z_NAME} is corrupt or missing; {AGAIN}")
        yield rows @ arrays["left_rotation"]


def left_factor(store: str | Path) -> Block:
    """All left singular vectors (m x k) in memory."""
    return np.concatenate(list(left_blocks(store)))
