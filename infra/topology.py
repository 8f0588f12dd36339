"""What runs, with which command and which environment: written once, filled in for a place.

A place is this machine (``local_cluster.py``) or containers (``compose.yaml``, ``kubernetes/``). A test compares the
two files with what is said here for containers, word by word.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from npmdask.prefect.serve import keeper_command, server_command, settings, worker_command

POSTGRES, OBJECTS, SERVER, KEEPER = "postgres", "object-store", "prefect-server", "keeper"
WORKER, SCHEDULER, CRUNCHER = "worker", "dask-scheduler", "dask-worker"
ORDER = (POSTGRES, OBJECTS, SCHEDULER, SERVER, KEEPER, WORKER, CRUNCHER)  # each is started after those before it
NEEDS = {SERVER: (POSTGRES,), KEEPER: (SERVER,), WORKER: (SERVER,), CRUNCHER: (SCHEDULER,)}
LINKS = {  # who opens connections to whom; there are no others
    SERVER: (POSTGRES,),
    KEEPER: (SERVER, OBJECTS),
    WORKER: (SERVER, POSTGRES, OBJECTS, SCHEDULER),
    SCHEDULER: (CRUNCHER,),
    CRUNCHER: (SCHEDULER, CRUNCHER, OBJECTS),
}
PORTS = {POSTGRES: 5432, OBJECTS: 9000, SERVER: 4200, SCHEDULER: 8786, CRUNCHER: 8788}
HEALTH = {SCHEDULER: 8787, CRUNCHER: 8789}  # ports of /health beside those
BUCKET = "npmdask"
LOGIN = "npmdask:<PREFECT_API_PASSWORD>"  # at Prefect's API and its pages
FIRST_START = {  # more of the environment of the PostgreSQL image; here postgres.py does that
    "POSTGRES_INITDB_ARGS": "--auth=scram-sha-256 --encoding=UTF8",
    **{name: f"<{name}>" for name in ("POSTGRES_PASSWORD", "PREFECT_PASSWORD", "LEDGER_PASSWORD")},
}


@dataclass(frozen=True, kw_only=True)
class Place:
    """Describe where a topology runs.

    Parameters
    ----------
    bind : address on which everything listens.
    hosts : under which name each service is reached; its own name if it is left out.
    ports, health : on which port.
    programs : what python, dask, rclone and postgres are called.
    memory : of a Dask worker; beyond it data go to disk.
    prefect_in_postgres : False only on a machine whose PostgreSQL lacks pg_trgm: Prefect's database is SQLite then.
    pgdata, sockets, objects, home, schedules, alive, scratch : folders and files of the services.
    """

    bind: str = "0.0.0.0"
    hosts: Mapping[str, str]
    ports: Mapping[str, int]
    health: Mapping[str, int]
    programs: Mapping[str, str]
    memory: str
    pgdata: str
    sockets: str
    objects: str
    home: str
    schedules: str | None
    alive: str
    scratch: str
    prefect_in_postgres: bool = True

    def at(self, service: str) -> str:
        """HOST:PORT."""
        return f"{self.hosts.get(service, service)}:{self.ports[service]}"

    @property
    def api(self) -> str:
        """PREFECT_API_URL."""
        return f"http://{self.at(SERVER)}/api"

    @property
    def scheduler(self) -> str:
        """Address of the Dask scheduler."""
        return f"tcp://{self.at(SCHEDULER)}"


CONTAINERS = Place(
    hosts={},
    ports=PORTS,
    health=HEALTH,
    programs={},
    memory="3GiB",
    pgdata="/var/lib/postgresql/18/docker",
    sockets="/var/run/postgresql",
    objects="/objects",
    home="/srv/npmdask/prefect",
    schedules="/etc/npmdask/schedules.toml",
    alive="/tmp/keeper.alive",
    scratch="/scratch",
)


def commands(place: Place) -> dict[str, tuple[str, ...]]:
    """What each service runs. The object store and the database get their secrets from the environment."""
    python, dask, rclone, postgres = (place.programs.get(name, name) for name in ("python", "dask", "rclone", POSTGRES))
    bind, port, health = place.bind, place.ports, place.health
    listening = (f"listen_addresses={bind}", f"port={port[POSTGRES]}", f"unix_socket_directories={place.sockets}")
    return {
        POSTGRES: (postgres, *(word for setting in listening for word in ("-c", setting))),
        OBJECTS: (rclone, "serve", "s3", "--addr", f"{bind}:{port[OBJECTS]}", "--config", "/dev/null", place.objects),
        SCHEDULER: (dask, "scheduler", *_dask(bind, port[SCHEDULER], health[SCHEDULER], "--port")),
        SERVER: (python, *server_command(port[SERVER])),
        KEEPER: (python, *keeper_command(place.schedules, place.alive)),
        WORKER: (python, *worker_command(WORKER)),
        CRUNCHER: (
            *(dask, "worker", place.scheduler, *_dask(bind, port[CRUNCHER], health[CRUNCHER], "--worker-port")),
            *("--nthreads", "1", "--no-nanny", "--death-timeout", "60"),
            *("--memory-limit", place.memory, "--local-directory", place.scratch),
        ),
    }


def _dask(bind: str, port: int, health: int, name: str) -> tuple[str, ...]:
    return ("--host", bind, name, str(port), "--dashboard-address", f"{bind}:{health}", "--no-dashboard")


def environments(place: Place) -> dict[str, dict[str, str]]:
    """Return the environment of each service; ``<NAME>`` is a secret of ``make_secrets.SECRETS``."""
    prefect = settings(place.api, place.ports[SERVER]) | {"PREFECT_HOME": place.home}
    client = prefect | {"PREFECT_API_AUTH_STRING": LOGIN}
    objects = {
        "AWS_ENDPOINT_URL": f"http://{place.at(OBJECTS)}",
        "AWS_ALLOW_HTTP": "true",  # inside of the cluster
        "AWS_REGION": "us-east-1",  # any will do
        "AWS_ACCESS_KEY_ID": "<AWS_ACCESS_KEY_ID>",
        "AWS_SECRET_ACCESS_KEY": "<AWS_SECRET_ACCESS_KEY>",
    }
    ledger = f"postgresql://ledger:<LEDGER_PASSWORD>@{place.at(POSTGRES)}/ledger"
    return {
        POSTGRES: {"PGDATA": place.pgdata},
        OBJECTS: {"RCLONE_AUTH_KEY": '"<AWS_ACCESS_KEY_ID>,<AWS_SECRET_ACCESS_KEY>"'},
        SCHEDULER: {},
        SERVER: prefect | _server(place),
        KEEPER: client | objects,
        WORKER: client | objects | {"NPMDASK_LEDGER": ledger, "DASK_SCHEDULER_ADDRESS": place.scheduler},
        CRUNCHER: objects
        | {
            "OPENBLAS_NUM_THREADS": "1",
            "MALLOC_TRIM_THRESHOLD_": "1073741824",  # else every buffer is given back and faulted in again
            "MALLOC_MMAP_THRESHOLD_": "1073741824",
        },
    }


def _server(place: Place) -> dict[str, str]:
    """Of the Prefect server: its database, and nothing that dies with its memory or is written beside its code."""
    told = {
        "PREFECT_SERVER_API_HOST": place.bind,
        "PREFECT_SERVER_API_AUTH_STRING": LOGIN,
        "PREFECT_UI_API_URL": f"http://127.0.0.1:{place.ports[SERVER]}/api",  # as a browser on this machine sees it
        "PREFECT_SERVER_UI_STATIC_DIRECTORY": f"{place.home}/ui",
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
    }
    if not place.prefect_in_postgres:
        return told
    return told | {
        "PREFECT_SERVER_DATABASE_DRIVER": "postgresql+asyncpg",
        "PREFECT_SERVER_DATABASE_HOST": place.hosts.get(POSTGRES, POSTGRES),
        "PREFECT_SERVER_DATABASE_PORT": str(place.ports[POSTGRES]),
        "PREFECT_SERVER_DATABASE_NAME": "prefect",
        "PREFECT_SERVER_DATABASE_USER": "prefect",
        "PREFECT_SERVER_DATABASE_PASSWORD": "<PREFECT_PASSWORD>",
    }


def probes(place: Place) -> dict[str, str]:
    """What ``probe.py`` asks from inside of each service; the worker and postgres have no such thing."""
    here = "127.0.0.1"
    return {
        OBJECTS: f"tcp://{here}:{place.ports[OBJECTS]}",
        SCHEDULER: f"http://{here}:{place.health[SCHEDULER]}/health",
        SERVER: f"http://{here}:{place.ports[SERVER]}/api/health",
        KEEPER: f"file:{place.alive}",
        CRUNCHER: f"http://{here}:{place.health[CRUNCHER]}/health",
    }
