"""What a run did, for people and for scripts: a table of facts, and its report as a page, as Markdown or as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from npmdask.checkpoint.store import RunStore, not_finished
from npmdask.errors import BadInputError
from npmdask.manage.kinds import kind_of, kind_of_answer
from npmdask.report import Report, as_html, as_json, as_markdown
from npmdask.storage.bundle import write_file_atomically
from npmdask.storage.paths import local_path


def summary(answer: Any) -> dict[str, Any]:
    """List the facts of an answer as plain numbers and strings: the JSON that other people's scripts rely on."""
    return kind_of_answer(answer).summary(answer)


def report_of(store: str | Path) -> Report:
    """Report a run, finished or not, as data.

    Raises
    ------
    BadInputError
        There is no run, or nothing was committed yet.
    """
    run = RunStore(store)
    spec = run.read_spec()
    if spec is None:
        raise not_finished(run.path)
    return kind_of(spec).report(run, spec)


FORMS = ("", ".html", ".htm", ".md", ".json")


def write_report(
    store: str | Path, output: str | Path | None = None, links: Mapping[str, str | Path] | None = None
) -> Path:
    """Write the report of a run (finished or not) and return its path.

    Parameters
    ----------
    store : folder or URL of the run.
    output : ``report.html`` in the store if None. A name that ends in ``.md`` or ``.json`` is written in that form, one
        that ends in ``.html`` or has no ending as a page.
    links : other pages to name at the end of a page, by title.

    Raises
    ------
    BadInputError
        There is no run, nothing was committed yet, or ``output`` names no file that can be written.
    """
    given = None if output is None else local_path(output, "the report")
    target = given or RunStore(store).path.absolute() / "report.html"
    if target.suffix not in FORMS:
        raise BadInputError(f"{target}: a report is written as .html, .md or .json; give a name that ends so")
    found = report_of(store)
    if not target.parent.is_dir():
        raise BadInputError(f"{target.parent} is no folder, so that no report can be written there; make it first")
    match target.suffix:
        case ".md":
            text = as_markdown(found)
        case ".json":
            text = json.dumps(as_json(found)) + "\n"
        case _:
            text = as_html(found, links, target.parent)
    write_file_atomically(target, text.encode())
    return target
