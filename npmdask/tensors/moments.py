"""Latent variable models by their moments: what a decomposed tensor says of topics, mixtures and sources.

Anandkumar, Ge, Hsu, Kakade and Telgarsky (2014), JMLR 15, 2773. Pure NumPy: the moments themselves are formed by
:mod:`npmdask.core.operators`, the tensor is decomposed by :mod:`npmdask.core.algorithms`.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations_with_replacement

import numpy as np

from npmdask.core.numerics.random import generator
from npmdask.core.numerics.subspaces import Block
from npmdask.errors import BadInputError, MemoryRefusedError, require

# Whitening: coordinates in which the components of a third moment are orthonormal.
#
# With ``M2 = U S U^T`` cut to its k leading pairs, ``W = U S^(-1/2)`` makes ``W^T M2 W = I`` and the components of
# ``M3(W, W, W)`` orthonormal (Anandkumar et al. 2014, section 4.3).

WARN_ABOVE = 10.0  # the condition number beyond which SpectralLDA (Spark) warns its users


@dataclass(frozen=True, kw_only=True)
class Whitening:
    """Maps to and from white coordinates.

    Attributes
    ----------
    matrix : W (d x k), ``W^T M2 W = I``.
    back : ``(W^T)^+`` (d x k): a component is ``back @ v`` up to its scale.
    eigenvalues : of M2 that were kept (k), falling, positive.
    """

    matrix: Block
    back: Block
    eigenvalues: np.ndarray

    @property
    def kept(self) -> int:
        """k."""
        return len(self.eigenvalues)

    @property
    def condition(self) -> float:
        """The largest eigenvalue kept over the smallest: errors of M2 grow by its power 3/2 in white coordinates."""
        return float(self.eigenvalues[0] / self.eigenvalues[-1])

    @property
    def warning(self) -> str:
        """A sentence where the components are hard to tell apart; empty where they are not."""
        if self.condition <= WARN_ABOVE:
            return ""
        return (
            f"the condition number of M2 is {self.condition:.3g}, more than {WARN_ABOVE:g}: the weakest components may "
            "be noise; take fewer components, or use more data (of documents: remove very frequent words)"
        )


def whiten(eigenvalues: np.ndarray, eigenvectors: Block, k: int) -> Whitening:
    """The whitening by the ``k`` largest positive eigenvalues of M2.

    Parameters
    ----------
    eigenvalues, eigenvectors : pairs of M2 (j, and d x j orthonormal), j >= k, in any order, of any sign.

    Raises
    ------
    BadInputError
        Fewer than k eigenvalues are positive (beyond rounding): an empirical M2 with repeated words removed is not
        positive semidefinite, and the square root of a negative eigenvalue would whiten noise.
    """
    eigenvalues = np.asarray(eigenvalues, np.float64)
    if not 1 <= k <= len(eigenvalues):
        raise BadInputError(f"k = {k} components need as many eigenvalues of M2: {len(eigenvalues)} are given")
    order = np.argsort(-eigenvalues, kind="stable")[:k]
    values = eigenvalues[order]
    floor = len(eigenvectors) * np.finfo(np.float64).eps * np.abs(eigenvalues).max()
    positive = int((values > floor).sum())
    if positive < k:
        noise = max(floor, -float(eigenvalues.min()))  # what is negative is noise, and so may be what is smaller
        supported = int((values > noise).sum())
        raise BadInputError(
            f"M2 supports only {supported} of {k} components: its eigenvalue of {-noise:.2g} is noise, and so may be "
            f"all that are smaller; take k = {supported} or fewer, leave out frequent words, or use more data"
            if supported
            else "M2 has no positive eigenvalue above the size of its negative ones: these data do not follow the "
            "model, or are too few; use more data"
        )
    roots, vectors = np.sqrt(values), eigenvectors[:, order]
    return Whitening(
        matrix=np.ascontiguousarray(vectors / roots), back=np.ascontiguousarray(vectors * roots), eigenvalues=values
    )


def require_whitening(matrix: Block | None, d: int) -> None:
    """That a whitening, where there is one, is of data with ``d`` columns."""
    if matrix is not None and len(matrix) != d:
        raise BadInputError(
            f"the whitening has {len(matrix)} rows, but the data have {d} columns: it belongs to other data"
        )


# Models with a tensor of moments, and the way back from its eigenpairs to their parameters.
#
# Eigenpairs ``(weight_i, v_i)`` are those of the whitened tensor. All third moments have positive weights in theory:
# a pair with a negative weight is the same term with the other sign, and is turned. Formulas: Anandkumar et al. (2014),
# theorems 3.1, 3.5 and 3.6; Hsu and Kakade (2013) for mixtures.


@dataclass(frozen=True, kw_only=True)
class Recovered:
    """Parameters of a model: components (d x r: topics, means or mixing columns), and a weight of each (r)."""

    components: Block
    weights: np.ndarray


@dataclass(frozen=True, kw_only=True)
class SingleTopic:
    """Every document has one topic i, with probability ``weights[i]``; words are independent given it.

    ``M2 = sum w_i mu_i mu_i^T``, ``M3 = sum w_i mu_i^(x)3``.
    """

    @property
    def alpha0(self) -> float:
        """That of the LDA of which this is the limit."""
        return 0.0

    def unwhiten(self, whitening: Whitening, weights: np.ndarray, vectors: Block) -> Recovered:
        """Topics (sum 1 in theory) and their probabilities: ``w = 1 / weight^2``, ``mu = weight (W^T)^+ v``."""
        weights, vectors = _with_positive_weights(weights, vectors)
        return Recovered(components=(whitening.back @ vectors) * weights, weights=weights**-2.0)


@dataclass(frozen=True, kw_only=True)
class SphericalMixture(SingleTopic):
    """Gaussians with means ``mu_i`` and covariances ``sigma_i^2 I``: the same tensors, other estimates of them."""


@dataclass(frozen=True, kw_only=True)
class LDA:
    """Latent Dirichlet allocation with ``sum alpha_i = alpha0``; ``alpha0`` is given, the shares are found.

    ``M2 = sum alpha_i / (a0 (a0 + 1)) mu_i mu_i^T``, ``M3 = sum 2 alpha_i / (a0 (a0 + 1) (a0 + 2)) mu_i^(x)3``.
    """

    alpha0: float

    def __post_init__(self) -> None:
        if not 0 < self.alpha0 < np.inf:
            raise BadInputError(
                f"alpha0 = {self.alpha0} must be a positive number; for a single topic per document use SingleTopic()"
            )

    def unwhiten(self, whitening: Whitening, weights: np.ndarray, vectors: Block) -> Recovered:
        """Topics (sum 1 in theory) and ``alpha_i``.

        Their sum is alpha0 wherever k topics explain M2, whose entries sum to 1 / (alpha0 + 1) whatever alpha0 is: a
        check of the model, and none of alpha0.
        """
        weights, vectors = _with_positive_weights(weights, vectors)
        a0 = self.alpha0
        topics = (whitening.back @ vectors) * ((a0 + 2) / 2 * weights)
        return Recovered(components=topics, weights=4 * a0 * (a0 + 1) / ((a0 + 2) ** 2 * weights**2))


@dataclass(frozen=True, kw_only=True)
class IndependentSources:
    """``x = A h`` with independent sources of variance 1: ``M4 = sum kappa_i a_i^(x)4``, kappa the excess kurtosis.

    Whitened by the covariance: the eigenvalues are the kappa_i, of either sign.
    """

    def unwhiten(self, whitening: Whitening, weights: np.ndarray, vectors: Block) -> Recovered:
        """Columns of A, up to their signs, which no moment of even order knows; and the kappa_i."""
        return Recovered(components=whitening.back @ vectors, weights=np.array(weights, np.float64))


def _with_positive_weights(weights: np.ndarray, vectors: Block) -> tuple[np.ndarray, Block]:
    """Positive weights of order 3: (weight, v) and (-weight, -v) are the same term."""
    weights = np.asarray(weights, np.float64)
    if not (weights != 0).all():
        raise BadInputError(
            "a component of weight 0 has no parameters: drop the components that were not found, or use a smaller k"
        )
    return np.abs(weights), vectors * np.sign(weights)


# What the Dirichlet prior of LDA adds to raw moments of words, subtracted.
#
# With ``E2 = E[x1 x2^T]``, ``E3 = E[x1 (x) x2 (x) x3]`` and ``M1 = E[x1]`` (Anandkumar et al. 2014, theorem 3.5):
#
#     M2 = E2 - a0 / (a0 + 1) M1 M1^T
#     M3 = E3 - a0 / (a0 + 2) sum of E2 (x) M1 in its three orders + 2 a0^2 / ((a0 + 1)(a0 + 2)) M1 (x) M1 (x) M1
#
# ``alpha0 = 0`` is the model of a single topic: nothing is taken off. All of it is written for any coordinates: of
# words, or white ones.


def pair_share(alpha0: float) -> float:
    return alpha0 / (alpha0 + 1)


def triple_share(alpha0: float) -> float:
    return alpha0 / (alpha0 + 2)


def cube_share(alpha0: float) -> float:
    return 2 * alpha0**2 / ((alpha0 + 1) * (alpha0 + 2))


def lda_pairs(second: Block, mean: np.ndarray, block: Block, alpha0: float) -> Block:
    """``M2 U`` (d x L) from ``second`` = E2 U, ``mean`` = M1 and ``block`` = U."""
    return second - pair_share(alpha0) * np.outer(mean, mean @ block)


def lda_triples(third: Block, second: Block, mean: np.ndarray, block: Block, alpha0: float) -> Block:
    """``M3(I, u, u)`` for every column u of ``block`` (d x L) from E3(I, u, u) and E2 u."""
    along = mean @ block
    squares = np.einsum("dl,dl->l", block, second)
    mixed = 2 * along * second + np.outer(mean, squares)
    return third - triple_share(alpha0) * mixed + cube_share(alpha0) * np.outer(mean, along**2)


def lda_cube(third: np.ndarray, second: Block, mean: np.ndarray, alpha0: float) -> np.ndarray:
    """M3 (m x m x m) from E3, E2 (m x m) and M1 (m), all of them held."""
    mixed = in_three_orders(second[:, :, None] * mean)
    alone = mean[:, None, None] * mean[:, None] * mean
    return third - triple_share(alpha0) * mixed + cube_share(alpha0) * alone


def in_three_orders(tensor: np.ndarray) -> np.ndarray:
    """``S_abc + S_acb + S_bca`` of an S that is symmetric in its first two indices: symmetric in all three."""
    return tensor + tensor.transpose(0, 2, 1) + tensor.transpose(2, 0, 1)


# Measure how well components were recovered, regardless of order, number or (in even orders) signs.


@dataclass(frozen=True, kw_only=True)
class Match:
    """Found components against true ones.

    Attributes
    ----------
    found : for each true component the index of the one matched with it; -1 if there was none left.
    errors : norm of the difference, of each true component; infinite if it has no match.
    weight_errors : relative, of each true component; infinite if it has no match.
    duplicates : found components that are as near as ``within`` to a true one that another one is matched with.
    within : how near a component must be to count as recovered.
    """

    found: np.ndarray
    errors: np.ndarray
    weight_errors: np.ndarray
    duplicates: int
    within: float

    @property
    def recovered(self) -> int:
        """True components with a match as near as ``within``."""
        return int((self.errors <= self.within).sum())


def match(
    true: Block,
    true_weights: np.ndarray,
    found: Block,
    weights: np.ndarray,
    *,
    norm: int = 2,
    either_sign: bool = False,
    within: float = 0.1,
) -> Match:
    """The matching of least total distance (Hungarian method) between true (d x k) and found (d x r) components.

    Parameters
    ----------
    norm : 2, or 1 for distributions (0 to 2 for topics).
    either_sign : of v and -v, the nearer one counts: moments of even order.
    """
    from scipy.optimize import linear_sum_assignment  # a tenth of a second, that only this needs

    distances = _distances(true, found, norm)
    if either_sign:
        distances = np.minimum(distances, _distances(true, -found, norm))
    rows, columns = linear_sum_assignment(distances)
    k = true.shape[1]
    matched, errors, off = np.full(k, -1), np.full(k, np.inf), np.full(k, np.inf)
    matched[rows], errors[rows] = columns, distances[rows, columns]
    off[rows] = np.abs(weights[columns] - true_weights[rows]) / np.abs(true_weights[rows])
    others = np.setdiff1d(np.arange(found.shape[1]), columns)
    duplicates = int((distances[:, others] <= within).any(axis=0).sum())
    return Match(found=matched, errors=errors, weight_errors=off, duplicates=duplicates, within=within)


def _distances(true: Block, found: Block, norm: int) -> np.ndarray:
    """k x r, a true component at a time: never d x k x r."""
    rows = [np.linalg.norm(found - column[:, None], ord=norm, axis=0) for column in true.T]
    return np.stack(rows).reshape(true.shape[1], found.shape[1])


# Topics are distributions: the nearest point of the simplex, and how far away it was.


def on_simplex(columns: Block) -> tuple[Block, np.ndarray]:
    """Every column (d x k) moved to the nearest point of the probability simplex, and its negative mass (k).

    The negative mass is the share of the absolute values that lay below zero: the sampling error of a topic, seen
    without knowing the truth. Projection: Duchi, Shalev-Shwartz, Singer and Chandra (2008), O(d log d) a column;
    clipping and dividing instead would move mass to words that have none.
    """
    columns = np.asarray(columns, np.float64)
    negative = -np.minimum(columns, 0.0).sum(axis=0)
    mass = np.abs(columns).sum(axis=0)
    falling = -np.sort(-columns, axis=0)
    shifts = (np.cumsum(falling, axis=0) - 1.0) / np.arange(1, len(columns) + 1)[:, None]
    last = np.maximum((falling > shifts).sum(axis=0) - 1, 0)
    shift = np.take_along_axis(shifts, last[None], axis=0)
    projected: Block = np.maximum(columns - shift, 0.0)
    return projected, negative / np.where(mass > 0, mass, 1.0)


# Which unique blocks of a symmetric tensor are formed together: as many in one pass as the memory holds.

HELD = 12  # times that the sums of a group are held at once: those that wait to be joined, one task's, the answer's


@lru_cache(maxsize=8)
def unique_blocks(grid: int) -> tuple[tuple[int, int, int], ...]:
    """The blocks (i, j, k), i <= j <= k < ``grid``, in lexicographic order: unit t is entry t."""
    return tuple(combinations_with_replacement(range(grid), 3))


def blocks_of(wanted: range, grid: int) -> tuple[tuple[int, int, int], ...]:
    """The blocks of the units ``wanted``. Raises BadInputError if there are no such units."""
    count = len(unique_blocks(grid))
    if not (0 <= wanted.start < wanted.stop <= count and wanted.step == 1):
        raise BadInputError(f"the tensor has blocks 0 to {count - 1}: {wanted} is not a range of them")
    return unique_blocks(grid)[wanted.start : wanted.stop]


def group_bytes(d: int, side: int, units: int) -> int:
    """Memory of the sums of ``units`` blocks at most: their entries, and two pairs of words for their block rows."""
    grid = -(-d // side)
    return 8 * (units * side**3 + 2 * min(2 * units, grid) * side**2 * grid)


def unit_groups(d: int, side: int, memory: int) -> list[range]:
    """The units of a d x d x d tensor in blocks of ``side``, cut into groups of one pass each.

    Raises
    ------
    MemoryRefusedError
        Not even the sums of one block fit in ``memory`` bytes.
    """
    count = len(unique_blocks(-(-d // side)))
    each = bisect_right(range(count + 1), memory, key=lambda units: HELD * group_bytes(d, side, units)) - 1
    if each < 1:
        least = HELD * group_bytes(d, side, 1)
        raise MemoryRefusedError(
            f"one block of side {side} needs {-(-least // 2**20)} MiB, but {memory // 2**20} are allowed; use "
            "smaller blocks, or allow more memory"
        )
    return [range(first, min(first + each, count)) for first in range(0, count, each)]


# Small dense tensors: the multilinear form, its norm, and the symmetric tensor that holds any other.


def multilinear(tensor: np.ndarray, *maps: Block | None) -> np.ndarray:
    """``T(A_1, ..., A_q)``: mode j (d_j) is mapped by A_j (d_j x m_j); None leaves it as it is.

    ``T(A, B, C)_abc = sum_ijk T_ijk A_ia B_jb C_kc``: the maps have the shapes that Wang and Anandkumar (2016) print,
    not the order of indices that they print.
    """
    require(len(maps) == tensor.ndim, f"a tensor of order {tensor.ndim} needs as many maps, not {len(maps)}")
    for mode, matrix in enumerate(maps):
        if matrix is not None:
            if len(matrix) != tensor.shape[mode]:
                raise BadInputError(f"mode {mode} has {tensor.shape[mode]} entries and its map {len(matrix)} rows")
            tensor = np.moveaxis(np.tensordot(tensor, matrix, axes=(mode, 0)), -1, mode)
    return tensor


def largest_form(tensor: np.ndarray, *, starts: int = 20, steps: int = 200, seed: int = 0) -> float:
    """The operator norm max |T(u, u, u)| over unit u of a symmetric tensor (d x d x d), from below.

    The shifted power iteration (Kolda and Mayo 2011), u <- T(I, u, u) + 2 ||T||_F u at length 1, whose T(u, u, u) never
    falls, from random starts and the leading direction of the unfolding. Local maxima may hide the largest: a lower
    bound, and never above the norm. Signs do not matter for odd order.
    """
    d = len(tensor)
    if tensor.shape != (d, d, d) or not np.isfinite(tensor).all():
        raise BadInputError(f"a finite symmetric tensor d x d x d has an operator norm, not one of {tensor.shape}")
    unfolded, shift = tensor.reshape(d, d * d), 2 * float(np.linalg.norm(tensor))
    leading = np.linalg.eigh(unfolded @ unfolded.T)[1][:, -1:]
    block = np.concatenate([generator(seed, "form").standard_normal((d, starts)), leading], axis=1)
    block /= np.linalg.norm(block, axis=0)
    for _ in range(steps if shift else 0):
        block = np.einsum("ijk,jl,kl->il", tensor, block, block, optimize=True) + shift * block
        block /= np.linalg.norm(block, axis=0)
    return float(np.abs(np.einsum("ijk,il,jl,kl->l", tensor, block, block, block, optimize=True)).max())
