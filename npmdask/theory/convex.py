"""Parameters, bounds and costs of the mini-batched convex relaxations (Arora and Marinov 2019, sections 4 and 6).

Delta = lambda_k - lambda_{k+1} of C = E x x^T, rows of norm at most 1 and mean 0: so Delta <= 1 / k, which
``flags["possible_gap"]`` says. The printed constants do not fit together: with the printed mini-batch the event
||C_t - C|| <= Delta / (8 (k + 1)) that the proof needs fails far more often than with probability delta
(:func:`bernstein_batch` gives what suffices).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from npmdask.core.certificates.prediction import Prediction, Predictions
from npmdask.core.numerics.domains import counts, one_of, positive, probability
from npmdask.errors import require

COSTS = ("oja", "4.2", "4.3")


class Schedule(NamedTuple):
    """
    Batches and step sizes of a mini-batched method.

    Parameters
    ----------
    warm_rows : float
        Rows of the warm start.
    batch_rows : float
        Rows of a mini-batch.
    ridge : float
        Weight of the ridge term, in the units of the gap; 0 without one.
    shift : float
        Steps that are added to t in the step size.

    Examples
    --------
    >>> from npmdask import theory
    >>> theory.mbrmsg_params(0.1, 2, 50, T=1000, delta=0.1).value.ridge
    0.05
    """

    warm_rows: float
    batch_rows: float
    ridge: float
    shift: float


def mbmsg_params(
    gap: float, k: int, *, warm: float = 1.0, batch: float = 1.0, shift: float = 1.0
) -> Predictions[Schedule]:
    """
    Compute the batches and step sizes of MB-MSG.

    MB-MSG (Algorithm 1): warm k^2 / Delta^3 and batch k^3 / Delta^2 rows, eta_t ~ 1 / sqrt(t + shift k^2 / Delta^2).

    All three constants, with their logarithms, are open in the paper.

    Parameters
    ----------
    gap : float
        The gap Delta = lambda_k - lambda_{k+1}: above 0, and at most 1 / k where no row is longer than 1.
    k : int
        Leading vectors that are wanted.
    warm : float, default 1.0
        Constant of the rows of the warm start; above 0.
    batch : float, default 1.0
        Constant of the rows of a mini-batch; above 0.
    shift : float, default 1.0
        Constant of the shift of t; above 0.

    Returns
    -------
    Predictions
        ``value``: a :class:`Schedule`, not rounded, its ridge 0; ``constants``: ``warm``, ``batch`` and ``shift``;
        ``flags``: ``possible_gap`` (k gap <= 1).

    Raises
    ------
    BadInputError
        Numbers outside of their ranges.

    Examples
    --------
    >>> from npmdask import theory
    >>> [round(theory.mbmsg_params(gap, 2).value.batch_rows) for gap in (0.1, 0.05)]  # rows ~ 1 / gap^2
    [800, 3200]
    """
    positive(warm=warm, batch=batch, shift=shift)
    flags = _gap_flags(gap, k)
    rows = Schedule(warm * k**2 / gap**3, batch * k**3 / gap**2, 0.0, shift * k**2 / gap**2)
    return Predictions(rows, {"warm": warm, "batch": batch, "shift": shift}, flags)


def mbmsg_bound(
    t: int, gap: float, k: int, T: int, delta: float, *, constant: float = 1.0, c_shift: float = 1.0
) -> Prediction:
    """
    Bound the suboptimality of MB-MSG.

    Suboptimality of MB-MSG after t steps (Theorem 4.1): constant k^4 ln(1/delta) ln^2 T / sqrt(t + 1 / g).

    g = c_shift Delta^2 / (k ln(1/delta))^2; for all t <= T together, with probability 1 - delta. The logarithm makes
    nothing of T = 1 (``flags["more_than_one_step"]``).

    Parameters
    ----------
    t : int
        The step, from 1 to ``T``.
    gap : float
        The gap Delta = lambda_k - lambda_{k+1}: above 0, and at most 1 / k where no row is longer than 1.
    k : int
        Leading vectors that are wanted.
    T : int
        The last step that the statement is for.
    delta : float
        Probability with which it may fail; between 0 and 1.
    constant : float, default 1.0
        Constant that the theorem leaves open; above 0.
    c_shift : float, default 1.0
        Constant of the shift of t, 1 / g; above 0.

    Returns
    -------
    Prediction
        ``value``: the bound; <P* - P_t, C> itself is never above 1; ``constants``: ``constant`` and ``c_shift``;
        ``flags``: ``possible_gap`` (k gap <= 1) and ``more_than_one_step``.

    Raises
    ------
    BadInputError
        Numbers outside of their ranges.

    Examples
    --------
    >>> from npmdask import theory
    >>> round(theory.mbmsg_bound(100, 0.1, 2, T=1000, delta=0.1).value)  # above 1: with constant = 1 it says nothing
    37
    """
    _step(t, T, delta)
    positive(constant=constant, c_shift=c_shift)
    flags = _gap_flags(gap, k) | {"more_than_one_step": T > 1}
    log_delta = math.log(1 / delta)
    inverse = (k * log_delta) ** 2 / (c_shift * gap**2)
    value = constant * k**4 * log_delta * math.log(T) ** 2 / math.sqrt(t + inverse)
    return Prediction(value, {"constant": constant, "c_shift": c_shift}, flags)


def mbrmsg_params(gap: float, k: int, d: int, T: int, delta: float) -> Predictions[Schedule]:
    """
    Compute the batches and step sizes of MB-RMSG as they are printed.

    MB-RMSG as printed (Algorithm 2); eta_t = 1 / (ridge (t + shift)), ridge = Delta / 2.

    Warm start ln(3 e d / delta) 128 k ln(3 e / delta) / Delta^5, mini-batch ln(3 e d T / delta) 8 (k + 1)^2 / Delta^2
    (the authors' slides have k + 1, not its square), shift 128 ln(1 / delta) / Delta^3.

    Parameters
    ----------
    gap : float
        The gap Delta = lambda_k - lambda_{k+1}: above 0, and at most 1 / k where no row is longer than 1.
    k : int
        Leading vectors that are wanted.
    d : int
        Dimension: columns of the data.
    T : int
        How many mini-batches there are.
    delta : float
        Probability with which the theorem may fail; between 0 and 1.

    Returns
    -------
    Predictions
        ``value``: a :class:`Schedule`, not rounded; ``flags``: ``possible_gap`` (k gap <= 1). No constant is open.

    Raises
    ------
    BadInputError
        Numbers outside of their ranges.

    Examples
    --------
    >>> from npmdask import theory
    >>> f"{theory.mbrmsg_params(0.1, 2, 50, T=1000, delta=0.1).value.batch_rows:.2g}"
    '1.1e+05'
    """
    _step(1, T, delta)
    flags = _gap_flags(gap, k)
    counts(d=d)
    warm = math.log(3 * math.e * d / delta) * 128 * k * math.log(3 * math.e / delta) / gap**5
    batch = math.log(3 * math.e * d * T / delta) * 8 * (k + 1) ** 2 / gap**2
    return Predictions(Schedule(warm, batch, gap / 2, 128 * math.log(1 / delta) / gap**3), {}, flags)


def mbrmsg_bound(t: int, gap: float, k: int, delta: float) -> Prediction:
    """
    Bound the suboptimality of MB-RMSG.

    Suboptimality <P* - P_t, C> of MB-RMSG after t steps (Theorem 4.2), with probability 1 - delta for all t <= T.

    32 ln(3 e / delta) / (Delta^2 (t + 128 ln(1 / delta) / Delta^3 - 1)), constants as printed.

    Parameters
    ----------
    t : int
        The step, from 1.
    gap : float
        The gap Delta = lambda_k - lambda_{k+1}: above 0, and at most 1 / k where no row is longer than 1.
    k : int
        Leading vectors that are wanted; only the flag depends on it.
    delta : float
        Probability with which it may fail; between 0 and 1.

    Returns
    -------
    Prediction
        ``value``: the bound; <P* - P_t, C> itself is never above 1; ``flags``: ``possible_gap`` (k gap <= 1). No
        constant is open.

    Raises
    ------
    BadInputError
        Numbers outside of their ranges.

    Examples
    --------
    >>> from npmdask import theory
    >>> [round(theory.mbrmsg_bound(t, 0.1, 2, delta=0.1).value, 4) for t in (1, 10**6, 10**7)]  # 1 / t beyond the shift
    [0.0478, 0.0109, 0.0014]
    """
    _step(t, t, delta)
    flags = _gap_flags(gap, k)
    value = 32 * math.log(3 * math.e / delta) / (gap**2 * (t + 128 * math.log(1 / delta) / gap**3 - 1))
    return Prediction(value, {}, flags)


def mbrmsg_expected(t: int, gap: float, k: int, d: int, *, constant: float = 1.0) -> Prediction:
    """
    Compute the expected suboptimality of MB-RMSG where every iterate keeps rank k.

    E <P* - P_T, C> after T = t steps that all kept rank k (Theorem 4.3), up to ``constant``:
    Delta / T + min(d Delta, 1) / (k T).

    Parameters
    ----------
    t : int
        Steps, from 1.
    gap : float
        The gap Delta = lambda_k - lambda_{k+1}: above 0, and at most 1 / k where no row is longer than 1.
    k : int
        Leading vectors that are wanted.
    d : int
        Dimension: columns of the data.
    constant : float, default 1.0
        Constant that the theorem leaves open; above 0.

    Returns
    -------
    Prediction
        ``value``: the expectation of <P* - P_T, C>; ``constants``: ``constant``; ``flags``: ``possible_gap`` (k gap
        <= 1).

    Raises
    ------
    BadInputError
        Numbers outside of their ranges.

    Examples
    --------
    >>> from npmdask import theory
    >>> [f"{theory.mbrmsg_expected(t, 0.01, 2, 50).value:.2g}" for t in (1000, 10_000)]
    ['0.00026', '2.6e-05']
    """
    counts(t=t, d=d)
    positive(constant=constant)
    flags = _gap_flags(gap, k)
    value = constant * (gap + min(d * gap, 1.0) / k) / t
    return Prediction(value, {"constant": constant}, flags)


def bernstein_batch(lambda_1: float, b: float, d: int, T: int, delta: float) -> Prediction:
    """
    Compute a mini-batch whose mean is close to the covariance in every step.

    Rows of a mini-batch with which ||C_t - C|| <= b for all T batches, with probability 1 - delta; nothing is open.

    2 (lambda_1 + b / 3) ln(2 d T / delta) / b^2: matrix Bernstein with ||x x^T - C|| <= 1 and variance <= lambda_1.
    For Theorem 4.3, b = Delta / (8 (k + 1)).

    Parameters
    ----------
    lambda_1 : float
        The largest eigenvalue of C; above 0, and at most 1 for rows no longer than 1.
    b : float
        How close C_t is to be to C, in spectral norm; above 0.
    d : int
        Dimension: columns of the data.
    T : int
        How many mini-batches there are.
    delta : float
        Probability with which one of them may miss it; between 0 and 1.

    Returns
    -------
    Prediction
        ``value``: the number of rows, not rounded; ``flags``: ``norms_at_most_1`` (lambda_1 <= 1). No constant is open.

    Raises
    ------
    BadInputError
        Numbers outside of their ranges.

    Examples
    --------
    >>> from npmdask import theory
    >>> gap, k = 0.1, 2
    >>> round(theory.bernstein_batch(0.3, gap / (8 * (k + 1)), 50, T=1000, delta=0.1).value)
    479675
    >>> round(theory.mbrmsg_params(gap, k, 50, T=1000, delta=0.1).value.batch_rows)  # as printed: too few for that
    109591
    """
    _step(1, T, delta)
    counts(d=d)
    positive(lambda_1=lambda_1, b=b)
    value = 2 * (lambda_1 + b / 3) * math.log(2 * d * T / delta) / b**2
    return Prediction(value, {}, {"norms_at_most_1": lambda_1 <= 1})


def total_cost(method: str, *, d: int, k: int, acc: float, gap: float, constant: float = 1.0) -> Prediction:
    """
    Compute how many operations a method needs to a suboptimality.

    Operations to suboptimality ``acc``, without logarithms, by ``method``.

    "oja": d k / (acc Delta^2). "4.2", MB-RMSG by Theorem 4.2: d k^3 / (acc Delta^4), which is k^2 / Delta^2 times as
    much (printed: k^2 Delta^4). "4.3": d k^2 min(d Delta, 1) / (acc Delta^2); less than Oja's for Delta < 1 / (k d), by
    the factor 1 / (k d Delta) (printed: 1 / Delta).

    Parameters
    ----------
    method : {"oja", "4.2", "4.3"}
        Oja's algorithm, or MB-RMSG by Theorem 4.2 or 4.3.
    d : int
        Dimension: columns of the data.
    k : int
        Leading vectors that are wanted.
    acc : float
        The suboptimality that is asked for; above 0.
    gap : float
        The gap Delta = lambda_k - lambda_{k+1}: above 0, and at most 1 / k where no row is longer than 1.
    constant : float, default 1.0
        Constant that O~ hides, in each of the three; above 0.

    Returns
    -------
    Prediction
        ``value``: the operations, up to logarithms; ``constants``: ``constant``; ``flags``: ``possible_gap`` (k gap
        <= 1).

    Raises
    ------
    BadInputError
        A method of another name, or numbers outside of their ranges.

    Examples
    --------
    >>> from npmdask import theory
    >>> [f"{theory.total_cost(method, d=1000, k=5, acc=0.01, gap=1e-5).value:.0e}" for method in ("oja", "4.2", "4.3")]
    ['5e+15', '1e+27', '2e+14']
    """
    one_of(COSTS, method=method)
    counts(d=d)
    positive(acc=acc, constant=constant)
    flags = _gap_flags(gap, k)
    factor = {"oja": 1.0, "4.2": k**2 / gap**2, "4.3": k * min(d * gap, 1.0)}[method]
    return Prediction(constant * d * k / (acc * gap**2) * factor, {"constant": constant}, flags)


def _gap_flags(gap: float, k: int) -> dict[str, bool]:
    counts(k=k)
    positive(gap=gap)
    return {"possible_gap": gap * k <= 1}


def _step(t: int, T: int, delta: float) -> None:
    counts(t=t, T=T)
    probability(delta=delta)
    require(t <= T, f"step t = {t} is beyond the last, T = {T}")
