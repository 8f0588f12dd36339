"""Aspects: what is none says so; those of another package are in tests/plugin."""

from __future__ import annotations

import numpy as np
import pytest

from npmdask.core.aspects import Reading

ROWS, WORTH = np.random.default_rng(0).standard_normal((90, 6)), np.linspace(0.1, 2, 90)


def test_a_reading_says_how_other_rows_are_read() -> None:
    """Scores of rows that are read otherwise would be wrong, and nothing would show it."""

    class Silent(Reading):
        place = "silent"

    with pytest.raises(TypeError, match="scored"):
        Silent()  # type: ignore[abstract]
