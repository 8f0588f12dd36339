"""Makes, in the folder that it runs in, one of everything that is nobody else's business: for test_modes."""

import os
import sys
import time
from pathlib import Path
from typing import Any

import zarr

import flows  # noqa: F401  (makes PREFECT_HOME)
from infra.make_secrets import read_or_make
from npmdask.api import solve
from npmdask.config import load_config
from npmdask.core.checkpoint.store import RunStore
from npmdask.core.runs.observers import Observer
from npmdask.core.runs.resources import Resources
from npmdask.core.storage.safe_open import BUDGET_MARK
from npmdask.ledger import open_ledger
from npmdask.ledger.granting import grant_source
from npmdask.prefect.parameters import next_store
from npmdask.prefect.processes import Service, Supervisor
from npmdask.remote.run_store import LocalCopy
from tests.privacy.runs.conftest import THREE_RUNS, make_world, records


class Stop(Exception):
    pass


class StopAfterOne(Observer):
    def on_step(self, step: Any) -> None:
        raise Stop


def private_run() -> None:
    """Left in the middle, with its key; a ledger in a folder that is there, and one in a folder that is new."""
    world = make_world(Path("data").absolute(), records(400))
    known = {"relation": "record_replace", "clip_norm": 1.5, "change": 1.0, "budget": THREE_RUNS}
    # As of a version that noted no ledger in the data, or the second one would be refused.
    del zarr.open_group(world.data, mode="r+").attrs[BUDGET_MARK]
    grant_source(open_ledger(Path("ledger", "ledger.sqlite")), "people", world.data, **known)  # type: ignore[arg-type]
    del zarr.open_group(world.data, mode="r+").attrs[BUDGET_MARK]
    try:
        solve(world.problem(), Path("release"), Resources(), StopAfterOne())
    except Stop:
        return
    raise AssertionError


def services() -> None:
    """As `npmdask serve` has them, with a log of an earlier version."""
    folder = Path("services")
    folder.mkdir(mode=0o755)
    (folder / "said.log").touch(mode=0o644)
    said = Service(
        name="said", command=(sys.executable, "-c", "import time; print('secret', flush=True); time.sleep(60)")
    )
    with Supervisor(folder, [said], print):
        while not (folder / "said.log").read_text():
            time.sleep(0.05)
        assert not [path for path in folder.iterdir() if path.stat().st_mode & 0o077], "while they run"


def node() -> None:
    Path("node.toml").write_text(
        '[source]\npath = "data/x.zarr"\n[algorithm]\ntarget_rank = 2\niteration_rank = 4\nmax_steps = 3\n'
        '[mechanism]\nname = "none"\n[run]\nstore = "node"\n'
    )
    with load_config("node.toml").node():
        assert Path("node", "node").exists()


if __name__ == "__main__":
    os.umask(int(sys.argv[1], 8))
    os.environ["NPMDASK_CACHE"] = str(Path("cache").absolute())
    for name in ("releases", "release", "node"):
        Path(name).mkdir()  # by somebody, before
    private_run()
    node()
    next_store(Path("releases"))
    LocalCopy("s3://bucket/run").make()
    with RunStore(Path("begun")) as held:  # sums over the data, before any noise
        held.keep_pass({"step": 1}, {}, [])
    read_or_make(Path("secrets.env"))
    services()
