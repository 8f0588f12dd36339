"""The baselines of Duengler and Sanyal 2025 (appendix G), made sound: DP-Gauss-1, DP-Gauss-2, noise of DP-Power-Method.

As the paper prints them they are in :mod:`~npmdask.experiments.as_printed`. To compare with, not to use: the first two
hold d^2 numbers and are Analyze Gauss (Dwork, Talwar, Thakurta and Zhang 2014). Their noise is that of a seeded
generator: right in size, for experiments only.

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
from npmdask.core.numerics.domains import probability
from npmdask.core.numerics.subspaces import Block, random_orthonormal
from npmdask.experiments.as_printed import clip_factors, leading_eigenvectors
from npmdask.experiments.matrix_streams import MatrixStream
from npmdask.privacy.neighbors import Relation, make_relation
from npmdask.privacy.private_power import PrivatePower

GAP_SHARE = 0.1  # of mu^2, for the gap: it needs few digits, the projector many
FAIL_SHARE = 0.1  # of delta, for a released gap that is above the true one


def frobenius_sensitivity(relation: Relation, d: int) -> float:
    """Return how far X moves in Frobenius norm: beta^2, with a record replaced sqrt(2) beta^2."""
    return relation.sensitivity(np.eye(d))


def symmetric_noise(d: int, rng: np.random.Generator) -> np.ndarray:
    """
    Draw a symmetric matrix whose coordinates in an orthonormal basis of the symmetric matrices are N(0, 1).

    1/2 is the variance off the diagonal. Analyze Gauss as published draws entries above the diagonal with variance 1:
    twice as much for the same promise.

    Parameters
    ----------
    d : int
        Rows and columns.
    rng : numpy.random.Generator
        The source of the noise; a seeded one is right in size, private in no way.

    Returns
    -------
    array, shape (d, d)
        The noise: to be multiplied with the sensitivity in Frobenius norm and the multiplier of a budget.

    Examples
    --------
    >>> import numpy as np
    >>> from npmdask.experiments import symmetric_noise
    >>> noise = symmetric_noise(200, np.random.default_rng(0))
    >>> np.array_equal(noise, noise.T), round(float(noise[np.triu_indices(200, 1)].var()), 1)
    (True, 0.5)
    """
    drawn = rng.standard_normal((d, d))
    upper = np.triu(drawn, 1) / np.sqrt(2)
    return np.asarray(upper + upper.T + np.diag(np.diag(drawn)))


def dp_gauss_1(total: np.ndarray, k: int, relation: Relation, budget: Budget, rng: np.random.Generator) -> Block:
    """
    Find the k leading eigenvectors of X + E: input perturbation (Algorithm 1 of Dwork et al. 2014).

    DP-Gauss-1 of appendix G (Analyze Gauss) with the exact Gaussian mechanism, and noise of variance 1/2 off the
    diagonal. It keeps the budget for every relation of records; the noise comes from ``rng``, so for experiments only.

    Parameters
    ----------
    total : array, shape (d, d)
        The sum X, from :func:`clipped_sum`.
    k : int
        How many directions.
    relation : Relation
        What is protected, a relation of records with beta as its ``clip_norm``.
    budget : Budget
        The promise; delta > 0.
    rng : numpy.random.Generator
        The source of the noise.

    Returns
    -------
    array, shape (d, k)
        An orthonormal basis, the leading direction first.

    Raises
    ------
    BadInputError
        A budget with delta = 0.

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
    probability(delta=budget.delta)
    failing = FAIL_SHARE * budget.delta
    mu = mu_for(budget.epsilon, budget.delta - failing)
    gap_stddev = gap_sensitivity(relation) / (mu * math.sqrt(GAP_SHARE))
    return BudgetSplit(gap_stddev, -gap_stddev * float(ndtri(failing)), 1 / (mu * math.sqrt(1 - GAP_SHARE)))


def dp_gauss_2(total: np.ndarray, k: int, relation: Relation, budget: Budget, rng: np.random.Generator) -> Block:
    """
    Find the k leading eigenvectors of V_k V_k^T + E: output perturbation by propose, test, release.

    DP-Gauss-2 of appendix G, Algorithm 2 of Dwork et al. 2014, made sound. The gap is released with Gaussian noise,
    less a margin, so that it is hardly ever above the true one; a projector with the noise for that gap follows or,
    where it says nothing, a basis that has not seen the data. The noise comes from ``rng``, so for experiments only.

    Parameters
    ----------
    total : array, shape (d, d)
        The sum X, from :func:`clipped_sum`.
    k : int
        How many directions, below d.
    relation : Relation
        What is protected, a relation of records with beta as its ``clip_norm``.
    budget : Budget
        The promise for gap and projector together; delta > 0.
    rng : numpy.random.Generator
        The source of the noise.

    Returns
    -------
    array, shape (d, k)
        An orthonormal basis; a random one where the released gap says nothing.

    Examples
    --------
    With a small budget the gap is not seen, and the answer is a random basis (1 is the largest error):

    >>> import numpy as np
    >>> from npmdask.accounting import Budget
    >>> from npmdask.experiments import clip_trace, clipped_sum, dp_gauss_2, signal_and_noise
    >>> from npmdask.privacy.neighbors import make_relation
    >>> stream = signal_and_noise(4000, 20, [10.0, 5.0], sigma=0.1, seed=0)
    >>> beta = clip_trace(stream)
    >>> total, relation = clipped_sum(stream, beta), make_relation("record_replace", clip_norm=beta)
    >>> for budget in (Budget(1.0, 0.01), Budget(0.01, 1e-6)):
    ...     basis = dp_gauss_2(total, 2, relation, budget, np.random.default_rng(0))
    ...     print(round(stream.zeta(basis), 2))
    0.02
    0.97
    """
    spent = split_budget(relation, budget)
    values, vectors = np.linalg.eigh(total)
    released = float(values[-k] - values[-k - 1]) + spent.gap_stddev * rng.standard_normal()
    sensitivity = projector_sensitivity(relation, released - spent.margin)
    if sensitivity >= math.sqrt(2 * k):  # projectors are never further apart
        return random_orthonormal(len(total), k, rng)
    noise = sensitivity * spent.multiplier * symmetric_noise(len(total), rng)
    return leading_eigenvectors(vectors[:, -k:] @ vectors[:, -k:].T + noise, k)


@dataclass(frozen=True, kw_only=True)
class ExactNoise:
    """
    Noise of the library for products of clipped matrices: multiplier times sensitivity at the public block.

    Made by :func:`exact_noise`; its size is what exact Gaussian accounting asks for.

    Attributes
    ----------
    relation : Relation
        What is protected, with the largest norm of a record.
    multiplier : float
        Quotient stddev / sensitivity of every release.

    Examples
    --------
    The noise follows the two largest singular values of the block, not how many columns it has:

    >>> import numpy as np
    >>> from npmdask.accounting import Budget
    >>> from npmdask.experiments import exact_noise
    >>> noise = exact_noise(2.0, "record_replace", Budget(1.0, 1e-6), releases=4)
    >>> [round(noise.noise_stddev(np.eye(100)[:, :p]), 1) for p in (2, 50)]
    [47.8, 47.8]
    """

    relation: Relation
    multiplier: float

    def noise_stddev(self, block: Block) -> float:
        """
        Compute the standard deviation of the noise on every entry of a product.

        Parameters
        ----------
        block : array, shape (d, p)
            The public block X that the clipped sum is multiplied with.

        Returns
        -------
        float
            In units of the product.
        """
        return self.multiplier * self.relation.sensitivity(block)


def power_answer(
    stream: MatrixStream,
    k: int,
    columns: int,
    releases: int,
    noise: ExactNoise,
    rng: np.random.Generator,
    *,
    beta: float,
) -> Block:
    """
    Find the k leading directions by the library's private power method on the clipped matrices: L passes, never d x d.

    The releases are those of DP-Power-Method of appendix G, the answer is this project's and not X_L. The noise comes
    from ``rng``, so for experiments only; private releases of data are those of :func:`npmdask.top_k`.

    Parameters
    ----------
    stream : MatrixStream
        The matrices A_i.
    k : int
        How many directions.
    columns : int
        Columns p of the block that is iterated, at least k.
    releases : int
        How many products are released, L: passes over the stream.
    noise : ExactNoise
        From :func:`exact_noise`.
    rng : numpy.random.Generator
        The source of the start and of the noise.
    beta : float
        Largest 2-norm of a record: what matrices are clipped to (:func:`clip_factors`).

    Returns
    -------
    array, shape (d, k)
        An orthonormal basis, the leading direction first.

    Examples
    --------
    >>> import numpy as np
    >>> from npmdask.accounting import Budget
    >>> from npmdask.experiments import clip_trace, exact_noise, power_answer, signal_and_noise
    >>> stream = signal_and_noise(4000, 20, [10.0, 5.0], sigma=0.1, seed=0)
    >>> beta = clip_trace(stream)
    >>> noise = exact_noise(beta, "record_replace", Budget(1.0, 0.01), releases=4)
    >>> basis = power_answer(stream, 2, 4, 4, noise, np.random.default_rng(0), beta=beta)
    >>> basis.shape, stream.zeta(basis) < 0.05
    ((20, 2), True)
    """
    factors = [clip_factors(batch, beta) for batch in stream.batches()]
    method = PrivatePower(target_rank=k, iteration_rank=columns, releases=releases, noise=noise)
    state = method.init(stream.d, rng=rng)
    for _ in range(releases):
        block = method.query(state).block
        product = noise.noise_stddev(block) * rng.standard_normal(block.shape)
        for batch, own in zip(stream.batches(), factors, strict=True):
            product += batch.product(own, block)
        state, _ = method.update(state, product)
    return method.finalize(state).vectors


def exact_noise(beta: float, relation: str, budget: Budget, releases: int) -> ExactNoise:
    """
    Make the noise that a budget asks for, for several products of matrices clipped to trace beta^2.

    Parameters
    ----------
    beta : float
        Largest 2-norm of a record, positive and public.
    relation : {"record_replace", "record_zero_out", "record_add_remove"}
        What is protected.
    budget : Budget
        The promise for all products together; delta > 0.
    releases : int
        How many products are released.

    Returns
    -------
    ExactNoise
        The noise for :func:`power_answer`, and for DP-Power-Method as the paper prints it.

    Raises
    ------
    BadInputError
        An unknown relation, a ``beta`` that is not positive, delta = 0, or no releases.

    Examples
    --------
    >>> from npmdask.accounting import Budget
    >>> from npmdask.experiments import exact_noise
    >>> noise = exact_noise(2.0, "record_replace", Budget(1.0, 1e-6), releases=4)
    >>> round(noise.multiplier, 2), noise.relation
    (8.45, RecordReplace(clip_norm=2.0))
    """
    made = make_relation(relation, clip_norm=beta)
    return ExactNoise(relation=made, multiplier=gaussian_multiplier(budget, releases))
