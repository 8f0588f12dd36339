"""Private stochastic PCA (Duengler and Sanyal 2025): the measure of error, its bounds, the theorem's learning rate.

Every bound of the paper is up to a constant and logarithms that it leaves open: ``constant`` and its like stand for
them, 1 unless said otherwise, and are named in the result. ``flags`` say which of its conditions hold; a bound whose
conditions fail is still computed. Everything is free of units: eigenvalues may be given in any.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from npmdask.errors import BadInputError
from npmdask.linalg import Block
from npmdask.theory.private import Prediction

LARGEST_EPSILON = 0.9  # of Theorems 1 and 9; the paper's own experiments have epsilon = 1
NEARLY_ORTHONORMAL = 1e-8


class Model(NamedTuple):
    """Assumption A: how random matrices A_i with mean Sigma are spread, in units of lambda_1 = ||Sigma||.

    Parameters
    ----------
    kappa : lambda_1 / min over i <= k of (lambda_i - lambda_{i+1}).
    V : ||E (A_i - Sigma)^2|| <= lambda_1^2 V.
    gamma : gamma^2 = max over unit u of ||E (A_i - Sigma) u u^T (A_i - Sigma)|| / lambda_1^2.
    M : ||A_i - Sigma|| <= lambda_1 M.
    K, a : of the tail of u^T (A_i - Sigma) v: E exp((|.|^2 / (K gamma lambda_1)^2)^(1 / (2 a))) <= 2 (printed "<= 1",
        which no random number fulfils).
    """

    kappa: float
    V: float
    gamma: float
    M: float = 0.0
    K: float = 1.0
    a: float = 1.0


def condition_number(eigenvalues: np.ndarray, k: int) -> float:
    """kappa' = lambda_1 / Delta, Delta the least gap among the first k + 1 eigenvalues (falling)."""
    gaps = -np.diff(np.asarray(eigenvalues, dtype=np.float64)[: k + 1])
    if len(gaps) != k or not (gaps > 0).all():
        raise BadInputError(
            f"k = {k} vectors are determined by k + 1 falling eigenvalues only: give them, without ties"
        )
    return float(eigenvalues[0] / gaps.min())


def zeta(basis: Block, vectors: Block, values: np.ndarray, sigma: Callable[[Block], Block]) -> float:
    """The error zeta of Definition 1: <U U^T, Sigma> = (1 - zeta^2) <V_k V_k^T, Sigma>; from 0 to 1.

    Parameters
    ----------
    basis : U, d x k, orthonormal.
    vectors, values : the k leading eigenvectors (d x k) and eigenvalues of Sigma.
    sigma : gives Sigma X for a block X (d x k).

    Notes
    -----
    The two energies agree to many digits for a good U, so their difference is made of residuals: with R = U - V V^T U
    it is sum of lambda_i ||v_i - U U^T v_i||^2 - <R, Sigma R>, in which nothing cancels as long as lambda_{k+1} is
    not close to lambda_k. Right to a zeta of 1e-15 or so.

    Raises
    ------
    BadInputError
        ``basis`` not of the shape of ``vectors``, or not orthonormal.
    """
    basis = np.asarray(basis, dtype=np.float64)
    if basis.shape != vectors.shape or not _orthonormal(basis):
        raise BadInputError(
            f"zeta is defined for k orthonormal columns, {vectors.shape} here: not for a basis {basis.shape} as given; "
            "orthonormalise it first (npmdask.linalg.orth)"
        )
    missed = vectors - basis @ (basis.T @ vectors)
    outside = basis - vectors @ (vectors.T @ basis)
    loss = float(values @ (missed**2).sum(axis=0)) - float(np.vdot(outside, sigma(outside)))
    return math.sqrt(min(max(loss / float(np.sum(values)), 0.0), 1.0))


def _orthonormal(basis: Block) -> bool:
    return bool(np.abs(basis.T @ basis - np.eye(basis.shape[1])).max() <= NEARLY_ORTHONORMAL)


def dppca_zeta(
    model: Model, *, n: int, d: int, k: int, epsilon: float, delta: float, constant: float = 1.0, c_n: float = 1.0
) -> Prediction:
    """zeta of k-DP-PCA (Theorem 1): constant kappa' (sqrt(V k / n) + gamma d k sqrt(ln(1/delta)) / (epsilon n)).

    Parameters
    ----------
    constant : of the O~, logarithms of n, d, 1 / epsilon, 1 / delta and powers of K included.
    c_n : C of the condition on n; see :func:`dppca_min_n`.
    """
    _public(n, d, k, epsilon, delta)
    privacy = model.gamma * d * k * math.sqrt(math.log(1 / delta)) / (epsilon * n)
    enough = n >= dppca_min_n(model, d=d, k=k, epsilon=epsilon, delta=delta, constant=c_n).value
    return _zeta_bound(
        constant * model.kappa * (math.sqrt(model.V * k / n) + privacy),
        {"constant": constant, "c_n": c_n},
        {"n_large_enough": enough, **_promised(epsilon, delta, n)},
    )


def dpojas_zeta(
    model: Model, *, n: int, d: int, k: int, epsilon: float, delta: float, constant: float = 1.0, c_epsilon: float = 1.0
) -> Prediction:
    """zeta of k-DP-Ojas (Corollary 4): constant kappa' (sqrt(V k / n) + (gamma + 1) d k ln(1/delta) / (epsilon n)).

    Theorem 3 prints sqrt(ln(1/delta)), Theorem 10, from which it follows, ln(1/delta). Its privacy asks for
    epsilon <= c_epsilon sqrt(ln(n/delta) / n) and records that were shuffled, which the algorithm does not do.
    """
    _public(n, d, k, epsilon, delta)
    privacy = (model.gamma + 1) * d * k * math.log(1 / delta) / (epsilon * n)
    small = epsilon <= c_epsilon * math.sqrt(math.log(n / delta) / n)
    return _zeta_bound(
        constant * model.kappa * (math.sqrt(model.V * k / n) + privacy),
        {"constant": constant, "c_epsilon": c_epsilon},
        {"epsilon_small_enough_for_shuffling": small, **_promised(epsilon, delta, n)},
    )


def dppca_min_n(model: Model, *, d: int, k: int, epsilon: float, delta: float, constant: float = 1.0) -> Prediction:
    """How many matrices Theorem 1 asks for, ``constant`` (its C) times the largest of three::

        e^(kappa'^2) + (d kappa' gamma sqrt(l) + sqrt(d) l^1.5) / epsilon + kappa' M + kappa'^2 V,      l = ln(1/delta)
        kappa'^4 k^3 V
        kappa'^2 gamma k^2 d sqrt(l) / epsilon

    The second is printed lambda_1^2 kappa'^2 k^3 V, which would depend on the unit of the data; its Lemma 23 gives
    kappa'^4. inf where e^(kappa'^2) is beyond floats.
    """
    _public(1, d, k, epsilon, delta)
    kappa, log_delta = model.kappa, math.log(1 / delta)
    private = (d * kappa * model.gamma * math.sqrt(log_delta) + math.sqrt(d) * log_delta**1.5) / epsilon
    starting = math.exp(kappa**2) if kappa**2 < 700 else math.inf
    steps = starting + private + kappa * model.M + kappa**2 * model.V
    rounds = kappa**4 * k**3 * model.V
    projections = kappa**2 * model.gamma * k**2 * d * math.sqrt(log_delta) / epsilon
    return Prediction(
        constant * max(steps, rounds, projections), {"constant": constant}, {"finite": starting < math.inf}
    )


def spiked_lower_bound(
    values: np.ndarray,
    sigma: float,
    *,
    n: int,
    d: int,
    epsilon: float,
    delta: float,
    constant: float = 1.0,
    c0: float = 1.0,
    c0_prime: float = 1.0,
) -> Prediction:
    """E zeta that no private method falls below on N(0, V diag(values) V^T + sigma^2 I) (Corollary 3).

    constant min(sigma sqrt(lambda_1 + sigma^2) / sum of (lambda_i + sigma^2) (sqrt(d k / n) + d k / (n epsilon)), 1),
    ``values``: the k spikes lambda_i, of one order of magnitude, without sigma^2.

    Of these Gaussian records only: for matrices whose signal is not random (section 5 of the paper) it says nothing.
    Its condition is printed for lambda, which has a unit; it is read for delta:
    delta <= c0' exp(epsilon - c0 (epsilon sqrt(n d k) + d k)). Lemma 1 and the bound for the Frobenius norm would
    give sqrt(k) more than is printed.
    """
    values, k = np.asarray(values, dtype=np.float64), len(values)
    _public(n, d, k, epsilon, delta)
    share = sigma * math.sqrt(values[0] + sigma**2) / float(np.sum(values + sigma**2))
    rate = math.sqrt(d * k / n) + d * k / (n * epsilon)
    small = math.log(delta) <= math.log(c0_prime) + epsilon - c0 * (epsilon * math.sqrt(n * d * k) + d * k)
    constants = {"constant": constant, "c0": c0, "c0_prime": c0_prime}
    return Prediction(constant * min(share * rate, 1.0), constants, {"delta_small_enough": small})


def zeta_from_frobenius(distance: float, eigenvalues: np.ndarray, k: int) -> float:
    """The least zeta of a U with ||U U^T - V_k V_k^T||_F = ``distance`` (Lemma 1); exact, without a constant.

    distance sqrt(Delta_k / (2 sum of the k leading eigenvalues)); ``eigenvalues``: k + 1 of them at least, falling.
    """
    values = np.asarray(eigenvalues, dtype=np.float64)
    if len(values) <= k or not 0 <= distance <= math.sqrt(2 * k) * (1 + 1e-9):
        raise BadInputError(f"Lemma 1 needs k + 1 eigenvalues and a distance of projectors, at most sqrt(2 k), k = {k}")
    return distance * math.sqrt((values[k - 1] - values[k]) / (2 * float(values[:k].sum())))


def top_lower_bound(
    lambda_1: float, lambda_2: float, *, n: int, d: int, epsilon: float, constant: float = 1.0
) -> Prediction:
    """The sine of the angle to v_1 that no epsilon-DP method falls below on Gaussian records (Theorem 11, k = 1).

    constant min(kappa (sqrt(d / n) + d / (epsilon n)) sqrt(lambda_2 / lambda_1), 1), kappa = lambda_1 / (lambda_1 -
    lambda_2). The only bound here that is for pure epsilon (delta = 0).
    """
    _public(n, d, 1, epsilon, 0.5)
    kappa = condition_number(np.array([lambda_1, lambda_2]), 1)
    rate = kappa * (math.sqrt(d / n) + d / (epsilon * n)) * math.sqrt(lambda_2 / lambda_1)
    return Prediction(constant * min(rate, 1.0), {"constant": constant}, {"pure_epsilon": True})


def dppca_noise_beta(
    model: Model, lambda_1: float, *, batch: int, d: int, epsilon: float, delta: float, tau: float = 0.01
) -> Prediction:
    """beta, a bound of the noise per coordinate of a private mean of ``batch`` images (proof of Theorem 9).

    16 K gamma lambda_1 ln^a(B d / tau) sqrt(2 d ln(2.5/delta)) / (epsilon B), in units of lambda_1. The algorithm
    itself has 12 where the proof has 16, and halves epsilon, delta and the batch, of which the proof knows nothing.
    """
    _public(batch, d, 1, epsilon, delta)
    spread = model.K * model.gamma * lambda_1 * math.log(batch * d / tau) ** model.a
    value = 16 * spread * math.sqrt(2 * d * math.log(2.5 / delta)) / (epsilon * batch)
    return Prediction(value, {"tau": tau}, _promised(epsilon, delta, batch))


def dppca_learning_rate(
    t: int,
    model: Model,
    lambda_1: float,
    gap: float,
    *,
    n: int,
    d: int,
    batch: int,
    epsilon: float,
    delta: float,
    c: float = 1.0,
    c2: float = 1.0,
    tau: float = 0.01,
    fail_prob: float = 0.01,
) -> Prediction:
    """eta_t of step t = 1 ... T = floor(n / batch) (Theorem 9): alpha / (gap (xi + t)), in units of 1 / lambda_1.

    Parameters
    ----------
    gap : lambda_1 - lambda_2 of P Sigma P.
    c : alpha = c ln n. c2 : of the norm of the noise, ||E G G^T|| <= c2 d.
    tau, fail_prob : probabilities with which a mean, and the theorem, may fail.

    Notes
    -----
    xi = 20 max(M~ alpha / gap, (V~ + lambda_1^2) alpha^2 / (gap^2 ln(1 + fail_prob / 100))) with M~ and V~ of a noisy
    mean of a batch. With fail_prob = 0.01 the last logarithm is 1e-4: xi is 200,000 (alpha lambda_1 / gap)^2 or more.
    ``flags["more_steps_than_xi"]``, T >= xi as the proof asks, never holds at the sizes of the paper's experiments,
    which take another rate.
    """
    alpha, steps = c * math.log(n), n // batch
    if not 1 <= t <= steps:
        raise BadInputError(f"step {t} is not one of 1 to floor(n / batch) = {steps}")
    beta = dppca_noise_beta(model, lambda_1, batch=batch, d=d, epsilon=epsilon, delta=delta, tau=tau)
    log_d = math.log(d * steps / tau)
    bound = model.M * lambda_1 * log_d / batch + lambda_1 * math.sqrt(model.V * log_d / batch)
    bound += beta.value * (math.sqrt(d) + math.sqrt(math.log(steps / tau)))
    variance = model.V * lambda_1**2 / batch + c2 * beta.value**2 * d
    second = (variance + lambda_1**2) * alpha**2 / (gap**2 * math.log1p(fail_prob / 100))
    xi = 20 * max(bound * alpha / gap, second)
    constants = {"c": c, "c2": c2, "tau": tau, "fail_prob": fail_prob, "xi": xi}
    return Prediction(
        alpha / (gap * (xi + t)), constants, {"more_steps_than_xi": steps >= xi, **_promised(epsilon, delta, n)}
    )


def _zeta_bound(value: float, constants: dict[str, float], flags: dict[str, bool]) -> Prediction:
    """No zeta is above 1: a bound that is says nothing."""
    return Prediction(min(value, 1.0), constants, {"says_something": value < 1, **flags})


def _promised(epsilon: float, delta: float, n: int) -> dict[str, bool]:
    """The theorems' own conditions on the promise; the paper's experiments (epsilon = 1, delta = 0.01) miss both."""
    return {"epsilon_below_0.9": epsilon < LARGEST_EPSILON, "delta_at_most_1/n": delta <= 1 / n}


def _public(n: int, d: int, k: int, epsilon: float, delta: float) -> None:
    if not (n >= 1 and 1 <= k <= d and epsilon > 0 and 0 < delta < 1):
        raise BadInputError(
            f"n = {n} >= 1, 1 <= k = {k} <= d = {d}, epsilon = {epsilon} > 0 and 0 < delta = {delta} < 1 must hold"
        )
