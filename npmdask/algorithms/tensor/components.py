"""What a decomposition remembers between products, and what it says of each component at its end."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from npmdask.algorithms.tensor.fit import DOUBLE_EPS, UNRESOLVED, like_noise, noise_score, unbiased
from npmdask.algorithms.tensor.search import Columns
from npmdask.numerics.subspaces import Block

SHARP = 0.05  # a residual that once fell by this in a step: there is no noise to speak of around that fixed point


@dataclass(frozen=True)
class Components:
    """k of them, of which the first have been found.

    Parameters
    ----------
    vectors, products (d x k), weights, norms (k) : v, T(I, v, ...), w, and the residual norm of one and the same v.
    trial : d x k, where they go in the next product.
    sharpest : k, as of :class:`Columns`. landed : columns that ran into each. found_at : the product that found each.
    """

    vectors: Block
    products: Block
    trial: Block
    weights: np.ndarray
    norms: np.ndarray
    sharpest: np.ndarray
    landed: np.ndarray
    found_at: np.ndarray


def no_components(d: int, k: int) -> Components:
    """k places for components in d dimensions."""
    block, entries = np.zeros((d, k)), np.zeros(k)
    return Components(block, block, block, entries, entries, entries + 1, entries, entries)


@dataclass(frozen=True, kw_only=True)
class TensorState:
    """Between two products: columns on their way (W), and m = ``count`` of k components.

    Parameters
    ----------
    stage : "search" for components, or "joint": all that there are, together.
    iteration : products since a component was last found, or since the joint stage began.
    lost : columns that went nowhere. let_go : components that turned out to be none.
    norm, left : of T, and of T without the components. scale : the largest ||T(I, u, ...)|| so far.
    margin : over what noise would give, that a component must have; 0: all that rounding does not give count.
    """

    step: int
    stage: str
    count: int
    iteration: int
    columns: Columns
    components: Components
    lost: int
    let_go: int
    norm: float
    left: float
    scale: float
    margin: float
    finished: bool

    @property
    def d(self) -> int:
        return len(self.columns.block)

    @property
    def ritz_vectors(self) -> Block:
        return self.components.vectors


def with_scale(state: TensorState, released: Block) -> TensorState:
    """One step on, with the size of its products."""
    largest = float(np.linalg.norm(released, axis=0).max(initial=0.0))
    return replace(state, step=state.step + 1, scale=max(state.scale, largest))


def rounding(d: int, scale: float) -> float:
    """Residuals and scores below this are rounding of products as large as ``scale``."""
    return 64 * DOUBLE_EPS * d**0.5 * scale


def converged(state: TensorState, tol: float) -> np.ndarray:
    """Which of the k components have a residual within ``tol`` of their weight, or of rounding."""
    floor = rounding(state.d, state.scale)
    near: np.ndarray = state.components.norms <= np.maximum(tol * np.abs(state.components.weights), floor)
    return near


def errors_of(state: TensorState, norms: np.ndarray) -> float:
    """The score that errors of components with residuals ``norms`` can pretend to have, and rounding.

    An error e of a component w v leaves 3 w sym(v v e), whose largest score is 2 / sqrt(3) times w |e|.
    """
    return max(3 * float(norms.max(initial=0.0)), rounding(state.d, state.scale))


def statuses(state: TensorState, tol: float, order: int) -> list[str]:
    """Of each component: "found"; "surplus": a search to the end does not find it, or its weight is one that noise
    alone would give, or what is left of larger components; or "open", as all that are not found while the search goes
    on.
    """
    m, d, parts = state.count, state.d, state.components
    near, sizes, noise = converged(state, tol), np.abs(parts.weights), np.zeros(len(parts.weights), dtype=bool)
    blunt = np.flatnonzero((parts.sharpest > SHARP) | (np.arange(len(sizes)) >= m))
    noise[blunt] = like_noise(sizes[blunt], unbiased(state.left, m, d, order), d, order, state.margin)
    near[m:] = False
    surplus = noise | (sizes <= rounding(d, state.scale)) | (sizes <= _left_behind(sizes, parts.norms, near))
    surplus[m:] |= sizes[m:] <= errors_of(state, parts.norms[:m])
    surplus[m:] &= state.stage != "search"
    return ["surplus" if s else "found" if n else "open" for s, n in zip(surplus, near, strict=True)]


def _left_behind(sizes: np.ndarray, norms: np.ndarray, near: np.ndarray) -> np.ndarray:
    """(k) What the larger components, found as well as tol asks, leave of themselves: a weight of that size is theirs.

    Taken off with the residual r a component leaves ``v v r`` in its three orders, 1.16 |r| as T(u, u, u) at most, and
    residuals are those of a product later, which are smaller: seen were 3.3 times the root of their sum of squares.
    """
    larger = sizes[None, :] > sizes[:, None]
    left: np.ndarray = 4 * (larger * np.where(near, norms, 0.0)).sum(axis=1)
    return left


def settled(state: TensorState, tol: float, order: int) -> bool:
    """At the end, and no component is open."""
    return state.finished and "open" not in statuses(state, tol, order)


def said_of(state: TensorState, tol: float, order: int, *, measured: bool = True) -> str:
    """The end in a sentence; nothing before. ``measured``: ||T|| is known, not estimated."""
    if not state.finished:
        return ""
    status = statuses(state, tol, order)
    found, surplus, open_ = (status.count(word) for word in ("found", "surplus", "open"))
    relative = [
        float(norm / abs(value)) if value else 0.0
        for norm, value, word in zip(state.components.norms, state.components.weights, status, strict=True)
        if word != "surplus"
    ]
    worst, rest = max(relative, default=0.0), _rest(state, measured=measured)
    if open_ and worst <= tol:
        return (
            f"not converged: {open_} of {len(status)} components came out of what the others leave only after the "
            f"search, and were not improved together with them, in {state.step} products; {rest}; use more restarts, "
            "or ask for fewer components"
        )
    if open_:
        return (
            f"not converged: {open_} of {len(status)} components are no fixed points after {state.step} products, "
            f"worst relative residual {worst:.1e} (tol {tol:.1e}); {rest}; use more restarts, or leave iterations out, "
            "or a larger tol"
        )
    said = f"found {found} of {len(status)} components after {state.step} products"
    if not state.norm:
        return f"{said}: the tensor is zero"
    if not found:
        return f"{said}: {rest}, and none can be seen above noise as large as what is left{_perhaps(status)}"
    said += f": every relative residual is at most {worst:.1e} (tol {tol:.1e}); {rest}"
    if surplus and not _resolved(state):
        said += f"; the other {surplus} asked for are surplus: their weights are rounding"
    elif surplus:
        level = _noise_of(state, order)
        said += f"; the other {surplus} asked for are surplus: their weights are what noise as large as what is left "
        said += f"would give alone (up to {level:.2g}), or rounding{_perhaps(status)}"
    return said


def _resolved(state: TensorState) -> bool:
    """Whether what is left is more than rounding of the difference of squares that it comes from."""
    return state.left > UNRESOLVED**0.5 * state.norm


def _rest(state: TensorState, *, measured: bool) -> str:
    """What the components do not explain: part of the answer, as a surplus is one beside noise of that size only."""
    if not _resolved(state):
        return "nothing but rounding is left of the tensor"
    if not state.count:
        return "all of the tensor is left unexplained"
    who = "the one fitted leaves" if state.count == 1 else f"the {state.count} fitted together leave"
    share = f"{100 * min(state.left / state.norm, 1.0):.3g} % of the tensor's norm unexplained"
    return f"{who} {share}" if measured else f"{who} about {share} (estimated from products with random columns)"


def _perhaps(status: list[str]) -> str:
    """What else it may be: a norm does not tell noise from components that hide each other."""
    them = "those found" if "found" in status else "each other"
    return (
        f"; but what is left need not be noise: components far from orthogonal to {them} look the same (whiten first)"
    )


def _noise_of(state: TensorState, order: int) -> float:
    """The largest weight in noise that leaves as much as is left."""
    return noise_score(unbiased(state.left, state.count, state.d, order), state.d, order)


def sorted_by_weight(state: TensorState, tol: float, order: int) -> np.ndarray:
    """Numbers of the components by falling |weight|, surplus ones last."""
    surplus = np.array([word == "surplus" for word in statuses(state, tol, order)])
    return np.lexsort((-np.abs(state.components.weights), surplus))


def facts_of(state: TensorState, numbers: np.ndarray, tol: float, order: int) -> dict[str, Any]:
    """What is known besides the components, in their order: plain numbers and strings."""
    status = statuses(state, tol, order)
    known = state.norm > 0
    return {
        "status": [status[number] for number in numbers],
        "relative_residual": state.left / state.norm if known else 0.0,
        "noise_score": _noise_of(state, order),
        "rounds": state.count,
        "products": state.step,
        "landed": state.components.landed[numbers].astype(int).tolist(),
        "found_at": state.components.found_at[numbers].astype(int).tolist(),
        "lost": state.lost,
        "let_go": state.let_go,
        "signs": [int(sign) for sign in np.sign(state.components.weights[numbers])],
    }
