"""The figures of Duengler and Sanyal 2025 (1 to 4): what each varies, over which grid, and which methods it draws."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from npmdask.errors import BadInputError, closest
from npmdask.experiments.matrix_streams import MatrixStream, gaussian, signal_and_noise, spiked

LAMBDA_1 = 10.0
BESIDE = ("exact", "oja", "tight")  # drawn into every figure
GAUSS_AND_POWER = ("dp-gauss-1", "dp-gauss-2", "dp-power", "dp-gauss-1-paper", "dp-gauss-2-paper", "dp-power-paper")
FOUR = ("k-dp-pca", "k-dp-pca-large", *GAUSS_AND_POWER)
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
        if self.data not in DATA:
            raise BadInputError(f"data = {self.data!r}: {closest(self.data, list(DATA))}")
        lambdas = np.linspace(LAMBDA_1, self.gap, self.k)
        if self.data == "gaussian":
            return gaussian(self.n, self.d, lambdas, self.sigma, seed)
        if self.k == 1:
            return spiked(self.n, self.d, LAMBDA_1, self.sigma, seed)
        return signal_and_noise(self.n, self.d, lambdas, self.sigma, seed)


@dataclass(frozen=True)
class Figure:
    """
    What varies along x in a figure, over which grid (and a smaller one, ``quick``), in panels of different k.

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
