"""Who opens data, asked of tables: a type finds who knows it, and of a feature that is gone its name is said."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import zarr

import npmdask
from npmdask.core import features
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.features import FEATURES, Feature
from npmdask.core.storage.paths import NOTE, cache_folder
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError, RefusedError

TABLES = [one.name for one in fields(Feature) if one.name not in ("name", "needs", "withheld")]


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Take a feature away, as if its folder were deleted."""

    def taken(name: str) -> None:
        gone = {
            target
            for one in FEATURES
            if one.name == name
            for table in TABLES
            for target in getattr(one, table).values()
        }
        there = features.is_there
        monkeypatch.setattr(features, "is_there", lambda target: target not in gone and there(target))
        monkeypatch.setattr(features, "_OF_TYPE", {})

    return taken


def test_a_type_finds_who_knows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = Feature(name="mine", sources={"pandas": "builtins:dict", "pandas.core.frame": "builtins:list"})
    monkeypatch.setattr(features, "from_outside", lambda: (mine,))
    monkeypatch.setattr(features, "_OF_TYPE", {})

    class Kind(pd.DataFrame):
        """A type of another package."""

    assert features.of_type("sources", Kind) is list
    assert features.of_type("sources", pd.Series) is dict
    assert features.of_type("sources", sp.csr_array) is features.found("sources", "object")
    assert features.of_type("fetchers", ValueError) is None


@pytest.mark.slow
def test_data_of_a_feature_that_is_gone(without: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.random.default_rng(0).standard_normal((30, 5))
    np.save(tmp_path / "x.npy", rows)
    zarr.save_array(tmp_path / "x.zarr", rows)
    for feature in ("containers", "formats", "remote", "symmetric", "complex", "gram", "cluster", "gpu"):
        without(feature)
    npmdask.top_k(rows, 2, kind="samples")
    npmdask.top_k(tmp_path / "x.zarr", 2, kind="samples")
    with pytest.raises(RefusedError, match="the feature 'containers'"):
        open_source(pd.DataFrame(rows))
    with pytest.raises(BadInputError, match="not a Zarr store"):
        open_source(tmp_path / "x.npy")
    with pytest.raises(BadInputError, match="must be on this machine"):
        open_source("s3://bucket/x.zarr")
    with pytest.raises(RefusedError, match="the feature 'symmetric'"):
        open_source(np.zeros((3, 3, 3)), kind="tensor")
    with pytest.raises(RefusedError, match="the feature 'complex'"):
        open_source(rows * 1j, of_complex=True)
    with pytest.raises(RefusedError, match="the feature 'cluster'"):
        npmdask.top_k(rows, 2, kind="samples", workers=1)
    with pytest.raises(RefusedError, match="the feature 'gpu'"):
        npmdask.top_k(rows, 2, kind="samples", device="cuda")
    with pytest.raises(BadInputError, match="must be on this machine"):
        RunStore("s3://bucket/run")
    monkeypatch.setenv("NPMDASK_CACHE", str(tmp_path / "cache"))
    copy = cache_folder() / "runs" / "0" / "run"
    copy.mkdir(parents=True)
    (copy.parent / NOTE).write_text('{"url": "s3://bucket/run", "commit": null, "token": "", "files": {}}')
    with pytest.raises(RefusedError, match="the feature 'remote'"):
        RunStore(copy)
