"""What a decomposition remembers between products, and what it says of each component at its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from npmdask.algorithms._tensor_fit import DOUBLE_EPS, MARGIN, noise_score
from npmdask.linalg import Block

SHARP = 0.05  # a residual that once fell by this in a step: there is no noise to speak of around that fixed point


@dataclass(frozen=True, kw_only=True)
class TensorState:
    """Between two products: W columns on their way, and m = ``count`` of k components.

    Parameters
    ----------
    stage : "search" for components, or "joint": all that there are, together.
    iteration : products since a component was last found, or since the joint stage began.
    columns (d x W), ages, least, least_ages, shifts (W) : see _tensor_search.Columns.
    trial : d x k, the components for the next product; the spare ones of the joint stage behind the first m.
    ritz_vectors, products (d x k), ritz_values, residual_norms (k) : v, T(I, v, ...), w, ||rest|| of one and the same v.
    landed (k) : columns that ran into each component; found_at (k) : number of the product that found it.
    contraction (k) : the least ratio of two residuals one after the other.
    lost : columns that went nowhere. norm, left : of T and of T without the components. scale : largest ||product||.
    """

    step: int
    stage: str
    count: int
    iteration: int
    columns: Block
    ages: np.ndarray
    least: np.ndarray
    least_ages: np.ndarray
    shifts: np.ndarray
    trial: Block
    ritz_vectors: Block
    ritz_values: np.ndarray
    products: Block
    residual_norms: np.ndarray
    landed: np.ndarray
    found_at: np.ndarray
    contraction: np.ndarray
    lost: int
    norm: float
    left: float
    scale: float
    finished: bool


def rounding(d: int, scale: float) -> float:
    """Residuals and scores below this are rounding of products as large as ``scale``."""
    return 64 * DOUBLE_EPS * d**0.5 * scale


def converged(state: TensorState, tol: float) -> np.ndarray:
    """Which of the k components have a residual within ``tol`` of their weight, or of rounding."""
    floor = rounding(len(state.columns), state.scale)
    near: np.ndarray = state.residual_norms <= np.maximum(tol * np.abs(state.ritz_values), floor)
    return near


def statuses(state: TensorState, tol: float, order: int) -> list[str]:
    """Of each component: "found", "surplus" (never found, or a weight that noise alone would give), or "open"."""
    d, near = len(state.columns), converged(state, tol)
    sizes, floor = np.abs(state.ritz_values), rounding(d, state.scale)
    noise = max(MARGIN * noise_score(state.left, d, order), floor)
    surplus = (np.arange(len(sizes)) >= state.count) | ((sizes <= noise) & (state.contraction > SHARP))
    surplus |= sizes <= floor
    return ["surplus" if s else "found" if n else "open" for s, n in zip(surplus, near, strict=True)]


def settled(state: TensorState, tol: float, order: int) -> bool:
    """At the end, and no component is open."""
    return state.finished and "open" not in statuses(state, tol, order)


def said_of(state: TensorState, tol: float, order: int) -> str:
    """The end in a sentence; nothing before."""
    if not state.finished:
        return ""
    status = statuses(state, tol, order)
    found, surplus, open_ = (status.count(word) for word in ("found", "surplus", "open"))
    relative = [
        float(norm / abs(value)) if value else 0.0
        for norm, value, word in zip(state.residual_norms, state.ritz_values, status, strict=True)
        if word != "surplus"
    ]
    worst = max(relative, default=0.0)
    if open_:
        return (
            f"not converged: {open_} of {len(status)} components are no fixed points after {state.step} products, "
            f"worst relative residual {worst:.1e} (tol {tol:.1e}); use more restarts, or leave iterations out, or a "
            "larger tol"
        )
    said = f"found {found} of {len(status)} components after {state.step} products"
    if found:
        said += f": every relative residual is at most {worst:.1e} (tol {tol:.1e})"
    if surplus:
        said += (
            f"; the other {surplus} asked for are surplus: " if found else ": the tensor is zero, or has none that "
        ) + ("their weights are what noise alone would give, or rounding" if found else "stands out from noise")
    return said


def sorted_by_weight(state: TensorState, tol: float, order: int) -> np.ndarray:
    """Numbers of the components by falling |weight|, surplus ones last."""
    surplus = np.array([word == "surplus" for word in statuses(state, tol, order)])
    return np.lexsort((-np.abs(state.ritz_values), surplus))


def facts_of(state: TensorState, numbers: np.ndarray, tol: float, order: int) -> dict[str, Any]:
    """What is known besides the components, in their order: plain numbers and strings."""
    status = statuses(state, tol, order)
    known = state.norm > 0
    return {
        "status": [status[number] for number in numbers],
        "relative_residual": state.left / state.norm if known else 0.0,
        "noise_score": noise_score(state.left, len(state.columns), order),
        "rounds": state.count,
        "products": state.step,
        "landed": state.landed[numbers].astype(int).tolist(),
        "found_at": state.found_at[numbers].astype(int).tolist(),
        "lost": state.lost,
        "signs": [int(sign) for sign in np.sign(state.ritz_values[numbers])],
    }
