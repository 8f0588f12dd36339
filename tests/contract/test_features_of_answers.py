"""Methods of features on finished answers."""

from __future__ import annotations

from npmdask.core import features
from tests.core.runs.test_features_of_answers import ASKED


def test_every_method_of_the_table_is_one_of_the_class() -> None:
    named = {key for key in features.keys("methods") if key.startswith("Solution.")}
    assert named == {f"Solution.{method}" for method in ASKED}
    assert all(callable(features.found("methods", key)) for key in features.keys("methods"))
