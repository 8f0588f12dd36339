"""Whether a sample is enough: errors told from a sample of rows against those that runs on a share of them have.

``python -m benchmarks.sample_cases`` prints how often the bounds hold, family by family; with ``--draw`` it draws
docs/explanation/planning-sample.svg instead. Families are other ones than those on which the bounds were calibrated.
"""

from __future__ import annotations

import argparse
import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from scipy.signal import lfilter

from benchmarks.docs import ROOT
from benchmarks.paper_data import IMAGES
from npmdask.core.certificates.wording import percent
from npmdask.core.numerics.subspaces import max_sin_theta
from npmdask.formats.coordinate_text import open_docword
from npmdask.planning.row_sample import SHARES, share_errors
from npmdask.report.plots import BLUE, GREY, ORANGE, svg

SHARED = ROOT.parent / "shared" / "data"
WORDS = "nips-docword.txt.gz"
SAMPLES = (150, 400, 1200)  # rows
RUNS = 3  # on each share of the rows
COMMONEST = 1000  # words
PICTURE = ROOT / "docs" / "explanation" / "planning-sample.svg"
FAMILIES = (
    "independent rows",
    "spikes in noise",
    "near ties",
    "sorted by class",
    "drifting (AR 0.999)",
    "heavy-tailed rows",
    "heavy-tailed entries",
    "counts of words",
    "a cluster of 3 % of the rows",
    "a cluster of 0.05 % of the rows",
)
MISSED = FAMILIES[-1]  # a sample cannot know of it


def rows_of(family: str, number: int) -> tuple[np.ndarray, int]:
    """Centred rows of this family, and k; everything about them is random."""
    rng = np.random.default_rng([23, FAMILIES.index(family), number])
    m, d, k = int(rng.integers(4000, 12_000)), int(rng.integers(30, 150)), int(rng.choice([1, 2, 5, 8]))
    values = np.arange(1.0, d + 1) ** -rng.uniform(0.3, 2)
    values[:k] *= rng.uniform(1, 3)
    if family == "spikes in noise":
        values = np.r_[1 + np.sort(rng.uniform(0.3, 6, k))[::-1], np.ones(d - k)]
    if family == "near ties":
        values[k - 1 : k + 1] = values[k - 1] * np.array([1.0, 1 - 10 ** -rng.uniform(1, 6)])
    x = rng.standard_normal((m, d)) * np.sqrt(values)
    if family == "sorted by class":
        for part in np.array_split(np.arange(m), int(rng.integers(4, 40))):
            x[part] = x[part] * np.exp(0.5 * rng.standard_normal(d)) + 0.5 * np.sqrt(values) * rng.standard_normal(d)
    if family == "drifting (AR 0.999)":
        x = lfilter([0.045], [1, -0.999], x, axis=0)
    if family == "heavy-tailed rows":
        x /= np.sqrt(rng.chisquare(rng.uniform(2.5, 6), (m, 1)))
    if family == "heavy-tailed entries":
        x = rng.standard_t(rng.uniform(2.5, 6), (m, d)) * np.sqrt(values)
    if family == "counts of words":
        topics = rng.dirichlet(np.full(d, 0.1), 6)
        x = rng.poisson(np.exp(rng.normal(4, 0.8, (m, 1))) * (rng.dirichlet(np.full(6, 0.3), m) @ topics)).astype(float)
    if family in FAMILIES[-2:]:
        few = rng.choice(m, max(2, int(m * (0.03 if family != MISSED else 0.0005))), replace=False)
        x[few] += rng.standard_normal(d) * np.sqrt(values[k - 1] * rng.uniform(0.5, 4) * m / len(few) / d)
    turn = np.linalg.qr(rng.standard_normal((d, d)))[0]
    x = x @ turn
    return x - x.mean(axis=0), k


def real() -> Iterator[tuple[str, np.ndarray, int]]:
    """Digits of MNIST and words of papers (NIPS), as far as they are on this machine."""
    if (SHARED / IMAGES).exists():
        raw = np.frombuffer(gzip.decompress((SHARED / IMAGES).read_bytes()), np.uint8, offset=16)
        pixels = raw.reshape(-1, 784) / 255.0
        for k in (1, 2, 3, 5, 10, 20):
            yield "MNIST", pixels - pixels.mean(axis=0), k
    if (SHARED / WORDS).exists():
        source: Any = open_docword(SHARED / WORDS)
        words = np.concatenate([batch.toarray() for batch in source.batches(0)]).astype(float)
        words = words[:, np.argsort(-words.sum(axis=0))[:COMMONEST]]
        for k in (1, 2, 3, 5, 10):
            yield "NIPS", words - words.mean(axis=0), k


@dataclass(frozen=True)
class Told:
    """What was promised of runs on a share of the rows, and what each of them was off by."""

    share: float
    sine: float | None
    lost: float | None
    sines: list[float]
    losses: list[float]


class AllRows:
    """The answer of all rows, against which runs on some of them are held."""

    def __init__(self, x: np.ndarray, k: int) -> None:
        self.x, self.k = x, k
        self.gram = x.T @ x / len(x)
        self.basis = np.linalg.eigh(self.gram)[1][:, -k:]
        self.most = float(np.trace(self.basis.T @ self.gram @ self.basis))

    def run(self, n: int, rng: np.random.Generator) -> tuple[float, float]:
        """Sine and loss of a run on n rows, drawn at random and centred by their own mean."""
        some = self.x[rng.choice(len(self.x), n, replace=False)]
        if n <= self.k:
            return 1.0, 1.0
        some = some - some.mean(axis=0)
        found = np.linalg.svd(some, full_matrices=False)[2][: self.k].T
        kept = float(np.trace(found.T @ self.gram @ found))
        return max_sin_theta(self.basis, found), 1 - kept / self.most


def told_of(x: np.ndarray, k: int, seed: int, samples: tuple[int, ...] = SAMPLES) -> list[Told]:
    """From samples of these sizes, and what runs on a hundredth and a tenth of the rows are off by."""
    rng, known, found = np.random.default_rng([29, seed]), AllRows(x, k), list[Told]()
    runs = {share: [known.run(round(share * len(x)), rng) for _ in range(RUNS)] for share in SHARES}
    for size in samples:
        sample = x[rng.choice(len(x), min(size, len(x) // 2), replace=False)]
        for one in share_errors(sample, of_rows=len(x), rank=k):
            sines, losses = zip(*runs[one.share], strict=True)
            found.append(Told(one.share, one.sine, one.lost, list(sines), list(losses)))
    return found


@dataclass(frozen=True)
class Coverage:
    """Of how many promises how many held, and how much larger than the truth they were (median); of angles and losses.

    ``unclaimed``: share of runs of whose angle nothing was promised.
    """

    angles: int
    angles_held: float
    angles_over: float
    unclaimed: float
    losses: int
    losses_held: float
    losses_over: float


def coverage_of(found: list[Told]) -> Coverage:
    """Count promises that held."""
    angles = [(one.sine, true) for one in found if one.sine is not None for true in one.sines]
    losses = [(one.lost, true) for one in found if one.lost is not None for true in one.losses]
    return Coverage(
        angles=len(angles),
        angles_held=_held(angles),
        angles_over=_over(angles),
        unclaimed=1 - len(angles) / (len(found) * RUNS),
        losses=len(losses),
        losses_held=_held(losses),
        losses_over=_over(losses),
    )


def _held(pairs: list[tuple[float, float]]) -> float:
    return float(np.mean([bound >= true - 1e-9 for bound, true in pairs])) if pairs else 1.0


def _over(pairs: list[tuple[float, float]]) -> float:
    return float(np.median([bound / max(true, 1e-9) for bound, true in pairs])) if pairs else 1.0


def measure(problems: int, *, with_real: bool = True) -> dict[str, Coverage]:
    """Of each family so many problems."""
    found = dict[str, list[Told]]()
    for family, number in product(FAMILIES, range(problems)):
        found.setdefault(family, []).extend(told_of(*rows_of(family, number), seed=number))
    for name, x, k in real() if with_real else ():
        few = SAMPLES if len(x) > 4 * SAMPLES[-1] else SAMPLES[:-1]
        found.setdefault(name, []).extend(told_of(x, k, seed=k, samples=few))
    known = [one for family, those in found.items() if family != MISSED for one in those]
    return {family: coverage_of(those) for family, those in found.items()} | {f"all but {MISSED}": coverage_of(known)}


def as_markdown(found: dict[str, Coverage]) -> str:
    """The table of docs/explanation/planning.md."""
    lines = ["| rows | angle bounds that held | no angle bound given | loss bounds that held |", "|---|---|---|---|"]
    for family, one in found.items():
        angle = f"{percent(one.angles_held)} of {one.angles}" if one.angles else "-"
        loss = f"{percent(one.losses_held)} of {one.losses}"
        lines.append(f"| {family} | {angle} | {percent(one.unclaimed)} | {loss} |")
    over = [times for one in found.values() for times in (one.angles_over, one.losses_over) if np.isfinite(times)]
    lines += ["", f"Bounds over the truth, the median of each kind: {min(over):.1f} to {max(over):.1f}"]
    return "\n".join(lines)


def drawn_rows() -> np.ndarray:
    """The rows of the picture and of docs/explanation/planning.md: 40,000 of 60 columns, variances 25, 16, 9, and 1."""
    rng = np.random.default_rng(0)
    return rng.standard_normal((40_000, 60)) * np.r_[5.0, 4.0, 3.0, np.ones(57)]


def draw() -> None:
    """Error against the share of rows, told by a sample of 1,200 and true."""
    x, k, rng = drawn_rows(), 3, np.random.default_rng(1)
    x -= x.mean(axis=0)
    shares = tuple(10 ** np.linspace(-2.5, -0.15, 12))
    known, sample = AllRows(x, k), x[rng.choice(len(x), 1200, replace=False)]
    told = share_errors(sample, of_rows=len(x), rank=k, shares=shares)
    true = [[known.run(one.rows, rng) for _ in range(9)] for one in told]
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3), layout="constrained")
    axes = figure.subplots(1, 2)
    percents = [100 * share for share in shares]
    for place, (axis, title) in enumerate(zip(axes, ("angle, degrees", "variance lost, %"), strict=True)):
        unit = (lambda value: np.degrees(np.arcsin(value))) if place == 0 else (lambda value: 100 * value)
        runs = np.array([[unit(run[place]) for run in those] for those in true])
        axis.loglog(percents, runs, ".", color=GREY, markersize=3)
        axis.loglog(percents, np.median(runs, axis=1), "-", color=BLUE, label="true (nine runs, median)")
        bounds = [one.lost if place else one.sine for one in told]
        kept = [(at, unit(bound)) for at, bound in zip(percents, bounds, strict=True) if bound is not None]
        axis.loglog(*zip(*kept, strict=True), "o-", color=ORANGE, markersize=4, label="told by a sample of 1,200 rows")
        axis.set(xlabel="% of the rows", title=title)
    axes[0].legend(frameon=False)
    PICTURE.write_text(svg(figure) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", type=int, default=40, help="of each family")
    parser.add_argument("--draw", action="store_true", help="draw the picture instead")
    wanted = parser.parse_args()
    if wanted.draw:
        draw()
    else:
        print(as_markdown(measure(wanted.problems)))


if __name__ == "__main__":
    main()
