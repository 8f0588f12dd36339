"""Attack a transcript as the adversary. It knows A, A', the program, and all that became durable; not the key.

The likelihood ratio of the claimed noise is the strongest test there is if the noise is what it says (Neyman and
Pearson). The second attack looks for what the first presumes: that the noise of two publications is independent. Both
give one score a run, high where A' looks more likely; statistics.py turns scores of any kind into bounds that hold.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npmdask.privacy.mechanisms.noise_key import Entropy

# What a run leaves behind for anybody to see, with what an auditor knows of it: the material of every check.


Values = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Publication:
    """One thing that became durable, in N runs side by side: a release, or whatever else was written.

    Parameters
    ----------
    step : of the run, from 1.
    value : what can be read (N x anything).
    here, there : the same without its noise, computed by the implementation under audit from the data of the world A
        and of its neighbour A', at the same public X: adaptive queries, as they were really asked.
    noise : the scale that the implementation says it used: standard deviation of a Gaussian, scale of a Laplace
        distribution, one number a run (N). 0: no noise.
    grid : what every entry of ``value`` is a multiple of, or None where none is promised.
    """

    step: int
    value: Values
    here: Values
    there: Values
    noise: Values
    grid: float | None = None

    def per_run(self, values: Any) -> Values:
        """``values`` with a row a run."""
        return np.asarray(values, dtype=np.float64).reshape(len(self.noise), -1)


Transcript = list[Publication]


def without_noise(step: int, value: Any, here: Any, there: Any) -> Publication:
    """Something that was written as it is: a log line, a metric, a trace."""
    value, here, there = (np.asarray(v, dtype=np.float64) for v in (value, here, there))
    return Publication(step=step, value=value, here=here, there=there, noise=np.zeros(len(value)))


# Secret keys for an audit: every run has noise that no other run has.


@contextmanager
def fresh_keys(count: int) -> Iterator[list[Entropy]]:
    """Fresh secret keys; bound to different names the one in the file gives unrelated streams."""
    with tempfile.TemporaryDirectory(prefix="npmdask-audit-") as folder:
        path = Path(folder) / "key"
        first = Entropy.create(path)
        keys = [Entropy.open(path, bound_to=f"run {number}") for number in range(count)]
        yield keys
        first.destroy()


CERTAIN = 1e6  # the score of evidence without noise: finite, so that contradicting evidence does not give NaN
TINY = np.finfo(np.float64).tiny


def likelihood_ratio(transcript: Transcript, norm: str) -> Values:
    """ln p(transcript | A') - ln p(transcript | A) under the noise that is claimed, one number a run.

    Gaussian ("l2"): sum over publications of (||Y - f||_F^2 - ||Y - f'||_F^2) / (2 stddev^2), with f and f' the
    queries in the two worlds; Laplace ("l1"): (||Y - f||_1 - ||Y - f'||_1) / scale. The X_l are functions of earlier
    releases, so the densities of an adaptive run multiply.
    """
    return np.sum([_evidence(publication, norm) for publication in transcript], axis=0)


def _evidence(publication: Publication, norm: str) -> Values:
    value, here, there = (publication.per_run(v) for v in (publication.value, publication.here, publication.there))
    power = 2 if norm == "l2" else 1
    # a product of sums: the difference of the squares of large values would cancel
    squares = (2 * value - here - there) * (there - here)
    gain = squares if norm == "l2" else np.abs(value - here) - np.abs(value - there)
    sums, noise = gain.sum(axis=1), publication.noise
    noised = sums / np.where(noise > 0, power * noise**power, 1.0)
    return np.where(noise > 0, noised, CERTAIN * np.sign(sums))


def collision(transcript: Transcript) -> Values:
    """Score whether two publications of a run carry the same noise under A', rather than under A.

    For two equal shapes, Y_i - f_i and Y_j - f_j are divided by their scales and compared. Reused noise makes the two
    equal up to the grid in the true world only. The score is the log of the smallest difference under A over that
    under A'; with independent noise both are of order one and the score says next to nothing. Two publications that are
    the same in both worlds (of batches without the record) say nothing, whatever their noise.
    """
    pairs = [pair for pair in _pairs(transcript) if any((p.here != p.there).any() for p in pair)]
    if not pairs:
        return np.zeros(len(transcript[0].noise))
    return np.log(_smallest_distance(pairs, "here")) - np.log(_smallest_distance(pairs, "there"))


def _pairs(transcript: Transcript) -> list[tuple[Publication, Publication]]:
    """Every two publications of the same shape that carry noise."""
    noised = [(p, p.per_run(p.value).shape) for p in transcript if (p.noise > 0).all()]
    return [(a, b) for (a, shape), (b, other) in combinations(noised, 2) if shape == other]


def _smallest_distance(pairs: list[tuple[Publication, Publication]], world: str) -> Values:
    """The smallest distance between the noises of two publications, in units of their scale."""
    apart = [np.linalg.norm(_noise(a, world) - _noise(b, world), axis=1) for a, b in pairs]
    return np.maximum(np.min(apart, axis=0), TINY)


def _noise(publication: Publication, world: str) -> Values:
    residual = publication.per_run(publication.value) - publication.per_run(getattr(publication, world))
    return residual / publication.noise[:, None]


def path_loss(transcript: Transcript, norm: str) -> Values:
    """Compute what the run really spent, with no sampling error: one number a run, to be held to the claim.

    Gaussian: mu = sqrt(sum ||f - f'||_F^2 / stddev^2); Laplace: epsilon = sum ||f - f'||_1 / scale; over everything
    that became durable. inf if the worlds differ in something that carries no noise. A missing sqrt(2), a wrong number
    of releases, a product that was released twice show here in a single run.
    """
    spent = np.sum([_run_losses(publication, norm) for publication in transcript], axis=0)
    return np.sqrt(spent) if norm == "l2" else spent


def _run_losses(publication: Publication, norm: str) -> Values:
    apart = np.abs(publication.per_run(publication.there) - publication.per_run(publication.here))
    noise = publication.noise[:, None]
    bare = np.where(apart > 0, np.inf, 0.0)
    ratio = np.where(noise > 0, apart / np.where(noise > 0, noise, 1.0), bare)
    return np.sum(ratio**2 if norm == "l2" else ratio, axis=1)


def repeated_noise(transcript: Transcript, world: str) -> bool:
    """Say whether two publications of a run in ``world`` carry the same noise, up to a millionth of its scale.

    Of two blocks of two entries or more this happens by chance with probability below 1e-12 in a run.
    """
    pairs = _pairs([publication for publication in transcript if publication.value[0].size > 1])
    return bool(pairs) and bool((_smallest_distance(pairs, world) < 1e-6).any())


def off_grid(transcript: Transcript) -> bool:
    """Say whether a release is not a multiple of its public grid: low bits of floats tell where they came from.

    Noise drawn as floats leaves on the sum the trace of both terms (Mironov, CCS 2012); on a grid there are no such
    bits.
    """
    return any(bool((np.rint(p.value / p.grid) * p.grid != p.value).any()) for p in transcript if p.grid is not None)
