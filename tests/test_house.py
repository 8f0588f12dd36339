"""The gates of the house: no number passes its limit, gates see what they claim to see, the map is whole."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from infra import house_gates
from infra.house_gates import Checkout, entries, judged, kept_by_imports, kept_by_trial, loaded_files, measured, needers

ROOT = Path(__file__).resolve().parents[1]
LIMITS = tomllib.loads((ROOT / house_gates.LIMITS).read_text())


@pytest.mark.slow
def test_nothing_is_worse_than_its_limit() -> None:
    """What can be deleted is read off what a plain run loads, in one process; ``make house`` deletes it in copies.

    Mutant: ``import npmdask.prefect`` in npmdask/api.py.
    """
    worse = [str(row) for row in judged(measured(ROOT, trial=False), LIMITS) if row.worse]
    assert not worse, "\n".join(
        [*worse, "`make house` shows all; limits (infra/house_limits.toml) are raised only by an issue that says so"]
    )


@pytest.mark.heavy
def test_what_a_plain_run_loads_is_what_it_needs() -> None:
    """Fails where an import is guarded: then the cheap test above is stricter than deleting the folder."""
    checkout = Checkout(root=ROOT)
    needs = needers(entries(checkout), ())
    assert kept_by_imports(checkout, loaded_files(checkout), needs) == kept_by_trial(checkout, needs)


WORSE: dict[str, tuple[Any, str]] = {
    "loaded lines": ({"loaded": [101, 10]}, "code lines that a plain top_k loads"),
    "loaded files": ({"loaded": [100, 11]}, "files that it loads"),
    "another folder is needed": ({"not": ["old"]}, "folders without which it fails"),
    "fewer can be deleted": ({"deletable": 1}, "folders of 3 that can be deleted"),
    "a large folder grows": ({"sizes": {"large": 51, "small": 20}}, "code lines of large/"),
    "a small folder becomes large": ({"sizes": {"large": 50, "small": 31}}, "code lines of small/"),
    "more code": ({"all": 201}, "code lines of npmdask"),
    "more words": ({"words": 301}, "words of docs"),
    "a core that reaches out": ({"core": [9, 1], "reaches": 1}, "places where it reaches into features"),
}
GOOD: dict[str, Any] = {
    **{"loaded": [100, 10], "core": [0, 0], "reaches": 0, "folders": 3, "deletable": 2, "not": ["kept"]},
    **{"sizes": {"large": 50, "small": 30}, "all": 200, "words": 300, "names": None, "eight_lines": 70},
}
OF_GOOD = {
    **{"loaded_lines": 100, "loaded_files": 10, "deletable": 2, "not": ["kept"], "all": 200, "words": 300},
    **{"folder": 30, "largest": {"large": 50}},
}


@pytest.mark.parametrize("worse", WORSE)
def test_every_gate_closes(worse: str) -> None:
    changed, gate = WORSE[worse]
    assert [row.gate for row in judged(GOOD | changed, OF_GOOD) if row.worse] == [gate]
    rows = judged(GOOD | {"core": [9, 1]}, OF_GOOD)
    assert not [row.gate for row in rows if row.worse or row.better]


def test_a_number_that_became_better_says_what_to_write() -> None:
    better = {"loaded": [99, 9], "not": [], "deletable": 3, "sizes": {"large": 49}, "all": 1, "words": 1}
    rows = judged(GOOD | better, OF_GOOD)
    assert not [row.gate for row in rows if row.worse]
    assert [row.gate for row in rows if row.better] == [row.gate for row in rows[:5]]
    tight = ["99", "9", "0 by kept", "3", "49"]  # of lines and words: an issue's
    assert [str(row).partition("tighten to ")[2] for row in rows if row.better] == tight


# A package with a core and features, in which the lines that a gate must find end in its mark.

PACKAGE = {
    "__init__.py": '''"""A package."""
def top_k(*data, **how):
    """Run."""
    import npmdask.plain.sums
    try:
        import npmdask.guarded.more
    except ImportError:
        pass
''',
    "plain/sums.py": "total = sum  # code\n",
    "guarded/more.py": '"""More."""\n\n# no code\n',
    "weights/aspect.py": '''
MASS = 1
class Weights:
    """Rows count unequally."""
    def heaviest(self): ...
def heavy(rows): ...
def _light(rows): ...
def shared(): ...
''',
    "dp_pca/__init__.py": "",
    "dp_pca/route.py": '__all__ = ["Route", "ORACLES"]\nclass Route: ...\nclass Inner: ...\nORACLES = {}\n',
    "core/__init__.py": "",
    "core/features.py": """
from dataclasses import dataclass, field
@dataclass(frozen=True)
class Feature:
    name: str
    aspects: dict[str, str] = field(default_factory=dict)
    routes: dict[str, str] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
FEATURES = (
    Feature("weights", {"row weights": "npmdask.weights.aspect:Weights"}),
    Feature(name="k-dp-pca", routes={"k-dp-pca": "npmdask.dp_pca.route:Route"}, needs=("weights",)),
)
""",
    "core/loop.py": '''"""The loop: Weights, heavy rows and "k-dp-pca" in words."""
# Weights, Route
from numpy import linalg
from npmdask.core.base import shared
from npmdask.weights.aspect import Weights  # reaches weights
from npmdask import dp_pca  # reaches
import npmdask.plain.sums  # reaches
def step(block, more=None):
    from ..weights import aspect  # reaches
    from . import base
    if block.kind == "k-dp-pca":  # k-dp-pca
        return base.Route(block)  # k-dp-pca
    if block.kind == "row weights" or block.heaviest:  # weights
        return "no row weights", block.Inner, "weights", MASS, _light
    return heavy(block, shared())  # weights
LATER = "npmdask.dp_pca.route:Route"  # reaches
''',
    "core/base.py": "def shared(): ...\n",
}


@pytest.fixture
def small(tmp_path: Path) -> Checkout:
    """A checkout of PACKAGE."""
    for name, text in PACKAGE.items():
        path = tmp_path / "npmdask" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Checkout(root=tmp_path)


def marked(mark: str) -> list[str]:
    """The lines of the loop that end in a mark."""
    lines = enumerate(PACKAGE["core/loop.py"].splitlines(), 1)
    return [f"npmdask/core/loop.py:{number}" for number, line in lines if mark in line.partition("  # ")[2].split()]


@pytest.mark.slow
def test_lines_that_name_a_feature_are_found(small: Checkout) -> None:
    """What features export, and keys of their tables; not words of texts, nor what the core has itself."""
    features = entries(small)
    assert [(one.name, sorted(one.folders)) for one in features] == [("weights", ["weights"]), ("k-dp-pca", ["dp_pca"])]
    found = house_gates.names(small, features)
    assert found == {"weights": marked("weights"), "k-dp-pca": marked("k-dp-pca")}
    assert len(found["weights"]) == 3 and len(found["k-dp-pca"]) == 2
    small.features.unlink()
    assert measured(small.root, trial=False)["names"] is None


def test_places_where_a_core_reaches_into_a_feature_are_found(small: Checkout) -> None:
    assert sorted({place.split()[0] for place in house_gates.reaches(small)}) == sorted(marked("reaches"))
    assert len(marked("reaches")) == 5


@pytest.mark.slow
def test_folders_are_really_deleted(small: Checkout) -> None:
    """With what needs them; a guarded import is where deleting and loading differ, on the safe side."""
    needs = needers(entries(small), ())
    assert needs == {"weights": ["dp_pca"]}
    assert kept_by_trial(small, needs) == ["plain"]
    loaded = loaded_files(small)
    assert kept_by_imports(small, loaded, needs) == ["guarded", "plain"]
    given = needers(entries(small), ["dp_pca=plain"])
    assert kept_by_trial(small, given) == ["dp_pca", "plain", "weights"] and len(small.folders()) == 4
    found = measured(small.root, trial=False)
    assert (found["loaded"], found["largest"][0]) == ([7, 3], (6, "weights"))


def test_the_eight_files_are_there(tmp_path: Path) -> None:
    for name in house_gates.EIGHT:
        path = tmp_path / "npmdask" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("one\n\nthree\n")
    checkout = Checkout(root=tmp_path)
    assert list(house_gates.eight_files(checkout).values()) == [3] * 8
    (tmp_path / "npmdask/api.py").unlink()
    found = house_gates.eight_files(checkout)
    assert (found["core/runs/loop.py"], found["api.py"], len(found)) == (3, None, 8)
    assert None not in house_gates.eight_files(Checkout(root=ROOT)).values()


@pytest.mark.slow
def test_a_feature_is_a_folder_of_its_name() -> None:
    """Also one that has no table, but needs others. Mutant: ``dict.fromkeys`` whose keys are not read."""
    checkout = Checkout(root=ROOT)
    found = {one.name: one for one in entries(checkout)}
    assert {*checkout.folders()} == found.keys() and "s3" in found["remote"].keys
