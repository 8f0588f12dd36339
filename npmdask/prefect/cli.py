"""Command lines of the flows: ``python -m flows.NAME`` runs one once, with a Prefect server of its own."""

import argparse
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

from npmdask.cli.models import NOT_CONVERGED, add_set
from npmdask.cli.parser import Parser
from npmdask.config import RunConfig, load_config, parse_changes
from npmdask.errors import BadInputError, warn
from npmdask.manage.kinds import in_lines
from npmdask.prefect.parameters import at_store, checked
from npmdask.prefect.programs import exit_code, say
from npmdask.prefect.server import local_server
from npmdask.prefect.tasks import NotConvergedError

Check = Callable[[RunConfig], Any]


def main(flow: Any, argv: Sequence[str] | None = None, *, check: Check = RunConfig.check, **more: int) -> int:
    """A flow that takes a configuration file; returns the exit code, the same as those of ``npmdask``.

    ``check`` : opens the source, and raises what is wrong before a server is started.
    ``more`` : further parameters of the flow, with their defaults.
    """
    parser = _parser(flow)
    parser.add_argument("config", help="a TOML file, as for `npmdask run`")
    parser.add_argument("--run-id", help="name of the run: its store is runs/ID beside the file, not the file's own")
    parser.add_argument("--store", help="folder of the run, instead of the one in the file")
    add_set(parser)
    for name, value in more.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    a = parser.parse_args(argv)

    def run() -> int:
        config, run_id = load(a, check)
        return once(a, flow, {"config": config, "run_id": run_id} | {name: getattr(a, name) for name in more})

    return exit_code(run)


def main_of_parameters(flow: Any, argv: Sequence[str] | None = None) -> int:
    """A flow without a configuration: ``python -m flows.topics '{"documents": ..., "count": 20}'``."""
    parser = _parser(flow)
    parser.add_argument("parameters", help="one JSON object: the parameters of the flow")
    a = parser.parse_args(argv)

    def run() -> int:
        try:
            asked = dict(json.loads(a.parameters))
        except (TypeError, ValueError) as error:
            raise BadInputError(f"the parameters are not a JSON object: {error}") from None
        return once(a, flow, checked(flow, asked))

    return exit_code(run)


def _parser(flow: Any) -> Parser:
    parser = Parser(description=flow.description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="the last line of stdout is one JSON object")
    return parser


def load(a: argparse.Namespace, check: Check = RunConfig.check) -> tuple[RunConfig, str]:
    """The configuration with absolute paths, found good by ``check`` (which opens its source), and the run id."""
    changes = parse_changes(a.set)
    run_id = a.run_id or re.sub(r"[^A-Za-z0-9._-]", "-", Path(a.config).stem)
    named = Path(a.config).absolute().parent / "runs" / run_id if a.run_id else None
    config = at_store(load_config(a.config, store=a.store or (str(named) if named else None), changes=changes), run_id)
    check(config)
    warn(*config.warnings())
    return config, run_id


def once(a: argparse.Namespace, flow: Any, parameters: dict[str, Any]) -> int:
    """One run of ``flow``; prints its facts and returns the exit code."""
    with local_server() as url:
        say(f"Prefect at {url.removesuffix('/api')}")
        try:
            # Prefect's own signs of life: nothing looks at them here, and their thread is waited for up to a second.
            with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
                facts: Any = flow(**parameters)
        except NotConvergedError as error:
            say(str(error))
            facts = error.facts
    print(json.dumps(facts) if a.json else in_lines(facts))
    return 0 if facts["answered"] else NOT_CONVERGED
