"""Rows that chose no method: nineteen families with random parameters, and what else float32 could trip over.

They were drawn to hold out: thresholds of block Krylov in float32 were not chosen on them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Rows = Callable[[np.random.Generator, int, int, int], np.ndarray]


def turned(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Rows times three random Householder reflections: no eigenvector lies along the axes."""
    for _ in range(3):
        u = rng.standard_normal(x.shape[1])
        u /= np.linalg.norm(u)
        x = x - np.outer(x @ u, 2 * u)
    return x


def of_spectrum(values: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """Rows whose covariance has these eigenvalues; half of the time in the sample itself."""
    x = rng.standard_normal((n, len(values)))
    if rng.random() < 0.5:
        x = x @ np.linalg.inv(np.linalg.cholesky(x.T @ x / n)).T
    return turned(x * np.sqrt(values), rng)


def decay(d: int, rng: np.random.Generator, low: float = 0.2, high: float = 1.5) -> np.ndarray:
    return np.arange(1, d + 1) ** -rng.uniform(low, high)


def power_law(rng: np.random.Generator, n: int, d: int, k: int) -> np.ndarray:
    return of_spectrum(decay(d, rng, 0.1, 2), n, rng)


def exponential(rng: np.random.Generator, n: int, d: int, k: int) -> np.ndarray:
    """Values far below the largest: what float32 is furthest off in."""
    rate = 10 ** (-rng.uniform(0.1, 6) / max(k, 10))
    return of_spectrum(np.maximum(rate ** np.arange(d), 10 ** -rng.uniform(2, 10)), n, rng)


def steps(rng: np.random.Generator, n: int, d: int, k: int) -> np.ndarray:
    values, at, level = np.empty(d), 0, 1.0
    while at < d:
        width = int(np.ceil(np.exp(rng.uniform(0, np.log(d / 2)))))
        values[at : at + width] = level
        level *= 10 ** -rng.uniform(0.02, 0.7)
        at += width
    return of_spectrum(np.maximum(values, 1e-6), n, rng)


def cluster(rng: np.random.Generator, n: int, d: int, k: int) -> np.ndarray:
    size, width = int(rng.integers(2, 2 * k + 3)), 10 ** -rng.uniform(1, 8)
    first = max(0, k - int(rng.integers(1, size + 1)))
    above = np.sort(10 ** rng.uniform(0.05, 1.5, first))[::-1]
    below = rng.uniform(0.3, 0.97) * decay(max(d - first - size, 0), rng)
    return of_spectrum(np.concatenate([above, 1 - width * np.sort(rng.random(size)), below])[:d], n, rng)


def two_levels(rng: np.random.Generator, n: int, d: int, k: int) -> np.ndarray:
    many = max(1, int(rng.choice([k, k - 1, k + 3, 2 * k])))
    return of_spectrum(np.where(np.arange(d) < many, 1.0, rng.uniform(0.1, 0.97)), n, rng)


def spikes(rng: np.random.Generator, n: int, d: int, k: int) -> np.ndarray:
    """A bulk of Marchenko and Pastur, and spikes from below its edge to thirty times it."""
    many = int(rng.integers(1, 2 * k + 2))
    values = np.concatenate([1 + np.sqrt(d / n) * 10 ** rng.uniform(-0.2, 1.5, many), np.ones(d)])[:d]
    return of_spectrum(values, n, rng)


def heavy_tails(rng: np.random.Generator, n: int, d: int, k: int) -> np.ndarray:
    if rng.random() < 0.5:
        return of_spectrum(decay(d, rng), n, rng) / np.sqrt(rng.chisquare(3, (n, 1)) / 3)
    return turned(rng.standard_t(3, (n, d)) * np.sqrt(decay(d, rng)), rng)


def word_counts(rng: np.random.Generator, n: int, d: int, k: int) -> np.ndarray:
    topics, zipf = int(rng.integers(5, 41)), np.arange(1, d + 1) ** -rng.uniform(0.8, 1.3)
    words = zipf * rng.gamma(0.3, size=(topics, d)) + 0.1 * zipf
    share = rng.dirichlet(np.full(topics, 0.2), n) @ (words / words.sum(axis=1, keepdims=True))
    return rng.poisson(np.exp(rng.normal(4, 1, n))[:, None] * share).astype(float)


def drifting(rng: np.random.Generator, n: int, d: int, k: int) -> np.ndarray:
    x = of_spectrum(decay(d, rng), n, rng)
    for i in range(1, n):
        x[i] = 0.14 * x[i] + 0.99 * x[i - 1]
    return x


def sorted_classes(rng: np.random.Generator, n: int, d: int, k: int) -> np.ndarray:
    x = rng.standard_normal((n, d)) * np.sqrt(decay(d, rng))
    for part in np.array_split(np.arange(n), int(rng.integers(5, 30))):
        x[part] *= np.exp(0.7 * rng.standard_normal(d))
        x[part] += rng.standard_normal(d) * rng.uniform(0, 0.3)
    return turned(x, rng)


def heavy_rows(rng: np.random.Generator, n: int, d: int, k: int) -> np.ndarray:
    """A few rows alone carry one of the leading eigenvectors, or the one just after them."""
    values = decay(d, rng)
    x = rng.standard_normal((n, d)) * np.sqrt(values)
    few = rng.choice(n, int(rng.integers(1, 21)), replace=False)
    strength = values[0] * rng.uniform(0.5, 3) if rng.random() < 0.5 else values[k - 1] * rng.uniform(1.02, 3)
    x[:, -1], x[few] = 0, 0
    x[few, -1] = np.sqrt(strength * n / len(few))
    return turned(x, rng)


def column_groups(rng: np.random.Generator, n: int, d: int, k: int) -> np.ndarray:
    """Groups of columns that only their own run of rows uses."""
    x, groups = np.zeros((n, d)), int(rng.integers(4, 12))
    cuts = np.cumsum(rng.dirichlet(np.full(groups, 0.7)) * n).astype(int)[:-1]
    for rows, columns in zip(np.split(np.arange(n), cuts), np.array_split(np.arange(d), groups), strict=True):
        part = rng.standard_normal((len(rows), len(columns))) * np.sqrt(decay(len(columns), rng))
        x[np.ix_(rows, columns)] = part * 10 ** rng.uniform(-0.5, 0.5)
    return x + 0.01 * rng.standard_normal((n, d))


def duplicates(rng: np.random.Generator, n: int, d: int, k: int) -> np.ndarray:
    """Copies of columns, to 1 to 9 digits: values that fall by as many decades."""
    base = min(d, max(2 * k, d // int(rng.integers(2, 9))))
    x = of_spectrum(decay(base, rng, 0.1, 1), n, rng)[:, rng.integers(0, base, d)]
    return x + 10 ** -rng.uniform(1, 9) * rng.standard_normal((n, d)) * x.std()


def column_scales(rng: np.random.Generator, n: int, d: int, k: int) -> np.ndarray:
    return of_spectrum(decay(d, rng, 0.1, 1), n, rng) * 10 ** (rng.uniform(1, 3) * rng.standard_normal(d))


def offset(rng: np.random.Generator, n: int, d: int, k: int) -> np.ndarray:
    """Means of up to a million deviations."""
    return of_spectrum(decay(d, rng), n, rng) + 10 ** rng.uniform(0, 6) * rng.standard_normal(d)


def common_mean(rng: np.random.Generator, n: int, d: int, k: int) -> np.ndarray:
    return of_spectrum(decay(d, rng), n, rng) + 10 ** rng.uniform(0, 2) * rng.standard_normal(d) / np.sqrt(d)


def curves(rng: np.random.Generator, n: int, d: int, k: int) -> np.ndarray:
    """Bumps of random place and width on a grid, and a little noise."""
    width = np.exp(rng.normal(-2.5, 0.5, (n, 1)))
    x = np.exp(-(((np.linspace(0, 1, d) - rng.random((n, 1))) / width) ** 2))
    return x + 10 ** -rng.uniform(1, 5) * rng.standard_normal((n, d))


def categories(rng: np.random.Generator, n: int, d: int, k: int) -> np.ndarray:
    """One-hot columns of several variables with rare levels."""
    x, at = np.zeros((n, d)), 0
    while at < d:
        levels = min(d - at, int(np.exp(rng.uniform(np.log(2), np.log(d)))))
        chance = np.arange(1, levels + 1) ** -rng.uniform(0.5, 2)
        x[np.arange(n), at + rng.choice(levels, n, p=chance / chance.sum())] = 1
        at += levels
    return x


def everything(rng: np.random.Generator, n: int, d: int, k: int) -> np.ndarray:
    """Rows that drift, with scales that jump between runs of them, and scales of columns."""
    x = drifting(rng, n, d, k) * np.repeat(np.exp(rng.standard_normal(n // 50 + 1)), 50)[:n, None]
    return x * 10 ** (0.5 * rng.standard_normal(d))


FAMILIES: tuple[Rows, ...] = (
    power_law,
    exponential,
    steps,
    cluster,
    two_levels,
    spikes,
    heavy_tails,
    word_counts,
    drifting,
    sorted_classes,
    heavy_rows,
    column_groups,
    duplicates,
    column_scales,
    offset,
    common_mean,
    curves,
    categories,
    everything,
)
