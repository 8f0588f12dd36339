"""The command that needs Prefect: handed on to the package of the flows, which alone knows it."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any


def add_serve(commands: Any) -> None:
    p = commands.add_parser(
        "serve",
        help="run schedules: a Prefect server, its keeper and a worker on this machine, until stopped",
        add_help=False,
        prefix_chars="\0",  # its options are not ours
    )
    p.add_argument("arguments", nargs="*")
    p.set_defaults(command=_serve)


def _serve(a: argparse.Namespace) -> int:
    os.execv(sys.executable, [sys.executable, "-m", "flows.serve", *a.arguments])
