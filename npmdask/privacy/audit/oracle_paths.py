"""Every private path of the stochastic room, with the neighbours that it is attacked on.

Whole runs: ``k-dp-pca`` ("tight", all records in every step), ``k-dp-pca-disjoint`` (disjoint batches), ``k-dp-ojas``
(sound noise), ``k-dp-pca-paper-same`` and ``-disjoint`` (ModifiedDP-PCA; what its two halves are). Mechanisms by
themselves: ``distance-range`` (its histogram has Gaussian noise), ``clipped-mean``, ``paper-range`` (its histogram has
Laplace noise and no public bins) and ``paper-mean``. The paper's promise an (epsilon, delta), the others mu of Gaussian
differential privacy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from npmdask.accounting.budget import Budget
from npmdask.accounting.calibration import gaussian_multiplier
from npmdask.operators.exact_sums import RECORD_GRID, unit_of
from npmdask.privacy.audit.oracle_pairs import (
    FAR,
    LARGEST,
    OraclePair,
    changed,
    full_bin,
    lonely_group,
    tied_bins,
    tied_groups,
    whole_run,
)
from npmdask.privacy.audit.oracle_path import Once, OraclePath
from npmdask.privacy.dp_pca.exact_oracle import TightOracle
from npmdask.privacy.dp_pca.neighbors import RELATIONS, Promise, Relation, promise_of
from npmdask.privacy.dp_pca.paper_oracles import DPOjas, ModifiedDPPCA
from npmdask.privacy.dp_pca.power import PowerOracle
from npmdask.privacy.dp_pca.private_mean import ClippedMean, PaperMean
from npmdask.privacy.dp_pca.private_range import DistanceRange, PaperRange

Maker = Callable[[Relation, Budget, int], Iterator[OraclePath]]
EDGE = 4.0  # of a bin of distances from LARGEST
BEYOND = EDGE + RECORD_GRID * unit_of(LARGEST)  # the next point of the grid of distances, in the bin above
RANK, DIMENSION = 2, 3  # of whole runs: a round on all of the space, and one behind a projection
TAIL = (0.01, 1.0)  # K and a of PrivMean: clipped closely, so that a record can move from end to end
SURE = 3.0  # times the threshold, or scales of noise above it: where a bin is seen nearly always


def tight(relation: Relation, budget: Budget, steps: int, *, reuse: bool = True) -> Iterator[OraclePath]:
    """With three times the records that a bin needs to be seen, so that a range is found in nearly every step."""
    oracle = TightOracle(
        records=2**20, target_rank=RANK, steps=steps, budget=budget, largest=LARGEST, relation=relation, reuse=reuse
    )
    needed = math.ceil(SURE * _first_mechanism(oracle).histogram.threshold)
    oracle = replace(oracle, records=needed if reuse else needed * RANK * steps)
    place = needed // 2 + (0 if reuse else needed * steps)  # of disjoint batches: in the second round
    for pair in whole_run(relation, oracle.records, DIMENSION, place=place):
        yield OraclePath("k-dp-pca" if reuse else "k-dp-pca-disjoint", oracle, pair, budget, gaussian=True)


def disjoint(relation: Relation, budget: Budget, steps: int) -> Iterator[OraclePath]:
    """Every step has a batch of its own, with the whole budget."""
    return tight(relation, budget, steps, reuse=False)


def ojas(relation: Relation, budget: Budget, steps: int) -> Iterator[OraclePath]:
    """DP-Ojas with batches of four records; the one that changes is in the last of them."""
    oracle = DPOjas(
        records=4 * RANK * steps,
        target_rank=RANK,
        batch=4,
        rates=((1.0, 1.0),) * RANK,
        radius=1.0,
        budget=budget,
        relation=relation,
    )
    for pair in whole_run(relation, oracle.records, DIMENSION, place=oracle.records - 1):
        yield OraclePath("k-dp-ojas", oracle, pair, budget, gaussian=True)


def ojas_reuse(relation: Relation, budget: Budget, steps: int) -> Iterator[OraclePath]:
    """DP-Ojas with all records in every step."""
    oracle = DPOjas(
        records=4,
        target_rank=RANK,
        rates=((1.0, 1.0),) * RANK,
        radius=1.0,
        budget=budget,
        relation=relation,
        noise="reuse",
        full_steps=steps,
    )
    for pair in whole_run(relation, oracle.records, DIMENSION, place=oracle.records - 1):
        yield OraclePath("k-dp-ojas-reuse", oracle, pair, budget, gaussian=True)


def power(relation: Relation, budget: Budget, steps: int) -> Iterator[OraclePath]:
    """The private power method with one column."""
    oracle = PowerOracle(records=4, target_rank=RANK, steps=steps, radius=1.0, budget=budget, relation=relation)
    for pair in whole_run(relation, oracle.records, DIMENSION, place=oracle.records - 1):
        yield OraclePath("k-dp-power", oracle, pair, budget, gaussian=True)


def paper(relation: Relation, budget: Budget, steps: int, *, halves: str = "same") -> Iterator[OraclePath]:
    """ModifiedDP-PCA, with a difference of two records to each group. Disjoint halves: either half has its pair."""
    small = ModifiedDPPCA(
        records=2 * steps,
        target_rank=1,
        batch=2,
        rates=((1.0, 1.0),),
        budget=budget,
        relation=relation,
        tail=TAIL,
        constant=8.0,
        halves=halves,
    )
    half = 2 * _first_mechanism(small).groups
    oracle = replace(small, records=2 * half * steps, batch=2 * half)
    both = tied_groups(relation, half // 2, 2)
    first = _beyond(both, 0, (2 * steps - 1) * half)
    second = replace(_beyond(both, half, (2 * steps - 2) * half), name="second half")
    for pair in (first, second) if halves == "disjoint" else (first,):
        yield OraclePath(f"k-dp-pca-paper-{halves}", oracle, pair, budget, gaussian=False)


def _beyond(pair: OraclePair, before: int, after: int) -> OraclePair:
    """``pair`` with records of the world ``there``, again and again, before and after it."""
    n = len(pair.there)
    front, back = (np.tile(pair.there, (count // n, 1, 1)) for count in (before, after))
    here, there = (np.concatenate([front, world, back]) for world in (pair.here, pair.there))
    return replace(pair, here=here, there=there, place=before + pair.place)


def disjoint_halves(relation: Relation, budget: Budget, steps: int) -> Iterator[OraclePath]:
    """One half for the range and one for the mean, with the whole budget each."""
    return paper(relation, budget, steps, halves="disjoint")


def distance_range(relation: Relation, budget: Budget, steps: int) -> Iterator[OraclePath]:
    """Two bins as full as each other and a record on the edge between them, where two counts move; else one bin at
    the threshold: where a heaviest bin tells as much as all counts would."""
    mechanism = DistanceRange(relation=relation, largest=LARGEST, multiplier=gaussian_multiplier(budget, 1))
    histogram = mechanism.histogram
    if relation == "record_replace":
        each = math.ceil(histogram.threshold + SURE * histogram.stddev)
        attains = tied_bins(relation, (EDGE, BEYOND), each)
    else:
        attains = full_bin(relation, EDGE, math.ceil(histogram.threshold))
    for pair in (attains, _ruined(attains)):
        yield _alone("distance-range", mechanism, pair, budget, np.zeros(1))


def clipped_mean(relation: Relation, budget: Budget, steps: int) -> Iterator[OraclePath]:
    """A record against its antipode, or against nothing, around a centre far from zero."""
    values = np.array([5.0, 4.5, 5.5, 0.0])
    mechanism = ClippedMean(relation=relation, radius=1.0, count=4, multiplier=gaussian_multiplier(budget, 1))
    attains = changed("attains", relation, values, 3, (FAR, -FAR), 2)
    for pair in (attains, _ruined(attains)):
        yield _alone("clipped-mean", mechanism, pair, budget, np.array([5.0, 0.0]))


def paper_range(relation: Relation, budget: Budget, steps: int) -> Iterator[OraclePath]:
    """Two bins as full as each other; one behind by more than its noise, where Laplace noise tells most; and a bin that
    is empty in the other world."""
    mechanism = PaperRange(epsilon=budget.epsilon, delta=budget.delta, fail_prob=0.01, constant=8.0)
    groups, lead = mechanism.groups, math.ceil(1 / budget.epsilon)
    tied = tied_groups(relation, groups, 1)
    behind = tied_groups(relation, groups, 1, name="behind", lead=lead)
    for pair in (tied, behind, lonely_group(relation, groups, 1)):
        yield _alone("paper-range", mechanism, pair, budget, np.zeros(1))


def paper_mean(relation: Relation, budget: Budget, steps: int) -> Iterator[OraclePath]:
    """A record that moves from end to end where no centre is found; and one that decides on the centre."""

    def made(count: int) -> PaperMean:
        return PaperMean(epsilon=budget.epsilon, delta=budget.delta, spread=1.0, count=count, fail_prob=0.01, tail=TAIL)

    few = changed("attains", relation, np.zeros(10), 4, (FAR, -FAR), 1)
    yield _alone("paper-mean", made(10), few, budget, np.zeros(1))
    histogram, width = made(1).histogram(1), made(1).width
    each = math.ceil(histogram.threshold + SURE * 2 / histogram.epsilon)
    many = tied_bins(relation, (0.5 * width, 4.5 * width), each, "centre")
    yield _alone("paper-mean", made(2 * each + 1), many, budget, np.zeros(1))


def _ruined(pair: OraclePair) -> OraclePair:
    """The same with a record that is not finite in the world ``here``."""
    return replace(pair, name="not-finite", here=pair.with_record(np.nan))


def _alone(name: str, mechanism: Any, pair: OraclePair, budget: Budget, centre: np.ndarray) -> OraclePath:
    gaussian = isinstance(mechanism, ClippedMean | DistanceRange)
    if gaussian:
        promise = promise_of(mechanism.charge(), pair.relation, budget.delta)
    else:
        promise = Promise(pair.relation, budget.epsilon, budget.delta, None, True, "")
    return OraclePath(name, Once(mechanism, centre, promise), pair, budget, gaussian=gaussian)


def _first_mechanism(oracle: Any) -> Any:
    return oracle.query(oracle.init(np.zeros((DIMENSION, 0)), None)).mechanism


PATHS: dict[str, Maker] = {
    "k-dp-pca": tight,
    "k-dp-pca-disjoint": disjoint,
    "k-dp-ojas": ojas,
    "k-dp-ojas-reuse": ojas_reuse,
    "k-dp-power": power,
    "k-dp-pca-paper-same": paper,
    "k-dp-pca-paper-disjoint": disjoint_halves,
    "distance-range": distance_range,
    "clipped-mean": clipped_mean,
    "paper-range": paper_range,
    "paper-mean": paper_mean,
}


ALL_RECORDS = (
    "k-dp-pca",
    "k-dp-ojas-reuse",
    "k-dp-power",
    "distance-range",
    "clipped-mean",
)  # where no batch is cut by the index of a record


def offered(name: str, relation: str) -> bool:
    """Whether ``name`` promises anything under ``relation``: adding a record shifts batches that are cut by index."""
    return relation in RELATIONS and (relation != "record_add_remove" or name in ALL_RECORDS)


def oracle_paths(name: str, relation: str, budget: Budget, steps: int) -> Iterator[OraclePath]:
    """The release paths of ``name`` on its neighbours under ``relation``; none where it is not offered."""
    for known in RELATIONS:
        if relation == known and offered(name, known):
            yield from PATHS[name](known, budget, steps)
