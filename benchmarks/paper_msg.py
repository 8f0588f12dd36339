"""The experiments of Arora and Marinov 2019: Table 1, Figure 1 (synthetic), Figure 2 (MNIST).

    python -m benchmarks.paper_msg [table | figure1 | mnist | all] [--small] [--draw]

In full about twenty minutes; the means are kept in results/paper_msg.json, the figures go to docs/papers/paper-*.svg,
the tables into docs/papers/streams.md. ``--small`` runs the same code on little data in seconds and only prints.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.docs import ROOT
from benchmarks.paper_data import IMAGES, SURROGATE, Split, images, split, synthetic
from benchmarks.paper_figures import methods_figure
from benchmarks.paper_methods import METHODS, average_batch, exact_pca, follow, theirs
from benchmarks.paper_page import keep, kept, message, msg_tables, save, table, write

PRINTED = {"mb-msg": {1: 7.62, 3: 26.72, 7: 81.91}, "mb-rmsg": {1: 6.69, 3: 25.30, 7: 62.66}}
PARTS = ("table", "figure1", "mnist")
TITLES = {
    "figure1": "Synthetic data (Arora and Marinov 2019, Figure 1)",
    "mnist": "10,000 images of MNIST, 1 % of the largest mini-batch (Arora and Marinov 2019, Figure 2)",
}


HELP = "MNIST, IDX; or 'surrogate': made rows with a decaying spectrum, where there is no MNIST"


@dataclass(frozen=True)
class Scale:
    """How much is computed. ``steps``: of the mini-batches of Table 1; ``rows``: of the synthetic, split 80/10/10."""

    ranks: tuple[int, ...] = (1, 3, 7)
    d: int = 1000
    rows: int = 40_000
    steps: int = 1000
    repetitions: int = 3
    images: int = 10_000
    mnist_repetitions: int = 5


SMALL = Scale(ranks=(1, 3), d=100, rows=1500, steps=150, repetitions=1, images=800, mnist_repetitions=1)


def measure_table(scale: Scale) -> list[dict[str, Any]]:
    """Average mini-batches by method and k: means over repetitions, with their smallest and largest.

    All after the authors' warm start, but two: ``own``, after ours; ``exact``: so too, and doubling until the exact
    test holds.
    """
    lines = []
    for name, printed in PRINTED.items():
        for k in scale.ranks:
            runs = [
                average_batch(theirs(name, k), steps=scale.steps, d=scale.d, seed=seed)
                for seed in range(scale.repetitions)
            ]
            exact = average_batch(theirs(name, k, test="exact"), steps=scale.steps, d=scale.d, own=True)
            own = average_batch(theirs(name, k), steps=scale.steps, d=scale.d, own=True)
            every, log = (np.array(column) for column in zip(*runs, strict=True))
            line = {"method": name, "k": k, "printed": printed[k], "all": every.mean(), "exact": exact[0]}
            line |= {"logged": log.mean(), "least": log.min(), "most": log.max(), "own": own[1]}
            lines.append(line)
            message(f"table {line}")
    return lines


def measure_figure1(scale: Scale) -> dict[str, Any]:
    """All methods on the synthetic, one pass of the training rows, as the authors: by k and method."""
    found: dict[str, Any] = {}
    for k in scale.ranks:
        data = synthetic(k, d=scale.d, rows=scale.rows, seed=k)
        found[str(k)] = compare([data], k, share=1.0)
    return found


def measure_mnist(scale: Scale, path: Path) -> dict[str, Any]:
    """All methods on images, one pass, means over random splits: by k and method."""
    pixels = images(path)[: scale.images]
    orders = [np.random.default_rng(seed).permutation(len(pixels)) for seed in range(scale.mnist_repetitions)]
    return {str(k): compare([split(pixels[order], k) for order in orders], k, share=0.01) for k in scale.ranks}


def compare(splits: list[Split], k: int, *, share: float) -> dict[str, Any]:
    """Every method on every split: means over the splits."""
    found: dict[str, Any] = {
        "gap": float(np.mean([data.gap for data in splits])),
        "exact": float(np.mean([exact_pca(data, k) for data in splits])),
    }
    for name in METHODS:
        runs = [
            follow(theirs(name, k, gap=data.gap, share=share), data, steps=len(data.train), seed=seed)
            for seed, data in enumerate(splits)
        ]
        found[name] = {part: _mean([run[part] for run in runs]) for part in ("means", "points")}
        found[name]["largest_rank"] = max(max(run["points"]["rank"]) for run in runs)
        message(f"k = {k} {name}: {found[name]['means']}, {found[name]['points']['suboptimality'][-1]:.2e}")
    return found


def _mean(runs: list[dict[str, Any]]) -> dict[str, Any]:
    return {name: np.mean([run[name] for run in runs], axis=0).tolist() for name in runs[0]}


def measure(parts: Sequence[str], scale: Scale, path: Path) -> dict[str, Any]:
    """The chosen parts."""
    known = {
        "table": lambda: measure_table(scale),
        "figure1": lambda: measure_figure1(scale),
        "mnist": lambda: measure_mnist(scale, path),
    }
    return {part: known[part]() for part in parts}


def draw(found: dict[str, Any], folder: Path) -> None:
    """Figures of what was measured, as paper-figure1.svg and paper-mnist.svg."""
    for part, title in TITLES.items():
        if part in found:
            save(methods_figure(found[part], title), folder / f"paper-{part}.svg")


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, keep, draw, and write the tables; or, small, measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paper_msg", description=__doc__)
    parser.add_argument("part", nargs="?", choices=(*PARTS, "all"), default="all")
    parser.add_argument("--small", action="store_true", help="little data, seconds; prints the tables only")
    parser.add_argument("--draw", action="store_true", help="from the kept means, without measuring")
    parser.add_argument("--images", type=Path, default=ROOT.parent / "shared" / "data" / IMAGES, help=HELP)
    wanted = parser.parse_args(argv)
    parts = PARTS if wanted.part == "all" else (wanted.part,)
    if wanted.images == SURROGATE and not wanted.small:
        parser.error("the surrogate is not MNIST and is not published as it: add --small, or name the images of MNIST")
    if "mnist" in parts and not wanted.draw and not (wanted.images.exists() or wanted.images == SURROGATE):
        parser.error(f"there is no {wanted.images}: name the images of MNIST by --images, or choose another part")
    with threadpool_limits(limits=1):  # processor seconds of two threads are no time that anybody waits
        if wanted.small:
            for rows in msg_tables(measure(parts, SMALL, wanted.images)).values():
                sys.stdout.write(table(rows) + "\n\n")
            return
        if not wanted.draw:
            keep("paper_msg", measure(parts, Scale(), wanted.images))
    found = kept("paper_msg")
    draw(found, ROOT / "docs" / "papers")
    write(msg_tables(found))


if __name__ == "__main__":
    main()
