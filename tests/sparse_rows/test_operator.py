"""``A A^T`` of few sparse rows, and products with it, are those of the matrix, whatever columns, chunks and weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from npmdask.core.algorithms import Query
from npmdask.core.execution.executor import Threads
from npmdask.core.execution.reduction import TreeNode, pack, runs_of, unpack
from npmdask.core.operators import SparseGram, View, gram_matrix, row_gram
from npmdask.core.storage.source import open_source
from npmdask.sparse_rows import row_gram as sparse_row_gram
from npmdask.sparse_rows.row_gram import SparseRowGram, SparseRowProducts
from tests.core.operators.test_operators import ignore, write_csr
from tests.core.operators.test_row_gram import viewed


def entries(rng: np.random.Generator, m: int, d: int) -> np.ndarray:
    """Columns with nearly no entries, with most, and with all, some of these far from zero; rows without any."""
    share = rng.choice([0.02, 0.1, 0.6, 1.0], d, p=[0.3, 0.4, 0.2, 0.1])
    x = rng.integers(-9, 100, (m, d)) + rng.choice([0, 0, 1e6], d)
    x[rng.random((m, d)) > share] = 0
    x[rng.random(m) < 0.1] = 0
    x[0, 0] = 5
    return x.astype(rng.choice(["f4", "f8", "i4", "i8"]))


def problem(seed: int, folder: Path, patch: pytest.MonkeyPatch) -> tuple[SparseGram, np.ndarray, np.ndarray, int]:
    """An operator with random chunks and view, what it shows of the data (m x d), the data, and parts to read."""
    rng = np.random.default_rng(seed)
    m, d = int(rng.integers(2, 60)), int(rng.integers(2, 150))
    x = entries(rng, m, d)
    stored = sp.csr_matrix(x)
    if seed % 3 == 0:  # an entry in two parts
        halves = stored.data // 2
        parts = np.concatenate([halves, stored.data - halves]), np.tile(stored.tocoo().coords[1], 2)
        order = np.argsort(np.tile(stored.tocoo().coords[0], 2), kind="stable")
        stored = sp.csr_matrix((parts[0][order], parts[1][order], 2 * stored.indptr), shape=x.shape)
    path = write_csr(folder / "x.zarr", stored, int(rng.integers(1, stored.nnz + 2)))
    patch.setattr(row_gram, "RUN_BYTES", int(rng.choice([1, 10**9])))
    patch.setattr(row_gram, "FEW_RUNS", 10**9)
    patch.setattr(row_gram, "STRIP_COLUMNS", (1, int(rng.integers(1, 20))))
    patch.setattr(sparse_row_gram, "STRIP_COLUMNS", (1, int(rng.integers(1, 20))))
    patch.setattr(sparse_row_gram, "LEAST", 1)
    patch.setattr(sparse_row_gram, "UNEVEN", rng.choice([0.05, 1, 2]))
    patch.setattr(gram_matrix, "BATCH_ENTRIES", int(rng.choice([50, 10**6])))
    view, a = viewed(rng, x)
    source: Any = open_source(path, "sparse")
    return SparseGram(reader=source.reader, weight=1 / m, view=view), a, x.astype(float), int(rng.integers(1, 9))


@pytest.mark.parametrize("seed", range(60))
def test_any_columns(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of columns that are read again, for there are too many entries, and of parts as a checkpoint keeps them.

    Mutants: a mean that is not weighted, the second half of what centring takes off, columns behind those that were
    read again, a filled column that is counted as a sparse one, too.
    """
    gram, a, x, parts = problem(seed, tmp_path, monkeypatch)
    (m, d), rng = a.shape, np.random.default_rng(seed)
    block, matrix = rng.standard_normal((m, 3)), a @ a.T / m
    formed: Any = gram.asked(Query(block, whole="float64", of_rows=parts))
    assert isinstance(formed, SparseRowGram) and formed.units == parts
    product, record = Threads(2).run_pass(formed, block, ignore)
    found, moments = formed.apart(product)
    away = np.abs(a).max(axis=0) @ np.abs(a).max(axis=0) / m + 1e-300  # of columns far from zero only what is left
    np.testing.assert_allclose(found, np.c_[matrix, matrix @ block], rtol=0, atol=1e-11 * away * m)
    assert (found[:, :m] == found[:, :m].T).all()
    weights, mean = gram.view.row_weight, np.average(x, axis=0, weights=gram.view.row_weight)
    np.testing.assert_allclose(moments["column_mean"], mean, rtol=1e-12, atol=1e-12)
    std = np.sqrt(np.average((x - mean) ** 2, axis=0, weights=weights))
    np.testing.assert_allclose(moments["column_std"], std, rtol=1e-9, atol=1e-12 * np.abs(x).max())
    assert len(record.checksums) * parts == formed.pass_chunks
    assert formed.pass_chunks <= record.chunks or parts > d, "all are read for each part, some again"
    operators: list[Any] = [formed]
    if not gram.view.to_centre:
        times: Any = gram.asked(Query(block, of_rows=parts))
        assert isinstance(times, SparseRowProducts)
        both = Threads(2).run_pass(times, block, ignore)[0]
        np.testing.assert_allclose(both[:d], a.T @ block / m**0.5, rtol=0, atol=1e-11 * away * m)
        np.testing.assert_allclose(both[d:], matrix @ block, rtol=0, atol=1e-11 * away * m)
        operators.append(times)
    for operator in operators:
        kept = {TreeNode(0, i): operator.partial(run, block) for i, run in enumerate(runs_of(operator))}
        again = unpack(operator, *pack(operator, kept))
        for node, part in kept.items():
            assert again[node].sums.keys() == part.sums.keys() and again[node].record == part.record
            assert all(np.array_equal(again[node].sums[name], part.sums[name]) for name in part.sums)


def test_a_mean_of_few_rows_with_most_of_the_weight_is_taken_off_before(tmp_path: Path) -> None:
    """Mutant: only their number counts; then five digits are left of what lies a million deviations from zero."""
    rng, x = np.random.default_rng(0), np.zeros((60, 90))
    x[:5] = 1e6 + rng.standard_normal((5, 90))
    weights = np.where(np.arange(60) < 5, 1.0, 1e-30)
    source: Any = open_source(write_csr(tmp_path / "x.zarr", sp.csr_matrix(x), 100), "sparse")
    gram = SparseGram(reader=source.reader, view=View(to_centre=True, row_weight=weights))
    formed, block = gram.asked(Query(np.eye(60, 3), whole="float64", of_rows=2)), np.eye(60, 3)
    found = formed.apart(Threads(1).run_pass(formed, block, ignore)[0])[0]
    a = (x - np.average(x, axis=0, weights=weights)) * np.sqrt(weights)[:, None]
    np.testing.assert_allclose(found[:, :60], a @ a.T, rtol=0, atol=1e-7)
