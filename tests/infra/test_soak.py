"""Short soaks: a schedule that really fires, a file every few seconds, random kills; ``make soak`` is the long one."""

from pathlib import Path

import pytest

from infra import soak
from tests.conftest import often

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("victims", "every", "seconds"), often([(("flow",), 5.0, 15.0), (("flow", "everything"), 12.0, 40.0)], 0)
)
def test_nothing_is_lost_doubled_or_stuck(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, victims: tuple[str, ...], every: float, seconds: float
) -> None:
    """Fails where no schedule fires or ends, where a row is lost or taken twice, where a run that was killed stays."""
    monkeypatch.setattr(soak, "TICK", 10.0)
    monkeypatch.setattr(soak, "KILL", every)
    monkeypatch.setattr(soak, "VICTIMS", victims)
    figures = soak.soak(tmp_path / "soak", seconds, seed=3)
    assert figures["failures"] == []
    assert figures["rows"] == figures["files"] * soak.ROWS > 0
    assert sum(figures["killed"].values()) >= 1
