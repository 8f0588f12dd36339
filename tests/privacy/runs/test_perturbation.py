"""A noisy copy of a tensor: every unique entry once, with noise of its kind, charged once, the same after a crash."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from itertools import combinations_with_replacement, permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import npmdask.privacy.account as account
import npmdask.privacy.perturb as perturbation
from npmdask.accounting import Budget, mu_for
from npmdask.api import resume
from npmdask.audit import ALPHA
from npmdask.cli.main import main
from npmdask.core.storage.readers.dense import ReadStats
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError, NpmdaskError, RefusedError
from npmdask.ledger import Ledger
from npmdask.manage.status import inspect
from npmdask.privacy.mechanisms import EntriesGaussian, Entropy
from npmdask.privacy.mechanisms.gaussian_laplace import unique_entries
from npmdask.privacy.neighbors import TensorRelation, make_relation
from npmdask.privacy.perturb import concerns_of_copy, perturb
from npmdask.privacy.request import Privacy
from npmdask.symmetric.reader import TensorReader
from npmdask.symmetric.writer import TensorWriter
from tests.conftest import write_zarr
from tests.privacy.runs.conftest import World, of_tensor, planted
from tests.privacy.runs.test_crashes import Crash, crash_at
from tests.privacy.runs.test_taint import forms

MU = mu_for(1.0, 1e-6)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return of_tensor(tmp_path / "world", planted(size=100.0))


def whole(path: Path) -> np.ndarray:
    """The tensor in a store, from its unique blocks alone."""
    reader = open_source(path, exact=False).reader
    assert isinstance(reader, TensorReader)
    found = np.full(reader.shape, np.nan)
    for place, values in reader.blocks(range(reader.units), ReadStats()):
        for order in ((0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)):
            where = tuple(reader.span(place[axis]) for axis in order)
            assert (np.isnan(found[where]) | (found[where] == values.transpose(order))).all(), "mirror images differ"
            found[where] = values.transpose(order)
    return found


def made(name: str, clip_norm: float = 40.0, budget: Budget | None = None) -> EntriesGaussian:
    relation = make_relation(name, clip_norm=clip_norm)
    assert isinstance(relation, TensorRelation)
    return EntriesGaussian(relation=relation, budget=budget or Budget(1.0, 1e-6))


@pytest.mark.slow
def test_every_unique_entry_has_the_noise_of_its_kind(world: World) -> None:
    """Chi-square, kind by kind. Mutants: one noise for all kinds; 1 or 6 for 2; noise of its own for mirror images."""
    perturb(world.data, world.folder / "noisy.zarr", world.privacy)
    noisy = whole(world.folder / "noisy.zarr")
    noise = noisy - np.load(world.folder / "x.npy")
    assert (noisy == noisy.transpose(1, 0, 2)).all() and (noisy == noisy.transpose(2, 1, 0)).all()
    orbits = np.array(list(combinations_with_replacement(range(20), 3)))
    kinds = np.array([3 - len(set(orbit)) for orbit in orbits.tolist()])
    for kind, multiplicity in enumerate((1, 2, 6)):
        z = noise[tuple(orbits[kinds == kind].T)] * MU / multiplicity
        low, high = stats.chi2(len(z)).ppf([ALPHA / 2, 1 - ALPHA / 2])
        assert low < (z**2).sum() < high
        assert stats.kstest(z, "norm").pvalue > ALPHA
    assert len(np.unique(noise[tuple(orbits.T)])) > 0.999 * len(orbits), "no two entries share their noise"


@pytest.mark.slow
def test_it_is_charged_as_one_release_and_then_free(world: World) -> None:
    made_now = perturb(world.data, world.folder / "noisy.zarr", world.privacy)
    (run,) = world.ledger.status("people").runs
    assert MU**2 * (1 - 1e-6) <= world.ledger.status("people").spent.mu_squared <= MU**2
    assert run.finished and set(run.committed) == {1} and run.event["mechanism"] == "input-perturbation"
    assert json.loads(json.dumps(made_now.statement)) == made_now.statement
    assert made_now.statement["noise_stddevs"] == pytest.approx([1 / MU, 2 / MU, 6 / MU], rel=1e-3)
    copy = open_source(world.folder / "noisy.zarr", exact=False)
    assert copy.kind == "tensor" and copy.registered and copy.truth is None
    assert not (world.folder / "noisy.zarr.perturbing").exists()
    with pytest.raises(RefusedError, match="exists already"):
        perturb(world.data, world.folder / "noisy.zarr", world.privacy)
    assert len(world.ledger.status("people").runs) == 1


POINTS: list[tuple[Any, str, int]] = [
    (Ledger, "reserve", 1),
    (Ledger, "begin", 1),
    (TensorWriter, "write", 1),
    (TensorWriter, "write", 4),
    (Ledger, "commit", 1),
    (TensorWriter, "finish", 1),
    (Ledger, "finish", 1),
    (account, "destroy_key", 1),
    (perturbation, "open_source", 2),
]


@pytest.mark.slow
def test_a_crash_at_any_point_ends_in_the_same_copy(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One copy, killed before and after every call: one reservation, and the entries of its key wherever it was."""
    keys: set[bytes] = set()
    target = world.folder / "noisy.zarr"
    real = Entropy.open

    def remember(path: Any, **more: Any) -> Entropy:
        keys.add(Path(path).read_bytes())
        return real(path, **more)

    monkeypatch.setattr(Entropy, "open", remember)
    monkeypatch.setattr("npmdask.writers.journal.JOURNAL_BYTES", 1)  # every block is remembered at once
    for point in POINTS:
        for after in (False, True):
            with monkeypatch.context() as patch:
                crash_at(patch, *point, after=after)
                with pytest.raises(Crash):
                    perturb(world.data, target, world.privacy)
    assert perturb(world.data, target, world.privacy).dest == target
    (run,) = world.ledger.status("people").runs
    assert run.finished and set(run.committed) == {1} and len(keys) == 1
    (tmp_path / "key").touch(mode=0o600)
    (tmp_path / "key").write_bytes(keys.pop())
    key = real(tmp_path / "key", bound_to=open_source(world.data, exact=False).fingerprint)
    stored, copy = (open_source(path, exact=False).reader for path in (world.data, target))
    assert isinstance(stored, TensorReader) and isinstance(copy, TensorReader)
    mechanism, blocks = made("tensor_entry"), stored.blocks(range(stored.units), ReadStats())
    wanted = [mechanism.release(values, place=place, entropy=key) for place, values in blocks]
    for (_, values), again in zip(copy.blocks(range(copy.units), ReadStats()), wanted, strict=True):
        assert (values == again).all()
    secret = (tmp_path / "key").read_bytes()
    assert not any(form in p.read_bytes() for p in world.folder.rglob("*") if p.is_file() for form in forms(secret))


@pytest.mark.slow
def test_a_copy_under_way_is_no_run_and_without_its_key_it_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        crash_at(patch, TensorWriter, "write", 3, after=True)
        with pytest.raises(Crash):
            perturb(world.data, world.folder / "noisy.zarr", world.privacy)
    kept = world.folder / "noisy.zarr.perturbing"
    for door in (resume, inspect):
        with pytest.raises(BadInputError, match="run the same `npmdask perturb` again"):
            door(kept)
    (kept / "entropy").unlink()
    with pytest.raises(RefusedError, match="is missing, and the run has begun"):
        perturb(world.data, world.folder / "noisy.zarr", world.privacy)


def test_mirror_images_within_a_block_are_one_entry(tmp_path: Path) -> None:
    """Also of a stored block that is not symmetric: then the first counts. Entries that are not finite become 0."""
    block = np.random.default_rng(0).standard_normal((4, 4, 4))
    block[0, 1, 2], block[3, 3, 3] = np.nan, np.inf
    mechanism, key = made("tensor_orbit", 1.0, Budget(400.0, 1e-6)), Entropy.create(tmp_path / "k" / "key")
    noisy = mechanism.release(block, place=(2, 2, 2), entropy=key)
    assert all((noisy == noisy.transpose(order)).all() for order in ((1, 0, 2), (0, 2, 1), (2, 1, 0)))
    sorted_ = np.array(list(combinations_with_replacement(range(4), 3))).T
    bounded = np.clip(np.nan_to_num(block, nan=0.0, posinf=0.0), -1, 1)
    assert np.abs(noisy - bounded)[tuple(sorted_)].max() < 6 * mechanism.stddevs[0]
    other = block.copy()
    other[1, 0, 2] += 0.5  # a mirror image
    assert (mechanism.release(other, place=(2, 2, 2), entropy=key) == noisy).all()
    assert (mechanism.release(block, place=(3, 3, 3), entropy=key) != noisy).any()
    first, equal = unique_entries((2, 2, 3), (0, 0, 1))
    assert first.tolist() == [0, 1, 2, 3, 4, 5, 3, 4, 5, 9, 10, 11] and equal.tolist() == [1] * 3 + [0] * 6 + [1] * 3
    with pytest.raises(BadInputError, match="cannot be the unique block"):
        unique_entries((2, 2, 2), (1, 0, 2))


@pytest.mark.slow
def test_what_is_refused(world: World) -> None:
    dest = world.folder / "noisy.zarr"
    for change, said in (
        ({"epsilon": 50.0}, "people"),
        ({"mechanism": "laplace"}, "Laplace noise is not offered"),
        ({"calibration": "paper"}, "calibrated exactly"),
        ({"neighboring_relation": "entry"}, "a tensor"),
        ({"delta": 0.0}, "cannot give delta = 0"),
    ):
        with pytest.raises(NpmdaskError, match=said):
            perturb(world.data, dest, replace(world.privacy, **change))
    assert not dest.exists() and not world.ledger.status("people").runs
    assert not dest.with_name("noisy.zarr.perturbing").exists(), "what was refused leaves nothing behind"
    with pytest.raises(BadInputError, match="perturb is for tensors"):
        perturb(write_zarr(world.folder / "matrix.zarr", np.eye(4)), dest, world.privacy)


@pytest.mark.slow
def test_a_copy_of_which_little_can_be_promised_or_seen_says_so_before_it_is_charged(
    world: World, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """To the caller, the log, the command line and the record of the copy. Mutants: not said; delta compared with rows;
    a component compared with the noise on one entry."""
    ordinary, weak = world.privacy, replace(world.privacy, epsilon=20.0, delta=1e-3)
    assert concerns_of_copy(world.data, ordinary) == ()
    strong, loose = concerns_of_copy(world.data, weak)
    assert "epsilon = 20 is a very weak" in strong and "1 / (number of records) = 6.5e-04" in loose  # of 1540 entries
    (hidden,) = concerns_of_copy(world.data, replace(ordinary, epsilon=3e-3))
    assert "the noise hides every component" in hidden
    assert concerns_of_copy(world.data, replace(ordinary, epsilon=1e-1)) == ()
    asked = ["--epsilon", "20", "--delta", "1e-6", "--relation", "tensor_entry", "--clip-norm", "40", "--quiet"]
    ledger = ["--ledger", str(world.folder / "ledger.sqlite"), "--dataset", "people"]
    assert main(["perturb", str(world.data), str(world.folder / "no.zarr"), *asked, *ledger]) != 0
    assert "warning: epsilon = 20 is a very weak" in capsys.readouterr().err and not world.ledger.status("people").runs
    with caplog.at_level(logging.WARNING, logger="npmdask"):
        made = perturb(world.data, world.folder / "noisy.zarr", replace(ordinary, epsilon=3e-3))
    assert hidden in caplog.text and made.statement["warnings"] == [hidden]


def test_noise_that_buries_a_whole_copy_is_refused_and_nothing_is_charged(world: World) -> None:
    """Even a tensor that is known in advance: all entries as large as they may be, looked for where they are."""
    faint = replace(world.privacy, epsilon=1e-7)
    with pytest.raises(RefusedError, match="bury all data"):
        perturb(world.data, world.folder / "noisy.zarr", faint)
    assert not world.ledger.status("people").runs and not (world.folder / "noisy.zarr.perturbing").exists()


@pytest.mark.slow
def test_a_component_is_hidden_where_it_is_said_to_be(tmp_path: Path) -> None:
    """The largest that data can have, in copies whose best component is looked for from everywhere, itself included.

    With half of the epsilon below which none is said to be seen it is another one, with ten times that it is found.
    """
    d, clip = 20, 1.0
    signal = np.full((d, d, d), clip)
    source = of_tensor(tmp_path, signal).data
    asked = Privacy(epsilon=1.0, delta=1e-6, neighboring_relation="tensor_orbit", clip_norm=clip, change=1.0)
    lost = max(e for e in np.geomspace(1e-3, 10.0, 60) if concerns_of_copy(source, replace(asked, epsilon=float(e))))

    def found(epsilon: float) -> float:
        stddev = made("tensor_orbit", clip, Budget(epsilon, 1e-6)).stddevs[0]
        return float(np.median([cosine_of_best(signal + symmetric_noise(d, stddev, seed), seed) for seed in range(9)]))

    assert found(lost / 2) < 0.5 < 0.9 < found(10 * lost)


def symmetric_noise(d: int, stddev: float, seed: int) -> np.ndarray:
    """Of ``stddev`` on entries with three different indices."""
    rng = np.random.default_rng(seed)
    noise = rng.standard_normal((d, d, d)) * stddev / 6**0.5
    return np.sum([noise.transpose(order) for order in permutations(range(3))], axis=0)


def cosine_of_best(tensor: np.ndarray, seed: int) -> float:
    """Between (1, ..., 1) and the largest of what the iteration finds from there and from 200 random starts."""
    rng, d = np.random.default_rng(seed), len(tensor)
    v = np.c_[np.ones(d), rng.standard_normal((d, 200))]
    v /= np.linalg.norm(v, axis=0)
    contract = np.einsum_path("ijk,jl,kl->il", tensor, v, v)[0]
    for _ in range(60):
        v = np.einsum("ijk,jl,kl->il", tensor, v, v, optimize=contract)
        v /= np.linalg.norm(v, axis=0)
    sizes = (v * np.einsum("ijk,jl,kl->il", tensor, v, v, optimize=contract)).sum(axis=0)
    return float(abs(v[:, np.argmax(sizes)].sum()) / d**0.5)


@pytest.mark.slow
def test_the_command_says_what_it_promises(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    ledger = ["--ledger", str(world.folder / "ledger.sqlite"), "--dataset", "people", "--json"]
    asked = ["--epsilon", "1", "--delta", "1e-6", "--relation", "tensor_entry", "--clip-norm", "40"]
    assert main(["perturb", str(world.data), str(world.folder / "noisy.zarr"), *asked, *ledger]) == 0
    assert json.loads(capsys.readouterr().out)["epsilon"] == 1.0
