"""Runs whose blocks lie on disk: the same answer as in memory, the same bits whatever the memory, threads and kills."""

from __future__ import annotations

import json
import subprocess
import sys
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import zarr
from scipy import sparse

import npmdask
from npmdask.core.numerics.subspaces import (
    asymmetry,
    column_lengths,
    orth,
    random_orthonormal,
    rayleigh_ritz_seen,
    tiled_orth,
    tiled_random,
    tiled_rayleigh_ritz,
)
from npmdask.core.runs import disk_release
from npmdask.core.runs.build import make_problem
from npmdask.core.runs.problem import Request
from npmdask.core.runs.resources import Resources, memory_for, needs_of
from npmdask.core.storage import block_files
from npmdask.core.storage.block_files import BlockFile
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError, MemoryRefusedError, RefusedError
from tests.conftest import needs

ON_DISK = {"blocks": "disk"}
ROWS, COLUMNS = 400, 3000


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of 320 rows or so: a small block has many."""
    monkeypatch.setattr(block_files, "TILE_BYTES", 2**15)


@pytest.fixture(scope="module")
def matrix() -> Any:
    """Rows of falling size, some of them and some columns empty, entries of a row in any order."""
    rng = np.random.default_rng(5)
    entries = sparse.random(ROWS, COLUMNS, 0.01, random_state=rng, format="lil")
    entries[100:140], entries[:, 700:900], entries[-3:], entries[:, -50:] = 0, 0, 0, 0
    found = (sparse.diags(np.geomspace(30, 1, ROWS)) @ entries.tocsr()).tocsr()
    found.eliminate_zeros()
    for start, stop in zip(found.indptr[:-1], found.indptr[1:], strict=True):
        order = start + rng.permutation(stop - start)
        found.indices[start:stop], found.data[start:stop] = found.indices[order], found.data[order]
    found.has_sorted_indices = False
    return found


@pytest.fixture
def stored(matrix: Any, tmp_path: Path) -> str:
    """The same as CSR in Zarr, in chunks whose borders cut rows."""
    group = zarr.open_group(tmp_path / "data.zarr", mode="w")
    group.attrs.update({"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": list(matrix.shape)})
    for name, chunk in (("data", 1500), ("indices", 1500), ("indptr", 64)):
        values = getattr(matrix, name)
        group.create_array(name, shape=values.shape, chunks=(chunk,), dtype=values.dtype)[:] = values
    return str(tmp_path / "data.zarr")


def ranges_of(monkeypatch: pytest.MonkeyPatch, tiles: int) -> None:
    """Have so many tiles of a block in memory at a time."""
    monkeypatch.setattr(disk_release, "tiles_held", lambda problem, held, threads=1: tiles)


@pytest.mark.slow
@needs("containers")
@pytest.mark.parametrize(
    "asked",
    [
        {"kind": "sparse"},
        {"kind": "sparse", "center": True, "scale": True},
    ],
    ids=["sparse", "scaled"],
)
def test_answer_is_that_of_blocks_in_memory(
    matrix: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any]
) -> None:
    ranges_of(monkeypatch, 7)
    answers_are_the_same(matrix, tmp_path / "run", asked)


def answers_are_the_same(matrix: Any, store: Path, asked: dict[str, Any]) -> None:
    """With blocks in memory and on disk."""
    asked |= {"algorithm": "power", "max_steps": 12}
    here = npmdask.top_k(matrix, 4, **asked)
    there = npmdask.top_k(matrix, 4, options=ON_DISK, store=store, **asked)
    assert np.abs(there.values / here.values - 1).max() < 1e-12
    assert np.abs(there.basis - here.basis).max() < 1e-10
    assert np.allclose(there.residual_norms, here.residual_norms, rtol=1e-6)
    assert there.steps == here.steps and there.outcome == here.outcome
    assert there.assurance == here.assurance
    assert there.warnings[0].startswith("blocks lie on disk: 3 of") and there.warnings[1:] == here.warnings
    assert isinstance(there.basis, np.memmap) and there.total_data_passes > here.total_data_passes


@pytest.mark.slow
def test_bits_are_the_same_with_any_memory_and_threads(
    stored: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = set()
    for tiles, threads in ((1, 1), (3, 2), (1000, 2)):
        ranges_of(monkeypatch, tiles)
        store = tmp_path / f"{tiles}-{threads}"
        asked: dict[str, Any] = {"algorithm": "power", "options": ON_DISK, "max_steps": 4, "threads": threads}
        solution = npmdask.top_k(stored, 4, kind="sparse", store=store, **asked)
        found.add((solution.basis.tobytes(), solution.values.tobytes(), solution.residual_norms.tobytes()))
    assert len(found) == 1


@pytest.mark.slow
def test_one_range_is_in_memory_at_a_time(stored: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of them once took 1.16 times the memory that a run was allowed."""
    ranges_of(monkeypatch, 2)
    original, held = disk_release._viewed_tiles, list[Any]()

    def seen(*asked: Any) -> np.ndarray:
        assert all(one() is None for one in held)
        found = original(*asked)
        held.append(weakref.ref(found))
        return found

    monkeypatch.setattr(disk_release, "_viewed_tiles", seen)
    asked: dict[str, Any] = {"algorithm": "power", "options": ON_DISK, "max_steps": 1}
    npmdask.top_k(stored, 4, kind="sparse", store=tmp_path / "run", **asked)
    assert len(held) > 3


@pytest.mark.slow
@needs("containers", "planning", "streaming")
def test_bits_are_the_same_after_a_kill_and_a_full_disk(stored: str, tmp_path: Path) -> None:
    """Kill -9 inside of writes spread over a run: of the start, of either half of a product, and of the QR."""
    job = [sys.executable, "-m", "tests.faults.disk_job", stored, str(tmp_path), "7"]
    found = json.loads(subprocess.run(job, check=True, stdout=subprocess.PIPE).stdout)
    assert all(kill["same"] for kill in found["kills"]), found
    redone = sorted(kill["again"] for kill in found["kills"])
    assert redone[len(redone) // 2] < found["writes"] / 6  # what was done is not done again: half of a step at most
    full = found["full"]
    assert full["refused"] and not full["left"] and full["same"]
    assert "What was committed before is intact; free some space" in full["said"]


def test_disk_that_is_too_small_is_refused(stored: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_release, "disk_usage", lambda path: SimpleNamespace(free=10**6))
    with pytest.raises(RefusedError, match=r"has 0\.001 GB free, and blocks on disk take 0\.00"):
        npmdask.top_k(stored, 4, kind="sparse", store=tmp_path / "small", algorithm="power", options=ON_DISK)


@pytest.mark.slow
def test_damaged_blocks_are_found(stored: str, tmp_path: Path) -> None:
    asked: dict[str, Any] = {"algorithm": "power", "options": ON_DISK, "max_steps": 2}
    npmdask.top_k(stored, 4, kind="sparse", store=tmp_path / "run", **asked)
    with open(tmp_path / "run" / "blocks" / "basis-2", "r+b") as file:
        file.seek(100_000)
        file.write(b"x")
    with pytest.raises(BadInputError, match="basis-2 is corrupt: tile 2"):
        npmdask.resume(tmp_path / "run", max_steps=3)


@pytest.mark.parametrize("lost", [0, 1, 3], ids=["condition 1e12", "dependent", "zero"])
def test_orthonormalisation_of_nearly_dependent_columns(tmp_path: Path, lost: int) -> None:
    """Cholesky QR fails from a condition of 1e8 on; this one may not."""
    rng, d, p = np.random.default_rng(1), 3000, 12
    left, right = random_orthonormal(d, p, rng), random_orthonormal(p, p, rng)
    block = (left * np.geomspace(1, 1e-12, p)) @ right
    assert np.linalg.cond(block) > 1e11
    if lost:
        block[:, 5:6] = block[:, :1] * 3
    if lost == 3:
        block[:, 7:9] = 0
    file = BlockFile(tmp_path / "block", (d, p))
    file.write(0, block)
    tiled_orth(file, column_lengths(file, 2), np.random.default_rng(2), 2)
    q, expected = file.read(slice(0, d)), orth(block, np.random.default_rng(2))
    assert len(file.tiles) == 8
    assert np.abs(q.T @ q - np.eye(p)).max() < 1e-14
    residual = block - q @ (q.T @ block)
    assert np.abs(residual).max() < 1e-15
    first = slice(0, 5)  # of the others only rounding is left
    assert np.abs(q[:, first] - expected[:, first]).max() < 1e-4
    if lost == 3:
        assert np.abs(q[:, 7:9] - expected[:, 7:9]).max() < 1e-8  # the same random directions


def test_start_and_ritz_pairs_are_those_of_blocks_in_memory(tmp_path: Path) -> None:
    d, p, k = 3000, 10, 4
    file, product = BlockFile(tmp_path / "x", (d, p)), BlockFile(tmp_path / "y", (d, p))
    tiled_random(file, np.random.default_rng(3), 2)
    basis = file.read(slice(0, d))
    assert np.abs(basis - random_orthonormal(d, p, np.random.default_rng(3))).max() < 1e-14
    sizes = np.append(np.linspace(9, -8, d - 1), 0.0)
    product.write(0, sizes[:, None] * basis)
    found = tiled_rayleigh_ritz(file, product, k, 2)
    pairs, seen = rayleigh_ritz_seen(basis, sizes[:, None] * basis, k)
    assert np.allclose(found.values, seen.values, rtol=0, atol=1e-13)
    assert np.allclose(found.gram, seen.gram, rtol=0, atol=1e-11) or np.allclose(
        np.abs(found.gram), np.abs(seen.gram), rtol=0, atol=1e-11
    )  # signs of pairs that are not wanted are not fixed
    assert np.abs(basis @ found.turn - pairs.vectors).max() < 1e-12
    assert abs(found.asymmetry - asymmetry(basis, sizes[:, None] * basis)) < 1e-15


def test_blocks_in_memory_fill_what_the_limit_leaves(stored: str) -> None:
    """As much of them as there is room for beside all else, and it is in what is predicted."""
    asked = Request(target_rank=4, iteration_rank=8, algorithm="power", options=ON_DISK)
    needs = needs_of(make_problem(open_source(stored, "sparse"), asked))
    free = memory_for(needs, Resources(threads=1), base=2**20)
    whole = 8 * COLUMNS * 8
    assert free.held == whole
    for room in (0, whole // 3, whole, 2 * whole):
        limit = free.predicted_peak - whole + room
        plan = memory_for(needs, Resources(threads=1, memory=limit), base=2**20)
        assert plan.held == min(room, whole) and plan.predicted_peak == limit - room + plan.held


@pytest.mark.slow
@needs("containers", "planning")
def test_where_memory_does_not_suffice_blocks_go_to_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chosen without being asked for, inside of the memory, and said; kept when it is resumed with more memory."""
    monkeypatch.undo()
    rng, d = np.random.default_rng(0), 400_000
    rows = sparse.random(9000, d, 3e-6, random_state=rng, format="csr")  # of fewer rows A A^T is formed in less memory
    held = npmdask.top_k(rows, 5, kind="sparse", max_steps=1, threads=1).peak_rss_bytes or 0
    limit = held - 200 * 2**20  # a block has 48 MB, of which a run in memory takes eight or more
    found = npmdask.top_k(rows, 5, kind="sparse", memory=limit, threads=1, max_steps=1, store=tmp_path / "run")
    assert found.peak_rss_bytes is not None and found.peak_rss_bytes <= limit
    assert any("blocks lie on disk: 3 of 0.048 GB" in warning for warning in found.warnings)
    with pytest.raises(MemoryRefusedError, match="one thread needs"):
        npmdask.top_k(rows, 5, kind="sparse", algorithm="krylov", memory=limit, threads=1, max_steps=1)
    again = npmdask.top_k(rows, 5, kind="sparse", memory="8GiB", threads=1, max_steps=1, store=tmp_path / "run")
    assert again.data_passes == 0 and again.basis.tobytes() == found.basis.tobytes()


@pytest.mark.slow
def test_what_blocks_on_disk_are_not_for(matrix: Any, stored: str, tmp_path: Path) -> None:
    asked: dict[str, Any] = {"algorithm": "power", "options": ON_DISK}
    with pytest.raises(RefusedError, match="is not a sparse matrix"):
        npmdask.top_k(matrix.toarray(), 2, **asked)
    with pytest.raises(BadInputError, match='there are blocks = "disk"'):
        npmdask.top_k(stored, 2, kind="sparse", algorithm="power", options={"blocks": "tape"})
    with pytest.raises(RefusedError, match="private runs, noise"):
        npmdask.top_k(stored, 2, kind="sparse", mechanism="gaussian", stddev=0.1, **asked)
    run = tmp_path / "run"
    npmdask.top_k(stored, 2, kind="sparse", store=run, tol=0.2, **asked)
    with pytest.raises(RefusedError, match="kept its blocks on disk"):
        npmdask.deflate(run, 1, store=tmp_path / "more")
    begun = npmdask.top_k(stored, 2, kind="sparse", store=tmp_path / "warm", start=run, tol=0.1)
    assert begun.converged
