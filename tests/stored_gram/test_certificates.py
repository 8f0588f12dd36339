"""Answers from stored Grams, formed, appended to, merged and reduced, are right wherever they say so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import npmdask
from npmdask import GramStore
from npmdask.core.algorithms.stopping import ResidualRule, StepView
from npmdask.core.storage.column_statistics import ColumnStatistics
from npmdask.errors import RefusedError
from tests.conftest import write_zarr
from tests.core.algorithms.answers import ROUNDING, fault
from tests.core.algorithms.test_gram import FAMILIES

# How a Gram of some rows came about: each has another source of error.
WAYS = ("formed", "appended", "merged", "dropped", "subtracted")
ZEROS: dict[str, Any] = {"config": {"write_empty_chunks": True}}  # a chunk of zeros is data, and none that is missing


def other_scales(rng: np.random.Generator, rows: np.ndarray) -> np.ndarray:
    """Rows whose second half has a mean and a scale of its own: what a merge of days may meet."""
    half = len(rows) // 2
    scale = 10.0 ** rng.uniform(-3, 3)
    return np.concatenate([rows[:half], scale * (rows[half:] + rng.standard_normal(rows.shape[1]) * 1e4)])


def stored(way: str, rows: np.ndarray, folder: Path, asked: dict[str, Any]) -> tuple[GramStore, np.ndarray]:
    """A Gram of ``rows``, or of what was left of them, and these rows."""
    half = len(rows) // 2
    if way == "formed" or (asked["kind"] == "sparse" and way == "appended"):
        return npmdask.gram(given(rows, asked), folder / "G", **asked), rows
    if way == "appended":
        path = write_zarr(folder / "x.zarr", rows[:half], (16, rows.shape[1]), **ZEROS)
        npmdask.gram(path, folder / "G", **asked)
        zarr_append(path, rows[half:])
        return npmdask.gram(path, folder / "G", **asked), rows
    a = npmdask.gram(given(rows[:half], asked), folder / "A", **asked)
    if way == "subtracted":
        whole = npmdask.gram(write_zarr(folder / "x.zarr", rows, (half, rows.shape[1]), **ZEROS), folder / "W", **asked)
        a = npmdask.gram(
            write_zarr(folder / "a.zarr", rows[:half], (half, rows.shape[1]), **ZEROS), folder / "A2", **asked
        )
        return whole.remove(a, folder / "G"), rows[half:]
    b = npmdask.gram(given(rows[half:], asked), folder / "B", **asked)
    both = GramStore.merge([folder / "A", b], folder / "M")
    return (both, rows) if way == "merged" else (both.remove(a, folder / "G"), rows[half:])


def given(rows: np.ndarray, asked: dict[str, Any]) -> Any:
    return sp.csr_matrix(rows) if asked["kind"] == "sparse" else rows


def zarr_append(path: Path, rows: np.ndarray) -> None:
    import zarr

    array = zarr.open_array(path, mode="a")
    array.append(rows)


def wrong(seed: int, folder: Path) -> str:
    """What is wrong about an answer from the Gram of problem ``seed``; nothing, if nothing is."""
    rng = np.random.default_rng([2203, seed])
    family, way = FAMILIES[seed % len(FAMILIES)], WAYS[seed % len(WAYS)]
    n, d = int(rng.integers(40, 900)), int(rng.integers(12, 60))
    x = family(rng, n, d)
    x = other_scales(rng, x) if rng.random() < 0.3 else x
    x = x.astype(rng.choice([np.float32, np.float64]))
    kind = "samples" if way in ("appended", "subtracted") else str(rng.choice(["samples", "matrix", "sparse"]))
    center, scale = bool(rng.random() < 0.6), bool(rng.random() < 0.3)
    k, tol = int(rng.integers(1, 6)), 10 ** -rng.uniform(3, 10)
    asked: dict[str, Any] = {"kind": kind, "precision": str(rng.choice(["float64", "float32"]))}
    about = (
        f"{seed}: {family.__name__}, {way}, {asked}, {n} x {d}, k {k}, tol {tol:.0e}, center {center}, scale {scale}"
    )
    try:
        store, rows = stored(way, x, folder, asked)
    except RefusedError as error:
        return "" if "lost in the rounding" in str(error) else f"{about}: {error}"
    assert store.rows == len(rows), about
    columns = rng.permutation(d)[: int(rng.integers(8, d + 1))] if rng.random() < 0.3 else np.arange(d)
    solution = npmdask.top_k(store.select(columns.tolist()), k, center=center, scale=scale, tol=tol)
    a = rows[:, columns].astype(np.longdouble)
    mean = a.mean(axis=0)
    if scale:
        a, std = a.copy(), np.sqrt(np.square(a - mean).mean(axis=0))
        known = {"mean": mean.astype(float), "std": std.astype(float), "rows": len(rows)}
        by = ColumnStatistics(about_zero=kind == "sparse", **known).scale
        if ((by == 1) & (std > 0)).any() or (std == 0).any():
            return ""  # which columns count as constant is a convention, and tested elsewhere
        a, mean = a / by, mean / by
    weight = len(rows) if kind == "samples" else 1
    size = float(np.square(a).sum()) / weight
    matrix = np.asarray((a - mean * center).T @ (a - mean * center) / weight, dtype=np.float64)
    values = np.linalg.eigvalsh(matrix)[::-1]
    floor = ROUNDING * (values[0] + (size if kind == "sparse" and center else 0))
    said = fault(solution, matrix @ solution.basis, values, tol=tol, floor=floor, samples=kind == "samples")
    if said:
        return f"{about}: {said}"
    return "" if solution.converged or tol < 1e-3 else about


def found_wrong(seeds: range, folder: Path) -> list[str]:
    said = []
    for seed in seeds:
        (folder / f"{seed}").mkdir()
        said.append(wrong(seed, folder / f"{seed}"))
    return [one for one in said if one]


@pytest.mark.slow
def test_no_random_problem_is_wrong_and_called_converged(tmp_path: Path) -> None:
    """Mutants that fail here: no bound of what a removal loses, none of float32, none of scaled columns."""
    assert not found_wrong(range(28), tmp_path)


@pytest.mark.heavy
@pytest.mark.parametrize("part", range(10))
def test_none_of_a_thousand_is(part: int, tmp_path: Path) -> None:
    assert not found_wrong(range(100 * part, 100 * part + 100), tmp_path)


def test_a_value_of_zero_that_is_not_sure_is_open() -> None:
    """Constant columns of a Gram whose bound is larger than rounding: no warning of a division, and not converged."""
    rule = ResidualRule(tol=1e-3, max_steps=1, d=4)
    view = StepView(
        step=1, ritz_values=np.array([1.0, 0.0]), residual_norms=np.array([1e-9, 1e-5]), precision="float64"
    )
    assert rule.relative(view).tolist() == [1e-9, np.inf]
    outcome = rule([view])
    assert outcome is not None and outcome.name != "converged"
