"""Keywords of all aspects: what asks for nothing makes nothing."""

from __future__ import annotations

import pytest

import npmdask
from npmdask.core.aspects import asked
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError
from npmdask.weights.aspect import Weights
from tests.core.test_aspects import ROWS, WORTH


def test_nothing_is_made_of_keywords_that_ask_for_nothing() -> None:
    """Of defaults, given or left out. ``None`` is no rule for missing values, and is refused as such."""
    source = open_source(ROWS, "samples")
    usual = {"missing": "refuse", "missing_fill": None, "row_weights": None}
    assert asked(source, None, usual) == asked(source, None, {}) == ()
    (weights,) = asked(source, None, usual | {"row_weights": WORTH})
    (gaps,) = asked(source, None, {"missing": "mean"})
    assert isinstance(weights, Weights) and gaps.route == "" and gaps.spec() == {"data": {"missing": "mean"}}
    with pytest.raises(BadInputError, match="missing = None"):
        npmdask.top_k(ROWS, 2, missing=None)  # type: ignore[arg-type]
