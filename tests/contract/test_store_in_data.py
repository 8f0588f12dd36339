"""A store inside the data that are read would change them: refused before anything is written, at every door."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npmdask
from npmdask.cli.main import main
from npmdask.errors import BadInputError
from tests.conftest import planted, same_bytes, write_zarr

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_zarr(tmp_path / "x.zarr", planted(60, 8, 1 / np.sqrt(np.arange(1, 9)))[0], (20, 8))
    Path("link").symlink_to("x.zarr")
    Path("rows").mkdir()
    np.savetxt("rows/a.csv", np.random.default_rng(0).standard_normal((600, 4)), delimiter=",")
    return tmp_path


def all_in(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


RUN = ["run", "x.zarr", "-k", "2", "--quiet", "--store"]
STREAM = ["run", "rows", "-k", "2", "--algorithm", "msg", "--quiet", "--store"]


@pytest.mark.parametrize(
    "command",
    [
        [*RUN, "x.zarr/run"],
        [*RUN, "link/deeper/run"],
        ["run", "link", "-k", "2", "--quiet", "--store", "x.zarr/run"],
        ["gram", "x.zarr", "x.zarr/gram", "--quiet"],
        [*STREAM, "rows/run"],
        ["ingest", "x.zarr", "link/copy.zarr", "--quiet"],
    ],
)
def test_inside_it_is_refused_and_leaves_nothing(command: list[str], folder: Path, capsys: Any) -> None:
    before = all_in(folder)
    assert main(command) == BadInputError.exit_code
    said = capsys.readouterr().err
    assert "which holds data: choose a store outside of it" in said
    assert all_in(folder) == before


def test_an_empty_directory_that_is_streamed(folder: Path) -> None:
    Path("empty").mkdir()
    with pytest.raises(BadInputError, match=r"empty lies in .*empty, which holds data"):
        npmdask.stream_pca("empty", 2, columns=4, store="empty")
    assert not all_in(Path("empty"))


def test_beside_it_is_answered_and_twice(folder: Path) -> None:
    """Also in a folder that streams: where no file of that name is read."""
    for command in ([*RUN, "x.zarr-run"], [*STREAM, "out"]):
        assert main(command) == main(command) == 0
    for _ in range(2):
        npmdask.stream_pca("rows", 2, algorithm="msg", pattern="*.csv", store="rows/run")
    npmdask.stream_pca("rows", 2, algorithm="msg", pattern="*.csv", store="twin")
    same_bytes(Path("rows/run"), Path("twin"))
