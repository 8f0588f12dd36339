"""Two components more than there are: whether every verdict is right, every number finite, and nothing missed."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

import npmdask
from benchmarks.registry import Context, Measured, Row
from benchmarks.tensor_cases import matched, planted

MORE = 2
RANKS, SIDES = (1, 3, 6), (20, 40)
NOISES = (0.0, 0.01, 0.03)  # standard deviation of an entry i <= j <= k
SPECTRA = {"falling": 3.0, "equal": 1.0}  # the largest weight; the smallest is 1
FAR = 0.4  # distance of unit vectors: beyond it a component was not found
OPTIONS: dict[str, dict[str, Any]] = {"harvest": {}, "a round each": {"harvest": False}}


def measure(context: Context) -> Measured:
    """A grid of sides, ranks, spectra, noises, seeds and both ways of searching."""
    verdicts: dict[str, bool] = {}
    sides, spectra = SIDES[: context.sized(1, 2)], dict(list(SPECTRA.items())[: context.sized(1, 2)])
    for d, k, noise, seed in product(sides, RANKS, NOISES, range(context.sized(1, 3))):
        for spectrum, largest in spectra.items():
            name = f"d {d}, k {k}, {spectrum}, noise {noise:g}, seed {seed}"
            verdicts |= _verdicts(name, d, np.linspace(largest, 1.0, k), noise, seed)
    wrong = [name for name, right in verdicts.items() if not right]
    details = {"asked_beyond": MORE, "cases": len(verdicts), "wrong": wrong}
    share = 1 - len(wrong) / len(verdicts)
    return Measured(share, details, f"wrong: {'; '.join(wrong[:5])}", _zero_tensor())


def _verdicts(name: str, d: int, weights: np.ndarray, noise: float, seed: int) -> dict[str, bool]:
    tensor, vectors = planted(d, weights, noise=noise, seed=seed)
    found = {}
    for way, options in OPTIONS.items():
        solution = npmdask.top_k(tensor, len(weights) + MORE, kind="tensor", options=options, seed=seed)
        found[f"{name}, {way}"] = is_right(solution, vectors)
    return found


def is_right(solution: Any, vectors: np.ndarray) -> bool:
    """All components found and said to be so, exactly MORE surplus, everything finite."""
    status = solution.facts["status"]
    kept = [number for number, word in enumerate(status) if word == "found"]
    finite = all(np.isfinite(a).all() for a in (solution.basis, solution.values, solution.residual_norms))
    counted = status.count("surplus") == MORE and len(kept) == vectors.shape[1]
    return bool(finite and counted and matched(solution.basis[:, kept], vectors).max() < FAR)


def _zero_tensor() -> tuple[str, ...]:
    solution = npmdask.top_k(np.zeros((12, 12, 12)), MORE, kind="tensor")
    fine = np.isfinite(solution.basis).all() and not solution.values.any()
    return () if fine and set(solution.facts["status"]) == {"surplus"} else ("a tensor of zeros has components",)


ROWS = (
    Row(
        name="tensor-surplus",
        what="share of right verdicts with k two too large: all found, exactly two called surplus",
        target=1.0,
        run=measure,
    ),
)
