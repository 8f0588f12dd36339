"""Numbers that mark missing values in streams: the bits of the same rows with NaN.

Mutants that these tests kill: marks that are compared before values are decoded, or only as float64; rows of marks
alone that are given; marks that a store, a saved model or scores forget.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import npmdask
from npmdask.cli.main import main
from npmdask.errors import BadInputError, RefusedError
from npmdask.streaming import StreamingPCA, stream_pca
from npmdask.streaming.api import resume_stream
from npmdask.streaming.transform import transform
from tests.conftest import write_zarr
from tests.streaming.common import D, rows_of

RNG = np.random.default_rng(4)
GAPPY = np.where(RNG.random((200, D)) < 0.15, np.nan, rows_of(200))
GAPPY[17] = np.nan
MARK = -999.9  # which float32 holds as another number
HOW: dict[str, Any] = {"center": True, "batch_rows": 40, "missing": "impute", "options": {"block_rows": 16}}


def marked(dtype: Any = np.float64) -> np.ndarray:
    return np.where(np.isnan(GAPPY), MARK, GAPPY).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("way", ["memory", "zarr", "iterator", "csv"])
def test_marked_values_are_missing(way: str, dtype: Any, tmp_path: Path) -> None:
    rows = marked(dtype)
    wanted = stream_pca(np.where(rows == dtype(MARK), np.nan, rows), 2, **HOW)
    if way == "zarr":
        source: Any = write_zarr(tmp_path / "x", rows, (32, D))
    elif way == "csv":
        np.savetxt(tmp_path / "x.csv", rows.astype(np.float64), delimiter=",", fmt="%.17g")
        source = tmp_path / "x.csv"
    else:
        source = rows if way == "memory" else iter([rows[:90], rows[90:]])
    found = stream_pca(source, 2, missing_values=MARK, **HOW)
    np.testing.assert_array_equal(found.basis, wanted.basis)
    np.testing.assert_array_equal(found.mean, wanted.mean)
    assert found.facts == wanted.facts and (found.rows, found.skipped) == (199, 1)


def test_integers_are_marked_too() -> None:
    counts = RNG.integers(0, 50, (100, D))
    gappy = np.where(counts == 7, np.nan, counts)
    for model in (npmdask.IncrementalPCA, StreamingPCA):
        one = model(2, missing="impute", missing_values=[7]).fit(counts)
        other = model(2, missing="impute").fit(gappy)
        np.testing.assert_array_equal(one.transform(rows_of(5)), other.transform(rows_of(5)))


@pytest.mark.filterwarnings("ignore:.*as uncertain")
@pytest.mark.parametrize("model", [npmdask.IncrementalPCA, StreamingPCA])
def test_models_that_are_fed_by_hand(model: Any, tmp_path: Path) -> None:
    """Batches and scores; a batch of marks alone says nothing."""
    one, other = model(2, missing="impute", missing_values=MARK), model(2, missing="impute")
    for start in (0, 100):
        one.partial_fit(marked()[start : start + 100])
        other.partial_fit(GAPPY[start : start + 100])
    one.partial_fit(np.full((3, D), MARK))
    some = np.flatnonzero(~np.isnan(GAPPY).all(axis=1))[:40]
    np.testing.assert_array_equal(
        one.transform(marked()[some], missing="least-squares"), other.transform(GAPPY[some], missing="least-squares")
    )
    with pytest.raises(BadInputError, match="not finite"):
        one.transform(marked()[some])
    if model is StreamingPCA:
        one.save(tmp_path / "model")
        again = StreamingPCA.load(tmp_path / "model")
        again.partial_fit(marked())
        other.partial_fit(GAPPY)
        np.testing.assert_array_equal(again.basis, other.basis)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*as uncertain")
def test_the_store_knows_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From the command line; resumed, with scores, and held to them."""
    source, store = str(write_zarr(tmp_path / "x", marked(), (32, D))), tmp_path / "run"
    how = ["-k", "2", "--algorithm", "spm", "--missing", "impute", "--missing-values", str(MARK), "--center"]
    assert main(["run", source, *how, "--store", str(store)]) == 0
    wanted = stream_pca(GAPPY, 2, center=True, missing="impute")
    np.testing.assert_array_equal(resume_stream(store).basis, wanted.basis)
    rows = marked()[~np.isnan(GAPPY).all(axis=1)][:50]
    told = transform(store, rows, tmp_path / "scores", missing="least-squares", batch_rows=9)
    assert told.rows_with_gaps == (rows == MARK).any(axis=1).sum() > 0
    scores = np.asarray(zarr.open_group(tmp_path / "scores", mode="r")["data"][...])
    np.testing.assert_allclose(scores, StreamingPCA.load(store).transform(rows, missing="least-squares"), rtol=1e-10)
    with pytest.raises(BadInputError, match="least-squares"):
        transform(store, rows, tmp_path / "refused")
    with pytest.raises(RefusedError, match="missing_values"):
        stream_pca(source, 2, center=True, missing="impute", missing_values=-1, store=store)
    stream_pca(GAPPY, 2, store=tmp_path / "plain", **HOW)
    assert "missing_values" not in (tmp_path / "plain" / "run.json").read_text()


@pytest.mark.parametrize(
    "call",
    [
        lambda: stream_pca(marked(), 2, missing_values=MARK),
        lambda: npmdask.IncrementalPCA(2, missing_values=MARK).fit(marked()),
        lambda: StreamingPCA(2, missing_values=MARK).partial_fit(marked()),
    ],
)
def test_what_is_done_with_them_must_be_said(call: Any) -> None:
    with pytest.raises(BadInputError, match="says which values are missing, but not what to do with them"):
        call()
