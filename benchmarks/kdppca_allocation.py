"""What DP-Ojas may do for its noise: the noise of each way on a step's mean, and the error that is measured with it.

    python -m benchmarks.kdppca_allocation [--trials N]

Keeps ``benchmarks/results/kdppca-allocation.json`` and fills two tables of docs/papers/kdppca.md. Minutes on one core.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks.kdppca_trials import FIRST_SEED
from benchmarks.paper_kdppca import QUICK_TRIALS
from benchmarks.paper_page import Rows, keep, message
from npmdask.accounting import WAYS, Budget, allocation_stddev, mean_stddev
from npmdask.core.numerics.random import generator
from npmdask.core.numerics.subspaces import Block
from npmdask.dp_pca.base import Relation, SimulatedNoise, released
from npmdask.dp_pca.deflation import Deflation
from npmdask.dp_pca.exact_oracles import PowerOracle
from npmdask.dp_pca.paper_oracles import DPOjas
from npmdask.dp_pca.private_mean import ClippedMean
from npmdask.errors import RefusedError
from npmdask.experiments.figures import Setting
from npmdask.experiments.matrix_streams import MatrixStream
from npmdask.experiments.oracles import OJAS_RATE, black_box_pca, images, largest_image, steps

NAME = "kdppca-allocation"
COMPARED, MEASURED = Budget(1.0, 1e-6), Budget(1.0, 0.01)  # the second is that of the figures
RELATION: Relation = "record_zero_out"
RATE = (
    1.0,
    0.0,
)  # eta = 1: steps are few, and 1 / (1 + t) ends before the second direction is found, without any noise
SIZES = (100, 10_000, 100_000)
SHOWN = 10_000  # the n whose noise the page shows
K, D = 2, 200
SETTINGS = {"signal": Setting(d=D, k=K), "gaussian": Setting(d=D, k=K, data="gaussian", sigma=1.0)}
TITLES = {
    "one-pass": "one pass, known batches",
    "shuffle": "shuffled",
    "allocation": "random allocation",
    "reuse": "all records in every step",
    "power": "the same, power steps",
}


def compared() -> list[dict[str, Any]]:
    """n times the noise of every way, or why there is none."""
    lines = []
    for records in SIZES:
        for count in dict.fromkeys((10, K * steps(D), 100, 1000, records)):
            if count <= records:
                message(f"noise of n = {records}, T = {count}")
                found: dict[str, Any] = {way: _scaled(way, records, count) for way in WAYS}
                lines.append({"n": records, "T": count} | found)
    return lines


def _scaled(way: Any, records: int, count: int) -> float | str:
    try:
        return records * mean_stddev(way, COMPARED, records, count)
    except RefusedError:
        return "refused"


def measured(trials: int) -> list[dict[str, Any]]:
    """Mean zeta of every way, with the same public parameters: radius, rate, steps of a round."""
    lines = []
    for data, setting in SETTINGS.items():
        for records in SIZES[1:]:
            found: dict[str, list[float]] = {way: [] for way in TITLES}
            for seed in range(FIRST_SEED, FIRST_SEED + trials):
                message(f"errors on {data}, n = {records}, seed {seed}")
                stream = replace(setting, n=records).stream(seed)
                for way in TITLES:
                    found[way].append(stream.zeta(RUNS[way](stream, seed)))
            lines.append({"data": data, "n": records, **{way: fmean(zetas) for way, zetas in found.items()}})
    return lines


def one_pass(stream: MatrixStream, seed: int) -> Block:
    return black_box_pca(_ojas(stream, seed), stream, seed)


def shuffled(stream: MatrixStream, seed: int) -> Block:
    """Records are independent: any order is a uniform one. B = 1, or nothing is gained; the rate of the paper."""
    one = replace(_ojas(stream, seed), batch=1, rates=(OJAS_RATE,) * K, noise="shuffle", shuffled=True)
    return black_box_pca(one, stream, seed)


def reuse(stream: MatrixStream, seed: int) -> Block:
    return black_box_pca(replace(_ojas(stream, seed), batch=0, full_steps=steps(D), noise="reuse"), stream, seed)


def power(stream: MatrixStream, seed: int) -> Block:
    oracle = PowerOracle(
        records=stream.n,
        target_rank=K,
        steps=steps(D),
        radius=largest_image(stream),
        budget=MEASURED,
        relation=RELATION,
        seed=seed,
    )
    return black_box_pca(oracle, stream, seed)


def allocated(stream: MatrixStream, seed: int) -> Block:
    """Every record in one step of all rounds, drawn in memory: a simulation of what no store here can do in secret."""
    oracle, noise = _ojas(stream, seed), SimulatedNoise(seed)
    own = generator(seed, "allocation").integers(oracle.releases, size=stream.n)
    deflation = Deflation(oracle)
    state = deflation.init(stream.d)
    while not deflation.finished(state):
        query = replace(deflation.query(state), rows=None)
        assert isinstance(query.mechanism, ClippedMean)
        query = replace(query, mechanism=replace(query.mechanism, multiplier=_allocation(oracle.releases)))
        total, first = np.zeros(stream.d, np.int64), 0
        for block in images(query, stream):
            here = own[first : first + len(block)] == state.answers
            total, first = total + query.mechanism.summary(block[here], query.centre), first + len(block)
        state = deflation.update(state, released(query, total, noise))
    return state.found


RUNS: dict[str, Callable[[MatrixStream, int], Block]] = {
    "one-pass": one_pass,
    "shuffle": shuffled,
    "allocation": allocated,
    "reuse": reuse,
    "power": power,
}


def _ojas(stream: MatrixStream, seed: int) -> DPOjas:
    return DPOjas(
        records=stream.n,
        target_rank=K,
        batch=stream.n // K // steps(D),
        rates=(RATE,) * K,
        seed=seed,
        budget=MEASURED,
        relation=RELATION,
        radius=largest_image(stream),
    )


@lru_cache
def _allocation(count: int) -> float:
    return allocation_stddev(MEASURED, count)


def tables(found: dict[str, Any]) -> dict[str, Rows]:
    """The two of the page."""
    noise = [["T", *(TITLES[way] for way in WAYS)]]
    for line in (line for line in found["noise"] if line["n"] == SHOWN):
        cells = [line[way] if isinstance(line[way], str) else f"{line[way]:,.3g}" for way in WAYS]
        noise.append([f"{line['T']:,}", *cells])
    errors = [["data", "n", *TITLES.values()]]
    for line in found["zeta"]:
        errors.append([line["data"], f"{line['n']:,}", *(f"{line[way]:.2g}" for way in TITLES)])
    return {"allocation noise": noise, "allocation zeta": errors}


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, keep, and lay into the page."""
    from benchmarks.kdppca_page import PAGE, write
    from benchmarks.paper_page import kept

    parser = argparse.ArgumentParser(prog="python -m benchmarks.kdppca_allocation", description=__doc__)
    parser.add_argument("--trials", type=int, default=QUICK_TRIALS)
    asked = parser.parse_args(argv)
    keep(NAME, {"noise": compared(), "zeta": measured(asked.trials), "trials": asked.trials})
    write(tables(kept(NAME)), PAGE)


if __name__ == "__main__":
    main()
