"""Sources of others in private runs."""

from __future__ import annotations

from pathlib import Path

import pytest

import npmdask
from npmdask.errors import RefusedError
from npmdask.privacy.request import Privacy
from tests.core.storage import test_registered_sources as sources
from tests.core.storage.test_registered_sources import Toy

toy = sources.toy  # a fixture


def test_nothing_private_is_computed_of_data_without_a_budget(toy: dict[str, Toy], tmp_path: Path) -> None:
    privacy = Privacy(epsilon=1.0, delta=1e-6, neighboring_relation="record_add_remove", clip_norm=1.0)
    with pytest.raises(RefusedError, match="toy://here was never ingested"):
        npmdask.top_k("toy://here", 2, kind="samples", store=tmp_path / "run", max_steps=2, privacy=privacy)
