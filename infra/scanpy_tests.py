"""What scanpy's own tests need and cannot have here, as a plugin of pytest: ``-p infra.scanpy_tests``.

Its tests download 2,700 cells, and take a converter of AnnData's tests by a name that it has no longer. Data of the
same shape are made instead; the converter gets its old name as well. No test is changed, and none of scanpy's code or
data is here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

CELLS, GENES, KINDS = 2_700, 32_738, 8  # as many as "3k PBMCs" has of the first two
SEEN = 850  # of the genes in a cell, as there


def counts(seed: int = 0) -> sparse.csr_matrix:
    """Whole numbers of molecules: about half of the genes are never seen, and kinds of cells differ in some of them.

    The deepest cells come first: tests of the first 200 compare entries of components to seven digits, which of a gene
    that is in none of them would be rounding, and scanpy would fail itself.
    """
    rng = np.random.default_rng(seed)
    usual = rng.lognormal(0.0, 2.7, GENES) * (rng.random(GENES) < 0.6)
    kinds = usual * np.where(rng.random((KINDS, GENES)) < 0.05, rng.lognormal(0.0, 1.5, (KINDS, GENES)), 1.0)
    kinds *= 2.8 * SEEN / kinds.sum(axis=1, keepdims=True)
    depths = np.sort(rng.lognormal(0.0, 0.35, CELLS))[::-1]
    of = rng.integers(KINDS, size=CELLS)
    parts = [
        sparse.csr_matrix(rng.poisson(depths[rows, None] * kinds[of[rows]]).astype(np.float32))
        for rows in np.array_split(np.arange(CELLS), 18)
    ]
    return sparse.vstack(parts, format="csr")


def pbmc3k() -> Any:
    """An AnnData of the shape that scanpy downloads."""
    from anndata import AnnData

    adata = AnnData(counts())
    adata.var_names = [f"gene{number}" for number in range(GENES)]
    adata.var["gene_ids"] = [f"ENSG{number:011d}" for number in range(GENES)]
    return adata


def pytest_configure() -> None:
    """Put both in their places: after all plugins are there, of which one refuses an earlier import of scanpy."""
    import scanpy  # type: ignore[import-untyped]
    from anndata.tests import helpers

    scanpy.datasets.pbmc3k = pbmc3k
    if not hasattr(helpers, "as_sparse_dask_array"):
        helpers.as_sparse_dask_array = helpers.as_sparse_dask_matrix
