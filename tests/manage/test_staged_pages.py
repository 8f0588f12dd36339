"""Pages of jobs of several stages: what each source of a mixture of sources is strongest in, by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

import npmdask
from npmdask.formats.ingest import ingest
from npmdask.latent.fit import fit_independent_components
from npmdask.manage.report import report_of
from npmdask.report import Bars
from npmdask.topics.run import run_topics
from tests.topics.made import a_model, documents_from


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
    report = report_of(tmp_path / "ica")
    assert report.title == "Independent components (ICA) of x.zarr: 2 components"
    assert report.about == "5,000 rows × 4 columns; asked for: 2 components. Run ica."
    cards = [one for part in report.sections for one in part.blocks if isinstance(one, Bars)]
    assert sorted(card.bars[0][0] for card in cards) == ["left ear", "right ear"]
    assert all(abs(card.bars[0][1]) > 0.99 for card in cards)


@pytest.mark.slow
def test_pages_are_titled_by_what_was_found_in_which_data(tmp_path: Path) -> None:
    """Mutants: the name of the store; the right field left out; the documents that the job keeps for the corpus."""
    rng = np.random.default_rng(0)
    for name in ("sst", "slp"):
        np.save(tmp_path / f"{name}.npy", rng.standard_normal((60, 5)))
    given = tmp_path / "sst.npy", tmp_path / "slp.npy"
    npmdask.mca(*given, 1, store=tmp_path / "a")
    npmdask.cca(*(np.load(place) for place in given), 2, store=tmp_path / "b")
    model = a_model(v=30, k=3, seed=2)
    sparse.save_npz(tmp_path / "news.npz", documents_from(model, 200, 40))
    run_topics(tmp_path / "news.npz", 3, store=tmp_path / "c")
    run_topics(documents_from(model, 200, 40), 3, store=tmp_path / "d")
    titles = [report_of(tmp_path / name).title for name in "abcd"]
    assert titles == [
        "Maximum covariance (MCA) of sst.npy and slp.npy: 1 mode",
        "Canonical correlations (CCA) of two fields, b: 2 modes",
        "3 topics of news.npz",
        "3 topics of d",
    ]
    assert report_of(tmp_path / "a").about == (
        "60 rows; 5 columns in the left field, 5 in the right; columns centred; asked for: 1 mode. Run a."
    )
