"""Is a sample enough? Bounds hold where they are promised, and nothing is promised where a sample cannot know."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from benchmarks.sample_cases import MISSED, AllRows, as_markdown, measure
from npmdask.core.runs.build import make_problem, prepared
from npmdask.core.runs.problem import Request
from npmdask.core.runs.resources import Resources
from npmdask.core.storage.source import open_source
from npmdask.formats.ingest import ingest
from npmdask.planning.plan import Plan, plan_lines, plan_run
from npmdask.planning.row_sample import (
    SampleBudget,
    ShareError,
    _loss_bound,
    _Pairs,
    _RowSample,
    _sine_bound,
    places_of,
    sample_of,
    share_errors,
    shares_said,
)
from tests.conftest import write_zarr
from tests.core.storage.test_shards import write


def spiked(m: int = 6000, d: int = 40, top: tuple[float, ...] = (5.0, 4.0, 3.0), seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((m, d)) * np.r_[top, np.ones(d - len(top))]


@pytest.mark.slow
def test_bounds_hold_in_nine_of_ten() -> None:
    """Of all that is promised of rows that a sample can know."""
    found = measure(2, with_real=False)
    whole = found[f"all but {MISSED}"]
    assert whole.angles_held >= 0.9 and whole.losses_held >= 0.9
    assert whole.angles >= 60 and whole.angles_over < 3 and whole.losses_over < 4
    assert "| sorted by class |" in as_markdown(found)


@pytest.mark.heavy
def test_bounds_hold_in_nine_of_ten_of_each_kind_of_rows() -> None:
    found = measure(30)
    for family, one in found.items():
        if family != MISSED:
            assert one.losses_held >= 0.9, family
            assert one.angles_held >= 0.9 or one.angles < 40, family


def test_a_gap_that_no_sample_shows_leaves_the_angle_open_and_bounds_the_loss() -> None:
    x = spiked(top=(5.0, 4.0))
    for one in share_errors(x[::5], of_rows=len(x), rank=4):
        assert one.sine is None and "does not tell values 4 and 5 apart" in one.why
        assert one.lost is not None and 0 < one.lost < 0.3
        found, rng = AllRows(x, 4), np.random.default_rng(0)
        runs = [found.run(one.rows, rng) for _ in range(9)]
        assert max(sine for sine, _ in runs) > 0.9 and max(lost for _, lost in runs) < one.lost


def test_what_no_sample_can_know() -> None:
    """Fewer rows than components, a small sample, rows that are not finite, nothing at all."""
    x = spiked(2000)
    few, more = share_errors(x[:300], of_rows=300, rank=3)
    assert few.sine is few.lost is None and few.why == "3 rows have no more than 3 components" and more.sine is not None
    for sample, rank in ((x[:12], 3), (np.where(x > 20, np.inf, x) * np.inf, 3)):
        with np.errstate(invalid="ignore"):
            assert all(
                one.sine is one.lost is None and one.why for one in share_errors(sample, of_rows=9999, rank=rank)
            )
    for one in share_errors(np.zeros((400, 5)), of_rows=2000, rank=2):
        assert one.sine is None and one.lost == 0
    full = share_errors(x[:400], of_rows=2000, rank=40)
    assert [one.sine for one in full] == [None, pytest.approx(0, abs=1e-6)]
    assert [one.rarer for one in more_places(x, 30)] == [13, 13]


def more_places(x: np.ndarray, places: int) -> tuple[ShareError, ...]:
    return share_errors(x[: 20 * places], of_rows=len(x) * 9, rank=3, places=[20] * places)


def test_rows_from_few_places_are_not_taken_for_independent_ones() -> None:
    """Rows of a place are alike: by rows the bound would be far below the error."""
    rng = np.random.default_rng(1)
    centres = rng.standard_normal((3000, 30)) * np.r_[4, 3, 2.5, np.ones(27)]
    x = np.repeat(centres, 20, axis=0) + 0.1 * rng.standard_normal((60_000, 30))
    sample = x[:800]  # forty places
    truth = [AllRows(x, 2).run(n, rng)[0] for n in (600, 6000)]
    by_place = share_errors(sample, of_rows=len(x), rank=2, places=[20] * 40)
    by_row = share_errors(sample, of_rows=len(x), rank=2)
    assert all(one.sine is None or one.sine > true for one, true in zip(by_place, truth, strict=True))
    assert all(one.sine is not None for one in by_row) and by_row[1].sine != by_place[1].sine
    assert "from 4 places" in more_places(x, 4)[0].why
    assert _RowSample(sample, [20] * 40, 2).compared(400).rows == 400, "parts are whole places"


@pytest.mark.parametrize("unit", [1e-170, 1.0, 1e170])
def test_the_unit_of_the_rows_does_not_matter(unit: float) -> None:
    x = spiked(1500)
    found, plain = (share_errors(rows, of_rows=9000, rank=3) for rows in (unit * x, x))
    for one, other in zip(found, plain, strict=True):
        assert one.sine == pytest.approx(other.sine, rel=1e-6) and one.lost == pytest.approx(other.lost, rel=1e-6)


def compared(rows: float, sine: float = 0.1, loss: float = 0.01, gap: float = 1.0) -> _Pairs:
    """Pairs of parts that all differ by the same."""
    return _Pairs(rows=rows, sines=np.full(4, sine**2), losses=np.full(4, loss), gaps=np.full(4, gap))


def test_angles_of_more_rows_follow_the_law_of_tangents() -> None:
    """1.3 times the tangent, and as many times as the gap may be smaller: by what small samples drive apart, and three
    standard errors. Mutants: each of these left out; rows of all that are drawn without replacement."""
    known: Any = SimpleNamespace(gap=1.0, gap_error=0.1, rank=2, rows=np.zeros((100, 5)))
    half = compared(50, gap=1.2)
    for n, wider in ((40, 1.0), (400, 1 / (1.0 - 0.2 - 3 * 0.1))):
        sine, _ = _sine_bound(known, half, half, n, 1000)
        squared = 1.3**2 * 0.01 / 0.99 * (1 / n - 1 / 1000) * 50 * wider**2
        assert sine is not None and sine**2 / (1 - sine**2) == pytest.approx(squared)
    assert _sine_bound(known, compared(50, sine=0.999), compared(50, sine=0.999), 40, 1000)[0] is None
    assert _sine_bound(known, compared(50, gap=1.8), half, 40, 1000)[0] is None


@pytest.mark.parametrize("quarter, exponent", [(0.02, 0.9), (0.01, 0.5), (0.04, 1.0)])
def test_losses_of_more_rows_fall_as_they_fell_from_a_quarter_to_a_half(quarter: float, exponent: float) -> None:
    """Less a tenth, and neither slower than the root nor faster than rows grow. Mutants: no tenth; always as fast."""
    half = compared(100)
    found = _loss_bound(half, compared(50, loss=quarter), half, 1000, 10_000)
    assert found == pytest.approx(0.01 * 0.1**exponent * 0.9)
    assert _loss_bound(half, compared(50, loss=quarter), half, 50, 10_000) == pytest.approx(0.02 * 0.995)


def drawn(source: Any, request: Request, **how: Any) -> Any:
    return sample_of(prepared(source, request), request, lambda: False, SampleBudget(judged=3, **how))


@pytest.mark.slow
def test_wide_sparse_and_weighted_rows_are_judged_as_the_question_sees_them() -> None:
    """By products of rows where they are wider than many; zeros are not filled in; a scale changes the answer."""
    rng = np.random.default_rng(0)
    x = spiked(900, 300, (30.0, 20.0, 12.0)) * (rng.random((900, 300)) < 0.3)
    for how in ({}, {"center": True}, {"center": True, "scale": True}):
        request = Request(target_rank=3, **how)  # type: ignore[arg-type]
        dense = drawn(open_source(x, "samples"), request, side=250, flops=0).errors
        sparse = drawn(open_source(csr_matrix(x), "sparse"), request, side=250, flops=0).errors
        assert len(dense) == len(sparse) == 2
        for one, other in zip(dense, sparse, strict=True):
            assert (one.sine is None) == (other.sine is None)
            assert one.sine is None or one.sine == pytest.approx(other.sine, rel=0.5)
    plain, scaled = (
        drawn(open_source(x, "samples"), Request(target_rank=3, center=True, scale=scale)).errors
        for scale in (False, True)
    )
    assert plain[1].lost < 0.5 * scaled[1].lost


@pytest.mark.slow
def test_variance_that_the_sample_has_not_is_seen_in_the_columns_of_all_rows(tmp_path: Path) -> None:
    """Ten rows of 60,000 carry the third component; the sample of 1,200 has none of them."""
    x = spiked(60_000, 30, (5.0, 4.0))
    plain = x.copy()
    x[7::6000, 5] = 200.0
    said = {}
    for name, rows in (("rare", x), ("plain", plain)):
        np.save(tmp_path / f"{name}.npy", rows)
        ingest(tmp_path / f"{name}.npy", tmp_path / f"{name}.zarr", kind="samples")
        source = open_source(tmp_path / f"{name}.zarr")
        said[name] = [drawn(source, Request(target_rank=3, center=center), nbytes=600_000) for center in (True, False)]
    for sample in said["rare"]:
        assert all(one.sine is one.lost is None and "misses rows that matter" in one.why for one in sample.errors)
        assert shares_said(sample.errors, 3).count("unknown") == 2
    assert all(one.lost is not None for sample in said["plain"] for one in sample.errors)


@pytest.mark.slow
def test_a_plan_says_it(tmp_path: Path) -> None:
    x = spiked(20_000)
    data = write_zarr(tmp_path / "x.zarr", x, (1000, 40))
    plan: Plan = plan_run(make_problem(open_source(data, "samples"), Request(target_rank=3, center=True)), Resources())
    found, rng = AllRows(x - x.mean(axis=0), 3), np.random.default_rng(0)
    assert [one.rows for one in plan.shares] == [200, 2000] and plan.facts()["shares"][0]["rows"] == 200
    for one in plan.shares:
        sine, lost = found.run(one.rows, rng)
        assert one.sine is not None and one.lost is not None
        assert sine < one.sine < 4 * sine and lost < one.lost < 10 * lost
    (line,) = (line for line in plan_lines(plan) if line.startswith("sampling"))
    assert "1 % of the rows (200) changes the 3 components by at most" in line and "in 9 of 10 problems" in line
    for rows, kind, rank in ((x, "samples", 0.9), (x.T @ x, "symmetric", 3)):
        other = plan_run(make_problem(open_source(rows, kind), Request(target_rank=rank)), Resources())
        assert isinstance(other, Plan) and not other.shares


def test_a_sample_of_packed_shards_takes_rows_of_some_inner_chunks(tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal((400, 16)).astype("f4")
    for codec, places in (("none", 3), ("zstd", 10), ("gzip", 3)):
        write(tmp_path / "x.zarr", values, (40, 8), (160, 16), codec)
        assert places_of(open_source(tmp_path / "x.zarr").reader) == places
