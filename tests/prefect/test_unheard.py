"""The process of a flow run whose worker was killed: its pipes are broken, and it goes on."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import same_bytes
from tests.manage.common import ROOT, make_data
from tests.manage.job import run

pytestmark = pytest.mark.slow

ORPHAN = """
import sys
from pathlib import Path
from npmdask.prefect.heartbeat import tended
from npmdask.core.runs.observers import Observers
from npmdask.core.runs.progress import ProgressBar
from tests.manage.job import run

@tended
def go_on(folder):
    print("to nobody", flush=True)
    run(folder, folder / "run", observer=Observers(ProgressBar()))

sys.stdin.read()  # until nobody listens
go_on(Path(sys.argv[1]))
"""


def test_a_run_does_not_fail_because_its_worker_does_not_listen(tmp_path: Path) -> None:
    """Fails where such a run ends as failed (BrokenPipeError) and is not started again: a soak found it."""
    make_data(tmp_path)
    run(tmp_path, tmp_path / "whole")
    there = {"PREFECT_API_URL": "http://127.0.0.1:9/api", "PREFECT_HOME": str(tmp_path / "prefect")}
    pipe = subprocess.PIPE
    orphan = subprocess.Popen(
        [sys.executable, "-c", ORPHAN, tmp_path],
        cwd=ROOT,
        env=os.environ | there | {"PREFECT__FLOW_RUN_ID": "b9b3dbd0-3a53-4b5c-8a35-3f5c7b1e7f6e"},
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
    )
    assert orphan.stdin and orphan.stdout and orphan.stderr
    orphan.stdout.close()
    orphan.stderr.close()
    orphan.stdin.close()
    orphan.wait(120)
    same_bytes(tmp_path / "whole", tmp_path / "run")
