"""A Gram matrix in a store that has one already."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import npmdask
from npmdask.errors import RefusedError
from tests.core.runs import test_unbegun as runs
from tests.core.runs.test_unbegun import ROWS

folder = runs.folder  # a fixture


def test_a_gram_that_has_no_part_is_bound_again(folder: Path) -> None:
    with pytest.raises(RefusedError, match="too small"):
        npmdask.gram("x.zarr", "g", kind="samples", memory="16MiB", groups=np.arange(ROWS) % 3)
    assert npmdask.gram("x.zarr", "g", kind="samples").rows == ROWS
