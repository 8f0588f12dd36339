"""Values that are marked as missing, in every form, are never taken for numbers by any way to analyse them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import xarray as xr

import npmdask
from tests.theory.families.drawing import Rng, one_of, whole
from tests.theory.families.judging import Findings, Problem

MARK = -999.0
Rows = Any


@dataclass(frozen=True)
class Marked(Problem):
    x: np.ndarray  # without gaps
    gaps: np.ndarray
    form: str
    way: str


def columns_of(x: np.ndarray, gaps: np.ndarray) -> dict[str, list[float | None]]:
    return {
        f"c{j}": [None if gap else float(v) for v, gap in zip(x[:, j], gaps[:, j], strict=True)]
        for j in range(x.shape[1])
    }


def encoded(x: np.ndarray, gaps: np.ndarray) -> xr.DataArray:
    found = xr.DataArray(np.where(gaps, np.nan, x), dims=("r", "c"))
    found.encoding["_FillValue"] = MARK
    return found


def masked(x: np.ndarray, gaps: np.ndarray) -> Any:
    return np.ma.masked_array(np.where(gaps, MARK, x), gaps)


FORMS: dict[str, Callable[[np.ndarray, np.ndarray], Rows]] = {
    "masked": masked,
    "masked whole numbers": lambda x, gaps: np.ma.masked_array(
        np.where(gaps, MARK, np.round(10 * x)).astype("i4"), gaps
    ),
    "Dask of masked": lambda x, gaps: da.from_array(masked(x, gaps), chunks=(20, x.shape[1])),
    "pandas": lambda x, gaps: pd.DataFrame(np.where(gaps, np.nan, x)).convert_dtypes(),
    "Polars": lambda x, gaps: pl.DataFrame(columns_of(x, gaps)),
    "Arrow": lambda x, gaps: pa.table(columns_of(x, gaps)),
    "xarray, attribute": lambda x, gaps: xr.DataArray(
        np.where(gaps, MARK, x), dims=("r", "c"), attrs={"_FillValue": MARK}
    ),
    "xarray, encoding": encoded,
}

# With the marked rows and complete ones; what comes back is compared with the size of the data.
WAYS: dict[str, Callable[[Rows, np.ndarray, Path], Any]] = {
    "top_k": lambda rows, x, at: npmdask.top_k(rows, 2, kind="samples", center=True).values,
    "top_k, mean": lambda rows, x, at: npmdask.top_k(rows, 2, kind="samples", center=True, missing="mean").values,
    "top_k, matrix": lambda rows, x, at: npmdask.top_k(rows, 2).values,
    "gram": lambda rows, x, at: npmdask.gram(rows, str(at / "gram"), kind="samples").spectrum(center=True),
    "scores": lambda rows, x, at: npmdask.top_k(x, 2, kind="samples", center=True).scores(rows),
    "scores, least-squares": lambda rows, x, at: npmdask.top_k(x, 2, kind="samples", center=True).scores(
        rows, missing="least-squares"
    ),
    "PCA.fit": lambda rows, x, at: npmdask.PCA(2).fit(rows).explained_variance_,
    "PCA.transform": lambda rows, x, at: npmdask.PCA(2).fit(x).transform(rows),
    "TruncatedSVD": lambda rows, x, at: npmdask.TruncatedSVD(2).fit(rows).singular_values_,
    "IncrementalPCA.fit": lambda rows, x, at: npmdask.IncrementalPCA(2).fit(rows).explained_variance_,
    "IncrementalPCA.partial_fit": lambda rows, x, at: npmdask.IncrementalPCA(2).partial_fit(rows).explained_variance_,
    "IncrementalPCA, impute": lambda rows, x, at: (
        npmdask.IncrementalPCA(2, missing="impute").partial_fit(rows).explained_variance_
    ),
    "stream_pca": lambda rows, x, at: npmdask.stream_pca(rows, 2, center=True).values,
    "stream_pca, impute": lambda rows, x, at: npmdask.stream_pca(rows, 2, center=True, missing="impute").values,
    "stream_pca, held out": lambda rows, x, at: npmdask.stream_pca(x, 2, center=True, held_out=rows).last.explained,
    "StreamingPCA": lambda rows, x, at: npmdask.StreamingPCA(2, center=True).partial_fit(rows).values,
    "StreamingPCA.transform": lambda rows, x, at: npmdask.StreamingPCA(2, center=True).partial_fit(x).transform(rows),
    "mca, left": lambda rows, x, at: npmdask.mca(rows, x, 2).values,
    "mca, right": lambda rows, x, at: npmdask.mca(x, rows, 2).values,
    "mca, scores": lambda rows, x, at: npmdask.mca(x, x[:, ::-1], 2).left.scores(rows),
    "MCA.fit": lambda rows, x, at: npmdask.MCA(2).fit(rows, x).x_weights_,
    "cca": lambda rows, x, at: npmdask.cca(rows, x, 2).values,
    "Mixture": lambda rows, x, at: npmdask.Mixture(2).fit(rows).means_,
    "ICA": lambda rows, x, at: npmdask.ICA(2).fit(rows).mixing_,
    "row weights": lambda rows, x, at: (
        npmdask.top_k(
            x, 2, kind="samples", row_weights=rows[:, 0] if isinstance(rows, np.ma.MaskedArray) else rows
        ).values
    ),
}
FILLED = ("mean", "impute", "least-squares")  # ways that are for data with gaps


def problem(rng: Rng) -> Marked:
    x = np.abs(rng.standard_normal((80, 5)) + 4)
    x[:, 0] *= 3
    gaps = rng.random(x.shape) < 0.1
    gaps[whole(rng, 0, 79), 0] = True
    return Marked(x, gaps, one_of(rng, tuple(FORMS)), one_of(rng, tuple(WAYS)))


def check(problem: Marked, folder: Path) -> Findings:
    """Refused; or, where gaps are filled, numbers of the size of the data (10 times that, of rounded ones); or NaN."""
    found = Findings()
    answer = np.asarray(WAYS[problem.way](FORMS[problem.form](problem.x, problem.gaps), problem.x, folder), float)
    allowed = any(word in problem.way for word in FILLED) or np.isnan(answer).any()
    found.expect(allowed, "gaps were neither refused nor filled:", problem.way, "of", problem.form)
    limit = 100 * 4 * float(np.square(problem.x).sum(axis=1).max()) if "whole" in problem.form else 0
    limit = max(limit, 4 * float(np.square(problem.x).sum(axis=1).max()))
    found.expect(np.nanmax(np.abs(answer), initial=0) <= limit, "a mark was taken for a number:", answer.ravel()[:4])
    return found
