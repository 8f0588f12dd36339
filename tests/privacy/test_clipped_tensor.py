"""Private contractions of a tensor with bounded entries: the error is what is said, from public numbers only."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.storage import MemoryStore

from npmdask.core.execution.executor import Threads
from npmdask.core.execution.reduction import runs_of
from npmdask.errors import BadInputError
from npmdask.privacy.clipped_entries import BoundedTensor
from npmdask.symmetric.operator import PackedTensor
from tests.symmetric.test_packed_tensor import ignore, stored, symmetric


def operator_of(tensor: np.ndarray, side: int, clip_norm: float, change: float = 1.0, **more: Any) -> BoundedTensor:
    return BoundedTensor(reader=stored(MemoryStore(), tensor, side), clip_norm=clip_norm, change=change, **more)


def units(d: int, p: int, seed: int) -> np.ndarray:
    block = np.random.default_rng(seed).standard_normal((d, p)) ** 3
    return block / np.linalg.norm(block, axis=0)


def product(operator: Any, block: np.ndarray, threads: int = 1) -> np.ndarray:
    executor = Threads(threads=threads)
    found = executor.run_pass(operator, block, ignore)[0]
    executor.close()
    return found


def exactly(tensor: np.ndarray, block: np.ndarray, scores: bool) -> list[list[Fraction]]:
    """In fractions."""
    entries = [[[Fraction(float(v)) for v in row] for row in face] for face in tensor]
    found = []
    for column in ([Fraction(float(v)) for v in column] for column in block.T):
        rows = [sum(t * u * v for r, u in zip(face, column, strict=True) for t, v in zip(r, column, strict=True))
                for face in entries]  # fmt: skip
        found.append([sum(r * u for r, u in zip(rows, column, strict=True))] if scores else rows)
    return [list(row) for row in zip(*found, strict=True)]  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("scores", [False, True])
@settings(deadline=None, max_examples=20)
@given(st.integers(1, 6), st.integers(1, 3), st.integers(1, 6), st.integers(0, 10**6), st.sampled_from(["f4", "f8"]))
def test_no_entry_errs_by_more_than_is_said(scores: bool, d: int, p: int, side: int, seed: int, dtype: str) -> None:
    """Ragged blocks, entries beyond the bound. Mutants: no clipping; a pair of blocks counted once; a coarser grid."""
    tensor = symmetric(d, dtype, seed) * 2
    operator = operator_of(tensor, min(side, d), 1.1, scores=scores)
    block, rounding = operator.prepare(units(d, p, seed)), operator.rounding(p)
    found = product(operator, block)
    wanted = exactly(np.clip(tensor.astype(np.float64), -1.1, 1.1), block, scores)
    assert found.dtype == np.int64 and found.shape == ((1 if scores else d), p)
    half = Fraction(rounding.l2) / Fraction(math.sqrt(len(found))) / 2 * (1 + Fraction(1, 2**40))
    off = [abs(int(q) * Fraction(rounding.grid) - w) for q, row in zip(found, wanted, strict=True)
           for q, w in zip(q, row, strict=True)]  # fmt: skip
    assert max(off) <= half
    assert max(off) >= half / 10**6, "the bound says something"


@pytest.mark.slow
def test_it_is_the_dense_contraction_of_bounded_entries_whatever_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BoundedTensor, "run_bytes", 1)  # a run for each block
    tensor = symmetric(23, seed=3)
    operator, block = operator_of(tensor, 5, 0.8), units(23, 4, 1)
    block = operator.prepare(block)
    found = product(operator, block) * operator.rounding(4).grid
    wanted = np.einsum("ijk,jl,kl->il", np.clip(tensor, -0.8, 0.8), block, block)
    assert np.abs(found - wanted).max() <= operator.rounding(4).l2
    again = [product(operator, block, threads) * operator.rounding(4).grid for threads in (1, 2, 5)]
    assert all((found == one).all() for one in again)
    assert len(runs_of(operator)) == operator.units == 35


def test_what_is_not_finite_is_zero_and_nobody_is_told() -> None:
    """Nothing fails, warns, or has another shape because of a value. Mutants: NaN kept; infinity clipped."""
    tensor, hole = symmetric(7, seed=1), symmetric(7, seed=1)
    for value in (np.nan, np.inf, -np.inf, 1e308):
        tensor[2, 3, 3] = tensor[3, 2, 3] = tensor[3, 3, 2] = value
        hole[2, 3, 3] = hole[3, 2, 3] = hole[3, 3, 2] = 0.5 if value == 1e308 else 0.0
        operators = [operator_of(t, 3, 0.5) for t in (tensor, hole)]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            first, second = (product(o, o.prepare(units(7, 2, 0))) for o in operators)
        assert (first == second).all()
    with pytest.raises(BadInputError, match="entry"):
        product(
            PackedTensor(reader=operator_of(np.where(tensor == 1e308, np.nan, tensor), 3, 0.5).reader), units(7, 2, 0)
        )


def test_what_rounding_adds_follows_public_numbers_and_is_little() -> None:
    """At the flat u, where the sensitivity is least: 6 change / d, and of scores 6 change / d^1.5."""
    one, other = (operator_of(symmetric(40, seed=s) * 10.0**s, 8, 1.0) for s in (0, 1))
    for scores, least in ((False, 6 / 40), (True, 6 / 40**1.5)):
        added = [replace(o, scores=scores).rounding(4) for o in (one, other)]
        assert added[0] == added[1] and added[0].grid == one.rounding(1).grid
        assert 0 < added[0].l2 < 1e-3 * least
    assert operator_of(symmetric(4), 2, 2.0**60).rounding(1).grid >= 2.0**60 * 8 / 2**62, "62 bits"


def test_a_block_that_was_not_prepared_is_refused() -> None:
    operator = operator_of(symmetric(5), 2, 1.0)
    with pytest.raises(BadInputError, match="pass it through `prepare`"):
        product(operator, units(5, 2, 0))
    with pytest.raises(BadInputError, match="clip_norm"):
        operator_of(symmetric(5), 2, 0.0)


def test_the_memory_of_a_task_counts_the_bounded_block() -> None:
    operator = operator_of(symmetric(30), 10, 1.0)
    plain = PackedTensor(reader=operator.reader)
    runs = runs_of(operator)
    assert operator.task_bytes(3, runs) >= plain.task_bytes(3, runs) + 8 * 10**3
