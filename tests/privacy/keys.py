"""Noise is the same in every run of the tests: a conftest that imports ``seeded_keys`` has it for all of its folder."""

from __future__ import annotations

import os
import zlib
from typing import Any

import numpy as np
import pytest


class SeededOs:
    """The module ``os`` with random bytes that are the same in every run."""

    def __init__(self, seed: int) -> None:
        self.urandom = np.random.default_rng(seed).bytes

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)


@pytest.fixture(autouse=True)
def seeded_keys(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Secret keys of this process follow from the name of the test: what is said of noise must not fail by chance."""
    monkeypatch.setattr("npmdask.privacy.mechanisms.noise_key.os", SeededOs(zlib.crc32(request.node.name.encode())))
