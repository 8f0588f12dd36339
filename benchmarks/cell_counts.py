"""Synthetic counts of cells x genes as an .h5ad file, a block of cells at a time.

Cells lie on paths between types, genes are as unequal as in tissue, molecules are drawn one by one: so beside some
dozens of components there is the bulk that sampling leaves in real counts, into which 50 components reach.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import scipy.sparse as sp

from benchmarks.data import require_disk
from npmdask.core.numerics.random import generator

TYPES, STEPS = 12, 40  # on a path from one type to the next
BLOCK = 10_000  # cells
CHUNK = 2**18  # entries: what HDF5 keeps of a dataset while it reads
ENTRY = 8  # bytes: a value and a column


def write_cells(path: Path, cells: int, genes: int, molecules: float, *, logs: bool = True) -> int:
    """Write X (CSR, float32), obs and var; returns the number of entries. ``molecules``: of a cell, in the mean.

    ``logs``: log1p of counts over the molecules of the cell, times ``molecules``; or the counts themselves.
    """
    import anndata
    import h5py
    import pandas as pd

    require_disk(int(cells * molecules * ENTRY), path.parent, "an .h5ad file")
    names = pd.DataFrame(index=np.arange(cells).astype(str)), pd.DataFrame(index=np.arange(genes).astype(str))
    anndata.AnnData(obs=names[0], var=names[1]).write_h5ad(path)
    steps = _cumulated_shares(genes)
    starts = [np.zeros(1, np.int64)]
    with h5py.File(path, "a") as file:
        if "X" in file:
            del file["X"]
        held = file.create_group("X")
        held.attrs.update({"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": [cells, genes]})
        for name, dtype in (("data", "f4"), ("indices", "i4")):
            held.create_dataset(name, (0,), dtype, maxshape=(None,), chunks=(CHUNK,))
        for first in range(0, cells, BLOCK):
            block = _counts(steps, min(BLOCK, cells - first), genes, molecules, first)
            if logs:
                totals = np.maximum(np.add.reduceat(block.data, block.indptr[:-1]), 1)
                block.data = np.log1p(block.data * np.repeat(molecules / totals, np.diff(block.indptr)))
            entries = int(starts[-1][-1])
            for name in ("data", "indices"):
                held[name].resize((entries + block.nnz,))
                held[name][entries:] = getattr(block, name)
            starts.append(block.indptr[1:].astype(np.int64) + entries)
        ends = np.concatenate(starts)
        held.create_dataset(
            "indptr", data=ends.astype("i4" if ends[-1] < 2**31 else "i8")
        )  # ARPACK's products ask for i4
    return int(starts[-1][-1])


def _cumulated_shares(genes: int) -> np.ndarray:
    """For every place on a path: its number + the cumulated shares of genes; sorted as a whole, so searched as one."""
    rng = generator(0, "benchmarks", "types of cells")
    base = 1.5 * rng.standard_normal(genes)
    effects = rng.standard_normal((TYPES + 1, genes)) * (rng.random((TYPES + 1, genes)) < 0.15) * 1.5
    along = np.linspace(0, 1, STEPS)[:, None]
    places = np.concatenate([(1 - along) * effects[i] + along * effects[i + 1] for i in range(TYPES)])
    shares = np.exp(base + places)
    shares /= shares.sum(axis=1, keepdims=True)
    cumulated = np.minimum(np.cumsum(shares, axis=1), 1.0)
    cumulated[:, -1] = 1.0
    return (cumulated + np.arange(len(places))[:, None]).ravel()


def _counts(steps: np.ndarray, cells: int, genes: int, molecules: float, first: int) -> sp.csr_matrix:
    """Counts of some cells; each has a molecule at least."""
    rng = generator(0, "benchmarks", "cells", first)
    depth = rng.poisson(molecules * rng.lognormal(-0.08, 0.4, cells)) + 1
    place = rng.integers(len(steps) // genes, size=cells)
    cell = np.repeat(np.arange(cells), depth)
    drawn = np.searchsorted(steps, place[cell] + rng.random(len(cell)), side="right") - place[cell] * genes
    where, count = np.unique(cell * genes + np.minimum(drawn, genes - 1), return_counts=True)
    starts = np.searchsorted(where, np.arange(cells + 1) * genes)
    return sp.csr_matrix((count.astype("f4"), (where % genes).astype("i4"), starts), shape=(cells, genes))
