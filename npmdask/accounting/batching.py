"""Ways for T steps to see n records, and the noise that each needs: what DP-Ojas may do instead of its unsound alpha.

one-pass      known disjoint batches of n / T: parallel composition, stddev = 1 / mu for every batch
shuffle       the same after a secret uniform permutation of all records: amplified, if the theorem allows
allocation    every record in one step, drawn uniformly for each and never told
reuse         all records in every step: exact Gaussian composition over T

What is compared is the standard deviation of the noise on a step's mean, for images of norm at most 1 and one record
set to zero. (Where one record is replaced, one-pass and reuse need twice as much, the shuffle as much, and allocation
has no such bound here.)
"""

from __future__ import annotations

import math
from typing import Literal

from npmdask.accounting.budget import Budget
from npmdask.accounting.calibration import gaussian_multiplier
from npmdask.accounting.random_allocation import allocation_stddev
from npmdask.accounting.shuffling import shuffled_multiplier
from npmdask.errors import BadInputError

Way = Literal["one-pass", "shuffle", "allocation", "reuse"]
WAYS: tuple[Way, ...] = ("one-pass", "shuffle", "allocation", "reuse")


def mean_stddev(way: Way, budget: Budget, records: int, steps: int) -> float:
    """Standard deviation of the noise on every coordinate of the mean of a step.

    Raises
    ------
    BadInputError
        Fewer records than steps.
    RefusedError
        A shuffle of too few records for its theorem.
    """
    if not 1 <= steps <= records:
        raise BadInputError(f"{records} records cannot give {steps} steps a batch each: use fewer steps")
    if way == "reuse":
        return gaussian_multiplier(budget, steps) / records
    if way == "shuffle":  # noise of a batch is shared by its records; any two are up to 2 apart
        return 2 * shuffled_multiplier(budget, records) * math.sqrt(steps / records)
    each = gaussian_multiplier(budget, 1) if way == "one-pass" else allocation_stddev(budget, steps)
    return each * steps / records
