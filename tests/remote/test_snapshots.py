"""Snapshots of icechunk as sources: the bits of the same array in a folder, one version only, nothing read as zeros."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import icechunk
import numpy as np
import pytest
import scipy.sparse as sp
import xarray as xr
import zarr

import npmdask
from npmdask.cli.main import main
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError, LostError, RefusedError
from tests.conftest import same_bytes, write_zarr
from tests.core.operators.test_operators import write_csr
from tests.core.runs.test_loop import Stop, StopAfter

ROOT = Path(__file__).resolve().parents[2]
X = np.random.default_rng(0).standard_normal((900, 12)) * np.geomspace(9, 1, 12)
ASKED: dict[str, Any] = {"kind": "samples", "algorithm": "power", "iteration_rank": 4, "max_steps": 6}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    icechunk.set_logs_filter("error")  # it warns of every commit to a local folder
    yield
    icechunk.set_logs_filter(None)


def repository(folder: Path, **arrays: np.ndarray) -> icechunk.Repository:
    """A new repository on this disk, with arrays in a group; chunks of 100 rows."""
    made = icechunk.Repository.create(icechunk.local_filesystem_storage(str(folder)))
    commit(made, **arrays)
    return made


def commit(made: icechunk.Repository, **arrays: np.ndarray) -> str:
    session = made.writable_session("main")
    group = zarr.open_group(session.store, mode="a").require_group("cells")
    for name, values in arrays.items():
        if name in group:
            group[name][...] = values  # type: ignore[index]
        else:
            group.create_array(name, data=values, chunks=(100, *values.shape[1:]))
    return session.commit("made")


def array_of(made: icechunk.Repository, name: str = "cells/x", **version: Any) -> zarr.Array:
    session = made.readonly_session(**(version or {"branch": "main"}))
    return zarr.open_array(session.store, path=name, mode="r")


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_the_bits_are_those_of_the_array_in_a_folder(tmp_path: Path, workers: int) -> None:
    made = repository(tmp_path / "repo", x=X)
    truth = npmdask.top_k(write_zarr(tmp_path / "x.zarr", X, (100, 12)), 3, store=tmp_path / "truth")
    given = array_of(made) if workers else zarr.open_group(made.readonly_session("main").store, path="cells", mode="r")
    found = npmdask.top_k(given, 3, workers=workers, store=tmp_path / "found")
    np.testing.assert_array_equal(found.basis, truth.basis)
    same_bytes(tmp_path / "found", tmp_path / "truth", ("steps", "result"))
    np.testing.assert_allclose(found.values, np.linalg.svd(X, compute_uv=False)[:3], rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("door", ["session", "store", "path", "path to an array", "pinned path"])
def test_every_way_in_shows_the_same_snapshot(tmp_path: Path, door: str) -> None:
    made = icechunk.Repository.create(icechunk.local_filesystem_storage(str(tmp_path / "repo")))
    session = made.writable_session("main")
    zarr.create_array(session.store, name="x", data=X, chunks=(100, 12))
    before = session.commit("one array")
    (tmp_path / "repo" / "x").touch()  # a file that is of no snapshot, as format 2 has one called repo
    given: dict[str, Any] = {
        "session": session,  # which can be written no more
        "store": made.readonly_session("main").store,
        "path": tmp_path / "repo",
        "path to an array": tmp_path / "repo" / "x",
        "pinned path": str(tmp_path / f"repo@{before}" / "x"),
    }
    opened = open_source(given[door])
    assert before in opened.path and opened.shape == X.shape
    truth = npmdask.top_k(write_zarr(tmp_path / "x.zarr", X, (100, 12)), 2)
    np.testing.assert_array_equal(npmdask.top_k(given[door], 2).basis, truth.basis)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["", "X"], ids=["as it was ingested", "its CSR group"])
def test_stores_of_sparse_rows_lie_in_snapshots_too(tmp_path: Path, place: str) -> None:
    thin = sp.csr_matrix(np.where(np.abs(X) > 4, X, 0))
    stored = write_csr(tmp_path / "x.zarr", thin, 64)
    made = icechunk.Repository.create(icechunk.local_filesystem_storage(str(tmp_path / "repo")))
    session = made.writable_session("main")
    for file in (path for path in stored.rglob("*") if path.is_file()):
        content = zarr.core.buffer.default_buffer_prototype().buffer.from_bytes(file.read_bytes())
        zarr.core.sync.sync(session.store.set(f"thin/{file.relative_to(stored)}", content))
    session.commit("a matrix")
    given = zarr.open_group(made.readonly_session("main").store, path=f"thin/{place}", mode="r")
    found, truth = (npmdask.top_k(one, 3, kind="sparse") for one in (given, thin))
    np.testing.assert_allclose(found.values, np.linalg.svd(thin.toarray(), compute_uv=False)[:3], rtol=1e-9)
    np.testing.assert_allclose(np.abs(found.basis), np.abs(truth.basis), atol=1e-7)


@pytest.mark.slow
def test_a_run_is_of_one_snapshot_and_one_place_in_it(tmp_path: Path) -> None:
    """Arrays of one shape and dtype, without files that could be looked at: only id and place tell them apart."""
    made = repository(tmp_path / "repo", x=X, y=X[::-1].copy())
    first = made.readonly_session("main").snapshot_id
    with pytest.raises(Stop):
        npmdask.top_k(array_of(made), 2, **ASKED, store=tmp_path / "run", observer=StopAfter(2))
    second = commit(made, x=X * 2)
    with pytest.raises(RefusedError, match=rf"belongs to another run.*snapshot {first}/cells/x.*snapshot {second}/"):
        npmdask.top_k(array_of(made), 2, **ASKED, store=tmp_path / "run")
    with pytest.raises(RefusedError, match=r"cells/x, and are memory, icechunk snapshot \w+/cells/y"):
        npmdask.top_k(array_of(made, "cells/y", snapshot_id=first), 2, **ASKED, store=tmp_path / "run")
    with pytest.raises(BadInputError, match=r"in the memory of a program \(memory, icechunk snapshot \w+/cells/x"):
        npmdask.resume(tmp_path / "run")
    found = npmdask.top_k(array_of(made, snapshot_id=first), 2, **ASKED, store=tmp_path / "run")
    npmdask.top_k(array_of(made, snapshot_id=first), 2, **ASKED, store=tmp_path / "whole")
    same_bytes(tmp_path / "run", tmp_path / "whole")
    assert found.steps == 6


@pytest.mark.slow
def test_a_program_that_is_killed_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    repository(tmp_path / "repo", x=X)
    program = tmp_path / "program.py"
    program.write_text(
        "import os, signal, sys\n"
        "import icechunk, npmdask, zarr\n"
        "from npmdask.core.runs.observers import Observer\n"
        "class Killed(Observer):\n"
        "    def on_step(self, step):\n"
        "        if step.number == int(sys.argv[2]):\n"
        "            os.kill(os.getpid(), signal.SIGKILL)\n"
        f"repository = icechunk.Repository.open(icechunk.local_filesystem_storage({str(tmp_path / 'repo')!r}))\n"
        "array = zarr.open_array(repository.readonly_session('main').store, path='cells/x', mode='r')\n"
        f"npmdask.top_k(array, 2, store=sys.argv[1], observer=Killed(), **{ASKED!r})\n"
    )

    def run(store: str, step: int) -> int:
        command = (sys.executable, str(program), str(tmp_path / store), str(step))
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.run(command, env=environment, stdout=subprocess.DEVNULL).returncode

    assert run("killed", 3) == -signal.SIGKILL
    assert sorted(path.name for path in (tmp_path / "killed" / "steps").iterdir() if path.is_dir())
    assert not (tmp_path / "killed" / "result").exists()
    assert run("killed", 0) == run("whole", 0) == 0
    same_bytes(tmp_path / "killed", tmp_path / "whole")


@pytest.mark.slow
def test_the_command_line_takes_a_folder_and_goes_on_with_its_snapshot(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Also when the branch has moved on: what the run began with is still there."""
    made = repository(tmp_path / "repo", x=X)
    before = made.readonly_session("main").snapshot_id
    words = ["run", str(tmp_path / "repo/cells/x"), "-k", "2", "--kind", "samples", "--quiet", "--json", "--store"]
    words += [str(tmp_path / "run"), "--algorithm", "power", "--set", "algorithm.iteration_rank=4"]
    assert main([*words, "--set", "algorithm.max_steps=1"]) == 4
    icechunk.set_logs_filter("error")
    commit(made, x=X * 2)
    capfd.readouterr()
    assert main(["resume", str(tmp_path / "run"), "--max-steps", "90", "--quiet", "--json"]) == 0
    out, err = capfd.readouterr()
    assert out.count("\n") == 1 and "icechunk" not in err, "its own warnings do not get between"
    found = npmdask.resume(tmp_path / "run")
    np.testing.assert_allclose(found.values, np.linalg.eigvalsh(X.T @ X / len(X))[:-3:-1], rtol=1e-9)
    assert main(words) == RefusedError.exit_code
    after = made.readonly_session("main").snapshot_id
    said = capfd.readouterr().err
    assert f"repo@{before}/cells/x, and are {tmp_path}/repo@{after}/cells/x" in said


@pytest.mark.slow
def test_grids_keep_their_names_and_are_known_by_the_snapshot(tmp_path: Path) -> None:
    made = icechunk.Repository.create(icechunk.local_filesystem_storage(str(tmp_path / "repo")))
    values = np.random.default_rng(2).standard_normal((200, 4, 5))
    grid = xr.Dataset({"sst": (("time", "lat", "lon"), values)}, coords={"lat": [10.0, 20.0, 30.0, 40.0]})

    def write(data: xr.Dataset, mode: Any) -> None:
        session = made.writable_session("main")
        data.to_zarr(session.store, consolidated=False, mode=mode)
        session.commit("grid")

    write(grid, "w")
    asked: dict[str, Any] = {
        "dim": "time",
        "kind": "samples",
        "algorithm": "power",
        "iteration_rank": 6,
        "max_steps": 4,
    }
    truth = npmdask.top_k(values.reshape(200, -1), 2, **{**asked, "dim": None})
    opened = xr.open_zarr(made.readonly_session("main").store, consolidated=False, chunks={})["sst"]
    lazy = npmdask.top_k(opened, 2, **asked, store=tmp_path / "lazy")
    path = npmdask.top_k(tmp_path / "repo/sst", 2, **asked, store=tmp_path / "path")
    for found in (lazy, path):
        np.testing.assert_allclose(found.values, truth.values, rtol=1e-9)
        assert [axis.name for axis in found.labels.columns] == ["lat", "lon"]
    write(grid * 2, "a")
    again = xr.open_zarr(made.readonly_session("main").store, consolidated=False, chunks={})["sst"]
    with pytest.raises(RefusedError, match="belongs to another run"):
        npmdask.top_k(again, 2, **asked, store=tmp_path / "lazy")
    with pytest.raises(RefusedError, match=r"repo@\w+/sst, and are .*repo@\w+/sst"):
        npmdask.top_k(tmp_path / "repo/sst", 2, **asked, store=tmp_path / "path")
    assert npmdask.resume(tmp_path / "path").data_passes == 0
    with pytest.raises(BadInputError, match=r"xarray.open_zarr\(session.store, consolidated=False"):
        npmdask.top_k(made.readonly_session("main"), 2, dim="time")


def test_what_can_still_be_written_is_refused(tmp_path: Path) -> None:
    """A pass over it could see two versions, and its snapshot's id is of neither."""
    made = repository(tmp_path / "repo", x=X)
    session = made.writable_session("main")
    array = zarr.open_array(session.store, path="cells/x")
    shown = session.store.with_read_only(True)
    for given in (session, session.store, array, shown, zarr.open_array(shown, path="cells/x", mode="r")):
        with pytest.raises(BadInputError, match=r"is writable, so its data may change.*readonly_session"):
            open_source(given)
    array[0] = 7.0
    lazy = xr.DataArray(zarr.open_array(session.store, path="cells/x")[...], dims=("a", "b"))
    assert open_source(lazy).shape == X.shape, "what was read into memory is what it is"
    for given in (session, array):
        with pytest.raises(BadInputError, match="is writable and has changes that are not committed"):
            open_source(given)
    session.commit("written")
    assert open_source(array).fingerprint == open_source(array_of(made)).fingerprint


@pytest.mark.slow
def test_what_is_missing_is_an_error_and_never_zeros(tmp_path: Path) -> None:
    made = icechunk.Repository.create(icechunk.local_filesystem_storage(str(tmp_path / "repo")))
    session = made.writable_session("main")
    holes = zarr.create_array(session.store, name="holes", shape=X.shape, chunks=(100, 12), dtype="f8")
    holes[:500] = X[:500]
    packed: dict[str, Any] = {"shape": X.shape, "chunks": (100, 12), "compressors": zarr.codecs.GzipCodec()}
    zarr.create_array(session.store, name="packed", dtype="f8", **packed)[:500] = X[:500]  # which is read by zarr
    session.commit("half of it")
    for name in ("holes", "packed"):
        with pytest.raises(BadInputError, match=rf"chunk c/5/0 of .*/{name} is missing \(Zarr would silently read it"):
            npmdask.top_k(array_of(made, name), 2)
        with pytest.raises(BadInputError, match=rf"chunk c/5/0 of .*/{name} is missing"):
            npmdask.top_k(tmp_path / "repo" / name, 2)


def virtual(folder: Path, wide: np.ndarray, prefix: str) -> icechunk.Repository:
    """A repository without chunks of its own: they are those of an HDF5 file."""
    with h5py.File(folder / "x.h5", "w") as file:
        stored = file.create_dataset("x", data=wide, chunks=(100, wide.shape[1])).id
        chunks = [stored.get_chunk_info(i) for i in range(stored.get_num_chunks())]
    config = icechunk.RepositoryConfig.default()
    inside = icechunk.local_filesystem_store(str(folder))
    config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(prefix, inside))
    storage = icechunk.local_filesystem_storage(str(folder / "repo"))
    made = icechunk.Repository.create(storage, config, authorize_virtual_chunk_access={prefix: None})
    made.save_config()
    session = made.writable_session("main")
    zarr.create_array(
        session.store, name="x", shape=wide.shape, chunks=(100, wide.shape[1]), dtype="f8", compressors=None
    )
    for found in chunks:
        place = f"x/c/{found.chunk_offset[0] // 100}/0"
        session.store.set_virtual_ref(place, f"{prefix}x.h5", offset=found.byte_offset, length=found.size)
    session.commit("chunks of another file")
    return made


@pytest.mark.slow
def test_chunks_in_files_of_other_programs(tmp_path: Path) -> None:
    """Mutants: a changed file is read as if it were the old one; a refusal that says to try again."""
    prefix, store = f"file://{tmp_path}/", tmp_path / "run"
    made = virtual(tmp_path, X, prefix)
    source = open_source(array_of(made, "x"), "samples")
    assert source.reader.access.by_rows or source.reader.access.way == "decoded"  # type: ignore[union-attr]
    found = npmdask.top_k(array_of(made, "x"), 3, store=store, **ASKED)
    plain = npmdask.top_k(write_zarr(tmp_path / "p.zarr", X, (100, 12), compressors=None), 3, **ASKED)
    assert (found.basis == plain.basis).all() and (found.values == plain.values).all()
    with pytest.raises(BadInputError, match=r"chunk c/0/0 of .* is a virtual one, .*authorize_virtual"):
        npmdask.top_k(tmp_path / "repo" / "x", 3, **ASKED)
    begun = tmp_path / "begun"
    with pytest.raises(Stop):
        npmdask.top_k(array_of(made, "x"), 3, store=begun, observer=StopAfter(2), **ASKED)
    with h5py.File(tmp_path / "x.h5", "r+") as file:
        file["x"][750, 3] += 1e-9
    with pytest.raises(BadInputError, match=r"chunk c/7/0 of .* (has changed|is corrupt|changed)"):
        npmdask.top_k(array_of(made, "x"), 3, store=begun, **ASKED)
    (tmp_path / "x.h5").unlink()
    with pytest.raises((BadInputError, LostError), match=r"chunk c/\d/0 of .* cannot be fetched"):
        npmdask.top_k(array_of(made, "x"), 3, **ASKED)


@pytest.mark.parametrize("kind", ["chunks", "manifests", "snapshots"])
def test_what_the_storage_has_lost_is_a_sentence(tmp_path: Path, kind: str) -> None:
    repository(tmp_path / "repo", x=np.random.default_rng(1).standard_normal((900, 500)))
    files = [path for path in (tmp_path / "repo" / kind).rglob("*") if path.is_file()]
    now = icechunk.Repository.open(icechunk.local_filesystem_storage(str(tmp_path / "repo"))).readonly_session("main")
    (tmp_path / "repo" / kind / now.snapshot_id if kind == "snapshots" else files[0]).unlink()
    with pytest.raises(BadInputError, match=r"cannot be (fetched|opened|read) \(.*not found|contains no Zarr array"):
        npmdask.top_k(tmp_path / "repo/cells/x", 2)


@pytest.mark.slow
def test_other_bytes_under_the_id_of_a_snapshot_are_found_out(tmp_path: Path) -> None:
    """A store that says it shows a snapshot, and shows something else: a later pass is held to the first one's sums."""
    made = repository(tmp_path / "repo", x=X)
    with pytest.raises(Stop):
        npmdask.top_k(array_of(made), 2, **ASKED, store=tmp_path / "run", observer=StopAfter(2))
    other = repository(tmp_path / "other", x=np.where(np.arange(900)[:, None] == 450, X + 1e-9, X))
    genuine, false = made.readonly_session("main"), other.readonly_session("main")
    disguised = Disguised(false, genuine.snapshot_id)
    array = zarr.open_array(false.store, path="cells/x", mode="r")
    assert type(array.store_path.store).session is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(false.store), "session", property(lambda _: disguised))
        with pytest.raises(BadInputError, match=r"chunk c/4/0 of icechunk snapshot .* is corrupt"):
            npmdask.top_k(array, 2, **ASKED, store=tmp_path / "run")


class Disguised:
    """A session of one snapshot, by the id of another."""

    def __init__(self, session: Any, snapshot: str) -> None:
        self._session, self.snapshot_id, self.read_only = session, snapshot, True


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda repo: repo, "the Repository of icechunk is not a session: give repository.readonly_session"),
        (
            lambda repo: repo.readonly_session("main"),
            r"0 two-dimensional arrays \(none; further down cells/x, cells/y\)",
        ),
        (
            lambda repo: zarr.open_group(repo.readonly_session("main").store, path="cells", mode="r"),
            r"2 two-dimensional arrays \(x, y\): name one, as zarr.open_array\(session.store, path='NAME', mode='r'\)",
        ),
    ],
)
def test_which_array_is_meant_must_be_said(tmp_path: Path, made: Any, said: str) -> None:
    repo = repository(tmp_path / "repo", x=X, y=X)
    with pytest.raises(BadInputError, match=said):
        npmdask.top_k(made(repo), 2)


def test_paths_that_lead_nowhere(tmp_path: Path) -> None:
    made = repository(tmp_path / "repo", x=X, y=X)
    now, none = made.readonly_session("main").snapshot_id, "0" * 20
    for path, said in (
        ("repo", r"0 two-dimensional arrays \(none; further down cells/x, cells/y\): name one, as .*repo@\w{20}/NAME"),
        ("repo/cells", r"2 two-dimensional arrays \(x, y\): name one, as .*/repo@\w{20}/cells/NAME"),
        ("repo/cells/z", rf"there is no cells/z in .*repo@{now}; it has cells/x, cells/y"),
        (f"repo@{none}/cells/x", rf"snapshot {none} of the icechunk repository .* cannot be opened \(snapshot"),
        (f"other@{now}/cells/x", "there is nothing at"),
        ("repo@nope/cells/x", r"repository .*/repo has no snapshot 'nope': an id has 20 digits and capital letters"),
        ("other@nope/cells/x", "there is nothing at"),
    ):
        with pytest.raises(BadInputError, match=said):
            npmdask.top_k(tmp_path / path, 2)
    shutil.rmtree(tmp_path / "repo" / "refs", ignore_errors=True)
    (tmp_path / "repo" / "repo").unlink(missing_ok=True)
    with pytest.raises(BadInputError, match="is not a Zarr store"):
        npmdask.top_k(tmp_path / "repo", 2)


@pytest.mark.slow
def test_without_the_package_a_folder_of_its_is_a_sentence(tmp_path: Path) -> None:
    repository(tmp_path / "repo", x=X)
    code = (
        "import sys; sys.modules['icechunk'] = None; import npmdask\n"
        f"try: npmdask.top_k({str(tmp_path / 'repo/cells/x')!r}, 2)\n"
        "except npmdask.BadInputError as error: print(error)"
    )
    done = subprocess.run((sys.executable, "-c", code), cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "icechunk is not installed, which this needs: pip install icechunk\n", done.stderr
    code = "import sys, npmdask, npmdask.core.storage.source; assert 'icechunk' not in sys.modules"
    assert subprocess.run((sys.executable, "-c", code), cwd=ROOT).returncode == 0, "it is imported where it is needed"


@pytest.mark.slow
def test_streams_take_a_snapshot_from_the_program_that_has_it(tmp_path: Path) -> None:
    made = repository(tmp_path / "repo", x=X)
    asked: dict[str, Any] = {"algorithm": "spm", "batch_rows": 300, "store": tmp_path / "stream"}
    found = npmdask.stream_pca(array_of(made), 2, **asked)
    np.testing.assert_array_equal(found.basis, npmdask.stream_pca(X, 2, **{**asked, "store": None}).basis)
    with pytest.raises(RefusedError, match="only the program that started it can provide"):
        npmdask.resume(tmp_path / "stream")
