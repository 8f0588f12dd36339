"""What people have of their cluster: a client, a cluster object, a file; the same bits, and theirs stays open."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from distributed import Client, LocalCluster, Security

import npmdask
import npmdask.core.operators._protocol as protocol
from npmdask.cluster.clusters import SchedulerAddress, scheduler_of
from npmdask.config import load_config, parse_changes
from npmdask.core.runs.observers import Observer
from npmdask.errors import BadInputError, LostError
from tests.conftest import planted, same_bytes, write_zarr

pytestmark = pytest.mark.slow
PARTS = ("steps", "result", "survey")


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """With certificates that only its own objects have: an address alone does not suffice."""
    settings = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
    with LocalCluster(security=Security.temporary(), **settings) as made:
        yield made


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return write_zarr(tmp_path / "x.zarr", planted(4000, 50, 1 / np.sqrt(np.arange(1, 51)))[0], (500, 50))


def found(rows: Path, store: str, **how: Any) -> npmdask.Solution:
    return npmdask.top_k(rows, 3, kind="samples", store=rows.parent / store, **how)


def test_a_client_a_cluster_and_the_current_client_give_the_same_bits_and_stay_open(
    rows: Path, cluster: LocalCluster
) -> None:
    found(rows, "local")
    with Client(cluster, set_as_default=True) as client:
        for name, given in {"client": client, "cluster": cluster, "current": "current"}.items():
            solution = found(rows, name, cluster=given)
            assert any(process.name.startswith("worker tls://") for process in solution.peak_rss_by_process)
            same_bytes(rows.parent / "local", rows.parent / name, parts=PARTS)
            recorded = json.loads((rows.parent / name / "run.json").read_text())["resources"]
            assert recorded["cluster"] == cluster.scheduler_address and recorded["certificates"] is None
            assert client.status == "running" and client.submit(sum, (1, 2)).result() == 3
    with pytest.raises(BadInputError, match=r"has no distributed\.Client: create one first"):
        found(rows, "none", cluster="current")


def test_a_run_goes_on_with_the_client_where_its_address_alone_does_not_suffice(
    rows: Path, cluster: LocalCluster
) -> None:
    assert not found(rows, "run", cluster=cluster, max_steps=1).converged
    with pytest.raises(BadInputError, match="uses TLS, but there are no certificates"):
        npmdask.resume(rows.parent / "run", max_steps=50)
    with Client(cluster, set_as_default=False) as client:
        assert npmdask.resume(rows.parent / "run", max_steps=50, cluster=client).converged
        with pytest.raises(BadInputError, match="has its own certificates: leave certificates out"):
            found(rows, "other", cluster=client, certificates=rows.parent)
        assert client.status == "running"
    assert json.loads((rows.parent / "run" / "run.json").read_text())["resources"]["cluster"].startswith("tls://")


def test_a_client_that_is_refused_stays_open(rows: Path, cluster: LocalCluster) -> None:
    """Where its workers do not see the data, and where the memory does not suffice."""
    with Client(cluster, set_as_default=False) as client:
        with pytest.raises(npmdask.RefusedError):
            found(rows, "run", cluster=client, memory="16MiB")
        with pytest.raises(BadInputError, match="either a cluster or workers"):
            found(rows, "run", cluster=client, workers=2)
        assert client.submit(sum, (1, 2)).result() == 3


@pytest.mark.parametrize("when", ["on_step", "on_task"])
def test_a_client_that_is_closed_under_way_is_a_resume(
    rows: Path, cluster: LocalCluster, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two passes, and inside of one of several tasks."""
    monkeypatch.setattr(protocol, "RUN_BYTES", 2**18)
    client = Client(cluster, set_as_default=False)
    observer = Observer()
    setattr(observer, when, lambda *facts: client.close())
    with pytest.raises(LostError, match="was lost during a pass"):
        found(rows, "run", cluster=client, observer=observer)
    with pytest.raises(LostError, match=r"the distributed\.Client is closed: create another one"):
        found(rows, "run", cluster=client)
    assert found(rows, "run", cluster=cluster).converged


def test_a_scheduler_file_is_read_from_python_configurations_and_options(rows: Path, tmp_path: Path) -> None:
    file = tmp_path / "scheduler.json"
    settings = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
    with LocalCluster(**settings) as cluster:
        file.write_text(json.dumps({"address": cluster.scheduler_address, "workers": {}}))
        for name, given in {"path": file, "text": str(file)}.items():
            assert found(rows, name, cluster=given).converged
        (tmp_path / "c.toml").write_text(
            '[source]\npath = "x.zarr"\n[algorithm]\ntarget_rank = 3\n[run]\ncluster = "scheduler.json"\n'
        )
        config = load_config(tmp_path / "c.toml")
        assert config.run.cluster == str(file) and config.resources().cluster == cluster.scheduler_address
        assert config.solve().converged  # type: ignore[union-attr]
        command = [sys.executable, "-m", "npmdask.cli.main", "run", "x.zarr", "-k", "3", "--quiet", "--json"]
        command += ["--set", "run.cluster=scheduler.json", "--store", "command"]
        told = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
        assert any(p["name"].startswith("worker tcp://") for p in json.loads(told)["peak_rss_by_process"])
        recorded = json.loads((tmp_path / "command" / "run.json").read_text())["resources"]
        assert recorded["cluster"] == cluster.scheduler_address


def test_what_is_no_cluster_gets_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "half.json").write_text('{"address": "tcp://1')
    (tmp_path / "other.json").write_text('{"workers": 2}')
    (tmp_path / "list.json").write_text("[]")
    for name, sentence in {
        "half": "is not the JSON file",
        "other": 'has no "address"',
        "list": 'has no "address"',
    }.items():
        with pytest.raises(BadInputError, match=sentence):
            scheduler_of(tmp_path / f"{name}.json")
    with pytest.raises(LostError, match="there is no scheduler file"):
        scheduler_of(tmp_path / "none.json")
    for given in (8786, {"address": "tcp://a:1"}, ["tcp://a:1"], True):
        with pytest.raises(BadInputError, match=r"is not supported: give the address of a Dask scheduler"):
            scheduler_of(given)
        with pytest.raises(BadInputError, match=r"is not supported"):
            npmdask.top_k(np.eye(3), 1, cluster=given)
    for where in ("<Not Connected>", "", None):
        with pytest.raises(LostError, match="has no scheduler"):
            scheduler_of(SimpleNamespace(scheduler_address=where))
    with LocalCluster(n_workers=1, processes=False, dashboard_address="127.0.0.1:0") as threads:
        with Client(threads, set_as_default=False) as client:
            for given in (threads, client):
                with pytest.raises(BadInputError, match="uses threads of this process as workers"):
                    scheduler_of(given)


def test_an_asynchronous_client_is_refused(cluster: LocalCluster) -> None:
    async def asked() -> None:
        how = {"security": cluster.security, "asynchronous": True, "set_as_default": False}
        async with Client(cluster.scheduler_address, **how) as client:
            with pytest.raises(BadInputError, match="is asynchronous"):
                scheduler_of(client)

    asyncio.run(asked())


def test_no_cluster_and_plain_addresses_stay_what_they_are() -> None:
    assert [scheduler_of(given) for given in (None, "", "tcp://h:1", "h:8786")] == [None, "", "tcp://h:1", "h:8786"]
    assert parse_changes(["run.cluster=tcp://h:1"]) == {"run.cluster": "tcp://h:1"}


def test_what_is_kept_of_an_address_is_its_text() -> None:
    address = SchedulerAddress("tls://h:1")
    address.client = object()
    kept = deepcopy({"cluster": address})["cluster"]
    assert type(kept) is str and kept == address and scheduler_of(address) is address


def test_a_gram_has_the_same_bits_from_a_cluster(rows: Path, cluster: LocalCluster) -> None:
    local = npmdask.gram(rows, rows.parent / "local", kind="samples")
    there = npmdask.gram(rows, rows.parent / "there", kind="samples", cluster=cluster)
    assert there.fingerprint == local.fingerprint and there.rows_read == 4000
