"""Pages and files say nothing of the rows of a store with a table that withholds its data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import npmdask
from npmdask.core import features
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.features import Feature
from npmdask.manage.data_report import about
from npmdask.manage.matrix import _explained_arrays
from npmdask.manage.report import export
from npmdask.manage.row_scores import _refusal

ROWS = np.random.default_rng(0).standard_normal((60, 5))


@pytest.mark.parametrize("table", ["nodes", "vault", ""])
def test_rows_are_told_of_public_stores_only(table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutants: a door without is_public; scores refused whatever the store."""
    monkeypatch.setattr(features, "from_outside", lambda: (Feature(name="vault", withheld=("vault",)),))
    npmdask.top_k(ROWS, 2, kind="samples", center=True, store=tmp_path / "run")
    with RunStore(tmp_path / "run") as held:
        spec = (held.read_spec() or {}) | ({table: {}} if table else {})
        held.write_spec(spec)
    assert bool(_explained_arrays(RunStore(tmp_path / "run"))) == (not table)
    assert _refusal(spec).startswith("scores are data of single rows") == bool(table)
    assert ("60 rows" in about(RunStore(tmp_path / "run"), spec)) == (not table)
    export(tmp_path / "run", tmp_path / "answer.nc")
    with xr.open_dataset(tmp_path / "answer.nc") as found:
        assert ("rows" in found.attrs) == (not table)
