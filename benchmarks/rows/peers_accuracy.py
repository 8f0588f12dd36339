"""The largest relative error of the top 20 singular values of two matrices, beside packages with their defaults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import npmdask
from benchmarks.children import last_json, peer_command
from benchmarks.registry import Context, Measured, Row

K = 20
SPECTRA = {"logspace(0, -6, 60)": np.logspace(0, -6, 60), "1/sqrt(i)": np.arange(1, 401) ** -0.5}
EXACT, INEXACT = 1e-10, 1e-2
KNOWN_WRONG = ("dask", "dask-ml", "xeofs")  # their power iterations are not normalised (docs/papers/benchmarks.md)


def measure(context: Context) -> Measured:
    """Ours and theirs on the same matrices; a peer that breaks, or is newly wrong, fails the benchmarks."""
    errors: dict[str, dict[str, Any]] = {}
    failures: list[str] = []
    for name, sigma in SPECTRA.items():
        matrix = _matrix(sigma)
        true = np.linalg.svd(matrix, compute_uv=False)[:K]
        errors.setdefault("npmdask", {})[name] = _error(npmdask.top_k(matrix, K).values, true)
        for peer, values in _peers(context.folder, matrix).items():
            verdict = values if isinstance(values, str) else _verdict(_error(values, true))
            errors.setdefault(peer, {})[name] = verdict
            broken = isinstance(values, str) or (verdict.startswith("wrong") and peer.split()[0] not in KNOWN_WRONG)
            failures += [f"{peer} on {name}: {verdict}"] if broken else []
    details = {"largest_relative_error": errors, "matrix": "2000 x 400, planted"}
    return Measured(max(errors["npmdask"].values()), details, "", tuple(failures))


def _matrix(sigma: np.ndarray) -> np.ndarray:
    rng = np.random.default_rng(0)
    u = np.linalg.qr(rng.standard_normal((2000, len(sigma))))[0]
    v = np.linalg.qr(rng.standard_normal((400, len(sigma))))[0]
    return (u * sigma) @ v.T


def _error(values: Any, true: np.ndarray) -> float:
    return float(np.abs(np.asarray(values) / true - 1).max())


def _verdict(error: float) -> str:
    return f"{'wrong' if error > INEXACT else 'inexact' if error > EXACT else 'right'}: {error:.1e}"


def _peers(folder: Path, matrix: np.ndarray) -> dict[str, Any]:
    np.save(folder / "matrix.npy", matrix)
    return last_json(peer_command("accuracy", {"matrix": str(folder / "matrix.npy"), "k": K}), folder=folder)


ROWS = (
    Row(
        name="peers-accuracy",
        what="our largest relative error of 20 singular values, a steep and a slow spectrum, 2000 x 400",
        target=EXACT,
        better="lower",
        run=measure,
    ),
)
