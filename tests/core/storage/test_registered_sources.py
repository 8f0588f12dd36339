"""Foreign sources: rows that a program computes go through every door, and no lie of it becomes an answer."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npmdask
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.runs.observers import Observer
from npmdask.core.runs.solution import Step
from npmdask.core.storage import source as sources
from npmdask.core.storage.source import open_source, register_source
from npmdask.errors import BadInputError, MemoryRefusedError, RefusedError
from tests.conftest import needs, same_bytes, write_zarr

ROOT = Path(__file__).resolve().parents[3]

# The plug-in, as its author installs it: a module, and a line of metadata that names it.
LAB = '''
import os, time
from dataclasses import dataclass
import numpy as np

@dataclass(frozen=True)
class Waves:
    """Random rows with falling deviations, computed when they are asked for."""
    shape: tuple
    unit_rows: int = 50
    dtype: np.dtype = np.dtype("f8")
    version: str = "1"

    @property
    def identity(self):
        return f"waves {self.shape} version {self.version}"

    @property
    def needs(self):
        return 2 * self.unit_rows * self.shape[1] * 8

    def tiles(self, unit):
        time.sleep(float(os.environ.get("LAB_PAUSE", 0)))
        rows = min(self.unit_rows, self.shape[0] - unit * self.unit_rows)
        values = np.random.default_rng([7, unit]).standard_normal((rows, self.shape[1]))
        values *= 0.9 ** np.arange(self.shape[1])
        for start in range(0, rows, 17):
            yield values[start : start + 17]

def open_waves(url):
    rows, _, columns = url.removeprefix("lab://").partition("x")
    return Waves((int(rows), int(columns)), version=os.environ.get("LAB_VERSION", "1"))
'''


@pytest.fixture
def lab(tmp_path: Path) -> dict[str, str]:
    """An environment in which the plug-in is installed."""
    place = tmp_path / "site"
    (place / "lab-1.0.dist-info").mkdir(parents=True)
    (place / "lab.py").write_text(LAB)
    (place / "lab-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: lab\nVersion: 1.0\n")
    (place / "lab-1.0.dist-info" / "entry_points.txt").write_text("[npmdask.sources]\nlab = lab:open_waves\n")
    return {**os.environ, "PYTHONPATH": f"{place}{os.pathsep}{ROOT}"}


@dataclass(frozen=True)
class Toy:
    """Given values as rows of a program, with a fault in unit 2."""

    values: np.ndarray
    unit_rows: int = 20
    identity: str = "toy 1"
    fault: str = ""

    @property
    def shape(self) -> tuple[int, int]:
        return self.values.shape[0], self.values.shape[1]

    @property
    def dtype(self) -> np.dtype:
        return self.values.dtype

    @property
    def needs(self) -> int:
        return self.unit_rows * self.shape[1] * self.dtype.itemsize

    def tiles(self, unit: int) -> Iterator[Any]:
        rows = self.values[unit * self.unit_rows : (unit + 1) * self.unit_rows].copy()
        if unit == 2 and self.fault:
            rows = faulty(self.fault, rows)
        if type(rows) is not np.ndarray or rows.ndim != 2:
            yield rows
            return
        buffer = np.empty((7, rows.shape[1]), rows.dtype)
        for start in range(0, len(rows), 7):  # in memory that the next tile reuses
            some = rows[start : start + 7]
            buffer[: len(some)] = some
            yield buffer[: len(some)]


class Hungry(Toy):
    @property
    def needs(self) -> int:
        return 2**40


def faulty(fault: str, rows: np.ndarray) -> Any:
    if fault == "raises":
        raise OSError("the instrument is off")
    if fault == "nan":
        rows[3, 4] = np.nan
    if fault == "changed":
        rows[0, 0] += 1e-9
    return {
        "narrow": rows[:, :-1],
        "flat": rows.ravel(),
        "long": np.concatenate([rows, rows[:1]]),
        "short": rows[:-1],
        "float32": rows.astype(np.float32),
        "masked": np.ma.masked_less(rows, 0),
        "list": rows.tolist(),
    }.get(fault, rows)


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Toy]]:
    """What is at toy://NAME."""
    monkeypatch.setattr(sources, "_OPENERS", {})
    values = np.random.default_rng(0).standard_normal((130, 12)) * 0.7 ** np.arange(12)
    there = {"here": Toy(values)}
    register_source("toy", lambda url: there[url.removeprefix("toy://")])
    yield there


@pytest.mark.slow
@needs("containers")
def test_the_answer_has_the_bits_of_the_same_rows_in_a_zarr_array(toy: dict[str, Toy], tmp_path: Path) -> None:
    x = toy["here"].values
    asked: dict[str, Any] = {"center": True, "scale": True, "kind": "matrix"}
    found = npmdask.top_k("toy://here", 3, store=tmp_path / "run", threads=2, **asked)
    stored = npmdask.top_k(
        write_zarr(tmp_path / "x.zarr", x, (20, 12)), 3, store=tmp_path / "other", threads=1, **asked
    )
    np.testing.assert_array_equal(found.basis, stored.basis)
    np.testing.assert_array_equal(found.values, stored.values)
    np.testing.assert_allclose(found.values, np.linalg.svd((x - x.mean(0)) / x.std(0))[1][:3])
    assert found.outcome.converged and found.certificate is not None
    again = npmdask.resume(tmp_path / "run")
    assert again.data_passes == 0 and (again.values == found.values).all()


class Interrupted(Observer):
    def on_step(self, step: Step) -> None:
        if step.number == 2:
            raise KeyboardInterrupt


def begun(store: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        npmdask.top_k("toy://here", 3, store=store, algorithm="power", iteration_rank=4, observer=Interrupted())


@pytest.mark.slow
def test_an_interrupted_run_goes_on_to_the_same_bits(toy: dict[str, Toy], tmp_path: Path) -> None:
    begun(tmp_path / "run")
    resumed = npmdask.resume(tmp_path / "run")
    whole = npmdask.top_k("toy://here", 3, store=tmp_path / "whole", algorithm="power", iteration_rank=4)
    assert resumed.steps == whole.steps > 2
    np.testing.assert_array_equal(resumed.basis, whole.basis)


@needs("containers")
def test_a_source_whose_identity_changes_is_refused_at_resume(toy: dict[str, Toy], tmp_path: Path) -> None:
    begun(tmp_path / "run")
    toy["here"] = replace(toy["here"], identity="toy 2")
    with pytest.raises(RefusedError, match=r"these differ: data\.fingerprint"):
        npmdask.resume(tmp_path / "run")
    assert RunStore(tmp_path / "run").read_part("result") is None


@needs("containers")
def test_other_values_under_the_same_identity_are_refused(toy: dict[str, Toy], tmp_path: Path) -> None:
    """The checksums of the first pass find what the identity hides."""
    begun(tmp_path / "run")
    toy["here"] = replace(toy["here"], fault="changed")
    with pytest.raises(
        BadInputError,
        match=r"unit 2 of toy://here \(rows 40 to 59\) has changed: its checksum is not that of the first pass, a",
    ):
        npmdask.resume(tmp_path / "run")
    assert RunStore(tmp_path / "run").read_part("result") is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("nan", r"toy://here holds nan at row 43, column 4: remove or impute"),
        ("narrow", r"unit 2 \(rows 40 to 59\): the source gives \(\d+, 11\) where arrays of some rows x 12 columns"),
        ("flat", r"unit 2 \(rows 40 to 59\): the source gives \(240,\) where"),
        ("list", r"unit 2 \(rows 40 to 59\): the source gives list where"),
        ("long", r"the source gives 21 rows or more, and the unit has 20"),
        ("short", r"the source gives 19 rows, and the unit has 20"),
        ("float32", r"gives values of type float32, and said that they are float64"),
        ("masked", r"gives masked values, and missing values cannot be analysed"),
        ("raises", r"fails \(OSError: the instrument is off\); correct the program"),
    ],
)
def test_what_a_source_gives_that_it_should_not_is_refused_and_named(
    toy: dict[str, Toy], tmp_path: Path, fault: str, said: str
) -> None:
    toy["here"] = replace(toy["here"], fault=fault)
    for options in ({}, {"kind": "samples", "center": True}):
        with pytest.raises(BadInputError, match=said):
            npmdask.top_k("toy://here", 3, store=tmp_path / f"run{len(options)}", **options)  # type: ignore[arg-type]
        assert RunStore(tmp_path / f"run{len(options)}").last_step() is None


@needs("containers")
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"shape": (130,)}, r"toy://odd has shape \(130,\): rows and columns are needed"),
        ({"shape": (0, 12)}, "at least one of each"),
        ({"shape": None}, "describes itself wrongly"),
        ({"dtype": np.dtype("c16")}, "toy://odd holds complex128; real numbers are needed"),
        ({"unit_rows": 0}, "unit_rows = 0"),
        ({"identity": ""}, "identity = '': give text that changes whenever the data change"),
        ({"identity": lambda self: "1"}, "identity = <bound"),
        ({"needs": -1}, "needs = -1"),
    ],
)
def test_what_a_source_says_of_itself_is_checked_when_it_is_opened(
    toy: dict[str, Toy], wrong: dict[str, Any], said: str
) -> None:
    facts = {"shape": (130, 12), "dtype": np.dtype("f8"), "unit_rows": 20, "identity": "odd", "needs": 0, "tiles": None}
    register_source("odd", lambda url: type("Odd", (), facts | wrong)())
    with pytest.raises(BadInputError, match=said.replace("toy://odd", "odd://odd")):
        open_source("odd://odd")


@needs("containers", "remote")
def test_openers_that_fail_and_schemes_that_cannot_be_registered(toy: dict[str, Toy]) -> None:
    with pytest.raises(BadInputError, match=r"toy://gone cannot be opened by its registered source \(KeyError"):
        open_source("toy://gone")
    with pytest.raises(BadInputError, match="the source of toy://empty has no shape, dtype, unit_rows, identity"):
        toy["empty"] = object()  # type: ignore[assignment]
        open_source("toy://empty")
    with pytest.raises(BadInputError, match="contains credentials"):
        open_source("toy://user:secret@here")
    for scheme in ("s3", "file", "C", "lab tree"):
        with pytest.raises(BadInputError, match="no source can be registered for"):
            register_source(scheme, lambda url: toy["here"])
    with pytest.raises(BadInputError, match="is a URL, and an array that is opened must be on this machine"):
        open_source("unknown://here")


@needs("containers")
def test_an_installed_package_is_found_by_the_scheme_of_its_urls(
    toy: dict[str, Toy], lab: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert open_source("lab://300x4").shape == (300, 4)
    (tmp_path / "site" / "lab-1.0.dist-info" / "entry_points.txt").write_text("[npmdask.sources]\nlab2 = lab:gone\n")
    with pytest.raises(BadInputError, match=r"of a package, cannot be imported \(AttributeError"):
        open_source("lab2://300x4")


@needs("containers")
def test_the_memory_that_a_source_needs_is_planned(toy: dict[str, Toy]) -> None:
    before = open_source("toy://here").reader.buffer_bytes
    toy["here"] = Hungry(toy["here"].values)
    assert open_source("toy://here").reader.buffer_bytes == before - Toy(toy["here"].values).needs + 2**40
    with pytest.raises(MemoryRefusedError, match="memory = 1024MiB is too small"):
        npmdask.top_k("toy://here", 2, memory="1GiB")


CONFIG = """
[source]
path = "lab://3000x30"
kind = "samples"
center = true
[algorithm]
name = "power"
target_rank = 4
[run]
store = "{store}"
commit_seconds = 0.1
"""


def command(environment: dict[str, str], folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "npmdask.cli.main", *words], cwd=folder, env=environment, capture_output=True, text=True
    )


@pytest.mark.slow
def test_an_installed_source_through_plan_run_kill_resume_and_report(lab: dict[str, str], tmp_path: Path) -> None:
    for name in ("run", "whole"):
        (tmp_path / f"{name}.toml").write_text(CONFIG.format(store=name))
    planned = command(lab, tmp_path, "plan", "run.toml", "--json")
    assert planned.returncode == 0, planned.stderr
    assert json.loads(planned.stdout)["shape"] == [3000, 30]
    assert command(lab, tmp_path, "run", "whole.toml", "--quiet").returncode == 0
    for pause in (0.002, 0.02, 0.2):  # where this process was not given the time to kill it, again and slower
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        process = subprocess.Popen(
            [sys.executable, "-m", "npmdask.cli.main", "run", "run.toml", "--quiet"],
            cwd=tmp_path,
            env={**lab, "LAB_PAUSE": str(pause)},
        )
        try:
            while RunStore(tmp_path / "run").last_step() is None and process.poll() is None:
                time.sleep(0.02)
            process.send_signal(signal.SIGKILL)
        finally:
            process.wait()
        if RunStore(tmp_path / "run").read_part("result") is None:
            break
    assert RunStore(tmp_path / "run").read_part("result") is None, "killed before its end"
    assert RunStore(tmp_path / "run").last_step() is not None
    other = command({**lab, "LAB_VERSION": "2"}, tmp_path, "resume", "run", "--quiet")
    assert other.returncode == RefusedError.exit_code and "data.fingerprint" in other.stderr
    resumed = command(lab, tmp_path, "resume", "run", "--quiet")
    assert resumed.returncode == 0, resumed.stderr
    same_bytes(tmp_path / "whole", tmp_path / "run")
    report = command(lab, tmp_path, "report", "run")
    assert report.returncode == 0, report.stderr
    assert "lab://3000x30" in next((tmp_path / "run").glob("*.html")).read_text()
    inspected = command(lab, tmp_path, "inspect", "lab://3000x30")
    assert inspected.returncode == 0 and "3000" in inspected.stdout, inspected.stderr


@pytest.mark.slow
def test_worker_processes_compute_the_same_bits(lab: dict[str, str], tmp_path: Path) -> None:
    script = (
        "import npmdask, sys\n"
        "if __name__ == '__main__':\n"
        "    s = npmdask.top_k('lab://3000x30', 3, store=sys.argv[1], workers=int(sys.argv[2]), threads=1)\n"
    )
    (tmp_path / "go.py").write_text(script)
    for workers in ("0", "2"):
        done = subprocess.run([sys.executable, "go.py", workers, workers], cwd=tmp_path, env=lab, capture_output=True)
        assert done.returncode == 0, done.stderr.decode()
    same_bytes(tmp_path / "0", tmp_path / "2")
