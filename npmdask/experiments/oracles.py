"""BlackBoxPCA (Duengler and Sanyal 2025, Algorithm 4) on a stream of matrices, and its oracles with their parameters.

The oracles are k-DP-PCA (Algorithm 2), k-DP-Ojas (Algorithm 3), Oja's method (Algorithm 5) and what improves on them.
What is "public" is what appendix G gives to its baselines: n, d, k, the true eigenvalues and sigma. Noise is that of a
seeded generator: right in size, for experiments only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from npmdask.accounting import Budget, gaussian_charge
from npmdask.experiments.baselines import FAIL_PROB, clip_trace
from npmdask.experiments.matrix_streams import ROWS, MatrixStream
from npmdask.numerics.subspaces import Block, project_out
from npmdask.privacy.dp_pca.base import BatchQuery, Oracle, SimulatedNoise, State, released
from npmdask.privacy.dp_pca.deflation import Deflation
from npmdask.privacy.dp_pca.exact_oracle import TightOracle
from npmdask.privacy.dp_pca.neighbors import require_by_index, require_relation
from npmdask.privacy.dp_pca.paper_oracles import DPOjas, ModifiedDPPCA, PlainOja
from npmdask.privacy.dp_pca.private_mean import histogram_epsilon

PART = 2**16  # numbers of images that are worked on at once, so that they stay in the processor's cache
BATCHES = 20  # of k-DP-PCA with large ones, in all rounds together
OJAS_RATE = (1.0, 1.0)  # eta_j = 1 / (1 + j), appendix G


def black_box_pca(oracle: Oracle[State], stream: MatrixStream, seed: int) -> Block:
    """Find k directions, one a round, with an oracle that finds one (BlackBoxPCA, Algorithm 4).

    Parameters
    ----------
    oracle : what finds a direction of P A_i P in a round; :func:`k_dp_pca` and others make one, and so can you: any
        :class:`npmdask.privacy.dp_pca.base.Oracle`.
    stream : the matrices A_i; no d x d matrix is formed.
    seed : of the noise, which is simulated: right in size, private in no way.

    Returns
    -------
    U (d x k), orthonormal, in the order in which its columns were found.

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
    """Make Oja's method (Algorithm 5): k-DP-PCA without noise, with its batches and its rates."""
    rates = paper_rates(stream, k)
    return PlainOja(records=stream.n, target_rank=k, batch=math.isqrt(stream.n), rates=rates, seed=seed)


def k_dp_pca(stream: MatrixStream, k: int, budget: Budget, relation: str, seed: int) -> ModifiedDPPCA:
    """Make ModifiedDP-PCA (Algorithm 2) as printed: batches of floor(sqrt(n)), of which one half is used twice.

    The other half is never used. C_1 = 3, which the paper does not give: hardly any bin of PrivRange could survive
    with 1.
    """
    return ModifiedDPPCA(
        records=stream.n,
        target_rank=k,
        batch=math.isqrt(stream.n),
        rates=paper_rates(stream, k),
        seed=seed,
        budget=budget,
        relation=require_by_index(relation),
        fail_prob=FAIL_PROB,
    )


def k_dp_pca_large(stream: MatrixStream, k: int, budget: Budget, relation: str, seed: int) -> ModifiedDPPCA:
    """Make :func:`k_dp_pca` with a fairer layout: batches of n / 20, each half used once, with the whole budget."""
    printed = k_dp_pca(stream, k, budget, relation, seed)
    return replace(printed, batch=max(stream.n // BATCHES, 2), halves="disjoint")


def paper_rates(stream: MatrixStream, k: int) -> tuple[tuple[float, float], ...]:
    """Return the rates of appendix G, from the true eigenvalues.

    Round i has 1 / (20 sigma lambda_i + (lambda_i - lambda_{i+1}) t / ln n) in step t.
    """
    values, sigma = stream.eigenvalues, math.sqrt(stream.floor)
    gaps = (values[:-1] - values[1:]) / math.log(stream.n)
    return tuple((float(20 * sigma * values[i]), float(gaps[i])) for i in range(k))


def k_dp_ojas(stream: MatrixStream, k: int, budget: Budget, relation: str, seed: int) -> DPOjas:
    """Make DP-Ojas (Algorithm 3) with noise that is exact for one pass, :func:`steps` batches a round.

    Images are clipped to :func:`largest_image`. More batches mean more noise in each: B = 1, as listed, drowns.
    """
    return DPOjas(
        records=stream.n,
        target_rank=k,
        batch=stream.n // k // steps(stream.d),
        rates=(OJAS_RATE,) * k,
        seed=seed,
        budget=budget,
        relation=require_by_index(relation),
        radius=largest_image(stream),
    )


def k_dp_ojas_as_printed(stream: MatrixStream, k: int, budget: Budget, relation: str, seed: int) -> DPOjas:
    """Make DP-Ojas (Algorithm 3) as printed. Not private: see its promise.

    alpha with C' = 1, beta = lambda_1 sqrt(d) (K gamma ln(n d / zeta) + 1) with C = K = a = 1, B = floor(sqrt(n)).
    """
    spread = stream.model.gamma * math.log(stream.n * stream.d / FAIL_PROB)
    return DPOjas(
        records=stream.n,
        target_rank=k,
        batch=math.isqrt(stream.n),
        rates=(OJAS_RATE,) * k,
        seed=seed,
        budget=budget,
        relation=require_by_index(relation),
        radius=float(stream.values[0]) * math.sqrt(stream.d) * (spread + 1),
        noise="paper",
    )


def tight(stream: MatrixStream, k: int, budget: Budget, relation: str, seed: int) -> TightOracle:
    """Make our oracle, which asks all records in every step.

    Nothing but the bound of the images comes from the eigenvalues.
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
    """Make :func:`tight` with what :func:`k_dp_pca` really spends of the budget."""
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
