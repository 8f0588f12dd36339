"""A short soak: a schedule that really fires, a file every few seconds, random kills; ``make soak`` is the long one."""

from pathlib import Path

import pytest

from infra import soak

pytestmark = pytest.mark.slow


def test_nothing_is_lost_doubled_or_stuck(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails where no schedule fires or ends, where a row is lost or taken twice, where a run that was killed stays."""
    monkeypatch.setattr(soak, "TICK", 4.0)
    monkeypatch.setattr(soak, "KILL", 12.0)
    monkeypatch.setattr(soak, "VICTIMS", ("flow", "everything"))
    figures = soak.soak(tmp_path / "soak", 40.0, seed=3)
    assert figures["failures"] == []
    assert figures["rows"] == figures["files"] * soak.ROWS > 0
    assert sum(figures["killed"].values()) >= 1
