"""Means and deviations of columns, and what they are off, against more digits; and that nothing else computes them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import npmdask
from npmdask.core.certificates.bounds import ROOM, of_scale
from npmdask.core.operators.view import View
from npmdask.core.storage.column_statistics import MOMENTS, ColumnStatistics, ColumnSums, EntrySums, merged, of_moments
from npmdask.core.storage.source import open_source
from tests.conftest import often

PACKAGE = Path(npmdask.__file__).parent
OFFSETS = (0.0, 1.0, 1e2, 1e4, 1e6, 1e9)


def exact(x: np.ndarray, weights: np.ndarray | None = None, there: np.ndarray | None = None) -> tuple[Any, Any]:
    """Means and deviations over what is ``there``, in more digits."""
    times = np.ones(x.shape, np.longdouble) if there is None else there.astype(np.longdouble)
    times = times if weights is None else times * weights[:, None]
    x, count = np.where(times > 0, x, 0).astype(np.longdouble), np.maximum(times.sum(axis=0), 1e-300)
    mean = (times * x).sum(axis=0) / count
    return mean, np.sqrt((times * (x - mean) ** 2).sum(axis=0) / count)


def require_right(found: ColumnStatistics, mean: Any, std: Any, about: str) -> None:
    """What it says to be off is no less than what is, and no silence: a few hundred roundings where nothing is lost."""
    varies = std > 1e-9 * np.abs(mean)
    error = np.abs(found.deviation - std)
    assert (error[varies] <= found.off[varies]).all(), (about, float((error / found.off)[varies].max()))
    spread = np.sqrt(mean**2 + std**2)
    assert (np.abs(found.mean - mean) <= 2e-13 * spread).all(), about


def merged_in_parts(x: np.ndarray, parts: int, weights: Any = None, gaps: Any = None) -> dict[str, Any]:
    """Sums of parts of the rows, joined as those of runs are."""
    sums = []
    for rows in np.array_split(np.arange(len(x)), parts):
        held = ColumnSums(x.shape[1])
        of_rows = [None if each is None else each[rows] for each in (weights, gaps)]
        held.add(x[rows], *of_rows)
        sums.append({name: vars(held)[name] for name in MOMENTS})
    while len(sums) > 1:
        sums = [merged(*sums[i : i + 2]) if i + 1 < len(sums) else sums[i] for i in range(0, len(sums), 2)]
    return sums[0]


@pytest.mark.slow
@pytest.mark.parametrize("seed", often(range(24), 0, 3))
def test_dense_columns_are_as_right_as_they_say(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(2, 3000)), int(rng.integers(1, 12))
    offset, dtype = OFFSETS[seed % 6], str(rng.choice(["f8", "f4", "f2", "i4"]))
    x = rng.standard_normal((n, d)) * 10.0 ** rng.uniform(-1, 2, d) + offset * rng.choice([1, 0], d)
    x += np.linspace(0, 9, n)[:, None] * rng.choice([0, 1])  # a trend, which parts differ by
    with np.errstate(over="ignore"):
        x = x.astype(dtype)
    x = np.where(np.isfinite(x), x, 1).astype(dtype)
    weights = rng.integers(0, 4, n) * rng.random(n) if seed % 2 else None
    if weights is not None:
        weights[0] = 1.0
    gaps = rng.random(x.shape) < 0.3 if seed % 3 == 0 else None
    weight = float(n if weights is None else weights.sum())
    sums = merged_in_parts(x, int(rng.integers(1, 9)), weights, gaps)
    found = of_moments(sums, n, weight, None if gaps is None else sums["count"] / weight)
    require_right(found, *exact(x, weights, None if gaps is None else ~gaps), f"{seed} {dtype} {offset}")


@pytest.mark.slow
@pytest.mark.parametrize("seed", often(range(36), 4, 5))
def test_sparse_columns_are_as_right_as_they_say(seed: int) -> None:
    """Mutant: from sums of squares about zero alone, which lose all digits at an offset of 1e9."""
    rng = np.random.default_rng(seed)
    n, d, offset = int(rng.integers(20, 3000)), int(rng.integers(1, 12)), OFFSETS[seed % 6]
    full = rng.choice([0.05, 0.5, 1 - 1.5 / n, 1.0], d)  # of the columns
    x = np.where(rng.random((n, d)) < full, rng.standard_normal((n, d)) + offset * rng.choice([1, 0.01], d), 0.0)
    weights = rng.random(n) * (rng.random(n) < 0.8) + 1e-3 if seed % 2 else None
    sums: list[dict[str, Any]] = []
    for rows in np.array_split(np.arange(n), int(rng.integers(1, 9))):
        part, held = sp.csr_matrix(x[rows]), EntrySums(d)
        own = None if weights is None else np.repeat(weights[rows], np.diff(part.indptr))
        held.add(part.indices, part.data, own)
        sums.append(held.sums)
    total = sums[0]
    for more in sums[1:]:
        total = {name: total[name] + more[name] for name in EntrySums.PLAIN} | merged(total, more)
    found = EntrySums(d, total).statistics(n, float(n if weights is None else weights.sum()))
    require_right(found, *exact(x, weights), f"{seed} {offset}")
    if weights is None:
        assert found.scale_error < 1e-10, "most digits are there"


def test_what_is_kept_says_the_same() -> None:
    x = np.random.default_rng(0).standard_normal((300, 4)) + np.array([0, 1e7, 1e3, 0])
    sparse = sp.csr_matrix(x)
    sums = EntrySums(4)
    sums.add(sparse.indices, sparse.data)
    found = sums.statistics(300, 300)
    for second in ("column_std", "column_m2"):
        again = ColumnStatistics.of(found.kept(second), 300, sparse=True)
        assert (again.scale == found.scale).all() and again.scale_error == found.scale_error and not again.about_zero
    before = EntrySums(4, {name: sums.sums[name] for name in ("total", "squares")}).statistics(300, 300)
    assert before.about_zero and before.scale_error > 1e-4, "a store of an earlier version has plain sums alone"
    assert list(before.kept()) == ["column_mean", "column_std"]


def test_constant_columns_are_not_divided_by_rounding() -> None:
    x = sp.csr_matrix(np.full((5000, 3), 0.1) * [1, 1e6, 0])
    sums = EntrySums(3)
    sums.add(x.indices, x.data)
    dense = ColumnSums(3)
    dense.add(x.toarray())
    for found in (sums.statistics(5000, 5000), of_moments(vars(dense), 5000)):
        assert not found.varies.any() and (found.scale == 1).all() and found.scale_error == 0


# What the certificate says of a question that is scaled.


def scaled(x: np.ndarray, *, center: bool) -> np.ndarray:
    """Its singular values, in more digits up to the last step."""
    mean, std = exact(x)
    return np.linalg.svd(((x - (mean if center else 0)) / std).astype(float), compute_uv=False)


@pytest.mark.slow
@pytest.mark.parametrize("offset", [0.0, 1e2, 1e4, 1e6])
@pytest.mark.parametrize("seed", often(range(10), 0, 1))
def test_scaled_sparse_data_are_within_their_bound(seed: int, offset: float) -> None:
    """Before: 3 of 13 digits were right at 1e6. What is left of them is said, and the dense twin says as much."""
    rng = np.random.default_rng(seed)
    x = np.where(rng.random((200, 10)) < 0.2, rng.standard_normal((200, 10)), 0)
    x[:, 0] = offset + rng.standard_normal(200)
    for rows in (sp.csr_matrix(x), x):
        found, true = npmdask.top_k(rows, 1, scale=True), scaled(x, center=False)[0]
        told = found.certificate["levels"][0]["value_errors"][0]
        assert abs(found.values[0] - true) <= told + 1e-14 * true and told <= 1e-13 * true
        assert "accurate to 13 digits" in found.assurance


def covariance(x: np.ndarray) -> np.ndarray:
    """Of pairs of columns, each over the rows that have both; divided by deviations over what is observed."""
    there, d = ~np.isnan(x), x.shape[1]
    out = np.empty((d, d))
    for i in range(d):
        for j in range(d):
            both = there[:, i] & there[:, j]
            a, b = (x[both, c].astype(np.longdouble) for c in (i, j))
            out[i, j] = ((a - a.mean()) * (b - b.mean())).mean()
    roots = np.sqrt(np.diag(out))
    return out / np.outer(roots, roots)


def test_what_deviations_are_off_is_part_of_the_bound() -> None:
    """Of a matrix with every column off by as much; ordinary rounding has room in that of products."""
    x = np.random.default_rng(0).standard_normal((50, 4))
    for error in (1e-3, 1e-8, 1e-14, 0.0):
        values = [np.linalg.svd(x / (1 + sign * error), compute_uv=False)[0] ** 2 for sign in (1, -1, 0)]
        assert max(abs(values[i] - values[2]) for i in (0, 1)) <= of_scale(error, values[2]) + 2 * ROOM * values[2]
    assert of_scale(0.0, 1.0) == of_scale(ROOM / 4, 1.0) == 0 and of_scale(1.5, 1.0) > 1e15


@pytest.mark.slow
def test_sums_of_an_earlier_version_say_how_far_they_are_off(tmp_path: Path) -> None:
    x = sp.random_array((300, 5), density=0.3, rng=np.random.default_rng(0), format="csr").toarray()
    x[:, 0] = 1e5 + np.random.default_rng(1).standard_normal(300)
    source = open_source(sp.csr_matrix(x), "sparse")
    sums = EntrySums(5)
    sums.add(sp.csr_matrix(x).indices, sp.csr_matrix(x).data)
    plain = EntrySums(5, {name: sums.sums[name] for name in ("total", "squares")}).statistics(300, 300)
    assert source.shape == (300, 5)
    view = View.of_columns(plain, center=False, scale=True)
    assert np.abs(plain.scale[0] / exact(x)[1][0] - 1) <= view.scale_error < 1


# Nothing else computes a deviation, or what columns are divided by.


KERNELS = {  # what forms products of rows about a mean that it finds on the way, or measures no columns of the data
    "gpu/on_device.py",
    "core/operators/row_gram.py",
    "estimators/eof.py",
    "two_fields/fit.py",
    "planning/row_sample.py",
    "stored_gram/resampling.py",
}


def of_statistics(tree: ast.AST) -> Iterator[int]:
    """Lines that take the deviation of an array, or the root of a second moment that is named like one."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        along = [a for a in (*node.args, *(k.value for k in node.keywords)) if isinstance(a, ast.Constant)]
        if name in ("std", "nanstd", "var", "nanvar", "nanmean") and along:
            yield node.lineno
        if name == "sqrt" and any("m2" in ast.unparse(argument) for argument in node.args):
            yield node.lineno


@pytest.mark.slow
def test_one_place_computes_the_statistics_of_columns() -> None:
    """Mutant: ``np.sqrt(m2 / rows)`` in any other module. Their names of before are gone."""
    found = dict[str, list[int]]()
    for path in sorted(PACKAGE.rglob("*.py")):
        name, text = path.relative_to(PACKAGE).as_posix(), path.read_text()
        if name.startswith(("experiments/", "synthetic/")) or name in KERNELS:
            continue
        if lines := list(of_statistics(ast.parse(text))):
            found[name] = lines
        for gone in ("column_scale(", "over_observed", "filled_moments", "add_by_column", "ObservedMoments"):
            assert gone not in text, name
    assert list(found) == ["core/storage/column_statistics.py"], found


@pytest.mark.slow
def test_rounding_has_no_share_of_the_variance() -> None:
    """Before: 100 % of it were explained by a value of 1e-16."""
    x = np.full((50, 4), 0.1)
    for rows in (x, sp.csr_matrix(x)):
        found = npmdask.top_k(rows, 1, center=True)
        assert found.explained_share is None and np.isnan(found.explained_variance_ratio).all()
        assert "cannot be distinguished from zero" in found.assurance
    with pytest.raises(npmdask.BadInputError, match="no variance to explain"):
        npmdask.top_k(x, 0.5, center=True)
    x[:, 1] += np.arange(50) * 1e-9
    assert npmdask.top_k(x, 1, center=True).explained_share == pytest.approx(1)
