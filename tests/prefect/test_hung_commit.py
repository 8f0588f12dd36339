"""A process of a flow run that hangs in the middle of a commit: nobody can take its store over before it is ended."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import same_bytes
from tests.manage.common import OWNER, ROOT, hanging, let_age, make_data
from tests.manage.job import run

pytestmark = pytest.mark.slow

SUCCESSOR = """
import sys
from npmdask.prefect.heartbeat import tended
from npmdask import resume

@tended
def go_on(store):
    return resume(store)

for _ in range(2):
    found = go_on(sys.argv[1])
    print(getattr(found, "message", None) or found.outcome.name)
"""


@pytest.mark.heavy
def test_the_next_process_of_the_same_run_ends_it_and_goes_on(tmp_path: Path) -> None:
    """Fails where a scheduled run whose process was stopped there is started again and again, for ever in vain."""
    make_data(tmp_path)
    run(tmp_path, tmp_path / "whole")
    (tmp_path / "prefect").mkdir()
    there = {"PREFECT_API_URL": "http://127.0.0.1:9/api", "PREFECT_HOME": str(tmp_path / "prefect")}
    with hanging("run", tmp_path, "publishing", "3") as hung:
        for owner in ("another", OWNER):
            let_age(tmp_path / "run")
            done = subprocess.run(
                [sys.executable, "-c", SUCCESSOR, tmp_path / "run"],
                cwd=ROOT,
                env=os.environ | there | {"PREFECT__FLOW_RUN_ID": owner},
                capture_output=True,
                text=True,
                timeout=120,
            )
            if owner == "another":
                assert "stopped in the middle of a commit; end it" in done.stderr and hung.there
    assert done.stdout.splitlines() == [
        "the process before this one hung in the middle of a commit, and was ended",
        "converged",
    ], done.stderr
    same_bytes(tmp_path / "whole", tmp_path / "run")
