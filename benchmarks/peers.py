"""Accuracy beside the packages that people use today, all with their defaults, on two matrices.

    python -m benchmarks.peers

Peers that are not installed are left out and said so (``pip install dask-ml xeofs`` in another environment).
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

import npmdask

K = 20
RESULTS = Path(__file__).with_name("results")


def matrices() -> dict[str, np.ndarray]:
    """2000 x 400: a steep spectrum (one over 10^6 in 60 steps) and a slow one (1 / sqrt(i))."""
    rng = np.random.default_rng(0)
    made = {}
    for name, sigma in (("logspace(0, -6, 60)", np.logspace(0, -6, 60)), ("1/sqrt(i)", np.arange(1, 401) ** -0.5)):
        u = np.linalg.qr(rng.standard_normal((2000, len(sigma))))[0]
        v = np.linalg.qr(rng.standard_normal((400, len(sigma))))[0]
        made[name] = (u * sigma) @ v.T
    return made


def ours(a: np.ndarray) -> np.ndarray:
    """Singular values by npmdask."""
    solution = npmdask.top_k(a, K)
    assert solution.converged
    return solution.values


def by_dask(a: np.ndarray) -> np.ndarray:
    """dask.array.linalg.svd_compressed with four power iterations."""
    import dask.array as da

    return np.asarray(
        da.linalg.svd_compressed(da.from_array(a, chunks=(500, 400)), K, n_power_iter=4, seed=0)[1].compute()
    )


def by_dask_ml(a: np.ndarray) -> np.ndarray:
    """dask_ml.decomposition.TruncatedSVD, randomized."""
    import dask.array as da
    from dask_ml.decomposition import TruncatedSVD

    model = TruncatedSVD(K, algorithm="randomized", random_state=0)
    return np.asarray(model.fit(da.from_array(a, chunks=(500, 400))).singular_values_)


def by_xeofs(a: np.ndarray) -> np.ndarray:
    """xeofs EOF on a Dask array (the data are centred by construction only nearly: values scaled to compare)."""
    import xarray
    import xeofs

    x = xarray.DataArray(a, dims=("time", "x"), coords={"time": range(len(a)), "x": range(a.shape[1])}).chunk(time=500)
    model = xeofs.single.EOF(n_modes=K, center=False, random_state=0)
    return np.asarray(model.fit(x, dim="time").singular_values().values)


def by_sklearn(a: np.ndarray) -> np.ndarray:
    """scikit-learn's randomized TruncatedSVD, in memory."""
    from sklearn.decomposition import TruncatedSVD

    return np.asarray(TruncatedSVD(K, random_state=0).fit(a).singular_values_)


PEERS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "npmdask": ours,
    "dask": by_dask,
    "dask-ml": by_dask_ml,
    "xeofs": by_xeofs,
    "scikit-learn": by_sklearn,
}


def main() -> None:
    """Print the largest relative error of the top 20 singular values, and keep it."""
    table: dict[str, Any] = {}
    for name, a in matrices().items():
        true = np.linalg.svd(a, compute_uv=False)[:K]
        for peer, solve in PEERS.items():
            try:
                label = f"{peer} {version(peer)}"
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    error: Any = float(np.abs(solve(a) / true - 1).max())
            except (PackageNotFoundError, ImportError) as missing:
                label, error = peer, f"not installed ({missing})"
            except Exception as failure:  # a peer that breaks is a finding, not our failure
                error = f"fails: {type(failure).__name__}: {failure}"
            table.setdefault(label, {})[name] = error
            print(f"{label:28} {name:22} {error if isinstance(error, str) else f'{error:.1e}'}")
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "peers.json").write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
