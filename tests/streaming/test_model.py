"""A model over every algorithm: cut, scaled, centred, refused, saved; and the counter that shows a lost row."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.decomposition import PCA

from npmdask.core.numerics.subspaces import max_sin_theta
from npmdask.core.storage.bundle import read_bundle, write_bundle
from npmdask.errors import BadInputError
from npmdask.streaming.algorithms.model import Model
from tests.streaming.common import EXACT, OPTIONS, D, K, bits, every, fed, model_of, rows_of, scatter

ROWS = rows_of(150)


@pytest.mark.parametrize("name", ["mb-msg", "mb-rmsg"])
def test_mini_batches_do_not_depend_on_the_cutting(name: str) -> None:
    """Fails if a batch is not cut where the algorithm asks, or a row of it is passed over."""
    model = model_of(name, unit=2.0)
    whole = bits_but_batches(model, fed(model, ROWS, [len(ROWS)]))
    for sizes in ([1], [7, 2, 40], [64]):
        assert bits_but_batches(model, fed(model, ROWS, sizes)) == whole


def test_a_huge_mean_costs_no_digits() -> None:
    """Fails if what the running mean misses by rounding is not carried from batch to batch."""
    model, rows = model_of("spm", options=EXACT, center=True), ROWS + 1e6
    middle = rows - rows[0]
    middle -= middle.mean(axis=0)
    expected = middle.T @ middle
    error = np.abs(scatter(fed(model, rows, [3])) - expected).max()
    assert error < 2e-13 * np.abs(expected).max()


def bits_but_batches(model: Model, state: Any) -> Any:
    arrays, numbers = bits(model, state)
    return arrays, {name: value for name, value in json.loads(numbers).items() if name != "batches"}


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [[1], [5, 64], [150]])
@pytest.mark.parametrize("center", [False, True])
def test_with_p_equal_d_the_state_is_the_exact_sum(sizes: list[int], center: bool) -> None:
    """The counter that the tests of the driver rely on: fails if it would miss a row that is lost or used twice."""
    model = model_of("spm", options=EXACT, center=center)
    rows = ROWS - ROWS.mean(axis=0) if center else ROWS
    expected = rows.T @ rows
    np.testing.assert_allclose(scatter(fed(model, ROWS, sizes)), expected, rtol=1e-11)
    for wrong in (ROWS[1:], np.concatenate([ROWS, ROWS[70:71]])):
        assert np.abs(scatter(fed(model, wrong, sizes)) - expected).max() > 1e-6 * np.abs(expected).max()


@pytest.mark.slow
@every
@pytest.mark.parametrize("center", [False, True])
def test_rows_of_another_size_change_only_the_values(name: str, center: bool) -> None:
    """Fails if a step size meets the size of the rows, or a value is not given back in their units."""
    results = []
    for c in (1.0, 1024.0, 2.0**-40):
        model = model_of(name, center=center)
        results.append(model.answer(fed(model, c * ROWS, [10])))
        np.testing.assert_allclose(results[-1].values, c**2 * results[0].values, rtol=1e-9)
        assert max_sin_theta(results[-1].vectors, results[0].vectors) < 1e-6


@pytest.mark.slow
@every
@pytest.mark.parametrize("center", [False, True])
def test_the_unit_is_that_of_the_first_batch_that_is_not_zero(name: str, center: bool) -> None:
    """Fails on a division by zero, or if zeros settle the unit. A centred single row is zero too."""
    model = model_of(name, center=center)
    start, _ = model.absorb(model.init(), np.zeros((3, D)))
    scale_free = name in ("spm", "frequent-directions")
    assert start.unit == (1.0 if scale_free else 0.0)
    batch = ROWS[:9] - ROWS[:9].mean(axis=0)
    after, _ = model.absorb(start, batch)
    expected = 1.0 if scale_free else np.sqrt((batch**2).sum() / 9)
    np.testing.assert_allclose(after.unit, expected, rtol=1e-12)
    assert model.absorb(after, 1e3 * ROWS)[0].unit == after.unit
    given = model_of(name, center=center, unit=3.0)
    assert given.absorb(given.init(), ROWS)[0].unit == (1.0 if scale_free else 3.0)


BAD: dict[str, tuple[Any, str]] = {
    "wide": (np.ones((2, D + 1)), "does not fit the model, which has 6 columns"),
    "empty": (np.ones((0, D)), "an empty batch"),
    "nan": (np.array([[1.0] * D, [np.nan] * D]), "1 of the 2 rows"),
    "infinite": (np.full((1, D), np.inf), "NaN or infinite"),
    "large": (np.full((2, D), -1e160), "values up to 1e[+]160: their squares are too large.*divide all rows"),
    "largest": (np.array([[1.7e308] * D, [-1.7e308] * D]), "their squares are too large"),
}


@pytest.mark.slow
@every
@pytest.mark.parametrize("kind", BAD)
def test_a_batch_that_is_refused_leaves_the_state(name: str, kind: str) -> None:
    """Fails if anything is written before all is checked. Huge rows would leave NaN behind and say nothing."""
    model = model_of(name, center=True)
    state = fed(model, ROWS[:40], [10])
    before = bits(model, state)
    with pytest.raises(BadInputError, match=BAD[kind][1]):
        model.absorb(state, BAD[kind][0])
    assert bits(model, state) == before


@pytest.mark.slow
@every
@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("d", [D, 41])
def test_saved_and_loaded_it_goes_on_with_the_same_bits(name: str, center: bool, d: int, tmp_path: Path) -> None:
    """Fails if a field is missing, or if the order of an array in memory reaches the bits."""
    rows = rows_of(150, d)
    model = model_of(name, d=d, center=center)
    state = fed(model, rows[:83], [10, 3])
    arrays, numbers = model.saved(state)
    write_bundle(tmp_path / "held", arrays, {"state": numbers, "model": model.facts()})
    arrays, meta = read_bundle(tmp_path / "held")
    again = Model.of(meta["model"])
    loaded = again.load(arrays, meta["state"])
    assert bits(again, loaded) == bits(model, state) and again == model
    left, right = fed(model, rows[83:], [9], state), fed(again, rows[83:], [9], loaded)
    assert bits(model, left) == bits(again, right)
    np.testing.assert_array_equal(model.answer(left).vectors, again.answer(right).vectors)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"), [("spm", EXACT), ("frequent-directions", {"sketch_rows": 200})], ids=["spm", "fd"]
)
@pytest.mark.parametrize("sizes", [[1], [13, 2]])
def test_exact_and_centred_it_is_the_pca_of_scikit_learn(name: str, options: dict[str, Any], sizes: list[int]) -> None:
    """Fails if the mean is subtracted wrongly, or variances are divided by another count."""
    rows, oracle = ROWS + 100.0, PCA(K, svd_solver="full").fit(ROWS + 100.0)
    model = model_of(name, options=options, center=True)
    state = fed(model, rows, sizes)
    result = model.answer(state)
    assert max_sin_theta(result.vectors, oracle.components_.T) < 1e-7
    np.testing.assert_allclose(result.values, oracle.explained_variance_ * 149 / 150, rtol=1e-9)
    scores = model.project(state, result.vectors, rows[:20])
    np.testing.assert_allclose(np.abs(scores), np.abs(oracle.transform(rows[:20])), atol=1e-6)


def test_a_model_that_is_not_centred_projects_as_it_learns() -> None:
    model = model_of("frequent-directions")
    state = fed(model, ROWS, [50])
    basis = model.answer(state).vectors
    np.testing.assert_allclose(model.project(state, basis, ROWS), ROWS @ basis, rtol=1e-12)


@pytest.mark.slow
def test_half_of_the_weight_is_gone_after_the_half_life() -> None:
    """Fails if the mean fades at another pace than the scatter."""
    model = model_of("spm", options=EXACT, center=True, half_life=20.0)
    state = fed(model, np.zeros((300, D)), [1])
    np.testing.assert_allclose([state.weight, state.inner.weight], 1 / (1 - 0.5 ** (1 / 20)), rtol=1e-4)
    moved = fed(model, np.ones((20, D)), [1], state)
    np.testing.assert_allclose(moved.mean, 0.5, rtol=1e-4)


def test_what_was_read_is_told_of_the_last_step() -> None:
    """Fails if a piece that makes no step hides what the step before it in the same batch was."""
    model = model_of("mb-msg", unit=2.0)
    state, info = model.absorb(model.init(), ROWS[:100])
    assert info.rows == 100 and info.steps == state.steps > 1 and info.batch_rows and info.step_size
    assert state.rows == 100 and state.rows_used + len(state.inner.pending) == 100


@pytest.mark.slow
def test_blas_is_all_loaded_before_its_threads_are_counted() -> None:
    """Fails if SciPy's own BLAS is loaded inside of a step: it would have all cores and other last bits."""
    program = """
import npmdask.streaming as s, numpy as np
from npmdask.core.execution.executor import single_threaded_blas
from threadpoolctl import threadpool_info
with single_threaded_blas():
    s.StreamingPCA(2, "mb-msg", options={"gap": .2, "batch_rows": 8, "warm_rows": 8}).partial_fit(np.eye(40)[:, :20])
    assert all(pool["num_threads"] == 1 for pool in threadpool_info()), threadpool_info()
"""
    environment = {"PYTHONPATH": str(Path(__file__).parents[2]), "OPENBLAS_NUM_THREADS": "2", "PATH": ""}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_algorithm_has_options_here() -> None:
    from npmdask.streaming.algorithms import STREAM_REGISTRY

    assert OPTIONS.keys() == {name for name, kind in STREAM_REGISTRY.items() if kind.moment == 2}
