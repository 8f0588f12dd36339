"""What is refused, and that it is about what was asked: the same question without it is answered."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.sparse.linalg import aslinearoperator

import npmdask
from npmdask.accounting import Budget
from npmdask.cli.main import main
from npmdask.core.operators import Gram
from npmdask.core.runs.problem import OPERATORS, register_operator
from npmdask.core.runs.stages import MomentOperator
from npmdask.errors import BadInputError, NpmdaskError, RefusedError
from npmdask.formats.ingest import ingest
from tests.privacy.runs.conftest import make_world, records

RNG = np.random.default_rng(0)
ROWS = RNG.standard_normal((60, 8)) * np.arange(8.0, 0.0, -1.0)
GAPPY = np.where(RNG.random(ROWS.shape) < 0.1, np.nan, ROWS)
COMPLEX = ROWS + 1j * RNG.standard_normal(ROWS.shape)
CSR = sp.csr_array(np.where(np.abs(ROWS) > 1, ROWS, 0))
ROW_WEIGHTS, COLUMN_WEIGHTS = RNG.uniform(0.5, 2, 60), RNG.uniform(0.5, 2, 8)
SAMPLES: dict[str, Any] = {"kind": "samples", "center": True}
EM, PAIRWISE = SAMPLES | {"missing": "em", "max_steps": 3}, SAMPLES | {"missing": "pairwise"}
NOISE: dict[str, Any] = {"mechanism": "gaussian", "stddev": 0.1}
POWER = {"algorithm": "power"}
PRIVATE: dict[str, Any] = {"max_steps": 3, "kind": "samples"}
REMEDY = re.compile(
    r"\b(leave|give|set|use|choose|ask|subtract|at most|store|goes with|takes neither|whole numbers|did you mean)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Question:
    """A question that is answered, what is refused in it, and what is said of that. ``k`` is among the options."""

    of: str
    refused: dict[str, Any]
    says: str
    whole: dict[str, Any] = field(default_factory=dict)
    error: type[NpmdaskError] = RefusedError


def wrong(of: str, refused: dict[str, Any], says: str, whole: dict[str, Any] | None = None) -> Question:
    """A value that is wrong wherever it is given."""
    return Question(of, refused, says, whole or {}, BadInputError)


ANSWERED: set[str] = set()  # questions that several refusals are made of
LOW_RANK = {"low_rank_tol": 0.1}
START = {"start": "done"}
QUESTIONS = {
    "weights of other rows": wrong("rows", {"row_weights": ROW_WEIGHTS[:5]}, "there are 5 row_weights"),
    "weights of a symmetric matrix": wrong(
        "square",
        {"row_weights": COLUMN_WEIGHTS},
        "row_weights apply to data with rows and columns",
        {"kind": "symmetric"},
    ),
    "weights of a tensor": wrong("tensor", {"column_weights": np.ones(4)}, "is of kind tensor"),
    "row weights of a Gram": wrong("gram", {"row_weights": ROW_WEIGHTS}, "in which the rows are already summed"),
    "weights of products": Question("products", {"row_weights": ROW_WEIGHTS}, "a weight of rows or columns needs rows"),
    "row weights of pairs": Question(
        "gappy", {"row_weights": ROW_WEIGHTS}, "row_weights with missing = 'pairwise'", PAIRWISE
    ),
    "a share of pairs": Question(
        "gappy", {"k": 0.9}, "target_rank = 0.9 is a share, and missing = 'pairwise'", PAIRWISE
    ),
    "a start of pairs": Question("gappy", START, "leave the earlier run (a start, deflation) out", PAIRWISE),
    "a tolerance of pairs": Question("gappy", LOW_RANK, "low_rank_tol = 0.1 ends a run", PAIRWISE),
    "pairs by power": wrong("gappy", POWER, "which algorithm = 'power' does not: leave algorithm out", PAIRWISE),
    "pairs with noise": Question("gappy", NOISE, "not for other operators or simulated noise", PAIRWISE),
    "a share of a model": Question("gappy", {"k": 0.9}, "target_rank = 0.9 with missing = 'em'", EM),
    "a start of a model": Question("gappy", START, "a start or deflation with missing = 'em'", EM),
    "a model by krylov": wrong("gappy", {"algorithm": "krylov"}, "missing = 'em' is an algorithm of its own", EM),
    "all of a model": wrong("gappy", {"k": 8}, "needs a direction for noise alone, so at most 7", EM),
    "a tolerance of a model": Question("gappy", LOW_RANK, "missing = 'em' has none", EM),
    "gaps of products": Question("products", {"missing": "mean"}, "a rule for missing values needs rows or entries"),
    "gaps of a Gram": Question(
        "gram", {"missing": "mean"}, "a stored Gram, which has no missing values", {"center": True}
    ),
    "gaps of CSR": Question(
        "csr", {"missing": "mean"}, "is sparse, whose entries that are not stored are zeros", {"center": True}
    ),
    "a limit of dropped columns": wrong(
        "rows", {"missing_limit": 0.4}, "it goes with missing = 'mean'", SAMPLES | {"missing": "drop-columns"}
    ),
    "chosen of plain rows": wrong("rows", {"k": "auto"}, "works with missing = 'em' only"),
    "noise of complex rows": Question("complex", NOISE, "mechanism = 'gaussian' is for real numbers"),
    "a share of complex rows": Question("complex", {"k": 0.9}, "a share of the variance is for real numbers"),
    "a start from real rows": Question("complex", START, "has 8 complex ones", SAMPLES),
    "centred products": Question("products", {"center": True}, "center needs rows or entries"),
    "formed products": Question("products", {"algorithm": "gram"}, 'algorithm = "gram" needs rows or entries'),
    "a share of a tensor": Question("tensor", {"k": 0.9}, "is a share of the variance, and a tensor has none"),
    "a centred tensor": wrong("tensor", {"center": True}, "kind = 'tensor' takes neither"),
    "a tensor by krylov": wrong("tensor", {"algorithm": "krylov"}, "only the tensor power methods (tensor-power)"),
    "columns of a tensor": wrong("tensor", {"iteration_rank": 3}, "set options = { restarts = ... }"),
    "noise of a tensor": Question("tensor", NOISE, "mechanism = 'gaussian' is for matrices"),
    "a start of a tensor": Question("tensor", START, "whose runs start from their seed"),
    "rows as a tensor": wrong("rows", {"algorithm": "tensor-power"}, "tensor-power is for symmetric tensors"),
    "a centred private run": Question("private", {"center": True}, "a private run does not centre or scale", PRIVATE),
    "a private share": Question("private", {"k": 0.9}, "a private run takes whole numbers", PRIVATE),
    "a private choice": Question("private", {"k": "auto"}, "a private run takes whole numbers", PRIVATE),
    "a private tolerance": Question("private", {"tol": 1e-3}, "a private run stops after max_steps releases", PRIVATE),
    "a private run by krylov": Question(
        "private", {"algorithm": "krylov"}, "algorithm = 'krylov' is not for private", PRIVATE
    ),
    "a private run with noise": Question("private", NOISE, "mechanism = 'gaussian' is not for private runs", PRIVATE),
    "a private start": Question("private", START, "a private run starts from its public seed", PRIVATE),
    "private gaps without a rule": Question(
        "private gaps",
        {"missing": "refuse", "missing_fill": None},
        "set missing = 'fill' with a public missing_fill",
        PRIVATE | {"missing": "fill", "missing_fill": 0.0},
    ),
    "steps of a covariance": wrong(
        "private", {"max_steps": 3}, "the covariance is released once", {"algorithm": "covariance"}
    ),
    "options of a covariance": wrong(
        "private", {"options": {"a": 1}}, "algorithm.options are for", {"algorithm": "covariance"}
    ),
    "a covariance in public": wrong("rows", {"algorithm": "covariance"}, "covariance is a private method"),
    "a start of a Gram": Question("gram", START, "without rows: a start is for rows; leave it out"),
    "noise of a Gram": Question("gram", NOISE, "without rows: mechanism is for rows; leave it out"),
    "a Gram by power": Question("gram", POWER, "decomposed and not multiplied: leave algorithm = 'power' out"),
    "options of a Gram": Question(
        "gram", {"options": {"basis_blocks": 3}}, "algorithm.options are for rows; leave them out"
    ),
    "disk of a Gram": Question("gram", POWER | {"options": {"blocks": "disk"}}, "leave algorithm = 'power' out"),
    "columns of a share": wrong(
        "rows", {"iteration_rank": 5}, "for which the search chooses iteration_rank", {"k": 0.9}
    ),
    "noise of a share": Question("rows", NOISE, "which cannot be measured under noise", {"k": 0.9}),
    "a start of a share": Question(
        "rows", START, "whose search starts by itself; leave `start` out", {"k": 0.9} | SAMPLES
    ),
    "a share that is formed": Question(
        "rows", {"k": 0.9}, "a share of the variance needs an algorithm that", {"algorithm": "gram"}
    ),
    "a start that is formed": Question("rows", START, 'leave algorithm = "gram" out', SAMPLES | {"algorithm": "gram"}),
    "noise that is reused": Question("rows", {"algorithm": "krylov"}, "use 'power' with a noise mechanism", NOISE),
    "noise of a start": Question("rows", NOISE, "start cannot be combined with mechanism", SAMPLES | START),
    "a start of other columns": Question("few columns", START, "a warm start needs the same columns"),
    "dense blocks on disk": Question("rows", {"options": {"blocks": "disk"}}, 'blocks = "disk":', POWER),
    "a start on disk": Question(
        "csr", START, "take blocks of an earlier run into memory", POWER | {"options": {"blocks": "disk"}}
    ),
    "a start with momentum": Question(
        "rows", START, "momentum needs a random start", SAMPLES | POWER | {"options": {"momentum": "auto"}}
    ),
    "options of nothing": wrong("rows", {"options": {"blocks": "ram"}}, 'there are blocks = "disk"', POWER),
    "an algorithm of streams": wrong("rows", {"algorithm": "oja"}, "npmdask.stream_pca(..., algorithm='oja')"),
    "an unknown algorithm": wrong("rows", {"algorithm": "krylof"}, "did you mean 'krylov'?"),
    "a centred operator": Question(
        "rows", {"center": True}, "work with npmdask's own operators only", {"operator": "own"}
    ),
    "all of an operator": wrong("rows", {"k": 12}, "the operator 'own' is 8 x 8", {"operator": "own"}),
    "an operator of a tensor": Question("tensor", {"operator": "own"}, "leave one of the two out"),
    "an operator of a Gram": Question("gram", {"operator": "own"}, "has no rows here, which the operator 'own'"),
    "too many components": wrong("rows", {"k": 20}, "at most 8 components exist"),
}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Everything that is asked of, by name; "done": a run to start from."""
    folder = tmp_path_factory.mktemp("refusals")
    arrays = {"x": ROWS, "t": tensor()}
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    ingest(folder / "x.npy", folder / "x.zarr", kind="samples", chunks=(20, 8))
    ingest(folder / "t.npy", folder / "t.zarr", kind="tensor")
    assert main(["gram", str(folder / "x.zarr"), str(folder / "G"), "--quiet"]) == 0
    npmdask.top_k(folder / "x.zarr", 2, store=folder / "done", **SAMPLES)
    promise: dict[str, Any] = {
        "epsilon": 1.0,
        "delta": 1e-6,
        "neighboring_relation": "record_replace",
        "clip_norm": 1.5,
    }
    x, budget = records(60), Budget(1000.0, 1e-3)
    private = make_world(folder / "private", x, budget=budget, **promise)
    gaps = np.where(RNG.random(x.shape) < 0.1, np.nan, x)
    private_gaps = make_world(folder / "gaps", gaps, budget=budget, non_finite="missing", **promise)
    return {
        "rows": ROWS,
        "few columns": ROWS[:, :5],
        "gappy": GAPPY,
        "wide gaps": np.ascontiguousarray(GAPPY.T),
        "complex": COMPLEX,
        "square": ROWS.T @ ROWS,
        "csr": CSR,
        "products": aslinearoperator(ROWS),
        "tensor": folder / "t.zarr",
        "gram": folder / "G",
        "private": private,
        "private gaps": private_gaps,
        "done": folder / "done",
    }


def tensor() -> np.ndarray:
    """Four components that are orthogonal."""
    axes = np.linalg.qr(RNG.standard_normal((4, 4)))[0]
    return np.einsum("w,iw,jw,kw->ijk", np.array([3.0, 2.0, 1.0, 0.5]), axes, axes, axes)


@pytest.fixture
def own() -> Any:
    """An operator from outside."""

    def made(source: Any) -> MomentOperator:
        return MomentOperator(
            kind="symmetric",
            name="own",
            side=source.dimension,
            made=lambda reader: Gram(reader=reader, weight=1.0),
            facts={},
            arrays=(),
        )

    register_operator("own", made)
    yield
    del OPERATORS["own"]


@pytest.fixture
def ask(sources: dict[str, Any], tmp_path: Path, own: None) -> Callable[..., Any]:
    """Put a question to a source by its name; a private one with its promise, in a store of its own."""

    def asked(of: str, **how: Any) -> Any:
        source, k = sources[of], how.pop("k", 2)
        if "start" in how:
            how["start"] = sources[how["start"]]
        if of.startswith("private"):
            how |= {"privacy": source.privacy, "store": tmp_path / f"run{len(list(tmp_path.iterdir()))}"}
            source = source.data
        return npmdask.top_k(source, k, **how)

    return asked


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", QUESTIONS)
def test_what_is_refused_is_said_and_the_rest_is_answered(name: str, ask: Callable[..., Any]) -> None:
    """Mutant: any line of a table of refusals that is left out, or whose condition is wider."""
    question = QUESTIONS[name]
    with pytest.raises(NpmdaskError, match=re.escape(question.says)) as refused:
        ask(question.of, **question.whole | question.refused)
    assert type(refused.value) is question.error and REMEDY.search(str(refused.value))
    whole = f"{question.of} {question.whole}"
    if whole not in ANSWERED:
        assert len(ask(question.of, **question.whole).values)
        ANSWERED.add(whole)


COMMANDS = {
    "a centred tensor": ("t.zarr", ["--center"], 2, "kind = 'tensor' takes neither"),
    "a Gram by power": ("G", ["--algorithm", "power"], 3, "leave algorithm = 'power' out"),
    "a model that is not centred": ("x.zarr", ["--missing", "em"], 2, "Centre the columns (center = True, --center)"),
    "an unknown key": ("x.zarr", ["--set", "algorithm.blocks=3"], 2, "unknown key 'algorithm.blocks'"),
    "an unknown table": ("x.zarr", ["--set", "algoritm.name=krylov"], 2, "did you mean 'algorithm.name'?"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_says_the_same(
    name: str, sources: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    of, more, code, says = COMMANDS[name]
    command = ["run", str(sources["done"].parent / of), "-k", "2", "--quiet", "--store"]
    assert main([*command, str(tmp_path / "refused"), *more]) == code
    assert says in capsys.readouterr().err
    assert main([*command, str(tmp_path / "whole")]) == 0
