"""What is measured on the way: a history that thins itself and depends on the rows alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npmdask.core.algorithms import StreamInfo
from npmdask.errors import BadInputError
from npmdask.streaming.metrics import MOST, HeldOut, Measurement, Measures, last_step, measure_model
from npmdask.streaming.problem import StreamRequest, make_stream_problem
from npmdask.streaming.source import Reading
from tests.streaming.common import D, K, fed, model_of, rows_of


def at(rows: int) -> Measurement:
    nothing: dict[str, Any] = {"batch_rows": None, "mean_batch_rows": None, "step_size": None, "condition": None}
    return Measurement(rows=rows, batches=rows, steps=0, rows_used=0, rank=0, values=None, **nothing)


def run(sizes: list[int], calls: int, every: int) -> Measures:
    """Measured where it is due, and at the end of every call."""
    measures, rows = Measures.begin(every), 0
    for turn in range(calls):
        for size in sizes[turn % len(sizes) :] + sizes:
            rows += size
            if rows >= measures.due:
                measures = checked(measures, at(rows))
        if measures.history and measures.history[-1].rows < rows:
            measures = checked(measures, at(rows))
    return measures


def checked(before: Measures, found: Measurement) -> Measures:
    after = before.add(found, None)
    assert after.history[-1] == found and len(after.history) < MOST, "the last one is never lost"
    assert found.rows < after.due <= found.rows + after.every and after.due % after.every == 0
    assert after.every >= before.every and after.due >= before.due
    return after


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 50), min_size=1, max_size=4),
    calls=st.integers(1, 90),
    every=st.sampled_from([1, 7, 64]),
)
def test_the_history_thins_itself(sizes: list[int], calls: int, every: int) -> None:
    measures = run(sizes, calls, every)
    rows = [m.rows for m in measures.history]
    assert rows == sorted(set(rows))
    assert run(sizes, calls, every) == measures
    arrays, facts = measures.saved()
    assert Measures.load(arrays, facts) == measures


def test_one_long_call_is_measured_evenly() -> None:
    """Fails if thinning leaves a gap that is more than twice another."""
    rows = np.array([m.rows for m in run([1], 1, 1).history])
    assert rows.tolist() == [1, 2]
    measures = Measures.begin(1)
    for n in range(1, 10_001):
        measures = measures.add(at(n), None) if n >= measures.due else measures
    rows = np.array([m.rows for m in measures.history])
    gaps = np.diff(rows)
    assert len(rows) >= MOST // 2 and gaps.max() <= 2 * gaps.min() and 10_000 - rows[-1] < measures.every


def test_many_short_calls_do_not_stop_the_measuring_of_a_long_one() -> None:
    """Fails if thinning for the ends of calls doubles the distance each time: it was 2^31 rows after 4000 calls."""
    measures = run([1], 4000, 16)
    assert measures.every <= 8000 // (MOST // 4)


def test_what_is_told_of_a_step_stays_until_the_next_one() -> None:
    """Fails if a batch that only waits hides the size of the last step and whether its test held."""
    step = StreamInfo(rows=9, rank=2, steps=1, step_size=0.1, batch_rows=9, condition=True)
    waits = StreamInfo(rows=4, rank=3, steps=0, condition=False)
    told = last_step(step, waits)
    assert (told.rows, told.rank, told.steps) == (4, 3, 0)
    assert (told.step_size, told.batch_rows, told.condition) == (0.1, 9, True)
    assert last_step(waits, step) == step


@pytest.mark.parametrize("n", [3, 40])
@pytest.mark.parametrize("center", [False, True])
def test_held_out_rows_against_an_oracle(n: int, center: bool) -> None:
    """Fails on a sign, a wrong count, or where there are fewer rows than columns."""
    rows = rows_of(n)
    held = HeldOut(rows, K, D, center=center)
    used = rows - rows.mean(axis=0) if center else rows
    values, vectors = np.linalg.eigh(used.T @ used / n)
    explained, suboptimality = held.measure(vectors[:, ::-1][:, :K])
    assert explained == pytest.approx(values[-K:].sum() / values.sum()) and suboptimality == pytest.approx(0, abs=1e-12)
    worst = held.measure(vectors[:, :K])
    assert worst[1] == pytest.approx(values[-K:].sum() - values[:K].sum())
    rng = np.random.default_rng(0)
    for _ in range(20):
        explained, suboptimality = held.measure(np.linalg.qr(rng.standard_normal((D, K)))[0])
        assert explained is not None and 0 <= explained <= 1 and suboptimality > 0
    assert held.rows == n


def test_held_out_rows_that_are_all_zero_explain_nothing() -> None:
    assert HeldOut(np.zeros((3, D)), K, D, center=False).measure(np.eye(D)[:, :K]) == (None, 0.0)


@pytest.mark.parametrize("rows", [np.ones((3, D - 1)), np.ones((0, D)), np.ones(D), np.full((1, D), np.nan)])
def test_held_out_rows_that_do_not_fit(rows: np.ndarray) -> None:
    with pytest.raises(BadInputError, match=r"held-out rows of shape .* finite rows of 6 columns, at least one"):
        HeldOut(rows, K, D, center=False)


def test_held_out_rows_are_not_changed() -> None:
    rows = rows_of(5)
    given_in = rows.copy()
    HeldOut(rows, K, D, center=True)
    np.testing.assert_array_equal(rows, given_in)


def test_a_measurement_says_what_is_known() -> None:
    """Fails if a measurement is of other rows, or a basis without enough rows is taken for one."""
    model = model_of("mb-msg")
    rows = rows_of(60)
    early, info = model.absorb(model.init(), rows[:3])
    found, basis = measure_model(model, early, info, before=None, truth=None, held_out=None)
    assert basis is None and found.values is None and (found.rows, found.steps, found.mean_batch_rows) == (3, 0, None)
    state = fed(model, rows, [20])
    truth = np.linalg.qr(rows_of(D))[0][:, :K]
    held = HeldOut(rows, K, D, center=False)
    found, basis = measure_model(model, state, info, before=truth, truth=truth, held_out=held)
    assert basis is not None and found.change == found.max_sin_theta and found.rows == 60 and found.batches == 3
    assert found.mean_batch_rows == state.rows_used / state.steps
    assert (found.explained, found.suboptimality) == held.measure(basis)


def test_held_out_rows_are_only_worked_on_when_something_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if opening a configuration to check it costs the eigenvalues of the held-out rows, or the plan leaves them
    out."""

    def never(*_: Any) -> Any:
        raise AssertionError("worked out before it is needed")

    rows = np.random.default_rng(0).standard_normal((40, 6))
    with monkeypatch.context() as patched:
        patched.setattr(np.linalg, "eigvalsh", never)
        held = HeldOut(rows, 2, 6, center=False)
        assert held.rows == 40 and held.working_bytes == 2 * 8 * 36
        request, source = StreamRequest(target_rank=2), np.zeros((50, 6))
        with_held, without = (make_stream_problem(source, request, Reading(), h) for h in (rows, None))
        assert with_held.beside_bytes == without.beside_bytes + held.working_bytes
    assert held.measure(np.eye(6)[:, :2])[1] > 0
