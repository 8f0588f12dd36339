"""Maximum covariance and canonical correlations of two fields, against NumPy, scikit-learn and closed forms."""

from __future__ import annotations

import json
import math
import re
import signal
from fractions import Fraction
from functools import partial
from operator import mul
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr
from sklearn.cross_decomposition import PLSSVD

import npmdask
from npmdask.cli.main import main
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.execution.memory import tree_rss
from npmdask.core.numerics.subspaces import max_sin_theta
from npmdask.errors import BadInputError, MemoryRefusedError, RefusedError
from npmdask.manage import kind_of
from npmdask.manage.report import write_report
from npmdask.two_fields.canonical import canonical_pairs, chance_correlation
from npmdask.xarray import CCA, MCA
from tests.conftest import often, same_bytes, write_zarr
from tests.processes import exit_status
from tests.two_fields import coupled_job


def fields(n: int = 150, p: int = 20, q: int = 12, common: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Two fields with some series in common, of falling strength, and noise."""
    rng = np.random.default_rng(seed)
    series = rng.standard_normal((n, common)) * np.geomspace(3, 1, common)
    made = [series @ rng.standard_normal((common, d)) + rng.standard_normal((n, d)) + 5 for d in (p, q)]
    return made[0], made[1]


def covariance(a: np.ndarray, b: np.ndarray, u: Any = None, v: Any = (1.0, 1.0), scale: bool = False) -> np.ndarray:
    """C as the definition has it."""
    u = np.ones(len(a)) if u is None else u
    seen = []
    for field, weights in zip((a, b), v, strict=True):
        about = field.astype(float) - u @ field.astype(float) / u.sum()
        spread = np.sqrt(u @ about**2 / u.sum())
        seen.append(about / (np.where(spread > 1e-9, spread, 1.0) if scale else 1.0) * np.sqrt(weights))
    return np.asarray((seen[0] * u[:, None]).T @ seen[1] / u.sum())


def agrees(found: npmdask.CoupledModes, c: np.ndarray, k: int, tol: float = 1e-10) -> None:
    """Values and patterns are those of the singular value decomposition of ``c``."""
    u, s, vt = np.linalg.svd(c)
    np.testing.assert_allclose(found.values, s[:k], rtol=0, atol=tol * s[0])
    for i in range(k):
        sign = np.sign(u[:, i] @ found.left.basis[:, i])
        np.testing.assert_allclose(found.left.basis[:, i] * sign, u[:, i], atol=1e-6)
        np.testing.assert_allclose(found.right.basis[:, i] * sign, vt[i], atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("scale", [False, True])
def test_the_singular_vectors_of_the_covariances(scale: bool) -> None:
    """And scores, their correlations, variances, and what they stand for. Mutant: pairs of both signs, unsorted."""
    a, b = fields()
    found = npmdask.mca(a, b, 3, scale=scale)
    c = covariance(a, b, scale=scale)
    agrees(found, c, 3)
    assert found.converged and "accurate to" in found.assurance and not found.warnings
    left, right = found.left.scores(a), found.right.scores(b)
    np.testing.assert_allclose(np.diag(left.T @ right) / len(a), found.values, rtol=1e-9)
    np.testing.assert_allclose(left.var(axis=0), found.left.variance, rtol=1e-9)
    for i in range(3):
        assert abs(np.corrcoef(left[:, i], right[:, i])[0, 1] - found.correlations[i]) < 1e-9
    seen = (a - a.mean(axis=0)) / (a.std(axis=0) if scale else 1.0)
    np.testing.assert_allclose(found.left.explained_variance_ratio, left.var(axis=0) / seen.var(axis=0).sum())
    s = np.linalg.svd(c, compute_uv=False)
    fraction, error = found.squared_covariance_fraction, found.squared_covariance_error
    assert fraction is not None and error is not None
    np.testing.assert_allclose(fraction, s[:3] ** 2 / (s**2).sum(), rtol=5 * error + 1e-9)
    oracle = PLSSVD(n_components=2, scale=scale).fit(a, b)
    assert max_sin_theta(found.left.basis[:, :2], np.linalg.qr(oracle.x_weights_)[0]) < 1e-6


@pytest.mark.slow
def test_weights_of_rows_and_of_columns_of_either_field() -> None:
    """Mutants: the weights of one field for the other, means without the weights of rows."""
    a, b = fields()
    rng = np.random.default_rng(1)
    u, v = rng.random(150), (rng.random(20), 2 * rng.random(12))
    u[3] = 0.0
    found = npmdask.mca(a, b, 2, row_weights=u, left_weights=v[0], right_weights=v[1])
    agrees(found, covariance(a, b, u, v), 2)
    alone = npmdask.mca(a, b, 2, right_weights=v[1])
    agrees(alone, covariance(a, b, None, (1.0, v[1])), 2)
    twice = npmdask.mca(np.concatenate([a, a[:50]]), np.concatenate([b, b[:50]]), 2)
    again = npmdask.mca(a, b, 2, row_weights=np.where(np.arange(150) < 50, 2.0, 1.0))
    np.testing.assert_allclose(again.values, twice.values, rtol=1e-9)


@pytest.mark.slow
def test_missing_values_are_treated_in_both_fields() -> None:
    a, b = fields()
    b[:, 4], a[:, [0, 7]] = np.nan, np.nan
    found = npmdask.mca(a, b, 2, missing="drop-columns", left_weights=np.arange(1.0, 21.0))
    kept = [np.delete(np.arange(20), [0, 7]), np.delete(np.arange(12), 4)]
    v = (np.arange(1.0, 21.0)[kept[0]], 1.0)
    agrees(found, covariance(a[:, kept[0]], b[:, kept[1]], None, v), 2)
    assert found.left.missing is not None and found.left.missing.kept.tolist() == kept[0].tolist()
    assert found.left.scores(a).shape == (150, 2)
    a, b = fields()
    b[5:30, 2] = np.nan
    filled = np.where(np.isnan(b), np.nanmean(b, axis=0), b)
    found = npmdask.mca(a, b, 2, missing="mean")
    agrees(found, covariance(a, filled), 2)
    np.testing.assert_allclose(found.right.scores(b), npmdask.mca(a, filled, 2).right.scores(filled), atol=1e-8)
    assert "missing values" in found.assurance
    with pytest.raises(BadInputError, match="row 5, column 2"):
        npmdask.mca(a, b, 2)


def hard(seed: int) -> tuple[np.ndarray, np.ndarray, int, dict[str, Any]]:
    """Fields that could fool a bound: offsets, float32, ties, fewer rows than columns, low rank, covariances that are
    tiny beside the fields, or nothing but rounding; weights."""
    rng = np.random.default_rng(seed)
    n, p, q = int(rng.integers(25, 120)), int(rng.integers(3, 50)), int(rng.integers(3, 50))
    rank = min(n // 2, p, q)
    spectra = [
        np.append(np.geomspace(1, 1e-8, 5), np.full(rank, 1e-9))[:rank], np.ones(rank),
        np.repeat(np.geomspace(1, 0.5, rank), 2)[:rank], np.full(rank, 1e-12),
        np.where(np.arange(rank) < 2, 3.0 - np.arange(rank), 0.0), np.zeros(rank),
        np.geomspace(1, 1e-3, rank) + 1e-9 * rng.random(rank),
    ]  # fmt: skip
    series = rng.standard_normal((n, n))
    series = np.linalg.qr(series - series.mean(axis=0))[0][:, : n - 1]  # uncorrelated, and about 0
    sizes = np.sqrt(spectra[seed % len(spectra)])
    a, b = ((series[:, :rank] * sizes) @ np.linalg.qr(rng.standard_normal((d, rank)))[0].T for d in (p, q))
    alone = series[:, rank : rank + 1 + int(rng.integers(0, n - 1 - rank))]
    a += alone @ rng.standard_normal((alone.shape[1], p)) * rng.choice([0.0, 1.0, 100.0])
    a, b = (
        a + rng.choice([0.0, 30.0, 1e6]) * rng.standard_normal(p),
        b + rng.choice([0.0, 5.0]) * rng.standard_normal(q),
    )
    if rng.random() < 0.3:
        a = a.astype("f4")
    weights = {"row_weights": rng.random(n), "left_weights": 3 * rng.random(p)} if rng.random() < 0.3 else {}
    return a, b, int(rng.integers(1, min(n, p, q, 7))), weights


def deviations(field: np.ndarray, u: np.ndarray) -> np.ndarray:
    """Rows less their mean with weights u, in extended precision: off by 1e-17 of the deviations, not of the mean.

    About the heaviest row first: the mean of numbers near 1e6 has 1e-13 of rounding even here, and two fields of
    constants then have a covariance of 1e-30, where the exact one is 0.
    """
    wide = field.astype(np.longdouble) - field[np.argmax(u)]
    return wide - u @ wide / u.sum()


def wrong(seed: int) -> str:
    """What is wrong about the modes of problem ``seed``; nothing, if nothing is."""
    a, b, k, weights = hard(seed)
    found = npmdask.mca(a, b, k, tol=1e-9, **weights)
    u = np.asarray(weights.get("row_weights", np.ones(len(a))), np.longdouble)
    v = np.asarray(weights.get("left_weights", np.ones(a.shape[1])), np.longdouble)
    wide, other = deviations(a, u) * np.sqrt(v), deviations(b, u)
    c = (wide * u[:, None]).T @ other / u.sum()
    exact = np.linalg.svd(c.astype(float), compute_uv=False)[:k]
    fields = float(np.sqrt((u @ wide**2).sum() * (u @ other**2).sum()) / u.sum())
    offsets = float(np.sqrt((v * (u @ a / u.sum()) ** 2).sum() * ((u @ b / u.sum()) ** 2).sum()))
    rounding = 1e-14 * fields + 1e-29 * offsets  # of sums of products, and of the means of both, which are multiplied
    errors = found.certificate.get("value_errors") or [None] * k
    for value, true, error in zip(found.values, exact, errors, strict=True):
        if abs(value - true) > (rounding if value == 0 else np.inf if error is None else error):
            return f"{seed}: {found.values} of {exact}, and {errors} are claimed"
        if found.converged and value and abs(value - true) > 2e-9 * true + rounding:
            return f"{seed}: converged, {found.values} of {exact}"
    if seed % 7 == 5 and (found.values.any() or "cannot be distinguished from zero" not in found.assurance):
        return f"{seed}: fields that do not vary together: {found.values}, {found.assurance}"
    return _wrong_correlations(a, b, k, weights, seed)


def _wrong_correlations(a: np.ndarray, b: np.ndarray, k: int, weights: dict[str, Any], seed: int) -> str:
    """The same of canonical correlations of all columns: of as many directions as were told from rounding."""
    asked = {name: values for name, values in weights.items() if name == "row_weights"}
    found = npmdask.cca(a, b, k, **asked)
    u = np.sqrt(np.asarray(asked.get("row_weights", np.ones(len(a))), np.longdouble))[:, None]
    spaces = []
    for field, rank in zip((a, b), found.certificate["ranks"], strict=True):
        wide = u * deviations(field, u.ravel() ** 2)
        lengths = np.linalg.norm(wide.astype(float), axis=0)
        whole = np.linalg.norm((u * field).astype(float), axis=0)
        shares = lengths / np.where(whole > 0, whole, 1)
        if ((shares > 1e-16) & (shares < 1e-14)).any():
            return ""  # which columns count as constant is a convention
        wide = np.where(shares > 1e-15, wide / np.where(lengths > 0, lengths, 1), 0).astype(float)
        spaces.append(np.linalg.svd(wide)[0][:, :rank])
    exact = np.zeros(k)
    true = np.linalg.svd(spaces[0].T @ spaces[1], compute_uv=False)[:k]
    exact[: len(true)] = true
    error = found.certificate["correlation_error"]
    if error < 0.05 and (np.abs(found.values - np.minimum(exact, 1)) > error).any():
        return f"{seed}: correlations {found.values} of {exact}, and {error} is claimed"
    return ""


@pytest.mark.parametrize("seed", [10, 301, 467, 1776])
def test_the_truth_of_these_problems_is_that_of_exact_arithmetic(seed: int) -> None:
    """So that what differs from it is wrong: in fractions, of three columns of each field. The last two are constants,
    whose covariance is 0, and not the 2e-30 that means in extended precision leave. Mutant: ``deviations`` without
    the row that is taken off first."""
    a, b, _, weights = hard(seed)
    u = np.asarray(weights.get("row_weights", np.ones(len(a))))
    seen, truth = [], [deviations(field[:, :3], u.astype(np.longdouble)) for field in (a, b)]
    parts = [Fraction(float(weight)) for weight in u]
    for field in (a, b):
        columns = [[Fraction(float(x)) for x in field[:, j]] for j in range(3)]
        means = [sum(map(mul, parts, column)) / sum(parts) for column in columns]
        seen.append([[x - mean for x in column] for column, mean in zip(columns, means, strict=True)])
    c = (truth[0] * u[:, None]).T @ truth[1]
    size = float(np.sqrt((u @ truth[0] ** 2).sum() * (u @ truth[1] ** 2).sum()))
    for i, j in np.ndindex(3, 3):
        exact = sum((weight * x * y for weight, x, y in zip(parts, seen[0][i], seen[1][j], strict=True)), Fraction(0))
        assert abs(float(exact - Fraction(*c[i, j].as_integer_ratio()))) <= 1e-17 * size
    assert seed < 467 or size == 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", often(range(60), *range(14)))
def test_nothing_certified_is_wrong(seed: int) -> None:
    """The true singular values lie within the bounds that are given, of all that is not said to be zero; and what is
    said to be zero is. Mutant: rounding of C alone, without that of the fields (``reach``)."""
    assert not wrong(seed)


@pytest.mark.heavy
@pytest.mark.parametrize("part", range(10))
def test_nothing_of_thousands_is_wrong(part: int) -> None:
    found = [said for seed in range(300 * part, 300 * part + 300) if (said := wrong(seed))]
    assert not found, found


@pytest.mark.slow
def test_fewer_modes_than_asked_for_and_a_field_of_constants() -> None:
    """Patterns of what is not there are zero, not some directions. Mutant: what the stopping rule takes for zero."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((80, 1)) @ rng.standard_normal((1, 10)), rng.standard_normal((80, 6))
    b[:, 0] += a[:, 0]
    found = npmdask.mca(a, b, 3)
    assert found.values[0] > 0.1 and not found.values[1:].any() and not found.left.basis[:, 1:].any()
    assert "2 of them cannot be distinguished from zero" in found.assurance and np.isnan(found.correlations[1:]).all()
    nothing = npmdask.mca(np.full((50, 4), 3.0), b[:50], 2)
    assert nothing.converged and not nothing.values.any() and "do not vary together" in nothing.assurance
    assert npmdask.mca(np.full((50, 4), 3.0), b[:50], 2, scale=True).converged
    correlated = npmdask.cca(np.full((50, 4), 3.0), b[:50], 2)
    assert not correlated.values.any() and "does not vary" in correlated.assurance


@pytest.mark.slow
def test_canonical_correlations_are_those_of_the_spaces() -> None:
    """However long the units of columns are. Mutants: no scaling before the eigenvalues, correlations of one side."""
    a, b = fields()
    u = [np.linalg.qr(field - field.mean(axis=0))[0] for field in (a, b)]
    wanted = np.linalg.svd(u[0].T @ u[1], compute_uv=False)
    units = np.geomspace(1e-9, 1e9, 20)
    for given in (a, a * units):
        found = npmdask.cca(given, b, 4)
        np.testing.assert_allclose(found.values, wanted[:4], atol=1e-9)
        np.testing.assert_allclose(found.correlations, wanted[:4], atol=1e-9)
        scores = found.left.scores(given), found.right.scores(b)
        for side in scores:
            np.testing.assert_allclose(side.T @ side / 150, np.eye(4), atol=1e-7)
        np.testing.assert_allclose(scores[0].T @ scores[1] / 150, np.diag(wanted[:4]), atol=1e-7)
        centred = given - given.mean(axis=0)
        np.testing.assert_allclose(found.left.patterns, centred.T @ scores[0] / 150, rtol=1e-6, atol=1e-9 * units.max())
    assert found.certificate["correlation_error"] < 1e-9 and not found.warnings


@pytest.mark.slow
def test_canonical_correlations_of_leading_components() -> None:
    a, b = fields()
    u = [np.linalg.svd(field - field.mean(axis=0), full_matrices=False)[0] for field in (a, b)]
    wanted = np.linalg.svd(u[0][:, :5].T @ u[1][:, :7], compute_uv=False)
    found = npmdask.cca(a, b, 3, pcs=(5, 7))
    np.testing.assert_allclose(found.values, wanted[:3], atol=1e-8)
    scores = found.left.scores(a), found.right.scores(b)
    np.testing.assert_allclose(np.diag(scores[0].T @ scores[1]) / 150, wanted[:3], atol=1e-7)
    assert found.converged and "leading components" in found.assurance
    short = npmdask.cca(a, b, 1, pcs=4, max_steps=1)
    assert not short.converged and any("left field: not converged" in said for said in short.warnings)


def test_a_ridge_is_that_of_the_definition() -> None:
    a, b = fields()
    s = np.cov(np.concatenate([a, b], axis=1).T, bias=True)
    ridged = [s[:20, :20] + 0.3 * np.trace(s[:20, :20]) / 20 * np.eye(20)]
    ridged += [s[20:, 20:] + 0.3 * np.trace(s[20:, 20:]) / 12 * np.eye(12)]
    roots = [np.linalg.inv(np.linalg.cholesky(side)) for side in ridged]
    wanted = np.linalg.svd(roots[0] @ s[:20, 20:] @ roots[1].T, compute_uv=False)
    found = npmdask.cca(a, b, 3, ridge=0.3)
    np.testing.assert_allclose(found.values, wanted[:3], atol=1e-10)
    scores = found.left.scores(a)[:, 0], found.right.scores(b)[:, 0]
    assert abs(np.corrcoef(*scores)[0, 1] - found.correlations[0]) < 1e-9 and found.values[0] < found.correlations[0]


@pytest.mark.slow
def test_correlations_that_say_nothing_are_said_so() -> None:
    """More directions than rows, or no more than chance. A direction that hardly varies is left out, and said."""
    rng = np.random.default_rng(3)
    wide = npmdask.cca(rng.standard_normal((30, 20)), rng.standard_normal((30, 25)), 1)
    assert wide.values[0] > 0.999 and any("are 1 whatever the data say" in said for said in wide.warnings)
    chance = npmdask.cca(rng.standard_normal((2000, 60)), rng.standard_normal((2000, 40)), 1)
    assert chance.chance is not None and abs(chance.values[0] - chance.chance) < 0.02
    assert any("these say no more" in said for said in chance.warnings)
    assert chance_correlation(60, 40, 2000) == chance.chance
    a, b = fields()
    assert not npmdask.cca(a, b, 1).warnings
    a[:, 1] = a[:, 0] + 1e-5 * b[:, 0]
    assert any("1 direction of the left field" in said for said in npmdask.cca(a, b, 1).warnings)
    warm = 20 + rng.standard_normal((150, 1))
    left_out = npmdask.cca(np.c_[warm, warm + 1e-5 * b[:, :1]], b, 1)
    assert left_out.values[0] < 0.9, "the largest correlation, of 1, lies in the direction that is left out"
    assert left_out.certificate["correlation_error"] == math.inf and "cannot be bounded" in left_out.assurance
    assert not any("say no more" in said for said in left_out.warnings)
    a[:, 1] = a[:, 0]
    same = npmdask.cca(a, b, 1)
    assert not same.warnings and same.certificate["ranks"] == [19, 12]


@pytest.mark.slow
def test_constants_far_from_zero_do_not_vary() -> None:
    """What rounding leaves of a column less its mean is no direction: a correlation with it was claimed to 12 digits.
    And means that hide most digits of a column are counted in the bound."""
    a, b = fields()
    c = np.tile([11.0066, 1e3, 1e7 / 3], (150, 1))
    found = npmdask.cca(a, c, 1, row_weights=np.linspace(0.1, 1, 150))
    assert found.certificate["ranks"] == [20, 0] and not found.values.any() and "does not vary" in found.assurance
    beside = npmdask.cca(a, np.c_[b, c], 2)
    np.testing.assert_allclose(beside.values, npmdask.cca(a, b, 2).values, rtol=1e-12)
    assert not beside.right.basis[12:].any() and beside.certificate["correlation_error"] < 1e-9
    assert not npmdask.cca(a, c, 1, pcs=2).values.any()
    far = npmdask.cca(a, b + 3e12, 2).certificate["correlation_error"]
    assert 1e-5 < far and npmdask.cca(a, b + 1e15, 2).assurance.startswith(
        "The error of the correlations cannot be bounded"
    )


def test_canonical_pairs_without_variance_are_none() -> None:
    found = canonical_pairs(np.zeros((4, 4)), 2, 2)
    assert found.ranks == (0, 0) and found.left.shape == (2, 0) and found.least == 0.0


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"right": np.zeros((149, 3))}, "150 rows and .* has 149"),
    ({"k": 13}, "at most 12"),
    ({"k": 0}, "at least 1"),
    ({"tol": 2.0}, "between 0 and 1"),
    ({"missing": "mean", "center": False}, "needs centring"),
    ({"left_weights": np.ones(3)}, "3 column_weights"),
    ({"row_weights": np.ones(3)}, "3 row_weights"),
]


@pytest.mark.parametrize(("given", "said"), WRONG)
def test_what_cannot_be_is_refused_with_a_sentence(given: dict[str, Any], said: str) -> None:
    a, b = fields()
    asked = {"left": a, "right": b, "k": 2} | given
    with pytest.raises(BadInputError, match=said):
        npmdask.mca(**asked)


@pytest.mark.slow
def test_rows_of_other_times_are_refused() -> None:
    """Fails where rows are matched by their place alone."""
    a, b = fields()
    times = pd.date_range("2001-01-01", periods=150)
    first = xr.DataArray(a, dims=("time", "x"), coords={"time": times})
    second = xr.DataArray(b, dims=("time", "y"), coords={"time": times})
    assert npmdask.mca(first, second, 1, dim="time").converged
    gone = second.assign_coords(time=times.where(times != times[7]))
    for other, what in ((second[::-1], "another order .row 0"), (gone, "no time 2001-01-08.*it has NaT")):
        with pytest.raises(BadInputError, match=f"{what} .*xarray.align"):
            npmdask.mca(first, other, 1, dim="time")
    with pytest.raises(BadInputError, match="sparse"):
        from scipy.sparse import csr_array

        npmdask.mca(csr_array(a), b, 1)
    with pytest.raises(BadInputError, match="two whole numbers"):
        npmdask.cca(a, b, 3, pcs=2)
    with pytest.raises(BadInputError, match="no 40 components"):
        npmdask.cca(a, b, 3, pcs=(10, 40))
    with pytest.raises(RefusedError, match="too small"):
        npmdask.mca(a, b, 1, memory="1MiB")


@pytest.mark.slow
def test_what_does_not_fit_is_refused_with_what_would() -> None:
    """In words of what was asked for: there is no iteration_rank. Mutant: as many modes as columns would fit."""
    a, b = (zarr.create_array({}, shape=(200, 20_000), chunks=(100, 5000), dtype="f4") for _ in range(2))
    for z in (a, b):
        z[...] = 1.0
    asked: dict[str, Any] = {"memory": tree_rss() + 800 * 2**20, "threads": 1}
    with pytest.raises(MemoryRefusedError, match=r"or k of at most \d+") as refused:
        npmdask.mca(a, b, 100, **asked)
    most = int(re.search(r"k of at most (\d+)", str(refused.value))[1])  # type: ignore[index]
    assert "iteration_rank" not in str(refused.value) and 10 < most < 100


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mca", "cca"])
def test_a_job_that_was_cut_short_goes_on_for_longer(kind: str, tmp_path: Path) -> None:
    """With the bits of one that was not. Mutants: the answer, or what was measured of the modes, is kept."""
    rng = np.random.default_rng(0)
    write_zarr(tmp_path / "a", rng.standard_normal((900, 300)), (300, 300))
    write_zarr(tmp_path / "b", rng.standard_normal((900, 200)), (300, 200))
    job: Any = {"mca": npmdask.mca, "cca": partial(npmdask.cca, pcs=4)}[kind]
    asked = (str(tmp_path / "a"), str(tmp_path / "b"), 2)
    short = job(*asked, store=tmp_path / "run", max_steps=2, tol=1e-9)
    whole = job(*asked, store=tmp_path / "whole", max_steps=150, tol=1e-6)
    assert not short.converged and whole.converged
    assert kind == "cca" or "npmdask resume STORE --max-steps N" in short.outcome.sentence
    again = npmdask.resume(tmp_path / "run", max_steps=150, tol=1e-6)
    assert isinstance(again, npmdask.CoupledModes) and again.converged
    assert again.values.tobytes() == whole.values.tobytes()
    assert again.left.basis.tobytes() == whole.left.basis.tobytes()
    same = npmdask.resume(tmp_path / "run", max_steps=150)
    assert same.values.tobytes() == whole.values.tobytes()
    with pytest.raises(BadInputError, match="only memory, workers, threads, max_steps and tol"):
        npmdask.resume(tmp_path / "run", low_rank_tol=0.1)


@pytest.mark.slow
def test_the_same_bits_however_it_is_computed(tmp_path: Path) -> None:
    a, b = fields()
    write_zarr(tmp_path / "a", a, (13, 7))
    write_zarr(tmp_path / "b", b.astype("f4"), (31, 5))
    places = str(tmp_path / "a"), str(tmp_path / "b")
    for name, means in (("one", {"threads": 1}), ("two", {"threads": 2}), ("processes", {"workers": 2})):
        npmdask.mca(*places, 2, store=tmp_path / name, **means)
    for name in ("two", "processes"):
        same_bytes(tmp_path / "one", tmp_path / name, ("result", "moments", "measured"))


@pytest.mark.slow
def test_the_command_line_and_what_every_command_knows_of_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    a, b = fields()
    write_zarr(tmp_path / "a.zarr", a, (40, 7))
    np.save("b.npy", b)
    assert main(["mca", "a.zarr", "b.npy", "-k", "2", "--json", "--quiet"]) == 0
    facts = json.loads(capsys.readouterr().out.splitlines()[-1])
    np.testing.assert_allclose(facts["values"], npmdask.mca(a, b, 2).values)
    assert facts["store"].endswith("runs/mca-a") and 0 < facts["squared_covariance_fraction"][0] < 1
    assert main(["cca", "a.zarr", "b.npy", "-k", "1", "--pcs", "4", "5", "--store", "c", "--quiet"]) == 0
    assert "canonical correlation" in capsys.readouterr().out
    again = npmdask.resume("c")
    assert isinstance(again, npmdask.CoupledModes)
    np.testing.assert_array_equal(again.values, npmdask.cca("a.zarr", "b.npy", 1, pcs=(4, 5), store="c").values)
    with pytest.raises(RefusedError, match=r"algorithm.pcs"):
        npmdask.cca("a.zarr", "b.npy", 1, pcs=(4, 4), store="c")
    with pytest.raises(RefusedError, match="another run"):
        npmdask.mca("a.zarr", "b.npy", 2, scale=True, store="runs/mca-a")
    for store in ("c", "runs/mca-a"):
        assert kind_of(RunStore(store).read_spec()).name == ("cca" if store == "c" else "mca")
        page = write_report(Path(store))
        assert "Modes" in Path(page).read_text()
        assert main(["export", store, f"{Path(store).name}.npz"]) == 0
        assert main(["inspect", store]) == 0 and main(["status", store]) == 0
    with np.load("mca-a.npz") as held:
        assert held["left_patterns"].shape == (20, 2)


@pytest.mark.slow
def test_grids_in_the_words_of_xeofs() -> None:
    """Land is left out and comes back as NaN; the values are those of the weighted covariances, n - 1 below."""
    a, b = fields(60, 20, 12)
    lat = [-60.0, -20.0, 0.0, 45.0]
    first = xr.DataArray(a.reshape(60, 4, 5), dims=("time", "lat", "lon"), coords={"lat": lat})
    first[:, 1, 2] = np.nan
    second = xr.DataArray(b.reshape(60, 4, 3), dims=("time", "lat", "depth"), coords={"lat": lat})
    model = MCA(2, use_coslat=True).fit(first, second)
    maps, others = model.components()
    assert maps.dims == ("mode", "lat", "lon") and others.shape == (2, 4, 3)
    assert np.isnan(maps[:, 1, 2]).all() and int(np.isnan(maps).sum()) == 2
    v = [np.repeat(np.cos(np.deg2rad(lat)), width) for width in (5, 3)]
    kept = np.delete(np.arange(20), 7)
    wanted = np.linalg.svd(covariance(a[:, kept], b, None, (v[0][kept], v[1])), compute_uv=False)
    np.testing.assert_allclose(model.singular_values(), wanted[:2] * 60 / 59, rtol=1e-9)
    left, right = model.scores()
    assert left.dims == ("time", "mode")
    np.testing.assert_allclose((left * right).mean("time"), model.modes_.values, rtol=1e-9)
    np.testing.assert_allclose(model.transform(Y=second), right)
    assert 0 < float(model.squared_covariance_fraction()[0]) < 1
    correlated = CCA(1, n_pca_modes=(4, 3)).fit(first, second)
    assert 0 < float(correlated.canonical_correlations()[0]) <= 1
    with pytest.raises(BadInputError, match="fit first"):
        MCA().scores()


@pytest.mark.slow
def test_a_job_that_was_killed_goes_on_by_its_store_alone(tmp_path: Path) -> None:
    """Everything that it was asked is in there: weights, gaps, what was done to columns. In a process of its own that
    is killed after its first step. Mutant: the store of the left field alone is opened again."""
    a, b = fields()
    b[5:30, 2] = np.nan
    write_zarr(tmp_path / "a", a, (13, 7))
    write_zarr(tmp_path / "b", b, (31, 5))
    np.save(tmp_path / "u.npy", np.linspace(0.0, 3.0, 150))
    assert exit_status(coupled_job.main, tmp_path, "run", "mca", "1") == -signal.SIGKILL
    with pytest.raises(BadInputError, match="finishes the job"):
        kind_of(RunStore(tmp_path / "run").read_spec()).answer(tmp_path / "run")
    found = npmdask.resume(tmp_path / "run")
    assert isinstance(found, npmdask.CoupledModes) and found.converged
    u = np.linspace(0.0, 3.0, 150)
    whole = npmdask.mca(
        str(tmp_path / "a"), str(tmp_path / "b"), 2, scale=True, missing="mean", row_weights=u, tol=1e-6
    )
    np.testing.assert_allclose(found.values, whole.values, rtol=1e-9)
