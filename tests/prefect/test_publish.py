"""What the UI is shown, without a server."""

import math
import re
import subprocess
import sys
from typing import Any

import pytest

from tests.prefect.conftest import ROOT

pytestmark = pytest.mark.filterwarnings("default")  # of Prefect's own


def _history(steps: int) -> list[dict[str, Any]]:
    return [{"step": i, "worst_residual": 10.0**-i, "max_sin_theta": 0.5**i} for i in range(1, steps + 1)]


def test_progress_is_logarithmic() -> None:
    from npmdask.prefect.publish import progress_percent

    assert progress_percent([], 1e-9) == 0
    assert progress_percent(_history(1), 1e-9) == 0
    assert progress_percent(_history(5), 1e-9) == pytest.approx(50)
    assert progress_percent(_history(12), 1e-9) == 99  # 100 is for the end
    assert progress_percent(_history(1), 0.5) == 99  # below tol from the start, in single precision


def test_the_bar_says_how_far_it_is() -> None:
    from npmdask.prefect.publish import progress_text

    assert progress_text("x", 50.0) == f"## Progress\n\nx\n\n`{'█' * 10}{'░' * 10}` 50 %"
    assert progress_text("x", 100.0).count("█") == 20 and progress_text("x", 0.0).count("█") == 0


def test_keys_are_what_prefect_takes() -> None:
    from npmdask.prefect.publish import artifact_key

    for name in ("Nightly Run_3", "--", "a.b", "Ünï"):
        assert re.fullmatch(r"[a-z0-9][a-z0-9-]*", artifact_key(name))


@pytest.mark.parametrize("steps", [1, 30, 3000])
def test_plots_are_small_enough_for_the_database(steps: int) -> None:
    from npmdask.prefect.publish import convergence_table, plot

    image = plot(_history(steps), 1e-9)
    assert image.startswith("![convergence](data:image/svg+xml;base64,")
    assert len(image) < 100_000
    assert len(convergence_table(_history(steps)).splitlines()) <= 22


@pytest.mark.parametrize("residuals", [[1.0], [0.5, 0.5], [float("nan")], [0.0, float("inf"), 1e-3]])
@pytest.mark.parametrize("tol", [0.0, 1e-9])
def test_any_history_can_be_drawn(residuals: list[float], tol: float) -> None:
    from xml.etree import ElementTree

    from npmdask.prefect.publish import HEIGHT, WIDTH, convergence_svg

    history = [{"step": i, "worst_residual": r, "max_sin_theta": None} for i, r in enumerate(residuals, 7)]
    drawn = ElementTree.fromstring(convergence_svg(history, tol))
    dots = [(float(c.attrib["cx"]), float(c.attrib["cy"])) for c in drawn.iter("{http://www.w3.org/2000/svg}circle")]
    assert len(dots) == sum(math.isfinite(r) for r in residuals)
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in dots)
    assert (f"tol {tol:.0e}" in "".join(drawn.itertext())) == (tol > 0)


def test_what_falls_is_drawn_falling() -> None:
    from xml.etree import ElementTree

    from npmdask.prefect.publish import convergence_svg

    drawn = ElementTree.fromstring(convergence_svg(_history(9), 1e-9))
    lines = list(drawn.iter("{http://www.w3.org/2000/svg}polyline"))
    for line in lines:
        places = [tuple(map(float, place.split(","))) for place in line.attrib["points"].split()]
        assert places == sorted(places) and [y for _, y in places] == sorted(y for _, y in places), "down is larger"
    assert len(lines) == 2


@pytest.mark.slow
def test_a_flow_loads_no_plots_and_no_ledger_before_it_needs_them() -> None:
    """Seconds and megabytes beside every run."""
    code = "import sys, flows.npm; sys.exit(' '.join({'matplotlib', 'sqlalchemy'} & set(sys.modules)) or 0)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_settings_are_defaults_only(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    from npmdask.prefect import programs

    monkeypatch.setenv("PREFECT_HOME", "/somewhere/else")
    monkeypatch.setenv("DO_NOT_TRACK", "0")
    programs.apply_settings()
    assert (os.environ["PREFECT_HOME"], os.environ["DO_NOT_TRACK"]) == ("/somewhere/else", "0")


def test_the_last_word_is_how_wrong_the_answer_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    from concurrent.futures import ThreadPoolExecutor
    from types import SimpleNamespace

    from npmdask.prefect.publish import Publisher

    publisher, shown = object.__new__(Publisher), list[str]()
    publisher._thread, publisher._history, publisher._tol = ThreadPoolExecutor(1), _history(3), 1e-9
    monkeypatch.setattr(publisher, "_advance", lambda *_: None)
    monkeypatch.setattr(publisher, "_plot", lambda said, *_: shown.append(said))
    for said, assurance in (
        ("converged after 3 steps", "The values are accurate to 9 digits."),
        ("converged after 3 steps", ""),
        ("![x](http://evil/x.png)", "<img src=x> [here](http://evil)"),  # a store may say anything
    ):
        ended = SimpleNamespace(outcome=SimpleNamespace(sentence=said), answered=True, assurance=assurance)
        publisher.on_end(ended)  # type: ignore[arg-type]
    assert shown == [
        "converged after 3 steps\n\n**How wrong can it be?** The values are accurate to 9 digits.",
        "converged after 3 steps",
        "!\\[x](http://evil/x.png)\n\n**How wrong can it be?** &lt;img src=x> \\[here](http://evil)",
    ]
