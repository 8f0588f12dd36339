"""Which private method a run takes that names none: the one that is predicted to capture more, by public numbers.

The covariance shows every direction at once, with noise as if each were asked alone; the power method looks at p of
them, several times, and pays for each look. Which is better depends on d, k, the noise and the spectrum. The spectrum
is not public, and the others are: the prediction is the mean over three kinds of spectra, which span what is common,

    1/i        power laws: images, counts, text
    0.8^i      a fast decay: smooth fields, spectra, physical models
    k spikes   k equal values over a bulk of at most a tenth of them: groups, sparse factors, signal and noise

each with as much variance as records of norm ``clip_norm`` can have; where the number of records is private the mean
over four sizes of data, as it may not decide. Each is simulated with the noise in it, with fixed seeds: the same public
numbers choose the same way. A spectrum for which the choice is wrong costs captured variance, and no privacy: both ways
are private for all data. The choice becomes part of the run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from npmdask.execution.executor import single_threaded_blas
from npmdask.numerics.spectra import Spectrum, read_spectrum
from npmdask.planning.private_forecast import COVARIANCE, POWER, PowerNoise, WholeNoise, both_of, sizes_of
from npmdask.runs.build import make_problem
from npmdask.runs.problem import Problem, Request
from npmdask.runs.solution import Resources
from npmdask.storage.source import Source

RELEASES = (2, 3, 4, 6, 8)  # that are tried; with a matrix and its transpose in turn the even ones
RECORDS = (10**3, 10**4, 10**5, 10**6)  # to think of, where their number is private
FAMILY = ("power:1", "exponential:0.8", "spiked:{k},10")
BETTER = 0.005  # of the captured share, by which the power method must be ahead: it takes more passes, and keeps less
WIDEST = 2048  # columns of a covariance that is chosen: beyond, its eigenvectors take minutes
HELD = 64  # d x d arrays of float64 that a run of it holds at most, at any number of records
BESIDE = 400 * 2**20  # bytes of the program and its buffers
MANY, DRAWS = 300, 5  # columns from which one simulated run is like the next; runs of fewer columns


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way to the answer: ``captured`` is the share of what the best k vectors capture, as predicted."""

    algorithm: str
    releases: int
    iteration_rank: int
    captured: float

    def __str__(self) -> str:
        how = "1 pass" if self.algorithm == COVARIANCE else f"{self.releases} passes of {self.iteration_rank} columns"
        return f"{self.algorithm}: {how}, captures {100 * self.captured:.1f} % of the best"


def ways_of(problem: Problem, memory: int | None, spectrum: Spectrum | None = None) -> tuple[Way, ...]:
    """The covariance, where it is offered and fits, and the best power method; the one to be taken first.

    Parameters
    ----------
    problem : of either. memory : the limit of the run, bytes. spectrum : public, instead of the family.
    """
    power, whole = both_of(problem)
    sizes = _sizes(power, spectrum)
    epsilon, p = power.recipe.privacy.epsilon, power.algorithm.iteration_rank  # type: ignore[union-attr]

    draws = 1 if power.d >= MANY else DRAWS

    def captured(method: Any, releases: int, columns: int) -> float:
        with single_threaded_blas():  # small matrices
            return float(np.mean([method.captured(each, epsilon, releases, columns, draws) for each in sizes]))

    by_power = PowerNoise(power)
    counts = [n for n in RELEASES if n % 2 == 0 or power.source.kind != "matrix"]
    found = [Way(algorithm=POWER, releases=n, iteration_rank=p, captured=captured(by_power, n, p)) for n in counts]
    best = max(found, key=lambda way: way.captured)
    if whole is None or not _fits(whole.d, memory):
        return (best,)
    seen = captured(WholeNoise(whole), 1, whole.d)
    other = Way(algorithm=COVARIANCE, releases=1, iteration_rank=whole.d, captured=seen)
    return (best, other) if best.captured > seen + BETTER else (other, best)


def _sizes(problem: Problem, spectrum: Spectrum | None) -> list[np.ndarray]:
    """Of the eigenvalues, for each spectrum and number of records that is thought of."""
    d, k = problem.most_values, problem.algorithm.target_rank
    asked = [spectrum] if spectrum is not None else [read_spectrum(name.format(k=k), d) for name in FAMILY]
    if spectrum is None and problem.source.kind == "sparse":  # whose spectra are of singular values
        asked = [replace(each, values=np.sqrt(each.values)) for each in asked]
    public = problem.recipe.relation.public_rows  # type: ignore[union-attr]
    records = (None,) if public or all(each.scaled for each in asked) else RECORDS
    return [sizes_of(problem, each, rows) for each in asked for rows in records]


def _fits(d: int, memory: int | None) -> bool:
    """Whether a covariance is offered: by public numbers, and not by a plan, which would follow the number of rows."""
    return d <= WIDEST and (memory is None or HELD * 8 * d * d + BESIDE <= memory)


def chosen(request: Request, source: Source, resources: Resources, held: dict[str, Any] | None) -> Request:
    """The private request with everything chosen that was left open.

    Parameters
    ----------
    held : run.json of the store, where that has a run already: it goes on as it began.

    Raises
    ------
    BadInputError, RefusedError
        As :func:`npmdask.runs.build.make_problem`.
    """
    open_ = request.max_steps is None and request.algorithm in ("auto", POWER) and source.kind != "tensor"
    if not open_:
        return request
    powered = request.algorithm == POWER or request.iteration_rank is not None
    name = None if held is None else held["algorithm"]["name"]
    if name == COVARIANCE and not powered:
        return replace(request, algorithm=COVARIANCE)
    if name in ("private-power", "private-alternating"):
        p = held["algorithm"]["iteration_rank"] if request.iteration_rank is None else request.iteration_rank  # type: ignore[index]
        return replace(request, algorithm=POWER, iteration_rank=p, max_steps=held["stop"]["max_steps"])  # type: ignore[index]
    problem = make_problem(source, replace(request, algorithm=POWER, max_steps=RELEASES[0]))
    first = next(way for way in ways_of(problem, resources.memory) if way.algorithm == POWER or not powered)
    if first.algorithm == COVARIANCE:
        return replace(request, algorithm=COVARIANCE)
    return replace(request, algorithm=POWER, max_steps=first.releases)
