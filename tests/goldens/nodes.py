"""Live nodes of the federated goldens: one process for all that a run asks, ``python -m tests.goldens.nodes NAME...``.

Each node is a process forked from it, of ``npmdask node NAME.toml`` in the working folder. Random bytes of the system
are those of a seed, as in ``make``: names and keys that a node draws are the same in every process.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import npmdask
from tests.goldens.doors import called
from tests.goldens.kinds import Kind
from tests.goldens.worlds import renamed

ROOT = Path(__file__).resolve().parents[2]
TOKENS = "tokens"  # the file with address and token of each


def serve(names: Sequence[str]) -> None:
    """Start them all; at the end of standard input, which is that of the process that asks them, kill and reap them."""
    assert npmdask.top_k  # imported before the forks, once for all
    children = []
    for name in names:
        if pid := os.fork():
            children.append(pid)
            continue
        os.urandom = random.Random(name).randbytes
        os.environ["NPMDASK_NODE_TOKEN"] = token_of(name)
        log = os.open(f"{name}.err", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(log, 2)
        os._exit(called(["node", f"{name}.toml"]))
    sys.stdin.read()
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def token_of(name: str) -> str:
    return f"token-of-{name}".ljust(32, "0")


@contextmanager
def asked(folder: Path, kind: Kind) -> Iterator[None]:
    """While the nodes of a kind listen, if it has any; what names their earlier addresses names those of now."""
    names = list(kind.nodes)
    if not names:
        yield
        return
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.goldens.nodes", *names],
        cwd=folder,
        stdin=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    try:
        now = {name: _address(folder / f"{name}.err", process) for name in names}
        _move(folder, now)
        yield
    finally:
        process.communicate(timeout=240)
        for name in names:
            (folder / f"{name}.err").unlink(missing_ok=True)


def _address(log: Path, process: subprocess.Popen[bytes]) -> str:
    end = time.monotonic() + 300
    while True:
        text = log.read_text() if log.exists() else ""
        if found := re.search(r"listens at (http://127.0.0.1:\d+)", text):
            return found[1]
        assert process.poll() is None and time.monotonic() < end, text
        time.sleep(0.05)


def _move(folder: Path, now: dict[str, str]) -> None:
    tokens = folder / TOKENS
    before = {token: url for url, token in map(str.split, tokens.read_text().splitlines())}
    renamed(folder, {before[token_of(name)].encode(): url.encode() for name, url in now.items()})
    assert tokens.stat().st_mode & 0o077 == 0


if __name__ == "__main__":
    serve(sys.argv[1:])
