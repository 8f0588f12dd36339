"""Documents run as tests, each in an empty folder of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

collect_ignore = ["tutorial.md"]  # tests/test_readme.py runs it in a process of its own: it sets a limit of memory


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work where nothing can be broken."""
    monkeypatch.chdir(tmp_path)
