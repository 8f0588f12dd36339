"""How a user of each package finds the k leading right singular vectors (or principal axes) of samples on disk.

Run in .venv-peers, npmdask in its own environment. Every function gets the job (paths, k) and one setting and returns
a basis, columns x k (npmdask with facts of the run). ``LADDERS`` are the settings to try, from cheap to dear. Columns
have mean zero: centring changes nothing, so that packages that always centre and packages that cannot solve the same
problem.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

POWER_ITERATIONS = [2, 5, 8, 11, 14, 16, 18, 20, 22, 24, 26, 28, 32, 40]


def _dask_array(job: dict[str, Any]) -> Any:
    import dask.array as da

    return da.from_zarr(job["zarr"])


def dask_keep(job: dict[str, Any], n_power_iter: int) -> np.ndarray:
    """svd_compressed(compute=False, iterator="QR"): one pass, everything kept in memory."""
    import dask.array as da

    x, k = _dask_array(job), job["k"]
    v = da.linalg.svd_compressed(x, k, iterator="QR", n_power_iter=n_power_iter, compute=False, seed=0)[2]
    return v.compute().T


def dask_reread(job: dict[str, Any], n_power_iter: int) -> np.ndarray:
    """svd_compressed(compute=True, iterator="QR"): 2 q + 2 passes."""
    import dask.array as da

    x, k = _dask_array(job), job["k"]
    v = da.linalg.svd_compressed(x, k, iterator="QR", n_power_iter=n_power_iter, compute=True, seed=0)[2]
    return v.compute().T


def dask_ml_pca(job: dict[str, Any], iterated_power: int) -> np.ndarray:
    """dask_ml PCA, randomized; its iterations are not normalised and it has no option to."""
    from dask_ml.decomposition import PCA

    model = PCA(job["k"], svd_solver="randomized", iterated_power=iterated_power, random_state=0)
    return np.asarray(model.fit(_dask_array(job)).components_).T


def dask_ml_truncated_svd(job: dict[str, Any], n_iter: int) -> np.ndarray:
    """dask_ml TruncatedSVD, randomized; not normalised either."""
    from dask_ml.decomposition import TruncatedSVD

    model = TruncatedSVD(job["k"], algorithm="randomized", n_iter=n_iter, random_state=0)
    return np.asarray(model.fit(_dask_array(job)).components_).T


def xeofs_eof(job: dict[str, Any], n_power_iter: int) -> np.ndarray:
    """xeofs EOF on a Dask array, told to normalise."""
    import xarray
    import xeofs

    x = _dask_array(job)
    named = xarray.DataArray(x, dims=("time", "x"), coords={"time": range(x.shape[0]), "x": range(x.shape[1])})
    options = {"iterator": "QR", "n_power_iter": n_power_iter}
    model = xeofs.single.EOF(n_modes=job["k"], center=False, random_state=0, solver_kwargs=options)
    model.fit(named, dim="time")
    return np.asarray(model.components().transpose("x", "mode").values)


def sklearn_randomized(job: dict[str, Any], iterated_power: int) -> np.ndarray:
    """scikit-learn PCA, randomized, on a memory map."""
    from sklearn.decomposition import PCA

    model = PCA(job["k"], svd_solver="randomized", iterated_power=iterated_power, random_state=0)
    return model.fit(np.load(job["npy"], mmap_mode="r")).components_.T


def sklearn_covariance(job: dict[str, Any], only: int) -> np.ndarray:
    """scikit-learn PCA, covariance_eigh, loaded from the store: direct, for few columns only."""
    import zarr
    from sklearn.decomposition import PCA

    x = zarr.open_array(job["zarr"], mode="r")[...]
    return PCA(job["k"], svd_solver="covariance_eigh", copy=False).fit(x).components_.T


def scanpy_dask(job: dict[str, Any], rows_of_a_block: int) -> np.ndarray:
    """scanpy's PCA of a Dask array, covariance_eigh: direct; its other PCAs of Dask arrays are those of dask-ml."""
    import anndata
    import scanpy

    held = anndata.AnnData(X=_dask_array(job).rechunk({0: rows_of_a_block}))
    scanpy.pp.pca(held, job["k"], svd_solver="covariance_eigh")
    return np.asarray(held.varm["PCs"])


def numpy_gram(job: dict[str, Any], only: int, dtype: str) -> np.ndarray:
    """A plain program: X^T X of each chunk (``dtype``) added up in float64; the next one is read meanwhile."""
    import scipy.linalg
    import zarr

    x = zarr.open_array(job["zarr"], mode="r")
    (rows, columns), height = x.shape, x.chunks[0]
    total, gram = np.zeros(columns), np.zeros((columns, columns))
    with ThreadPoolExecutor(1) as reading:
        ahead = reading.submit(x.__getitem__, slice(0, height))
        for start in range(0, rows, height):
            tile = np.asarray(ahead.result(), dtype)
            ahead = reading.submit(x.__getitem__, slice(start + height, start + 2 * height))
            total += tile.sum(axis=0, dtype="f8")
            gram += tile.T @ tile
    gram -= np.outer(total, total / rows)
    last = [columns - job["k"], columns - 1]
    return scipy.linalg.eigh(gram, subset_by_index=last, overwrite_a=True, check_finite=False)[1][:, ::-1]


def numpy_gram_single(job: dict[str, Any], only: int) -> np.ndarray:
    """Float32 products of each chunk, float64 sums."""
    return numpy_gram(job, only, "f4")


def numpy_gram_double(job: dict[str, Any], only: int) -> np.ndarray:
    """Float64 throughout."""
    return numpy_gram(job, only, "f8")


def npmdask_top_k(job: dict[str, Any], tol: float) -> tuple[np.ndarray, dict[str, Any]]:
    """``npmdask.top_k``, centred; ``algorithm`` and its ``options`` of the job, or what "auto" takes."""
    import npmdask

    asked = {name: job[name] for name in ("algorithm", "options", "memory") if name in job}
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        found = npmdask.top_k(job["zarr"], job["k"], kind="samples", center=True, tol=tol, store=run, **asked)
        taken = json.loads((run / "run.json").read_text())["algorithm"]["name"]
    facts = {"algorithm": taken, "passes": found.total_data_passes, "converged": found.converged}
    return found.basis, facts


def sklearn_incremental(job: dict[str, Any], n_components: int) -> np.ndarray:
    """scikit-learn IncrementalPCA by blocks of the store; keeps more components than asked for, to lose less."""
    import zarr
    from sklearn.decomposition import IncrementalPCA

    x, model = zarr.open_array(job["zarr"], mode="r"), IncrementalPCA(n_components)
    for start in range(0, x.shape[0], x.chunks[0]):
        model.partial_fit(x[start : start + x.chunks[0]])
    return model.components_[: job["k"]].T


def gensim_lsi(job: dict[str, Any], power_iters: int) -> np.ndarray:
    """gensim LsiModel with the samples as documents, in its fastest way for dense data: one sparse matrix."""
    import scipy.sparse
    from gensim.models import LsiModel
    from gensim.utils import FakeDict

    x = np.load(job["npy"], mmap_mode="r")
    corpus = scipy.sparse.csr_matrix(x).T  # terms x documents
    model = LsiModel(
        corpus=corpus, num_topics=job["k"], id2word=FakeDict(x.shape[1]), power_iters=power_iters, random_seed=0
    )
    return model.projection.u[:, : job["k"]]


CONTESTANTS: dict[str, Callable[..., Any]] = {
    "npmdask": npmdask_top_k,
    "dask svd_compressed, kept": dask_keep,
    "dask svd_compressed, re-read": dask_reread,
    "dask-ml PCA": dask_ml_pca,
    "dask-ml TruncatedSVD": dask_ml_truncated_svd,
    "xeofs EOF": xeofs_eof,
    "scikit-learn PCA randomized": sklearn_randomized,
    "scikit-learn PCA covariance_eigh": sklearn_covariance,
    "scanpy PCA on Dask": scanpy_dask,
    "NumPy, X^T X in float32": numpy_gram_single,
    "NumPy, X^T X in float64": numpy_gram_double,
    "scikit-learn IncrementalPCA": sklearn_incremental,
    "gensim LsiModel": gensim_lsi,
}
LADDERS: dict[str, list[Any]] = {name: POWER_ITERATIONS for name in CONTESTANTS} | {
    "npmdask": [1e-2, 3e-3, 1e-3, 5e-4, 2e-4, 1e-4, 5e-5, 2e-5, 1e-5, 3e-6, 1e-6],
    "scikit-learn PCA covariance_eigh": [1],
    "scanpy PCA on Dask": [8192],
    "NumPy, X^T X in float32": [1],
    "NumPy, X^T X in float64": [1],
    "scikit-learn IncrementalPCA": [20, 40, 80, 160, 320],
    "gensim LsiModel": [4, 6, 8, 10, 12, 16],
}
