"""The site: ``make docs`` builds it from these pages, the docstrings and the programs in docs/examples, offline."""

from __future__ import annotations

import os
import re
import sys
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("TQDM_DISABLE", "1")

from generated_pages import PAGES

project = "npmdask"
author = "npmdask developers"
project_copyright = author
version = release = version_of("npmdask")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "numpydoc",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "examples"]
nitpicky = True
nitpick_ignore_regex = [
    (r"py:\w+", r"npmdask\.\w+\.\w[\w.]*"),  # inner modules, named in docstrings for those who read the code
    ("py:obj", "shuffled_multiplier"),  # "See Also" of a function that npmdask.theory has under another name
]
# Warnings are errors; what is left out here are no faults of a page.
suppress_warnings = ["config.cache"]

# Pages: Markdown as GitHub shows it, with the anchors that GitHub gives to headings.
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]

# The API: numpydoc says the types; pages are in docs/reference/api.
autosummary_generate = False
autodoc_typehints = "none"
toc_object_entries_show_parents = "hide"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "inherited-members": "object,Exception"}
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False

sphinx_gallery_conf = {
    "examples_dirs": "examples",
    "gallery_dirs": "gallery",
    "filename_pattern": r"\.py$",
    "within_subsection_order": "FileNameSortKey",
    "download_all_examples": False,
    "show_signature": False,
    "show_memory": False,
    "write_computation_times": False,
    "min_reported_time": 5,
    "remove_config_comments": True,
    "plot_gallery": True,
    "capture_repr": (),  # what is printed is shown, not <Legend object at 0x...>
    "abort_on_example_error": True,
}

html_theme = "pydata_sphinx_theme"
html_title = "npmdask"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_theme_options = {
    "logo": {"text": "npmdask"},
    "show_toc_level": 2,
    "navigation_depth": 3,
    "header_links_before_dropdown": 7,
    "navbar_align": "left",
    "footer_start": ["copyright"],
    "footer_end": [],
    "show_prev_next": True,
    "secondary_sidebar_items": ["page-toc"],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}


def generate_page(app: Any, docname: str, source: list[str]) -> None:
    """Put what the program says of itself where a page asks for it: ``<!-- generated: NAME -->``."""
    source[0] = re.sub(r"^<!-- generated: (\w+) -->$", lambda found: PAGES[found[1]](), source[0], flags=re.M)


def link_files(app: Any, docname: str, source: list[str]) -> None:
    """Bring files of the repository that pages link to along as downloads, and folders by their names.

    A link is written as GitHub needs it; the site has only the pages below docs.
    """
    docs = Path(app.srcdir).resolve()
    folder = (docs / docname).parent

    def link(found: re.Match[str]) -> str:
        text, target = found[1], (folder / found[2]).resolve()
        if target.is_relative_to(docs / "examples"):  # GitHub shows the program, the site its page in the gallery
            page = docs / "gallery" / ("index.rst" if target.is_dir() else target.with_suffix(".rst").name)
            return f"[{text}]({os.path.relpath(page, folder)})"
        if target.is_dir():
            index = target / "index.md"
            return f"[{text}]({found[2].rstrip('/')}/index.md)" if index.is_file() else f"{text} (`{found[2]}`)"
        if target.is_relative_to(docs) or not target.is_file():
            return found[0]  # a page, or a broken link, which the build reports
        return f"{{download}}`{text.replace('`', '')} <{found[2]}>`"

    source[0] = re.sub(r"(?<!!)\[([^\]\n]+)\]\((?!\w+:)([^)#\s]+)\)", link, source[0])


def adapt_docstring(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Make ``docs/NAME.md`` a link to that page; |x| is a norm, where reStructuredText has a substitution."""
    example = False
    for place, line in enumerate(lines):
        example = bool(line.strip()) and (example or line.lstrip().startswith(">>>"))
        if not example:
            texts = re.split(r"(``.*?``)", re.sub(r"\bdocs/([\w/-]+?)\.md", r":doc:`/\1`", line))
            lines[place] = "".join(text if text.startswith("``") else text.replace("|", "\\|") for text in texts)


def skip_foreign(app: Any, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """Leave out what estimators inherit from scikit-learn, whose documentation has it, and fields of named tuples."""
    foreign = str(getattr(obj, "__module__", "")).startswith("sklearn") or re.fullmatch(r"set_\w+_request", name)
    field = type(obj).__name__ == "_tuplegetter"  # "Alias for field number 0": its parameter is described already
    return True if foreign or field else None


def setup(app: Any) -> None:
    app.connect("source-read", generate_page)
    app.connect("source-read", link_files)
    app.connect("autodoc-process-docstring", adapt_docstring, priority=400)  # before numpydoc's
    app.connect("autodoc-skip-member", skip_foreign)
