"""Tables of features: every string leads to something, a deleted feature is named, others come from outside."""

from __future__ import annotations

import re
from dataclasses import fields
from inspect import signature
from typing import Any

import numpy as np
import pytest

from npmdask.core import features
from npmdask.core.features import FEATURES, Feature
from npmdask.core.runs.problem import Earlier, Request, Route
from npmdask.core.storage.source import open_source
from npmdask.errors import RefusedError
from npmdask.privacy.request import Privacy

TABLES = [each.name for each in fields(Feature) if each.name not in ("name", "needs", "withheld")]


@pytest.mark.slow
@pytest.mark.parametrize("table", TABLES)
def test_every_string_leads_to_something(table: str) -> None:
    """Mutant: a module or a name in features.py that is not there."""
    targets = [target for feature in FEATURES for target in getattr(feature, table).values()]
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
    theirs = Feature(name="theirs", operators={"tensor": "math:cos", "rooms": "math:sin"})
    monkeypatch.setattr(features, "from_outside", lambda: (theirs,))
    assert features.found("operators", "rooms").__name__ == "sin"
    assert features.found("operators", "tensor").__name__ == "PackedTensor"


def test_every_route_obeys_the_protocol() -> None:
    """The loop knows routes by these methods, and a person their sentences. Mutant: one that refuses by raising."""
    for key in features.keys("routes"):
        route = features.required("routes", key)
        assert Route in type(route).__mro__, key
        for name in ("takes", "problem"):
            assert [*signature(getattr(route, name)).parameters] == ["request", "source", "earlier"], (key, name)
        assert [*signature(route.release).parameters] == ["problem", "session"], key
        given: dict[str, Any] = {"privacy": Privacy(epsilon=1, delta=0, neighboring_relation=None, clip_norm=None)}
        asked = Request(target_rank=0.5, **given if key != "privacy" else {}, algorithm="krylov", low_rank_tol=0.1)
        why = route.takes(asked, open_source(np.eye(3)), Earlier())
        assert type(why) is str and why and "\n" not in why and not why.endswith("."), key
