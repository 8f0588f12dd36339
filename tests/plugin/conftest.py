"""The package from outside, built and installed as its users do."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from npmdask.core import features

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package and its metadata, from the wheel that its backend builds."""
    folder = tmp_path_factory.mktemp("plugin")
    shutil.copytree(HERE / "npmdask_robust", folder / "source" / "npmdask_robust")
    shutil.copy(HERE / "pyproject.toml", folder / "source")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=folder / "source", check=True, capture_output=True)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        wheel.extractall(folder / "site")
    return folder / "site"


class Package:
    """The package in this process, as long as it is installed."""

    def __init__(self, site: Path) -> None:
        self._site = str(site)

    def install(self) -> None:
        sys.path.insert(0, self._site)
        self._look_again()

    def remove(self) -> None:
        while self._site in sys.path:
            sys.path.remove(self._site)
        for name in [name for name in sys.modules if name.partition(".")[0] == "npmdask_robust"]:
            del sys.modules[name]
        self._look_again()

    def _look_again(self) -> None:
        importlib.invalidate_caches()
        features.from_outside.cache_clear()


@pytest.fixture
def package(site: Path) -> Iterator[Package]:
    """The package, installed."""
    package = Package(site)
    package.install()
    yield package
    package.remove()


@pytest.fixture
def there(site: Path, tmp_path: Path) -> Run:
    """Run Python or a command, in the folder of the test, by a process in which the package is installed."""
    return lambda *words: _process(tmp_path, (site, ROOT), *words)


@pytest.fixture
def gone(tmp_path: Path) -> Run:
    """Do so by one in which it is not."""
    return lambda *words: _process(tmp_path, (ROOT,), *words)


def _process(folder: Path, packages: tuple[Path, ...], *words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *(("-c",) if "\n" in str(words[0]) else ("-m", "npmdask")), *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, packages))}
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder, check=False)
