"""How often a tensor in a store is read as a whole for 20 components: six problems, errors as of one a round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import npmdask
from benchmarks.registry import Context, Measured, Row
from benchmarks.tensor_cases import matched
from npmdask.core.storage.source import open_source
from npmdask.synthetic import generate

D, K = 100, 20
LARGEST = (1.0, 4.0)  # the smallest is 1: all weights equal, or falling from 4
NOISES = (0.0, 0.01, 0.03)  # standard deviation before the mean over the six orders of the indices
LOUDER = 6**0.5  # by which that mean makes it less; noise as loud as it was before is beyond what can be recovered
WORSE = 1.05  # times the error of the other way; both are noise of the data, not of the solver
EXACT = 1e-6


def measure(context: Context) -> Measured:
    """Harvest, the default, on all six; beside it one component a round, whose errors are what ours are held to."""
    d, k = context.sized(40, D), context.sized(6, K)
    found: dict[str, dict[str, Any]] = {}
    for largest in LARGEST:
        for noise in NOISES:
            name = f"weights {largest:g}..1, noise {noise:g}"
            path = make(context.folder / name.replace(" ", "-"), d, k, largest, noise / LOUDER)
            found[name] = {"harvest": _solve(path, k, {}), "a round each": _solve(path, k, {"harvest": False})}
    failures = [f"{name}: {said}" for name, facts in found.items() for said in _wrong(facts)]
    name, most = max(((name, facts["harvest"]["reads"]) for name, facts in found.items()), key=lambda pair: pair[1])
    beyond = {
        f"weights {largest:g}..1, noise {NOISES[-1]:g} on every entry": _solve(
            make(context.folder / f"beyond-{largest:g}", d, k, largest, NOISES[-1]), k, {}
        )
        for largest in LARGEST
    }
    details = {"d": d, "k": k, "worst": name, "cases": found, "beyond": beyond}
    return Measured(most, details, f"{name}: noise makes fixed points attract slowly", tuple(failures))


def make(path: Path, d: int, k: int, largest: float, noise: float) -> Path:
    """One problem in a store, with its truth."""
    sort = {"noise": "gaussian", "noise_level": noise} if noise else {}
    weights = {"largest": largest, "smallest": 1.0}
    generate(path, problem="tensor", columns=d, rank=k, dtype="float64", **weights, **sort)
    return path


def _solve(path: Path, k: int, options: dict[str, Any]) -> dict[str, Any]:
    source = open_source(path)
    solution = npmdask.top_k(path, k, options=options)
    assert solution.bytes_read is not None and source.truth is not None
    return {
        "reads": round(solution.bytes_read / source.reader.nbytes, 4),
        "products": solution.steps,
        "vector_error": float(matched(solution.basis, np.asarray(source.truth.basis)).max()),
        "found": solution.facts["status"].count("found"),
        "status": solution.outcome.name,
    }


def _wrong(facts: dict[str, dict[str, Any]]) -> list[str]:
    ours, other = facts["harvest"], facts["a round each"]
    said = [] if ours["found"] >= other["found"] else [f"{ours['found']} components, {other['found']} a round each"]
    if ours["vector_error"] > max(EXACT, WORSE * other["vector_error"]):
        said.append(f"vector error {ours['vector_error']:.2e}, {other['vector_error']:.2e} a round each")
    return said


ROWS = (
    Row(
        name="tensor-reads",
        what="full reads of a stored tensor for k = 20, d = 100: the worst of six weights and noises",
        target=50.0,
        better="lower",
        run=measure,
    ),
)
