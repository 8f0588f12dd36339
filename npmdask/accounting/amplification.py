"""Amplification: what is gained where the order of records, or the step of each, is random and secret.

Shuffling: Feldman, McMillan and Talwar 2021, Theorem 3.1, where its condition holds, else refused.

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
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import ndtr

from npmdask.accounting.budget import MARGIN, Budget, gaussian_multiplier
from npmdask.accounting.gdp import mu_for
from npmdask.core.numerics.domains import one_of
from npmdask.errors import BadInputError, RefusedError, require

# Amplification by shuffling: Feldman, McMillan and Talwar 2021, Theorem 3.1, where its condition holds, else refused.
#
# n records are put in an order by a uniform permutation that stays secret; each goes through a randomiser of its own,
# which may depend on all earlier outputs and is epsilon_0-DP for any two records. If epsilon_0 <= ln(n / (16 ln(2 /
# delta))), all n outputs together are (epsilon, delta)-DP, one record being replaced, for
#
#     epsilon = ln(1 + (e^epsilon_0 - 1) / (e^epsilon_0 + 1) (8 sqrt(e^epsilon_0 ln(4 / delta) / n) + 8 e^epsilon_0 /
#     n))
#
# and if the randomisers are (epsilon_0, delta_0)-DP, with (e^epsilon + 1) (1 + e^-epsilon_0 / 2) n delta_0 more of
# delta (their Theorem 3.8). The better bounds of their later paper (2023) were withdrawn for randomisers that depend
# on earlier outputs, so they are not here.
#
# A batch of B records with noise of variance s^2 on its sum is B randomisers with s^2 / B each, as sums of Gaussians
# are Gaussian: it is n that counts, not the number of batches, for two batches differ by much more than two records.


HALVINGS = 60


def largest_local_epsilon(records: int, delta: float) -> float:
    """ln(n / (16 ln(2 / delta))): the theorem says nothing of randomisers with more; negative for too few records."""
    require(records >= 1 and 0 < delta < 1, f"shuffling needs records and 0 < delta < 1, not {records} and {delta}")
    return math.log(records / (16 * math.log(2 / delta)))


def shuffled_epsilon(local_epsilon: float, records: int, delta: float) -> float:
    """
    Compute the epsilon of all outputs together where each record goes through its own randomiser, in a secret order.

    Theorem 3.1 of Feldman, McMillan and Talwar 2021, one record being replaced, for randomisers that may depend on all
    earlier outputs.

    Parameters
    ----------
    local_epsilon : float
        What the randomiser of a single record keeps for any two records, above 0 and at most
        ``ln(records / (16 ln(2 / delta)))``.
    records : int
        How many are shuffled, by a uniform permutation that stays secret; public.
    delta : float
        Probability up to which the answer holds, between 0 and 1.

    Returns
    -------
    float
        The amplified epsilon, rounded up.

    Raises
    ------
    BadInputError
        No records, or ``delta`` not strictly between 0 and 1.
    RefusedError
        ``local_epsilon`` above what the theorem is about, or not positive.

    See Also
    --------
    shuffled_multiplier : The noise that a budget asks for, from this bound.

    Examples
    --------
    What a single output tells at epsilon = 1 is hidden the better, the more records there are:

    >>> from npmdask.accounting import shuffled_epsilon
    >>> [round(shuffled_epsilon(1.0, records, 1e-6), 4) for records in (10_000, 100_000, 10_000_000)]
    [0.214, 0.0726, 0.0075]
    """
    most = largest_local_epsilon(records, delta)
    if not 0 < local_epsilon <= most:
        raise RefusedError(
            f"a shuffle of {records} records amplifies a local epsilon up to ln(n / (16 ln(2 / delta))) = "
            f"{most:.3g}, and this one is {local_epsilon:.3g}; use more noise, more records, or no shuffle"
        )
    grown = math.exp(local_epsilon)
    clones = 8 * math.sqrt(grown * math.log(4 / delta) / records) + 8 * grown / records
    return math.log1p(math.tanh(local_epsilon / 2) * clones) * MARGIN


def shuffled_multiplier(budget: Budget, records: int) -> float:
    """
    Compute the Gaussian noise that a budget asks for on every single one of many shuffled records.

    Half of delta is for the shuffle, half for the tails of the Gaussians (Theorem 3.8 of Feldman, McMillan and Talwar
    2021, the form of Theorem 3.1 for randomisers with a delta of their own); 1e-8 of it is left.

    Parameters
    ----------
    budget : Budget
        The promise for all outputs together, one record being replaced; delta > 0.
    records : int
        How many are shuffled, by a uniform permutation that stays secret; public.

    Returns
    -------
    float
        Standard deviation of the noise on every record / largest distance (2-norm) of two records, rounded up.

    Raises
    ------
    BadInputError
        A budget with delta = 0, which no shuffle gives; no records.
    RefusedError
        Too few records for the theorem, however much noise there is.

    Examples
    --------
    A fifth of the noise hides one record among a million that are shuffled:

    >>> from npmdask.accounting import Budget, gaussian_multiplier, shuffled_multiplier
    >>> budget = Budget(1.0, 1e-6)
    >>> round(shuffled_multiplier(budget, 1_000_000), 2), round(gaussian_multiplier(budget, 1), 2)
    (0.95, 4.22)
    """
    delta = budget.delta * (1 - 1e-8) / 2
    require(delta > 0, "a shuffle cannot give delta = 0: choose a delta far below 1 / (number of records)")
    local = largest_local_epsilon(records, delta)
    if local <= 0:
        least = math.ceil(16 * math.log(2 / delta))
        raise RefusedError(
            f"a shuffle of {records} records gives no amplification: its theorem needs more than {least}"
        )
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


# Random allocation: every record is in one of t steps, drawn uniformly for each and never told.
#
# Steps release sums with noise N(0, stddev^2 I), each sum may depend on what was released before, and a record moves
# its sum by at most 1. One record more or less (or set to zero) is then no easier to see than in the pair
#
#     P = the mean over i of N(e_i, stddev^2 I_t),    Q = N(0, stddev^2 I_t)
#
# (Chua et al. 2024, "Balls-and-bins sampling for DP-SGD"; Feldman and Shenfeld 2025): from x, drawn of either, all
# releases can be made, step by step, as sum of the others + v_i x_i + N(0, stddev^2 (I - v_i v_i^T)), where v_i is what
# the record would add to the sum of step i, known from the releases before. With Y_i = exp(x_i / stddev^2 - 1 /
# (2 stddev^2)), independent and lognormal of mean 1 under Q, and S = Y_1 + ... + Y_t, dP/dQ = S / t, so
#
#     delta(epsilon) = max( E (S / t - e^epsilon)_+ ,  E (1 - e^epsilon S / t)_+ )        under Q
#
# Both are expectations of convex functions of S. Moving mass of some Y (or of a partial sum) to the two neighbouring
# points of a grid so that the mean stays makes every such expectation larger, also after independent terms are added.
# So S is built by doubling, with a grid for each partial sum, and what is computed is above the truth however coarse
# the grids are. What lies above the last point of a grid is put there, and its expected excess added, as (a + b)_+ <=
# a_+ + b for b >= 0. All terms are positive, nothing cancels; ROUNDING and FLOOR are far above the rounding of
# floats.


POINTS = 500  # of a grid: delta is 2 % above that of 4000 points, stddev 0.1 %
ROUNDING, FLOOR = 1 + 1e-9, 1e-13  # of delta; delta below 1e-11 would be mostly FLOOR
TAIL = 1e-15  # of mass, and of mean, beyond the ends of a grid
REACH = 9.0  # standard deviations of a single term on its grid
LEAST, MOST = 0.1, 1e6  # of stddevs that grids are made for
PRECISION = 1e-4  # relative, of a calibrated stddev, which is above
ROWS = 128  # of the table of all sums of two grids at a time


@dataclass(frozen=True)
class _Sum:
    """A distribution above that of a sum of terms, in convex order but for ``excess``: values, rising, and masses."""

    values: np.ndarray
    masses: np.ndarray
    excess: float

    def ends(self) -> tuple[float, float]:
        """Values below which there is little mass, and above which there is little of the mean."""
        low = int(np.searchsorted(np.cumsum(self.masses), TAIL))
        mean = np.cumsum((self.values * self.masses)[::-1])
        high = len(self.values) - 1 - int(np.searchsorted(mean, TAIL * mean[-1]))
        return float(self.values[max(low, 1)]), float(self.values[max(high, 2)])


def allocation_delta(stddev: float, steps: int, epsilon: float, points: int = POINTS) -> float:
    """
    Compute the delta that Gaussian noise gives at an epsilon where each record is in one random step, never told.

    Random allocation: the step of every record is drawn uniformly, and one record more or less (or set to zero) is
    what is hidden (Chua et al. 2024, "Balls-and-bins sampling for DP-SGD"; Feldman and Shenfeld 2025). Computed from a
    pair of distributions that is at least as easy to tell apart as the releases on two neighbours.

    Parameters
    ----------
    stddev : float
        Of the noise on every coordinate of a sum, per unit of what a record adds to the sum of its step; 0.1 to 1e6.
    steps : int
        How many there are, t >= 1; a sum may depend on those released before.
    epsilon : float
        Of the promise, from 0 to 100.
    points : int, default 500
        Of the grids that it is computed on. Fewer are faster (time grows with the square) and only make delta larger.

    Returns
    -------
    float
        The delta, rounded up: never below the truth, and never below 1e-13.

    Raises
    ------
    BadInputError
        Numbers outside these ranges.

    Examples
    --------
    The same noise hides a record far better where its step, one of 16, is secret:

    >>> from npmdask.accounting import allocation_delta, delta_for
    >>> f"{allocation_delta(2.0, 16, 1.0, points=100):.1e}", f"{delta_for(1 / 2.0, 1.0):.1e}"
    ('1.3e-11', '6.8e-03')
    """
    if not (LEAST <= stddev <= MOST and steps >= 1 and 0 <= epsilon <= 100):
        raise BadInputError(f"random allocation needs a stddev of {LEAST} to {MOST:g}, steps and epsilon of 0 to 100")
    total = _sum_of_many(_single(stddev, points), steps)
    ratio, grown = total.values / steps, math.exp(epsilon)
    more = float(total.masses @ np.maximum(ratio - grown, 0.0)) + total.excess / steps
    less = float(total.masses @ np.maximum(1 - grown * ratio, 0.0))
    return min(1.0, max(more, less) * ROUNDING + FLOOR)


def allocation_stddev(budget: Budget, steps: int, points: int = POINTS) -> float:
    """
    Compute the least noise for a budget where each record is in one random step, never told.

    To PRECISION (1e-4, relative) from above, and not below LEAST (0.1): at most that of known batches, 1 / mu. See
    :func:`allocation_delta`. Takes seconds with the default grid.

    Parameters
    ----------
    budget : Budget
        The promise for all steps together, one record more or less (or set to zero); delta from 1e-11 to 0.1, epsilon
        of at most 100.
    steps : int
        How many there are, at least 1.
    points : int, default 500
        Of the grids that it is computed on; fewer are faster and only make the answer larger.

    Returns
    -------
    float
        Standard deviation of the noise, per unit of what a record adds to the sum of its step.

    Raises
    ------
    BadInputError
        A delta below 1e-11, or above 0.1; steps and epsilon that :func:`allocation_delta` refuses.

    Examples
    --------
    Less noise than for batches that everyone knows, even on a coarse grid:

    >>> from npmdask.accounting import Budget, allocation_stddev, gaussian_multiplier
    >>> budget = Budget(1.0, 1e-6)
    >>> round(allocation_stddev(budget, 16, points=60), 2), round(gaussian_multiplier(budget, 1), 2)
    (1.47, 4.22)
    """
    if not 1e-11 <= budget.delta <= 0.1:
        raise BadInputError(f"random allocation is computed for delta from 1e-11 to 0.1, not {budget.delta:g}")

    def fits(stddev: float) -> bool:
        return allocation_delta(stddev, steps, budget.epsilon, points) <= budget.delta

    good, bad = gaussian_multiplier(budget, 1), LEAST
    if good <= LEAST or fits(LEAST):
        return LEAST
    while good > bad * (1 + PRECISION):
        middle = math.sqrt(good * bad)
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return good


def _single(stddev: float, points: int) -> _Sum:
    """Y: cells of the grid give their mass and mean to their two ends."""
    shift = 1 / stddev
    reach = np.linspace(-REACH, REACH + shift, points - 1)
    values = np.concatenate([[0.0], np.exp(reach * shift - shift**2 / 2)])
    mass = np.concatenate([[ndtr(-REACH)], _interval_masses(reach)])
    mean = np.concatenate([[ndtr(-REACH - shift)], _interval_masses(reach - shift)])
    upper = np.clip((mean - values[:-1] * mass) / np.diff(values), 0.0, mass)
    masses = np.append(mass - upper, ndtr(-reach[-1])) + np.append(0.0, upper)
    return _Sum(values, masses, float(ndtr(shift - reach[-1])))


def _interval_masses(z: np.ndarray) -> np.ndarray:
    """Normal probabilities between neighbours of a rising ``z``, from the nearer tail."""
    a, b = z[:-1], z[1:]
    return np.where(a > 0, ndtr(-a) - ndtr(-b), ndtr(b) - ndtr(a))


def _sum_of_many(term: _Sum, count: int) -> _Sum:
    """The sum of ``count`` independent terms, by doubling."""
    total: _Sum | None = None
    while True:
        if count & 1:
            total = term if total is None else _add(total, term)
        count >>= 1
        if not count:
            assert total is not None
            return total
        term = _add(term, term)


def _add(a: _Sum, b: _Sum) -> _Sum:
    """The sum of two independent ones, on a geometric grid (and zero) of its own."""
    (low_a, high_a), (low_b, high_b) = a.ends(), b.ends()
    points = len(a.values)
    grid = np.concatenate([[0.0], np.geomspace(low_a + low_b, high_a + high_b, points - 1)])
    masses, excess = np.zeros(points), 0.0
    for first in range(0, points, ROWS):
        rows = slice(first, first + ROWS)
        values = (a.values[rows, None] + b.values).ravel()
        weights = (a.masses[rows, None] * b.masses).ravel()
        excess += float(weights @ np.maximum(values - grid[-1], 0.0))
        masses += _spread_on_grid(np.minimum(values, grid[-1]), weights, grid)
    return _Sum(grid, masses, a.excess + b.excess + excess)


def _spread_on_grid(values: np.ndarray, masses: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """``masses`` at ``values``, moved to the neighbours on ``grid`` so that means stay (float64[len(grid)])."""
    last = len(grid) - 2
    scale = last / math.log(grid[-1] / grid[1])
    places = np.maximum(np.log(np.maximum(values, grid[1]) / grid[1]) * scale, 0.0).astype(np.int64) + 1
    places = np.where(values < grid[1], 0, np.minimum(places, last))
    upper = np.clip((values - grid[places]) / (grid[places + 1] - grid[places]), 0.0, 1.0) * masses
    low = np.bincount(places, masses - upper, minlength=len(grid))
    return low + np.bincount(places + 1, upper, minlength=len(grid))


# Ways for T steps to see n records, and the noise that each needs: what DP-Ojas may do instead of its unsound alpha.
#
# one-pass      known disjoint batches of n / T: parallel composition, stddev = 1 / mu for every batch
# shuffle       the same after a secret uniform permutation of all records: amplified, if the theorem allows
# allocation    every record in one step, drawn uniformly for each and never told
# reuse         all records in every step: exact Gaussian composition over T
#
# What is compared is the standard deviation of the noise on a step's mean, for images of norm at most 1 and one record
# set to zero. (Where one record is replaced, one-pass and reuse need twice as much, the shuffle as much, and allocation
# has no such bound here.)

Way = Literal["one-pass", "shuffle", "allocation", "reuse"]
WAYS: tuple[Way, ...] = ("one-pass", "shuffle", "allocation", "reuse")


def mean_stddev(way: Way, budget: Budget, records: int, steps: int) -> float:
    """
    Compute the noise on the mean of a step, for one of four ways in which the steps of a run may see its records.

    For images of norm at most 1 and one record set to zero. Where one record is replaced, "one-pass" and "reuse" need
    twice as much, "shuffle" as much, and "allocation" has no such bound here.

    Parameters
    ----------
    way : {"one-pass", "shuffle", "allocation", "reuse"}
        "one-pass": known disjoint batches, parallel composition; "shuffle": the same after a secret uniform permutation
        of all records (:func:`shuffled_multiplier`); "allocation": every record in one step, drawn uniformly and never
        told (:func:`allocation_stddev`, seconds or more); "reuse": all records in every step, exact Gaussian
        composition.
    budget : Budget
        The promise for the whole run; delta > 0.
    records : int
        How many there are, n; public.
    steps : int
        How many means are released, T, 1 <= T <= n.

    Returns
    -------
    float
        Standard deviation of the noise on every coordinate of the mean of a step.

    Raises
    ------
    BadInputError
        Fewer records than steps, or a delta that the way cannot give.
    RefusedError
        A shuffle of too few records for its theorem.

    Examples
    --------
    All records in every step beat disjoint batches, and a shuffle pays where batches hold a few records only:

    >>> from npmdask.accounting import Budget, mean_stddev
    >>> budget, n = Budget(1.0, 1e-6), 1_000_000
    >>> for steps in (20, n):
    ...     print(steps, [f"{mean_stddev(way, budget, n, steps):.1e}" for way in ("one-pass", "shuffle", "reuse")])
    20 ['8.4e-05', '8.5e-03', '1.9e-05']
    1000000 ['4.2e+00', '1.9e+00', '4.2e-03']
    """
    one_of(WAYS, way=way)
    require(1 <= steps <= records, f"{records} records are too few for {steps} batches: use fewer steps")
    if way == "reuse":
        return gaussian_multiplier(budget, steps) / records
    if way == "shuffle":  # noise of a batch is shared by its records; any two are up to 2 apart
        return 2 * shuffled_multiplier(budget, records) * math.sqrt(steps / records)
    each = gaussian_multiplier(budget, 1) if way == "one-pass" else allocation_stddev(budget, steps)
    return each * steps / records
