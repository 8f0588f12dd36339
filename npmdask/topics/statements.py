"""State how wrong topics can be: as if each had been counted from the words of its own, and twice that.

With the topic of every word known one would estimate topic i from its N_i = weight_i * words words, and be off by
``sum_w sqrt(p_w (1 - p_w) / N_i) sqrt(2 / pi)`` in the sum of absolute differences, in the mean. The method of
moments does not know; over 100 planted corpora (60 to 600 words, 3 to 6 topics, 500 to 5000 documents of 15 to 100
words) its error is ``S / sqrt(N_i)``, S = sum_w sqrt(p_w), times 1.19 in the median and 1.81 in 19 of 20, and
neither the number of documents, nor their length, nor the condition of M2 changes that factor; alpha0 does, as its
fourth root.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from npmdask.core.certificates.wording import Assurance, at_most_percent, percent
from npmdask.core.numerics.subspaces import Block

LIKELY = 2.0  # times S / sqrt(N): about 19 of 20 topics have less
TOLD = 1.0  # a sum of absolute differences (0 to 2) from which on a topic has no statement
ALPHA0_TOLERANCE = 0.1  # what the alphas found may differ from what was asked for


def of_topics(
    topics: Block, weights: np.ndarray, facts: Mapping[str, Any], unigram: tuple[float, float] | None = None
) -> Assurance:
    """State how wrong a topic model can be.

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
    errors = np.minimum(LIKELY * grown * sizes / np.sqrt(own), 2.0)
    best, worst = (float(value) / 2 for value in (errors.min(), errors.max()))
    numbers: dict[str, Any] = {"l1": errors.tolist(), "misplaced": worst}
    if unigram is not None and unigram[0] >= unigram[1]:
        return Assurance(
            "Ignore these topics: they predict held-out words no better than the plain frequencies of words.",
            numbers | {"unigram": unigram},
        )
    said = (
        f"{_misplaced_text(len(errors), best, worst)}, assuming the documents are mixtures of that many topics, as in "
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


def _misplaced_text(k: int, best: float, worst: float) -> str:
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
