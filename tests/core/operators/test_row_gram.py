"""``A A^T``, and products with it, are those of the matrix, whatever the layout, the means and the weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import zarr

from npmdask.core.algorithms import Query
from npmdask.core.execution.executor import Threads
from npmdask.core.execution.reduction import TreeNode, pack, runs_of, unpack
from npmdask.core.operators import Gram, View
from npmdask.core.operators import row_gram as passes
from npmdask.core.operators.row_gram import RowGram, RowProducts
from npmdask.core.storage.source import open_source
from tests.core.operators.test_operators import ignore


def viewed(rng: np.random.Generator, x: np.ndarray) -> tuple[View, np.ndarray]:
    """A random view of data, and what it shows of them (m x d)."""
    m, d = x.shape
    rows, columns, scale = (
        rng.uniform(0, 3, size) * (rng.random(size) < 0.8) + 0.1 if rng.random() < 0.5 else None for size in (m, d, d)
    )
    center, known = bool(rng.random() < 0.6), bool(rng.random() < 0.5)
    mean = np.average(x.astype(float), axis=0, weights=rows)
    view = View(
        shift=mean if center and known else None,
        to_centre=center and not known,
        scale=scale,
        row_weight=rows,
        column_weight=columns,
    )
    a = (x.astype(float) - mean * center) / (1 if scale is None else scale)
    a = a * np.sqrt(np.ones(m) if rows is None else rows)[:, None] * np.sqrt(np.ones(d) if columns is None else columns)
    return view, a


def problem(seed: int, patch: pytest.MonkeyPatch) -> tuple[Gram, np.ndarray, np.ndarray]:
    """An operator with random chunks and view, what it shows of the data (m x d), and the data."""
    rng = np.random.default_rng(seed)
    m, d = int(rng.integers(2, 40)), int(rng.integers(2, 120))
    x = (rng.integers(0, 100, (m, d)) + float(rng.choice([0, 1e6]))).astype(rng.choice(["f4", "f8", "i4", ">f4"]))
    chunks = (int(rng.integers(1, m + 1)), int(rng.integers(1, d + 1)))
    z = zarr.create_array({}, shape=(m, d), dtype=x.dtype, chunks=chunks, config={"write_empty_chunks": True})
    z[...] = x
    patch.setattr(passes, "RUN_BYTES", int(rng.choice([1, 10**9])))
    patch.setattr(passes, "STRIP_COLUMNS", (1, int(rng.integers(1, 20))))
    view, a = viewed(rng, x)
    return Gram(reader=open_source(z).reader, weight=1 / m, view=view), a, x.astype(float)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(40))
def test_any_layout(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of parts as a checkpoint keeps them. Mutants: a part's columns at another's place, weights squared."""
    gram, a, x = problem(seed, monkeypatch)
    (m, d), rng = a.shape, np.random.default_rng(seed)
    block, matrix = rng.standard_normal((m, 3)), a @ a.T / m
    formed: Any = gram.asked(Query(block, whole="float64", of_rows=True))
    assert isinstance(formed, RowGram)
    product, record = Threads(2).run_pass(formed, block, ignore)
    found, moments = formed.apart(product)
    size = float(np.abs(a).max()) ** 2 * d / m + 1e-300
    np.testing.assert_allclose(found, np.c_[matrix, matrix @ block], rtol=0, atol=1e-9 * size * m)
    assert (found[:, :m] == found[:, :m].T).all()
    weights, mean = gram.view.row_weight, np.average(x, axis=0, weights=gram.view.row_weight)
    np.testing.assert_allclose(moments["column_mean"], mean, rtol=1e-13)
    std = np.sqrt(np.average((x - mean) ** 2, axis=0, weights=weights))
    np.testing.assert_allclose(moments["column_std"], std, rtol=1e-9, atol=1e-12 * np.abs(x).max())
    assert record.bytes_read == formed.reader.nbytes and len(record.checksums) == formed.pass_chunks
    operators: list[Any] = [formed]
    if not gram.view.to_centre:
        times: Any = gram.asked(Query(block, of_rows=True))
        assert isinstance(times, RowProducts)
        both = Threads(2).run_pass(times, block, ignore)[0]
        np.testing.assert_allclose(both[:d], a.T @ block / m**0.5, rtol=0, atol=1e-9 * size * m)
        np.testing.assert_allclose(both[d:], matrix @ block, rtol=0, atol=1e-9 * size * m)
        operators.append(times)
    for operator in operators:
        parts = {TreeNode(0, i): operator.partial(run, block) for i, run in enumerate(runs_of(operator))}
        again = unpack(operator, *pack(operator, parts))
        for node, part in parts.items():
            assert again[node].sums.keys() == part.sums.keys() and again[node].record == part.record
            assert all(np.array_equal(again[node].sums[name], part.sums[name]) for name in part.sums)


@pytest.mark.parametrize("size", [1.0, 1e-30, 1e25])
def test_float32_is_of_the_matrix_alone_and_of_what_it_holds(size: float) -> None:
    """The product with the block is float64, so that it shows how far off the matrix is. Mutants: a block that is
    multiplied by the rounded strip; strips that are rounded whatever their size.
    """
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((40, 3000)) * size).astype(np.float32)
    z = zarr.create_array({}, shape=x.shape, dtype=x.dtype, chunks=(30, 700))
    z[...] = x
    block, exact = np.linalg.qr(rng.standard_normal((40, 3)))[0], x.astype(float) @ x.astype(float).T
    gram = Gram(reader=open_source(z).reader, weight=1.0)
    formed: Any = gram.asked(Query(block, whole="float32", of_rows=True))
    found = formed.apart(Threads(1).run_pass(formed, block, ignore)[0])[0]
    off = np.abs(found[:, :40] - exact).max() / exact.max()
    assert (1e-9 < off < 1e-6) if size == 1 else off < 1e-12
    np.testing.assert_allclose(found[:, 40:], exact @ block, rtol=0, atol=1e-12 * exact.max())
    whole: Any = gram.asked(Query(block, whole="float64", of_rows=True))
    assert formed.arithmetic != whole.arithmetic, "or a store would join parts of both"


def test_products_take_the_means_that_a_pass_has_found() -> None:
    reader: Any = open_source(np.eye(3)).reader
    with pytest.raises(AssertionError, match="only a pass that forms the matrix finds them"):
        Gram(reader=reader, view=View(to_centre=True)).asked(Query(np.eye(3), of_rows=True))
