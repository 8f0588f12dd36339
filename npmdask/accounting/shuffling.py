"""Amplification by shuffling: Feldman, McMillan and Talwar 2021, Theorem 3.1, where its condition holds, else refused.

n records are put in an order by a uniform permutation that stays secret; each goes through a randomiser of its own,
which may depend on all earlier outputs and is epsilon_0-DP for any two records. If epsilon_0 <= ln(n / (16 ln(2 /
delta))), all n outputs together are (epsilon, delta)-DP, one record being replaced, for

    epsilon = ln(1 + (e^epsilon_0 - 1) / (e^epsilon_0 + 1) (8 sqrt(e^epsilon_0 ln(4 / delta) / n) + 8 e^epsilon_0 / n))

and if the randomisers are (epsilon_0, delta_0)-DP, with (e^epsilon + 1) (1 + e^-epsilon_0 / 2) n delta_0 more of delta
(their Theorem 3.8). The better bounds of their later paper (2023) were withdrawn for randomisers that depend on earlier
outputs, so they are not here.

A batch of B records with noise of variance s^2 on its sum is B randomisers with s^2 / B each, as sums of Gaussians are
Gaussian: it is n that counts, not the number of batches, for two batches differ by much more than two records.
"""

from __future__ import annotations

import math

from npmdask.accounting.budget import Budget
from npmdask.accounting.calibration import MARGIN
from npmdask.accounting.gdp import mu_for
from npmdask.errors import BadInputError, RefusedError

HALVINGS = 60


def largest_local_epsilon(records: int, delta: float) -> float:
    """ln(n / (16 ln(2 / delta))): the theorem says nothing of randomisers with more; negative for too few records."""
    if records < 1 or not 0 < delta < 1:
        raise BadInputError(f"shuffling needs records and 0 < delta < 1, not {records} and {delta}")
    return math.log(records / (16 * math.log(2 / delta)))


def shuffled_epsilon(local_epsilon: float, records: int, delta: float) -> float:
    """The epsilon of Theorem 3.1.

    Raises
    ------
    RefusedError
        ``local_epsilon`` above what the theorem is about.
    """
    most = largest_local_epsilon(records, delta)
    if not 0 < local_epsilon <= most:
        raise RefusedError(
            f"a shuffle of {records} records amplifies a local epsilon up to ln(n / (16 ln(2 / delta))) = {most:.3g}, "
            f"and this one is {local_epsilon:.3g}: use more noise, more records, or no shuffle"
        )
    grown = math.exp(local_epsilon)
    clones = 8 * math.sqrt(grown * math.log(4 / delta) / records) + 8 * grown / records
    return math.log1p(math.tanh(local_epsilon / 2) * clones) * MARGIN


def shuffled_multiplier(budget: Budget, records: int) -> float:
    """stddev / (largest distance of two records) of Gaussian noise on every one of ``records`` shuffled records.

    Half of delta is for the shuffle, half for the tails of the Gaussians; 1e-8 of it is left.

    Raises
    ------
    RefusedError
        Too few records for the theorem, however much noise there is.
    """
    delta = budget.delta * (1 - 1e-8) / 2
    if not delta:
        raise BadInputError("a shuffle never gives delta = 0: choose a delta far below 1 / (number of records)")
    local = largest_local_epsilon(records, delta)
    if local <= 0:
        least = math.ceil(16 * math.log(2 / delta))
        raise RefusedError(f"a shuffle of {records} records amplifies nothing: its theorem needs more than {least}")
    if shuffled_epsilon(local, records, delta) > budget.epsilon:
        local = _largest(local, records, delta, budget.epsilon)
    counted = (math.exp(budget.epsilon) + 1) * (1 + math.exp(-local) / 2) * records
    return MARGIN / mu_for(local, delta / counted / MARGIN)


def _largest(most: float, records: int, delta: float, epsilon: float) -> float:
    """The largest local epsilon that is amplified to ``epsilon``, from below."""
    low, high = 0.0, most
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if shuffled_epsilon(middle, records, delta) <= epsilon else (low, middle)
    return low
