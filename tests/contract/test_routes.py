"""Routes of all features."""

from __future__ import annotations

from inspect import signature
from typing import Any

import numpy as np

from npmdask.core import features
from npmdask.core.runs.problem import Earlier, Request, Route
from npmdask.core.storage.source import open_source
from npmdask.privacy.request import Privacy


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
