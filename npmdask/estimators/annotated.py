"""Principal components of annotated matrices, in the words and at the places of scanpy (npmdask.anndata)."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import issparse

from npmdask.core.runs.columns import places_in
from npmdask.core.runs.components import StoredComponents
from npmdask.core.runs.solution import Solution
from npmdask.core.storage.columns import listed
from npmdask.core.storage.labels import Labels, axis_of
from npmdask.core.storage.names import columns_of, is_counted, matched
from npmdask.errors import BadInputError, closest, extra, require, require_known, warn
from npmdask.estimators.pca import PCA, TruncatedSVD
from npmdask.streaming.transform import components_of
from npmdask.weights.aspect import places_of

USUAL = "highly_variable"  # genes that are taken where the AnnData says which are
SOLVERS = {  # that scanpy has, by whether rows are lazy, sparse and centred
    (False, False, True): ("auto", "full", "arpack", "randomized", "covariance_eigh"),
    (False, True, True): ("arpack", "covariance_eigh"),
    (True, False, True): ("auto", "full", "tsqr", "randomized", "covariance_eigh"),
    (True, True, True): ("covariance_eigh",),
    (False, False, False): ("arpack", "randomized"),
    (False, True, False): ("arpack", "randomized"),
    (True, False, False): ("tsqr", "randomized"),
}
Mask = Any
UNSET: Mask = ...


def pca(
    data: Any,
    n_comps: int | None = None,
    *,
    layer: str | None = None,
    obsm: str | None = None,
    zero_center: bool = True,
    svd_solver: str | None = None,
    chunked: bool = False,
    chunk_size: int | None = None,
    random_state: Any = 0,
    rng: Any = None,
    return_info: bool = False,
    mask_var: Mask = UNSET,
    use_highly_variable: bool | None = None,
    dtype: Any = "float32",
    key_added: str | None = None,
    copy: bool = False,
    sample_weight: Any = None,
    column_weights: Any = None,
    memory: str | int | None = None,
    store: str | Path | None = None,
    tol: float | None = None,
    progress: bool = False,
) -> Any:
    """
    Find the principal components of an AnnData, as ``scanpy.pp.pca``, inside a limit of memory.

    X may be in memory, a Dask array, or of a file that is open (backed); sparse counts are centred without being
    filled in. An AnnData that is lazy, or a view of one in memory, is taken as well.

    Parameters
    ----------
    data : anndata.AnnData, array_like, sparse matrix or Dask array
        Cells in rows, genes in columns.
    n_comps : int, optional
        How many; by default 50, or one less than there are cells or genes.
    layer : str, optional
        A layer instead of X.
    obsm : str, optional
        An array of ``adata.obsm`` instead of X: all its columns. Its components are in ``uns["pca"]["components"]``.
    zero_center : bool, default True
        Take the mean of each gene off; without it this is a truncated SVD.
    svd_solver : str, optional
        One of scanpy's words, without effect: data and memory decide how the same vectors are found. Warns where scanpy
        would ignore it as well.
    chunked : bool, default False
        As scanpy, centre whatever ``zero_center`` says. Rows are read some at a time either way.
    chunk_size : int, optional
        Without effect: ``memory`` decides how many rows are read at once.
    random_state : int, RandomState or None, default 0
        Seed of the start, which the result does not depend on beyond ``tol``.
    rng : int, numpy.random.Generator or SeedSequence, optional
        Instead of ``random_state``, as newer versions of scanpy call it.
    return_info : bool, default False
        Of a matrix: return components, shares of the variance and variances, too.
    mask_var : str, array_like of bool or None, optional
        Genes that are used: a column of ``adata.var``, or which, of pandas by name; None: all. By default those of the
        column "highly_variable", or all where there is none.
    use_highly_variable : bool, optional
        The older word: True for ``mask_var="highly_variable"``, False for None.
    dtype : dtype_like, default "float32"
        Of the scores.
    key_added : str, optional
        Name in ``obsm``, ``varm`` and ``uns``, instead of "X_pca", "PCs" and "pca".
    copy : bool, default False
        Return a copy with the results, and leave ``data`` as it is.
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
    progress : bool, default False
        Show the progress and the time left: on stderr, or below the cell of a notebook.

    Returns
    -------
    anndata.AnnData, None, numpy.ndarray or tuple
        The copy, if that was asked for. Scores are in ``obsm["X_pca"]``, components in ``varm["PCs"]`` (zeros for genes
        that were not used), variances and their shares in ``uns["pca"]``, with what :func:`project` needs: ``offset``,
        which was taken off the products of X and components, and how many ``genes`` these have. Of a matrix, the scores
        in memory, or with ``return_info`` a tuple.

    Raises
    ------
    BadInputError
        No such layer, solver, or column of ``adata.var``; no X; a matrix that cannot be read by rows; a view of a
        backed AnnData, or a copy of one, which cannot hold results.

    See Also
    --------
    project : Scores of other cells along the same components.

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
    >>> npmdask.anndata.pca(counts, 5).shape
    (300, 5)
    """
    adata, annotated = _annotated(data), _is_annotated(data)
    if annotated:
        adata = _copied(adata, copy)
    if use_highly_variable is not None:
        said = "Argument `use_highly_variable` is deprecated, consider using the mask argument."
        warnings.warn(f"{said} mask_var={USUAL!r} is True, and None is False", FutureWarning, stacklevel=2)
        require(mask_var is UNSET, "use_highly_variable and mask_var are incompatible: leave use_highly_variable out")
        mask_var = USUAL if use_highly_variable else None
    if obsm is not None:
        alone = (mask_var is UNSET or mask_var is None) and layer is None
        require(alone, "obsm is incompatible with mask_var and layer: give one of them")
        mask_var = None
    used, named = _mask(adata, mask_var)
    rows = _values(adata, layer, used, obsm)
    zero_center = zero_center or chunked
    _check_solver(svd_solver, rows, zero_center)
    most = min(rows.shape) - 1
    asked = min(50, most) if n_comps is None else n_comps
    seed = random_state if rng is None else int(np.random.default_rng(rng).integers(2**31))
    settings: dict[str, Any] = {"tol": tol, "memory": memory, "store": store, "progress": progress}
    columns = _weights(adata.var, "column_weights", column_weights, adata.var_names)
    columns = columns if columns is None or used is None or len(columns) != adata.n_vars else columns[used]
    genes = adata.var_names.to_numpy() if used is None else adata.var_names.to_numpy()[used]
    names = Labels((axis_of("obs", adata.obs_names.to_numpy()),), () if obsm else (axis_of("var", genes),))
    model: Any = (PCA if zero_center else TruncatedSVD)(asked, column_weights=columns, random_state=seed, **settings)
    model._fit(rows, names, _weights(adata.obs, "sample_weight", sample_weight, adata.obs_names))
    scores, variances, shares = model._scores(rows, dtype), model.explained_variance_, model.explained_variance_ratio_
    if not annotated:
        return (scores, model.components_, shares, variances) if return_info else scores
    components = model.components_.T
    more = {} if obsm is None else {"components": components}
    if used is not None:
        components, inner = np.zeros((adata.n_vars, components.shape[1])), components
        components[used] = inner
    adata.obsm[key_added or "X_pca"] = scores
    if obsm is None:
        adata.varm[key_added or "PCs"] = components
    if obsm is None and columns is None:
        more = {"genes": int(components.any(axis=1).sum())}  # so that it is seen that some were taken away
        more |= {"offset": model.mean_ @ model.components_.T} if zero_center else {}
    params = {"zero_center": zero_center, "use_highly_variable": named == USUAL, "mask_var": named}
    only = {"layer": layer, "obsm": obsm, "column_weights": None if columns is None else True}
    adata.uns[key_added or "pca"] = {
        "params": params | {name: given for name, given in only.items() if given is not None},
        "variance": variances,
        "variance_ratio": shares,
        **more,
    }
    return adata if copy else None


def project(
    adata: Any,
    onto: Any,
    *,
    layer: str | None = None,
    key_added: str | None = None,
    dtype: Any = "float32",
    copy: bool = False,
) -> Any:
    """
    Write the scores of other cells along known components into their ``obsm``, their genes matched by name.

    Genes may be in another order, and there may be more of them.

    Parameters
    ----------
    adata : anndata.AnnData
        The cells, their values treated as those were that the components are of: normalised, transformed.
    onto : str, Path, Solution or anndata.AnnData
        The components: the folder or URL of a run, a solution, or an AnnData that :func:`pca` wrote them into.
    layer : str, optional
        A layer instead of X.
    key_added : str, optional
        Name in ``obsm``, instead of "X_pca", and of what ``onto`` holds, if it is an AnnData.
    dtype : dtype_like, default "float32"
        Of the scores.
    copy : bool, default False
        Return a copy with the scores, and leave ``adata`` as it is.

    Returns
    -------
    anndata.AnnData or None
        The copy, if that was asked for.

    Raises
    ------
    BadInputError
        Genes that are not there, or there twice; no components, or none whose mean is known.

    Examples
    --------
    >>> import anndata
    >>> import numpy as np
    >>> import npmdask.anndata
    >>> known = anndata.AnnData(np.random.default_rng(0).poisson(2.0, (300, 40)).astype(float))
    >>> known.var_names = [f"gene{i}" for i in range(40)]
    >>> npmdask.anndata.pca(known, 5)
    >>> cells = known[:10, ::-1].copy()
    >>> npmdask.anndata.project(cells, known)
    >>> bool(np.allclose(cells.obsm["X_pca"], known.obsm["X_pca"][:10], atol=1e-5))
    True
    """
    require(_is_annotated(adata), f"an AnnData is needed, not a {type(adata).__name__}: give rows to Solution.scores")
    found, adata = _components(onto, key_added), _copied(adata, copy)
    kept = None if found.missing is None else found.missing.kept
    known, given = columns_of(found.labels, kept), (axis_of("var", adata.var_names.to_numpy()),)
    if kept is None and (is_counted(known) or is_counted(given)) and adata.n_vars != found.d:
        raise BadInputError(
            f"the AnnData has {adata.n_vars} genes and the components have {found.d}, and one of both has no names of "
            "genes: set var_names, or give the same genes"
        )
    places, said = matched(known, given, "the AnnData", "the run")
    warn(*said)
    if places is not None:
        names = adata.var_names[adata.var_names.isin(adata.var_names[places])]
        twice = listed(list(names[names.duplicated()].unique()))
        require(not twice, f"genes of the AnnData are there twice ({twice}): see adata.var_names_make_unique")
    rows, own = _values(adata, layer, places), getattr(onto, "uns", {}).get(key_added or "pca", {}).get("params", {})
    if own.get("layer") not in (None, layer):
        warn(f"the components are of the layer {own['layer']!r}, and the scores of {layer or 'X'}: should these be it?")
    adata.obsm[key_added or "X_pca"] = replace(found, choice=None).all_scores(rows, dtype=dtype)
    return adata if copy else None


def _components(onto: Any, key: str | None) -> StoredComponents:
    """The components of a run, a solution, or an AnnData."""
    if isinstance(onto, str | Path):
        return components_of(onto)
    if isinstance(onto, Solution):
        return onto._row_components
    require(_is_annotated(onto), f"onto is a {type(onto).__name__}: give a run, a Solution or an AnnData")
    kept, basis = onto.uns.get(key or "pca", {}), onto.varm.get(key or "PCs")
    params, where = kept.get("params", {}), f"uns[{key or 'pca'!r}] of the AnnData to project onto"
    if "store" in params:  # Solution.to_anndata
        return components_of(params["store"])
    require(
        basis is not None and "zero_center" in params, f"{where} holds no components: run npmdask.anndata.pca on it"
    )
    basis = np.asarray(basis, np.float64)
    if "obsm" in params:
        raise BadInputError(f"{where} is of obsm[{params['obsm']!r}], whose components are not of genes: give one of X")
    if "column_weights" in params or (params["zero_center"] and "offset" not in kept):
        raise BadInputError(
            f"{where} does not say what was taken off (scanpy does not write it, nor are weights kept): run "
            "npmdask.anndata.pca on it, with store= for weights, and give that folder"
        )
    used = basis.any(axis=1)
    if used.sum() != kept.get("genes", used.sum()):
        raise BadInputError(f"{where} lacks genes of its components: give all that npmdask.anndata.pca used")
    mean = np.linalg.pinv(basis).T @ kept["offset"] if params["zero_center"] else None  # as far as it is seen
    labels = Labels(columns=(axis_of("var", onto.var_names.to_numpy()[used]),))
    return StoredComponents(basis=basis[used], mean=None if mean is None else mean[used], labels=labels)


def _is_annotated(given: Any) -> bool:
    return type(given).__name__ == "AnnData"


def _annotated(given: Any) -> Any:
    """An AnnData of a matrix, or the one that was given."""
    if _is_annotated(given):
        return given
    objection = "it has no shape"
    if hasattr(given, "shape"):
        with extra(None):
            import anndata
        try:
            return anndata.AnnData(given)
        except (TypeError, ValueError) as error:
            objection = str(error)
    raise BadInputError(
        f"an AnnData or a matrix is needed, not a {type(given).__name__} ({objection}): open files with "
        "anndata.read_h5ad(NAME, backed='r'); for other data use npmdask.PCA"
    )


def _copied(adata: Any, copy: bool) -> Any:
    """The AnnData that results are written into. Raises BadInputError where it cannot hold them."""
    if adata.isbacked and (adata.is_view or copy):  # anndata says so of a view only when it is given the results
        raise BadInputError(
            f"the results cannot be kept in a {'view' if adata.is_view else 'copy'} of an AnnData whose X is in a file "
            "(backed): give adata.copy('NAME.h5ad'), which is backed by a file of its own, or adata.to_memory()"
        )
    return adata.copy() if copy else adata


def _check_solver(asked: str | None, rows: Any, centred: bool) -> None:
    """Warn of a solver that scanpy does not use for such rows. Raises BadInputError where it has none of this name."""
    if asked is None:
        return
    require_known(asked, sorted({"lobpcg", *(word for words in SOLVERS.values() for word in words)}), "svd_solver")
    kind = (hasattr(rows, "dask"), issparse(getattr(rows, "_meta", rows)), centred)
    if asked not in SOLVERS.get(kind, ()):
        warn(f"Ignoring svd_solver={asked!r}, which scanpy has for other data or as legacy code: leave it out")


def _mask(adata: Any, asked: Mask) -> tuple[np.ndarray | None, str | None]:
    """Places of the genes that are used (None: all), and the column that says so."""
    if asked is UNSET:
        asked = USUAL if USUAL in adata.var else None
    if asked is None:
        return None, None
    if isinstance(asked, str):
        if asked not in adata.var:
            raise BadInputError(
                f"Did not find `adata.var[{asked!r}]`. mask_var takes a column of adata.var, a truth value for each "
                f"gene, or None for all genes; {closest(asked, list(adata.var))}"
            )
        asked, name = adata.var[asked].to_numpy(), asked
    else:
        asked, name = _by_name(asked, "var", adata.var_names, "mask_var"), None
    if asked.shape != (adata.n_vars,) or asked.dtype.kind != "b" or not asked.any():
        raise BadInputError(
            f"mask_var says of {asked.size} genes whether to use them ({asked.dtype}): give a truth value for each "
            f"of the {adata.n_vars}, and True for some"
        )
    return np.flatnonzero(asked), name


def _weights(table: Any, name: str, asked: Any, names: Any) -> np.ndarray | None:
    """Numbers, or the column of ``adata.obs`` or ``adata.var`` that holds them."""
    where = "obs" if name == "sample_weight" else "var"
    if isinstance(asked, str):
        if asked not in table:
            raise BadInputError(f"{name} = {asked!r} is no column of adata.{where}: {closest(asked, list(table))}")
        return np.asarray(table[asked].to_numpy())
    return None if asked is None else _by_name(asked, where, names, name)


def _by_name(asked: Any, axis: str, names: Any, what: str) -> np.ndarray:
    """Numbers of cells or genes in the order of their names, where pandas has names of them."""
    if hasattr(asked, "iloc"):
        known, given = (axis_of(axis, each.to_numpy()) for each in (names, asked.index))
        places = places_of((known,), (given,), what)
        asked = asked if places is None else asked.iloc[places]
    return np.asarray(asked)


def _values(adata: Any, layer: str | None, used: np.ndarray | None, obsm: str | None = None) -> Any:
    """X, a layer or an array of ``obsm``, of the genes that are used."""
    for name, asked, held in (("layer", layer, adata.layers), ("obsm", obsm, adata.obsm)):
        if asked is not None and asked not in held:
            known = [each for each in held if each is not None]  # None is X, from AnnData 0.13 on
            raise BadInputError(f"{name} = {asked!r} is not there: {closest(asked, known)}")
    if obsm is not None:
        return adata.obsm[obsm]
    require(layer is not None or adata.X is not None, "the AnnData has no X: give a layer, as layer='counts'")
    held = adata.X if layer is None else adata.layers[layer]
    if used is None:
        return held
    if adata.isbacked and layer is None:  # a view of it would be read into memory
        from anndata.experimental import read_elem_lazy

        return read_elem_lazy(getattr(held, "group", held))[:, used]
    return held[:, used]


def write_components(solution: Solution, adata: Any, key: str) -> Any:
    """The components and the scores of all cells, written to where scanpy looks for them."""
    require(_is_annotated(adata), f"an AnnData is needed, not a {type(adata).__name__}: scores(rows) takes all others")
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
