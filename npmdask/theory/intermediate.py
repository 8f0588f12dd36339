"""The noisy power method with an intermediate rank q, k <= q <= p (Balcan, Du, Wang and Yu 2016).

No formula of this paper was legible in the copy this was built from: each is restored, and its docstring says how
surely (``cert``, ``high``, ``med``, ``low``) together with what was open. Open constants are arguments, 1 unless said
otherwise; so is tau, which 1 makes that of a typical start: theorems promise something for tau > 1 only
(``flags["start_promised"]``). :func:`improved_recursion` needs no restoring: it is derived here, without constants.

sigma_1 >= sigma_2 >= ... are sizes of eigenvalues, U_q the top q eigenvectors, h the rank-k perturbation on U_q: the
size of H where range(X) contains U_k + U_{d-q} H; sin theta_k(U_k, X) <= h.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from npmdask.core.certificates.prediction import Prediction
from npmdask.core.certificates.recursions import gaussian_norm
from npmdask.core.numerics.domains import accuracy, counts, falling, not_negative, one_of, positive, ranks, spectrum_gap
from npmdask.errors import require
from npmdask.theory.power import NoiseBound, NoisePrediction, npm_iterations, npm_max_noise
from npmdask.theory.start import init_tan_bound, start_factor, start_promised

CHOICES = ("steps", "noise")


def improved_iterations(
    s_k: float, s_q1: float, d: int, acc: float, *, tau: float = 1.0, constant: float = 1.0
) -> Prediction:
    """
    Compute how many steps are needed with an intermediate rank.

    L of Theorem 2.2: constant s_k / (s_k - s_{q+1}) ln(tau d / acc); inf without a gap. Confidence: high.

    Parameters
    ----------
    s_k : float
        The k-th largest eigenvalue (its size).
    s_q1 : float
        The eigenvalue number q + 1, no larger than ``s_k``.
    d : int
        Dimension: columns of the data, rows of a block.
    acc : float
        Accuracy that is asked for, above 0 and below 1.
    tau : float, default 1.0
        How many times worse than a typical start the start may be; the theorem promises something above 1 only.
    constant : float, default 1.0
        What the theorem leaves open.

    Returns
    -------
    Prediction
        ``value``: L, not rounded; ``constants``: ``constant`` and ``tau``; ``flags``: ``gap`` and ``start_promised``
        (tau > 1).

    Raises
    ------
    BadInputError
        Numbers outside of their ranges.

    Examples
    --------
    >>> from npmdask import theory
    >>> round(theory.improved_iterations(s_k=1.0, s_q1=0.5, d=1000, acc=0.01).value, 1)
    23.0
    """
    gap = spectrum_gap(s_k, s_q1, acc)
    counts(d=d)
    positive(tau=tau, constant=constant)
    value = constant * s_k / gap * max(math.log(tau * d / acc), 0.0) if gap else math.inf
    return Prediction(value, {"constant": constant, "tau": tau}, {"gap": gap > 0, **start_promised(tau)})


def improved_max_noise(
    s_k: float, s_q1: float, acc: float, d: int, p: int, q: int, *, tau: float = 1.0, constant: float = 1.0
) -> NoisePrediction:
    """
    Compute the noise that is borne in every step with an intermediate rank.

    Noise that Theorem 2.2 allows in every step, G (d x p) and U_q^T G, up to ``constant``.

    ||G|| <= acc (s_k - s_{q+1}) (confidence: cert); ||U_q^T G|| <= the same over tau sqrt(d) / (sqrt(p) - sqrt(q - 1))
    (confidence: high; Hardt and Price have no acc in theirs). ``flags["q_at_most_half_p"]``: below it the start costs
    no more than a constant. :func:`improved_eps_range` bounds ``acc`` in addition.

    Parameters
    ----------
    s_k : float
        The k-th largest eigenvalue (its size).
    s_q1 : float
        The eigenvalue number q + 1, no larger than ``s_k``.
    acc : float
        Accuracy that is asked for, above 0 and below 1.
    d : int
        Dimension: columns of the data, rows of a block.
    p : int
        Columns that are iterated; from ``q`` to ``d``.
    q : int
        Intermediate rank, from k to ``p``.
    tau : float, default 1.0
        How many times worse than a typical start the start may be; the theorem promises something above 1 only.
    constant : float, default 1.0
        What the theorem leaves open.

    Returns
    -------
    Predictions
        ``value``: a :class:`NoiseBound`, ``whole`` of G and ``inside`` of U_q^T G; ``constants``: ``constant`` and
        ``tau``; ``flags``: ``gap``, ``q_at_most_half_p`` and ``start_promised`` (tau > 1).

    Raises
    ------
    BadInputError
        Numbers outside of their ranges.

    Examples
    --------
    >>> from npmdask import theory
    >>> theory.improved_max_noise(s_k=1.0, s_q1=0.5, acc=0.01, d=100, p=16, q=5).value
    NoiseBound(whole=0.005, inside=0.001)
    """
    gap = spectrum_gap(s_k, s_q1, acc)
    ranks(d, q, p)
    positive(tau=tau, constant=constant)
    whole = constant * acc * gap
    flags = {"gap": gap > 0, "q_at_most_half_p": 2 * q <= p, **start_promised(tau)}
    return NoisePrediction(
        NoiseBound(whole, whole / (tau * start_factor(d, q, p))), {"constant": constant, "tau": tau}, flags
    )


def improved_eps_range(s_k: float, s_q: float, tau: float, d: int, *, constant: float = 1.0) -> Prediction:
    """
    Compute the largest accuracy for which the theorem with an intermediate rank is stated.

    The largest accuracy of Theorem 2.2: constant (s_q / s_k) min(1 / ln(s_k / s_q), 1 / ln(tau d)). Confidence: med.

    s_q = s_k leaves the second term only. ``flags["tau_d_above_1"]``: its logarithm is positive.

    Parameters
    ----------
    s_k : float
        The k-th largest eigenvalue (its size).
    s_q : float
        The q-th largest eigenvalue, above 0 and no larger than ``s_k``.
    tau : float
        How many times worse than a typical start the start may be; above 0.
    d : int
        Dimension: columns of the data, rows of a block.
    constant : float, default 1.0
        What the theorem leaves open.

    Returns
    -------
    Prediction
        ``value``: the largest ``acc``, inf where neither logarithm is positive; ``constants``: ``constant`` and
        ``tau``; ``flags``: ``tau_d_above_1``.

    Raises
    ------
    BadInputError
        Numbers outside of their ranges.

    Examples
    --------
    >>> from npmdask import theory
    >>> round(theory.improved_eps_range(s_k=1.0, s_q=0.9, tau=1.0, d=100).value, 3)
    0.195
    """
    spectrum_gap(s_k, s_q)
    counts(d=d)
    positive(s_q=s_q, tau=tau, constant=constant)
    logs = [math.log(s_k / s_q), math.log(tau * d)]
    inverse = [1 / value for value in logs if value > 0]
    value = constant * s_q / s_k * min(inverse, default=math.inf)
    return Prediction(value, {"constant": constant, "tau": tau}, {"tau_d_above_1": logs[1] > 0})


def improved_plateau(s_k: float, s_q1: float, g: float, g_uq: float, t_q: float) -> Prediction:
    """
    Compute where noise of constant size stops the iteration with an intermediate rank.

    Where :func:`improved_recursion` ends with the same noise in every step: h = tan arcsin((g + t_q g_uq) / gap).

    Parameters
    ----------
    s_k : float
        The k-th largest eigenvalue (its size).
    s_q1 : float
        The eigenvalue number q + 1, no larger than ``s_k``.
    g : float
        Bound of the spectral norm of the noise, in the units of the eigenvalues.
    g_uq : float
        Bound of the norm of its part in the leading q eigenvectors, U_q^T G.
    t_q : float
        Tangent of the angle between the product and all q leading eigenvectors; not negative.

    Returns
    -------
    Prediction
        ``value``: the fixed point h, inf where the noise reaches the gap s_k - s_{q+1}; ``flags``:
        ``noise_small_enough``.

    Raises
    ------
    BadInputError
        Numbers outside of their ranges.

    Examples
    --------
    >>> from npmdask import theory
    >>> round(theory.improved_plateau(s_k=1.0, s_q1=0.5, g=0.01, g_uq=0.001, t_q=1.0).value, 4)
    0.022
    """
    not_negative(g=g, g_uq=g_uq, t_q=t_q)
    gap, noise = spectrum_gap(s_k, s_q1), g + t_q * g_uq
    value = noise / math.sqrt(gap**2 - noise**2) if noise < gap else math.inf
    return Prediction(value, {}, {"noise_small_enough": noise < gap})


def improved_residual(h: float, s_1: float, s_k1: float) -> Prediction:
    """
    Bound how much of the matrix its low-rank approximation misses.

    Bound of ||(I - X X^T) A||: sqrt(s_{k+1}^2 + (h s_1)^2). Derived here.

    Theorem 2.2's own (1 + acc) s_{k+1} (confidence: med) cannot hold with noise where s_{k+1} = 0.

    Parameters
    ----------
    h : float
        Rank-k perturbation on the top q eigenvectors U_q, the norm of H where range(X) contains U_k + U_{d-q} H; at
        least the sine of the largest angle to U_k. Not negative.
    s_1 : float
        The largest eigenvalue (its size).
    s_k1 : float
        The eigenvalue number k + 1 (its size), no larger than ``s_1``.

    Returns
    -------
    Prediction
        ``value``: the bound of the spectral norm, in the units of the eigenvalues; no flags.

    Raises
    ------
    BadInputError
        Numbers outside of their ranges.

    Examples
    --------
    >>> from npmdask import theory
    >>> round(theory.improved_residual(h=0.1, s_1=1.0, s_k1=0.2).value, 3)
    0.224
    """
    spectrum_gap(s_1, s_k1)
    not_negative(h=h)
    return Prediction(math.hypot(s_k1, h * s_1), {}, {})


def gapfree_iterations(acc: float, d: int, *, tau: float = 1.0, constant: float = 1.0) -> Prediction:
    """
    Compute how many steps are needed where there is no gap.

    L of Theorem 2.3, which needs no gap: constant ln(tau d / acc) / acc. Confidence: high.

    Parameters
    ----------
    acc : float
        Accuracy that is asked for: the residual is to be at most (1 + acc) s_{k+1}. Above 0, for the theorem below 1.
    d : int
        Dimension: columns of the data, rows of a block.
    tau : float, default 1.0
        How many times worse than a typical start the start may be; the theorem promises something above 1 only.
    constant : float, default 1.0
        What the theorem leaves open.

    Returns
    -------
    Prediction
        ``value``: L, not rounded; ``constants``: ``constant`` and ``tau``; ``flags``: ``accuracy_below_1`` and
        ``start_promised`` (tau > 1).

    Raises
    ------
    BadInputError
        Numbers outside of their ranges.

    Examples
    --------
    >>> from npmdask import theory
    >>> round(theory.gapfree_iterations(acc=0.1, d=1000).value, 1)
    92.1
    """
    counts(d=d)
    positive(acc=acc, tau=tau, constant=constant)
    value = constant * max(math.log(tau * d / acc), 0.0) / acc
    return Prediction(value, {"constant": constant, "tau": tau}, {"accuracy_below_1": acc < 1, **start_promised(tau)})


def gapfree_noise(
    acc: float, s_k1: float, d: int, k: int, p: int, *, tau: float = 1.0, constant: float = 1.0
) -> NoisePrediction:
    """
    Compute the noise that is borne in every step where there is no gap.

    Noise that Theorem 2.3 allows for ||(I - X X^T) A|| <= (1 + acc) s_{k+1}, up to ``constant``. Confidence: high.

    ||G|| <= acc^2 s_{k+1}, ||U_k^T G|| <= that over tau sqrt(d) / (sqrt(p) - sqrt(k - 1)). Nothing is allowed where
    s_{k+1} = 0 (``flags["residual_left"]``).

    Parameters
    ----------
    acc : float
        The residual is to be at most (1 + acc) s_{k+1}. Above 0, for the theorem below 1.
    s_k1 : float
        The eigenvalue number k + 1 (its size); not negative.
    d : int
        Dimension: columns of the data, rows of a block.
    k : int
        Leading vectors that are wanted; at most ``p``.
    p : int
        Columns that are iterated; at most ``d``.
    tau : float, default 1.0
        How many times worse than a typical start the start may be; the theorem promises something above 1 only.
    constant : float, default 1.0
        What the theorem leaves open.

    Returns
    -------
    Predictions
        ``value``: a :class:`NoiseBound`, ``whole`` of G and ``inside`` of U_k^T G; ``constants``: ``constant`` and
        ``tau``; ``flags``: ``accuracy_below_1``, ``residual_left`` and ``start_promised`` (tau > 1).

    Raises
    ------
    BadInputError
        Numbers outside of their ranges.

    Examples
    --------
    >>> from npmdask import theory
    >>> noise = theory.gapfree_noise(acc=0.1, s_k1=0.5, d=100, k=5, p=16).value
    >>> round(noise.whole, 6), round(noise.inside, 6)
    (0.005, 0.001)
    """
    ranks(d, k, p)
    positive(acc=acc, tau=tau, constant=constant)
    not_negative(s_k1=s_k1)
    whole = constant * acc**2 * s_k1
    flags = {"accuracy_below_1": acc < 1, "residual_left": s_k1 > 0, **start_promised(tau)}
    return NoisePrediction(
        NoiseBound(whole, whole / (tau * start_factor(d, k, p))), {"constant": constant, "tau": tau}, flags
    )


class Form(NamedTuple):
    """
    One theorem at one intermediate rank.

    Parameters
    ----------
    theorem : str
        "gap-dependent" or "q-dependent".
    q : int
        The intermediate rank; k for "gap-dependent".
    gap : float
        The gap s_k - s_{q+1} that it needs.
    steps : float
        Its number of steps; inf without a gap.
    noise : NoiseBound
        Norms of G and of U_q^T G that it allows.
    flags : dict
        Conditions of the theorem, by name: whether they hold.

    Examples
    --------
    >>> from npmdask import theory
    >>> theory.compare_forms([1.0, 0.5, 0.1], 1, 2)[0].gap
    0.5
    """

    theorem: str
    q: int
    gap: float
    steps: float
    noise: NoiseBound
    flags: dict[str, bool]

    @property
    def valid(self) -> bool:
        """Return whether every condition holds."""
        return all(self.flags.values())


def compare_forms(
    spectrum: np.ndarray, k: int, p: int, *, d: int | None = None, acc: float = 0.1, tau: float = 1.0
) -> tuple[Form, ...]:
    """
    Compare the theorem that needs the gap after k with the one at every intermediate rank.

    The gap-dependent form (Hardt and Price, Theorem 2.4, from a random start) beside Theorem 2.2 at q = k ... p.

    Steps of the first have its own constants, those of Theorem 2.2 the constant 1.

    Parameters
    ----------
    spectrum : array_like, shape (m,)
        Eigenvalues or their sizes, in any order; those that are left out are zero. The k largest must not be 0.
    k : int
        Leading vectors that are wanted; at most ``p``.
    p : int
        Columns that are iterated; at most ``d``.
    d : int, optional
        The dimension, if it is not the length of ``spectrum``.
    acc : float, default 0.1
        Accuracy that is asked for, above 0 and below 1.
    tau : float, default 1.0
        How many times worse than a typical start the start may be; the theorem promises something above 1 only.

    Returns
    -------
    tuple of Form
        The gap-dependent form, and the q-dependent one for each q from k to p.

    Raises
    ------
    BadInputError
        Numbers outside of their ranges.

    Examples
    --------
    >>> from npmdask import theory
    >>> forms = theory.compare_forms([1.0, 0.9, 0.85, 0.3, 0.1, 0.1], 2, 4, acc=0.01)
    >>> [(form.theorem, form.q, round(form.steps)) for form in forms]
    [('gap-dependent', 2, 385), ('q-dependent', 2, 115), ('q-dependent', 3, 10), ('q-dependent', 4, 7)]
    """
    sizes, d = _sizes(spectrum, d, k, p)
    start = init_tan_bound(d, k, p, tau).value
    noise = npm_max_noise(sizes[k - 1], sizes[k], acc, 1 / math.hypot(1, start))
    steps = npm_iterations(start, acc, sizes[k - 1], sizes[k]).value
    flags = noise.flags | start_promised(tau)
    rows = [Form("gap-dependent", k, sizes[k - 1] - sizes[k], steps, noise.value, flags)]
    for q in range(k, p + 1):
        steps = improved_iterations(sizes[k - 1], sizes[q], d, acc, tau=tau).value
        noise = improved_max_noise(sizes[k - 1], sizes[q], acc, d, p, q, tau=tau)
        rows.append(Form("q-dependent", q, sizes[k - 1] - sizes[q], steps, noise.value, noise.flags))
    return tuple(rows)


def best_q(
    spectrum: np.ndarray,
    k: int,
    p: int,
    *,
    d: int | None = None,
    acc: float = 1e-3,
    tau: float = 1.0,
    by: str = "steps",
) -> Prediction:
    """
    Choose the intermediate rank that suits a spectrum and a number of columns best.

    The intermediate rank from k to p that suits ``p`` columns best; what it achieves is in ``constants``.

    Parameters
    ----------
    spectrum : array_like, shape (m,)
        Eigenvalues or their sizes, in any order; those that are left out are zero. The k largest must not be 0.
    k : int
        Leading vectors that are wanted; at most ``p``.
    p : int
        Columns that are iterated; at most ``d``.
    d : int, optional
        The dimension, if it is not the length of ``spectrum``.
    acc : float, default 0.001
        Accuracy that is asked for, above 0 and below 1.
    tau : float, default 1.0
        How many times worse than a typical start the start may be.
    by : {"steps", "noise"}, default "steps"
        "steps": least ln(h_0 / acc) / ln(s_k / s_{q+1}), the steps of :func:`improved_recursion` without noise from
        the h_0 of a random start. "noise": the largest standard deviation of Gaussian noise on every entry that
        :func:`improved_max_noise` allows with its constant 1 (norms: :func:`~npmdask.theory.gaussian_norm`).

    Returns
    -------
    Prediction
        ``value``: the rank, the least one of equals; ``constants``: ``tau``, ``acc``, and under the name of ``by`` what
        the rank achieves; ``flags``: ``gap`` and ``start_promised``.

    Raises
    ------
    BadInputError
        Numbers outside of their ranges.

    Notes
    -----
    ``flags["gap"]``: some s_{q+1} up to q = p is below s_k; otherwise no q helps and k is returned.
    ``flags["start_promised"]``: tau > 1; the steps from tau = 1 are those of a typical start.

    Examples
    --------
    >>> from npmdask import theory
    >>> theory.best_q([1.0, 0.9, 0.85, 0.3, 0.1, 0.1], 2, 4).value
    4
    """
    one_of(CHOICES, by=by)
    accuracy(acc)
    positive(tau=tau)
    sizes, d = _sizes(spectrum, d, k, p)
    score = _steps if by == "steps" else _stddev
    scores = [score(sizes, d, k, p, q, acc, tau) for q in range(k, p + 1)]
    best = min(range(len(scores)), key=lambda i: scores[i] if by == "steps" else -scores[i])
    flags = {"gap": sizes[k - 1] > sizes[p], **start_promised(tau)}
    return Prediction(k + best, {"tau": tau, "acc": acc, by: scores[best]}, flags)


def _steps(sizes: list[float], d: int, k: int, p: int, q: int, acc: float, tau: float) -> float:
    rate, start = sizes[q] / sizes[k - 1], tau * start_factor(d, q, p)
    if start <= acc:
        return 0.0
    if rate == 0:
        return 1.0
    return math.log(start / acc) / -math.log(rate) if rate < 1 else math.inf


def _stddev(sizes: list[float], d: int, k: int, p: int, q: int, acc: float, tau: float) -> float:
    allowed = improved_max_noise(sizes[k - 1], sizes[q], acc, d, p, q, tau=tau).value
    return min(allowed.whole / gaussian_norm(1.0, d, p), allowed.inside / gaussian_norm(1.0, q, p))


def _sizes(spectrum: np.ndarray, d: int | None, k: int, p: int) -> tuple[list[float], int]:
    """The spectrum, falling, with zeros up to index p, and the dimension."""
    d = len(spectrum) if d is None else d
    sizes = falling(spectrum, d, k, p)
    require(sizes[k - 1] > 0, f"the spectrum needs k = {k} values that are not zero: ask for fewer vectors")
    return sizes.tolist(), d
