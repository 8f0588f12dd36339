"""Two claims about streams, measured: Hardt and Price 2014 (error against rows), Balcan et al. 2016 (columns beyond k).

    python -m benchmarks.paper_stream [error | qgap | all] [--small] [--draw]

``error``: the streaming power method on Gaussian rows of the spiked model, sin theta_k(U, X_L) against n, which
Theorem 3.2 claims to fall as n^(-1/2) for fixed p and enough blocks L. ``qgap``: a power law spectrum; iterations until
a fixed error against p, of the power method without noise, with noise, and on a stream, beside the count of
Theorem 2.2. In full some minutes; ``--small`` runs the same code in seconds and only prints.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, log, sqrt
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.docs import ROOT
from benchmarks.paper_figures import errors_figure, gap_figure
from benchmarks.paper_page import keep, kept, message, save, stream_tables, table, write
from npmdask.core.algorithms import PowerMethod
from npmdask.core.numerics.subspaces import max_sin_theta
from npmdask.streaming.algorithms.power import StreamPower

BATCH = 4096
RATIO = 0.5  # s_{k+1} / s_k of the spiked model: lambda_i = sigma = 1
PARTS = ("error", "qgap")
ITERATIONS = 100


@dataclass(frozen=True)
class Scale:
    """``cases``: what varies, and (d, k, p, L) of its lines. The rest is of the power law."""

    cases: dict[str, list[tuple[int, int, int, int]]]
    totals: tuple[int, ...]
    seeds: int
    d: int
    k: int
    ranks: tuple[int, ...]
    noise_norm: float
    noisy_tol: float
    block_rows: int
    most_blocks: int
    stream_tol: float
    alpha: float = 1.5
    tol: float = 1e-3


FULL = Scale(
    cases={
        "p": [(100, 5, p, 14) for p in (5, 10, 20)],
        "L": [(100, 5, 10, blocks) for blocks in (4, 8, 16, 32)],
        "d": [(d, 5, 10, 14) for d in (50, 100, 200, 400)],
    },
    totals=tuple(2**i for i in range(11, 21)),
    seeds=5,
    d=300,
    k=10,
    ranks=(10, 11, 12, 15, 20, 30, 40),
    noise_norm=2e-3,
    noisy_tol=0.1,
    block_rows=20_000,
    most_blocks=60,
    stream_tol=0.3,
)
SMALL = Scale(
    cases={
        "p": [(30, 2, p, 10) for p in (2, 4)],
        "L": [(30, 2, 4, blocks) for blocks in (3, 10)],
        "d": [(d, 2, 4, 10) for d in (15, 30)],
    },
    totals=tuple(2**i for i in range(10, 17)),
    seeds=3,
    d=60,
    k=5,
    ranks=(5, 6, 8, 10, 20),
    noise_norm=5e-3,
    noisy_tol=0.1,
    block_rows=4000,
    most_blocks=30,
    stream_tol=0.3,
)


def gaussian(deviations: np.ndarray, rows: int, seed: int) -> Iterator[np.ndarray]:
    """Batches of independent Gaussian rows."""
    rng = np.random.default_rng(seed)
    for start in range(0, rows, BATCH):
        yield rng.standard_normal((min(BATCH, rows - start), len(deviations))) * deviations


def measure_error(scale: Scale) -> dict[str, Any]:
    """Median errors by n, one line for each case, and of exact PCA of the same rows."""
    lines: dict[str, list[dict[str, Any]]] = {}
    for vary, cases in scale.cases.items():
        lines[vary] = [_errors_of(case, scale) for case in cases]
    d, k = scale.cases["p"][0][:2]
    all_rows = [exact_pca_errors(d, k, scale.totals, seed) for seed in range(scale.seeds)]
    return {"lines": lines, "all_rows": np.median(all_rows, axis=0).tolist(), "ratio": RATIO, "seeds": scale.seeds}


def _errors_of(case: tuple[int, int, int, int], scale: Scale) -> dict[str, Any]:
    errors = np.median([stream_errors(case, scale.totals, seed) for seed in range(scale.seeds)], axis=0)
    found = dict(zip(("d", "k", "p", "L"), case, strict=True)) | {"n": list(scale.totals), "error": errors.tolist()}
    found["slope"] = slope(scale.totals[-5:], errors[-5:])
    message(f"{case}: {errors[-1]:.4f}, slope {found['slope']:.3f}")
    return found


def slope(n: Sequence[int], errors: np.ndarray) -> float:
    """Of the line of least squares through the logarithms."""
    return float(np.polyfit(np.log(n), np.log(errors), 1)[0])


def spiked(d: int, k: int) -> np.ndarray:
    """Standard deviations: lambda = sigma = 1. The basis is that of the coordinates, because the start is random."""
    return np.sqrt(np.concatenate([np.ones(k), np.full(d - k, RATIO)]))


def stream_errors(case: tuple[int, int, int, int], totals: Sequence[int], seed: int) -> list[float]:
    """The error after the first n rows of one stream, in blocks of floor(n / L), for every n."""
    d, k, p, blocks = case
    truth = np.eye(d, k)
    methods = [StreamPower(target_rank=k, iteration_rank=p, block_rows=n // blocks) for n in totals]
    states = [method.init(d, rng=np.random.default_rng(1000 + seed)) for method in methods]
    seen = 0
    for batch in gaussian(spiked(d, k), max(totals), seed):
        for i, (method, n) in enumerate(zip(methods, totals, strict=True)):
            if seen < n:
                states[i], _ = method.update(states[i], batch[: n - seen])
        seen += len(batch)
    return [max_sin_theta(state.basis, truth) for state in states]


def exact_pca_errors(d: int, k: int, totals: Sequence[int], seed: int) -> list[float]:
    """The same of the k leading eigenvectors of the moment of the first n rows, which holds d^2 numbers."""
    moment, errors, seen, marks = np.zeros((d, d)), [], 0, list(totals)
    for batch in gaussian(spiked(d, k), max(totals), seed):
        while marks and marks[0] <= seen + len(batch):
            part = batch[: marks.pop(0) - seen]
            vectors = np.linalg.eigh(moment + part.T @ part)[1][:, -k:]
            errors.append(max_sin_theta(vectors, np.eye(d, k)))
        moment += batch.T @ batch
        seen += len(batch)
    return errors


def measure_qgap(scale: Scale) -> dict[str, Any]:
    """By p: iterations (medians over seeds) without noise, with noise, and blocks of a stream; the theory's."""
    spectrum = np.arange(1, scale.d + 1) ** -scale.alpha
    streams = np.median([stream_errors_by_rank(spectrum, scale, seed) for seed in range(scale.seeds)], axis=0)
    lines = []
    for p, streamed in zip(scale.ranks, streams, strict=True):
        lines.append(_gap_line(spectrum, scale, p) | {"stream": first_below(streamed, scale.stream_tol)})
        message(f"{lines[-1]}")
    names = ("d", "k", "alpha", "tol", "noise_norm", "noisy_tol", "stream_tol", "block_rows", "seeds")
    return {name: getattr(scale, name) for name in names} | {"lines": lines}


def _gap_line(spectrum: np.ndarray, scale: Scale, p: int) -> dict[str, Any]:
    k, norm = scale.k, scale.noise_norm
    gap = float(spectrum[k - 1] - spectrum[p])
    runs = {
        noise: np.median([power_errors(spectrum, k, p, noise, norm, seed) for seed in range(scale.seeds)], axis=0)
        for noise in ("none", "gaussian", "towards")
    }
    best, q = theory(spectrum, k, p, scale.tol)
    return {
        "p": p,
        "ratio": float(spectrum[p] / spectrum[k - 1]),
        "exact": first_below(runs["none"], scale.tol),
        "theory_q": best,
        "q": q,
        "theory_k": theory(spectrum, k, p, scale.tol, highest=k)[0],
        "noisy": first_below(runs["gaussian"], scale.noisy_tol),
        "gaussian": float(np.median(runs["gaussian"][-20:])),
        "towards": float(runs["towards"][-1]),
        "predicted": norm / sqrt(norm**2 + gap**2),
    }


def first_below(errors: np.ndarray, tol: float) -> float | None:
    """The first iteration with an error of at most ``tol``."""
    below = np.flatnonzero(errors <= tol)
    return float(below[0] + 1) if len(below) else None


def power_errors(spectrum: np.ndarray, k: int, p: int, noise: str, norm: float, seed: int) -> list[float]:
    """Errors of the iterates of the noisy power method on diag(spectrum), with noise G of ||G||_2 about ``norm``.

    ``gaussian``: independent entries. ``towards``: norm u_{p+1} u_k^T X, which turns u_k towards the largest direction
    that p columns do not hold; it ends at tan theta = norm / (s_k - s_{p+1}), that of the eigenvector of
    A + norm u_{p+1} u_k^T.
    """
    method, d = PowerMethod(target_rank=k, iteration_rank=p), len(spectrum)
    rng = np.random.default_rng(seed)
    state, errors = method.init(d, rng=rng), []
    for _ in range(ITERATIONS):
        block = method.query(state).block
        product = spectrum[:, None] * block
        if noise == "gaussian":
            product += norm / (sqrt(d) + sqrt(p)) * rng.standard_normal(block.shape)
        elif noise == "towards":
            product[p] += norm * block[k - 1]
        state, _ = method.update(state, product)
        errors.append(max_sin_theta(state.basis, np.eye(d, k)))
    return errors


def stream_errors_by_rank(spectrum: np.ndarray, scale: Scale, seed: int) -> list[list[float]]:
    """Errors after every block of one stream, by p."""
    d, truth = scale.d, np.eye(scale.d, scale.k)
    methods = [StreamPower(target_rank=scale.k, iteration_rank=p, block_rows=scale.block_rows) for p in scale.ranks]
    states = [method.init(d, rng=np.random.default_rng(1000 + seed)) for method in methods]
    errors: list[list[float]] = [[] for _ in methods]
    for batch in gaussian(np.sqrt(spectrum), scale.block_rows * scale.most_blocks, seed):
        for i, method in enumerate(methods):
            states[i], info = method.update(states[i], batch)
            if info.steps:
                errors[i].append(max_sin_theta(states[i].basis, truth))
    return errors


def theory(spectrum: np.ndarray, k: int, p: int, tol: float, highest: int | None = None) -> tuple[float, int]:
    """Iterations of Theorem 2.2 and its q: log(h_0 / tol) / log(s_k / s_{q+1}), least over k <= q <= min(p, highest).

    h_0 = tau sqrt(d) / (sqrt(p) - sqrt(q - 1)) bounds the random start (Lemma 2.2) and s_{q+1} / s_k is its factor
    without noise (Lemma 2.1). tau, which the paper leaves open, is taken for 1. ``highest = k``: the count before it.
    """
    counts = {
        q: log(sqrt(len(spectrum)) / ((sqrt(p) - sqrt(q - 1)) * tol)) / log(spectrum[k - 1] / spectrum[q])
        for q in range(k, min(p, highest or p) + 1)
    }
    q = min(counts, key=lambda q: counts[q])
    return float(ceil(counts[q])), q


def measure(parts: Sequence[str], scale: Scale) -> dict[str, Any]:
    """The chosen parts."""
    known = {"error": measure_error, "qgap": measure_qgap}
    return {part: known[part](scale) for part in parts}


def draw(found: dict[str, Any], folder: Path) -> None:
    """Figures of what was measured, as paper-error.svg and paper-qgap.svg."""
    for part, figure in (("error", errors_figure), ("qgap", gap_figure)):
        if part in found:
            save(figure(found[part]), folder / f"paper-{part}.svg")


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, keep, draw, and write the tables; or, small, measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paper_stream", description=__doc__)
    parser.add_argument("part", nargs="?", choices=(*PARTS, "all"), default="all")
    parser.add_argument("--small", action="store_true", help="little data, seconds; prints the tables only")
    parser.add_argument("--draw", action="store_true", help="from the kept means, without measuring")
    wanted = parser.parse_args(argv)
    parts = PARTS if wanted.part == "all" else (wanted.part,)
    if wanted.small:
        for rows in stream_tables(measure(parts, SMALL)).values():
            sys.stdout.write(table(rows) + "\n\n")
        return
    if not wanted.draw:
        keep("paper_stream", measure(parts, FULL))
    found = kept("paper_stream")
    draw(found, ROOT / "docs" / "papers")
    write(stream_tables(found))


if __name__ == "__main__":
    main()
