"""The folder of arrays that is the unit of every checkpoint: what is put in comes out, and what rots is named."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npmdask
from npmdask.core.storage import bundle
from npmdask.core.storage.bundle import MANIFEST, SMALL_BYTES, read_bundle, write_bundle
from npmdask.core.storage.checksum import crc32c_bytes
from npmdask.errors import BadInputError, FencedOutError
from tests.conftest import write_zarr

ARRAYS = {
    "few": np.array([[1.0, -0.0, np.nan], [np.inf, 5e-324, 0.1]]),
    "number": np.array(7, np.int16),
    "none": np.zeros((0, 3), np.float32),
    "turned": np.arange(12, dtype=np.float32).reshape(3, 4).T,
    "signs": np.array([True, False]),
    "many": np.arange(SMALL_BYTES // 8 + 1.0),
    "just": np.arange(SMALL_BYTES // 8 + 0.0),
}


@pytest.mark.parametrize("inline", [False, True])
def test_arrays_come_back_as_they_were(tmp_path: Path, inline: bool) -> None:
    write_bundle(tmp_path / "b", ARRAYS, {"step": 3}, inline=inline)
    found, meta = read_bundle(tmp_path / "b")
    assert meta == {"step": 3} and found.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert found[name].dtype == array.dtype and found[name].shape == array.shape
        assert found[name].tobytes() == np.ascontiguousarray(array).tobytes()
        found[name][...] = 0  # an array of one's own
    files = {path.name for path in (tmp_path / "b").iterdir()}
    large = {"many.npy"} if inline else {f"{name}.npy" for name in ARRAYS}
    assert files == {MANIFEST} | large, "up to SMALL_BYTES in the manifest, more in a file"


def test_a_changed_digit_of_an_array_in_the_manifest_is_seen(tmp_path: Path) -> None:
    write_bundle(tmp_path / "b", {"few": np.array([1.0])}, {}, inline=True)
    path = tmp_path / "b" / MANIFEST
    text = path.read_bytes()
    assert b"000000000000f03f" in text
    path.write_bytes(text.replace(b"000000000000f03f", b"000000000000f03e"))
    with pytest.raises(BadInputError, match=r"manifest.json is missing or corrupt \(checksum mismatch\)"):
        read_bundle(tmp_path / "b")


def test_a_manifest_is_json_for_other_tools(tmp_path: Path) -> None:
    write_bundle(tmp_path / "b", ARRAYS, {"step": 3})
    found = json.loads((tmp_path / "b" / MANIFEST).read_text())
    assert found["meta"] == {"step": 3} and set(found["files"]) == {f"{name}.npy" for name in ARRAYS}


def as_it_was(folder: Path) -> None:
    """Every manifest below a folder in its first form: the object, and its checksum as a line of its own."""
    for path in folder.rglob(MANIFEST):
        content = json.loads(path.read_text())
        del content["crc32c"]
        text = json.dumps(content, sort_keys=True).encode()
        path.write_bytes(text + f"\n{crc32c_bytes(text):08x}\n".encode())


def test_bundles_in_the_first_form_are_read(tmp_path: Path) -> None:
    write_bundle(tmp_path / "b", ARRAYS, {"step": 3}, inline=True)
    now = read_bundle(tmp_path / "b")
    as_it_was(tmp_path)
    assert len((tmp_path / "b" / MANIFEST).read_text().splitlines()) == 2
    found = read_bundle(tmp_path / "b")
    assert found[1] == now[1] and all(found[0][name].tobytes() == now[0][name].tobytes() for name in ARRAYS)


@pytest.mark.slow
def test_a_run_whose_bundles_have_the_first_form_goes_on(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).standard_normal((400, 20)) * np.geomspace(5, 1, 20)
    asked: dict[str, Any] = {"kind": "samples", "algorithm": "power", "tol": 1e-6}
    source = write_zarr(tmp_path / "x.zarr", rows, (100, 20))
    whole = npmdask.top_k(source, 3, store=tmp_path / "whole", **asked)
    npmdask.top_k(source, 3, store=tmp_path / "run", max_steps=3, **asked)
    as_it_was(tmp_path / "run")
    again = npmdask.resume(tmp_path / "run", max_steps=200)
    assert again.data_passes == whole.data_passes - 3
    np.testing.assert_array_equal(again.basis, whole.basis)


@pytest.mark.parametrize("form", ["now", "first"])
def test_every_byte_of_a_manifest_is_guarded(tmp_path: Path, form: str) -> None:
    write_bundle(tmp_path / "b", {"few": np.array([1.0])}, {"step": 3}, inline=True)
    if form == "first":
        as_it_was(tmp_path)
    path = tmp_path / "b" / MANIFEST
    text = path.read_bytes()
    for place in range(len(text.rstrip(b"\n"))):
        for other in (b"0", b"Z"):
            if (changed := text[:place] + other + text[place + 1 :]) != text:
                path.write_bytes(changed)
                with pytest.raises(BadInputError, match="missing or corrupt"):
                    read_bundle(tmp_path / "b")
    for length in range(len(text) - 1):
        path.write_bytes(text[:length])
        with pytest.raises(BadInputError, match="missing or corrupt"):
            read_bundle(tmp_path / "b")


def test_what_may_not_be_published_leaves_nothing(tmp_path: Path) -> None:
    @contextmanager
    def refusing() -> Iterator[None]:
        assert list(tmp_path.glob(".writing-*")), "all is written by then"
        raise FencedOutError("it was taken over")
        yield

    with pytest.raises(FencedOutError):
        write_bundle(tmp_path / "b", {"x": np.zeros(3)}, {}, publishing=refusing())
    assert not list(tmp_path.iterdir())


def test_a_bundle_is_on_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a power cut a name without contents would be a damaged checkpoint. Kills leave what was not flushed."""
    events: list[tuple[str, str]] = []
    fsync, rename = os.fsync, os.rename

    def flushed(descriptor: int) -> None:
        fsync(descriptor)
        events.append(("flushed", Path(os.readlink(f"/proc/self/fd/{descriptor}")).name.partition("-")[0]))

    def renamed(aside: Path, path: Path) -> None:
        rename(aside, path)
        events.append(("renamed", path.name))

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(os, "rename", renamed)
    write_bundle(tmp_path / "folder" / "b", {"few": np.ones(3), "more": np.ones(9)}, {})
    before, after = events[: events.index(("renamed", "b"))], events[events.index(("renamed", "b")) + 1 :]
    assert {name for _, name in before} == {"few.npy", "more.npy", MANIFEST, ".writing"}
    assert before[-1] == ("flushed", ".writing") and after == [("flushed", "folder")], "a folder holds names"


class InPieces:
    """An array that is written some rows at a time."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.shape, self.dtype, self.nbytes = array, array.shape, array.dtype, array.nbytes

    def pieces(self) -> Iterator[np.ndarray]:
        yield from (self.array[start : start + 5] for start in range(0, len(self.array), 5))


def test_an_array_that_stays_on_disk_is_checked_to_its_last_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle, "PIECE_BYTES", 100)
    rows: Any = InPieces(np.arange(48.0).reshape(12, 4))
    write_bundle(tmp_path / "b", {"rows": rows}, {})
    found = read_bundle(tmp_path / "b")[0]["rows"]
    assert isinstance(found, np.memmap) and found.tobytes() == rows.array.tobytes()
    file = tmp_path / "b" / "rows.npy"
    content = file.read_bytes()
    for place in (130, len(content) - 1):
        file.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises(BadInputError, match=r"rows\.npy is corrupt"):
            read_bundle(tmp_path / "b")
    file.write_bytes(content)
    assert read_bundle(tmp_path / "b")[0]["rows"].tobytes() == rows.array.tobytes()
