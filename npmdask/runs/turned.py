"""Components of a finished run, turned: to simple structure, or onto those of an earlier run. No pass over the data."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from npmdask.errors import BadInputError
from npmdask.numerics.rotations import procrustes, promax, varimax
from npmdask.numerics.subspaces import Block, fix_signs
from npmdask.runs.components import StoredComponents

if TYPE_CHECKING:
    from npmdask.runs.solution import Solution

METHODS = ("varimax", "promax")
NO_VARIANCE = 1e-14  # of the largest: what is below is rounding, and scores of it are noise blown up


@dataclass(frozen=True, kw_only=True)
class TurnedComponents:
    """
    Hold components that were rotated, or aligned with an earlier run, and what rows score along them.

    Rows less their mean are ``scores @ basis.T``, as far as the k components of the run reach.

    Attributes
    ----------
    basis : numpy.ndarray, shape (d, k)
        Columns of length 1. After varimax and promax they are not orthogonal.
    variances : numpy.ndarray, shape (k,)
        Variance of each (n - 1 in the denominator; of a run that was not centred the mean square); their sum is that
        of the components of the run. After promax a component has what it explains alone, and half of what it
        explains together with each other one.
    rotation : numpy.ndarray, shape (k, k)
        Of varimax and promax what loadings (eigenvectors times the roots of their variances) were multiplied by, of an
        alignment what the components were.
    correlations : numpy.ndarray, shape (k, k)
        Of the scores: of principal components and after varimax the identity.
    similarity : numpy.ndarray or None, shape (k,)
        After an alignment: cosines with the components of the earlier run. Not a number where that had fewer.
    order : numpy.ndarray or None, shape (k,)
        After an alignment without a rotation: which component of the run each one is, from 0.
    components : StoredComponents
        Weights and mean, for the scores.

    Examples
    --------
    >>> import numpy as np
    >>> import npmdask
    >>> rng = np.random.default_rng(0)
    >>> simple = np.kron(np.eye(2), np.ones((3, 1)))
    >>> rows = rng.standard_normal((400, 2)) @ simple.T + 0.1 * rng.standard_normal((400, 6))
    >>> turned = npmdask.top_k(rows, 2, kind="samples", center=True).rotated("varimax")
    >>> bool((np.abs(turned.basis) > 0.5).sum(axis=1).max() == 1), turned.scores(rows).shape
    (True, (400, 2))
    """

    basis: Block
    variances: np.ndarray
    rotation: np.ndarray
    correlations: np.ndarray
    similarity: np.ndarray | None = None
    order: np.ndarray | None = None
    components: StoredComponents = field(repr=False)

    def scores(self, source: Any, *, dim: str | int | None = None) -> Block:
        """
        Get the coordinates of rows along these components.

        Parameters
        ----------
        source : array_like, sparse matrix, table, Dask or xarray array, AnnData, zarr.Array, str or Path, shape (n, d)
            Rows, as for :func:`npmdask.top_k`; they are read once, some at a time.
        dim : str or int, optional
            The dimension that rows lie along, of an array of more than two.

        Returns
        -------
        numpy.ndarray, shape (n, k)
            In memory.
        """
        return self.components.all_scores(source, dim)


def rotated(solution: Solution, method: str, k: int | None, power: float, normalize: bool) -> TurnedComponents:
    """The leading k components of a run after varimax or promax, the largest variance first, signs fixed."""
    if method not in METHODS:
        raise BadInputError(f"there is no rotation {method!r}: take one of {', '.join(METHODS)}")
    found, variances = variances_of_run(solution)
    most = len(variances)
    k = most if k is None else k
    if not isinstance(k, int | np.integer) or not 1 <= k <= most:
        raise BadInputError(f"k = {k} components are to be rotated, and the run has {most}: take 1 to {most}")
    basis, variances = found.basis[:, :k], variances[:k]
    usable = int((variances > NO_VARIANCE * variances[0]).sum())
    if usable < k:
        raise BadInputError(
            f"only {usable} of {k} components have any variance, and a direction without is not rotated: "
            + (f"give k={usable}" if usable else "nothing varies in these data")
        )
    roots = np.sqrt(variances)
    loadings = basis * roots
    turn = varimax(loadings, normalize=normalize)
    if method == "promax":
        turn = promax(loadings, power=power, normalize=normalize)
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
        components=_turned(found, weights),
    )


def aligned(solution: Solution, to: Any, rotate: bool) -> TurnedComponents:
    """The components of a run in the order and with the signs of an earlier one; or turned onto those."""
    from scipy.optimize import linear_sum_assignment  # it takes a tenth of a second to import

    found, variances = variances_of_run(solution)
    if isinstance(to, str | Path):
        raise BadInputError(f"{str(to)!r} is a name: give the solution itself, as npmdask.resume({str(to)!r})")
    earlier = np.asarray(getattr(to, "basis", to), dtype=np.float64)
    d, k = found.basis.shape
    if earlier.ndim != 2 or len(earlier) != d or not np.isfinite(earlier).all():
        raise BadInputError(
            f"components of shape {earlier.shape} are no earlier answer about these {d} columns: give a solution or "
            "its basis, columns x components, of the same columns in the same order"
        )
    lengths = np.linalg.norm(earlier, axis=0)
    if not (lengths > 0).all():
        raise BadInputError("an earlier component is zero, and nothing is like it: leave it out")
    earlier = earlier / lengths
    if rotate and earlier.shape[1] != k:
        raise BadInputError(
            f"{k} components are not rotated onto {earlier.shape[1]}: give as many of each, or leave rotate out"
        )
    order = None
    if rotate:
        turn = procrustes(found.basis, earlier)
        cosines = np.einsum("ij,ij->j", found.basis @ turn, earlier)
    else:
        overlap = found.basis.T @ earlier
        mine, theirs = linear_sum_assignment(np.abs(overlap), maximize=True)
        mine = mine[np.argsort(theirs)]
        theirs = np.sort(theirs)
        rest = np.setdiff1d(np.arange(k), mine)
        signs = np.ones(k)
        signs[: len(mine)] = np.where(overlap[mine, theirs] < 0, -1.0, 1.0)
        order = np.concatenate([mine, rest])
        cosines = np.full(k, np.nan)
        cosines[: len(mine)] = np.abs(overlap[mine, theirs])
        turn = np.eye(k)[:, order] * signs
    covariance = turn.T @ (variances[:, None] * turn)
    spread = np.sqrt(np.maximum(np.diagonal(covariance), np.finfo(float).tiny))
    return TurnedComponents(
        basis=found.basis @ turn,
        variances=np.diagonal(covariance).copy(),
        rotation=turn,
        correlations=covariance / np.outer(spread, spread) if rotate else np.eye(k),
        similarity=cosines,
        order=order,
        components=_turned(found, found.weights @ turn),
    )


def _turned(found: StoredComponents, weights: Block) -> StoredComponents:
    """What centred rows are multiplied by (d x k), for rows that are read as the run read its own: gaps, too."""
    return replace(found, basis=weights, scale=None, column_weight=None)


def variances_of_run(solution: Solution) -> tuple[StoredComponents, np.ndarray]:
    """Components and their variances; of a run that was not centred mean squares."""
    analysed = solution.analysed
    if analysed.components is None or analysed.kind == "symmetric":
        raise BadInputError(
            f"a run of kind {analysed.kind} has no components of rows, whose variances could be shared out: rotate "
            "those of samples or of a matrix"
        )
    if analysed.centred and analysed.rows is not None:
        return analysed.components, solution.explained_variance
    if analysed.kind == "samples":  # of a private run, whose number of rows is not released, too
        return analysed.components, np.maximum(solution.values, 0.0)
    return analysed.components, solution.singular_values**2 / solution._rows
