"""The command that says what a run would do. Argument parsing only."""

from __future__ import annotations

import argparse
import json
from typing import Any

from npmdask.errors import BadInputError


def add_plan(commands: Any) -> None:
    """``npmdask plan``."""
    p = commands.add_parser("plan", help="say what a run would do and need: passes, time, memory; starts nothing")
    p.add_argument("config", help="a TOML file")
    p.add_argument("--store", help="folder or URL of the run, instead of the one in the file")
    p.add_argument(
        "--spectrum",
        metavar="FILE|GUESS",
        help="singular values or eigenvalues (.npy, text), or power:1.5, exponential:0.9, spiked:K,GAP, flat; default: "
        "measured by a sample, which private runs cannot have",
    )
    p.add_argument("--json", action="store_true", help="one JSON object")
    p.set_defaults(command=_plan)


def _plan(a: argparse.Namespace) -> int:
    import npmdask.planning.plan_text as text
    import npmdask.planning.private as private
    from npmdask.config import load_config

    config = load_config(a.config, store=a.store)
    if config.streams:
        if a.spectrum is not None:
            raise BadInputError("the plan of a stream needs no spectrum: leave --spectrum out")
        facts = config.stream_plan()
        print(json.dumps(facts) if a.json else "\n".join(f"{name:26} {value}" for name, value in facts.items()))
        return 0
    if config.privacy is not None:
        promised = config.private_plan(a.spectrum)
        print(json.dumps(promised.facts()) if a.json else "\n".join(private.lines(promised)))
        return 0
    plan = config.plan(a.spectrum)
    print(json.dumps(plan.facts()) if a.json else "\n".join(text.lines(plan)))
    return 0
