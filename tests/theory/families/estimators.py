"""PCA, TruncatedSVD and IncrementalPCA: by scikit-learn and an own SVD, weights as repeated rows, whitening, sparse."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
import sklearn.decomposition

import npmdask
from tests.theory.families.drawing import Rng, chance, one_of, power_of_ten, whole
from tests.theory.families.judging import EPS, Findings, Problem, Unasked, prepared

KINDS = (
    "PCA", "PCA", "PCA of repeated rows", "PCA of sparse", "PCA of a share", "TruncatedSVD", "TruncatedSVD of sparse",
    "IncrementalPCA", "IncrementalPCA of repeated rows", "weighted PCA", "weighted TruncatedSVD",
)  # fmt: skip
CLOSE = 1e-7  # the estimators stop at about the root of this, and then values are right to it


@dataclass(frozen=True)
class Fitted(Problem):
    x: np.ndarray
    change: str
    estimator: str
    k: float
    whiten: bool
    repeats: np.ndarray  # how often each row counts
    columns: np.ndarray | None
    batches: list[int]


def problem(rng: Rng) -> Fitted:
    n, d = whole(rng, 2, 199), whole(rng, 1, 49)
    estimator = one_of(rng, KINDS)
    x = rng.standard_normal((n, d)) * np.geomspace(1, power_of_ten(rng, -3, 0), d)
    change = one_of(rng, ("none", "means", "units", "rank 2", "constants", "huge"), p=[0.5, 0.2, 0.1, 0.1, 0.05, 0.05])
    if change == "means":
        x = x + rng.standard_normal(d) * power_of_ten(rng, 0, 6)
    elif change == "units":
        x = x * 10.0 ** rng.uniform(-5, 5, d)
    elif change == "rank 2" and d > 2:
        x = x[:, :2] @ rng.standard_normal((2, d))
    elif change == "constants":
        x[:, 0] = 4
    elif change == "huge":
        x = x * 10.0 ** one_of(rng, (-90, 90))
    if "sparse" in estimator:
        x = np.where(rng.random(x.shape) < 0.3, x, 0)
    if chance(rng, 0.25) and change != "huge":
        x = x.astype(np.float32)
    weighted = "repeated" in estimator or (estimator.startswith("weighted") and chance(rng, 0.5))
    repeats = rng.integers(0, 4, n) if weighted else np.ones(n, int)
    columns = None
    if estimator.startswith("weighted"):
        columns = rng.random(d) * (rng.random(d) < 0.85)
        columns[0] = 1
    k: float = whole(rng, 1, min(n, d))
    if estimator == "PCA of a share":
        k = one_of(rng, (0.5, 0.9, 0.99))
    if estimator.startswith("weighted"):
        counted = (int((repeats > 0).sum()) - 1, d if columns is None else int((columns > 0).sum()))
        k = whole(rng, 1, max(1, min(counted)))
    largest, batches = whole(rng, int(max(k, 1)), int(max(k, n))), list[int]()
    while sum(batches) < n:
        batches.append(max(whole(rng, 1, largest), 1 if batches else int(k)))
    return Fitted(x, change, estimator, k, chance(rng, 0.3), repeats, columns, batches)


def check(problem: Fitted, folder: Path) -> Findings:
    found = Findings()
    if problem.repeats.sum() < 3:
        raise Unasked("fewer than three rows")
    if problem.estimator.startswith("Incremental"):
        of_batches(found, problem)
    elif problem.estimator.startswith("weighted"):
        of_weights(found, problem)
    elif problem.estimator.startswith("Truncated"):
        truncated(found, problem)
    else:
        by_scikit_learn(found, problem)
    return found


def rounding(problem: Fitted) -> float:
    """Of an entry, as a share of the largest deviation: by what a value may be off beside the tolerance."""
    x = problem.x.astype(float)
    away = np.abs(x - x.mean(axis=0)).max() or 1.0
    return float(16 * EPS * np.abs(x).max() / away)


def by_scikit_learn(found: Findings, problem: Fitted) -> None:
    """PCA beside scikit-learn's, of the rows repeated where rows have weights."""
    x, whiten = problem.x.astype(float), problem.whiten
    repeated = np.repeat(x, problem.repeats, axis=0)
    k = problem.k if problem.k < 1 else min(int(problem.k), *repeated.shape)
    reference = sklearn.decomposition.PCA(n_components=k, whiten=whiten, svd_solver="full").fit(repeated)
    top = reference.singular_values_[0]
    if top < 1e-10 * np.abs(repeated).max() * np.sqrt(len(x)):
        raise Unasked("constant data: nothing is left but the rounding of means")
    source = sp.csr_matrix(problem.x) if "sparse" in problem.estimator else problem.x
    weights = problem.repeats.astype(float) if "repeated" in problem.estimator else None
    pca = npmdask.PCA(n_components=k, whiten=whiten).fit(source, sample_weight=weights)
    values = np.linalg.svd(repeated - repeated.mean(axis=0), compute_uv=False)
    if pca.n_components_ != reference.n_components_:
        shares = np.cumsum(values**2) / (values**2).sum()
        at_the_edge = np.abs(shares - k).min() < 1e-9
        found.expect(at_the_edge, "components", pca.n_components_, "for", reference.n_components_)
        return
    k, own = pca.n_components_, rounding(problem)
    for name in ("singular_values_", "explained_variance_", "explained_variance_ratio_"):
        found.close(name, getattr(pca, name), getattr(reference, name), CLOSE + own)
    found.close("mean_", pca.mean_, reference.mean_, 1e-13, float(np.abs(x).max()))
    variance = reference.explained_variance_[0]
    found.close("noise_variance_", pca.noise_variance_, reference.noise_variance_, CLOSE, float(variance))
    single = np.array(
        [min((abs(values[i] - v) for j, v in enumerate(values) if j != i), default=top) for i in range(k)]
    )
    known = (single > 1e-4 * top) & (reference.singular_values_ > 1e-3 * top)
    ours, theirs = np.asarray(pca.components_), reference.components_
    signs = np.sign((ours * theirs).sum(axis=1))
    turned = (CLOSE + own) * 1e4  # a vector turns by the error of its value over its gap
    found.close("components_", (ours * signs[:, None])[known], theirs[known], turned, 1.0)
    scores = np.asarray(pca.transform(source), float)
    size = np.sqrt(pca.explained_variance_) if whiten else np.ones(k)
    direct = (x - pca.mean_) @ ours.T / size
    found.close("transform", scores[:, known], direct[:, known], 1e-9 + own * 100)
    if reference.singular_values_[-1] > 1e-6 * top:
        rebuilt = (scores * size) @ ours + pca.mean_
        found.close(
            "inverse_transform", pca.inverse_transform(scores), rebuilt, 1e-6 if problem.x.dtype == "f4" else 1e-10
        )
    if problem.estimator == "PCA" and problem.k > 1 and x.shape[1] > 1:
        named(found, problem, int(k))


def named(found: Findings, problem: Fitted, k: int) -> None:
    """A frame keeps its rows' names, and other columns are refused, as scikit-learn does."""
    n, d = problem.x.shape
    frame = pd.DataFrame(problem.x, columns=[f"f{j}" for j in range(d)], index=[f"r{i}" for i in range(n)])
    pca = npmdask.PCA(n_components=k).set_output(transform="pandas").fit(frame)
    found.expect(list(pca.transform(frame).index) == list(frame.index), "the rows of a frame lose their names")
    try:
        pca.transform(frame[frame.columns[::-1]])
    except ValueError:
        return
    found.expect(False, "columns in another order are accepted")


def truncated(found: Findings, problem: Fitted) -> None:
    x, k = problem.x.astype(float), int(problem.k)
    source = sp.csr_matrix(problem.x) if "sparse" in problem.estimator else problem.x
    if not x.any():
        raise Unasked("data that are 0")
    svd = npmdask.TruncatedSVD(n_components=k).fit(source)
    factor = np.abs(x).max()
    values = np.linalg.svd(x / factor, compute_uv=False) * factor
    found.close("singular_values_", svd.singular_values_, values[:k], CLOSE, values[0])
    scores = x @ svd.components_.T
    precision = 1e-5 if problem.x.dtype == "f4" else 1e-10
    found.close("transform", np.asarray(svd.transform(source), float), scores, precision)
    compare_variances(found, svd, scores, x, np.ones(len(x)), problem.x.dtype)


def compare_variances(
    found: Findings, svd: Any, scores: np.ndarray, rows: np.ndarray, u: np.ndarray, dtype: Any
) -> None:
    """Variances of the scores, and their shares of the variance of all columns; from moments: means cancel."""

    def variance(y: np.ndarray) -> np.ndarray:
        return np.asarray(u @ (y - u @ y / u.sum()) ** 2 / u.sum())

    variances, total = variance(scores), variance(rows).sum()
    means = np.max((u @ scores / u.sum()) ** 2)
    size = float(variances.max() + means)
    within = 1e-5 if dtype == np.float32 else CLOSE
    found.close("explained_variance_", svd.explained_variance_, variances, within, size)
    if total > 0:
        found.close("explained_variance_ratio_", svd.explained_variance_ratio_, variances / total, within, size / total)


def of_batches(found: Findings, problem: Fitted) -> None:
    """Every row is counted once; variances are at most the true ones, and those where all directions are kept."""
    x, k = problem.x.astype(float), int(problem.k)
    weighted = "repeated" in problem.estimator
    rows = np.repeat(x, problem.repeats, axis=0)
    pca, at = npmdask.IncrementalPCA(n_components=k, whiten=problem.whiten), 0
    for size in problem.batches:
        stop = min(at + size, len(x))
        more = {"sample_weight": problem.repeats[at:stop].astype(float)} if weighted else {}
        pca.partial_fit(problem.x[at:stop], **more)
        at = stop
    found.close("rows seen", pca.n_samples_seen_, len(rows), 1e-12)
    precision = 1e-6 if problem.x.dtype == "f4" else 1e-12
    found.close("mean_", pca.mean_, rows.mean(axis=0), precision, float(np.abs(rows).max()))
    away = rows - rows.mean(axis=0)
    variances = np.linalg.svd(away, compute_uv=False) ** 2 / max(len(rows) - 1, 1)
    own = (precision * np.abs(rows).max()) ** 2
    largest = float(np.max(pca.explained_variance_))
    found.expect(largest <= variances[0] * (1 + 1e-4) + own, "a variance above the truth:", largest, variances[0])
    if k == x.shape[1] <= len(x) and variances[0] > own:
        found.close("sum of ratios, all kept", np.sum(pca.explained_variance_ratio_), 1.0, 1e-5)
        within = 1e-5 + own / variances[0]
        found.close("explained_variance_, all kept", pca.explained_variance_, variances[:k], within, variances[0])
    if not problem.whiten:
        scores = (x - pca.mean_) @ np.asarray(pca.components_).T
        size = float(np.abs(scores).max()) + float(np.abs(x).max()) * 1e-3
        found.close("transform", np.asarray(pca.transform(problem.x), float), scores, precision * 100, size)


def of_weights(found: Findings, problem: Fitted) -> None:
    """Column weights, with and without weights of rows, by an own SVD."""
    x, k, u = problem.x.astype(float), int(problem.k), problem.repeats.astype(float)
    v = np.ones(x.shape[1]) if problem.columns is None else problem.columns
    centred = problem.estimator == "weighted PCA"
    truth = prepared(x, center=centred, rows=u, columns=v)
    _, values, _ = np.linalg.svd(truth.matrix, full_matrices=False)
    if k > len(values) or values[k - 1] < 1e-6 * values[0] or truth.is_noise:
        raise Unasked("components without variance")
    if centred:
        fitted = npmdask.PCA(k, whiten=problem.whiten, column_weights=v).fit(problem.x, sample_weight=u)
    else:
        fitted = npmdask.TruncatedSVD(k, column_weights=v).fit(problem.x, sample_weight=u)
    found.close("singular_values_", fitted.singular_values_, values[:k], CLOSE + rounding(problem))
    components = np.asarray(fitted.components_)
    scores = truth.rows_before @ components.T
    size = np.ones(k)
    if centred:
        squares = values**2
        found.close(
            "explained_variance_", fitted.explained_variance_, squares[:k] / (u.sum() - 1), CLOSE + rounding(problem)
        )
        ratio = squares[:k] / squares.sum()
        found.close(
            "explained_variance_ratio_", fitted.explained_variance_ratio_, ratio, CLOSE + rounding(problem), 1.0
        )
        size = np.sqrt(fitted.explained_variance_) if problem.whiten else size
    else:
        compare_variances(found, fitted, scores, truth.rows_before, u, problem.x.dtype)
    transformed = np.asarray(fitted.transform(problem.x), float)
    single = 1e-5 if problem.x.dtype == "f4" else 1e-10
    found.close("transform", transformed, scores / size, single + 1e3 * rounding(problem))
    counted = v > 0
    rebuilt = (transformed * size) @ components[:, counted] / np.sqrt(v[counted]) + centred * truth.mean[counted]
    found.close("inverse_transform", np.asarray(fitted.inverse_transform(transformed))[:, counted], rebuilt, single)
