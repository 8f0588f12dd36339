"""The tests of the core with the oldest and with the newest versions that the metadata allow.

``python -m infra.lanes``. The lock holds one set of versions; users have others. ``oldest`` takes the lowest minor
version that every direct dependency names in ``pyproject.toml`` (and its last patch), on this Python; ``newest`` what
pip finds today, on this Python or another (``--python``). npmdask is installed from its source distribution, built
here, in an environment of its own that is deleted afterwards. Needs the network.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = ("ingest", "objects", "private", "report")
TESTED_BY = ("pytest", "hypothesis", "scikit-learn", "xarray")  # of the development group
TESTS = (
    "tests/core/operators/test_operators.py",
    "tests/core/operators/test_gram_matrix.py",
    "tests/core/algorithms/test_krylov.py",
    "tests/core/algorithms/test_gram.py",
    "tests/core/execution/test_passes.py",
    "tests/core/storage/test_shards.py",
    "tests/estimators/test_pca.py",
    "tests/core/runs/test_loop.py",
    "tests/core/runs/test_warm_start.py",
)


def asked() -> list[str]:
    """What npmdask and these tests need, as ranges."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project, group = table["project"], table["dependency-groups"]["dev"]
    needed = [*project["dependencies"], *(text for name in EXTRAS for text in project["optional-dependencies"][name])]
    return needed + [text for text in group if re.split(r"[\[>=]", text, maxsplit=1)[0] in TESTED_BY]


def lowest(requirement: str) -> str:
    """The lowest version of a range as a pin: ``numpy>=2.2`` is ``numpy==2.2.*``.

    Raises
    ------
    ValueError
        The range has no lower end.
    """
    found = re.match(r"([\w.-]+(?:\[[\w,]+\])?)>=([\d.]+)", requirement)
    if found is None:
        raise ValueError(f"{requirement!r} has no lowest version: write NAME>=VERSION in pyproject.toml")
    return f"{found[1]}=={found[2]}" + (".*" if found[2].count(".") < 2 else "")


def run(lane: str, python: str) -> int:
    """Make the environment of a lane, and run the tests in it; the exit status of pytest."""
    with tempfile.TemporaryDirectory(prefix="npmdask-lane-") as folder:
        here, pip = (
            Path(folder),
            (f"{folder}/env/bin/python", "-m", "pip", "install", "-q", "--disable-pip-version-check"),
        )
        subprocess.run((sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", folder), cwd=ROOT, check=True)
        subprocess.run((python, "-m", "venv", f"{folder}/env"), check=True)
        pins = [lowest(text) if lane == "oldest" else text for text in asked()]
        (here / "pins.txt").write_text("\n".join(sorted(set(pins))) + "\n")
        subprocess.run((*pip, "-r", f"{folder}/pins.txt"), check=True)
        (sdist,) = here.glob("npmdask-*.tar.gz")
        subprocess.run((*pip, f"{sdist}[{','.join(EXTRAS)}]"), check=True)
        subprocess.run((pip[0], "-m", "pip", "check"), check=True)
        kept = (pip[0], "-m", "pip", "list", "--format=freeze", "--disable-pip-version-check")
        versions = subprocess.run(kept, check=True, capture_output=True, text=True).stdout.split()
        names = {re.split(r"[\[>=]", text, maxsplit=1)[0] for text in asked()}
        print(lane, *(each for each in versions if each.split("==")[0].lower() in names), flush=True)
        tests = (pip[0], "-m", "pytest", "-q", "-m", "not heavy", "-p", "no:cacheprovider", "-W", "ignore", *TESTS)
        return subprocess.run(tests, cwd=ROOT).returncode


def main(arguments: list[str] | None = None) -> int:
    """Both lanes, or the one that is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("lane", nargs="?", choices=("oldest", "newest"))
    parser.add_argument("--python", default=sys.executable, help="interpreter of the newest lane")
    given = parser.parse_args(arguments)
    lanes = {"oldest": sys.executable, "newest": given.python}
    return max(run(lane, python) for lane, python in lanes.items() if given.lane in (None, lane))


if __name__ == "__main__":
    sys.exit(main())
