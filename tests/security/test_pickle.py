"""Nothing that is read, from disk or network, is ever unpickled: data that would run code are refused, and run none."""

from __future__ import annotations

import ast
import io
import json
import pickle
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from numcodecs import pickles
from prefect import Task
from prefect.cache_policies import NO_CACHE

import npmdask
from npmdask.core.runs.left_vectors import open_left_product
from npmdask.core.storage.bundle import MANIFEST, read_bundle, write_bundle
from npmdask.core.storage.checksum import crc32c_bytes
from npmdask.errors import BadInputError
from npmdask.formats.ingest import ingest
from npmdask.prefect import private_release, staged_runs, streaming_update
from npmdask.prefect import tasks as tasks_of_runs
from npmdask.prefect.programs import SETTINGS
from npmdask.prefect.schedules import FLOWS
from npmdask.streaming.streaming_pca import StreamingPCA
from npmdask.synthetic import generate

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "npmdask"


class Hostile:
    """Unpickled, it makes a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.marker,))


@pytest.fixture
def marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that appears if code has run; what numcodecs refuses of its own accord is switched on."""
    monkeypatch.setattr(pickles, "ALLOW_UNSAFE_PICKLE_DECODE", True)
    return tmp_path / "ran"


def old_array(
    folder: Path, shape: list[int], dtype: str, filters: list[str], compressor: str | None, data: bytes
) -> Path:
    """An array of Zarr 2 with one chunk."""
    folder.mkdir(parents=True)
    named = {"filters": [{"id": name} for name in filters] or None, "compressor": compressor and {"id": compressor}}
    layout = {"zarr_format": 2, "shape": shape, "chunks": shape, "dtype": dtype, "order": "C", "fill_value": None}
    (folder / ".zarray").write_text(json.dumps(layout | named))
    (folder / ".".join("0" for _ in shape)).write_bytes(data)
    return folder


CODECS: dict[str, tuple[str, list[str], str | None]] = {
    "object dtype": ("|O", ["pickle"], None),
    "numbers, as filter": ("<f8", ["pickle"], None),
    "numbers, as compressor": ("<f8", [], "pickle"),
    "behind text": ("|O", ["vlen-utf8", "pickle"], None),
    "text, as compressor": ("|O", ["vlen-utf8"], "pickle"),
}
SENTENCE = "holds pickled Python objects, and reading those can run any code"


@pytest.mark.parametrize("how", CODECS)
@pytest.mark.filterwarnings("ignore")  # zarr's, of what it is about to refuse
def test_an_array_that_names_pickle_is_refused(how: str, tmp_path: Path, marker: Path) -> None:
    dtype, filters, compressor = CODECS[how]
    old_array(tmp_path / "x.zarr", [30, 4], dtype, filters, compressor, pickle.dumps(Hostile(marker)))
    doors: dict[str, Callable[[Path], Any]] = {
        "top_k": lambda path: npmdask.top_k(path, 2),
        "samples": lambda path: npmdask.top_k(path, 2, kind="samples"),
        "ingest": lambda path: ingest(path, tmp_path / "out.zarr", kind="samples"),
        "matrices": lambda path: ingest(path, tmp_path / "out.zarr", kind="matrices"),
        "tensor": lambda path: ingest(path, tmp_path / "out.zarr", kind="tensor"),
    }
    for name, door in doors.items():
        with pytest.raises(BadInputError, match=SENTENCE):
            door(tmp_path / "x.zarr")
        assert not marker.exists(), name
    assert not (tmp_path / "out.zarr").exists()


@pytest.mark.parametrize("how", ["numbers, as filter", "numbers, as compressor"])
@pytest.mark.filterwarnings("ignore")
def test_one_hostile_array_in_a_group_is_refused_whoever_opens_it(how: str, tmp_path: Path, marker: Path) -> None:
    dtype, filters, compressor = CODECS[how]
    group = zarr.open_group(tmp_path / "x.zarr", mode="w", zarr_format=2)
    old_array(tmp_path / "x.zarr" / "deep" / "a", [4], dtype, filters, compressor, pickle.dumps(Hostile(marker)))
    zarr.open_group(tmp_path / "x.zarr" / "deep", mode="a", zarr_format=2)
    for source in (tmp_path / "x.zarr", group):
        with pytest.raises(BadInputError, match="holds pickled Python objects"):
            npmdask.top_k(source, 2)
    assert not marker.exists()


@pytest.mark.parametrize("how", ["behind text", "text, as compressor"])
@pytest.mark.filterwarnings("ignore")
def test_a_good_store_with_one_hostile_array_is_refused(how: str, tmp_path: Path, marker: Path) -> None:
    """What lies beside the data is read as soon as a store is opened: a group of format 2 with a record of ours."""
    dtype, filters, compressor = CODECS[how]
    group = zarr.open_group(tmp_path / "x.zarr", mode="w", zarr_format=2)
    group.create_array("data", data=np.ones((30, 4)))
    record = {"format": 1, "kind": "samples", "shape": [30, 4], "fingerprint": "f", "beside": {"column_mean": 0}}
    group.attrs["npmdask"] = record
    old_array(tmp_path / "x.zarr" / "column_mean", [4], dtype, filters, compressor, pickle.dumps(Hostile(marker)))
    with suppress(Exception):  # it does not give what is expected of an array
        np.asarray(zarr.open_group(tmp_path / "x.zarr", mode="r")["column_mean"][...])
    assert marker.exists(), "without the door it runs"
    marker.unlink()
    with pytest.raises(BadInputError, match=r"the array .*column_mean holds pickled Python objects"):
        npmdask.top_k(tmp_path / "x.zarr", 2)
    with pytest.raises(BadInputError, match="holds pickled Python objects"):
        npmdask.top_k(zarr.open_group(tmp_path / "x.zarr", mode="r"), 2)
    assert not marker.exists()


@pytest.mark.filterwarnings("ignore")
def test_a_run_that_somebody_sent_is_read_with_the_same_care(tmp_path: Path, marker: Path) -> None:
    old_array(tmp_path / "run" / "left.zarr", [30], *CODECS["behind text"], pickle.dumps(Hostile(marker)))
    with pytest.raises(BadInputError, match="holds pickled Python objects"):
        open_left_product(tmp_path / "run")
    assert not marker.exists()


def pickled_npy(marker: Path) -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([[Hostile(marker)] * 3] * 3, object), allow_pickle=True)
    return file.getvalue()


def test_numpy_files_are_numbers(tmp_path: Path, marker: Path) -> None:
    (tmp_path / "x.npy").write_bytes(pickled_npy(marker))
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("a.npy", pickled_npy(marker))
        archive.writestr("../../b.npy", pickled_npy(marker))  # nothing is unpacked by its name
    for name, dataset in (("x.npy", None), ("x.npz", "a"), ("x.npz", "../../b")):
        with pytest.raises(BadInputError, match=r"would have to be unpickled"):
            ingest(tmp_path / name, tmp_path / "out.zarr", kind="samples", dataset=dataset)
    assert not marker.exists()


def test_a_model_that_somebody_sent_is_numbers_and_json(tmp_path: Path, marker: Path) -> None:
    write_bundle(tmp_path / "model", {"a": np.zeros(300)}, {"model": {}})
    data = pickled_npy(marker)
    (tmp_path / "model" / "a.npy").write_bytes(data)
    text = json.dumps({"meta": {"model": {}}, "files": {"a.npy": crc32c_bytes(data)}}).encode()
    (tmp_path / "model" / MANIFEST).write_bytes(text + b"\n" + f"{crc32c_bytes(text):08x}\n".encode())
    for door in (read_bundle, StreamingPCA.load):
        with pytest.raises(BadInputError, match=r"does not hold an array of numbers .*, and is never unpickled"):
            door(tmp_path / "model")
    text = json.dumps({"meta": {"model": {}}, "files": {}, "small": {"a": ["|O", [1], "00" * 8]}}).encode()
    (tmp_path / "model" / MANIFEST).write_bytes(text + b"\n" + f"{crc32c_bytes(text):08x}\n".encode())
    with pytest.raises(BadInputError, match="does not hold an array of numbers"):
        read_bundle(tmp_path / "model")
    assert not marker.exists()


@pytest.mark.slow
def test_good_stores_of_either_format_are_still_read(tmp_path: Path) -> None:
    generate(tmp_path / "x.zarr", problem="spectrum", rows=60, columns=8, rank=2, spectrum="harmonic")
    assert npmdask.top_k(tmp_path / "x.zarr", 2).converged
    zarr.create_array(tmp_path / "old.zarr", data=np.diag(np.arange(1.0, 9.0)), chunks=(4, 8), zarr_format=2)
    assert npmdask.top_k(tmp_path / "old.zarr", 2).values[0] == pytest.approx(8.0)


def test_prefect_keeps_no_results() -> None:
    """Its results are pickles in a folder: none is written, so none is read."""
    assert SETTINGS["PREFECT_RESULTS_PERSIST_BY_DEFAULT"] == "false"
    for name, flow in FLOWS.items():
        assert flow.persist_result is False, name
    steps = (staged_runs.look, tasks_of_runs.iterate, private_release.release, streaming_update.update)
    assert all(isinstance(step, Task) for step in steps)
    assert all(step.persist_result is False and step.cache_policy == NO_CACHE for step in steps)


@pytest.mark.slow
def test_there_is_one_door_to_zarr() -> None:
    """Others open only what they write themselves: the folder aside of a writer."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("zarr.open"):
                mine = path.name == "safe_open.py" or "self.partial" in ast.unparse(node)
                assert mine or path.name == "perturb.py", f"{path}: {ast.unparse(node)}"
