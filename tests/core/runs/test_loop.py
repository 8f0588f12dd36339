"""The driver: passes counted at the store, resume in the same bits, refusals by name, the memory contract."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.storage import MemoryStore, WrapperStore

import npmdask
from npmdask.cli.main import main
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.runs.observers import Observer
from npmdask.errors import BadInputError, CommitError, FencedOutError, RefusedError
from tests.conftest import planted, same_bytes, write_zarr


class CountingStore(WrapperStore):  # type: ignore[type-arg]
    """Counts how often each chunk is fetched."""

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self.fetched: Counter[str] = Counter()

    def with_read_only(self, read_only: bool = False) -> Any:
        return self

    async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
        if "/c/" in f"/{key}":
            self.fetched[key] += 1
        return await super().get(key, prototype, byte_range)


class Stop(Exception):
    """The test pulls the plug."""


class StopAfter(Observer):
    def __init__(self, step: int) -> None:
        self._step = step

    def on_step(self, step: Any) -> None:
        if step.number == self._step:
            raise Stop


@pytest.fixture
def source(tmp_path: Path) -> Path:
    a = planted(3000, 80, 1 / np.sqrt(np.arange(1, 81)))[0]
    return write_zarr(tmp_path / "a.zarr", a, (250, 80), compressors=None)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "final"), [("samples", 0), ("matrix", 1), ("symmetric", 0)])
def test_data_passes_are_steps_counted_at_the_store(kind: str, final: int) -> None:
    a = planted(600, 60, np.logspace(0, -2, 60))[0]
    a = a @ a.T if kind == "symmetric" else a
    store = CountingStore(MemoryStore())
    z = zarr.create_array(store, shape=a.shape, dtype=a.dtype, chunks=(100, 25))
    z[...] = a
    store.fetched.clear()
    solution = npmdask.top_k(z, 4, kind=kind, threads=2)
    assert solution.converged
    grid = -(-a.shape[0] // 100) * -(-a.shape[1] // 25)
    assert len(store.fetched) == grid
    assert solution.steps + final == solution.data_passes
    sampled = [chunk for chunk, times in store.fetched.items() if times != solution.data_passes]  # for the prediction
    assert len(sampled) <= -(-a.shape[1] // 25), "one row of chunks of these few"
    assert all(store.fetched[chunk] == solution.data_passes + 1 for chunk in sampled)
    assert solution.bytes_read == solution.data_passes * a.nbytes


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["samples", "matrix"])
@pytest.mark.parametrize("stop", [1, 2, 7])
def test_resumed_in_the_same_bits_with_other_threads(tmp_path: Path, source: Path, kind: str, stop: int) -> None:
    whole = npmdask.top_k(source, 5, kind=kind, store=tmp_path / "whole", threads=1)
    with pytest.raises(Stop):
        npmdask.top_k(source, 5, kind=kind, store=tmp_path / "cut", threads=2, observer=StopAfter(stop))
    resumed = npmdask.resume(tmp_path / "cut", threads=3)
    same_bytes(tmp_path / "whole", tmp_path / "cut")
    assert resumed.data_passes == whole.data_passes - stop
    assert resumed.steps == whole.steps
    assert (resumed.basis == whole.basis).all()


@pytest.mark.slow
def test_a_finished_run_answers_without_a_pass_even_without_its_chunks(tmp_path: Path, source: Path) -> None:
    first = npmdask.top_k(source, 5, store=tmp_path / "run")
    again = npmdask.top_k(source, 5, store=tmp_path / "run")
    assert (again.data_passes, again.bytes_read) == (0, 0)
    assert again.total_data_passes == first.data_passes
    assert (again.basis == first.basis).all()
    assert (again.left_basis() == first.left_basis()).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"k": 6}, "algorithm.target_rank"),
        ({"iteration_rank": 20}, "algorithm.iteration_rank"),
        ({"tol": 1e-4}, "stop.tol"),
        ({"max_steps": 99}, "stop.max_steps"),
        ({"seed": 1}, "run.seed"),
        ({"center": True}, "data.center"),
        ({"kind": "samples"}, "data.kind"),
        ({"mechanism": "gaussian", "stddev": 1.0}, "mechanism.mechanism"),
    ],
)
def test_other_parameters_are_refused_by_name(tmp_path: Path, source: Path, change: Any, named: str) -> None:
    asked: dict[str, Any] = {"k": 5, "kind": "matrix", "store": tmp_path / "run"}
    npmdask.top_k(source, **asked)
    with pytest.raises(RefusedError, match=named):
        npmdask.top_k(source, **(asked | change))


@pytest.mark.slow
def test_other_data_and_another_version_are_refused_by_name(tmp_path: Path, source: Path) -> None:
    npmdask.top_k(source, 5, store=tmp_path / "run")
    other = write_zarr(tmp_path / "b.zarr", np.ones((3000, 80)), (250, 80))
    with pytest.raises(RefusedError, match=r"data\.fingerprint"):
        npmdask.top_k(other, 5, store=tmp_path / "run")
    record = tmp_path / "run" / "run.json"
    record.write_text(record.read_text().replace('"npmdask": "', '"npmdask": "9.'))
    with pytest.raises(RefusedError, match=r"version.npmdask \('9\."):
        npmdask.resume(tmp_path / "run")


@pytest.mark.slow
def test_another_numpy_is_said_not_hidden(tmp_path: Path, source: Path) -> None:
    npmdask.top_k(source, 5, store=tmp_path / "run")
    record = tmp_path / "run" / "run.json"
    record.write_text(record.read_text().replace(f'"numpy": "{np.__version__}"', '"numpy": "1.0"'))
    solution = npmdask.resume(tmp_path / "run")
    assert "numpy was '1.0'" in solution.warnings[0]


@pytest.mark.slow
def test_data_that_change_between_passes_are_caught(tmp_path: Path, source: Path) -> None:
    """A plain store has no recorded checksums: those of the first pass hold for the rest."""
    with pytest.raises(Stop):
        npmdask.top_k(source, 5, store=tmp_path / "run", observer=StopAfter(3))
    chunk = source / "c" / "4" / "0"
    content, before = bytearray(chunk.read_bytes()), chunk.stat()
    content[1000] ^= 1
    chunk.write_bytes(content)
    with pytest.raises(RefusedError, match=r"has changed since.*data\.fingerprint .*times of its files count too"):
        npmdask.resume(tmp_path / "run")
    os.utime(chunk, ns=(before.st_atime_ns, before.st_mtime_ns))  # as bits that rot on the disk leave it
    with pytest.raises(BadInputError, match=r"chunk c/4/0 .* is corrupt"):
        npmdask.resume(tmp_path / "run")


@pytest.mark.slow
def test_a_resumed_run_keeps_the_limits_that_were_chosen(tmp_path: Path, source: Path) -> None:
    npmdask.top_k(source, 5, store=tmp_path / "run", memory="7GiB", threads=1, max_steps=2)
    assert npmdask.resume(tmp_path / "run", max_steps=4).memory_limit_bytes == 7 * 2**30
    assert npmdask.resume(tmp_path / "run", max_steps=6, memory="6GiB").memory_limit_bytes == 6 * 2**30
    assert npmdask.resume(tmp_path / "run", max_steps=7).memory_limit_bytes == 6 * 2**30
    plans = [t for t in RunStore(tmp_path / "run").telemetry() if t["event"] == "plan"]
    assert {p["threads"] for p in plans} == {1}


@pytest.mark.slow
def test_other_data_of_the_same_shape_never_get_the_old_answer(tmp_path: Path) -> None:
    a = np.random.default_rng(0).standard_normal((50, 8))
    npmdask.top_k(a, 2, store=tmp_path / "memory")
    assert npmdask.top_k(a, 2, store=tmp_path / "memory").data_passes == 0
    with pytest.raises(RefusedError, match=r"data\.fingerprint"):
        npmdask.top_k(3 * a, 2, store=tmp_path / "memory")
    path = write_zarr(tmp_path / "a.zarr", a, (10, 8), compressors=None)
    npmdask.top_k(path, 2, store=tmp_path / "disk")
    write_zarr(path, 3 * a, (10, 8), compressors=None, overwrite=True)
    with pytest.raises(RefusedError, match=r"data\.fingerprint"):
        npmdask.top_k(path, 2, store=tmp_path / "disk")


class Elsewhere(Observer):
    """As if a worker on another machine had written the first piece of Z."""

    def __init__(self, store: Path) -> None:
        self.piece = store / "left.zarr" / "c" / "0" / "0"

    def on_task(self, record: Any) -> None:
        self.piece.unlink(missing_ok=True)


@pytest.mark.slow
def test_left_vectors_that_are_written_elsewhere_are_missed_before_the_answer(tmp_path: Path, source: Path) -> None:
    with pytest.raises(RefusedError, match=r"1 of \d+ pieces of .*left.zarr are not here: .* a disk that all of them"):
        npmdask.top_k(source, 3, kind="matrix", store=tmp_path / "run", threads=1, observer=Elsewhere(tmp_path / "run"))
    assert not (tmp_path / "run" / "result").exists()


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["lost", "rotten", "gone"])
def test_damaged_left_vectors_are_not_exported(tmp_path: Path, source: Path, damage: str) -> None:
    npmdask.top_k(source, 3, kind="matrix", store=tmp_path / "run")
    chunk = tmp_path / "run" / "left.zarr" / "c" / "3" / "0"
    if damage == "lost":
        chunk.unlink()
    elif damage == "rotten":
        chunk.write_bytes(bytes(8) + chunk.read_bytes()[8:])
    else:
        shutil.rmtree(tmp_path / "run" / "left.zarr")
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "o.npz")]) == 2
    assert not (tmp_path / "o.npz").exists()
    shutil.rmtree(tmp_path / "run" / "result")
    assert npmdask.resume(tmp_path / "run").data_passes == 1
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "o.npz")]) == 0


@pytest.mark.slow
def test_chunks_half_written_when_a_run_was_killed_are_swept_away(tmp_path: Path, source: Path) -> None:
    npmdask.top_k(source, 3, kind="matrix", store=tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "run")
    (tmp_path / "run" / "left.zarr" / "c" / "3" / "0.0123456789abcdef.partial").write_bytes(b"the half of a ch")
    shutil.rmtree(tmp_path / "run" / "result")
    npmdask.resume(tmp_path / "run")
    same_bytes(tmp_path / "whole", tmp_path / "run")


@pytest.mark.slow
def test_max_steps_is_not_convergence_and_can_be_extended(tmp_path: Path, source: Path) -> None:
    whole = npmdask.top_k(source, 5, store=tmp_path / "whole", max_steps=200)
    short = npmdask.top_k(source, 5, store=tmp_path / "run", max_steps=3)
    assert not short.converged
    assert "not converged: max_steps = 3" in short.outcome.sentence
    longer = npmdask.resume(tmp_path / "run", max_steps=200)
    assert longer.converged
    assert longer.data_passes == whole.data_passes - 3
    same_bytes(tmp_path / "whole", tmp_path / "run", ("steps", "result"))
    with pytest.raises(RefusedError, match="did not converge"):
        npmdask.top_k(source, 5, store=tmp_path / "short", max_steps=2)
        npmdask.deflate(tmp_path / "short", 2, store=tmp_path / "more")


@pytest.mark.slow
def test_the_second_process_is_told_who_holds_the_run(tmp_path: Path, source: Path) -> None:
    holder = RunStore(tmp_path / "run").open()
    with pytest.raises(RefusedError, match=f"held by process {os.getpid()} on .*since"):
        npmdask.top_k(source, 5, store=tmp_path / "run")
    holder.close()
    assert npmdask.top_k(source, 5, store=tmp_path / "run").converged


def test_a_process_that_lost_its_turn_cannot_commit(tmp_path: Path) -> None:
    sleeper = RunStore(tmp_path / "run").open()
    (tmp_path / "run" / "epoch").write_text("7\n")  # what a successor on another machine would do
    with pytest.raises(FencedOutError, match="taken over"):
        sleeper.commit_step(1, {"x": np.zeros(3)}, {})
    assert sleeper.last_step() is None


@pytest.mark.slow
def test_a_checkpoint_that_rotted_is_passed_over(tmp_path: Path, source: Path) -> None:
    whole = npmdask.top_k(source, 5, kind="samples", store=tmp_path / "whole")
    with pytest.raises(Stop):
        npmdask.top_k(source, 5, kind="samples", store=tmp_path / "run", observer=StopAfter(6))
    rotten = tmp_path / "run" / "steps" / "000006" / "basis.npy"
    content = bytearray(rotten.read_bytes())
    content[500] ^= 4
    rotten.write_bytes(content)
    resumed = npmdask.resume(tmp_path / "run")
    assert resumed.data_passes == whole.steps - 5
    same_bytes(tmp_path / "whole", tmp_path / "run")


@pytest.mark.slow
def test_disk_full_while_committing_keeps_the_last_checkpoint(tmp_path: Path, source: Path) -> None:
    """A file size limit makes the kernel refuse a write in the middle of a commit, as a full disk does."""
    program = f"""
import resource, signal, npmdask
from npmdask.core.runs.observers import Observer
class Fill(Observer):
    def on_step(self, step):
        if step.number == 4:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (3000, resource.RLIM_INFINITY))
npmdask.top_k({str(source)!r}, 5, kind="samples", store={str(tmp_path / "run")!r}, observer=Fill())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "CommitError" in done.stderr
    assert "What was committed before is intact" in done.stderr
    assert not list((tmp_path / "run").glob("**/.writing-*"))
    whole = npmdask.top_k(source, 5, kind="samples", store=tmp_path / "whole")
    resumed = npmdask.resume(tmp_path / "run")
    assert resumed.data_passes == whole.data_passes - 4
    same_bytes(tmp_path / "whole", tmp_path / "run")


def test_commit_error_has_a_resumable_exit_code() -> None:
    assert CommitError.exit_code == 130
    assert BadInputError.exit_code == 2
    assert RefusedError.exit_code == 3


@pytest.mark.slow
def test_too_little_memory_is_refused_before_the_first_pass_with_what_would_do(tmp_path: Path, source: Path) -> None:
    with pytest.raises(RefusedError, match=r"memory = 32MiB is too small.*set memory to at least \d+MiB"):
        npmdask.top_k(source, 5, store=tmp_path / "run", memory="32MiB")
    assert not [t for t in RunStore(tmp_path / "run").telemetry() if t["event"] == "pass"]
    assert npmdask.top_k(source, 5, store=tmp_path / "run", memory="8GiB").converged


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"k": 81}, "at most 80 components exist"),
        ({"k": 0}, "target_rank = 0 is not possible"),
        ({"k": 5, "iteration_rank": 4}, "iteration_rank = 4 is smaller than target_rank = 5"),
        ({"k": 5, "iteration_rank": 81}, "larger than the 80 columns"),
        ({"k": 5, "kind": "symmetric"}, r"has shape \(3000, 80\): a symmetric matrix is square"),
        ({"k": 5, "kind": "sparse"}, "is stored dense"),
        ({"k": 5, "kind": "sample"}, "unknown kind 'sample': did you mean 'samples'"),
        ({"k": 5, "tol": 0.0}, "tol = 0.0 must be between 0 and 1"),
        ({"k": 5, "memory": "lots"}, "memory = 'lots' is not a size"),
        ({"k": 5, "mechanism": "gausian"}, "did you mean 'gaussian'"),
        ({"k": 5, "threads": 0}, "threads at least 1"),
        ({"k": 5, "threads": 1.5}, "whole numbers"),
        ({"k": 5, "seed": "x"}, "seed = 'x' must be a whole number"),
        ({"k": 5, "algorithm": "quick"}, "'quick': known: auto, covariance, gram, k-dp-ojas"),
    ],
)
def test_bad_parameters_get_a_sentence(source: Path, arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadInputError, match=sentence):
        npmdask.top_k(source, **arguments)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f8", "f4"])
def test_a_matrix_that_is_not_symmetric_is_found_out_in_the_first_step(tmp_path: Path, dtype: str) -> None:
    rng = np.random.default_rng(0)
    a = rng.standard_normal((400, 400))
    a = (a + a.T).astype(dtype)
    assert npmdask.top_k(a, 3, kind="symmetric", max_steps=2).steps == 2
    a[3, 7] += 1
    with pytest.raises(BadInputError, match="is called symmetric but is not"):
        npmdask.top_k(write_zarr(tmp_path / "a.zarr", a), 3, kind="symmetric", store=tmp_path / "run")


def test_nothing_there_and_not_a_store(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="there is nothing at"):
        npmdask.top_k(tmp_path / "no.zarr", 2)
    (tmp_path / "text.zarr").mkdir()
    with pytest.raises(BadInputError, match="is not a Zarr store"):
        npmdask.top_k(tmp_path / "text.zarr", 2)
    with pytest.raises(BadInputError, match=r"^the array in memory holds nan at row 1, column 1"):
        npmdask.top_k(np.diag([1.0, np.nan, 1.0]), 2)
    damaged = write_zarr(tmp_path / "d.zarr", np.ones((5, 5)))
    (damaged / "zarr.json").write_text((damaged / "zarr.json").read_text()[:40])
    with pytest.raises(BadInputError, match=r"zarr.json is damaged"):
        npmdask.top_k(damaged, 2)
    with pytest.raises(BadInputError, match="there is no run in"):
        npmdask.resume(tmp_path / "nothing")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("x")
    with pytest.raises(BadInputError, match="other files in it"):
        npmdask.top_k(np.ones((5, 5)), 2, store=tmp_path / "full")


@pytest.mark.slow
def test_sigterm_exits_130_and_the_run_resumes(tmp_path: Path) -> None:
    a = planted(60_000, 200, 1 / np.sqrt(np.arange(1, 201)))[0]
    source = write_zarr(tmp_path / "a.zarr", a, (5000, 200), compressors=None)
    config = tmp_path / "c.toml"
    config.write_text(
        f'[source]\npath = "{source}"\nkind = "samples"\n[algorithm]\nname = "krylov"\ntarget_rank = 5\n'
        f'iteration_rank = 5\nmax_steps = 400\n[stop]\ntol = 1e-11\n[run]\nstore = "{tmp_path / "run"}"\n'
    )
    command = [sys.executable, "-m", "npmdask.cli.main", "run", str(config), "-v"]
    for _ in range(5):  # where this process was not given the time to signal before the end, again
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            for line in process.stderr:
                if line.startswith("step 3:"):
                    process.send_signal(signal.SIGTERM)
                    break
            rest = process.stderr.read()
            process.wait(300)
        if not (tmp_path / "run" / "result").exists():
            break
    assert process.returncode == 130
    assert "npmdask resume" in rest
    resumed = npmdask.resume(tmp_path / "run")
    whole = npmdask.top_k(
        source, 5, kind="samples", algorithm="krylov", iteration_rank=5, tol=1e-11, max_steps=400,
        store=tmp_path / "whole",
    )  # fmt: skip
    assert resumed.data_passes < whole.data_passes
    same_bytes(tmp_path / "whole", tmp_path / "run")


@pytest.mark.slow
def test_a_kill_before_the_lock_was_made_is_no_reason_to_refuse(tmp_path: Path, source: Path) -> None:
    (tmp_path / "run" / "steps").mkdir(parents=True)
    assert npmdask.top_k(source, 5, store=tmp_path / "run").converged


@pytest.mark.slow
@pytest.mark.parametrize("content", ["[]", "3", "{}", '{"data": {}}', "", "{"])
def test_a_damaged_record_of_a_run_is_said(tmp_path: Path, source: Path, content: str) -> None:
    npmdask.top_k(source, 5, store=tmp_path / "run", max_steps=2)
    (tmp_path / "run" / "run.json").write_text(content)
    for command in ("resume", "inspect", "report"):
        assert main([command, str(tmp_path / "run")]) == 2


@pytest.mark.parametrize(
    "attributes", [{"npmdask": "x"}, {"npmdask": {}}, {"npmdask": {"format": 1, "shape": ["a", 2]}}]
)
def test_a_damaged_record_of_a_data_store_is_said(tmp_path: Path, attributes: dict[str, Any]) -> None:
    zarr.open_group(tmp_path / "x.zarr", mode="w", attributes=attributes)
    with pytest.raises(BadInputError, match=r"damaged|format"):
        npmdask.top_k(tmp_path / "x.zarr", 1)
    zarr.open_group(tmp_path / "y.zarr", mode="w", attributes={"encoding-type": "csr_matrix"})
    with pytest.raises(BadInputError, match="damaged"):
        npmdask.top_k(tmp_path / "y.zarr", 1)


def test_a_store_that_cannot_be_written_is_said(tmp_path: Path, source: Path) -> None:
    (tmp_path / "file").write_text("x")
    for store in (tmp_path / "file" / "run", "/proc/nowhere", tmp_path / ("x" * 300)):
        with pytest.raises(BadInputError, match=r"cannot be used as store|is a file|more than 200 bytes"):
            npmdask.top_k(source, 5, store=store)
    assert main(["init", "/proc/nowhere"]) == 2


def test_an_old_step_whose_removal_was_interrupted_goes_when_the_store_is_opened(tmp_path: Path) -> None:
    """After the last step no commit follows that would remove it. Kills: removal at commits alone."""
    with RunStore(tmp_path / "run") as held:
        for step in (1, 2, 3):
            held.commit_step(step, {"x": np.full(3, step)}, {"state": {}, "history": []})
    old = tmp_path / "run" / "steps" / "000001"
    old.mkdir()
    (old / "manifest.json").write_text("{}")
    with RunStore(tmp_path / "run") as held:
        last = held.last_step()
    assert sorted(p.name for p in old.parent.iterdir()) == ["000002", "000003"]
    assert last is not None and last[0]["x"].tolist() == [3.0, 3.0, 3.0]
