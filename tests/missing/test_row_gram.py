"""The small Gram matrix of rows with missing values."""

from __future__ import annotations

import numpy as np
import pytest

import npmdask
from npmdask.errors import RefusedError
from tests.core.algorithms.test_row_gram import ROW_GRAM


def test_it_does_not_fill_them() -> None:
    with pytest.raises(RefusedError, match="has missing values"):
        npmdask.top_k(np.eye(9), 2, kind="samples", center=True, missing="mean", **ROW_GRAM)
