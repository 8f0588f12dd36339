"""Oracles draw noise: its keys are the same in every run of the tests."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _keys(seeded_keys: None) -> None:
    """For every test here."""
