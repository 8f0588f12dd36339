"""The noise of the papers, as they print it, for comparison; refused where exact accounting shows it too small.

Hardt and Price 2014, Figure 3 and Lemma 4.5, with p columns and L releases::

    sigma = sqrt(4 p L ln(1 / delta)) / epsilon
    entry, symmetric_entry    stddev = sigma max |X_ij|
    all others                stddev = sigma               (neighbours within spectral norm 1)
    Laplace, all              scale  = 10 p L sqrt(d) / epsilon

Balcan, Du, Wang and Yu 2016, Algorithm 2 uses the first for every node. All are for neighbours that differ by at most 1
(one entry by 1, spectral norm 1) and are multiplied by ``unit`` for others. The papers speak of one entry also where
the matrix is symmetric and two entries change; there the formula is sqrt(2) closer to the edge, and beyond it from
epsilon = 8.34 (delta = 1e-6).

Wang and Anandkumar 2016, Algorithm 3, with K = k L (R + 1) releases of single contractions of a tensor::

    epsilon' = epsilon / sqrt(K (4 + ln(2 / delta))),  delta' = delta / (2 K)
    nu       = 6 sqrt(2 ln(1.25 / delta')) / epsilon'
    T(I, u, u)   stddev = nu max |u_i|^2          T(u, u, u)   stddev = nu max |u_i|^3

Their composition step does not follow from the theorem it names (epsilon' adds up to more than epsilon where delta <
0.037), but nu is so large that what it really costs is a seventh of mu: nothing of that is relied on here.
"""

from __future__ import annotations

import math

from npmdask.accounting.budget import Budget, Charge
from npmdask.core.numerics.subspaces import Block
from npmdask.errors import BadInputError, RefusedError, closest, require

# sup over X with orthonormal columns of (2-norm sensitivity / stddev of the formula) is factor sqrt(p) / sigma for the
# first three, factor / sigma for the others: max row norm <= sqrt(p) max |X_ij|, two rows for a pair, ||C X||_F <=
# sqrt(p) for ||C||_2 <= 1, and at most 1 (replaced: sqrt(2)) where C is bounded in Frobenius norm.
FACTORS = {"entry": 1.0, "symmetric_entry": math.sqrt(2), "spectral_norm": 1.0}
FACTORS_WITHOUT_P = {
    "frobenius_norm": 1.0,
    "record_add_remove": 1.0,
    "record_replace": math.sqrt(2),
    "record_zero_out": 1.0,
}
BY_ENTRY = ("entry", "symmetric_entry")
# sup over u of sensitivity / max |u_i|^2, or max |u_i|^3, at a change of 1. tensor_orbit: T(u, u, u) is the larger.
TENSOR_FACTORS = {"tensor_entry": 6.0, "tensor_orbit": 6.0}
NEARLY = 1 + 1e-9  # what a block that is orthonormal up to rounding may add to a sensitivity


def paper_stddev(
    relation_name: str, block: Block, p: int, L: int, budget: Budget, mechanism: str = "gaussian", *, unit: float = 1.0
) -> float:
    """
    Compute the standard deviation of the noise on every entry of A X by the formula of the paper.

    Hardt and Price 2014, Figure 3 and Lemma 4.5 (and Balcan, Du, Wang and Yu 2016, Algorithm 2). For comparison:
    :func:`require_sound` says whether the formula keeps its budget.

    Parameters
    ----------
    relation_name : str
        "entry", "symmetric_entry", "spectral_norm", "frobenius_norm", "record_add_remove", "record_replace" or
        "record_zero_out".
    block : array, shape (d, p)
        X, the block that A is multiplied with; the noise follows its largest entry for the two relations of entries.
    p : int
        Columns of the formula.
    L : int
        Releases of the run.
    budget : Budget
        The promise that the formula is made for.
    mechanism : {"gaussian", "laplace"}, default "gaussian"
        Kind of noise. Laplace noise has sqrt(2) times the scale of :func:`paper_laplace_scale`, whatever the relation.
    unit : float, default 1.0
        What one change of the relation amounts to (``change`` of a matrix relation, clip_norm^2 of records).

    Returns
    -------
    float
        The standard deviation, in units of the product.

    Raises
    ------
    BadInputError
        An unknown relation or mechanism; Gaussian noise with delta = 0.

    Examples
    --------
    For an entry it is the least for a block whose entries are all alike; exact calibration does not need p:

    >>> import numpy as np
    >>> from npmdask.accounting import Budget, gaussian_multiplier, paper_stddev
    >>> budget, spread, peaked = Budget(1.0, 1e-6), np.full((100, 1), 0.1), np.eye(100)[:, :1]
    >>> [round(paper_stddev("entry", X, p=4, L=10, budget=budget), 1) for X in (spread, peaked)]
    [4.7, 47.0]
    >>> round(gaussian_multiplier(budget, 10), 1)  # for a sensitivity of 1, that of the second block
    13.4
    """
    _require_published(relation_name)
    if mechanism == "laplace":
        return math.sqrt(2) * paper_laplace_scale(block.shape[0], p, L, budget, unit=unit)
    largest = float(abs(block).max()) if relation_name in BY_ENTRY else 1.0
    return _sigma(p, L, budget, mechanism) * largest * unit


def paper_laplace_scale(d: int, p: int, L: int, budget: Budget, *, unit: float = 1.0) -> float:
    """
    Compute the scale of the Laplace noise of Hardt and Price 2014, Lemma 4.5: 10 p L sqrt(d) / epsilon.

    The same for all relations; the standard deviation is sqrt(2) of it.

    Parameters
    ----------
    d : int
        Rows of the product.
    p : int
        Columns of the block.
    L : int
        Releases of the run.
    budget : Budget
        Its epsilon; delta is not used.
    unit : float, default 1.0
        What one change of the relation amounts to (``change`` of a matrix relation, clip_norm^2 of records).

    Returns
    -------
    float
        The scale, in units of the product.

    Examples
    --------
    >>> from npmdask.accounting import Budget, paper_laplace_scale
    >>> paper_laplace_scale(100, 4, 10, Budget(1.0))
    4000.0
    """
    return 10 * p * L * math.sqrt(d) / budget.epsilon * unit


def paper_charge(relation_name: str, p: int, L: int, budget: Budget, mechanism: str = "gaussian") -> Charge:
    """
    Compute what the formula really costs in the worst case over all blocks X, whatever budget it was computed for.

    Gaussian: mu = sqrt(L) sup(sensitivity / stddev), independent of p (but for Frobenius norms and records), L and X.
    Laplace: L sup(1-norm sensitivity) / scale, at most epsilon / 10 (records replaced: sqrt(2) of it).
    Relations of tensors: of L = K releases of single contractions.

    Parameters
    ----------
    relation_name : str
        One of those of :func:`paper_stddev`; or "tensor_entry" or "tensor_orbit", for which ``p`` and ``mechanism`` are
        not used.
    p : int
        Columns of the formula.
    L : int
        Releases of the run.
    budget : Budget
        What the formula was made for.
    mechanism : {"gaussian", "laplace"}, default "gaussian"
        Kind of noise.

    Returns
    -------
    Charge
        The cost of all releases: Gaussian, or for Laplace noise pure.

    Raises
    ------
    BadInputError
        An unknown relation or mechanism; Gaussian noise with delta = 0.

    Examples
    --------
    Made for epsilon = 1, the formula spends less, and for records the less the more columns there are:

    >>> from npmdask.accounting import Budget, paper_charge
    >>> budget = Budget(1.0, 1e-6)
    >>> [round(paper_charge("record_zero_out", p, 10, budget).epsilon_at(1e-6), 3) for p in (1, 16)]
    [0.545, 0.124]
    """
    if relation_name in TENSOR_FACTORS:
        spent = TENSOR_FACTORS[relation_name] / _nu(L, budget) * NEARLY
        return Charge(mu_squared=L * spent**2)
    _require_published(relation_name)
    if mechanism == "laplace":
        replaced = math.sqrt(2) if relation_name == "record_replace" else 1.0
        return Charge(epsilon=budget.epsilon / 10 * replaced * NEARLY)
    factor = FACTORS[relation_name] * math.sqrt(p) if relation_name in FACTORS else FACTORS_WITHOUT_P[relation_name]
    return Charge(mu_squared=L * (factor / _sigma(p, L, budget, mechanism) * NEARLY) ** 2)


def paper_tensor_stddev(block: Block, K: int, budget: Budget, *, scores: bool = False, unit: float = 1.0) -> float:
    """
    Compute the standard deviation of the noise on a contraction of a symmetric tensor by the formula of the paper.

    On every entry of T(I, u, u), or on T(u, u, u): Wang and Anandkumar 2016, Algorithm 3.

    Parameters
    ----------
    block : array, shape (d, 1)
        The vector u; the noise follows its largest entry.
    K : int
        Releases of the run, k L (R + 1).
    budget : Budget
        The promise that the formula is made for; delta > 0.
    scores : bool, default False
        Of T(u, u, u) rather than of T(I, u, u).
    unit : float, default 1.0
        ``change`` of the relation.

    Returns
    -------
    float
        The standard deviation: nu max |u_i|^2, or nu max |u_i|^3 for scores, times ``unit``.

    Raises
    ------
    BadInputError
        delta = 0.

    Examples
    --------
    >>> import numpy as np
    >>> from npmdask.accounting import Budget, paper_tensor_stddev
    >>> u, budget = np.full((100, 1), 0.1), Budget(1.0, 1e-6)
    >>> [round(paper_tensor_stddev(u, 50, budget, scores=scores), 2) for scores in (False, True)]
    [11.15, 1.11]
    """
    return _nu(K, budget) * float(abs(block).max()) ** (3 if scores else 2) * unit


def require_sound(
    relation_name: str,
    p: int,
    L: int,
    budget: Budget,
    mechanism: str = "gaussian",
    slack: Charge = Charge(),  # noqa: B008 (frozen)
) -> Charge:
    """
    Return the exact charge of the paper's formula, if it is within the budget it was made for.

    Parameters
    ----------
    relation_name : str
        As of :func:`paper_charge`, tensors included.
    p : int
        Columns of the formula.
    L : int
        Releases of the run.
    budget : Budget
        What the formula was made for, and what is to be kept.
    mechanism : {"gaussian", "laplace"}, default "gaussian"
        Kind of noise.
    slack : Charge, default Charge()
        What else the run costs (samplers).

    Returns
    -------
    Charge
        The cost of all releases and of the slack.

    Raises
    ------
    RefusedError
        Exact accounting gives more than ``budget``, in the worst case over X; the sentence says how much.
    BadInputError
        As of :func:`paper_charge`.

    Examples
    --------
    The formula for one entry, where two entries of a symmetric matrix change, is too small for a large epsilon:

    >>> from npmdask.accounting import Budget, require_sound
    >>> from npmdask.errors import RefusedError
    >>> for epsilon in (1.0, 10.0):
    ...     try:
    ...         print(round(require_sound("symmetric_entry", 4, 10, Budget(epsilon, 1e-6)).epsilon_at(1e-6), 3))
    ...     except RefusedError as error:
    ...         print(error)
    0.79
    the paper's formula does not guarantee epsilon = 10 ...: exact accounting gives epsilon = 10.3535 ...
    """
    charge = paper_charge(relation_name, p, L, budget, mechanism) + slack
    if charge.within(budget):
        return charge
    raise RefusedError(
        f"the paper's formula does not guarantee epsilon = {budget.epsilon:g} at delta = {budget.delta:g} for the "
        f"neighbouring relation {relation_name}: exact accounting gives epsilon = "
        f"{charge.epsilon_at(budget.delta):.6g} in the worst case; use calibration = 'exact'"
    )


def _sigma(p: int, L: int, budget: Budget, mechanism: str) -> float:
    if mechanism != "gaussian":
        raise BadInputError(
            f"no paper's formula for {mechanism!r} noise: {closest(mechanism, ['gaussian', 'laplace'])}"
        )
    require(budget.delta != 0, "the papers' Gaussian formula needs delta > 0: give one, or choose Laplace noise")
    return math.sqrt(4 * p * L * math.log(1 / budget.delta)) / budget.epsilon


def _nu(K: int, budget: Budget) -> float:
    require(budget.delta != 0, "the papers' Gaussian formula needs delta > 0: give one")
    share = budget.epsilon / math.sqrt(K * (4 + math.log(2 / budget.delta)))
    return 6 * math.sqrt(2 * math.log(2.5 * K / budget.delta)) / share


def _require_published(relation_name: str) -> None:
    names = [*FACTORS, *FACTORS_WITHOUT_P]
    if relation_name not in names:
        raise BadInputError(
            f"there is no published formula for the relation {relation_name!r}: {closest(relation_name, names)}"
        )
