"""The whole topology on this machine, as real processes on 127.0.0.1: ``python infra/local_cluster.py FOLDER``.

PostgreSQL, Prefect server, keeper, worker, Dask scheduler and workers, and an object store, on free ports. Starts
them, prints who answers where, writes FOLDER/cluster.env for clients, and keeps all of it up until Ctrl-C: what is
killed comes back. What is in FOLDER stays, and the next start goes on with it.
"""

import argparse
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

if __name__ == "__main__":  # run as a script: Python put infra/ on the path, not the folder above it
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from infra import postgres
from infra.make_secrets import read_or_make
from infra.probe import answers
from infra.this_machine import HERE, free_ports, programs
from infra.topology import (
    BUCKET,
    CRUNCHER,
    HEALTH,
    KEEPER,
    OBJECTS,
    ORDER,
    PORTS,
    POSTGRES,
    SCHEDULER,
    SERVER,
    WORKER,
    Place,
    commands,
    environments,
    probes,
)
from npmdask.core.storage.paths import locked
from npmdask.errors import BadInputError, RefusedError
from npmdask.prefect.processes import Service, Supervisor
from npmdask.prefect.programs import exit_code, say
from npmdask.prefect.serve import worker
from npmdask.prefect.server import python_path

CLIENTS = ("PREFECT_API_", "AWS_", "NPMDASK_LEDGER", "DASK_SCHEDULER_ADDRESS")  # what cluster.env has


class LocalCluster:
    """The topology, from ``with`` to its end; whatever dies meanwhile is started again.

    Parameters
    ----------
    folder : of everything: data of the services, logs, secrets, ``cluster.env``.
    workers : Dask workers.
    schedules : the file that the keeper follows, if any.
    memory : of each Dask worker.

    Attributes
    ----------
    environment : for clients: PREFECT_API_URL, PREFECT_API_AUTH_STRING, AWS_*, NPMDASK_LEDGER, DASK_SCHEDULER_ADDRESS.
    place : hosts and ports.
    supervisor : ``supervisor.pid("prefect-server")``.
    ready_after : seconds from the start, by name of the service.
    """

    def __init__(
        self, folder: Path | str, *, workers: int = 2, schedules: Path | None = None, memory: str = "2GiB"
    ) -> None:
        if workers < 1:
            raise BadInputError(f"--workers {workers}: a cluster has at least one")
        if schedules is not None and not schedules.is_file():
            raise BadInputError(f"--schedules {schedules}: there is no such file; an empty one will do")
        self.folder, self.workers = Path(folder).absolute(), workers
        self.ready_after: dict[str, float] = {}
        self._over, self._up = threading.Event(), threading.Event()
        self._error: BaseException | None = None
        self._make_folders()
        self.secrets = read_or_make(self.folder / "secrets.env")
        self.place = self._place(schedules, memory)
        told = self._filled(WORKER)
        self.environment = {name: value for name, value in told.items() if name.startswith(CLIENTS)}
        self.supervisor = Supervisor(self.folder, self._services(), say)
        self._thread = threading.Thread(target=self._run, name="local-cluster")

    def __enter__(self) -> "LocalCluster":
        """Returns when everything answers.

        Raises
        ------
        RefusedError
            Something does not come up, or the folder is another cluster's; nothing is left then.
        """
        self._began = time.monotonic()
        with ExitStack() as stack:
            stack.enter_context(locked(self.folder / "cluster"))
            postgres.prepare(self.folder / "postgres", self.secrets)
            # One thread starts all, and lives as long as they do: the kernel ends a child with the thread that made it.
            self._thread.start()
            stack.callback(self._end)
            while not self._up.wait(0.1) and self.running:
                pass
            if self._error is not None:
                raise self._error
            self._write_environment()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def running(self) -> bool:
        """Whether somebody starts again what dies."""
        return self._thread.is_alive()

    def _end(self) -> None:
        self._over.set()
        self._thread.join()
        (self.folder / "cluster.env").unlink(missing_ok=True)

    def addresses(self) -> dict[str, str]:
        """Where each service answers."""
        at = self.place.at
        shown = {POSTGRES: f"postgresql://{at(POSTGRES)}", OBJECTS: self.environment["AWS_ENDPOINT_URL"]}
        shown |= {SERVER: f"http://{at(SERVER)}", SCHEDULER: self.place.scheduler}
        shown |= {name: f"tcp://{HERE}:{place.ports[CRUNCHER]}" for name, place in self._crunchers.items()}
        return {name: shown.get(name, "") for name in self.ready_after}

    def _run(self) -> None:
        try:
            with self.supervisor as supervisor:
                self._up.set()
                supervisor.watch(self._over.is_set, 0.2)
        except BaseException as error:
            self._error = error

    def _make_folders(self) -> None:
        foreign = postgres.as_whom() is not None  # PostgreSQL runs as somebody else and has to get in
        there = [folder for folder in (self.folder, *self.folder.parents) if folder.exists()]
        closed = [folder for folder in there if not folder.stat().st_mode & 0o001]
        if foreign and closed:
            raise RefusedError(
                f"for root, PostgreSQL runs as nobody, who may not enter {closed[-1]}: choose another folder "
                f"(below /tmp, or /srv), or start this as an ordinary user"
            )
        self.folder.mkdir(mode=0o711 if foreign else 0o700, parents=True, exist_ok=True)
        for name in ("objects", f"objects/{BUCKET}", "prefect", "scratch"):
            (self.folder / name).mkdir(mode=0o700, exist_ok=True)

    def _place(self, schedules: Path | None, memory: str) -> Place:
        where = programs()
        self._pg_isready = Path(where[POSTGRES]).with_name("pg_isready")
        ports = iter(free_ports(len(PORTS) + len(HEALTH) + 2 * (self.workers - 1)))
        place = Place(
            bind=HERE,
            hosts=dict.fromkeys(ORDER, HERE),
            ports={name: next(ports) for name in PORTS},
            health={name: next(ports) for name in HEALTH},
            programs=where,
            memory=memory,
            pgdata=str(self.folder / "postgres"),
            sockets="",
            objects=str(self.folder / "objects"),
            home=str(self.folder / "prefect"),
            schedules=None if schedules is None else str(schedules.absolute()),
            alive=str(self.folder / "keeper.alive"),
            scratch=str(self.folder / "scratch"),
            prefect_in_postgres=postgres.has_trigrams(Path(where[POSTGRES]).parent),
        )
        self._crunchers = {f"{CRUNCHER}-1": place}
        for number in range(2, self.workers + 1):
            more = {CRUNCHER: next(ports)}
            self._crunchers[f"{CRUNCHER}-{number}"] = replace(
                place, ports={**place.ports, **more}, health={**place.health, CRUNCHER: next(ports)}
            )
        return place

    def _filled(self, service: str) -> dict[str, str]:
        told = environments(self.place)[service]
        for name, value in self.secrets.items():
            told = {key: text.replace(f"<{name}>", value) for key, text in told.items()}
        return told | {"PYTHONPATH": python_path(), "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "INFO"}  # into the logs

    def _services(self) -> list[Service]:
        runs, asked = commands(self.place), probes(self.place)
        made = [
            Service(
                name=POSTGRES,
                command=runs[POSTGRES],
                environment=self._filled(POSTGRES),
                ready=self._accepts,
                stop_signal=signal.SIGINT,  # in order, without waiting for clients to go
                user=postgres.as_whom(),
            )
        ]
        for name in (OBJECTS, SCHEDULER, SERVER, KEEPER):
            ready = partial(answers, asked[name])
            made.append(Service(name=name, command=runs[name], environment=self._filled(name), ready=ready))
        made.append(worker(self.place.api, WORKER, self._filled(WORKER)))
        for name, place in self._crunchers.items():
            ready, command = partial(answers, probes(place)[CRUNCHER]), commands(place)[CRUNCHER]
            made.append(Service(name=name, command=command, environment=self._filled(CRUNCHER), ready=ready))
        return [replace(service, ready=self._noting(service)) for service in made]

    def _accepts(self) -> bool:
        """Whether PostgreSQL takes connections, and is not still recovering."""
        asked = (self._pg_isready, "--quiet", f"--host={HERE}", f"--port={self.place.ports[POSTGRES]}")
        return subprocess.run(asked).returncode == 0

    def _noting(self, service: Service) -> Callable[[], bool]:
        def ready() -> bool:
            if self._over.is_set():
                raise KeyboardInterrupt
            if answered := service.ready():
                self.ready_after.setdefault(service.name, time.monotonic() - self._began)
            return answered

        return ready

    def _write_environment(self) -> None:
        text = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in self.environment.items())
        file = self.folder / "cluster.env"
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as out:
            out.write(text)


def main(argv: Sequence[str] | None = None) -> int:
    """Keep a cluster up until SIGINT or SIGTERM; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="of data, logs, secrets and cluster.env")
    parser.add_argument("--workers", type=int, default=2, help="Dask workers (2)")
    parser.add_argument("--memory", default="2GiB", help="of each Dask worker (2GiB)")
    parser.add_argument("--schedules", type=Path, help="a schedules.toml for the keeper")
    a = parser.parse_args(argv)
    return exit_code(lambda: _stay(LocalCluster(a.folder, workers=a.workers, schedules=a.schedules, memory=a.memory)))


def _stay(cluster: LocalCluster) -> int:
    told = threading.Event()
    with cluster:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda signum, frame: told.set())
        if not cluster.place.prefect_in_postgres:
            say("this PostgreSQL lacks pg_trgm: Prefect has SQLite instead; apt-get install postgresql brings both")
        print(f"{'name':16} {'address':36} ready after")
        for name, address in cluster.addresses().items():
            print(f"{name:16} {address:36} {cluster.ready_after[name]:5.1f} s")
        say(f"set -a; . {shlex.quote(str(cluster.folder / 'cluster.env'))}   makes a shell a client; Ctrl-C stops all")
        say("Prefect's pages ask for a password: it is PREFECT_API_AUTH_STRING in that file")
        sys.stdout.flush()
        while not told.wait(0.5) and cluster.running:
            pass
        say("stopping; what is in the folder stays")
    return 0


if __name__ == "__main__":
    sys.exit(main())
