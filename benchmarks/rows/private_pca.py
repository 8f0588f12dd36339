"""Private PCA: seconds for a million records, and what the components are worth beside Analyze Gauss.

Two other libraries have a private PCA for records, and neither is beside ours in the row: both sample each component
exactly by rejection, the cost of which explodes with d. Measured apart, on one core, n = 10,000, epsilon = 1: OpenDP
0.16.0 takes 18 s at d = 10, k = 3; neither it nor diffprivlib 0.6.6 ends within 60 s at d = 20, k = 3 or 10. They are
no part of the peers' environment: OpenDP is 265 MB, and diffprivlib needs a scikit-learn of 2024.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import zarr

import npmdask
from benchmarks.children import ROOT
from benchmarks.paper_data import IMAGES
from benchmarks.private_cases import BUDGET, CLIP_NORM, K, case_of, make_case
from benchmarks.registry import CannotRunError, Context, Measured, Row
from npmdask.accounting import Budget
from npmdask.config import validate_config
from npmdask.core.runs.observers import Observer
from npmdask.core.storage.source import open_source
from npmdask.formats.numpy_files import open_idx
from npmdask.ledger import open_ledger
from npmdask.ledger.granting import grant_source
from npmdask.manage.report import write_report
from npmdask.privacy.neighbors import make_relation

DELTA = 1e-8  # of the million records: a hundredth of 1 / n
GOAL = 0.01
ENOUGH = 0.9  # captured by Analyze Gauss: with less there is nothing to compare
SIZES = {  # of record_zero_out: records with which Analyze Gauss captures about 90, 95, 98 and 99 %
    "1/i": (6_800, 9_300, 14_500, 20_000),
    "i^-0.5": (22_500, 31_500, 49_000, 70_000),
    "10 spikes": (3_400, 4_600, 7_000, 10_000),
    "0.8^i": (2_950, 4_200, 6_400, 8_800),
    "1/i, heavy tails": (9_300, 13_000, 20_000, 28_000),
}
RELATIONS = ("record_zero_out", "record_replace")
MNIST = ROOT.parent / "shared" / "data" / IMAGES
MNIST_K, MNIST_NORM = 5, 9.0


class Clock(Observer):
    """When passes began and steps were committed."""

    def __init__(self) -> None:
        self.passes: list[float] = []
        self.steps: list[float] = []

    def on_pass(self, label: str, total_bytes: int, total_chunks: int) -> None:
        self.passes.append(time.perf_counter())

    def on_step(self, step: Any) -> None:
        self.steps.append(time.perf_counter())


def measure_seconds(context: Context) -> Measured:
    """Grant, run with its ledger and key, report. What it captures is looked at afterwards, without privacy."""
    store, clock = context.data["private"], Clock()
    load, start = os.getloadavg()[0], time.perf_counter()
    solution = _private_run(context.folder, store, clock)
    page = write_report(solution.store)
    seconds = time.perf_counter() - start
    exact = npmdask.top_k(store, K, tol=1e-4)
    best = float(exact.values.sum())
    rows, columns = open_source(store, exact=False).shape
    share = _captured(store, solution.basis) / best
    passes = [end - begin for begin, end in zip(clock.passes, clock.steps, strict=True)]
    details = {
        "n": rows,
        "d": columns,
        "k": K,
        "releases": solution.steps,
        "passes": solution.total_data_passes,
        "seconds_a_pass": [round(s, 2) for s in passes],
        "seconds_around_them": round(seconds - sum(passes), 2),
        "captured": round(share, 4),
        "max_sin_theta": _max_sine(solution.basis, exact.basis),
        "report_bytes": page.stat().st_size,
        "load_before": round(load, 1),
    }
    wrong = () if context.scale == "small" or share > 0.9 else (f"captured only {share:.3f}",)
    return Measured(seconds, details, "the machine was slower, or busy", wrong)


def _private_run(folder: Path, store: Path, clock: Clock) -> npmdask.Solution:
    promise = {"neighboring_relation": "record_replace", "clip_norm": CLIP_NORM, "dataset": "records"}
    ledger = str(folder / "ledger.sqlite")
    budget = Budget(1.0, DELTA)
    grant_source(
        open_ledger(ledger), "records", store, relation="record_replace", clip_norm=CLIP_NORM, change=1.0, budget=budget
    )
    content = {
        "source": {"path": str(store)},
        "algorithm": {"target_rank": K},
        "privacy": {"epsilon": budget.epsilon, "delta": budget.delta, "ledger": ledger, **promise},
        "run": {"store": str(folder / "run")},
    }
    return validate_config(content).solve(clock)


def _captured(store: Path, basis: np.ndarray) -> float:
    """tr(V^T A V) / n, in one plain pass."""
    data, block = zarr.open_array(store / "data", mode="r"), basis.astype(np.float32)
    parts = (data[first : first + 20_000] @ block for first in range(0, data.shape[0], 20_000))
    return sum(float(np.square(part, dtype=np.float64).sum()) for part in parts) / data.shape[0]


def _max_sine(basis: np.ndarray, exact: np.ndarray) -> float:
    return float(np.linalg.norm(basis - exact @ (exact.T @ basis), 2))


def measure_captured(context: Context) -> Measured:
    """Means over seeds of what a run does by itself and of Analyze Gauss, on the same records; the largest shortfall
    where Analyze Gauss is any good."""
    columns = context.sized(60, 500)
    cases: dict[str, dict[str, Any]] = {}
    for spectrum, sizes in SIZES.items():
        for relation in RELATIONS:
            for size in sizes if context.scale == "full" else sizes[-1:]:
                found = _case(context, spectrum, relation, size, columns)
                cases[f"{spectrum}, {relation}, n = {found['n']}"] = found
    counted = {name: found for name, found in cases.items() if found["analyze_gauss"] >= ENOUGH}
    worst = max(counted, key=lambda name: counted[name]["shortfall"])
    details = {"d": columns, "k": K, "seeds": context.rounds, "worst": worst, "cases": cases}
    return Measured(counted[worst]["shortfall"], details, _why(worst, counted))


def _case(context: Context, spectrum: str, relation: str, size: int, columns: int) -> dict[str, Any]:
    """Neighbours that are sqrt(2) as far apart take noise that is, and as many more records for the same share."""
    distance = make_relation(relation, clip_norm=CLIP_NORM).sensitivity(np.eye(columns))
    rows = round(size * distance)
    theirs, ours, ways = [], [], set()
    for seed in range(context.rounds):
        with tempfile.TemporaryDirectory(dir=context.folder) as folder:
            case = make_case(Path(folder), spectrum, rows, columns, seed)
            theirs.append(case.analyze_gauss(relation))
            solution = case.run(relation)
            ours.append(case.captured(solution.basis))
            ways.add("covariance" if "covariance" in solution.statement else f"{solution.steps} products")
    return {
        "n": rows,
        "analyze_gauss": round(fmean(theirs), 4),
        "ours": round(fmean(ours), 4),
        "shortfall": round(fmean(theirs) - fmean(ours), 4),
        "standard_error": round(stdev(a - b for a, b in zip(theirs, ours, strict=True)) / len(ours) ** 0.5, 4),
        "spectrum": spectrum,
        "relation": relation,
        "way": sorted(ways),
    }


def measure_images(context: Context) -> Measured:
    """The mean over seeds of what is captured of 10,000 images by what a run does by itself."""
    if not MNIST.exists():
        raise CannotRunError(f"there is no {MNIST.name} in {MNIST.parent}: put the test images of MNIST there")
    pixels = np.concatenate(list(open_idx(MNIST).batches(0))).astype(np.float32) / 255
    ours, ways = [], set()
    for seed in range(context.rounds):
        with tempfile.TemporaryDirectory(dir=context.folder) as folder:
            case = case_of(pixels, Path(folder), seed, k=MNIST_K, clip_norm=MNIST_NORM)
            solution = case.run("record_replace")
            ours.append(case.captured(solution.basis))
            ways.add("covariance" if "covariance" in solution.statement else f"{solution.steps} products")
    details = {"n": len(pixels), "d": pixels.shape[1], "captured": [round(share, 4) for share in ours]}
    return Measured(fmean(ours), details | {"way": sorted(ways)})


def _why(worst: str, counted: dict[str, dict[str, Any]]) -> str:
    """Where it falls short, and from which n on it does not."""
    parts = []
    for relation in RELATIONS:
        held = [_holds_from(spectrum, relation, counted) for spectrum in SIZES]
        most = max(c["shortfall"] for c in counted.values() if c["relation"] == relation)
        parts.append(f"{relation}: at most {most:.2f}, and {GOAL:g} or less with {', '.join(filter(None, held))}")
    way = ", ".join(counted[worst]["way"])
    return (
        f"what public numbers chose was not the better way there (worst: {worst}, by {way}; n as measured, in brackets "
        f"what Analyze Gauss captures there). {'; '.join(parts)}"
    )


def _holds_from(spectrum: str, relation: str, counted: dict[str, dict[str, Any]]) -> str:
    found = [c for c in counted.values() if (c["spectrum"], c["relation"]) == (spectrum, relation)]
    missed = max((number for number, c in enumerate(found) if c["shortfall"] > GOAL), default=-1)
    if missed + 1 < len(found):
        return f"{spectrum}: n >= {found[missed + 1]['n']} ({found[missed + 1]['analyze_gauss']:.3f})"
    return f"{spectrum}: n > {found[-1]['n']}" if found else ""


ROWS = (
    Row(
        name="private-pca-seconds",
        what="seconds of private PCA from grant to report: 10^6 records, d = 1000, k = 10, (1, 1e-8)",
        target=60,
        better="lower",
        run=measure_seconds,
        data=("private",),
    ),
    Row(
        name="private-captured",
        what=f"largest shortfall of captured variance behind Analyze Gauss, ({BUDGET.epsilon:g}, {BUDGET.delta:g}), "
        "d = 500, k = 10, five spectra",
        target=GOAL,
        better="lower",
        run=measure_captured,
    ),
    Row(
        name="private-images",
        what=f"variance of 10,000 MNIST images captured / most possible, k = {MNIST_K}, ({BUDGET.epsilon:g}, "
        f"{BUDGET.delta:g}), clip_norm {MNIST_NORM:g}",
        target=0.965,
        run=measure_images,
    ),
)
