"""A run without a store leaves nothing behind, and waits for no disk."""

from __future__ import annotations

import copy
import gc
import os
import pickle
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


def test_a_copy_and_a_pickle_take_the_left_vectors_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And their folders are gone with them; of a run with a store they name that.

    Mutants: the folder of the first solution is shared; its files are not taken; ``store`` stays that of the first.
    """
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    x = np.random.default_rng(0).standard_normal((60, 12))
    first = npmdask.top_k(x, 3)
    left, old = first.left_basis(), first.store
    alike = [copy.copy(first), copy.deepcopy(first), pickle.loads(pickle.dumps(first))]  # noqa: S301
    assert len({old, *(each.store for each in alike)}) == 3 and alike[0].store == old
    del first
    held = pickle.dumps(alike.pop(0))
    gc.collect()
    assert not Path(old).exists() and len(list((tmp_path / "temporary").iterdir())) == 2
    alike.append(pickle.loads(held))  # noqa: S301
    for each in alike:
        np.testing.assert_array_equal(each.left_basis(), left)
        np.testing.assert_allclose(each.left_basis() * each.values @ each.basis.T, x @ each.basis @ each.basis.T)
    del each
    alike.clear()
    gc.collect()
    assert not list((tmp_path / "temporary").iterdir())
    kept = npmdask.top_k(x, 3, store=tmp_path / "kept")
    again = pickle.loads(pickle.dumps(kept))  # noqa: S301
    assert again.store == kept.store
    np.testing.assert_array_equal(again.left_basis(), left)
