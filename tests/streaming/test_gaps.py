"""Streams with missing values: imputed by the model so far, beside the streams of the complete rows.

Mutants that these tests kill: gaps at the mean; levels over all rows instead of the observed; a column without values
imputed by its random start; the mean of a late column kept from before; rows without a value taken; levels that are
not in the checkpoint; a sentence, count or warning that is not said.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npmdask
from npmdask.cli.main import main
from npmdask.core.numerics.subspaces import max_sin_theta
from npmdask.errors import BadInputError, RefusedError
from npmdask.streaming import StreamingPCA, stream_pca

N, D, K = 3000, 16, 2


def planted(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows about a mean that is large beside their deviations, and the directions of K of these."""
    rng = np.random.default_rng(seed)
    plane = np.linalg.qr(rng.standard_normal((D, K)))[0]
    rows = rng.standard_normal((N, K)) * [5, 3] @ plane.T + 0.5 * rng.standard_normal((N, D))
    return rows + 300 * rng.random(D), plane


def with_gaps(rows: np.ndarray, share: float = 0.1) -> np.ndarray:
    gaps = np.random.default_rng(1).random(rows.shape) < share
    gaps[:, 0] &= ~gaps.all(axis=1)
    return np.where(gaps, np.nan, rows)


def learnt(rows: Any, **how: Any) -> npmdask.StreamSolution:
    return stream_pca(rows, K, center=True, **{"batch_rows": 100, **how})


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("algorithm", "options"),
    [("spm", {}), ("oja", {}), ("frequent-directions", {}), ("msg", {})],
)
def test_a_tenth_missing_costs_little(algorithm: str, options: dict[str, Any]) -> None:
    """The angle is about that of the complete rows, and better than that of gaps at the mean."""
    rows, plane = planted()
    gappy = with_gaps(rows)
    how: dict[str, Any] = {"algorithm": algorithm, "options": options}
    found = learnt(gappy, missing="impute", **how)
    angle, full = max_sin_theta(found.basis, plane), max_sin_theta(learnt(rows, **how).basis, plane)
    assert angle < 1.5 * full + 0.005
    np.testing.assert_allclose(found.mean, rows.mean(axis=0), atol=0.4)
    assert found.facts["missing_values"] == np.isnan(gappy).sum()
    assert (
        f"{np.isnan(gappy).sum()} of their values in {np.isnan(gappy).any(axis=1).sum()} rows" in found.outcome.sentence
    )
    assert any("imputed by the model" in said for said in found.warnings)


@pytest.mark.slow
def test_values_are_not_shrunk_as_those_of_means_are() -> None:
    rows, _ = planted()
    gappy = with_gaps(rows, 0.3)
    full = learnt(rows).values
    filled = learnt(np.where(np.isnan(gappy), np.nanmean(gappy, axis=0), gappy)).values
    found = learnt(gappy, missing="impute").values
    assert (filled < 0.75 * full).all()
    np.testing.assert_allclose(found, full, rtol=0.12)


@pytest.mark.slow
def test_gaps_that_depend_on_what_is_observed_bend_means_and_not_the_model() -> None:
    """Half of the columns are seen only where another one is low: means are biased, expectations are not."""
    rows, plane = planted()
    gappy = rows.copy()
    high = rows[:, 0] > np.median(rows[:, 0])
    gappy[np.ix_(high, np.arange(8, D))] = np.nan
    filled = np.where(np.isnan(gappy), np.nanmean(gappy, axis=0), gappy)
    angle, other = (
        max_sin_theta(learnt(given, **how).basis, plane)
        for given, how in ((gappy, {"missing": "impute"}), (filled, {}))
    )
    assert angle < 0.5 * other


def test_complete_rows_keep_their_bits(tmp_path: Path) -> None:
    rows, _ = planted()
    one, other = learnt(rows, missing="impute", store=tmp_path / "a"), learnt(rows, store=tmp_path / "b")
    np.testing.assert_array_equal(one.basis, other.basis)
    np.testing.assert_array_equal(one.mean, other.mean)
    assert one.warnings == other.warnings and "missing" not in one.outcome.sentence
    said = (tmp_path / "b" / "run.json").read_text()
    assert '"gaps"' not in said and '"missing"' not in said
    assert '"missing"' in (tmp_path / "a" / "run.json").read_text()


@pytest.mark.slow
def test_rows_without_a_value_are_skipped_and_counted() -> None:
    rows, _ = planted()
    gappy = with_gaps(rows)
    empty = np.zeros(N, bool)
    empty[[0, 17, 18, 500, N - 1]] = True
    holed = gappy.copy()
    holed[empty] = np.nan
    found, without = learnt(holed, missing="impute"), learnt(gappy[~empty], missing="impute")
    np.testing.assert_array_equal(found.basis, without.basis)
    assert (found.skipped, found.rows) == (5, N - 5)
    assert "5 were left out because they had no value" in found.outcome.sentence
    one, other = (StreamingPCA(K, center=True, missing="impute") for _ in range(2))
    for start in range(100, 700, 100):  # the first batch without empty rows: its length is that of a step
        part = slice(start, start + 100)
        one.partial_fit(holed[part])
        other.partial_fit(gappy[part][~empty[part]])
    one.partial_fit(np.full((3, D), np.nan))
    np.testing.assert_array_equal(one.basis, other.basis)


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "least"), [("spm", 1e-6), ("oja", 0.01)])
def test_a_column_without_values_has_no_part_and_a_late_one_does_no_harm(algorithm: str, least: float) -> None:
    """Its random start is not taken for data; its mean, once there are values, is not that of the rows before."""
    rows, plane = planted()
    holed = rows.copy()
    holed[:, 5] = np.nan
    found = learnt(holed, missing="impute", algorithm=algorithm)
    assert np.abs(found.basis[5]).max() < least
    assert found.facts["columns_without_values"] == 1 and "1 columns have none at all" in found.outcome.sentence
    late = rows.copy()
    late[: N // 2, 5] = np.nan
    found = learnt(late, missing="impute", algorithm=algorithm)
    assert found.facts["columns_without_values"] == 0
    assert found.mean is not None and abs(found.mean[5] - rows[:, 5].mean()) < 0.3
    assert max_sin_theta(found.basis, plane) < 0.15


@pytest.mark.slow
def test_a_killed_stream_ends_in_the_same_bits(tmp_path: Path) -> None:
    rows = with_gaps(planted()[0])
    batches = [rows[start : start + 100] for start in range(0, N, 100)]

    def cut_short() -> Iterator[np.ndarray]:
        yield from batches[:13]
        raise OSError("the line is dead")

    how: dict[str, Any] = {"missing": "impute", "commit_seconds": 0.0}
    with pytest.raises(BadInputError, match="the line is dead"):
        learnt(cut_short(), store=tmp_path / "s", **how)
    again = StreamingPCA.load(tmp_path / "s")
    assert again.missing == "impute" and again.rows == 1300
    with pytest.raises(RefusedError, match="missing"):
        learnt(iter(batches), store=tmp_path / "s")
    found, whole = learnt(iter(batches), store=tmp_path / "s", **how), learnt(iter(batches), **how)
    for name in ("basis", "values", "mean"):
        np.testing.assert_array_equal(getattr(found, name), getattr(whole, name))
    assert found.facts == whole.facts
    for start in range(1300, N, 100):
        again.partial_fit(rows[start : start + 100])
    np.testing.assert_array_equal(again.basis, whole.basis)
    gappy = rows[:50]
    np.testing.assert_allclose(
        again.transform(gappy, missing="least-squares"),
        [
            np.linalg.lstsq(whole.basis[seen], (row - whole.mean)[seen], rcond=None)[0]
            for row, seen in zip(gappy, ~np.isnan(gappy), strict=True)
        ],
        atol=1e-8,
    )


@pytest.mark.slow
def test_what_is_refused() -> None:
    rows = with_gaps(planted()[0])
    with pytest.raises(BadInputError, match="NaN or infinity"):
        learnt(rows)
    spoilt = rows.copy()
    spoilt[7, 3] = np.inf
    with pytest.raises(BadInputError, match=r"row 7 of .* holds infinity"):
        learnt(spoilt, missing="impute")
    assert learnt(spoilt, missing="impute", non_finite="skip").skipped == 1
    with pytest.raises(BadInputError, match="missing = 'mean' of a stream"):
        learnt(rows, missing="mean")
    with pytest.raises(BadInputError, match="components of the third moment"):
        npmdask.stream_components(rows, K, missing="impute", block_rows=10)
    with pytest.raises(BadInputError, match="missing = 'impute'"):
        npmdask.top_k(rows, K, kind="samples", center=True, missing="impute")


@pytest.mark.slow
def test_the_command_line_takes_text_with_gaps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = with_gaps(planted()[0])[:600]
    text = "\n".join(",".join("" if np.isnan(x) else repr(float(x)) for x in row) for row in rows)
    (tmp_path / "rows.csv").write_text(text + "\n")
    command = ["run", str(tmp_path / "rows.csv"), "-k", "2", "--algorithm", "spm", "--center", "--json", "--quiet"]
    assert main([*command, "--store", str(tmp_path / "a")]) != 0
    capsys.readouterr()
    assert main([*command, "--store", str(tmp_path / "s"), "--missing", "impute"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert f"{np.isnan(rows).sum()} of their values" in told["sentence"]


@pytest.mark.slow
def test_imputing_takes_no_more_memory_than_is_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when whole batches are copied over and over; and pieces give what the whole batch gives, to rounding."""
    import tracemalloc

    import npmdask.streaming.algorithms.model as gaps
    from npmdask.streaming.memory import plan_stream
    from npmdask.streaming.problem import StreamRequest, make_model

    rows = np.random.default_rng(0).standard_normal((2000, 4000))
    rows[rows > 1.5] = np.nan
    plans, models = [], []
    for missing in ("refuse", "impute"):
        models.append(make_model(StreamRequest(target_rank=2, center=True, batch_rows=2000, missing=missing), 4000))
        plans.append(plan_stream(models[-1], 2000, 0, limit=None, base=0).predicted_peak)
    state, _ = models[1].absorb(models[1].init(), rows)
    tracemalloc.start()
    models[1].absorb(state, rows)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < plans[1] and plans[0] < plans[1] < plans[0] + 2.3 * rows.nbytes
    few = with_gaps(planted()[0])
    whole = learnt(few, missing="impute")
    monkeypatch.setattr(gaps, "PIECE_BYTES", 8 * D * 7)
    np.testing.assert_allclose(learnt(few, missing="impute").basis, whole.basis, atol=1e-9)
