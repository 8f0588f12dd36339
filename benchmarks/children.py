"""Programs in processes of their own: for peak memory, for kills, for packages from another environment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.registry import CannotRunError

ROOT = Path(__file__).resolve().parent.parent
PEERS = ROOT / ".venv-peers" / "bin" / "python"
SCRIPTS = Path(__file__).with_name("peer_scripts")


class ChildFailedError(Exception):
    """A child ended badly; the sentence is the last line that it said."""


class TooSlowError(Exception):
    """A child did not end in the time that it was given."""


@contextmanager
def started(command: list[str], *, folder: Path, said: Any = None) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a group of its own, of which nothing is left afterwards. No PREFECT_ setting is inherited."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    environment |= {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)}
    environment |= {"PREFECT_HOME": str(folder / "prefect"), "PYTHONWARNINGS": "ignore"}
    child = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=said or subprocess.DEVNULL,
        stderr=subprocess.STDOUT if said else subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield child
    finally:
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        child.wait()


def last_json(command: list[str], *, folder: Path, seconds: float = 1800) -> dict[str, Any]:
    """Run a command to its end; the JSON object that is its last line."""
    with tempfile.TemporaryFile(dir=folder) as said:
        with started(command, folder=folder, said=said) as child:
            try:
                code = child.wait(seconds)
            except subprocess.TimeoutExpired:
                raise TooSlowError(f"slower than {seconds:.0f} s") from None
        said.seek(0)
        lines = said.read().decode(errors="replace").strip().splitlines() or ["nothing was said"]
    try:
        return dict(json.loads(lines[-1]))
    except ValueError:
        raise ChildFailedError(f"exit code {code}: {lines[-1][:300]}") from None


def in_child(module: str, job: dict[str, Any], *, folder: Path) -> dict[str, Any]:
    """What ``main(job)`` of a module returns that ends with :func:`as_child`, in a process of its own."""
    return last_json([sys.executable, "-m", module, json.dumps(job)], folder=folder)


def as_child(main: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """The other end of :func:`in_child`."""
    print(json.dumps(main(json.loads(sys.argv[1]))))


def solve_command(**arguments: Any) -> list[str]:
    """``npmdask.top_k(**arguments)`` in a process of its own; see benchmarks/solve.py."""
    return [sys.executable, "-m", "benchmarks.solve", json.dumps(arguments)]


def own_command(script: str, job: dict[str, Any]) -> list[str]:
    """A script of the peers, in the environment of this project: where npmdask is one of the contestants."""
    return [sys.executable, str(SCRIPTS / f"{script}.py"), json.dumps(job)]


def peer_command(script: str, job: dict[str, Any]) -> list[str]:
    """A script of the peers' environment.

    Raises
    ------
    CannotRunError
        That environment is not there.
    """
    if not PEERS.exists():
        raise CannotRunError("the packages to compare with are not installed: `make peers` makes .venv-peers")
    return [str(PEERS), str(SCRIPTS / f"{script}.py"), json.dumps(job)]
