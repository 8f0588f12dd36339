"""PrivatePCA: the release of a private run and nothing else, spent once, refused where it is not private."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks

from npmdask import BadInputError, BudgetError, PrivatePCA, RefusedError
from npmdask.core.checkpoint.store import RunStore
from npmdask.errors import DataWarning
from tests.privacy.runs.conftest import COLUMNS, World, make_world, records

RELEASED = {"components_", "values_", "value_stddevs_", "statement_", "n_components_", "n_features_in_"}
ROWS = 4000


def of_world(world: World, store: str = "run", **asked: Any) -> PrivatePCA:
    promise = {"epsilon": 1.0, "delta": 1e-6, "row_norm": 1.5, "neighboring_relation": "record_replace"}
    where = {"ledger": str(world.folder / "ledger.sqlite"), "dataset": "people", "store": world.folder / store}
    return PrivatePCA(2, **{**promise, **where, "max_steps": 3, **asked})  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("relation", ["record_replace", "record_zero_out", "record_add_remove"])
def test_it_holds_what_was_released_and_nothing_else(tmp_path: Path, relation: str) -> None:
    """Fails if a mean, a variance or the number of rows is kept, or anything that is not of the release."""
    world = make_world(tmp_path / "world", records(ROWS), neighboring_relation=relation)
    found = of_world(world, neighboring_relation=relation).fit(world.data)
    assert vars(found).keys() == found.get_params().keys() | RELEASED | {"_column_weight"}  # those of the caller
    assert found._column_weight is None
    for name in ("mean_", "var_", "explained_variance_", "explained_variance_ratio_", "n_samples_", "noise_variance_"):
        assert not hasattr(found, name)
    result = RunStore(world.folder / "run").read_part("result")
    assert result is not None
    np.testing.assert_array_equal(np.abs(found.components_), np.abs(result[0]["basis"].T))
    np.testing.assert_array_equal(found.values_, result[0]["values"])
    assert (found.components_.max(axis=1) == np.abs(found.components_).max(axis=1)).all()
    if relation == "record_add_remove":  # whose number is private
        assert str(ROWS) not in json.dumps(found.statement_, default=str)


@pytest.mark.slow
def test_it_is_the_release_of_top_k_and_good_enough(world: World) -> None:
    found, x = of_world(world).fit(world.data), np.load(world.folder / "x.npy")
    clipped = x * np.minimum(1, 1.5 / np.linalg.norm(x, axis=1))[:, None]
    exact = np.linalg.eigh(clipped.T @ clipped)[1][:, -2:]
    assert np.linalg.norm(found.components_ @ exact) ** 2 > 1.9
    solution = world.solve("run", world.problem(iteration_rank=None))
    np.testing.assert_array_equal(np.abs(solution.basis.T), np.abs(found.components_))
    assert found.statement_ == solution.statement and found.n_features_in_ == COLUMNS


@pytest.mark.slow
def test_each_fit_spends_once_and_the_same_store_answers_for_free(world: World) -> None:
    first = of_world(world).fit(world.data)
    spent = world.ledger.status("people").spent
    again = clone(first).fit(world.data)
    np.testing.assert_array_equal(again.components_, first.components_)
    assert world.ledger.status("people").spent == spent
    second = of_world(world, "second").fit(world.data)
    assert (second.components_ != first.components_).any()
    assert world.ledger.status("people").spent.mu_squared == pytest.approx(2 * spent.mu_squared, rel=1e-3)
    of_world(world, "third").fit(world.data)
    with pytest.raises(BudgetError, match="does not suffice"):
        of_world(world, "fourth").fit(world.data)
    with pytest.raises(RefusedError, match="differ"):
        of_world(world, epsilon=0.5).fit(world.data)


@pytest.mark.slow
def test_scores_are_of_the_rows_that_are_given(world: World) -> None:
    found = of_world(world).set_output(transform="default").fit(world.data)
    public = records(50, seed=9)
    expected = public @ found.components_.T
    np.testing.assert_allclose(found.transform(public), expected)
    np.testing.assert_allclose(found.transform(da.from_array(public, chunks=(20, COLUMNS))), expected)
    again = pickle.loads(pickle.dumps(found)).set_output(transform="pandas")  # noqa: S301
    assert list(again.transform(pd.DataFrame(public)).columns) == ["privatepca0", "privatepca1"]
    with pytest.warns(DataWarning, match="not protected"):
        found.transform(world.data)
    with pytest.raises(BadInputError, match="11 features, but PrivatePCA is expecting 12"):
        found.transform(public[:, 1:])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"neighboring_relation": "entry"}, "for rows use one of record_replace"),
        ({"neighboring_relation": None}, "for rows use one of record_replace"),
        ({"store": None}, "store = None: name a folder"),
        ({"epsilon": -1.0}, "epsilon"),
        ({"row_norm": None}, "clip_norm"),
        ({"n_components": 0.9}, "whole numbers"),
        ({"dataset": "others"}, "others"),
    ],
)
def test_what_is_refused_spends_nothing(world: World, asked: dict[str, Any], said: str) -> None:
    with pytest.raises((BadInputError, RefusedError, BudgetError), match=said):
        of_world(world).set_params(**asked).fit(world.data)
    assert not world.ledger.status("people").runs


@pytest.mark.slow
def test_rows_in_memory_are_refused(world: World) -> None:
    x = np.load(world.folder / "x.npy")
    for given in (x, x.tolist(), pd.DataFrame(x)):
        with pytest.raises(BadInputError, match=r"npmdask ingest.*npmdask ledger grant"):
            of_world(world).fit(given)
    with pytest.raises(RefusedError, match="was never ingested"):
        of_world(world).fit(da.from_array(x))


IN_MEMORY = "it fits arrays, and private rows cannot come from memory"
OF_ARRAYS = """
check_fit_score_takes_y check_estimators_overwrite_params check_dont_overwrite_parameters
check_estimators_fit_returns_self check_readonly_memmap_input check_n_features_in_after_fitting
check_positive_only_tag_during_fit check_estimators_dtypes check_complex_data check_dtype_object
check_estimators_empty_data_messages check_pipeline_consistency check_estimators_nan_inf check_estimator_sparse_tag
check_estimator_sparse_array check_estimator_sparse_matrix check_estimators_pickle check_f_contiguous_array_estimator
check_transformer_data_not_an_array check_transformer_general check_transformer_preserve_dtypes
check_methods_sample_order_invariance check_methods_subset_invariance check_fit2d_1sample check_fit2d_1feature
check_dict_unchanged check_fit_idempotent check_fit_check_is_fitted check_n_features_in check_fit2d_predict1d
"""


@pytest.mark.slow
@parametrize_with_checks(
    [PrivatePCA(1, epsilon=1.0, delta=1e-8, row_norm=1.0, neighboring_relation="record_replace", store="run")],
    expected_failed_checks=lambda estimator: dict.fromkeys(OF_ARRAYS.split(), IN_MEMORY),
)
@pytest.mark.filterwarnings("default")
def test_the_checks_of_scikit_learn(
    estimator: Any, check: Callable[[Any], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    check(estimator)
