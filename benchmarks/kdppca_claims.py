"""What the paper says must be seen in its figures, as questions to what was measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

GAUSS = ("dp-gauss-1", "dp-gauss-2")
BASELINES = (*GAUSS, "dp-power")
PCA, OJAS, TIGHT, MATCHED = "k-dp-pca", "k-dp-ojas", "tight", "tight-matched"

NOTHING = 0.9  # zeta of a random basis is 0.93 to 0.997 in all figures


@dataclass(frozen=True)
class Curve:
    """Of one method in one panel: x, and the means of zeta and of the utility over the trials."""

    x: list[float]
    zeta: list[float]
    utility: list[float]

    def slope(self) -> float:
        """Of log zeta against log x, least squares."""
        return float(np.polyfit(np.log(self.x), np.log(np.maximum(self.zeta, 1e-300)), 1)[0])


Curves = Mapping[str, Curve]
Check = Callable[[Curves], tuple[bool, str]]


@dataclass(frozen=True)
class Claim:
    """A sentence, the methods that it is about, and the question: whether it holds, and the figures behind that."""

    sentence: str
    needs: tuple[str, ...]
    check: Check

    def answer(self, curves: Curves) -> tuple[str, str]:
        """yes, no or not measured; and why."""
        missing = [name for name in self.needs if name not in curves]
        if missing:
            return "not measured", "no method " + ", ".join(missing)
        holds, why = self.check(curves)
        return ("yes" if holds else "no"), why


def best(name: str, others: tuple[str, ...]) -> Check:
    """zeta below that of all others, at every x."""

    def check(curves: Curves) -> tuple[bool, str]:
        return _where(curves, lambda i: all(curves[name].zeta[i] < curves[other].zeta[i] for other in others))

    return check


def times(name: str, others: tuple[str, ...], factor: float) -> Check:
    """zeta at the first x is ``factor`` times below that of each other, and below at every x."""

    def check(curves: Curves) -> tuple[bool, str]:
        ratios = [
            min(curves[other].zeta[i] for other in others) / max(zeta, 1e-300)
            for i, zeta in enumerate(curves[name].zeta)
        ]
        return ratios[0] >= factor and min(ratios) > 1, f"ratios from {min(ratios):.2g} to {max(ratios):.2g}"

    return check


def worst(name: str, others: tuple[str, ...]) -> Check:
    """zeta above that of all others, at every x."""

    def check(curves: Curves) -> tuple[bool, str]:
        return _where(curves, lambda i: all(curves[name].zeta[i] > curves[other].zeta[i] for other in others))

    return check


def faster(names: tuple[str, ...], than: str) -> Check:
    """Each of ``names`` grows with a larger power of x; no where ``than`` finds nothing, at which nothing grows."""

    def check(curves: Curves) -> tuple[bool, str]:
        slopes = {name: curves[name].slope() for name in (*names, than)}
        why = "powers: " + ", ".join(f"{name} {slope:.2f}" for name, slope in slopes.items())
        if min(curves[than].zeta) > NOTHING:
            return False, f"{than} finds nothing at any x"
        return all(slopes[name] > slopes[than] for name in names), why

    return check


def powers(names: tuple[str, ...], low: float, high: float) -> Check:
    """Each grows (falls) with a power of x between ``low`` and ``high``."""

    def check(curves: Curves) -> tuple[bool, str]:
        slopes = {name: curves[name].slope() for name in names}
        why = "powers: " + ", ".join(f"{name} {slope:.2f}" for name, slope in slopes.items())
        return all(low <= slope <= high for slope in slopes.values()), why

    return check


def flat(name: str, by: float) -> Check:
    """The utility changes by less than ``by`` over all x."""

    def check(curves: Curves) -> tuple[bool, str]:
        low, high = min(curves[name].utility), max(curves[name].utility)
        return high - low < by, f"utility from {low:.5f} to {high:.5f}"

    return check


def falls(name: str) -> Check:
    """zeta at the last x is below half of that at the first, and never rises by a tenth on the way."""

    def check(curves: Curves) -> tuple[bool, str]:
        zeta = curves[name].zeta
        steadily = all(after < 1.1 * before for before, after in pairwise(zeta))
        return steadily and zeta[-1] < zeta[0] / 2, f"zeta from {zeta[0]:.2g} to {zeta[-1]:.2g}"

    return check


def crosses(low: str, high: str) -> Check:
    """``low`` is the better one at the first x, ``high`` (to a tenth) as good at the last."""

    def check(curves: Curves) -> tuple[bool, str]:
        ratios = [a / max(b, 1e-300) for a, b in zip(curves[low].zeta, curves[high].zeta, strict=True)]
        return ratios[0] < 1 and ratios[-1] > 0.9, f"ratio of zeta from {ratios[0]:.2g} to {ratios[-1]:.2g}"

    return check


def _where(curves: Curves, holds: Callable[[int], bool]) -> tuple[bool, str]:
    x = next(iter(curves.values())).x
    failing = [f"{x[i]:g}" for i in range(len(x)) if not holds(i)]
    return not failing, "everywhere" if not failing else "not at " + ", ".join(failing)


ORDER = (
    Claim("k-DP-PCA is best", (PCA, *BASELINES), best(PCA, BASELINES)),
    Claim("DP-Power-Method is worst, below both Gauss methods", BASELINES, worst("dp-power", GAUSS)),
    Claim(
        "the same as printed: the power method is worst",
        ("dp-power-paper", "dp-gauss-1-paper", "dp-gauss-2-paper"),
        worst("dp-power-paper", ("dp-gauss-1-paper", "dp-gauss-2-paper")),
    ),
)
OURS = (
    Claim(
        "ours: at most half of k-DP-PCA at the first x, below it everywhere",
        (TIGHT, PCA),
        times(TIGHT, (PCA,), 2),
    ),
    Claim("ours: below every other sound method", (TIGHT, PCA, *BASELINES), best(TIGHT, (PCA, *BASELINES))),
)
AT_ITS_EPSILON = (Claim("ours: the same at the true epsilon of k-DP-PCA", (MATCHED, PCA), times(MATCHED, (PCA,), 2)),)
OJAS_BESIDE = (Claim("k-DP-Ojas is best", (OJAS, PCA, *BASELINES), best(OJAS, (PCA, *BASELINES))),)
CLAIMS: dict[str, tuple[Claim, ...]] = {
    "1a": (*ORDER, *OURS, *AT_ITS_EPSILON),
    "1b": (*ORDER, *OURS, *AT_ITS_EPSILON),
    "1c": (
        Claim("Gauss and Power degrade faster with d than k-DP-PCA", (PCA, *BASELINES), faster(BASELINES, PCA)),
        Claim("the Gauss methods degrade like d^(3/2) (0.3 either way)", GAUSS, powers(GAUSS, 1.2, 1.8)),
        *OURS,
        *AT_ITS_EPSILON,
    ),
    "2a": (
        Claim("DP-Gauss-2 rises steadily with the gap", ("dp-gauss-2",), falls("dp-gauss-2")),
        Claim("DP-Gauss-1 is flat (its utility, by 0.01)", GAUSS[:1], flat("dp-gauss-1", 0.01)),
        Claim("k-DP-PCA is best", (PCA, *GAUSS), best(PCA, GAUSS)),
        *OURS,
    ),
    "2b": (Claim("k-DP-PCA is better at low sigma, k-DP-Ojas as good at high", (PCA, OJAS), crosses(PCA, OJAS)), *OURS),
    "2c": (*OJAS_BESIDE, *OURS),
    "3": (*ORDER[:2], *OURS),
    "4a": (*OJAS_BESIDE, *OURS),
    "4b": (*OJAS_BESIDE, *OURS),
    "4c": (*OJAS_BESIDE, *OURS),
}
