"""Dense linear algebra on blocks (d x p, p small), in memory or a tile of rows at a time. NumPy only; deterministic
with BLAS pinned to one thread.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import get_cached_controller

from npmdask.core.numerics.domains import LARGEST, counts
from npmdask.errors import BadInputError, require

Block = NDArray[np.floating]

TRIES = 4  # with other random columns, of which one is enough but for bad luck
WHOLE = 0.5  # of a column that is orthogonal to the others already, all is left by a second orthonormalisation
ROWS_AT_ONCE = 4096  # of a tall block that is changed in place: in cache for the ranks that are usual


def orth(block: Block, completion: np.random.Generator, *, against: Block | None = None) -> Block:
    """Orthonormal basis of the range of ``block`` (d x p -> d x p, float64).

    QR with the diagonal of R made positive: what Gram-Schmidt gives in Hardt and Price, Definition 4.10, and
    what makes the result independent of the sign choices of LAPACK. Columns that are zero to rounding
    (a rank-deficient product) are replaced by random directions orthogonal to the rest, drawn from
    ``completion``, so that the basis always has p columns and the iteration can still find new directions.
    ``against`` (d x j, orthonormal) is a subspace that the result must be orthogonal to (deflation).
    """
    block = _project_out(np.asarray(block, dtype=np.float64), against)
    largest = np.maximum(block.max(axis=0), -block.min(axis=0))  # no absolute values of the whole block
    q = np.divide(block, _positive(largest), order="C")  # first: the norm of huge or tiny entries overflows
    del block  # the work space of orth is counted in every memory plan
    q /= _positive(np.sqrt(np.einsum("ij,ij->j", q, q)))
    q, r = tall_qr(q)
    least = 8 * q.shape[0] ** 0.5 * np.finfo(np.float64).eps
    lost = np.abs(np.diagonal(r)) <= least
    if lost.any():
        kept, turn = _independent(r, least)
        q[:, kept] = q @ turn
        lost = ~np.isin(np.arange(q.shape[1]), kept)
    else:
        q *= np.where(np.diagonal(r) < 0, -1.0, 1.0)
    if lost.any() or against is not None:
        q = _complete(q, lost, completion, against)
    return q


def tall_qr(block: Block) -> tuple[Block, Block]:
    """The reduced QR factorisation; a tall ``block`` is overwritten by its Q, so that no second one is held.

    Row by row of blocks and then of their R factors (TSQR: Demmel, Grigori, Hoemmen and Langou 2012): as stable as
    Householder's, in cache, and with no work space as large as the block.
    """
    d, p = block.shape
    count = d // max(ROWS_AT_ONCE, 8 * p)
    if count < 2:
        q, r = np.linalg.qr(block)
        return q, r
    ends = [d * number // count for number in range(count + 1)]
    parts = [slice(start, stop) for start, stop in pairwise(ends)]
    factors = np.empty((count * p, p))
    for number, part in enumerate(parts):
        block[part], factors[number * p : (number + 1) * p] = np.linalg.qr(block[part])
    turns, r = tall_qr(factors)
    for number, part in enumerate(parts):
        block[part] = block[part] @ turns[number * p : (number + 1) * p]
    return block, r


def _independent(r: Block, least: float) -> tuple[NDArray[np.intp], Block]:
    """The columns of R that are not in the span of those kept before them, and an orthonormal basis of their span.

    One at a time: where a column is lost, QR puts any direction in its place and takes it out of the columns after it.
    """
    kept = np.arange(r.shape[1])
    while True:
        turn, rest = np.linalg.qr(r[:, kept])
        diagonal = np.diagonal(rest)
        small = np.flatnonzero(np.abs(diagonal) <= least)
        if not len(small):
            return kept, turn * np.where(diagonal < 0, -1.0, 1.0)
        kept = np.delete(kept, small[0])


def add_product(total: Block, left: Block, right: Block) -> None:
    """``total += left @ right`` in place (d x p, d x j, j x p), by blocks of rows: no second d x p."""
    for start in range(0, len(total), ROWS_AT_ONCE):
        part = slice(start, start + ROWS_AT_ONCE)
        total[part] += left[part] @ right


def _positive(scale: Block) -> Block:
    return np.where(scale > 0, scale, 1.0)


def _project_out(block: Block, against: Block | None) -> Block:
    return block if against is None else block - against @ (against.T @ block)


def _complete(q: Block, lost: NDArray[np.bool_], completion: np.random.Generator, against: Block | None) -> Block:
    """Replace the lost columns by random ones, keep the others, orthonormalise twice ("twice is enough"), in place.

    Twice is not enough of a column that is nearly in the span of those before it, and of which rounding has made most:
    where no direction is left beside ``against`` but a few, QR may put any other in its place. It is lost, too, then.
    """
    for _ in range(TRIES):
        q[:, lost] = completion.standard_normal((q.shape[0], int(lost.sum())))
        order = np.argsort(lost, kind="stable")  # kept columns first: QR leaves them as they are
        for _ in range(2):
            basis, r = tall_qr(_project_out(q[:, order], against))
            basis *= np.where(np.diagonal(r) < 0, -1.0, 1.0)
            q[:, order] = basis
            del basis
        lost = np.zeros_like(lost)
        lost[order] = np.abs(np.diagonal(r)) < WHOLE
        if not lost.any():
            break
    return q


def random_orthonormal(d: int, p: int, rng: np.random.Generator, *, against: Block | None = None) -> Block:
    """A d x p orthonormal block, Haar distributed (in the complement of ``against``)."""
    return orth(rng.standard_normal((d, p)), rng, against=against)


def starting_block(
    d: int, p: int, rng: np.random.Generator, *, against: Block | None = None, start: Block | None = None
) -> Block:
    """The d x p orthonormal block that an iteration begins with: random, or ``start`` filled up with random columns.

    Of a ``start`` (d x j, leading columns first) with more than p columns the first p are used.
    """
    if start is None:
        return random_orthonormal(d, p, rng, against=against)
    kept = start[:, :p]
    more = rng.standard_normal((d, p - kept.shape[1]))
    return orth(np.concatenate([kept, more], axis=1), rng, against=against)


class RitzPairs(NamedTuple):
    """Ritz values by falling magnitude, their vectors (d x k), products A @ vectors and residual norms."""

    values: Block
    vectors: Block
    products: Block
    residual_norms: Block


class RitzResiduals(NamedTuple):
    """All Ritz values of a space (m, by falling magnitude) and R^T R (m x m) of their residuals."""

    values: Block
    gram: Block


def rayleigh_ritz(basis: Block, product: Block, k: int) -> RitzPairs:
    """The k leading Ritz pairs of A on range(``basis``), given ``product`` = A @ ``basis``: no access to A.

    ``residual_norms[i] = ||A v_i - theta_i v_i||_2`` in the units of A.
    """
    return _leading_pairs(basis, product, *_ritz(basis, product), k)


def rayleigh_ritz_seen(basis: Block, product: Block, k: int) -> tuple[RitzPairs, RitzResiduals]:
    """As :func:`rayleigh_ritz`, to the same bits; and the values and residuals of all pairs, which cost no vectors.

    Some rows at a time. Residuals are differences of vectors and not of their squares: right to rounding of A.
    """
    theta, rotation, order = _ritz(basis, product)
    pairs = _leading_pairs(basis, product, theta, rotation, order, k)
    values, rest = theta[order], rotation[:, order[k:]]
    gram = np.zeros((len(theta), len(theta)))
    for start in range(0, len(basis), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        wanted = pairs.products[rows] - pairs.vectors[rows] * pairs.values
        others = product[rows] @ rest - (basis[rows] @ rest) * values[k:]
        residuals = np.concatenate([wanted, others], axis=1)
        gram += residuals.T @ residuals
    return pairs, RitzResiduals(values, gram)


def _ritz(basis: Block, product: Block) -> tuple[Block, Block, NDArray[np.intp]]:
    """Ritz values, their coordinates in ``basis``, and the order of falling magnitude."""
    h = basis.T @ product
    theta, rotation = np.linalg.eigh((h + h.T) / 2)
    return theta, rotation, np.argsort(-np.abs(theta), kind="stable")


def _leading_pairs(
    basis: Block, product: Block, theta: Block, rotation: Block, order: NDArray[np.intp], k: int
) -> RitzPairs:
    lead = order[:k]
    theta, rotation = theta[lead], rotation[:, lead]
    vectors, products = basis @ rotation, product @ rotation
    signs = fix_signs(vectors)
    vectors, products = vectors * signs, products * signs
    return RitzPairs(theta, vectors, products, np.linalg.norm(products - vectors * theta, axis=0))


def fix_signs(vectors: Block) -> Block:
    """Signs (+1 or -1 a column) that make the entry of largest magnitude of every column positive."""
    high, low = vectors.max(axis=0), -vectors.min(axis=0)  # no absolute values of the whole block
    first_low = vectors.argmin(axis=0) < vectors.argmax(axis=0)
    return np.where((low > high) | ((low == high) & first_low), -1.0, 1.0)


def asymmetry(basis: Block, product: Block) -> float:
    """Compute how far ``basis^T A basis`` is from symmetric.

    That is the norm of its antisymmetric part over that of the product.
    """
    h, size = basis.T @ product, float(np.linalg.norm(product))
    return float(np.linalg.norm(h - h.T) / 2) / size if size > 0 else 0.0


def symmetric_part(tensor: np.ndarray) -> np.ndarray:
    """The mean of a tensor (d x d x d) over the six orders of its indices, in float64, symmetric to the last bit.

    Sums of two do not depend on their order; those of three are formed of the least, the largest and what is between.
    """
    mean = np.empty(tensor.shape)
    for i in range(len(tensor)):
        first = np.add(tensor[i], tensor[i].T, dtype=np.float64)
        second = np.add(tensor[:, i], tensor[:, :, i], dtype=np.float64)
        least, most = np.minimum(second, second.T), np.maximum(second, second.T)
        middle = np.clip(first, least, most)
        mean[i] = (np.minimum(first, least) + np.maximum(first, most) + middle) / 6
    return mean


# What releases of images P A_i P w are made with: P v for P = I - U U^T, never formed, and which images are there.
#
# The images themselves are those of :class:`npmdask.dp_pca.record_images.ImagesOf`: a row is a function of that
# record and public things alone, bit for bit; every sensitivity of this room rests on it.


def project_out(vectors: np.ndarray, found: Block) -> np.ndarray:
    """``P v`` of a vector (d), or of every row (b x d), twice: once leaves what rounding left of the found ones.

    Where none is found yet, ``vectors`` itself.
    """
    if not found.shape[1]:
        return vectors
    projected = vectors - _project_onto(vectors, found)
    projected -= _project_onto(projected, found)
    return projected


def _project_onto(vectors: np.ndarray, found: Block) -> np.ndarray:
    """``U U^T v``. Of one column the same bits without a matrix product, which is several times slower there."""
    parts = vectors @ found
    return parts * found[:, 0] if found.shape[1] == 1 else parts @ found.T


def unit(vector: np.ndarray) -> np.ndarray:
    """``vector`` at length 1.

    Raises
    ------
    BadInputError
        A vector of length zero or not finite.
    """
    length = float(np.linalg.norm(vector))
    require(0 < length < np.inf, f"a vector of length {length} has no direction: use a smaller step size")
    return vector / length


def present(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Images with rows that are not finite set to zero, and which rows are not zero: those of records that are there.

    Raises
    ------
    BadInputError
        Not two-dimensional float64.
    """
    if not isinstance(images, np.ndarray) or images.dtype != np.float64 or images.ndim != 2:
        raise BadInputError("images of records are a float64 array with one row each")
    values = images.ravel()
    with np.errstate(over="ignore", invalid="ignore"):
        squares = values @ values
    if np.isfinite(squares) and images[:, :1].all():  # as a rule: a sum of squares hides nothing
        return images, np.ones(len(images), bool)
    finite = np.isfinite(images).all(axis=1)
    if not finite.all():
        images = np.where(finite[:, None], images, 0.0)
    return images, np.any(images != 0.0, axis=1)


# How wrong a basis is (Duengler and Sanyal 2025, Definition 1, Lemma 1), and how close eigenvalues are.


NEARLY_ORTHONORMAL = 1e-8


def principal_angle_sines(basis: Block, target: Block) -> Block:
    """Sines of the principal angles between range(``basis``) (d x p) and range(``target``) (d x k), k <= p.

    Both orthonormal. Computed from the residual ``(I - X X^T) U`` and not from ``1 - cos^2``, so that angles
    down to machine precision are exact. In falling order: the first is ``sin theta_k = ||(I - X X^T) U||_2``
    of Hardt and Price, section 2.
    """
    residual = target - basis @ (basis.T @ target)
    return np.minimum(np.linalg.svd(residual, compute_uv=False), 1.0)


def max_sin_theta(basis: Block, target: Block) -> float:
    """The largest sine of the principal angles: 0 when range(``target``) lies inside range(``basis``)."""
    return float(principal_angle_sines(basis, target)[0])


def condition_number(eigenvalues: np.ndarray, k: int) -> float:
    """
    Compute how close together the leading eigenvalues are.

    kappa' = lambda_1 / Delta, Delta the least gap among the first k + 1 eigenvalues (falling, none negative).

    Duengler and Sanyal 2025, Theorem 1.

    Parameters
    ----------
    eigenvalues : array_like, shape (m,)
        Eigenvalues of Sigma, falling without ties, none negative; k + 1 of them at least, the others are not looked at.
    k : int
        How many vectors are wanted.

    Returns
    -------
    float
        Kappa', at least k.

    Raises
    ------
    BadInputError
        Numbers outside of their ranges.

    Examples
    --------
    >>> from npmdask import theory
    >>> theory.condition_number([4.0, 3.0, 1.0], 2)
    4.0
    """
    counts(k=k)
    values = np.asarray(eigenvalues, dtype=np.float64)[: k + 1]
    gaps = -np.diff(values)
    if len(gaps) != k or not (gaps > 0).all() or not 0 <= values[-1] <= values[0] <= LARGEST:
        raise BadInputError(
            f"k = {k} vectors are determined by k + 1 falling eigenvalues only: give them, without ties, none negative"
        )
    return float(values[0] / gaps.min())


def zeta(basis: Block, vectors: Block, values: np.ndarray, sigma: Callable[[Block], Block]) -> float:
    """
    Compute the error of a basis, the square root of the share of variance that it misses.

    The error zeta of Definition 1 of Duengler and Sanyal 2025: <U U^T, Sigma> = (1 - zeta^2) <V_k V_k^T, Sigma>.

    Parameters
    ----------
    basis : array, shape (d, k)
        U, with orthonormal columns (to 1e-8).
    vectors : array, shape (d, k)
        The k leading eigenvectors of Sigma.
    values : array, shape (k,)
        Their eigenvalues, of which one at least is positive.
    sigma : callable
        Gives Sigma X for a block X (d x k).

    Returns
    -------
    float
        Zeta, from 0 to 1: 0 for the leading eigenvectors themselves, 1 where all of their variance is missed.

    Raises
    ------
    BadInputError
        ``basis`` not of the shape of ``vectors``, or not orthonormal; eigenvalues of which none is positive.

    Notes
    -----
    The two energies agree to many digits for a good U, so their difference is made of residuals: with R = U - V V^T U
    it is sum of lambda_i ||v_i - U U^T v_i||^2 - <R, Sigma R>, in which nothing cancels as long as lambda_{k+1} is
    not close to lambda_k. Right to a zeta of 1e-15 or so.

    Examples
    --------
    >>> from npmdask import theory
    >>> import numpy as np
    >>> sigma = np.diag([3.0, 2.0, 1.0])
    >>> turned = np.array([[1.0, 0.0], [0.0, np.cos(0.1)], [0.0, np.sin(0.1)]])
    >>> round(theory.zeta(turned, np.eye(3)[:, :2], np.array([3.0, 2.0]), lambda x: sigma @ x), 4)
    0.0446
    """
    basis = np.asarray(basis, dtype=np.float64)
    if basis.shape != vectors.shape or not _orthonormal(basis):
        raise BadInputError(
            f"zeta is defined for k orthonormal columns, {vectors.shape} here: not for a basis {basis.shape} as given; "
            "orthonormalise it first (npmdask.core.numerics.subspaces.orth)"
        )
    if not np.sum(values) > 0:
        raise BadInputError("zeta is a share of the k leading eigenvalues: it is not defined where all of them are 0")
    missed = vectors - basis @ (basis.T @ vectors)
    outside = basis - vectors @ (vectors.T @ basis)
    loss = float(values @ (missed**2).sum(axis=0)) - float(np.vdot(outside, sigma(outside)))
    return math.sqrt(min(max(loss / float(np.sum(values)), 0.0), 1.0))


def _orthonormal(basis: Block) -> bool:
    return bool(np.abs(basis.T @ basis - np.eye(basis.shape[1])).max() <= NEARLY_ORTHONORMAL)


def zeta_from_frobenius(distance: float, eigenvalues: np.ndarray, k: int) -> float:
    """
    Bound the error of a basis from below by its distance from the true one.

    The least zeta of a U with ||U U^T - V_k V_k^T||_F = ``distance`` (Duengler and Sanyal 2025, Lemma 1), without a
    constant: attained up to a distance of sqrt(2), where one direction is lost; beyond it, as a rule, only a bound.

    distance sqrt(Delta_k / (2 sum of the k leading eigenvalues)), Delta_k = lambda_k - lambda_{k+1}.

    Parameters
    ----------
    distance : float
        ||U U^T - V_k V_k^T||_F, from 0 to sqrt(2 k).
    eigenvalues : array_like, shape (m,)
        Eigenvalues of Sigma, falling (ties allowed), none negative, the first above 0; k + 1 of them at least.
    k : int
        Columns of U.

    Returns
    -------
    float
        What zeta is at least, from 0 to 1.

    Raises
    ------
    BadInputError
        Numbers outside of their ranges.

    Examples
    --------
    >>> from npmdask import theory
    >>> round(theory.zeta_from_frobenius(0.1, [3.0, 2.0, 1.0], 2), 4)
    0.0316
    """
    counts(k=k)
    values = np.asarray(eigenvalues, dtype=np.float64)
    falls = len(values) > k and (np.diff(values[: k + 1]) <= 0).all() and 0 <= values[k] <= values[0] <= LARGEST
    if not falls or not values[0] > 0 or not 0 <= distance <= math.sqrt(2 * k) * (1 + 1e-9):
        raise BadInputError(
            f"Lemma 1 needs k + 1 falling eigenvalues and a distance of projectors, at most sqrt(2 k), k = {k}"
        )
    return distance * math.sqrt((values[k - 1] - values[k]) / (2 * float(values[:k].sum())))


# The same on blocks that are held a tile of rows at a time: the same numbers to rounding. Sums over tiles are formed in
# their order, so that they have the same bits with any number of threads.

T = TypeVar("T")
BASES = 3  # of a power method: X_{l-1}, of which the answer is made, X_l, and the product that becomes X_{l+1}


class TiledBlock(Protocol):
    """A block (d x p) that lies elsewhere."""

    @property
    def shape(self) -> tuple[int, int]: ...
    @property
    def tiles(self) -> list[slice]: ...
    def tile(self, number: int) -> np.ndarray: ...
    def write(self, start: int, values: np.ndarray) -> None: ...


class KeptBlock(TiledBlock, Protocol):
    """One that is read again later, perhaps by another process: ``sums`` are checksums of its tiles."""

    def known_by(self, sums: np.ndarray, /) -> KeptBlock: ...
    def sums(self, threads: int) -> np.ndarray: ...
    def flush(self) -> None: ...


class Places(Protocol):
    """Places of the blocks of a run, each in the place of the one of BASES steps before."""

    threads: int

    def basis(self, step: int, shape: tuple[int, int]) -> KeptBlock: ...
    def reserve(self, blocks: Any) -> None: ...
    def note(self, step: int, done: dict[str, Any]) -> None: ...


class TurnedBlock:
    """``block @ turn`` (d x k), never formed: it is written and read a tile at a time."""

    dtype = np.dtype(np.float64)

    def __init__(self, block: TiledBlock, turn: np.ndarray) -> None:
        self.block, self.turn = block, turn

    @property
    def shape(self) -> tuple[int, int]:
        return self.block.shape[0], self.turn.shape[1]

    @property
    def nbytes(self) -> int:
        return self.shape[0] * self.shape[1] * 8

    def pieces(self) -> Iterator[np.ndarray]:
        """Its rows, from the first to the last."""
        for number in range(len(self.block.tiles)):
            yield self.block.tile(number) @ self.turn

    def __getitem__(self, index: tuple[slice, slice]) -> TurnedBlock:
        """Some of its columns."""
        rows, columns = index
        assert rows == slice(None)
        return TurnedBlock(self.block, self.turn[:, columns])


def over_tiles(work: Callable[[int], T], block: TiledBlock, threads: int) -> Iterator[T]:
    """``work`` on each tile by its number, some at a time; what it gives, in the order of the tiles."""
    with ThreadPoolExecutor(threads) as pool:
        yield from pool.map(work, range(len(block.tiles)))


class TiledRitz(NamedTuple):
    """Ritz pairs of A on the range of a tiled block.

    All ``values`` (p, by falling magnitude) and ``gram`` (R^T R of their residuals); the ``turn`` (p x k) that makes
    the block the leading vectors; ``asymmetry`` of ``basis^T A basis``, relative to the norm of the product.
    """

    values: np.ndarray
    gram: Block
    turn: Block
    asymmetry: float
    scale: np.ndarray  # lengths of the columns of the product


def tiled_rayleigh_ritz(basis: TiledBlock, product: TiledBlock, k: int, threads: int) -> TiledRitz:
    """The Ritz pairs of A on range(``basis``), given ``product`` = A @ ``basis``; each is read twice.

    Residuals are differences of vectors, as of blocks in memory: right to rounding of A.
    """

    def first(number: int) -> tuple[np.ndarray, np.ndarray]:
        tile = product.tile(number)
        return basis.tile(number).T @ tile, _largest(tile)

    h, largest = np.zeros((basis.shape[1],) * 2), np.zeros(basis.shape[1])
    for part, size in over_tiles(first, basis, threads):
        h += part
        largest = np.maximum(largest, size)
    theta, rotation = np.linalg.eigh((h + h.T) / 2)
    order = np.argsort(-np.abs(theta), kind="stable")
    values, rotation, unit = theta[order], rotation[:, order], _positive(largest)

    def second(number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        tile = product.tile(number)
        vectors = basis.tile(number) @ rotation
        ends = vectors[:, :k].argmax(axis=0), vectors[:, :k].argmin(axis=0)
        extremes = np.stack([vectors[at, range(k)] for at in ends])
        places = np.stack(ends) + basis.tiles[number].start
        vectors *= -values
        vectors += tile @ rotation
        gram = vectors.T @ vectors
        tile /= unit
        return gram, np.einsum("ij,ij->j", tile, tile), extremes, places

    gram, squares = np.zeros_like(h), np.zeros(len(h))
    ends, where = np.array([[-np.inf], [np.inf]]) * np.ones(k), np.zeros((2, k), np.int64)
    for part, lengths, extremes, places in over_tiles(second, basis, threads):
        gram += part
        squares += lengths
        further = np.stack([extremes[0] > ends[0], extremes[1] < ends[1]])
        ends, where = np.where(further, extremes, ends), np.where(further, places, where)
    low, high = -ends[1], ends[0]
    signs = np.where((low > high) | ((low == high) & (where[1] < where[0])), -1.0, 1.0)  # as ``fix_signs``
    scale = unit * _positive(np.sqrt(squares))
    norm = float(np.linalg.norm(unit * np.sqrt(squares)))
    skew = float(np.linalg.norm(h - h.T)) / 2
    return TiledRitz(values, gram, rotation[:, :k] * signs, skew / norm if norm > 0 else 0.0, scale)


def column_lengths(block: TiledBlock, threads: int) -> np.ndarray:
    """The norm of each column (1 of columns that are zero), without overflow of squares."""
    largest = np.zeros(block.shape[1])
    for size in over_tiles(lambda number: _largest(block.tile(number)), block, threads):
        largest = np.maximum(largest, size)
    unit = _positive(largest)

    def squares(number: int) -> np.ndarray:
        tile = block.tile(number) / unit
        return np.asarray(np.einsum("ij,ij->j", tile, tile))

    total = np.zeros(block.shape[1])
    for part in over_tiles(squares, block, threads):
        total += part
    return np.asarray(unit * _positive(np.sqrt(total)))


def _largest(tile: np.ndarray) -> np.ndarray:
    return np.asarray(np.maximum(tile.max(axis=0), -tile.min(axis=0)))


def tiled_orth(block: TiledBlock, scale: np.ndarray, completion: np.random.Generator, threads: int) -> None:
    """Replace ``block`` by an orthonormal basis of its range, as :func:`npmdask.core.numerics.subspaces.orth` does.

    TSQR (Demmel, Grigori, Hoemmen and Langou 2012): Householder's QR of each tile, and of all their R factors. It is
    stable whatever the condition of the block, which Cholesky QR is not, so nothing needs to be tested and repaired.
    Each tile is factorised twice, once for R and once for Q, so that no second block is kept. Killed in its middle it
    has spoilt the block.

    Parameters
    ----------
    block : d x p.
    scale : what its columns are divided by (p): their lengths.
    completion : draws directions in the place of columns that are zero to rounding.
    """
    every = np.arange(block.shape[1])
    turns, r = _factors(block, scale, every, threads)
    least = 8 * block.shape[0] ** 0.5 * np.finfo(np.float64).eps
    lost = np.abs(np.diagonal(r)) <= least
    if not lost.any():
        _replace(block, scale, every, turns, np.diag(_signs(r)), every, threads)
        return
    kept, turn = _independent(r, least)
    lost = ~np.isin(every, kept)
    _replace(block, scale, every, turns, turn, kept, threads)
    for _ in range(TRIES):
        for number, part in enumerate(block.tiles):  # in their order: one stream of random numbers
            tile = block.tile(number)
            tile[:, lost] = completion.standard_normal((len(tile), int(lost.sum())))
            block.write(part.start, tile)
        order, one = np.argsort(lost, kind="stable"), np.ones(block.shape[1])
        for _ in range(2):  # "twice is enough"
            turns, r = _factors(block, one, order, threads)
            _replace(block, one, order, turns, np.diag(_signs(r)), order, threads)
        lost = np.zeros_like(lost)
        lost[order] = np.abs(np.diagonal(r)) < WHOLE
        if not lost.any():
            return


def _signs(r: Block) -> np.ndarray:
    return np.where(np.diagonal(r) < 0, -1.0, 1.0)


def _scaled(block: TiledBlock, number: int, scale: np.ndarray, columns: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray((block.tile(number) / scale)[:, columns])


def _factors(block: TiledBlock, scale: np.ndarray, columns: np.ndarray, threads: int) -> tuple[Block, Block]:
    """Compute what the Q of each tile is multiplied by (p x p each, one under the other), and R of the whole."""

    def factor(number: int) -> np.ndarray:
        return tall_qr(_scaled(block, number, scale, columns))[1]

    return tall_qr(np.concatenate(list(over_tiles(factor, block, threads))))


def _replace(
    block: TiledBlock,
    scale: np.ndarray,
    columns: np.ndarray,
    turns: Block,
    turn: Block,
    into: np.ndarray,
    threads: int,
) -> None:
    """Write Q @ ``turn`` into the columns ``into``, tile by tile."""
    p = len(columns)

    def rewrite(number: int) -> None:
        q = tall_qr(_scaled(block, number, scale, columns))[0]
        found = np.zeros((len(q), block.shape[1]))
        found[:, into] = q @ (turns[number * p : (number + 1) * p] @ turn)
        block.write(block.tiles[number].start, found)

    for _ in over_tiles(rewrite, block, threads):
        pass


def tiled_random(block: TiledBlock, rng: np.random.Generator, threads: int) -> None:
    """Make ``block`` the orthonormal block that ``random_orthonormal`` makes of the same stream, to rounding."""
    for part in block.tiles:
        block.write(part.start, rng.standard_normal((part.stop - part.start, block.shape[1])))
    tiled_orth(block, column_lengths(block, threads), rng, threads)


# One thread of BLAS, wherever numbers are made that must have the same bits with any number of cores.


class _OneThread:
    """The limit of one BLAS thread, held from the first who enters to the last who leaves.

    ``threadpool_limits`` puts back what it found: of two runs in two threads, the first to end would give the other
    one all cores in its midst. (Where the last to leave is another thread than the first to enter, threadpoolctl may
    refuse to put anything back, and the process stays with one thread: slower, never wrong.)
    """

    def __init__(self) -> None:
        self._lock, self._inside, self._limits = threading.Lock(), 0, ExitStack()
        self._limited: Any = None

    def enter(self) -> None:
        # The libraries are looked for again only after an import: that takes a millisecond and more.
        libraries = get_cached_controller()
        with self._lock:
            if not self._inside or libraries is not self._limited:
                self._limits.enter_context(libraries.limit(limits=1))
                self._limited = libraries
            self._inside += 1

    def leave(self) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._limits.close()


_ONE_THREAD = _OneThread()


@contextmanager
def single_threaded_blas() -> Iterator[None]:
    """BLAS on one thread: its blocking, and so the last bits of QR, depend on the number of threads."""
    _ONE_THREAD.enter()
    try:
        yield
    finally:
        _ONE_THREAD.leave()
