"""Annotated matrices and gridded fields, by their packages: ``labelled.py '{"contestant": ..., "path": ...}'``.

Run in .venv-peers, those of npmdask in its own environment. ``small`` is the path of small data, on which everything is
imported and compiled first. The answer is one JSON line (seconds with the data read and scores made, peak memory);
variances and components are written to ``out``.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from samples import AnonymousPeak, status

Answer = tuple[np.ndarray, np.ndarray, np.ndarray]  # variances (k), components (d x k), scores (n x k)


def _pca_of(held: Any) -> Answer:
    scores = held.obsm["X_pca"]
    return np.asarray(held.uns["pca"]["variance"]), np.asarray(held.varm["PCs"]), np.asarray(scores)


def npmdask_cells(job: dict[str, Any], path: str) -> Answer:
    """The AnnData as it lies on disk, never all in memory."""
    import anndata

    import npmdask.anndata

    held = anndata.read_h5ad(path, backed="r")
    npmdask.anndata.pca(held, job["k"], memory=job["memory"])
    return _pca_of(held)


def scanpy_in_memory(job: dict[str, Any], path: str) -> Answer:
    """Everything read; scikit-learn's solver for sparse matrices that scanpy chooses, or that of the setting."""
    import anndata
    import scanpy

    held = anndata.read_h5ad(path)
    scanpy.pp.pca(held, job["k"], svd_solver=job.get("setting"))
    return _pca_of(held)


def scanpy_on_dask(job: dict[str, Any], path: str) -> Answer:
    """Blocks of rows, sparse; scanpy forms the covariance. Scores are computed a block at a time."""
    import anndata
    import h5py
    import scanpy

    with h5py.File(path) as file:
        lazy = anndata.experimental.read_elem_lazy(file["X"], chunks=(job["setting"], -1))
        held = anndata.AnnData(X=lazy)
        scanpy.pp.pca(held, job["k"])
        held.obsm["X_pca"] = held.obsm["X_pca"].compute()
    variances, components, scores = _pca_of(held)
    return (
        variances * (len(scores) / (len(scores) - 1)),
        components,
        scores,
    )  # scanpy divides by n here, elsewhere by n - 1


def _field(path: str) -> Any:
    import xarray

    return xarray.open_zarr(path, consolidated=False)["field"]


def npmdask_eof(job: dict[str, Any], path: str) -> Answer:
    """The lazy DataArray, decoded block by block in every pass."""
    from npmdask.xarray import EOF

    model = EOF(n_modes=job["k"], use_coslat=True, memory=job["memory"], tol=job["setting"])
    field = _field(path)
    model.fit(field, dim="time")
    return _modes_of(model, field)


def xeofs_on_dask(job: dict[str, Any], path: str) -> Answer:
    """xeofs told to normalise its power iterations, without which its EOFs of Dask arrays are wrong."""
    import xeofs

    options = {"iterator": "QR", "n_power_iter": job["setting"]}
    model = xeofs.single.EOF(n_modes=job["k"], use_coslat=True, random_state=0, solver_kwargs=options)
    field = _field(path)
    model.fit(field, dim="time")
    return _modes_of(model, field)


def _modes_of(model: Any, field: Any) -> Answer:
    """On the grid of the field: xeofs sorts latitudes."""
    maps = model.components().sel(lat=field.lat, lon=field.lon).transpose("lat", "lon", "mode").values
    scores = model.scores().transpose("time", "mode")
    return np.asarray(model.explained_variance()), maps.reshape(-1, maps.shape[-1]), np.asarray(scores)


CONTESTANTS: dict[str, Callable[[dict[str, Any], str], Answer]] = {
    "npmdask": lambda job, path: (npmdask_eof if job["kind"] == "field" else npmdask_cells)(job, path),
    "scanpy in memory": scanpy_in_memory,
    "scanpy in memory, covariance_eigh": scanpy_in_memory,
    "scanpy on Dask": scanpy_on_dask,
    "xeofs on Dask": xeofs_on_dask,
}


def main(job: dict[str, Any]) -> None:
    warnings.simplefilter("ignore")
    solve = CONTESTANTS[job["contestant"]]
    solve(job, job["small"])
    with AnonymousPeak() as meter:
        start, cpu = time.perf_counter(), time.process_time()
        variances, components, scores = solve(job, job["path"])
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    # the scores must be those of these components: their variances are the eigenvalues
    spread = scores.var(axis=0, ddof=1, dtype="f8")
    np.savez(job["out"], variances=variances, components=components)
    error = float(np.abs(spread / variances - 1).max()) if job["kind"] == "cells" else None
    peaks = {"cpu_seconds": cpu, "peak_rss_bytes": status("VmHWM"), "peak_anonymous_bytes": meter.peak}
    print(json.dumps({"setting": job.get("setting"), "seconds": seconds, "scores_off": error, **peaks}))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
