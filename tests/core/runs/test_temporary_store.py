"""A run without a store leaves nothing behind, and waits for no disk."""

from __future__ import annotations

import gc
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npmdask
from npmdask.core.storage.bundle import UNKEPT
from npmdask.errors import BadInputError


@pytest.mark.parametrize("kind", ["samples", "matrix"])
def test_nothing_is_flushed_nor_left(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a store all is. Mutants: UNKEPT without the folder, or never without it again; what an error leaves stays."""
    flushed, fsync, others = list[int](), os.fsync, UNKEPT.copy()  # of solutions that are still held

    def counted(descriptor: int) -> None:
        flushed.append(descriptor)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", counted)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    x = np.random.default_rng(0).standard_normal((60, 12))
    found: Any = npmdask.top_k(x, 3, kind=kind)
    assert not flushed
    if kind == "matrix":
        assert found.left_basis().shape == (60, 3)
        del found
        gc.collect()
    with pytest.raises(BadInputError, match="target_rank"):
        npmdask.top_k(x, 30, kind=kind)
    assert not list((tmp_path / "temporary").iterdir()) and UNKEPT <= others
    npmdask.top_k(x, 3, kind=kind, store=tmp_path / "kept")
    assert flushed
    x[7, 3] = np.nan
    with pytest.raises(BadInputError, match="finite") as error:  # a traceback that is kept keeps what a frame refers to
        npmdask.top_k(x, 3, kind=kind)
    assert error.tb and not list((tmp_path / "temporary").iterdir())
