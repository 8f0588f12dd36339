"""The audit of a stochastic oracle: runs in two worlds, what is certain of each, attacks on all, a finding."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from npmdask.accounting.budget import Charge
from npmdask.privacy.audit.attacks import collision, repeated_noise
from npmdask.privacy.audit.finding import ALPHA, Finding
from npmdask.privacy.audit.oracle_path import OraclePath, Run
from npmdask.privacy.audit.privacy_loss import Spent, evidence, noisy_sum, spent
from npmdask.privacy.audit.statistics import (
    Counts,
    Scores,
    count,
    epsilon_lower_bound,
    mu_interval,
    mu_lower_bound,
    p_value,
    thresholds,
)
from npmdask.privacy.audit.transcript import fresh_keys
from npmdask.privacy.dp_pca.noise import SecretNoise
from npmdask.privacy.dp_pca.private_mean import ClippedMean

ALLOWANCE = 1 + 1e-9  # of the path-wise check, for its own rounding
NO_SUM = (0.0, False)


@dataclass(frozen=True)
class Seen:
    """What all checks need of a run: its two scores, what it spent, whether noise came twice, how many releases."""

    ratio: float
    collision: float
    spent: Spent
    repeated: bool
    releases: int


def examine_oracle(path: OraclePath, *, runs: int) -> Finding:
    """Audit one path: ``runs`` runs in each of its two worlds, every check and every attack.

    Noise is that of the product: the exact sampler, under a fresh secret key for every run.
    """
    here, there = _runs(path, "here", runs), _runs(path, "there", runs)
    loss = max(_loss(path, total) for total in {seen.spent for seen in (*here, *there)})
    counts, delta, claimed = _attack(path, here, there), path.budget.delta, path.claimed
    bound = mu_lower_bound if path.gaussian else (lambda c, alpha: epsilon_lower_bound(c, delta, alpha))
    p = p_value(lambda alpha: bound(counts, alpha), claimed)
    rejected = [f"attack: the loss is above the claimed {claimed:.4g} (p = {p:.0e})"] if p <= ALPHA else []
    return Finding(
        relation=path.pair.relation,
        mechanism=path.name,
        instance=path.pair.name,
        budget=path.budget,
        releases=max(seen.releases for seen in (*here, *there)),
        runs=runs,
        claimed=claimed,
        path_loss=loss,
        mu=mu_interval(counts, ALPHA) if path.gaussian else None,
        epsilon_at_least=epsilon_lower_bound(counts, delta, ALPHA),
        p_value=p,
        problems=(*_path_wise(path, [*here, *there], loss), *rejected),
    )


def _runs(path: OraclePath, world: str, runs: int) -> list[Seen]:
    with fresh_keys(runs) as keys:
        return [_seen(path.run(world, SecretNoise(key)), world) for key in keys]


def _seen(run: Run, world: str) -> Seen:
    """The releases whose noise an adversary that knows the data can subtract for a collision are clipped sums."""
    sums = [noisy_sum(told) for told in run if isinstance(told.query.mechanism, ClippedMean)]
    collided, repeated = (float(collision(sums)[0]), repeated_noise(sums, world)) if sums else NO_SUM
    return Seen(sum(map(evidence, run)), collided, sum(map(spent, run), Spent()), repeated, len(run))


def _loss(path: OraclePath, total: Spent) -> float:
    """What a run spent: mu, or epsilon at what labels of one world leave of delta."""
    if path.gaussian:
        return math.sqrt(total.mu_squared) if total.epsilon == total.delta == 0 else math.inf
    left = path.budget.delta - total.delta
    charge = Charge(mu_squared=total.mu_squared, epsilon=total.epsilon)
    return charge.epsilon_at(left) if left >= 0 else math.inf


def _path_wise(path: OraclePath, seen: list[Seen], loss: float) -> Iterator[str]:
    """What is certain, whatever the noise came out as."""
    if loss > path.claimed * ALLOWANCE:
        yield f"path-wise check: a run published {loss:.4g}, claimed was {path.claimed:.4g}"
    elif loss > path.charged * ALLOWANCE:
        yield f"path-wise check: a run published {loss:.4g}, the promise of the oracle is {path.charged:.4g}"
    if any(run.repeated for run in seen):
        yield "path-wise check: two publications of one run carry the same noise"
    yield from (f"path-wise check: {problem}" for problem in path.fragile())


def _attack(path: OraclePath, here: list[Seen], there: list[Seen]) -> list[Counts]:
    """The likelihood ratio of all releases of a run, and the search for noise that was used twice."""
    ends = thresholds("l2" if path.gaussian else "l1", path.claimed)
    return [
        count((_scores(here, "ratio"), _scores(there, "ratio")), ends),
        count((_scores(here, "collision"), _scores(there, "collision")), [0.0]),
    ]


def _scores(seen: list[Seen], name: str) -> Scores:
    return np.array([getattr(run, name) for run in seen])
