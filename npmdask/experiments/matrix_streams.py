"""The data of Duengler and Sanyal 2025 (Example 1, section 5, appendix G): streams of random matrices A_i, their truth.

A matrix is A_i = V diag(common) V^T + x_i x_i^T and is never formed: a batch gives images A_i w. Where there is no
common part it is a record x_i. Rows come in blocks whose randomness is named by their number, so any range of them can
be asked for, again, and is the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from npmdask.errors import BadInputError
from npmdask.numerics.random import generator
from npmdask.numerics.subspaces import Block, random_orthonormal
from npmdask.theory import AssumptionA, condition_number, zeta

ROWS = 4096  # of a block
KEPT_BYTES = 2**31  # of the rows of one stream, the last that was asked: all of n = 10^6 with d = 200


@dataclass(frozen=True, eq=False)
class MatrixBatch:
    """Hold b matrices A_i = x_i x_i^T + V diag(common) V^T by their parts.

    Parameters
    ----------
    rows : x_i (b x d).
    vectors, common : V (d x k) and k numbers, of what all have in common.
    """

    rows: np.ndarray
    vectors: Block
    common: np.ndarray

    def __len__(self) -> int:
        return len(self.rows)

    def images(self, vector: np.ndarray) -> np.ndarray:
        """Return A_i w of every matrix (b x d) for one vector w (d)."""
        images = self.rows * (self.rows @ vector)[:, None]
        images += self.vectors @ (self.common * (self.vectors.T @ vector))
        return images

    def traces(self) -> np.ndarray:
        """Return tr A_i (b)."""
        return self.common.sum() + np.einsum("ij,ij->i", self.rows, self.rows)

    def diagonals(self) -> np.ndarray:
        """Return the diagonals of all A_i (b x d)."""
        return (self.vectors**2) @ self.common + self.rows**2

    def product(self, weights: np.ndarray, block: Block) -> Block:
        """Return the sum of weights_i A_i X (d x p)."""
        shared = self.vectors @ (self.common[:, None] * (self.vectors.T @ block))
        return float(weights.sum()) * shared + self.rows.T @ (weights[:, None] * (self.rows @ block))

    def total(self, weights: np.ndarray) -> np.ndarray:
        """Return the sum of weights_i A_i as a d x d matrix."""
        shared = (self.vectors * self.common) @ self.vectors.T
        return float(weights.sum()) * shared + (self.rows.T * weights) @ self.rows


@dataclass(frozen=True, eq=False)
class MatrixStream:
    """Hold ``n`` independent matrices with mean Sigma = V diag(values - floor) V^T + floor I.

    Made by :func:`signal_and_noise`, :func:`spiked`, :func:`gaussian` and :func:`violation`.

    Parameters
    ----------
    n, seed : how many, and of everything that is drawn.
    vectors, values : the k leading eigenvectors V (d x k) and eigenvalues of Sigma, falling.
    floor : all the other eigenvalues.
    common : of the part that all matrices have (k; zeros if they are records x_i x_i^T).
    draw : gives ``rows`` (count x d) from a generator.
    model : how the matrices are spread about Sigma, for the bounds of :mod:`npmdask.theory.stochastic`: V and gamma
        are exact; M is a typical ||A_i - Sigma|| / lambda_1, as normal records have no bound.

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
        return len(self.vectors)

    @property
    def eigenvalues(self) -> np.ndarray:
        """Return the k leading ones and the next."""
        return np.append(self.values, self.floor)

    def batch(self, start: int, stop: int) -> MatrixBatch:
        """Return matrices ``start`` to ``stop`` (not included), the same whenever they are asked for."""
        if not 0 <= start < stop <= self.n:
            raise BadInputError(f"matrices {start} to {stop} were asked for of a stream of {self.n}")
        parts = []
        for number in range(start // ROWS, -(-stop // ROWS)):
            first = number * ROWS
            parts.append(_rows(self, number)[max(start - first, 0) : stop - first])
        rows = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return MatrixBatch(rows, self.vectors, self.common)

    def batches(self) -> Iterator[MatrixBatch]:
        """Yield all matrices once."""
        for start in range(0, self.n, ROWS):
            yield self.batch(start, min(start + ROWS, self.n))

    def sigma(self, block: Block) -> Block:
        """Return Sigma X."""
        return self.floor * block + self.vectors @ ((self.values - self.floor)[:, None] * (self.vectors.T @ block))

    def zeta(self, basis: Block) -> float:
        """Return the error of ``basis`` (Definition 1): 0 is exact, 1 the most there is."""
        return zeta(basis, self.vectors, self.values, self.sigma)


def _rows(stream: MatrixStream, number: int) -> np.ndarray:
    """Block ``number`` of a stream: kept where there is room, else drawn again."""
    kept = _kept(stream)
    if number in kept:
        return kept[number]
    rows = stream.draw(generator(stream.seed, "rows", number), min(ROWS, stream.n - number * ROWS))
    if (len(kept) + 1) * ROWS * stream.d * rows.itemsize <= KEPT_BYTES:
        kept[number] = rows
    return rows


@lru_cache(maxsize=1)
def _kept(stream: MatrixStream) -> dict[int, np.ndarray]:
    """The blocks of a stream that were drawn, by number."""
    return {}


def signal_and_noise(n: int, d: int, lambdas: ArrayLike, sigma: float, seed: int) -> MatrixStream:
    """Make the data of appendix G for k > 1: A_i = V diag(lambdas) V^T + z_i z_i^T, z_i ~ N(0, sigma^2 I).

    Only z_i is random.

    Parameters
    ----------
    n, d : matrices and their dimension.
    lambdas : of the signal, falling (k).
    sigma : standard deviation of the noise.
    seed : of V and of the noise.

    Notes
    -----
    With E (z z^T - sigma^2 I)^2 = sigma^4 (d + 1) I, V and gamma are of the order of (sigma^2 / lambda_1)^2 d and
    sigma^2 / lambda_1: smaller than those of Example 1, sigma^2 d and sigma at lambda_1 = 1.
    """
    common = np.asarray(lambdas, dtype=np.float64)
    values = common + sigma**2
    ratio = sigma**2 / values[0]
    spread = {"V": ratio**2 * (d + 1), "gamma": math.sqrt(2) * ratio, "M": ratio * d}
    return _stream(n, d, values, sigma**2, seed, common, lambda _: _noise(d, sigma), spread)


def spiked(n: int, d: int, amplitude: float, sigma: float, seed: int) -> MatrixStream:
    """Make the data of Example 1 (k = 1): x_i = +-amplitude v + z_i, z_i ~ N(0, sigma^2 I), A_i = x_i x_i^T.

    Parameters
    ----------
    n, d, sigma, seed : as of :func:`signal_and_noise`.
    amplitude : 1 in Example 1, and the "lambda_1" of appendix G, whose square is then the eigenvalue: lambda_1 =
        amplitude^2 + sigma^2.
    """
    signal, noise = amplitude**2, sigma**2
    value = signal + noise
    spread = {
        "V": (signal * noise * (d + 3) + noise**2 * (d + 1)) / value**2,
        "gamma": math.sqrt(4 * signal * noise + 2 * noise**2) / value,
        "M": (2 * amplitude * sigma * math.sqrt(d) + noise * d) / value,
    }

    def draws(vectors: Block) -> Callable[[np.random.Generator, int], np.ndarray]:
        def draw(rng: np.random.Generator, count: int) -> np.ndarray:
            signs = rng.choice([-amplitude, amplitude], size=(count, 1))
            return signs * vectors[:, 0] + _noise(d, sigma)(rng, count)

        return draw

    return _stream(n, d, np.array([value]), noise, seed, np.zeros(1), draws, spread)


def gaussian(n: int, d: int, lambdas: ArrayLike, sigma: float, seed: int) -> MatrixStream:
    """Make the data of Figure 4: x_i ~ N(0, V diag(lambdas) V^T + sigma^2 I), A_i = x_i x_i^T.

    Parameters
    ----------
    n, d, lambdas, sigma, seed : as of :func:`signal_and_noise`.
    """
    signal = np.asarray(lambdas, dtype=np.float64)
    values = signal + sigma**2
    trace = float(signal.sum()) + d * sigma**2
    spread = {"V": trace / values[0] + 1, "gamma": math.sqrt(2), "M": trace / values[0], "K": 4.0}

    def draws(vectors: Block) -> Callable[[np.random.Generator, int], np.ndarray]:
        factor = vectors * np.sqrt(signal)

        def draw(rng: np.random.Generator, count: int) -> np.ndarray:
            return rng.standard_normal((count, len(signal))) @ factor.T + _noise(d, sigma)(rng, count)

        return draw

    return _stream(n, d, values, sigma**2, seed, np.zeros(len(signal)), draws, spread)


def violation(n: int, d: int, share: float, seed: int) -> MatrixStream:
    """Make the data of Example 3: +-share^(-1/4) v with probability ``share``, else N(0, I).

    They lack the tail of Assumption A.4, beyond which nothing is proved.

    Parameters
    ----------
    n, d, seed : as of :func:`signal_and_noise`.
    share : of the records along v, between 0 and 1.

    Notes
    -----
    Sigma = (1 - share) I + sqrt(share) v v^T. V and gamma stay bounded, but no K does for every share: the tail of
    v^T (A_i - Sigma) v reaches 1 / sqrt(share).
    """
    floor = 1 - share
    value = floor + math.sqrt(share)
    along, across = 1 + 3 * floor - value**2, 3 * floor - floor**2  # ||E (A - Sigma) u u^T (A - Sigma)||, u = v or not
    parts = (1 + floor * (d + 2) - value**2, floor * (d + 2) - floor**2)  # E (A - Sigma)^2, along v and across
    largest = max(1 / math.sqrt(share), d) / value
    spread = {"V": max(parts) / value**2, "gamma": math.sqrt(max(along, across)) / value, "M": largest, "K": math.inf}

    def draws(vectors: Block) -> Callable[[np.random.Generator, int], np.ndarray]:
        def draw(rng: np.random.Generator, count: int) -> np.ndarray:
            signs = rng.choice([-1.0, 1.0], size=(count, 1)) * share**-0.25
            chosen = rng.random((count, 1)) < share
            return np.where(chosen, signs * vectors[:, 0], rng.standard_normal((count, d)))

        return draw

    return _stream(n, d, np.array([value]), floor, seed, np.zeros(1), draws, spread)


def _noise(d: int, sigma: float) -> Callable[[np.random.Generator, int], np.ndarray]:
    def draw(rng: np.random.Generator, count: int) -> np.ndarray:
        rows = rng.standard_normal((count, d))
        rows *= sigma
        return rows

    return draw


def _stream(
    n: int,
    d: int,
    values: np.ndarray,
    floor: float,
    seed: int,
    common: np.ndarray,
    draws: Callable[[Block], Callable[[np.random.Generator, int], np.ndarray]],
    spread: dict[str, float],
) -> MatrixStream:
    """With its own random V."""
    k = len(values)
    vectors = random_orthonormal(d, k, generator(seed, "signal"))
    model = AssumptionA(kappa=condition_number(np.append(values, floor), k), **spread)
    return MatrixStream(n, seed, vectors, values, floor, common, draws(vectors), model)
