"""Random matrices, weights and arrays on disk that several families draw."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.conftest import write_zarr

Rng = np.random.Generator


def chance(rng: Rng, probability: float) -> bool:
    return bool(rng.random() < probability)


def one_of(rng: Rng, choices: Any, p: Any = None) -> Any:
    """One of them, with its own type."""
    return choices[int(rng.choice(len(choices), p=p))]


def whole(rng: Rng, low: int, high: int) -> int:
    """A whole number, ``low`` and ``high`` included."""
    return int(rng.integers(low, high + 1))


def power_of_ten(rng: Rng, low: float, high: float) -> float:
    return float(10.0 ** rng.uniform(low, high))


def orthonormal(rng: Rng, n: int, r: int) -> np.ndarray:
    return np.asarray(np.linalg.qr(rng.standard_normal((n, r)))[0])


def with_values(rng: Rng, n: int, d: int, values: np.ndarray) -> np.ndarray:
    """A matrix (n x d) of these singular values."""
    r = len(values)
    return (orthonormal(rng, n, r) * values) @ orthonormal(rng, d, r).T


def weights(rng: Rng, n: int, exponents: tuple[int, ...]) -> np.ndarray:
    """Weights between 0 and 1, or whole numbers, times a power of ten; some are 0, or spread over twelve orders."""
    found = rng.random(n) if chance(rng, 0.7) else rng.integers(0, 4, n).astype(float)
    found *= 10.0 ** one_of(rng, exponents)
    if chance(rng, 0.3):
        found[rng.random(n) < 0.3] = 0
    if chance(rng, 0.15):
        found *= 10.0 ** rng.uniform(-12, 0, n)
    if not found.any():
        found[0] = 1
    return found


def stored(folder: Path, x: np.ndarray, rows: int, name: str = "x") -> str:
    """The path of a Zarr array of these values in chunks of so many rows."""
    path = folder / f"{name}.zarr"
    write_zarr(path, x, (max(1, min(rows, len(x))), x.shape[1]), config={"write_empty_chunks": True})
    return str(path)
