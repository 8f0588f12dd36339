"""The small Gram matrix of rows with missing values: in the pass that finds the means, and one more.

Mutants that these tests kill: gaps that count as 0 before rows are centred; means over all rows; a mean that the next
pass does not fill with; land that counts as zeros; a column of no weight that is filled with NaN.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npmdask
from npmdask.core.algorithms import RowGramKrylov
from npmdask.errors import BadInputError
from npmdask.missing.gaps import with_missing
from npmdask.missing.rules import find_gaps
from tests.conftest import write_zarr
from tests.core.algorithms.answers import ROUNDING, fault
from tests.core.algorithms.test_row_gram import KINDS, ROW_GRAM, chosen, float32_of_few, parts_of, stored, worth_timing

MARK = -127


def at_random(rng: np.random.Generator, x: np.ndarray) -> np.ndarray:
    return rng.random(x.shape) < rng.choice([0.001, 0.05, 0.4])


def of_the_large(rng: np.random.Generator, x: np.ndarray) -> np.ndarray:
    """Values are missing because they are large."""
    return x > np.quantile(x, 0.9)


def in_blocks(rng: np.random.Generator, x: np.ndarray) -> np.ndarray:
    """Half of the rows lack the same half of the columns."""
    return np.outer(rng.random(len(x)) < 0.5, rng.random(x.shape[1]) < 0.5)


def nearly_all(rng: np.random.Generator, x: np.ndarray) -> np.ndarray:
    """Of a third of the columns nothing is there, of another one value."""
    gaps = np.zeros(x.shape, bool)
    third = x.shape[1] // 3
    gaps[:, : 2 * third] = True
    gaps[rng.integers(0, len(x), third), np.arange(third, 2 * third)] = False
    return gaps


GAPS = (at_random, of_the_large, in_blocks, nearly_all)


def wrong(seed: int) -> str:
    """What is wrong about the run on problem ``seed``; nothing, if nothing is."""
    rng = np.random.default_rng([441, seed])
    family, pattern = KINDS[seed % len(KINDS)], GAPS[seed % len(GAPS)]
    n, d = int(rng.integers(8, 60)), int(rng.integers(80, 300))
    x = family(rng, n, d)
    whole = family.__name__ == "genotypes"
    x = x.astype("i1" if whole else rng.choice(["f4", "f8"]))
    land, limit = rng.random() < 0.3, None
    gaps = np.broadcast_to(rng.random(d) < 0.4, x.shape) if land else pattern(rng, x)
    if not land and rng.random() < 0.3:
        limit = 0.5
    kept = ~gaps[0] if land else gaps.mean(axis=0) <= (1 if limit is None else limit)
    if kept.sum() < n or n < 2 or (whole and not (~gaps).any()):
        return ""
    asked: dict[str, Any] = {"missing": "drop-columns" if land else "mean", "missing_limit": limit}
    asked |= ({"missing_values": [MARK]} if whole else {}) | parts_of(seed)
    u = rng.uniform(0, 3, n) * (rng.random(n) < 0.8) + 1e-3 if rng.random() < 0.3 else np.ones(n)
    v = rng.uniform(0, 3, d) if rng.random() < 0.3 else np.ones(d)
    asked |= {} if (u == 1).all() else {"row_weights": u}
    asked |= {} if (v == 1).all() else {"column_weights": v}
    kind, tol = str(rng.choice(["samples", "matrix"])), 10 ** -rng.uniform(3, 10)
    k = int(rng.integers(1, 6)) if rng.random() < 0.7 else n
    asked |= {"kind": kind, "center": True, "tol": tol, "seed": seed, "max_steps": 30}
    data = stored(np.where(gaps, MARK if whole else np.nan, x).astype(x.dtype), rng)
    with float32_of_few(seed):
        found = npmdask.top_k(data, k, **asked, **ROW_GRAM)
    wide, there, u = x[:, kept].astype(np.longdouble), ~gaps[:, kept], u.astype(np.longdouble)
    count = u @ there
    mean = (u @ np.where(there, wide, 0)) / np.where(count > 0, count, 1)
    total = u.sum() if kind == "samples" else np.longdouble(1)
    a = np.where(there, wide - mean, 0) * np.sqrt(u / total)[:, None] * np.sqrt(v[kept])
    values = np.zeros(int(kept.sum()))
    values[:n] = np.maximum(np.linalg.eigvalsh(np.asarray(a @ a.T, np.float64))[::-1], 0)
    size = float((np.where(there, wide, 0) ** 2 * (u / total)[:, None] * v[kept]).sum())
    image = np.asarray(a.T @ (a @ found.basis.astype(np.longdouble)), np.float64)
    said = fault(found, image, values, tol=tol, floor=ROUNDING * (values[0] + size), samples=kind == "samples")
    known = found.missing
    if not said and known is not None and not land:
        rows = int(gaps[:, kept].any(axis=1).sum())
        counted = known.counts.tolist() == gaps.sum(axis=0).tolist() and known.rows_with_gaps == rows
        said = "" if counted and np.abs(known.fill - mean).max() <= 1e-12 * np.abs(x).max() else "its counts or fills"
    about = f"{seed}: {family.__name__}, {pattern.__name__}, {asked}, {n} x {d}, {x.dtype}, k = {k}"
    return said and f"{about}: {said}"


@pytest.mark.slow
def test_no_random_problem_is_wrong_and_called_converged() -> None:
    """Of gaps at random, of the large, in blocks, of nearly all; land; limits; weights; marked bytes."""
    found = [said for seed in range(70) if (said := wrong(seed))]
    assert not found, found


@pytest.mark.heavy
@pytest.mark.parametrize("part", range(10))
def test_none_of_thousands_is(part: int) -> None:
    found = [said for seed in range(300 * part, 300 * part + 300) if (said := wrong(seed))]
    assert not found, found


def incomplete() -> np.ndarray:
    rng = np.random.default_rng(2)
    x = rng.standard_normal((40, 6)) @ rng.standard_normal((6, 900)) + 100 + 0.1 * rng.standard_normal((40, 900))
    x[rng.random(x.shape) < 0.05] = np.nan
    return x


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 3])
def test_a_run_that_is_cut_short_goes_on_with_the_same_bits(
    threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the passes: the second one fills with the means that the first one has found."""
    data = write_zarr(tmp_path / "x.zarr", incomplete(), (16, 100))
    asked: dict[str, Any] = {"kind": "samples", "center": True, "missing": "mean", "algorithm": "row-gram"}
    whole = npmdask.top_k(data, 3, store=tmp_path / "whole", threads=2, **asked)
    with monkeypatch.context() as patched:
        patched.setattr(RowGramKrylov, "pairs_of_formed", 1)
        npmdask.top_k(data, 3, store=tmp_path / "short", max_steps=1, threads=threads, **asked)
    again = npmdask.resume(tmp_path / "short", max_steps=10, threads=threads)
    assert again.basis.tobytes() == whole.basis.tobytes() and again.values.tobytes() == whole.values.tobytes()
    assert whole.total_data_passes == again.total_data_passes == 2
    assert again.missing is not None and again.missing.entries == int(np.isnan(incomplete()).sum())


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["mean", "drop-columns"])
@pytest.mark.parametrize("chunks", [(40, 70), (7, 900)])
def test_two_passes_find_what_many_do(missing: str, chunks: tuple[int, int], tmp_path: Path) -> None:
    """And scores, shares and statements of them."""
    x = incomplete()
    if missing == "drop-columns":
        x = np.where(np.isnan(x[0]), np.nan, np.nan_to_num(x, nan=100.0))
    data = write_zarr(tmp_path / "x.zarr", x, chunks)
    few, many = (
        npmdask.top_k(data, 3, kind="samples", center=True, missing=missing, algorithm=name, tol=1e-9)
        for name in ("row-gram", "krylov")
    )
    assert few.total_data_passes == 2 < many.total_data_passes
    np.testing.assert_allclose(few.values, many.values, rtol=1e-10)
    assert few.explained_share == pytest.approx(many.explained_share, rel=1e-10)
    np.testing.assert_allclose(few.scores(data), many.scores(data), atol=1e-6)
    assert few.missing is not None and many.missing is not None
    assert few.missing.sentence == many.missing.sentence
    assert few.certificate is not None and few.certificate["ground"] in ("always", "random start")


@pytest.mark.parametrize(
    "spoilt, missing, said",
    [
        (np.inf, "mean", "holds inf at row 3, column 21"),
        (np.nan, "drop-columns", "has values and lacks 1 of the 5"),
        (None, "mean", "all values of .* are missing"),
    ],
)
def test_what_is_no_gap_is_refused(spoilt: float | None, missing: str, said: str) -> None:
    """The whole twins are answered above."""
    x = np.random.default_rng(0).standard_normal((5, 40))
    x[3, 21] = spoilt
    with pytest.raises(BadInputError, match=said):
        npmdask.top_k(
            np.full_like(x, np.nan) if spoilt is None else x,
            2,
            kind="samples",
            center=True,
            missing=missing,
            **ROW_GRAM,
        )


def test_auto_forms_it_as_of_complete_rows() -> None:
    gaps = find_gaps(missing="mean", missing_values=[MARK])
    assert chosen((400, 40_000), center=True, aspects=(gaps,)) == "row-gram"
    assert chosen((400, 10_000), center=True, aspects=(gaps,)) == "krylov"


@pytest.mark.parametrize("dtype", ["i1", "f4", "f8"])
def test_numbers_decide_what_is_measured_where_values_are_marked(dtype: str, tmp_path: Path) -> None:
    """Mutant: bytes."""
    assert worth_timing(tmp_path, dtype, lambda source: with_missing(source, "mean", marks=(-127.0,))) == [False, True]
