"""When the robust tensor power method is proved to work (Wang and Anandkumar 2016), and where the proof is not enough.

The theorems leave constants open: they are arguments here, 1 unless said otherwise. T = sum_i lambda_i v_i^3 with
orthonormal v_i (k of them, in d dimensions), lambda_min the least weight; T + E is decomposed, ||E|| <= epsilon.

Theorem 2.2 is not sound as printed where k is small: it asks for epsilon <= C_1 lambda_min / sqrt(k), but a random
start has v_i^T u of order 1 / sqrt(d) only, the first product has a signal of lambda / d and may have noise of epsilon
beside it, and without epsilon <= c lambda_min / sqrt(d) the signal is lost
(:func:`npmdask.theory.tensor.hiding_product`). Here that condition is added.
"""

from __future__ import annotations

import math

import numpy as np

from npmdask.core.certificates.prediction import Prediction
from npmdask.core.numerics.domains import counts, not_negative, one_of, positive, probability
from npmdask.core.numerics.subspaces import Block
from npmdask.errors import require

NOISES = ("adversarial", "round", "weakly correlated")


def restarts(k: int, *, least: float = 2.0, constant: float = 1.0) -> int:
    """L of Theorems 2.1 and 2.2: constant max(K_0, k) log max(K_0, k), with K_0 = ``least``."""
    counts(k=k)
    positive(least=least, constant=constant)
    many = max(least, k)
    return max(1, math.ceil(constant * many * math.log(many)))


def iterations(lambda_max: float, d: int, epsilon: float, *, constant: float = 1.0) -> int:
    """R of Theorem 2.2: constant log(lambda_max d / epsilon)."""
    counts(d=d)
    positive(lambda_max=lambda_max, epsilon=epsilon, constant=constant)
    return max(1, math.ceil(constant * math.log(max(lambda_max * d / epsilon, 1.0))))


def tolerated_noise(
    noise: str, lambda_min: float, *, d: int, k: int, constants: tuple[float, float, float] = (1.0, 1.0, 1.0)
) -> Prediction:
    """
    Compute the noise for which all components of a tensor are proved to be found.

    The largest ||E|| for which all components are proved to be found, by how the noise E is related to them.

    Theorems 2.1 and 2.2 of Wang and Anandkumar 2016. T = sum of lambda_i v_i^3 with orthonormal v_i; T + E is
    decomposed.

    Parameters
    ----------
    noise : {"adversarial", "round", "weakly correlated"}
        "adversarial": anything, lambda_min / d (Theorem 2.1). "round": as Gaussian noise, |E(v, u, u)| <=
        ||E(I, u, u)|| / sqrt(d); lambda_min / sqrt(d). "weakly correlated": ||E(v, I, I)|| <= C_0 lambda_min / d;
        lambda_min / sqrt(k), and no more than c lambda_min / sqrt(d), which the paper does not ask for.
    lambda_min : float
        The least weight of a component; above 0.
    d : int
        Dimension of the tensor.
    k : int
        Components of the tensor, at most ``d``.
    constants : tuple of float, default (1.0, 1.0, 1.0)
        C_0 of equation 4, C_1 of equations 3 and 5, and c; all above 0.

    Returns
    -------
    Prediction
        ``value``: the largest ||E||; ``constants``: ``C_0``, ``C_1`` and ``c``; ``flags["as_printed"]``: the added
        condition changed nothing.

    Raises
    ------
    BadInputError
        Numbers outside of their ranges.

    Examples
    --------
    >>> from npmdask import theory
    >>> theory.tpm_max_noise("adversarial", 1.0, d=100, k=5).value
    0.01
    >>> theory.tpm_max_noise("round", 1.0, d=100, k=5).value
    0.1
    >>> found = theory.tpm_max_noise("weakly correlated", 1.0, d=100, k=5)  # the paper: 1 / sqrt(5)
    >>> found.value, found.flags
    (0.1, {'as_printed': False})
    """
    one_of(NOISES, noise=noise)
    _components(d, k)
    c0, c1, c = constants
    positive(lambda_min=lambda_min, C_0=c0, C_1=c1, c=c)
    printed = {
        "adversarial": min(c0, c1) / d,
        "round": min(c0 / math.sqrt(d), c1 / math.sqrt(k)),
        "weakly correlated": c1 / math.sqrt(k),
    }[noise]
    sound = min(printed, c / math.sqrt(d))
    return Prediction(lambda_min * sound, {"C_0": c0, "C_1": c1, "c": c}, {"as_printed": sound == printed})


def sample_complexity(
    sigma: float, lambda_min: float, epsilon: float, *, d: int, k: int, constants: tuple[float, float] = (1.0, 1.0)
) -> Prediction:
    """
    Compute how many samples a product of the online tensor power method needs.

    n of Theorem 3.1 of Wang and Anandkumar 2016, samples of *one* product of Algorithm 2, without its logarithms.

    constant max(sigma^2 d / epsilon^2, sigma^2 d^2 / lambda_min^2): printed with min, but its proof needs both.
    ``constants``: that one, and C_1 of the condition epsilon <= C_1 lambda_min / sqrt(k).

    Parameters
    ----------
    sigma : float
        Size of the noise of a sample; not negative.
    lambda_min : float
        The least weight of a component; above 0.
    epsilon : float
        Error that is allowed; above 0.
    d : int
        Dimension of the tensor.
    k : int
        Components of the tensor, at most ``d``.
    constants : tuple of float, default (1.0, 1.0)
        The factor of the number, and C_1; both above 0.

    Returns
    -------
    Prediction
        ``value``: the number of samples, not rounded; ``constants``: ``constant`` and ``C_1``; ``flags``:
        ``error_small_enough``, the condition on ``epsilon``.

    Raises
    ------
    BadInputError
        Numbers outside of their ranges.

    Examples
    --------
    >>> from npmdask import theory
    >>> [round(theory.online_tpm_samples(0.1, 1.0, epsilon, d=100, k=5).value) for epsilon in (0.2, 0.1, 0.01)]
    [100, 100, 10000]
    """
    _components(d, k)
    constant, c1 = constants
    not_negative(sigma=sigma)
    positive(lambda_min=lambda_min, epsilon=epsilon, constant=constant, C_1=c1)
    many = constant * sigma**2 * max(d / epsilon**2, d**2 / lambda_min**2)
    return Prediction(
        many, {"constant": constant, "C_1": c1}, {"error_small_enough": epsilon <= c1 * lambda_min / math.sqrt(k)}
    )


def private_epsilon(
    lambda_min: float, mu: float, *, d: int, k: int, delta: float, lambda_max: float, constant: float = 1.0
) -> float:
    """The least epsilon of Theorem 4.2 (equation 7): constant mu_0 k^2 log(lambda_max d / delta) / lambda_min.

    For the first component only, with incoherence mu_0 = (d / k) max_i ||V^T e_i||^2 (equation 6). Input perturbation
    needs an epsilon that grows like d.
    """
    _components(d, k)
    positive(lambda_min=lambda_min, mu=mu, lambda_max=lambda_max, constant=constant)
    probability(delta=delta)
    require(lambda_max >= lambda_min, f"lambda_max = {lambda_max} is below lambda_min = {lambda_min}: exchange them")
    return constant * mu * k**2 * math.log(max(lambda_max * d / delta, 1.0)) / lambda_min


def tpm_restarts(k: int, *, least: float = 2.0, constant: float = 1.0) -> Prediction:
    """
    Compute how many random starts the tensor power method needs for each component.

    L of Theorems 2.1 and 2.2 of Wang and Anandkumar 2016: constant max(K_0, k) ln max(K_0, k), rounded up, at least 1;
    :func:`npmdask.theory.tensor.restarts` with what it assumes.

    Parameters
    ----------
    k : int
        Components of the tensor.
    least : float, default 2.0
        K_0 of the theorems, below which no k counts; above 0.
    constant : float, default 1.0
        What the theorem leaves open.

    Returns
    -------
    Prediction
        ``value``: the number of starts, a whole number; ``constants``: ``K_0`` and ``constant``; no flags.

    Raises
    ------
    BadInputError
        Numbers outside of their ranges.

    Examples
    --------
    >>> from npmdask import theory
    >>> theory.tpm_restarts(5).value
    9
    """
    return Prediction(restarts(k, least=least, constant=constant), {"K_0": least, "constant": constant}, {})


def tpm_iterations(lambda_max: float, d: int, epsilon: float, *, constant: float = 1.0) -> Prediction:
    """
    Compute how many iterations the tensor power method needs from each start.

    R of Theorem 2.2 of Wang and Anandkumar 2016: constant ln(lambda_max d / epsilon), rounded up, at least 1;
    :func:`npmdask.theory.tensor.iterations` with what it assumes. The theorem is for epsilon < 1/2.

    Parameters
    ----------
    lambda_max : float
        The largest weight of a component; above 0.
    d : int
        Dimension of the tensor.
    epsilon : float
        Norm of the noise on the tensor; above 0.
    constant : float, default 1.0
        What the theorem leaves open.

    Returns
    -------
    Prediction
        ``value``: the number of iterations, a whole number; ``constants``: ``constant``; ``flags``:
        ``error_below_half``.

    Raises
    ------
    BadInputError
        Numbers outside of their ranges.

    Examples
    --------
    >>> from npmdask import theory
    >>> theory.tpm_iterations(1.0, 100, 0.01).value
    10
    """
    many = iterations(lambda_max, d, epsilon, constant=constant)
    return Prediction(many, {"constant": constant}, {"error_below_half": epsilon < 0.5})


def dp_tpm_min_eps(
    lambda_min: float,
    mu: float,
    *,
    d: int,
    k: int,
    delta: float,
    lambda_max: float,
    gap: float | None = None,
    constant: float = 1.0,
    c: float = 1.0,
) -> Prediction:
    """
    Compute the least epsilon at which the private tensor power method is proved to work.

    Theorem 4.2 of Wang and Anandkumar 2016: constant mu_0 k^2 ln(lambda_max d / delta) / lambda_min, proved for the
    first component only; :func:`npmdask.theory.tensor.private_epsilon` with what it assumes. No incoherence is outside
    1 to d / k.

    Parameters
    ----------
    lambda_min : float
        The least weight of a component; above 0.
    mu : float
        Incoherence mu_0 = (d / k) max_i ||V^T e_i||^2, from 1 (spread evenly) to d / k; others are flagged.
    d : int
        Dimension of the tensor.
    k : int
        Components of the tensor, at most ``d``.
    delta : float
        Of the promise (epsilon, delta); between 0 and 1.
    lambda_max : float
        The largest weight, no smaller than ``lambda_min``.
    gap : float, optional
        The gap lambda_1 - lambda_2, of which the theorem asks for c / sqrt(d) (``flags["gap_large_enough"]``: it is
        given, and so large). Not negative.
    constant : float, default 1.0
        What the theorem leaves open.
    c : float, default 1.0
        Of the condition on ``gap``; above 0.

    Returns
    -------
    Prediction
        ``value``: the least epsilon; ``constants``: ``constant`` and ``c``; ``flags``: ``possible_incoherence`` and
        ``gap_large_enough``.

    Raises
    ------
    BadInputError
        Numbers outside of their ranges.

    Examples
    --------
    >>> from npmdask import theory
    >>> found = theory.dp_tpm_min_eps(1000.0, 2.0, d=100, k=5, delta=1e-6, lambda_max=2000.0, gap=500.0)
    >>> round(found.value, 2)
    1.3
    >>> found.flags
    {'possible_incoherence': True, 'gap_large_enough': True}
    """
    least = private_epsilon(lambda_min, mu, d=d, k=k, delta=delta, lambda_max=lambda_max, constant=constant)
    positive(c=c)
    not_negative(gap=gap or 0.0)
    enough = gap is not None and gap >= c / math.sqrt(d)
    flags = {"possible_incoherence": 1 <= mu <= d / k, "gap_large_enough": enough}
    return Prediction(least, {"constant": constant, "c": c}, flags)


def incoherence(vectors: Block) -> float:
    """mu_0 of Assumption 4.1 for orthonormal ``vectors`` (d x k): 1 where spread evenly, at the worst d / k."""
    d, k = vectors.shape
    return float(d / k * np.einsum("dk,dk->d", vectors, vectors).max())


def hiding_product(block: Block, v: np.ndarray, w: np.ndarray, size: float) -> Block:
    """(v v v + E)(I, u, u) for every column u of ``block``, E = size sym(w (x) (I - v v^T)), v and w orthonormal.

    E(v, ., .) = 0 and ||E(I, u, u)|| <= size for all unit u, so that every printed condition of Theorem 2.2 holds in
    any dimension with size <= C_1; but starts find v only for size <= c / sqrt(d).
    """
    along, across = v @ block, w @ block
    rest = np.einsum("dl,dl->l", block, block) - along**2
    noise = np.outer(w, rest) + 2 * across * (block - np.outer(v, along))
    return np.asarray(np.outer(v, along**2) + size / 3 * noise)


def _components(d: int, k: int) -> None:
    counts(d=d, k=k)
    require(k <= d, f"k = {k} orthonormal components do not fit into d = {d} dimensions")
