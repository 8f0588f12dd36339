"""Names that come from outside are names: of a run, a store, a file in a bundle or in a bucket."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npmdask
from npmdask.cli.main import main
from npmdask.config import validate_config
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.storage.bundle import MANIFEST, read_bundle, write_bundle
from npmdask.core.storage.checksum import crc32c_bytes
from npmdask.core.storage.paths import place_of_store
from npmdask.errors import BadInputError
from npmdask.prefect.parameters import at_store, checked, run_folder
from npmdask.prefect.staged_runs import topics
from npmdask.remote.run_store import Carried, LocalCopy, Pointer, fetch_files
from npmdask.synthetic import generate

NO_NAMES = [
    "",
    ".",
    "..",
    "../x",
    "/abs",
    "a/b",
    "a/../../b",
    "-x",
    ".hidden",
    "a\0b",
    "a\n",
    "a b",
    "ä",
    "a" * 201,
    "a\\b",
]


@pytest.mark.parametrize("name", NO_NAMES)
def test_a_run_id_is_the_name_of_a_folder_and_nothing_else(name: str, tmp_path: Path) -> None:
    config = validate_config({"source": {"path": "x.zarr"}, "algorithm": {"target_rank": 2}})
    for door in (
        lambda: run_folder("runs", name),
        lambda: run_folder("s3://bucket/runs", name),
        lambda: at_store(config, name),
        lambda: checked(topics, {"documents": "d", "count": 2, "run_id": name, "folder": str(tmp_path)}),
    ):
        with pytest.raises(BadInputError, match="use letters, digits, dots, dashes and underscores"):
            door()
    assert run_folder("runs", "a" * 200).endswith("/runs/" + "a" * 200)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["a\0b", "a\nb", "a\x1b[31m", "a\x9bb", "a\udcffb", "é" * 101])
def test_a_store_is_a_path_that_can_be_shown(name: str, tmp_path: Path) -> None:
    for door in (
        lambda: RunStore(tmp_path / name).open(),
        lambda: place_of_store(name),
        lambda: place_of_store(f"s3://bucket/{name}"),
        lambda: run_folder(str(tmp_path / name), "run") if len(name) < 9 else place_of_store(name),
        lambda: npmdask.top_k(np.eye(5), 2, store=tmp_path / name),
        lambda: generate(tmp_path / name, problem="spectrum", rows=10, columns=5, rank=2, spectrum="harmonic"),
    ):
        with pytest.raises(BadInputError, match=r"contains control characters|has more than 200 bytes"):
            door()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("store", [None, 3, b"runs"])
def test_a_store_that_is_no_path_is_refused(store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for door in (
        lambda: npmdask.gram(np.eye(5), store),
        lambda: npmdask.GramStore(store),
        lambda: npmdask.private_components(store, 3),
        lambda: npmdask.resume(store),
        lambda: RunStore(store).open(),
    ):
        with pytest.raises(BadInputError, match="is not a path: name the store by a path or a URL"):
            door()
    assert not list(tmp_path.iterdir())


def test_a_store_in_a_file_is_held_to_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.toml"
    file.write_text('[source]\npath = "x"\n[algorithm]\ntarget_rank = 2\n[run]\nstore = "a\\u0000b"\n')
    assert main(["run", str(file)]) == BadInputError.exit_code
    assert "contains control characters" in capsys.readouterr().err


@pytest.mark.parametrize(
    "url",
    [
        "s3://b/../x",
        "s3://b/a/./x",
        "s3://b/a/%2e%2e/x",
        "s3://b/a/%2E/x",
        "s3://b/a%2f..%2fx",
        "s3://b/a//x",
        "s3://b",
    ],
)
def test_a_url_names_one_place_in_its_bucket(url: str) -> None:
    with pytest.raises(BadInputError, match="does not name a place in a bucket"):
        place_of_store(url)


def test_a_url_of_a_folder_is_a_path_too() -> None:
    with pytest.raises(BadInputError, match="control characters"):
        place_of_store("file:///tmp/a%00b")


@pytest.mark.parametrize("name", ["../stolen.npy", "/etc/passwd", "a/b.npy", "./a.npy", "..", "a\n.npy"])
@pytest.mark.parametrize("part", ["files", "small"])
def test_a_manifest_names_files_of_its_own_folder(name: str, part: str, tmp_path: Path) -> None:
    """A model that somebody sent: what it names is neither read nor, saved again, written elsewhere."""
    np.save(tmp_path / "stolen.npy", np.ones(3))
    write_bundle(tmp_path / "model", {"a": np.zeros(3)}, {"b": 1})
    content = json.loads((tmp_path / "model" / MANIFEST).read_text().splitlines()[0])
    crc = crc32c_bytes((tmp_path / "stolen.npy").read_bytes())
    content[part] = {name: crc if part == "files" else ["<f8", [1], "00" * 8]}
    text = json.dumps(content).encode()
    (tmp_path / "model" / MANIFEST).write_bytes(text + b"\n" + f"{crc32c_bytes(text):08x}\n".encode())
    with pytest.raises(BadInputError, match=r"manifest.json was not written by npmdask .*: do not use the files"):
        read_bundle(tmp_path / "model")


@pytest.mark.parametrize(
    "path", ["entropy", "lock", "steps/lock.taking", ".writing-x", "a/.writing-x/b", "run.json.lock"]
)
def test_a_bucket_brings_no_key_and_no_lock(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPMDASK_CACHE", str(tmp_path))
    with pytest.raises(BadInputError, match=r"which is not a file of a run: do not trust the bucket"):
        fetch_files(LocalCopy("s3://b/x"), None, Pointer(files={path: Carried("c", 1, 1)}))  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("commit", ["../x", "a/b", "/a", ".."])
def test_a_bucket_names_objects_of_its_own_run(commit: str) -> None:
    hostile = Pointer(files={"run.json": Carried(commit, 1, 1)}).encode()
    with pytest.raises(BadInputError, match=r"commit.json is damaged"):
        Pointer.decode(hostile, "s3://b/x")
