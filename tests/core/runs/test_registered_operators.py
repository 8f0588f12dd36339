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
from npmdask.cli.main import main
from npmdask.config import load_config
from npmdask.core.operators import Gram, SparseGram, View
from npmdask.core.runs.problem import OPERATORS, DerivedOperator, register_operator
from npmdask.core.runs.stages import MomentOperator
from npmdask.core.storage.source import Source
from npmdask.errors import BadInputError, RefusedError
from npmdask.manage.report import write_report
from npmdask.streaming.transform import transform
from tests.conftest import write_zarr
from tests.core.operators.test_operators import write_csr
from tests.core.runs.test_loop import Stop, StopAfter

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


@pytest.mark.slow
def test_a_run_is_planned_cut_short_resumed_and_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_zarr(tmp_path / "x.zarr", ROWS, (64, 12))
    config = tmp_path / "run.toml"
    config.write_text(
        f'[source]\npath = "{tmp_path}/x.zarr"\nkind = "samples"\noperator = "weighted"\n'
        f'[algorithm]\nname = "power"\ntarget_rank = 2\niteration_rank = 4\n[run]\nstore = "{tmp_path}/run"\n'
    )
    assert main(["plan", str(config)]) == 0
    assert "unknown" in capsys.readouterr().out, "a sample of the data says nothing of another operator"
    asked: dict[str, Any] = {"kind": "samples", "operator": "weighted", "algorithm": "power", "iteration_rank": 4}
    with pytest.raises(Stop):
        npmdask.top_k(tmp_path / "x.zarr", 2, **asked, store=tmp_path / "run", observer=StopAfter(2))
    assert main(["resume", str(tmp_path / "run")]) == 0
    whole = npmdask.top_k(tmp_path / "x.zarr", 2, **asked, store=tmp_path / "whole")
    again = npmdask.resume(tmp_path / "run")
    np.testing.assert_array_equal(again.basis, whole.basis)
    np.testing.assert_allclose(again.values, truth(ROWS)[:2], rtol=1e-9)
    write_report(tmp_path / "run", tmp_path / "run.md")
    assert "weighted" in (tmp_path / "run.md").read_text()


def test_every_command_says_whose_eigenvectors_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The data are a plain matrix, whose own values would be singular ones."""
    source, run = write_zarr(tmp_path / "x.zarr", ROWS, (64, 12)), tmp_path / "run"
    found = npmdask.top_k(source, 2, operator="weighted", store=run)
    assert main(["inspect", str(run)]) == 0 and "weighted" in capsys.readouterr().out
    write_report(run, tmp_path / "page.json")
    page = (tmp_path / "page.json").read_text()
    assert "weighted" in page and "singular value" not in page
    assert main(["export", str(run), str(tmp_path / "out.npz")]) == 0
    with np.load(tmp_path / "out.npz") as out:
        np.testing.assert_array_equal(out["values"], found.values)
        assert "left_basis" not in out
    assert main(["deflate", str(run), "1", "--store", str(tmp_path / "more")]) == RefusedError.exit_code


@pytest.mark.slow
def test_scores_are_of_columns(tmp_path: Path) -> None:
    """The eigenvectors of an operator on rows are no directions of the columns."""
    register_operator("of rows", of_rows)
    try:
        run, source = tmp_path / "run", write_zarr(tmp_path / "x.zarr", ROWS, (64, 12))
        assert npmdask.top_k(source, 1, operator="of rows", store=run).basis.shape == (300, 1)
        with pytest.raises(BadInputError, match="'of rows', which does not act on columns"):
            transform(run, source, tmp_path / "scores.npy")
    finally:
        del OPERATORS["of rows"]


@pytest.mark.parametrize("more, said", [("[stream]\n", "source.operator"), ("", "products of its rows")])
def test_streams_and_nodes_have_none(more: str, said: str, tmp_path: Path) -> None:
    """They would answer with products of the data themselves, and not say so."""
    write_zarr(tmp_path / "x.zarr", ROWS, (64, 12))
    file = tmp_path / "run.toml"
    file.write_text(
        '[source]\npath = "x.zarr"\noperator = "weighted"\n[algorithm]\ntarget_rank = 2\n[run]\nstore = "r"\n'
        + (more or '[mechanism]\nname = "none"\n')
    )
    config = load_config(file)
    with pytest.raises((BadInputError, RefusedError), match=said):
        config.stream_problem() if more else config.node()


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
