"""A small ingested data set with a granted budget, and private problems on it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npmdask.accounting import Budget
from npmdask.api import solve
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.runs.build import make_problem
from npmdask.core.runs.observers import Observer
from npmdask.core.runs.problem import Problem, Request
from npmdask.core.runs.resources import Resources
from npmdask.core.runs.restore import bind
from npmdask.core.runs.solution import Solution
from npmdask.core.storage.source import open_source
from npmdask.formats.ingest import ingest
from npmdask.ledger import Ledger, open_ledger
from npmdask.ledger.granting import grant_source
from npmdask.missing.rules import Fill, Gaps
from npmdask.privacy.account import Account
from npmdask.privacy.mechanisms import SymmetricGaussian
from npmdask.privacy.request import Privacy
from npmdask.weights.aspect import Weights
from tests.privacy.keys import seeded_keys  # noqa: F401

COLUMNS, RANK, STEPS = 12, 2, 3
POWER: dict[str, Any] = {"target_rank": RANK, "iteration_rank": 4, "max_steps": STEPS}
THREE_RUNS = Budget(1.85, 1e-6)  # of epsilon = 1
OJAS: dict[str, Any] = {"batch": 2000, "rates": [1.0, 1.0]}
OF_RECORDS: dict[str, dict[str, Any]] = {
    "tight": {"target_rank": RANK, "algorithm": "k-dp-pca", "options": {"steps": 3}},
    "one pass": {"target_rank": RANK, "algorithm": "k-dp-pca", "options": {"steps": 2, "reuse": False}},
    "paper": {"target_rank": 1, "algorithm": "k-dp-pca", "options": {"variant": "paper", **OJAS, "constant": 30.0}},
    "ojas": {"target_rank": RANK, "algorithm": "k-dp-ojas", "options": OJAS},
    "power": {"target_rank": RANK, "algorithm": "k-dp-power", "options": {"steps": 4}},
}


def records(rows: int, seed: int = 0) -> np.ndarray:
    """Rows of norm about 1 with two strong directions."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, COLUMNS)) * np.array([3.0, 2.0, *[0.3] * (COLUMNS - 2)])
    return x / np.linalg.norm(x, axis=1).mean()


@dataclass(frozen=True)
class World:
    """A data set, its ledger, and a promise."""

    folder: Path
    privacy: Privacy
    asked: dict[str, Any] = field(default_factory=POWER.copy)

    @property
    def data(self) -> Path:
        return self.folder / "x.zarr"

    @property
    def ledger(self) -> Ledger:
        return open_ledger(self.folder / "ledger.sqlite")

    def problem(self, privacy: dict[str, Any] | None = None, **request: Any) -> Problem:
        asked = self.asked | request
        return make_problem(
            open_source(self.data, exact=False),
            Request(privacy=replace(self.privacy, **(privacy or {})), **with_aspects(asked)),
        )

    def solve(self, store: str, problem: Problem | None = None, observer: Observer | None = None) -> Solution:
        return solve(problem or self.problem(), self.folder / store, Resources(), observer)


def make_world(
    folder: Path, x: np.ndarray, *, budget: Budget = THREE_RUNS, non_finite: str = "error", **privacy: Any
) -> World:
    """Ingest, and grant a budget, by default for three runs of epsilon 1."""
    folder.mkdir(exist_ok=True)
    np.save(folder / "x.npy", x)
    if x.ndim == 3:
        ingest(folder / "x.npy", folder / "x.zarr", kind="matrices")
    else:
        ingest(folder / "x.npy", folder / "x.zarr", kind="samples", chunks=(64, COLUMNS), non_finite=non_finite)
    promise = {"epsilon": 1.0, "delta": 1e-6, "neighboring_relation": "record_replace", "clip_norm": 1.5}
    asked = Privacy(**{**promise, "ledger": str(folder / "ledger.sqlite"), "dataset": "people", **privacy})
    world = World(folder, asked)
    grant_source(
        world.ledger,
        "people",
        world.data,
        relation=str(asked.neighboring_relation),
        clip_norm=float(asked.clip_norm or 1),
        change=1.0,
        budget=budget,
    )
    return world


def gappy(rows: int, share: float = 0.05) -> np.ndarray:
    """Records, of whose entries a share is missing."""
    x = records(rows)
    x[np.random.default_rng(1).random(x.shape) < share] = np.nan
    return x


def with_aspects(asked: dict[str, Any]) -> dict[str, Any]:
    """What is asked for, with the rule for missing values among its aspects."""
    asked = {"missing": "refuse", "fill": None, "missing_values": ()} | asked
    rule, fill, values = (asked.pop(name) for name in ("missing", "fill", "missing_values"))
    gaps = None if rule == "refuse" and not values else Gaps(rule=rule, fill=fill, values=values)
    return asked | {"aspects": (gaps, *asked.get("aspects", ()))}


def ruled(rows: int) -> dict[str, Any]:
    """A public rule, for a request: gaps count as numbers, and rows and columns have weights."""
    weights = Weights(rows=np.resize([1.0, 0.5, 2.0], rows), columns=np.linspace(0.5, 2.0, COLUMNS))
    return {"missing": "fill", "fill": Fill(values=np.linspace(-0.1, 0.1, COLUMNS)), "aspects": (weights,)}


def with_rule(folder: Path) -> World:
    """A world whose records have gaps, and a public rule for them."""
    world = make_world(folder / "world", gappy(4000), non_finite="missing")
    return replace(world, asked=POWER | ruled(4000))


def of_records(folder: Path, oracle: str) -> World:
    """A world for one of the oracles of records; the paper's finds ranges only at an epsilon beyond all privacy."""
    if oracle != "paper":
        return replace(make_world(folder / "world", records(4000)), asked=OF_RECORDS[oracle])
    world = make_world(folder / "world", records(4000), budget=Budget(60.0, 1e-6), epsilon=50.0, clip_norm=None)
    return replace(world, asked=OF_RECORDS[oracle])


def of_tensor(folder: Path, tensor: np.ndarray, **privacy: Any) -> World:
    """Ingest a tensor, and grant a budget for three runs of epsilon 1: two components, three steps each."""
    folder.mkdir(exist_ok=True)
    np.save(folder / "x.npy", tensor)
    ingest(folder / "x.npy", folder / "x.zarr", kind="tensor", chunks=(8, 8, 8))
    promise = {"epsilon": 1.0, "delta": 1e-6, "neighboring_relation": "tensor_entry", "clip_norm": 40.0}
    asked = Privacy(**{**promise, "ledger": str(folder / "ledger.sqlite"), "dataset": "people", **privacy})
    options = {"restarts": 3, "iterations": 2}
    world = World(folder, asked, {"target_rank": RANK, "algorithm": "tensor-power", "options": options})
    name, clip_norm = str(asked.neighboring_relation), float(asked.clip_norm or 1)
    grant_source(world.ledger, "people", world.data, relation=name, clip_norm=clip_norm, change=1.0, budget=THREE_RUNS)
    return world


def planted(d: int = 20, size: float = 4000.0, seed: int = 0) -> np.ndarray:
    """Two orthogonal components of weights ``size`` and 0.7 ``size``."""
    v = np.linalg.qr(np.random.default_rng(seed).standard_normal((d, RANK)))[0]
    tensor: np.ndarray = np.einsum("r,ir,jr,kr->ijk", size * np.array([1.0, 0.7]), v, v, v)
    return tensor


def sine_of_run(problem: Problem, truth: np.ndarray, seed: int) -> float:
    """Of the largest angle between the answer and ``truth`` (d x k), of a run as the driver makes it, but in memory and
    with noise from a seed."""
    rng, algorithm, base = np.random.default_rng(seed), problem.algorithm, problem.operator()
    state: Any = algorithm.init(problem.d, rng=rng)
    for _ in range(problem.rule.max_steps):
        query = algorithm.query(state)
        operator: Any = base if query.image_norm is None else replace(base, image_norm=query.image_norm)  # type: ignore[type-var]
        block, mechanism = (
            operator.prepare(query.block),
            problem.recipe.mechanism_of(operator, algorithm.iteration_rank, query),
        )
        parts = (operator.partial(range(i, i + 1), block) for i in range(operator.units))
        product = operator.finish(reduce(operator.join, parts), block) * mechanism.rounding.grid
        noise = mechanism.noise_stddev(block) * rng.standard_normal(product.shape)
        if isinstance(mechanism, SymmetricGaussian):
            noise = (noise + noise.T) / 2
        state, _ = algorithm.update(state, product + noise)
    vectors = algorithm.finalize(state).vectors
    return float(np.linalg.norm(vectors - truth @ (truth.T @ vectors), 2))


def prepared(world: World) -> Path:
    """A run that has its name, its reservation and its key, and nothing else."""
    problem, path = world.problem(), world.folder / "run"
    with RunStore(path, private=True) as held:
        bind(problem, held, Resources())
        Account(problem.private.privacy, problem.source, problem.mechanism, held).open([])
    return path


def twin(world: World, name: str) -> None:
    """Copies of the run and of the ledger, as they are now."""
    for what in ("run", "ledger.sqlite"):
        source, target = world.folder / what, world.folder / f"{name}-{what}"
        shutil.copytree(source, target) if source.is_dir() else shutil.copy2(source, target)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return make_world(tmp_path / "world", records(4000))
