"""The baselines of Duengler and Sanyal 2025 (appendix G): DP-Gauss-1, DP-Gauss-2, DP-Power-Method, made sound.

To compare with, not to use: the first two hold d^2 numbers and are Analyze Gauss (Dwork, Talwar, Thakurta and Zhang
2014), the third is the library's private power method with a worse bound of the sensitivity. Their noise is that of a
seeded generator: right in size, for experiments only.

Relations (``record_replace``, ``record_zero_out``, ``record_add_remove``; a "record" is a positive semidefinite A_i,
clipped to trace beta^2). Their sensitivities are those of records of norm beta: the distance of two sums is convex in
the matrix that changes, and the extreme points of {A >= 0, tr A <= beta^2} are 0 and beta^2 u u^T.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

from npmdask.accounting import Budget, gaussian_multiplier, mu_for
from npmdask.algorithms import PrivatePower
from npmdask.experiments.matrix_streams import MatrixBatch, MatrixStream
from npmdask.numerics.subspaces import Block, random_orthonormal
from npmdask.privacy.neighbors import Relation, make_relation

GAP_SHARE = 0.1  # of mu^2, for the gap: it needs few digits, the projector many
FAIL_SHARE = 0.1  # of delta, for a released gap that is above the true one
FAIL_PROB = 0.01  # zeta of the paper: that some record is clipped


def clip_trace(stream: MatrixStream, c: float = 1.0, fail_prob: float = FAIL_PROB) -> float:
    """Return beta = C sqrt(lambda_1) + sigma sqrt(d ln(n / zeta)) of appendix G, from the true lambda_1 and sigma.

    Parameters
    ----------
    c : C; the paper does not give it.
    fail_prob : zeta, the probability that some record is clipped.
    """
    sigma = math.sqrt(stream.floor)
    return c * math.sqrt(stream.values[0]) + sigma * math.sqrt(stream.d * math.log(stream.n / fail_prob))


def clip_factors(batch: MatrixBatch, beta: float, alpha: float = math.inf) -> np.ndarray:
    """Return c_i = min(1, beta^2 / tr A_i, (alpha / sum_j sqrt(A_jj))^2), one for each matrix of a batch.

    c_i A_i has trace at most beta^2, and sum_j sqrt of its diagonal at most alpha (for a record: its 1-norm).
    """
    factors = np.minimum(1.0, beta**2 / np.maximum(batch.traces(), np.finfo(float).tiny))
    if alpha == math.inf:
        return factors
    lengths = np.sqrt(batch.diagonals()).sum(axis=1)
    return np.minimum(factors, (alpha / np.maximum(lengths, np.finfo(float).tiny)) ** 2)


def clipped_sum(stream: MatrixStream, beta: float) -> np.ndarray:
    """Return X, the sum of c_i A_i (d x d), clipped to trace beta^2 (:func:`clip_factors`)."""
    total = np.zeros((stream.d, stream.d))
    for batch in stream.batches():
        total += batch.total(clip_factors(batch, beta))
    return total


def frobenius_sensitivity(relation: Relation, d: int) -> float:
    """Return how far X moves in Frobenius norm: beta^2, with a record replaced sqrt(2) beta^2."""
    return relation.sensitivity(np.eye(d))


def leading_eigenvectors(matrix: np.ndarray, k: int) -> Block:
    """Return the k leading eigenvectors (d x k) of a symmetric matrix, the largest first."""
    return np.ascontiguousarray(np.linalg.eigh(matrix)[1][:, : -k - 1 : -1])


def printed_noise(d: int, rng: np.random.Generator) -> np.ndarray:
    """Draw a symmetric matrix, entries on and above the diagonal N(0, 1), as printed.

    Sound for the same sensitivity as :func:`symmetric_noise`, and more than is needed.
    """
    upper = np.triu(rng.standard_normal((d, d)))
    return np.asarray(upper + np.triu(upper, 1).T)


def symmetric_noise(d: int, rng: np.random.Generator) -> np.ndarray:
    """Draw a symmetric matrix whose coordinates in an orthonormal basis of the symmetric matrices are N(0, 1).

    1/2 is the variance off the diagonal. Analyze Gauss as published draws entries above the diagonal with variance 1:
    twice as much for the same promise.
    """
    drawn = rng.standard_normal((d, d))
    upper = np.triu(drawn, 1) / np.sqrt(2)
    return np.asarray(upper + upper.T + np.diag(np.diag(drawn)))


def dp_gauss_1(
    total: np.ndarray, k: int, relation: Relation, budget: Budget, rng: np.random.Generator, *, variant: str = "tight"
) -> Block:
    """Find the k leading eigenvectors of X + E: input perturbation (Algorithm 1 of Dwork et al. 2014).

    Parameters
    ----------
    total : X (d x d), from :func:`clipped_sum`.
    k : how many directions.
    relation : what is protected, with beta as its ``clip_norm``.
    budget : epsilon and delta.
    rng : of the noise.
    variant : "tight", the exact Gaussian mechanism and noise of variance 1/2 off the diagonal; "paper",
        beta^2 sqrt(2 ln(1.25/delta)) / epsilon on every entry, proved for epsilon < 1 and made for one record more or
        less.

    Returns
    -------
    A basis (d x k).

    Examples
    --------
    >>> import numpy as np
    >>> from npmdask.accounting import Budget
    >>> from npmdask.experiments import clip_trace, clipped_sum, dp_gauss_1, signal_and_noise
    >>> from npmdask.privacy.neighbors import make_relation
    >>> stream = signal_and_noise(4000, 20, [10.0, 5.0], sigma=0.1, seed=0)
    >>> beta = clip_trace(stream)
    >>> relation, rng = make_relation("record_replace", clip_norm=beta), np.random.default_rng(0)
    >>> basis = dp_gauss_1(clipped_sum(stream, beta), 2, relation, Budget(1.0, 0.01), rng)
    >>> basis.shape, stream.zeta(basis) < 0.05
    ((20, 2), True)
    """
    d = len(total)
    if variant == "paper":
        stddev = relation.unit * math.sqrt(2 * math.log(1.25 / budget.delta)) / budget.epsilon
        return leading_eigenvectors(total + stddev * printed_noise(d, rng), k)
    stddev = frobenius_sensitivity(relation, d) * gaussian_multiplier(budget, 1)
    return leading_eigenvectors(total + stddev * symmetric_noise(d, rng), k)


def gap_sensitivity(relation: Relation) -> float:
    """Return how far lambda_k - lambda_{k+1} of X moves: beta^2, with a record replaced 2 beta^2.

    A positive semidefinite matrix more raises every eigenvalue, by its trace in all; one for another may raise
    lambda_k and lower lambda_{k+1}.
    """
    return relation.unit * (2 if relation.name == "record_replace" else 1)


def projector_sensitivity(relation: Relation, gap: float) -> float:
    """Return how far V_k V_k^T of X moves in Frobenius norm where the gap of X is at least ``gap``; inf if unknown.

    The sine theorem of Davis and Kahan: ||V V^T - W W^T||_F = sqrt(2) ||sin||_F <= sqrt(2) ||H||_F / (lambda_k(X) -
    lambda_{k+1}(X')), or with X and X' in each other's place. With a matrix more or less one of the two differences
    is at least the gap of X, and ||H||_F <= beta^2; with one replaced, at least gap - beta^2, and sqrt(2) beta^2.
    (2 sqrt(2) beta^2 / gap, after Yu, Wang and Samworth, is twice as much for the former.)
    """
    if relation.name == "record_replace":
        return 2 * relation.unit / (gap - relation.unit) if gap > relation.unit else math.inf
    return math.sqrt(2) * relation.unit / gap if gap > 0 else math.inf


class BudgetSplit(NamedTuple):
    """Say how DP-Gauss-2 spends a budget.

    Parameters
    ----------
    gap_stddev, margin : noise of the gap, and what is taken off it.
    multiplier : noise of a projector, per sensitivity.
    """

    gap_stddev: float
    margin: float
    multiplier: float


def split_budget(relation: Relation, budget: Budget) -> BudgetSplit:
    """Divide a budget between the gap and the projector of :func:`dp_gauss_2`.

    Both releases are mu_1- and mu_2-GDP, hence (epsilon, (1 - FAIL_SHARE) delta)-DP together.

    The gap less ``margin`` is above the true one with probability FAIL_SHARE delta, which adds as much to delta.
    """
    failing = FAIL_SHARE * budget.delta
    mu = mu_for(budget.epsilon, budget.delta - failing)
    gap_stddev = gap_sensitivity(relation) / (mu * math.sqrt(GAP_SHARE))
    return BudgetSplit(gap_stddev, -gap_stddev * float(ndtri(failing)), 1 / (mu * math.sqrt(1 - GAP_SHARE)))


def dp_gauss_2(total: np.ndarray, k: int, relation: Relation, budget: Budget, rng: np.random.Generator) -> Block:
    """Find the k leading eigenvectors of V_k V_k^T + E: output perturbation by propose, test, release.

    Algorithm 2 of Dwork et al. 2014, made sound. The gap is released with Gaussian noise, less a margin, so that it is
    hardly ever above the true one; a projector with the noise for that gap follows or, where it says nothing, a basis
    that has not seen the data. Parameters and result are those of :func:`dp_gauss_1`.
    """
    spent = split_budget(relation, budget)
    values, vectors = np.linalg.eigh(total)
    released = float(values[-k] - values[-k - 1]) + spent.gap_stddev * rng.standard_normal()
    sensitivity = projector_sensitivity(relation, released - spent.margin)
    if sensitivity >= math.sqrt(2 * k):  # projectors are never further apart
        return random_orthonormal(len(total), k, rng)
    noise = sensitivity * spent.multiplier * symmetric_noise(len(total), rng)
    return leading_eigenvectors(vectors[:, -k:] @ vectors[:, -k:].T + noise, k)


def dp_gauss_2_not_private(total: np.ndarray, k: int, beta: float, budget: Budget, rng: np.random.Generator) -> Block:
    """Find what DP-Gauss-2 finds as the paper prints it. NOT private: to be drawn beside the sound one, never used.

    The Laplace noise of the gap lacks the factor beta^2, the gap is drawn again until it is positive, and the absolute
    value lets noise shrink where the gap is far too small. (V_k + E with a d x d matrix E is read V_k V_k^T + E.)
    """
    values, vectors = np.linalg.eigh(total)
    epsilon, logarithm = budget.epsilon, math.log(1 / budget.delta)
    released = 0.0
    while released <= 0:
        released = float(values[-k] - values[-k - 1]) + rng.laplace(scale=2 / epsilon)
    stddev = beta**2 * (1 + math.sqrt(2 * logarithm) / epsilon) / abs(released - 2 * (1 + logarithm / epsilon))
    return leading_eigenvectors(vectors[:, -k:] @ vectors[:, -k:].T + stddev * printed_noise(len(total), rng), k)


@dataclass(frozen=True, kw_only=True)
class ExactNoise:
    """Noise of the library for products of clipped matrices: multiplier times sensitivity at the public block."""

    relation: Relation
    multiplier: float

    def noise_stddev(self, block: Block) -> float:
        return self.multiplier * self.relation.sensitivity(block)


@dataclass(frozen=True, kw_only=True)
class PaperNoise:
    """Noise of Nicolas et al. 2024: sqrt(4 L ln(1/delta)) / epsilon times the largest row norm, times alpha beta.

    As of appendix G. alpha beta bounds sqrt(sum_i ||A_i,:||_1^2) of a clipped matrix A, hence one matrix more or less.
    mu of all releases is at most epsilon / (2 sqrt(ln(1/delta))) for that relation, whatever the blocks.
    """

    alpha: float
    beta: float
    budget: Budget
    releases: int

    def noise_stddev(self, block: Block) -> float:
        sigma = math.sqrt(4 * self.releases * math.log(1 / self.budget.delta)) / self.budget.epsilon
        return sigma * self.alpha * self.beta * float(np.linalg.norm(block, axis=1).max())


def clip_diagonal(stream: MatrixStream, fail_prob: float = FAIL_PROB) -> float:
    """Return alpha = sigma d + sqrt(lambda_1 d) + sigma sqrt(d ln(n / zeta)) of appendix G."""
    sigma, d = math.sqrt(stream.floor), stream.d
    return sigma * d + math.sqrt(stream.values[0] * d) + sigma * math.sqrt(d * math.log(stream.n / fail_prob))


def dp_power(
    stream: MatrixStream,
    k: int,
    columns: int,
    releases: int,
    noise: ExactNoise | PaperNoise,
    rng: np.random.Generator,
    *,
    beta: float,
    alpha: float = math.inf,
) -> Block:
    """Run the library's private power method (DP-Power-Method) on the clipped matrices: L passes, never d x d.

    Parameters
    ----------
    stream, k : the matrices, and how many directions.
    columns : p of the block, at least k.
    releases : L.
    noise : :func:`exact_noise`, or :class:`PaperNoise` for the method as printed.
    rng : of the start and of the noise.
    beta, alpha : what matrices are clipped to (:func:`clip_factors`); as printed both, with exact noise beta alone.

    Returns
    -------
    A basis (d x k).

    Examples
    --------
    >>> import numpy as np
    >>> from npmdask.accounting import Budget
    >>> from npmdask.experiments import clip_trace, dp_power, exact_noise, signal_and_noise
    >>> stream = signal_and_noise(4000, 20, [10.0, 5.0], sigma=0.1, seed=0)
    >>> beta = clip_trace(stream)
    >>> noise = exact_noise(beta, "record_replace", Budget(1.0, 0.01), releases=4)
    >>> basis = dp_power(stream, 2, 4, 4, noise, np.random.default_rng(0), beta=beta)
    >>> basis.shape, stream.zeta(basis) < 0.05
    ((20, 2), True)
    """
    factors = [clip_factors(batch, beta, alpha) for batch in stream.batches()]
    method = PrivatePower(target_rank=k, iteration_rank=columns, releases=releases, noise=noise)
    state = method.init(stream.d, rng=rng)
    for _ in range(releases):
        block = method.query(state).block
        product = np.zeros(block.shape)
        for batch, own in zip(stream.batches(), factors, strict=True):
            product += batch.product(own, block)
        product += noise.noise_stddev(block) * rng.standard_normal(block.shape)
        state, _ = method.update(state, product)
    return method.finalize(state).vectors


def exact_noise(beta: float, relation: str, budget: Budget, releases: int) -> ExactNoise:
    """Make the noise for ``releases`` products of matrices clipped to trace beta^2."""
    made = make_relation(relation, clip_norm=beta)
    return ExactNoise(relation=made, multiplier=gaussian_multiplier(budget, releases))
