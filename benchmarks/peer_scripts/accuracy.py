"""Singular values by every package with its defaults: ``accuracy.py '{"matrix": FILE.npy, "k": 20}'``.

The answer is one JSON line: package and version to the values, or to a sentence that says why there are none.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import numpy as np


def by_dask(a: np.ndarray, k: int) -> Any:
    """dask.array.linalg.svd_compressed with four power iterations."""
    import dask.array as da

    return da.linalg.svd_compressed(da.from_array(a, chunks=(500, 400)), k, n_power_iter=4, seed=0)[1].compute()


def by_dask_ml(a: np.ndarray, k: int) -> Any:
    """dask_ml.decomposition.TruncatedSVD, randomized."""
    import dask.array as da
    from dask_ml.decomposition import TruncatedSVD

    model = TruncatedSVD(k, algorithm="randomized", random_state=0)
    return model.fit(da.from_array(a, chunks=(500, 400))).singular_values_


def by_xeofs(a: np.ndarray, k: int) -> Any:
    """xeofs EOF on a Dask array."""
    import xarray
    import xeofs

    x = xarray.DataArray(a, dims=("time", "x"), coords={"time": range(len(a)), "x": range(a.shape[1])}).chunk(time=500)
    model = xeofs.single.EOF(n_modes=k, center=False, random_state=0)
    return model.fit(x, dim="time").singular_values().values


def by_sklearn(a: np.ndarray, k: int) -> Any:
    """scikit-learn's randomized TruncatedSVD, in memory."""
    from sklearn.decomposition import TruncatedSVD

    return TruncatedSVD(k, random_state=0).fit(a).singular_values_


PEERS: dict[str, Callable[[np.ndarray, int], Any]] = {
    "dask": by_dask,
    "dask-ml": by_dask_ml,
    "xeofs": by_xeofs,
    "scikit-learn": by_sklearn,
}


def main(job: dict[str, Any]) -> None:
    warnings.simplefilter("ignore")
    matrix, answers = np.load(job["matrix"]), {}
    for name, solve in PEERS.items():
        try:
            answers[f"{name} {version(name)}"] = np.asarray(solve(matrix, job["k"])).tolist()
        except Exception as failure:  # a peer that breaks is a finding: it is passed on, not swallowed
            answers[name] = f"{type(failure).__name__}: {failure}"
    print(json.dumps(answers))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
