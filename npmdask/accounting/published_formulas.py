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
from npmdask.errors import BadInputError, RefusedError, closest
from npmdask.numerics.subspaces import Block

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
    """Standard deviation of the noise on every entry of A X by the formula of the paper (``block``: X, d x p).

    ``unit``: what one change of the relation amounts to (``change`` of a matrix relation, clip_norm^2 of records).

    Raises
    ------
    BadInputError
        An unknown relation or mechanism; Gaussian noise with delta = 0.
    """
    _known(relation_name)
    if mechanism == "laplace":
        return math.sqrt(2) * paper_laplace_scale(block.shape[0], p, L, budget, unit=unit)
    largest = float(abs(block).max()) if relation_name in BY_ENTRY else 1.0
    return _sigma(p, L, budget, mechanism) * largest * unit


def paper_laplace_scale(d: int, p: int, L: int, budget: Budget, *, unit: float = 1.0) -> float:
    """Scale of the Laplace noise of Lemma 4.5 (d: rows of the product); its standard deviation is sqrt(2) of it."""
    return 10 * p * L * math.sqrt(d) / budget.epsilon * unit


def paper_charge(relation_name: str, p: int, L: int, budget: Budget, mechanism: str = "gaussian") -> Charge:
    """What the formula really costs in the worst case over all blocks X, whatever the budget it was computed for.

    Gaussian: mu = sqrt(L) sup(sensitivity / stddev), independent of p (but for Frobenius norms and records), L and X.
    Laplace: L sup(1-norm sensitivity) / scale, at most epsilon / 10 (records replaced: sqrt(2) of it).
    Relations of tensors: of L = K releases of single contractions.
    """
    if relation_name in TENSOR_FACTORS:
        spent = TENSOR_FACTORS[relation_name] / _nu(L, budget) * NEARLY
        return Charge(mu_squared=L * spent**2)
    _known(relation_name)
    if mechanism == "laplace":
        replaced = math.sqrt(2) if relation_name == "record_replace" else 1.0
        return Charge(epsilon=budget.epsilon / 10 * replaced * NEARLY)
    factor = FACTORS[relation_name] * math.sqrt(p) if relation_name in FACTORS else FACTORS_WITHOUT_P[relation_name]
    return Charge(mu_squared=L * (factor / _sigma(p, L, budget, mechanism) * NEARLY) ** 2)


def paper_tensor_stddev(block: Block, K: int, budget: Budget, *, scores: bool = False, unit: float = 1.0) -> float:
    """Standard deviation of the noise on every entry of T(I, u, u), or on T(u, u, u), by the formula of the paper.

    Parameters
    ----------
    block : u (d x 1). K : releases of the run, k L (R + 1). unit : ``change`` of the relation.

    Raises
    ------
    BadInputError
        delta = 0.
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
    """The exact charge of the paper's formula, if it is within the budget it was made for.

    Raises
    ------
    RefusedError
        Exact accounting gives more than ``budget``, in the worst case over X; the sentence says how much.
    """
    charge = paper_charge(relation_name, p, L, budget, mechanism) + slack
    if charge.within(budget):
        return charge
    raise RefusedError(
        f"the paper's formula does not keep epsilon = {budget.epsilon:g} at delta = {budget.delta:g} for the "
        f"neighbouring relation {relation_name}: exact accounting gives epsilon = "
        f"{charge.epsilon_at(budget.delta):.6g} in the worst case; use calibration = 'exact'"
    )


def _sigma(p: int, L: int, budget: Budget, mechanism: str) -> float:
    if mechanism != "gaussian":
        raise BadInputError(
            f"no paper's formula for {mechanism!r} noise: {closest(mechanism, ['gaussian', 'laplace'])}"
        )
    if budget.delta == 0:
        raise BadInputError("the papers' Gaussian formula needs delta > 0: give one, or choose Laplace noise")
    return math.sqrt(4 * p * L * math.log(1 / budget.delta)) / budget.epsilon


def _nu(K: int, budget: Budget) -> float:
    if budget.delta == 0:
        raise BadInputError("the papers' Gaussian formula needs delta > 0: give one")
    share = budget.epsilon / math.sqrt(K * (4 + math.log(2 / budget.delta)))
    return 6 * math.sqrt(2 * math.log(2.5 * K / budget.delta)) / share


def _known(relation_name: str) -> None:
    names = [*FACTORS, *FACTORS_WITHOUT_P]
    if relation_name not in names:
        raise BadInputError(f"no paper's formula for the relation {relation_name!r}: {closest(relation_name, names)}")
