"""The topology as real processes: everything answers, what is killed comes back, nothing is left."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import obstore
import psutil
import psycopg
import pytest
from distributed import Client
from obstore.exceptions import BaseError, PermissionDeniedError
from obstore.store import S3Store

from infra import postgres
from infra.local_cluster import LocalCluster
from infra.topology import BUCKET, CRUNCHER, LINKS, OBJECTS, POSTGRES, SCHEDULER, SERVER, WORKER
from npmdask.core.storage.bundle import read_bundle
from npmdask.core.storage.paths import locked
from npmdask.errors import BadInputError, RefusedError
from npmdask.prefect.server import ask
from npmdask.synthetic import generate
from tests.prefect.conftest import alive

pytestmark = pytest.mark.slow


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that PostgreSQL may enter, too: as root it runs as nobody."""
    with tempfile.TemporaryDirectory(prefix="npmdask-cluster-") as made:
        Path(made).chmod(0o711)
        yield Path(made, "cluster")


def test_everything_answers_comes_back_and_goes(folder: Path, tmp_path: Path) -> None:
    schedules = tmp_path / "schedules.toml"
    schedules.write_text("")
    with LocalCluster(folder, workers=2, schedules=schedules) as cluster:
        state = json.loads((folder / "services.json").read_text())["services"]
        whole = [process for one in state.values() for process in family(one["pid"])]
        ports = {*cluster.place.ports.values(), *cluster.place.health.values()}
        assert {one.ip for process in whole for one in listened(process.pid)} == {"127.0.0.1"}
        secrets_stay_secret(folder, cluster)
        databases_answer(cluster)
        put_data(cluster, tmp_path / "x.zarr")
        a_flow_runs(cluster, schedules)
        what_is_killed_comes_back(cluster)
        whole += [process for name in state for process in family(cluster.supervisor.pid(name))]
    wait_until(lambda: not alive(whole), 120, "no process is left")  # the kernel takes a moment for what it kills
    for port in ports:
        wait_until(lambda: is_free(port), 120, f"port {port} is free")  # noqa: B023
    assert not (folder / "cluster.env").exists()


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # of closed connections something may linger
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def family(pid: int) -> list[psutil.Process]:
    """A process and all that it started."""
    first = psutil.Process(pid)
    return [first, *first.children(recursive=True)]


def test_bad_input_is_a_sentence_and_starts_nothing(folder: Path) -> None:
    with pytest.raises(BadInputError, match="at least one"):
        LocalCluster(folder, workers=0)
    with pytest.raises(BadInputError, match="there is no such file"):
        LocalCluster(folder, schedules=folder / "nothing.toml")
    with locked(folder / "cluster"), pytest.raises(RefusedError, match="another process"), LocalCluster(folder):
        pass
    assert not (folder / "postgres").exists()
    if postgres.as_whom() is not None:
        folder.parent.chmod(0o700)
        with pytest.raises(RefusedError, match=r"runs as nobody, who may not enter .*: choose another folder"):
            LocalCluster(folder)


def listened(pid: int) -> list[Any]:
    """Addresses on which a service takes connections."""
    with suppress(psutil.NoSuchProcess):  # a helper of PostgreSQL, or a run, that has ended meanwhile
        return [one.laddr for one in psutil.Process(pid).net_connections("inet") if one.status == psutil.CONN_LISTEN]
    return []


def connections(cluster: LocalCluster) -> set[tuple[str, str]]:
    """Which service has a connection to which, at this instant, opened by the first."""
    listens = {one.port: name for name in cluster.ready_after for one in listened(cluster.supervisor.pid(name))}
    found = set()
    for name in cluster.ready_after:
        for process in family(cluster.supervisor.pid(name)):
            with suppress(psutil.NoSuchProcess):  # of a flow run that has just ended
                ends = [one for one in process.net_connections("inet") if one.raddr and one.laddr.port not in listens]
                found |= {(name, listens[one.raddr.port]) for one in ends if one.raddr.port in listens}
    return {(role(one), role(other)) for one, other in found if one != other}


def role(name: str) -> str:
    """``dask-worker`` of ``dask-worker-2``."""
    return re.sub(r"-\d+$", "", name)


def secrets_stay_secret(folder: Path, cluster: LocalCluster) -> None:
    """In files of their owner, and on no command line."""
    for name in ("secrets.env", "cluster.env"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600
    commands = (folder / "services.json").read_text()
    assert not [name for name, value in cluster.secrets.items() if value in commands]


def databases_answer(cluster: LocalCluster) -> None:
    """Prefect's tables are in PostgreSQL, where that can have them; the ledger's role sees its own database only."""
    at = cluster.place.at(POSTGRES)
    with psycopg.connect(f"postgresql://prefect:{cluster.secrets['PREFECT_PASSWORD']}@{at}/prefect") as connection:
        if cluster.place.prefect_in_postgres:
            assert connection.execute("SELECT count(*) FROM work_pool WHERE name = 'npmdask'").fetchone() == (1,)
    assert (cluster.folder / "prefect" / "prefect.db").exists() != cluster.place.prefect_in_postgres
    with psycopg.connect(cluster.environment["NPMDASK_LEDGER"]) as connection:
        assert connection.execute("SELECT current_user, current_database()").fetchone() == ("ledger", "ledger")
    with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
        psycopg.connect(f"postgresql://ledger:{cluster.secrets['LEDGER_PASSWORD']}@{at}/prefect")
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(f"postgresql://ledger:wrong@{at}/ledger")


def bucket(cluster: LocalCluster, **other: str) -> S3Store:
    told = cluster.environment
    keys = {"access_key_id": told["AWS_ACCESS_KEY_ID"], "secret_access_key": told["AWS_SECRET_ACCESS_KEY"]}
    where = {"endpoint": told["AWS_ENDPOINT_URL"], "region": told["AWS_REGION"]}
    return S3Store(BUCKET, **where, **(keys | other), client_options={"allow_http": True})


def put_data(cluster: LocalCluster, local: Path) -> None:
    """A matrix with known singular values, in the object store."""
    generate(local, problem="spectrum", rows=2000, columns=60, rank=5, spectrum="harmonic", kind="matrix")
    store = bucket(cluster)
    for file in filter(Path.is_file, local.rglob("*")):
        obstore.put(store, f"x.zarr/{file.relative_to(local)}", file)
    assert bytes(obstore.get(store, "x.zarr/zarr.json").bytes()) == (local / "zarr.json").read_bytes()
    with pytest.raises(PermissionDeniedError):
        obstore.get(bucket(cluster, secret_access_key="wrong"), "x.zarr/zarr.json")


def a_flow_runs(cluster: LocalCluster, schedules: Path) -> None:
    """What the keeper reads of a file, the worker starts, Dask computes, and the object store gives the data of."""
    (schedules.parent / "first.toml").write_text(
        f'[source]\npath = "s3://{BUCKET}/x.zarr"\n[algorithm]\nname = "power"\ntarget_rank = 3\niteration_rank = 3\n'
        f"[stop]\ntol = 1e-12\n"  # a hundred passes: connections are looked at several times meanwhile
        f'[run]\ncluster = "{cluster.place.scheduler}"\n'
    )
    schedules.write_text(
        '[[schedule]]\nname = "first"\nflow = "npm"\nconfig = "first.toml"\nstore = "run"\ncron = "0 0 1 1 *"\n'
    )

    def read() -> bool:
        with suppress(OSError):  # a server on a busy machine may not answer for half a minute
            return bool(api(cluster, "/deployments/filter", {}))
        return False

    wait_until(read, 240, "the keeper reads the schedule")
    (deployment,) = api(cluster, "/deployments/filter", {})
    run = api(cluster, f"/deployments/{deployment['id']}/create_flow_run", {})
    seen: set[tuple[str, str]] = set()

    def completed() -> bool:
        seen.update(connections(cluster))
        with suppress(OSError):
            return bool(api(cluster, f"/flow_runs/{run['id']}")["state"]["type"] == "COMPLETED")
        return False

    wait_until(completed, 240, "the flow run", every=0.1)
    allowed = {(one, other) for one, others in LINKS.items() for other in others}
    assert seen <= allowed, "what the network policies of Kubernetes would not let through"
    assert seen >= {(WORKER, SERVER), (WORKER, SCHEDULER), (CRUNCHER, SCHEDULER), (SCHEDULER, CRUNCHER)}
    values = read_bundle(schedules.parent / "run" / "result")[0]["values"]
    np.testing.assert_allclose(values[:3], np.arange(1, 4) ** -0.5, rtol=1e-6)


def what_is_killed_comes_back(cluster: LocalCluster) -> None:
    """Three at once, among them the database below the server; the others notice and go on."""
    before = {name: cluster.supervisor.pid(name) for name in (POSTGRES, OBJECTS, SCHEDULER)}
    for pid in before.values():
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: all(cluster.supervisor.pid(name) != pid for name, pid in before.items()), 240, "new processes")

    def works() -> bool:
        with suppress(OSError, psycopg.OperationalError, BaseError):
            databases_answer(cluster)
            return bool(obstore.list(bucket(cluster)).collect()) and len(api(cluster, "/deployments/filter", {})) == 1
        return False

    wait_until(works, 240, "PostgreSQL, server, object store")
    with Client(cluster.place.scheduler, timeout=200) as client:
        client.wait_for_workers(2, timeout=240)
        assert client.gather(client.map(abs, [-1, -2])) == [1, 2]


def api(cluster: LocalCluster, path: str, body: dict[str, Any] | None = None) -> Any:
    there = cluster.environment
    return ask(there["PREFECT_API_URL"], path, body, auth=there["PREFECT_API_AUTH_STRING"])


def wait_until(true: Callable[[], bool], seconds: float, what: str, every: float = 0.1) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(every)
