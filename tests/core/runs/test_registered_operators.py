"""An operator from outside: registered, and run through Python, configuration, plan, resume and report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix

import npmdask
from npmdask.config import load_config
from npmdask.core.operators import Gram, SparseGram, View
from npmdask.core.runs.problem import OPERATORS, DerivedOperator, register_operator
from npmdask.core.runs.stages import MomentOperator
from npmdask.core.storage.source import Source
from npmdask.errors import BadInputError, RefusedError
from tests.conftest import write_zarr
from tests.core.operators.test_operators import write_csr

WEIGHTS = np.random.default_rng(3).uniform(0.1, 4.0, 300)
ROWS = np.random.default_rng(4).standard_normal((300, 12)) * np.geomspace(9, 1, 12)


def weighted(source: Source) -> DerivedOperator:
    """``X^T diag(w) X``: row weights, by the View that operators take."""
    kind: Any = SparseGram if source.kind == "sparse" else Gram

    def made(reader: Any) -> Any:
        return kind(reader=reader, weight=1.0, view=View(row_weight=WEIGHTS))

    side = source.dimension
    return MomentOperator(kind="symmetric", name="weighted", side=side, made=made, facts={}, arrays=(WEIGHTS,))


class Askew(Gram):
    """No symmetric operator: the product with a rotation behind it."""

    def finish(self, total: Any, block: np.ndarray) -> np.ndarray:
        return np.roll(super().finish(total, block), 1, axis=0)


@dataclass(frozen=True, kw_only=True)
class Rows(Gram):
    """A diagonal matrix with a row for each row of the data."""

    @property
    def block_rows(self) -> int:
        return int(self.reader.shape[0])

    def partial(self, slabs: range, block: np.ndarray) -> Any:
        made = super().partial(slabs, np.zeros((self.reader.shape[1], block.shape[1])))
        return replace(made, sums={"product": np.zeros(block.shape)})

    def finish(self, total: Any, block: np.ndarray) -> np.ndarray:
        return block * np.arange(1.0, len(block) + 1)[:, None]


def of_rows(source: Source) -> DerivedOperator:
    side = source.shape[0]
    made = lambda reader: Rows(reader=reader, weight=1.0)  # noqa: E731
    return MomentOperator(kind="symmetric", name="of rows", side=side, made=made, facts={})


def askew(source: Source) -> DerivedOperator:
    side = source.dimension
    made = lambda reader: Askew(reader=reader, weight=1.0)  # noqa: E731
    return MomentOperator(kind="symmetric", name="askew", side=side, made=made, facts={})


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    register_operator("weighted", weighted)
    register_operator("askew", askew)
    yield
    del OPERATORS["weighted"], OPERATORS["askew"]


def truth(rows: np.ndarray) -> np.ndarray:
    values: np.ndarray = np.linalg.eigvalsh(rows.T @ (WEIGHTS[:, None] * rows))[::-1]
    return values


@pytest.mark.slow
@pytest.mark.parametrize("sparse", [False, True])
def test_its_values_are_those_of_the_matrix_written_out(sparse: bool, tmp_path: Path) -> None:
    rows = np.where(np.abs(ROWS) > 1, ROWS, 0)
    source = write_csr(tmp_path / "x.zarr", csr_matrix(rows), 64) if sparse else rows
    found = npmdask.top_k(source, 3, operator="weighted")
    np.testing.assert_allclose(found.values, truth(rows)[:3], rtol=1e-9)
    assert found.certificate is None, "npmdask knows no bound of an operator that is not its own"


def configured(folder: Path, more: str) -> Any:
    """A configuration of a run with the operator."""
    write_zarr(folder / "x.zarr", ROWS, (64, 12))
    tables = '[source]\npath = "x.zarr"\noperator = "weighted"\n[algorithm]\ntarget_rank = 2\n[run]\nstore = "r"\n'
    (folder / "run.toml").write_text(tables + more)
    return load_config(folder / "run.toml")


def test_one_that_is_not_symmetric_is_found_out(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="'askew' is not symmetric"):
        npmdask.top_k(ROWS, 2, operator="askew")


def test_another_operator_under_the_same_name_is_refused(tmp_path: Path) -> None:
    """Weights are part of what a run is bound to, and so is the name."""
    npmdask.top_k(ROWS, 2, operator="weighted", store=tmp_path / "run")
    with pytest.raises(RefusedError, match="belongs to"):
        npmdask.top_k(ROWS, 2, store=tmp_path / "run")
    with pytest.raises(BadInputError, match="there is an operator 'weighted' already"):
        register_operator("weighted", askew)


def test_a_run_with_other_weights_is_refused(tmp_path: Path) -> None:
    """The name is the same, and what it is made from is not."""
    npmdask.top_k(ROWS, 2, operator="weighted", store=tmp_path / "run")
    OPERATORS["weighted"] = lambda source: replace(weighted(source), arrays=(WEIGHTS + 1,))
    with pytest.raises(RefusedError, match="belongs to"):
        npmdask.top_k(ROWS, 2, operator="weighted", store=tmp_path / "run")


@pytest.mark.parametrize(
    "asked, said",
    [
        ({"operator": "weigthed"}, "unknown operator 'weigthed'.*weighted"),
        ({"operator": "weighted", "center": True}, "leave them out"),
        ({"operator": "weighted", "iteration_rank": 13}, "which is 12 x 12"),
        ({"operator": "weighted", "low_rank_tol": 0.1}, "leave them out"),
    ],
)
def test_what_does_not_fit_is_a_sentence(asked: dict[str, Any], said: str) -> None:
    with pytest.raises((BadInputError, RefusedError), match=said):
        npmdask.top_k(ROWS, 2, **asked)
