"""What `make release` refuses, and that what it builds is the commit; it is itself the check on every Python."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from infra.release import NotReleasedError, digests, promised, require_ready, require_whole

ROOT = Path(__file__).resolve().parents[2]
SMALL = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "npmdask"
version = "1.2.0"
classifiers = ["Programming Language :: Python :: 3.11", "Programming Language :: Python :: 3.12"]
[tool.hatch.build.targets.wheel]
packages = ["npmdask"]
"""


def git(root: Path, *words: str) -> None:
    name = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    subprocess.run(("git", *name, *words), cwd=root, check=True, capture_output=True)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A project of two files in a commit, ready to be tagged."""
    root = tmp_path / "project"
    (root / "npmdask").mkdir(parents=True)
    (root / "tests").mkdir()
    (root / "pyproject.toml").write_text(SMALL)
    (root / "CHANGELOG.md").write_text("# Changes\n\n## 1.2.0 (2026-12-01)\n")
    for name in ("npmdask/__init__.py", "npmdask/py.typed", "tests/test_it.py"):
        (root / name).write_text("")
    git(root, "init", "--quiet")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "--message", "All")
    return root


@pytest.mark.slow
def test_a_release_is_a_commit_whose_changes_are_written_up(small: Path) -> None:
    """Mutants: each `if` of `require_ready` left out."""

    def refused(said: str, pythons: str = "3.11 3.12", tag: bool = True) -> None:
        with pytest.raises(NotReleasedError, match=said):
            require_ready(small, pythons.split(), tag)

    assert promised(small) == ["3.11", "3.12"]
    require_ready(small, ["3.11", "3.12", "3.14"], tag=True)
    refused(r"no tag without a check on every Python that is promised: 3\.12 is missing", "3.11")
    require_ready(small, ["3.11"], tag=False)
    (small / "npmdask" / "new.py").write_text("")
    refused(r"(?s)a release is a commit.*commit or remove them:\n\?\? npmdask/new\.py", tag=False)
    (small / "npmdask" / "new.py").unlink()
    (small / "npmdask" / "py.typed").write_text("changed")
    refused(r" M npmdask/py\.typed", tag=False)
    git(small, "checkout", "--quiet", ".")
    git(small, "tag", "v1.1.0")
    refused(r"the commit has the tag v1\.1\.0, pyproject\.toml says 1\.2\.0", tag=False)
    git(small, "tag", "--delete", "v1.1.0")
    (small / "infra" / "news").mkdir(parents=True)
    (small / "infra" / "news" / "+it.fix.md").write_text("It is mended.\n")
    git(small, "add", ".")
    git(small, "commit", "--quiet", "--message", "News")
    refused(r"\+it\.fix\.md in infra/news: `make news` writes them")
    require_ready(small, ["3.11"], tag=False)
    git(small, "rm", "--quiet", "infra/news/+it.fix.md")
    (small / "CHANGELOG.md").write_text("# Changes\n\n## 1.1.0 (2026-11-01)\n")
    git(small, "commit", "--quiet", "--all", "--message", "Old")
    refused(r"CHANGELOG\.md has no section of 1\.2\.0")
    git(small, "reset", "--quiet", "--hard", "HEAD~2")
    git(small, "tag", "v1.2.0")
    refused(r"v1\.2\.0 is tagged already")
    require_ready(small, ["3.11"], tag=False)  # as the workflow does, where the tag is what started it


@pytest.mark.slow
def test_the_wheel_is_the_package_of_the_commit(small: Path, tmp_path: Path) -> None:
    """Mutants: a module that the build leaves out, and tests that it takes in."""
    build = "import hatchling.build as b, sys; print(b.build_wheel(sys.argv[1]))"
    command = (sys.executable, "-c", build, str(tmp_path))
    name = subprocess.run(command, cwd=small, check=True, capture_output=True, text=True).stdout.split()[-1]
    wheel = tmp_path / name
    require_whole(wheel, small)
    assert re.fullmatch(rf"[0-9a-f]{{64}}  {re.escape(name)}\n", digests([wheel], tmp_path))
    (small / "npmdask" / "new.py").write_text("")
    git(small, "add", ".")
    with pytest.raises(NotReleasedError, match=r"lacks \['npmdask/new\.py'\] and has besides \[\]"):
        require_whole(wheel, small)
    git(small, "reset", "--quiet", "--hard")
    with zipfile.ZipFile(wheel, "a") as packed:
        packed.writestr("tests/test_it.py", "")
    with pytest.raises(NotReleasedError, match=r"lacks \[\] and has besides \['tests/test_it\.py'\]"):
        require_whole(wheel, small)


def test_fragments_of_news_are_of_a_type_that_the_changelog_has() -> None:
    """A file with another ending would be left out without a word."""
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["towncrier"]
    types = "|".join(one["directory"] for one in told["type"])
    found = list((ROOT / told["directory"]).glob("*"))
    assert not [path.name for path in found if not re.fullmatch(rf"\+[\w-]+\.({types})\.md", path.name)]
    assert not [path.name for path in found if not path.read_text().strip()]
    assert (ROOT / told["filename"]).read_text().count(told["start_string"]) == 1
