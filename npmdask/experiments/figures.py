"""The figures of Duengler and Sanyal 2025 (1 to 4): what each varies, over which grid, and the methods it draws."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from npmdask.accounting import Budget
from npmdask.core.numerics.domains import one_of
from npmdask.core.numerics.random import generator
from npmdask.core.numerics.subspaces import Block
from npmdask.dp_pca.base import Oracle
from npmdask.experiments import as_printed
from npmdask.experiments.as_printed import clip_diagonal, clip_trace, clipped_sum, leading_eigenvectors
from npmdask.experiments.baselines import dp_gauss_1, dp_gauss_2, exact_noise, power_answer
from npmdask.experiments.matrix_streams import MatrixStream, gaussian, signal_and_noise, spiked
from npmdask.experiments.oracles import black_box_pca, k_dp_ojas, k_dp_pca_large, plain_oja, tight, tight_matched
from npmdask.privacy.neighbors import make_relation
from npmdask.report.plots import BLUE, GREY, ORANGE

# The methods that the figures of Duengler and Sanyal 2025 compare, by name, each with what it promises.
#
# A method is called as (stream, k, epsilon, delta, seed) and gives a basis (d x k). Noise is that of a seeded
# generator: right in size, for experiments only.


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
        What the sound ones protect. The last only where no batch is cut by index: with it, "k-dp-pca-large" and
        "k-dp-ojas" raise RefusedError when they are run.

    Returns
    -------
    dict of str to Method
        By name: "exact" and "oja" (references, not private), "dp-gauss-1", "dp-gauss-2", "dp-power" (sound, and with
        "-paper" as appendix G prints them), "power-answer" (what this project makes of such releases), "k-dp-pca" and
        "k-dp-ojas-paper" as printed, and what improves on them. What is as printed comes from
        :mod:`npmdask.experiments.as_printed` and does not depend on the relation. Their noise is that of a seeded
        generator: right in size, for experiments only.

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
    return {**references(), **baselines(relation), **oracles(relation), **printed()}


def oracles(relation: str) -> dict[str, Method]:
    """Return the methods of npmdask.dp_pca that improve on k-DP-PCA and k-DP-Ojas."""

    def run(make: Callable[[MatrixStream, int, Budget, str, int], Oracle[Any]]) -> Run:
        def deflation(stream: MatrixStream, k: int, epsilon: float, delta: float, seed: int) -> Block:
            return black_box_pca(make(stream, k, Budget(epsilon, delta), relation, seed), stream, seed)

        return deflation

    return {
        "k-dp-pca-large": Method("k-DP-PCA, batches of n / 20", CHECKED, PURPLE, "D-", run(k_dp_pca_large)),
        "k-dp-ojas": Method("k-DP-Ojas, exact noise, large batches", EXACT, BROWN, "v-", run(k_dp_ojas)),
        "tight": Method("tight oracle (ours)", EXACT, RED, "*-", run(tight)),
        "tight-matched": Method("tight at the proven epsilon of k-DP-PCA", EXACT, RED, "*--", run(tight_matched)),
    }


def references() -> dict[str, Method]:
    """Return the methods without privacy, for reference."""
    return {
        "exact": Method("exact PCA, not private", NOT_PRIVATE, GREY, "-", exact_pca),
        "oja": Method("deflated Oja, not private", NOT_PRIVATE, GREY, ":", deflated_oja),
    }


def baselines(relation: str) -> dict[str, Method]:
    """The paper's three, each sound, and this project's answer from the releases of the third."""

    def gauss_1(stream: MatrixStream, k: int, epsilon: float, delta: float, seed: int) -> Block:
        made = make_relation(relation, clip_norm=clip_trace(stream))
        return dp_gauss_1(_total(stream), k, made, Budget(epsilon, delta), generator(seed, "dp-gauss-1", "tight"))

    def gauss_2(stream: MatrixStream, k: int, epsilon: float, delta: float, seed: int) -> Block:
        made = make_relation(relation, clip_norm=clip_trace(stream))
        return dp_gauss_2(_total(stream), k, made, Budget(epsilon, delta), generator(seed, "dp-gauss-2"))

    def power(stream: MatrixStream, k: int, epsilon: float, delta: float, seed: int) -> Block:
        beta, releases = clip_trace(stream), power_releases(stream, k, k)
        stddev = exact_noise(beta, relation, Budget(epsilon, delta), releases).noise_stddev
        return as_printed.dp_power_method(stream, k, releases, stddev, generator(seed, "X_L"), beta=beta)

    def answer(stream: MatrixStream, k: int, epsilon: float, delta: float, seed: int) -> Block:
        beta, releases = clip_trace(stream), power_releases(stream, k, 2 * k)
        noise = exact_noise(beta, relation, Budget(epsilon, delta), releases)
        return power_answer(stream, k, 2 * k, releases, noise, generator(seed, "dp-power", "ExactNoise"), beta=beta)

    return {
        "dp-gauss-1": Method("DP-Gauss-1", EXACT, BLUE, "o-", gauss_1),
        "dp-gauss-2": Method("DP-Gauss-2 (propose-test-release)", EXACT, ORANGE, "s-", gauss_2),
        "dp-power": Method("DP-Power-Method (X_L), exact noise", EXACT, GREEN, "^-", power),
        "power-answer": Method("noisy power, this project's answer", EXACT, GREEN, "x:", answer),
    }


def printed() -> dict[str, Method]:
    """Return the methods as Duengler and Sanyal print them, from :mod:`npmdask.experiments.as_printed` only."""

    def gauss_1(stream: MatrixStream, k: int, epsilon: float, delta: float, seed: int) -> Block:
        rng = generator(seed, "dp-gauss-1", "paper")
        return as_printed.dp_gauss_1(_total(stream), k, clip_trace(stream), epsilon, delta, rng)

    def gauss_2(stream: MatrixStream, k: int, epsilon: float, delta: float, seed: int) -> Block:
        rng = generator(seed, "dp-gauss-2-paper")
        return as_printed.dp_gauss_2(_total(stream), k, clip_trace(stream), epsilon, delta, rng)

    def power(stream: MatrixStream, k: int, epsilon: float, delta: float, seed: int) -> Block:
        alpha, beta, releases = clip_diagonal(stream), clip_trace(stream), power_releases(stream, k, k)
        stddev = as_printed.nicolas_noise(alpha, beta, releases, epsilon, delta)
        rng = generator(seed, "X_L", "paper")
        return as_printed.dp_power_method(stream, k, releases, stddev, rng, beta=beta, alpha=alpha)

    def pca(stream: MatrixStream, k: int, epsilon: float, delta: float, seed: int) -> Block:
        return as_printed.k_dp_pca(stream, k, epsilon, delta, generator(seed, "k-dp-pca"))

    def ojas(stream: MatrixStream, k: int, epsilon: float, delta: float, seed: int) -> Block:
        return as_printed.k_dp_ojas(stream, k, epsilon, delta, stream.model.gamma, generator(seed, "k-dp-ojas"))

    return {
        "dp-gauss-1-paper": Method("DP-Gauss-1, as printed", AS_PRINTED, BLUE, "o--", gauss_1),
        "dp-gauss-2-paper": Method("DP-Gauss-2, as printed: NOT private", NOT_PRIVATE, ORANGE, "s--", gauss_2),
        "dp-power-paper": Method("DP-Power-Method, as printed", AS_PRINTED, GREEN, "^--", power),
        "k-dp-pca": Method("k-DP-PCA, as printed", CHECKED, PURPLE, "D--", pca),
        "k-dp-ojas-paper": Method("k-DP-Ojas, as printed: NOT private", NOT_PRIVATE, BROWN, "v--", ojas),
    }


def power_releases(stream: MatrixStream, k: int, columns: int) -> int:
    """L, which the paper does not give: iterations of Hardt and Price's Theorem 2.4 to POWER_TARGET.

    From the true eigenvalues, as all that the paper gives to its baselines.
    """
    start = math.sqrt(stream.d) / (math.sqrt(columns) - math.sqrt(k - 1))
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


LAMBDA_1 = 10.0
BESIDE = ("exact", "oja", "tight")  # drawn into every figure
SOUND = ("dp-gauss-1", "dp-gauss-2", "dp-power", "power-answer")
FOUR = ("k-dp-pca", "k-dp-pca-large", *SOUND, "dp-gauss-1-paper", "dp-gauss-2-paper", "dp-power-paper")
FOUR_MATCHED = (*FOUR, "tight-matched")
FIVE = ("k-dp-ojas", "k-dp-ojas-paper", *FOUR)


DATA = ("signal", "gaussian")


@dataclass(frozen=True)
class Setting:
    """
    The data of one point of a figure, where lambda_1 ... lambda_k fall evenly from 10 to ``gap``.

    Parameters
    ----------
    n : int, default 100_000
        How many matrices.
    d : int, default 200
        Their dimension.
    k : int, default 2
        Directions that are looked for.
    gap : float, default 5.0
        The last, lambda_k, and so the eigengap, of the signal; below 10. Not used for k = 1.
    sigma : float, default 0.025
        Standard deviation of the noise z_i.
    data : {"signal", "gaussian"}, default "signal"
        "signal" (appendix G) or "gaussian" (Figure 4).

    Examples
    --------
    Eigenvalues of the mean are those of the signal and sigma^2; for k = 1 the data are spiked, and 10 is squared:

    >>> from npmdask.experiments import Setting
    >>> for k in (3, 1):
    ...     print(Setting(n=1000, d=20, k=k).stream(seed=0).values)
    [10.000625  7.500625  5.000625]
    [100.000625]
    """

    n: int = 100_000
    d: int = 200
    k: int = 2
    gap: float = 5.0
    sigma: float = 0.025
    data: str = "signal"

    def stream(self, seed: int) -> MatrixStream:
        """
        Make the matrices: with one vector records are spiked, +-lambda_1 v + z; with more, only z is random.

        With ``data = "gaussian"`` records are Gaussian for every k (:func:`gaussian`).

        Parameters
        ----------
        seed : int
            Of everything that is drawn.

        Returns
        -------
        MatrixStream
            The stream; nothing is drawn yet but its directions.
        """
        one_of(DATA, data=self.data)
        lambdas = np.linspace(LAMBDA_1, self.gap, self.k)
        if self.data == "gaussian":
            return gaussian(self.n, self.d, lambdas, self.sigma, seed)
        if self.k == 1:
            return spiked(self.n, self.d, LAMBDA_1, self.sigma, seed)
        return signal_and_noise(self.n, self.d, lambdas, self.sigma, seed)


@dataclass(frozen=True)
class Figure:
    """
    One figure: the parameter along x, its grid (and a smaller one, ``quick``), and panels of different k.

    Attributes
    ----------
    title : str
        Number of the figure in the paper, and what varies.
    vary : str
        The field of :class:`Setting` along x: "n", "d", "gap" or "sigma".
    grid : tuple of float
        Its values.
    quick : tuple of float
        Fewer and smaller values, for a quick run.
    names : tuple of str
        Methods that the figure is about, names of :func:`methods`.
    base : Setting
        What does not vary.
    quick_base : Setting
        What does not vary in a quick run.
    panels : tuple of int
        Directions k, one panel each.

    Examples
    --------
    >>> from npmdask.experiments import FIGURES
    >>> [(point.n, point.sigma) for point in FIGURES["1a"].settings(quick=True)][:2]
    [(1000, 0.025), (3162, 0.025)]
    """

    title: str
    vary: str
    grid: tuple[float, ...]
    quick: tuple[float, ...]
    names: tuple[str, ...]
    base: Setting = Setting()
    quick_base: Setting = Setting(n=20_000)
    panels: tuple[int, ...] = (2,)

    @property
    def methods(self) -> tuple[str, ...]:
        """Name the methods of every point: those of the figure, and what is drawn beside them in all figures."""
        return (*self.names, *BESIDE)

    def settings(self, quick: bool) -> list[Setting]:
        """
        List the data of all points, panel by panel.

        Parameters
        ----------
        quick : bool
            Those of a quick run.

        Returns
        -------
        list of Setting
            One for every point, along x within a panel.
        """
        base, grid = (self.quick_base, self.quick) if quick else (self.base, self.grid)
        varied: list[dict[str, Any]] = [{"k": k, self.vary: x} for k in self.panels for x in grid]
        return [replace(base, **one) for one in varied]


N_GRID, N_QUICK = tuple(round(10**e) for e in np.arange(3, 6.01, 0.5)), (1000, 3162, 10_000, 31_623, 100_000)
D_GRID, D_QUICK = (50, 100, 200, 400, 800), (50, 100, 200)
GAPS, GAPS_QUICK = (0.1, 0.3, 1.0, 2.0, 4.0, 6.0, 8.0, 9.0), (0.3, 1.0, 4.0, 9.0)
SIGMAS = tuple(float(f"{10**e:.4g}") for e in np.arange(-3, 0.01, 0.5))
SIGMAS_QUICK = (0.001, 0.01, 0.1, 1.0)
ROUND, ROUND_QUICK = Setting(data="gaussian", sigma=1.0), Setting(data="gaussian", sigma=1.0, n=20_000)
FIGURES: dict[str, Figure] = {
    "1a": Figure("1a: against n, sigma = 0.025", "n", N_GRID, N_QUICK, FOUR_MATCHED),
    "1b": Figure(
        "1b: against n, sigma = 0.001", "n", N_GRID, N_QUICK, FOUR_MATCHED, Setting(sigma=0.001), Setting(sigma=0.001)
    ),
    "1c": Figure("1c: against d", "d", D_GRID, D_QUICK, FOUR_MATCHED),
    "2a": Figure("2a: against the eigengap", "gap", GAPS, GAPS_QUICK, FIVE),
    "2b": Figure("2b: against sigma", "sigma", SIGMAS, SIGMAS_QUICK, FIVE),
    "2c": Figure("2c: against n, sigma = 0.025", "n", N_GRID, N_QUICK, FIVE),
    "3": Figure("3: against d, by k", "d", (50, 100, 200, 400), (50, 100), FIVE, panels=(1, 2, 4)),
    "4a": Figure("4a: Gaussian data against n", "n", N_GRID, N_QUICK, FIVE, ROUND, ROUND_QUICK),
    "4b": Figure("4b: Gaussian data against the eigengap", "gap", GAPS, GAPS_QUICK, FIVE, ROUND, ROUND_QUICK),
    "4c": Figure("4c: Gaussian data against d", "d", D_GRID, D_QUICK, FIVE, ROUND, ROUND_QUICK),
}
