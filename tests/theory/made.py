"""Noisy power iteration in the coordinates of the eigenvectors: A is diagonal, angles are read off blocks of rows."""

from __future__ import annotations

import numpy as np

Rng = np.random.Generator


def tangent(x: np.ndarray, k: int) -> float:
    """tan theta_k(U, X) for U the first k coordinates: the norm of the rest over the first k rows."""
    return float(np.linalg.norm(x[k:] @ np.linalg.pinv(x[:k]), 2))


def perturbation(x: np.ndarray, k: int, q: int) -> float:
    """h: the least norm of H with range(X) containing U_k + U_{d-q} H (Parrott: a projection attains it)."""
    inverse = np.linalg.pinv(x[:q])
    at = x[q:] @ inverse[:, :k]
    free = x[q:] @ (np.eye(x.shape[1]) - inverse @ x[:q])
    basis = np.linalg.svd(free, full_matrices=False)[0][:, : x.shape[1] - q]
    return float(np.linalg.norm(at - basis @ (basis.T @ at), 2))


def falling(d: int, rng: Rng, ratio: tuple[float, float] = (0.6, 1.0)) -> np.ndarray:
    """Sizes of d eigenvalues, each a random share of the one before."""
    return np.cumprod(np.append(1.0, rng.uniform(*ratio, d - 1)))


def start(d: int, p: int, rng: Rng) -> np.ndarray:
    return np.linalg.qr(rng.standard_normal((d, p)))[0]


def worst_noise(x: np.ndarray, k: int, whole: float, inside: float) -> np.ndarray:
    """Noise of norms ``whole`` and, on U, ``inside`` that turns X as far from U as it can in one step, to first order.

    It acts along the direction of range(X) that is farthest from U: away from U, and towards the next eigenvector.
    """
    inverse = np.linalg.pinv(x[:k])
    left, _, right = np.linalg.svd(x[k:] @ inverse)
    along = inverse @ right[0]
    towards = np.concatenate([np.zeros(k), left[:, 0]])
    against = np.concatenate([right[0], np.zeros(len(x) - k)])
    size = np.linalg.norm(along)
    return np.outer(np.sqrt(whole**2 - inside**2) * towards - inside * against, along / size)
