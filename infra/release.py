"""Build a release that anybody can repeat, try it where nothing else is installed, and tag it when asked.

``make release``: wheel and source distribution are built from the commit, twice, in two clones, and must have the same
bytes. Each Python gets an environment of its own with the wheel, all extras and the versions and hashes of
``infra/requirements.lock``, and the first one with the source distribution and no extra; ``infra/release_use.py`` runs
there. ``build/release`` then holds ``dist/``, an SBOM (CycloneDX) and ``SHA256SUMS``. Runs in ``.venv-release``.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LOCK = Path("infra", "requirements.lock")
NEWS = Path("infra", "news")
TOOLS = Path(sys.executable).parent  # .venv-release/bin


class NotReleasedError(Exception):
    """Why there is no release; the sentence says what to do."""


def run(*command: str | Path, cwd: Path = ROOT, **more: str) -> str:
    """Run a command without what this process has set for Python, and return what it printed.

    Raises
    ------
    NotReleasedError
        It failed; the end of what it said.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(command, cwd=cwd, env=kept | more, capture_output=True, text=True)
    if done.returncode:
        raise NotReleasedError(f"{' '.join(map(str, command))} failed:\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout


def project(root: Path) -> dict[str, Any]:
    """Return the metadata in ``pyproject.toml``, the one place of the version."""
    table: dict[str, Any] = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    return table


def promised(root: Path) -> list[str]:
    """Return the Pythons that the metadata name."""
    return re.findall(r"Python :: (3\.\d+)", "\n".join(project(root)["classifiers"]))


def require_ready(root: Path, pythons: Iterable[str], tag: bool) -> None:
    """Raise NotReleasedError unless the commit is all there is, and, to be tagged, its changes are written up."""
    if changed := run("git", "status", "--porcelain", cwd=root):
        raise NotReleasedError(
            f"a release is a commit, and these files differ from it; commit or remove them:\n{changed}"
        )
    version = project(root)["version"]
    there = [name for name in run("git", "tag", "--points-at", "HEAD", cwd=root).split() if name.startswith("v")]
    if there not in ([], [f"v{version}"]):
        raise NotReleasedError(
            f"the commit has the tag {' '.join(there)}, pyproject.toml says {version}: tag another commit"
        )
    if not tag:
        return
    if run("git", "tag", "--list", f"v{version}", cwd=root):
        raise NotReleasedError(f"v{version} is tagged already: write the next version into pyproject.toml")
    if missing := set(promised(root)) - set(pythons):
        raise NotReleasedError(
            f"no tag without a check on every Python that is promised: {' '.join(sorted(missing))} is missing"
        )
    if waiting := [path.name for path in fragments(root)]:
        raise NotReleasedError(
            f"{', '.join(waiting)} in {NEWS}: `make news` writes them into CHANGELOG.md; commit that"
        )
    if f"\n## {version} (" not in (root / "CHANGELOG.md").read_text():
        raise NotReleasedError(f"CHANGELOG.md has no section of {version}: `make news` writes it; commit that")


def fragments(root: Path) -> list[Path]:
    """Return the news that are not in CHANGELOG.md yet."""
    return sorted(path for path in (root / NEWS).glob("*.md") if path.name != "README.md")


def built(root: Path, place: Path) -> list[Path]:
    """Build the commit in a clone of its own, the wheel from the source distribution; return both files."""
    run("git", "clone", "--quiet", root, place / "clone")
    moment = run("git", "log", "-1", "--format=%ct", cwd=place / "clone").strip()
    how = (
        "--quiet",
        "--no-build-isolation",
        "--no-config",
        "--python",
        sys.executable,
    )  # the hatchling of release.lock
    run(TOOLS / "uv", "build", *how, "--out-dir", place / "dist", place / "clone", SOURCE_DATE_EPOCH=moment)
    return sorted(path for path in (place / "dist").iterdir() if path.name.startswith("npmdask-"))


def digests(files: Iterable[Path], root: Path) -> str:
    """Return lines as ``sha256sum --check`` reads them."""
    return "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(root)}\n" for path in files)


def require_whole(wheel: Path, root: Path) -> None:
    """Raise NotReleasedError unless the wheel holds the files of the package in the commit, and nothing else."""
    with zipfile.ZipFile(wheel) as packed:
        there = {name for name in packed.namelist() if ".dist-info/" not in name}
    wanted = set(run("git", "ls-files", "npmdask", cwd=root).splitlines())
    if there != wanted:
        raise NotReleasedError(f"{wheel.name} lacks {sorted(wanted - there)} and has besides {sorted(there - wanted)}")


def used(python: str, file: Path, extras: str, root: Path, place: Path) -> Path:
    """Install a file, and what it needs as the lock has it, where nothing else is; use it; return the environment."""
    uv, environment = TOOLS / "uv", place / f"{python}{extras}"
    run(uv, "venv", "--quiet", "--no-config", "--python", python, environment)
    asked = place / "asked.txt"
    asked.write_text(
        f"npmdask{extras} @ {file.as_uri()} --hash=sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}\n"
    )
    lock = root / LOCK
    locked = ("--constraints", lock, "--build-constraints", lock, "--require-hashes")
    run(uv, "pip", "install", "--quiet", "--no-config", "--python", environment, *locked, "-r", asked)
    run(uv, "pip", "check", "--quiet", "--no-config", "--python", environment)
    folder = place / f"runs of {environment.name}"  # a space: as users' folders have them
    folder.mkdir()
    own = environment / "bin" / "python"
    table = project(root)
    said = (table["version"], table["requires-python"], table["license"], *(("rows.csv",) if extras else ("rows.npy",)))
    print(run(own, "-I", root / "infra" / "release_use.py", *said, cwd=folder), end="", flush=True)
    return environment


def release(root: Path, out: Path, pythons: list[str], tag: bool) -> None:
    """Do it all; raise NotReleasedError where something is not as it should be."""
    began = time.monotonic()

    def tell(text: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {text}", flush=True)

    require_ready(root, pythons, tag)
    with tempfile.TemporaryDirectory(prefix="npmdask-release-") as folder:
        places = [Path(folder, name) for name in ("first", "second")]
        sdist, wheel = sorted(built(root, places[0]), key=lambda path: path.suffix == ".whl")
        again = digests(built(root, places[1]), places[1])
        if again != (once := digests(sorted((sdist, wheel)), places[0])):
            raise NotReleasedError(f"two builds of one commit differ:\n{once}{again}")
        tell("two builds, the same bytes")
        require_whole(wheel, root)
        run(TOOLS / "twine", "check", "--strict", sdist, wheel)
        tell("the wheel is the package of the commit; an index would take both files")
        environments = [used(python, wheel, "[all]", places[0] / "clone", places[1]) for python in pythons]
        tell(f"the wheel with all extras, on Python {', '.join(pythons)}")
        used(pythons[0], sdist, "", places[0] / "clone", places[1])
        tell(f"the source distribution without extras, on Python {pythons[0]}")
        shutil.rmtree(out, ignore_errors=True)
        (out / "dist").mkdir(parents=True)
        kept = [Path(shutil.copy2(path, out / "dist")) for path in (sdist, wheel)]
        bill = out / f"npmdask-{project(root)['version']}.cdx.json"
        asked = ("--pyproject", root / "pyproject.toml", "--output-reproducible", "--validate", "--output-file", bill)
        run(TOOLS / "cyclonedx-py", "environment", *asked, environments[0])
        (out / "SHA256SUMS").write_text(digests([*kept, bill], out))
        tell(f"{out}:\n{(out / 'SHA256SUMS').read_text()}".rstrip())
    if tag:
        version = project(root)["version"]
        run("git", "tag", "--annotate", f"v{version}", "--message", f"npmdask {version}", cwd=root)
        tell(f"v{version} is tagged; `git push origin v{version}` publishes it (.github/workflows/release.yml)")


def main(arguments: list[str] | None = None) -> int:
    """Make a release of the commit, or the changelog of the next one."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tag", action="store_true", help="tag the commit when everything is well")
    parser.add_argument("--pythons", nargs="+", default=promised(ROOT), help="versions (default: those promised)")
    parser.add_argument("--news", action="store_true", help=f"write {NEWS} into CHANGELOG.md, and nothing else")
    given = parser.parse_args(arguments)
    try:
        if given.news:
            print(run(TOOLS / "towncrier", "build", "--yes", "--version", project(ROOT)["version"]), end="")
        else:
            release(ROOT, ROOT / "build" / "release", given.pythons, given.tag)
    except NotReleasedError as error:
        print(f"make release: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
