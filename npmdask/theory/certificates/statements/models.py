"""State how wrong mixtures, independent components, tensors and topics can be."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from npmdask.numerics.subspaces import Block
from npmdask.theory.certificates.wording import LOST, Assurance, at_most_percent, components, degrees, percent, spread

# How wrong components of rows with missing entries can be: what is measured of a model whose likelihood has no bound.


def of_factor_model(facts: Mapping[str, Any], k: int) -> Assurance:
    """Of k components of a factor model that EM has found.

    Parameters
    ----------
    facts : of the answer: ``left_to_go``, ``last_change``, ``held_out_share``, ``went_back``.
    k : how many components.
    """
    left = facts["left_to_go"]
    which = components(k)
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
            "of "
            f"{len(sizes)} round clouds of one size. Try another number of components, or check whether there are "
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
            "distribution "
            "to be distinguished from noise. Use more rows or fewer components.",
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
    sines: np.ndarray = np.minimum(LIKELY * np.sqrt((contrast + 1) / n * np.maximum(others, 1.0)), 1.0)
    return sines


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
    return Assurance(_sentence(left, sines, offs, len(status)) + _others(status, left, noise), numbers)


def _sentence(left: float, sines: Sequence[float], offs: Sequence[float], asked: int) -> str:
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
            "for "
            "fewer components, or use a tensor from more data."
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


def of_result(arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> Assurance:
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
            "be "
            "larger"
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
