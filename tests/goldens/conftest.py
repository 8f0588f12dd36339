"""Whether this machine computes the bits of the one that made the goldens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.goldens.worlds import arithmetic

MANIFEST = json.loads((Path(__file__).parent / "fixtures" / "manifest.json").read_text())


@pytest.fixture(scope="session")
def tolerance(tmp_path_factory: pytest.TempPathFactory) -> float:
    """Of numbers: 0.0 where this machine computes the same bits as the one that made the goldens."""
    here = arithmetic(tmp_path_factory.mktemp("environment") / "run")
    return 0.0 if here == MANIFEST["environment"] else 1e-6
