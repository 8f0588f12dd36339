"""Turn components: to simple structure, or onto those of an earlier run. No pass over the data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from npmdask.core.numerics.subspaces import Block, fix_signs
from npmdask.core.runs.columns import places_among
from npmdask.core.runs.components import StoredComponents, TurnedComponents, variances_of_run
from npmdask.core.runs.solution import Solution
from npmdask.errors import BadInputError, require
from npmdask.rotations.rotations import procrustes, promax, varimax

SIMPLE_STRUCTURE = ("varimax", "promax")
NO_VARIANCE = 1e-14  # of the largest: what is below is rounding, and scores of it are noise blown up


def rotated(solution: Solution, method: str, k: int | None, power: float, normalize: bool) -> TurnedComponents:
    """The leading k components of a run after varimax or promax, the largest variance first, signs fixed."""
    require(method in SIMPLE_STRUCTURE, f"there is no rotation {method!r}: take one of {', '.join(SIMPLE_STRUCTURE)}")
    found, variances = variances_of_run(solution)
    k = len(variances) if k is None else k
    turn = simple_structure(found.basis, variances, k, power if method == "promax" else 1.0, normalize)
    roots = np.sqrt(variances[:k])
    loadings = found.basis[:, :k] * roots
    pattern, correlations = loadings @ turn, np.linalg.inv(turn.T @ turn)
    explained = (pattern * (pattern @ correlations)).sum(axis=0)
    order = np.argsort(-explained, kind="stable")
    signs = fix_signs(pattern)[order]
    turn, pattern = turn[:, order] * signs, pattern[:, order] * signs
    lengths = np.linalg.norm(pattern, axis=0)
    weights = (found.weights[:, :k] / roots) @ np.linalg.inv(turn).T * lengths
    return TurnedComponents(
        basis=pattern / lengths,
        variances=explained[order],
        rotation=turn,
        correlations=correlations[np.ix_(order, order)] * np.outer(signs, signs),
        components=_rotated_components(found, weights),
    )


def simple_structure(basis: Block, variances: np.ndarray, k: Any, power: float, normalize: bool) -> np.ndarray:
    """Return what the leading k loadings are turned by: varimax, or with a power above 1 promax.

    Raises
    ------
    BadInputError
        More than there are, or fewer that vary.
    """
    most = len(variances)
    if not isinstance(k, int | np.integer) or not 1 <= k <= most:
        raise BadInputError(f"k = {k} components cannot be rotated, because the run has {most}: take 1 to {most}")
    usable = int((variances[:k] > NO_VARIANCE * variances[0]).sum())
    if usable < k:
        raise BadInputError(
            f"only {usable} of {k} components have any variance, and a direction without variance cannot be rotated: "
            + (f"give k={usable}" if usable else "nothing varies in these data")
        )
    loadings = basis[:, :k] * np.sqrt(variances[:k])
    return varimax(loadings, normalize=normalize) if power == 1 else promax(loadings, power=power, normalize=normalize)


def aligned(solution: Solution, to: Any, rotate: bool) -> TurnedComponents:
    """The components of a run in the order and with the signs of an earlier one; or turned onto those."""
    found, variances = variances_of_run(solution)
    if isinstance(to, str | Path):
        raise BadInputError(f"{str(to)!r} is a name: give the solution itself, as npmdask.resume({str(to)!r})")
    k, earlier = found.k, _earlier_components(found, to)
    if rotate and earlier.shape[1] != k:
        raise BadInputError(
            f"{k} components are not rotated onto {earlier.shape[1]}: give as many of each, or leave rotate out"
        )
    if rotate:
        order, turn = None, procrustes(found.basis, earlier)
        basis = found.basis @ turn
        compared = {
            "similarity": np.einsum("ij,ij->j", basis, earlier),
            "earlier": np.arange(k),
            "inside": _shares_inside(basis, earlier),
        }
    else:
        order, signs, compared = _matched(found.basis, earlier)
        turn = np.eye(k)[:, order] * signs
        basis = found.basis @ turn
    covariance = turn.T @ (variances[:, None] * turn)
    spread = np.sqrt(np.maximum(np.diagonal(covariance), np.finfo(float).tiny))
    return TurnedComponents(
        basis=basis,
        variances=np.diagonal(covariance).copy(),
        rotation=turn,
        correlations=covariance / np.outer(spread, spread) if rotate else np.eye(k),
        order=order,
        components=_rotated_components(found, found.weights @ turn),
        **compared,
    )


def aligned_again(turned: TurnedComponents, to: Any) -> TurnedComponents:
    """Components that were turned before, in the order and with the signs of earlier ones, turned alike."""
    earlier = _earlier_components(turned.components, to)
    order, signs, compared = _matched(turned.basis, earlier)
    return replace(
        turned,
        basis=turned.basis[:, order] * signs,
        variances=turned.variances[order],
        rotation=turned.rotation[:, order] * signs,
        correlations=turned.correlations[np.ix_(order, order)] * np.outer(signs, signs),
        order=None if turned.order is None else turned.order[order],
        components=_rotated_components(turned.components, turned.components.weights[:, order] * signs),
        **compared,
    )


def _earlier_components(mine: StoredComponents, to: Any) -> Block:
    """Earlier components as columns of length 1, their rows in the order of ``mine``."""
    held = np.asarray(getattr(to, "basis", to))
    if held.dtype.kind == "c":
        raise BadInputError("the earlier components are complex, and these are real: give components of the same data")
    earlier = np.asarray(held, dtype=np.float64)
    if earlier.ndim != 2 or len(earlier) != mine.d or not np.isfinite(earlier).all():
        raise BadInputError(
            f"components of shape {earlier.shape} are no earlier answer about these {mine.d} columns: give a solution "
            "or its basis, columns x components, of the same columns in the same order"
        )
    lengths = np.linalg.norm(earlier, axis=0)
    require((lengths > 0).all(), "an earlier component is zero, and nothing is like it: leave it out")
    theirs = getattr(getattr(to, "analysed", to), "components", None)
    return (earlier if theirs is None else earlier[places_among(mine, theirs)]) / lengths


def _matched(basis: Block, earlier: Block) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """The order and the signs in which cosines with the earlier components have the largest sum; and what they are."""
    from scipy.optimize import linear_sum_assignment  # it takes a tenth of a second to import

    k = basis.shape[1]
    overlap = basis.T @ earlier
    mine, theirs = linear_sum_assignment(np.abs(overlap), maximize=True)
    mine, theirs = mine[np.argsort(theirs)], np.sort(theirs)
    order = np.concatenate([mine, np.setdiff1d(np.arange(k), mine)])
    signs, cosines, numbers = np.ones(k), np.full(k, np.nan), np.full(k, -1)
    signs[: len(mine)] = np.where(overlap[mine, theirs] < 0, -1.0, 1.0)
    cosines[: len(mine)], numbers[: len(mine)] = np.abs(overlap[mine, theirs]), theirs
    compared = {"similarity": cosines, "earlier": numbers, "inside": _shares_inside(basis[:, order], earlier)}
    return order, signs, compared


def _shares_inside(basis: Block, earlier: Block) -> np.ndarray:
    """Compute the share of each column's square in the span of ``earlier``, whose columns may be dependent."""
    axes, sizes, _ = np.linalg.svd(earlier, full_matrices=False)
    axes = axes[:, sizes > sizes[0] * len(earlier) * np.finfo(float).eps]
    outside = basis - axes @ (axes.T @ basis)
    return np.clip(1.0 - np.square(outside).sum(axis=0), 0.0, 1.0)


def _rotated_components(found: StoredComponents, weights: Block) -> StoredComponents:
    """Return the matrix that centred rows are multiplied by (d x k); rows and their gaps are read as in the run."""
    return replace(found, basis=weights, scale=None, column_weight=None)
