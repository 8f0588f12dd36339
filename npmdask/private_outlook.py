"""What a guessed or given spectrum says of a private run, from public numbers alone: its error, and better parameters.

The noise is that of the product's own calibration, at the public start block and without clipped images: what clipping
them saves follows from releases. No spectrum of the data is looked at (:func:`npmdask.spectra.asked_spectrum`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf, sqrt
from typing import Any

import numpy as np

from npmdask.accounting import Budget
from npmdask.algorithms import Query
from npmdask.errors import BadInputError, NpmdaskError
from npmdask.private_parts import PrivateParts
from npmdask.problem import Problem
from npmdask.randomness import generator
from npmdask.relations import Entry, MatrixRelation
from npmdask.spectra import Spectrum
from npmdask.theory.likely import likely_sine
from npmdask.theory.private import ppm_error

MEANINGLESS = 0.5  # sine of 30 degrees: a quarter of what a wanted vector explains may be noise
USEFUL = 0.1  # a hundredth of it
BROKEN = 0.1  # of runs: so many may exceed a bound
LONGEST = 16  # releases that are tried: noise grows with their square root, and few spectra need more
EPSILONS = (1e-4, 1e4)
HALVINGS = 40


@dataclass(frozen=True, kw_only=True)
class PrivateOutlook:
    """Sines of the largest angle to the wanted vectors that a run would release: ``likely``, and ``bound`` at worst.

    ``bound`` holds but with probability 0.1, of a random start and of the noise together; 1: nothing is promised. Below
    ``meaningless_epsilon`` ``likely`` is above ``MEANINGLESS``, all else as it is; above ``useful_epsilon`` it is below
    ``USEFUL``; None: no epsilon does that with so many releases and columns. ``best_releases``, ``best_columns``: with
    the least likely sine, ``best_sine``, at the epsilon that is asked for.
    """

    spectrum: str
    likely: float
    bound: float
    meaningless_epsilon: float | None
    useful_epsilon: float | None
    best_releases: int
    best_columns: int
    best_sine: float

    def lines(self) -> dict[str, str]:
        """By name, what a person decides by."""
        bound = f"below {self.bound:.2g}" if self.bound < 1 else "nothing"
        sines = f"{self.likely:.2g} likely, {bound} promised in 9 of 10"
        return {
            "predicts": f"sine of the largest angle {sines} ({self.spectrum})",
            "epsilon": self._epsilon_line(),
            "suggest": self._suggestion(),
        }

    def _suggestion(self) -> str:
        if self.best_sine > MEANINGLESS:
            return f"a larger epsilon, or more records: no releases and columns bring the sine below {MEANINGLESS}"
        return (
            f"max_steps = {self.best_releases}, iteration_rank = {self.best_columns}: sine {self.best_sine:.2g} likely"
        )

    def _epsilon_line(self) -> str:
        if self.meaningless_epsilon is None:
            return f"meaningless at any epsilon with these releases and columns (sine above {MEANINGLESS})"
        said = f"meaningless below {self.meaningless_epsilon:.3g} (sine above {MEANINGLESS})"
        if self.useful_epsilon is None:
            return f"{said}; no epsilon brings the sine to {USEFUL} with these releases and columns"
        return f"{said}; {self.useful_epsilon:.3g} brings the sine to {USEFUL}"


def private_outlook(problem: Problem, spectrum: Spectrum) -> PrivateOutlook:
    """What the run of ``problem`` would find if its operator had this spectrum.

    Raises
    ------
    BadInputError
        The run is of another algorithm than the private power method; or the scale cannot be known.
    """
    noise, sizes = _Noise(problem), _sizes(problem, spectrum)
    privacy, p = noise.privacy, problem.algorithm.iteration_rank
    k, d, releases = problem.algorithm.target_rank, noise.dimension, noise.parts.releases

    def likely(epsilon: float, count: int, columns: int) -> float:
        stddev = noise.stddev(epsilon, count, columns)
        return 1.0 if stddev == inf else likely_sine(sizes, [stddev] * count, d=d, k=k, p=columns).value

    counts = [count for count in range(1, LONGEST + 1) if count % 2 == 0 or problem.source.kind != "matrix"]
    columns = sorted({min(c, problem.d) for c in (k, k + 5, k + 10, 2 * k, 3 * k, 4 * k, p)})
    tried = [(likely(privacy.epsilon, n, c), n, c) for c in columns for n in counts]
    best = min(tried)
    return PrivateOutlook(
        spectrum=spectrum.said,
        likely=likely(privacy.epsilon, releases, p),
        bound=noise.bound(sizes, k, p),
        meaningless_epsilon=_least(lambda epsilon: likely(epsilon, releases, p), MEANINGLESS),
        useful_epsilon=_least(lambda epsilon: likely(epsilon, releases, p), USEFUL),
        best_releases=best[1],
        best_columns=best[2],
        best_sine=best[0],
    )


class _Noise:
    """The stddev of a release, for other budgets, numbers of releases and columns than those of a problem."""

    def __init__(self, problem: Problem) -> None:
        if not isinstance(problem.private, PrivateParts):
            raise BadInputError(
                f"{problem.algorithm.name} has no prediction from a spectrum: leave --spectrum out, or use the private "
                "power method"
            )
        self.problem, self.parts = problem, problem.private
        self.privacy = problem.private.privacy
        alternating = problem.source.kind == "matrix"
        self.rows = problem.source.shape[0] if alternating else problem.d
        self.dimension = max(problem.source.shape) if alternating else problem.d
        self._blocks: dict[int, tuple[Any, Any]] = {}

    def stddev(self, epsilon: float, releases: int, columns: int) -> float:
        """In units of the sum that is released; inf where the product would refuse so little budget."""
        try:
            mechanism, block = self._at(columns)
            budget = Budget(epsilon, self.privacy.delta)
            return float(replace(mechanism, budget=budget, releases=releases).noise_stddev(block, rows=self.rows))
        except NpmdaskError:
            return inf

    def bound(self, sizes: np.ndarray, k: int, p: int) -> float:
        """What 9 of 10 runs stay below, their starts and their noise being random; 1 where the budget is refused.

        Noise that follows the entries of X is taken as loud as it can become, whatever ``coherence`` is promised.
        """
        mechanism, block = self._at(p)
        if isinstance(mechanism.relation, Entry):  # unit vectors: no block has a larger sensitivity
            worst = replace(mechanism.relation, coherence=float(len(block)))
            mechanism, block = replace(mechanism, relation=worst), np.eye(len(block), p)
        try:
            stddev = float(mechanism.noise_stddev(block, rows=self.dimension))
        except NpmdaskError:
            return 1.0
        d, stddevs, name = self.dimension, [stddev] * self.parts.releases, self.privacy.mechanism
        return ppm_error(sizes, stddevs, d=d, k=k, p=p, fail_prob=BROKEN, mechanism=name).value

    def _at(self, columns: int) -> tuple[Any, Any]:
        if columns not in self._blocks:
            rng = generator(self.problem.request.seed, "start")
            algorithm: Any = replace(self.problem.algorithm, iteration_rank=columns)  # type: ignore[type-var]
            query = algorithm.query(algorithm.init(self.problem.d, rng=rng))
            operator: Any = self.problem.operator(None, None)
            mechanism = self.parts.mechanism_of(operator, columns, Query(query.block))
            self._blocks[columns] = (mechanism, operator.prepare(query.block))
        return self._blocks[columns]


def _sizes(problem: Problem, spectrum: Spectrum) -> np.ndarray:
    """Sizes of the eigenvalues (of a matrix: singular values) of what is released, a sum; in its units."""
    parts, source = problem.private, problem.source
    assert isinstance(parts, PrivateParts)
    values = np.abs(spectrum.values if source.kind == "matrix" else spectrum.eigenvalues(source.kind))
    if spectrum.scaled:
        return np.asarray(values / parts.scale(source))
    clip = parts.relation.clip_norm
    if isinstance(parts.relation, MatrixRelation):  # no entry above clip_norm: the most that all squares add up to
        return np.asarray(values * sqrt(source.shape[0] * source.shape[1] * clip**2 / np.square(values).sum()))
    if not parts.relation.public_rows:
        raise BadInputError(
            f"{spectrum.said}: the number of records is private, so nobody knows the scale of their sum; say it, with "
            ",largest=X, from public knowledge"
        )
    return np.asarray(values * (source.shape[0] * clip**2 / values.sum()))  # no record above clip_norm


def _least(sine: Callable[[float], float], most: float) -> float | None:
    """The least epsilon whose ``sine`` is at most ``most``; None if that of the largest is not."""
    low, high = EPSILONS
    if sine(high) > most:
        return None
    for _ in range(HALVINGS):
        middle = sqrt(low * high)
        low, high = (low, middle) if sine(middle) <= most else (middle, high)
    return high
