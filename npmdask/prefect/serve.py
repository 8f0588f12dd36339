"""Run scheduled analyses on this machine: start a Prefect server and a worker, with the schedules of one file.

Also serve a page that lists all runs and schedules, and the report of every run below ``runs``; Prefect's pages link to
them. They are at the port after Prefect's, or at a free one. With --metrics-port, Prometheus can read the status of the
runs.

All addresses are on 127.0.0.1 and need the login in PREFECT_HOME/auth. The database is SQLite in PREFECT_HOME
(``runs/.prefect``), or the one that PREFECT_SERVER_DATABASE_CONNECTION_URL names. A process that is killed is started
again, and a run that was killed is resumed.

``npmdask serve --example`` first creates small data and a schedule, and serves them from a folder of their own.
"""

import argparse
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, chdir, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import psutil

from npmdask.cli.parser import SCHEDULES_SCHEMA, SCHEMA, Parser
from npmdask.core.checkpoint.logging import open_log
from npmdask.errors import BadInputError, RefusedError, require
from npmdask.manage.commands import add_serve_options
from npmdask.manage.prometheus import require_client
from npmdask.prefect import reports
from npmdask.prefect.processes import Service, Supervisor, alone
from npmdask.prefect.programs import (
    AUTH_VARIABLES,
    BELOW,
    POOL,
    announce,
    apply_settings,
    auth_file,
    auth_string,
    counted,
    exit_code,
    say,
)
from npmdask.prefect.server import DATABASE_DAMAGED, DATABASE_GONE, answers, ask, free_port, python_path
from npmdask.synthetic import generate

PORT = 4200  # the port that Prefect uses by default
SCRATCH = "npmdask-serve-"  # names of temporary folders
ENDING = 10.0  # seconds that killed processes have to be gone
FRESH = 30.0  # seconds since the keeper's last look


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGINT or SIGTERM; returns the exit code."""
    parser = Parser(prog="npmdask serve", description=__doc__)
    add_serve_options(parser)
    a = parser.parse_args(argv)
    return exit_code(lambda: _serve(a))


def _serve(a: argparse.Namespace) -> int:
    if a.example is None:
        return _serve_file(a, _file_of(a))
    require(a.schedules is None, f"--example brings its own schedule: leave out either {a.schedules} or --example")
    a.folder = a.folder and a.folder.absolute()
    with example(a.example) as folder:
        return _serve_file(a, folder / SCHEDULES)


def _file_of(a: argparse.Namespace) -> Path:
    """The schedules that are asked for."""
    if a.schedules is None and not Path(SCHEDULES).exists():
        raise BadInputError(
            f"there is no {SCHEDULES} in {Path.cwd()}: name a file of schedules, or let "
            "`npmdask serve --example FOLDER` write one to start from"
        )
    return Path(a.schedules or SCHEDULES).absolute()


def _serve_file(a: argparse.Namespace, schedules: Path) -> int:
    apply_settings()  # Prefect reads them when it is imported, which is now
    from npmdask.prefect.schedules import read_notify, read_schedules

    planned = read_schedules(schedules)
    read_notify(schedules)
    if a.check:
        now = datetime.now(UTC)
        print("\n".join(f"{one.name}: {one.flow.name} on {one.data}; {one.timing(now)}" for one in planned))
        return 0
    began, home = time.monotonic(), auth_file().parent
    folder = (a.folder or Path("runs", ".serve")).absolute()
    open_log()
    with ExitStack() as stack:
        for held in dict.fromkeys((folder, home)):
            stack.enter_context(alone(held, "stop it first, or name another --folder and set another PREFECT_HOME"))
        port, runs = _port(a.port or PORT), Path("runs").absolute()
        if a.port not in (None, port):
            raise RefusedError(
                f"port {a.port} of 127.0.0.1 is taken: stop the program that uses it, or name another --port"
            )
        pages, scratch = _port(port + 1), stack.enter_context(_scratch(folder))
        all_of_them = services(folder, port, schedules, runs, pages, scratch)
        supervisor = Supervisor(folder, [*all_of_them, *_metrics(runs, a.metrics_port)], announce)
        stack.enter_context(supervisor)
        took = time.monotonic() - began
        many = counted(len(planned), "schedule")
        say(f"Prefect at http://127.0.0.1:{port}, {many}, ready after {took:.0f} s; Ctrl-C stops all")
        say(f"all runs and schedules at http://127.0.0.1:{pages}")
        say(f"the login for these pages: {_where_it_is()}")
        try:
            supervisor.watch(lambda: False)
        except KeyboardInterrupt:
            say("stopping; all committed steps are kept, and the next start resumes the runs")
    return 0


def _where_it_is() -> str:
    told = [name for name in AUTH_VARIABLES if os.environ.get(name)]
    return f"the value of {told[0]}" if told else f"the line in {auth_file()}"


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """A temporary folder for the worker and its runs, which leave things behind when they are killed.

    At the end the runs that still use it are ended, each in a session of its own, and it is deleted. A start that was
    killed itself leaves runs that go on in their working directories there: its folder is deleted by the first start
    or end at which they are gone. Not below ``folder``, which may be on a slow disk and have a name that is too long
    for sockets.
    """
    note = folder / "scratch"  # one folder a line, ours first
    left = [Path(line) for line in note.read_text().splitlines()] if note.exists() else []
    left = [old for old in left if _is_scratch(old) and (users_of(old) or not _deleted(old))]
    ours = Path(tempfile.mkdtemp(prefix=SCRATCH))
    try:
        note.write_text("".join(f"{one}\n" for one in (ours, *left)))
        yield ours
    finally:
        for one in (ours, *left):
            deadline = time.monotonic() + ENDING
            while (users := users_of(one)) and time.monotonic() < deadline:  # those that were just started, too
                for user in users:
                    with suppress(psutil.Error):
                        user.kill()
                psutil.wait_procs(users, timeout=1)
            _deleted(one)
        note.unlink(missing_ok=True)


def _is_scratch(old: Path) -> bool:
    """Say whether a folder that a note names is one of ours: the note may be anything."""
    ours = old.name.startswith(SCRATCH) and old.is_absolute() and not old.is_symlink() and old.is_dir()
    return ours and old.stat().st_uid == os.geteuid()


def users_of(scratch: Path) -> list[psutil.Process]:
    """Processes that have it as their folder of temporary files."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):  # another's, or gone
            if process.environ().get("TMPDIR") == str(scratch) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def _deleted(folder: Path) -> bool:
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


def services(
    folder: Path, port: int, schedules: Path | None, runs: Path, pages: int, scratch: Path | None = None
) -> list[Service]:
    """Pages of ``runs`` (at the port ``pages``), server, keeper, worker, in the order in which they start.

    ``scratch`` : the folder of temporary files of the worker and its runs.
    """
    url, alive = f"http://127.0.0.1:{port}/api", folder / "keeper.alive"
    environment = settings(url, port) | {"PREFECT_UI_API_URL": url, "PYTHONPATH": python_path()}
    environment |= {reports.URL: f"http://127.0.0.1:{pages}", BELOW: str(runs)}
    client = environment | {"PREFECT_API_AUTH_STRING": auth_string()}  # the others read it themselves, or need it not
    aside = {} if scratch is None else {"TMPDIR": str(scratch)}
    alive.unlink(missing_ok=True)
    return [
        Service(
            name="reports",
            command=(sys.executable, "-m", "npmdask.prefect.reports", str(runs), str(pages)),
            environment=environment,
            ready=lambda: reports.is_listening(pages),
        ),
        Service(
            name="prefect-server",
            command=(sys.executable, *server_command(port)),
            environment=environment,
            ready=lambda: answers(url),
            final=DATABASE_DAMAGED,
        ),
        Service(
            name="keeper",
            command=(sys.executable, *keeper_command(schedules, alive)),
            environment=client,
            ready=_liveness_check(alive),
        ),
        worker(url, f"on-{socket.gethostname()}", client | aside),
    ]


def _metrics(runs: Path, port: int | None) -> list[Service]:
    """Return the service that Prometheus asks, if it is to."""
    if port is None:
        return []
    require_client()
    command = (sys.executable, "-m", "npmdask.cli.main", "metrics", str(runs), "--port", str(port))
    there = {"PYTHONPATH": python_path()}
    return [Service(name="metrics", command=command, environment=there, ready=lambda: reports.is_listening(port))]


def worker(url: str, name: str, environment: dict[str, str]) -> Service:
    """A process worker of the pool: it starts one process for each flow run."""
    return Service(
        name="worker",
        command=(sys.executable, *worker_command(name)),
        environment=environment,
        ready=lambda: _online(url, name, environment["PREFECT_API_AUTH_STRING"]),
        lost_with=("prefect-server", DATABASE_GONE),  # it would ask again after minutes
    )


# What is run and with which settings, wherever that is: the containers of infra/ say the same.


def settings(url: str, port: int) -> dict[str, str]:
    """The environment that server, keeper and worker share."""
    return {
        "PREFECT_API_URL": url,
        "PREFECT_SERVER_API_PORT": str(port),
        "PREFECT_SERVER_SERVICES_SCHEDULER_LOOP_SECONDS": "10",
        "PREFECT_WORKER_QUERY_SECONDS": "2",
    }


def server_command(port: int) -> tuple[str, ...]:
    """Arguments of Python."""
    return ("-m", "npmdask.prefect.server", str(port))


def keeper_command(schedules: Path | str | None, alive: Path | str) -> tuple[str, ...]:
    """Arguments of Python."""
    file = ("--schedules", str(schedules)) if schedules else ()
    return ("-m", "npmdask.prefect.keeper", *file, "--alive", str(alive))


def worker_command(name: str) -> tuple[str, ...]:
    """Arguments of Python."""
    return ("-m", "prefect", "worker", "start", "--pool", POOL, "--type", "process", "--name", name)


def _online(url: str, name: str, auth: str) -> bool:
    """Say whether the server has heard of the worker lately."""
    try:
        found = ask(url, f"/work_pools/{POOL}/workers/filter", {}, auth=auth)
    except OSError:
        return False
    return any(one["name"] == name and one["status"] == "ONLINE" for one in found)


def _liveness_check(alive: Path) -> Callable[[], bool]:
    def ready() -> bool:
        try:
            return time.time() - alive.stat().st_mtime < FRESH
        except FileNotFoundError:
            return False

    return ready


def _port(wanted: int) -> int:
    """That port, unless it is taken."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # not one whose last connections linger
        try:
            probe.bind(("127.0.0.1", wanted))
        except (OSError, OverflowError):
            return free_port()
    return wanted


# The example of ``--example``: small data, a configuration and a schedule, in a folder of their own.

ROWS, COLUMNS = 65536, 256  # 64 MiB: made in a second, and a first run of seconds
DATA, CONFIG, SCHEDULES = "example.zarr", "example.toml", "schedules.toml"
OF_ANOTHER_DATABASE = ("PREFECT_SERVER_DATABASE_CONNECTION_URL", "PREFECT_API_DATABASE_CONNECTION_URL")
FILES = {
    CONFIG: """# The run of the example; every key and what it means: `npmdask init NAME`.
[source]
path = "example.zarr"
center = true

[algorithm]
target_rank = 10

[run]
memory = "1GiB"
""",
    SCHEDULES: """# What `npmdask serve` runs, and when. A change counts within seconds, while it serves.
# `npmdask serve schedules.toml --check` says what is wrong with it.

[[schedule]]
name = "example"
flow = "npm"
config = "example.toml"         # relative to this file
every = 60                      # seconds; a finished run answers at once, so a tick costs nothing until the data change
""",
}


@contextmanager
def example(wanted: str) -> Iterator[Path]:
    """Make the example and work in its folder: ``wanted``, or a temporary one that is deleted at the end.

    Prefect's files are there, too: the server has none of the schedules of another database, and leaves it alone. What
    is in the folder already stays, so that the example can be changed and served again.

    Raises
    ------
    BadInputError
        The folder cannot be made.
    """
    with tempfile.TemporaryDirectory(prefix="npmdask-example-", ignore_cleanup_errors=True) as temporary:
        folder = Path(wanted or temporary).absolute()
        make_example(folder)
        say(f"the example is in {folder}{'' if wanted else ', and is deleted at the end'}: {SCHEDULES} says what runs")
        os.environ["PREFECT_HOME"] = str(folder / "runs" / ".prefect")
        (folder / "runs" / ".prefect").mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in OF_ANOTHER_DATABASE:
            os.environ.pop(name, None)
        with chdir(folder):
            yield folder


def make_example(folder: Path) -> None:
    """Write data, configuration and schedule, those that are not there.

    Raises
    ------
    BadInputError
        The folder cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / DATA).exists():
            generate(folder / DATA, problem="spectrum", spectrum="harmonic", kind="samples", rows=ROWS, columns=COLUMNS)
        for name, text in FILES.items():
            if not (folder / name).exists():
                (folder / name).write_text(
                    f"#:schema {(SCHEDULES_SCHEMA if name == SCHEDULES else SCHEMA).as_uri()}\n{text}"
                )
    except OSError as error:
        raise BadInputError(
            f"the example cannot be made in {folder} ({error.strerror}): name another folder, or none"
        ) from None


if __name__ == "__main__":
    sys.exit(main())
