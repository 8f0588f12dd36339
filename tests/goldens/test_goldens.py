"""Runs of every kind that an earlier commit made are read, and those that it was killed in go on to the same bits.

What they are and when they may be made again: README.md in this folder.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from awscrt.checksums import crc32c

from tests.goldens.kinds import KINDS, SOURCES
from tests.goldens.nodes import TOKENS, asked
from tests.goldens.worlds import (
    LATER,
    archive,
    changed_files,
    differences,
    exported,
    far_apart,
    renamed,
    resumed_here,
    simd,
    told,
    unpacked,
    unpacked_sources,
)

FIXTURES = Path(__file__).parent / "fixtures"
MANIFEST = json.loads((FIXTURES / "manifest.json").read_text())
NAMES_LATER = {name: frozenset() if name in MANIFEST["later"] else LATER for name in KINDS}
# Where a repair changed bits on purpose: columns that rounding had put inside of the others are drawn again, here those
# of the last step, which nothing follows (numerics.subspaces.TRIES); and a likely sine, which momentum made too small.
# Canonical correlations have shares of the squared covariance, which they had not.
REPAIRED = {
    "cca": (
        ".json.squared_covariance_",
        "run/result/squared_covariance_fraction.npy is new",
        "run/result/manifest.json.files.squared_covariance_fraction.npy is new",
        "run/result/manifest.json.meta.total_squared_covariance is new",
    ),
    "share-searching": ("run/steps/000001/chain.npy", "run/steps/000001/manifest.json"),
    "private-momentum": tuple(
        f"{place}.statement.predicted_error: 0.0563893" for place in (".json", "run/result/manifest.json.meta")
    ),
}
# Logarithms of intervals: NumPy computes them with what the processor has.
OF_SIMD = ("from-gram-intervals",)
ENDS = [name for name, kind in KINDS.items() if not kind.ends_as]


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All sources, unpacked once."""
    return unpacked_sources(FIXTURES, tmp_path_factory.mktemp("sources"))


@pytest.fixture
def world(request: pytest.FixtureRequest, sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that unpacks a run, finished or interrupted, and makes its folder the working one."""

    def made(name: str, state: str, *, at: str = "here", work: bool = True) -> Path:
        folder = unpacked(archive(FIXTURES, name, state), tmp_path / at)
        (folder / SOURCES).symlink_to(sources)
        if work:
            monkeypatch.chdir(folder)
            monkeypatch.setenv("NPMDASK_NODE_TOKENS", str(folder / TOKENS))
        return folder

    return made


def expected(name: str) -> dict[str, Any]:
    """What was said when the golden was made; but for how many plots a page had, which is no promise."""
    found = dict(json.loads((FIXTURES / f"{name}.json").read_text()))
    found.get("finished", {}).get("report", {}).pop("plots", None)
    return found


@pytest.mark.slow
def test_every_kind_has_its_goldens() -> None:
    """A kind without fixtures and fixtures without a test are both seen."""
    made = {path.name for path in FIXTURES.iterdir() if not path.name.startswith("source-")}
    first = [name for name in KINDS if name not in MANIFEST["later"]]
    wanted = {f"{name}.json" for name in KINDS} | {f"{name}.tar.xz" for name in MANIFEST["later"]} | {"manifest.json"}
    wanted |= {f"{name}.interrupted.tar.gz" for name in first}
    assert made == wanted | {f"{name}.finished.tar.gz" for name in first if name in ENDS}
    assert all(archive(FIXTURES, name, "finished") for name in ENDS)


@pytest.mark.slow
@pytest.mark.parametrize("name", ENDS)
def test_a_finished_run_says_what_it_said(name: str, world: Any, tolerance: float) -> None:
    world(name, "finished")
    found = told(KINDS[name], finished=True)
    assert differences(expected(name)["finished"], found, tolerance, later=NAMES_LATER[name]) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_an_interrupted_run_goes_on_to_the_same_end(name: str, world: Any, tolerance: float) -> None:
    """Also of a private one: its ledger is charged as if nothing had happened, and its key is gone."""
    kind, wanted, later = KINDS[name], expected(name), NAMES_LATER[name]
    if name in OF_SIMD and simd() != MANIFEST["simd"]:
        tolerance = max(tolerance, 1e-6)
    ended, folder = world(kind.ends_as or name, "finished", at="ended", work=False), world(name, "interrupted")
    assert differences(wanted["interrupted"], told(kind, finished=False), tolerance, later=later) == []
    with asked(folder, kind):
        found = resumed_here(kind)
    ledgers = wanted["resumed"].pop("ledger", None), found.pop("ledger", None)
    assert differences(*ledgers, tolerance, later=later) == []
    assert not list(folder.rglob("entropy"))
    reach = math.inf if kind.private and tolerance else tolerance  # noise is drawn for the very bits of a block
    differs = differences(wanted["resumed"], found, reach, later=later)
    differs += changed_files(ended, folder, kind.stores, exact=not tolerance, later=later)
    assert [said for said in differs if not said.startswith(REPAIRED.get(name, ()))] == []
    if reach and "export" in kind.doors:
        here, there = (exported(place / kind.store) for place in (ended, folder))
        assert [name for name in here if far_apart(here[name], there[name], reach)] == []


@pytest.mark.slow
def test_a_changed_name_and_a_changed_bit_are_seen(world: Any) -> None:
    """A key of run.json, a key of what is said, a number, and a bit of a stored basis whose checksums are right."""
    name = "samples"
    kind, wanted = KINDS[name], expected(name)["finished"]
    folder, other = world(name, "finished"), world(name, "finished", at="other", work=False)
    assert changed_files(folder, other, kind.stores) == []

    renamed(other / kind.store, {b'"target_rank"': b'"rank_wanted"'})
    (said,) = {text for text in changed_files(folder, other, kind.stores) if "missing" in text}
    assert said == "run/run.json.algorithm.target_rank is missing"

    renamed(folder / kind.store, {b'"target_rank"': b'"rank_wanted"'})
    found = differences(wanted, told(replace(kind, doors=("inspect",)), finished=True))
    assert ".inspect.algorithm.target_rank is missing" in found and ".inspect.algorithm.rank_wanted is new" in found
    renamed(folder / kind.store, {b'"rank_wanted"': b'"target_rank"'})

    basis = folder / kind.store / "result" / "basis.npy"
    before, array = basis.read_bytes(), np.load(basis)
    array.view(np.uint8).flat[0] ^= 1
    np.save(basis, array)
    old, new = crc32c(before), crc32c(basis.read_bytes())
    renamed(folder / kind.store, {b'"basis.npy": %d' % old: b'"basis.npy": %d' % new})
    found = differences(wanted, told(kind, finished=True))
    assert [text.split(":")[0] for text in found] == [".bits.basis"]
    assert "run/result/basis.npy has other bytes" in changed_files(other, folder, kind.stores)
