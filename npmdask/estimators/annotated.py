"""Principal components of annotated matrices, in the words and at the places of scanpy (npmdask.anndata)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from npmdask.core.runs.columns import places_in
from npmdask.core.runs.solution import Solution
from npmdask.core.storage.labels import axis_of
from npmdask.errors import BadInputError, closest, require
from npmdask.estimators.pca import PCA, TruncatedSVD

USUAL = "highly_variable"  # genes that are taken where the AnnData says which are
Mask = Any


def pca(
    adata: Any,
    n_comps: int | None = None,
    *,
    layer: str | None = None,
    zero_center: bool = True,
    mask_var: Mask = USUAL,
    key_added: str | None = None,
    dtype: str = "float32",
    sample_weight: Any = None,
    column_weights: Any = None,
    memory: str | int | None = None,
    store: str | Path | None = None,
    tol: float | None = None,
    random_state: int = 0,
    progress: bool = False,
    copy: bool = False,
) -> Any:
    """
    Find the principal components of an AnnData, as ``scanpy.pp.pca``, inside a limit of memory.

    X may be in memory, a Dask array, or of a file that is open (backed); sparse counts are centred without being
    filled in.

    Parameters
    ----------
    adata : anndata.AnnData
        Cells in rows, genes in columns.
    n_comps : int, optional
        How many; by default 50, or one less than there are cells or genes.
    layer : str, optional
        A layer instead of X.
    zero_center : bool, default True
        Take the mean of each gene off; without it this is a truncated SVD.
    mask_var : str, array_like of bool or None, default "highly_variable"
        Genes that are used: a column of ``adata.var``, or which; None: all. Where there is no column
        "highly_variable", all are.
    key_added : str, optional
        Name in ``obsm``, ``varm`` and ``uns``, instead of "X_pca", "PCs" and "pca".
    dtype : str, default "float32"
        Of the scores.
    sample_weight : str or array_like, shape (n,), optional
        How much each cell counts, not negative: with 2 like two equal cells; or the column of ``adata.obs`` that says
        so.
    column_weights : str or array_like, shape (d,), optional
        Of squares of genes, not negative, of all of ``adata``; or the column of ``adata.var`` that says so.
    memory : str or int, optional
        Limit for the run, like "2GiB".
    store : str or Path, optional
        Folder of the run, which goes on after a kill; a temporary one by default.
    tol : float, optional
        Relative residual to reach; 1e-9, or 1e-6 for float32 data, by default.
    random_state : int, default 0
        Seed of the start, which the result does not depend on beyond ``tol``.
    progress : bool, default False
        Show the progress and the time left: on stderr, or below the cell of a notebook.
    copy : bool, default False
        Return a copy with the results, and leave ``adata`` as it is.

    Returns
    -------
    anndata.AnnData or None
        The copy, if that was asked for. Scores are in ``obsm["X_pca"]``, components in ``varm["PCs"]`` (zeros for genes
        that were not used), variances and their shares in ``uns["pca"]``.

    Raises
    ------
    BadInputError
        No such layer, or column of ``adata.var``; no X; a matrix that cannot be read by rows; a view of a backed
        AnnData, or a copy of one, which cannot hold results.

    Examples
    --------
    >>> import anndata
    >>> import scipy.sparse as sp
    >>> import npmdask.anndata
    >>> counts = sp.random_array((300, 40), density=0.2, format="csr", rng=0)
    >>> adata = anndata.AnnData(counts)
    >>> npmdask.anndata.pca(adata, 5)
    >>> adata.obsm["X_pca"].shape, adata.varm["PCs"].shape, len(adata.uns["pca"]["variance_ratio"])
    ((300, 5), (40, 5), 5)
    """
    if type(adata).__name__ != "AnnData":
        raise BadInputError(f"an AnnData is needed, not a {type(adata).__name__}: for other data use npmdask.PCA")
    if adata.isbacked and (adata.is_view or copy):  # anndata says so of a view only when it is given the results
        raise BadInputError(
            f"the results cannot be kept in a {'view' if adata.is_view else 'copy'} of an AnnData whose X is in a file "
            "(backed): give adata.copy('NAME.h5ad'), which is backed by a file of its own, or adata.to_memory()"
        )
    adata = adata.copy() if copy else adata
    used, named = _mask(adata, mask_var)
    rows = _values(adata, layer, used)
    most = min(rows.shape) - 1
    asked = min(50, most) if n_comps is None else n_comps
    settings: dict[str, Any] = {"tol": tol, "memory": memory, "store": store, "random_state": random_state}
    settings["progress"] = progress
    columns = _weights(adata.var, "column_weights", column_weights)
    columns = columns if columns is None or used is None or len(columns) != len(used) else columns[used]
    model: Any = (PCA if zero_center else TruncatedSVD)(asked, column_weights=columns, **settings)
    model.fit(rows, sample_weight=_weights(adata.obs, "sample_weight", sample_weight))
    components = model.components_.T
    if used is not None:
        components, inner = np.zeros((adata.n_vars, components.shape[1])), components
        components[used] = inner
    adata.obsm[key_added or "X_pca"] = model._scores(rows, dtype)
    adata.varm[key_added or "PCs"] = components
    params = {"zero_center": zero_center, "use_highly_variable": named == USUAL, "mask_var": named}
    adata.uns[key_added or "pca"] = {
        "params": params | ({} if layer is None else {"layer": layer}),
        "variance": model.explained_variance_,
        "variance_ratio": model.explained_variance_ratio_,
    }
    return adata if copy else None


def _mask(adata: Any, asked: Mask) -> tuple[np.ndarray | None, str | None]:
    """Which genes are used (None: all), and the column that says so."""
    if asked is None or (isinstance(asked, str) and asked == USUAL and USUAL not in adata.var):
        return None, None
    if isinstance(asked, str):
        if asked not in adata.var:
            raise BadInputError(f"mask_var = {asked!r} is not a column of adata.var: {closest(asked, list(adata.var))}")
        asked, name = adata.var[asked].to_numpy(), asked
    else:
        asked, name = np.asarray(asked), None
    if asked.shape != (adata.n_vars,) or asked.dtype.kind != "b" or not asked.any():
        raise BadInputError(
            f"mask_var says of {asked.size} genes whether to use them ({asked.dtype}): give a truth value for each "
            f"of the {adata.n_vars}, and True for some"
        )
    return asked, name


def _weights(table: Any, name: str, asked: Any) -> np.ndarray | None:
    """Numbers, or the column of ``adata.obs`` or ``adata.var`` that holds them."""
    if isinstance(asked, str):
        if asked not in table:
            where = "obs" if name == "sample_weight" else "var"
            raise BadInputError(f"{name} = {asked!r} is no column of adata.{where}: {closest(asked, list(table))}")
        return np.asarray(table[asked].to_numpy())
    return None if asked is None else np.asarray(asked)


def _values(adata: Any, layer: str | None, used: np.ndarray | None) -> Any:
    """X or a layer, of the genes that are used."""
    require(layer is not None or adata.X is not None, "the AnnData has no X: give a layer, as layer='counts'")
    if layer is not None and layer not in adata.layers:
        known = [name for name in adata.layers if name is not None]  # None is X, from AnnData 0.13 on
        raise BadInputError(f"layer = {layer!r} is not there: {closest(layer, known)}")
    held = adata.X if layer is None else adata.layers[layer]
    if used is None:
        return held
    if adata.isbacked and layer is None:  # a view of it would be read into memory
        from anndata.experimental import read_elem_lazy

        return read_elem_lazy(getattr(held, "group", held))[:, np.flatnonzero(used)]
    return held[:, used]


def write_components(solution: Solution, adata: Any, key: str) -> Any:
    """The components and the scores of all cells, written to where scanpy looks for them."""
    if type(adata).__name__ != "AnnData":
        raise BadInputError(f"an AnnData is needed, not a {type(adata).__name__}: scores(rows) takes all others")
    axes = (axis_of("var", adata.var_names.to_numpy()),)
    places = places_in(solution._row_components, axes, "the AnnData", adata.n_vars).places
    scores = solution.scores(adata)
    usual = key == "pca"
    adata.obsm["X_pca" if usual else key] = scores
    adata.varm["PCs" if usual else key] = solution.basis if places is None else solution.basis[np.argsort(places)]
    centred = solution.analysed.centred
    more = {"variance": solution.explained_variance} if centred and solution._rows > 1 else {}
    more |= {"variance_ratio": solution.explained_variance_ratio} if centred else {}
    adata.uns[key] = {"params": {"zero_center": centred, "store": solution.store}, **more}
    return adata
