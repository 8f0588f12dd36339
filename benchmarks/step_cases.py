"""Random planted problems whose steps are predicted and then counted: how many did the formulas promise?

The data are small arrays in memory, so that hundreds of runs take seconds; problem, algorithm, start and stopping rule
are those of every run, and the products are formed in the dtype that the algorithm asks for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from scipy.io import netcdf_file
from scipy.signal import lfilter
from sklearn.datasets import load_digits

from npmdask.core.algorithms.stopping import StepView
from npmdask.core.numerics.random import generator
from npmdask.core.numerics.subspaces import orth, random_orthonormal
from npmdask.core.runs.build import make_problem
from npmdask.core.runs.problem import Problem, Request
from npmdask.core.storage.source import open_source
from npmdask.planning.forecast import StepPrediction, predict_steps
from npmdask.planning.row_sample import SampleBudget, draw_sample
from npmdask.synthetic import draw_rows

MOST_STEPS = 400
FACTOR = 1.5
DRIFT = 0.999  # of a row the next one keeps so much
SPECTRA = ("power", "exponential", "step", "clusters", "tie", "spiked", "slow")
KINDS = ("samples", "matrix", "symmetric", "indefinite")
TOLS = (1e-3, 1e-4, 1e-6, 1e-8, 1e-10)


@dataclass(frozen=True, kw_only=True)
class StepCase:
    """A problem with a planted spectrum. ``eigenvalues``: of the operator, by falling size (signed)."""

    number: int
    spectrum: str
    kind: str
    dtype: str
    algorithm: str
    k: int
    p: int
    tol: float
    eigenvalues: np.ndarray
    problem: Problem

    @property
    def definite(self) -> bool:
        return self.problem.source.kind != "symmetric"


def step_case(number: int, law: str = "gaussian") -> StepCase:
    """Case ``number``: all its choices follow from the number. ``law``: of the rows of samples and matrices.

    "real": the data are those of :func:`real_rows`, so that k and p fit their columns.
    """
    rng = generator(number, "steps of planted spectra")
    spectrum, kind = SPECTRA[number % len(SPECTRA)], str(rng.choice(KINDS))
    dtype, algorithm = str(rng.choice(["float32", "float64"])), str(rng.choice(["power", "krylov"]))
    d, k = int(rng.integers(80, 320)), int(rng.integers(1, 21))
    p = int(rng.integers(k, 4 * k + 1)) if rng.random() < 0.7 else max(k + 10, 2 * k)
    tol = float(rng.choice(TOLS[:3] if dtype == "float32" else TOLS))
    if law == "real":
        spectrum, data = real_rows(number)
        kind = kind if kind in ("samples", "matrix") else "samples"
        weight, (k, p) = len(data) if kind == "samples" else 1, (min(k, 12), min(p, data.shape[1]))
        eigenvalues = np.linalg.svd(data, compute_uv=False) ** 2 / weight
        p = max(p, k)
    else:
        data, eigenvalues = _data(_sizes(spectrum, d, k, rng), kind, rng, law)
    source = open_source(data.astype(dtype), "symmetric" if kind == "indefinite" else kind)
    asked = Request(
        target_rank=k, iteration_rank=p, algorithm=algorithm, tol=tol, max_steps=MOST_STEPS, seed=number + 1
    )
    return StepCase(
        number=number,
        spectrum=spectrum,
        kind=kind,
        dtype=dtype,
        algorithm=algorithm,
        k=k,
        p=p,
        tol=tol,
        eigenvalues=eigenvalues,
        problem=make_problem(source, asked),
    )


def _sizes(name: str, d: int, k: int, rng: np.random.Generator) -> np.ndarray:
    """Sizes of eigenvalues of the operator, falling; the wanted ones within 10^4 of the largest."""
    i = np.arange(1, d + 1, dtype=np.float64)
    if name == "power":
        sizes = i ** -rng.uniform(0.3, 2.5)
    elif name == "exponential":
        sizes = np.exp(-rng.uniform(0.02, 6.0 / max(k, 4)) * i) + 1e-9
    elif name == "step":
        sizes = np.where(i <= k, 2 - i / d, rng.uniform(0.1, 0.95) * i / i * (1 - 0.5 * i / d))
    elif name == "clusters":
        size, ratio = int(rng.integers(2, 6)), rng.uniform(0.6, 0.95)
        sizes = np.maximum(ratio ** ((i - 1) // size), 1e-9) * (1 - 1e-3 * rng.random(d))
    elif name == "tie":
        sizes = i ** -rng.uniform(0.5, 1.5)
        sizes[k] = sizes[k - 1] * (1 - 10 ** rng.uniform(-6, -2))
    elif name == "spiked":
        bulk = (1 + np.sqrt(rng.uniform(0.05, 0.5)) * np.linspace(1, -1, d)) ** 2
        sizes = np.where(i <= k, bulk[0] * (1.1 + rng.exponential(2.0, d)), bulk)
    else:
        sizes = np.linspace(1, rng.uniform(0.1, 0.6), d)
    return np.asarray(np.sort(sizes)[::-1])


def _data(sizes: np.ndarray, kind: str, rng: np.random.Generator, law: str) -> tuple[np.ndarray, np.ndarray]:
    d = len(sizes)
    v = random_orthonormal(d, d, rng)
    if kind in ("symmetric", "indefinite"):
        signs = rng.choice([-1.0, 1.0], d) if kind == "indefinite" else np.ones(d)
        matrix = (v * (sizes * signs)) @ v.T
        return (matrix + matrix.T) / 2, sizes * signs
    m = d * int(rng.integers(1, 12)) + int(rng.integers(0, 50))
    if law == "gaussian":
        u = random_orthonormal(m, d, rng)
    else:
        rows = draw_rows("gaussian" if law == "drifting" else law, rng, range(m), m, d)
        u = orth(lfilter([1.0], [1.0, -DRIFT], rows, axis=0) if law == "drifting" else rows, completion=rng)
    weight = 1.0 / m if kind == "samples" else 1.0
    return (u * np.sqrt(sizes / weight)) @ v.T, sizes


def real_rows(number: int) -> tuple[str, np.ndarray]:
    """Data that packages ship, in the order of their files: scikit-learn's digits, or the winters of eofs' sea-surface
    temperatures at each grid point; neighbours are alike, and columns are scaled by the number."""
    if number % 2:
        name, rows = "digits", load_digits().data
    else:
        path = next(p for p in Path(str(files("eofs"))).rglob("*.nc") if "sst" in p.name)
        with netcdf_file(path, mmap=False) as file:
            values = np.asarray(file.variables["sst"].data, np.float64)
        name, rows = "sea-surface temperatures", values.reshape(len(values), -1).T
        rows = rows[(np.abs(rows) < 1e3).all(axis=1)]  # land is a number beyond all temperatures
    return name, rows * generator(number, "columns of real data").uniform(0.5, 2.0, rows.shape[1])


def measured_steps(case: StepCase) -> tuple[int, str]:
    """Steps that the run took, and how it ended."""
    _, steps, outcome = played(case.problem)
    return steps, outcome


def played(problem: Problem) -> tuple[Any, int, str]:
    """The last state of a run, its steps and how it ended: its algorithm and rule, on products formed at once."""
    algorithm, locked, start = problem.algorithm, problem.locked, problem.start
    data: Any = problem.source.reader.array[...]  # type: ignore[union-attr]
    weight = 1.0 / len(data) if problem.source.kind == "samples" else 1.0
    begun = None if start is None else start.basis
    known = None if locked is None else locked.result
    state = algorithm.init(
        problem.d, rng=generator(problem.request.seed, *problem.start_stream), locked=known, start=begun
    )
    views = list[StepView]()
    forms = {np.dtype(dtype): data.astype(dtype) for dtype in (np.float32, np.float64)}
    while (outcome := problem.rule(views)) is None:
        block = algorithm.query(state).block
        form = forms[block.dtype]
        product = form @ block if problem.source.kind == "symmetric" else weight * (form.T @ (form @ block))
        state, info = algorithm.update(state, np.asarray(product, np.float64))
        views.append(
            StepView(
                step=state.step,
                ritz_values=info.ritz_values,
                residual_norms=info.residual_norms,
                precision=info.precision,
                missed=info.missed,
            )
        )
    return state, views[-1].step, outcome.name


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Steps that were predicted and steps that were needed. ``reached``: whether the run converged, and was to."""

    case: StepCase
    predicted: StepPrediction
    measured: int
    outcome: str

    @property
    def ratio(self) -> float:
        return self.predicted.steps / self.measured

    @property
    def short(self) -> bool:
        """Fewer steps were promised than were needed (or a tolerance that was never reached)."""
        return self.predicted.steps < self.measured or (self.predicted.reached and self.outcome == "max_steps")

    @property
    def near(self) -> bool:
        """Within the factor, or rightly not promised at all."""
        if self.outcome == "max_steps":
            return not self.predicted.reached or self.predicted.steps * FACTOR >= self.measured
        return 1 / FACTOR <= self.ratio <= FACTOR

    def said(self) -> str:
        c = self.case
        what = f"{c.spectrum}, {c.kind}, {c.dtype}, {c.algorithm}, k = {c.k}, p = {c.p}, tol {c.tol:.0e}"
        return f"{c.number} ({what}): predicted {self.predicted.steps}, took {self.measured}"


def compare(number: int, *, rows: int | None = None, law: str = "gaussian") -> Comparison:
    """Case ``number``: steps predicted from its spectrum, or from that of a sample of ``rows`` rows; and counted."""
    return compare_samples(number, (rows,), law)[0]


def compare_samples(number: int, samples: Sequence[int | None], law: str) -> list[Comparison]:
    """The same for several samples and one run; None: the spectrum itself."""
    case = step_case(number, law)
    plan: Any = SimpleNamespace(limit=None, base=0)  # no limit: all that draw_sample asks of a memory plan
    measured, outcome = measured_steps(case)
    found = []
    for rows in samples:
        eigenvalues = case.eigenvalues
        if rows is not None:
            sample = draw_sample(case.problem, plan, lambda: False, SampleBudget(side=rows, flops=0))
            assert sample is not None
            eigenvalues = sample.eigenvalues
        predicted = predict_steps(case.problem, eigenvalues, case.p)
        found.append(Comparison(case=case, predicted=predicted, measured=measured, outcome=outcome))
    return found


def shares(found: list[Comparison]) -> dict[str, Any]:
    """The two figures of the comparison, the spread of the ratios, and every case that missed."""
    ratios = [one.ratio for one in found if one.outcome == "converged"]
    return {
        "cases": len(found),
        "within_factor": float(np.mean([one.near for one in found])),
        "promised_too_few": float(np.mean([one.short for one in found])),
        "ratios_0_5_50_95_100": np.percentile(ratios, [0, 5, 50, 95, 100]).round(3).tolist(),
        "missed": [one.said() for one in found if not one.near],
        "too_few": [one.said() for one in found if one.short],
    }
