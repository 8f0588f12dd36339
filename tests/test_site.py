"""The site builds without a warning, has every public name, and loads nothing from elsewhere."""

from __future__ import annotations

import fcntl
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.prefect.browser import browser, missing

ROOT = Path(__file__).resolve().parents[1]
FACES = tuple(
    "npmdask" + room for room in ("", ".accounting", ".anndata", ".experiments", ".prefect", ".theory", ".xarray")
)
EXTERNAL = re.compile(r"""<(?:script|link|img|iframe|source)\b[^>]*(?:src|href)=["'](?:https?:)?//[^"']*["'][^>]*>""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All pages, built as ``make docs`` builds them: a warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    (options,) = re.findall(r"-m sphinx (.*) docs build/site", (ROOT / "Makefile").read_text())
    command = [
        sys.executable,
        "-m",
        "sphinx",
        *options.split(),
        "-d",
        folder / "doctrees",
        ROOT / "docs",
        folder / "html",
    ]
    with open(ROOT / "docs" / "conf.py") as one:  # a build writes docs/gallery: two workers of pytest take turns
        fcntl.flock(one, fcntl.LOCK_EX)
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "html"


def entries(site: Path) -> set[str]:
    """What the site explains, by full names: the index that Sphinx writes for other sites."""
    from sphinx.util.inventory import InventoryFile

    found = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="")
    return {name for kind, names in found.data.items() if kind.startswith("py:") for name in names}


@pytest.mark.slow
def test_every_public_name_is_explained(site: Path) -> None:
    explained = entries(site)
    for face in FACES:
        module = importlib.import_module(face)
        missing = [name for name in module.__all__ if f"{face}.{name}" not in explained]
        assert not missing, f"{face}: write them into a page of docs/reference/api"


@pytest.mark.slow
def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 100
    for page in pages:
        text = page.read_text()
        assert not EXTERNAL.findall(text), page
        assert "](data:" not in text, f"{page}: a picture is shown as text"
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", sheet.read_text()), sheet


def test_what_loads_from_elsewhere_is_seen() -> None:
    """The check itself: addresses with and without their scheme; a link that a person follows is none."""
    for tag in (
        '<script src="https://a.b/c.js"></script>',
        "<link rel=x href='//a.b/c.css'>",
        '<img alt="" src="http://a/b">',
    ):
        assert EXTERNAL.findall(tag)
    for tag in ('<a href="https://a.b">c</a>', '<script src="_static/c.js"></script>', '<link href="d/e.css">'):
        assert not EXTERNAL.findall(tag)


@pytest.mark.slow
def test_pages_of_the_program_have_every_command_and_key(site: Path) -> None:
    from npmdask.cli.main import _parser
    from npmdask.config import RunConfig

    text = (site / "reference" / "cli.html").read_text()
    commands = next(a.choices for a in _parser()._actions if a.dest == "name")
    assert len(commands) > 20
    assert not [name for name in commands if f'id="npmdask-{name}"' not in text]
    text = (site / "reference" / "configuration.html").read_text()
    assert not [name for name in RunConfig.model_fields if f"[{name}]</" not in re.sub(r"<a.*?</a>", "</", text)]
    for key in ("missing_limit", "target_rank", "half_life", "clip_norm", "commit_seconds", "align_to"):
        assert f">{key}</" in text


@pytest.mark.slow
@pytest.mark.skipif(bool(missing()), reason="there is no chromium here: apt-get install chromium chromium-driver")
def test_buttons_are_called_what_they_show(site: Path, tmp_path: Path) -> None:
    """Mutants, as the theme has them: a toggle of the navigation without a name; a search button with another."""
    with browser(tmp_path) as window:
        window.open((site / "reference" / "index.html").as_uri())
        toggles = window.run("return [...document.querySelectorAll('.bd-sidebar summary')].map(one => one.ariaLabel)")
        assert toggles and all(name and name.startswith("Pages below ") for name in toggles), toggles
        search = window.run("return [...document.querySelectorAll('.search-button-field')].map(one => one.ariaLabel)")
        assert search and all("Search" in name and "K" in name for name in search), "all that it shows, on a phone too"
