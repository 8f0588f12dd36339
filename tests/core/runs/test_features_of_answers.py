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
from npmdask.core.checkpoint.store import RunStore
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


def test_every_method_of_the_table_is_one_of_the_class() -> None:
    named = {key for key in features.keys("methods") if key.startswith("Solution.")}
    assert named == {f"Solution.{method}" for method in ASKED}
    assert all(callable(features.found("methods", key)) for key in features.keys("methods"))


def test_an_answer_does_without_notes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Component 1 is the mean of what is not centred; without a note of that all else is the same."""
    solved(tmp_path / "noted", kind="matrix")
    kept = tuple(gone(one) if one.name == "advice" else one for one in features.FEATURES)
    monkeypatch.setattr(features, "FEATURES", kept)
    solved(tmp_path / "plain", kind="matrix")
    noted, plain = (RunStore(tmp_path / name).read_part("result") for name in ("noted", "plain"))
    assert noted is not None and plain is not None
    assert len(noted[1].pop("notes")) == 1 and noted[1] == plain[1]
    assert all(array.tobytes() == plain[0][name].tobytes() for name, array in noted[0].items())
