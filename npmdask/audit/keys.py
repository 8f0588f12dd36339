"""Secret keys for an audit: every run has noise that no other run has."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from npmdask.privacy.mechanisms.noise_key import Entropy


@contextmanager
def fresh_keys(count: int) -> Iterator[list[Entropy]]:
    """Fresh secret keys; bound to different names the one in the file gives unrelated streams."""
    with tempfile.TemporaryDirectory(prefix="npmdask-audit-") as folder:
        path = Path(folder) / "key"
        first = Entropy.create(path)
        keys = [Entropy.open(path, bound_to=f"run {number}") for number in range(count)]
        yield keys
        first.destroy()
