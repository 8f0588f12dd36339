"""Keys, ledgers, secrets, private stores, logs: their owner's only, whatever the umask says."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from npmdask.core.storage.paths import private
from tests.conftest import often
from tests.security.looking import open_to_others

ROOT = Path(__file__).resolve().parents[2]
CLOSED = ("release", "ledger", "node", "releases", "begun/pass/000000", "runs/.prefect")  # folders
THERE = ("release/entropy", "release/run.json", "release/steps/000001", "ledger/ledger.sqlite", "begun/pass/000000")


@pytest.mark.slow
@pytest.mark.parametrize("umask", often(["022", "000"], 1))
def test_what_is_nobody_elses_business_is_closed(umask: str, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "NPMDASK_"))}
    command = [sys.executable, "-m", "tests.security.keeper", umask]
    told = environment | {"PYTHONPATH": str(ROOT)}
    (tmp_path / "runs" / ".prefect").mkdir(parents=True)  # by an earlier version, open
    (tmp_path / "runs" / ".prefect").chmod(0o755)
    done = subprocess.run(command, cwd=tmp_path, env=told, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    for name in THERE:
        assert (tmp_path / name).exists(), name
    for name in CLOSED:
        assert not list(open_to_others(tmp_path / name)), f"{name}, umask {umask}"
    for name in ("secrets.env", "services/said.log", "release/entropy", "ledger/ledger.sqlite", "data/ledger.sqlite"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600, name
    (copy,) = (tmp_path / "cache" / "runs").iterdir()
    assert not list(open_to_others(copy))
    world = {path.name for path in tmp_path.iterdir() if path.stat().st_mode & 0o004}
    assert {"data", "begun"} <= world, "what is not private is as the umask says"


@pytest.mark.slow
def test_a_file_that_was_open_is_closed_when_it_is_written_again(tmp_path: Path) -> None:
    (tmp_path / "log").touch(mode=0o666)
    (tmp_path / "log").chmod(0o666)
    before = os.umask(0)
    try:
        for name in ("log", "new"):
            with open(tmp_path / name, "ab", opener=private) as file:
                file.write(b"x")
            assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    finally:
        os.umask(before)
