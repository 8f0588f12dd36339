"""Missing values that nothing fills: EM of a factor model, and covariances of pairs of columns.

Mutants that these tests kill: gaps that count as 0 in a pair; counts of rows in place of those of pairs; a clipped
eigenvalue that is not said; a tolerance that a resumed run does not reach; a column of no weight among the noise; a
model that is kept although it predicts worse; scores without what the model expects.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import npmdask
import npmdask.core.operators._protocol as protocol
from npmdask.cli.main import main
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.execution.memory import tree_rss
from npmdask.core.numerics.subspaces import orth
from npmdask.core.runs.automatic import posed
from npmdask.core.runs.problem import Request
from npmdask.core.runs.resources import Resources
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError, MemoryRefusedError, NpmdaskError
from npmdask.manage.report import write_report
from npmdask.missing import unfilled
from npmdask.missing.rules import find_gaps
from npmdask.planning.plan import plan_run
from npmdask.streaming.transform import transform
from tests.conftest import often, same_bytes, write_zarr

M, D, K = 400, 10, 2
HOW: dict[str, Any] = {"kind": "samples", "center": True, "threads": 1}


@pytest.fixture(autouse=True)
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many runs, so that sums are joined often."""
    monkeypatch.setattr(protocol, "RUN_BYTES", 3000)
    monkeypatch.setattr(protocol, "COLUMN_BYTES", 1)


def planted(seed: int = 0, share: float = 0.2, noise: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Rows with gaps at random, about means that are not 0, and the basis that they were drawn with."""
    rng = np.random.default_rng(seed)
    basis = orth(rng.standard_normal((D, K)), rng)
    rows = rng.standard_normal((M, K)) * [6, 3] @ basis.T + noise * rng.standard_normal((M, D)) + np.arange(D)
    rows[rng.random(rows.shape) < share] = np.nan
    return rows, basis


def sine(left: np.ndarray, right: np.ndarray) -> float:
    return float(np.linalg.norm(left - right @ (right.T @ left), 2))


def fitted(rows: Any, k: int = K, **more: Any) -> npmdask.Solution:
    return npmdask.top_k(rows, k, missing="em", **{**HOW, **more})


@pytest.mark.slow
def test_em_of_complete_rows_is_pca() -> None:
    rows = planted(share=0.0)[0]
    first = npmdask.top_k(rows, K, **HOW)
    found = fitted(rows, tol=1e-10)
    np.testing.assert_allclose(found.values, first.values, rtol=1e-9)
    np.testing.assert_allclose(np.abs(found.basis.T @ first.basis), np.eye(K), atol=1e-8)
    np.testing.assert_allclose(found.explained_variance_ratio, first.explained_variance_ratio, rtol=1e-8)
    np.testing.assert_allclose(found.mean, first.mean, rtol=1e-12)
    np.testing.assert_allclose(np.abs(found.scores(rows)), np.abs(first.scores(rows)), atol=1e-6)
    assert found.facts["noise"] == pytest.approx(np.linalg.eigvalsh(np.cov(rows.T, bias=True))[:-K].mean(), rel=1e-8)
    assert found.missing is not None and found.missing.entries == 0 and found.warnings == ()
    assert found.certificate is None and "There is no certificate" in found.assurance


@pytest.mark.slow
def test_em_is_nearer_to_the_truth_than_means_and_as_near_as_pairs() -> None:
    rows, basis = planted(share=0.3)
    angles = {rule: sine(npmdask.top_k(rows, K, missing=rule, **HOW).basis, basis) for rule in ("mean", "pairwise")}
    found = fitted(rows)
    assert found.converged and sine(found.basis, basis) < 0.5 * angles["mean"]
    assert sine(found.basis, basis) < angles["pairwise"]
    assert "held out" in found.assurance and 0 < found.facts["held_out_share"] < 0.6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("share", "more"),
    [(0.2, {}), (0.6, {}), (0.3, {"scale": True}), (0.3, {"row_weights": np.arange(M) % 3 + 0.5}), (0.1, {"k": 5})],
)
def test_the_likelihood_never_falls(share: float, more: dict[str, Any], tmp_path: Path) -> None:
    """With entries held out, then with all; where two steps pointed to less, the next pass goes on from the step."""
    found = fitted(planted(1, share)[0], **more, store=tmp_path / "run", tol=1e-7)
    history = RunStore(tmp_path / "run").history()
    assert found.answered and "log_likelihood" not in history[0]
    for held in (True, False):
        values = [line["log_likelihood"] for line in history[1:] if (line["held_out_share"] is not None) == held]
        best, rounding = np.maximum.accumulate(values), 1e-10 * abs(values[-1])
        taken_back = values < best - rounding
        assert len(values) > 1 and not (taken_back[1:] & taken_back[:-1]).any() and values[-1] >= best[-1] - rounding


@pytest.mark.slow
def test_a_stop_and_a_smaller_tolerance_go_on_to_the_same_bits(tmp_path: Path) -> None:
    source = str(write_zarr(tmp_path / "x", planted()[0], (64, 4)))
    whole = fitted(source, store=tmp_path / "whole", tol=1e-8, threads=2)
    for steps in (1, 4):
        part = fitted(source, store=tmp_path / f"{steps}", max_steps=steps, tol=1e-8)
        assert part.outcome.name == "max_steps" and "resume" in part.outcome.sentence
        again = npmdask.resume(tmp_path / f"{steps}", max_steps=200)
        assert again.basis.tobytes() == whole.basis.tobytes() and again.mean.tobytes() == whole.mean.tobytes()
    early = fitted(source, store=tmp_path / "early", tol=1e-2)
    later = npmdask.resume(tmp_path / "early", tol=1e-8)
    assert later.steps > early.steps and later.facts["left_to_go"] <= 1e-8 < early.facts["left_to_go"]
    assert later.basis.tobytes() == whole.basis.tobytes()


JOB = """
import os, signal, sys
import npmdask
import npmdask.core.operators._protocol as protocol
from npmdask.core.runs.observers import Observer

protocol.RUN_BYTES, protocol.COLUMN_BYTES = 3000, 1


class Killed(Observer):
    def on_step(self, step):
        if step.number >= int(sys.argv[4]):
            os.kill(os.getpid(), signal.SIGKILL)


npmdask.top_k(sys.argv[1], 2, kind="samples", center=True, threads=1, missing=sys.argv[2], tol=1e-8, store=sys.argv[3],
              observer=Killed())
"""


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "steps"), often([("em", (1, 3, 6)), ("em", (3,)), ("pairwise", (1,))], 1, 2))
def test_kill_9_and_resume_end_in_the_same_bits(rule: str, steps: tuple[int, ...], tmp_path: Path) -> None:
    source = str(write_zarr(tmp_path / "x", planted()[0], (64, 4)))
    whole = npmdask.top_k(source, K, missing=rule, tol=1e-8, store=tmp_path / "whole", **HOW)
    assert whole.steps > steps[-1] or rule == "pairwise"
    for step in steps:
        store = tmp_path / f"killed-{step}"
        job = [sys.executable, "-c", JOB, source, rule, str(store), str(step)]
        assert subprocess.run(job, check=False).returncode == -signal.SIGKILL
        assert not (store / "result").exists()
        npmdask.resume(store)
        same_bytes(tmp_path / "whole", store, ("steps", "result"))


@pytest.mark.slow
def test_weights_scales_and_repeated_rows_are_what_they_say() -> None:
    rows = planted(3)[0]
    plain = {"tol": 1e-9, "options": {"held_out": 0.0}}
    times = np.arange(M) % 3
    weighted, repeated = fitted(rows, row_weights=times, **plain), fitted(np.repeat(rows, times, axis=0), **plain)
    np.testing.assert_allclose(weighted.values, repeated.values, rtol=1e-6)
    v = np.linspace(0.5, 2, D)
    found, multiplied = fitted(rows, column_weights=v, **plain), fitted(rows * np.sqrt(v), **plain)
    np.testing.assert_allclose(found.values, multiplied.values, rtol=1e-6)
    np.testing.assert_allclose(found.mean, multiplied.mean / np.sqrt(v), rtol=1e-6)
    scaled, divided = fitted(rows, scale=True, **plain), fitted(rows / np.nanstd(rows, axis=0), **plain)
    np.testing.assert_allclose(scaled.values, divided.values, rtol=1e-6)
    np.testing.assert_allclose(scaled.scores(rows), divided.scores(rows / np.nanstd(rows, axis=0)), atol=1e-4)
    v[[2, 7]] = 0.0
    left_out, fewer = fitted(rows, column_weights=v, **plain), fitted(np.delete(rows * np.sqrt(v), [2, 7], 1), **plain)
    np.testing.assert_allclose(left_out.values, fewer.values, rtol=1e-6)
    np.testing.assert_allclose(left_out.explained_share, fewer.explained_share, rtol=1e-6)


@pytest.mark.slow
def test_rows_and_columns_without_values_change_nothing() -> None:
    rows = planted(4)[0]
    plain = {"tol": 1e-9, "options": {"held_out": 0.0}}
    first = fitted(rows, **plain)
    more = np.concatenate([rows, np.full((100, D), np.nan)])
    more = np.concatenate([more, np.full((len(more), 2), np.nan)], axis=1)
    more[7, -1] = 1e6
    found = fitted(more, **plain)
    np.testing.assert_allclose(found.values, first.values, rtol=1e-3)  # one more entry, which is its own mean
    assert np.abs(found.basis[-2:]).max() < 1e-6 and found.explained_share == pytest.approx(
        first.explained_share, abs=0.02
    )
    assert any("2 columns have one value or none (number 10, 11, from 0)" in said for said in found.warnings)


@pytest.mark.slow
def test_columns_never_seen_together_have_a_model_and_no_covariance() -> None:
    rows, basis = planted(5, share=0.0)
    rows[::2, 1], rows[1::2, 8] = np.nan, np.nan
    assert sine(fitted(rows).basis, basis) < 0.3
    with pytest.raises(BadInputError, match=r"no row has a value in both column 1 and column 8 .*1 such pair"):
        npmdask.top_k(rows, K, missing="pairwise", **HOW)
    rows[0, 1] = 0.0
    with pytest.raises(BadInputError, match="one row alone has"):
        npmdask.top_k(np.where(np.arange(M)[:, None] == 0, 1.0, rows), K, missing="pairwise", **HOW)


@pytest.mark.slow
def test_more_components_than_the_data_tell_are_found_out() -> None:
    rng = np.random.default_rng(0)
    rows = np.outer(rng.standard_normal(150), np.ones(20)) + rng.standard_normal((150, 20))
    rows[rng.random(rows.shape) < 0.5] = np.nan
    found = fitted(rows, 12, options={"held_out": 0.1})
    assert found.outcome.name == "held_out" and found.answered and found.facts["went_back"]
    assert "predicted worse" in found.outcome.sentence and any("fewer components" in said for said in found.warnings)
    few = fitted(rows[:60], 12, options={"held_out": 0.1})  # 60 entries: by chance they are predicted worse, too
    assert few.outcome.name != "held_out"


@pytest.mark.slow
def test_rows_without_noise_and_of_any_size() -> None:
    for size in (1e-6, 1e6):
        rows, basis = planted(6, share=0.1, noise=0.0)
        found = fitted(rows * size, tol=1e-6)
        assert found.converged and sine(found.basis, basis) < 1e-4
    with pytest.raises(BadInputError, match=r"no column .* varies"):
        fitted(np.where(rows > 100, np.nan, 3.0))


@pytest.mark.slow
def test_scores_are_those_expected_of_the_complete_row() -> None:
    rows = planted(7)[0]
    found = fitted(rows)
    covariance = found.basis * (found.values - found.facts["noise"]) @ found.basis.T + found.facts["noise"] * np.eye(D)
    few = rows[:20]
    for row, scores in zip(few, found.scores(few), strict=True):
        gap, away = np.isnan(row), row - found.mean
        away[gap] = covariance[np.ix_(gap, ~gap)] @ np.linalg.solve(covariance[np.ix_(~gap, ~gap)], away[~gap])
        np.testing.assert_allclose(scores, away @ found.basis, rtol=1e-8, atol=1e-10)
    pca = npmdask.PCA(K, missing="em").fit(rows)
    np.testing.assert_allclose(np.abs(pca.transform(few)), np.abs(found.scores(few)), rtol=1e-8)


@pytest.mark.slow
def test_values_that_are_missing_because_of_what_they_are_are_warned_of() -> None:
    rows = planted(8, share=0.0)[0]
    rows[rows > np.quantile(rows, 0.8)] = np.nan
    for rule in ("em", "pairwise"):
        found = npmdask.top_k(rows, K, missing=rule, **HOW)
        assert any("because of what they are" in said for said in found.warnings)
        assert "not known" in found.assurance


# Covariances of pairs of columns.


def covariance_of_pairs(rows: np.ndarray) -> np.ndarray:
    """As pandas has it, with the number of rows in the denominator."""
    pandas = pytest.importorskip("pandas")
    there = (~np.isnan(rows)).astype(float)
    pairs = there.T @ there
    return pandas.DataFrame(rows).cov().to_numpy() * (pairs - 1) / pairs


@pytest.mark.slow
@pytest.mark.parametrize("scale", [False, True])
def test_pairs_are_those_of_pandas_with_negative_eigenvalues_set_to_zero(scale: bool, tmp_path: Path) -> None:
    rows = planted(9, share=0.6, noise=0.2)[0]
    wanted = covariance_of_pairs(rows)
    if scale:
        deviations = np.nanstd(rows, axis=0)
        wanted = wanted / np.outer(deviations, deviations)
    values, vectors = np.linalg.eigh(wanted)
    assert values[0] < -0.01 * values[-1]
    stored = write_zarr(tmp_path / "x", rows, (64, 4))
    found = npmdask.top_k(stored, D, missing="pairwise", scale=scale, **HOW)
    np.testing.assert_allclose(found.values, np.maximum(values[::-1], 0), rtol=1e-9, atol=1e-9 * values[-1])
    np.testing.assert_allclose(
        found.basis * found.values @ found.basis.T, (vectors * np.maximum(values, 0)) @ vectors.T, atol=1e-8
    )
    assert found.facts["clipped"] == pytest.approx(-values[values < 0].sum(), rel=1e-8)
    assert found.facts["trace"] == pytest.approx(values[values > 0].sum(), rel=1e-8)
    assert found.explained_share == pytest.approx(1.0, rel=1e-9) and found.total_data_passes == 1
    assert any("had negative eigenvalues" in said for said in found.warnings)
    assert "nearest to the covariances of pairs" in found.assurance


@pytest.mark.slow
@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize(("first", "passes"), [("like the others", 1), ("near zero", 1), ("missing", 2)])
def test_one_pass_keeps_the_digits_or_is_made_again(scale: bool, first: str, passes: int, tmp_path: Path) -> None:
    """Means a million times the deviations: the first rows say them, or make deviations as large, or say nothing."""
    rows, how = planted(9, share=0.2)[0], {"missing": "pairwise", "scale": scale, **HOW}
    rows = np.round(rows * 2**20) / 2**20  # so that a million on top loses nothing
    far = rows + 1e6 * np.arange(1, D + 1)
    if first != "like the others":
        far[:64] = rows[:64] if first == "near zero" else np.nan
        rows[:64] = rows[:64] - 1e6 * np.arange(1, D + 1) if first == "near zero" else np.nan
    wanted = covariance_of_pairs(rows)
    if scale:
        wanted /= np.outer(np.nanstd(rows, axis=0), np.nanstd(rows, axis=0))
    found = npmdask.top_k(write_zarr(tmp_path / "x", far, (64, D)), K, store=tmp_path / "run", **how)
    np.testing.assert_allclose(found.values, np.linalg.eigvalsh(wanted)[: -K - 1 : -1], rtol=1e-9)
    assert found.total_data_passes == found.data_passes == passes
    np.testing.assert_allclose(found.mean, np.nanmean(far, axis=0), rtol=1e-14)
    again = npmdask.resume(tmp_path / "run")
    assert again.data_passes == 0 and again.total_data_passes == passes


@pytest.mark.slow
def test_a_run_that_stops_between_two_passes_goes_on_to_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the means are known, and after the matrix is."""
    far = np.concatenate([np.full((64, D), np.nan), planted(9)[0] + 1e6])
    stored, how = write_zarr(tmp_path / "x", far, (64, D)), {"missing": "pairwise", **HOW}
    npmdask.top_k(stored, K, store=tmp_path / "whole", **how)
    for place in ("_survey", "check"):
        original, calls = getattr(unfilled.PairwiseRelease, place), []

        def stopped(self: Any, *a: Any, original: Any = original, calls: Any = calls) -> Any:
            calls.append(1)
            if len(calls) == (2 if original.__name__ == "_survey" else 1):
                raise InterruptedError
            return original(self, *a)

        monkeypatch.setattr(unfilled.PairwiseRelease, place, stopped)
        with pytest.raises(InterruptedError):
            npmdask.top_k(stored, K, store=tmp_path / place, **how)
        monkeypatch.setattr(unfilled.PairwiseRelease, place, original)
        npmdask.resume(tmp_path / place)
        same_bytes(tmp_path / "whole", tmp_path / place)


@pytest.mark.slow
def test_pairs_of_complete_rows_are_pca_and_few_of_them_are_warned_of() -> None:
    rows = planted(share=0.0)[0]
    first, found = npmdask.top_k(rows, K, **HOW), npmdask.top_k(rows, K, missing="pairwise", **HOW)
    np.testing.assert_allclose(found.values, first.values, rtol=1e-10)
    assert found.facts["clipped"] == 0.0 and found.warnings == ()
    rows[5:, 3] = np.nan
    said = npmdask.top_k(rows, K, missing="pairwise", **HOW).warnings
    assert any("is of 5 rows only" in each for each in said)


def test_sums_of_pairs_that_do_not_fit_are_refused() -> None:
    wide = np.random.default_rng(0).standard_normal((12, 2000))
    with pytest.raises(MemoryRefusedError, match=r"is too small.* which sum no pairs of columns"):
        npmdask.top_k(wide, K, missing="pairwise", memory=tree_rss() + 150 * 2**20, **HOW)


# Both.


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"missing": "em", "kind": "matrix"}, 'set kind = "samples"'),
        ({"missing": "em", "center": False}, "needs centring"),
        ({"missing": "em", "k": D}, f"at most {D - 1}"),
        ({"missing": "em", "k": 0.9}, "needs a whole number of components"),
        ({"missing": "em", "algorithm": "krylov"}, "an algorithm of its own"),
        ({"missing": "em", "iteration_rank": 7}, "an algorithm of its own"),
        ({"missing": "em", "low_rank_tol": 0.1}, "leave it out"),
        ({"missing": "em", "options": {"held_out": 0.9}}, "from 0 to 0.5"),
        ({"missing": "em", "options": {"held": 0.9}}, "unknown option 'held' of em"),
        ({"missing": "refuse", "algorithm": "em"}, "unknown algorithm 'em'"),
        ({"missing": "pairwise", "algorithm": "power"}, "forms a matrix of columns x columns"),
        ({"missing": "pairwise", "row_weights": np.ones(M)}, "which count alike"),
        ({"missing": "pairwise", "k": 0.9}, "target_rank = 0.9 is a share"),
    ],
)
def test_what_is_refused(how: dict[str, Any], said: str) -> None:
    rows = planted()[0]
    if how["missing"] == "refuse":
        rows = np.nan_to_num(rows)
    with pytest.raises(NpmdaskError, match=said):
        npmdask.top_k(rows, **{"k": K, **HOW, **how})


@pytest.mark.parametrize("rule", ["em", "pairwise"])
def test_infinities_are_refused(rule: str) -> None:
    rows = planted()[0]
    rows[77, 8] = np.inf
    with pytest.raises(BadInputError, match="inf at row 77, column 8"):
        npmdask.top_k(rows, K, missing=rule, **HOW)
    with pytest.raises(BadInputError, match="there are no data to analyse"):
        npmdask.top_k(rows * np.nan, K, missing=rule, **HOW)


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["em", "pairwise"])
def test_from_the_command_line_with_a_plan_and_a_report(
    rule: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, store = str(write_zarr(tmp_path / "x.zarr", planted()[0], (64, 4))), tmp_path / "run"
    command = ["run", source, "-k", "2", "--kind", "samples", "--center", "--missing", rule, "--store", str(store)]
    assert main([*command, "--json"]) == 0
    assert f'"rule": "{rule}"' in capsys.readouterr().out
    found = npmdask.resume(store)
    assert found.data_passes == 0 and found.missing is not None and found.missing.rule == rule
    page = write_report(store).read_text()
    assert "Missing values" in page and "error against complete data is not known" in page
    request = Request(target_rank=K, center=True, aspects=(find_gaps(missing=rule),))
    plan = plan_run(posed(request, open_source(source, "samples"), Resources()), Resources(threads=1))
    assert plan.steps == (None if rule == "em" else 1) and plan.memory.predicted_peak > 0


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["em", "pairwise"])
def test_scores_that_are_written_are_those_of_python(rule: str, tmp_path: Path) -> None:
    """Gaps are what the model expects, or means, which is said."""
    rows, few = planted()[0], planted(seed=3, share=0.4)[0][:50]
    found = npmdask.top_k(rows, K, missing=rule, store=tmp_path / "run", **HOW)
    told = transform(tmp_path / "run", few, tmp_path / "scores", batch_rows=7)
    written = np.asarray(zarr.open_group(tmp_path / "scores", mode="r")["data"][...])
    np.testing.assert_allclose(written, found.scores(few), rtol=1e-10, atol=1e-10)
    assert told.rows_with_gaps == np.isnan(few).any(axis=1).sum()
    assert {"em": "expects of the complete rows", "pairwise": "count as means"}[rule] in told.warnings[0]
    assert "count as means" not in told.warnings[0] or "too small" in told.warnings[0]
