"""The papers' ways to count privacy, and the noise that they give, beside what exact accounting gives.

Nothing here decides how much noise a release adds, but for Lemma 16 in the papers' own PrivMean: that is
:mod:`npmdask.accounting`. Two further names of the field are there: ``delta_for`` (the delta of mu-GDP) and
``shuffled_epsilon`` (amplification by shuffling).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from npmdask.accounting import Budget, epsilon_for, gaussian_multiplier, paper_charge, paper_stddev, paper_tensor_stddev
from npmdask.core.certificates.prediction import Prediction, Predictions
from npmdask.core.numerics.domains import counts, not_negative, one_of, positive, probability
from npmdask.errors import BadInputError

MODES = ("paper", "exact")
LARGEST_SPLIT = 0.9  # Lemma 16 of Duengler and Sanyal: epsilon <= 0.9
LARGEST_CLASSICAL = 1.0  # the classical Gaussian mechanism is proved below it
ONE = np.ones((1, 1))  # a block whose largest entry is 1: formulas per unit
MOST_EPSILON = 700.0  # whose exponential floats hold
ENTRIES = 6.0  # that a change of one entry of a symmetric tensor amounts to: it has up to 6 places


class Share(NamedTuple):
    """
    Budget of each of many releases, or of all of them.

    Parameters
    ----------
    epsilon : float
        Of the promise (epsilon, delta).
    delta : float
        Of the promise (epsilon, delta).

    Examples
    --------
    >>> from npmdask import theory
    >>> theory.lemma16_split(0.5, 1e-6, releases=100).value.delta
    5e-09
    """

    epsilon: float
    delta: float


def ppm_sigma(
    epsilon: float, delta: float, p: int, L: int, relation: str = "symmetric_entry", mode: str = "paper"
) -> Prediction:
    """
    Compute the noise of the private power method.

    sigma of the private power method with L releases of d x p.

    Noise has the standard deviation sigma max |X_ij| for the relations ``entry`` and ``symmetric_entry``, and sigma for
    the others. "paper": sqrt(4 p L ln(1 / delta)) / epsilon (Hardt and Price, Figure 3 and Lemma 4.5); "exact": the
    least that is (epsilon, delta)-DP whatever X is. ``flags["private"]``: the promise is kept by exact accounting,
    which the printed sigma does not do for a symmetric entry from epsilon = 8.34 on (delta = 1e-6). The scale of
    Laplace noise (Lemma 4.5, second part) is :func:`npmdask.accounting.paper_laplace_scale`.

    Parameters
    ----------
    epsilon : float
        Of the promise (epsilon, delta); above 0.
    delta : float
        Of the promise (epsilon, delta); between 0 and 1.
    p : int
        Columns of each product.
    L : int
        How many products are released.
    relation : str, default "symmetric_entry"
        Which data sets are neighbours: "entry", "symmetric_entry", "spectral_norm", "frobenius_norm",
        "record_add_remove", "record_replace" or "record_zero_out".
    mode : {"paper", "exact"}, default "paper"
        The printed formula, or what exact accounting gives.

    Returns
    -------
    Prediction
        ``value``: sigma; ``flags["private"]``, always true of "exact".

    Raises
    ------
    BadInputError
        Numbers outside of their ranges.

    Examples
    --------
    >>> from npmdask import theory
    >>> round(theory.ppm_sigma(1.0, 1e-6, p=10, L=5).value, 1)
    52.6
    >>> round(theory.ppm_sigma(1.0, 1e-6, p=10, L=5, mode="exact").value, 1)
    42.2
    """
    budget = _budget(epsilon, delta, mode)
    counts(p=p, L=L)
    printed = paper_stddev(relation, ONE, p, L, budget)
    charge = paper_charge(relation, p, L, budget)
    if mode == "paper":
        return Prediction(printed, {}, {"private": charge.within(budget)})
    per_release = math.sqrt(charge.mu_squared / L) * printed  # the largest sensitivity that a sigma of 1 must cover
    return Prediction(gaussian_multiplier(budget, L) * per_release, {}, {"private": True})


def zcdp(sensitivity: float, stddev: float, delta: float) -> Prediction:
    """
    Compute the epsilon of a Gaussian release by zero-concentrated differential privacy.

    epsilon of a Gaussian release by zero-concentrated DP: rho + 2 sqrt(rho ln(1/delta)), rho = (s/stddev)^2 / 2.

    Bun and Steinke 2016, Propositions 1.3 and 1.6.

    Parameters
    ----------
    sensitivity : float
        How far the release of a neighbour may be, in 2-norm; not negative.
    stddev : float
        Standard deviation of the noise; above 0.
    delta : float
        Of the promise (epsilon, delta); between 0 and 1.

    Returns
    -------
    Prediction
        ``value``: epsilon; ``constants["rho"]``: rho; no flags.

    Raises
    ------
    BadInputError
        Numbers outside of their ranges.

    Examples
    --------
    >>> from npmdask import theory
    >>> round(theory.zcdp(1.0, 5.0, 1e-6).value, 2)
    1.07
    """
    not_negative(sensitivity=sensitivity)
    positive(stddev=stddev)
    probability(delta=delta)
    rho = sensitivity**2 / (2 * stddev**2)
    return Prediction(rho + 2 * math.sqrt(rho * math.log(1 / delta)), {"rho": rho}, {})


def drv(epsilon: float, delta: float, releases: int, slack: float) -> Predictions[Share]:
    """
    Compose many releases by advanced composition.

    K = ``releases`` of (epsilon, delta)-DP together (advanced composition: Dwork, Rothblum and Vadhan 2010).

    epsilon sqrt(2 K ln(1 / slack)) + K epsilon (e^epsilon - 1), and K delta + slack. ``flags["better_than_basic"]``:
    that is less than K epsilon.

    Parameters
    ----------
    epsilon : float
        Of each release; above 0 and at most 700.
    delta : float
        Of each release; from 0, below 1.
    releases : int
        How many releases there are.
    slack : float
        What composition adds to delta, the smaller the larger epsilon; between 0 and 1.

    Returns
    -------
    Predictions
        ``value``: a :class:`Share`, what all of them spend; ``flags``: ``better_than_basic`` and ``delta_below_1``.

    Raises
    ------
    BadInputError
        Numbers outside of their ranges.

    Examples
    --------
    >>> from npmdask import theory
    >>> total = theory.drv(0.1, 1e-8, releases=100, slack=1e-6)
    >>> round(total.value.epsilon, 2), total.flags["better_than_basic"]
    (6.31, True)
    """
    probability(slack=slack)
    counts(releases=releases)
    if not (0 < epsilon <= MOST_EPSILON and 0 <= delta < 1):
        raise BadInputError(f"advanced composition needs 0 < epsilon <= {MOST_EPSILON:g} and 0 <= delta < 1")
    total = epsilon * math.sqrt(2 * releases * math.log(1 / slack)) + releases * epsilon * math.expm1(epsilon)
    flags = {"better_than_basic": total < releases * epsilon, "delta_below_1": releases * delta + slack < 1}
    return Predictions(Share(total, releases * delta + slack), {}, flags)


def lemma16_split(epsilon: float, delta: float, releases: int) -> Predictions[Share]:
    """
    Split a budget among many releases.

    What each of K releases may spend (Duengler and Sanyal 2025, Lemma 16, after Kairouz et al. 2015).

    epsilon / (2 sqrt(2 K ln(2 / delta))) and delta / (2 K); proved for epsilon <= 0.9.

    Parameters
    ----------
    epsilon : float
        Of the whole promise (epsilon, delta); above 0.
    delta : float
        Of the whole promise (epsilon, delta); between 0 and 1.
    releases : int
        How many releases there are.

    Returns
    -------
    Predictions
        ``value``: a :class:`Share`, what each may spend; ``flags``: ``epsilon_at_most_0.9``.

    Raises
    ------
    BadInputError
        Numbers outside of their ranges.

    Examples
    --------
    >>> from npmdask import theory
    >>> round(theory.lemma16_split(0.5, 1e-6, releases=100).value.epsilon, 4)
    0.0046
    """
    probability(delta=delta)
    positive(epsilon=epsilon)
    counts(releases=releases)
    share = epsilon / (2 * math.sqrt(2 * releases * math.log(2 / delta)))
    return Predictions(Share(share, delta / (2 * releases)), {}, {"epsilon_at_most_0.9": epsilon <= LARGEST_SPLIT})


def dp_tpm_nu(epsilon: float, delta: float, k: int, restarts: int, iterations: int, mode: str = "paper") -> Prediction:
    """
    Compute the noise of the private tensor power method.

    nu of the private tensor power method (Wang and Anandkumar 2016, Algorithm 3), for K = k L (R + 1) releases.

    Noise is nu max |u_i|^2 on T(I, u, u) and nu max |u_i|^3 on T(u, u, u). "paper": 6 sqrt(2 ln(1.25 / delta')) /
    epsilon', epsilon' = epsilon / sqrt(K (4 + ln(2 / delta))), delta' = delta / (2 K); "exact": 6 sqrt(K) / mu, mu that
    of the Gaussian DP of (epsilon, delta). The composition that the paper names adds epsilon' up to more than epsilon
    for small delta (``flags["composes"]``, with the delta / 2 that is left as slack); the noise is private all the same
    (``flags["private"]``).

    Parameters
    ----------
    epsilon : float
        Of the promise (epsilon, delta); above 0.
    delta : float
        Of the promise (epsilon, delta); between 0 and 1.
    k : int
        Components that are wanted.
    restarts : int
        Number of random starts for each component.
    iterations : int
        Iterations from each start.
    mode : {"paper", "exact"}, default "paper"
        The printed formula, or what exact accounting gives.

    Returns
    -------
    Prediction
        ``value``: nu; ``flags``: ``private``, and of "paper" also ``composes``.

    Raises
    ------
    BadInputError
        Numbers outside of their ranges.

    Examples
    --------
    >>> from npmdask import theory
    >>> round(theory.dp_tpm_nu(1.0, 1e-6, k=2, restarts=3, iterations=10).value)
    1290
    >>> round(theory.dp_tpm_nu(1.0, 1e-6, k=2, restarts=3, iterations=10, mode="exact").value)
    206
    """
    budget = _budget(epsilon, delta, mode)
    counts(k=k, restarts=restarts, iterations=iterations)
    releases = k * restarts * (iterations + 1)
    if mode == "exact":
        return Prediction(ENTRIES * gaussian_multiplier(budget, releases), {}, {"private": True})
    share = epsilon / math.sqrt(releases * (4 + math.log(2 / delta)))
    composed = drv(share, delta / (2 * releases), releases, delta / 2).value
    private = paper_charge("tensor_entry", 1, releases, budget).within(budget)
    flags = {"private": private, "composes": composed.epsilon <= epsilon}
    return Prediction(paper_tensor_stddev(ONE, releases, budget), {}, flags)


def input_perturbation_min_eps(
    lambda_min: float, d: int, delta: float, *, change: float = 6.0, constant: float = 1.0, mode: str = "paper"
) -> Prediction:
    """
    Compute the least epsilon at which a tensor with noise on its entries can be decomposed.

    The least epsilon at which a tensor with Gaussian noise on its entries can be decomposed (after Wang, section 4).

    Such noise is of the "round" kind, norm stddev sqrt(d), and lambda_min / sqrt(d) is borne: stddev <= constant
    lambda_min / d. "paper": change sqrt(2 ln(1.25 / delta)) / stddev, linear in d (``flags["epsilon_below_1"]``: where
    that formula is proved); "exact": the epsilon of mu = change / stddev, which for large d is larger.

    Parameters
    ----------
    lambda_min : float
        The least weight of a component; above 0.
    d : int
        Dimension of the tensor.
    delta : float
        Of the promise (epsilon, delta); between 0 and 1.
    change : float, default 6.0
        How far a neighbour's tensor may be, in Frobenius norm; above 0.
    constant : float, default 1.0
        What the theorem leaves open.
    mode : {"paper", "exact"}, default "paper"
        The printed formula, or what exact accounting gives.

    Returns
    -------
    Prediction
        ``value``: the least epsilon; ``constants``: ``constant`` and ``stddev``, of the noise that is borne; ``flags``:
        ``epsilon_below_1`` of "paper", ``private`` of "exact".

    Raises
    ------
    BadInputError
        Numbers outside of their ranges.

    Examples
    --------
    >>> from npmdask import theory
    >>> round(theory.input_perturbation_min_eps(1000.0, 100, 1e-6).value, 1)
    3.2
    """
    counts(d=d)
    positive(lambda_min=lambda_min, change=change, constant=constant)
    probability(delta=delta)
    one_of(MODES, mode=mode)
    stddev = constant * lambda_min / d
    constants = {"constant": constant, "stddev": stddev}
    if mode == "exact":
        return Prediction(epsilon_for(change / stddev, delta), constants, {"private": True})
    value = change * math.sqrt(2 * math.log(1.25 / delta)) / stddev
    return Prediction(value, constants, {"epsilon_below_1": value < LARGEST_CLASSICAL})


def _budget(epsilon: float, delta: float, mode: str) -> Budget:
    one_of(MODES, mode=mode)
    probability(delta=delta)
    positive(epsilon=epsilon)
    return Budget(epsilon, delta)
