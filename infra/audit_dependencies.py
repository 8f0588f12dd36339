"""What is installed is what the lock says, and nothing of it is known to be bad: ``make audit-deps``.

    python -m infra.audit_dependencies [--offline] [LOCK ...]

Always: every package of every lock has an exact version and hashes, and a lock names nothing that is fetched from
elsewhere; what this Python has installed is what ``requirements.lock`` names, with the same versions, and nothing else.
Besides, where the program ``pip-audit`` is installed (in an environment of its own) and reaches its service: none of
the versions has a known vulnerability. Where it is missing or does not reach it, that is said, and is no failure.

Exit codes: 0 all is well, 1 something is not, in sentences.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

INFRA = Path(__file__).resolve().parent
LOCK = INFRA / "requirements.lock"
LOCKS = (LOCK, INFRA / "peers.lock", INFRA / "release.lock", *sorted((INFRA / "image").glob("*.lock")))
OURS = {"npmdask", "pip", "setuptools"}  # the project itself, and what comes with every environment of Python 3.11
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")
PATIENCE = 300  # seconds for pip-audit
NO_ANSWER = "pip-audit gave no answer ({}): nothing is known of vulnerabilities"


def entries(text: str) -> list[str]:
    """Of a lock file: what belongs to one package on one line, without comments."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return "\n".join(lines).replace("\\\n", " ").splitlines()


def pinned(text: str, name: str) -> tuple[dict[str, str], list[str]]:
    """The version of every package of the lock ``name`` that is for this Python; and what is wrong with it."""
    versions: dict[str, str] = {}
    wrong: list[str] = []
    for entry in entries(text):
        asked, *hashes = re.split(r"\s+(?=--)", entry.strip())
        try:
            requirement = Requirement(asked)
        except InvalidRequirement:
            wrong.append(f"{name}: {entry.split()[0]!r} is no package with a version; a lock names nothing else")
            continue
        exact = re.fullmatch(r"==([^*,]+)", str(requirement.specifier))
        if requirement.url or exact is None:
            wrong.append(f"{name}: {requirement.name} has no exact version; resolve again with `make lock`")
            continue
        if not hashes or not all(HASH.fullmatch(one.strip()) for one in hashes):
            wrong.append(f"{name}: {requirement.name} has no hashes (or others than SHA-256); resolve with `make lock`")
        if requirement.marker is None or requirement.marker.evaluate():
            versions[canonicalize_name(requirement.name)] = exact[1]
    return versions, wrong


def differences(wanted: Mapping[str, str], found: Iterable[tuple[str, str]]) -> list[str]:
    """What is installed and not wanted, or the other way round, or in another version; in sentences."""
    there: dict[str, set[str]] = {}
    for name, version in found:
        there.setdefault(canonicalize_name(name), set()).add(version)
    said = []
    for name, version in sorted(wanted.items()):
        if name not in there:
            said.append(f"{name} {version} of the lock is not installed; `make env`")
        elif there[name] != {version}:
            here = " and ".join(sorted(there[name]))
            said.append(f"{name} is installed as {here}, the lock says {version}; `make env`")
    for name in sorted(there.keys() - wanted.keys() - OURS):
        said.append(f"{name} {' and '.join(sorted(there[name]))} is installed and not in the lock; `make env`")
    return said


def installed() -> list[tuple[str, str]]:
    """Name and version of everything that this Python can import as a package."""
    return [(one.metadata["Name"], one.version) for one in distributions()]


def known_to_be_bad(lock: Path, program: str | None) -> tuple[list[str], str]:
    """What pip-audit says of a lock, in sentences; or why it says nothing."""
    if program is None:
        return [], "pip-audit is not installed (`pipx install pip-audit`): nobody was asked for known vulnerabilities"
    how = ("--no-deps", "--disable-pip", "--progress-spinner=off", "--format=json")
    try:
        done = subprocess.run((program, "--requirement", lock, *how), capture_output=True, text=True, timeout=PATIENCE)
    except (OSError, subprocess.TimeoutExpired) as error:
        return [], NO_ANSWER.format(error)
    try:
        told = json.loads(done.stdout)["dependencies"]
        bad = [flaw_of(one, flaw) for one in told for flaw in one.get("vulns", [])]
        skipped = [str(one["skip_reason"]) for one in told if "skip_reason" in one]
    except (ValueError, KeyError, TypeError, AttributeError):
        return [], NO_ANSWER.format((done.stderr.strip().splitlines() or ["it said nothing"])[-1])
    if told and len(skipped) == len(told):  # a service that is not there looks like packages that it does not know
        return bad, NO_ANSWER.format(skipped[0])
    but = f"; of {len(skipped)} it knows nothing ({skipped[0]}, ...)" if skipped else ""
    return bad, f"pip-audit knows of {len(bad)} vulnerabilities in the {len(told)} packages of {lock.name}{but}"


def flaw_of(package: Mapping[str, str], flaw: Mapping[str, Any]) -> str:
    """A vulnerability as a sentence."""
    mended = ", ".join(flaw.get("fix_versions") or ()) or "no version yet"
    return f"{package['name']} {package['version']} is vulnerable ({flaw['id']}), mended in {mended}; `make lock`"


def audit(locks: Sequence[Path], found: Iterable[tuple[str, str]], program: str | None, offline: bool) -> list[str]:
    """Everything that is wrong; ``found`` is held to the first of the locks."""
    wrong: list[str] = []
    for number, lock in enumerate(locks):
        versions, bad = pinned(lock.read_text(), lock.name)
        wrong += bad
        if number == 0:
            wrong += differences(versions, found)
        said = "see below" if bad else f"{len(versions)} packages, each with its version and hashes"
        print(f"{lock.name}: {said}")
    if not offline:
        flaws, said = known_to_be_bad(locks[0], program)
        wrong += flaws
        print(said)
    return wrong


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("locks", nargs="*", type=Path, default=LOCKS, help="lock files (all of infra/)")
    parser.add_argument("--offline", action="store_true", help="do not ask pip-audit")
    a = parser.parse_args(argv)
    wrong = audit(a.locks, installed(), shutil.which("pip-audit"), a.offline)
    for sentence in wrong:
        print(sentence, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
