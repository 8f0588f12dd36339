"""How a question sees the data: weighted rows and columns, centred and scaled, against NumPy, in any cut of a pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import zarr

import npmdask.core.operators._protocol as protocol
from npmdask.core.execution.executor import Threads
from npmdask.core.execution.reduction import (
    PassCheckpoint,
    TreeNode,
    compute_node,
    pack,
    root,
    runs_of,
    tasks_of,
    unpack,
)
from npmdask.core.operators import ColumnMoments, Gram, LeftProduct, SparseGram, View
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError
from tests.conftest import write_zarr
from tests.core.operators.test_operators import ignore, write_csr

M, D, K = 300, 12, 3


@pytest.fixture(autouse=True)
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many runs, so that weights must find their rows in each, and in rows that runs cut."""
    monkeypatch.setattr(protocol, "RUN_BYTES", 700)
    monkeypatch.setattr(protocol, "COLUMN_BYTES", 1)


def data(kind: str, folder: Path) -> tuple[Any, np.ndarray]:
    rng = np.random.default_rng(0)
    if kind == "sparse":
        matrix = sp.random(M, D, density=0.4, format="csr", rng=rng)
        matrix.data += 1
        return open_source(write_csr(folder / "s", matrix, 53)).reader, matrix.toarray()
    x = rng.standard_normal((M, D)) + 3
    x = x.astype(np.float32) if kind == "float32" else x
    return open_source(write_zarr(folder / "x", x, (7, 5))).reader, x.astype(np.float64)


def seen(x: np.ndarray, view: View) -> np.ndarray:
    """A, formed as its definition says."""
    a = x - (0 if view.shift is None else view.shift)
    a = a / (1 if view.scale is None else view.scale)
    a = a * np.sqrt(1 if view.column_weight is None else view.column_weight)
    return a * (1 if view.row_weight is None else np.sqrt(view.row_weight)[:, None])


def views(x: np.ndarray) -> dict[str, View]:
    rng = np.random.default_rng(1)
    rows, columns = rng.uniform(0, 2, M), rng.uniform(0.1, 2, D)
    rows[10:60] = 0
    mean = rows @ x / rows.sum()
    return {
        "rows": View(row_weight=rows),
        "rows, centred": View(row_weight=rows, shift=mean),
        "columns": View(column_weight=columns),
        "all": View(row_weight=rows, column_weight=columns, shift=mean, scale=x.std(0)),
        "none": View(shift=x.mean(0), scale=x.std(0)),
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rows", "rows, centred", "columns", "all", "none"])
@pytest.mark.parametrize("kind", ["dense", "float32", "sparse"])
def test_weighted_products_are_those_of_numpy_on_any_number_of_threads(kind: str, name: str, tmp_path: Path) -> None:
    reader, x = data(kind, tmp_path)
    view = views(x)[name]
    a, block = seen(x, view), np.linalg.qr(np.random.default_rng(2).standard_normal((D, K)))[0]
    operator: Any = SparseGram if kind == "sparse" else Gram
    operator = operator(reader=reader, view=view, weight=0.5)
    runs = runs_of(operator)
    assert len(runs) > 8
    product, record = Threads(3).run_pass(operator, block, ignore)
    np.testing.assert_allclose(product, 0.5 * a.T @ (a @ block), rtol=1e-10, atol=1e-10)
    alone, _ = Threads(1).run_pass(operator, block, ignore)
    np.testing.assert_array_equal(product, alone)
    done = {n: compute_node(operator, runs, n, block) for n in tasks_of(root(len(runs)), len(runs), [], 1)[::2]}
    again, other = Threads(2).run_pass(operator, block, ignore, PassCheckpoint(unpack(operator, *pack(operator, done))))
    np.testing.assert_array_equal(product, again)
    assert record == other and all(isinstance(node, TreeNode) for node in done)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_means_and_deviations_of_weighted_rows(kind: str, tmp_path: Path) -> None:
    reader, x = data(kind, tmp_path)
    view = views(x)["rows"]
    weights: Any = view.row_weight
    moments = ColumnMoments(reader=reader, view=view)
    (mean, std), _ = Threads(2).run_pass(moments, np.zeros((1, 1)), ignore)
    expected = np.average(x, axis=0, weights=weights)
    np.testing.assert_allclose(mean, expected)
    np.testing.assert_allclose(std, np.sqrt(np.average((x - expected) ** 2, axis=0, weights=weights)))
    a = seen(x, View(row_weight=weights, shift=mean, scale=std))
    found = View(row_weight=weights, shift=mean, scale=std).trace(mean, std, M)
    np.testing.assert_allclose(found, (a**2).sum())


@pytest.mark.slow
def test_left_products_are_of_the_weighted_rows(tmp_path: Path) -> None:
    reader, x = data("dense", tmp_path)
    view = views(x)["all"]
    a, block = seen(x, view), np.linalg.qr(np.random.default_rng(2).standard_normal((D, K)))[0]
    left = zarr.create_array({}, shape=(M, K), dtype="f8", chunks=(7, K))
    both, _ = Threads(2).run_pass(LeftProduct(reader=reader, view=view, target=left), block, ignore)
    np.testing.assert_allclose(left[...], a @ block, atol=1e-12)
    np.testing.assert_allclose(both, np.concatenate([a.T @ (a @ block), (a @ block).T @ (a @ block)]), atol=1e-9)


def test_what_a_view_cannot_be() -> None:
    for weights in (np.array([1.0, -1.0]), np.array([1.0, np.nan])):
        with pytest.raises(BadInputError, match="row_weight must be finite and not negative"):
            View(row_weight=weights)


def test_what_float32_does_not_hold_is_centred_before_it_is_rounded() -> None:
    """A gap that is filled with a mean, among float32 rows. Mutant: the difference is taken in float32."""
    values = 1_573_785.123 + np.arange(6.0).reshape(2, 3) / 7
    shift = np.float64(np.float32(1_573_785.1)) * np.ones(3)
    seen = View(shift=shift).tile(values, slice(0, 2), slice(0, 3), np.float32)
    np.testing.assert_allclose(seen, values - shift, rtol=1e-6)
