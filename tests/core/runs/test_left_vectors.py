"""Left singular vectors on disk: flushed before anything refers to them, verified at export, rebuilt by one pass."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import npmdask
from npmdask.cli.main import main
from npmdask.core.runs.left_vectors import _small_svd, left_blocks
from npmdask.core.storage.bundle import read_bundle, write_bundle
from npmdask.errors import BadInputError, RefusedError
from tests.conftest import needs, often, planted, same_bytes, write_zarr


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """2900 rows: the last of twelve chunks is not full."""
    a = planted(2900, 80, 1 / np.sqrt(np.arange(1, 81)))[0]
    return write_zarr(tmp_path_factory.mktemp("source") / "a.zarr", a, (250, 80), compressors=None)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, source: Path) -> Path:
    """A finished run, and its answer as it was exported."""
    store = tmp_path_factory.mktemp("whole") / "run"
    npmdask.top_k(source, 3, kind="matrix", center=True, store=store)
    assert main(["export", str(store), str(store.parent / "o.npz")]) == 0
    return store


def rewritten(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def damage(file: Path) -> None:
        file.write_bytes(change(file.read_bytes()))

    return damage


def flipped(data: bytes) -> bytes:
    return data[:100] + bytes([data[100] ^ 1]) + data[101:]


CHUNK, LAST, META = "c/3/0", "c/11/0", "zarr.json"
DAMAGES: dict[str, tuple[str, Callable[[Path], None]]] = {
    "deleted": (CHUNK, Path.unlink),
    "last deleted": (LAST, Path.unlink),
    "its folder deleted": ("c/3", shutil.rmtree),
    "empty": (CHUNK, rewritten(lambda data: b"")),
    "truncated": (CHUNK, rewritten(lambda data: data[: len(data) // 2])),
    "extended": (CHUNK, rewritten(lambda data: data + bytes(8))),
    "bit flipped": (CHUNK, rewritten(flipped)),
    "bit flipped in the last": (LAST, rewritten(flipped)),
    "zeros": (CHUNK, rewritten(lambda data: bytes(len(data)))),
    "another chunk": (CHUNK, lambda file: shutil.copy(file.parent.parent / "4" / "0", file)),
    "description deleted": (META, Path.unlink),
    "description empty": (META, rewritten(lambda data: b"")),
    "fewer rows": (META, rewritten(lambda data: data.replace(b"2900", b"2000"))),
    "one row less": (META, rewritten(lambda data: data.replace(b"2900", b"2899"))),
    "other chunks": (META, rewritten(lambda data: data.replace(b"250", b"500"))),
    "other numbers": (META, rewritten(lambda data: data.replace(b"float64", b"int64"))),
    "all gone": ("", shutil.rmtree),
}


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_after_the_end_is_found_by_export_and_rebuilt_by_one_pass(
    tmp_path: Path, whole: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Mutants: sizes or checksums not compared; zarr's fill value in place of what is missing; a rebuilt chunk from
    vectors that were turned, or from data that are not centred."""
    store, (name, spoil) = tmp_path / "run", DAMAGES[damage]
    shutil.copytree(whole, store)
    spoil(store / "left.zarr" / name)
    assert main(["export", str(store), str(tmp_path / "o.npz")]) == 2
    said = capsys.readouterr().err
    assert str(store / "left.zarr") in said and f"`npmdask resume {store}` computes it again, in one pass" in said
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    with pytest.raises(BadInputError, match="npmdask resume"):
        list(left_blocks(store))
    solution = npmdask.resume(store, threads=1)
    assert (solution.data_passes, solution.total_data_passes) == (1, solution.steps + 2)  # a survey, and Z once
    same_bytes(whole, store)
    assert npmdask.resume(store).data_passes == 0
    assert main(["export", str(store), str(tmp_path / "o.npz")]) == 0
    with np.load(tmp_path / "o.npz") as mine, np.load(whole.parent / "o.npz") as first:
        assert set(mine) == set(first) and all((mine[name] == first[name]).all() for name in mine)


@pytest.mark.slow
def test_no_bit_of_the_description_ends_in_a_traceback(
    tmp_path: Path, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "run"
    shutil.copytree(whole, store)
    file = store / "left.zarr" / "zarr.json"
    data, rng = file.read_bytes(), np.random.default_rng(0)
    for place in rng.integers(0, len(data), 60):
        file.write_bytes(data[:place] + bytes([data[place] ^ (1 << int(rng.integers(8)))]) + data[place + 1 :])
        code = main(["export", str(store), str(tmp_path / "o.npz")])
        assert code in (0, 2)
        if code == 0:
            with np.load(tmp_path / "o.npz") as mine, np.load(whole.parent / "o.npz") as first:
                assert (mine["left_basis"] == first["left_basis"]).all()
    capsys.readouterr()


@pytest.mark.slow
def test_without_the_data_the_sentence_says_so(
    tmp_path: Path, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine, store = tmp_path / "a.zarr", tmp_path / "run"
    shutil.copytree(source, mine)
    npmdask.top_k(mine, 3, kind="matrix", store=store)
    shutil.rmtree(mine)
    assert main(["export", str(store), str(tmp_path / "o.npz")]) == 0, "the data are not needed"
    (store / "left.zarr" / "c" / "3" / "0").unlink()
    assert main(["export", str(store), str(tmp_path / "o.npz")]) == 2
    assert (
        f"it is computed from {mine}, which is gone: put it back and run `npmdask resume {store}`"
        in capsys.readouterr().err
    )
    with pytest.raises(BadInputError, match=r"a\.zarr"):
        npmdask.resume(store)
    assert (store / "result").is_dir()


@pytest.mark.slow
def test_an_array_in_memory_is_given_again(tmp_path: Path) -> None:
    a, store = planted(300, 20, np.linspace(2, 1, 20))[0], tmp_path / "run"
    first = npmdask.top_k(a, 3, kind="matrix", store=store)
    left = first.left_basis()
    assert first.low_rank_factors is None, "nothing was released"
    (store / "left.zarr" / "c" / "0" / "0").unlink()
    with pytest.raises(BadInputError, match=r"npmdask\.top_k again with the same array and store"):
        first.left_basis()
    again = npmdask.top_k(a, 3, kind="matrix", store=store)
    assert again.data_passes == 1 and (again.left_basis() == left).all()


@needs("manage")
def test_a_chunk_that_would_get_other_bits_is_not_written(tmp_path: Path, whole: Path) -> None:
    """As on a machine whose BLAS kernel sums in another order. Mutants: bytes written whatever they are; no refusal."""
    store = tmp_path / "run"
    shutil.copytree(whole, store)
    arrays, meta = read_bundle(store / "result")
    arrays["left_checksums"][5] ^= 1
    shutil.rmtree(store / "result")
    write_bundle(store / "result", arrays, meta)
    chunk = store / "left.zarr" / "c" / "5" / "0"
    chunk.write_bytes(bytes(chunk.stat().st_size))
    with pytest.raises(RefusedError, match=r"1 of 12 chunks of .* other last bits .* another BLAS kernel"):
        npmdask.resume(store)
    assert not any(chunk.read_bytes())


# A run of many tasks that dies when it has kept two parts of the last pass, or before its result, or not. It lists
# all that it has flushed to disk.
RUN = """
import os, signal, sys
import npmdask
import npmdask.core.operators._protocol as protocol
from npmdask.core.checkpoint.store import RunStore

source, store, when = sys.argv[1:]
protocol.RUN_BYTES, protocol.COLUMN_BYTES = 2**15, 1
log, fsync = open(store + ".flushed", "w", buffering=1), os.fsync
keep_pass, write_part, kept = RunStore.keep_pass, RunStore.write_part, []

def flush(descriptor):
    fsync(descriptor)
    print(os.readlink(f"/proc/self/fd/{descriptor}"), file=log)

def keep(self, key, *parts):
    keep_pass(self, key, *parts)
    kept.append(key["label"])
    if when == "kept" and kept.count("left singular vectors") == 2:
        os.kill(os.getpid(), signal.SIGKILL)

def write(self, name, *content):
    if when == "result" and name == "result":
        os.kill(os.getpid(), signal.SIGKILL)
    write_part(self, name, *content)

os.fsync, RunStore.keep_pass, RunStore.write_part = flush, keep, write
seconds = 0.0 if when == "kept" else 30.0
npmdask.top_k(source, 3, kind="matrix", center=True, store=store, threads=2, commit_seconds=seconds)
"""


def ran(source: Path, store: Path, when: str) -> int:
    done = subprocess.run([sys.executable, "-c", RUN, str(source), str(store), when], capture_output=True, text=True)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode


def lose_power(store: Path) -> int:
    """Empty all chunks that were not flushed; how many there were that had been."""
    flushed = {Path(line) for line in Path(f"{store}.flushed").read_text().splitlines()}
    chunks = [file for file in (store / "left.zarr" / "c").rglob("*") if file.is_file()]
    for file in set(chunks) - flushed:
        os.truncate(file, 0)
    return len(set(chunks) & flushed)


@pytest.mark.slow
@pytest.mark.parametrize("when", often(["kept", "result"], 0))
def test_a_power_cut_between_the_chunks_and_the_result_costs_no_chunk(tmp_path: Path, source: Path, when: str) -> None:
    """Whatever a checkpoint refers to was flushed before. Mutants: no flush in the keeper; none before the result."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert ran(source, whole, "never") == 0
    assert ran(source, cut, when) == -signal.SIGKILL and not (cut / "result").exists()
    safe = lose_power(cut)
    assert (safe == 12) if when == "result" else (0 < safe < 12 and (cut / "pass").is_dir())
    assert ran(source, cut, "never") == 0
    same_bytes(whole, cut)
    assert main(["export", str(cut), str(tmp_path / "o.npz")]) == 0


def test_a_column_that_is_rounding_moves_no_other() -> None:
    """Two columns of 1e-12 nearly in the span of the others, as products with a null space are. Mutant: directions in
    which unit columns depend on each other are dropped, and the real ones lose their share of these.
    """
    rng = np.random.default_rng(0)
    left, sizes = np.linalg.qr(rng.standard_normal((60, 3)))[0], np.array([98.0, 0.52, 0.09])
    nearly = left @ [0.6, 0.8, 0.0] + 1e-5 * rng.standard_normal(60)
    noise = 5e-12 * nearly[:, None] * np.array([1.0, -0.8])
    z = np.concatenate([left * sizes, noise], axis=1)
    values, rotation, turn = _small_svd(z.T @ z)
    np.testing.assert_allclose(values[:3], sizes, rtol=1e-12)
    assert values[3:].max() < 1e-11
    np.testing.assert_allclose(np.abs((z @ rotation)[:, :3].T @ left), np.eye(3), atol=1e-9)
    np.testing.assert_allclose(turn.T @ turn, np.eye(5), atol=1e-14)
