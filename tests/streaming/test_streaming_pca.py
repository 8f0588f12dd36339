"""A model fed by hand: refusals that change nothing, a folder in between, and the same bits as a stream."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from npmdask.errors import BadInputError
from npmdask.streaming import StreamingPCA, stream_pca
from tests.conftest import write_zarr
from tests.streaming.common import OPTIONS, D, K, every, rows_of

ROWS = rows_of(160)


def by_hand(name: str = "spm", rows: np.ndarray = ROWS, size: int = 20, **more: Any) -> StreamingPCA:
    model = StreamingPCA(K, name, options=OPTIONS[name], **more)
    for start in range(0, len(rows), size):
        model.partial_fit(rows[start : start + size])
    return model


@pytest.mark.slow
@every
@pytest.mark.parametrize("center", [False, True])
def test_the_same_batches_as_a_stream_give_the_same_bits(name: str, center: bool, tmp_path: Path) -> None:
    """Fails if one of the two doors does anything to the rows that the other does not, or forgets a fact of a step."""
    if name.startswith("mb-") and center:
        pytest.skip("a stream gives these as many rows as they ask for, and centring depends on the batches")
    unit = 3.0 if name.startswith("mb-") else None  # of the first batch, which is another here
    model = by_hand(name, center=center, unit=unit)
    solution = stream_pca(
        ROWS, K, algorithm=name, options=OPTIONS[name], batch_rows=20, center=center, unit=unit, store=tmp_path / "s"
    )
    np.testing.assert_array_equal(model.basis, solution.basis)
    np.testing.assert_array_equal(model.values, solution.values)
    assert (model.rows, model.rows_waiting) == (solution.rows, solution.rows_waiting)
    assert (model.mean is None) == (solution.mean is None) == (not center)
    taken = StreamingPCA.load(tmp_path / "s")
    np.testing.assert_array_equal(taken.basis, solution.basis)
    assert taken.measure().rank == solution.last.rank and taken.measure().condition == solution.last.condition


@pytest.mark.slow
@every
def test_saved_and_loaded_it_goes_on(name: str, tmp_path: Path) -> None:
    """Fails if a field is missing from the folder: the rank of the iterate was."""
    whole = by_hand(name, center=True)
    half = by_hand(name, ROWS[:80], center=True)
    half.save(tmp_path / "model")
    again = StreamingPCA.load(tmp_path / "model")
    assert again.measure() == half.measure() and again.measure().rank > 0
    for start in range(80, 160, 20):
        again.partial_fit(ROWS[start : start + 20])
    np.testing.assert_array_equal(again.basis, whole.basis)
    np.testing.assert_array_equal(again.transform(ROWS), whole.transform(ROWS))


def test_what_is_saved_is_not_written_over(tmp_path: Path) -> None:
    model = by_hand()
    model.save(tmp_path / "model")
    with pytest.raises(BadInputError, match=r"exists already: choose another name"):
        model.save(tmp_path / "model")
    with pytest.raises(BadInputError, match=r"no rows were given yet: call partial_fit first"):
        StreamingPCA(K).save(tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_what_holds_no_model_is_said(tmp_path: Path) -> None:
    (tmp_path / "empty" / "steps").mkdir(parents=True)
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    for name in ("empty", "file", "nothing"):
        with pytest.raises(
            BadInputError, match=r"does not hold a streaming model: name a file that `save` wrote, or the store"
        ):
            StreamingPCA.load(tmp_path / name)
    with pytest.raises(BadInputError, match=r"manifest.json is missing"):
        StreamingPCA.load(tmp_path / "folder")
    by_hand().save(tmp_path / "model")
    (tmp_path / "model" / "inner_basis.npy").write_bytes(b"rotten")
    with pytest.raises(BadInputError, match=r"inner_basis.npy is corrupt"):
        StreamingPCA.load(tmp_path / "model")


BAD: list[tuple[Any, str]] = [
    (np.ones((2, D + 1)), "X has 7 features, but StreamingPCA is expecting 6 features"),
    (np.ones((0, D)), "0 sample"),
    (np.ones(D), "Expected 2D array"),
    (np.full((1, D), np.nan), "contains NaN"),
    (np.ones((1, D)) * 1j, "rows of type complex128: give real numbers"),
    ([["a"] * D], "rows of type <U1"),
    ([[1.0] * D, [1.0]], "the rows cannot be converted to an array .*all of the same length"),
]


@pytest.mark.parametrize(("batch", "sentence"), BAD)
def test_a_refused_batch_changes_nothing(batch: Any, sentence: str) -> None:
    model, untouched = by_hand(rows=ROWS[:40]), by_hand(rows=ROWS[:40])
    with pytest.raises(BadInputError, match=sentence):
        model.partial_fit(batch)
    with pytest.raises(BadInputError):
        model.transform(batch)
    np.testing.assert_array_equal(model.partial_fit(ROWS[40:]).basis, untouched.partial_fit(ROWS[40:]).basis)


def test_a_first_batch_that_is_refused_settles_nothing() -> None:
    """Fails if its width, or the rows of a step, are those of a batch that was never learnt."""
    model = StreamingPCA(K)
    for bad in (np.full((3, 9), np.inf), np.ones(4), np.ones((3, 0)), np.ones((0, 3)), np.ones((4, 1))):
        with pytest.raises(BadInputError):
            model.partial_fit(bad)
    assert model.rows == 0 and model.rows_waiting == 0
    with pytest.raises(BadInputError, match=r"no rows were given yet"):
        _ = model.basis
    np.testing.assert_array_equal(model.partial_fit(ROWS).basis, StreamingPCA(K).partial_fit(ROWS).basis)


def test_sparse_rows_and_integers_are_rows() -> None:
    whole = np.random.default_rng(0).integers(0, 3, (30, D))
    dense = StreamingPCA(K).partial_fit(whole.astype(float))
    sparse = StreamingPCA(K).partial_fit(sp.csr_matrix(whole))
    np.testing.assert_array_equal(dense.basis, sparse.basis)
    np.testing.assert_array_equal(dense.transform(whole), sparse.transform(sp.csr_matrix(whole)))


def test_too_few_rows_are_kept_for_later() -> None:
    model = StreamingPCA(K, "mb-msg", options=OPTIONS["mb-msg"]).partial_fit(ROWS[:2])
    with pytest.raises(BadInputError, match=r"2 rows are too few for the warm start, which needs"):
        model.transform(ROWS)
    assert model.measure().values is None and model.rows_waiting == 2
    assert model.partial_fit(ROWS[2:]).transform(ROWS).shape == (160, K)


def test_what_is_measured_by_hand() -> None:
    model, truth = by_hand(center=True), np.eye(D)[:, :K]
    found = model.measure(held_out=ROWS, truth=truth)
    assert found.suboptimality is not None and found.explained is not None and found.max_sin_theta is not None
    with pytest.raises(BadInputError, match=r"held-out rows of shape"):
        model.measure(held_out=ROWS[:, :-1])


def expected(estimator: Any) -> dict[str, str]:
    """A block of the streaming power method is so many rows: repeated rows fill other blocks than weighted ones."""
    why = "repeated rows fill other blocks"
    layouts = ("dense", "sparse") if estimator.algorithm == "spm" else ()
    return {f"check_sample_weight_equivalence_on_{layout}_data": why for layout in layouts}


@pytest.mark.slow
@parametrize_with_checks(
    [StreamingPCA(), StreamingPCA(1, center=True), StreamingPCA(2, "frequent-directions")],
    expected_failed_checks=expected,
)
@pytest.mark.filterwarnings("default")
def test_the_checks_of_scikit_learn(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


@pytest.mark.slow
@every
def test_fit_gives_the_bits_of_a_stream(name: str, tmp_path: Path) -> None:
    """Fails if batches are cut otherwise, or if something of what was learnt before is left."""
    solution = stream_pca(ROWS, K, algorithm=name, options=OPTIONS[name], center=True)
    model = StreamingPCA(K, name, options=OPTIONS[name], center=True).partial_fit(ROWS[:50])
    np.testing.assert_array_equal(model.fit(ROWS).basis, solution.basis)
    stored = str(write_zarr(tmp_path / "x.zarr", ROWS, (30, D)))
    for given in (da.from_array(ROWS, chunks=(30, D)), stored):
        found = clone(model).fit(given)
        np.testing.assert_array_equal(found.basis, solution.basis)
        np.testing.assert_allclose(found.transform(given), model.transform(ROWS), atol=1e-12)


@pytest.mark.slow
def test_in_the_company_of_scikit_learn(tmp_path: Path) -> None:
    search = GridSearchCV(
        make_pipeline(StreamingPCA(center=True), LogisticRegression()), {"streamingpca__target_rank": [1, 4]}, cv=3
    ).fit(ROWS, ROWS[:, 3] > 0)
    assert search.best_params_ == {"streamingpca__target_rank": 4}
    table = pd.DataFrame(ROWS, columns=list("abcdef"))
    named = StreamingPCA(2, half_life=50.0).set_output(transform="pandas").partial_fit(table)
    assert list(named.transform(table).columns) == ["streamingpca0", "streamingpca1"]
    again = pickle.loads(pickle.dumps(named))  # noqa: S301
    np.testing.assert_array_equal(again.partial_fit(table).basis, named.partial_fit(table).basis)
    named.save(tmp_path / "model")
    loaded = StreamingPCA.load(tmp_path / "model")
    assert loaded.get_params() | {"options": None} == named.get_params() and loaded.n_features_in_ == D
    np.testing.assert_array_equal(clone(loaded).partial_fit(ROWS).basis, clone(named).partial_fit(table).basis)
    assert not hasattr(StreamingPCA(), "basis")


TWO_RUNS = """
import threading
import numpy
from npmdask.core.execution.executor import single_threaded_blas
from threadpoolctl import threadpool_info

threads = lambda: {pool["num_threads"] for pool in threadpool_info()}
entered, leave = threading.Event(), threading.Event()

def first():
    with single_threaded_blas():
        entered.set()
        leave.wait(30)

before = threads()
thread = threading.Thread(target=first)
thread.start()
entered.wait(30)
with single_threaded_blas():
    leave.set()
    thread.join()
    assert threads() == {1}, "the first to end gave the other one its cores back"
with single_threaded_blas():
    assert threads() == {1}
assert threads() == before
"""


@pytest.mark.slow
def test_two_runs_in_two_threads_share_one_limit() -> None:
    """Fails if the bits of one run depend on when another one in the same process ends."""
    environment = {"PYTHONPATH": str(Path(__file__).parents[2]), "OPENBLAS_NUM_THREADS": "2", "PATH": ""}
    done = subprocess.run([sys.executable, "-c", TWO_RUNS], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
