"""PCA of annotated matrices: scanpy's words, places and numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anndata
import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.decomposition import PCA, TruncatedSVD

import npmdask.anndata
from npmdask.errors import BadInputError
from npmdask.estimators import annotated

N, D = 250, 40


def cells(values: Any = None) -> anndata.AnnData:
    """Counts in clusters, of genes of very different sizes."""
    rng = np.random.default_rng(8)
    rates = rng.gamma(0.3, 2.0, (4, D))[rng.integers(4, size=N)]
    found = anndata.AnnData(sp.csr_matrix(rng.poisson(rates).astype(np.float32)) if values is None else values)
    found.var["highly_variable"] = np.arange(D) % 3 != 0
    found.layers["twice"] = found.X * 2
    return found


def agree(found: np.ndarray, wanted: np.ndarray, tol: float = 1e-5) -> None:
    np.testing.assert_allclose(found, wanted, rtol=0, atol=tol * np.abs(wanted).max())


@pytest.mark.slow
@pytest.mark.parametrize("mask", ["highly_variable", None, "array"])
@pytest.mark.parametrize("held", ["sparse", "dense", "dask"])
def test_the_numbers_of_scanpy(held: str, mask: str | None) -> None:
    dense = cells().X.toarray().astype("f8")
    data = cells({"sparse": None, "dense": dense, "dask": da.from_array(dense, chunks=(60, D))}[held])
    used = np.ones(D, bool) if mask is None else data.var["highly_variable"].to_numpy()
    given = used if mask == "array" else mask
    assert npmdask.anndata.pca(data, 6, mask_var=given, tol=1e-11) is None
    oracle = PCA(6, svd_solver="full").fit(dense[:, used])  # what scanpy runs, with these signs
    agree(data.obsm["X_pca"], oracle.transform(dense[:, used]))
    agree(data.varm["PCs"][used], oracle.components_.T)
    assert not data.varm["PCs"][~used].any() and data.varm["PCs"].shape == (D, 6)
    agree(data.uns["pca"]["variance"], oracle.explained_variance_)
    agree(data.uns["pca"]["variance_ratio"], oracle.explained_variance_ratio_)
    assert data.obsm["X_pca"].dtype == np.float32
    assert data.uns["pca"]["params"]["mask_var"] == (mask if mask != "array" else None)


@pytest.mark.slow
def test_layers_keys_copies_and_no_centring() -> None:
    data = cells()
    found = npmdask.anndata.pca(data, 3, layer="twice", key_added="mine", copy=True, zero_center=False, mask_var=None)
    assert "mine" not in data.obsm and {"mine"} == set(found.obsm) == set(found.varm)
    assert found.uns["mine"]["params"]["layer"] == "twice"
    oracle = TruncatedSVD(3, algorithm="arpack").fit(data.X * 2)
    agree(np.abs(found.obsm["mine"]), np.abs(oracle.transform(data.X * 2)))


@pytest.mark.slow
@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("mask", ["highly_variable", None])
def test_a_file_that_is_backed_is_not_loaded(
    mask: str | None, dense: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = cells(cells().X.toarray() if dense else None)
    with anndata.settings.override(allow_write_nullable_strings=True):
        plain.write_h5ad(tmp_path / "x.h5ad")
    backed = anndata.read_h5ad(tmp_path / "x.h5ad", backed="r")
    monkeypatch.setattr(anndata.AnnData, "__getitem__", None)  # a view of a backed matrix is read when it is used
    npmdask.anndata.pca(backed, 4, mask_var=mask)
    npmdask.anndata.pca(plain, 4, mask_var=mask)
    agree(backed.obsm["X_pca"], plain.obsm["X_pca"])
    backed.file.close()


@pytest.mark.slow
@pytest.mark.parametrize("copy", [False, True])
def test_what_cannot_hold_results_is_refused_before_the_passes(
    copy: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A view of a backed AnnData, or its copy: anndata would refuse the results; a copy in a file takes them."""
    anndata.AnnData(cells().X).write_h5ad(tmp_path / "x.h5ad")
    backed = anndata.read_h5ad(tmp_path / "x.h5ad", backed="r")
    given = backed if copy else backed[10:60]
    own = backed[10:60].copy(tmp_path / "own.h5ad")
    with monkeypatch.context() as patched:
        patched.setattr(annotated, "PCA", None)  # no pass is begun
        with pytest.raises(BadInputError, match=rf"kept in {'a copy' if copy else 'a view'} .*\.copy\('NAME\.h5ad'\)"):
            npmdask.anndata.pca(given, 4, copy=copy)
    npmdask.anndata.pca(own, 4)
    assert own.isbacked and own.obsm["X_pca"].shape == (50, 4)
    for one in (own, backed):
        one.file.close()


@pytest.mark.slow
def test_how_many_by_default() -> None:
    data = cells()
    npmdask.anndata.pca(data)
    assert data.obsm["X_pca"].shape == (N, int(data.var["highly_variable"].sum()) - 1)


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        ({"mask_var": "variable"}, r"Did not find `adata.var\['variable'\]`\. .* did you mean 'highly_variable'"),
        ({"mask_var": np.zeros(D, bool)}, "True for some"),
        ({"mask_var": np.arange(D)}, "give a truth value for each of the 40"),
        ({"layer": "thrice"}, "layer = 'thrice' is not there"),
        ({"n_comps": 99}, "n_components=99 must be between 0 and"),
    ],
)
def test_what_is_refused(ask: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInputError, match=said):
        npmdask.anndata.pca(cells(), **ask)
    for other in ("x.h5ad", [[1.0, 2.0]], np.arange(4.0)):
        with pytest.raises(BadInputError, match=r"for other data use npmdask\.PCA"):
            npmdask.anndata.pca(other)
