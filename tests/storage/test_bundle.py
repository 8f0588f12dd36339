"""The folder of arrays that is the unit of every checkpoint: what is put in comes out, and what rots is named."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from npmdask.errors import BadInputError, FencedOutError
from npmdask.storage.bundle import MANIFEST, SMALL_BYTES, read_bundle, write_bundle

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


def test_what_may_not_be_published_leaves_nothing(tmp_path: Path) -> None:
    @contextmanager
    def refusing() -> Iterator[None]:
        assert list(tmp_path.glob(".writing-*")), "all is written by then"
        raise FencedOutError("it was taken over")
        yield

    with pytest.raises(FencedOutError):
        write_bundle(tmp_path / "b", {"x": np.zeros(3)}, {}, publishing=refusing())
    assert not list(tmp_path.iterdir())
