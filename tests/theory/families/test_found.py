"""The smallest inputs of faults that random families found: what is stated is so, and is stated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp

import npmdask
from npmdask.errors import NpmdaskError
from tests.theory.families.judging import largest_bound

pytestmark = pytest.mark.slow


def bound_of(solution: Any) -> float:
    """What the answer states about its values: silence would be no answer."""
    bound = largest_bound(solution.certificate)
    assert bound is not None
    return bound


@pytest.mark.parametrize(
    "dtype",
    ["f2", "f4", "f8"],
)
def test_correlations_of_pairs(dtype: str) -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((400, 6)) * 3 + 3e3
    x[rng.random(x.shape) < 0.3] = np.nan
    stored = x.astype(dtype)
    x, there = stored.astype(float), ~np.isnan(stored)
    solution = npmdask.top_k(stored, 2, kind="samples", center=True, scale=True, missing="pairwise")
    covariance = np.zeros((6, 6))
    for i in range(6):
        for j in range(6):
            both = there[:, i] & there[:, j]
            covariance[i, j] = np.cov(x[both, i], x[both, j], bias=True)[0, 1]
    size = np.sqrt(np.diag(covariance))
    values = np.linalg.eigvalsh(covariance / np.outer(size, size))[::-1][:2]
    assert np.abs(solution.values - values).max() <= bound_of(solution) + 1e-13


@pytest.mark.parametrize("weight", [1e-50, 1e-35, 1.0, 1e30])
@pytest.mark.parametrize("lazy", [False, True])
def test_weights_out_of_the_range_of_float32(weight: float, *, lazy: bool) -> None:
    """Sums of weighted rows underflowed in the first steps, which counted as steps of the power method.

    Mutant: ``single`` of whatever weights in ``runs.build``.
    """
    rng = np.random.default_rng(0)
    x, weights = rng.standard_normal((14, 95)).astype("f4"), weight * (rng.random(14) + 0.5)
    how: dict[str, Any] = {"kind": "samples", "center": True, "algorithm": "power", "max_steps": 3, "seed": 400}
    solution = npmdask.top_k(da.from_array(x, chunks=(5, 95)) if lazy else x, 9, row_weights=weights, **how)
    shares = weights / weights.sum()
    values = np.linalg.svd((x - shares @ x) * np.sqrt(shares)[:, None], compute_uv=False)[:9] ** 2
    likely = solution.certificate["levels"][1]["value_errors"]  # type: ignore[index]
    assert (np.abs(solution.values - values) <= np.array(likely) + 1e-13).all()


@pytest.mark.parametrize("algorithm", ["power", "krylov", "gram"])
def test_many_sparse_rows_with_a_large_mean(algorithm: str) -> None:
    """The squares of a mean cancel, after sums over all rows whose rounding is up to 58 eps of them.

    Mutant: 8 eps for any number of rows in ``results._rounding``.
    """
    for seed in range(5):
        rng = np.random.default_rng(seed)
        x = np.where(rng.random((10_000, 4)) < 0.5, rng.standard_normal((10_000, 4)), 0)
        x[:, 0] = 2.6e5 * (1 + rng.random()) + rng.standard_normal(10_000)
        how: dict[str, Any] = {"center": True, "algorithm": algorithm, "max_steps": 10, "seed": seed}
        solution = npmdask.top_k(sp.csr_matrix(x), 2, **how)
        exact = x.astype(np.longdouble)
        values = np.linalg.svd((exact - exact.mean(axis=0)).astype(float), compute_uv=False)[:2]
        assert np.abs(solution.values - values).max() <= bound_of(solution)


@pytest.mark.parametrize(
    "offset",
    [1e2, 1e4, 1e6],
)
def test_sparse_columns_divided_by_their_deviations(offset: float) -> None:
    rng = np.random.default_rng(1)
    x = np.where(rng.random((200, 10)) < 0.2, rng.standard_normal((200, 10)), 0)
    x[:, 0] = offset + rng.standard_normal(200)
    value = np.linalg.svd(x / x.std(axis=0), compute_uv=False)[0]
    dense = npmdask.top_k(x, 1, scale=True)
    assert abs(dense.values[0] - value) <= bound_of(dense) + 1e-14 * value
    sparse = npmdask.top_k(sp.csr_matrix(x), 1, scale=True)
    assert abs(sparse.values[0] - value) <= bound_of(sparse) + 1e-14 * value


def test_canonical_correlations_of_nearly_equal_columns() -> None:
    rng = np.random.default_rng(1)
    t, d = 20 + 5 * rng.standard_normal(500), 1e-4 * rng.standard_normal(500)
    left, right = np.c_[t, t + d], np.c_[1e4 * d + 0.3 * rng.standard_normal(500), rng.standard_normal(500)]
    orthonormal = [np.linalg.qr(field - field.mean(axis=0))[0] for field in (left, right)]
    truth = np.linalg.svd(orthonormal[0].T @ orthonormal[1], compute_uv=False)[0]
    solution = npmdask.cca(left, right, 1)
    stated = solution.certificate.get("correlation_error", np.inf)
    assert abs(solution.values[0] - truth) <= stated + 1e-9
    assert np.isfinite(stated) or solution.warnings
    apart = npmdask.cca(np.c_[t, 1e4 * d], right, 1)  # the same directions, apart
    assert abs(apart.values[0] - truth) <= apart.certificate["correlation_error"] + 1e-9


@pytest.mark.parametrize("kind", ["samples", "matrix"])
def test_one_step_of_the_row_gram(kind: str) -> None:
    x = np.random.default_rng(1).standard_normal((40, 200)) * np.geomspace(5, 0.1, 200)
    solution = npmdask.top_k(x, 20, kind=kind, center=True, algorithm="row-gram", max_steps=1)
    away = x - x.mean(axis=0)
    captured = np.linalg.norm(away @ solution.basis) ** 2 / np.linalg.norm(away) ** 2
    assert solution.explained_share == pytest.approx(captured, abs=1e-6)
    ratio = np.asarray(solution.explained_variance_ratio).sum()
    assert ratio == pytest.approx(captured, abs=1e-6)


@pytest.mark.parametrize("header", ["1100,1102,1104,1106,1108,1110", "a,b,c,d,e,f"])
def test_a_header_of_numbers(header: str, tmp_path: Path) -> None:
    rows = np.random.default_rng(1).random((50, 6))
    path = tmp_path / "spectra.csv"
    path.write_text("\n".join([header, *(",".join(repr(float(v)) for v in row) for row in rows)]) + "\n")
    value = np.linalg.eigvalsh(np.cov(rows.T, bias=True))[-1]
    try:
        solution = npmdask.top_k(path, 1, kind="samples", center=True)
    except NpmdaskError as refusal:
        assert "1100" in str(refusal) or "name" in str(refusal)
        return
    assert abs(solution.values[0] / value - 1) <= 1e-9


def test_the_answer_lies_in_the_intervals_of_its_bootstrap(tmp_path: Path) -> None:
    for seed in range(4):
        rng = np.random.default_rng(seed)
        x = rng.standard_normal((600, 12)) * np.sqrt(np.r_[21, 10, 5, np.ones(9)])
        x = x @ np.linalg.qr(rng.standard_normal((12, 12)))[0]
        gram = npmdask.gram(x, tmp_path / str(seed), kind="samples", groups=np.arange(600) // 30)
        low, high = gram.bootstrap(3).vector_intervals
        basis = npmdask.top_k(gram, 3, center=True).basis
        assert ((basis < low) | (basis > high)).sum() <= 6


def test_grams_with_columns_of_zeros(tmp_path: Path) -> None:
    answered = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        x = rng.standard_normal((60, 12))
        x[:, rng.random(12) < 0.3] = 0
        try:
            solution = npmdask.top_k(npmdask.gram(x, tmp_path / str(seed), kind="samples"), 10)
        except NpmdaskError:
            continue
        values = np.linalg.svd(x, compute_uv=False)[:10] ** 2 / 60
        assert np.abs(solution.values - values).max() <= bound_of(solution) + 1e-14 * values[0]
        answered += 1
    assert answered >= 20


def test_a_gram_of_a_row_with_three_values() -> None:
    x = np.zeros((5, 19), np.float32)
    x[0, 3], x[2, 7], x[2, 17] = 4, 100, 170
    solution = npmdask.top_k(x, 5, algorithm="gram")
    values = np.linalg.svd(x.astype(float), compute_uv=False)[:5]
    assert np.abs(solution.values - values).max() <= bound_of(solution) + 1e-13 * values[0]


def test_weights_count_as_repeated_rows() -> None:
    x = np.random.default_rng(1).standard_normal((9, 19))
    repeats = np.array([0, 1, 2, 3, 1, 1, 2, 2, 3])
    weighted = npmdask.PCA(2).fit(x, sample_weight=repeats.astype(float))
    repeated = npmdask.PCA(2).fit(np.repeat(x, repeats, axis=0))
    assert weighted.explained_variance_ == pytest.approx(repeated.explained_variance_, rel=1e-6)
    assert weighted.noise_variance_ == pytest.approx(repeated.noise_variance_, rel=1e-6)


def test_a_graph_that_changes_in_one_pass() -> None:
    def drawn(block: Any) -> Any:
        return np.random.default_rng().standard_normal(block.shape)

    rows = da.map_blocks(drawn, da.zeros((60, 8), chunks=(20, 8)), dtype=float)
    with pytest.raises(NpmdaskError):
        npmdask.top_k(rows, 3, kind="samples", algorithm="gram")
    fixed = npmdask.top_k(da.ones((60, 8), chunks=(20, 8)) * np.arange(8), 1, kind="samples", algorithm="gram")
    assert fixed.values[0] == pytest.approx((np.arange(8) ** 2).sum(), rel=1e-12)


def test_longdouble_is_read_or_refused() -> None:
    x = np.random.default_rng(1).standard_normal((30, 5))
    try:
        values = npmdask.top_k(x.astype(np.longdouble), 2).values
    except NpmdaskError as refusal:
        assert "float64" in str(refusal)
        return
    assert values == pytest.approx(np.linalg.svd(x, compute_uv=False)[:2], rel=1e-12)


def test_constant_data_explain_nothing() -> None:
    constant = np.full((30, 5), 0.1)
    with pytest.raises(NpmdaskError, match="no variance"):
        npmdask.top_k(constant, 0.5, kind="samples", center=True)
    share = npmdask.top_k(constant, 1, kind="samples", center=True).explained_share
    assert share is None or np.isnan(share)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_a_column_of_gaps_is_left_out_and_others_are_filled(dtype: str) -> None:
    x = np.random.default_rng(1).standard_normal((40, 4)).astype(dtype)
    x[3, 1], x[1:, 2] = np.nan, np.nan
    solution = npmdask.top_k(x, 1, kind="samples", center=True, missing="mean", missing_limit=0.5)
    kept = x[:, [0, 1, 3]].astype(float)
    away = np.nan_to_num(kept - np.nanmean(kept, axis=0))
    value = np.linalg.svd(away, compute_uv=False)[0] ** 2 / 40
    assert abs(solution.values[0] - value) <= bound_of(solution) + 1e-14 * value


@pytest.mark.parametrize("n", [67, 4096])
@pytest.mark.parametrize("form", [np.float64, np.float32, np.int8, "lazy"])
def test_what_is_left_of_a_trace_of_equal_terms(n: int, form: Any) -> None:
    """Equal terms all round to one side: the trace was off by more than was allowed for, and bounds below the values.

    Mutant: ``_from_trace`` without its maximum with the Ritz values.
    """
    d = 18
    x: Any = np.eye(n, d, dtype=np.float64 if form == "lazy" else form)
    x = da.from_array(x, chunks=(n // 4, d)) if form == "lazy" else x
    solution = npmdask.top_k(x, d, kind="samples", center=True, algorithm="krylov")
    truth = np.array([1 / n] * (d - 1) + [(1 - d / n) / n])
    levels = solution.certificate["levels"]
    assert levels and all((np.array(level["upper"]) >= truth).all() for level in levels)
