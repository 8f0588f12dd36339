"""Solutions in annotated data, at scanpy's places."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.decomposition import PCA

import npmdask
from npmdask.errors import BadInputError
from tests.core.runs.test_solution_outputs import agree, annotated, rows


@pytest.mark.slow
def test_scanpys_places(tmp_path: Path) -> None:
    given = annotated()
    solution = npmdask.top_k(given, 3, center=True)
    assert solution.to_anndata(given) is given
    np.testing.assert_array_equal(given.varm["PCs"], solution.basis)
    np.testing.assert_array_equal(given.uns["pca"]["variance"], solution.explained_variance)
    pca = PCA(3, svd_solver="full").fit(given.X.toarray())
    agree(given.obsm["X_pca"], pca.transform(given.X.toarray()))
    solution.to_anndata(given, key="mine")
    assert {"X_pca", "mine"} <= set(given.obsm) and {"PCs", "mine"} <= set(given.varm) and "mine" in given.uns
    other = given[:, :-1].copy() if given.n_vars > 1 else given
    with pytest.raises(BadInputError, match=r"columns and the components have|no var"):
        solution.to_anndata(other)
    with pytest.raises(BadInputError, match="an AnnData is needed, not a ndarray"):
        solution.to_anndata(rows())
