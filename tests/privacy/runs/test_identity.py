"""Noise belongs to the data that it was drawn for: no other bytes get it, whatever is forged or put back."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import zarr

from npmdask.api import solve, top_k
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.runs.observers import Observer
from npmdask.core.runs.resources import Resources
from npmdask.core.runs.restore import bind
from npmdask.core.storage.checksum import fingerprint
from npmdask.core.storage.readers.dense import ReadStats
from npmdask.core.storage.source import Source, open_source
from npmdask.errors import BadInputError, BudgetError, DataWarning, RefusedError
from npmdask.formats.ingest import ingest
from npmdask.ledger.granting import grant_source
from npmdask.privacy.account import PLACE, Account
from npmdask.privacy.mechanisms import Entropy
from npmdask.privacy.perturb import perturb
from tests.conftest import same_bytes
from tests.privacy.runs.conftest import THREE_RUNS, World, make_world, of_tensor, planted, records
from tests.privacy.runs.forgery import forge

CHANGED = "not the one that was ingested: its checksum agrees"


class Stop(Observer):
    """Leaves the run after so many steps, as a kill would."""

    def __init__(self, after: int) -> None:
        self.after = after

    def on_step(self, step: Any) -> None:
        if step.number == self.after:
            raise KeyboardInterrupt


def stopped(world: World, after: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        solve(world.problem(), world.folder / "run", Resources(), Stop(after))


def snapshot(world: World) -> None:
    for name in ("run", "ledger.sqlite", "x.zarr"):
        source, target = world.folder / name, world.folder / "kept" / name
        target.parent.mkdir(exist_ok=True)
        shutil.copytree(source, target) if source.is_dir() else shutil.copy2(source, target)


def put_back(world: World, *names: str) -> None:
    for name in names:
        target = world.folder / name
        shutil.rmtree(target) if target.is_dir() else target.unlink()
        kept = world.folder / "kept" / name
        shutil.copytree(kept, target) if kept.is_dir() else shutil.copy2(kept, target)


@pytest.mark.slow
def test_other_data_with_the_same_checksums_are_refused_after_a_restored_snapshot(world: World) -> None:
    """The attack of the review: with both answers the noise cancelled, and one record was left."""
    stopped(world, 1)
    snapshot(world)
    solve(world.problem(), world.folder / "run", Resources())
    put_back(world, "run", "ledger.sqlite")
    before = open_source(world.data, exact=False).fingerprint
    forge(world.data)
    assert open_source(world.data, exact=False).fingerprint == before, "the checksums and the record are as they were"
    with pytest.raises(BadInputError, match=CHANGED):
        solve(world.problem(), world.folder / "run", Resources())
    assert not (world.folder / "run" / "result").exists() and len(world.ledger.status("people").runs[0].committed) == 1


@pytest.mark.slow
def test_a_snapshot_that_is_put_back_gives_the_same_release(world: World) -> None:
    stopped(world, 1)
    snapshot(world)
    solve(world.problem(), world.folder / "run", Resources())
    shutil.copytree(world.folder / "run", world.folder / "done")
    put_back(world, "run", "ledger.sqlite")
    solve(world.problem(), world.folder / "run", Resources())
    same_bytes(world.folder / "run", world.folder / "done", parts=("steps", "result"))


@pytest.mark.slow
def test_a_run_that_is_put_back_meets_a_newer_ledger_with_the_same_release(world: World) -> None:
    stopped(world, 1)
    snapshot(world)
    solve(world.problem(), world.folder / "run", Resources())
    shutil.copytree(world.folder / "run", world.folder / "done")
    put_back(world, "run")
    solve(world.problem(), world.folder / "run", Resources())
    same_bytes(world.folder / "run", world.folder / "done", parts=("steps", "result"))
    assert len(world.ledger.status("people").runs) == 1


@pytest.mark.slow
def test_a_ledger_that_is_older_than_the_run_is_refused(world: World) -> None:
    stopped(world, 1)
    snapshot(world)
    stopped(world, 2)
    put_back(world, "ledger.sqlite")
    entries = len(world.ledger.entries())
    with pytest.raises(RefusedError, match="an older copy of it was put back"):
        solve(world.problem(), world.folder / "run", Resources())
    assert len(world.ledger.entries()) == entries, "nothing is written to a ledger that has forgotten something"


@pytest.mark.slow
def test_another_ledger_is_refused_too(world: World, tmp_path: Path) -> None:
    stopped(world, 1)
    other = make_world(tmp_path / "other", records(4000))
    for run in ("one", "two", "three"):
        other.solve(run, other.problem({"epsilon": 0.3}))
    shutil.copy2(other.folder / "ledger.sqlite", world.folder / "ledger.sqlite")
    with pytest.raises(RefusedError, match="not the one that this run has written to"):
        solve(world.problem(), world.folder / "run", Resources())


@pytest.mark.slow
def test_a_run_of_before_has_no_place_in_the_ledger_and_goes_on(world: World) -> None:
    stopped(world, 1)
    (world.folder / "run" / PLACE).unlink()
    assert solve(world.problem(), world.folder / "run", Resources()).answered
    seen = json.loads((world.folder / "run" / PLACE).read_text())
    world.ledger.require_holds(seen["entries"], seen["head"])
    assert (world.folder / "run" / PLACE).stat().st_mode & 0o077 == 0


@pytest.mark.slow
def test_forged_digests_are_other_data(world: World) -> None:
    """A forger of the record as well has other data to the ledger, and other noise from the same key."""
    stopped(world, 1)
    before, key = open_source(world.data, exact=False).fingerprint, world.folder / "run" / "entropy"
    same, kept = Entropy.open(key, bound_to=before), Entropy.open(key, bound_to=before).keystream("noise").read(64)
    x = records(4000)
    x[0] = 1.0
    np.save(world.folder / "y.npy", x)
    shutil.rmtree(world.data)
    ingest(world.folder / "y.npy", world.data, kind="samples", chunks=(64, 12))
    after = open_source(world.data, exact=False).fingerprint
    assert same.keystream("noise").read(64) == kept != Entropy.open(key, bound_to=after).keystream("noise").read(64)
    with pytest.raises(BudgetError, match="the data are not those"):
        world.solve("another")
    with pytest.raises(RefusedError, match=r"data\.fingerprint"):
        solve(world.problem(), world.folder / "run", Resources())


@pytest.mark.slow
def test_the_noise_of_a_run_follows_the_data(world: World) -> None:
    """One key, one run, one ledger: an account of other data gets other noise from them."""
    problem, folder = world.problem(), world.folder / "run"
    with RunStore(folder, private=True) as held:
        bind(problem, held, Resources())
        keys = []
        for source in (problem.source, problem.source, replace(problem.source, fingerprint="f" * 64)):
            kept = Account(problem.private.privacy, source, problem.mechanism, held)
            keys.append(kept._key(begun=False).commitment)
    assert keys[0] == keys[1] != keys[2]


@pytest.mark.slow
def test_data_that_change_between_two_passes_are_found(world: World) -> None:
    class Change(Observer):
        def on_step(self, step: Any) -> None:
            if step.number == 1:
                forge(world.data)

    with pytest.raises(BadInputError, match=CHANGED):
        solve(world.problem(), world.folder / "run", Resources(), Change())
    assert len(world.ledger.status("people").runs[0].committed) == 1


# Every kind


def symmetric_tensor(d: int) -> np.ndarray:
    t = np.random.default_rng(0).standard_normal((d, d, d))
    total: np.ndarray = sum(t.transpose(p) for p in permutations(range(3)))  # type: ignore[assignment]
    return total


RNG = np.random.default_rng(0)
GRAM = RNG.standard_normal((40, 40))
KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "samples": (RNG.standard_normal((300, 20)), {"kind": "samples", "chunks": (64, 20)}),
    "cut rows": (RNG.standard_normal((300, 20)), {"kind": "samples", "chunks": (64, 7)}),
    "matrix": (RNG.standard_normal((300, 20)), {"kind": "matrix", "chunks": (64, 20)}),
    "compressed": (RNG.integers(0, 9, (300, 20)), {"kind": "samples", "chunks": (64, 20)}),
    "matrices": (RNG.standard_normal((90, 4, 4)), {"kind": "matrices"}),
    "packed": (GRAM + GRAM.T, {"kind": "symmetric", "chunks": (16, 16)}),
    "full": (GRAM + GRAM.T, {"kind": "symmetric", "layout": "full", "chunks": (16, 16)}),
    "tensor": (symmetric_tensor(12), {"kind": "tensor", "chunks": (6, 6, 6)}),
}


def read_all(source: Source) -> None:
    """Every chunk, as a pass reads it."""
    reader: Any = source.reader
    units = range(getattr(reader, "units", getattr(reader, "grid", (0,))[0] if source.kind != "tensor" else 0))
    if source.kind in ("sparse", "tensor"):
        for _ in reader.blocks(units, ReadStats()):
            pass
    else:
        for unit in units:
            for _ in reader.tiles(unit, ReadStats()):
                pass


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_a_forged_chunk_of_every_kind_is_found(tmp_path: Path, name: str) -> None:
    x, options = KINDS[name]
    np.save(tmp_path / "x.npy", x)
    ingest(tmp_path / "x.npy", tmp_path / "x.zarr", **options)
    read_all(open_source(tmp_path / "x.zarr", exact=False).held_to_digests())
    forge(tmp_path / "x.zarr")
    read_all(open_source(tmp_path / "x.zarr", exact=False))  # the checksums agree
    with pytest.raises(BadInputError, match=CHANGED):
        read_all(open_source(tmp_path / "x.zarr", exact=False).held_to_digests())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["data", "indices", "indptr"])
def test_a_forged_chunk_of_a_sparse_matrix_is_found(tmp_path: Path, name: str) -> None:
    sp.save_npz(tmp_path / "x.npz", sp.random(400, 64, 0.1, "csr", random_state=0))
    ingest(tmp_path / "x.npz", tmp_path / "x.zarr")
    whole = open_source(tmp_path / "x.zarr", exact=False)
    held = whole.held_to_digests()
    read_all(held)
    if name == "data":
        forge(tmp_path / "x.zarr", "X/data")
        read_all(open_source(tmp_path / "x.zarr", exact=False))
    else:  # any other values: what can be forged here, by brute force, is what must be caught by the same comparison
        array: Any = zarr.open_group(tmp_path / "x.zarr", mode="r+")[f"X/{name}"]
        values = array[...]
        values[100:102] = values[101:99:-1] if name == "indices" else values[100] + np.array([1, 1])
        array[...] = values
    with pytest.raises(BadInputError, match=CHANGED if name != "indices" else "corrupt|not the one"):
        read_all(held)
    if name == "indptr":
        with pytest.raises(BadInputError):
            open_source(tmp_path / "x.zarr", exact=False).held_to_digests()


@pytest.mark.slow
def test_a_forged_tensor_is_not_copied(tmp_path: Path) -> None:
    world = of_tensor(tmp_path / "world", planted())
    forge(world.data)
    with pytest.raises(BadInputError, match=CHANGED):
        perturb(world.data, tmp_path / "copy.zarr", world.privacy)
    assert not (tmp_path / "copy.zarr").exists()


def test_a_record_that_does_not_fit_its_digests_is_damaged(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", records(300))
    ingest(tmp_path / "x.npy", tmp_path / "x.zarr")
    group = zarr.open_group(tmp_path / "x.zarr", mode="r+")
    group.attrs["npmdask"] = {**dict(group.attrs["npmdask"]), "fingerprint": "0" * 64}  # type: ignore[arg-type]
    with pytest.raises(BadInputError, match=r"fingerprint of .* is not that of its chunks"):
        open_source(tmp_path / "x.zarr", exact=False)


# Stores of before


def without_digests(store: Path) -> None:
    """What the version before would have written."""
    group: Any = zarr.open_group(store, mode="r+")
    record = dict(group.attrs["npmdask"])
    facts = {name: record[name] for name in ("shape", "dtype", "chunks")}
    printed = fingerprint({**facts, "layout": "dense"}, [group["checksums"][...]])
    del group["digests"], record["beside"]["digests"]
    group.attrs["npmdask"] = {**record, "fingerprint": printed}


@pytest.mark.slow
def test_a_store_of_before_is_read_and_never_begins_a_private_run(world: World) -> None:
    without_digests(world.data)
    with pytest.warns(DataWarning, match="privacy budget"):
        assert top_k(world.data, 2, store=world.folder / "exact").converged
    with pytest.raises(RefusedError, match="ingest it again"):
        world.solve("run")
    assert not world.ledger.status("people").runs
    with pytest.raises(BadInputError, match="by an earlier version"):
        grant(world, world.data)


@pytest.mark.slow
def test_a_private_run_that_began_on_a_store_of_before_goes_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    without_digests(world.data)
    printed = open_source(world.data, exact=False).fingerprint
    world.ledger.grant(
        "people",
        fingerprint=printed,
        relation={"name": "record_replace", "clip_norm": 1.5},
        budget=THREE_RUNS,
        data_changed=True,
    )
    with monkeypatch.context() as patch:
        patch.setattr("npmdask.privacy.account.Account._require_digests", lambda self: None)
        stopped(world, 1)
    assert solve(world.problem(), world.folder / "run", Resources()).answered


@pytest.mark.slow
def test_a_store_of_before_is_its_own_source(world: World) -> None:
    """The remedy that the refusal names."""
    without_digests(world.data)
    with pytest.warns(DataWarning, match="privacy budget"):
        ingest(world.data, world.folder / "again.zarr", kind="samples", chunks=(64, 12))
    os.rename(world.data, world.folder / "old.zarr")
    os.rename(world.folder / "again.zarr", world.data)
    grant(world, world.data, data_changed=True)
    assert world.solve("run").answered


def grant(world: World, source: Path, **options: Any) -> Any:
    return grant_source(
        world.ledger,
        "people",
        source,
        relation="record_replace",
        clip_norm=1.5,
        change=1.0,
        budget=THREE_RUNS,
        **options,
    )
