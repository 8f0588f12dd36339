"""Fetchers do what the core asks for."""

from __future__ import annotations

import zarr

from npmdask.core import features
from npmdask.core.storage.chunk_access import Fetcher, fetcher_of


def test_what_fetches_does_all_that_the_core_asks_for() -> None:
    asked = [name for name in (*vars(Fetcher), *Fetcher.__annotations__) if not name.startswith("_")]
    for key in ("zarr", "icechunk"):
        assert all(hasattr(features.found("fetchers", key), name) for name in asked)
    for store in ({}, zarr.storage.MemoryStore()):
        assert fetcher_of(zarr.create_array(store, shape=(2, 2), dtype="f8")) is None
