"""`npmdask serve` as a whole: one on a folder, its login a secret, a database that is deleted, Ctrl-C."""

import os
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from npmdask.prefect.programs import AUTH, read_auth_string
from npmdask.prefect.serve import _scratch, users_of
from npmdask.prefect.server import damage_of
from tests.prefect.conftest import Shop, alive, command_of, wait_until
from tests.prefect.served import Served

pytestmark = pytest.mark.slow

SCHEDULES = """
[[schedule]]
name = "often"
flow = "npm"
config = "below/often.toml"
every = 15
parameters = { changes = { "source.path" = "a.zarr" } }
"""


def environment_of(process: psutil.Process) -> str:
    """As the process was started: what it has set since is its own."""
    return Path(f"/proc/{process.pid}/environ").read_bytes().decode()


def secret_stays_secret(served: Served) -> None:
    """On no command line, in no log, in the environment of keeper, worker and runs alone; the file is its owner's."""
    home = served.shop.home
    secret = read_auth_string(home / AUTH).partition(":")[2]
    assert stat.S_IMODE((home / AUTH).stat().st_mode) == 0o600
    children = served.shop.below(served.process)
    assert not [one for one in children if secret in command_of(one)]  # those of runs come and go
    know = {
        name
        for name in ("reports", "prefect-server", "keeper", "worker", "metrics")
        if secret in environment_of(psutil.Process(served.service(name)))
    }
    assert know == {"keeper", "worker"} and secret not in environment_of(psutil.Process(served.process.pid))
    logs = [*(served.shop.folder / "runs" / ".serve").iterdir(), served.shop.folder / "err", served.shop.folder / "out"]
    assert not [log for log in logs if log.is_file() and secret in log.read_text(errors="replace")]
    assert f"the login for these pages: the line in {home / AUTH}" in served.shop.err


def another(shop: Shop, name: str, *options: str) -> Shop:
    """One more that is started in the folder of ``shop``; what it prints is beside that."""
    (shop.folder / name).mkdir()
    second = Shop(shop.folder / name)
    second.environment = {"PREFECT_HOME": str(shop.home)}
    second.start("-m", "npmdask.prefect.serve", "schedules.toml", *options, cwd=shop.folder)
    return second


def config_below(shop: Shop) -> None:
    """Of data that are not there, in a folder of its own: the schedule names others, relative to its own file."""
    file = shop.config("often")
    (shop.folder / "below").mkdir()
    (shop.folder / "below" / "often.toml").write_text(file.read_text().replace("a.zarr", "none.zarr"))
    file.unlink()


def test_one_server_its_secret_its_database_and_its_end(shop: Shop) -> None:
    """Its schedule completes where a worker finds the relative path in its changes."""
    config_below(shop)
    served = Served(shop, SCHEDULES)
    state = shop.folder / "runs" / ".serve" / "services.json"
    wait_until(state.exists, 240, "it begins", lambda: shop.err)
    seconds = another(shop, "a"), another(shop, "b", "--folder", "elsewhere")  # while the first one starts
    ended = served.process.poll
    wait_until(lambda: "Ctrl-C stops all" in shop.err or ended() is not None, 480, "it is ready", lambda: shop.err)
    assert ended() is None, shop.err
    for second, held in zip(seconds, (shop.folder / "runs" / ".serve", shop.home), strict=True):
        assert second.started[0].wait(150) == 3
        assert f"another process (pid {served.process.pid}) serves {held}: stop it first" in second.err
        assert "Traceback" not in second.err
    assert alive([psutil.Process(served.service("worker"))]), "the first one goes on"

    server, worker = (served.service(name) for name in ("prefect-server", "worker"))
    for file in shop.home.glob("prefect.db*"):
        file.unlink()
    wait_until(lambda: served.service("prefect-server") != server, 240, "the server ends, and is started again")
    # Asked more often the server is busy with answering.
    served.wait(lambda: served.ended("Completed") >= 1, 240, "the schedule is there again, and fires", pause=0.5)
    assert served.service("worker") != worker, "what it knew is of no use"
    secret_stays_secret(served)

    scratch = Path((shop.folder / "runs" / ".serve" / "scratch").read_text().splitlines()[0])
    assert stat.S_IMODE(scratch.stat().st_mode) == 0o700
    wait_until(
        lambda: any(scratch.iterdir()), 120, "files of the worker or of a run are here, and not among those of all"
    )
    everything = shop.below(served.process)
    for _ in range(2):  # the second one gives them no time
        os.kill(served.process.pid, signal.SIGINT)
        time.sleep(0.5)
    assert served.process.wait(240) in (0, 130), shop.err
    assert not users_of(scratch), "runs are in sessions of their own"
    wait_until(lambda: not alive(everything), 120, "no process is left", lambda: str(alive(everything)))
    assert not scratch.exists() and not (shop.folder / "runs" / ".serve" / "services.json").exists()
    assert not shop.tracebacks, shop.err


def test_a_database_that_is_none_ends_it_with_a_sentence_and_stays_as_it_is(tmp_path: Path) -> None:
    """Every other test here has its whole twin."""
    shop, file = Shop(tmp_path), tmp_path / "prefect" / "prefect.db"
    config_below(shop)
    shop.home.mkdir(mode=0o700)
    file.write_bytes(garbage := os.urandom(1 << 16))
    try:
        assert Served(shop, SCHEDULES).process.wait(240) == 3
    finally:
        shop.clean()
    assert f"{file} is damaged, or no database of Prefect (file is not a database): move it away" in shop.err
    assert file.read_bytes() == garbage and not shop.tracebacks


def test_what_is_wrong_with_a_database_is_found(tmp_path: Path) -> None:
    """One that is whole, empty, locked or not there is not called damaged."""
    file = tmp_path / "a.db"
    assert damage_of(file) == ""
    with closing(sqlite3.connect(file)) as base:
        base.executescript("create table t (x); insert into t values (zeroblob(1000000))")
        base.execute("begin exclusive")
        assert damage_of(file) == ""
    whole = file.read_bytes()
    for content, said in (
        (whole, ""),
        (b"", ""),
        (whole[: len(whole) // 2], "malformed"),
        (whole[:20], "not a database"),
        (b"PK" + whole[2:], "not a database"),
        (whole[:4096] + os.urandom(4096) + whole[8192:], "2"),
    ):
        file.write_bytes(content)
        found = damage_of(file)
        assert said in found and bool(found) == bool(said) and file.read_bytes() == content


def test_what_a_killed_one_has_left_goes_with_the_next(shop: Shop) -> None:
    """Also: Ctrl-C while it starts ends it at once."""
    left = shop.folder / "npmdask-serve-left"
    (left / "prefect-workspace-attempt-x").mkdir(parents=True)
    folder = shop.folder / "runs" / ".serve"
    folder.mkdir(parents=True)
    (folder / "scratch").write_text(str(left))
    config_below(shop)
    served = Served(shop, SCHEDULES)
    wait_until((folder / "services.json").exists, 120, "it begins", lambda: shop.err)
    everything = shop.below(served.process)
    assert not left.exists()
    os.kill(served.process.pid, signal.SIGINT)
    assert served.process.wait(240) == 130, shop.err
    assert "interrupted" in shop.err and not shop.tracebacks
    wait_until(lambda: not alive(everything), 120, "no process is left")


def test_a_run_that_outlives_a_killed_server_keeps_its_temporary_folder(tmp_path: Path) -> None:
    """Also: at the end who uses the folder is ended, in whatever session; until then the note names both."""
    left = tmp_path / "npmdask-serve-left"
    left.mkdir()
    (tmp_path / "scratch").write_text(str(left))
    code = "import os, time; print(os.getcwd(), flush=True); time.sleep(600)"
    environment = os.environ | {"TMPDIR": str(left)}
    orphan = subprocess.Popen(
        [sys.executable, "-c", code], cwd=left, env=environment, stdout=subprocess.PIPE, start_new_session=True
    )
    process = psutil.Process(orphan.pid)
    try:
        assert orphan.stdout is not None and orphan.stdout.readline()
        with _scratch(tmp_path) as ours:
            assert left.is_dir() and orphan.poll() is None
            assert (tmp_path / "scratch").read_text().splitlines() == [str(ours), str(left)]
        assert not alive([process])
    finally:
        orphan.kill()
        orphan.communicate()
    assert not left.exists() and not ours.exists() and not (tmp_path / "scratch").exists()
