"""Predict the steps of a run by simulating its algorithm and stopping rule on a diagonal matrix.

A Gaussian start looks alike in every orthonormal basis. In that of the eigenvectors the operator is diagonal, so a run
on the diagonal matrix of its eigenvalues takes as many steps, up to the luck of the start, and costs milliseconds. What
no closed formula follows (restarts, pairs that are closed, the change of precision, dimensions that run out) happens
as in the run. A prediction is a promise: the start is an unlucky one, and the residual has to fall below ``tol``.

:func:`rehearse_releases` does the same for a private run, whose number of products is fixed and whose noise is in each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from npmdask.algorithms import Algorithm, Result
from npmdask.algorithms.stopping import ResidualRule, StepView
from npmdask.numerics.random import generator
from npmdask.numerics.subspaces import Block, orth
from npmdask.runs.stopping_rules import LowRankRule
from npmdask.theory.power import ZERO

# Measured on 400 random planted problems (decision 37): one typical start and tol itself promise too little in 16 %.
DRAWS, UNLUCKY = 40, 4  # of 40 starts the one that holds fourth least of the wanted vectors: nine of ten hold more
SPARE = 3.0  # tol is divided by it: entries beyond the wanted ones differ from start to start by such a factor
LOW_RANK_SPARE = 1.5  # and low_rank_tol by so much: 4 % promise too little, without it 7 %
MOST_SPARE = 1.5  # that may not cost more than half of the steps: at the floor of rounding it would never end
LEADING = 8  # times p eigenvalues are kept one by one (twice what Krylov holds), and
THINNED = 8  # times p represent all the others, which are far from the wanted ones
FEWEST = 100  # of each, whatever p is
ROUNDING = float(np.finfo(np.float32).eps)  # of a float32 product, over the largest value (1): 0.05 to 3.5 found
TINY = float(np.finfo(np.float64).tiny)
FLOPS = 2e10  # of a rehearsal: two seconds of one slow core


@dataclass(frozen=True, kw_only=True)
class SimulatedRun:
    """``steps`` that suffice nine times in ten and more; ``reached``: False if the rule gave up before ``tol``.

    ``residual``: the worst relative one at the end of the rehearsal; under noise, where it falls no more, its plateau.
    """

    steps: int
    reached: bool
    residual: float


def simulate_run(
    eigenvalues: np.ndarray,
    algorithm: Algorithm[Any],
    rule: ResidualRule,
    *,
    noise_stddev: float = 0.0,
    flops: float = FLOPS,
    locked: int = 0,
) -> SimulatedRun | None:
    """Steps until ``rule`` ends a run of ``algorithm`` on an operator of these ``eigenvalues``; None: too dear.

    Parameters
    ----------
    eigenvalues : of the operator, in any order, with their signs; all d of them, or those that are not negligible.
    algorithm : PowerMethod or BlockKrylov, as the run has it (``target_rank`` k, ``iteration_rank`` p).
    rule : of the run; at most its ``max_steps`` are rehearsed.
    noise_stddev : of Gaussian noise on every entry of a product, in the units of the eigenvalues.
    flops : what it may cost, about; the same for all machines, so that a prediction does not depend on a clock.
    locked : how many leading pairs are known and locked (deflation); ``target_rank`` further ones are wanted.
    """
    if getattr(algorithm, "random_columns", 0):  # of a warm start: what is rehearsed begins at random
        algorithm = replace(algorithm, random_columns=0)  # type: ignore[type-var]
    k, p = algorithm.target_rank, algorithm.iteration_rank
    values = np.asarray(eigenvalues, np.float64)
    values = values[np.argsort(-np.abs(values), kind="stable")]
    rank = int(np.count_nonzero(np.abs(values) > ZERO * np.abs(values).max(initial=0.0)))
    if rank <= p + locked and not noise_stddev:
        return SimulatedRun(steps=2, reached=True, residual=0.0)  # the second product has seen all that there is
    largest = max(float(np.abs(values[0])), TINY)
    values, counts = thinned(values / largest, p + locked)  # squares of values of any scale stay inside float64
    noise = noise_stddev / largest * np.sqrt(counts)[:, None]
    start, known = unlucky_start(counts[locked:], k, p), _locked(values, locked)
    start = np.concatenate([np.zeros((locked, p)), start])
    state = algorithm.init(len(values), rng=generator(0, "rehearsal"), locked=known, start=start)
    rule = replace(rule, noise_stddev=rule.noise_stddev / largest)
    spare = replace(rule, tol=rule.tol / SPARE)
    if isinstance(spare, LowRankRule):
        spare = replace(spare, low_rank_tol=spare.low_rank_tol / LOW_RANK_SPARE)
    run = play(algorithm, state, values, rule, spare=spare, noise=noise, flops=flops)
    if run is None:
        return None
    worst = float(rule.relative(run.views[-1]).max(initial=0.0))
    return SimulatedRun(steps=len(run.views), reached=run.converged, residual=worst)


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """A run on a diagonal matrix: its last state, its steps, what is left of the ``flops``."""

    state: Any
    views: list[StepView]
    converged: bool
    flops: float


def play(
    algorithm: Algorithm[Any],
    state: Any,
    values: np.ndarray,
    rule: ResidualRule,
    *,
    spare: ResidualRule,
    noise: np.ndarray,
    flops: float,
) -> Simulation | None:
    """Steps on the diagonal matrix of ``values`` until ``rule`` ends them, and then ``spare``; None if too dear.

    ``noise``: stddev of every row of a product.
    """
    wide = algorithm.iteration_rank + state.locked_vectors.shape[1]
    work = algorithm.state_blocks * len(values) * wide * algorithm.iteration_rank * 2  # QR, Ritz vectors and products
    views, outcome, most = list[StepView](), None, rule.max_steps
    while len(views) < most:
        flops -= work
        if flops < 0:
            return None
        state, view = _step(algorithm, state, values, noise)
        if isinstance(rule, LowRankRule):
            view = rule.rehearsed(algorithm, state, view)
        views.append(view)
        if outcome is None:
            outcome = rule(views)
            if outcome is not None:
                most = min(most, view.step if noise.any() else int(MOST_SPARE * view.step))
        if outcome is not None and (spare is rule or spare(views) is not None):
            break
    return Simulation(state=state, views=views, converged=outcome is not None and outcome.answered, flops=flops)


def _locked(values: np.ndarray, count: int) -> Result | None:
    """The first ``count`` pairs of the diagonal matrix, as a finished run would have left them."""
    if not count:
        return None
    vectors = np.eye(len(values), count)
    return Result(
        values=values[:count], vectors=vectors, products=vectors * values[:count], residual_norms=np.zeros(count)
    )


def _step(algorithm: Algorithm[Any], state: Any, values: np.ndarray, noise: np.ndarray) -> tuple[Any, StepView]:
    """A step without data: the product with a diagonal matrix, in the dtype that is asked for, and noise."""
    block, rounded = algorithm.query(state).block, algorithm.query(state).rounded
    product = values[:, None] * block.astype(np.float64)
    if (
        block.dtype == np.float32 or rounded
    ):  # a dense product is rounded relative to the largest eigenvalue, not entry by entry
        error = generator(0, "rehearsal", "rounding", state.step).standard_normal(block.shape)
        product += ROUNDING / len(values) ** 0.5 * error
    if noise.any():
        product += noise * generator(0, "rehearsal", "noise", state.step).standard_normal(block.shape)
    if rounded:
        product = np.concatenate([product, block], axis=1)
    state, info = algorithm.update(state, product)
    view = StepView(
        step=state.step,
        ritz_values=info.ritz_values,
        residual_norms=info.residual_norms,
        precision=info.precision,
        missed=info.missed,
    )
    return state, view


def thinned(values: np.ndarray, p: int) -> tuple[np.ndarray, np.ndarray]:
    """Values of falling size, those far behind by few of them, and how many each represents.

    The leading ones are kept. Of the others the largest of every cell is, cells growing in proportion to the index: a
    bulk of a million eigenvalues is smooth, and its largest make no promise that is too short.
    """
    lead, few = max(FEWEST, LEADING * p), max(FEWEST, THINNED * p)
    if len(values) <= lead + few:
        return values, np.ones(len(values))
    edges = np.unique(np.geomspace(lead, len(values), few + 1).round().astype(int))
    counts = np.concatenate([np.ones(lead), np.diff(edges)])
    return values[np.concatenate([np.arange(lead), edges[:-1]])], counts


def unlucky_start(counts: np.ndarray, k: int, p: int) -> Block:
    """An orthonormal start (d x p) that holds less of the k leading coordinates than nine of ten.

    ``counts``: coordinates that each row represents: their sum of squares is that many times as large.
    """
    rng = generator(0, "rehearsal", "start")
    leading = [rng.standard_normal((k, p)) for _ in range(DRAWS)]
    held = [np.linalg.eigvalsh(block @ block.T)[0] for block in leading]  # the least singular value, squared
    chosen = leading[int(np.argsort(held)[UNLUCKY - 1])]
    others = rng.standard_normal((len(counts) - k, p)) * np.sqrt(counts[k:, None])
    return orth(np.concatenate([chosen, others]), rng)


def rehearse_releases(
    algorithm: Any,
    sizes: np.ndarray,
    shape: tuple[int, int],
    noise: Callable[[tuple[int, int], float | None], np.ndarray],
    rng: np.random.Generator,
    lost: Callable[[Block, float], np.ndarray] | None = None,
) -> Block:
    """The vectors that a private run finds on the diagonal matrix of ``sizes``, with noise in every product.

    Parameters
    ----------
    algorithm : a private power method, of a matrix of this ``shape`` or, square, of its other kinds.
    noise : of a product of a shape, whose images are clipped to a norm or not.
    rng : of the start.
    lost : what clipping the images of records to a norm takes from a product with a block, where it is simulated.
    """
    state = algorithm.init(shape[1], rng=rng)
    for _ in range(algorithm.releases):
        query = algorithm.query(state)
        product = np.zeros((shape[1] if query.transposed else shape[0], query.block.shape[1]))
        product[: len(sizes)] = sizes[:, None] * query.block[: len(sizes)]
        if lost is not None and query.image_norm is not None:
            product -= lost(query.block, query.image_norm)
        state, _ = algorithm.update(state, product + noise(product.shape, query.image_norm))
    vectors: Block = algorithm.finalize(state).vectors
    return vectors
