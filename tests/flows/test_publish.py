"""What the UI is shown, without a server."""

import re
from typing import Any

import pytest

pytestmark = pytest.mark.filterwarnings("default")  # of Prefect's own


def _history(steps: int) -> list[dict[str, Any]]:
    return [{"step": i, "worst_residual": 10.0**-i, "max_sin_theta": 0.5**i} for i in range(1, steps + 1)]


def test_progress_is_logarithmic() -> None:
    from flows.publish import progress_percent

    assert progress_percent([], 1e-9) == 0
    assert progress_percent(_history(1), 1e-9) == 0
    assert progress_percent(_history(5), 1e-9) == pytest.approx(50)
    assert progress_percent(_history(12), 1e-9) == 99  # 100 is for the end
    assert progress_percent(_history(1), 0.5) == 99  # below tol from the start, in single precision


def test_the_bar_says_how_far_it_is() -> None:
    from flows.publish import bar

    assert bar(50.0) == f"`{'█' * 10}{'░' * 10}` 50 % of the way to the tolerance"
    assert bar(100.0).count("█") == 20 and bar(0.0).count("█") == 0


def test_keys_are_what_prefect_takes() -> None:
    from flows.publish import artifact_key

    for name in ("Nightly Run_3", "--", "a.b", "Ünï"):
        assert re.fullmatch(r"[a-z0-9][a-z0-9-]*", artifact_key(name))


@pytest.mark.parametrize("steps", [1, 30, 3000])
def test_plots_are_small_enough_for_the_database(steps: int) -> None:
    from flows.publish import convergence_table, plot

    image = plot(_history(steps), 1e-9)
    assert image.startswith("![convergence](data:image/svg+xml;base64,")
    assert len(image) < 100_000
    assert len(convergence_table(_history(steps)).splitlines()) <= 22


def test_settings_are_defaults_only(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    from flows import quiet

    monkeypatch.setenv("PREFECT_HOME", "/somewhere/else")
    monkeypatch.setenv("DO_NOT_TRACK", "0")
    quiet.apply()
    assert (os.environ["PREFECT_HOME"], os.environ["DO_NOT_TRACK"]) == ("/somewhere/else", "0")
