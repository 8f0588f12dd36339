"""A command: ``npmdask ranges``."""

import argparse
from typing import Any

from npmdask.cli.models import add_output, print_answer


def add_ranges(commands: Any) -> None:
    p = commands.add_parser("ranges", help="find the smallest and the largest entry of each column")
    p.add_argument("source", help="data with rows and columns")
    p.add_argument("--store", required=True, help="folder of the run")
    p.add_argument("--absolute", action="store_true", help="of the sizes of entries")
    add_output(p)
    p.set_defaults(command=_ranges)


def _ranges(a: argparse.Namespace) -> int:
    from npmdask_robust.ranges import RANGES

    a.held_store = a.store
    return print_answer(RANGES.begin(a.source, a.store, absolute=a.absolute), a)
