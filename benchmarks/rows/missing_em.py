"""Missing values by EM of rows that do not fit into the memory allowed, beside EM of the same model in memory.

The other program is plain EM (without parameter expansion, the mean after the loadings) on one float32 array, from the
components of the data filled with means. Both are compared with the directions that the rows were drawn with.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import zarr

from benchmarks.children import last_json, solve_command
from benchmarks.registry import CannotRunError, Context, Measured, Row
from npmdask.core.numerics.subspaces import max_sin_theta

N, D, K = 1_000_000, 500, 5
MISSING = 0.1
MEMORY = 512 * 2**20
CHUNK, BLOCK = 8192, 2048  # rows
SETTLED = 1e-6  # sine between the spaces of two steps of the program in memory: lengths take hundreds of steps more
MOST = 200
SPARE = 2**31


def truth(d: int) -> np.ndarray:
    """Directions (d x k)."""
    basis: np.ndarray = np.linalg.qr(np.random.default_rng(5).standard_normal((d, K)))[0]
    return basis


def make(path: Path, n: int, d: int) -> None:
    """Rows with deviations of 20 to 10 along the directions and of 1 everywhere, about means, with gaps at random."""
    need, free = 4 * n * d + SPARE, shutil.disk_usage(path.parent).free
    if need > free:
        raise CannotRunError(f"the rows take {need / 2**30:.0f} GiB and {free / 2**30:.0f} GiB are free")
    rng, basis = np.random.default_rng(0), truth(d).astype(np.float32)
    array = zarr.create_array(path, shape=(n, d), chunks=(CHUNK, d), dtype=np.float32, compressors=None)
    sizes, mean = np.linspace(20, 10, K, dtype=np.float32), np.linspace(-5, 5, d, dtype=np.float32)
    for start in range(0, n, CHUNK):
        rows = min(CHUNK, n - start)
        drawn = (rng.standard_normal((rows, K), np.float32) * sizes) @ basis.T + mean
        drawn += rng.standard_normal((rows, d), np.float32)
        drawn[rng.random((rows, d), np.float32) < MISSING] = np.nan
        array[start : start + rows] = drawn


def in_memory(rows: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Directions of the mean-filled rows, those of plain EM from there, and its steps."""
    n, d = rows.shape
    blocks = [slice(start, min(start + BLOCK, n)) for start in range(0, n, BLOCK)]
    total, counts = np.zeros(d), np.zeros(d)
    for block in blocks:
        total, counts = (
            total + np.nansum(rows[block], axis=0, dtype=np.float64),
            counts + (~np.isnan(rows[block])).sum(0),
        )
    mean, covariance = total / counts, np.zeros((d, d))
    for block in blocks:
        filled = np.nan_to_num(rows[block] - mean)
        covariance += filled.T @ filled / n
    values, vectors = np.linalg.eigh(covariance)
    first = vectors[:, : -k - 1 : -1]
    noise = float(values[:-k].mean())
    loadings = first * np.sqrt(values[: -k - 1 : -1] - noise)
    axes, steps, moved = first, 0, 1.0
    while moved > SETTLED and steps < MOST:
        loadings, mean, noise = _step(rows, blocks, loadings, mean, noise)
        before, axes = axes, np.linalg.svd(loadings, full_matrices=False)[0]
        steps, moved = steps + 1, max_sin_theta(axes, before)
    return first, axes, steps


def _step(
    rows: np.ndarray, blocks: list[slice], loadings: np.ndarray, mean: np.ndarray, noise: float
) -> tuple[np.ndarray, np.ndarray, float]:
    d, k = loadings.shape
    outer = (loadings[:, :, None] * loadings[:, None]).reshape(d, k * k)
    moments, images, sums = np.zeros((d, k * k)), np.zeros((d, k)), np.zeros((d, k))
    totals, squares, counts = np.zeros(d), np.zeros(d), np.zeros(d)
    for block in blocks:
        seen = ~np.isnan(rows[block])
        away, there = np.where(seen, rows[block] - mean, 0.0), seen.astype(np.float64)
        inverse = np.linalg.inv((there @ outer).reshape(-1, k, k) + noise * np.eye(k))
        z = np.einsum("nab,nb->na", inverse, away @ loadings)
        moments += there.T @ (noise * inverse + z[:, :, None] * z[:, None]).reshape(-1, k * k)
        images, sums = images + away.T @ z, sums + there.T @ z
        totals, squares, counts = totals + away.sum(0), squares + (away**2).sum(0), counts + there.sum(0)
    moments = moments.reshape(d, k, k)
    found = np.linalg.solve(moments, images[:, :, None])[:, :, 0]
    shift = (totals - (found * sums).sum(1)) / counts
    left = squares - 2 * (found * images).sum(1) + np.einsum("da,dab,db->d", found, moments, found)
    left -= counts * shift**2
    return found, mean + shift, float(left.sum() / counts.sum())


def measure(context: Context) -> Measured:
    """Ours in a process of its own, then the other program; the rows are deleted."""
    n, d = context.sized(20_000, N), context.sized(60, D)
    folder = context.folder / "missing-em"
    folder.mkdir(parents=True)
    try:
        path, basis = folder / "rows.zarr", folder / "truth.npy"
        make(path, n, d)
        np.save(basis, truth(d))
        asked: dict[str, Any] = {"source": str(path), "k": K, "kind": "samples", "center": True, "missing": "em"}
        ours = last_json(solve_command(**asked, memory=MEMORY, truth=str(basis)), folder=context.folder)
        begin = time.perf_counter()
        first, found, steps = in_memory(zarr.open_array(path, mode="r")[:], K)
        other = {
            "seconds": time.perf_counter() - begin,
            "max_sin_theta": max_sin_theta(found, truth(d)),
            "steps": steps,
            "mean_max_sin_theta": max_sin_theta(first, truth(d)),
        }
    finally:
        shutil.rmtree(folder)
    failures = () if ours["converged"] else ("ours did not converge",)
    if ours["peak_rss_bytes"] > MEMORY:
        failures += (f"ours took {ours['peak_rss_bytes'] / 2**20:.0f} of {MEMORY / 2**20:.0f} MiB",)
    details = {"n": n, "d": d, "k": K, "missing": MISSING, "memory": MEMORY, "npmdask": ours, "in memory": other}
    return Measured(ours["max_sin_theta"] / other["max_sin_theta"], details, "", failures)


ROWS = (
    Row(
        name="missing-em",
        what="angle to the truth, EM out of core in 512 MiB / EM in memory: 10^6 x 500, rank 5, 10 % missing",
        target=1.05,
        better="lower",
        run=measure,
    ),
)
