"""The command that projects rows onto what was found."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import Any


def add_transform(commands: Any) -> None:
    p = commands.add_parser(
        "transform",
        help="write the scores of rows along the components of a run, or the shares of its topics in documents, out of "
        "core (not private, whatever the run was)",
    )
    p.add_argument("store", help="folder of a run: of a stream, at any time, or a finished one; or of topics")
    p.add_argument("source", help="rows: a Zarr store, a file, a directory of files, or - (standard input)")
    p.add_argument("dest", help="Zarr store of the scores (rows x k) to create")
    p.add_argument("--batch-rows", type=int, help="rows at once (default: 16 MiB of them)")
    p.add_argument("--non-finite", choices=["refuse", "skip"], default="refuse", help="skip: leave such rows out")
    p.add_argument("--pattern", default="*", help="of a directory: names of its files")
    p.add_argument("--format", choices=["csv", "npy", "float32"], help="of standard input")
    p.add_argument("--header", action=argparse.BooleanOptionalAction, help="of CSV: the first line holds names")
    p.add_argument("--overwrite", action="store_true", help="replace DEST once the scores are whole")
    p.add_argument("--json", action="store_true", help="one JSON object")
    p.add_argument("--quiet", action="store_true", help="no progress")
    p.set_defaults(command=_transform)


def _transform(a: argparse.Namespace) -> int:
    from npmdask.models.topics.model import holds_topics
    from npmdask.runs.observers import ProgressBar
    from npmdask.streaming.transform import transform

    if holds_topics(a.store):
        return _transform_documents(a)
    scored = transform(
        a.store,
        a.source,
        a.dest,
        batch_rows=a.batch_rows,
        non_finite=a.non_finite,
        pattern=a.pattern,
        format=a.format,
        header=a.header,
        overwrite=a.overwrite,
        observer=ProgressBar(quiet=a.quiet),
    )
    _say(scored, a.json)
    return 0


def _transform_documents(a: argparse.Namespace) -> int:
    from npmdask.errors import BadInputError
    from npmdask.models.topics.transform import transform_documents
    from npmdask.runs.observers import ProgressBar

    given = {"batch_rows": None, "non_finite": "refuse", "pattern": "*", "format": None, "header": None}
    of_rows = [f"--{name.replace('_', '-')}" for name, default in given.items() if getattr(a, name) != default]
    if of_rows:
        raise BadInputError(f"{a.store} holds topics, and {', '.join(of_rows)} is of rows of numbers: leave it out")
    observer = ProgressBar(quiet=a.quiet)
    _say(transform_documents(a.store, a.source, a.dest, overwrite=a.overwrite, observer=observer), a.json)
    return 0


def _say(scored: Any, as_json: bool) -> None:
    facts = asdict(scored)
    for warning in facts.get("warnings", ()):
        print(f"npmdask: warning: {warning}", file=sys.stderr)
    lines = (f"{name:20} {value}" for name, value in facts.items() if name != "warnings")
    print(json.dumps(facts) if as_json else "\n".join(lines))
