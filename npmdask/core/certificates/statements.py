"""State how wrong a result can be, in a sentence for non-specialists, from facts that a run has anyway.

A section a kind of run; pure functions, no pass over the data, no clock, no randomness. A sentence says how large the
error is likely to be, on what that rests, and what is not covered; what it claims in numbers is in ``numbers``, and how
often that was true in simulations is in docs/assurance.md. Certificates have theirs in
:mod:`npmdask.core.certificates.wording`, beside the table of how numbers read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from npmdask.core.certificates.recursions import predicted_sine
from npmdask.core.certificates.wording import (
    LOST,
    Assurance,
    at_most_percent,
    degrees,
    percent,
    spread,
    the_components,
)
from npmdask.numerics.subspaces import Block

# How wrong components of rows with missing entries can be: what is measured of a model whose likelihood has no bound.


def of_factor_model(facts: Mapping[str, Any], k: int) -> Assurance:
    """Of k components of a factor model that EM has found.

    Parameters
    ----------
    facts : of the answer: ``left_to_go``, ``last_change``, ``held_out_share``, ``went_back``.
    k : how many components.
    """
    left = facts["left_to_go"]
    which = the_components(k)
    if facts["went_back"]:
        said = f"The model of {which} is not the likeliest: EM was stopped where it predicts best."
    elif left is None:
        said = "EM has made fewer than two steps: its distance from convergence is unknown."
    else:
        said = (
            f"EM changed the values of {which} by at most {at_most_percent(facts['last_change'])} in its last step, "
            f"and about {at_most_percent(left)} is left to go (an estimate from two steps)."
        )
    if facts["held_out_share"] is not None:
        said += (
            f" The prediction of {facts['held_out_entries']:,.0f} entries that were held out at first leaves "
            f"{percent(min(facts['held_out_share'], 1.0))} of their variance unexplained."
        )
    said += (
        " There is no certificate: the likelihood can have other maxima, and the error against complete data is not "
        "known; values whose absence depends on their size bias the answer undetected."
    )
    return Assurance(said, {name: facts[name] for name in ("left_to_go", "last_change", "held_out_share")})


# How wrong the means of a mixture, or independent components, can be: their sampling errors, and twice that.
#
# Mixtures: who knew the component of every row would know mean i to ``sqrt(variance d / (n w_i))`` (root mean square
# length) and its weight to ``sqrt(w_i (1 - w_i) / n)``. The method of moments was off by 1.1 times the first in the
# median and 1.7 in 19 of 20 means (60 planted mixtures, means 1.5 to 6 apart, condition of M2 1.2 to 14).
#
# Independent components: column i takes in the other columns j with errors g_j of variance about ``(c_i + 1) / n``,
# of which 1 is of whitening and c_i that of the kurtosis contrast, ``(E s^6 - (E s^4)^2) / kurtosis^2`` (Hyvaerinen
# and Oja 1997). E s^6 is not measured: ``6 (1 + K + K^2)`` for positive K, ``6 (1 + K / 2)^2`` for negative, is above
# that of uniform, two-valued, Laplace, Gamma and exponential sources.


LIKELY = 2.0  # times the sampling error
OF_WEIGHTS = 4.0  # the same of the weights of a mixture
NOISE = 3.0  # deviations of a kurtosis below which it tells of no source
SUM_TOLERANCE = 0.1  # what the weights of a mixture may sum to beside 1
SUMS = (0.5, 1.5)  # beyond, the rows are no such mixture at all
FROM_MORE = "four times as many rows halve it"


def of_mixture(
    weights: np.ndarray, variance: float | np.ndarray, shape: tuple[int, int], *, asked: int, total: float | None = None
) -> Assurance:
    """Of a mixture of spherical Gaussians.

    Parameters
    ----------
    weights, variance : of each component (k), as found; one variance if they are alike.
    shape : (n, d) of the rows.
    asked : components that were asked for.
    total : the sum of the weights as the moments gave them, which nothing makes 1; that of ``weights`` if None.
    """
    n, d = shape
    sizes = np.clip(np.asarray(weights, dtype=np.float64), 1 / n, 1.0)
    variances = np.maximum(np.broadcast_to(variance, sizes.shape), 0.0)
    lengths = LIKELY * np.sqrt(variances * d / (n * sizes))
    shares = OF_WEIGHTS * np.sqrt(np.maximum(sizes * (1 - sizes), 1 / n) / n)
    numbers: dict[str, Any] = {"lengths": lengths.tolist(), "weights": shares.tolist()}
    total = float(np.sum(weights)) if total is None else total
    if not SUMS[0] <= total <= SUMS[1]:
        return Assurance(
            f"The result is not reliable: the weights sum to {total:.2g} instead of 1, so the rows are not a mixture "
            f"of {len(sizes)} round clouds of one size. Try another number of components, or check whether there are "
            "clouds at all.",
            numbers,
        )
    deviation = float(np.sqrt(np.average(variances, weights=sizes)))
    said = (
        f"Each mean typically lies within {spread(float(lengths.max()))} of the true one (for comparison: entries "
        f"scatter around their mean by {spread(deviation)}), and each weight within "
        f"{at_most_percent(float(shares.max()))} of all rows, assuming round clouds of one size, as in the model"
    )
    if abs(total - 1) > SUM_TOLERANCE:
        said += (
            f"; this does not quite hold here (the weights sum to {total:.2g} instead of 1), so the error may be larger"
        )
    return Assurance(f"{said}. {_missing(asked - len(sizes))}{FROM_MORE.capitalize()}.", numbers)


def of_independent(kurtoses: np.ndarray, mixing: Block, n: int, *, asked: int) -> Assurance:
    """Of independent components: excess ``kurtoses`` (k), ``mixing`` (d x k), found in n rows."""
    kurtosis = np.asarray(kurtoses, dtype=np.float64)
    weak = np.abs(kurtosis) < NOISE * np.sqrt(24 * len(kurtosis) / n)
    sines = np.where(weak, 1.0, _sines(kurtosis, np.linalg.norm(mixing, axis=0), n))
    told = ~weak & (sines < LOST)
    numbers: dict[str, Any] = {"sines": sines.tolist(), "told": told.tolist()}
    if not told.any():
        return Assurance(
            f"The result is not reliable: in {n:,} rows {_none(len(kurtosis))} differs enough from a normal "
            "distribution to be distinguished from noise. Use more rows or fewer components.",
            numbers,
        )
    count = int(told.sum())
    which = (
        "Each component"
        if told.all() and count > 1
        else "The component"
        if count == len(told)
        else f"{count} of the {len(told)} components"
    )
    verb = "are" if 1 < count < len(told) else "is"
    best, worst = (degrees(float(sine)) for sine in (sines[told].min(), sines[told].max()))
    surest = f" (the best less than {best})" if best != worst else ""
    said = (
        f"{which} {verb} typically less than {worst} off{surest}, assuming the rows are sums of independent sources "
        "without additional noise, as in the model"
    )
    others = len(told) - count
    rest = "other is" if others == 1 else f"other {others} are"
    more = f" The {rest} too close to a normal distribution to be separated." if others else ""
    return Assurance(f"{said}.{more} {_missing(asked - len(told))}{FROM_MORE.capitalize()}.", numbers)


def _sines(kurtosis: np.ndarray, norms: np.ndarray, n: int) -> np.ndarray:
    """(k) LIKELY times the sine that the other columns, as long as they are, turn each column by."""
    positive = 6 * (1 + kurtosis + kurtosis**2)
    negative = 6 * (1 + np.maximum(kurtosis, -2.0) / 2) ** 2
    contrast = np.where(kurtosis > 0, positive, negative) / np.maximum(kurtosis**2, 1e-12)
    others = np.maximum(np.sum(norms**2) - norms**2, 0.0) / norms**2
    return np.minimum(LIKELY * np.sqrt((contrast + 1) / n * np.maximum(others, 1.0)), 1.0)


def _none(count: int) -> str:
    return "not even the one component" if count == 1 else f"none of the {count} components"


def _missing(count: int) -> str:
    return f"Nothing is known about {count} more that were asked for. " if count > 0 else ""


# How wrong the components of a tensor can be, from what they leave of it.
#
# T = sum_i w_i v_i^p + E with orthonormal v_i: a fixed point of the power method on T is, to first order in E, off by
# ``|E(I, v, ..., v)| / w <= ||E|| / w`` and its weight by ``|E(v, ..., v)| <= ||E||`` (the errors of Theorem 2.1 of
# Wang and Anandkumar 2016, without its constants). ||E|| is not known, but the Frobenius norm of what is left is: if
# it is like noise, ||E|| is its largest score (algorithms._tensor_fit.noise_score). What the iterations leave, the
# residual of each component, is added.


EXACT = 1e-9  # of the tensor's norm: what is left is rounding, and so is the error
RESIDUAL = 2.0  # times residual / weight: a component that is off by e has a residual of about w e
BELOW = 1e-9  # no angle and no relative error of a weight is stated below this


def of_tensor(values: Sequence[float], residual_norms: Sequence[float], facts: Mapping[str, Any]) -> Assurance:
    """Of components without noise of our own.

    Parameters
    ----------
    values, residual_norms (k) : weights, and the residuals ``||T(I, v, ...) - ...||`` in their units.
    facts : as the method gives them: ``status`` (k), ``relative_residual``, ``noise_score``.
    """
    status, left = list(facts.get("status", ())), float(facts.get("relative_residual", 1.0))
    noise = float(facts.get("noise_score", 0.0))
    found = [i for i, word in enumerate(status) if word == "found" and values[i]]
    if not found:
        which = "the one component" if len(status) == 1 else f"none of the {len(status)} components"
        clause = "does not stand out or has not settled" if len(status) == 1 else "stands out and has settled"
        rest = f"{percent(left)} of the tensor's size is left unexplained"
        return Assurance(
            f"The result is not reliable: {which} asked for {clause}, and "
            f"{rest if left > 0 else 'the tensor holds nothing but zeros or rounding'}.",
            {"left": left, "found": 0},
        )
    offs = [noise + RESIDUAL * float(residual_norms[i]) for i in found]
    sines = [min(max(off / abs(float(values[i])), BELOW), 1.0) for i, off in zip(found, offs, strict=True)]
    numbers = {"left": left, "found": len(found), "sines": sines, "weights": offs}
    return Assurance(_tensor_sentence(left, sines, offs, len(status)) + _others(status, left, noise), numbers)


def _tensor_sentence(left: float, sines: Sequence[float], offs: Sequence[float], asked: int) -> str:
    count, worst = len(sines), max(sines)
    which = f"all {count} components" if count == asked > 1 else f"the {count} found" if asked > 1 else "the component"
    verb = "is" if asked == 1 else "are"
    if left < EXACT:
        return (
            f"The components explain the tensor up to rounding: {which} {verb} accurate to less than "
            f"{degrees(worst)}, and {'its weight' if asked == 1 else 'their weights'} to +-{spread(max(offs))}."
        )
    rest = f"The components leave {percent(left)} of the tensor's size unexplained"
    if worst >= LOST:
        return (
            f"{rest}; if that is noise, it is as strong as the weakest of them, whose direction may be anything: ask "
            "for fewer components, or use a tensor from more data."
        )
    return (
        f"{rest}; assuming that is noise, {which} {verb} likely less than {degrees(worst)} off, and "
        f"{'its weight' if asked == 1 else 'their weights'} accurate to +-{spread(max(offs))} (an estimate, not a "
        "bound). If the tensor has more components, or some far from orthogonal, errors can be larger: ask for more."
    )


def _others(status: Sequence[str], left: float, noise: float) -> str:
    """A surplus is one beside noise as large as what is left: where much is left, it is not taken for nothing."""
    said, level = [], "rounding" if left < EXACT else f"noise as large as what is left would show (up to {noise:.2g})"
    if "open" in status:
        said.append(f"{status.count('open')} open (not converged): still moving, error unknown")
    if "surplus" in status:
        so = "ignore it" if left < EXACT else "ignore it if what is left is noise, which it need not be"
        said.append(f"{status.count('surplus')} surplus (spurious): no larger than {level}; {so}")
    return f" The others: {'; '.join(said)}." if said else ""


def _of_tensor_run(arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> Assurance:
    """The same, of the result of a run."""
    return of_tensor(arrays["values"].tolist(), arrays["residual_norms"].tolist(), meta.get("facts", {}))


# How wrong topics can be: as if each had been counted from the words of its own, and twice that.
#
# With the topic of every word known one would estimate topic i from its N_i = weight_i * words words, and be off by
# ``sum_w sqrt(p_w (1 - p_w) / N_i) sqrt(2 / pi)`` in the sum of absolute differences, in the mean. The method of
# moments does not know; over 100 planted corpora (60 to 600 words, 3 to 6 topics, 500 to 5000 documents of 15 to 100
# words) its error is ``S / sqrt(N_i)``, S = sum_w sqrt(p_w), times 1.19 in the median and 1.81 in 19 of 20, and
# neither the number of documents, nor their length, nor the condition of M2 changes that factor; alpha0 does, as its
# fourth root.


LIKELY_OF_TOPICS = 2.0  # times S / sqrt(N): about 19 of 20 topics have less
TOLD = 1.0  # a sum of absolute differences (0 to 2) from which on a topic has no statement
ALPHA0_TOLERANCE = 0.1  # what the alphas found may differ from what was asked for


def of_topics(
    topics: Block, weights: np.ndarray, facts: Mapping[str, Any], unigram: tuple[float, float] | None = None
) -> Assurance:
    """Of a topic model.

    Parameters
    ----------
    topics (V x k), weights (k, they sum to 1) : the answer.
    facts : ``word_count`` (of all documents), ``alpha0``, ``weights_sum``, ``asked``.
    unigram : perplexity of held-out words under the model and under their frequencies alone, where it was measured.
    """
    alpha0 = float(facts["alpha0"])
    grown = max(alpha0, 1.0) ** 0.25
    own = np.maximum(np.asarray(weights) * float(facts["word_count"]), 1.0)
    sizes = np.sqrt(np.maximum(topics, 0.0)).sum(axis=0)
    errors = np.minimum(LIKELY_OF_TOPICS * grown * sizes / np.sqrt(own), 2.0)
    best, worst = (float(value) / 2 for value in (errors.min(), errors.max()))
    numbers: dict[str, Any] = {"l1": errors.tolist(), "misplaced": worst}
    if unigram is not None and unigram[0] >= unigram[1]:
        return Assurance(
            "Ignore these topics: they predict held-out words no better than the plain frequencies of words.",
            numbers | {"unigram": unigram},
        )
    said = (
        f"{_misplaced(len(errors), best, worst)}, assuming the documents are mixtures of that many topics, as in "
        "the model"
    )
    said += _of_frequencies(unigram)
    found, given = float(facts.get("weights_sum", math.nan)), alpha0 or 1.0
    if abs(found - given) > ALPHA0_TOLERANCE * given:
        said += (
            f"; this does not quite hold here (the alphas sum to {found:.2g} instead of {given:.2g}), so the error may "
            "be larger"
        )
    lost = int(facts.get("asked", len(errors))) - len(errors)
    more = f" Nothing is known about {lost} more that were asked for." if lost > 0 else ""
    return Assurance(f"{said}. Four times as many documents halve the error.{more}", numbers)


def _misplaced(k: int, best: float, worst: float) -> str:
    if 2 * best >= TOLD:
        return (
            f"The topics are hardly reliable: each topic typically has more than {percent(best)} of its weight on "
            "wrong words"
        )
    if k == 1:
        return f"The topic typically has less than {at_most_percent(worst)} of its weight on wrong words"
    return (
        f"Each topic typically has less than {at_most_percent(worst)} of its weight on wrong words (the best "
        f"less than {at_most_percent(best)})"
    )


def _of_frequencies(unigram: tuple[float, float] | None) -> str:
    if unigram is None:
        return "; the fit to held-out words was not measured (held_out)"
    model, plain = (f"{perplexity:,.0f}" for perplexity in unigram)
    return f"; the perplexity of held-out words is {model}, by their frequencies alone {plain}"


# State how wrong a streaming model can be: from held-out rows, from a known truth, or from how it turns.
#
# Rows that were never learnt from are a fair sample, so that a share of them comes with error bars (the delta method),
# and what the best directions of these very rows capture is more than any directions do in the mean: both hold for any
# algorithm, converged or not. Without such rows only a lower bound can be proved: of two answers that are an angle
# apart one is at least half of it from the truth (angles between subspaces obey the triangle inequality). How fast an
# answer turns says no more: mb-msg at 15 degrees from the truth was measured to turn by a hundredth of that.


DEVIATIONS = 2.0  # of a share, on either side; a few rows know the deviation itself badly
FEW = 5.0
EMPTY = 1e-12  # of the largest value: a direction that captures no more captures rounding
ACROSS = 0.5  # deviation of (x^T v)^2 x^T u over that of (x^T v)^3: 0.45 for Gaussian rows, less where v is skewed
TOO_FEW = "fewer than two rows were held out, or they are all alike or zero"


class Measured(Protocol):
    """What is read of a measurement (npmdask.streaming.metrics)."""

    @property
    def rows(self) -> int: ...
    @property
    def steps(self) -> int: ...
    @property
    def change(self) -> float | None: ...
    @property
    def max_sin_theta(self) -> float | None: ...
    @property
    def explained(self) -> float | None: ...
    @property
    def suboptimality(self) -> float | None: ...
    @property
    def reach(self) -> dict[str, float] | None: ...
    @property
    def values(self) -> list[float] | None: ...
    @property
    def moment(self) -> int: ...


def of_stream(
    spec: Mapping[str, Any], history: Sequence[Measured], weights: Sequence[float], facts: Mapping[str, Any]
) -> Assurance:
    """Of the stream with these parameters: ``history`` of its measurements, oldest first; ``weights`` and ``facts`` of
    the answer, where components of the third moment are found."""
    if history and history[-1].moment == 3:
        return of_third_moment(weights, facts, int(spec["data"]["columns"]), history[-1].max_sin_theta)
    return of_directions(history, spec["run"].get("half_life"), spec["run"].get("worth", 1.0))


def of_directions(history: Sequence[Measured], half_life: float | None = None, worth: float = 1.0) -> Assurance:
    """Of principal directions of a stream, after its last measurement.

    Parameters
    ----------
    history : the measurements, oldest first; an answer has at least one.
    half_life : rows after which a row counts half; None: nothing is forgotten.
    worth : how many equal rows a row is worth on average, of weighted ones.
    """
    last = next((m for m in reversed(history) if m.values is not None), None)
    if last is None:
        return Assurance("", {})
    values = list(last.values or ())
    empty = sum(not value > EMPTY * max(values) for value in values)
    if values and empty == len(values):
        return Assurance(
            f"The result is not reliable: the {last.rows:,} rows so far have no variance, so directions are "
            "meaningless. Check that these are the intended rows.",
            {"empty": empty},
        )
    parts, numbers = [], {}
    if last.max_sin_theta is not None:
        parts.append(
            f"the true directions are known here, and {the_components(len(last.values or ()))} found are at most "
            f"{degrees(last.max_sin_theta)} from them"
        )
        numbers["sine"] = last.max_sin_theta
    if last.reach is not None and last.explained is not None:
        said, more = _held_out(last.explained, last.reach, len(last.values or ()))
    elif last.max_sin_theta is not None:
        said, more = "", {}
    else:
        said, more = _turned(history, last, half_life, worth)
    parts += [said] if said else []
    if empty:
        parts.append(f"the last {empty} of {len(values)} found capture no variance and are meaningless")
    return Assurance(f"{_capitalised(parts)}.{_not_covered(half_life)}", numbers | more)


def _held_out(share: float, reach: Mapping[str, float], k: int) -> tuple[str, dict[str, Any]]:
    """From rows that were not learnt from; 9 of 10 in the sentence, 19 of 20 meant for rows that are not wild."""
    off = (DEVIATIONS + FEW / reach["rows"]) * reach["stddev"]
    low, high, best = max(share - off, 0.0), min(share + off, 1.0), reach["best"]
    few = "the component captures" if k == 1 else f"the {k} components capture"
    any_ = "one direction captures" if k == 1 else f"{k} directions capture"
    said = (
        f"on {reach['rows']:,.0f} rows held out {few} {percent(share)} of the variance, which on other rows like "
        f"them is {percent(low)} to {percent(high)} in 9 of 10 cases; no {any_} more than {percent(best)} of those "
        f"rows, so at most about {at_most_percent(max(best - share, 0.0))} can still be gained"
    )
    if reach["sine"] < LOST:
        said += f", and the directions themselves are likely less than {degrees(reach['sine'])} off"
    else:
        said += "; the true directions cannot be determined, because others capture nearly as much"
    return said, {"share": share, "low": low, "high": high, "best": best, "sine_limit": reach["sine"]}


def _turned(
    history: Sequence[Measured], last: Measured, half_life: float | None, worth: float
) -> tuple[str, dict[str, Any]]:
    """From the answers alone: a lower bound, what even a perfect method could not know, and the remedy."""
    rows = last.rows if half_life is None else min(float(last.rows), 2 * half_life / math.log(2))
    floor = 2 * math.sqrt(2 / max(rows * worth, 2.0))
    given = last.suboptimality is not None
    said = f"the error was not measured, because {TOO_FEW if given else 'no rows were held out'}"
    numbers: dict[str, Any] = {"floor": floor}
    turned = _last_turn(history)
    if turned is not None:
        before, after, sine = turned
        half = math.sin(math.asin(min(sine, 1.0)) / 2)
        said += (
            f"; from {before:,} to {after:,} rows the answer turned by {degrees(sine)}, so one of the two was off by "
            "at least half of that, possibly by much more"
        )
        numbers["at_least"] = half
    said += (
        "; with this many rows even a perfect method would know a variance only to about "
        f"+-{at_most_percent(min(floor, 1.0))} (for normally distributed rows); with "
        f"{'more' if given else 'held_out'} rows {'held out ' if given else ''}the error would be measured"
    )
    return said, numbers


def _last_turn(history: Sequence[Measured]) -> tuple[int, int, float] | None:
    """The last two neighbouring measurements between which a step was made: their rows, and the sine between them.

    None where nothing turned, or where the measurements between were thinned out: then a change is to one that is gone.
    """
    if len(history) < 2:
        return None
    before, after = history[-2], history[-1]
    if after.change is None or after.steps == before.steps or before.values is None:
        return None
    return before.rows, after.rows, after.change


def _capitalised(parts: Sequence[str]) -> str:
    said = "; ".join(parts)
    return said[:1].upper() + said[1:]


def _not_covered(half_life: float | None) -> str:
    drift = ""
    if half_life is not None:
        drift = f" Older rows fade (half_life {half_life:g}): this refers to the current directions."
    return f"{drift} Changes in the data are not covered."


def of_third_moment(
    weights: Sequence[float], facts: Mapping[str, Any], columns: int, truth: float | None = None
) -> Assurance:
    """Of components of the third moment of a stream.

    A component v is the mean over n rows of (x^T v)^2 x, whose deviation in each of the d - 1 directions across v is
    about ACROSS of that of (x^T v)^3 along it, so that the sine is about ``ACROSS sqrt(d - 1) error / weight``.

    Parameters
    ----------
    weights, facts : as the answer has them: ``status`` (of all k), ``standard_errors`` (of those found).
    columns : d. truth : sine of the largest angle to known components.
    """
    status, errors = list(facts.get("status", ())), list(facts.get("standard_errors", ()))
    sound = [
        (weight, error)
        for weight, error, word in zip(weights, errors, status, strict=False)
        if word == "found" and weight > 0
    ]
    if not sound:
        return Assurance(
            "Nothing is known about any component yet: no weight exceeds what noise alone would give. More "
            "rows are needed.",
            {"found": 0},
        )
    sine = min(max(ACROSS * math.sqrt(columns - 1) * error / weight for weight, error in sound), 1.0)
    off = max(2 * error / weight for weight, error in sound)
    parts = []
    if truth is not None:
        parts.append(f"the truth is known here: the farthest component is {degrees(truth)} from what was found")
    which = "the component found" if len(sound) == 1 else f"each of {len(sound)} components found"
    parts.append(f"the weight of {which} is likely accurate to +-{at_most_percent(off)}")
    if sine < LOST:
        parts.append(f"the direction to {degrees(sine)}")
    else:
        parts.append("the direction is hardly known yet; more rows are needed")
    others = len(status) - len(sound)
    if others:
        parts.append(f"nothing is known about the other {others} asked for")
    said = _capitalised(parts) + " (from the observed spread of the rows)."
    return Assurance(
        f"{said} Rows that are not sums of such components are not covered.",
        {"sine": sine, "weight": off, "found": len(sound), "truth": truth},
    )


# State how wrong a private result can be, from released values and public numbers alone: post-processing, at no cost.
#
# Every function here takes what was released and what is public, and nothing else: the same releases give the same
# sentence, whatever the data are.


ALONG = 3.0  # stddevs of v^T Z v: by so much a value of a noisy covariance may be off
MORE = "more records or a larger epsilon reduce the error"
REMEDY = "more records, a larger epsilon or fewer releases reduce the error"
TURNED = 1.5  # times the likely sine of a component of a tensor
BENT = 1.5  # times w sine^2, by which a weight may be too small as its vector is off
NEXT = 2.0  # times residual / value of a direction of records, where the next eigenvalue is half of it at most
INSIDE = 0.5  # times the noise over the gap after the k-th value: what turns vectors among those that were iterated
UNSETTLED = 0.25  # times tan^2 theta_k / gap: the same by directions that the last block but one still held
FEW_MEANS = 3  # means a direction: after fewer it may still be as random as it began, and clipping hides that


def of_release(arrays: Mapping[str, np.ndarray], statement: Mapping[str, Any]) -> Assurance:
    """Of any private run: which kind it is, its arrays and its statement tell.

    Parameters
    ----------
    arrays : of the result: ``values`` (k), ``residual_norms`` (k), ``value_stddevs`` (k) where they are known,
        ``factor_right`` (d x p) of an alternating run.
    statement : the public statement of the run.
    """
    if "errors" in statement:
        return _of_tensor(arrays, statement)
    if "above_noise" in statement:
        return _of_covariance(arrays, statement)
    if statement.get("predicted_error") is not None:
        return of_plane(statement["predicted_error"], arrays, statement)
    if "factor_right" in arrays:
        return _of_alternating(arrays, statement)
    return _of_records(arrays, statement)


def of_plane(
    sine: float, arrays: Mapping[str, np.ndarray], statement: Mapping[str, Any], whose: str = "the clipped data"
) -> Assurance:
    """Of a private power method: ``sine`` is the likely one of its released values (:func:`plane_sine`)."""
    k, p = len(arrays["values"]), statement.get("iteration_rank")
    known, spreads = _values(arrays, sine)
    numbers: dict[str, Any] = {"sine": sine, "value_spread": spreads}
    if p is not None and p <= k:
        said = (
            f"The error of {the_components(k)} cannot be estimated from what was released: only as many columns were "
            "iterated as components are asked for, so that the gap to the next value is unknown. A slightly larger "
            "iteration_rank shows it"
        )
        return Assurance(f"{said}.{known} {_limits(whose)}", numbers | {"sine": None})
    if sine >= LOST:
        said = (
            f"The released values tell nothing reliable about the directions of {the_components(k)}: the noise is as "
            f"large as the differences between them, and they may be anything; {REMEDY}"
        )
        return Assurance(f"{said}. {_limits(whose)}", numbers)
    what = "the component" if k == 1 else f"the subspace of the {k} components"
    said = f"By the released values {what} is likely less than {degrees(sine)} off (an estimate, not a bound)"
    return Assurance(f"{said}; {REMEDY}.{known} {_limits(whose)}", numbers)


def _of_covariance(arrays: Mapping[str, np.ndarray], statement: Mapping[str, Any]) -> Assurance:
    """Of a noisy covariance. Its values are estimates of what the released vectors explain: where the plane is stated
    ``ALONG`` deviations of the noise along a fixed vector hold all of them in 19 of 20 releases."""
    sine, k, d = float(statement["predicted_error"]), len(arrays["values"]), int(statement["columns"])
    off, limits = ALONG * float(np.max(arrays["value_stddevs"])), _limits("the clipped data")
    numbers: dict[str, Any] = {"sine": sine, "value_spread": off}
    along = f"What the released directions explain is likely accurate to +-{spread(off)}."
    if k == d:
        return Assurance(f"All {d} directions were asked for, and together they explain everything. {limits}", numbers)
    if not statement["above_noise"]:
        said = f"No released value is above the noise, so {the_components(k)} may be anything"
        return Assurance(f"{said}; {MORE}. {limits}", numbers | {"value_spread": None})
    if sine >= LOST:
        said = (
            f"{statement['above_noise']} of {k} values are above the noise, but the gap to the next value is hardly "
            f"larger than the noise, if at all: the true subspace of {the_components(k)} may be a different one"
        )
        return Assurance(f"{said}; {MORE}. {limits}", numbers | {"value_spread": None})
    what = "the component" if k == 1 else f"the subspace of the {k} components"
    said = f"By the released values {what} is likely less than {degrees(sine)} off (an estimate, not a bound)"
    return Assurance(f"{said}; {MORE}. {along} {limits}", numbers)


def plane_sine(ritz_values: np.ndarray, stddevs: Sequence[float], *, d: int, k: int) -> float:
    """The likely sine of the plane of a noisy power method, to be told to people, from released values.

    Parameters
    ----------
    ritz_values : all p of the last release. stddevs : of the noise of each release, in the same units.

    Notes
    -----
    :func:`npmdask.theory.predicted_sine` says how far vectors are from *some* q >= k leading eigenvectors.
    Which k of these q are the wanted ones the last product has to tell, whose noise G turns vector i towards vector j
    by about ``G_ij / (theta_i - theta_j)``; and where the block before it was off by a tangent t, what it held of other
    directions turns it too, by about ``t^2 theta_k / (theta_k - theta_{k+1})``. With these constants at least 95 % of
    the planes that were told of were less far off, in 60 runs of each of 17 problems (gaps after k of 2 to 50 %, 1 to
    12 releases). Where k + 1 columns would have sufficed, the gap after k alone decides, and nothing is added.
    """
    theta = np.sort(np.abs(np.asarray(ritz_values, dtype=np.float64)))[::-1]
    whole = _tangent(predicted_sine(theta, stddevs, d=d, k=k).value)
    alone = _tangent(predicted_sine(theta[: k + 1], stddevs, d=d, k=k).value)
    h = whole if len(theta) == k else min(alone, math.hypot(whole, _inside(theta, stddevs, d, k)))
    return 1.0 if h == math.inf else h / math.hypot(1, h)


def _inside(theta: np.ndarray, stddevs: Sequence[float], d: int, k: int) -> float:
    """What is added in :func:`plane_sine`: a tangent."""
    gaps = theta[k - 1] - theta[k:]
    if not gaps[0] > 0:
        return math.inf
    noise = stddevs[-1] * (math.sqrt(k) + math.sqrt(float(np.sum((gaps[0] / gaps) ** 2)))) / gaps[0]
    if len(stddevs) == 1:
        return INSIDE * float(noise)
    before = _tangent(predicted_sine(theta, stddevs[:-1], d=d, k=k).value)
    return float(INSIDE * noise + UNSETTLED * before**2 * theta[k - 1] / gaps[0])


def _tangent(sine: float) -> float:
    return math.inf if sine >= 1 else sine / math.sqrt(1 - sine**2)


def _values(arrays: Mapping[str, np.ndarray], sine: float) -> tuple[str, float | None]:
    """How far off the values are, where that is known and not as large as they are: two deviations of the noise on the
    worst of them, and what is lost (or won, of noise) as the vectors are off."""
    if "value_stddevs" not in arrays or sine >= LOST:
        return "", None
    off = 2 * float(np.max(arrays["value_stddevs"])) + float(np.max(np.abs(arrays["values"]))) * sine**2
    return f" The values are likely accurate to +-{spread(off)}.", off


def _limits(whose: str) -> str:
    return f"This refers to {whose}: the effect of clipping, and how other records would differ, are not included."


def _of_alternating(arrays: Mapping[str, np.ndarray], statement: Mapping[str, Any]) -> Assurance:
    """Of products with a matrix and its transpose in turn: the p singular values of the last one approximate those of
    the matrix, and noise is taken as in the longer of the two sides."""
    values = np.linalg.svd(arrays["factor_right"], compute_uv=False)
    longest = max(len(arrays["factor_right"]), len(arrays["factor_left"]))
    found = plane_sine(values, list(statement["noise_stddev"]), d=longest, k=len(arrays["values"]))
    return of_plane(found, arrays, statement, "the matrix with clipped entries")


def _of_records(arrays: Mapping[str, np.ndarray], statement: Mapping[str, Any]) -> Assurance:
    """Of k-DP-PCA and its relatives. A direction w is asked for its mean image g: |g - w (w^T g)| over w^T g is the
    tangent of what it still turns by, noise included; NEXT times that is the angle where no further direction has more
    than half its value, which nothing that was released can show."""
    values, norms = np.asarray(arrays["values"]), np.asarray(arrays["residual_norms"])
    k = len(values)
    tangents = [
        NEXT * float(norm / value) if value > 0 else math.inf for value, norm in zip(values, norms, strict=True)
    ]
    worst = max(tangents) if len(statement["noise_stddev"]) >= FEW_MEANS * k else math.inf
    sine = 1.0 if worst == math.inf else worst / math.hypot(1, worst)
    low = "Values are too low where much was clipped; how other records would differ is not included."
    if sine >= LOST:
        return Assurance(
            f"The releases tell nothing reliable about the directions of {the_components(k)}: there were too few, or "
            f"the last, including its noise, still turned away from them; {REMEDY}, and so may more steps. {low}",
            {"sine": sine},
        )
    what = "the component" if k == 1 else f"the subspace of the {k} components"
    return Assurance(
        f"Assuming no further direction has more than half of the last value, {what} is likely less than "
        f"{degrees(sine)} off (an estimate from the last releases, not a bound); only a run for one more component "
        f"can check the assumption. {low}",
        {"sine": sine},
    )


def _of_tensor(arrays: Mapping[str, np.ndarray], statement: Mapping[str, Any]) -> Assurance:
    """Of a private tensor power method: ``statement["errors"]`` are likely sines, by the noise in each last product."""
    status, errors = list(statement["status"]), list(statement["errors"])
    values, stddevs = np.asarray(arrays["values"]), np.asarray(arrays["value_stddevs"])
    sines = [min(TURNED * error, 1.0) for error in errors]
    spreads = [2 * float(s) + BENT * abs(float(w)) * e**2 for w, s, e in zip(values, stddevs, errors, strict=True)]
    found = [i for i, word in enumerate(status) if word == "found"]
    numbers = {"sines": sines, "value_spreads": spreads, "found": len(found)}
    if not found:
        return Assurance(
            f"The released values tell nothing about any of the {len(status)} components: the noise is as large as "
            f"they are; {REMEDY}.",
            numbers,
        )
    said = f"By the released values {_found(found, status)} likely less than {_each(sines, found)} off"
    said += (
        f", and their weights accurate to +-{spread(max(spreads[i] for i in found))} (an estimate, not a bound); "
        f"{REMEDY}"
    )
    return Assurance(f"{said}.{_others_of_release(status)} The effect of clipping is not included.", numbers)


def _found(found: Sequence[int], status: Sequence[str]) -> str:
    return "the component is" if len(status) == 1 else f"{len(found)} of {len(status)} components stand out, and are"


def _each(sines: Sequence[float], found: Sequence[int]) -> str:
    worst = max(sines[i] for i in found)
    return degrees(worst) if worst < 1 else "a right angle"


def _others_of_release(status: Sequence[str]) -> str:
    """What is meant by those that are not found."""
    said = []
    if "open" in status:
        said.append(
            f"{status.count('open')} open (not converged): noise turned it too far, or it was still moving at the end"
        )
    if "surplus" in status:
        said.append(f"{status.count('surplus')} surplus (spurious): no larger than noise; ignore it")
    return f" The others: {'; '.join(said)}." if said else ""


def of_copy(stddevs: Sequence[float]) -> Assurance:
    """Of a noisy copy of a tensor. ``stddevs``: of entries with three different indices, with two, on the diagonal."""
    most, some, diagonal = (float(stddev) for stddev in stddevs)
    return Assurance(
        f"Nearly every entry of the copy is off by about +-{spread(most)}, 19 of 20 by less than {spread(2 * most)}; "
        f"those with two equal indices by +-{spread(some)}, those on the diagonal by +-{spread(diagonal)} (the noise "
        "is known exactly, and independent from entry to entry). Smaller entries are lost in the noise; the effect of "
        "clipping is not included.",
        {"stddevs": [most, some, diagonal], "likely": 2 * most},
    )


# How wrong the answer of a distributed run can be: as of one private run, or, without noise, by its residuals.

WHOSE = "the data of all nodes together, clipped as each node says"
SHARPEST = 1e-9  # no smaller sine is stated: rounding
NEARER = 1.5  # times ||R|| / gap: a Ritz value after the k-th lies below the value that it approximates


def of_nodes(
    arrays: Mapping[str, np.ndarray],
    statement: Mapping[str, Any],
    ritz_values: Sequence[float] = (),
    *,
    singular: bool = False,
) -> Assurance:
    """Of a sum over nodes.

    Parameters
    ----------
    arrays : of the result: ``values``, ``residual_norms`` (k); of noisy nodes also ``value_stddevs``, ``factor_left``.
    statement : public, as the centre has it; ``predicted_error`` where nodes add noise.
    ritz_values : all p of the last step (of A^T A where ``singular``), for the gap after the k-th.
    singular : values are singular values, and residuals are theirs.
    """
    if statement.get("predicted_error") is not None:
        known = (
            {**statement, "iteration_rank": arrays["factor_left"].shape[1]} if "factor_left" in arrays else statement
        )
        return of_plane(statement["predicted_error"], arrays, known, WHOSE)
    values, norms = np.abs(arrays["values"]), np.asarray(arrays["residual_norms"])
    k, off = len(values), float(np.max(norms))
    said = (
        f"Every value is accurate to +-{spread(off)}: an exact value of the data of all nodes together lies that close "
        "(proved by the residuals, for any data)"
    )
    sine = _sine(values, norms, np.sort(np.abs(ritz_values))[::-1], singular=singular)
    if sine is None or sine >= LOST:
        said += f"; the error of {the_components(k)} is unknown, because the next value is as large or was not seen"
    else:
        said += f"; {the_components(k)} {'is' if k == 1 else 'are'} likely less than {degrees(max(sine, SHARPEST))} off"
    return Assurance(f"{said}. How other data would differ is not included.", {"value": off, "sine": sine})


def _sine(values: np.ndarray, norms: np.ndarray, ritz: np.ndarray, *, singular: bool) -> float | None:
    """NEARER times ||R|| over the gap after the k-th Ritz value, all of eigenvalues (Davis and Kahan 1970)."""
    k = len(values)
    if len(ritz) <= k:
        return None
    images = norms * values if singular else norms
    squares = values**2 if singular else values
    gap = float(squares.min() - ritz[k])
    return min(NEARER * float(np.linalg.norm(images)) / gap, 1.0) if gap > 0 else 1.0


NOTHING = Assurance("", {})


def _statement_of(kind: str, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> Assurance:
    """Of the result of a run of the driver: private or of nodes (its ``statement`` says so), or of a tensor.

    ``kind``: of the data. Matrices without privacy are not treated here: their certificates are made elsewhere.
    """
    statement = meta.get("statement")
    if statement is not None and "nodes" in statement:
        last = meta["history"][-1]["ritz_values"] if meta["history"] else []
        return of_nodes(arrays, statement, last, singular=kind == "sparse")
    if statement is not None:
        return of_release(arrays, statement)
    return _of_tensor_run(arrays, meta) if kind == "tensor" else NOTHING


def with_assurance(kind: str, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> dict[str, Any]:
    """``meta`` of a result with its ``assurance``: the sentence that it has, or else that of :func:`_statement_of`."""
    return {**meta, "assurance": meta.get("assurance") or _statement_of(kind, arrays, meta).sentence}


def assurance_of(spec: Mapping[str, Any], result: tuple[Mapping[str, np.ndarray], Mapping[str, Any]] | None) -> str:
    """The sentence of the finished run with these parameters; "" where there is no answer yet, or none was made."""
    if result is None:
        return ""
    return str(with_assurance(spec["data"]["kind"], *result)["assurance"])
