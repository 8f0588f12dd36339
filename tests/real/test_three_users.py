"""First blocks of the pages for users of xarray, AnnData and scikit-learn, as printed, on data as people have them."""

from __future__ import annotations

import inspect
import re
import shutil
from importlib.resources import files
from pathlib import Path
from typing import Any

import anndata
import matplotlib as mpl
import numpy as np
import pytest
import scipy.sparse as sp
import xarray as xr
from matplotlib.image import imread
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA

ROOT = Path(__file__).resolve().parents[2]


def block(page: str) -> str:
    """The first Python block of a how-to page; at most five lines of code."""
    one = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "howto" / page).read_text(), re.S)[0]
    assert len([line for line in one.splitlines() if line.strip()]) <= 5
    return one


def run(code: str, **given: Any) -> dict[str, Any]:
    mpl.use("Agg")
    names = dict(given)
    exec(compile(code, "page", "exec"), names)
    return names


def require_picture(path: Path) -> None:
    """Not an empty one: it has several colours."""
    assert len(np.unique(imread(path).reshape(-1, 4), axis=0)) > 20


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_sea_surface_temperatures_to_a_map(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """El Nino: the first mode of the central Pacific has the sign of the Nino 3.4 region's temperature."""
    monkeypatch.chdir(tmp_path)
    data = next(path for path in Path(str(files("eofs"))).rglob("*.nc") if "sst" in path.name)
    shutil.copy(data, tmp_path / "sst.nc")
    names = run(block("climate.md"))
    require_picture(tmp_path / "eof.png")
    field, model = names["field"], names["model"]
    assert isinstance(field, xr.DataArray)
    index = field.sel(latitude=slice(-5, 5), longitude=slice(190, 240)).mean(["latitude", "longitude"])
    correlation = np.corrcoef(model.scores()[:, 0], index)[0, 1]
    assert abs(correlation) > 0.95 and model.explained_variance_ratio()[0] > 0.4


@pytest.mark.slow
def test_a_file_of_cells_to_the_places_of_scanpy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pixels of handwritten digits as counts: ten kinds of cells, 64 genes."""
    monkeypatch.chdir(tmp_path)
    digits = load_digits()
    cells = anndata.AnnData(sp.csr_matrix(digits.data.astype(np.float32)))
    cells.obs["digit"] = digits.target
    with anndata.settings.override(allow_write_nullable_strings=True):
        cells.write_h5ad(tmp_path / "cells.h5ad")
    # The process of all tests may hold the two gigabytes of the page already.
    adata = run(block("cells.md").replace('"2GiB"', '"16GiB"'))["adata"]
    require_picture(tmp_path / "pca.png")
    oracle = PCA(50, svd_solver="full").fit(digits.data)
    np.testing.assert_allclose(adata.uns["pca"]["variance_ratio"], oracle.explained_variance_ratio_, rtol=1e-5)
    np.testing.assert_allclose(adata.obsm["X_pca"][:, :5], oracle.transform(digits.data)[:, :5], atol=1e-3)
    adata.file.close()


@pytest.mark.slow
@pytest.mark.parametrize("counts", [False, True], ids=["scaled, dense, of some genes", "log counts, sparse, of all"])
def test_blood_cells_as_scanpy_finds_them(counts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """700 cells of the 68,000 of peripheral blood that 10x Genomics published; they are in scanpy's wheel.

    In float32 scanpy's own sums are off by 1e-6, which turns components of nearly equal variance (0.2 % apart) by 1e-3.
    What NumPy finds in float64 is held to less.
    """
    monkeypatch.chdir(tmp_path)
    import scanpy as sc  # 300 MB, in the process that runs this test only

    cells = sc.datasets.pbmc68k_reduced()
    cells = cells.raw.to_adata() if counts else cells
    for place, name in ((cells.obsm, "X_pca"), (cells.varm, "PCs"), (cells.uns, "pca")):
        place.pop(name, None)  # of another run, on other genes
    cells.write_h5ad(tmp_path / "cells.h5ad")
    adata = run(block("cells.md").replace('"2GiB"', '"16GiB"'))["adata"]
    require_picture(tmp_path / "pca.png")
    sc.pp.pca(cells, 50)
    found, wanted = adata.obsm["X_pca"], cells.obsm["X_pca"]
    assert found.dtype == wanted.dtype and found.shape == wanted.shape == (700, 50)
    largest = np.abs(wanted).max()
    np.testing.assert_allclose(found[:, :10], wanted[:, :10], rtol=0, atol=5e-5 * largest)  # signs as well
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-3 * largest)
    np.testing.assert_allclose(adata.varm["PCs"], cells.varm["PCs"], rtol=0, atol=5e-3)  # vectors of unit length
    used = np.ones(cells.n_vars, bool) if counts else cells.var["highly_variable"].to_numpy()
    assert used.sum() == (765 if counts else 309)
    assert not adata.varm["PCs"][~used].any() and adata.varm["PCs"][used].any(axis=1).all()
    dense = (cells.X.toarray() if counts else cells.X)[:, used].astype(np.float64)
    left, sizes, _ = np.linalg.svd(dense - dense.mean(axis=0), full_matrices=False)
    np.testing.assert_allclose(np.abs(found), np.abs(left[:, :50] * sizes[:50]), rtol=0, atol=1e-5 * largest)
    mine, theirs = adata.uns["pca"], cells.uns["pca"]
    assert mine.keys() == theirs.keys() | {"genes", "offset"} and mine["params"] == theirs["params"]
    for name in ("variance", "variance_ratio"):
        np.testing.assert_allclose(mine[name], theirs[name], rtol=2e-5)
    adata.file.close()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of scanpy, anndata and zarr
def test_raw_counts_on_disk_to_neighbours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells of five types, by the page alone: the variable genes and the scores of scanpy in memory."""
    monkeypatch.chdir(tmp_path)
    import scanpy as sc

    rng = np.random.default_rng(0)
    counts = rng.poisson(rng.gamma(0.5, 2.0, (5, 300))[rng.integers(5, size=400)]).astype(np.float32)
    cells = anndata.AnnData(sp.csr_matrix(counts))
    cells.obs_names, cells.var_names = [f"cell{i}" for i in range(400)], [f"gene{i}" for i in range(300)]
    with anndata.settings.override(allow_write_nullable_strings=True):
        cells.write_h5ad("counts.h5ad")
    lines = re.findall(r"```python\n(.*?)```", (ROOT / "docs/howto/cells.md").read_text(), re.S)[1]
    adata = run(lines.replace('"4GiB"', '"16GiB"').replace("2000", "120"))["adata"]
    assert adata.obsp["distances"].shape == (400, 400) and not isinstance(adata.X, sp.csr_matrix)
    sc.pp.normalize_total(cells)
    sc.pp.log1p(cells)
    sc.pp.highly_variable_genes(cells, n_top_genes=120)
    sc.pp.pca(cells, 50, dtype="float64")
    assert (adata.var["highly_variable"] == cells.var["highly_variable"]).all()
    wanted = np.abs(cells.obsm["X_pca"][:, :4])
    np.testing.assert_allclose(np.abs(adata.obsm["X_pca"][:, :4]), wanted, rtol=0, atol=1e-4 * wanted.max())


@pytest.mark.slow
def test_raw_strings_to_topics(capsys: pytest.CaptureFixture[str]) -> None:
    """What the functions and classes of NumPy and SciPy say of themselves: signal, statistics, linear algebra, ..."""
    import scipy.linalg
    import scipy.optimize
    import scipy.signal
    import scipy.special
    import scipy.stats

    modules = (np, np.linalg, np.ma, sp, scipy.linalg, scipy.optimize, scipy.signal, scipy.special, scipy.stats)
    told = {inspect.getdoc(getattr(m, name, None)) or "" for m in modules for name in sorted(dir(m))}
    texts = sorted(text for text in told if len(text) > 400)
    assert len(texts) > 800
    code = block("text.md")
    names = run(code, texts=texts)
    shown = capsys.readouterr().out
    found = names["topics"].model_.top_words(15)
    assert len(found) == 10
    words = [{word for word, _ in topic} for topic in found]
    assert any({"distribution"} <= topic for topic in words) and any({"matrix"} <= topic for topic in words), shown
    assert len(set.union(*words)) > 80, "topics are not all alike"
