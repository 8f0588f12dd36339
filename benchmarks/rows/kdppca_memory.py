"""k-DP-PCA on a million records of 10,000 numbers from Zarr: the peak memory of the process that runs it.

``python -m benchmarks.rows.kdppca_memory FOLDER`` is that process. The records are small integers (an axis a record,
with noise), 10 GB at a byte each. One pass of disjoint batches (``reuse = false``): every record is read twice.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np

import npmdask
from benchmarks.children import last_json
from benchmarks.registry import CannotRunError, Context, Measured, Row
from npmdask.accounting import Budget
from npmdask.core.execution.memory import PeakMeter
from npmdask.ledger import open_ledger
from npmdask.ledger.granting import grant_source
from npmdask.privacy.request import Privacy
from npmdask.writers.dense import DenseWriter

N, D, K = 1_000_000, 10_000, 5
STEPS = 8  # a round: 25,000 records a batch
CHUNK = 1600  # rows: 16 MB
LENGTH = 300.0  # of a record, about: what clip_norm is said to be, its square bounding |A_i w|
CAPTURED = 0.5  # of the planted directions: less is no answer
SPARE = 2**31


def directions(d: int) -> np.ndarray:
    """Five (d x k), orthonormal: signs of a public seed over a fifth of the columns each."""
    found, part = np.zeros((d, K)), d // K
    for j in range(K):
        found[j * part : (j + 1) * part, j] = np.random.default_rng(j).choice([-1.0, 1.0], part) / np.sqrt(part)
    return found


def make(path: Path, n: int, d: int) -> None:
    """Records x = c v_j + rounding and noise of 1.5 in every entry; j with probabilities that fall with it."""
    need, free = n * d + SPARE, shutil.disk_usage(path.parent).free
    if need > free:
        raise CannotRunError(f"the records take {need / 2**30:.0f} GiB and {free / 2**30:.0f} GiB are free")
    planted, rng = directions(d).astype(np.float32), np.random.default_rng(7)
    weights = np.array([5.0, 4.0, 3.0, 2.0, 1.5])
    writer = DenseWriter(
        path, columns=d, dtype=np.dtype(np.int8), kind="samples", rows=n, chunks=(CHUNK, d), identity={}
    )
    for start in range(0, n, CHUNK):
        rows = min(CHUNK, n - start)
        which = rng.choice(K, rows, p=weights / weights.sum())
        signal = planted[:, which].T * (LENGTH * 0.8 * rng.choice([-1.0, 1.0], rows)).astype(np.float32)[:, None]
        noise = rng.standard_normal((rows, d), np.float32) * np.float32(1.5)
        writer.write(np.clip(np.rint(signal + noise), -128, 127).astype(np.int8))
    writer.finish({"generated": {"problem": "axes"}}, {})


def main(folder: Path) -> dict[str, Any]:
    """The run: its peak, what it captured (looked at without privacy, as the planted directions are known)."""
    source, ledger = folder / "records.zarr", folder / "ledger.sqlite"
    privacy = Privacy(
        epsilon=1.0,
        delta=1e-8,
        neighboring_relation="record_replace",
        clip_norm=LENGTH,
        ledger=str(ledger),
        dataset="records",
    )
    grant_source(
        open_ledger(ledger),
        "records",
        source,
        relation="record_replace",
        clip_norm=LENGTH,
        change=1.0,
        budget=Budget(1.001, 1e-8),
    )
    with PeakMeter() as meter:
        solution = npmdask.top_k(
            source,
            K,
            algorithm="k-dp-pca",
            options={"reuse": False, "steps": STEPS},
            privacy=privacy,
            memory="1GiB",
            store=folder / "run",
        )
        peak = meter.peak
    planted = directions(solution.basis.shape[0])
    assert solution.statement is not None
    return {
        "peak_mib": round(peak / 2**20),
        "releases": solution.steps,
        "captured": float(np.linalg.norm(planted.T @ solution.basis) ** 2 / K),
        "epsilon_spent": solution.statement["epsilon_spent"],
        "warnings": list(solution.warnings),
    }


def measure(context: Context) -> Measured:
    """Make the records, run k-DP-PCA in a process of its own, delete them."""
    n, d = context.sized(60_000, N), context.sized(500, D)
    folder = context.folder / "kdppca"
    folder.mkdir(parents=True)
    try:
        make(folder / "records.zarr", n, d)
        facts = last_json([sys.executable, "-m", "benchmarks.rows.kdppca_memory", str(folder)], folder=context.folder)
    finally:
        shutil.rmtree(folder)
    failures = () if facts["captured"] > CAPTURED else (f"captured only {facts['captured']:.2f}",)
    return Measured(facts["peak_mib"], {"n": n, "d": d, "k": K, **facts}, "", failures)


ROWS = (
    Row(
        name="kdppca-memory",
        what="peak MiB of k-DP-PCA (tight, one pass), d = 10,000, k = 5, 10^6 records",
        target=1024.0,
        better="lower",
        run=measure,
    ),
)


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
