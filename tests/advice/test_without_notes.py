"""An answer without its notes."""

from __future__ import annotations

from pathlib import Path

import pytest

from npmdask.core import features
from npmdask.core.checkpoint.store import RunStore
from tests.core.runs.test_features_of_answers import gone, solved


@pytest.mark.slow
def test_an_answer_does_without_notes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Component 1 is the mean of what is not centred; without a note of that all else is the same."""
    solved(tmp_path / "noted", kind="matrix")
    kept = tuple(gone(one) if one.name == "advice" else one for one in features.FEATURES)
    monkeypatch.setattr(features, "FEATURES", kept)
    solved(tmp_path / "plain", kind="matrix")
    noted, plain = (RunStore(tmp_path / name).read_part("result") for name in ("noted", "plain"))
    assert noted is not None and plain is not None
    assert len(noted[1].pop("notes")) == 1 and noted[1] == plain[1]
    assert all(array.tobytes() == plain[0][name].tobytes() for name, array in noted[0].items())
