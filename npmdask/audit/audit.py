"""The audit itself: runs in two worlds, the checks on every transcript, the attacks on all of them, a finding."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npmdask.accounting.budget import Budget, Charge
from npmdask.accounting.gdp import mu_for
from npmdask.audit.attacks import (
    Transcript,
    collision,
    fresh_keys,
    likelihood_ratio,
    off_grid,
    path_loss,
    repeated_noise,
)
from npmdask.audit.oracle_paths import (
    PATHS,
    OraclePath,
    PrivacyLoss,
    Run,
    evidence,
    noisy_sum,
    offered,
    oracle_paths,
    spent,
)
from npmdask.audit.release_path import Instance, ReleasePath, TensorPath, WholePath, instances, sums_follow_places
from npmdask.audit.statistics import (
    ALPHA,
    Counts,
    Finding,
    Scores,
    count,
    epsilon_lower_bound,
    mu_interval,
    mu_lower_bound,
    p_value,
    thresholds,
)
from npmdask.core.storage.source import open_source
from npmdask.dp_pca.base import SecretNoise
from npmdask.dp_pca.private_mean import ClippedMean
from npmdask.errors import BadInputError, require, require_known
from npmdask.missing.gaps import FILL, with_missing
from npmdask.privacy.clipped_entries import BoundedProduct, BoundedSymmetric, BoundedTensor
from npmdask.privacy.clipped_rows import ClippedGram
from npmdask.privacy.mechanisms.gaussian_laplace import (
    PrivateGaussian,
    PrivateLaplace,
    SymmetricGaussian,
    TensorGaussian,
)
from npmdask.privacy.neighbors import REGISTRY, TENSORS, Relation, TensorRelation, make_relation
from npmdask.symmetric.reader import TensorReader

# The audit of a stochastic oracle: runs in two worlds, what is certain of each, attacks on all, a finding.


ALLOWANCE = 1 + 1e-9  # of the path-wise check, for its own rounding
NO_SUM = (0.0, False)


@dataclass(frozen=True)
class AuditedRun:
    """Facts of a run that all checks need: two scores, what it spent, whether noise came twice, how many releases."""

    ratio: float
    collision: float
    spent: PrivacyLoss
    repeated: bool
    releases: int


def examine_oracle(path: OraclePath, *, runs: int) -> Finding:
    """Audit one path: ``runs`` runs in each of its two worlds, every check and every attack.

    Noise is that of the product: the exact sampler, under a fresh secret key for every run.
    """
    here, there = _runs(path, "here", runs), _runs(path, "there", runs)
    loss = max(_loss(path, total) for total in {seen.spent for seen in (*here, *there)})
    counts, delta, claimed = _attack_on_oracle(path, here, there), path.budget.delta, path.claimed
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
        problems=(*_path_wise_of_oracle(path, [*here, *there], loss), *rejected),
    )


def _runs(path: OraclePath, world: str, runs: int) -> list[AuditedRun]:
    with fresh_keys(runs) as keys:
        return [_audited_run(path.run(world, SecretNoise(key)), world) for key in keys]


def _audited_run(run: Run, world: str) -> AuditedRun:
    """The releases whose noise an adversary that knows the data can subtract for a collision are clipped sums."""
    sums = [noisy_sum(told) for told in run if isinstance(told.query.mechanism, ClippedMean)]
    collided, repeated = (float(collision(sums)[0]), repeated_noise(sums, world)) if sums else NO_SUM
    return AuditedRun(sum(map(evidence, run)), collided, sum(map(spent, run), PrivacyLoss()), repeated, len(run))


def _loss(path: OraclePath, total: PrivacyLoss) -> float:
    """Compute what a run spent: mu, or epsilon at what labels of one world leave of delta."""
    if path.gaussian:
        return math.sqrt(total.mu_squared) if total.epsilon == total.delta == 0 else math.inf
    left = path.budget.delta - total.delta
    charge = Charge(mu_squared=total.mu_squared, epsilon=total.epsilon)
    return charge.epsilon_at(left) if left >= 0 else math.inf


def _path_wise_of_oracle(path: OraclePath, seen: list[AuditedRun], loss: float) -> Iterator[str]:
    """Report the problems of an oracle that are certain, whatever the noise came out as."""
    if loss > path.claimed * ALLOWANCE:
        yield f"path-wise check: a run published {loss:.4g}, claimed was {path.claimed:.4g}"
    elif loss > path.charged * ALLOWANCE:
        yield f"path-wise check: a run published {loss:.4g}, the promise of the oracle is {path.charged:.4g}"
    if any(run.repeated for run in seen):
        yield "path-wise check: two publications of one run carry the same noise"
    yield from (f"path-wise check: {problem}" for problem in path.fragile())


def _attack_on_oracle(path: OraclePath, here: list[AuditedRun], there: list[AuditedRun]) -> list[Counts]:
    """The likelihood ratio of all releases of a run, and the search for noise that was used twice."""
    ends = thresholds("l2" if path.gaussian else "l1", path.claimed)
    return [
        count((_oracle_scores(here, "ratio"), _oracle_scores(there, "ratio")), ends),
        count((_oracle_scores(here, "collision"), _oracle_scores(there, "collision")), [0.0]),
    ]


def _oracle_scores(seen: list[AuditedRun], name: str) -> Scores:
    return np.array([getattr(run, name) for run in seen])


MECHANISMS: dict[str, Any] = {"gaussian": PrivateGaussian, "laplace": PrivateLaplace, "covariance": SymmetricGaussian}
CLIP_NORM = {"samples": 1.0, "matrix": 4096.0}  # of relations made here: large against the noise, to hold X in place
LEAST_RUNS = 100
ONE_BY_ONE = 5  # times as many runs where they go together as where they cannot


def operator_of(instance: Instance, data: NDArray[np.float64]) -> Any:
    """The private operator of the product's own code for data of this kind, in memory."""
    relation, rule, source = instance.relation, instance.public_rule, open_source(data, instance.kind)
    if rule.fill is not None:
        source = with_missing(source, FILL, rule.fill, rule.marks)
    reader: Any = source.reader
    if isinstance(reader, TensorReader):
        return BoundedTensor(reader=reader, clip_norm=relation.clip_norm, change=relation.unit)
    if instance.kind == "samples":
        return ClippedGram(reader=reader, clip_norm=relation.clip_norm, image_norm=instance.image_norm, view=rule.view)
    kind = BoundedSymmetric if instance.kind == "symmetric" else BoundedProduct
    return kind(reader=reader, clip_norm=relation.clip_norm, change=relation.unit)


def whole_operator_of(instance: Instance, data: NDArray[np.float64]) -> Any:
    """The same of a covariance that is released whole."""
    made = operator_of(instance, data)
    return replace(made, whole=True) if isinstance(made, ClippedGram) else made


def release_path(instance: Instance, mechanism: str, budget: Budget, steps: int) -> ReleasePath:
    """The release path as it should be, for this pair of neighbours; that of a covariance has one step."""
    if mechanism == "covariance":
        rounding = whole_operator_of(instance, instance.here).rounding(instance.d)
        whole = SymmetricGaussian(relation=instance.relation, budget=budget, releases=1, rounding=rounding)
        return WholePath(instance, whole, steps=1, operator_of=whole_operator_of)
    rounding = operator_of(instance, instance.here).rounding(instance.p)
    if isinstance(instance.relation, TensorRelation):
        of_columns = TensorGaussian(
            relation=instance.relation, budget=budget, columns=instance.p, steps=steps, rounding=rounding
        )
        return TensorPath(instance, of_columns, steps=steps, operator_of=operator_of)
    made = MECHANISMS[mechanism](
        relation=instance.relation, budget=budget, releases=steps, rounding=rounding, image_norm=instance.image_norm
    )
    return ReleasePath(instance, made, steps=steps, operator_of=operator_of)


def examine(path: ReleasePath, budget: Budget, *, runs: int, together: bool = True, seed: int = 0) -> Finding:
    """Audit one release path: ``runs`` runs in each of its two worlds, every check and every attack.

    Parameters
    ----------
    path : what is audited. ``budget`` : what it promises. ``together`` : see :mod:`npmdask.audit.release_path`.
    seed : of the public starting blocks. The noise comes from fresh secret keys: no two audits are the same.
    """
    norm = path.mechanism.norm
    claimed = mu_for(budget.epsilon, budget.delta) if norm == "l2" else budget.epsilon
    here, there = (_transcript(path, world, runs, together, seed) for world in ("here", "there"))
    spent = max(float(path_loss(transcript, norm).max()) for transcript in (here, there))
    counts = _attack(here, there, norm, claimed)
    bound = mu_lower_bound if norm == "l2" else _pure_lower_bound
    p = p_value(lambda alpha: bound(counts, alpha), claimed)
    rejected = [f"attack: the loss is above the claimed {claimed:.4g} (p = {p:.0e})"] if p <= ALPHA else []
    return Finding(
        relation=path.instance.relation.name,
        mechanism=path.mechanism.name,
        instance=path.instance.name,
        budget=budget,
        releases=path.steps,
        runs=runs,
        claimed=claimed,
        path_loss=spent,
        mu=mu_interval(counts, ALPHA) if norm == "l2" else None,
        epsilon_at_least=epsilon_lower_bound(counts, budget.delta, ALPHA),
        p_value=p,
        problems=(*_path_wise(path, here, there, spent, claimed), *rejected),
    )


def _path_wise(path: ReleasePath, here: Transcript, there: Transcript, spent: float, claimed: float) -> Iterator[str]:
    """Report the problems that are certain, whatever the noise came out as."""
    charge = path.mechanism.charge()
    charged = charge.mu if path.mechanism.norm == "l2" else charge.epsilon
    loss = f"{spent:.4g}" if math.isfinite(spent) else "something without any noise"
    if spent > claimed * ALLOWANCE:
        yield f"path-wise check: a run published {loss}, claimed was {claimed:.4g}"
    elif spent > charged * ALLOWANCE:
        yield f"path-wise check: a run published {loss}, the ledger is charged {charged:.4g}"
    if repeated_noise(here, "here") or repeated_noise(there, "there"):
        yield "path-wise check: two publications of one run carry the same noise"
    if off_grid(here) or off_grid(there):
        yield "path-wise check: a release is not on its public grid, so its low bits tell of the data"
    alike = path.instance.kind == "samples" and not path.instance.public_rule.weights  # else they follow by intention
    if alike and sums_follow_places(path.operator_on, path.instance.relation.name):
        yield "path-wise check: one record moves the terms of others, which follow their places"


def audit(
    *,
    relations: Sequence[Relation | str] = (*REGISTRY, *TENSORS),
    mechanisms: Sequence[str] = tuple(MECHANISMS),
    epsilon: float = 4.0,
    delta: float = 1e-6,
    steps: int = 3,
    runs: int = 5000,
    seed: int = 0,
) -> Iterator[Finding]:
    """Audit the release path of every relation with every mechanism, on the pairs of
    :mod:`npmdask.audit.release_path`;
    of stochastic oracles on those of :mod:`npmdask.audit.oracle_paths`.

    Parameters
    ----------
    relations : names, or relations with a clip_norm of their own.
    mechanisms : "gaussian", "laplace", "covariance" (one release of a whole matrix), and names of
        ``oracle_paths.PATHS``.
    epsilon, delta : the budget that is promised (Laplace noise: delta = 0).
    steps : releases of a run; of an oracle steps of a round.
    runs : of each world, of an oracle a fifth of them. mu is resolved to about 13 / sqrt(runs), at the level of 10^-6.

    Raises
    ------
    BadInputError
        An unknown relation or mechanism, a mechanism that knows none of the relations, too few runs.
    """
    require(runs >= LEAST_RUNS, f"{runs} runs are too few: use at least {LEAST_RUNS}, preferably 10000")
    _require_known(mechanisms)
    chosen = [_relation(relation) for relation in relations]
    _require_offered(mechanisms, chosen)
    for relation in chosen:
        for mechanism in mechanisms:
            if mechanism in PATHS:
                for one in oracle_paths(mechanism, relation.name, Budget(epsilon, delta), steps):
                    yield examine_oracle(one, runs=max(runs // ONE_BY_ONE, LEAST_RUNS))
                continue
            if not _is_offered(mechanism, relation):
                continue
            budget = Budget(epsilon, 0.0 if mechanism == "laplace" else delta)
            pairs = instances(relation, MECHANISMS[mechanism].norm)
            for instance in pairs:
                if mechanism == "covariance" and instance.image_norm is not None:
                    continue  # it has no images
                path = release_path(instance, mechanism, budget, steps)
                yield examine(path, budget, runs=runs, seed=seed)


def _require_known(mechanisms: Sequence[str]) -> None:
    for mechanism in mechanisms:
        require_known(mechanism, (*MECHANISMS, *PATHS), "unknown mechanism")


def _require_offered(mechanisms: Sequence[str], relations: Sequence[Relation]) -> None:
    if PATHS.keys() >= set(mechanisms) and not any(offered(m, r.name) for m in mechanisms for r in relations):
        for_it = [name for name in REGISTRY if offered(mechanisms[0], name)]
        raise BadInputError(f"{mechanisms[0]} has no guarantee for these relations: choose {' or '.join(for_it)}")
    if set(mechanisms) == {"covariance"} and not any(_is_offered("covariance", relation) for relation in relations):
        raise BadInputError(
            "a covariance is released only for records and symmetric matrices: choose a relation of these"
        )
    if "gaussian" not in mechanisms and all(isinstance(relation, TensorRelation) for relation in relations):
        raise BadInputError(f"only Gaussian noise gives a guarantee for {' and '.join(TENSORS)}: choose gaussian")


def _is_offered(mechanism: str, relation: Relation) -> bool:
    """Say whether releases by the mechanism are offered for such data."""
    if mechanism == "covariance":
        return not {"samples", "symmetric"}.isdisjoint(relation.kinds)
    return mechanism == "gaussian" or not isinstance(relation, TensorRelation)


def _relation(relation: Relation | str) -> Relation:
    if isinstance(relation, Relation):
        return relation
    records = relation.startswith("record")
    return make_relation(relation, clip_norm=CLIP_NORM["samples" if records else "matrix"])


def _transcript(path: ReleasePath, world: str, runs: int, together: bool, seed: int) -> Transcript:
    with fresh_keys(1 if together else runs) as keys:
        return path.run(world, keys, runs, together=together, seed=seed)


def _attack(here: Transcript, there: Transcript, norm: str, claimed: float) -> list[Counts]:
    """Both attacks at thresholds that depend on the claim only: fixed before any run."""
    ratios = likelihood_ratio(here, norm), likelihood_ratio(there, norm)
    collisions = collision(here), collision(there)
    return [count(ratios, thresholds(norm, claimed)), count(collisions, [0.0])]


def _pure_lower_bound(counts: Sequence[Counts], alpha: float) -> float:
    return epsilon_lower_bound(counts, 0.0, alpha)
