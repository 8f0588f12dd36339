"""docs/reference/theory.md names every function and every erratum, and nothing that does not exist."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

from npmdask import theory

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reference" / "theory.md").read_text()
TYPES = {"Form", "NoisePrediction", "Prediction", "Predictions"}


def test_functions_of_the_page_exist_and_none_is_left_out() -> None:
    named = set(re.findall(r"`theory\.(\w+)", PAGE))
    assert named == set(theory.__all__) - TYPES


def test_other_names_lead_somewhere() -> None:
    for path in set(re.findall(r"`(npmdask(?:\.\w+)+)", PAGE)):
        try:
            importlib.import_module(path)
        except ModuleNotFoundError:
            owner, name = path.rsplit(".", 1)
            assert hasattr(importlib.import_module(owner), name), path


def test_every_erratum_has_a_test() -> None:
    rows = re.findall(r"^(\d+) \|.*\| (`test.*)$", PAGE, re.M)
    assert [int(number) for number, _ in rows] == list(range(1, 27))
    known = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    for name in re.findall(r"`(test_\w+)`", PAGE):
        assert f"def {name}(" in known, name
