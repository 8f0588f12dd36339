"""Noise of private contractions over the formula of Wang and Anandkumar (2016), for one and the same guarantee.

Both are measured: noise that is drawn and added to nothing, over the standard deviation that the paper prints for the
same K = k L (R + 1) = 2000 releases, epsilon and delta.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.registry import Context, Measured, Row
from npmdask.accounting import Budget, mu_for
from npmdask.accounting.published_formulas import paper_charge
from npmdask.core.numerics.random import Rounding
from npmdask.privacy.mechanisms import Entropy, TensorGaussian
from npmdask.privacy.neighbors import TensorRelation, make_relation

D, K = 200, 2000
COLUMNS = (1, 8)  # L: of a single column nothing is shared
BUDGET = Budget(1.0, 1e-6)
CLIP = 1000.0  # of entries that may change by 1: the bound of the relation itself counts
GRID = 2.0**-20
DRAWS = 500  # of each score
OFF = 0.2  # of the noise that is drawn, from what is said; with 100 of them 0.07 is one standard deviation
PAPER = "tensor_entry"  # the neighbours of the paper's Definition 4.2; the other relation is beside it


def measure(context: Context) -> Measured:
    """The worst column of blocks of random units, of the relation of the paper: alone, or together with others."""
    d, blocks = context.sized(50, D), context.sized(2, 8)
    entropy = Entropy.create(context.folder / "key" / "key")
    found = {
        f"{name}, {'scores' if scores else 'contractions'}, L = {columns}": _ratios(
            mechanism(name, scores, columns), d, blocks, entropy
        )
        for name in (PAPER, "tensor_orbit")
        for scores in (False, True)
        for columns in COLUMNS
    }
    mine = {name: ratio["to_paper"] for name, ratio in found.items() if name.startswith(f"{PAPER}, contractions")}
    guarantees = _guarantees()
    details: dict[str, Any] = {"d": d, "K": K, "epsilon": BUDGET.epsilon, "delta": BUDGET.delta}
    details |= {"ratios": found, "guarantees": guarantees}
    off = [name for name, ratio in found.items() if abs(ratio["drawn_to_said"] - 1) > OFF]
    failures = [f"{name}: the noise that is drawn is not what is said of it" for name in off]
    failures += [] if guarantees["ours_mu"] <= guarantees["mu"] * (1 + 1e-9) else ["more is charged than granted"]
    return Measured(max(mine.values()), details, "", tuple(failures))


def mechanism(name: str, scores: bool, columns: int) -> TensorGaussian:
    """Of a run of K releases, ``columns`` at a time."""
    relation = make_relation(name, clip_norm=CLIP)
    assert isinstance(relation, TensorRelation)
    return TensorGaussian(
        relation=relation,
        budget=BUDGET,
        columns=columns,
        steps=K // columns,
        rounding=Rounding(grid=GRID),
        scores=scores,
    )


def _ratios(private: TensorGaussian, d: int, blocks: int, entropy: Entropy) -> dict[str, float]:
    """Noise over the paper's for the worst column, and noise that was drawn over what is said of it (root mean square,
    of scores over many draws)."""
    said, drawn = [], []
    zeros = np.zeros((DRAWS if private.scores else d, private.columns), np.int64)
    for number in range(blocks):
        block = np.random.default_rng(number).standard_normal((d, private.columns))
        block /= np.linalg.norm(block, axis=0)
        noise = private.release(zeros, block=block, entropy=entropy, step=number + 1)
        said.append(private.to_paper(block, scores=private.scores))
        drawn.append(np.mean((noise / private.noise_stddevs(block)) ** 2))
    return {"to_paper": max(said), "drawn_to_said": float(np.sqrt(np.mean(drawn)))}


def _guarantees() -> dict[str, Any]:
    """What both really cost: the paper's noise is charged far less than it claims, and buys nothing by it."""
    exact = mechanism(PAPER, False, COLUMNS[-1]).charge()
    paper = paper_charge(PAPER, 1, K, BUDGET)
    return {
        "mu": mu_for(BUDGET.epsilon, BUDGET.delta),
        "ours_mu": float(np.sqrt(exact.mu_squared)),
        "ours_epsilon": exact.epsilon_at(BUDGET.delta),
        "paper_epsilon": paper.epsilon_at(BUDGET.delta),
    }


ROWS = (
    Row(
        name="tensor-private-noise",
        what="noise on a contraction / the paper's formula, both (1, 1e-6)-private, K = 2000, d = 200",
        target=0.15,
        better="lower",
        run=measure,
    ),
)
