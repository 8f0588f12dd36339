"""Make one mistake after the other in a copy of npmdask, and have tests fail: ``python -m infra.mutants [NAME ...]``

The table (:mod:`infra.mutant_table`) holds mistakes as they are really made, in what a run is trusted for: who may
write, what is on disk, what is compared, what memory is planned. Each names the tests of ``make test`` that must fail
with it. First all of these must pass without any mistake, else a failure would say nothing. Private releases have
mutants of their own (:mod:`benchmarks.mutants`), whose tests come last.

A mistake is a piece of source and what is written in its place. The piece is looked for in all of ``npmdask/`` and must
be there exactly once, so that code can move to other files without a change of the table.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from infra.mutant_table import MUTANTS, Mutant, sources_of

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("npmdask", "tests", "benchmarks", "flows", "infra")  # what tests import
LOCAL = ("data", "secrets.env")  # of infra/, which a machine has of its own
PRIVATE = "tests/audit/test_mutants.py"
AT_ONCE = 2
DEADLINE = 300.0  # seconds for the tests of one mutant, which take ten at most


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What became of a mutant: the tests that failed, and those that did not, with what they did."""

    name: str
    failed: tuple[str, ...]
    others: dict[str, str]
    seconds: float

    @property
    def killed(self) -> bool:
        """Say whether every test that it names has failed."""
        return bool(self.failed) and not self.others


def copied(folder: Path, root: Path = ROOT) -> Path:
    """Copy the package and its tests, with their bytecode: times of files are kept, by which it is valid."""
    for name in FOLDERS:
        shutil.copytree(root / name, folder / name, ignore=shutil.ignore_patterns(*LOCAL))
    shutil.copy2(root / "pyproject.toml", folder)
    return folder


def require_own(folder: Path) -> None:
    """Raise RuntimeError if a process of the tests would import another npmdask than that of the copy."""
    for place in (folder, folder.parent):
        asked = (sys.executable, "-c", "import npmdask; print(npmdask.__file__)")
        done = subprocess.run(asked, cwd=place, env=_environment(folder), capture_output=True, text=True, check=True)
        if Path(done.stdout.strip()) != folder / "npmdask" / "__init__.py":
            raise RuntimeError(f"tests of a copy in {folder} would import {done.stdout.strip()}")


def _environment(folder: Path) -> dict[str, str]:
    scratch = folder / "scratch"
    scratch.mkdir(exist_ok=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return kept | {"PYTHONPATH": str(folder), "TMPDIR": str(scratch)}


def results_of(folder: Path, tests: Sequence[str], *more: str, deadline: float = DEADLINE) -> dict[str, str]:
    """Run tests of a copy; of each return "passed", "failed" (a case of it has), or what else became of it."""
    report = folder / "report.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-m", "not heavy", "-p", "no:cacheprovider", f"--junit-xml={report}"]
    process = subprocess.Popen(
        [*command, *more, *tests],
        cwd=folder,
        env=_environment(folder),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        process.wait(deadline)
    except subprocess.TimeoutExpired:
        return dict.fromkeys(tests, "hung")
    finally:
        _end(process)
    if not report.exists():
        return dict.fromkeys(tests, f"ended with {process.returncode}")
    return {test: _result(test, report) for test in tests}


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and what it started, of whose group it is the first."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _result(test: str, report: Path) -> str:
    """Look a test up in a report of pytest: failed if a case of it has. An error of a fixture or an import is none."""
    path, _, name = test.partition(2 * ":")
    module = path.removesuffix(".py").replace("/", ".")
    results = set()
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        found = case.get("name", "")
        if case.get("classname") == module and name in (found, found.partition("[")[0]):
            results.add(next((one.tag for one in case if one.tag in ("failure", "error", "skipped")), "passed"))
    if "failure" in results:
        return "failed"
    return "passed" if results == {"passed"} else " and ".join(sorted(results)) or "not collected"


def verdict_on(mutant: Mutant, base: Path, deadline: float = DEADLINE) -> Verdict:
    """Make the mistake in a copy of the copy ``base``, and run the tests that the mutant names."""
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="mutant-", ignore_cleanup_errors=True) as folder:
        copy = copied(Path(folder).resolve() / "copy", base)
        path, text = mutant.made(sources_of(copy / "npmdask"))
        path.write_text(text)
        found = results_of(copy, mutant.tests, deadline=deadline)
    wanted = ("failed", "hung") if mutant.hangs else ("failed",)
    return Verdict(
        name=mutant.name,
        failed=tuple(test for test, result in found.items() if result in wanted),
        others={test: result for test, result in found.items() if result not in wanted},
        seconds=time.perf_counter() - begun,
    )


def run(mutants: Sequence[Mutant], root: Path = ROOT) -> list[Verdict]:
    """Try all of them, some at once, on the package and the tests in ``root``.

    Raises
    ------
    RuntimeError
        A test that is named does not pass without any mistake.
    LookupError, SyntaxError
        A mutant does not fit the code.
    """
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as folder:
        base = copied(Path(folder).resolve() / "base", root)
        require_own(base)
        sources = sources_of(base / "npmdask")
        for mutant in mutants:
            mutant.made(sources)
        named = list(dict.fromkeys(test for mutant in mutants for test in mutant.tests))
        together = ("-n", str(AT_ONCE), "--dist", "worksteal") if len(named) > AT_ONCE else ()
        found = results_of(base, named, *together, deadline=4 * DEADLINE)
        if broken := {test: result for test, result in found.items() if result != "passed"}:
            said = "\n".join(f"  {test}: {result}" for test, result in broken.items())
            raise RuntimeError(f"these tests do not pass without any mistake, so that they show nothing:\n{said}")
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return list(pool.map(lambda mutant: shown(mutant, verdict_on(mutant, base)), mutants))


def shown(mutant: Mutant, verdict: Verdict) -> Verdict:
    """Print a line of the table."""
    said = "killed" if verdict.killed else "SURVIVED"
    print(f"{verdict.seconds:6.1f} s  {said:9} {mutant.kind:9} {mutant.name}: {mutant.mistake}", flush=True)
    for test, result in verdict.others.items():
        print(f"{'':19} {test}: {result}", flush=True)
    return verdict


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if every mutant is killed."""
    parser = argparse.ArgumentParser(prog="python -m infra.mutants", description="Make mistakes, and have tests fail.")
    parser.add_argument("names", nargs="*", help="of mutants, or of kinds; all of them, and the private ones, if none")
    asked = set(parser.parse_args(arguments).names)
    if unknown := asked - {name for mutant in MUTANTS for name in (mutant.name, mutant.kind)}:
        parser.error(f"no such mutant or kind: {', '.join(sorted(unknown))}")
    chosen = [mutant for mutant in MUTANTS if not asked or asked & {mutant.name, mutant.kind}]
    begun = time.perf_counter()
    try:
        verdicts = run(chosen)
    except (LookupError, RuntimeError, SyntaxError) as error:
        print(error, file=sys.stderr)
        return 1
    killed = sum(verdict.killed for verdict in verdicts)
    took = time.perf_counter() - begun
    print(f"{killed} of {len(verdicts)} mutants killed by the tests that they name, in {took:.0f} s")
    private = 0
    if not asked:
        print(f"the private ones: {PRIVATE}", flush=True)
        command = (sys.executable, "-m", "pytest", "-m", "not heavy", "-n", str(AT_ONCE), PRIVATE)
        private = subprocess.run(command, cwd=ROOT).returncode
    return 0 if killed == len(verdicts) and private == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
