"""The papers' algorithms as they are printed, line by line: every curve that is called "as printed" is drawn from here.

NumPy and nothing of this project, so that no part of it can improve them. The number at the end of a line is that of
the paper's listing. "erratum N" (docs/reference/theory.md) marks what cannot be run as written, or is a parameter whose
default is what is printed. What a paper leaves open is a parameter, too (docs/papers/kdppca.md names the values of the
figures). Noise is that of a seeded generator: for experiments only, private in no way.

Hardt and Price 2014 (HP), Nicolas et al. 2024, Duengler and Sanyal 2025 (DS), Wang and Anandkumar 2016 (WA).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np

Product = Callable[[np.ndarray], np.ndarray]  # of a vector or block (d x p): A X, P X, or T(I, x, x) of every column x
Oracle = Callable[[range, Product], np.ndarray]  # a direction from the matrices of some numbers, in the image of P
Rate = Callable[[int], float]  # eta_t for t
FAIL_PROB = 0.01  # zeta of DS, appendix G: that some record is clipped
DRAWN = 4096  # matrices that are asked for at once


class Batch(Protocol):
    """Some of the matrices A_i of DS."""

    def __len__(self) -> int: ...
    def image(self, number: int, vector: np.ndarray) -> np.ndarray: ...
    def images(self, vector: np.ndarray) -> np.ndarray: ...
    def traces(self) -> np.ndarray: ...
    def diagonals(self) -> np.ndarray: ...
    def product(self, weights: np.ndarray, block: np.ndarray) -> np.ndarray: ...
    def total(self, weights: np.ndarray) -> np.ndarray: ...


class Stream(Protocol):
    """All n of them, with what appendix G takes from their distribution: lambda_1 ... lambda_k, and sigma^2."""

    @property
    def n(self) -> int: ...
    @property
    def d(self) -> int: ...
    @property
    def values(self) -> np.ndarray: ...
    @property
    def floor(self) -> float: ...
    def batch(self, start: int, stop: int) -> Batch: ...
    def batches(self) -> Iterator[Batch]: ...


def random_basis(d: int, p: int, rng: np.random.Generator) -> np.ndarray:
    """Draw an orthonormal basis of a random subspace, d x p."""
    return np.linalg.qr(rng.standard_normal((d, p)))[0]


def leading_eigenvectors(matrix: np.ndarray, k: int) -> np.ndarray:
    """Return the k leading eigenvectors (d x k) of a symmetric matrix, the largest first."""
    return np.ascontiguousarray(np.linalg.eigh(matrix)[1][:, : -k - 1 : -1])


def _unit(vector: np.ndarray) -> np.ndarray:
    return np.asarray(vector / math.sqrt(vector @ vector))


# HP: the noisy power method.


def noisy_power_method(product: Product, start: np.ndarray, L: int, noise: Product) -> np.ndarray:
    """HP, Figure 1 (NPM): X_L. ``noise`` gives G_l for X_{l-1}."""
    X = start  # 1
    for _ in range(L):  # 2
        Y = product(X) + noise(X)  # 2 (a)
        X = np.linalg.qr(Y)[0]  # 2 (b)
    return X


def streaming_power_method(rows: np.ndarray, start: np.ndarray, L: int) -> np.ndarray:
    """HP, Figure 2 (SPM): X_L of the rows z_1 ... z_n, each read once."""
    X, T = start, len(rows) // L  # 1; erratum 5: floor(m / L), with m = n
    for step in range(1, L + 1):  # 2
        z = rows[(step - 1) * T : step * T]
        Y = z.T @ (z @ X)  # 2 (a)
        X = np.linalg.qr(Y)[0]  # 2 (b)
    return X


def private_power_method(
    product: Product, d: int, p: int, L: int, epsilon: float, delta: float, rng: np.random.Generator
) -> np.ndarray:
    """HP, Figure 3 (PPM): X_L. Not private for a symmetric pair of entries at large epsilon (erratum 1)."""
    start = random_basis(d, p, rng)  # 1
    sigma = math.sqrt(4 * p * L * math.log(1 / delta)) / epsilon  # 1
    return noisy_power_method(  # 2
        product, start, L, lambda X: np.abs(X).max() * sigma * rng.standard_normal(X.shape)
    )


# DS, appendix G: the baselines. X is the sum of the clipped matrices.


def clip_trace(stream: Stream, c: float = 1.0, fail_prob: float = FAIL_PROB) -> float:
    """
    Compute the norm to which appendix G clips records, from the true lambda_1 and sigma.

    beta = C sqrt(lambda_1) + sigma sqrt(d ln(n / zeta)); matrices A_i are clipped to trace beta^2.

    Parameters
    ----------
    stream : MatrixStream
        The data; only what is known of their distribution is used, no matrix.
    c : float, default 1.0
        The constant C; the paper does not give it.
    fail_prob : float, default 0.01
        Zeta of the formula: probability that some record is clipped.

    Returns
    -------
    float
        The norm beta.

    Examples
    --------
    Gaussian records have no bound, but even the longest of 2000 is not clipped:

    >>> from npmdask.experiments import clip_trace, gaussian
    >>> stream = gaussian(2000, 10, [10.0, 5.0], sigma=1.0, seed=0)
    >>> longest = max(batch.traces().max() for batch in stream.batches())
    >>> round(float(longest), 1), round(clip_trace(stream) ** 2, 1)
    (153.6, 206.3)
    """
    sigma = math.sqrt(stream.floor)
    return c * math.sqrt(stream.values[0]) + sigma * math.sqrt(stream.d * math.log(stream.n / fail_prob))


def clip_diagonal(stream: Stream, fail_prob: float = FAIL_PROB) -> float:
    """
    Compute the 1-norm to which appendix G clips records for DP-Power-Method, from the true lambda_1 and sigma.

    alpha = sigma d + sqrt(lambda_1 d) + sigma sqrt(d ln(n / zeta)).

    Parameters
    ----------
    stream : MatrixStream
        The data; only what is known of their distribution is used, no matrix.
    fail_prob : float, default 0.01
        Zeta of the formula: probability that some record is clipped.

    Returns
    -------
    float
        The bound alpha of sum_j sqrt(A_jj), which is the 1-norm of a record.

    Examples
    --------
    >>> from npmdask.experiments import clip_diagonal, clip_trace, signal_and_noise
    >>> stream = signal_and_noise(4000, 20, [10.0, 5.0], sigma=0.1, seed=0)
    >>> round(clip_diagonal(stream), 2), round(clip_trace(stream), 2)
    (17.76, 4.77)
    """
    sigma, d = math.sqrt(stream.floor), stream.d
    return sigma * d + math.sqrt(stream.values[0] * d) + sigma * math.sqrt(d * math.log(stream.n / fail_prob))


def clip_factors(batch: Batch, beta: float, alpha: float = math.inf) -> np.ndarray:
    """
    Compute by how much each matrix of a batch is scaled down to bound its trace and its diagonal.

    c_i = min(1, beta^2 / tr A_i, (alpha / sum_j sqrt(A_jj))^2), so c_i A_i has trace at most beta^2, and sum_j sqrt of
    its diagonal at most alpha (for a record: its 1-norm). Appendix G.

    Parameters
    ----------
    batch : MatrixBatch
        The matrices A_i.
    beta : float
        Bound of the 2-norm of a record: its square bounds the trace.
    alpha : float, default inf
        Bound of the 1-norm of a record; by default there is none.

    Returns
    -------
    array, shape (b,)
        The factors c_i, above 0 and at most 1.

    Examples
    --------
    Of two records, of norm 1 and of norm 4, the second is scaled to norm 2:

    >>> import numpy as np
    >>> from npmdask.experiments import MatrixBatch, clip_factors
    >>> batch = MatrixBatch(np.array([[1.0, 0.0], [0.0, 4.0]]), np.array([[1.0], [0.0]]), np.zeros(1))
    >>> clip_factors(batch, beta=2.0)
    array([1.  , 0.25])
    """
    factors = np.minimum(1.0, beta**2 / np.maximum(batch.traces(), np.finfo(float).tiny))
    if alpha == math.inf:
        return factors
    lengths = np.sqrt(batch.diagonals()).sum(axis=1)
    return np.minimum(factors, (alpha / np.maximum(lengths, np.finfo(float).tiny)) ** 2)


def clipped_sum(stream: Stream, beta: float) -> np.ndarray:
    """
    Compute X, the sum of all matrices of a stream, each clipped to trace beta^2, as a d x d matrix.

    Parameters
    ----------
    stream : MatrixStream
        The matrices A_i.
    beta : float
        Square root of the largest trace (:func:`clip_factors`); inf clips nothing.

    Returns
    -------
    array, shape (d, d)
        The sum of c_i A_i, as it is: no noise, not private.

    Examples
    --------
    >>> import numpy as np
    >>> from npmdask.experiments import clipped_sum, gaussian
    >>> stream = gaussian(2000, 10, [10.0, 5.0], sigma=1.0, seed=0)
    >>> [round(float(np.trace(clipped_sum(stream, beta))) / stream.n, 1) for beta in (np.inf, 4.0)]
    [25.0, 14.0]
    """
    total = np.zeros((stream.d, stream.d))
    for batch in stream.batches():
        total += batch.total(clip_factors(batch, beta))
    return total


def upper_triangle_noise(d: int, rng: np.random.Generator) -> np.ndarray:
    """Draw E / Delta: symmetric, the upper triangle and the diagonal N(0, 1)."""
    upper = np.triu(rng.standard_normal((d, d)))
    return np.asarray(upper + np.triu(upper, 1).T)


def dp_gauss_1(
    X: np.ndarray, k: int, beta: float, epsilon: float, delta: float, rng: np.random.Generator
) -> np.ndarray:
    """DP-Gauss-1: the leading eigenvectors of X + E. Its formula is proved for epsilon < 1."""
    deviation = beta**2 * math.sqrt(2 * math.log(1.25 / delta)) / epsilon  # Delta_1
    return leading_eigenvectors(X + deviation * upper_triangle_noise(len(X), rng), k)


def dp_gauss_2(
    X: np.ndarray, k: int, beta: float, epsilon: float, delta: float, rng: np.random.Generator
) -> np.ndarray:
    """DP-Gauss-2. NOT private: the gap is drawn again until it is positive, its noise lacks beta^2 (erratum 19)."""
    values, vectors = np.linalg.eigh(X)
    V, gap = vectors[:, -k:], 0.0
    while gap <= 0:
        gap = float(values[-k] - values[-k - 1]) + rng.laplace(scale=2 / epsilon)
    deviation = beta**2 * (1 + math.sqrt(2 * math.log(1 / delta)) / epsilon)  # Delta_2, above and below the line
    deviation /= abs(gap - 2 * (1 + math.log(1 / delta) / epsilon))
    return leading_eigenvectors(V @ V.T + deviation * upper_triangle_noise(len(X), rng), k)  # erratum 19: "V_k + E"


def nicolas_noise(alpha: float, beta: float, L: int, epsilon: float, delta: float) -> Callable[[np.ndarray], float]:
    """Nicolas et al. 2024, times alpha beta (DS): stddev of the entries of G_l, from the longest row of X_{l-1}."""
    sigma = math.sqrt(4 * L * math.log(1 / delta)) / epsilon
    return lambda X: sigma * alpha * beta * float(np.linalg.norm(X, axis=1).max())


def dp_power_method(
    stream: Stream,
    k: int,
    L: int,
    stddev: Callable[[np.ndarray], float],
    rng: np.random.Generator,
    *,
    beta: float,
    alpha: float = math.inf,
) -> np.ndarray:
    """DP-Power-Method: X_L (p = k) of the matrices clipped to ``beta`` and ``alpha``; ``stddev`` of G_l for X_{l-1}."""
    factors = [clip_factors(batch, beta, alpha) for batch in stream.batches()]

    def product(X: np.ndarray) -> np.ndarray:
        parts = (batch.product(own, X) for batch, own in zip(stream.batches(), factors, strict=True))
        return np.asarray(sum(parts, np.zeros(X.shape)))

    return noisy_power_method(
        product, random_basis(stream.d, k, rng), L, lambda X: stddev(X) * rng.standard_normal(X.shape)
    )


# DS, Algorithms 1 to 7: deflation, its oracles, and the private range and mean of one of them.


def black_box_pca(n: int, d: int, k: int, oracle: Oracle) -> np.ndarray:
    """DS, Algorithm 4, and with :func:`modified_dp_pca` Algorithm 1: U, d x k."""
    U = np.zeros((d, 0))  # 1: P_0 = I
    B = n // k  # 2
    for i in range(1, k + 1):  # 3
        u = oracle(range((i - 1) * B, i * B), _projection(U))  # 4, 5
        U = np.column_stack([U, u])  # 6: P_i = P_{i-1} - u_i u_i^T = I - U U^T, which is not formed
    return U  # 8


def _projection(U: np.ndarray) -> Product:
    return lambda x: x - U @ (U.T @ x)


def modified_dp_pca(
    stream: Stream,
    rows: range,
    P: Product,
    rate: Rate,
    rng: np.random.Generator,
    *,
    epsilon: float,
    delta: float,
    B: int,
    tau: float,
    C1: float,
    tail: tuple[float, float] = (1.0, 1.0),
    width_power: float = 2.0,
) -> np.ndarray:
    """DS, Algorithm 2: omega_T of the matrices ``rows``. ``tail``: K and a. ``rate``: eta_t."""
    omega = _unit(P(_unit(rng.standard_normal(stream.d))))  # 1
    T = len(rows) // B
    for t in range(1, T + 1):  # 2
        first, share = rows.start + B * (t - 1), (epsilon / 2, delta / 2, tau / (2 * T))
        g = P(stream.batch(first, first + B // 2).images(P(omega)).T).T
        spread = private_range(g, *share, C1, rng)  # 3
        if spread is None:
            continue  # erratum 13: the listing does not say what to do with no range
        mean = private_mean(g, spread, *share, tail, rng, width_power)  # 4
        moved = omega + rate(t) * P(mean)  # 5
        omega = _unit(P(moved))  # 6
    return omega  # 8


def dp_ojas(
    stream: Stream,
    rows: range,
    P: Product,
    rate: Rate,
    rng: np.random.Generator,
    *,
    epsilon: float,
    delta: float,
    gamma: float,
    tail: tuple[float, float] = (1.0, 1.0),
    constants: tuple[float, float] = (1.0, 1.0),
) -> np.ndarray:
    """DS, Algorithm 3: omega_m, one matrix a step. NOT private at the epsilon of the figures (erratum 15).

    ``constants``: C of beta and C' of alpha, which the paper does not give. n is that of the call (erratum 15).
    """
    n, d, (K, a) = len(rows), stream.d, tail
    alpha = constants[1] * math.log(n / delta) / (epsilon * math.sqrt(n))  # 1
    spread = K * gamma * math.log(n * d / FAIL_PROB) ** a + 1
    beta = constants[0] * float(stream.values[0]) * math.sqrt(d) * spread  # 2
    omega = _unit(P(_unit(rng.standard_normal(d))))  # 3
    for t, (A, j) in enumerate(one_by_one(stream, rows), start=1):  # 4
        z = rng.standard_normal(d)  # 5
        image = P(A.image(j, P(omega)))
        clipped = image * min(1.0, beta / max(math.sqrt(image @ image), 1e-300))
        moved = omega + rate(t) * P(clipped + 2 * beta * alpha * z)  # 6
        omega = _unit(P(moved))  # 7
    return omega  # 9


def one_by_one(stream: Stream, rows: range) -> Iterator[tuple[Batch, int]]:
    """Yield the matrices in turn, each as a batch and its number in that."""
    for start in (rows.start, *range((rows.start // DRAWN + 1) * DRAWN, rows.stop, DRAWN)):
        batch = stream.batch(start, min((start // DRAWN + 1) * DRAWN, rows.stop))
        yield from ((batch, j) for j in range(len(batch)))


def private_range(
    g: np.ndarray, epsilon: float, delta: float, tau: float, C1: float, rng: np.random.Generator
) -> float | None:
    """DS, Algorithm 6: the left edge of the bin of most top eigenvalues, of twice the covariance; None for no bin."""
    pairs = len(g) // 2
    differences = g[1 : 2 * pairs : 2] - g[0 : 2 * pairs : 2]  # 1, 2
    groups = math.ceil(C1 * math.log(1 / (delta * tau)) / epsilon)  # 3; erratum 13: its bracket
    b = len(g) // (2 * groups)
    if b == 0:
        return None  # fewer differences than groups: all bins are empty
    top = [np.linalg.norm(G, 2) ** 2 / b for G in differences[: groups * b].reshape(groups, b, -1)]  # 4
    bins = np.floor(4 * np.log2(np.maximum(top, 1e-300)))  # 5; erratum 13: and [2^(-1/4), 1), which is left out there
    best = histogram_learner(bins, epsilon, delta, rng)  # 6
    return None if best is None else 2.0 ** (best / 4)  # 7 to 11


def private_mean(
    g: np.ndarray,
    spread: float,
    epsilon: float,
    delta: float,
    tau: float,
    tail: tuple[float, float],
    rng: np.random.Generator,
    width_power: float = 2.0,
) -> np.ndarray:
    """DS, Algorithm 7. ``width_power``: of ln 25 in line 1, 2 as printed; erratum 14: a. "BD" is B d (erratum 14)."""
    (B, d), (K, a) = g.shape, tail
    width = 2**0.25 * K * math.sqrt(spread) * math.log(25) ** width_power  # 1
    each, radius = 4 * math.sqrt(2 * d * math.log(4 / delta)), 3 * K * math.sqrt(spread) * math.log(B * d / tau) ** a
    truncated = np.empty_like(g)
    for j in range(d):  # 2
        best = histogram_learner(np.ceil(g[:, j] / width) - 1, epsilon / each, delta / (4 * d), rng)  # 3, 4
        left = 0.0 if best is None else best * width  # 5; where no bin is left the listing does not go on
        truncated[:, j] = np.clip(g[:, j], left - radius, left + radius)  # 6, 7
    deviation = 4 * radius * math.sqrt(2 * d * math.log(2.5 / delta)) / (epsilon * B)  # 9: 12 = 4 times 3
    return np.asarray(truncated.mean(axis=0) + deviation * rng.standard_normal(d))  # 9


def histogram_learner(bins: np.ndarray, epsilon: float, delta: float, rng: np.random.Generator) -> float | None:
    """DS, appendix H (Karwa and Vadhan 2018): the bin of the largest noisy count; None where none is large enough."""
    found, counts = np.unique(bins, return_counts=True)
    noisy = counts + rng.laplace(scale=2 / epsilon, size=len(counts))
    best = int(np.argmax(noisy))
    return float(found[best]) if noisy[best] >= 1 + 2 * math.log(2 / delta) / epsilon else None


def paper_rates(stream: Stream, k: int) -> tuple[tuple[float, float], ...]:
    """DS, G.1: of k-DP-PCA, from the true eigenvalues. Round i has 1 / (offset + slope t) in step t.

    eta_t = 1 / (20 sigma lambda_i + (lambda_i - lambda_{i+1}) t / ln n).
    """
    values, sigma = np.append(stream.values, stream.floor), math.sqrt(stream.floor)
    gaps = (values[:-1] - values[1:]) / math.log(stream.n)
    return tuple((float(20 * sigma * values[i]), float(gaps[i])) for i in range(k))


def k_dp_pca(
    stream: Stream, k: int, epsilon: float, delta: float, rng: np.random.Generator, *, C1: float = 3.0
) -> np.ndarray:
    """k-DP-PCA of DS, appendix G: B = floor(sqrt n), K = a = 1. C_1, which the paper does not give, is 3 here."""
    rates = iter(paper_rates(stream, k))

    def oracle(rows: range, P: Product) -> np.ndarray:
        offset, slope = next(rates)
        rate: Rate = lambda t: 1 / (offset + slope * t)  # noqa: E731
        B = math.isqrt(stream.n)
        return modified_dp_pca(stream, rows, P, rate, rng, epsilon=epsilon, delta=delta, B=B, tau=FAIL_PROB, C1=C1)

    return black_box_pca(stream.n, stream.d, k, oracle)


def k_dp_ojas(
    stream: Stream, k: int, epsilon: float, delta: float, gamma: float, rng: np.random.Generator
) -> np.ndarray:
    """k-DP-Ojas of DS, appendix G: eta_j = 1 / (1 + j) in every round, K = a = 1. NOT private."""

    def oracle(rows: range, P: Product) -> np.ndarray:
        return dp_ojas(stream, rows, P, lambda j: 1 / (1 + j), rng, epsilon=epsilon, delta=delta, gamma=gamma)

    return black_box_pca(stream.n, stream.d, k, oracle)


# WA: tensor power methods. ``starts(i)`` gives the L random unit vectors of round i = 0 ... k - 1 (d x L).


def robust_tensor_power(contraction: Product, k: int, R: int, starts: Callable[[int], np.ndarray]) -> np.ndarray:
    """WA, Algorithm 1: v_1 ... v_k (d x k). ``contraction`` gives T(I, u, u) of every column u."""
    return private_tensor_power(contraction, k, R, starts, 0.0, np.random.default_rng(0))


def private_tensor_power(
    contraction: Product, k: int, R: int, starts: Callable[[int], np.ndarray], nu: float, rng: np.random.Generator
) -> np.ndarray:
    """WA, Algorithm 3: v_1 ... v_k, with noise of nu (:func:`private_tensor_noise`, or another) in every release.

    Of two numbers the first is the line of Algorithm 1, which is the same without noise.
    """
    weights, vectors = np.zeros(0), np.zeros((len(starts(0)), 0))  # 2: D = 0

    def deflated(u: np.ndarray) -> np.ndarray:  # 6, 6: T - D
        return np.asarray(contraction(u) - vectors @ (weights[:, None] * (vectors.T @ u) ** 2))

    for i in range(k):  # 2, 3
        u = starts(i)  # 3, 4
        for _ in range(R):  # 4, 5
            released = deflated(u) + nu * np.abs(u).max(axis=0) ** 2 * rng.standard_normal(u.shape)  # 4, 6 and 7
            u = released / np.linalg.norm(released, axis=0)  # 4, 8
        scores = (u * deflated(u)).sum(axis=0)  # 5, 10
        scores = scores + nu * np.abs(u).max(axis=0) ** 3 * rng.standard_normal(len(scores))  # 10
        best = int(np.argmax(scores))
        weights, vectors = np.append(weights, scores[best]), np.column_stack([vectors, u[:, best]])  # 6, 11
    return vectors  # 8, 13


def online_tensor_power(
    rows: Callable[[int], np.ndarray], k: int, R: int, n: int, starts: Callable[[int], np.ndarray], *, xi: str = "sum"
) -> np.ndarray:
    """WA, Algorithm 2: v_1 ... v_k. ``rows`` reads the next points. ``xi``: of the "sum"; erratum 25: "iterate"."""
    weights, vectors = np.zeros(0), np.zeros((len(starts(0)), 0))
    for i in range(k):  # 2
        u = starts(i)  # 3
        for _ in range(R):  # 4
            total, score = np.zeros_like(u), np.zeros(u.shape[1])  # 5
            for first in range(0, n, 2 * DRAWN):  # 6
                x = rows(min(2 * DRAWN, n - first))
                along = x @ u
                total, score = total + x.T @ along**2 / n, score + (along**3).sum(axis=0) / n
            along = vectors.T @ (total if xi == "sum" else u)  # 7: xi
            total, score = total - vectors @ (weights[:, None] * along**2), score - weights @ along**3  # 7
            u = total / np.linalg.norm(total, axis=0)  # 8
        best = int(np.argmax(score))  # 10
        weights, vectors = np.append(weights, score[best]), np.column_stack([vectors, u[:, best]])
    return vectors  # 12


def private_tensor_noise(k: int, L: int, R: int, epsilon: float, delta: float) -> float:
    """WA, Algorithm 3, line 2: nu."""
    K = k * L * (R + 1)
    share = epsilon / math.sqrt(K * (4 + math.log(2 / delta)))
    return 6 * math.sqrt(2 * math.log(1.25 / (delta / (2 * K)))) / share
