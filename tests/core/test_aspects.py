"""Aspects of other packages: seen, kept, compared, refused by name, and missed where their package is gone."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import pytest

import npmdask
from npmdask.core import features
from npmdask.core.aspects import Aspect, Extent, Reading, asked, ordered, seen
from npmdask.core.features import Feature
from npmdask.core.operators.view import AS_STORED, View
from npmdask.core.runs.build import make_problem
from npmdask.core.runs.driver import solve
from npmdask.core.runs.problem import Request
from npmdask.core.runs.resources import Resources
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError, RefusedError
from npmdask.missing.rules import find_gaps
from npmdask.privacy.request import Privacy
from npmdask.weights.aspect import Weights

RNG = np.random.default_rng(0)
ROWS, FIRST = RNG.standard_normal((90, 6)) * np.arange(6.0, 0.0, -1.0), 50
WORTH = RNG.uniform(0.1, 2, 90)


@dataclass(frozen=True, kw_only=True)
class RowLimit(Aspect):
    """Only the first rows count."""

    place: ClassVar[str] = "row_limit"
    noun: ClassVar[str] = "a limit of rows"

    first: int

    def view(self, view: View, extent: Extent) -> View:
        return view.weighing((np.arange(extent.rows) < self.first).astype(float), None)

    def spec(self) -> dict[str, dict[str, Any]]:
        return {self.place: {"first": self.first}}

    @classmethod
    def restored(cls, spec: dict[str, Any], arrays: dict[str, np.ndarray]) -> Self:
        return cls(**spec[cls.place])

    def options(self, side: str = "") -> list[str]:
        return [] if side == "columns" else [self.place]


THEIRS = Feature(name="theirs", aspects={"row_limit": "tests.core.test_aspects:RowLimit"})


@pytest.fixture
def theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "from_outside", lambda: (THEIRS,))


@pytest.fixture
def limited(theirs: None, tmp_path: Path) -> Path:
    """A finished run of the first rows."""
    found(tmp_path / "run", RowLimit(first=FIRST))
    return tmp_path / "run"


def found(store: Path | None, *aspects: Aspect | None, **how: Any) -> Any:
    if store is not None and not (store.parent / "x.npy").exists():
        np.save(store.parent / "x.npy", ROWS)
    source = open_source(ROWS if store is None else store.parent / "x.npy", "samples")
    request = Request(target_rank=2, center=True, tol=1e-12, aspects=aspects, **how)
    return solve(make_problem(source, request), store, Resources())


@pytest.mark.usefixtures("theirs")
@pytest.mark.parametrize("algorithm", ["krylov", "gram"])
def test_views_multiply(algorithm: str) -> None:
    """Mutant: ``View.weighing`` that puts the new weights in the place of the old ones."""
    both = found(None, Weights(rows=WORTH), RowLimit(first=FIRST), algorithm=algorithm)
    fewer = npmdask.top_k(
        ROWS[:FIRST], 2, kind="samples", center=True, tol=1e-12, row_weights=WORTH[:FIRST], algorithm=algorithm
    )
    np.testing.assert_allclose(both.values, fewer.values, rtol=1e-9)
    one, two = RowLimit(first=FIRST), Weights(rows=WORTH)
    views = [seen(each, Extent(90), AS_STORED).row_weight for each in ([one, two], [two, one])]
    assert views[0].tobytes() == views[1].tobytes()  # type: ignore[union-attr]
    assert ordered((one, None, two)) == ordered((two, one))


@pytest.mark.usefixtures("theirs")
def test_it_is_asked_for_by_a_person() -> None:
    """Beside what keywords ask for."""
    how: dict[str, Any] = {"kind": "samples", "center": True, "tol": 1e-12}
    both = npmdask.top_k(ROWS, 2, row_weights=WORTH, aspects=[RowLimit(first=FIRST)], **how)
    fewer = npmdask.top_k(ROWS[:FIRST], 2, row_weights=WORTH[:FIRST], **how)
    np.testing.assert_allclose(both.values, fewer.values, rtol=1e-9)


def test_it_is_kept_compared_and_missed(limited: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its package a run would be another question. Mutant: no ``version.aspects``."""
    spec = json.loads((limited / "run.json").read_text())
    assert spec["row_limit"] == {"first": FIRST} and spec["version"]["aspects"] == ["row_limit"]
    first = npmdask.resume(limited)
    assert first.data_passes == 0 and first.analysed.row_weight == FIRST
    np.testing.assert_allclose(
        first.values, npmdask.top_k(ROWS[:FIRST], 2, kind="samples", center=True, tol=1e-12).values
    )
    for other in (None, RowLimit(first=FIRST - 1)):
        with pytest.raises(RefusedError, match=r"row_limit\.first"):
            found(limited, other)
    monkeypatch.setattr(features, "from_outside", lambda: ())
    with pytest.raises(RefusedError, match="'row_limit' needs the feature"):
        npmdask.resume(limited)
    with pytest.raises(BadInputError, match="no aspect that npmdask knows as 'row_limit'"):
        found(None, RowLimit(first=FIRST))


@pytest.mark.usefixtures("theirs")
def test_what_does_not_go_with_it_says_its_name() -> None:
    gappy, limit = np.where(RNG.random(ROWS.shape) < 0.1, np.nan, ROWS), RowLimit(first=FIRST)
    request = Request(target_rank=2, center=True, aspects=(limit, find_gaps(missing="pairwise")))
    with pytest.raises(RefusedError, match="row_limit with missing = 'pairwise'"):
        make_problem(open_source(gappy, "samples"), request)
    promise = Privacy(epsilon=1.0, delta=1e-6, neighboring_relation="record_replace", clip_norm=1.0, ledger="x")
    with pytest.raises(RefusedError, match="a limit of rows is not for private runs"):
        make_problem(
            open_source(ROWS, "samples"), Request(target_rank=2, max_steps=2, privacy=promise, aspects=(limit,))
        )
    with pytest.raises(BadInputError, match=r"aspects = \[3\]: give objects of classes that are"):
        npmdask.top_k(ROWS, 2, aspects=[3])  # type: ignore[list-item]
    with pytest.raises(BadInputError, match="give one of each"):
        ordered((limit, limit))


def test_a_reading_says_how_other_rows_are_read() -> None:
    """Scores of rows that are read otherwise would be wrong, and nothing would show it."""

    class Silent(Reading):
        place = "silent"

    with pytest.raises(TypeError, match="scored"):
        Silent()  # type: ignore[abstract]


def test_nothing_is_made_of_keywords_that_ask_for_nothing() -> None:
    """Of defaults, given or left out. ``None`` is no rule for missing values, and is refused as such."""
    source = open_source(ROWS, "samples")
    usual = {"missing": "refuse", "missing_fill": None, "row_weights": None}
    assert asked(source, None, usual) == asked(source, None, {}) == ()
    (weights,) = asked(source, None, usual | {"row_weights": WORTH})
    (gaps,) = asked(source, None, {"missing": "mean"})
    assert isinstance(weights, Weights) and gaps.route == "" and gaps.spec() == {"data": {"missing": "mean"}}
    with pytest.raises(BadInputError, match="missing = None"):
        npmdask.top_k(ROWS, 2, missing=None)  # type: ignore[arg-type]
