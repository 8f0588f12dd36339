"""Aspects: what is none says so; those of another package are in tests/plugin."""

from __future__ import annotations

import numpy as np
import pytest

import npmdask
from npmdask.core.aspects import Reading, asked
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError
from npmdask.weights.aspect import Weights

ROWS, WORTH = np.random.default_rng(0).standard_normal((90, 6)), np.linspace(0.1, 2, 90)


def test_a_reading_says_how_other_rows_are_read() -> None:
    """Scores of rows that are read otherwise would be wrong, and nothing would show it."""

    class Silent(Reading):
        place = "silent"

    with pytest.raises(TypeError, match="scored"):
        Silent()  # type: ignore[abstract]


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
