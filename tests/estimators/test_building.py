"""Third moments built out of core: the numbers of dense sums, the same bits in any number of passes or after deaths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npmdask
from npmdask.cli.main import main
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.runs.resources import Resources
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError, RefusedError
from npmdask.latent import third_moment
from npmdask.latent.third_moment import build_moments
from npmdask.symmetric.reader import place_of
from npmdask.topics.documents import documents_of, write_documents
from tests.conftest import write_zarr
from tests.tensors.tensor_kills import differences, kept
from tests.topics.made import a_model, documents_from, words

V = 13
COUNTS = documents_from(a_model(V, 3), 300, 6)
ROWS = np.random.default_rng(0).exponential(size=(400, 9)) ** 1.5


def dense(path: Path) -> np.ndarray:
    """The whole tensor of a store."""
    group, (d, _, _) = npmdask.core.storage.source.zarr.open_group(path, mode="r"), open_source(path).shape
    data = group["data"][...]
    b = data.shape[1]
    n = -(-d // b)
    whole = np.zeros((n * b,) * 3)
    for unit, block in enumerate(data):
        place = place_of(unit, n)
        for order in ((0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)):
            at = tuple(slice(place[o] * b, (place[o] + 1) * b) for o in order)
            whole[at] = block.transpose(order)
    return whole[:d, :d, :d]


def triples(counts: np.ndarray, half: float) -> np.ndarray:
    """The mean table of three different words of a document, each document weighted N / (N + half)."""
    total, weights = np.zeros((V,) * 3), 0.0
    for row in counts[counts.sum(axis=1) >= 3].astype(float):
        n, eye = row.sum(), np.eye(len(row))
        once = np.einsum("i,ij,k->ijk", row, eye, row)
        table = np.einsum("i,j,k->ijk", row, row, row) + 2 * np.einsum("i,ij,ik->ijk", row, eye, eye)
        table -= once + once.transpose(0, 2, 1) + once.transpose(2, 1, 0)
        total += n / (n + half) * table / (n * (n - 1) * (n - 2))
        weights += n / (n + half)
    return total / weights


def store(folder: Path, counts: Any = COUNTS) -> Path:
    write_documents(documents_of(counts), folder / "documents.zarr", words(V))
    return folder / "documents.zarr"


@pytest.mark.slow
@pytest.mark.parametrize("half", [0.0, 100.0])
def test_words_of_single_topics(tmp_path: Path, half: float) -> None:
    built = build_moments(store(tmp_path), tmp_path / "m3.zarr", block=5, half_length=half)
    assert (built.side, built.block) == (V, 5)
    np.testing.assert_allclose(dense(tmp_path / "m3.zarr"), triples(COUNTS.toarray(), half), rtol=1e-10, atol=1e-15)


@pytest.mark.slow
def test_words_of_dirichlet_shares(tmp_path: Path) -> None:
    """The moment of LDA from the three raw ones (Anandkumar et al. 2014, theorem 3.5)."""
    a0, counts = 2.0, COUNTS.toarray()[COUNTS.toarray().sum(axis=1) >= 3].astype(float)
    build_moments(store(tmp_path), tmp_path / "m3.zarr", alpha0=a0, block=6, half_length=0.0)
    n = counts.sum(axis=1)
    m1 = (counts / n[:, None]).mean(axis=0)
    pairs = np.einsum("di,dj->ij", counts / (n * (n - 1))[:, None], counts)
    pairs = (pairs - np.diag((counts / (n * (n - 1))[:, None]).sum(axis=0))) / len(n)
    mixed = np.einsum("ij,k->ijk", pairs, m1)
    mixed = mixed + mixed.transpose(0, 2, 1) + mixed.transpose(2, 1, 0)
    wanted = triples(COUNTS.toarray(), 0.0) - a0 / (a0 + 2) * mixed
    wanted += 2 * a0**2 / ((a0 + 1) * (a0 + 2)) * np.einsum("i,j,k->ijk", m1, m1, m1)
    np.testing.assert_allclose(dense(tmp_path / "m3.zarr"), wanted, rtol=1e-9, atol=1e-14)


@pytest.mark.slow
@pytest.mark.parametrize("center", [False, True])
def test_samples(tmp_path: Path, center: bool) -> None:
    np.save(tmp_path / "x.npy", ROWS)
    npmdask.formats.ingest.ingest(tmp_path / "x.npy", tmp_path / "x.zarr", kind="samples")
    build_moments(tmp_path / "x.zarr", tmp_path / "m3.zarr", center=center, block=4)
    rows = ROWS - ROWS.mean(axis=0) * center
    np.testing.assert_allclose(dense(tmp_path / "m3.zarr"), np.einsum("ni,nj,nk->ijk", rows, rows, rows) / 400)
    assert npmdask.top_k(tmp_path / "m3.zarr", 2).basis.shape == (9, 2)


@pytest.mark.slow
def test_little_memory_makes_more_passes_and_no_other_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = store(tmp_path)
    at_once = build_moments(source, tmp_path / "once.zarr", alpha0=1.0, block=3)
    monkeypatch.setattr(third_moment, "SUMS_BYTES", 2**16)
    many = build_moments(source, tmp_path / "many.zarr", alpha0=1.0, block=3, resources=Resources(threads=2))
    assert at_once.passes == 1 < many.passes
    assert many.fingerprint == at_once.fingerprint
    assert differences(kept(tmp_path / "once.zarr"), tmp_path / "many.zarr") == []
    assert not list(tmp_path.glob("*.partial*"))


class Died(Exception):
    """As if the process had been killed."""


@pytest.mark.slow
def test_dies_at_every_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks where a group of blocks is forgotten before it is durable, or written twice."""
    source, write = store(tmp_path), RunStore.write_part
    monkeypatch.setattr(third_moment, "SUMS_BYTES", 2**16)
    whole = build_moments(source, tmp_path / "whole.zarr", alpha0=1.0, block=3)
    deaths, passes, names = 0, 0, set[str]()

    def dies(held: RunStore, name: str, *facts: Any) -> None:
        nonlocal deaths, passes
        passes += name.startswith("blocks") and not (held.path / name).exists()
        write(held, name, *facts)
        if name not in names:
            names.add(name)
            deaths += 1
            raise Died

    monkeypatch.setattr(RunStore, "write_part", dies)
    for _ in range(100):
        try:
            build_moments(source, tmp_path / "died.zarr", alpha0=1.0, block=3)
            break
        except Died:
            continue
    assert deaths == whole.passes + 2 and passes == whole.passes  # their sums, the totals, and what was asked for
    assert differences(kept(tmp_path / "whole.zarr"), tmp_path / "died.zarr") == []


@pytest.mark.slow
def test_what_was_gathered_of_other_moments_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, dest = store(tmp_path), tmp_path / "m3.zarr"
    monkeypatch.setattr(RunStore, "drop_part", lambda held, name: (_ for _ in ()).throw(Died))
    with pytest.raises(Died):
        build_moments(source, dest, alpha0=0.0, block=3)
    monkeypatch.undo()
    build_moments(source, dest, alpha0=3.0, block=3)
    build_moments(source, tmp_path / "other.zarr", alpha0=3.0, block=3)
    assert differences(kept(tmp_path / "other.zarr"), dest) == []


@pytest.mark.slow
def test_sentences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, plain = store(tmp_path), write_zarr(tmp_path / "plain.zarr", ROWS)
    for where, asked, said in (
        (source, {"center": True}, "center applies only to samples"),
        (source, {"alpha0": -1.0}, "alpha0 = -1"),
        (source, {"block": 0}, "block = 0"),
        (source, {"resources": Resources(workers=-1)}, "workers must be"),
        (plain, {"alpha0": 1.0}, "alpha0 applies only to documents"),
        (plain, {"center": True}, "no recorded means"),
    ):
        with pytest.raises(BadInputError, match=said):
            build_moments(where, tmp_path / "bad.zarr", **asked)
        assert not (tmp_path / "bad.zarr").exists()
    with pytest.raises(RefusedError, match="memory"):
        build_moments(source, tmp_path / "little.zarr", resources=Resources(memory=2**20))
    assert main(["moments", str(source), str(tmp_path / "cli.zarr"), "--block", "4", "--quiet"]) == 0
    assert "13 x 13 x 13, blocks of 4, 1 passes" in capsys.readouterr().out
    assert main(["moments", str(source), str(tmp_path / "h.zarr"), "--half-length", "0", "--quiet"]) == 0
    counts = COUNTS.toarray() if hasattr(COUNTS, "toarray") else COUNTS
    np.testing.assert_allclose(dense(tmp_path / "h.zarr"), triples(counts, 0.0), atol=1e-15)
    np.testing.assert_allclose(dense(tmp_path / "cli.zarr"), triples(counts, 100.0), atol=1e-15)
    with pytest.raises(RefusedError, match="exists already"):
        build_moments(source, tmp_path / "cli.zarr")
    with pytest.raises(BadInputError, match="of kind tensor"):
        build_moments(tmp_path / "cli.zarr", tmp_path / "again.zarr")
