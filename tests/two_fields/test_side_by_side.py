"""Two stored arrays read as one: the same values however each is chunked, each chunk held to its checksum."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import zarr

from npmdask.core.execution.executor import Threads
from npmdask.core.operators import View
from npmdask.core.storage.chunk_access import scratch, scratch_space
from npmdask.core.storage.readers import ReadStats, checksum_table, checksums_of
from npmdask.core.storage.source import open_source
from npmdask.dilation.operator import CrossCovariance
from npmdask.errors import BadInputError
from npmdask.two_fields.side_by_side import SideBySide

N = 230


def stored(folder: Path, name: str, values: np.ndarray, chunks: tuple[int, int], *, packed: bool = False) -> str:
    more = {} if packed else {"compressors": None}
    array = zarr.create_array(folder / name, shape=values.shape, dtype=values.dtype, chunks=chunks, **more)
    array[...] = values
    return str(folder / name)


def values(columns: int, seed: int, dtype: str = "f8") -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((N, columns)).astype(dtype)


@pytest.mark.parametrize(
    ("heights", "unit"), [((20, 20), 20), ((20, 40), 40), ((230, 7), 230), ((30, 40), 120), ((41, 43), 172)]
)
@pytest.mark.parametrize("packed", [False, True])
def test_rows_are_those_of_both_whatever_the_chunks(
    heights: tuple[int, int], unit: int, packed: bool, tmp_path: Path
) -> None:
    """Mutants: buffers that both share (the second overwrites the first), rows of a chunk across an edge left out."""
    a, b = values(9, 0), values(5, 1)  # of one dtype and width of chunks: of others buffers are others anyway
    left = open_source(stored(tmp_path, "a", a, (heights[0], 4), packed=packed)).reader
    right = open_source(stored(tmp_path, "b", b, (heights[1], 4), packed=packed)).reader
    reader, record, found = SideBySide.of(left, right), ReadStats(), np.full((N, 14), np.nan)
    assert reader.chunks[0] == min(unit, N)
    for slab in range(reader.grid[0]):
        for rows, tile in reader.tiles(slab, record):
            for columns, part in tile:
                found[rows, columns] = part
    np.testing.assert_array_equal(found, np.concatenate([a, b], axis=1))
    table = checksum_table(checksums_of(record, sparse=False))
    assert len(table) == left.grid[0] + right.grid[0]
    held = replace(reader, checksums=table)
    assert sum(len(tile) for slab in range(held.grid[0]) for _, tile in held.tiles(slab, ReadStats())) > 0
    table = table.copy()
    table[left.grid[0], 0] ^= 1
    with pytest.raises(BadInputError, match=r"c/0/0 of .*b is corrupt"):
        for slab in range(reader.grid[0]):
            list(replace(reader, checksums=table).tiles(slab, ReadStats()))


def test_at_most_a_quarter_is_read_twice(tmp_path: Path) -> None:
    left = open_source(stored(tmp_path, "a", values(3, 0), (10, 3))).reader
    right = open_source(stored(tmp_path, "b", values(3, 1), (11, 3))).reader
    record, reader = ReadStats(), SideBySide.of(left, right)
    for slab in range(reader.grid[0]):
        list(reader.tiles(slab, record))
    assert reader.nbytes < record.bytes_read <= 1.25 * reader.nbytes


def test_products_are_those_of_the_cross_covariance(tmp_path: Path) -> None:
    """Centred, scaled and weighted. Mutants: images of the own field, columns of the other one's weights."""
    a, b = values(9, 0) + 3, values(5, 1, "f4") - 7
    left, right = (open_source(stored(tmp_path, name, x, (h, 4))).reader for name, x, h in (("a", a, 30), ("b", b, 40)))
    rng = np.random.default_rng(2)
    u, v, scale = rng.random(N), rng.random(14), 1 + rng.random(14)
    both = np.concatenate([a, b.astype("f8")], axis=1)
    mean = u @ both / u.sum()
    seen = (both - mean) / scale * np.sqrt(v) * np.sqrt(u)[:, None]
    c, block = seen[:, :9].T @ seen[:, 9:] / u.sum(), rng.standard_normal((14, 3))
    view = View(shift=mean, scale=scale, row_weight=u, column_weight=v)
    operator = CrossCovariance(reader=SideBySide.of(left, right), split=9, weight=1 / u.sum(), view=view, moments=True)
    product = Threads(1).run_pass(operator, block, lambda record: None)[0]
    np.testing.assert_allclose(product[:14], np.concatenate([c @ block[9:], c.T @ block[:9]]), rtol=1e-11, atol=1e-12)
    scores = np.concatenate([seen[:, :9] @ block[:9], seen[:, 9:] @ block[9:]], axis=1)
    np.testing.assert_allclose(product[14:].reshape(6, 6), scores.T @ scores / u.sum(), rtol=1e-11, atol=1e-12)


def test_a_bad_value_is_named_in_its_own_array(tmp_path: Path) -> None:
    a, b = values(9, 0), values(5, 1)
    b[77, 3] = np.nan
    left, right = (open_source(stored(tmp_path, name, x, (30, 4))).reader for name, x in (("a", a), ("b", b)))
    operator = CrossCovariance(reader=SideBySide.of(left, right), split=9)
    with pytest.raises(BadInputError, match="b holds nan at row 77, column 3"):
        Threads(1).run_pass(operator, np.ones((14, 1)), lambda record: None)


def test_a_space_of_buffers_is_left_again() -> None:
    plain = scratch("x", (3,), np.float64)
    with scratch_space("a"):
        assert scratch("x", (3,), np.float64) is not plain
    assert scratch("x", (3,), np.float64) is plain
