"""50 components of sparse cells x genes, scores included: npmdask.anndata.pca against scanpy in memory and on Dask."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from benchmarks import cache
from benchmarks.cell_counts import BLOCK, write_cells
from benchmarks.contest import OURS, Found, attempted, best_peer, failures, finals, is_right, judged, run_contestant
from benchmarks.registry import Context, Measured, Row

K, GOAL = 50, 1e-3  # relative error of variances, and of the variances of scores
MEMORY = 5 * 2**28  # enough for two threads
GENES = 2000
MOLECULES = {"cells": 260.0, "counts": 135.0}  # of a cell: 8 % and 5 % of the entries are not zero
CELLS = {"cells": 1_300_000, "counts": 1_000_000}
IN_MEMORY = {"scanpy in memory": None, "scanpy in memory, covariance_eigh": "covariance_eigh"}
ON_DASK = {"scanpy on Dask": 20_000}  # rows of a block
KNOWN_WRONG = ("scanpy in memory, covariance_eigh",)  # scikit-learn adds up all rows of float32 in float32
SECONDS = 1200.0
KEPT: dict[tuple[str, str], Found] = {}


def _contest(context: Context, data: str, settings: dict[str, Any]) -> Found:
    """The facts of every contestant; measured once for all rows that need them."""
    if (context.scale, data) in KEPT:
        return KEPT[context.scale, data]
    cells, genes = context.sized(4000, CELLS[data]), context.sized(300, GENES)
    path, small = context.folder / f"{data}.h5ad", context.folder / "small.h5ad"
    entries = write_cells(path, cells, genes, MOLECULES[data] * genes / GENES)
    write_cells(small, 500, 120, 30.0)
    cache.warm(path)
    outs = {name: context.folder / f"{number}.npz" for number, name in enumerate([OURS, *settings])}

    def run(name: str) -> dict[str, Any]:
        job = {"contestant": name, "kind": "cells", "path": str(path), "small": str(small), "k": K, "memory": MEMORY}
        job |= {"setting": settings.get(name), "out": str(outs[name])}
        return run_contestant(context, "labelled", name, job, seconds=SECONDS) | {"verdict": "right"}

    found = {name: attempted(name, partial(run, name)) for name in outs}
    _judge(found, outs, exact_variances(path))
    finals(found, run, min(2, context.rounds))
    details = {"cells": cells, "genes": genes, "share_not_zero": round(entries / cells / genes, 4)}
    KEPT[context.scale, data] = found | {"data": details}
    return KEPT[context.scale, data]


def exact_variances(path: Path) -> np.ndarray:
    """Of the leading components: from X^T X of filled rows in float64, by a program that is no contestant."""
    import h5py

    with h5py.File(path) as file:
        held: Any = file["X"]
        (cells, genes), starts = held.attrs["shape"], held["indptr"][...]
        total, gram = np.zeros(genes), np.zeros((genes, genes))
        for first in range(0, cells, BLOCK):
            ends = starts[first : first + BLOCK + 1].astype(np.int64)
            values, columns = (held[name][ends[0] : ends[-1]] for name in ("data", "indices"))
            parts = (values.astype("f8"), columns, ends - ends[0])
            filled = csr_matrix(parts, shape=(len(ends) - 1, genes)).toarray()
            total += filled.sum(axis=0)
            gram += filled.T @ filled
    gram -= np.outer(total, total / cells)
    return np.linalg.eigvalsh(gram)[: -K - 1 : -1] / (cells - 1)


def _judge(found: Found, outs: dict[str, Path], exact: np.ndarray) -> None:
    """Variances, and those of the scores, against the exact ones."""
    for name, facts in found.items():
        if is_right(facts):  # it ended
            off = float(np.abs(np.load(outs[name])["variances"] / exact - 1).max())
            found[name] = judged(facts | {"relative_error": max(off, facts["scores_off"])}, "relative_error", GOAL)


def measure(context: Context, data: str, settings: dict[str, Any], what: str) -> Measured:
    """Seconds, or memory, of ours over those of the best right one; of memory that of scanpy in memory."""
    kept = _contest(context, data, settings)
    details: dict[str, Any] = {"goal": GOAL, "k": K, **kept["data"]}
    found = {name: facts for name, facts in kept.items() if name != "data"}
    wrong, best = failures(found, KNOWN_WRONG), best_peer(found)
    if best is None or not is_right(found[OURS]):
        return Measured(None, details | found, "", (*wrong, "no comparison was possible"))
    if what == "seconds":
        why = f"{best} is the fastest; it takes {_peak(found[best]) / _peak(found[OURS]):.1f} times our memory"
        return Measured(
            found[OURS]["seconds"] / found[best]["seconds"], details | found | {"best_peer": best}, why, wrong
        )
    held = [_peak(found[name]) for name in IN_MEMORY if is_right(found[name])]
    scores = details["cells"] * K * 4 / 2**20
    why = f"scores alone, which are asked for in memory, take {scores:.0f} of our {_peak(found[OURS]) / 2**20:.0f} MiB"
    return Measured(_peak(found[OURS]) / min(held), details, why, wrong) if held else Measured(None, details, "", wrong)


def _peak(facts: dict[str, Any]) -> float:
    return float(facts["peak_anonymous_bytes"])


def _rows(data: str, settings: dict[str, Any], asked: str, said: str, target: float) -> tuple[Row, ...]:
    pairs = {"seconds": ("", said, target), "memory": ("-memory", "scanpy's in memory", 0.25)}
    return tuple(
        Row(
            name=data + suffix,
            what=f"{what} of npmdask.anndata.pca / {over}: {'the same' if suffix else asked}",
            target=to_reach,
            better="lower",
            run=partial(measure, data=data, settings=settings, what=what),
        )
        for what, (suffix, over, to_reach) in pairs.items()
    )


ROWS = (
    *_rows(
        "cells",
        IN_MEMORY | ON_DASK,
        "1.3 million x 2,000, 8 % not zero",
        "the best of scanpy in memory and on Dask, with scores, k = 50",
        1.0,
    ),
    *_rows(
        "counts",
        IN_MEMORY,
        "1 million x 2,000, 5 % not zero",
        "scanpy in memory",
        0.5,
    ),
)
