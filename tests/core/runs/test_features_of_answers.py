"""What features tell of a finished answer: asked of tables, refused by name where one is gone; nothing else fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npmdask
from npmdask.core import features
from npmdask.errors import RefusedError

ASKED: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "component_counts": ("advice", lambda solution: solution.component_counts()),
    "north_errors": ("advice", lambda solution: solution.north_errors()),
    "mixes_with_next": ("advice", lambda solution: solution.mixes_with_next()),
    "rotated": ("rotations", lambda solution: solution.rotated()),
    "aligned": ("rotations", lambda solution: solution.aligned(solution)),
    "to_anndata": ("estimators", lambda solution: solution.to_anndata(None)),
}


def solved(store: Path | None = None, **how: Any) -> npmdask.Solution:
    rows = np.random.default_rng(0).standard_normal((60, 5)) * [5, 3, 1, 1, 1] + 40
    return npmdask.top_k(rows, 2, store=store, **how)


def gone(feature: features.Feature) -> features.Feature:
    """The same feature as it is where its folder was deleted."""
    tables = {
        field.name: getattr(feature, field.name) for field in fields(feature) if field.name not in ("name", "needs")
    }
    return replace(feature, **{name: dict.fromkeys(table, "npmdask.gone:it") for name, table in tables.items()})


@pytest.mark.parametrize("method", ASKED)
def test_a_method_of_a_feature_that_is_gone_is_refused_by_its_name(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: ``found`` instead of ``required`` in core/runs/postprocessing.py."""
    solution, (owner, ask) = solved(kind="samples", center=True), ASKED[method]
    kept = tuple(gone(one) if one.name == owner else one for one in features.FEATURES)
    monkeypatch.setattr(features, "FEATURES", kept)
    with pytest.raises(RefusedError, match=f"Solution.{method}.*{owner}"):
        ask(solution)
