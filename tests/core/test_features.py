"""Tables of features: every string leads to something, a deleted feature is named, others come from outside."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from npmdask.core import features
from npmdask.core.features import FEATURES, Feature
from npmdask.errors import RefusedError

TABLES = [each.name for each in fields(Feature) if each.name not in ("name", "needs", "withheld")]


@pytest.mark.slow
@pytest.mark.parametrize("table", TABLES)
def test_every_string_leads_to_something(table: str) -> None:
    """Mutant: a module or a name in features.py that is not there."""
    there = [feature for feature in FEATURES if (features.PACKAGE / feature.name).is_dir()]  # others were deleted
    targets = [target for feature in there for target in getattr(feature, table).values()]
    assert all(features.is_there(target) and features.load(target) is not None for target in targets)


@pytest.mark.parametrize("table", TABLES)
def test_no_key_is_in_a_table_twice(table: str) -> None:
    keys = features.keys(table)
    assert len(keys) == len(set(keys))


def test_features_are_in_order_and_need_each_other() -> None:
    names = [feature.name for feature in FEATURES]
    assert names == sorted(set(names)) and {need for feature in FEATURES for need in feature.needs} <= set(names)


def test_a_feature_that_was_deleted_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """And an unknown word is no feature."""
    gone = Feature(name="rooms", routes={"room": "npmdask.rooms.route:Route"})
    monkeypatch.setattr(features, "FEATURES", (*FEATURES, gone))
    assert features.found("routes", "room") is None and "room" not in features.keys("routes")
    with pytest.raises(
        RefusedError, match=re.escape("'room' needs the feature 'rooms', which this npmdask does not have")
    ):
        features.required("routes", "room")
    with pytest.raises(RefusedError, match="'floor' needs the feature 'floor'"):
        features.required("routes", "floor")


def test_features_of_other_packages_come_last(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = Feature(name="ours", operators={"floor": "math:floor"})
    theirs = Feature(name="theirs", operators={"floor": "math:cos", "rooms": "math:sin"})
    monkeypatch.setattr(features, "FEATURES", (ours,))
    monkeypatch.setattr(features, "from_outside", lambda: (theirs,))
    assert features.found("operators", "rooms").__name__ == "sin"
    assert features.found("operators", "floor").__name__ == "floor"
