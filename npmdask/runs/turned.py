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
    earlier : numpy.ndarray or None, shape (k,)
        After an alignment: which earlier component each one is compared with, from 0; -1 where there is none.
    inside : numpy.ndarray or None, shape (k,)
        After an alignment: how much of the square of each one lies in the space of all earlier components. Where it is
        well below 1 the space itself moved, and no order or rotation brings the earlier component back.
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
    earlier: np.ndarray | None = None
    inside: np.ndarray | None = None
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

    def aligned(self, to: Any) -> TurnedComponents:
        """
        Bring rotated components into the order and to the signs of earlier ones, as :meth:`Solution.aligned` does.

        Parameters
        ----------
        to : TurnedComponents, Solution or array_like, shape (d, j)
            Earlier components of the same columns, rotated in the same way.

        Returns
        -------
        TurnedComponents
            The same components, with ``similarity``, ``earlier`` and ``inside``.

        Raises
        ------
        BadInputError
            Components of other columns.

        Examples
        --------
        >>> import numpy as np
        >>> import npmdask
        >>> rows = np.random.default_rng(0).standard_normal((100, 5)) * [5, 3, 1, 1, 1]
        >>> turned = npmdask.top_k(rows, 2, kind="samples", center=True).rotated("varimax")
        >>> again = turned.aligned(-turned.basis[:, ::-1])
        >>> again.similarity.round(6).tolist(), again.variances.tolist() == turned.variances[::-1].tolist()
        ([1.0, 1.0], True)
        """
        earlier = _earlier(to, *self.basis.shape)
        order, signs, compared = _matched(self.basis, earlier)
        return replace(
            self,
            basis=self.basis[:, order] * signs,
            variances=self.variances[order],
            rotation=self.rotation[:, order] * signs,
            correlations=self.correlations[np.ix_(order, order)] * np.outer(signs, signs),
            order=None if self.order is None else self.order[order],
            components=_turned(self.components, self.components.weights[:, order] * signs),
            **compared,
        )


def rotated(solution: Solution, method: str, k: int | None, power: float, normalize: bool) -> TurnedComponents:
    """The leading k components of a run after varimax or promax, the largest variance first, signs fixed."""
    if method not in METHODS:
        raise BadInputError(f"there is no rotation {method!r}: take one of {', '.join(METHODS)}")
    found, variances = variances_of_run(solution)
    most = len(variances)
    k = most if k is None else k
    if not isinstance(k, int | np.integer) or not 1 <= k <= most:
        raise BadInputError(f"k = {k} components cannot be rotated, because the run has {most}: take 1 to {most}")
    basis, variances = found.basis[:, :k], variances[:k]
    usable = int((variances > NO_VARIANCE * variances[0]).sum())
    if usable < k:
        raise BadInputError(
            f"only {usable} of {k} components have any variance, and a direction without variance cannot be rotated: "
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
    found, variances = variances_of_run(solution)
    if isinstance(to, str | Path):
        raise BadInputError(f"{str(to)!r} is a name: give the solution itself, as npmdask.resume({str(to)!r})")
    require_same_columns(solution, to)
    d, k = found.basis.shape
    earlier = _earlier(to, d, k)
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
            "inside": _inside(basis, earlier),
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
        components=_turned(found, found.weights @ turn),
        **compared,
    )


def require_same_columns(solution: Solution, to: Any) -> None:
    """Raise BadInputError where both runs name their columns, and not alike, or left out other ones."""
    mine, theirs = solution.analysed, getattr(to, "analysed", None)
    if theirs is None:
        return
    gaps = mine.missing, theirs.missing
    if gaps[0] is not None and gaps[1] is not None and gaps[0].kept.tolist() != gaps[1].kept.tolist():
        raise BadInputError(
            "the two runs left out different columns, because different ones had no values: their components have "
            "different columns. Leave the same columns out of both data sets"
        )
    for mine_axis, their_axis in zip(solution.labels.columns, to.labels.columns, strict=False):
        both = mine_axis.values is not None and their_axis.values is not None
        if mine_axis.size != their_axis.size or (both and mine_axis.places.tolist() != their_axis.places.tolist()):
            raise BadInputError(
                f"the columns of the two runs have other names or another order (of {mine_axis.name}): components are "
                "compared column by column; bring the data into the order of the earlier run and run again"
            )


def _earlier(to: Any, d: int, k: int) -> Block:
    """Earlier components as columns of length 1."""
    held = np.asarray(getattr(to, "basis", to))
    if held.dtype.kind == "c":
        raise BadInputError("the earlier components are complex, and these are real: give components of the same data")
    earlier = np.asarray(held, dtype=np.float64)
    if earlier.ndim != 2 or len(earlier) != d or not np.isfinite(earlier).all():
        raise BadInputError(
            f"components of shape {earlier.shape} are no earlier answer about these {d} columns: give a solution or "
            "its basis, columns x components, of the same columns in the same order"
        )
    lengths = np.linalg.norm(earlier, axis=0)
    if not (lengths > 0).all():
        raise BadInputError("an earlier component is zero, and nothing is like it: leave it out")
    return earlier / lengths


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
    compared = {"similarity": cosines, "earlier": numbers, "inside": _inside(basis[:, order], earlier)}
    return order, signs, compared


def _inside(basis: Block, earlier: Block) -> np.ndarray:
    """How much of the square of each column lies in the span of ``earlier``, whose columns may depend on each other."""
    axes, sizes, _ = np.linalg.svd(earlier, full_matrices=False)
    axes = axes[:, sizes > sizes[0] * len(earlier) * np.finfo(float).eps]
    outside = basis - axes @ (axes.T @ basis)
    return np.clip(1.0 - np.square(outside).sum(axis=0), 0.0, 1.0)


def _turned(found: StoredComponents, weights: Block) -> StoredComponents:
    """Return the matrix that centred rows are multiplied by (d x k); rows and their gaps are read as in the run."""
    return replace(found, basis=weights, scale=None, column_weight=None)


def variances_of_run(solution: Solution) -> tuple[StoredComponents, np.ndarray]:
    """Components and their variances; of a run that was not centred mean squares."""
    analysed = solution.analysed
    if analysed.components is None or analysed.kind == "symmetric":
        raise BadInputError(
            f"a run of kind {analysed.kind} has no components of rows, whose variances could be shared out: rotate "
            "those of samples or of a matrix"
        )
    if analysed.components.of_complex:
        raise BadInputError(
            "rotations, comparisons and criteria are those of real components, and these are complex: see "
            "explained_variance and patterns(), or analyse real and imaginary parts as columns of their own"
        )
    if analysed.centred and analysed.rows is not None:
        return analysed.components, solution.explained_variance
    if analysed.kind == "samples":  # of a private run, whose number of rows is not released, too
        return analysed.components, np.maximum(solution.values, 0.0)
    return analysed.components, solution.singular_values**2 / solution._rows
