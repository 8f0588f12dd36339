"""What the theory experiments share: runs of the noisy power method on diag(spectrum), angles, quantiles, bisection.

A start is Haar distributed and a Gaussian block looks the same in every basis, so that A may be diagonal wherever the
basis is not what is studied: U_k are then the first k unit vectors, and a product costs d p.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from npmdask.core.algorithms import PowerMethod
from npmdask.core.numerics.random import generator
from npmdask.core.numerics.subspaces import Block

SHADES = ("#92c5de", "#4393c3", "#2166ac", "#053061")
Noise = Callable[[int, Block], Block]  # step (from 1) and X_{l-1}: G_l


def iterates(spectrum: np.ndarray, k: int, p: int, seed: int, noise: Noise | None = None) -> Iterator[Block]:
    """X_0, X_1, ... of the noisy power method on diag(``spectrum``), by this project's class; without end."""
    method = PowerMethod(target_rank=k, iteration_rank=p)
    state = method.init(len(spectrum), rng=generator(seed, "start"))
    while True:
        yield state.basis
        block = method.query(state).block
        product = spectrum[:, None] * block
        if noise is not None:
            product += noise(state.step + 1, block)
        state, _ = method.update(state, product)


def sine(basis: Block, k: int) -> float:
    """sin theta_k(U, X) for U the first k unit vectors, from the residual (max_sin_theta without U as a block)."""
    residual = np.eye(len(basis), k) - basis @ basis[:k].T
    return float(min(np.linalg.svd(residual, compute_uv=False)[0], 1.0))


def tangent(basis: Block, k: int) -> float:
    """tan theta_k(U, X) = sin / cos for U the first k unit vectors; inf where range(X) misses a direction of U."""
    cosine = float(np.linalg.svd(basis[:k], compute_uv=False)[k - 1])
    return sine(basis, k) / cosine if cosine > 0 else float("inf")


def gaussian_noise(norm: float, inside: float, k: int, seed: int) -> Noise:
    """Independent Gaussian entries, scaled to ||G|| = ``norm``; rows of U are shrunk to ||U^T G|| <= ``inside``."""

    def drawn(step: int, block: Block) -> Block:
        noise = generator(seed, "noise", step).standard_normal(block.shape)
        noise *= norm / np.linalg.norm(noise, 2)
        along = float(np.linalg.norm(noise[:k], 2))
        noise[:k] *= min(1.0, inside / along)
        return noise

    return drawn


def towards_noise(spectrum: np.ndarray, outside: float, inside: float, k: int, to: int) -> Noise:
    """Noise that turns the worst direction of X away from U, towards unit vector ``to`` (from 0).

    U^T A X q = s w for the least singular value s: G = (outside sign u_to - min(inside, s) U w) q^T adds to what is
    outside of U and takes away what little is inside, at most all of it.
    """

    def made(step: int, block: Block) -> Block:
        left, values, right = np.linalg.svd(spectrum[:k, None] * block[:k], full_matrices=False)
        worst, noise = right[k - 1], np.zeros_like(block)
        noise[to] = outside * (1.0 if block[to] @ worst >= 0 else -1.0) * worst
        noise[:k] -= min(inside, float(values[k - 1])) * np.outer(left[:, k - 1], worst)
        return noise

    return made


def first_at_most(values: Sequence[float], level: float) -> int | None:
    """The first index whose value is at most ``level``."""
    below = np.flatnonzero(np.asarray(values) <= level)
    return int(below[0]) if len(below) else None


def largest(holds: Callable[[float], bool], low: float, high: float, tol: float = 0.01) -> float:
    """The largest level that holds, by bisection of its logarithm to a relative ``tol``; nan if ``low`` does not."""
    if not holds(low):
        return float("nan")
    while holds(high):
        low, high = high, 4 * high
    while high > (1 + tol) * low:
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Of the line of least squares through the logarithms."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def number(value: float | None) -> str:
    """Three digits; a dash for what there is not."""
    if value is None or np.isnan(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def axis_ticks(axis: Any, x: Sequence[float]) -> None:
    """Ticks of logarithmic axes: at the points x, and at 1, 2, 5 times powers of ten where y spans little."""
    axis.minorticks_off()
    axis.set_xticks(list(x), [number(float(value)) for value in x])
    low, high = axis.get_ylim()
    if axis.get_yscale() == "log" and high < 1000 * low:
        digits = (1, 2, 5) if high < 100 * low else (1,)
        exponents = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
        ticks = [m * 10.0**e for e in exponents for m in digits if low <= m * 10.0**e <= high]
        axis.set_yticks(ticks, [number(tick) for tick in ticks])
