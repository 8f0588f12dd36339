"""What a store may be called; nothing here needs a server."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import npmdask
from npmdask.config import load_config
from npmdask.core.checkpoint.store import RunStore, folder_of
from npmdask.core.storage.chunk_access import first_line
from npmdask.core.storage.paths import place_of_store
from npmdask.errors import BadInputError, RefusedError
from npmdask.remote.object_url import open_remote
from npmdask.remote.run_store import Carried, LocalCopy, Pointer
from tests.conftest import write_zarr


def test_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert place_of_store("runs/x") == str(tmp_path / "runs/x")
    assert place_of_store("runs/x", Path("/srv")) == "/srv/runs/x"
    assert place_of_store("file:///srv/a%20b/") == "/srv/a b"
    assert place_of_store("s3://bucket/runs/x/") == "s3://bucket/runs/x"
    assert place_of_store("abfs://container@account.dfs.core.windows.net/x").startswith("abfs://container@")
    wrong = ["ftp://host/x", "http://host/x", "s3://bucket", "s3:///x", "file://host/x", "file:///"]
    for url in [*wrong, "s3://bucket/../x", "s3://bucket//x", "gs://bucket/."]:
        with pytest.raises(BadInputError):
            place_of_store(url)


def test_credentials_in_an_address_are_refused_and_not_repeated() -> None:
    for url in ["s3://user:hidden@bucket/x", "s3://hidden@bucket/x", "s3://bucket/x?sig=hidden", "abfs://a:hidden@b/x"]:
        for takes in (place_of_store, open_remote, RunStore, folder_of):
            with pytest.raises(BadInputError, match=r"remove them and set them in the environment") as caught:
                takes(url)
            assert "hidden" not in str(caught.value)


def test_errors_of_servers_lose_their_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "abcdefgh")
    assert first_line(ValueError("signature of abcdefgh is wrong\nand more")) == "signature of *** is wrong"


def test_a_file_url_is_the_folder(tmp_path: Path) -> None:
    path = write_zarr(tmp_path / "x.zarr", np.diag(np.arange(1.0, 9.0)))
    found = npmdask.top_k(path, 2, store=f"file://{tmp_path}/run")
    assert found.store == str(tmp_path / "run") and (tmp_path / "run" / "result").is_dir()
    assert npmdask.resume(f"file://{tmp_path}/run").data_passes == 0  # type: ignore[union-attr]


def test_private_runs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match=r"s3://bucket/x cannot be the store of a private run"):
        RunStore("s3://bucket/x", private=True)
    (tmp_path / "p.toml").write_text(
        '[source]\npath = "x.zarr"\n[algorithm]\ntarget_rank = 2\n[run]\nstore = "s3://bucket/x"\n'
        "[privacy]\nepsilon = 1.0\ndelta = 1e-6\n"
    )
    with pytest.raises(RefusedError, match=r"anyone who may read the bucket could take the noise off again"):
        load_config(tmp_path / "p.toml").check()


def test_a_configuration_with_a_url(tmp_path: Path) -> None:
    text = '[source]\npath = "x.zarr"\n[algorithm]\ntarget_rank = 2\n[run]\nstore = "s3://bucket/a"\nstart = "s3://bucket/b"\n'
    (tmp_path / "c.toml").write_text(text)
    run = load_config(tmp_path / "c.toml").run
    assert (run.store, run.start) == ("s3://bucket/a", "s3://bucket/b")
    assert load_config(tmp_path / "c.toml", store="gs://other/c").run.store == "gs://other/c"
    assert load_config(tmp_path / "c.toml", store="file:///srv/c").run.store == "/srv/c"


def test_one_copy_for_each_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NPMDASK_CACHE", str(tmp_path))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://one")
    one = LocalCopy("s3://bucket/x").folder
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://two")
    assert LocalCopy("s3://bucket/x").folder != one and one.name == "x" and tmp_path in one.parents


def test_a_pointer_survives_and_is_not_believed_blindly() -> None:
    pointer = Pointer(
        epoch=3, token="ab", held=True, number=4, files={"steps/000001/manifest.json": Carried("c", 5, 6)}
    )
    data = pointer.encode()
    assert Pointer.decode(data, "s3://b/x") == pointer
    for broken in (data[:-4], data.replace(b'"epoch": 3', b'"epoch": 4'), b"", b"[]\n00000000\n"):
        with pytest.raises(BadInputError, match=r"s3://b/x/commit.json is damaged"):
            Pointer.decode(broken, "s3://b/x")
    for path in ("../../home/x", "/etc/x"):
        with pytest.raises(BadInputError, match=r"is not a file of a run"):
            Pointer.decode(Pointer(files={path: Carried("c", 1, 1)}).encode(), "s3://b/x")
