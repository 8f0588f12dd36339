"""A node has no operator of others: it would answer with products of the data itself, and not say so."""

from __future__ import annotations

from pathlib import Path

import pytest

from npmdask.errors import BadInputError, RefusedError
from tests.core.runs import test_registered_operators as operators
from tests.core.runs.test_registered_operators import configured

registered = operators.registered  # a fixture


def test_it_is_refused(tmp_path: Path) -> None:
    config = configured(tmp_path, '[mechanism]\nname = "none"\n')
    with pytest.raises((BadInputError, RefusedError), match="products of its rows"):
        config.node()
