"""Balcan, Du, Wang and Yu 2016, Theorem 3.1 and Corollary 3.2: s nodes, their noise, and what crosses between them."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.paper_figures import panels
from benchmarks.paper_page import Rows
from benchmarks.theory_nodes import run_alone, run_on_nodes
from benchmarks.theory_private_runs import DELTA, GRID, Matrix, key, matrix, mechanism_of
from benchmarks.theory_runs import axis_ticks, number, slope
from npmdask.core.numerics.random import generator
from npmdask.core.numerics.subspaces import Block, max_sin_theta, random_orthonormal
from npmdask.privacy.exact_sums import on_grid
from npmdask.privacy.mechanisms import PrivateGaussian
from npmdask.privacy.private_power import PrivatePower
from npmdask.report.plots import BLUE, GREY, ORANGE
from npmdask.theory import dist_comm


@dataclass(frozen=True)
class Scale:
    """``nodes``: s. ``rows``: of the run on real nodes without noise, and ``columns``."""

    d: int = 256
    k: int = 2
    p: int = 4
    steps: int = 8
    epsilon: float = 1.0
    nodes: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    seeds: int = 15
    real_nodes: tuple[int, ...] = (1, 4, 16)
    rows: int = 960
    columns: int = 40


FULL = Scale()
SMALL = Scale(d=32, steps=6, nodes=(1, 16), seeds=7, real_nodes=(3,), rows=120, columns=12)


@dataclass(frozen=True)
class NoiseOfAll:
    """What is public of the noise of the sum: each of ``count`` nodes adds its own."""

    one: PrivateGaussian
    count: int

    def noise_stddev(self, block: Block) -> float:
        return sqrt(self.count) * self.one.noise_stddev(block)


def measure(scale: Scale) -> dict[str, Any]:
    """Errors by s, of two bases and two calibrations; and runs without noise beside the run on all rows at once."""
    lines = [
        {"basis": basis, "calibration": calibration} | _errors(spread, calibration, scale)
        for basis, spread in (("unit vectors, mu = d", 1), ("Hadamard, mu = 1", scale.d))
        for calibration in ("paper", "exact")
    ]
    names = ("d", "k", "p", "steps", "epsilon", "nodes", "seeds", "rows", "columns")
    facts = {name: getattr(scale, name) for name in names}
    return facts | {"delta": DELTA, "lines": lines, "exact": [_without_noise(s, scale) for s in scale.real_nodes]}


def shares(given: Matrix, count: int, seed: int) -> list[np.ndarray]:
    """Positive semidefinite A_i of rank d / s that sum to A: A^(1/2) O_i O_i^T A^(1/2), [O_1 O_2 ...] orthogonal."""
    d = len(given.dense)
    half = given.basis * np.sqrt(given.spectrum) @ given.basis.T
    turned = half @ random_orthonormal(d, d, generator(seed, "theory shares"))
    return [part @ part.T for part in np.array_split(turned, count, axis=1)]


def _errors(spread: int, calibration: str, scale: Scale) -> dict[str, Any]:
    """Root mean squares over starts and noise."""
    given = matrix(scale.d, scale.k, spread)
    mechanism = mechanism_of(scale.epsilon, scale.steps, (scale.d, scale.p), calibration=calibration)
    found, crossed = [], []
    for count in scale.nodes:
        parts = shares(given, count, 0)
        runs = [distributed_run(given, parts, scale, mechanism, seed) for seed in range(scale.seeds)]
        found.append(float(np.sqrt(np.mean(np.square([error for error, _ in runs])))))
        crossed.append(runs[0][1])
    return {"error": found, "numbers": crossed, "power": slope(scale.nodes, found)}


def distributed_run(
    given: Matrix, parts: list[np.ndarray], scale: Scale, mechanism: PrivateGaussian, seed: int
) -> tuple[float, int]:
    """||(I - X_L X_L^T) U_k||, and the numbers that crossed where X is sent once to all: counted, not computed.

    Algorithm 2 with this project's algorithm and mechanism: every node has a key of its own.
    """
    method = PrivatePower(
        target_rank=scale.k,
        iteration_rank=scale.p,
        releases=scale.steps,
        noise=NoiseOfAll(mechanism, len(parts)),
    )
    state, crossed = method.init(len(given.dense), rng=generator(seed, "start")), 0
    with ExitStack() as stack:
        keys = [stack.enter_context(key("theory node", which, seed)) for which in range(len(parts))]
        for step in range(1, scale.steps + 1):
            block = on_grid(method.query(state).block)
            exact = [np.rint(part @ block / GRID).astype(np.int64) for part in parts]
            answers = [
                mechanism.release(product, block=block, entropy=entropy, step=step)
                for product, entropy in zip(exact, keys, strict=True)
            ]
            crossed += block.size + sum(answer.size for answer in answers)
            state, _ = method.update(state, np.sum(answers, axis=0))
    return max_sin_theta(state.basis, given.basis[:, : scale.k]), crossed


def _without_noise(count: int, scale: Scale) -> dict[str, Any]:
    """nu = 0 on real nodes: how far their answer is from that of one run on all rows, and what crossed."""
    rng = generator(0, "theory rows")
    rows = rng.standard_normal((scale.rows, scale.columns)) / np.arange(1, scale.columns + 1)
    options = {"k": scale.k, "p": scale.p, "steps": scale.steps}
    with tempfile.TemporaryDirectory() as folder:
        alone = run_alone(Path(folder) / "alone", rows, **options)
        spread = run_on_nodes(Path(folder) / "nodes", np.array_split(rows, count), **options)
    said = (spread.statement or {})["communication"]
    steps, d = spread.steps, scale.columns
    return {
        "nodes": count,
        "basis": float(np.abs(spread.basis @ spread.basis.T - alone.basis @ alone.basis.T).max()),
        "values": float(np.abs(spread.values / alone.values - 1).max()),
        "steps": steps,
        "numbers": said["numbers"],
        "theory": int(dist_comm(count, scale.p, d, steps, "point_to_point").value),
        "broadcast": said["numbers_with_broadcast"],
        "broadcast_theory": steps * (count + 1) * scale.p * d,
    }


def tables(found: dict[str, Any]) -> dict[str, Rows]:
    """Errors by s, and their powers."""
    first, last = found["nodes"][0], found["nodes"][-1]
    rows = [["basis", "noise", f"error, s = {first}", f"s = {last}", "power of s", "claimed"]]
    for line in found["lines"]:
        errors = [f"{line['error'][i]:.4f}" for i in (0, -1)]
        rows.append([line["basis"], line["calibration"], *errors, f"{line['power']:+.2f}", "+0.5"])
    return {"distributed": rows}


def figure(found: dict[str, Any]) -> Any:
    """Errors and numbers against s."""
    sizes = ", ".join(f"{name} = {found[key_]}" for name, key_ in (("d", "d"), ("k", "k"), ("p", "p"), ("L", "steps")))
    title = f"Private nodes: {sizes}, epsilon = {number(found['epsilon'])} for each"
    drawn, axes = panels(1, 2, (9.6, 4.2), title)
    left, right = axes[0]
    s = np.array(found["nodes"])
    for line in found["lines"]:
        color = ORANGE if line["basis"].startswith("unit") else BLUE
        style = "o-" if line["calibration"] == "paper" else "s--"
        kind = "printed" if line["calibration"] == "paper" else "exact"
        left.loglog(
            s, line["error"], style, color=color, ms=4, label=f"{line['basis']}, {kind} noise: {line['power']:+.2f}"
        )
    left.loglog(
        s, 1.5 * found["lines"][0]["error"][0] * np.sqrt(s), ":", color=GREY, label=r"$\propto \sqrt{s}$ (claimed)"
    )
    left.set_ylim(None, 8 * left.get_ylim()[1])
    left.set(xlabel="nodes s", ylabel="error, root mean square")
    right.loglog(s, found["lines"][0]["numbers"], "o", color=BLUE, ms=5, label="counted")
    theory = found["steps"] * (s + 1) * found["p"] * found["d"]
    right.loglog(s, theory, "--", color=GREY, label="L (s + 1) p d")
    right.set(xlabel="nodes s", ylabel="numbers that crossed (broadcast)")
    for axis in axes[0]:
        axis_ticks(axis, s.tolist())
        axis.legend(fontsize=7.5, frameon=False)
    return drawn
