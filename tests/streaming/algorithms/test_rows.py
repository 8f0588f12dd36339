"""The benchmark rows of streaming: at their small scale, and that what they compare with sees what is wrong."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.data import DataSets
from benchmarks.registry import Context, all_rows
from benchmarks.rows import stream_memory, stream_projection, stream_update
from npmdask.core.numerics.random import generator
from npmdask.streaming.algorithms.power import StreamPower
from tests.streaming.algorithms.test_capped_simplex import by_faces, spectra


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        *("stream-rows", "stream-update-cost", "stream-projection"),
        pytest.param("stream-memory", marks=pytest.mark.heavy),  # what it measures: test_an_update_holds_few_blocks
    ],
)
def test_the_row_runs_and_its_answers_are_right(name: str, tmp_path: Path) -> None:
    """Fails when an algorithm does not answer, or iterates differ from those with matrices."""
    row = next(row for row in all_rows() if row.name == name)
    found = row.run(Context(scale="small", folder=tmp_path, data=DataSets(tmp_path, "small")))
    assert found.failures == () and found.figure is not None and found.figure > 0
    assert name != "stream-projection" or row.holds(found.figure)


@pytest.mark.parametrize("wrong", ["eta", "ridge", "k"])
def test_the_race_sees_another_step(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reference with one wrong number has other iterates than the algorithm; the right one has the same."""
    assert stream_update.race(3, 60, 8).difference < stream_update.SAME
    right = stream_update.with_matrices

    def spoilt(p: np.ndarray, batch: np.ndarray, eta: float, ridge: float, k: int) -> np.ndarray:
        numbers: dict[str, Any] = {"eta": eta, "ridge": ridge, "k": k}
        numbers[wrong] = {"eta": 1.1 * eta, "ridge": ridge + 1.5 / eta, "k": k + 1}[wrong]
        return right(p, batch, **numbers)

    monkeypatch.setattr(stream_update, "with_matrices", spoilt)
    assert stream_update.race(3, 60, 8).difference > 1e-6


@pytest.mark.parametrize("exactly", [False, True])
def test_the_solver_in_fractions_and_its_certificate(exactly: bool) -> None:
    """The certificate is zero at the projection and not beside it; the solver agrees with that of the other tests."""
    rng = np.random.default_rng(0)
    for mu in spectra(rng, 4):
        exact = stream_projection.nearest(mu, 2, exactly)
        np.testing.assert_allclose(exact, by_faces(mu, 2, exactly), atol=1e-9)
        turn = np.linalg.qr(rng.standard_normal((4, 4)))[0]
        m, x = turn * mu @ turn.T, turn * exact @ turn.T
        assert stream_projection.inequality_gap(m, x, 2, exactly) < 1e-13
        for other in (0.999 * x + 0.0005 * np.eye(4), np.roll(x, 1, axis=(0, 1)), 0.5 * x):
            far = float(np.linalg.norm(other - x))
            if far > 1e-6:  # all equal: some of these are x again
                assert stream_projection.inequality_gap(m, other, 2, exactly) > 0.1 * far**2 / max(1, np.linalg.norm(m))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "blocks"), [("spm", 8.5), ("oja", 3.5), ("mb-msg", 4.5), ("mb-rmsg", 4.5), ("frequent-directions", 10.5)]
)
def test_an_update_holds_few_blocks(name: str, blocks: float) -> None:
    """All that NumPy holds at once, the state before among it, in d x k blocks, less the rows that wait for a step.
    Fails when a temporary as large as the basis comes back: with p = 2 k each is two blocks of spm."""
    d, k, size = 60_000, 8, 16
    method = stream_memory.algorithm(name, k)
    if isinstance(method, StreamPower):
        method = StreamPower(**{**vars(method), "block_rows": 2 * size})
    rng = np.random.default_rng(0)
    batch = np.empty((size, d))
    tracemalloc.start()
    try:
        state = method.init(d, rng=generator(0, "start"))
        for _ in range(24):
            part = batch[: method.query(state).rows]
            stream_memory.fill(part, k, rng)
            state, _info = method.update(state, part)
        method.finalize(state)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    waiting = 8 * d * (112 + 128) if name.startswith("mb-") else 0  # the rows before the last batch, and with it
    assert state.step > 0 and (peak - waiting) / (8 * d * k) < blocks
