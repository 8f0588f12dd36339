"""The data of Duengler and Sanyal 2025 (Example 1, section 5, appendix G): streams of random matrices A_i, their truth.

A matrix is A_i = V diag(common) V^T + x_i x_i^T and is never formed: a batch gives images A_i w. Where there is no
common part it is a record x_i. Rows come in blocks whose randomness is named by their number, so any range of them can
be asked for, again, and is the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
from numpy.typing import ArrayLike

from npmdask.core.numerics.random import generator
from npmdask.core.numerics.subspaces import Block, random_orthonormal
from npmdask.errors import require
from npmdask.theory import AssumptionA, condition_number, zeta

ROWS = 4096  # of a block
KEPT_BYTES = 2**31  # of the rows of one stream, the last that was asked: all of n = 10^6 with d = 200


@dataclass(frozen=True, eq=False)
class MatrixBatch:
    """
    A batch of b matrices A_i = x_i x_i^T + V diag(common) V^T, held by their parts; no d x d matrix is formed.

    Attributes
    ----------
    rows : array, shape (b, d)
        The records x_i.
    vectors : array, shape (d, k)
        Directions V of what all matrices have in common.
    common : array, shape (k,)
        Its eigenvalues; zeros where matrices are records alone.

    Examples
    --------
    >>> import numpy as np
    >>> from npmdask.experiments import MatrixBatch
    >>> batch = MatrixBatch(np.array([[1.0, 0.0], [0.0, 2.0]]), np.array([[1.0], [0.0]]), np.array([3.0]))
    >>> len(batch), batch.traces()
    (2, array([4., 7.]))
    >>> batch.total(np.ones(2))
    array([[7., 0.],
           [0., 4.]])
    """

    rows: np.ndarray
    vectors: Block
    common: np.ndarray

    def __len__(self) -> int:
        return len(self.rows)

    def image(self, number: int, vector: np.ndarray) -> np.ndarray:
        """
        Compute the image A_i w of one matrix.

        Parameters
        ----------
        number : int
            Which of the matrices, from 0.
        vector : array, shape (d,)
            The vector w.

        Returns
        -------
        array, shape (d,)
            Its image.
        """
        row = self.rows[number]
        image: np.ndarray = row * (row @ vector) + self.vectors @ (self.common * (vector @ self.vectors))
        return image

    def images(self, vector: np.ndarray) -> np.ndarray:
        """
        Compute the images A_i w of a vector.

        Parameters
        ----------
        vector : array, shape (d,)
            The vector w.

        Returns
        -------
        array, shape (b, d)
            One image for every matrix.
        """
        images = self.rows * (self.rows @ vector)[:, None]
        images += self.vectors @ (self.common * (self.vectors.T @ vector))
        return images

    def traces(self) -> np.ndarray:
        """
        Compute the traces of all matrices.

        Returns
        -------
        array, shape (b,)
            The traces tr A_i.
        """
        return self.common.sum() + np.einsum("ij,ij->i", self.rows, self.rows)

    def diagonals(self) -> np.ndarray:
        """
        Compute the diagonals of all matrices.

        Returns
        -------
        array, shape (b, d)
            One diagonal for every matrix.
        """
        return (self.vectors**2) @ self.common + self.rows**2

    def product(self, weights: np.ndarray, block: Block) -> Block:
        """
        Compute the weighted sum of all matrices times a block.

        Parameters
        ----------
        weights : array, shape (b,)
            A factor for every matrix.
        block : array, shape (d, p)
            The block X.

        Returns
        -------
        array, shape (d, p)
            The sum of weights_i A_i X.
        """
        shared = self.vectors @ (self.common[:, None] * (self.vectors.T @ block))
        return float(weights.sum()) * shared + self.rows.T @ (weights[:, None] * (self.rows @ block))

    def total(self, weights: np.ndarray) -> np.ndarray:
        """
        Compute the weighted sum of all matrices, as a d x d matrix.

        Parameters
        ----------
        weights : array, shape (b,)
            A factor for every matrix.

        Returns
        -------
        array, shape (d, d)
            The sum of weights_i A_i.
        """
        shared = (self.vectors * self.common) @ self.vectors.T
        return float(weights.sum()) * shared + (self.rows.T * weights) @ self.rows


@dataclass(frozen=True, eq=False)
class MatrixStream:
    """
    A stream of ``n`` independent matrices with mean Sigma = V diag(values - floor) V^T + floor I.

    Made by :func:`signal_and_noise`, :func:`spiked`, :func:`gaussian` and :func:`violation`.

    Attributes
    ----------
    n : int
        How many matrices.
    seed : int
        Of everything that is drawn.
    vectors : array, shape (d, k)
        The k leading eigenvectors V of Sigma.
    values : array, shape (k,)
        Their eigenvalues, falling.
    floor : float
        All the other eigenvalues.
    common : array, shape (k,)
        Eigenvalues of the part that all matrices have; zeros if they are records x_i x_i^T.
    draw : callable
        Gives ``rows`` (count x d) when called with a generator and a count.
    model : AssumptionA
        How the matrices are spread about Sigma, for the bounds of :mod:`npmdask.theory.stochastic`: V and gamma are
        exact; M is a typical ||A_i - Sigma|| / lambda_1, as normal records have no bound.

    Examples
    --------
    >>> from npmdask.experiments import spiked
    >>> stream = spiked(1000, 20, amplitude=1.0, sigma=0.5, seed=0)
    >>> stream.d, stream.values, stream.floor
    (20, array([1.25]), 0.25)
    >>> len(stream.batch(100, 300)), stream.zeta(stream.vectors) < 1e-12
    (200, True)
    """

    n: int
    seed: int
    vectors: Block
    values: np.ndarray
    floor: float
    common: np.ndarray
    draw: Callable[[np.random.Generator, int], np.ndarray]
    model: AssumptionA

    @property
    def d(self) -> int:
        """Give the dimension: matrices are d x d."""
        return len(self.vectors)

    @property
    def eigenvalues(self) -> np.ndarray:
        """Give the k leading eigenvalues of Sigma and the next (k + 1 numbers, falling)."""
        return np.append(self.values, self.floor)

    def batch(self, start: int, stop: int) -> MatrixBatch:
        """
        Return a range of the matrices, the same whenever it is asked for.

        Parameters
        ----------
        start : int
            Number of the first, from 0.
        stop : int
            Number after the last, at most n.

        Returns
        -------
        MatrixBatch
            Matrices ``start`` to ``stop`` (not included).

        Raises
        ------
        BadInputError
            An empty range, or one beyond the stream.
        """
        require(0 <= start < stop <= self.n, f"matrices {start} to {stop} were requested, but the stream has {self.n}")
        parts = []
        for number in range(start // ROWS, -(-stop // ROWS)):
            first = number * ROWS
            parts.append(_rows(self, number)[max(start - first, 0) : stop - first])
        rows = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return MatrixBatch(rows, self.vectors, self.common)

    def batches(self) -> Iterator[MatrixBatch]:
        """
        Yield all matrices once.

        Yields
        ------
        MatrixBatch
            The next 4096 matrices, or what is left of them.
        """
        for start in range(0, self.n, ROWS):
            yield self.batch(start, min(start + ROWS, self.n))

    def sigma(self, block: Block) -> Block:
        """
        Multiply a block with the true mean.

        Parameters
        ----------
        block : array, shape (d, p)
            The block X.

        Returns
        -------
        array, shape (d, p)
            The product Sigma X.
        """
        return self.floor * block + self.vectors @ ((self.values - self.floor)[:, None] * (self.vectors.T @ block))

    def zeta(self, basis: Block) -> float:
        """
        Compute the error of a basis against the truth (Definition 1): 0 is exact, 1 the most there is.

        Parameters
        ----------
        basis : array, shape (d, k)
            The basis U, orthonormal.

        Returns
        -------
        float
            The zeta of <U U^T, Sigma> = (1 - zeta^2) <V V^T, Sigma>.

        Raises
        ------
        BadInputError
            A basis of another shape, or not orthonormal.
        """
        return zeta(basis, self.vectors, self.values, self.sigma)


def _rows(stream: MatrixStream, number: int) -> np.ndarray:
    """Block ``number`` of a stream: kept where there is room, else drawn again."""
    kept = _drawn_blocks(stream)
    if number in kept:
        return kept[number]
    rows = stream.draw(generator(stream.seed, "rows", number), min(ROWS, stream.n - number * ROWS))
    if (len(kept) + 1) * ROWS * stream.d * rows.itemsize <= KEPT_BYTES:
        kept[number] = rows
    return rows


@lru_cache(maxsize=1)
def _drawn_blocks(stream: MatrixStream) -> dict[int, np.ndarray]:
    """The blocks of a stream that were drawn, by number."""
    return {}


def signal_and_noise(n: int, d: int, lambdas: ArrayLike, sigma: float, seed: int) -> MatrixStream:
    """
    Make the data of appendix G for k > 1: A_i = V diag(lambdas) V^T + z_i z_i^T, z_i ~ N(0, sigma^2 I).

    Only z_i is random.

    Parameters
    ----------
    n : int
        How many matrices.
    d : int
        Their dimension.
    lambdas : array_like, shape (k,)
        Eigenvalues of the signal, falling and without ties.
    sigma : float
        Standard deviation of the noise.
    seed : int
        Of V and of the noise.

    Returns
    -------
    MatrixStream
        The matrices; the eigenvalues of their mean are lambdas + sigma^2, all others sigma^2.

    Raises
    ------
    BadInputError
        Eigenvalues that do not fall.

    Notes
    -----
    With E (z z^T - sigma^2 I)^2 = sigma^4 (d + 1) I, V and gamma are of the order of (sigma^2 / lambda_1)^2 d and
    sigma^2 / lambda_1: smaller than those of Example 1, sigma^2 d and sigma at lambda_1 = 1.

    Examples
    --------
    As all matrices share the signal, they are far closer to their mean than records of the same spectrum:

    >>> from npmdask.experiments import gaussian, signal_and_noise
    >>> for make in (signal_and_noise, gaussian):
    ...     stream = make(1000, 20, [10.0, 5.0], sigma=0.1, seed=0)
    ...     print(stream.values, f"{stream.model.gamma:.4f}")
    [10.01  5.01] 0.0014
    [10.01  5.01] 1.4142
    """
    common = np.asarray(lambdas, dtype=np.float64)
    values = common + sigma**2
    ratio = sigma**2 / values[0]
    spread = {"V": ratio**2 * (d + 1), "gamma": math.sqrt(2) * ratio, "M": ratio * d}
    return _stream(n, d, values, sigma**2, seed, common, lambda _, *asked: _noise(d, sigma, *asked), spread)


def spiked(n: int, d: int, amplitude: float, sigma: float, seed: int) -> MatrixStream:
    """
    Make the data of Example 1 (k = 1): x_i = +-amplitude v + z_i, z_i ~ N(0, sigma^2 I), A_i = x_i x_i^T.

    Parameters
    ----------
    n : int
        How many records.
    d : int
        Their dimension.
    amplitude : float
        1 in Example 1, and the "lambda_1" of appendix G, whose square is then the eigenvalue: lambda_1 = amplitude^2 +
        sigma^2. Positive.
    sigma : float
        Standard deviation of the noise.
    seed : int
        Of v, of the signs and of the noise.

    Returns
    -------
    MatrixStream
        The records; the eigenvalues of their mean are lambda_1 along v, all others sigma^2.

    Raises
    ------
    BadInputError
        An amplitude of zero: no direction leads.

    Examples
    --------
    >>> from npmdask.experiments import spiked
    >>> stream = spiked(1000, 20, amplitude=10.0, sigma=0.5, seed=0)
    >>> stream.eigenvalues
    array([100.25,   0.25])
    """
    signal, noise = amplitude**2, sigma**2
    value = signal + noise
    spread = {
        "V": (signal * noise * (d + 3) + noise**2 * (d + 1)) / value**2,
        "gamma": math.sqrt(4 * signal * noise + 2 * noise**2) / value,
        "M": (2 * amplitude * sigma * math.sqrt(d) + noise * d) / value,
    }

    def draw(vectors: Block, rng: np.random.Generator, count: int) -> np.ndarray:
        signs = rng.choice([-amplitude, amplitude], size=(count, 1))
        return signs * vectors[:, 0] + _noise(d, sigma, rng, count)

    return _stream(n, d, np.array([value]), noise, seed, np.zeros(1), draw, spread)


def gaussian(n: int, d: int, lambdas: ArrayLike, sigma: float, seed: int) -> MatrixStream:
    """
    Make the data of Figure 4: x_i ~ N(0, V diag(lambdas) V^T + sigma^2 I), A_i = x_i x_i^T.

    Parameters
    ----------
    n : int
        How many records.
    d : int
        Their dimension.
    lambdas : array_like, shape (k,)
        Eigenvalues of the signal, falling and without ties.
    sigma : float
        Standard deviation of the noise.
    seed : int
        Of V, of the signal and of the noise.

    Returns
    -------
    MatrixStream
        The records; the eigenvalues of their mean are lambdas + sigma^2, all others sigma^2.

    Raises
    ------
    BadInputError
        Eigenvalues that do not fall.

    Examples
    --------
    The mean of 2000 records has about the eigenvalues of Sigma:

    >>> import numpy as np
    >>> from npmdask.experiments import clipped_sum, gaussian
    >>> stream = gaussian(2000, 10, [10.0, 5.0], sigma=1.0, seed=0)
    >>> mean = clipped_sum(stream, np.inf) / stream.n
    >>> stream.eigenvalues, np.linalg.eigvalsh(mean)[:-4:-1].round(1)
    (array([11.,  6.,  1.]), array([10.9,  6.2,  1.1]))
    """
    signal = np.asarray(lambdas, dtype=np.float64)
    values = signal + sigma**2
    trace = float(signal.sum()) + d * sigma**2
    spread = {"V": trace / values[0] + 1, "gamma": math.sqrt(2), "M": trace / values[0], "K": 4.0}

    def draw(vectors: Block, rng: np.random.Generator, count: int) -> np.ndarray:
        factor = vectors * np.sqrt(signal)
        return rng.standard_normal((count, len(signal))) @ factor.T + _noise(d, sigma, rng, count)

    return _stream(n, d, values, sigma**2, seed, np.zeros(len(signal)), draw, spread)


def violation(n: int, d: int, share: float, seed: int) -> MatrixStream:
    """
    Make the data of Example 3: +-share^(-1/4) v with probability ``share``, else N(0, I).

    They lack the tail of Assumption A.4, beyond which nothing is proved.

    Parameters
    ----------
    n : int
        How many records.
    d : int
        Their dimension.
    share : float
        Of the records along v, between 0 and 1.
    seed : int
        Of v and of the records.

    Returns
    -------
    MatrixStream
        The records; their ``model`` has K = inf.

    Notes
    -----
    Sigma = (1 - share) I + sqrt(share) v v^T. V and gamma stay bounded, but no K does for every share: the tail of
    v^T (A_i - Sigma) v reaches 1 / sqrt(share).

    Examples
    --------
    The rarer the records along v, the longer they are; gamma hardly notices:

    >>> from npmdask.experiments import violation
    >>> for share in (0.1, 0.01, 0.0001):
    ...     stream = violation(2000, 10, share, seed=0)
    ...     print(share, round(share**-0.25, 1), round(stream.model.gamma, 1))
    0.1 1.8 1.2
    0.01 3.2 1.5
    0.0001 10.0 1.7
    """
    require(0 < share <= 1, f"share = {share} must be a share of the records, above 0 and at most 1")
    floor = 1 - share
    value = floor + math.sqrt(share)
    along, across = 1 + 3 * floor - value**2, 3 * floor - floor**2  # ||E (A - Sigma) u u^T (A - Sigma)||, u = v or not
    parts = (1 + floor * (d + 2) - value**2, floor * (d + 2) - floor**2)  # E (A - Sigma)^2, along v and across
    largest = max(1 / math.sqrt(share), d) / value
    spread = {"V": max(parts) / value**2, "gamma": math.sqrt(max(along, across)) / value, "M": largest, "K": math.inf}

    def draw(vectors: Block, rng: np.random.Generator, count: int) -> np.ndarray:
        signs = rng.choice([-1.0, 1.0], size=(count, 1)) * share**-0.25
        chosen = rng.random((count, 1)) < share
        return np.where(chosen, signs * vectors[:, 0], rng.standard_normal((count, d)))

    return _stream(n, d, np.array([value]), floor, seed, np.zeros(1), draw, spread)


def _noise(d: int, sigma: float, rng: np.random.Generator, count: int) -> np.ndarray:
    rows = rng.standard_normal((count, d))
    rows *= sigma
    return rows


def _stream(
    n: int,
    d: int,
    values: np.ndarray,
    floor: float,
    seed: int,
    common: np.ndarray,
    draw: Callable[[Block, np.random.Generator, int], np.ndarray],
    spread: dict[str, float],
) -> MatrixStream:
    """Make a stream with its own random V."""
    k = len(values)
    vectors = random_orthonormal(d, k, generator(seed, "signal"))
    model = AssumptionA(kappa=condition_number(np.append(values, floor), k), **spread)
    return MatrixStream(n, seed, vectors, values, floor, common, partial(draw, vectors), model)
