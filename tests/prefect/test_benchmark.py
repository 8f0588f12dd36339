"""Rows of the benchmarks as a flow: a figure beside its target, measured once for each run id."""

import json
import re
import sys
from pathlib import Path

import pytest

from npmdask.errors import BadInputError, RefusedError
from tests.prefect.conftest import Shop

pytestmark = pytest.mark.slow


ROW = "noise-symmetric-pair"  # a tenth of a second
TWICE = f"""
import flows  # applies the settings of our own programs
import json
from npmdask.prefect.benchmark import benchmark
from npmdask.prefect.server import local_server
with local_server():
    for _ in range(2):
        print(json.dumps(benchmark(["{ROW}"], run_id="figures")))
"""


@pytest.mark.heavy
def test_a_row_is_measured_once(client: Shop) -> None:
    """Fails when the same run id measures again (the figure of a time would be another one), or shows nothing."""
    assert client.run("-c", TWICE) == 0, client.err
    first, again = map(json.loads, client.out.splitlines()[-2:])
    assert first == again and first["answered"] and isinstance(first["figures"][ROW], float)
    assert client.err.count(f"{ROW} ...") == 1, "one process of the benchmarks"
    artifacts = client.artifacts()
    assert set(artifacts) == {"figures"} and {name.partition(":")[0] for name in client.tasks(4)} == {
        "choose",
        "measure",
    }
    (row,) = re.findall(rf"\| {ROW} \|.*?\|.*?= 0\.5 \| (yes|no) \|", artifacts["figures"])
    assert row in ("yes", "no")


@pytest.mark.filterwarnings("default")  # of Prefect's own
def test_what_cannot_be_measured_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from npmdask.prefect.benchmark import _known_rows, _require_scale, choose, row_facts

    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    choose = choose.fn.__wrapped__  # without a task around it: no server is needed to refuse
    with pytest.raises(BadInputError, match="did you mean 'pass-warm'"):
        choose(["pass-wram"], "small", str(tmp_path / "runs"))
    _require_scale(tmp_path / "runs", "small")
    with pytest.raises(RefusedError, match="of scale small, not full"):
        _require_scale(tmp_path / "runs", "full")
    line = {"row": "a", "figure": None, "failures": ["x"], "holds": False, "scale": "small"}
    assert row_facts([line], "runs")["sentence"] == "1 row; broken: a"
    missed = {"row": "b", "figure": 1.0, "failures": [], "holds": False, "scale": "small"}
    assert row_facts([missed], "runs")["answered"] and not row_facts([missed | {"scale": "full"}], "runs")["answered"]
    monkeypatch.setitem(sys.modules, "benchmarks", None)  # as where only the package is installed
    with pytest.raises(RefusedError, match="not part of the installed package"):
        _known_rows()
