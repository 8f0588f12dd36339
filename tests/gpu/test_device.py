"""Runs whose sums are formed on a device: the answer of the processor, planned memory, plain refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse as sp

import npmdask
import npmdask.core.algorithms.gram as gram
import npmdask.gpu.device_choice as device_choice
import npmdask.gpu.devices as devices
import npmdask.gpu.on_device as on_device
from npmdask.config import config_of_source
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.operators import Gram
from npmdask.core.runs.automatic import posed
from npmdask.core.runs.problem import Request
from npmdask.core.runs.resources import Resources, device_for, memory_for, needs_of
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError, MemoryRefusedError, RefusedError
from npmdask.gpu.device_choice import DeviceChoice, PassRate, choose_device
from npmdask.gpu.on_device import OnDevice
from npmdask.manage.kinds import kind_of_answer
from npmdask.planning.plan import plan_lines
from tests.conftest import write_zarr


@pytest.fixture(params=["numpy", "array_api_strict"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A library of the processor is found where those of GPUs are looked for."""
    monkeypatch.setattr(devices, "LIBRARIES", (request.param,))
    return str(request.param)


@pytest.fixture
def no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "LIBRARIES", ("no_such_library",))


@pytest.fixture
def x() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((2000, 30)) * np.geomspace(9, 1, 30) + 3


@pytest.fixture
def path(x: np.ndarray, tmp_path: Path) -> Path:
    return write_zarr(tmp_path / "x.zarr", x, (300, 30))


ASKED = [
    {"kind": "samples", "center": True, "algorithm": "krylov"},
    {"kind": "samples", "center": True, "scale": True, "algorithm": "gram"},
    {"kind": "matrix", "algorithm": "krylov"},
    {"kind": "matrix", "algorithm": "gram"},
    {"kind": "samples", "algorithm": "power", "tol": 1e-6},
]


@pytest.mark.slow
@pytest.mark.parametrize("asked", ASKED, ids=lambda asked: f"{asked['kind']}-{asked['algorithm']}")
def test_the_answer_of_the_processor_and_the_same_bits_twice(
    asked: dict[str, Any], device: str, path: Path, tmp_path: Path
) -> None:
    here = npmdask.top_k(path, 4, **asked)
    there = npmdask.top_k(path, 4, device="cuda", store=tmp_path / "run", **asked)
    again = npmdask.top_k(path, 4, device="cuda", device_memory="1GiB", threads=2, **asked)
    np.testing.assert_allclose(there.values, here.values, rtol=1e-9)
    assert (there.basis.tobytes(), there.warnings) == (again.basis.tobytes(), here.warnings)
    assert there.device is not None and there.device.device == f"this processor by {device}" and here.device is None
    spec = RunStore(tmp_path / "run").read_spec() or {}
    assert spec["environment"]["device"] == there.device.device
    assert json.dumps(spec["resources"]["device"]) == '"cuda"'
    said = dict(kind_of_answer(there).overview(there, {}))
    assert f"this processor by {device}: memory planned" in said["memory"]
    assert len(said) <= 8


@pytest.mark.slow
def test_estimators_and_sparse_rows(device: str, x: np.ndarray) -> None:
    for rows in (x, sp.csr_matrix(x * (x > 4))):
        here, there = (npmdask.PCA(3, device=name).fit(rows) for name in ("cpu", "cuda"))
        np.testing.assert_allclose(there.components_, here.components_, atol=1e-9)
        here, there = (npmdask.TruncatedSVD(3, device=name).fit(rows) for name in ("cpu", "cuda"))
        np.testing.assert_allclose(there.singular_values_, here.singular_values_, rtol=1e-9)


def test_later_passes_read_nothing_of_data_that_stay(device: str, path: Path, x: np.ndarray, tmp_path: Path) -> None:
    store = tmp_path / "run"
    found = npmdask.top_k(path, 4, device="cuda", kind="samples", algorithm="krylov", store=store)
    passes = [line["bytes"] for line in RunStore(store).telemetry() if line["event"] == "passed"]
    assert passes == [x.nbytes] + [0] * (len(passes) - 1) and len(passes) > 2
    assert found.bytes_read == x.nbytes
    history = RunStore(store).history()
    assert {line["bytes_read"] for line in history} == {x.nbytes}  # whatever had stayed: a kill must not change it


@pytest.mark.slow
def test_begun_on_a_device_it_goes_on_without_and_says_so(device: str, path: Path, tmp_path: Path) -> None:
    asked = {"kind": "samples", "algorithm": "krylov", "store": tmp_path / "run"}
    npmdask.top_k(path, 4, device="cuda", max_steps=2, **asked)
    went_on = npmdask.resume(tmp_path / "run", device="cpu", max_steps=100)
    (said,) = went_on.warnings
    assert said.startswith(f"device was 'this processor by {device}' when this run began and is 'the processor' now")
    assert went_on.converged and went_on.device is None
    asked["store"] = tmp_path / "other"
    npmdask.top_k(path, 4, max_steps=2, **asked)
    (said,) = npmdask.resume(tmp_path / "other", device="cuda", max_steps=100).warnings
    assert said.startswith(f"device was 'the processor' when this run began and is 'this processor by {device}' now")


@pytest.mark.slow
def test_eigenpairs_are_found_where_the_sums_are_formed(
    device: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By this process or by a worker: with the same bits."""
    asked: dict[str, Any] = {"kind": "samples", "algorithm": "gram", "center": True, "threads": 1}
    here = npmdask.top_k(path, 4, **asked)
    monkeypatch.setattr(gram, "SMALL", 16)
    monkeypatch.setattr(scipy.linalg, "eigh", None)  # on the processor: not asked
    one, two = (npmdask.top_k(path, 4, device="cuda", workers=workers, **asked) for workers in (0, 2))
    np.testing.assert_allclose(one.values, here.values, rtol=1e-9)
    assert one.converged and one.steps == 1
    assert (one.basis.tobytes(), one.values.tobytes()) == (two.basis.tobytes(), two.values.tobytes())


def test_too_little_memory_for_eigenpairs_is_said_with_a_remedy(
    device: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class OutOfMemoryError(Exception):
        """As CuPy and PyTorch call theirs."""

    def short(*_: Any) -> Any:
        raise OutOfMemoryError("no 134217728 bytes")

    monkeypatch.setattr(gram, "SMALL", 16)
    monkeypatch.setattr(devices.BACKENDS[device], "pairs", short)
    with pytest.raises(MemoryRefusedError, match=r"does not suffice, although .* were planned: does another process"):
        npmdask.top_k(path, 4, kind="samples", algorithm="gram", device="cuda")


@pytest.mark.slow
def test_worker_processes_open_devices_of_their_own(device: str, path: Path) -> None:
    asked = {"kind": "samples", "algorithm": "krylov", "device": "cuda"}
    here, there = (npmdask.top_k(path, 4, workers=workers, threads=1, **asked) for workers in (0, 2))
    assert here.basis.tobytes() == there.basis.tobytes()
    assert here.device is not None and there.device is not None
    assert there.device.limit < here.device.limit  # of the memory of one device each has a share
    with pytest.raises(MemoryRefusedError, match=r"1 threads need \d+ MiB of it"):
        npmdask.top_k(path, 4, workers=2, threads=1, device_memory="1MiB", **asked)


# Refusals


@pytest.mark.slow
def test_there_is_no_gpu(no_device: None, path: Path) -> None:
    with pytest.raises(RefusedError, match='device = "cuda": no_such_library is not installed'):
        npmdask.top_k(path, 4, kind="samples", device="cuda")
    assert npmdask.top_k(path, 4, kind="samples", device="auto").device is None


@pytest.mark.slow
def test_there_is_no_gpu_in_the_workers(no_device: None, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_device, "STARTING", 0.0)
    with pytest.raises(RefusedError, match='device = "cuda": no_such_library is not installed'):
        npmdask.top_k(path, 4, kind="samples", device="cuda", workers=1, threads=1)
    found = npmdask.top_k(path, 4, kind="samples", device="auto", workers=1, threads=1, algorithm="krylov")
    assert found.device is None and found.converged


@pytest.mark.slow
def test_what_makes_no_sense_is_refused(device: str, path: Path, x: np.ndarray) -> None:
    with pytest.raises(BadInputError, match="device = 'gpu' is unknown: choose"):
        npmdask.top_k(path, 4, device="gpu")
    with pytest.raises(BadInputError, match="device_memory applies to a GPU"):
        npmdask.top_k(path, 4, device_memory="1GiB")
    with pytest.raises(MemoryRefusedError, match=r"may use 64 MiB and this run needs .* raise device_memory"):
        npmdask.top_k(path, 4, kind="samples", device="cuda", device_memory="64MiB")
    with pytest.raises(BadInputError, match=r"the sums of this run \(Symmetric and Triangle\) are not formed on a GPU"):
        npmdask.top_k(np.cov(x.T), 4, kind="symmetric", device="cuda")
    assert npmdask.top_k(np.cov(x.T), 4, kind="symmetric", device="auto").converged
    with pytest.raises(BadInputError, match=r"\(RowGram and RowProducts and Gram\) are not formed on a GPU"):
        npmdask.top_k(x[:20], 4, algorithm="row-gram", device="cuda")


# "auto"


@pytest.mark.slow
def test_auto_imports_nothing_where_the_processor_is_done_sooner(no_device: None, path: Path, tmp_path: Path) -> None:
    changes = {"algorithm.target_rank": 3, "source.kind": "samples", "run.device": "auto"}
    config = config_of_source(str(path), store=str(tmp_path / "run"), changes=changes)
    assert any("there is no GPU, or the run would be done before" in line for line in plan_lines(config.plan()))


@pytest.mark.slow
@pytest.mark.parametrize("faster", [True, False])
def test_auto_takes_what_is_faster_once(
    faster: bool, device: str, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settled when a run begins; a run that has begun keeps its way, whatever a later measurement says."""
    for module in (on_device, device_choice):
        monkeypatch.setattr(module, "STARTING", 0.0)
    rates = iter((1.0, 1.0, 9.0) if faster else (9.0, 9.0, 1.0))
    monkeypatch.setattr(device_choice, "_rate", lambda *_: next(rates))
    asked = {"kind": "samples", "algorithm": "krylov", "device": "auto", "store": tmp_path / "run"}
    found = npmdask.top_k(path, 4, max_steps=2, **asked)
    assert (found.device is not None) == faster
    resources = (RunStore(tmp_path / "run").read_spec() or {})["resources"]
    assert resources["device"] == ("auto" if faster else "cpu")
    went_on = npmdask.resume(tmp_path / "run", max_steps=100)
    assert ((went_on.device is not None), went_on.warnings) == (faster, ())


@pytest.mark.slow
def test_the_plan_says_what_both_would_take(device: str, path: Path, tmp_path: Path) -> None:
    changes = {"algorithm.target_rank": 3, "source.kind": "samples", "run.device": "cuda"}
    config = config_of_source(str(path), store=str(tmp_path / "run"), changes=changes)
    plan = config.plan()
    assert plan.device is not None and plan.device.processor.first > 0 and plan.device.device.first > 0
    (said,) = (line for line in plan_lines(plan) if line.startswith("device"))
    assert "by the processor about" in said and 'so that it does not pay: set device = "cpu"' in said
    assert plan.facts()["device"]["pays"] is False
    assert not (tmp_path / "run").exists()


def test_a_choice_in_words() -> None:
    slow, fast = PassRate(first=10.0, later=8.0), PassRate(first=1.0, later=0.1)
    paying = DeviceChoice(name="a card", device=fast, processor=slow, passes=11, starting=4.0, asked="auto")
    assert paying.pays and paying.used and paying.seconds == pytest.approx(6.0)
    assert str(paying).startswith("a card: 11 passes in about 6 s, 4 s of it to start; by the processor about")
    assert "QR stay on the processor" in str(paying)
    losing = DeviceChoice(name="a card", device=slow, processor=fast, passes=11, starting=4.0, asked="auto")
    assert not losing.used and "the processor is taken" in str(losing)


def test_both_are_measured_through_what_a_pass_does(device: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The measurement forms sums by the device, then by the processor, and leaves nothing on the device."""
    by = list[str]()
    for kind in (Gram, OnDevice):
        monkeypatch.setattr(kind, "partial", _noted(kind.partial, by, kind.__name__))
    problem = posed(Request(target_rank=3, algorithm="krylov"), open_source(path, "samples"), Resources())
    memory, given = memory_for(needs_of(problem), Resources()), Resources(device="cuda")
    found = choose_device(problem, given, memory)
    assert found is not None and found.passes == on_device.USUAL_PASSES and found.starting > on_device.STARTING
    assert by == sorted(by, reverse=True) and set(by) == {"OnDevice", "Gram"}
    device_used = device_for(needs_of(problem), given)
    assert device_used is not None and device_used.backend.room == 0 and not device_used.backend._kept
    assert choose_device(problem, Resources(), memory) is None


def _noted(partial: Any, by: list[str], name: str) -> Any:
    def noting(self: Any, *given: Any) -> Any:
        by.append(name)
        return partial(self, *given)

    return noting
