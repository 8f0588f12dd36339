"""The projection of MSG's step onto {0 <= P <= I, tr P = k} or {tr P <= k}, beside an exact solver.

The solver tries every face of the capped simplex in exact arithmetic on the eigenvalues of the d x d matrix to be
projected: the nearest of the feasible projections onto the faces is the answer, whatever the ties. That a matrix is
projected by its eigenvalues is not taken on trust: every answer X must be feasible and satisfy the variational
inequality <M - X, Z - X> <= 0 for all feasible Z, whose worst Z is known (Ky Fan: the leading eigenvectors of M - X).
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np

from benchmarks.registry import Context, Measured, Row
from npmdask.core.numerics.random import generator
from npmdask.streaming.algorithms.msg import RMSG

CHAINS, STEPS, LARGEST = 150, 4, 5  # matrices of at most 5 x 5 have 243 faces
WORST_GAP = 1e-12
KINDS = ("random rows", "ties", "all equal", "one row", "large")


def batches(kind: str, d: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Rows whose second moments, added to one another, have the eigenvalues that the kind says."""
    basis = np.linalg.qr(rng.standard_normal((d, d)))[0]
    for _ in range(STEPS):
        n = int(rng.integers(1, 2 * d))
        if kind == "ties":  # multiples of 1/4 along one basis: many sums are equal, and equal to corners
            yield np.sqrt(d * rng.integers(0, 5, d) / 4)[:, None] * basis.T
        elif kind == "all equal":
            yield np.sqrt(d * rng.integers(1, 9) / 8) * basis.T
        elif kind == "one row":
            yield rng.standard_normal((1, d))
        else:
            yield rng.standard_normal((n, d)) * (100.0 if kind == "large" else 1.0)


def nearest(mu: np.ndarray, total: int, exactly: bool) -> np.ndarray:
    """The point of {0 <= s <= 1, sum s = total (or <=)} nearest to ``mu``: the best of all faces, in fractions."""
    points = [Fraction(float(value)) for value in mu]
    best: tuple[Fraction, list[Fraction]] | None = None
    for face in product((0, 1, None), repeat=len(points)):
        free = [i for i, level in enumerate(face) if level is None]
        ones = sum(level or 0 for level in face)
        spread = total - ones - sum((points[i] for i in free), Fraction(0))
        shifts = [spread / len(free) if free else Fraction(0)] + ([] if exactly else [Fraction(0)])
        for shift in shifts:
            point = [points[i] + shift if level is None else Fraction(level) for i, level in enumerate(face)]
            whole = sum(point)
            if not (whole == total or (not exactly and whole < total)) or not all(0 <= s <= 1 for s in point):
                continue
            distance = sum(((s - p) ** 2 for s, p in zip(point, points, strict=True)), Fraction(0))
            if best is None or distance < best[0]:
                best = distance, point
    if best is None:
        raise ValueError(f"no point of {len(points)} entries has the sum {total}")
    return np.array([float(s) for s in best[1]])


def inequality_gap(m: np.ndarray, x: np.ndarray, k: int, exactly: bool) -> float:
    """max <M - X, Z - X> over all feasible Z, relative; and how far X is from feasible. 0 at the projection only."""
    slopes = np.linalg.eigvalsh(m - x)[::-1][:k]
    best = (slopes if exactly else np.maximum(slopes, 0)).sum()
    values = np.linalg.eigvalsh(x)
    over = np.trace(x) - k
    outside = max(-values[0], values[-1] - 1, abs(over) if exactly else over)
    return float(max((best - np.sum((m - x) * x)) / max(1.0, np.linalg.norm(m)), outside))


def whole(state: Any) -> np.ndarray:
    """P_t as a d x d matrix."""
    u = state.vectors
    return np.asarray(u * state.weights @ u.T + state.level * (np.eye(len(u)) - u @ u.T))


def chain(kind: str, exactly: bool, rng: np.random.Generator) -> tuple[float, float]:
    """The largest error of a few steps of one stream, and the largest gap of the solver's answers."""
    d = int(rng.integers(2, LARGEST + 1))
    k, eta0 = int(rng.integers(1, d + 1)), float(rng.choice([0.25, 0.5, 1.0]))
    ridge = float(rng.choice([0.0, 0.5]))
    method = RMSG(target_rank=k, ridge=ridge, eta0=eta0, trace="exactly" if exactly else "at_most")
    state, error, gap = method.init(d, rng=generator(0, "start")), 0.0, 0.0
    for t, rows in enumerate(batches(kind, d, rng), start=1):
        eta = method.step_size(t)
        m = (1 - eta * ridge) * whole(state) + eta * rows.T @ rows / len(rows)
        values, vectors = np.linalg.eigh(m)
        exact = vectors * nearest(values, k, exactly) @ vectors.T
        state, _ = method.update(state, rows)
        error = max(error, float(np.abs(whole(state) - exact).max()))
        gap = max(gap, inequality_gap(m, exact, k, exactly))
    return error, gap


def measure(context: Context) -> Measured:
    """The largest entry of the difference over all kinds, both sets, with and without a ridge."""
    rng = np.random.default_rng(0)
    count = context.sized(10, CHAINS) // len(KINDS)
    found = {
        f"{kind}, trace {'=' if exactly else '<='} k": [chain(kind, exactly, rng) for _ in range(count)]
        for kind in KINDS
        for exactly in (False, True)
    }
    gap = max(gap for chains in found.values() for _, gap in chains)
    failures = (f"the solver's own answer fails the variational inequality by {gap:.1e}",) if gap > WORST_GAP else ()
    details = {
        "matrices": len(found) * count * STEPS,
        "largest_error": {case: max(error for error, _ in chains) for case, chains in found.items()},
        "largest_gap": gap,
    }
    return Measured(max(details["largest_error"].values()), details, "", failures)


ROWS = (
    Row(
        name="stream-projection",
        what="largest difference of the projected step of msg and rmsg from an exact solver",
        target=1e-9,
        better="lower",
        run=measure,
    ),
)
