"""A feature's files are deleted, and those of all that need it: the rest imports, runs, resumes and shows its help."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import zarr

import npmdask
from infra.house_gates import Checkout, delete, entries, goes_with, needers
from tests.conftest import often

ROOT = Path(__file__).resolve().parents[2]
CHECKOUT = Checkout(root=ROOT)
RUNS = """
import sys
import numpy as np, npmdask
x = np.random.default_rng(0).standard_normal((500, 20))
npmdask.top_k(x, 3, kind="samples", center=True)
assert npmdask.resume(sys.argv[1], max_steps=100).converged
"""


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the core that is not finished."""
    folder = tmp_path_factory.mktemp("begun")
    x = np.random.default_rng(0).standard_normal((500, 20)) * np.geomspace(8, 1, 20)
    zarr.save(str(folder / "x.zarr"), x)
    npmdask.top_k(folder / "x.zarr", 3, kind="samples", center=True, store=folder / "run", max_steps=1)
    return folder / "run"


@pytest.mark.slow
@pytest.mark.parametrize("feature", often(sorted(CHECKOUT.parts()), 0, 3))
def test_the_rest_goes_on_without_it(feature: str, begun: Path, tmp_path: Path) -> None:
    """Mutant: an import of ``npmdask.planning`` in npmdask/api.py."""
    package, run = tmp_path / "npmdask", tmp_path / "run"
    shutil.copytree(ROOT / "npmdask", package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(begun, run)
    delete(
        tmp_path, CHECKOUT, goes_with(feature, needers(entries(CHECKOUT), (), by_name=True)) & CHECKOUT.parts().keys()
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    for command in (["-c", "import npmdask"], ["-c", RUNS, str(run)], ["-m", "npmdask", "--help"]):
        words = [sys.executable, "-W", "ignore", *command]
        done = subprocess.run(words, capture_output=True, text=True, env=environment, cwd=tmp_path)
        assert done.returncode == 0, done.stderr[-2000:]
