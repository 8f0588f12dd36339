"""Probabilistic PCA of rows with missing entries: what rows add to the sums of a step of EM, and what these make.

The model is ``x = W z + mu + e`` with ``z ~ N(0, I_k)`` and ``e ~ N(0, s2 I)``; a row tells of it by the entries o that
it has. One step, with ``r`` the observed entries less mu (0 elsewhere)::

    1. M = W_o^T W_o + s2 I,  E[z] = M^-1 W_o^T r,  E[z z^T] = s2 M^-1 + E[z] E[z]^T         expectations
    2. for each column j, over the rows that have it, a regression of r_j on (z, 1):
       its loadings w_j, and what is added to mu_j                                           next_model
    3. s2: the mean square that is left over
    4. the mean a and covariance C of z over the rows: mu += W a, W = W C^(1/2)
       W is turned to its principal axes, which changes no W W^T

Lines 1 to 3: Tipping and Bishop, J. R. Statist. Soc. B 61 (1999) 611, appendix B and section 3.3; Roweis, NIPS 10
(1998); Ilin and Raiko, JMLR 11 (2010) 1957, section 3. Line 4: parameter expansion (Liu, Rubin and Wu, Biometrika 85
(1998) 755), which takes no pass. It is EM of a model in which z may have any mean and covariance and which says the
same of the data, so that the likelihood of what is observed never falls, with line 4 as without.

Two steps point to where many would lead: :func:`extrapolated` (SQUAREM, Varadhan and Roland, Scand. J. Statist. 35
(2008) 335). The likelihood of that model is measured by the next pass, and may be less: then it is taken back.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from npmdask.core.numerics.subspaces import Block, fix_signs

FARTHEST = 100.0  # factor of noise or loadings beyond the last step: farther two steps do not point
LEAST_NOISE = 1e-10  # of the mean variance of a column: less cannot be told from rounding
FACTS = ("log_likelihood", "entries", "rows", "held", "held_error", "held_square")  # of a table, in its last row


@dataclass(frozen=True, kw_only=True)
class FactorModel:
    """Loadings W (d x k) along their principal axes: ``axes`` (d x k, orthonormal) times ``lengths`` (k), the longest
    first; ``mean`` mu (d); ``noise``, the variance s2.
    """

    axes: Block
    lengths: np.ndarray
    mean: np.ndarray
    noise: float

    @property
    def rank(self) -> int:
        """k."""
        return len(self.lengths)

    @cached_property
    def loadings(self) -> Block:
        """W."""
        return np.asarray(self.axes * self.lengths)

    @property
    def values(self) -> np.ndarray:
        """The k largest eigenvalues of ``W W^T + s2 I``."""
        return np.asarray(self.lengths**2 + self.noise)

    def filled(self, rows: np.ndarray) -> np.ndarray:
        """Rows whose gaps (NaN) are what is expected there: :func:`filled_by_model`."""
        return filled_by_model(rows, self)

    def times(self, block: Block) -> Block:
        """``(W W^T + s2 I) block``."""
        return np.asarray(self.loadings @ (self.loadings.T @ block) + self.noise * block)


class ModelSums(NamedTuple):
    """Layout of the sums of a step: d rows for the columns of the data and 2 for the whole, each of ``width``.

    Of a column: sums over the rows that have it of ``E[(z, 1) (z, 1)^T]`` (the upper triangle), of ``r (E[z], 1)`` and
    of ``r^2``. Of the whole: the first again, over all rows with an entry, and ``FACTS``.
    """

    rank: int

    @property
    def triangle(self) -> int:
        """Numbers of the upper triangle."""
        return (self.rank + 1) * (self.rank + 2) // 2

    @property
    def width(self) -> int:
        """Numbers of a row."""
        return max(self.triangle + self.rank + 2, len(FACTS))

    @property
    def pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """Indices of the upper triangle."""
        return np.triu_indices(self.rank + 1)

    def full(self, packed: np.ndarray) -> np.ndarray:
        """Symmetric matrices (... x (k + 1) x (k + 1)) of their upper triangles (... x triangle)."""
        left, right = self.pairs
        out = np.empty((*packed.shape[:-1], self.rank + 1, self.rank + 1))
        out[..., left, right] = out[..., right, left] = packed
        return out

    def facts(self, table: np.ndarray) -> dict[str, float]:
        """``FACTS`` of all rows together, by name."""
        return dict(zip(FACTS, (float(value) for value in table[-1, : len(FACTS)]), strict=True))


def expectations(
    model: FactorModel,
    values: np.ndarray,
    fitted: np.ndarray,
    held: np.ndarray | None,
    weights: np.ndarray | None,
    table: np.ndarray,
    columns: Iterable[slice],
) -> None:
    """
    Add line 1 of some rows to a table.

    Parameters
    ----------
    model : the model.
    values : (n x d) rows, of any number where an entry is not used.
    fitted, held : (n x d) which entries the model is fitted to, and which it is measured by (None: by none).
    weights : (n) of the rows, None: 1.
    table : (d + 2) x width, as :class:`ModelSums` says; it is added to.
    columns : parts that the columns are added in.
    """
    layout, k, noise = ModelSums(model.rank), model.rank, model.noise
    left, right = layout.pairs
    inside = right < k
    seen = fitted.astype(np.float64)
    counts = seen.sum(axis=1)
    away = values - model.mean
    left_over = np.where(fitted, away, 0.0)
    squares = np.einsum("nd,nd->n", left_over, left_over)
    products = model.loadings[:, left[inside]] * model.loadings[:, right[inside]]
    matrix = np.empty((k, k, len(values)))
    matrix[left[inside], right[inside]] = matrix[right[inside], left[inside]] = (seen @ products).T
    matrix[range(k), range(k)] += noise
    image = left_over @ model.loadings
    logs = _invert(matrix)
    z = np.einsum("abn,nb->na", matrix, image)
    known = np.ones(len(values)) if weights is None else weights
    spread = np.empty((len(values), layout.triangle))
    whole = np.concatenate([z, np.ones((len(z), 1))], axis=1)
    np.multiply(whole[:, left], whole[:, right], out=spread)
    spread[:, inside] += noise * matrix[left[inside], right[inside]].T
    spread *= known[:, None]
    whole *= known[:, None]
    for part in columns:
        of_part = table[part]
        of_part[:, : layout.triangle] += seen[:, part].T @ spread
        of_part[:, layout.triangle : layout.triangle + k + 1] += left_over[:, part].T @ whole
        of_part[:, layout.triangle + k + 1] += np.einsum("nd,nd,n->d", left_over[:, part], left_over[:, part], known)
    there = counts > 0
    table[-2, : layout.triangle] += there @ spread
    fit = (squares - np.einsum("na,na->n", image, z)) / noise
    likelihood = -0.5 * (counts * math.log(2 * math.pi) + (counts - k) * math.log(noise) + logs + fit)
    sums = [known @ likelihood, known @ counts, known @ there, 0.0, 0.0, 0.0]
    if held is not None:
        missed = np.where(held, away - z @ model.loadings.T, 0.0)
        square = np.where(held, values, 0.0)
        sums[3:] = [
            known @ held.sum(axis=1),
            known @ np.einsum("nd,nd->n", missed, missed),
            known @ np.einsum("nd,nd->n", square, square),
        ]
    table[-1, : len(FACTS)] += sums


def _invert(matrix: np.ndarray) -> np.ndarray:
    """Invert positive definite matrices (k x k x n) in place, and return the logarithms of their determinants (n).

    By Gauss and Jordan without pivots: k sweeps over all n at once, where LAPACK would be called n times.
    """
    logs = np.zeros(matrix.shape[2])
    for i in range(len(matrix)):
        pivot = matrix[i, i].copy()
        logs += np.log(pivot)
        row, column = matrix[i] / pivot, matrix[:, i].copy()
        matrix -= column[:, None] * row
        matrix[i], matrix[:, i] = row, -column / pivot
        matrix[i, i] = 1 / pivot
    return logs


def next_model(model: FactorModel, table: np.ndarray, floor: float) -> FactorModel:
    """
    Make lines 2 to 4: the next model.

    Parameters
    ----------
    model : that the sums are of.
    table : (d + 2) x width, of all rows.
    floor : the least noise; the likelihood falls on both sides of its maximum in s2, so that it stays monotone.

    Returns
    -------
    FactorModel
        Of columns without an entry the loadings are 0.
    """
    layout, k = ModelSums(model.rank), model.rank
    of_columns, whole = table[:-2], layout.full(table[-2, : layout.triangle])
    moments = layout.full(of_columns[:, : layout.triangle])
    images = of_columns[:, layout.triangle : layout.triangle + k + 1]
    known = moments[:, -1, -1] > 0
    moments[~known] = np.eye(k + 1)
    found = np.linalg.solve(moments, images[:, :, None])[:, :, 0]
    found[~known] = 0.0
    rest = np.maximum(of_columns[:, layout.triangle + k + 1] - np.einsum("da,da->d", found, images), 0.0)
    noise = max(float(rest[known].sum() / moments[known, -1, -1].sum()), floor)
    centre = whole[:k, k] / whole[k, k]
    spread = whole[:k, :k] / whole[k, k] - np.outer(centre, centre)
    mean = model.mean + found[:, k] + found[:, :k] @ centre
    squares, turn = np.linalg.eigh(spread)
    axes, lengths = principal_axes(found[:, :k] @ (turn * np.sqrt(np.maximum(squares, 0.0))))
    return FactorModel(axes=axes, lengths=lengths, mean=mean, noise=noise)


def principal_axes(loadings: Block) -> tuple[Block, np.ndarray]:
    """Orthonormal axes (d x k) and lengths (k) of the same ``W W^T``: the longest first, with fixed signs."""
    axes, lengths, _ = np.linalg.svd(loadings, full_matrices=False)
    return np.ascontiguousarray(axes * fix_signs(axes)), lengths


def first_model(model: FactorModel, table: np.ndarray) -> FactorModel:
    """
    Make of a first table, of a ``model`` with short axes and noise 1, one in the units of the data.

    Its ``E[z]`` are products with the axes, so that the table holds the axes times the second moment of the rows with
    gaps at the mean: one step of the power method. The lengths are a guess of the right size.
    """
    layout, k = ModelSums(model.rank), model.rank
    counts = table[:-2, layout.triangle - 1]
    images, squares = table[:-2, layout.triangle : layout.triangle + k], table[:-2, layout.triangle + k + 1]
    axes, lengths = principal_axes(images / model.lengths / max(float(counts.max()), 1.0))
    noise = float(squares.sum() / counts.sum())
    return FactorModel(axes=axes, lengths=np.sqrt(lengths), mean=model.mean, noise=noise)


def extrapolated(
    first: FactorModel, second: FactorModel, third: FactorModel, floor: float, reach: float
) -> tuple[FactorModel | None, float]:
    """
    Point from two steps of EM to where many would lead (SQUAREM with its third step length).

    Loadings are turned towards those of the step before: their axes, which may change places, say nothing.

    Parameters
    ----------
    first, second, third : the models before and after the steps.
    floor : the least noise.
    reach : how many times a step may be stretched.

    Returns
    -------
    model : FactorModel or None
        None where it would not go farther than ``third``, or where two steps do not point.
    stretch : float
        How many times the step was stretched.
    """
    unit = math.sqrt(first.noise)
    loadings = [first.loadings]
    for model in (second, third):
        left, _, right = np.linalg.svd(model.loadings.T @ loadings[-1])
        loadings.append(model.loadings @ (left @ right))
    x, y, z = (
        np.concatenate([w.ravel() / unit, model.mean / unit, [math.log(model.noise)]])
        for w, model in zip(loadings, (first, second, third), strict=True)
    )
    step, bend = y - x, z - 2 * y + x
    size = float(np.linalg.norm(bend))
    stretch = min(float(np.linalg.norm(step)) / size, reach) if size else 0.0
    if stretch <= 1:
        return None, 0.0
    found = x + 2 * stretch * step + stretch**2 * bend
    axes, lengths = principal_axes(found[: first.loadings.size].reshape(first.loadings.shape) * unit)
    if abs(found[-1] - math.log(third.noise)) > math.log(FARTHEST) or lengths[0] > FARTHEST * third.lengths[0]:
        return None, 0.0
    mean, noise = found[first.loadings.size : -1] * unit, max(math.exp(found[-1]), floor)
    return FactorModel(axes=axes, lengths=lengths, mean=mean, noise=noise), stretch


def filled_by_model(rows: np.ndarray, model: FactorModel) -> np.ndarray:
    """
    Fill the gaps (NaN) of rows with what the model expects there, given the entries that each row has.

    Parameters
    ----------
    rows : (n x d).
    model : the model.

    Returns
    -------
    ndarray
        (n x d); a row without any entry is the mean.
    """
    gaps, k = np.isnan(rows), model.rank
    seen = (~gaps).astype(np.float64)
    away = np.where(gaps, 0.0, rows - model.mean)
    matrix = np.einsum("nd,da,db->abn", seen, model.loadings, model.loadings, optimize=True)
    matrix[range(k), range(k)] += model.noise
    matrix = np.ascontiguousarray(matrix)
    _invert(matrix)
    z = np.einsum("abn,nb->na", matrix, away @ model.loadings)
    return np.where(gaps, model.mean + z @ model.loadings.T, rows)


def held_out(rows: slice, columns: int, share: float, seed: int) -> np.ndarray:
    """
    Choose entries to be held out: the same ones in every pass, on every machine, whatever the data.

    Parameters
    ----------
    rows : numbers of the rows.
    columns : how many columns there are.
    share : of the entries.
    seed : of the choice.

    Returns
    -------
    ndarray of bool
        rows x columns.

    Notes
    -----
    ``a_i b_j + c_i`` in 32 bits is below ``share 2^32``, with a, b, c hashes of i and of j: two operations an entry,
    independent from row to row and in pairs within one.
    """
    numbers = np.arange(rows.start, rows.stop, dtype=np.uint64)
    of_rows, of_columns = _splitmix64(numbers, 2 * seed), _splitmix64(np.arange(columns, dtype=np.uint64), 2 * seed + 1)
    low, high = np.uint64(0xFFFFFFFF), np.uint64(32)
    factor, term = (of_rows & low).astype(np.uint32) | np.uint32(1), (of_rows >> high).astype(np.uint32)
    drawn = factor[:, None] * (of_columns >> high).astype(np.uint32)
    drawn += term[:, None]
    return np.asarray(drawn < np.uint32(min(round(share * 2**32), 2**32 - 1)))


def _splitmix64(numbers: np.ndarray, seed: int) -> np.ndarray:
    """64 bits of each number: the finalizer of SplitMix64 (Steele, Lea and Flood 2014)."""
    z = numbers + np.uint64((seed * 0xD1342543DE82EF95 + 0x9E3779B97F4A7C15) % 2**64)
    z *= np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z = (z ^ (z >> np.uint64(shift))) * np.uint64(factor)
    return np.asarray(z ^ (z >> np.uint64(31)))


# Scores of rows of which some entries are missing (NaN), along orthonormal directions.
#
# Of a row z = V t + e (V: d x k) the entries O are observed. Its least squares scores
#
#     t = (V_O^T V_O)^-1 V_O^T z_O
#
# are those of the point of the model's plane that is nearest in what is observed: "projection to the model plane" of
# Nelson, Taylor and MacGregor, Chemometrics and Intelligent Laboratory Systems 35 (1996) 45, section 4. A gap that
# counts as 0 (the mean) gives V_O^T z_O instead, which is V_O^T V_O times that: too small. Where e has equal variance
# everywhere their covariance is that variance times (V_O^T V_O)^-1, so that scores of few entries are as uncertain as
# they are.

AT_ONCE = 4 * 2**20  # bytes of small matrices, and of products of pairs of directions
LEAST = 1e-8  # eigenvalue of V_O^T V_O: below, noise of the entries is in a score more than 10,000 times


class FittedScores(NamedTuple):
    """Scores (n x k), NaN in rows that do not determine them, and how many times the deviation of noise in the worst
    direction is that in a complete row (n): 1 where nothing is missing, infinite where scores are not determined.
    """

    scores: Block
    amplified: np.ndarray


def least_squares_scores(rows: Block, basis: Block) -> FittedScores:
    """Scores of rows (n x d, NaN where entries are missing) along a ``basis`` (d x k) of orthonormal columns.

    Rows without gaps have the scores ``rows @ basis``; an infinity is no gap, and leaves scores that are not finite.
    """
    gaps = np.isnan(rows)
    whole = np.where(gaps, 0.0, rows)
    with np.errstate(invalid="ignore"):
        scores, amplified = whole @ basis, np.ones(len(rows))
    where = np.flatnonzero(gaps.any(axis=1) & ~np.isinf(rows).any(axis=1))
    for some, grams in grams_of_observed(gaps, where, basis):
        sizes, turn = np.linalg.eigh(grams)
        known = sizes[:, 0] > LEAST
        sizes[~known] = 1.0
        turned = np.einsum("nji,nj->ni", turn, scores[some]) / sizes
        scores[some] = np.where(known[:, None], np.einsum("nij,nj->ni", turn, turned), np.nan)
        amplified[some] = np.where(known, np.maximum(sizes[:, 0], LEAST) ** -0.5, np.inf)
    return FittedScores(scores, amplified)


def grams_of_observed(gaps: np.ndarray, where: np.ndarray, basis: Block) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield (numbers of rows, ``V_O^T V_O`` (n x k x k) of each), some of the rows ``where`` at a time."""
    d, k = basis.shape
    rows_at_once = columns_at_once = max(1, AT_ONCE // (8 * k * k))
    for first in range(0, len(where), rows_at_once):
        some = where[first : first + rows_at_once]
        seen, grams = ~gaps[some], np.zeros((len(some), k * k))
        for start in range(0, d, columns_at_once):
            part = basis[start : start + columns_at_once]
            pairs = (part[:, :, None] * part[:, None, :]).reshape(len(part), k * k)
            grams += seen[:, start : start + columns_at_once] @ pairs
        yield some, grams.reshape(-1, k, k)
