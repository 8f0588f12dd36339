"""Rows of streams that count by weights, beside rows that are there as often.

Mutants that these tests kill: the mean of equal rows; values divided by the number of rows; weights of the rows
before a shuffle; a reflection about the first row whatever it weighs; roots left out; rows of weight 0 that fill a
block; means of gaps over equal rows; weights that are not in the store.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npmdask
from npmdask.cli.main import main
from npmdask.core.runs.observers import Observer
from npmdask.errors import BadInputError, RefusedError
from npmdask.streaming import StreamingPCA, stream_pca
from npmdask.streaming.algorithms.model import Learnt, RunningMean, centred, completed, no_levels
from npmdask.streaming.api import resume_stream
from tests.conftest import write_zarr
from tests.streaming.common import EXACT, D, rows_of

RNG = np.random.default_rng(5)
ROWS = rows_of(300) + 1000
WORTH = RNG.integers(0, 4, 300).astype(float)
REPEATED = np.repeat(ROWS, WORTH.astype(int), axis=0)
OF_ALL: dict[str, Any] = {"algorithm": "spm", "options": EXACT}


def weighted_covariance(rows: np.ndarray, weights: np.ndarray) -> np.ndarray:
    exact, known = rows.astype(np.longdouble), weights.astype(np.longdouble)
    away = exact - known @ exact / known.sum()
    return np.asarray(away.T @ (known[:, None] * away) / known.sum(), np.float64)


@pytest.mark.parametrize("size", [7, 60, 300])
def test_a_row_of_weight_two_is_two_rows_to_incremental_pca(size: int) -> None:
    """All directions are held, so that nothing depends on the batches."""
    ours, best = npmdask.IncrementalPCA(3, batch_size=size), npmdask.IncrementalPCA(3).fit(REPEATED)
    for found in (ours.fit(ROWS, sample_weight=WORTH), npmdask.PCA(3).fit(ROWS, sample_weight=WORTH)):
        for name in ("components_", "explained_variance_", "explained_variance_ratio_", "singular_values_", "mean_"):
            np.testing.assert_allclose(getattr(found, name), getattr(best, name), rtol=1e-8, atol=1e-9, err_msg=name)
    assert ours.n_samples_seen_ == len(REPEATED)
    np.testing.assert_allclose([ours.noise_variance_, *ours.var_], [best.noise_variance_, *best.var_], rtol=1e-9)


def test_batches_with_and_without_weights_mix() -> None:
    mixed = npmdask.IncrementalPCA(2).partial_fit(ROWS[:100]).partial_fit(ROWS[100:], sample_weight=WORTH[100:])
    best = npmdask.IncrementalPCA(2).fit(
        np.concatenate([ROWS[:100], np.repeat(ROWS[100:], WORTH[100:].astype(int), 0)])
    )
    np.testing.assert_allclose(mixed.explained_variance_, best.explained_variance_, rtol=1e-9)
    streamed = StreamingPCA(2, "spm", options=EXACT, center=True).partial_fit(ROWS[:100])
    streamed = streamed.partial_fit(ROWS[100:], sample_weight=WORTH[100:])
    np.testing.assert_allclose(
        streamed.values * (mixed.n_samples_seen_ / (mixed.n_samples_seen_ - 1)), best.explained_variance_, rtol=1e-9
    )


@pytest.mark.parametrize("where", [0, 3, 9])
@pytest.mark.parametrize("spread", [1.0, 1e13])
def test_the_scatter_of_weighted_rows_is_kept_whatever_they_weigh(where: int, spread: float) -> None:
    """One row weighs almost all, which is what a reflection about it would not survive."""
    rows, weights = rows_of(10) + 1e6, np.ones(10)
    weights[where] = spread
    first, mean = centred(rows[:4], RunningMean(np.zeros(D), np.zeros(D), 0.0), weights=weights[:4])
    second, mean = centred(rows[4:], mean, weights=weights[4:])
    wanted = weighted_covariance(rows, weights) * weights.sum()
    np.testing.assert_allclose(first.T @ first + second.T @ second, wanted, rtol=1e-7, atol=1e-6)
    np.testing.assert_allclose(mean.mean, np.average(rows, axis=0, weights=weights), rtol=1e-14)


@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize(
    "how",
    [OF_ALL, {"algorithm": "frequent-directions", "options": {"sketch_rows": D}}, {"algorithm": "spm", "options": {}}],
)
def test_values_are_a_row_of_weight_one(how: dict[str, Any], center: bool) -> None:
    """Whatever weights add up to: those of the first rows are much smaller, so that no mean of them would do."""
    weights = np.where(np.arange(300) < 150, 0.01, 3.0)
    found = stream_pca(ROWS, 2, center=center, row_weights=weights, batch_rows=20, **how)
    second = weighted_covariance(ROWS, weights) if center else (ROWS.T * weights) @ ROWS / weights.sum()
    exact = how["options"] == EXACT or (how["algorithm"] != "spm" and not center)
    np.testing.assert_allclose(found.values, np.linalg.eigvalsh(second)[:-3:-1], rtol=1e-8 if exact else 0.3)


def test_a_block_that_is_not_complete_counts_for_nothing() -> None:
    """Values are of the rows of complete blocks, and so are the weights that they are divided by."""
    weights = np.where(np.arange(300) < 280, 1.0, 1e6)
    how: dict[str, Any] = {"options": {"block_rows": 40, "iteration_rank": D}, "batch_rows": 30}
    found, best = stream_pca(ROWS, 2, row_weights=weights, **how), stream_pca(ROWS[:280], 2, **how)
    np.testing.assert_allclose(found.values, best.values, rtol=1e-12)


@pytest.mark.slow
def test_equal_weights_change_nothing_but_the_last_digits() -> None:
    for algorithm in ("spm", "frequent-directions"):
        one, other = (
            stream_pca(ROWS, 2, algorithm=algorithm, center=True, batch_rows=32, row_weights=weights)
            for weights in (None, np.full(300, 0.1))
        )
        np.testing.assert_allclose(one.values, other.values, rtol=1e-9)
        np.testing.assert_allclose(np.abs(one.basis.T @ other.basis), np.eye(2), atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("order", ["sequential", "shuffled"])
def test_each_row_keeps_its_weight(tmp_path: Path, order: str) -> None:
    """In any order, and rows without weight are passed over and counted."""
    path = write_zarr(tmp_path / "rows.zarr", ROWS, chunks=(32, D))
    found = stream_pca(path, 2, row_weights=WORTH, order=order, epochs=2, center=True, batch_rows=50, **OF_ALL)
    np.testing.assert_allclose(found.values, np.linalg.eigvalsh(weighted_covariance(ROWS, WORTH))[:-3:-1], rtol=1e-8)
    assert found.skipped == 2 * (WORTH == 0).sum() and found.rows == 2 * (WORTH > 0).sum()
    assert "each counted by its weight" in found.outcome.sentence and "or weigh nothing" in found.outcome.sentence


def test_rows_without_weight_change_no_bit() -> None:
    there, model = WORTH > 0, StreamingPCA(2, options={"block_rows": 16}, center=True)
    spoilt = np.where(there[:, None], ROWS, 1e300)
    for found in (model.fit(spoilt, sample_weight=WORTH), StreamingPCA(2, options={"block_rows": 16}, center=True)):
        if found is not model:
            found.partial_fit(spoilt, sample_weight=WORTH)
        other = StreamingPCA(2, options={"block_rows": 16}, center=True)
        size = 256 if found is model else 300
        kept, worth = ROWS[there], WORTH[there]
        for start in range(0, len(kept), size):
            other.partial_fit(kept[start : start + size], sample_weight=worth[start : start + size])
        np.testing.assert_array_equal(found.values, other.values)
        np.testing.assert_array_equal(found.basis, other.basis)


def test_means_of_columns_with_gaps_are_weighted_too() -> None:
    gappy = np.where(RNG.random(ROWS.shape) < 0.2, np.nan, ROWS)
    learnt = Learnt(np.linalg.qr(RNG.standard_normal((D, 2)))[0], np.array([3.0, 2.0]))
    kept, worth = gappy[WORTH > 0], WORTH[WORTH > 0]
    one, levels = completed(kept, no_levels(D), learnt, center=True, weights=worth)
    many, repeated = completed(np.repeat(kept, worth.astype(int), axis=0), no_levels(D), learnt, center=True)
    np.testing.assert_allclose(np.repeat(one, worth.astype(int), axis=0), many, rtol=1e-12)
    np.testing.assert_allclose(levels.mean, repeated.mean, rtol=1e-12)
    np.testing.assert_array_equal(levels.missing, np.isnan(kept).sum(axis=0))


@pytest.mark.slow
def test_the_store_keeps_the_weights_and_goes_on_by_itself(tmp_path: Path) -> None:
    path = write_zarr(tmp_path / "rows.zarr", ROWS, chunks=(32, D))
    np.save(tmp_path / "u.npy", WORTH)
    how: dict[str, Any] = {"row_weights": tmp_path / "u.npy", "center": True, "batch_rows": 20}
    whole = stream_pca(path, 2, store=tmp_path / "whole", **how)
    with pytest.raises(InterruptedError):
        stream_pca(path, 2, store=tmp_path / "cut", commit_seconds=0, observer=Stop(90), **how)
    (tmp_path / "u.npy").unlink()
    again = resume_stream(tmp_path / "cut")
    np.testing.assert_array_equal(again.basis, whole.basis)
    np.testing.assert_array_equal(again.values, whole.values)
    for other in (WORTH + 1, None):
        with pytest.raises(RefusedError, match=r"weights\.rows"):
            stream_pca(path, 2, store=tmp_path / "whole", **{**how, "row_weights": other})


@pytest.mark.slow
def test_what_is_said_of_the_error_counts_the_rows_that_carry_the_weight(tmp_path: Path) -> None:
    """Three of 300 rows weigh almost all, and no more is known than from three."""
    weights = np.where(np.arange(300) % 100 == 0, 1e6, 1.0)
    found, equal = stream_pca(ROWS, 2, row_weights=weights), stream_pca(ROWS, 2, row_weights=np.full(300, 7.0))
    assert "+-100 %" in found.assurance and "+-17 %" in equal.assurance
    assert equal.assurance == stream_pca(ROWS, 2).assurance


def test_a_store_without_weights_says_nothing_of_them(tmp_path: Path) -> None:
    stream_pca(ROWS, 2, store=tmp_path / "run", batch_rows=100)
    said = "".join(p.read_text() for p in (tmp_path / "run").rglob("*.json"))
    assert "weights" not in said and "filled_weight" not in said


class Stop(Observer):
    """Raises after so many rows are committed."""

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def on_measurement(self, measurement: Any) -> None:
        if measurement.rows >= self._rows:
            raise InterruptedError


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: stream_pca(ROWS, 2, algorithm="oja", row_weights=WORTH), "choose spm or frequent-directions"),
        (lambda: StreamingPCA(2, "mb-msg", options={"gap": 0.1}).fit(ROWS, sample_weight=WORTH), "choose spm"),
        (lambda: stream_pca(iter([ROWS]), 2, row_weights=WORTH), "sample_weight"),
        (lambda: stream_pca(ROWS, 2, row_weights=WORTH[1:]), "299 row_weights"),
        (lambda: stream_pca(ROWS, 2, row_weights=-WORTH), "negative"),
        (lambda: StreamingPCA(2).partial_fit(ROWS, sample_weight=WORTH[1:]), "299 row_weights"),
        (lambda: StreamingPCA(2).partial_fit(np.where(WORTH[:, None] > 0, ROWS, np.inf), sample_weight=WORTH), "inf"),
        (lambda: npmdask.IncrementalPCA(2).partial_fit(ROWS, sample_weight=WORTH / 1e6), "multiply all weights"),
        (lambda: npmdask.IncrementalPCA(2).partial_fit(ROWS, sample_weight=np.eye(300)[0]), "at least 2 rows"),
    ],
)
def test_what_is_refused(call: Any, said: str) -> None:
    with pytest.raises(BadInputError, match=said):
        call()


@pytest.mark.slow
def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_zarr(tmp_path / "rows.zarr", ROWS, chunks=(32, D))
    np.save(tmp_path / "u.npy", WORTH)
    how = ["-k", "2", "--algorithm", "spm", "--center", "--row-weights", str(tmp_path / "u.npy")]
    assert main(["run", str(path), *how, "--store", str(tmp_path / "run")]) == 0
    assert "each counted by its weight" in capsys.readouterr().out
    best = stream_pca(path, 2, center=True, row_weights=WORTH)
    np.testing.assert_array_equal(resume_stream(tmp_path / "run").values, best.values)
