"""Coupled patterns of two gridded fields, by their packages: ``coupled.py '{"contestant": ..., "path": ...}'``.

Run in .venv-peers, those of npmdask in its own environment. ``small`` is the path of small data, on which everything is
imported and compiled first. The answer is one JSON line (seconds with the data read and scores made, peak memory);
covariances and components of both fields are written to ``out``.
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

Answer = tuple[np.ndarray, np.ndarray, np.ndarray]  # covariances (k), components of the left and right field (d x k)


def _fields(path: str) -> tuple[Any, Any]:
    import xarray

    group = xarray.open_zarr(path, consolidated=False)
    return group["sea"], group["air"]


def npmdask_mca(job: dict[str, Any], path: str) -> Answer:
    """The lazy DataArrays, read block by block in every pass."""
    from npmdask.xarray import MCA

    model = MCA(n_modes=job["k"], use_coslat=True, memory=job["memory"], tol=job["setting"])
    fields = _fields(path)
    model.fit(*fields, dim="time")
    return _modes_of(model, fields, model.singular_values())


def xeofs_on_dask(job: dict[str, Any], path: str) -> Answer:
    """xeofs with both fields reduced to leading components first, whose power iterations are normalised.

    None components: of the fields as they are, whose cross-covariance it forms (columns x columns).
    """
    import xeofs

    modes, iterations = job["setting"]
    options: dict[str, Any] = {"solver_kwargs": {"iterator": "QR", "n_power_iter": iterations}, "random_state": 0}
    options |= {"use_pca": False} if modes is None else {"n_pca_modes": modes}
    model = xeofs.cross.MCA(n_modes=job["k"], use_coslat=True, **options)
    fields = _fields(path)
    model.fit(*fields, dim="time")
    found = model.scores(normalized=False)
    spread = [np.asarray(side.transpose("time", "mode")) for side in found]
    values = (spread[0] * spread[1]).sum(axis=0) / (len(spread[0]) - 1)
    return _modes_of(model, fields, values)


def _modes_of(model: Any, fields: tuple[Any, Any], values: Any) -> Answer:
    """On the grids of the fields: xeofs sorts latitudes. Scores are made, as both would be asked for."""
    for side in model.scores():
        np.asarray(side)
    maps = [
        side.sel(lat=field.lat, lon=field.lon).transpose("lat", "lon", "mode").values
        for side, field in zip(model.components(), fields, strict=True)
    ]
    left, right = (each.reshape(-1, each.shape[-1]) for each in maps)
    return np.asarray(values), left, right


CONTESTANTS: dict[str, Callable[[dict[str, Any], str], Answer]] = {
    "npmdask": npmdask_mca,
    "xeofs on Dask": xeofs_on_dask,
}


def main(job: dict[str, Any]) -> None:
    warnings.simplefilter("ignore")
    solve = CONTESTANTS[job["contestant"]]
    solve(job, job["small"])
    with AnonymousPeak() as meter:
        start, cpu = time.perf_counter(), time.process_time()
        values, left, right = solve(job, job["path"])
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    np.savez(job["out"], values=values, left=left, right=right)
    peaks = {"cpu_seconds": cpu, "peak_rss_bytes": status("VmHWM"), "peak_anonymous_bytes": meter.peak}
    print(json.dumps({"setting": job.get("setting"), "seconds": seconds, **peaks}))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
