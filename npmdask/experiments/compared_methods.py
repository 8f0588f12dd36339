"""The methods that the figures of Duengler and Sanyal 2025 compare, by name, each with what it promises.

A method is called as (stream, k, epsilon, delta, seed) and gives a basis (d x k). Noise is that of a seeded generator:
right in size, for experiments only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from npmdask.accounting import Budget
from npmdask.experiments.baselines import (
    ExactNoise,
    PaperNoise,
    clip_diagonal,
    clip_trace,
    clipped_sum,
    dp_gauss_1,
    dp_gauss_2,
    dp_gauss_2_not_private,
    dp_power,
    exact_noise,
    leading_eigenvectors,
)
from npmdask.experiments.matrix_streams import MatrixStream
from npmdask.experiments.oracles import (
    black_box_pca,
    k_dp_ojas,
    k_dp_ojas_as_printed,
    k_dp_pca,
    k_dp_pca_large,
    plain_oja,
    tight,
    tight_matched,
)
from npmdask.numerics.random import generator
from npmdask.numerics.subspaces import Block
from npmdask.privacy.dp_pca.base import Oracle
from npmdask.privacy.neighbors import make_relation
from npmdask.report.plots import BLUE, GREY, ORANGE

EPSILON, DELTA = 1.0, 0.01  # of all figures
Run = Callable[[MatrixStream, int, float, float, int], Block]
GREEN, PURPLE, BROWN, RED = "#1b7837", "#762a83", "#8c510a", "#b2182b"
NOT_PRIVATE, EXACT = "not private", "private (exact accounting)"
CHECKED = "private (the paper's accounting, checked)"
AS_PRINTED = "private for one record more or less (as printed)"
POWER_TARGET = 0.01  # of the sine, where the number of iterations of the power method comes from


@dataclass(frozen=True)
class Method:
    """
    A method of the figures: how it is called, what it promises, how it is drawn.

    Attributes
    ----------
    label : str
        Its name in legends.
    promise : str
        "not private", "private (exact accounting)", "private (the paper's accounting, checked)" or "private for one
        record more or less (as printed)".
    color : str
        Of its line, as matplotlib takes it.
    style : str
        Marker and line, as matplotlib takes them.
    run : callable
        Finds a basis (d x k) when called with (stream, k, epsilon, delta, seed).

    Examples
    --------
    >>> from npmdask.experiments import methods
    >>> known = methods("record_replace")
    >>> for name in ("dp-gauss-2", "dp-gauss-2-paper", "dp-power-paper"):
    ...     print(known[name].label, "|", known[name].promise)
    DP-Gauss-2 (propose-test-release) | private (exact accounting)
    DP-Gauss-2, as printed: NOT private | not private
    DP-Power-Method, as printed | private for one record more or less (as printed)
    """

    label: str
    promise: str
    color: str
    style: str
    run: Run


def methods(relation: str) -> dict[str, Method]:
    """
    Return every method that the figures compare, by name.

    Parameters
    ----------
    relation : {"record_replace", "record_zero_out", "record_add_remove"}
        What the sound ones protect. The last only where no batch is cut by index: with it, k-DP-PCA and k-DP-Ojas raise
        RefusedError when they are run.

    Returns
    -------
    dict of str to Method
        By name: "exact" and "oja" (references, not private), "dp-gauss-1", "dp-gauss-2", "dp-power" (sound, and with
        "-paper" as appendix G prints them), "k-dp-pca", "k-dp-ojas" and what improves on them. Their noise is that of a
        seeded generator: right in size, for experiments only.

    Examples
    --------
    >>> from npmdask.experiments import methods, signal_and_noise
    >>> stream = signal_and_noise(2000, 10, [10.0, 5.0], sigma=0.1, seed=0)
    >>> known = methods("record_replace")
    >>> known["dp-gauss-1"].promise
    'private (exact accounting)'
    >>> basis = known["exact"].run(stream, 2, 1.0, 0.01, 0)
    >>> basis.shape, stream.zeta(basis) < 1e-3
    ((10, 2), True)
    """
    return {**references(), **baselines(relation), **oracles(relation)}


def oracles(relation: str) -> dict[str, Method]:
    """k-DP-PCA, k-DP-Ojas and what improves on them, from npmdask.privacy.dp_pca."""

    def run(make: Callable[[MatrixStream, int, Budget, str, int], Oracle[Any]]) -> Run:
        def deflation(stream: MatrixStream, k: int, epsilon: float, delta: float, seed: int) -> Block:
            return black_box_pca(make(stream, k, Budget(epsilon, delta), relation, seed), stream, seed)

        return deflation

    return {
        "k-dp-pca": Method("k-DP-PCA, as printed", CHECKED, PURPLE, "D--", run(k_dp_pca)),
        "k-dp-pca-large": Method("k-DP-PCA, batches of n / 20", CHECKED, PURPLE, "D-", run(k_dp_pca_large)),
        "k-dp-ojas": Method("k-DP-Ojas, exact noise, large batches", EXACT, BROWN, "v-", run(k_dp_ojas)),
        "k-dp-ojas-paper": Method(
            "k-DP-Ojas, as printed: NOT private", NOT_PRIVATE, BROWN, "v--", run(k_dp_ojas_as_printed)
        ),
        "tight": Method("tight oracle (ours)", EXACT, RED, "*-", run(tight)),
        "tight-matched": Method("tight at the proven epsilon of k-DP-PCA", EXACT, RED, "*--", run(tight_matched)),
    }


def references() -> dict[str, Method]:
    """What is possible without privacy."""
    return {
        "exact": Method("exact PCA, not private", NOT_PRIVATE, GREY, "-", exact_pca),
        "oja": Method("deflated Oja, not private", NOT_PRIVATE, GREY, ":", deflated_oja),
    }


def baselines(relation: str) -> dict[str, Method]:
    """The paper's three, each sound and as it prints them."""

    def gauss_1(variant: str) -> Run:
        def run(stream: MatrixStream, k: int, epsilon: float, delta: float, seed: int) -> Block:
            made = make_relation(relation, clip_norm=clip_trace(stream))
            rng = generator(seed, "dp-gauss-1", variant)
            return dp_gauss_1(_total(stream), k, made, Budget(epsilon, delta), rng, variant=variant)

        return run

    def gauss_2(stream: MatrixStream, k: int, epsilon: float, delta: float, seed: int) -> Block:
        made = make_relation(relation, clip_norm=clip_trace(stream))
        return dp_gauss_2(_total(stream), k, made, Budget(epsilon, delta), generator(seed, "dp-gauss-2"))

    def power(stream: MatrixStream, k: int, epsilon: float, delta: float, seed: int) -> Block:
        beta, releases = clip_trace(stream), power_releases(stream, k)
        noise = exact_noise(beta, relation, Budget(epsilon, delta), releases)
        return _power(stream, k, releases, noise, seed, beta=beta)

    return {
        "dp-gauss-1": Method("DP-Gauss-1", EXACT, BLUE, "o-", gauss_1("tight")),
        "dp-gauss-1-paper": Method("DP-Gauss-1, as printed", AS_PRINTED, BLUE, "o--", gauss_1("paper")),
        "dp-gauss-2": Method("DP-Gauss-2 (propose-test-release)", EXACT, ORANGE, "s-", gauss_2),
        "dp-gauss-2-paper": Method(
            "DP-Gauss-2, as printed: NOT private", NOT_PRIVATE, ORANGE, "s--", gauss_2_not_private
        ),
        "dp-power": Method("DP-Power-Method, exact sensitivity", EXACT, GREEN, "^-", power),
        "dp-power-paper": Method("DP-Power-Method, as printed", AS_PRINTED, GREEN, "^--", power_as_printed),
    }


def gauss_2_not_private(stream: MatrixStream, k: int, epsilon: float, delta: float, seed: int) -> Block:
    """DP-Gauss-2 of appendix G."""
    rng = generator(seed, "dp-gauss-2-paper")
    return dp_gauss_2_not_private(_total(stream), k, clip_trace(stream), Budget(epsilon, delta), rng)


def power_as_printed(stream: MatrixStream, k: int, epsilon: float, delta: float, seed: int) -> Block:
    """DP-Power-Method of appendix G, with both clippings."""
    alpha, beta, releases = clip_diagonal(stream), clip_trace(stream), power_releases(stream, k)
    noise = PaperNoise(alpha=alpha, beta=beta, budget=Budget(epsilon, delta), releases=releases)
    return _power(stream, k, releases, noise, seed, beta=beta, alpha=alpha)


def _power(
    stream: MatrixStream,
    k: int,
    releases: int,
    noise: ExactNoise | PaperNoise,
    seed: int,
    *,
    beta: float,
    alpha: float = math.inf,
) -> Block:
    rng = generator(seed, "dp-power", type(noise).__name__)
    return dp_power(stream, k, 2 * k, releases, noise, rng, beta=beta, alpha=alpha)


def power_releases(stream: MatrixStream, k: int) -> int:
    """L, which the paper does not give, with p = 2 k: iterations of Hardt and Price's Theorem 2.3 to POWER_TARGET.

    From the true eigenvalues, as all that the paper gives to its baselines.
    """
    start = math.sqrt(stream.d) / (math.sqrt(2 * k) - math.sqrt(k - 1))
    ratio = (stream.floor / stream.values[-1]) ** 0.25
    return math.ceil(math.log(start / POWER_TARGET) / -math.log(max(POWER_TARGET, ratio)))


def _total(stream: MatrixStream) -> np.ndarray:
    """Both Gauss baselines clip to the same trace; where no matrix reaches it, that is the sum of all."""
    beta = clip_trace(stream)
    longest = max(float(batch.traces().max()) for batch in stream.batches())
    return _clipped_sum(stream, beta if longest > beta**2 else math.inf)


@lru_cache(maxsize=2)
def _clipped_sum(stream: MatrixStream, beta: float) -> np.ndarray:
    return clipped_sum(stream, beta)


def exact_pca(stream: MatrixStream, k: int, epsilon: float, delta: float, seed: int) -> Block:
    """The k leading eigenvectors of the sum of all matrices: where the data alone put every method."""
    return leading_eigenvectors(_clipped_sum(stream, math.inf), k)


def deflated_oja(stream: MatrixStream, k: int, epsilon: float, delta: float, seed: int) -> Block:
    """Oja's iteration (Algorithm 5) in k rounds (Algorithm 4)."""
    return black_box_pca(plain_oja(stream, k, seed), stream, seed)
