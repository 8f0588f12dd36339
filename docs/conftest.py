"""Documents run as tests, each in an empty folder of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

# tests/test_readme.py runs them in processes of their own: they set limits of memory.
collect_ignore = ["howto/lazy.md", "tutorials/from-a-file.md"]


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work where nothing can be broken."""
    monkeypatch.chdir(tmp_path)
