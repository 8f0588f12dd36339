"""Damaged metadata in which HDF5 loses itself, in its C code: refused after a while, and a signal ends it at once."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import h5py
import psutil
import pytest
import scipy.sparse as sp

from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError
from npmdask.formats import hdf5
from npmdask.formats.ingest import ingest

pytestmark = pytest.mark.slow
X = sp.random_array((60, 20), density=0.3, format="csr", rng=0)


def annotated(path: Path, *, damaged: bool) -> Path:
    """As AnnData writes it. The texts of attributes lie in a heap of their own, in which no entry may be of 0 bytes."""
    with h5py.File(path, "w") as file:
        group = file.create_group("X")
        group.attrs.update({"encoding-type": "csr_matrix", "shape": X.shape})
        group["data"], group["indices"], group["indptr"] = X.data, X.indices, X.indptr
        file.create_dataset("field", data=X.toarray()).attrs["units"] = "m"
    if damaged:
        data = bytearray(path.read_bytes())
        at = data.index(b"GCOL")
        data[at + 16 : at + 4096] = bytes(4096 - 16)
        path.write_bytes(data)
    return path


def test_it_is_refused_and_whole_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, before = annotated(tmp_path / "whole.h5ad", damaged=False), psutil.Process().children()
    ingest(whole, tmp_path / "x.zarr")
    assert open_source(tmp_path / "x.zarr").reader.entries == X.nnz  # type: ignore[union-attr]
    monkeypatch.setattr(hdf5, "PATIENCE", 1.5)
    damaged = annotated(tmp_path / "damaged.h5ad", damaged=True)
    for door in (lambda: ingest(damaged, tmp_path / "y.zarr"), lambda: open_source(damaged / "field", dim="x")):
        with pytest.raises(
            BadInputError, match=r"damaged\.h5ad is damaged: HDF5 reads nothing for 1\.5 s and does not"
        ):
            door()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("y.zarr")]
    assert not {*psutil.Process().children()} - {*before}  # other tests of this process may have helpers


def test_a_signal_ends_it_at_once(tmp_path: Path) -> None:
    damaged = annotated(tmp_path / "damaged.h5ad", damaged=True)
    command = [sys.executable, "-m", "npmdask", "ingest", damaged, tmp_path / "x.zarr"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        while not (
            walks := [one for one in psutil.Process(process.pid).children() if "walk_hdf5.py" in str(one.cmdline())]
        ):
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert "interrupted" in process.communicate(timeout=60)[1] and process.returncode == 130
        assert not any(walk.is_running() for walk in walks)
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("begun", [True, False])
def test_a_crash_is_no_crash_of_this_process(begun: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One before the first object is of the system, as where memory is short, and says nothing of the file."""
    script = tmp_path / "walk.py"
    script.write_text(f"import os\n{'print(flush=True)' if begun else ''}\nos.abort()\n")
    monkeypatch.setattr(hdf5, "WALK", script)
    path = annotated(tmp_path / f"{begun}.h5ad", damaged=False)

    def asked() -> Any:
        return ingest(path, tmp_path / "x.zarr")

    if begun:
        with pytest.raises(BadInputError, match="HDF5 crashes in its metadata"):
            asked()
    else:
        assert asked().shape == X.shape


def test_a_file_is_walked_once_until_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, said = tmp_path / "walk.py", tmp_path / "said"
    script.write_text(f"with open({str(said)!r}, 'a') as file:\n    file.write('walked,')\n")
    monkeypatch.setattr(hdf5, "WALK", script)
    path = annotated(tmp_path / "x.h5ad", damaged=False)
    for times in (1, 2):
        for _ in range(2):
            hdf5.require_readable(path)
        assert said.read_text() == "walked," * times
        path.write_bytes(path.read_bytes() + bytes(8))
