"""A Gram for each label of rows: each is that of its rows, and nothing makes one of them count twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import zarr

import npmdask
from npmdask import GramStore
from npmdask.cli.main import main
from npmdask.core.execution.memory import tree_rss
from npmdask.core.operators import _protocol
from npmdask.errors import BadInputError, MemoryRefusedError, RefusedError
from tests.conftest import write_zarr
from tests.stored_gram.test_store import CHUNK, plain, require_gram_of, some

NAMES = ("a", "b", "rare")


def labels_of(rows: int) -> np.ndarray:
    """Labels in no order; one of them in the last chunk only, on a single row."""
    labels = np.random.default_rng(1).choice(["a", "b"], rows).astype("U4")
    labels[: CHUNK // 2] = "a"
    labels[-1] = "rare"
    return labels


@pytest.mark.slow
@pytest.mark.parametrize("shift", [3.0, 1e6])
def test_each_label_has_the_gram_of_its_rows(shift: float, tmp_path: Path) -> None:
    """Also where groups lie far from each other: fails where a group is about the mean of others."""
    x, labels = some(5 * CHUNK + 7, shift=shift), labels_of(5 * CHUNK + 7)
    x[labels == "b"] -= 2 * shift
    store = npmdask.gram(plain(tmp_path, x), tmp_path / "G", kind="samples", groups=labels)
    assert store.groups == NAMES and store.rows_read == len(x) and store.bytes_read == x.nbytes
    for names in (["a"], ["b"], ["rare"], ["a", "rare"], list(NAMES)):
        require_gram_of(store.group(*names), x[np.isin(labels, names)], rtol=1e-12)
    found = npmdask.top_k(store.group("b"), 3, center=True)
    a = x[labels == "b"]
    assert found.converged and found.data_passes == 0
    np.testing.assert_allclose(found.values, np.linalg.eigvalsh(np.cov(a.T, bias=True))[:-4:-1], rtol=1e-9)
    rest = store.remove(store.group("b"), tmp_path / "R")
    assert rest.groups == ("a", "rare")
    require_gram_of(rest, x[labels != "b"], rtol=1e-12)
    assert npmdask.gram(tmp_path / "x.zarr", tmp_path / "G", kind="samples", groups=labels).rows_read == 0


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["u1", "i2", "f4"])
def test_whole_numbers_do_not_depend_on_how_rows_are_mixed(dtype: str, tmp_path: Path) -> None:
    """The same bits as of the rows of a label alone, and as in any other order."""
    x = np.random.default_rng(0).integers(0, 200, (3 * CHUNK + 5, 8)).astype(dtype)
    labels = labels_of(len(x))
    store = npmdask.gram(plain(tmp_path, x), tmp_path / "G", kind="samples", groups=labels)
    order = np.random.default_rng(2).permutation(len(x))
    other = npmdask.gram(plain(tmp_path, x[order], "o.zarr"), tmp_path / "O", kind="samples", groups=labels[order])
    assert store.fingerprint == other.fingerprint
    for name in ("a", "b"):
        alone = npmdask.gram(plain(tmp_path, x[labels == name], f"{name}.zarr"), tmp_path / name, kind="samples")
        if len(alone.parts) == 1:
            assert store.group(name).fingerprint == alone.fingerprint
        np.testing.assert_allclose(store.group(name).matrix(), alone.matrix(), rtol=1e-12, atol=1e-6)


@pytest.mark.slow
def test_float32_tiles_are_bounded_for_each_label(tmp_path: Path) -> None:
    x = (np.random.default_rng(0).standard_normal((2000, 20)) * np.logspace(-3, 3, 20)).astype(np.float32)
    labels = np.arange(2000) % 3
    store = npmdask.gram(x, tmp_path / "G", kind="samples", precision="float32", groups=labels)
    for name in store.groups:
        part, rows = store.group(name), x[labels == int(name)].astype(float)
        rows -= rows.mean(axis=0)
        found = npmdask.top_k(part, 2, center=True)
        assert np.linalg.norm(part.matrix() - rows.T @ rows, 2) / len(rows) <= found.residual_norms.min()


@pytest.mark.slow
def test_no_row_counts_twice(tmp_path: Path) -> None:
    """Groups of one source are parts of the same chunks: what cannot tell them apart by chunks refuses."""
    x, labels = some(4 * CHUNK), labels_of(4 * CHUNK)
    by_label = npmdask.gram(plain(tmp_path, x), tmp_path / "L", kind="samples", groups=labels)
    whole = npmdask.gram(tmp_path / "x.zarr", tmp_path / "W", kind="samples")
    chunk = npmdask.gram(plain(tmp_path, x[:CHUNK], "c.zarr"), tmp_path / "C", kind="samples")
    with pytest.raises(RefusedError, match="their rows would count twice"):
        GramStore.merge([by_label, whole], tmp_path / "no")
    for store, less in ((by_label.group("a"), chunk), (whole, by_label.group("a")), (by_label, chunk)):
        with pytest.raises(RefusedError, match="by their labels, which are no whole chunks"):
            store.remove(less, tmp_path / "no")
    with pytest.raises(RefusedError, match="none would be left"):
        by_label.remove(tmp_path / "L", tmp_path / "no")
    other = npmdask.gram(some(3 * CHUNK, seed=5), tmp_path / "D", kind="samples", groups=labels_of(3 * CHUNK))
    both = GramStore.merge([by_label, other], tmp_path / "both")
    mine, theirs = x[labels == "a"], some(3 * CHUNK, seed=5)[labels_of(3 * CHUNK) == "a"]
    require_gram_of(both.group("L: a", "D: a"), np.concatenate([mine, theirs]), rtol=1e-12)
    require_gram_of(both.remove(other, tmp_path / "less"), x, rtol=1e-12)


@pytest.mark.slow
def test_of_equal_groups_one_is_removed(tmp_path: Path) -> None:
    """Their sums are the same to the bit. Fails when both go."""
    x = np.tile(some(CHUNK), (2, 1))
    store = npmdask.gram(x, tmp_path / "G", kind="samples", groups=np.repeat(["a", "b"], CHUNK))
    left = store.remove(store.group("b"), tmp_path / "R")
    assert left.groups == ("a",) and left.rows == CHUNK
    chunks = npmdask.gram(plain(tmp_path, x), tmp_path / "H", kind="samples", by_chunks=1)
    assert chunks.remove(chunks.group(chunks.groups[0]), tmp_path / "S").groups == (chunks.groups[1],)


def test_the_jackknife_leaves_out_labels(tmp_path: Path) -> None:
    x = some(6 * CHUNK)
    labels = np.arange(len(x)) % 5
    found = npmdask.gram(x, tmp_path / "G", kind="samples", groups=labels).jackknife(2)
    for place, name in enumerate(found.groups):
        values = np.linalg.eigvalsh(np.cov(x[labels != int(name)].T, bias=True))[:-3:-1]
        np.testing.assert_allclose(found.left_out[place], values, rtol=1e-11)


@pytest.mark.parametrize(
    "labels, said",
    [
        (["a", None, "b"], r"row 1 has no label, as 1 of 3 rows: give them one, like 'unknown'"),
        ([1.0, 2.0, float("nan")], "row 2 has no label"),
        (np.array([np.nan, 2.0, np.nan]), "row 0 has no label, as 2 of 3 rows"),
        (["a", " ", ""], "row 1 has no label, as 2 of 3 rows"),
        (["a", "b"], "2 labels and 3 rows"),
        ([["a"], ["b"], ["c"]], "give one label for each row"),
        (np.eye(3), "groups have shape"),
        ("batch", "has no labels of rows called 'batch'; it has none"),
        (7, "groups = 7 are no labels"),
        (np.arange(5000), "5000 values, and each gets a Gram"),
    ],
)
def test_labels_that_are_none(labels: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=said):
        npmdask.gram(some(3, 4), tmp_path / "G", groups=labels)
    assert not (tmp_path / "G" / "run.json").exists()


@pytest.mark.slow
def test_other_labels_rows_and_kinds_are_refused(tmp_path: Path) -> None:
    x, labels = some(3 * CHUNK + 5), labels_of(3 * CHUNK + 5)
    path = plain(tmp_path, x)
    npmdask.gram(path, tmp_path / "G", kind="samples", groups=labels)
    other = labels.copy()
    other[0] = "b"
    for asked in ({"groups": other}, {}):
        with pytest.raises(RefusedError, match=r"algorithm\.groups"):
            npmdask.gram(path, tmp_path / "G", kind="samples", **asked)
    npmdask.gram(path, tmp_path / "plain", kind="samples")
    with pytest.raises(RefusedError, match="was formed without labels"):
        npmdask.gram(path, tmp_path / "plain", kind="samples", groups=labels)
    for changed in (0, -1):
        held = zarr.open_array(path, mode="a")
        held[changed] = x[changed] + 1
        with pytest.raises(RefusedError, match=r"rows .* are not those that .* was formed of"):
            npmdask.gram(path, tmp_path / "G", kind="samples", groups=labels)
        held[changed] = x[changed]
    with pytest.raises(RefusedError, match="is a CSR matrix"):
        npmdask.gram(sp.csr_matrix(x), tmp_path / "S", groups=labels)
    with pytest.raises(BadInputError, match="give one of them"):
        npmdask.gram(path, tmp_path / "T", kind="samples", groups=labels, by_chunks=1)


def test_memory_is_refused_with_what_would_fit(tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((600, 300))
    with pytest.raises(MemoryRefusedError, match=r"or about \d+ columns, or about \d+ groups of rows in place of 300"):
        npmdask.gram(x, tmp_path / "G", groups=np.arange(600) // 2, memory=tree_rss() + 300 * 2**20)


def test_names_of_labels_are_found_in_the_data(tmp_path: Path) -> None:
    pd, xr = pytest.importorskip("pandas"), pytest.importorskip("xarray")
    x = some(60, 4)
    season = np.array(["dry", "wet"])[np.arange(60) % 2]
    grid = xr.DataArray(x, dims=("time", "place"), coords={"season": ("time", season)})
    store = npmdask.gram(grid, tmp_path / "X", kind="samples", groups="season")
    require_gram_of(store.group("wet"), x[1::2])
    by_category = npmdask.gram(x, tmp_path / "P", kind="samples", groups=pd.Series(season, dtype="category"))
    assert by_category.fingerprint == store.fingerprint
    with pytest.raises(BadInputError, match="row 0 has no label"):
        npmdask.gram(x, tmp_path / "N", groups=pd.Series([pd.NA, *season[1:]], dtype="string"))
    with pytest.raises(BadInputError, match="it has 'season'"):
        npmdask.gram(grid, tmp_path / "Y", groups="weather")


@pytest.mark.slow
def test_the_command_reads_labels_from_a_file(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    x = some(3 * CHUNK)
    plain(tmp_path, x)
    labels = labels_of(len(x))
    Path("labels.txt").write_text("\n".join(labels) + "\n")
    np.save("labels.npy", labels)
    for store, file in (("G", "labels.txt"), ("H", "labels.npy")):
        assert main(["gram", "x.zarr", store, "--kind", "samples", "--groups", file, "--quiet"]) == 0
        assert GramStore(store).groups == NAMES
    assert npmdask.resume("G").rows_read == 0
    require_gram_of(GramStore("G").group("a"), x[labels == "a"])
    assert main(["gram", "x.zarr", "J", "--groups", "nothing.txt"]) == 2
    assert "has no labels of rows called 'nothing.txt'" in capsys.readouterr().err
    Path("empty.npy").touch()
    assert main(["gram", "x.zarr", "J", "--groups", "empty.npy"]) == 2
    assert "empty.npy does not contain readable labels" in capsys.readouterr().err


KILLED = """
import os, sys
import numpy as np
import npmdask
from npmdask.core.operators import _protocol
from npmdask.core.runs.observers import Observer

_protocol.RUN_BYTES = 2**16

class Killer(Observer):
    tasks = 0
    def on_task(self, record):
        self.tasks += bool(record.bytes_read)
        if self.tasks == int(sys.argv[3]):
            os.kill(os.getpid(), 9)

labels = np.load(sys.argv[4])
npmdask.gram(sys.argv[1], sys.argv[2], kind="samples", groups=labels, observer=Killer(), commit_seconds=0.0, threads=1)
"""


@pytest.mark.slow
def test_killed_inside_its_pass_it_goes_on_to_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_protocol, "RUN_BYTES", 2**16)
    x = np.random.default_rng(0).standard_normal((8000, 64))
    path, labels = write_zarr(tmp_path / "x.zarr", x, (500, 64)), labels_of(8000)
    np.save(tmp_path / "labels.npy", labels)
    whole = npmdask.gram(path, tmp_path / "whole", kind="samples", groups=labels, threads=2)
    store = tmp_path / "killed"
    command = [sys.executable, "-c", KILLED, path, store, "5", tmp_path / "labels.npy"]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    again: Any = npmdask.resume(store)
    assert 0 < again.bytes_read < whole.bytes_read, "what was committed is not read again"
    for part in whole.parts:
        for file in os.listdir(tmp_path / "whole" / part.name):
            assert (tmp_path / "whole" / part.name / file).read_bytes() == (store / part.name / file).read_bytes()


@pytest.mark.slow
def test_one_group_of_chunks_says_what_makes_several(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((50, 4)))
    assert main(["gram", str(tmp_path / "x.npy"), str(tmp_path / "G"), "--by-chunks", "1", "--quiet"]) == 0
    said = capsys.readouterr().err
    assert "warning: by_chunks = 1 makes one group of all rows, which lie in 1 row of chunks" in said
    assert "(groups)" in said
    assert not npmdask.gram(tmp_path / "x.npy", tmp_path / "H").warnings


def test_a_file_is_no_stored_gram(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("1,2\n")
    with pytest.raises(
        BadInputError, match=r"rows.csv is a file, not a stored Gram: form one with `npmdask gram .*csv G`"
    ):
        npmdask.GramStore(tmp_path / "rows.csv")
