"""How often the bounds of certificates hold, and by how much they are too large: random problems with known answers.

python -m benchmarks.certificate_coverage [--problems 3000] [--first 0] prints the table of
docs/explanation/certificates.md.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from benchmarks.certificate_cases import Drawn, Truth, certificate_of, draw, draw_ties
from npmdask.core.certificates.bounds import Certificate, Level
from npmdask.core.certificates.wording import bounds_values

CLAIMS = ("value", "following", "low rank", "angle", "one component", "captured")
GROUNDS = ("always", "random start", "none missed", "told")
ACTUAL_ROUNDING = 1e-14  # of the answer that bounds are compared with, of the largest eigenvalue


@dataclass
class Tally:
    """Of one claim on one ground: problems in which something is claimed and covered, and bound over actual error."""

    problems: int = 0
    claimed: int = 0
    covered: int = 0
    ratios: dict[bool, list[float]] = field(default_factory=lambda: {True: [], False: []})  # by: it had converged

    def add(self, bound: np.ndarray, actual: np.ndarray, floor: float, slack: float, *, converged: bool) -> None:
        self.problems += 1
        told = np.isfinite(bound)
        if not told.any():
            return
        self.claimed += 1
        self.covered += bool((bound[told] + slack >= actual[told]).all())
        if actual[told].max() > floor:
            self.ratios[converged].append(float(bound[told].max() / actual[told].max()))

    @property
    def coverage(self) -> float:
        return self.covered / self.claimed if self.claimed else 1.0

    @property
    def overestimate(self) -> float:
        """The median of bound over actual error, where that is more than rounding."""
        every = self.ratios[True] + self.ratios[False]
        return float(np.median(every)) if every else float("nan")

    def median(self, *, converged: bool) -> float:
        return float(np.median(self.ratios[converged])) if self.ratios[converged] else float("nan")


def measure(problems: int, first: int = 0, draws: Callable[[int], Drawn] = draw) -> dict[tuple[str, str], Tally]:
    """Tallies by (ground, claim) of problems ``first``, first + 1, ...; "told" is what a run says of itself."""
    tallies: dict[tuple[str, str], Tally] = defaultdict(Tally)
    for seed in range(first, first + problems):
        drawn, certificate, truth = certificate_of(seed, draws)
        size = abs(float(drawn.eigenvalues[0]))
        floor, slack = 10 * certificate.perturbation + 1e-13 * size, ACTUAL_ROUNDING * size
        near = tallies["always", "an eigenvalue near"]
        near.add(certificate.nearest, truth.nearest, floor, slack, converged=drawn.converged)
        for ground, level in _levels(certificate):
            for claim, (bound, actual, unit) in _pairs(certificate, level, truth, size).items():
                tally = tallies[ground, claim]
                tally.add(bound, actual, floor / unit, slack / unit, converged=drawn.converged)
    return dict(tallies)


def _levels(certificate: Certificate) -> list[tuple[str, Level]]:
    """By ground; "told": what the sentence of a run speaks of, where it does not say that too little is known."""
    grounds = [(level.ground, level) for level in certificate.levels]
    return [*grounds, ("told", certificate.best)] if bounds_values(certificate) else grounds


def _pairs(
    certificate: Certificate, level: Level, truth: Truth, size: float
) -> dict[str, tuple[np.ndarray, np.ndarray, float]]:
    """Bounds, actual errors, and what a unit of them is in eigenvalues."""
    values = np.abs(certificate.values)
    off = np.maximum(level.upper - values, values - level.lower)
    found = {
        "value": (off, truth.value_errors, 1.0),
        "following": (level.following, truth.following, 1.0),
        "low rank": (level.spectral, truth.spectral, 1.0),
        "angle": (level.sine, truth.sine, size),
        "one component": (level.component_sines, truth.component_sines, size),
        "captured": (level.lost, truth.lost, 1.0),
    }
    return {claim: (np.atleast_1d(b), np.atleast_1d(a), unit) for claim, (b, a, unit) in found.items()}


def as_markdown(tallies: dict[tuple[str, str], Tally]) -> str:
    """The table of docs/explanation/certificates.md, and what is stated of runs that converged and were stopped."""
    lines = ["| bound of | always | random start | none missed | stated |", "|---|---|---|---|---|"]
    for claim in CLAIMS:
        of_grounds = [tallies.get((ground, claim), Tally()) for ground in GROUNDS]
        cells = [f"{one.covered} / {one.claimed}, {_times(one.overestimate)}" for one in of_grounds]
        lines.append(f"| {claim} | {' | '.join(cells)} |")
    stated, near = tallies["told", "value"], tallies["always", "an eigenvalue near"]
    converged, stopped = (_times(stated.median(converged=flag)) for flag in (True, False))
    lines += [
        "",
        f"Values are stated {converged} times too large where runs converged, {stopped} where they were stopped;",
    ]
    return "\n".join([*lines, f"{stated.problems} of {near.problems} state values; `nearest` held in {near.covered}."])


def _times(ratio: float) -> str:
    return "—" if np.isnan(ratio) else f"{ratio:.1f}" if ratio < 1000 else f"{ratio:.0e}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", type=int, default=3000)
    parser.add_argument("--first", type=int, default=0, help="number of the first problem")
    parser.add_argument("--ties", action="store_true", help="near-ties of more values than there are columns")
    a = parser.parse_args()
    print(as_markdown(measure(a.problems, a.first, draw_ties if a.ties else draw)))
