"""The peers' own tests of what npmdask has too, with only their imports changed: ``python -m infra.peer_suites``.

Tests come from what ``infra/peers.lock`` pins: an installed wheel, an sdist, or a checkout of a tag where neither has
tests (``--dask-ml FOLDER``; without it that row is said not to have been run). In a copy, ``from sklearn.decomposition
import PCA`` imports from a module that has all of that one, but npmdask's classes. What may fail, and why, is kept in
``infra/peer_suites.toml``: a test that fails and is not there is a fault, and so is one that is there and passes.
Needs the network, for an environment of its own that is deleted afterwards; ``--python`` names one that is there.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "infra" / "peer_suites.toml"
PEERS = ROOT / "infra" / "peers.lock"
OUTCOMES = "NPMDASK_PEER_OUTCOMES"  # the file that the run writes to
TO_DO = "to do"
INSTALLED, SDIST, CHECKOUT = "installed", "sdist", "checkout"


@dataclass(frozen=True)
class Suite:
    """Tests of one peer.

    ``doors``: of a module of the peer the names that are npmdask's, as ``module:name``. ``files`` are copied, of which
    ``tests`` are run; ``above`` is the folder in an sdist that ``files`` lie in.
    """

    package: str
    origin: str
    files: tuple[str, ...]
    tests: tuple[str, ...]
    doors: dict[str, dict[str, str]]
    options: tuple[str, ...] = ()
    path: str = "."


ESTIMATORS = {name: f"npmdask:{name}" for name in ("PCA", "TruncatedSVD", "IncrementalPCA")}
SKLEARN = "sklearn/decomposition/tests"
SUITES = {
    "scikit-learn": Suite(
        "scikit-learn",
        INSTALLED,
        tuple(f"{SKLEARN}/test_{name}.py" for name in ("pca", "truncated_svd", "incremental_pca")),
        tuple(f"{SKLEARN}/test_{name}.py" for name in ("pca", "truncated_svd", "incremental_pca")),
        {"sklearn.decomposition": ESTIMATORS},
        ("-p", "sklearn.conftest"),
    ),
    "dask-ml": Suite(
        "dask-ml",
        CHECKOUT,
        ("tests/__init__.py", "tests/conftest.py", *(f"tests/test_{n}.py" for n in ("pca", "svd", "incremental_pca"))),
        tuple(f"tests/test_{name}.py" for name in ("pca", "svd", "incremental_pca")),
        {"dask_ml.decomposition": ESTIMATORS},
    ),
    "scanpy": Suite(
        "scanpy",
        SDIST,
        ("tests/conftest.py", "tests/test_pca.py", "src/testing"),
        ("tests/test_pca.py",),
        {"scanpy": {"pp.pca": "npmdask.anndata:pca"}},
        ("-p", "testing.scanpy._pytest", "-p", "infra.scanpy_tests"),
        path="src",
    ),
    "xeofs": Suite(
        "xeofs",
        SDIST,
        ("tests",),
        tuple(
            f"tests/models/{name}.py"
            for name in (
                *(f"single/test_{n}" for n in ("eof", "eof_rotator", "hilbert_eof", "hilbert_eof_rotator")),
                *(f"cross/test_{n}" for n in ("mca", "mca_rotator", "hilbert_mca", "hilbert_mca_rotator", "cca")),
            )
        ),
        {
            "xeofs.single": {
                n: f"npmdask.xarray:{n}" for n in ("EOF", "EOFRotator", "HilbertEOF", "HilbertEOFRotator")
            },
            "xeofs.cross": {
                n: f"npmdask.xarray:{n}" for n in ("MCA", "MCARotator", "HilbertMCA", "HilbertMCARotator", "CCA")
            },
        },
    ),
}


# Plugin of pytest, loaded by its name: what became of every test.


_seen: dict[str, str] = {}


def pytest_collectreport(report: Any) -> None:
    """Note a file that cannot be imported."""
    if report.failed:
        _seen[report.nodeid] = "failed"


def pytest_runtest_logreport(report: Any) -> None:
    """Note what became of a test: once failed it stays so."""
    if (report.when == "call" or report.outcome != "passed") and _seen.get(report.nodeid) != "failed":
        _seen[report.nodeid] = report.outcome


def pytest_sessionfinish() -> None:
    """Write it."""
    if OUTCOMES in os.environ:
        Path(os.environ[OUTCOMES]).write_text(json.dumps(_seen))


# A copy of the tests.


def door_module(module: str, doors: Mapping[str, str]) -> str:
    """The text of a module that has all of ``module``, but other things behind some names; what is not there yet is
    missing, and not the peer's.
    """
    return f"""
import importlib
from types import SimpleNamespace

_peer = importlib.import_module({module!r})
_doors = {dict(doors)!r}
globals().update({{name: value for name, value in vars(_peer).items() if not name.startswith("__")}})
for _path, _place in _doors.items():
    *_outer, _name = _path.split(".")
    _held = globals()
    for _part in _outer:
        _held[_part] = SimpleNamespace(**vars(_held[_part]))
        _held = vars(_held[_part])
    _module, _, _there = _place.partition(":")
    _held.pop(_name, None)
    if hasattr(importlib.import_module(_module), _there):
        _held[_name] = getattr(importlib.import_module(_module), _there)


def __getattr__(name):
    if name in _doors:
        raise AttributeError(name)
    return getattr(_peer, name)
"""


def called(module: str) -> str:
    """Return the name of the module that tests import instead."""
    return "npmdask_for_" + module.replace(".", "_")


def with_doors(text: str, doors: Mapping[str, Any]) -> str:
    """The text of a test file that imports from the doors."""
    for module in doors:
        parent, _, name = module.rpartition(".")
        text = re.sub(rf"^(\s*from ){re.escape(module)}( import )", rf"\1{called(module)}\2", text, flags=re.M)
        text = re.sub(rf"^(\s*import ){re.escape(module)}( as )", rf"\1{called(module)}\2", text, flags=re.M)
        if parent:
            whole = rf"^(\s*)from {re.escape(parent)} import {name}"
            text = re.sub(rf"{whole}( as \w+)$", rf"\1import {called(module)}\2", text, flags=re.M)
            text = re.sub(rf"{whole}$", rf"\1import {called(module)} as {name}", text, flags=re.M)
    return text


def copied(suite: Suite, above: Path, folder: Path) -> None:
    """The files of a suite in ``folder``, and the doors beside them."""
    for name in suite.files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if (above / name).is_dir() else shutil.copy)(above / name, folder / name)
    for name in suite.tests:
        (folder / name).write_text(with_doors((folder / name).read_text(), suite.doors))
    for module, doors in suite.doors.items():
        (folder / f"{called(module)}.py").write_text(door_module(module, doors))
    (folder / "pytest.ini").write_text("[pytest]\n")


def source_of(name: str, suite: Suite, python: str, folder: Path, checkout: Path | None) -> Path | None:
    """The folder that the tests of a peer lie in; None: they cannot be had here."""
    if suite.origin == CHECKOUT:
        return checkout
    if suite.origin == INSTALLED:
        found = subprocess.run(
            (python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"),
            check=True,
            capture_output=True,
            text=True,
        )
        return Path(found.stdout.strip())
    (folder / "pin.txt").write_text(locked(PEERS)[suite.package] + "\n")
    options = ("--no-deps", "--require-hashes", "--no-binary", ":all:", "-q", "--disable-pip-version-check")
    subprocess.run((python, "-m", "pip", "download", *options, "-r", "pin.txt", "-d", "."), cwd=folder, check=True)
    (archive,) = folder.glob(f"{suite.package}-*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    return folder / archive.name.removesuffix(".tar.gz")


def locked(file: Path) -> dict[str, str]:
    """The entries of a lock file by name."""
    from infra.make_locks import locked as entries  # which the environment of the peers does not need

    return entries(file.read_text())


def version_of(suite: Suite) -> str:
    """Return the version that is pinned."""
    return locked(PEERS)[suite.package].partition("==")[2].split()[0]


def outcomes_of(suite: Suite, above: Path, python: str) -> dict[str, str]:
    """What became of each test, by its id."""
    with tempfile.TemporaryDirectory(prefix="npmdask-peer-") as temporary:
        folder, found = Path(temporary, "suite"), Path(temporary, "outcomes.json")
        folder.mkdir()
        copied(suite, above, folder)
        path = os.pathsep.join([str(folder), str(folder / suite.path), str(ROOT)])
        told = {**os.environ, "PYTHONPATH": path, OUTCOMES: str(found), "PYTHONHASHSEED": "0"}
        options = ("-q", "--tb", "line", "-p", "infra.peer_suites", *suite.options)
        command = (python, "-m", "pytest", *options, "--continue-on-collection-errors", *suite.tests)
        subprocess.run(command, cwd=folder, env=told)
        return dict(json.loads(found.read_text()))


def environment(folder: Path) -> str:
    """Make an environment of all peers and of what npmdask needs, by the hashes of both locks; return its Python."""
    from infra.make_locks import LOCK, closure

    peers, own = locked(PEERS), locked(LOCK)
    needed = closure([*tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"], "pytest"])
    pins = [*peers.values(), *(own[name] for name in sorted(needed) if name not in peers)]
    (folder / "pins.txt").write_text("\n".join(pins) + "\n")
    subprocess.run((sys.executable, "-m", "venv", folder / "env"), check=True)
    python = str(folder / "env" / "bin" / "python")
    pip = (python, "-m", "pip", "install", "--no-deps", "-q", "--disable-pip-version-check")
    subprocess.run((*pip, "--require-hashes", "-r", folder / "pins.txt"), check=True)
    subprocess.run((sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder), cwd=ROOT, check=True)
    subprocess.run((*pip, *folder.glob("npmdask-*.whl")), check=True)  # a run remembers the version that is installed
    return python


# The table of what may fail.


@dataclass
class Row:
    """What is known of a suite: how many passed and were skipped, and of each category the tests that fail."""

    version: str = ""
    passed: int = 0
    skipped: int = 0
    fails: dict[str, list[str]] = field(default_factory=dict)

    @property
    def known(self) -> dict[str, str]:
        """The category of each test that fails."""
        return {test: category for category, tests in self.fails.items() for test in tests}

    def counted(self, uncounted: Sequence[str]) -> int:
        """Return how many tests count: those that passed, and those that fail but for an answer."""
        return self.passed + sum(len(tests) for name, tests in self.fails.items() if name not in uncounted)


@dataclass
class Table:
    """The categories with a sentence each, of which ``uncounted`` are no faults, and the rows."""

    categories: dict[str, str]
    uncounted: list[str]
    rows: dict[str, Row]

    @classmethod
    def read(cls) -> Table:
        """The kept table."""
        held = tomllib.loads(TABLE.read_text())
        rows = {name: Row(**row) for name, row in held.get("suites", {}).items()}
        return cls(held["categories"], held["uncounted"], rows)

    def text(self) -> str:
        """The table as it is kept."""
        said = json.dumps
        lines = [
            "# What of the peers' own tests fails with npmdask behind their imports: docs/project/peer-suites.md.",
            "# `python -m infra.peer_suites` fails where another test does, or one of these passes: take it out then.",
            f"uncounted = {said(self.uncounted)}",
            "",
            "[categories]",
            *(f"{said(name)} = {said(sentence)}" for name, sentence in self.categories.items()),
        ]
        for name, row in sorted(self.rows.items()):
            lines += ["", f"[suites.{name}]", f"version = {said(row.version)}"]
            lines += [f"passed = {row.passed}", f"skipped = {row.skipped}", "", f"[suites.{name}.fails]"]
            for category, tests in sorted(row.fails.items()):
                lines += [f"{said(category)} = [", *(f"  {said(test)}," for test in sorted(tests)), "]"]
        return "\n".join(lines) + "\n"


def differences(row: Row, outcomes: Mapping[str, str]) -> Iterator[str]:
    """Sentences on what differs from the table."""
    failed = {test for test, outcome in outcomes.items() if outcome == "failed"}
    passed = sum(outcome == "passed" for outcome in outcomes.values())
    if passed < row.passed:
        yield f"{passed} tests passed, and {row.passed} of the table: others are skipped, or not there"
    for test in sorted(failed - row.known.keys()):
        yield f"fails, and is not in the table: {test}"
    for test in sorted(row.known.keys() - failed):
        what = "passes" if outcomes.get(test) == "passed" else "is not run" if test not in outcomes else "is skipped"
        yield f"{what}, and is in the table ({row.known[test]}): take it out: {test}"


def written(row: Row, suite: Suite, outcomes: Mapping[str, str]) -> Row:
    """The row as it is to be kept: what passes is gone, and what fails for the first time is to be done."""
    failed = {test for test, outcome in outcomes.items() if outcome == "failed"}
    fails = {category: [test for test in tests if test in failed] for category, tests in row.fails.items()}
    if new := sorted(failed - row.known.keys()):
        fails[TO_DO] = fails.get(TO_DO, []) + new
    passed, skipped = (sum(outcome == each for outcome in outcomes.values()) for each in ("passed", "skipped"))
    return Row(version_of(suite), passed, skipped, {name: tests for name, tests in fails.items() if tests})


def main(arguments: list[str] | None = None) -> int:
    """Run the suites that are named, or all; the exit status is 1 where one differs from the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "suites", nargs="*", metavar="SUITE", help=f"of {', '.join(SUITES)}; by default all of the table"
    )
    parser.add_argument("--python", help="interpreter of an environment with the peers, npmdask's needs and pytest")
    parser.add_argument("--dask-ml", type=Path, help="a checkout of its tag, whose sdist has no tests")
    parser.add_argument("--write", action="append", default=[], metavar="SUITE", help="keep what fails as to be done")
    given = parser.parse_args(arguments)
    if unknown := {*given.suites, *given.write} - {*SUITES}:
        parser.error(f"{', '.join(sorted(unknown))}: choose of {', '.join(SUITES)}")
    table, wrong = Table.read(), 0
    asked = given.suites or given.write or list(table.rows)
    for name in (name for name in SUITES if name not in asked and name not in table.rows):
        print(f"{name}: not run, since the table has nothing of it yet (--write {name})")
    with tempfile.TemporaryDirectory(prefix="npmdask-peers-") as temporary:
        python = given.python or environment(Path(temporary))
        for name in asked:
            suite, row, folder = SUITES[name], table.rows.get(name, Row()), Path(temporary, name)
            folder.mkdir()
            above = source_of(name, suite, python, folder, given.dask_ml)
            if above is None:
                print(f"{name}: not run, since its tests are not there (--{name} FOLDER)")
                continue
            outcomes = outcomes_of(suite, above, python)
            if name in given.write:
                row = table.rows[name] = written(row, suite, outcomes)
                TABLE.write_text(table.text())
            found = list(differences(row, outcomes))
            passed = sum(outcome == "passed" for outcome in outcomes.values())
            counted = f"{row.passed} of {row.counted(table.uncounted)} that count"
            print(f"{name} {version_of(suite)}: {passed} passed; in the table {counted}", *found, sep="\n  ")
            wrong += len(found)
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
