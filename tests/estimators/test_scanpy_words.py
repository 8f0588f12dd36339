"""The words of scanpy.pp.pca, matrices, masks, views, and projections, beside NumPy's SVD."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anndata
import dask.array as da
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from anndata.experimental import read_lazy

import npmdask.anndata
from npmdask.errors import BadInputError, DataWarning, RefusedError
from tests.conftest import often

N, D, K = 150, 24, 3
USED = np.arange(D) % 3 != 0
GENES = [f"gene{i}" for i in range(D)]


def counts(dtype: Any = np.float32) -> np.ndarray:
    """Cells in clusters."""
    rng = np.random.default_rng(8)
    return rng.poisson(rng.gamma(0.3, 2.0, (4, D))[rng.integers(4, size=N)]).astype(dtype)


def cells(values: Any = None, **var: Any) -> anndata.AnnData:
    obs, table = pd.DataFrame(index=[f"cell{i}" for i in range(N)]), pd.DataFrame(var, index=GENES)
    return anndata.AnnData(sp.csr_matrix(counts()) if values is None else values, obs, table)


def scores(rows: np.ndarray, *, centred: bool = True) -> np.ndarray:
    """Of NumPy, without signs."""
    dense = rows.astype(np.float64)
    left, sizes, _ = np.linalg.svd(dense - dense.mean(axis=0) * centred, full_matrices=False)
    return np.asarray(np.abs(left[:, :K] * sizes[:K]))


def agree(found: Any, wanted: np.ndarray) -> None:
    assert isinstance(found, np.ndarray)
    np.testing.assert_allclose(np.abs(found), wanted, rtol=0, atol=2e-6 * wanted.max())


def test_every_word_of_scanpy_is_taken() -> None:
    """In its order, where newer versions have the same. Mutant: one left out."""
    here = inspect.signature(npmdask.anndata.pca).parameters
    known = "data n_comps layer zero_center svd_solver chunked chunk_size random_state return_info mask_var"
    for name in (*known.split(), "use_highly_variable", "dtype", "key_added", "copy", "obsm", "rng"):
        assert name in here
    assert next(iter(here)) == "data" and here["dtype"].default == "float32" and here["random_state"].default == 0


LAYOUTS: dict[str, Callable[[np.ndarray], Any]] = {
    "dense": lambda x: x,
    "CSR": sp.csr_matrix,
    "CSC": sp.csc_array,
    "Dask": lambda x: da.from_array(x, chunks=(40, 10)),
    "sparse Dask": lambda x: da.from_array(x, chunks=(40, D)).map_blocks(sp.csr_matrix),
    "pandas": lambda x: pd.DataFrame(x, [f"cell{i}" for i in range(N)], GENES),
}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", often({"float32": np.float32, "float64": np.float64}, 0))
@pytest.mark.parametrize("layout", LAYOUTS)
def test_matrices_instead_of_an_annotated_one(layout: str, dtype: str) -> None:
    """Mutants: not centred; the mask of a matrix ignored; ``return_info`` in another order."""
    dense = counts(dtype)
    rows, asked = LAYOUTS[layout](dense), np.dtype(dtype)
    for used in (None, USED):
        inner = dense if used is None else dense[:, used]
        kept = npmdask.anndata.pca(rows, K, mask_var=used, dtype=dtype, return_info=True)
        agree(kept[0], scores(inner))
        assert kept[0].dtype == asked and kept[1].shape == (K, inner.shape[1])
        sizes = np.linalg.svd(inner - inner.mean(axis=0, dtype=np.float64), compute_uv=False) ** 2
        np.testing.assert_allclose(kept[2], (sizes / sizes.sum())[:K], rtol=1e-5)
        np.testing.assert_allclose(kept[3], sizes[:K] / (N - 1), rtol=1e-5)
    agree(npmdask.anndata.pca(rows, K, zero_center=False), scores(dense, centred=False))
    agree(npmdask.anndata.pca(rows, K, zero_center=False, chunked=True, chunk_size=9), scores(dense))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "centred", "solver", "known"),
    [
        ("dense", True, "full", True),
        ("dense", True, "tsqr", False),
        ("dense", False, "auto", False),
        ("CSR", True, "arpack", True),
        ("CSR", True, "lobpcg", False),
        ("CSC", False, "randomized", True),
        ("Dask", True, "tsqr", True),
        ("Dask", True, "arpack", False),
        ("sparse Dask", True, "covariance_eigh", True),
        ("sparse Dask", True, "auto", False),
    ],
)
def test_solvers_change_nothing_and_those_that_scanpy_ignores_are_named(
    layout: str, centred: bool, solver: str, known: bool
) -> None:
    rows = LAYOUTS[layout](counts())
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        found = npmdask.anndata.pca(rows, K, zero_center=centred, svd_solver=solver)
    agree(found, scores(counts(), centred=centred))
    said = [str(each.message) for each in heard if issubclass(each.category, DataWarning)]
    assert [each.startswith(f"Ignoring svd_solver={solver!r}") for each in said] == ([] if known else [True])


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        ({"svd_solver": "arpak"}, "svd_solver 'arpak': did you mean 'arpack'?"),
        ({"mask_var": "highly_variable"}, r"^Did not find `adata.var\['highly_variable'\]`\."),
        ({"mask_var": "highly_variable", "chunked": True}, r"^Did not find `adata.var\['highly_variable'\]`\."),
        ({"mask_var": pd.Series(USED, [f"other{i}" for i in range(D)])}, "mask_var has no var 'gene0', which"),
        ({"obsm": "X_pcb"}, "obsm = 'X_pcb' is not there"),
        ({"obsm": "X_pcb", "layer": "raw"}, "give one of them"),
        ({"obsm": "X_pcb", "mask_var": USED}, "give one of them"),
    ],
)
def test_what_is_refused(ask: dict[str, Any], said: str) -> None:
    """Mutant: a mask that was asked for, and is not there, takes all genes."""
    given = cells()
    with pytest.raises(BadInputError, match=said):
        npmdask.anndata.pca(given, K, **ask)
    assert not given.obsm and not given.uns


@pytest.mark.slow
def test_masks_by_default_by_name_and_by_the_older_word() -> None:
    """Mutants: the default that takes all; a mask of pandas by position; the older word without effect."""
    all_of, some = scores(counts()), scores(counts()[:, USED])
    for given, ask, wanted in (
        (cells(), {}, all_of),
        (cells(highly_variable=USED), {}, some),
        (cells(highly_variable=USED), {"mask_var": None}, all_of),
        (cells(), {"mask_var": pd.Series(USED, GENES)[::-1]}, some),
        (cells(mine=pd.array(USED, "boolean")), {"mask_var": "mine"}, some),
    ):
        npmdask.anndata.pca(given, K, **ask)
        agree(given.obsm["X_pca"], wanted)
    for word, wanted in ((True, some), (False, all_of)):
        with pytest.warns(FutureWarning, match="consider using the mask argument"):
            found = npmdask.anndata.pca(cells(highly_variable=USED), K, use_highly_variable=word, copy=True)
        agree(found.obsm["X_pca"], wanted)
        assert found.uns["pca"]["params"]["use_highly_variable"] == word
    for ask, said in (({}, "Did not find"), ({"mask_var": None}, "incompatible")):
        with pytest.warns(FutureWarning), pytest.raises(BadInputError, match=said):
            npmdask.anndata.pca(cells(), K, use_highly_variable=True, **ask)


@pytest.mark.slow
def test_weights_of_pandas_follow_names() -> None:
    """Mutant: weights by position, or of the genes that are used only."""
    given, weights = cells(highly_variable=USED), pd.Series(np.arange(1.0, D + 1), GENES)
    of_cells = pd.Series(1.0 + np.arange(N) % 5, given.obs_names)
    ask = [{"column_weights": weights, "sample_weight": of_cells}]
    ask += [{"column_weights": weights.sample(frac=1, random_state=0), "sample_weight": of_cells[::-1]}]
    ask += [{"column_weights": weights.to_numpy(), "sample_weight": of_cells.to_numpy()}]
    found = [npmdask.anndata.pca(given, K, copy=True, **each).obsm["X_pca"] for each in ask]
    assert np.array_equal(found[0], found[1]) and np.array_equal(found[0], found[2])


@pytest.mark.slow
def test_an_array_of_obsm_and_seeds() -> None:
    """Components of an array of obsm are in uns, as in newer versions of scanpy; seeds of both kinds are taken."""
    given = cells(highly_variable=USED)
    given.obsm["raw"] = counts(np.float64)[:, :7]
    for seed in ({"rng": 3}, {"rng": np.random.default_rng(0)}, {"random_state": np.random.RandomState(1)}):
        npmdask.anndata.pca(given, K, obsm="raw", key_added="mine", **seed)
        agree(given.obsm["mine"], scores(given.obsm["raw"]))
    assert given.uns["mine"]["components"].shape == (7, K) and "mine" not in given.varm
    assert given.uns["mine"]["params"]["obsm"] == "raw"


def stored(folder: Path, ending: str, given: anndata.AnnData) -> Path:
    with warnings.catch_warnings(), anndata.settings.override(allow_write_nullable_strings=True):
        warnings.simplefilter("ignore")
        (given.write_h5ad if ending == "h5ad" else given.write_zarr)(folder / f"x.{ending}")
    return folder / f"x.{ending}"


VIEWS: dict[str, Callable[[Path, anndata.AnnData], anndata.AnnData]] = {
    "memory": lambda _, given: given,
    "Dask": lambda _, given: cells(da.from_array(given.X.toarray(), chunks=(40, D)), highly_variable=USED),
    "lazy Zarr": lambda folder, given: read_lazy(stored(folder, "zarr", given)),
    "lazy HDF5": lambda folder, given: read_lazy(stored(folder, "h5ad", given)),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("held", VIEWS)
def test_views(held: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows and genes of a view, read block by block. Mutant: a lazy view is computed whole, or refused."""
    whole = VIEWS[held](tmp_path, cells(highly_variable=USED))
    if held != "memory":
        monkeypatch.setattr(da.Array, "__array__", None)
    for ask, used in (({}, USED), ({"mask_var": None}, np.ones(D, bool))):  # a mask makes a new array of Dask
        view = whole[20:, ::-1]
        npmdask.anndata.pca(view, K, **ask)
        agree(view.obsm["X_pca"], scores(counts()[20:, ::-1][:, used[::-1]]))
        assert view.varm["PCs"].shape == (D, K) and "pca" not in whole.uns


# Projections.


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("held", [*VIEWS, "backed"])
def test_other_cells_along_a_run_a_solution_and_an_annotated_matrix(held: str, centred: bool, tmp_path: Path) -> None:
    """Genes in another order, and more of them. Mutants: by position; not centred; the mean of all genes."""
    known = cells(highly_variable=USED)
    npmdask.anndata.pca(known, K, zero_center=centred, store=tmp_path / "run")
    order = np.random.default_rng(1).permutation(D)
    new = cells(sp.csr_matrix(counts()[::-1].copy()), highly_variable=USED)[:, order].copy()
    wanted = known.obsm["X_pca"][::-1]
    if held == "backed":
        given = anndata.read_h5ad(stored(tmp_path, "h5ad", new), backed="r")
    elif held == "Dask":
        given = anndata.AnnData(da.from_array(new.X.toarray(), chunks=(40, 7)), new.obs, new.var)
    else:
        given = VIEWS[held](tmp_path, new)
    (tmp_path / "fitted").mkdir()
    again = anndata.read_h5ad(stored(tmp_path / "fitted", "h5ad", known))
    for onto in (tmp_path / "run", str(tmp_path / "run"), npmdask.resume(tmp_path / "run"), known, again):
        npmdask.anndata.project(given, onto)
        found = given.obsm.pop("X_pca")
        np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-6 * np.abs(wanted).max())
        assert found.dtype == np.float32
    if held == "backed":
        given.file.close()


@pytest.mark.slow
def test_layers_copies_keys_and_weights_of_a_projection(tmp_path: Path) -> None:
    known = cells()
    known.layers["twice"] = known.X * 2
    ask: dict[str, Any] = {"key_added": "mine", "dtype": "float64", "layer": "twice"}
    weights = np.arange(1.0, D + 1)
    npmdask.anndata.pca(known, K, column_weights=weights, store=tmp_path / "weighted", **ask)
    found = npmdask.anndata.project(known, tmp_path / "weighted", copy=True, **ask)
    np.testing.assert_allclose(found.obsm["mine"], known.obsm["mine"], atol=1e-6)
    with pytest.raises(BadInputError, match=r"with store= for weights"):
        npmdask.anndata.project(known, known, **ask)
    scaled = npmdask.top_k(known, K, center=True, scale=True, store=tmp_path / "scaled").to_anndata(known, key="scaled")
    found = npmdask.anndata.project(known[:, ::-1].copy(), scaled, key_added="scaled", copy=True)
    np.testing.assert_allclose(found.obsm["scaled"], known.obsm["scaled"], atol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Variable names are not unique")
def test_genes_that_a_projection_refuses(tmp_path: Path) -> None:
    """Mutants: genes that are not there, or there twice, taken by position; genes that a fit lost go unseen."""
    known = cells()
    npmdask.anndata.pca(known, K, store=tmp_path / "run")
    for onto in (known, tmp_path / "run"):
        with pytest.raises(BadInputError, match=r"has no var 'gene3', .*it lacks 2 more \('gene4', 'gene5'\)"):
            npmdask.anndata.project(known[:, [*range(3), *range(6, D)]].copy(), onto)
        twice = known[:, [*range(D), 2]].copy()
        with pytest.raises(BadInputError, match=r"there twice \(gene2\): .*var_names_make_unique"):
            npmdask.anndata.project(twice, onto)
        bare = anndata.AnnData(sp.csr_matrix(counts()[:, :-1]))
        with pytest.raises(BadInputError, match=r"23 genes and the components have 24, .* no names"):
            npmdask.anndata.project(bare, onto)
        with pytest.warns(DataWarning, match="by position"):
            npmdask.anndata.project(bare := anndata.AnnData(sp.csr_matrix(counts())), onto)
        agree(bare.obsm["X_pca"], scores(counts()))
    with pytest.raises(BadInputError, match="lacks genes"):
        npmdask.anndata.project(known.copy(), known[:, :-1].copy())
    del known.uns["pca"]["offset"]  # as scanpy leaves it
    for onto, said in (
        (known, "does not say what was taken off"),
        (cells(), "holds no components"),
        (3, "a run, a So"),
    ):
        with pytest.raises(BadInputError, match=said):
            npmdask.anndata.project(cells(), onto)
    with pytest.raises(BadInputError, match="an AnnData is needed, not a ndarray"):
        npmdask.anndata.project(counts(), known)


def test_components_of_another_array_or_layer_are_not_taken_for_those_of_genes() -> None:
    """Mutants: varm of an earlier run is used; the layer is not looked at."""
    found = cells(counts(np.float64))
    found.layers["log"] = np.log1p(found.X)
    npmdask.anndata.pca(found, K, layer="log")
    with pytest.warns(DataWarning, match="of the layer 'log', and the scores of X"):
        npmdask.anndata.project(found[:9].copy(), found)
    other = found[:9].copy()
    npmdask.anndata.project(other, found, layer="log")
    np.testing.assert_allclose(other.obsm["X_pca"], found.obsm["X_pca"][:9], atol=1e-4)
    found.obsm["X_other"] = counts()[:, :9]
    npmdask.anndata.pca(found, K, obsm="X_other", zero_center=False)
    with pytest.raises(BadInputError, match=r"is of obsm\['X_other'\]"):
        npmdask.anndata.project(found[:9].copy(), found)


def test_a_store_keeps_the_names_of_its_run(tmp_path: Path) -> None:
    """Numbers alone do not say whose they are; the same names again are answered. Mutant: names are not compared."""
    found, store = cells(), tmp_path / "run"
    npmdask.anndata.pca(found, K, store=store)
    npmdask.anndata.pca(found, K, store=store)
    found.var_names = GENES[::-1]
    with pytest.raises(RefusedError, match=r"the columns have other names .*number 0 on .gene23, gene0"):
        npmdask.anndata.pca(found, K, store=store)
    with pytest.raises(RefusedError, match="other names"):
        npmdask.top_k(pd.DataFrame(counts(), columns=GENES[::-1]), K, center=True, store=_named_run(tmp_path / "top"))


def _named_run(store: Path) -> Path:
    npmdask.top_k(pd.DataFrame(counts(), columns=GENES), K, center=True, store=store)
    return store


def test_numbered_series_are_taken_by_position() -> None:
    """As PCA takes them: an index that only counts is no name. Mutant: rows are looked for by these numbers."""
    found, weights = cells(counts(np.float64)), np.linspace(0.5, 2.0, N)
    found.obs_names = [str(i) for i in np.random.default_rng(0).permutation(N)]
    by_series = npmdask.anndata.pca(found, K, sample_weight=pd.Series(weights), copy=True)
    by_array = npmdask.anndata.pca(found, K, sample_weight=weights, copy=True)
    np.testing.assert_array_equal(by_series.obsm["X_pca"], by_array.obsm["X_pca"])
