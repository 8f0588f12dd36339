"""Data in an S3-compatible object store: the same bits, the same promises."""

from __future__ import annotations

import shutil
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import npmdask
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.runs.observers import Observer
from npmdask.core.runs.solution import Step
from npmdask.core.storage.source import open_source
from npmdask.errors import BadInputError, LostError
from npmdask.manage.status import inspect
from npmdask.planning import predicted_steps
from npmdask.synthetic import generate
from tests.cluster.test_cluster import wait_for_workers
from tests.conftest import same_bytes, write_zarr
from tests.core.operators.test_operators import write_csr
from tests.machines import Machines
from tests.remote.conftest import Bucket

pytestmark = pytest.mark.slow


def make(folder: Path) -> Path:
    generate(folder / "x.zarr", problem="spectrum", rows=20_000, columns=200, rank=5, option=None) if False else None
    generate(
        folder / "x.zarr", problem="spectrum", rows=20_000, columns=200, rank=5, spectrum="harmonic", kind="samples"
    )
    return folder / "x.zarr"


def test_the_same_bits_from_disk_from_s3_and_on_a_cluster(tmp_path: Path, machines: Machines, bucket: Bucket) -> None:
    local = make(bucket.folder)
    on_disk = npmdask.top_k(local, 5, store=tmp_path / "disk")
    from_s3 = npmdask.top_k("s3://bucket/x.zarr", 5, store=tmp_path / "s3")
    assert from_s3.converged
    assert from_s3.fingerprint == on_disk.fingerprint
    same_bytes(tmp_path / "disk", tmp_path / "s3", parts=("steps", "result", "survey"))
    machines.scheduler()
    machines.worker(**bucket.environment)
    wait_for_workers(machines, "s3://bucket/x.zarr", 1).close()
    far = npmdask.top_k("s3://bucket/x.zarr", 5, store=tmp_path / "cluster", cluster=machines.address)
    assert [p.peak_rss_bytes > 5e7 for p in far.peak_rss_by_process if p.name.startswith("worker tcp://")] == [True]
    same_bytes(tmp_path / "disk", tmp_path / "cluster", parts=("steps", "result", "survey"))
    assert inspect("s3://bucket/x.zarr")["rows"] == 20_000


def test_sparse_data_and_a_plain_array(tmp_path: Path, bucket: Bucket) -> None:
    matrix = sp.random(3000, 60, density=0.1, format="csr", rng=np.random.default_rng(0))
    write_csr(bucket.folder / "s.zarr", matrix, 2000)
    x = np.random.default_rng(1).standard_normal((500, 40))
    write_zarr(bucket.folder / "plain.zarr", x, (100, 40))
    values = npmdask.top_k("s3://bucket/s.zarr", 3, tol=1e-4).values
    np.testing.assert_allclose(values, np.linalg.svd(matrix.toarray(), compute_uv=False)[:3], rtol=1e-6)
    values = npmdask.top_k("s3://bucket/plain.zarr", 3, store=tmp_path / "run").values
    np.testing.assert_allclose(values, np.linalg.svd(x, compute_uv=False)[:3], rtol=1e-9)
    before = open_source("s3://bucket/plain.zarr").fingerprint
    write_zarr(bucket.folder / "other.zarr", x + 1, (100, 40))
    shutil.rmtree(bucket.folder / "plain.zarr")
    (bucket.folder / "other.zarr").rename(bucket.folder / "plain.zarr")
    assert open_source("s3://bucket/plain.zarr").fingerprint != before, "objects are known by size and tag"


class StopServer(Observer):
    """Takes the object store away after the second step."""

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket

    def on_step(self, step: Step) -> None:
        if step.number == 2:
            self.bucket.process.kill()
            self.bucket.process.wait()


def test_an_object_store_that_goes_away_is_a_resume(tmp_path: Path, bucket: Bucket) -> None:
    make(bucket.folder)
    npmdask.top_k("s3://bucket/x.zarr", 5, store=tmp_path / "whole")
    with pytest.raises(LostError, match=r"cannot be fetched .*then resume; everything committed is kept"):
        npmdask.top_k("s3://bucket/x.zarr", 5, store=tmp_path / "broken", observer=StopServer(bucket))
    bucket.serve()
    resumed = npmdask.resume(tmp_path / "broken")
    assert resumed.converged
    same_bytes(tmp_path / "whole", tmp_path / "broken", parts=("steps", "result", "survey"))


def test_what_is_not_there_is_said(bucket: Bucket) -> None:
    with pytest.raises(BadInputError, match=r"s3://bucket/nothing.zarr cannot be opened as a Zarr store"):
        npmdask.top_k("s3://bucket/nothing.zarr", 3)


def test_a_server_that_is_away_is_not_bad_input(tmp_path: Path, bucket: Bucket) -> None:
    """A scheduled run is started again after a LostError, and fails for good after a BadInputError."""
    make(bucket.folder)
    bucket.process.kill()
    bucket.process.wait()
    with pytest.raises(LostError, match=r"s3://bucket/x.zarr cannot be opened as a Zarr store .*AWS_ENDPOINT_URL"):
        npmdask.top_k("s3://bucket/x.zarr", 3)


def foreseen(store: Path) -> dict[str, Any]:
    (line,) = [line for line in RunStore(store).telemetry() if line["event"] == "foreseen"]
    return line


def test_steps_are_foretold_where_the_data_are(
    tmp_path: Path, machines: Machines, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the same rows in the bucket and on a worker. Kills: a sample that is counted, or drawn here for a worker."""
    monkeypatch.setattr(predicted_steps, "AWAY", 600.0)  # a slow machine is not what is asked about
    make(bucket.folder)
    here = npmdask.top_k("s3://bucket/x.zarr", 5, store=tmp_path / "s3")
    first = foreseen(tmp_path / "s3")
    assert here.steps <= first["steps"] <= 1.5 * here.steps
    machines.scheduler()
    machines.worker(**bucket.environment)
    wait_for_workers(machines, "s3://bucket/x.zarr", 1).close()
    monkeypatch.setattr(predicted_steps, "draw_sample", lambda *a: pytest.fail("drawn here"))
    far = npmdask.top_k("s3://bucket/x.zarr", 5, store=tmp_path / "cluster", cluster=machines.address)
    second = foreseen(tmp_path / "cluster")
    for name in ("steps", "spectrum", "rows", "places"):
        assert first[name] == second[name]
    monkeypatch.setattr(predicted_steps, "predicted", lambda *a: {"steps": None, "why": "not asked for"})
    without = npmdask.top_k("s3://bucket/x.zarr", 5, store=tmp_path / "without")
    for solution, store in ((here, "s3"), (far, "cluster")):
        assert (solution.data_passes, solution.bytes_read) == (without.data_passes, without.bytes_read)
        same_bytes(tmp_path / "without", tmp_path / store, parts=("steps", "result", "survey"))


def test_a_store_that_is_slow_delays_no_run(tmp_path: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a wait for the thread that hangs, an allowance without an end."""
    make(bucket.folder)
    go_on = Event()
    monkeypatch.setattr(predicted_steps, "AWAY", 0.2)
    monkeypatch.setattr(predicted_steps, "draw_sample", lambda *a: go_on.wait(300))
    try:
        solution = npmdask.top_k("s3://bucket/x.zarr", 5, store=tmp_path / "run")
    finally:
        go_on.set()
    assert solution.converged and foreseen(tmp_path / "run")["seconds"] < 150
    assert solution.prediction["prediction"] == "none: no sample came in 0.2 seconds"
