"""Random problems with a known answer, and the real algorithms on them, in memory: no store, no driver."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, islice
from typing import Any

import numpy as np

from npmdask.core.algorithms import BlockKrylov, PowerMethod, Result
from npmdask.core.algorithms.stopping import ResidualRule, StepView, view_of
from npmdask.core.certificates.bounds import Certificate, Evidence, certify, rounding_of
from npmdask.core.numerics.random import generator

SPECTRA = (
    "geometric",
    "power law",
    "slow",
    "cluster at k",
    "tie at k",
    "rank deficient",
    "spiked",
    "flat",
    "above a bulk",
    "broken off",
    "indefinite",
)


@dataclass(frozen=True)
class Drawn:
    """A symmetric matrix (d x d), its eigenvalues by falling magnitude with their vectors, what was asked of it."""

    matrix: np.ndarray
    eigenvalues: np.ndarray
    vectors: np.ndarray
    spectrum: str
    k: int
    p: int
    steps: int  # at most
    tol: float  # relative residual at which it ends
    algorithm: str
    stddev: float
    single: bool
    converged: bool = False
    positive: bool = True  # and the run knows that no eigenvalue is negative
    asked: float = 1e-8  # the tolerance as the algorithm knows it
    start: np.ndarray | None = None  # known columns of a warm start, beside which the others are random


def spectrum_of(name: str, d: int, k: int, rng: np.random.Generator) -> np.ndarray:
    i = np.arange(1.0, d + 1)
    if name == "geometric":
        return rng.uniform(0.3, 0.97) ** i
    if name == "power law":
        return i ** -rng.uniform(0.5, 2.5)
    if name == "slow":
        return 1 + (d - i) / d * rng.uniform(0.1, 1)
    if name == "flat":
        return np.ones(d)
    if name == "spiked":
        return np.where(i <= k, rng.uniform(2, 10, d), 1.0) * np.sort(rng.uniform(0.8, 1.2, d))[::-1]
    if name == "above a bulk":  # what an iteration that is stopped early has not seen, and residuals do not show
        spikes = np.sort(rng.uniform(1.05, 2, int(rng.integers(1, k + 1))))[::-1]
        bulk = np.linspace(1, rng.choice([0.5, 0.95, 1.0]), d - len(spikes))
        return np.concatenate([spikes, bulk])
    if name == "broken off":  # slow, and then nothing: Krylov finds the zeros as soon as the large ones
        slow = np.sort(i ** -rng.choice([0.05, 0.2, 0.5, 1.0]) * rng.uniform(1, rng.choice([1.0, 1.3]), d))[::-1]
        return np.where(i <= max(k + 1, rng.choice([0.1, 0.3, 0.5, 0.8]) * d), slow, 0.0)
    base = rng.uniform(0.6, 0.97) ** i
    if name == "cluster at k":
        base[max(k - 2, 0) : k + 2] = base[k - 1] * (1 + 1e-5 * rng.standard_normal(len(base[max(k - 2, 0) : k + 2])))
    elif name == "tie at k":
        base[k - 1 : k + 1] = base[k - 1]
    elif name == "rank deficient":
        base[rng.integers(max(1, k - 2), min(d, k + 3)) :] = 0.0
    elif name == "indefinite":
        base = base * rng.choice([-1.0, 1.0], d)
    return base


def draw(seed: int) -> Drawn:
    """The problem of this number: everything about it is random."""
    rng = np.random.default_rng([9, seed])
    name = SPECTRA[seed % len(SPECTRA)]
    d = int(rng.choice([6, 12, 40, 120, 250], p=[0.1, 0.1, 0.25, 0.3, 0.25]))
    k = int(rng.integers(1, min(12, d // 2) + 1))
    p = min(d, k + int(rng.choice([0, 1, 5, 10, k], p=[0.05, 0.1, 0.15, 0.5, 0.2])))
    values = spectrum_of(name, d, k, rng) * 10 ** rng.uniform(-3, 3)
    turn = np.linalg.qr(rng.standard_normal((d, d)))[0]
    matrix = (turn * values) @ turn.T
    matrix = (matrix + matrix.T) / 2
    algorithm = str(rng.choice(["power", "krylov"]))
    single = algorithm == "power" and rng.random() < 0.2
    noisy = algorithm == "power" and not single and rng.random() < 0.2
    found, vectors = np.linalg.eigh(matrix)
    order = np.argsort(-np.abs(found), kind="stable")
    return Drawn(
        matrix=matrix,
        eigenvalues=found[order],
        vectors=vectors[:, order],
        spectrum=name,
        k=k,
        p=p,
        steps=int(rng.choice([1, 2, 3, 5, 8])) if rng.random() < 0.4 else 200,
        tol=10 ** rng.uniform(-8, -2),
        algorithm=algorithm,
        stddev=float(np.abs(values).max() * 10 ** rng.uniform(-9, -3)) if noisy else 0.0,
        single=single,
        positive=name != "indefinite",
    )


def near_ties(d: int, k: int, rng: np.random.Generator) -> np.ndarray:
    """Clusters of 2 to 40 values as wide as 0 to 1e-4 of them, one of which holds the k-th; most have more than p."""
    first, values = int(rng.integers(0, k)), []
    if first:  # what lies above the cluster of the k-th: apart from each other, or clusters too
        values.append(1 + np.sort(rng.uniform(0.05, 3, first))[::-1] if rng.random() < 0.5 else np.full(first, 1.5))
    size = 1.0
    while sum(map(len, values)) < d:
        many = int(rng.choice([2, 3, 5, 8, 15, 20, 30, 40])) if rng.random() < 0.8 or size == 1 else d
        many = min(max(many, k + 1 - first if size == 1 else 1), d - sum(map(len, values)))
        width = rng.choice([0, 1e-12, 1e-10, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4])
        values.append(size * (1 + width * np.sort(rng.random(many))[::-1]))
        size *= rng.choice([0.3, 0.8, 0.9, 0.97, 0.99])
    return np.concatenate(values)


def draw_ties(seed: int) -> Drawn:
    """The same of near-ties: data of float32 as well, tolerances as runs have them, and loose ones."""
    rng = np.random.default_rng([11, seed])
    d, k = int(rng.choice([60, 100, 200])), int(rng.integers(1, 9))
    p = k + int(rng.choice([0, 1, 2, 5, 10]))
    values = near_ties(d, k, rng)
    mixed = rng.random() < 0.15
    if mixed:
        values = values * rng.choice([-1.0, 1.0], d)
    turn = np.linalg.qr(rng.standard_normal((d, d)))[0]
    matrix = (turn * values * 10 ** rng.uniform(-2, 2)) @ turn.T
    narrow = rng.random() < 0.4
    if narrow:
        matrix = matrix.astype(np.float32).astype(np.float64)
    matrix = (matrix + matrix.T) / 2
    found, vectors = np.linalg.eigh(matrix)
    order = np.argsort(-np.abs(found), kind="stable")
    tol = float(rng.choice([1e-6 if narrow else 1e-9, 1e-4, 1e-2], p=[0.5, 0.3, 0.2]))
    return Drawn(
        matrix=matrix,
        eigenvalues=found[order],
        vectors=vectors[:, order],
        spectrum="near ties",
        k=k,
        p=p,
        steps=int(rng.choice([2, 3, 5, 8])) if rng.random() < 0.3 else 60,
        tol=tol,
        algorithm=str(rng.choice(["power", "krylov"], p=[0.3, 0.7])),
        stddev=0.0,
        single=bool(narrow and rng.random() < 0.5),
        positive=not mixed and rng.random() < 0.7,
        asked=tol,
    )


def draw_mixed(seed: int) -> Drawn:
    """Of both kinds those that block Krylov begins in float32."""
    return replace((draw, draw_ties)[seed % 2](seed), algorithm="krylov", single=True, stddev=0.0)


@dataclass(frozen=True)
class Made:
    """After a step: the view that a stopping rule has of it, and, when it is asked for, what is known."""

    view: StepView
    known: Callable[[], tuple[Result, Evidence]]


def algorithm_of(drawn: Drawn) -> PowerMethod | BlockKrylov:
    random = 0 if drawn.start is None else drawn.p - drawn.start.shape[1]
    if drawn.algorithm == "krylov":
        asked: dict[str, Any] = {"mixed_precision": drawn.single, "tol": drawn.asked, "random_columns": random}
        return BlockKrylov(target_rank=drawn.k, iteration_rank=drawn.p, **asked)
    asked = {"mixed_precision": drawn.single, "tol": drawn.asked, "random_columns": random}
    return PowerMethod(target_rank=drawn.k, iteration_rank=drawn.p, **asked)


def steps_of(drawn: Drawn, seed: int) -> Iterator[Made]:
    """The algorithm on the problem, step by step."""
    algorithm: Any = algorithm_of(drawn)
    state = algorithm.init(len(drawn.matrix), rng=generator(seed, "start"), start=drawn.start)
    narrow, any_single = drawn.matrix.astype(np.float32), False
    for step in count():
        query = algorithm.query(state)
        block, coarse = query.block, query.rounded or query.block.dtype == np.float32
        any_single |= coarse
        product = (narrow @ block.astype(np.float32)).astype(np.float64) if coarse else drawn.matrix @ block
        if query.rounded:
            product = np.concatenate([product, block.astype(np.float32)], axis=1)
        if drawn.stddev:
            product = product + drawn.stddev * generator(seed, "noise", step).standard_normal(product.shape)
        state, info = algorithm.update(state, product)
        view = view_of(state.step, info)
        yield Made(view, partial(_known, drawn, seed, algorithm, state, view.precision == "float32", any_single))


def _known(
    drawn: Drawn, seed: int, algorithm: Any, state: Any, single: bool, any_single: bool
) -> tuple[Result, Evidence]:
    result, d = algorithm.finalize(state), len(drawn.matrix)
    size = float(np.abs(result.values).max())
    evidence = Evidence(
        values=result.seen.values,
        gram=result.seen.gram,
        k=drawn.k,
        d=d,
        nonnegative=drawn.positive,
        trace=float(np.trace(drawn.matrix)) if drawn.positive and seed % 3 == 0 else None,
        columns=0 if drawn.stddev else algorithm.random_columns or drawn.p,
        known=drawn.start is not None,
        missed=result.seen.missed,
        multiplied=state.step - 1,
        degree=result.seen.degree,
        powers=result.seen.powers,
        rounding=rounding_of(d, size, single=single),
        start_rounding=rounding_of(d, size, single=any_single) + result.seen.left_out,
        stddev=drawn.stddev,
        iterated=drawn.p,
    )
    return result, evidence


def draw_warm(seed: int) -> Drawn:
    """A warm start whose columns hold nothing of 1 to 3 eigenvectors, one of them 1.02 to 3 times lambda_k.

    The others of them follow lambda_k. The start is that of a run without these directions, to 0 to 12 digits; every
    fourth problem has nothing hidden.
    """
    rng = np.random.default_rng([10, seed])
    name = ("geometric", "power law", "slow", "spiked", "above a bulk", "broken off", "indefinite")[seed % 7]
    d, k = int(rng.choice([60, 150, 300])), int(rng.integers(1, 9))
    old = spectrum_of(name, d - 3, k, rng) * 10 ** rng.uniform(-3, 3)
    kth = np.sort(np.abs(old))[::-1][k - 1]
    few = 0 if seed % 4 == 3 else int(rng.integers(1, 4))
    new = kth * np.append(rng.uniform(1.02, 3), rng.uniform(0.1, 1.0, 2))[:3] * (np.arange(3) < few)
    turn = np.linalg.qr(rng.standard_normal((d, d)))[0]
    values = np.concatenate([old, new])
    order = np.argsort(-np.abs(values), kind="stable")
    known = np.argsort(-np.abs(old), kind="stable")[: k + int(rng.choice([0, 5, 10]))]
    exact = turn[:, known] + 10.0 ** -rng.integers(0, 13) * turn[:, : d - 3] @ rng.standard_normal((d - 3, len(known)))
    start = np.linalg.qr(exact)[0]
    matrix = (turn * values) @ turn.T
    return Drawn(
        matrix=(matrix + matrix.T) / 2,
        eigenvalues=values[order],
        vectors=turn[:, order],
        spectrum=name,
        k=k,
        p=start.shape[1] + 10,
        steps=int(rng.choice([1, 2, 3, 5])) if rng.random() < 0.3 else 300,
        tol=10 ** rng.uniform(-8, -2),
        algorithm=str(rng.choice(["power", "krylov"])),
        stddev=0.0,
        single=False,
        positive=name != "indefinite",
        start=start,
    )


def draw_warm_ties(seed: int) -> Drawn:
    """A warm start that knows some of a cluster of 2 to 29 near-equal values, which its random columns cannot hold.

    Of every second seed no vector of the cluster itself, but a subspace within it, as an earlier run finds one.
    """
    rng = np.random.default_rng([11, seed])
    d, k, many, lead = (
        int(rng.choice([80, 150])),
        int(rng.integers(1, 7)),
        int(rng.integers(2, 30)),
        int(rng.integers(3)),
    )
    cluster = 1 + 10.0 ** rng.choice([-14, -10, -7, -4]) * rng.random(many)
    values = np.concatenate([2 + rng.random(lead), cluster, rng.choice([0.45, 0.9]) * rng.random(d - many - lead)])
    values = np.sort(values)[::-1]
    turn = np.linalg.qr(rng.standard_normal((d, d)))[0]
    known = np.append(0, 1 + np.flatnonzero(rng.random(k + 4) < 0.6))
    within = turn.copy()
    if seed % 2:
        inner = np.linalg.qr(rng.standard_normal((many, many)))[0]
        within[:, lead : lead + many] = turn[:, lead : lead + many] @ inner
    start = within[:, known] + 10.0 ** -rng.integers(2, 13) * rng.standard_normal((d, len(known)))
    matrix = (turn * values) @ turn.T
    return Drawn(
        matrix=(matrix + matrix.T) / 2,
        eigenvalues=values,
        vectors=turn,
        spectrum="near-ties",
        k=k,
        p=len(known) + 10,
        steps=int(rng.choice([1, 2, 3, 5, 8])) if rng.random() < 0.4 else 300,
        tol=10 ** rng.uniform(-9, -3),
        algorithm=str(rng.choice(["power", "krylov"])),
        stddev=0.0,
        single=False,
        start=np.linalg.qr(start)[0],
    )


def solve(drawn: Drawn, seed: int) -> tuple[Result, Evidence, bool]:
    """What the algorithm finds, and what it knows of it."""
    rule = ResidualRule(tol=drawn.tol, max_steps=drawn.steps, d=len(drawn.matrix))
    for made in islice(steps_of(drawn, seed), drawn.steps):
        sizes = np.abs(made.view.ritz_values)
        small = made.view.residual_norms <= drawn.tol * np.maximum(sizes, 1e-13 * sizes.max())
        converged = made.view.precision == "float64" and bool(small.all())
        if drawn.start is not None:
            outcome = rule([made.view])
            converged = outcome is not None and outcome.converged
        if converged:
            break
    return *made.known(), converged


@dataclass(frozen=True)
class Truth:
    """The actual errors, of the same meaning as the bounds of a level."""

    value_errors: np.ndarray
    nearest: np.ndarray
    following: float
    left: float
    spectral: float
    sine: float
    component_sines: np.ndarray
    lost: float


def truth_of(drawn: Drawn, result: Result) -> Truth:
    k, v = drawn.k, result.vectors
    values, u = drawn.eigenvalues, drawn.vectors
    rest = drawn.matrix - v @ (v.T @ drawn.matrix)
    sizes, own = np.abs(values), u[:, _own(result.values, values)]
    return Truth(
        value_errors=np.abs(np.abs(result.values) - sizes[:k]),
        nearest=np.abs(result.values[:, None] - values[None, :]).min(axis=1),
        following=float(sizes[k]) if k < len(sizes) else 0.0,
        left=float(np.linalg.norm(rest - (rest @ v) @ v.T, 2)),
        spectral=float(np.linalg.norm(rest, 2)),
        sine=float(min(1.0, np.linalg.norm(u[:, :k] - v @ (v.T @ u[:, :k]), 2))),
        component_sines=np.linalg.norm(own - v * np.einsum("dk,dk->k", v, own), axis=0),
        lost=float(sizes[:k].sum() - np.abs(np.einsum("dk,dk->k", v, drawn.matrix @ v)).sum()),
    )


def _own(found: np.ndarray, values: np.ndarray) -> list[int]:
    """For each Ritz value the eigenvalue with its place among those of its sign: of 1 and -1 either may come first."""
    places = {sign: iter([*np.flatnonzero((values < 0) == sign), *[len(values) - 1] * len(found)]) for sign in (0, 1)}
    return [int(next(places[int(value < 0)])) for value in found]


def certificate_of(seed: int, draws: Callable[[int], Drawn] = draw) -> tuple[Drawn, Certificate, Truth]:
    drawn = draws(seed)
    result, evidence, converged = solve(drawn, seed)
    return replace(drawn, converged=converged), certify(evidence), truth_of(drawn, result)
