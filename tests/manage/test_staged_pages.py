"""Pages of jobs of several stages: what each source of a mixture of sources is strongest in, by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from npmdask.manage.report import report_of
from npmdask.models.latent import fit_independent_components
from npmdask.report import Bars
from npmdask.storage.ingest import ingest


@pytest.mark.slow
def test_independent_components_are_named_by_their_strongest_columns(tmp_path: Path) -> None:
    """Mutants: rows of the mixing for its columns; sizes of components left in; no names."""
    rng = np.random.default_rng(0)
    sources = rng.uniform(-1, 1, (5000, 2))
    mixed = sources @ np.array([[9.0, 0.1, 0.0, 0.2], [0.0, 0.0, 2.0, 0.1]])
    names = ["left ear", "b", "right ear", "d"]
    pd.DataFrame(mixed + 0.01 * rng.standard_normal(mixed.shape), columns=names).to_parquet(tmp_path / "x.parquet")
    ingest(tmp_path / "x.parquet", tmp_path / "x.zarr")
    fit_independent_components(tmp_path / "x.zarr", 2, store=tmp_path / "ica")
    cards = [one for part in report_of(tmp_path / "ica").sections for one in part.blocks if isinstance(one, Bars)]
    assert sorted(card.bars[0][0] for card in cards) == ["left ear", "right ear"]
    assert all(abs(card.bars[0][1]) > 0.99 for card in cards)
