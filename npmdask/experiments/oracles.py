"""BlackBoxPCA (Duengler and Sanyal 2025, Algorithm 4) on a stream of matrices, and its oracles with their parameters.

The oracles are k-DP-PCA (Algorithm 2) and k-DP-Ojas (Algorithm 3) in other layouts than are printed (those are in
:mod:`~npmdask.experiments.as_printed`), Oja's method (Algorithm 5) and what improves on them.
What is "public" is what appendix G gives to its baselines: n, d, k, the true eigenvalues and sigma. Noise is that of a
seeded generator: right in size, for experiments only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from npmdask.accounting import Budget, gaussian_charge
from npmdask.core.numerics.subspaces import Block, project_out
from npmdask.dp_pca.base import BatchQuery, Oracle, SimulatedNoise, State, released, require_by_index, require_relation
from npmdask.dp_pca.deflation import Deflation
from npmdask.dp_pca.exact_oracles import TightOracle
from npmdask.dp_pca.paper_oracles import DPOjas, ModifiedDPPCA, PlainOja
from npmdask.dp_pca.private_mean import histogram_epsilon
from npmdask.experiments.as_printed import FAIL_PROB, clip_trace, paper_rates
from npmdask.experiments.matrix_streams import ROWS, MatrixStream

PART = 2**16  # numbers of images that are worked on at once, so that they stay in the processor's cache
BATCHES = 20  # of k-DP-PCA with large ones, in all rounds together
OJAS_RATE = (1.0, 1.0)  # eta_j = 1 / (1 + j), appendix G


def black_box_pca(oracle: Oracle[State], stream: MatrixStream, seed: int) -> Block:
    """
    Find k directions, one a round, with an oracle that finds one (BlackBoxPCA, Algorithm 4).

    Parameters
    ----------
    oracle : Oracle
        What finds a direction of P A_i P in a round; :func:`k_dp_ojas` and others make one, and so can you: any
        :class:`npmdask.dp_pca.base.Oracle`.
    stream : MatrixStream
        The matrices A_i; no d x d matrix is formed.
    seed : int
        Of the noise, which is simulated: right in size, private in no way.

    Returns
    -------
    array, shape (d, k)
        The basis U, orthonormal, in the order in which its columns were found.

    Examples
    --------
    >>> from npmdask.experiments import black_box_pca, plain_oja, signal_and_noise
    >>> stream = signal_and_noise(4000, 10, [10.0, 5.0], sigma=0.1, seed=0)
    >>> basis = black_box_pca(plain_oja(stream, 2, seed=0), stream, seed=0)
    >>> basis.shape, stream.zeta(basis) < 0.05
    ((10, 2), True)
    """
    deflation, noise = Deflation(oracle), SimulatedNoise(seed)
    state = deflation.init(stream.d)
    while not deflation.finished(state):
        query = deflation.query(state)
        state = deflation.update(state, released(query, batch_summary(query, stream), noise))
    return state.found


def batch_summary(query: BatchQuery, stream: MatrixStream) -> np.ndarray:
    """Summarize a batch: the sum over blocks, or of the whole batch at once where summaries do not add up."""
    mechanism = query.mechanism
    if not mechanism.additive:
        return mechanism.summary(np.concatenate(list(images(query, stream))), query.centre)
    parts = (mechanism.summary(block, query.centre) for block in images(query, stream))
    return np.asarray(sum(parts, start=next(parts)))


def images(query: BatchQuery, stream: MatrixStream) -> Iterator[np.ndarray]:
    """Yield P A_i P w of the records of a query, a part of a block of the stream at a time."""
    vector, rows = project_out(query.vector, query.found), query.indices(stream.n)
    most, start = max(PART // stream.d // 64, 1) * 64, rows.start
    while start < rows.stop:
        stop = min(start + most, (start // ROWS + 1) * ROWS, rows.stop)
        yield project_out(stream.batch(start, stop).images(vector), query.found)
        start = stop


def plain_oja(stream: MatrixStream, k: int, seed: int) -> PlainOja:
    """
    Make Oja's method (Algorithm 5): k-DP-PCA without noise, with its batches and its rates. Not private.

    Parameters
    ----------
    stream : MatrixStream
        The data: batches have floor(sqrt(n)) matrices, rates come from the true eigenvalues.
    k : int
        How many directions: rounds of floor(n / k) matrices.
    seed : int
        Of the public random starts.

    Returns
    -------
    PlainOja
        The oracle for :func:`black_box_pca`; it refuses to be charged to a budget.

    Raises
    ------
    BadInputError
        Too few matrices for k rounds of a batch each.

    Examples
    --------
    >>> from npmdask.experiments import plain_oja, signal_and_noise
    >>> oracle = plain_oja(signal_and_noise(4000, 10, [10.0, 5.0], sigma=0.1, seed=0), 2, seed=0)
    >>> oracle.batch, oracle.steps, oracle.promise().remark
    (63, 31, 'no noise: not private')
    """
    rates = paper_rates(stream, k)
    return PlainOja(records=stream.n, target_rank=k, batch=math.isqrt(stream.n), rates=rates, seed=seed)


def _common_options(stream: MatrixStream, k: int, budget: Budget, relation: str, seed: int) -> dict[str, Any]:
    by_index = require_by_index(relation)
    return {"records": stream.n, "target_rank": k, "seed": seed, "budget": budget, "relation": by_index}


def k_dp_pca_large(stream: MatrixStream, k: int, budget: Budget, relation: str, seed: int) -> ModifiedDPPCA:
    """
    Make ModifiedDP-PCA (Algorithm 2) with a fairer layout: batches of n / 20, each half used once, the whole budget.

    C_1 = 3, which the paper does not give: hardly any bin of PrivRange could survive with 1. It keeps the budget
    (checked by exact accounting); with :func:`black_box_pca` noise is simulated.

    Parameters
    ----------
    stream : MatrixStream
        The data; rates come from the true eigenvalues.
    k : int
        How many directions: rounds of floor(n / k) matrices.
    budget : Budget
        Of the run, as batches and halves are disjoint; delta > 0.
    relation : {"record_replace", "record_zero_out"}
        What is protected; the number of records is public.
    seed : int
        Of the public random starts.

    Returns
    -------
    ModifiedDPPCA
        The oracle for :func:`black_box_pca`.

    Raises
    ------
    BadInputError
        Too few matrices for k rounds of a batch of two or more, delta = 0, or an unknown relation.
    RefusedError
        Adding and removing records: batches are cut by index.

    Examples
    --------
    >>> from npmdask.accounting import Budget
    >>> from npmdask.experiments import k_dp_pca_large, signal_and_noise
    >>> stream = signal_and_noise(4000, 20, [10.0, 5.0], sigma=0.1, seed=0)
    >>> oracle = k_dp_pca_large(stream, 2, Budget(1.0, 0.01), "record_replace", seed=0)
    >>> oracle.batch, oracle.steps, oracle.releases, round(oracle.promise().epsilon, 2)
    (200, 10, 40, 1.0)
    """
    return ModifiedDPPCA(
        batch=max(stream.n // BATCHES, 2),
        rates=paper_rates(stream, k),
        fail_prob=FAIL_PROB,
        halves="disjoint",
        **_common_options(stream, k, budget, relation, seed),
    )


def k_dp_ojas(stream: MatrixStream, k: int, budget: Budget, relation: str, seed: int) -> DPOjas:
    """
    Make DP-Ojas (Algorithm 3) with noise that is exact for one pass, ceil(log2(d)) batches a round.

    Images are clipped to beta^2 of :func:`clip_trace`. More batches mean more noise in each: B = 1, as listed, drowns.
    Private by exact accounting; with :func:`black_box_pca` noise is simulated.

    Parameters
    ----------
    stream : MatrixStream
        The data; their true lambda_1 and sigma give the bound of images.
    k : int
        How many directions: rounds of floor(n / k) matrices.
    budget : Budget
        Of the run, as batches are disjoint; delta > 0.
    relation : {"record_replace", "record_zero_out"}
        What is protected; the number of records is public.
    seed : int
        Of the public random starts.

    Returns
    -------
    DPOjas
        The oracle for :func:`black_box_pca`.

    Raises
    ------
    BadInputError
        Too few matrices for the steps of k rounds, delta = 0, or an unknown relation.
    RefusedError
        Adding and removing records: batches are cut by index.

    Examples
    --------
    >>> from npmdask.accounting import Budget
    >>> from npmdask.experiments import k_dp_ojas, signal_and_noise
    >>> stream = signal_and_noise(4000, 20, [10.0, 5.0], sigma=0.1, seed=0)
    >>> oracle = k_dp_ojas(stream, 2, Budget(1.0, 0.01), "record_replace", seed=0)
    >>> oracle.batch, oracle.steps, round(oracle.promise().epsilon, 2)
    (400, 5, 1.0)
    """
    return DPOjas(
        batch=stream.n // k // steps(stream.d),
        rates=(OJAS_RATE,) * k,
        radius=largest_image(stream),
        **_common_options(stream, k, budget, relation, seed),
    )


def tight(stream: MatrixStream, k: int, budget: Budget, relation: str, seed: int) -> TightOracle:
    """
    Make our oracle, which asks all records in every step, ceil(log2(d)) steps a round.

    Nothing but the bound of the images comes from the eigenvalues. Private by exact accounting; with
    :func:`black_box_pca` noise is simulated.

    Parameters
    ----------
    stream : MatrixStream
        The data; their true lambda_1 and sigma give the bound of images.
    k : int
        How many directions: rounds.
    budget : Budget
        Of all releases of the run together; delta > 0.
    relation : {"record_replace", "record_zero_out", "record_add_remove"}
        What is protected; with the last, n is the public guess that sums are divided by.
    seed : int
        Of the public random starts.

    Returns
    -------
    TightOracle
        The oracle for :func:`black_box_pca`.

    Raises
    ------
    BadInputError
        Fewer matrices than steps, delta = 0, or an unknown relation.

    Examples
    --------
    >>> from npmdask.accounting import Budget
    >>> from npmdask.experiments import black_box_pca, signal_and_noise, tight
    >>> stream = signal_and_noise(1000, 10, [10.0, 5.0], sigma=0.1, seed=0)
    >>> oracle = tight(stream, 2, Budget(1.0, 0.01), "record_add_remove", seed=0)
    >>> oracle.releases, round(oracle.promise().epsilon, 2), stream.zeta(black_box_pca(oracle, stream, 0)) < 0.01
    (16, 1.0, True)
    """
    return TightOracle(
        records=stream.n,
        target_rank=k,
        steps=steps(stream.d),
        budget=budget,
        largest=largest_image(stream),
        relation=require_relation(relation),
        seed=seed,
    )


def tight_matched(stream: MatrixStream, k: int, budget: Budget, relation: str, seed: int) -> TightOracle:
    """
    Make :func:`tight` with the part of the budget that k-DP-PCA as printed spends, as its proof adds the parts up.

    By exact accounting k-DP-PCA spends less still. This one is private by exact accounting; with :func:`black_box_pca`
    noise is simulated.

    Parameters
    ----------
    stream : MatrixStream
        The data; their true lambda_1 and sigma give the bound of images.
    k : int
        How many directions: rounds.
    budget : Budget
        What k-DP-PCA is given; delta > 0.
    relation : {"record_replace", "record_zero_out", "record_add_remove"}
        What is protected; with the last, n is the public guess that sums are divided by.
    seed : int
        Of the public random starts.

    Returns
    -------
    TightOracle
        The oracle for :func:`black_box_pca`, with a smaller epsilon than that of ``budget``.

    Raises
    ------
    BadInputError
        Fewer matrices than steps, delta = 0, or an unknown relation.

    Examples
    --------
    >>> from npmdask.accounting import Budget
    >>> from npmdask.experiments import signal_and_noise, tight_matched
    >>> stream = signal_and_noise(4000, 20, [10.0, 5.0], sigma=0.1, seed=0)
    >>> oracle = tight_matched(stream, 2, Budget(1.0, 0.01), "record_replace", 0)
    >>> round(oracle.charge().epsilon_at(0.01), 2)
    0.73
    """
    return tight(stream, k, Budget(epsilon_of_k_dp_pca(budget, stream.d), budget.delta), relation, seed)


def epsilon_of_k_dp_pca(budget: Budget, d: int) -> float:
    """Return what can be proved of k-DP-PCA as printed, at the budget's delta.

    Its range and its mean have half of the budget each.
    """
    return budget.epsilon / 2 + proven_mean_cost(budget.epsilon / 2, budget.delta / 2, d)[0]


def proven_mean_cost(epsilon: float, delta: float, d: int) -> tuple[float, float]:
    """Return the (epsilon, delta) of PrivMean, replacing a record, as its proof adds the parts up.

    By exact accounting it has less: d histograms of (e, delta / (4 d)) by advanced composition with delta'' = delta / 4
    (Dwork, Rothblum and Vadhan 2010); the Gaussian by exact accounting, at the delta / 2 that is left.
    """
    share = histogram_epsilon(epsilon, delta, d)
    histograms = share * math.sqrt(2 * d * math.log(4 / delta)) + d * share * math.expm1(share)
    multiplier = 2 * math.sqrt(2 * math.log(2.5 / delta)) / epsilon  # stddev / (2 radius sqrt(d) / count)
    return histograms + gaussian_charge(multiplier, 1).epsilon_at(delta / 2), delta


def steps(d: int) -> int:
    """Return the steps of a round, ceil(log2(d)).

    A random start has a tangent of sqrt(d); halved in every step it ends at 1 / sqrt(d). A rule of public numbers
    alone, written down before the seeds of the figures were used.
    """
    return math.ceil(math.log2(d))


def largest_image(stream: MatrixStream) -> float:
    """Return beta^2 of the baselines, which bounds the trace of A_i and so every |A_i w|."""
    return clip_trace(stream) ** 2
