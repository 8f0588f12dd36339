"""The audit of a stochastic oracle: runs in two worlds, what is certain of each, attacks on all, a finding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from npmdask.accounting.budget import Charge
from npmdask.audit.attacks import collision, repeated_noise
from npmdask.audit.evidence import Spent, Told, evidence, noisy_sum, spent
from npmdask.audit.finding import ALPHA, Finding
from npmdask.audit.keys import fresh_keys
from npmdask.audit.oracle_path import OraclePath, Run
from npmdask.audit.publication import Transcript
from npmdask.audit.statistics import (
    Counts,
    count,
    epsilon_lower_bound,
    mu_interval,
    mu_lower_bound,
    p_value,
    thresholds,
)
from npmdask.stochastic.neighbours import RELATIONS
from npmdask.stochastic.noise import Noise, SecretNoise, SimulatedNoise
from npmdask.stochastic.private_mean import ClippedMean

ALLOWANCE = 1 + 1e-9  # of the path-wise check, for its own rounding


def examine_oracle(path: OraclePath, *, runs: int, secret: bool = True) -> Finding:
    """Audit one path: ``runs`` runs in each of its two worlds, every check and every attack.

    ``secret`` : noise of fresh secret keys by the exact sampler, one key a run; else of seeds, in floating point: the
    same distribution, several times faster.
    """
    here, there = _runs(path, "here", runs, secret), _runs(path, "there", runs, secret)
    loss = max(_loss(path, run) for run in (*here, *there))
    counts = _attack(path, here, there)
    delta, claimed = path.budget.delta, path.claimed
    bound = mu_lower_bound if path.gaussian else (lambda c, alpha: epsilon_lower_bound(c, delta, alpha))
    p = p_value(lambda alpha: bound(counts, alpha), claimed)
    rejected = [f"attack: the loss is above the claimed {claimed:.4g} (p = {p:.0e})"] if p <= ALPHA else []
    return Finding(
        relation=path.pair.relation,
        mechanism=path.name,
        instance=path.pair.name,
        budget=path.budget,
        releases=max(map(len, here)),
        runs=runs,
        claimed=claimed,
        path_loss=loss,
        mu=mu_interval(counts, ALPHA) if path.gaussian else None,
        epsilon_at_least=epsilon_lower_bound(counts, delta, ALPHA),
        p_value=p,
        problems=(*_path_wise(path, here, there, loss), *rejected),
    )


def _runs(path: OraclePath, world: str, runs: int, secret: bool) -> list[Run]:
    with fresh_keys(runs) as keys:
        noises: Sequence[Noise] = [SecretNoise(key) for key in keys]
        if not secret:
            noises = [SimulatedNoise(2 * number + (world == "there")) for number in range(runs)]
        return [path.run(world, noise) for noise in noises]


def _loss(path: OraclePath, run: Run) -> float:
    """What a run spent: mu, or epsilon at what rare labels leave of delta."""
    total = sum((spent(told) for told in run), Spent())
    charge = Charge(mu_squared=total.mu_squared, epsilon=total.epsilon)
    if path.gaussian:
        return float(np.sqrt(total.mu_squared)) if total.epsilon == total.delta == 0 else np.inf
    left = path.budget.delta - total.delta
    return charge.epsilon_at(left) if left >= 0 else np.inf


def _path_wise(path: OraclePath, here: list[Run], there: list[Run], loss: float) -> Iterator[str]:
    """What is certain, whatever the noise came out as."""
    if loss > path.claimed * ALLOWANCE:
        yield f"path-wise check: a run published {loss:.4g}, claimed was {path.claimed:.4g}"
    elif loss > path.charged * ALLOWANCE:
        yield f"path-wise check: a run published {loss:.4g}, the promise of the oracle is {path.charged:.4g}"
    for world, runs in (("here", here), ("there", there)):
        if any(repeated_noise(_sums(run), world) for run in runs):
            yield "path-wise check: two publications of one run carry the same noise"
            break
    yield from (f"path-wise check: {problem}" for problem in path.fragile(here[0]))


def _attack(path: OraclePath, here: list[Run], there: list[Run]) -> list[Counts]:
    """The likelihood ratio of all releases of a run, and the search for noise that was used twice."""
    norm = "l2" if path.gaussian else "l1"
    ratios = tuple(np.array([_ratio(run) for run in runs]) for runs in (here, there))
    collisions = tuple(np.array([_collision(run) for run in runs]) for runs in (here, there))
    return [
        count((ratios[0], ratios[1]), thresholds(norm, path.claimed)),
        count((collisions[0], collisions[1]), [0.0]),
    ]


def _ratio(run: Run) -> float:
    return sum(map(evidence, run))


def _collision(run: Run) -> float:
    sums = _sums(run)
    return float(collision(sums)[0]) if sums else 0.0


def _sums(run: Run) -> Transcript:
    """The releases whose noise an adversary that knows the data can subtract for: clipped sums."""
    return [noisy_sum(told) for told in run if _is_sum(told)]


def _is_sum(told: Told) -> bool:
    return isinstance(told.query.mechanism, ClippedMean)


def offered(relation: str) -> bool:
    """Whether batches by index are sound for ``relation``."""
    return relation in RELATIONS
