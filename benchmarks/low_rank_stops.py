"""Runs that stop by what is left over: how often more is left than they say, the steps that this saves, and how well it
is foretold. Random problems with known answers.

python -m benchmarks.low_rank_stops [--problems 1500] [--first 0] prints the table of docs/explanation/certificates.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from benchmarks.certificate_cases import Drawn, algorithm_of, draw, steps_of, truth_of
from npmdask.core.algorithms.stopping import ResidualRule, StepView
from npmdask.core.runs.stopping_rules import LowRankRule, excess_of
from npmdask.planning.forecast import simulate_steps

TOLS = (0.03, 0.1, 0.3, 1.0)
MOST = 200


@dataclass(frozen=True)
class Stop:
    """Of one problem: 1 + excess as ``said`` and as it is (``true``); steps of the run, foretold (None: under noise),
    and until the components were settled (MOST: not by then)."""

    said: float
    true: float
    steps: int
    foretold: int | None
    settled: int


def stop_of(seed: int) -> Stop | None:
    """The problem of this number with one of TOLS; None where it ends otherwise, or has no column to compare with."""
    drawn, tol = draw(seed), float(np.random.default_rng([10, seed]).choice(TOLS))
    kind = "symmetric" if drawn.spectrum == "indefinite" else "samples"
    plain = ResidualRule(tol=1e-9, max_steps=MOST, d=len(drawn.matrix), noise_stddev=drawn.stddev)
    rule = LowRankRule(**vars(plain), low_rank_tol=tol, kind=kind)
    if drawn.p <= drawn.k:
        return None
    views: list[StepView] = []
    for made in islice(steps_of(drawn, seed), MOST):
        result, evidence = made.known()
        excess = excess_of(evidence, kind)
        views.append(replace(made.view, excess=excess))
        if plain(views) is not None:
            return None
        if rule(views) is not None:
            break
    truth = truth_of(drawn, result)
    left = truth.spectral if kind == "symmetric" else truth.left
    rehearsal = None if drawn.stddev else simulate_steps(drawn.eigenvalues, algorithm_of(drawn), rule)
    return Stop(
        said=1 + excess,
        true=left / truth.following,
        steps=len(views),
        foretold=rehearsal.steps if rehearsal else None,
        settled=_settled(drawn, seed, plain),
    )


def _settled(drawn: Drawn, seed: int, rule: ResidualRule) -> int:
    views: list[StepView] = []
    for made in islice(steps_of(drawn, seed), MOST):
        views.append(made.view)
        outcome = rule(views)
        if outcome is not None:
            return len(views) if outcome.converged else MOST
    return MOST


def wrong(stops: Sequence[Stop]) -> int:
    """How many left more than they said."""
    return sum(s.true > s.said * (1 + 1e-12) for s in stops)


def measure(problems: int, first: int = 0) -> list[Stop]:
    """Those of problems ``first``, first + 1, ... that stop so."""
    return [stop for seed in range(first, first + problems) if (stop := stop_of(seed)) is not None]


def as_markdown(stops: Sequence[Stop]) -> str:
    """The table of docs/explanation/certificates.md."""
    ratios = np.array([s.foretold / s.steps for s in stops if s.foretold is not None])
    lines = [
        "| | |",
        "|---|---|",
        f"| runs that stopped by what is left over | {len(stops)} |",
        f"| of them left more than they said | {wrong(stops)} |",
        f"| said over true (median, 95th percentile) | {_pair([s.said / s.true for s in stops])} |",
        f"| steps (median, 95th percentile) | {_pair([s.steps for s in stops])} |",
        f"| steps until components are settled, at most {MOST} | {_pair([s.settled for s in stops])} |",
        f"| predicted within a factor of 1.5 | {np.mean(np.maximum(ratios, 1 / ratios) <= 1.5):.1%} of {len(ratios)} |",
        f"| predicted too few | {np.mean(ratios < 1):.1%} |",
    ]
    return "\n".join(lines)


def _pair(numbers: Sequence[float]) -> str:
    return f"{np.median(numbers):.3g}, {np.quantile(numbers, 0.95):.3g}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", type=int, default=1500)
    parser.add_argument("--first", type=int, default=0, help="number of the first problem")
    a = parser.parse_args()
    print(as_markdown(measure(a.problems, a.first)))
